r"""Phantom modes of simultaneous guards: nominal motions between guards that fire one by one.

The guards of one event, or of several events that follow each other closely in a run, may fire in
any order on a perturbed trajectory. Each set S of guards that have fired is a phantom mode. In it
there is a *nominal motion*, with which perturbed ones are compared:

- the arc of the run, if S is the guards of its first events;
- otherwise the motion from the state to which resets lead, in declared order, from where each guard
  meets its own surface ([RS] 4.2).

Beside its point a nominal motion is taken as straight, that is, its field as constant. The error is
of second order in the time between the events.
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
from hybridctl.sensitivity.saltation import (
    EventSide,
    JumpGains,
    evaluate_event_sides,
    find_guard_index,
    linearize_guard,
    make_identity_jump,
)

EventLaw = Callable[[tuple[Event, ...], ModeKey, Array], DifferentiableLaw]
"""The input law after events of single guards that have fired, in a mode, from a state (nx,).

Without fired events it is the law before all of them."""

_GUARDS_WITH_REPORTS = 6
"""Number of guards up to which the reports of all jumps are kept, which saves solving impacts
again: of n guards there are n 2^(n-1). With more guards they take too much memory. A choice."""
_DRIFT_FACTOR = 4.0
"""Difference between orders that is no ambiguity, relative to what the fields do in the time from
the first event to the last. Without it merged events are refused (test_one_constant_for_all_lags);
the value is a choice."""


class NominalJump(NamedTuple):
    """The jump of one guard from one nominal motion to another.

    Attributes:
        gains: First-order jump beside the nominal motion before the guard.
        time: Time in s at which that motion meets the guard.
        offset: Difference (ndx+,) from the nominal motion after the guard, at the time of the jump,
            to the state where the jump lands; zero for an event of the run itself.
    """

    gains: JumpGains
    time: float
    offset: Array


class Landing(NamedTuple):
    """The state (nx,) to which the jump of one guard leads, its mode, and its time in s."""

    time: float
    mode: ModeModel
    state: Array


class PhantomMotions:
    """The nominal motions of simultaneous guards, one for each set of guards that have fired.

    Sets are frozensets of indices into `guards`. Motions are evaluated when they are needed, and
    kept. `check_orders` is called first and compares all orders; the other methods assume that
    these agree. The motion of a set that is none of the run starts where its guards lead in the
    order of `guards`.

    Args:
        system: The hybrid system of the run.
        events: One event, or several that follow each other. All their guards are of the mode
            before the first.
        law: Input law in the phantom modes.

    Attributes:
        events: The events.
        guards: Names of their guards, in the order of the run.
        nominal: Sets of guards that have fired before each event, and after the last.
    """

    def __init__(self, system: HybridSystem, events: Sequence[Event], law: EventLaw) -> None:
        self._system, self.events, self._law = system, tuple(events), law
        self.guards = tuple(name for event in events for name in event.guards)
        counts = accumulate((len(event.guards) for event in events), initial=0)
        self.nominal = tuple(frozenset(range(n)) for n in counts)
        sides = [evaluate_event_sides(system, event) for event in self.events]
        # Where nominal motions of the run end and start, and the events that lead to each. There is
        # one set more in `nominal` than events: the last one has no end, the first one no start.
        self._ends = {fired: one[0] for fired, one in zip(self.nominal, sides, strict=False)}
        self._starts = {fired: one[1] for fired, one in zip(self.nominal[1:], sides, strict=True)}
        self._paths = {fired: self.events[:k] for k, fired in enumerate(self.nominal)}
        # By the set of fired guards and the guard that fires next.
        self._sides_at_guards: dict[tuple[frozenset[int], int], EventSide] = {}
        self._reports: dict[tuple[frozenset[int], int], Any] = {}
        self._landings: dict[tuple[frozenset[int], int], Landing] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return PhantomMotions, (self._system, self.events, self._law)

    @property
    def window(self) -> float:
        """The time from the first event to the last, s."""
        return self.events[-1].time - self.events[0].time

    def gains(self, fired: frozenset[int], j: int) -> JumpGains:
        """Return the jump of guard j in a phantom mode, under the feedback of the input law.

        Args:
            fired: Guards that have fired.
            j: The guard that fires next.

        Returns:
            The jump. It is the identity if the mode has no such guard: those that have fired have
            done what it does.
        """
        at, name = self._get_side_at_guard(fired, j), self.guards[j]
        if self._is_done(at, name):
            return make_identity_jump(at.mode.space.ndx, len(at.input))
        law = self._law(self._get_path(fired), at.mode.key, at.state)
        is_of_run = self._is_event_of_run(fired, j)
        report = self._get_event(fired).report if is_of_run else self._reports.get((fired, j))
        jump = linearize_guard(self._system, name, at, self.start(fired | {j}), report)
        return jump.with_feedback(-law.jacobian(at.time, at.state))

    def nominal_jump(self, fired: frozenset[int], j: int) -> NominalJump:
        """Return the jump of guard j, with its time and where it lands beside the next motion.

        Args:
            fired: Guards that have fired.
            j: The guard that fires next.

        Returns:
            The jump.

        Raises:
            AmbiguousEventError: It lands in a mode of another dimension than the other orders do.
        """
        at, after = self._get_side_at_guard(fired, j), self.start(fired | {j})
        gains = self.gains(fired, j)
        if self._is_event_of_run(fired, j):
            return NominalJump(gains, at.time, np.zeros(after.mode.space.ndx))
        landing = self._land(fired, j)
        if len(landing.state) != len(after.state):
            raise self._make_ambiguity_error(fired | {j}, j, landing.mode.key, landing.state)
        expected = after.shift(landing.time - after.time)
        offset = after.mode.space.difference(expected.state, landing.state)
        done = self._is_done(at, self.guards[j])
        time = self.events[0].time if done else self._compute_firing_time(fired, j)
        return NominalJump(gains, time, offset)

    def start(self, fired: frozenset[int]) -> EventSide:
        """Return the point where the nominal motion of a phantom mode starts.

        Args:
            fired: Guards that have fired, at least one.
        """
        if fired not in self._starts:
            last = max(fired)
            self._starts[fired] = self._compute_landing(fired - {last}, last)
        return self._starts[fired]

    def end(self, fired: frozenset[int]) -> EventSide:
        """Return the point where the nominal motion of a phantom mode meets the next event.

        Of a motion that is not of the run it is the start: from there guards are met one by one.

        Args:
            fired: Guards that have fired.
        """
        return self._ends[fired] if fired in self._ends else self.start(fired)

    def check_orders(self) -> None:
        """Check that all orders of the guards lead to one state and mode, [RS] Assumption 6.

        Each set of guards must be reached alike from all sets with one guard less. These are
        n 2^(n-1) resets.

        Raises:
            AmbiguousEventError: Orders do not commute, or there are more than twelve guards.
        """
        n, t = len(self.guards), self.events[0].time
        if n > MAX_COMMUTING_GUARDS:
            raise AmbiguousEventError(
                f"{n} guards fire together at t = {t:.9g} s, and whether their order matters is "
                f"looked at for {MAX_COMMUTING_GUARDS} at most"
            )

        def fire_guard(fired: frozenset[int], last: int) -> frozenset[int]:
            after = fired | {last}
            # The start of a motion that is not of the run is defined by firing its last guard last.
            if after in self.nominal or last != max(after):
                self._compare_landing(after, last)
            return after

        def list_guards_left(fired: frozenset[int]) -> list[int]:
            return sorted(self.nominal[-1] - fired)

        # Sets are reached by all orders; a deque of no length runs the exploration to its end.
        orders = explore_orders(frozenset[int](), list_guards_left, fire_guard, eq, t)
        deque(orders, maxlen=0)

    def _get_event(self, fired: frozenset[int]) -> Event:
        """Return the next event of the run after the guards of its first events have fired."""
        return self.events[self.nominal.index(fired)]

    def _is_event_of_run(self, fired: frozenset[int], j: int) -> bool:
        """Return whether the run itself has an event of guard j alone in this phantom mode."""
        return fired in self._ends and self._get_event(fired).guards == (self.guards[j],)

    def _compute_firing_time(self, fired: frozenset[int], j: int) -> float:
        """Return the time in s at which a nominal motion meets guard j, to first order.

        It is that of the end of the motion for one event, whose guards are all at zero, for guards
        of the run's next event, and for guards that are done. A guard that does not fall has no
        time: it is evaluated at the end of the motion, where `linearize_crossing` refuses it.
        """
        side, name = self.end(fired), self.guards[j]
        is_next = fired in self._ends and name in self._get_event(fired).guards
        if len(self.events) == 1 or is_next or self._is_done(side, name):
            return side.time
        rate = side.guard_rate(name)
        value = float(side.point.guards[find_guard_index(side.mode, name)])
        return side.time - value / rate if rate < 0.0 else side.time

    def _get_side_at_guard(self, fired: frozenset[int], j: int) -> EventSide:
        """Return the point where a nominal motion meets guard j."""
        if (fired, j) not in self._sides_at_guards:
            side = self.end(fired)
            dt = self._compute_firing_time(fired, j) - side.time
            self._sides_at_guards[fired, j] = side if dt == 0.0 else side.shift(dt)
        return self._sides_at_guards[fired, j]

    def _has_guards_left(self, fired: frozenset[int], key: ModeKey) -> bool:
        """Return whether a mode has guards of the events that are left to fire."""
        names = self._system.outgoing(key).guards.names
        return any(self.guards[j] in names for j in self.nominal[-1] - fired)

    def _compare_landing(self, fired: frozenset[int], last: int) -> None:
        """Check that guard `last` leads to the start of the motion of `fired`.

        Raises:
            AmbiguousEventError: It leads to another mode or state.
        """
        side, other = self.start(fired), self._land(fired - {last}, last)
        space, state = side.mode.space, other.state
        if other.mode.key != side.mode.key or len(state) != len(side.state):
            raise self._make_ambiguity_error(fired, last, other.mode.key, state)
        limit = SAME_STATE_TOLERANCE * (1.0 + float(np.abs(state).max(initial=0.0)))
        if self.window > 0.0:
            fields = [self.end(fired - {j}).field for j in fired]
            fastest = max(float(np.abs(f).max()) for f in (*fields, side.field))
            limit += _DRIFT_FACTOR * self.window * fastest
        if np.abs(space.difference(side.state, state)).max() > limit:
            raise self._make_ambiguity_error(fired, last, other.mode.key, state)

    def _make_ambiguity_error(
        self, fired: frozenset[int], last: int, key: ModeKey, state: Array
    ) -> AmbiguousEventError:
        """Return the error that guard `last` leads to another mode or state than other orders.

        Args:
            fired: Guards that have fired, with `last`.
            last: The guard that fired last.
            key: Mode to which it leads.
            state: State (nx,) to which it leads.
        """
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
            at_once=fired == self.nominal[-1],
        )

    def _land(self, fired: frozenset[int], j: int) -> Landing:
        """Return where guard j leads. A `Landing` is kept, not its point, which takes memory."""
        after = fired | {j}
        if (fired, j) not in self._landings:
            defines_start = after not in self.nominal and j == max(after)
            side = self.start(after) if defines_start else self._compute_landing(fired, j)
            self._landings[fired, j] = Landing(side.time, side.mode, side.state)
        return self._landings[fired, j]

    def _compute_landing(self, fired: frozenset[int], j: int) -> EventSide:
        """Return the point to which guard j leads, in the mode that is consistent there."""
        before, name = self._get_side_at_guard(fired, j), self.guards[j]
        if self._is_done(before, name):
            return before
        edge = get_single_edge(self._system, before.mode.key, name)
        key, jump = edge.jump(before.time, before.state, before.input)
        if len(self.guards) <= _GUARDS_WITH_REPORTS:
            self._reports[fired, j] = jump.report
        law = None  # after the last guard the input is that after the events
        if self._has_guards_left(fired | {j}, key):
            law = partial(self._get_law_after, self._get_path(fired), before, name)
        return self._select_mode(key, before.time, jump.state, law)

    def _select_mode(
        self,
        key: ModeKey,
        t: float,
        state: Array,
        law: Callable[[ModeKey, Array], DifferentiableLaw] | None,
    ) -> EventSide:
        """Return the point of the mode that is consistent with a state after a reset.

        Args:
            key: Mode to which the reset leads.
            t: Time, s.
            state: State (nx,) after the reset.
            law: Input law in a mode from a state. None after the last guard: the input is then
                that after the last event.
        """
        laws = dict[ModeKey, DifferentiableLaw]()

        def evaluate(mode: ModeModel) -> Point:
            if law is None:
                return mode.calc(t, state, self.events[-1].input_after)
            laws[mode.key] = law(mode.key, state)
            return mode.calc(t, state, laws[mode.key](t, state))

        point = find_consistent_mode(self._system, key, evaluate)
        side = EventSide(point, np.zeros_like(point.u))
        if law is None:
            return side
        return replace(side, input_rate=laws[point.mode.key].velocity(t, state, side.field))

    def _get_path(self, fired: frozenset[int]) -> tuple[Event, ...]:
        """Return the events that lead to a phantom mode: those of the run, else of single guards.

        The latter stand in the order of `guards`; a guard that is done has no event.
        """
        if fired not in self._paths:
            last = max(fired)
            path, name = self._get_path(fired - {last}), self.guards[last]
            before, after = self._get_side_at_guard(fired - {last}, last), self.start(fired)
            if not self._is_done(before, name):
                event = self._make_single_event(path, before, name, after.mode.key, after.state)
                path = (*path, event)
            self._paths[fired] = path
        return self._paths[fired]

    def _get_law_after(
        self,
        path: tuple[Event, ...],
        before: EventSide,
        guard: str,
        key: ModeKey,
        state: Array,
    ) -> DifferentiableLaw:
        """Return the input law after a guard.

        Args:
            path: See `_make_single_event`, as the others.
            before: Side before it.
            guard: Name of the guard.
            key: Mode after it.
            state: State (nx,) after it.
        """
        event = self._make_single_event(path, before, guard, key, state)
        return self._law((*path, event), key, state)

    def _make_single_event(
        self,
        path: tuple[Event, ...],
        before: EventSide,
        guard: str,
        key: ModeKey,
        state: Array,
    ) -> Event:
        """Return the event of one guard, for input laws that read the history of events.

        Args:
            path: Events of single guards before it.
            before: Side before it.
            guard: Name of the guard.
            key: Mode after it.
            state: State (nx,) after it.
        """
        return Event(
            index=self.events[0].index + len(path),
            time=before.time,
            mode_before=before.mode.key,
            mode_after=key,
            guards=(guard,),
            state_before=before.state,
            state_after=state,
            input_before=before.input,
            input_after=before.input,
            input_rate=before.input_rate,
            impulses=np.zeros(0),
        )

    def _is_done(self, side: EventSide, guard: str) -> bool:
        """Return whether the guards that have fired did what this one does: their mode lacks it."""
        return guard not in self._system.outgoing(side.mode.key).guards.names
