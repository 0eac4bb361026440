r"""Consistency of a filter: whether its errors have the covariance that it claims.

- NIS, normalized innovation squared, :math:`r^T S^{-1} r`: for a consistent filter its mean is m,
  the dimension of the measurement. It needs no truth.
- NEES, normalized estimation error squared, :math:`e^T P^+ e` with the error e of the estimate in
  the tangent space: its mean is the rank of P. The pseudo-inverse leaves out directions that are
  constrained.

Averages over N independent samples lie within the chi-square band of N m degrees of freedom,
divided by N. NIS of one run are independent if the filter is consistent. NEES of one run are not:
average those over runs, at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2

from hybridctl.base.checks import Array, check_count, check_number
from hybridctl.base.errors import InputError
from hybridctl.base.spaces import Space
from hybridctl.estimation.estimate import Estimate, Mixture
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

_MIN_VARIANCE_RATIO = 1e-5
"""Eigenvalue of the correlation matrix, relative to the largest, up to which a direction counts as
constrained: constraints are obeyed to second order only."""
MAX_REJECTED_SHARE = 0.05
"""Share of rejected values above which a filter has lost the motion. A choice."""


@dataclass(frozen=True)
class Consistency:
    """A mean of normalized squares, and its chi-square band.

    Attributes:
        mean: The mean.
        count: Number of samples.
        degrees: Degrees of freedom of all samples together.
        low: Lower end of the band.
        high: Upper end of the band.
        level: Probability with which the mean of a consistent filter lies within the band.
    """

    mean: float
    count: int
    degrees: int
    low: float
    high: float
    level: float

    @property
    def inside(self) -> bool:
        """Whether the mean lies within its band."""
        return self.low <= self.mean <= self.high


def nees(
    space: Space, estimate: Estimate | Mixture, truth: Array, *, least_deviation: float = 1e-6
) -> tuple[float, int]:
    """Return the normalized error squared of one estimate, and its degrees of freedom.

    Args:
        space: Space of the states.
        estimate: The estimate.
        truth: True state (nx,).
        least_deviation: Standard deviation, in the unit of each coordinate, up to which a
            coordinate counts as constrained by contacts, and is left out. Of the others, scaled to
            unit variance, directions without variance are left out too.

    Returns:
        The square, and the number of directions that were not left out. Both are zero if all were,
        which adds nothing to sums of them.
    """
    e = space.difference(estimate.mean, truth)
    p = estimate.full_covariance if isinstance(estimate, Estimate) else estimate.covariance
    scale = np.sqrt(np.maximum(np.diag(p), 0.0))
    free = scale > check_number("least_deviation", least_deviation, at_least=0.0)
    if not free.any():
        return 0.0, 0
    scale = scale[free]
    correlation = p[np.ix_(free, free)] / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(correlation)
    live = values > _MIN_VARIANCE_RATIO * values[-1]
    # In these directions the scaled error has independent components, with the variances `values`.
    along = vectors.T @ (e[free] / scale)
    return float((along[live] ** 2 / values[live]).sum()), int(live.sum())


def band(values: Iterable[float], degrees: Iterable[int], *, level: float = 0.99) -> Consistency:
    """Return the mean of independent normalized squares with its chi-square band.

    Args:
        values: NIS or NEES, at least one.
        degrees: Degrees of freedom of each.
        level: Probability with which the mean of a consistent filter lies within the band.

    Raises:
        InputError: There is no value, not one degree for each, a degree is negative, or the level
            is not between 0 and 1.
    """
    found, sizes = np.array(list(values), dtype=np.float64), [int(d) for d in degrees]
    if not len(found) or len(found) != len(sizes):
        raise InputError(
            f"values and degrees must have one entry each, got {len(found)} and {len(sizes)}"
        )
    check_number("level", level, above=0.0)
    if level >= 1.0:
        raise InputError(f"level must be below 1, got {level}")
    total, n = sum(check_count("degrees", d, at_least=0) for d in sizes), len(found)
    tail = 0.5 * (1.0 - level)
    low, high = chi2.ppf([tail, 1.0 - tail], total) / n
    return Consistency(float(found.mean()), n, total, float(low), float(high), level)


def nis_band(results: Sequence[FilterResult]) -> Consistency:
    """Return the mean NIS of all accepted values with its band.

    Args:
        results: One or more runs. NIS are those of the likeliest hypothesis.

    Raises:
        InputError: No value was accepted.
    """
    taken = [i for result in results for i in result.innovations if i.accepted]
    return band([i.nis for i in taken], [i.dimension for i in taken])


def event_time_errors(
    found: Sequence[Event], truth: Sequence[Event], *, within: float = 0.1
) -> tuple[float, ...]:
    """Return the estimated minus the true time of each true event that the filter found, s.

    Args:
        found: Events of the filter.
        truth: True events. Each takes the nearest event of the same guards that is left.
        within: Largest difference in s.
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
    """Return the share of samples at which the most probable mode is the true one.

    Args:
        result: Result of a filter. Without samples the share is NaN.
        truth: The true motion.
    """
    same = [mode == truth.arc(t).mode for t, mode in zip(result.times, result.modes, strict=True)]
    return float(np.mean(same)) if same else float("nan")


@dataclass(frozen=True, eq=False)
class Judgement:
    """A filter's result with its consistency, and its errors where the truth is known.

    Attributes:
        name: Name of the filter.
        result: Its result.
        nis: Mean NIS of the accepted values, with its band; None without any.
        nees: Sum of the NEES of all samples divided by the sum of their degrees of freedom, of all
            hypotheses together; 1 is expected. It has no band, because samples of one run are not
            independent. None without the truth, and where no sample has a degree of freedom.
        agreement: Share of samples with the true mode. None, like all that follows, without the
            truth.
        event_errors: Estimated minus true times of events, s.
        missed: Number of true events, up to the last sample, that were not found.
        times_real: Seconds of the log filtered in one second.
        faults: What is wired wrongly in the log, one sentence each. With a fault nothing of the
            result counts.
    """

    name: str
    result: FilterResult
    nis: Consistency | None
    nees: float | None
    agreement: float | None
    event_errors: tuple[float, ...] | None
    missed: int | None
    times_real: float
    faults: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Whether the result can be trusted, in one sentence."""
        rejected, values = len(self.result.rejected), len(self.result.innovations)
        if self.faults:
            return f"not to be trusted: {self.faults[0]}"
        if self.nis is None:
            return "not to be trusted: no value was accepted"
        if rejected > MAX_REJECTED_SHARE * values:
            lost = self.result.summary()["reopened"]
            found = f", and the estimate was lost and found {lost} times" if lost else ""
            return f"not to be trusted: {rejected} of {values} values were rejected{found}"
        level, low, high = 100.0 * self.nis.level, self.nis.low, self.nis.high
        band = f"mean NIS {self.nis.mean:.2f}, {level:g} % band {low:.2f} to {high:.2f}"
        if self.nis.mean > self.nis.high:
            return f"too confident ({band}): the noise is larger than assumed, or the model is off"
        if self.nis.mean < self.nis.low:
            return f"too cautious ({band}): the noise is smaller than assumed"
        return f"consistent with its innovations ({band})"

    @property
    def trusted(self) -> bool:
        """Whether no fault is known, the mean NIS is in its band, and few values were rejected.

        Few are at most `MAX_REJECTED_SHARE`.
        """
        few = not self.faults and len(self.result.rejected) <= MAX_REJECTED_SHARE * len(
            self.result.innovations
        )
        return few and self.nis is not None and self.nis.inside

    def record(self) -> dict[str, Any]:
        """Return the judgement for summary.json."""
        errors = self.event_errors
        return {
            "name": self.name,
            **self.result.summary(),
            "trusted": self.trusted,
            "nis_low": None if self.nis is None else self.nis.low,
            "nis_high": None if self.nis is None else self.nis.high,
            "nees_per_degree": self.nees,
            "mode_agreement": self.agreement,
            "event_time_error": _rms(errors) if errors else None,
            "events_missed": self.missed,
            "times_real_time": self.times_real,
            "event_times": [event.time for event in self.result.events],
        }

    def cells(self) -> dict[str, str]:
        """Return the cells of the judgement in a table, by their labels."""
        nis, r = self.nis, self.result.summary()
        cells = {
            "mean NIS": "-" if nis is None else f"{nis.mean:.3f}",
            "band of mean NIS": (
                "-" if nis is None else f"{nis.low:.2f} {nis.high:.2f} ({100.0 * nis.level:g} %)"
            ),
            "mean NIS in its band": "-" if nis is None else ("yes" if nis.inside else "no"),
            "log-likelihood": f"{self.result.log_likelihood:.1f}",
            "values rejected": f"{r['rejected']} of {len(self.result.innovations)}",
            "times the estimate was lost": f"{r['reopened']}",
            "events": f"{r['events']}",
            "guard rates of uncertain sign": f"{r['unsure']}",
            "events undone by later values": f"{r['undone']}",
            "events that straddle a sample": f"{r['astride']}",
        }
        if self.nees is not None and self.agreement is not None:
            errors = self.event_errors or ()
            cells["NEES per degree (truth)"] = f"{self.nees:.3f}"
            cells["mode agreement (truth)"] = f"{100.0 * self.agreement:.1f} %"
            cells["event time error, rms"] = f"{1e3 * _rms(errors):.3f} ms" if errors else "-"
            cells["events missed"] = str(self.missed)
        step = r["seconds_per_step"]
        cells["time per step"] = "-" if step is None else f"{1e3 * step:.2f} ms"
        cells["speed [times real time]"] = f"{self.times_real:.2g}"
        return cells


def judge(
    system: HybridSystem,
    result: FilterResult,
    truth: HybridTrajectory | None = None,
    *,
    name: str = "salted",
    faults: Sequence[str] = (),
) -> Judgement:
    """Return the consistency of a result, and its errors where the truth is known.

    Args:
        system: The system of the filter.
        result: Its result.
        truth: The true motion, or None. It is used if there are samples and it covers them all.
            NEES leave out those at which its state has another size than the estimate.
        name: Name of the filter.
        faults: What is wired wrongly in the log, one sentence each.
    """
    wrong = tuple(faults)
    accepted = any(i.accepted for i in result.innovations)
    nis = nis_band([result]) if accepted else None
    start = result.initial.time
    end = result.steps[-1].time if result.steps else start
    speed = (end - start) / result.seconds if result.seconds > 0.0 else float("inf")
    known = truth is not None and all(truth.start <= t <= truth.end for t in result.times)
    if truth is None or not known or not result.steps:
        return Judgement(
            name=name,
            result=result,
            nis=nis,
            nees=None,
            agreement=None,
            event_errors=None,
            missed=None,
            times_real=speed,
            faults=wrong,
        )
    happened = [event for event in truth.guard_events if start <= event.time <= end]
    errors = event_time_errors(result.events, happened)
    both = [(mixture, truth(mixture.time)) for mixture in result.mixtures]
    spaces = [system.mode(e.mode).space for e, _ in both]
    pairs = [nees(s, e, x) for s, (e, x) in zip(spaces, both, strict=True) if s.nx == len(x)]
    squares, degrees = np.array(pairs).reshape(-1, 2).sum(axis=0)
    return Judgement(
        name=name,
        result=result,
        nis=nis,
        nees=float(squares / degrees) if degrees else None,
        agreement=mode_agreement(result, truth),
        event_errors=errors,
        missed=len(happened) - len(errors),
        times_real=speed,
        faults=wrong,
    )


def _rms(values: tuple[float, ...]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
