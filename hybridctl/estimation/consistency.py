r"""Whether a filter deserves the covariance it claims.

- NIS, :math:`r^T S^{-1} r`: of mean m, the dimension of the measurement, without knowing the truth.
- NEES, :math:`e^T P^+ e` with the error e of the estimate in the tangent space: of mean the rank of
  P, the pseudo-inverse serving the directions that a contact holds.

Averages over N independent samples lie within the chi-square band of N m degrees of freedom,
divided by N. NIS of one run are independent if the filter is right; NEES of one run are not, so
average those over runs, at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from hybridctl.checks import Array, count, number
from hybridctl.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.spaces import Space

_RANK = 1e-5  # of variances: what contacts hold is known to second order only


@dataclass(frozen=True)
class Consistency:
    """An average of normalized squares: `mean` of `count` samples of `degrees` in all.

    low, high: the band that holds the mean of a consistent filter with probability `level`.
    """

    mean: float
    count: int
    degrees: int
    low: float
    high: float
    level: float

    @property
    def inside(self) -> bool:
        """Whether the mean lies in its band."""
        return self.low <= self.mean <= self.high


def nees(
    space: Space, estimate: Estimate, truth: Array, *, held: float = 1e-6
) -> tuple[float, int]:
    """Normalized error squared of one estimate, and the rank of its covariance.

    held: coordinates of less standard deviation, in their own unit, are held by contacts and left
    out; of the others, scaled to their spread, directions without variance are left out too.
    """
    e = space.difference(estimate.mean, truth)
    scale = np.sqrt(np.maximum(np.diag(estimate.covariance), 0.0))
    free = scale > number("held", held, at_least=0.0)
    if not free.any():
        return 0.0, 0
    scale = scale[free]
    correlation = estimate.covariance[np.ix_(free, free)] / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(correlation)
    live = values > _RANK * values[-1]
    along = vectors.T @ (e[free] / scale)
    return float((along[live] ** 2 / values[live]).sum()), int(live.sum())


def band(values: Iterable[float], degrees: Iterable[int], *, level: float = 0.99) -> Consistency:
    """The average of independent normalized squares and its chi-square band.

    values: NIS or NEES; degrees: the dimension of each. Raises `InputError` for none.
    """
    found, sizes = np.array(list(values), dtype=np.float64), [int(d) for d in degrees]
    if not len(found) or len(found) != len(sizes):
        raise InputError(
            f"values and degrees must have one entry each, got {len(found)} and {len(sizes)}"
        )
    number("level", level, above=0.0)
    if level >= 1.0:
        raise InputError(f"level must be below 1, got {level}")
    total, n = sum(count("degrees", d, at_least=0) for d in sizes), len(found)
    tail = 0.5 * (1.0 - level)
    low, high = chi2.ppf([tail, 1.0 - tail], total) / n
    return Consistency(float(found.mean()), n, total, float(low), float(high), level)


def nis_band(results: Sequence[FilterResult], *, level: float = 0.99) -> Consistency:
    """NIS of all accepted values of one or more runs."""
    taken = [i for result in results for i in result.innovations if i.accepted]
    return band([i.nis for i in taken], [i.dimension for i in taken], level=level)


def event_time_errors(
    found: Sequence[Event], truth: Sequence[Event], *, within: float = 0.1
) -> tuple[float, ...]:
    """Estimated minus true time of each true event that the filter found, in s.

    Each true event takes the nearest one of the same guards that is left, within `within` s.
    """
    left, errors = list(found), []
    for event in truth:
        same = [e for e in left if set(e.guards) == set(event.guards)]
        nearest = min(same, key=lambda e: abs(e.time - event.time), default=None)
        if nearest is not None and abs(nearest.time - event.time) <= within:
            left.remove(nearest)
            errors.append(nearest.time - event.time)
    return tuple(errors)


def mode_agreement(result: FilterResult, truth: HybridTrajectory) -> float:
    """The share of samples at which the filter is in the true mode; none give nan."""
    same = [mode == truth.arc(t).mode for t, mode in zip(result.times, result.modes, strict=True)]
    return float(np.mean(same)) if same else float("nan")
