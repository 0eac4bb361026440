"""`live`: lines through standard input and sockets, one stream after the other."""

import io
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from click.testing import CliRunner
from legged.machine import URDF
from mcap.writer import Writer
from oracles.walking_robots import WALKER, Gait, Machine, estimator_of, log
from oracles.walking_robots import robot as estimator_robot

from hybridctl.app.cli import cli
from hybridctl.app.commands.live import answer_clients, find_base_model, listen_at, start_odometry
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.legged.live import LiveSample
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


def lines(count=400):
    """The machine as it stands, with noise of its gyroscope."""
    rng = np.random.default_rng(3)
    for k in range(count):
        yield json.dumps(
            {
                "time": k / 500,
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


@cache
def expected():
    """What the filter finds without lines."""
    return list(find_poses())


def find_poses():
    """The poses after each of the lines, by a filter that reads none."""
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
    found, poses = [json.loads(line) for line in answers], expected()
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


def mcap(messages, *, chunked=True, finish=True, topic="/sensors", encoding="json"):
    """MCAP with these texts as messages of a topic, and others between them, every 2 ms."""
    stream = io.BytesIO()
    writer = Writer(stream, chunk_size=2**14, use_chunking=chunked)
    writer.start(profile="", library="test")
    channels = [
        writer.register_channel(name, code, 0)
        for name, code in ((topic, encoding), ("/other", "json"), ("/image", "cdr"))
    ]
    for k, text in enumerate(messages):
        for channel, data in zip(channels, (text.encode(), b'{"a": 1}', b"\0"), strict=True):
            stamp = 2_000_000 * k
            writer.add_message(channel, log_time=stamp, data=data, publish_time=stamp)
    if finish:
        writer.finish()
    return stream.getvalue()


@pytest.mark.parametrize(
    "kind",
    [
        "cut",
        "without time",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("chunks", "no chunks")),
    ],
)
def test_messages_of_mcap_have_the_answers_of_lines(files, kind):
    """Chunks; a sender that does not close its file; and stamps that are those of messages."""
    texts = list(lines())
    if kind == "without time":
        texts = [text.replace('"time": ', '"was": ') for text in texts]
    content = mcap(texts, chunked=kind in ("chunks", "without time"), finish=kind != "cut")
    call = ["live", "--model", "machine.yaml", "--set", *QUICK]
    done = CliRunner().invoke(cli, call, input=content, catch_exceptions=False)
    assert done.exit_code == 0
    check(done.stdout.splitlines())
    assert ("the file is cut, or its sender has gone" in done.stderr) == (kind == "cut")


def test_mcap_that_is_damaged_or_has_no_samples(files):
    call, content = ["live", "--model", "machine.yaml", "--set", *QUICK], mcap(lines(20))
    done = CliRunner().invoke(cli, call, input=mcap(lines(300), encoding="cdr"))
    assert (done.exit_code, done.output) == (0, "")
    middle = len(content) // 3
    damaged = content[:middle] + bytes(200) + content[middle + 200 :]
    done = CliRunner().invoke(cli, call, input=damaged)
    assert isinstance(done.exception, FileFormatError)
    assert "MCAP is damaged" in str(done.exception)
    done = CliRunner().invoke(cli, call, input=b"\x89PNG\r\n\x1a\n")
    assert "neither lines of JSON nor MCAP" in str(done.exception)


def test_a_client_with_damaged_mcap_ends_its_own_stream(files):
    start = start_odometry(find_base_model("machine.yaml", None, QUICK))
    with listen_at("localhost:0") as listening:
        served = threading.Thread(target=answer_clients, args=(start, listening, 2))
        served.start()
        for content in (b"\x89PNG\r\n\x1a\n", mcap(lines())):
            with socket.create_connection(listening.getsockname()) as client:
                sender = threading.Thread(target=send_all, args=(client, content))
                sender.start()
                with client.makefile("rb") as answers:
                    found = list(answers)
                sender.join()
        check(found)
        served.join(timeout=30.0)


def send_all(client, content):
    """Send bytes and say that there are no more."""
    with suppress(OSError):  # a client that is passed over cannot send on
        client.sendall(content)
        client.shutdown(socket.SHUT_WR)


def walker_at_1_khz(folder, duration):
    """A log of the five-link walker: its readings, the robot's file, and a line of each row."""
    estimator = estimator_of(WALKER)
    readings = log(estimator, WALKER, Gait(), duration, 1000.0, seed=5).readings
    machine = Machine.of(WALKER)
    feet = ", ".join(f"{foot}: {{frame: {foot}, force: {foot}}}" for foot in machine.feet)
    path = folder / "walker.yaml"
    path.write_text(
        f"urdf: {machine.urdf}\nimu: {{frame: {estimator.settings.inertial}}}\n"
        f"encoders: {{joints: {{}}}}\ncontacts: {{{feet}}}\n"
    )
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
    return readings, path, sent


OF_WALKER = "opening=0.5", "uniform_clock=false", "touch_force=60", "lift_force=40"


@pytest.mark.slow
def test_a_log_at_1_khz_has_the_numbers_of_the_filter_of_logs(tmp_path):
    """A log of the five-link walker through JSON and back, against the filter of the whole log."""
    readings, path, sent = walker_at_1_khz(tmp_path, 1.5)
    model = find_base_model(str(path), None, OF_WALKER)
    offline = model.settings.build(estimator_robot(WALKER))
    steps = {s.time: s.estimate for s in offline.run(readings).steps}
    call = ["live", "--model", str(path)]
    for change in OF_WALKER:
        call += ["--set", change]
    done = CliRunner().invoke(cli, call, input="\n".join(sent), catch_exceptions=False)
    answers = [json.loads(line) for line in done.output.splitlines()]
    assert len(answers) == 1501 - 501 - 166  # the opening, and until it is caught up with
    for answer in answers:
        rate = readings.inertial.values[round(1000.0 * answer["time"]), :3]
        root = offline.root(steps[answer["time"]], rate)
        for name in ("position", "orientation", "velocity", "covariance"):
            np.testing.assert_array_equal(answer[name], getattr(root, name))


def serve(odometry, sent):
    """The answers without a pace, and how long each took in s."""
    answers, lasted = [], []
    for line in sent:
        began = time.perf_counter()
        answers.append(odometry.answer_line(line))
        lasted.append(time.perf_counter() - began)
    return answers, np.array(lasted)


@pytest.mark.slow
def test_samples_that_come_at_1_khz_are_answered_in_time(tmp_path):
    """Two seconds of the walker, each line at its time, through the pipes of a process.

    A queue that one server works off, with the times that answers take without a pace, has the
    delays of Lindley's recursion, w' = max(0, w + s - T). Those of pipes and of a machine that does
    other work meanwhile come on top: four times these delays are allowed, and two seconds, in
    which another process may have the processor.
    """
    _, path, sent = walker_at_1_khz(tmp_path, 2.0)
    plain, lasted = serve(start_odometry(find_base_model(str(path), None, OF_WALKER))(), sent)
    waits = [0.0]
    for seconds in lasted:
        waits.append(max(0.0, waits[-1] + seconds - 1e-3))
    allowed = 2.0 + 4.0 * (max(waits) + lasted.max())
    call = [sys.executable, "-m", "hybridctl", "live", "--model", str(path)]
    for change in OF_WALKER:
        call += ["--set", change]
    arrived = []
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        reader = threading.Thread(
            target=lambda: arrived.extend((time.perf_counter(), line) for line in process.stdout)
        )
        reader.start()
        process.stdin.write(b"\n")  # a blank line, and the time to import what it needs
        process.stdin.flush()
        time.sleep(1.0 + 20.0 * lasted.max())
        left, began = {}, time.perf_counter()
        for k, line in enumerate(sent):
            time.sleep(max(0.0, began + 1e-3 * k - time.perf_counter()))
            left[k] = time.perf_counter()
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        process.stdin.close()
        reader.join(timeout=60.0)
        assert process.wait(timeout=60.0) == 0
    assert [line for _, line in arrived] == [answer for answer in plain if answer is not None]
    late = [at - left[round(1000.0 * json.loads(line)["time"])] for at, line in arrived]
    assert min(late) > 0.0
    shown = {"median": np.median(late), "99 %": np.quantile(late, 0.99), "worst": max(late)}
    print("late by", ", ".join(f"{name} {1e3 * value:.2f} ms" for name, value in shown.items()))
    assert max(late) < allowed, (shown, allowed)


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
