"""The bias of the gyroscope, wherever a robot stands still in a log.

A robot stands still over a time if its joints drift by no more than they do while it stands at the
start. Its body then turns by no faster than they drift, so that the rate of the gyroscope is its
bias, as exactly as that. A robot that gets up first, or pauses, is known so as well as one that
stands at the start.

A push in the last milliseconds of the time turns the body before the mean angles of the joints show
it: a turn of 5 mrad is a mean rate of 20 mrad/s. The rate is therefore the median of the mean rates
of five parts of the time.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache, partial
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.estimation.measurement import ImplicitMeasurement, LinearizedResidual
from hybridctl.hybrid.mode import ModeModel
from hybridctl.legged.space import GYROSCOPE
from hybridctl.legged.system import LeggedBase

REST = "rest"  # name of the channel
_REST_TIME = 0.25
"""Time in s over which rest is judged: steps are longer than half of it, so joints drift."""
_RATE_PARTS = 5
"""Parts of that time with a mean rate each: two may be pushed, and each has samples at 20 Hz."""
_MEDIAN_VARIANCE = 1.434
"""Variance of the median of five normal values, relative to that of their mean."""
_MOST_DRIFT = 0.01
"""Drift of joints in rad/s below which a robot is at rest: steps drift a hundred times as fast."""
_FEWEST_ROWS = 8
"""Least number of angles in that time: means of fewer are noise."""


def find_rest(inertial: Series, angles: Series, after: float) -> Series:
    """Find where a robot stands still, over quarters of a second that follow one another.

    Args:
        inertial: Rates and forces (n, 6), in order and complete.
        angles: Joint angles (m, k) in rad, in order and complete.
        after: Time in s before which nothing is looked for.

    Returns:
        The rate (3,) of the gyroscope, and how fast the joints drift, both in rad/s, of each such
        time. Its stamp is the first at which samples of both are later, when it is known.
    """
    times, found = list[float](), list[Array]()
    last = min(float(inertial.times[-1]), float(angles.times[-1])) if len(angles) else after
    for k in count():
        begin, end = rest_span(after, k)
        if end >= last:
            break
        row = measure_rest(inertial, angles, begin)
        if row is not None:
            later = [s.times[s.times.searchsorted(end, "right")] for s in (inertial, angles)]
            times.append(float(max(later)))
            found.append(row)
    return Series(np.array(times), np.array(found).reshape(-1, 4))


def rest_span(after: float, k: int) -> tuple[float, float]:
    """Return begin and end in s of the k-th time in which rest is looked for."""
    begin = after + k * _REST_TIME
    return begin, begin + _REST_TIME


def measure_rest(inertial: Series, angles: Series, begin: float) -> Array | None:
    """Return rate and drift (4,) in rad/s over a quarter of a second.

    Args:
        inertial: Rates and forces (n, 6) from `begin` on or longer, in order and complete.
        angles: Joint angles (m, k) in rad from `begin` on or longer, in order and complete.
        begin: Begin of the time, s.

    Returns:
        The median of the mean rates of the parts of the time, and the drift of the joints; None if
        the robot moves, or samples are missing.
    """
    middle, end = begin + 0.5 * _REST_TIME, begin + _REST_TIME
    edges = angles.times.searchsorted([begin, middle, end])
    rows = inertial.times.searchsorted([begin, *_list_cuts(begin), end])
    counts = np.diff(rows)
    if min(np.diff(edges)) < _FEWEST_ROWS // 2 or counts.sum() < _FEWEST_ROWS or not counts.all():
        return None
    first, last = (_average_rows(angles.values[a:b]) for a, b in pairwise(edges))
    parts = [_average_rows(inertial.values[a:b, :3]) for a, b in pairwise(rows)]
    return _judge_rest(first, last, parts)


@lru_cache(maxsize=8)
def _list_cuts(begin: float) -> list[float]:
    """Return the times in s between the parts of a time that begins at `begin`."""
    return [begin + _REST_TIME / _RATE_PARTS * k for k in range(1, _RATE_PARTS)]


def _average_rows(rows: Array) -> Array:
    """Return the mean (m,) of rows (n, m), summed one after the other as `RestSpan` does."""
    return np.asarray(np.add.accumulate(rows, axis=0)[-1] / len(rows))


def _judge_rest(first: Array, last: Array, rates: list[Array]) -> Array | None:
    """Return rate and drift (4,) in rad/s over a time; None if the robot moves.

    Args:
        first: Mean angles (k,) over the first half of the time, rad.
        last: Mean angles (k,) over the other half, rad.
        rates: Mean rate (3,) over each part of the time, rad/s.
    """
    drift = float(np.abs(last - first).max()) / (0.5 * _REST_TIME)
    return None if drift >= _MOST_DRIFT else np.append(np.median(rates, axis=0), drift)


class RestSpan(NamedTuple):
    """Sums over a time in which rest is looked for, as far as samples have come.

    Each sample adds the same work, whereas means over all samples of the time would make every
    sample after such a time cost more than others.

    Attributes:
        begin: Begin of the time, s.
        rates: Sum (3,) of the rates in each part, rad/s, and their number.
        halves: Sums (k,) of the angles in each half, rad, and their number.
    """

    begin: float
    rates: tuple[tuple[Array | float, int], ...] = ((0.0, 0),) * _RATE_PARTS
    halves: tuple[tuple[Array | float, int], tuple[Array | float, int]] = ((0.0, 0), (0.0, 0))

    @property
    def end(self) -> float:
        """End of the time, s."""
        return self.begin + _REST_TIME

    def add(self, time: float, rate: Array, joints: Array | None) -> RestSpan:
        """Return the sums with a sample of the time.

        Args:
            time: Stamp, s.
            rate: Rate (3,), rad/s.
            joints: Joint angles (k,), rad; None where they are missing.
        """
        halves = self.halves
        if joints is not None:
            (first, n), (last, m) = halves
            early = time < self.begin + 0.5 * _REST_TIME
            halves = (
                ((first + joints, n + 1), (last, m))
                if early
                else ((first, n), (last + joints, m + 1))
            )
        part = bisect_right(_list_cuts(self.begin), time)
        total, count = self.rates[part]
        rates = (*self.rates[:part], (total + rate, count + 1), *self.rates[part + 1 :])
        return RestSpan(self.begin, rates, halves)

    def measure(self) -> Array | None:
        """Return what `measure_rest` does, of a time that is over."""
        (first, n), (last, m) = self.halves
        counts = [count for _, count in self.rates]
        if min(n, m) < _FEWEST_ROWS // 2 or sum(counts) < _FEWEST_ROWS or not all(counts):
            return None
        rates = [np.asarray(total / count) for total, count in self.rates]
        return _judge_rest(np.asarray(first / n), np.asarray(last / m), rates)


def rest_measurement(base: LeggedBase) -> ImplicitMeasurement:
    """Return the measurement of the channel "rest", rows of `find_rest`."""
    return ImplicitMeasurement(REST, partial(_compare_rest, base), gate=None)


def _compare_rest(
    base: LeggedBase, mode: ModeModel, t: float, x: Array, u: Array, z: Array
) -> LinearizedResidual | None:
    """Return the comparison of a rate at rest with the bias of the gyroscope.

    Raises:
        InputError: The row has not four entries.
    """
    if z.shape != (4,):
        raise InputError(f"a row of {REST!r} must have a rate and a drift, got shape {z.shape}")
    h = np.zeros((3, mode.space.ndx))
    h[:, GYROSCOPE] = np.eye(3)
    variance = z[3] ** 2 + _MEDIAN_VARIANCE * base.noise.gyroscope**2 / _REST_TIME
    return LinearizedResidual(z[:3] - x[10:13], h, variance * np.eye(3))
