"""What happens where guards fire: resets at one instant, and the mode that goes on.

1. `compute_outcome` gives the mode and the state that the guards lead to. That is by the joint edge
   of the guards that fire together, or by their single edges, one after the other. Without a joint
   edge all orders are compared, because what follows must not depend on the order.
2. `find_consistent_mode` lets modes select the one that goes on from there under the input, until
   one selects itself.

`execute_event` does both.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, count
from typing import NamedTuple, TypeVar

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import AmbiguousEventError, NoContactSolutionError, SystemDefinitionError
from hybridctl.hybrid.mode import Edge, Jump, ModeKey, ModeModel
from hybridctl.hybrid.model import JumpPoint, Point, ResetModel
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE_TOLERANCE

S = TypeVar("S")
G = TypeVar("G", bound=Hashable)

MAX_COMMUTING_GUARDS = 12
"""Number of guards whose orders are compared if they commute. The value is a choice.

They take n 2^(n-1) resets: 24,576 for 12 guards."""
_MAX_RESETS = MAX_COMMUTING_GUARDS * 2 ** (MAX_COMMUTING_GUARDS - 1)
"""Resets that `explore_orders` applies for one event; one more is an `AmbiguousEventError`."""
_MAX_SELECTIONS = 8
"""Number of modes that select another one before a mode is not found. The value is a choice."""


class EventOutcome(NamedTuple):
    """Where an event leads.

    Attributes:
        mode: Key of the mode after it.
        jump: The state after it, its impulses and its report.
        guards: Names of the guards that took part.
    """

    mode: ModeKey
    jump: Jump
    guards: tuple[str, ...]

    @classmethod
    def from_jump(cls, mode: ModeKey, jump: Jump, fired: tuple[str, ...]) -> EventOutcome:
        """Return the outcome of a jump.

        Args:
            mode: Key of the mode after it.
            jump: The jump. It may name the guards that took part.
            fired: Names of the guards that fired; they took part if the jump names none.
        """
        return cls(mode, jump, fired if jump.guards is None else jump.guards)


def execute_event(
    system: HybridSystem,
    source: ModeKey,
    guards: tuple[str, ...],
    t: float,
    x: Array,
    u: Array,
    u_after: Array | None = None,
) -> EventOutcome:
    """Return where an event leads, with the mode that is consistent after it.

    Args:
        system: The system.
        source: Key of the mode before the event.
        guards: Names of the guards that fire.
        t: Event time, s.
        x: State (nx,) before the event.
        u: Input (nu,) before the event.
        u_after: Input (nu,) after the event, on which the mode may depend. If None, it is u.

    Raises:
        AmbiguousEventError: As `compute_outcome` raises it.
        SystemDefinitionError: As `compute_outcome` raises it.
        NoContactSolutionError: If no mode is consistent.
    """
    outcome = compute_outcome(system, source, guards, t, x, u)
    after = u if u_after is None else u_after
    point = find_consistent_mode(
        system, outcome.mode, lambda mode: mode.calc(t, outcome.jump.state, after)
    )
    return outcome._replace(mode=point.mode.key)


def compute_outcome(
    system: HybridSystem, source: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> EventOutcome:
    """Return the mode and the jump that guards of a mode lead to if they fire together.

    Without an edge of their own the single edges are applied one after the other, with the same
    mode and state in every order. A guard that the mode reached does not have counts as fired.

    The impulses are the sum over the resets of the first order by the names of the guards; a reset
    that reports none counts as zero. They can depend on the order although the state does not,
    where one of two contacts does what the other would. The order by name decides then, not the
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
    first, *others = list_outcomes(system, source, guards, t, x, u)
    for other in others:
        if not _lead_to_one_state(system, first, other):
            error = make_ambiguity_error(
                f"guards {guards} of mode {source!r} fired together at t = {t:.9g} s",
                (first.order, other.order),
                (first.mode, other.mode),
                (first.jump.state, other.jump.state),
                "; give this event a transition of its own",
            )
            raise error
    jump = first.jump
    # After several resets the impulses are the sum of theirs; those of `jump` are of the last.
    if first.impulses is not jump.impulses:
        jump = replace(jump, impulses=first.impulses)
    return EventOutcome.from_jump(first.mode, jump, guards)


def select_releasing_guards(
    system: HybridSystem, source: ModeKey, guards: tuple[str, ...], at: JumpPoint, rate: Array
) -> tuple[str, ...]:
    """Return those of the guards of an event that go on to fall when the others have fired.

    This is for events that keep the field (`ResetModel.keeps_field`), such as those of feet that
    let go together. A foot may press another one down as it leaves: the force of that is zero for
    an instant, and rises again. So the guards that fire are a set S with these properties:

    - in the mode after the others of S each guard of S falls;
    - in the mode after S no other guard falls.

    For the normal forces of contacts this is the complementarity of their rates and of the third
    derivatives of gaps.

    Args:
        system: The system.
        source: Key of the mode in which they reach zero.
        guards: Their names.
        at: The point there, with the input before the event.
        rate: Rate (nu,) of this input, 1/s.

    Returns:
        The largest such set, in the order given. All guards if there is none, if the event does not
        keep the field, or if the guards have no derivatives.
    """
    edge = system.outgoing(source).edge(guards)
    if len(guards) < 2 or edge is None or not edge.reset.keeps_field:
        return guards

    def falls(fired: tuple[str, ...], name: str) -> bool:
        """Return whether a guard falls in the mode that others lead to, or is not there."""
        key = source
        if fired:
            own = system.outgoing(source).edge(fired)
            assert own is not None
            key, _ = own.jump(at.t, at.x, at.u)
        mode = system.mode(key)
        if name not in mode.guard_names:
            return True
        point = mode.calc(at.t, at.x, at.u)
        row = point.guard_row(mode.guard_names.index(name))
        return bool(row.time + row.state @ point.field + row.input @ rate < 0.0)

    if not system.mode(source).guards_differentiable:
        return guards
    for size in range(len(guards), 0, -1):
        for chosen in combinations(guards, size):
            others = [name for name in guards if name not in chosen]
            if all(
                falls(tuple(other for other in chosen if other != name), name) for name in chosen
            ) and not any(falls(chosen, name) for name in others):
                return chosen
    return guards


class FiringOrder(NamedTuple):
    """Guards that have fired one after the other at one instant, and where they have led.

    Attributes:
        order: Names of the guards in the order in which they fired.
        mode: Key of the mode reached.
        jump: The last jump, with the state reached.
        impulses: Sum (n,) of the impulses of all jumps, N s; empty if none reports any.
        waiting: Guards of the event that have not fired and that the mode reached still has. The
            event is over when there are none, though not all guards need have fired: one may do
            what another would do.
        resets: The resets that were applied, each with the point where it was.
    """

    order: tuple[str, ...]
    mode: ModeKey
    jump: Jump
    impulses: Array
    waiting: tuple[str, ...]
    resets: tuple[tuple[ResetModel, JumpPoint], ...] = ()


def list_outcomes(
    system: HybridSystem, source: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> Iterator[FiringOrder]:
    """Return all ways in which an event may end: by the joint edge of its guards, or in all orders.

    Args:
        system: The system.
        source: Key of the mode before the event.
        guards: Names of the guards that fire.
        t: Event time, s.
        x: State (nx,) before the event.
        u: Input (nu,) before the event.

    Returns:
        An iterator of complete firings. It raises what `fire_in_all_orders` raises.
    """
    edge = system.outgoing(source).edge(guards)
    if edge is None:
        orders = fire_in_all_orders(system, source, guards, t, x, u)
        return (one for one in orders if not one.waiting)
    key, jump = edge.jump(t, x, u)
    point = JumpPoint(t, x, u, jump.report)
    return iter([FiringOrder(guards, key, jump, jump.impulses, (), ((edge.reset, point),))])


def fire_in_all_orders(
    system: HybridSystem, source: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> Iterator[FiringOrder]:
    """Return the ways in which guards of one mode fire one after the other, also incomplete ones.

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

    Returns:
        An iterator, depth first: no guard, the first by name, that and the next one, and so on. On
        iteration it raises `AmbiguousEventError` if more resets are needed than 12 guards that
        commute take, and `SystemDefinitionError` if a mode has no edge for a guard alone, or two
        resets report impulses of different numbers of contacts.
    """
    by_name = sorted(guards)

    def list_waiting(key: ModeKey, order: tuple[str, ...]) -> tuple[str, ...]:
        """Return the guards of the event that a mode has and that have not fired, by name."""
        names = system.outgoing(key).guards.names
        return tuple(name for name in by_name if name in names and name not in order)

    def fire(reached: FiringOrder, name: str) -> FiringOrder:
        """Return where one more guard leads by its single edge."""
        x = reached.jump.state
        edge = get_single_edge(system, reached.mode, name)
        key, jump = edge.jump(t, x, u)
        if jump.guards is not None:
            # The last reset names the guards that took part in it alone. None stands for all guards
            # that have fired (`EventOutcome.from_jump`).
            jump = replace(jump, guards=None)
        order = (*reached.order, name)
        impulses = add_impulses(reached.impulses, np.asarray(jump.impulses), order, t)
        resets = (*reached.resets, (edge.reset, JumpPoint(t, x, u, jump.report)))
        return FiringOrder(order, key, jump, impulses, list_waiting(key, order), resets)

    start = FiringOrder((), source, Jump(x), np.zeros(0), list_waiting(source, ()))
    agree = partial(_lead_to_one_state, system)
    return explore_orders(start, lambda reached: reached.waiting, fire, agree, t)


def explore_orders(
    start: S,
    list_waiting: Callable[[S], Sequence[G]],
    fire: Callable[[S, G], S],
    agree: Callable[[S, S], bool],
    t: float,
) -> Iterator[S]:
    """Return what guards lead to that fire one after the other, in all orders that matter.

    Where orders of the same guards agree, all of them are returned but only the first goes on.

    Args:
        start: What is there before the first guard fires.
        list_waiting: Returns the guards that may fire next; they are tried in this order.
        fire: Returns where a guard leads.
        agree: Returns whether two orders of the same guards lead to the same.
        t: Event time for messages, s.

    Returns:
        An iterator, depth first: each result comes before those that it leads to. On iteration it
        raises `AmbiguousEventError` if that takes more resets than 12 guards that commute.
    """
    # For each set of guards that have fired: the different results to which its orders have led.
    known: dict[frozenset[G], list[S]] = {}
    resets = count(1)

    def explore(reached: S, done: frozenset[G]) -> Iterator[S]:
        """Yield a result, and those that it leads to unless they are known.

        Raises:
            AmbiguousEventError: The limit of resets is exceeded.
        """
        yield reached
        same = known.setdefault(done, [])
        if any(agree(reached, other) for other in same):
            return  # what follows would be what has followed the other order
        same.append(reached)
        for guard in list_waiting(reached):
            if next(resets) > _MAX_RESETS:
                raise AmbiguousEventError(
                    f"{len(list_waiting(start))} guards fire together at t = {t:.9g} s, and "
                    f"{_MAX_RESETS} resets do not tell whether their order matters: give them a "
                    "transition of their own"
                )
            yield from explore(fire(reached, guard), done | {guard})

    return explore(start, frozenset())


def add_impulses(before: Array, own: Array, order: tuple[str, ...], t: float) -> Array:
    """Return the impulses that resets add up to which are applied one after the other.

    A reset that reports none has given none: it counts as zero for every contact.

    Args:
        before: Sum (n,) over the resets before, N s; empty if none of them reported any.
        own: Impulses (n,) of the last reset, N s; empty if it reports none.
        order: Guards that have fired, the last of them last.
        t: Event time, s.

    Raises:
        SystemDefinitionError: If both report impulses, but not of equally many contacts.
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


def get_single_edge(system: HybridSystem, key: ModeKey, guard: str) -> Edge:
    """Return the edge behind one guard of a mode.

    Args:
        system: The system.
        key: Key of the mode.
        guard: Name of the guard.

    Raises:
        SystemDefinitionError: If there is none.
    """
    edge = system.outgoing(key).edge((guard,))
    if edge is None:
        raise SystemDefinitionError(f"mode {key!r} has no edge for guard {guard!r} alone")
    return edge


def find_consistent_mode(
    system: HybridSystem,
    key: ModeKey,
    calc_point: Callable[[ModeModel], Point],
    tolerance: float | None = None,
) -> Point:
    """Return the point of the mode that goes on: the first one in a chain that selects itself.

    Args:
        system: The system.
        key: Key of the mode that is asked first. Each mode names the one that is asked next.
        calc_point: Returns the point of a mode. Its input may depend on the mode.
        tolerance: See `select_mode`.

    Raises:
        NoContactSolutionError: If none of eight modes selects itself; it names them.
    """
    tried: list[ModeKey] = []
    for _ in range(_MAX_SELECTIONS):
        point = calc_point(system.mode(key))
        following = select_mode(point, tolerance)
        if following == key:
            return point
        tried.append(key)
        key = following
    raise NoContactSolutionError(
        f"no mode is consistent at t = {point.t:.9g} s under u = {point.u.tolist()}: tried "
        f"{tried}, then {key!r}; x = {point.x.tolist()}"
    )


def select_mode(point: Point, tolerance: float | None = None) -> ModeKey:
    """Return the key of the mode that a point's mode selects to go on there.

    Args:
        point: The point.
        tolerance: For a mode that has flowed up to the point: it goes on where all its guards are
            above this, relative to their scales. That is the same solution, and no other is looked
            for. If None, the mode has just been entered, and always selects.
    """
    mode = point.mode
    if not mode.selects:
        return mode.key
    if tolerance is not None and (point.guards > tolerance * mode.guard_scales).all():
        return mode.key
    return point.selected_mode


def _lead_to_one_state(system: HybridSystem, one: FiringOrder, other: FiringOrder) -> bool:
    """Return whether two orders lead to the same mode and state."""
    same_mode = one.mode == other.mode
    return same_mode and is_same_state(system, one.mode, one.jump.state, other.jump.state)


def is_same_state(
    system: HybridSystem,
    key: ModeKey,
    x: Array,
    y: Array,
    tolerance: float = SAME_STATE_TOLERANCE,
) -> bool:
    """Return whether two arrays of coordinates are one state, to a tolerance.

    A quaternion and its negative are one rotation.

    Args:
        system: The system.
        key: Key of a mode, whose space tells states apart. States of another size than its own
            are compared coordinate by coordinate.
        x: Coordinates of one state (nx,).
        y: Coordinates of the other state.
        tolerance: Difference of each coordinate that is none, relative to it or absolute.
    """
    if x.shape != y.shape:
        return False
    space = system.mode(key).space
    if len(x) == space.nx:
        # The same state as y, in coordinates close to those of x.
        y = space.integrate(x, space.difference(x, y))
    return np.allclose(y, x, rtol=tolerance, atol=tolerance)


def make_ambiguity_error(
    event: str,
    orders: tuple[tuple[str, ...], tuple[str, ...]],
    modes: tuple[ModeKey, ModeKey],
    states: tuple[Array, Array],
    advice: str,
    *,
    at_once: bool = False,
) -> AmbiguousEventError:
    """Return the error of an event whose outcome depends on the order of its guards.

    Args:
        event: The event in words.
        orders: Two orders of its guards that lead to different modes or states.
        modes: Keys of the modes that they lead to.
        states: The states that they lead to.
        advice: End of the message: what to do about it.
        at_once: Whether in the second outcome all guards have fired at once, without an order.
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
