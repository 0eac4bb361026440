"""What keeps a motion on its sequence of modes where its events come early, late, or one by one.

Contacts that a task closes together close one after the other in a perturbed motion, in any order.
Each order is to go through: the contacts that have closed press, in the impact and after it under
the input of before the event, and those that have not still approach ([RS] Assumptions 4 and 7).
With a spread of event times, each arc is continued past its events by so much, and so are the arcs
between the touches: their contacts still press and their inputs stay inside their limits there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import casadi as ca
import numpy as np

from hybridctl.checks import Array
from hybridctl.control.trajectory.functions import (
    Expression,
    Limit,
    Limited,
    cone_limits,
    torque_limits,
)
from hybridctl.control.trajectory.task import Task
from hybridctl.mechanics.impact_expressions import impact_map
from hybridctl.mechanics.mode_expressions import ModeField, mode_field
from hybridctl.mechanics.phase import contact_modes
from hybridctl.mechanics.system import closed_contacts

_STEPS = 3  # of Runge and Kutta's method on a continuation: their error is far below its margins


@dataclass(frozen=True, eq=False)
class Order:
    """One order of touch up to some contact that is not the last, or to the last.

    modes: of all contacts after it. state: the expression reached from the state before the event.
    values, limits: of its last impact, and just after it.
    """

    contacts: tuple[str, ...]
    modes: tuple[str, ...]
    state: Expression
    values: Expression
    limits: tuple[Limit, ...]


def closing_contacts(task: Task, k: int) -> list[int]:
    """The contacts that close where phase k ends."""
    after = task.mode_after(k)
    if after is None:
        return []
    return sorted(set(closed_contacts(after)) - set(closed_contacts(task.phases[k].mode)))


def orders(task: Task, k: int, x: Expression, u: Expression) -> Iterator[Order]:
    """All orders in which the contacts that close where phase k ends may do so one by one.

    x (nx, 1), u (nu, 1): before the event. None where fewer than two contacts close.
    """
    contacts = closing_contacts(task, k)
    if len(contacts) < 2:
        return
    seen: set[tuple[int, ...]] = set()
    for whole in permutations(contacts):
        for n in range(1, len(whole) + 1):
            if whole[:n] not in seen:
                seen.add(whole[:n])
                yield _order(task, k, whole[:n], set(whole[n:]), x, u)


def _order(
    task: Task, k: int, fired: tuple[int, ...], waiting: set[int], x: Expression, u: Expression
) -> Order:
    system, margins = task.system, task.margins
    modes = contact_modes(task.phases[k].mode)
    names = tuple(system.contacts[i].name for i in fired)
    where = f" after {' then '.join(names)}"
    rows: list[Limited] = []
    for i in fired:
        modes = _closed_too(task, k, modes, i)
        impact = impact_map(system.robot, system.contacts, modes)
        jump = ca.Function("jump", [impact.x], [impact.after, impact.impulses, impact.rates])
        x, impulses, rates = jump(x)
    closed = [i for i, mode in enumerate(modes) if mode != "open"]
    for i in closed:
        rows += cone_limits(task, impulses, i, "N s", margins.impulse, modes[i])
    if waiting:
        forces = _field(task, modes)[1](x, u)
        for i in closed:
            rows += cone_limits(task, forces, i, "N", margins.force, modes[i])
        for i in waiting:
            limit = Limit(f"approach of {system.contacts[i].name!r}", "m/s", margins.approach)
            rows.append((-rates[i], limit))
    limits = tuple(_named(limit, where) for _, limit in rows)
    return Order(names, modes, x, ca.vertcat(*(value for value, _ in rows)), limits)


def _closed_too(task: Task, k: int, modes: tuple[str, ...], i: int) -> tuple[str, ...]:
    """The modes with contact i as it is after the event."""
    final = task.mode_after(k)
    assert final is not None
    return tuple(contact_modes(final)[j] if j == i else mode for j, mode in enumerate(modes))


@dataclass(frozen=True, eq=False)
class Continued:
    """An arc that goes on past its event.

    modes: of the contacts. state (nx, 1): where it goes on from. inputs: u (nu, 1) at a distance
    from there, s. length: s, negative for back in time. where: for messages.
    """

    modes: tuple[str, ...]
    state: Expression
    inputs: Callable[[float], Expression]
    length: float
    where: str

    def values(self, task: Task) -> tuple[Expression, tuple[Limit, ...]]:
        """Values (n, steps) of forces and inputs on the way, and their limits (n)."""
        field, forces = _field(task, self.modes)
        rows = self._rows(task, forces.size1_out(0))
        if rows is None:
            return ca.MX(0, _STEPS), ()
        values, limits = rows
        h, x, columns = self.length / _STEPS, self.state, []
        for n in range(_STEPS):
            u = [self.inputs((n + part) * h) for part in (0.0, 0.5, 1.0)]
            a = field(x, u[0])
            b = field(x + 0.5 * h * a, u[1])
            c = field(x + 0.5 * h * b, u[1])
            d = field(x + h * c, u[2])
            x = x + h / 6.0 * (a + 2.0 * b + 2.0 * c + d)
            columns.append(values(forces(x, u[2]), u[2]))
        return ca.horzcat(*columns), limits

    def _rows(self, task: Task, count: int) -> tuple[Any, tuple[Limit, ...]] | None:
        """A function of forces (count, 1) and inputs, and its limits; None without any."""
        forces, u = ca.SX.sym("forces", count), ca.SX.sym("u", task.system.robot.nu)
        rows = torque_limits(task, u)
        for i, mode in enumerate(self.modes):
            if mode != "open":
                rows += cone_limits(task, forces, i, "N", 0.0, mode)
        if not rows:
            return None
        function = ca.Function("rows", [forces, u], [ca.vertcat(*(value for value, _ in rows))])
        return function, tuple(_named(limit, f" {self.where}") for _, limit in rows)


def _named(limit: Limit, suffix: str) -> Limit:
    return Limit(limit.name + suffix, limit.unit, limit.lower, limit.upper)


def _field(task: Task, modes: tuple[str, ...]) -> tuple[Any, Any]:
    """Functions (x, u) -> dx/dt and forces on all rows in given modes."""
    system = task.system
    mode: ModeField = mode_field(
        system.robot, system.contacts, modes, stabilization=system.dynamics.stabilization
    )
    at = [mode.x, mode.u]
    return ca.Function("field", at, [mode.field]), ca.Function("forces", at, [mode.forces])


def sizes(limits: tuple[Limit, ...]) -> Array:
    """The least values (n, 1) of limits, which a common margin multiplies."""
    return np.array([[limit.lower] for limit in limits])
