"""The scene has what it should, where the kinematics put it; no browser is needed."""

import sys

import numpy as np
import pytest
from hybridctl.robots import ball
from hybridctl.robots.bodies import free_body
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.app.viewer.figure import Figure
from hybridctl.app.viewer.view import timeline_html
from hybridctl.errors import InputError
from hybridctl.estimation.measurement import coordinates
from hybridctl.mechanics import Contact, Plane, Robot, Terrain, contact_system

LINK = """<link name="{name}"><inertial><origin xyz="0 0 0.2"/><mass value="1"/>
<inertia ixx="0.02" iyy="0.02" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
<visual>{origin}<geometry>{shape}</geometry></visual></link>"""
JOINT = """<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>
<axis xyz="0 1 0"/><origin {origin}/>
<limit lower="-3" upper="3" effort="9" velocity="9"/></joint>"""
ARM = "".join(
    (
        '<robot name="arm"><link name="base"><visual><geometry><box size="0.1 0.1 0.1"/>',
        "</geometry></visual></link>",
        JOINT.format(
            name="shoulder", parent="base", child="upper", origin='xyz="0 0 0.5" rpy="0.2 0 0"'
        ),
        LINK.format(
            name="upper",
            origin='<origin xyz="0 0 0.2"/>',
            shape='<cylinder radius="0.02" length="0.4"/>',
        ),
        JOINT.format(name="elbow", parent="upper", child="fore", origin='xyz="0 0 0.4"'),
        LINK.format(
            name="fore",
            origin='<origin xyz="0.1 0 0" rpy="0 0.3 0"/>',
            shape='<sphere radius="0.05"/>',
        ),
        "</robot>",
    )
)
viser = pytest.importorskip("viser", reason="viser is not installed")


def arm_system():
    robot = Robot.from_urdf(ARM)
    table = Plane((0.0, 0.0, 0.3), (0.0, 0.0, 1.0))
    tip = Contact("tip", "fore", table, offset=(0.0, 0.0, 0.3), friction=0.5, restitution=0.4)
    return hc.mechanics.contact_system(robot, [tip])


@pytest.fixture(scope="module")
def falling():
    """An arm that falls onto a table."""
    system = arm_system()
    return system, hc.simulate(system, ("open",), [1.2, 0.4, 0.0, 0.0], (0.0, 0.5))


@pytest.fixture
def shown(falling):
    system, run = falling
    reference = hc.simulate(system, ("open",), [1.1, 0.4, 0.0, 0.0], (0.0, 0.4))
    with hc.view(run, system, reference=reference) as made:
        yield made


def pose_of(node):
    return Rotation.from_quat(np.roll(node.wxyz, -1)).as_matrix(), np.array(node.position)


def test_links_are_where_the_kinematics_put_them(shown, falling):
    """Against angles and lengths: the shoulder is tilted by 0.2 about x, then both turn about y."""
    _, run = falling
    t = 0.8 * run.end
    shown.seek(t)
    tilt, (first, second) = Rotation.from_rotvec([0.2, 0.0, 0.0]), run(t)[:2]
    upper = tilt * Rotation.from_rotvec([0.0, first, 0.0])
    fore = upper * Rotation.from_rotvec([0.0, second, 0.0])
    elbow = np.array([0.0, 0.0, 0.5]) + upper.apply([0.0, 0.0, 0.4])
    drawn = shown.figures["robot"].links
    assert set(drawn) == {"base", "upper", "fore"}
    single = 4.0 * 2.0**-24  # of numbers of about 1
    for link, turn, place in (("upper", upper, [0.0, 0.0, 0.5]), ("fore", fore, elbow)):
        found_turn, found_place = pose_of(drawn[link])
        np.testing.assert_allclose(found_turn, turn.as_matrix(), atol=single)
        np.testing.assert_allclose(found_place, place, atol=single)


def test_the_scene_has_shapes_a_surface_forces_and_a_time_line(shown, falling):
    _, run = falling
    names = set(shown.server.scene._handle_from_node_name)
    assert {"/robot/upper/1", "/robot/fore/2", "/reference/fore/2", "/surfaces/0"} <= names
    shown.seek(run.events[0].time + 1e-3)
    arrows = shown.server.scene._handle_from_node_name["/impulses"]
    assert arrows.visible
    (impulse,) = arrows.points
    assert impulse[1, 2] > impulse[0, 2]  # the table pushes upwards
    shown.seek(0.0)
    assert not shown.server.scene._handle_from_node_name["/impulses"].visible
    assert "open" in shown._controls.timeline.content
    assert 'title="open"' in timeline_html(run, 0.1)
    assert "rows: &lt;img src=q onerror=" in timeline_html(run, 0.1, ["<img src=q onerror=q()>"])


def test_a_pushed_run_is_shown_with_its_forces(falling):
    """By its own system, whose inputs are more, where the view is given the robot's."""
    system, _ = falling
    push = hc.mechanics.Wrench("fore", (1.0, 0.0, 0.0), 0.1, 0.2)
    run = hc.simulate(system, ("open",), [1.2, 0.4, 0.0, 0.0], (0.0, 0.3), wrench=push)
    view = hc.view(run, system)
    view.seek(0.15)
    assert f"{system.robot.weight:.3g} N (the weight)" in view._forces.legend()
    view.close()


def test_smooth_ground_is_a_mesh_of_its_heights():
    robot = Robot.from_urdf(free_body("bead", 0.5, [1e-3] * 3), root="floating")
    ground = Terrain(lambda x, y: 0.3 * x - 0.1 * x * y)
    system = contact_system(robot, [Contact("tip", "bead", ground)])
    start = np.array([0.2, 0.1, 0.5, 0.0, 0.0, 0.0, 1.0, *[0.0] * 6])
    run = hc.simulate(system, ("open",), start, (0.0, 0.05))
    with hc.view(run, system) as made:
        mesh = made.server.scene._handle_from_node_name["/surfaces/0"]
        x, y, z = mesh.vertices.T
        np.testing.assert_allclose(z, 0.3 * x - 0.1 * x * y, atol=4.0 * 2.0**-24)
        edges = mesh.vertices[mesh.faces]
        up = np.cross(edges[:, 1] - edges[:, 0], edges[:, 2] - edges[:, 0])
        assert (up[:, 2] > 0.0).all()


def test_the_reference_stops_at_its_end_and_times_outside_are_refused(shown, falling):
    _, run = falling
    shown.seek(run.end)
    at_end = pose_of(shown.figures["reference"].links["fore"])
    shown.seek(0.4)
    np.testing.assert_allclose(pose_of(shown.figures["reference"].links["fore"])[1], at_end[1])
    with pytest.raises(InputError, match="t must be"):
        shown.seek(run.end + 1.0)


def test_playing_ends_at_the_end(shown, falling):
    shown.seek(falling[1].end - 0.01)
    shown.play(speed=1.0)
    assert shown.time == falling[1].end
    assert not shown.is_playing
    assert shown.address.startswith("http://127.0.0.1:")
    assert shown.address in shown._repr_html_()


def test_a_robot_without_shapes_has_bones_and_an_estimate_has_ellipsoids():
    """A ball known to 0.01 and 0.02 m: half axes of three times that."""
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.8))
    run = hc.simulate(system, ("open",), [0.0, 1.0, 0.5, 0.0], (0.0, 0.6))
    seen = hc.Series([0.1, 0.2], [run(0.1)[:2], run(0.2)[:2]])
    exact = hc.SaltedKalmanFilter(
        system, np.zeros((4, 4)), coordinates("position", [0, 1], 1e6 * np.eye(2))
    )
    start = hc.estimation.Estimate(("open",), 0.0, run(0.0), np.diag([1e-4, 4e-4, 1e-12, 1e-12]))
    result = exact.run(hc.estimation.Record({"position": seen}), start)
    with hc.view(run, system, estimate=result) as shown:
        shown.seek(0.15)
        drawn = shown.figures["estimate"]
        assert drawn.bones is not None
        (ellipsoid,) = drawn.ellipsoids
        assert sorted(ellipsoid.scale)[1:] == pytest.approx([0.03, 0.06], rel=1e-3)


def test_the_jacobian_of_an_ellipsoid_is_that_of_differences():
    """One degree of freedom uncertain at a time: the half axis is three times the speed."""
    system = arm_system()
    figure = Figure(system.robot, system.contacts)
    x, step = np.array([0.7, -0.4, 0.0, 0.0]), 1e-6
    for k in range(2):
        covariance = np.zeros((4, 4))
        covariance[k, k] = 1.0
        (found,) = figure.ellipsoids(x, covariance)
        moved = [figure.ellipsoids(x + s * step * np.eye(4)[k], covariance)[0] for s in (1, -1)]
        speed = np.linalg.norm(moved[0].centre - moved[1].centre) / (2.0 * step)
        assert found.half_axes.max() == pytest.approx(3.0 * speed, rel=1e-8)


def test_states_of_another_robot_are_refused(falling):
    robot = Robot.from_urdf(ball.urdf())
    with pytest.raises(InputError, match=r"run must have states of the robot.*got 4"):
        hc.view(falling[1], Robot.from_urdf(ARM, root="sagittal"))
    assert robot.source == ball.urdf()


def test_without_viser_the_error_says_what_to_install(falling, monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)
    with pytest.raises(InputError, match=r'pip install "hybridctl\[view\]"'):
        hc.view(falling[1], falling[0])
