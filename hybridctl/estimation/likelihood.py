r"""Noise levels by maximum likelihood on records.

.. math:: \max_\theta \sum_r \sum_k \log p(z_{r,k} \mid z_{r,1..k-1};\, \theta), \qquad
          \theta = (\text{levels}) > 0,

with the innovations of a filter. The search is in the logarithms of the levels, by quadratics
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
from hybridctl.estimation.likelihood_quadratic import maximize
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult

_FIRST_STEP = 1.0
"""First step of a search, of the logarithm of a level."""


class FilterRuns(Protocol):
    """A filter that runs on records."""

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Return the result on a record.

        Args:
            record: The record.
            initial: The initial estimate.
        """
        ...


MakeFilter = Callable[[Array], FilterRuns]
"""Function of levels (k,) that returns a filter with these."""


class RecordScore(NamedTuple):
    """The log-likelihood of one record.

    Attributes:
        log_likelihood: The log-likelihood; -inf if the record could not be filtered.
        accepted: Number of values that the gate accepted.
        rejected: Number of values that it rejected.
        lost: Number of rejected values that the filter believed instead of the estimate.
    """

    log_likelihood: float
    accepted: int = 0
    rejected: int = 0
    lost: int = 0

    @classmethod
    def of(cls, result: FilterResult, record: Record) -> RecordScore:
        """Return the score of a filter's result on a record.

        Args:
            result: The result. If its numbers are not finite, the log-likelihood is -inf.
            record: The record.
        """
        total = float(log_likelihoods(result, record).sum())
        return cls(
            total if np.isfinite(total) else -np.inf,
            sum(i.accepted for i in result.innovations),
            len(result.rejected),
            sum(step.reopened for step in result.steps),
        )


@dataclass(frozen=True, eq=False)
class NoiseFit:
    """The most likely noise levels.

    Attributes:
        levels: The levels (k,).
        log_likelihood: Their log-likelihood.
        evaluations: Number of evaluations of the log-likelihood.
        converged: Whether the search has converged.
        standard_errors: Standard errors (k,) of the LOGARITHMS of the levels: with 95 % a level is
            known to within a factor of exp(2 e) either way. NaN for a level at its bound, and for
            one on which the log-likelihood does not depend; those of the others are then with this
            level held constant. NaN for all if the log-likelihood is not curved downwards in all
            directions.
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
    """Return the noise levels that make the records most likely.

    Args:
        make_filter: Returns the filter with levels (k,), whatever they multiply in it; picklable if
            the executor has other processes.
        records: The records.
        initials: One initial estimate for each record, or one for all.
        start: First levels (k,), above zero.
        bounds: Smallest and largest levels (k, 2); None for a factor of 1e4 either way.
        tolerance: Tolerance of the levels, in their standard errors.
        max_evaluations: Largest number of evaluations of the log-likelihood.
        executor: Any of `concurrent.futures`, for the records; the result does not depend on it.
        progress: Called with the levels and their log-likelihood.

    Raises:
        InputError: An argument does not fit.
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
        found = np.array(list(mapped(partial(_score_record, make_filter, levels), records, starts)))
        if progress is not None:
            progress(levels, float(found.sum()))
        return found

    found = maximize(
        totals, np.log(first), np.log(limits), np.full(len(first), _FIRST_STEP),
        tolerance=tolerance, max_evaluations=max_evaluations,
    )  # fmt: skip
    return NoiseFit(
        np.exp(found.top.values),
        float(found.log_likelihoods.sum()),
        found.evaluations,
        found.converged,
        found.top.standard_errors,
    )


def _score_record(
    make_filter: MakeFilter, levels: Array, record: Record, initial: Estimate
) -> float:
    """Return the log-likelihood of a record, -inf if the filter cannot go on."""
    try:
        return RecordScore.of(make_filter(levels).run(record, initial), record).log_likelihood
    except (SimulationError, np.linalg.LinAlgError):
        return -np.inf


def log_likelihoods(result: FilterResult, record: Record) -> Array:
    """Return the log-likelihood (n,) of each value of a record.

    A value that the gate rejected counts as an outlier: as improbable as that the gate rejects a
    right value, and uniform over the range of its channel. That does not depend on the levels.
    Otherwise those levels would win that are small enough to reject many values.

    Args:
        result: Result of a filter on the record.
        record: The record.
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
    """Return the mean of the logarithms of the ranges of columns that vary; zero if none does.

    Args:
        values: Values (n, m). Rows with NaN are left out.
    """
    known = values[np.isfinite(values).all(axis=1)]
    ranges = np.ptp(known, axis=0) if len(known) else np.zeros(0)
    varying = ranges[ranges > 0.0]
    return float(np.log(varying).mean()) if len(varying) else 0.0
