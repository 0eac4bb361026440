"""The state of a filter, and the rules by which it changes.

A filter is a function from one frozen `FilterState` and a value to the next state, so a loop over
samples and a run over a record do the same. The state has hypotheses of how the motion came about,
and what the gate rejected. `FilterRules` has all that stays the same from sample to sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from hybridctl.base.checks import Array, is_finite, quote
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.estimate import Estimate, Mixture
from hybridctl.estimation.kalman_equations import (
    Innovation,
    Linearize,
    StatePrediction,
    correct,
    identity_map,
)
from hybridctl.estimation.measurement import AnyMeasurement, LinearizedResidual
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import Event


class Reconciliation(NamedTuple):
    """Events that a corrected estimate has passed at the same time, see `mode_consistency`.

    Attributes:
        mean: Mean (nx,) after the correction, before the events.
        covariance: Covariance (ndx, ndx) there.
        matrix: First-order map (ndx+, ndx) of the events, None if there is none.
    """

    mean: Array
    covariance: Array
    matrix: Array | None


class GuardSide(NamedTuple):
    """A guard that is positive if a hypothesis is right, to first order about its estimate.

    Attributes:
        value: The guard at the mean of the estimate after a value.
        gradient: Its derivative (ndx,) there.
        noise: Variance of the guard's offset, in the square of its unit.
    """

    value: float
    gradient: Array
    noise: float

    def moments(self, way: Array, p: Array) -> tuple[float, float]:
        """Return mean and standard deviation of the guard, in its unit.

        Args:
            way: Mean (ndx,) of the state in the tangent space at the mean of the estimate.
            p: Covariance (ndx, ndx) of the state there.
        """
        variance = float(self.gradient @ p @ self.gradient) + self.noise
        return float(self.value + self.gradient @ way), float(np.sqrt(max(variance, 0.0)))

    def log_probability(self, way: Array, p: Array) -> float:
        """Return the logarithm of the probability that the guard is positive.

        Args:
            way: Mean (ndx,) of the state in the tangent space at the mean of the estimate.
            p: Covariance (ndx, ndx) of the state there.

        Returns:
            The logarithm. Zero if the guard has no variance: its side is then no matter of
            probability.
        """
        g, s = self.moments(way, p)
        return float(log_ndtr(g / s)) if s > 0.0 else 0.0


class Hypothesis(NamedTuple):
    """One order of modes and events, and its estimate.

    Attributes:
        estimate: The estimate, given this order.
        log_weight: Logarithm of its weight among all hypotheses, without `side`.
        side: Logarithm of the probability that it is on its side of guards: before its `pending`
            guards, or before those by which another hypothesis split off.
        pending: Guards that have not fired in this hypothesis, whatever their values at the mean.
        parent: Index of the hypothesis after the last value from which it comes.
        predicted: Estimate before the value of this sample; None before a value.
        transition: First-order map (ndx+, ndx) from the parent to `predicted`; None if it was
            piecewise linear.
        events: Events since the last value.
        notes: Notes since the last value on what was replaced by something less exact.
        reconciliation: Events that the value has revealed; None without any.
        innovation: Innovation of the value. None without a value, and if the value contains nothing
            about the mode of this hypothesis.
        undone: Time in s from which on events of the past did not happen in this hypothesis; None
            if all did.
        passed: Guards that have not fired in this hypothesis, but in others that have split off
            from it at this value.
        fired: Guards of its last event.
        merged: Hypotheses that agreed with it after this value. Their weights are part of its own;
            a smoother goes back along each.
        dropped: Probability, after this value, of hypotheses that were dropped because others were
            likelier. One whose correction failed is not counted, as it has no density of the value.
        sides: Guards at which the estimate is truncated in a mixture, because other hypotheses are
            on their other side. Empty where there is one hypothesis.
        begun: Time at which the prediction to this sample began, s: that of the values before, or
            of the start. -inf where it is not known, after a restart: then no disturbance is
            looked for.
    """

    estimate: Estimate
    log_weight: float = 0.0
    side: float = 0.0
    pending: tuple[str, ...] = ()
    parent: int = 0
    predicted: Estimate | None = None
    transition: Array | None = None
    events: tuple[Event, ...] = ()
    notes: tuple[str, ...] = ()
    reconciliation: Reconciliation | None = None
    innovation: Innovation | None = None
    undone: float | None = None
    passed: tuple[str, ...] = ()
    fired: tuple[str, ...] = ()
    merged: tuple[Hypothesis, ...] = ()
    dropped: float = 0.0
    sides: tuple[GuardSide, ...] = ()
    begun: float = -np.inf

    @property
    def weight(self) -> float:
        """Logarithm of the weight, with the probability of its side of the guards."""
        return self.log_weight + self.side


@dataclass(frozen=True, eq=False)
class Beginning:
    """How a filter restarts where the mode is wrong.

    Attributes:
        mode: A mode without contact.
        covariance: Covariance (ndx, ndx) of its state before anything is known. Standard deviations
            of velocities should be wide.
    """

    mode: ModeKey
    covariance: Array


class Rejections(NamedTuple):
    """Rejected values by channel: what speaks against the estimate.

    Attributes:
        rejected: Number of values in a row that the gate has rejected. It starts again from zero
            after `patience` of them.
        unsure: Channels of which a value was believed instead of the estimate, and of which the
            gate has not accepted `patience` values in a row since, with the number that it has. A
            rejected value sets this number to zero.
    """

    rejected: Mapping[str, int] = {}
    unsure: Mapping[str, int] = {}

    def count_accepted(self, channel: str, patience: int) -> Rejections:
        """Return the counts after a value that the gate has accepted.

        Args:
            channel: Its channel.
            patience: Number of values after which a channel is no longer `unsure`.
        """
        if channel not in self.rejected and channel not in self.unsure:
            return self
        unsure = dict(self.unsure)
        if channel in unsure:
            unsure[channel] += 1
            if unsure[channel] >= patience:
                del unsure[channel]
        return Rejections(_leave_out(self.rejected, channel), unsure)

    def count_rejected(self, channel: str, patience: int) -> Rejections:
        """Return the counts after a value that the gate has rejected.

        Args:
            channel: Its channel.
            patience: Number of values after which the count starts again.
        """
        count = (self.rejected.get(channel, 0) + 1) % patience
        unsure = {**self.unsure, channel: 0} if channel in self.unsure else self.unsure
        return Rejections({**self.rejected, channel: count}, unsure)

    def count_believed(self, channel: str) -> Rejections:
        """Return the counts after a value that was believed instead of the estimate.

        Args:
            channel: Its channel.
        """
        return Rejections(_leave_out(self.rejected, channel), {**self.unsure, channel: 0})


def _leave_out(counts: Mapping[str, int], channel: str) -> Mapping[str, int]:
    return {name: n for name, n in counts.items() if name != channel}


Input = ArrayLike | InputLaw | None
"""A constant input (nu,), a function u(t, x), or None for zero."""


class InputPiece(NamedTuple):
    """The input up to a time.

    Attributes:
        end: That time, s.
        input: The input.
    """

    end: float
    input: Input


class Row(NamedTuple):
    """A value of a channel, the estimate after it, and the input at its time."""

    estimate: Estimate
    channel: str
    value: Array
    input: Input


class FilterState(NamedTuple):
    """All that a filter keeps; `predict` and `update` of the filter make the next one of it.

    Properties are those of the likeliest hypothesis, except `mixture`.

    Attributes:
        time: Time, s.
        hypotheses: The hypotheses, the likeliest first.
        beginning: How to restart, see `recovery`.
        channel: Channel of the value that came last; None after a prediction.
        reopened: Whether a value that the gate rejected was believed, see `recovery`. Its
            innovation is that before, and counts as rejected.
        rejections: Rejected values by channel.
        rows: The last values of each channel, for a restart.
        inputs: The inputs since the first of these.
        several: Moments of all hypotheses; None where there is one.
    """

    time: float
    hypotheses: tuple[Hypothesis, ...]
    beginning: Beginning
    channel: str | None = None
    reopened: bool = False
    rejections: Rejections = Rejections()
    rows: Mapping[str, tuple[Row, ...]] = {}
    inputs: tuple[InputPiece, ...] = ()
    several: Mixture | None = None

    def check_finite(self) -> FilterState:
        """Return this state.

        Raises:
            SimulationError: A mean or covariance is not finite.
        """
        for hypothesis in self.hypotheses:
            e = hypothesis.estimate
            if not (is_finite(e.mean) and is_finite(e.covariance)):
                raise SimulationError(
                    f"the estimate at t = {e.time:.6g} s is not finite, its mean is "
                    f"{quote(e.mean)}: are times, noise levels and units right?"
                )
        return self

    @property
    def is_after_value(self) -> bool:
        """Whether the last step was a value: what follows then begins a new sample."""
        return self.channel is not None

    @property
    def estimate(self) -> Estimate:
        """The estimate of the likeliest hypothesis."""
        return self.hypotheses[0].estimate

    @property
    def mixture(self) -> Mixture:
        """Mean and covariance of all hypotheses together, and the probabilities of modes."""
        return Mixture.of(self.estimate) if self.several is None else self.several

    @property
    def predicted(self) -> Estimate:
        """The estimate before the last value."""
        best = self.hypotheses[0]
        return best.estimate if best.predicted is None else best.predicted

    @property
    def innovation(self) -> Innovation | None:
        """The innovation of the last value, None if it was missing or a contact signal."""
        return self.hypotheses[0].innovation

    @property
    def events(self) -> tuple[Event, ...]:
        """The events since the value before the last; after a prediction, since the last value."""
        return self.hypotheses[0].events

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what was replaced by something less exact, over the time of `events`."""
        return self.hypotheses[0].notes

    @property
    def transition(self) -> Array | None:
        """The first-order map of the prediction, None if it was piecewise linear."""
        return self.hypotheses[0].transition

    @property
    def undone(self) -> bool:
        """Whether the last value has shown that earlier events did not happen."""
        best = self.hypotheses[0]
        return best.undone is not None or best.parent != 0


def begin_sample(hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Return hypotheses after a value as those that the next sample begins with.

    Args:
        hypotheses: The hypotheses, each of which is the parent of its successor.
    """
    return tuple([_begin_hypothesis(h, k) for k, h in enumerate(hypotheses)])


def _begin_hypothesis(h: Hypothesis, parent: int) -> Hypothesis:
    return Hypothesis(
        estimate=h.estimate,
        log_weight=h.log_weight,
        side=h.side,
        pending=h.pending,
        parent=parent,
        predicted=None,
        transition=identity_map(len(h.estimate.covariance)),
        fired=h.fired,
        begun=h.begun,
    )


Corrected = tuple[Estimate, Innovation]
Predict = Callable[[NoisySystem, Estimate, float, InputLaw], StatePrediction]


class MomentRule(NamedTuple):
    """How moments are predicted and a value is linearised: to first order, or by sigma points.

    Attributes:
        predict: Function such as `prediction.predict`.
        linearize: Function such as `kalman_equations.linearize_residual`.
    """

    predict: Predict
    linearize: Linearize


class HypothesisLimits(NamedTuple):
    """How many orders of events a filter follows, and from which probability on.

    Attributes:
        bound: Largest number of hypotheses.
        log_split: Logarithm of the least probability of a hypothesis that splits off from another.
        log_weight: Logarithm of the weight, relative to the likeliest, below which a hypothesis is
            dropped.
    """

    bound: int
    log_split: float
    log_weight: float


@dataclass(frozen=True, eq=False)
class FilterRules:
    """All that a filter is made of, and that does not change from sample to sample.

    Attributes:
        model: The system and its noise.
        moments: How moments are predicted and values are linearised.
        measurements: Measurements by channel.
        signals: Contact signals by channel.
        limits: How many hypotheses are followed.
        patience: Number of rejected values in a row after which `recovery` acts; None for never.
        beginning: How to restart; None for mode and covariance of the initial estimate.
    """

    model: NoisySystem
    moments: MomentRule
    measurements: Mapping[str, AnyMeasurement]
    signals: Mapping[str, ContactSignal]
    limits: HypothesisLimits
    patience: int | None
    beginning: Beginning | None

    @property
    def bound(self) -> int:
        """Largest number of hypotheses."""
        return self.limits.bound

    def start(self, estimate: Estimate) -> FilterState:
        """Return the state in which a run starts.

        Args:
            estimate: The initial estimate, which is not checked.
        """
        beginning = self.beginning or Beginning(estimate.mode, estimate.covariance)
        first = Hypothesis(estimate, begun=estimate.time)
        return FilterState(estimate.time, begin_sample([first]), beginning)

    def linearize_residual(
        self, e: Estimate, channel: str, value: Array, law: InputLaw
    ) -> LinearizedResidual | None:
        """Return the residual of a value, linearised at an estimate.

        Args:
            e: Estimate before the value.
            channel: Name of the measurement.
            value: The value (m,). Components that are NaN are missing.
            law: Input law, which is evaluated at the estimate.

        Returns:
            The residual with its Jacobian and covariance, None if the value is missing or contains
            nothing about the estimate's mode.
        """
        mode, u = self.model.system.mode(e.mode), law(e.time, e.mean)
        return self.moments.linearize(self.measurements[channel], mode, e, value, u)

    def correct_by_residual(
        self, e: Estimate, channel: str, found: LinearizedResidual
    ) -> Corrected:
        """Return the estimate after a value with a given residual, and the innovation.

        Args:
            e: Estimate before the value. It stays as it is if the gate rejects the value.
            channel: Name of the measurement.
            found: The residual of the value with its Jacobian and covariance.
        """
        mode = self.model.system.mode(e.mode)
        return correct(self.measurements[channel], mode, e, found)

    def correct_estimate(
        self, e: Estimate, channel: str, value: Array, law: InputLaw
    ) -> Corrected | None:
        """Return the estimate after a value, and the innovation; None if the value is missing.

        Args:
            e: Estimate before the value. It stays as it is if the gate rejects the value.
            channel: Name of the measurement.
            value: The value (m,). Components that are NaN are missing.
            law: Input law, which is evaluated at the estimate.
        """
        found = self.linearize_residual(e, channel, value, law)
        return None if found is None else self.correct_by_residual(e, channel, found)
