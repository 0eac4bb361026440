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
from hybridctl.experiments.walking.shifted_law import ShiftedLaw
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_callable, check_instance, check_number
from hybridctl.base.errors import InputError
from hybridctl.base.spaces import VectorSpace
from hybridctl.control.gains import GainSchedule
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import PositionTracker
from hybridctl.control.tracking_law import TrackingLaw, make_schedule, resolve_limits
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History

Value = Callable[[int, float], Array]
Correction = Callable[[ModeKey, Array, Array], Array]
_COMPARED = 96  # times of an arc
_REFINED = 3  # steps of Gauss and Newton between them


class _Grid(NamedTuple):
    r"""States (n, nx), rates (n, nx) and values (n, nx, nx) at the times (n) of an arc, s.

    The value of x = centre + y is :math:`y^T V y - l^T y` and a constant, one product for all with
    y y^T in a row: squares (n, nx^2), linear (n, nx), constants (n,).
    """

    times: list[float]
    states: Array
    rates: Array
    values: Array
    centre: Array
    squares: Array
    linear: Array
    constants: Array

    @staticmethod
    def of(times: list[float], states: Array, rates: Array, values: Array) -> _Grid:
        """The grid, with what finds the least value on it."""
        centre = states.mean(axis=0)
        off = (states - centre)[:, :, None]
        weighed = values @ off
        linear = (weighed + values.transpose(0, 2, 1) @ off)[:, :, 0]
        constants = (off * weighed).sum(axis=(1, 2))
        squares = values.reshape(len(times), -1)
        return _Grid(times, states, rates, values, centre, squares, linear, constants)

    def nearest(self, x: Array) -> int:
        """The number of the state that is nearest to x in value."""
        y = x - self.centre
        values = self.squares @ np.outer(y, y).ravel() - self.linear @ y + self.constants
        return int(values.argmin())


class LeastValueTracking:
    """The reference at the phase of least value, chosen every `sample` seconds; see `least_value`.

    gains: a `GainSchedule`, or one K (nu, ndx) per arc. value: V (ndx, ndx) of an arc and a time on
    it, s, also where it is extended; on a vector space. limits: see `ReferenceSpreading`. patience:
    how long an event that is due is waited for, s. correction: makes of a mode, a state and a
    wanted input one that is allowed there; the difference is held until the next sample.

    Raises `InputError` for arguments that do not fit, and for a reference on another manifold.
    """

    follows = "phase"
    """The time along the reference is chosen by the state, see `ReferenceSpreading.follows`."""

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
        self.reference = check_instance("reference", reference, Reference)
        space = reference.arcs[0].space
        if not isinstance(space, VectorSpace):
            raise InputError(f"reference must be in a vector space, got one in {space!r}")
        self.gains = make_schedule(reference, gains)
        self.limits = resolve_limits(reference, limits)
        self._laws = [
            TrackingLaw(arc, gain, None, is_tabulated=True)
            for arc, gain in zip(reference.arcs, self.gains.arcs, strict=True)
        ]
        check_callable("value", value)
        self._value, self._correction = value, correction
        self._sample = check_number("sample", sample, above=0.0)
        self._patience = check_number("patience", patience, at_least=0.0)
        self._grids: dict[int, _Grid] = {}
        self._tracker = PositionTracker(self.reference)

    def law(self, history: History) -> InputLaw:
        """Feedforward and feedback at the phase of least value.

        The phase is chosen by the state at the sample, so that the law has no derivatives.
        """
        k = self._tracker.locate(history.events).macro
        time = self.phase(k, history.state)
        planned = self.reference.events
        if k < len(planned) and time > planned[k].time + self._patience:
            k += 1
        law = ShiftedLaw(self._laws[k], self.limits, history.time - time)
        if self._correction is None:
            return law
        wanted = law(history.time, history.state)
        allowed = self._correction(history.mode, history.state, wanted)
        return law if allowed is wanted else replace(law, added=allowed - wanted)

    def next_change(self, history: History) -> float:
        """The time of the next sample, s."""
        return history.time + self._sample

    def phase(self, k: int, x: Array) -> float:
        """The time of the reference, s, on its arc k, that is nearest to x in value."""
        grid, arc = self._grid(k), self.reference.arcs[k]
        i = grid.nearest(x)
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
            self._grids[k] = _Grid.of(times, states, rates, values)
        return self._grids[k]
