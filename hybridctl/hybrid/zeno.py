r"""Accumulating events (Zeno): how they are recognised, where they end, and what a run does there.

A sequence of guards that repeats with period m at times t_k has windows of length
D_k = t_k - t_{k-m}, and jumps of the size V_k = |x+ - x-|, summed over a window. Where a force
drives bodies back onto each other ever sooner, both shrink by one ratio r < 1. Jumps per time, the
mean force of the impacts, then stay bounded. Such a sequence ends in rest under that force:

.. math:: t_\infty = t_n + D_n \frac{r}{1 - r}, \qquad \sum_{k > n} V_k = V_n \frac{r}{1 - r}.

A light ball that is caught between the floor and a falling mass has shorter and shorter windows
too, but its jumps grow, or shrink less: it turns the mass round, or takes long to stop it.

Events *crowd* where many of them fit into a very short time, whatever their guards are.

`ZenoPolicy` has the settings. `rest` applies them to a run, and finds the state at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from hybridctl.base.checks import check_flag, check_member, check_number, quote
from hybridctl.base.errors import InputError
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import (
    MAX_WINDOW_RATIO,
    SAME_INSTANT,
    WINDOW_RATIO_SPREAD,
)

CROWD_SIZE = 10
"""Number of events that crowd if they fit into a short time. The value is a choice."""
_IDLE_CROWD_SIZE = 3
"""Number of events at one instant that crowd if those before the last one changed nothing.

Further events would follow at that instant without end: the third one came from the mode and the
state from which the second one came."""
_MIN_JUMP_RATIO = 1e-6
"""Smallest jump that changes the state, relative to the largest jump of its sequence.

What an event sets to zero, such as a speed, was zero before but for rounding: the turn of a joint
with dry friction jumps by 1e-17 between bounces of 0.5
(test_events_that_change_nothing_in_between_are_not_what_accumulates)."""
_MAX_REPEATING_PERIOD = 4
"""Largest number of events in a window whose guards repeat. The value is a choice."""
_MIXED_PERIOD = 5
"""Number of events in a window whose guards need not repeat, as of contacts that bounce in turn."""


@dataclass(frozen=True)
class ZenoPolicy:
    """What a run does where its events accumulate: the argument `on_zeno` of `simulate`.

    A subclass may override `extend`, to give rests to systems that state none. One that does is
    `hybridctl.relaxation.ZenoRelaxation`.

    Attributes:
        takes_rest: Whether the run goes on at once from the rest that the system states. If not, it
            goes on through the events. It ends in a `ZenoError` where ten of them fit into
            `crowding_span`, or where it reaches `max_events` and the last ten are within the
            horizon. Bounces that first end in a contact that the mode selects are no error.
        horizon: Longest time before the predicted end of the events at which rest is taken, s. It
            is also the time in which ten events crowd if the guards have stayed at zero between the
            last two of them. Rest is early by up to this time; much less than 1e-5 s takes many
            more events. It must not be negative. If it is less than `crowding_span`, that span is
            the horizon of rest.
        min_dwell: Mean time between ten events below which they crowd whatever the guards do
            between them, s. The default is a tenth of the default `event_window`. It must not be
            negative.

    Raises:
        InputError: If `takes_rest` is no flag, or a time is negative or not finite.
    """

    takes_rest: bool = True
    horizon: float = 1e-5
    min_dwell: float = 1e-9

    def __post_init__(self) -> None:
        check_flag("takes_rest", self.takes_rest)
        check_number("horizon", self.horizon, at_least=0.0)
        check_number("min_dwell", self.min_dwell, at_least=0.0)

    @property
    def crowding_span(self) -> float:
        """Longest duration of ten events that crowd whatever the guards do between them, s."""
        return (CROWD_SIZE - 1) * self.min_dwell

    def extend(self, system: HybridSystem) -> HybridSystem:
        """Return the system that is simulated, with all rests that the run may take.

        A run that goes on from an earlier one passes a system that has been extended already. So
        `extend` must return such a system as it is.

        Args:
            system: The system given to `simulate`.
        """
        return system


OnZeno: TypeAlias = Literal["rest", "raise"] | ZenoPolicy
"""What `simulate` takes as `on_zeno`: the default policy, the one that takes no rest, or any."""


_NAMED_POLICIES = {"raise": ZenoPolicy(takes_rest=False), "rest": ZenoPolicy()}


def as_zeno_policy(on_zeno: OnZeno | str) -> ZenoPolicy:
    """Return the policy that a value of the argument `on_zeno` stands for.

    Args:
        on_zeno: "rest", "raise", or a policy.

    Raises:
        InputError: If it is "relax", the name that relaxation had once.
        UnknownNameError: If it is something else.
    """
    if isinstance(on_zeno, ZenoPolicy):
        return on_zeno
    if on_zeno == "relax":
        raise InputError(
            f"on_zeno must be 'rest', 'raise' or a ZenoPolicy, got {quote(on_zeno)}; to go on by "
            "relaxation use on_zeno=hybridctl.relaxation.ZenoRelaxation()"
        )
    return _NAMED_POLICIES[check_member("on_zeno", on_zeno, _NAMED_POLICIES)]


class SequenceEvent(NamedTuple):
    """An event in a sequence that may accumulate.

    Attributes:
        time: Event time, s.
        guards: Names of the guards that fire.
        jump: Norm of the change of the state, in units of the state. That of the last event of a
            sequence is zero: it has not been applied yet.
        is_idle: Whether the event left mode and state as they were, and the last event of the
            sequence follows at the same instant.
    """

    time: float
    guards: tuple[str, ...]
    jump: float = 0.0
    is_idle: bool = False


class Accumulation(NamedTuple):
    """The predicted end of an infinite sequence of events.

    Attributes:
        time: Time of the end, s.
        guards: Guards of the events that change the state, or of all if none does.
        window_start: Start of the last window, s.
        remaining_jumps: Sum of the jumps that are yet to come, in units of the state. None where
            the events only crowd, so that no sum is predicted.
    """

    time: float
    guards: tuple[str, ...]
    window_start: float
    remaining_jumps: float | None


def is_far_from_end(first: float, last: float, now: float, horizon: float) -> bool:
    """Return whether times alone show that no events end, or crowd, within the horizon.

    The last window is no shorter than the time D since the last event, and the one before it no
    longer than the time T since the first. So events that shrink end after more than D^2 / T.

    Args:
        first: Time of the first event of the run, s.
        last: Time of the last event before this one, s.
        now: Time of this event, s.
        horizon: The horizon, s, as in `find_accumulations`.
    """
    return (now - last) ** 2 > max(horizon, SAME_INSTANT) * (now - first)


def find_accumulations(
    events: Sequence[SequenceEvent], horizon: float, compute_speed: Callable[[], float]
) -> Iterator[Accumulation]:
    """Yield the ends of the last events: where they shrink steadily, then where they crowd.

    Of events that shrink and crowd both ends are yielded, the predicted one first; a system may
    have no rest that is near enough for it. An end that is predicted but may not be taken yet is
    yielded neither as steady nor as a crowd: events that crowd while they shrink come to rest no
    sooner than by their prediction.

    Args:
        events: The last events, in order of time. The jump of the last one is yet to come.
        horizon: Longest time from the last event to the end, and longest duration of ten events
            that crowd, s. The caller decides it, also by what the guards do between the
            last two events (`ZenoPolicy.horizon`).
        compute_speed: Returns the norm of the flow, in units of the state per s; called only if an
            end is near. Jumps that are yet to come may add up to no more than the flow makes in
            the longer of two times: the horizon, and twice the time from the last window's start
            to the end. Those of a bouncing ball add up to no more than gravity makes in that time
            once. Impacts of a light limb in turn may be of much larger accelerations; they end at
            another velocity than one impact of all.
    """
    steady = predict_accumulation(events)
    if steady is not None:
        flow_duration = max(horizon, 2.0 * (steady.time - steady.window_start))
        is_far = steady.time - events[-1].time > horizon
        if is_far or (steady.remaining_jumps or 0.0) > compute_speed() * flow_duration:
            return
        yield steady
    crowd = select_crowd(events, horizon)
    if crowd:
        yield Accumulation(crowd[-1].time, _collect_guards(crowd), crowd[0].time, None)


def predict_accumulation(events: Sequence[SequenceEvent]) -> Accumulation | None:
    """Return the end of events whose last three windows and jumps shrink by one ratio, or None.

    A window has up to four events of guards that repeat, or five of any guards. The shortest
    period that fits is taken.

    Args:
        events: The last events, in order of time. There have to be more than three windows of them:
            four events at least, and 16 for windows of five.
    """
    for period in range(1, _MIXED_PERIOD + 1):
        if len(events) <= 3 * period:
            return None
        guards = [event.guards for event in events[-3 * period :]]
        if period > _MAX_REPEATING_PERIOD or guards[:period] * 3 == guards:
            end = _predict_from_windows(events, period)
            if end is not None:
                return end
    return None


def select_crowd(events: Sequence[SequenceEvent], span: float) -> Sequence[SequenceEvent]:
    """Return the last events if they crowd, else none.

    Three events at one instant crowd if the two before the last one left mode and state as they
    were. Else ten events within the span crowd.

    Args:
        events: The last events, in order of time.
        span: The span, s.
    """
    last = events[-_IDLE_CROWD_SIZE:]
    at_once = are_within(events, _IDLE_CROWD_SIZE, SAME_INSTANT)
    if at_once and all(event.is_idle for event in last[:-1]):
        return last
    return events[-CROWD_SIZE:] if are_within(events, CROWD_SIZE, span) else ()


def are_within(events: Sequence[SequenceEvent | Event], count: int, span: float) -> bool:
    """Return whether there are so many events, and the last of them fit into a span.

    Args:
        events: Events in order of time.
        count: Number of the last events that are compared.
        span: The span, s.
    """
    return len(events) >= count and events[-1].time - events[-count].time <= span


def _predict_from_windows(events: Sequence[SequenceEvent], period: int) -> Accumulation | None:
    """Return the end of the last three windows, None if they do not shrink by one ratio.

    Args:
        events: The last events, more than three windows of them, in order of time.
        period: Number of events in a window.

    Returns:
        The end. None if an earlier window, or its sum of jumps where there are any, is zero; if a
        ratio exceeds `MAX_WINDOW_RATIO`; or if two differ by more than `WINDOW_RATIO_SPREAD`.
    """
    last = len(events) - 1
    ends = [last - k * period for k in range(4)]
    # Latest first, as all lists of windows here. The jump of the last event is yet to come, so the
    # jumps of a window are those of its first event to the one before its last.
    windows = [events[i].time - events[j].time for i, j in pairwise(ends)]
    jumps = [sum(event.jump for event in events[j:i]) for i, j in pairwise(ends)]
    if min(windows[1:]) <= 0.0:  # events at one instant have no ratio
        return None
    ratios = [windows[0] / windows[1], windows[1] / windows[2]]
    if any(jumps):
        if min(jumps[1:]) <= 0.0:  # a window without jumps has no ratio
            return None
        ratios += [jumps[0] / jumps[1], jumps[1] / jumps[2]]
    # Times and jumps shrink by one ratio, as those of bounces do. Without jumps, as of a guard that
    # turns the input about, windows alone decide.
    if max(ratios) > MAX_WINDOW_RATIO or max(ratios) - min(ratios) > WINDOW_RATIO_SPREAD:
        return None
    time = events[last].time + _sum_remaining(windows)
    remaining = _sum_remaining(jumps) if any(jumps) else 0.0
    guards = _collect_guards(events[-3 * period :])
    return Accumulation(time, guards, events[ends[1]].time, remaining)


def _collect_guards(events: Sequence[SequenceEvent]) -> tuple[str, ...]:
    """Return the guards of the events that change the state, of all if none does.

    Others may come in between, such as the turn of a joint with dry friction between two bounces:
    they take no velocity away, and so does no rest. The last event has not been applied yet: it
    counts as one that changes the state, unless an earlier one of its guards changed nothing.

    Args:
        events: Events of the accumulation, in order of time.

    Returns:
        Names of guards, each once.
    """
    *applied, last = events
    min_jump = _MIN_JUMP_RATIO * max((event.jump for event in applied), default=0.0)
    changing = [event for event in applied if event.jump > min_jump]
    if not changing:
        changing = list(events)
    elif last.guards not in {event.guards for event in applied if event.jump <= min_jump}:
        changing.append(last)
    return tuple(dict.fromkeys(name for event in changing for name in event.guards))


def _sum_remaining(sizes: Sequence[float]) -> float:
    """Return the sum of all later terms of a geometric sequence, whose last terms come first.

    After a term D with the ratio r < 1 it is D r / (1 - r); the caller has checked the ratio.
    """
    ratio = sizes[0] / sizes[1]
    return sizes[0] * ratio / (1.0 - ratio)
