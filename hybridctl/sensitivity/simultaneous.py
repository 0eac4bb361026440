r"""The first-order jump of any event of a simulation, of one guard or of several at once.

Where n guards fire together, a perturbed trajectory meets them one after the other, with short
stays in *phantom* modes between them. Each phantom mode is evaluated at the nominal event: its
state is what the resets of the guards that have fired make of the ante-event state, [RS] 4.2.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, Literal

import numpy as np

from hybridctl.checks import Array, instance, member
from hybridctl.errors import AmbiguousEventError, InputError, NoContactSolutionError
from hybridctl.hybrid.mode import Jump, ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.border import border_cascade
from hybridctl.sensitivity.cascade import Cascade
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

PhantomInput = Literal["pushing", "withdrawing"]

_SAME = 1e-6
_MOST_GUARDS = 12  # whose 2^n phantom modes are looked at
_SELECTIONS = 8
_DIRECTIONS = 128
_BACK = 1e-7


def jump_derivative(
    system: HybridSystem, event: Event, *, phantom_input: PhantomInput = "pushing"
) -> JumpGains | Cascade:
    """The first-order jump of an event: linear for one guard, piecewise linear for several.

    It is piecewise linear for one guard, too, where its reset is at the border of two cases: a
    contact that the impact only just stops sliding, and that bounces or slides off. See
    `border_cascade`; what is brief after the event is under the post-event input.

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
    if event.accumulation is not None or not event.guards:
        return jump_gains(system, event)
    if len(event.guards) == 1:
        return _single(system, event)
    phantoms = _Phantoms(system, event, phantom_input)
    phantoms.check()
    cascade = Cascade(event.guards, phantoms.gains)
    _check_growing(cascade, event)
    return cascade


def _single(system: HybridSystem, event: Event) -> JumpGains | Cascade:
    """The jump of an event of one guard, which may lead to a border."""
    (guard,), sides = event.guards, event_sides(system, event)
    border = reset_border(system, guard, *sides)
    if border is None:
        return crossing(system, guard, *sides)
    if border.is_linear:
        return crossing(system, guard, *sides, border.negative)
    return border_cascade(system, guard, *sides, border)


class _Phantoms:
    """The nominal event with its guards fired one by one: a side for each set that has fired."""

    def __init__(self, system: HybridSystem, event: Event, phantom_input: PhantomInput) -> None:
        self._system, self._event = system, event
        before, after = system.mode(event.mode_before), system.mode(event.mode_after)
        t, none = event.time, frozenset[int]()
        first = Side(before, t, event.state_before, event.input_before, event.input_rate)
        last = Side(after, t, event.state_after, event.input_after, event.input_rate)
        self._all = frozenset(range(len(event.guards)))
        self._sides = {none: first, self._all: last}
        pushing = phantom_input == "pushing"
        self._input = event.input_before if pushing else event.input_after
        self._rate = event.input_rate if pushing else np.zeros_like(event.input_rate)
        self._made_of = system, event, phantom_input

    def __reduce__(self) -> tuple[Any, ...]:
        return _Phantoms, self._made_of

    def gains(self, fired: frozenset[int], j: int) -> JumpGains:
        """The jump of guard j where the guards `fired` have fired."""
        before, after = self.side(fired), self.side(fired | {j})
        name = self._event.guards[j]
        if self._is_done(before, name):
            return unchanged(before.mode.space.ndx, len(before.input))
        return gains_between(self._system, name, before, after)

    def side(self, fired: frozenset[int]) -> Side:
        """The nominal state after these guards, by the order of declaration."""
        if fired not in self._sides:
            last = max(fired)
            key, state, u = self._land(fired - {last}, last)
            mode = self._system.mode(key)
            self._sides[fired] = Side(mode, self._event.time, state, u, self._rate)
        return self._sides[fired]

    def _waiting(self, fired: frozenset[int], key: ModeKey) -> bool:
        """Whether a mode has guards of the event left to fire, so that it is not over."""
        names = self._system.outgoing(key).guards.names
        return any(self._event.guards[j] in names for j in self._all - fired)

    def check(self) -> None:
        """Raise `AmbiguousEventError` where two orders lead to different states or modes.

        Each set of guards has to be reached alike from all sets with one guard less, which are
        n 2^(n-1) resets; more than twelve guards are refused.
        """
        names, t = self._event.guards, self._event.time
        if len(names) > _MOST_GUARDS:
            raise AmbiguousEventError(
                f"{len(names)} guards fire together at t = {t:.9g} s, and whether their order "
                f"matters is looked at for {_MOST_GUARDS} at most"
            )
        for size in range(1, len(self._all) + 1):
            for fired in combinations(sorted(self._all), size):
                for last in fired:
                    self._compare(frozenset(fired), last)

    def _compare(self, fired: frozenset[int], last: int) -> None:
        side = self.side(fired)
        key, state, _ = self._land(fired - {last}, last)
        space = side.mode.space
        scale = 1.0 + float(np.abs(state).max(initial=0.0))
        same = key == side.mode.key and len(state) == len(side.state)
        if not same or np.abs(space.difference(side.state, state)).max() > _SAME * scale:
            raise self._ambiguous(fired, last, key, state)

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

    def _land(self, fired: frozenset[int], j: int) -> tuple[ModeKey, Array, Array]:
        """Mode, state and input when guard j fires after the guards `fired`."""
        before, name = self.side(fired), self._event.guards[j]
        if self._is_done(before, name):
            return before.mode.key, before.state, before.input
        edge = self._system.outgoing(before.mode.key).edge((name,))
        if edge is None:
            raise InputError(f"mode {before.mode.key!r} has no edge for guard {name!r} alone")
        jump = edge.reset(before.time, before.state, before.input)
        key = edge.target if jump.mode is None else jump.mode
        waiting = key is not None and self._waiting(fired | {j}, key)
        u = self._input if waiting else self._event.input_after
        return self._selected(key, jump, u), jump.state, u

    def _selected(self, key: ModeKey, jump: Jump, u: Array) -> ModeKey:
        """The mode that flows on from a jump under input u."""
        for _ in range(_SELECTIONS):
            mode = self._system.mode(key)
            chosen = key if mode.select is None else mode.select(self._event.time, jump.state, u)
            if chosen == key:
                return key
            key = chosen
        raise NoContactSolutionError(
            f"no phantom mode is consistent at t = {self._event.time:.9g} s, x = "
            f"{jump.state.tolist()}"
        )

    def _is_done(self, side: Side, guard: str) -> bool:
        """Whether the guards that have fired did what this one does: their mode lacks it."""
        return guard not in self._system.outgoing(side.mode.key).guards.names


def _check_growing(cascade: Cascade, event: Event) -> None:
    """Raise `AmbiguousEventError` where guards fire earlier than those before them.

    Seen in random directions. A guard that another one has done has no time of its own.
    """
    directions = np.random.default_rng(0).normal(size=(_DIRECTIONS, cascade.dimension))
    passage = cascade.follow(directions)
    own = passage.times != 0.0
    times = np.maximum.accumulate(np.where(own, passage.times, -np.inf), axis=1)
    back = np.where(own, times - passage.times, 0.0)
    if back.max() > _BACK * np.abs(passage.times).max():
        row, k = np.unravel_index(int(back.argmax()), back.shape)
        guards = [event.guards[j] for j in passage.orders[row, : k + 1]]
        raise AmbiguousEventError(
            f"guards {event.guards} fire together at t = {event.time:.9g} s, and {guards[-1]!r} "
            f"would fire before {guards[:-1]}, after which it was found: their jumps move it"
        )
