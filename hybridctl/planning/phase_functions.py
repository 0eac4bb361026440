r"""CasADi functions of a phase: its dynamics, what is limited on it, and the jump at its end.

Trajectory optimisation (`transcription`) and predictive control (`horizon_functions`) use the same
functions. Their arguments are the state x = (q, v) (nx, 1), the input u (nu, 1) and, where guards
are differentiated along the motion, the input's rate du/dt (nu, 1):

- the path, at any time of a phase: field f(x, u), running cost, contact forces inside their cones,
  speeds of sliding contacts, joint and input limits, and gaps of open contacts;
- the start: normal accelerations of contacts that have just opened without an impact;
- the end: the guards g that end the phase are zero and fall,
  :math:`\dot g = D_x g\, f + D_u g\, \dot u < 0`; friction vanishes with the normal force; impulses
  of the impact are inside their cones;
- the jump: the state just after the end.

Each limited value has a `Limit` with name, unit and bounds, so that solvers can report it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, STICK
from hybridctl.mechanics.impacts.impact_expressions import build_constraints, build_impact_map
from hybridctl.mechanics.modes.implicit_expressions import ImplicitMode
from hybridctl.mechanics.modes.mode_expressions import ModeField, mode_field
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.task import Expression, Task

_LARGE_VIOLATIONS = {"N": 100.0, "N m": 100.0, "N s": 10.0, "m": 0.1, "m/s": 1.0, "rad/s": 1.0}
"""Violation, in the unit of the limit, that counts as much as a large one in any other unit.

1 for other units. The values are a choice, typical of robots of some 10 kg and 1 m."""
_CONE_SMOOTHING = 1e-12
"""Addition to the square under the root of a cone in space, N^2 or (N s)^2, so that the root has a
derivative at the apex.

It moves the border of the cone by at most 2e-6 N."""


@dataclass(frozen=True)
class Limit:
    """Bounds of one scalar value, an equation if both are equal.

    Attributes:
        name: Name for messages.
        unit: Unit of the value.
        lower: Lower bound.
        upper: Upper bound.
        fades: Whether the lower bound falls to zero over the phase, in proportion to the fraction
            of it that is left. At the end of the phase the value vanishes, and has no lower bound.
    """

    name: str
    unit: str
    lower: float
    upper: float = np.inf
    fades: bool = False

    def compute_lower_bounds(self, fractions: Array) -> Array:
        """Return the lower bounds (n,) at these fractions (n,) of the phase."""
        if self.fades:
            return self.lower * (1.0 - fractions)
        return np.full(len(fractions), self.lower)

    @property
    def size(self) -> float:
        """Violation, in the unit of the limit, that counts as large."""
        return _LARGE_VIOLATIONS.get(self.unit, 1.0)


LimitedValue = tuple[Expression, Limit]
"""A scalar expression and its limit."""


class LimitedFunction(NamedTuple):
    """A CasADi function whose values (r, 1) have limits.

    Attributes:
        function: The `casadi.Function`.
        limits: Limits (r) of its values.
    """

    function: Any
    limits: tuple[Limit, ...]

    @staticmethod
    def from_rows(
        name: str, arguments: list[Expression], rows: Sequence[LimitedValue]
    ) -> LimitedFunction:
        """Return the function of some symbols with these rows as values.

        Args:
            name: Name of the CasADi function.
            arguments: Symbols.
            rows: Expressions of the symbols, with their limits.
        """
        values = ca.vertcat(*(value for value, _ in rows))
        limits = tuple(limit for _, limit in rows)
        return LimitedFunction(ca.Function(name, arguments, [values]), limits)

    def __call__(self, *arguments: Expression) -> Expression:
        """Return the values (r, 1)."""
        return self.function(*arguments)


@dataclass(frozen=True, eq=False)
class PhaseFunctions:
    """The CasADi functions of one phase.

    Attributes:
        field: Function (x, u) -> dx/dt (nx, 1).
        cost: Function (x, u) -> running cost (1, 1).
        path: Limited values of (x, u) at any time of the phase.
        gaps: Function (x, s) -> gaps (g, 1) of the open contacts, m, at the fraction s of the
            phase.
        open_contacts: Names (g) of the open contacts.
        start: Limited values of (x, u) at the start of the phase.
        end: Limited values of (x, u, du/dt) at the end of the phase.
        jump: Function x -> state (nx, 1) after the end, None if the state does not jump.
        early_impact: Limited values of x: impulses if the impact at the end came at x. Without
            values if `Margins.early` is zero or nothing hits.
    """

    field: Any
    cost: Any
    path: LimitedFunction
    gaps: Any
    open_contacts: tuple[str, ...]
    start: LimitedFunction
    end: LimitedFunction
    jump: Any
    early_impact: LimitedFunction


def build_phase_functions(
    task: Task,
    k: int,
    implied: frozenset[tuple[int, str]] = frozenset(),
    *,
    has_ends: bool = True,
) -> PhaseFunctions:
    """Return the functions of phase k of a task.

    Args:
        task: The task.
        k: Index of the phase.
        implied: Guards, by index of the phase and name, that vanish wherever the others of their
            phase do (`task_checks.find_implied_guards`). They get no equation.
        has_ends: Whether limits at the start and the end, and the jump, are made. Without, they are
            empty.
    """
    system, phase = task.system, task.phases[k]
    mode = build_mode_field(task, k, contact_modes(phase.mode))
    x, u = mode.x, mode.u
    path = build_path_limits(task, k, mode)
    rate, share = ca.SX.sym("rate", u.numel()), ca.SX.sym("share")
    end = build_end_limits(task, k, mode, rate, implied) if has_ends else []
    start = build_lift_limits(task, k, mode) if has_ends else []
    jump, early = build_jump(task, k) if has_ends else None, list[LimitedValue]()
    if jump is not None:
        impact = build_impact_limits(task, k, *jump(x)[1:])
        end += impact
        early = impact if task.margins.early else []
        jump = ca.Function("jump", [x], [jump(x)[0]])
    closed = closed_contacts(phase.mode)
    opened = [i for i in range(len(system.contacts)) if i not in closed]
    left, approached = (
        build_gaps(task, k, x, opened, on_left_ground=on_left) for on_left in (True, False)
    )
    return PhaseFunctions(
        ca.Function("field", [x, u], [mode.field]),
        ca.Function("cost", [x, u], [ca.SX(task.running_cost(x, u))]),
        LimitedFunction.from_rows("path", [x, u], path),
        ca.Function("gaps", [x, share], [(1.0 - share) * left + share * approached]),
        tuple(system.contacts[i].name for i in opened),
        LimitedFunction.from_rows("start", [x, u], start),
        LimitedFunction.from_rows("end", [x, u, rate], end),
        jump,
        LimitedFunction.from_rows("early", [x], early),
    )


def step_runge_kutta(
    field: Callable[[Any, Any], Any], x: Any, inputs: tuple[Any, Any, Any], h: Any
) -> Any:
    """Return the state after one step of the classical Runge-Kutta method of order four.

    Args:
        field: Function (x, u) -> dx/dt of arrays or of expressions.
        x: State at the start.
        inputs: Inputs at the start, in the middle and at the end of the step.
        h: Length of the step, s.
    """
    first, middle, last = inputs
    a = field(x, first)
    b = field(x + 0.5 * h * a, middle)
    c = field(x + 0.5 * h * b, middle)
    d = field(x + h * c, last)
    return x + h / 6.0 * (a + 2.0 * b + 2.0 * c + d)


def build_mode_field(task: Task, k: int, modes: tuple[str, ...]) -> ModeField:
    """Return the expressions of contact modes on the ground of phase k.

    Args:
        task: The task.
        k: Index of the phase whose ground is used.
        modes: Mode of each contact; not necessarily those of the phase.
    """
    rate = task.system.dynamics.stabilization
    return mode_field(task.system.robot, task.get_contacts(k), modes, stabilization=rate)


def build_gaps(
    task: Task, k: int, x: Expression, contacts: list[int], *, on_left_ground: bool = False
) -> Expression:
    """Return the gaps (m, 1) of m contacts over the ground of phase k, m.

    Args:
        task: The task.
        k: Index of the phase.
        x: State (nx, 1) in symbols.
        contacts: Indices (m) of the contacts.
        on_left_ground: Whether gaps are over the ground that contacts leave in the phase.
    """
    rows = task.system.robot, task.get_contacts(k, on_left_ground=on_left_ground)
    # The gap is what a closed contact holds at zero, before its velocity.
    modes = tuple(CLOSED if i in contacts else OPEN for i in range(len(rows[1])))
    return build_constraints(*rows, modes, x)[: len(contacts), :]  # a column, also for m = 0


def build_jump(task: Task, k: int) -> Any:
    """Return the CasADi function of the impact that ends phase k, None if the state does not jump.

    Args:
        task: The task.
        k: Index of the phase.

    Returns:
        Function x -> state (nx, 1) after the impact, impulses (r, 1) and rates (r, 1) on all rows
        of all contacts, in N s and m/s.
    """
    modes = task.find_impact_modes(k)
    if modes is None:
        return None
    impact = build_impact_map(task.system.robot, task.get_contacts(k), modes)
    results = [impact.after, impact.impulses, impact.rates]
    return ca.Function("impact", [impact.x], results)


def build_constraint_residual(task: Task, k: int, mode: ModeKey, state: Expression) -> Expression:
    """Return the residual (r, 1) of the constraints of a mode in a state.

    It has the gaps of closed contacts in m and their velocities in m/s, over the ground at the end
    of phase k.

    Args:
        task: The task.
        k: Index of the phase whose ground is used.
        mode: Key of the mode.
        state: State (nx, 1), an expression of any kind.
    """
    x = ca.SX.sym("x", task.system.space.nx)
    rows = build_constraints(task.system.robot, task.get_contacts(k), contact_modes(mode), x)
    return ca.Function("held", [x], [ca.densify(rows)])(state)


def get_constraint_limits(task: Task, k: int) -> tuple[Limit, ...]:
    """Return the equations that the residual of the constraints of phase k is zero."""
    constraint = task.system.mode(task.phases[k].mode).held
    if constraint is None:
        return ()
    pairs = zip(constraint.names, constraint.units, strict=True)
    return tuple(Limit(f"start: {name}", unit, 0.0, 0.0) for name, unit in pairs)


def get_guard_names(task: Task, k: int) -> tuple[str, ...]:
    """Return the names of the guards of phase k, in the order of `ModeField.guards`."""
    return task.system.outgoing(task.phases[k].mode).guards.names


def get_end_gap_name(contact: str) -> str:
    """Return the name of the limit that an open contact has no negative gap at the end."""
    return f"gap of {contact!r} at the end"


def get_joint_unit(robot: Robot, joint: str) -> str:
    """Return the unit of the coordinate of a joint of one degree of freedom, "rad" or "m"."""
    body = robot.tree().bodies[robot.joint_names.index(joint)]
    return "rad" if body.twist[3:].any() else "m"


def find_opening_contacts(task: Task, k: int) -> list[int]:
    """Return the indices of the contacts whose normal force vanishes at the end of phase k."""
    contacts = enumerate(task.system.contacts)
    return [i for i, contact in contacts if f"{contact.name} opens" in task.phases[k].ends]


def compute_least_gaps(task: Task, k: int, names: Sequence[str], fractions: Array) -> Array:
    """Return the least gaps (m, g) that the clearance asks of open contacts, m.

    Args:
        task: The task.
        k: Index of the phase.
        names: Names (g) of the contacts.
        fractions: Fractions (m,) of the phase.
    """
    contacts, s = task.system.contacts, fractions
    shapes = {contact.name: 4.0 * s * (1.0 - s) for contact in contacts}
    if k:
        released, unloaded = task.find_released_contacts(k - 1), find_opening_contacts(task, k - 1)
        shapes |= {contacts[i].name: 27.0 / 4.0 * s**2 * (1.0 - s) for i in released}
        shapes |= {contacts[i].name: 256.0 / 27.0 * s**3 * (1.0 - s) for i in unloaded}
    clearance = task.phases[k].clearance
    height = task.margins.clearance if clearance is None else clearance
    return np.asarray(height * np.reshape([shapes[n] for n in names], (len(names), len(s))).T)


def build_path_limits(task: Task, k: int, mode: ModeField | ImplicitMode) -> list[LimitedValue]:
    """Return what is limited at any time of phase k: forces, sliding speeds, joints and inputs.

    Args:
        task: The task.
        k: Index of the phase.
        mode: Field, forces and guards of its mode, in symbols x and u.
    """
    return [
        *_build_force_limits(task, k, mode),
        *_build_joint_limits(task, mode.x),
        *build_input_limits(task, mode.u),
    ]


def build_cone_limits(
    task: Task,
    forces: Expression,
    i: int,
    unit: str,
    least: float,
    mode: str,
    *,
    is_smooth: bool = False,
    is_pyramid: bool = False,
) -> list[LimitedValue]:
    r"""Return normal force and friction cone of a contact, or the same of impulses.

    The normal force is at least `least`, and :math:`c = m \mu_s f_n - |f_t| \ge 0` for a contact
    that sticks, with m = `Margins.friction`. A sliding contact is on its cone by the law.

    If it is smooth, the same cone in space is
    :math:`2 s - \sqrt{2 s^2 + 2 |f_t|^2} \ge 0` with
    :math:`s = m \mu_s f_n`. Value and gradient are those of c at the border, and it is smooth
    inside. There c itself has an edge at f_t = 0, where the forces of a trot in place are: Newton's
    method went to and fro across it for 280 iterations. Its curvature at the apex, where the force
    of a corner may be at any time, was up to 1e6 in the step of talos, which then made no progress
    in 30 iterations. A pyramid has none: :math:`s - \sqrt2 |f_{t,i}| \ge 0` along both tangents is
    inside the cone.

    Args:
        task: The task.
        forces: Forces or impulses (r, 1) on all rows of all contacts.
        i: Index of the contact.
        unit: "N" for forces, "N s" for impulses.
        least: Least normal force or impulse, in this unit.
        mode: Mode of the contact.
        is_smooth: Whether a cone in space has no edge at its axis. Forces that are variables
            (`implicit_phases`) have such cones.
        is_pyramid: Whether the limit is the pyramid inside a cone in space. Forces that are shared
            in any way have such limits.
    """
    contact, normal = task.system.contacts[i], forces[i]
    kind = "force" if unit == "N" else "impulse"
    rows: list[LimitedValue] = [(normal, Limit(f"normal {kind} of {contact.name!r}", unit, least))]
    tangents = task.system.dynamics.contact_set.tangents[i].tolist() if mode == STICK else []
    share = task.margins.friction * float(contact.static_friction or 0.0)
    name = f"friction cone of {contact.name!r} ({kind})"
    if len(tangents) == 1:  # the cone has two edges, which are linear
        rows += [
            (share * normal + sign * forces[tangents[0]], Limit(name, unit, 0.0))
            for sign in (1.0, -1.0)
        ]
    elif is_pyramid:
        rows += [
            (share * normal + sign * math.sqrt(2.0) * forces[tangent], Limit(name, unit, 0.0))
            for tangent in tangents
            for sign in (1.0, -1.0)
        ]
    elif tangents:
        largest = share * normal
        if not is_smooth:
            size = ca.sqrt(ca.sumsqr(forces[tangents]) + _CONE_SMOOTHING)
            return [*rows, (largest - size, Limit(name, unit, 0.0))]
        size = ca.sqrt(ca.sumsqr(forces[tangents]) + largest**2 + _CONE_SMOOTHING)
        rows.append((2.0 * largest - math.sqrt(2.0) * size, Limit(name, unit, 0.0)))
    return rows


def build_input_limits(task: Task, u: Expression, share: float = 1.0) -> list[LimitedValue]:
    """Return the limits of those inputs that have one.

    Args:
        task: The task, with its `largest_inputs`.
        u: Input (nu, 1).
        share: Share of the limits that may be used.
    """
    largest = enumerate((share * task.largest_inputs).tolist())
    return [
        (u[i], Limit(f"input {i}", "N m", -size, size)) for i, size in largest if np.isfinite(size)
    ]


def build_lift_limits(task: Task, k: int, mode: ModeField | ImplicitMode) -> list[LimitedValue]:
    r"""Return the normal accelerations of contacts that open without an impact before phase k.

    Their forces have vanished, or the jump of the input releases them. The accelerations are
    :math:`\ddot g \ge` `Margins.lift`, under the input of phase k.

    Args:
        task: The task.
        k: Index of the phase that begins with the release.
        mode: Field and guards of phase k, in symbols x and u.
    """
    rows: list[LimitedValue] = []
    before = k - 1
    opened = (
        [*find_opening_contacts(task, before), *task.find_released_contacts(before)] if k else []
    )
    for i in opened:
        contact = task.system.contacts[i].name
        gap = mode.guards[get_guard_names(task, k).index(f"{contact} closes")]
        rate = ca.jtimes(gap, mode.x, mode.field)
        name = f"normal acceleration of {contact!r} after its release"
        limit = Limit(name, "m/s^2", task.margins.lift)
        rows.append((ca.jtimes(rate, mode.x, mode.field), limit))
    return rows


def build_guard_fall_limit(
    task: Task, key: ModeKey, mode: ModeField | ImplicitMode, name: str, input_rate: Expression
) -> LimitedValue:
    r"""Return the rate -dg/dt at which a guard falls, at least `Margins.unload` or `approach`.

    .. math:: -\dot g = -D_x g\, f(x, u) - D_u g\, \dot u

    Args:
        task: The task.
        key: Key of the mode.
        mode: Field and guards of this mode, in symbols x and u.
        name: Name of the guard.
        input_rate: du/dt (nu, 1), in the unit of the input per s.
    """
    value = mode.guards[task.system.outgoing(key).guards.names.index(name)]
    rate = ca.jtimes(value, mode.x, mode.field) + ca.jtimes(value, mode.u, input_rate)
    unit = _get_guard_unit(name)
    least = task.margins.unload if unit == "N" else task.margins.approach
    return -rate, Limit(f"fall of guard {name!r}", f"{unit}/s", least)


def build_end_equations(task: Task, k: int, mode: ModeField | ImplicitMode) -> list[Expression]:
    """Return what vanishes at the end of phase k: its guards, and friction at a release.

    Args:
        task: The task.
        k: Index of the phase.
        mode: Field and guards of the phase, in symbols x and u.

    Returns:
        Expressions (1, 1) of x and u. Friction is that of contacts that open from sticking.
    """
    rate = ca.SX.sym("rate", mode.u.numel())
    rows = build_end_limits(task, k, mode, rate, frozenset())
    return [value for value, limit in rows if limit.lower == limit.upper]


def build_end_limits(
    task: Task,
    k: int,
    mode: ModeField | ImplicitMode,
    input_rate: Expression,
    implied: frozenset[tuple[int, str]],
) -> list[LimitedValue]:
    """Return the limits at the end of phase k but those of the impact.

    The guards that end the phase vanish and fall. Friction of a contact that opens from sticking
    vanishes too, as its cone ends in a point there: an equation is regular, the cone is not.

    Args:
        task: The task.
        k: Index of the phase.
        mode: Field and guards of the phase, in symbols x and u.
        input_rate: du/dt (nu, 1).
        implied: Guards without an equation, see `build_phase_functions`.
    """
    phase, rows = task.phases[k], list[LimitedValue]()
    for name in phase.ends:
        value = mode.guards[get_guard_names(task, k).index(name)]
        if (k, name) not in implied:
            rows.append((value, Limit(f"guard {name!r}", _get_guard_unit(name), 0.0, 0.0)))
        fall, limit = build_guard_fall_limit(task, phase.mode, mode, name, input_rate)
        most = task.margins.landing_speed
        if name.endswith(" closes") and most is not None:
            limit = replace(limit, upper=most)
        rows.append((fall, limit))
    for i in find_opening_contacts(task, k):
        for tangent in task.system.dynamics.contact_set.tangents[i].tolist():
            if contact_modes(phase.mode)[i] == STICK:
                name = f"friction of {task.system.contacts[i].name!r} at its release"
                rows.append((mode.forces[tangent], Limit(name, "N", 0.0, 0.0)))
    return rows


def _build_force_limits(task: Task, k: int, mode: ModeField | ImplicitMode) -> list[LimitedValue]:
    """Return cones of the contacts that are closed in phase k, and speeds of those that slide."""
    phase, modes = task.phases[k], contact_modes(task.phases[k].mode)
    opening, rows = find_opening_contacts(task, k), list[LimitedValue]()
    for i in closed_contacts(phase.mode):
        cone = build_cone_limits(
            task,
            mode.forces,
            i,
            "N",
            task.margins.force,
            modes[i],
            is_smooth=isinstance(mode, ImplicitMode),
            is_pyramid=isinstance(mode, ImplicitMode) and mode.is_redundant,
        )
        rows += [(value, replace(limit, fades=i in opening)) for value, limit in cone]
    names, slowest = get_guard_names(task, k), task.margins.sliding
    # A contact that stops at the end of the phase may be as slow as it likes before.
    return rows + [
        (mode.guards[j], Limit(f"guard {name!r}", "m/s", 0.0 if name in phase.ends else slowest))
        for j, name in enumerate(names)
        if name.endswith(" sticks")
    ]


def _build_joint_limits(task: Task, x: Expression) -> list[LimitedValue]:
    robot = task.system.robot
    rows: list[LimitedValue] = []
    for name, (low, high) in task.joint_limits.items():
        i = robot.coordinate_index(name)
        unit = get_joint_unit(robot, name)
        rows.append((x[i], Limit(f"coordinate of joint {name!r}", unit, low, high)))
    for name, (low, high) in task.rate_limits.items():
        i = robot.nq + robot.velocity_index(name)
        unit = f"{get_joint_unit(robot, name)}/s"
        rows.append((x[i], Limit(f"velocity of joint {name!r}", unit, low, high)))
    return rows


def build_impact_limits(
    task: Task,
    k: int,
    impulses: Expression,
    rates: Expression,
    *,
    is_smooth: bool = False,
    is_pyramid: bool = False,
) -> list[LimitedValue]:
    """Return cones of the contacts that an impact presses, and velocities of those it opens.

    Args:
        task: The task.
        k: Index of the phase that the impact ends.
        impulses: Impulses (r, 1) on all rows, N s.
        rates: Velocities (r, 1) of all rows after the impact, m/s.
        is_smooth: Whether cones have no edge at their axes, see `build_cone_limits`.
        is_pyramid: Whether pyramids inside them are meant, see there.
    """
    modes = task.find_impact_modes(k)
    assert modes is not None
    rows: list[LimitedValue] = []
    for i in closed_contacts(modes):
        (normal, limit), *cone = build_cone_limits(
            task,
            impulses,
            i,
            "N s",
            task.margins.impulse,
            modes[i],
            is_smooth=is_smooth,
            is_pyramid=is_pyramid,
        )
        if task.margins.landing_impulse is not None:
            limit = replace(limit, upper=task.margins.landing_impulse)
        rows += [(normal, limit), *cone]
    for i in set(closed_contacts(task.phases[k].mode)) - set(closed_contacts(modes)):
        name = f"normal rate of {task.system.contacts[i].name!r} after the impact"
        rows.append((rates[i], Limit(name, "m/s", task.margins.release)))
    return rows


def _get_guard_unit(name: str) -> str:
    """Return the unit of a guard: gaps in m, sliding speeds in m/s, all others are forces in N."""
    return "m" if name.endswith(" closes") else "m/s" if name.endswith(" sticks") else "N"
