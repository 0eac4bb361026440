"""The events of an arc: guards that fall through zero, found on the series of its steps.

A guard is armed once it has been clearly positive (above its tolerance). An armed guard fires
where it falls through zero. One that is not yet armed, because the arc began on its surface,
fires if it falls below -tolerance, so rounding on the surface does not fire it and a real
violation cannot pass; its event is where it left the surface. An arc that begins a little
outside, as after a bounce that stayed below the tolerance, may rise and fall again to where it
began.

Only guards that are not armed, or whose bound on a step (see `step`) lets them cross, are looked
at, in the order in which their samples fall below zero, and none beyond where another has fired.
The root of the guard's series is where Newton's iteration with the guard itself begins; so is the
bottom of a dip between two samples. A step on which eight samples do not resolve a guard (a wall
that moves quickly while the flow is smooth) is halved until they do, or until its parts are no
longer than the window in which events are one.

A guard that comes to exactly zero may be held there, as the force of a contact at the border of its
cone is: it fires where it leaves zero, with all others that are zero then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

from hybridctl.checks import Array
from hybridctl.errors import IntegrationError
from hybridctl.hybrid.flow import Flow
from hybridctl.hybrid.guards import GuardSet
from hybridctl.hybrid.model import ModeKey
from hybridctl.hybrid.series import (
    FRACTIONS,
    NODES,
    TO_DERIVATIVES,
    TO_SERIES,
    TO_SLOPES,
    basis,
    value_and_slope,
)
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.tolerances import (
    BRIEF,
    CREEP,
    HOP,
    OUTSIDE,
    ROOT,
    SHORT,
    SPACINGS,
    TAIL,
)

ITERATIONS = 60  # of a bracketed search, which halves
NEWTON = 5  # steps of Newton's iteration, of which the second usually is the last
_DOUBLED = 1e-8  # of an interval: the square of a change this small is rounding
_CLEARLY = 100.0  # times rounding: where a guard falls on, it is that far below zero soon
_HALVINGS = 12  # of a step, until eight samples resolve a guard
_PIECES = 100  # of a step, halved at most

Value = Callable[[float], float]


class Crossing(NamedTuple):
    """The end of an arc: its time, and the guards that fire within the window.

    There are none where the policy changes its law. held: whether one was held at zero until
    then, as forces at the border of a cone are, and may jump.
    """

    time: float
    guards: tuple[str, ...]
    held: bool = False


class GuardPiece:
    """A guard with values (8,) at the nodes of an interval that they resolve.

    series: its Chebyshev coefficients. error: the size of the last ones, how well they know it.
    """

    def __init__(self, left: float, right: float, values: Array) -> None:
        self.left, self.right, self.values = left, right, values
        self.samples: list[float] = values.tolist()
        self.series, self._slopes, self._bends = (TO_DERIVATIVES @ values).tolist()
        self.error = sum(map(abs, self.series[-3:]))

    def at(self, t: float) -> tuple[float, float]:
        """The value of the series, and its slope, 1/s."""
        scale = 2.0 / (self.right - self.left)
        value, slope = value_and_slope(self.series, scale * (t - self.left) - 1.0)
        return value, scale * slope

    def __call__(self, t: float) -> float:
        """The value of the series."""
        return self.at(t)[0]

    def root(self, low: float, high: float, before: float, now: float) -> tuple[float, float]:
        """The root of the series between values `before` at low and `now` at high.

        The time, nearly, and the slope there, 1/s. Newton's iteration from where the secant falls,
        halving what brackets the root wherever that leads astray, until what the next step changes
        is rounding.
        """
        t = low + (high - low) * before / (before - now) if before > 0.0 > now else high
        for _ in range(ITERATIONS):
            value, slope = self.at(t)
            low, high = (t, high) if value > 0.0 else (low, t)
            new = t - value / slope if slope < 0.0 else math.nan
            if not low <= new <= high:
                new = 0.5 * (low + high)
            change, t = abs(new - t), new
            if change <= _DOUBLED * (self.right - self.left):
                break
        return t, slope

    def bends_one_way(self) -> bool:
        """Whether the series surely is monotone, or concave: no dip hides between two samples."""
        first, second = self._slopes, self._bends
        if abs(first[0]) >= sum(map(abs, first[1:])):
            return True
        return bool(second[0] <= -sum(map(abs, second[1:])))

    def refined(self) -> tuple[list[float], list[float], list[bool], int]:
        """Times and values, whether the guard may dip between each two of them, and their density.

        Density 1 are the nodes; with more, only every so-many-th value is the guard's own.
        """
        if self.bends_one_way():
            return self._times(_FRACTIONS), self.samples, _NO_DIPS, 1
        values = FINE_VALUES @ self.values
        values[::FINER] = self.values
        dips = may_dip(values, FINE_SLOPES @ self.values, self.error)
        return self._times(FINE_FRACTIONS.tolist()), values.tolist(), dips.tolist(), FINER

    def _times(self, fractions: list[float]) -> list[float]:
        """Times at fractions of the interval, of which the last is one."""
        left, length = self.left, self.right - self.left
        return [*(left + length * s for s in fractions[:-1]), self.right]


class GuardWatch:
    """A watch that follows the guards of a mode step by step, and reports the first that fires.

    Guards that fall through zero within `window` seconds of the first are part of the same
    event. tolerance: relative to the scale of each guard. The memory of the watch is which guards
    are armed, and where those that are not have fallen through zero.

    Raises `SystemDefinitionError` for guards that are no numbers or of the wrong shape,
    `IntegrationError` if one is not finite.
    """

    def __init__(self, guards: GuardSet, key: ModeKey, *, tolerance: float, window: float) -> None:
        self._guards, self._key, self._window = guards, key, window
        self._brief = min(window, BRIEF)
        self._armed: list[bool] = []
        self._floor: list[float] = []
        self._fell: list[float] = []
        self._tolerances: list[float] = (tolerance * guards.sizes).tolist()
        self._rounding: list[float] = (np.finfo(np.float64).eps * guards.sizes).tolist()

    def begin(self) -> None:
        """Begin an arc, with the next step that is scanned."""
        self._armed = []

    def outside(self, values: Array) -> tuple[str, ...]:
        """The guards, of these values (n,), that fire at once where an arc begins there."""
        each = zip(self._guards.names, values.tolist(), self._tolerances, strict=True)
        return tuple(name for name, g, allowed in each if g < -OUTSIDE * allowed)

    def _start(self, t: float, values: Array) -> None:
        """Look at the guards (n,) at time t, the start of an arc."""
        self._armed, self._floor, self._fell = [], [], []
        for g, allowed in zip(values.tolist(), self._tolerances, strict=True):
            self._armed.append(g > allowed)
            outside = g < -OUTSIDE * allowed
            self._floor.append(-allowed if outside else -max(allowed, -(1.0 + CREEP) * g))
            self._fell.append(t if g <= 0.0 else math.nan)

    def scan(self, step: Step, flow: Flow) -> Crossing | None:
        """The first crossing on this step, the last one of the flow."""
        if step.guards is None or step.bounds is None or not self._guards.names:
            return None
        if not self._armed:
            self._start(step.start, step.guards[0])
        bounds = step.bounds.tolist()
        open_ones = [
            i
            for i, (bound, armed) in enumerate(zip(bounds, self._armed, strict=True))
            if not (armed and bound > 0.0)
        ]
        if not open_ones:
            return None
        if not all(map(math.isfinite, bounds)) and not np.isfinite(step.guards).all():
            raise self._not_finite(step.times.tolist(), step.guards, self._guards.names)
        found: dict[int, float] = {}
        late = math.inf
        if len(open_ones) > 1:
            negative = np.vstack((step.guards < 0.0, np.ones(len(self._guards.names), dtype=bool)))
            open_ones.sort(key=negative.argmax(axis=0).__getitem__)
        for i in open_ones:
            whole = GuardPiece(step.start, step.end, step.guards[:, i])
            time = self._first(i, whole, partial(flow.guard, step, i), late)
            if time is not None:
                found[i] = time
                late = min(late, time + self._window)
        if not found:
            return None
        time = min(found.values())
        follow = self._soon(step, late - step.end) if late > step.end else []
        held = time >= step.start and any(flow.guard(step, i, time) == 0.0 for i in found)
        if held:
            follow += self._at_zero(partial(flow.guard, step), time)
        together = [
            name
            for i, name in enumerate(self._guards.names)
            if found.get(i, math.inf) <= late or i in follow
        ]
        return Crossing(time, tuple(together), held)

    def _at_zero(self, guard: Callable[[int, float], float], time: float) -> list[int]:
        """Armed guards that have come to zero at a time until which another is held there.

        When loads leave their cones, those of contacts that had hardly any are told by this alone.
        """
        return [i for i, armed in enumerate(self._armed) if armed and guard(i, time) == 0.0]

    def imminent(self, step: Step) -> tuple[str, ...]:
        """Armed guards that fall through zero within the window after a step, by their slope."""
        names = self._guards.names
        return tuple(names[i] for i in self._soon(step, self._window))

    def _soon(self, step: Step, time: float) -> list[int]:
        """Armed guards that reach zero within `time` s after a step, by their slope at its end."""
        if step.guards is None or not self._guards.names:
            return []
        now = step.guards[-1]
        later = now + time * 2.0 / (step.end - step.start) * (TO_SLOPES[-1] @ step.guards)
        reach = (now >= 0.0) & (later <= 0.0) & (later < now)
        return [i for i in np.flatnonzero(reach).tolist() if self._armed[i]]

    def _first(self, i: int, whole: GuardPiece, guard: Value, late: float) -> float | None:
        """The time at which guard i fires on a whole step, if it is not after `late`.

        One that is not armed may fire later, for having fallen before.
        """
        for piece in self._resolved(i, whole, guard):
            if piece.left > late and not self._fell[i] <= late:
                return None
            time = self._fires(i, piece, guard)
            if time is not None:
                return time
        return None

    def _resolved(self, i: int, whole: GuardPiece, guard: Value) -> Iterator[GuardPiece]:
        """Pieces of a step, in order, on which eight samples resolve guard i near zero.

        What so many of them do not resolve is left as it is, and half as many where the shortest
        do not: a kink is one of these, but a guard that is rounding, as forces are where hardly any
        are inside the cones, is so at any length.
        """
        pending, most = [(whole, _HALVINGS)], _PIECES
        while pending:
            piece, halvings = pending.pop()
            resolved = self._is_resolved(i, piece)
            if resolved or most == 0 or halvings == 0:
                yield piece
                most = most if resolved else most // 2
                continue
            most -= 1
            middle, halves = 0.5 * (piece.left + piece.right), []
            for left, right in ((piece.left, middle), (middle, piece.right)):
                times = [*(left + (right - left) * FRACTIONS)[:-1].tolist(), right]
                values = np.array([guard(t) for t in times])
                if not np.isfinite(values).all():
                    raise self._not_finite(times, values[:, None], self._guards.names[i : i + 1])
                halves.append((GuardPiece(left, right, values), halvings - 1))
            pending += reversed(halves)

    def _is_resolved(self, i: int, piece: GuardPiece) -> bool:
        """Whether eight samples of guard i resolve it, or need not.

        One that is exactly zero at some of them, and negative at none, is held there, as forces at
        the border of a cone are: it bends where that begins, and does not fall further.
        """
        size = [abs(c) for c in piece.series]
        vague = piece.error > max(TAIL * max(size), self._tolerances[i])
        short = piece.right - piece.left <= max(SHORT * math.ulp(piece.right), self._brief)
        lowest = min(piece.samples)
        held = lowest == 0.0 and piece.samples.count(0.0) > 1
        return short or not vague or held or lowest >= 2.0 * sum(size[2:])

    def _fires(self, i: int, piece: GuardPiece, guard: Value) -> float | None:
        """Time at which guard i fires on a piece that resolves it, arming it on the way."""
        times, g, dips, density = piece.refined()
        armed_from = 0
        for k in range(len(g) - 1):
            if not self._armed[i]:
                if k % density == 0:
                    last = k + density
                    if self._leaves(i, piece, guard, (times[k], times[last]), (g[k], g[last])):
                        return self._fell[i]
                    armed_from = last
            elif k < armed_from:
                continue
            elif g[k + 1] < 0.0:
                if (k + 1) % density == 0 or guard(times[k + 1]) < 0.0:
                    ends, node = (times[k], times[k + 1]), k - k % density
                    sampled = times[node], times[node + density]
                    if not g[node + density] < 0.0:
                        sampled = times[node], times[k + 1]
                    values = g[k], g[k + 1]
                    return _root(piece, guard, ends, values, sampled, self._rounding[i])
            elif dips[k]:
                bottom = _lowest(piece, times[k], times[k + 1])
                below = guard(bottom)
                if below < 0.0:
                    sampled = times[k - k % density], bottom
                    ends, values = (times[k], bottom), (g[k], below)
                    return _root(piece, guard, ends, values, sampled, self._rounding[i])
        return None

    def _leaves(
        self,
        i: int,
        piece: GuardPiece,
        guard: Value,
        times: tuple[float, float],
        values: tuple[float, float],
    ) -> bool:
        """Follow guard i, not armed, over one interval; whether it falls below its floor.

        Keeps in `_fell` where it last fell through zero, as long as it has been falling since.
        """
        (left, right), (before, now) = times, values
        floor, tolerance, least = self._floor[i], self._tolerances[i], self._rounding[i]
        if before < floor:  # the arc began outside
            self._fell[i] = left
            return True
        self._armed[i] = now > tolerance
        if now >= 0.0:
            self._fell[i] = math.nan
        elif now < before or now < floor:
            top = left
            if piece.at(left)[1] > 0.0:  # it has one maximum here
                top = max(left, _lowest(lambda t: -piece(t), left, right), key=piece)
            highest = max(piece(top), before)
            if highest > 0.0:
                sampled = left if before > 0.0 else top, right
                self._fell[i] = _root(piece, guard, (top, right), (highest, now), sampled, least)
            elif highest > before + HOP * tolerance:
                self._fell[i] = math.nan
            elif before == 0.0:
                self._fell[i] = _leaving(guard, left, piece.at(left)[1], right, least)
        else:
            self._fell[i] = math.nan
        if now < floor and math.isnan(self._fell[i]):
            self._fell[i] = _bracketed(lambda t: guard(t) - floor, left, right)
        return bool(now < floor)

    def _not_finite(
        self, times: list[float], values: Array, names: Sequence[str]
    ) -> IntegrationError:
        """The error of guards (m, n) at times (m,) of which one is not finite."""
        k, i = np.argwhere(~np.isfinite(values))[0]
        return IntegrationError(
            f"guard {names[i]!r} of mode {self._key!r} is {values[k, i]} at t = {times[k]:.9g} s"
        )


def may_dip(g: Array, slope: Array, error: float | Array) -> NDArray[np.bool_]:
    """Whether a guard may fall below zero and rise again, between each two of m samples (..., m).

    Where the slope changes from falling to rising and one of the tangents at the ends comes as
    near to zero in between as the error of the series; a convex function lies above both. Returns
    m - 1 answers.
    """
    falls, rises = slope[..., :-1] * FINE_GAPS, slope[..., 1:] * FINE_GAPS
    near = (g[..., :-1] + falls <= error) | (g[..., 1:] - rises <= error)
    return np.asarray((falls < 0.0) & (rises > 0.0) & near)


_FRACTIONS: list[float] = FRACTIONS.tolist()
_NO_DIPS = [False] * (len(NODES) - 1)
FINER = 8
_FINE = np.interp(np.arange(7 * FINER + 1) / FINER, np.arange(8), NODES)
FINE_FRACTIONS = 0.5 * (_FINE + 1.0)
FINE_GAPS = np.diff(_FINE)
FINE_VALUES = basis(_FINE) @ TO_SERIES
FINE_SLOPES = FINE_VALUES @ TO_SLOPES


def _lowest(value: Value, left: float, right: float) -> float:
    """The place between left and right where `value` has its one minimum."""
    options = {"xatol": _DOUBLED * (right - left)}
    return float(minimize_scalar(value, bounds=(left, right), method="bounded", options=options).x)


def _root(
    piece: GuardPiece,
    guard: Value,
    ends: tuple[float, float],
    values: tuple[float, float],
    sampled: tuple[float, float],
    rounding: float,
) -> float:
    """The time when a guard falls through zero, by Newton from the root of its series.

    values: of the series at the two times. sampled: times around them at which the guard itself was
    seen to be positive, and negative: series know little of guards that jump. rounding: of the
    guard, where iteration may end.
    """
    (left, right), before = ends, math.inf
    t, slope = piece.root(*ends, *values)
    for _ in range(NEWTON if slope < 0.0 else 0):
        value, spacing = guard(t), math.ulp(t)
        change = -value / slope
        if abs(change) <= max(ROOT, SPACINGS * spacing):
            break
        if not (left <= t + change <= right and abs(change) <= 0.5 * before):
            if abs(value) <= rounding:
                break
            return _bracketed(guard, *sampled)
        t, before = t + change, abs(change)
    else:
        return _bracketed(guard, *sampled)
    if piece.error < -slope * BRIEF:
        return t  # had it been held for so long, the series would not know it so well
    return _leaving(guard, t, slope, sampled[1], rounding)


def _leaving(guard: Value, zero: float, slope: float, right: float, rounding: float) -> float:
    """The time when a guard that is zero leaves zero: at once, but for `BRIEF`, or after a while.

    Forces at the border of a cone stay there until the cone can no longer hold them. The guard is
    negative at `right`.
    """
    ahead = zero + max(BRIEF, _CLEARLY * rounding / -slope if slope < 0.0 else 0.0)
    if ahead >= right or guard(ahead) < 0.0:
        return zero
    return _last_inside(guard, ahead, right)


def _bracketed(value: Value, left: float, right: float) -> float:
    """The place in [left, right] where `value` falls through zero, given that it does.

    Just before, where it jumps; the last one, where it is held at zero.
    """
    before = value(left)
    if before < 0.0:
        return left
    if value(right) >= 0.0:
        return right
    t = float(brentq(value, left, right, xtol=ROOT)) if before > 0.0 else left
    found = value(t)
    if found < 0.0:
        return max(left, t - _spaced(t))
    return _leaving(value, t, 0.0, right, 0.0) if found == 0.0 else t


def _last_inside(value: Value, left: float, right: float) -> float:
    """The last place in [left, right] where `value` is not negative, as it is at left."""
    if value(right) >= 0.0:
        return right
    while right - left > _spaced(left):
        middle = 0.5 * (left + right)
        left, right = (middle, right) if value(middle) >= 0.0 else (left, middle)
    return left


def _spaced(t: float) -> float:
    """As far as times next to t are known apart, s."""
    return ROOT + SPACINGS * math.ulp(t)
