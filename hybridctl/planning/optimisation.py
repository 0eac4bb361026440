r"""Trajectory optimisation: from a task to a plan, and to a simulation that follows it.

`optimise` checks the task and the guess (`task_checks`), transcribes the task (`transcription`),
searches for an optimum (`ipopt_search`), refines the mesh (`mesh`), and simulates the plan
(`plan`).

`optimise_over_spread` repeats that until the plan is feasible over the spread of event times which
its own tracking leaves. How far arcs have to go on past event k depends on the optimum. With
:math:`D t_k` the derivative of the event time under the feedback that tracks it, and :math:`P_k`
the covariance propagated to the event, the spread of the task has to be

.. math:: s_k \ge n\, \sqrt{D t_k\, P_k\, D t_k^\top} .
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_callable,
    check_count,
    check_instance,
    check_number,
    format_count,
)
from hybridctl.base.errors import InfeasibleReferenceError, InputError, RedundantConditionWarning
from hybridctl.base.progress import report_share
from hybridctl.control.extension import Extension, extend_by_rule
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.planning.ipopt_search import Optimum, Progress, ReportProgress, find_optimum
from hybridctl.planning.mesh import make_guess, refine_mesh, start_from_plan
from hybridctl.planning.plan import Closing, InputCurve, MotionPlan, build_plan
from hybridctl.planning.task import Guess, Task
from hybridctl.planning.task_checks import (
    add_guess_check,
    check_end,
    check_expressions,
    check_start,
    drop_implied_conditions,
    find_implied_guards,
    find_implied_lifts,
)
from hybridctl.planning.transcription import Transcription, transcribe
from hybridctl.sensitivity.linearization import Linearization, linearize

_INTERVAL_SHARE = 0.1
"""Share of the tolerance that the dynamics error of one interval may have. A choice: a plan has
some ten intervals."""
_SPREAD_ALLOWANCE = 1.1
"""Spread that is asked for, relative to the expected one: an optimum that changes a little need not
be found again."""


@dataclass(frozen=True, eq=False)
class OptimalTrajectory:
    """An optimum, and how well simulations follow it.

    Attributes:
        plan: The optimum as a trajectory: polynomials of collocation and planned events. Its system
            takes the planned outcome where several obey the contact law.
        feedforward: Its inputs, one curve for each phase, which go on beyond the phase.
        planned: States (k, nx) before each event, and at the end.
        open_loop: Simulation under these inputs.
        tracked: Simulation under feedback that follows the plan. None if the open loop closes.
        redundant: Names of conditions that were left out, as others imply them.
        margin: Common margin m of the orders of events, see `Task.widen`.
        cost: Cost of the optimum.
        iterations: Iterations of IPOPT in all searches.
        seconds: Time of all searches, s.
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

    def __repr__(self) -> str:
        how = "closes" if self.closing.closes else "does not close"
        under = "open loop" if self.tracked is None else "under feedback"
        return (
            f"OptimalTrajectory({self.plan.start:.6g} to {self.plan.end:.6g} s, "
            f"{format_count(len(self.plan.arcs), 'phase')}, cost {self.cost:.4g}, "
            f"{how} {under}: mismatch {self.mismatch:.2g})"
        )

    @property
    def closing(self) -> Closing:
        """The open-loop simulation if it closes, otherwise the tracked one.

        There is a tracked one only if the open-loop one does not close.
        """
        return self.tracked or self.open_loop

    @property
    def run(self) -> HybridTrajectory:
        """The simulation that follows the plan, to just after its last event or to its end.

        Raises:
            SimulationError: The simulation of `closing` does not close: it fails, or misses the
                plan by more than the tolerance. The message has the reason. The `plan` is there
                still.
        """
        return self.closing.require_run()

    @property
    def mismatch(self) -> float:
        """Largest entry by which states of that simulation differ from planned ones.

        It is relative to 1 + |x|.
        """
        return self.closing.mismatch


def optimise(
    task: Task,
    guess: Guess | OptimalTrajectory,
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
    and feedback may close it (`OptimalTrajectory.tracked`). Conditions that others imply are left
    out, with a `RedundantConditionWarning` that names them.

    A search that fails is repeated: with all inequalities, where one that was left out is missed;
    without inequalities that equations imply; from its last iterate; from a motion that meets all
    constraints; and with other durations.

    Args:
        task: What the trajectory is to do.
        guess: A state (nx,) for (phase, fraction of the phase that is over). Or an optimum of a
            task with as many phases, on any mesh: states, inputs and durations are taken from it.
        max_iterations: Most iterations of IPOPT in each search.
        refinements: Most repetitions in which phases get twice as many intervals: those whose
            intervals miss their ends by a tenth of the tolerance, or limits between the points of
            collocation. Each search goes on from the plan before it.
        tolerance: Largest difference of simulated and planned states, relative to 1 + |x|.
        event_window: Guards that a task wants to fire together do so within this time of each
            other in the simulation, s.
        rtol: Relative tolerance of the simulation.
        atol: Absolute tolerance of the simulation.
        progress: True prints the share of `max_iterations` that is done on standard error, anew for
            each search; a function is called after each iteration, with a `Progress`.

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
    known = guess if isinstance(guess, OptimalTrajectory) else None
    if isinstance(guess, OptimalTrajectory):
        if len(guess.feedforward) != len(task.phases):
            raise InputError(
                f"guess must have the {format_count(len(task.phases), 'phase')} of the task, got "
                f"{guess!r}"
            )
        guess = make_guess(guess.plan.arcs)
    check_callable("guess", guess)
    check_number("tolerance", tolerance, above=0.0)
    check_count("max_iterations", max_iterations)
    check_count("refinements", refinements, at_least=0)
    report = _build_report(progress, max_iterations)
    check_expressions(task)
    check_start(task)
    guess = add_guess_check(task, guess)
    kept, redundant = drop_implied_conditions(task, guess)
    if redundant:
        warnings.warn(
            f"conditions {redundant} follow from the others, from the start and from what the last "
            "mode holds: they are left out",
            RedundantConditionWarning,
            stacklevel=2,
        )
    searches = _Searches(kept, guess, max_iterations, report, known)
    plan = searches.find_plan(refinements, _INTERVAL_SHARE * tolerance)
    settings = {"event_window": event_window, "rtol": rtol, "atol": atol}
    open_loop = plan.simulate_closing(plan.build_feedforward, tolerance, settings)
    tracked = None
    if not open_loop.closes:
        tracked = plan.simulate_closing(plan.build_tracking, tolerance, settings)
    return OptimalTrajectory(
        plan.motion,
        plan.curves,
        plan.planned,
        open_loop,
        tracked,
        redundant,
        float(searches.optima[-1].variables[-1]),
        searches.optima[-1].cost,
        sum(optimum.iterations for optimum in searches.optima),
        sum(optimum.seconds for optimum in searches.optima),
    )


def _build_report(
    progress: Callable[[Progress], None] | bool | None, max_iterations: int
) -> ReportProgress | None:
    """Return the function to call after each iteration, None for no report.

    Iterations are counted from zero in each search: with several the printed share begins again.

    Args:
        progress: Argument of `optimise`: a function of a `Progress`, True to print shares, None or
            False for no report.
        max_iterations: Number of iterations that counts as the whole, for printed shares.
    """
    report = report_share(progress, "optimise")  # type: ignore[arg-type]
    if report is None:
        return None
    if progress is True:
        return lambda done: report(done.iteration / max_iterations)
    return report  # type: ignore[return-value]


class _Searches:
    """Searches for the optimum of one task, on meshes that become finer.

    Life cycle: `find_plan` is called once. Afterwards `optima` has the optimum of each search, the
    last one for the plan.

    Args:
        task: The task, without conditions that others imply.
        guess: States (nx,) by phase and fraction of the phase.
        max_iterations: Most iterations of IPOPT in each search.
        report: Called after each iteration; None for no report.
        known: Optimum of which `guess` has the states; None for none.
    """

    def __init__(
        self,
        task: Task,
        guess: Guess,
        max_iterations: int,
        report: ReportProgress | None,
        known: OptimalTrajectory | None,
    ) -> None:
        self.optima = list[Optimum]()
        self._task, self._guess, self._known = task, guess, known
        self._max_iterations, self._report = max_iterations, report
        self._implied_guards = find_implied_guards(task, guess)
        self._implied_limits = find_implied_lifts(task, guess) | check_end(task, guess)

    def find_plan(self, refinements: int, interval_tolerance: float) -> MotionPlan:
        """Return the plan of the last search.

        Args:
            refinements: Most refinements of the mesh.
            interval_tolerance: Largest dynamics error of an interval, relative to 1 + |x|.
        """
        programme = transcribe(replace(self._task, transition=None), self._implied_guards)
        if self._known is None:
            start = programme.compute_start(self._guess)
        else:
            start = start_from_plan(programme, self._known.plan.arcs, self._known.feedforward)
        plan = self._search(programme, start, is_near_optimum=self._known is not None)
        for _ in range(refinements):
            finer = refine_mesh(programme, plan, interval_tolerance)
            if finer is None:
                break
            programme = transcribe(finer, self._implied_guards)
            start = start_from_plan(programme, plan.motion.arcs, plan.curves)
            plan = self._search(programme, start, is_near_optimum=True)
        if self._task.transition is not None:
            weighted = replace(programme.task, transition=self._task.transition)
            programme = transcribe(weighted, self._implied_guards)
            start = programme.add_perturbations(self.optima[-1].variables)
            plan = self._search(programme, start)
        return plan

    def _search(
        self, programme: Transcription, start: Array, *, is_near_optimum: bool = False
    ) -> MotionPlan:
        """Append an optimum to `optima`.

        Args:
            programme: The programme.
            start: Variables (n,) at the start of the search.
            is_near_optimum: Whether an optimum is known to be next to `start`.

        Returns:
            The plan of the optimum.
        """
        optimum = find_optimum(
            programme,
            start,
            self._max_iterations,
            self._report,
            is_near_optimum=is_near_optimum,
            implied=self._implied_limits,
        )
        self.optima.append(optimum)
        return build_plan(programme, optimum.variables)


@dataclass(frozen=True, eq=False)
class SpreadOptimum:
    """An optimum that is feasible over the spread of its event times.

    Attributes:
        optimum: The optimum.
        extension: The optimum extended by its own inputs as far as its events are expected to
            spread.
        covered: Time past each event over which its arcs are feasible by the task's margins, s; no
            less than the lengths of the extension.
        rounds: Number of optima that were searched for.
    """

    optimum: OptimalTrajectory
    extension: Extension
    covered: tuple[float, ...]
    rounds: int


def optimise_over_spread(
    task: Task,
    guess: Guess,
    feedback: Callable[[Linearization], Linearization],
    covariance: ArrayLike,
    *,
    mean: ArrayLike | None = None,
    input_covariance: ArrayLike | None = None,
    spread: float = 4.0,
    rounds: int = 6,
) -> SpreadOptimum:
    """Return the optimum whose extended and phantom arcs stay feasible over its expected spread.

    Each round optimises, linearizes, and asks for 1.1 times the expected spread where that exceeds
    what was asked for. The spread is of first order, and limits of continued arcs hold at some
    points of each. What is asked for never shrinks from one round to the next. Each round begins
    with the same guess. Of the extension only its deviations count here: what it violates stands in
    `extension.failures`.

    Args:
        task: The task. Its own `spread` is asked for in the first round; its last phase ends at a
            time.
        guess: A state (nx,) for (phase, fraction of the phase that is over).
        feedback: Function of a linearization of an optimum that returns the linearization under the
            feedback which is to track it, such as `lambda lin: lin.closed_loop(gains)`.
        covariance: Covariance at the start, see `extend_by_rule`.
        mean: See `extend_by_rule`.
        input_covariance: See `extend_by_rule`.
        spread: Number n of standard deviations of an event time.
        rounds: Most optima that are searched for.

    Raises:
        InputError: The task ends with an event: what follows the event would have no input. Or a
            phase before the last one ends at a time.
        InfeasibleReferenceError: After the last round the events still spread further, or
            `optimise` finds no optimum.
        SimulationError: A search fails, or no simulation follows its plan.
    """
    if check_instance("task", task, Task).phases[-1].ends:
        raise InputError(
            f"the last phase of the task must end at a time, got ends = {task.phases[-1].ends}"
        )
    if not all(phase.ends for phase in task.phases[:-1]):
        raise InputError(
            "every phase of the task but the last must end with guards: the clock is not spread"
        )
    check_callable("feedback", feedback)
    lengths = [task.get_event_spread(k) for k, phase in enumerate(task.phases) if phase.ends]
    needed = covered = np.array(lengths)  # of each event, s: so the first round raises nothing
    for done in range(1, check_count("rounds", rounds) + 1):
        covered = np.maximum(
            covered, np.where(needed > covered, _SPREAD_ALLOWANCE * needed, covered)
        )
        optimum = optimise(replace(task, spread=covered.tolist()), guess)
        extension = extend_by_rule(
            feedback(linearize(task.system, optimum.run)),
            covariance,
            mean=mean,
            input_covariance=input_covariance,
            rule=optimum.feedforward,
            spread=spread,
            limits=task.largest_inputs,
        )
        needed = spread * np.array(extension.deviations)
        if (needed <= covered).all():
            return SpreadOptimum(optimum, extension, tuple(covered.tolist()), done)
    raise InfeasibleReferenceError(
        f"after {rounds} rounds events spread by {needed.tolist()} s, more than the "
        f"{covered.tolist()} s over which arcs were made feasible: stronger feedback or margins "
        "that make events more transversal narrow the spread"
    )
