"""The unscented filter: Kalman on linear flows, the saltation matrix for small covariances."""

import numpy as np
import pytest
from estimation.systems import GRAVITY, affine, bounced, bouncing_ball, height, two_flows
from hybridctl.robots import ball, block, cube

from hybridctl.base.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import Measurement, configuration, linear
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.mechanics.multibody.state import RobotStateSpace
from hybridctl.sampling.unscented import UnscentedFilter, compute_sigma_points

A = np.array([[0.0, 1.0, 0.0], [-4.0, -0.3, 0.5], [0.0, 0.2, -1.5]])
C = np.array([0.3, -9.81, 0.2])
Q = np.diag([1e-3, 0.2, 0.05])
H = np.array([[1.0, 0.0, 0.3], [0.0, 1.0, 0.0]])
R = np.array([[0.01, 0.002], [0.002, 0.03]])
P0 = np.diag([0.04, 0.1, 0.2]) + 0.01
NONE = np.zeros((2, 2))


@pytest.mark.parametrize("rank", [3, 2, 1, 0])
def test_on_a_linear_flow_it_is_the_kalman_filter(rank):
    root = np.random.default_rng(rank).normal(size=(3, rank))
    p0 = P0 if rank == 3 else root @ root.T
    times = np.array([0.1, 0.15, 0.15, 0.6, 1.4])
    values = np.random.default_rng(0).normal(size=(5, 2))
    values[2, 1] = np.nan
    record = Record({"z": Series(times, values)})
    start = Estimate("flow", 0.0, np.array([0.5, -0.2, 0.1]), p0)
    arguments = affine(A, C), Q, linear("z", H, R)
    # the points follow the same steps of the integrator only up to its tolerance
    options = {"options": FilterOptions(rtol=1e-13, atol=1e-14)}
    right = SaltedKalmanFilter(*arguments, **options).run(record, start)
    found = UnscentedFilter(*arguments, **options).run(record, start)
    for a, b in zip(found.steps, right.steps, strict=True):
        np.testing.assert_allclose(a.estimate.mean, b.estimate.mean, atol=1e-10)
        np.testing.assert_allclose(a.estimate.covariance, b.estimate.covariance, atol=1e-10)
    assert found.log_likelihood == pytest.approx(right.log_likelihood, abs=1e-9)


def test_constant_flows_are_exact_on_both_sides_of_the_guard():
    """[Salt] Fig. 5, 6: at the line half of the points have crossed it, and all are used."""
    system, matrix, _ = two_flows()
    p0 = np.array([[9e-4, 2e-4], [2e-4, 4e-4]])
    start = Estimate("I", 0.0, np.array([-0.2, -0.06]), p0)
    kf = UnscentedFilter(
        system, NONE, linear("z", np.eye(2), np.eye(2)), options=FilterOptions(rewind=0.5)
    )
    for time, m in ((0.1, np.eye(2)), (0.199, np.eye(2)), (0.201, matrix), (0.4, matrix)):
        found = kf.predict(start, time)
        np.testing.assert_allclose(found.estimate.covariance, m @ p0 @ m.T, rtol=1e-8)
        np.testing.assert_allclose(found.transition, m, rtol=1e-6, atol=1e-8)
    assert found.estimate.mode == "J"


@pytest.mark.parametrize("time", [0.44, 0.4515, 0.46, 0.7])
def test_small_covariances_give_the_salted_filter(time):
    """At 0.4515 s, just after the impact, and before it; the rest is the second order."""
    p0 = 1e-6 * np.array([[1.0, 0.2], [0.2, 4.0]])
    start = Estimate("air", 0.0, np.array([1.0, 0.0]), p0)
    noise = np.diag([0.0, 1e-7])
    options = {"reset_noise": np.diag([0.0, 1e-7]), "guard_noise": 1e-8}
    right = SaltedKalmanFilter(bouncing_ball(), noise, height(), **options).predict(start, time)
    found = UnscentedFilter(bouncing_ball(), noise, height(), **options).predict(start, time)
    assert len(found.events) == len(right.events) == (time > np.sqrt(2.0 / GRAVITY))
    p, q = found.estimate.covariance, right.estimate.covariance
    size = np.sqrt(np.outer(np.diag(q), np.diag(q)))
    assert (np.abs(p - q) <= 2e-3 * size).all()
    np.testing.assert_allclose(found.estimate.mean, right.estimate.mean, atol=2e-6)
    np.testing.assert_allclose(found.transition, right.transition, rtol=5e-3, atol=5e-3)


def test_far_from_the_first_order_it_is_nearer_to_the_ensemble_than_the_salted_filter():
    """The mean of many balls after a bounce, which curvature moves away from that of the first."""
    x0, p0 = np.array([1.0, 0.2]), np.diag([0.1, 0.3]) ** 2
    sample = bounced(np.random.default_rng(1).multivariate_normal(x0, p0, 200_000), 0.9)
    start, exact = Estimate("air", 0.0, x0, p0), sample.mean(axis=0)
    off = [
        np.abs(kind(bouncing_ball(), NONE, height()).predict(start, 0.9).estimate.mean - exact)
        for kind in (UnscentedFilter, SaltedKalmanFilter)
    ]
    # the sampling error of the velocity, 1e-3, is a sixth of what the first order misses
    assert (off[0] < 0.5 * off[1]).all()


def test_a_corner_may_land_before_the_other_or_with_it():
    """Blocks that land flat, tilted one way or the other, have had the same guards in the end."""
    system = block.system(actuated=True)
    push = Noise(1e-6 * np.eye(3), through_input=True, compliance=0.0)
    measured = linear("q", np.eye(3, 6), 1e-6 * np.eye(3))
    start = Estimate(
        ("open", "open"), 0.0, np.array([0.0, 0.06, 0.0, 0.5, -0.5, 0.0]),
        np.diag([1e-4, 1e-4, 1e-4, 1e-3, 1e-3, 1e-3]) ** 2,
    )  # fmt: skip
    found = UnscentedFilter(system, push, measured).predict(start, 0.03)
    right = SaltedKalmanFilter(system, push, measured).predict(start, 0.03)
    assert found.estimate.mode == right.estimate.mode
    # the ground holds height, tilt and their rates, up to the second order of the spread
    held = [1, 2, 4, 5]
    deviations = np.sqrt(np.diag(found.estimate.covariance))
    assert deviations[held].max() < 1e-5 < deviations[0]
    np.testing.assert_allclose(
        deviations[[0, 3]], np.sqrt(np.diag(right.estimate.covariance))[[0, 3]], rtol=0.05
    )


def test_a_point_still_under_the_ground_after_a_bounce_does_not_stop_a_run_through_a_landing():
    """One corner rises from its bounce, for some points from below, and the other lands.

    Such points wait without guards, so they miss the landing that the others have had, and no
    simulation can start from them to find it.
    """
    system = block.system(actuated=True)
    push = Noise(1e-6 * np.eye(3), through_input=True)
    measured = linear("q", np.eye(3, 6), 1e-6 * np.eye(3))
    # corners 0.1 mm and 3 mm above the ground, at 0.1 m/s and -1 m/s
    x0 = np.array([0.0, 0.05155, -0.0145, 0.0, -0.45, 5.5])
    p0 = np.diag([1e-5, 2e-4, 1e-5, 1e-4, 1e-4, 1e-4]) ** 2
    start = Estimate(("open", "open"), 0.0, x0, p0)
    kf = UnscentedFilter(system, push, measured)
    found = kf.predict(start, 0.006)
    right = SaltedKalmanFilter(system, push, measured).predict(start, 0.006)
    assert {name for e in found.events for name in e.guards} == {"left closes", "right closes"}
    assert found.estimate.mode == right.estimate.mode
    values = np.array([found.estimate.mean[:3], right.estimate.mean[:3]])
    result = kf.run(Record({"q": Series(np.array([0.006, 0.0128]), values)}), start)
    assert len(result.steps) == 2
    assert np.linalg.eigvalsh(result.steps[-1].estimate.covariance).min() >= -1e-12


def test_on_a_manifold_it_turns_with_the_cube():
    p = cube.CubeParameters()
    space = RobotStateSpace(cube.robot(p, actuated=True))
    x0 = np.concatenate([[0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 1.0], np.zeros(3), [1.0, 2.0, -1.0]])
    measured = configuration("pose", space, 1e-6 * np.eye(6))
    arguments = cube.system(p, actuated=True), Noise(1e-8 * np.eye(6), through_input=True), measured
    start = Estimate(("open",) * 8, 0.0, x0, 1e-6 * np.diag(np.arange(1.0, 13.0)))
    found, right = (kind(*arguments) for kind in (UnscentedFilter, SaltedKalmanFilter))
    a, b = (kf.predict(start, 0.1).estimate for kf in (found, right))
    # second order: variance of the rotation, 1e-5
    np.testing.assert_allclose(space.difference(a.mean, b.mean), 0.0, atol=2e-5)
    np.testing.assert_allclose(a.covariance, b.covariance, atol=1e-8)
    value = space.integrate(b.mean, np.full(12, 1e-3))[:7]
    a, b = (kf.update(e, "pose", value) for kf, e in ((found, a), (right, b)))
    np.testing.assert_allclose(a.innovation.residual, b.innovation.residual, atol=2e-5)
    np.testing.assert_allclose(a.estimate.covariance, b.estimate.covariance, atol=1e-8)


def test_sliding_and_sticking_balls_stay_on_their_slope():
    p = ball.BallParameters(slope=0.35, friction=5.0)
    normal = np.array([np.sin(0.35), np.cos(0.35)])
    x0 = np.concatenate([0.5 * normal, [0.6, 0.0]])
    start = Estimate(("open",), 0.0, x0, np.diag([0.005, 0.005, 0.02, 0.02]) ** 2)
    kf = UnscentedFilter(ball.system(p), np.zeros((4, 4)), linear("q", np.eye(2, 4), np.eye(2)))
    e = kf.predict(start, 0.45).estimate
    assert e.mode == ("stick",)
    assert abs(normal @ e.mean[:2]) < 1e-7
    assert normal @ e.covariance[:2, :2] @ normal < 1e-14
    np.testing.assert_allclose(e.covariance[2:, 2:], 0.0, atol=1e-14)


def test_a_gate_and_a_wrong_row():
    kf = UnscentedFilter(affine(A, C), Q, linear("z", H, R, gate=0.99))
    start = Estimate("flow", 0.0, np.zeros(3), P0)
    assert not kf.update(start, "z", [9.0, 9.0]).innovation.accepted
    assert kf.update(start, "z", [np.nan, np.nan]).innovation is None
    with pytest.raises(InputError, match=r"'z' must have shape \(2,\), got \(3,\)"):
        kf.update(start, "z", np.zeros(3))


def test_points_have_the_covariance_whatever_its_units():
    rng = np.random.default_rng(3)
    scale = np.array([1e-6, 1.0, 1e5, 0.0])
    root = rng.normal(size=(4, 4)) * scale[:, None]
    points = compute_sigma_points(root @ root.T)
    assert points.shape == (6, 4)
    np.testing.assert_allclose(points.T @ points / 6, root @ root.T, rtol=1e-12)
    assert compute_sigma_points(np.zeros((3, 3))).shape == (0, 3)


def test_a_square_is_measured_with_the_mean_and_variance_of_its_points():
    r"""Of N(m, s^2) they are m + s and m - s, of squares with mean m^2 + s^2 and
    variance 4 m^2 s^2."""
    m, s, noise, value = 1.5, 0.4, 0.09, 2.9
    square = Measurement(
        "z", lambda mode, t, x, u: x**2, lambda mode, t, x, u: 2.0 * x[None], [[noise]]
    )
    kf = UnscentedFilter(affine([[0.0]], [0.0]), np.zeros((1, 1)), square)
    found = kf.update(Estimate("flow", 0.0, np.array([m]), np.array([[s**2]])), "z", [value])
    gain = 2.0 * m * s**2 / (4.0 * m**2 * s**2 + noise)
    right = m + gain * (value - m**2 - s**2)
    np.testing.assert_allclose(found.estimate.mean, [right], rtol=1e-12)
    left = (1.0 - 2.0 * m * gain) ** 2 * s**2 + gain**2 * noise
    np.testing.assert_allclose(found.estimate.covariance, [[left]], rtol=1e-12)
