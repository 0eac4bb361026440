"""An arc of a trajectory: flow in one mode, dense in time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import Array
from hybridctl.base.spaces import Space, VectorSpace
from hybridctl.hybrid.mode import ModeKey, ModeModel
from hybridctl.hybrid.model import Point
from hybridctl.hybrid.series import SLOPES, TO_SERIES, basis
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.tolerances import BRIEF, SPACINGS, UNSOUND

Side = Literal["left", "right"]
ARRAYS = ("breaks", "lengths", "states", "inputs", "jumps")
_BACK = tuple(BRIEF * 10.0**k for k in range(-5, 1))  # s: how much earlier a left limit is tried
_ROUNDING = 1e-14  # of an input, in the coefficients of its series


def _value_and_slope(s: float) -> tuple[Array, Array]:
    """What gives a series and its derivative by s at s in [-1, 1], from its coefficients."""
    at = basis(s)
    return at, at @ SLOPES


_LAST, _LAST_SLOPE = _value_and_slope(1.0)


@dataclass(frozen=True, eq=False)
class Arc:
    """Flow in one mode from `start` to `end`, dense in time.

    Step k covers [breaks[k], breaks[k] + lengths[k]] with Chebyshev coefficients `states[k]`
    (8, nx) and `inputs[k]` (8, nu). The last step may reach beyond `end`, where an event cut it.
    Its input follows one law, or one after the other, as under a sampled controller: `jumps` (n,)
    says of every step whether the law is another one from its start on, so that its input may jump.
    Inputs that are held jump where their values do.
    """

    index: int
    mode: ModeKey
    space: Space
    start: float
    end: float
    breaks: Array
    lengths: Array
    states: Array
    inputs: Array
    jumps: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def __post_init__(self) -> None:
        if not self.jumps.size:
            object.__setattr__(self, "jumps", np.zeros(len(self.breaks), dtype=bool))
        for name in ARRAYS:
            read_only(getattr(self, name))

    def __call__(self, t: ArrayLike) -> Array:
        """The state at t in [start, end]: (nx,), or (n, nx) for n times."""
        return self._evaluate(self.states, t, self.space)

    def input(self, t: ArrayLike, side: Side = "right") -> Array:
        """The input at t in [start, end]: (nu,), or (n, nu) for n times.

        side: of a time at which one law gives way to the next.
        """
        return self._evaluate(self.inputs, t, None, side)

    @cached_property
    def changes(self) -> tuple[float, ...]:
        """The times at which one law gives way to the next, s."""
        return tuple(piece.start for piece in self.pieces[1:])

    @cached_property
    def pieces(self) -> tuple[Arc, ...]:
        """The arc, cut where one law gives way to the next."""
        jumps, at = self.jumps[1:], self.breaks[1:]
        if self.is_held:
            values, sizes = self.inputs[:, 0], np.abs(self.inputs[:, 0])
            rounding = _ROUNDING * np.maximum(sizes[1:], sizes[:-1])
            jumps = np.any(np.abs(values[1:] - values[:-1]) > rounding, axis=1)
        cuts = (np.flatnonzero(jumps & (self.start < at) & (at < self.end)) + 1).tolist()
        if not cuts:
            return (self,)
        times = [self.start, *self.breaks[cuts].tolist(), self.end]
        parts = [np.split(getattr(self, name), cuts) for name in ARRAYS]
        return tuple(
            Arc(self.index, self.mode, self.space, start, end, *part)
            for start, end, part in zip(
                times[:-1], times[1:], zip(*parts, strict=True), strict=True
            )
        )

    def piece(self, t: float) -> Arc:
        """The piece that flows on from time t."""
        return self.pieces[bisect_right(self.changes, t)]

    @cached_property
    def is_held(self) -> bool:
        """Whether the input is constant on each step, to rounding."""
        sizes = np.abs(self.inputs)
        return bool((sizes[:, 1:] <= _ROUNDING * sizes[:, :1]).all())

    def input_rate(self, t: float) -> Array:
        """The time derivative (nu,) of the input at t in [start, end], from the left."""
        k, _, turning, scale = self._at(t)
        return np.asarray(scale * (turning @ self.inputs[k]))

    def state_rate(self, t: float) -> Array:
        """The time derivative (nx,) of the state at t in [start, end], from the left."""
        return self.state_and_rate(t)[1]

    def state_and_rate(self, t: float) -> tuple[Array, Array]:
        """The state (nx,) at t, and its time derivative (nx,) from the left."""
        k, at, turning, scale = self._at(t)
        return self.space.normalize(at @ self.states[k]), scale * (turning @ self.states[k])

    def _at(self, t: float) -> tuple[int, Array, Array, float]:
        """The step that leads to t, what gives value and slope there of its series, 2 / length."""
        k = max(int(self.breaks.searchsorted(t, "left")) - 1, 0)
        length = float(self.lengths[k])
        at, turning = _value_and_slope(2.0 * (t - float(self.breaks[k])) / length - 1.0)
        return k, at, turning, 2.0 / length

    def left_limit(self) -> tuple[Array, Array, Array]:
        """State (nx,), input (nu,) and rate of the input (nu,) where the arc ends."""
        length, inputs = float(self.lengths[-1]), self.inputs[-1]
        s = 2.0 * (self.end - float(self.breaks[-1])) / length - 1.0
        at, turning = (_LAST, _LAST_SLOPE) if s == 1.0 else _value_and_slope(s)
        state = self.space.normalize(at @ self.states[-1])
        return state, at @ inputs, 2.0 / length * (turning @ inputs)

    def state_and_input(self, t: float) -> tuple[Array, Array]:
        """State (nx,) and input (nu,) at one time; the ends are held outside [start, end]."""
        starts, scales, series = self._joint
        k = max(bisect_right(starts, t) - 1, 0)
        both = basis(float(scales[k] * (t - starts[k]) - 1.0)) @ series[k]
        nx = self.space.nx
        return self.space.normalize(both[:nx]), both[nx:]

    def states_and_inputs(self, times: Array) -> tuple[Array, Array]:
        """States (n, nx) and inputs (n, nu) at times (n,); the ends are held outside of them."""
        _, _, series = self._joint
        k = np.maximum(self.breaks.searchsorted(times, "right") - 1, 0)
        s = 2.0 * (times - self.breaks[k]) / self.lengths[k] - 1.0
        both = (basis(s)[:, None] @ series[k])[:, 0]
        nx, space = self.space.nx, self.space
        states = both[:, :nx]
        if not isinstance(space, VectorSpace):
            states = np.array([space.normalize(x) for x in states])
        return states, both[:, nx:]

    @cached_property
    def _joint(self) -> tuple[list[float], list[float], Array]:
        """Starts of the steps, 2 / length, and the series of states and inputs side by side."""
        series = np.concatenate([self.states, self.inputs], axis=2)
        return self.breaks.tolist(), (2.0 / self.lengths).tolist(), series

    @property
    def times(self) -> Array:
        """The times at which the integrator stepped, with both ends of the arc."""
        return np.append(self.breaks, self.end)

    def _evaluate(
        self, series: Array, t: ArrayLike, space: Space | None, side: Side = "right"
    ) -> Array:
        if isinstance(t, float):
            k = max(int(self.breaks.searchsorted(t, side)) - 1, 0)
            s = 2.0 * (t - self.breaks[k]) / self.lengths[k] - 1.0
            value = basis(float(s)) @ series[k]
            return value if space is None else space.normalize(value)
        times = np.asarray(t, dtype=np.float64)
        if times.ndim == 0:
            return self._evaluate(series, float(times), space, side)
        k_all = np.maximum(self.breaks.searchsorted(times, side) - 1, 0)
        s_all = 2.0 * (times - self.breaks[k_all]) / self.lengths[k_all] - 1.0
        values = np.einsum("nk,nkx->nx", basis(s_all), series[k_all])
        if space is None or isinstance(space, VectorSpace):
            return np.asarray(values)
        return np.array([space.normalize(x) for x in values])


def arc_from_steps(
    index: int, mode: ModeModel, steps: list[Step], start: float, state: Array, u: Array, end: float
) -> Arc:
    """The arc made of accepted steps and cut at `end`; without any it is the point (state, u)."""
    kept = [step for step in steps if step.start < end]
    if kept:
        breaks = np.array([step.start for step in kept])
        lengths = np.array([step.end for step in kept]) - breaks
        states = TO_SERIES @ np.array([step.states for step in kept])
        inputs = TO_SERIES @ np.array([step.inputs for step in kept])
        jumps = np.array([step.changed for step in kept])
    else:
        breaks, lengths = np.array([start]), np.ones(1)
        states, inputs = np.zeros((1, 8, len(state))), np.zeros((1, 8, len(u)))
        states[0, 0], inputs[0, 0] = state, u
        jumps = np.zeros(1, dtype=bool)
    arrays = breaks, lengths, states, inputs, jumps
    return Arc(index, mode.key, mode.space, start, end, *arrays)


def joined(index: int, arcs: Sequence[Arc]) -> Arc:
    """One arc out of consecutive ones of the same mode, leaving out those of no duration.

    Steps that reach beyond the end of their arc, where an event cut it, keep their overhang: the
    steps of the next arc take precedence over it.
    """
    kept = [arc for arc in arcs if arc.end > arc.start] or [arcs[0]]
    series = {name: np.concatenate([getattr(arc, name) for arc in kept]) for name in ARRAYS}
    return Arc(index, kept[0].mode, kept[0].space, kept[0].start, kept[-1].end, **series)


def outputs_on(mode: ModeModel, arc: Arc, t: float) -> Mapping[str, Array]:
    """Return the outputs of the mode of an arc at a time in [start, end]; limits at both ends.

    Forces may jump at the end of an arc, as where redundant contacts leave their cones together.
    There the state is known to rounding, and rounding decides on which side of the jump it lies.
    So the outputs are those a little earlier, by up to `BRIEF`, where guards are far outside at the
    end and not outside there.

    Args:
        mode: The mode of the arc.
        arc: The arc.
        t: Time, s.
    """
    point = mode.calc(t, *arc.state_and_input(t))
    if not arc.start < arc.end <= t or not _is_far_outside(point):
        return point.outputs
    for back in _BACK:
        earlier = max(arc.end - max(back, SPACINGS * math.ulp(arc.end)), arc.start)
        inside = mode.calc(earlier, *arc.state_and_input(earlier))
        if not _is_far_outside(inside):
            return inside.outputs
    return point.outputs  # no jump: the flow of a bridge goes on whatever guards say


def _is_far_outside(point: Point) -> bool:
    """Return whether a guard is so negative that it has not fallen through zero just before."""
    return bool((np.asarray(point.guards) < -UNSOUND * point.mode.guard_scales).any())


def read_only(a: Array) -> Array:
    """The array itself, which nobody writes into from now on."""
    a.setflags(write=False)
    return a
