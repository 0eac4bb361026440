r"""The terms of a tracking law u = mu + K (alpha - x) = b - K x, as polynomials of time.

Between breaks of an arc and knots of a gain, mu(t) and alpha(t) are polynomials of degree 7 and
K(t) is one of degree 3 at most, so that :math:`b = \mu + K \alpha` has degree 10 at most: values at
eleven times fix it. A table of them costs one product a time, where mu, alpha and K by themselves
cost three and their sum.
"""

from __future__ import annotations

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.control.gains import GainCurve
from hybridctl.hybrid.arc import Arc

_ORDERS = np.arange(11)
_ANGLES = np.pi * (_ORDERS + 0.5) / len(_ORDERS)
_ROOTS = np.cos(_ANGLES)
_TO_SERIES: Array = np.linalg.inv(np.cos(np.outer(_ANGLES, _ORDERS)))
_SAME = 1e-12  # s: a knot this near a break is that, at which mu may jump


class FeedbackTerms:
    """b (k, nu) and K (k, nu, nx) at times (k,), of an arc in a vector space and a gain along it.

    Outside of the arc, mu and alpha are held, and K outside of the knots of the gain.
    """

    def __init__(self, arc: Arc, gain: GainCurve) -> None:
        breaks = np.append(arc.breaks, arc.breaks[-1] + arc.lengths[-1])
        knots = gain.times if len(gain.times) > 1 else breaks
        apart = np.abs(knots[:, None] - breaks).min(axis=1)
        ends = np.union1d(breaks, knots[apart > _SAME])
        self._starts, self._scales = ends[:-1], 2.0 / np.diff(ends)
        times = (self._starts[:, None] + (1.0 + _ROOTS) / self._scales[:, None]).ravel()
        alpha, mu = arc.states_and_inputs(times)
        gains = gain(times)
        offsets = mu + (gains @ alpha[:, :, None])[:, :, 0]
        values = np.concatenate((offsets, gains.reshape(len(times), -1)), axis=1)
        self._series = _TO_SERIES @ values.reshape(len(self._starts), len(_ORDERS), -1)
        self._shape = gains.shape[1:]

    def __call__(self, times: Array) -> tuple[Array, Array]:
        """b and K at these times, s."""
        k = np.maximum(self._starts.searchsorted(times, "right") - 1, 0)
        s = (times - self._starts[k]) * self._scales[k] - 1.0
        angles = np.arccos(np.minimum(np.maximum(s, -1.0), 1.0))
        both = (np.cos(angles[:, None, None] * _ORDERS) @ self._series[k])[:, 0]
        nu = self._shape[0]
        return both[:, :nu], both[:, nu:].reshape(-1, *self._shape)
