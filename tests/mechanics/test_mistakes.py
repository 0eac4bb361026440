"""Mistakes of the first hour: each ends in an error or a warning that says what is wrong.

None may end in an error of Python's that names no argument, nor in nothing said.
"""

import math
import warnings
from importlib.metadata import files

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import (
    FileFormatError,
    FixedRootWarning,
    GuardViolatedError,
    HybridctlError,
    InputError,
    JointLimitWarning,
    StepLimitError,
    UnknownNameError,
)
from hybridctl.hybrid.plant import SimulatedPlant
from hybridctl.hybrid.simulate import computed_starts
from hybridctl.mechanics import (
    Contact,
    Plane,
    Robot,
    Sphere,
    Terrain,
    Wrench,
    contact_system,
    contacts_from,
    equilibrium,
)
from hybridctl.mechanics.multibody.passive import Rotor

GROUND = Plane((0, 0, 0), (0, 0, 1))


def link(name, mass=1.0):
    inertia = 'ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"'
    return (
        f'<link name="{name}"><inertial><mass value="{mass}"/>'
        f"<inertia {inertia}/></inertial></link>"
    )


def joint(name, parent, child, limit='lower="-1.5" upper="1.5"'):
    return (
        f'<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="0 0 -0.3"/><axis xyz="0 1 0"/><limit {limit} effort="9" velocity="9"/>'
        "</joint>"
    )


LEG = (
    '<robot name="leg">'
    + "".join(map(link, ("trunk", "thigh", "shank")))
    + joint("hip", "trunk", "thigh")
    + joint("knee", "thigh", "shank", 'lower="0" upper="2.6"')
    + "</robot>"
)
TOE = Contact("toe", "shank", GROUND, offset=(0, 0, -0.3), friction=0.8)


@pytest.fixture(scope="module")
def robot():
    return Robot.from_urdf(LEG, root="sagittal")


@pytest.fixture(scope="module")
def system(robot):
    return contact_system(robot, [TOE])


def state(robot, hip=-0.6, knee=1.2, height=2.0):
    q = robot.neutral()
    q[1], q[3], q[4] = height, hip, knee
    return np.concatenate((q, np.zeros(robot.nv)))


# Limits of joints


def test_degrees_for_radians_are_named_with_the_radians(robot):
    with pytest.warns(JointLimitWarning, match="-35 degrees are -0.610865 rad") as caught:
        q = robot.posture({"hip": -35, "knee": 70})
    (warning,) = caught
    assert "posture: joint 'hip' is at -35 rad, outside of its limits [-1.5, 1.5] rad" in str(
        warning.message
    )
    assert "70 degrees are 1.22173 rad" in str(warning.message)
    assert warning.filename == __file__
    assert q.tolist() == [0, 0, 0, -35, 70]  # a warning: the numbers are taken as given


def test_an_angle_without_limits_of_more_than_a_turn_is_doubtful(robot):
    with pytest.warns(JointLimitWarning, match="'root_pitch' is at 90 rad, more than a turn; .*"):
        robot.posture({"root_pitch": 90})


@pytest.mark.parametrize(
    ("hip", "knee", "said"),
    [
        (-0.6, 1.2, None),
        (0.0, 0.0, None),
        (1.5 + 1e-3, 2.6, None),  # limits are written with few digits
        (0.0, -1.0, r"joint 'knee' is at -1 rad, outside of its limits \[0, 2.6\] rad$"),
        (1.6, 1.0, r"joint 'hip' is at 1.6 rad, outside of its limits \[-1.5, 1.5\] rad$"),
        (35.0, 1.0, ".*; angles are in rad: 35 degrees are 0.610865 rad$"),
    ],
)
def test_a_start_beyond_limits_is_warned_of_once(hip, knee, said, robot, system):
    x0 = state(robot, hip, knee)
    if said is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            hc.simulate(system, ("open",), x0, (0.0, 0.01))
            robot.posture({"hip": hip, "knee": knee})
        return
    with pytest.warns(JointLimitWarning, match=f"x0: {said}") as caught:
        hc.simulate(system, ("open",), x0, (0.0, 0.01))
    (warning,) = caught
    assert warning.filename == __file__


def test_the_start_of_a_system_made_of_another_is_looked_at(robot, system):
    x0 = state(robot, knee=-1.0)
    push = Wrench("trunk", (1.0, 0, 0), 0.0, 0.01)
    with pytest.warns(JointLimitWarning, match="'knee' is at -1 rad"):
        hc.simulate(system, ("open",), x0, (0.0, 0.01), wrench=push)
    with pytest.warns(JointLimitWarning, match="'knee' is at -1 rad"):
        hc.simulate(hc.relax(system, 1e-3), ("open",), x0, (0.0, 0.01))


def test_starts_that_were_computed_are_not_warned_of(robot, system):
    """A plant warns where it is reset, not at each of its samples."""
    plant = SimulatedPlant(system, ("open",))
    with pytest.warns(JointLimitWarning, match="'knee' is at -1 rad") as caught:
        plant.reset(0.0, state(robot, knee=-1.0))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            plant.step(np.zeros(robot.nu))
        with computed_starts():
            hc.simulate(system, ("open",), state(robot, knee=-1.0), (0.0, 1e-3))


def test_a_start_at_a_unix_time_is_warned_of_where_simulate_is_called(robot, system):
    with pytest.warns(JointLimitWarning, match="'knee' is at -1 rad") as caught:
        hc.simulate(system, ("open",), state(robot, knee=-1.0), (1.7e9, 1.7e9 + 0.01))
    assert caught[0].filename == __file__


def test_joints_without_limits_have_none():
    text = LEG.replace('lower="0" upper="2.6" ', "")
    robot = Robot.from_urdf(text, root="floating")
    limits = robot.limits
    assert (limits["knee"].lower, limits["knee"].upper) == (-math.inf, math.inf)
    assert (limits["hip"].lower, limits["hip"].upper) == (-1.5, 1.5)
    assert "root_joint" not in limits


def test_a_message_has_three_joints_by_name():
    urdf = next(f for f in files("example-robot-data") if f.name == "go2.urdf").locate()
    robot = Robot.from_urdf(urdf)
    with pytest.warns(JointLimitWarning, match="; and 9 joints more$"):
        robot.posture(dict.fromkeys(robot.joint_names, 100.0))


# The root


def legs(feet=2):
    names = [f"leg{k}" for k in range(feet)]
    links = "".join(map(link, ("trunk", *names)))
    joints = "".join(joint(f"hip{k}", "trunk", name) for k, name in enumerate(names))
    return f'<robot name="r">{links}{joints}</robot>'


def test_a_forgotten_root_is_warned_of():
    contacts = [Contact(f"foot{k}", f"leg{k}", GROUND) for k in range(2)]
    with pytest.warns(FixedRootWarning, match="'trunk', which has mass.*root=\"floating\"") as w:
        contact_system(Robot.from_urdf(legs()), contacts)
    assert w[0].filename == __file__
    for root in ("fixed", "floating", "sagittal"):
        contact_system(Robot.from_urdf(legs(), root=root), contacts)
    massless = legs().replace(link("trunk"), '<link name="trunk"/>')
    contact_system(Robot.from_urdf(massless), contacts)
    contact_system(Robot.from_urdf(legs()), contacts[:1])  # as an arm that touches


def test_feet_that_were_found_need_no_second_limb():
    robot = Robot.from_urdf(LEG.replace('"shank"', '"foot"'))
    with pytest.warns(FixedRootWarning):
        contact_system(robot, contacts_from(robot))


def test_the_hand_of_an_arm_that_was_found_is_no_foot():
    """Pinocchio's UR10: a base with mass, one limb, and a box at the flange."""
    urdf = next(f for f in files("example-robot-data") if f.name == "ur10_robot.urdf").locate()
    arm = Robot.from_urdf(urdf)
    contact_system(arm, contacts_from(arm))  # warnings are errors


# Starts and modes


def test_a_contact_below_ground_is_named(robot, system):
    x0 = state(robot, 0.0, 0.0, height=0.5)
    with pytest.raises(GuardViolatedError, match=r"contact 'toe' is 0.4 m inside its surface"):
        hc.simulate(system, ("open",), x0, (0.0, 0.1))


def test_a_mode_as_a_list_is_told_the_tuple(robot, system):
    with pytest.raises(UnknownNameError, match=r"mode must .* got \['open'\]: give .*\('open',\)"):
        hc.simulate(system, ["open"], state(robot), (0.0, 0.1))


def test_a_stiff_run_is_told_the_method():
    """x' = -1e6 (x - cos t): explicit steps of 3e-6 s, which the default leaves by itself."""
    mode = hc.Mode("m", hc.VectorSpace(1), lambda t, x, u: -1e6 * (x - np.cos(t)))
    system = hc.HybridSystem([mode], [])
    with pytest.raises(StepLimitError, match='method="Radau"'):
        hc.simulate(
            system,
            "m",
            [0.0],
            (0.0, 2.0),
            method="RK45",
            options=hc.SimulationOptions(max_steps=100),
        )
    run = hc.simulate(
        system, "m", [0.0], (0.0, 2.0), method="Radau", options=hc.SimulationOptions(max_steps=2000)
    )
    np.testing.assert_allclose(run.final_state, np.cos(2.0), atol=1e-5)


# Files


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '<robot name="a" xmlns:xacro="http://www.ros.org/wiki/xacro">'
            '<xacro:property name="m" value="1"/><link name="a"/></robot>',
            "xacro macros",
        ),
        ('<robot name="a"><xacro:macro name="m"/><link name="a"/></robot>', "xacro macros"),
        ("<mujoco><worldbody/></mujoco>", "must be a <robot>, got <mujoco>: Robot.from_mjcf"),
        ("<html/>", "must be a <robot>, got <html>"),
        ("<robot", "it is no XML"),
        (LEG.replace('"1.0"', '"4,0"', 1), "value of <mass> .* link 'trunk', got '4,0'"),
        (LEG.replace('"1.0"', '"4 kg"', 1), "got '4 kg'"),
        (LEG.replace('"1.0"', '"nan"', 1), "got 'nan'"),
        (LEG.replace('"1.0"', '"1e400"', 1), "got '1e400'"),
        (LEG.replace('ixx="0.01"', "", 1), "ixx of <inertia> .* got nothing"),
        (LEG.replace('iyz="0"', 'iyz="0,0"', 1), "iyz of <inertia> .* got '0,0'"),
        (LEG.replace('<mass value="1.0"/>', "", 1), "value of <mass> .* got nothing"),
        (LEG.replace("<inertial>", '<inertial><origin xyz="0 0"/>', 1), "xyz of <origin>"),
        (LEG.replace("</inertial>", '</inertial><inertial><mass value="2"/><inertia ixx="1" '
                     'iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>', 1), "one <inertial>"),
    ],
)  # fmt: skip
def test_files_of_another_kind_or_with_numbers_that_are_lost(text, said):
    with pytest.raises(FileFormatError, match=said):
        Robot.from_urdf(text, root="floating")


# Arguments of another kind: an error of the library's that names the argument, or what it is for


def blind(t, x):
    return t[0] * x


MISTAKES = {
    "joints": lambda r, s, x: r.posture([0.1, 0.2]),
    "joints ": lambda r, s, x: r.posture(0.1),
    "hip": lambda r, s, x: r.posture({"hip": "0.1"}),
    "joint": lambda r, s, x: r.posture({3: 0.1}),
    "damping": lambda r, s, x: Robot.from_urdf(LEG, damping=2.0),
    "stiffness": lambda r, s, x: Robot.from_urdf(LEG, stiffness=[1.0, 2.0]),
    "rest": lambda r, s, x: Robot.from_urdf(LEG, rest="hip"),
    "rotors": lambda r, s, x: Robot.from_urdf(LEG, rotors=Rotor(1e-4)),
    "rotors['hip']": lambda r, s, x: Robot.from_urdf(LEG, rotors={"hip": 1e-4}),
    "actuated": lambda r, s, x: Robot.from_urdf(LEG, actuated="hip"),
    "actuated ": lambda r, s, x: Robot.from_urdf(LEG, actuated=2),
    "joint ": lambda r, s, x: Robot.from_urdf(LEG, actuated=[2]),
    "gravity": lambda r, s, x: Robot.from_urdf(LEG, gravity=-9.81),
    "root": lambda r, s, x: Robot.from_urdf(LEG, root=["floating"]),
    "urdf": lambda r, s, x: Robot.from_urdf(3),
    "urdf ": lambda r, s, x: Robot.from_urdf(None),
    "mjcf": lambda r, s, x: Robot.from_mjcf(3),
    "model": lambda r, s, x: Robot(LEG),
    "robot": lambda r, s, x: contact_system(LEG, [TOE]),
    "contacts": lambda r, s, x: contact_system(r, {"toe": TOE}),
    "contacts ": lambda r, s, x: contact_system(r, TOE),
    "contacts  ": lambda r, s, x: contact_system(r, None),
    "terms": lambda r, s, x: contact_system(r, [TOE], terms=["native"]),
    "on_several": lambda r, s, x: contact_system(r, [TOE], on_several=np.zeros(2)),
    "stabilization": lambda r, s, x: contact_system(r, [TOE], stabilization="fast"),
    "contact 'toe'": lambda r, s, x: contact_system(r, [Contact("toe", "foot", GROUND)]),
    "name": lambda r, s, x: Contact(1, "shank", GROUND),
    "frame": lambda r, s, x: Contact("toe", r, GROUND),
    "surface": lambda r, s, x: Contact("toe", "shank", (0, 0, 1)),
    "offset": lambda r, s, x: Contact("toe", "shank", GROUND, offset=0.1),
    "friction": lambda r, s, x: Contact("toe", "shank", GROUND, friction=None),
    "radius": lambda r, s, x: Contact("toe", "shank", GROUND, radius="big"),
    "normal": lambda r, s, x: Plane((0, 0, 0), 1.0),
    "point": lambda r, s, x: Plane(None, (0, 0, 1)),
    "center": lambda r, s, x: Sphere("here", 1.0),
    "radius ": lambda r, s, x: Sphere((0, 0, 0), (1.0, 2.0)),
    "height": lambda r, s, x: Terrain(0.1),
    "robot ": lambda r, s, x: contacts_from(LEG),
    "body": lambda r, s, x: s.kick(x, (0, 0, 1), (0, 0, 1)),
    "body ": lambda r, s, x: s.kick(x, np.zeros(3), (0, 0, 1)),
    "body  ": lambda r, s, x: s.kick(x, None, (0, 0, 1)),
    "impulse": lambda r, s, x: s.kick(x, "trunk", 1.0),
    "at": lambda r, s, x: s.kick(x, "trunk", (0, 0, 1), at=None),
    "u": lambda r, s, x: s.kick(x, "trunk", (0, 0, 1), u="off"),
    "x": lambda r, s, x: s.kick(x[:3], "trunk", (0, 0, 1)),
    "force": lambda r, s, x: Wrench("trunk", 10.0, 0.0, 1.0),
    "start": lambda r, s, x: Wrench("trunk", (1, 0, 0), None, 1.0),
    "body   ": lambda r, s, x: Wrench(3, (1, 0, 0), 0.0, 1.0),
    "wrench": lambda r, s, x: s.pushed("trunk"),
    "wrench ": lambda r, s, x: s.pushed({"trunk": (1, 0, 0)}),
    "system": lambda r, s, x: hc.simulate(r, ("open",), x, (0, 1)),
    "mode": lambda r, s, x: hc.simulate(s, np.array(["open"]), x, (0, 1)),
    "x0": lambda r, s, x: hc.simulate(s, ("open",), None, (0, 1)),
    "t_span": lambda r, s, x: hc.simulate(s, ("open",), x, 1.0),
    "policy": lambda r, s, x: hc.simulate(s, ("open",), x, (0, 1), lambda x: x),
    "policy ": lambda r, s, x: hc.simulate(s, ("open",), x, (0, 1), hc.SampledPolicy),
    "policy  ": lambda r, s, x: hc.simulate(s, ("open",), x, (0, 1), blind),
    "policy   ": lambda r, s, x: hc.simulate(s, ("open",), x, (0, 1), np.zeros(2)),
    "rtol": lambda r, s, x: hc.simulate(s, ("open",), x, (0, 1), rtol="fine"),
    "max_events": lambda r, s, x: hc.simulate(s, ("open",), x, (0, 1), max_events=1.5),
    "terminal": lambda r, s, x: hc.simulate(s, ("open",), x, (0, 1), terminal=True),
    "system ": lambda r, s, x: equilibrium(r, ("stick",), x[:5]),
    "q0": lambda r, s, x: equilibrium(s, ("stick",), {"hip": 0.1}),
    "mode ": lambda r, s, x: equilibrium(s, "stick", x[:5]),
    "folder": lambda r, s, x: hc.simulate(s, ("open",), x, (0, 0.01)).save("."),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_arguments_of_another_kind_are_named(name, robot, system):
    with pytest.raises(HybridctlError) as caught:
        MISTAKES[name](robot, system, state(robot))
    assert name.strip() in str(caught.value)
    assert len(str(caught.value)) < 900
    assert isinstance(caught.value, InputError | OSError)
