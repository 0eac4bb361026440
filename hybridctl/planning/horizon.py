"""The horizon of a predictive controller: its settings, its plan, and the motion that it follows.

The reference is an optimal motion in phases. Where its task has a symmetry, its cycle repeats for
ever. The number of events since the start of the motion tells the phase and the cycle. States of a
later cycle are mapped by the symmetry to the first one, so that each phase has one set of
coordinates: its own. A plan is a sequence of sections in these coordinates (`HorizonPlan`).

A last phase that ends with no event goes on past its end: the state stays as it is there, under the
input that holds it best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, check_count, check_number, check_sequence, quote
from hybridctl.base.errors import InputError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.horizon_functions import LinearizedSteps, PhaseModel
from hybridctl.planning.optimisation import OptimalTrajectory
from hybridctl.planning.phase_functions import compute_least_gaps
from hybridctl.planning.plan import TIME_ROUNDING
from hybridctl.planning.quadratic_programme import (
    Junction,
    MotionSamples,
    Section,
    SectionTarget,
)
from hybridctl.planning.task import Task
from hybridctl.planning.task_checks import find_implied_guards
from hybridctl.sensitivity.symmetry import map_mode

_SHORTEST_INTERVAL = 0.25
"""Least length of the first interval of a cut section, relative to an interval of the mesh. A
shorter rest of an interval is merged with the next one. A choice."""
_LAST_FEEDFORWARD = 1.2
"""Fraction of a phase that ends with an event up to which an overdue event has the feedforward's
polynomial; later the input stays as it is there, as the polynomial grows fast. A choice."""
_LATEST_ENTRY = 0.9
"""Largest fraction of a phase at which the motion is entered without a plan: something of the phase
has to be left. A choice."""
_FRACTION_ROUNDING = 1e-9
"""Difference of fractions of a phase that comes from rounding."""
_SHORTEST_REST = 2e-4
"""Least duration of the rest of a phase where planning goes on, s: the event of a plan is
never in the past. The programme may shorten it to a hundredth."""
_DURATION_RANGE = (0.4, 1.8)
"""Least and greatest durations of later phases, relative to the motion's. A choice."""
_EXTRA_DURATION = 0.03
"""Time by which any phase that ends with an event may last longer beside its relative bound, s. A
choice: it lets the rest of a phase grow that is nearly over."""
_PREDICTION_STEP = 0.005
"""Longest integration step of a prediction, s. On a walker one step errs by some 1e-6
(test_under_a_plan_that_is_the_motion_states_go_on_along_it)."""
_LANDING_SAMPLES = 100
"""Samples of the motion before a landing, of its height and of the limits of its impact."""


@dataclass(frozen=True)
class Horizon:
    """How far a predictive controller looks ahead, how finely, and how often.

    Attributes:
        intervals: Numbers of intervals of the present phase, and of each later one.
        phases: Number of whole phases after the present one.
        sample: Longest time between plans, s.
        delay: Time between the state from which a plan is made and its first input, s; at most the
            sample. The state is predicted over it.
        iterations: Most iterations of sequential quadratic programming at a sample.
        settled: Largest change of the states in an iteration up to which no further iteration is
            made. The change d of a state counts as d sqrt(w), with its weight w: w d^2 is a cost
            per s, so that `settled` is in 1/sqrt(s).
        memory: Time constant with which the estimate of a disturbance forgets, s.
        patience: Time after the planned one for which an overdue event is waited for, s; then the
            fixed law acts. It is not negative and may be infinite.
        duration: Weight of durations that differ from the motion's, 1/s^2.
        change: Largest change of a duration in an iteration, s.
        longest: Greatest duration of the rest of the present phase that ends with an event,
            relative to the motion's. 0.03 s are added, so that a rest of almost no time can grow.
        early: Height by which the surface that contacts meet may be higher than known, m. From this
            height on, limits of the next impact hold as far as the motion itself would keep them.
        stay: Least time ahead that is planned where the last phase ends with no event, s.

    Raises:
        InputError: `intervals` has not two numbers; or a number is out of range: an entry of
            `intervals` below 2; `phases`, `delay`, `patience` or `early` negative; `delay` above
            `sample`; `longest` below 1; or another number that is not positive.
    """

    intervals: tuple[int, int] = (16, 8)
    phases: int = 1
    sample: float = 0.02
    delay: float = 0.0
    iterations: int = 4
    settled: float = 0.5
    memory: float = 0.1
    patience: float = 0.02
    duration: float = 100.0
    change: float = 0.15
    longest: float = 1.35
    early: float = 0.0
    stay: float = 0.2

    def __post_init__(self) -> None:
        intervals = check_sequence("intervals", self.intervals)
        if len(intervals) != 2:
            raise InputError(
                f"intervals must be (present phase, each later one), got {quote(self.intervals)}"
            )
        for i, n in enumerate(intervals):
            check_count(f"intervals[{i}]", n, at_least=2)
        check_count("phases", self.phases, at_least=0)
        check_count("iterations", self.iterations)
        for name in ("sample", "settled", "memory", "duration", "change", "stay"):
            check_number(name, getattr(self, name), above=0.0)
        check_number("delay", self.delay, at_least=0.0, at_most=self.sample)
        check_number("longest", self.longest, at_least=1.0)
        check_number("early", self.early, at_least=0.0)
        if self.patience != math.inf:
            check_number("patience", self.patience, at_least=0.0)


class Moment(NamedTuple):
    """A state on the motion, in the coordinates of its phase.

    Attributes:
        time: Time, s.
        state: State (nx,).
        events: Number of phases that have ended.
        last_event: Time at which the last of them ended, s; minus infinity if none has.
    """

    time: float
    state: Array
    events: int
    last_event: float


class PlanPlace(NamedTuple):
    """The place of a time in a plan.

    Attributes:
        section: Index of the section.
        fraction: Fraction of its phase; above 1 where the event of the phase is overdue.
        interval: Index of the interval in the section, -1 before its start.
        interval_rest: Time to the end of the interval, s; negative where the event is overdue.
        rest: Time to the end of the section, s; negative where the event is overdue.
    """

    section: int
    fraction: float
    interval: int
    interval_rest: float
    rest: float


@dataclass(frozen=True, eq=False)
class HorizonPlan:
    """Planned sections from a time on.

    Attributes:
        time: Time at which the first section begins, s.
        events: Number of phases that have ended by then.
        last_event: Time at which the last of them ended, s.
        sections: The sections.
    """

    time: float
    events: int
    last_event: float
    sections: tuple[Section, ...]

    def find_place(self, time: float, events: int, last_event: float) -> PlanPlace:
        """Return the place of a time in the plan.

        The first section begins at the time of the plan. Later ones begin at `last_event`, when the
        event before them has come, whenever that was planned.

        Args:
            time: The time, s.
            events: Number of phases that have ended by then, not less than those of the plan.
            last_event: Time at which the last of them ended, s.
        """
        # With more events than sections the last section is taken. Its interval is -1 at a time
        # before it, and the last one at a time after it, where both rests are negative.
        k = min(events - self.events, len(self.sections) - 1)
        s, elapsed = self.sections[k], time - (last_event if k else self.time)
        last, rate = len(s.corrections) - 1, s.rate
        fraction = float(s.fractions[0] + elapsed * rate)
        i = min(int(s.fractions.searchsorted(fraction + _FRACTION_ROUNDING, "right")) - 1, last)
        interval_rest = (float(s.fractions[i + 1]) - fraction) / rate
        return PlanPlace(k, fraction, i, interval_rest, (float(s.fractions[-1]) - fraction) / rate)

    def get_phase(self, at: Moment) -> int:
        """Return the index of the phase at a moment."""
        return self.sections[self.find_place(at.time, at.events, at.last_event).section].phase


class ReferenceMotion:
    """The motion that a predictive controller follows, and sections along it.

    It is constant but for a cache of `sample_motion`.

    Args:
        task: The task, with the limits that the controller keeps.
        motion: The optimal motion, with the phases of the task.
        horizon: Settings of the horizon.
        disturbed: Task that differs from `task` by one unit of a disturbance, None for none.
        compiled: Whether functions are machine code.

    Attributes:
        task: As given.
        motion: As given.
        horizon: As given.
        models: Functions of each phase.
        junctions: For each phase, how the motion goes on after it.
        is_cyclic: Whether the task has a symmetry, so that the motion repeats for ever.
    """

    def __init__(
        self,
        task: Task,
        motion: OptimalTrajectory,
        horizon: Horizon,
        disturbed: Task | None = None,
        compiled: bool = False,
    ) -> None:
        self.task, self.motion, self.horizon = task, motion, horizon
        phases = range(len(task.phases))
        if not all(phase.ends for phase in task.phases[:-1]):
            raise InputError(
                "every phase of the task but the last must end with guards: contacts that the "
                "clock releases are not planned anew here, ConstrainedTracking takes them"
            )
        arcs = motion.plan.arcs
        implied = find_implied_guards(task, lambda k, _: arcs[k](arcs[k].end))
        self.models = [PhaseModel(task, k, disturbed, compiled, implied) for k in phases]
        nx, nu, symmetry = self.models[0].nx, self.models[0].nu, task.symmetry
        if symmetry is not None and (symmetry.coordinates is not None or symmetry.motions):
            raise InputError("symmetry: the robot must have no quaternions or circles here")
        self.is_cyclic = symmetry is not None
        self._state_map = np.eye(nx) if symmetry is None else symmetry.matrix
        input_map = np.eye(nu) if symmetry is None else symmetry.inputs(nu)
        self._inverse_input_map = np.linalg.inv(input_map)
        free = np.zeros((nx, 0)) if symmetry is None else symmetry.directions
        self._free_projection = free @ np.linalg.pinv(free)
        last = phases[-1]
        self._final_input = (
            None if self.ends_with_event(last) else self._compute_holding_input(last)
        )
        self.junctions = [self._build_junction(k) for k in phases]
        self._cached_samples: dict[tuple[int, int], tuple[Array, MotionSamples]] = {}
        curves = motion.feedforward
        self._final_input_rates = [curve.rate(curve.end) for curve in curves]
        self._landings = {
            k: self._sample_landing(k) for k in phases if self.models[k].ends_with_landing
        }

    def get_phase(self, events: int) -> int:
        """Return the index of the phase after so many events."""
        return events % len(self.models)

    def ends_with_event(self, phase: int) -> bool:
        """Return whether a phase ends with an event, and not at a time."""
        return bool(self.task.phases[phase].ends)

    def get_duration(self, phase: int) -> float:
        """Return the duration of a phase, s."""
        return self.motion.feedforward[phase].length

    def compute_entry_fraction(self, phase: int, elapsed: float) -> float:
        """Return the fraction of a phase at which the motion is entered without a plan.

        Args:
            phase: Index of the phase.
            elapsed: Time since the phase began, s.
        """
        fraction = max(elapsed / self.get_duration(phase), 0.0)
        return min(fraction, _LATEST_ENTRY) if self.ends_with_event(phase) else fraction

    def count_ended_phases(self, history: History) -> tuple[int, float]:
        """Return how many phases have ended, and when the last did, s; minus infinity if none has.

        A phase ends with an event of guards after which the mode is that of the next phase.

        Args:
            history: Events so far.
        """
        count, last = 0, -math.inf
        for event in history.events:
            if event.guards and self.has_mode(event.mode_after, count + 1):
                count, last = count + 1, event.time
        return count, last

    def has_mode(self, mode: ModeKey, events: int) -> bool:
        """Return whether a mode is that of the motion after so many phases.

        In every second cycle the symmetry exchanges the contacts of the modes.

        Args:
            mode: Key of the mode of the system.
            events: Number of phases that have ended.
        """
        cycles, phase = divmod(events, len(self.models))
        if cycles and not self.is_cyclic:
            return False
        symmetry = self.task.symmetry if cycles % 2 else None  # an exchange done twice is none
        return map_mode(symmetry, mode) == self.task.phases[phase].mode

    def map_state_to_phase(self, x: Array, events: int) -> Array:
        """Return a state (nx,) of the system in the coordinates of the phase after these events.

        The symmetry maps it once for each cycle that is complete.

        Args:
            x: State (nx,).
            events: Number of phases that have ended.
        """
        cycles = events // len(self.models)
        return np.linalg.matrix_power(self._state_map, cycles) @ x

    def map_inputs_to_system(self, u: Array, events: int) -> Array:
        """Return inputs (..., nu) in the coordinates of a phase as inputs of the system.

        Args:
            u: Inputs (..., nu).
            events: Number of phases that have ended.
        """
        cycles = events // len(self.models)
        return np.asarray(u @ np.linalg.matrix_power(self._inverse_input_map, cycles).T)

    def evaluate_states(self, phase: int, fractions: Array) -> Array:
        """Return states (m, nx) of the motion.

        Args:
            phase: Index of the phase.
            fractions: Fractions (m,) of it. Outside [0, 1] the state is that at its start or end.
        """
        arc = self.motion.plan.arcs[phase]
        return arc(arc.start + np.clip(fractions, 0.0, 1.0) * (arc.end - arc.start))

    def evaluate_inputs(self, phase: int, fractions: Array) -> Array:
        """Return inputs (m, nu) of the motion, which go on beyond the end of a phase.

        Past a phase that ends with an event the polynomial goes on to fraction 1.2, and its value
        there is held. Past a last phase without an event the input holds the final state.

        Args:
            phase: Index of the phase.
            fractions: Fractions (m,) of it.
        """
        curve = self.motion.feedforward[phase]
        u = curve.evaluate_fractions(np.clip(fractions, 0.0, _LAST_FEEDFORWARD))
        if not self.ends_with_event(phase):
            u[fractions > 1.0] = self._final_input
        return u

    def sample_motion(self, phase: int, fractions: Array) -> MotionSamples:
        """Return the motion at nodes of a phase, with the error of one step between each two.

        The error is the difference to the motion at the end of a step that begins on it. It is zero
        past the end of a phase, where the motion only stays. Results for whole phases are cached.

        Args:
            phase: Index of the phase.
            fractions: Fractions (n + 1,) of the nodes.
        """
        key, is_whole = (phase, len(fractions)), fractions[0] == 0.0
        if is_whole and key in self._cached_samples:
            cached_fractions, samples = self._cached_samples[key]
            if np.array_equal(cached_fractions, fractions):
                return samples
        x, u = self.evaluate_states(phase, fractions), self.evaluate_inputs(phase, fractions)
        middles = self.evaluate_inputs(phase, 0.5 * (fractions[:-1] + fractions[1:]))
        model, h = self.models[phase], np.diff(fractions) * self.get_duration(phase)
        ends = model.step_states(x[:-1], (u[:-1], middles, u[1:]), h)
        in_phase = fractions[1:, None] < 1.0 + _FRACTION_ROUNDING
        errors = np.where(in_phase, ends - x[1:], 0.0)
        clipped = np.minimum(fractions, 1.0)
        clearance = compute_least_gaps(self.task, phase, model.open_contacts, clipped)
        samples = MotionSamples(x, u, middles, errors, clearance)
        if is_whole:
            self._cached_samples[key] = fractions, samples
        return samples

    def build_section(self, phase: int, first: float, intervals: int) -> Section:
        """Return the motion itself as a section.

        Args:
            phase: Index of the phase.
            first: Fraction of it at which the section begins.
            intervals: Number of intervals of the whole phase, see `_place_nodes`.
        """
        fractions = self._place_nodes(phase, first, intervals)
        zero = np.zeros((len(fractions) - 1, self.models[phase].nu))
        duration = float(fractions[-1] - first) * self.get_duration(phase)
        return Section(phase, fractions, self.evaluate_states(phase, fractions), zero, duration)

    def build_sections(self, events: int, first: float) -> tuple[Section, ...]:
        """Return the motion itself over the horizon.

        Args:
            events: Number of phases that have ended.
            first: Fraction of the present phase at which the horizon begins.
        """
        present, later = self.horizon.intervals
        last = events + self.horizon.phases
        if not self.is_cyclic:
            last = min(last, len(self.models) - 1)
        following = [
            self.build_section(self.get_phase(k), 0.0, later) for k in range(events + 1, last + 1)
        ]
        return (self.build_section(self.get_phase(events), first, present), *following)

    def align_with_plan(self, plan: HorizonPlan, at: Moment) -> Moment:
        """Return the moment with its state moved along free directions to where the plan is.

        Args:
            plan: The plan.
            at: The moment.
        """
        place = plan.find_place(at.time, at.events, at.last_event)
        planned = plan.sections[place.section].states[place.interval]
        return at._replace(state=at.state - self._project_on_free_directions(at.state - planned))

    def continue_plan(self, plan: HorizonPlan, at: Moment) -> HorizonPlan:
        """Return the plan from a later moment on, whose state is its first.

        What is planned stays; later phases of the horizon that have no plan yet follow the motion.

        Args:
            plan: The plan.
            at: The moment.
        """
        place = plan.find_place(at.time, at.events, at.last_event)
        s, first = plan.sections[place.section], max(place.fraction, 0.0)
        intervals = self.horizon.intervals[0]
        if not self.ends_with_event(s.phase):  # new nodes, over at least `Horizon.stay`
            s = self._resample(s, self._place_nodes(s.phase, first, intervals))
            rest = s.duration
        else:
            first = min(first, 1.0 - _SHORTEST_REST / self.get_duration(s.phase))
            rest = max(place.rest, _SHORTEST_REST)  # the event may be overdue
            if place.section:  # it gets the finer mesh of a present phase
                s = self._resample(s, self._place_nodes(s.phase, 0.0, intervals))
        fractions = _cut_nodes(s.fractions, first)
        n = len(fractions) - 1
        states = np.vstack((at.state, s.states[-n:]))
        s = Section(s.phase, fractions, states, s.corrections[-n:], rest)
        later = plan.sections[place.section + 1 :]
        # Only the phases that the plan does not have yet; the sections of the others are cut off.
        added = self.build_sections(at.events, first)[1 + len(later) :]
        return HorizonPlan(at.time, at.events, at.last_event, (s, *later, *added))

    def predict(self, plan: HorizonPlan, at: Moment, delay: float, disturbance: float) -> Moment:
        """Return the moment after a delay under a plan.

        The prediction goes through an event where the guard falls from above zero to zero or below
        in a step. The step is made again up to the zero of the guard's secant. Then the state jumps
        and gets the coordinates of the next phase. The last section of a plan goes on past its end,
        as there is no input after its event.

        Args:
            plan: The plan.
            at: The moment at the start.
            delay: The delay, s.
            disturbance: Number of units of the disturbance.
        """
        end = at.time + delay
        while end - at.time > TIME_ROUNDING:
            h = min(_PREDICTION_STEP, end - at.time)
            phase = plan.get_phase(at)
            then = self._predict_moment(plan, at, h, disturbance)
            before, after = self.evaluate_guard(plan, at), self.evaluate_guard(plan, then)
            ends = after <= 0.0 < before and at.events - plan.events + 1 < len(plan.sections)
            if ends:
                h *= before / (before - after)
                then = self._predict_moment(plan, at, h, disturbance)
            at = then
            if ends:
                junction = self.junctions[phase]
                after_jump = self.models[phase].evaluate_jump(at.state, disturbance)[0]
                y = junction.matrix @ after_jump + junction.offset
                at = Moment(at.time, y, at.events + 1, at.time)
        return at

    def _predict_moment(
        self, plan: HorizonPlan, at: Moment, h: float, disturbance: float
    ) -> Moment:
        """Return the moment after one step of h s; see `predict_step`."""
        state = self.predict_step(plan, at, h, disturbance).states[0]
        return at._replace(time=at.time + h, state=state)

    def predict_step(
        self, plan: HorizonPlan, at: Moment, h: float, disturbance: float
    ) -> LinearizedSteps:
        """Return one step from a moment on, under the input of the plan.

        The error that the same step makes on the motion itself is subtracted: so one step is as
        exact as the motion where the plan is the motion. Past the end of the phase there is no
        motion to compare with.

        Args:
            plan: The plan.
            at: The moment.
            h: Length of the step, s.
            disturbance: Number of units of the disturbance.

        Returns:
            One state (1, nx) and its derivatives.
        """
        place = plan.find_place(at.time, at.events, at.last_event)
        s = plan.sections[place.section]
        fractions = place.fraction + s.rate * h * np.array([0.0, 0.5, 1.0])
        u = self.evaluate_inputs(s.phase, fractions)
        on_motion = self.evaluate_states(s.phase, fractions[::2])
        inputs = np.stack((u + s.corrections[place.interval], u), axis=1)
        both = self.models[s.phase].linearize_steps(
            np.stack((at.state, on_motion[0])),
            (inputs[0], inputs[1], inputs[2]),
            np.array([h, s.rate * h * self.get_duration(s.phase)]),
            np.array([[disturbance], [0.0]]),
        )
        in_phase = fractions[2] < 1.0 + _FRACTION_ROUNDING
        error = both.states[1] - on_motion[1] if in_phase else 0.0
        step = LinearizedSteps(*(part[:1] for part in both))
        return step._replace(states=step.states - error)

    def evaluate_guard(self, plan: HorizonPlan, at: Moment) -> float:
        """Return the largest guard that ends the phase at a moment, under the plan.

        Guards that end a phase together have all fired when the largest falls to zero.

        Args:
            plan: The plan.
            at: The moment.

        Returns:
            The guard in its unit, infinite if no guard ends the phase.
        """
        place = plan.find_place(at.time, at.events, at.last_event)
        s = plan.sections[place.section]
        u = self.evaluate_inputs(s.phase, np.array([place.fraction]))
        return float(
            self.evaluate_guards(s.phase, at.state[None], u + s.corrections[place.interval])[0]
        )

    def evaluate_guards(self, phase: int, x: Array, u: Array) -> Array:
        """Return the largest of the guards (m,) that end a phase, at m points.

        Args:
            phase: Index of the phase.
            x: States (m, nx).
            u: Inputs (m, nu).

        Returns:
            The guards in their unit, infinite if no guard ends the phase.
        """
        model = self.models[phase]
        if not model.guards:
            return np.full(len(x), np.inf)
        values = model.evaluate_end(x, u, np.zeros(model.nu)).values
        return np.asarray(values[:, model.guards].max(axis=1))

    def evaluate_heights(self, phase: int, x: Array) -> Array:
        """Return the largest gaps (m,) that close at the end of a phase which lands, m.

        Args:
            phase: Index of the phase.
            x: States (m, nx).
        """
        return self.evaluate_guards(phase, x, np.zeros((len(x), self.models[phase].nu)))

    def compute_mean_closed_gap(self, phase: int, x: Array) -> float:
        """Return the mean gap of the contacts that are closed in a phase, m; zero if none is.

        Args:
            phase: Index of the phase.
            x: State (nx,).
        """
        closed = list(closed_contacts(self.task.phases[phase].mode))
        gaps = self.task.system.dynamics.gaps(x[: self.task.system.robot.nq])
        return float(np.mean(gaps[closed])) if closed else 0.0

    def build_target(
        self, s: Section, is_later: bool, largest_change: float, disturbance: float = 0.0
    ) -> SectionTarget:
        """Return the reference of a section, and the bounds within which it may differ.

        The duration of the rest of the present phase may be from almost zero to `Horizon.longest`,
        that of a later phase from 0.4 to 1.8, relative to the motion's; 0.03 s are added to the
        upper bounds. A phase without an event has the task's bounds, times the share of the phase
        that the section covers.

        Args:
            s: The section.
            is_later: Whether it is a whole phase after the present one.
            largest_change: Largest change of its duration, s.
            disturbance: Number of units of the disturbance.
        """
        model, duration = self.models[s.phase], self.get_duration(s.phase)
        nominal = float(s.fractions[-1] - s.fractions[0]) * duration  # of the section, s
        # Bounds of its duration: relative to the nominal one, and `extra` in s for the upper one.
        shortest, longest = _DURATION_RANGE if is_later else (0.0, self.horizon.longest)
        extra = _EXTRA_DURATION
        if not self.ends_with_event(s.phase):
            shortest, longest = (d / duration for d in self.task.phases[s.phase].duration)
            extra = 0.0
        # A duration stays positive. It may be outside of its range already, where an event is late:
        # then no change is forced, so that the programme stays solvable.
        decrease = min(0.0, max(shortest * nominal, 0.01 * _SHORTEST_REST) - s.duration)
        increase = max(0.0, longest * nominal + extra - s.duration)
        # Of the feedforward at the planned end, per s: in a phase that takes longer it is slower.
        # Unit per s of the motion, times s per fraction of the phase, times fractions per s.
        rate = self._final_input_rates[s.phase] * duration * s.rate
        may_end_early = model.ends_with_landing and not is_later
        first_end_node, end_bounds = (
            self._find_early_end(s) if may_end_early else self._get_end_bounds(s)
        )
        return SectionTarget(
            self.sample_motion(s.phase, s.fractions),
            rate,
            nominal,
            max(-largest_change, decrease),
            min(largest_change, increase),
            first_end_node,
            end_bounds,
            disturbance,
        )

    def _build_junction(self, phase: int) -> Junction:
        """Return how the motion goes on after a phase, in the coordinates of the next one."""
        # matrix S(x) + offset leads from the end of the phase to the start of the next, `target`.
        following = phase + 1
        matrix = np.eye(len(self._state_map))
        if following == len(self.models) and self.is_cyclic:
            following, matrix = 0, self._state_map
        after, _ = self.models[phase].evaluate_jump(self.evaluate_states(phase, np.ones(1))[0])
        if following == len(self.models):
            return Junction(matrix, np.zeros(len(after)), after)
        target = self.evaluate_states(following, np.zeros(1))[0]
        # Along the directions in which the task is free, such as the place, the motion goes on from
        # where it is; what differs in the others is an error of the optimum, and not added.
        offset = self._project_on_free_directions(target - matrix @ after)
        return Junction(matrix, offset, target)

    def _compute_holding_input(self, phase: int) -> Array:
        """Return the input (nu,) that holds the final state of a phase best, by least squares."""
        curve = self.motion.feedforward[phase]
        u = curve(curve.end)
        states = self.evaluate_states(phase, np.ones(1))
        rate = self.models[phase].evaluate_field(states, u[None])
        return np.asarray(u - np.linalg.pinv(rate.by_input[0]) @ rate.values[0])

    def _place_nodes(self, phase: int, first: float, intervals: int) -> Array:
        """Return the fractions of the nodes from a fraction of a phase on.

        Args:
            phase: Index of the phase.
            first: Fraction of the first node.
            intervals: Number of intervals, of the whole phase if it ends with an event. Otherwise
                of what is left of it, which takes at least `Horizon.stay`.
        """
        if self.ends_with_event(phase):
            return _cut_nodes(np.linspace(0.0, 1.0, intervals + 1), first)
        span = max(1.0 - first, self.horizon.stay / self.get_duration(phase))
        return first + span * np.linspace(0.0, 1.0, intervals + 1)

    def _resample(self, s: Section, fractions: Array) -> Section:
        """Return the section at other nodes; beyond its last one the last plan goes on.

        Args:
            s: The section.
            fractions: Fractions (m + 1,) of the new nodes.
        """
        difference = s.states - self.evaluate_states(s.phase, s.fractions)
        between = np.array([np.interp(fractions, s.fractions, row) for row in difference.T]).T
        nodes = s.fractions[:-1]
        intervals = nodes.searchsorted(fractions[:-1] + _FRACTION_ROUNDING, "right") - 1
        states = self.evaluate_states(s.phase, fractions) + between
        duration = float(fractions[-1] - fractions[0]) / s.rate
        return Section(s.phase, fractions, states, s.corrections[intervals], duration)

    def _sample_landing(self, phase: int) -> tuple[Array, Array]:
        """Return the motion before a landing: its heights, and its values at the end of the phase.

        Args:
            phase: Index of a phase that ends with a landing.

        Returns:
            Heights (m,) upwards from the ground, made monotone, m. End values (m, r) if the phase
            ended at these heights.
        """
        fractions = np.linspace(1.0, 0.0, _LANDING_SAMPLES)
        states, inputs = (
            self.evaluate_states(phase, fractions),
            self.evaluate_inputs(phase, fractions),
        )
        heights = self.evaluate_heights(phase, states)
        last = int(heights.argmax()) + 1
        zero_rate = np.zeros(self.models[phase].nu)
        values = self.models[phase].evaluate_end(states[:last], inputs[:last], zero_rate).values
        return np.maximum.accumulate(heights[:last]), values

    def _get_end_bounds(self, s: Section) -> tuple[int, Array]:
        """Return the last node of a section, and lower limits (n + 1, r) of its end values."""
        n = len(s.corrections)
        lower = [limit.lower for limit in self.models[s.phase].end_limits]
        return n, np.tile(np.array(lower), (n + 1, 1))

    def _find_early_end(self, s: Section) -> tuple[int, Array]:
        """Return the first node where a section that lands may end, and lower limits (n + 1, r).

        The section may end on a surface that is higher than known by up to `Horizon.early`. Two
        rules give the node. It comes after the last node that is higher than `early`, as there the
        contacts are above all such surfaces. It does not come before the highest node, as contacts
        rise before that one and do not land. So if no node is higher than `early`, it is the
        highest node itself. The end of the section does not count in either rule.

        Before the last node, limits ask for no more than the motion itself keeps where it has the
        height of the node.

        Args:
            s: The section.

        Returns:
            The index of the node, and the limits in the units of the end values.
        """
        n, lower = self._get_end_bounds(s)
        heights = self.evaluate_heights(s.phase, s.states)
        above = np.flatnonzero(heights[:-1] > self.horizon.early)
        known, values = self._landings[s.phase]
        at_height = np.array([np.interp(heights[:-1], known, column) for column in values.T]).T
        lower[:-1] = np.minimum(lower[:-1], at_height)
        first = above[-1] + 1 if len(above) else 0
        return int(max(heights[:n].argmax(), first)), lower

    def _project_on_free_directions(self, difference: Array) -> Array:
        """Return the part (nx,) of a difference of states along the free directions."""
        return np.asarray(self._free_projection @ difference)


def _cut_nodes(fractions: Array, first: float) -> Array:
    """Return the nodes from a fraction on, without one less than a quarter of an interval after it.

    Args:
        fractions: Fractions (n + 1,) of all nodes. The last one is kept in any case; the last
            interval is the unit of a quarter.
        first: Fraction that becomes the first node.
    """
    kept = fractions > first + _SHORTEST_INTERVAL * (fractions[-1] - fractions[-2])
    kept[-1] = True
    return np.append(first, fractions[kept])
