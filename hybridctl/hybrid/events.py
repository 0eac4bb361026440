"""Where guards fall through zero along an arc, found on the polynomials of its steps.

A guard is armed once it has been clearly positive (above `tolerance`). An armed guard fires
where it falls through zero; one that is not yet armed, because the arc began on its surface,
fires where it falls below -tolerance, so rounding on the surface does not fire it and a
real violation cannot pass. Between samples, a dip is looked for wherever three neighbouring
values make one possible, so that two crossings inside a step are not lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

from hybridctl.checks import Array
from hybridctl.hybrid.flow import Step
from hybridctl.hybrid.mode import GuardSet, InputLaw, Mode

_ROOT_XTOL = 1e-15


@dataclass(frozen=True)
class Crossing:
    """The first firing on an arc: its time, and the guards that fire within the window."""

    time: float
    guards: tuple[str, ...]


class GuardWatch:
    """Follows the guards of a mode step by step, and reports the first that fires.

    Guards that fall through zero within `window` seconds of the first are part of the same
    event. The memory of the watch is which guards are armed and the last two samples.
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
        self._normalize = mode.space.normalize
        self._law = law
        self._tolerance = tolerance
        self._window = window
        self._armed = np.zeros(len(guards.names), dtype=np.bool_)
        self._steps: list[Step] = []
        self._times = np.zeros(0)
        self._values = np.zeros((0, len(guards.names)))

    def start(self, t: float, x: Array, u: Array) -> Array:
        """Take the first sample of the arc; returns the values of the guards there."""
        values = self._guards.values(t, x, u)
        self._armed = values > self._tolerance
        self._times, self._values = np.array([t]), values[None]
        return values

    def scan(self, step: Step) -> Crossing | None:
        """The first crossing on this step, or in the dip between it and the one before."""
        if not self._guards.names:
            return None
        new = [
            self._guards.values(t, self._normalize(x), u)
            for t, x, u in zip(step.times[1:], step.states[1:], step.inputs[1:], strict=True)
        ]
        self._steps = [*self._steps[-1:], step]
        self._times = np.append(self._times[-2:], step.times[1:])
        self._values = np.concatenate([self._values[-2:], new])
        fired = ((self._fires(i), i) for i in range(len(self._guards.names)))
        found = [(time, i) for time, i in fired if time is not None]
        if not found:
            return None
        time, first = min(found)
        return Crossing(time, self._together(time, first))

    def _fires(self, i: int) -> float | None:
        """Time at which guard i fires among the present samples, arming it on the way."""
        times, g = self._times, self._values[:, i]
        if self._armed[i] and g.min() > 0.0 and not _may_dip(g).any():
            return None
        value = self._along(i)
        for k in range(1, len(g)):
            if g[k] < (0.0 if self._armed[i] else -self._tolerance):
                level = 0.0 if g[k - 1] > 0.0 else -self._tolerance
                return _root(value, times[k - 1], times[k], level)
            if self._armed[i] and k + 1 < len(g) and _may_dip(g[k - 1 : k + 2])[0]:
                bottom = minimize_scalar(
                    value, bounds=(times[k - 1], times[k + 1]), method="bounded"
                )
                if bottom.fun < 0.0 < g[k - 1]:
                    return _root(value, times[k - 1], float(bottom.x), 0.0)
            self._armed[i] |= g[k] > self._tolerance
        return None

    def _along(self, i: int) -> Callable[[float], float]:
        """Guard i as a function of time on the kept steps."""

        def value(t: float) -> float:
            step = self._steps[0] if t <= self._steps[0].end else self._steps[-1]
            x = self._normalize(step.state(t))
            return float(self._guards.values(t, x, self._law(t, x))[i])

        return value

    def _together(self, time: float, first: int) -> tuple[str, ...]:
        """The guards that fire at `time` or, by their present slope, within the window."""
        names = [self._guards.names[first]]
        before = max(time - self._window, float(self._times[0]))
        for i, name in enumerate(self._guards.names):
            if i == first:
                continue
            value = self._along(i)
            now, earlier = value(time), value(before)
            slope = min(now - earlier, 0.0) / (time - before) if time > before else 0.0
            if earlier > 0.0 and now + slope * self._window <= 0.0:
                names.append(name)
        return tuple(sorted(names, key=self._guards.names.index))


def _may_dip(g: Array) -> NDArray[np.bool_]:
    """Whether a smooth function through three neighbours could reach zero beside the middle one.

    A parabola through equally spaced values dips below the middle one by at most an eighth of
    its larger rise; half of it allows for unequal spacing.
    """
    a, b, c = g[:-2], g[1:-1], g[2:]
    return (b < a) & (b <= c) & (2.0 * b <= np.maximum(a, c) - b)


def _root(value: Callable[[float], float], left: float, right: float, level: float) -> float:
    """Where `value` falls through `level` in [left, right], given that it does."""
    if value(left) <= level:
        return float(left)
    if value(right) >= level:
        return float(right)
    return float(brentq(lambda t: value(t) - level, left, right, xtol=_ROOT_XTOL))
