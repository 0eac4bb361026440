r"""Parameters of a model by maximum likelihood of its filter's innovations on several records.

.. math:: \hat p = \arg\max_{l \le p \le u} L(p), \qquad L = \sum_r L_r,

with :math:`L_r` the log-likelihood of a record. The search is that of `likelihood_quadratic`, which
needs values alone: events and the gate make L uneven, which says nothing of where its top is. Every
evaluation is kept, so that a search that was stopped goes on where it was.

Standard errors are those of the curvature, right where the model is. Where records are many and
the model is not quite right, those of the sandwich say how much the result would change with other
records. A parameter that is poorly determined has a profile

.. math:: L_i(v) = \max_{p : p_i = v} L(p), \qquad
    \{ v : 2 (L(\hat p) - L_i(v)) \le \chi^2_{1, 0.95} \},

the latter a range with 95 % confidence, whatever the shape of L.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2

from hybridctl.base.checks import (
    Array,
    check_array,
    check_count,
    check_member,
    check_number,
    check_sequence,
    check_vector,
)
from hybridctl.base.errors import ConstraintViolatedError, InputError, SimulationError
from hybridctl.base.progress import Progress, WorkCount, report_share
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.filters import first_estimate, kalman
from hybridctl.estimation.likelihood import RecordScore
from hybridctl.estimation.likelihood_quadratic import Maximum, maximise
from hybridctl.estimation.record import Record

MakeModel = Callable[[Array], FilterModel]
LEVEL = 0.95  # of the range of a profile
FEWEST = 10  # records, from which on the sandwich says something
_GROUPS = 8  # of records, each with models of its own, that an executor gets
_STEP = 0.125  # of the distance of the bounds: the first steps of a search


@dataclass(frozen=True, eq=False)
class LikelihoodPoint:
    """The log-likelihoods (n,) of all records at parameters (np,).

    failed: records that could not be filtered, which count as the worst of the others. lost: how
    often the filter lost the motion.
    """

    values: Array
    log_likelihoods: Array
    accepted: int
    rejected: int
    failed: int
    lost: int

    @property
    def log_likelihood(self) -> float:
        """The sum of the log-likelihoods of all records."""
        return float(self.log_likelihoods.sum())

    def as_dict(self) -> dict[str, Any]:
        """The result for JSON."""
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LikelihoodPoint:
        """The result that `as_dict` gave as a table."""
        arrays: Any = {k: np.array(v) if isinstance(v, list) else v for k, v in content.items()}
        return cls(**arrays)


@dataclass(frozen=True)
class Parameter:
    """What was found of a parameter.

    standard_error: by the curvature; None at a bound, and where nothing depends on it.
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
    """The profile L_i (n,) at values (n,) of a parameter, and the range [low, high] of 95 %.

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

    make: picklable where the executor has other processes. settings: of the filter.
    known: evaluations that need not be repeated, by their values. told: called with each new one.
    """

    make: MakeModel
    names: tuple[str, ...]
    bounds: Array
    records: tuple[Record, ...]
    settings: FilterSettings
    executor: Executor | None = None
    known: dict[tuple[float, ...], LikelihoodPoint] = field(default_factory=dict)
    told: Callable[[LikelihoodPoint], None] | None = None

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise InputError(f"names must be one or more different parameters, got {self.names}")
        limits = check_array("bounds", self.bounds, (len(self.names), 2))
        if not (limits[:, 0] < limits[:, 1]).all():
            raise InputError(f"bounds must have a lower one below an upper, got {limits.tolist()}")
        if not self.records:
            raise InputError("records must have at least one, got none")
        object.__setattr__(self, "bounds", limits)

    def evaluate(self, values: Array) -> LikelihoodPoint:
        """All records at parameters (np,)."""
        key = tuple(values.tolist())
        if key not in self.known:
            one = partial(_scores, self.make, values, self.settings)
            if self.executor is None:
                found = one(self.records)
            else:
                groups = [self.records[k::_GROUPS] for k in range(min(_GROUPS, len(self.records)))]
                parts = list(self.executor.map(one, groups))
                found = [parts[k % _GROUPS][k // _GROUPS] for k in range(len(self.records))]
            self.known[key] = _point(values, found)
            if self.told is not None:
                self.told(self.known[key])
        return self.known[key]


def _scores(
    make: MakeModel, values: Array, settings: FilterSettings, records: Sequence[Record]
) -> list[RecordScore]:
    """Records at parameters (np,); -inf where a filter cannot go on."""
    model, found = make(values), []
    for record in records:
        try:
            start, rest = first_estimate(model, settings, record)
            found.append(RecordScore.of(kalman(model, settings).run(rest, start), rest))
        except (SimulationError, ConstraintViolatedError, np.linalg.LinAlgError):
            found.append(RecordScore(-np.inf))
    return found


def _point(values: Array, scores: Sequence[RecordScore]) -> LikelihoodPoint:
    each = np.array([score.log_likelihood for score in scores])
    done = np.isfinite(each)
    if not done.any():
        raise SimulationError(f"no record could be filtered at parameters {values.tolist()}")
    return LikelihoodPoint(
        values,
        np.where(done, each, each[done].min()),
        sum(score.accepted for score in scores),
        sum(score.rejected for score in scores),
        int((~done).sum()),
        sum(score.lost for score in scores),
    )


def identify(
    problem: Problem,
    start: ArrayLike,
    *,
    held_out: Sequence[Record] = (),
    max_evaluations: int = 100,
    tolerance: float = 0.05,
    progress: Progress = None,
) -> Identification:
    """The parameters under which the records of a problem are most likely.

    start (np,): within the bounds. held_out: records to judge the result by. tolerance: of the
    parameters, in their standard errors. progress: True prints the share of `max_evaluations` that
    is done on standard error; a function is called with it, from 0 to 1. The search may end early.

    Raises `InputError`, and `SimulationError` where no
    record can be filtered.
    """
    first = check_vector("start", start, len(problem.names))
    low, high = problem.bounds.T
    if not ((low <= first) & (first <= high)).all():
        raise InputError(
            f"start must lie within the bounds {problem.bounds.tolist()}, got {first.tolist()}"
        )
    check_number("tolerance", tolerance, above=0.0)
    check_count("max_evaluations", max_evaluations)
    work = WorkCount(max_evaluations, report_share(progress, "identify"))
    problem.evaluate(first)  # raises what its model raises

    def log_likelihoods(values: Array) -> Array:
        found = _log_likelihoods(problem, values)
        work.end_piece()
        return found

    found = maximise(
        log_likelihoods,
        first,
        problem.bounds,
        _STEP * (high - low),
        tolerance=tolerance,
        max_evaluations=max_evaluations,
    )
    best, judged = problem.evaluate(found.top.values), None
    if len(check_sequence("held_out", held_out)):
        others = replace(problem, records=tuple(held_out), known={}, told=None)
        judged = others.evaluate(best.values)
    parameters, correlation = _parameters(problem, found), found.top.correlation
    return Identification(parameters, best, correlation, found.evaluations, found.converged, judged)


def _log_likelihoods(problem: Problem, values: Array) -> Array:
    """The log-likelihoods of the records (n,), -inf at values that the model does not take."""
    try:
        return problem.evaluate(values).log_likelihoods
    except InputError:
        return np.full(len(problem.records), -np.inf)


def _parameters(problem: Problem, found: Maximum) -> tuple[Parameter, ...]:
    """Every parameter with its errors."""
    top, many = found.top, len(found.log_likelihoods) >= FEWEST
    robust = top.record_errors if many else np.full(len(top.values), np.nan)
    columns = top.values, top.standard_errors, robust, found.at_bound
    return tuple(
        Parameter(name, float(v), _known(e), _known(r), bool(b))
        for name, v, e, r, b in zip(problem.names, *columns, strict=True)
    )


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def profile(
    problem: Problem,
    found: Identification,
    name: str,
    *,
    deviations: Sequence[float] = (-3.0, -2.0, -1.0, 1.0, 2.0, 3.0),
    max_evaluations: int = 20,
    tolerance: float = 0.1,
) -> Profile:
    """The profile of the log-likelihood over one parameter, with the others most likely at each.

    deviations: where, in standard errors from what was found, inside the bounds; in tenths of the
    range of the bounds for a parameter without a standard error.
    """
    k = problem.names.index(check_member("parameter", name, problem.names))
    low, high = problem.bounds[k].tolist()
    here = float(found.values[k])
    unit = found.parameters[k].standard_error or 0.1 * (high - low)
    points = {here: found.best.log_likelihood}
    for sign in (-1.0, 1.0):
        values = found.values
        for d in sorted(sign * d for d in deviations if sign * d > 0.0):
            values = values.copy()
            values[k] = np.clip(here + sign * d * unit, low, high)
            values = _with_others(problem, values, k, max_evaluations, tolerance)
            points[float(values[k])] = problem.evaluate(values).log_likelihood
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


def _with_others(problem: Problem, values: Array, k: int, most: int, tolerance: float) -> Array:
    """The values (np,) with all but the k-th most likely."""
    if len(values) == 1:
        return values
    bounds = np.delete(problem.bounds, k, axis=0)

    def whole(others: Array) -> Array:
        return np.insert(others, k, values[k])

    found = maximise(
        lambda others: _log_likelihoods(problem, whole(others)),
        np.delete(values, k),
        bounds,
        _STEP * np.ptp(bounds, axis=1),
        tolerance=tolerance,
        max_evaluations=most,
    )
    return whole(found.top.values)
