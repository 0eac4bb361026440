r"""Detection: when a controller knows of a simulated event: late, by a noisy clock, or not at all.

An impact whose measured impulse is below a threshold is missed. What a controller that counts
events then does not see, it may see later: by the force with which the contact presses, or because
the reference had its event some time ago.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from hybridctl.base.checks import check_count, check_instance, check_number
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import due, locate
from hybridctl.hybrid.laws import DifferentiableLaw, InputLaw
from hybridctl.hybrid.policy import History, Policy, ask_next_change, sees_samples
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event


@dataclass(frozen=True, eq=False)
class ForceSignal:
    """Contact forces of a system as a controller measures them, every `period` seconds.

    output: the output of its modes with one normal force per contact, N. A contact whose force
    is at least `threshold`, N, is known to be closed.
    """

    system: HybridSystem
    threshold: float
    period: float = 1e-3
    output: str = "normal_force"

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, above=0.0)
        check_number("period", self.period, above=0.0)

    def shows(self, contact: int, event: Event) -> bool:
        """Whether the force of a contact is above the threshold just before an event."""
        mode = self.system.mode(event.mode_before)
        values = mode.outputs(event.time, event.state_before, event.input_before)
        if not values:
            raise SystemDefinitionError(f"mode {mode.key!r} has no outputs to measure")
        if self.output not in values:
            raise InputError(
                f"output {self.output!r} is none of mode {mode.key!r}, which has {sorted(values)}"
            )
        return bool(values[self.output][contact] >= self.threshold)


@dataclass(frozen=True, eq=False)
class Detection:
    r"""How a controller detects events.

    delay, jitter: event k is known max(0, delay + jitter n) after it happens, in s, with n a
    standard normal number of its own. threshold, noise: an impact is missed if its largest normal
    impulse, plus noise times another such number, is below the threshold; both in N s. Events
    without an impulse (a release, sticking, a bounce of a system that reports none) are not missed.
    The numbers depend on `seed` and k alone.

    What has been missed is known as late as `force`, if given, shows the contact pressed (with the
    delay on top), or `timeout` seconds after the nominal event, whichever is first. The default of
    no delay, jitter and threshold is to know everything at once.
    """

    delay: float = 0.0
    threshold: float = 0.0
    jitter: float = 0.0
    noise: float = 0.0
    seed: int = 0
    timeout: float = math.inf
    force: ForceSignal | None = None

    def __post_init__(self) -> None:
        for name in ("delay", "threshold", "jitter", "noise"):
            check_number(name, getattr(self, name), at_least=0.0)
        check_count("seed", self.seed, at_least=0)
        if self.timeout != math.inf:
            check_number("timeout", self.timeout, at_least=0.0)

    @property
    def is_immediate(self) -> bool:
        """Whether every event is known when it happens."""
        return not (self.delay or self.jitter or self.threshold or self.noise)

    def known(
        self, history: History, due: Callable[[Sequence[Event]], float]
    ) -> tuple[History, float]:
        """What a controller knows of a history, and when it knows or measures more, s.

        Events are in the order in which it came to know them, its own changes of the law among
        them; the mode is that before the first event that it does not know. due: the nominal time
        of the event that follows some events of guards, s.
        """
        events = tuple(event for event in history.events if event.guards)
        now, following, mode = history.time, math.inf, history.mode
        heard: list[tuple[float, int, Event]] = []
        for k, event in reversed(list(enumerate(events))):
            time, again = self._time(k, events, due, history)
            if time <= now:
                heard.append((time, event.index, event))
            else:
                mode, following = event.mode_before, min(following, time, again)
        known = [event for event in history.events if not event.guards]
        heard.sort(key=itemgetter(0, 1))
        places = [bisect_right(known, (time, i), key=_order) for time, i, _ in heard]
        for place, (_, _, event) in zip(reversed(places), reversed(heard), strict=True):
            known.insert(place, event)
        return replace(history, mode=mode, events=tuple(known)), following

    def _time(
        self,
        k: int,
        events: tuple[Event, ...],
        due: Callable[[Sequence[Event]], float],
        history: History,
    ) -> tuple[float, float]:
        """The time when event k is known, as far as can be told now, and when to measure again."""
        event = events[k]
        lag, impulse = self._draw(k, event)
        if impulse is None or impulse >= self.threshold:
            return event.time + lag, math.inf
        late = max(event.time, due(events[:k]) + self.timeout)
        if self.force is None:
            return late, math.inf
        contact = int(np.argmax(event.impulses))
        for sample in history.events:
            after = not sample.guards and sample.time > event.time
            if after and self.force.shows(contact, sample):
                return min(late, sample.time + lag), math.inf
        return late, history.time + self.force.period

    def _draw(self, k: int, event: Event) -> tuple[float, float | None]:
        """The delay of event k in s, and its impulse as measured, None where it has none."""
        late, more = _noise(self.seed, k)
        lag = max(0.0, self.delay + self.jitter * late)
        if not event.impulses.any():
            return lag, None
        return lag, float(event.impulses.max()) + self.noise * more


_order = attrgetter("time", "index")


@lru_cache(maxsize=1024)
def _noise(seed: int, k: int) -> tuple[float, float]:
    """The standard normal numbers of event k."""
    one, other = np.random.default_rng((seed, k)).standard_normal(2).tolist()
    return one, other


@dataclass(frozen=True, eq=False)
class DetectedPolicy:
    """A policy that goes by the events that a `Detection` lets it know, whichever policy it is.

    It is told of no others, and of the mode before the first of them. reference: the one whose
    nominal events the timeout of the detection counts from; by default that of the policy, if it
    has a `reference`. Raises `InputError` for a timeout without one.
    """

    policy: Policy
    detection: Detection
    reference: Reference | None = None
    _last: list[tuple[History, tuple[History, float]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_instance("policy", self.policy, Policy)  # type: ignore[type-abstract]
        timeout = check_instance("detection", self.detection, Detection).timeout
        if self.reference is None:
            object.__setattr__(self, "reference", getattr(self.policy, "reference", None))
        if self.reference is None and timeout != math.inf:
            raise InputError(f"reference must be given for a timeout of {timeout} s, got None")

    def __reduce__(self) -> tuple[type[DetectedPolicy], tuple[Any, ...]]:
        return type(self), (self.policy, self.detection, self.reference)

    def law(self, history: History) -> InputLaw:
        """The law of the policy after the events that it knows of.

        It has derivatives if events are known at once; else it changes when they are known.
        """
        law = self.policy.law(self._known(history)[0])
        if self.detection.is_immediate or not isinstance(law, DifferentiableLaw):
            return law
        return law.function

    def next_change(self, history: History) -> float:
        """The time when another event gets known or the policy wants to be asked again, s."""
        known, following = self._known(history)
        return min(ask_next_change(self.policy, known), following)

    @property
    def sees_samples(self) -> bool:
        """Whether events are found by forces at samples, or the policy goes by samples itself."""
        return self.detection.force is not None or sees_samples(self.policy)

    @property
    def follows(self) -> str:
        """What chooses the arc that the policy tracks, see `ReferenceSpreading.follows`."""
        return getattr(self.policy, "follows", "clock")

    def _known(self, history: History) -> tuple[History, float]:
        """What is known of a history, which is asked for its law and then for the next change."""
        for seen, found in self._last:
            if seen is history:
                return found
        known = self.detection.known(history, self._due)
        self._last[:] = [(history, known)]
        return known

    def _due(self, events: Sequence[Event]) -> float:
        """The nominal time of the event that follows the given ones, s."""
        if self.reference is None:
            return math.inf
        return due(self.reference, locate(self.reference, events))
