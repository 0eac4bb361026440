"""What happens where guards fire: the reset of their joint edge, or those of all in sequence.

What follows from a sequence must not depend on the order. All n! orders are compared at once on the
sets S of guards that have fired: each has the outcomes of S without j, followed by j, for every j
in S. Where resets commute, that is one outcome for each of 2^n sets, and n 2^(n-1) resets. Then
modes select the one that goes on, until one selects itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import AmbiguousEventError, NoContactSolutionError
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
    return _Orders(system, source, guards, t, u).compared(Jump(x))


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
class _OrderOutcome:
    """Where an order of some of the guards leads."""

    order: tuple[str, ...]
    mode: ModeKey
    jump: Jump

    def is_same(self, other: _OrderOutcome) -> bool:
        state, others = self.jump.state, other.jump.state
        return (
            self.mode == other.mode
            and state.shape == others.shape
            and np.allclose(state, others, rtol=SAME_STATE, atol=SAME_STATE)
        )


class _Orders:
    """The orders of simultaneous guards at one instant, under one input."""

    def __init__(
        self, system: HybridSystem, source: ModeKey, guards: tuple[str, ...], t: float, u: Array
    ) -> None:
        self._system, self._source, self._guards = system, source, guards
        self._time, self._input, self._resets = t, u, 0

    def compared(self, start: Jump) -> tuple[ModeKey, Jump]:
        """Mode and jump after all guards, once all orders have been seen to agree."""
        level = {frozenset[str](): [_OrderOutcome((), self._source, start)]}
        for _ in self._guards:
            following: dict[frozenset[str], list[_OrderOutcome]] = {}
            for fired, outcomes in level.items():
                for outcome in outcomes:
                    for after in self._next(outcome):
                        self._add(following.setdefault(fired | {after.order[-1]}, []), after)
            level = following
        first = level[frozenset(self._guards)][0]
        return first.mode, first.jump

    def _next(self, outcome: _OrderOutcome) -> Iterator[_OrderOutcome]:
        return (self._fire(outcome, g) for g in self._guards if g not in outcome.order)

    def _add(self, known: list[_OrderOutcome], new: _OrderOutcome) -> None:
        """Keep an outcome of the same guards that differs, unless it ends differently too."""
        if any(new.is_same(other) for other in known):
            return
        if known:
            first, second = self._completed(known[0]), self._completed(new)
            if not first.is_same(second):
                raise self._ambiguous(first, second)
        known.append(new)

    def _completed(self, outcome: _OrderOutcome) -> _OrderOutcome:
        for name in self._guards:
            if name not in outcome.order:
                outcome = self._fire(outcome, name)
        return outcome

    def _fire(self, outcome: _OrderOutcome, name: str) -> _OrderOutcome:
        order, earlier = (*outcome.order, name), outcome.jump.impulses
        edge = self._system.outgoing(outcome.mode).edge((name,))
        if edge is None:
            return replace(outcome, order=order)
        if self._resets == _MOST_RESETS:
            raise self._undecided()
        self._resets += 1
        key, jump = edge.jump(self._time, outcome.jump.state, self._input)
        if len(earlier) == len(jump.impulses):
            jump = replace(jump, impulses=earlier + jump.impulses)
        return _OrderOutcome(order, key, jump)

    def _ambiguous(self, first: _OrderOutcome, second: _OrderOutcome) -> AmbiguousEventError:
        return AmbiguousEventError(
            f"guards {self._guards} of mode {self._source!r} fired together at t = "
            f"{self._time:.9g} s, and their order matters: {first.order} leads to "
            f"{first.mode!r}, {second.order} to {second.mode!r}, and the states differ by up to "
            f"{_apart(first, second)}; give this event a transition of its own",
            orders=(first.order, second.order),
            modes=(first.mode, second.mode),
            states=(first.jump.state, second.jump.state),
        )

    def _undecided(self) -> AmbiguousEventError:
        return AmbiguousEventError(
            f"{len(self._guards)} guards of mode {self._source!r} fired together at t = "
            f"{self._time:.9g} s, and {_MOST_RESETS} resets do not tell whether their order "
            "matters: give them a transition of their own"
        )


def _apart(first: _OrderOutcome, second: _OrderOutcome) -> str:
    """The largest difference of two states, in words where their sizes differ."""
    state, others = first.jump.state, second.jump.state
    if state.shape != others.shape:
        return f"their dimension ({len(state)} and {len(others)})"
    return f"{np.abs(state - others).max(initial=0.0):.3g}"
