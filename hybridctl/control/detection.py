r"""Detection of simulated events by a controller: late, with a random delay, or not at all.

An impact whose measured impulse is below a threshold is missed. It may be detected later: by the
force with which the contact presses, or because the reference had its event some time ago.
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
from hybridctl.control.spreading import get_due_time, locate
from hybridctl.hybrid.laws import DifferentiableLaw, InputLaw
from hybridctl.hybrid.policy import History, Policy, ask_next_change, sees_samples
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event

DueTime = Callable[[Sequence[Event]], float]
"""The nominal time in s of the event that follows some events of guards."""


@dataclass(frozen=True, eq=False)
class ForceSignal:
    """Contact forces as a controller measures them, by which it detects that a contact is closed.

    Attributes:
        system: The system.
        threshold: Normal force in N from which on a contact is detected as closed.
        period: Time between two measurements, s.
        output: Name of the output of the system's modes that has one normal force per contact, N.
    """

    system: HybridSystem
    threshold: float
    period: float = 1e-3
    output: str = "normal_force"

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, above=0.0)
        check_number("period", self.period, above=0.0)

    def is_above(self, contact: int, event: Event) -> bool:
        """Return whether the force of a contact just before an event is at the threshold or above.

        Args:
            contact: Index of the contact.
            event: Event of a run of the system; one without guards is a sample.

        Raises:
            SystemDefinitionError: The mode has no outputs.
            InputError: The mode has no output of this name.
        """
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
    r"""How a controller detects events. By default every event is detected when it happens.

    Event k, counted among those of guards, is detected max(0, delay + jitter n) seconds after it
    happens, with a standard normal number n of its own. An impact is missed if its largest normal
    impulse, plus `noise` times another such number, is below the threshold. Events without an
    impulse (a release, sticking, a bounce of a system that reports none) are not missed. The
    numbers depend on `seed` and k alone.

    A missed impact is detected the delay after the first sample at which `force` shows that the
    contact of its largest impulse presses, or `timeout` seconds after the nominal event, whichever
    is first.

    Attributes:
        delay: Mean delay, s.
        threshold: Least impulse that is not missed, N s.
        jitter: Standard deviation of the delay, s.
        noise: Standard deviation of the measured impulse, N s.
        seed: Seed of the random numbers.
        timeout: Time in s after the nominal event at which a missed impact is taken for granted;
            inf for never.
        force: Contact forces as they are measured; None without.
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
        """Whether every event is detected when it happens."""
        return not (self.delay or self.jitter or self.threshold or self.noise)

    def filter_history(self, history: History, due: DueTime) -> tuple[History, float]:
        """Return the part of a history that a controller has detected.

        Args:
            history: What has happened.
            due: Nominal time in s of the event that follows some events of guards.

        Returns:
            The detected history, and the time in s at which more is detected or measured; infinite
            if nothing is to come. Events stand in the order in which they were detected, with the
            policy's own changes of the law among them. The mode is that before the first event that
            is not detected.
        """
        events = tuple(event for event in history.events if event.guards)
        now, following, mode = history.time, math.inf, history.mode
        detected: list[tuple[float, int, Event]] = []
        for k, event in reversed(list(enumerate(events))):
            time, next_measurement = self._find_detection_time(k, events, due, history)
            if time <= now:
                detected.append((time, event.index, event))
            else:
                mode, following = event.mode_before, min(following, time, next_measurement)
        known = [event for event in history.events if not event.guards]
        detected.sort(key=itemgetter(0, 1))
        places = [bisect_right(known, (time, i), key=_get_order) for time, i, _ in detected]
        # From the last place to the first, so that an insertion does not shift places before it.
        for place, (_, _, event) in zip(reversed(places), reversed(detected), strict=True):
            known.insert(place, event)
        return replace(history, mode=mode, events=tuple(known)), following

    def _find_detection_time(
        self, k: int, events: tuple[Event, ...], due: DueTime, history: History
    ) -> tuple[float, float]:
        """Return when event k is known, and when the force is measured next.

        Args:
            k: Index of the event.
            events: All events of guards so far.
            due: Nominal time in s of the event that follows some events of guards.
            history: What has happened, with samples.

        Returns:
            Time of detection in s, as far as it can be told now. Time of the next measurement in s,
            infinite where it does not matter.
        """
        event = events[k]
        delay, impulse = self._draw(k, event)
        if impulse is None or impulse >= self.threshold:
            return event.time + delay, math.inf
        timed_out = max(event.time, due(events[:k]) + self.timeout)
        if self.force is None:
            return timed_out, math.inf
        contact = int(np.argmax(event.impulses))
        for sample in history.events:
            is_later_sample = not sample.guards and sample.time > event.time
            if is_later_sample and self.force.is_above(contact, sample):
                return min(timed_out, sample.time + delay), math.inf
        return timed_out, history.time + self.force.period

    def _draw(self, k: int, event: Event) -> tuple[float, float | None]:
        """Return the random delay and measured impulse of an event.

        Args:
            k: Index of the event among those of guards.
            event: The event.

        Returns:
            Delay in s, and impulse in N s; None for an event without an impulse.
        """
        of_delay, of_impulse = _draw_normal_pair(self.seed, k)
        delay = max(0.0, self.delay + self.jitter * of_delay)
        if not event.impulses.any():
            return delay, None
        return delay, float(event.impulses.max()) + self.noise * of_impulse


_get_order = attrgetter("time", "index")


@lru_cache(maxsize=1024)
def _draw_normal_pair(seed: int, k: int) -> tuple[float, float]:
    """Return two standard normal numbers that belong to event k."""
    one, other = np.random.default_rng((seed, k)).standard_normal(2).tolist()
    return one, other


@dataclass(frozen=True, eq=False)
class DetectedPolicy:
    """A policy to which only the events are passed that a `Detection` has detected.

    The mode that is passed to it is that before the first event that is not detected.

    Attributes:
        policy: The policy.
        detection: How it detects events.
        reference: Reference whose nominal events the timeout of the detection counts from; None
            for that of the policy, if it has one.

    Raises:
        InputError: The detection has a timeout, and there is no reference.
    """

    policy: Policy
    detection: Detection
    reference: Reference | None = None
    # The last history and its detected part: a history is asked for the law, then for the next
    # change. In a list, because the class is frozen.
    _cache: list[tuple[History, tuple[History, float]]] = field(
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
        """Return the law of the policy after the detected events.

        It has the derivatives of that law if every event is detected at once. Else it has none: it
        changes at times that depend on random numbers and measured forces.
        """
        law = self.policy.law(self._filter(history)[0])
        if self.detection.is_immediate or not isinstance(law, DifferentiableLaw):
            return law
        return law.function

    def next_change(self, history: History) -> float:
        """Return when another event is detected, a force measured, or the policy asked again, s."""
        known, following = self._filter(history)
        return min(ask_next_change(self.policy, known), following)

    @property
    def sees_samples(self) -> bool:
        """Whether events are found by forces at samples, or the policy uses samples itself."""
        return self.detection.force is not None or sees_samples(self.policy)

    @property
    def follows(self) -> str:
        """What selects the arc that the policy tracks, see `ReferenceSpreading.follows`."""
        return getattr(self.policy, "follows", "clock")

    def _filter(self, history: History) -> tuple[History, float]:
        """Return the detected part of a history, and when more is detected, s."""
        for seen, known in self._cache:
            if seen is history:
                return known
        known = self.detection.filter_history(history, self._find_due_time)
        self._cache[:] = [(history, known)]
        return known

    def _find_due_time(self, events: Sequence[Event]) -> float:
        """Return the nominal time of the event that follows the given ones, s."""
        if self.reference is None:
            return math.inf
        return get_due_time(self.reference, locate(self.reference, events))
