"""The motion that a predictive controller follows, phase by phase, and sections along it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebval

from hybridctl.base.checks import Array, check_count, check_number
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.predictive.functions import PhaseModel, Steps
from hybridctl.planning.predictive.programme import Aim, Followed, Junction, Section
from hybridctl.planning.trajectory.functions import least_gaps
from hybridctl.planning.trajectory.optimise import OptimalTrajectory
from hybridctl.planning.trajectory.redundant import implied_guards
from hybridctl.planning.trajectory.task import Task
from hybridctl.sensitivity.symmetry import map_mode

_MERGED = 0.25  # of an interval: what is left of one is part of the next one
_BEYOND = 1.2  # of a phase, to which feedforward goes on
_BEGUN = 0.9  # of a phase, at which it is taken up at the latest where no plan is
_SAME = 1e-9  # of a phase, by which fractions differ from rounding
_SHORTEST = 2e-4  # s, of what is left of a phase
_WHOLE = (0.4, 1.8)  # of the reference: durations of phases that are to come
_SPARE = 0.03  # s, that any phase may last longer
_SUBSTEP = 0.005  # s, of predictions
_HEIGHTS = 100  # at which it is known what the motion's impact would be


@dataclass(frozen=True)
class Horizon:
    """How far a predictive controller looks ahead, how finely, and how often.

    intervals: of the present phase, and of each later one. phases: whole ones after the present.
    sample: the longest time between plans, s. delay: by which the input of a plan comes later than
    the state it is made from, s, at most the sample; the state is predicted over it. iterations: of
    sequential quadratic programming, at most, at a sample; there is another one while the last has
    moved a state by more than `settled`, in the root of what states cost per s. memory: for how
    long what was seen of a disturbance counts, s. patience: how long an event is waited for that
    does not come where it should, s; then the fixed law acts. duration: the weight of durations
    that differ from the motion's, 1/s^2. change: the most by which an iteration may change one, s.
    longest: how long the rest of a phase may take, as a factor. early: the height, m, by which what
    contacts meet may be higher than known: limits of the next impact hold from where the plan
    comes down to it, as far as the motion would keep them there. stay: how far ahead at least it is
    looked where the last phase ends with no event, s.
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
        for i, n in enumerate(self.intervals):
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


class PlanPlace(NamedTuple):
    """The place of a plan at a time: in which section, at what fraction of its phase.

    interval: its number, and left: the time to its end, s. rest: the time to the section's end, s.
    """

    section: int
    fraction: float
    interval: int
    left: float
    rest: float


@dataclass(frozen=True, eq=False)
class Plan:
    """Sections from a time on, s, after so many events, the last one at `touched`, s."""

    time: float
    events: int
    touched: float
    sections: tuple[Section, ...]

    def place(self, time: float, events: int, touched: float) -> PlanPlace:
        """The place at a time, s, if so many events have happened, the last one then."""
        k = min(events - self.events, len(self.sections) - 1)
        s, since = self.sections[k], time - (touched if k else self.time)
        last, rate = len(s.corrections) - 1, s.rate
        fraction = float(s.fractions[0] + since * rate)
        i = min(int(s.fractions.searchsorted(fraction + _SAME, "right")) - 1, last)
        left = (float(s.fractions[i + 1]) - fraction) / rate
        return PlanPlace(k, fraction, i, left, (float(s.fractions[-1]) - fraction) / rate)


class Moment(NamedTuple):
    """A time, s, a state there, in the coordinates of its phase, and the events so far."""

    time: float
    state: Array
    events: int
    touched: float


class Course:
    """A motion in phases, for ever where its task has a symmetry; states in phases' coordinates.

    Coordinates of a phase are those of the first time it is gone through: later ones are seen
    through the symmetry. A last phase that ends with no event goes on past its end: the state stays
    as it is there, under the input that keeps it best.
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
        arcs = motion.plan.arcs
        implied = implied_guards(task, lambda k, _: arcs[k](arcs[k].end))
        self.models = [PhaseModel(task, k, disturbed, compiled, implied) for k in phases]
        nx, nu, symmetry = self.models[0].nx, self.models[0].nu, task.symmetry
        self.is_cyclic = symmetry is not None
        self._state = np.eye(nx) if symmetry is None else symmetry.matrix
        self._input = np.eye(nu) if symmetry is None else symmetry.inputs(nu)
        self._back = np.linalg.inv(self._input)
        free = np.zeros((nx, 0)) if symmetry is None else symmetry.directions
        self._onto = free @ np.linalg.pinv(free)
        self._kept = None if self.ends(phases[-1]) else self._keeping(phases[-1])
        self.junctions = [self._junction(k) for k in phases]
        self._known: dict[tuple[int, int], tuple[Array, Followed]] = {}
        curves = motion.feedforward
        self._slopes = [curve.rate(curve.start + curve.length) for curve in curves]
        self._falls = {k: self._fall(k) for k in phases if self.models[k].lands}

    def phase(self, events: int) -> int:
        """The number of the phase after so many events."""
        return events % len(self.models)

    def ends(self, phase: int) -> bool:
        """Whether the phase ends with an event."""
        return bool(self.task.phases[phase].ends)

    def begun(self, phase: int, since: float) -> float:
        """The fraction of a phase that is over so many seconds after its begin."""
        fraction = max(since / self.length(phase), 0.0)
        return min(fraction, _BEGUN) if self.ends(phase) else fraction

    def ended(self, history: History) -> tuple[int, float]:
        """How many phases have ended, and when the last did, s; minus infinity where none has.

        One ends with an event of guards after which the mode is that of the next phase.
        """
        count, last = 0, -math.inf
        for event in history.events:
            if event.guards and self.knows(event.mode_after, count + 1):
                count, last = count + 1, event.time
        return count, last

    def knows(self, mode: ModeKey, events: int) -> bool:
        """Whether the motion has this mode after so many events."""
        rounds, phase = divmod(events, len(self.models))
        if rounds and not self.is_cyclic:
            return False
        symmetry = self.task.symmetry if rounds % 2 else None
        return map_mode(symmetry, mode) == self.task.phases[phase].mode

    def inwards(self, x: Array, events: int) -> Array:
        """A state of the system in the coordinates of the phase after so many events."""
        rounds = events // len(self.models)
        return np.linalg.matrix_power(self._state, rounds) @ x

    def outwards(self, u: Array, events: int) -> Array:
        """Inputs (..., nu) in the coordinates of a phase as those of the system."""
        rounds = events // len(self.models)
        return np.asarray(u @ np.linalg.matrix_power(self._back, rounds).T)

    def length(self, phase: int) -> float:
        """The duration of a phase, s."""
        return self.motion.feedforward[phase].length

    def states(self, phase: int, fractions: Array) -> Array:
        """States (m, nx) of the motion at fractions (m,) of a phase."""
        arc = self.motion.plan.arcs[phase]
        return arc(arc.start + np.clip(fractions, 0.0, 1.0) * (arc.end - arc.start))

    def inputs(self, phase: int, fractions: Array) -> Array:
        """Inputs (m, nu) of the motion at fractions (m,) of a phase, and beyond it."""
        curve = self.motion.feedforward[phase]
        place = 2.0 * np.clip(fractions, 0.0, _BEYOND) - 1.0
        u = np.asarray(chebval(place, curve.coefficients).T)
        if not self.ends(phase):
            u[fractions > 1.0] = self._kept
        return u

    def followed(self, phase: int, fractions: Array) -> Followed:
        """The motion at fractions (n + 1,) of a phase, with the error of one step between each two.

        The error of a step is what it misses the next fraction by where it begins on the motion;
        past the end of a phase, where the motion is only held, it is zero. Of whole phases the
        result is kept.
        """
        key, whole = (phase, len(fractions)), fractions[0] == 0.0
        if whole and key in self._known and np.array_equal(self._known[key][0], fractions):
            return self._known[key][1]
        x, u = self.states(phase, fractions), self.inputs(phase, fractions)
        middles = self.inputs(phase, 0.5 * (fractions[:-1] + fractions[1:]))
        model, h = self.models[phase], np.diff(fractions) * self.length(phase)
        ends = model.moved(x[:-1], (u[:-1], middles, u[1:]), h)
        missed = np.where(fractions[1:, None] < 1.0 + _SAME, ends - x[1:], 0.0)
        clearance = least_gaps(self.task, phase, model.open, np.minimum(fractions, 1.0))
        found = Followed(x, u, middles, missed, clearance)
        if whole:
            self._known[key] = fractions, found
        return found

    def _keeping(self, phase: int) -> Array:
        """The input (nu,) that keeps the state in which a phase ends, by least squares."""
        one = np.ones(1)
        curve = self.motion.feedforward[phase]
        u = curve(curve.start + curve.length)
        moves = self.models[phase].field(self.states(phase, one), u[None])
        return np.asarray(u - np.linalg.pinv(moves.by_input[0]) @ moves.values[0])

    def _nodes(self, phase: int, begin: float, intervals: int) -> Array:
        """Fractions from `begin` on, with so many intervals in all of the phase.

        Where it ends with no event, in what is left of it, which is at least `Horizon.stay`.
        """
        if self.ends(phase):
            return _from(np.linspace(0.0, 1.0, intervals + 1), begin)
        span = max(1.0 - begin, self.horizon.stay / self.length(phase))
        return begin + span * np.linspace(0.0, 1.0, intervals + 1)

    def section(self, phase: int, begin: float, intervals: int) -> Section:
        """The motion itself, from a fraction of a phase on."""
        fractions = self._nodes(phase, begin, intervals)
        nothing = np.zeros((len(fractions) - 1, self.models[phase].nu))
        left = float(fractions[-1] - begin) * self.length(phase)
        return Section(phase, fractions, self.states(phase, fractions), nothing, left)

    def sections(self, events: int, begin: float) -> tuple[Section, ...]:
        """The motion itself over the horizon, from a fraction of its present phase on."""
        first, others = self.horizon.intervals
        last = events + self.horizon.phases
        if not self.is_cyclic:
            last = min(last, len(self.models) - 1)
        later = [self.section(self.phase(k), 0.0, others) for k in range(events + 1, last + 1)]
        return (self.section(self.phase(events), begin, first), *later)

    def seen(self, plan: Plan, at: Moment) -> Moment:
        """The moment, its state moved along free directions to where the plan is."""
        place = plan.place(at.time, at.events, at.touched)
        near = plan.sections[place.section].states[place.interval]
        return at._replace(state=at.state - self._along(at.state - near))

    def _junction(self, phase: int) -> Junction:
        """How states go on after the event that ends a phase, on to the next one's coordinates."""
        following = phase + 1
        matrix = np.eye(len(self._state))
        if following == len(self.models) and self.is_cyclic:
            following, matrix = 0, self._state
        after, _ = self.models[phase].jump(self.states(phase, np.ones(1))[0])
        if following == len(self.models):
            return Junction(matrix, np.zeros(len(after)), after)
        target = self.states(following, np.zeros(1))[0]
        return Junction(matrix, self._along(target - matrix @ after), target)

    def carried_on(self, plan: Plan, at: Moment) -> Plan:
        """The plan from a moment on, whose state is its first."""
        place = plan.place(at.time, at.events, at.touched)
        s, begin = plan.sections[place.section], max(place.fraction, 0.0)
        if not self.ends(s.phase):
            s = self._resampled(s, self._nodes(s.phase, begin, self.horizon.intervals[0]))
            rest = s.duration
        else:
            begin = min(begin, 1.0 - _SHORTEST / self.length(s.phase))
            rest = max(place.rest, _SHORTEST)
            if place.section:
                s = self._resampled(s, self._nodes(s.phase, 0.0, self.horizon.intervals[0]))
        fractions = _from(s.fractions, begin)
        n = len(fractions) - 1
        states = np.vstack((at.state, s.states[-n:]))
        s = Section(s.phase, fractions, states, s.corrections[-n:], rest)
        later = plan.sections[place.section + 1 :]
        fresh = self.sections(at.events, begin)[1 + len(later) :]
        return Plan(at.time, at.events, at.touched, (s, *later, *fresh))

    def ahead(self, plan: Plan, at: Moment, delay: float, disturbance: float) -> Moment:
        """The moment after a delay under the plan, through an event where its guard falls to 0."""
        end = at.time + delay
        while end - at.time > 1e-9:
            h = min(_SUBSTEP, end - at.time)
            phase = plan.sections[plan.place(at.time, at.events, at.touched).section].phase
            then = at._replace(
                time=at.time + h, state=self.step(plan, at, h, disturbance).states[0]
            )
            before, after = self.guard(plan, at), self.guard(plan, then)
            ends = after <= 0.0 < before and at.events - plan.events + 1 < len(plan.sections)
            if ends:  # where the secant of the guard vanishes
                h *= before / (before - after)
                x = self.step(plan, at, h, disturbance).states[0]
                then = at._replace(time=at.time + h, state=x)
            at = then
            if ends:
                j = self.junctions[phase]
                after_it = self.models[phase].jump(at.state, disturbance)[0]
                y = j.matrix @ after_it + j.offset
                at = Moment(at.time, y, at.events + 1, at.time)
        return at

    def step(self, plan: Plan, at: Moment, h: float, disturbance: float) -> Steps:
        """One step of h s from a moment on, under the input of the plan.

        A step beside it along the motion itself tells what steps miss there.
        """
        place = plan.place(at.time, at.events, at.touched)
        s = plan.sections[place.section]
        fractions = place.fraction + s.rate * h * np.array([0.0, 0.5, 1.0])
        u, on_it = self.inputs(s.phase, fractions), self.states(s.phase, fractions[::2])
        given = np.stack((u + s.corrections[place.interval], u), axis=1)
        found = self.models[s.phase].steps(
            np.stack((at.state, on_it[0])),
            (given[0], given[1], given[2]),
            np.array([h, s.rate * h * self.length(s.phase)]),
            np.array([[disturbance], [0.0]]),
        )
        missed = found.states[1] - on_it[1] if fractions[2] < 1.0 + _SAME else 0.0
        own = Steps(*(part[:1] for part in found))
        return own._replace(states=own.states - missed)

    def guard(self, plan: Plan, at: Moment) -> float:
        """The largest value of the guards that end the phase, under the plan; infinite without."""
        place = plan.place(at.time, at.events, at.touched)
        s = plan.sections[place.section]
        u = self.inputs(s.phase, np.array([place.fraction])) + s.corrections[place.interval]
        return float(self.guards(s.phase, at.state[None], u)[0])

    def guards(self, phase: int, x: Array, u: Array) -> Array:
        """The largest of the guards (m,) that end a phase, at m states and inputs.

        x (m, nx), u (m, nu); infinite in a phase that no guard ends.
        """
        model = self.models[phase]
        if not model.guards:
            return np.full(len(x), np.inf)
        values = model.end(x, u, np.zeros(model.nu)).values
        return np.asarray(values[:, model.guards].max(axis=1))

    def heights(self, phase: int, x: Array) -> Array:
        """The largest gaps (m,) of what a phase that lands ends with, of states (m, nx), m."""
        return self.guards(phase, x, np.zeros((len(x), self.models[phase].nu)))

    def standing(self, phase: int, x: Array) -> float:
        """The mean gap of contacts that are closed in a phase, m."""
        closed = list(closed_contacts(self.task.phases[phase].mode))
        gaps = self.task.system.dynamics.gaps(x[: self.task.system.robot.nq])
        return float(np.mean(gaps[closed])) if closed else 0.0

    def aim(self, s: Section, whole: bool, most: float, disturbance: float = 0.0) -> Aim:
        """What a section is to follow, and the bounds within which it may differ.

        whole: whether it is a phase that is to come. most: by which its duration may change, s.
        """
        a, model, length = s.fractions, self.models[s.phase], self.length(s.phase)
        nominal = float(a[-1] - a[0]) * length
        shortest, longest = _WHOLE if whole else (0.0, self.horizon.longest)
        spare = _SPARE
        if not self.ends(s.phase):
            shortest, longest = (d / length for d in self.task.phases[s.phase].duration)
            spare = 0.0
        least = max(-most, min(0.0, max(shortest * nominal, 0.01 * _SHORTEST) - s.duration))
        greatest = min(most, max(0.0, longest * nominal + spare - s.duration))
        slope = self._slopes[s.phase] * length * s.rate
        ends, lowest = self._ends(s) if model.lands and not whole else self._last(s)
        motion = self.followed(s.phase, a)
        return Aim(motion, slope, nominal, least, greatest, ends, lowest, disturbance)

    def _fall(self, phase: int) -> tuple[Array, Array]:
        """Heights (m,) of the motion before a landing, made monotone, and values of end limits.

        values (m, r): what the limits of the phase's end are of, at these points of the motion.
        """
        fractions = np.linspace(1.0, 0.0, _HEIGHTS)
        states, inputs = self.states(phase, fractions), self.inputs(phase, fractions)
        heights = self.heights(phase, states)
        last = int(heights.argmax()) + 1
        slope = np.zeros(self.models[phase].nu)
        values = self.models[phase].end(states[:last], inputs[:last], slope).values
        return np.maximum.accumulate(heights[:last]), values

    def _last(self, s: Section) -> tuple[int, Array]:
        """The last node of a section that ends only there, and its lower limits (n + 1, r)."""
        n = len(s.corrections)
        lower = [limit.lower for limit in self.models[s.phase].end_limits]
        return n, np.tile(np.array(lower), (n + 1, 1))

    def _ends(self, s: Section) -> tuple[int, Array]:
        """The first node where a section that lands may end, early too, and its lower limits.

        Before the last node limits ask for no more than the motion keeps at that height.
        """
        n, lowest = self._last(s)
        heights = self.heights(s.phase, s.states)
        above = np.flatnonzero(heights[:-1] > self.horizon.early)
        known, values = self._falls[s.phase]
        kept = np.array([np.interp(heights[:-1], known, column) for column in values.T]).T
        lowest[:-1] = np.minimum(lowest[:-1], kept)
        first = above[-1] + 1 if len(above) else 0
        return int(max(heights[:n].argmax(), first)), lowest

    def _resampled(self, s: Section, fine: Array) -> Section:
        """The section at other nodes; beyond its last one what is planned there goes on."""
        off = s.states - self.states(s.phase, s.fractions)
        between = np.array([np.interp(fine, s.fractions, column) for column in off.T]).T
        of = s.fractions[:-1].searchsorted(fine[:-1] + _SAME, "right") - 1
        states, left = self.states(s.phase, fine) + between, float(fine[-1] - fine[0]) / s.rate
        return Section(s.phase, fine, states, s.corrections[of], left)

    def _along(self, off: Array) -> Array:
        """The part of a deviation along the free directions."""
        return np.asarray(self._onto @ off)


def _from(fractions: Array, begin: float) -> Array:
    """Nodes from `begin` on, without one that is very near to it."""
    kept = fractions > begin + _MERGED * (fractions[-1] - fractions[-2])
    kept[-1] = True
    return np.append(begin, fractions[kept])
