r"""Noise levels by maximum likelihood on records, and how they do on others.

.. math:: \max_\theta \sum_r \sum_k \log p(z_{r,k} \mid z_{r,1..k-1};\, \theta), \qquad
          \theta = (\text{levels}) > 0,

with the innovations of a filter. The levels are searched on a logarithmic scale by the simplex
method of Nelder and Mead: events that move from one sample to another make the sum uneven on a
small scale, and a handful of levels needs no derivatives.

Near its top the log-likelihood is :math:`L(\log\hat\theta + e) \approx L_0 - e^T F e / 2`, with F
the information, and :math:`F^{-1}` the covariance of the logarithms that were found. With steps
:math:`h_i` F is found from the mean fall of L on both sides,

.. math:: d(e) = L_0 - \tfrac12 (L(e) + L(-e)), \quad h_i^2 F_{ii} = 2 d(h_i), \quad
          h_i h_j F_{ij} = d(h_i + h_j) - d(h_i) - d(h_j).

A step of one standard error lowers L by 1/2, far more than its unevenness. Odd orders cancel; the
fourth makes the error of the level of n plain noises too small by one part in 12 n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.stats import chi2

from hybridctl.checks import Array, array, count, number, vector
from hybridctl.errors import InputError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.judgement import Consistency, band
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult

_FIRST = np.log(2.0)  # of the simplex
_STEP = 0.1  # of a logarithm: first guess of its standard error
_FALLS = 0.25, 1.0  # of the log-likelihood, that a step may cause; 0.5 is one standard error
_FLAT = 1e-6  # fall of a log-likelihood that does not depend on the level
_TRIALS = 6  # of the length of a step
_FACTOR = 8.0  # by which it changes at most in a trial


class FilterRuns(Protocol):
    """What the likelihood needs of a filter."""

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Filter a record."""
        ...


MakeFilter = Callable[[Array], FilterRuns]


class _Scored(NamedTuple):
    """One record: log-likelihood, NIS and dimension of each accepted value, how many were not."""

    log_likelihood: float
    nis: tuple[float, ...]
    dimensions: tuple[int, ...]
    rejected: int


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
        """Their sum."""
        return float(self.log_likelihoods.sum())


@dataclass(frozen=True, eq=False)
class NoiseFit:
    """The most likely levels (k,), their log-likelihood, and how the search went.

    evaluations: of the log-likelihood, with those for the errors. standard_errors (k,): of the
    LOGARITHMS of the levels; with 95 % a level is known to within a factor of exp(2 e) either way.
    nan for a level at its bound, or on which the log-likelihood does not depend; the others' are
    then with this level held. nan for all where the log-likelihood is not curved downwards in all
    directions. None where they were not asked for.
    """

    levels: Array
    log_likelihood: float
    evaluations: int
    converged: bool
    standard_errors: Array | None = None


def fit_noise(
    make_filter: MakeFilter,
    records: Sequence[Record],
    initials: Sequence[Estimate],
    start: ArrayLike,
    *,
    bounds: ArrayLike | None = None,
    tolerance: float = 1e-2,
    max_evaluations: int = 400,
    standard_errors: bool = False,
    executor: Executor | None = None,
    progress: Callable[[Array, float], None] | None = None,
) -> NoiseFit:
    """Noise levels that make the records most likely.

    make_filter: the filter with levels (k,), whatever they multiply in it; picklable where the
    executor has other processes. initials: one estimate for each record, or one for all. start
    (k,): first levels. bounds (k, 2): least and largest ones, by default a factor of 1e4 either
    way. tolerance: of the logarithms of the levels, and ten times that of the log-likelihood.
    max_evaluations: of the log-likelihood, by the search. standard_errors: whether to find those of
    the fit, which takes 2 k to about 6 k, and k (k - 1), evaluations more, each of all records.
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

    evaluations = 0

    def cost(logarithms: Array) -> float:
        nonlocal evaluations
        evaluations += 1
        levels = np.exp(logarithms)
        total = evaluate(make_filter, levels, records, initials, executor=executor).log_likelihood
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
    errors = None
    if standard_errors:
        room = np.minimum(found.x - ends[:, 0], ends[:, 1] - found.x)
        errors = _standard_errors(cost, found.x, float(found.fun), room, tolerance)
    likelihood, converged = -float(found.fun), bool(found.success)
    return NoiseFit(np.exp(found.x), likelihood, evaluations, converged, errors)


def _standard_errors(
    cost: Callable[[Array], float], top: Array, least: float, room: Array, tolerance: float
) -> Array:
    """Square roots of the diagonal of F^-1 where the cost is least, with F in units of the steps.

    room (k,): the longest step of each logarithm. A level with no more than the tolerance is held.
    """
    errors, fall = np.full(len(top), np.nan), partial(_fall, cost, top, least)
    free, steps, single = list[int](), list[float](), list[float]()
    for i in np.flatnonzero(room > tolerance).tolist():
        h, fallen = _step(fall, np.eye(len(top))[i], float(room[i]))
        if _FLAT < fallen < np.inf:
            free.append(i)
            steps.append(h)
            single.append(fallen)
    ways = np.array(steps)[:, None] * np.eye(len(top))[free]
    f = np.diag(2.0 * np.array(single))
    for i, j in combinations(range(len(free)), 2):
        f[i, j] = f[j, i] = fall(ways[i] + ways[j]) - single[i] - single[j]
    if free and np.isfinite(f).all() and np.linalg.eigvalsh(f)[0] > 0.0:
        errors[free] = np.array(steps) * np.sqrt(np.diag(np.linalg.inv(f)))
    return errors


def _fall(cost: Callable[[Array], float], top: Array, least: float, way: Array) -> float:
    """The mean fall of the log-likelihood on both sides of its top."""
    return 0.5 * (cost(top + way) + cost(top - way)) - least


def _step(fall: Callable[[Array], float], axis: Array, longest: float) -> tuple[float, float]:
    """A step of about one standard error, and by how much the log-likelihood falls there."""
    h = min(_STEP, longest)
    fallen = fall(h * axis)
    for _ in range(_TRIALS):
        if _FALLS[0] <= fallen <= _FALLS[1] or (h == longest and fallen < _FALLS[0]):
            break
        wanted = np.sqrt(0.5 / fallen) if fallen > 0.0 else _FACTOR
        h = min(longest, h * float(np.clip(wanted, 1.0 / _FACTOR, _FACTOR)))
        fallen = fall(h * axis)
    return h, fallen


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


def _score(make_filter: MakeFilter, levels: Array, record: Record, initial: Estimate) -> _Scored:
    try:
        result = make_filter(levels).run(record, initial)
    except (SimulationError, np.linalg.LinAlgError):
        return _Scored(-np.inf, (), (), 0)
    taken = [i for i in result.innovations if i.accepted]
    total = float(log_likelihoods(result, record).sum())
    return _Scored(
        total if np.isfinite(total) else -np.inf,
        tuple(i.nis for i in taken),
        tuple(i.dimension for i in taken),
        len(result.rejected),
    )


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
