"""Feet that rise after a touch on ground that gives way."""

import numpy as np
import pytest
from legged.machine import URDF, machine, state
from scipy.spatial.transform import Rotation

from hybridctl.estimation.estimate import Estimate
from hybridctl.legged.creep import FootMotion
from hybridctl.legged.creep_filter import CreepFilter
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.ground_rise import RISE_WALK, GroundRise, begin_rise
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.point_feet_filter import PointFeetFilter
from hybridctl.legged.system import BaseNoise
from hybridctl.mechanics.multibody.robot import Robot

BOTH, ONE = ("stick", "stick"), ("open", "stick")
NOISE = BaseNoise(foot_rise=2e-3, foot_rise_time=0.05)


def joint(covariance, rise):
    """The covariance (ndx + 1, ndx + 1) of deviation and rise."""
    c = rise.covariance
    return np.block([[covariance, c[:, None]], [c[None], np.atleast_2d(rise.variance)]])


def begun(n=21, seed=0):
    """An estimate on two feet, and a rise that goes with it."""
    base, _ = machine(flat=(False, False), noise=NOISE)
    x, _ = state(base, BOTH, np.random.default_rng(seed))
    root = 1e-3 * np.random.default_rng(seed + 1).normal(size=(n + 1, n + 1))
    whole = root @ root.T
    rise = GroundRise(1e-3, whole[n, n], whole[:n, n], {0: 0.9, 1: -np.inf}, np.inf)
    return Estimate(BOTH, 1.0, x, whole[:n, :n]), rise


def predicted(e, rise, end):
    """The prediction of an estimate until a time by the filter written out, and its input."""
    base, _ = machine(flat=(False, False), noise=NOISE)
    _, u = state(base, BOTH, np.random.default_rng(0))
    return PointFeetFilter(base, 1e-4, None).predict(e, end, u, 1e-6, 0.0, rise)


def test_a_prediction_is_that_of_one_state_more():
    """With the derivative of the whole state, in axes of the inertial frame."""
    e, rise = begun()
    plain, found = predicted(e, None, 1.03), predicted(e, rise, 1.03)
    phi, after = found.transition, found.estimate
    assert plain.rise is None
    np.testing.assert_array_equal(phi, plain.transition)
    part = np.exp(-2.0) - np.exp(-2.6)  # of what rises with 50 ms, 100 to 130 ms after the touch
    moved = np.zeros(21)
    moved[15:18] = part * Rotation.from_quat(after.mean[:4]).inv().apply([0.0, 0.0, 1.0])
    whole = np.eye(22)
    whole[:21, :21], whole[:21, 21] = phi, moved
    expected = whole @ joint(e.covariance, rise) @ whole.T
    expected[:21, :21] += plain.estimate.covariance - phi @ e.covariance @ phi.T
    expected[21, 21] += RISE_WALK**2 * 0.03
    now = joint(after.covariance, found.rise)
    np.testing.assert_allclose(now, expected, rtol=1e-9, atol=1e-16)
    raised = after.mean - plain.estimate.mean
    np.testing.assert_allclose(raised[16:19], [0.0, 0.0, 1e-3 * part], atol=1e-15)
    np.testing.assert_array_equal(np.delete(raised, [16, 17, 18]), 0.0)


@pytest.mark.parametrize("mean", [1e-2, -1e-2])
def test_a_correction_is_that_of_one_state_more(mean):
    """By Bayes' rule of the joint covariance; a mean below zero moves both to where it is zero."""
    e, rise = begun()
    rise = rise._replace(mean=mean)
    rng = np.random.default_rng(4)
    h, r = rng.normal(size=(6, 21)), 1e-3 * rng.normal(size=6)
    s = h @ e.covariance @ h.T + 1e-6 * np.eye(6)
    factor = np.linalg.cholesky(s)
    white, by_rise, score = (
        np.linalg.solve(factor, value) for value in (h @ e.covariance, h @ rise.covariance, r)
    )
    after, back = rise.correct(white, by_rise, score)
    whole, rows = joint(e.covariance, rise), np.hstack([h, np.zeros((6, 1))])
    gain = whole @ rows.T @ np.linalg.inv(s)
    expected, left = np.r_[np.zeros(21), mean] + gain @ r, whole - gain @ rows @ whole
    if expected[21] < 0.0:  # the mean of the others on condition that the rise is zero
        expected = expected - left[:, 21] / left[21, 21] * expected[21]
    assert (back is None) == (mean > 0.0)
    moved = score @ white + (0.0 if back is None else back)
    np.testing.assert_allclose(moved, expected[:21], rtol=1e-8, atol=1e-12)
    assert after.mean == pytest.approx(expected[21], abs=1e-15)
    p = e.covariance - white.T @ white
    np.testing.assert_allclose(joint(p, after), left, rtol=1e-8, atol=1e-14)


def test_any_other_correction_is_followed():
    """A channel of the general filter, whose derivative nobody tells: by estimates alone."""
    e, rise = begun()
    base, _ = machine(flat=(False, False), noise=NOISE)
    h, noise = np.random.default_rng(5).normal(size=(3, 21)), 1e-6 * np.eye(3)
    r = 1e-4 * np.random.default_rng(6).normal(size=3)
    s = h @ e.covariance @ h.T + noise
    gain = e.covariance @ h.T @ np.linalg.inv(s)
    space = base.space(BOTH)
    after = Estimate(
        BOTH, 1.0, space.integrate(e.mean, gain @ r), (np.eye(21) - gain @ h) @ e.covariance
    )
    found = rise.follow(space, e, after)
    c = rise.covariance
    weight = np.linalg.solve(s, h @ c)
    assert found.mean == pytest.approx(rise.mean + weight @ r, rel=1e-6)
    assert found.variance == pytest.approx(rise.variance - weight @ h @ c, rel=1e-6)
    np.testing.assert_allclose(found.covariance, c - gain @ h @ c, rtol=1e-6, atol=1e-14)
    changed = Estimate(ONE, 1.0, np.zeros(19), np.eye(18))
    np.testing.assert_array_equal(rise.follow(space, e, changed).covariance, np.zeros(18))


def test_feet_rise_where_their_noise_is_not_given_and_they_are_points():
    assert begin_rise(BaseNoise(foot=1e-3), 21) is None
    assert begin_rise(BaseNoise(foot_rise=0.0), 21) is None
    for flat in (False, True):
        feet = tuple(Foot(f"{side} sole", flat) for side in ("left", "right"))
        made = BaseSettings("imu", feet, noise=NOISE).build(Robot.from_urdf(URDF))
        kept = CreepFilter(made.base, made.filter, FootMotion(angle_noise=1e-4, window=0.01))
        space = made.base.space(BOTH)
        x, _ = state(made.base, BOTH, np.random.default_rng(0))
        started = kept.start(Estimate(BOTH, 0.0, x, np.eye(space.ndx)))
        assert (started.rise is None) == flat


def test_a_touch_begins_a_rise_and_feet_that_have_stood_do_not_rise():
    e, _ = begun()
    rise, end = begin_rise(NOISE, 21), 1.0 + 5.0 * NOISE.foot_rise_time
    plain = predicted(e, None, end).estimate.covariance
    np.testing.assert_array_equal(predicted(e, rise, end).estimate.covariance, plain)
    touched = rise.touch(np.eye(21), 1, 1.0, NOISE)
    grown = predicted(e, touched, end).estimate.covariance - plain
    np.testing.assert_array_equal(grown[:18, :18], 0.0)
    expected = (NOISE.foot_rise * (1.0 - np.exp(-5.0))) ** 2
    assert np.trace(grown[18:, 18:]) == pytest.approx(expected, rel=1e-6)
    assert touched.find_parts([0, 1], touched.until - 1e-9, end, NOISE) is not None
    assert touched.find_parts([0, 1], touched.until, end, NOISE) is None
