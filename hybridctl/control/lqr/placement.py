r"""Where a period of an orbit lies when it is repeated: later, and seen through a symmetry.

An orbit that closes as :math:`S x(T) = x(0) + c` goes on with :math:`x(t + T) = S^{-1}(x(t) + c)`,
under the input :math:`W^{-1} u` and the gains :math:`W^{-1} K S`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hybridctl.checks import Array
from hybridctl.control.gains import GainCurve
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import Arc, Event, HybridTrajectory
from hybridctl.sensitivity.symmetry import Symmetry, seen_as


@dataclass(frozen=True, eq=False)
class Placement:
    """One of the periods of an orbit, `count` periods after the first.

    period: s. With a symmetry, states of the first period are A x + b here, inputs W u.
    """

    symmetry: Symmetry | None
    period: float
    shift: Array
    count: int
    matrix: Array
    offset: Array
    inputs: Array

    @staticmethod
    def first(once: HybridTrajectory, symmetry: Symmetry | None) -> Placement:
        """That of the orbit as it is."""
        arc, ndx, nu = once.arcs[0], once.arcs[0].space.ndx, once.arcs[0].inputs.shape[2]
        shift = np.zeros(ndx)
        if symmetry is not None:
            shift = symmetry.along(symmetry.matrix @ once.final_state - arc(arc.start))
        unit, none = np.eye(ndx), np.zeros(ndx)
        return Placement(symmetry, once.end - once.start, shift, 0, unit, none, np.eye(nu))

    def next(self) -> Placement:
        """That of the period after this one."""
        later = replace(self, count=self.count + 1)
        if self.symmetry is None:
            return later
        back = np.linalg.inv(self.symmetry.matrix)
        inputs = np.linalg.inv(self.symmetry.inputs(len(self.inputs))) @ self.inputs
        offset = back @ (self.offset + self.shift)
        return replace(later, matrix=back @ self.matrix, offset=offset, inputs=inputs)

    def arc(self, arc: Arc, index: int) -> Arc:
        """An arc of the first period, here."""
        shift = self.count * self.period
        start, end, breaks = arc.start + shift, arc.end + shift, arc.breaks + shift
        moved = replace(arc, index=index, start=start, end=end, breaks=breaks)
        if self.symmetry is None:
            return moved
        states = arc.states @ self.matrix.T
        states[:, 0] += self.offset
        inputs = arc.inputs @ self.inputs.T
        return replace(moved, mode=self._mode(arc.mode), states=states, inputs=inputs)

    def curve(self, curve: GainCurve) -> GainCurve:
        """Gains of the first period, here."""
        times = curve.times + self.count * self.period
        back = np.linalg.inv(self.matrix)

        def seen(gains: Array) -> Array:
            return np.asarray(self.inputs @ gains @ back)

        slopes = None if curve.slopes is None else seen(curve.slopes)
        return GainCurve(times, seen(curve.values), slopes)

    def event(self, event: Event, index: int) -> Event:
        """An event of the first period, here."""
        later = replace(event, index=index, time=event.time + self.count * self.period)
        if self.symmetry is None:
            return later
        return replace(
            later,
            mode_before=self._mode(event.mode_before),
            mode_after=self._mode(event.mode_after),
            guards=tuple(self._guard(name) for name in event.guards),
            state_before=self.matrix @ event.state_before + self.offset,
            state_after=self.matrix @ event.state_after + self.offset,
            input_before=self.inputs @ event.input_before,
            input_after=self.inputs @ event.input_after,
            input_rate=self.inputs @ event.input_rate,
            impulses=self._impulses(event.impulses),
        )

    def guards(self, fired: frozenset[str]) -> frozenset[str]:
        """What guards of the first period are called here."""
        return frozenset(map(self._guard, fired))

    @property
    def _exchanged(self) -> Symmetry | None:
        """The symmetry, in every other period: an exchange done twice changes no names."""
        return self.symmetry if self.count % 2 else None

    def _mode(self, key: ModeKey) -> ModeKey:
        return seen_as(self._exchanged, key)

    def _guard(self, name: str) -> str:
        return name if self._exchanged is None else self._exchanged.guard(name)

    def _impulses(self, impulses: Array) -> Array:
        if self._exchanged is None or self._exchanged.contacts is None:
            return impulses
        return np.asarray(impulses[list(self._exchanged.contacts)])
