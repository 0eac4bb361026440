r"""A law that tracks the reference at the walker's own phase spends no input on being late.

`PhaseReset` (`hybridctl.control.phase_reset`) begins the reference anew at each touchdown.
`LeastValueTracking` chooses the phase by
the value function of the feedback,

.. math:: \tau^* = \arg\min_\tau (\alpha_k(\tau) - x)^T V_k(\tau) (\alpha_k(\tau) - x)

on the extended arc k of as many events as the state has had, at samples. Both wait for an overdue
event no longer than a patience: then the reference goes on with the next arc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hybridctl import GainSchedule, Reference
from hybridctl.base.checks import Array, check_callable, check_instance, check_number
from hybridctl.base.errors import InputError
from hybridctl.base.spaces import VectorSpace
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.control.phase_reset import ShiftedLaw, make_tracking_laws
from hybridctl.control.spreading import PositionTracker
from hybridctl.control.tracking_law import make_schedule, resolve_limits
from hybridctl.hybrid import History
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey

Value: TypeAlias = Callable[[int, float], Array]
"""Returns V (ndx, ndx) of an arc and a time on it, s, also where the arc is extended."""
Correction: TypeAlias = Callable[[ModeKey, Array, Array], Array]
"""Returns the allowed input (nu,) for a mode, a state (nx,) and a wanted input (nu,)."""
_GRID_TIMES = 96
"""Times of an arc, or of a step, at which values are tabulated. The value is a choice."""
_REFINEMENTS = 3
"""Gauss-Newton steps between two times of the grid. The value is a choice."""


class ValueFunction(NamedTuple):
    """The value function of a step of the walker.

    Attributes:
        phases: Times since the touchdown (n,), evenly spaced, s.
        left: V (n, ndx, ndx) of a step on the left foot.
        right: V (n, ndx, ndx) of a step on the right foot.
    """

    phases: Array
    left: Array
    right: Array

    @staticmethod
    def of(lqr: PeriodicLqr, period: float, reach: float) -> ValueFunction:
        """Return the value function of a feedback on a step.

        Args:
            lqr: Feedback from mid-step to mid-step, with the exchange of legs as its symmetry.
            period: Duration of a step, s.
            reach: Time before and after the step for which V is held constant, s.
        """
        first, second = lqr.period.values  # left foot from mid-step on; right foot up to mid-step
        assert lqr.symmetry is not None
        exchange = lqr.symmetry.matrix
        phases = np.linspace(-reach, period + reach, _GRID_TIMES)
        left = np.array([
            first(s) if s >= 0.5 * period else exchange.T @ second(period + s) @ exchange
            for s in np.clip(phases, 0.0, period).tolist()
        ])  # fmt: skip
        return ValueFunction(phases, left, exchange.T @ left @ exchange)

    def evaluate(self, step: int, phase: float) -> Array:
        """Return V (ndx, ndx) at a phase (s) of a step, by linear interpolation."""
        values, width = self.right if step % 2 else self.left, self.phases[1] - self.phases[0]
        place = min(max((phase - self.phases[0]) / width, 0.0), len(values) - 1.0)
        i = min(int(place), len(values) - 2)
        return np.asarray(values[i] + (place - i) * (values[i + 1] - values[i]))


class _Grid(NamedTuple):
    r"""The value of an arc on a grid of times.

    The value of x = centre + y is :math:`y^T V y - l^T y` plus a constant: one product for all
    times, with y y^T in a row.

    Attributes:
        times: Times (n), s.
        states: States (n, nx).
        rates: Their rates (n, nx).
        values: V (n, nx, nx).
        centre: Mean of the states (nx,).
        squares: V in rows (n, nx^2).
        linear: Coefficients l (n, nx).
        constants: Constants (n,).
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
    def build(times: list[float], states: Array, rates: Array, values: Array) -> _Grid:
        """Return the grid with the coefficients that `find_nearest` needs."""
        centre = states.mean(axis=0)
        off = (states - centre)[:, :, None]
        weighed = values @ off
        linear = (weighed + values.transpose(0, 2, 1) @ off)[:, :, 0]
        constants = (off * weighed).sum(axis=(1, 2))
        squares = values.reshape(len(times), -1)
        return _Grid(times, states, rates, values, centre, squares, linear, constants)

    def find_nearest(self, x: Array) -> int:
        """Return the index of the time of least value of a state x (nx,)."""
        y = x - self.centre
        values = self.squares @ np.outer(y, y).ravel() - self.linear @ y + self.constants
        return int(values.argmin())


class LeastValueTracking:
    """A policy that tracks the reference at the phase of least value, chosen at samples.

    The position among the events is kept between calls, so one object serves one run at a time.

    Args:
        reference: Reference in a vector space.
        gains: A `GainSchedule`, or one K (nu, ndx) for each arc.
        value: Value function.
        limits: Limits of the inputs, see `ReferenceSpreading`.
        sample: Time between two choices of the phase, s.
        patience: Time for which an overdue event is waited for, s.
        correction: Makes a wanted input an allowed one; the difference is added until the next
            sample. None for no correction.

    Raises:
        InputError: Arguments do not fit, or the reference is on another manifold.
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
        self._laws = make_tracking_laws(reference, self.gains)
        check_callable("value", value)
        self._value, self._correction = value, correction
        self._sample = check_number("sample", sample, above=0.0)
        self._patience = check_number("patience", patience, at_least=0.0)
        self._grids: dict[int, _Grid] = {}
        self._tracker = PositionTracker(self.reference)

    def law(self, history: History) -> InputLaw:
        """Return feedforward and feedback at the phase of least value, without derivatives."""
        k = self._tracker.locate(history.events).macro
        time = self.find_phase(k, history.state)
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
        """Return the time of the next sample, s."""
        return history.time + self._sample

    def find_phase(self, k: int, x: Array) -> float:
        """Return the time (s) on arc k of the reference that has the least value of x (nx,)."""
        grid, arc = self._get_grid(k), self.reference.arcs[k]
        i = grid.find_nearest(x)
        time, near, state, rate = grid.times[i], grid.values[i], grid.states[i], grid.rates[i]
        step = grid.times[1] - grid.times[0]
        least, most = max(time - step, arc.start), min(time + step, arc.end)
        for n in range(_REFINEMENTS):
            if n:
                state, rate = arc.state_and_rate(time)
            along = near @ rate
            time = min(max(time + float(along @ (x - state) / (along @ rate)), least), most)
        return time

    def _get_grid(self, k: int) -> _Grid:
        """Return the grid of arc k, which is made once."""
        if k not in self._grids:
            arc = self.reference.arcs[k]
            times = np.linspace(arc.start, arc.end, _GRID_TIMES).tolist()
            states, rates = map(np.array, zip(*map(arc.state_and_rate, times), strict=True))
            values = np.array([self._value(k, time) for time in times])
            self._grids[k] = _Grid.build(times, states, rates, values)
        return self._grids[k]
