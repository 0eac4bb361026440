"""Forces of feet by joint torques: against equations of motion of the floating robot, and lags."""

import numpy as np
import pytest
from estimation.legged.machine import GRAVITY, URDF
from scipy.spatial.transform import Rotation

from hybridctl.errors import InputError
from hybridctl.estimation.legged.kinematics import Foot, LegKinematics
from hybridctl.estimation.legged.leg_forces import (
    JointMomentum,
    LegDynamics,
    estimate_leg_forces,
    observe_torques,
)
from hybridctl.mechanics.multibody.passive import Rotor
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.series import Series

FIXED = Robot.from_urdf(URDF)
FLOATING = Robot.from_urdf(URDF, root="floating")
FEET = (Foot("left sole", flat=True), Foot("right sole"))
KINEMATICS = LegKinematics(FIXED, "imu", FEET)
DYNAMICS = LegDynamics(FIXED, KINEMATICS)
POINTS = LegDynamics(FIXED, LegKinematics(FIXED, "imu", [Foot(foot.frame) for foot in FEET]))
JOINTS = [FLOATING.velocities(name)[0] for name in KINEMATICS.joints]


COORDINATES = [FLOATING.joints.single("joint", name)[0] for name in KINEMATICS.joints]
START = np.array([0.1, -0.2, 0.7, -0.1, 0.3, 0.9])  # rad


def random_motion(rng, robot=FLOATING):
    """A random configuration and velocity of the floating robot."""
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    return q, rng.normal(size=robot.nv)


def sensed(q, v, a):
    """Joint angles and rates, and what gyroscope and accelerometer measure, of the floating robot.

    The accelerometer by the acceleration of its frame's origin: J a + dJ v, less gravity.
    """
    turn, arm = KINEMATICS.base
    root = Rotation.from_quat(q[3:7]).as_matrix()
    # Velocities of the root are in its own axes.
    moving, omega, pushed, spun = v[:3], v[3:6], a[:3], a[3:6]
    point = pushed + np.cross(omega, moving) + np.cross(spun, arm)
    point = point + np.cross(omega, np.cross(omega, arm))
    return q[COORDINATES], v[JOINTS], turn.T @ omega, turn.T @ (point - root.T @ GRAVITY)


def pushed(q, forces):
    """Generalized forces of world forces (2, 3) at the feet."""
    return sum(
        FLOATING.point_jacobian(q, foot.frame, np.zeros(3)).T @ force
        for foot, force in zip(FEET, forces, strict=True)
    )


def foot_wrench(q, rng):
    """Generalized forces of random forces on both feet, and a moment on the sole."""
    total = pushed(q, rng.normal(size=(2, 3)))
    # A couple of two opposite forces at two points of the sole.
    pair = rng.normal(size=3)
    for sign in (1.0, -1.0):
        jacobian = FLOATING.point_jacobian(q, "left sole", sign * np.array([0.05, 0.02, 0.01]))
        total += sign * jacobian.T @ pair
    return total


def derivative(function, q, v, a, h=1e-5):
    """How a function of q and v changes along a motion, to h^2 and rounding / h."""
    ahead, behind = (
        function(FLOATING.integrate(q, s * v + 0.5 * s**2 * a), v + s * a) for s in (h, -h)
    )
    return (ahead - behind) / (2.0 * h)


@pytest.mark.parametrize("seed", range(5))
def test_momentum_changes_by_motors_feet_and_gravity(seed):
    """In any motion of the base, with random torques and wrenches on the feet.

    Accelerations are those of the floating robot. Steps of 1e-5 s leave 1e-8 of the derivative.
    """
    rng = np.random.default_rng(seed)
    q, v = random_motion(rng)
    effort, pushing = rng.normal(size=FLOATING.nu), foot_wrench(q, rng)
    a = FLOATING.inverse_mass(q) @ (FLOATING.actuation @ effort + pushing - FLOATING.bias(q, v))

    def momentum(q, v):
        return DYNAMICS.evaluate(*sensed(q, v, a)).momentum

    torques = (FLOATING.actuation @ effort)[JOINTS]
    expected = torques + pushing[JOINTS] + DYNAMICS.evaluate(*sensed(q, v, a)).torque
    np.testing.assert_allclose(derivative(momentum, q, v, a), expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_momentum_is_that_of_the_mass_matrix(seed):
    """Of velocities as seen by who moves along with the sensor: rows of M v of the joints."""
    rng = np.random.default_rng(seed)
    q, v = random_motion(rng)
    v[:3] = -np.cross(v[3:6], KINEMATICS.base[1])  # the sensor's origin rests
    found = DYNAMICS.evaluate(*sensed(q, v, np.zeros(FLOATING.nv))).momentum
    np.testing.assert_allclose(found, (FLOATING.mass_matrix(q) @ v)[JOINTS], atol=1e-12)


def test_rotors_and_dampers_count():
    rotors = {name: Rotor(2e-3, 10.0) for name in KINEMATICS.joints}
    damping = dict.fromkeys(KINEMATICS.joints, 0.3)
    robot = Robot.from_urdf(URDF, rotors=rotors, damping=damping)
    own, rng = LegDynamics(robot, LegKinematics(robot, "imu", FEET)), np.random.default_rng(3)
    seen = sensed(*random_motion(rng), np.zeros(FLOATING.nv))
    found, plain = own.evaluate(*seen), DYNAMICS.evaluate(*seen)
    np.testing.assert_allclose(found.momentum - plain.momentum, 0.2 * seen[1], atol=1e-12)
    np.testing.assert_allclose(found.torque - plain.torque, -0.3 * seen[1], atol=1e-12)


def test_the_observer_answers_with_its_gain():
    """A torque that steps: r = (1 - exp(-lambda t)) f at the samples, whatever the momentum."""
    gain, times = 30.0, 0.01 * np.arange(40)
    force, own, slope = np.array([2.0, -1.0]), np.array([0.5, 0.3]), np.array([0.1, 0.2])
    middle = 0.5 * (times[1:] + times[:-1])
    # p' = tau + f + w with w = -tau, so that p = f t.
    motion = [JointMomentum(slope + force * t, -own) for t in middle]
    found = observe_torques(times, motion, np.tile(own, (40, 1)), gain)
    since = np.maximum(times - times[1], 0.0)
    expected = -np.expm1(-gain * since)[:, None] * force
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_observer_waits_where_angles_are_missing():
    times = np.concatenate([0.01 * np.arange(20), 1.0 + 0.01 * np.arange(5)])
    middle = 0.5 * (times[1:] + times[:-1])
    motion = [JointMomentum(np.array([5.0 * t]), np.zeros(1)) for t in middle]
    found = observe_torques(times, motion, np.zeros((25, 1)), 20.0)[:, 0]
    np.testing.assert_array_equal(found[20:22], found[19])
    assert found[22] > found[21]


@pytest.mark.parametrize("seed", range(3))
def test_forces_are_found_from_the_torques_that_they_make(seed):
    """J^T F of a force on each foot; a leg of three joints carries no moment of a sole."""
    rng = np.random.default_rng(seed)
    q, _ = random_motion(rng)
    q[COORDINATES] = START + 0.2 * rng.normal(size=6)  # of legs that are not stretched
    angles, *_ = sensed(q, np.zeros(FLOATING.nv), np.zeros(FLOATING.nv))
    up = (Rotation.from_quat(q[3:7]).as_matrix() @ KINEMATICS.base[0])[2]
    forces = rng.normal(size=(2, 3))
    found = POINTS.vertical_forces(angles, pushed(q, forces)[JOINTS], up)
    np.testing.assert_allclose(found, forces[:, 2], atol=1e-9)


def test_a_leg_that_is_pushed_says_by_how_much():
    """Forces of 40 and 25 N, first at rest, and then while base and joints move.

    From 0.5 s on the base turns by up to 0.2 rad, is shaken with 1 m/s^2, and joints move by 0.3
    rad, each as sin(w t), w = 6 / s. Torques follow 10 ms late, which is taken back but for its
    square: joints change by 30 rad/s^2 when the wave begins, 3 mrad in that time, of which each
    makes 0.1 N of 40 N in three joints. The tracked vertical is off by 0.015 rad, 0.1 N of 6 N
    along it. Means over 4 ms are off by (4 ms w)^2 / 8 of the torques, 5 mN m of 75 N m.
    """
    times, rng, w = 4e-3 * np.arange(350), np.random.default_rng(4), 6.0
    amplitudes, phases = rng.uniform(0.1, 0.3, 6), rng.uniform(0.0, 6.0, 6)
    forces = np.array([[5.0, -3.0, 40.0], [-4.0, 2.0, 25.0]])

    def place(t):
        part = np.clip((t - 0.5) / 0.5, 0.0, 1.0)
        wave = part**4 * (35.0 - 84.0 * part + 70.0 * part**2 - 20.0 * part**3)
        wave = wave * np.sin(w * t + phases)
        q = FLOATING.neutral()
        q[:3], q[COORDINATES] = wave[:3] / w**2, START + amplitudes * wave
        q[3:7] = Rotation.from_rotvec(0.2 * wave[3:]).as_quat()
        return q

    rows, h = [], 1e-4
    for t in times:
        before, q, after = place(t - h), place(t), place(t + h)
        ahead, behind = FLOATING.difference(q, after) / h, -FLOATING.difference(q, before) / h
        v, a = 0.5 * (ahead + behind), (ahead - behind) / h
        needed = FLOATING.mass_matrix(q) @ a + FLOATING.bias(q, v) - pushed(q, forces)
        angles, _, rate, force = sensed(q, v, a)
        rows.append((np.append(rate, force), angles, needed[JOINTS]))
    series = [Series(times, np.array(part)) for part in zip(*rows, strict=True)]
    found = estimate_leg_forces(POINTS, *series, 100.0)
    for k, foot in enumerate(POINTS.kinematics.feet):
        times, values = found[foot].times, found[foot].values[:, 0]
        at_rest, later = (times > 0.2) & (times < 0.48), times > 0.48
        np.testing.assert_allclose(values[at_rest], forces[k, 2], atol=1e-3)
        np.testing.assert_allclose(values[later], forces[k, 2], atol=0.5)


def test_torques_have_to_be_there_with_the_angles():
    times, rest = 0.01 * np.arange(50), np.tile([0.0, 0, 0, 0, 0, 9.81], (50, 1))
    parts = Series(times, rest), Series(times, np.zeros((50, 6)))
    for late in (Series(times + 9.0, np.zeros((50, 6))), Series(times, np.full((50, 6), np.nan))):
        with pytest.raises(InputError, match="torques must have been measured along"):
            estimate_leg_forces(POINTS, *parts, late, 100.0)
