r"""Tracking policies: reference spreading, and the conventional error beside it.

Both apply u = mu(t) + K (alpha(t) - x), with the difference taken in the tangent space at x.
([RS] (5.30) prints the error with the opposite sign.) They differ in which arc of the reference
is compared with the state, and so in what happens while reference and state disagree on
whether an event is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, array
from hybridctl.control.reference import Reference
from hybridctl.errors import InputError, ReferenceRangeError
from hybridctl.hybrid.mode import InputLaw, ModeKey
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.trajectory import Arc, Event


@dataclass(frozen=True)
class Position:
    """Where a trajectory stands in its reference: macro events done, and what is under way.

    `fired` are the guards of the macro event under way that have fired already, `micro` the
    number of events it has had so far ([RS] 4.1.1).
    """

    macro: int
    micro: int
    fired: frozenset[str]


def locate(reference: Reference, events: Sequence[Event]) -> Position:
    """Macro and micro event count after `events`, [RS] (4.1).

    A macro event is over when each of its guards has fired. Firing is counted, not the mode: a
    contact that is hit has jumped to its phantom arc even if it opens again at once, and an
    unplanned release is no event of the reference.
    """
    macro, micro, fired = 0, 0, frozenset[str]()
    for event in events:
        if macro == len(reference.events):
            break
        expected = frozenset(reference.events[macro].guards)
        micro, fired = micro + 1, fired | (expected & set(event.guards))
        if fired == expected:
            macro, micro, fired = macro + 1, 0, frozenset()
    return Position(macro, micro, fired)


def followed(reference: Reference, position: Position) -> Arc:
    """The extended or phantom arc at a position."""
    if position.fired:
        return reference.phantoms[position.macro, position.fired].arc
    return reference.arcs[position.macro]


class ReferenceSpreading:
    """Tracking of the extended arc with the same event count as the state, [RS] 3.1.2, 4.1.2.

    gains: one matrix K (nu, ndx) per arc of the reference.
    phantom_gains: K by mode for the phantom arcs; a mode left out holds its feedback off, so
    that only the feedforward acts until the simultaneous event is complete.

    A state that leaves an arc before or after the interval on which it is extended raises
    `ReferenceRangeError` at its next event; until then the end of the arc is held.
    """

    def __init__(
        self,
        reference: Reference,
        gains: Sequence[ArrayLike],
        phantom_gains: Mapping[ModeKey, ArrayLike] | None = None,
    ) -> None:
        self.reference = reference
        self.gains = _checked_gains(reference, gains)
        self.phantom_gains: dict[ModeKey, Array] = {}
        for mode, gain in (phantom_gains or {}).items():
            arcs = [p.arc for p in reference.phantoms.values() if p.mode == mode]
            if not arcs:
                known = sorted({str(p.mode) for p in reference.phantoms.values()})
                raise InputError(f"phantom_gains: no phantom arc in mode {mode!r}, only {known}")
            self.phantom_gains[mode] = _checked_gain(f"phantom_gains[{mode!r}]", gain, arcs[0])

    def law(self, history: History) -> InputLaw:
        """Feedforward and feedback on the arc that `history` calls for."""
        position = locate(self.reference, history.events)
        arc = followed(self.reference, position)
        if history.events and not arc.start <= history.time <= arc.end:
            raise ReferenceRangeError(
                f"event at t = {history.time:.6g} s enters mode {history.mode!r}, whose reference "
                f"is extended over [{arc.start:.6g}, {arc.end:.6g}] s only; extend it further"
            )
        if not position.fired:
            return _track(arc, self.gains[position.macro])
        gain = self.phantom_gains.get(arc.mode)
        return _feedforward(arc) if gain is None else _track(arc, gain)


class ClockTracking:
    """Tracking of the nominal reference at the same time, whatever the events of the state.

    This is the conventional error, which peaks while reference and state are on different sides
    of an event. `gains` has one K (nu, ndx) per arc, switched when the reference has its event.
    """

    def __init__(self, reference: Reference, gains: Sequence[ArrayLike]) -> None:
        self.reference = reference
        self.gains = _checked_gains(reference, gains)

    def law(self, history: History) -> InputLaw:
        """The same law on every arc; it jumps with the reference."""
        arcs = self.reference.nominal.arcs
        laws = [_track(arc, gain) for arc, gain in zip(arcs, self.gains, strict=True)]
        ends = np.array([arc.end for arc in arcs[:-1]])
        return lambda t, x: laws[int(ends.searchsorted(t, "right"))](t, x)


def _track(arc: Arc, gain: Array) -> InputLaw:
    difference = arc.space.difference

    def law(t: float, x: Array) -> Array:
        alpha, mu = arc.state_and_input(t)
        u: Array = mu + gain @ difference(x, alpha)
        return u

    return law


def _feedforward(arc: Arc) -> InputLaw:
    return lambda t, x: arc.input(t)


def _checked_gains(reference: Reference, gains: Sequence[ArrayLike]) -> tuple[Array, ...]:
    if len(gains) != len(reference.arcs):
        raise InputError(
            f"gains must have one matrix per arc ({len(reference.arcs)}), got {len(gains)}"
        )
    return tuple(
        _checked_gain(f"gains[{i}]", gain, arc)
        for i, (gain, arc) in enumerate(zip(gains, reference.arcs, strict=True))
    )


def _checked_gain(name: str, gain: ArrayLike, arc: Arc) -> Array:
    return array(name, gain, (arc.inputs.shape[2], arc.space.ndx))
