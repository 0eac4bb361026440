"""Standing and stance: forces by hand, and the simulation stays where it is."""

from importlib.metadata import files

import numpy as np
import pytest
from hybridctl.robots import five_link
from scipy.optimize import minimize

import hybridctl as hc
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.mechanics import (
    Contact,
    Plane,
    Robot,
    Wrench,
    contact_system,
    contacts_from,
    equilibrium,
)

BOTH = ("stick", "stick")
APART = np.array([0.0, 0.75, 0.05, 0.25, 0.1, -0.35, 0.1])
ONE = np.array([0.0, 0.78, 0.0, 0.0, 0.1, -0.3, 0.7])


@pytest.fixture(scope="module")
def walker():
    return five_link.system()


@pytest.fixture(scope="module", params=[BOTH, five_link.LEFT_STANCE])
def standing(request, walker):
    return request.param, equilibrium(
        walker, request.param, APART if request.param == BOTH else ONE
    )


def test_the_ground_carries_the_weight(walker, standing):
    """Normal forces add up to the weight, and friction to nothing."""
    mode, found = standing
    assert found.normal.sum() == pytest.approx(walker.robot.weight, rel=1e-8)
    assert found.friction.sum() == pytest.approx(0.0, abs=1e-6)
    closed = [m == "stick" for m in mode]
    assert (found.normal[closed] > 0.0).all()
    assert (np.abs(found.friction).max(axis=1) <= 0.9 * 0.7 * found.normal + 1e-6).all()


def test_a_single_foot_is_below_the_centre_of_mass(walker):
    found = equilibrium(walker, five_link.LEFT_STANCE, ONE)
    pitch, hips, knees = found.state[2], found.state[[3, 5]], found.state[[4, 6]]
    femur, tibia = pitch + hips, pitch + hips + knees
    knee = found.state[0] - 0.4 * np.sin(femur)
    moments = 12.0 * (found.state[0] + 0.24 * np.sin(pitch))
    moments += 6.8 * (found.state[0] - 0.11 * np.sin(femur)).sum()
    moments += 3.2 * (knee - 0.24 * np.sin(tibia)).sum()
    foot = knee[0] - 0.4 * np.sin(tibia[0])
    assert moments / 32.0 == pytest.approx(foot, abs=1e-8)


def test_it_stays_there(walker, standing):
    """No acceleration, and after 0.05 s no motion beyond rounding times the unstable growth."""
    mode, found = standing
    field = walker.mode(mode).field(0.0, found.state, found.input)
    assert np.abs(field).max() < 1e-6
    run = hc.simulate(walker, mode, found.state, (0.0, 0.05), lambda t, x: found.input)
    np.testing.assert_allclose(run.final_state, found.state, atol=1e-7)


def test_limits_of_torques_are_kept(walker):
    loose = equilibrium(walker, BOTH, APART)
    largest = np.abs(loose.input).max()
    tight = equilibrium(walker, BOTH, APART, torque=0.8 * largest)
    assert np.abs(tight.input).max() <= 0.8 * largest + 1e-9


def test_what_cannot_stand_is_refused(walker):
    with pytest.raises(InputError, match="no equilibrium"):
        equilibrium(walker, BOTH, APART, force=500.0)
    with pytest.raises(InputError, match="slides"):
        equilibrium(walker, ("slip+", "open"), APART)


GROUND = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
MASSES, LENGTH, CENTRE, GRAVITY = (4.0, 1.0, 0.5), 0.25, 0.125, 9.81  # kg, m, m, m/s^2
KNEE_LIMIT = 2.6  # rad


def _link(name, mass, height):
    moment = mass * LENGTH**2 / 12
    return (
        f'<link name="{name}"><inertial><origin xyz="0 0 {height}"/><mass value="{mass}"/>'
        f'<inertia ixx="{moment}" iyy="{moment}" izz="1e-4" ixy="0" ixz="0" iyz="0"/>'
        "</inertial></link>"
    )


def _joint(name, parent, child, lower, upper, height):
    return (
        f'<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="0 0 {height}"/><axis xyz="0 1 0"/>'
        f'<limit lower="{lower}" upper="{upper}" effort="50" velocity="20"/></joint>'
    )


HOPPER = (
    '<robot name="hopper">'
    + _link("trunk", MASSES[0], CENTRE)
    + _link("thigh", MASSES[1], -CENTRE)
    + _link("shank", MASSES[2], -CENTRE)
    + _joint("hip", "trunk", "thigh", -2.0, 2.0, 0.0)
    + _joint("knee", "thigh", "shank", 0.0, KNEE_LIMIT, -LENGTH)
    + "</robot>"
)


@pytest.fixture(scope="module")
def hopper():
    """A trunk on a leg of two links with a point foot, in the sagittal plane."""
    robot = Robot.from_urdf(HOPPER, root="sagittal")
    foot = Contact("foot", "shank", GROUND, offset=(0.0, 0.0, -LENGTH), friction=0.8)
    return contact_system(robot, [foot])


def _on_one_leg(hip, knee):
    """Height and pitch with the centre of mass above the foot, and the torques that hold them.

    Seen from the foot: links lean by absolute angles, sin along x and cos along z. Torques are
    derivatives of the potential by hip and knee with the trunk not turning.
    """

    def moments(pitch):
        thigh, shank = pitch + hip, pitch + hip + knee
        x, z = LENGTH * np.sin(shank), LENGTH * np.cos(shank)  # of the knee
        hip_x, hip_z = x + LENGTH * np.sin(thigh), z + LENGTH * np.cos(thigh)
        arms = np.array(
            [
                [hip_x + CENTRE * np.sin(pitch), hip_z + CENTRE * np.cos(pitch)],
                [x + CENTRE * np.sin(thigh), z + CENTRE * np.cos(thigh)],
                [CENTRE * np.sin(shank), CENTRE * np.cos(shank)],
            ]
        )
        return np.array(MASSES) @ arms, hip_z

    (x, z), _ = moments(0.0)
    pitch = -np.arctan2(x, z)
    height = moments(pitch)[1]
    thigh, shank = pitch + hip, pitch + hip + knee
    above_hip, above_knee = MASSES[0], MASSES[0] + MASSES[1]
    by_shank = -GRAVITY * np.sin(shank) * (above_knee * LENGTH + MASSES[2] * CENTRE)
    by_thigh = -GRAVITY * np.sin(thigh) * (above_hip * LENGTH + MASSES[1] * CENTRE)
    return height, pitch, np.array([by_thigh + by_shank, by_shank])


@pytest.mark.parametrize("torque_weight", [1e-6, 1e-4, 1e-2, 0.1])
@pytest.mark.parametrize(("hip", "knee"), [(-0.6, 1.2), (-0.5, 1.0), (-0.3, 0.6), (-0.7, 1.4)])
def test_a_hopper_stands_where_the_sum_of_way_and_torques_is_least(
    hopper, hip, knee, torque_weight
):
    """Of all balanced postures, found by hand; SLSQP folded the knee by 3.16 rad in 12 of 16.

    Steps end at a decrease of 1e-11, thus some 1e-5 from the minimum, where the objective is flat.
    """
    q0 = hopper.robot.posture({"hip": hip, "knee": knee})
    q0[1] = LENGTH * (np.cos(hip) + np.cos(hip + knee))
    found = equilibrium(hopper, ("stick",), q0, torque_weight=torque_weight)

    def objective(angles):
        height, pitch, torques = _on_one_leg(*angles)
        way = np.array([height - q0[1], pitch, angles[0] - hip, angles[1] - knee])
        return 0.5 * way @ way + 0.5 * torque_weight * torques @ torques

    least = minimize(
        objective,
        [hip, knee],
        method="Nelder-Mead",
        bounds=[(-2.0, 2.0), (0.0, KNEE_LIMIT)],
        options={"xatol": 1e-8, "fatol": 1e-14},
    )
    height, pitch, torques = _on_one_leg(*least.x)
    assert objective(found.state[3:5]) <= least.fun + 1e-9
    np.testing.assert_allclose(found.state[:5], [0.0, height, pitch, *least.x], atol=2e-4)
    np.testing.assert_allclose(found.input, torques, atol=2e-3)
    assert found.normal == pytest.approx([sum(MASSES) * GRAVITY], rel=1e-8)
    assert found.residual < 1e-9
    assert hopper.consistent_mode(found.state, found.input) == ("stick",)


def test_joint_limits_of_the_model_are_kept(hopper):
    """Also where the start is beyond them; a joint whose limits are equal has none."""
    q0 = hopper.robot.posture({"hip": -1.4, "knee": 2.8})
    q0[1] = 0.1
    found = equilibrium(hopper, ("stick",), q0, torque_weight=1e-6)
    assert 2.5 < found.state[4] <= KNEE_LIMIT
    unlimited = HOPPER.replace(f'lower="0.0" upper="{KNEE_LIMIT}"', "")
    robot = Robot.from_urdf(unlimited, root="sagittal")
    free = equilibrium(contact_system(robot, hopper.contacts), ("stick",), q0, torque_weight=1e-6)
    assert free.state[4] > KNEE_LIMIT + 0.1


def test_one_that_is_far_is_refused_with_its_distance(hopper):
    """A hopper 2 m above the ground has to come down by 2 m, less what its leg can stretch."""
    q0 = hopper.robot.posture({"hip": -0.6, "knee": 1.2})
    q0[1] = 2.0 + 2.0 * LENGTH * np.cos(0.6)
    with pytest.raises(InputError, match=r"reach=1.*\n.* is 1\.9\d away, at root_z:"):
        equilibrium(hopper, ("stick",), q0)
    found = equilibrium(hopper, ("stick",), q0, reach=3.0)
    assert found.distance == pytest.approx(2.0, abs=0.05)
    assert found.distance == np.abs(found.state[:5] - q0).max()


def test_what_is_no_question_is_refused(hopper):
    q0 = hopper.robot.posture({"hip": -0.6, "knee": 1.2})
    with pytest.raises(UnknownNameError, match="mode"):
        equilibrium(hopper, ("stick", "stick"), q0)
    push = Wrench("trunk", force=(1.0, 0.0, 0.0), start=0.0, end=1.0)
    with pytest.raises(InputError, match="system must be without wrenches"):
        equilibrium(hopper.pushed(push), ("stick",), q0)
    with pytest.raises(InputError, match="reach must be greater"):
        equilibrium(hopper, ("stick",), q0, reach=0.0)


CROUCHED = {
    "talos_reduced": (
        [f"leg_{side}_{k}_joint" for side in ("left", "right") for k in (3, 4, 5)],
        [-0.4, 0.8, -0.4],
    ),
    "g1_29dof_rev_1_0": (
        [f"{s}_{k}_joint" for s in ("left", "right") for k in ("hip_pitch", "knee", "ankle_pitch")],
        [-0.3, 0.6, -0.3],
    ),
    "icub_reduced": (
        [f"{s}_{k}" for s in "lr" for k in ("hip_pitch", "knee", "ankle_pitch", "elbow")],
        [0.3, -0.6, -0.3, 0.5],
    ),
}
SOLES = {
    "talos_reduced": (("left_sole_link", "right_sole_link"), 0.0),
    "g1_29dof_rev_1_0": (("left_ankle_roll_link", "right_ankle_roll_link"), -0.035),
    "icub_reduced": (("l_sole", "r_sole"), 0.0),
}


def _published(name):
    return next(f for f in files("example-robot-data") if f.name == f"{name}.urdf").locate()


def _on_soles(name):
    """A humanoid with four points a sole, and it crouched just above the ground."""
    robot = Robot.from_urdf(_published(name), root="floating")
    frames, height = SOLES[name]
    corners = [(x, y, height) for x in (0.1, -0.1) for y in (0.05, -0.05)]
    contacts = [
        Contact(f"{frame} {k}", frame, GROUND, offset=corner, friction=0.7)
        for frame in frames
        for k, corner in enumerate(corners)
    ]
    joints, angles = CROUCHED[name]
    q = robot.posture(dict(zip(joints, 2 * angles, strict=True)))
    system = contact_system(robot, contacts, joint_friction=False)
    q[2] -= system.dynamics.gaps(q).min()
    return system, q


def _check_rest(system, mode, found):
    """The run's own field, forces and limits; forces and gaps to the accuracy of the search."""
    robot, weight = system.robot, system.robot.weight
    point = system.mode(mode)
    assert found.residual < 1e-9
    field = point.field(0.0, found.state, found.input)
    net = robot.mass_matrix(found.state[: robot.nq]) @ field[-robot.nv :]
    assert np.abs(net).max() < 1e-7 * weight
    outputs = point.outputs(0.0, found.state, found.input)
    np.testing.assert_allclose(outputs["normal_force"], found.normal, atol=1e-9 * weight)
    np.testing.assert_allclose(outputs["friction_force"], found.friction, atol=1e-9 * weight)
    assert outputs["gap"].min() > -1e-9
    _, forces = system.dynamics.contact_set.express_in_world(
        found.state[: robot.nq], found.normal, found.friction
    )
    np.testing.assert_allclose(forces.sum(axis=0), [0.0, 0.0, weight], atol=1e-7 * weight)
    for limit in robot.limits.values():
        assert limit.lower <= found.state[limit.coordinate] <= limit.upper


@pytest.mark.parametrize("name", ["talos_reduced", "g1_29dof_rev_1_0"])
def test_humanoids_stand_on_redundant_contacts(name):
    """Four points a sole: 24 force components, of which 12 act on the soles."""
    system, q0 = _on_soles(name)
    mode = ("stick",) * 8
    found = equilibrium(system, mode, q0)
    _check_rest(system, mode, found)
    assert found.distance < 0.2
    assert system.consistent_mode(found.state, found.input) == mode


def test_the_least_force_is_that_of_loads_as_a_run_shares_them():
    """On one foot an even distribution leaves a corner without load, where another does not."""
    system, q0 = _on_soles("icub_reduced")
    mode, least = ("open",) * 4 + ("stick",) * 4, 0.02 * system.robot.weight
    found = equilibrium(system, mode, q0, force=least)
    _check_rest(system, mode, found)
    assert found.normal[4:].min() >= least * (1.0 - 1e-4)


@pytest.mark.parametrize("stiffness", [{}, {"joint1": 2.0, "joint2": 1.0}])
def test_a_pendulum_without_motors_hangs(stiffness):
    """Where its potential has a minimum or saddle: springs hold it off the vertical."""
    robot = Robot.from_urdf(
        _published("double_pendulum"), actuated=[], stiffness=stiffness, rest={"joint1": 1.0}
    )
    wall = [Contact("tip", robot.link_names[-1], Plane((9.0, 0.0, 0.0), (-1.0, 0.0, 0.0)))]
    found = equilibrium(contact_system(robot, wall), ("open",), [0.6, 0.2])
    assert np.abs(robot.bias(found.state[:2], np.zeros(2))).max() < 1e-9 * robot.weight
    assert (np.abs(found.state[:2]).max() > 0.05) == bool(stiffness)
    assert len(found.input) == 0
    assert found.normal.tolist() == [0.0]


def test_motors_hold_an_arm_in_the_air(hopper):
    """Without closed contacts the posture stays but for the torques: those of gravity."""
    robot = Robot.from_urdf(HOPPER)
    foot = Contact("foot", "shank", Plane((0.0, 0.0, -2.0), (0.0, 0.0, 1.0)), friction=0.8)
    found = equilibrium(contact_system(robot, [foot]), ("open",), [0.4, 0.5], torque_weight=1e-8)
    np.testing.assert_allclose(found.state[:2], [0.4, 0.5], atol=1e-5)
    np.testing.assert_allclose(found.input, robot.bias(found.state[:2], np.zeros(2)), atol=1e-7)


PUBLISHED = """a1 go1 go2 b1 laikago solo12 solo hyq_no_sensors bolt quadruped
    talos_full_v2_box icub_reduced romeo_small simple_humanoid"""


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED.split())
def test_published_robots_stand_up_from_their_neutral_posture(name):
    """The base at the height of the ground, legs in it."""
    robot = Robot.from_urdf(_published(name), root="floating")
    system = contact_system(robot, contacts_from(robot, friction=0.7), joint_friction=False)
    mode = ("stick",) * len(system.contacts)
    found = equilibrium(system, mode, robot.neutral(), reach=2.0)
    _check_rest(system, mode, found)
