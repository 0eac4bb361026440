r"""Equations of motion as constraints of a programme: accelerations and forces are variables.

At each node of a phase, which is a collocation point or an end of an interval, the accelerations a
and the multipliers m of the contacts are variables z = (a, m) beside state and input, and

.. math:: r(x, u, z) = 0

are constraints (`ImplicitMode.residual`). Impacts have their result and their impulses as
variables. Where a rate of forces is limited, the rates of z are variables with

.. math:: D_x r\, \dot x + D_u r\, \dot u + D_z r\, \dot z = 0 .

Functions of a node have an extended input, (u, z), in place of u. All limits of `phase_functions`
are made of these. For a robot with many joints such a programme has more variables than one with
the dynamics solved for accelerations, and derivatives of a tenth of the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.mechanics.contact_law.law import OPEN
from hybridctl.mechanics.modes.implicit_expressions import (
    SCALE,
    ImplicitMode,
    build_implicit_impact,
    build_implicit_mode,
    has_dependent_rows,
    has_unique_accelerations,
)
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.terms.sources import MAX_EXPRESSED_VELOCITIES
from hybridctl.planning.collocation import (
    ConstraintBlock,
    MappedFunction,
    PhaseVariables,
    compute_input_basis,
    compute_knot_fractions,
    compute_point_fractions,
)
from hybridctl.planning.event_orders import append_to_names, find_changing_contacts, list_orders
from hybridctl.planning.phase_functions import (
    Limit,
    LimitedValue,
    build_cone_limits,
    build_end_limits,
    build_guard_fall_limit,
    build_impact_limits,
    build_lift_limits,
    build_path_limits,
    find_opening_contacts,
)
from hybridctl.planning.task import Expression, Task

_LARGE_ROBOT = 12
"""Velocities above which equations of motion are constraints where the task leaves the choice.

Planar robots take as long in both forms. The programme of solo12, of 18, took 2.9 GB and 1 s for a
Hessian with accelerations solved for, and takes 0.35 GB and 0.05 s with these constraints."""
_RATE_SCALE = 10.0
"""Unit of rates of z times the duration of the phase: forces rise and fall in a part of it."""
_NEWTON_STEPS = 8
"""Most steps to values of z at a guess. Residuals are linear in z but for orders of events, whose
variables are found one after the other: an order of n contacts takes n + 2 steps."""
_NEWTON_PRECISION = 1e-10
"""Singular values below which directions are not used, relative to the largest. A choice."""
_SOLVED = 1e-9
"""Residual at which a guess of z needs no further step, in the units of the residual."""


def uses_implicit_phases(task: Task) -> bool:
    """Return whether the programme of a task has its equations of motion as constraints.

    They are if the task says so. If it leaves the choice, they are for robots of more than twelve
    velocities, where the forces of redundant contacts decide no motion in any phase and impact, and
    where neither a transition cost, nor a spread of event times, nor early impacts need solved
    dynamics.

    Raises:
        InputError: The task says so, or has more velocities than dynamics are solved for, but the
            motion depends on how redundant contacts share forces.
    """
    nv = task.system.robot.nv
    if task.implicit or nv > MAX_EXPRESSED_VELOCITIES:
        k = find_ambiguous_phase(task)
        if k is not None:
            raise InputError(
                f"contacts that slide or rebound in phases[{k}] or in its impact are redundant, so "
                "that forces as variables would decide the motion: fewer points of each body help"
                + (", or implicit = False" if nv <= MAX_EXPRESSED_VELOCITIES else "")
            )
        return True
    if task.implicit is not None:
        return False
    if nv <= _LARGE_ROBOT or task.needs_solved_dynamics:
        return False
    return find_ambiguous_phase(task) is None


def find_ambiguous_phase(task: Task) -> int | None:
    """Return the first phase whose motion or impact forces do not decide; None if there is none.

    See `has_unique_accelerations`: redundant contacts that slide, or rebound, share forces in many
    ways that lead to different motions. Corners of a sole that sticks do not.
    """
    robot = task.system.robot
    for k, phase in enumerate(task.phases):
        contacts, impact = task.get_contacts(k), task.find_impact_modes(k)
        if not has_unique_accelerations(robot, contacts, contact_modes(phase.mode)):
            return k
        if impact is not None and not has_unique_accelerations(
            robot, contacts, impact, in_impact=True
        ):
            return k
    return None


@dataclass(frozen=True, eq=False)
class NodeEquations:
    """Equations and limits at one or several nodes, with variables of their own.

    Attributes:
        mapped: The function of these nodes. Its values are the residual, then what is limited.
        unknowns: Variables z (nz, n) at the n nodes.
        residual: Function (z, other arguments) -> residual (r, 1), linear in z or triangular.
        blocks: Constraints: residual and limits.
    """

    mapped: MappedFunction
    unknowns: Expression
    residual: Any
    blocks: tuple[ConstraintBlock, ...]

    def solve_unknowns(self, column: Expression, values: Array) -> Array:
        """Return the unknowns (nz n,) that make residuals vanish, by least squares.

        Args:
            column: Variables of the programme (n, 1).
            values: Values (n,) of the variables; those of the unknowns are not used.
        """
        arguments = ca.Function("arguments", [column], [ca.vertcat(*self.mapped.arguments[1:])])
        others = np.asarray(arguments(values))
        return np.concatenate([self._solve_node(other) for other in others.T])

    def _solve_node(self, other: Array) -> Array:
        """Return the unknowns (nz,) at a node with the other arguments (n,)."""
        z = np.zeros(self.unknowns.shape[0])
        for _ in range(_NEWTON_STEPS):
            residual, slope = (np.asarray(part) for part in self.residual(z, other))
            if not np.isfinite(residual).all() or np.abs(residual).max(initial=0.0) < _SOLVED:
                break
            z = z - np.linalg.lstsq(slope, residual.ravel(), rcond=_NEWTON_PRECISION)[0]
        return z


@dataclass(frozen=True, eq=False)
class ImplicitPhase:
    """Constraints and variables of a phase whose equations of motion are constraints.

    Attributes:
        flow: Function of (x, (u, a), h) at the collocation points: h times field and cost.
        nodes: All equations of nodes.
        after: State (nx, 1) after the end of the phase.
    """

    flow: MappedFunction
    nodes: tuple[NodeEquations, ...]
    after: Expression


def build_mode_equations(task: Task, k: int, modes: tuple[str, ...]) -> ImplicitMode:
    """Return the equations of contact modes on the ground of phase k.

    Args:
        task: The task.
        k: Index of the phase whose ground is used.
        modes: Mode of each contact; not necessarily those of the phase.
    """
    rate = task.system.dynamics.stabilization
    return build_implicit_mode(task.system.robot, task.get_contacts(k), modes, stabilization=rate)


def build_implicit_phase(
    task: Task,
    k: int,
    v: PhaseVariables,
    margin: Expression,
    implied: frozenset[tuple[int, str]],
) -> ImplicitPhase:
    """Return variables and constraints of phase k, but collocation and gaps.

    Args:
        task: The task.
        k: Index of the phase.
        v: Its other variables.
        margin: Common margin (1, 1) of orders of events, see `Task.widen`.
        implied: Guards without an equation, by phase and name.
    """
    phase, nu = task.phases[k], task.system.robot.nu
    mode = build_mode_equations(task, k, contact_modes(phase.mode))
    count = mode.u.numel() - nu
    path = build_path_limits(task, k, mode)
    at_points = _place_nodes(
        f"path{k}", task, k, mode, path, v.points, v, compute_point_fractions(phase)
    )
    length = ca.repmat(v.duration / phase.intervals, 1, v.points.shape[1])
    u = v.inputs @ ca.DM(compute_input_basis(compute_point_fractions(phase), task.degree))
    flow = MappedFunction.map_over(
        _build_flow(task, mode), v.points, u, at_points.unknowns[: task.system.robot.nv, :], length
    )
    nodes = [at_points]
    # Path limits hold at knots too. Radau points are knots, but the first.
    inner = [*range(1, phase.intervals)] if phase.scheme == "legendre" else []
    if inner:
        fractions = compute_knot_fractions(phase)[inner]
        nodes.append(
            _place_nodes(f"knots{k}", task, k, mode, path, v.knots[:, inner], v, fractions)
        )
    lifts = [*path, *build_lift_limits(task, k, mode)]
    zero, one = np.zeros(1), np.ones(1)
    nodes.append(_place_nodes(f"start{k}", task, k, mode, lifts, v.knots[:, 0], v, zero))
    end = _build_end(task, k, mode, path, implied)
    slopes = 2.0 * np.arange(task.degree + 1) ** 2  # of Chebyshev's polynomials by the fraction
    slope = v.inputs @ ca.DM(slopes)
    at_end = v.knots[:, -1], v.build_input(1.0), slope, v.duration
    unknowns = ca.MX.sym(f"end{k}", end.count)
    nodes.append(end.place(unknowns, at_end, k, one))
    after = v.knots[:, -1]
    impact = _build_impact(task, k)
    if impact is not None:
        unknowns = ca.MX.sym(f"impact{k}", impact.count)
        nodes.append(impact.place(unknowns, (after,), k, one))
        speeds = SCALE * unknowns[: task.system.robot.nv]
        after = ca.vertcat(after[: task.system.robot.nq], speeds)
    for number, order in enumerate(_build_orders(task, k)):
        unknowns = ca.MX.sym(f"order{k}_{number}", order.count)
        nodes.append(order.place(unknowns, (*at_end, margin), k, one))
    assert count == at_points.unknowns.shape[0]
    return ImplicitPhase(flow, tuple(nodes), after)


@dataclass(frozen=True, eq=False)
class _NodeFunction:
    """Equations and limits of a node as expressions.

    Attributes:
        name: Name of the function.
        unknowns: Symbols z (nz, 1).
        arguments: Symbols of all other arguments.
        residual: What vanishes (r, 1).
        rows: What is limited.
    """

    name: str
    unknowns: Expression
    arguments: list[Expression]
    residual: Expression
    rows: Sequence[LimitedValue]

    @property
    def count(self) -> int:
        """Number nz of unknowns at a node."""
        return int(self.unknowns.numel())

    def place(
        self,
        unknowns: Expression,
        arguments: Sequence[Expression],
        k: int,
        fractions: Array,
        lower: Array | None = None,
    ) -> NodeEquations:
        """Return the equations at n nodes.

        Args:
            unknowns: Variables z (nz, n) there.
            arguments: The other arguments (., n) there, linear in the variables.
            k: Index of the phase.
            fractions: Fractions (n,) of the phase at which the nodes are.
            lower: Lower bounds of what is limited, None for those of the limits.
        """
        values = ca.vertcat(self.residual, *(value for value, _ in self.rows))
        function = ca.Function(self.name, [self.unknowns, *self.arguments], [values])
        mapped = MappedFunction.map_over(function, unknowns, *arguments)
        count, limits = int(self.residual.numel()), tuple(limit for _, limit in self.rows)
        motion = (Limit("equations of motion", "", 0.0, 0.0),) * count
        blocks = [ConstraintBlock(mapped.values[:count, :], motion, k, fractions, is_hard=True)]
        if limits:
            blocks.append(ConstraintBlock(mapped.values[count:, :], limits, k, fractions, lower))
        slope = ca.jacobian(self.residual, self.unknowns)
        residual = ca.Function(
            "residual", [self.unknowns, ca.vertcat(*self.arguments)], [self.residual, slope]
        )
        return NodeEquations(mapped, unknowns, residual, tuple(blocks))


def _build_flow(task: Task, mode: ImplicitMode) -> Any:
    """Return the function (x, u, a, h) -> h times the field (nx, 1) and h times the cost."""
    robot, h = task.system.robot, ca.SX.sym("h")
    u, a = mode.u[: robot.nu], mode.u[robot.nu : robot.nu + robot.nv]
    values = h * ca.vertcat(mode.field, ca.SX(task.running_cost(mode.x, u)))
    return ca.Function("flow", [mode.x, u, a, h], [values])


def _place_nodes(
    name: str,
    task: Task,
    k: int,
    mode: ImplicitMode,
    rows: Sequence[LimitedValue],
    states: Expression,
    v: PhaseVariables,
    fractions: Array,
) -> NodeEquations:
    """Return the equations of a mode and limits at given states of a phase.

    Args:
        name: Name of the variables.
        task: The task.
        k: Index of the phase.
        mode: Equations of its mode.
        rows: What is limited.
        states: States (nx, n).
        v: Variables of the phase.
        fractions: Fractions (n,) of the phase at which the states are.
    """
    nu = task.system.robot.nu
    u, z = mode.u[:nu], mode.u[nu:]
    function = _NodeFunction(name, z, [mode.x, u], mode.residual, rows)
    lower = np.array([limit.compute_lower_bounds(fractions) for _, limit in rows])
    lower = lower.reshape(len(rows), len(fractions))
    # See `transcription._build_path_limits`.
    lower[np.ix_([limit.fades for _, limit in rows], fractions == 1.0)] = -np.inf
    inputs = v.inputs @ ca.DM(compute_input_basis(fractions, task.degree))
    unknowns = ca.MX.sym(name, z.numel(), len(fractions))
    return function.place(unknowns, (states, inputs), k, fractions, lower)


def _build_end(
    task: Task,
    k: int,
    mode: ImplicitMode,
    path: Sequence[LimitedValue],
    implied: frozenset[tuple[int, str]],
) -> _NodeFunction:
    """Return equations and limits at the end of a phase, with the rates of z where needed.

    Args:
        task: The task.
        k: Index of the phase.
        mode: Equations of its mode.
        path: Limits along the phase. Those that fade have none at the end.
        implied: Guards without an equation.
    """
    nu = task.system.robot.nu
    u, z = mode.u[:nu], mode.u[nu:]
    slope, duration, z_rate = ca.SX.sym("slope", nu), ca.SX.sym("T"), ca.SX.sym("dz", z.numel())
    rate = ca.vertcat(slope, _RATE_SCALE * z_rate) / duration
    rows = [row for row in path if not row[1].fades]
    rows += build_end_limits(task, k, mode, rate, implied)
    unknowns, residual = z, mode.residual
    if any(ca.depends_on(value, z_rate) for value, _ in rows):
        unknowns = ca.vertcat(z, z_rate)
        residual = ca.vertcat(residual, duration / _RATE_SCALE * _differentiate(mode, rate))
    arguments = [mode.x, u, slope, duration]
    return _NodeFunction(f"end{k}", unknowns, arguments, residual, rows)


def _differentiate(mode: ImplicitMode, rate: Expression) -> Expression:
    """Return the time derivative of the residual of a mode, for the rate of its inputs."""
    by_state = ca.jtimes(mode.residual, mode.x, mode.field)
    return by_state + ca.jtimes(mode.residual, mode.u, rate)


def _build_impact(task: Task, k: int) -> _NodeFunction | None:
    """Return the equations and limits of the impact that ends phase k, None without one."""
    modes = task.find_impact_modes(k)
    if modes is None:
        return None
    impact = build_implicit_impact(task.system.robot, task.get_contacts(k), modes)
    rows = build_impact_limits(
        task,
        k,
        impact.impulses,
        impact.rates,
        is_smooth=True,
        is_pyramid=impact.is_redundant,
    )
    return _NodeFunction(f"impact{k}", impact.unknowns, [impact.x], impact.residual, rows)


def _build_orders(task: Task, k: int) -> list[_NodeFunction]:
    """Return equations and limits of all orders in which events at the end of phase k may come.

    See `event_orders.build_event_orders`. Arguments are (x, u, slope of u, duration, margin).
    """
    orders = list_orders(_group_changing_contacts(task, k)) if task.phases[k].ends else []
    functions = [_build_order(task, k, *order) for order in orders]
    return [function for function in functions if function.rows]  # all may have opened


def _group_changing_contacts(task: Task, k: int) -> list[tuple[int, ...]]:
    """Return the contacts that close or open at the end of phase k, grouped by events.

    Contacts of one body are one event where their rows depend on each other, as those of the
    corners of a sole do: it touches, or leaves, flat. Four corners one by one would be 64 orders,
    few of which a sole that meets the ground flat can obey.
    """
    robot, contacts = task.system.robot, task.get_contacts(k)
    opening, after = find_opening_contacts(task, k), task.find_mode_after(k)
    by_body = dict[tuple[int, bool], list[int]]()
    for i in find_changing_contacts(task, k):
        body = robot.frame(contacts[i].frame).joint
        by_body.setdefault((body, i in opening), []).append(i)
    groups = list[tuple[int, ...]]()
    for (_, opens), members in by_body.items():
        present = contact_modes(task.phases[k].mode if opens else after)
        modes = tuple(mode if i in members else OPEN for i, mode in enumerate(present))
        at_once = has_dependent_rows(robot, contacts, modes)
        groups += [tuple(members)] if at_once else [(i,) for i in members]
    return sorted(groups)


def _build_order(
    task: Task, k: int, order: tuple[tuple[int, ...], ...], waiting: Sequence[tuple[int, ...]]
) -> _NodeFunction:
    """Return equations and limits of one order.

    Args:
        task: The task.
        k: Index of the phase.
        order: Indices of the contacts that have closed or opened, those of each event together.
        waiting: Likewise of those that have yet to.
    """
    system, after = task.system, task.find_mode_after(k)
    assert after is not None
    nu, contacts = system.robot.nu, task.get_contacts(k)
    modes, opening = contact_modes(task.phases[k].mode), find_opening_contacts(task, k)
    x = state = ca.SX.sym("x", system.space.nx)
    u, slope, duration = ca.SX.sym("u", nu), ca.SX.sym("slope", nu), ca.SX.sym("T")
    margin = ca.SX.sym("margin")
    unknowns, residuals = list[Expression](), list[Expression]()
    rows, impulses, is_pyramid = list[LimitedValue](), None, False
    for event in order:
        changed = {i: contact_modes(after)[i] for i in event}
        modes, impulses = tuple(changed.get(i, mode) for i, mode in enumerate(modes)), None
        if not set(event) <= set(opening):
            impact = build_implicit_impact(system.robot, contacts, modes)
            is_pyramid = impact.is_redundant
            results = [impact.after, impact.impulses, impact.residual]
            z = ca.SX.sym("z", impact.unknowns.numel())
            f = ca.Function("impact", [impact.x, impact.unknowns], results)
            state, impulses, residual = f.call([state, z], True, False)
            unknowns.append(z)
            residuals.append(residual)
    pressing = [i for i, mode in enumerate(modes) if mode != OPEN and i not in opening]
    if impulses is not None:
        rows += _build_press_limits(task, impulses, pressing, modes, "N s", is_pyramid)
    if waiting:
        mode = build_mode_equations(task, k, modes)
        z = mode.u[nu:]
        z_rate = ca.SX.sym("dz", z.numel())
        rate = ca.vertcat(slope, _RATE_SCALE * z_rate) / duration
        rows += _build_press_limits(task, mode.forces, pressing, modes, "N", mode.is_redundant)
        late = (i for event in waiting for i in event)
        actions = {i: "opens" if i in opening else "closes" for i in late}
        for i, action in actions.items():
            name = f"{system.contacts[i].name} {action}"
            rows.append(build_guard_fall_limit(task, modes, mode, name, rate))
        unknowns.append(z)
        equations = mode.residual
        if any(ca.depends_on(value, z_rate) for value, _ in rows):
            unknowns.append(z_rate)
            equations = ca.vertcat(equations, duration / _RATE_SCALE * _differentiate(mode, rate))
        values = [*(value for value, _ in rows), equations]
        *values, equations = ca.substitute(values, [mode.x, mode.u[:nu]], [state, u])
        rows = [(value, limit) for value, (_, limit) in zip(values, rows, strict=True)]
        residuals.append(equations)
    names = " then ".join(" and ".join(system.contacts[i].name for i in event) for event in order)
    limits = append_to_names([limit for _, limit in rows], f" after {names}")
    # values - least m >= least: the margin m raises each limit to least (1 + m).
    limited = [
        (value - limit.lower * margin, limit)
        for (value, _), limit in zip(rows, limits, strict=True)
    ]
    return _NodeFunction(
        f"order{k}",
        ca.SX(ca.vertcat(*unknowns)),
        [x, u, slope, duration, margin],
        ca.SX(ca.vertcat(*residuals)),
        limited,
    )


def _build_press_limits(
    task: Task,
    forces: Expression,
    pressing: Sequence[int],
    modes: tuple[str, ...],
    unit: str,
    is_pyramid: bool,
) -> list[LimitedValue]:
    """Return normal forces and cones of contacts that press, or the same of impulses.

    Args:
        task: The task.
        forces: Forces or impulses (r, 1) on all rows of all contacts.
        pressing: Indices of the contacts.
        modes: Modes of all contacts.
        unit: "N" for forces, "N s" for impulses.
        is_pyramid: See `build_cone_limits`.
    """
    least = task.margins.force if unit == "N" else task.margins.impulse
    rows, shape = list[LimitedValue](), {"is_smooth": True, "is_pyramid": is_pyramid}
    for i in pressing:
        rows += build_cone_limits(task, forces, i, unit, least, modes[i], **shape)
    return rows
