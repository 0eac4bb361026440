"""Robots from MJCF: against MuJoCo's own numbers, and refusals of what would be lost."""

import numpy as np
import pytest

from hybridctl.errors import FileFormatError, InputError
from hybridctl.mechanics import Robot

LEG = """<mujoco><worldbody><body name="trunk" pos="0 0 1"><freejoint name="base"/>
<geom type="box" size="0.2 0.1 0.05" mass="3"/>
<body name="thigh" pos="0.1 0 -0.05">
<joint name="hip" type="hinge" axis="0 1 0" damping="0.1" armature="0.01"/>
<geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.2" mass="0.4"/>
<body name="shank" pos="0 0 -0.2"><joint name="knee" type="hinge" axis="0 1 0" {joint}/>
<geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.2" mass="0.2"/></body></body></body>
</worldbody>{more}<actuator><motor joint="knee" gear="7"/></actuator></mujoco>"""
PLAIN = LEG.format(joint="", more="")


def test_motion_is_that_of_mujoco():
    """Energy and inverse dynamics, with quaternions as (w, x, y, z) and world velocities there."""
    mujoco = pytest.importorskip("mujoco")
    robot = Robot.from_mjcf(PLAIN)
    model = mujoco.MjModel.from_xml_string(PLAIN)
    data = mujoco.MjData(model)
    rng = np.random.default_rng(3)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v, a = rng.normal(size=(2, robot.nv))
    turn = np.zeros(9)
    data.qpos[:] = [*q[:3], q[6], *q[3:6], *q[7:]]
    mujoco.mju_quat2Mat(turn, data.qpos[3:7])
    turn = turn.reshape(3, 3)
    data.qvel[:] = [*(turn @ v[:3]), *v[3:]]
    world = turn @ (a[:3] + np.cross(v[3:6], v[:3]))
    data.qacc[:] = [*world, *a[3:]]
    mujoco.mj_inverse(model, data)
    force = np.concatenate((turn.T @ data.qfrc_inverse[:3], data.qfrc_inverse[3:]))
    ours = robot.mass_matrix(q) @ a + robot.bias(q, v)
    np.testing.assert_allclose(ours, force, atol=1e-11)  # rounding of sums of some 100 N
    mujoco.mj_energyVel(model, data)
    assert 0.5 * v @ robot.mass_matrix(q) @ v == pytest.approx(data.energy[1], rel=1e-12)


HOPPER = """<mujoco><compiler angle="degree"/><default><default class="leg">
<joint axis="0 -1 0"/></default></default><worldbody><body name="torso" pos="0 0 1.2">
<joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
<joint name="pitch" type="hinge" axis="0 1 0"/>
<geom type="capsule" size="0.05" fromto="0 0 0.2 0 0 -0.2"/>
<body name="leg" pos="0 0.1 -0.2" euler="0 20 0" childclass="leg">
<joint name="out" axis="1 0 0" pos="0 0 0.05"/><joint name="hip" pos="0.02 0 0"/>
<geom type="capsule" size="0.04" fromto="0 0 0 0 0 -0.4"/></body></body></worldbody></mujoco>"""


def test_bodies_with_several_joints_move_as_those_of_mujoco():
    """A planar base, and a hip of two axes that are apart, in a leg that is mounted at an angle."""
    mujoco = pytest.importorskip("mujoco")
    robot = Robot.from_mjcf(HOPPER)
    assert robot.joint_names == ("x", "z", "pitch", "out", "hip")
    assert {"torso", "leg"} <= set(robot.link_names)
    model = mujoco.MjModel.from_xml_string(HOPPER)
    data = mujoco.MjData(model)
    rng = np.random.default_rng(5)
    q, v, a = rng.normal(size=(3, robot.nv))
    data.qpos[:], data.qvel[:], data.qacc[:] = q, v, a
    mujoco.mj_inverse(model, data)
    ours = robot.mass_matrix(q) @ a + robot.bias(q, v)
    np.testing.assert_allclose(ours, data.qfrc_inverse, atol=1e-11)


def test_joints_with_an_actuator_are_the_actuated_ones():
    assert Robot.from_mjcf(PLAIN).nu == 1
    assert Robot.from_mjcf(PLAIN, actuated=["hip", "knee"]).nu == 2
    without = PLAIN.replace('<actuator><motor joint="knee" gear="7"/></actuator>', "")
    assert Robot.from_mjcf(without).nu == 2


def test_a_file_is_read_as_its_text_is(tmp_path):
    path = tmp_path / "leg.xml"
    path.write_text(PLAIN)
    assert Robot.from_mjcf(path).joint_names == ("base", "hip", "knee")


def test_springs_are_given_by_hand():
    text = LEG.format(joint='stiffness="2"', more="")
    with pytest.raises(InputError, match=r"'knee' a stiffness of 2.*stiffness=\{'knee'"):
        Robot.from_mjcf(text)
    robot = Robot.from_mjcf(text, stiffness={"knee": 2.0})
    q = robot.neutral()
    q[-1] = 0.3
    bent, still = robot.bias(q, np.zeros(8)), Robot.from_mjcf(PLAIN).bias(q, np.zeros(8))
    np.testing.assert_allclose(bent - still, [0.0] * 7 + [0.6], atol=1e-12)


@pytest.mark.parametrize(
    ("joint", "more", "message"),
    [
        ('frictionloss="0.1"', "", "'knee' a frictionloss of 0.1"),
        ("", '<equality><weld body1="trunk" body2="shank"/></equality>', "<equality>"),
        ("", '<tendon><fixed><joint joint="hip" coef="1"/></fixed></tendon>', "<tendon>"),
        ("", '<include file="other.xml"/>', "must be one file"),
    ],
)
def test_what_would_be_lost_is_refused(joint, more, message):
    with pytest.raises(InputError, match=message):
        Robot.from_mjcf(LEG.format(joint=joint, more=more))


@pytest.mark.parametrize("text", ["<mujoco>", "<robot/>", "<mujoco><worldbody><body>"])
def test_what_is_no_mjcf_is_refused(text):
    with pytest.raises(FileFormatError, match="mjcf"):
        Robot.from_mjcf(text)


def test_a_model_without_joints_is_refused():
    with pytest.raises(InputError, match="no joint that moves"):
        Robot.from_mjcf('<mujoco><worldbody><body name="a"/></worldbody></mujoco>')
