"""CasADi functions of a phase: its field, what limits it, and the jump at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.constrained.phase import contact_modes
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, STICK
from hybridctl.mechanics.impacts.impact_expressions import build_constraints, build_impact_map
from hybridctl.mechanics.modes.mode_expressions import ModeField, mode_field
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.trajectory.task import Expression, Task

_SIZES = {"N": 100.0, "N m": 100.0, "N s": 10.0, "m": 0.1, "m/s": 1.0, "rad/s": 1.0}


@dataclass(frozen=True)
class Limit:
    """One row of limits: its name and unit, and its bounds.

    fades: whether the lower bound falls to zero over a phase, in proportion to what is left of it;
    at its end, where the value vanishes, there is none.
    """

    name: str
    unit: str
    lower: float
    upper: float = np.inf
    fades: bool = False

    def least(self, at: Array) -> Array:
        """The lower bound (n,) where these fractions of the phase are over."""
        return self.lower * (1.0 - at) ** self.fades

    @property
    def size(self) -> float:
        """The size in the limit's unit from which on a violation counts as large."""
        return _SIZES.get(self.unit, 1.0)


Limited = tuple[Expression, Limit]


class LimitedFunction(NamedTuple):
    """A function whose values (r, 1) have limits (r)."""

    function: Any
    limits: tuple[Limit, ...]

    @staticmethod
    def of(name: str, arguments: list[Expression], rows: Sequence[Limited]) -> LimitedFunction:
        """The function of the arguments with these rows as values."""
        values = ca.vertcat(*(value for value, _ in rows))
        limits = tuple(limit for _, limit in rows)
        return LimitedFunction(ca.Function(name, arguments, [values]), limits)

    def __call__(self, *arguments: Expression) -> Expression:
        """The values."""
        return self.function(*arguments)


@dataclass(frozen=True, eq=False)
class PhaseFunctions:
    """The functions of one phase.

    field: (x, u) -> dx/dt (nx,). cost: (x, u) -> L. inside: of (x, u), wherever in the phase; gaps:
    (x, s) -> gaps (g,) of the contacts `open`, where s of it is over. start: of (x, u), where it
    begins; end: of (x, u, du/dt), where it ends. jump: x -> state after the end, None where it
    stays; early: of x, impulses of that jump, where it may come early.
    """

    field: Any
    cost: Any
    inside: LimitedFunction
    gaps: Any
    open: tuple[str, ...]
    start: LimitedFunction
    end: LimitedFunction
    jump: Any
    early: LimitedFunction


def phase_functions(
    task: Task, k: int, implied: frozenset[tuple[int, str]] = frozenset()
) -> PhaseFunctions:
    """The functions of phase k of a task. implied: guards, by phase, that vanish with others."""
    system, phase = task.system, task.phases[k]
    mode = mode_on(task, k, contact_modes(phase.mode))
    x, u = mode.x, mode.u
    inside = [*_forces(task, k, mode), *_joints(task, x), *torque_limits(task, u)]
    rate, share = ca.SX.sym("rate", u.numel()), ca.SX.sym("share")
    ends = _events(task, k, mode, rate, implied)
    jump, early = jump_of(task, k), list[Limited]()
    if jump is not None:
        hits = _impacts(task, k, *jump(x)[1:])
        ends += hits
        early = hits if task.margins.early else []
        jump = ca.Function("jump", [x], [jump(x)[0]])
    closed = closed_contacts(phase.mode)
    opened = [i for i in range(len(system.contacts)) if i not in closed]
    leaving, going = (gaps_of(task, k, x, opened, left=left) for left in (True, False))
    return PhaseFunctions(
        ca.Function("field", [x, u], [mode.field]),
        ca.Function("cost", [x, u], [ca.SX(task.running_cost(x, u))]),
        LimitedFunction.of("inside", [x, u], inside),
        ca.Function("gaps", [x, share], [(1.0 - share) * leaving + share * going]),
        tuple(system.contacts[i].name for i in opened),
        LimitedFunction.of("start", [x, u], lifts(task, k, mode)),
        LimitedFunction.of("end", [x, u, rate], ends),
        jump,
        LimitedFunction.of("early", [x], early),
    )


def stepped(field: Callable[[Any, Any], Any], x: Any, inputs: tuple[Any, Any, Any], h: Any) -> Any:
    """The state after one step h of Runge and Kutta's method of fourth order.

    field: (x, u) -> dx/dt. inputs: at the begin, in the middle and at the end of the step.
    """
    first, middle, last = inputs
    a = field(x, first)
    b = field(x + 0.5 * h * a, middle)
    c = field(x + 0.5 * h * b, middle)
    d = field(x + h * c, last)
    return x + h / 6.0 * (a + 2.0 * b + 2.0 * c + d)


def guard_names(task: Task, k: int) -> tuple[str, ...]:
    """Names of the guards of phase k, in the order of their expressions."""
    return task.system.outgoing(task.phases[k].mode).guards.names


def mode_on(task: Task, k: int, modes: tuple[str, ...]) -> ModeField:
    """The expressions of contacts in `modes` on the ground of phase k."""
    rate = task.system.dynamics.stabilization
    return mode_field(task.system.robot, task.contacts(k), modes, stabilization=rate)


def gaps_of(
    task: Task, k: int, x: Expression, contacts: list[int], *, left: bool = False
) -> Expression:
    """Gaps of some contacts over the ground of phase k, or over that which they leave."""
    rows = task.system.robot, task.contacts(k, left=left)
    modes = tuple(CLOSED if i in contacts else OPEN for i in range(len(rows[1])))
    return build_constraints(*rows, modes, x)[
        : len(contacts), :
    ]  # a column, without any contacts too


def end_gap_name(contact: str) -> str:
    """Return the name of the constraint that an open contact has no negative gap at the end."""
    return f"gap of {contact!r} at the end"


def least_gaps(task: Task, k: int, names: Sequence[str], at: Array) -> Array:
    """Least gaps (m, g) of open contacts at fractions (m,) of phase k, see `Margins.clearance`."""
    contacts = task.system.contacts
    let_go = [contacts[i].name for i in (opening_contacts(task, k - 1) if k else ())]
    high, late = 4.0 * at * (1.0 - at), 256.0 / 27.0 * at**3 * (1.0 - at)
    shares = [late if name in let_go else high for name in names]
    return np.asarray(task.margins.clearance * np.reshape(shares, (len(names), len(at))).T)


def jump_of(task: Task, k: int) -> Any:
    """The function x -> state after phase k, impulses (r,), rates (r,); None where it stays."""
    striking = task.striking(k)
    if striking is None:
        return None
    impact = build_impact_map(task.system.robot, task.contacts(k), striking)
    results = [impact.after, impact.impulses, impact.rates]
    return ca.Function("impact", [impact.x], results)


def held_at(task: Task, k: int, mode: ModeKey, state: Expression) -> Expression:
    """What a mode holds at zero in a state, on the ground at the end of phase k."""
    x = ca.SX.sym("x", task.system.space.nx)
    rows = build_constraints(task.system.robot, task.contacts(k), contact_modes(mode), x)
    return ca.Function("held", [x], [ca.densify(rows)])(state)


def held_limits(task: Task, k: int) -> tuple[Limit, ...]:
    """Limits of what the mode of phase k holds."""
    held = task.system.mode(task.phases[k].mode).held
    if held is None:
        return ()
    pairs = zip(held.names, held.units, strict=True)
    return tuple(Limit(f"start: {name}", unit, 0.0, 0.0) for name, unit in pairs)


def cone_limits(
    task: Task, forces: Expression, i: int, unit: str, least: float, mode: str
) -> list[Limited]:
    """Normal force and friction cone of contact i, forces being those on all rows.

    unit: "N" of forces, "N s" of impulses. mode: of the contact; what slides is on its cone.
    """
    contact, normal = task.system.contacts[i], forces[i]
    kind = "force" if unit == "N" else "impulse"
    rows: list[Limited] = [(normal, Limit(f"normal {kind} of {contact.name!r}", unit, least))]
    tangents = task.system.dynamics.all.tangents[i].tolist() if mode == "stick" else []
    share = task.margins.friction * float(contact.static_friction or 0.0)
    name = f"friction cone of {contact.name!r} ({kind})"
    if len(tangents) == 1:
        rows += [
            (share * normal + sign * forces[tangents[0]], Limit(name, unit, 0.0))
            for sign in (1.0, -1.0)
        ]
    elif tangents:
        along = ca.sqrt(ca.sumsqr(forces[tangents]) + 1e-12)
        rows.append((share * normal - along, Limit(name, unit, 0.0)))
    return rows


def _forces(task: Task, k: int, mode: Any) -> list[Limited]:
    """The forces of contacts that are closed in phase k, and the speeds of those that slide."""
    phase, modes = task.phases[k], contact_modes(task.phases[k].mode)
    opening, rows = opening_contacts(task, k), list[Limited]()
    for i in closed_contacts(phase.mode):
        cone = cone_limits(task, mode.forces, i, "N", task.margins.force, modes[i])
        rows += [(value, replace(limit, fades=i in opening)) for value, limit in cone]
    names, slowest = guard_names(task, k), task.margins.sliding
    return rows + [
        (mode.guards[j], Limit(f"guard {name!r}", "m/s", 0.0 if name in phase.ends else slowest))
        for j, name in enumerate(names)
        if name.endswith("sticks")
    ]


def _joints(task: Task, x: Expression) -> list[Limited]:
    robot = task.system.robot
    rows: list[Limited] = []
    for name, (low, high) in task.joint_limits.items():
        i = robot.coordinate_index(name)
        unit = length_unit(robot, name)
        rows.append((x[i], Limit(f"coordinate of joint {name!r}", unit, low, high)))
    for name, (low, high) in task.rate_limits.items():
        i = robot.nq + robot.velocity_index(name)
        unit = f"{length_unit(robot, name)}/s"
        rows.append((x[i], Limit(f"velocity of joint {name!r}", unit, low, high)))
    return rows


def length_unit(robot: Robot, joint: str) -> str:
    """The unit of the coordinate of a joint of one degree of freedom: rad where it turns."""
    body = robot.tree().bodies[robot.joint_names.index(joint)]
    return "rad" if body.twist[3:].any() else "m"


def torque_limits(task: Task, u: Expression, share: float = 1.0) -> list[Limited]:
    """Return the limits of the inputs that have one.

    Args:
        task: The task, with its `greatest_inputs`.
        u: The inputs (nu,).
        share: Part of the limits that may be used.
    """
    most = enumerate((share * task.greatest_inputs).tolist())
    return [
        (u[i], Limit(f"input {i}", "N m", -size, size)) for i, size in most if np.isfinite(size)
    ]


def opening_contacts(task: Task, k: int) -> list[int]:
    """The contacts whose normal force vanishes where phase k ends."""
    contacts = enumerate(task.system.contacts)
    return [i for i, contact in contacts if f"{contact.name} opens" in task.phases[k].ends]


def lifts(task: Task, k: int, mode: ModeField) -> list[Limited]:
    """Return normal accelerations, under the input of phase k, of contacts that open at its start.

    They are no less than `Margins.lift`.
    """
    rows: list[Limited] = []
    for i in opening_contacts(task, k - 1) if k else ():
        contact = task.system.contacts[i].name
        gap = mode.guards[guard_names(task, k).index(f"{contact} closes")]
        rate = ca.jtimes(gap, mode.x, mode.field)
        name = f"normal acceleration of {contact!r} after its release"
        limit = Limit(name, "m/s^2", task.margins.lift)
        rows.append((ca.jtimes(rate, mode.x, mode.field), limit))
    return rows


def end_equations(task: Task, k: int, mode: ModeField) -> list[Expression]:
    """Return what vanishes where a phase ends: its guards, and friction at a release.

    Args:
        task: The task.
        k: Index of the phase.
        mode: Field and guards of the phase in symbols x and u.

    Returns:
        Expressions (1, 1) of x and u. Friction is that of contacts that open from sticking.
    """
    rate = ca.SX.sym("rate", mode.u.numel())
    rows = _events(task, k, mode, rate, frozenset())
    return [value for value, limit in rows if limit.lower == limit.upper]


def _events(
    task: Task,
    k: int,
    mode: ModeField,
    input_rate: Expression,
    implied: frozenset[tuple[int, str]],
) -> list[Limited]:
    """The guards that end a phase vanish, and fall; what opens sticks without friction at last."""
    phase, rows = task.phases[k], list[Limited]()
    for name in phase.ends:
        value = mode.guards[guard_names(task, k).index(name)]
        if (k, name) not in implied:
            rows.append((value, Limit(f"guard {name!r}", _guard_unit(name), 0.0, 0.0)))
        rows.append(guard_fall(task, phase.mode, mode, name, input_rate))
    for i in opening_contacts(task, k):
        for tangent in task.system.dynamics.all.tangents[i].tolist():
            if contact_modes(phase.mode)[i] == STICK:
                name = f"friction of {task.system.contacts[i].name!r} at its release"
                rows.append((mode.forces[tangent], Limit(name, "N", 0.0, 0.0)))
    return rows


def guard_fall(
    task: Task, key: ModeKey, mode: ModeField, name: str, input_rate: Expression
) -> Limited:
    """The rate at which a guard of a mode falls, along its field and at this rate of the input."""
    value = mode.guards[task.system.outgoing(key).guards.names.index(name)]
    rate = ca.jtimes(value, mode.x, mode.field) + ca.jtimes(value, mode.u, input_rate)
    unit = _guard_unit(name)
    least = task.margins.unload if unit == "N" else task.margins.approach
    return -rate, Limit(f"fall of guard {name!r}", f"{unit}/s", least)


def _guard_unit(name: str) -> str:
    return "m" if name.endswith("closes") else "m/s" if "sticks" in name else "N"


def _impacts(task: Task, k: int, impulses: Expression, rates: Expression) -> list[Limited]:
    """Impulses of contacts that press in an impact, rates of those it opens."""
    modes = task.striking(k)
    assert modes is not None
    rows: list[Limited] = []
    for i in closed_contacts(modes):
        rows += cone_limits(task, impulses, i, "N s", task.margins.impulse, modes[i])
    for i in set(closed_contacts(task.phases[k].mode)) - set(closed_contacts(modes)):
        name = f"normal rate of {task.system.contacts[i].name!r} after the impact"
        rows.append((rates[i], Limit(name, "m/s", task.margins.release)))
    return rows
