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

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

import numpy as np

from hybridctl.checks import Array, instance, member
from hybridctl.errors import AmbiguousEventError, InputError, NoContactSolutionError
from hybridctl.hybrid.laws import DifferentiableLaw
from hybridctl.hybrid.mode import Jump, ModeKey, ResetBorder
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.gains import (
    JumpGains,
    Side,
    crossing,
    event_sides,
    gains_between,
    jump_gains,
    reset_border,
    unchanged,
)
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
EventLaw = Callable[[tuple[Event, ...], ModeKey, Array], DifferentiableLaw]

_SAME = 1e-6
_MOST_GUARDS = 12  # whose 2^n phantom modes are looked at
_SELECTIONS = 8
_DIRECTIONS = 128
_BACK = 1e-7
_UNSEEN = 1e-15  # s per unit: rounding of times of guards that see the input alone


def jump_derivative(
    system: HybridSystem, event: Event, *, phantom_input: PhantomInput = "pushing"
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

    Raises `GrazingError` where a guard is not crossed transversally, in a phantom mode too;
    `AmbiguousEventError` where the order of the guards changes the nominal state or mode after
    the event ([RS] Assumption 6), where the jump of one takes another back to before it ([RS] (7)),
    and for more than twelve guards; `InputError` where the event is where infinitely many end, and
    at borders of the reset that are not one between two cases, or are met by one of several guards;
    `SystemDefinitionError` where a Jacobian is missing.
    """
    member("phantom_input", phantom_input, ("pushing", "withdrawing"))
    instance("event", event, Event)
    return _jump(system, event, _held_law(system, event, phantom_input))


def jump_under(
    system: HybridSystem, event: Event, law: EventLaw
) -> JumpGains | PiecewiseLinearJump:
    """The jump where the input follows from a law of the state, in phantom modes too.

    law(fired, mode, state): the law on from the events of single guards `fired`, none of them for
    the one before the event; mode and state are what they lead to. Its changes of the input by the
    state are part of the jump. Raises what `jump_derivative` raises.
    """
    jump = _jump(system, event, law)
    if isinstance(jump, PiecewiseLinearJump) and len(event.guards) > 1:
        return jump
    before = law((), event.mode_before, event.state_before)
    gain = -before.jacobian(event.time, event.state_before)
    return (
        jump.fed_back(gain)
        if isinstance(jump, JumpGains)
        else jump.fed_back(partial(_one_gain, gain))
    )


def _jump(system: HybridSystem, event: Event, law: EventLaw) -> JumpGains | PiecewiseLinearJump:
    """The jump of an event; under the feedback of the law if it has several guards."""
    if event.accumulation is not None or not event.guards:
        return jump_gains(system, event)
    if len(event.guards) == 1:
        return _single(system, event)
    phantoms = _Phantoms(system, event, law)
    phantoms.check()
    piecewise = PiecewiseLinearJump(event.guards, phantoms.gains)
    _check_growing(piecewise, event)
    return piecewise


def _held_law(system: HybridSystem, event: Event, phantom_input: PhantomInput) -> EventLaw:
    """The input of the record: that before the event goes on, or that after it is there at once."""
    pushing = phantom_input == "pushing"
    value = event.input_before if pushing else event.input_after
    rate = event.input_rate if pushing else np.zeros_like(event.input_rate)
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


def _one_gain(gain: Array, fired: frozenset[int]) -> Array:
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


class _Phantoms:
    """The nominal event with its guards fired one by one: a side for each set that has fired."""

    def __init__(self, system: HybridSystem, event: Event, law: EventLaw) -> None:
        self._system, self._event, self._law = system, event, law
        before, after = system.mode(event.mode_before), system.mode(event.mode_after)
        t, none = event.time, frozenset[int]()
        first = Side(before, t, event.state_before, event.input_before, event.input_rate)
        last = Side(after, t, event.state_after, event.input_after, event.input_rate)
        self._all = frozenset(range(len(event.guards)))
        self._sides = {none: first, self._all: last}
        self._paths: dict[frozenset[int], tuple[Event, ...]] = {none: ()}

    def __reduce__(self) -> tuple[Any, ...]:
        return _Phantoms, (self._system, self._event, self._law)

    def gains(self, fired: frozenset[int], j: int) -> JumpGains:
        """The jump of guard j where the guards `fired` have fired."""
        before, after = self.side(fired), self.side(fired | {j})
        name = self._event.guards[j]
        if self._is_done(before, name):
            return unchanged(before.mode.space.ndx, len(before.input))
        law = self._law(self._path(fired), before.mode.key, before.state)
        jump = gains_between(self._system, name, before, after)
        return jump.fed_back(-law.jacobian(before.time, before.state))

    def side(self, fired: frozenset[int]) -> Side:
        """The nominal state after these guards, by the order of declaration."""
        if fired not in self._sides:
            last = max(fired)
            self._sides[fired] = self._land(fired - {last}, last)
        return self._sides[fired]

    def _waiting(self, fired: frozenset[int], key: ModeKey) -> bool:
        """Whether a mode has guards of the event left to fire, so that it is not over."""
        names = self._system.outgoing(key).guards.names
        return any(self._event.guards[j] in names for j in self._all - fired)

    def check(self) -> None:
        """Raise `AmbiguousEventError` where two orders lead to different states or modes.

        Each set of guards has to be reached alike from all sets with one guard less, which are
        n 2^(n-1) resets; more than twelve guards are refused. Sides are those with the last guard
        fired last, but for the one after all.
        """
        names, t = self._event.guards, self._event.time
        if len(names) > _MOST_GUARDS:
            raise AmbiguousEventError(
                f"{len(names)} guards fire together at t = {t:.9g} s, and whether their order "
                f"matters is looked at for {_MOST_GUARDS} at most"
            )
        for size in range(1, len(self._all) + 1):
            for fired in combinations(sorted(self._all), size):
                for last in fired if size == len(self._all) else fired[:-1]:
                    self._compare(frozenset(fired), last)

    def _compare(self, fired: frozenset[int], last: int) -> None:
        side, other = self.side(fired), self._land(fired - {last}, last)
        space, state = side.mode.space, other.state
        scale = 1.0 + float(np.abs(state).max(initial=0.0))
        same = other.mode.key == side.mode.key and len(state) == len(side.state)
        if not same or np.abs(space.difference(side.state, state)).max() > _SAME * scale:
            raise self._ambiguous(fired, last, other.mode.key, state)

    def _ambiguous(
        self, fired: frozenset[int], last: int, key: ModeKey, state: Array
    ) -> AmbiguousEventError:
        """That guard `last` after the others leads to (key, state), and not to their side."""
        names, side = self._event.guards, self.side(fired)
        order = (*(names[i] for i in sorted(fired - {last})), names[last])
        other = tuple(names[i] for i in sorted(fired))
        how = (
            f"all at once leads to {side.mode.key!r}"
            if fired == self._all
            else (f"the order {other} to {side.mode.key!r}")
        )
        apart = np.inf
        if state.shape == side.state.shape:
            apart = float(np.abs(state - side.state).max(initial=0.0))
        return AmbiguousEventError(
            f"guards {names} fire together at t = {self._event.time:.9g} s and their order "
            f"matters: {order} leads to {key!r}, {how}, and the states differ by {apart:.3g}.\n"
            "Motions just beside this one end apart from it, so that it has no derivative: let the "
            "guards fire one after the other (lift one foot a little), or make the contacts give",
            orders=(order, other),
            modes=(key, side.mode.key),
            states=(state, side.state),
        )

    def _land(self, fired: frozenset[int], j: int) -> Side:
        """Where guard j leads after the guards `fired`."""
        before, name = self.side(fired), self._event.guards[j]
        if self._is_done(before, name):
            return before
        edge = self._system.outgoing(before.mode.key).edge((name,))
        if edge is None:
            raise InputError(f"mode {before.mode.key!r} has no edge for guard {name!r} alone")
        jump = edge.reset(before.time, before.state, before.input)
        key = edge.target if jump.mode is None else jump.mode
        law = None
        if key is not None and self._waiting(fired | {j}, key):
            law = partial(self._law_after, self._path(fired), before, name)
        return self._selected(key, jump, law)

    def _selected(
        self, key: ModeKey, jump: Jump, law: Callable[[ModeKey, Array], DifferentiableLaw] | None
    ) -> Side:
        """The mode that flows on from a jump: under a law, or if there is none after the event."""
        t, state = self._event.time, jump.state
        for _ in range(_SELECTIONS):
            mode = self._system.mode(key)
            now = None if law is None else law(key, state)
            u = self._event.input_after if now is None else now(t, state)
            chosen = mode.select(t, state, u) if mode.selects else key
            if chosen == key:
                side = Side(mode, t, state, u, np.zeros_like(u))
                if now is None:
                    return side
                return replace(side, input_rate=now.velocity(t, state, side.field))
            key = chosen
        raise NoContactSolutionError(
            f"no phantom mode is consistent at t = {t:.9g} s, x = {state.tolist()}"
        )

    def _path(self, fired: frozenset[int]) -> tuple[Event, ...]:
        """The events of single guards that lead to the side of `fired`."""
        if fired not in self._paths:
            last = max(fired)
            path, name = self._path(fired - {last}), self._event.guards[last]
            before, after = self.side(fired - {last}), self.side(fired)
            if not self._is_done(before, name):
                path = (*path, self._single_event(path, before, name, after.mode.key, after.state))
            self._paths[fired] = path
        return self._paths[fired]

    def _law_after(
        self, path: tuple[Event, ...], before: Side, guard: str, key: ModeKey, state: Array
    ) -> DifferentiableLaw:
        event = self._single_event(path, before, guard, key, state)
        return self._law((*path, event), key, state)

    def _single_event(
        self, path: tuple[Event, ...], before: Side, guard: str, key: ModeKey, state: Array
    ) -> Event:
        """The event of one guard after those of a path, with the input before it."""
        return Event(
            self._event.index + len(path),
            before.time,
            before.mode.key,
            key,
            (guard,),
            before.state,
            state,
            before.input,
            before.input,
            before.input_rate,
            np.zeros(0),
        )

    def _is_done(self, side: Side, guard: str) -> bool:
        """Whether the guards that have fired did what this one does: their mode lacks it."""
        return guard not in self._system.outgoing(side.mode.key).guards.names


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
