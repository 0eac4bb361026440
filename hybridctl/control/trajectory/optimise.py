"""The way from a task to a run of `simulate`: the optimum, its inputs, and its simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial.chebyshev import chebder, chebval

from hybridctl.checks import Array, count, function, instance, number
from hybridctl.control.trajectory.solve import Optimum, solve
from hybridctl.control.trajectory.task import Task
from hybridctl.control.trajectory.transcription import Guess, Programme, transcribe
from hybridctl.errors import SimulationError
from hybridctl.hybrid.laws import DifferentiableLaw, InputLaw
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

_LATE = 0.05  # of the duration: how long an event is waited for past its planned time


@dataclass(frozen=True, eq=False)
class InputCurve:
    """A polynomial in time on [start, start + length], and beyond: u (nu,).

    coefficients (p + 1, nu): in Chebyshev's basis on that interval.
    """

    start: float
    length: float
    coefficients: Array

    def __call__(self, t: float) -> Array:
        """u (nu,) at time t."""
        return np.asarray(chebval(self._place(t), self.coefficients))

    def rate(self, t: float) -> Array:
        """The derivative (nu,) at time t, 1/s."""
        return np.asarray(2.0 / self.length * chebval(self._place(t), self._slopes))

    def _place(self, t: float) -> float:
        return 2.0 * (t - self.start) / self.length - 1.0

    @cached_property
    def _slopes(self) -> Array:
        return np.asarray(chebder(self.coefficients))


@dataclass(frozen=True, eq=False)
class Feedforwards:
    """A policy without feedback: the curve of as many events of guards as there have been."""

    curves: tuple[InputCurve, ...]

    def law(self, history: History) -> InputLaw:
        """The curve as a law; the last goes on."""
        done = sum(bool(event.guards) for event in history.events)
        curve = self.curves[min(done, len(self.curves) - 1)]
        none = np.zeros((curve.coefficients.shape[1], len(history.state)))
        return DifferentiableLaw(
            lambda t, x: curve(t), lambda t, x: none, lambda t, x: curve.rate(t)
        )


@dataclass(frozen=True, eq=False)
class OptimalTrajectory:
    """A simulated optimum.

    run: from the start to just after the last event, or to the end of the last phase. feedforward:
    its inputs, one curve for each phase, which go on beyond it. planned (k, nx): states before each
    event, and at the end, as the programme has them. mismatch: the largest entry by which
    the simulated ones differ from them. margin: of the orders of touch, see `Task.widen`. cost,
    iterations, seconds: of the search.
    """

    run: HybridTrajectory
    feedforward: tuple[InputCurve, ...]
    planned: Array
    mismatch: float
    margin: float
    cost: float
    iterations: int
    seconds: float


def optimise(
    task: Task,
    guess: Guess,
    *,
    max_iterations: int = 300,
    tolerance: float = 1e-4,
    event_window: float = 1e-6,
    rtol: float = 1e-12,
    atol: float = 1e-12,
) -> OptimalTrajectory:
    """The trajectory of least cost near a guess, and its simulation.

    guess: a state (nx,) for (phase, fraction of it). max_iterations: of IPOPT. tolerance: by how
    much simulated states may differ from planned ones, relative to 1 + |x|; more intervals and
    points bring them closer. event_window: guards that a task wants to fire together do so within
    this time of each other in the simulation, s. rtol, atol: of the simulation.

    Raises `InfeasibleReferenceError` with the constraints that cannot be met, where, and by how
    much, where there is no such trajectory near the guess; `SimulationError` where the search ends
    for another reason, or the simulation does not go through the events of the task.
    """
    instance("task", task, Task)
    function("guess", guess)
    number("tolerance", tolerance, above=0.0)
    programme = transcribe(task)
    optimum = solve(programme, guess, count("max_iterations", max_iterations))
    options = {"event_window": event_window, "rtol": rtol, "atol": atol}
    return _simulated(programme, optimum, tolerance, options)


def _simulated(
    programme: Programme, optimum: Optimum, tolerance: float, options: dict[str, float]
) -> OptimalTrajectory:
    task = programme.task
    knots, curves = _unpacked(programme, optimum.variables)
    planned = np.array([states[-1] for states in knots])
    run = _run(task, knots[0][0], curves, options)
    passed = [e.guards for e in run.events]
    wanted = [set(phase.ends) for phase in task.phases if phase.ends]
    if [set(guards) for guards in passed] != wanted:
        raise SimulationError(
            f"the simulation of the optimum does not follow the task: its events are {passed}, not "
            f"{[tuple(sorted(ends)) for ends in wanted]}; wider margins or more intervals help"
        )
    reached = np.array([arc(arc.end) for arc in run.arcs[: len(planned)]])
    off = float((np.abs(reached - planned) / (1.0 + np.abs(planned))).max())
    if not off <= tolerance:
        raise SimulationError(
            f"simulated states differ from planned ones by {off:.3g}, more than tolerance = "
            f"{tolerance:.3g}: more intervals or points of collocation are needed"
        )
    return OptimalTrajectory(
        run,
        curves,
        planned,
        off,
        float(optimum.variables[-1]),
        optimum.cost,
        optimum.iterations,
        optimum.seconds,
    )


def _unpacked(programme: Programme, values: Array) -> tuple[list[Array], tuple[InputCurve, ...]]:
    """States at the ends of intervals (N + 1, nx) of each phase, and its inputs."""
    knots, curves, at, time = [], [], 0, 0.0
    for v in programme.variables:
        parts = []
        for part in (v.knots, v.points, v.inputs, v.duration):
            parts.append(values[at : at + part.numel()].reshape(part.shape[1], part.shape[0]))
            at += part.numel()
        length = float(parts[3][0, 0])
        knots.append(parts[0])
        curves.append(InputCurve(time, length, parts[2]))
        time += length
    return knots, tuple(curves)


def _run(
    task: Task, start: Array, curves: Sequence[InputCurve], options: dict[str, float]
) -> HybridTrajectory:
    """The run under the inputs, until the last event or the end."""
    end = curves[-1].start + curves[-1].length
    events = sum(bool(phase.ends) for phase in task.phases)
    late = _LATE * end if task.phases[-1].ends else 0.0

    def terminal(event: Event) -> bool:
        return late > 0.0 and event.index + 1 == events

    return simulate(
        task.system,
        task.phases[0].mode,
        start,
        (0.0, end + late),
        Feedforwards(tuple(curves)),
        terminal=terminal,
        **options,  # type: ignore[arg-type]
    )
