"""Many members of one system, whose arcs in one mode are flown together.

Members wait at the starts of their arcs, and those that wait in one mode fly together. What an arc
or an event needs beyond steps and guards that decide themselves, the member does alone, by the
functions of `hybrid.run`. A member for which something raises is given up: simulated on its own,
it shows what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import HybridctlError, SimulationError
from hybridctl.base.progress import Report
from hybridctl.hybrid.arc import Arc, make_arc_from_steps
from hybridctl.hybrid.events import Crossing
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mode import Held, ModeKey
from hybridctl.hybrid.model import BatchFunction
from hybridctl.hybrid.policy import History, ask_input_law
from hybridctl.hybrid.rest import find_rest
from hybridctl.hybrid.run import (
    MAX_STEP_GROWTH,
    ArcStart,
    BriefEvent,
    Run,
    check_start,
    fire_event,
    integrate_arc,
)
from hybridctl.hybrid.zeno import CROWD_SIZE
from hybridctl.sampling.flight import Flight, HeldMode
from hybridctl.sampling.watch import Flags, Rows
from hybridctl.sensitivity.linearization import compute_jump_matrix
from hybridctl.sensitivity.propagation import compute_arc_transition
from hybridctl.sensitivity.saltation import GRAZING_RATIO
from hybridctl.sensitivity.simultaneous import jump_derivative


class MemberEnd(NamedTuple):
    """Where a member of a batch ended, as far as it got, and its events.

    matrix (ndx, ndx0): None where it is not asked for, or there is none. error: why it failed.
    """

    mode: ModeKey | None = None
    state: Array | None = None
    matrix: Array | None = None
    events: Sequence[BriefEvent] = ()
    error: HybridctlError | None = None


class _Wave(NamedTuple):
    """Members rows (m,) at the starts of arcs in one mode: times (m,), states (m, nx).

    matrices (m, ndx, ndx0): how they have come there, None where that is not asked for.
    """

    rows: Rows
    times: Array
    states: Array
    matrices: Array | None

    def part(self, which: Rows) -> _Wave:
        """The members at some positions."""
        matrices = None if self.matrices is None else self.matrices[which]
        return _Wave(self.rows[which], self.times[which], self.states[which], matrices)

    @staticmethod
    def joined(waves: Sequence[_Wave]) -> _Wave:
        """All members of waves in one mode."""
        rows, times, states, matrices = zip(*waves, strict=True)
        whole = None if matrices[0] is None else np.concatenate(matrices)
        return _Wave(np.concatenate(rows), np.concatenate(times), np.concatenate(states), whole)


class _MappedJump(NamedTuple):
    """The jump of a guard as a function of many points, see `CompiledSteps.batched_jump`.

    target, after: where it leads.
    """

    target: ModeKey
    after: HeldMode
    function: BatchFunction

    def saltation(self, times: Array, found: Sequence[Array]) -> Array:
        """The saltation matrices (m, nx+, nx), given what the function returned at these times."""
        states, _, by_state, reset_state, reset_rate = found
        change = self.after.rate(times, states) - reset_rate
        return np.asarray(reset_state - change[:, :, None] * by_state[:, None, :])


class Lockstep:
    """The members of a batch, flown to the end of its span.

    run: the settings of each, with a policy whose laws are held inputs that do not depend on the
    state. modes, states: of the members at time `start`, s. matrices: rtol and atol of transition
    matrices, None where none are asked for. report: called with the share (from 0 to 1) of the
    members that have ended. Afterwards ends: of the members that got there; the
    others are those for which something raises.
    """

    def __init__(
        self,
        run: Run,
        modes: Sequence[ModeKey],
        states: Sequence[Array],
        start: float,
        matrices: tuple[float, float] | None,
        report: Report | None = None,
    ) -> None:
        self._run, self._start, self._tolerances = run, start, matrices
        n = len(modes)
        self.ends: dict[int, MemberEnd] = {}
        self._events: list[list[BriefEvent]] = [[] for _ in range(n)]
        self._steps, self._fired = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
        self._recent = np.full((n, CROWD_SIZE - 1), -np.inf)  # times of the last events
        self._lengths: dict[ModeKey, Array] = {}
        self._ground, self._jump_of = cache(self._new_ground), cache(self._new_jump)
        self._waiting: dict[tuple[ModeKey, int], list[_Wave]] = {}
        for key in dict.fromkeys(modes):
            rows = np.array([i for i in range(n) if modes[i] == key])
            x, t = np.array([states[i] for i in rows.tolist()]), np.full(len(rows), start)
            eye = np.eye(run.system.mode(key).space.ndx)
            wave = _Wave(rows, t, x, matrices and np.tile(eye, (len(rows), 1, 1)))
            self._wait(key, self._holding(key, wave))
        while self._waiting:
            key, width = max(self._waiting, key=lambda k: sum(map(_size, self._waiting[k])))
            self._flow(key, _Wave.joined(self._waiting.pop((key, width))))
            if report is not None:
                report(len(self.ends) / n)

    def _wait(self, key: ModeKey, wave: _Wave) -> None:
        width = 0 if wave.matrices is None else wave.matrices.shape[2]
        self._waiting.setdefault((key, width), []).append(wave)

    def _holding(self, key: ModeKey, wave: _Wave) -> _Wave:
        """The members that begin on what their mode holds."""
        held = self._run.system.mode(key).held
        if held is None:
            return wave
        good = np.array([_begins(held, key, x) for x in wave.states], dtype=bool)
        return wave.part(np.flatnonzero(good))

    def _flow(self, key: ModeKey, wave: _Wave) -> None:
        """Simulate the next arc of all members of a wave together."""
        late = wave.times >= self._run.t_end
        self._arrive(key, wave.part(np.flatnonzero(late)))
        wave = wave.part(np.flatnonzero(~late))
        known = self._lengths.setdefault(key, np.full(len(self._events), np.nan))
        ground = self._ground(key)
        starts = np.array([not self._events[i] for i in wave.rows.tolist()], dtype=bool)
        if ground is None or not len(wave.rows):
            self._alone(key, wave)
            return
        flight = Flight(ground, wave.times, wave.states, known[wave.rows])
        odd = flight.odd | (starts & flight.outside)
        good = np.flatnonzero(~odd)
        rows = wave.rows[good]
        self._steps[rows] += flight.steps[good]
        lasted = MAX_STEP_GROWTH * (flight.end - wave.times)[good]
        known[rows] = np.minimum(flight.length[good], lasted)
        odd[good] |= self._steps[rows] > self._run.max_steps
        self._alone(key, wave.part(np.flatnonzero(odd)))
        self._land(key, wave, flight, ~odd)

    def _land(self, key: ModeKey, wave: _Wave, flight: Flight, good: Flags) -> None:
        """Take members that have flown to the end of the span or through their event."""
        matrices = wave.matrices
        if matrices is not None and flight.matrix is not None:
            matrices = flight.matrix @ matrices
        there = _Wave(wave.rows, flight.end, flight.states[:, -1], matrices)
        self._arrive(key, there.part(np.flatnonzero(good & (flight.guard < 0))))
        for i in np.unique(flight.guard[good & (flight.guard >= 0)]).tolist():
            which = np.flatnonzero(good & (flight.guard == i))
            ordinary = self._jump(key, i, there.part(which))
            for k in which[~ordinary].tolist():
                self._cross_alone(key, i, there.part(np.array([k])), flight.last_arc(k))

    def _arrive(self, key: ModeKey, wave: _Wave) -> None:
        space = self._run.system.mode(key).space
        states = wave.states
        if space.nx != space.ndx:
            states = np.array([space.normalize(x) for x in states]).reshape(states.shape)
        for k, i in enumerate(wave.rows.tolist()):
            matrix = None if wave.matrices is None else wave.matrices[k]
            self.ends[i] = MemberEnd(key, states[k], matrix, self._events[i])

    def _jump(self, key: ModeKey, guard: int, wave: _Wave) -> Flags:
        """Take members through an event that is an expression; returns for whom it was one."""
        jump, run = self._jump_of(key, guard), self._run
        if jump is None:
            return np.zeros(len(wave.rows), dtype=bool)
        crowded = wave.times - self._recent[wave.rows, 0] <= run.zeno.crowding_span
        ordinary: Flags = ~crowded & (self._fired[wave.rows] < run.max_events)
        inputs = np.tile(self._input(key), (len(wave.rows), 1))
        found = jump.function(wave.times[:, None], wave.states, inputs)
        states, slopes = found[:2]
        ordinary &= np.isfinite(states).all(axis=1)
        matrices = wave.matrices
        if matrices is not None:
            ordinary &= slopes[:, 0] < -GRAZING_RATIO * slopes[:, 1]
            matrices = jump.saltation(wave.times, found) @ matrices
        after = _Wave(wave.rows, wave.times, states, matrices).part(np.flatnonzero(ordinary))
        name = run.system.outgoing(key).guards.names[guard]
        members = after.rows.tolist(), after.times.tolist(), wave.states[ordinary], after.states
        for i, t, x, landed in zip(*members, strict=True):
            self._events[i].append(BriefEvent(t, (name,), key, jump.target, x, landed))
        self._count(after.rows, after.times)
        if len(after.rows):
            self._wait(jump.target, after)
        return ordinary

    def _count(self, rows: Rows, times: Array) -> None:
        self._fired[rows] += 1
        self._recent[rows, :-1] = self._recent[rows, 1:]
        self._recent[rows, -1] = times

    def _alone(self, key: ModeKey, wave: _Wave) -> None:
        """Simulate the next arc of every member of a wave by itself."""
        for k in range(len(wave.rows)):
            one = wave.part(np.array([k]))
            with suppress(HybridctlError):
                arc, crossing = self._arc(key, one)
                if self._tolerances is not None and one.matrices is not None:
                    mode = self._run.system.mode(key)
                    carried = compute_arc_transition(mode, arc, *self._tolerances) @ one.matrices
                    one = one._replace(matrices=carried)
                if crossing is None:
                    self._arrive(key, one._replace(states=arc(arc.end)[None]))
                else:
                    self._cross(one, arc, crossing)

    def _arc(self, key: ModeKey, one: _Wave) -> tuple[Arc, Crossing | None]:
        """The arc of one member, and what ends it before the span ends."""
        run, mode, i = self._run, self._run.system.mode(key), int(one.rows[0])
        t, x, u = float(one.times[0]), one.states[0], self._input(key)
        point = ArcStart(mode, HeldInput(u), t, x, u, np.inf)
        if not self._events[i]:
            check_start(run, point)
        known, of_mode = self._lengths[key], run.recall_mode(mode)
        run.memory.steps = int(self._steps[i])
        of_mode.first_step = None if np.isnan(known[i]) else float(known[i])
        flown = integrate_arc(run, point)
        if flown.step_limit is not None:
            raise SimulationError(flown.step_limit)
        self._steps[i] = run.memory.steps
        known[i] = np.nan if of_mode.first_step is None else of_mode.first_step
        return make_arc_from_steps(0, mode, flown.steps, t, x, u, flown.end), flown.crossing

    def _cross_alone(self, key: ModeKey, guard: int, one: _Wave, arc: Arc) -> None:
        name = self._run.system.outgoing(key).guards.names[guard]
        with suppress(HybridctlError):
            self._cross(one, arc, Crossing(arc.end, (name,)))

    def _cross(self, one: _Wave, arc: Arc, crossing: Crossing) -> None:
        """Take one member through the event at the end of an arc."""
        run, i = self._run, int(one.rows[0])
        if self._fired[i] == run.max_events:
            raise SimulationError("more events than allowed")
        resting = find_rest(run, arc, crossing, self._events[i])
        event, point = fire_event(run, arc, crossing, (), resting)
        matrices = one.matrices
        if matrices is not None:
            jump = jump_derivative(run.system, event)
            matrices = compute_jump_matrix(jump, event, len(self._events[i])) @ matrices
        key = point.mode.key
        self._events[i].append(BriefEvent.of(event))
        times = np.array([event.time])
        self._count(one.rows, times)
        self._wait(key, _Wave(one.rows, times, point.state[None], matrices))

    def _input(self, key: ModeKey) -> Array:
        """The input (nu,) in a mode, which is the same at all times and states."""
        mode = self._run.system.mode(key)
        nothing = np.zeros(mode.space.nx)
        law = ask_input_law(self._run.policy, History(key, self._start, nothing), mode.nu)
        return law(self._start, nothing)

    def _new_ground(self, key: ModeKey) -> HeldMode | None:
        """The mode as a flight sees it, None where its members do not fly together."""
        mode = self._run.system.mode(key)
        compiled = mode.compiled_steps
        steps = None if compiled is None else compiled.batched
        if steps is None:
            return None
        try:
            u = self._input(key)
        except HybridctlError:  # an input that does not fit
            return None
        return HeldMode(mode, steps, self._run, u, self._tolerances)

    def _new_jump(self, key: ModeKey, guard: int) -> _MappedJump | None:
        """The jump of a guard, None where it is not an expression between modes that fly."""
        run, ways = self._run, self._run.system.outgoing(key)
        fired = (ways.guards.names[guard],)
        edge = ways.edge(fired)
        if edge is None or edge.target is None:
            return None
        before, after = self._ground(key), self._ground(edge.target)
        if (
            before is None
            or after is None
            or (run.zeno.takes_rest and ways.rest(fired) is not None)
        ):
            return None
        compiled = before.mode.compiled_steps
        jump = None if compiled is None else compiled.batched_jump(guard, edge.reset)
        if jump is None or after.mode.selects or after.mode.held is not None:
            return None
        return _MappedJump(edge.target, after, jump)


def _begins(held: Held, key: ModeKey, x: Array) -> bool:
    """Whether an arc of a mode that holds this can begin at the state x."""
    with suppress(HybridctlError):
        held.check("x0", key, x)
        return True
    return False


def _size(wave: _Wave) -> int:
    return len(wave.rows)
