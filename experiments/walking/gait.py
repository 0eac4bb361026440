"""A gait of the five-link walker: one step by optimisation, as an orbit begun in mid-step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from hybridctl.robots import five_link

from hybridctl.base.checks import Array
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.system import ContactSystem
from hybridctl.mechanics.terms.sources import TermsChoice
from hybridctl.planning.optimisation import OptimalTrajectory, optimise
from hybridctl.planning.plan import Feedforwards, InputCurve
from hybridctl.planning.task import Condition, Guess, Margins, Phase, Task
from hybridctl.sensitivity.floquet import FloquetMultipliers
from hybridctl.sensitivity.linearization import Linearization, linearize
from hybridctl.sensitivity.symmetry import Symmetry

TIGHT = 1e-12
KNEES = ("left_knee", "right_knee")
BEND = (0.05, 1.5)  # of knees, rad: not through, and no further than a shin can fold
MARGINS = Margins(clearance=0.03, friction=0.4, release=0.05)
STEP = (0.3, 1.2)  # how long a step may take, s
POINTS = 5  # of collocation: with 4 the slow gait, whose errors grow by 77, closes to 5e-8 only


_walker = lru_cache(maxsize=64)(five_link.system)


@dataclass(frozen=True, eq=False)
class Gait:
    """A step of the left leg that closes up to the exchange of the legs.

    friction: of the ground. speed: m/s. step: from just after the touchdown of the left foot to
    just after that of the right one. terms: see `ContactDynamics`.
    """

    walker: ContactSystem
    friction: float
    speed: float
    step: OptimalTrajectory
    terms: TermsChoice = "auto"

    def walker_with(
        self, *, step: float = 0.0, torso: float = 1.0, tilt: float = 0.0
    ) -> ContactSystem:
        """The walker on ground that is higher by a step in m, or leans, or with another torso.

        torso, tilt: see `five_link.robot`.
        """
        return _walker(self.friction, step=step, torso=torso, tilt=tilt, terms=self.terms)

    @cached_property
    def symmetry(self) -> Symmetry:
        """The exchange of the legs, and the way along the ground."""
        return five_link.exchange_legs(self.walker)

    @property
    def period(self) -> float:
        """The duration of a step, s."""
        return self.step.run.end

    @property
    def closing(self) -> float:
        """The largest entry by which the step does not close."""
        run = self.step.run
        gap = self.symmetry.gap(self.walker.space, run(0.0), run.final_state)
        return float(np.abs(gap).max())

    def curve(self, k: int) -> InputCurve:
        """The input of step k, from its touchdown on."""
        first = self.step.feedforward[0]
        exchanged = self.symmetry.inputs(self.walker.robot.nu) if k % 2 else np.eye(4)
        return replace(
            first,
            start=first.start + k * self.period,
            coefficients=first.coefficients @ exchanged.T,
        )

    @cached_property
    def middle(self) -> Array:
        """The state (14,) halfway through the step, left foot at rest on the ground."""
        halfway = (0.0, 0.5 * self.period)
        run = simulate(
            self.walker,
            five_link.LEFT_STANCE,
            self.step.run(0.0),
            halfway,
            Feedforwards((self.curve(0),)),
            rtol=TIGHT,
            atol=TIGHT,
        )
        return run.final_state

    @cached_property
    def orbit(self) -> HybridTrajectory:
        """One period from mid-step to mid-step, through the touchdown of the right foot."""
        span = (0.5 * self.period, 1.5 * self.period)
        policy = Feedforwards((self.curve(0), self.curve(1)))
        start = five_link.LEFT_STANCE, self.middle
        return simulate(self.walker, *start, span, policy, rtol=TIGHT, atol=TIGHT)

    @cached_property
    def map(self) -> Linearization:
        """The first-order map of the step without feedback."""
        return linearize(self.walker, self.orbit, rtol=1e-10, atol=1e-12)

    @cached_property
    def multipliers(self) -> FloquetMultipliers:
        """The multipliers of that map."""
        return self.map.floquet_multipliers(symmetry=self.symmetry)


def task(
    walker: ContactSystem,
    speed: float,
    *,
    torque: float,
    margins: Margins,
    late: float = 0.0,
    bend: tuple[float, float] = BEND,
) -> Task:
    """One step at a mean speed in m/s, of least integral of squared torques.

    late: for how long it goes on inside its margins where the ground is not met, s. bend: of knees,
    rad.
    """
    phase = Phase(five_link.LEFT_STANCE, ("right closes",), STEP, points=POINTS)
    return Task(
        walker,
        [phase],
        symmetry=five_link.exchange_legs(walker),
        conditions=[
            Condition("speed times duration", lambda a, b, t: b[0] - a[0] - speed * t, unit="m")
        ],
        margins=margins,
        joint_limits=dict.fromkeys(KNEES, bend),
        torque=torque,
        spread=late,
    )


def straight_guess(noise: Array) -> Guess:
    """A straight way from one double stance to the next, both moved by noise (2, 14)."""
    first = _posture(-0.2, left=(-0.35, 0.2), right=(0.05, 0.25)) + noise[0]
    last = _posture(0.2, left=(0.05, 0.25), right=(-0.35, 0.2)) + noise[1]
    return lambda k, s: np.asarray((1.0 - s) * first + s * last)


def find(
    speed: float,
    *,
    friction: float = 0.7,
    torque: float = 100.0,
    margins: Margins = MARGINS,
    late: float = 0.0,
    noise: Array | None = None,
    terms: TermsChoice = "auto",
) -> Gait:
    """The gait at a speed in m/s; see `optimise` for what it raises.

    friction: of the ground. torque: the greatest, N m. late: see `task`. noise (2, 14): of the
    guess. terms: of the walker.
    """
    walker = five_link.system(friction, terms=terms)
    planned = task(walker, speed, torque=torque, margins=margins, late=late)
    begin = straight_guess(np.zeros((2, 14)) if noise is None else noise)
    step = optimise(planned, begin)
    step.open_loop.require_run()
    return Gait(walker, friction, speed, step, terms)


def _posture(x: float, left: tuple[float, float], right: tuple[float, float]) -> Array:
    """A state with the left foot on the ground, the hip at x, moving at walking speed."""
    pitch = 0.05
    femur = pitch + left[0]
    height = 0.4 * np.cos(femur) + 0.4 * np.cos(femur + left[1])
    return np.array([x, height, pitch, *left, *right, 0.7, *np.zeros(6)])
