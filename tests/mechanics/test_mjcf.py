"""Robots from MJCF: against MuJoCo's own numbers, and refusals of what would be lost."""

import numpy as np
import pytest

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

LEG = """<mujoco>{more}<worldbody><body name="trunk" pos="0 0 1"><freejoint name="base"/>
<geom type="box" size="0.2 0.1 0.05" mass="3"/>
<body name="thigh" pos="0.1 0 -0.05">
<joint name="hip" type="hinge" axis="0 1 0" damping="0.1" armature="0.01"/>
<geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.2" mass="0.4"/>
<body name="shank" pos="0 0 -0.2"><joint name="knee" type="hinge" axis="0 1 0" {joint}/>
<geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.2" mass="0.2"/></body></body></body>
</worldbody><actuator><motor joint="knee" gear="7"/></actuator></mujoco>"""
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


def test_springs_of_the_file_pull_and_can_be_replaced():
    """A spring of 2 N m/rad about 0.1 rad, bent by 0.3 rad; the file's `ref` counts in both."""
    text = LEG.format(joint='stiffness="2" springref="5.729577951308232" ref="11"', more="")
    text = text.replace("<worldbody>", '<compiler angle="degree"/><worldbody>')
    robot, plain = Robot.from_mjcf(text), Robot.from_mjcf(PLAIN)
    q, at_rest = robot.neutral(), np.zeros(8)
    q[-1] = 0.4
    soft = Robot.from_mjcf(text, stiffness={"knee": 0.0})
    np.testing.assert_allclose(
        robot.bias(q, at_rest) - soft.bias(q, at_rest), [0.0] * 7 + [0.6], atol=1e-12
    )
    bent = plain.neutral()
    bent[-1] = 0.4 - np.radians(11.0)  # MuJoCo counts positions from the reference
    np.testing.assert_allclose(soft.bias(q, at_rest), plain.bias(bent, at_rest), atol=1e-12)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ('<equality><weld name="glue" body1="trunk" body2="shank"/></equality>', "equality"),
        (
            '<tendon><fixed name="glue"><joint joint="hip" coef="1"/></fixed></tendon>',
            "tendon",
        ),
        ('<option density="1000"/>', "fluid"),
    ],
)
def test_what_would_be_lost_is_refused_unless_it_is_ignored(more, kind):
    text = LEG.format(joint="", more=more)
    with pytest.raises(InputError, match=rf"would be lost; ignore=\['{kind}'\]"):
        Robot.from_mjcf(text)
    named = [kind] if kind == "fluid" else ["glue"]
    for ignore in ([kind], named):
        robot = Robot.from_mjcf(text, ignore=ignore)
        q = robot.neutral()
        np.testing.assert_array_equal(robot.mass_matrix(q), Robot.from_mjcf(PLAIN).mass_matrix(q))


def test_all_losses_have_their_kind():
    """A muscle, a motor on a site, springs of a ball, armature of a free joint, mixed gravcomp."""
    text = """<mujoco><worldbody><body name="a" gravcomp="0.5"><freejoint name="root"/>
<geom size="0.1" mass="1"/><site name="s"/><body name="b" pos="0 0 1"><joint name="ball"
type="ball" stiffness="3"/><geom size="0.1" mass="1"/></body></body>
<body name="c"><joint name="held" type="free" armature="0.2"/><geom size="0.1"/></body>
<body name="d"><joint name="hinge"/><geom size="0.1"/></body></worldbody>
<actuator><muscle name="m" joint="hinge" lengthrange="0 1"/><general name="jet" site="s"/>
</actuator></mujoco>"""
    kinds = ["stiffness", "armature", "muscle", "actuator", "gravcomp"]
    for k in range(len(kinds)):
        left = kinds[:k] + kinds[k + 1 :]
        with pytest.raises(InputError, match=rf"ignore=\['{kinds[k]}'\]"):
            Robot.from_mjcf(text, ignore=left)
    assert Robot.from_mjcf(text, ignore=kinds).nv == 16


def test_a_file_includes_others_and_a_text_cannot(tmp_path):
    (tmp_path / "leg.xml").write_text(PLAIN)
    whole = tmp_path / "scene.xml"
    whole.write_text('<mujoco><include file="leg.xml"/></mujoco>')
    assert Robot.from_mjcf(whole).joint_names == ("base", "hip", "knee")
    with pytest.raises(FileFormatError, match=r"not compiled by MuJoCo: .*leg\.xml"):
        Robot.from_mjcf(whole.read_text())


def test_scene_has_all_its_trees():
    scene = """<mujoco><worldbody><body name="arm"><joint name="elbow" axis="0 1 0"/>
<geom size="0.1" mass="1" pos="0 0 -1"/></body><body name="puck" pos="1 0 0"><joint name="px"
type="slide" axis="1 0 0"/><joint name="py" type="slide" axis="0 1 0"/>
<geom size="0.1" mass="2"/></body></worldbody></mujoco>"""
    robot = Robot.from_mjcf(scene)
    assert robot.joint_names == ("elbow", "px", "py")
    assert robot.mass == pytest.approx(3.0, rel=1e-15)


def test_pose_of_a_fixed_base_is_kept():
    """The base stands 1 m up and is turned by 180 degrees: its shoulder (0.5, 0, 0) at -0.5 m."""
    arm = """<mujoco><worldbody><body name="base" pos="0 0 1" quat="0 0 0 1">
<geom type="box" size=".1 .1 .1" mass="1"/><body name="link" pos="0.5 0 0">
<joint name="j" axis="0 1 0"/><geom size="0.1" mass="2" pos="0 0 -0.3"/></body></body>
</worldbody></mujoco>"""
    contact = Contact("c", "link", Plane((0, 0, 0), (0, 0, 1)))
    system = contact_system(Robot.from_mjcf(arm), [contact])
    outputs = system.mode(("open",)).outputs(0.0, np.zeros(2), np.zeros(1))
    np.testing.assert_allclose(outputs["contact_position"][0], (-0.5, 0.0, 1.0), atol=1e-15)


BALL = 1000.0 * 4.0 / 3.0 * np.pi * 0.1**3  # kg, of MuJoCo's default density


@pytest.mark.parametrize(
    ("head", "geoms", "mass"),
    [
        ("", '<geom size="0.1" contype="0" conaffinity="0"/>', BALL),
        (
            '<compiler inertiagrouprange="0 2"/>',
            '<geom size="0.1"/><geom size="0.1" group="4"/>',
            BALL,
        ),
        ("", '<frame><geom size="0.1"/></frame>', BALL),
        ('<default><geom density="500"/></default>', '<geom size="0.1"/>', BALL / 2.0),
    ],
)
def test_mass_follows_from_shapes_as_in_mujoco(head, geoms, mass):
    text = f"""<mujoco>{head}<worldbody><body name="a"><joint name="j" type="slide"
armature="0.1"/>{geoms}</body></worldbody></mujoco>"""
    robot = Robot.from_mjcf(text)
    assert robot.mass == pytest.approx(mass, rel=1e-14)
    assert robot.mass_matrix(np.zeros(1))[0, 0] == pytest.approx(mass + 0.1, rel=1e-14)


@pytest.mark.parametrize(
    ("head", "body", "weight"),
    [
        ('<option gravity="0 0 -1.62"/>', "", 3.24),
        ('<option gravity="0 0 0"/>', "", 0.0),
        ('<option><flag gravity="disable"/></option>', "", 0.0),
        ("", 'gravcomp="0.25"', 0.75 * 19.62),
    ],
)
def test_gravity_is_that_of_the_file(head, body, weight):
    text = f"""<mujoco>{head}<worldbody><body name="a" {body}><joint name="j" type="slide"
axis="0 0 1"/><geom size="0.1" mass="2"/></body></worldbody></mujoco>"""
    robot, q = Robot.from_mjcf(text), np.zeros(1)
    assert robot.bias(q, q)[0] == pytest.approx(weight, rel=1e-15)
    ours = Robot.from_mjcf(text, gravity=(0.0, 0.0, -9.81))
    assert ours.bias(q, q)[0] == pytest.approx(19.62, rel=1e-15)


def test_keyframes_limits_and_names():
    text = """<mujoco><compiler angle="radian"/><worldbody><body pos="0 0 0.5"><freejoint/>
<geom size="0.1"/><body name="arm"><joint range="-1 2" limited="true" actuatorfrcrange="-3 3"
actuatorfrclimited="true"/><joint name="slider" type="slide"/><geom size="0.1"/>
<site name="tip" pos="0 0 0.2"/></body></body></worldbody>
<actuator><motor joint="slider" gear="4" forcerange="-2 2" forcelimited="true"/></actuator>
<keyframe><key name="bent" qpos="1 2 3 0 1 0 0 0.3 0.4"/></keyframe></mujoco>"""
    robot = Robot.from_mjcf(text)
    assert robot.joint_names == ("body 1 joint", "arm joint 1", "slider")
    np.testing.assert_array_equal(robot.keyframes["bent"], [1, 2, 3, 1, 0, 0, 0, 0.3, 0.4])
    np.testing.assert_array_equal(robot.keyframes["qpos0"], [0, 0, 0.5, 0, 0, 0, 1, 0, 0])
    model = robot.model
    assert (model.lowerPositionLimit[7], model.upperPositionLimit[7]) == (-1.0, 2.0)
    assert np.isinf(model.upperPositionLimit[8])
    assert model.upperEffortLimit[6:].tolist() == [3.0, 8.0]  # that of the joint; 4 times 2 N
    np.testing.assert_allclose(robot.frame("tip").position, (0.0, 0.0, 0.2))


def test_armature_and_damping_of_an_actuator_count_with_its_gear_squared():
    """MuJoCo keeps them apart from those of the joint: 0.1 + 3^2 2 kg m^2."""
    mujoco = pytest.importorskip("mujoco")
    text = """<mujoco><worldbody><body><joint name="j" armature="0.1" damping="0.2"/>
<geom size="0.1"/></body></worldbody><actuator><motor joint="j" gear="3" armature="2"
damping="0.5"/></actuator></mujoco>"""
    robot, model = Robot.from_mjcf(text), mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    data.qvel[:] = 1.0
    mujoco.mj_forward(model, data)
    force = -float(data.qfrc_passive[0] + data.qfrc_actuator[0])
    assert robot.bias(np.zeros(1), np.ones(1))[0] == pytest.approx(force, rel=1e-14)
    own = robot.mass_matrix(np.zeros(1))[0, 0] - float(model.body_inertia[1][0])
    assert own == pytest.approx(18.1, rel=1e-14)


@pytest.mark.parametrize("second", ['forcerange="-2 2"', ""])
def test_efforts_of_actuators_add_up_and_one_without_a_limit_has_none(second):
    limited = '<motor joint="j" gear="3" forcerange="-1 1"/>'
    for motors in (
        f'{limited}<motor joint="j" {second}/>',
        f'<motor joint="j" {second}/>{limited}',
    ):
        model = Robot.from_mjcf(
            '<mujoco><worldbody><body><joint name="j"/><geom size="0.1"/></body></worldbody>'
            f"<actuator>{motors}</actuator></mujoco>"
        ).model
        most = 5.0 if second else np.inf
        assert (model.lowerEffortLimit[0], model.upperEffortLimit[0]) == (-most, most)


def test_warnings_of_mujoco_are_logged_and_write_no_file(tmp_path, monkeypatch, caplog):
    """MuJoCo's own handler would write MUJOCO_LOG.TXT into the working folder."""
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    text = PLAIN.replace("<mujoco>", '<mujoco><compiler settotalmass="7"/>')
    assert Robot.from_mjcf(text).mass == pytest.approx(7.0, rel=1e-12)
    assert list(tmp_path.iterdir()) == []
    assert "settotalmass" in caplog.text
    assert mujoco.get_mju_user_warning() is None


def test_a_plane_on_a_body_that_moves_is_not_compiled():
    """So all planes that are read are fixed to the world."""
    plane = '<geom type="plane" size="1 1 1"/>'
    body = f'<body><freejoint/><geom size="0.1"/>{plane}</body>'
    with pytest.raises(FileFormatError, match="plane"):
        Robot.from_mjcf(f"<mujoco><worldbody>{body}</worldbody></mujoco>")


def test_a_urdf_is_named_as_such():
    with pytest.raises(FileFormatError, match=r"got <robot>; use Robot\.from_urdf"):
        Robot.from_mjcf('<robot name="r"><link name="a"/></robot>')


@pytest.mark.parametrize("text", ["<mujoco>", "<robot/>", "<mujoco><worldbody><body>"])
def test_what_is_no_mjcf_is_refused(text):
    with pytest.raises(FileFormatError, match="mjcf"):
        Robot.from_mjcf(text)


def test_a_model_without_joints_is_refused():
    with pytest.raises(InputError, match="no joint that moves"):
        Robot.from_mjcf('<mujoco><worldbody><body name="a"/></worldbody></mujoco>')
