r"""Tracking policies: reference spreading, and tracking by the clock.

Both apply u = mu(t) + K (alpha(t) - x), with the difference taken in the tangent space at x.
([RS] (5.30) prints the error with the opposite sign.) They differ in the arc of the reference that
is compared with the state, alpha(t), and so in the input between an event of the reference and the
same event of the state.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_instance, check_number
from hybridctl.base.errors import HybridctlWarning, ReferenceRangeError
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.impacts import VelocityResidual
from hybridctl.control.interim import (
    Interim,
    InterimLaw,
    WindowMoment,
    find_closing_window,
    find_opening_window,
)
from hybridctl.control.reference import Reference
from hybridctl.control.tracking_law import (
    TrackingLaw,
    find_next_input_jump,
    list_far_starts,
    make_schedule,
    resolve_limits,
)
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import DifferentiableLaw, InputLaw, LinearFeedback
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.trajectory import Event


@dataclass(frozen=True)
class Position:
    """The place of a trajectory in its reference, counted in events ([RS] 4.1.1).

    Attributes:
        macro: Number of the reference's events that are complete.
        micro: Number of events of guards since then, planned or not; 0 when an event is complete.
            After the reference's last event nothing is counted.
        fired: Guards of the next event of the reference that have fired already.
    """

    macro: int
    micro: int
    fired: frozenset[str]


START = Position(0, 0, frozenset())
"""The position before all events."""


def locate(reference: Reference, events: Sequence[Event]) -> Position:
    """Return the position in a reference after some events, [RS] (4.1).

    An event of the reference is complete when each of its guards has fired, or when the reference
    has no phantom arc after those that have fired: then no other can fire. Firings are counted, not
    modes: a contact that is hit is on its phantom arc even if it opens again at once. A release
    that is not planned is no event of the reference. Events without guards do not count.

    Args:
        reference: The reference.
        events: All events of the trajectory so far.
    """
    return PositionTracker(reference).locate(events)


class PositionTracker:
    """The position in a reference along a growing list of events.

    `locate` is called with lists that grow. It keeps the position after all but the last event of
    the list before and counts on from there. If a list does not continue that one, it begins anew.

    Args:
        reference: The reference.
    """

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        # Number of events that have been counted, the last of them, and the position after it. The
        # same event at the same place means that the list has only grown: counting goes on there.
        self._last_count: tuple[int, Event | None, Position] = 0, None, START

    def locate(self, events: Sequence[Event]) -> Position:
        """Return the position after all these events."""
        n, last, position = self._last_count
        if not 0 < n <= len(events) or events[n - 1] is not last:
            n, position = 0, START
        for event in events[n:-1]:
            position = advance(self._reference, position, event.guards)
        # A policy may pass on a changed copy of the last event (`DisturbedPolicy` does), which the
        # next call would not recognise. So the last one is counted anew each time.
        if len(events) > 1:
            self._last_count = len(events) - 1, events[-2], position
        return advance(self._reference, position, events[-1].guards) if events else START


def advance(reference: Reference, position: Position, guards: Collection[str]) -> Position:
    """Return the position after guards have fired.

    Guards that are not among those of the reference's next event only raise `micro`.

    Args:
        reference: The reference.
        position: Position before.
        guards: Names of the guards that fire.
    """
    if not guards:  # a change of a policy's law is no event of the motion
        return position
    macro, planned = position.macro, reference.events
    if macro == len(planned):  # no arc follows that could be counted to
        return position
    fired = position.fired | (set(planned[macro].guards) & set(guards))
    # No phantom arc after these guards: none is left that could fire, and the event is complete.
    if fired and (macro, fired) not in reference.phantoms:
        return Position(macro + 1, 0, frozenset())
    return Position(macro, position.micro + 1, fired)


def list_missing_guards(
    reference: Reference, position: Position, guards: Collection[str] | None = None
) -> tuple[str, ...]:
    """Return the guards of the next event of a reference that have not fired yet.

    Args:
        reference: The reference.
        position: The position.
        guards: Names among which they are sought; None for all.
    """
    if position.macro == len(reference.events):
        return ()
    planned = reference.events[position.macro].guards
    return tuple(
        name
        for name in planned
        if name not in position.fired and (guards is None or name in guards)
    )


def get_due_time(reference: Reference, position: Position) -> float:
    """Return the nominal time of the next event, s; infinite after the last.

    Args:
        reference: The reference.
        position: How many of its events are complete, and what has fired of the next.
    """
    planned = reference.events
    return planned[position.macro].time if position.macro < len(planned) else math.inf


def get_followed_arc(reference: Reference, position: Position) -> Arc:
    """Return the extended arc that is tracked: a phantom one while an event is incomplete.

    Args:
        reference: The reference.
        position: How many of its events are complete, and what has fired of the next.
    """
    if position.fired:
        return reference.phantoms[position.macro, position.fired].arc
    return reference.arcs[position.macro]


class ReferenceSpreading:
    """Tracking of the extended arc with the same event count as the state, [RS] 3.1.2, 4.1.2.

    Each event of the state is counted at once. Under a `DetectedPolicy` it is counted late, or not
    at all. On a phantom arc without a gain the feedback is off, so that only the feedforward acts
    until the simultaneous event is complete.

    Until its next event the state follows its arc; beyond the interval on which the arc is extended
    the end of the arc is held by the law of that arc. After an event, `law` raises
    `ReferenceRangeError` where it is asked at a time outside of the interval of the arc that is
    tracked then: at an event that enters an arc, and at a change of the law (`next_change`). So an
    event may come long after the end of the arc before it, if the arc after it covers its time.

    Args:
        reference: The reference.
        gains: A `GainSchedule`, or one gain K (nu, ndx) for each arc of the reference.
        limits: Greatest absolute inputs (nu,), or the least and the greatest (2, nu); inf for
            none. By default those of the motors (`Robot.effort`). The input is cut there. The
            cut is a kink, which the error control of the integrator resolves.
        interim: What to do while an impact lasts or is incomplete, for plants whose impacts
            take time and for touches that are known late. By default an impact is over with
            its last touch.
        patience: Time in s for which an event that is due is waited for. Then the next arc is
            tracked, as if the event had come; but it is counted only when it comes, and no second
            event in a row is given up. By default infinite: the end of the arc is held until the
            event comes.

    Raises:
        InputError: An argument does not fit the reference.

    Attributes:
        reference: The reference.
        gains: Its gains.
        limits: Least and greatest input (2, nu), or None.
        interim: Widths of the windows of the interim mode.
        patience: Time in s for which an event that is due is waited for.
    """

    follows = "touches"
    """What selects the arc that is tracked; "clock" for policies without this attribute."""

    def __init__(
        self,
        reference: Reference,
        gains: GainSchedule | Sequence[ArrayLike],
        *,
        limits: ArrayLike | None = None,
        interim: Interim | None = None,
        patience: float = math.inf,
    ) -> None:
        self.reference = reference
        self.gains = make_schedule(reference, gains)
        self.limits = resolve_limits(reference, limits)
        self.interim = Interim() if interim is None else check_instance("interim", interim, Interim)
        self.patience = patience
        if patience != math.inf:
            check_number("patience", patience, at_least=0.0)
        self._laws: dict[tuple[Position, float], DifferentiableLaw] = {}
        velocities, excess = self.interim.velocities, self.interim.excess
        self._residuals = tuple(
            None if impact is None else VelocityResidual(impact.explanation(velocities), excess)
            for impact in reference.impacts
        )

    def gain(self, position: Position) -> GainCurve:
        """Return the gain K(t), with values (nu, ndx), that is applied at a position.

        On a phantom arc it is the schedule's gain for this arc. If the schedule has none, it is
        zero, so that only the feedforward acts.
        """
        if not position.fired:
            return self.gains.arcs[position.macro]
        off = GainCurve.constant(np.zeros(self.gains.arcs[position.macro].values.shape[1:]))
        return self.gains.phantoms.get((position.macro, position.fired), off)

    def law(self, history: History) -> InputLaw:
        """Return the law on the arc of the history's event count.

        It has derivatives, except in the interim mode.

        Args:
            history: The history.

        Raises:
            ReferenceRangeError: There have been events, and the arc that is tracked now is not
                extended over the time of the history.
        """
        position, moment = self._find_place(history)
        if moment.event is not None:
            return self._make_interim_law(moment.event, moment, history.time)
        whole = get_followed_arc(self.reference, position)
        arc = whole.piece(history.time)
        # Before the first event the arc begins with the run, and no event has entered it. A run may
        # start anywhere: outside of the arc its end is held.
        if history.events and not whole.start <= history.time <= whole.end:
            raise ReferenceRangeError(
                f"at t = {history.time:.6g} s, in mode {history.mode!r}, the arc that is tracked "
                f"is extended over [{whole.start:.6g}, {whole.end:.6g}] s only; extend it further",
                interval=(whole.start, whole.end),
            )
        place = position, arc.start
        if place not in self._laws:
            law = TrackingLaw(arc, self.gain(position), self.limits, is_tabulated=True)
            self._laws[place] = law.differentiable()
        return self._laws[place]

    def start_warnings(self, history: History) -> list[HybridctlWarning]:
        """Return a warning if a run starts far beyond first order, see `list_far_starts`."""
        return list_far_starts(self.reference, self.gains, history)

    def next_change(self, history: History) -> float:
        """Return when the feedforward jumps, or the interim mode begins or ends next, s."""
        position, moment = self._find_place(history)
        if moment.event is not None:
            position = Position(moment.arc, 0, frozenset())
        arc = get_followed_arc(self.reference, position)
        return min(find_next_input_jump(arc, history.time), moment.until)

    def _find_place(self, history: History) -> tuple[Position, WindowMoment]:
        """Return the position that is followed, and the place of the time in an impact's window.

        Returns:
            The position by the events, or the next one if an event is overdue by `patience`. The
            moment has no event outside of windows. Its `until` is the time in s at which this
            result changes without an event: where a window begins or ends, or where the event gets
            overdue; infinite if it is overdue already or if there is no such time.
        """
        reference, interim, time = self.reference, self.interim, history.time
        # Times of the first touch of the next event, and of the last event that is complete.
        position, touched, done = START, math.inf, -math.inf
        for event in history.events:
            following = advance(reference, position, event.guards)
            if following.macro > position.macro:
                touched, done = math.inf, event.time
            elif following.fired and not position.fired:
                touched = event.time
            position = following
        k = position.macro
        if k and self._residuals[k - 1] is not None:
            moment = find_closing_window(interim, k - 1, done, time)
            if moment is not None:
                return position, moment
        overdue = get_due_time(reference, position) + self.patience
        # The next arc is tracked; no window opens for an event that is given up
        # (test_an_event_that_does_not_come_is_passed_over_once).
        if time >= overdue:
            return Position(k + 1, 0, frozenset()), WindowMoment(None, False, math.inf)
        if k == len(reference.events) or self._residuals[k] is None:
            return position, WindowMoment(None, False, overdue)
        due = get_due_time(reference, position)
        moment = find_opening_window(interim, k, due, touched, time)
        return position, moment._replace(until=min(moment.until, overdue))

    def _make_interim_law(self, event: int, moment: WindowMoment, time: float) -> InputLaw:
        """Return the law of the interim mode in the window of an event.

        Args:
            event: Index of the event; the arc before it has the same index.
            moment: The moment, with the arc whose positions and gain are followed.
            time: Time, s.
        """
        k, residual = moment.arc, self._residuals[event]
        assert residual is not None
        arc, arc_before = self.reference.arcs[k].piece(time), self.reference.arcs[event]
        closing = moment.closing, moment.until
        return InterimLaw(arc, arc_before, self.gains.arcs[k], residual, self.limits, closing)


class ClockTracking:
    """Tracking of the nominal trajectory at the same time, whatever the events of the state.

    The error to the nominal state at the same time is the conventional one. It peaks while
    reference and state are on different sides of an event. The gains change when the reference has
    its event.

    Args:
        reference: The reference; its extensions are not used.
        gains: A `GainSchedule`, or one gain K (nu, ndx) for each arc of the reference.
        limits: See `ReferenceSpreading`.

    Raises:
        InputError: An argument does not fit the reference.

    Attributes:
        reference: The reference.
        gains: Its gains.
        limits: Least and greatest input (2, nu), or None.
    """

    def __init__(
        self,
        reference: Reference,
        gains: GainSchedule | Sequence[ArrayLike],
        *,
        limits: ArrayLike | None = None,
    ) -> None:
        self.reference = reference
        self.gains = make_schedule(reference, gains)
        self.limits = resolve_limits(reference, limits)
        # One law for each piece of the nominal arcs between jumps of the feedforward.
        self._laws = [
            TrackingLaw(
                piece,
                self.gains.arcs[count_events_before(reference, arc)],
                self.limits,
                is_tabulated=True,
            )
            for arc in reference.nominal.arcs
            for piece in arc.pieces
        ]
        self._ends = [law.arc.end for law in self._laws[:-1]]

    def law(self, history: History) -> InputLaw:
        """Return the law of the nominal arc at this time and of those that follow it.

        Those that follow make it right also for callers that do not ask `next_change`.
        """
        k = bisect_right(self._ends, history.time)
        sequence = _LawSequence(self._laws[k:], self._ends[k:], self.limits)
        return DifferentiableLaw(sequence, sequence.jacobian, sequence.rate)

    def start_warnings(self, history: History) -> list[HybridctlWarning]:
        """Return a warning if a run starts far beyond first order, see `list_far_starts`."""
        return list_far_starts(self.reference, self.gains, history)

    def next_change(self, history: History) -> float:
        """Return when the reference has its next event, or its feedforward jumps, s.

        It is infinite on the last piece of the nominal trajectory.
        """
        k = bisect_right(self._ends, history.time)
        return self._ends[k] if k < len(self._ends) else math.inf


@dataclass(frozen=True, eq=False)
class _LawSequence(LinearFeedback):
    """Tracking laws with the same limits that follow each other in time.

    Attributes:
        laws: The laws.
        ends: End in s of each law but the last.
        limits: Least and greatest input (2, nu), or None.
    """

    laws: Sequence[TrackingLaw]
    ends: Sequence[float]
    limits: Array | None

    def _select(self, t: float) -> TrackingLaw:
        """Return the law at a time; at the end of a law that law.

        A flow up to that end takes its last values from there; from the end on the flow is given a
        sequence that begins with the next law.
        """
        return self.laws[bisect_left(self.ends, t)]

    def __call__(self, t: float, x: Array) -> Array:
        return self._select(t)(t, x)

    def find_offsets_and_gains(self, times: Array) -> tuple[Array, Array]:
        """Return the offsets b (k, nu) and gains K (k, nu, nx) at times (k,), s."""
        first = self._select(float(times.min()))
        if first is self._select(float(times.max())):
            return first.find_offsets_and_gains(times)
        terms = (self._select(t).find_offsets_and_gains(np.array([t])) for t in times)
        offsets, gains = zip(*terms, strict=True)
        return np.concatenate(offsets), np.concatenate(gains)

    def jacobian(self, t: float, x: Array) -> Array:
        return self._select(t).jacobian(t, x)

    def rate(self, t: float, x: Array) -> Array:
        return self._select(t).rate(t, x)


def get_nominal_arc(reference: Reference, time: float) -> tuple[Arc, int]:
    """Return the nominal arc at a time, and the number of the reference's events before it.

    Args:
        reference: The reference.
        time: Time, s. At that of an event the arc after it counts.
    """
    arcs = reference.nominal.arcs
    arc = arcs[bisect_right([arc.end for arc in arcs[:-1]], time)]
    return arc, count_events_before(reference, arc)


def count_events_before(reference: Reference, arc: Arc) -> int:
    """Return the number of the reference's events before an arc of its nominal trajectory.

    It is the index of the arc of the reference of which the nominal arc is a part.

    Args:
        reference: The reference.
        arc: One of its nominal arcs.
    """
    return sum(event.index < arc.index for event in reference.events)
