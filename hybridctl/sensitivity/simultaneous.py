r"""First-order jump of any event of a simulation: of one guard or of simultaneous guards.

`jump_derivative` distinguishes six cases.

1. One guard: the saltation matrix (`saltation`). Without a guard, where only the input law changes:
   the identity.
2. Several guards that fire in turn. On a perturbed trajectory they fire one after the other, with
   short stays in phantom modes between them. The jump of each guard in each phantom mode is
   evaluated at the nominal event (`phantom_modes`): its state is what the resets of the guards that
   have fired make of the ante-event state, [RS] 4.2. The jump is piecewise linear (`piecewise`).
3. Several contacts that stay one impact: it happens when the first of them touches. There is one
   piece for each guard that may be the first.
4. One guard whose reset is at a border between two cases, such as a contact that an impact only
   just stops sliding. On either side of the border the reset has another derivative.
5. Several guards whose event keeps the field (`ResetModel.keeps_field`), as where feet whose forces
   are zero let go together. Every order of the guards has the identity; see "Letting go together"
   in docs/mathematics.md.
6. The same with an input that jumps there: the field jumps with the last of the guards, in one
   piece for each guard that may be the last.

Case 4. Let d be the distance from the border, reached at the event's own time:

.. math:: \delta d = D_x d\, \delta x + D_u d\, \delta u + \dot d\, \delta t .

The case "positive" holds where :math:`\delta d \ge 0`. So the event is treated as two simultaneous
guards: its own, and the border, which is crossed without any change. As long as neither has fired,
the border has the time :math:`\delta t + \delta d`: it comes after the guard in the positive case,
and before it in the negative one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from hybridctl.base.checks import Array, check_instance, check_member
from hybridctl.base.errors import AmbiguousEventError, GrazingError, InputError
from hybridctl.hybrid.laws import DifferentiableLaw
from hybridctl.hybrid.mode import ModeKey, ResetBorder, ResetJacobian
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.phantom_modes import EventLaw, PhantomMotions
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.saltation import (
    EventSide,
    JumpGains,
    evaluate_event_sides,
    find_guard_index,
    find_reset_border,
    jump_gains,
    linearize_crossing,
    make_identity_jump,
)

PhantomInput = Literal["pushing", "withdrawing"]
"""Input in phantom modes: ante-event, [RS] (4.16), or post-event, [RS] (4.15)."""
Simultaneous = Literal["in turn", "at once"]
"""Whether simultaneous guards fire one by one, or stay one event, when they are perturbed."""

_CHECKED_DIRECTIONS = 128
"""Number of random perturbations for which the order of event times is checked. A choice."""
_BACKWARD_TIME = 1e-7
"""Step back in time that is rounding, relative to the largest event time. A choice."""
_BACKWARD_TIME_FLOOR = 1e-15
"""Step back in time that is rounding, s per unit of the state.

Times of guards that depend on the input alone are rounding for all perturbations of the state
(test_contacts_that_an_input_releases_together_do_so_whatever_the_state)."""
_MAX_INPUT_JUMP = 1e-9
"""Jump of the input at an event up to which it counts as continuous, relative to 1 + |u|.

It is the default tolerance of runs, whose recorded inputs differ by it on both sides of an event
(test_a_flow_through_a_lift_off_has_the_derivative_of_its_arcs)."""
_FIRST_WINDOW = 1e-8
"""Time in s after the first guard within which another one may be the first of perturbed runs.

It is the default event window, within which guards are one event. The value is a choice."""


def jump_derivative(
    system: HybridSystem,
    event: Event,
    *,
    phantom_input: PhantomInput = "pushing",
    simultaneous: Simultaneous = "in turn",
) -> JumpGains | PiecewiseLinearJump:
    """Return the first-order jump of an event.

    The jump is called with a perturbation before the event, at equal times, and a change of the
    input. An event without a guard, at which only the input law changes, has the identity. A guard
    that the mode reached does not have counts as fired: of a foot whose corners stop sliding
    together, all are done after the first corner.

    Args:
        system: The hybrid system of the run.
        event: An event of the run.
        phantom_input: "pushing": in phantom modes the ante-event input goes on, [RS] (4.16).
            "withdrawing": the post-event input begins with the first guard, [RS] (4.15).
        simultaneous: "in turn": guards fire one by one, however small the perturbation is. "at
            once": an impact of several contacts stays one, as in `simulate` with an `event_window`
            above the time that perturbations put between them. This jump exists also if orders of
            the guards lead to different states. It is for two or more guards with a joint edge
            whose reset is `ResetModel.at_once`, and not for rest or bridges: other events are
            taken as with "in turn".

    Returns:
        A linear jump for no guard, for one whose reset is not at a border between two cases of
        different derivative, and for several that fire "at once" if only one of them can be the
        first. Else a piecewise linear one. For one guard at a border its guards are this guard and
        the border, see `linearize_at_border`.

    Raises:
        GrazingError: A guard rate is not negative or not significant, in a phantom mode too. With
            "at once" only the guards that may be the first must fall, and at least one.
        AmbiguousEventError: Two orders of the guards lead to different states or modes ([RS]
            Assumption 6), a guard fires before one that it waited for, or there are more than
            twelve guards.
        InputError: Events accumulate at the event or the run passed a jam there. Or the reset of
            one of several guards, or their joint reset, is at a border. Or an option is unknown.
        SystemDefinitionError: A guard or a reset has no Jacobian.
    """
    check_member("phantom_input", phantom_input, ("pushing", "withdrawing"))
    check_instance("event", event, Event)
    if has_joint_event(system, event, simultaneous):
        return _linearize_at_once(system, event)
    is_pushed = phantom_input == "pushing" and not _is_input_continuous(event)
    if is_pushed and len(event.guards) > 1 and _keeps_field(system, event):
        return _linearize_last_departure(system, event)
    return _linearize_in_turn(system, event, make_recorded_law(system, [event], phantom_input))


def linearize_event_under_law(
    system: HybridSystem, event: Event, law: EventLaw, simultaneous: Simultaneous = "in turn"
) -> JumpGains | PiecewiseLinearJump:
    """Return the jump of an event under the feedback of an input law, in phantom modes too.

    Args:
        system: The hybrid system of the run.
        event: An event of the run.
        law: The input law in a phantom mode. With no fired events, the law before the event.
        simultaneous: See `jump_derivative`.

    Returns:
        The jump, in which the input follows the state: changes of the input that are passed to it
        act in addition. It raises the errors of `jump_derivative`, and those of the law.
    """
    if has_joint_event(system, event, simultaneous):
        jump: JumpGains | PiecewiseLinearJump = _linearize_at_once(system, event)
    else:
        jump = _linearize_in_turn(system, event, law)
        if isinstance(jump, PiecewiseLinearJump) and len(event.guards) > 1:
            return jump  # phantom modes have their own feedback already
    # The other jumps are open loop. The law's Jacobian is du/dx, and a gain K has du = -K dx.
    before = law((), event.mode_before, event.state_before)
    gain = -before.jacobian(event.time, event.state_before)
    if isinstance(jump, JumpGains):
        return jump.with_feedback(gain)
    return jump.with_feedback(partial(get_constant_gain, gain))


def make_recorded_law(
    system: HybridSystem, events: Sequence[Event], phantom_input: PhantomInput
) -> EventLaw:
    """Return the law of the recorded input in phantom modes, which is open loop.

    Args:
        system: The hybrid system of the run.
        events: Events of the run whose guards fire in another order.
        phantom_input: "pushing" for the input before the first event and its rate, "withdrawing"
            for the constant input after the last one.
    """
    first, last = events[0], events[-1]
    pushing = phantom_input == "pushing"
    value = first.input_before if pushing else last.input_after
    rate = first.input_rate if pushing else np.zeros_like(last.input_rate)
    return partial(_make_open_loop_law, system, value, rate)


def linearize_at_border(
    system: HybridSystem, guard: str, before: EventSide, after: EventSide, border: ResetBorder
) -> PiecewiseLinearJump:
    """Return the jump of a guard whose reset is at a border between two cases.

    Args:
        system: The hybrid system.
        guard: Name of the guard.
        before: Side before the event.
        after: Side after the event.
        border: The border, with the derivative of the distance from it and of the reset on both
            sides.

    Returns:
        The jump of the guards (guard, border.name). The order (0, 1) is the positive case and
        (1, 0) the negative one. The border has a time only to be compared with the guard: with
        none fired, that of the guard plus the distance. After the guard it is crossed without any
        change, so that its time does not matter and is zero.
    """
    positive = linearize_crossing(system, guard, before, after, border.positive)
    negative = linearize_crossing(system, guard, before, after, border.negative)
    rate = border.distance.time + border.distance.state @ before.field
    rate += border.distance.input @ before.input_rate
    nothing = make_identity_jump(before.mode.space.ndx, len(before.input))
    # delta t + delta d, with delta d at the event's own time: (1 + d') delta t + D d.
    border_first = replace(
        nothing,
        time_state=(1.0 + rate) * positive.time_state + border.distance.state,
        time_input=(1.0 + rate) * positive.time_input + border.distance.input,
    )
    border_last = make_identity_jump(len(positive.field_change), len(before.input))
    jumps = {
        (frozenset[int](), 0): positive,
        (frozenset[int](), 1): border_first,
        (frozenset({0}), 1): border_last,
        (frozenset({1}), 0): negative,
    }
    return PiecewiseLinearJump((guard, border.name), partial(_look_up_jump, jumps))


def _look_up_jump(
    jumps: Mapping[tuple[frozenset[int], int], JumpGains], fired: frozenset[int], j: int
) -> JumpGains:
    """Return the jump of j after those in `fired`; a function of the module can be pickled."""
    return jumps[fired, j]


def _make_open_loop_law(
    system: HybridSystem,
    value: Array,
    rate: Array,
    fired: tuple[Event, ...],
    mode: ModeKey,
    state: Array,
) -> DifferentiableLaw:
    """Return the law of one input and its rate in any phantom mode, an `EventLaw`.

    Args:
        system: The hybrid system.
        value: Input (nu,).
        rate: Its rate (nu,), per s.
        fired: Guards that have fired, which do not matter.
        mode: The phantom mode.
        state: Its state (nx,), which does not matter.
    """
    return DifferentiableLaw.held(value, rate, system.mode(mode).space.ndx)


def get_constant_gain(gain: Array, at: object) -> Array:
    """Return a gain that is the same at all times, or in all phantom modes."""
    return gain


def linearize_single(
    system: HybridSystem, event: Event, sides: tuple[EventSide, EventSide]
) -> JumpGains | PiecewiseLinearJump:
    """Return the jump of an event of one guard, whose reset may be at a border (cases 1 and 4).

    Args:
        system: The hybrid system of the run.
        event: The event, which is not the end of infinitely many, and did not pass a jam.
        sides: Sides before and after it.

    Returns:
        The jump. It raises the errors of `jump_derivative`.
    """
    (guard,) = event.guards
    border = find_reset_border(system, guard, *sides, event.report)
    if border is None:
        return linearize_crossing(system, guard, *sides, report=event.report)
    if border.is_linear:  # both sides have one derivative
        return linearize_crossing(system, guard, *sides, border.negative)
    return linearize_at_border(system, guard, *sides, border)


# Guards that stay one event


def has_joint_event(system: HybridSystem, event: Event, simultaneous: Simultaneous) -> bool:
    """Return whether the guards of an event stay one event on perturbed trajectories.

    Args:
        system: The hybrid system of the run.
        event: An event of the run.
        simultaneous: See `jump_derivative`.

    Raises:
        UnknownNameError: `simultaneous` is none of its names.
    """
    check_member("simultaneous", simultaneous, ("in turn", "at once"))
    if simultaneous == "in turn" or len(event.guards) < 2 or event.bridge or event.accumulation:
        return False
    edge = system.outgoing(event.mode_before).edge(event.guards)
    return edge is not None and edge.reset.at_once


def _linearize_at_once(system: HybridSystem, event: Event) -> JumpGains | PiecewiseLinearJump:
    """Return the jump of guards of which the first to fire has the event of all.

    Args:
        system: The hybrid system.
        event: The event, whose joint reset is one for all its guards.

    Returns:
        A piecewise linear jump of the guards that may be the first, a linear one if that is one.

    Raises:
        InputError: The reset is at a border between two cases.
        GrazingError: The rate of a guard that may be the first is not significant, or no guard
            falls.
    """
    before, after = evaluate_event_sides(system, event)
    edge = system.outgoing(event.mode_before).edge(event.guards)
    assert edge is not None
    at = before.jump_point(event.report)
    border = edge.reset.find_border(at, after.mode.key, after.input)
    if border is not None and not border.is_linear:
        raise InputError(
            f"guards {event.guards} fire at once at t = {event.time:.9g} s and lead to the border "
            f"of {border.name!r}: only single guards have a derivative there"
        )
    reset = edge.reset.calc_diff(at) if border is None else border.negative
    # In a run with a wide event window some guards are still above zero, and cannot be the first
    # (test_a_foot_that_is_above_the_ground_when_another_lands_is_not_the_first).
    delays = _compute_delays(before, event.guards)
    first = tuple(
        g for g, delay in zip(event.guards, delays, strict=True) if delay <= _FIRST_WINDOW
    )
    if len(first) <= 1:
        # Without a guard that falls, any of them gives the error.
        (guard,) = first or event.guards[:1]
        return linearize_crossing(system, guard, before, after, reset)
    micro = partial(_linearize_if_first, system, first, before, after, reset)
    return PiecewiseLinearJump(first, micro)


def _compute_delays(before: EventSide, guards: Sequence[str]) -> Array:
    """Return the times (n,) in s after the first guard at which guards reach zero, to first order.

    A guard that does not fall has an infinite delay, also if none falls.
    """
    times = []
    for guard in guards:
        rate = before.guard_rate(guard)
        value = before.point.guards[find_guard_index(before.mode, guard)]
        times.append(value / -rate if rate < 0.0 else np.inf)
    earliest = min(times)
    return np.array([time - earliest if time < np.inf else np.inf for time in times])


def _linearize_if_first(
    system: HybridSystem,
    guards: Sequence[str],
    before: EventSide,
    after: EventSide,
    reset: ResetJacobian,
    fired: frozenset[int],
    j: int,
) -> JumpGains:
    """Return the whole event as the jump of guard j if it is the first, else the identity.

    Args:
        system: The hybrid system.
        guards: Names of the guards that may be the first.
        before: Side before the event.
        after: Side after the event.
        reset: Jacobian of the joint reset.
        fired: Guards that have fired.
        j: The guard that fires next.
    """
    if fired:
        return make_identity_jump(after.mode.space.ndx, len(before.input))
    return linearize_crossing(system, guards[j], before, after, reset)


# Guards that fire in turn


def _linearize_in_turn(
    system: HybridSystem, event: Event, law: EventLaw
) -> JumpGains | PiecewiseLinearJump:
    """Return the jump of an event whose guards fire one by one.

    Args:
        system: The hybrid system.
        event: The event.
        law: Input law in phantom modes. The jump of several guards has its feedback; that of one
            guard has none.
    """
    if event.accumulation is not None or event.bridge is not None or not event.guards:
        return jump_gains(system, event)
    if len(event.guards) == 1:
        return linearize_single(system, event, evaluate_event_sides(system, event))
    if _keeps_field(system, event) and _is_input_continuous(event):
        return _linearize_kept_field(system, event, law)
    motions = PhantomMotions(system, [event], law)
    motions.check_orders()
    piecewise = PiecewiseLinearJump(event.guards, motions.gains)
    _check_times_ascend(piecewise, event)
    return piecewise


def _keeps_field(system: HybridSystem, event: Event) -> bool:
    """Return whether state and field are the same before, after and between guards of an event.

    The field is that under the input before the event. A mode that was selected after the event in
    place of that of the reset may have another one.
    """
    if event.accumulation is not None or event.bridge is not None:
        return False
    edge = system.outgoing(event.mode_before).edge(event.guards)
    if edge is None or not edge.reset.keeps_field:
        return False
    key, _ = edge.jump(event.time, event.state_before, event.input_before)
    return key == event.mode_after and event.input_before.shape == event.input_after.shape


def _is_input_continuous(event: Event) -> bool:
    """Return whether the input (nu,) is the same before and after an event."""
    before, after = event.input_before, event.input_after
    if before.shape != after.shape:
        return False
    size = 1.0 + float(np.abs(before).max(initial=0.0))
    return bool(np.abs(after - before).max(initial=0.0) <= _MAX_INPUT_JUMP * size)


def _linearize_last_departure(system: HybridSystem, event: Event) -> PiecewiseLinearJump:
    """Return the jump of guards whose event keeps the field until the input jumps with the last.

    The last guard fires in the mode in which all others have, whatever happened before: its time
    there is its time in every order in which it is the last.

    Args:
        system: The hybrid system.
        event: The event.

    Raises:
        GrazingError: The rate of a guard is not significant in the mode in which all others have
            fired: perturbed runs then stay there, without a derivative.
    """
    before, after = evaluate_event_sides(system, event)
    outgoing, every, gains = system.outgoing(event.mode_before), range(len(event.guards)), []
    at = event.time, event.state_before, event.input_before
    for j, guard in enumerate(event.guards):
        edge = outgoing.edge(tuple(event.guards[i] for i in every if i != j))
        assert edge is not None
        key, _ = edge.jump(*at)
        # Without an accuracy no warning of grazing is given: this is no event of the run.
        side = replace(before, point=system.mode(key).calc(*at), accuracy=None)
        gains.append(linearize_crossing(system, guard, side, after))
    # Forces that the event window leaves are in the field before the event, and not in this one.
    field = np.asarray(system.mode(event.mode_after).calc(*at).field, dtype=np.float64)
    return PiecewiseLinearJump(
        event.guards, partial(_compute_departure, gains, after.field - field)
    )


def _compute_departure(
    gains: Sequence[JumpGains], field_change: Array, fired: frozenset[int], j: int
) -> JumpGains:
    """Return the jump of guard j: the identity, or the jump of the input if it is the last guard.

    Args:
        gains: Jump of each guard, with its time.
        field_change: Change (ndx,) of the field with the input.
        fired: Indices of the guards that have fired.
        j: Index of the guard.
    """
    is_last = len(fired) == len(gains) - 1
    change = field_change if is_last else np.zeros_like(field_change)
    return replace(gains[j], reset_state=None, field_change=change)


def _linearize_kept_field(system: HybridSystem, event: Event, law: EventLaw) -> PiecewiseLinearJump:
    """Return the jump of guards whose event keeps the field: the identity in every order.

    Forces that the event window leaves would make the fields differ by rounding; they are not read.
    The pieces differ in the times of the guards alone.

    Args:
        system: The hybrid system.
        event: The event.
        law: Input law before it, on which the times depend.

    Raises:
        GrazingError: The rate of a guard is not significant in the mode before the event, or in
            that after all others have fired: perturbed runs then stay there, without a derivative.
    """
    before, after = evaluate_event_sides(system, event)
    every = frozenset(range(len(event.guards)))
    for j, guard in enumerate(event.guards):
        linearize_crossing(system, guard, before, after)
        _compute_kept_field_jump(system, event, every - {j}, j)
    gain = -law((), event.mode_before, event.state_before).jacobian(event.time, event.state_before)
    piecewise = PiecewiseLinearJump(event.guards, partial(_compute_kept_field_jump, system, event))
    return piecewise.with_feedback(partial(get_constant_gain, gain))


def _compute_kept_field_jump(
    system: HybridSystem, event: Event, fired: frozenset[int], j: int
) -> JumpGains:
    """Return the identity, with the time of guard j after guards that have fired.

    Where the guard does not fall in the phantom mode and others are left to fire, its time is that
    in the mode before the event: so is the force of a foot that one which lets go presses down
    until the others let go, too.

    Args:
        system: The hybrid system.
        event: The event.
        fired: Indices of the guards that have fired.
        j: Index of the guard.

    Raises:
        GrazingError: The guard does not fall in any of the modes that count: that before the event
            if none has fired, the phantom mode if it is the last guard, and else both.
    """
    before, after = evaluate_event_sides(system, event)
    name, sides = event.guards[j], [before]
    is_last = len(fired) == len(event.guards) - 1
    edge = system.outgoing(event.mode_before).edge(tuple(event.guards[i] for i in sorted(fired)))
    if fired and edge is not None:
        key, _ = edge.jump(event.time, event.state_before, event.input_before)
        mode = system.mode(key)
        if name not in mode.guard_names:
            return make_identity_jump(mode.space.ndx, len(before.input))
        point = mode.calc(event.time, event.state_before, event.input_before)
        # Without an accuracy no warning of grazing is given: this is no event of the run.
        phantom = replace(before, point=point, accuracy=None)
        # The last guard has nothing to wait for: where it does not fall, perturbed runs stay.
        sides = [phantom] if is_last else [phantom, before]
    jump = _linearize_first_falling(system, name, sides, after)
    return replace(jump, reset_state=None, field_change=np.zeros_like(jump.field_change))


def _linearize_first_falling(
    system: HybridSystem, guard: str, sides: Sequence[EventSide], after: EventSide
) -> JumpGains:
    """Return the jump of a guard from the first of some sides in which it falls.

    Args:
        system: The hybrid system.
        guard: Name of the guard.
        sides: Sides before the event.
        after: Side after the event.

    Raises:
        GrazingError: Its rate is not significant on any side.
    """
    for side in sides[:-1]:
        with suppress(GrazingError):
            return linearize_crossing(system, guard, side, after)
    return linearize_crossing(system, guard, sides[-1], after)


def _check_times_ascend(piecewise: PiecewiseLinearJump, event: Event) -> None:
    """Check for random perturbations that no guard fires before one that it waited for.

    Times of firing are compared with the latest one before. A step back counts as rounding up to
    `_BACKWARD_TIME` of the largest time, and up to `_BACKWARD_TIME_FLOOR`.

    Args:
        piecewise: The jump.
        event: The event, for messages.

    Raises:
        AmbiguousEventError: A guard fires earlier than a guard before it.
    """
    directions = np.random.default_rng(0).normal(size=(_CHECKED_DIRECTIONS, piecewise.dimension))
    passage = piecewise.follow(directions)
    # A guard whose work another one has done has the identity as its jump, and the time zero.
    has_time = passage.times != 0.0
    latest = np.maximum.accumulate(np.where(has_time, passage.times, -np.inf), axis=1)
    back = np.where(has_time, latest - passage.times, 0.0)
    limit = max(_BACKWARD_TIME * np.abs(passage.times).max(), _BACKWARD_TIME_FLOOR)
    if back.max() > limit:
        row, k = np.unravel_index(int(back.argmax()), back.shape)
        guards = [event.guards[j] for j in passage.orders[row, : k + 1]]
        raise AmbiguousEventError(
            f"guards {event.guards} fire together at t = {event.time:.9g} s, and {guards[-1]!r} "
            f"would fire before {guards[:-1]}, after which it was found: their jumps move it"
        )
