"""The discrete scheme of a relaxation: fixed steps that may pass a strip in one go, [Relax] 7.7.

It differs from what is printed in [Relax] 7.7 (3) to (6) in four places: the weights of the two
fields are exchanged, the steps in a mode end where the state is *not* in its domain any more, the
reset is the relaxed one, and the next step starts where the reset leads.
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
from hybridctl.relaxation.relax import HELD_STRIP, STRIP, MotionInStrip, Relaxed
from hybridctl.relaxation.strip import Strip

Rate: TypeAlias = Callable[[float, Array], Array]
OneStep: TypeAlias = Callable[[Rate, float, Array, float], Array]

_SPAN_TOLERANCE = 1e-9  # relative difference of the span from a whole number of steps


def euler(f: Rate, t: float, y: Array, h: float) -> Array:
    """Return y + h f(t, y), a step of Euler's method of order one.

    Args:
        f: Rate of y (n,) as a function of time and y.
        t: Time at the start of the step, s.
        y: State (n,).
        h: Length of the step, s.
    """
    return y + h * f(t, y)


def runge_kutta(f: Rate, t: float, y: Array, h: float) -> Array:
    """Return y after a step of the classical Runge-Kutta method of order four.

    Args:
        f: Rate of y (n,) as a function of time and y.
        t: Time at the start of the step, s.
        y: State (n,).
        h: Length of the step, s.
    """
    a = f(t, y)
    b = f(t + 0.5 * h, y + 0.5 * h * a)
    c = f(t + 0.5 * h, y + 0.5 * h * b)
    d = f(t + h, y + h * c)
    return y + h / 6.0 * (a + 2.0 * b + 2.0 * c + d)


@dataclass(frozen=True, eq=False)
class DiscreteRun:
    """A trajectory of the discrete scheme at N + 1 equidistant times.

    Attributes:
        times: (N + 1,), s.
        modes: Mode of the system at each time.
        states: State (nx,) of that mode at each time, up to epsilon behind a guard in a strip.
        mapped_states: The same state as one of the mode that the strip leads to; in no strip it is
            the state itself.
        in_strip: Whether the state is in a strip, at each time.
    """

    times: Array
    modes: tuple[ModeKey, ...]
    states: tuple[Array, ...]
    mapped_states: tuple[Array, ...]
    in_strip: tuple[bool, ...]


def discretize_relaxed(
    relaxed: Relaxed,
    mode: ModeKey,
    x0: ArrayLike,
    t_span: ArrayLike,
    step: float,
    method: OneStep = euler,
    law: InputLaw | None = None,
) -> DiscreteRun:
    """Return the trajectory of a relaxation by steps of a fixed length.

    Behind a guard the field is that of its strip, and beyond the strip the next mode's, pulled
    back. So a step may begin before the guard and end beyond the strip; the state is reset then.

    The scheme has the order of the method only where a step is short relative to the time in the
    strip. There the smoothness of the field, C^(1,1), limits the order to 2. Once a step travels
    farther than epsilon it sees little of the blended field, and the order is one.

    Args:
        relaxed: The relaxation.
        mode: Key of the first mode, one of the system's.
        x0: First state (nx,).
        t_span: Start and end, s.
        step: Length of a step, s.
        method: One-step method, such as `euler` or `runge_kutta`.
        law: Input u(t, x) (nu,), held over each step. If None, the input is zero.

    Raises:
        InputError: If an argument is not valid, if the span is no multiple of the step, or if a
            step lands outside the next mode.
        SystemDefinitionError: If a guard that is met has no strip, see `relax_guards`.
        OverlappingStripsError: If a step ends behind two guards.
    """
    check_instance("relaxed", relaxed, Relaxed)
    start, end = check_interval("t_span", t_span)
    h, first = check_number("step", step, above=0.0), relaxed.inner.mode(mode)
    count = round((end - start) / h)
    if count < 1 or abs(count * h - (end - start)) > _SPAN_TOLERANCE * h * count:
        raise InputError(f"t_span must be a multiple of step = {h}, got {end - start} s")
    stepper = _Stepper(
        relaxed, mode, check_vector("x0", x0, first.space.nx), check_callable("method", method), h
    )
    if law is not None:
        check_callable("law", law)
    rows = [stepper.record(start)]
    for k in range(count):
        t = start + k * h
        stepper.advance(t, np.zeros(first.nu) if law is None else np.asarray(law(t, stepper.x)))
        rows.append(stepper.record(start + (k + 1) * h))
    modes, states, mapped_states, in_strip = zip(*rows, strict=True)
    times = np.asarray(start + h * np.arange(count + 1), dtype=np.float64)
    return DiscreteRun(times, modes, states, mapped_states, in_strip)


class _Stepper:
    """The state of the scheme between two steps; call `advance` for each step in order.

    Attributes:
        mode: Mode of the system.
        x: State (nx,) of that mode.

    Invariant: within a strip `_strip` is that strip and `_y` its state (x, z). Elsewhere `_strip`
    is None and `_y` is x.

    Args:
        relaxed: The relaxation.
        mode: First mode.
        x: First state (nx,).
        method: One-step method.
        h: Length of a step, s.
    """

    def __init__(
        self, relaxed: Relaxed, mode: ModeKey, x: Array, method: OneStep, h: float
    ) -> None:
        self._relaxed, self._method, self._h = relaxed, method, h
        self.mode, self.x = mode, x
        self._strip: Strip | None = None
        self._y = x

    def record(self, t: float) -> tuple[ModeKey, Array, Array, bool]:
        """Return mode, state, mapped state, and whether it is in a strip, as in `DiscreteRun`.

        Args:
            t: Time, s.
        """
        strip = self._strip
        if strip is None:
            return self.mode, self.x, self.x, False
        return self.mode, self.x, strip.map_to_target(t, self._y, np.zeros(strip.source.nu)), True

    def advance(self, t: float, u: Array) -> None:
        """Take one step, and update mode, state and strip.

        Args:
            t: Time at the start of the step, s.
            u: Input (nu,).

        Raises:
            OverlappingStripsError: If the step ends behind two guards.
            InputError: If it lands outside the next mode.
        """
        guards, later = self._relaxed.inner.outgoing(self.mode).guards, t + self._h
        if not guards.names:
            field = self._relaxed.inner.mode(self.mode).field
            self.x = self._y = self._method(lambda s, x: field(s, x, u), t, self.x, self._h)
            return
        chosen = int(guards.values(t, self.x, u).argmin())
        # First with the strip of the nearest guard. A step may end behind another guard, as the
        # nearest may be slow: then it is repeated with that guard's strip.
        for _ in range(2):
            strip = self._relaxed.get_strip(self.mode, guards.names[chosen])
            y = self._y if strip is self._strip else strip.append_auxiliary(self.x)
            y = self._method(partial(_compute_rate, strip, u), t, y, self._h)
            values = guards.values(later, y[: strip.nx], u)
            behind = np.flatnonzero(values < 0.0).tolist()
            if all(i == chosen for i in behind):
                break
            if len(behind) > 1:
                raise OverlappingStripsError(
                    f"a step ends behind guards {[guards.names[i] for i in behind]} of mode "
                    f"{self.mode!r} at once, at t = {later:.9g} s and x = "
                    f"{y[: strip.nx].tolist()}"
                )
            (chosen,) = behind
        self._arrive(strip, later, y, u)

    def _arrive(self, strip: Strip, t: float, y: Array, u: Array) -> None:
        """Update mode, state and strip at the end of a step.

        Args:
            strip: The strip with whose field the step was taken.
            t: Time at the end of the step, s.
            y: State (x, z) there: in the mode, in its strip, or beyond it and so in the next mode.
            u: Input (nu,).

        Raises:
            InputError: If the state is outside the next mode.
        """
        depth = strip.compute_depth(t, y, u)
        if depth < strip.epsilon:
            self._strip = strip if depth > 0.0 else None
            self.x, self._y = y[: strip.nx], y if depth > 0.0 else y[: strip.nx]
            return
        self.mode, self._strip = strip.target.key, None
        self.x = self._y = strip.map_to_target(t, y, u)
        guards = self._relaxed.inner.outgoing(self.mode).guards
        values = guards.values(t, self.x, u)
        if (values < -strip.epsilon).any():
            name, least = guards.names[int(values.argmin())], values.min()
            raise InputError(
                f"step = {self._h} passes the strip of guard {strip.guard.name!r} at t = {t:.9g} s "
                f"and misses guard {name!r} of mode {self.mode!r} behind it, which is {least:.3g} "
                "there; shorter steps are needed"
            )


def _compute_rate(strip: Strip, u: Array, t: float, y: Array) -> Array:
    """Return the rate (n + p,) of y on both sides of a guard and in its strip.

    The auxiliary state is held where it is not positive along its release direction, and the next
    mode pushes it back: the two modes of `MotionInStrip` in one field.
    """
    free = MotionInStrip(STRIP, strip, False).calc(t, y, u)
    is_held = (
        strip.can_hold_auxiliary
        and float(strip.release_direction @ y[strip.nx :]) <= 0.0
        and free.release_rate < 0.0
    )
    return MotionInStrip(HELD_STRIP, strip, True).calc(t, y, u).field if is_held else free.field
