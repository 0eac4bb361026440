"""Joints that mimic others: a tree of free joints with an exact constraint, and MuJoCo's equality.

The reference for the dynamics is the robot whose joints all move on their own, closed by the
constraints v_f = m v_d with Lagrange multipliers: it knows nothing of reduced coordinates.
"""

import logging
import pickle
from importlib import metadata

import numpy as np
import pinocchio as pin
import pytest
from differences import assert_derivative

import hybridctl as hc
from hybridctl.base.errors import FileFormatError, InputError, UnknownNameError
from hybridctl.interop.mujoco import MujocoModel
from hybridctl.legged.kinematics import Foot, LegKinematics
from hybridctl.mechanics import (
    Contact,
    Plane,
    Robot,
    Rotor,
    contact_system,
    limb_symmetry,
    parameter_derivatives,
)
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.multibody.mimic import Mimic
from hybridctl.mechanics.terms.expression_terms import ExpressionTerms
from hybridctl.mechanics.terms.general_terms import GeneralTerms
from mechanics.models import TWINS
from mechanics.random_robots import random_robot, with_mimics

INERTIA = '<inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/>'


def link(name: str) -> str:
    return f'<link name="{name}"><inertial><mass value="1"/>{INERTIA}</inertial></link>'


def joint(name: str, child: str, more: str = "", kind: str = "revolute", axis="0 0 1") -> str:
    limit = '<limit lower="0" upper="1" effort="9" velocity="9"/>'
    return (
        f'<joint name="{name}" type="{kind}"><parent link="palm"/><child link="{child}"/>'
        f'<axis xyz="{axis}"/>{limit}{more}</joint>'
    )


def hand(mimic: str = '<mimic joint="left" multiplier="-1"/>', *more: str, **kinds: str) -> str:
    """A palm with two fingers about one axis; their moments of inertia are 0.1 kg m^2."""
    left = joint("left", "l", kind=kinds.get("left", "revolute"))
    right = joint("right", "r", mimic, kind=kinds.get("right", "revolute"))
    links = link("palm") + link("l") + link("r")
    return f'<robot name="hand">{links}{left}{right}{"".join(more)}</robot>'


def random_pair(seed: int):
    """A random tree with contacts, and the same robot with joints that mimic; its rng."""
    pin.seed(seed)
    rng = np.random.default_rng(seed)
    tree, contacts = random_robot(rng, most_joints=8)
    return tree, with_mimics(rng, tree), contacts, rng


SEEDS = [
    *range(6),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 30)),
]
FEW_SEEDS = [  # expressions take a second to make
    2,
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 15)),
]


def test_two_fingers_on_one_motor():
    """1 N m turns 0.1 + 0.1 kg m^2 at 5 rad/s^2, the one finger against the other."""
    robot = Robot.from_urdf(hand())
    assert (robot.nq, robot.nv, robot.nu) == (1, 1, 1)
    a = robot.free_acceleration(np.zeros(1), np.zeros(1), np.ones(1))
    np.testing.assert_allclose(robot.all_velocities(a), [5.0, -5.0], rtol=1e-14)


# Rounding of some thousand operations on terms of up to a few hundred, of a mass matrix whose
# condition is below 1e4.
CLOSE = 1e-9


def assert_close(found, expected, what):
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=CLOSE * scale, err_msg=what)


@pytest.mark.parametrize("seed", SEEDS)
def test_motion_is_that_of_the_tree_with_an_exact_constraint(seed):
    tree, robot, _, rng = random_pair(seed)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v, u = rng.normal(size=robot.nv), rng.normal(size=robot.nu)
    q_all, v_all = robot.all_coordinates(q), robot.all_velocities(v)
    rows, ends = [], robot.mimics
    for name, mimic in ends.items():
        (i, j), (k, n) = tree.joints[name], tree.joints[mimic.joint]
        assert q_all[i] == pytest.approx(mimic.multiplier * q_all[k] + mimic.offset, abs=1e-14)
        row = np.zeros(tree.nv)
        row[j], row[n] = 1.0, -mimic.multiplier
        rows.append(row)
    g = np.reshape(rows, (-1, tree.nv))
    np.testing.assert_allclose(g @ v_all, 0.0, atol=1e-13)
    tau = np.zeros(tree.nv)
    driven = [name for name in robot.joint_names if robot.actuation[robot.velocities(name)].any()]
    tau[[i for name in driven for i in tree.velocities(name)]] = u
    # the multipliers act on joints that follow, all springs and dampers where they are
    mass, drive = tree.mass_matrix(q_all), tau - tree.bias(q_all, v_all)
    kkt = np.block([[mass, g.T], [g, np.zeros((len(g), len(g)))]])
    a_all = np.linalg.solve(kkt, np.append(drive, np.zeros(len(g))))[: tree.nv]
    a = robot.free_acceleration(q, v, u)
    assert_close(robot.all_velocities(a), a_all, "acceleration")
    assert_close(robot.inverse_mass(q) @ robot.mass_matrix(q), np.eye(robot.nv), "inverse")
    assert_close(robot.energy(q, v)[0], tree.energy(q_all, v_all)[0], "kinetic energy")
    assert_close(robot.momentum(q, v), tree.momentum(q_all, v_all), "momentum")
    assert_close(robot.poses(q, [1]), tree.poses(q_all, [1]), "poses")
    moves = tree.point_jacobian(q_all, tree.link_names[-1], np.ones(3)) @ v_all
    own = robot.point_jacobian(q, tree.link_names[-1], np.ones(3)) @ v
    assert_close(own, moves, "point velocity")
    bias = robot.bias(q, v) - robot.passive.torque(q, v)
    inertias = [inertia.toDynamicParameters() for inertia in list(tree.model.inertias)[1:]]
    rotors = robot.armature * a
    pi = np.concatenate(inertias)
    assert_close(
        robot.regressor(q, v, a) @ pi + rotors, robot.mass_matrix(q) @ a + bias, "regressor"
    )


def normal_rows(robot, contacts, q, v):
    """Gaps, rates and drift of the normals; tangents depend on how a contact can move."""
    rows = ContactSet(robot, contacts)
    jacobian, drift, gaps, rates = rows.motion(robot.motion(q, v, rows.joints), v)
    count = len(contacts)
    return gaps, rates[:count], drift[:count], jacobian[:count] @ v


@pytest.mark.parametrize("seed", SEEDS)
def test_contacts_move_as_those_of_the_tree(seed):
    tree, robot, contacts, rng = random_pair(seed)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v = rng.normal(size=robot.nv)
    found = normal_rows(robot, contacts, q, v)
    expected = normal_rows(tree, contacts, robot.all_coordinates(q), robot.all_velocities(v))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, "normal rows")


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_expressions_and_derivatives_are_those_of_the_terms(seed):
    """Expressions against Pinocchio's terms, and derivatives of the terms by differences."""
    _, robot, contacts, rng = random_pair(seed)
    rows = ContactSet(robot, contacts)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v, a = rng.normal(size=(2, robot.nv))
    u, forces = rng.normal(size=robot.nu), rng.normal(size=len(rows.owner))
    terms, other = GeneralTerms(robot, rows), ExpressionTerms(robot, rows)
    for name, arguments in (
        ("values", (q, v, u)),
        ("derivatives", (q, v, a, forces)),
        ("impulse_derivatives", (q, a, forces)),
    ):
        one, two = (getattr(t, name)(*arguments) for t in (terms, other))
        for what in one._fields:
            assert_close(getattr(two, what), getattr(one, what), f"{name}: {what}")
    nv = robot.nv

    def moved(dz):
        now = terms.values(robot.integrate(q, dz[:nv]), v + dz[nv:], u)
        equations = now.mass @ a - now.drive - now.jacobian.T @ forces
        return np.concatenate((equations, now.rates))

    equations, _, rates = terms.derivatives(q, v, a, forces)
    assert_derivative(moved, np.vstack([equations, rates]))


def test_expressions_have_a_continuous_joint_behind_one_that_mimics():
    """Its cosine and sine stand one place earlier in q than in the coordinates of all joints."""
    wheel = link("w") + joint("wheel", "w", kind="continuous", axis="1 0.3 0")
    robot = Robot.from_urdf(hand('<mimic joint="left"/>', wheel))
    assert robot.mimics == {"right": Mimic("left")}
    assert robot.coordinates("wheel") == [1, 2]
    floor = Contact("rim", "w", Plane((0, 0, 0), (0, 0, 1)), offset=(0.0, 0.2, -0.5))
    rows, rng = ContactSet(robot, [floor]), np.random.default_rng(0)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v, u = rng.normal(size=robot.nv), rng.normal(size=robot.nu)
    one, two = (kind(robot, rows).values(q, v, u) for kind in (GeneralTerms, ExpressionTerms))
    for what in one._fields:
        assert_close(getattr(two, what), getattr(one, what), what)
    scaled = q * [1.0, 1.1, 1.1]  # of a unit circle only the direction counts
    np.testing.assert_allclose(robot.normalize(scaled), q, atol=1e-15)


def test_joints_that_mimic_connect_trees():
    """An impulse on the right finger moves the left one, and no third body beside them."""
    other = link("o") + joint("other", "o")
    robot = Robot.from_urdf(hand('<mimic joint="left" multiplier="0.5"/>', other))
    ground = Plane((0, 0, 0), (0, 0, 1))
    contacts = [Contact(name, name, ground) for name in ("l", "r", "o")]
    trees = ContactSet(robot, contacts).moved_trees
    assert (trees[0] == trees[1]).all()
    assert not (trees[0] & trees[2]).any()
    left, other = (robot.velocity_index(name) for name in ("left", "other"))
    moved = robot.reduce_flags(robot.all_velocities(np.eye(2)).T != 0.0)
    assert moved[left].tolist() == (np.arange(2) == left).tolist()
    assert moved[other].tolist() == (np.arange(2) == other).tolist()


def test_springs_dampers_and_rotors_of_both_joints_act_on_the_one():
    """k (2 q + 0.3 - 0.5) at the follower acts on the driver twice, and its rotor four times."""
    robot = Robot.from_urdf(
        hand('<mimic joint="left" multiplier="2" offset="0.3"/>'),
        stiffness={"left": 3.0, "right": 7.0},
        rest={"right": 0.5},
        damping={"right": 0.4},
        rotors={"right": Rotor(1e-3, 10.0)},
    )
    q, v = np.array([0.2]), np.array([1.5])
    spring = 3.0 * 0.2 + 2.0 * 7.0 * (2.0 * 0.2 + 0.3 - 0.5)
    np.testing.assert_allclose(robot.passive.torque(q, v), [spring + 2.0 * 0.4 * 3.0], rtol=1e-14)
    np.testing.assert_allclose(robot.mass_matrix(q), [[0.1 + 4.0 * (0.1 + 0.1)]], rtol=1e-14)
    energies = [robot.energy(np.array([angle]), v)[1] for angle in (0.2 - 1e-5, 0.2 + 1e-5)]
    assert (energies[1] - energies[0]) / 2e-5 == pytest.approx(spring, rel=1e-9)


def test_the_log_and_texts_say_which_joints_mimic(caplog):
    with caplog.at_level(logging.INFO, logger="hybridctl"):
        robot = Robot.from_urdf(hand('<mimic joint="left" multiplier="-1" offset="0.2"/>'))
    assert caplog.messages == [
        "joints that mimic others have no coordinate or motor of their own: right = -1 left + 0.2"
    ]
    assert repr(robot) == "Robot(nq=1, nv=1, joints left, right = -1 left + 0.2)"
    assert "mimics: -1 left + 0.2" in robot._repr_html_()
    assert robot.labels.positions == ("left [rad]",)
    assert robot.mimics == {"right": Mimic("left", -1.0, 0.2)}
    assert robot.velocities("right") == robot.coordinates("right") == []
    assert pickle.loads(pickle.dumps(robot)).mimics == robot.mimics


def test_chains_end_at_the_joint_that_moves_on_its_own():
    """third = 2 right + 1 and right = -3 left + 0.5; followers may come first in the file."""
    third = joint("third", "t", '<mimic joint="right" multiplier="2" offset="1"/>')
    text = hand('<mimic joint="left" multiplier="-3" offset="0.5"/>', link("t"), third)
    robot = Robot.from_urdf(text)
    assert robot.mimics["third"] == Mimic("left", -6.0, 2.0)
    np.testing.assert_allclose(robot.all_coordinates(np.array([0.1])), [0.1, 0.2, 1.4])
    swapped = Robot.from_urdf(hand('<mimic joint="third"/>', link("t"), joint("third", "t")))
    assert repr(swapped) == "Robot(nq=2, nv=2, joints left, right = 1 third, third)"
    np.testing.assert_allclose(swapped.all_coordinates(np.array([0.1, 0.2])), [0.1, 0.2, 0.2])


def test_a_multiplier_of_zero_holds_a_joint_at_its_offset():
    robot = Robot.from_urdf(hand('<mimic joint="left" multiplier="0" offset="0.4"/>'))
    np.testing.assert_allclose(robot.all_coordinates(np.array([0.1])), [0.1, 0.4])
    np.testing.assert_allclose(robot.mass_matrix(np.zeros(1)), [[0.1]], rtol=1e-14)


def test_a_slide_may_mimic_a_hinge():
    """0.02 m/rad and 1 kg: 0.1 + 0.02^2 kg m^2, without gravity."""
    text = hand('<mimic joint="left" multiplier="0.02"/>', right="prismatic")
    robot = Robot.from_urdf(text, gravity=(0.0, 0.0, 0.0))
    np.testing.assert_allclose(robot.mass_matrix(np.zeros(1)), [[0.1 + 4e-4]], rtol=1e-14)


@pytest.mark.parametrize(
    "kinds", [("continuous", "continuous"), ("continuous", "revolute"), ("revolute", "continuous")]
)
def test_continuous_joints_are_coupled_by_their_angle(kinds):
    """A gear of -2.5: 0.1 (1 + 2.5^2) kg m^2, and the follower counts the turns of the driver."""
    text = hand(
        '<mimic joint="left" multiplier="-2.5" offset="0.3"/>', left=kinds[0], right=kinds[1]
    )
    robot = Robot.from_urdf(text)
    assert (robot.nq, robot.nv, robot.nu) == (1, 1, 1)
    turned = np.array([7.0])  # more than a turn
    np.testing.assert_allclose(robot.all_coordinates(turned), [7.0, -2.5 * 7.0 + 0.3], rtol=1e-15)
    np.testing.assert_allclose(robot.mass_matrix(turned), [[0.1 * (1.0 + 2.5**2)]], rtol=1e-14)
    assert (robot.limits["left"].lower == -np.inf) == (kinds[0] == "continuous")
    assert robot.effort.tolist() == [9.0]
    moved = hc.simulate(
        contact_system(robot, [Contact("c", "l", Plane((0, 0, -9), (0, 0, 1)))]),
        None,
        [0.0, 8.0],
        (0.0, 2.0),
    )
    np.testing.assert_allclose(moved.final_state, [16.0, 8.0], rtol=1e-9)  # nothing brakes it


def test_joints_on_a_unit_circle_are_not_coupled():
    model = Robot.from_urdf(hand("", left="continuous")).model
    with pytest.raises(InputError, match="'left' must have one coordinate"):
        Robot(model, mimics={"right": Mimic("left")})


def test_coordinates_of_all_joints_are_refused_by_the_names_of_those_that_mimic():
    robot = Robot.from_urdf(hand())
    for call in (robot.mass_matrix, robot.inverse_mass, lambda q: robot.poses(q, [1])):
        with pytest.raises(InputError, match=r"q must have 1 entries .*, got 2: .* \(right\)"):
            call(np.zeros(2))
    with pytest.raises(InputError, match=r"v must have 1 entries .*, got 2: .* velocity"):
        robot.bias(np.zeros(1), np.zeros(2))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (hand('<mimic joint="thumb"/>'), "'right' that mimics joint 'thumb', which does not exist"),
        (hand("<mimic/>"), "'right' that mimics joint '', which does not exist"),
        (hand('<mimic joint="left"/>', left="fixed"), "mimics joint 'left', which is fixed"),
        (hand('<mimic joint="left" multiplier="two"/>'), "as multiplier of <mimic> in joint"),
        (hand('<mimic joint="left" offset="nan"/>'), "as offset .* 'right', got 'nan'"),
    ],
)
def test_a_mimic_that_is_not_read_is_refused(text, said):
    with pytest.raises(FileFormatError, match=said):
        Robot.from_urdf(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (hand('<mimic joint="right"/>'), r"'right' must not mimic itself, got \['right'\]"),
        (hand('<mimic joint="left"/>', left="floating"), "'left' must have one degree of freedom"),
    ],
)
def test_a_mimic_that_cannot_be_held_is_refused(text, said):
    with pytest.raises(InputError, match=said):
        Robot.from_urdf(text)


def test_a_fixed_joint_with_a_mimic_stays_fixed():
    assert repr(Robot.from_urdf(hand(right="fixed"))) == "Robot(nq=1, nv=1, joints left)"


@pytest.mark.parametrize(
    "call",
    [
        lambda: Robot.from_urdf(hand(), actuated=["right"]),
        lambda: Robot.from_urdf(hand()).posture({"right": 0.1}),
        lambda: Robot.from_urdf(hand()).velocity_index("right"),
        lambda: Robot.from_urdf(hand()).coordinate_index("right"),
    ],
)
def test_a_joint_that_mimics_is_not_moved_on_its_own(call):
    with pytest.raises(InputError, match=r"'right' must move on its own, .* is at -1 left"):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda system: MujocoModel(system.robot, ()), r"robot must have no joints .* \['right'\]"),
        (lambda system: limb_symmetry(system, {}, {}), "robot must have no joints that mimic"),
        (
            lambda system: parameter_derivatives(system.robot, system.contacts, ["rest:left"]),
            "'left' must not be mimicked",
        ),
        (
            lambda system: parameter_derivatives(system.robot, system.contacts, ["damping:right"]),
            "'right' must move on its own",
        ),
    ],
)
def test_what_does_not_know_joints_that_mimic_refuses_them(call, said):
    floor = Plane((0.0, 0.0, -1.0), (0.0, 0.0, 1.0))
    system = contact_system(Robot.from_urdf(hand(), root="fixed"), [Contact("tip", "l", floor)])
    with pytest.raises(InputError, match=said):
        call(system)


def test_feet_of_an_estimator_may_hang_on_joints_that_mimic():
    """A foot 0.3 m from the axis of a joint at -1.5 q: position and twist in the palm."""
    foot = (
        '<joint name="tip" type="fixed"><origin xyz=".3 0 0"/><parent link="r"/>'
        '<child link="t"/></joint>'
    )
    text = hand('<mimic joint="left" multiplier="-1.5"/>', link("t"), foot)
    legs = LegKinematics(Robot.from_urdf(text, root="fixed"), "palm", [Foot("t")])
    assert legs.joints == ("left",)
    (found,) = legs(np.array([0.2]), ["t"])
    c, s = 0.3 * np.cos(-0.3), 0.3 * np.sin(-0.3)
    np.testing.assert_allclose(found.position, [c, s, 0.0], atol=1e-15)
    twist = [-1.5 * -s, -1.5 * c, 0.0, 0.0, 0.0, -1.5]
    np.testing.assert_allclose(found.twist[:, 0], twist, atol=1e-15)


def test_mimics_are_given_by_name_too():
    tree = Robot.from_urdf(hand(""))
    assert tree.nv == 2
    robot = Robot(tree.model, mimics={"right": Mimic("left", -1.0)})
    np.testing.assert_allclose(robot.mass_matrix(np.zeros(1)), [[0.2]], rtol=1e-14)
    with pytest.raises(UnknownNameError, match="thumb"):
        Robot(tree.model, mimics={"thumb": Mimic("left")})
    with pytest.raises(InputError, match=r"mimics\['right'\] must be a Mimic"):
        Robot(tree.model, mimics={"right": "left"})


MJCF = """<mujoco><compiler angle="radian"/><option tolerance="1e-14" iterations="100"/>
<worldbody>
<body name="palm" pos="0 0 1"><joint name="arm" type="hinge" axis="0 1 0" damping="0.1"/>
<geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.3" mass="1"/>
<body name="left" pos="0 0 -0.3"><joint name="left" type="hinge" axis="0 1 0" ref="0.3"/>
<geom type="capsule" size="0.02" fromto="0 0 0 0.2 0 -0.2" mass="0.4"/></body>
<body name="right" pos="0 0.1 -0.3"><joint name="right" type="slide" axis="1 0 1" ref="-0.2"/>
<geom type="capsule" size="0.02" fromto="0 0 0 0 0.1 -0.2" mass="0.7"/></body></body></worldbody>
<equality><joint name="tie" joint1="right" joint2="left" polycoef="{coefficients}"
solimp="0.9999 0.9999 0.001"/></equality><actuator>{actuators}</actuator></mujoco>"""
MOTORS = '<motor joint="arm"/><motor joint="left"/>'


def test_a_linear_equality_of_mjcf_is_held_as_mujoco_holds_it():
    """MuJoCo's constraint with an impedance of 0.9999 is soft by a share of 1e-4.

    The joints have reference positions, from which its polynomial counts.
    """
    mujoco = pytest.importorskip("mujoco")
    text = MJCF.format(coefficients="0.05 -0.6 0 0 0", actuators=MOTORS)
    robot = Robot.from_mjcf(text)
    assert (robot.nq, robot.nv, robot.nu) == (2, 2, 2)
    assert robot.joint_names == ("arm", "left", "right")
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    rng = np.random.default_rng(4)
    q, v, u = rng.normal(size=(3, 2))
    data.qpos[:], data.qvel[:], data.ctrl[:] = robot.all_coordinates(q), robot.all_velocities(v), u
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.efc_pos, 0.0, atol=1e-15)
    found = robot.all_velocities(robot.free_acceleration(q, v, u))
    np.testing.assert_allclose(found, data.qacc, rtol=0.0, atol=1e-3 * np.abs(found).max())
    np.testing.assert_allclose(robot.keyframes["qpos0"], [0.0, 0.3])


@pytest.mark.parametrize(
    ("coefficients", "actuators"),
    [("0 1 0.1 0 0", MOTORS), ("0 1 0 0 0", MOTORS + '<motor joint="right"/>')],
)
def test_other_equalities_of_mjcf_are_refused_or_left_out(coefficients, actuators):
    pytest.importorskip("mujoco")
    text = MJCF.format(coefficients=coefficients, actuators=actuators)
    with pytest.raises(InputError, match=r"the equality constraint 'tie' \(joint\)"):
        Robot.from_mjcf(text)
    assert Robot.from_mjcf(text, ignore=["equality"]).mimics == {}


def test_an_equality_of_mjcf_may_be_ignored_by_name():
    pytest.importorskip("mujoco")
    text = MJCF.format(coefficients="0 1 0 0 0", actuators=MOTORS)
    assert Robot.from_mjcf(text, ignore=["tie"]).nv == 3


def test_energy_is_kept_along_a_run_with_a_floor():
    """A pair of wings on one joint falls, hits with restitution 1 and flies on: no loss.

    Energies of some 10 J are integrated to 1e-9, impacts are exact.
    """
    model = Robot.from_urdf(TWINS, root="sagittal").model
    robot = Robot(
        model,
        actuated=[],
        stiffness={"hip": 2.0, "flap": 0.5},
        damping={"flap": 0.0},
        mimics={"flap": Mimic("hip", -0.8, 0.1)},
    )
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    foot = Contact("foot", "cube", floor, offset=(0.05, 0.05, -0.05), restitution=1.0)
    system = contact_system(robot, [foot])
    start = robot.posture({"root_z": 0.3, "root_pitch": 0.4, "hip": 0.5})
    run = hc.simulate(system, ("open",), np.append(start, np.ones(robot.nv)), (0.0, 0.5))
    assert run.events
    ends = [x for arc in run.arcs for x in (arc(arc.start), arc(arc.end))]
    energies = [sum(robot.energy(*np.split(x, [robot.nq]))) for x in ends]
    np.testing.assert_allclose(energies, energies[0], atol=1e-7)


# Public robots, of the package example-robot-data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "driven", "followers"),
    [
        ("talos_data/robots/talos_full_v2.urdf", 32, 12),
        ("panda_description/urdf/panda.urdf", 8, 1),
        ("pr2_description/urdf/pr2.urdf", 20, 10),
    ],
)
def test_public_robots_move_as_their_trees_do(file, driven, followers):
    """The kinetic energy, which is that of all bodies, and the constraints at a random state."""
    path = files_of("example-robot-data", file)
    robot, rng = Robot.from_urdf(path, root="floating"), np.random.default_rng(0)
    assert (robot.nu, len(robot.mimics)) == (driven, followers)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v = rng.normal(size=robot.nv)
    model, q_all, v_all = robot.model, robot.all_coordinates(q), robot.all_velocities(v)
    assert robot.nv == model.nv - followers
    for name, mimic in robot.mimics.items():
        one, other = (model.joints[model.getJointId(n)] for n in (name, mimic.joint))
        assert q_all[one.idx_q] == mimic.multiplier * q_all[other.idx_q] + mimic.offset
        assert v_all[one.idx_v] == mimic.multiplier * v_all[other.idx_v]
    mass = pin.crba(model, model.createData(), q_all)
    assert robot.energy(q, v)[0] == pytest.approx(0.5 * v_all @ mass @ v_all, rel=1e-12)


def files_of(package: str, ending: str) -> str:
    """The path of a file of an installed package; skips where the package is not there."""
    try:
        found = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    return next(str(f.locate()) for f in found if str(f).endswith(f"/{ending}"))


HALF, MASS, PULL, GRAVITY = 0.02, 0.1, 5.0, 9.81
"""Half the side of a cube in m, its mass in kg, the force of the motor in N, and gravity."""
MOMENT = MASS * (2.0 * HALF) ** 2 / 6.0
CUBE = f"""<link name="cube"><inertial><mass value="{MASS}"/><inertia ixx="{MOMENT}" iyy="{MOMENT}"
izz="{MOMENT}" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="free" type="floating"><parent link="panda_link0"/><child link="cube"/></joint>"""


@pytest.mark.slow
def test_two_fingers_with_one_motor_close_on_a_cube_and_hold_it():
    """Panda's hand, its arm fixed, and a falling cube that is 2 mm off the middle.

    One motor of 5 N moves both fingers by the same way. The first to touch pushes the cube against
    the other. At rest each finger presses with half of the motor's force, by virtual work, and by
    friction bears half of the cube's weight; the cube is in the middle then.
    """
    path = files_of("example-robot-data", "panda_description/urdf/panda.urdf")
    with open(path, encoding="utf-8") as file:
        arm_fixed = file.read().replace('type="revolute"', 'type="fixed"')
    robot = Robot.from_urdf(arm_fixed.replace("</robot>", f"{CUBE}</robot>"), root="fixed")
    assert (robot.nv, robot.nu) == (7, 1)
    q = robot.posture({"panda_finger_joint1": 0.03})
    hand = [robot.frame(f"panda_{side}finger").joint for side in ("left", "right")]
    left, right = robot.poses(q, hand)
    tip = np.array([0.0, 0.002, 0.045])
    q[:3] = 0.5 * (left + right)[:3, 3] + left[:3, :3] @ tip
    q[3:7] = pin.Quaternion(left[:3, :3]).coeffs()
    contacts = [
        Contact(
            f"{side} {height}",
            f"panda_{side}finger",
            Plane((0.0, sign * HALF, 0.0), (0.0, sign, 0.0)),
            body="cube",
            offset=(0.0, 0.0, height),
            friction=0.6,
        )
        for side, sign in (("left", 1.0), ("right", -1.0))
        for height in (0.038, 0.052)
    ]
    system = contact_system(robot, contacts)
    start = np.append(q, np.zeros(robot.nv))
    run = hc.simulate(
        system, ("open",) * 4, start, (0.0, 0.2), policy=lambda t, x: np.array([-PULL])
    )
    assert run.final_mode == ("stick",) * 4
    x, u = run.final_state, np.array([-PULL])
    found = system.mode(run.final_mode).outputs(run.arcs[-1].end, x, u)
    per_finger = found["normal_force"].reshape(2, 2).sum(axis=1)
    np.testing.assert_allclose(per_finger, 0.5 * PULL, rtol=1e-6)
    # tangents are along x and z of the cube, whose z points down
    bears = found["friction_force"].reshape(2, 2, 2).sum(axis=1)
    np.testing.assert_allclose(np.abs(bears[:, 1]), 0.5 * MASS * GRAVITY, rtol=1e-6)
    np.testing.assert_allclose(bears[:, 0], 0.0, atol=1e-6)
    np.testing.assert_allclose(x[robot.nq :], 0.0, atol=1e-8)
    # both fingers are at half the side, and the cube fell less than it did before it was held
    assert x[robot.coordinate_index("panda_finger_joint1")] == pytest.approx(HALF, abs=1e-8)
    middle = left[:3, :3].T @ (x[:3] - 0.5 * (left + right)[:3, 3])
    assert middle[1] == pytest.approx(0.0, abs=1e-8)
    held = next(event.time for event in run.events if event.mode_after == ("stick",) * 4)
    assert 0.0 < q[2] - x[2] < 0.5 * GRAVITY * held**2
