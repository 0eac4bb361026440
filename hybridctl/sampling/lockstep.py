"""Many members of one system, whose arcs in one mode are integrated together.

Members wait at the starts of their arcs. The mode in which most of them wait is next: their arcs
are integrated together (`BatchedArcs`), and members whose events are expressions jump together.
What needs more is done for each member alone, by the functions of `hybrid.run`. A member for which
one of these raises is given up here. It is then simulated on its own, which shows what is wrong.
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
from hybridctl.base.spaces import normalize_points
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
from hybridctl.sampling.batched_arcs import BatchedArcs, BatchedMode
from hybridctl.sampling.batched_guards import Flags, Rows
from hybridctl.sensitivity.linearization import compute_jump_matrix
from hybridctl.sensitivity.propagation import compute_arc_transition
from hybridctl.sensitivity.saltation import GRAZING_RATIO
from hybridctl.sensitivity.simultaneous import jump_derivative


class MemberEnd(NamedTuple):
    """Where a member of a batch ended, as far as it got, and its events.

    Attributes:
        mode: Key of the last mode; None for a member that failed.
        state: Last state (nx,); None for a member that failed.
        matrix: Derivative (ndx, ndx0) of the last state by the first. None where it is not asked
            for, and where there is none.
        events: Events on the way.
        error: Why the member failed, or has no matrix; else None.
    """

    mode: ModeKey | None = None
    state: Array | None = None
    matrix: Array | None = None
    events: Sequence[BriefEvent] = ()
    error: HybridctlError | None = None


class _Wave(NamedTuple):
    """Members at the starts of arcs in one mode.

    Attributes:
        rows: Indices (m,) of the members.
        times: Starts (m,) of their arcs, s.
        states: First states (m, nx) of the arcs.
        matrices: Derivatives (m, ndx, ndx0) of these by the first states of the members. None where
            none are asked for.
    """

    rows: Rows
    times: Array
    states: Array
    matrices: Array | None

    def select(self, rows: Rows) -> _Wave:
        """Return the members at some positions."""
        matrices = None if self.matrices is None else self.matrices[rows]
        return _Wave(self.rows[rows], self.times[rows], self.states[rows], matrices)

    @staticmethod
    def join(waves: Sequence[_Wave]) -> _Wave:
        """Return all members of waves in one mode."""
        rows, times, states, matrices = zip(*waves, strict=True)
        whole = None if matrices[0] is None else np.concatenate(matrices)
        return _Wave(np.concatenate(rows), np.concatenate(times), np.concatenate(states), whole)


class _BatchedJump(NamedTuple):
    """The jump of a guard as a compiled function of many points.

    Attributes:
        target: Key of the mode after the jump.
        after: That mode.
        function: The function, see `CompiledSteps.batched_jump`.
    """

    target: ModeKey
    after: BatchedMode
    function: BatchFunction

    def compute_saltation(self, times: Array, results: Sequence[Array]) -> Array:
        """Return the saltation matrices (m, nx+, nx), [Salt] (2).

        Args:
            times: Times (m,) of the jumps, s.
            results: What the function returned at these times.
        """
        states, _, time_state, reset_state, reset_rate = results
        change = self.after.compute_rates(times, states) - reset_rate
        return np.asarray(reset_state - change[:, :, None] * time_state[:, None, :])


class Lockstep:
    """The members of a batch, simulated by the constructor to the end of its span.

    Args:
        run: Settings of each member. The policy has to be None or a held input, which depends on
            the mode only.
        modes: Mode of each of the n members.
        states: Its first state.
        start: First time of all, s.
        transition_tolerances: rtol and atol of transition matrices. None where none are asked for.
        report: Called with the share (from 0 to 1) of the members that have ended; None for none.

    Attributes:
        ends: Ends by member, of those that got to the end of the span. For the others something
            raises.
    """

    def __init__(
        self,
        run: Run,
        modes: Sequence[ModeKey],
        states: Sequence[Array],
        start: float,
        transition_tolerances: tuple[float, float] | None,
        report: Report | None = None,
    ) -> None:
        self._run, self._start, self._tolerances = run, start, transition_tolerances
        n = len(modes)
        self.ends: dict[int, MemberEnd] = {}
        self._events: list[list[BriefEvent]] = [[] for _ in range(n)]
        self._step_counts, self._event_counts = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
        self._recent_times = np.full((n, CROWD_SIZE - 1), -np.inf)  # of the last events, s
        # Lengths that the next steps of members try in a mode, s; NaN where none is known.
        self._lengths: dict[ModeKey, Array] = {}
        self._find_mode, self._find_jump = cache(self._build_mode), cache(self._build_jump)
        # By mode, and by the number of columns of their matrices.
        self._waiting: dict[tuple[ModeKey, int], list[_Wave]] = {}
        for key in dict.fromkeys(modes):
            rows = np.array([i for i in range(n) if modes[i] == key])
            x, t = np.array([states[i] for i in rows.tolist()]), np.full(len(rows), start)
            matrices = None
            if transition_tolerances is not None:
                matrices = np.tile(np.eye(run.system.mode(key).space.ndx), (len(rows), 1, 1))
            self._wait(key, self._drop_inconsistent(key, _Wave(rows, t, x, matrices)))
        while self._waiting:
            key, columns = max(self._waiting, key=self._count_waiting)
            self._integrate_arcs(key, _Wave.join(self._waiting.pop((key, columns))))
            if report is not None:
                report(len(self.ends) / n)

    def _wait(self, key: ModeKey, wave: _Wave) -> None:
        """Let members wait at the starts of their next arcs."""
        columns = 0 if wave.matrices is None else wave.matrices.shape[2]
        self._waiting.setdefault((key, columns), []).append(wave)

    def _count_waiting(self, place: tuple[ModeKey, int]) -> int:
        """Return the number of members that wait in one place."""
        return sum(len(wave.rows) for wave in self._waiting[place])

    def _drop_inconsistent(self, key: ModeKey, wave: _Wave) -> _Wave:
        """Return the members whose first states obey the constraints of their mode."""
        held = self._run.system.mode(key).held
        if held is None:
            return wave
        good = np.array([_can_begin(held, key, x) for x in wave.states], dtype=bool)
        return wave.select(np.flatnonzero(good))

    def _integrate_arcs(self, key: ModeKey, wave: _Wave) -> None:
        """Integrate the next arcs of all members of a wave, and apply the events at their ends.

        Args:
            key: The mode.
            wave: The members.
        """
        late = wave.times >= self._run.t_end
        self._end_members(key, wave.select(np.flatnonzero(late)))
        wave = wave.select(np.flatnonzero(~late))
        known = self._lengths.setdefault(key, np.full(len(self._events), np.nan))
        mode = self._find_mode(key)
        is_first = np.array([not self._events[i] for i in wave.rows.tolist()], dtype=bool)
        if mode is None or not len(wave.rows):
            self._integrate_alone(key, wave)
            return
        arcs = BatchedArcs(mode, wave.times, wave.states, known[wave.rows])
        # A run that starts outside its mode has an error, which `check_start` raises alone. An arc
        # after an event may begin there: its guard fires at once.
        unresolved = arcs.unresolved | (is_first & arcs.starts_outside)
        good = np.flatnonzero(~unresolved)
        rows = wave.rows[good]
        self._step_counts[rows] += arcs.step_count[good]
        longest = MAX_STEP_GROWTH * (arcs.end - wave.times)[good]
        known[rows] = np.minimum(arcs.next_length[good], longest)
        unresolved[good] |= self._step_counts[rows] > self._run.max_steps
        self._integrate_alone(key, wave.select(np.flatnonzero(unresolved)))
        self._apply_events(key, wave, arcs, ~unresolved)

    def _apply_events(self, key: ModeKey, wave: _Wave, arcs: BatchedArcs, resolved: Flags) -> None:
        """Take members through the events at the ends of their arcs, or to the end of the span.

        Args:
            key: The mode.
            wave: The members at the starts of their arcs.
            arcs: Their arcs.
            resolved: Which of the arcs are to be used.
        """
        matrices = wave.matrices
        if matrices is not None and arcs.transition is not None:
            matrices = arcs.transition @ matrices
        ends = _Wave(wave.rows, arcs.end, arcs.states[:, -1], matrices)
        self._end_members(key, ends.select(np.flatnonzero(resolved & (arcs.fired_guard < 0))))
        for i in np.unique(arcs.fired_guard[resolved & (arcs.fired_guard >= 0)]).tolist():
            which = np.flatnonzero(resolved & (arcs.fired_guard == i))
            has_jumped = self._jump_together(key, i, ends.select(which))
            name = self._run.system.outgoing(key).guards.names[i]
            for k in which[~has_jumped].tolist():
                arc = arcs.find_last_arc(k)
                with suppress(HybridctlError):
                    self._jump_alone(ends.select(np.array([k])), arc, Crossing(arc.end, (name,)))

    def _end_members(self, key: ModeKey, wave: _Wave) -> None:
        """Record the ends of members in `ends`.

        Args:
            key: The mode.
            wave: The members at the end of the span.
        """
        states = normalize_points(self._run.system.mode(key).space, wave.states)
        for k, i in enumerate(wave.rows.tolist()):
            matrix = None if wave.matrices is None else wave.matrices[k]
            self.ends[i] = MemberEnd(key, states[k], matrix, self._events[i])

    def _jump_together(self, key: ModeKey, guard: int, wave: _Wave) -> Flags:
        """Take members through an event whose reset is an expression.

        Some members have to be looked at alone: their events may accumulate, exceed their number,
        graze, or lead to no finite state.

        Args:
            key: The mode.
            guard: Index of the guard that fires.
            wave: The members at the event.

        Returns:
            Whether each has jumped (m,).
        """
        jump, run = self._find_jump(key, guard), self._run
        if jump is None:
            return np.zeros(len(wave.rows), dtype=bool)
        crowded = wave.times - self._recent_times[wave.rows, 0] <= run.zeno.crowding_span
        ordinary: Flags = ~crowded & (self._event_counts[wave.rows] < run.max_events)
        inputs = np.tile(self._find_input(key), (len(wave.rows), 1))
        results = jump.function(wave.times[:, None], wave.states, inputs)
        states, guard_rates = results[:2]
        ordinary &= np.isfinite(states).all(axis=1)
        matrices = wave.matrices
        if matrices is not None:
            ordinary &= guard_rates[:, 0] < -GRAZING_RATIO * guard_rates[:, 1]
            matrices = jump.compute_saltation(wave.times, results) @ matrices
        after = _Wave(wave.rows, wave.times, states, matrices).select(np.flatnonzero(ordinary))
        name = run.system.outgoing(key).guards.names[guard]
        members = after.rows.tolist(), after.times.tolist(), wave.states[ordinary], after.states
        for i, t, x, landed in zip(*members, strict=True):
            self._events[i].append(BriefEvent(t, (name,), key, jump.target, x, landed))
        self._count_events(after.rows, after.times)
        if len(after.rows):
            self._wait(jump.target, after)
        return ordinary

    def _count_events(self, rows: Rows, times: Array) -> None:
        """Count one event of each of some members.

        Args:
            rows: The members.
            times: Times (k,) of their events, s.
        """
        self._event_counts[rows] += 1
        self._recent_times[rows, :-1] = self._recent_times[rows, 1:]
        self._recent_times[rows, -1] = times

    def _integrate_alone(self, key: ModeKey, wave: _Wave) -> None:
        """Integrate the next arc of every member of a wave by itself, and apply its event.

        A member for which something raises is given up.

        Args:
            key: The mode.
            wave: The members.
        """
        for k in range(len(wave.rows)):
            one = wave.select(np.array([k]))
            with suppress(HybridctlError):
                arc, crossing = self._integrate_arc(key, one)
                if self._tolerances is not None and one.matrices is not None:
                    mode = self._run.system.mode(key)
                    matrices = compute_arc_transition(mode, arc, *self._tolerances) @ one.matrices
                    one = one._replace(matrices=matrices)
                if crossing is None:
                    self._end_members(key, one._replace(states=arc(arc.end)[None]))
                else:
                    self._jump_alone(one, arc, crossing)

    def _integrate_arc(self, key: ModeKey, one: _Wave) -> tuple[Arc, Crossing | None]:
        """Return the arc of one member, and the event at its end; None at the end of the span.

        The steps of the member so far, and the length to try, go into the memory of the run, and
        come back from there.

        Args:
            key: The mode.
            one: A wave of this member alone.

        Raises:
            SimulationError: If the arc takes too many steps.
            HybridctlError: If it cannot be integrated.
        """
        run, mode, i = self._run, self._run.system.mode(key), int(one.rows[0])
        t, x, u = float(one.times[0]), one.states[0], self._find_input(key)
        start = ArcStart(mode, HeldInput(u), t, x, u, np.inf)
        if not self._events[i]:
            check_start(run, start)
        known, of_mode = self._lengths[key], run.recall_mode(mode)
        run.memory.steps = int(self._step_counts[i])
        of_mode.first_step = None if np.isnan(known[i]) else float(known[i])
        integrated = integrate_arc(run, start)
        if integrated.step_limit is not None:
            raise SimulationError(integrated.step_limit)
        self._step_counts[i] = run.memory.steps
        known[i] = np.nan if of_mode.first_step is None else of_mode.first_step
        arc = make_arc_from_steps(0, mode, integrated.steps, t, x, u, integrated.end)
        return arc, integrated.crossing

    def _jump_alone(self, one: _Wave, arc: Arc, crossing: Crossing) -> None:
        """Take one member through the event at the end of an arc.

        Args:
            one: A wave of this member alone.
            arc: The arc, or its last step.
            crossing: The event.

        Raises:
            SimulationError: If there are more events than allowed.
            HybridctlError: If the event cannot be applied.
        """
        run, i = self._run, int(one.rows[0])
        if self._event_counts[i] == run.max_events:
            raise SimulationError("more events than allowed")
        rest = find_rest(run, arc, crossing, self._events[i])
        event, start = fire_event(run, arc, crossing, (), rest)
        matrices = one.matrices
        if matrices is not None:
            jump = jump_derivative(run.system, event)
            matrices = compute_jump_matrix(jump, event, len(self._events[i])) @ matrices
        key = start.mode.key
        self._events[i].append(BriefEvent.of(event))
        times = np.array([event.time])
        self._count_events(one.rows, times)
        self._wait(key, _Wave(one.rows, times, start.state[None], matrices))

    def _find_input(self, key: ModeKey) -> Array:
        """Return the input (nu,) in a mode, which is the same at all times and states."""
        mode = self._run.system.mode(key)
        nothing = np.zeros(mode.space.nx)
        law = ask_input_law(self._run.policy, History(key, self._start, nothing), mode.nu)
        return law(self._start, nothing)

    def _build_mode(self, key: ModeKey) -> BatchedMode | None:
        """Return a mode with its functions of many points; None where it is integrated alone."""
        mode = self._run.system.mode(key)
        compiled = mode.compiled_steps
        steps = None if compiled is None else compiled.batched
        if steps is None:
            return None
        try:
            u = self._find_input(key)
        except HybridctlError:  # an input that does not fit: alone each member says so
            return None
        return BatchedMode(mode, steps, self._run, u, self._tolerances)

    def _build_jump(self, key: ModeKey, guard: int) -> _BatchedJump | None:
        """Return the jump of a guard as a function of many points.

        Args:
            key: The mode.
            guard: Index of the guard.

        Returns:
            None where the reset is no expression, where a mode is integrated alone, and where a
            mode has to be selected, a constraint checked, or rest to be considered after the event.
        """
        run, outgoing = self._run, self._run.system.outgoing(key)
        fired = (outgoing.guards.names[guard],)
        edge = outgoing.edge(fired)
        if edge is None or edge.target is None:
            return None
        before, after = self._find_mode(key), self._find_mode(edge.target)
        if (
            before is None
            or after is None
            or (run.zeno.takes_rest and outgoing.rest(fired) is not None)
        ):
            return None
        compiled = before.mode.compiled_steps
        jump = None if compiled is None else compiled.batched_jump(guard, edge.reset)
        if jump is None or after.mode.selects or after.mode.held is not None:
            return None
        return _BatchedJump(edge.target, after, jump)


def _can_begin(held: Held, key: ModeKey, x: Array) -> bool:
    """Return whether an arc can begin at a state, as the constraints of its mode allow it."""
    with suppress(HybridctlError):
        held.check("x0", key, x)
        return True
    return False
