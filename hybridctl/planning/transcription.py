r"""Transcription of a task by direct collocation: a nonlinear programme with named constraints.

The programme is :math:`\min_w J(w)` subject to :math:`l \le g(w) \le u`, with box bounds of w. The
variables w are, phase by phase (`PhaseVariables`):

    knots (nx, N + 1) | collocation points (nx, N d) | input coefficients (nu, p + 1) | duration

then perturbations of all phases if the task has a transition cost, accelerations and forces at the
nodes if its equations of motion are constraints (`implicit_phases`), and the common margin. Stages
are the intervals of the phases. Stage i of a phase holds knot i and the d points of its interval:
its defects contain no other states but the next knot. The input coefficients and the duration of
a phase are in the defects of all its stages. Phases are linked by jumps alone, the last knot of one
to the first knot of the next. Conditions, closure and final cost see the first knot, the state
after the last event and all durations.

The constraints g are blocks, phase by phase: defects and continuity, path limits, gaps, early
impacts, limits at the start and at the end. Then follow the jumps between phases, the orders of
events (`event_orders`), start and closure, conditions, and the equations of the perturbations. The
order of variables and constraints decides the pivots of IPOPT's linear solver, and so the last
bits of its iterates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np
from scipy.sparse.linalg import spsolve

from hybridctl.base.checks import Array
from hybridctl.mechanics.modes.implicit_expressions import has_dependent_rows
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.planning.closure import build_boundary_blocks, get_state_limits
from hybridctl.planning.collocation import (
    ConstraintBlock,
    MappedFunction,
    PhaseVariables,
    build_defects,
    build_hessian,
    build_jacobian,
    build_phase_variables,
    compute_collocation_matrices,
    compute_input_basis,
    compute_knot_fractions,
    compute_point_fractions,
)
from hybridctl.planning.event_orders import ContinuedArc, build_event_orders
from hybridctl.planning.implicit_phases import (
    ImplicitPhase,
    NodeEquations,
    build_implicit_phase,
    build_mode_equations,
    uses_implicit_phases,
)
from hybridctl.planning.phase_functions import (
    Limit,
    LimitedFunction,
    PhaseFunctions,
    build_phase_functions,
    compute_least_gaps,
    find_opening_contacts,
    get_end_gap_name,
)
from hybridctl.planning.start_inputs import (
    compute_holding_input,
    fit_inputs,
    fit_inputs_to_forces,
)
from hybridctl.planning.task import Expression, Guess, Task
from hybridctl.planning.transition_cost import (
    PhasePerturbations,
    build_perturbations,
    build_transition_equations,
)


@dataclass(frozen=True, eq=False)
class Transcription:
    """The nonlinear programme of a task.

    Attributes:
        task: The task.
        variables: Variables of each phase.
        margin: Common margin m (1, 1) of the orders of events, see `Task.widen`.
        cost: Cost J (1, 1).
        blocks: All constraints, in their order.
        mapped: Functions at collocation points, which are differentiated point by point.
        functions: Functions of each phase.
        perturbations: Perturbations of each phase; empty without a transition cost.
        perturbation_residual: Residual (m, 1) of the equations of the perturbations.
        nodes: Equations of motion of nodes, with their variables; empty where the dynamics are
            solved for accelerations.
    """

    task: Task
    variables: tuple[PhaseVariables, ...]
    margin: Expression
    cost: Expression
    blocks: tuple[ConstraintBlock, ...]
    mapped: tuple[MappedFunction, ...]
    functions: tuple[PhaseFunctions, ...]
    perturbations: tuple[PhasePerturbations, ...]
    perturbation_residual: Expression
    nodes: tuple[NodeEquations, ...] = ()

    @property
    def column(self) -> Expression:
        """All variables w (n, 1)."""
        columns = [column for phase in self.variables for column in phase.columns]
        columns += [ca.vec(part) for phase in self.perturbations for part in phase]
        columns += [ca.vec(node.unknowns) for node in self.nodes]
        return ca.vertcat(*columns, self.margin)

    @property
    def constraints(self) -> Expression:
        """The values g (m, 1) of all constraints."""
        return ca.vertcat(*(ca.vec(block.values) for block in self.blocks))

    def jacobian(self) -> Any:
        """Return the CasADi function (w, no parameters) -> g and dg/dw, as `nlpsol` takes it."""
        g = self.constraints
        slopes = build_jacobian(self.column, g, self.mapped)
        return ca.Function("jacobian", [self.column, ca.MX(0, 1)], [g, slopes])

    def hessian(self) -> Any:
        """Return the function (w, no parameters, s, l) -> Hessian (n, n) of s J + l' g by w.

        The scalar s weighs the cost, l (m, 1) are the multipliers of the constraints. The result is
        the upper triangle of the Hessian, as `nlpsol` takes it.
        """
        g, weight = self.constraints, ca.MX.sym("weight")
        multipliers = ca.MX.sym("multipliers", g.shape[0])
        lagrangian = weight * self.cost + ca.dot(multipliers, g)
        curvature = build_hessian(self.column, lagrangian, self.mapped)
        inputs = [self.column, ca.MX(0, 1), weight, multipliers]
        return ca.Function("hessian", inputs, [curvature])

    def compute_constraint_bounds(self) -> tuple[Array, Array]:
        """Return the lower and upper bounds (m,) of the constraints."""
        pairs = [block.compute_bounds() for block in self.blocks]
        low, high = (np.concatenate([p[i].ravel("F") for p in pairs]) for i in (0, 1))
        return low, high

    def compute_variable_bounds(self) -> tuple[Array, Array]:
        """Return the lower and upper bounds (n,) of the variables.

        Only durations, in s, and the common margin are bounded. The margin is at least zero, and
        zero if the task does not widen it.
        """
        low, high = [], []
        for phase, v in zip(self.task.phases, self.variables, strict=True):
            free = np.full(sum(part.numel() for part in v.columns) - 1, np.inf)
            low.append(np.append(-free, phase.duration[0]))
            high.append(np.append(free, phase.duration[1]))
        free = np.full(self._count_perturbations() + self._count_node_unknowns(), np.inf)
        low += [-free, np.zeros(1)]
        high += [free, np.array([np.inf if self.task.widen else 0.0])]
        return np.concatenate(low), np.concatenate(high)

    def compute_start(self, guess: Guess, inputs: Sequence[tuple[Array, float]] = ()) -> Array:
        """Return the variables at which a search begins: all (n,) but the perturbations.

        Those are added by `add_perturbations`. The common margin is zero.

        Args:
            guess: States (nx,) by phase and fraction of the phase.
            inputs: Chebyshev coefficients (p + 1, nu) and duration, s, of each phase. If empty, the
                inputs follow from the guess, and the duration is the mean of its bounds.
        """
        parts = []
        for k, (phase, f) in enumerate(zip(self.task.phases, self.functions, strict=True)):
            fractions = compute_knot_fractions(phase), compute_point_fractions(phase)
            parts += [np.array([guess(k, s) for s in group]).ravel() for group in fractions]
            if inputs:
                curve, duration = inputs[k]
            else:
                curve, duration = self._guess_inputs(k, f.field, guess), 0.5 * sum(phase.duration)
            parts += [curve.ravel(), np.array([duration])]
        start = np.concatenate([*parts, np.zeros(self._count_node_unknowns() + 1)])
        if self.nodes:
            self._solve_nodes(start)
        return start

    def _guess_inputs(self, k: int, field: Any, guess: Guess) -> Array:
        """Return Chebyshev coefficients (p + 1, nu) of inputs of phase k for a guess of its states.

        The input is constant and about holds the state in the middle of the phase. Where equations
        of motion are constraints, inputs move the robot as guessed: from constant ones the trot in
        place of solo12 was found in 235 iterations, at twice the cost, instead of 157.
        From a hop at 0.3 m/s neither led to an optimum within 300 iterations.

        Args:
            k: Index of the phase.
            field: CasADi function (x, u) -> dx/dt of the phase.
            guess: States (nx,) by phase and fraction of the phase.
        """
        if self.nodes:
            modes, contacts = contact_modes(self.task.phases[k].mode), self.task.get_contacts(k)
            if has_dependent_rows(self.task.system.robot, contacts, modes):
                mode = build_mode_equations(self.task, k, modes)
                return fit_inputs_to_forces(self.task, k, mode, guess)
            return fit_inputs(self.task, k, field, guess)
        curve = np.zeros((self.task.degree + 1, self.task.system.robot.nu))
        curve[0] = compute_holding_input(self.task, field, guess(k, 0.5))
        return curve

    def _solve_nodes(self, values: Array) -> None:
        """Set accelerations and forces to those that the equations of motion of each node have.

        Args:
            values: All variables (n,), in which those of the nodes are changed.
        """
        first = len(values) - 1 - self._count_node_unknowns()
        for node in self.nodes:
            found = node.solve_unknowns(self.column, values)
            values[first : first + len(found)] = found
            first += len(found)

    def _count_node_unknowns(self) -> int:
        return sum(node.unknowns.numel() for node in self.nodes)

    def add_perturbations(self, values: Array) -> Array:
        """Return all variables (n,), with the perturbations that solve their linear equations.

        Args:
            values: All variables but the perturbations.
        """
        size = self._count_perturbations()
        start = np.concatenate([values[:-1], np.zeros(size), values[-1:]])
        residual = self.perturbation_residual
        results = [residual, ca.jacobian(residual, self.column)]
        # The residual is linear in the perturbations, so that one step from zero solves it.
        at_zero, slopes = ca.Function("moving", [self.column], results)(start)
        perturbed = slice(len(values) - 1, len(values) - 1 + size)
        start[perturbed] = spsolve(slopes.sparse()[:, perturbed], -np.array(at_zero).ravel())
        return start

    def _count_perturbations(self) -> int:
        return sum(part.numel() for phase in self.perturbations for part in phase)


def transcribe(task: Task, implied: frozenset[tuple[int, str]] = frozenset()) -> Transcription:
    """Return the programme of a task.

    Args:
        task: The task.
        implied: Guards, by phase and name, that vanish wherever the others of their phase do. They
            get no equation.
    """
    phases, robot = range(len(task.phases)), task.system.robot
    variables = tuple(
        build_phase_variables(phase, k, task.system.space.nx, robot.nu, task.degree)
        for k, phase in enumerate(task.phases)
    )
    margin = ca.MX.sym("margin")
    implicit = list[ImplicitPhase]()
    if uses_implicit_phases(task):
        implicit = [build_implicit_phase(task, k, variables[k], margin, implied) for k in phases]
    functions = tuple(
        build_phase_functions(task, k, implied, has_ends=not implicit) for k in phases
    )
    blocks, mapped = list[ConstraintBlock](), list[MappedFunction]()
    cost: Expression = ca.MX(0.0)
    for k in phases:
        own_blocks, own_mapped, own_cost = _transcribe_phase(
            task, k, variables[k], functions[k], implicit[k] if implicit else None
        )
        blocks += own_blocks
        mapped += own_mapped
        cost += own_cost
    states_after = [phase.after for phase in implicit] or [
        v.knots[:, -1] if f.jump is None else f.jump(v.knots[:, -1])
        for v, f in zip(variables, functions, strict=True)
    ]
    coordinates = get_state_limits(task)
    for k in phases[1:]:
        gap = variables[k].knots[:, 0] - states_after[k - 1]
        blocks.append(ConstraintBlock(gap, coordinates, k, is_hard=True))
    # Implicit phases have the limits of their orders of events among those of their nodes.
    for k in () if implicit else phases:
        blocks += _build_event_order_blocks(task, k, variables, margin)
    cost -= task.widen * margin
    first, last = variables[0].knots[:, 0], states_after[-1]
    duration = sum(v.duration for v in variables)
    blocks += build_boundary_blocks(task, first, last)
    for condition in task.conditions:
        limit = Limit(condition.name, condition.unit, condition.lower, condition.upper)
        blocks.append(ConstraintBlock(condition.value(first, last, duration), (limit,)))
    if task.final_cost is not None:
        cost += task.final_cost(first, last, duration)
    perturbations = tuple[PhasePerturbations, ...]()
    equations = list[ConstraintBlock]()
    if task.transition is not None:
        perturbations = build_perturbations(task)
        added = build_transition_equations(task, variables, perturbations, functions)
        equations, cost = added.blocks, cost + added.cost
        mapped += added.mapped
    return Transcription(
        task,
        variables,
        margin,
        cost,
        (*blocks, *equations),
        tuple(mapped),
        functions,
        perturbations,
        ca.vertcat(*(ca.vec(block.values) for block in equations)),
        tuple(node for phase in implicit for node in phase.nodes),
    )


def _transcribe_phase(
    task: Task, k: int, v: PhaseVariables, f: PhaseFunctions, implicit: ImplicitPhase | None
) -> tuple[list[ConstraintBlock], list[MappedFunction], Expression]:
    """Return constraints, functions at the collocation points, and running cost of one phase.

    Args:
        task: The task.
        k: Index of the phase.
        v: Its variables.
        f: Its functions.
        implicit: Its equations of motion as constraints, None where the dynamics are solved.
    """
    phase = task.phases[k]
    fractions = compute_point_fractions(phase)
    u = v.inputs @ ca.DM(compute_input_basis(fractions, task.degree))
    length = ca.repmat(v.duration / phase.intervals, 1, len(fractions))
    if implicit is None:
        flow = MappedFunction.map_over(_build_flow(f), v.points, u, length)
    else:
        flow = implicit.flow
    rates, costs = flow.values[:-1, :], flow.values[-1, :]
    blocks = build_defects(phase, k, v.knots, v.points, rates, get_state_limits(task))
    path_blocks, path_mapped = _build_path_blocks(task, k, v, f, has_path=implicit is None)
    blocks += path_blocks
    if implicit is not None:
        blocks += [block for node in implicit.nodes for block in node.blocks]
        path_mapped += [node.mapped for node in implicit.nodes]
    if f.start.limits:
        values = f.start(v.knots[:, 0], v.build_input(0.0))
        blocks.append(ConstraintBlock(values, f.start.limits, k, np.zeros(1)))
    if f.end.limits:
        values = f.end(v.knots[:, -1], v.build_input(1.0), v.build_final_input_rate())
        blocks.append(ConstraintBlock(values, f.end.limits, k, np.ones(1)))
    weights = compute_collocation_matrices(phase).weights
    cost = costs @ ca.DM(np.tile(weights.ravel(), phase.intervals))
    return blocks, [flow, *path_mapped], cost


def _build_flow(f: PhaseFunctions) -> Any:
    """Return the function (x, u, h) -> h times the field (nx, 1) and h times the running cost."""
    x, u = (ca.SX.sym("z", f.field.size1_in(i)) for i in range(2))
    h = ca.SX.sym("h")
    return ca.Function("flow", [x, u, h], [h * ca.vertcat(f.field(x, u), f.cost(x, u))])


def _build_path_blocks(
    task: Task, k: int, v: PhaseVariables, f: PhaseFunctions, *, has_path: bool
) -> tuple[list[ConstraintBlock], list[MappedFunction]]:
    """Return the limits at collocation points and knots, and the functions in them.

    Gaps of open contacts are limited at the points alone: at a knot where a contact closes or opens
    its gap is zero by another equation. Where a motion ends at a time, without an event, the last
    knot has no such equation, and the gaps are limited there too.

    Args:
        task: The task.
        k: Index of the phase.
        v: Its variables.
        f: Its functions.
        has_path: Whether path limits are among the limits.
    """
    phase = task.phases[k]
    points = compute_point_fractions(phase)
    nodes = np.concatenate((points, compute_knot_fractions(phase)))
    states: Expression = ca.horzcat(v.points, v.knots)
    blocks, mapped = list[ConstraintBlock](), list[MappedFunction]()
    if has_path and f.path.limits:
        path, block = _build_path_limits(task, k, v, f.path, states, nodes)
        mapped.append(path)
        blocks.append(block)
    if f.open_contacts:
        gaps = MappedFunction.map_over(f.gaps, v.points, ca.DM(points).T)
        mapped.append(gaps)
        lower = compute_least_gaps(task, k, f.open_contacts, points).T
        # The last Radau point is the last knot. Where its gap is zero by an equation, a bound would
        # leave the inequality no interior, which IPOPT needs.
        lower[:, points == 1.0] = -np.inf
        limits = tuple(Limit(f"gap of {name!r}", "m", 0.0) for name in f.open_contacts)
        blocks.append(ConstraintBlock(gaps.values, limits, k, points, lower))
        if k == len(task.phases) - 1 and not phase.ends:
            limits = tuple(Limit(get_end_gap_name(name), "m", 0.0) for name in f.open_contacts)
            blocks.append(ConstraintBlock(f.gaps(v.knots[:, -1], 1.0), limits, k, np.ones(1)))
    if f.early_impact.limits:
        late = np.flatnonzero((nodes >= 1.0 - task.margins.early) & (nodes < 1.0))
        values = f.early_impact.function.map(len(late))(states[:, late.tolist()])
        blocks.append(ConstraintBlock(values, f.early_impact.limits, k, nodes[late]))
    return blocks, mapped


def _build_path_limits(
    task: Task,
    k: int,
    v: PhaseVariables,
    f: LimitedFunction,
    states: Expression,
    fractions: Array,
) -> tuple[MappedFunction, ConstraintBlock]:
    """Return path limits at given states, and the function in them.

    Args:
        task: The task.
        k: Index of the phase.
        v: Its variables.
        f: Limited values of (x, u).
        states: States (nx, n).
        fractions: Fractions (n,) of the phase at which they are.
    """
    u = v.inputs @ ca.DM(compute_input_basis(fractions, task.degree))
    mapped = MappedFunction.map_over(f.function, states, u)
    lower = np.array([limit.compute_lower_bounds(fractions) for limit in f.limits])
    # Values that fade, such as forces of contacts that open, are zero at the end by an equation: a
    # bound there would leave the inequality no interior.
    lower[np.ix_([limit.fades for limit in f.limits], fractions == 1.0)] = -np.inf
    return mapped, ConstraintBlock(mapped.values, f.limits, k, fractions, lower)


def _build_event_order_blocks(
    task: Task, k: int, variables: tuple[PhaseVariables, ...], margin: Expression
) -> list[ConstraintBlock]:
    """Return the limits where the events at the end of phase k come one by one, early or late.

    Args:
        task: The task.
        k: Index of the phase.
        variables: Variables of all phases.
        margin: Common margin m; the limits of orders are multiplied by 1 + m.
    """
    if not task.phases[k].ends:  # it ends at a time: there are no events that could change order
        return []
    spread, v, blocks = task.get_event_spread(k), variables[k], list[ConstraintBlock]()

    def build_input_before(time: float) -> Expression:
        """Return the input (nu, 1) of phase k at a time after its end, s."""
        return v.build_input(1.0 + time / v.duration)

    x, rate = v.knots[:, -1], v.build_final_input_rate()
    modes, opening = contact_modes(task.phases[k].mode), find_opening_contacts(task, k)
    # The event may be late: the arc before it goes on in its own mode for the spread. After orders
    # in which other contacts are still waiting, the arc goes on for the spread both ways in time.
    arcs = [ContinuedArc(k, modes, x, build_input_before, spread, "late", opening)]
    for order in build_event_orders(task, k, x, build_input_before(0.0), rate):
        if order.limits:
            # values - least m >= least: the margin m raises each limit to least (1 + m).
            least = np.array([[limit.lower] for limit in order.limits])
            values = order.values - ca.DM(least) * margin
            blocks.append(ConstraintBlock(values, order.limits, k, np.ones(1)))
        if order.is_waiting:
            between = f"after {' then '.join(order.contacts)}"
            arcs += [
                ContinuedArc(
                    k, order.modes, order.state, build_input_before, time, between, opening
                )
                for time in (spread, -spread)
            ]
    if k + 1 < len(variables):
        w, modes = variables[k + 1], contact_modes(task.phases[k + 1].mode)

        def build_input_after(time: float) -> Expression:
            """Return the input (nu, 1) of phase k + 1 at a time after its start, s."""
            return w.build_input(time / w.duration)

        # The event may be early: the arc after it is continued backwards in time.
        start = w.knots[:, 0]
        arcs.append(ContinuedArc(k + 1, modes, start, build_input_after, -spread, "early"))
    # Without a spread of event times no event is early or late, and arcs are not continued.
    for arc in arcs if spread else ():
        values, limits = arc.build_limits(task)
        if limits:
            blocks.append(ConstraintBlock(values, limits, k, np.ones(values.shape[1])))
    return blocks
