"""Mean and covariance through events: exact where linear, closed forms and samples where not."""

import numpy as np
import pytest
from hybridctl.robots import ball, biped
from scipy.special import ndtri

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.sensitivity.moments import propagate_moments, sample_normal_points

TIGHT = {"rtol": 1e-11, "atol": 1e-11}


def linearize_bouncing_ball():
    p = ball.BallParameters(slope=0.0, restitution=0.8)
    system = ball.system(p)
    run = hc.simulate(system, ("open",), [0.0, 1.0, 0.3, 0.0], (0.0, 1.2), **TIGHT)
    return hc.linearize(system, run)


def linearize_landing_biped():
    p = biped.BipedParameters()
    system = biped.soft(p, damping="by_feet")
    return hc.linearize(system, hc.simulate(system, biped.AIR, biped.start(p), (0.0, 0.5), **TIGHT))


def test_isolated_events_carry_moments_exactly():
    linear = linearize_bouncing_ball()
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    mean, covariance = rng.normal(size=4), root @ root.T
    found = propagate_moments(linear, covariance, mean)
    whole = linear.state_transition
    np.testing.assert_allclose(found.mean, whole @ mean, rtol=1e-12)
    np.testing.assert_allclose(found.covariance, whole @ covariance @ whole.T, rtol=1e-12)


def test_simultaneous_events_carry_the_moments_of_the_image():
    """Against 200,000 random directions: means are off by 1 / sqrt(N), others by twice that."""
    linear = linearize_landing_biped()
    assert not linear.is_linear
    covariance = np.diag([1.0, 0.5, 2.0, 0.3, 0.4, 1.0])
    rng = np.random.default_rng(1)
    sample = rng.normal(size=(200_000, 6)) * np.sqrt(np.diag(covariance))
    image = linear.derivative(sample)
    found = propagate_moments(linear, covariance)
    scale = np.sqrt(np.diag(found.covariance))
    error = 5.0 / np.sqrt(len(sample))
    assert (np.abs(found.mean - image.mean(axis=0)) <= error * scale).all()
    other = np.cov(image.T)
    assert (np.abs(found.covariance - other) <= 2.0 * error * np.outer(scale, scale)).all()
    # the kink moves the mean: no single linear branch does
    assert np.abs(found.mean / scale).max() > 10.0 * error


def test_more_points_change_little():
    linear = linearize_landing_biped()
    few, many = (propagate_moments(linear, np.eye(6), points=2**n) for n in (12, 16))
    scale = np.sqrt(np.diag(many.covariance))
    # low-discrepancy points: errors near 1 / N, times a power of log N
    assert (np.abs(few.mean - many.mean) <= 2e-3 * scale).all()


def test_a_degenerate_covariance_stays_degenerate_on_a_linear_map():
    linear = linearize_bouncing_ball()
    line = np.array([0.0, 1.0, 0.0, 0.0])
    found = propagate_moments(linear, np.outer(line, line)).covariance
    values = np.linalg.eigvalsh(found)
    assert values[-2] <= 1e-12 * values[-1]


def test_points_have_the_tails_of_a_normal_distribution():
    """Ordered, 4,096 points of one coordinate are its quantiles.

    Of 2,048 points of a Sobol sequence one is in each interval of 1/2,048, and so are their mirror
    images: shares are right to that, and quantiles to that over the density, .028 at 2.5.
    """
    points = np.sort(sample_normal_points(np.eye(1), 4096, 0)[:, 0])
    middles = ndtri((np.arange(4096) + 0.5) / 4096)
    inner = np.abs(middles) < 2.5
    np.testing.assert_allclose(points[inner], middles[inner], atol=0.03)
    assert points[-1] > 3.0
    np.testing.assert_allclose(points, -points[::-1], atol=1e-12)  # half of them mirror the others


def test_bad_arguments_are_named():
    linear = linearize_bouncing_ball()
    with pytest.raises(InputError, match="covariance must be symmetric"):
        propagate_moments(linear, np.triu(np.ones((4, 4))))
    with pytest.raises(InputError, match="positive semidefinite"):
        propagate_moments(linear, -np.eye(4))
    with pytest.raises(InputError, match="covariance must have shape"):
        propagate_moments(linear, np.eye(3))
    with pytest.raises(InputError, match="points must be a power of two"):
        propagate_moments(linear, np.eye(4), points=1000)
    with pytest.raises(InputError, match="points must be at least 8 in 4 dimensions, got 4"):
        sample_normal_points(np.eye(4), 4, 0)
