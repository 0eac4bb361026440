r"""Parameters of a model by maximum likelihood of its filter's innovations on several records.

.. math:: \hat p = \arg\max_{l \le p \le u} L(p), \qquad L = \sum_r L_r,

with :math:`L_r` the log-likelihood of a record. The search (`likelihood_quadratic`) needs values
only: events and the gate make L uneven, so its gradient does not lead to the maximum. Every
evaluation is kept, so a search that was stopped goes on where it was.

Standard errors are those of the curvature, which are right if the model is. With many records and a
model that is not quite right, those of the sandwich say how much the result would change with other
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
from hybridctl.estimation.initial_estimate import build_kalman_filter, first_estimate
from hybridctl.estimation.likelihood import RecordScore
from hybridctl.estimation.likelihood_quadratic import Maximum, maximize
from hybridctl.estimation.record import Record

MakeModel = Callable[[Array], FilterModel]
"""Function of parameters (np,) that returns the model with these."""
LEVEL = 0.95
"""Confidence of the range of a profile."""
MIN_SANDWICH_RECORDS = 10
"""Number of records from which on there are errors by the sandwich. A choice."""
_RECORD_GROUPS = 8
"""Groups of records that an executor gets, each with models of its own. A choice."""
_FIRST_STEP = 0.125
"""First step of a search, relative to the distance of the bounds."""


@dataclass(frozen=True, eq=False)
class LikelihoodPoint:
    """The log-likelihoods of all records at one value of the parameters.

    Attributes:
        values: The parameters (np,).
        log_likelihoods: Log-likelihoods (n,) of the records.
        accepted: Number of values that the gate accepted.
        rejected: Number of values that it rejected.
        failed: Number of records that could not be filtered. They count as the worst of the others.
        lost: Number of times that the filter lost the motion.
    """

    values: Array
    log_likelihoods: Array
    accepted: int
    rejected: int
    failed: int
    lost: int

    @property
    def log_likelihood(self) -> float:
        """Sum of the log-likelihoods of all records."""
        return float(self.log_likelihoods.sum())

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes for JSON."""
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LikelihoodPoint:
        """Return the point of which `as_dict` returned the attributes.

        Args:
            content: The attributes.
        """
        arrays: Any = {k: np.array(v) if isinstance(v, list) else v for k, v in content.items()}
        return cls(**arrays)


@dataclass(frozen=True)
class Parameter:
    """The most likely value of a parameter.

    Attributes:
        name: Name of the parameter.
        value: Its value.
        standard_error: Standard error by the curvature; None at a bound, and if the likelihood does
            not depend on the parameter.
        robust_error: Standard error by the sandwich; None for fewer than ten records.
        at_bound: Whether the value is at a bound.
    """

    name: str
    value: float
    standard_error: float | None
    robust_error: float | None
    at_bound: bool


@dataclass(frozen=True, eq=False)
class Identification:
    """The most likely parameters with their errors.

    Attributes:
        parameters: The parameters.
        best: The log-likelihoods there.
        correlation: Correlations (np, np) of the errors; NaN for parameters without an error.
        evaluations: Number of evaluations.
        converged: Whether the search has converged.
        held_out: Log-likelihoods of records that were not fitted, or None.
    """

    parameters: tuple[Parameter, ...]
    best: LikelihoodPoint
    correlation: Array
    evaluations: int
    converged: bool
    held_out: LikelihoodPoint | None = None

    @property
    def values(self) -> Array:
        """Values (np,) of the parameters."""
        return self.best.values


@dataclass(frozen=True)
class Profile:
    """The profile of the log-likelihood over one parameter.

    Attributes:
        name: Name of the parameter.
        values: Values (n,) of the parameter, increasing.
        log_likelihoods: L_i (n,) there.
        low: Lower end of the range of 95 %; None if the log-likelihood does not fall far enough
            before the last value.
        high: Upper end of that range, or None.
    """

    name: str
    values: tuple[float, ...]
    log_likelihoods: tuple[float, ...]
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class Problem:
    """Parameters of a model, and the records that identify them.

    Attributes:
        make: Returns the model at parameters (np,); picklable if the executor has other processes.
        names: Names of the parameters.
        bounds: Lower and upper bounds (np, 2).
        records: The records.
        settings: Settings of the filter.
        executor: Any of `concurrent.futures`, for groups of records; None for none.
        known: Evaluations that are not repeated, by their parameters. New ones are added.
        told: Function that is called with each new evaluation, or None.

    Raises:
        InputError: Names, bounds or records do not fit.
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
        """Return the log-likelihoods of all records at parameters.

        Args:
            values: The parameters (np,).

        Raises:
            InputError: The model does not accept the parameters, or a record does not fit it.
            SimulationError: No record could be filtered.
        """
        key = tuple(values.tolist())
        if key not in self.known:
            one = partial(_score_records, self.make, values, self.settings)
            if self.executor is None:
                found = one(self.records)
            else:
                groups = [
                    self.records[k::_RECORD_GROUPS]
                    for k in range(min(_RECORD_GROUPS, len(self.records)))
                ]
                parts = list(self.executor.map(one, groups))
                found = [
                    parts[k % _RECORD_GROUPS][k // _RECORD_GROUPS] for k in range(len(self.records))
                ]
            self.known[key] = _build_point(values, found)
            if self.told is not None:
                self.told(self.known[key])
        return self.known[key]


def _score_records(
    make: MakeModel, values: Array, settings: FilterSettings, records: Sequence[Record]
) -> list[RecordScore]:
    """Return the scores of records at parameters (np,); -inf if a filter cannot go on."""
    model, found = make(values), []
    for record in records:
        try:
            start, rest = first_estimate(model, settings, record)
            found.append(
                RecordScore.of(build_kalman_filter(model, settings).run(rest, start), rest)
            )
        except (SimulationError, ConstraintViolatedError, np.linalg.LinAlgError):
            found.append(RecordScore(-np.inf))
    return found


def _build_point(values: Array, scores: Sequence[RecordScore]) -> LikelihoodPoint:
    """Return the point of the scores of all records.

    Args:
        values: The parameters (np,).
        scores: The scores.

    Raises:
        SimulationError: No record could be filtered.
    """
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
    """Return the parameters under which the records of a problem are most likely.

    Args:
        problem: Parameters, model and records.
        start: First parameters (np,), within the bounds.
        held_out: Records that are not fitted, of which the log-likelihood judges the result.
        max_evaluations: Largest number of evaluations.
        tolerance: Tolerance of the parameters, in their standard errors.
        progress: True prints the share of `max_evaluations` that is done on standard error; a
            function is called with it, from 0 to 1. The search may end early.

    Raises:
        InputError: An argument does not fit. Errors of the model at `start` are raised as they are.
        SimulationError: No record could be filtered at `start`, or none of `held_out` at the end.
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

    found = maximize(
        log_likelihoods,
        first,
        problem.bounds,
        _FIRST_STEP * (high - low),
        tolerance=tolerance,
        max_evaluations=max_evaluations,
    )
    best, judged = problem.evaluate(found.top.values), None
    if len(check_sequence("held_out", held_out)):
        others = replace(problem, records=tuple(held_out), known={}, told=None)
        judged = others.evaluate(best.values)
    parameters, correlation = _build_parameters(problem, found), found.top.correlation
    return Identification(parameters, best, correlation, found.evaluations, found.converged, judged)


def _log_likelihoods(problem: Problem, values: Array) -> Array:
    """Return the log-likelihoods (n,) at parameters of a search, by which it goes on.

    They are -inf where the model does not accept the parameters, and where no record could be
    filtered with them: both are left, not an error of the whole search.
    """
    try:
        return problem.evaluate(values).log_likelihoods
    except (InputError, SimulationError):
        return np.full(len(problem.records), -np.inf)


def _build_parameters(problem: Problem, found: Maximum) -> tuple[Parameter, ...]:
    """Return every parameter with its errors."""
    top, many = found.top, len(found.log_likelihoods) >= MIN_SANDWICH_RECORDS
    robust = top.record_errors if many else np.full(len(top.values), np.nan)
    columns = top.values, top.standard_errors, robust, found.at_bound
    return tuple(
        Parameter(name, float(v), _finite_or_none(e), _finite_or_none(r), bool(b))
        for name, v, e, r, b in zip(problem.names, *columns, strict=True)
    )


def _finite_or_none(value: float) -> float | None:
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
    """Return the profile of the log-likelihood over one parameter.

    Args:
        problem: Parameters, model and records.
        found: The most likely parameters.
        name: Name of the parameter.
        deviations: Values at which the others are made most likely, in standard errors from the
            most likely value, inside the bounds; for a parameter without a standard error, in
            tenths of the distance of the bounds.
        max_evaluations: Largest number of evaluations for each value, at least 1.
        tolerance: Tolerance of the other parameters, in their standard errors.

    Returns:
        The profile. Ends of its range are interpolated between the values, linearly in the root of
        the fall of L, which is a straight line where L is a parabola.

    Raises:
        UnknownNameError: There is no such parameter.
        InputError: The model does not accept one of the values.
        SimulationError: No record could be filtered at one of the values.
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
            values = _maximize_others(problem, values, k, max_evaluations, tolerance)
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


def _maximize_others(problem: Problem, values: Array, k: int, most: int, tolerance: float) -> Array:
    """Return the parameters with all but one of them most likely.

    Args:
        problem: Parameters, model and records.
        values: First parameters (np,).
        k: Index of the parameter that stays.
        most: Largest number of evaluations.
        tolerance: Tolerance of the others, in their standard errors.
    """
    if len(values) == 1:
        return values
    bounds = np.delete(problem.bounds, k, axis=0)

    def whole(others: Array) -> Array:
        return np.insert(others, k, values[k])

    found = maximize(
        lambda others: _log_likelihoods(problem, whole(others)),
        np.delete(values, k),
        bounds,
        _FIRST_STEP * np.ptp(bounds, axis=1),
        tolerance=tolerance,
        max_evaluations=most,
    )
    return whole(found.top.values)
