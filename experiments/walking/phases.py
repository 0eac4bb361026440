r"""Policies that choose at which phase of its step the walker is, instead of going by the clock.

- `PhaseReset`: the step began when its foot touched down.
- `LeastValueTracking`: the phase at which the value function of the feedback is least,

  .. math:: \tau^* = \arg\min_\tau (\alpha_k(\tau) - x)^T V(\tau) (\alpha_k(\tau) - x),

  on the extended arc with the walker's event count, at samples. Being early or late then costs
  nothing, so that no torque is spent on it. A foot that should have landed 20 ms ago, as on a step
  down, is no longer waited for: the reference goes on with the next arc, which stretches the
  landing leg where the extended one goes on swinging it back. With a `ConeModel`, the feedforward
  of each sample is moved as little as brings the force on the standing foot and the impulse on one
  about to land into their friction cones, and the torques into the limits of the motors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from hybridctl.experiments.walking.cone import ConeModel, nearest
from hybridctl.experiments.walking.walk import STANCES

from hybridctl.checks import Array
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.laws import tracking_law
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.control.reference import Reference
from hybridctl.hybrid.laws import DifferentiableLaw, InputLaw
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.trajectory import Arc, Event

_PHASES = 96  # of a step that are compared
_REFINED = 3  # steps of Gauss and Newton between them
_PATIENCE = 0.02  # s, how long a foot that should have landed is waited for


@dataclass(frozen=True, eq=False)
class PhaseReset:
    """The reference of the present step, begun anew when the foot touched down.

    limits (2, 4): the least and the greatest torques, N m.
    """

    reference: Reference
    gains: GainSchedule
    limits: Array

    def law(self, history: History) -> InputLaw:
        """Feedforward and feedback at the time that has gone by since the touchdown."""
        touched = touchdowns(history)
        k = min(len(touched), len(self.reference.arcs) - 1)
        late = touched[-1].time - self.reference.events[k - 1].time if k else 0.0
        return later(self.reference.arcs[k], self.gains.arcs[k], late, self.limits)


class ValueFunction(NamedTuple):
    """V (n, ndx, ndx) at phases (n,) of a step, s, seen from the left and from the right foot."""

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


class LeastValueTracking:
    """The reference at the phase of least value, chosen every `sample` seconds.

    limits (2, 4): the least and the greatest torques, N m. cone: what the feet allow, or None.
    period: of a step, s; step k of the reference begins at k times this.
    """

    def __init__(
        self,
        reference: Reference,
        gains: GainSchedule,
        values: ValueFunction,
        limits: Array,
        *,
        period: float,
        sample: float,
        cone: ConeModel | None = None,
    ) -> None:
        self._reference, self._gains, self._limits = reference, gains, limits
        self._values, self._period = values, period
        self._step = float(values.phases[1] - values.phases[0])
        self._sample, self._cone = sample, cone
        self._grids: dict[int, tuple[Array, Array, Array]] = {}

    def law(self, history: History) -> InputLaw:
        """Feedforward and feedback at the phase of least value."""
        last = len(self._reference.arcs) - 1
        k = min(len(touchdowns(history)), last)
        time = self._nearest_time(k, history.state)
        if time > (k + 1) * self._period + _PATIENCE:
            k = min(k + 1, last)
        arc, gain, late = self._reference.arcs[k], self._gains.arcs[k], history.time - time
        law = later(arc, gain, late, self._limits)
        if self._cone is None or history.mode not in STANCES:
            return law
        wanted = law(history.time, history.state)
        rows = self._cone(history.mode, history.state, wanted)
        allowed = nearest(wanted, *rows, self._limits[1, 0])
        if allowed is wanted:
            return law
        inputs = arc.inputs.copy()
        inputs[:, 0] += allowed - wanted  # of Chebyshev's polynomials the first is 1
        return later(replace(arc, inputs=inputs), gain, late, self._limits)

    def next_change(self, history: History) -> float:
        """The time of the next sample, s."""
        return history.time + self._sample

    def _nearest_time(self, k: int, x: Array) -> float:
        """The time of the reference, on its arc k, that is nearest to x in value."""
        times, states, values = self._grid(k)
        off = states - x
        i = int(np.einsum("ni,nij,nj->n", off, values, off).argmin())
        arc, time, near = self._reference.arcs[k], float(times[i]), values[i]
        for _ in range(_REFINED):
            along = near @ arc.state_rate(time)
            time += float(along @ (x - arc(time)) / (along @ arc.state_rate(time)))
            time = min(max(time, times[i] - self._step), times[i] + self._step, arc.end)
            time = max(time, arc.start)
        return time

    def _grid(self, k: int) -> tuple[Array, Array, Array]:
        if k not in self._grids:
            arc, times = self._reference.arcs[k], k * self._period + self._values.phases
            known = (times >= arc.start) & (times <= arc.end)
            values = self._values.right if k % 2 else self._values.left
            self._grids[k] = times[known], arc(times[known]), values[known]
        return self._grids[k]


def touchdowns(history: History) -> Sequence[Event]:
    """The events of guards so far."""
    return [event for event in history.events if event.guards]


def later(arc: Arc, gain: GainCurve, late: float, limits: Array) -> DifferentiableLaw:
    """The tracking law of an arc that is followed `late` seconds later."""
    moved = replace(arc, start=arc.start + late, end=arc.end + late, breaks=arc.breaks + late)
    return tracking_law(moved, replace(gain, times=gain.times + late), limits)
