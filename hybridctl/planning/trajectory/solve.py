"""The programme solved by IPOPT, and what keeps an infeasible one from a solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array, format_count
from hybridctl.base.errors import HybridctlError, InfeasibleReferenceError, SimulationError
from hybridctl.planning.trajectory.task import Expression
from hybridctl.planning.trajectory.transcription import Block, Transcription

_OPTIONS: dict[str, Any] = {
    "print_time": False,
    "ipopt.print_level": 0,
    "ipopt.sb": "yes",
    "ipopt.tol": 1e-8,
    "ipopt.constr_viol_tol": 1e-10,
    "ipopt.bound_relax_factor": 0.0,
    "ipopt.mumps_pivot_order": 5,  # METIS: half the time of what MUMPS chooses by itself
}
_NEAR = {
    "ipopt.mu_init": 1e-5,
    "ipopt.bound_push": 1e-6,
    "ipopt.bound_frac": 1e-6,
    "ipopt.slack_bound_push": 1e-6,
    "ipopt.slack_bound_frac": 1e-6,
}
_SOLVED = ("Solve_Succeeded", "Solved_To_Acceptable_Level")
_MET = 1e-5  # of the size of a constraint: what is missed by no more than this counts as met
_OTHER_DURATIONS = (0.25, 0.75)  # of the way between bounds; guesses begin at 0.5
_SAME_START = 1e-3  # relative difference of variables: a search that begins so close is no other
_LISTED = 6  # constraints that a message names

# Multipliers times the unit of a constraint are costs. Of tasks of the tests they are below 3e4
# times the cost, of a release whose inequality is implied (a pole that leaves a wall) above 5e8.
_BOUNDED_MULTIPLIER = 1e7
_IN_DEPENDENCE = 1e-3  # of the largest multiplier: rows in a dependence are above 0.1, others 1e-9


@dataclass(frozen=True)
class Violation:
    """A constraint that cannot be met: its name, where, and by how much, in its unit.

    phase: None for what is of the whole motion. fraction: of the phase that is over.
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


@dataclass(frozen=True, eq=False)
class Optimum:
    """Variables (n,) of a programme, their cost, IPOPT's iterations, and seconds."""

    variables: Array
    cost: float
    iterations: int
    seconds: float


@dataclass(frozen=True)
class Progress:
    """How far a search is: IPOPT's iteration, the cost, and the largest miss of a constraint.

    sought: "optimum", or "violations" where there is none and what is in the way is looked for.
    """

    sought: str
    iteration: int
    cost: float
    missed: float


Tell = Callable[[Progress], None]


class _Told(ca.Callback):
    """The callback that IPOPT calls after each iteration."""

    def __init__(self, tell: Tell, sought: str, nlp: dict[str, Any], start: dict[str, Any]) -> None:
        ca.Callback.__init__(self)
        self._tell, self._sought, self._done = tell, sought, 0
        self._bounds = start["lbg"], start["ubg"]
        self._sizes = {"x": nlp["x"].numel(), "g": nlp["g"].numel(), "f": 1}
        self.construct("told", {})

    def get_n_in(self) -> int:
        """The number of arguments: that of outputs of the solver."""
        return int(ca.nlpsol_n_out())

    def get_n_out(self) -> int:
        """The number of outputs: one, which tells IPOPT whether to stop."""
        return 1

    def get_sparsity_in(self, i: int) -> Any:
        """The sparsity of output i of the solver, such as "g" and its multipliers "lam_g"."""
        return ca.Sparsity.dense(self._sizes.get(ca.nlpsol_out(i).removeprefix("lam_"), 0), 1)

    def eval(self, arg: Sequence[ca.DM]) -> list[ca.DM]:
        """The callback tells of an iteration, and lets the search go on."""
        at = {ca.nlpsol_out(i): value for i, value in enumerate(arg)}
        g, (low, high) = np.array(at["g"]).ravel(), self._bounds
        missed = float(np.maximum(low - g, g - high).max(initial=0.0))
        self._tell(Progress(self._sought, self._done, float(at["f"]), missed))
        self._done += 1
        return [ca.DM(0)]


class Attempt(NamedTuple):
    """How one search ended.

    Attributes:
        start: Where it began, in words.
        status: IPOPT's return status, and why it was refused where IPOPT calls it solved.
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


def solve(
    programme: Transcription,
    begin: Array,
    max_iterations: int,
    tell: Tell | None = None,
    *,
    near: bool = False,
    without: frozenset[tuple[int, str]] = frozenset(),
) -> Optimum:
    """Return a local optimum of a programme near given variables.

    A search that fails is repeated: without inequalities that equations imply, from its last
    iterate, from a motion that meets all constraints, and with other durations.

    Args:
        programme: The task as a nonlinear programme.
        begin: Variables (n,) from which the search begins.
        max_iterations: Most iterations of IPOPT in each search.
        tell: Called after each iteration.
        near: Whether an optimum is known to be next to `begin`.
        without: Inequalities, by phase and name, that equations are expected to imply. Searches
            leave them out until a result does not meet them.

    Raises:
        InfeasibleReferenceError: No search succeeds, and constraints cannot all be met near
            `begin`; the message has these constraints.
        SimulationError: No search succeeds for another reason. Both messages have what was tried.
    """
    search = _OptimumSearch(programme, max_iterations, tell, without)
    found = search.from_start("from the guess", begin, _NEAR if near else {})
    if found is None and search.restored:
        found = search.from_start("from the guess with all inequalities", begin, {})
    if found is None and search.left_out.any():
        found = search.from_start("from the guess without the implied inequalities", begin, {})
    if found is None and search.last is not None and not search.infeasible:
        # The other rule for the barrier: the first one has got stuck here.
        adaptive = {"ipopt.mu_strategy": "adaptive"}
        found = search.from_start("from the last iterate", search.last, adaptive)
    if found is not None:
        return found
    least = find_violations(programme, begin, max_iterations, tell)
    if least.variables is not None and not least.violations:
        found = search.from_start("from a motion that meets all constraints", least.variables, {})
    for share in _OTHER_DURATIONS:
        other = _with_durations(programme, begin, share)
        if found is None and not np.allclose(other, begin, _SAME_START):
            label = f"with durations at {100.0 * share:.0f} % of their bounds"
            found = search.from_start(label, other, {})
    if found is not None:
        return found
    raise search.failure(least)


class _OptimumSearch:
    """Searches for an optimum of one programme, one after the other, and how each ended.

    `from_start` may be called any number of times; then `failure` returns the error to raise.

    Attributes:
        attempts: One entry for each search so far.
        last: Last iterate (n,) of the last search, None where it is not finite.
        infeasible: Whether IPOPT found the last search to be at a point of least violation.
        left_out: Inequalities (m,) that equations imply. No later search has them.
        restored: Whether inequalities were left out that the last search did not meet.
        dependent: Names of the constraints whose multipliers had no bound in a search.
    """

    def __init__(
        self,
        programme: Transcription,
        most: int,
        tell: Tell | None,
        without: frozenset[tuple[int, str]],
    ) -> None:
        self.attempts = list[Attempt]()
        self.last: Array | None = None
        self.infeasible = self.restored = False
        self.left_out = np.array([row in without for row in _rows(programme)], dtype=bool)
        self.dependent = tuple[str, ...]()
        self._programme, self._most, self._tell = programme, most, tell
        self._derivatives = {"jac_g": programme.jacobian(), "hess_lag": programme.hessian()}
        self._begun = perf_counter()

    def from_start(self, label: str, begin: Array, settings: dict[str, Any]) -> Optimum | None:
        """Return the optimum found from given variables, and update all attributes.

        A search also fails if multipliers of inequalities have no bound (IPOPT scales their error
        away and calls that solved), or if the result misses an inequality that was left out.

        Args:
            label: Where the search begins, in words, for messages.
            begin: Variables (n,) at the start.
            settings: Options of CasADi's `nlpsol` for this search, which replace those of the
                module.

        Returns:
            The optimum with the iterations and seconds of all searches so far, None if the search
            fails.
        """
        low, high = self._programme.box()
        least, greatest = self._programme.bounds()
        found, stats = _ipopt(
            {
                "x": self._programme.column,
                "f": self._programme.cost,
                "g": self._programme.constraints,
            },
            {
                "x0": begin,
                "lbx": low,
                "ubx": high,
                "lbg": np.where(self.left_out, -np.inf, least),
                "ubg": np.where(self.left_out, np.inf, greatest),
            },
            {**self._derivatives, "ipopt.max_iter": self._most, **settings},
            self._tell,
        )
        values, g, multipliers = (np.array(found[part]).ravel() for part in ("x", "g", "lam_g"))
        status, cost = str(stats["return_status"]), float(found["f"])
        missed = np.maximum(least - g, g - greatest)
        self.last = values if np.isfinite(values).all() else None
        self.infeasible = status == "Infeasible_Problem_Detected"
        refused = ""
        self.restored = missed[self.left_out].max(initial=0.0) > _MET
        if self.restored:
            self.left_out[:] = False
            refused = ", an inequality that was left out is missed"
        elif self._leave_out(multipliers, cost):
            refused = ", multipliers have no bound"
        attempt = Attempt(
            label, status + refused, int(stats["iter_count"]), float(missed.max(initial=0.0))
        )
        self.attempts.append(attempt)
        if refused or status not in _SOLVED:
            return None
        iterations = sum(each.iterations for each in self.attempts)
        return Optimum(values, cost, iterations, perf_counter() - self._begun)

    def _leave_out(self, multipliers: Array, cost: float) -> bool:
        """Add inequalities whose multipliers have no bound to `left_out`; return if there are any.

        Equations that imply an inequality leave it no interior, which a barrier needs: the
        multipliers of both then grow without bounds along the dependence of their gradients. If an
        inequality is added, `dependent` is set too.

        Args:
            multipliers: Multipliers (m,) of the constraints at the end of a search.
            cost: Cost there, by which the bound of the multipliers is scaled.
        """
        sizes = np.abs(multipliers)
        largest = sizes.max(initial=0.0)
        if not largest > _BOUNDED_MULTIPLIER * max(1.0, abs(cost)):
            return False
        least, greatest = self._programme.bounds()
        dependent = sizes > _IN_DEPENDENCE * largest
        more = dependent & (least < greatest) & ~self.left_out
        if more.any():
            rows = _rows(self._programme)
            names = [_describe_row(*rows[i]) for i in np.flatnonzero(dependent)]
            self.dependent = tuple(dict.fromkeys(names))
            self.left_out |= more
        return bool(more.any())

    def failure(self, least: LeastViolation) -> HybridctlError:
        """Return the error for a programme of which no search has found an optimum.

        Args:
            least: Result of `find_violations` near the same variables.

        Returns:
            `InfeasibleReferenceError` with the first violations if there are any, otherwise
            `SimulationError` with advice. Both messages have all attempts.
        """
        tried = "tried: " + "; ".join(map(str, self.attempts))
        if least.violations:
            named = "; ".join(map(str, least.violations[:_LISTED]))
            more = len(least.violations) - _LISTED
            others = f"; and {format_count(more, 'other')}" if more > 0 else ""
            return InfeasibleReferenceError(
                f"the task cannot be done near this guess: {named}{others}\n{tried}"
            )
        can = "no motion that obeys the dynamics was found"
        if least.variables is not None:
            can = "though the task can be done"
        return SimulationError(
            f"the search ended without an optimum, {can}\n{tried}\n{self._advice()}"
        )

    def _advice(self) -> str:
        """Return what a user may do, by how the searches ended."""
        statuses = " ".join(attempt.status for attempt in self.attempts)
        if self.dependent:
            return f"these constraints depend on each other: {', '.join(self.dependent[:_LISTED])}"
        if "Maximum_Iterations" in statuses:
            return f"raise max_iterations = {self._most}, or begin elsewhere"
        if "Invalid_Number" in statuses:
            return "dynamics, a cost or a condition is not finite near the guess: begin elsewhere"
        if "Diverging" in statuses:
            return "the cost falls without end: give the task torque, joint_limits or rate_limits"
        return "begin elsewhere, or on more intervals"


def _with_durations(programme: Transcription, begin: Array, share: float) -> Array:
    """Return the variables with all durations at this share of the way between their bounds."""
    low, high = programme.box()
    bounded = np.isfinite(low) & np.isfinite(high)  # durations, and a margin that is fixed at zero
    found: Array = begin.copy()
    found[bounded] = low[bounded] + share * (high - low)[bounded]
    return found


def _rows(programme: Transcription) -> list[tuple[int | None, str]]:
    """Return the phase and the name of each constraint (m,)."""
    rows = list[tuple[int | None, str]]()
    for block in programme.blocks:
        rows += [(block.phase, limit.name) for limit in block.limits] * block.values.shape[1]
    return rows


def _describe_row(phase: int | None, name: str) -> str:
    return name if phase is None else f"{name} in phase {phase}"


class LeastViolation(NamedTuple):
    """The motion near a guess that violates the constraints of a programme least.

    Attributes:
        violations: Constraints that it violates, the worst first; empty where it meets all.
        variables: The motion (n,), None where not even one that obeys the dynamics was found.
    """

    violations: list[Violation]
    variables: Array | None


def find_violations(
    programme: Transcription, begin: Array, max_iterations: int, tell: Tell | None = None
) -> LeastViolation:
    """Return the least sum of violations of a relaxed programme, near given variables.

    All constraints may be violated but those that are `hard`, as those of the discretisation.
    Violations are compared by the sizes 100 N, 0.1 m, 1 m/s, 1 rad and so on.

    Args:
        programme: The programme.
        begin: Variables (n,) at the start of the search.
        max_iterations: Largest number of IPOPT's iterations.
        tell: Called with the progress after each iteration; None for no report.

    Returns:
        Violations and variables. If the search fails, there are no violations and no variables.
    """
    soft = [block for block in programme.blocks if not block.hard]
    missing = _missing(programme)
    count = missing.shape[1]
    above, below = ca.MX.sym("above", count), ca.MX.sym("below", count)
    every = ca.vertcat(programme.column, above, below)
    low, high = programme.box()
    least, greatest = programme.bounds()
    slack = np.zeros(2 * count)
    found, stats = _ipopt(
        {
            "x": every,
            "f": ca.sum1(above) + ca.sum1(below),
            "g": programme.constraints + missing @ (below - above),
        },
        {
            "x0": np.append(begin, slack + 0.1),
            "lbx": np.append(low, slack),
            "ubx": np.append(high, slack + np.inf),
            "lbg": least,
            "ubg": greatest,
        },
        {**_relaxed(programme, every, missing), "ipopt.max_iter": max_iterations},
        tell,
        "violations",
    )
    if stats["return_status"] not in _SOLVED:
        return LeastViolation([], None)
    variables, used = np.split(np.array(found["x"]).ravel(), [len(begin)])
    return LeastViolation(_reported(soft, used[:count] + used[count:]), variables)


def _missing(programme: Transcription) -> Any:
    """By how much of its size each amount (k,) changes the constraints (m,): a matrix (m, k)."""
    rows, sizes, at = list[int](), list[float](), 0
    for block in programme.blocks:
        after = at + block.values.numel()
        if not block.hard:
            rows += range(at, after)
            sizes += [limit.size for limit in block.limits] * block.values.shape[1]
        at = after
    return ca.DM.triplet(rows, [*range(len(rows))], sizes, at, len(rows))


def _relaxed(programme: Transcription, every: Expression, missing: Any) -> dict[str, Any]:
    """First and second derivatives where constraints may be missed, `every` being all variables."""
    none, count = ca.MX(0, 1), missing.shape[1]
    weight, multipliers = ca.MX.sym("weight"), ca.MX.sym("multipliers", missing.shape[0])
    g, slopes = programme.jacobian()(programme.column, none)
    slack = every[-2 * count :]
    g += missing @ (slack[count:] - slack[:count])
    bend = programme.hessian()(programme.column, none, 0.0, multipliers)
    return {
        "jac_g": ca.Function("jacobian", [every, none], [g, ca.horzcat(slopes, -missing, missing)]),
        "hess_lag": ca.Function(
            "hessian",
            [every, none, weight, multipliers],
            [ca.diagcat(bend, ca.MX(2 * count, 2 * count))],
        ),
    }


def _reported(blocks: list[Block], missed: Array) -> list[Violation]:
    """The largest miss of each constraint, the worst first."""
    found, at = [], 0
    for block in blocks:
        rows, columns = block.values.shape
        part = missed[at : at + rows * columns].reshape(columns, rows).T
        at += rows * columns
        for row, limit in zip(part, block.limits, strict=True):
            worst = int(row.argmax())
            if row[worst] > _MET:
                fraction = None if block.at is None else float(block.at[worst])
                amount = float(row[worst]) * limit.size
                found.append(
                    (row[worst], Violation(limit.name, limit.unit, amount, block.phase, fraction))
                )
    return [violation for _, violation in sorted(found, key=lambda pair: -pair[0])]


def _ipopt(
    nlp: dict[str, Any],
    start: dict[str, Any],
    options: dict[str, Any],
    tell: Tell | None,
    sought: str = "optimum",
) -> tuple[Any, Any]:
    told = None if tell is None else _Told(tell, sought, nlp, start)
    if told is not None:
        options = options | {"iteration_callback": told}
    solver = ca.nlpsol("trajectory", "ipopt", nlp, _OPTIONS | options)
    found = solver(**start)
    return found, solver.stats()
