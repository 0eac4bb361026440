r"""Events that accumulate: recognised by their geometric decay, and where they end.

A sequence of guards that repeats with period m at times t_k has windows of length
D_k = t_k - t_{k-m}, and jumps of the size V_k = |x+ - x-|, summed over a window. Where a force
drives bodies back onto each other ever sooner, both shrink by one ratio r < 1, so that jumps per
time, the mean force of the impacts, stay bounded; what ends there is rest under that force:

.. math:: t_\infty = t_n + D_n \frac{r}{1 - r}, \qquad \sum_{k > n} V_k = V_n \frac{r}{1 - r}.

A light ball that is caught between the floor and a falling mass has shorter and shorter windows
too, but its jumps grow, or shrink less: it turns the mass round, or takes long to stop it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from hybridctl.base.checks import check_flag, check_member, quote
from hybridctl.base.errors import InputError
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SHRUNK, SLOWEST, STEADY

INSTANT_EVENTS = 10  # that crowd, whatever their guards
_IDLE_EVENTS = 3  # that do, where those before the last one changed nothing
_NO_JUMP = 1e-6
"""Of the largest jump of a sequence: events that change the state by less do not change it. What
they set to zero, such as a speed, was zero but for rounding."""
_MIXED = 5  # events of a window whose guards need not repeat, as of several contacts that bounce


@dataclass(frozen=True)
class ZenoPolicy:
    """What a run does where its events accumulate: the argument `on_zeno` of `simulate`.

    A subclass may override `extend`, to give rests to systems that state none. One that does is
    `hybridctl.relaxation.ZenoRelaxation`.

    Attributes:
        takes_rest: Whether the run goes on at once from the rest that the system states. If not,
            accumulating events end it in a `ZenoError`.
    """

    takes_rest: bool = True

    def __post_init__(self) -> None:
        check_flag("takes_rest", self.takes_rest)

    def extend(self, system: HybridSystem) -> HybridSystem:
        """Return the system that is simulated, with all rests that the run may take.

        A run that goes on from an earlier one passes a system that has been extended already. So
        `extend` must return such a system as it is.

        Args:
            system: The system given to `simulate`.
        """
        return system


OnZeno = Literal["rest", "raise"] | ZenoPolicy
"""What `simulate` takes as `on_zeno`."""


def as_zeno_policy(on_zeno: OnZeno) -> ZenoPolicy:
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
    return ZenoPolicy(check_member("on_zeno", on_zeno, ("raise", "rest")) == "rest")


class Fired(NamedTuple):
    """An event in a sequence: time in s, guards, and the size of its jump in units of the state.

    idle: whether the mode before it flows on in the same state, but for what stops.
    """

    time: float
    guards: tuple[str, ...]
    jump: float = 0.0
    idle: bool = False


class Accumulation(NamedTuple):
    """The predicted end of an infinite sequence of events.

    Attributes:
        time: Time of the end, s.
        guards: Guards of the events that change the state, or of all if none does.
        since: When the last window began, s.
        left: Sum of the jumps that are yet to come, in units of the state; None where the events
            only crowd.
    """

    time: float
    guards: tuple[str, ...]
    since: float
    left: float | None


def endings(
    events: Sequence[Fired], horizon: float, speed: Callable[[], float]
) -> Iterator[Accumulation]:
    """Yield the ends of events that shrink steadily, or crowd; the jump of the last is to come.

    Args:
        events: The last events, in order of time.
        horizon: How far away the end may be, and how long ten events may last that crowd, s.
        speed: Returns the norm of the flow, in units of the state per s; called only if an end is
            near. Jumps that are yet to come add up to no more than the flow makes in the horizon,
            or in twice the time from the last window's begin to the end: those of a ball add up to
            what gravity makes in it once. Impacts of a light limb in turn may be of much larger
            accelerations, and end at another velocity than one impact of all.
    """
    steady = predict(events)
    goes_on = steady is not None and (
        steady.time - events[-1].time > horizon
        or (steady.left or 0.0) > speed() * max(horizon, 2.0 * (steady.time - steady.since))
    )
    if steady is not None and not goes_on:
        yield steady
    crowd = () if goes_on else crowding(events, horizon)
    if crowd:
        yield Accumulation(crowd[-1].time, _guards(crowd), crowd[0].time, None)


def predict(events: Sequence[Fired]) -> Accumulation | None:
    """The time when events accumulate, if the last windows and jumps shrink steadily.

    Ratios of successive windows, and of their jumps if there are any, are at most 0.98, and all of
    them agree to 0.1. A window has up to four events of guards that repeat, or five of any.
    """
    for period in range(1, _MIXED + 1):
        if len(events) <= 3 * period:
            return None
        guards = [event.guards for event in events[-3 * period :]]
        if period == _MIXED or guards[:period] * 3 == guards:
            end = _limit(events, period)
            if end is not None:
                return end
    return None


def crowding(events: Sequence[Fired], span: float) -> Sequence[Fired]:
    """The last events, if they crowd: ten within `span`, s, or three at once in an idle sequence.

    Two that left mode and state as they were, and a third at once, tell that others would follow.
    """
    idle = events[-_IDLE_EVENTS:]
    if crowded(events, _IDLE_EVENTS, SHRUNK) and all(event.idle for event in idle[:-1]):
        return idle
    return events[-INSTANT_EVENTS:] if crowded(events, INSTANT_EVENTS, span) else ()


def crowded(events: Sequence[Fired | Event], count: int, span: float) -> bool:
    """Whether the last `count` events fit into `span`, s."""
    return len(events) >= count and events[-1].time - events[-count].time <= span


def _limit(events: Sequence[Fired], period: int) -> Accumulation | None:
    """The end of the last three windows of so many events, if they are those of one ratio."""
    last = len(events) - 1
    ends = [last - k * period for k in range(4)]
    windows = [events[i].time - events[j].time for i, j in pairwise(ends)]
    jumps = [sum(event.jump for event in events[j:i]) for i, j in pairwise(ends)]
    if min(windows[1:]) <= 0.0:
        return None
    ratios = [windows[0] / windows[1], windows[1] / windows[2]]
    if any(jumps):
        if min(jumps[1:]) <= 0.0:
            return None
        ratios += [jumps[0] / jumps[1], jumps[1] / jumps[2]]
    if max(ratios) > SLOWEST or max(ratios) - min(ratios) > STEADY:
        return None
    time = events[last].time + _to_come(windows)
    left = _to_come(jumps) if any(jumps) else 0.0
    return Accumulation(time, _guards(events[-3 * period :]), events[ends[1]].time, left)


def _guards(events: Sequence[Fired]) -> tuple[str, ...]:
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
    least = _NO_JUMP * max((event.jump for event in applied), default=0.0)
    changing = [event for event in applied if event.jump > least]
    if not changing:
        changing = list(events)
    elif last.guards not in {event.guards for event in applied if event.jump <= least}:
        changing.append(last)
    return tuple(dict.fromkeys(name for event in changing for name in event.guards))


def _to_come(sizes: Sequence[float]) -> float:
    """The sum of the rest of a geometric sequence, from its last two sizes (latest first)."""
    ratio = sizes[0] / sizes[1]
    return sizes[0] * ratio / (1.0 - ratio)
