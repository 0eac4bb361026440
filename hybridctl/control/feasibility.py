"""A report on whether the system can follow a reference, also when its events split.

The report checks what tracking of a hybrid reference rests on. Guards stay positive along the
nominal arcs (gaps of open contacts, forces of closed ones). Events are transversal ([RS]
Assumption 4). Resets of a simultaneous event lead to the same state in any order (Assumption 6).
Every order of its guards ends in the nominal mode, and no other guard is negative where a phantom
arc passes the event, such as a force that pulls (Assumption 7).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import check_instance
from hybridctl.base.tables import format_mode
from hybridctl.control.reference import PhantomArc, Reference, list_firing_orders
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.run_check import check_system
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE_TOLERANCE
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

GUARD_TOLERANCE = 1e-8
"""Amount by which a guard that must not fire may be below zero, in its unit. A choice."""


@dataclass(frozen=True)
class GuardMargin:
    """The least sampled value of a guard inside an arc; below -1e-8 it is a failure.

    Attributes:
        arc: Index of the nominal arc.
        guard: Name of the guard.
        value: Least value, in the unit of the guard.
        time: Time of the least value, s.
    """

    arc: int
    guard: str
    value: float
    time: float


@dataclass(frozen=True)
class EventFeasibility:
    """The checks of one nominal event.

    Attributes:
        index: Index of the event.
        guard_rates: Rate d/dt of each guard that fires, by name; negative where it is transversal.
        associativity: Largest entry of the difference from the nominal state after the event, over
            all orders of resets that end in the nominal mode.
        least_impulse: Smallest normal impulse over all contacts that take part in some order, N s:
            how near a contact is to taking no part. Infinite without impulses.
        phantom_margin: Least value of the guards in each intermediate mode at the nominal time of
            the event, by the mode as text. Guards of the event that are still to fire do not count.
            Infinite for a mode without other guards.
        growing: Whether every order of the resets ends in the nominal mode after the event. An
            order ends where the reached mode has none of the guards that are left.
    """

    index: int
    guard_rates: dict[str, float]
    associativity: float
    least_impulse: float
    phantom_margin: dict[str, float]
    growing: bool


@dataclass(frozen=True)
class Feasibility:
    """The report on a reference.

    Attributes:
        margins: Least value of each guard on each nominal arc.
        events: Checks of each event.
        failures: One sentence for each condition that does not hold; empty if all hold.
    """

    margins: tuple[GuardMargin, ...]
    events: tuple[EventFeasibility, ...]
    failures: tuple[str, ...]


def feasibility(
    system: HybridSystem,
    reference: Reference,
    *,
    period: float = 1e-3,
) -> Feasibility:
    """Return a report on whether a system can follow a reference.

    Args:
        system: System of the reference.
        reference: The reference.
        period: Greatest distance of samples of guards along the nominal arcs, s.

    Raises:
        InputError: The reference was made of a run of another system.
    """
    nominal = check_instance("reference", reference, Reference).nominal
    check_system(system, nominal)
    margins = tuple(m for arc in nominal.arcs for m in _find_margins(system, nominal, arc, period))
    events = tuple(_check_event(system, reference, k) for k in range(len(reference.events)))
    failures = [
        f"guard {m.guard!r} falls to {m.value:.4g} at t = {m.time:.4g} s on arc {m.arc}"
        for m in margins
        if m.value < -GUARD_TOLERANCE
    ]
    for e in events:
        failures += [
            f"event {e.index}: guard {name!r} has rate {rate:.3g}, so it is not transversal"
            for name, rate in e.guard_rates.items()
            if not rate < 0.0
        ]
        if e.associativity > SAME_STATE_TOLERANCE:
            failures.append(
                f"event {e.index}: the order of resets changes the state by {e.associativity:.3g}"
            )
        if not e.growing:
            failures.append(f"event {e.index}: not every order ends in the post-event mode")
        failures += [
            f"event {e.index}: a guard of phantom mode {mode} starts at {value:.3g}"
            for mode, value in e.phantom_margin.items()
            if value < -GUARD_TOLERANCE
        ]
    return Feasibility(margins, events, tuple(failures))


def find_least_guards(
    system: HybridSystem,
    key: ModeKey,
    arc: Arc,
    times: Sequence[float],
    without: Collection[str] = (),
) -> dict[str, tuple[float, float]]:
    """Return the least value of each guard of a mode along an arc.

    Args:
        system: The system.
        key: Mode whose guards are evaluated.
        arc: Arc.
        times: Times in s at which they are evaluated.
        without: Names of guards to leave out.

    Returns:
        Least value, and its time in s, by the name of the guard.
    """
    guards = system.outgoing(key).guards
    values = np.array([guards.values(t, *arc.state_and_input(t)) for t in times])
    return {
        name: (float(column.min()), times[int(column.argmin())])
        for name, column in zip(guards.names, values.T, strict=True)
        if name not in without
    }


def _find_margins(
    system: HybridSystem, nominal: HybridTrajectory, arc: Arc, period: float
) -> list[GuardMargin]:
    """Return the least guards inside an arc. At its ends a guard may be zero: it begins or ends."""
    n = max(int(np.ceil((arc.end - arc.start) / period)), 2)
    times = np.linspace(arc.start, arc.end, n + 1)[1:-1].tolist()
    least = find_least_guards(system, arc.mode, arc, times)
    return [GuardMargin(arc.index, name, *found) for name, found in least.items()]


def _check_event(system: HybridSystem, reference: Reference, index: int) -> EventFeasibility:
    """Return the checks of one event of a reference."""
    event = reference.events[index]
    orders = list_firing_orders(system, event)
    complete = [one for one in orders if not one.waiting]
    states = [one.jump.state for one in complete if one.mode == event.mode_after]
    space = system.mode(event.mode_after).space
    differences = [np.abs(space.difference(event.state_after, x)).max() for x in states]
    phantoms = [p for (k, _), p in reference.phantoms.items() if k == index]
    impulses = [
        impulse
        for every in (event.impulses, *(one.jump.impulses for one in orders))
        for impulse in every[every != 0.0]
    ]
    return EventFeasibility(
        index,
        _compute_guard_rates(system, event),
        float(max(differences, default=0.0)),
        float(min(impulses, default=np.inf)),
        _find_phantom_margins(system, event, phantoms),
        len(complete) == len(states),
    )


def _compute_guard_rates(system: HybridSystem, event: Event) -> dict[str, float]:
    """Return the rates D_t g + D_x g f + D_u g du/dt of the event's guards just before it."""
    mode = system.mode(event.mode_before)
    point = mode.calc(event.time, event.state_before, event.input_before)
    d = point.guard_jacobian
    rates = d.time + d.state @ point.field + d.input @ event.input_rate
    return {name: float(rates[mode.guard_names.index(name)]) for name in event.guards}


def _find_phantom_margins(
    system: HybridSystem, event: Event, phantoms: Sequence[PhantomArc]
) -> dict[str, float]:
    """Return the least guard at the start of the phantom arcs in each mode, by the mode.

    Different guards may lead to the same mode
    (test_phantom_modes_of_one_key_have_the_least_margin_of_all).
    """
    margins = dict[str, float]()
    for phantom in phantoms:
        name, margin = format_mode(phantom.mode), _find_phantom_margin(system, event, phantom)
        margins[name] = min(margin, margins.get(name, np.inf))
    return margins


def _find_phantom_margin(system: HybridSystem, event: Event, phantom: PhantomArc) -> float:
    """Return the least guard on a phantom arc at the nominal time of its event.

    Guards of the event that have not fired are at zero there and do not count. It is infinite where
    there is no other guard.
    """
    waiting = set(event.guards) - set(phantom.fired)
    arc = phantom.arc
    others = find_least_guards(system, arc.mode, arc, [event.time], waiting)
    return min((value for value, _ in others.values()), default=np.inf)
