"""Clocks that stand still, go back or differ: said by `examine`, refused where order is lost."""

import numpy as np
import pytest
from logs.sample_logs import ORIGIN, require

from hybridctl import Series
from hybridctl.base.errors import InputError
from hybridctl.logs import Log, Mapping, examine, read_log
from hybridctl.logs.stamp_faults import describe_stamp_fault, find_first_rows

TIMES = np.arange(400) * 0.01
VALUES = np.random.default_rng(3).normal(size=(400, 2))


def fault(times):
    """The fault of a channel, by `describe_stamp_fault`, `examine` and `check_stamps` alike."""
    log = Log({"imu": Series(times, np.arange(len(times)) + 0.5)})
    found = describe_stamp_fault(log["imu"])
    assert examine(log).channels[0].fault == found
    if found:
        assert f"imu: {found}" in examine(log).warnings
        with pytest.raises(InputError, match=r"channel 'imu': .*take other stamps"):
            log.check_stamps(["imu", "absent"])
    else:
        log.check_stamps(["imu"])
    return found


def test_stamps_in_order_late_or_in_files_in_the_wrong_order_have_no_fault():
    late = TIMES.copy()
    late[[20, 30]] = late[[30, 20]]
    assert fault(TIMES) == ""
    assert fault(late) == ""
    assert fault(np.concatenate([TIMES[200:], TIMES[:200]])) == ""
    assert fault(np.append(TIMES, TIMES[3])) == ""  # a row that comes 4 s late
    assert fault(np.concatenate([TIMES[150:300], TIMES[:150], TIMES[300:]])) == ""


def test_a_clock_that_stands_still_or_is_set_back_is_a_fault():
    assert "all 400 stamps are 0 s, the clock stands still" in fault(0.0 * TIMES)
    assert "go back 1 times, and rows of 3.97 s" in fault(np.concatenate([TIMES, TIMES]))
    assert "go back 1 times" in fault(np.tile(TIMES[:50], 2))  # 0.5 s twice
    assert "go back" in fault(np.random.default_rng(1).permutation(TIMES))


def test_zero_stamps_of_a_clock_from_1970_are_left_out_by_name(tmp_path):
    times = 1.7e9 + TIMES
    times[[0, 7]] = 0.0
    path = tmp_path / "log.npz"
    np.savez(path, t=times, x=VALUES)
    log = read_log(path)
    np.testing.assert_array_equal(log["x"].values, np.delete(VALUES, [0, 7], axis=0))
    assert "x: 2 rows whose stamp is zero are left out" in log.notes
    times[3] = 12.0
    np.savez(path, t=times, x=VALUES)
    with pytest.raises(InputError, match=r"'t' are of two clocks: 1 as 12 s, others as 1.7e\+09"):
        read_log(path)


def test_rows_written_twice_are_said_and_counted_once():
    series = Series(np.repeat(TIMES, 2), np.repeat(VALUES, 2, axis=0))
    np.testing.assert_array_equal(find_first_rows(series), np.arange(0, 800, 2))
    report = examine(Log({"c": series}))
    assert report.channels[0].repeated == 400
    assert any("400 of 800 rows with the same values" in text for text in report.warnings)
    other = Series(np.repeat(TIMES, 2), np.resize(VALUES, (800, 2)) + np.arange(800)[:, None])
    assert len(find_first_rows(other)) == 800


def test_half_of_the_values_repeated_is_said():
    slow = Series(TIMES, np.repeat(VALUES[::2], 2, axis=0))
    assert any("200 of 400 rows have the values of the row before" in w for w in said(slow))
    assert said(Series(TIMES, VALUES)) == ()
    rest = np.where(TIMES[:, None] < 2.0, VALUES, VALUES[-1])  # comes to rest after 2 s
    assert said(Series(TIMES, rest)) == ()
    assert said(Series(TIMES, np.round(VALUES).clip(0, 1))) == ()  # as flags of contacts


def said(series):
    return examine(Log({"c": series})).warnings


@pytest.fixture
def bag(tmp_path):
    """Write a bag of one topic whose recorder is `late` nanoseconds behind `header.stamp`."""
    require("ros2-mcap")
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    kind, types = "geometry_msgs/msg/PointStamped", store.types

    def write(late):
        with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
            topics = [writer.add_connection(t, kind, typestore=store) for t in ("/a", "/b")]
            for k, delay in enumerate(late):
                stamp = ORIGIN + k * 10**7
                sent = types["builtin_interfaces/msg/Time"](stamp // 10**9, stamp % 10**9)
                head = types["std_msgs/msg/Header"](sent, "base")
                message = types[kind](head, types["geometry_msgs/msg/Point"](float(k), 0.0, 0.0))
                for topic in topics:
                    writer.write(topic, stamp + int(delay), store.serialize_cdr(message, kind))
        return tmp_path / "bag"

    return write


@pytest.mark.parametrize(
    ("late", "is_said"),
    [
        (np.full(50, 500), False),
        (np.full(50, 3 * 10**8), True),
        (np.tile([0, 9 * 10**6], 25), True),
    ],
)
def test_a_recorder_that_stamps_late_is_said(bag, late, is_said):
    notes = read_log(bag(late)).notes
    assert any("/a: stamps are the recorder's" in note for note in notes) == is_said


def test_channels_of_two_clocks_are_said(bag):
    source = {"fields": "point.x", "topic": "/a"}
    sent = {**source, "topic": "/b", "time": {"field": "header.stamp"}}
    log = read_log(bag(np.full(50, 10)), Mapping.parse({"channels": {"a": source, "b": sent}}))
    assert "two clocks: b by `header.stamp`, a by the recorder's stamps" in log.notes


def test_a_segment_of_a_topic_is_refused_by_name(bag):
    mapping = {
        "segment": {"offsets": "w", "index": 0},
        "channels": {"a": {"fields": "point.x", "topic": "/a"}},
    }
    with pytest.raises(InputError, match=r"segment.offsets 'w': topics have no segments"):
        read_log(bag(np.zeros(5)), Mapping.parse(mapping))
