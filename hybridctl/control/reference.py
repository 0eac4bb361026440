r"""References for tracking through events: extended arcs and phantom arcs.

Every arc of a nominal trajectory is continued past both of its ends by its own vector field,
so a state can be compared with the arc of the same event count although its events come early
or late ([RS] 3.1.2). Where guards fire together, nearby trajectories fire them one by one and
visit modes that the nominal one never enters; a phantom arc is the reference there ([RS] 4.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from hybridctl.base.checks import (
    Array,
    check_callable,
    check_instance,
    check_member,
    check_number,
    check_sequence,
    check_vector,
    format_count,
)
from hybridctl.base.errors import InputError
from hybridctl.base.progress import Progress, report_share
from hybridctl.control.impacts import Impact, impact_of
from hybridctl.hybrid.arc import Arc, join_arcs, make_arc_from_steps
from hybridctl.hybrid.flow import METHODS, Integrator
from hybridctl.hybrid.jump import FiringOrder, fire_in_all_orders
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.run_check import check_system
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

Feedforward = Callable[[float], Array]
Phase = Literal["pushing", "withdrawing"]
PHASES: tuple[Phase, ...] = ("pushing", "withdrawing")


@dataclass(frozen=True)
class PhantomArc:
    """The reference in an intermediate mode of simultaneous event `event` of the reference.

    `arc` passes at the nominal event time through the state that the resets of `fired` give;
    `impulses` are those of the last of these resets.
    """

    event: int
    mode: ModeKey
    fired: tuple[str, ...]
    impulses: Array
    arc: Arc


@dataclass(frozen=True)
class Reference:
    """A nominal trajectory with its extended arcs, and the phantom arcs of its events.

    Events of a reference are those of guards. Where the nominal policy changed its law in between,
    the nominal trajectory has an arc more, but the reference goes on: its arc has a change more
    (see `Arc.changes`). `arcs[i]` is defined on
    [start - before, end + after] of the time between events i - 1 and i; its mode is the one in
    which it begins. `phantoms` maps (event index, guards that have fired) to the phantom arc there.
    `impacts` has M, J and bounds of the impulses of each event, None where it changes no velocity.
    """

    nominal: HybridTrajectory
    arcs: tuple[Arc, ...]
    phantoms: Mapping[tuple[int, frozenset[str]], PhantomArc]
    impacts: tuple[Impact | None, ...] = ()

    def __repr__(self) -> str:
        span = f"{self.nominal.start:.6g} to {self.nominal.end:.6g} s"
        parts = {"arc": self.arcs, "event": self.events, "phantom": self.phantoms}
        counts = ", ".join(format_count(len(some), what) for what, some in parts.items())
        return f"Reference({span}, {counts})"

    @property
    def events(self) -> tuple[Event, ...]:
        """The nominal events of guards."""
        return self.nominal.guard_events


def stretches(trajectory: HybridTrajectory) -> list[list[Arc]]:
    """The arcs of a trajectory, grouped by what lies between two events of guards."""
    rows: list[list[Arc]] = [[]]
    for arc in trajectory.arcs:
        rows[-1].append(arc)
        if arc.index < len(trajectory.events) and trajectory.events[arc.index].guards:
            rows.append([])
    return rows


def extend(
    system: HybridSystem,
    trajectory: HybridTrajectory,
    *,
    before: float | Sequence[float],
    after: float | Sequence[float],
    feedforward: Sequence[Feedforward] | None = None,
    phantom: Phase = "pushing",
    rtol: float = 1e-10,
    atol: float = 1e-10,
    progress: Progress = None,
) -> Reference:
    """Extend a nominal trajectory by `before` and `after` seconds around each of its events.

    before, after: one number, or one for each event of guards.
    feedforward: one function u(t) per arc of the trajectory, valid on the extended interval; None
    holds the nominal input at the ends of each arc.
    phantom: feedforward of phantom arcs, "pushing" (that of the arc before the event, until the
    event is complete, [RS] (4.16)) or "withdrawing" (that of the arc after it, [RS] (4.15)).
    progress: True prints the share of the work that is done on standard error; a function is called
    with it, from 0 to 1.

    The first arc is not extended to before the start, nor the last to after the end. Raises
    `InputError` for bad arguments and for the run of another system, `IntegrationError` if a field
    cannot be continued.
    """
    check_instance("system", system, HybridSystem)
    events = check_instance("trajectory", trajectory, HybridTrajectory).guard_events
    check_system(system, trajectory)
    early, late = per_event("before", before, len(events)), per_event("after", after, len(events))
    check_member("phantom", phantom, PHASES)
    rtol, atol = check_number("rtol", rtol, above=0.0), check_number("atol", atol, above=0.0)
    integrator = Integrator(METHODS["DOP853"], rtol, atol, np.inf)
    if feedforward is None:
        inputs = [held(arc) for arc in trajectory.arcs]
    else:
        inputs = check_sequence("feedforward", feedforward)
    if len(inputs) != len(trajectory.arcs):
        raise InputError(
            f"feedforward must have one function per arc ({len(trajectory.arcs)}), "
            f"got {len(inputs)}"
        )
    for k, (u, arc) in enumerate(zip(inputs, trajectory.arcs, strict=True)):
        name = f"feedforward[{k}]"
        check_vector(
            f"{name}({arc.start})", check_callable(name, u)(arc.start), arc.inputs.shape[2]
        )
    report = report_share(progress, "extend") or (lambda share: None)
    arcs = list[Arc]()
    for pieces, length, past in zip(
        stretches(trajectory), (0.0, *early), (*late, 0.0), strict=True
    ):
        arcs.append(_continued(system, integrator, pieces, inputs, before=length, after=past))
        report(0.5 * len(arcs) / (len(events) + 1))
    phantoms, impacts = {}, []
    for k, event in enumerate(events):
        u = inputs[event.index if phantom == "pushing" else event.index + 1]
        found = firings_at(system, event)
        first = [one.jump.state for one in found if len(one.order) == 1]
        impacts.append(impact_of(system, event, [one.jump.impulses for one in found], first))
        for fired, one in intermediate(found).items():
            flow = partial(_integrate, system, integrator, one.mode, u, event.time, one.jump.state)
            arc = join_arcs(0, [flow(-early[k]), flow(late[k])])
            phantoms[k, fired] = PhantomArc(k, one.mode, one.order, one.jump.impulses, arc)
        report(0.5 + 0.5 * (k + 1) / len(events))
    return Reference(trajectory, tuple(arcs), phantoms, tuple(impacts))


def per_event(name: str, value: float | Sequence[float], count: int) -> tuple[float, ...]:
    """One length in s for each of `count` events. Raises `InputError`."""
    if isinstance(value, Sequence):
        if len(value) != count:
            raise InputError(f"{name} must have one length per event ({count}), got {len(value)}")
        return tuple(check_number(f"{name}[{k}]", v, at_least=0.0) for k, v in enumerate(value))
    return (check_number(name, value, at_least=0.0),) * count


def firings_at(system: HybridSystem, event: Event) -> list[FiringOrder]:
    """All ways in which guards of a nominal event fire one after the other, one or more of them."""
    at = event.time, event.state_before, event.input_before
    found = fire_in_all_orders(system, event.mode_before, event.guards, *at)
    return [one for one in found if one.order]


def intermediate(firings: Iterable[FiringOrder]) -> dict[frozenset[str], FiringOrder]:
    """The first way to each set of fired guards that leaves others waiting."""
    first: dict[frozenset[str], FiringOrder] = {}
    for one in firings:
        if one.waiting:
            first.setdefault(frozenset(one.order), one)
    return first


def held(arc: Arc) -> Feedforward:
    """The input of an arc, held where it ends."""
    return lambda t: arc.input(float(min(max(t, arc.start), arc.end)))


def continued(
    trajectory: HybridTrajectory, inputs: Sequence[Feedforward], *, after: float
) -> tuple[Arc, ...]:
    """Each arc of a trajectory, continued by its own field for `after` s past its end."""
    system, integrator = trajectory.known_system, Integrator(METHODS["DOP853"], 1e-9, 1e-9, np.inf)
    return tuple(
        _continued(system, integrator, [arc], inputs, before=0.0, after=after)
        for arc in trajectory.arcs
    )


def _continued(
    system: HybridSystem,
    integrator: Integrator,
    pieces: Sequence[Arc],
    inputs: Sequence[Feedforward],
    *,
    before: float,
    after: float,
) -> Arc:
    """Arcs without an event between them, continued beyond both ends by their own fields."""
    first, last = pieces[0], pieces[-1]
    u, v = inputs[first.index], inputs[last.index]
    past = _integrate(system, integrator, first.mode, u, first.start, first(first.start), -before)
    future = _integrate(system, integrator, last.mode, v, last.end, last(last.end), after)
    nominal = [piece for arc in pieces for piece in arc.pieces]
    return join_arcs(first.index, [past, nominal[0], *map(_begun_anew, nominal[1:]), future])


def _begun_anew(arc: Arc) -> Arc:
    """The arc, marked as following another law than what comes before it."""
    jumps = arc.jumps.copy()
    jumps[0] = True
    return replace(arc, jumps=jumps)


def _integrate(
    system: HybridSystem,
    integrator: Integrator,
    key: ModeKey,
    u: Feedforward,
    time: float,
    state: Array,
    duration: float,
) -> Arc:
    """Flow of one mode over a duration that may be negative, without regard to guards."""
    mode = system.mode(key)
    law: InputLaw = lambda t, x: u(t)  # noqa: E731
    end = time + duration
    steps = list(integrator.steps(mode, law, time, state, end)) if duration != 0.0 else []
    if duration < 0.0:
        steps = [Step(s.end, s.start, s.states[::-1], s.inputs[::-1]) for s in reversed(steps)]
    start, stop = min(time, end), max(time, end)
    return make_arc_from_steps(0, mode, steps, start, state, u(time), stop)
