"""A signal that tells whether a contact is closed, as evidence of the mode."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hybridctl.checks import number
from hybridctl.errors import InputError, SimulationError
from hybridctl.estimation.admit import condition
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.model import Model
from hybridctl.estimation.predict import Prediction, after_event
from hybridctl.hybrid.mode import InputLaw


@dataclass(frozen=True)
class ContactSignal:
    """A channel with one value, such as a contact force in N, with hysteresis.

    At `on` or more the contact is closed: a mode that still has the guard `closes` is left through
    it, after the state was put on its surface (a measurement g = 0, with the guard's own noise).
    At `off` or less it is open: a mode that has the guard `opens` is left through that. Between
    the two nothing follows, so a signal that chatters there does not.
    """

    channel: str
    on: float
    off: float
    closes: str
    opens: str

    def __post_init__(self) -> None:
        if not number("off", self.off) < number("on", self.on):
            raise InputError(f"off must be below on, got off = {self.off}, on = {self.on}")

    def applied(self, model: Model, estimate: Estimate, value: float, law: InputLaw) -> Prediction:
        """The estimate in the mode that the signal asks for, at the same time."""
        names = model.system.outgoing(estimate.mode).guards.names
        now, variance = Prediction(estimate), 0.0
        if np.isfinite(value) and value >= self.on and self.closes in names:
            if model.guard_noise is not None:
                variance = model.guard_noise.of(self.closes)
            e = condition(model, estimate, self.closes, variance, law)
            _, rates = model.guard_rates(e.mode, e.time, e.mean, law(e.time, e.mean))
            if rates[names.index(self.closes)] < 0.0:
                return _fired(model, e, self.closes, law)
            return replace(now, notes=(f"{self.channel!r} is on, but {self.closes!r} recedes",))
        if np.isfinite(value) and value <= self.off and self.opens in names:
            return _fired(model, estimate, self.opens, law)
        return now


def _fired(model: Model, e: Estimate, guard: str, law: InputLaw) -> Prediction:
    try:
        event = model.fire(e.mode, (guard,), e.time, e.mean, law)
    except SimulationError as error:
        return Prediction(e, notes=(f"the contact signal was not followed: {error}",))
    return after_event(model, Prediction(e), event, e.covariance)
