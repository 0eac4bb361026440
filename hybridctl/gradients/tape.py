r"""A recorded run and its gradient: one adjoint sweep from the last arc to the first.

`Tape.vjp` returns the vector-Jacobian product of what the run returns: for cotangents
:math:`\bar x_i` of its states at some times and :math:`\bar t_j` of its event times, the gradient
of :math:`\sum_i \bar x_i \cdot x(t_i) + \sum_j \bar t_j t_j` by the initial state, by the inputs
that were held, and by parameters. It is exact: no difference quotient is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import Array, Indices, check_array
from hybridctl.base.errors import HybridctlError, InputError
from hybridctl.base.spaces import Space, VectorSpace, compute_tangent_map, invert_tangent_maps
from hybridctl.gradients.arc_adjoint import ArcAdjoint, linearize_arc_adjoints
from hybridctl.gradients.event_adjoint import (
    EventAdjoint,
    Kink,
    linearize_event,
    linearize_events_together,
    linearize_single_event,
)
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.parameter_models import ParameterModel
from hybridctl.sensitivity.parameters import augment_with_parameters, check_start
from hybridctl.sensitivity.simultaneous import Simultaneous

FeedbackPullback = Callable[[int, Array], Array]
"""Returns the cotangent (nx,) of sample k's state, given k and the cotangent (nu,) of its input."""


def find_intervals(borders: Array | None, times: Array) -> Indices:
    """Return the numbers (k,) of the intervals that times (k,) are in, the nearest for others.

    Args:
        borders: Times (N + 1,) between the intervals, ascending; an interval has its start.
        times: The times.
    """
    assert borders is not None
    found = np.searchsorted(borders, times, "right") - 1
    return np.clip(found, 0, len(borders) - 2)


class FeedbackSample(NamedTuple):
    """A sample of a feedback that acted in a run.

    Attributes:
        hold: Number k of the interval that its input is held on.
        arc: Number of the arc that it is taken on.
        time: Time, s.
        state: State (nx,).
    """

    hold: int
    arc: int
    time: float
    state: Array


@dataclass(frozen=True, eq=False)
class Gradient:
    """The gradient of a scalar of a run.

    Attributes:
        state: By the initial state, in the tangent space (ndx,): along `space.integrate(x0, dx)`.
            In a vector space these are the coordinates.
        coordinates: By the initial state in its coordinates (nx,), orthogonal to the directions
            that lead off the manifold. In a vector space it equals `state`.
        inputs: By the held inputs (N, nu). None if the run had none.
        parameters: By the parameters (np,); empty without any.
    """

    state: Array
    coordinates: Array
    inputs: Array | None
    parameters: Array


@dataclass(frozen=True, eq=False)
class Tape:
    """A run that was recorded, with what it returns.

    Attributes:
        system: The system that was simulated.
        trajectory: The run.
        times: Times (n,) at which states are returned, s.
        event_count: Number of event times that are returned.
        hold_times: Times (N + 1,) between which inputs are held, s. None without inputs.
        inputs: The inputs (N, nu). None without inputs.
        parameters: Derivatives by the parameters. None without any.
        kink: What is taken where there is no gradient.
        simultaneous: See `jump_derivative`.
        rtol: Relative tolerance of the adjoint on each interval.
        samples: Samples of a feedback, in order of time; empty for inputs that were given.
    """

    system: HybridSystem
    trajectory: HybridTrajectory
    times: Array
    event_count: int
    hold_times: Array | None
    inputs: Array | None
    parameters: ParameterModel | None
    kink: Kink
    simultaneous: Simultaneous
    rtol: float
    samples: tuple[FeedbackSample, ...] = ()
    _arc_maps: dict[int, ArcAdjoint] = field(default_factory=dict, init=False, repr=False)
    _event_maps: dict[int, EventAdjoint] = field(default_factory=dict, init=False, repr=False)
    _tried_events: set[int] = field(default_factory=set, init=False, repr=False)
    _time_kinks: dict[int, str] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def states(self) -> Array:
        """The states (n, nx) at `times`; at an event time, the state after it."""
        return self.trajectory(self.times)

    @cached_property
    def event_times(self) -> Array:
        """Times (event_count,) of the first events of guards, s; of one that is missing, the end.

        `event_mask` tells which happened.
        """
        found = [event.time for event in self.trajectory.guard_events[: self.event_count]]
        missing = self.event_count - len(found)
        return np.array([*found, *[self.trajectory.end] * missing])

    @cached_property
    def event_mask(self) -> NDArray[np.bool_]:
        """Which of the `event_times` are those of an event, (event_count,) of truth values."""
        return np.arange(self.event_count) < len(self.trajectory.guard_events)

    @property
    def choices(self) -> tuple[str, ...]:
        """What was taken in place of a gradient at events that have none; see `Kink`.

        These are the events that a call of `vjp` has passed so far.
        """
        states = {k: event.choice for k, event in self._event_maps.items()}
        times = {k: f"{self.kink} where {why}" for k, why in self._time_kinks.items()}
        return tuple(
            f"event {k} at t = {self.trajectory.events[k].time:.9g} s: {choice}"
            for k in sorted(states)
            for choice in (states[k], times.get(k))
            if choice is not None
        )

    def vjp(
        self,
        states: ArrayLike | None = None,
        event_times: ArrayLike | None = None,
        *,
        pull_feedback: FeedbackPullback | None = None,
    ) -> Gradient:
        """Return the gradient of a scalar of the run, given its cotangents.

        The maps of arcs and events are made at the first call and kept: further calls cost less.
        Events after the last time that the scalar depends on are not differentiated.

        Args:
            states: Derivatives (n, nx) of the scalar by `states`, in coordinates. None for zero.
            event_times: Derivatives (event_count,) by `event_times`, 1/s. Those of events that did
                not happen are ignored. None for zero.
            pull_feedback: Called at each sample of a feedback, in reversed order, with its number
                and the cotangent of its input; returns that of its state. None for inputs that do
                not depend on the state.

        Returns:
            The gradient.

        Raises:
            InputError: A cotangent has the wrong shape; an event has no gradient, see `Kink`; or
                parameters change the constraints that the initial state obeys.
            AmbiguousEventError: Orders of guards lead apart.
            GrazingError: A guard is met without a significant rate.
            SystemDefinitionError: A field, guard or reset has no Jacobian.
            IntegrationError: The adjoint changes faster than intervals resolve.
        """
        if self.parameters is not None:
            check_start(self.system, self.trajectory, self.parameters)
        by_states = self._check_state_cotangents(states)
        by_events = np.zeros(self.event_count)
        if event_times is not None:
            given = check_array("event_times", event_times, (self.event_count,))
            by_events = np.where(self.event_mask, given, 0.0)
        sweep = _Sweep(self, by_states, by_events, pull_feedback)
        return sweep.run()

    def _check_state_cotangents(self, states: ArrayLike | None) -> Array:
        """Return the cotangents (n, nx) of the states, checked."""
        shape = self.states.shape
        return np.zeros(shape) if states is None else check_array("states", states, shape)

    @property
    def parameter_count(self) -> int:
        """Number np of parameters."""
        return 0 if self.parameters is None else len(self.parameters.names)

    def find_arc(self, t: float) -> int:
        """Return the number of the arc that the state at a time is taken from."""
        ends = [arc.end for arc in self.trajectory.arcs[:-1]]
        return int(np.searchsorted(ends, t, "right"))

    def find_holds(self, times: Array) -> Indices:
        """Return the numbers (k,) of the intervals of held inputs that times (k,) are in."""
        return find_intervals(self.hold_times, times)

    def arc_map(self, k: int) -> ArcAdjoint:
        """Return the costate over the intervals of arc k, made once, with those of arcs before."""
        if k not in self._arc_maps:
            missing = [i for i in range(k + 1) if i not in self._arc_maps]
            try:
                self._make_arc_maps(missing)
            except HybridctlError:
                # It may be of an arc on which nothing depends: each is made when it is needed.
                self._make_arc_maps([k])
        return self._arc_maps[k]

    def _make_arc_maps(self, numbers: Sequence[int]) -> None:
        """Make and keep the costates over the intervals of some arcs."""
        _make_arc_maps([(self, k) for k in numbers])

    def find_last_arc(self, states: ArrayLike | None) -> int:
        """Return the number of the last arc that a scalar depends on, by its cotangents.

        Args:
            states: Derivatives (n, nx) of the scalar by `states`. None for zero.

        Returns:
            The number; -1 if it depends on no state.
        """
        if states is None:
            return -1
        depends = np.asarray(states).any(axis=1)
        return max((self.find_arc(t) for t in self.times[depends].tolist()), default=-1)

    def event_map(self, k: int) -> EventAdjoint:
        """Return the jump of event k, in (x, p) where there are parameters, made once.

        It raises the errors of `linearize_event`, with the event that they are about.
        """
        if k not in self._event_maps:
            _make_event_maps([(self, k)])
        if k not in self._event_maps:
            with _name_event(k, self.trajectory.events[k]):
                self._event_maps[k] = self._linearize_event(k)
        return self._event_maps[k]

    def _linearize_event(self, k: int) -> EventAdjoint:
        """Return the jump of event k, see `event_map`."""
        event = self._relax_accuracy(k)
        if self.parameters is not None:
            found = linearize_single_event(self.system, event, self.parameters)
            if found is not None:
                return found
        system, run = self._augmented
        known = replace(run.events[k], accuracy=event.accuracy)
        return linearize_event(system, known, self.kink, self.simultaneous)

    def check_time(self, k: int, by_time: bool, by_later_times: bool) -> None:
        """Check that times of events have a gradient at event k; if not, note what is taken.

        Args:
            k: Number of the event.
            by_time: Whether its own time counts.
            by_later_times: Whether times of later events count. Of an event without guards, which
                no run has another time or number of, it may be False in any case.

        Raises:
            InputError: They have none, and `kink` is "raise".
        """
        event = self.trajectory.events[k]
        why = self.event_map(k).describe_time_kink(by_time, by_later_times)
        if why is None:
            return
        with _name_event(k, event):
            if self.kink == "raise":
                raise InputError(f"{why}: kink='mean' takes their mean, kink='first' the first one")
        self._time_kinks[k] = why

    @cached_property
    def _augmented(self) -> tuple[HybridSystem, HybridTrajectory]:
        """The system and the run, in (x, p) where there are parameters."""
        if self.parameters is None:
            return self.system, self.trajectory
        return augment_with_parameters(self.system, self.trajectory, self.parameters)

    def _relax_accuracy(self, k: int) -> Event:
        """Return event k, which gives no warning of a slow guard where its bounces end in rest.

        Times of ever smaller bounces are known ever less, but act ever less on what follows.
        """
        event, *later = self.trajectory.events[k:]
        ends_in_rest = any(
            after.accumulation is not None and set(event.guards) <= set(after.guards)
            for after in later
        )
        return replace(event, accuracy=None) if ends_in_rest else event


def make_maps_together(tapes: Sequence[tuple[Tape, int]]) -> None:
    """Make the costates over the intervals of all arcs of some tapes, and the jumps between them.

    Where one of the arcs has no costate, none are made, and a jump may have to be made alone: each
    tape then makes its own when it needs them.

    Args:
        tapes: Tapes of one flow with the same system, which keep what is made, and the number of
            the last arc of each; -1 for none.
    """
    missing = [
        (tape, k) for tape, last in tapes for k in range(last + 1) if k not in tape._arc_maps
    ]
    if missing:
        with suppress(HybridctlError):
            _make_arc_maps(missing)
    _make_event_maps([(tape, last - 1) for tape, last in tapes])


def _make_event_maps(tapes: Sequence[tuple[Tape, int]]) -> None:
    """Make those jumps of tapes of one flow that can be linearised together; tapes keep them.

    Args:
        tapes: Tapes with the number of the last event.
    """
    numbered = [
        (tape, k)
        for tape, last in tapes
        for k in range(last + 1)
        if k not in tape._tried_events and k not in tape._event_maps
    ]
    if not numbered:
        return
    events = [tape._relax_accuracy(k) for tape, k in numbered]
    first = numbered[0][0]
    found = linearize_events_together(first.system, events, first.parameters)
    for i, (tape, k) in enumerate(numbered):
        tape._tried_events.add(k)
        if i in found:
            tape._event_maps[k] = found[i]


def _make_arc_maps(numbered: Sequence[tuple[Tape, int]]) -> None:
    """Make the costates over the intervals of arcs of tapes of one flow, which keep them.

    Args:
        numbered: Tapes with the number of an arc; not empty.
    """
    first = numbered[0][0]
    arcs = [tape.trajectory.arcs[k] for tape, k in numbered]
    holds = [] if first.hold_times is None else first.hold_times.tolist()
    found = linearize_arc_adjoints(
        [first.system.mode(arc.mode) for arc in arcs],
        arcs,
        [*first.times.tolist(), *holds],
        first.parameters,
        first.inputs is not None,
        first.rtol,
    )
    for (tape, k), made in zip(numbered, found, strict=True):
        tape._arc_maps[k] = made


class _Sweep:
    """One pass of the costate from the end of a run to its start.

    Life cycle: made for one call of `Tape.vjp`; `run` is called once, and changes the attributes.

    Args:
        tape: The run.
        by_states: Cotangents (n, nx) of the states.
        by_events: Cotangents (event_count,) of the event times.
        pull_feedback: See `Tape.vjp`.

    Attributes:
        costate: The costate (ndx,) at the time that the sweep has reached.
        inputs: Gradient (N, nu) by the inputs so far.
        parameters: Gradient (np,) by the parameters so far.
    """

    def __init__(
        self,
        tape: Tape,
        by_states: Array,
        by_events: Array,
        pull_feedback: FeedbackPullback | None,
    ) -> None:
        self._tape, self._by_states, self._by_events = tape, by_states, by_events
        self._pull_feedback = pull_feedback
        self.costate = np.zeros(tape.trajectory.arcs[-1].space.ndx)
        self.inputs: Array | None = None if tape.inputs is None else np.zeros(tape.inputs.shape)
        self.parameters = np.zeros(tape.parameter_count)
        self._states_by_arc: dict[int, list[int]] = {}
        for i, t in enumerate(tape.times.tolist()):
            self._states_by_arc.setdefault(tape.find_arc(t), []).append(i)
        self._samples_by_arc: dict[int, list[FeedbackSample]] = {}
        for sample in tape.samples:
            self._samples_by_arc.setdefault(sample.arc, []).append(sample)
        self._pending_cotangents: dict[float, Array] = {}  # of one arc, by time
        self._pending_samples: dict[float, FeedbackSample] = {}
        guards = [k for k, event in enumerate(tape.trajectory.events) if event.guards]
        self._number_of_event = {k: j for j, k in enumerate(guards)}

    def run(self) -> Gradient:
        """Return the gradient, after a pass over all arcs and events in reversed order."""
        tape = self._tape
        for k in reversed(range(len(tape.trajectory.arcs))):
            self._pass_arc(k)
            if k:
                self._pass_event(k - 1)
        first = tape.trajectory.arcs[0]
        coordinates = _lift(first.space, first(first.start), self.costate)
        return Gradient(self.costate, coordinates, self.inputs, self.parameters)

    def _pass_arc(self, k: int) -> None:
        """Take the costate from the end of arc k to its start, with what is added on the way."""
        tape, arc = self._tape, self._tape.trajectory.arcs[k]
        self._pending_cotangents = {}
        for i in self._states_by_arc.get(k, ()):
            t = float(tape.times[i])
            pulled = _pull(arc.space, arc(t), self._by_states[i])
            self._pending_cotangents[t] = self._pending_cotangents.get(t, 0.0) + pulled
        self._pending_samples = {s.time: s for s in self._samples_by_arc.get(k, ())}
        self._add_cotangents(arc.space, arc.end)
        if not (self.costate.any() or self._pending_cotangents or self._pending_samples):
            return  # nothing later depends on this arc
        maps = tape.arc_map(k)
        starts, holds = maps.starts.tolist(), np.zeros(0, dtype=np.intp)
        if self.inputs is not None:
            holds = tape.find_holds(0.5 * (maps.starts + maps.ends))
        pending = self._pending_cotangents.keys() | self._pending_samples.keys()
        # Intervals are passed together from one time at which something is added to the next.
        firsts = [i for i, t in enumerate(starts) if i == 0 or t in pending]
        last = len(starts) - 1
        for first in reversed(firsts):
            self.costate, by_input, by_parameters = maps.pass_intervals(first, last, self.costate)
            if self.inputs is not None:
                self._add_input_gradients(holds[first : last + 1], by_input)
            self.parameters += by_parameters
            self._add_cotangents(arc.space, starts[first])
            last = first - 1

    def _add_cotangents(self, space: Space, t: float) -> None:
        """Add to the costate what depends on the state at a time: a result, or a sample."""
        if t in self._pending_cotangents:
            self.costate = self.costate + self._pending_cotangents.pop(t)
        if t in self._pending_samples and self._pull_feedback is not None:
            sample = self._pending_samples.pop(t)
            assert self.inputs is not None
            by_state = self._pull_feedback(sample.hold, self.inputs[sample.hold])
            self.costate = self.costate + _pull(space, sample.state, by_state)

    def _pass_event(self, k: int) -> None:
        """Take the costate from after event k to before it."""
        tape, arc = self._tape, self._tape.trajectory.arcs[k]
        number = self._number_of_event.get(k, tape.event_count)
        by_time = float(self._by_events[number]) if number < tape.event_count else 0.0
        if by_time == 0.0 and not self.costate.any():  # nothing later depends on this event
            self.costate = np.zeros(arc.space.ndx)
            return
        jump, count = tape.event_map(k), tape.parameter_count
        tape.check_time(k, by_time != 0.0, bool(self._by_events[number + 1 :].any()))
        after = np.append(self.costate, np.zeros(count))
        before = jump.state.T @ after + by_time * jump.time_state
        by_input = jump.input.T @ after + by_time * jump.time_input
        self.costate = before[: len(before) - count]
        self.parameters += before[len(before) - count :]
        if self.inputs is not None:
            inside = 0.5 * (float(arc.breaks[-1]) + arc.end)  # on the last step before the event
            self._add_input_gradients(tape.find_holds(np.array([inside])), by_input[None])

    def _add_input_gradients(self, holds: Indices, by_input: Array) -> None:
        """Add gradients by the inputs of a mode to those of intervals on which these are held.

        Args:
            holds: Numbers (m,) of the intervals, of which several may be the same.
            by_input: Gradients (m, nu) by the inputs that are held, and by sizes of wrenches after
                them.
        """
        assert self.inputs is not None
        np.add.at(self.inputs, holds, by_input[:, : self.inputs.shape[1]])


def _pull(space: Space, x: Array, cotangent: Array) -> Array:
    """Return a cotangent (nx,) of coordinates as one (ndx,) of the tangent space."""
    if isinstance(space, VectorSpace):
        return np.array(cotangent, dtype=np.float64)
    return np.asarray(compute_tangent_map(space, x).T @ cotangent)


def _lift(space: Space, x: Array, cotangent: Array) -> Array:
    """Return a cotangent (ndx,) of the tangent space in coordinates (nx,), the shortest one."""
    if isinstance(space, VectorSpace):
        return cotangent
    return np.asarray(invert_tangent_maps(compute_tangent_map(space, x)).T @ cotangent)


@contextmanager
def _name_event(k: int, event: Event) -> Iterator[None]:
    """Add number, time and guards of an event to the message of an error raised within.

    Raises:
        HybridctlError: The error.
    """
    try:
        yield
    except HybridctlError as error:
        what = ", ".join(event.guards)
        error.args = (f"event {k} at t = {event.time:.9g} s ({what}): {error}", *error.args[1:])
        raise
