"""Files of legged robots: each loads, and a robot that stands stays where it is."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
from hybridctl.robots import public

from hybridctl.app.commands.filter import FilterRequest, read_base_log
from hybridctl.app.models import find_source
from hybridctl.app.robot_list import list_robot_files
from hybridctl.base.errors import FileFormatError, UnknownNameError
from hybridctl.base.time_series import Series
from hybridctl.logs import Log, read_log, write_log
from hybridctl.logs.base_file import find_urdf
from hybridctl.logs.base_model import BaseModel
from hybridctl.logs.json_mcap import JsonMcapWriter
from hybridctl.logs.legged import filter_base
from hybridctl.logs.mapping import Mapping
from hybridctl.logs.topic_table import CollectedTopic
from hybridctl.mechanics.multibody.robot import Robot

ROBOTS = list_robot_files()
PERIOD, ROWS = 0.01, 40
POSTURES = {"anymal_b": "anymal", "anymal_c": "anymal"}  # in `robots.public`


def is_installed():
    try:
        return bool(distribution("example-robot-data").version)
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not is_installed(), reason="the package example-robot-data is not installed"
)


def made(name: str) -> BaseModel:
    return find_source(name).make()


def standing(model: BaseModel, name: str) -> tuple[Log, list[str]]:
    """The log of a robot whose root is level, each foot with its part of the weight, and joints."""
    robot = Robot.from_urdf(Path(model.urdf))
    estimator = model.settings.build(robot)
    posture = public.MODELS[POSTURES.get(name, name)].posture
    angles = [posture.get(joint, 0.0) for joint in estimator.joints]
    times = PERIOD * np.arange(ROWS)
    inertial, _ = estimator.base.kinematics.base
    force = inertial.T @ [0.0, 0.0, 9.81]
    load = robot.mass * 9.81 / len(estimator.base.feet)
    channels = model.channels
    series = {
        channels.gyroscope: Series(times, np.zeros((ROWS, 3)), unit="rad/s"),
        channels.accelerometer: Series(times, np.tile(force, (ROWS, 1)), unit="m/s^2"),
        channels.joints: Series(times, np.tile(angles, (ROWS, 1)), estimator.joints, "rad"),
    }
    for channel in channels.loads:
        if channel is not None:
            series[channel] = Series(times, np.full(ROWS, load), unit="N")
    return Log(series), list(estimator.joints)


def test_the_robots_that_docs_name_are_there():
    wanted = {"a1", "anymal_b", "anymal_c", "bolt", "go1", "go2", "icub", "solo12", "talos"}
    assert wanted <= set(ROBOTS)


@pytest.mark.parametrize("name", sorted(ROBOTS))
def test_a_robot_that_stands_does_not_move(name):
    """The mapping has all channels, joints by name; the root stays where it is, to rounding."""
    model = made(name)
    log, joints = standing(model, name)
    assert set(log.names) == set(Mapping.parse(model.mapping).channels)
    run = filter_base(log, model)
    root = run.roots[-1]
    np.testing.assert_allclose(root.position, 0.0, atol=1e-6)
    np.testing.assert_allclose(root.velocity, 0.0, atol=1e-6)
    np.testing.assert_allclose(root.orientation[:3], 0.0, atol=1e-6)
    assert not run.result.events
    assert run.contacts[-1].min() > 0.95  # by motion alone a foot stands with probability 0.996
    assert len(joints) >= 6


@pytest.mark.parametrize("suffix", ["npz", "mcap"])
def test_a_log_of_hybridctl_is_read_by_its_own_channels(tmp_path, suffix):
    """The mapping of the file is for the robot's driver; one that is given is still taken."""
    model = made("bolt")
    log, _ = standing(model, "bolt")
    path = tmp_path / f"log.{suffix}"
    write_log(path, log)
    request = FilterRequest("bolt", path)
    assert read_base_log(model, request, path).names == log.names
    if suffix != "npz":
        return
    (tmp_path / "map.yaml").write_text("channels: {joints: {fields: joints/values}}\n")
    mapped = replace(request, mapping=tmp_path / "map.yaml")
    assert read_base_log(model, mapped, path).names == ("joints",)


def test_a_recording_of_the_driver_of_a_go2(tmp_path):
    """One message has all of it: the state of each of 20 motors becomes a column."""
    model = made("go2")
    log, joints = standing(model, "go2")
    with JsonMcapWriter.open(tmp_path / "go2.mcap") as file:
        topic = file.add_topic("/lowstate", "unitree_go/msg/LowState", {"type": "object"})
        order = [
            f"{leg}_{j}_joint" for leg in ("FR", "FL", "RR", "RL") for j in ("hip", "thigh", "calf")
        ]
        for k, time in enumerate(log["gyroscope"].times.tolist()):
            angles = dict(zip(joints, log["joints"].values[k].tolist(), strict=True))
            motors = [{"q": angles[j], "dq": 0.0, "reserve": [0, 0]} for j in order]
            motors += [{"q": 9.0, "dq": 0.0, "reserve": [0, 0]}] * 8
            inertial = {n: log[n].values[k].tolist() for n in ("gyroscope", "accelerometer")}
            message = {"imu_state": inertial, "motor_state": motors, "foot_force": [38, 38, 38, 38]}
            file.write_message(topic, 10**18, time, message)
    found = read_log(tmp_path / "go2.mcap", Mapping.parse(model.mapping))
    by_name = dict(zip(found["joints"].columns, found["joints"].values[0], strict=True))
    assert {joint: by_name[joint] for joint in joints} == pytest.approx(
        dict(zip(joints, log["joints"].values[0], strict=True))
    )
    assert by_name["motor 12"] == 9.0
    root = filter_base(found, model).roots[-1]
    np.testing.assert_allclose(root.position, 0.0, atol=1e-6)


def table(messages):
    topic = CollectedTopic("/a", "a/B")
    for k, message in enumerate(messages):
        topic.add(k, message)
    return topic.make_table()


def test_lists_of_messages_with_numbers_alone_become_columns():
    read = table([{"m": [{"q": 1.0, "on": True}, {"q": 2.0, "on": False}]}] * 3)
    np.testing.assert_array_equal(read.fields["m.q"], [[1.0, 2.0]] * 3)
    assert not read.unusable
    named = table([{"m": [{"q": 1.0, "name": "a"}, {"q": 2.0, "name": "b"}]}])
    assert named.unusable == {"m": "it is a list of messages"}
    stamped = table([{"m": [{"q": 1.0, "at": {"sec": 0, "nanosec": 0}}]}])
    assert stamped.unusable == {"m": "it is a list of messages"}
    arrays = table([{"m": [{"q": 1.0, "spare": [0, 0]}]}])
    assert set(arrays.fields) == {"m.q"}
    grown = table([{"m": [{"q": 1.0}]}, {"m": [{"q": 1.0}, {"q": 2.0}]}])
    assert grown.unusable == {"m.q": "its size changes"}


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(FileFormatError, match="pip install no-such-package"):
        find_urdf("package://no-such-package/a.urdf", tmp_path)
    with pytest.raises(FileFormatError, match=r"example-robot-data has no file a\.urdf"):
        find_urdf("package://example-robot-data/a.urdf", tmp_path)
    with pytest.raises(UnknownNameError, match="did you mean 'go1'"):
        find_source("g01")
    assert find_urdf("a.urdf", tmp_path) == tmp_path / "a.urdf"
