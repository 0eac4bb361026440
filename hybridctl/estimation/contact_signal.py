r"""A signal that tells whether a contact is closed, as evidence of the mode.

The signal comes at a known time, which is the time of the event for all states of the belief. So
the covariance jumps by the Jacobian of the reset, :math:`P^+ = D_x R\, P\, (D_x R)^T`, and not by
the saltation matrix, which is for events whose time depends on the state. The signal measures an
uncertain guard g + w = 0, :math:`w \sim N(0, s)`, so the guard's noise is not added once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.kalman_equations import (
    StatePrediction,
    correct,
    fire_guards,
    identity_map,
)
from hybridctl.estimation.measurement import ImplicitMeasurement, LinearizedResidual
from hybridctl.estimation.mode_consistency import condition_on_guard
from hybridctl.estimation.noisy_system import NoisySystem, compute_guard_rates
from hybridctl.hybrid.laws import InputLaw


@dataclass(frozen=True)
class ContactSignal:
    """A channel with one value, such as a contact force in N, with hysteresis.

    At `on` or more the contact is closed: a mode that still has the guard `closes` is left through
    it, after g = 0 was measured with the variance s of the guard's own noise. That takes the value
    of g at the mean to s / (p + s) of what it was, with p its variance. A guard that does not fall
    there does not fire: the estimate stays, with a note. An edge without a guard is taken where the
    mean is.

    At `off` or less the contact is open: a mode that has the guard `opens` is left through that,
    where the mean is. Its rate is not asked for: the force of a contact at rest is constant, and
    what opens a contact does not move the state.

    Between the two nothing happens, so a signal that chatters there changes nothing; neither does a
    missing value (NaN). Where the event cannot be simulated, the estimate stays, with a note.

    Attributes:
        channel: Name of the channel.
        on: Value from which on the contact is closed.
        off: Value up to which the contact is open, below `on`.
        closes: Guard, or edge without a guard, by which a mode is left when the contact closes;
            None if no mode is left. Modes that do not have it are not left.
        opens: Guard or edge by which a mode is left when the contact opens, or None.

    Raises:
        InputError: `off` is not below `on`.
    """

    channel: str
    on: float
    off: float
    closes: str | None
    opens: str | None

    def __post_init__(self) -> None:
        if not check_number("off", self.off) < check_number("on", self.on):
            raise InputError(f"off must be below on, got off = {self.off}, on = {self.on}")

    def change_mode(
        self, model: NoisySystem, estimate: Estimate, value: Array, law: InputLaw
    ) -> StatePrediction:
        """Return the estimate at the same time in the mode that a value of the signal shows.

        Args:
            model: The system and its noise.
            estimate: Estimate before the value.
            value: The value (1,).
            law: Input law.

        Returns:
            The estimate with the event, if there is one, and notes. `transition` is the first-order
            map of the event at its fixed time. It is None without an event, where nothing has to
            be mapped; and where the guard was measured before the event, because the measurement
            changes the estimate, so that no linear map alone leads from the one before to the one
            after. A smoother does not pass back through such a sample.

        Raises:
            InputError: The value has another size.
        """
        if value.shape != (1,):
            raise InputError(f"a row of {self.channel!r} must have one value, got {value.shape}")
        ways = model.system.outgoing(estimate.mode)
        closes, opens = (
            guard if guard is not None and ways.edge((guard,)) is not None else None
            for guard in (self.closes, self.opens)
        )
        if value[0] >= self.on and closes is not None:
            if closes not in ways.guards.names:
                return _fire_signalled_guard(model, estimate, estimate, closes, law)
            e = _measure_guard(model, estimate, closes, law)
            rates = compute_guard_rates(model.evaluate_at(e, law))
            if rates[ways.guards.names.index(closes)] < 0.0:
                return _fire_signalled_guard(model, estimate, e, closes, law)
            note = f"{self.channel!r} is on, but {closes!r} recedes"
            return StatePrediction(estimate, notes=(note,))
        if value[0] <= self.off and opens is not None:
            return _fire_signalled_guard(model, estimate, estimate, opens, law)
        return StatePrediction(estimate)


def _measure_guard(model: NoisySystem, e: Estimate, guard: str, law: InputLaw) -> Estimate:
    """Return the estimate given g = 0, measured with the variance of the guard's own noise.

    Without such noise g is zero exactly, and there is no gate.

    Args:
        model: The system and its noise.
        e: The estimate.
        guard: A guard of its mode.
        law: Input law.
    """
    variance = model.guard_noise.variance_of(guard)
    if variance == 0.0:
        return condition_on_guard(model, e, guard, law)
    row = model.system.outgoing(e.mode).guards.names.index(guard)
    mode, point = model.system.mode(e.mode), model.evaluate_at(e, law)
    slope, noise = point.guard_jacobian.state[[row]], np.array([[variance]])
    found = LinearizedResidual(-point.guards[[row]], slope, noise)
    # With -g as the residual its prediction has the Jacobian +D_x g. The default gate rejects a
    # guard that is far from zero: then the estimate stays as it is, and the guard fires from there.
    return correct(ImplicitMeasurement(guard, lambda *_: found), mode, e, found)[0]


def _fire_signalled_guard(
    model: NoisySystem, before: Estimate, e: Estimate, guard: str, law: InputLaw
) -> StatePrediction:
    """Return the estimate after the event of a guard, at its time.

    Args:
        model: The system and its noise.
        before: Estimate before the value, which is returned if the event cannot be simulated.
        e: The same after the guard was measured. If it is `before` itself, the first-order map of
            the prediction is that of the event; otherwise there is none.
        guard: The guard.
        law: Input law.

    Returns:
        The prediction after the event. If it cannot be simulated, `before` with a note.
    """
    matrix = identity_map(len(e.covariance)) if e is before else None
    start = StatePrediction(e, transition=matrix)
    try:
        return fire_guards(model.signal_model, start, (guard,), e.mean, law)
    except SimulationError as error:
        return StatePrediction(before, notes=(f"the contact signal was not followed: {error}",))
