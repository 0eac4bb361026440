"""The adapter: configurations on manifolds, energy, names, and what is refused."""

import numpy as np
import pinocchio as pin
import pytest
from differences import assert_derivative

from hybridctl.base.errors import FileFormatError, InputError, UnknownNameError
from hybridctl.base.spaces import compute_tangent_map
from hybridctl.mechanics import Contact, ContactDynamics, Plane, Robot, RobotStateSpace, Sphere
from mechanics.models import PAIR, SLOPE, TWINS, WHEEL, pair


def all_joints() -> Robot:
    """A chain with every kind of joint that has coordinates of its own."""
    model = pin.Model()
    parent = 0
    for name, joint in (
        ("fly", pin.JointModelFreeFlyer()),
        ("ball", pin.JointModelSpherical()),
        ("plane", pin.JointModelPlanar()),
        ("slide", pin.JointModelTranslation()),
        ("wheel", pin.JointModelRUBY()),
        ("hinge", pin.JointModelRX()),
    ):
        parent = model.addJoint(parent, joint, pin.SE3.Identity(), name)
        model.appendBodyToJoint(
            parent, pin.Inertia(1.0, np.array([0.1, 0.2, 0.3]), np.eye(3)), pin.SE3.Identity()
        )
    return Robot(model)


@pytest.fixture(params=["all", "floating", "wheel", "sagittal", "euler", "mimic"])
def robot(request) -> Robot:
    if request.param == "all":
        return all_joints()
    if request.param == "wheel":
        return Robot.from_urdf(WHEEL, root="floating")
    if request.param == "mimic":
        return Robot.from_urdf(TWINS, root="floating")
    return Robot.from_urdf(PAIR, root=request.param)


def test_rate_is_the_derivative_of_the_coordinates_along_a_velocity(robot):
    rng = np.random.default_rng(0)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v = rng.normal(size=robot.nv)
    assert_derivative(lambda s: robot.integrate(q, s[0] * v), robot.rate(q, v)[:, None], 1e-9)
    x, dx = np.concatenate((q, v)), np.concatenate((v, v[::-1]))
    space = RobotStateSpace(robot)
    np.testing.assert_allclose(compute_tangent_map(space, x) @ dx, space.rate(x, dx), atol=1e-14)


def test_every_coordinate_velocity_and_force_has_a_label_of_its_own(robot):
    for labels, count in zip(robot.labels, (robot.nq, robot.nv, robot.nv), strict=True):
        assert len(set(labels)) == len(labels) == count


def test_difference_undoes_integrate(robot):
    rng = np.random.default_rng(1)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    dq = 0.5 * rng.normal(size=robot.nv)
    # Logarithm and exponential of unit-size arguments, a few dozen roundings each.
    np.testing.assert_allclose(robot.difference(q, robot.integrate(q, dq)), dq, atol=1e-13)


def test_perturbations_turn_with_the_motion_by_transport(robot):
    """z of q(t) = q0 exp(v t), perturbed to q0 exp(z) exp(v t), obeys zdot = transport(v) z."""
    rng = np.random.default_rng(2)
    q0 = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v, z = rng.normal(size=(2, robot.nv))

    def carried(t: float):
        def moved(dz):
            start = robot.integrate(q0, dz)
            return robot.difference(robot.integrate(q0, t * v), robot.integrate(start, t * v))

        h = 1e-5
        return (moved(h * z) - moved(-h * z)) / (2 * h)

    assert_derivative(lambda s: carried(s[0]), (robot.transport(v) @ z)[:, None], 1e-6)


def test_energy_is_kept_without_damping(robot):
    """Power of the bias: d/dt (T + V) = 0 along free motion, so a . M v + v . h - ... = 0."""
    rng = np.random.default_rng(3)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v = rng.normal(size=robot.nv)
    a = robot.free_acceleration(q, v, np.zeros(robot.nu))
    damping = np.zeros(robot.nv)
    if robot.joint_names[-1] == "hip":
        # That of a joint that mimics acts through its multiplier of -0.8, twice.
        damping[-1] = 0.05 * (0.8**2 if robot.mimics else 1.0)

    def total(s):
        return np.array([sum(robot.energy(robot.integrate(q, s[0] * v), v + s[0] * a))])

    power = -float(v @ (damping * v))
    assert_derivative(total, np.array([[power]]), 1e-7)


def test_springs_store_what_they_take():
    robot = Robot.from_urdf(PAIR, stiffness={"hip": 2.0}, rest={"hip": 0.3}, gravity=(0, 0, 0))
    q = np.array([0.5])
    assert robot.energy(q, np.zeros(1))[1] == pytest.approx(0.5 * 2.0 * 0.2**2, rel=1e-14)
    assert robot.bias(q, np.zeros(1)) == pytest.approx([2.0 * 0.2], rel=1e-14)
    assert robot.bias(q, np.ones(1))[0] - robot.bias(q, np.zeros(1))[0] == pytest.approx(0.05)


def test_results_belong_to_the_caller():
    """A later call does not change an earlier result."""
    dynamics = pair("floating", SLOPE)
    robot = dynamics.robot
    rng = np.random.default_rng(4)
    q1, q2 = (robot.integrate(robot.neutral(), rng.normal(size=robot.nv)) for _ in range(2))
    v = rng.normal(size=robot.nv)
    first = [robot.mass_matrix(q1), robot.bias(q1, v), robot.motion(q1, v, [1]).jacobian]
    kept = [a.copy() for a in first]
    robot.mass_matrix(q2)
    robot.bias(q2, v)
    robot.motion(q2, v, [1])
    for a, b in zip(first, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_state_that_is_no_configuration_is_refused():
    space = RobotStateSpace(Robot.from_urdf(PAIR, root="floating"))
    x = np.zeros(space.nx)
    x[6] = 0.9
    with pytest.raises(InputError, match=r"x0: entries 3 to 6 must have norm 1 .* norm 0.9"):
        space.check("x0", x)
    assert np.linalg.norm(space.normalize(x)[3:7]) == pytest.approx(1.0, abs=1e-14)


def test_unknown_names_are_named():
    robot = Robot.from_urdf(PAIR, root="floating")
    with pytest.raises(UnknownNameError, match=r"frame 'arn' is unknown.*did you mean 'arm'"):
        ContactDynamics(robot, [Contact("a", "arn", SLOPE)])
    with pytest.raises(UnknownNameError, match="joint 'hop' is unknown"):
        Robot.from_urdf(PAIR, stiffness={"hop": 1.0})
    with pytest.raises(UnknownNameError, match="joint 'hop' is unknown"):
        Robot.from_urdf(PAIR, actuated=["hop"])
    with pytest.raises(UnknownNameError, match="root 'flying' is unknown"):
        Robot.from_urdf(PAIR, root="flying")


def test_bad_arguments_are_named(tmp_path):
    robot = Robot.from_urdf(PAIR, root="floating")
    with pytest.raises(FileFormatError, match="cannot be read"):
        Robot.from_urdf(tmp_path / "none.urdf")
    with pytest.raises(FileFormatError, match="is not a robot description"):
        Robot.from_urdf("<robot")
    with pytest.raises(InputError, match="no joint that moves"):
        Robot.from_urdf('<robot name="r"><link name="l"/></robot>')
    with pytest.raises(InputError, match=r"damping.*must be at least 0"):
        Robot.from_urdf(PAIR, damping={"hip": -1.0})
    with pytest.raises(InputError, match="must have one degree of freedom"):
        Robot.from_urdf(PAIR, root="floating", stiffness={"root_joint": 1.0})
    with pytest.raises(InputError, match="at least one contact"):
        ContactDynamics(robot, [])
    with pytest.raises(InputError, match="names must differ"):
        ContactDynamics(robot, [Contact("a", "arm", SLOPE), Contact("a", "cube", SLOPE)])
    with pytest.raises(InputError, match="restitution must be at most 1"):
        Contact("a", "arm", SLOPE, restitution=1.5)
    with pytest.raises(InputError, match="offset must have shape"):
        Contact("a", "arm", SLOPE, offset=(1.0, 2.0))
    with pytest.raises(InputError, match="normal must not be zero"):
        Plane((0, 0, 0), (0, 0, 0))
    with pytest.raises(InputError, match="radius must be greater than 0"):
        Sphere((0, 0, 0), -1.0)
    with pytest.raises(InputError, match="gravity must be finite"):
        Robot.from_urdf(PAIR, gravity=(0, 0, float("nan")))


def test_composite_joints_are_refused():
    joint = pin.JointModelComposite(2)
    joint.addJoint(pin.JointModelPX())
    joint.addJoint(pin.JointModelRY())
    model = pin.Model()
    model.addJoint(0, joint, pin.SE3.Identity(), "both")
    with pytest.raises(InputError, match="JointModelComposite, which is not supported"):
        Robot(model)


@pytest.mark.parametrize(
    "joint",
    [
        pin.JointModelSphericalZYX(),
        pin.JointModelUniversal(np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])),
        pin.JointModelEllipsoid(1.0, 1.0, 2.0),
    ],
    ids=lambda joint: joint.shortname(),
)
def test_joints_whose_axes_turn_with_their_coordinates_are_refused(joint):
    """Pinocchio's Jacobian rates and derivatives are wrong for them."""
    model = pin.Model()
    model.addJoint(0, joint, pin.SE3.Identity(), "turning")
    with pytest.raises(InputError, match=f"{joint.shortname()}, which is not supported"):
        Robot(model)


def test_joints_that_are_not_numbered_depth_first_are_refused():
    """Pinocchio's mass matrix is wrong for them: this one's entry of trunk and leaf would be 0."""
    model = pin.Model()
    for name, parent in (("trunk", 0), ("branch", 1), ("other", 0), ("leaf", 1)):
        joint = model.addJoint(parent, pin.JointModelRX(), pin.SE3.Identity(), name)
        model.appendBodyToJoint(joint, pin.Inertia.Random(), pin.SE3.Identity())
    with pytest.raises(InputError, match="depth first, but 'leaf' comes after 'other'"):
        Robot(model)


TIP = """<link name="tip"><inertial><mass value="-0.1"/><inertia ixx="1e-5" iyy="1e-5" izz="1e-5"
ixy="0" ixz="0" iyz="0"/></inertial></link><joint name="weld" type="fixed"><parent link="arm"/>
<child link="tip"/></joint></robot>"""


@pytest.mark.parametrize("root", ["fixed", "floating", "sagittal"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '<mass value="0.2"/>',
            '<mass value="-0.2"/>',
            r"negative mass in link 'arm', got -0\.2 kg",
        ),
        ("</robot>", TIP, r"negative mass in link 'tip', got -0\.1 kg"),
        ('ixx="0.0008"', 'ixx="-0.0008"', r"inertia that joint .* must be positive semidefinite"),
        ('ixy="0.0001"', 'ixy="0.01"', r"inertia that joint .* must be positive semidefinite"),
    ],
)
def test_bodies_that_cannot_be_are_refused(root, old, new, message):
    with pytest.raises(InputError, match=message):
        Robot.from_urdf(PAIR.replace(old, new), root=root)


def test_links_without_mass_and_thin_rods_are_bodies():
    rod = PAIR.replace('ixx="0.0008"', 'ixx="0.001"').replace('izz="0.001"', 'izz="0"')
    rod = rod.replace('ixy="0.0001"', 'ixy="0"')
    link = '<link name="tip"/><joint name="weld" type="fixed"><parent link="arm"/>'
    Robot.from_urdf(rod.replace("</robot>", link + '<child link="tip"/></joint></robot>'))


def test_a_base_that_moves_freely_has_no_motor_however_the_model_was_made():
    model = pin.Model()
    base = model.addJoint(0, pin.JointModelFreeFlyer(), pin.SE3.Identity(), "floating_base")
    hip = model.addJoint(base, pin.JointModelRY(), pin.SE3.Identity(), "hip")
    for joint in (base, hip):
        model.appendBodyToJoint(joint, pin.Inertia.Random(), pin.SE3.Identity())
    robot = Robot(model)
    assert (robot.nv, robot.nu) == (7, 1)
    assert np.array_equal(robot.actuation, np.eye(7)[:, 6:])
    assert Robot.from_urdf(PAIR, root="floating").nu == Robot.from_urdf(PAIR).nu
    assert Robot(model, actuated=["floating_base", "hip"]).nu == 7


def test_a_posture_is_neutral_but_for_the_joints_named():
    robot = all_joints()
    q = robot.posture({"hinge": 0.4})
    changed = np.flatnonzero(q != robot.neutral())
    assert (changed.tolist(), q[changed].tolist()) == ([robot.nq - 1], [0.4])
    with pytest.raises(UnknownNameError, match="hinge"):
        robot.posture({"hing": 0.4})
    with pytest.raises(InputError, match="one degree of freedom"):
        robot.posture({"fly": 0.4})


TWO_JOINTS = PAIR.replace(
    "</robot>",
    """<link name="hand"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="wrist" type="continuous"><parent link="arm"/><child link="hand"/></joint></robot>""",
)


def test_an_order_of_inputs_that_is_not_that_of_the_joints_is_shown():
    named = Robot.from_urdf(TWO_JOINTS, actuated=["wrist", "hip"])
    assert repr(named).endswith("; inputs in the order wrist, hip)")
    assert "inputs" not in repr(Robot.from_urdf(TWO_JOINTS))


def test_a_point_moves_by_its_jacobian():
    """Its place by a central difference, on an arm that floats; unknown frames are named."""
    robot = Robot.from_urdf(PAIR, root="floating")
    q, offset = robot.neutral(), np.array([0.1, -0.2, 0.3])
    jacobian = robot.point_jacobian(q, "arm", offset)
    for k, column in enumerate(np.eye(robot.nv)):
        ahead, back = (
            robot.point_position(robot.integrate(q, step * column), "arm", offset)
            for step in (1e-6, -1e-6)
        )
        np.testing.assert_allclose((ahead - back) / 2e-6, jacobian[:, k], atol=1e-8)
    with pytest.raises(UnknownNameError):
        robot.point_position(q, "leg")


@pytest.mark.parametrize(
    "screw", [pin.JointModelHX(0.3), pin.JointModelHelicalUnaligned(np.array([0.0, 0.6, 0.8]), 0.3)]
)
def test_the_coordinate_of_a_helical_joint_is_its_angle(screw):
    """One turn of the neutral screw moves its nut by 2 pi times the pitch, 0.3 m/rad."""
    model = pin.Model()
    joint = model.addJoint(0, screw, pin.SE3.Identity(), "screw")
    model.appendBodyToJoint(joint, pin.Inertia(1.0, np.zeros(3), np.eye(3)), pin.SE3.Identity())
    model.lowerPositionLimit[:], model.upperPositionLimit[:] = -1.0, 1.0
    robot = Robot(model)
    pose = robot.poses(np.array([2.0 * np.pi]), [1])[0]
    np.testing.assert_allclose(pose[:3, :3], np.eye(3), atol=1e-15)
    assert np.linalg.norm(pose[:3, 3]) == pytest.approx(0.6 * np.pi, rel=1e-15)
    assert robot.labels == (("screw [rad]",), ("screw rate [rad/s]",), ("screw torque [N m]",))
    assert robot.limits["screw"].turns


def test_a_base_by_euler_angles_moves_as_a_floating_one():
    """At the same pose and velocity both have the same energy and the same place of a frame."""
    free, turned = (Robot.from_urdf(PAIR, root=root) for root in ("floating", "euler"))
    assert turned.nu == free.nu
    assert turned.nq == turned.nv == free.nv
    rng = np.random.default_rng(3)
    place, (yaw, pitch, roll) = rng.normal(size=3), (0.4, -0.3, 0.2)
    joints, rates = rng.normal(size=free.nv - 6), rng.normal(size=turned.nv)
    rotation = (
        pin.utils.rotate("z", yaw) @ pin.utils.rotate("y", pitch) @ pin.utils.rotate("x", roll)
    )
    q = np.concatenate([place, pin.Quaternion(rotation).coeffs(), joints])
    other = np.concatenate([place, [yaw, pitch, roll], joints])
    spins = np.column_stack(
        [
            rotation.T @ np.array([0.0, 0.0, 1.0]),
            pin.utils.rotate("x", -roll) @ np.array([0.0, 1.0, 0.0]),
            np.array([1.0, 0.0, 0.0]),
        ]
    )
    v = np.concatenate([rotation.T @ rates[:3], spins @ rates[3:6], rates[6:]])
    energy = 0.5 * v @ free.mass_matrix(q) @ v
    assert 0.5 * rates @ turned.mass_matrix(other) @ rates == pytest.approx(energy, rel=1e-12)
    frame = free.link_names[-1]
    np.testing.assert_allclose(
        turned.point_position(other, frame), free.point_position(q, frame), atol=1e-12
    )
