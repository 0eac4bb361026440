"""A controller of the door reads the state, filtered encoders, or a Kalman filter's estimate.

Encoders are read with noise and rounded to their counts. Velocities come from differences through a
low-pass filter, or from a Kalman filter of each joint. That filter predicts the robot's free motion
and takes the rest for a disturbance, with more noise for a while after a detected touch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from hybridctl.robots import rrr_door

from hybridctl.base.checks import Array
from hybridctl.mechanics.multibody.robot import Robot

Kind = Literal["true", "filter", "kalman"]

_COUNT = 2.0 * np.pi / 2**16  # rad, of a 16-bit encoder
_NOISE = 1e-4  # rad, standard deviation of the encoders
_CUTOFF = 80.0  # Hz, of the low-pass filter
_VELOCITY_CHANGE = 2e-3  # rad/s in a sample, standard deviation
_DISTURBANCE_CHANGE = 1.0  # rad/s^2 in a sample, standard deviation
_TOUCH_CHANGE = 0.08  # rad/s in a sample after a touch, standard deviation
_TOUCH_TIME = 0.025  # s after a touch in which velocities change so much

StateSensor: TypeAlias = Callable[[Array, Array, float], Array]
"""Returns the measured state (8,), from the true state (8,), the torques (3,) since the last
sample, and the time since the last detected touch, s, infinite before the first."""


class Encoders:
    """Encoders of the joints, with noise; each reading draws from the same random numbers."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def read(self, state: Array) -> Array:
        """Return the angles (4,) of a state (8,), with noise and rounded to counts, rad."""
        noisy = state[:4] + _NOISE * self._random.standard_normal(4)
        return np.asarray(np.round(noisy / _COUNT) * _COUNT)


class FilteredEncoders:
    """A sensor of encoders, whose differences go through a filter of first order.

    It is called once a sample, in order.
    """

    def __init__(self, seed: int, period: float) -> None:
        self._encoders, self._period = Encoders(seed), period
        self._share = -math.expm1(-2.0 * np.pi * _CUTOFF * period)
        self._last: Array | None = None
        self._rates = np.zeros(4)

    def __call__(self, state: Array, u: Array, since_touch: float) -> Array:
        """Return the angles as read, and filtered velocities; the first velocities are true."""
        q = self._encoders.read(state)
        if self._last is None:
            self._rates = state[4:].copy()
        else:
            self._rates += self._share * ((q - self._last) / self._period - self._rates)
        self._last = q
        return np.concatenate([q, self._rates])


class Observer:
    """A sensor by a Kalman filter of angle, velocity and disturbance, equal for all joints.

    It is called once a sample, in order.
    """

    def __init__(self, robot: Robot, seed: int, period: float) -> None:
        self._robot, self._encoders, self._period = robot, Encoders(seed), period
        self._variance = _NOISE**2 + _COUNT**2 / 12.0
        self._step = np.array([[1.0, period, 0.5 * period**2], [0.0, 1.0, period], [0.0, 0.0, 1.0]])
        self._mean: Array | None = None  # rows: angles, velocities, disturbances
        self._covariance = np.diag([self._variance, 1e-4, 1.0])

    def __call__(self, state: Array, u: Array, since_touch: float) -> Array:
        """Return the estimated state; the first velocities are true."""
        z = self._encoders.read(state)
        if self._mean is None:
            self._mean = np.array([z, state[4:], np.zeros(4)])
            return self._mean[:2].ravel()
        mean, h = self._mean, self._period
        a = self._robot.free_acceleration(mean[0], mean[1], u) + mean[2]
        mean = mean + np.array([h * mean[1] + 0.5 * h**2 * a, h * a, np.zeros(4)])
        p = self._step @ self._covariance @ self._step.T
        change = _TOUCH_CHANGE if since_touch < _TOUCH_TIME else _VELOCITY_CHANGE
        p[1, 1] += change**2
        p[2, 2] += _DISTURBANCE_CHANGE**2
        gain = p[:, 0] / (p[0, 0] + self._variance)
        self._mean = mean + gain[:, None] * (z - mean[0])
        self._covariance = p - np.outer(gain, p[0])
        return self._mean[:2].ravel()


_get_robot = lru_cache(maxsize=1)(rrr_door.robot)


def make_sensor(kind: Kind, seed: int, period: float) -> StateSensor:
    """Return the sensor of a kind, for the nominal robot.

    Args:
        kind: Kind of the sensor.
        seed: Seed of its noise.
        period: Time between samples, s.
    """
    if kind == "true":
        return lambda state, u, since_touch: state
    if kind == "filter":
        return FilteredEncoders(seed, period)
    return Observer(_get_robot(), seed, period)
