"""The discrete scheme of a relaxation: fixed steps that may pass a strip in one go, [Relax] 7.7.

With the printed weights exchanged, the relaxed reset, and the start of the next step, which the
paper does not say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_callable,
    check_instance,
    check_interval,
    check_number,
    check_vector,
)
from hybridctl.base.errors import InputError, OverlappingStripsError
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.relaxation.relax import FREE, HELD, InStrip, Relaxed
from hybridctl.relaxation.strip import Strip

Rate: TypeAlias = Callable[[float, Array], Array]
OneStep: TypeAlias = Callable[[Rate, float, Array, float], Array]

_WHOLE = 1e-9  # of a step: by how much the span may differ from a whole number of them


def euler(f: Rate, t: float, y: Array, h: float) -> Array:
    """The step y + h f(t, y) of Euler."""
    return y + h * f(t, y)


def runge_kutta(f: Rate, t: float, y: Array, h: float) -> Array:
    """The classical step of order four."""
    a = f(t, y)
    b = f(t + 0.5 * h, y + 0.5 * h * a)
    c = f(t + 0.5 * h, y + 0.5 * h * b)
    d = f(t + h, y + h * c)
    return y + h / 6.0 * (a + 2.0 * b + 2.0 * c + d)


@dataclass(frozen=True, eq=False)
class DiscreteRun:
    """A trajectory on a grid.

    times (N + 1,), s. modes: of the system, one per time. states: each (nx,) of its mode, behind a
    guard by up to epsilon where `behind` (N + 1,) says so; entered: the same in the chart of the
    mode entered.
    """

    times: Array
    modes: tuple[ModeKey, ...]
    states: tuple[Array, ...]
    entered: tuple[Array, ...]
    behind: tuple[bool, ...]


def discretize_relaxed(
    relaxed: Relaxed,
    mode: ModeKey,
    x0: ArrayLike,
    t_span: ArrayLike,
    step: float,
    method: OneStep = euler,
    law: InputLaw | None = None,
) -> DiscreteRun:
    """Steps of a fixed length (s) from state x0 in `mode`, with any one-step method.

    Behind a guard the field is that of its strip, and beyond the strip the next mode's, pulled
    back: a step may begin before the guard and end beyond the strip, and is then reset. law: input
    u(t, x), held over each step.

    Such a step sees little of the blended field, so that the scheme has the order of the method
    only where a step is short against the time in the strip, and there the smoothness of the field
    (C^1,1) limits it to 2. Once the step's travel exceeds epsilon it is of first order in the step.

    Raises `InputError` for bad arguments, a span that is no multiple of the step, and where a step
    lands outside the next mode; `OverlappingStripsError` where it ends behind two guards.
    """
    check_instance("relaxed", relaxed, Relaxed)
    start, end = check_interval("t_span", t_span)
    h, first = check_number("step", step, above=0.0), relaxed.inner.mode(mode)
    count = round((end - start) / h)
    if count < 1 or abs(count * h - (end - start)) > _WHOLE * h * count:
        raise InputError(f"t_span must be a multiple of step = {h}, got {end - start} s")
    walker = _Walker(
        relaxed, mode, check_vector("x0", x0, first.space.nx), check_callable("method", method), h
    )
    if law is not None:
        check_callable("law", law)
    points = [walker.point(start)]
    for k in range(count):
        t = start + k * h
        walker.advance(t, np.zeros(first.nu) if law is None else np.asarray(law(t, walker.x)))
        points.append(walker.point(start + (k + 1) * h))
    modes, states, entered, behind = zip(*points, strict=True)
    times = np.asarray(start + h * np.arange(count + 1), dtype=np.float64)
    return DiscreteRun(times, modes, states, entered, behind)


class _Walker:
    """The place where the scheme stands: mode, y = (x, z), and the strip that z belongs to."""

    def __init__(
        self, relaxed: Relaxed, mode: ModeKey, x: Array, method: OneStep, h: float
    ) -> None:
        self._relaxed, self._method, self._h = relaxed, method, h
        self.mode, self.x = mode, x
        self._strip: Strip | None = None
        self._y = x

    def point(self, t: float) -> tuple[ModeKey, Array, Array, bool]:
        """What is recorded at t."""
        strip = self._strip
        if strip is None:
            return self.mode, self.x, self.x, False
        return self.mode, self.x, strip.entered(t, self._y, np.zeros(strip.source.nu)), True

    def advance(self, t: float, u: Array) -> None:
        """One step from t under the input u (nu,)."""
        guards, later = self._relaxed.inner.outgoing(self.mode).guards, t + self._h
        if not guards.names:
            self.x = self._y = self._flown(None, t, u)
            return
        chosen = int(guards.values(t, self.x, u).argmin())
        for _ in range(2):  # with the nearest strip, and again with the one it ended in
            strip = self._relaxed.strip(self.mode, guards.names[chosen])
            y = self._flown(strip, t, u)
            values = guards.values(later, y[: strip.n], u)
            behind = np.flatnonzero(values < 0.0).tolist()
            if all(i == chosen for i in behind):
                break
            if len(behind) > 1:
                raise self._overlap([guards.names[i] for i in behind], later, y[: strip.n])
            (chosen,) = behind
        self._arrive(strip, later, y, u)

    def _flown(self, strip: Strip | None, t: float, u: Array) -> Array:
        if strip is None:
            field = self._relaxed.inner.mode(self.mode).field
            return self._method(lambda s, x: field(s, x, u), t, self.x, self._h)
        y = self._y if strip is self._strip else strip.entry(self.x)
        return self._method(partial(_rate, strip, u), t, y, self._h)

    def _arrive(self, strip: Strip, t: float, y: Array, u: Array) -> None:
        """Stand at y behind a step: in the mode, in its strip, or beyond it and so in the next."""
        depth = strip.depth(t, y, u)
        if depth < strip.epsilon:
            self._strip = strip if depth > 0.0 else None
            self.x, self._y = y[: strip.n], y if depth > 0.0 else y[: strip.n]
            return
        self.mode, self._strip = strip.target.key, None
        self.x = self._y = strip.entered(t, y, u)
        guards = self._relaxed.inner.outgoing(self.mode).guards
        values = guards.values(t, self.x, u)
        if (values < -strip.epsilon).any():
            name, least = guards.names[int(values.argmin())], values.min()
            raise InputError(
                f"step = {self._h} passes the strip of guard {strip.guard.name!r} at t = {t:.9g} s "
                f"and misses guard {name!r} of mode {self.mode!r} behind it, which is {least:.3g} "
                "there; shorter steps are needed"
            )

    def _overlap(self, names: list[str], t: float, x: Array) -> OverlappingStripsError:
        return OverlappingStripsError(
            f"a step ends behind guards {names} of mode {self.mode!r} at once, at t = {t:.9g} s "
            f"and x = {x.tolist()}"
        )


def _rate(strip: Strip, u: Array, t: float, y: Array) -> Array:
    """The field on both sides of a guard, and in its strip."""
    free = InStrip(FREE, strip, False).calc(t, y, u)
    held = strip.holds and float(strip.push @ y[strip.n :]) <= 0.0 and free.pushing < 0.0
    return InStrip(HELD, strip, True).calc(t, y, u).field if held else free.field
