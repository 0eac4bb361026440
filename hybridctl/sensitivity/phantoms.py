"""The phantom modes between guards that fire together, or in a window of one run.

The guards of the events are fired one by one, in any order. After each set of guards there is a
nominal motion that others are compared with: the arc of the run where the set is that of its first
events, else what resets make of the state where each guard meets its own surface. Beside its point
all fields are taken as constant, which is wrong by the square of the time between events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from operator import eq
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import AmbiguousEventError
from hybridctl.hybrid.jump import (
    MAX_COMMUTING_GUARDS,
    explore_orders,
    find_consistent_mode,
    get_single_edge,
    make_ambiguity_error,
)
from hybridctl.hybrid.laws import DifferentiableLaw
from hybridctl.hybrid.mode import ModeKey, ModeModel
from hybridctl.hybrid.model import Point
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE_TOLERANCE
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.gains import (
    JumpGains,
    Side,
    event_sides,
    gains_between,
    guard_index,
    later,
    unchanged,
)

EventLaw = Callable[[tuple[Event, ...], ModeKey, Array], DifferentiableLaw]

_FEW = 6  # guards, of whose jumps in any order all reports are kept
_DRIFT = 4.0  # orders may differ by what the fields do in this many times the time between events


class Leap(NamedTuple):
    """The jump of one guard from one nominal motion to another.

    gains: beside the nominal motion before it, which fires at `time`, s. offset (ndx+,): by how
    much that lands beside the nominal motion after it.
    """

    gains: JumpGains
    time: float
    offset: Array


class Landing(NamedTuple):
    """Where the jump of one guard leads: the time in s, the mode, and the state (nx,) there."""

    time: float
    mode: ModeModel
    state: Array


class Phantoms:
    """Events of a run with their guards fired one by one: sides for each set that has fired.

    events: one, or several that follow each other, of guards that all are of the mode before the
    first. law(fired, mode, state): the law after events `fired` of single guards.
    """

    def __init__(self, system: HybridSystem, events: Sequence[Event], law: EventLaw) -> None:
        self._system, self.events, self._law = system, tuple(events), law
        self.guards = tuple(name for event in events for name in event.guards)
        counts = accumulate((len(event.guards) for event in events), initial=0)
        self.nominal = tuple(frozenset(range(n)) for n in counts)
        self._all = self.nominal[-1]
        sides = [event_sides(system, event) for event in self.events]
        self._ends = {done: one[0] for done, one in zip(self.nominal, sides, strict=False)}
        self._starts = {done: one[1] for done, one in zip(self.nominal[1:], sides, strict=True)}
        self._paths = {done: self.events[:k] for k, done in enumerate(self.nominal)}
        self._met: dict[tuple[frozenset[int], int], Side] = {}
        self._reports: dict[tuple[frozenset[int], int], Any] = {}
        self._landed: dict[tuple[frozenset[int], int], Landing] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Phantoms, (self._system, self.events, self._law)

    @property
    def window(self) -> float:
        """The time from the first event to the last, s."""
        return self.events[-1].time - self.events[0].time

    def gains(self, fired: frozenset[int], j: int) -> JumpGains:
        """The jump of guard j where the guards `fired` have fired."""
        at, name = self._at(fired, j), self.guards[j]
        if self._is_done(at, name):
            return unchanged(at.mode.space.ndx, len(at.input))
        law = self._law(self._path(fired), at.mode.key, at.state)
        nominal = self._is_nominal(fired, j)
        report = self._event(fired).report if nominal else self._reports.get((fired, j))
        jump = gains_between(self._system, name, at, self.start(fired | {j}), report)
        return jump.fed_back(-law.jacobian(at.time, at.state))

    def leap(self, fired: frozenset[int], j: int) -> Leap:
        """The jump of guard j, with when the nominal motion has it and where that leads."""
        at, after, gains = self._at(fired, j), self.start(fired | {j}), self.gains(fired, j)
        if self._is_nominal(fired, j):
            return Leap(gains, at.time, np.zeros(after.mode.space.ndx))
        done = self._is_done(at, self.guards[j])
        landed = self._land(fired, j)
        if len(landed.state) != len(after.state):
            raise self._ambiguous(fired | {j}, j, landed.mode.key, landed.state)
        there = later(after, landed.time - after.time)
        offset = after.mode.space.difference(there.state, landed.state)
        time = self.events[0].time if done else self._time(fired, j)
        return Leap(gains, time, offset)

    def end(self, fired: frozenset[int]) -> Side:
        """The place where the nominal motion after these guards meets the next."""
        return self._ends[fired] if fired in self._ends else self.start(fired)

    def start(self, fired: frozenset[int]) -> Side:
        """The place where the nominal motion after these guards begins, in declared order."""
        if fired not in self._starts:
            last = max(fired)
            self._starts[fired] = self._landing(fired - {last}, last)
        return self._starts[fired]

    def check(self) -> None:
        """Raise `AmbiguousEventError` where two orders lead to different states or modes.

        Each set of guards has to be reached alike from all sets with one guard less, which are
        n 2^(n-1) resets; more than twelve guards are refused. Sides are those with the last guard
        fired last, but for those of the run.
        """
        n, t = len(self.guards), self.events[0].time
        if n > MAX_COMMUTING_GUARDS:
            raise AmbiguousEventError(
                f"{n} guards fire together at t = {t:.9g} s, and whether their order matters is "
                f"looked at for {MAX_COMMUTING_GUARDS} at most"
            )

        def fire(fired: frozenset[int], last: int) -> frozenset[int]:
            after = fired | {last}
            if after in self.nominal or last != max(after):
                self._compare(after, last)
            return after

        def left(fired: frozenset[int]) -> list[int]:
            return sorted(self._all - fired)

        deque(explore_orders(frozenset[int](), left, fire, eq, t), maxlen=0)

    def _event(self, fired: frozenset[int]) -> Event:
        """The event that is next in the run after the first ones."""
        return self.events[self.nominal.index(fired)]

    def _is_nominal(self, fired: frozenset[int], j: int) -> bool:
        return fired in self._ends and self._event(fired).guards == (self.guards[j],)

    def _time(self, fired: frozenset[int], j: int) -> float:
        """The time when the nominal motion after `fired` meets guard j, to first order."""
        side, name = self.end(fired), self.guards[j]
        here = fired in self._ends and name in self._event(fired).guards
        if len(self.events) == 1 or here or self._is_done(side, name):
            return side.time
        rate = side.guard_rate(name)
        value = float(side.point.guards[guard_index(side.mode, name)])
        return side.time - value / rate if rate < 0.0 else side.time

    def _at(self, fired: frozenset[int], j: int) -> Side:
        """The nominal motion after `fired` at guard j."""
        if (fired, j) not in self._met:
            side = self.end(fired)
            dt = self._time(fired, j) - side.time
            self._met[fired, j] = side if dt == 0.0 else later(side, dt)
        return self._met[fired, j]

    def _waiting(self, fired: frozenset[int], key: ModeKey) -> bool:
        """Whether a mode has guards of the event left to fire, so that it is not over."""
        names = self._system.outgoing(key).guards.names
        return any(self.guards[j] in names for j in self._all - fired)

    def _compare(self, fired: frozenset[int], last: int) -> None:
        side, other = self.start(fired), self._land(fired - {last}, last)
        space, state = side.mode.space, other.state
        if other.mode.key != side.mode.key or len(state) != len(side.state):
            raise self._ambiguous(fired, last, other.mode.key, state)
        limit = SAME_STATE_TOLERANCE * (1.0 + float(np.abs(state).max(initial=0.0)))
        if self.window > 0.0:
            fields = [self.end(fired - {j}).field for j in fired]
            fastest = max(float(np.abs(f).max()) for f in (*fields, side.field))
            limit += _DRIFT * self.window * fastest
        if np.abs(space.difference(side.state, state)).max() > limit:
            raise self._ambiguous(fired, last, other.mode.key, state)

    def _ambiguous(
        self, fired: frozenset[int], last: int, key: ModeKey, state: Array
    ) -> AmbiguousEventError:
        """The error where guard `last` leads to (key, state), and not to the others' side."""
        names, side = self.guards, self.start(fired)
        order = (*(names[i] for i in sorted(fired - {last})), names[last])
        declared = tuple(names[i] for i in sorted(fired))
        return make_ambiguity_error(
            f"guards {names} fire together at t = {self.events[0].time:.9g} s",
            (order, declared),
            (key, side.mode.key),
            (state, side.state),
            ".\nMotions just beside this one end apart from it, so that it has no derivative: make "
            "them clearly apart (lift one foot a little), or one impact (simultaneous='at once')",
            at_once=fired == self._all,
        )

    def _land(self, fired: frozenset[int], j: int) -> Landing:
        """The place to which guard j leads after the guards `fired`; of many, little is kept."""
        after = fired | {j}
        if (fired, j) not in self._landed:
            first = after not in self.nominal and j == max(after)
            side = self.start(after) if first else self._landing(fired, j)
            self._landed[fired, j] = Landing(side.time, side.mode, side.state)
        return self._landed[fired, j]

    def _landing(self, fired: frozenset[int], j: int) -> Side:
        before, name = self._at(fired, j), self.guards[j]
        if self._is_done(before, name):
            return before
        edge = get_single_edge(self._system, before.mode.key, name)
        key, jump = edge.jump(before.time, before.state, before.input)
        if len(self.guards) <= _FEW:
            self._reports[fired, j] = jump.report
        law = None
        if self._waiting(fired | {j}, key):
            law = partial(self._law_after, self._path(fired), before, name)
        return self._selected(key, before.time, jump.state, law)

    def _selected(
        self,
        key: ModeKey,
        t: float,
        state: Array,
        law: Callable[[ModeKey, Array], DifferentiableLaw] | None,
    ) -> Side:
        """The mode that flows on from a state: under a law, or if there is none after the event."""
        laws = dict[ModeKey, DifferentiableLaw]()

        def at(mode: ModeModel) -> Point:
            if law is None:
                return mode.calc(t, state, self.events[-1].input_after)
            laws[mode.key] = law(mode.key, state)
            return mode.calc(t, state, laws[mode.key](t, state))

        here = find_consistent_mode(self._system, key, at)
        side = Side(here, np.zeros_like(here.u))
        if law is None:
            return side
        return replace(side, input_rate=laws[here.mode.key].velocity(t, state, side.field))

    def _path(self, fired: frozenset[int]) -> tuple[Event, ...]:
        """The events of single guards that lead to the side of `fired`."""
        if fired not in self._paths:
            last = max(fired)
            path, name = self._path(fired - {last}), self.guards[last]
            before, after = self._at(fired - {last}, last), self.start(fired)
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
            self.events[0].index + len(path),
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
