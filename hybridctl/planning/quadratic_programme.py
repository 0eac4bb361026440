r"""The quadratic programme of one iteration of predictive control, over a horizon through events.

The horizon consists of sections: the rest of the present phase, and whole phases after it. Unknowns
are the states :math:`x_{pi}` at the nodes of each section p, the corrections :math:`d_{pi}` that
are added to the feedforward on an interval, and the time :math:`T_p` that is left to the end of a
section, of which interval i takes the share :math:`\sigma_i`:

.. math::

    \min \sum_{p, i} \tfrac12 \sigma_i T_p \left(|x_{pi} - \alpha_{pi}|_Q^2 + |d_{pi}|_R^2\right)
    + \sum_p \tfrac12 w (T_p - \bar T_p)^2 + \tfrac12 |y - \alpha|_V^2

subject to :math:`x_{p,i+1} = F(x_{pi}, d_{pi}, \sigma_i T_p) - e_{pi}`, :math:`g(x_{pN}) = 0` for
the guards that end a phase, :math:`x_{p+1,0} = S(x_{pN})` for the jump S there, whose last value is
y, and limits of inputs. All are linearised at the present sections, and the solution is a change of
them. F is one integration step. e is its error along the reference, which so remains a solution
however long the intervals are. Limits of states have slacks, whose cost is proportional to them. So
no prediction goes through an event, and none fails where it would slip or miss one.

Stages of the solver are the nodes and the intervals between them in order of time, with the
durations last, as they are part of all stages of their section.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import piqp
from scipy.sparse import csc_matrix

from hybridctl.base.checks import Array, Indices
from hybridctl.planning.horizon_functions import LimitSides, LinearizedValues, PhaseModel

_PRESENT_INTERVALS = 2
"""First intervals of the horizon that have limits at their end too: their input acts before the
next plan is made."""
_EARLY_END_SCALE = 0.002
"""Cost of the slacks of an event that comes early, relative to an event at its planned time. A
choice."""
_REGULARISATION = 1e-6
"""Addition to the diagonal of the Hessian, which makes the programme strictly convex: slacks and
directions without weight have no curvature of their own."""
_ACCURACY = 1e-5
"""Absolute and relative tolerance of residuals and of the duality gap of the solver. A choice."""
_MAX_ITERATIONS = 100
"""Most iterations of the interior-point method. A choice."""
_EQUILIBRATIONS = 1
"""Iterations of the solver's scaling of rows and columns. A choice, for speed."""
_INTERVAL_STAGE = 0.5
"""Stage of an interval, between the integer stages of the nodes at its ends."""


@dataclass(frozen=True, eq=False)
class Section:
    """A planned phase of the horizon, from a fraction of it to its end at fraction 1.

    A section of a phase that ends with no event may go on beyond that.

    Attributes:
        phase: Index of the phase in the task.
        fractions: Fractions (n + 1,) of the phase at the nodes.
        states: States (n + 1, nx) at the nodes.
        corrections: Additions (n, nu) to the feedforward on the intervals.
        duration: Time from the first node to the last, s.
    """

    phase: int
    fractions: Array
    states: Array
    corrections: Array
    duration: float

    @property
    def shares(self) -> Array:
        """Shares (n,) of the intervals in the duration."""
        return np.asarray(np.diff(self.fractions) / (self.fractions[-1] - self.fractions[0]))

    @property
    def rate(self) -> float:
        """Growth of the fraction of the phase in time, 1/s."""
        return float(self.fractions[-1] - self.fractions[0]) / self.duration


@dataclass(frozen=True, eq=False)
class MotionSamples:
    """The reference motion at the nodes of a section.

    Attributes:
        states: States (n + 1, nx).
        inputs: Feedforward (n + 1, nu) at the nodes.
        middles: Feedforward (n, nu) in the middle of the intervals.
        step_errors: Differences (n, nx) between steps along the motion and the motion at their
            ends.
        clearance: Least gaps (n + 1, g) of open contacts, m.
    """

    states: Array
    inputs: Array
    middles: Array
    step_errors: Array
    clearance: Array


@dataclass(frozen=True, eq=False)
class SectionTarget:
    """Reference of a section, and bounds within which it may differ from that.

    Attributes:
        motion: The reference motion at the nodes.
        final_input_rate: Rate (nu,) of the feedforward at the end, in the unit of the input per s.
        duration: Duration of the reference, s.
        least_change: Lower bound of the change of the duration, s.
        greatest_change: Upper bound of this change, s.
        first_end_node: Index of the first node at which the phase may end.
        end_bounds: Lower limits (n + 1, r) of the end values at the nodes.
        disturbance: Number of units of the disturbance.
        surface: Value of the guards at the end, m: height of the surface on which the phase ends.
    """

    motion: MotionSamples
    final_input_rate: Array
    duration: float
    least_change: float
    greatest_change: float
    first_end_node: int
    end_bounds: Array
    disturbance: float = 0.0
    surface: float = 0.0


@dataclass(frozen=True, eq=False)
class HorizonCosts:
    """Weights of the cost.

    Attributes:
        state: Diagonal (nx,) of Q, per s.
        input: Diagonal (nu,) of R, per s.
        duration: Weight w of the durations, 1/s^2.
        final: Weight V (nx, nx) of the state after the last section.
    """

    state: Array
    input: Array
    duration: float
    final: Array


@dataclass(frozen=True, eq=False)
class Junction:
    """Map from the end of a section to the state at which the motion goes on.

    The state is y = matrix S(x) + offset, with the jump S of the phase.

    Attributes:
        matrix: Matrix (nx, nx), the symmetry at the end of a cycle, else the identity.
        offset: Offset (nx,), along the free directions of the symmetry.
        target: State (nx,) of the reference motion there.
    """

    matrix: Array
    offset: Array
    target: Array


class SparseBlocks:
    """A sparse matrix that is made of dense blocks.

    Life cycle: `add_blocks` any number of times, then `build_matrix`.

    Attributes:
        rows: Number of rows so far. Whoever adds blocks increases it.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._parts: list[tuple[Indices, Indices, Array]] = []

    def add_blocks(self, row: Indices, column: Indices, blocks: Array) -> None:
        """Add m blocks.

        Args:
            row: Row (m,) of the first entry of each block.
            column: Column (m,) of it.
            blocks: The blocks (m, r, c).
        """
        _, r, c = blocks.shape
        rows = (row[:, None] + np.arange(r)).ravel().repeat(c)
        columns = (column[:, None] + np.arange(c)).repeat(r, axis=0).ravel()
        self._parts.append((rows, columns, blocks.ravel()))

    def build_matrix(self, place: Indices) -> csc_matrix:
        """Return the matrix without explicit zeros.

        Args:
            place: New place (columns,) of each column.
        """
        i, j, v = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        matrix = csc_matrix((v, (i, place[j])), shape=(self.rows, len(place)))
        matrix.eliminate_zeros()
        return matrix


class HorizonProgramme:
    """The quadratic programme around planned sections.

    Life cycle: the constructor builds the programme, `solve` is called once. Unknowns are changes
    of the sections. Their columns are, section by section: states, corrections, duration; slacks
    follow. The first state of all is given and has no columns.

    Args:
        models: Functions of each phase of the task.
        sections: The planned sections, at which the programme is linearised.
        targets: Reference and bounds of each section.
        junctions: What follows each section.
        costs: Weights.
        limits: Least and greatest inputs (2, nu).
    """

    def __init__(
        self,
        models: list[PhaseModel],
        sections: list[Section],
        targets: list[SectionTarget],
        junctions: list[Junction],
        costs: HorizonCosts,
        limits: Array,
    ) -> None:
        self._sections, self._costs, self._limits = sections, costs, limits
        self._nx, self._nu = models[0].nx, models[0].nu
        self._equations, self._inequalities = SparseBlocks(), SparseBlocks()
        self._equation_values: list[Array] = []  # right sides
        self._upper_values: list[Array] = []  # right sides of the inequalities
        self._slack_of_row: list[Indices] = []  # number of the slack of each inequality
        self._slack_costs: list[Array] = []
        self._slack_stages: list[Array] = []
        self._slack_count = 0  # so far
        self._lay_out_columns()
        for p, section in enumerate(sections):
            model, target = models[section.phase], targets[p]
            self._add_dynamics(p, model, target)
            self._add_path_limits(p, model, target)
            if p and model.start_limits:  # the present phase has begun already
                self._add_start_limits(p, model, target)
            if model.end_limits:
                self._add_end(p, model, target)
            self._add_junction(p, model, junctions[p], target.disturbance)
            self._add_costs(p, target)

    def solve(self) -> list[Section] | None:
        """Return the sections after this iteration, None if the programme has no solution."""
        unbounded, rows = np.full(self._slack_count, np.inf), np.arange(self._inequalities.rows)
        slacks = self._size + np.concatenate(self._slack_of_row)
        self._inequalities.add_blocks(rows, slacks, np.full((len(rows), 1, 1), -1.0))
        order = np.concatenate((self._stages, *self._slack_stages)).argsort(kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        solver = piqp.SparseSolver()
        solver.settings.kkt_solver = piqp.KKTSolver.sparse_multistage
        solver.settings.preconditioner_iter = _EQUILIBRATIONS
        for name in ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"):
            setattr(solver.settings, name, _ACCURACY)
        solver.settings.max_iter = _MAX_ITERATIONS
        solver.setup(
            self._build_hessian(order, place),
            np.concatenate((self._gradient, *self._slack_costs))[order],
            self._equations.build_matrix(place),
            np.concatenate(self._equation_values),
            self._inequalities.build_matrix(place),
            None,
            np.concatenate(self._upper_values),
            np.concatenate((self._low, np.zeros(self._slack_count)))[order],
            np.concatenate((self._high, unbounded))[order],
        )
        if solver.solve() != piqp.PIQP_SOLVED:
            return None
        z = np.array(solver.result.x)[place]
        return [self._change_section(p, z) for p in range(len(self._sections))]

    def _lay_out_columns(self) -> None:
        """Set the columns of all unknowns but slacks, their stages, and empty costs and bounds."""
        self._states, self._inputs = list[Indices](), list[Indices]()
        self._durations, self._first_stages = list[int](), list[int]()
        at, stage, stages = 0, 0, list[Array]()
        for p, section in enumerate(self._sections):
            n, free = len(section.corrections), self._first_free_node(p)
            # The first column of the given state, which has none, would be before the first one.
            self._states.append(at - free * self._nx + self._nx * np.arange(n + 1))
            at = int(self._states[-1][-1]) + self._nx
            self._inputs.append(at + self._nu * np.arange(n))
            at += self._nu * n
            self._durations.append(at)
            at += 1
            nodes = np.arange(stage + free, stage + n + 1, dtype=float)
            intervals = np.arange(n, dtype=float) + stage + _INTERVAL_STAGE
            stages += [nodes.repeat(self._nx), intervals.repeat(self._nu), np.array([np.inf])]
            self._first_stages.append(stage)
            stage += n + 1
        self._size, self._stages = at, np.concatenate(stages)
        self._diagonal = np.full(at, _REGULARISATION)
        self._gradient = np.zeros(at)
        self._low, self._high = np.full(at, -np.inf), np.full(at, np.inf)

    @staticmethod
    def _first_free_node(p: int) -> int:
        """Return the first node of a section whose state is unknown: the first of all is given."""
        return 1 if p == 0 else 0

    def _add_dynamics(self, p: int, model: PhaseModel, target: SectionTarget) -> None:
        """Require the state of each node to be the end of the step before it.

        Args:
            p: Index of the section.
            model: Functions of its phase.
            target: Its target.
        """
        s, columns, motion = self._sections[p], self._states[p], target.motion
        d, shares = s.corrections, s.shares
        inputs = motion.inputs[:-1] + d, motion.middles + d, motion.inputs[1:] + d
        steps = model.linearize_steps(
            s.states[:-1], inputs, s.duration * shares, target.disturbance
        )
        first = self._add_equations((steps.states - motion.step_errors - s.states[1:]).ravel())
        rows = first + self._nx * np.arange(len(d))
        identity = np.broadcast_to(np.eye(self._nx), (len(d), self._nx, self._nx))
        free = self._first_free_node(p)
        self._equations.add_blocks(rows, columns[1:], identity)
        self._equations.add_blocks(rows[free:], columns[free:-1], -steps.by_state[free:])
        self._equations.add_blocks(rows, self._inputs[p], -steps.by_input)
        by_duration = -steps.by_length * shares[:, None]
        duration = np.full(len(d), self._durations[p])
        self._equations.add_blocks(rows, duration, by_duration[:, :, None])

    def _add_path_limits(self, p: int, model: PhaseModel, target: SectionTarget) -> None:
        """Add limits at the start of each interval, and at the end of the present ones.

        Gaps are not limited at the first node: there a foot may just have left the ground.

        Args:
            p: Index of the section.
            model: Functions of its phase.
            target: Its target.
        """
        s = self._sections[p]
        n = len(s.corrections)
        nodes, intervals = np.arange(n), np.arange(n)
        if p == 0:
            present = nodes[:_PRESENT_INTERVALS]
            nodes, intervals = np.append(nodes, present + 1), np.append(intervals, present)
        u = target.motion.inputs[nodes] + s.corrections[intervals]
        linear = model.evaluate_path(s.states[nodes], u, s.fractions[nodes], target.disturbance)
        lengths = (s.duration * s.shares)[intervals]
        sides, first_gap = model.path_sides, len(model.path_sides.bound) - len(model.open_contacts)
        bounds = sides.compute_bounds(s.fractions[nodes])
        bounds[:, first_gap:] = target.motion.clearance[nodes]
        is_limited = np.full(bounds.shape, True)
        is_limited[nodes == 0, first_gap:] = False
        self._add_soft_limits(p, (nodes, intervals), linear, sides, bounds, lengths, is_limited)

    def _add_start_limits(self, p: int, model: PhaseModel, target: SectionTarget) -> None:
        """Add limits where a section begins.

        Args:
            p: Index of the section.
            model: Functions of its phase.
            target: Its target.
        """
        s, first = self._sections[p], np.zeros(1, dtype=int)
        u = target.motion.inputs[first] + s.corrections[first]
        linear = model.evaluate_start(s.states[first], u, target.disturbance)
        sides = model.start_sides
        self._add_soft_limits(p, (first, first), linear, sides, sides.bound[None], np.ones(1))

    def _add_end(self, p: int, model: PhaseModel, target: SectionTarget) -> None:
        """Require the guards at the end of a section to vanish, and add limits of the event.

        The limits also hold at earlier nodes at which the event may come.

        Args:
            p: Index of the section.
            model: Functions of its phase.
            target: Its target.
        """
        s = self._sections[p]
        n = len(s.corrections)
        nodes = np.arange(target.first_end_node, n + 1)
        intervals = np.minimum(nodes, n - 1)
        u = target.motion.inputs[nodes] + s.corrections[intervals]
        linear = model.evaluate_end(s.states[nodes], u, target.final_input_rate, target.disturbance)
        zero, sides = model.equations, model.end_sides
        row = np.array([self._add_equations(target.surface - linear.values[-1, zero])])
        self._equations.add_blocks(row, self._states[p][-1:], linear.by_state[-1:, zero])
        self._equations.add_blocks(row, self._inputs[p][-1:], linear.by_input[-1:, zero])
        lower = target.end_bounds[nodes][:, sides.index]
        bounds = np.where(sides.sign > 0.0, lower, sides.bound)
        scale = np.where(nodes < n, _EARLY_END_SCALE, 1.0)
        self._add_soft_limits(p, (nodes, intervals), linear, sides, bounds, scale)

    def _add_junction(
        self, p: int, model: PhaseModel, junction: Junction, disturbance: float
    ) -> None:
        """Require the next section to begin after the event; weigh the last state of all by V.

        Args:
            p: Index of the section.
            model: Functions of its phase.
            junction: What follows it.
            disturbance: Number of units of the disturbance.
        """
        after, by_state = model.evaluate_jump(self._sections[p].states[-1], disturbance)
        y, slope = junction.matrix @ after + junction.offset, junction.matrix @ by_state
        end = self._states[p][-1:]
        if p + 1 < len(self._sections):
            row = np.array([self._add_equations(y - self._sections[p + 1].states[0])])
            self._equations.add_blocks(row, self._states[p + 1][:1], np.eye(self._nx)[None])
            self._equations.add_blocks(row, end, -slope[None])
            return
        v = self._costs.final
        self._final_block = int(end[0]), slope.T @ v @ slope
        self._gradient[end[0] : end[0] + self._nx] += slope.T @ v @ (y - junction.target)

    def _add_costs(self, p: int, target: SectionTarget) -> None:
        """Add the costs of a section, and the bounds of its inputs and of its duration.

        Args:
            p: Index of the section.
            target: Its target.
        """
        s, costs, motion = self._sections[p], self._costs, target.motion
        lengths = (s.duration * s.shares)[:, None]
        free = self._first_free_node(p)
        states = slice(self._states[p][free], self._states[p][-1])
        self._diagonal[states] += (lengths * costs.state)[free:].ravel()
        difference = s.states[:-1] - motion.states[:-1]
        self._gradient[states] += (lengths * costs.state * difference)[free:].ravel()
        inputs = slice(self._inputs[p][0], self._durations[p])
        self._diagonal[inputs] += (lengths * costs.input).ravel()
        self._gradient[inputs] += (lengths * costs.input * s.corrections).ravel()
        fed = np.array([motion.inputs[:-1], motion.middles, motion.inputs[1:]])
        # A feedforward beyond the limits is cut when it acts: no correction is then required.
        high = np.maximum(self._limits[1] - fed.max(axis=0), 0.0) - s.corrections
        low = np.minimum(self._limits[0] - fed.min(axis=0), 0.0) - s.corrections
        self._low[inputs], self._high[inputs] = low.ravel(), high.ravel()
        duration = self._durations[p]
        self._diagonal[duration] += costs.duration
        self._gradient[duration] += costs.duration * (s.duration - target.duration)
        self._low[duration] = target.least_change
        self._high[duration] = target.greatest_change

    def _add_equations(self, right: Array) -> int:
        """Add empty equations.

        Args:
            right: Their right sides (m,).

        Returns:
            The row of the first of them.
        """
        row = self._equations.rows
        self._equations.rows += len(right)
        self._equation_values.append(right)
        return row

    def _add_soft_limits(
        self,
        p: int,
        at: tuple[Indices, Indices],
        linear: LinearizedValues,
        sides: LimitSides,
        bounds: Array,
        scale: Array,
        is_limited: Array | None = None,
    ) -> None:
        """Add one-sided limits of linearised values, with slacks.

        Args:
            p: Index of the section.
            at: Nodes (m,), and the intervals (m,) whose corrections act there.
            linear: The values at these nodes.
            sides: The r limits.
            bounds: Bounds (m, r) in place of those of `sides`.
            scale: Factor (m,) of the costs of the slacks at each node.
            is_limited: Which limits (m, r) are added; None for all.
        """
        values = sides.sign * (linear.values[:, sides.index] - bounds)
        m, r = values.shape
        flat = np.arange(m * r) if is_limited is None else np.flatnonzero(is_limited)
        point, side = np.divmod(flat, r)
        nodes, intervals = (each[point] for each in at)
        sign, which = sides.sign[side, None], (point, sides.index[side])
        rows = self._inequalities.rows + np.arange(len(flat))
        self._inequalities.rows += len(flat)
        self._upper_values.append(values.ravel()[flat])
        free = nodes >= self._first_free_node(p)
        by_state, by_input = -sign * linear.by_state[which], -sign * linear.by_input[which]
        self._inequalities.add_blocks(
            rows[free], self._states[p][nodes[free]], by_state[free, None]
        )
        self._inequalities.add_blocks(rows, self._inputs[p][intervals], by_input[:, None])
        costs = scale[:, None] * sides.costs
        self._slack_of_row.append(self._slack_count + point * len(sides.costs) + sides.group[side])
        self._slack_costs.append(costs.ravel())
        stage = self._first_stages[p] + np.maximum(at[0], at[1] + _INTERVAL_STAGE)
        self._slack_stages.append(stage.repeat(len(sides.costs)))
        self._slack_count += costs.size

    def _build_hessian(self, order: Indices, place: Indices) -> csc_matrix:
        """Return the Hessian of the cost: diagonal, but for the block of the last state.

        Args:
            order: Columns (n,) in the order of their stages.
            place: Place (n,) of each column in this order.
        """
        own, block = self._final_block
        first, columns = int(place[own]), len(order)
        last = first + self._nx
        slacks = np.full(columns - self._size, _REGULARISATION)
        diagonal = np.concatenate((self._diagonal, slacks))[order]
        dense = 0.5 * (block + block.T) + np.diag(diagonal[first:last])
        rows = np.tile(np.arange(first, last), self._nx)
        indices = np.concatenate((np.arange(first), rows, np.arange(last, columns)))
        counts = np.ones(columns, dtype=int)
        counts[first:last] = self._nx
        ends = np.concatenate(([0], counts.cumsum()))
        values = np.concatenate((diagonal[:first], dense.ravel(), diagonal[last:]))
        return csc_matrix((values, indices, ends), shape=(columns, columns))

    def _change_section(self, p: int, z: Array) -> Section:
        """Return a section with the changes in the solution z (n,)."""
        s, first = self._sections[p], int(self._states[p][0])
        n = len(s.corrections)
        states = s.states.copy()
        free = self._first_free_node(p)
        begin, end = first + self._nx * free, first + self._nx * (n + 1)
        states[free:] += z[begin:end].reshape(-1, self._nx)
        duration = self._durations[p]
        corrections = s.corrections + z[self._inputs[p][0] : duration].reshape(n, self._nu)
        changed = s.duration + float(z[duration])
        return replace(s, states=states, corrections=corrections, duration=changed)
