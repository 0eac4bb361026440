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
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.passive import Rotor
from hybridctl.series import Series

FIXED = Robot.from_urdf(URDF)
FLOATING = Robot.from_urdf(URDF, root="floating")
FEET = (Foot("left sole", flat=True), Foot("right sole"))
KINEMATICS = LegKinematics(FIXED, "imu", FEET)
DYNAMICS = LegDynamics(FIXED, KINEMATICS)
JOINTS = [FLOATING.velocities(name)[0] for name in KINEMATICS.joints]


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
    angles = q[[FLOATING.joints.single("joint", name)[0] for name in KINEMATICS.joints]]
    # Velocities of the root are in its own axes.
    moving, omega, pushed, spun = v[:3], v[3:6], a[:3], a[3:6]
    point = pushed + np.cross(omega, moving) + np.cross(spun, arm)
    point = point + np.cross(omega, np.cross(omega, arm))
    return angles, v[JOINTS], turn.T @ omega, turn.T @ (point - root.T @ GRAVITY)


def foot_wrench(q, rng):
    """Random forces on both feet, and a moment on the sole: of them J^T F, and their verticals."""
    forces = rng.normal(size=(2, 3))
    total = np.zeros(FLOATING.nv)
    for name, force in zip(("left sole", "right sole"), forces, strict=True):
        total += FLOATING.point_jacobian(q, name, np.zeros(3)).T @ force
    # A couple of two opposite forces at two points of the sole.
    pair = rng.normal(size=3)
    for sign in (1.0, -1.0):
        jacobian = FLOATING.point_jacobian(q, "left sole", sign * np.array([0.05, 0.02, 0.01]))
        total += sign * jacobian.T @ pair
    return total, forces[:, 2]


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
    effort, (pushing, _) = rng.normal(size=FLOATING.nu), foot_wrench(q, rng)
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
