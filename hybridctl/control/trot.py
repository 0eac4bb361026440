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
  then on, until its next lift-off. A foot that is late is pressed down, and supports the robot
  although it does not touch.
- "sure": as "touch", but a late foot supports the robot only once it touches.
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

_EARLY = 0.5
"""Part of a swing after which a touch ends it; before that it is the foot that has just let go."""
_LEASH = 0.05
"""Greatest distance, m, of the reference of the base from the base: after a push the law does not
go back to where it would have been. A choice."""


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

    def __post_init__(self) -> None:
        for name in ("period", "height", "clearance", "press"):
            check_number(name, getattr(self, name), above=0.0)
        if not 0.5 < self.stance < 1.0:
            raise InputError(f"stance must be between 0.5 and 1, got {self.stance}")
        check_vector("velocity", self.velocity, 3)
        check_number("support_damping", self.support_damping, at_least=0.0)
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
        swing = 1.0 - self.stance
        found = np.full(sum(map(len, self.pairs)), np.nan)
        for k, pair in enumerate(self.pairs):
            part = (time / self.period + 0.5 * k) % 1.0
            if part < swing:
                found[list(pair)] = part / swing
        return found


class TrotController:
    """The torques of a trot on level ground at height zero, sample by sample.

    Life cycle: `reset`, then `step` at each sample. A first step without `reset` does the same. In
    between it keeps where swinging feet let go, which feet have landed early, and the reference of
    the base.

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
        failures: Number of steps since `reset` in which the programme did not converge. Their input
            is the one before, zero at first.
    """

    _hips: Array  # places of the feet in the nominal posture (c, 3) from the base, in its axes, m
    # State between two steps, besides the attributes above:
    _start: float  # time of the first sample, s
    _last: float  # time of the last sample, s
    _place: Array  # reference of the base along x and y (2,), m
    _yaw: float  # reference of the heading, rad
    _lifted: Array  # where each foot let go (c, 3), m
    _landed: NDArray[np.bool_]  # feet that landed before the end of their swing
    _touched: NDArray[np.bool_]  # feet that have touched since the middle of their last swing
    _swinging: NDArray[np.bool_]  # feet that the clock had in the air
    _u: Array  # input (nu,) of the last step that converged, N m

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
        self._radii = np.array([contact.radius for contact in programme.contacts])
        self._gravity = float(np.linalg.norm(programme.robot.tree().gravity))
        self.reset()

    def reset(self) -> None:
        """Begin anew with the next sample, at which the first pair lets go."""
        self._start, self._last, self.solution, self.failures = math.nan, -math.inf, None, 0
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
        speed, yaw_rate = self._update_reference(time, q)
        base = self._find_base_target(q, v, turned, speed, yaw_rate)
        feet = self._find_feet_targets(swing, q, turned @ v[:3], speed, motion)
        self.solution = self.programme.solve(q, v, base, feet, self.support, motion)
        if self.solution.is_solved:
            self._u = self.solution.u
        else:
            self.failures += 1
        given: Array = self._u.copy()
        return given

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
        self._start = self._last = time
        self._place, self._yaw = q[:2].copy(), math.atan2(turned[1, 0], turned[0, 0])
        self._lifted = motion.positions.copy()
        self._landed = np.zeros(len(self._hips), dtype=bool)
        self._touched = np.ones(len(self._hips), dtype=bool)
        self._swinging = self._landed.copy()

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
        swing = self.trot.find_swing(time - self._start)
        swinging = ~np.isnan(swing)
        lifted = swinging & ~self._swinging
        self._lifted[lifted] = motion.positions[lifted]
        self._landed[lifted], self._touched[lifted] = False, False
        self._swinging = swinging
        self.support = ~swinging
        if self.trigger != "clock":
            early = np.nan_to_num(swing) > _EARLY
            self._landed |= early & touching
            self._touched |= touching & (early | ~swinging)
            self.support |= self._landed
            if self.trigger == "sure":
                self.support &= self._touched
        return swing

    def _update_reference(self, time: float, q: Array) -> tuple[Array, float]:
        """Move the reference of the base on, no farther than the leash from it in any direction.

        The heading has no leash.

        Args:
            time: Time, s.
            q: Configuration (nq,).

        Returns:
            Velocity (3,) of the reference in world axes, m/s, and its turn, rad/s.
        """
        forward, left, turn = self.trot.velocity
        c, s = math.cos(self._yaw), math.sin(self._yaw)
        speed = np.array([c * forward - s * left, s * forward + c * left, 0.0])
        passed, self._last = time - self._last, time
        self._place = self._place + passed * speed[:2]
        self._yaw += passed * turn
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
            if self.support[i] and (self._touched[i] or self.trigger == "clock"):
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
