"""Search for a local optimum of a transcribed task by IPOPT, and diagnosis where there is none.

`find_optimum` begins at given variables. IPOPT, an interior-point method, fails where inequalities
have no interior, where its barrier gets stuck, or where there is no solution. So a failed search is
repeated in the ways that `find_optimum` lists. If all fail, the least violation of a relaxed
programme tells which constraints cannot be met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array, format_count
from hybridctl.base.errors import HybridctlError, InfeasibleReferenceError, SimulationError
from hybridctl.planning.collocation import ConstraintBlock
from hybridctl.planning.task import Expression
from hybridctl.planning.transcription import Transcription

_OPTIONS: dict[str, Any] = {
    "print_time": False,
    "ipopt.print_level": 0,
    "ipopt.sb": "yes",
    "ipopt.tol": 1e-8,
    "ipopt.constr_viol_tol": 1e-10,
    "ipopt.bound_relax_factor": 0.0,
    "ipopt.mumps_pivot_order": 5,  # METIS: half the time of what MUMPS chooses by itself
}
"""Options of all searches, of CasADi's `nlpsol`."""
_WARM_START_OPTIONS = {
    "ipopt.mu_init": 1e-5,
    "ipopt.bound_push": 1e-6,
    "ipopt.bound_frac": 1e-6,
    "ipopt.slack_bound_push": 1e-6,
    "ipopt.slack_bound_frac": 1e-6,
}
"""Options of a search that begins next to an optimum: a small barrier, which does not push the
start away from active bounds."""
_IMPLICIT_OPTIONS = {"ipopt.mu_init": 1e-2}
"""Options where equations of motion are constraints: a barrier that weighs less than the cost. With
IPOPT's 0.1 the trot of solo12, of cost 0.4, was not found in 270 iterations."""
_SUCCESS_STATUSES = ("Solve_Succeeded", "Solved_To_Acceptable_Level")
_FEASIBILITY_TOLERANCE = 1e-5
"""Violation up to which a constraint counts as met: in the unit of the constraint for inequalities
that were left out, relative to `Limit.size` in the relaxed programme."""
_OTHER_DURATIONS = (0.25, 0.75)
"""Durations of further searches, from the lower bound at 0 to the upper bound at 1. Guesses are at
0.5."""
_SAME_START = 1e-3
"""Relative difference of variables below which a search from other durations is not repeated."""
_RELAXED_SLACK = 0.1
"""Slack of each constraint, relative to `Limit.size`, at the start of the relaxed programme."""
_MAX_LISTED = 6
"""Constraints that a message names."""
_LARGEST_MULTIPLIER = 1e7
"""Bound of the multipliers of a regular programme, relative to its cost but at least 1.

Multipliers times the unit of a constraint are costs. Those of the tests' tasks are below 3e4 times
the cost. For a release whose inequality is implied (a pole that leaves a wall) they exceed 5e8."""
_DEPENDENT_MULTIPLIER = 1e-3
"""Share of the largest multiplier above which a constraint is part of a dependence. Constraints in
a dependence have more than 0.1, others some 1e-9."""

ImpliedLimits = frozenset[tuple[int, str]]
"""Inequalities that equations imply, by index of their phase and name."""


@dataclass(frozen=True)
class Progress:
    """State of a search after an iteration.

    Attributes:
        sought: "optimum", or "violations" after the searches for an optimum have failed.
        iteration: Number of IPOPT's iteration, from 0.
        cost: Cost.
        missed: Largest violation of a constraint, in its own unit.
    """

    sought: str
    iteration: int
    cost: float
    missed: float


ReportProgress = Callable[[Progress], None]
"""Function that is called after each iteration."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """A local optimum of a programme.

    Attributes:
        variables: Variables (n,).
        cost: Cost.
        iterations: Iterations of IPOPT in all searches for it.
        seconds: Time of all searches, s.
    """

    variables: Array
    cost: float
    iterations: int
    seconds: float


@dataclass(frozen=True)
class Violation:
    """A constraint that cannot be met.

    Attributes:
        name: Name of the limit.
        unit: Its unit.
        amount: Violation, in this unit.
        phase: Index of the phase, None for constraints on the whole motion.
        fraction: Fraction of the phase where the violation is largest, None without such a place.
    """

    name: str
    unit: str
    amount: float
    phase: int | None
    fraction: float | None

    def __str__(self) -> str:
        where = "" if self.phase is None else f" in phase {self.phase}"
        if self.fraction is not None:
            where += f" at {self.fraction:.2f} of it"
        return f"{self.name}{where} is missed by {self.amount:.3g} {self.unit}".rstrip()


class LeastViolation(NamedTuple):
    """The motion near a guess that violates the constraints of a programme least.

    Attributes:
        violations: Constraints that it violates, the worst first; empty if it meets all.
        variables: The motion (n,), None if no motion was found that obeys the dynamics.
    """

    violations: list[Violation]
    variables: Array | None


class Attempt(NamedTuple):
    """End of one search.

    Attributes:
        start: Where it began, in words.
        status: IPOPT's return status, and why it was refused if IPOPT calls it solved.
        iterations: Number of IPOPT's iterations.
        missed: Largest amount by which a constraint is missed at the end, in its own unit.
    """

    start: str
    status: str
    iterations: int
    missed: float

    def __str__(self) -> str:
        return (
            f"{self.start} ({self.status} after {self.iterations} iterations, "
            f"constraints missed by {self.missed:.1g})"
        )


def find_optimum(
    programme: Transcription,
    start: Array,
    max_iterations: int,
    report: ReportProgress | None = None,
    *,
    is_near_optimum: bool = False,
    implied: ImpliedLimits = frozenset(),
) -> Optimum:
    """Return a local optimum of a programme near given variables.

    A search that fails is repeated: with all inequalities, where one that was left out is missed;
    without inequalities that equations imply; from its last iterate; from a motion that meets all
    constraints; and with other durations.

    Args:
        programme: The transcribed task.
        start: Variables (n,) at the start of the search.
        max_iterations: Most iterations of IPOPT in each search.
        report: Called after each iteration; None for no report.
        is_near_optimum: Whether an optimum is known to be next to `start`.
        implied: Inequalities that equations are expected to imply. Searches leave them out until a
            result does not meet them.

    Raises:
        InfeasibleReferenceError: No search succeeds, and constraints cannot all be met near
            `start`; the message has these constraints.
        SimulationError: No search succeeds for another reason. Both messages have what was tried.
    """
    search = _OptimumSearch(programme, max_iterations, report, implied)
    optimum = search.search("from the guess", start, _WARM_START_OPTIONS if is_near_optimum else {})
    if optimum is None and search.has_restored:
        optimum = search.search("from the guess with all inequalities", start, {})
    if optimum is None and search.left_out.any():
        optimum = search.search("from the guess without the implied inequalities", start, {})
    if optimum is None and search.last_iterate is not None and not search.is_infeasible:
        # The other rule for the barrier: the default one has got stuck here.
        adaptive = {"ipopt.mu_strategy": "adaptive"}
        optimum = search.search("from the last iterate", search.last_iterate, adaptive)
    if optimum is not None:
        return optimum
    least = find_violations(programme, start, max_iterations, report)
    if least.variables is not None and not least.violations:
        optimum = search.search("from a motion that meets all constraints", least.variables, {})
    for share in _OTHER_DURATIONS:
        other = _replace_durations(programme, start, share)
        if optimum is None and not np.allclose(other, start, _SAME_START):
            label = f"with durations at {100.0 * share:.0f} % of their bounds"
            optimum = search.search(label, other, {})
    if optimum is not None:
        return optimum
    raise search.build_failure(least)


class _OptimumSearch:
    """Searches for an optimum of one programme, one after the other, and how each ended.

    `search` may be called any number of times; then `build_failure` returns the error to raise.

    Args:
        programme: The programme.
        max_iterations: Most iterations of IPOPT in each search.
        report: Called after each iteration; None for no report.
        implied: Inequalities that the first search leaves out.

    Attributes:
        attempts: One entry for each search so far.
        last_iterate: Last iterate (n,) of the last search, None if it is not finite.
        is_infeasible: Whether IPOPT found the last search to be at a point of least violation.
        left_out: Which constraints (m,) the next search leaves out, as equations imply them.
        has_restored: Whether the last search missed inequalities that it had left out. Then
            `left_out` is empty again.
        dependent: Names of the constraints whose multipliers had no bound in a search.
    """

    def __init__(
        self,
        programme: Transcription,
        max_iterations: int,
        report: ReportProgress | None,
        implied: ImpliedLimits,
    ) -> None:
        self.attempts = list[Attempt]()
        self.last_iterate: Array | None = None
        self.is_infeasible = self.has_restored = False
        self.left_out = np.array([row in implied for row in _list_rows(programme)], dtype=bool)
        self.dependent = tuple[str, ...]()
        self._programme, self._max_iterations, self._report = programme, max_iterations, report
        self._derivatives = {"jac_g": programme.jacobian(), "hess_lag": programme.hessian()}
        self._start_time = perf_counter()

    def search(self, label: str, start: Array, options: dict[str, Any]) -> Optimum | None:
        """Return the optimum found from given variables, and update all attributes.

        A search also fails if multipliers of inequalities have no bound (IPOPT scales their error
        away and calls that solved), or if the result misses an inequality that was left out.

        Args:
            label: Where the search begins, in words, for messages.
            start: Variables (n,) at the start.
            options: Options of CasADi's `nlpsol` for this search, which replace those of the
                module.

        Returns:
            The optimum with the iterations and seconds of all searches so far, None if the search
            fails.
        """
        low, high = self._programme.compute_variable_bounds()
        least, greatest = self._programme.compute_constraint_bounds()
        result, stats = _run_ipopt(
            {
                "x": self._programme.column,
                "f": self._programme.cost,
                "g": self._programme.constraints,
            },
            {
                "x0": start,
                "lbx": low,
                "ubx": high,
                "lbg": np.where(self.left_out, -np.inf, least),
                "ubg": np.where(self.left_out, np.inf, greatest),
            },
            {
                **(_IMPLICIT_OPTIONS if self._programme.nodes else {}),
                **self._derivatives,
                "ipopt.max_iter": self._max_iterations,
                **options,
            },
            self._report,
        )
        values, g, multipliers = (np.array(result[part]).ravel() for part in ("x", "g", "lam_g"))
        status, cost = str(stats["return_status"]), float(result["f"])
        missed = np.maximum(least - g, g - greatest)
        self.last_iterate = values if np.isfinite(values).all() else None
        self.is_infeasible = status == "Infeasible_Problem_Detected"
        refusal = ""
        self.has_restored = missed[self.left_out].max(initial=0.0) > _FEASIBILITY_TOLERANCE
        if self.has_restored:
            self.left_out[:] = False
            refusal = ", an inequality that was left out is missed"
        elif self._leave_out_dependent(multipliers, cost):
            refusal = ", multipliers have no bound"
        attempt = Attempt(
            label, status + refusal, int(stats["iter_count"]), float(missed.max(initial=0.0))
        )
        self.attempts.append(attempt)
        if refusal or status not in _SUCCESS_STATUSES:
            return None
        iterations = sum(each.iterations for each in self.attempts)
        return Optimum(values, cost, iterations, perf_counter() - self._start_time)

    def _leave_out_dependent(self, multipliers: Array, cost: float) -> bool:
        """Add inequalities whose multipliers have no bound to `left_out`.

        Equations that imply an inequality leave it no interior, which a barrier needs: the
        multipliers of both then grow without bounds along the dependence of their gradients. If an
        inequality is added, `dependent` is set too.

        Args:
            multipliers: Multipliers (m,) of the constraints at the end of a search.
            cost: Cost there, by which the bound of the multipliers is scaled.

        Returns:
            Whether there are any such inequalities that were not left out before.
        """
        sizes = np.abs(multipliers)
        largest = sizes.max(initial=0.0)
        if not largest > _LARGEST_MULTIPLIER * max(1.0, abs(cost)):  # also where it is NaN
            return False
        least, greatest = self._programme.compute_constraint_bounds()
        dependent = sizes > _DEPENDENT_MULTIPLIER * largest
        added = dependent & (least < greatest) & ~self.left_out
        if added.any():
            rows = _list_rows(self._programme)
            names = [_describe_row(*rows[i]) for i in np.flatnonzero(dependent)]
            self.dependent = tuple(dict.fromkeys(names))
            self.left_out |= added
        return bool(added.any())

    def build_failure(self, least: LeastViolation) -> HybridctlError:
        """Return the error for a programme of which no search has found an optimum.

        Args:
            least: Result of `find_violations` near the same variables.

        Returns:
            `InfeasibleReferenceError` with the first violations if there are any, otherwise
            `SimulationError` with advice. Both messages have all attempts.
        """
        tried = "tried: " + "; ".join(map(str, self.attempts))
        if least.violations:
            named = "; ".join(map(str, least.violations[:_MAX_LISTED]))
            more = len(least.violations) - _MAX_LISTED
            others = f"; and {format_count(more, 'other')}" if more > 0 else ""
            return InfeasibleReferenceError(
                f"the task cannot be done near this guess: {named}{others}\n{tried}"
            )
        can = "no motion that obeys the dynamics was found"
        if least.variables is not None:
            can = "though the task can be done"
        return SimulationError(
            f"the search ended without an optimum, {can}\n{tried}\n{self._advise()}"
        )

    def _advise(self) -> str:
        """Return what a user may do, by how the searches ended."""
        statuses = " ".join(attempt.status for attempt in self.attempts)
        if self.dependent:
            names = ", ".join(self.dependent[:_MAX_LISTED])
            return f"these constraints depend on each other: {names}"
        if "Maximum_Iterations" in statuses:
            return f"raise max_iterations = {self._max_iterations}, or begin elsewhere"
        if "Invalid_Number" in statuses:
            return "dynamics, a cost or a condition is not finite near the guess: begin elsewhere"
        if "Diverging" in statuses:
            return "the cost falls without end: give the task torque, joint_limits or rate_limits"
        return "begin elsewhere, or on more intervals"


def _replace_durations(programme: Transcription, start: Array, share: float) -> Array:
    """Return the variables with all durations at this share of the way between their bounds."""
    low, high = programme.compute_variable_bounds()
    bounded = np.isfinite(low) & np.isfinite(high)  # durations, and a margin that is fixed at zero
    changed: Array = start.copy()
    changed[bounded] = low[bounded] + share * (high - low)[bounded]
    return changed


def _list_rows(programme: Transcription) -> list[tuple[int | None, str]]:
    """Return the phase and the name of each constraint (m,)."""
    rows = list[tuple[int | None, str]]()
    for block in programme.blocks:
        rows += [(block.phase, limit.name) for limit in block.limits] * block.values.shape[1]
    return rows


def _describe_row(phase: int | None, name: str) -> str:
    return name if phase is None else f"{name} in phase {phase}"


def find_violations(
    programme: Transcription,
    start: Array,
    max_iterations: int,
    report: ReportProgress | None = None,
) -> LeastViolation:
    r"""Return the least violation of the constraints of a programme, near given variables.

    With slacks :math:`a, b \ge 0` and the diagonal S of the sizes 100 N, 0.1 m, 1 m/s, 1 rad and so
    on (`Limit.size`), it is the minimum of :math:`\sum a + \sum b` subject to
    :math:`l \le g + S (b - a) \le u`. Hard constraints, as those of the discretisation, have no
    slack.

    Args:
        programme: The programme.
        start: Variables (n,) at the start of the search.
        max_iterations: Largest number of IPOPT's iterations.
        report: Called with the progress after each iteration; None for no report.

    Returns:
        Violations and variables. If the search fails, there are no violations and no variables.
    """
    soft = [block for block in programme.blocks if not block.is_hard]
    slack_matrix = _build_slack_matrix(programme)
    count = slack_matrix.shape[1]
    above, below = ca.MX.sym("above", count), ca.MX.sym("below", count)
    column = ca.vertcat(programme.column, above, below)
    low, high = programme.compute_variable_bounds()
    least, greatest = programme.compute_constraint_bounds()
    zero = np.zeros(2 * count)
    result, stats = _run_ipopt(
        {
            "x": column,
            "f": ca.sum1(above) + ca.sum1(below),
            "g": programme.constraints + slack_matrix @ (below - above),
        },
        {
            "x0": np.append(start, zero + _RELAXED_SLACK),
            "lbx": np.append(low, zero),
            "ubx": np.append(high, zero + np.inf),
            "lbg": least,
            "ubg": greatest,
        },
        {
            **_build_relaxed_derivatives(programme, column, slack_matrix),
            "ipopt.max_iter": max_iterations,
        },
        report,
        "violations",
    )
    if stats["return_status"] not in _SUCCESS_STATUSES:
        return LeastViolation([], None)
    variables, slacks = np.split(np.array(result["x"]).ravel(), [len(start)])
    return LeastViolation(_list_violations(soft, slacks[:count] + slacks[count:]), variables)


def _build_slack_matrix(programme: Transcription) -> Any:
    """Return the matrix S (m, k) from k slacks to the m constraints, with the sizes of limits."""
    rows, sizes, first = list[int](), list[float](), 0
    for block in programme.blocks:
        end = first + block.values.numel()
        if not block.is_hard:
            rows += range(first, end)
            sizes += [limit.size for limit in block.limits] * block.values.shape[1]
        first = end
    return ca.DM.triplet(rows, [*range(len(rows))], sizes, first, len(rows))


def _build_relaxed_derivatives(
    programme: Transcription, column: Expression, slack_matrix: Any
) -> dict[str, Any]:
    """Return Jacobian and Hessian of the relaxed programme, as options of `nlpsol`.

    They are those of the programme, with constant columns for the slacks, in which cost and
    constraints are linear.

    Args:
        programme: The programme.
        column: Its variables, and the slacks above and below them (n + 2 k, 1).
        slack_matrix: Matrix S (m, k).
    """
    none, count = ca.MX(0, 1), slack_matrix.shape[1]
    weight, multipliers = ca.MX.sym("weight"), ca.MX.sym("multipliers", slack_matrix.shape[0])
    g, slopes = programme.jacobian()(programme.column, none)
    slack = column[-2 * count :]
    g += slack_matrix @ (slack[count:] - slack[:count])
    curvature = programme.hessian()(programme.column, none, 0.0, multipliers)
    return {
        "jac_g": ca.Function(
            "jacobian", [column, none], [g, ca.horzcat(slopes, -slack_matrix, slack_matrix)]
        ),
        "hess_lag": ca.Function(
            "hessian",
            [column, none, weight, multipliers],
            [ca.diagcat(curvature, ca.MX(2 * count, 2 * count))],
        ),
    }


def _list_violations(blocks: list[ConstraintBlock], slacks: Array) -> list[Violation]:
    """Return the largest violation of each limit, the worst first.

    Args:
        blocks: The constraints that have slacks.
        slacks: Their slacks (k,), relative to the sizes of the limits.
    """
    violations, first = [], 0
    for block in blocks:
        rows, columns = block.values.shape
        part = slacks[first : first + rows * columns].reshape(columns, rows).T
        first += rows * columns
        for row, limit in zip(part, block.limits, strict=True):
            worst = int(row.argmax())
            if row[worst] > _FEASIBILITY_TOLERANCE:
                fraction = None if block.fractions is None else float(block.fractions[worst])
                amount = float(row[worst]) * limit.size
                violation = Violation(limit.name, limit.unit, amount, block.phase, fraction)
                violations.append((row[worst], violation))
    return [violation for _, violation in sorted(violations, key=lambda pair: -pair[0])]


def _run_ipopt(
    nlp: dict[str, Any],
    arguments: dict[str, Any],
    options: dict[str, Any],
    report: ReportProgress | None,
    sought: str = "optimum",
) -> tuple[Any, Any]:
    """Return the result and the statistics of one run of IPOPT.

    Args:
        nlp: Expressions of the programme, as `nlpsol` takes them.
        arguments: Start and bounds, as the solver takes them.
        options: Options beside `_OPTIONS`, which they replace.
        report: Called after each iteration; None for no report.
        sought: See `Progress.sought`.
    """
    if report is not None:
        options = options | {
            "iteration_callback": _ProgressCallback(report, sought, nlp, arguments)
        }
    solver = ca.nlpsol("trajectory", "ipopt", nlp, _OPTIONS | options)
    result = solver(**arguments)
    return result, solver.stats()


class _ProgressCallback(ca.Callback):
    """Callback that IPOPT calls after each iteration; the methods are those of `casadi.Callback`.

    Args:
        report: The user's function.
        sought: See `Progress.sought`.
        nlp: Expressions of the programme, whose sizes CasADi asks for.
        arguments: Arguments of the solver, with the bounds of the constraints.
    """

    def __init__(
        self, report: ReportProgress, sought: str, nlp: dict[str, Any], arguments: dict[str, Any]
    ) -> None:
        ca.Callback.__init__(self)
        self._report, self._sought, self._iteration = report, sought, 0
        self._bounds = arguments["lbg"], arguments["ubg"]
        self._sizes = {"x": nlp["x"].numel(), "g": nlp["g"].numel(), "f": 1}
        self.construct("told", {})

    def get_n_in(self) -> int:
        """Return the number of arguments: the outputs of the solver."""
        return int(ca.nlpsol_n_out())

    def get_n_out(self) -> int:
        """Return the number of outputs: one, whether IPOPT is to stop."""
        return 1

    def get_sparsity_in(self, i: int) -> Any:
        """Return the sparsity of output i of the solver, such as "g", or "lam_g" of its size."""
        return ca.Sparsity.dense(self._sizes.get(ca.nlpsol_out(i).removeprefix("lam_"), 0), 1)

    def eval(self, arg: Sequence[ca.DM]) -> list[ca.DM]:
        """Report an iteration.

        Args:
            arg: The outputs of the solver at the iterate.

        Returns:
            Zero, so that the search goes on.
        """
        outputs = {ca.nlpsol_out(i): value for i, value in enumerate(arg)}
        g, (low, high) = np.array(outputs["g"]).ravel(), self._bounds
        missed = float(np.maximum(low - g, g - high).max(initial=0.0))
        self._report(Progress(self._sought, self._iteration, float(outputs["f"]), missed))
        self._iteration += 1
        return [ca.DM(0)]
