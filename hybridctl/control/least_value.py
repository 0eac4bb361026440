r"""Tracking at the phase of least value of the feedback, instead of that of the clock.

.. math:: \tau^* = \arg\min_\tau (\alpha_k(\tau) - x)^T V_k(\tau) (\alpha_k(\tau) - x)

on the extended arc k of as many events as the state has had, at samples. Being early or late then
costs nothing, so that no input is spent on it. An event that should have happened is waited for no
longer than a patience: the reference goes on with the next arc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, function, instance, number
from hybridctl.control.gains import GainSchedule
from hybridctl.control.laws import Tracking, checked_limits, scheduled
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import Follower
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History

Value = Callable[[int, float], Array]
Correction = Callable[[ModeKey, Array, Array], Array]
_COMPARED = 96  # times of an arc
_REFINED = 3  # steps of Gauss and Newton between them


class _Grid(NamedTuple):
    """States (n, nx), rates (n, nx) and values (n, ndx, ndx) at the times (n) of an arc, s."""

    times: list[float]
    states: Array
    rates: Array
    values: Array


class LeastValueTracking:
    """The reference at the phase of least value, chosen every `sample` seconds; see `least_value`.

    gains: a `GainSchedule`, or one K (nu, ndx) per arc. value: V (ndx, ndx) of an arc and a time on
    it, s, also where it is extended; on a vector space. limits: see `ReferenceSpreading`. patience:
    how long an event that is due is waited for, s. correction: makes of a mode, a state and a
    wanted input one that is allowed there; the difference is held until the next sample.
    """

    def __init__(
        self,
        reference: Reference,
        gains: GainSchedule | Sequence[ArrayLike],
        value: Value,
        *,
        limits: ArrayLike | None = None,
        sample: float = 0.02,
        patience: float = 0.02,
        correction: Correction | None = None,
    ) -> None:
        self.reference = instance("reference", reference, Reference)
        self.gains = scheduled(reference, gains)
        self.limits = checked_limits(reference, limits)
        function("value", value)
        self._value, self._correction = value, correction
        self._sample = number("sample", sample, above=0.0)
        self._patience = number("patience", patience, at_least=0.0)
        self._grids: dict[int, _Grid] = {}
        self._follower = Follower(self.reference)

    def law(self, history: History) -> InputLaw:
        """Feedforward and feedback at the phase of least value.

        The phase is chosen by the state at the sample, so that the law has no derivatives.
        """
        k = self._follower.position(history.events).macro
        time = self.phase(k, history.state)
        planned = self.reference.events
        if k < len(planned) and time > planned[k].time + self._patience:
            k += 1
        arc, gain, late = self.reference.arcs[k], self.gains.arcs[k], history.time - time
        law = Tracking(arc, gain, self.limits, late=late)
        if self._correction is None:
            return law
        wanted = law(history.time, history.state)
        allowed = self._correction(history.mode, history.state, wanted)
        if allowed is wanted:
            return law
        inputs = arc.inputs.copy()
        inputs[:, 0] += allowed - wanted  # of Chebyshev's polynomials the first is 1
        return replace(law, arc=replace(arc, inputs=inputs))

    def next_change(self, history: History) -> float:
        """The time of the next sample, s."""
        return history.time + self._sample

    def phase(self, k: int, x: Array) -> float:
        """The time of the reference, s, on its arc k, that is nearest to x in value."""
        grid, arc = self._grid(k), self.reference.arcs[k]
        off = grid.states - x
        i = int(((off[:, None] @ grid.values)[:, 0] * off).sum(axis=1).argmin())
        time, near, state, rate = grid.times[i], grid.values[i], grid.states[i], grid.rates[i]
        step = grid.times[1] - grid.times[0]
        least, most = max(time - step, arc.start), min(time + step, arc.end)
        for n in range(_REFINED):
            if n:
                state, rate = arc.state_and_rate(time)
            along = near @ rate
            time = min(max(time + float(along @ (x - state) / (along @ rate)), least), most)
        return time

    def _grid(self, k: int) -> _Grid:
        if k not in self._grids:
            arc = self.reference.arcs[k]
            times = np.linspace(arc.start, arc.end, _COMPARED).tolist()
            states, rates = map(np.array, zip(*map(arc.state_and_rate, times), strict=True))
            values = np.array([self._value(k, time) for time in times])
            self._grids[k] = _Grid(times, states, rates, values)
        return self._grids[k]
