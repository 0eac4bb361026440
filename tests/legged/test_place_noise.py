"""The noise of the positions of feet besides the angles, by innovations."""

from dataclasses import replace

import numpy as np
import pytest
from legged.machine import URDF, machine, state

from hybridctl.estimation.estimate import Estimate
from hybridctl.legged.creep import FootMotion
from hybridctl.legged.creep_filter import CreepFilter
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.place_noise import find_least_place_noise, follow_place_noise
from hybridctl.legged.system import BaseNoise
from hybridctl.mechanics.multibody.robot import Robot

NOISE = BaseNoise(measured=1e-3, measured_rows=250, delay=0.0)


def follow(noise, variance, covariance, residual):
    """The variance after an innovation (k,) of a covariance (k, k)."""
    inverse = np.linalg.inv(np.linalg.cholesky(covariance))
    least = find_least_place_noise(noise)
    return follow_place_noise(variance, least, noise.measured_rows, inverse, inverse @ residual)


def test_it_moves_towards_the_mean_square_given_the_innovation():
    """By conditioning the joint normal distribution of the noise and the innovation."""
    rng, variance = np.random.default_rng(0), 1e-6
    root = 1e-3 * rng.normal(size=(6, 6))
    covariance = root @ root.T + variance * np.eye(6)
    residual = 2e-3 * rng.normal(size=6)
    gain = variance * np.linalg.inv(covariance)
    mean, left = gain @ residual, variance * np.eye(6) - gain * variance
    seen = (mean @ mean + np.trace(left)) / 6.0
    found = follow(NOISE, variance, covariance, residual)
    assert found == pytest.approx(variance + (seen - variance) / 250, rel=1e-12)


@pytest.mark.parametrize("true", [5e-4, 3e-3])
def test_white_noise_of_any_size_is_found(true):
    """From 1 mm, beside 0.3 mm of encoders; 5 % are four deviations.

    With K = (m / S)^2 / 250 the variance relaxes in 1 / K rows, of 2500: five times for 0.5 mm,
    ten for 3 mm. It has the deviation S sqrt(K / 2 * 2 / 6), or 2.6 % of m in both cases, which
    is 1.3 % of the noise.
    """
    rng, variance = np.random.default_rng(1), NOISE.measured**2
    known = 9e-8 * np.eye(6)
    for _ in range(2500):
        residual = np.sqrt(9e-8 + true**2) * rng.normal(size=6)
        variance = follow(NOISE, variance, known + variance * np.eye(6), residual)
    assert variance**0.5 == pytest.approx(true, rel=0.05)


def test_rows_that_show_no_more_than_the_encoders_leave_a_tenth():
    rng, variance = np.random.default_rng(2), NOISE.measured**2
    for _ in range(20_000):
        covariance = (9e-8 + variance) * np.eye(6)
        variance = follow(NOISE, variance, covariance, 2e-4 * rng.normal(size=6))
    assert variance == pytest.approx((0.1 * NOISE.measured) ** 2)


def test_feet_that_slip_say_nothing_of_it():
    """Where they are unsure by 15 mm, 1,000 innovations of half as much take off 1.4 %.

    Each takes off (m / S - m r^2 / S^2) / 250 of it, with S = 226 mm^2 and r = 7 mm.
    """
    variance = NOISE.measured**2
    for _ in range(1000):
        variance = follow(NOISE, variance, (2.25e-4 + variance) * np.eye(6), np.full(6, 7e-3))
    assert variance == pytest.approx((1.0 - 0.014) * NOISE.measured**2, rel=1e-3)


@pytest.mark.parametrize(
    ("told", "least"),
    [
        ({"foot": 2e-3}, None),
        ({"delay": None}, None),
        ({"delay": 2e-3}, None),
        ({"delay": 4e-4}, 4e-4),
    ],
)
def test_it_stays_where_it_is_told_or_stamps_are_too_far_apart(told, least):
    """Feet move at 1 m/s: stamps that are 2 ms apart are an error of 2 mm."""
    found = find_least_place_noise(replace(NOISE, **told))
    assert found == (None if least is None else pytest.approx(least**2))


def test_the_filter_takes_what_innovations_have_said():
    """A row of angles changes it, and the next innovation has it in its covariance."""
    base, _ = machine(flat=(False, False), noise=NOISE)
    settings = BaseSettings("imu", tuple(base.kinematics.feet.values()), noise=NOISE)
    made = settings.build(Robot.from_urdf(URDF))
    kept = CreepFilter(made.base, made.filter, FootMotion(angle_noise=1e-4, window=0.01))
    key = ("stick", "stick")
    x, u = state(base, key, np.random.default_rng(0))
    first = kept.start(Estimate(key, 0.0, x, 1e-6 * np.eye(21)))
    assert first.place_variance == NOISE.measured**2
    q = u[base.angle_columns]
    once = kept.update(first, "angles", q)
    assert once.place_variance != first.place_variance
    noisy = first._replace(place_variance=first.place_variance + 1e-6)
    one, other = (
        kept.update(begun, "angles", q).filter.hypotheses[0].innovation.covariance
        for begun in (first, noisy)
    )
    np.testing.assert_allclose(other - one, 1e-6 * np.eye(6), atol=1e-16)
