r"""First-order jumps of many events of one guard, whose resets are differentiated together.

They are those of `saltation.linearize_guard`, and of `parameters.linearize_guard_with_parameters`
in (x, p), with the number of the event as the first axis of all terms. What is not served here, by
its reset (`ResetModel.find_batch`) or at grazing, is left to these two.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import HybridctlError
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.model import JumpPoint, ModeModel, Point, ResetModel
from hybridctl.hybrid.system import HybridSystem
from hybridctl.sensitivity.parameter_models import ParameterModel
from hybridctl.sensitivity.saltation import (
    EventSide,
    JumpGains,
    estimate_time_error,
    is_crossed,
    is_far_from_grazing,
    limit_shift,
    warn_if_rate_is_uncertain,
)


class JumpBatch(NamedTuple):
    """The first-order jumps of some events.

    Attributes:
        numbers: Numbers (m,) of the events, among those that were given.
        gains: Their jumps, with the event as first axis of each attribute.
    """

    numbers: list[int]
    gains: JumpGains


class _Crossing(NamedTuple):
    """An event whose reset is differentiated together with others.

    Attributes:
        number: Its number.
        event: The event.
        reset: Its reset.
        guard: Index of its guard.
    """

    number: int
    event: Event
    reset: ResetModel
    guard: int


_Place = tuple[ModeModel, float, Array, Array]
"""A mode with time in s, state (nx,) and input (nu,)."""


def find_jump_batches(
    system: HybridSystem, events: Sequence[Event], derivatives: ParameterModel | None
) -> list[JumpBatch]:
    """Return the first-order jumps of those events that can be linearised together.

    Args:
        system: The hybrid system.
        events: Events of its runs.
        derivatives: Derivatives by np parameters: jumps are then in (x, p). None for none.

    Returns:
        The jumps, each event in one of them at most. Those that are left out have to be linearised
        alone, which raises an error where there is no derivative.
    """
    groups: dict[Hashable, list[_Crossing]] = {}
    for number, event in enumerate(events):
        if len(event.guards) != 1 or event.accumulation is not None or event.bridge is not None:
            continue
        edge = system.outgoing(event.mode_before).edge(event.guards)
        if edge is None:
            continue
        reset, mode = edge.reset, system.mode(event.mode_before)
        at = JumpPoint(event.time, event.state_before, event.input_before, event.report)
        alike = reset.find_batch(at, event.mode_after)
        if alike is not None:
            guard = mode.guard_names.index(event.guards[0])
            crossing = _Crossing(number, event, reset, guard)
            groups.setdefault((type(reset), alike), []).append(crossing)
    found = []
    for crossings in groups.values():
        if len(crossings) > 1:
            # An error of one event is raised where that is linearised alone.
            with suppress(HybridctlError):
                found.append(_linearize_alike(system, crossings, derivatives))
    return found


def _linearize_alike(
    system: HybridSystem, crossings: Sequence[_Crossing], derivatives: ParameterModel | None
) -> JumpBatch:
    """Return the jumps of events whose resets are differentiated together, see the module.

    Args:
        system: The hybrid system.
        crossings: The events.
        derivatives: Derivatives by parameters; None for none.
    """
    before, after = _evaluate_sides(system, crossings)
    guards = [side.point.guard_row(one.guard) for side, one in zip(before, crossings, strict=True)]
    by_t, by_x, by_u = (np.array(each) for each in zip(*guards, strict=True))
    field, du = (np.array([getattr(side, of) for side in before]) for of in ("field", "input_rate"))
    slope = by_t + _multiply_rows(by_x, field) + _multiply_rows(by_u, du)
    size = abs(by_t) + _multiply_rows(abs(by_x), abs(field)) + _multiply_rows(abs(by_u), abs(du))
    scales = [s.mode.guard_set.sizes[c.guard] for s, c in zip(before, crossings, strict=True)]
    is_sound = np.array(is_crossed(slope, size, np.array(scales)))
    rate_or_one = np.where(is_sound, slope, 1.0)  # of the others no result is taken
    time_state, time_input = -by_x / rate_or_one[:, None], -by_u / rate_or_one[:, None]
    points = [s.jump_point(c.event.report) for s, c in zip(before, crossings, strict=True)]
    jumps = list(zip([one.reset for one in crossings], points, strict=True))
    batch = type(crossings[0].reset).batch_jumps(jumps)
    reset = batch.jacobian
    rate = reset.time + _apply(reset.state, field) + _apply(reset.input, du)
    gains = JumpGains(
        time_state=time_state,
        time_input=time_input,
        reset_state=reset.state,
        reset_input=reset.input,
        field_change=np.array([side.field for side in after]) - rate,
        reset_rate=rate,
    )
    if derivatives is not None:
        guards_p = derivatives.differentiate_guards(
            [side.point for side in before], [one.guard for one in crossings]
        )
        edges = [
            (c.event.mode_before, c.event.guards, at)
            for c, at in zip(crossings, points, strict=True)
        ]
        by_p = derivatives.differentiate_batch(batch, edges)
        gains = gains.with_parameters(by_p, -guards_p / rate_or_one[:, None])
    kept = np.flatnonzero(is_sound & batch.is_sound)
    _warn_of_rates(kept, before, crossings, slope, time_state)
    numbers = [crossings[i].number for i in kept.tolist()]
    if len(numbers) == len(crossings):
        return JumpBatch(numbers, gains)
    return JumpBatch(numbers, JumpGains(**{name: a[kept] for name, a in vars(gains).items()}))


def _evaluate_sides(
    system: HybridSystem, crossings: Sequence[_Crossing]
) -> tuple[list[EventSide], list[EventSide]]:
    """Return the sides before and after each event, as `evaluate_event_sides` does."""
    events = [one.event for one in crossings]
    before = _evaluate_places(
        [(system.mode(e.mode_before), e.time, e.state_before, e.input_before) for e in events],
        has_slopes=True,
    )
    after = _evaluate_places(
        [(system.mode(e.mode_after), e.time, e.state_after, e.input_after) for e in events],
        has_slopes=False,
    )
    return (
        [EventSide(at, e.input_rate, e.accuracy) for at, e in zip(before, events, strict=True)],
        [EventSide(at, e.input_rate, e.accuracy) for at, e in zip(after, events, strict=True)],
    )


def _evaluate_places(places: Sequence[_Place], *, has_slopes: bool) -> list[Point]:
    """Return the points at places, those of each mode evaluated together.

    Args:
        places: The places.
        has_slopes: See `ModeModel.calc_together`.
    """
    rows_by_mode: dict[int, list[int]] = {}
    for i, (mode, *_) in enumerate(places):
        rows_by_mode.setdefault(id(mode), []).append(i)
    found: dict[int, Point] = {}
    for rows in rows_by_mode.values():
        times, states, inputs = (
            np.array(each) for each in zip(*(places[i][1:] for i in rows), strict=True)
        )
        points = places[rows[0]][0].calc_together(times, states, inputs, has_slopes)
        found.update(zip(rows, points, strict=True))
    return [found[i] for i in range(len(places))]


def _warn_of_rates(
    kept: Indices,
    before: Sequence[EventSide],
    crossings: Sequence[_Crossing],
    slopes: Array,
    time_state: Array,
) -> None:
    """Warn of guard rates that are uncertain, see `warn_if_rate_is_uncertain`.

    Args:
        kept: Places of the events whose jumps are returned: others warn where they are linearised.
        before: Sides before the events.
        crossings: The events.
        slopes: Rates (m,) of their guards.
        time_state: Derivatives (m, d) of the event times by the state.
    """
    is_far = np.empty(len(before), dtype=np.bool_)
    rows_by_accuracy: dict[tuple[float, float] | None, list[int]] = {}
    for i in kept.tolist():
        rows_by_accuracy.setdefault(before[i].accuracy, []).append(i)
    for accuracy, rows in rows_by_accuracy.items():
        states = np.array([before[i].state for i in rows])
        is_far[rows] = is_far_from_grazing(accuracy, states, time_state[rows])
    near = [i for i in kept.tolist() if not is_far[i]]
    errors = {i: estimate_time_error(before[i], time_state[i]) for i in near}
    places = [
        (before[i].mode, *before[i].find_shifted_place(-limit_shift(errors[i]))) for i in near
    ]
    for i, point in zip(near, _evaluate_places(places, has_slopes=True), strict=True):
        one, side = crossings[i], before[i]
        shifted = EventSide(point, side.input_rate).compute_rate(one.guard)
        guard = one.event.guards[0]
        warn_if_rate_is_uncertain(guard, side, float(slopes[i]), shifted, errors[i])


def _multiply_rows(a: Array, b: Array) -> Array:
    """Return the scalar products (m,) of rows (m, n), to the bit as one event has them.

    The terms of a guard rate near grazing cancel: another order of summation changes its last five
    digits.
    """
    return np.array([left @ right for left, right in zip(a, b, strict=True)])


def _apply(matrices: Array, vectors: Array) -> Array:
    """Return the products (m, k) of matrices (m, k, n) and vectors (m, n)."""
    return np.asarray((matrices @ vectors[..., None])[..., 0])
