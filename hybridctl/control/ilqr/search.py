r"""Iterative LQR through events, whose sequence may change from one iteration to the next.

Inputs that are linear between the times of a grid are improved by sweeps. A backward pass
(`backward`) gives offsets and gains from the first-order map of each interval, through the events
inside it, and from the value function, which jumps with the saltation matrix,
:math:`V^- = G^T V^+ G`, [Salt] (42). Then the system is simulated under them, with whatever events
come (`rollout.simulate_closed_loop` extends the reference). Of the steps 1, 1/2, 1/4, ... along the
offsets, the largest that lowers the cost by Armijo's rule is taken. The method is that of reference
[13] of [Salt].

A motion that cannot be simulated (events that accumulate, no contact solution) has infinite cost
in the search along the step. So has a motion without a derivative, as one that grazes a guard.

Second derivatives of the motion are left out of the model on intervals without events
(Gauss-Newton). On those with events they are estimated from the exact first derivatives of
successive motions (`backward.estimate_curvature`), because they decide there how fast the search
converges: superlinearly, once the sequence of events stays and the flow is linear or the final cost
is met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_count, check_number, check_vector
from hybridctl.base.errors import (
    ConstraintViolatedError,
    EscapingError,
    GuardViolatedError,
    InputError,
    SimulationError,
)
from hybridctl.control.ilqr.backward import (
    BackwardSweep,
    ExpandedMotion,
    Linearizer,
    compute_cost,
    estimate_curvature,
    expand_motion,
    make_discrete_maps,
    sweep_backwards,
)
from hybridctl.control.ilqr.cost import Cost
from hybridctl.control.ilqr.rollout import (
    Rollout,
    ShootingProblem,
    simulate_closed_loop,
    simulate_open_loop,
)
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.linearization import linearize

_CONVERGED = "the gradient vanishes"
_REFUSALS = (SimulationError, GuardViolatedError, ConstraintViolatedError, EscapingError)
"""Errors of a trial whose motion cannot be simulated or linearized.

The last three are of the state in which an interval begins. It is where the one before has ended,
and may have drifted through a guard or off what its mode holds."""
_ARMIJO_SHARE = 1e-4
"""Share of the predicted decrease that a step must reach (Armijo's rule)."""
_STEP_LENGTHS = tuple(0.5**i for i in range(11))
"""Steps along the offsets that are tried, in this order."""
_LEAST_REGULARIZATION, _MOST_REGULARIZATION, _REGULARIZATION_FACTOR = 1e-8, 1e10, 10.0
"""Range of the regularization mu, in units of the second derivatives V_zz to which it is added, and
the factor by which an iteration changes it. Below the range it is zero. The values are choices."""


class Iteration(NamedTuple):
    """One sweep: the motion that it started from, and the step.

    Attributes:
        cost: Cost of the motion before the step.
        slope: Norm of its gradient by u(t), sqrt(sum |dJ/du_k|^2 / w_k).
        events: Guards that fired in it, event by event.
        step: Step that was accepted; 0 if none was.
        expected: Decrease of the cost that the model predicts for it; for a full step if none was
            accepted.
        actual: Decrease of the cost; 0 if no step was accepted.
        regularization: Regularization mu.
        refused: Error message of each step whose motion could not be simulated or linearized.
    """

    cost: float
    slope: float
    events: tuple[tuple[str, ...], ...]
    step: float
    expected: float
    actual: float
    regularization: float
    refused: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class OptimalMotion:
    """The motion that `ilqr` returns.

    Attributes:
        rollout: The motion.
        times: Times (N+1,) of the grid, s.
        gains: N gains K (nu, ndx + nu) of u_{k+1} = u_{k+1}* + K_k (z_k* - z_k), z = (x, u).
        cost: Cost at the end.
        slope: Norm of its gradient by u(t), see `Iteration`.
        iterations: All iterations.
        message: Reason why the search ended.
    """

    rollout: Rollout
    times: Array
    gains: tuple[Array, ...]
    cost: float
    slope: float
    iterations: tuple[Iteration, ...]
    message: str

    @property
    def converged(self) -> bool:
        """Whether the gradient vanishes, to the tolerance."""
        return self.message == _CONVERGED

    @property
    def inputs(self) -> Array:
        """Inputs (N+1, nu) at the times of the grid, linear between them."""
        return self.rollout.inputs

    @property
    def states(self) -> tuple[Array, ...]:
        """States (nx,) at the times of the grid."""
        return self.rollout.states

    @cached_property
    def trajectory(self) -> HybridTrajectory:
        """The motion as one trajectory. Its input has corners inside its arcs."""
        return self.rollout.trajectory()


def ilqr(
    system: HybridSystem,
    mode: ModeKey,
    x0: ArrayLike,
    times: ArrayLike,
    inputs: ArrayLike,
    cost: Cost,
    *,
    tolerance: float = 1e-6,
    max_iterations: int = 100,
    rtol: float = 1e-9,
    atol: float = 1e-9,
    linearizer: Linearizer = linearize,
    curvature: bool = True,
    progress: Callable[[Iteration], None] | None = None,
) -> OptimalMotion:
    """Return inputs that minimise a cost, and the motion under them.

    At simultaneous events the mean of the pieces of the piecewise linear map is used.

    Args:
        system: The system. All modes have the same inputs.
        mode: Mode at the start.
        x0: State (nx,) at the start.
        times: Times (N+1,) of the grid, s, increasing.
        inputs: First guess of the inputs (N+1, nu) at these times. It must lead to a motion whose
            events are transversal.
        cost: The cost.
        tolerance: Slope (see `Iteration`), relative to 1 + |J|, at which the search has converged.
        max_iterations: Greatest number of iterations.
        rtol: Relative tolerance of the simulation.
        atol: Absolute tolerance of the simulation.
        linearizer: Gives the linearization of a trajectory.
        curvature: Whether second derivatives at events are estimated. Without, it is plain
            iterative LQR.
        progress: Called with each iteration.

    Raises:
        InputError: An argument does not fit.
        SimulationError: The first guess cannot be simulated or linearized. Where it drifts off what
            its mode holds, that is a `ConstraintViolatedError` or `GuardViolatedError` instead.
    """
    plant, guess = _check_problem(system, mode, x0, times, inputs, (rtol, atol))
    tolerance = check_number("tolerance", tolerance, above=0.0)
    limit = check_count("max_iterations", max_iterations, at_least=0)
    mu = 0.0  # grows where no step lowers the cost, and falls where one does
    motion = expand_motion(plant, simulate_open_loop(plant, guess), cost, linearizer)
    iterations = list[Iteration]()
    while True:
        back, mu = _sweep_definite(motion, mu)
        slope = motion.slope()
        message = _find_reason_to_end(motion, slope, tolerance, mu, len(iterations) == limit)
        if message is not None:
            break
        better, iteration = _search_step(plant, motion, back, mu, cost, linearizer)
        iterations.append(iteration)
        if progress is not None:
            progress(iteration)
        if better is None:
            mu = _increase_regularization(mu)
        else:
            smaller = mu / _REGULARIZATION_FACTOR
            mu = smaller if smaller >= _LEAST_REGULARIZATION else 0.0
            motion = estimate_curvature(better, motion) if curvature else better
    return OptimalMotion(
        motion.rollout, plant.times, back.gains, motion.cost, slope, tuple(iterations), message
    )


def _search_step(
    plant: ShootingProblem,
    motion: ExpandedMotion,
    back: BackwardSweep,
    mu: float,
    cost: Cost,
    linearizer: Linearizer,
) -> tuple[ExpandedMotion | None, Iteration]:
    """Return the motion of the largest step that lowers the cost enough, or None for no step.

    Args:
        plant: The problem.
        motion: The present motion.
        back: Offsets and gains.
        mu: Regularization with which they were found.
        cost: The cost.
        linearizer: Gives the linearization of a trajectory.
    """
    refused, better, step = list[str](), None, 0.0
    for trial in _STEP_LENGTHS:
        try:
            offsets = trial * back.offsets
            rollout = simulate_closed_loop(plant, motion.rollout, offsets, back.gains)
            decrease = motion.cost - compute_cost(plant, rollout, cost)
            if decrease >= _ARMIJO_SHARE * back.predict_decrease(trial):
                better, step = expand_motion(plant, rollout, cost, linearizer), trial
                break
        except _REFUSALS as error:
            refused.append(f"step {trial:.3g}: {error}")
    events = tuple(event.guards for event in motion.rollout.events)
    expected = back.predict_decrease(step or 1.0)
    actual = 0.0 if better is None else motion.cost - better.cost
    return better, Iteration(
        motion.cost, motion.slope(), events, step, expected, actual, mu, tuple(refused)
    )


def _sweep_definite(motion: ExpandedMotion, mu: float) -> tuple[BackwardSweep, float]:
    """Return the backward pass with the least regularization, from mu on, that is definite.

    Where none is, a pass without offsets and gains is returned.
    """
    while mu <= _MOST_REGULARIZATION:
        back = sweep_backwards(motion, mu)
        if back is not None:
            return back, mu
        mu = _increase_regularization(mu)
    matrices = [make_discrete_maps(m) for m in motion.maps]
    gains = tuple(np.zeros((h.shape[1], f.shape[1])) for f, h in matrices)
    return BackwardSweep(np.zeros_like(motion.rollout.inputs), gains, 0.0, 0.0), mu


def _find_reason_to_end(
    motion: ExpandedMotion, slope: float, tolerance: float, mu: float, is_last: bool
) -> str | None:
    """Return the reason why the search ends here, or None if it goes on.

    Args:
        motion: The present motion.
        slope: Its slope.
        tolerance: Slope, relative to 1 + |J|, at which the search has converged.
        mu: Regularization.
        is_last: Whether the iterations are used up.
    """
    if slope <= tolerance * (1.0 + abs(motion.cost)):
        return _CONVERGED
    if mu > _MOST_REGULARIZATION:
        return "no step lowers the cost"
    return "the iterations are used up" if is_last else None


def _increase_regularization(mu: float) -> float:
    return max(_LEAST_REGULARIZATION, _REGULARIZATION_FACTOR * mu)


def _check_problem(
    system: HybridSystem,
    mode: ModeKey,
    x0: ArrayLike,
    times: ArrayLike,
    inputs: ArrayLike,
    tolerances: tuple[float, float],
) -> tuple[ShootingProblem, Array]:
    """Return the problem and the first inputs (N+1, nu), of arguments of `ilqr`.

    Raises:
        InputError: An argument does not fit.
    """
    grid = check_array("times", times, (None,))
    if len(grid) < 2 or not (np.diff(grid) > 0.0).all():
        raise InputError(f"times must increase and have two entries at least, got {grid}")
    first = system.mode(mode)
    start = check_vector("x0", x0, first.space.nx)
    first.space.check("x0", start)
    if first.nu == 0:
        raise InputError(f"mode {mode!r} has no input, so that there is nothing to choose")
    rtol, atol = (
        check_number(name, value, above=0.0)
        for name, value in zip(("rtol", "atol"), tolerances, strict=True)
    )
    guess = check_array("inputs", inputs, (len(grid), first.nu))
    return ShootingProblem(system, mode, start, grid, rtol, atol), guess
