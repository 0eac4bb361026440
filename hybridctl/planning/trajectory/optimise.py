"""The way from a task to a plan, and to a run of `simulate` that follows it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from hybridctl.base.checks import Array, check_callable, check_count, check_instance, check_number
from hybridctl.base.errors import RedundantConditionWarning
from hybridctl.base.progress import report_share
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.planning.trajectory.ends import (
    check_end,
    check_expressions,
    check_guess,
    check_start,
)
from hybridctl.planning.trajectory.mesh import begun, divided
from hybridctl.planning.trajectory.plan import Closing as Closing
from hybridctl.planning.trajectory.plan import Feedforwards as Feedforwards
from hybridctl.planning.trajectory.plan import InputCurve as InputCurve
from hybridctl.planning.trajectory.plan import MotionPlan, planned
from hybridctl.planning.trajectory.redundant import implied_guards, implied_lifts, independent
from hybridctl.planning.trajectory.solve import Optimum, Progress, Tell, solve
from hybridctl.planning.trajectory.task import Task
from hybridctl.planning.trajectory.transcription import Guess, Transcription, transcribe

_MISSED = 0.1  # of the tolerance, by an interval


@dataclass(frozen=True, eq=False)
class OptimalTrajectory:
    """An optimum, and how well simulations follow it.

    plan: as the programme has it, polynomials through points of collocation and planned events; its
    system takes the planned outcome where several obey the contact law. feedforward: its inputs,
    one curve for each phase, which go on beyond it. planned (k, nx): states before each event, and
    at the end. open_loop: the simulation under these inputs; tracked: where that does not close,
    the one under feedback that follows the plan. redundant: names of conditions that were left out,
    as others imply them. margin: of the orders of touch, see `Task.widen`. cost, iterations,
    seconds: of the search.
    """

    plan: HybridTrajectory
    feedforward: tuple[InputCurve, ...]
    planned: Array
    open_loop: Closing
    tracked: Closing | None
    redundant: tuple[str, ...]
    margin: float
    cost: float
    iterations: int
    seconds: float

    @property
    def closing(self) -> Closing:
        """The open loop where it closes, otherwise what tracks the plan."""
        return self.tracked or self.open_loop

    @property
    def run(self) -> HybridTrajectory:
        """The simulation that follows the plan, to just after the last event or to its end.

        Raises `SimulationError` where none does, with the reason; the `plan` is there still.
        """
        return self.closing.required()

    @property
    def mismatch(self) -> float:
        """The largest entry by which states of that simulation differ from planned ones."""
        return self.closing.mismatch


def optimise(
    task: Task,
    guess: Guess,
    *,
    max_iterations: int = 300,
    refinements: int = 0,
    tolerance: float = 1e-4,
    event_window: float = 1e-6,
    rtol: float = 1e-12,
    atol: float = 1e-12,
    progress: Callable[[Progress], None] | bool | None = None,
) -> OptimalTrajectory:
    """Return the trajectory of least cost near a guess, and its simulation.

    A cost of the state transition is added where the task has been solved without it. The plan
    comes back whether or not its open-loop simulation closes: that of an unstable motion need not,
    and feedback closes it (`OptimalTrajectory.tracked`). Conditions that others imply are left out,
    with a `RedundantConditionWarning` that names them.

    A search that fails is repeated without inequalities that equations imply, from its last
    iterate, from a motion that meets all constraints, and with other durations.

    Args:
        task: What the trajectory is to do.
        guess: A state (nx,) for (phase, fraction of the phase that is over).
        max_iterations: Most iterations of IPOPT in each search.
        refinements: Most repetitions in which phases get twice as many intervals: those whose
            intervals miss their ends by a tenth of the tolerance, or limits between the points of
            collocation. Each search goes on from the plan before it.
        tolerance: Largest difference of simulated and planned states, relative to 1 + |x|.
        event_window: Guards that a task wants to fire together do so within this time of each
            other in the simulation, s.
        rtol: Relative tolerance of the simulation.
        atol: Absolute tolerance of the simulation.
        progress: True prints the share of `max_iterations` that is done on standard error; a
            function is called after each iteration, with a `Progress`.

    Raises:
        InputError: A guess, a cost or a condition has a wrong size, or the start is outside the
            limits of joints.
        GuardViolatedError: The start, or an end that conditions determine, has an open contact
            below its ground.
        ConstraintViolatedError: The start is off what the mode of the first phase holds.
        InfeasibleReferenceError: There is no such trajectory near the guess. The message has the
            constraints that cannot be met, where, and by how much, and what was tried.
        SimulationError: The searches end for another reason. The message has what was tried.
    """
    check_instance("task", task, Task)
    check_callable("guess", guess)
    check_number("tolerance", tolerance, above=0.0)
    check_count("max_iterations", max_iterations)
    check_count("refinements", refinements, at_least=0)
    report = report_share(progress, "optimise")  # type: ignore[arg-type]
    tell: Tell | None = report  # type: ignore[assignment]
    if progress is True and report is not None:
        tell = lambda done: report(done.iteration / max_iterations)  # noqa: E731
    check_expressions(task)
    check_start(task)
    guess = check_guess(task, guess)
    kept, redundant = independent(task, guess)
    if redundant:
        warnings.warn(
            f"conditions {redundant} follow from the others, from the start and from what the last "
            "mode holds: they are left out",
            RedundantConditionWarning,
            stacklevel=2,
        )
    implied = implied_guards(kept, guess)
    without = implied_lifts(kept, guess) | check_end(kept, guess)
    optima = list[Optimum]()

    def searched(programme: Transcription, begin: Array, *, near: bool = False) -> MotionPlan:
        optima.append(solve(programme, begin, max_iterations, tell, near=near, without=without))
        return planned(programme, optima[-1].variables)

    programme = transcribe(replace(kept, transition=None), implied)
    found = searched(programme, programme.start(guess))
    for _ in range(refinements):
        finer = divided(programme, found, _MISSED * tolerance)
        if finer is None:
            break
        programme = transcribe(finer, implied)
        found = searched(programme, begun(programme, found), near=True)
    if kept.transition is not None:
        programme = transcribe(replace(programme.task, transition=kept.transition), implied)
        found = searched(programme, programme.with_deviations(optima[-1].variables))
    settings = {"event_window": event_window, "rtol": rtol, "atol": atol}
    open_loop = found.closing(found.open_loop, tolerance, settings)
    tracked = None
    if not open_loop.closes:
        tracked = found.closing(found.tracking, tolerance, settings)
    return OptimalTrajectory(
        found.motion,
        found.curves,
        found.planned,
        open_loop,
        tracked,
        redundant,
        float(optima[-1].variables[-1]),
        optima[-1].cost,
        sum(optimum.iterations for optimum in optima),
        sum(optimum.seconds for optimum in optima),
    )
