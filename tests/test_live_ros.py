"""`live` with ROS messages in and `nav_msgs/Odometry` out, as a process and a socket have them."""

import io
import json
import socket
import threading
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from mcap.reader import make_reader
from oracles.ros_walks import MAPPING, Offline, mcap, messages, robot_file, walk
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore
from scipy.spatial.transform import Rotation
from test_filter_base_command import HUMANOID

from hybridctl.app.cli import cli
from hybridctl.app.commands.live import (
    McapWriter,
    answer_clients,
    find_base_model,
    find_frames,
    listen_at,
    start_odometry,
)
from hybridctl.base.errors import InputError
from hybridctl.legged.space import RootPose
from hybridctl.logs import read_raw
from hybridctl.logs.live_odometry import Odometry, Refusal
from hybridctl.logs.odometry_messages import RateSensor, find_twist

DATA = Path(__file__).parents[2] / "shared/data/icub_walking"
DELAYS = (3_700_000, 3_700_000, 6_000_000)
STEP = 1e-6  # of differences: their error is of order STEP^2, and 1e-16 / STEP of rounding


def run(path, content, *options):
    """The command with bytes on standard input."""
    call = ["live", "--model", str(path), *options]
    done = CliRunner().invoke(cli, call, input=content, catch_exceptions=False)
    assert done.exit_code == 0
    return done


def read_back(content, folder):
    """Topic, stamp and message of each message, by the reader of rosbags."""
    path = folder / "odometry.mcap"
    path.write_bytes(content)
    store = get_typestore(Stores.ROS2_HUMBLE)
    with Reader(path) as reader:
        (one,) = reader.connections
        assert one.msgtype == "nav_msgs/msg/Odometry"
        return [
            (one.topic, stamp, store.deserialize_cdr(data, one.msgtype))
            for _, stamp, data in reader.messages()
        ]


def numbers(message, *names):
    return np.array([getattr(message, name) for name in names])


def test_odometry_as_messages_is_that_of_lines(tmp_path):
    """Read back by two libraries and by the reader of logs: the numbers to the last bit."""
    extra = "odometry: {topic: /state/odom, child_frame: base_link}\n"
    path, content = robot_file(tmp_path, extra=extra), mcap(messages(DELAYS))
    lines = [
        json.loads(line, parse_float=Decimal) for line in run(path, content).stdout.splitlines()
    ]
    assert len(lines) > 90
    out = run(path, content, "--output-format", "mcap").stdout_bytes
    found = read_back(out, tmp_path)
    assert len(found) == len(lines)
    for (topic, stamp, message), line in zip(found, lines, strict=True):
        assert (topic, stamp) == ("/state/odom", int(line["time"].scaleb(9)))
        sent = message.header.stamp
        assert sent.sec * 10**9 + sent.nanosec == stamp
        assert (message.header.frame_id, message.child_frame_id) == ("odom", "base_link")
        line = {name: np.array(line[name], dtype=np.float64) for name in list(line)[1:5]}
        pose, covariance = message.pose.pose, line["covariance"]
        np.testing.assert_array_equal(numbers(pose.position, *"xyz"), line["position"])
        np.testing.assert_array_equal(numbers(pose.orientation, *"xyzw"), line["orientation"])
        rows = message.pose.covariance.reshape(6, 6)
        np.testing.assert_array_equal(rows[:3, :3], covariance[3:6, 3:6])
        np.testing.assert_array_equal(rows[3:, 3:], covariance[:3, :3])
        np.testing.assert_array_equal(rows[:3, 3:], covariance[3:6, :3])
        own = Rotation.from_quat(line["orientation"]).inv().apply(line["velocity"])
        # One product of three numbers.
        np.testing.assert_allclose(
            numbers(message.twist.twist.linear, *"xyz"), own, rtol=1e-14, atol=1e-15
        )
    reader = make_reader(io.BytesIO(out))
    assert reader.get_header().profile == "ros2"
    assert sum(1 for _ in reader.iter_messages()) == len(lines)
    table = read_raw(tmp_path / "odometry.mcap").tables["/state/odom"]
    np.testing.assert_array_equal(
        table.fields["pose.pose.position.x"], [float(line["position"][0]) for line in lines]
    )


@pytest.mark.slow
def test_angular_velocity_is_that_of_the_log_less_its_bias(tmp_path):
    """By the estimate of the whole log, and the root's axes of the URDF."""
    path, content = robot_file(tmp_path), mcap(messages(DELAYS))
    model = find_base_model(str(path))
    (tmp_path / "walk.mcap").write_bytes(content)
    offline = Offline(model, tmp_path / "walk.mcap")
    rates = dict(
        zip(offline.readings.inertial.times, offline.readings.inertial.values, strict=True)
    )
    expected = {stamp: (root, estimate) for stamp, root, estimate in offline.roots()}
    out = run(path, content, "--output-format", "mcap").stdout_bytes
    for _, stamp, message in read_back(out, tmp_path)[::10]:
        root, estimate = expected[stamp]
        assert message.child_frame_id == find_frames(model)[0].child_frame
        # The sensor of the walker has the axes of its root.
        rate = rates[root.time][:3] - estimate.mean[10:13]
        np.testing.assert_allclose(numbers(message.twist.twist.angular, *"xyz"), rate, rtol=1e-12)
        rows = message.twist.covariance.reshape(6, 6)
        noise = offline.estimator.base.noise.gyroscope**2 / 0.01  # of 100 Hz
        white = rows[3:, 3:] - estimate.covariance[9:12, 9:12]
        np.testing.assert_allclose(white, noise * np.eye(3), rtol=1e-6, atol=1e-9 * noise)
        np.testing.assert_array_equal(rows[:3, 3:], np.zeros((3, 3)))


def test_the_twist_of_a_root_by_differences():
    """Its covariance by the change of R^T v with turns in the world and with the velocity."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        turn, velocity = Rotation.random(random_state=rng), rng.normal(size=3)
        half = rng.normal(size=(9, 9))
        covariance, mount = half @ half.T, Rotation.random(random_state=rng).as_matrix()
        root = RootPose(0.0, np.zeros(3), turn.as_quat(), velocity, covariance)
        twist = find_twist(Odometry(0, 0.0, root, np.zeros(2)), RateSensor(mount, 0.1))

        def velocity_of(d, turn=turn, velocity=velocity):
            return (Rotation.from_rotvec(d[:3]) * turn).inv().apply(velocity + d[6:])

        eye = STEP * np.eye(9)
        by = np.array([(velocity_of(d) - velocity_of(-d)) / (2.0 * STEP) for d in eye]).T
        np.testing.assert_allclose(twist.linear, velocity_of(np.zeros(9)), atol=1e-14)
        expected = by @ covariance @ by.T
        # Differences are right to 1e-10 here; the covariance has numbers of up to some tens.
        np.testing.assert_allclose(twist.covariance[:3, :3], expected, atol=1e-7)
        # No rate was measured, so that none is claimed to be known.
        assert (np.diag(twist.covariance)[3:] > 1e5).all()


@pytest.mark.slow
def test_a_recorded_humanoid_has_the_numbers_of_its_log(tmp_path):
    """The bag of a walking humanoid, as another recorder wrote it: every answer to the last bit."""
    if not DATA.is_dir():
        pytest.skip(f"the recording is not in {DATA}")
    text = HUMANOID.format(urdf=DATA / "icub_genova04.urdf")
    path = tmp_path / "icub.yaml"
    path.write_text(text.replace("settle: 0}", "settle: 0, uniform_clock: false}"))
    bag = next((DATA / "icub_walking_ros2").glob("*.mcap"))
    offline = Offline(find_base_model(str(path)), bag)
    expected = {stamp: root for stamp, root, _ in offline.roots()}
    lines = run(path, bag.read_bytes()).stdout.splitlines()
    assert len(lines) == 527  # of 1188: without the opening, and until it is caught up with
    for line in lines:
        found = json.loads(line, parse_float=Decimal)
        root = expected[int(found["time"].scaleb(9))]
        for name in ("position", "orientation", "velocity", "covariance"):
            given = np.array(found[name], dtype=np.float64)
            np.testing.assert_array_equal(given, getattr(root, name))


def test_lines_of_json_become_messages_and_errors_go_to_stderr(tmp_path):
    _, readings = walk()
    path = robot_file(tmp_path)
    texts = ["no line"]
    for k, values in enumerate(readings.inertial.values):
        feet = {foot: load.values[k, 0] for foot, load in readings.loads.items()}
        content = {
            "time": 0.01 * k + (0.05 if k > 150 else 0.0),
            "gyroscope": values[:3].tolist(),
            "accelerometer": values[3:].tolist(),
            "joints": readings.angles.values[k].tolist(),
            **feet,
        }
        texts.append(json.dumps(content))
    content = "\n".join(texts).encode()
    lines = list(map(json.loads, run(path, content).stdout.splitlines()))
    done = run(path, content, "--output-format", "mcap")
    found = read_back(done.stdout_bytes, tmp_path)
    assert [1e-9 * stamp for _, stamp, _ in found] == pytest.approx(
        [line["time"] for line in lines[1:]], abs=1e-9
    )
    assert "error: a line must be a JSON object" in done.stderr
    assert "flag: no sample for 60 ms, at 1.56 s" in done.stderr


def test_a_stamp_that_ros_cannot_say_is_told(capsys):
    pose = RootPose(-1.0, np.zeros(3), np.array([0.0, 0.0, 0.0, 1.0]), np.zeros(3), np.eye(9))
    out = io.BytesIO()
    frames, sensor = find_frames(find_base_model("go1"))
    writer = McapWriter(out, frames, sensor)
    writer.write(Odometry(-(10**9), -1.0, pose, np.zeros(4)))
    writer.write(Refusal("what is wrong"))
    writer.finish()
    assert sum(1 for _ in make_reader(io.BytesIO(out.getvalue())).iter_messages()) == 0
    said = capsys.readouterr().err
    assert "a stamp in ROS must be from 0 to 2147483648 s, got -1 s" in said
    assert "error: what is wrong" in said


def test_a_mapping_beside_the_robots_file(tmp_path):
    """The file of the robot has the topics of another driver."""
    path = robot_file(tmp_path, mapping=MAPPING.replace("/imu", "/sensors/imu"))
    (tmp_path / "topics.yaml").write_text(MAPPING)
    content = mcap(messages()[:300])
    with pytest.raises(InputError, match="'/sensors/imu': it has sent nothing"):
        run(path, content)
    run(path, content, "--mapping", str(tmp_path / "topics.yaml"))


@pytest.mark.slow
def test_a_client_of_a_socket_has_its_own_file(tmp_path):
    """Two clients, the first of which sends what does not fit the mapping."""
    path, content = robot_file(tmp_path), mcap(messages(DELAYS))
    model = find_base_model(str(path))
    frames, sensor = find_frames(model)
    make = partial(McapWriter, frames=frames, sensor=sensor)
    with listen_at("localhost:0") as listening:
        call = (start_odometry(model), listening, 2, make)
        served = threading.Thread(target=answer_clients, args=call)
        served.start()
        for sent in (mcap(messages()[:20], schemas=False), content):
            with socket.create_connection(listening.getsockname()) as client:
                sender = threading.Thread(
                    target=lambda to=client, sent=sent: (
                        to.sendall(sent),
                        to.shutdown(socket.SHUT_WR),
                    )
                )
                sender.start()
                with client.makefile("rb") as answers:
                    found = answers.read()
                sender.join()
        served.join(timeout=30.0)
        assert not served.is_alive()
    assert len(read_back(found, Path(tmp_path))) > 90
