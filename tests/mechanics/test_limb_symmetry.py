"""Mirror symmetry of robots in the plane and in space: flows, and what is refused."""

from importlib.metadata import files

import numpy as np
import pytest
from hybridctl.robots import five_link

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system, limb_symmetry
from mechanics.hopper import hopper

GROUND = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
LEGS = ("abduction", "hip", "knee")
PAIRS = {f"left_{joint}": f"right_{joint}" for joint in LEGS}
FEET = {"left": "right"}


def _link(name, mass, center, products):
    xy, xz, yz = products
    return (
        f'<link name="{name}"><inertial><origin xyz="{center}"/><mass value="{mass}"/>'
        f'<inertia ixx="0.011" iyy="0.012" izz="0.009" ixy="{xy}" ixz="{xz}" iyz="{yz}"/>'
        "</inertial></link>"
    )


def _joint(name, kind, parent, child, place, axis):
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{place}"/><axis xyz="{axis}"/>'
        '<limit lower="-3" upper="3" effort="100" velocity="100"/></joint>'
    )


def biped_urdf(knee="revolute", mass=0.5, abduction="-1 0 0"):
    """Two legs with abduction, hip and knee, the right one with axes as its maker liked.

    Products of inertia with y change their signs from left to right. Abduction of the right leg
    turns about the opposite axis, that is outwards, too; its knee about -y.
    """
    parts = [_link("trunk", 3.0, "0.02 0 0.05", (0.0, 0.001, 0.0))]
    for side, y in (("left", 1.0), ("right", -1.0)):
        own = mass if side == "right" else 0.5
        out, bend = ("1 0 0", "0 1 0") if side == "left" else (abduction, "0 -1 0")
        parts += [
            _link(f"{side}_hip", 0.4, f"0.01 {0.02 * y} 0", (0.001 * y, 0.0, 0.0005 * y)),
            _link(f"{side}_thigh", own, f"0 {0.01 * y} -0.1", (0.0, 0.001, 0.0008 * y)),
            _link(f"{side}_shank", 0.2, f"0.01 {0.01 * y} -0.1", (0.0004 * y, 0.0005, 0.0)),
            _joint(f"{side}_abduction", "revolute", "trunk", f"{side}_hip", f"0 {0.1 * y} 0", out),
            _joint(
                f"{side}_hip",
                "revolute",
                f"{side}_hip",
                f"{side}_thigh",
                f"0 {0.03 * y} 0",
                "0 1 0",
            ),
            _joint(f"{side}_knee", knee, f"{side}_thigh", f"{side}_shank", "0 0 -0.2", bend),
        ]
    return f'<robot name="biped">{"".join(parts)}</robot>'


def biped(feet=("left", "right"), friction=(0.6, 0.6), **changes):
    robot = Robot.from_urdf(biped_urdf(**changes), root="floating")
    contacts = [
        Contact(side, f"{side}_shank", GROUND, offset=(0.0, 0.0, -0.2), friction=mu)
        for side, mu in zip(feet, friction, strict=True)
    ]
    return contact_system(robot, contacts)


def _random_state(system, rng, height):
    q = system.robot.integrate(system.robot.neutral(), 0.3 * rng.normal(size=system.robot.nv))
    q[2] += height - system.dynamics.gaps(q).min()
    return np.concatenate((q, rng.normal(size=system.robot.nv)))


def test_signs_of_a_floating_base_and_of_joints():
    """y, roll and yaw change; abduction about opposite axes is outwards on both sides."""
    symmetry = limb_symmetry(biped(), PAIRS, FEET)
    velocity = symmetry.matrix[:12, :12]
    np.testing.assert_array_equal(velocity[:6, :6], np.diag([1.0, -1, 1, -1, 1, -1]))
    names = ["left_abduction", "left_hip", "left_knee"]
    joints = dict(zip(names, velocity[[9, 10, 11], [6, 7, 8]], strict=True))
    assert joints == {"left_abduction": 1.0, "left_hip": 1.0, "left_knee": -1.0}
    np.testing.assert_array_equal(symmetry.inputs(6), velocity[6:, 6:])
    coordinates = symmetry.state_map[:7, :7]
    np.testing.assert_array_equal(coordinates, np.diag([1.0, -1, 1, -1, 1, -1, 1]))
    assert symmetry.mode(("stick", "open")) == ("open", "stick")
    assert symmetry.guard("left slips") == "right slips"
    assert symmetry.guard("left leaves its piece") == "right leaves its piece"


@pytest.mark.parametrize("knee", ["revolute", "continuous"])
def test_perturbations_are_mirrored_with_their_states(knee):
    """S (x + dx) = S x + V dx on the manifold, exactly: the mirror is linear in local axes."""
    system = biped(knee=knee)
    symmetry, rng = limb_symmetry(system, PAIRS, FEET), np.random.default_rng(1)
    x, dx = _random_state(system, rng, 0.1), rng.normal(size=24)
    space = system.space
    image = space.integrate(symmetry.image(x), symmetry.matrix @ dx)
    np.testing.assert_allclose(symmetry.image(space.integrate(x, dx)), image, atol=1e-13)
    np.testing.assert_allclose(symmetry.image(symmetry.image(x)), x, atol=1e-15)
    assert np.abs(symmetry.gap(space, symmetry.image(x), x)).max() < 1e-14


def _check_mirrored_flow(system, symmetry, x, u, end):
    """Events, modes, ends and transition matrices; right to some 100 tolerances after impacts."""
    mirrored = symmetry.inputs(len(u)) @ u
    tight = {"rtol": 1e-10, "atol": 1e-10}
    one = hc.simulate(system, None, x, (0.0, end), lambda t, x: u, **tight)
    start = symmetry.image(x)
    other = hc.simulate(system, None, start, (0.0, end), lambda t, x: mirrored, **tight)
    fired = [tuple(map(symmetry.guard, event.guards)) for event in one.events]
    assert fired
    assert [event.guards for event in other.events] == fired
    assert other.final_mode == symmetry.mode(one.final_mode)
    size = np.abs(one.final_state).max()
    final = symmetry.image(one.final_state)
    np.testing.assert_allclose(other.final_state, final, atol=1e-8 * max(size, 1.0))
    phi, image = (hc.linearize(system, run).state_transition for run in (one, other))
    size = np.abs(phi).max()
    np.testing.assert_allclose(image @ symmetry.matrix, symmetry.matrix @ phi, atol=1e-6 * size)


def test_the_flow_of_a_mirrored_state_is_the_mirrored_flow():
    """Each foot touches down; one leaves again, one slides and sticks."""
    system, rng = biped(), np.random.default_rng(7)
    symmetry = limb_symmetry(system, PAIRS, FEET)
    x, u = _random_state(system, rng, 0.02), rng.normal(size=6)
    x[system.robot.nq + 2] = -1.0
    _check_mirrored_flow(system, symmetry, x, u, 0.15)


@pytest.mark.slow
def test_the_flow_of_a_published_humanoid_is_mirrored():
    """The drawn one is symmetric to rounding, its waist and its arms included."""
    robot = _published("simple_humanoid")
    pairs = {name: f"R{name[1:]}" for name in robot.joint_names if name.startswith("L")}
    feet = [
        Contact(side, f"{side}LEG_ANKLE_R", GROUND, offset=(0.0, 0.0, -0.1), friction=0.6)
        for side in "LR"
    ]
    system, rng = contact_system(robot, feet), np.random.default_rng(0)
    symmetry = limb_symmetry(system, pairs, {"L": "R"}, tolerance=1e-12)
    q = robot.integrate(robot.neutral(), 0.1 * rng.normal(size=robot.nv))
    q[2] += 0.005 - system.dynamics.gaps(q).min()
    v = 0.1 * rng.normal(size=robot.nv)
    v[2] = -1.0
    u = 10.0 * rng.normal(size=robot.nu)
    _check_mirrored_flow(system, symmetry, np.concatenate((q, v)), u, 0.05)


def test_in_the_sagittal_plane_limbs_are_exchanged_without_signs():
    walker = five_link.system()
    symmetry = five_link.exchange_legs(walker)
    place = [0, 1, 2, 5, 6, 3, 4]
    np.testing.assert_array_equal(symmetry.matrix, np.kron(np.eye(2), np.eye(7)[place]))
    np.testing.assert_array_equal(symmetry.inputs(4), np.eye(4)[[2, 3, 0, 1]])
    assert symmetry.coordinates is None
    assert symmetry.mode(("slip+", "open")) == ("open", "slip+")


def test_sliding_against_the_plane_of_symmetry_changes_its_sign():
    """A mass on a line along x, mirrored at x = 0."""
    system = contact_system(*hopper(2, friction=0.5))
    symmetry = limb_symmetry(system, {}, {}, normal=(1.0, 0.0, 0.0))
    assert symmetry.mode(("slip+",)) == ("slip-",)
    assert symmetry.guard("foot slips-") == "foot slips+"
    assert symmetry.guard("foot sticks") == "foot sticks"
    across = limb_symmetry(system, {}, {})
    assert across.mode(("slip+",)) == ("slip+",)


@pytest.mark.parametrize(
    ("changes", "pairs", "words"),
    [
        ({"mass": 0.6}, PAIRS, r"mass matrix 0\.\d"),
        ({}, {}, r"joint axes 0\.2"),
        ({"friction": (0.6, 0.5)}, PAIRS, "same friction"),
        ({}, {"left_knee": "root_joint"}, "same kind"),
    ],
)
def test_what_is_not_symmetric_is_refused_with_the_deviation(changes, pairs, words):
    with pytest.raises(InputError, match=words):
        limb_symmetry(biped(**changes), pairs, FEET)


def test_contacts_and_motors_must_be_symmetric_too():
    robot = Robot.from_urdf(biped_urdf(), root="floating")
    feet = [
        Contact("left", "left_shank", GROUND, offset=(0.0, 0.0, -0.2)),
        Contact("right", "right_shank", GROUND, offset=(0.0, 0.0, -0.21)),
    ]
    with pytest.raises(InputError, match=r"gaps \[m\] 0\.009"):
        limb_symmetry(contact_system(robot, feet), PAIRS, FEET)
    robot = Robot.from_urdf(biped_urdf(), root="floating", actuated=["left_knee"])
    with pytest.raises(InputError, match="both or none must have a motor"):
        limb_symmetry(contact_system(robot, feet), PAIRS, FEET)


def _published(name):
    urdf = next(f for f in files("example-robot-data") if f.name == f"{name}.urdf").locate()
    return Robot.from_urdf(urdf, root="floating")


def test_a_published_robot_is_refused_or_accepted_by_the_tolerance():
    """The inertia of solo12 is symmetric to some 1e-4 only: its drawing's center of mass."""
    robot = _published("solo12")
    joints = ("HAA", "HFE", "KFE")
    pairs = {f"{f}L_{joint}": f"{f}R_{joint}" for f in "FH" for joint in joints}
    feet = {"FL": "FR", "HL": "HR"}
    system = contact_system(
        robot, [Contact(f, f"{f}_FOOT", GROUND, friction=0.7) for f in ("FL", "FR", "HL", "HR")]
    )
    with pytest.raises(InputError, match=r"tolerance=1e-06.*\n?.*mass matrix \d"):
        limb_symmetry(system, pairs, feet)
    symmetry = limb_symmetry(system, pairs, feet, tolerance=2e-3)
    q = robot.integrate(robot.neutral(), np.random.default_rng(0).normal(size=robot.nv))
    image = symmetry.image(np.concatenate((q, np.zeros(robot.nv))))[: robot.nq]
    points = system.dynamics.contact_set.express_in_world(q, np.zeros(4), np.zeros((4, 2)))[0]
    images = system.dynamics.contact_set.express_in_world(image, np.zeros(4), np.zeros((4, 2)))[0]
    np.testing.assert_allclose(images[[1, 0, 3, 2]], points * [1.0, -1.0, 1.0], atol=1e-12)
