r"""Parameters of a model by maximum likelihood of its filter's innovations on several records.

.. math:: \hat p = \arg\max_{l \le p \le u} L(p), \qquad L = \sum_r L_r,

with :math:`L_r`, its gradient and its information :math:`F_r` from `scores`. The search is that of
L-BFGS-B with every parameter in units of :math:`F_{ii}^{-1/2}` at the start, and ends where a
Newton step :math:`F^{-1} \nabla L` is short in standard errors. Every evaluation is kept, so that a
search that was stopped goes on where it was.

Standard errors are those of :math:`F^{-1}`, right where the model is. Where records are many and
the model is not quite right, those of the sandwich
:math:`F^{-1} \left( \sum_r \nabla L_r \nabla L_r^T \right) F^{-1}` say how much the result would
change with other records (White, *Maximum likelihood estimation of misspecified models*,
Econometrica 50, 1982). A parameter that is poorly determined has a profile

.. math:: L_i(v) = \max_{p : p_i = v} L(p), \qquad
    \{ v : 2 (L(\hat p) - L_i(v)) \le \chi^2_{1, 0.95} \},

the latter a range with 95 % confidence, whatever the shape of L.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.stats import chi2

from hybridctl.checks import Array, array, count, member, number, sequence, vector
from hybridctl.errors import InputError, SimulationError
from hybridctl.estimation.filter_model import FilterSettings
from hybridctl.estimation.record import Record
from hybridctl.estimation.scores import MakeModel, RecordScore, scores

Flags = NDArray[np.bool_]
LEVEL = 0.95  # of the range of a profile
FEWEST = 10  # records, from which on the sandwich says something
_GROUPS = 8  # of records, each with models of its own, that an executor gets
_AT_BOUND = 1e-6  # of the distance of the bounds


@dataclass(frozen=True, eq=False)
class LikelihoodPoint:
    """L, its gradient (np,) and its information (np, np), at parameters (np,), on all records.

    records (n, np): the gradients of the records. failed: records that could not be filtered,
    which count as the worst of the others. lost: how often the filter lost the motion.
    """

    values: Array
    log_likelihood: float
    gradient: Array
    information: Array
    records: Array
    accepted: int
    rejected: int
    failed: int
    lost: int

    def as_dict(self) -> dict[str, Any]:
        """The result for JSON."""
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LikelihoodPoint:
        """What `as_dict` gave."""
        arrays: Any = {k: np.array(v) if isinstance(v, list) else v for k, v in content.items()}
        return cls(**arrays)


@dataclass(frozen=True)
class Parameter:
    """What was found of a parameter.

    standard_error: by the information; None at a bound, and for a direction of no information.
    robust_error: by the sandwich, None for fewer than ten records.
    """

    name: str
    value: float
    standard_error: float | None
    robust_error: float | None
    at_bound: bool


@dataclass(frozen=True, eq=False)
class Identification:
    """The most likely parameters, and what is known of them.

    correlation (np, np): of the errors; nan for parameters without one. held_out: the evaluation
    of records that were not fitted, or None.
    """

    parameters: tuple[Parameter, ...]
    best: LikelihoodPoint
    correlation: Array
    evaluations: int
    converged: bool
    held_out: LikelihoodPoint | None = None

    @property
    def values(self) -> Array:
        """The parameters (np,)."""
        return self.best.values


@dataclass(frozen=True)
class Profile:
    """L_i (n,) at values (n,) of a parameter, and the range [low, high] of 95 % confidence.

    low, high: None where the log-likelihood does not fall far enough before the bound.
    """

    name: str
    values: tuple[float, ...]
    log_likelihoods: tuple[float, ...]
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class Problem:
    """Parameters `names` with bounds (np, 2), of models made at their values, on records.

    make: picklable where the executor has other processes. settings: of the filter, see `scores`.
    known: evaluations that need not be repeated, by their values. told: called with each new one.
    """

    make: MakeModel
    names: tuple[str, ...]
    bounds: Array
    records: tuple[Record, ...]
    settings: FilterSettings
    executor: Executor | None = None
    known: dict[tuple[float, ...], LikelihoodPoint] | None = None
    told: Callable[[LikelihoodPoint], None] | None = None

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise InputError(f"names must be one or more different parameters, got {self.names}")
        limits = array("bounds", self.bounds, (len(self.names), 2))
        if not (limits[:, 0] < limits[:, 1]).all():
            raise InputError(f"bounds must have a lower one below an upper, got {limits.tolist()}")
        if not self.records:
            raise InputError("records must have at least one, got none")
        object.__setattr__(self, "bounds", limits)
        if self.known is None:
            object.__setattr__(self, "known", {})

    def evaluate(self, values: Array) -> LikelihoodPoint:
        """All records at parameters (np,)."""
        assert self.known is not None
        key = tuple(values.tolist())
        if key not in self.known:
            one = partial(scores, self.make, values, self.names, self.settings)
            if self.executor is None:
                found = one(self.records)
            else:
                groups = [self.records[k::_GROUPS] for k in range(min(_GROUPS, len(self.records)))]
                parts = list(self.executor.map(one, groups))
                found = [parts[k % _GROUPS][k // _GROUPS] for k in range(len(self.records))]
            self.known[key] = _summed(values, found)
            if self.told is not None:
                self.told(self.known[key])
        return self.known[key]


def _summed(values: Array, scores: Sequence[RecordScore | None]) -> LikelihoodPoint:
    found = [s for s in scores if s is not None]
    if not found:
        raise SimulationError(f"no record could be filtered at parameters {values.tolist()}")
    failed = len(scores) - len(found)
    likelihoods = [s.log_likelihood for s in found]
    gradients = np.array([s.gradient for s in found])
    return LikelihoodPoint(
        values,
        float(sum(likelihoods) + failed * min(likelihoods)),
        gradients.sum(axis=0),
        np.sum([s.information for s in found], axis=0),
        gradients,
        sum(s.accepted for s in found),
        sum(s.rejected for s in found),
        failed,
        sum(s.lost for s in found),
    )


def identify(
    problem: Problem,
    start: ArrayLike,
    *,
    held_out: Sequence[Record] = (),
    max_evaluations: int = 60,
    tolerance: float = 1e-3,
) -> Identification:
    """The parameters under which the records of a problem are most likely.

    start (np,): within the bounds. held_out: records to judge the result by. tolerance: of the
    parameters, in their standard errors. Raises `InputError`, and `SimulationError` where no
    record can be filtered.
    """
    first = vector("start", start, len(problem.names))
    low, high = problem.bounds.T
    if not ((low <= first) & (first <= high)).all():
        raise InputError(
            f"start must lie within the bounds {problem.bounds.tolist()}, got {first.tolist()}"
        )
    number("tolerance", tolerance, above=0.0)
    count("max_evaluations", max_evaluations)
    best, evaluations, converged = _search(
        problem, first, np.ones(len(first), dtype=bool), max_evaluations, tolerance
    )
    judged = None
    if len(sequence("held_out", held_out)):
        judged = _of(problem, held_out).evaluate(best.values)
    parameters, correlation = _errors(problem, best)
    return Identification(parameters, best, correlation, evaluations, converged, judged)


def _of(problem: Problem, records: Sequence[Record]) -> Problem:
    """The problem on other records."""
    given = problem.make, problem.names, problem.bounds, tuple(records), problem.settings
    return Problem(*given, problem.executor)


def _search(
    problem: Problem, start: Array, free: Flags, most: int, tolerance: float
) -> tuple[LikelihoodPoint, int, bool]:
    """The best evaluation with the free parameters varied; how many there were; whether settled."""
    best = problem.evaluate(start)
    if not free.any() or _settled(problem, best, free, tolerance):
        return best, 1, True
    number_of, settled = 1, False
    unit = 1.0 / np.sqrt(np.maximum(np.diag(best.information)[free], 1e-12))
    limits = (problem.bounds[free] - start[free, None]) / unit[:, None]

    def cost(z: Array) -> tuple[float, Array]:
        nonlocal best, number_of
        values = start.copy()
        values[free] = np.clip(start[free] + z * unit, *problem.bounds[free].T)
        found = problem.evaluate(values)
        number_of += 1
        best = max(best, found, key=lambda one: one.log_likelihood)
        return -found.log_likelihood, -found.gradient[free] * unit

    def stop(z: Array) -> None:
        nonlocal settled
        settled = _settled(problem, best, free, tolerance)
        if settled:
            raise StopIteration

    options = {"maxfun": most, "ftol": 1e-12, "gtol": 1e-9}
    minimize(
        cost, np.zeros(len(unit)), jac=True, method="L-BFGS-B", bounds=limits, callback=stop,
        options=options,
    )  # fmt: skip
    return best, number_of, settled


def _inner(problem: Problem, found: LikelihoodPoint) -> Flags:
    """Which parameters (np,) are not held by a bound that the gradient pulls towards."""
    low, high = problem.bounds.T
    near = _AT_BOUND * (high - low)
    at_low = (found.values <= low + near) & (found.gradient <= 0.0)
    at_high = (found.values >= high - near) & (found.gradient >= 0.0)
    return np.asarray(~(at_low | at_high))


def _settled(problem: Problem, found: LikelihoodPoint, free: Flags, tolerance: float) -> bool:
    """Whether g^T F^-1 g <= tolerance^2 for those that are free."""
    inner = free & _inner(problem, found)
    g, f = found.gradient[inner], found.information[np.ix_(inner, inner)]
    return bool(g @ np.linalg.pinv(f, hermitian=True) @ g <= tolerance**2)


def _errors(problem: Problem, best: LikelihoodPoint) -> tuple[tuple[Parameter, ...], Array]:
    """Every parameter with its errors, and the correlation of these."""
    n = len(best.values)
    inner = np.flatnonzero(_inner(problem, best) & (np.diag(best.information) > 0.0))
    errors, robust = np.full(n, np.nan), np.full(n, np.nan)
    correlation = np.full((n, n), np.nan)
    f = best.information[np.ix_(inner, inner)]
    if len(inner) and np.linalg.eigvalsh(f / np.sqrt(np.outer(f.diagonal(), f.diagonal())))[0] > 0:
        covariance = np.linalg.inv(f)
        errors[inner] = np.sqrt(np.diag(covariance))
        correlation[np.ix_(inner, inner)] = covariance / np.outer(errors[inner], errors[inner])
        if len(best.records) >= FEWEST:
            scores = best.records[:, inner]
            robust[inner] = np.sqrt(np.diag(covariance @ scores.T @ scores @ covariance))
    at_bound = ~_inner(problem, best)
    parameters = tuple(
        Parameter(name, float(v), _known(e), _known(r), bool(b))
        for name, v, e, r, b in zip(
            problem.names, best.values, errors, robust, at_bound, strict=True
        )
    )
    return parameters, correlation


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def profile(
    problem: Problem,
    found: Identification,
    name: str,
    *,
    deviations: Sequence[float] = (-3.0, -2.0, -1.0, 1.0, 2.0, 3.0),
    max_evaluations: int = 20,
    tolerance: float = 1e-2,
) -> Profile:
    """The profile of the log-likelihood over one parameter, with the others most likely at each.

    deviations: where, in standard errors from what was found, inside the bounds; in tenths of the
    range of the bounds for a parameter without a standard error.
    """
    k = problem.names.index(member("parameter", name, problem.names))
    low, high = problem.bounds[k].tolist()
    here = float(found.values[k])
    unit = found.parameters[k].standard_error or 0.1 * (high - low)
    free = np.arange(len(problem.names)) != k
    points = {here: found.best.log_likelihood}
    for sign in (-1.0, 1.0):
        values = found.values
        for d in sorted(sign * d for d in deviations if sign * d > 0.0):
            values = values.copy()
            values[k] = np.clip(here + sign * d * unit, low, high)
            best, _, _ = _search(problem, values, free, max_evaluations, tolerance)
            values = best.values
            points[float(values[k])] = best.log_likelihood
    v = np.array(sorted(points))
    likelihoods = np.array([points[x] for x in v])
    fallen = np.sqrt(2.0 * np.maximum(found.best.log_likelihood - likelihoods, 0.0))
    limit = float(np.sqrt(chi2.ppf(LEVEL, 1)))
    at = int(np.flatnonzero(v == here)[0])
    ends = [
        float(np.interp(limit, fall, side)) if fall.max() >= limit else None
        for fall, side in ((fallen[at::-1], v[at::-1]), (fallen[at:], v[at:]))
    ]
    return Profile(name, tuple(v.tolist()), tuple(likelihoods.tolist()), ends[0], ends[1])
