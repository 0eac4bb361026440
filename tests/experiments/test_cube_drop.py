"""A cube that drops comes to rest flat, obeys its laws, and is put beside recorded tosses."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hybridctl.experiments.contacts import cube_drop
from hybridctl.experiments.cube_filter.tosses import CLEARANCE, load_toss
from hybridctl.robots import cube
from rich.console import Console
from scipy.spatial.transform import Rotation

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.contact_law.law import CERTIFIED
from hybridctl.mechanics.modes.tolerances import STANDSTILL

GUARD_TOLERANCE = 1e-8  # m, of `simulate`
RATE = 148.0
MODEL = cube.CubeParameters(half_width=0.05, mass=0.4, inertia=0.0009)


def execute(config, path):
    text = io.StringIO()
    folder = RunFolder("cube-drop", path, draws=False)
    summary = cube_drop.run(config, folder, Console(file=text, width=80))
    return folder, summary, text.getvalue()


@pytest.fixture(scope="module")
def quick():
    return cube_drop.quick(cube_drop.Config())


@pytest.fixture(scope="module")
def drop(quick, tmp_path_factory):
    return execute(quick, tmp_path_factory.mktemp("drop"))


@pytest.fixture(scope="module")
def motions(drop):
    system = cube.system(cube.CubeParameters())
    return [
        HybridTrajectory.load(drop[0] / f"{name}.npz", system)
        for name in ("events", "time_stepping")
    ]


def ignore(_):
    """Takes the place of a progress bar."""


def toss_arrays(end=0.6):
    """Two tosses as the readme of the recordings describes them: free flight, and a whole run.

    The velocity of a row is that of the motion, so that the motion can be found again.
    """
    start = [0.0, 0.0, 0.12, *Rotation.from_euler("xyz", (0.5, 0.3, 0.2)).as_quat()]
    config = cube_drop.Config(end=end)
    model = replace(MODEL, friction=config.friction, restitution=config.restitution)
    times = np.arange(0.0, end, 1.0 / RATE)
    drop = cube_drop.Drop(model, np.array([*start, 1.0, 0.2, 0.0, 2.0, 6.0, -1.0]), times, None)
    run = cube_drop.simulate_events(config, drop, ignore)
    states = np.array([run(t) for t in times])
    states = np.vstack((states[:3], states))
    turn = Rotation.from_quat(states[:, 3:7])
    quaternion = np.roll(turn.as_quat(), 1, axis=1)
    quaternion[::2] *= -1.0
    return {
        "offset": np.array([0, 3, len(states)]),
        "position": states[:, :3],
        "quat_wxyz": quaternion,
        "velocity": turn.apply(states[:, 7:10]),
        "omega_body": states[:, 10:],
        "rate_hz": RATE,
        "half_width_m": MODEL.half_width,
        "mass_kg": MODEL.mass,
        "inertia_kgm2": MODEL.inertia,
    }


@pytest.fixture(scope="module")
def arrays():
    return toss_arrays()


@pytest.fixture
def recording(arrays, tmp_path):
    path = tmp_path / "tosses.npz"
    np.savez(path, **arrays)
    return path


def test_the_cube_comes_to_rest_flat(drop):
    summary, p = drop[1], cube.CubeParameters()
    rest = summary["rest"]
    assert rest["flat"]
    assert np.abs(rest["lowest_four_gaps_m"]).max() <= GUARD_TOLERANCE
    assert rest["corners"] == {"open": 4, "stick": 4}
    # A corner that sticks moves no faster than what counts as standing; the four of them span
    # the cube, so its centre does not either, and it turns at that over half its width.
    assert rest["speed_m_s"] <= STANDSTILL
    assert rest["spin_rad_s"] <= STANDSTILL / p.half_width
    weight = p.mass * p.gravity
    assert abs(summary["energy"]["end_J"] - weight * p.half_width) <= weight * GUARD_TOLERANCE


def test_contact_laws_hold_along_the_run(drop):
    contact, p = drop[1]["contact"], cube.CubeParameters()
    assert contact["lowest_gap_m"] >= -GUARD_TOLERANCE
    assert contact["least_normal_force_N"] >= 0.0
    assert contact["friction_beyond_cone_N"] <= CERTIFIED * p.mass * p.gravity
    assert contact["friction_beyond_cone_N"] > -p.friction * p.mass * p.gravity


def test_a_plastic_cube_never_gains_energy():
    config = replace(cube_drop.quick(cube_drop.Config()), restitution=0.0)
    drop = cube_drop.prepare_drop(config)
    run = cube_drop.simulate_events(config, drop, ignore)
    energy = cube_drop.compute_energy(drop.model, run)
    assert cube_drop.describe_rest(drop.model, run)["flat"]
    assert energy["end_J"] < energy["start_J"]
    # The law of an impact holds to CERTIFIED of its terms.
    assert energy["largest_gain_at_an_event_J"] <= CERTIFIED * energy["start_J"]
    assert energy["least_loss_at_an_impact_J"] >= -CERTIFIED * energy["start_J"]
    # An arc leaves some ten local errors in the momentum.
    fastest = np.sqrt(2.0 * energy["start_J"] / drop.model.mass)
    slack = 10.0 * (config.atol + config.rtol * fastest)
    assert energy["largest_gain_on_an_arc_J"] <= drop.model.mass * fastest * slack


def test_both_simulators_agree_until_they_hit(quick, motions):
    """Time stepping takes the velocity in the frame of the cube by Euler's method, of which the
    error after t is t h/2 times the second derivative, of w x v and of gravity: w^2 V + 2 w g."""
    events, steps = motions
    hit, step_hit = events.events[0], steps.events[0]
    assert hit.guards == step_hit.guards
    end = min(hit.time, step_hit.time)
    g, w = cube.CubeParameters().gravity, np.linalg.norm(quick.spin)
    fastest = np.linalg.norm(quick.velocity) + g * end
    bound = 0.5 * end**2 * 0.5 * quick.step * (w**2 * fastest + 2.0 * w * g)
    times = np.linspace(0.0, end, 20)
    poses = (cube_drop.sample_poses(run, times) for run in motions)
    distance, angle = cube_drop.compare_poses(*poses)
    assert 1e-3 * distance.max() <= bound
    # Without a torque the cube turns at constant speed, which both follow to the tolerance.
    assert np.radians(angle.max()) <= 10.0 * (quick.atol + quick.rtol * w)
    # A step takes part in a contact from its midpoint on.
    corner = cube.CORNERS.index(hit.guards[0].split()[0])
    heights = [
        cube_drop.compute_corner_gaps(cube.CubeParameters(), events(t))[corner]
        for t in (hit.time - 1e-4, hit.time)
    ]
    speed = (heights[0] - heights[1]) / 1e-4
    assert abs(hit.time - step_hit.time) <= 0.5 * quick.step + bound / speed


def test_the_report_is_complete(drop):
    folder, summary, text = drop
    stored = json.loads((folder / "summary.json").read_text())
    assert stored.keys() == summary.keys()
    assert stored["differences"].keys() == {"events - stepping"}
    assert stored["events"]
    assert "lies flat" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_toss_is_read_from_its_last_row_in_the_air(arrays, recording):
    toss = load_toss(str(recording), 1)
    gaps = [cube_drop.compute_corner_gaps(MODEL, pose).min() for pose in toss.poses[:2]]
    assert gaps[0] >= CLEARANCE > gaps[1]
    row = len(arrays["position"]) - len(toss.poses)
    assert np.array_equal(toss.poses[0, :3], arrays["position"][row])
    turn = Rotation.from_quat(toss.poses[0, 3:])
    expected = Rotation.from_quat(np.roll(arrays["quat_wxyz"][row], -1))
    rounding = 10.0 * np.finfo(float).eps
    assert (turn.inv() * expected).magnitude() <= rounding
    assert np.abs(turn.apply(toss.velocity[:3].copy()) - arrays["velocity"][row]).max() <= rounding
    assert np.allclose(np.diff(toss.times), 1.0 / RATE, rtol=1e-12)
    assert toss.cube == MODEL


def test_simulated_poses_are_compared_with_recorded_ones(recording, tmp_path):
    config = cube_drop.Config(data=str(recording), toss=1, rtol=1e-9, atol=1e-9, step=2e-3)
    folder, summary, text = execute(config, tmp_path / "out")
    pairs = {"events - stepping", "events - recorded", "stepping - recorded"}
    assert json.loads((folder / "summary.json").read_text())["differences"].keys() == pairs
    assert all(pair in text for pair in pairs)
    assert summary["rest"]["flat"]
    # The recording is a run of the same model from the same state: what is apart are some ten
    # local errors, as the steps of the integrator lie elsewhere.
    apart = summary["differences"]["events - recorded"]
    assert 1e-3 * apart["mean_position_mm"] <= 10.0 * (config.atol + config.rtol)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": None}, "field 'position' is unknown"),
        ({"rate_hz": None}, "field 'rate_hz' is unknown"),
        ({"rate_hz": 0.0}, "must be greater than 0"),
        ({"mass_kg": np.array([1.0, 2.0])}, "mass_kg must be a number"),
        ({"inertia_kgm2": None}, "does not hold recorded tosses: 'inertia_kgm2'"),
        ({"offset": np.array([0, 99999])}, "goes from row 0 to 99999"),
        ({"offset": np.array([0, 2.5, 4])}, "must be whole numbers"),
        ({"omega_body": np.zeros(4)}, "channel 'spin'"),
        ({"position": np.array(["a", "b"])}, "field 'position' must be"),
    ],
)
def test_a_file_of_something_else_is_refused(arrays, tmp_path, changes, message):
    path = tmp_path / "tosses.npz"
    np.savez(path, **{name: a for name, a in {**arrays, **changes}.items() if a is not None})
    with pytest.raises(InputError, match=message) as refused:
        load_toss(str(path), 0)
    assert "\n" not in str(refused.value)


def test_a_velocity_that_is_missing_is_refused(arrays, tmp_path):
    np.savez(tmp_path / "tosses.npz", **{**arrays, "velocity": np.nan * arrays["velocity"]})
    with pytest.raises(InputError, match="velocity must be finite"):
        load_toss(str(tmp_path / "tosses.npz"), 1)


def test_files_that_cannot_be_read_are_refused_as_all_logs_are(recording, tmp_path):
    recording.write_bytes(recording.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match=r"tosses.npz: damaged"):
        load_toss(str(recording), 0)
    with pytest.raises(InputError, match=r"missing.npz' does not exist"):
        load_toss(str(tmp_path / "missing.npz"), 0)


def test_tosses_without_a_flight_and_a_landing_are_refused(arrays, tmp_path):
    path = tmp_path / "tosses.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=r"segment\.index must be at most 1"):
        load_toss(str(path), 2)
    with pytest.raises(InputError, match="never comes down"):
        load_toss(str(path), 0)
    np.savez(path, **{**arrays, "position": 0.0 * arrays["position"]})
    with pytest.raises(InputError, match="begins on the table"):
        load_toss(str(path), 1)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("friction=-1", "friction must be at least 0"),
        ("restitution=1.5", "restitution must be at most 1"),
        ("end=0", "end must be greater than 0"),
        ("end=1e9", "end must be at most"),
        ("step=1", "step must be at most"),
        ("step=1e-9", "step must be at least"),
        ("position=[0,1]", "position must be a list of length 3"),
        ("data=5", "data must be text"),
        ("toss=-1", "toss must be a whole number"),
        ("toss=1.5", "toss must be a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(cube_drop.Config, None, [setting])


def test_a_cube_that_begins_in_the_table_is_refused():
    with pytest.raises(
        InputError, match=r"position must leave every corner.*corner 'front-right-bottom'"
    ):
        cube_drop.prepare_drop(cube_drop.Config(position=(0.0, 0.0, 0.05)))
