"""A report on whether the system can follow a reference, also when its events split.

The report checks what tracking of a hybrid reference rests on: guards stay positive along the
arcs (gaps of open contacts, forces of closed ones), events are transversal ([RS] Assumption 4),
resets of a simultaneous event compose to the same state in any order (Assumption 6), and every
sequence of its guards only grows, with no pulling force on the way (Assumption 7).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array, check_instance
from hybridctl.base.tables import format_mode
from hybridctl.control.reference import PhantomArc, Reference, firings_at
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.run_check import check_system
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE_TOLERANCE
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

GUARD_ERROR = 1e-8  # by which a guard that is not to fire may be below zero


@dataclass(frozen=True)
class GuardMargin:
    """The least value of a guard along an arc, and when; it must be positive."""

    arc: int
    guard: str
    value: float
    time: float


@dataclass(frozen=True)
class EventFeasibility:
    """What is known of one nominal event.

    guard_rates: d/dt of each guard that fires, negative where transversal.
    associativity: largest difference of the post-event states over all orders of the resets.
    least_impulse: smallest normal impulse of a contact that takes part, over all sequences
    (infinite where there are none), in N s: how near a contact is to taking no part.
    phantom_margin: least guard value at the start of each intermediate mode, by mode.
    growing: whether every order of the resets ends in the nominal post-event mode. An order
    ends where the reached mode has none of the guards left.
    """

    index: int
    guard_rates: dict[str, float]
    associativity: float
    least_impulse: float
    phantom_margin: dict[str, float]
    growing: bool


@dataclass(frozen=True)
class Feasibility:
    """The report; `failures` says in words what does not hold, and is empty if all does."""

    margins: tuple[GuardMargin, ...]
    events: tuple[EventFeasibility, ...]
    failures: tuple[str, ...]


def feasibility(
    system: HybridSystem,
    reference: Reference,
    *,
    period: float = 1e-3,
) -> Feasibility:
    """Check a reference; guards are sampled every `period` seconds along the nominal arcs.

    Raises `InputError` for a reference that was made of a run of another system.
    """
    nominal = check_instance("reference", reference, Reference).nominal
    check_system(system, nominal)
    margins = tuple(m for arc in nominal.arcs for m in _margins(system, nominal, arc, period))
    events = tuple(_event(system, reference, k) for k in range(len(reference.events)))
    failures = [
        f"guard {m.guard!r} falls to {m.value:.4g} at t = {m.time:.4g} s on arc {m.arc}"
        for m in margins
        if m.value < -GUARD_ERROR
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
            if value < -GUARD_ERROR
        ]
    return Feasibility(margins, events, tuple(failures))


def _margins(
    system: HybridSystem, nominal: HybridTrajectory, arc: Arc, period: float
) -> list[GuardMargin]:
    """Least guard values inside an arc; a guard that begins or ends it is left out there."""
    n = max(int(np.ceil((arc.end - arc.start) / period)), 2)
    times = np.linspace(arc.start, arc.end, n + 1)[1:-1].tolist()
    least = least_guards(system, arc.mode, arc, times)
    return [GuardMargin(arc.index, name, *found) for name, found in least.items()]


def least_guards(
    system: HybridSystem,
    key: ModeKey,
    arc: Arc,
    times: Sequence[float],
    without: Collection[str] = (),
) -> dict[str, tuple[float, float]]:
    """The least value of each guard of a mode along an arc, and when it has that, s."""
    guards = system.outgoing(key).guards
    values = np.array([guards.values(t, *arc.state_and_input(t)) for t in times])
    return {
        name: (float(column.min()), times[int(column.argmin())])
        for name, column in zip(guards.names, values.T, strict=True)
        if name not in without
    }


def _event(system: HybridSystem, reference: Reference, index: int) -> EventFeasibility:
    event = reference.events[index]
    firings = firings_at(system, event)
    complete = [one for one in firings if not one.waiting]
    ended = [one.jump.state for one in complete if one.mode == event.mode_after]
    space = system.mode(event.mode_after).space
    differences = [np.abs(space.difference(event.state_after, x)).max() for x in ended]
    phantoms = [p for (k, _), p in reference.phantoms.items() if k == index]
    acting = [_acting(event.impulses), *(_acting(one.jump.impulses) for one in firings)]
    return EventFeasibility(
        index,
        _guard_rates(system, event),
        float(max(differences, default=0.0)),
        float(min((impulse for row in acting for impulse in row), default=np.inf)),
        {format_mode(p.mode): _phantom_margin(system, event, p) for p in phantoms},
        len(complete) == len(ended),
    )


def _acting(impulses: Array) -> Array:
    return np.asarray(impulses[impulses != 0.0])


def _guard_rates(system: HybridSystem, event: Event) -> dict[str, float]:
    """The rates D_t g + D_x g f + D_u g du/dt of guards just before the event."""
    mode = system.mode(event.mode_before)
    point = mode.calc(event.time, event.state_before, event.input_before)
    d = point.guard_jacobian
    rates = d.time + d.state @ point.field + d.input @ event.input_rate
    return {name: float(rates[mode.guard_names.index(name)]) for name in event.guards}


def _phantom_margin(system: HybridSystem, event: Event, phantom: PhantomArc) -> float:
    """Least value of the guards that are not about to fire, where the phantom arc begins."""
    waiting = set(event.guards) - set(phantom.fired)
    arc = phantom.arc
    rest = least_guards(system, arc.mode, arc, [event.time], waiting)
    return min((value for value, _ in rest.values()), default=np.inf)
