"""Filters made from noise levels, importable by other processes."""

import numpy as np
from estimation.systems import affine

from hybridctl.estimation.measurement import linear
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter

STILL = affine(np.zeros((1, 1)), [0.0])


def still_filter(levels, gate=None):
    """A constant that is known, in noise of one level: the likelihood has a closed form."""
    measured = linear("z", [[1.0]], [[levels[0] ** 2]], gate=gate)
    return SaltedKalmanFilter(STILL, np.zeros((1, 1)), measured)


def walk_filter(levels):
    """A random walk in noise; levels: of the noise, and of the walk in 1 / sqrt(s)."""
    measured = linear("z", [[1.0]], [[levels[0] ** 2]])
    return SaltedKalmanFilter(STILL, [[levels[1] ** 2]], measured)
