r"""A signal that tells whether a contact is closed, as evidence of the mode.

The signal comes at a known time, and that is the time of the event for all states that the estimate
stands for: the jump is that of the reset, :math:`P^+ = D_x R\, P\, (D_x R)^T`, and no saltation
matrix, which is for events whose time depends on the state. An uncertain guard g + w = 0,
:math:`w \sim N(0, s)`, has been measured by the signal, so its noise is not added once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.estimation.correct import correct
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import ImplicitMeasurement, LinearizedResidual
from hybridctl.estimation.model import Model, guard_rates
from hybridctl.estimation.predict import StatePrediction, fired, identity
from hybridctl.estimation.reconcile import condition
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeModel


@dataclass(frozen=True)
class ContactSignal:
    """A channel with one value, such as a contact force in N, with hysteresis.

    At `on` or more the contact is closed: a mode that still has the guard `closes` is left through
    it, after g = 0 was measured with the guard's own noise s, which takes the mean to s / (p + s)
    of its value of g, p the variance of that. A guard that does not fall there is not crossed. At
    `off` or less it is open: a mode that has the guard `opens` is left through that. Between the
    two nothing follows, so a signal that chatters there does not. What could not be followed leaves
    the estimate as it was, with a note. closes, opens: None where nothing follows; they may also
    name edges of no guard, of events that the signal alone tells of.
    """

    channel: str
    on: float
    off: float
    closes: str | None
    opens: str | None

    def __post_init__(self) -> None:
        if not check_number("off", self.off) < check_number("on", self.on):
            raise InputError(f"off must be below on, got off = {self.off}, on = {self.on}")

    def applied(
        self, model: Model, estimate: Estimate, value: Array, law: InputLaw
    ) -> StatePrediction:
        """The estimate in the mode that the signal asks for, at the same time."""
        if value.shape != (1,):
            raise InputError(f"a row of {self.channel!r} must have one value, got {value.shape}")
        ways = model.system.outgoing(estimate.mode)
        closes, opens = (
            guard if guard is not None and ways.edge((guard,)) is not None else None
            for guard in (self.closes, self.opens)
        )
        if value[0] >= self.on and closes is not None:
            if closes not in ways.guards.names:
                return _followed(model, estimate, estimate, closes, law)
            e = _measured(model, estimate, closes, law)
            if guard_rates(model.at(e, law))[ways.guards.names.index(closes)] < 0.0:
                return _followed(model, estimate, e, closes, law)
            note = f"{self.channel!r} is on, but {closes!r} recedes"
            return StatePrediction(estimate, notes=(note,))
        if value[0] <= self.off and opens is not None:
            return _followed(model, estimate, estimate, opens, law)
        return StatePrediction(estimate)


def _measured(model: Model, e: Estimate, guard: str, law: InputLaw) -> Estimate:
    """The estimate given g = 0, to the variance of the guard's own noise."""
    variance = model.guard_noise.of(guard)
    if variance == 0.0:
        return condition(model, e, guard, law)
    row = model.system.outgoing(e.mode).guards.names.index(guard)

    def compare(mode: ModeModel, t: float, x: Array, u: Array, z: Array) -> LinearizedResidual:
        point = mode.calc(t, x, u)
        slope, noise = point.guard_jacobian.state[[row]], np.array([[variance]])
        return LinearizedResidual(-point.guards[[row]], slope, noise)

    mode, u = model.system.mode(e.mode), law(e.time, e.mean)
    found = correct(ImplicitMeasurement(guard, compare), mode, e, np.zeros(1), u)
    assert found is not None
    return found[0]


def _followed(
    model: Model, before: Estimate, e: Estimate, guard: str, law: InputLaw
) -> StatePrediction:
    """The estimate after the event of a guard at e, at its time; `before` where there is none.

    Its transition is that of the event, where e is the estimate before.
    """
    start = StatePrediction(e, transition=identity(len(e.covariance)) if e is before else None)
    try:
        return fired(model.signal_model, start, (guard,), e.mean, law)
    except SimulationError as error:
        return StatePrediction(before, notes=(f"the contact signal was not followed: {error}",))
