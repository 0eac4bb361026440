"""Controllers that are stepped by somebody else's loop, on a robot or a simulator.

`simulate` asks a policy for a law at each event, of which it knows everything. In a loop there are
samples: a time, a measured state, and what sensors say of touches. A `Controller` makes of them
what policies ask for, and gives an input at each sample, whatever the sample is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_instance, check_number, check_vector, is_finite
from hybridctl.base.errors import HybridctlError, ReferenceRangeError
from hybridctl.control.detectors import AnyOf, Detector, Guards, Reading
from hybridctl.control.laws import cut, input_limits, motor_limits
from hybridctl.control.recording import Recording
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import START, Position, advance, followed, missing
from hybridctl.hybrid.jump import execute_event
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History, Policy, ask_next_change
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

Status = Literal["ok", "held", "late", "lost"]

_LATE = 1.5  # periods between two samples from which on samples are missing
_ROUNDING = 1e-6  # of a period, by which a time may miss the one that a policy asked for
_NOTHING: Mapping[str, Any] = {}


class Command(NamedTuple):
    """What to do until the next sample: the input u (nu,).

    Attributes:
        u: The input (nu,), in N m or N.
        mode: The mode that the controller believes in.
        position: The touches of the reference that were detected so far. Without a detector it
            stays at the start, also if the policy follows the clock.
        status: How u was found.

            - "ok": from the law of the policy, at this sample.
            - "late": from the law of the policy, after samples that never came.
            - "held": the last input, as the sample could not be used; or the law of the policy
              beyond what it tracks, where the end of that is held. A policy that follows touches
              (`ReferenceSpreading`) tracks the extended arc of its position, any other policy
              the whole reference by the clock.
            - "lost": the fallback, as no sample could be used for longer than the patience.
    """

    u: Array
    mode: ModeKey
    position: Position
    status: Status


class Controller:
    """A policy in a loop: measured states and touches in, inputs out, whatever comes.

    system: the model. policy: any that `simulate` takes. period: of the loop, s. mode: at the
    start. detector: tells of events (see `detectors`), none by default. limits: the greatest
    absolute inputs (nu,), or the least and the greatest (2, nu), by default those of the motors
    (`Robot.effort`); inf for none. reference: the one in which
    positions are told and from which the modes after touches are taken; by default that of the
    policy, if it has one. patience: how long the last input is held over samples that cannot be
    used, s. fallback: the input after that, zero by default.

    An event of guards puts the controller into the mode that the reference has then, or else into
    the one that goes on after the reset of the measured state, under the last input. Where there is
    a reference, guards that it does not have next are ignored, such as those that fire twice. The
    policy is asked for its law at events and when it wants to be; its law at each sample. A time
    that jumps, backwards or by more than the patience, is believed once the next sample goes on
    from there.

    Raises `InputError` for bad arguments; `step` raises nothing.
    """

    _time: float
    _doubtful: float  # a time that has jumped, and is not believed yet
    _again: float  # when to ask the policy again
    _refused: int  # samples in a row
    _held: bool  # the end of an arc, by the last law
    _recording: Recording

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
            self._limits = motor_limits(system, first.nu)
        else:
            self._limits = input_limits(limits, first.nu)
        given = (
            np.zeros(first.nu) if fallback is None else check_vector("fallback", fallback, first.nu)
        )
        self._fallback = cut(np.array(given), self._limits)
        self._start = mode
        self.reset()

    def reset(self) -> None:
        """Return to the start: nothing known, nothing recorded."""
        self.detector.reset()
        self.fault: Exception | None = None  # the last one that was kept from the loop
        self.mode = self._start
        self._forget_time()
        self._position = START
        self._events: list[Event] = []
        self._law: InputLaw | None = None
        self._input = self._fallback

    def step(
        self, t: float, x: ArrayLike, sensed: Mapping[str, ArrayLike] | None = None
    ) -> Command:
        """The input from time t in s on, where the state is measured as x (nx,).

        sensed: what sensors say of touches, by channel.
        """
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows is cut or held
                return self._step(float(t), x, sensed)
        except Exception as error:  # a loop goes on, whatever a policy or a sensor does
            self.fault = error
            return self._without()

    def run(self) -> HybridTrajectory:
        """What was seen and done, as a trajectory that can be read as any other.

        States are joined by straight lines between samples, inputs are held. After a time that
        jumped backwards it begins anew. Raises `InputError` where there is nothing yet.
        """
        return self._recording.run(self.system)

    def _step(self, t: float, x: ArrayLike, sensed: Mapping[str, ArrayLike] | None) -> Command:
        follows = self._follows(t) if math.isfinite(t) else None
        state = np.array(x, dtype=np.float64)
        space = self.system.mode(self.mode).space
        if follows is None or state.shape != (space.nx,) or not is_finite(state):
            return self._without()
        status: Status = "ok" if follows else "late"
        reading = Reading(t, state, self._input, sensed if sensed is not None else _NOTHING)
        names = self.detector.step(reading)
        if names:
            self._fire(t, state, names)
        if self._law is None or t >= self._again:
            self._ask(t, state)
        assert self._law is not None
        u = self._law(t, state)
        if u.shape != self._fallback.shape or not is_finite(u):
            return self._without()
        self._input = u = cut(u, self._limits)
        self._refused = 0
        if self._held or self._has_ended(t):
            status = "held"
        self._recording.put(t, state, u, self.mode)
        return Command(u, self.mode, self._position, status)

    def _follows(self, t: float) -> bool | None:
        """Whether a time is the next sample's, or later; None where it is not to be believed."""
        last, doubtful = self._time, self._doubtful
        step = t - last
        if 0.0 < step <= _LATE * self.period or last == -math.inf:
            self._time, self._doubtful = t, math.nan
            return True
        if 0.0 < step <= max(self.patience, _LATE * self.period):
            self._time, self._doubtful = t, math.nan
            return False
        if 0.0 < t - doubtful <= _LATE * self.period:
            self._forget_time()
            self._time = t
            return False
        self._doubtful = t
        return None

    def _forget_time(self) -> None:
        """Begin with the next sample, whatever its time."""
        self._time = -math.inf
        self._doubtful = math.nan
        self._again = -math.inf
        self._refused = 0
        self._held = False
        self._recording = Recording()

    def _fire(self, t: float, x: Array, names: Guards) -> None:
        """Note an event of guards, and the mode that it leads to."""
        before = self.mode
        if self.reference is not None:
            names = missing(self.reference, self._position, names)
            if not names:
                return
            self._position = advance(self.reference, self._position, names)
            self.mode = followed(self.reference, self._position).mode
        else:
            try:
                found = execute_event(self.system, before, names, t, x, self._input)
                self.mode, names = found.mode, found.guards
            except HybridctlError as error:  # a state that no impact law takes to be touching
                self.fault = error
        nothing = np.zeros_like(self._input)
        u = self._input
        event = Event(
            len(self._events), t, before, self.mode, names, x, x, u, u, nothing, np.zeros(0)
        )
        self._events.append(event)
        self._recording.event(event)
        self._law = None

    def _ask(self, t: float, x: Array) -> None:
        """Ask the policy for its law, at the nearest time that its reference reaches to."""
        history = History(self.mode, t, x, tuple(self._events))
        self._held = False
        try:
            self._law = self.policy.law(history)
        except ReferenceRangeError as error:
            nearest = min(max(t, error.interval[0]), error.interval[1])
            self._law = self.policy.law(replace(history, time=nearest))
            self._held = True
        self._again = ask_next_change(self.policy, history) - _ROUNDING * self.period

    def _has_ended(self, t: float) -> bool:
        """Return whether what the policy tracks does not reach to the time t, in s."""
        if self.reference is None:
            return False
        # The position counts detected touches: it says nothing of a policy that follows the clock.
        follows = getattr(self.policy, "follows", "clock")
        if follows == "phase":  # the policy chooses a time at which there is a reference
            return False
        by_touches = follows == "touches"
        tracked = followed(self.reference, self._position) if by_touches else self.reference.nominal
        return not tracked.start - self.period <= t <= tracked.end + self.period

    def _without(self) -> Command:
        """The last input, or the fallback where that was too long ago."""
        self._refused += 1
        self._law = None
        lost = self._refused * self.period > self.patience
        if lost:
            self._input = self._fallback
        return Command(self._input, self.mode, self._position, "lost" if lost else "held")
