r"""Predictive control across events: a policy that plans anew at each sample.

The horizon is the rest of the present phase and whole phases after it. A plan continues the plan of
the last sample by some iterations of sequential quadratic programming (`quadratic_programme`),
usually one. A fixed law acts where the programme has no solution, where an event is overdue, and in
modes that the motion does not have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_array,
    check_instance,
    check_number,
    check_sequence,
    check_vector,
    format_count,
)
from hybridctl.base.errors import InputError
from hybridctl.control.tracking_law import clip_input, parse_limits
from hybridctl.hybrid.laws import InputLaw, LinearFeedback
from hybridctl.hybrid.policy import History, Policy, ask_next_change
from hybridctl.planning.horizon import Horizon, HorizonPlan, Moment, ReferenceMotion
from hybridctl.planning.optimisation import OptimalTrajectory
from hybridctl.planning.plan import TIME_ROUNDING
from hybridctl.planning.quadratic_programme import HorizonCosts, HorizonProgramme
from hybridctl.planning.task import Task

_SHORTEST_TIME = 0.004
"""Least time between two calls of the policy, s. A plan whose section ends sooner is not improved
before the event. A choice."""
_LATE_FRACTION = 0.5
"""Fraction of a phase from which on a guard below zero means an event that is overdue: before it a
foot may have just left the ground. A choice."""
_SURFACE_DEPTH = 0.002
"""Depth of the surface below a contact that should have met it by now, m. A choice."""


class HybridMpc:
    r"""Model predictive control across events, a policy with a memory.

    The input between samples is feedforward. The limits of the task hold: those of inputs strictly,
    those of states as far as they can be met, so that they should leave the motion some room.
    Conditions and costs of the task do not count.

    Life cycle: the simulator or loop calls `law` with the history at each sample and each event,
    and `ask_next_change` for the time of the next call. The policy remembers its plan, so that it
    belongs to one run at a time; for a history that does not go on from the last one it begins
    anew, as after `reset`.

    Args:
        task: Phases with their limits. If its last phase ends with no event, the duration of that
            phase is within the task's, and the motion stays as it ends.
        motion: Motion that is tracked, with the phases of the task. If the task has a symmetry, it
            repeats for ever.
        weights: Q (nx, nx) and R (nu, nu) as of an LQR, of which the diagonals count; these must
            not be negative, which is not checked.
        values: Value matrix V (nx, nx) just after the start of each phase, as the cost at the end
            of the horizon. Without a symmetry, one more for the end of the motion.
        fixed: Policy that acts where there is no plan.
        horizon: Settings of the horizon, None for `Horizon()`.
        start: Time at which the first phase of the motion begins, s.
        rise: Direction (nx,) along which states are lifted off the ground by 1 m. With it the
            surface ahead is taken to be as high as the contacts that are closed, or just below a
            contact that has not met it. None for the ground of the task.
        disturbed: The task on a system that differs from that of `task` by one unit of an unknown
            disturbance, such as a slope of the ground. The number of units is estimated from the
            errors of predictions; dynamics and limits are taken to be affine in it. None for no
            disturbance.
        compiled: Whether functions are machine code, made once by the C compiler of this machine.

    Attributes:
        fixed: As given.
        horizon: As given.
        failures: Number of programmes without a solution since the start of the run.
        disturbance: Estimated number of units of the disturbance.
        plan: The plan whose input acts, None before the first call.

    Raises:
        InputError: Arguments that do not fit together, or no compiler is found.
    """

    failures: int
    disturbance: float
    plan: HorizonPlan | None
    _pending_plan: HorizonPlan | None  # the plan that will act after the delay
    _next_sample: float  # time of the next plan, s
    _uses_fixed: bool  # whether the fixed law acts
    _last_prediction: tuple[HorizonPlan, Moment] | None  # plan that has acted since a moment
    _overdue_since: float  # time since which an event is overdue, s; infinite while none is

    def __init__(
        self,
        task: Task,
        motion: OptimalTrajectory,
        weights: tuple[ArrayLike, ArrayLike],
        values: Sequence[ArrayLike],
        fixed: Policy,
        *,
        horizon: Horizon | None = None,
        start: float = 0.0,
        rise: ArrayLike | None = None,
        disturbed: Task | None = None,
        compiled: bool = False,
    ) -> None:
        check_instance("task", task, Task)
        check_instance("motion", motion, OptimalTrajectory)
        if len(motion.feedforward) != len(task.phases):
            raise InputError(
                f"motion must have the {format_count(len(task.phases), 'phase')} of the task, got "
                f"{len(motion.feedforward)}"
            )
        self.fixed = check_instance("fixed", fixed, Policy)  # type: ignore[type-abstract]
        self.horizon = Horizon() if horizon is None else check_instance("horizon", horizon, Horizon)
        if disturbed is not None and len(
            check_instance("disturbed", disturbed, Task).phases
        ) != len(task.phases):
            raise InputError("disturbed must be a task with the phases of `task`")
        self._has_disturbance = disturbed is not None
        self._motion = reference = ReferenceMotion(task, motion, self.horizon, disturbed, compiled)
        nx, nu = reference.models[0].nx, reference.models[0].nu
        needed = len(task.phases) if reference.is_cyclic else len(task.phases) + 1
        matrices, pair = check_sequence("values", values), check_sequence("weights", weights)
        if len(matrices) != needed:
            raise InputError(f"values must have {needed} matrices, got {len(matrices)}")
        self._values = [check_array(f"values[{i}]", v, (nx, nx)) for i, v in enumerate(matrices)]
        if len(pair) != 2:
            raise InputError(f"weights must have two matrices, Q and R, got {len(pair)}")
        self._state_weights, self._input_weights = (
            check_array(f"weights[{i}]", w, (n, n)).diagonal()
            for i, (w, n) in enumerate(zip(pair, (nx, nu), strict=True))
        )
        limits = parse_limits(task.largest_inputs, nu)
        assert limits is not None
        self._limits = limits
        self._rise = None if rise is None else check_vector("rise", rise, nx)
        self._start = check_number("start", start)
        self.reset()

    def reset(self) -> None:
        """Forget the plan and the disturbance, as before the first call."""
        self.failures = 0
        self.disturbance = 0.0
        self.plan = self._pending_plan = self._last_prediction = None
        self._overdue_since = math.inf
        self._next_sample = -math.inf
        self._uses_fixed = True

    def law(self, history: History) -> InputLaw:
        """Return the planned input or the law of the fixed policy, and make a plan if it is due.

        A plan is due at each sample and after each event; without a delay, at each call.

        Args:
            history: State, mode, time and events so far.
        """
        events, last_event = self._motion.count_ended_phases(history)
        if not self._motion.has_mode(history.mode, events):
            self.reset()
            return self.fixed.law(history)
        plan, at = self._update_active_plan(history, events, last_event)
        self._estimate_disturbance(at)
        is_after_event = at.events > plan.events
        is_due = history.time >= self._next_sample - TIME_ROUNDING
        if is_after_event or not self.horizon.delay or is_due:
            self._next_sample = history.time + self.horizon.sample
            improved = self._improve_plan(plan, at)
            if self.horizon.delay:
                self._pending_plan = improved
            else:
                self.plan = plan = improved
        self._last_prediction = None if self._uses_fixed else (plan, at)
        if self._uses_fixed:
            return self.fixed.law(history)
        return _PlannedInput(self._motion, plan, at, self._limits)

    def next_change(self, history: History) -> float:
        """Return the time at which a plan is made, changes its input, or begins to act, s.

        Args:
            history: As for `law`, just before.
        """
        now = history.time
        if self.plan is None or self._uses_fixed:
            return min(now + self.horizon.sample, ask_next_change(self.fixed, history))
        place = self.plan.find_place(now, *self._motion.count_ended_phases(history))
        changes = [self._next_sample, now + place.interval_rest]
        if self._pending_plan is not None:
            changes.append(self._pending_plan.time)
        return max(min(changes), now + _SHORTEST_TIME)

    def _update_active_plan(
        self, history: History, events: int, last_event: float
    ) -> tuple[HorizonPlan, Moment]:
        """Update the plan whose input acts now.

        It is the last plan, the one that was delayed, or the motion itself if the history does not
        go on from the last call.

        Args:
            history: As for `law`.
            events: Number of phases that have ended.
            last_event: Time at which the last of them ended, s.

        Returns:
            The plan, and the present moment in the coordinates of its phase.
        """
        pending = self._pending_plan
        if pending is not None and history.time >= pending.time - TIME_ROUNDING:
            self.plan, self._pending_plan = pending, None
        motion, plan = self._motion, self.plan
        x = motion.map_state_to_phase(history.state, events)
        at = Moment(history.time, x, events, last_event)
        if plan is None or history.time < plan.time or events - plan.events not in (0, 1):
            self.reset()
            elapsed = history.time - (last_event if events else self._start)
            first = motion.compute_entry_fraction(motion.get_phase(events), elapsed)
            sections = motion.build_sections(events, first)
            plan = self.plan = HorizonPlan(at.time, events, last_event, sections)
        at = motion.align_with_plan(plan, at)
        if self._rise is not None:
            height = motion.compute_mean_closed_gap(motion.get_phase(events), at.state)
            at = at._replace(state=at.state - height * self._rise)
        return plan, at

    def _improve_plan(self, previous: HorizonPlan, at: Moment) -> HorizonPlan:
        """Return the plan from the moment after the delay on, after some iterations.

        It is the previous one if an event is about to come then. Updates `failures`, whether the
        fixed law acts, and since when an event is overdue.

        Args:
            previous: The plan whose input acts during the delay.
            at: The present moment.
        """
        at = self._motion.predict(previous, at, self.horizon.delay, self.disturbance)
        rest = previous.find_place(at.time, at.events, at.last_event).rest
        if abs(rest) <= _SHORTEST_TIME and not self._uses_fixed:
            return previous
        plan = self._motion.continue_plan(previous, at)
        first = float(plan.sections[0].fractions[0])
        height = self._motion.evaluate_guard(plan, at)
        is_overdue = first > _LATE_FRACTION and height < 0.0
        self._overdue_since = min(self._overdue_since, at.time) if is_overdue else math.inf
        waited = at.time - self._overdue_since
        self._uses_fixed = waited > self.horizon.patience - TIME_ROUNDING
        if self._uses_fixed:
            return plan
        surface = height - _SURFACE_DEPTH if is_overdue and self._rise is not None else 0.0
        improved = self._iterate(plan, surface)
        if improved is None:
            self.failures += 1
            self._uses_fixed = True
            return replace(plan, sections=self._motion.build_sections(plan.events, first))
        return improved

    def _iterate(self, plan: HorizonPlan, surface: float) -> HorizonPlan | None:
        """Return the plan after the iterations of a sample, None if a programme has no solution.

        The largest change of a duration is halved whenever the duration changes back: otherwise it
        would go to and fro by as much as it may.

        Args:
            plan: The plan to begin with.
            surface: Height of the surface on which the present phase ends, m.
        """
        largest_changes = np.full(len(plan.sections), self.horizon.change)
        last_changes, roots = np.zeros(len(largest_changes)), np.sqrt(self._state_weights)
        for _ in range(self.horizon.iterations):
            sections = self._build_programme(plan, surface, largest_changes).solve()
            if sections is None:
                return None
            pairs = list(zip(plan.sections, sections, strict=True))
            plan = replace(plan, sections=tuple(sections))
            changes = np.array([after.duration - before.duration for before, after in pairs])
            largest_changes[changes * last_changes < 0.0] *= 0.5
            last_changes = changes
            state_change = max(
                np.abs((after.states - before.states) * roots).max() for before, after in pairs
            )
            if state_change <= self.horizon.settled:
                break
        return plan

    def _estimate_disturbance(self, at: Moment) -> None:
        """Update the disturbance by the error of the prediction from the last call.

        The error e of the state gives the change :math:`b' Q e / b' Q b` of the disturbance, with
        its effect b on the state. It is taken to be at most one unit at a time, so that a blow does
        not look like a disturbance that lasts.

        Args:
            at: The present moment.
        """
        if not self._has_disturbance or self._last_prediction is None:
            return
        plan, last = self._last_prediction
        h = at.time - last.time
        # After an event, too short or too long a time, the error is not that of a disturbance.
        if at.events != last.events or not _SHORTEST_TIME <= h <= 2.0 * self.horizon.sample:
            return
        step = self._motion.predict_step(plan, last, h, self.disturbance)
        error, effect = at.state - step.states[0], step.by_disturbance[0]
        weighted = self._state_weights * effect
        sensitivity = float(weighted @ effect)
        if sensitivity == 0.0:
            return
        change = float(weighted @ error) / sensitivity
        share = -math.expm1(-h / self.horizon.memory)
        self.disturbance += share * min(max(change, -1.0), 1.0)

    def _build_programme(
        self, plan: HorizonPlan, surface: float, largest_changes: Array
    ) -> HorizonProgramme:
        """Return the quadratic programme around a plan.

        Args:
            plan: The plan.
            surface: Height of the surface on which the present phase ends, m. The motion goes on
                from there as from the ground.
            largest_changes: Largest change of the duration of each section, s.
        """
        motion, sections = self._motion, plan.sections
        pairs = enumerate(zip(sections, largest_changes.tolist(), strict=True))
        targets = [
            motion.build_target(s, k > 0, largest, self.disturbance) for k, (s, largest) in pairs
        ]
        junctions = [motion.junctions[section.phase] for section in sections]
        if surface:
            assert self._rise is not None
            targets[0] = replace(targets[0], surface=surface)
            lowered = junctions[0].offset - surface * self._rise
            junctions[0] = replace(junctions[0], offset=lowered)
        after = sections[-1].phase + 1
        final = self._values[after % len(self._values)]
        costs = HorizonCosts(self._state_weights, self._input_weights, self.horizon.duration, final)
        return HorizonProgramme(
            motion.models, list(sections), targets, junctions, costs, self._limits
        )


@dataclass(frozen=True, eq=False)
class _PlannedInput(LinearFeedback):
    """The input of a plan from a moment on, a feedback law with zero gain.

    Attributes:
        motion: The motion that the plan follows.
        plan: The plan.
        start: The moment.
        limits: Least and greatest inputs (2, nu), at which the input is cut.
    """

    motion: ReferenceMotion
    plan: HorizonPlan
    start: Moment
    limits: Array

    def __call__(self, t: float, x: Array) -> Array:
        return np.asarray(self.find_offsets_and_gains(np.array([t]))[0][0])

    def find_offsets_and_gains(self, times: Array) -> tuple[Array, Array]:
        """Return inputs (m, nu) at times (m,) in s, and zero gains (m, nu, nx)."""
        start, model = self.start, self.motion.models[0]
        place = self.plan.find_place(start.time, start.events, start.last_event)
        s = self.plan.sections[place.section]
        fractions = place.fraction + s.rate * (times - start.time)
        u = self.motion.evaluate_inputs(s.phase, fractions) + s.corrections[place.interval]
        u = clip_input(self.motion.map_inputs_to_system(u, start.events), self.limits)
        return u, np.zeros((len(times), model.nu, model.nx))
