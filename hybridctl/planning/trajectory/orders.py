r"""What keeps a motion on its sequence of modes where its events come early, late, or one by one.

Contacts that a task closes or opens together do so one after the other in a perturbed motion, in
any order. Each order is to go through: the contacts that have closed press, in the impact and after
it under the input of before the event, and the guards of those whose turn is still to come fall
([RS] Assumptions 4 and 7). A contact whose force has vanished leaves with
:math:`\dddot g = -\dot\lambda\, \det G / \det G_c`, G being the matrix
:math:`J M^{-1} J^T E` of the closed contacts and G_c that of those which stay: positive where the
law has one solution, so that nothing else need be asked.
With a spread of event times, each arc is continued past its events by so much, and so are the arcs
in between: their contacts still press and their inputs stay inside their limits there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from typing import Any

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.constrained.phase import contact_modes
from hybridctl.mechanics.impacts.impact_expressions import build_impact_map
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.trajectory.functions import (
    Limit,
    Limited,
    LimitedFunction,
    cone_limits,
    guard_fall,
    mode_on,
    opening_contacts,
    stepped,
    torque_limits,
)
from hybridctl.planning.trajectory.task import Expression, Task

_STEPS = 6  # of Runge and Kutta's method on a continuation: their error is far below its margins
_BETWEEN = 0.02  # of limits of inputs, kept for what lies between these steps
_PRESSING = 0.5  # of the least force, likewise


@dataclass(frozen=True, eq=False)
class Order:
    """One order of contacts that close or open, up to some contact that is not the last, or to it.

    modes: of all contacts after it. waiting: whether others are still to come. state: the
    expression reached from the state before the event. values, limits: of its last impact, if that
    contact closes, and just after it.
    """

    contacts: tuple[str, ...]
    modes: tuple[str, ...]
    waiting: bool
    state: Expression
    values: Expression
    limits: tuple[Limit, ...]


def orders(
    task: Task, k: int, x: Expression, u: Expression, input_rate: Expression
) -> Iterator[Order]:
    """All orders in which the contacts that change where phase k ends may do so one by one.

    x (nx, 1), u (nu, 1), input_rate (nu, 1): before the event. None where fewer than two change.
    """
    after = task.mode_after(k)
    if after is None:
        return
    closing = set(closed_contacts(after)) - set(closed_contacts(task.phases[k].mode))
    contacts = sorted(closing | set(opening_contacts(task, k)))
    some = (permutations(contacts, n) for n in range(1, len(contacts) + 1))
    for fired in sorted(chain(*some)) if len(contacts) > 1 else ():
        waiting = [i for i in contacts if i not in fired]
        yield _order(task, k, fired, waiting, x, (u, input_rate))


def _order(
    task: Task,
    k: int,
    fired: tuple[int, ...],
    waiting: list[int],
    x: Expression,
    inputs: tuple[Expression, Expression],
) -> Order:
    """The order `fired`; inputs and their rates are those before the event."""
    system, margins, after = task.system, task.margins, task.mode_after(k)
    assert after is not None
    modes, opening = contact_modes(task.phases[k].mode), opening_contacts(task, k)
    names = tuple(system.contacts[i].name for i in fired)
    impulses: Expression = None
    for i in fired:
        modes, impulses = (*modes[:i], contact_modes(after)[i], *modes[i + 1 :]), None
        if i not in opening:
            impact = build_impact_map(system.robot, task.contacts(k), modes)
            x, impulses = ca.Function("jump", [impact.x], [impact.after, impact.impulses])(x)
    pressing = [i for i, mode in enumerate(modes) if mode != "open" and i not in opening]
    rows: list[Limited] = []
    for i in pressing if impulses is not None else ():
        rows += cone_limits(task, impulses, i, "N s", margins.impulse, modes[i])
    if waiting:
        forces = _field(task, k, modes)[1](x, inputs[0])
        for i in pressing:
            rows += cone_limits(task, forces, i, "N", margins.force, modes[i])
        turns = {i: "opens" if i in opening else "closes" for i in waiting}
        guards = [f"{system.contacts[i].name} {turn}" for i, turn in turns.items()]
        rows += _falls(task, k, modes, guards, x, *inputs)
    where = f" after {' then '.join(names)}"
    limits = tuple(_named(limit, where) for _, limit in rows)
    values = ca.vertcat(*(value for value, _ in rows))
    return Order(names, modes, bool(waiting), x, values, limits)


def _falls(
    task: Task,
    k: int,
    modes: tuple[str, ...],
    guards: list[str],
    x: Expression,
    u: Expression,
    input_rate: Expression,
) -> list[Limited]:
    """How guards fall in a mode."""
    mode, rate = mode_on(task, k, modes), ca.SX.sym("rate", task.system.robot.nu)
    rows = [guard_fall(task, modes, mode, name, rate) for name in guards]
    values = [value for value, _ in rows]
    falls = ca.Function("falls", [mode.x, mode.u, rate], values).call([x, u, input_rate])
    return [(fall, limit) for fall, (_, limit) in zip(falls, rows, strict=True)]


@dataclass(frozen=True, eq=False)
class ContinuedArc:
    """An arc that goes on past its event.

    phase: whose ground it has. modes: of the contacts. state (nx, 1): where it goes on from.
    inputs: u (nu, 1) at a distance from there, s. length: s, negative for back in time. where: for
    messages. opening: contacts whose force vanishes at the event: beyond it they need not press.
    """

    phase: int
    modes: tuple[str, ...]
    state: Expression
    inputs: Callable[[float], Expression]
    length: float
    where: str
    opening: Sequence[int] = ()

    def values(self, task: Task) -> tuple[Expression, tuple[Limit, ...]]:
        """Values (n, steps) of forces and inputs on the way, and their limits (n)."""
        field, forces = _field(task, self.phase, self.modes)
        values = self._rows(task, forces.size1_out(0))
        h, x, columns = self.length / _STEPS, self.state, []
        for n in range(_STEPS):
            first, middle, last = (self.inputs((n + part) * h) for part in (0.0, 0.5, 1.0))
            x = stepped(field, x, (first, middle, last), h)
            columns.append(values(forces(x, last), last))
        return ca.horzcat(*columns), values.limits

    def _rows(self, task: Task, count: int) -> LimitedFunction:
        """The limits of forces (count, 1) and inputs."""
        forces, u = ca.SX.sym("forces", count), ca.SX.sym("u", task.system.robot.nu)
        rows = torque_limits(task, u, share=1.0 - _BETWEEN)
        for i, mode in enumerate(self.modes):
            vanishing = i in self.opening
            if mode != "open" and not (vanishing and self.length > 0.0):
                least = 0.0 if vanishing else _PRESSING * task.margins.force
                rows += cone_limits(task, forces, i, "N", least, mode)
        named = [(value, _named(limit, f" {self.where}")) for value, limit in rows]
        return LimitedFunction.of("rows", [forces, u], named)


def _named(limit: Limit, suffix: str) -> Limit:
    return Limit(limit.name + suffix, limit.unit, limit.lower, limit.upper)


def _field(task: Task, k: int, modes: tuple[str, ...]) -> tuple[Any, Any]:
    """Functions (x, u) -> dx/dt and forces on all rows in given modes, on the ground of phase k."""
    mode = mode_on(task, k, modes)
    at = [mode.x, mode.u]
    return ca.Function("field", at, [mode.field]), ca.Function("forces", at, [mode.forces])


def sizes(limits: tuple[Limit, ...]) -> Array:
    """The least values (n, 1) of limits, which a common margin multiplies."""
    return np.array([[limit.lower] for limit in limits])
