"""Recordings of real robots, where they are present: `../shared/data` from the project's root."""

from pathlib import Path

import numpy as np
import pytest
from logs.sample_logs import require
from rich.console import Console

from hybridctl.logs import Mapping, examine, read_log
from hybridctl.logs.info import print_info

DATA = Path(__file__).parents[2].parent / "shared" / "data"
TOSSES = DATA / "cube_tosses" / "cube_tosses.npz"
WALK = DATA / "icub_walking" / "icub_walking.npz"
BAG = DATA / "icub_walking" / "icub_walking_ros2"

TOSS = {
    "time": {"rate": "rate_hz"},
    "segment": {"offsets": "offset", "index": 3},
    "channels": {
        "position": {"fields": "position", "unit": "m", "frame": "table"},
        "orientation": {"fields": "quat_wxyz", "rotation": "wxyz", "frame": "table"},
    },
}
FROM_ARRAYS = {
    "time": {"field": "t_unix"},
    "channels": {
        "joints": {"fields": "q", "labels": "joint_names", "unit": "rad"},
        "gyro": {"fields": "imu_gyro", "unit": "rad/s"},
        "left": {"fields": "fz_left", "unit": "N"},
        "base": {"fields": "base_pos", "unit": "m"},
        "turn": {"fields": "base_rpy", "unit": "rad", "rotation": "rpy"},
    },
}
FROM_TOPICS = {
    "channels": {
        "joints": {"topic": "/joint_states", "fields": "position", "unit": "rad"},
        "gyro": {"topic": "/imu", "fields": [f"angular_velocity.{a}" for a in "xyz"]},
        "left": {"topic": "/left_foot/wrench", "fields": "wrench.force.z"},
        "base": {"topic": "/ground_truth/base", "fields": [f"pose.position.{a}" for a in "xyz"]},
        "turn": {
            "topic": "/ground_truth/base",
            "fields": [f"pose.orientation.{a}" for a in "xyzw"],
            "rotation": "xyzw",
            "time": {"field": "header.stamp"},
        },
    },
}


def present(path):
    if not path.exists():
        pytest.skip(f"the recording {path} is not here")
    return path


@pytest.mark.parametrize("k", [0, 3, 199])
def test_a_toss_is_chosen_by_its_number(k):
    log = read_log(present(TOSSES), Mapping.parse(TOSS), segment=k)
    with np.load(TOSSES) as raw:
        rows = slice(raw["offset"][k], raw["offset"][k + 1])
        np.testing.assert_array_equal(log["position"].values, raw["position"][rows])
        wxyz = raw["quat_wxyz"][rows]
    np.testing.assert_array_equal(log["orientation"].values, wxyz[:, [1, 2, 3, 0]])
    assert log["position"].rate == pytest.approx(148, rel=1e-9)
    assert log.origin_ns == 0
    assert not examine(log).warnings


@pytest.mark.parametrize("source", [BAG, BAG / "icub_walking_ros2.mcap"])
def test_the_bag_of_a_walk_agrees_with_its_arrays(source):
    require("ros2-mcap")
    arrays = read_log(present(WALK), Mapping.parse(FROM_ARRAYS))
    bag = read_log(present(source), Mapping.parse(FROM_TOPICS))
    # a float clock of today resolves 2.4e-7 s, that is 240 ns
    assert abs(bag.origin_ns - arrays.origin_ns) <= 240
    for name in arrays.names:
        a, b = arrays[name], bag[name]
        np.testing.assert_allclose(b.times, a.times, atol=5e-7)
        assert a.unit == b.unit
        if name == "turn":
            same = np.abs((a.values * b.values).sum(axis=1))
            np.testing.assert_allclose(same, 1, atol=1e-12)
        else:
            np.testing.assert_array_equal(a.values, b.values)
    assert arrays["joints"].columns == bag["joints"].columns
    assert 90 < bag["joints"].rate < 110


@pytest.mark.parametrize("path", [TOSSES, WALK, BAG, BAG / "icub_walking_ros2.mcap"])
def test_info_describes_every_recording(path):
    if path not in (TOSSES, WALK):
        require("ros2-mcap")
    console = Console(width=160)
    with console.capture() as capture:
        print_info(present(path), console)
    text = capture.get()
    assert "20854" in text if path == TOSSES else "11.9936 s" in text
