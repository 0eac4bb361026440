"""Arcs of many members in one mode, integrated together, each with step lengths of its own.

Steps, their lengths and their ends are those of `hybrid.flow` and `hybrid.events`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import IntegrationError
from hybridctl.hybrid.arc import Arc, make_arc_from_steps
from hybridctl.hybrid.events import MAX_NEWTON_STEPS
from hybridctl.hybrid.explicit import GROW, SAFETY, SHRINK, choose_first_length
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.model import FREE_PACE, BatchedSteps, ModeModel, StepRequest
from hybridctl.hybrid.projection import StepEnds, project_step_end
from hybridctl.hybrid.run import Run
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.tableau import DOP853_TABLEAU
from hybridctl.hybrid.tolerances import (
    EVENT_TIME_SPACINGS,
    EVENT_TIME_TOLERANCE,
    MIN_RTOL,
    MIN_STEP_SPACINGS,
)
from hybridctl.sampling.batched_guards import BatchedCrossings, BatchedGuardWatch, Flags, Rows
from hybridctl.sensitivity.propagation import compute_arc_transition

_EXPONENT = DOP853_TABLEAU.exponent
_STALL_SPACINGS = 64.0
"""Distance from a root within which an iteration that no longer converges has ended, in spacings of
numbers at t: the rounding of a guard may leave as much."""


@dataclass(frozen=True)
class BatchedMode:
    """A mode under a held input, with its compiled functions of many points.

    Attributes:
        mode: The mode.
        functions: Its rates and steps of many points.
        run: Settings of the run.
        input: The held input (nu,).
        transition_tolerances: rtol and atol of transition matrices. None where none are asked for.
    """

    mode: ModeModel
    functions: BatchedSteps
    run: Run
    input: Array
    transition_tolerances: tuple[float, float] | None

    @property
    def rtol(self) -> float:
        """The relative tolerance of the steps: that of the run, `MIN_RTOL` at least."""
        return float(max(self.run.integrator.rtol, MIN_RTOL))

    def repeat_input(self, m: int) -> Array:
        """Return the input for m members, (m, nu)."""
        return np.broadcast_to(self.input, (m, len(self.input)))

    def compute_rates(self, t: Array, x: Array) -> Array:
        """Return the rates (m, nx) of the coordinates at times (m,) and states (m, nx)."""
        return self.functions.rate(t[:, None], x, self.repeat_input(len(t)))[0]

    def take_steps(self, t: Array, h: Array, x: Array) -> list[Array]:
        """Return the results of `BatchedSteps.step`.

        Args:
            t: Times (m,), s.
            h: Lengths (m,) of the steps, s.
            x: States (m, nx).
        """
        scalars = _stack_scalars(t, h, self.rtol, self.run.integrator.atol)
        return self.functions.step(scalars, x, self.repeat_input(len(t)))


class BatchedArcs:
    """The arcs of m members that begin in one mode: integrated by the constructor to their ends.

    A member is unresolved where its arc needs more than the batched decisions: another method, an
    event that is not a single clear one, a step that fails. It is then integrated alone from the
    start of its arc, and its other entries here are meaningless.

    Args:
        mode: The mode.
        t: Times (m,) at which the arcs begin, s.
        x: First states (m, nx).
        lengths: Lengths (m,) to try first, s; NaN where nothing is known.

    Attributes:
        unresolved: Whether the arc needs more than this (m,).
        fired_guard: Index (m,) of the guard that ended the arc, -1 where it reached the end of the
            span.
        end: End (m,) of the arc, s.
        start: Start (m,) of its last step, s.
        states: States (m, 8, nx) at the nodes of its last step.
        next_length: Length (m,) that the next step would try, s.
        step_count: Number (m,) of steps beside the first.
        transition: Transition matrix (m, ndx, ndx) of the arc. None where none is asked for.
        starts_outside: Whether the arc began outside its mode (m,).
    """

    def __init__(self, mode: BatchedMode, t: Array, x: Array, lengths: Array) -> None:
        m, ndx = len(t), mode.mode.space.ndx
        self._mode, self._begin = mode, t
        self._t, self._x = t.copy(), x.copy()
        run = mode.run
        tolerances = run.guard_tolerance * mode.mode.guard_set.sizes
        self._watch = BatchedGuardWatch(m, tolerances, run.event_window)
        self.unresolved, self.fired_guard = np.zeros(m, dtype=bool), np.full(m, -1)
        self.end, self.start, self.step_count = t.copy(), t.copy(), np.zeros(m, dtype=int)
        self.states = np.empty((m, 8, x.shape[1]))
        self.starts_outside = np.zeros(m, dtype=bool)
        self.transition = None
        if mode.transition_tolerances is not None:
            self.transition = np.tile(np.eye(ndx), (m, 1, 1))
        self._longest = np.full(m, run.integrator.max_step)
        settings = run.t_end, (mode.rtol, run.integrator.atol), _EXPONENT
        first = choose_first_length(mode.compute_rates, mode.compute_rates(t, x), t, x, *settings)
        self.next_length = np.where(np.isnan(lengths), first, lengths)
        self._limit_pace(np.arange(m))
        # Length of the present attempt, and by how much an accepted step may lengthen the next one.
        self._h, self._max_growth = self._limit_lengths(np.arange(m)), np.full(m, GROW)
        active = np.arange(m)
        while len(active):
            active = self._attempt_steps(active)

    def find_last_arc(self, k: int) -> Arc:
        """Return the last step of a member as an arc.

        Args:
            k: Index of the member.
        """
        inputs = np.tile(self._mode.input, (8, 1))
        step = Step(float(self.start[k]), float(self.end[k]), self.states[k], inputs)
        return self._make_arc(step)

    def _limit_lengths(self, rows: Rows) -> Array:
        """Return the lengths (k,) that the next steps of some members try."""
        shortest = MIN_STEP_SPACINGS * np.spacing(np.abs(self._t[rows]))
        tried = np.maximum(self.next_length[rows], shortest)
        return np.asarray(np.minimum(tried, self._longest[rows]))

    def _attempt_steps(self, active: Rows) -> Rows:
        """Attempt one step of every member that is on its arc.

        Args:
            active: The members.

        Returns:
            The members that remain on their arcs.
        """
        t, t_end = self._t[active], self._mode.run.t_end
        ends = t + self._h[active]
        last = ends >= t_end
        ends = np.where(last, t_end, ends)
        results = self._mode.take_steps(t, ends - t, self._x[active])
        sound, error, states, guards, bounds = results
        long_enough = self._h[active] >= MIN_STEP_SPACINGS * np.spacing(np.abs(t))
        good = (sound[:, 0] > 0.0) & long_enough
        self.unresolved[active[~good]] = True
        accepted = good & (error[:, 0] < 1.0)
        self._update_lengths(active, ends - t, error[:, 0], accepted, last)
        done = accepted & self._accept_steps(active, accepted, ends, states, guards, bounds)
        done |= accepted & last
        remaining: Rows = active[~(done | self.unresolved[active])]
        return remaining

    def _update_lengths(
        self, active: Rows, h: Array, error: Array, accepted: Flags, last: Flags
    ) -> None:
        """Update the lengths to try after an attempt, as `ExplicitStepper` does.

        Args:
            active: The members.
            h: Lengths (k,) of their steps, s.
            error: Errors (k,) in units of the tolerance.
            accepted: Whether each step is accepted.
            last: Whether each step is cut to end with the span.
        """
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            factor = SAFETY * error**_EXPONENT
        growth = self._max_growth[active]
        grown = h * np.fmin(growth, factor)
        # A step that was cut is no reason to try a shorter one than was to be tried.
        was_cut = last & (growth > 1.0)
        grown = np.where(was_cut, np.maximum(grown, self.next_length[active]), grown)
        self.next_length[active] = np.where(accepted, grown, self.next_length[active])
        self._max_growth[active] = np.where(accepted, GROW, 1.0)
        shorter = h * np.fmax(SHRINK, factor)
        self._h[active] = np.where(accepted, self._limit_lengths(active), shorter)

    def _accept_steps(
        self,
        active: Rows,
        accepted: Flags,
        ends: Array,
        states: Array,
        guards: Array,
        bounds: Array,
    ) -> Flags:
        """Move members on by their accepted steps, or end their arcs at events on these.

        Args:
            active: The members.
            accepted: Whether the step of each is accepted.
            ends: Ends (k,) of the steps, s.
            states: States (k, 8, nx) at their nodes.
            guards: Guards (k, 8, n) there.
            bounds: Lower bounds (k, n) of the guards.

        Returns:
            Whether each is at an event (k,).
        """
        at_event = np.zeros(len(active), dtype=bool)
        k = np.flatnonzero(accepted)
        if not len(k):
            return at_event
        rows, end = active[k], ends[k]
        fresh = np.flatnonzero(self._t[rows] == self._begin[rows])
        if len(fresh):
            outside = self._watch.begin_arcs(rows[fresh], guards[k[fresh], 0])
            self.starts_outside[rows[fresh]] = outside
        found = self._watch.find_crossings(rows, self._t[rows], end, guards[k], bounds[k])
        self.unresolved[rows[found.unresolved]] = True
        events = np.flatnonzero(~found.unresolved & (found.guard >= 0))
        if len(events):
            self._end_arcs(rows[events], found.select(events))
        onward = np.flatnonzero(~found.unresolved & (found.guard < 0))
        self._advance(rows[onward], end[onward], states[k[onward]])
        at_event[k[events]] = True
        return at_event

    def _advance(self, rows: Rows, end: Array, states: Array) -> None:
        """Move members on to the ends of steps without an event.

        Args:
            rows: The members.
            end: Ends (k,) of their steps, s.
            states: States (k, 8, nx) at the nodes.
        """
        self._multiply_transitions(rows, end - self._t[rows])
        self._record_steps(rows, self._t[rows], end, states)
        self._t[rows], self._x[rows] = end, states[:, -1]
        self._project_states(rows)
        self._limit_pace(rows)
        self._h[rows] = self._limit_lengths(rows)

    def _record_steps(self, rows: Rows, start: Array, end: Array, states: Array) -> None:
        """Set the last steps of members, and count them if they are not the first.

        Args:
            rows: The members.
            start: Starts (k,) of the steps, s.
            end: Ends (k,), s.
            states: States (k, 8, nx) at their nodes.
        """
        self.step_count[rows] += start > self._begin[rows]
        self.start[rows], self.end[rows], self.states[rows] = start, end, states

    def _end_arcs(self, rows: Rows, found: BatchedCrossings) -> None:
        """End the arcs of members at their events.

        Newton's iteration finds the zero of the guard itself, by steps from where members are. A
        member is unresolved where it does not converge, or leaves the interval of the root.

        Args:
            rows: The members.
            found: Their events, on their present steps.
        """
        t, x = self._t[rows], self._x[rows]
        root, last_change = found.root.copy(), np.full(len(rows), np.inf)
        active = np.arange(len(rows))
        for _ in range(MAX_NEWTON_STEPS):
            results = self._mode.take_steps(t[active], (root - t)[active], x[active])
            sound, _, states, guards, _ = results
            values = guards[np.arange(len(active)), -1, found.guard[active]]
            change = -values / found.slope[active]
            time, size = root[active], np.abs(change)
            good = (sound[:, 0] > 0.0) & (found.slope[active] < 0.0)
            spacing = np.spacing(np.abs(time))
            no_gain = size > 0.5 * last_change[active]
            stalled = no_gain & (size <= _STALL_SPACINGS * spacing)
            close = good & (
                stalled | (size <= np.maximum(EVENT_TIME_TOLERANCE, EVENT_TIME_SPACINGS * spacing))
            )
            done = active[close]
            self._record_steps(rows[done], t[done], root[done], states[close])
            new = time + change
            inside = (found.left[active] <= new) & (new <= found.right[active])
            onward = good & ~close & inside & (size <= 0.5 * last_change[active])
            self.unresolved[rows[active[~(close | onward)]]] = True
            active, change = active[onward], change[onward]
            if not len(active):
                break
            root[active], last_change[active] = root[active] + change, np.abs(change)
        self.unresolved[rows[active]] = True
        self.unresolved[rows] |= root <= t
        self.fired_guard[rows] = found.guard
        resolved = np.flatnonzero(~self.unresolved[rows])
        self._multiply_transitions(rows[resolved], (root - t)[resolved])

    def _multiply_transitions(self, rows: Rows, h: Array) -> None:
        """Multiply the transition matrices of members by those of their next steps.

        Where the compiled step is not exact enough, the transition of the same step is integrated.

        Args:
            rows: The members.
            h: Lengths (k,) of their steps, s.
        """
        wanted = self._mode.transition_tolerances
        if wanted is None or self.transition is None or not len(rows):
            return
        t, x, u = self._t[rows], self._x[rows], self._mode.repeat_input(len(rows))
        scalars = _stack_scalars(t, h, *wanted)
        sound, error, _, matrices = self._mode.functions.varied(scalars, x, u)
        good = (sound[:, 0] > 0.0) & (error[:, 0] < 1.0)
        mode = self._mode.mode
        for k in np.flatnonzero(~good).tolist():
            compiled, ahead = mode.compiled_steps, StepRequest(t[k], x[k], h[k], *wanted)
            taken = None if compiled is None else compiled.step(ahead, HeldInput(u[k]))
            self.unresolved[rows[k]] |= taken is None
            if taken is not None:
                step = Step(t[k], t[k] + h[k], taken.states, taken.inputs)
                matrices[k] = compute_arc_transition(mode, self._make_arc(step), *wanted)
        self.transition[rows] = matrices @ self.transition[rows]

    def _make_arc(self, step: Step) -> Arc:
        """Return a step as an arc."""
        start, end = float(step.start), float(step.end)
        return make_arc_from_steps(
            0, self._mode.mode, [step], start, step.states[0], step.inputs[0], end
        )

    def _project_states(self, rows: Rows) -> None:
        """Project the ends of steps onto the constraints of their mode, as `Flow` does.

        Members for which that fails are unresolved.

        Args:
            rows: The members.
        """
        mode, run = self._mode.mode, self._mode.run
        if mode.held is None or mode.project is None:
            return
        tolerances = self._mode.rtol, run.integrator.atol
        for k in rows.tolist():
            try:
                ends = StepEnds(
                    float(self.start[k]), self.states[k, 0], float(self._t[k]), self._x[k]
                )
                x = project_step_end(mode, ends, *tolerances)
            except IntegrationError:
                self.unresolved[k] = True
                continue
            if x is not None:
                self._x[k] = self.states[k, -1] = x

    def _limit_pace(self, rows: Rows) -> None:
        """Limit the steps of members by the pace of their mode.

        Members that decay faster than their steps are long are unresolved: an implicit method may
        suit them.

        Args:
            rows: The members.
        """
        mode, run = self._mode.mode, self._mode.run
        if mode.steady_pace == FREE_PACE:
            return
        for k in rows.tolist():
            x = mode.space.normalize(self._x[k])
            pace = mode.steady_pace or mode.calc(float(self._t[k]), x, self._mode.input).pace
            self._longest[k] = min(run.integrator.max_step, pace.longest_step)
            self.unresolved[k] |= pace.relaxation < min(self.next_length[k], self._longest[k])


def _stack_scalars(t: Array, h: Array, rtol: float, atol: float) -> Array:
    """Return the rows (t, h, rtol, atol) (m, 4) that compiled steps take."""
    rows = np.empty((len(t), 4))
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = t, h, rtol, atol
    return rows
