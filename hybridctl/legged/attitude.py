"""Attitude by gyroscope and accelerometer alone, for what does not need a filter."""

from __future__ import annotations

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.rotation import matrix, product, turned_by

TILT_RATE = 0.5
"""Rate in 1/s at which tilt is corrected by the accelerometer: the usual gain of Mahony's filter
(IEEE TAC 2008), with which steps of 2 Hz and more average out within 2 s."""


def integrate_attitude(inertial: Series, start: Array, bias: Array) -> Array:
    """Return quaternions (n, 4) of the inertial frame in the world at the sensor's stamps.

    The angular velocity is the mean of two samples, less the bias, plus `TILT_RATE` times the turn
    that would bring the measured specific force to the vertical.

    Args:
        inertial: Rates (rad/s) and specific forces (m/s^2) (n, 6), in order and complete.
        start: Quaternion (4,) at the first sample.
        bias: Bias (3,) of the gyroscope, rad/s.
    """
    rates, forces = inertial.values[:, :3], inertial.values[:, 3:]
    q = start.copy()
    found = [q]
    for k, step in enumerate(np.diff(inertial.times).tolist()):
        rate = 0.5 * (rates[k] + rates[k + 1]) - bias
        up, size = matrix(q)[2], float(np.linalg.norm(forces[k]))
        if size > 0.0:
            rate = rate + TILT_RATE * np.cross(forces[k] / size, up)
        q = product(q, turned_by(rate * step))
        q /= np.linalg.norm(q)
        found.append(q)
    return np.array(found)
