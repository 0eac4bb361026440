"""Noise of sensors is at least what a robot that stands shows."""

import numpy as np
import pytest

from hybridctl.base.time_series import Series
from hybridctl.legged.sensor_noise import (
    LEAST_ROWS,
    measure_white_noise,
    raise_to_sensors,
)
from hybridctl.legged.system import BaseNoise

PERIOD, RATE, FORCE = 4e-3, 3e-3, 0.1  # s, rad/s/sqrt(Hz), m/s^2/sqrt(Hz)


def standing_inputs(n, rng, push=0.0):
    """Inputs (n, 6) of a robot that stands on a slope and drifts; its last tenth is a push."""
    times = PERIOD * np.arange(n + 1)
    density = np.repeat([RATE, FORCE], 3)
    samples = density / np.sqrt(PERIOD) * rng.normal(size=(n + 1, 6))
    samples += np.array([0.0, 0.0, 0.01, 1.0, 0.0, 9.7]) + 0.3 * np.sin(times)[:, None]
    samples[-(n // 10) :] += push * rng.normal(size=(n // 10, 6))
    return Series(times[:-1], 0.5 * (samples[:-1] + samples[1:]))


def test_the_noise_of_a_standing_robot_is_that_of_its_samples():
    """Means of neighbours are no less noisy in second differences, and a push is left out.

    The median of 300 dependent squares in three directions is off by 4.5 % of noise (by 400
    draws), of which four may come. A push in a tenth of the rows moves a median by the share of
    rows that it hides, to the 0.56 quantile of squares: by 18 % of noise.
    """
    for push, rel in ((0.0, 0.18), (50.0, 0.36)):
        found = measure_white_noise(standing_inputs(300, np.random.default_rng(1), push))
        np.testing.assert_allclose(found, (RATE, FORCE), rtol=rel)


def test_noise_is_raised_and_never_lowered():
    inputs, quiet = standing_inputs(300, np.random.default_rng(2)), BaseNoise()
    raised = raise_to_sensors(quiet, inputs, 2.0, 4e-3)
    assert raised.gyroscope == pytest.approx(RATE, rel=0.18)
    assert raised.accelerometer == pytest.approx(FORCE, rel=0.18)
    assert raised.encoder == 4e-3
    loud = BaseNoise(gyroscope=0.1, accelerometer=1.0, encoder=1e-2)
    assert raise_to_sensors(loud, inputs, 2.0, 4e-3) is loud


@pytest.mark.parametrize("standing", [0.0, PERIOD * (LEAST_ROWS - 2)])
def test_a_robot_that_walks_says_nothing_of_its_inertial_sensor(standing):
    quiet = BaseNoise()
    inputs = standing_inputs(300, np.random.default_rng(2))
    assert raise_to_sensors(quiet, inputs, standing, 1e-4) is quiet
