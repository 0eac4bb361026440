"""Runs that begin far from time zero, as at Unix times: simulated on a clock that starts at zero.

At t = 1.7e9 s floating-point numbers are 2.4e-7 s apart. That is wider than the window in which
events count as simultaneous, and than the intervals at the end of bounces that accumulate. So such
a run is simulated in times since its start, which are resolved to rounding, while fields, guards,
resets and policies are given absolute times, rounded. Times of the trajectory are absolute again;
its states at events are those of the unrounded times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import HybridctlError, UnfinishedRunError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput, InputLaw, LinearFeedback
from hybridctl.hybrid.mapped import Change, MappedMode
from hybridctl.hybrid.model import CompiledStep, CompiledSteps, StepRequest
from hybridctl.hybrid.policy import History, Policy, ask_next_change, keeps_law, sees_samples
from hybridctl.hybrid.system import HybridSystem, MappedSystem
from hybridctl.hybrid.trajectory import HybridTrajectory

COARSEST_CLOCK = 1e-12
"""Spacing of numbers at the start of a run, s, above which it has a clock of its own.

A tenth of the shortest time that events are judged by (`tolerances.SAME_INSTANT`); reached at
8192 s."""


def is_far_from_zero(start: float, end: float) -> bool:
    """Return whether a run has finer times on its own clock.

    A run that is longer than its distance from zero has not: times since its start become as large.

    Args:
        start: Absolute time at the start of the run, s.
        end: Absolute time at its end, s.
    """
    return math.ulp(start) > COARSEST_CLOCK and end - start < abs(start)


@dataclass(frozen=True)
class OwnClock:
    """The clock of a run: its time is the absolute time less `origin`, both in s.

    Methods translate between both: `wrap_...` takes what is in absolute time and returns what is
    used on the clock; `make_absolute_...` returns in absolute time what a run on the clock made.
    `_shifted` has events by their `id`, together with the events themselves, so that no `id` is
    used twice.

    Attributes:
        origin: Absolute time at which the clock is zero, s.
    """

    origin: float
    _shifted: dict[int, tuple[Event, Event]] = field(default_factory=dict, repr=False)

    def wrap_system(self, inner: HybridSystem) -> HybridSystem:
        """Return a system as a function of time on this clock.

        Args:
            inner: The system in absolute time.
        """
        return ClockSystem(inner, self.origin)

    def wrap_policy(self, policy: Policy) -> Policy:
        """Return a policy for times on this clock.

        Args:
            policy: The policy in absolute time. It receives absolute times still.
        """
        return ClockPolicy(policy, self)

    def wrap_condition(self, ends_run: Callable[[Event], bool]) -> Callable[[Event], bool]:
        """Return the condition that ends a run, for events on this clock.

        Args:
            ends_run: Condition on events in absolute time.
        """
        return lambda event: ends_run(self.make_absolute_event(event))

    def wrap_progress(
        self, report: Callable[[float], None] | None
    ) -> Callable[[float], None] | None:
        """Return a progress function for times on this clock.

        Args:
            report: Function of absolute time in s, None for no report.

        Returns:
            The function of time on this clock in s, None for None.
        """
        return None if report is None else lambda t: report(t + self.origin)

    @contextmanager
    def translate_errors(self, system: HybridSystem) -> Iterator[None]:
        """Add to errors which clock their times are of, and make their trajectories absolute.

        Args:
            system: The system in absolute time, which such a trajectory refers to.

        Raises:
            HybridctlError: The error of the block, with these additions.
        """
        try:
            yield
        except HybridctlError as error:
            if " t = " in str(error):
                text = f"{error} (times count from the start of the run, {self.origin:.9g} s)"
                error.args = (text, *error.args[1:])
            if isinstance(error, UnfinishedRunError) and error.trajectory is not None:
                error.trajectory = self.make_absolute_run(error.trajectory, system)
            raise

    def make_absolute_run(self, run: HybridTrajectory, system: HybridSystem) -> HybridTrajectory:
        """Return a trajectory on this clock in absolute times.

        Args:
            run: Trajectory of the system on this clock.
            system: The system in absolute time, which the result refers to.
        """
        arcs = tuple(self.make_absolute_arc(arc) for arc in run.arcs)
        return HybridTrajectory(
            arcs, tuple(map(self.make_absolute_event, run.events)), system, system
        )

    def make_absolute_event(self, event: Event) -> Event:
        """Return an event in absolute time.

        Args:
            event: Event on this clock.

        Returns:
            The event with its time, and the time at which events accumulate, in absolute time, s.
            It is the same object for each call with the same event.
        """
        # Policies are given all past events at each change: shifting them anew would cost n^2.
        known = self._shifted.get(id(event))
        if known is None:
            end = None if event.accumulation is None else event.accumulation + self.origin
            shifted = replace(event, time=event.time + self.origin, accumulation=end)
            known = self._shifted[id(event)] = event, shifted
        return known[1]

    def make_absolute_arc(self, arc: Arc) -> Arc:
        """Return an arc in absolute times, with the series of its steps.

        Steps that begin and end at the same absolute time are left out: the flow within them is
        missing from the arc, but not from its events. An arc of such steps only has no duration,
        and is one constant step with the state at its end.

        Args:
            arc: Arc on this clock.
        """
        start, end = arc.start + self.origin, arc.end + self.origin
        breaks = arc.breaks + self.origin
        lengths = arc.breaks + arc.lengths + self.origin - breaks
        kept = lengths > 0.0
        if not (start < end and kept.any()):
            states, inputs = np.zeros((1, 8, arc.states.shape[2])), np.zeros_like(arc.inputs[:1])
            states[0, 0], inputs[0, 0] = arc(arc.end), arc.left_limit()[1]
            at = np.array([start]), np.ones(1)
            return Arc(arc.index, arc.mode, arc.space, start, start, *at, states, inputs)
        # A law that begins with a step left out begins with the next step that is kept; after the
        # last of these there is none.
        places = np.flatnonzero(kept)
        until_last = arc.jumps[: places[-1] + 1]
        jumps = np.logical_or.reduceat(until_last, np.append(0, places[:-1] + 1))
        series = arc.states[kept], arc.inputs[kept], jumps
        at = breaks[kept], lengths[kept]
        return Arc(arc.index, arc.mode, arc.space, start, end, *at, *series)


@dataclass(frozen=True, eq=False)
class ClockChange(Change):
    """A mode or a reset on a clock whose zero is `origin`, s."""

    origin: float

    def to_inner(self, t: float, x: Array, u: Array) -> tuple[float, Array, Array]:
        """Return the arguments with the absolute time.

        Args:
            t: Time on the clock, s.
            x: State (nx,).
            u: Input (nu,).
        """
        return t + self.origin, x, u


class ClockMode(MappedMode):
    """A mode on a clock."""

    change: ClockChange

    @property
    def compiled_steps(self) -> CompiledSteps | None:
        """The compiled steps of the mode at absolute times, None where it has none."""
        steps = self.inner.compiled_steps
        return None if steps is None else ClockSteps(steps, self.change.origin)


ClockChange.mode_class = ClockMode


class ClockSteps(CompiledSteps):
    """The compiled steps of a mode on a clock, without derivatives: only simulations have one.

    Args:
        inner: The steps in absolute time.
        origin: Zero of the clock in absolute time, s.
    """

    def __init__(self, inner: CompiledSteps, origin: float) -> None:
        self.inner, self.origin = inner, origin
        self.retakes_steps = inner.retakes_steps

    def step(self, ahead: StepRequest, law: InputLaw) -> CompiledStep | None:
        """Return the step from the absolute time.

        Args:
            ahead: The step on the clock.
            law: The input law on the clock. A linear feedback is passed on in absolute time.
        """
        own = law.law if isinstance(law, ClockFeedback) else law
        return self.inner.step(ahead._replace(t=ahead.t + self.origin), own)


class ClockSystem(MappedSystem):
    """A system on a clock whose zero is `origin`, s."""

    def __init__(self, inner: HybridSystem, origin: float) -> None:
        change = ClockChange(origin)
        super().__init__(inner, lambda key: change)


@dataclass(frozen=True, eq=False)
class ClockPolicy:
    """A policy of absolute times on a clock.

    Attributes:
        policy: The policy in absolute time.
        clock: The clock.
    """

    policy: Policy
    clock: OwnClock

    def law(self, history: History) -> InputLaw:
        """Return the input law of an arc, as a function of time on the clock.

        Args:
            history: History at the start of the arc, in times on the clock.

        Returns:
            A law of the kind that the policy returns: runs treat held inputs, linear feedback and
            laws with derivatives differently, and have to do so at any time.
        """
        law, origin = self.policy.law(self._make_absolute(history)), self.clock.origin
        if isinstance(law, HeldInput) or not callable(law):
            return law
        if isinstance(law, DifferentiableLaw):
            parts = (law.function, law.jacobian, law.rate)
            return DifferentiableLaw(*(_shift_law(part, origin) for part in parts))
        return _shift_law(law, origin)

    def next_change(self, history: History) -> float:
        """Return the time at which the policy has its next change.

        Args:
            history: History of the run in times on the clock.

        Returns:
            Time on the clock in s, infinite for no change.
        """
        return ask_next_change(self.policy, self._make_absolute(history)) - self.clock.origin

    @property
    def sees_samples(self) -> bool:
        """Whether the policy needs its past changes as events."""
        return sees_samples(self.policy)

    @property
    def keeps_law(self) -> bool:
        """Whether the policy goes through events with the law it has."""
        return keeps_law(self.policy)

    def _make_absolute(self, history: History) -> History:
        events = tuple(map(self.clock.make_absolute_event, history.events))
        return History(history.mode, history.time + self.clock.origin, history.state, events)


def _shift_law(law: InputLaw, origin: float) -> InputLaw:
    """Return a function of absolute time as one of time on a clock whose zero is `origin`, s."""
    if isinstance(law, LinearFeedback):
        return ClockFeedback(law, origin)
    return lambda t, x: law(t + origin, x)


class ClockFeedback(LinearFeedback):
    """A linear feedback of absolute times on a clock.

    Args:
        law: The feedback in absolute time.
        origin: Absolute time at which the clock is zero, s.
    """

    def __init__(self, law: LinearFeedback, origin: float) -> None:
        self.law, self.limits, self._origin = law, law.limits, origin

    def __call__(self, t: float, x: Array) -> Array:
        """Return the input (nu,)."""
        return self.law(t + self._origin, x)

    def find_offsets_and_gains(self, times: Array) -> tuple[Array, Array]:
        """Return the offsets (k, nu) and gains (k, nu, nx) at times (k,) on the clock."""
        return self.law.find_offsets_and_gains(times + self._origin)
