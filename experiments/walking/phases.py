"""The phase of its step that the walker is at: by its last touchdown, or by the value function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from hybridctl.experiments.walking.shifted_law import ShiftedLaw

from hybridctl.base.checks import Array
from hybridctl.control.gains import GainSchedule
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.control.reference import Reference
from hybridctl.control.tracking_law import TrackingLaw
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.trajectory import Event

_PHASES = 96  # of a step


@dataclass(frozen=True, eq=False)
class PhaseReset:
    """The reference of the present step, begun anew when the foot touched down.

    limits (2, 4): the least and the greatest torques, N m. patience: how long a touchdown that is
    due is waited for, s, before the reference goes on with the next step.
    """

    reference: Reference
    gains: GainSchedule
    limits: Array
    patience: float

    def law(self, history: History) -> InputLaw:
        """Feedforward and feedback at the time since the touchdown, so without derivatives."""
        k, late, overdue = self._place(history)
        k += history.time >= overdue
        return ShiftedLaw(self._laws[k], self.limits, late)

    def next_change(self, history: History) -> float:
        """The time at which a touchdown is overdue, s."""
        _, _, overdue = self._place(history)
        return overdue if history.time < overdue else math.inf

    @cached_property
    def _laws(self) -> list[TrackingLaw]:
        pairs = zip(self.reference.arcs, self.gains.arcs, strict=True)
        return [TrackingLaw(arc, gain, None, is_tabulated=True) for arc, gain in pairs]

    def _place(self, history: History) -> tuple[int, float, float]:
        """The number of the step, how late it is, and when its end is overdue, s."""
        touched, planned = touchdowns(history), self.reference.events
        k = min(len(touched), len(planned))
        late = touched[k - 1].time - planned[k - 1].time if k else 0.0
        overdue = planned[k].time + late + self.patience if k < len(planned) else math.inf
        return k, late, overdue


class ValueFunction(NamedTuple):
    """The value V (n, ndx, ndx) at phases (n,) of a step, s, seen from the left and right foot."""

    phases: Array
    left: Array
    right: Array

    @staticmethod
    def of(lqr: PeriodicLqr, period: float, reach: float) -> ValueFunction:
        """The value function on a step and `reach` s beyond it, where V is held."""
        first, second = lqr.period.values  # left foot from mid-step on; right foot up to mid-step
        assert lqr.symmetry is not None
        other = lqr.symmetry.matrix
        phases = np.linspace(-reach, period + reach, _PHASES)
        left = []
        for s in np.clip(phases, 0.0, period).tolist():
            now = first(s) if s >= 0.5 * period else other.T @ second(period + s) @ other
            left.append(now)
        return ValueFunction(phases, np.array(left), other.T @ np.array(left) @ other)

    def at(self, step: int, phase: float) -> Array:
        """The value V (ndx, ndx) at a phase, s, of a step."""
        values, width = self.right if step % 2 else self.left, self.phases[1] - self.phases[0]
        place = min(max((phase - self.phases[0]) / width, 0.0), len(values) - 1.0)
        i = min(int(place), len(values) - 2)
        return np.asarray(values[i] + (place - i) * (values[i + 1] - values[i]))


def touchdowns(history: History) -> Sequence[Event]:
    """The events of guards so far."""
    return [event for event in history.events if event.guards]
