"""The events of many members: guards that fall through zero, each on a step of its own.

The rules are those of `hybrid.events`. Only what they decide from the series of a guard alone is
decided here, for all members at once: a guard that is armed at the start of a step, or by its
second node, and either clearly stays positive or falls through zero between two samples. Steps on
which it takes more are odd, and left to `GuardWatch`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.hybrid.events import MAX_BRACKET_STEPS
from hybridctl.hybrid.series import FRACTIONS, TO_DERIVATIVES, value_and_slope
from hybridctl.hybrid.tolerances import (
    MAX_SERIES_TAIL,
    MAX_START_VIOLATION,
    MAX_VIOLATION_GROWTH,
    MIN_SAMPLED_SPACINGS,
)

Rows: TypeAlias = NDArray[np.intp]
Flags: TypeAlias = NDArray[np.bool_]

_ROUNDING = 1e-15  # of half a step: the root of a series is known no better
_APART = 2.0  # event windows: roots farther apart than this, and than both are vague, are two


class StepVerdicts(NamedTuple):
    """What the guards of k members do on their steps, each from `start` to `end`.

    odd (k,): whether it takes more to say. guard (k,): the one that fires, -1 for none; then it
    falls through zero between `left` and `right` (k,), its series near `root` with a slope, 1/s.
    """

    odd: Flags
    guard: Rows
    left: Array
    right: Array
    root: Array
    slope: Array

    def part(self, which: Rows) -> StepVerdicts:
        """The verdicts of the members at some positions."""
        places = (part[which] for part in self[2:])
        return StepVerdicts(self.odd[which], self.guard[which], *places)


class Watch:
    """The guards of all members, with which of them are armed on the present arc.

    tolerances (n,): above which a guard is. window: guards that fire within it fire together, s.
    """

    def __init__(self, members: int, tolerances: Array, window: float) -> None:
        self._tolerances, self._window = tolerances, window
        self._armed = np.zeros((members, len(tolerances)), dtype=bool)
        self._floor = np.zeros((members, len(tolerances)))

    def start(self, rows: Rows, values: Array) -> Flags:
        """Begin arcs of members `rows` with guards (k, n); returns who is outside its mode."""
        allowed = self._tolerances
        self._armed[rows] = values > allowed
        inside = -np.maximum(allowed, -(1.0 + MAX_VIOLATION_GROWTH) * values)
        self._floor[rows] = np.where(values < -MAX_START_VIOLATION * allowed, -allowed, inside)
        return np.asarray((values < -allowed).any(axis=1))

    def scan(
        self, rows: Rows, start: Array, end: Array, guards: Array, bounds: Array
    ) -> StepVerdicts:
        """The steps of members `rows` (k,), with guards (k, 8, n) and their bounds (k, n)."""
        k = len(rows)
        seen = StepVerdicts(
            np.asarray(~np.isfinite(guards).all(axis=(1, 2))),
            np.full(k, -1),
            *(np.full(k, np.nan) for _ in range(4)),
        )
        r, c = np.nonzero(~(self._armed[rows] & (bounds > 0.0)) & ~seen.odd[:, None])
        if not len(r):
            return seen
        member = rows[r]
        pairs = _Pairs(guards[r, :, c], self._tolerances[c])
        armed, quick = self._armed[member, c], pairs.armed_at_once(self._floor[member, c])
        self._armed[member, c] = armed | quick
        low, high, odd = pairs.falls(np.where(armed, 0, 1))
        odd |= ~(armed | quick) | (
            (end - start)[r] <= MIN_SAMPLED_SPACINGS * np.spacing(np.abs(end[r]))
        )
        seen.odd[r[odd]] = True
        fall = np.flatnonzero(~odd & (high > 0.0))
        if len(fall):
            self._first(seen, start, end, r[fall], c[fall], pairs.rooted(fall, low, high))
        return seen

    def _first(
        self, seen: StepVerdicts, start: Array, end: Array, r: Rows, c: Rows, roots: _Roots
    ) -> None:
        """Choose the first guard that falls on each step, if no other falls with it."""
        length = (end - start)[r]
        times = np.full(self._armed[: len(start)].shape, np.inf)
        vague = np.zeros(len(start))
        times[r, c] = start[r] + length * roots.root
        np.maximum.at(vague, r, length * roots.vague)
        order = np.lexsort((times[r, c], r))
        lead = order[np.append(True, np.diff(r[order]) > 0)]
        where = r[lead]
        first = times[where, c[lead]]
        late = first + np.maximum(_APART * self._window, 2.0 * vague[where])
        times[where, c[lead]] = np.inf
        together = (times[where].min(axis=1) <= late) | (late >= end[where])
        seen.odd[where[together]] = True
        seen.guard[where] = c[lead]
        seen.left[where] = start[where] + length[lead] * roots.low[lead]
        seen.right[where] = start[where] + length[lead] * roots.high[lead]
        seen.root[where] = first
        seen.slope[where] = roots.slope[lead] / length[lead]


class _Roots(NamedTuple):
    """The roots where k series fall through zero, in parts of their step.

    Each between low and high (k,), at root, with a slope per step, known as well as `vague`.
    """

    low: Array
    high: Array
    root: Array
    slope: Array
    vague: Array


class _Pairs:
    """Guards on steps, by their values (k, 8) at the nodes and their tolerances (k,)."""

    def __init__(self, values: Array, tolerances: Array) -> None:
        self._values, self._tolerances = values, tolerances
        self._series, self._slopes, self._bends = values @ TO_DERIVATIVES.transpose(0, 2, 1)
        self._error = np.abs(self._series[:, -3:]).sum(axis=1)

    def armed_at_once(self, floor: Array) -> Flags:
        """The guards that begin on their surface and are armed by the second node."""
        return (self._values[:, 0] >= floor) & (self._values[:, 1] > self._tolerances)

    def falls(self, begin: Rows) -> tuple[Array, Array, Flags]:
        """The parts (k,) of their steps between which guards fall, both 0 for none, and who is odd.

        begin (k,): the node from which on each is armed. Odd are guards that may dip between two
        nodes, and those that eight samples do not resolve.
        """
        down = (np.arange(len(FRACTIONS) - 1) >= begin[:, None]) & (self._values[:, 1:] < 0.0)
        found, k = down.any(axis=1), down.argmax(axis=1)
        low, high = np.where(found, FRACTIONS[k], 0.0), np.where(found, FRACTIONS[k + 1], 0.0)
        return low, high, ~self._bends_one_way() | self._vague()

    def rooted(self, which: Rows, low: Array, high: Array) -> _Roots:
        """The roots of the series `which`, by Newton's iteration from the right, or halving."""
        c = list(self._series[which].T)
        left, right = 2.0 * low[which] - 1.0, 2.0 * high[which] - 1.0
        a, b, s = left, right, right
        for _ in range(MAX_BRACKET_STEPS):
            now, slope = value_and_slope(c, s)
            a, b = np.where(now > 0.0, s, a), np.where(now > 0.0, b, s)
            with np.errstate(divide="ignore", invalid="ignore"):
                new = s - now / slope
            new = np.where((slope < 0.0) & (a <= new) & (new <= b), new, 0.5 * (a + b))
            done = np.abs(new - s).max() <= _ROUNDING
            s = new
            if done:
                break
        slope = 2.0 * slope
        with np.errstate(divide="ignore"):
            vague = np.abs(self._error[which] / slope)
        return _Roots(low[which], high[which], 0.5 * (s + 1.0), slope, vague)

    def _vague(self) -> Flags:
        """The guards that eight samples do not resolve near zero, see `GuardWatch`."""
        size = np.abs(self._series)
        vague = self._error > np.maximum(MAX_SERIES_TAIL * size.max(axis=1), self._tolerances)
        return np.asarray(vague & (self._values.min(axis=1) < 2.0 * size[:, 2:].sum(axis=1)))

    def _bends_one_way(self) -> Flags:
        """The series that surely are monotone, or concave."""
        first, second = self._slopes, self._bends
        monotone = np.abs(first[:, 0]) >= np.abs(first[:, 1:]).sum(axis=1)
        return np.asarray(monotone | (second[:, 0] <= -np.abs(second[:, 1:]).sum(axis=1)))
