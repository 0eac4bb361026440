r"""Noise levels by maximum likelihood on records.

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

from hybridctl.base.checks import Array, check_array, check_count, check_number, check_vector
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.estimation.estimate import Estimate
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

    accepted, rejected: how many values passed the gate, and how many did not. lost: how often the
    filter believed what it had rejected.
    """

    log_likelihood: float
    accepted: int = 0
    rejected: int = 0
    lost: int = 0

    @classmethod
    def of(cls, result: FilterResult, record: Record) -> RecordScore:
        """The score of a filter's result on a record; -inf where its numbers are not finite."""
        total = float(log_likelihoods(result, record).sum())
        return cls(
            total if np.isfinite(total) else -np.inf,
            sum(i.accepted for i in result.innovations),
            len(result.rejected),
            sum(step.reopened for step in result.steps),
        )


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
    first = check_vector("start", start)
    if not first.size or (first <= 0.0).any():
        raise InputError(f"start must have positive levels, got {first.tolist()}")
    limits = np.outer(first, [1e-4, 1e4]) if bounds is None else bounds
    limits = check_array("bounds", limits, (len(first), 2))
    if (limits[:, 0] <= 0.0).any() or not ((limits[:, 0] <= first) & (first <= limits[:, 1])).all():
        raise InputError(
            f"bounds must be positive and hold start {first.tolist()}, got {limits.tolist()}"
        )
    if not len(records) or len(initials) not in (1, len(records)):
        raise InputError(
            f"records must have one entry at least, and initials one for each or one for all, got "
            f"{len(records)} and {len(initials)}"
        )
    check_number("tolerance", tolerance, above=0.0)
    check_count("max_evaluations", max_evaluations)
    starts = list(initials) * (len(records) if len(initials) == 1 else 1)
    mapped = map if executor is None else executor.map

    def totals(logarithms: Array) -> Array:
        levels = np.exp(logarithms)
        found = np.array(list(mapped(partial(_total, make_filter, levels), records, starts)))
        if progress is not None:
            progress(levels, float(found.sum()))
        return found

    found = maximise(
        totals, np.log(first), np.log(limits), np.full(len(first), _STEP),
        tolerance=tolerance, max_evaluations=max_evaluations,
    )  # fmt: skip
    return NoiseFit(
        np.exp(found.top.values),
        float(found.log_likelihoods.sum()),
        found.evaluations,
        found.converged,
        found.top.standard_errors,
    )


def _total(make_filter: MakeFilter, levels: Array, record: Record, initial: Estimate) -> float:
    """The log-likelihood of a record, -inf where a filter cannot go on."""
    try:
        return RecordScore.of(make_filter(levels).run(record, initial), record).log_likelihood
    except (SimulationError, np.linalg.LinAlgError):
        return -np.inf


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
