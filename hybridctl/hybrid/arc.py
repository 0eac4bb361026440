"""An arc of a trajectory: flow in one mode, dense in time.

An arc is a sequence of steps. On each of them state and input are Chebyshev series of degree 7 in
s in [-1, 1], which is the time from the start to the end of the step (`series`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import Array
from hybridctl.base.spaces import Space, normalize_points
from hybridctl.hybrid.mode import ModeKey, ModeModel
from hybridctl.hybrid.model import Point
from hybridctl.hybrid.series import SLOPES, TO_SERIES, basis
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.tolerances import EVENT_RESOLUTION, EVENT_TIME_SPACINGS, MAX_STEP_VIOLATION

Side = Literal["left", "right"]
"""Which limit is meant at a time where two follow each other: the one before, or after it."""
ARC_ARRAYS = ("breaks", "lengths", "states", "inputs", "jumps")
"""Names of the arrays of an arc, each of which has one row for each step."""
_LEFT_OFFSETS = tuple(EVENT_RESOLUTION * 10.0**k for k in range(-5, 1))
"""Times before the end of an arc at which its left limit is tried, s, the shortest first."""
_SERIES_ROUNDING = 1e-14
"""Coefficients of an input that are rounding, relative to its first coefficient."""


class _SeriesPlace(NamedTuple):
    """A place on a step of an arc.

    Attributes:
        step: Index of the step.
        values: Row (8,) that gives the value of a series from its coefficients.
        slopes: Row (8,) that gives its derivative by s in [-1, 1].
        scale: Derivative of s by time, 2 / length, 1/s.
    """

    step: int
    values: Array
    slopes: Array
    scale: float


_LAST_VALUES, _LAST_SLOPES = basis(1.0), basis(1.0) @ SLOPES


@dataclass(frozen=True, eq=False)
class Arc:
    """Flow in one mode from `start` to `end`, dense in time.

    The arrays are made read-only, not copied. Methods do not refuse times outside: the first or the
    last step gives values up to its own end, and beyond that those at its end.

    Attributes:
        index: Number of the arc in its trajectory.
        mode: Key of the mode.
        space: State space of the mode.
        start: Time at which it begins, s.
        end: Time at which it ends, s.
        breaks: Start times (n,) of the n steps, s.
        lengths: Their durations (n,), s. Step k covers [breaks[k], breaks[k] + lengths[k]]. The
            last one may reach beyond `end`, where an event cut it.
        states: Chebyshev coefficients (n, 8, nx) of the state on each step.
        inputs: Chebyshev coefficients (n, 8, nu) of the input on each step.
        jumps: For each step (n,), whether the input law is another one from its start on, so that
            the input may jump. An arc has one law, or several one after the other, as under a
            sampled controller. Held inputs jump where their values do. All false by default.
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
        for name in ARC_ARRAYS:
            freeze_array(getattr(self, name))

    def __call__(self, t: ArrayLike) -> Array:
        """Return the state (nx,) at a time t in [start, end] in s, or (n, nx) at n times.

        It is continuous, so that unlike `input` it needs no side.
        """
        return self._evaluate(self.states, t, self.space)

    def input(self, t: ArrayLike, side: Side = "right") -> Array:
        """Return the input at one time or several.

        Args:
            t: Time in [start, end], s, or n times.
            side: Which input is returned at a time at which one law gives way to the next: "left"
                that of the law that ends there, "right" that of the one that begins.

        Returns:
            The input (nu,), or (n, nu) at n times.
        """
        return self._evaluate(self.inputs, t, None, side)

    @cached_property
    def changes(self) -> tuple[float, ...]:
        """The times at which one law gives way to the next, s."""
        return tuple(piece.start for piece in self.pieces[1:])

    @cached_property
    def pieces(self) -> tuple[Arc, ...]:
        """The arc, cut where one law gives way to the next."""
        if len(self.breaks) == 1:  # the usual arc of many impacts, which costs no search
            return (self,)
        jumps, starts = self.jumps[1:], self.breaks[1:]
        if self.has_held_input:
            # A law that holds the same value again is no other law.
            values, sizes = self.inputs[:, 0], np.abs(self.inputs[:, 0])
            rounding = _SERIES_ROUNDING * np.maximum(sizes[1:], sizes[:-1])
            jumps = np.any(np.abs(values[1:] - values[:-1]) > rounding, axis=1)
        inside = (self.start < starts) & (starts < self.end)
        cuts = (np.flatnonzero(jumps & inside) + 1).tolist()
        if not cuts:
            return (self,)
        times = [self.start, *self.breaks[cuts].tolist(), self.end]
        parts = [np.split(getattr(self, name), cuts) for name in ARC_ARRAYS]
        return tuple(
            Arc(self.index, self.mode, self.space, start, end, *part)
            for start, end, part in zip(
                times[:-1], times[1:], zip(*parts, strict=True), strict=True
            )
        )

    def piece(self, t: float) -> Arc:
        """Return the piece that flows on from time t, s."""
        return self.pieces[bisect_right(self.changes, t)]

    @cached_property
    def has_held_input(self) -> bool:
        """Whether the input is constant on each step, to rounding."""
        sizes = np.abs(self.inputs)
        return bool((sizes[:, 1:] <= _SERIES_ROUNDING * sizes[:, :1]).all())

    def input_rate(self, t: float) -> Array:
        """Return the time derivative (nu,) of the input at t in [start, end], from the left."""
        place = self._locate_left(t)
        return np.asarray(place.scale * (place.slopes @ self.inputs[place.step]))

    def state_rate(self, t: float) -> Array:
        """Return the time derivative (nx,) of the state at t in [start, end], from the left."""
        return self.state_and_rate(t)[1]

    def state_and_rate(self, t: float) -> tuple[Array, Array]:
        """Return the state (nx,) at t, and its time derivative (nx,) from the left."""
        place = self._locate_left(t)
        series = self.states[place.step]
        state = self.space.normalize(place.values @ series)
        return state, place.scale * (place.slopes @ series)

    def _locate_left(self, t: float) -> _SeriesPlace:
        """Return the place of a time on the step that leads to it; at the start, on the first."""
        k = max(int(self.breaks.searchsorted(t, "left")) - 1, 0)
        length = float(self.lengths[k])
        values = basis(2.0 * (t - float(self.breaks[k])) / length - 1.0)
        return _SeriesPlace(k, values, values @ SLOPES, 2.0 / length)

    def left_limit(self) -> tuple[Array, Array, Array]:
        """Return state (nx,), input (nu,) and rate (nu,) of the input where the arc ends.

        The arrays are read-only.
        """
        return self._left_limit

    @cached_property
    def _left_limit(self) -> tuple[Array, Array, Array]:
        """What `left_limit` returns: an event asks for it up to three times."""
        length, inputs = float(self.lengths[-1]), self.inputs[-1]
        s = 2.0 * (self.end - float(self.breaks[-1])) / length - 1.0
        if s == 1.0:  # the usual end, which costs no basis
            values, slopes = _LAST_VALUES, _LAST_SLOPES
        else:
            values = basis(s)
            slopes = values @ SLOPES
        state = self.space.normalize(values @ self.states[-1])
        rate = 2.0 / length * (slopes @ inputs)
        return freeze_array(state), freeze_array(values @ inputs), freeze_array(rate)

    def state_and_input(self, t: float) -> tuple[Array, Array]:
        """Return state (nx,) and input (nu,) at one time.

        Times before the first step or beyond the last one give the values at that end.

        Args:
            t: Time, s.
        """
        starts, scales, series = self._joint_series
        k = max(bisect_right(starts, t) - 1, 0)
        both = basis(float(scales[k] * (t - starts[k]) - 1.0)) @ series[k]
        nx = self.space.nx
        return self.space.normalize(both[:nx]), both[nx:]

    def states_and_inputs(self, times: Array) -> tuple[Array, Array]:
        """Return states (n, nx) and inputs (n, nu) at times (n,), s, as `state_and_input` does."""
        return evaluate_arcs([self], [times])

    def locate_series(self, times: Array) -> tuple[Array, Array]:
        """Return the joint series of states and inputs that times are on, and the places there.

        Args:
            times: Times (n,), s.

        Returns:
            Series (n, 8, nx + nu), and places (n,) on the steps, from -1 to 1. Of times outside
            the steps places are outside too; `series.basis` takes them for the nearest end.
        """
        _, _, series = self._joint_series
        if len(series) == 1:  # most arcs between impacts
            k = np.zeros(len(times), dtype=np.intp)
            return series[k], 2.0 * (times - self.breaks[0]) / self.lengths[0] - 1.0
        k = np.maximum(self.breaks.searchsorted(times, "right") - 1, 0)
        return series[k], 2.0 * (times - self.breaks[k]) / self.lengths[k] - 1.0

    @cached_property
    def _joint_series(self) -> tuple[list[float], list[float], Array]:
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
        """Return the values of series at one time or several.

        Args:
            series: Coefficients (n, 8, m) on each step.
            t: Time, s, or times (k,).
            space: Space in which values are normalized; None for values that are no states.
            side: Step that counts at a time where one ends and the next begins.

        Returns:
            Values (m,), or (k, m).
        """
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
        return np.asarray(values if space is None else normalize_points(space, values))


def make_arc_from_steps(
    index: int, mode: ModeModel, steps: list[Step], start: float, state: Array, u: Array, end: float
) -> Arc:
    """Return the arc made of accepted steps and cut at its end.

    Args:
        index: Number of the arc in its trajectory.
        mode: Its mode.
        steps: The steps in order of time. Those that begin at `end` or later are left out.
        start: Start time, s.
        state: State (nx,) at the start; the constant state of an arc without steps.
        u: Input (nu,) at the start; the constant input of an arc without steps.
        end: End time, s.
    """
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


def evaluate_arcs(arcs: Sequence[Arc], times: Sequence[Array]) -> tuple[Array, Array]:
    """Return states (n, nx) and inputs (n, nu) of several arcs, one arc below the other.

    Args:
        arcs: The arcs, of one mode.
        times: Times on each of them, s; n in all. See `Arc.states_and_inputs`.
    """
    series, places = zip(
        *(arc.locate_series(t) for arc, t in zip(arcs, times, strict=True)), strict=True
    )
    both = (basis(np.concatenate(places))[:, None] @ np.concatenate(series))[:, 0]
    nx = arcs[0].space.nx
    return normalize_points(arcs[0].space, both[:, :nx]), both[:, nx:]


def join_arcs(index: int, arcs: Sequence[Arc]) -> Arc:
    """Return one arc made of consecutive ones of the same mode.

    Arcs of no duration are left out, unless all are. Steps that reach beyond the end of their arc,
    where an event cut it, keep their overhang: the steps of the next arc take precedence over it.

    Args:
        index: Number of the arc in its trajectory.
        arcs: The arcs in order of time.
    """
    kept = [arc for arc in arcs if arc.end > arc.start] or [arcs[0]]
    series = {name: np.concatenate([getattr(arc, name) for arc in kept]) for name in ARC_ARRAYS}
    return Arc(index, kept[0].mode, kept[0].space, kept[0].start, kept[-1].end, **series)


def compute_outputs(mode: ModeModel, arc: Arc, t: float) -> Mapping[str, Array]:
    """Return the outputs of the mode of an arc at a time in [start, end]; limits at both ends.

    Forces may jump at the end of an arc, as where redundant contacts leave their cones together.
    There the state is known to rounding, and rounding decides on which side of the jump it lies.
    So the outputs are those a little earlier, where guards are far outside at the end and at most a
    little outside at the earlier time. It is earlier by up to `EVENT_RESOLUTION`, or by
    `EVENT_TIME_SPACINGS` spacings of floats at large times, where that is more.

    Args:
        mode: The mode of the arc.
        arc: The arc.
        t: Time, s.
    """
    point = mode.calc(t, *arc.state_and_input(t))
    if not arc.start < arc.end <= t or not _is_far_outside(point):
        return point.outputs
    for offset in _LEFT_OFFSETS:
        resolved = max(offset, EVENT_TIME_SPACINGS * math.ulp(arc.end))
        earlier = max(arc.end - resolved, arc.start)
        inside = mode.calc(earlier, *arc.state_and_input(earlier))
        if not _is_far_outside(inside):
            return inside.outputs
    # The guards are outside all along, so there is no jump at the end: after an event that passed a
    # jam (`Event.bridge`) the arc flows on whatever its guards are.
    return point.outputs


def _is_far_outside(point: Point) -> bool:
    """Return whether a guard is so negative that it has not fallen through zero just before."""
    scales = point.mode.guard_scales
    return bool((np.asarray(point.guards) < -MAX_STEP_VIOLATION * scales).any())


def freeze_array(a: Array) -> Array:
    """Return the array itself, after it has been made read-only."""
    a.setflags(write=False)
    return a
