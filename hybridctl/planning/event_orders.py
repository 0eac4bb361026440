r"""Limits that keep a motion on its modes where events come early, late, or one by one.

Contacts that a task closes or opens together do so one after the other in a perturbed motion, in
any order. Each order has to go through: the contacts that have closed press, in the impact and
after it under the input of before the event, and the guards of the contacts whose turn is still to
come fall ([RS] Assumptions 4 and 7).

A contact whose force has vanished leaves with
:math:`\dddot g = -\dot\lambda\, \det G / \det G_c`. Here G is the matrix :math:`J M^{-1} J^T E` of
the closed contacts and :math:`G_c` that of the contacts which stay. The ratio is positive where the
contact law has one solution, so that no limit is needed for it.

With a spread of event times (`Task.spread`) each arc is continued past its events by that time, and
so are the arcs between events that come one by one. Their contacts press and their inputs stay
inside their limits there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, permutations
from typing import Any, TypeVar

import casadi as ca

from hybridctl.mechanics.contact_law.law import OPEN
from hybridctl.mechanics.impacts.impact_expressions import build_impact_map
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.phase_functions import (
    Limit,
    LimitedFunction,
    LimitedValue,
    build_cone_limits,
    build_guard_fall_limit,
    build_input_limits,
    build_mode_field,
    find_opening_contacts,
    step_runge_kutta,
)
from hybridctl.planning.task import Expression, Task

_CONTINUATION_STEPS = 6
"""Runge-Kutta steps on a continued arc. Their error is far below the two allowances that follow."""
_INPUT_ALLOWANCE = 0.02
"""Share of the input limits that is left unused at these steps, for inputs between them."""
_Event = TypeVar("_Event", int, tuple[int, ...])
"""A contact, or contacts that change at once."""
_FORCE_SHARE = 0.5
"""Share of the least normal force that contacts keep on a continued arc. The value is a choice:
beyond its event an arc serves as a reference that a controller corrects."""


@dataclass(frozen=True, eq=False)
class EventOrder:
    """One order in which some of the contacts close or open, the first ones or all.

    Attributes:
        contacts: Names of the contacts in their order.
        modes: Modes of all contacts after the last of them.
        is_waiting: Whether other contacts have yet to close or open.
        state: State (nx, 1) that is reached from the state before the event.
        values: Limited values (r, 1): impulses of the last impact, if the last contact closes;
            while others are waiting, forces after it and the rates at which their guards fall.
        limits: Limits (r) of the values.
    """

    contacts: tuple[str, ...]
    modes: tuple[str, ...]
    is_waiting: bool
    state: Expression
    values: Expression
    limits: tuple[Limit, ...]


def build_event_orders(
    task: Task, k: int, x: Expression, u: Expression, input_rate: Expression
) -> Iterator[EventOrder]:
    """Yield all orders in which the contacts that change at the end of phase k may do so.

    There is none where fewer than two contacts change.

    Args:
        task: The task.
        k: Index of the phase.
        x: State (nx, 1) before the event.
        u: Input (nu, 1) before the event.
        input_rate: Its rate du/dt (nu, 1).
    """
    for order, waiting in list_event_orders(task, k):
        yield _build_order(task, k, order, waiting, x, (u, input_rate))


def list_event_orders(task: Task, k: int) -> list[tuple[tuple[int, ...], list[int]]]:
    """Return all orders in which the contacts that change at the end of phase k may do so.

    Args:
        task: The task.
        k: Index of the phase.

    Returns:
        Indices of the contacts that have changed, in their order, and of those that have yet to.
        Nothing where fewer than two contacts change.
    """
    return list_orders(find_changing_contacts(task, k))


def find_changing_contacts(task: Task, k: int) -> list[int]:
    """Return the indices of the contacts that close or open at the end of phase k.

    Args:
        task: The task.
        k: Index of the phase.
    """
    after = task.find_mode_after(k)
    if after is None:
        return []
    closing = set(closed_contacts(after)) - set(closed_contacts(task.phases[k].mode))
    return sorted(closing | set(find_opening_contacts(task, k)))


def list_orders(events: Sequence[_Event]) -> list[tuple[tuple[_Event, ...], list[_Event]]]:
    """Return all orders of some of several events: those that have come, and those still to come.

    Args:
        events: The events in ascending order; with fewer than two there are no orders.
    """
    orders = (permutations(events, n) for n in range(1, len(events) + 1))
    ordered = sorted(chain(*orders)) if len(events) > 1 else []
    return [(order, [event for event in events if event not in order]) for order in ordered]


def _build_order(
    task: Task,
    k: int,
    order: tuple[int, ...],
    waiting: list[int],
    x: Expression,
    inputs: tuple[Expression, Expression],
) -> EventOrder:
    """Return one order of events.

    Args:
        task: The task.
        k: Index of the phase that ends.
        order: Indices of the contacts that have closed or opened.
        waiting: Indices of the contacts that have yet to do so.
        x: State (nx, 1) before the event.
        inputs: Input and its rate (nu, 1) before the event.
    """
    system, margins, after = task.system, task.margins, task.find_mode_after(k)
    assert after is not None
    modes, opening = contact_modes(task.phases[k].mode), find_opening_contacts(task, k)
    names = tuple(system.contacts[i].name for i in order)
    impulses: Expression = None
    for i in order:
        modes, impulses = (*modes[:i], contact_modes(after)[i], *modes[i + 1 :]), None
        if i not in opening:
            impact = build_impact_map(system.robot, task.get_contacts(k), modes)
            x, impulses = ca.Function("jump", [impact.x], [impact.after, impact.impulses])(x)
    # Forces of contacts that open vanish at the event, whichever comes first.
    pressing = [i for i, mode in enumerate(modes) if mode != OPEN and i not in opening]
    rows: list[LimitedValue] = []
    if impulses is not None:
        for i in pressing:
            rows += build_cone_limits(task, impulses, i, "N s", margins.impulse, modes[i])
    if waiting:
        forces = _build_field_and_forces(task, k, modes)[1](x, inputs[0])
        for i in pressing:
            rows += build_cone_limits(task, forces, i, "N", margins.force, modes[i])
        actions = {i: "opens" if i in opening else "closes" for i in waiting}
        guards = [f"{system.contacts[i].name} {action}" for i, action in actions.items()]
        rows += _build_fall_limits(task, k, modes, guards, (x, *inputs))
    limits = append_to_names([limit for _, limit in rows], f" after {' then '.join(names)}")
    values = ca.vertcat(*(value for value, _ in rows))
    return EventOrder(names, modes, bool(waiting), x, values, limits)


def _build_fall_limits(
    task: Task,
    k: int,
    modes: tuple[str, ...],
    guards: list[str],
    point: tuple[Expression, Expression, Expression],
) -> list[LimitedValue]:
    """Return the rates at which guards fall in a mode.

    Args:
        task: The task.
        k: Index of the phase whose ground is used.
        modes: Modes of all contacts.
        guards: Names of the guards.
        point: State, input and input rate.
    """
    mode, rate = build_mode_field(task, k, modes), ca.SX.sym("rate", task.system.robot.nu)
    rows = [build_guard_fall_limit(task, modes, mode, name, rate) for name in guards]
    values = [value for value, _ in rows]
    falls = ca.Function("falls", [mode.x, mode.u, rate], values).call(list(point))
    return [(fall, limit) for fall, (_, limit) in zip(falls, rows, strict=True)]


@dataclass(frozen=True, eq=False)
class ContinuedArc:
    """An arc that goes on past its event, forwards or backwards in time.

    Attributes:
        phase: Index of the phase whose ground it has.
        modes: Modes of all contacts.
        state: State (nx, 1) at the event.
        build_input: Function of the time since the event, s, that returns the input (nu, 1).
        length: Time by which the arc goes on, s; negative for backwards.
        where: Place for messages, such as "late".
        opening: Indices of the contacts whose force vanishes at the event. They need not press
            beyond it; backwards their force is at least zero.
    """

    phase: int
    modes: tuple[str, ...]
    state: Expression
    build_input: Callable[[float], Expression]
    length: float
    where: str
    opening: Sequence[int] = ()

    def build_limits(self, task: Task) -> tuple[Expression, tuple[Limit, ...]]:
        """Return forces and inputs (r, n) at n times of the arc, and their limits (r).

        Args:
            task: The task.
        """
        field, forces = _build_field_and_forces(task, self.phase, self.modes)
        values = self._build_limited_function(task, forces.size1_out(0))
        h, x, columns = self.length / _CONTINUATION_STEPS, self.state, []
        for n in range(_CONTINUATION_STEPS):
            first, middle, last = (self.build_input((n + part) * h) for part in (0.0, 0.5, 1.0))
            x = step_runge_kutta(field, x, (first, middle, last), h)
            columns.append(values(forces(x, last), last))
        return ca.horzcat(*columns), values.limits

    def _build_limited_function(self, task: Task, count: int) -> LimitedFunction:
        """Return the function of forces (count, 1) on all rows and inputs (nu, 1), with limits."""
        forces, u = ca.SX.sym("forces", count), ca.SX.sym("u", task.system.robot.nu)
        rows = build_input_limits(task, u, share=1.0 - _INPUT_ALLOWANCE)
        for i, mode in enumerate(self.modes):
            vanishing = i in self.opening
            if mode != OPEN and not (vanishing and self.length > 0.0):
                least = 0.0 if vanishing else _FORCE_SHARE * task.margins.force
                rows += build_cone_limits(task, forces, i, "N", least, mode)
        limits = append_to_names([limit for _, limit in rows], f" {self.where}")
        values = [value for value, _ in rows]
        return LimitedFunction.from_rows(
            "rows", [forces, u], list(zip(values, limits, strict=True))
        )


def append_to_names(limits: Sequence[Limit], suffix: str) -> tuple[Limit, ...]:
    """Return the limits with this suffix at the end of their names."""
    return tuple(replace(limit, name=limit.name + suffix) for limit in limits)


def _build_field_and_forces(task: Task, k: int, modes: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the functions (x, u) -> dx/dt and (x, u) -> forces on all rows, in given modes.

    Args:
        task: The task.
        k: Index of the phase whose ground is used.
        modes: Modes of all contacts.
    """
    mode = build_mode_field(task, k, modes)
    arguments = [mode.x, mode.u]
    return (
        ca.Function("field", arguments, [mode.field]),
        ca.Function("forces", arguments, [mode.forces]),
    )
