"""How much feet creep, by their apparent velocity; noise of encoders; the gyroscope at rest."""

from dataclasses import replace

import numpy as np
import pytest
from differences import assert_derivative
from legged.machine import URDF, machine, state
from scipy.integrate import quad
from scipy.stats import norm

from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.record import Series
from hybridctl.legged.creep import (
    FootMotion,
    apparent_velocity,
    choose_window,
    complete_input,
    measure_angle_noise,
    measure_creep,
    measure_lever,
)
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.readings import Readings
from hybridctl.legged.rest import REST, find_rest, rest_measurement
from hybridctl.legged.rotation import matrix
from hybridctl.legged.system import BaseNoise
from hybridctl.mechanics.multibody.robot import Robot

KEY = ("stick", "stick")
MOTION = FootMotion(angle_noise=1e-4, window=0.01)


def standing_point(covariance, extra, **noise):
    """Input and base, whose right foot moves by `extra` (3,) in m/s in axes of the base."""
    base, _ = machine(flat=(True, False), noise=BaseNoise(**noise))
    x, u = state(base, KEY, np.random.default_rng(0))
    u[base.creep_columns] = 0.0
    e = Estimate(KEY, 0.0, x, covariance * np.eye(base.space(KEY).ndx))
    for number, seen in enumerate(base.kinematics(base.angles(u), base.feet)):
        still = matrix(x[:4]).T @ x[7:10] + np.cross(u[:3] - x[10:13], seen.position)
        u[base.moving_columns(number)] = extra - still
    return base, e, u


def test_a_foot_that_moves_gains_noise_by_the_square_of_its_velocity():
    """In closed form; a sole gains none, and nothing else of the input changes."""
    velocity = np.array([0.1, -0.2, 0.05])
    base, e, u = standing_point(1e-6, velocity, slip_time=0.03, slip_margin=1.5, slip_fast=0.2)
    _, seen = base.kinematics(base.angles(u), base.feet)
    _, h = apparent_velocity(seen, u[base.moving_columns(1)], e, u[:3])
    unknown = 1e-6 * np.sum(h**2) + 2.0 * (1e-4 / 0.01) ** 2 * np.sum(seen.moving**2)
    excess = (velocity @ velocity - 1.5 * unknown) / 3.0
    expected = 0.03 * excess * (1.0 + excess / 0.2**2)
    creep = measure_creep(base, e, u, MOTION)
    np.testing.assert_allclose(creep, [0.0, expected], rtol=1e-12)
    found = complete_input(base, e, u, creep, None)
    np.testing.assert_array_equal(found[base.creep_columns], creep)
    np.testing.assert_array_equal(np.delete(found, -1), np.delete(u, -1))


@pytest.mark.parametrize(
    ("covariance", "velocity", "noise", "expected"),
    [
        (1e-8, 0.0, {}, 0.0),
        (1e-2, 0.1, {}, 0.0),  # the base's own velocity is not known better
        (1e-8, 0.5, {"slip_time": 0.0}, 0.0),
        (1e-8, 9.0, {}, 0.02 * 101.0),  # of 1 m/s at most, which is ten times `slip_fast`
    ],
)
def test_a_foot_gains_no_noise_that_others_explain(covariance, velocity, noise, expected):
    base, e, u = standing_point(covariance, velocity * np.array([0.0, 0.6, 0.8]), **noise)
    found = measure_creep(base, e, u, MOTION)
    np.testing.assert_allclose(found, [0.0, expected], atol=1e-15)


def test_the_apparent_velocity_has_exact_derivatives():
    base, e, u = standing_point(1e-6, np.zeros(3))
    space = base.space(KEY)
    seen = base.kinematics(base.angles(u), base.feet)[1]

    def velocity(dx):
        moved = replace(e, mean=space.integrate(e.mean, np.append(dx, np.zeros(space.ndx - 12))))
        return apparent_velocity(seen, u[base.moving_columns(1)], moved, u[:3])[0]

    _, h = apparent_velocity(seen, u[base.moving_columns(1)], e, u[:3])
    assert_derivative(velocity, h)


def test_the_noise_of_encoders_is_measured_while_a_robot_gets_up():
    """Second differences leave out motion: 400 Hz, 6 joints, a dozen rows of the quietest.

    Neighbouring second differences are correlated by -2/3 and 1/6, so that 72 squares count as 37:
    their mean has a relative deviation of 0.23. The least of 33 such means is two to three of them
    low, and the noise found, which is its root, by 27 % to 44 %.
    """
    rng, times = np.random.default_rng(0), np.arange(0.0, 1.0, 2.5e-3)
    smooth = np.sin(3.0 * times)[:, None] * np.linspace(0.1, 1.0, 6)
    angles = Series(times, smooth + 2e-4 * rng.normal(size=smooth.shape))
    assert 0.56 * 2e-4 < measure_angle_noise(angles, 1e-3) < 0.9 * 2e-4
    assert measure_angle_noise(angles.select_rows(slice(0, 10)), 1e-3) == 1e-3


@pytest.mark.parametrize(("noise", "rows"), [(1e-6, 1), (3e-4, 4), (1e-2, 8)])
def test_velocities_of_feet_are_means_over_whole_periods(noise, rows):
    """The difference of two angles, over the window, has `slip_resolution`; of 20 ms at most."""
    settings, lever, period = BaseNoise(slip_resolution=0.1), 2.5, 2.5e-3
    wanted = np.sqrt(2.0) * noise * lever / 0.1
    assert choose_window(settings, noise, lever) == pytest.approx(min(wanted, 0.02))
    base, _ = machine(noise=settings)
    rng, times = np.random.default_rng(0), np.arange(0.0, 1.0, period)
    still = np.array([0.1, -0.2, 0.4, -0.1, -0.1, 0.3])
    lever = measure_lever(base.kinematics, still)
    # In proportion to its lever, the noise of encoders gives the window above.
    angles = still + noise * 2.5 / lever * rng.normal(size=(len(times), 6))
    found = FootMotion.of(base, Series(times, angles))
    wanted = choose_window(settings, found.angle_noise, lever)
    assert found.window == pytest.approx(max(round(wanted / period), 1) * period)
    assert abs(found.window / period - rows) <= 2


def test_the_lever_is_that_of_all_joints_and_axes():
    """The mean square of a foot's displacement by angles of unit variance, in each direction."""
    base, _ = machine()
    angles, h = np.array([0.1, -0.2, 0.4, -0.1, -0.1, 0.3]), 1e-6
    feet = base.kinematics.feet
    moved = [
        (ahead.position - behind.position) / (2.0 * h)
        for e in h * np.eye(6)
        for ahead, behind in zip(
            base.kinematics(angles + e, feet), base.kinematics(angles - e, feet), strict=True
        )
    ]
    expected = np.sqrt(np.square(moved).sum() / (3 * len(feet)))
    assert measure_lever(base.kinematics, angles) == pytest.approx(expected, rel=1e-6)


def getting_up(bias, stands):
    """Readings of a base that is held while its joints turn for half a second, and then stands."""
    rng, times = np.random.default_rng(1), np.arange(0.0, 0.5 + stands, 2.5e-3)
    angles = np.minimum(times, 0.5)[:, None] * np.linspace(0.5, 1.0, 6)
    inertial = np.tile([*bias, 0.0, 0.0, 9.81], (len(times), 1))
    inertial += rng.normal(size=inertial.shape) * np.repeat([2e-3, 2e-2], 3)
    forces = np.where(times < 0.5, 0.0, 50.0)[:, None]
    return Readings(
        Series(times, inertial),
        Series(times, angles + 1e-4 * rng.normal(size=angles.shape)),
        {foot: Series(times, forces) for foot in ("left sole", "right sole")},
    )


def test_rest_is_found_where_joints_stand():
    """From 0.5 s on, in quarters of a second that begin with the log, stamped once they end."""
    bias = np.array([0.02, -0.01, 0.03])
    given = getting_up(bias, 1.6)
    found = find_rest(given.inertial, given.angles, 0.0)
    np.testing.assert_allclose(found.times, [0.7525, 1.0025, 1.2525, 1.5025, 1.7525, 2.0025])
    # 100 samples of 2e-3 rad/s: medians to 2.4e-4, four deviations are 1e-3
    np.testing.assert_allclose(found.values[:, :3], np.tile(bias, (6, 1)), atol=1e-3)
    assert (found.values[:, 3] < 1e-3).all()
    assert len(find_rest(given.inertial, given.angles, 2.05)) == 0


def drifting(speed, rates=(400.0, 400.0)):
    """Inertial samples and joint angles for 1.1 s, at two rates in Hz; one joint drifts."""
    inertial, angles = (np.arange(0.0, 1.1, 1.0 / rate) for rate in rates)
    samples = np.tile([0.02, -0.01, 0.03, 0.0, 0.0, 9.81], (len(inertial), 1))
    return Series(inertial, samples), Series(angles, np.outer(angles, [0.0, -speed, 0.0]))


def test_a_joint_that_drifts_is_at_rest_to_its_speed():
    """The drift is by how much more than noise the body may turn: 10 mrad/s at most."""
    found = find_rest(*drifting(8e-3), 0.0)
    np.testing.assert_allclose(found.values[:, 3], 8e-3, rtol=1e-9)
    np.testing.assert_allclose(found.values[:, :3], np.tile([0.02, -0.01, 0.03], (4, 1)))
    assert len(find_rest(*drifting(12e-3), 0.0)) == 0


@pytest.mark.parametrize("rates", [(400.0, 20.0), (20.0, 400.0)])
def test_few_samples_say_nothing_of_rest(rates):
    assert len(find_rest(*drifting(0.0, rates), 0.0)) == 0


def test_a_rest_is_known_to_its_drift_and_the_noise_of_the_gyroscope():
    """White noise of density g has the variance g^2 / T in a mean over T = 0.25 s.

    That of the median of five means is 1.434 times as large, by the density of the third of five
    normal values, 30 phi(x) Phi(x)^2 (1 - Phi(x))^2.
    """
    base, system = machine(noise=BaseNoise(gyroscope=2e-3))
    x, u = state(base, KEY, np.random.default_rng(0))
    row = np.array([*x[10:13], 5e-3])
    found = rest_measurement(base).compare(system.mode(KEY), 0.0, x, u, row)
    np.testing.assert_allclose(found.residual, 0.0, atol=1e-15)
    third = quad(lambda x: 30.0 * x**2 * norm.pdf(x) * (norm.cdf(x) * norm.sf(x)) ** 2, -9.0, 9.0)
    expected = (5e-3) ** 2 + 5.0 * third[0] * (2e-3) ** 2 / 0.25
    np.testing.assert_allclose(found.covariance, expected * np.eye(3), rtol=1e-3)


def test_a_push_that_joints_do_not_show_is_no_bias():
    """A turn by 5 mrad in the last 5 of 100 rows, of the body and of a joint that holds it.

    The mean angle of the second half changes by 5 mrad / 2 * 5 / 50, a drift of 2 mrad/s. The mean
    rate is 20 mrad/s off.
    """
    sensor, angles = drifting(0.0)
    rates, places = sensor.values.copy(), angles.values.copy()
    last = np.flatnonzero(sensor.times < 0.25)[-5:]
    turned = 5e-3 * np.clip(sensor.times - sensor.times[last[0]], 0.0, 0.0125) / 0.0125
    rates[:, 0] += np.gradient(turned, sensor.times)
    places[:, 0] += turned
    found = find_rest(Series(sensor.times, rates), Series(angles.times, places), 0.0)
    assert len(found) == 4
    np.testing.assert_allclose(found.values[:, :3], np.tile([0.02, -0.01, 0.03], (4, 1)))


def test_a_robot_that_gets_up_first_learns_the_bias_of_its_gyroscope():
    """It walks by its joints, so that nothing is averaged at the start; then it stands."""
    bias = np.array([0.008, -0.004, 0.006])
    feet = (Foot("left sole"), Foot("right sole"))
    settings = BaseSettings("imu", feet, touch_force=40.0, lift_force=20.0, uniform_clock=False)
    estimator = settings.build(Robot.from_urdf(URDF))
    given = getting_up(bias, 2.0)
    record = estimator.record(given)
    assert estimator.stood(record) == 0.0
    assert len(record.channels[REST]) == 7
    e = estimator.run(given).steps[-1].estimate
    deviation = np.sqrt(np.diag(e.covariance)[9:12])
    assert (deviation < 1e-3).all()
    assert (np.abs(e.mean[10:13] - bias) < 3.0 * deviation + 3e-4).all()
