"""What a filter knows at one time: hypotheses of how the motion came about, and what it rejected.

A filter is a function from one frozen `FilterState` and a value to the next one, so that a loop
over samples and a run over a record are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from hybridctl.base.checks import Array, is_finite, quote
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.correct import Innovation
from hybridctl.estimation.estimate import Estimate, Mixture
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import Event


class Reconciliation(NamedTuple):
    """A corrected estimate that was taken through events, at the same time, see `reconcile`.

    mean, covariance: before that. matrix (ndx+, ndx): the first-order map, or None.
    """

    mean: Array
    covariance: Array
    matrix: Array | None


class GuardSide(NamedTuple):
    """The side of a guard on which the state is, if a hypothesis is right: where it is positive.

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
    """One order of modes and events, and what it has become since the last value.

    log_weight: of all hypotheses that are kept; side: the part of it that is the probability of
    being before its `pending` guards, whatever their values at the mean, or before those by which
    another one has gone on. parent: the hypothesis after the last value from which it has come.
    predicted: before the value of this sample. transition (ndx+, ndx): the first-order map to
    that, None where it was piecewise linear. events, notes: since the last value. reconciliation:
    how events were passed that the value has brought about. innovation: None without a value.
    undone: events of the past from this time on are not those of this hypothesis. passed: guards
    that others, which have parted from it at this value, take to have fired. fired: those of its
    last event. merged: hypotheses that agreed with it after this value, with weights that are part
    of its own; a smoother goes back along each. dropped: the probability, after this value, of
    hypotheses that were dropped because others were likelier. sides: where others go on, with
    which the estimate is cut off in a mixture; none where there is one hypothesis.
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

    @property
    def weight(self) -> float:
        """Logarithm of the hypothesis' weight, that of the side of its event included."""
        return self.log_weight + self.side


@dataclass(frozen=True, eq=False)
class Beginning:
    """How to begin anew where the mode is wrong.

    mode: one without contact. covariance (ndx, ndx): of its state before anything is known; the
    deviations of velocities should be wide.
    """

    mode: ModeKey
    covariance: Array


class Rejections(NamedTuple):
    """What speaks against the estimate, channel by channel.

    rejected: values in a row, which begin anew after `patience` of them. unsure: channels that have
    not accepted `patience` values in a row since values were believed, with how many they have.
    """

    rejected: Mapping[str, int] = {}
    unsure: Mapping[str, int] = {}

    def accepting(self, channel: str, patience: int) -> Rejections:
        """The state after a value that the gate has taken."""
        if channel not in self.rejected and channel not in self.unsure:
            return self
        unsure = dict(self.unsure)
        if channel in unsure:
            unsure[channel] += 1
            if unsure[channel] >= patience:
                del unsure[channel]
        return Rejections(_without(self.rejected, channel), unsure)

    def rejecting(self, channel: str, patience: int) -> Rejections:
        """The state after a value that the gate has rejected."""
        count = (self.rejected.get(channel, 0) + 1) % patience
        unsure = {**self.unsure, channel: 0} if channel in self.unsure else self.unsure
        return Rejections({**self.rejected, channel: count}, unsure)

    def believing(self, channel: str) -> Rejections:
        """The state after a value that was believed rather than the estimate."""
        return Rejections(_without(self.rejected, channel), {**self.unsure, channel: 0})


def _without(counts: Mapping[str, int], channel: str) -> Mapping[str, int]:
    return {name: n for name, n in counts.items() if name != channel}


Input = ArrayLike | InputLaw | None


class InputPiece(NamedTuple):
    """The input until `end` in s: held (nu,), a function u(t, x), or None for zero."""

    end: float
    input: Input


class Row(NamedTuple):
    """A value of a channel, the estimate after it, and the input at its time."""

    estimate: Estimate
    channel: str
    value: Array
    input: Input


class FilterState(NamedTuple):
    """All that a filter keeps: `predict` and `update` make the next one of it.

    hypotheses: the most likely first; the properties are those of that one, but `mixture`, which is
    what they say together, and `several`, the same where there are several. channel: of the value
    that was the last thing to come, None after a prediction. reopened: whether a value that the
    gate rejected was taken, see `monitor`; its innovation is that before, and counts as rejected.
    rejections, rows, inputs, beginning: what a lost filter finds back with: see `monitor`, the last
    values of each channel, the inputs since the first of them, and how to begin anew.
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

    def finite(self) -> FilterState:
        """The same state; `SimulationError` where it has a mean or covariance that overflowed."""
        for hypothesis in self.hypotheses:
            e = hypothesis.estimate
            if not (is_finite(e.mean) and is_finite(e.covariance)):
                raise SimulationError(
                    f"the estimate at t = {e.time:.6g} s is not finite, its mean is "
                    f"{quote(e.mean)}: are times, noise levels and units right?"
                )
        return self

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
        """The innovation of the last value, None where it was missing or a signal of contact."""
        return self.hypotheses[0].innovation

    @property
    def events(self) -> tuple[Event, ...]:
        """The events since the value before the last; after a prediction, since the last."""
        return self.hypotheses[0].events

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on where a less exact method replaced the usual one, over the time of `events`."""
        return self.hypotheses[0].notes

    @property
    def transition(self) -> Array | None:
        """The first-order map of the prediction, None where it was piecewise linear."""
        return self.hypotheses[0].transition

    @property
    def undone(self) -> bool:
        """Whether the last value has taken back events that were taken to have happened."""
        best = self.hypotheses[0]
        return best.undone is not None or best.parent != 0
