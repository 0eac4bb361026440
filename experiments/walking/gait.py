"""One optimised step of the five-link walker closes to an orbit, up to the exchange of legs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from hybridctl.robots import five_link

from hybridctl import HybridTrajectory, linearize, simulate
from hybridctl.base.checks import Array
from hybridctl.mechanics.system import ContactSystem
from hybridctl.mechanics.terms.sources import TermsChoice
from hybridctl.planning import Condition, Margins, OptimalTrajectory, Phase, Task, optimise
from hybridctl.planning.plan import Feedforwards, InputCurve
from hybridctl.planning.task import Guess
from hybridctl.sensitivity import Linearization, Symmetry
from hybridctl.sensitivity.floquet import FloquetMultipliers

TIGHT = 1e-12
"""Relative and absolute tolerance of the orbit."""
KNEES = ("left_knee", "right_knee")
BEND = (0.05, 1.5)
"""Bounds of the knees, rad: not straight, and no further than a shin can fold."""
MARGINS = Margins(clearance=0.03, friction=0.4, release=0.05)
STEP = (0.3, 1.2)
"""Bounds of the duration of a step, s."""
POINTS = 5
"""Points of collocation: with 4 the slow gait, whose errors grow by 77, closes only to 5e-8."""


_build_walker = lru_cache(maxsize=64)(five_link.system)


@dataclass(frozen=True, eq=False)
class Gait:
    """A step on the left leg that closes up to the exchange of the legs.

    Attributes:
        walker: The walker.
        friction: Friction coefficient of the ground.
        speed: Mean speed, m/s.
        step: Step from just after the touchdown of the left foot to just after that of the right.
        terms: Implementation of the dynamics, see `ContactDynamics`.
    """

    walker: ContactSystem
    friction: float
    speed: float
    step: OptimalTrajectory
    terms: TermsChoice = "auto"

    def walker_with(
        self, *, step: float = 0.0, torso: float = 1.0, tilt: float = 0.0
    ) -> ContactSystem:
        """Return the walker on other ground or with another torso.

        Args:
            step: Height of the ground, m.
            torso: Factor of the torso's inertia, see `five_link.robot`.
            tilt: Slope of the ground, see `five_link.robot`.
        """
        return _build_walker(self.friction, step=step, torso=torso, tilt=tilt, terms=self.terms)

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
        """Return the input of step k, from its touchdown on."""
        first, nu = self.step.feedforward[0], self.walker.robot.nu
        exchanged = self.symmetry.inputs(nu) if k % 2 else np.eye(nu)
        return replace(
            first,
            start=first.start + k * self.period,
            coefficients=first.coefficients @ exchanged.T,
        )

    @cached_property
    def middle(self) -> Array:
        """The state (nx,) halfway through the step, left foot at rest on the ground."""
        start, policy = (five_link.LEFT_STANCE, self.step.run(0.0)), Feedforwards((self.curve(0),))
        halfway = (0.0, 0.5 * self.period)
        return simulate(self.walker, *start, halfway, policy, rtol=TIGHT, atol=TIGHT).final_state

    @cached_property
    def orbit(self) -> HybridTrajectory:
        """One period from mid-step to mid-step, through the touchdown of the right foot."""
        span = (0.5 * self.period, 1.5 * self.period)
        policy = Feedforwards((self.curve(0), self.curve(1)))
        start = five_link.LEFT_STANCE, self.middle
        return simulate(self.walker, *start, span, policy, rtol=TIGHT, atol=TIGHT)

    @cached_property
    def map(self) -> Linearization:
        """The linearization of the orbit without feedback."""
        return linearize(self.walker, self.orbit, rtol=1e-10, atol=1e-12)

    @cached_property
    def multipliers(self) -> FloquetMultipliers:
        """The Floquet multipliers of the step without feedback."""
        return self.map.floquet_multipliers(symmetry=self.symmetry)


def make_task(
    walker: ContactSystem,
    speed: float,
    *,
    torque: float,
    margins: Margins,
    late: float = 0.0,
    bend: tuple[float, float] = BEND,
) -> Task:
    """Return the task of one step with the least integral of squared torques.

    Args:
        walker: The walker.
        speed: Mean speed, m/s.
        torque: Greatest torque, N m.
        margins: Margins of forces, landings and clearance.
        late: Time for which the step goes on inside its margins where the ground is lower, s.
        bend: Bounds of the knees, rad.
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


def make_straight_guess(noise: Array) -> Guess:
    """Return a straight line from one double stance to the next, both moved by noise (2, 14)."""
    first = _make_posture(-0.2, left=(-0.35, 0.2), right=(0.05, 0.25)) + noise[0]
    last = _make_posture(0.2, left=(0.05, 0.25), right=(-0.35, 0.2)) + noise[1]
    return lambda k, s: np.asarray((1.0 - s) * first + s * last)


def optimise_gait(
    speed: float,
    *,
    friction: float = 0.7,
    torque: float = 100.0,
    margins: Margins = MARGINS,
    late: float = 0.0,
    noise: Array | None = None,
    terms: TermsChoice = "auto",
) -> Gait:
    """Return the gait at a speed, found from a straight guess.

    Args:
        speed: Mean speed, m/s.
        friction: Friction coefficient of the ground.
        torque: Greatest torque, N m.
        margins: Margins of forces, landings and clearance.
        late: See `make_task`, s.
        noise: Noise of the guess (2, 14); None for none.
        terms: Implementation of the walker's dynamics.
    """
    walker = five_link.system(friction, terms=terms)
    planned = make_task(walker, speed, torque=torque, margins=margins, late=late)
    guess = make_straight_guess(np.zeros((2, 14)) if noise is None else noise)
    step = optimise(planned, guess)
    step.open_loop.require_run()
    return Gait(walker, friction, speed, step, terms)


def _make_posture(x: float, left: tuple[float, float], right: tuple[float, float]) -> Array:
    """Return a state with the left foot on the ground and the hip at x, at walking speed."""
    pitch = 0.05
    femur = pitch + left[0]
    height = 0.4 * np.cos(femur) + 0.4 * np.cos(femur + left[1])
    return np.array([x, height, pitch, *left, *right, 0.7, *np.zeros(6)])
