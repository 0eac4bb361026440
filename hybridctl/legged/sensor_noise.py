"""The noise of sensors that a log shows at least: noise of settings is raised to it.

A robot that stands shows the white noise of its inertial sensor, and its encoders that of their
angles. What a walk adds, such as vibration and scale errors, no standing robot shows: so noise is
never lowered by it, but for what is found at rest itself.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.system import BaseNoise

LEAST_ROWS = 25
"""Rows while a robot stands from which noise is found, with an error of 16 %; of 8 % from 100."""


def raise_to_sensors(
    noise: BaseNoise, inputs: Series, standing: float, angle_noise: float
) -> BaseNoise:
    """Return noise that is at least what sensors show in the opening of a log.

    Args:
        noise: Noise of the settings.
        inputs: Inputs (n, nu) of `LeggedBase`, of which the first six entries are means of two
            neighbouring samples: rate in rad/s and specific force in m/s^2.
        standing: Time from the first row for which the robot stands, s; 0 for one that walks,
            whose inertial samples are no noise.
        angle_noise: Standard deviation of one joint angle in one row, rad.

    Returns:
        The noise, the very same where it is not raised. That of the inertial sensor is not where
        the robot stands for fewer than `LEAST_ROWS` rows.
    """
    encoder = max(noise.encoder, angle_noise)
    gyroscope, accelerometer = noise.gyroscope, noise.accelerometer
    still = inputs.select_rows(inputs.times <= inputs.times[0] + standing)
    if len(still) >= LEAST_ROWS:
        rate, force = measure_white_noise(still)
        gyroscope, accelerometer = max(gyroscope, rate), max(accelerometer, force)
    shown = gyroscope, accelerometer, encoder
    if shown == (noise.gyroscope, noise.accelerometer, noise.encoder):
        return noise
    return replace(noise, gyroscope=gyroscope, accelerometer=accelerometer, encoder=encoder)


def find_rest_noise(noise: BaseNoise, inputs: Series, standing: float) -> tuple[float, float]:
    """Return the noise by which medians of an inertial sensor at rest are off.

    It is what the sensor shows over the same time, even where settings have more: these are of
    walks, whose vibration and scale errors rest has not.

    Args:
        noise: Noise that counts where the robot stands for fewer than `LEAST_ROWS` rows.
        inputs: Inputs (n, nu), see `raise_to_sensors`.
        standing: Time from the first row for which the robot stands, s.

    Returns:
        Densities of rate in rad/s/sqrt(Hz) and of specific force in m/s^2/sqrt(Hz).
    """
    still = inputs.select_rows(inputs.times <= inputs.times[0] + standing)
    if len(still) < LEAST_ROWS:
        return noise.gyroscope, noise.accelerometer
    return measure_white_noise(still)


def measure_white_noise(inputs: Series) -> tuple[float, float]:
    """Measure densities of the white noise of an inertial sensor at rest.

    Args:
        inputs: Inputs (n, nu), of which the first six entries are means of two neighbouring
            samples, three rows at least. Their second differences, (x0 - x1 - x2 + x3) / 2, have
            the variance of one sample, and leave out drift.

    Returns:
        Densities of rate in rad/s/sqrt(Hz) and of specific force in m/s^2/sqrt(Hz), as root mean
        squares over three axes.
    """
    squares = np.diff(inputs.values[:, :6], n=2, axis=0) ** 2
    # A push while it stands is no noise: the median of squares of white noise is 0.455 of their
    # mean.
    variances: Array = np.median(squares, axis=0) / 0.455
    period = float(np.median(np.diff(inputs.times)))
    return (
        math.sqrt(float(variances[:3].mean()) * period),
        math.sqrt(float(variances[3:].mean()) * period),
    )
