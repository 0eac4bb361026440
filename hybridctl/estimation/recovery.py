r"""When values are believed rather than the estimate that rejects them.

A wrong event or a push that the model does not know takes the estimate away from the motion, and
the gate then rejects every value: the filter flies blind. After `patience` rejections in a row of
one channel the estimate is what is in doubt, and two things are tried, one after the other.

*Inflation.* The covariance of the prediction is multiplied by the factor under which the value
becomes most likely, and the value is taken. With R = L L^T, eigenvalues d of
:math:`L^{-1} H P H^T L^{-T}` and the residual's components c along their eigenvectors,

.. math:: \lambda = \arg\max \sum_i -\tfrac12 \Big( \frac{c_i^2}{1 + \lambda d_i}
    + \log(1 + \lambda d_i) \Big), \qquad \text{so} \qquad
    \sum_i \frac{\lambda d_i}{1 + \lambda d_i} \Big( \frac{c_i^2}{1 + \lambda d_i} - 1 \Big) = 0.

For one component, and where R is small, that is the factor that puts the normalized innovation
squared at its mean, the dimension. The limit of the gate would be the least factor that lets the
value in, under which it is as improbable as a value may be: the estimate would go on being far too
sure. A direction that a contact holds has d = 0, and drops out. To the smoother, the inflation is
process noise :math:`(\lambda - 1) P` at that time.

*Restart.* Where no factor explains the value (it differs where a contact holds the state), or two
values in a row are rejected soon after an inflation, the mode is taken to be wrong. The filter
begins anew in a mode without contact, see `Beginning`, from two values in a row alone: past the
guards, so that velocities are known before it is asked which events there are. Of the last
`patience` values the first two are used with which the gate takes more than half of these, and
where there are none, nothing is done. The past does not learn of what comes after a restart.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import brentq

from hybridctl.checks import Array
from hybridctl.estimation.result import Step
from hybridctl.hybrid.mode import ModeKey

_LARGEST = 1e12  # a deviation of a million standard ones; more is a direction that is held
_AGAIN = 2  # rejections in a row soon after an inflation; a single one may be wild


def inflation(spread: Array, noise: Array, residual: Array) -> float:
    """The factor of a covariance, 1 or more, that makes a residual (k,) most likely.

    spread (k, k): H P H^T, the part of the innovation's covariance that the factor multiplies.
    noise (k, k): R. See this module.
    """
    d, vectors = eigh(spread, noise)
    d, c2 = np.maximum(d, 0.0), (vectors.T @ residual) ** 2

    def slope(exponent: float) -> float:
        grown = d * np.exp(exponent)
        return float((grown / (1.0 + grown) * (c2 / (1.0 + grown) - 1.0)).sum())

    longest = float(np.log(_LARGEST))
    if slope(0.0) <= 0.0:
        return 1.0
    if slope(longest) >= 0.0:
        return _LARGEST
    return float(np.exp(brentq(slope, 0.0, longest)))


@dataclass(frozen=True, eq=False)
class Beginning:
    """How to begin anew where the mode is wrong.

    mode: one without contact. covariance (ndx, ndx): of its state before anything is known; the
    deviations of velocities should be wide.
    """

    mode: ModeKey
    covariance: Array


@dataclass(eq=False)
class Doubt:
    """What speaks against the estimate, channel by channel.

    patience: see `SaltedKalmanFilter`; None never doubts. rejected, accepted: values in a row,
    where rejections begin anew after `patience`. unsure: channels that have not accepted `patience`
    values in a row since values were believed.
    """

    patience: int | None
    rejected: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    unsure: set[str] = field(default_factory=set)

    def of_estimate(self, channel: str) -> bool:
        """Whether another rejection puts the estimate in doubt."""
        return self.patience is not None and self.rejected[channel] + 1 >= self.patience

    def of_mode(self, step: Step) -> bool:
        """Whether a step that was not counted yet puts the mode in doubt."""
        if step.innovation is None or step.innovation.accepted or step.reopened:
            return False
        again = step.channel in self.unsure and self.rejected[step.channel] + 1 >= _AGAIN
        return again or self.of_estimate(step.channel)

    def count(self, step: Step) -> None:
        """Take note of a step that stands."""
        if step.innovation is None or self.patience is None:
            return
        name = step.channel
        if step.reopened:
            self.rejected[name] = self.accepted[name] = 0
            self.unsure.add(name)
        elif not step.innovation.accepted:
            self.accepted[name] = 0
            self.rejected[name] = (self.rejected[name] + 1) % self.patience
        else:
            self.rejected[name] = 0
            self.accepted[name] += 1
            if self.accepted[name] >= self.patience:
                self.unsure.discard(name)
