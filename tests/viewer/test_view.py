"""The scene has what it should, where the kinematics put it; no browser is needed."""

import sys

import numpy as np
import pinocchio
import pytest
from hybridctl.robots import ball
from hybridctl.robots.bodies import free_body
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.app.viewer.figure import Figure
from hybridctl.app.viewer.view import REFERENCE, timeline_html
from hybridctl.base.errors import InputError
from hybridctl.estimation.measurement import coordinates
from hybridctl.mechanics import Contact, Plane, Robot, Terrain, contact_system
from hybridctl.sensitivity.parameter_models import fix_inputs_as_parameters
from hybridctl.sensitivity.parameters import augment_with_parameters

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
INERTIA = """<inertial><mass value="1"/>
<inertia ixx="0.02" iyy="0.02" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>"""
viser = pytest.importorskip("viser", reason="viser is not installed")
trimesh = pytest.importorskip("trimesh", reason="trimesh is not installed")


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


def nodes(view):
    return view.server.scene._handle_from_node_name


def node(view, name):
    return nodes(view)[name]


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
    cylinder = np.array([0.0, 0.0, 0.5]) + upper.apply([0.0, 0.0, 0.2])
    sphere = elbow + fore.apply([0.1, 0.0, 0.0])
    leaning = fore * Rotation.from_rotvec([0.0, 0.3, 0.0])
    single = 4.0 * 2.0**-24  # of numbers of about 1
    for name, turn, place in (("upper_0", upper, cylinder), ("fore_0", leaning, sphere)):
        found_turn, found_place = pose_of(node(shown, f"/robot/visual/{name}"))
        np.testing.assert_allclose(found_turn, turn.as_matrix(), atol=single)
        np.testing.assert_allclose(found_place, place, atol=single)


@pytest.mark.parametrize("root", ["floating", "sagittal"])
def test_bodies_on_a_moving_base_are_where_pinocchio_puts_them(root):
    robot = Robot.from_urdf(ARM.replace("<visual>", INERTIA + "<visual>", 1), root=root)
    system = contact_system(robot, [Contact("tip", "fore", Plane((0, 0, -9), (0, 0, 1)))])
    q = robot.integrate(robot.neutral(), np.linspace(-0.4, 0.7, robot.nv))
    run = hc.simulate(system, ("open",), np.concatenate([q, np.zeros(robot.nv)]), (0.0, 0.1))
    model = robot.model
    with hc.view(run, system) as made:
        made.seek(0.1)
        shapes = made.figures["robot"].bodies.visual_model
        data, placed = model.createData(), shapes.createData()
        pinocchio.updateGeometryPlacements(model, data, shapes, placed, run(0.1)[: robot.nq])
        names = [shape.name for shape in shapes.geometryObjects]
        assert names == ["base_0", "upper_0", "fore_0"]
        for name, pose in zip(names, placed.oMg, strict=True):
            turn, place = pose_of(node(made, f"/robot/visual/{name}"))
            np.testing.assert_allclose(turn, pose.rotation, atol=4.0 * 2.0**-24)
            np.testing.assert_allclose(place, pose.translation, atol=4.0 * 2.0**-24)


def ball_and_meshes(tmp_path, packages):
    """A view of a ball with a collada mesh, an STL with a colour, and one that is missing."""
    box = trimesh.creation.box((0.1, 0.2, 0.3))
    for name in ("a.dae", "b.stl"):
        box.export(tmp_path / name)
    red = '<material name="red"><color rgba="1 0 0 0.5"/></material>'
    meshes = [("a.dae", ""), ("none.dae", ""), ("b.stl", red)]
    visuals = "".join(
        f'<visual><geometry><mesh filename="package://{file}" scale="1 1 2"/></geometry>{tone}'
        "</visual>"
        for file, tone in meshes
    )
    bead = free_body("bead", 0.5, [1e-3] * 3)
    robot = Robot.from_urdf(bead.replace("</link>", visuals + "</link>"), root="floating")
    system = contact_system(robot, [Contact("tip", "bead", Plane((0, 0, 0), (0, 0, 1)))])
    start = np.concatenate([[0.0, 0.0, 0.5], robot.neutral()[3:], np.zeros(6)])
    run = hc.simulate(system, ("open",), start, (0.0, 0.05))
    return hc.view(run, system, reference=run, packages=packages)


def test_meshes_have_their_colours_or_a_tint_and_may_be_missing(tmp_path, caplog):
    """Collada too: its own colour for the robot, the tint of the reference for that."""
    with ball_and_meshes(tmp_path, [tmp_path]) as made:
        kinds = {name: type(n).__name__ for name, n in nodes(made).items() if "/bead_" in name}
        assert kinds == {
            "/robot/visual/bead_0": "GlbHandle",
            "/robot/visual/bead_1": "MeshHandle",
            "/reference/visual/bead_0": "MeshHandle",
            "/reference/visual/bead_1": "MeshHandle",
        }
        own, tinted = (node(made, f"/{n}/visual/bead_1") for n in ("robot", "reference"))
        assert (own.color, own.opacity) == ((255, 0, 0), 0.5)
        assert (tinted.color, tinted.opacity) == (REFERENCE, 0.4)
        assert node(made, "/reference/visual/bead_0").color == REFERENCE
        for mesh in (own, node(made, "/reference/visual/bead_0")):
            sides = np.ptp(mesh.vertices, axis=0) * mesh.scale
            assert sides == pytest.approx([0.1, 0.2, 0.6], rel=2.0**-22)
    assert "mesh package://none.dae of link bead is not found" in caplog.text


def test_a_robot_whose_meshes_are_all_missing_has_bones(tmp_path):
    with ball_and_meshes(tmp_path, []) as made:
        assert made.figures["robot"].bodies is None
        assert made.figures["robot"].bones is not None


def test_the_scene_has_shapes_a_surface_forces_and_a_time_line(shown, falling):
    _, run = falling
    shapes = {f"/{n}/visual/{s}_0" for n in ("robot", "reference") for s in ("upper", "fore")}
    assert shapes | {"/surfaces/0"} <= set(nodes(shown))
    shown.seek(run.events[0].time + 1e-3)
    arrows = node(shown, "/impulses")
    assert arrows.visible
    (impulse,) = arrows.points
    assert impulse[1, 2] > impulse[0, 2]  # the table pushes upwards
    shown.seek(0.0)
    assert not node(shown, "/impulses").visible
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


def test_a_relaxed_run_is_shown_with_its_bodies_and_forces():
    """An arm that lies on the table: its force holds the arm up, as that of the arm itself."""
    system = arm_system()
    relaxed = hc.relax(system, 1e-4)
    run = hc.simulate(relaxed, None, [1.2, 0.4, 0.0, 0.0], (0.0, 0.3), rtol=1e-6, atol=1e-6)
    pressed = next(arc for arc in run.arcs if arc.mode == ("strip",))
    for given in (relaxed, system, system.robot):
        with hc.view(run, given) as shown:
            shown.seek(0.5 * (pressed.start + pressed.end))
            assert shown.figures["robot"].bodies is not None
            if given is system.robot:
                continue
            assert "/surfaces/0" in nodes(shown)
            (arrow,) = node(shown, "/forces").points
            assert arrow[1, 2] > arrow[0, 2]


def test_a_run_with_parameters_beside_the_state_is_shown(falling):
    system, _ = falling
    held, by = fix_inputs_as_parameters(system, {"torque": 0.0})
    wrapped, _ = augment_with_parameters(held, hc.HybridTrajectory((), (), system), by)
    run = hc.simulate(wrapped, ("open",), [1.2, 0.4, 0.0, 0.0, 0.0], (0.0, 0.1))
    with hc.view(run, wrapped) as shown:
        assert shown.figures["robot"].bodies is not None
    with pytest.raises(InputError, match="run must have states of the robot"):
        hc.view(run, Robot.from_urdf(ARM, root="sagittal"))


def test_smooth_ground_is_a_mesh_of_its_heights():
    robot = Robot.from_urdf(free_body("bead", 0.5, [1e-3] * 3), root="floating")
    ground = Terrain(lambda x, y: 0.3 * x - 0.1 * x * y)
    system = contact_system(robot, [Contact("tip", "bead", ground)])
    start = np.array([0.2, 0.1, 0.5, 0.0, 0.0, 0.0, 1.0, *[0.0] * 6])
    run = hc.simulate(system, ("open",), start, (0.0, 0.05))
    with hc.view(run, system) as made:
        mesh = node(made, "/surfaces/0")
        x, y, z = mesh.vertices.T
        np.testing.assert_allclose(z, 0.3 * x - 0.1 * x * y, atol=4.0 * 2.0**-24)
        edges = mesh.vertices[mesh.faces]
        up = np.cross(edges[:, 1] - edges[:, 0], edges[:, 2] - edges[:, 0])
        assert (up[:, 2] > 0.0).all()


def test_the_reference_stops_at_its_end_and_times_outside_are_refused(shown, falling):
    _, run = falling
    shown.seek(run.end)
    at_end = pose_of(node(shown, "/reference/visual/fore_0"))
    shown.seek(0.4)
    np.testing.assert_allclose(pose_of(node(shown, "/reference/visual/fore_0"))[1], at_end[1])
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
