r"""Probabilities that guards have fired, or are still to fire, to first order.

A guard with the value g at the mean of an estimate is positive with the probability

.. math:: \Phi(g / s), \qquad s^2 = g_x P g_x^T + \sigma_g^2.

Of two guards that fall, the difference of their zero crossing times tells which one fires first.
Guards that depend on the input are forces, and have no part in this. All probabilities are natural
logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtri

from hybridctl.base.checks import Array
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.kalman_equations import Innovation
from hybridctl.estimation.measurement import LinearizedResidual
from hybridctl.estimation.mode_consistency import find_rising_guards
from hybridctl.estimation.noisy_system import NoisySystem, compute_guard_rates, find_input_guards
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.model import Point
from hybridctl.hybrid.trajectory import Event

MIN_LOG_PROBABILITY = float(np.log(1e-4))
"""Logarithm of the least probability of a hypothesis that splits off from another. A choice."""
MIN_NOTED_PROBABILITY = 0.01
"""Probability of an order of events from which on a note says that it is not followed. A choice."""
AMBIGUOUS_SAMPLE = "may lie on another side of a sample than"
"""Part of the note of an event that may lie beyond a sample. `FilterResult` counts these."""
_MIN_NOTED_LOG_PROBABILITY = float(np.log(MIN_NOTED_PROBABILITY))
_NOTED_DEVIATIONS_SQUARED = float(ndtri(MIN_NOTED_PROBABILITY)) ** 2
"""Square of the standard deviations beyond which there is less than that probability."""
_REACHABLE_DEVIATIONS_SQUARED = float(ndtri(np.exp(MIN_LOG_PROBABILITY))) ** 2
"""The same for `MIN_LOG_PROBABILITY`."""
_MIN_VARIANCE = 1e-300
"""Variance that stands for that of a guard without variance, to divide by its root."""
_GRADIENT_UNCERTAINTY = 1e-2
"""Change of a guard's gradient that a truncation leaves open, relative to the gradient.

Just after an event the estimate knows its guard to 1e-3 of what it knows of each coordinate. A
value that turns a block by 0.01 rad then moves the guard by more than that deviation, by its
curvature. Without this `test_an_impact_that_the_prediction_has_not_reached_is_recognised_at_once`
finds the right mode in 5 of 12 cases, not in 12."""
_MAX_LOG_TO_COMPLEMENT = -1e-3
"""Logarithm of a probability above which its complement counts as 1e-3: see `log_complement`."""


def log_complement(log_probability: float) -> float:
    """Return the logarithm of the probability of the complement, which is at least 0.001.

    Args:
        log_probability: Logarithm of a probability.
    """
    return float(np.log1p(-np.exp(min(log_probability, _MAX_LOG_TO_COMPLEMENT))))


def _guard_variances(model: NoisySystem, point: Point, covariance: Array) -> Array:
    """Return the variances (n,) of the guards of a mode at the mean of an estimate."""
    d = point.guard_jacobian.state
    offsets = model.guard_noise.variances_of(point.mode.guard_names)
    return np.asarray(((d @ covariance) * d).sum(axis=1) + offsets)


def _indices_of(point: Point, guards: Sequence[str]) -> list[int]:
    return [point.mode.guard_names.index(name) for name in guards]


def log_probability_positive(
    model: NoisySystem, e: Estimate, guards: Sequence[str], law: InputLaw
) -> float:
    """Return the sum of the log-probabilities that each of some guards is positive.

    Args:
        model: The system and its noise.
        e: The estimate.
        guards: Names of guards of its mode.
        law: Input law.
    """
    point = model.evaluate_at(e, law)
    rows = _indices_of(point, guards)
    variances = _guard_variances(model, point, e.covariance)[rows]
    deviations = np.sqrt(np.maximum(variances, _MIN_VARIANCE))
    return float(log_ndtr(point.guards[rows] / deviations).sum())


class Truncation(NamedTuple):
    r"""A guard that is known to be positive, to first order about an estimate.

    The estimate alone is :math:`N(x; m, P)`, and the guard with its noise is
    :math:`g + g_x (x \boxminus m) + e > 0`, with :math:`e \sim N(0, \sigma_g^2)`.

    Attributes:
        value: The guard g at the mean m.
        gradient: Its derivative :math:`g_x` (ndx,).
        variance: :math:`g_x P g_x^T + \sigma_g^2`, in the square of the guard's unit, or what the
            guard's curvature leaves open where that is more.
    """

    value: float
    gradient: Array
    variance: float

    def log_evidence(
        self, covariance: Array, found: LinearizedResidual, innovation: Innovation
    ) -> float:
        r"""Return what the truncation adds to the log-likelihood of a value.

        That is :math:`\log P(g > 0 \mid y) - \log P(g > 0)`. A value y with the residual r, of
        covariance S, and the guard have the covariance :math:`c = H P g_x^T`:

        .. math:: g \mid y \sim N(g + c^T S^{-1} r,\; s^2 - c^T S^{-1} c).

        Both probabilities are of the same half-space, so that :math:`N(r; 0, S)` times their ratio
        integrates to one over y. It is nowhere above the peak of
        :math:`N(\cdot;\, S - c c^T / s^2)`.

        Args:
            covariance: P (ndx, ndx), of the estimate before the value.
            found: Residual of the value, its derivative H (k, ndx), and its noise.
            innovation: Innovation of the value, which the gate has accepted.
        """
        shared = found.jacobian @ (covariance @ self.gradient)
        weights = np.linalg.solve(innovation.covariance, shared)
        left = self.variance - float(weights @ shared)
        if not left > 0.0:
            # The value determines the guard to the last digit, or the guard has no variance: which
            # side of it the state is on was known before.
            return 0.0
        value = self.value + float(weights @ found.residual)
        ratio = float(log_ndtr(value / np.sqrt(left)) - log_ndtr(self.value / self.deviation))
        # Far in the tail the ratio is the difference of two large numbers; its bound is not.
        peak = 0.5 * (innovation.nis + np.log(self.variance / left))
        return min(ratio, float(peak))

    @property
    def deviation(self) -> float:
        """The standard deviation of the guard, in its unit."""
        return float(np.sqrt(self.variance))


def find_truncation(
    model: NoisySystem, e: Estimate, unfired: Sequence[str], fired: Sequence[str], law: InputLaw
) -> Truncation | None:
    """Return the guard that truncates an estimate the most.

    Of several guards only one is taken, as the probability that a normal distribution has all of
    them positive has no closed form. The product of the probabilities of each is another number,
    with which the likelihood of a value would not integrate to one.

    Args:
        model: The system and its noise.
        e: The estimate before a value.
        unfired: Guards of its mode that are still positive.
        fired: Guards of the last event. One that rises from zero since is positive; a state at
            which it is negative is one whose event is still to come.
        law: The input.

    Returns:
        The truncation. None without a guard, and if the guard with the least g / deviation has no
        variance: then no value changes what is known of its sign.
    """
    if not unfired and not fired:
        return None
    point = model.evaluate_at(e, law)
    rows = [*_indices_of(point, unfired), *find_rising_guards(point, fired)]
    if not rows:
        return None
    variances = _guard_variances(model, point, e.covariance)[rows]
    g = point.guards[rows]
    deviations = np.sqrt(np.maximum(variances, _MIN_VARIANCE))
    k = int((g / deviations).argmin())
    if not variances[k] > 0.0:
        return None
    gradient = point.guard_jacobian.state[rows[k]]
    curvature = _GRADIENT_UNCERTAINTY**2 * float(gradient**2 @ np.diag(e.covariance))
    return Truncation(float(g[k]), gradient, max(float(variances[k]), curvature))


def note_ambiguous_event(
    model: NoisySystem, e: Estimate, event: Event, samples: Sequence[float], law: InputLaw
) -> tuple[str, ...]:
    """Return a note if more than 1 % of the belief has an event on the other side of a sample.

    The standard deviation of the event time is that of the guard over the guard's rate.

    Args:
        model: The system and its noise.
        e: The estimate just before the event.
        event: The event.
        samples: Times of the samples around it, s.
        law: Input law.
    """
    point = model.evaluate_at(e, law)
    if not can_split_belief(point, event):
        return ()
    rows, rates = _indices_of(point, event.guards), compute_guard_rates(point)
    variances = _guard_variances(model, point, e.covariance)
    near = min(abs(event.time - t) for t in samples) ** 2
    if not (near * rates[rows] ** 2 < _NOTED_DEVIATIONS_SQUARED * variances[rows]).any():
        return ()
    return (
        f"{event.guards} {AMBIGUOUS_SAMPLE} at {event.time:.6g} s: one order alone is followed",
    )


def note_overtaking_guards(
    model: NoisySystem, e: Estimate, event: Event, law: InputLaw
) -> tuple[str, ...]:
    """Return a note for each guard that may, with more than 1 %, have fired before an event.

    Args:
        model: The system and its noise.
        e: The estimate just before the event.
        event: The event.
        law: Input law.
    """
    if not can_split_belief(model.evaluate_at(e, law), event):
        return ()
    return tuple(
        f"{name!r} may have fired before {event.guards} at {event.time:.6g} s with a probability "
        f"of {np.exp(log_p):.2g}: that order is not followed"
        for name, log_p in find_overtaking_guards(model, e, event.guards, law)
        if log_p > _MIN_NOTED_LOG_PROBABILITY
    )


def are_positive_at_mean(
    model: NoisySystem, e: Estimate, guards: Sequence[str], law: InputLaw
) -> bool:
    """Return whether guards are positive at the mean of an estimate.

    Args:
        model: The system and its noise.
        e: The estimate.
        guards: Names of guards of its mode.
        law: Input law.
    """
    point = model.evaluate_at(e, law)
    return bool((point.guards[_indices_of(point, guards)] > 0.0).all())


def can_split_belief(point: Point, event: Event) -> bool:
    """Return whether an event is one of guards of the mode none of which depends on the input.

    Args:
        point: The mode before the event, at the state before it.
        event: The event. Rest at an accumulation of events does not split the belief.
    """
    if event.accumulation is not None or not set(event.guards) <= set(point.mode.guard_names):
        return False
    return not find_input_guards(point)[_indices_of(point, event.guards)].any()


def find_guards_within_reach(
    model: NoisySystem, e: Estimate, law: InputLaw
) -> list[tuple[str, float]]:
    """Return guards that may have fired before the mean reaches them, with log-probabilities.

    Args:
        model: The system and its noise.
        e: The estimate.
        law: Input law.
    """
    point = model.evaluate_at(e, law)
    names = point.mode.guard_names
    if not names:
        return []
    g, variances = point.guards, _guard_variances(model, point, e.covariance)
    near = (g * g < _REACHABLE_DEVIATIONS_SQUARED * variances) & (g > 0.0)
    if not near.any():
        return []
    soon = g < -model.rewind * compute_guard_rates(point)
    rows = np.flatnonzero(near & soon & ~find_input_guards(point))
    return [(names[k], float(log_ndtr(-g[k] / np.sqrt(variances[k])))) for k in rows]


def find_overtaking_guards(
    model: NoisySystem, e: Estimate, fired: Sequence[str], law: InputLaw
) -> list[tuple[str, float]]:
    """Return guards that may have fired before those of an event, with log-probabilities.

    Args:
        model: The system and its noise.
        e: The estimate just before the event.
        fired: Guards of the event.
        law: Input law.
    """
    point = model.evaluate_at(e, law)
    names, g, d = point.mode.guard_names, point.guards, point.guard_jacobian.state
    rates = compute_guard_rates(point)
    falling = (rates < 0.0) & (g > 0.0) & (g < -model.rewind * rates)
    falling &= ~find_input_guards(point)
    first, found = names.index(fired[0]), list[tuple[str, float]]()
    for k in np.flatnonzero(falling):
        if names[k] not in fired and rates[first] < 0.0:
            row = d[k] / rates[k] - d[first] / rates[first]
            variance = float(row @ e.covariance @ row)
            offsets = ((names[i], rates[i]) for i in (k, first))
            variance += sum(model.guard_noise.variance_of(n) / rate**2 for n, rate in offsets)
            lead = g[k] / rates[k] / np.sqrt(max(variance, _MIN_VARIANCE))
            found.append((names[k], float(log_ndtr(lead))))
    return found
