"""How surely a base is known where its filter starts: tilt and biases by rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array
from hybridctl.base.settings import NotNegative, Settings
from hybridctl.legged.rotation import quaternion, skew


@dataclass(frozen=True)
class StartDeviations(Settings):
    """How surely the state is known at the start, as standard deviations.

    How far the force at rest is off gravity shows the accelerometer's bias along it (see
    `rest_bias`).

    Attributes:
        tilt: Turn about each level axis, rad.
        heading: Turn about the vertical, rad.
        position: Position in each direction, m.
        velocity: Velocity in each direction, m/s.
        gyroscope: Bias of the gyroscope, rad/s. After standing it is at least what white noise of
            that time leaves in a median over it. The default is by how much the bias changes in 100
            s by `BaseNoise.gyroscope_walk`. With half of it a step of a recorded sensor by 1 deg/s
            about the vertical, as it walks, was claimed too little.
        accelerometer: Bias of the accelerometer, m/s^2.
        force: By how much the force at rest may be off gravity besides bias and noise, m/s^2: a
            recorded Go1 measures 9.74 at rest and 9.68 on average as it trots. Local gravity, which
            differs by up to 0.03, acts as a bias, too.
        across: Bias of the accelerometer across gravity, which rest does not show, relative to what
            is found along it; `accelerometer` is the least. A bias of 0.3 m/s^2 along z comes with
            such ones along x and y, which look like a tilt of 30 mrad. With half of it, simulated
            trots with biases of 0.3 m/s^2 have a NEES of position near 3.
        offset: Bias of a gyroscope, rad/s, of a sensor whose accelerometer has `accelerometer`.
            Rest shows the gyroscope's bias in all directions, and the accelerometer's along
            gravity. If these four are larger than expected, by root mean square, so is taken to be
            the accelerometer's bias across gravity, as of a cheaper sensor. Data sheets have 2 to
            40 m/s^2 for each rad/s, these defaults 6. 0 to leave the gyroscope out.
    """

    tilt: NotNegative = 0.01
    heading: NotNegative = 1e-3
    position: NotNegative = 1e-3
    velocity: NotNegative = 1e-2
    gyroscope: NotNegative = 1e-3
    accelerometer: NotNegative = 3e-2
    force: NotNegative = 3e-2
    across: NotNegative = 0.5
    offset: NotNegative = 5e-3


WALKING = StartDeviations(tilt=0.1, velocity=1.0, gyroscope=5e-3)
"""Deviations of a robot that walks already: no rest shows tilt, velocity and bias. A choice."""

_MEDIAN_VARIANCE = 0.5 * np.pi
"""Variance of the median of many samples of white noise, relative to that of their mean."""


class RestBias(NamedTuple):
    """What rest says of the bias of the accelerometer, in the axes of the sensor.

    Attributes:
        bias: Bias (3,), m/s^2.
        covariance: Its covariance (3, 3).
        by_bias: Turn (3, 3) of the attitude's error by that of the bias, where the attitude is that
            in which the median force points up.
    """

    bias: Array
    covariance: Array
    by_bias: Array


def rest_bias(
    force: Array, rate: Array, gravity: float, duration: float, noise: float, start: StartDeviations
) -> RestBias:
    r"""Return what the median force at rest says of the bias of the accelerometer.

    The force is :math:`f = (g + b_u) u + b_\perp` with u up. Its size says how large the bias
    is along u; what it is across u turns the force by as much as a tilt would,
    :math:`\theta = u \times b / g`.

    Args:
        force: Median specific force (3,) at rest, m/s^2.
        rate: Median rate (3,) at rest, rad/s: the bias of the gyroscope.
        gravity: Size of gravity, m/s^2.
        duration: Time over which it is a median, s.
        noise: Density of the accelerometer's noise, m/s^2/sqrt(Hz).
        start: Its `force`, `accelerometer`, `across` and `offset` say what is expected.
    """
    size = float(np.linalg.norm(force))
    up, excess = force / size, size - gravity
    wide = max(start.accelerometer, start.across * abs(excess))
    if start.offset and start.accelerometer:
        # Both sensors share one scale of their biases. Its likeliest value by four of these.
        seen = np.append(rate / start.offset, excess / start.accelerometer)
        wide = max(wide, start.accelerometer * float(np.sqrt(np.mean(seen**2))))
    known = start.force**2 + median_variance(noise, duration)
    trust = wide**2 / (wide**2 + known) if wide else 0.0
    along = np.outer(up, up)
    covariance = wide**2 * (np.eye(3) - along) + trust * known * along
    return RestBias(trust * excess * up, covariance, skew(up) / gravity)


def median_variance(noise: float, duration: float) -> float:
    """Return the variance of the median of white noise over a time.

    Args:
        noise: Density of the noise, in the unit of the quantity per sqrt(Hz).
        duration: The time, s.
    """
    return float(_MEDIAN_VARIANCE * noise**2 / duration)


def find_upright(inertial: Array, force: Array, heading: float) -> Array:
    """Return the quaternion (4,) of the inertial frame at rest.

    Args:
        inertial: Axes (3, 3) of the inertial frame in the root.
        force: Mean or median specific force (3,), which points up.
        heading: Yaw of the root, rad: Rz(yaw) Ry(pitch) Rx(roll).
    """
    up = inertial @ force
    roll, pitch = np.arctan2(up[1], up[2]), np.arctan2(-up[0], np.hypot(up[1], up[2]))
    root = Rotation.from_euler("ZYX", [heading, pitch, roll]).as_matrix()
    return quaternion(root @ inertial)
