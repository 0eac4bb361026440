r"""The time of a step by joint angles alone, for robots whose feet measure no force.

A gait repeats itself, and with it the rates of the joints. Their autocorrelation, summed over the
joints,

.. math:: r(\tau) = \frac{\sum_j \mathrm{mean}_t\, \dot q_j(t)\, \dot q_j(t + \tau)}
                         {\sum_j \mathrm{mean}_t\, \dot q_j(t)^2},

is near one at the period of the gait, whatever the robot, the order of its feet, and the moment at
which the log begins. Times at which the robot stands add nothing to it. A foot stands for a part of
the period and swings for the rest, half of it in the mean.
"""

from __future__ import annotations

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import find_peaks

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series

_GRID = 0.01
"""Spacing of the times in s at which rates of joints are taken: ten in the shortest period."""
_PERIODS = 0.1, 6.0
"""Shortest and longest period in s: small quadrupeds bound at 8 Hz, slow humanoids take 5 s."""
_LEAST_SPEED = 0.1
"""Rate in rad/s that some joint has to reach: steps reach ten times as much, a robot that stands
and sways, or one whose encoders are noisy, a third of it."""
_LEAST_LIKENESS = 0.3
"""Autocorrelation of a period at least. Noise of 7 s, white or a random walk, stays below 0.1;
recorded walks reach 0.78 (iCub, with its standing) to 0.96 (Go1)."""
_AS_LIKE = 0.8
"""Share of the highest peak that the peak of the period has: multiples of the period have peaks as
high as it, but half of it, which the knees have, is not as high."""


def find_gait_period(angles: Series) -> float | None:
    """Return the period of a gait, s; None where the joints do not repeat their motion.

    Args:
        angles: Joint angles (n, m) in rad in any order, of a log with at least two periods.
    """
    known = angles.complete_rows.sort_by_time()
    rates = _measure_rates(known)
    if len(rates) < 2 or not np.percentile(np.abs(rates).max(axis=1), 99.0) > _LEAST_SPEED:
        return None
    likeness = _autocorrelate(rates)
    likeness = likeness[: min(len(rates) // 2, round(_PERIODS[1] / _GRID)) + 1]
    peaks, _ = find_peaks(likeness, height=_LEAST_LIKENESS)
    peaks = peaks[peaks * _GRID >= _PERIODS[0]]
    if not len(peaks):
        return None
    first = peaks[likeness[peaks] >= _AS_LIKE * likeness[peaks].max()][0]
    return _GRID * float(first + _find_vertex(likeness[first - 1 : first + 2]))


def gait_step_time(angles: Series) -> float | None:
    """Return the time in s that a foot stands or swings, half of a period; None without a gait.

    Args:
        angles: Joint angles (n, m) in rad in any order.
    """
    period = find_gait_period(angles)
    return None if period is None else 0.5 * period


def _measure_rates(angles: Series) -> Array:
    """Return rates (n, m) of joints in rad/s on an even grid, each over two steps of the grid."""
    if len(angles) < 2:
        return np.zeros((0, angles.values.shape[1]))
    grid = np.arange(angles.times[0], angles.times[-1], _GRID)
    even = np.column_stack([np.interp(grid, angles.times, column) for column in angles.values.T])
    return np.asarray((even[2:] - even[:-2]) / (2.0 * _GRID))


def _autocorrelate(rates: Array) -> Array:
    """Return the autocorrelation (n,) of rates (n, m) by grid steps, one at zero.

    Each lag is a mean over as many products as there are, so that short logs do not fall off.
    """
    count = len(rates)
    size = next_fast_len(2 * count)
    power = (np.abs(rfft(rates, size, axis=0)) ** 2).sum(axis=1)
    sums = irfft(power, size)[:count] / np.arange(count, 0, -1)
    return np.asarray(sums / sums[0])


def _find_vertex(values: Array) -> float:
    """Return where the parabola through three values has its vertex, from the middle, in steps."""
    before, middle, after = values.tolist()
    return float(0.5 * (before - after) / (before - 2.0 * middle + after))
