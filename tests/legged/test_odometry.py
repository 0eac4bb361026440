"""Baselines: odometry of a machine that steps without slipping, and the literature's settings."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from legged.machine import URDF
from scipy.spatial.transform import Rotation

from hybridctl.base.time_series import Series
from hybridctl.legged.attitude import TILT_RATE, integrate_attitude
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.hypotheses import ContactEvidence
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.odometry import (
    HARTLEY,
    _find_loaded,
    _move_by_feet,
    leg_odometry,
    literature_settings,
)
from hybridctl.legged.readings import Readings
from hybridctl.mechanics.multibody.robot import Robot

FEET = (Foot("left sole", flat=True), Foot("right sole", flat=True))
SETTINGS = BaseSettings("imu", FEET, touch_force=100.0, lift_force=50.0, standing=0.5)
ESTIMATOR = SETTINGS.build(Robot.from_urdf(URDF))
PERIOD, STAND, STEP, STEPS = 2e-3, 0.5, 0.4, 4  # s, s, s, and how many steps
START = np.array([0.1, -0.2, 0.4, -0.1, -0.1, 0.3])
BIAS = np.array([0.01, -0.02, 0.03])


@cache
def walk():
    """Angles (n, 6), poses of the inertial frame, and which foot stands, at each period.

    The stance foot is where it was, so that the joint angles alone say where the base is. Angles
    move along smooth steps that begin and end at rest.
    """
    rng = np.random.default_rng(5)
    times = np.arange(0.0, STAND + STEP * STEPS, PERIOD)
    angles, stance = np.tile(START, (len(times), 1)), np.zeros(len(times), dtype=int)
    for k in range(STEPS):
        along = np.clip((times - STAND - k * STEP) / STEP, 0.0, 1.0)
        smooth = along**3 * (10.0 - 15.0 * along + 6.0 * along**2)
        angles += smooth[:, None] * rng.uniform(-0.4, 0.4, 6)
        stance[times >= STAND + k * STEP - 1e-9] = k % 2
    kinematics = ESTIMATOR.base.kinematics
    turns, places, feet = [], [], None
    for row, foot in zip(angles, stance, strict=True):
        seen = kinematics(row, [f.frame for f in FEET])
        if feet is None:
            turn, place = kinematics.base[0], np.array([0.0, 0.0, 0.5])
        else:
            turn = feet[foot][0] @ seen[foot].rotation.T
            place = feet[foot][1] - turn @ seen[foot].position
        feet = [(turn @ s.rotation, place + turn @ s.position) for s in seen]
        turns.append(turn)
        places.append(place)
    return times, angles, Rotation.from_matrix(np.array(turns)), np.array(places), stance


def readings(bias=BIAS):
    """What sensors without noise say of the walk; the other foot bears nothing while it steps."""
    times, angles, turns, places, stance = walk()
    rate = np.tile(bias, (len(times), 1))
    rate[1:-1] += (turns[:-2].inv() * turns[2:]).as_rotvec() / (2.0 * PERIOD)
    up = np.array([0.0, 0.0, 9.81])
    pushed = np.gradient(np.gradient(places, PERIOD, axis=0), PERIOD, axis=0)
    force = turns.inv().apply(pushed + up)
    begun = times >= STAND
    loads = {
        foot.frame: Series(times, np.where(begun & (stance != k), 0.0, 150.0))
        for k, foot in enumerate(FEET)
    }
    given = Readings(Series(times, np.hstack([rate, force])), Series(times, angles), loads)
    return given, times, turns, places


def root_of(turns, places):
    inertial, offset = ESTIMATOR.base.kinematics.base
    root = turns * Rotation.from_matrix(inertial).inv()
    return root, places - root.apply(offset)


@pytest.mark.parametrize("rate", [0.0, TILT_RATE])
def test_odometry_follows_a_machine_that_does_not_slip(monkeypatch, rate):
    """But for the tilt, which pushes of steps turn by the rate times their angle to the vertical.

    The rest is the error of differences and of the trapezoidal rule, h^2 of some 10 rad/s^3.
    """
    monkeypatch.setattr("hybridctl.legged.attitude.TILT_RATE", rate)
    given, times, turns, places = readings()
    truth_turns, truth = root_of(turns, places)
    found = leg_odometry(ESTIMATOR, given, ESTIMATOR.start(given, position=truth[0]))
    np.testing.assert_allclose(found.times, times, atol=1e-9)
    assert np.linalg.norm(truth[-1] - truth[0]) > 0.1
    pushed = turns.apply(np.array(given.inertial.values[:, 3:]))
    aside = np.linalg.norm(pushed[:, :2], axis=1) / np.linalg.norm(pushed, axis=1)
    tilted = rate * float(aside.sum()) * PERIOD
    assert (found.rotations * truth_turns.inv()).magnitude().max() < tilted + 2e-4
    reach = 0.8  # m, from feet to the inertial frame at most
    assert np.linalg.norm(found.positions - truth, axis=1).max() < reach * tilted + 1e-4


def test_the_attitude_is_that_of_the_gyroscope_where_gravity_agrees():
    """A machine that only turns about the vertical: integration of exact rates, bias taken off."""
    times = PERIOD * np.arange(500)
    yaw = 0.3 * np.sin(3.0 * times)
    rate = 0.9 * np.cos(3.0 * times)
    inertial = np.hstack([rate[:, None] * [0, 0, 1] + BIAS, np.tile([0, 0, 9.81], (500, 1))])
    found = integrate_attitude(Series(times, inertial), np.array([0.0, 0.0, 0.0, 1.0]), BIAS)
    angles = Rotation.from_quat(found).as_euler("ZYX")
    # The trapezoidal rule is off by h^2/12 of the change of the rate's derivative.
    np.testing.assert_allclose(angles[:, 0], yaw, atol=PERIOD**2 / 12.0 * 0.9 * 3.0 * 2.0)
    np.testing.assert_allclose(angles[:, 1:], 0.0, atol=1e-9)


def test_tilt_goes_back_at_its_rate():
    """At rest an error of tilt decays as exp(-t TILT_RATE), whose sine is the correction."""
    times = PERIOD * np.arange(1000)
    inertial = np.hstack([np.zeros((1000, 3)), np.tile([0, 0, 9.81], (1000, 1))])
    tilt = 1e-3
    start = Rotation.from_euler("x", tilt).as_quat()
    found = integrate_attitude(Series(times, inertial), start, np.zeros(3))
    left = Rotation.from_quat(found[-1]).magnitude()
    assert left == pytest.approx(tilt * np.exp(-TILT_RATE * times[-1]), rel=1e-3)


def test_without_forces_the_lower_half_of_the_feet_counts():
    given, _, turns, places = readings()
    bare = Readings(given.inertial, given.angles, {})
    _, truth = root_of(turns, places)
    found = leg_odometry(ESTIMATOR, bare, ESTIMATOR.start(bare, position=truth[0]))
    # While both stand nothing moves, whichever is lower; the first step is 1e-5 m in a period.
    still = found.times < STAND - PERIOD
    assert len(found) == len(truth)
    np.testing.assert_allclose(found.positions[still], truth[still], atol=1e-5)


def test_the_lower_half_is_by_height_alone():
    """The first foot is ahead and lower, then the second one is."""
    given, *_ = readings()
    bare = Readings(given.inertial, given.angles, {})
    reach = np.array([[[0.3, 0.0, -0.5], [0.0, 0.0, -0.4]], [[0.3, 0.0, -0.4], [0.0, 0.0, -0.5]]])
    loaded = _find_loaded(ESTIMATOR, bare, np.array([0.0, 1.0]), reach)
    np.testing.assert_array_equal(loaded, [[True, False], [False, True]])


def test_in_flight_the_last_velocity_goes_on():
    given, times, turns, places = readings()
    _, truth = root_of(turns, places)
    flying = (times > STAND + 0.2) & (times < STAND + 0.25)
    loads = {
        foot: Series(times, np.where(flying, 0.0, load.values[:, 0]))
        for foot, load in given.loads.items()
    }
    flown = Readings(given.inertial, given.angles, loads)
    found = leg_odometry(ESTIMATOR, flown, ESTIMATOR.start(flown, position=truth[0]))
    sensor = found.positions + found.rotations.apply(ESTIMATOR.base.kinematics.base[1])
    steps = np.diff(sensor[np.flatnonzero(flying)], axis=0)
    assert np.linalg.norm(steps[0]) > 1e-4
    np.testing.assert_allclose(steps, np.tile(steps[0], (len(steps), 1)), atol=1e-12)


def test_a_step_is_by_the_feet_that_bear_load_at_both_of_its_ends():
    """The base goes 0.1 m ahead in each row; a foot that swings, or that lands, says otherwise."""
    ahead = np.array([[0.0, 3.0], [-0.1, 9.0], [-0.2, 8.9], [7.0, 8.8]])
    reach = ahead[:, :, None] * [1.0, 0.0, 0.0]
    loaded = np.array([[True, False], [True, True], [True, True], [False, True]])
    expected = np.tile([0.1, 0.0, 0.0], (3, 1))
    np.testing.assert_allclose(_move_by_feet(reach, loaded), expected, atol=1e-15)


def test_settings_of_the_literature():
    given = replace(SETTINGS, evidence=ContactEvidence(), settle=0.1)
    found = literature_settings(given)
    assert (found.evidence, found.settle) == (None, 0.0)
    assert [foot.flat for foot in found.feet] == [False, False]
    assert (found.inertial, found.touch_force) == (given.inertial, given.touch_force)
    assert {name: getattr(found.noise, name) for name in HARTLEY} == HARTLEY
    # Table 1 of the paper; encoders of 0.5 deg.
    noise = found.noise
    assert (noise.gyroscope, noise.accelerometer, noise.foot) == (0.002, 0.04, 0.05)
    assert (noise.gyroscope_walk, noise.accelerometer_walk) == (0.001, 0.001)
    assert noise.encoder == pytest.approx(np.pi / 360.0)
    assert noise.measured < 0.02 * noise.encoder
    assert [foot.radius for foot in found.feet] == [0.0, 0.0]
