"""The programme solved by IPOPT, and what keeps an infeasible one from a solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import casadi as ca
import numpy as np

from hybridctl.checks import Array
from hybridctl.control.trajectory.task import Expression
from hybridctl.control.trajectory.transcription import Block, Transcription
from hybridctl.errors import InfeasibleReferenceError, SimulationError

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
_MET = 1e-5  # of the size below: what is not met by more than this is reported


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


def solve(
    programme: Transcription,
    begin: Array,
    max_iterations: int,
    tell: Tell | None = None,
    *,
    near: bool = False,
) -> Optimum:
    """A local optimum near variables (n,), next to one where `near`. tell: after each iteration.

    Raises `InfeasibleReferenceError` where there is none, with the constraints that cannot be met
    near the guess, and `SimulationError` where the search ends for another reason.
    """
    begun = perf_counter()
    low, high = programme.box()
    least, greatest = programme.bounds()
    found, stats = _ipopt(
        {"x": programme.column, "f": programme.cost, "g": programme.constraints},
        {"x0": begin, "lbx": low, "ubx": high, "lbg": least, "ubg": greatest},
        {
            "jac_g": programme.jacobian(),
            "hess_lag": programme.hessian(),
            "ipopt.max_iter": max_iterations,
            **(_NEAR if near else {}),
        },
        tell,
    )
    if stats["return_status"] not in _SOLVED:
        missed = violations(programme, begin, max_iterations, tell)
        if missed:
            raise InfeasibleReferenceError(
                "the task cannot be done near this guess: " + "; ".join(map(str, missed[:8]))
            )
        raise SimulationError(
            f"the search ended without an optimum ({stats['return_status']}) after "
            f"{stats['iter_count']} iterations, though the task can be done: begin elsewhere, or "
            f"raise max_iterations = {max_iterations}"
        )
    values = np.array(found["x"]).ravel()
    return Optimum(values, float(found["f"]), stats["iter_count"], perf_counter() - begun)


def violations(
    programme: Transcription, begin: Array, max_iterations: int, tell: Tell | None = None
) -> list[Violation]:
    """The constraints that cannot be met, by the least sum of violations of a relaxed programme.

    All but the discretisation may be violated there. Violations are compared by the sizes 100 N,
    0.1 m, 1 m/s, 1 rad and so on; the largest come first.
    Raises `SimulationError` where not even the dynamics can be met.
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
        raise SimulationError(
            f"no motion was found that obeys the dynamics ({stats['return_status']}): begin "
            "elsewhere"
        )
    used = np.array(found["x"]).ravel()[len(begin) :]
    return _reported(soft, used[:count] + used[count:])


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
