r"""The quadratic programme of one iteration over a horizon through events.

Unknowns are changes of the states :math:`x_{pi}` at the nodes of each phase p, of corrections
:math:`d_{pi}` that are added to the feedforward on an interval, and of the time :math:`T_p` that is
left to the end of a phase, of which interval i takes the share :math:`\sigma_i`:

.. math::

    \min \sum_{p, i} \tfrac12 \sigma_i T_p \left(|x_{pi} - \alpha_{pi}|_Q^2 + |d_{pi}|_R^2\right)
    + \tfrac12 w (T_p - \bar T_p)^2 + \tfrac12 |y - \alpha|_V^2

subject to :math:`x_{p,i+1} = F(x_{pi}, d_{pi}, \sigma_i T_p) - e_{pi}`, :math:`g(x_{pN}) = 0` for
the guards that end a phase, :math:`x_{p+1,0} = S(x_{pN})` for the jump S there, whose last value is
y, and limits of inputs; all linearised. F is a step, and e is what it misses along the reference,
which so remains a solution however long intervals are. What limits states has slack, which costs in
proportion. So no prediction goes through an event, and none breaks where it would slip or miss one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import piqp
from scipy.sparse import csc_matrix

from hybridctl.base.checks import Array, Indices
from hybridctl.planning.predictive.functions import PhaseModel, Rows
from hybridctl.planning.predictive.sides import LimitSides

_SOON = 2  # intervals, in which the input acts before it is planned anew
_EARLY = 0.002  # of what slack costs where a phase ends, where it may do so early
_SMALL = 1e-6  # on the diagonal, so that the programme is strictly convex
_ACCURACY, _ITERATIONS, _EQUILIBRATED = 1e-5, 100, 1  # of the solver
_BETWEEN = 0.5  # of the way from one node to the next: the stage of an interval


@dataclass(frozen=True, eq=False)
class Section:
    """A phase of the horizon as planned: from fraction a[0] of it to its end, a[-1] = 1.

    One that ends with no event may go on beyond that.

    phase: its number in the task. fractions (n + 1,): of the nodes. states (n + 1, nx). corrections
    (n, nu): of the input. duration: what is left of the phase, s.
    """

    phase: int
    fractions: Array
    states: Array
    corrections: Array
    duration: float

    @property
    def shares(self) -> Array:
        """The shares (n,) that the intervals have of the duration."""
        return np.asarray(np.diff(self.fractions) / (self.fractions[-1] - self.fractions[0]))

    @property
    def rate(self) -> float:
        """How fast fractions grow, 1/s."""
        return float(self.fractions[-1] - self.fractions[0]) / self.duration


@dataclass(frozen=True, eq=False)
class Followed:
    """The motion that a section is to follow, at its nodes.

    states (n + 1, nx). inputs (n + 1, nu), middles (n, nu): the feedforward. missed (n, nx): what
    steps along the motion are off from it at their ends. clearance (n + 1, g): least gaps of open
    contacts, m.
    """

    states: Array
    inputs: Array
    middles: Array
    missed: Array
    clearance: Array


@dataclass(frozen=True, eq=False)
class Aim:
    """The motion that a section is to follow, and the bounds within which it may differ.

    slope (nu,): the rate of the feedforward in the end, 1/s. duration: s. least, greatest: of
    changes of the duration, s. ends: the number of the node from which on the phase may end. lowest
    (n + 1, r): lower limits of its end at the nodes. disturbance: how much there is. surface: the
    height of what it ends on, m.
    """

    motion: Followed
    slope: Array
    duration: float
    least: float
    greatest: float
    ends: int
    lowest: Array
    disturbance: float = 0.0
    surface: float = 0.0


@dataclass(frozen=True, eq=False)
class Costs:
    """Weights of states (nx,) and inputs (nu,) per s, of durations, 1/s^2, and V (nx, nx) last."""

    state: Array
    input: Array
    duration: float
    final: Array


@dataclass(frozen=True, eq=False)
class Junction:
    """How a section goes on: y = matrix S(x) + offset. target (nx,): what y should be."""

    matrix: Array
    offset: Array
    target: Array


class Entries:
    """Entries of a sparse matrix, put block by block; its number of rows grows with `rows`."""

    def __init__(self) -> None:
        self.rows = 0
        self._parts: list[tuple[Indices, Indices, Array]] = []

    def put(self, row: Indices, column: Indices, blocks: Array) -> None:
        """Blocks (m, r, c) whose first entries are at these rows and columns (m,)."""
        _, r, c = blocks.shape
        rows = (row[:, None] + np.arange(r)).ravel().repeat(c)
        columns = (column[:, None] + np.arange(c)).repeat(r, axis=0).ravel()
        self._parts.append((rows, columns, blocks.ravel()))

    def matrix(self, place: Indices) -> csc_matrix:
        """The matrix, with each column at its place (columns,)."""
        i, j, v = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        found = csc_matrix((v, (i, place[j])), shape=(self.rows, len(place)))
        found.eliminate_zeros()
        return found


class Programme:
    """The programme around a plan of sections; see `solution`.

    models: by number of the phase. limits: the least and the greatest input (2, nu).
    """

    def __init__(
        self,
        models: list[PhaseModel],
        sections: list[Section],
        aims: list[Aim],
        junctions: list[Junction],
        costs: Costs,
        limits: Array,
    ) -> None:
        self._sections, self._costs, self._limits = sections, costs, limits
        self._nx, self._nu = models[0].nx, models[0].nu
        self._equal, self._below = Entries(), Entries()
        self._right: list[Array] = []  # of the equations
        self._most: list[Array] = []  # of the inequalities
        self._slack_rows: list[Indices] = []  # the slack of each inequality
        self._slack_costs: list[Array] = []
        self._slack_stages: list[Array] = []
        self._slacks = 0  # so far
        self._lay_out()
        for p, section in enumerate(sections):
            model, last = models[section.phase], p + 1 == len(sections)
            self._steps(p, model, aims[p])
            self._inside(p, model, aims[p])
            if p and model.start_limits:
                self._start(p, model, aims[p])
            if model.end_limits:
                self._end(p, model, aims[p])
            self._join(p, model, junctions[p], aims[p].disturbance, last)
            self._weigh(p, aims[p])

    def solution(self) -> list[Section] | None:
        """The sections after one iteration, None where the programme has no solution."""
        none, rows = np.full(self._slacks, np.inf), np.arange(self._below.rows)
        slacks = self._size + np.concatenate(self._slack_rows)
        self._below.put(rows, slacks, np.full((len(rows), 1, 1), -1.0))
        order = np.concatenate((self._stages, *self._slack_stages)).argsort(kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        solver = piqp.SparseSolver()
        solver.settings.kkt_solver = piqp.KKTSolver.sparse_multistage
        solver.settings.preconditioner_iter = _EQUILIBRATED
        for name in ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"):
            setattr(solver.settings, name, _ACCURACY)
        solver.settings.max_iter = _ITERATIONS
        solver.setup(
            self._hessian(order, place),
            np.concatenate((self._gradient, *self._slack_costs))[order],
            self._equal.matrix(place),
            np.concatenate(self._right),
            self._below.matrix(place),
            None,
            np.concatenate(self._most),
            np.concatenate((self._low, np.zeros(self._slacks)))[order],
            np.concatenate((self._high, none))[order],
        )
        if solver.solve() != piqp.PIQP_SOLVED:
            return None
        z = np.array(solver.result.x)[place]
        return [self._changed(p, z) for p in range(len(self._sections))]

    def _lay_out(self) -> None:
        """Columns of states, corrections and durations; the first state of all is given.

        The solver wants them in the order of their stages: nodes, with intervals between them, and
        in the end the durations, which are part of all stages of their section.
        """
        self._states, self._inputs = list[Indices](), list[Indices]()
        self._times, at = list[int](), 0
        self._begins, stage, stages = list[int](), 0, list[Array]()
        for p, section in enumerate(self._sections):
            n = len(section.corrections)
            first = at - self._nx if p == 0 else at
            self._states.append(first + self._nx * np.arange(n + 1))
            at = int(self._states[-1][-1]) + self._nx
            self._inputs.append(at + self._nu * np.arange(n))
            at += self._nu * n
            self._times.append(at)
            at += 1
            nodes = np.arange(stage + (p == 0), stage + n + 1, dtype=float)
            intervals = np.arange(n, dtype=float) + stage + _BETWEEN
            stages += [nodes.repeat(self._nx), intervals.repeat(self._nu), np.array([np.inf])]
            self._begins.append(stage)
            stage += n + 1
        self._size, self._stages = at, np.concatenate(stages)
        self._diagonal = np.full(at, _SMALL)
        self._gradient = np.zeros(at)
        self._low, self._high = np.full(at, -np.inf), np.full(at, np.inf)

    def _steps(self, p: int, model: PhaseModel, aim: Aim) -> None:
        """Require each node's state to be what the step before it leads to."""
        s, columns = self._sections[p], self._states[p]
        d, shares = s.corrections, s.shares
        inputs = aim.motion.inputs[:-1] + d, aim.motion.middles + d, aim.motion.inputs[1:] + d
        found = model.steps(s.states[:-1], inputs, s.duration * shares, aim.disturbance)
        first = self._new_equations((found.states - aim.motion.missed - s.states[1:]).ravel())
        rows = first + self._nx * np.arange(len(d))
        one = np.broadcast_to(np.eye(self._nx), (len(d), self._nx, self._nx))
        free = 1 if p == 0 else 0
        self._equal.put(rows, columns[1:], one)
        self._equal.put(rows[free:], columns[free:-1], -found.by_state[free:])
        self._equal.put(rows, self._inputs[p], -found.by_input)
        by_time = -found.by_length * shares[:, None]
        self._equal.put(rows, np.full(len(d), self._times[p]), by_time[:, :, None])

    def _inside(self, p: int, model: PhaseModel, aim: Aim) -> None:
        """Limits at the begin of each interval, and at the end of the first ones of all."""
        s = self._sections[p]
        n = len(s.corrections)
        nodes, of = np.arange(n), np.arange(n)
        if p == 0:
            soon = nodes[:_SOON]
            nodes, of = np.append(nodes, soon + 1), np.append(of, soon)
        u = aim.motion.inputs[nodes] + s.corrections[of]
        found = model.inside(s.states[nodes], u, s.fractions[nodes], aim.disturbance)
        lengths = (s.duration * s.shares)[of]
        sides, gaps = model.inside_sides, len(model.open)
        left = np.maximum(1.0 - s.fractions[nodes], 0.0)
        bounds = sides.bound * left[:, None] ** sides.fades
        bounds[:, len(sides.bound) - gaps :] = aim.motion.clearance[nodes]
        kept = np.full(bounds.shape, True)
        kept[nodes == 0, len(sides.bound) - gaps :] = False
        self._soften(p, (nodes, of), found, sides, bounds, lengths, kept)

    def _start(self, p: int, model: PhaseModel, aim: Aim) -> None:
        """Limits where a section begins."""
        s, first = self._sections[p], np.zeros(1, dtype=int)
        u = aim.motion.inputs[first] + s.corrections[first]
        found = model.start(s.states[first], u, aim.disturbance)
        sides = model.start_sides
        self._soften(p, (first, first), found, sides, sides.bound[None], np.ones(1))

    def _end(self, p: int, model: PhaseModel, aim: Aim) -> None:
        """Guards that end the section vanish; limits of the event, also where it comes early."""
        s = self._sections[p]
        n = len(s.corrections)
        nodes = np.arange(aim.ends, n + 1)
        of = np.minimum(nodes, n - 1)
        u = aim.motion.inputs[nodes] + s.corrections[of]
        found = model.end(s.states[nodes], u, aim.slope, aim.disturbance)
        zero, sides = model.zero, model.end_sides
        row = self._new_equations(aim.surface - found.values[-1, zero])
        self._equal.put(np.array([row]), self._states[p][-1:], found.by_state[-1:, zero])
        self._equal.put(np.array([row]), self._inputs[p][-1:], found.by_input[-1:, zero])
        bounds = np.where(sides.sign > 0.0, aim.lowest[nodes][:, sides.index], sides.bound)
        scale = np.where(nodes < n, _EARLY, 1.0)
        self._soften(p, (nodes, of), found, sides, bounds, scale)

    def _join(
        self, p: int, model: PhaseModel, junction: Junction, disturbance: float, last: bool
    ) -> None:
        """Require the state after an event to begin the next section; weigh the last one by V."""
        after, by_state = model.jump(self._sections[p].states[-1], disturbance)
        y, slope = junction.matrix @ after + junction.offset, junction.matrix @ by_state
        end = self._states[p][-1:]
        if not last:
            row = np.array([self._new_equations(y - self._sections[p + 1].states[0])])
            self._equal.put(row, self._states[p + 1][:1], np.eye(self._nx)[None])
            self._equal.put(row, end, -slope[None])
            return
        v = self._costs.final
        self._block = int(end[0]), slope.T @ v @ slope
        self._gradient[end[0] : end[0] + self._nx] += slope.T @ v @ (y - junction.target)

    def _weigh(self, p: int, aim: Aim) -> None:
        """Costs of the section, and limits of its inputs and of its duration."""
        s, costs = self._sections[p], self._costs
        lengths = (s.duration * s.shares)[:, None]
        free = 1 if p == 0 else 0
        states = slice(self._states[p][free], self._states[p][-1])
        self._diagonal[states] += (lengths * costs.state)[free:].ravel()
        off = s.states[:-1] - aim.motion.states[:-1]
        self._gradient[states] += (lengths * costs.state * off)[free:].ravel()
        inputs = slice(self._inputs[p][0], self._times[p])
        self._diagonal[inputs] += (lengths * costs.input).ravel()
        self._gradient[inputs] += (lengths * costs.input * s.corrections).ravel()
        fed = np.array([aim.motion.inputs[:-1], aim.motion.middles, aim.motion.inputs[1:]])
        high = np.maximum(self._limits[1] - fed.max(axis=0), 0.0) - s.corrections
        low = np.minimum(self._limits[0] - fed.min(axis=0), 0.0) - s.corrections
        self._low[inputs], self._high[inputs] = low.ravel(), high.ravel()
        time = self._times[p]
        self._diagonal[time] += costs.duration
        self._gradient[time] += costs.duration * (s.duration - aim.duration)
        self._low[time], self._high[time] = aim.least, aim.greatest

    def _new_equations(self, right: Array) -> int:
        """The row at which equations with these right sides begin."""
        row = self._equal.rows
        self._equal.rows += len(right)
        self._right.append(right)
        return row

    def _soften(
        self,
        p: int,
        at: tuple[Indices, Indices],
        found: Rows,
        sides: LimitSides,
        bounds: Array,
        scale: Array,
        kept: Array | None = None,
    ) -> None:
        """Add one-sided limits on linearised values, `bounds` (m, r), with slacks of cost `scale`.

        at: nodes (m,), and intervals (m,) whose inputs act there. kept (m, r): which limits are
        added; all without.
        """
        values = sides.sign * (found.values[:, sides.index] - bounds)
        m, r = values.shape
        flat = np.arange(m * r) if kept is None else np.flatnonzero(kept)
        point, side = np.divmod(flat, r)
        nodes, of = (each[point] for each in at)
        sign, which = sides.sign[side, None], (point, sides.index[side])
        rows = self._below.rows + np.arange(len(flat))
        self._below.rows += len(flat)
        self._most.append(values.ravel()[flat])
        free = nodes > 0 if p == 0 else np.full(len(flat), True)
        by_state, by_input = -sign * found.by_state[which], -sign * found.by_input[which]
        self._below.put(rows[free], self._states[p][nodes[free]], by_state[free, None])
        self._below.put(rows, self._inputs[p][of], by_input[:, None])
        costs = scale[:, None] * sides.costs
        self._slack_rows.append(self._slacks + point * len(sides.costs) + sides.group[side])
        self._slack_costs.append(costs.ravel())
        stage = self._begins[p] + np.maximum(at[0], at[1] + _BETWEEN)
        self._slack_stages.append(stage.repeat(len(sides.costs)))
        self._slacks += costs.size

    def _hessian(self, order: Indices, place: Indices) -> csc_matrix:
        """The Hessian of the cost: diagonal, but for the block of the last state."""
        own, block = self._block
        first, columns = int(place[own]), len(order)
        last = first + self._nx
        diagonal = np.concatenate((self._diagonal, np.full(columns - self._size, _SMALL)))[order]
        dense = 0.5 * (block + block.T) + np.diag(diagonal[first:last])
        rows = np.tile(np.arange(first, last), self._nx)
        indices = np.concatenate((np.arange(first), rows, np.arange(last, columns)))
        counts = np.ones(columns, dtype=int)
        counts[first:last] = self._nx
        ends = np.concatenate(([0], counts.cumsum()))
        values = np.concatenate((diagonal[:first], dense.ravel(), diagonal[last:]))
        return csc_matrix((values, indices, ends), shape=(columns, columns))

    def _changed(self, p: int, z: Array) -> Section:
        s, first = self._sections[p], int(self._states[p][0])
        n = len(s.corrections)
        states = s.states.copy()
        free = 1 if p == 0 else 0
        begin, end = first + self._nx * free, first + self._nx * (n + 1)
        states[free:] += z[begin:end].reshape(-1, self._nx)
        time = self._times[p]
        corrections = s.corrections + z[self._inputs[p][0] : time].reshape(n, self._nu)
        duration = s.duration + float(z[time])
        return replace(s, states=states, corrections=corrections, duration=duration)
