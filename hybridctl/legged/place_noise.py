r"""How noisy the positions of feet are besides the angles, by innovations.

A row of joint angles gives the positions of k feet in contact with the noise of the encoders, of
covariance :math:`R_e`, and with white noise v of variance m in each direction besides, as of links
that bend. The settings can only guess m. An innovation r of covariance
:math:`S = H P H^T + R_e + m I` shows it: given r,

.. math:: \frac{1}{3 k} E|v|^2 = m + \frac{m^2}{3 k}
          \left( |S^{-1} r|^2 - \operatorname{tr} S^{-1} \right) .

Each row moves m towards this by one part of `BaseNoise.measured_rows`: expectation maximization as
rows come (Cappe and Moulines, *On-line expectation-maximization*, 2009). It stays on average where
innovations are as large as S says. Where feet slip, H P H^T is far larger than m: rows then say
little of m, and hardly change it.
"""

from __future__ import annotations

from hybridctl.base.checks import Array
from hybridctl.legged.system import BaseNoise

_LEAST_SHARE = 0.1
"""Least noise relative to `BaseNoise.measured`: at zero it could never grow again, and 0.1 mm is
small beside what encoders of 1 mrad add, some 0.3 mm."""


def follow_place_noise(noise: BaseNoise, variance: float, inverse: Array, score: Array) -> float:
    """Return the variance of the noise besides the angles after an accepted row of angles.

    Args:
        noise: Its `measured_rows` says how fast the variance follows, its `measured` how small it
            can become. Where `measured_rows` is 0, or the noise of feet is given, the variance
            stays as it is.
        variance: The variance m before, m^2.
        inverse: Inverse (3 k, 3 k) of the Cholesky factor of the covariance of the innovation, 1/m.
        score: Whitened innovation (3 k,), that inverse times the innovation.
    """
    if not noise.measured_rows or noise.foot is not None:
        return variance
    entries = inverse.ravel("K")  # in whatever order, without a copy
    weighed = score.dot(inverse)  # S^-1 r
    excess = (weighed.dot(weighed) - entries.dot(entries)) / len(score)
    followed = variance + variance**2 * float(excess) / noise.measured_rows
    return max(followed, (_LEAST_SHARE * noise.measured) ** 2)
