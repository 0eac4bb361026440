r"""The first-order jump of any event of a simulation, of one guard or of several at once.

Where n guards fire together, a perturbed trajectory meets them one after the other, with short
stays in *phantom* modes between them. Each phantom mode is evaluated at the nominal event: its
state is what the resets of the guards that have fired make of the ante-event state, [RS] 4.2.

Where a reset is at the border between two cases only one guard fires, and still the jump is
piecewise linear: on either side of the border the reset has another derivative. With d the distance
from the border, reached at the event's own time,

.. math:: \delta d = D_x d\, \delta x + D_u d\, \delta u + \dot d\, \delta t,

the case "positive" holds where it is not negative. Those are two guards that fire together, the
event's and the border, which changes nothing itself: it comes after the event by d where it is
entered, and before it where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from hybridctl.base.checks import Array, check_instance, check_member
from hybridctl.base.errors import AmbiguousEventError, InputError
from hybridctl.hybrid.laws import DifferentiableLaw
from hybridctl.hybrid.mode import ModeKey, ResetBorder, ResetJacobian
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.gains import (
    JumpGains,
    Side,
    crossing,
    event_sides,
    guard_index,
    jump_gains,
    reset_border,
    unchanged,
)
from hybridctl.sensitivity.phantoms import EventLaw, Phantoms
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump


def boundary_jump(
    system: HybridSystem, guard: str, before: Side, after: Side, border: ResetBorder
) -> PiecewiseLinearJump:
    """The jump of `guard` at a border, as guards (guard, border.name).

    The order (0, 1) is the positive case and (1, 0) the negative one; the time of the border is
    that of the event plus the distance, and zero where it comes last. A feedback gain for the
    guards {1} is that before the event.
    """
    positive = crossing(system, guard, before, after, border.positive)
    negative = crossing(system, guard, before, after, border.negative)
    rate = border.distance.time + border.distance.state @ before.field
    rate += border.distance.input @ before.input_rate
    nothing = unchanged(before.mode.space.ndx, len(before.input))
    entered = replace(
        nothing,
        time_state=(1.0 + rate) * positive.time_state + border.distance.state,
        time_input=(1.0 + rate) * positive.time_input + border.distance.input,
    )
    done = unchanged(len(positive.field_change), len(before.input))
    jumps = {
        (frozenset[int](), 0): positive,
        (frozenset[int](), 1): entered,
        (frozenset({0}), 1): done,
        (frozenset({1}), 0): negative,
    }
    return PiecewiseLinearJump((guard, border.name), partial(_known, jumps))


def _known(
    jumps: Mapping[tuple[frozenset[int], int], JumpGains], fired: frozenset[int], j: int
) -> JumpGains:
    return jumps[fired, j]


PhantomInput = Literal["pushing", "withdrawing"]
Simultaneous = Literal["in turn", "at once"]

_DIRECTIONS = 128
_BACK = 1e-7
_TOGETHER = 1e-8  # s: guards that fire within it may change their order in small deviations
_UNSEEN = 1e-15  # s per unit: rounding of times of guards that see the input alone


def jump_derivative(
    system: HybridSystem,
    event: Event,
    *,
    phantom_input: PhantomInput = "pushing",
    simultaneous: Simultaneous = "in turn",
) -> JumpGains | PiecewiseLinearJump:
    """The first-order jump of an event: linear for one guard, piecewise linear for several.

    It is piecewise linear for one guard, too, where its reset is at the border of two cases: a
    contact that the impact only just stops sliding, and that bounces or slides off. See
    `boundary_jump`; what is brief after the event is under the post-event input.

    Either is called with deviations before the event, at fixed time, and changes of the input.
    Where the policy changed its law there is no guard, and deviations go on as they are. An event
    is over, and its post-event input there, once the guards that have fired leave none of the
    others to fire (a foot whose corners stop sliding together).
    phantom_input: in phantom modes the ante-event input goes on ("pushing", [RS] (4.16)) or the
    post-event input is there from the first guard on ("withdrawing", [RS] (4.15)).
    simultaneous: "in turn", guards fire one by one, however small the deviation is; or "at once",
    an impact of several contacts stays one, when the first of them touches, as in `simulate` with
    an `event_window` above what deviations put between them. It has a piece for each guard that
    is at zero and may be the first, and a derivative also where orders lead to different states.

    Raises `GrazingError` where a guard is not crossed transversally, in a phantom mode too;
    `AmbiguousEventError` where the order of the guards changes the nominal state or mode after
    the event ([RS] Assumption 6), where the jump of one takes another back to before it ([RS] (7)),
    and for more than twelve guards; `InputError` where the event is where infinitely many end, and
    at borders of the reset that are not one between two cases, or are met by one of several guards;
    `SystemDefinitionError` where a Jacobian is missing.
    """
    check_member("phantom_input", phantom_input, ("pushing", "withdrawing"))
    check_instance("event", event, Event)
    if _is_one(system, event, simultaneous):
        return _at_once(system, event)
    return _in_turn(system, event, held_law(system, [event], phantom_input))


def jump_under(
    system: HybridSystem, event: Event, law: EventLaw, simultaneous: Simultaneous = "in turn"
) -> JumpGains | PiecewiseLinearJump:
    """The jump where the input follows from a law of the state, in phantom modes too.

    law(fired, mode, state): the law on from the events of single guards `fired`, none of them for
    the one before the event; mode and state are what they lead to. Its changes of the input by the
    state are part of the jump. Raises what `jump_derivative` raises.
    """
    if _is_one(system, event, simultaneous):
        jump: JumpGains | PiecewiseLinearJump = _at_once(system, event)
    else:
        jump = _in_turn(system, event, law)
        if isinstance(jump, PiecewiseLinearJump) and len(event.guards) > 1:
            return jump
    before = law((), event.mode_before, event.state_before)
    gain = -before.jacobian(event.time, event.state_before)
    if isinstance(jump, JumpGains):
        return jump.fed_back(gain)
    return jump.fed_back(partial(constant_gain, gain))


def _is_one(system: HybridSystem, event: Event, simultaneous: Simultaneous) -> bool:
    """Whether the guards of an event stay one event in motions beside it."""
    check_member("simultaneous", simultaneous, ("in turn", "at once"))
    if simultaneous == "in turn" or len(event.guards) < 2 or event.bridge or event.accumulation:
        return False
    edge = system.outgoing(event.mode_before).edge(event.guards)
    return edge is not None and edge.reset.at_once


def _at_once(system: HybridSystem, event: Event) -> JumpGains | PiecewiseLinearJump:
    """The jump of guards of which the first to fire has the event of all.

    Guards that are still above zero, as in a run with a wide event window, are not the first.
    """
    before, after = event_sides(system, event)
    edge = system.outgoing(event.mode_before).edge(event.guards)
    assert edge is not None
    at = before.jump_point(event.report)
    border = edge.reset.border_at(at, after.mode.key, after.input)
    if border is not None and not border.is_linear:
        raise InputError(
            f"guards {event.guards} fire at once at t = {event.time:.9g} s and lead to the border "
            f"of {border.name!r}: only single guards have a derivative there"
        )
    reset = edge.reset.calc_diff(at) if border is None else border.negative
    lags = _lags(before, event.guards)
    first = tuple(g for g, lag in zip(event.guards, lags, strict=True) if lag <= _TOGETHER)
    if len(first) == 1:
        return crossing(system, first[0], before, after, reset)
    return PiecewiseLinearJump(first, partial(_first, system, first, before, after, reset))


def _lags(before: Side, guards: Sequence[str]) -> Array:
    """The times (n,) in s after which guards fall through zero, to first order, the first at 0."""
    found = []
    for guard in guards:
        rate = before.guard_rate(guard)
        value = before.point.guards[guard_index(before.mode, guard)]
        found.append(value / -rate if rate < 0.0 else np.inf)
    return np.asarray(found) - min(found)


def _first(
    system: HybridSystem,
    guards: Sequence[str],
    before: Side,
    after: Side,
    reset: ResetJacobian,
    fired: frozenset[int],
    j: int,
) -> JumpGains:
    """The jump of guard j, which has the whole event if it is the first."""
    if fired:
        return unchanged(after.mode.space.ndx, len(before.input))
    return crossing(system, guards[j], before, after, reset)


def _in_turn(system: HybridSystem, event: Event, law: EventLaw) -> JumpGains | PiecewiseLinearJump:
    """The jump of an event; under the feedback of the law if it has several guards."""
    if event.accumulation is not None or event.bridge is not None or not event.guards:
        return jump_gains(system, event)
    if len(event.guards) == 1:
        return _single(system, event)
    phantoms = Phantoms(system, [event], law)
    phantoms.check()
    piecewise = PiecewiseLinearJump(event.guards, phantoms.gains)
    _check_growing(piecewise, event)
    return piecewise


def held_law(
    system: HybridSystem, events: Sequence[Event], phantom_input: PhantomInput
) -> EventLaw:
    """The input of the record: that before the events goes on, or that after them is there at once.

    phantom_input: see `jump_derivative`.
    """
    first, last = events[0], events[-1]
    pushing = phantom_input == "pushing"
    value = first.input_before if pushing else last.input_after
    rate = first.input_rate if pushing else np.zeros_like(last.input_rate)
    return partial(_one_input, system, value, rate)


def _one_input(
    system: HybridSystem,
    value: Array,
    rate: Array,
    fired: tuple[Event, ...],
    mode: ModeKey,
    state: Array,
) -> DifferentiableLaw:
    return DifferentiableLaw.held(value, rate, system.mode(mode).space.ndx)


def constant_gain(gain: Array, at: object) -> Array:
    """The gain that is the same at all times, or in all phantom modes."""
    return gain


def _single(system: HybridSystem, event: Event) -> JumpGains | PiecewiseLinearJump:
    """The jump of an event of one guard, which may lead to a border."""
    (guard,), sides = event.guards, event_sides(system, event)
    border = reset_border(system, guard, *sides, event.report)
    if border is None:
        return crossing(system, guard, *sides, report=event.report)
    if border.is_linear:
        return crossing(system, guard, *sides, border.negative)
    return boundary_jump(system, guard, *sides, border)


def _check_growing(piecewise: PiecewiseLinearJump, event: Event) -> None:
    """Raise `AmbiguousEventError` where guards fire earlier than those before them.

    Seen in random directions. A guard that another one has done has no time of its own.
    """
    directions = np.random.default_rng(0).normal(size=(_DIRECTIONS, piecewise.dimension))
    passage = piecewise.follow(directions)
    own = passage.times != 0.0
    times = np.maximum.accumulate(np.where(own, passage.times, -np.inf), axis=1)
    back = np.where(own, times - passage.times, 0.0)
    if back.max() > max(_BACK * np.abs(passage.times).max(), _UNSEEN):
        row, k = np.unravel_index(int(back.argmax()), back.shape)
        guards = [event.guards[j] for j in passage.orders[row, : k + 1]]
        raise AmbiguousEventError(
            f"guards {event.guards} fire together at t = {event.time:.9g} s, and {guards[-1]!r} "
            f"would fire before {guards[:-1]}, after which it was found: their jumps move it"
        )
