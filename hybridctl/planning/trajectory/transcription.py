r"""Collocation: a task as a nonlinear programme, whose constraints know what they are.

On interval i of length h the state is the polynomial of degree d through its start and its values
at d points, Gauss's or Radau's, at which :math:`\dot x = f(x, u)`. Inputs are polynomials in time
on each phase, in Chebyshev's basis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np
from numpy.polynomial.chebyshev import chebvander
from scipy.sparse.linalg import spsolve

from hybridctl.base.checks import Array
from hybridctl.mechanics.constrained.phase import contact_modes
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.trajectory.functions import (
    Limit,
    LimitedFunction,
    PhaseFunctions,
    end_gap_name,
    gaps_of,
    held_at,
    held_limits,
    least_gaps,
    length_unit,
    opening_contacts,
    phase_functions,
)
from hybridctl.planning.trajectory.orders import ContinuedArc, orders, sizes
from hybridctl.planning.trajectory.pointwise import ColumnFunction, hessian, jacobian
from hybridctl.planning.trajectory.task import Expression, Phase, Task
from hybridctl.planning.trajectory.transition import Deviations, deviation_flow, deviations_after

Guess = Callable[[int, float], Array]


@dataclass(frozen=True, eq=False)
class Block:
    """Constraints of one kind: values (r, n), limits (r) and the times they hold at (n,).

    at: fractions of phase `phase`; None for what is of the whole motion. hard: whether they are of
    the discretisation, which always holds.
    """

    values: Expression
    limits: tuple[Limit, ...]
    phase: int | None = None
    at: Array | None = None
    lower: Array | None = None
    hard: bool = False

    def bounds(self) -> tuple[Array, Array]:
        """The least and the greatest values (r, n)."""
        shape = self.values.shape
        low = np.repeat([[limit.lower] for limit in self.limits], shape[1], axis=1)
        high = np.repeat([[limit.upper] for limit in self.limits], shape[1], axis=1)
        return (low if self.lower is None else self.lower), high


@dataclass(frozen=True, eq=False)
class PhaseVariables:
    """Symbols of a phase.

    knots (nx, N + 1): states at the ends of intervals; points (nx, N d): at points of collocation;
    inputs (nu, p + 1): coefficients; duration.
    """

    knots: Expression
    points: Expression
    inputs: Expression
    duration: Expression

    @property
    def all(self) -> list[Expression]:
        """The variables of all kinds, one column each."""
        return [ca.vec(part) for part in (self.knots, self.points, self.inputs, self.duration)]


@dataclass(frozen=True, eq=False)
class Transcription:
    """The variables of all phases, the common margin, the cost, and the blocks of constraints.

    margin: of the orders of touch (1, 1), see `Task.widen`. mapped: what all these see of functions
    at the points of phases. functions: of each phase. deviations: of each phase, where the
    state transition has a cost, and moving: what vanishes where they obey the motion (m, 1).
    """

    task: Task
    variables: tuple[PhaseVariables, ...]
    margin: Expression
    cost: Expression
    blocks: tuple[Block, ...]
    mapped: tuple[ColumnFunction, ...]
    functions: tuple[PhaseFunctions, ...]
    deviations: tuple[Deviations, ...] = ()
    moving: Expression = None

    @property
    def column(self) -> Expression:
        """The variables of all phases (n, 1)."""
        columns = [column for phase in self.variables for column in phase.all]
        columns += [ca.vec(part) for phase in self.deviations for part in phase]
        return ca.vertcat(*columns, self.margin)

    @property
    def constraints(self) -> Expression:
        """The values of all constraints (m, 1)."""
        return ca.vertcat(*(ca.vec(block.values) for block in self.blocks))

    def jacobian(self) -> Any:
        """The function (w, parameters) -> constraints, and their Jacobian."""
        g = self.constraints
        slopes = jacobian(self.column, g, self.mapped)
        return ca.Function("jacobian", [self.column, ca.MX(0, 1)], [g, slopes])

    def hessian(self) -> Any:
        """The function (w, parameters, s, multipliers) -> half of the Lagrangian's Hessian."""
        g, weight = self.constraints, ca.MX.sym("weight")
        multipliers = ca.MX.sym("multipliers", g.shape[0])
        lagrangian = weight * self.cost + ca.dot(multipliers, g)
        found = hessian(self.column, lagrangian, self.mapped)
        inputs = [self.column, ca.MX(0, 1), weight, multipliers]
        return ca.Function("hessian", inputs, [found])

    def bounds(self) -> tuple[Array, Array]:
        """The bounds of the constraints (m,)."""
        pairs = [block.bounds() for block in self.blocks]
        low, high = (np.concatenate([p[i].ravel("F") for p in pairs]) for i in (0, 1))
        return low, high

    def box(self) -> tuple[Array, Array]:
        """Bounds of the variables (n,): durations and the margin alone have some."""
        low, high = [], []
        for phase, v in zip(self.task.phases, self.variables, strict=True):
            free = np.full(sum(part.numel() for part in v.all) - 1, np.inf)
            low.append(np.append(-free, phase.duration[0]))
            high.append(np.append(free, phase.duration[1]))
        free = np.full(sum(part.numel() for phase in self.deviations for part in phase), np.inf)
        low.append(-free)
        high.append(free)
        low.append(np.zeros(1))
        high.append(np.array([np.inf if self.task.widen else 0.0]))
        return np.concatenate(low), np.concatenate(high)

    def start(self, guess: Guess, inputs: Sequence[tuple[Array, float]] = ()) -> Array:
        """Variables (n,) from states at (phase, fraction).

        inputs: coefficients (p + 1, nu) and duration of each phase; by default what holds the
        state in its middle best, and the mean of its bounds.
        """
        parts = []
        for k, (phase, f) in enumerate(zip(self.task.phases, self.functions, strict=True)):
            fractions = np.linspace(0.0, 1.0, phase.intervals + 1), point_fractions(phase)
            parts += [np.array([guess(k, s) for s in group]).ravel() for group in fractions]
            curve = np.zeros((self.task.degree + 1, self.task.system.robot.nu))
            curve[0] = _holding(self.task, f.field, guess(k, 0.5))
            curve, duration = inputs[k] if inputs else (curve, 0.5 * sum(phase.duration))
            parts += [curve.ravel(), np.array([duration])]
        return np.concatenate([*parts, np.zeros(1)])

    def with_deviations(self, values: Array) -> Array:
        """All variables (n,) from those (k,) but deviations, which linear equations determine."""
        size = sum(part.numel() for phase in self.deviations for part in phase)
        begin = np.concatenate([values[:-1], np.zeros(size), values[-1:]])
        rows = [self.moving, ca.jacobian(self.moving, self.column)]
        missed, slopes = ca.Function("moving", [self.column], rows)(begin)
        here = slice(len(values) - 1, len(values) - 1 + size)
        begin[here] = spsolve(slopes.sparse()[:, here], -np.array(missed).ravel())
        return begin


def _holding(task: Task, field: Any, x: Array) -> Array:
    """The input (nu,) under which a state, at rest, is accelerated least."""
    robot = task.system.robot
    rest, u = np.append(x[: robot.nq], np.zeros(robot.nv)), ca.SX.sym("u", robot.nu)
    slope = ca.Function("slope", [u], [ca.jacobian(field(rest, u), u)])
    free, by_input = field(rest, np.zeros(robot.nu)), slope(np.zeros(robot.nu))
    push, fall = (np.array(part)[robot.nq :] for part in (by_input, free))
    found = -np.linalg.lstsq(push, fall, rcond=1e-6)[0].ravel()
    return np.asarray(np.clip(found, -task.greatest_inputs, task.greatest_inputs))


def point_places(phase: Phase) -> Array:
    """The places (d,) of the points of collocation, as fractions of their interval."""
    return np.array(ca.collocation_points(phase.points, phase.scheme))


def point_fractions(phase: Phase) -> Array:
    """The times (N d,) of the points of collocation, as fractions of the phase."""
    roots = point_places(phase)
    return np.asarray((np.arange(phase.intervals)[:, None] + roots).ravel() / phase.intervals)


def input_basis(fractions: Array, degree: int) -> Array:
    """The polynomials of inputs (p + 1, n) at fractions of a phase."""
    return np.asarray(chebvander(2.0 * fractions - 1.0, degree).T)


def transcribe(task: Task, implied: frozenset[tuple[int, str]] = frozenset()) -> Transcription:
    """The programme of a task. implied: guards, by phase, that vanish with others there."""
    variables = tuple(_variables(task, k) for k in range(len(task.phases)))
    functions = tuple(phase_functions(task, k, implied) for k in range(len(task.phases)))
    blocks, mapped = list[Block](), list[ColumnFunction]()
    cost: Expression = ca.MX(0.0)
    for k, (v, f) in enumerate(zip(variables, functions, strict=True)):
        added, spent, seen = _phase(task, k, v, f)
        blocks += added
        mapped += seen
        cost += spent
    ends = []  # after the event at the end of a phase
    for v, f in zip(variables, functions, strict=True):
        ends.append(v.knots[:, -1] if f.jump is None else f.jump(v.knots[:, -1]))
    names = _coordinates(task)
    for k in range(1, len(task.phases)):
        gap = variables[k].knots[:, 0] - ends[k - 1]
        blocks.append(Block(gap, tuple(Limit(n, u, 0.0, 0.0) for n, u in names), k, hard=True))
    margin = ca.MX.sym("margin")
    for k in range(len(task.phases)):
        blocks += _events_apart(task, k, variables, margin)
    cost -= task.widen * margin
    total = sum(v.duration for v in variables)
    first = variables[0].knots[:, 0]
    blocks += boundary(task, first, ends[-1])
    for condition in task.conditions:
        value = condition.value(first, ends[-1], total)
        limit = Limit(condition.name, condition.unit, condition.lower, condition.upper)
        blocks.append(Block(value, (limit,)))
    if task.final_cost is not None:
        cost += task.final_cost(first, ends[-1], total)
    deviations, moving = tuple[Deviations, ...](), list[Block]()
    if task.transition is not None:
        size = task.transition.start(task.system.space.nx).size
        deviations = tuple(
            Deviations(
                ca.MX.sym(f"deviations{k}", size, phase.intervals + 1),
                ca.MX.sym(f"moving{k}", size, phase.intervals * phase.points),
            )
            for k, phase in enumerate(task.phases)
        )
        last, moving, seen = _transition(task, variables, deviations, functions)
        mapped += seen
        spread = task.transition.seeing(first.shape[0]) @ ca.reshape(last, first.shape[0], -1)
        cost += 0.5 * task.transition.weight * ca.sumsqr(spread)
    rows: Expression = ca.vertcat(*(ca.vec(block.values) for block in moving))
    every = (*blocks, *moving)
    return Transcription(
        task, variables, margin, cost, every, tuple(mapped), functions, deviations, rows
    )


def _transition(
    task: Task,
    variables: Sequence[PhaseVariables],
    deviations: Sequence[Deviations],
    functions: Sequence[PhaseFunctions],
) -> tuple[Expression, list[Block], list[ColumnFunction]]:
    """Deviations at the end, what all of them obey, and the functions at points in that."""
    assert task.transition is not None
    blocks, mapped = list[Block](), list[ColumnFunction]()
    start = task.transition.start(task.system.space.nx)
    before: Expression = ca.DM(start.ravel("F"))
    for k, (v, d, f) in enumerate(zip(variables, deviations, functions, strict=True)):
        at = point_fractions(task.phases[k])
        u = v.inputs @ ca.DM(input_basis(at, task.degree))
        length = ca.repmat(v.duration / task.phases[k].intervals, 1, len(at))
        flow = deviation_flow(f, d, v.points, u, length)
        mapped.append(flow)
        exact = (Limit("deviation", "", 0.0, 0.0),) * before.shape[0]
        blocks.append(Block(d.knots[:, 0] - before, exact, k, np.zeros(1), hard=True))
        blocks += _collocated(task.phases[k], k, d.knots, d.points, flow.values, exact)
        before = d.knots[:, -1]
        if task.mode_after(k) is not None:
            x, inputs = v.knots[:, -1], (_input_at(v, 1.0), _last_rate(v))
            following = (k + 1) % len(variables)
            w = variables[following]
            after = functions[following].field(w.knots[:, 0], _input_at(w, 0.0))
            if task.symmetry is not None and not following:  # the start is the image of the end
                after = ca.DM(np.linalg.inv(task.symmetry.matrix)) @ after
            step = deviations_after(task, k, start.shape[1])
            before = step(before, x, *inputs, after)
    return before, blocks, mapped


def _variables(task: Task, k: int) -> PhaseVariables:
    phase, nx = task.phases[k], task.system.space.nx
    return PhaseVariables(
        ca.MX.sym(f"knots{k}", nx, phase.intervals + 1),
        ca.MX.sym(f"points{k}", nx, phase.intervals * phase.points),
        ca.MX.sym(f"inputs{k}", task.system.robot.nu, task.degree + 1),
        ca.MX.sym(f"duration{k}"),
    )


def _phase(
    task: Task, k: int, v: PhaseVariables, f: PhaseFunctions
) -> tuple[list[Block], Expression, list[ColumnFunction]]:
    """Constraints and cost of one phase, and the functions at its points in them."""
    phase = task.phases[k]
    weights = _coefficients(phase)[2]
    at = point_fractions(phase)
    u = v.inputs @ ca.DM(input_basis(at, task.degree))
    length = ca.repmat(v.duration / phase.intervals, 1, len(at))
    flow = ColumnFunction.over(_flow(f), v.points, u, length)
    exact = tuple(Limit(name, unit, 0.0, 0.0) for name, unit in _coordinates(task))
    blocks = _collocated(phase, k, v.knots, v.points, flow.values[:-1, :], exact)
    mapped = [flow]
    every = np.concatenate((at, np.linspace(0.0, 1.0, phase.intervals + 1)))
    states: Expression = ca.horzcat(v.points, v.knots)
    if f.inside.limits:
        inside, block = _inside(task, k, v, f.inside, states, every)
        mapped.append(inside)
        blocks.append(block)
    if f.open:
        gaps = ColumnFunction.over(f.gaps, v.points, ca.DM(at).T)
        mapped.append(gaps)
        lower = least_gaps(task, k, f.open, at).T
        lower[:, at == 1.0] = -np.inf
        limits = tuple(Limit(f"gap of {name!r}", "m", 0.0) for name in f.open)
        blocks.append(Block(gaps.values, limits, k, at, lower))
        if k == len(task.phases) - 1 and not phase.ends:
            limits = tuple(Limit(end_gap_name(name), "m", 0.0) for name in f.open)
            blocks.append(Block(f.gaps(v.knots[:, -1], 1.0), limits, k, np.ones(1)))
    if f.early.limits:
        late = np.flatnonzero((every >= 1.0 - task.margins.early) & (every < 1.0))
        values = f.early.function.map(len(late))(states[:, late.tolist()])
        blocks.append(Block(values, f.early.limits, k, every[late]))
    if f.start.limits:
        values = f.start(v.knots[:, 0], _input_at(v, 0.0))
        blocks.append(Block(values, f.start.limits, k, np.zeros(1)))
    if f.end.limits:
        values = f.end(v.knots[:, -1], _input_at(v, 1.0), _last_rate(v))
        blocks.append(Block(values, f.end.limits, k, np.ones(1)))
    spent = flow.values[-1, :] @ ca.DM(np.tile(weights.ravel(), phase.intervals))
    return blocks, spent, mapped


def _collocated(
    phase: Phase,
    k: int,
    knots: Expression,
    points: Expression,
    rates: Expression,
    exact: tuple[Limit, ...],
) -> list[Block]:
    """Polynomials through knots (n, N + 1) and points (n, N d) have these rates, and join."""
    slopes, ends, _ = _coefficients(phase)
    defects, joins = [], []
    for i in range(phase.intervals):
        here = slice(i * phase.points, (i + 1) * phase.points)
        nodes = ca.horzcat(knots[:, i], points[:, here])
        defects.append(nodes @ ca.DM(slopes) - rates[:, here])
        joins.append(nodes @ ca.DM(ends) - knots[:, i + 1])
    return [
        Block(ca.horzcat(*defects), exact, k, point_fractions(phase), hard=True),
        Block(ca.horzcat(*joins), exact, k, hard=True),
    ]


def _coefficients(phase: Phase) -> tuple[Array, Array, Array]:
    """Matrices of collocation: slopes at the points, values at the end, weights of an integral."""
    roots = ca.collocation_points(phase.points, phase.scheme)
    slopes, ends, weights = (np.array(part) for part in ca.collocation_coeff(roots))
    return slopes, ends, weights


def _flow(f: PhaseFunctions) -> Any:
    """The function (x, u, h) -> h times the field, and h times the running cost."""
    x, u = (ca.SX.sym("z", f.field.size1_in(i)) for i in range(2))
    h = ca.SX.sym("h")
    return ca.Function("flow", [x, u, h], [h * ca.vertcat(f.field(x, u), f.cost(x, u))])


def _inside(
    task: Task, k: int, v: PhaseVariables, f: LimitedFunction, states: Expression, at: Array
) -> tuple[ColumnFunction, Block]:
    """Limits at states, such as those at points of collocation and at the ends of intervals."""
    u = v.inputs @ ca.DM(input_basis(at, task.degree))
    mapped = ColumnFunction.over(f.function, states, u)
    lower = np.array([limit.least(at) for limit in f.limits])
    lower[np.ix_([limit.fades for limit in f.limits], at == 1.0)] = -np.inf
    return mapped, Block(mapped.values, f.limits, k, at, lower)


def _events_apart(
    task: Task, k: int, variables: tuple[PhaseVariables, ...], margin: Expression
) -> list[Block]:
    """What holds where the events at the end of phase k come one by one, early or late."""
    if not task.phases[k].ends:
        return []
    spread, v, blocks = task.spread_of(k), variables[k], list[Block]()

    def ahead(distance: float) -> Expression:
        return _input_at(v, 1.0 + distance / v.duration)

    x, rate = v.knots[:, -1], _last_rate(v)
    modes, opening = contact_modes(task.phases[k].mode), opening_contacts(task, k)
    arcs = [ContinuedArc(k, modes, x, ahead, spread, "late", opening)]
    for order in orders(task, k, x, ahead(0.0), rate):
        if order.limits:
            values = order.values - ca.DM(sizes(order.limits)) * margin
            blocks.append(Block(values, order.limits, k, np.ones(1)))
        if order.waiting:
            between = f"after {' then '.join(order.contacts)}"
            arcs += [
                ContinuedArc(k, order.modes, order.state, ahead, spread, between, opening),
                ContinuedArc(k, order.modes, order.state, ahead, -spread, between, opening),
            ]
    if k + 1 < len(variables):
        w, modes = variables[k + 1], contact_modes(task.phases[k + 1].mode)

        def back(distance: float) -> Expression:
            return _input_at(w, distance / w.duration)

        arcs.append(ContinuedArc(k + 1, modes, w.knots[:, 0], back, -spread, "early"))
    for arc in arcs if spread else ():
        values, limits = arc.values(task)
        if limits:
            blocks.append(Block(values, limits, k, np.ones(values.shape[1])))
    return blocks


def _input_at(v: PhaseVariables, fraction: Expression) -> Expression:
    """The input (nu, 1) at a fraction of the phase, which may lie beyond it."""
    s = 2.0 * fraction - 1.0
    basis = [1.0, s]
    while len(basis) < v.inputs.shape[1]:
        basis.append(2.0 * s * basis[-1] - basis[-2])
    return v.inputs @ ca.vertcat(*basis[: v.inputs.shape[1]])


def _last_rate(v: PhaseVariables) -> Expression:
    """The rate (nu, 1) of the input at the end of the phase, 1/s."""
    slopes = 2.0 * np.arange(v.inputs.shape[1]) ** 2  # T_n'(1) = n^2
    return v.inputs @ ca.DM(slopes) / v.duration


def _coordinates(task: Task) -> list[tuple[str, str]]:
    """Names and units of the entries of the state."""
    robot = task.system.robot
    names = [name for name in robot.joint_names if name not in robot.mimics]
    if not robot.nq == robot.nv == len(names):
        return [(f"entry {i} of the state", "") for i in range(task.system.space.nx)]
    units = [length_unit(robot, name) for name in names]
    return [
        *((f"coordinate of joint {n!r}", u) for n, u in zip(names, units, strict=True)),
        *((f"velocity of joint {n!r}", f"{u}/s") for n, u in zip(names, units, strict=True)),
    ]


def boundary(task: Task, first: Expression, last: Expression) -> list[Block]:
    """The start, and how the motion closes."""
    names, blocks = _coordinates(task), list[Block]()
    if task.start is not None:
        off = first - ca.DM(np.asarray(task.start, dtype=np.float64))
        limits = tuple(Limit(f"start: {name}", unit, 0.0, 0.0) for name, unit in names)
        blocks.append(Block(off, limits))
    elif task.symmetry is None and (limits := held_limits(task, 0)):
        blocks.append(Block(held_at(task, 0, task.phases[0].mode, first), limits, 0))
    if task.symmetry is not None:
        blocks += _closing(task, first, last)
    return blocks


def _closing(task: Task, first: Expression, last: Expression) -> list[Block]:
    """The equations S end = start across free directions, and a start at zero along them."""
    assert task.symmetry is not None
    names = _coordinates(task)
    free = task.symmetry.directions
    gap = ca.DM(task.symmetry.matrix) @ last - first
    along = set(np.abs(free).argmax(axis=0).tolist())  # what closing across them leaves open
    fixed = [i for i in range(len(names)) if i not in along]
    across = (np.eye(len(names)) - free @ np.linalg.pinv(free))[fixed]
    limits = tuple(Limit(f"closing: {names[i][0]}", names[i][1], 0.0, 0.0) for i in fixed)
    blocks = [Block(ca.DM(across) @ gap, limits)]
    if task.start is None:
        ways = zip(task.symmetry.free, free.T, strict=True)
        blocks += [_origin(task, name, way, first) for name, way in ways]
    return blocks


def _origin(task: Task, name: str, way: Array, first: Expression) -> Block:
    """The start along a free direction: zero, or where the first closed contact touches.

    The latter if the gap of that contact changes along it.
    """
    limits = (Limit(f"start along {name!r}", "m", 0.0, 0.0),)
    closed = closed_contacts(task.phases[0].mode)
    if closed:
        x = ca.SX.sym("x", len(way))
        gap = gaps_of(task, 0, x, list(closed[:1]))
        f = ca.Function("gap", [x], [gap, ca.jtimes(gap, x, ca.DM(way))])
        if abs(float(f(np.linspace(0.1, 1.0, len(way)))[1])) > 1e-9:
            return Block(f(first)[0], limits, hard=True)
    return Block(ca.DM(way).T @ first, limits, hard=True)
