r"""Noise levels by maximum likelihood on records, and how they do on others.

.. math:: \max_\theta \sum_r \sum_k \log p(z_{r,k} \mid z_{r,1..k-1};\, \theta), \qquad
          \theta = (\text{levels}) > 0,

with the innovations of a filter. What is searched are the logarithms of the levels, by quadratics
through values of the sum, see `likelihood_quadratic`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2

from hybridctl.checks import Array, array, count, number, vector
from hybridctl.errors import InputError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.judgement import Consistency, band
from hybridctl.estimation.likelihood_quadratic import maximise
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult

_STEP = 1.0  # of a logarithm: the first steps of a search


class FilterRuns(Protocol):
    """What the likelihood needs of a filter."""

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Filter a record."""
        ...


MakeFilter = Callable[[Array], FilterRuns]


class RecordScore(NamedTuple):
    """What a filter makes of one record.

    nis, dimensions: of the accepted values. rejected: how many were not. lost: how often the filter
    believed what it had rejected.
    """

    log_likelihood: float
    nis: tuple[float, ...] = ()
    dimensions: tuple[int, ...] = ()
    rejected: int = 0
    lost: int = 0

    @classmethod
    def of(cls, result: FilterResult, record: Record) -> RecordScore:
        """The score of a filter's result on a record; -inf where its numbers are not finite."""
        taken = [i for i in result.innovations if i.accepted]
        total = float(log_likelihoods(result, record).sum())
        return cls(
            total if np.isfinite(total) else -np.inf,
            tuple(i.nis for i in taken),
            tuple(i.dimension for i in taken),
            len(result.rejected),
            sum(step.reopened for step in result.steps),
        )


@dataclass(frozen=True, eq=False)
class FilterEvaluation:
    """What a filter makes of several records: each one's log-likelihood (n,), NIS and its band.

    failed: how many could not be filtered; their log-likelihood is -inf. nis: None if no value was
    accepted.
    """

    log_likelihoods: Array
    nis: Consistency | None
    rejected: int
    failed: int

    @property
    def log_likelihood(self) -> float:
        """The sum of the log-likelihoods of all records."""
        return float(self.log_likelihoods.sum())


@dataclass(frozen=True, eq=False)
class NoiseFit:
    """The most likely levels (k,), their log-likelihood, and how the search went.

    standard_errors (k,): of the LOGARITHMS of the levels; with 95 % a level is known to within a
    factor of exp(2 e) either way. nan for a level at its bound, or on which the log-likelihood does
    not depend; the others' are then with this level held. nan for all where the log-likelihood is
    not curved downwards in all directions.
    """

    levels: Array
    log_likelihood: float
    evaluations: int
    converged: bool
    standard_errors: Array


def fit_noise(
    make_filter: MakeFilter,
    records: Sequence[Record],
    initials: Sequence[Estimate],
    start: ArrayLike,
    *,
    bounds: ArrayLike | None = None,
    tolerance: float = 0.05,
    max_evaluations: int = 400,
    executor: Executor | None = None,
    progress: Callable[[Array, float], None] | None = None,
) -> NoiseFit:
    """Noise levels that make the records most likely.

    make_filter: the filter with levels (k,), whatever they multiply in it; picklable where the
    executor has other processes. initials: one estimate for each record, or one for all. start
    (k,): first levels. bounds (k, 2): least and largest ones, by default a factor of 1e4 either
    way. tolerance: of the levels, in their standard errors. max_evaluations: of the log-likelihood.
    executor: any of `concurrent.futures`, for the records; the result does not depend on it.
    progress: called with the levels and their log-likelihood. Raises `InputError`, and
    `SimulationError` where a record cannot be filtered at the start.
    """
    first = vector("start", start)
    if not first.size or (first <= 0.0).any():
        raise InputError(f"start must have positive levels, got {first.tolist()}")
    limits = np.outer(first, [1e-4, 1e4]) if bounds is None else bounds
    limits = array("bounds", limits, (len(first), 2))
    if (limits[:, 0] <= 0.0).any() or not ((limits[:, 0] <= first) & (first <= limits[:, 1])).all():
        raise InputError(
            f"bounds must be positive and hold start {first.tolist()}, got {limits.tolist()}"
        )
    number("tolerance", tolerance, above=0.0)
    count("max_evaluations", max_evaluations)

    def log_likelihoods(logarithms: Array) -> Array:
        levels = np.exp(logarithms)
        found = evaluate(make_filter, levels, records, initials, executor=executor)
        if progress is not None:
            progress(levels, found.log_likelihood)
        return found.log_likelihoods

    found = maximise(
        log_likelihoods, np.log(first), np.log(limits), np.full(len(first), _STEP),
        tolerance=tolerance, max_evaluations=max_evaluations,
    )  # fmt: skip
    return NoiseFit(
        np.exp(found.top.values),
        float(found.log_likelihoods.sum()),
        found.evaluations,
        found.converged,
        found.top.standard_errors,
    )


def evaluate(
    make_filter: MakeFilter,
    levels: ArrayLike,
    records: Sequence[Record],
    initials: Sequence[Estimate],
    *,
    level: float = 0.99,
    executor: Executor | None = None,
) -> FilterEvaluation:
    """How likely records are, and whether the filter deserves its covariance, at given levels.

    For records that the levels were not fitted to. level: probability of the band of NIS.
    """
    if not len(records) or len(initials) not in (1, len(records)):
        raise InputError(
            f"records must have one entry at least, and initials one for each or one for all, got "
            f"{len(records)} and {len(initials)}"
        )
    starts = list(initials) * (len(records) if len(initials) == 1 else 1)
    work = partial(_score, make_filter, vector("levels", levels))
    mapped = map(work, records, starts) if executor is None else executor.map(work, records, starts)
    scores = list(mapped)
    squares = [v for score in scores for v in score.nis]
    sizes = [d for score in scores for d in score.dimensions]
    return FilterEvaluation(
        np.array([score.log_likelihood for score in scores]),
        band(squares, sizes, level=level) if squares else None,
        sum(score.rejected for score in scores),
        sum(not np.isfinite(score.log_likelihood) for score in scores),
    )


def _score(
    make_filter: MakeFilter, levels: Array, record: Record, initial: Estimate
) -> RecordScore:
    try:
        return RecordScore.of(make_filter(levels).run(record, initial), record)
    except (SimulationError, np.linalg.LinAlgError):
        return RecordScore(-np.inf)


def log_likelihoods(result: FilterResult, record: Record) -> Array:
    """The log-likelihood (n,) of each value of a record that a filter has seen.

    A value that the gate rejected counts as an outlier, as improbable as that the gate rejects a
    right one, that may lie anywhere in the range of its channel. That does not depend on the
    levels: otherwise those would win that are small enough to reject much.
    """
    ranges = {name: log_range(series.values) for name, series in record.channels.items()}
    return np.array(
        [
            i.log_likelihood
            if i.accepted
            else float(chi2.logsf(i.limit, i.dimension)) - i.dimension * ranges[i.channel]
            for i in result.innovations
        ]
    )


def log_range(values: Array) -> float:
    """Mean of the logarithms of the ranges of the columns of values (n, m) that vary; else 0."""
    known = values[np.isfinite(values).all(axis=1)]
    ranges = np.ptp(known, axis=0) if len(known) else np.zeros(0)
    varying = ranges[ranges > 0.0]
    return float(np.log(varying).mean()) if len(varying) else 0.0
