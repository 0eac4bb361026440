"""One guard on an interval as a Chebyshev series: its root, its slopes, and where it may dip.

`events` searches guards by these series, made of the samples of a step or of a piece of one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.hybrid.series import (
    FRACTIONS,
    NODES,
    TO_DERIVATIVES,
    TO_SERIES,
    TO_SLOPES,
    basis,
    value_and_slope,
)

MAX_BRACKET_STEPS = 60
"""Steps of Newton's iteration on a series, of which each may only halve the bracket.

53 halvings bring any bracket down to the rounding of its ends."""
ROOT_PRECISION = 1e-8
"""Change at which a search on a series ends, relative to the length of its interval.

It is the square root of rounding: what is left after such a step of Newton's iteration, and what a
minimum that is this far off is too high, is its square."""


class GuardSample(NamedTuple):
    """The value of a guard, in its own unit, at a time in s."""

    time: float
    value: float


class GuardSeries:
    """Chebyshev series of degree 7 of one guard on an interval; callable as a function of time.

    Attributes:
        start: Start of the interval, s.
        end: End of the interval, s.
        samples: The eight values at the nodes. They are those of the guard itself, but for four of
            a whole step on which four samples were enough (`DrivenMode.sample_step`).
        coefficients: The eight Chebyshev coefficients, in the unit of the guard.
        truncation_error: Estimate of the error of the series, in the unit of the guard: the sum of
            the sizes of its last three coefficients.

    Args:
        start: Start of the interval, s.
        end: End of the interval, s; after its start.
        values: Values (8,) of the guard at the nodes.
    """

    def __init__(self, start: float, end: float, values: Array) -> None:
        self.start, self.end, self._values = start, end, values
        self.samples: list[float] = values.tolist()
        derivatives = (TO_DERIVATIVES @ values).tolist()
        self.coefficients, self._slope_coefficients, self._curvature_coefficients = derivatives
        self.truncation_error = sum(map(abs, self.coefficients[-3:]))

    def __call__(self, t: float) -> float:
        """Return the value of the series at a time in s within the interval."""
        return self.value_and_slope(t)[0]

    def value_and_slope(self, t: float) -> tuple[float, float]:
        """Return the value of the series and its derivative by time.

        Args:
            t: Time within the interval, s.

        Returns:
            The value in the unit of the guard, and the derivative in that unit per s.
        """
        scale = 2.0 / (self.end - self.start)
        value, slope = value_and_slope(self.coefficients, scale * (t - self.start) - 1.0)
        return value, scale * slope

    @property
    def steepest_slope(self) -> float:
        """Upper bound of the size of the derivative by time, in the unit of the guard per s."""
        size: float = sum(map(abs, self._slope_coefficients))
        return 2.0 / (self.end - self.start) * size

    def estimate_fall(self) -> float:
        """Return the time in s at which lines through the samples fall below zero.

        It is the start where the first sample is negative, and infinite where none is.
        """
        for k, value in enumerate(self.samples):
            if value < 0.0:
                if k == 0:
                    return self.start
                before, left, right = self.samples[k - 1], *_NODE_FRACTIONS[k - 1 : k + 1]
                part = left + (right - left) * before / (before - value)
                return self.start + part * (self.end - self.start)
        return math.inf

    def find_root(self, low: GuardSample, high: GuardSample) -> tuple[float, float]:
        """Return the time in s at which the series falls through zero, and its slope there, per s.

        Newton's iteration starts at the root of the secant. Its step is replaced by a halving of
        the bracket where it would leave the bracket, or where the series does not fall. The slope
        is that before the last step.

        Args:
            low: Sample at the start of the bracket, in general positive or zero.
            high: Sample at its end, negative.
        """
        left, right = low.time, high.time
        t = right  # If the first value is not positive, the secant has no root inside the bracket.
        if low.value > 0.0 > high.value:
            t = left + (right - left) * low.value / (low.value - high.value)
        for _ in range(MAX_BRACKET_STEPS):
            value, slope = self.value_and_slope(t)
            left, right = (t, right) if value > 0.0 else (left, t)
            new = t - value / slope if slope < 0.0 else math.nan
            if not left <= new <= right:
                new = 0.5 * (left + right)
            change, t = abs(new - t), new
            if change <= ROOT_PRECISION * (self.end - self.start):
                break
        return t, slope

    def has_no_dip(self) -> bool:
        """Return whether the series is certainly monotone or concave: then no dip is possible.

        Chebyshev polynomials are at most 1 in size. So the first coefficient gives the sign of a
        whole series if it is larger than the sum of the others.
        """
        first, *others = self._slope_coefficients
        if abs(first) >= sum(map(abs, others)):
            return True
        first, *others = self._curvature_coefficients
        return bool(first <= -sum(map(abs, others)))

    def sample_grid(self) -> tuple[list[float], list[float], list[bool], int]:
        """Return the grid on which a fall through zero is searched.

        Returns:
            The times (m) of the grid, s; the values (m) of the guard there; for each of the m - 1
            intervals whether the guard may dip below zero inside it; and the number of intervals
            from one node to the next. This number is 1 if no dip is possible. Else it is 8, and
            the values at other points than the nodes are those of the series.
        """
        if self.has_no_dip():
            return self._scale_times(_NODE_FRACTIONS), self.samples, _NO_DIPS, 1
        values = _FINE_VALUES @ self._values
        values[::_FINENESS] = self._values
        dips = may_dip(values, _FINE_SLOPES @ self._values, self.truncation_error)
        return self._scale_times(_FINE_FRACTIONS), values.tolist(), dips.tolist(), _FINENESS

    def _scale_times(self, fractions: list[float]) -> list[float]:
        """Return the times in s at fractions of the interval, of which the last is 1."""
        start, length = self.start, self.end - self.start
        # The end itself, without rounding: it may be the start of the next piece.
        return [*(start + length * s for s in fractions[:-1]), self.end]


def may_dip(g: Array, slope: Array, error: float | Array) -> NDArray[np.bool_]:
    """Return whether a guard may fall below zero and rise again between two points of the grid.

    It may if it falls at the first point and rises at the second, and if one of the two tangents
    comes as near to zero as the error before it reaches the other point. A convex function lies
    above its tangents.

    Args:
        g: Values (..., m) at the points of the fine grid, `FINE_GAPS` apart.
        slope: Derivatives (..., m) there, by s in [-1, 1].
        error: Error of the values, in their unit.

    Returns:
        One flag for each pair of neighbours, (..., m - 1).
    """
    falls, rises = slope[..., :-1] * FINE_GAPS, slope[..., 1:] * FINE_GAPS
    near = (g[..., :-1] + falls <= error) | (g[..., 1:] - rises <= error)
    return np.asarray((falls < 0.0) & (rises > 0.0) & near)


# The grids of `GuardSeries.sample_grid`: the eight nodes, and the fine grid, which divides each of
# their seven gaps into `_FINENESS` equal intervals. Fractions are of the interval, in [0, 1]; all
# else refers to s in [-1, 1]. The matrices lead from samples (8,) to values and slopes (57,).
_FINENESS = 8
"""Intervals of the fine grid from one node to the next: a narrower dip shows by its tangents."""
_NODE_FRACTIONS: list[float] = FRACTIONS.tolist()
_NO_DIPS = [False] * (len(NODES) - 1)
_FINE_POINTS = np.interp(np.arange(7 * _FINENESS + 1) / _FINENESS, np.arange(8), NODES)
_FINE_FRACTIONS: list[float] = (0.5 * (_FINE_POINTS + 1.0)).tolist()
FINE_GAPS = np.diff(_FINE_POINTS)
"""Distances (56,) between neighbours on the fine grid, in s of [-1, 1]."""
_FINE_VALUES = basis(_FINE_POINTS) @ TO_SERIES
_FINE_SLOPES = _FINE_VALUES @ TO_SLOPES
