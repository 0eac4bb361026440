"""`filter` on legged robots: a recorded walk in a ROS 2 bag, and models that do not fit."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from legged.machine import URDF
from scipy.spatial.transform import Rotation

from hybridctl.app.cli import cli
from hybridctl.base.errors import ImplausibleLogError, InputError, SimulationError, UnknownNameError
from hybridctl.base.time_series import Series
from hybridctl.estimation.pose_track import PoseTrack
from hybridctl.legged.estimator import BaseEstimator
from hybridctl.logs import Log, read_log, read_tum, write_log, write_tum

DATA = Path(__file__).parents[2] / "shared/data/icub_walking"
HUMANOID = """
urdf: {urdf}
imu: {{frame: root_link_imu_frame}}
encoders: {{joints: {{deviation: 1.0e-3}}}}
contacts:
  left: {{frame: l_sole, flat: true, force: left}}
  right: {{frame: r_sole, flat: true, force: right}}
start: {{heading: -3.1337, standing: 3}}
noise: {{gyroscope: 2.0e-3, accelerometer: 2.0e-2, foot: 4.0e-3, measured: 2.0e-3}}
settings: {{touch_force: 110, lift_force: 55, settle: 0}}
mapping:
  channels:
    gyroscope:
      {{topic: /imu, fields: [angular_velocity.x, angular_velocity.y, angular_velocity.z]}}
    accelerometer:
      {{topic: /imu, fields: [linear_acceleration.x, linear_acceleration.y, linear_acceleration.z]}}
    joints: {{topic: /joint_states, fields: position, unit: rad}}
    left: {{topic: /left_foot/wrench, fields: [wrench.force.z]}}
    right: {{topic: /right_foot/wrench, fields: [wrench.force.z]}}
  truth:
    position:
      topic: /ground_truth/base
      fields: [pose.position.x, pose.position.y, pose.position.z]
      unit: m
    orientation:
      topic: /ground_truth/base
      fields: [pose.orientation.x, pose.orientation.y, pose.orientation.z, pose.orientation.w]
      rotation: xyzw
"""
MACHINE = """
urdf: machine.urdf
imu: {frame: imu, gyroscope: gyro, accelerometer: accel}
encoders: {joints: {}}
contacts:
  left: {frame: left sole, flat: true, force: force}
  right: {frame: right sole}
start: {standing: 0.2, position: [1, 2, 3], deviations: {tilt: 0.02}}
settings: {touch_force: 100, lift_force: 50}
"""


FUNCTION = """
from dataclasses import dataclass

from hybridctl.legged.estimator import BaseSettings, StartDeviations
from hybridctl.legged.kinematics import Foot
from hybridctl.logs.base_model import BaseChannels, BaseModel


@dataclass(frozen=True)
class Settings(BaseSettings):
    inertial: str = "imu"
    feet: tuple[Foot, ...] = (Foot("left sole", flat=True), Foot("right sole"))
    touch_force: float | None = 100.0
    standing: float | None = 0.2
    start: StartDeviations | None = StartDeviations(tilt=0.02)


def make(settings: Settings) -> BaseModel:
    channels = BaseChannels("gyro", "accel", "joints", ("force", None))
    return BaseModel("machine.urdf", channels, settings, position=(1.0, 2.0, 3.0))
"""


def run(*call):
    done = CliRunner().invoke(cli, [*map(str, call)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def invoke(*call):
    return run("filter", *call)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no recording of the humanoid in {DATA}")
def test_a_humanoid_from_a_bag(tmp_path):
    """Three steps of each foot, 1.0 m along x; the errors are those of the experiment's test."""
    model = tmp_path / "humanoid.yaml"
    model.write_text(HUMANOID.format(urdf=DATA / "icub_genova04.urdf"))
    text = invoke(
        DATA / "icub_walking_ros2",
        *("--model", model, "--out", tmp_path / "out", "--reference", "position,orientation"),
    )
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["touchdowns"] == {"l_sole": 3, "r_sole": 3}
    offset = summary["time_offset"]
    assert offset["compensated"] == 0.0
    assert abs(offset["offset"]) < 3.0 * offset["deviation"]
    assert "; no delay of the inertial sensor seen (" in summary["verdict"]
    assert "results in" in text
    with (
        np.load(tmp_path / "out/estimates.npz") as found,
        np.load(DATA / "icub_walking.npz") as truth,
    ):
        walked = truth["base_pos"][-1] - truth["base_pos"][0]
        estimated = found["position"][-1] - found["position"][0]
        assert np.linalg.norm(estimated - walked) < 0.08
        assert 0.9 < np.linalg.norm(estimated) < 1.1
        turn = Rotation.from_quat(found["orientation"][-1]).as_euler("ZYX")[0]
        assert abs(np.mod(turn - truth["base_rpy"][-1, 2] + np.pi, 2 * np.pi) - np.pi) < 0.02
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "estimates.csv", "estimates.tum", "index.html"} <= names
    errors = summary["reference"]
    assert errors["ate"] < 0.03  # 16.5 mm without alignment in the experiment
    assert abs(errors["end_yaw"]) < 0.02
    assert 0.9 < errors["path_length_ratio"] < 1.1


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that stands for half a second, in the files that the command takes."""
    monkeypatch.chdir(tmp_path)
    times = 0.01 * np.arange(50)
    mount = Rotation.from_euler("xyz", [0.4, -0.3, 1.2])  # of the sensor, in the URDF
    force = np.tile(mount.inv().apply([0.0, 0.0, 9.81]), (50, 1))
    names = [f"{side} joint {k}" for side in ("right", "left") for k in range(3)]
    channels = {
        "gyro": Series(times, np.zeros((50, 3)), unit="rad/s"),
        "accel": Series(times, force, unit="m/s^2"),
        "joints": Series(times, np.tile(0.1 * np.arange(6), (50, 1)), names, "rad"),
        "force": Series(times, np.full((50, 1), 150.0), unit="N"),
    }
    write_log(tmp_path / "log.npz", Log(channels))
    (tmp_path / "machine.urdf").write_text(URDF)
    (tmp_path / "machine.yaml").write_text(MACHINE)
    return tmp_path


def still_track():
    """Where the machine stands, by a slower clock, in a world that is turned and elsewhere.

    Its first stamp is before the first estimate.
    """
    n = 20
    turn = Rotation.from_euler("z", np.full((n, 1), 0.7)).as_quat()
    return PoseTrack(0.005 + 0.02 * np.arange(n), np.tile([4.0, 0.0, 0.5], (n, 1)), turn)


def test_a_reference_and_baselines_beside_the_filter(machine):
    """Everybody knows that a machine stands; the sensor's noise is none."""
    write_tum("still.tum", still_track())
    call = ["log.npz", "--model", "machine.yaml", "--out", "out", "--compare"]
    text = invoke(*call, "--reference", "still.tum", "--alignment", "start")
    assert "Against still.tum: 19 poses over 0.4 s" in text
    assert re.search(r"Side by side, against still.tum", text)
    summary = json.loads((machine / "out/summary.json").read_text())
    assert summary["reference"]["name"] == "still.tum"
    assert summary["time_offset"]["offset"] is None
    unknown = "; delay between inertial sensor and joints unknown"
    assert summary["verdict"].endswith(unknown)
    assert unknown in (machine / "out/index.html").read_text()
    assert summary["reference"]["ate"] < 1e-9
    assert summary["reference"]["end_nees"] < 1e-9
    assert list(summary["compared"]) == ["salted", "invariant", "odometry"]
    for found in summary["compared"].values():
        assert found["reference"]["end_error"] < 1e-6
        np.testing.assert_allclose(found["final_position"], [1.0, 2.0, 3.0], atol=1e-6)
    own = read_tum("out/estimates.tum")
    with np.load("out/estimates.npz") as estimates:
        np.testing.assert_allclose(own.times, estimates["time"], atol=1e-9)
        np.testing.assert_array_equal(own.positions, estimates["position"])
    assert len(read_tum("out/odometry.tum")) == 50
    assert len(read_tum("out/invariant.tum")) == 49  # a filter's first row starts its feet


def test_baselines_without_a_reference_say_where_they_end(machine, undrawn):
    text = invoke("log.npz", "--model", "machine.yaml", "--out", "out", "--compare")
    assert re.search(r"odometry .* 1.000", text)  # narrow consoles break the line after it
    summary = json.loads((machine / "out/summary.json").read_text())
    found = summary["compared"]["odometry"]
    np.testing.assert_allclose(found["final_position"], [1.0, 2.0, 3.0], atol=1e-6)
    assert found["reference"] is None
    assert "reference" not in summary


def test_a_reference_needs_a_legged_base():
    with pytest.raises(InputError, match="reference is for the base of a legged robot"):
        invoke("--model", "ball", "--reference", "truth.tum")


def test_what_is_odd_about_the_log_is_said_and_in_the_summary(machine):
    log = read_log("log.npz")
    force = log["force"].select_rows(np.append(np.arange(50), 7))  # the recorder wrote a row twice
    write_log("log.npz", Log({**log.channels, "force": force}))
    text = invoke("log.npz", "--model", "machine.yaml", "--out", "out", "--set", "standing=0.1")
    odd = "force: 1 stamps occur more than once, 1 of 51 rows with the same values"
    assert f"warning: {odd}" in text
    assert odd in json.loads((machine / "out/summary.json").read_text())["warnings"]


def accelerometer_in_g():
    log = read_log("log.npz")
    wrong = replace(log["accel"], values=log["accel"].values / 9.80665)
    write_log("log.npz", Log({**log.channels, "accel": wrong}))


def test_what_is_wired_wrongly_is_printed_first(machine):
    accelerometer_in_g()
    text = invoke("log.npz", "--model", "machine.yaml", "--out", "out")
    named = "accelerometer looks like g: multiply it by 9.8066"
    flat = " ".join(text.split())
    assert f"not to be trusted: {named}" in flat
    assert flat.index(f"flag: {named}") < flat.index("Can the estimates be trusted?")
    summary = json.loads((machine / "out/summary.json").read_text())
    assert summary["flags"][0].startswith(named)
    assert summary["verdict"].startswith(f"not to be trusted: {named}")
    assert not summary["trusted"]
    phases = {one["channel"]: one["phase"] for one in summary["walk"]["nis_by_phase"]}
    assert phases == {"angles": "all feet", "rest": "all feet"}
    page = (machine / "out/index.html").read_text()
    first, second = page.split("<section", 2)[1:]
    assert "not to be trusted" in first
    assert first.index("not to be trusted") < first.index("Can the estimates be trusted?")
    assert second


def test_a_filter_that_fails_on_wrong_wiring_names_that(machine, monkeypatch):
    """Where the log is sound the error is the filter's own."""

    def fail(*arguments, **options):
        raise SimulationError("the estimate was lost")

    monkeypatch.setattr(BaseEstimator, "run_record", fail)
    with pytest.raises(SimulationError, match="the estimate was lost"):
        invoke("log.npz", "--model", "machine.yaml", "--out", "out")
    accelerometer_in_g()
    with pytest.raises(ImplausibleLogError, match="wired wrongly: accelerometer looks like g"):
        invoke("log.npz", "--model", "machine.yaml", "--out", "other")


@pytest.mark.parametrize(
    ("channel", "times", "reason"),
    [
        ("joints", np.zeros(50), "'joints': all 50 stamps are 0 s"),
        ("gyro", np.tile(0.01 * np.arange(25), 2), "'gyro': stamps go back 1 times"),
        ("joints", 1.7e9 + 0.01 * np.arange(50), "'gyro' .* and 'joints' .* share no time"),
    ],
)
def test_clocks_that_cannot_be_right_are_refused(machine, channel, times, reason):
    log = read_log("log.npz")
    values = log[channel].values + 1e-9 * np.arange(50)[:, None]
    changed = replace(log[channel], times=times, values=values)
    write_log("log.npz", Log({**log.channels, channel: changed}))
    done = CliRunner().invoke(cli, ["filter", "log.npz", "--model", "machine.yaml", "--out", "out"])
    assert done.exit_code == 1
    assert re.search(reason, str(done.exception))


def test_settings_of_the_file_are_changed_from_the_command_line(machine):
    call = ("log.npz", "--model", "machine.yaml", "--out", "out", "--set", "standing=0.1")
    text = invoke(*call, "--set", 'noise={"foot": 1e-3}')
    configuration = json.loads((machine / "out/config.json").read_text())["configuration"]
    assert configuration["standing"] == 0.1
    assert configuration["noise"]["foot"] == 1e-3
    summary = json.loads((machine / "out/summary.json").read_text())
    assert configuration["start"]["tilt"] == 0.02
    np.testing.assert_allclose(summary["final"]["position"], [1.0, 2.0, 3.0], atol=1e-9)
    with np.load(machine / "out/estimates.npz") as found:
        # A foot without force stands by its motion: surely, but not with probability one.
        np.testing.assert_allclose(found["contact"], np.ones((49, 2)), atol=0.01)
    assert "no forces of 'right sole': contacts by motion" in text
    invoke(*call[:3], "--config", "out/config.json", "--out", "again")
    again = json.loads((machine / "again/config.json").read_text())
    assert again["configuration"] == configuration


@pytest.mark.parametrize(
    ("change", "more", "error", "message"),
    [
        (("urdf:", "#"), [], InputError, "machine.yaml: .*urdf"),
        (("{frame: imu", "{fram: imu"), [], InputError, "robot.imu has no key 'fram'"),
        (("touch_force: 100", "touch_force: 40"), [], InputError, "off must be below on"),
        (("standing: 0.2", "standing: long"), [], InputError, "start.standing.*'long'"),
        (("", ""), ["--truth", "log.npz"], InputError, "takes no truth of `record`; --reference"),
        (("", ""), ["--reference", "mocap"], UnknownNameError, "'mocap' is neither a file"),
        (("", ""), ["--reference", "still.tum"], InputError, "take alignment 'start'"),
        (("", ""), ["--set", "gait=trot"], UnknownNameError, "'gait'"),
    ],
)
def test_what_does_not_fit_is_named(machine, change, more, error, message):
    model = machine / "machine.yaml"
    model.write_text(model.read_text().replace(*change))
    write_tum("still.tum", still_track())
    with pytest.raises(error, match=message):
        invoke("log.npz", "--model", "machine.yaml", "--out", "out", *more)


def test_a_function_makes_a_base_as_a_file_does(machine):
    (machine / "walker.py").write_text(FUNCTION)
    found = []
    for model in ("machine.yaml", "walker.py:make"):
        out = f"out of {model}"
        invoke("log.npz", "--model", model, "--out", out, "--set", "lift_force=50")
        with np.load(machine / out / "estimates.npz") as estimates:
            found.append((estimates["position"], estimates["covariance"]))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_settings_of_a_base_are_shown_and_no_motion_is_made_up(machine):
    settings = json.loads(run("record", "machine.yaml", "--settings", "--set", "settle=0.1"))
    assert (settings["standing"], settings["settle"]) == (0.2, 0.1)
    for call in (
        ["record", "machine.yaml"],
        ["identify", "log.npz", "--model", "machine.yaml", "--parameters", "standing"],
    ):
        with pytest.raises(InputError, match="legged base, which only `filter` takes"):
            run(*call)
