r"""A policy that plans on from the measured state at each sample, through the next events.

The horizon is the rest of the present phase and whole ones after it; see `programme`. What is
planned goes on from what was planned at the last sample, by one iteration, or by some while it
still moves a lot. Where its programme has
no solution, or the mode is none that the motion has, a fixed law acts instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_instance, check_number, check_vector
from hybridctl.base.errors import InputError
from hybridctl.control.laws import cut, input_limits
from hybridctl.hybrid.laws import InputLaw, LinearFeedback
from hybridctl.hybrid.policy import History, Policy, ask_next_change
from hybridctl.planning.predictive.course import Course, Horizon, Moment, Plan
from hybridctl.planning.predictive.programme import Costs, Programme
from hybridctl.planning.trajectory.optimise import OptimalTrajectory
from hybridctl.planning.trajectory.task import Task

_SOONEST = 0.004  # s, between two times at which it is asked
_LATE = 0.5  # of a phase, from which on a contact is looked for below the surface ahead
_LOWER = 0.002  # m, by which that surface is taken to be lower than such a contact


class HybridMpc:
    r"""Model predictive control across events, a policy with a memory.

    task: phases, each with its limits. Those of inputs are kept, those of states as far as can be:
    they should leave the motion some room. Conditions and costs of the task do not count. Where its
    last phase ends with no event, its duration is to be within the task's, and the motion stays as
    it ends. motion: what is tracked, with the task's phases; where the task has a
    symmetry it goes on for ever. weights: Q (nx, nx) and R (nu, nu), of which the diagonals count,
    as of an LQR. values: V (nx, nx) just after the begin of each phase and, without a symmetry,
    in the end, for the end of the horizon. fixed: the law that acts where there is no
    plan. start: when the first phase of the motion begins, s. rise (nx,): the direction along which
    states are lifted off the ground by 1 m. With it the surface ahead is taken to be as high as the
    contacts that stand, or just below a contact that has not met it. disturbed: the task on a
    system that differs from that of `task` by a unit of something unknown, such as a slope of the
    ground. How many units there are, `disturbance`, is estimated from what states are off from
    predictions; values in between are taken to be linear. compiled: whether its functions are made
    machine code, once, by the C compiler of this machine.

    The input between samples is feedforward. It remembers its plan, so that it belongs to one run
    at a time; for a history that does not go on from the last it begins anew. failures: how many
    programmes had no solution since then.

    Raises `InputError` for arguments that do not fit together, and where there is no compiler.
    """

    failures: int
    disturbance: float
    plan: Plan | None
    _next: Plan | None  # what acts after the delay
    _again: float  # when to plan next, s
    _fixed: bool  # whether the fixed law acts
    _seen: tuple[Plan, Moment] | None  # at the last time, what acts since
    _due: float  # since when an event is due, s; infinite while none is

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
        self.fixed = check_instance("fixed", fixed, Policy)  # type: ignore[type-abstract]
        self.horizon = Horizon() if horizon is None else check_instance("horizon", horizon, Horizon)
        if disturbed is not None:
            check_instance("disturbed", disturbed, Task)
        self._disturbed = disturbed is not None
        self._course = course = Course(task, motion, self.horizon, disturbed, compiled)
        nx, nu = course.models[0].nx, course.models[0].nu
        needed = len(task.phases) + (not course.is_cyclic)
        if len(values) != needed:
            raise InputError(f"values must have {needed} matrices, got {len(values)}")
        self._values = [check_array(f"values[{i}]", v, (nx, nx)) for i, v in enumerate(values)]
        self._state, self._input = (
            check_array(f"weights[{i}]", weights[i], (n, n)).diagonal()
            for i, n in enumerate((nx, nu))
        )
        limits = input_limits(task.greatest_inputs, nu)
        assert limits is not None
        self._limits = limits
        self._rise = None if rise is None else check_vector("rise", rise, nx)
        self._start = check_number("start", start)
        self.reset()

    def reset(self) -> None:
        """Forget the plan, and what is known of a disturbance."""
        self.failures = 0
        self.disturbance = 0.0
        self.plan = self._next = self._seen = None
        self._due = math.inf
        self._again = -math.inf
        self._fixed = True

    def law(self, history: History) -> InputLaw:
        """The planned input, or the law of the fixed policy."""
        events, touched = self._course.ended(history)
        if not self._course.knows(history.mode, events):
            self.reset()
            return self.fixed.law(history)
        plan, at = self._in_force(history, events, touched)
        self._learn(at)
        new = at.events > plan.events
        if new or not self.horizon.delay or history.time >= self._again - 1e-9:
            self._again = history.time + self.horizon.sample
            found = self._planned(plan, at)
            if self.horizon.delay:
                self._next = found
            else:
                self.plan = plan = found
        self._seen = None if self._fixed else (plan, at)
        if self._fixed:
            return self.fixed.law(history)
        return _Planned(self._course, plan, at, self._limits)

    def next_change(self, history: History) -> float:
        """The time when a plan is made, changes, or begins to act, s."""
        now = history.time
        if self.plan is None or self._fixed:
            return min(now + self.horizon.sample, ask_next_change(self.fixed, history))
        place = self.plan.place(now, *self._course.ended(history))
        changes = [self._again, now + place.left]
        if self._next is not None:
            changes.append(self._next.time)
        return max(min(changes), now + _SOONEST)

    def _in_force(self, history: History, events: int, touched: float) -> tuple[Plan, Moment]:
        """The plan whose input acts now: the last, what was held back, or the motion itself."""
        if self._next is not None and history.time >= self._next.time - 1e-9:
            self.plan, self._next = self._next, None
        course, plan = self._course, self.plan
        x = course.inwards(history.state, events)
        at = Moment(history.time, x, events, touched)
        if plan is None or history.time < plan.time or events - plan.events not in (0, 1):
            self.reset()
            phase = course.phase(events)
            begin = course.begun(phase, history.time - (at.touched if events else self._start))
            plan = self.plan = Plan(at.time, events, at.touched, course.sections(events, begin))
        at = course.seen(plan, at)
        if self._rise is not None:
            height = course.standing(course.phase(events), at.state)
            at = at._replace(state=at.state - height * self._rise)
        return plan, at

    def _planned(self, old: Plan, at: Moment) -> Plan:
        """The plan after some iterations, from the moment after the delay on.

        It is the old one where an event is about to come then.
        """
        at = self._course.ahead(old, at, self.horizon.delay, self.disturbance)
        rest = old.place(at.time, at.events, at.touched).rest
        if abs(rest) <= _SOONEST and not self._fixed:
            return old
        plan = self._course.carried_on(old, at)
        first = plan.sections[0]
        height = self._course.guard(plan, at)
        late = first.fractions[0] > _LATE and height < 0.0
        self._due = min(self._due, at.time) if late else math.inf
        self._fixed = at.time - self._due > self.horizon.patience - 1e-9
        if self._fixed:
            return plan
        surface = height - _LOWER if late and self._rise is not None else 0.0
        most = np.full(len(plan.sections), self.horizon.change)
        last, roots = np.zeros(len(most)), np.sqrt(self._state)
        for _ in range(self.horizon.iterations):
            found = self._programme(plan, surface, most).solution()
            if found is None:
                self.failures += 1
                self._fixed = True
                fresh = self._course.sections(plan.events, float(first.fractions[0]))
                return replace(plan, sections=fresh)
            old, plan = plan, replace(plan, sections=tuple(found))
            pairs = list(zip(old.sections, plan.sections, strict=True))
            change = np.array([b.duration - a.duration for a, b in pairs])
            most[change * last < 0.0] *= 0.5  # or they go to and fro by as much as they may
            last = change
            moved = max(np.abs((b.states - a.states) * roots).max() for a, b in pairs)
            if moved <= self.horizon.settled:
                break
        return plan

    def _learn(self, at: Moment) -> None:
        """Learn of the disturbance, from what the state is off from where the plan led to.

        It is at most a unit of it at a time, so that a blow does not look like one that lasts.
        """
        if not self._disturbed or self._seen is None:
            return
        plan, last = self._seen
        h = at.time - last.time
        if at.events != last.events or not _SOONEST <= h <= 2.0 * self.horizon.sample:
            return
        found = self._course.step(plan, last, h, self.disturbance)
        off, along = at.state - found.states[0], self._state * found.by_disturbance[0]
        effect = float(along @ found.by_disturbance[0])
        if effect == 0.0:
            return
        missing = float(along @ off) / effect
        share = -math.expm1(-h / self.horizon.memory)
        self.disturbance += share * min(max(missing, -1.0), 1.0)

    def _programme(self, plan: Plan, surface: float, most: Array) -> Programme:
        """The programme around a plan. most: by which durations may change, s."""
        course, sections = self._course, plan.sections
        pairs = enumerate(zip(sections, most.tolist(), strict=True))
        aims = [course.aim(s, k > 0, each, self.disturbance) for k, (s, each) in pairs]
        junctions = [course.junctions[section.phase] for section in sections]
        if surface:
            assert self._rise is not None
            aims[0] = replace(aims[0], surface=surface)
            down = junctions[0].offset - surface * self._rise
            junctions[0] = replace(junctions[0], offset=down)
        after = sections[-1].phase + 1
        final = self._values[after % len(self._values)]
        costs = Costs(self._state, self._input, self.horizon.duration, final)
        return Programme(course.models, list(sections), aims, junctions, costs, self._limits)


@dataclass(frozen=True, eq=False)
class _Planned(LinearFeedback):
    """The input of a plan from a moment on, a feedback law without gains."""

    course: Course
    plan: Plan
    at: Moment
    limits: Array

    def __call__(self, t: float, x: Array) -> Array:
        return np.asarray(self.along(np.array([t]))[0][0])

    def along(self, times: Array) -> tuple[Array, Array]:
        """Inputs (m, nu) at times (m,), s, and gains of zero."""
        at, model = self.at, self.course.models[0]
        place = self.plan.place(at.time, at.events, at.touched)
        s = self.plan.sections[place.section]
        fractions = place.fraction + s.rate * (times - at.time)
        u = self.course.inputs(s.phase, fractions) + s.corrections[place.interval]
        u = cut(self.course.outwards(u, at.events), self.limits)
        return u, np.zeros((len(times), model.nu, model.nx))
