r"""Iterative LQR through events, whose sequence may change from one iteration to the next.

Inputs that are linear between the times of a grid are improved by sweeps. A backward pass
(`backward`) gives offsets and gains from the first-order map of each interval, through the
events inside it, and the value function, which jumps with the saltation matrix:
:math:`V^- = G^T V^+ G`, [Salt] (42). Forward, the system is simulated under them with whatever
events then come (`rollout.closed_loop` says how the reference is extended); of the steps 1, 1/2,
1/4, ... along the offsets the largest that lowers the cost as Armijo asks is taken. The method is
that of reference [13] of [Salt].

A motion that cannot be simulated (events that accumulate, no contact solution) has infinite cost
in the search along the step; so has one that grazes a guard, where there is no derivative.

Second derivatives of the motion are left out of the model on intervals without events, as Gauss
and Newton do; on those with events they are estimated from the exact first derivatives of
successive motions (`backward.with_curvature`), since there they decide how fast it converges:
superlinearly, once the sequence of events stays and the flow is linear or the final cost is met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_count, check_number, check_vector
from hybridctl.base.errors import GuardViolatedError, InputError, SimulationError
from hybridctl.control.ilqr.backward import (
    BackwardSweep,
    Expanded,
    Linearizer,
    augmented,
    expand,
    sweep,
    total_cost,
    with_curvature,
)
from hybridctl.control.ilqr.cost import Cost
from hybridctl.control.ilqr.rollout import Rollout, ShootingProblem, closed_loop, open_loop
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.linearization import linearize

_CONVERGED = "the gradient vanishes"
_ARMIJO = 1e-4
_STEPS = tuple(0.5**i for i in range(11))
_LEAST, _MOST, _FACTOR = 1e-8, 1e10, 10.0  # of the regularization


class Iteration(NamedTuple):
    """One sweep: the motion it started from, and what became of it.

    cost, slope, events: of the motion before the step; slope is the norm of the cost's gradient
    by u(t), sqrt(sum |dJ/du_k|^2 / w_k), events the guards that fired. step: the accepted alpha,
    0 if none was. expected, actual: reduction of the cost at that step (of the full step, and 0,
    if none was accepted). regularization: mu. refused: why trials failed to simulate.
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
    """The motion that `ilqr` found.

    times (N+1,) s; inputs (N+1, nu) at these times, linear between them; states at the times;
    gains: N matrices K (nu, ndx + nu) of u_{k+1} = u_{k+1}* + K_k (z_k* - z_k), z = (x, u). cost,
    slope: at the end (see `Iteration`).
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
        """Whether the gradient has vanished, to the tolerance."""
        return self.message == _CONVERGED

    @property
    def inputs(self) -> Array:
        """The inputs (N+1, nu) at the grid times."""
        return self.rollout.inputs

    @property
    def states(self) -> tuple[Array, ...]:
        """The states at the grid times."""
        return self.rollout.states

    @cached_property
    def trajectory(self) -> HybridTrajectory:
        """The motion as one trajectory; its input has corners inside its arcs."""
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
    """Inputs that minimise `cost` from state x0 in `mode`, starting at `inputs`.

    times (N+1,) s, increasing: the grid; inputs (N+1, nu): the first guess at these times. All
    modes have the same inputs. tolerance: it has converged where the slope (see
    `Iteration`) is below it, relative to 1 + |J|. rtol, atol: of the simulation. linearizer: gives
    the first-order map of a motion. curvature: whether second derivatives at events are estimated;
    without, it is plain iterative LQR. progress: called with each iteration.

    At simultaneous events the mean of the pieces of the piecewise-linear map is used.

    Raises `InputError` and its kin for bad arguments, and what `simulate` or the linearization
    raises for the first guess: that has to be a motion whose events are transversal.
    """
    plant, guess = _problem(system, mode, x0, times, inputs, (rtol, atol))
    tolerance = check_number("tolerance", tolerance, above=0.0)
    limit = check_count("max_iterations", max_iterations, at_least=0)
    mu = 0.0  # grows where no step lowers the cost, and falls where one does
    now = expand(plant, open_loop(plant, guess), cost, linearizer)
    done = list[Iteration]()
    while True:
        back, mu = _definite(now, mu)
        slope = now.slope()
        message = _verdict(now, slope, tolerance, mu, len(done) == limit)
        if message is not None:
            break
        found, iteration = _search(plant, now, back, mu, cost, linearizer)
        done.append(iteration)
        if progress is not None:
            progress(iteration)
        if found is None:
            mu = _raised(mu)
        else:
            mu = mu / _FACTOR if mu / _FACTOR >= _LEAST else 0.0
            now = with_curvature(found, now) if curvature else found
    return OptimalMotion(
        now.rollout, plant.times, back.gains, now.cost, slope, tuple(done), message
    )


def _search(
    plant: ShootingProblem,
    now: Expanded,
    back: BackwardSweep,
    mu: float,
    cost: Cost,
    linearizer: Linearizer,
) -> tuple[Expanded | None, Iteration]:
    """The motion of the largest step that exists, is transversal, and lowers the cost enough."""
    refused, found, step = list[str](), None, 0.0
    for trial in _STEPS:
        try:
            rollout = closed_loop(plant, now.rollout, trial * back.offsets, back.gains)
            if now.cost - total_cost(plant, rollout, cost) >= _ARMIJO * back.expected(trial):
                found, step = expand(plant, rollout, cost, linearizer), trial
                break
        except (SimulationError, GuardViolatedError) as error:
            refused.append(f"step {trial:.3g}: {error}")
    events = tuple(event.guards for event in now.rollout.events)
    expected, actual = back.expected(step or 1.0), 0.0 if found is None else now.cost - found.cost
    return found, Iteration(
        now.cost, now.slope(), events, step, expected, actual, mu, tuple(refused)
    )


def _definite(now: Expanded, mu: float) -> tuple[BackwardSweep, float]:
    """The backward pass with the least regularization, from mu on, that makes it definite.

    Where none does, one without offsets and gains.
    """
    while mu <= _MOST:
        found = sweep(now, mu)
        if found is not None:
            return found, mu
        mu = _raised(mu)
    nothing = [augmented(m) for m in now.maps]
    gains = tuple(np.zeros((h.shape[1], f.shape[1])) for f, h in nothing)
    return BackwardSweep(np.zeros_like(now.rollout.inputs), gains, 0.0, 0.0), mu


def _verdict(now: Expanded, slope: float, tolerance: float, mu: float, spent: bool) -> str | None:
    """The reason why the search ends here, or None if it goes on."""
    if slope <= tolerance * (1.0 + abs(now.cost)):
        return _CONVERGED
    if mu > _MOST:
        return "no step lowers the cost"
    return "the iterations are used up" if spent else None


def _raised(mu: float) -> float:
    return max(_LEAST, _FACTOR * mu)


def _problem(
    system: HybridSystem,
    mode: ModeKey,
    x0: ArrayLike,
    times: ArrayLike,
    inputs: ArrayLike,
    tolerances: tuple[float, float],
) -> tuple[ShootingProblem, Array]:
    """The problem, and the inputs (N+1, nu) to begin with, checked."""
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
