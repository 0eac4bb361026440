"""What the page plays is the motion, with forces and impulses as the laws say."""

import json
from base64 import b64decode

import numpy as np
import pytest
from hybridctl.robots import cube
from hybridctl.robots.ball import BallParameters
from hybridctl.robots.ball import system as ball_system
from page.conftest import MODEL, fall, outline
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.base.run_folder import RunFolder
from hybridctl.mechanics import ContactDynamics
from hybridctl.sensitivity.parameter_models import fix_inputs_as_parameters
from hybridctl.sensitivity.parameters import augment_with_parameters

XZ = ("x", "z")
SINGLE = 2.0**-23  # numbers are stored in single precision


def unpacked(data):
    return np.frombuffer(b64decode(data["float32"]), "<f4").reshape(data["shape"])


@pytest.fixture(scope="module")
def ball(folder):
    return json.loads((folder / "motion.json").read_text())["scenes"][0]["movers"][0]


def test_outlines_are_where_the_state_says(ball, run):
    times, points = unpacked(ball["times"]), unpacked(ball["points"])
    assert ball["lines"] == [5, 2]
    assert np.all(np.diff(times) >= 0.0)
    for k in range(0, len(times), 37):
        right = np.concatenate(outline(run(float(times[k]))))
        # At an event the sample may be the one before it; positions do not jump.
        assert np.abs(points[k] - right).max() <= 2.0 * SINGLE * 5.0


def test_frames_are_dense_around_events(ball, run):
    times = unpacked(ball["times"])
    for event in run.events:
        around = np.abs(times - event.time) <= 1.1e-3
        assert np.count_nonzero(around) >= 8


def test_the_force_of_a_ball_at_rest_is_its_weight(ball):
    weight = MODEL.mass * MODEL.gravity
    forces = unpacked(ball["forces"])
    assert forces[-1, 0] == pytest.approx([0.0, weight], abs=1e-5 * weight)
    assert np.all(forces[0] == 0.0)


def test_the_impulse_changes_the_momentum(ball, run):
    (impulse,) = ball["impulses"]
    event = run.events[0]
    change = MODEL.mass * (event.state_after[2:] - event.state_before[2:])
    assert np.array(impulse["value"]) == pytest.approx(change, abs=1e-12)
    assert np.array(impulse["place"]) == pytest.approx(event.state_before[:2], abs=1e-12)
    assert impulse["size"] == pytest.approx(np.linalg.norm(change))
    names = [", ".join(e.guards) for e in run.guard_events]
    assert [text.removesuffix("; uniqueness proven") for _, text in ball["events"]] == names
    assert ball["events"][0][1].endswith("closes; uniqueness proven")


def test_forces_in_the_world_are_those_of_the_equations():
    """On a free body they add up to what J' lambda is along its base, turned into the world."""
    model = cube.CubeParameters()
    dynamics = ContactDynamics(cube.robot(model), cube.contacts(model))
    rng = np.random.default_rng(4)
    q = dynamics.robot.integrate(dynamics.robot.neutral(), rng.normal(size=6))
    normal, friction = rng.normal(size=8), rng.normal(size=(8, 2))
    rows = dynamics.contact_set
    values = np.concatenate((normal, np.zeros(len(rows.owner) - 8)))
    for i, tangents in enumerate(rows.tangents):
        values[tangents] = friction[i]
    places, forces = rows.express_in_world(q, normal, friction)
    base = rows.jacobian(q).T @ values
    turn = Rotation.from_quat(q[3:7]).as_matrix()
    assert forces.sum(axis=0) == pytest.approx(turn @ base[:3], abs=1e-13)
    moments = np.cross(places - q[:3], forces).sum(axis=0)
    assert moments == pytest.approx(turn @ base[3:], abs=1e-13)


def test_a_wrapped_ball_has_the_forces_of_the_ball(tmp_path):
    """Relaxed, held up by a newton, and with a parameter beside its state: at rest in the end."""
    system = ball_system(BallParameters(slope=0.0))
    weight, start = system.robot.weight, [0.0, 0.1, 0.0, 0.0]
    held, by = fix_inputs_as_parameters(system, {"lift": 1.0})
    wrapped, _ = augment_with_parameters(held, hc.HybridTrajectory((), (), system), by)
    made = {
        "relaxed": (hc.relax(system, 1e-4), start, weight),
        "held": (held, start, weight - 1.0),
        "parameters": (wrapped, [*start, 0.0], weight - 1.0),
    }
    for name, (each, x, normal) in made.items():
        run = hc.simulate(each, ("open",), x, (0.0, 0.5))
        folder = RunFolder("e", tmp_path / name)
        write_motion(folder, [Scene(name, [Mover(name, run, outline, system=each)], axes=XZ)])
        (mover,) = json.loads((folder / "motion.json").read_text())["scenes"][0]["movers"]
        assert unpacked(mover["forces"])[-1, 0] == pytest.approx([0.0, normal], rel=1e-4)
        assert unpacked(mover["places"])[-1, 0] == pytest.approx([0.0, 0.0], abs=2e-4)


def test_a_scene_of_nothing_and_unknown_axes_are_refused(tmp_path, run):
    folder = RunFolder("e", tmp_path)
    with pytest.raises(InputError, match="at least one mover"):
        write_motion(folder, [Scene("empty", [])])
    with pytest.raises(UnknownNameError, match="axes"):
        write_motion(folder, [Scene("odd", [Mover("ball", run, outline)], axes=("y", "x"))])


def test_without_a_system_there_are_no_forces(tmp_path):
    folder = RunFolder("e", tmp_path)
    write_motion(folder, [Scene("bare", [Mover("ball", fall(), outline)], axes=XZ)])
    (mover,) = json.loads((tmp_path / "motion.json").read_text())["scenes"][0]["movers"]
    assert "forces" not in mover
