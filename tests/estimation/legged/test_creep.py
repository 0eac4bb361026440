"""How much feet creep, by their apparent velocity; noise of encoders; the gyroscope at rest."""

from dataclasses import replace

import numpy as np
import pytest
from differences import assert_derivative
from estimation.legged.machine import URDF, machine, state

from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.legged.creep import (
    FootMotion,
    apparent_velocity,
    measure_angle_noise,
    with_creep,
)
from hybridctl.estimation.legged.estimator import BaseSettings
from hybridctl.estimation.legged.kinematics import Foot
from hybridctl.estimation.legged.readings import Readings
from hybridctl.estimation.legged.rest import REST, find_rest
from hybridctl.estimation.legged.rotation import matrix
from hybridctl.estimation.legged.system import BaseNoise
from hybridctl.estimation.record import Series
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
    found = with_creep(base, e, u, MOTION)
    np.testing.assert_allclose(found[base.creep_columns], [0.0, expected], rtol=1e-12)
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
    found = with_creep(base, e, u, MOTION)[base.creep_columns]
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
    assert measure_angle_noise(angles.rows(slice(0, 10)), 1e-3) == 1e-3


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
    # 100 samples of 2e-3 rad/s: means to 2e-4, four deviations are 8e-4
    np.testing.assert_allclose(found.values[:, :3], np.tile(bias, (6, 1)), atol=8e-4)
    assert (found.values[:, 3] < 1e-3).all()
    assert len(find_rest(given.inertial, given.angles, 2.05)) == 0


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
