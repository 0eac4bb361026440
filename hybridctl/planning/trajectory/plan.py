"""A plan as a hybrid trajectory, and how well it closes: open loop, and under its own feedback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial.chebyshev import chebder, chebval
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.control.gains import GainCurve
from hybridctl.control.laws import Tracking, input_limits
from hybridctl.control.reference import continued
from hybridctl.hybrid.arc import Arc, arc_from_steps
from hybridctl.hybrid.laws import DifferentiableLaw, InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.model import ModeModel
from hybridctl.hybrid.policy import History, Policy
from hybridctl.hybrid.series import FRACTIONS
from hybridctl.hybrid.simulate import computed_starts, simulate
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.mechanics.constrained.phase import contact_modes
from hybridctl.mechanics.system import ContactSystem
from hybridctl.planning.trajectory.functions import jump_of
from hybridctl.planning.trajectory.task import Task
from hybridctl.planning.trajectory.transcription import Transcription, point_places
from hybridctl.sensitivity.collocation import LinearStep, radau
from hybridctl.sensitivity.propagation import linearize_field

_LATE = 0.05  # of the duration: how far events may be from their planned times
_PAST = 0.01  # of the duration: how far arcs go on past their events
_SPLIT = 1e-3  # s: how far apart events may come that are one in a plan
_KNOTS = 4  # of a gain in each interval of collocation
_OFF = 0.1  # rad or m, and rad/s or m/s tenfold: what is worth the largest planned input


@dataclass(frozen=True, eq=False)
class InputCurve:
    """A polynomial in time on [start, start + length], and beyond: u (nu,).

    coefficients (p + 1, nu): in Chebyshev's basis on that interval.
    """

    start: float
    length: float
    coefficients: Array

    def __call__(self, t: float | Array) -> Array:
        """The input u (nu,) at time t, (nu, n) at times (n,)."""
        return np.asarray(chebval(self._place(t), self.coefficients))

    def rate(self, t: float) -> Array:
        """The derivative (nu,) at time t, 1/s."""
        return np.asarray(2.0 / self.length * chebval(self._place(t), self._slopes))

    def _place(self, t: float | Array) -> float | Array:
        return 2.0 * (t - self.start) / self.length - 1.0

    @cached_property
    def _slopes(self) -> Array:
        return np.asarray(chebder(self.coefficients))


@dataclass(frozen=True, eq=False)
class Feedforwards:
    """A policy without feedback: the curve of as many events of guards as there have been.

    modes: of the phases of the curves; with them only events count that lead to the next of these.
    """

    curves: tuple[InputCurve, ...]
    modes: tuple[ModeKey, ...] = ()

    def law(self, history: History) -> InputLaw:
        """The curve as a law; the last goes on."""
        done = sum(bool(event.guards) for event in history.events)
        if self.modes:
            done = _begun(self.modes, history.events)
        curve = self.curves[min(done, len(self.curves) - 1)]
        none = np.zeros((curve.coefficients.shape[1], len(history.state)))
        return DifferentiableLaw(
            lambda t, x: curve(t), lambda t, x: none, lambda t, x: curve.rate(t)
        )


@dataclass(frozen=True, eq=False)
class PlanTracking:
    """A policy that tracks each arc of a plan by a gain of its own, and its inputs.

    It goes on to the next arc when an event leads to the mode of that, whatever its guards. arcs:
    of the plan, each going on past its event by its own inputs for a while, and held from there on.
    limits (2, nu): of the input, or None.
    """

    arcs: tuple[Arc, ...]
    gains: tuple[GainCurve, ...]
    limits: Array | None = None

    @staticmethod
    def along(
        plan: HybridTrajectory, curves: Sequence[InputCurve], torque: ArrayLike = np.inf
    ) -> PlanTracking:
        """The LQR of each arc by itself: 0.1 rad or m off is worth the largest planned input.

        So is 1 rad/s or m/s. curves: the inputs. torque: the greatest absolute input, N m or N, one
        number or (nu,).
        """
        system, past = plan.known_system, _PAST * (plan.end - plan.start)
        nu = plan.arcs[0].inputs.shape[2]
        largest = max(float(np.abs(arc.input(arc.times)).max(initial=0.0)) for arc in plan.arcs)
        off = np.repeat([_OFF, 10.0 * _OFF], plan.arcs[0].space.ndx // 2)
        weights = np.diag(off**-2.0), np.eye(nu) / (largest or 1.0) ** 2
        gains = tuple(_gains(system.mode(arc.mode), arc, *weights) for arc in plan.arcs)
        largest_inputs = np.full(nu, torque)
        limits = input_limits(largest_inputs, nu) if np.isfinite(largest_inputs).any() else None
        arcs = continued(plan, curves, after=past)
        return PlanTracking(arcs, gains, limits)

    def law(self, history: History) -> InputLaw:
        """Feedforward and feedback on an arc."""
        k = _begun([arc.mode for arc in self.arcs], history.events)
        return Tracking(self.arcs[k], self.gains[k], self.limits).differentiable()


def _begun(modes: Sequence[ModeKey], events: Iterable[Event]) -> int:
    """The index of the mode, in a sequence that events lead through, that was entered last."""
    k = 0
    for event in events:
        k += k + 1 < len(modes) and event.mode_after == modes[k + 1]
    return k


@dataclass(frozen=True, eq=False)
class Closing:
    """How a simulation follows a plan.

    run: None where it ended in an error. mismatch: the largest entry by which its states before
    each event, and at the end, differ from the planned ones, relative to 1 + |x|; infinite where
    its events are others. problem: why it does not close, empty where it does.
    """

    run: HybridTrajectory | None
    mismatch: float
    problem: str

    @property
    def closes(self) -> bool:
        """Whether the run has the planned events, with states within the tolerance."""
        return not self.problem

    def required(self) -> HybridTrajectory:
        """The simulated run; raises `SimulationError` with the reason if it does not close."""
        if self.run is None or self.problem:
            raise SimulationError(self.problem)
        return self.run


@dataclass(frozen=True, eq=False)
class MotionPlan:
    """What a programme found, as a trajectory of the system.

    motion: its states are polynomials through points of collocation. system: that of the task, in
    which impacts and modes have their planned outcome where several obey the law. planned (k, nx):
    states before each event, and at the end.
    """

    task: Task
    system: ContactSystem
    motion: HybridTrajectory
    curves: tuple[InputCurve, ...]
    planned: Array

    def closing(
        self, making: Callable[[], Policy], tolerance: float, options: dict[str, float]
    ) -> Closing:
        """How well a simulation follows the plan under the policy that `making` makes."""
        course = _Course(self.task, self.curves)
        try:
            with computed_starts():  # limits of inputs hold at points of collocation, not between
                run = self._run(making(), course, options)
        except (SimulationError, ValueError) as error:
            return Closing(None, np.inf, f"the simulation fails: {error}")
        if lost := course.lost():
            return Closing(run, np.inf, f"{lost}; wider margins or more intervals help")
        reached = [event.state_before for event in course.found]
        reached += [run.final_state] * (len(self.planned) - len(reached))
        off = float((np.abs(reached - self.planned) / (1.0 + np.abs(self.planned))).max())
        if off <= tolerance:
            return Closing(run, off, "")
        problem = (
            f"simulated states differ from planned ones by {off:.3g}, more than tolerance = "
            f"{tolerance:.3g}: more intervals or points of collocation are needed"
        )
        return Closing(run, off, problem)

    def open_loop(self) -> Feedforwards:
        """The policy of the planned inputs alone."""
        return Feedforwards(self.curves, tuple(phase.mode for phase in self.task.phases))

    def tracking(self) -> PlanTracking:
        """The policy that tracks the plan, inside the limits of inputs of the task."""
        return PlanTracking.along(self.motion, self.curves, self.task.greatest_inputs)

    def _run(self, policy: Policy, course: _Course, options: dict[str, float]) -> HybridTrajectory:
        """The run until the last event or the end, or to where it leaves the plan."""
        return simulate(
            self.system,
            self.task.phases[0].mode,
            self.motion(0.0),
            (0.0, course.end),
            policy,
            terminal=course.take,
            on_zeno="raise",
            on_jam="raise",
            **options,  # type: ignore[arg-type]
        )


class _Course:
    """Whether the events of a run are those of a plan, as they come.

    What comes together in the plan may come one by one at a simulation's accuracy, and a foot that
    sticks may slip as its force vanishes: other events are let pass that come up to `_SPLIT` before
    or after. found: the first of the events that lead to each planned mode. end: by when they come.
    """

    def __init__(self, task: Task, curves: Sequence[InputCurve]) -> None:
        self._task, times = task, [curve.start + curve.length for curve in curves]
        self._due = [(k, t) for k, t in enumerate(times) if task.phases[k].ends]
        self._late = _LATE * times[-1]
        self._last = bool(task.phases[-1].ends)
        self.end = times[-1] + self._late * self._last
        self.found, self._before, self._done = list[Event](), list[Event](), -np.inf
        self._wrong: Event | None = None

    def take(self, event: Event) -> bool:
        """Whether the run is to stop at an event: it has left the plan, or is at its end."""
        if not event.guards or (not self._before and event.time - self._done <= _SPLIT):
            return False
        self._before.append(event)
        first, waiting = self._before[0], len(self.found) < len(self._due)
        if not waiting or event.time - first.time > _SPLIT:
            self._wrong = first
        elif self._leads_on(event):
            if abs(event.time - self._due[len(self.found)][1]) > self._late:
                self._wrong = event
            else:
                self.found.append(first)
                self._before, self._done = [], event.time
        return self._wrong is not None or (self._last and len(self.found) == len(self._due))

    def _leads_on(self, event: Event) -> bool:
        """Whether an event, with those just before it, is the one that is due."""
        k, _ = self._due[len(self.found)]
        after = self._task.mode_after(k)
        if after is not None:
            return event.mode_after == after
        fired = {name for one in self._before for name in one.guards}
        return {name for name in self._task.phases[k].ends if name.endswith(" closes")} <= fired

    def lost(self) -> str:
        """What is wrong with the events of the run, empty where they are those of the plan."""
        wrong = self._wrong or next(iter(self._before), None)
        if wrong is None and len(self.found) == len(self._due):
            return ""
        due = "no event is planned any more"
        if len(self.found) < len(self._due):
            k, time = self._due[len(self.found)]
            due = f"phase {k} is to end with {self._task.phases[k].ends} at {time:.4g} s"
        if wrong is None:
            return f"the simulation has no such event where {due}"
        return (
            f"the simulation leaves the plan at {wrong.time:.4g} s, where {wrong.guards} lead to "
            f"{wrong.mode_after}, while {due}"
        )


def _gains(mode: ModeModel, arc: Arc, q: Array, r: Array) -> GainCurve:
    """The Riccati equation back along an arc, over steps with constant coefficients.

    Coarser than `lqr.riccati`, which follows gains to 1e-8: tracking a plan does not need that.
    """
    times = np.unique(np.linspace(arc.breaks, arc.breaks + arc.lengths, _KNOTS + 1))
    found = [linearize_field(mode, t, *arc.state_and_input(t)) for t in times[:-1].tolist()]
    state, b = np.array([c.state for c in found]), np.array([c.input for c in found])
    to_input = np.linalg.solve(r, np.swapaxes(b, 1, 2))
    steps = LinearStep(state[:, None], np.diff(times), radau(1))
    back = steps.propagation((b @ to_input)[:, None], np.broadcast_to(q, state.shape)[:, None])
    value, gains = q, []
    for step, k in zip(reversed([*back]), reversed(to_input), strict=True):
        value = step.value(value)
        gains.append(k @ value)
    return GainCurve(times[:-1], np.array(gains[::-1]))


def planned(programme: Transcription, values: Array) -> MotionPlan:
    """The plan in the variables (n,) of a programme."""
    task = programme.task
    known = (f(k) for k in range(len(task.phases)) for f in (task.mode_after, task.striking))
    modes = frozenset(contact_modes(mode) for mode in known if mode is not None)
    system = ContactSystem(task.system.dynamics.expecting(modes))
    nodes, curves = _unpacked(programme, values)
    arcs = [_arc(system, task, k, *each) for k, each in enumerate(zip(nodes, curves, strict=True))]
    before = np.array([states[-1, -1] for states in nodes])
    events = [_event(task, k, arcs, curves) for k in range(len(arcs) - 1)]
    return MotionPlan(
        task, system, HybridTrajectory(tuple(arcs), tuple(events), system), curves, before
    )


def _unpacked(
    programme: Transcription, values: Array
) -> tuple[list[Array], tuple[InputCurve, ...]]:
    """States (N, d + 2, nx) at the nodes of each interval of each phase, and its inputs.

    The nodes are its start, its points of collocation, and its end.
    """
    nodes, curves, at, time = [], [], 0, 0.0
    for phase, v in zip(programme.task.phases, programme.variables, strict=True):
        parts = []
        for part in (v.knots, v.points, v.inputs, v.duration):
            parts.append(values[at : at + part.numel()].reshape(part.shape[1], part.shape[0]))
            at += part.numel()
        knots, length = parts[0], float(parts[3][0, 0])
        points = parts[1].reshape(phase.intervals, phase.points, -1)
        nodes.append(np.concatenate([knots[:-1, None], points, knots[1:, None]], axis=1))
        curves.append(InputCurve(time, length, parts[2]))
        time += length
    return nodes, tuple(curves)


def _arc(system: ContactSystem, task: Task, k: int, nodes: Array, curve: InputCurve) -> Arc:
    """An arc: in each interval the polynomial through its start and the points in it."""
    phase, mode = task.phases[k], system.mode(task.phases[k].mode)
    roots = np.append(0.0, point_places(phase))
    values = np.vander(FRACTIONS, len(roots)) @ np.linalg.inv(np.vander(roots, len(roots)))
    breaks = curve.start + curve.length * np.linspace(0.0, 1.0, phase.intervals + 1)
    steps = []
    for start, end, states in zip(breaks[:-1], breaks[1:], nodes, strict=True):
        inputs = np.array([curve(t) for t in start + (end - start) * FRACTIONS])
        steps.append(Step(start, end, values @ states[:-1], inputs))
    end = float(breaks[-1])
    return arc_from_steps(k, mode, steps, curve.start, nodes[0, 0], curve(curve.start), end)


def _event(task: Task, k: int, arcs: Sequence[Arc], curves: Sequence[InputCurve]) -> Event:
    """The event between phases k and k + 1."""
    time, before, after = arcs[k].end, arcs[k], arcs[k + 1]
    state = before(time)
    jump = jump_of(task, k)
    impulses = np.zeros(len(task.system.contacts))
    if jump is not None:
        impulses = np.asarray(jump(state)[1]).ravel()[: len(impulses)]
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
