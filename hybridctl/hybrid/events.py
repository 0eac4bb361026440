"""Where guards fall through zero along an arc, found on the polynomials of its steps.

A guard is armed once it has been clearly positive (above `tolerance`). An armed guard fires
where it falls through zero. One that is not yet armed, because the arc began on its surface,
fires if it falls below -tolerance, so rounding on the surface does not fire it and a real
violation cannot pass; its event is where it left the surface. An arc that begins a little
outside, as after a bounce that stayed below the tolerance, may rise and fall again to where it
began. Eight samples per step give a polynomial of each guard; where its values and slopes on a
finer grid allow a dip between two points, the bottom is looked for, so that two crossings inside
a step are not lost. A step on which eight samples do not resolve a guard (a wall that moves
quickly while the flow is smooth) is halved until they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

from hybridctl.checks import Array, floats
from hybridctl.errors import IntegrationError, SystemDefinitionError
from hybridctl.hybrid.flow import NODES, TO_SERIES, TO_SLOPES, Step, basis
from hybridctl.hybrid.mode import GuardSet, InputLaw, Mode

_ROOT_XTOL = 1e-15
_BOTTOM_XTOL = 1e-8
_HALVINGS = 12
_TAIL = 1e-4
_CREEP = 1e-6
_HOP = 1e-3
_OUTSIDE = 10.0


@dataclass(frozen=True)
class Crossing:
    """The end of an arc: its time, and the guards that fire within the window.

    There are none where the policy changes its law.
    """

    time: float
    guards: tuple[str, ...]


class GuardWatch:
    """Follows the guards of a mode step by step, and reports the first that fires.

    Guards that fall through zero within `window` seconds of the first are part of the same
    event. The memory of the watch is which guards are armed, their last values, and where those
    that are not armed have fallen through zero.

    Raises `SystemDefinitionError` if the guards have the wrong shape, `IntegrationError` if one
    is not finite.
    """

    def __init__(
        self,
        guards: GuardSet,
        mode: Mode,
        law: InputLaw,
        *,
        tolerance: float,
        window: float,
    ) -> None:
        self._guards = guards
        self._mode = mode
        self._normalize = mode.space.normalize
        self._law = law
        self._tolerance = tolerance
        self._window = window
        self._armed = np.zeros(len(guards.names), dtype=np.bool_)
        self._last = np.zeros(len(guards.names))
        self._floor = np.full(len(guards.names), -tolerance)
        self._fell = np.full(len(guards.names), np.nan)

    def start(self, t: float, x: Array, u: Array) -> Array:
        """Take the first sample of the arc; returns the values of the guards there."""
        values = self._asked(t, x, u)
        self._check_finite(np.array([t]), values[None])
        self._armed = values > self._tolerance
        self._last = values.copy()
        self._floor = -np.maximum(self._tolerance, -(1.0 + _CREEP) * values)
        self._floor[values < -_OUTSIDE * self._tolerance] = -self._tolerance
        self._fell = np.where(values <= 0.0, t, np.nan)
        return values

    def scan(self, step: Step) -> Crossing | None:
        """The first crossing on this step."""
        if not self._guards.names:
            return None
        samples = zip(step.times[1:], step.states[1:], step.inputs[1:], strict=True)
        new = [self._asked(t, self._normalize(x), u) for t, x, u in samples]
        values = np.array([self._last, *new])
        self._check_finite(step.times, values)
        self._last = values[-1]
        for times, g, series in self._resolved(step, step.times, values, _HALVINGS):
            crossing = self._first(step, times, g, series)
            if crossing is not None:
                return crossing
        return None

    def imminent(self, step: Step) -> tuple[str, ...]:
        """Armed guards that, by their slope at the end of a step, fall through zero just after it.

        That is, within the window.
        """
        follows = self._armed & self._follows(step, step.end)
        return tuple(name for name, soon in zip(self._guards.names, follows, strict=True) if soon)

    def _resolved(
        self, step: Step, times: Array, g: Array, halvings: int
    ) -> Iterator[tuple[Array, Array, Array]]:
        """Pieces of the step, in order, on which eight samples resolve every guard near zero.

        Each as times (8,), values (8, n), and sizes of their Chebyshev coefficients (8, n).
        """
        series = np.abs(TO_SERIES @ g)
        tail = series[-3:].sum(axis=0)
        vague = (tail > _TAIL * series.max(axis=0)) & (tail > self._tolerance)
        near = g.min(axis=0) < 2.0 * series[2:].sum(axis=0)
        if halvings == 0 or not (vague & near).any():
            yield times, g, series
            return
        middle = 0.5 * (times[0] + times[-1])
        for left, right in ((times[0], middle), (middle, times[-1])):
            nodes = left + (right - left) * 0.5 * (NODES + 1.0)
            nodes[-1] = right
            values = np.array([self._values(step, t) for t in nodes])
            self._check_finite(nodes, values)
            yield from self._resolved(step, nodes, values, halvings - 1)

    def _first(self, step: Step, times: Array, g: Array, series: Array) -> Crossing | None:
        """The first crossing among eight samples g (8, n) that resolve the guards."""
        bend = series[2:].sum(axis=0)  # at most this far from its straight part
        if self._armed.all() and (g.min(axis=0) > 3.0 * bend).all():
            return None
        fine = _FINE_VALUES @ g
        fine[::_FINER] = g
        dips = _may_dip(fine, _FINE_SLOPES @ g, series[-3:].sum(axis=0))
        quiet = self._armed & (fine.min(axis=0) > 0.0) & ~dips.any(axis=0)
        moments = times[0] + (times[-1] - times[0]) * _FINE_FRACTIONS
        moments[::_FINER] = times
        found: dict[int, float] = {}
        for i in np.flatnonzero(~quiet).tolist():
            time = self._fires(i, self._along(step, i), moments, fine[:, i], dips[:, i])
            if time is not None:
                found[i] = time
        if not found:
            return None
        time = min(found.values())
        follows = self._follows(step, time)
        together = [
            name
            for i, name in enumerate(self._guards.names)
            if found.get(i, np.inf) <= time + self._window or follows[i]
        ]
        return Crossing(time, tuple(together))

    def _fires(
        self,
        i: int,
        value: Callable[[float], float],
        times: Array,
        g: Array,
        dips: NDArray[np.bool_],
    ) -> float | None:
        """Time at which guard i fires among these samples, arming it on the way.

        Only every `_FINER`-th value is the guard's own; those between are interpolated, so a
        negative one is asked again.
        """
        armed_from = 0
        for k in range(len(g) - 1):
            if not self._armed[i]:
                if k % _FINER == 0:
                    ends = slice(k, k + _FINER + 1, _FINER)
                    if self._leaves(i, value, times[ends], g[ends]):
                        return float(self._fell[i])
                    armed_from = k + _FINER
            elif k < armed_from:
                continue
            elif g[k + 1] < 0.0 and value(times[k + 1]) < 0.0:
                return _root(value, times[k], times[k + 1])
            elif dips[k]:
                bottom = _lowest(value, times[k], times[k + 1])
                if value(bottom) < 0.0:
                    return _root(value, times[k], bottom)
        return None

    def _leaves(self, i: int, value: Callable[[float], float], times: Array, g: Array) -> bool:
        """Follow guard i, not armed, over one interval; whether it falls below its floor.

        Keeps in `_fell` where it last fell through zero, as long as it has been falling since.
        """
        left, right = times
        before, now = g
        floor = self._floor[i]
        if before < floor:  # the arc began outside
            self._fell[i] = left
            return True
        self._armed[i] = now > self._tolerance
        if now > 0.0:
            self._fell[i] = np.nan
        elif now < before or now < floor:
            top = max(left, _lowest(lambda t: -value(t), left, right), key=value)
            if value(top) > 0.0:
                self._fell[i] = _root(value, top, right)
            elif before == 0.0:
                self._fell[i] = left
            elif value(top) > before + _HOP * self._tolerance:
                self._fell[i] = np.nan
        else:
            self._fell[i] = np.nan
        if now < floor and np.isnan(self._fell[i]):
            self._fell[i] = _root(lambda t: value(t) - floor, left, right)
        return bool(now < floor)

    def _follows(self, step: Step, time: float) -> NDArray[np.bool_]:
        """Which guards, by their slope just before `time`, fall through zero in the window."""
        before = max(time - self._window, step.start)
        if not before < time:
            return np.zeros(len(self._guards.names), dtype=np.bool_)
        now, earlier = self._values(step, time), self._values(step, before)
        slope = np.minimum(now - earlier, 0.0) / (time - before)
        return (earlier > 0.0) & (now + slope * self._window <= 0.0)

    def _along(self, step: Step, i: int) -> Callable[[float], float]:
        """Guard i as a function of time on a step."""
        return lambda t: float(self._values(step, t)[i])

    def _values(self, step: Step, t: float) -> Array:
        x = self._normalize(step.state(t))
        return self._asked(t, x, self._law(t, x))

    def _asked(self, t: float, x: Array, u: Array) -> Array:
        """The values of the guards, checked to be numbers (n,)."""
        given = self._guards.values(t, x, u)
        try:
            values = floats(given)
        except (TypeError, ValueError) as error:
            raise SystemDefinitionError(
                f"guards of mode {self._mode.key!r} must return numbers, got {given!r} at t = {t}"
            ) from error
        if values.shape != self._last.shape:
            raise SystemDefinitionError(
                f"guards of mode {self._mode.key!r} must return shape {self._last.shape}, "
                f"got {values.shape}"
            )
        return values

    def _check_finite(self, times: Array, values: Array) -> None:
        if not np.isfinite(values).all():
            k, i = np.argwhere(~np.isfinite(values))[0]
            raise IntegrationError(
                f"guard {self._guards.names[i]!r} of mode {self._mode.key!r} is {values[k, i]} "
                f"at t = {times[k]:.9g} s"
            )


def _may_dip(g: Array, slope: Array, error: Array) -> NDArray[np.bool_]:
    """Between which of m samples (m, n) a guard may fall below zero and rise again.

    Where the slope changes from falling to rising and one of the tangents at the ends comes as
    near to zero in between as the error of the interpolation (n,); a convex function lies above
    both. Returns (m - 1, n).
    """
    falls, rises = slope[:-1] * _FINE_GAPS, slope[1:] * _FINE_GAPS
    return (falls < 0.0) & (rises > 0.0) & ((g[:-1] + falls <= error) | (g[1:] - rises <= error))


_FINER = 8
_FINE = np.interp(np.arange(7 * _FINER + 1) / _FINER, np.arange(8), NODES)
_FINE_FRACTIONS = 0.5 * (_FINE + 1.0)
_FINE_GAPS = np.diff(_FINE)[:, None]
_FINE_VALUES = basis(_FINE) @ TO_SERIES
_FINE_SLOPES = _FINE_VALUES @ TO_SLOPES


def _lowest(value: Callable[[float], float], left: float, right: float) -> float:
    """Where `value` is least between left and right, given that it has one minimum there."""
    options = {"xatol": _BOTTOM_XTOL * (right - left)}
    return float(minimize_scalar(value, bounds=(left, right), method="bounded", options=options).x)


def _root(value: Callable[[float], float], left: float, right: float) -> float:
    """Where `value` falls through zero in [left, right], given that it does."""
    if value(left) <= 0.0:
        return float(left)
    if value(right) >= 0.0:
        return float(right)
    return float(brentq(value, left, right, xtol=_ROOT_XTOL))
