r"""How probable it is that guards have fired, or are still to fire, to first order.

A guard with the value g at the mean of an estimate is positive with the probability

.. math:: \Phi(g / \sqrt{g_x P g_x^T + \sigma_g^2}),

and of two that fall, which one is zero first follows from the difference of their times. Guards
that see the input are forces, and have no part in this. All probabilities are logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtri

from hybridctl.base.checks import Array
from hybridctl.estimation.correct import Innovation
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import LinearizedResidual
from hybridctl.estimation.model import Model, guard_rates, sees_input
from hybridctl.estimation.reconcile import risen
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.model import Point
from hybridctl.hybrid.trajectory import Event

LEAST = np.log(1e-4)  # of the probability of a hypothesis that parts from another
DOUBT = 0.01  # of the probability of an order, which is said where it is not followed
ASTRIDE = "may lie on another side of a sample than"
_UNDECIDED = float(ndtri(DOUBT)) ** 2  # the same of `DOUBT`
_FARTHEST = float(ndtri(1e-4)) ** 2  # of a guard, in variances: that of `LEAST`
_TINY = 1e-300  # variance of a guard that is known
_TURN = 1e-2
"""Turn of a guard's gradient that a truncation leaves open, relative to the gradient.

Just after an event the estimate knows its guard to 1e-3 of what it knows of each coordinate. A
value that turns a block by 0.01 rad then moves the guard by more than that deviation, by its
curvature. Without this `test_an_impact_that_the_prediction_has_not_reached_is_recognised_at_once`
finds the right mode in 5 of 12 cases, not in 12."""


def contrary(chance: float) -> float:
    """Logarithm of the probability of the contrary, one in a thousand at least."""
    return float(np.log1p(-np.exp(min(chance, -1e-3))))


def _variances(model: Model, point: Point, covariance: Array) -> Array:
    """Variances (n,) of the guards at the mean of an estimate."""
    d = point.guard_jacobian.state
    offsets = model.guard_noise.of_all(point.mode.guard_names)
    return np.asarray(((d @ covariance) * d).sum(axis=1) + offsets)


def _rows(point: Point, guards: Sequence[str]) -> list[int]:
    return [point.mode.guard_names.index(name) for name in guards]


def _positive(model: Model, point: Point, covariance: Array, rows: list[int]) -> float:
    """Logarithm of the probability that these guards are positive."""
    deviations = np.sqrt(np.maximum(_variances(model, point, covariance)[rows], _TINY))
    return float(log_ndtr(point.guards[rows] / deviations).sum())


def chance_before(model: Model, e: Estimate, guards: Sequence[str], law: InputLaw) -> float:
    """Logarithm of the probability that guards of a mode are positive."""
    point = model.at(e, law)
    return _positive(model, point, e.covariance, _rows(point, guards))


class Truncation(NamedTuple):
    r"""A guard that an estimate, to first order, is known to have positive.

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

        That is :math:`\log P(g > 0 \mid y) - \log P(g > 0)`. Of a value y with the residual r, of
        covariance S, the guard has :math:`c = H P g_x^T` in common:

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
            # The value tells the guard to the last digit, or the guard has no variance: which side
            # of it the state is on was known before.
            return 0.0
        value = self.value + float(weights @ found.residual)
        ratio = float(log_ndtr(value / np.sqrt(left)) - log_ndtr(self.value / self.deviation))
        # Far in the tail the ratio is the difference of two large numbers; its bound is not.
        peak = 0.5 * (innovation.nis + np.log(self.variance / left))
        return min(ratio, float(peak))

    @property
    def deviation(self) -> float:
        """The standard deviation of the guard."""
        return float(np.sqrt(self.variance))


def find_truncation(
    model: Model, e: Estimate, unfired: Sequence[str], fired: Sequence[str], law: InputLaw
) -> Truncation | None:
    """Return the guard that cuts the most off an estimate, None without such a guard.

    None too where the guard with the least g / deviation has no variance: then no value changes
    what is known of its sign.

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
    """
    if not unfired and not fired:
        return None
    point = model.at(e, law)
    rows = [*_rows(point, unfired), *risen(point, fired)]
    if not rows:
        return None
    variances = _variances(model, point, e.covariance)[rows]
    g = point.guards[rows]
    deviations = np.sqrt(np.maximum(variances, _TINY))
    k = int((g / deviations).argmin())
    if not variances[k] > 0.0:
        return None
    gradient = point.guard_jacobian.state[rows[k]]
    curvature = _TURN**2 * float(gradient**2 @ np.diag(e.covariance))
    return Truncation(float(g[k]), gradient, max(float(variances[k]), curvature))


def astride(
    model: Model, e: Estimate, event: Event, samples: Sequence[float], law: InputLaw
) -> tuple[str, ...]:
    """A note of an event, e just before it, that parts of the belief have beyond a sample.

    Its time is known as well as its guard is, over the rate of that.
    """
    point = model.at(e, law)
    if not may_part(point, event):
        return ()
    rows, rates = _rows(point, event.guards), guard_rates(point)
    variances = _variances(model, point, e.covariance)
    near = min(abs(event.time - t) for t in samples) ** 2
    if not (near * rates[rows] ** 2 < _UNDECIDED * variances[rows]).any():
        return ()
    return (f"{event.guards} {ASTRIDE} at {event.time:.6g} s: one order alone is followed",)


def inside(model: Model, e: Estimate, guards: Sequence[str], law: InputLaw) -> bool:
    """Whether guards of its mode are positive at the mean of an estimate."""
    point = model.at(e, law)
    return bool((point.guards[_rows(point, guards)] > 0.0).all())


def may_part(point: Point, event: Event) -> bool:
    """Whether an event is that of guards of its mode none of which depends on the input."""
    if event.accumulation is not None or not set(event.guards) <= set(point.mode.guard_names):
        return False
    return not sees_input(point)[_rows(point, event.guards)].any()


def within_reach(model: Model, e: Estimate, law: InputLaw) -> list[tuple[str, float]]:
    """Guards that may have fired before the mean has reached them, and how probable that is."""
    point = model.at(e, law)
    names = point.mode.guard_names
    if not names:
        return []
    g, variances = point.guards, _variances(model, point, e.covariance)
    near = (g * g < _FARTHEST * variances) & (g > 0.0)
    if not near.any():
        return []
    rows = np.flatnonzero(near & (g < -model.rewind * guard_rates(point)) & ~sees_input(point))
    return [(names[k], float(log_ndtr(-g[k] / np.sqrt(variances[k])))) for k in rows]


def overtaking(
    model: Model, e: Estimate, fired: Sequence[str], law: InputLaw
) -> list[tuple[str, float]]:
    """Guards that may have fired before some that fire now, and how probable that is."""
    point = model.at(e, law)
    names, g, d = point.mode.guard_names, point.guards, point.guard_jacobian.state
    rates = guard_rates(point)
    falling = (rates < 0.0) & (g > 0.0) & (g < -model.rewind * rates)
    falling &= ~sees_input(point)
    first, found = names.index(fired[0]), list[tuple[str, float]]()
    for k in np.flatnonzero(falling):
        if names[k] not in fired and rates[first] < 0.0:
            row = d[k] / rates[k] - d[first] / rates[first]
            variance = float(row @ e.covariance @ row)
            variance += sum(model.guard_noise.of(names[i]) / rates[i] ** 2 for i in (k, first))
            chance = float(log_ndtr(g[k] / rates[k] / np.sqrt(max(variance, _TINY))))
            found.append((names[k], chance))
    return found
