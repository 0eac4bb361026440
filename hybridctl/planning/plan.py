"""Plan found by an optimisation, as a hybrid trajectory, and simulations that follow it.

A plan is followed open loop, by its inputs alone (`Feedforwards`), or under an LQR along it
(`PlanTracking`). It closes if the simulation has its events and its states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial.chebyshev import chebder, chebval
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.control.gains import GainCurve
from hybridctl.control.reference import extend_arcs
from hybridctl.control.tracking_law import TrackingLaw, parse_limits
from hybridctl.hybrid.arc import Arc, make_arc_from_steps
from hybridctl.hybrid.jump import is_same_state
from hybridctl.hybrid.laws import DifferentiableLaw, InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.model import ModeModel
from hybridctl.hybrid.policy import History, Policy
from hybridctl.hybrid.series import FRACTIONS
from hybridctl.hybrid.simulate import computed_starts, simulate
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.tableau import radau
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.system import ContactSystem
from hybridctl.planning.collocation import compute_point_places
from hybridctl.planning.phase_functions import build_jump
from hybridctl.planning.task import Task
from hybridctl.planning.transcription import Transcription
from hybridctl.sensitivity.collocation import LinearStep
from hybridctl.sensitivity.propagation import linearize_field

_TIMING_TOLERANCE = 0.05
"""Largest difference of an event from its planned time, relative to the duration. A choice."""
_ARC_EXTENSION = 0.01
"""Time by which tracked arcs go on past their events, relative to the duration. A choice."""
_SIMULTANEITY = 1e-3
"""Largest time between events of a simulation that are one event in the plan, s. A choice."""
TIME_ROUNDING = 1e-9
"""Time before a planned time within which it has come, s: rounding. It is far above the rounding of
sums of times (1e-15 s), and far below the samples of controllers (1e-3 s)."""
_GAINS_PER_INTERVAL = 4
"""Gains of `PlanTracking` in each interval of its arcs. A choice."""
_STATE_SCALE = 0.1
"""Perturbation of a coordinate, rad or m, that costs as much as the largest planned input. The
perturbation of a velocity, rad/s or m/s, is ten times as large. A choice."""


@dataclass(frozen=True, eq=False)
class InputCurve:
    """Polynomial input in time on [start, start + length], which goes on beyond.

    Attributes:
        start: Start of the interval, s.
        length: Its length, s.
        coefficients: Coefficients (p + 1, nu) in Chebyshev's basis on the interval.
    """

    start: float
    length: float
    coefficients: Array

    def __call__(self, t: float | Array) -> Array:
        """Return the input (nu,) at time t in s, or (nu, n) at times (n,): columns, not rows."""
        return np.asarray(chebval(self._scale_time(t), self.coefficients))

    @property
    def end(self) -> float:
        """End of the interval, s."""
        return self.start + self.length

    def evaluate_fractions(self, fractions: Array) -> Array:
        """Return the inputs (n, nu) at fractions (n,) of the interval, also outside [0, 1]."""
        return np.asarray(chebval(2.0 * fractions - 1.0, self.coefficients).T)

    def rate(self, t: float) -> Array:
        """Return the time derivative (nu,) at time t, in the unit of the input per s."""
        return np.asarray(2.0 / self.length * chebval(self._scale_time(t), self._slopes))

    def _scale_time(self, t: float | Array) -> float | Array:
        """Return the place in [-1, 1], the domain of Chebyshev's polynomials."""
        return 2.0 * (t - self.start) / self.length - 1.0

    @cached_property
    def _slopes(self) -> Array:
        return np.asarray(chebder(self.coefficients))


@dataclass(frozen=True)
class PhaseSequence:
    """Modes of the phases of a motion in their order, and how each ends.

    Attributes:
        modes: Mode keys (n).
        ends: Times (n) at which phases end by the clock, s; infinite for a phase that ends with
            guards, and for the last one. Empty where none ends by the clock.
    """

    modes: tuple[ModeKey, ...]
    ends: tuple[float, ...] = ()

    @staticmethod
    def from_arcs(arcs: Sequence[Arc], events: Sequence[Event]) -> PhaseSequence:
        """Return the sequence of a motion: it changes by the clock at events without guards.

        Args:
            arcs: Arcs of the motion.
            events: Events between them.
        """
        ends = [math.inf if event.guards else event.time for event in events]
        return PhaseSequence(tuple(arc.mode for arc in arcs), (*ends, math.inf))

    def find_phase(self, time: float, events: Iterable[Event]) -> int:
        """Return the index of the phase that a motion has reached.

        A phase that ends with guards is over when an event leads to the mode of the next one: a
        foot that slips for a moment as its force vanishes is no phase. One that ends by the clock
        is over at its time, whatever the mode is.

        Args:
            time: The time, s.
            events: Events up to then. One that leads to another mode than that of the next phase is
                passed.
        """
        k = 0
        for event in events:
            k = self._pass_clock_ends(k, event.time)
            # Without guards only the law changes, but for contacts that this makes open or slide.
            is_change = bool(event.guards) or event.mode_before != event.mode_after
            if is_change and self.get_end(k) == math.inf and k + 1 < len(self.modes):
                k += int(event.mode_after == self.modes[k + 1])
        return self._pass_clock_ends(k, time)

    def get_end(self, k: int) -> float:
        """Return the time at which phase k ends by the clock, s; infinite if it does not."""
        return self.ends[k] if self.ends else math.inf

    def _pass_clock_ends(self, k: int, time: float) -> int:
        """Return the phase at a time if no guards fire from phase k on."""
        while self.get_end(k) <= time + TIME_ROUNDING:
            k += 1
        return k


@dataclass(frozen=True, eq=False)
class Feedforwards:
    """A policy without feedback, with one input curve for each phase.

    The last curve goes on for ever.

    Attributes:
        curves: The curves.
        phases: Modes and ends of the phases. Without, the next curve comes at each event of guards.
        ndx: Dimension of perturbations of states; None where states have as many coordinates.
    """

    curves: tuple[InputCurve, ...]
    phases: PhaseSequence | None = None
    ndx: int | None = None

    def law(self, history: History) -> InputLaw:
        """Return the curve of the present phase as a law with zero gain.

        Args:
            history: Events so far; its state gives the size of the zero gain.
        """
        k = self._find_phase(history)
        curve = self.curves[min(k, len(self.curves) - 1)]
        zero = np.zeros((curve.coefficients.shape[1], self.ndx or len(history.state)))
        return DifferentiableLaw(
            lambda t, x: curve(t), lambda t, x: zero, lambda t, x: curve.rate(t)
        )

    def next_change(self, history: History) -> float:
        """Return the time at which the present phase ends by the clock, s; infinite otherwise."""
        return math.inf if self.phases is None else self.phases.get_end(self._find_phase(history))

    def _find_phase(self, history: History) -> int:
        if self.phases is not None:
            return self.phases.find_phase(history.time, history.events)
        return len([event for event in history.events if event.guards])


@dataclass(frozen=True, eq=False)
class PlanTracking:
    """A policy that tracks each arc of a plan by gains of its own, around the planned inputs.

    It goes on to the next arc when an event leads to the mode of that arc, by whatever guards, or
    at its time where the arc ends by the clock.

    Attributes:
        arcs: Arcs of the plan. Each goes on past its event by its own inputs for a while. Its
            last state and input stay from there on.
        gains: Gains of each arc.
        phases: Modes and ends of the arcs.
        limits: Least and greatest inputs (2, nu), None for no limits.
    """

    arcs: tuple[Arc, ...]
    gains: tuple[GainCurve, ...]
    phases: PhaseSequence
    limits: Array | None = None

    @staticmethod
    def from_plan(
        plan: HybridTrajectory, curves: Sequence[InputCurve], torque: ArrayLike = np.inf
    ) -> PlanTracking:
        """Return the policy with the LQR of each arc by itself.

        A perturbation of 0.1 rad or m, or of 1 rad/s or m/s, costs as much as the largest planned
        input.

        Args:
            plan: The plan.
            curves: Its inputs, one curve for each arc.
            torque: Greatest absolute input, N m or N, one number or one for each motor (nu,).
        """
        system, extension = plan.known_system, _ARC_EXTENSION * (plan.end - plan.start)
        nu = plan.arcs[0].inputs.shape[2]
        largest = max(float(np.abs(arc.input(arc.times)).max(initial=0.0)) for arc in plan.arcs)
        scales = np.repeat([_STATE_SCALE, 10.0 * _STATE_SCALE], plan.arcs[0].space.ndx // 2)
        weights = np.diag(scales**-2.0), np.eye(nu) / (largest or 1.0) ** 2
        gains = tuple(_compute_lqr_gains(system.mode(arc.mode), arc, *weights) for arc in plan.arcs)
        largest_inputs = np.full(nu, torque)
        limits = parse_limits(largest_inputs, nu) if np.isfinite(largest_inputs).any() else None
        phases = PhaseSequence.from_arcs(plan.arcs, plan.events)
        arcs = extend_arcs(plan, curves, after=extension)
        return PlanTracking(arcs, gains, phases, limits)

    def law(self, history: History) -> InputLaw:
        """Return feedforward and feedback on the present arc."""
        k = self.phases.find_phase(history.time, history.events)
        return TrackingLaw(self.arcs[k], self.gains[k], self.limits).differentiable()

    def next_change(self, history: History) -> float:
        """Return the time at which the present arc ends by the clock, s; infinite otherwise."""
        return self.phases.get_end(self.phases.find_phase(history.time, history.events))


def _compute_lqr_gains(mode: ModeModel, arc: Arc, q: Array, r: Array) -> GainCurve:
    """Return the gains R^-1 B' P of the Riccati equation, backwards along an arc.

    Coefficients are constant over a step. That is coarser than `lqr.riccati`, which follows gains
    to 1e-8: tracking a plan does not need that.

    Args:
        mode: Model of the mode.
        arc: The arc.
        q: Weight (ndx, ndx) of states, and of the state at the end.
        r: Weight (nu, nu) of inputs.
    """
    times = np.unique(np.linspace(arc.breaks, arc.breaks + arc.lengths, _GAINS_PER_INTERVAL + 1))
    linear = [linearize_field(mode, t, *arc.state_and_input(t)) for t in times[:-1].tolist()]
    state, b = np.array([c.state for c in linear]), np.array([c.input for c in linear])
    to_input = np.linalg.solve(r, np.swapaxes(b, 1, 2))
    steps = LinearStep(state[:, None], np.diff(times), radau(1))
    back = steps.propagation((b @ to_input)[:, None], np.broadcast_to(q, state.shape)[:, None])
    value, gains = q, []
    for step, k in zip(reversed([*back]), reversed(to_input), strict=True):
        value = step.value(value)
        gains.append(k @ value)
    return GainCurve(times[:-1], np.array(gains[::-1]))


@dataclass(frozen=True, eq=False)
class Closing:
    """Result of a simulation that is to follow a plan.

    Attributes:
        run: The simulation, None if it ended in an error.
        mismatch: Largest entry by which its states before each event and at the end differ from the
            planned ones, relative to 1 + |x|. Infinite if it has other events.
        problem: Why it does not close; empty if it does.
    """

    run: HybridTrajectory | None
    mismatch: float
    problem: str

    @property
    def closes(self) -> bool:
        """Whether the run has the planned events, with states within the tolerance."""
        return not self.problem

    def require_run(self) -> HybridTrajectory:
        """Return the simulation.

        Raises:
            SimulationError: It does not close; the message has the reason.
        """
        if self.run is None or self.problem:
            raise SimulationError(self.problem)
        return self.run


@dataclass(frozen=True, eq=False)
class MotionPlan:
    """A plan as a trajectory of the system.

    Attributes:
        task: The task.
        system: System of the task. Where several outcomes of an impact or several modes obey the
            contact law, it takes the planned one.
        motion: The plan. Its states are the polynomials of collocation.
        curves: Inputs of each phase.
        planned: States (k, nx) before each event, and at the end.
    """

    task: Task
    system: ContactSystem
    motion: HybridTrajectory
    curves: tuple[InputCurve, ...]
    planned: Array

    def build_feedforward(self) -> Feedforwards:
        """Return the policy of the planned inputs alone."""
        phases = PhaseSequence.from_arcs(self.motion.arcs, self.motion.events)
        return Feedforwards(self.curves, phases, self.system.space.ndx)

    def build_tracking(self) -> PlanTracking:
        """Return the policy that tracks the plan, inside the input limits of the task."""
        return PlanTracking.from_plan(self.motion, self.curves, self.task.largest_inputs)

    def simulate_closing(
        self, make_policy: Callable[[], Policy], tolerance: float, options: dict[str, float]
    ) -> Closing:
        """Simulate the plan under a policy.

        Args:
            make_policy: Function that returns the policy. Its errors count as failed simulations.
            tolerance: Largest mismatch, relative to 1 + |x|.
            options: Keywords of `simulate`.

        Returns:
            How well the simulation closes.
        """
        monitor = _EventMonitor(self.task, self.curves)
        try:
            with computed_starts():  # limits of inputs hold at points of collocation, not between
                run = self._simulate(make_policy(), monitor, options)
        except (SimulationError, ValueError) as error:
            return Closing(None, np.inf, f"the simulation fails: {error}")
        if deviation := monitor.describe_deviation():
            return Closing(run, np.inf, f"{deviation}; wider margins or more intervals help")
        matched = iter(monitor.matched_events)
        reached = [
            next(matched).state_before if phase.ends else run(min(curve.end, run.end))
            for phase, curve in zip(self.task.phases, self.curves, strict=True)
        ]
        mismatch = float((np.abs(reached - self.planned) / (1.0 + np.abs(self.planned))).max())
        if mismatch <= tolerance:
            return Closing(run, mismatch, "")
        problem = (
            f"simulated states differ from planned ones by {mismatch:.3g}, more than tolerance = "
            f"{tolerance:.3g}: more intervals or points of collocation are needed"
        )
        return Closing(run, mismatch, problem)

    def _simulate(
        self, policy: Policy, monitor: _EventMonitor, options: dict[str, float]
    ) -> HybridTrajectory:
        """Return the run up to the last event or the end, or to where it leaves the plan."""
        return simulate(
            self.system,
            self.task.phases[0].mode,
            self.motion(0.0),
            (0.0, monitor.latest_end),
            policy,
            terminal=monitor.process_event,
            on_zeno="raise",
            on_jam="raise",
            **options,  # type: ignore[arg-type]
        )


class _EventMonitor:
    """Comparison of the events of a run with those of a plan, as they come.

    What comes together in the plan may come one by one at the accuracy of a simulation, and a foot
    that sticks may slip as its force vanishes. So further events are tolerated that come up to
    `_SIMULTANEITY` before or after a planned one, and those at any time that change nothing.

    Life cycle: `process_event` is called with each event in order of time; it returns True when the
    run has to stop. Then `describe_deviation` compares the whole run.

    Args:
        task: The task.
        curves: Planned inputs, whose ends are the planned times of the events.

    Attributes:
        matched_events: For each planned event that has come, the first of the events that led to
            the planned mode.
        latest_end: Time by which the run has to end, s.
    """

    def __init__(self, task: Task, curves: Sequence[InputCurve]) -> None:
        self._task, times = task, [curve.end for curve in curves]
        self._planned = [(k, t) for k, t in enumerate(times) if task.phases[k].ends]
        self._time_tolerance = _TIMING_TOLERANCE * times[-1]
        self._ends_with_event = bool(task.phases[-1].ends)
        self.latest_end = times[-1]
        if self._ends_with_event:
            self.latest_end += self._time_tolerance
        self.matched_events = list[Event]()
        self._recent = list[Event]()  # events since the last match
        self._last_match = -np.inf  # its time, s
        self._wrong: Event | None = None

    @property
    def _has_all(self) -> bool:
        return len(self.matched_events) == len(self._planned)

    def process_event(self, event: Event) -> bool:
        """Match an event with the plan, and update all attributes.

        Args:
            event: The next event of the run.

        Returns:
            Whether the run has to stop: it has left the plan, or this was the last event of a plan
            that ends with an event.
        """
        follows_match = not self._recent and event.time - self._last_match <= _SIMULTANEITY
        if not event.guards or follows_match or self._is_idle(event):
            return False
        self._recent.append(event)
        first = self._recent[0]
        if self._has_all or event.time - first.time > _SIMULTANEITY:
            self._wrong = first
        elif self._is_due(event):
            if abs(event.time - self._planned[len(self.matched_events)][1]) > self._time_tolerance:
                self._wrong = event
            else:
                self.matched_events.append(first)
                self._recent, self._last_match = [], event.time
        return self._wrong is not None or (self._ends_with_event and self._has_all)

    def _is_idle(self, event: Event) -> bool:
        """Return whether the same mode goes on after an event, in the same state.

        Where corners of a sole share forces anew, their guards may fire, and nothing changes.
        """
        mode = event.mode_before
        return event.mode_after == mode and is_same_state(
            self._task.system, mode, event.state_before, event.state_after
        )

    def _is_due(self, event: Event) -> bool:
        """Return whether an event, with the recent ones, is the next planned event."""
        k, _ = self._planned[len(self.matched_events)]
        after = self._task.find_mode_after(k)
        if after is not None:
            return event.mode_after == after
        # The motion ends here, in whatever mode: its contacts have to close.
        fired = {name for recent in self._recent for name in recent.guards}
        closing = {name for name in self._task.phases[k].ends if name.endswith(" closes")}
        return closing <= fired

    def describe_deviation(self) -> str:
        """Return how the events of the run differ from the plan, empty if they do not."""
        wrong = self._wrong or next(iter(self._recent), None)
        if wrong is None and self._has_all:
            return ""
        due = "no event is planned any more"
        if not self._has_all:
            k, time = self._planned[len(self.matched_events)]
            due = f"phase {k} is to end with {self._task.phases[k].ends} at {time:.4g} s"
        if wrong is None:
            return f"the simulation has no such event where {due}"
        return (
            f"the simulation leaves the plan at {wrong.time:.4g} s, where {wrong.guards} lead to "
            f"{wrong.mode_after}, while {due}"
        )


def build_plan(programme: Transcription, values: Array) -> MotionPlan:
    """Return the plan that the variables of a programme represent.

    Args:
        programme: The programme.
        values: Its variables (n,).
    """
    task = programme.task
    known = (
        find_mode(k)
        for k in range(len(task.phases))
        for find_mode in (task.find_mode_after, task.find_impact_modes)
    )
    modes = frozenset(contact_modes(mode) for mode in known if mode is not None)
    system = ContactSystem(task.system.dynamics.expect_modes(modes))
    nodes, curves = _unpack_variables(programme, values)
    arcs = [
        _build_arc(system, task, k, *each) for k, each in enumerate(zip(nodes, curves, strict=True))
    ]
    before = np.array([states[-1, -1] for states in nodes])
    events = [_build_event(task, k, arcs, curves) for k in range(len(arcs) - 1)]
    motion = HybridTrajectory(tuple(arcs), tuple(events), system)
    return MotionPlan(task, system, motion, curves, before)


def _unpack_variables(
    programme: Transcription, values: Array
) -> tuple[list[Array], tuple[InputCurve, ...]]:
    """Return the states and the inputs of each phase.

    Args:
        programme: The programme.
        values: Its variables (n,).

    Returns:
        States (N, d + 2, nx) at the nodes of the N intervals: start, collocation points and end.
        The inputs as curves in time.
    """
    nodes, curves, first, time = [], [], 0, 0.0
    for phase, v in zip(programme.task.phases, programme.variables, strict=True):
        parts = []
        for part in (v.knots, v.points, v.inputs, v.duration):
            size = part.numel()
            parts.append(values[first : first + size].reshape(part.shape[1], part.shape[0]))
            first += size
        knots, length = parts[0], float(parts[3][0, 0])
        points = parts[1].reshape(phase.intervals, phase.points, -1)
        nodes.append(np.concatenate([knots[:-1, None], points, knots[1:, None]], axis=1))
        curves.append(InputCurve(time, length, parts[2]))
        time += length
    return nodes, tuple(curves)


def _build_arc(system: ContactSystem, task: Task, k: int, nodes: Array, curve: InputCurve) -> Arc:
    """Return an arc: on each interval the polynomial through its start and its points.

    Args:
        system: The system.
        task: The task.
        k: Index of the phase.
        nodes: States (N, d + 2, nx) at the nodes.
        curve: Inputs of the phase.
    """
    phase, mode = task.phases[k], system.mode(task.phases[k].mode)
    roots = np.append(0.0, compute_point_places(phase))
    to_samples = np.vander(FRACTIONS, len(roots)) @ np.linalg.inv(np.vander(roots, len(roots)))
    breaks = curve.start + curve.length * np.linspace(0.0, 1.0, phase.intervals + 1)
    steps = []
    for start, end, states in zip(breaks[:-1], breaks[1:], nodes, strict=True):
        inputs = np.array([curve(t) for t in start + (end - start) * FRACTIONS])
        steps.append(Step(start, end, to_samples @ states[:-1], inputs))
    end = float(breaks[-1])
    return make_arc_from_steps(k, mode, steps, curve.start, nodes[0, 0], curve(curve.start), end)


def _build_event(task: Task, k: int, arcs: Sequence[Arc], curves: Sequence[InputCurve]) -> Event:
    """Return the event between phases k and k + 1.

    Args:
        task: The task.
        k: Index of the phase that the event ends.
        arcs: Arcs of all phases.
        curves: Inputs of all phases.
    """
    time, before, after = arcs[k].end, arcs[k], arcs[k + 1]
    state = before(time)
    jump = build_jump(task, k)
    impulses = np.zeros(len(task.system.contacts))
    if jump is not None:
        impulses = np.asarray(jump(state)[1]).ravel()[: len(impulses)]  # normal ones come first
    return Event(
        k,
        time,
        before.mode,
        after.mode,
        task.phases[k].ends,
        state,
        after(time),
        curves[k](time),
        curves[k + 1](time),
        curves[k].rate(time),
        impulses,
    )
