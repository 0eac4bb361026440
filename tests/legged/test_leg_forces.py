"""Forces of feet by joint torques: against equations of motion of the floating robot, and lags."""

import numpy as np
import pytest
from legged.machine import GRAVITY, URDF
from scipy.spatial.transform import Rotation

from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.legged.kinematics import Foot, LegKinematics
from hybridctl.legged.leg_forces import (
    JointMomentum,
    LegDynamics,
    estimate_leg_forces,
    observe_torques,
)
from hybridctl.mechanics.multibody.passive import Rotor
from hybridctl.mechanics.multibody.robot import Robot

# Centres of mass that are not at the joints, as those of a real leg.
MASSIVE = URDF.replace("<inertial>", '<inertial><origin xyz="0.02 -0.01 -0.15" rpy="0.3 0.1 0"/>')
FIXED = Robot.from_urdf(MASSIVE)
FLOATING = Robot.from_urdf(MASSIVE, root="floating")
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
    robot = Robot.from_urdf(MASSIVE, rotors=rotors, damping=damping)
    own, rng = LegDynamics(robot, LegKinematics(robot, "imu", FEET)), np.random.default_rng(3)
    seen = sensed(*random_motion(rng), np.zeros(FLOATING.nv))
    found, plain = own.evaluate(*seen), DYNAMICS.evaluate(*seen)
    np.testing.assert_allclose(found.momentum - plain.momentum, 0.2 * seen[1], atol=1e-12)
    np.testing.assert_allclose(found.torque - plain.torque, -0.3 * seen[1], atol=1e-12)


def make_motion(times, momentum):
    """Motion with a momentum (t -> (2,)) that feet change alone, and torques of motors (n, 2).

    Gravity takes back what the motors give.
    """
    motion = [JointMomentum(momentum(t), -OWN) for t in 0.5 * (times[1:] + times[:-1])]
    return motion, np.tile(OWN, (len(times), 1))


OWN = np.array([0.5, 0.3])  # N m, of the motors


def test_the_observer_starts_from_the_load():
    """At rest motors and gravity say the torque of the feet: it is known in the first row."""
    times, load = 0.01 * np.arange(12), np.array([2.0, -1.0])
    motion = [JointMomentum(np.array([0.1, 0.2]), OWN - load)] * 11
    found = observe_torques(times, motion, np.tile(-OWN, (12, 1)), 30.0)
    np.testing.assert_allclose(found.torques, np.tile(load, (10, 1)), atol=1e-14)


def test_the_observer_answers_a_step_with_its_gain():
    """From halfway between rows 10 and 11 on: r = (1 - exp(-lambda t)) f at the middles.

    At its stamps the response is as much early as late: its area is that of the step. The sum of
    1 - r over rows h apart is h / (exp(lambda h) - 1), by which the stamps are earlier.
    """
    gain, h, step = 30.0, 0.01, np.array([2.0, -1.0])
    times = h * np.arange(80)
    begin = 10.5 * h
    found = observe_torques(times, *make_motion(times, lambda t: step * max(t - begin, 0.0)), gain)
    since = np.maximum(times[1:-1] + 0.5 * h - begin, 0.0)
    expected = -np.expm1(-gain * since)[:, None] * step
    np.testing.assert_allclose(found.torques, expected, atol=1e-12)
    area = h * (1.0 - found.torques[10:, 0] / step[0]).sum()
    assert times[1:-1][-1] - found.times[-1] == pytest.approx(h / np.expm1(gain * h), rel=1e-9)
    assert area == pytest.approx(h / np.expm1(gain * h), rel=1e-8)


def test_a_torque_that_changes_steadily_is_exact_on_any_clock():
    """Six times 1 / lambda later: what the start leaves is 1e-2 of 2.5e-3 then."""
    rng, gain = np.random.default_rng(0), 100.0
    times = np.cumsum(rng.uniform(2e-3, 10e-3, 200))
    slope = np.array([5.0, -8.0])
    found = observe_torques(times, *make_motion(times, lambda t: 0.5 * slope * t**2), gain)
    later = found.times > times[0] + 0.25
    np.testing.assert_allclose(
        found.torques[later], found.times[later, None] * slope, rtol=0.0, atol=1e-9
    )
    assert (np.diff(found.times) > 0.0).all()


def test_the_observer_starts_anew_after_rows_that_are_missing():
    times, load = 0.01 * np.arange(30), np.array([2.0, -1.0])
    known = np.ones(28, dtype=bool)
    known[10:15] = False
    motion, torques = make_motion(times, lambda t: load * t)
    found = observe_torques(times, motion, torques, 20.0, known)
    assert np.isnan(found.torques[10:15]).all()
    again = observe_torques(times[15:], motion[15:], torques[15:], 20.0)
    np.testing.assert_array_equal(found.torques[15:], again.torques)
    np.testing.assert_array_equal(found.times[15:], again.times)


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


def test_a_round_foot_is_pushed_below_its_center():
    """By torques of a force at the lowest point of a ball with a radius of 3 cm."""
    rng, radius = np.random.default_rng(6), 0.03
    feet = [Foot(foot.frame, radius=radius) for foot in FEET]
    round_feet = LegDynamics(FIXED, LegKinematics(FIXED, "imu", feet))
    q, _ = random_motion(rng)
    q[COORDINATES] = START
    sensor = Rotation.from_quat(q[3:7]).as_matrix() @ KINEMATICS.base[0]
    forces, torques = rng.normal(size=(2, 3)), np.zeros(FLOATING.nv)
    for foot, force, seen in zip(FEET, forces, KINEMATICS(START, KINEMATICS.feet), strict=True):
        lowest = (sensor @ seen.rotation).T @ [0.0, 0.0, -radius]
        torques += FLOATING.point_jacobian(q, foot.frame, lowest).T @ force
    found = round_feet.vertical_forces(START, torques[JOINTS], sensor[2])
    np.testing.assert_allclose(found, forces[:, 2], atol=1e-9)


def test_a_sole_on_three_joints_bears_as_little_moment_as_may_be():
    """The least |F|^2 + |M / 0.1 m|^2: F = J k, M = (0.1 m)^2 W k, and J^T F + W^T M = tau.

    J and W are derivatives of place and turn by the joints of the leg.
    """
    rng = np.random.default_rng(5)
    angles, torques, up = (
        START + 0.2 * rng.normal(size=6),
        rng.normal(size=6),
        np.array([0, 0.6, 0.8]),
    )
    flat, _ = KINEMATICS(angles, KINEMATICS.feet)
    leg = np.abs(flat.moving).max(axis=0) > 0.0
    moving, turning = flat.moving[:, leg], flat.turning[:, leg]
    k = np.linalg.solve(moving.T @ moving + 0.1**2 * turning.T @ turning, torques[leg])
    found = DYNAMICS.vertical_forces(angles, torques, up)[0]
    assert found == pytest.approx(up @ moving @ k, rel=1e-9)


def test_a_leg_that_is_pushed_says_by_how_much():
    """Forces of 40 and 25 N, first at rest, and then while base and joints move.

    At rest forces are exact from the first row on. From 0.5 s on the base turns by up to 0.2 rad,
    is shaken with 1 m/s^2, and joints move by 0.3 rad, each as sin(w t), w = 6 / s. Torques follow
    8 ms late, which is taken back but for its square: joints change by 30 rad/s^2 when the wave
    begins, 2 mrad in that time, of which each makes 0.1 N of 40 N in three joints. The tracked
    vertical is off by 0.015 rad, 0.1 N of 6 N along it. Means over 4 ms are off by (4 ms w)^2 / 8
    of the torques, 5 mN m of 75 N m.
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
        at_rest, later = times < 0.48, times > 0.48
        assert times[0] == pytest.approx(4e-3)
        np.testing.assert_allclose(values[at_rest], forces[k, 2], atol=1e-3)
        np.testing.assert_allclose(values[later], forces[k, 2], atol=0.5)


def resting(count=60, jolts=0):
    """Samples of a robot at rest, every 10 ms, and torques that bear 40 and 25 N.

    jolts: the number of rows at the end of the first half second in which the sensor feels 3 g
    sideways.
    """
    times, force = 0.01 * np.arange(count), np.tile([0.0, 0, 0, 0, 0, 9.81], (count, 1))
    q = FLOATING.neutral()
    q[COORDINATES] = START
    q[3:7] = Rotation.from_matrix(KINEMATICS.base[0].T).as_quat()
    forces = np.array([[5.0, -3.0, 40.0], [-4.0, 2.0, 25.0]])
    needed = FLOATING.bias(q, np.zeros(FLOATING.nv)) - pushed(q, forces)
    force[50 - jolts : 50, 3] = 30.0
    return [
        Series(times, values)
        for values in (force, np.tile(START, (count, 1)), np.tile(needed[JOINTS], (count, 1)))
    ]


@pytest.mark.parametrize(("part", "lost"), [(0, (21, 26)), (1, (22, 26)), (2, (22, 25))])
def test_where_samples_are_missing_no_force_is_known(part, lost):
    """Rows 22 to 25 of inertial samples, angles or torques are missing; a force needs neighbours.

    Without angles there are no such rows, and the two on either side know no momentum between.
    """
    series = resting()
    kept = (np.arange(60) < 22) | (np.arange(60) > 25)
    series[part] = series[part].select_rows(kept)
    found = estimate_leg_forces(POINTS, *series, 100.0)["left sole"]
    missing = np.isnan(found.values[:, 0])
    np.testing.assert_allclose(found.values[~missing, 0], 40.0, atol=1e-9)
    if part == 1:
        assert np.flatnonzero(missing).tolist() == [20, 21]
    else:
        assert (np.flatnonzero(missing) + 1).tolist() == list(range(lost[0], lost[1] + 1))


def test_one_missing_sample_is_interpolated():
    series = [s.select_rows(np.arange(60) != 20 + k) for k, s in enumerate(resting())]
    found = estimate_leg_forces(POINTS, *series, 100.0)["right sole"]
    np.testing.assert_allclose(found.values, 25.0, atol=1e-9)


def test_a_push_while_standing_does_not_tilt_the_vertical():
    """Five of 60 rows with 3 g sideways: their mean force points 14 degrees to the side.

    Later the vertical is drawn to the force by 0.5 / s: for 50 ms by less than 0.025 rad, of which
    forces of 5 N across make 0.2 N.
    """
    found = estimate_leg_forces(POINTS, *resting(jolts=5), 100.0)
    for foot, force in zip(POINTS.kinematics.feet, (40.0, 25.0), strict=True):
        early = found[foot].times < 0.43
        np.testing.assert_allclose(found[foot].values[early, 0], force, atol=1e-9)


def test_torques_have_to_be_there_with_the_angles():
    times, rest = 0.01 * np.arange(50), np.tile([0.0, 0, 0, 0, 0, 9.81], (50, 1))
    parts = Series(times, rest), Series(times, np.zeros((50, 6)))
    for late in (Series(times + 9.0, np.zeros((50, 6))), Series(times, np.full((50, 6), np.nan))):
        with pytest.raises(InputError, match="torques must have been measured along"):
            estimate_leg_forces(POINTS, *parts, late, 100.0)
