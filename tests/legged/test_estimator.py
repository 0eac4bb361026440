"""The estimator of a legged base: its start, its root, what it flags, and a machine that stands."""

from dataclasses import replace

import numpy as np
import pytest
from differences import central
from legged.machine import URDF
from scipy.spatial.transform import Rotation
from scipy.stats import chi2

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.record import Series
from hybridctl.estimation.smoother import smooth
from hybridctl.legged.contact_checks import find_suspicious_contacts
from hybridctl.legged.estimator import BaseSettings, StartDeviations
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.noise_levels import noise_of_creep, noise_of_standing
from hybridctl.legged.readings import Hysteresis, Readings
from hybridctl.legged.start import rest_bias
from hybridctl.legged.system import BaseNoise
from hybridctl.mechanics.multibody.robot import Robot

FEET = (Foot("left sole", flat=True), Foot("right sole"))
SETTINGS = BaseSettings("imu", FEET, touch_force=100.0, lift_force=50.0, settle=0.0, standing=0.5)
ANGLES = np.array([0.1, -0.2, 0.4, -0.1, -0.1, 0.3])
TILT, HEADING = (0.05, -0.1), 0.7
RATE = np.array([0.01, -0.02, 0.03])
STEPS = 200  # of 0.01 s
ROBOT = Robot.from_urdf(URDF)


def standing(forces=(150.0, 150.0), noise=0.0, feet=2):
    """A machine at rest, whose gyroscope has a bias."""
    estimator, rng = SETTINGS.build(ROBOT), np.random.default_rng(0)
    times = 0.01 * np.arange(STEPS)
    root = Rotation.from_euler("ZYX", [HEADING, TILT[1], TILT[0]]).as_matrix()
    force = (root @ estimator.base.kinematics.base[0]).T @ [0.0, 0.0, 9.81]
    inertial = np.hstack([np.tile(RATE, (STEPS, 1)), np.tile(force, (STEPS, 1))])
    inertial += noise * rng.normal(size=inertial.shape)
    loads = {
        foot.frame: Series(times, np.full(STEPS, f))
        for foot, f in zip(FEET[:feet], forces[:feet], strict=True)
    }
    return Readings(Series(times, inertial), Series(times, np.tile(ANGLES, (STEPS, 1))), loads)


def test_a_push_before_joints_move_is_no_bias():
    """The last three of 50 rows of standing feel a jump that has moved no joint far yet.

    They measure 2.5 g and 0.4 rad/s, of which means would be off by 0.9 m/s^2 and 24 mrad/s.
    """
    given = standing()
    values = given.inertial.values.copy()
    values[48:51, 3:] *= 2.5
    values[48:51, :3] += 0.4
    pushed = replace(given, inertial=Series(given.inertial.times, values))
    estimator = SETTINGS.build(ROBOT)
    plain, first = estimator.start(given), estimator.start(pushed)
    np.testing.assert_allclose(first.mean, plain.mean, atol=1e-12)


@pytest.mark.parametrize("pushed_rows", [0, 4])
def test_the_bias_of_the_gyroscope_is_as_far_off_as_it_claims(pushed_rows):
    """Medians of 41 rows of white noise with a density of 5 mrad/s/sqrt(Hz), of 150 logs.

    Their squares in units of the variance lie in the chi-square band of 99.9 %; four rows with
    0.5 rad/s shift the median by 0.12 deviations of a row, 0.6 of its own, which adds 0.4.
    """
    noise, estimator = 0.05, gyroscope_estimator(5e-3)
    given, squares = standing(), []
    for seed in range(50):
        values = given.inertial.values.copy()
        values[:, :3] += noise * np.random.default_rng(seed).normal(size=(STEPS, 3))
        values[41 - pushed_rows : 41, :3] += 0.5
        first = estimator.start(replace(given, inertial=Series(given.inertial.times, values)))
        error, p = first.mean[10:13] - RATE, first.covariance[9:12, 9:12]
        squares.extend(error**2 / np.diag(p))
    low, high = chi2.ppf([5e-4, 0.9995], 150) / 150
    assert low < np.mean(squares) < high + (0.4 if pushed_rows else 0.0)


def gyroscope_estimator(noise):
    """Estimator of a robot that stands for 0.4 s, with a density in rad/s/sqrt(Hz)."""
    settings = replace(SETTINGS, standing=0.4, noise=replace(BaseNoise(), gyroscope=noise))
    return settings.build(ROBOT)


def test_a_quiet_gyroscope_is_as_sure_as_the_settings_say():
    first = gyroscope_estimator(1e-5).start(standing())
    np.testing.assert_allclose(np.diag(first.covariance)[9:12], StartDeviations.gyroscope**2)


def test_a_machine_at_rest_stays_where_it_is():
    """Tilt and bias are known from the start; only rounding moves it."""
    estimator = SETTINGS.build(ROBOT)
    first = estimator.start(standing(), heading=HEADING, position=(1.0, 2.0, 0.5))
    result = estimator.run(standing(), first)
    root = estimator.root(result.steps[-1].estimate, RATE)
    np.testing.assert_allclose(root.position, [1.0, 2.0, 0.5], atol=1e-9)
    np.testing.assert_allclose(root.velocity, 0.0, atol=1e-9)
    angles = Rotation.from_quat(root.orientation).as_euler("ZYX")
    np.testing.assert_allclose(angles, [HEADING, TILT[1], TILT[0]], atol=1e-9)
    np.testing.assert_allclose(first.mean[10:13], RATE, atol=1e-12)
    assert first.mode == ("stick", "stick")
    assert estimator.flags(standing(), result) == ()


def test_rest_says_the_bias_along_gravity_and_couples_the_rest_with_the_tilt():
    """To first order in bias over gravity, 0.04: products of two such are 2e-3.

    The size of the force is trusted as far as its deviation says, 0.03 m/s^2 of a sensor that shows
    no noise at rest, beside what the biases seen at rest say of their size: 0.19 m/s^2.
    """
    estimator, readings = SETTINGS.build(ROBOT), standing()
    bias = np.array([0.2, -0.1, 0.3])
    values = readings.inertial.values + np.r_[np.zeros(3), bias]
    biased = replace(readings, inertial=replace(readings.inertial, values=values))
    first = estimator.start(biased, heading=HEADING)
    root = Rotation.from_euler("ZYX", [HEADING, TILT[1], TILT[0]])
    axes = root * Rotation.from_matrix(estimator.base.kinematics.base[0])
    up = axes.inv().apply([0.0, 0.0, 1.0])
    excess = np.linalg.norm(9.81 * up + bias) - 9.81
    known = StartDeviations.force**2
    wide = expected_bias(RATE, excess)
    assert wide == pytest.approx(0.192, abs=1e-3)
    trust = 1.0 / (1.0 + known / wide**2)
    np.testing.assert_allclose(first.mean[13:16] @ up, trust * excess, atol=2e-3)
    turned = (Rotation.from_quat(first.mean[:4]).inv() * axes).as_rotvec()
    left = bias - first.mean[13:16]
    across = np.cross(up, left) / 9.81
    np.testing.assert_allclose(turned - (turned @ up) * up, across, atol=2e-3)
    p = first.covariance
    assert up @ p[12:15, 12:15] @ up == pytest.approx(trust * known, rel=2e-2)
    other = np.cross(up, [1.0, 0.0, 0.0])
    other /= np.linalg.norm(other)
    assert other @ p[12:15, 12:15] @ other == pytest.approx(wide**2, rel=2e-2)
    tilt = np.cross(up, other)  # of a bias along `other`
    assert tilt @ p[:3, 12:15] @ other == pytest.approx(wide**2 / 9.81, rel=2e-2)
    assert tilt @ p[:3, :3] @ tilt == pytest.approx(0.01**2 + (wide / 9.81) ** 2, rel=2e-2)


def expected_bias(rate, excess):
    """The deviation of the accelerometer's bias, m/s^2, by biases at rest beyond the expected."""
    known = StartDeviations()
    return known.accelerometer * np.sqrt(
        (np.sum((rate / known.offset) ** 2) + (excess / known.accelerometer) ** 2) / 4.0
    )


def test_a_sensor_without_bias_is_as_sure_as_the_settings_say():
    estimator, readings = SETTINGS.build(ROBOT), without_rate(standing())
    first = estimator.start(readings, heading=HEADING)
    np.testing.assert_allclose(first.mean[13:16], 0.0, atol=1e-12)
    assert np.linalg.eigvalsh(first.covariance[12:15, 12:15])[-1] == pytest.approx(0.03**2)
    told = estimator.start(readings, orientation=(0.0, 0.0, 0.0, 1.0))
    np.testing.assert_array_equal(told.covariance[:3, 12:15], 0.0)


def without_rate(readings):
    """Readings without the bias of the gyroscope."""
    values = readings.inertial.values - np.r_[RATE, np.zeros(3)]
    return replace(readings, inertial=replace(readings.inertial, values=values))


def test_a_large_bias_of_the_gyroscope_says_one_of_the_accelerometer():
    """Across gravity by the ratio of both, unless `offset` is 0; along gravity rest says more."""
    estimator, readings = SETTINGS.build(ROBOT), standing()
    wide = expected_bias(RATE, 0.0)
    assert wide == pytest.approx(0.03 * np.linalg.norm(RATE) / (2.0 * 5e-3))
    largest = np.linalg.eigvalsh(estimator.start(readings).covariance[12:15, 12:15])
    np.testing.assert_allclose(largest[1:], wide**2)
    assert largest[0] < 0.25 * wide**2
    alone = replace(SETTINGS, start=StartDeviations(offset=0.0)).build(ROBOT).start(readings)
    assert np.linalg.eigvalsh(alone.covariance[12:15, 12:15])[-1] == pytest.approx(0.03**2)


@pytest.mark.parametrize("scale", [1.0, 3.0, 10.0])
def test_biases_of_any_scale_are_as_far_off_as_claimed(scale):
    """The squared error across gravity over its claim, capped at 9, on average over 400 sensors.

    With s^2 the mean square of four values of the same scale, b^2 / s^2 is distributed as F(1, 4),
    whose mean is 2, of which the cap takes a third. The least s makes it lower at scale 1.
    """
    rng, known = np.random.default_rng(7), StartDeviations()
    found = []
    for _ in range(400):
        rate = scale * known.offset * rng.normal(size=3)
        bias = scale * known.accelerometer * rng.normal(size=3)
        force = np.array([0.0, 0.0, 9.81]) + bias
        seen = rest_bias(force, rate, 9.81, 1.0, 1e-3, known)
        found.append(np.minimum(bias[:2] ** 2 / np.diag(seen.covariance)[:2], 9.0))
    assert 0.6 < np.mean(found) < 2.0


def test_the_covariance_of_the_root_is_that_of_its_derivative():
    estimator = SETTINGS.build(ROBOT)
    key, rng = ("stick", "open"), np.random.default_rng(1)
    space = estimator.base.space(key)
    x = space.normalize(rng.normal(size=space.nx))
    spread = rng.normal(size=(space.ndx, space.ndx))
    own = estimator.root(Estimate(key, 0.0, x, spread @ spread.T), RATE)
    turn = Rotation.from_quat(own.orientation)

    def deviation(e):
        moved = Estimate(key, 0.0, space.integrate(x, e), spread)
        root = estimator.root(moved, RATE)
        turned = (Rotation.from_quat(root.orientation) * turn.inv()).as_rotvec()
        return np.concatenate([turned, root.position, root.velocity])

    by = central(deviation, space.ndx, 1e-5)
    expected = by @ spread @ spread.T @ by.T
    scale = np.abs(expected).max()
    np.testing.assert_allclose(own.covariance, expected, rtol=0.0, atol=1e-8 * scale)


def stepping():
    """Both feet, then the right one alone, then both."""
    readings = standing()
    times = readings.angles.times
    left = np.where((times > 0.8) & (times < 1.2), 0.0, 150.0)
    return Readings(
        readings.inertial, readings.angles, readings.loads | {"left sole": Series(times, left)}
    )


def test_feet_leave_the_state_and_come_back():
    estimator = SETTINGS.build(ROBOT)
    result = estimator.run(stepping())
    assert [(event.guards, event.mode_after) for event in result.events] == [
        (("left sole lifts",), ("open", "stick")),
        (("left sole touches",), ("stick", "stick")),
    ]
    sizes = {len(p) for p in result.covariances}
    assert sizes == {15 + 3, 15 + 9}
    assert [event.time for event in result.events] == pytest.approx([0.81, 1.2], abs=1e-9)


def test_a_smoother_goes_back_through_touchdown_and_lift_off():
    """It is as sure as the filter at least, at every step, and needs no new beginning."""
    estimator = SETTINGS.build(ROBOT)
    result = estimator.run(stepping())
    found = smooth(estimator.system, result)
    assert not found.notes
    for step, own in zip(result.steps, found.estimates, strict=True):
        difference = step.estimate.covariance - own.covariance
        assert np.linalg.eigvalsh(difference).min() > -1e-12


def test_without_forces_contacts_are_by_motion_and_that_is_flagged():
    estimator = SETTINGS.build(ROBOT)
    readings = standing(feet=1)
    result = estimator.run(readings)
    assert result.modes[-1] == ("stick", "stick")
    flags = ("no forces of 'right sole': contacts by motion",)
    assert estimator.flags(readings, result) == flags
    empty = Series(readings.angles.times, np.full(len(readings.angles.times), np.nan))
    with_empty = replace(readings, loads={**readings.loads, "right sole": empty})
    assert estimator.flags(with_empty, estimator.run(with_empty)) == flags


def test_a_foot_without_a_single_force_gets_those_of_joint_torques():
    estimator, readings = SETTINGS.build(ROBOT), standing()
    times = readings.angles.times
    empty = Series(times, np.full(len(times), np.nan))
    given = replace(readings, loads={**readings.loads, "right sole": empty})
    torques = Series(times, np.zeros((len(times), len(estimator.joints))))
    found = estimator.add_leg_forces(given, torques)
    assert np.isfinite(found.loads["right sole"].values).any()
    assert found.loads["left sole"] is given.loads["left sole"]
    assert estimator.add_leg_forces(readings, torques) is readings


def test_thresholds_are_shares_of_the_weight_unless_told():
    """Seven links of 1 kg on two feet: two thirds and one third of 34 N."""
    bare = replace(SETTINGS, touch_force=None, lift_force=None)
    part = 0.5 * 7.0 * 9.81
    contact = bare.build(ROBOT).contact
    assert (contact.on, contact.off) == pytest.approx((part / 1.5, part / 3.0))
    assert replace(bare, weight=120.0).build(ROBOT).contact.on == pytest.approx(40.0)
    assert replace(bare, touch_force=50.0).build(ROBOT).contact == Hysteresis(50.0, 25.0)
    assert replace(bare, lift_force=50.0).build(ROBOT).contact == Hysteresis(100.0, 50.0)


def test_contacts_that_chatter_or_never_change_are_flagged():
    estimator, readings = SETTINGS.build(ROBOT), standing()
    times = readings.angles.times
    loads = np.where(np.sin(2.0 * np.pi * 10.0 * times) > 0.0, 150.0, 0.0)
    other = np.where(np.sin(2.0 * np.pi * 1.5 * times) > 0.0, 150.0, 0.0)
    right = {"right sole": Series(times, other)}
    for left, said in ((loads, "are shorter than 0.06 s"), (0.0 * times, "is never in contact")):
        given = replace(readings, loads={"left sole": Series(times, left)} | right)
        result = estimator.run(given)
        found = find_suspicious_contacts(
            estimator.base, estimator.contact, result, 0.3, given.loads
        )
        flags = [flag for flag in found if "left sole" in flag]
        assert said in flags[0]


def test_gaps_and_disorder_are_flagged():
    estimator = SETTINGS.build(ROBOT)
    whole = standing()
    rows = np.r_[0:50, 80:120, 119:50:-1]

    def cut(series):
        return Series(series.times[rows], series.values[rows])

    some = Readings(cut(whole.inertial), cut(whole.angles), {})
    flags = estimator.flags(some, estimator.run(some))
    assert "stamps out of order" in flags[0]
    rows = np.r_[0:50, 80:120]
    some = Readings(cut(whole.inertial), cut(whole.angles), {})
    assert estimator.flags(some, estimator.run(some))[0].startswith("1 gaps of up to 3")


def test_the_noise_of_standing_is_that_of_the_samples():
    """200 samples of three axes: the standard deviation is known to 1 / sqrt(2 * 153) = 6 %."""
    noise = 0.02
    found = noise_of_standing(SETTINGS, standing(noise=noise)).noise
    for value in (found.gyroscope, found.accelerometer):
        assert value == pytest.approx(noise * 0.1, rel=4 * 0.06)


def test_the_noise_of_creeping_feet_is_that_of_their_random_walk():
    """A hip that walks at random, in 20 contacts of both feet: known to 1 / sqrt(2 * 20)."""
    rng, q, n = np.random.default_rng(3), 0.02, 4000
    times = 0.01 * np.arange(n)
    angles = np.tile(ANGLES, (n, 1))
    angles[:, 0] += np.cumsum(q * np.sqrt(0.01) * rng.normal(size=n))
    left = np.where(times % 2.0 < 1.0, 150.0, 0.0)
    loads = {"left sole": Series(times, left), "right sole": Series(times, np.full(n, 150.0))}
    found = noise_of_creep(
        SETTINGS, ROBOT, Readings(Series(times, np.ones((n, 6))), Series(times, angles), loads)
    ).noise
    assert found.foot_turn == pytest.approx(q / np.sqrt(6.0), rel=4.0 / np.sqrt(40.0))
    with pytest.raises(InputError, match="two feet in contact for a time"):
        noise_of_creep(SETTINGS, ROBOT, standing())


def test_the_noise_of_standing_is_not_that_of_walking():
    """What comes after the time of standing shakes a hundred times as much."""
    readings = standing(noise=0.02)
    given, rng = readings.inertial, np.random.default_rng(1)
    moves = (given.times > given.times[0] + SETTINGS.standing)[:, None]
    assert moves.any()
    shaken = Series(given.times, given.values + 2.0 * moves * rng.normal(size=given.values.shape))
    right = noise_of_standing(SETTINGS, readings).noise
    found = noise_of_standing(SETTINGS, replace(readings, inertial=shaken)).noise
    assert (found.gyroscope, found.accelerometer) == (right.gyroscope, right.accelerometer)


def test_the_noise_of_creeping_feet_is_how_far_they_creep_for_the_time():
    """Two contacts, of 1 and 0.5 s, in which the joints turn steadily."""
    times = 0.01 * np.arange(1000)
    angles = ANGLES + times[:, None] * np.array([0.01, -0.02, 0.03, 0.02, 0.01, -0.01])
    spans = (4.0, 5.0), (6.0, 6.5)
    down = np.any([(times > a - 1e-6) & (times < b + 1e-6) for a, b in spans], axis=0)
    force = {"left sole": np.where(down, 150.0, 0.0), "right sole": np.full(1000, 150.0)}
    loads = {name: Series(times, values) for name, values in force.items()}
    found = noise_of_creep(
        SETTINGS, ROBOT, Readings(Series(times, np.ones((1000, 6))), Series(times, angles), loads)
    ).noise
    kinematics, moved, spent = SETTINGS.build(ROBOT).base.kinematics, 0.0, 0.0
    for span in spans:
        places = []
        for t in span:
            left, right = kinematics(angles[round(100 * t)], ("left sole", "right sole"))
            places.append(right.rotation.T @ (left.position - right.position))
        moved += np.sum((places[1] - places[0]) ** 2)
        spent += span[1] - span[0]
    # the variance of each of the three coordinates and of both feet
    assert found.foot == pytest.approx(np.sqrt(moved / (6.0 * spent)), rel=1e-9)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'imu'"):
        replace(SETTINGS, inertial="im").build(ROBOT)
    with pytest.raises(InputError, match="off must be below on"):
        replace(SETTINGS, touch_force=10.0)
    with pytest.raises(InputError, match="gravity must point down along z"):
        replace(SETTINGS, gravity=(0.0, 1.0, -9.0))
    with pytest.raises(InputError, match="noise must be a BaseNoise"):
        replace(SETTINGS, noise={})
    with pytest.raises(InputError, match="encoder must be greater than 0"):
        BaseNoise(encoder=0.0)
