r"""A trot of a quadruped in space: its clock, its reference, and the law that tracks it.

Diagonal pairs of feet stand in turn. In a stride of period T each pair stands for a share d > 1/2
of it, so that all feet stand in between. The base shall move at a given velocity at a constant
height, level. A swinging foot goes from where it let go to

.. math:: p = p_{hip} + \tfrac12 d T v + \sqrt{h / g} \, (v - v_{ref}),

with :math:`p_{hip}` the place of the foot in the nominal posture, carried on with the base to the
landing, v the velocity of the base and h the height of its origin, taken for that of the center of
mass. The last term is the capture point's share of the error of velocity: after a push feet land
farther out. Turning of the base until the landing is not regarded.

The law asks the whole-body programme for accelerations of the base and of the feet, of
proportional and derivative feedback on this reference. Which feet support the robot is found by
the clock, or by touch as well:

- "clock": the feet that the clock has on the ground.
- "touch": in addition, a foot that touches in the second half of its swing supports the robot from
  then on. If it leaves the ground again for longer than a bounce, it goes on swinging. A foot that
  is late is pressed down, and supports the robot although it does not touch, for the first half of
  its stance.
- "sure": as "touch", but a late foot supports the robot only once it touches.

Where the programme does not converge, the last torque is held for a moment. After that joints are
drawn to the nominal posture, with damping, until the programme converges again (`status`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import Array, check_member, check_number, check_vector
from hybridctl.base.errors import InputError
from hybridctl.control.whole_body import FeetMotion, WholeBodyQP, WholeBodySolution, make_rotation
from hybridctl.mechanics.contacts.surfaces import Plane

Trigger = Literal["clock", "touch", "sure"]
Status = Literal["ok", "held", "posture"]

_EARLY = 0.5
"""Part of a swing after which a touch ends it; before that it is the foot that has just let go."""
_LEASH = 0.05
"""Greatest distance, m, of the reference of the base from the base: after a push the law does not
go back to where it would have been. A choice."""
_YAW_LEASH = 0.3
"""Greatest angle, rad, of the reference of the heading from the heading, likewise. A choice."""
_BOUNCE = 0.02
"""Time, s, for which a foot that has touched is taken to touch still: contacts of engines and
switches in feet flicker after a touchdown. A choice."""
_PATIENCE = 0.5
"""Part of its stance for which a foot that does not touch supports the robot by "touch"; after it
the programme would plan with a force that is not there. A choice."""
_HELD = 0.01
"""Time, s, for which a torque is held where the programme does not converge. A choice: a body falls
by 0.5 mm meanwhile, and single failures, one in a thousand samples, last 2 ms at 500 Hz."""
_DAMPING_TIME = 0.05
"""Damping of the joints relative to their stiffness, s, where the posture is held. A choice."""


@dataclass(frozen=True)
class Trot:
    """The timing of a trot and the gains of its law.

    Attributes:
        period: Period T of a stride, s.
        stance: Share d of the stride for which each foot stands.
        height: Height of the origin of the base, m.
        velocity: Velocity of the base forwards and to the left, m/s, and about the vertical, rad/s.
        clearance: Height in the middle of its swing of a swinging foot over the mean of its places
            of lift-off and landing, m.
        pairs: Indices of the feet that swing together; the first group swings first.
        base_gain: Stiffness, 1/s^2, and damping, 1/s, of the position of the base.
        turn_gain: The same of its orientation.
        swing_gain: The same of swinging feet.
        support_damping: Damping of supporting feet, 1/s.
        press: Speed at which a late foot is pressed down, m/s, with the damping of swinging feet.
        posture_stiffness: Stiffness of the joints, N m/rad, by which they are drawn to the nominal
            posture after the programme has failed; their damping is 0.05 s times that. None for the
            weight of the robot times `height`: a leg that bears it then gives way by some 0.5 rad.

    Raises:
        InputError: A value is out of range, or the pairs do not share the feet.
    """

    period: float
    height: float
    stance: float = 0.55
    velocity: tuple[float, float, float] = (0.3, 0.0, 0.0)
    clearance: float = 0.05
    pairs: tuple[tuple[int, ...], ...] = ((0, 3), (1, 2))
    base_gain: tuple[float, float] = (60.0, 15.0)
    turn_gain: tuple[float, float] = (200.0, 25.0)
    swing_gain: tuple[float, float] = (900.0, 60.0)
    support_damping: float = 30.0
    press: float = 0.4
    posture_stiffness: float | None = None

    def __post_init__(self) -> None:
        for name in ("period", "height", "clearance", "press"):
            check_number(name, getattr(self, name), above=0.0)
        if not 0.5 < self.stance < 1.0:
            raise InputError(f"stance must be between 0.5 and 1, got {self.stance}")
        check_vector("velocity", self.velocity, 3)
        check_number("support_damping", self.support_damping, at_least=0.0)
        if self.posture_stiffness is not None:
            check_number("posture_stiffness", self.posture_stiffness, at_least=0.0)
        for name in ("base_gain", "turn_gain", "swing_gain"):
            gain = check_vector(name, getattr(self, name), 2)
            if gain.min() < 0.0:
                raise InputError(f"{name} must not be negative, got {getattr(self, name)}")
        feet = sorted(foot for pair in self.pairs for foot in pair)
        if len(self.pairs) != 2 or feet != list(range(len(feet))):
            raise InputError(f"pairs must be two groups that share all feet, got {self.pairs}")

    def find_swing(self, time: float) -> Array:
        """Return the part (c,) of its swing that each foot has behind it, NaN while it stands.

        Args:
            time: Time since the first pair let go, s.
        """
        part, swing = self.count_strides(time) % 1.0, 1.0 - self.stance
        return np.where(part < swing, part / swing, np.nan)

    def count_strides(self, time: float) -> Array:
        """Return the number (c,) of strides that each foot has behind it, each begun by a swing.

        The second pair is half a stride ahead of the first one.

        Args:
            time: Time since the first pair let go, s.
        """
        found = np.empty(sum(map(len, self.pairs)))
        for k, pair in enumerate(self.pairs):
            found[list(pair)] = time / self.period + 0.5 * k
        return found


class TrotController:
    """The torques of a trot on level ground at height zero, sample by sample.

    Life cycle: `reset`, then `step` at each sample. A first step without `reset` does the same. In
    between it keeps where swinging feet let go, when feet touched last, and the reference of the
    base.

    Args:
        programme: The whole-body programme of the robot and its feet.
        trot: The trot.
        posture: Configuration (nq,) in which the robot stands level; in the middle of a stance feet
            are where they are then beside the base.
        trigger: What decides which feet support the robot; see this module.

    Raises:
        InputError: The number of feet does not fit, the ground is not level and at height zero, or
            an argument does not fit.

    Attributes:
        programme: The whole-body programme.
        trot: The trot.
        trigger: What decides which feet support the robot.
        solution: What the programme found last; None before the first step.
        support: Flags (c,) of the feet that supported the robot in the last step.
        failures: Number of steps since `reset` in which the programme did not converge.
        status: How the last input was found.

            - "ok": by the programme.
            - "held": the last input of the programme (zero if there is none), as it did not
              converge.
            - "posture": springs and dampers of the joints, which draw them to the posture inside
              the limits of the motors, as it has not converged for longer than 10 ms.
    """

    _hips: Array  # places of the feet in the nominal posture (c, 3) from the base, in its axes, m
    # State between two steps, besides the attributes above:
    _start: float  # time of the first sample, s
    _last: float  # time of the last sample, s
    _place: Array  # reference of the base along x and y (2,), m
    _yaw: float  # reference of the heading, rad
    _lifted: Array  # where each foot let go (c, 3), m
    _last_touch: Array  # time of the last touch since the middle of the last swing (c,), s; or -inf
    _touched: NDArray[np.bool_]  # feet whose last touch is no longer ago than a bounce
    _swing_count: NDArray[np.int_]  # number (c,) of the stride whose swing has begun last
    _u: Array  # input (nu,) of the last step that converged, N m
    _solved: float  # time of that step, or of the first one, s

    solution: WholeBodySolution | None

    def __init__(
        self,
        programme: WholeBodyQP,
        trot: Trot,
        posture: ArrayLike,
        trigger: Trigger = "touch",
    ) -> None:
        feet = len(programme.contacts)
        if sum(map(len, trot.pairs)) != feet:
            raise InputError(f"pairs of the trot must share {feet} feet, got {trot.pairs}")
        self.programme, self.trot = programme, trot
        for contact in programme.contacts:
            ground = contact.surface
            # Footholds and the clock are planned for this ground alone.
            if not isinstance(ground, Plane) or not (
                np.allclose(ground.unit_normal, (0.0, 0.0, 1.0)) and abs(ground.point[2]) < 1e-9
            ):
                raise InputError(
                    f"contact {contact.name!r} must be on a Plane that is level and at height 0, "
                    f"got {ground!r}"
                )
        self.trigger = check_member("trigger", trigger, ("clock", "touch", "sure"))
        q = check_vector("posture", posture, programme.robot.nq)
        place = programme.find_feet(q, np.zeros(programme.robot.nv)).positions
        self._hips = (place - q[:3]) @ make_rotation(q[3:7])
        self._posture = q
        self._radii = np.array([contact.radius for contact in programme.contacts])
        self._gravity = float(np.linalg.norm(programme.robot.tree().gravity))
        self.reset()

    def reset(self) -> None:
        """Begin anew with the next sample, at which the first pair lets go."""
        self._start, self._last, self.solution, self.failures = math.nan, -math.inf, None, 0
        self.status: Status = "ok"
        self.support = np.ones(len(self._hips), dtype=bool)
        self._u = np.zeros(self.programme.robot.nu)

    def step(self, time: float, state: Array, sensed: Mapping[str, Any] | None = None) -> Array:
        """Return the torques (nu,) until the next sample.

        Args:
            time: Time, s.
            state: State (nq + nv,), of the base: position, quaternion (x, y, z, w), and velocity
                in axes of the base.
            sensed: Values of sensors. All triggers but "clock" need "contact", flags (c,).

        Raises:
            InputError: The time is before that of the last step, values are not finite, or flags
                of contact are missing. Nothing is changed then.
        """
        robot = self.programme.robot
        time = check_number("time", time)
        if time < self._last:
            raise InputError(
                f"time must not go back, got {time} after {self._last}; `reset` begins anew"
            )
        state = check_vector("state", state, robot.nq + robot.nv)
        touching = self._find_touching(sensed)
        q, v = state[: robot.nq], state[robot.nq :]
        motion = self.programme.find_feet(q, v)
        turned = make_rotation(q[3:7])
        if math.isnan(self._start):
            self._begin(time, q, turned, motion)
        swing = self._update_support(time, motion, touching)
        speed, yaw_rate = self._update_reference(time, q, turned)
        base = self._find_base_target(q, v, turned, speed, yaw_rate)
        feet = self._find_feet_targets(swing, q, turned @ v[:3], speed, motion)
        self.solution = self.programme.solve(q, v, base, feet, self.support, motion)
        return self._choose_torques(time, q, v, self.solution)

    def _choose_torques(
        self, time: float, q: Array, v: Array, solution: WholeBodySolution
    ) -> Array:
        """Return the torques (nu,) of a solution or of what acts in its place; update the status.

        Args:
            time: Time, s.
            q: Configuration (nq,).
            v: Velocity (nv,).
            solution: What the programme has found.
        """
        if solution.is_solved:
            self._u, self._solved, self.status = solution.u, time, "ok"
        else:
            self.failures += 1
            self.status = "held" if time - self._solved <= _HELD else "posture"
        if self.status != "posture":
            given: Array = self._u.copy()
            return given
        robot, stiffness = self.programme.robot, self.trot.posture_stiffness
        if stiffness is None:
            stiffness = robot.weight * self.trot.height
        off = robot.difference(q, self._posture) - _DAMPING_TIME * v
        limits = self.programme.limits
        u: NDArray[np.float64] = np.clip(stiffness * (robot.actuation.T @ off), -limits, limits)
        return u

    def _find_touching(self, sensed: Mapping[str, Any] | None) -> NDArray[np.bool_]:
        """Return the flags (c,) of contact, of which the clock needs none.

        Raises:
            InputError: Flags are missing, or not one for each foot.
        """
        count = len(self._hips)
        if self.trigger == "clock":
            return np.zeros(count, dtype=bool)
        flags = (sensed or {}).get("contact")
        touching: NDArray[np.bool_] = np.asarray(flags, dtype=bool)
        if flags is None or touching.shape != (count,):
            raise InputError(
                f"sensed must have 'contact', a flag for each of {count} feet, for the trigger "
                f"{self.trigger!r}; got {flags!r}"
            )
        return touching

    def _begin(self, time: float, q: Array, turned: Array, motion: FeetMotion) -> None:
        """Put the reference where the robot is, and the clock to zero."""
        self._start = self._last = self._solved = time
        self._place, self._yaw = q[:2].copy(), math.atan2(turned[1, 0], turned[0, 0])
        self._lifted = motion.positions.copy()
        self._last_touch = np.full(len(self._hips), time)
        self._swing_count = np.full(len(self._hips), -1)

    def _update_support(
        self, time: float, motion: FeetMotion, touching: NDArray[np.bool_]
    ) -> Array:
        """Update the feet that support the robot, and where swinging feet let go.

        Args:
            time: Time, s.
            motion: Motion of the feet.
            touching: Flags (c,) of contact; none is set by the clock.

        Returns:
            Parts (c,) of swings; NaN for feet that the clock has on the ground.
        """
        counted = self.trot.count_strides(time - self._start)
        swing = self.trot.find_swing(time - self._start)
        swinging = ~np.isnan(swing)
        count = np.floor(counted).astype(int)
        # By the number of its stride: between two samples far apart a foot may have stood.
        lifted = swinging & (count != self._swing_count)
        self._swing_count[lifted] = count[lifted]
        self._lifted[lifted] = motion.positions[lifted]
        self._last_touch[lifted] = -math.inf
        self.support = ~swinging
        if self.trigger != "clock":
            early = np.nan_to_num(swing) > _EARLY
            self._last_touch[touching & (early | ~swinging)] = time
            self._touched = time - self._last_touch <= _BOUNCE
            self.support |= self._touched
            passed = (counted - count - (1.0 - self.trot.stance)) / self.trot.stance
            if self.trigger == "sure":
                self.support &= self._touched
            else:
                self.support &= self._touched | (passed <= _PATIENCE)
        return swing

    def _update_reference(self, time: float, q: Array, turned: Array) -> tuple[Array, float]:
        """Move the reference of the base on, no farther than leashes from its place and heading.

        Args:
            time: Time, s.
            q: Configuration (nq,).
            turned: Rotation (3, 3) of the base.

        Returns:
            Velocity (3,) of the reference in world axes, m/s, and its turn, rad/s.
        """
        forward, left, turn = self.trot.velocity
        c, s = math.cos(self._yaw), math.sin(self._yaw)
        speed = np.array([c * forward - s * left, s * forward + c * left, 0.0])
        passed, self._last = time - self._last, time
        self._place = self._place + passed * speed[:2]
        self._yaw += passed * turn
        heading = math.atan2(turned[1, 0], turned[0, 0])
        off = math.remainder(self._yaw - heading, 2.0 * math.pi)
        if abs(off) > _YAW_LEASH:
            self._yaw = heading + math.copysign(_YAW_LEASH, off)
        ahead = self._place - q[:2]
        distance = float(np.linalg.norm(ahead))
        if distance > _LEASH:
            self._place = q[:2] + _LEASH / distance * ahead
        return speed, turn

    def _find_base_target(
        self, q: Array, v: Array, turned: Array, speed: Array, yaw_rate: float
    ) -> Array:
        """Return the acceleration (6,) of the base that is asked for, in m/s^2 and rad/s^2.

        As the target of `WholeBodyQP.solve` it is linear, of the origin of the base, then angular,
        in world axes.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            turned: Rotation (3, 3) of the base.
            speed: Velocity (3,) of the reference, m/s.
            yaw_rate: Turn of the reference, rad/s.
        """
        trot = self.trot
        place = np.array([*self._place, trot.height])
        stiffness, damping = trot.base_gain
        linear = stiffness * (place - q[:3]) + damping * (speed - turned @ v[:3])
        c, s = math.cos(self._yaw), math.sin(self._yaw)
        error = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]) @ turned.T
        # Half the axial part: the axis times the sine of the angle, which needs no case of its own
        # at half a turn. It is the rotation vector of small errors.
        axis = 0.5 * np.array(
            [error[2, 1] - error[1, 2], error[0, 2] - error[2, 0], error[1, 0] - error[0, 1]]
        )
        stiffness, damping = trot.turn_gain
        wanted = np.array([0.0, 0.0, yaw_rate])
        return np.concatenate([linear, stiffness * axis + damping * (wanted - turned @ v[3:6])])

    def _find_feet_targets(
        self, swing: Array, q: Array, moving: Array, speed: Array, motion: FeetMotion
    ) -> Array:
        """Return the accelerations (c, 3) of the feet that are asked for, m/s^2, in world axes.

        Args:
            swing: Parts (c,) of swings, NaN while feet stand.
            q: Configuration (nq,).
            moving: Velocity (3,) of the base in world axes, m/s.
            speed: Velocity (3,) of the reference, m/s.
            motion: Motion of the feet.
        """
        trot = self.trot
        targets = -trot.support_damping * motion.velocities
        stiffness, damping = trot.swing_gain
        lasts = (1.0 - trot.stance) * trot.period
        c, s = math.cos(self._yaw), math.sin(self._yaw)
        heading = np.array([[c, -s], [s, c]])
        capture = math.sqrt(trot.height / self._gravity)
        for i, part in enumerate(swing):
            # By the clock no touch is known: a foot that shall stand is taken to stand.
            if self.support[i] and (self.trigger == "clock" or self._touched[i]):
                continue
            if math.isnan(part):  # late: pressed down
                down = np.array([0.0, 0.0, -trot.press])
                targets[i] = damping * (down - motion.velocities[i])
                continue
            left = (1.0 - part) * lasts
            land = q[:2] + left * moving[:2] + heading @ self._hips[i, :2]
            land = land + 0.5 * trot.stance * trot.period * moving[:2]
            land = land + capture * (moving[:2] - speed[:2])
            place, rate, change = interpolate_swing(
                part, lasts, self._lifted[i], np.append(land, self._radii[i]), trot.clearance
            )
            targets[i] = (
                change
                + stiffness * (place - motion.positions[i])
                + damping * (rate - motion.velocities[i])
            )
        return targets


def interpolate_swing(
    part: float, lasts: float, start: Array, end: Array, clearance: float
) -> tuple[Array, Array, Array]:
    """Return position, velocity and acceleration (3,) of a swinging foot.

    It goes from start to end by a cubic without velocity at its ends, and over them by a quartic
    of height `clearance`.

    Args:
        part: Part of the swing that has passed.
        lasts: Duration of the swing, s.
        start: Where it begins (3,), m.
        end: Where it ends (3,), m.
        clearance: Height in the middle over the mean of both ends, m.

    Returns:
        Position, m, velocity, m/s, and acceleration, m/s^2.
    """
    s, way = part, end - start
    place = start + (3.0 * s**2 - 2.0 * s**3) * way
    rate, change = (6.0 * s - 6.0 * s**2) * way, (6.0 - 12.0 * s) * way
    place[2] += 16.0 * clearance * (s * (1.0 - s)) ** 2
    rate[2] += 32.0 * clearance * s * (1.0 - s) * (1.0 - 2.0 * s)
    change[2] += 32.0 * clearance * (1.0 - 6.0 * s + 6.0 * s**2)
    return place, rate / lasts, change / lasts**2
