"""One optimised step of bolt in space closes up to the exchange of legs; its feedback."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from hybridctl.experiments.walking.gait import Gait
from hybridctl.robots import bolt

from hybridctl.base.checks import Array
from hybridctl.control.lqr.periodic import PeriodicLqr, periodic_lqr
from hybridctl.mechanics.system import ContactSystem
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.task import Condition, Guess, Margins, Phase, Task, squared_input
from hybridctl.sensitivity.symmetry import Symmetry

MARGINS = Margins(
    force=2.0, friction=0.6, impulse=0.01, release=0.01, clearance=0.03, landing_speed=0.4
)
"""Margins of the step: bolt weighs 12.3 N."""
STEP = (0.12, 0.4)
"""Bounds of the duration of a step, s."""
LIMITS = {"KFE": (-2.2, -0.6), "HAA": (-0.4, 0.4), "HFE": (-0.4, 1.8)}
"""Bounds of knees, abduction and flexion of hips, rad: knees not straight, legs side by side."""
TILTS = {"root_yaw": (-0.2, 0.2), "root_pitch": (-0.3, 0.3), "root_roll": (-0.3, 0.3)}
"""Bounds of the base's angles, rad. Without them the cheapest step is upside down."""
FASTEST = 15.0
"""Bound of the velocities of the joints, rad/s. Without it the swinging knee snaps straight at the
end of the step, at 90 rad/s, and coarse meshes do not follow."""
_RATE_COST = 2e-3
"""Weight of squared velocities of the joints beside squared torques, N^2 m^2 s^2/rad^2. A choice:
both have equal shares of the cost at some 8 rad/s."""
_BENT, _SHANK = 0.7, -1.3
"""Angles of hips and knees of the guess, rad: a height of the base of 0.36 m."""
_GUESSED_STEP = 0.25
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
    """Return the task of one step with the least integral of squared torques.

    Args:
        walker: The mirrored robot on its feet.
        speed: Mean speed forwards, m/s.
    """
    phase = Phase(bolt.LEFT_STANCE, ("right closes",), STEP, intervals=10, points=4)
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
        rate_limits=dict.fromkeys(bolt.JOINTS, (-FASTEST, FASTEST)),
        torque=bolt.TORQUE,
        running_cost=lambda x, u: squared_input(x, u) + _RATE_COST * squared_input(x, x[18:]),
    )


def make_bolt_guess(walker: ContactSystem, speed: float) -> Guess:
    """Return a straight line from one double stance to the next.

    Args:
        walker: The robot on its feet.
        speed: Mean speed forwards, m/s.
    """
    way = speed * _GUESSED_STEP
    turn = float(np.arcsin(0.25 * way / _LEG))

    def stand(x: float, left: float) -> Array:
        """Return the state (24,) with the base at x, its left leg turned by an angle."""
        angles = {"FL_HFE": _BENT + left, "FL_KFE": _SHANK, "FR_HFE": _BENT - left}
        q = bolt.set_feet_down(walker, angles | {"FR_KFE": _SHANK})
        q[0] = x
        return np.concatenate([q, [speed], np.zeros(11)])

    first, last = stand(-0.5 * way, -turn), stand(0.5 * way, turn)
    return lambda k, s: np.asarray((1.0 - s) * first + s * last)


def optimise_bolt_gait(speed: float) -> BoltGait:
    """Return the gait at a speed, m/s, found from a straight guess.

    Raises:
        SimulationError: No simulation follows the plan.
    """
    walker = bolt.system(mirrored=True)
    # The mesh is refined once, from the plan: with 10 intervals the swinging foot begins 2e-8 m
    # inside the ground, with 20 from the start IPOPT takes longer.
    step = optimise(
        make_bolt_task(walker, speed), make_bolt_guess(walker, speed), max_iterations=500,
        refinements=1,
    )  # fmt: skip
    step.closing.require_run()
    return BoltGait(walker, walker.contacts_in_space("a gait")[0].friction, speed, step)


def design_bolt_feedback(gait: BoltGait, weights: BoltWeights) -> PeriodicLqr:
    """Return the hybrid LQR around the gait.

    Args:
        gait: The gait.
        weights: Weights of the cost.
    """
    inputs = weights.torques * np.eye(gait.walker.robot.nu)
    return periodic_lqr(gait.map, weights.make_state_weights(), inputs, symmetry=gait.symmetry)
