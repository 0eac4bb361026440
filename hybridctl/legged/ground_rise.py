r"""How far feet rise after they have touched, on ground that gives way.

A foot that comes down on soft ground is pressed in at once and comes up again while it stands. All
feet do so alike, in each step and in one direction: as fixed feet they take the base down by the
same length in each step, which no distance between feet shows. The accelerometer does: it does not
confirm that the base sinks from each touchdown on. So the length D is one more state. A foot that
has touched at :math:`t_0` moves along the vertical by

.. math:: \dot z = \frac{D}{\tau}\, e^{-(t - t_0) / \tau}, \quad D \ge 0 .

The filter of base and feet keeps its states, with covariance P; beside it stand the mean and
variance of D, and its covariance c with the deviation of the estimate. A prediction by
:math:`\Phi` in which feet rise by parts of D, :math:`\Delta x = b D` with b zero but for the feet,
gives

.. math:: c^+ = \Phi c + m b, \quad
          P^+ = \Phi P \Phi^T + Q + \Phi c\, b^T + b\, (\Phi c)^T + m b b^T

with m the variance of D, and a correction with innovation r, its covariance S and derivative H

.. math:: D^+ = D + (H c)^T S^{-1} r, \quad c^+ = c - P H^T S^{-1} H c, \quad
          m^+ = m - (H c)^T S^{-1} H c .

Ground does not pull feet down, so a mean below zero is moved to zero, and the estimate to its mean
under that condition: by :math:`-c D / m` (projection: Simon, *Optimal State Estimation*, 2006,
7.5). Covariances stay, so that they are too large rather than too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.estimation.estimate import Estimate
from hybridctl.legged.space import BaseSpace
from hybridctl.legged.system import BaseNoise

RISE_WALK = 1e-4
"""Random walk of the rise, m/sqrt(s): by 0.5 mm in 25 s, as ground changes. A choice."""
_LAST_RISE = 3.0
"""Time after a touch from which on a foot does not rise any more, relative to `foot_rise_time`: by
then it has risen by 95 %, and each sample costs less."""


class GroundRise(NamedTuple):
    """What is known of the rise of feet after a touch.

    Attributes:
        mean: Mean of the rise, m; not negative.
        variance: Its variance, m^2.
        covariance: Its covariance (ndx,) with the deviation of the estimate, in m times the unit
            of each entry.
        touched: Time in s of the last touch of each foot, by its number; feet that have not touched
            since the start are left out.
        until: Time in s from which on no foot rises any more: some time after the last touch of
            any. Until then feet that touched before it go on rising, too, by what is left of 5 %.
    """

    mean: float
    variance: float
    covariance: Array
    touched: Mapping[int, float] = {}
    until: float = -math.inf

    def touch(self, transition: Array, number: int, time: float, noise: BaseNoise) -> GroundRise:
        """Return what is known after a foot has touched.

        Args:
            transition: Derivative (ndx+, ndx) of the state after the event by the one before.
            number: Number of the foot among all feet.
            time: Time of the event, s.
            noise: Its `foot_rise_time` says for how long the foot rises.
        """
        return self._replace(
            covariance=transition.dot(self.covariance),
            touched={**self.touched, number: time},
            until=time + _LAST_RISE * noise.foot_rise_time,
        )

    def change(self, transition: Array) -> GroundRise:
        """Return what is known after a change of derivative (ndx+, ndx) in which no foot touches.

        That is a lift-off, or a move of the tangent space to the estimate after a correction.
        Lifted feet keep their times, which their next touch replaces.
        """
        c = transition.dot(self.covariance)
        # `_replace` takes longer, which each sample would pay.
        return GroundRise(self.mean, self.variance, c, self.touched, self.until)

    def predict(self, covariance: Array, span: float) -> GroundRise:
        """Return what is known after a prediction, in which the rise walks.

        Args:
            covariance: Its covariance (ndx,) with the deviation after the prediction, in which feet
                have come up, see `compiled_formulas.build_prediction`.
            span: Length of the prediction, s.
        """
        variance = self.variance + RISE_WALK**2 * span
        return GroundRise(self.mean, variance, covariance, self.touched, self.until)

    def find_parts(
        self, numbers: list[int], begin: float, end: float, noise: BaseNoise
    ) -> list[float] | None:
        """Return the parts (k,) of the rise by which feet come up; None where none rises any more.

        Args:
            numbers: Numbers (k,) of the feet in contact among all feet, in the order in which the
                estimate has them.
            begin: Time at which they begin, s.
            end: Time until which they come up, s.
            noise: Its `foot_rise_time` says how fast feet rise.
        """
        if begin >= self.until:
            return None
        rate = -1.0 / noise.foot_rise_time
        left, since = -math.expm1(rate * (end - begin)), self.touched
        return [left * math.exp(rate * (begin - since.get(n, -math.inf))) for n in numbers]

    def correct(
        self, white: Array, by_rise: Array, score: Array
    ) -> tuple[GroundRise, Array | None]:
        """Return what is known after an innovation, and how the mean that is cut off moves.

        Args:
            white: Whitened derivative (k, ndx) :math:`L^{-1} H P`, with :math:`S = L L^T`.
            by_rise: Whitened covariance (k,) of innovation and rise, :math:`L^{-1} H c`.
            score: Whitened innovation (k,), :math:`L^{-1} r`.

        Returns:
            The rise, with its covariance with the deviation from the estimate before; and what is
            to be added to the correction (ndx,) of that estimate, None where the mean is not cut
            off. The caller moves the rise to the tangent space of the new estimate by `change`.
        """
        mean = self.mean + float(by_rise.dot(score))
        variance = self.variance - float(by_rise.dot(by_rise))
        c, back = self.covariance - by_rise.dot(white), None
        if mean < 0.0 < variance:
            back = c * (-mean / variance)
        return GroundRise(max(mean, 0.0), variance, c, self.touched, self.until), back

    def follow(self, space: BaseSpace, before: Estimate, after: Estimate) -> GroundRise:
        """Return what is known after any other correction of the estimate.

        With :math:`a = P^{-1} c` of the estimate before, :math:`c^+ = P^+ a`, as of every
        correction by Bayes' rule. After one that has changed the mode c is taken
        to be zero: how it went is not known.

        Args:
            space: States of the mode.
            before: Estimate before.
            after: Estimate after.
        """
        if after.mode != before.mode:
            return self._replace(covariance=np.zeros(len(after.covariance)))
        a = np.linalg.lstsq(before.covariance, self.covariance, rcond=None)[0]
        mean = self.mean + float(a.dot(space.difference(before.mean, after.mean)))
        taken = float(a.dot((before.covariance - after.covariance).dot(a)))
        return self._replace(
            # The estimate is not moved by what is cut off: other corrections come while it stands.
            mean=max(mean, 0.0),
            variance=max(self.variance - taken, 0.0),
            covariance=after.covariance.dot(a),
        )


def begin_rise(noise: BaseNoise, ndx: int) -> GroundRise | None:
    """Return what is known of the rise before a robot has walked.

    Args:
        noise: Its `foot_rise` is the standard deviation.
        ndx: Size of the deviation of the first estimate.

    Returns:
        The rise; None where feet do not rise, or where their noise is given, which then stands for
        all that feet do.
    """
    if not noise.foot_rise or noise.foot is not None:
        return None
    return GroundRise(0.0, noise.foot_rise**2, np.zeros(ndx))
