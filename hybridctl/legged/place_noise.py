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

Noise that lasts no innovation shows, as the estimate follows it. The one such error that is known
is the time by which stamps of inertial sensor and joints are apart: feet move in it. So m is not
followed to below that, and not at all where this time is not known, or feet move by as much in it
as the noise that is assumed: of a recorded Go1, whose stamps are 3.5 ms apart or less.
"""

from __future__ import annotations

from hybridctl.base.checks import Array
from hybridctl.legged.system import BaseNoise

_LEAST_SHARE = 0.1
"""Least noise relative to `BaseNoise.measured`: at zero it could never grow again, and 0.1 mm is
small beside what encoders of 1 mrad add, some 0.3 mm."""
_FOOT_SPEED = 1.0
"""Speed in m/s of feet against the base in a trot, a little after touchdown and before lift-off:
by how much positions are off where stamps are apart. A choice."""


def find_least_place_noise(noise: BaseNoise) -> float | None:
    """Return the variance in m^2 down to which the noise besides the angles follows innovations.

    Args:
        noise: Noise of feet and sensors.

    Returns:
        The variance; None where the noise stays as it is, because `foot` is given, or `delay` is
        not known or too large.
    """
    if noise.foot is not None or noise.delay is None:
        return None
    least = max(_LEAST_SHARE * noise.measured, _FOOT_SPEED * noise.delay)
    return least**2 if least < noise.measured else None


def follow_place_noise(
    variance: float, least: float, rows: float, inverse: Array, score: Array
) -> float:
    """Return the variance of the noise besides the angles after an accepted row of angles.

    Args:
        variance: The variance m before, m^2.
        least: Least variance, m^2.
        rows: Number of rows over which it follows, see `BaseNoise.measured_rows`.
        inverse: Inverse (3 k, 3 k) of the Cholesky factor of the covariance of the innovation, 1/m.
        score: Whitened innovation (3 k,), that inverse times the innovation.
    """
    entries = inverse.ravel("K")  # in whatever order, without a copy
    weighed = score.dot(inverse)  # S^-1 r
    excess = (weighed.dot(weighed) - entries.dot(entries)) / len(score)
    return max(variance + variance**2 * float(excess) / rows, least)
