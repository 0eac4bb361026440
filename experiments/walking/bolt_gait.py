"""One optimised step of bolt in space closes up to the exchange of legs; its feedback."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from hybridctl.experiments.walking.closing import find_closing_state, measure_gap
from hybridctl.experiments.walking.gait import TIGHT, Gait
from hybridctl.robots import bolt

from hybridctl.base.checks import Array
from hybridctl.control.lqr.periodic import PeriodicLqr, periodic_lqr
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.system import ContactSystem
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.plan import Feedforwards
from hybridctl.planning.task import Condition, Guess, Margins, Phase, Task, squared_input
from hybridctl.sensitivity.linearization import linearize
from hybridctl.sensitivity.symmetry import Symmetry

MARGINS = Margins(force=2.0, friction=0.6, impulse=0.01, release=0.01, clearance=0.03)
"""Margins of the step: bolt weighs 12.3 N. The speed of landings has no bound. With one of 0.4 m/s
the light foot brakes at 200 m/s^2 until it touches: the saltation matrix has the norm 22000, and a
foot that is a few ms late turns back on the extended arc, under gains of 3000, and never touches.
Without the bound it lands at 1.7 m/s and the norm is 2500."""
_MOST_CORRECTIONS = 12
"""Most corrections of Newton's method. From a gap of 1e-3 eight are usual: a first one by a factor
of a hundred, and then four each."""
_CLOSED = 1e-9
"""Gap in m, rad and per s at which it ends: errors of the simulation grow to 1e-10."""
STEP = (0.12, 0.4)
"""Bounds of the duration of a step, s."""
LIMITS = {"KFE": (-2.2, -0.7), "HAA": (-0.4, 0.4), "HFE": (-0.4, 1.8)}
"""Bounds of knees, abduction and flexion of hips, rad: knees not straight, legs side by side."""
TILTS = {"root_yaw": (-0.2, 0.2), "root_pitch": (-0.15, 0.15), "root_roll": (-0.15, 0.15)}
"""Bounds of the base's angles, rad. Without them the cheapest step is upside down."""
_RATE_COST = 3e-2
"""Weight of squared velocities of the joints beside squared torques, N^2 m^2 s^2/rad^2. A choice:
without it the swinging knee snaps straight at the end of the step, at 90 rad/s, and coarse meshes
do not follow; with 0.1 the search takes 197 iterations instead of 142, and the foot lands at
3.1 m/s."""
_BENT, _SHANK = 0.7, -1.3
"""Angles of hips and knees of the guess, rad: a height of the base of 0.36 m."""
_SWING = 0.5
"""Angle by which the swinging knee of the guess is bent more in mid-step, rad."""
_DIFFERENCE = 1e-4
"""Half the distance of two configurations that give a velocity of the guess, of a step."""
_GUESSED_STEP = 0.3
"""Duration of the guessed step, s."""
_LEG = 0.33
"""Length of a bent leg, m, by which the guess turns the hips for the length of its step."""


@dataclass(frozen=True, eq=False)
class BoltGait(Gait):
    """A step of bolt on the left leg, of a robot with mirrored legs."""

    @cached_property
    def symmetry(self) -> Symmetry:
        """The exchange of the legs, and the way along the ground."""
        return bolt.exchange_legs(self.walker)

    @property
    def period(self) -> float:
        """The duration of a step, s."""
        return self.step.plan.end

    @property
    def closing(self) -> float:
        """The largest entry by which the orbit from mid-step to mid-step does not close."""
        return float(np.abs(measure_gap(self.walker, self.symmetry, self.orbit)).max())

    @cached_property
    def middle(self) -> Array:
        """The state (nx,) halfway through the step from which the simulated step closes.

        It is found by Newton's method from the plan, whose mesh is coarse: the swinging foot begins
        some 3e-8 m inside the ground there, where no simulation can begin. After
        `_MOST_CORRECTIONS` the last state is taken; `closing` is how far its orbit is from closing.

        Raises:
            SimulationError: A simulation from a state on the way ends before its period.
        """
        return find_closing_state(
            self.walker,
            bolt.LEFT_STANCE,
            self.symmetry,
            self.step.plan(0.5 * self.period),
            self._simulate_from,
            lambda once: self.symmetry.matrix @ linearize(self.walker, once).state_transition,
            tolerance=_CLOSED,
            corrections=_MOST_CORRECTIONS,
        )

    @cached_property
    def orbit(self) -> HybridTrajectory:
        """One period from mid-step to mid-step, through the touchdown of the right foot."""
        return self._simulate_from(self.middle)

    def _simulate_from(self, x: Array) -> HybridTrajectory:
        """Return the motion of one period from a state in mid-step, without feedback."""
        span, policy = (
            (0.5 * self.period, 1.5 * self.period),
            Feedforwards((self.curve(0), self.curve(1))),
        )
        return simulate(self.walker, bolt.LEFT_STANCE, x, span, policy, rtol=TIGHT, atol=TIGHT)


@dataclass(frozen=True)
class BoltWeights:
    """LQR weights; the distance walked costs nothing.

    Attributes:
        coordinates: Weight of coordinates, 1/rad^2 or 1/m^2.
        velocities: Weight of velocities, s^2/rad^2 or s^2/m^2.
        torques: Weight of torques, 1/(N m)^2.
        across: Weights of the place across the way, 1/m^2, and of the heading, 1/rad^2.
    """

    coordinates: float = 100.0
    velocities: float = 1.0
    torques: float = 10.0
    across: tuple[float, float] = field(default=(100.0, 100.0))

    def make_state_weights(self) -> Array:
        """Return the weights Q (24, 24) of the state."""
        q = np.full(12, self.coordinates)
        q[0], q[1], q[3] = 0.0, *self.across
        return np.diag([*q, *[self.velocities] * 12])


def make_bolt_task(walker: ContactSystem, speed: float) -> Task:
    """Return the task of one step with the least integral of squared torques and joint velocities.

    Args:
        walker: The mirrored robot on its feet.
        speed: Mean speed forwards, m/s.
    """
    phase = Phase(bolt.LEFT_STANCE, ("right closes",), STEP, intervals=10, points=5)
    limits = {f"{leg}_{joint}": LIMITS[joint] for leg in ("FL", "FR") for joint in LIMITS}
    return Task(
        walker,
        [phase],
        symmetry=bolt.exchange_legs(walker),
        conditions=[
            Condition("speed times duration", lambda a, b, t: b[0] - a[0] - speed * t, unit="m")
        ],
        margins=MARGINS,
        joint_limits={**limits, **TILTS},
        torque=bolt.TORQUE,
        degree=6,
        running_cost=lambda x, u: squared_input(x, u) + _RATE_COST * squared_input(x, x[18:]),
    )


def make_bolt_guess(walker: ContactSystem, speed: float) -> Guess:
    """Return a step that sways to the stance foot and back, while the other leg is bent and swings.

    Legs move evenly from one double stance to the next. Bodies of such steps move as an inverted
    pendulum: sideways with the speed +-d w tanh(w T / 2) at the ends, for a foot that is d to the
    side of the base.

    Args:
        walker: The robot on its feet.
        speed: Mean speed forwards, m/s.
    """
    time, way = _GUESSED_STEP, speed * _GUESSED_STEP
    turn = float(np.arcsin(0.5 * way / _LEG))
    stance = bolt.set_feet_down(walker, _make_angles(0.0))
    side = walker.robot.point_position(stance, "FL_FOOT")[1]
    pace = float(np.sqrt(9.81 / stance[2]))
    # Halfway the pendulum y(t) = d cosh(w (t - T / 2)) / cosh(w T / 2) is nearest to the foot, at d
    # from the base in double stance: it has swayed by d (1 - 1 / cosh(w T / 2)).
    sway = side * (1.0 - 1.0 / np.cosh(0.5 * pace * time))

    def place(s: float) -> Array:
        """Return the configuration (12,) at a fraction of the step."""
        q = walker.robot.posture(_make_angles((2.0 * s - 1.0) * turn, float(np.sin(np.pi * s))))
        q[:3] = (s - 0.5) * way, sway * np.sin(np.pi * s), stance[2]
        return np.asarray(q)

    def guess(k: int, s: float) -> Array:
        """Return the state (24,) at a fraction of the step, its velocity by differences."""
        ahead, behind = s + _DIFFERENCE, s - _DIFFERENCE
        rate = (place(ahead) - place(behind)) / (2.0 * _DIFFERENCE * time)
        return np.concatenate([place(s), rate])

    return guess


def _make_angles(left: float, bent: float = 0.0) -> dict[str, float]:
    """Return angles by joint, rad, of legs that are turned by opposite angles.

    Args:
        left: Angle by which the left leg is turned backwards; the right one forwards.
        bent: Share of `_SWING` by which the right leg is bent.
    """
    return {
        "FL_HFE": _BENT + left,
        "FL_KFE": _SHANK,
        "FR_HFE": _BENT - left + 0.5 * _SWING * bent,
        "FR_KFE": _SHANK - _SWING * bent,
    }


def optimise_bolt_gait(speed: float) -> BoltGait:
    """Return the gait at a speed, m/s, found from a guess.

    Raises:
        SimulationError: The search ended for another reason than that a gait was found. The
            simulated step is made later, see `BoltGait.middle`.
    """
    walker = bolt.system(mirrored=True)
    step = optimise(make_bolt_task(walker, speed), make_bolt_guess(walker, speed))
    return BoltGait(walker, walker.contacts_in_space("a gait")[0].friction, speed, step)


def design_bolt_feedback(gait: BoltGait, weights: BoltWeights) -> PeriodicLqr:
    """Return the hybrid LQR around the gait.

    Args:
        gait: The gait.
        weights: Weights of the cost.
    """
    inputs = weights.torques * np.eye(gait.walker.robot.nu)
    return periodic_lqr(gait.map, weights.make_state_weights(), inputs, symmetry=gait.symmetry)
