"""What happens where guards fire: the reset of their joint edge, or those of all in sequence.

What follows from a sequence must not depend on the order, so that all are compared. Then modes
select the one that goes on, until one selects itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import AmbiguousEventError, NoContactSolutionError, SystemDefinitionError
from hybridctl.hybrid.mode import Jump, ModeKey, ModeModel
from hybridctl.hybrid.model import Point
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE

_SELECTIONS = 8  # one after the other
_MOST_RESETS = 32_768  # enough for 12 guards that commute: 12 * 2^11 of them


def jump(
    system: HybridSystem, source: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> tuple[ModeKey, Jump]:
    """The mode and the jump that guards of mode `source` lead to, when they fire at (t, x, u).

    Without an edge of their own the single edges are applied one after the other, with the same
    result in every order; a guard that the mode reached so far lacks is done with, and impulses
    add up.

    Raises `AmbiguousEventError` where two orders end in different modes or states, naming both,
    and where more than 32,768 resets would be needed to tell: that is from 13 guards on.
    """
    edge = system.outgoing(source).edge(guards)
    if edge is not None:
        return edge.jump(t, x, u)
    ends = (one for one in firings(system, source, guards, t, x, u) if not one.waiting)
    first = next(ends)
    for other in ends:
        if not first.agrees(other):
            raise _ambiguous(source, guards, t, first, other)
    return first.mode, replace(first.jump, impulses=first.impulses)


def consistent(
    system: HybridSystem,
    key: ModeKey,
    at: Callable[[ModeModel], Point],
    tolerance: float | None = None,
) -> Point:
    """The mode that flows on, at its point: selected from `key` on until one selects itself.

    at(mode): the point, for the input may depend on the mode. tolerance: see `selected`.

    Raises `NoContactSolutionError` where none is found, with those that were tried.
    """
    tried: list[ModeKey] = []
    for _ in range(_SELECTIONS):
        here = at(system.mode(key))
        following = selected(here, tolerance)
        if following == key:
            return here
        tried.append(key)
        key = following
    raise NoContactSolutionError(
        f"no mode is consistent at t = {here.t:.9g} s under u = {here.u.tolist()}: tried {tried}, "
        f"then {key!r}; x = {here.x.tolist()}"
    )


def selected(here: Point, tolerance: float | None = None) -> ModeKey:
    """The mode that a point's mode selects to go on there.

    tolerance: of a mode that flowed up to here. Where all its guards are above this, relative to
    their scales, what goes on is the same solution, and no other is looked for.
    """
    mode = here.mode
    if not mode.selects:
        return mode.key
    if tolerance is not None and (here.guards > tolerance * mode.guard_scales).all():
        return mode.key
    return mode.select_at(here)


@dataclass(frozen=True)
class Firing:
    """Guards that fire one after the other at one instant, in this order, and where they lead.

    jump: that of the last. impulses: what all of them add up to. waiting: the other guards that the
    mode reached so far has. Without any the event is over, though not all need have fired: one may
    do what another does.
    """

    order: tuple[str, ...]
    mode: ModeKey
    jump: Jump
    impulses: Array
    waiting: tuple[str, ...]

    def agrees(self, other: Firing) -> bool:
        """Whether another order leads to the same mode and state."""
        state, others = self.jump.state, other.jump.state
        return (
            self.mode == other.mode
            and state.shape == others.shape
            and np.allclose(state, others, rtol=SAME_STATE, atol=SAME_STATE)
        )


def firings(
    system: HybridSystem, source: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> Iterator[Firing]:
    """All ways in which guards of mode `source` fire one after the other, from none of them on.

    The first that is complete has the order of the guards. Where orders of the same guards agree,
    one of them goes on: n guards that commute take n 2^(n-1) resets. [RS] (4.13)-(4.14).

    Raises `AmbiguousEventError` where 32,768 resets are not enough, and `SystemDefinitionError`
    where a mode has no edge for a guard alone.
    """

    def left(key: ModeKey, order: tuple[str, ...]) -> tuple[str, ...]:
        names = system.outgoing(key).guards.names
        return tuple(name for name in guards if name in names and name not in order)

    def fire(here: Firing, name: str) -> Firing:
        if next(resets) > _MOST_RESETS:
            raise AmbiguousEventError(
                f"{len(guards)} guards of mode {source!r} fired together at t = {t:.9g} s, and "
                f"{_MOST_RESETS} resets do not tell whether their order matters: give them a "
                "transition of their own"
            )
        edge = system.outgoing(here.mode).edge((name,))
        if edge is None:
            raise SystemDefinitionError(f"mode {here.mode!r} has no edge for guard {name!r} alone")
        key, jump = edge.jump(t, here.jump.state, u)
        together, order = jump.impulses, (*here.order, name)
        if len(here.impulses) == len(together):
            together = here.impulses + together
        return Firing(order, key, jump, together, left(key, order))

    def onward(here: Firing) -> Iterator[Firing]:
        yield here
        same = known.setdefault(frozenset(here.order), [])
        if not any(here.agrees(other) for other in same):
            same.append(here)
            for name in here.waiting:
                yield from onward(fire(here, name))

    known: dict[frozenset[str], list[Firing]] = {}
    resets = count(1)
    return onward(Firing((), source, Jump(x), np.zeros(0), left(source, ())))


def _ambiguous(
    source: ModeKey, guards: tuple[str, ...], t: float, first: Firing, second: Firing
) -> AmbiguousEventError:
    return AmbiguousEventError(
        f"guards {guards} of mode {source!r} fired together at t = {t:.9g} s, and their order "
        f"matters: {first.order} leads to {first.mode!r}, {second.order} to {second.mode!r}, and "
        f"the states differ by up to {_apart(first, second)}; give this event a transition of its "
        "own",
        orders=(first.order, second.order),
        modes=(first.mode, second.mode),
        states=(first.jump.state, second.jump.state),
    )


def _apart(first: Firing, second: Firing) -> str:
    """The largest difference of two states, in words where their sizes differ."""
    state, others = first.jump.state, second.jump.state
    if state.shape != others.shape:
        return f"their dimension ({len(state)} and {len(others)})"
    return f"{np.abs(state - others).max(initial=0.0):.3g}"
