"""Controllers that are stepped by somebody else's loop, on a robot or a simulator.

`simulate` asks a policy for a law at each event, and passes it the whole history. A loop has
samples: a time, a measured state, and sensor signals of touches. A `Controller` makes a history of
them, asks the policy for its law, and returns an input at each sample, whatever the sample is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_instance, check_number, check_vector, is_finite
from hybridctl.base.errors import HybridctlError, InputError, ReferenceRangeError
from hybridctl.control.detectors import AnyOf, Detector, Guards, Reading
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import (
    START,
    Position,
    advance,
    get_followed_arc,
    list_missing_guards,
)
from hybridctl.control.tracking_law import clip_input, get_motor_limits, parse_limits
from hybridctl.hybrid.arc import Arc, freeze_array
from hybridctl.hybrid.jump import execute_event
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History, Policy, ask_next_change
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

Status = Literal["ok", "held", "late", "lost"]

_MISSED_AFTER = 1.5
"""Distance of two samples, in periods, from which on samples between them are missing."""
_REQUEST_MARGIN = 1e-6
"""Part of a period by which a sample may be before the time that a policy asked for.

Times of samples are rounded. A choice."""
_NO_SENSORS: Mapping[str, Any] = {}


class Command(NamedTuple):
    """What to do until the next sample: the input u (nu,).

    Attributes:
        u: The input (nu,), in N m or N.
        mode: The mode that follows from the detected events.
        position: Position in the reference by the detected touches. Without a detector or a
            reference it stays at the start, also if the policy follows the clock.
        status: How u was found.

            - "ok": from the law of the policy, at this sample.
            - "late": from the law of the policy, after samples that never came.
            - "held": the last input, as the sample could not be used; or the law of the policy
              beyond what it tracks, where the end of that is held. A policy that follows touches
              (`ReferenceSpreading`) tracks the extended arc of its position, any other policy
              the whole reference by the clock.
            - "lost": the fallback, as so many samples in a row could not be used that their periods
              add up to more than the patience.
    """

    u: Array
    mode: ModeKey
    position: Position
    status: Status


class Controller:
    """A policy in a loop: measured states and touches in, inputs out, whatever comes.

    `step` is called at each sample; `reset` begins anew; `run` returns the recorded samples, inputs
    and events.

    An event of guards puts the controller into the mode that the reference has then. Without a
    reference it is the mode after the reset of the measured state, under the last input. Guards
    that the reference does not have next are ignored, such as those that fire twice. The policy is
    asked for its law at events and when it wants to be, and its law at each sample. A time that
    jumps, backwards or by more than the patience, is believed once the next sample goes on from
    there.

    Args:
        system: The system that is controlled.
        policy: Any policy that `simulate` takes.
        period: Period of the loop, s.
        detector: Detector of events (see `detectors`); None for no events.
        mode: Mode at the start.
        limits: Greatest absolute inputs (nu,), or the least and the greatest (2, nu); inf for
            none. By default those of the motors (`Robot.effort`).
        reference: Reference that positions count in and that gives the modes after touches. By
            default that of the policy, if it has one.
        patience: Time in s for which the last input is held over samples that cannot be used,
            counted as their number times the period. A step of time up to it is believed at once.
        fallback: Input (nu,) after that, cut to the limits; None for zero.

    Raises:
        InputError: An argument does not fit. `step` raises nothing.

    Attributes:
        system: The system.
        policy: The policy.
        period: Period of the loop, s.
        detector: Detector of events.
        reference: Reference that positions count in, or None.
        patience: Time in s for which the last input is held over samples that cannot be used.
        mode: The mode that follows from the detected events.
        fault: The last exception that was kept from the loop, or None since `reset`.
    """

    # State between two steps, besides the attributes above:
    _time: float  # of the last sample that was used, s; -inf before the first
    _jumped_time: float  # a time in s that has jumped and is not believed yet; NaN for none
    _next_request: float  # when the policy is asked for its law again, s
    _refused_count: int  # samples in a row that could not be used
    _is_beyond_reference: bool  # whether the law holds the end of an extended arc
    _recording: _Recording

    def __init__(
        self,
        system: HybridSystem,
        policy: Policy,
        period: float,
        detector: Detector | None = None,
        *,
        mode: ModeKey,
        limits: ArrayLike | None = None,
        reference: Reference | None = None,
        patience: float = 0.05,
        fallback: ArrayLike | None = None,
    ) -> None:
        self.system = check_instance("system", system, HybridSystem)
        self.policy = check_instance("policy", policy, Policy)  # type: ignore[type-abstract]
        self.period = check_number("period", period, above=0.0)
        self.detector: Detector = AnyOf() if detector is None else detector
        check_instance("detector", self.detector, Detector)  # type: ignore[type-abstract]
        if reference is None:
            reference = getattr(policy, "reference", None)
        self.reference = (
            None if reference is None else check_instance("reference", reference, Reference)
        )
        self.patience = check_number("patience", patience, at_least=0.0)
        first = system.mode(mode)
        if limits is None:
            self._limits = get_motor_limits(system, first.nu)
        else:
            self._limits = parse_limits(limits, first.nu)
        given = (
            np.zeros(first.nu) if fallback is None else check_vector("fallback", fallback, first.nu)
        )
        self._fallback = clip_input(np.array(given), self._limits)
        self._start_mode = mode
        self.reset()

    def reset(self) -> None:
        """Return to the start: first mode, no events, no samples, the fallback as last input."""
        self.detector.reset()
        self.fault: Exception | None = None
        self.mode = self._start_mode
        self._forget_time()
        self._position = START
        self._events: list[Event] = []
        self._law: InputLaw | None = None  # None asks the policy at the next sample
        self._input = self._fallback

    def step(
        self, t: float, x: ArrayLike, sensed: Mapping[str, ArrayLike] | None = None
    ) -> Command:
        """Return the input from a sample on.

        Args:
            t: Time of the sample, s.
            x: Measured state (nx,).
            sensed: Sensor signals of touches, by channel; None for no sensors.

        Returns:
            The input with its status. Whatever is wrong with the sample, the policy or the detector
            gives "held" or "lost"; an exception is kept in `fault`.
        """
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows is cut or held
                return self._step(float(t), x, sensed)
        except Exception as error:  # a loop goes on, whatever a policy or a sensor does
            self.fault = error
            return self._hold_last_input()

    def run(self) -> HybridTrajectory:
        """Return the recorded samples, inputs and events as a trajectory.

        States are joined by straight lines between samples, inputs are held. The record begins anew
        after a time that has jumped, backwards or by more than the patience. Samples that could not
        be used are not part of it.

        Raises:
            InputError: No sample was used yet.
        """
        return self._recording.make_trajectory(self.system)

    def _step(self, t: float, x: ArrayLike, sensed: Mapping[str, ArrayLike] | None) -> Command:
        """Return the input from a sample on; may raise whatever policy and detector raise."""
        is_on_time = self._accept_time(t) if math.isfinite(t) else None
        state = np.array(x, dtype=np.float64)
        space = self.system.mode(self.mode).space
        if is_on_time is None or state.shape != (space.nx,) or not is_finite(state):
            return self._hold_last_input()
        status: Status = "ok" if is_on_time else "late"
        reading = Reading(t, state, self._input, sensed if sensed is not None else _NO_SENSORS)
        names = self.detector.step(reading)
        if names:
            self._fire(t, state, names)
        if self._law is None or t >= self._next_request:
            self._request_law(t, state)
        assert self._law is not None
        u = self._law(t, state)
        if u.shape != self._fallback.shape or not is_finite(u):
            return self._hold_last_input()
        self._input = u = clip_input(u, self._limits)
        self._refused_count = 0
        if self._is_beyond_reference or self._is_past_tracked_arc(t):
            status = "held"
        self._recording.append_sample(t, state, u, self.mode)
        return Command(u, self.mode, self._position, status)

    def _accept_time(self, t: float) -> bool | None:
        """Update the time of the last sample, and return whether this one follows it on time.

        Returns:
            True for the next sample, False for a later one, None where the time is not believed.
        """
        last, jumped = self._time, self._jumped_time
        step = t - last
        if 0.0 < step <= _MISSED_AFTER * self.period or last == -math.inf:
            self._time, self._jumped_time = t, math.nan
            return True
        if 0.0 < step <= max(self.patience, _MISSED_AFTER * self.period):
            self._time, self._jumped_time = t, math.nan
            return False
        # The second sample after a jump: the clock runs on from there.
        if 0.0 < t - jumped <= _MISSED_AFTER * self.period:
            self._forget_time()
            self._time = t
            return False
        self._jumped_time = t
        return None

    def _forget_time(self) -> None:
        """Forget times and records, so that the next sample is used whatever its time.

        Mode, position and events stay: a clock that jumps says nothing of the robot.
        """
        self._time = -math.inf
        self._jumped_time = math.nan
        self._next_request = -math.inf
        self._refused_count = 0
        self._is_beyond_reference = False
        self._recording = _Recording()

    def _fire(self, t: float, x: Array, names: Guards) -> None:
        """Record an event of guards, enter the mode that it leads to, and discard the law.

        With a reference, guards that its next event lacks or has had already are dropped; if none
        is left, nothing happens.

        Args:
            t: Time, s.
            x: State (nx,).
            names: Guards that the detector reports.
        """
        before = self.mode
        if self.reference is not None:
            names = list_missing_guards(self.reference, self._position, names)
            if not names:
                return
            self._position = advance(self.reference, self._position, names)
            self.mode = get_followed_arc(self.reference, self._position).mode
        else:
            try:
                jump = execute_event(self.system, before, names, t, x, self._input)
                self.mode, names = jump.mode, jump.guards
            except HybridctlError as error:
                # The reset refuses the measured state, such as one that moves away from the ground.
                # The touch is recorded for the policy all the same; the mode stays.
                self.fault = error
        no_rate = np.zeros_like(self._input)
        u = self._input
        event = Event(
            len(self._events), t, before, self.mode, names, x, x, u, u, no_rate, np.zeros(0)
        )
        self._events.append(event)
        self._recording.append_event(event)
        self._law = None

    def _request_law(self, t: float, x: Array) -> None:
        """Ask the policy for its law, and store it with the time of the next request.

        Where its reference does not reach to the time, the nearest time to which it does is asked
        for instead.

        Args:
            t: Time, s.
            x: State (nx,).
        """
        history = History(self.mode, t, x, tuple(self._events))
        self._is_beyond_reference = False
        try:
            self._law = self.policy.law(history)
        except ReferenceRangeError as error:
            nearest = min(max(t, error.interval[0]), error.interval[1])
            self._law = self.policy.law(replace(history, time=nearest))
            self._is_beyond_reference = True
        self._next_request = ask_next_change(self.policy, history) - _REQUEST_MARGIN * self.period

    def _is_past_tracked_arc(self, t: float) -> bool:
        """Return whether time t, in s, is more than a period off what the policy tracks."""
        if self.reference is None:
            return False
        # The position counts detected touches: it says nothing of a policy that follows the clock.
        follows = getattr(self.policy, "follows", "clock")
        if follows == "phase":  # the policy chooses a time at which there is a reference
            return False
        by_touches = follows == "touches"
        nominal = self.reference.nominal
        tracked = get_followed_arc(self.reference, self._position) if by_touches else nominal
        return not tracked.start - self.period <= t <= tracked.end + self.period

    def _hold_last_input(self) -> Command:
        """Return the last input or, after the patience, the fallback, for a sample that is refused.

        The sample is counted, and the law discarded, so that the policy is asked again at the next
        sample.
        """
        self._refused_count += 1
        self._law = None
        is_lost = self._refused_count * self.period > self.patience
        if is_lost:
            self._input = self._fallback
        return Command(self._input, self.mode, self._position, "lost" if is_lost else "held")


@dataclass(eq=False)
class _Stretch:
    """The samples of one mode, up to the event that ends it.

    Attributes:
        mode: The mode.
        samples: Time in s, state (nx,) and input (nu,) of each sample.
        event: The event; None while the mode lasts.
    """

    mode: ModeKey
    samples: list[tuple[float, Array, Array]] = field(default_factory=list)
    event: Event | None = None


@dataclass(eq=False)
class _Recording:
    """The samples that a controller has used, with the events between them."""

    _stretches: list[_Stretch] = field(default_factory=list)

    def append_sample(self, t: float, x: Array, u: Array, mode: ModeKey) -> None:
        """Append a sample.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,) from there on.
            mode: Mode.
        """
        if not self._stretches or self._stretches[-1].event is not None:
            self._stretches.append(_Stretch(mode))
        self._stretches[-1].samples.append((t, x.copy(), u.copy()))

    def append_event(self, event: Event) -> None:
        """End the present stretch with an event; one before the first sample is left out."""
        if self._stretches:
            self._stretches[-1].event = event

    def make_trajectory(self, system: HybridSystem) -> HybridTrajectory:
        """Return arcs with states on straight lines and inputs held, and the events between them.

        Raises:
            InputError: There are no samples.
        """
        if not self._stretches:
            raise InputError("a run must have one sample at least, but nothing was recorded")
        arcs, events = [], []
        for k, stretch in enumerate(self._stretches):
            arcs.append(_make_arc(system, k, stretch))
            is_last = k == len(self._stretches) - 1
            if stretch.event is not None and not is_last:
                _, _, after = self._stretches[k + 1].samples[0]
                events.append(
                    replace(stretch.event, index=k, input_after=freeze_array(after.copy()))
                )
        return HybridTrajectory(tuple(arcs), tuple(events), system)


def _make_arc(system: HybridSystem, index: int, stretch: _Stretch) -> Arc:
    """Return the arc of a stretch, with Chebyshev series of states (degree 1) and inputs (0)."""
    mode = system.mode(stretch.mode)
    times, states, inputs = map(np.array, zip(*stretch.samples, strict=True))
    if stretch.event is not None and stretch.event.time > times[-1]:
        times = np.append(times, stretch.event.time)
        states = np.vstack([states, stretch.event.state_before])
    if len(times) == 1:  # a single sample is an arc of duration zero, whose series has any length
        times, states = np.repeat(times, 2), np.repeat(states, 2, axis=0)
        lengths = np.ones(1)
    else:
        lengths = np.diff(times)
    n = len(lengths)
    state_series, input_series = np.zeros((n, 8, mode.space.nx)), np.zeros((n, 8, mode.nu))
    state_series[:, 0] = 0.5 * (states[1:] + states[:-1])
    state_series[:, 1] = 0.5 * (states[1:] - states[:-1])
    input_series[:, 0] = inputs[:n]
    arrays = (times[:-1].copy(), lengths, state_series, input_series)
    start, end = float(times[0]), float(times[-1])
    return Arc(index, stretch.mode, mode.space, start, end, *arrays)
