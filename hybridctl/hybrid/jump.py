"""What happens where guards fire: the reset of their joint edge, or those of all in sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import AmbiguousEventError, SystemDefinitionError
from hybridctl.hybrid.mode import Jump, ModeKey
from hybridctl.hybrid.system import HybridSystem

_SAME = 1e-6  # states that differ by less, absolutely and relatively, are the same after an event

Reached = tuple[tuple[str, ...], ModeKey, Jump]


def jump(
    system: HybridSystem, source: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> tuple[ModeKey, Jump]:
    """The mode and the jump that guards of mode `source` lead to, when they fire at (t, x, u).

    Without an edge of their own the single edges are applied one after the other; a guard that a
    mode on the way lacks is done with, and impulses add up. Raises `AmbiguousEventError` where the
    order matters.
    """
    edge = system.outgoing(source).edge(guards)
    if edge is not None:
        return landing(edge.target, edge.reset(t, x, u))
    reached: dict[frozenset[str], list[Reached]] = {frozenset(): [((), source, Jump(x))]}
    for _ in guards:
        longer: dict[frozenset[str], list[Reached]] = {}
        for fired, ways in reached.items():
            for name in guards:
                if name not in fired:
                    known = longer.setdefault(fired | {name}, [])
                    for way in ways:
                        _add(known, _fire(system, way, name, t, u))
        reached = longer
    (ends,) = reached.values()
    if len(ends) > 1:
        (order, key, one), (other, other_key, two) = ends[:2]
        raise AmbiguousEventError(
            f"guards {guards} of mode {source!r} fired together at t = {t:.9g} s, and their order "
            f"matters: {order} leads to {key!r}, x+ = {one.state.tolist()}, {other} to "
            f"{other_key!r}, x+ = {two.state.tolist()}; give this event a transition of its own"
        )
    return ends[0][1:]


def landing(target: ModeKey | None, jump: Jump) -> tuple[ModeKey, Jump]:
    """The mode after a jump: the target of its edge, unless the reset decides."""
    key = target if jump.mode is None else jump.mode
    if key is None:
        raise SystemDefinitionError("a reset without a target mode must return one in its Jump")
    return key, jump


def _fire(system: HybridSystem, way: Reached, name: str, t: float, u: Array) -> Reached:
    """A way, longer by the single edge of one guard."""
    order, key, now = way
    edge = system.outgoing(key).edge((name,))
    if edge is None:
        return (*order, name), key, now
    key, after = landing(edge.target, edge.reset(t, now.state, u))
    if len(now.impulses) == len(after.impulses):
        after = replace(after, impulses=now.impulses + after.impulses)
    return (*order, name), key, after


def _add(known: list[Reached], way: Reached) -> None:
    """Keep a way unless one is known that leads to the same mode and state."""
    _, key, found = way
    for _, other, jump in known:
        if key == other and np.allclose(found.state, jump.state, rtol=_SAME, atol=_SAME):
            return
    known.append(way)
