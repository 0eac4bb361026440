"""Continuous joints, whose coordinates are (cos, sin): the same physics as a revolute joint."""

import copy
import pickle

import numpy as np
import pytest

from hybridctl.base.errors import InputError, JointLimitWarning, UnknownNameError
from hybridctl.mechanics import Contact, ContactDynamics, Plane, Robot, Rotor

ARM = """<robot name="arm">
<link name="base"/>
<link name="upper"><inertial><origin xyz="0.1 0.02 -0.2"/><mass value="1.3"/>
  <inertia ixx="0.02" iyy="0.03" izz="0.01" ixy="0.001" ixz="0" iyz="0"/></inertial></link>
<link name="lower"><inertial><origin xyz="0 0.01 -0.15"/><mass value="0.7"/>
  <inertia ixx="0.01" iyy="0.02" izz="0.015" ixy="0" ixz="0.002" iyz="0"/></inertial></link>
<joint name="shoulder" type="{kind}"><parent link="base"/><child link="upper"/>
  <axis xyz="0 1 0.2"/><dynamics damping="0.2"/>
  <limit lower="-100" upper="100" effort="9" velocity="9"/></joint>
<joint name="elbow" type="revolute"><parent link="upper"/><child link="lower"/>
  <origin xyz="0 0 -0.4"/><axis xyz="0 1 0"/>
  <limit lower="-3" upper="3" effort="9" velocity="9"/></joint>
</robot>"""
PARTS = {
    "stiffness": {"shoulder": 5.0, "elbow": 1.0},
    "rest": {"shoulder": 2.5},
    "damping": {"shoulder": 0.5},
    "rotors": {"shoulder": Rotor(1e-4, 30.0)},
}
ANGLES = {"shoulder": -2.0, "elbow": 0.4}
"""The angle of the shoulder from rest is -4.5 rad, which is 2 pi - 4.5 the other way."""
ROUNDING = 1e-12
"""Relative to terms of order 10: a few hundred operations."""


def arm(kind: str, rest: float = 2.5) -> Robot:
    """The arm; the rest of the revolute one is a turn lower, as its spring does not wrap."""
    parts = {**PARTS, "rest": {"shoulder": rest if kind == "continuous" else rest - 2.0 * np.pi}}
    return Robot.from_urdf(ARM.format(kind=kind), **parts)


def test_the_posture_of_a_continuous_joint_is_its_cosine_and_sine():
    q = arm("continuous").posture(ANGLES)
    np.testing.assert_allclose(q, [np.cos(-2.0), np.sin(-2.0), 0.4], rtol=1e-15)
    with pytest.warns(JointLimitWarning, match="more than a turn; angles are in rad"):
        arm("continuous").posture({"shoulder": 90.0})


def test_springs_dampers_and_rotors_act_as_at_a_revolute_joint():
    v, u = np.array([0.7, -1.1]), np.array([0.3, 0.2])
    circle, line = arm("continuous"), arm("revolute")
    q, angles = circle.posture(ANGLES), line.posture(ANGLES)
    for method, arguments in (
        ("mass_matrix", ()),
        ("bias", (v,)),
        ("free_acceleration", (v, u)),
        ("energy", (v,)),
        ("inverse_mass", ()),
    ):
        one, other = (getattr(r, method)(at, *arguments) for r, at in ((circle, q), (line, angles)))
        np.testing.assert_allclose(one, other, rtol=ROUNDING, atol=ROUNDING, err_msg=method)
    wrenches = {2: np.arange(6.0)}
    for one, other in zip(
        circle.bias_derivatives(q, v, u, wrenches),
        line.bias_derivatives(angles, v, u, wrenches),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=ROUNDING, atol=10.0 * ROUNDING)


@pytest.mark.parametrize("terms", ["pinocchio", "generated"])
def test_the_terms_of_contact_are_those_of_a_revolute_joint(terms):
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    contacts = [Contact("tip", "lower", ground, offset=(0.0, 0.0, -0.3), friction=0.4)]
    v, u = np.array([0.7, -1.1]), np.array([0.3, 0.2])
    found = []
    for robot in (arm("continuous"), arm("revolute")):
        made, q = ContactDynamics(robot, contacts, terms=terms).terms, robot.posture(ANGLES)
        forces = np.arange(1.0, 1.0 + len(made.values(q, v, u).rates))
        terms_at = (*made.values(q, v, u), *made.derivatives(q, v, u, forces))
        found.append([np.array(term) for term in terms_at])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=ROUNDING, atol=10.0 * ROUNDING)


def test_a_spring_pulls_the_shorter_way_round():
    """Just before the antipode of rest the torque is k pi, just behind it -k pi."""
    robot = arm("continuous", rest=0.5)
    near = 1e-6
    for angle, stretch in ((0.5 + np.pi - near, np.pi - near), (0.5 + np.pi + near, near - np.pi)):
        found = robot.passive.stretch(robot.posture({"shoulder": angle}))[0]
        assert found == pytest.approx(stretch, abs=1e-14)


def test_indices_say_where_joints_are():
    robot = Robot.from_urdf(ARM.format(kind="continuous"))
    assert robot.velocity_index("shoulder") == 0
    assert robot.velocity_index("elbow") == 1
    assert robot.coordinate_index("elbow") == 2
    assert robot.coordinates("shoulder") == [0, 1]
    assert robot.coordinates("elbow") == [2]
    assert repr(robot) == "Robot(nq=3, nv=2, joints shoulder q[0:2] v[0], elbow q[2] v[1])"
    assert "<td>0:2</td>" in robot._repr_html_()
    with pytest.raises(InputError, match="'shoulder' must have one coordinate, but it is contin"):
        robot.coordinate_index("shoulder")
    with pytest.raises(UnknownNameError):
        robot.coordinates("wrist")


def test_indices_of_a_floating_base_are_refused_by_name():
    base = '<link name="base"><inertial><mass value="2"/><inertia ixx="0.1" iyy="0.1" izz="0.1" '
    base += 'ixy="0" ixz="0" iyz="0"/></inertial></link>'
    text = ARM.format(kind="revolute").replace('<link name="base"/>', base)
    robot = Robot.from_urdf(text, root="floating")
    for find in (robot.coordinate_index, robot.velocity_index):
        with pytest.raises(InputError, match="'root_joint' must have one degree of freedom"):
            find("root_joint")
    assert robot.coordinates("root_joint") == list(range(7))
    assert robot.coordinate_index("elbow") == 8
    assert robot.velocity_index("elbow") == 7


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))])
def test_a_copy_keeps_the_indices(clone):
    assert clone(arm("continuous")).velocity_index("shoulder") == 0
