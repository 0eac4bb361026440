"""Arcs of many members in one mode, step by step together, each with its own step lengths.

Steps, their lengths and their ends are those of `hybrid.flow` and `hybrid.events`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import IntegrationError
from hybridctl.hybrid.arc import Arc, make_arc_from_steps
from hybridctl.hybrid.events import MAX_NEWTON_STEPS
from hybridctl.hybrid.explicit import GROW, SAFETY, SHRINK, first_length
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
from hybridctl.sampling.watch import Flags, Rows, StepVerdicts, Watch
from hybridctl.sensitivity.propagation import compute_arc_transition

_EXPONENT = DOP853_TABLEAU.exponent
_STALLED = 64.0  # spacings of numbers at t: as near to a root as the rounding of a guard may leave


@dataclass(frozen=True)
class HeldMode:
    """A mode under a held input u (nu,), as a flight of a run sees it; many: its steps.

    tolerance_of_matrices: rtol and atol of transition matrices, None where none are asked for.
    """

    mode: ModeModel
    many: BatchedSteps
    run: Run
    input: Array
    tolerance_of_matrices: tuple[float, float] | None

    @property
    def rtol(self) -> float:
        """The relative tolerance of the steps."""
        return float(max(self.run.integrator.rtol, MIN_RTOL))

    def inputs(self, m: int) -> Array:
        """The input for m members, (m, nu)."""
        return np.broadcast_to(self.input, (m, len(self.input)))

    def rate(self, t: Array, x: Array) -> Array:
        """The rates (m, nx) of the coordinates."""
        return self.many.rate(t[:, None], x, self.inputs(len(t)))[0]

    def taken(self, t: Array, h: Array, x: Array) -> list[Array]:
        """Steps of lengths h (m,) from (t, x): the results of `BatchedSteps.step`."""
        scalars = _scalars(t, h, self.rtol, self.run.integrator.atol)
        return self.many.step(scalars, x, self.inputs(len(t)))


class Flight:
    """The arcs of m members that begin now, at times t (m,) and states x (m, nx).

    lengths (m,): what to try first, s, nan where nothing is known. Afterwards, of each member:
    odd: its arc takes more than this; the rest is not its own then. guard: the one that ended the
    arc, -1 where that reached the end of the span. end: of the arc, s. start, states (8, nx): of
    its last step. length: what the next step would try, s. steps: how many, besides the first.
    matrix (ndx, ndx): of the arc, where asked for. outside: whether it began outside its mode.
    """

    def __init__(self, ground: HeldMode, t: Array, x: Array, lengths: Array) -> None:
        m, ndx = len(t), ground.mode.space.ndx
        self._ground, self._begin = ground, t
        self._t, self._x = t.copy(), x.copy()
        run = ground.run
        tolerances = run.guard_tolerance * ground.mode.guard_set.sizes
        self._watch = Watch(m, tolerances, run.event_window)
        self.odd, self.guard = np.zeros(m, dtype=bool), np.full(m, -1)
        self.end, self.start, self.steps = t.copy(), t.copy(), np.zeros(m, dtype=int)
        self.states = np.empty((m, 8, x.shape[1]))
        self.outside = np.zeros(m, dtype=bool)
        self.matrix = None
        if ground.tolerance_of_matrices is not None:
            self.matrix = np.tile(np.eye(ndx), (m, 1, 1))
        self._longest = np.full(m, run.integrator.max_step)
        ahead = run.t_end, (ground.rtol, run.integrator.atol), _EXPONENT
        first = first_length(ground.rate, ground.rate(t, x), t, x, *ahead)
        self.length = np.where(np.isnan(lengths), first, lengths)
        self._paced(np.arange(m))
        self._h, self._most = self._limited(np.arange(m)), np.full(m, GROW)
        on = np.arange(m)
        while len(on):
            on = self._round(on)

    def _limited(self, rows: Rows) -> Array:
        """The lengths that the next steps of some members try."""
        shortest = MIN_STEP_SPACINGS * np.spacing(np.abs(self._t[rows]))
        tried = np.maximum(self.length[rows], shortest)
        return np.asarray(np.minimum(tried, self._longest[rows]))

    def _round(self, on: Rows) -> Rows:
        """Attempt one step for every member that is still on its arc; returns who remains on it."""
        t, t_end = self._t[on], self._ground.run.t_end
        ahead = t + self._h[on]
        last = ahead >= t_end
        ahead = np.where(last, t_end, ahead)
        sound, error, states, guards, bounds = self._ground.taken(t, ahead - t, self._x[on])
        good = (sound[:, 0] > 0.0) & (self._h[on] >= MIN_STEP_SPACINGS * np.spacing(np.abs(t)))
        self.odd[on[~good]] = True
        accepted = good & (error[:, 0] < 1.0)
        self._change_lengths(on, ahead - t, error[:, 0], accepted, last)
        done = accepted & self._accept(on, accepted, ahead, states, guards, bounds)
        done |= accepted & last
        rest: Rows = on[~(done | self.odd[on])]
        return rest

    def _change_lengths(
        self, on: Rows, h: Array, error: Array, accepted: Flags, last: Flags
    ) -> None:
        """Lengths after an attempt, as `ExplicitStepper` has them."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            factor = SAFETY * error**_EXPONENT
        most = self._most[on]
        grown = h * np.fmin(most, factor)
        kept = last & (most > 1.0)
        grown = np.where(kept, np.maximum(grown, self.length[on]), grown)
        self.length[on] = np.where(accepted, grown, self.length[on])
        self._most[on] = np.where(accepted, GROW, 1.0)
        self._h[on] = np.where(accepted, self._limited(on), h * np.fmax(SHRINK, factor))

    def _accept(
        self,
        on: Rows,
        accepted: Flags,
        ahead: Array,
        states: Array,
        guards: Array,
        bounds: Array,
    ) -> Flags:
        """Move on by the accepted steps; returns who is at an event."""
        at_event = np.zeros(len(on), dtype=bool)
        k = np.flatnonzero(accepted)
        if not len(k):
            return at_event
        rows, end = on[k], ahead[k]
        fresh = np.flatnonzero(self._t[rows] == self._begin[rows])
        if len(fresh):
            outside = self._watch.start(rows[fresh], guards[k[fresh], 0])
            self.outside[rows[fresh]] = outside
        seen = self._watch.scan(rows, self._t[rows], end, guards[k], bounds[k])
        self.odd[rows[seen.odd]] = True
        events = np.flatnonzero(~seen.odd & (seen.guard >= 0))
        if len(events):
            self._end_arcs(rows[events], seen.part(events))
        ahead_of = np.flatnonzero(~seen.odd & (seen.guard < 0))
        self._advance(rows[ahead_of], end[ahead_of], states[k[ahead_of]])
        at_event[k[events]] = True
        return at_event

    def _advance(self, rows: Rows, end: Array, states: Array) -> None:
        """Move on to the ends of steps without an event."""
        self._vary(rows, end - self._t[rows])
        self._record(rows, self._t[rows], end, states)
        self._t[rows], self._x[rows] = end, states[:, -1]
        self._put_back(rows)
        self._paced(rows)
        self._h[rows] = self._limited(rows)

    def _record(self, rows: Rows, start: Array, end: Array, states: Array) -> None:
        self.steps[rows] += start > self._begin[rows]
        self.start[rows], self.end[rows], self.states[rows] = start, end, states

    def _end_arcs(self, rows: Rows, seen: StepVerdicts) -> None:
        """Newton's iteration with the guards themselves, by steps from where members stand."""
        t, x = self._t[rows], self._x[rows]
        now, before = seen.root.copy(), np.full(len(rows), np.inf)
        on = np.arange(len(rows))
        for _ in range(MAX_NEWTON_STEPS):
            sound, _, states, guards, _ = self._ground.taken(t[on], (now - t)[on], x[on])
            change = -guards[np.arange(len(on)), -1, seen.guard[on]] / seen.slope[on]
            at, size = now[on], np.abs(change)
            good = (sound[:, 0] > 0.0) & (seen.slope[on] < 0.0)
            spacing = np.spacing(np.abs(at))
            stalled = (size > 0.5 * before[on]) & (size <= _STALLED * spacing)
            close = good & (
                stalled | (size <= np.maximum(EVENT_TIME_TOLERANCE, EVENT_TIME_SPACINGS * spacing))
            )
            done = on[close]
            self._record(rows[done], t[done], now[done], states[close])
            inside = (seen.left[on] <= at + change) & (at + change <= seen.right[on])
            onward = good & ~close & inside & (size <= 0.5 * before[on])
            self.odd[rows[on[~(close | onward)]]] = True
            on, change = on[onward], change[onward]
            if not len(on):
                break
            now[on], before[on] = now[on] + change, np.abs(change)
        self.odd[rows[on]] = True
        self.odd[rows] |= now <= t
        self.guard[rows] = seen.guard
        sure = np.flatnonzero(~self.odd[rows])
        self._vary(rows[sure], (now - t)[sure])

    def _vary(self, rows: Rows, h: Array) -> None:
        """Carry the transition matrices over steps from where members stand."""
        wanted = self._ground.tolerance_of_matrices
        if wanted is None or self.matrix is None or not len(rows):
            return
        t, x, u = self._t[rows], self._x[rows], self._ground.inputs(len(rows))
        sound, error, _, matrices = self._ground.many.varied(_scalars(t, h, *wanted), x, u)
        good = (sound[:, 0] > 0.0) & (error[:, 0] < 1.0)
        for k in np.flatnonzero(~good).tolist():
            compiled, ahead = (
                self._ground.mode.compiled_steps,
                StepRequest(t[k], x[k], h[k], *wanted),
            )
            taken = None if compiled is None else compiled.step(ahead, HeldInput(u[k]))
            self.odd[rows[k]] |= taken is None
            if taken is not None:
                step = Step(t[k], t[k] + h[k], taken.states, taken.inputs)
                matrices[k] = compute_arc_transition(self._ground.mode, self._arc_of(step), *wanted)
        self.matrix[rows] = matrices @ self.matrix[rows]

    def last_arc(self, k: int) -> Arc:
        """The last step of member k as an arc."""
        inputs = np.tile(self._ground.input, (8, 1))
        step = Step(float(self.start[k]), float(self.end[k]), self.states[k], inputs)
        return self._arc_of(step)

    def _arc_of(self, step: Step) -> Arc:
        start, end = float(step.start), float(step.end)
        return make_arc_from_steps(
            0, self._ground.mode, [step], start, step.states[0], step.inputs[0], end
        )

    def _put_back(self, rows: Rows) -> None:
        """Project ends of steps onto what their mode holds, as `Flow` does; odd where it fails."""
        ground = self._ground
        if ground.mode.held is None or ground.mode.project is None:
            return
        tolerances = ground.rtol, ground.run.integrator.atol
        for k in rows.tolist():
            try:
                ends = StepEnds(
                    float(self.start[k]), self.states[k, 0], float(self._t[k]), self._x[k]
                )
                x = project_step_end(ground.mode, ends, *tolerances)
            except IntegrationError:
                self.odd[k] = True
                continue
            if x is not None:
                self._x[k] = self.states[k, -1] = x

    def _paced(self, rows: Rows) -> None:
        """Look at the pace; members that another method may suit are odd."""
        mode, ground = self._ground.mode, self._ground
        if mode.steady_pace == FREE_PACE:
            return
        for k in rows.tolist():
            x = mode.space.normalize(self._x[k])
            pace = mode.steady_pace or mode.calc(float(self._t[k]), x, ground.input).pace
            self._longest[k] = min(ground.run.integrator.max_step, pace.longest_step)
            self.odd[k] |= pace.relaxation < min(self.length[k], self._longest[k])


def _scalars(t: Array, h: Array, rtol: float, atol: float) -> Array:
    rows = np.empty((len(t), 4))
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = t, h, rtol, atol
    return rows
