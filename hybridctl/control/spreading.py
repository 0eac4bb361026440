r"""Tracking policies: reference spreading, and the conventional error beside it.

Both apply u = mu(t) + K (alpha(t) - x), with the difference taken in the tangent space at x.
([RS] (5.30) prints the error with the opposite sign.) They differ in which arc of the reference
is compared with the state, and so in what happens while reference and state disagree on
whether an event is over.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_instance, check_number
from hybridctl.base.errors import ReferenceRangeError
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.impacts import Unexplained
from hybridctl.control.interim import Interim, InterimLaw, InterimMoment, expecting, settling
from hybridctl.control.laws import Tracking, checked_limits, next_jump, scheduled
from hybridctl.control.reference import Reference
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import DifferentiableLaw, InputLaw, LinearFeedback
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.trajectory import Event


@dataclass(frozen=True)
class Position:
    """The place of a trajectory in its reference: macro events done, and what is under way.

    `fired` are the guards of the macro event under way that have fired already, `micro` the
    number of events it has had so far ([RS] 4.1.1).
    """

    macro: int
    micro: int
    fired: frozenset[str]


START = Position(0, 0, frozenset())


def locate(reference: Reference, events: Sequence[Event]) -> Position:
    """Macro and micro event count after `events`, [RS] (4.1).

    A macro event is over when each of its guards has fired, or those that have leave no other to
    fire. Firing is counted, not the mode: a contact that is hit has jumped to its phantom arc even
    if it opens again at once, and an unplanned release is no event of the reference. Events
    without guards do not count.
    """
    return Follower(reference).position(events)


class Follower:
    """The position in a reference along a history that grows: see `locate`.

    Events that were there before the last one of the history asked for last are not read again.
    """

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._known: tuple[int, Event | None, Position] = 0, None, START

    def position(self, events: Sequence[Event]) -> Position:
        """The position after all these events."""
        n, last, position = self._known
        if not 0 < n <= len(events) or events[n - 1] is not last:
            n, position = 0, START
        for event in events[n:-1]:
            position = advance(self._reference, position, event.guards)
        if len(events) > 1:
            self._known = len(events) - 1, events[-2], position
        return advance(self._reference, position, events[-1].guards) if events else START


def advance(reference: Reference, position: Position, guards: Collection[str]) -> Position:
    """The position after guards have fired at a position."""
    if not guards:
        return position
    macro, planned = position.macro, reference.events
    if macro == len(planned):
        return position
    fired = position.fired | (set(planned[macro].guards) & set(guards))
    if fired and (macro, fired) not in reference.phantoms:
        return Position(macro + 1, 0, frozenset())
    return Position(macro, position.micro + 1, fired)


def missing(
    reference: Reference, position: Position, guards: Collection[str] | None = None
) -> tuple[str, ...]:
    """Guards of the event under way or next that have not fired yet: of some guards, or all."""
    if position.macro == len(reference.events):
        return ()
    planned = reference.events[position.macro].guards
    return tuple(
        name
        for name in planned
        if name not in position.fired and (guards is None or name in guards)
    )


def due(reference: Reference, position: Position) -> float:
    """The nominal time of the event that is under way or comes next, s; infinite after the last."""
    planned = reference.events
    return planned[position.macro].time if position.macro < len(planned) else math.inf


def followed(reference: Reference, position: Position) -> Arc:
    """The extended or phantom arc at a position."""
    if position.fired:
        return reference.phantoms[position.macro, position.fired].arc
    return reference.arcs[position.macro]


class ReferenceSpreading:
    """Tracking of the extended arc with the same event count as the state, [RS] 3.1.2, 4.1.2.

    gains: a `GainSchedule`, or one matrix K (nu, ndx) per arc of the reference.
    A phantom arc without a gain in the schedule holds its feedback off, so that only the
    feedforward acts until the simultaneous event is complete.
    limits: the greatest absolute inputs (nu,), or the least and the greatest (2, nu), by default
    those of the motors (`Robot.effort`); inf for none. The input is cut there. That is a kink,
    which the error control of the integrator resolves.
    interim: what to do while an impact lasts or is incomplete, for plants whose impacts take time
    and for touches that are known late; without it an impact is over with its last touch.
    patience: how long an event that is due is waited for, s: then the reference goes on with the
    next arc. By default it is waited for as long as the arc is extended.

    It knows of events at once; `DetectedPolicy` lets it know late, or not at all.

    A state that leaves an arc before or after the interval on which it is extended raises
    `ReferenceRangeError` at its next event; until then the end of the arc is held.
    """

    follows = "touches"
    """What chooses the arc that is tracked; "clock" for policies that do not declare it."""

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
        self.gains = scheduled(reference, gains)
        self.limits = checked_limits(reference, limits)
        self.interim = Interim() if interim is None else check_instance("interim", interim, Interim)
        self.patience = patience
        if patience != math.inf:
            check_number("patience", patience, at_least=0.0)
        self._laws: dict[tuple[Position, float], DifferentiableLaw] = {}
        velocities, excess = self.interim.velocities, self.interim.excess
        self._unexplained = tuple(
            None if impact is None else Unexplained(impact.explanation(velocities), excess)
            for impact in reference.impacts
        )

    def gain(self, position: Position) -> GainCurve:
        """The gain K(t) at a position, zero where the feedback is off."""
        if not position.fired:
            return self.gains.arcs[position.macro]
        off = GainCurve.constant(np.zeros(self.gains.arcs[position.macro].values.shape[1:]))
        return self.gains.phantoms.get((position.macro, position.fired), off)

    def law(self, history: History) -> InputLaw:
        """Feedforward and feedback on the arc that `history` calls for.

        It has derivatives but in the interim mode.
        """
        position, moment = self._where(history)
        if moment.event is not None:
            return self._between(moment.event, moment, history.time)
        whole = followed(self.reference, position)
        arc = whole.piece(history.time)
        if history.events and not whole.start <= history.time <= whole.end:
            raise ReferenceRangeError(
                f"event at t = {history.time:.6g} s enters mode {history.mode!r}, whose reference "
                f"is extended over [{whole.start:.6g}, {whole.end:.6g}] s only; extend it further",
                interval=(whole.start, whole.end),
            )
        place = position, arc.start
        if place not in self._laws:
            law = Tracking(arc, self.gain(position), self.limits, often=True)
            self._laws[place] = law.differentiable()
        return self._laws[place]

    def next_change(self, history: History) -> float:
        """The time when the feedforward jumps, or the interim mode begins or ends, s."""
        position, moment = self._where(history)
        if moment.event is not None:
            position = Position(moment.event + moment.under_way, 0, frozenset())
        return min(next_jump(followed(self.reference, position), history.time), moment.until)

    def _where(self, history: History) -> tuple[Position, InterimMoment]:
        """The position, and where the time lies in the window of an impact."""
        reference, interim, time = self.reference, self.interim, history.time
        position, touched, done = START, math.inf, -math.inf
        for event in history.events:
            following = advance(reference, position, event.guards)
            if following.macro > position.macro:
                touched, done = math.inf, event.time
            elif following.fired and not position.fired:
                touched = event.time
            position = following
        k = position.macro
        if k and self._unexplained[k - 1] is not None:
            moment = settling(interim, k - 1, done, time)
            if moment is not None:
                return position, moment
        overdue = due(reference, position) + self.patience
        if time >= overdue:
            return Position(k + 1, 0, frozenset()), InterimMoment(None, False, math.inf)
        if k == len(reference.events) or self._unexplained[k] is None:
            return position, InterimMoment(None, False, overdue)
        moment = expecting(interim, k, due(reference, position), touched, time)
        return position, moment._replace(until=min(moment.until, overdue))

    def _between(self, event: int, moment: InterimMoment, time: float) -> InputLaw:
        """The law of the interim mode of an event."""
        k, unexplained = event + moment.under_way, self._unexplained[event]
        assert unexplained is not None
        arc, ante = self.reference.arcs[k].piece(time), self.reference.arcs[event]
        closing = moment.closing, moment.until
        return InterimLaw(arc, ante, self.gains.arcs[k], unexplained, self.limits, closing)


class ClockTracking:
    """Tracking of the nominal reference at the same time, whatever the events of the state.

    This is the conventional error, which peaks while reference and state are on different sides
    of an event. gains: a `GainSchedule`, or one K (nu, ndx) per arc, switched when the reference
    has its event. limits: see `ReferenceSpreading`.
    """

    def __init__(
        self,
        reference: Reference,
        gains: GainSchedule | Sequence[ArrayLike],
        *,
        limits: ArrayLike | None = None,
    ) -> None:
        self.reference = reference
        self.gains = scheduled(reference, gains)
        self.limits = checked_limits(reference, limits)
        curves = [self.gains.arcs[macro_count(reference, arc)] for arc in reference.nominal.arcs]
        self._laws = [
            Tracking(arc, gain, self.limits, often=True)
            for arc, gain in zip(reference.nominal.arcs, curves, strict=True)
        ]

    def law(self, history: History) -> InputLaw:
        """The law of the arc on which the reference is now, and of those that follow it."""
        first, _ = on_the_clock(self.reference, history.time)
        laws = self._laws[first.index :]
        by_turns = _ByTurns(laws, [law.arc.end for law in laws[:-1]], self.limits)
        return DifferentiableLaw(by_turns, by_turns.jacobian, by_turns.rate)

    def next_change(self, history: History) -> float:
        """The time when the reference has its next event, or its feedforward jumps, s."""
        arc, _ = on_the_clock(self.reference, history.time)
        return arc.end if arc is not self.reference.nominal.arcs[-1] else math.inf


@dataclass(frozen=True, eq=False)
class _ByTurns(LinearFeedback):
    """Laws with the same limits that follow each other at the times `ends`, all but the last."""

    laws: Sequence[Tracking]
    ends: Sequence[float]
    limits: Array | None

    def _now(self, t: float) -> Tracking:
        return self.laws[bisect_left(self.ends, t)]

    def __call__(self, t: float, x: Array) -> Array:
        return self._now(t)(t, x)

    def along(self, times: Array) -> tuple[Array, Array]:
        """The offsets b (k, nu) and gains K (k, nu, nx) at times (k,), s."""
        now = self._now(float(times.min()))
        if now is self._now(float(times.max())):
            return now.along(times)
        offsets, gains = zip(*(self._now(t).along(np.array([t])) for t in times), strict=True)
        return np.concatenate(offsets), np.concatenate(gains)

    def jacobian(self, t: float, x: Array) -> Array:
        return self._now(t).jacobian(t, x)

    def rate(self, t: float, x: Array) -> Array:
        return self._now(t).rate(t, x)


def on_the_clock(reference: Reference, time: float) -> tuple[Arc, int]:
    """The nominal arc at a time, that after an event from its time on, and its macro count."""
    arcs = reference.nominal.arcs
    arc = arcs[bisect_right([arc.end for arc in arcs[:-1]], time)]
    return arc, macro_count(reference, arc)


def macro_count(reference: Reference, arc: Arc) -> int:
    """How many events of the reference lie before an arc of its nominal trajectory."""
    return sum(event.index < arc.index for event in reference.events)
