r"""Noise levels by maximum likelihood on records, and how they do on others.

.. math:: \max_\theta \sum_r \sum_k \log p(z_{r,k} \mid z_{r,1..k-1};\, \theta), \qquad
          \theta = (\text{levels}) > 0,

with the innovations of a filter. The levels are searched on a logarithmic scale by the simplex
method of Nelder and Mead: events that move from one sample to another make the sum uneven on a
small scale, and a handful of levels needs no derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from hybridctl.checks import Array, array, count, number, vector
from hybridctl.errors import InputError, SimulationError
from hybridctl.estimation.consistency import Consistency, band
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult

_FIRST = np.log(2.0)  # of the simplex


class Runs(Protocol):
    """What the likelihood needs of a filter."""

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Filter a record."""
        ...


MakeFilter = Callable[[Array], Runs]


class Score(NamedTuple):
    """One record: log-likelihood, NIS and dimension of each accepted value, how many were not.

    A value that the gate rejected counts in the log-likelihood as if it were at its limit;
    otherwise levels would win that reject much.
    """

    log_likelihood: float
    nis: tuple[float, ...]
    dimensions: tuple[int, ...]
    rejected: int


@dataclass(frozen=True, eq=False)
class Judgement:
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
        """Their sum."""
        return float(self.log_likelihoods.sum())


@dataclass(frozen=True, eq=False)
class NoiseFit:
    """The most likely levels (k,), their log-likelihood, and how the search went."""

    levels: Array
    log_likelihood: float
    evaluations: int
    converged: bool


def fit_noise(
    make_filter: MakeFilter,
    records: Sequence[Record],
    initials: Sequence[Estimate],
    start: ArrayLike,
    *,
    bounds: ArrayLike | None = None,
    tolerance: float = 1e-2,
    max_evaluations: int = 400,
    executor: Executor | None = None,
    progress: Callable[[Array, float], None] | None = None,
) -> NoiseFit:
    """Noise levels that make the records most likely.

    make_filter: the filter with levels (k,), whatever they multiply in it; picklable where the
    executor has other processes. initials: one estimate for each record, or one for all. start
    (k,): first levels. bounds (k, 2): least and largest ones, by default a factor of 1e4 either
    way. tolerance: of the logarithms of the levels, and ten times that of the log-likelihood.
    executor: any of `concurrent.futures`, for the records; the result does not depend on it.
    progress: called with the levels and their log-likelihood. Raises `InputError`.
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

    def cost(logarithms: Array) -> float:
        levels = np.exp(logarithms)
        total = judge(make_filter, levels, records, initials, executor=executor).log_likelihood
        if progress is not None:
            progress(levels, total)
        return -total

    begin, ends = np.log(first), np.log(limits)
    simplex = np.vstack([begin, begin + _FIRST * np.eye(len(first))])
    outside = simplex > ends[:, 1]
    simplex[outside] -= 2.0 * _FIRST
    found = minimize(
        cost,
        begin,
        method="Nelder-Mead",
        bounds=ends,
        options={
            "initial_simplex": np.clip(simplex, ends[:, 0], ends[:, 1]),
            "xatol": tolerance,
            "fatol": 10.0 * tolerance,
            "maxfev": max_evaluations,
        },
    )
    return NoiseFit(np.exp(found.x), -float(found.fun), int(found.nfev), bool(found.success))


def judge(
    make_filter: MakeFilter,
    levels: ArrayLike,
    records: Sequence[Record],
    initials: Sequence[Estimate],
    *,
    level: float = 0.99,
    executor: Executor | None = None,
) -> Judgement:
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
    return Judgement(
        np.array([score.log_likelihood for score in scores]),
        band(squares, sizes, level=level) if squares else None,
        sum(score.rejected for score in scores),
        sum(not np.isfinite(score.log_likelihood) for score in scores),
    )


def _score(make_filter: MakeFilter, levels: Array, record: Record, initial: Estimate) -> Score:
    try:
        result = make_filter(levels).run(record, initial)
    except (SimulationError, np.linalg.LinAlgError):
        return Score(-np.inf, (), (), 0)
    total = 0.0
    for i in result.innovations:
        total += i.log_likelihood if i.accepted else i.log_likelihood + 0.5 * (i.nis - i.limit)
    taken = [i for i in result.innovations if i.accepted]
    return Score(
        float(total) if np.isfinite(total) else -np.inf,
        tuple(i.nis for i in taken),
        tuple(i.dimension for i in taken),
        len(result.rejected),
    )
