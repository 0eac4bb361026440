"""What happens where guards fire: the reset of their joint edge, or those of all in sequence.

What follows from a sequence must not depend on the order. All n! orders are compared at once on the
sets S of guards that have fired: each has the outcomes of S without j, followed by j, for every j
in S. Where resets commute, that is one outcome for each of 2^n sets, and n 2^(n-1) resets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import AmbiguousEventError, SystemDefinitionError
from hybridctl.hybrid.mode import Jump, ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE

_MOST_RESETS = 32_768  # enough for 12 guards that commute: 12 * 2^11 of them


def landing(target: ModeKey | None, jump: Jump) -> tuple[ModeKey, Jump]:
    """The mode after a reset, which the edge names or else the reset itself, and its jump."""
    key = target if jump.mode is None else jump.mode
    if key is None:
        raise SystemDefinitionError("a reset without a target mode must return one in its Jump")
    return key, jump


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
        return landing(edge.target, edge.reset(t, x, u))
    return _Orders(system, source, guards, t, u).compared(Jump(x))


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
        reset = edge.reset(self._time, outcome.jump.state, self._input)
        key, jump = landing(edge.target, reset)
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
