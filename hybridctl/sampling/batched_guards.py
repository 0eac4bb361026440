"""Event location for many members of a batch at once, each on a step of its own.

The rules are those of `hybrid.events`. Here only what the series of a single guard decides is
decided, for all members together: a guard that is armed at the start of a step, or by its second
node, either clearly stays positive or falls through zero between two nodes. A step on which more
has to be found out is *unresolved*, and left to `GuardWatch`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.hybrid.guard_series import MAX_BRACKET_STEPS
from hybridctl.hybrid.series import FRACTIONS, TO_DERIVATIVES, value_and_slope
from hybridctl.hybrid.tolerances import (
    MAX_SERIES_TAIL,
    MAX_START_VIOLATION,
    MAX_VIOLATION_GROWTH,
    MIN_SAMPLED_SPACINGS,
)

Rows: TypeAlias = NDArray[np.intp]
Flags: TypeAlias = NDArray[np.bool_]

_ROOT_ROUNDING = 1e-15  # change at which Newton's iteration on a series ends, of half a step
_MIN_SEPARATION = 2.0
"""Distance of two roots that surely are two events, in event windows and in uncertainties of roots.

Both roots may be off by their uncertainty."""


class BatchedCrossings(NamedTuple):
    """The first events of k members, each on a step of its own.

    Attributes:
        unresolved: Whether more has to be found out to say what happens (k,).
        guard: Index (k,) of the guard that fires, -1 for none. The rest is NaN without one.
        left: Start (k,) of the interval in which it falls through zero, s.
        right: End (k,) of that interval, s.
        root: Zero (k,) of the guard's series in it, s.
        slope: Slope (k,) of the series there, 1/s.
    """

    unresolved: Flags
    guard: Rows
    left: Array
    right: Array
    root: Array
    slope: Array

    def select(self, rows: Rows) -> BatchedCrossings:
        """Return the crossings at some positions.

        Args:
            rows: The positions.
        """
        arrays = (array[rows] for array in self[2:])
        return BatchedCrossings(self.unresolved[rows], self.guard[rows], *arrays)


class BatchedGuardWatch:
    """The n guards of a mode for all members that are on an arc of it.

    For each arc of a member call `begin_arcs` with the first step, then `find_crossings` with every
    accepted step in order of time. Between calls it keeps which guards of which member are armed.

    Args:
        members: Number of members.
        tolerances: Values (n,) above which guards are armed, each in its own unit.
        window: Event window: guards that fire this long after another fire together with it, s.
    """

    def __init__(self, members: int, tolerances: Array, window: float) -> None:
        self._tolerances, self._window = tolerances, window
        self._armed = np.zeros((members, len(tolerances)), dtype=bool)
        # Value below which an unarmed guard fires, as `WatchedGuard` has it.
        self._threshold = np.zeros((members, len(tolerances)))

    def begin_arcs(self, rows: Rows, values: Array) -> Flags:
        """Arm the guards of members at the starts of their arcs.

        Args:
            rows: Members that begin an arc.
            values: Their guards (k, n) at its start.

        Returns:
            Whether each is outside its mode (k,).
        """
        allowed = self._tolerances
        self._armed[rows] = values > allowed
        inside = -np.maximum(allowed, -(1.0 + MAX_VIOLATION_GROWTH) * values)
        self._threshold[rows] = np.where(values < -MAX_START_VIOLATION * allowed, -allowed, inside)
        return np.asarray((values < -allowed).any(axis=1))

    def find_crossings(
        self, rows: Rows, start: Array, end: Array, guards: Array, bounds: Array
    ) -> BatchedCrossings:
        """Return the first event of each member on its step, and update which guards are armed.

        Args:
            rows: The members.
            start: Starts (k,) of their steps, s.
            end: Ends (k,), s.
            guards: Guards (k, 8, n) at the Chebyshev nodes of the steps.
            bounds: Lower bounds (k, n) of the guards on the steps.
        """
        k = len(rows)
        found = BatchedCrossings(
            np.asarray(~np.isfinite(guards).all(axis=(1, 2))),
            np.full(k, -1),
            *(np.full(k, np.nan) for _ in range(4)),
        )
        # An armed guard whose bound is positive cannot fire.
        r, c = np.nonzero(~(self._armed[rows] & (bounds > 0.0)) & ~found.unresolved[:, None])
        if not len(r):
            return found
        member = rows[r]
        samples = _GuardSamples(guards[r, :, c], self._tolerances[c])
        armed, by_second = self._armed[member, c], samples.are_armed(self._threshold[member, c])
        self._armed[member, c] = armed | by_second
        low, high, unresolved = samples.find_falls(np.where(armed, 0, 1))
        too_short = (end - start)[r] <= MIN_SAMPLED_SPACINGS * np.spacing(np.abs(end[r]))
        unresolved |= ~(armed | by_second) | too_short
        found.unresolved[r[unresolved]] = True
        fall = np.flatnonzero(~unresolved & (high > 0.0))
        if len(fall):
            roots = samples.find_roots(fall, low, high)
            self._choose_first(found, start, end, r[fall], c[fall], roots)
        return found

    def _choose_first(
        self, found: BatchedCrossings, start: Array, end: Array, r: Rows, c: Rows, roots: _Roots
    ) -> None:
        """Write the first guard that falls on each step into `found`.

        A step on which another guard may fall together with the first is unresolved, and so is one
        whose end is that near to the first.

        Args:
            found: What is known of the members; changed.
            start: Starts (k,) of their steps, s.
            end: Ends (k,), s.
            r: Position of the member of each fall.
            c: Guard of each fall.
            roots: When they fall.
        """
        length = (end - start)[r]
        times = np.full(self._armed[: len(start)].shape, np.inf)
        uncertainty = np.zeros(len(start))
        times[r, c] = start[r] + length * roots.root
        np.maximum.at(uncertainty, r, length * roots.uncertainty)
        order = np.lexsort((times[r, c], r))
        lead = order[np.append(True, np.diff(r[order]) > 0)]
        where = r[lead]
        first = times[where, c[lead]]
        apart = np.maximum(_MIN_SEPARATION * self._window, 2.0 * uncertainty[where])
        late = first + apart
        times[where, c[lead]] = np.inf
        together = (times[where].min(axis=1) <= late) | (late >= end[where])
        found.unresolved[where[together]] = True
        found.guard[where] = c[lead]
        found.left[where] = start[where] + length[lead] * roots.low[lead]
        found.right[where] = start[where] + length[lead] * roots.high[lead]
        found.root[where] = first
        found.slope[where] = roots.slope[lead] / length[lead]


class _Roots(NamedTuple):
    """Where k series fall through zero; times are parts of their steps.

    Attributes:
        low: Start (k,) of the interval of each root.
        high: End (k,).
        root: The root (k,).
        slope: Slope (k,) of the series there, per step.
        uncertainty: Error (k,) of the root due to what the series does not resolve.
    """

    low: Array
    high: Array
    root: Array
    slope: Array
    uncertainty: Array


class _GuardSamples:
    """Single guards on single steps, by their samples and Chebyshev series.

    Args:
        values: Values (k, 8) at the nodes.
        tolerances: Tolerances (k,) of the guards.
    """

    def __init__(self, values: Array, tolerances: Array) -> None:
        self._values, self._tolerances = values, tolerances
        derivatives = values @ TO_DERIVATIVES.transpose(0, 2, 1)
        self._series, self._slopes, self._curvatures = derivatives
        self._error = np.abs(self._series[:, -3:]).sum(axis=1)

    def are_armed(self, threshold: Array) -> Flags:
        """Return which guards are armed by the second node, from their surface.

        Args:
            threshold: Values (k,) below which they would fire unarmed.
        """
        return (self._values[:, 0] >= threshold) & (self._values[:, 1] > self._tolerances)

    def find_falls(self, first_node: Rows) -> tuple[Array, Array, Flags]:
        """Return the intervals in which guards fall through zero, and which are unresolved.

        Unresolved are guards that may dip between two nodes, and those that eight samples do not
        resolve.

        Args:
            first_node: The node (k,) from which on each is armed.

        Returns:
            Starts and ends (k,) of the intervals as parts of the steps, both 0 for none, and flags
            (k,) of what is unresolved.
        """
        is_armed = np.arange(len(FRACTIONS) - 1) >= first_node[:, None]
        down = is_armed & (self._values[:, 1:] < 0.0)
        found, k = down.any(axis=1), down.argmax(axis=1)
        low, high = np.where(found, FRACTIONS[k], 0.0), np.where(found, FRACTIONS[k + 1], 0.0)
        return low, high, ~self._cannot_dip() | self._are_unresolved()

    def find_roots(self, rows: Rows, low: Array, high: Array) -> _Roots:
        """Return the roots of some series, by Newton's iteration from the right, or by halving.

        Args:
            rows: Which of the k series.
            low: Starts (k,) of the intervals of all.
            high: Ends (k,).
        """
        c = list(self._series[rows].T)
        left, right = 2.0 * low[rows] - 1.0, 2.0 * high[rows] - 1.0
        a, b, s = left, right, right
        for _ in range(MAX_BRACKET_STEPS):
            value, slope = value_and_slope(c, s)
            a, b = np.where(value > 0.0, s, a), np.where(value > 0.0, b, s)
            with np.errstate(divide="ignore", invalid="ignore"):
                new = s - value / slope
            new = np.where((slope < 0.0) & (a <= new) & (new <= b), new, 0.5 * (a + b))
            done = np.abs(new - s).max() <= _ROOT_ROUNDING
            s = new
            if done:
                break
        slope = 2.0 * slope  # by parts of a step: s covers a step from -1 to 1
        with np.errstate(divide="ignore"):
            uncertainty = np.abs(self._error[rows] / slope)
        return _Roots(low[rows], high[rows], 0.5 * (s + 1.0), slope, uncertainty)

    def _are_unresolved(self) -> Flags:
        """Return which guards eight samples do not resolve near zero, as `GuardWatch` decides."""
        size = np.abs(self._series)
        is_vague = self._error > np.maximum(MAX_SERIES_TAIL * size.max(axis=1), self._tolerances)
        near_zero = self._values.min(axis=1) < 2.0 * size[:, 2:].sum(axis=1)
        return np.asarray(is_vague & near_zero)

    def _cannot_dip(self) -> Flags:
        """Return which series surely are monotone, or concave: between nodes these do not dip."""
        first, second = self._slopes, self._curvatures
        monotone = np.abs(first[:, 0]) >= np.abs(first[:, 1:]).sum(axis=1)
        return np.asarray(monotone | (second[:, 0] <= -np.abs(second[:, 1:]).sum(axis=1)))
