"""What happens where guards fire: the reset of their joint edge, or those of all in sequence.

What follows from a sequence must not depend on the order, so that all are compared. Then modes
select the one that goes on, until one selects itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import NamedTuple, TypeVar

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import AmbiguousEventError, NoContactSolutionError, SystemDefinitionError
from hybridctl.hybrid.mode import Edge, Jump, ModeKey, ModeModel
from hybridctl.hybrid.model import JumpPoint, Point, ResetModel
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE

S = TypeVar("S")
G = TypeVar("G", bound=Hashable)

MOST_GUARDS = 12  # whose orders are compared where they commute
_MOST_RESETS = MOST_GUARDS * 2 ** (MOST_GUARDS - 1)
_SELECTIONS = 8  # one after the other


class EventOutcome(NamedTuple):
    """Where an event leads: the mode and the jump of its resets, and the guards that took part."""

    mode: ModeKey
    jump: Jump
    guards: tuple[str, ...]

    @classmethod
    def of(cls, mode: ModeKey, jump: Jump, guards: tuple[str, ...]) -> EventOutcome:
        """The outcome of guards that fired, of which the jump may name those that took part."""
        return cls(mode, jump, guards if jump.guards is None else jump.guards)


def executed(
    system: HybridSystem,
    source: ModeKey,
    guards: tuple[str, ...],
    t: float,
    x: Array,
    u: Array,
    u_after: Array | None = None,
) -> EventOutcome:
    """The event of guards that fire at (t, x, u), with the mode that goes on from it.

    u_after: the input (nu,) under which it does, by default u. Raises what `outcome` raises, and
    `NoContactSolutionError` as `consistent` does.
    """
    found, after = outcome(system, source, guards, t, x, u), u if u_after is None else u_after
    here = consistent(system, found.mode, lambda mode: mode.calc(t, found.jump.state, after))
    return found._replace(mode=here.mode.key)


def outcome(
    system: HybridSystem, source: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> EventOutcome:
    """Return the mode and the jump that guards of mode `source` lead to, if they fire together.

    Without an edge of their own the single edges are applied one after the other, with the same
    mode and state in every order. A guard that the mode reached so far lacks is done with. The
    impulses are the sum over the resets of the first order by the names of the guards; a reset
    that reports none counts as zero. They can depend on the order although the state does not,
    where one of two contacts does what the other would: the order by name decides then, not the
    one in which guards are declared.

    Args:
        system: The system.
        source: Key of the mode before the event.
        guards: Names of the guards that fire.
        t: Event time, s.
        x: State (nx,) before the event.
        u: Input (nu,) before the event.

    Raises:
        AmbiguousEventError: If two orders end in different modes or states, which it names, or if
            more resets are needed to tell than 12 guards that commute take.
        SystemDefinitionError: If a mode has no edge for a guard alone, or if two resets report
            impulses of different numbers of contacts.
    """
    first, *others = ends(system, source, guards, t, x, u)
    for other in others:
        if not _agree(system, first, other):
            raise order_matters(
                f"guards {guards} of mode {source!r} fired together at t = {t:.9g} s",
                (first.order, other.order),
                (first.mode, other.mode),
                (first.jump.state, other.jump.state),
                "; give this event a transition of its own",
            )
    jump = first.jump
    if jump.impulses is not first.impulses:
        jump = replace(jump, impulses=first.impulses)
    return EventOutcome.of(first.mode, jump, guards)


def ends(
    system: HybridSystem, source: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> Iterator[Firing]:
    """All ways in which an event may end: by the joint edge of its guards, or by `firings`."""
    edge = system.outgoing(source).edge(guards)
    if edge is None:
        return (one for one in firings(system, source, guards, t, x, u) if not one.waiting)
    key, jump = edge.jump(t, x, u)
    at = JumpPoint(t, x, u, jump.report)
    return iter([Firing(guards, key, jump, jump.impulses, (), ((edge.reset, at),))])


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
    return here.selected_mode


class Firing(NamedTuple):
    """Guards that fire one after the other at one instant, in this order, and where they lead.

    jump: that of the last. impulses: what all of them add up to. waiting: the other guards that the
    mode reached so far has. Without any the event is over, though not all need have fired: one may
    do what another does. resets: those that were taken, each where it was.
    """

    order: tuple[str, ...]
    mode: ModeKey
    jump: Jump
    impulses: Array
    waiting: tuple[str, ...]
    resets: tuple[tuple[ResetModel, JumpPoint], ...] = ()


def _agree(system: HybridSystem, one: Firing, other: Firing) -> bool:
    """Whether two orders lead to the same mode and state."""
    return one.mode == other.mode and same_state(system, one.mode, one.jump.state, other.jump.state)


def same_state(system: HybridSystem, key: ModeKey, x: Array, y: Array) -> bool:
    """Whether two arrays of coordinates are one state of a mode, as far as events tell states.

    A quaternion and its negative are one rotation.
    """
    if x.shape != y.shape:
        return False
    space = system.mode(key).space
    if len(x) == space.nx:
        y = space.integrate(x, space.difference(x, y))
    return np.allclose(y, x, rtol=SAME_STATE, atol=SAME_STATE)


def firings(
    system: HybridSystem, source: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> Iterator[Firing]:
    """Yield all ways in which guards of one mode fire one after the other, from none of them on.

    Orders are tried by the names of the guards, so that the first complete one does not depend on
    the order in which guards are declared. Where orders of the same guards agree, one of them goes
    on: n guards that commute take n 2^(n-1) resets. [RS] (4.13)-(4.14).

    Args:
        system: The system.
        source: Key of the mode in which the guards fire.
        guards: Their names.
        t: Event time, s.
        x: State (nx,) before the event.
        u: Input (nu,) before the event.

    Raises:
        AmbiguousEventError: If that many resets are not enough for 12 guards.
        SystemDefinitionError: If a mode has no edge for a guard alone, or if two resets report
            impulses of different numbers of contacts.
    """
    by_name = sorted(guards)

    def left(key: ModeKey, order: tuple[str, ...]) -> tuple[str, ...]:
        names = system.outgoing(key).guards.names
        return tuple(name for name in by_name if name in names and name not in order)

    def fire(here: Firing, name: str) -> Firing:
        x = here.jump.state
        edge = single_edge(system, here.mode, name)
        key, jump = edge.jump(t, x, u)
        if jump.guards is not None:  # the last guard is not the only one to take part
            jump = replace(jump, guards=None)
        order = (*here.order, name)
        together = add_impulses(here.impulses, np.asarray(jump.impulses), order, t)
        resets = (*here.resets, (edge.reset, JumpPoint(t, x, u, jump.report)))
        return Firing(order, key, jump, together, left(key, order), resets)

    start = Firing((), source, Jump(x), np.zeros(0), left(source, ()))
    return in_any_order(start, lambda here: here.waiting, fire, partial(_agree, system), t)


def add_impulses(before: Array, own: Array, order: tuple[str, ...], t: float) -> Array:
    """Return the impulses that resets add up to which are applied one after the other.

    A reset that reports none has given none: it counts as zero for every contact.

    Args:
        before: Sum (n,) over the resets before, N s; empty if none of them reported any.
        own: Impulses (n,) of the last reset, N s; empty if it reports none.
        order: Guards that have fired, the last of them last.
        t: Event time, s.

    Raises:
        SystemDefinitionError: If both are of several contacts, but not of equally many.
    """
    if not len(before) or not len(own):
        return own if len(own) else before
    if before.shape != own.shape:
        raise SystemDefinitionError(
            f"resets of guards that fire together at t = {t:.9g} s must report impulses of the "
            f"same contacts: that of {order[-1]!r} has {len(own)}, those of {order[:-1]} have "
            f"{len(before)}; report one number for each contact, zero where it gives none"
        )
    return before + own


def single_edge(system: HybridSystem, key: ModeKey, guard: str) -> Edge:
    """The edge behind one guard of a mode; `SystemDefinitionError` where there is none."""
    edge = system.outgoing(key).edge((guard,))
    if edge is None:
        raise SystemDefinitionError(f"mode {key!r} has no edge for guard {guard!r} alone")
    return edge


def in_any_order(
    start: S,
    waiting: Callable[[S], Sequence[G]],
    fire: Callable[[S, G], S],
    agree: Callable[[S, S], bool],
    t: float,
) -> Iterator[S]:
    """All that guards lead to which fire one after the other in any order, from none of them on.

    waiting(here): the guards that may fire next, of which the first is tried first. fire(here,
    guard): where that leads. Where orders of the same guards agree, one of them goes on. Raises
    `AmbiguousEventError` where the order of more than 12 guards that commute is asked for.
    """
    known: dict[frozenset[G], list[S]] = {}
    fired = count(1)

    def onward(here: S, done: frozenset[G]) -> Iterator[S]:
        yield here
        same = known.setdefault(done, [])
        if any(agree(here, other) for other in same):
            return
        same.append(here)
        for guard in waiting(here):
            if next(fired) > _MOST_RESETS:
                raise AmbiguousEventError(
                    f"{len(waiting(start))} guards fire together at t = {t:.9g} s, and "
                    f"{_MOST_RESETS} resets do not tell whether their order matters: give them a "
                    "transition of their own"
                )
            yield from onward(fire(here, guard), done | {guard})

    return onward(start, frozenset())


def order_matters(
    event: str,
    orders: tuple[tuple[str, ...], tuple[str, ...]],
    modes: tuple[ModeKey, ModeKey],
    states: tuple[Array, Array],
    advice: str,
    *,
    at_once: bool = False,
) -> AmbiguousEventError:
    """The error that two orders of the guards of an event, which is told in words, lead apart.

    at_once: whether in what the second leads to all of them have fired at once.
    """
    one, other = states
    apart = f"their dimension ({len(one)} and {len(other)})"
    if one.shape == other.shape:
        apart = f"{np.abs(one - other).max(initial=0.0):.3g}"
    second = "all at once" if at_once else orders[1]
    return AmbiguousEventError(
        f"{event} and their order matters: {orders[0]} leads to {modes[0]!r}, {second} to "
        f"{modes[1]!r}, and the states differ by up to {apart}{advice}",
        orders=orders,
        modes=modes,
        states=states,
    )
