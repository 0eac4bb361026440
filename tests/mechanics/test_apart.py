"""Bodies that have nothing to do with each other: the impact of one leaves the other as it is."""

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

G, E, HEIGHT, END = 9.81, 0.6, 0.1, 0.25
FLOOR = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
RAIL = """<joint name="{0}" type="prismatic"><parent link="base"/><child link="{0}"/>
<axis xyz="0 0 1"/><limit lower="-9" upper="9" effort="9" velocity="9"/></joint>
<link name="{0}"><inertial><mass value="{1}"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>"""


def two_masses():
    """One that rests, and one that bounces, each on its rail."""
    urdf = f"""<robot name="two"><link name="base"/>{RAIL.format("a", 2.0)}
    {RAIL.format("b", 0.5)}</robot>"""
    contacts = [
        Contact("still", "a", FLOOR, restitution=0.3),
        Contact("ball", "b", FLOOR, restitution=E),
    ]
    return contact_system(Robot.from_urdf(urdf, actuated=()), contacts)


def bounced(height, velocity):
    """Height and velocity at the end, with one bounce on the way."""
    down = np.sqrt(velocity**2 + 2.0 * G * height)
    left, up = END - (velocity + down) / G, E * down
    return np.array([up * left - 0.5 * G * left**2, up - G * left])


def test_a_mass_rests_on_while_another_bounces():
    start = [0.0, HEIGHT, 0.0, 0.0]
    run = hc.simulate(two_masses(), ("closed", "open"), start, (0.0, END))
    assert [(e.guards, e.mode_after) for e in run.events] == [
        (("ball closes",), ("closed", "open"))
    ]
    np.testing.assert_allclose(run.final_state[1::2], bounced(HEIGHT, 0.0), atol=1e-8)


def test_the_derivative_of_a_bounce_does_not_depend_on_what_rests_elsewhere():
    """Central differences of the closed form, right to h^2 and eps / h: 1e-9 at h = 1e-5."""
    run = hc.simulate(two_masses(), ("closed", "open"), [0.0, HEIGHT, 0.0, 0.0], (0.0, END))
    matrix = hc.linearize(two_masses(), run).state_transition
    h = 1e-5
    by_height = (bounced(HEIGHT + h, 0.0) - bounced(HEIGHT - h, 0.0)) / (2.0 * h)
    by_velocity = (bounced(HEIGHT, h) - bounced(HEIGHT, -h)) / (2.0 * h)
    expected = np.array([by_height, by_velocity]).T
    np.testing.assert_allclose(matrix[1::2, 1::2], expected, atol=1e-7)
    np.testing.assert_allclose(matrix[::2, 1::2], 0.0, atol=1e-9)


SLIDER = """<joint name="{0} rail" type="prismatic"><parent link="base"/><child link="{0}"/>
<origin xyz="{1} 0 0"/><axis xyz="1 0 0"/>
<limit lower="-9" upper="9" effort="9" velocity="9"/></joint>
<link name="{0}">{2}</link>"""
KILOGRAM = """<inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>"""


@pytest.mark.parametrize("terms", ["generated", "pinocchio"])
@pytest.mark.parametrize("root", ["floating", "sagittal"])
def test_an_impact_on_one_branch_reaches_a_closed_stop_of_another_through_the_base(root, terms):
    """Two sliders of 1 kg on a base of 1 kg: the left one hits its stop at 1 m/s, plastic.

    The right one is pressed on its own stop by a spring. All three move on together: momentum of
    1 kg m/s in 3 kg is 1/3 m/s. The left stop passes on 2/3 N s, the right one 1/3 N s.
    """
    left, right = (SLIDER.format(name, x, KILOGRAM) for name, x in (("left", -1), ("right", 1)))
    urdf = f"""<robot name="sliders"><link name="base">{KILOGRAM}</link>{left}{right}</robot>"""
    robot = Robot.from_urdf(
        urdf,
        root=root,
        stiffness={"right rail": 10.0},
        rest={"right rail": -0.1},
        gravity=(0, 0, 0),
    )
    stops = [
        Contact("left stop", "left", Plane((-1, 0, 0), (-1, 0, 0)), body="base"),
        Contact("right stop", "right", Plane((1, 0, 0), (1, 0, 0)), body="base"),
    ]
    system, x = contact_system(robot, stops, terms=terms), np.zeros(robot.nq + robot.nv)
    x[: robot.nq] = robot.neutral()
    joints = robot.model.joints
    left_joint = joints[robot.model.getJointId("left rail")]
    x[left_joint.idx_q], x[robot.nq + left_joint.idx_v] = -0.1, 1.0
    (event,) = hc.simulate(system, None, x, (0.0, 0.15)).events
    assert event.mode_after == ("closed", "closed")
    np.testing.assert_allclose(event.impulses, [2.0 / 3.0, 1.0 / 3.0], atol=1e-9)
    velocity = np.zeros(robot.nv)
    velocity[0] = 1.0 / 3.0
    np.testing.assert_allclose(event.state_after[robot.nq :], velocity, atol=1e-9)
