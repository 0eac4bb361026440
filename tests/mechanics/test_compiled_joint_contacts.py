"""Compiled modes with stops and dry friction of joints, against those of Pinocchio's terms."""

import numpy as np
import pinocchio as pin
import pytest

import hybridctl as hc
from hybridctl.mechanics import ContactDynamics, Robot, contact_system
from hybridctl.mechanics.contacts.joint_contacts import JointFriction, JointStop
from hybridctl.mechanics.modes.contact_mode import ContactMode
from hybridctl.mechanics.modes.generated_mode import GeneratedContactMode
from hybridctl.mechanics.system import ContactSystem
from mechanics.random_robots import random_robot
from mechanics.test_joint_friction import arm
from mechanics.test_joint_stops import ACROBOT

# Of the largest entry: the same operations in another order, see test_mode_expressions.
AGREE = 1e-10
SEEDS = [
    *range(3),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 15)),
    *(pytest.param(seed, marks=[pytest.mark.slow, pytest.mark.long]) for seed in range(15, 200)),
]


@pytest.fixture
def nothing_kept(monkeypatch):
    monkeypatch.setenv("HYBRIDCTL_CACHE", "off")


def assert_agree(found, expected, what):
    scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=AGREE * scale, err_msg=what)


def random_contacts(seed):
    """A random robot of few joints with contacts in space, stops and dry friction; its rng."""
    pin.seed(seed)
    rng = np.random.default_rng(seed)
    robot, in_space = random_robot(rng, most_joints=4)
    joints = []
    for name, places in robot.joints.items():
        if places is None:
            continue
        if rng.random() < 0.7:
            joints.append(JointStop(name, "lower", rng.normal(), True))
        if rng.random() < 0.3:
            joints.append(JointStop(name, "upper", rng.normal(), True))
        if rng.random() < 0.6:
            joints.append(JointFriction(name, 0.1 + rng.random(), True))
    joints.sort(key=lambda contact: isinstance(contact, JointFriction))
    return robot, in_space[: rng.integers(0, 3)], joints, rng


def random_modes(dynamics, rng, redundant):
    """Random modes; unless redundant, one contact at most constrains the velocity of a joint."""
    choices = {0: ("open", "closed"), 1: ("open", "stick", "slip+", "slip-")}
    modes, constrained = [], set()
    for i, tangents in enumerate(dynamics.contact_set.tangents):
        known = choices.get(len(tangents), ("open", "stick", "slip"))
        mode = str(rng.choice(known[i in dynamics.pressed_contacts :]))
        joint = int(dynamics.contact_set.joint_velocities[i])
        if mode in ("closed", "stick") and joint >= 0 and not redundant:
            if joint in constrained:
                mode = "slip-" if i in dynamics.pressed_contacts else "open"
            constrained.add(joint)
        modes.append(mode)
    return tuple(modes)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("nothing_kept")
def test_terms_and_modes_are_those_of_pinocchio(seed):
    robot, in_space, joints, rng = random_contacts(seed)
    if not joints:
        pytest.skip("no contact of a joint")
    one, two = (
        ContactDynamics(robot, in_space, stabilization=20.0, terms=terms, joints=joints)
        for terms in ("generated", "pinocchio")
    )
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v, a, u = rng.normal(size=robot.nv), rng.normal(size=robot.nv), rng.normal(size=robot.nu)
    forces = rng.normal(size=len(one.contact_set.owner))
    for name, arguments in {
        "values": (q, v, u),
        "derivatives": (q, v, a, forces),
        "impulse_derivatives": (q, a, forces),
    }.items():
        found, expected = (getattr(each.terms, name)(*arguments) for each in (one, two))
        for field in found._fields:
            assert_agree(getattr(found, field), getattr(expected, field), f"{name}: {field}")
    modes = random_modes(one, rng, redundant=seed % 2 == 1)
    compiled = GeneratedContactMode(one, modes, ContactSystem(one).space)
    known = ContactMode(two, modes, ContactSystem(two).space)
    x = np.concatenate((q, v))
    point, other = compiled.calc(0.0, x, u), known.calc(0.0, x, u)
    equations = one.structure.functions_of(modes).equations
    if len(equations.independent.rows) == len(equations.phase.rows):
        assert point.values is not None  # where it is None, the modes are compared with themselves
    assert_agree(point.field, other.field, "field")
    assert_agree(point.guards, other.guards, "guards")
    found, expected = point.field_jacobian, other.field_jacobian
    assert_agree(found.state, expected.state, "field by state")
    assert_agree(found.input, expected.input, "field by input")
    found, expected = point.guard_jacobian, other.guard_jacobian
    assert_agree(found.state, expected.state, "guards by state")


# Both runs have errors of 1e-9 in each of some 300 steps, which impacts and stops carry on.
SAME_RUN = 1e-6


@pytest.mark.parametrize(
    ("robot", "x0", "stops"),
    [
        (Robot.from_urdf(ACROBOT), [1.5, 0.2, 0.0, 1.0], {"elbow": 0.3}),
        (arm(), [1.0, 0.5, 0.0, 0.0], False),
        (Robot.from_urdf(ACROBOT, friction={"shoulder": 0.4}), [1.5, 0.2, 0.0, 1.0], 0.3),
    ],
    ids=["stops", "dry friction", "both"],
)
def test_runs_of_compiled_modes_are_those_of_pinocchio(robot, x0, stops):
    """The same events within the tolerance of steps."""
    one, two = (
        contact_system(robot, [], joint_stops=stops, terms=terms) for terms in ("auto", "pinocchio")
    )
    assert one.dynamics.has_compiled_modes
    assert not two.dynamics.has_compiled_modes
    run, other = (hc.simulate(system, None, x0, (0.0, 0.8)) for system in (one, two))
    assert len(run.events) == len(other.events) >= 1
    for event, expected in zip(run.events, other.events, strict=True):
        assert event.guards == expected.guards
        assert event.time == pytest.approx(expected.time, abs=SAME_RUN)
    np.testing.assert_allclose(run.final_state, other.final_state, atol=SAME_RUN)


def test_link_with_the_name_of_a_joint():
    """The contact of joint "b" is where joint "b" is, not at the link "b" of another joint."""
    inertial = """<inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>"""
    links = "".join(f'<link name="{name}">{inertial}</link>' for name in ("b", "a"))
    joint = """<joint name="{}" type="revolute"><parent link="{}"/><child link="{}"/>
<origin xyz="{} 0 0"/><axis xyz="0 0 1"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/></joint>"""
    joints = joint.format("a", "world", "b", 1) + joint.format("b", "b", "a", 2)
    robot = Robot.from_urdf(f'<robot name="r"><link name="world"/>{links}{joints}</robot>')
    system = contact_system(robot, [], joint_stops={"b": 0.0})
    points, _ = system.dynamics.contact_set.express_in_world(
        np.zeros(2), np.zeros(2), np.zeros((2, 2))
    )
    np.testing.assert_allclose(points, [[3.0, 0.0, 0.0]] * 2, atol=1e-14)
