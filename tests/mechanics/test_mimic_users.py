"""What is asked of a robot whose foot is on a joint that mimics: blows, runs, parameters."""

import numpy as np
import pytest
from differences import assert_derivative, central

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import (
    Contact,
    Plane,
    Robot,
    Wrench,
    contact_system,
    equilibrium,
    parameter_derivatives,
)
from hybridctl.planning import Phase, Task
from hybridctl.planning.closure import get_state_limits

LINK = """<link name="{}"><inertial><origin xyz="0 0 {}"/><mass value="{}"/>
<inertia ixx="0.02" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link>"""
JOINT = """<joint name="{}" type="revolute"><parent link="{}"/><child link="{}"/>
<origin xyz="0 0 {}"/><axis xyz="0 1 0"/><limit lower="-3" upper="3" effort="30" velocity="9"/>
{}</joint>"""
MIMIC = '<mimic joint="knee" multiplier="-0.5" offset="0.1"/>'


def leg(foot=0.3, damping=0.1, root="sagittal"):
    """A leg that moves in a plane; its ankle is at -0.5 knee + 0.1."""
    parts = [
        LINK.format("trunk", 0.0, 1.0),
        LINK.format("thigh", -0.2, 1.0),
        LINK.format("shank", -0.2, 1.0),
        LINK.format("foot", 0.0, foot),
        JOINT.format("hip", "trunk", "thigh", 1.0, ""),
        JOINT.format("knee", "thigh", "shank", -0.4, ""),
        JOINT.format("ankle", "shank", "foot", -0.4, MIMIC),
    ]
    text = f'<robot name="leg">{"".join(parts)}</robot>'
    return Robot.from_urdf(text, root=root, damping={"knee": damping})


FLOOR = Contact("toe", "foot", Plane((0, 0, 0), (0, 0, 1)), offset=(0.1, 0, -0.05), friction=0.6)


@pytest.fixture(scope="module")
def fall():
    """The system, a state with the toe 5 cm above ground, and its landing within 0.15 s."""
    robot = leg()
    system = contact_system(robot, [FLOOR])
    x0 = np.concatenate([robot.posture({"knee": 0.3}), np.zeros(robot.nv)])
    x0[1] -= system.dynamics.gaps(x0[: robot.nq])[0] - 0.05
    run = hc.simulate(system, None, x0, (0.0, 0.15), rtol=1e-10, atol=1e-11)
    assert len(run.events) == 1
    return system, x0, run


def test_landing_has_the_derivative_of_the_flow(fall):
    system, x0, run = fall

    def flow(z):
        tight = {"rtol": 1e-10, "atol": 1e-11}
        return hc.simulate(system, None, x0 + z, (0.0, 0.15), **tight).final_state

    assert_derivative(flow, hc.linearize(system, run).state_transition)


def test_blow_on_a_leg_in_the_air_is_the_momentum_law(fall):
    """M (v+ - v) = J' p, with J of the point by the independent velocities."""
    system, x0, _ = fall
    robot, blow, place = system.robot, np.array([1.0, 0.0, 0.3]), np.array([0.0, 0.0, -0.02])
    q = x0[: robot.nq]
    kick = system.kick(x0, "foot", blow, place)
    change = np.linalg.solve(robot.mass_matrix(q), robot.point_jacobian(q, "foot", place).T @ blow)
    np.testing.assert_allclose((kick.state - x0)[robot.nq :], change, rtol=1e-12, atol=1e-13)


def test_push_on_the_foot(fall):
    """The acceleration is that of J' f, and its derivative that of differences."""
    system, x0, _ = fall
    robot, size = system.robot, 2.0
    mode = system.pushed(Wrench("foot", (5.0, 0.0, 0.0), 0.0, 1.0)).mode(("open",))
    u = np.zeros(mode.nu)
    u[-1] = size
    q, v = x0[: robot.nq], x0[robot.nq :]
    pull = robot.point_jacobian(q, "foot", np.zeros(3)).T @ np.array([size, 0.0, 0.0])
    expected = robot.inverse_mass(q) @ (pull - robot.bias(q, v))
    np.testing.assert_allclose(mode.field(0.0, x0, u)[robot.nv :], expected, rtol=1e-10)
    assert_derivative(lambda z: mode.field(0.0, x0 + z, u), mode.jacobian(0.0, x0, u).state)


def test_equilibrium_stands_still(fall):
    system, x0, _ = fall
    found = equilibrium(system, ("stick",), x0[: system.robot.nq])
    field = system.mode(("stick",)).field(0.0, found.state, found.input)
    np.testing.assert_allclose(field, 0.0, atol=1e-9)  # of accelerations of some 10 m/s^2


def test_parameters_of_what_follows_are_differences(fall):
    """Mass of the foot, and damping of the joint that is followed; its spring is refused."""
    system, x0, _ = fall
    robot = system.robot
    x, u = x0.copy(), np.ones(robot.nu)
    x[robot.nq :] = 0.3 * np.arange(robot.nv)
    names = ["mass:foot", "damping:knee"]
    found = parameter_derivatives(robot, [FLOOR], names)
    by_names = found.calc(system.mode(("open",)).calc(0.0, x, u)).field

    def field(p):
        other = contact_system(leg(0.3 + p[0], 0.1 + p[1]), [FLOOR])
        return other.mode(("open",)).field(0.0, x, u)

    np.testing.assert_allclose(by_names, central(field, 2, 1e-5), atol=1e-7)
    with pytest.raises(InputError, match="'ankle' must move on its own"):
        parameter_derivatives(robot, [FLOOR], ["damping:ankle"])


def test_plans_name_the_coordinates_of_joints_that_move_on_their_own():
    robot = leg(root="fixed")
    system = contact_system(robot, [FLOOR])
    start = np.concatenate([robot.posture({"knee": 0.3}), np.zeros(robot.nv)])
    task = Task(system, (Phase(("open",), (), (0.1, 0.5)),), start=start)
    assert [(limit.name, limit.unit) for limit in get_state_limits(task)] == [
        ("coordinate of joint 'hip'", "rad"),
        ("coordinate of joint 'knee'", "rad"),
        ("velocity of joint 'hip'", "rad/s"),
        ("velocity of joint 'knee'", "rad/s"),
    ]
