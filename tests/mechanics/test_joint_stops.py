"""Stops at the position limits of joints, against closed forms and stops made by hand."""

import numpy as np
import pytest
from differences import assert_derivative

import hybridctl as hc
from hybridctl.base.errors import GuardViolatedError, InputError, UnknownNameError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

INERTIAL = """<inertial><origin xyz="0 0 {center}"/><mass value="1"/><inertia ixx=".01" iyy=".01"
izz=".01" ixy="0" ixz="0" iyz="0"/></inertial>"""
PENDULUM = f"""<robot name="p"><link name="w"/><link name="p">{INERTIAL.format(center=-0.5)}</link>
<joint name="j" type="revolute"><parent link="w"/><child link="p"/><axis xyz="0 1 0"/>
<limit lower="-0.5" upper="0.5" effort="1" velocity="10"/></joint></robot>"""
SLIDER = f"""<robot name="s"><link name="w"/><link name="m">{INERTIAL.format(center=0)}</link>
<joint name="x" type="prismatic"><parent link="w"/><child link="m"/><axis xyz="1 0 0"/>
<limit lower="-0.2" upper="0.3" effort="9" velocity="9"/></joint></robot>"""
LINKS = "".join(
    f'<link name="{name}">{INERTIAL.format(center=-0.5)}</link>' for name in ("upper", "lower")
)
ACROBOT = f"""<robot name="a"><link name="w"/>{LINKS}
<joint name="shoulder" type="revolute"><parent link="w"/><child link="upper"/>
<axis xyz="0 1 0"/><limit effort="9" velocity="9"/></joint>
<joint name="elbow" type="revolute"><parent link="upper"/>
<child link="lower"/><origin xyz="0 0 -1"/><axis xyz="0 1 0"/>
<limit lower="-0.7" upper="0.4" effort="9" velocity="9"/></joint></robot>"""


def test_pendulum_stops_at_its_limit():
    """A motor turns it on with 50 N m; the stop holds it at 0.5 rad, with that less its weight."""
    system = contact_system(Robot.from_urdf(PENDULUM), [], joint_stops=True)
    run = hc.simulate(system, None, [0.4, 8.0], (0.0, 1.0), lambda t, x: np.array([50.0]))
    np.testing.assert_allclose(run.final_state, [0.5, 0.0], atol=1e-9)
    assert run.final_mode == ("open", "closed")
    assert [event.guards for event in run.events] == [("j upper stop closes",)]
    outputs = system.mode(run.final_mode).outputs(1.0, run.final_state, np.array([50.0]))
    weight = 9.81 * 0.5 * np.sin(0.5)
    np.testing.assert_allclose(outputs["normal_force"], [0.0, 50.0 - weight], atol=1e-6)
    assert system.output_labels("gap", (2,)) == (
        "gap.j lower stop [rad]",
        "gap.j upper stop [rad]",
    )
    assert system.output_labels("normal_force", (2,))[1] == "normal_force.j upper stop [N m]"
    away = hc.simulate(
        system, run.final_mode, [0.5, 0.0], (0.0, 0.2), lambda t, x: np.array([5.0 - 20.0 * t])
    )
    assert away.events[0].guards == ("j upper stop opens",)
    assert away.events[0].time == pytest.approx((5.0 - weight) / 20.0, abs=1e-8)


def test_slider_bounces_between_its_stops():
    """From the middle of 0.5 m with 1 m/s, each bounce leaves half of the speed."""
    system = contact_system(Robot.from_urdf(SLIDER, gravity=(0.0, 0.0, 0.0)), [], joint_stops=0.5)
    run = hc.simulate(system, None, [0.05, 1.0], (0.0, 4.0))
    times = 0.25 + 0.5 * np.cumsum([0.0, 2.0, 4.0])
    np.testing.assert_allclose([event.time for event in run.events], times, atol=1e-9)
    names = [event.guards[0] for event in run.events]
    assert names == ["x upper stop closes", "x lower stop closes", "x upper stop closes"]
    np.testing.assert_allclose(run.final_state, [0.3 - (4.0 - 3.25) / 8, -0.125], atol=1e-9)


def test_acrobot_moves_as_with_a_stop_by_hand():
    """A point 1 m from the elbow hits a plane of the upper link: gap sin(0.4 - q), one direction.

    Impacts depend on the direction of the gap's gradient alone, so both runs agree.
    """
    robot = Robot.from_urdf(ACROBOT)
    normal = (np.cos(0.4), 0.0, -np.sin(0.4))
    place = (-np.sin(0.4), 0.0, -1.0 - np.cos(0.4))
    hand = Contact(
        "stop", "lower", Plane(place, normal), body="upper", offset=(0, 0, -1), restitution=0.3
    )
    x0 = [1.5, 0.2, 0.0, 1.0]
    by_hand = hc.simulate(contact_system(robot, [hand]), None, x0, (0.0, 1.0))
    system = contact_system(robot, [], joint_stops={"elbow": 0.3})
    run = hc.simulate(system, None, x0, (0.0, 1.0))
    upper = [event for event in run.events if event.guards == ("elbow upper stop closes",)]
    assert len(by_hand.events) >= 1
    assert len(run.events) == len(upper) == len(by_hand.events)
    for ours, theirs in zip(upper, by_hand.events, strict=True):
        assert ours.time == pytest.approx(theirs.time, abs=1e-8)
        np.testing.assert_allclose(ours.state_after, theirs.state_after, atol=1e-7)
    np.testing.assert_allclose(run.final_state, by_hand.final_state, atol=1e-7)


@pytest.mark.slow
def test_derivative_of_a_bounce_is_that_of_the_flow():
    system = contact_system(Robot.from_urdf(ACROBOT), [], joint_stops={"elbow": 0.3})
    x0, settings = np.array([1.5, 0.2, 0.0, 1.0]), {"rtol": 1e-10, "atol": 1e-11}
    run = hc.simulate(system, None, x0, (0.0, 0.15), **settings)
    assert len(run.events) == 1

    def flow(z):
        return hc.simulate(system, None, x0 + z, (0.0, 0.15), **settings).final_state

    assert_derivative(flow, hc.linearize(system, run).state_transition)


def test_stops_are_beside_other_contacts_and_only_where_asked_for():
    robot = Robot.from_urdf(ACROBOT)
    floor = Contact("tip", "lower", Plane((0, 0, -9), (0, 0, 1)), offset=(0, 0, -1))
    names = [c.name for c in contact_system(robot, [floor], joint_stops=True).contacts]
    assert names == ["tip", "elbow lower stop", "elbow upper stop"]
    assert [c.name for c in contact_system(robot, [floor]).contacts] == ["tip"]
    same = contact_system(robot, [floor], joint_stops=False)
    assert same.contacts == contact_system(robot, [floor]).contacts


@pytest.mark.parametrize(
    ("stops", "error", "text"),
    [
        ({"wrist": 0.1}, UnknownNameError, "wrist"),
        ({"shoulder": 0.1}, InputError, "no limits"),
        ({"elbow": 1.5}, InputError, "elbow"),
        (-0.5, InputError, "joint_stops"),
        ("yes", InputError, "joint_stops must be True"),
    ],
)
def test_stops_that_make_no_sense_are_refused(stops, error, text):
    with pytest.raises(error, match=text):
        contact_system(Robot.from_urdf(ACROBOT), [], joint_stops=stops)


@pytest.mark.filterwarnings("ignore::hybridctl.base.errors.JointLimitWarning")
def test_start_beyond_a_stop_is_refused_in_its_unit():
    system = contact_system(Robot.from_urdf(PENDULUM), [], joint_stops=True)
    with pytest.raises(GuardViolatedError, match=r"'j upper stop'.* rad"):
        hc.simulate(system, None, [0.7, 0.0], (0.0, 1.0))
