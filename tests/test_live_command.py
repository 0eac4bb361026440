"""`live`: lines through standard input and sockets, one stream after the other."""

import json
import socket
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from estimation.legged.machine import URDF
from oracles.walking_robots import WALKER, Gait, Machine, estimator_of, log
from oracles.walking_robots import robot as estimator_robot

from hybridctl.app.cli import cli
from hybridctl.app.commands.live import answer_clients, find_base_model, listen_at, start_odometry
from hybridctl.errors import InputError
from hybridctl.estimation.legged.live import LiveSample
from hybridctl.mechanics.multibody.robot import Robot

MACHINE = """
urdf: machine.urdf
imu: {frame: imu}
encoders: {joints: {}}
contacts: {left: {frame: left sole, force: left}, right: {frame: right sole}}
start: {heading: 0.5, position: [1, 2, 3]}
"""
JOINTS = [f"{side} joint {k}" for side in ("left", "right") for k in range(3)]
QUICK = ("opening=0.5",)  # s, so that the filter begins after 251 of the lines


def lines(count=400, period=2e-3):
    """The machine as it stands, with noise of its gyroscope."""
    rng = np.random.default_rng(3)
    for k in range(count):
        yield json.dumps(
            {
                "time": k * period,
                "gyroscope": (1e-2 * rng.normal(size=3)).tolist(),
                "accelerometer": [0.0, 0.0, 9.81],
                "joints": dict.fromkeys(JOINTS, 0.1),
                "left": 30.0,
            }
        )


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The machine in its files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "machine.urdf").write_text(URDF)
    (tmp_path / "machine.yaml").write_text(MACHINE)


def expected():
    """What the filter finds without lines."""
    model = find_base_model("machine.yaml", None, QUICK)
    estimator = model.settings.build(Robot.from_urdf(model.urdf))
    live = estimator.live(heading=0.5, position=(1.0, 2.0, 3.0))
    for line in lines():
        said = json.loads(line)
        angles = np.full(6, 0.1)
        loads = {"left sole": said["left"]}
        vectors = np.array(said["gyroscope"]), np.array(said["accelerometer"])
        pose = live.step(LiveSample(said["time"], *vectors, angles, loads))
        if pose is not None:
            yield pose


def check(answers):
    found, poses = [json.loads(line) for line in answers], list(expected())
    assert len(poses) == 400 - 251 - 83  # four of those that have waited with each line
    assert [f["time"] for f in found] == [pose.time for pose in poses]
    for name in ("position", "orientation", "velocity", "covariance"):
        values = [getattr(pose, name) for pose in poses]
        np.testing.assert_array_equal([f[name] for f in found], values)
    assert found[-1]["contacts"] == {"left sole": 1.0, "right sole": 1.0}
    np.testing.assert_allclose(found[-1]["position"], [1.0, 2.0, 3.0], atol=0.05)


def test_lines_of_standard_input(files):
    call = ["live", "--model", "machine.yaml", "--set", *QUICK]
    done = CliRunner().invoke(cli, call, input="\n".join(lines()), catch_exceptions=False)
    assert done.exit_code == 0
    check(done.output.splitlines())


@pytest.mark.slow
def test_a_log_at_1_khz_has_the_numbers_of_the_filter_of_logs(tmp_path):
    """A log of the five-link walker through JSON and back, against the filter of the whole log."""
    estimator = estimator_of(WALKER)
    readings = log(estimator, WALKER, Gait(), 1.5, 1000.0, seed=5).readings
    machine = Machine.of(WALKER)
    feet = ", ".join(f"{foot}: {{frame: {foot}, force: {foot}}}" for foot in machine.feet)
    path = tmp_path / "walker.yaml"
    path.write_text(
        f"urdf: {machine.urdf}\nimu: {{frame: {estimator.settings.inertial}}}\n"
        f"encoders: {{joints: {{}}}}\ncontacts: {{{feet}}}\n"
    )
    changes = "opening=0.5", "uniform_clock=false", "touch_force=60", "lift_force=40"
    model = find_base_model(str(path), None, changes)
    offline = model.settings.build(estimator_robot(WALKER))
    steps = {s.time: s.estimate for s in offline.run(readings).steps}
    sent = []
    for k, values in enumerate(readings.inertial.values):
        sent.append(
            json.dumps(
                {
                    "time": readings.inertial.times[k],
                    "gyroscope": values[:3].tolist(),
                    "accelerometer": values[3:].tolist(),
                    "joints": readings.angles.values[k].tolist(),
                    **{foot: s.values[k, 0] for foot, s in readings.loads.items()},
                }
            )
        )
    call = ["live", "--model", str(path)]
    for change in changes:
        call += ["--set", change]
    done = CliRunner().invoke(cli, call, input="\n".join(sent), catch_exceptions=False)
    answers = [json.loads(line) for line in done.output.splitlines()]
    assert len(answers) == 1501 - 501 - 166  # the opening, and until it is caught up with
    for answer in answers:
        rate = readings.inertial.values[round(1000.0 * answer["time"]), :3]
        root = offline.root(steps[answer["time"]], rate)
        for name in ("position", "orientation", "velocity", "covariance"):
            np.testing.assert_array_equal(answer[name], getattr(root, name))


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_clients_of_a_socket_begin_anew(files, tmp_path, kind):
    if kind == "unix" and not hasattr(socket, "AF_UNIX"):
        pytest.skip("this system has no Unix sockets")
    address = "localhost:0" if kind == "tcp" else str(tmp_path / "s")
    start = start_odometry(find_base_model("machine.yaml", None, QUICK))
    with listen_at(address) as listening:
        served = threading.Thread(target=answer_clients, args=(start, listening, 3))
        served.start()
        for ends_early in (False, True, False):
            with socket.socket(listening.family) as client:
                client.connect(listening.getsockname())
                if ends_early:
                    continue
                sender = threading.Thread(
                    target=lambda to=client: (
                        to.sendall("\n".join(lines()).encode()),
                        to.shutdown(socket.SHUT_WR),
                    )
                )
                sender.start()
                with client.makefile("rb") as answers:
                    check(answers)
                sender.join()
        served.join(timeout=30.0)
        assert not served.is_alive()


def test_what_cannot_be_run_live_is_named(files):
    with pytest.raises(InputError, match="'ball' must be a legged base"):
        find_base_model("ball", None, ())
    with pytest.raises(InputError, match="HOST:PORT or the path"):
        listen_at("host:port")
    shown = CliRunner().invoke(cli, ["live", "--model", "machine.yaml", "--settings"])
    assert json.loads(shown.output)["inertial"] == "imu"
