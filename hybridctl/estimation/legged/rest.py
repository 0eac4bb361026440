"""The bias of the gyroscope, wherever a robot stands still in a log.

A robot stands still over a time if its joints drift by no more than they do while it stands at the
start. Its body then turns by no faster than they drift, so that the mean rate of the gyroscope is
its bias, as exactly as that. A robot that gets up first, or pauses, is known so as well as one that
stands at the start.
"""

from __future__ import annotations

from functools import partial
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.estimation.legged.space import GYROSCOPE
from hybridctl.estimation.legged.system import LeggedBase
from hybridctl.estimation.measurement import ImplicitMeasurement, LinearizedResidual
from hybridctl.hybrid.mode import ModeModel
from hybridctl.series import Series

REST = "rest"  # name of the channel
_SPAN = 0.25  # s: a step of a gait is longer than half of it, so that joints drift in each
_SLOW = 0.01  # rad/s, by which joints drift at most: steps drift a hundred times as fast
_ROWS = 8  # of angles in the time: means of fewer are noise


def find_rest(inertial: Series, angles: Series, after: float) -> Series:
    """Find where a robot stands still, over quarters of a second that follow one another.

    Args:
        inertial: Rates and forces (n, 6), in order and complete.
        angles: Joint angles (m, k) in rad, in order and complete.
        after: Time in s before which nothing is looked for.

    Returns:
        The mean rate (3,) of the gyroscope, and how fast the joints drift, both in rad/s, of each
        such time. Its stamp is the first at which samples of both are later, when it is known.
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
    begin = after + k * _SPAN
    return begin, begin + _SPAN


def measure_rest(inertial: Series, angles: Series, begin: float) -> Array | None:
    """Return mean rate and drift (4,) in rad/s over a quarter of a second; None if it moves.

    Args:
        inertial: Rates and forces (n, 6) from `begin` on or longer, in order and complete.
        angles: Joint angles (m, k) in rad from `begin` on or longer, in order and complete.
        begin: Begin of the time, s.
    """
    middle, end = begin + 0.5 * _SPAN, begin + _SPAN
    edges = angles.times.searchsorted([begin, middle, end])
    rows = inertial.times.searchsorted([begin, end])
    if min(np.diff(edges)) < _ROWS // 2 or rows[1] - rows[0] < _ROWS:
        return None
    first, last = (_average_rows(angles.values[a:b]) for a, b in pairwise(edges))
    return _judge_rest(first, last, _average_rows(inertial.values[rows[0] : rows[1], :3]))


def _average_rows(rows: Array) -> Array:
    """Return the mean (m,) of rows (n, m), summed one after the other as `RestSpan` does."""
    return np.asarray(np.add.accumulate(rows, axis=0)[-1] / len(rows))


def _judge_rest(first: Array, last: Array, rate: Array) -> Array | None:
    """Return mean rate and drift (4,) in rad/s over a time; None if the robot moves.

    Args:
        first: Mean angles (k,) over the first half of the time, rad.
        last: Mean angles (k,) over the other half, rad.
        rate: Mean rate (3,) over the time, rad/s.
    """
    drift = float(np.abs(last - first).max()) / (0.5 * _SPAN)
    return None if drift >= _SLOW else np.append(rate, drift)


class RestSpan(NamedTuple):
    """Sums over a time in which rest is looked for, as far as samples have come.

    Each sample adds the same work, whereas means over all samples of the time would make every
    sample after such a time cost more than others.

    Attributes:
        begin: Begin of the time, s.
        rates: Sum (3,) of the rates, rad/s, and their number.
        halves: Sums (k,) of the angles in each half, rad, and their number.
    """

    begin: float
    rates: tuple[Array | float, int] = (0.0, 0)
    halves: tuple[tuple[Array | float, int], tuple[Array | float, int]] = ((0.0, 0), (0.0, 0))

    @property
    def end(self) -> float:
        """End of the time, s."""
        return self.begin + _SPAN

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
            early = time < self.begin + 0.5 * _SPAN
            halves = (
                ((first + joints, n + 1), (last, m))
                if early
                else ((first, n), (last + joints, m + 1))
            )
        total, count = self.rates
        return RestSpan(self.begin, (total + rate, count + 1), halves)

    def measure(self) -> Array | None:
        """Return what `measure_rest` does, of a time that is over."""
        (first, n), (last, m) = self.halves
        total, rows = self.rates
        if min(n, m) < _ROWS // 2 or rows < _ROWS:
            return None
        return _judge_rest(np.asarray(first / n), np.asarray(last / m), np.asarray(total / rows))


def rest_measurement(base: LeggedBase) -> ImplicitMeasurement:
    """Make the measurement of the channel "rest", rows of `find_rest`."""
    return ImplicitMeasurement(REST, partial(_compare_rest, base), gate=None)


def _compare_rest(
    base: LeggedBase, mode: ModeModel, t: float, x: Array, u: Array, z: Array
) -> LinearizedResidual | None:
    """Compare a mean rate with the bias of the gyroscope."""
    if z.shape != (4,):
        raise InputError(f"a row of {REST!r} must have a rate and a drift, got shape {z.shape}")
    h = np.zeros((3, mode.space.ndx))
    h[:, GYROSCOPE] = np.eye(3)
    variance = z[3] ** 2 + base.noise.gyroscope**2 / _SPAN
    return LinearizedResidual(z[:3] - x[10:13], h, variance * np.eye(3))
