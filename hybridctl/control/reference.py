r"""References for tracking through events: extended arcs and phantom arcs.

Every arc of a nominal trajectory is continued past both of its ends by its own vector field,
so a state can be compared with the arc of the same event count although its events come early
or late ([RS] 3.1.2). Where guards fire together, nearby trajectories fire them one by one and
visit modes that the nominal one never enters; a phantom arc is the reference there ([RS] 4.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridctl.checks import Array, member, number
from hybridctl.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.flow import METHODS, Integrator, Step
from hybridctl.hybrid.mode import InputLaw, ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Arc, Event, HybridTrajectory, arc_from_steps

Feedforward = Callable[[float], Array]
Phase = Literal["pushing", "withdrawing"]
PHASES: tuple[Phase, ...] = ("pushing", "withdrawing")


@dataclass(frozen=True)
class PhantomArc:
    """The reference in an intermediate mode of simultaneous event `event`.

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

    `arcs[i]` is defined on [start - before, end + after] of nominal arc i; `phantoms` maps
    (event index, guards that have fired) to the phantom arc there.
    """

    nominal: HybridTrajectory
    arcs: tuple[Arc, ...]
    phantoms: Mapping[tuple[int, frozenset[str]], PhantomArc]

    @property
    def events(self) -> tuple[Event, ...]:
        """The nominal events."""
        return self.nominal.events


def extend(
    system: HybridSystem,
    trajectory: HybridTrajectory,
    *,
    before: float,
    after: float,
    feedforward: Sequence[Feedforward] | None = None,
    phantom: Phase = "pushing",
    rtol: float = 1e-10,
    atol: float = 1e-10,
) -> Reference:
    """Extend a nominal trajectory by `before` and `after` seconds around each of its events.

    feedforward: one function u(t) per arc, valid on the extended interval; None holds the
    nominal input at the ends of each arc.
    phantom: feedforward of phantom arcs, "pushing" (that of the arc before the event, until the
    event is complete, [RS] (4.16)) or "withdrawing" (that of the arc after it, [RS] (4.15)).

    The first arc is not extended to before the start, nor the last to after the end. Raises
    `InputError` for bad arguments, `IntegrationError` if a field cannot be continued.
    """
    before = number("before", before, at_least=0.0)
    after = number("after", after, at_least=0.0)
    member("phantom", phantom, PHASES)
    integrator = Integrator(METHODS["DOP853"], rtol, atol, np.inf)
    inputs = [_held(arc) for arc in trajectory.arcs] if feedforward is None else list(feedforward)
    if len(inputs) != len(trajectory.arcs):
        raise InputError(
            f"feedforward must have one function per arc ({len(trajectory.arcs)}), "
            f"got {len(inputs)}"
        )
    last = len(trajectory.arcs) - 1
    arcs = tuple(
        _continued(
            system,
            integrator,
            arc,
            inputs[i],
            before=before if i > 0 else 0.0,
            after=after if i < last else 0.0,
        )
        for i, arc in enumerate(trajectory.arcs)
    )
    phantoms = {}
    for event in trajectory.events:
        u = inputs[event.index if phantom == "pushing" else event.index + 1]
        for seed in _phantom_seeds(system, event):
            arc = _around(system, integrator, seed, event.time, u, before, after)
            key = (event.index, frozenset(seed.fired))
            phantoms[key] = PhantomArc(event.index, seed.mode, seed.fired, seed.impulses, arc)
    return Reference(trajectory, arcs, phantoms)


@dataclass(frozen=True)
class Seed:
    """A state reached at a nominal event by the resets of some of its guards, in this order."""

    mode: ModeKey
    fired: tuple[str, ...]
    state: Array
    impulses: Array


def sequences(system: HybridSystem, event: Event, *, proper: bool) -> list[Seed]:
    """All sequences of single resets at a nominal event, [RS] (4.13)-(4.14).

    With `proper`, only those that leave at least one guard unfired. A guard that the reached
    mode no longer has ends a sequence.
    """
    most = len(event.guards) - 1 if proper else len(event.guards)
    reached = [Seed(event.mode_before, (), event.state_before, np.zeros(0))]
    found = []
    for _ in range(most):
        reached = [
            _fire(system, seed, name, event)
            for seed in reached
            for name in event.guards
            if name not in seed.fired and name in system.outgoing(seed.mode).guards.names
        ]
        found += reached
    return found


def _fire(system: HybridSystem, seed: Seed, name: str, event: Event) -> Seed:
    edge = system.outgoing(seed.mode).edge((name,))
    if edge is None:
        raise SystemDefinitionError(f"mode {seed.mode!r} has no edge for guard {name!r} alone")
    jump = edge.reset(event.time, seed.state, event.input_before)
    mode = edge.target if jump.mode is None else jump.mode
    return Seed(mode, (*seed.fired, name), jump.state, jump.impulses)


def _phantom_seeds(system: HybridSystem, event: Event) -> list[Seed]:
    """One sequence to each set of fired guards; others agree if resets are associative."""
    first: dict[frozenset[str], Seed] = {}
    for seed in sequences(system, event, proper=True):
        first.setdefault(frozenset(seed.fired), seed)
    return list(first.values())


def _held(arc: Arc) -> Feedforward:
    return lambda t: arc.input(float(min(max(t, arc.start), arc.end)))


def _continued(
    system: HybridSystem,
    integrator: Integrator,
    arc: Arc,
    u: Feedforward,
    *,
    before: float,
    after: float,
) -> Arc:
    """Arc with its own field continued beyond both ends."""
    past = _integrate(system, integrator, arc.mode, u, arc.start, arc(arc.start), -before)
    future = _integrate(system, integrator, arc.mode, u, arc.end, arc(arc.end), after)
    return _join([past, arc, future])


def _around(
    system: HybridSystem,
    integrator: Integrator,
    seed: Seed,
    time: float,
    u: Feedforward,
    before: float,
    after: float,
) -> Arc:
    parts = [
        _integrate(system, integrator, seed.mode, u, time, seed.state, -before),
        _integrate(system, integrator, seed.mode, u, time, seed.state, after),
    ]
    return _join(parts)


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
        steps = [_reversed(step) for step in reversed(steps)]
    start, stop = min(time, end), max(time, end)
    return arc_from_steps(0, mode, steps, start, state, u(time), stop)


def _reversed(step: Step) -> Step:
    return Step(step.end, step.start, step.times[::-1], step.states[::-1], step.inputs[::-1])


def _join(parts: Sequence[Arc]) -> Arc:
    """One arc out of consecutive ones of the same mode, leaving out those of no duration."""
    kept = [part for part in parts if part.end > part.start] or [parts[0]]
    return Arc(
        kept[0].index,
        kept[0].mode,
        kept[0].space,
        kept[0].start,
        kept[-1].end,
        *(
            np.concatenate([getattr(part, name) for part in kept])
            for name in ("breaks", "lengths", "states", "inputs")
        ),
    )
