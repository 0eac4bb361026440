"""The scene has what it should, where the kinematics put it; no browser is needed."""

import re
import sys
from base64 import b64decode
from html import unescape
from types import SimpleNamespace

import numpy as np
import pinocchio
import pytest
from hybridctl.robots import ball
from hybridctl.robots.bodies import free_body
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.app.page.figure import Figure
from hybridctl.app.page.motion import encode_motion
from hybridctl.app.page.shapes import (
    GREY,
    Mesh,
    RobotShapes,
    encode_mesh,
    make_ball,
    make_box,
    make_cylinder,
    make_plane_grid,
)
from hybridctl.app.view import ESTIMATE, REFERENCE
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.estimation.measurement import coordinates
from hybridctl.mechanics import Contact, Plane, Robot, Sphere, Terrain, contact_system
from hybridctl.mechanics.multibody.urdf import shapes_of
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
trimesh = pytest.importorskip("trimesh", reason="trimesh is not installed")
creation = trimesh.creation


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


def mover(view, name):
    return next(each for each in view.scene.movers if each.label == name)


def placed(view, name, x):
    """Poses (4, 4) of all shapes of a mover at a state."""
    bodies = mover(view, name).bodies
    poses = bodies.find_poses(x)
    return [poses[shape.link] @ shape.placement for shape in bodies.shapes]


def encoded(view, name):
    (scene,) = encode_motion([view.scene])["scenes"]
    return next(each for each in scene["movers"] if each["label"] == name)


def unpacked(data):
    return np.frombuffer(b64decode(data["float32"]), "<f4").reshape(data["shape"])


def test_links_are_where_the_kinematics_put_them(shown, falling):
    """Against angles and lengths: the shoulder is tilted by 0.2 about x, then both turn about y."""
    _, run = falling
    x = run(0.8 * run.end)
    tilt, (first, second) = Rotation.from_rotvec([0.2, 0.0, 0.0]), x[:2]
    upper = tilt * Rotation.from_rotvec([0.0, first, 0.0])
    fore = upper * Rotation.from_rotvec([0.0, second, 0.0])
    elbow = np.array([0.0, 0.0, 0.5]) + upper.apply([0.0, 0.0, 0.4])
    cylinder = np.array([0.0, 0.0, 0.5]) + upper.apply([0.0, 0.0, 0.2])
    sphere = elbow + fore.apply([0.1, 0.0, 0.0])
    leaning = fore * Rotation.from_rotvec([0.0, 0.3, 0.0])
    _, *found = placed(shown, "robot", x)
    for pose, turn, place in zip(found, (upper, leaning), (cylinder, sphere), strict=True):
        np.testing.assert_allclose(pose[:3, :3], turn.as_matrix(), atol=1e-14)
        np.testing.assert_allclose(pose[:3, 3], place, atol=1e-14)


def test_the_page_has_the_poses_of_the_scene(shown, falling):
    """Quaternions and places of the links at all its times, in single precision."""
    _, run = falling
    record = encoded(shown, "robot")
    times, poses = unpacked(record["times"]), unpacked(record["poses"])
    bodies = mover(shown, "robot").bodies
    for k in range(0, len(times), 29):
        right = bodies.find_poses(run(min(float(times[k]), run.end)))
        turns = Rotation.from_quat(poses[k, :, :4]).as_matrix()
        np.testing.assert_allclose(turns, right[:, :3, :3], atol=1e-6)
        np.testing.assert_allclose(poses[k, :, 4:], right[:, :3, 3], atol=1e-6)
    for shape, kept in zip(bodies.shapes, record["shapes"], strict=True):
        turn = Rotation.from_quat(kept["placement"][:4]).as_matrix()
        np.testing.assert_allclose(turn, shape.placement[:3, :3], atol=1e-14)
        assert kept["placement"][4:] == shape.placement[:3, 3].tolist()


@pytest.mark.parametrize("root", ["floating", "sagittal"])
def test_bodies_on_a_moving_base_are_where_pinocchio_puts_them(root):
    robot = Robot.from_urdf(ARM.replace("<visual>", INERTIA + "<visual>", 1), root=root)
    system = contact_system(robot, [Contact("tip", "fore", Plane((0, 0, -9), (0, 0, 1)))])
    q = robot.integrate(robot.neutral(), np.linspace(-0.4, 0.7, robot.nv))
    run = hc.simulate(system, ("open",), np.concatenate([q, np.zeros(robot.nv)]), (0.0, 0.1))
    model, shapes = robot.model, shapes_of(robot.model, robot.source)
    data, there = model.createData(), shapes.createData()
    pinocchio.updateGeometryPlacements(model, data, shapes, there, run(0.1)[: robot.nq])
    with hc.view(run, system) as made:
        found = placed(made, "robot", run(0.1))
    for right, pose in zip(there.oMg, found, strict=True):
        np.testing.assert_allclose(pose, right.homogeneous, atol=1e-14)


def ball_and_meshes(tmp_path, packages):
    """A view of a ball with a collada mesh, an STL with a colour, and one that is missing."""
    box = creation.box((0.1, 0.2, 0.3))
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
    """The tint of the reference for all its shapes; it shares the meshes of the robot."""
    with ball_and_meshes(tmp_path, [tmp_path]) as made:
        plain, red = mover(made, "robot").bodies.shapes
        tinted = mover(made, "reference").bodies.shapes
        (scene,) = encode_motion([made.scene])["scenes"]
    assert (red.color, red.opacity) == ("#ff0000", 0.5)
    assert plain.opacity == 1.0
    assert {(shape.color, shape.opacity) for shape in tinted} == {(REFERENCE, 0.45)}
    assert len(scene["meshes"]) == 2
    for shape in (plain, red):
        sides = np.ptp(shape.mesh.vertices, axis=0)
        assert sides == pytest.approx([0.1, 0.2, 0.6], rel=1e-6)  # STL has single precision
        assert len(shape.mesh.triangles) == 12
    assert "mesh package://none.dae of link bead is not found" in caplog.text


def test_a_mesh_has_the_colours_of_its_file(tmp_path):
    """Faces of two colours become two shapes; a file without colours is grey."""
    box = creation.box((0.1, 0.2, 0.3))
    box.export(tmp_path / "plain.stl")
    box.visual.face_colors = [[255, 0, 0, 255]] * 4 + [[0, 0, 255, 255]] * 8
    box.export(tmp_path / "painted.ply")
    visuals = "".join(
        f'<visual><geometry><mesh filename="{tmp_path / file}"/></geometry></visual>'
        for file in ("plain.stl", "painted.ply")
    )
    bead = free_body("bead", 0.5, [1e-3] * 3)
    robot = Robot.from_urdf(bead.replace("</link>", visuals + "</link>"), root="floating")
    shapes = RobotShapes(robot, shapes_of(robot.model, robot.source)).shapes
    found = [(shape.color, len(shape.mesh.triangles)) for shape in shapes]
    assert found == [(GREY, 12), ("#0000ff", 8), ("#ff0000", 4)]


def test_a_file_that_is_no_mesh_is_refused_with_its_name(tmp_path):
    geometry = SimpleNamespace(
        meshPath=str(tmp_path / "odd.dae"),
        meshScale=np.ones(3),
        overrideMaterial=False,
        parentJoint=0,
        placement=pinocchio.SE3.Identity(),
    )
    (tmp_path / "odd.dae").write_bytes(b"<COLLADA>")
    robot = Robot.from_urdf(ARM)
    with pytest.raises(FileFormatError, match=r"odd\.dae cannot be read as a mesh"):
        RobotShapes(robot, SimpleNamespace(geometryObjects=[geometry]))


def volume(mesh):
    """Of a closed mesh whose triangles are seen from outside against the clock."""
    a, b, c = (mesh.vertices[mesh.triangles[:, k]] for k in range(3))
    return float(np.einsum("ij,ij->", a, np.cross(b, c))) / 6.0


def test_solids_have_their_volumes():
    """Within what 24 sides of a circle leave: 1.2 % of a disk, and 3 % of a ball."""
    assert volume(make_box((0.1, 0.2, 0.3))) == pytest.approx(0.006, rel=1e-12)
    cylinder = np.pi * 0.1**2 * 0.4
    assert volume(make_cylinder(0.1, 0.2)) == pytest.approx(cylinder, rel=0.012)
    ball = 4.0 / 3.0 * np.pi * 0.1**3
    assert volume(make_ball(0.1)) == pytest.approx(ball, rel=0.03)
    assert volume(make_ball(0.1, 0.2)) == pytest.approx(ball + cylinder, rel=0.03)


def test_a_mesh_of_the_page_is_that_of_the_robot():
    """To a part in 65,535 of its extent; a flat one too."""
    mesh = Mesh(
        np.array([[0.0, 1.0, 3.0], [0.1, 1.3, 3.0], [0.2, 1.1, 3.0]]), np.array([[0, 1, 2]])
    )
    kept = encode_mesh(mesh)
    steps = np.frombuffer(b64decode(kept["vertices"]), "<u2").reshape(-1, 3)
    found = np.array(kept["low"]) + np.array(kept["extent"]) * steps / 65535
    np.testing.assert_allclose(found, mesh.vertices, atol=0.3 / 65535)
    assert np.frombuffer(b64decode(kept["triangles"]), "<u2").tolist() == [0, 1, 2]


def test_a_large_mesh_becomes_small_and_stays_in_place(tmp_path):
    """A ball of 327,680 triangles."""
    ball = creation.icosphere(subdivisions=7, radius=0.3)
    ball.export(tmp_path / "ball.stl")
    bead = free_body("bead", 0.5, [1e-3] * 3)
    visual = f'<visual><geometry><mesh filename="{tmp_path / "ball.stl"}"/></geometry></visual>'
    robot = Robot.from_urdf(bead.replace("</link>", visual + "</link>"), root="floating")
    (shape,) = RobotShapes(robot, shapes_of(robot.model, robot.source)).shapes
    assert 20_000 < len(shape.mesh.triangles) <= 60_000
    radii = np.linalg.norm(shape.mesh.vertices, axis=1)
    np.testing.assert_allclose(radii, 0.3, rtol=1e-3)


def test_a_robot_whose_meshes_are_all_missing_has_bones(tmp_path):
    with ball_and_meshes(tmp_path, []) as made:
        robot = mover(made, "robot")
        assert robot.bodies is None
        assert len(robot.outline(made.run(0.0))) > 0


def test_the_scene_has_a_surface_forces_and_modes(shown, falling):
    _, run = falling
    assert len(shown.scene.fixed) == 82  # the grid of the table
    assert {line[0, 2] for line in shown.scene.fixed} == {0.3}
    record = encoded(shown, "robot")
    (impulse,) = [i for i in record["impulses"] if i["time"] == run.events[0].time]
    assert impulse["contact"] == "tip"
    assert impulse["value"][2] > 0.0  # the table pushes upwards
    assert record["contacts"] == encoded(shown, "reference")["contacts"] == ["tip"]
    assert record["modes"][0] == {
        "start": 0.0,
        "end": run.arcs[0].end,
        "text": "open",
        "words": ["open"],
    }
    assert len(record["events"]) == len(run.guard_events)
    assert "forces" not in encoded(shown, "reference")


def test_a_pushed_run_is_shown_with_its_forces(falling):
    """By its own system, whose inputs are more, where the view is given the robot's."""
    system, _ = falling
    push = hc.mechanics.Wrench("fore", (1.0, 0.0, 0.0), 0.1, 0.2)
    run = hc.simulate(system, ("open",), [1.2, 0.4, 0.0, 0.0], (0.0, 0.3), wrench=push)
    with hc.view(run, system) as view:
        assert mover(view, "robot").system is run.system
        assert "forces" in encoded(view, "robot")


def test_a_relaxed_run_is_shown_with_its_bodies_and_forces():
    """An arm that lies on the table: its force holds the arm up, as that of the arm itself."""
    system = arm_system()
    relaxed = hc.relax(system, 1e-4)
    run = hc.simulate(relaxed, None, [1.2, 0.4, 0.0, 0.0], (0.0, 0.3), rtol=1e-6, atol=1e-6)
    pressed = next(arc for arc in run.arcs if arc.mode == ("strip",))
    for given in (relaxed, system, system.robot):
        with hc.view(run, given) as shown:
            record = encoded(shown, "robot")
            assert record["shapes"]
            if given is system.robot:
                assert "forces" not in record
                continue
            assert shown.scene.fixed
            times = unpacked(record["times"])
            k = times.searchsorted(0.5 * (pressed.start + pressed.end))
            assert unpacked(record["forces"])[k, 0, 2] > 0.0


def test_a_run_with_parameters_beside_the_state_is_shown(falling):
    system, _ = falling
    held, by = fix_inputs_as_parameters(system, {"torque": 0.0})
    wrapped, _ = augment_with_parameters(held, hc.HybridTrajectory((), (), system), by)
    run = hc.simulate(wrapped, ("open",), [1.2, 0.4, 0.0, 0.0, 0.0], (0.0, 0.1))
    with hc.view(run, wrapped) as shown:
        assert mover(shown, "robot").bodies is not None
    with pytest.raises(InputError, match="run must have states of the robot"):
        hc.view(run, Robot.from_urdf(ARM, root="sagittal"))


def test_smooth_ground_is_a_mesh_of_its_heights():
    robot = Robot.from_urdf(free_body("bead", 0.5, [1e-3] * 3), root="floating")
    ground = Terrain(lambda x, y: 0.3 * x - 0.1 * x * y)
    ball = Sphere((1.0, 2.0, -0.5), 0.25)
    contacts = [Contact("tip", "bead", ground), Contact("top", "bead", ball)]
    system = contact_system(robot, contacts)
    start = np.array([0.2, 0.1, 0.5, 0.0, 0.0, 0.0, 1.0, *[0.0] * 6])
    run = hc.simulate(system, ("open", "open"), start, (0.0, 0.05))
    with hc.view(run, system) as made:
        mesh, round_ = (shape.mesh for shape in made.scene.surfaces)
    x, y, z = mesh.vertices.T
    np.testing.assert_allclose(z, 0.3 * x - 0.1 * x * y, atol=1e-14)
    edges = mesh.vertices[mesh.triangles]
    up = np.cross(edges[:, 1] - edges[:, 0], edges[:, 2] - edges[:, 0])
    assert (up[:, 2] > 0.0).all()
    radii = np.linalg.norm(round_.vertices - np.array([1.0, 2.0, -0.5]), axis=1)
    np.testing.assert_allclose(radii, 0.25, rtol=1e-12)


def test_the_grid_of_a_plane_lies_in_it():
    plane = Plane((1.0, 0.0, 0.5), (1.0, 0.0, 2.0))
    points = np.concatenate(make_plane_grid(plane))
    heights = (points - np.array([1.0, 0.0, 0.5])) @ plane.unit_normal
    np.testing.assert_allclose(heights, 0.0, atol=1e-14)
    assert np.linalg.norm(points - np.array([1.0, 0.0, 0.5]), axis=1).max() == pytest.approx(8**0.5)


def test_the_page_is_one_file_that_begins_at_the_time_sought(falling, tmp_path):
    system, run = falling
    with hc.view(run, system) as shown:
        path = shown.path
        assert shown.address == f"{path.as_uri()}#t={run.start!r}"
        shown.seek(0.25)
        assert shown.address.endswith("#t=0.25")
        frame = shown._repr_html_()
        inside = unescape(re.search('srcdoc="([^"]*)"', frame)[1])
        assert inside == path.read_text().replace(
            '<div id="motion"', '<div id="motion" data-time="0.25"'
        )
        with pytest.raises(InputError, match="t must be"):
            shown.seek(run.end + 1.0)
    assert not path.parent.exists()
    with hc.view(run, system, path=tmp_path / "kept.html") as kept:
        assert kept.path == tmp_path / "kept.html"
    assert kept.path.exists()


def test_the_page_is_opened_at_its_address(shown, monkeypatch):
    asked = []
    monkeypatch.setattr("webbrowser.open", lambda address: asked.append(address) or True)
    assert shown.open()
    assert asked == [shown.address]


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
        assert mover(shown, "estimate").bodies is None
        record = encoded(shown, "estimate")
    assert record["stepwise"]
    assert record["color"] == ESTIMATE
    rows = unpacked(record["ellipsoids"])
    assert unpacked(record["times"]) == pytest.approx(result.times)
    for row, mean in zip(rows[:, 0], result.means, strict=True):
        half_axes = np.linalg.norm(row[:9].reshape(3, 3), axis=0)
        assert sorted(half_axes)[1:] == pytest.approx([0.03, 0.06], rel=1e-3)
        assert row[[9, 11]] == pytest.approx(mean[:2], abs=1e-6)


def test_the_jacobian_of_an_ellipsoid_is_that_of_differences():
    """One degree of freedom uncertain at a time: the half axis is three times the speed."""
    system = arm_system()
    figure = Figure(system.robot, system.contacts)
    x, step = np.array([0.7, -0.4, 0.0, 0.0]), 1e-6
    for k in range(2):
        covariance = np.zeros((4, 4))
        covariance[k, k] = 1.0
        (found,) = figure.find_ellipsoids(x, covariance)
        moved = [
            figure.find_ellipsoids(x + s * step * np.eye(4)[k], covariance)[0] for s in (1, -1)
        ]
        speed = np.linalg.norm(moved[0].centre - moved[1].centre) / (2.0 * step)
        assert found.half_axes.max() == pytest.approx(3.0 * speed, rel=1e-8)


def test_states_of_another_robot_are_refused(falling):
    robot = Robot.from_urdf(ball.urdf())
    with pytest.raises(InputError, match=r"run must have states of the robot.*got 4"):
        hc.view(falling[1], Robot.from_urdf(ARM, root="sagittal"))
    assert robot.source == ball.urdf()


def test_without_trimesh_the_error_says_what_to_install(tmp_path, monkeypatch):
    """Boxes, spheres and cylinders need none."""
    monkeypatch.setitem(sys.modules, "trimesh", None)
    robot = Robot.from_urdf(ARM)
    assert len(RobotShapes(robot, shapes_of(robot.model, robot.source)).shapes) == 3
    with pytest.raises(InputError, match=r'pip install "hybridctl\[view\]"'):
        ball_and_meshes(tmp_path, [tmp_path])
