"""ROS messages live: the numbers of the log of the same bag, their order, and what is refused."""

import io
import json
import re
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from oracles.ros_walks import (
    MAPPING,
    ORIGIN,
    STORE,
    TOGETHER,
    TYPES,
    Offline,
    Sent,
    mcap,
    messages,
    robot_file,
    shuffled,
    walk,
)

from hybridctl.app.commands.live import answer_stream, find_base_model, start_odometry
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs.live_clock import TopicClock
from hybridctl.logs.live_lines import SampleReader
from hybridctl.logs.live_odometry import LiveOdometry
from hybridctl.logs.live_stream import read_messages
from hybridctl.logs.live_topics import TopicSamples
from hybridctl.logs.mapping import Mapping, TimeSource
from hybridctl.logs.raw import RawTable
from hybridctl.logs.stamp_order import StampedItem, StampOrder
from hybridctl.logs.stamps import find_stamps
from hybridctl.logs.topic_table import UnfitValue, find_field, flatten_message

PERIOD = 10_000_000  # ns, of the walk
ARRAYS = ("position", "orientation", "velocity", "covariance")


def answers(model, content, wait=0.02):
    """Odometry and errors for a stream, as lines."""
    out = io.BytesIO()
    answer_stream(start_odometry(model, None, wait)(), io.BytesIO(content), out)
    found = [json.loads(line, parse_float=Decimal) for line in out.getvalue().splitlines()]
    errors = [line["error"] for line in found if "error" in line]
    return [line for line in found if "error" not in line], errors


def compare(model, path, found):
    """Compare lines with the filter of the log in a file, to the last bit; return the filter."""
    offline = Offline(model, path)
    expected = {stamp: root for stamp, root, _ in offline.roots()}
    for line in found:
        root = expected[int(line["time"].scaleb(9))]
        for name in ARRAYS:
            given = np.array(line[name], dtype=np.float64)
            np.testing.assert_array_equal(given, getattr(root, name))
    assert len(offline.result.events) > 8  # feet have come and gone
    return offline


@pytest.mark.parametrize(
    ("delays", "rates", "settings", "mapping"),
    [
        ((3_700_000, 3_700_000, 6_000_000), (1, 1), "weight: 200.0", MAPPING),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ((0, 0, 0), (1, 1), "", MAPPING),
                ((-2_500_000, 1, 2_000_000), (2, 3), "ground: 0.0, settle: 0.03", MAPPING),
                ((0, 0, 0), (1, 1), "weight: 200.0", TOGETHER),
                ((4_000_000, 0, 0), (1, 1), "time_offset: 0.013", TOGETHER),
            )
        ),
    ],
    ids=["each", "one clock", "slower", "together", "late inertial"],
)
def test_a_bag_has_the_numbers_of_its_log(tmp_path, delays, rates, settings, mapping):
    """Each topic with stamps of its own, by `header.stamp` or by the recorder.

    201 samples less 71 of the opening, and those in which it is caught up with.
    """
    model = find_base_model(str(robot_file(tmp_path, mapping, settings)))
    path, content = tmp_path / "walk.mcap", mcap(messages(delays, rates))
    path.write_bytes(content)
    found, errors = answers(model, content)
    assert errors == []
    assert len(found) > 90
    offline = compare(model, path, found)
    shared = all(
        np.array_equal(load.times, offline.readings.inertial.times)
        for load in offline.readings.loads.values()
    )
    assert shared == (rates == (1, 1) and not any(delays[1:]))


@pytest.mark.slow
def test_a_bag_whose_messages_come_late_has_the_numbers_of_its_log(tmp_path):
    """In chunks, as recorders write them, in which topics are up to 15 ms late."""
    model = find_base_model(str(robot_file(tmp_path)))
    sent = shuffled(messages((3_700_000, 3_700_000, 6_000_000)), 15_000_000)
    path, content = tmp_path / "walk.mcap", mcap(sent, chunked=True)
    path.write_bytes(content)
    found, errors = answers(model, content)
    assert errors == []
    assert len(found) > 90
    compare(model, path, found)


class Recorder:
    """A filter that keeps its samples, as text, and knows no root."""

    contacts = estimate = rate = None

    def __init__(self):
        self.samples = []

    def step(self, sample):
        self.samples.append(repr(sample))


def samples_of(path, content, wait=0.02):
    """Samples, as text, and errors of a stream."""
    model = find_base_model(str(path))
    joints, feet = walk()[0].joints, ("left_foot", "right_foot")
    made = TopicSamples(Mapping.parse(model.mapping), model.channels, joints, feet, wait)
    odometry = LiveOdometry(SampleReader(model.channels, joints, feet), Recorder(), made)
    out = io.BytesIO()
    answer_stream(odometry, io.BytesIO(content), out)
    errors = [json.loads(line)["error"] for line in out.getvalue().splitlines()]
    return odometry._steps._live.samples, errors


@pytest.mark.parametrize("seed", range(3))
def test_messages_that_wait_are_put_in_order(tmp_path, seed):
    """Topics come up to 15 ms late against each other: the samples of those in order."""
    path, sent = robot_file(tmp_path), messages((3_700_000, 3_700_000, 6_000_000))[:300]
    late = shuffled(sent, 15_000_000, seed)
    assert np.mean(np.diff([one.stamp for one in late]) < 0) > 0.2
    assert samples_of(path, mcap(late)) == samples_of(path, mcap(sent))


def test_messages_that_come_too_late_are_named_and_leave_no_trace(tmp_path):
    """Messages of a foot that come 100 ms late, and those that wait behind them."""
    path, sent = robot_file(tmp_path), messages((0, 0, 0))
    whole, none = samples_of(path, mcap(sent))
    assert none == []
    left = [one for one in sent if one.topic == "/left"]
    free = left[119].stamp + 100_000_000
    arrival = {one.stamp: one.stamp + 100_000_000 for one in left[100:120]}
    arrival |= {one.stamp: max(one.stamp, free) for one in left[120:]}

    def arrives(one):
        return arrival.get(one.stamp, one.stamp) if one.topic == "/left" else one.stamp

    disturbed = sorted(sent, key=arrives)
    samples, errors = samples_of(path, mcap(disturbed))
    assert len(errors) > 20
    assert re.fullmatch(
        r"topic '/left': a message stamped 1700000001\.123456789 s is out of order, 70\.000 ms "
        r"before the last sample that is filtered; messages wait 20 ms for other topics: raise "
        r"--wait",
        errors[0],
    )
    refused = [Decimal(error.split("stamped ")[1].split(" ")[0]).scaleb(9) for error in errors]
    kept = [one for one in sent if one.topic != "/left" or one.stamp not in refused]
    assert samples == samples_of(path, mcap(kept))[0]
    assert samples_of(path, mcap(disturbed), wait=0.2) == (whole, [])


def test_a_topic_that_is_not_in_order_is_named(tmp_path):
    sent = messages((0, 0, 0))[:100]
    sent[50:60] = sent[55:60] + sent[50:55]
    _, errors = samples_of(robot_file(tmp_path), mcap(sent))
    assert errors
    assert all("its topic has sent a later one: send each topic in order" in e for e in errors)


def test_a_message_waits_for_no_topic_that_has_one_as_late():
    """One that is complete goes at once; a topic that is silent holds others for 20 ms."""
    clocks = [TopicClock(topic, TimeSource()) for topic in ("/a", "/b")]
    order, gone = StampOrder(clocks, 2, 20_000_000), []
    for ms, source in ((1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (10, 0), (23, 0), (24, 0), (25, 1)):
        stamp = clocks[source].read(None, ms * 10**6)
        order.add(source, StampedItem(stamp, source, []))
        gone.append([round(1e3 * time) for time, _ in order.release()])
    assert gone == [[], [1, 1], [], [2, 2], [], [], [3], [], [10, 23, 24]]
    assert [round(1e3 * time) for time, _ in order.release(everything=True)] == [25]


def test_one_stamp_far_in_the_future_changes_nothing_that_follows(tmp_path):
    """A message that says 2033: it is refused by name, and the others wait for each other."""
    sent = messages((3_700_000, 3_700_000, 6_000_000))[:300]
    wrong = next(k for k in range(150, 300) if sent[k].topic == "/left")
    damaged = sent.copy()
    damaged[wrong] = replace(sent[wrong], stamp=sent[wrong].stamp + 300_000_000_000_000_000)
    samples, errors = samples_of(robot_file(tmp_path), mcap(damaged))
    assert len(errors) == 1
    assert "later than all before it; a second one of that time confirms it" in errors[0]
    kept = [one for k, one in enumerate(sent) if k != wrong]
    assert samples == samples_of(robot_file(tmp_path), mcap(kept))[0]


def test_a_pause_of_the_whole_stream_costs_its_first_message():
    clocks = [TopicClock("/a", TimeSource())]
    order, gone, refused = StampOrder(clocks, 1, 20_000_000), [], 0
    for second in (1, 2, 30, 31, 32):
        stamp = clocks[0].read(None, second * 10**9)
        try:
            order.add(0, StampedItem(stamp, 0, []))
        except InputError:
            refused += 1
        gone += [round(time) for time, _ in order.release()]
    assert (gone, refused) == ([1, 2, 31, 32], 1)


def test_stamps_that_are_not_set_are_no_time_zero():
    """A zero of one topic, before the other begins in 2023: its first message is time zero."""
    clocks = [TopicClock(topic, TimeSource()) for topic in ("/a", "/b")]
    order, gone = StampOrder(clocks, 2, 20_000_000), []
    for ns, source in ((0, 0), (ORIGIN, 1), (ORIGIN + PERIOD, 0), (ORIGIN + PERIOD, 1)):
        order.add(source, StampedItem(clocks[source].read(None, ns), source, []))
        gone += [time for time, _ in order.release()]
    assert gone == [0.0, pytest.approx(0.01), pytest.approx(0.01)]
    assert order.origin == ORIGIN


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
@pytest.mark.parametrize("start", [0.0, 3.5, 1.7e9])
@pytest.mark.parametrize("whole", [False, True])
def test_times_are_those_of_a_log_to_the_last_bit(unit, start, whole):
    """Stamps of a field in any unit, relative or since 1970, by `find_stamps` and one by one."""
    rng = np.random.default_rng(0)
    per = {"s": 1.0, "ms": 1e3, "ns": 1e9}[unit]
    values = per * (start + np.cumsum(rng.uniform(0.5, 1.5, 200)))
    values = np.rint(values).astype(np.int64) if whole else values
    source = TimeSource("clock", unit)
    table = RawTable("/a", {"clock": values})
    expected = find_stamps(table, source, slice(0, 200), 200)
    clock = TopicClock("/a", source)
    clock.find_field(RawTable("/a", {"clock": values[:1]}))
    stamps = [clock.read({"clock": value}, 0) for value in values.tolist()]
    clock.start(stamps[0])
    assert clock.origin == expected.origin_ns
    np.testing.assert_array_equal([clock.find_time(one) for one in stamps], expected.times)


def random_value(rng, kind, depth=0):
    """A message of a type with random content; lists of messages have three."""
    given = {}
    for name, (node, what) in STORE.fielddefs[kind][1]:
        if node.name == "NAME":
            given[name] = random_value(rng, what, depth + 1)
        elif node.name == "BASE":
            given[name] = "text" if what[0] == "string" else int(rng.integers(0, 100))
        elif what[0][0].name == "NAME":
            given[name] = [random_value(rng, what[0][1], depth + 1) for _ in range(3)]
        elif what[0][1][0] == "string":
            given[name] = ["a", "b", "c"]
        else:
            given[name] = rng.integers(0, 100, what[1] or 3)
    return TYPES[kind](**given)


@pytest.mark.parametrize("package", ["sensor_msgs", "geometry_msgs", "nav_msgs", "std_msgs"])
def test_fields_are_those_of_tables(package):
    """Every leaf of every message of the usual packages, as the tables of bags have it."""
    rng, count = np.random.default_rng(1), 0
    for kind in STORE.fielddefs:
        if not kind.startswith(f"{package}/msg"):
            continue
        message = random_value(rng, kind)
        for path, value in flatten_message(message, "", 12):
            found = find_field(message, path)
            if isinstance(value, UnfitValue):
                assert found is None
                continue
            np.testing.assert_array_equal(found, value)
            count += 1
        assert find_field(message, "nothing.of_it") is None
    assert count > 40


def test_what_the_first_message_shows_to_be_wrong_ends_the_stream(tmp_path):
    """Each error names topic or channel, and what to do."""
    sent = messages((0, 0, 0))[:60]

    def refused(change, content=None, error=InputError):
        mapping = MAPPING
        for before, after in change.items():
            assert before in mapping
            mapping = mapping.replace(before, after)
        model = find_base_model(str(robot_file(tmp_path, mapping)))
        with pytest.raises(error) as caught:
            answers(model, mcap(sent) if content is None else content)
        assert len(str(caught.value).splitlines()) <= 3
        return str(caught.value)

    assert refused({}, mcap(sent, schemas=False)) == (
        "topic '/imu' cannot be read: its messages, encoded as 'cdr', have no schema that says "
        "their type; send it in ROS's encoding with the definition of its type, as recorders of "
        "ROS 2 do"
    )
    strange = {"sensor_msgs/msg/Imu": "my_msgs/msg/Imu"}
    assert "type my_msgs/msg/Imu has no definition" in refused({}, mcap(sent, rename=strange))
    assert "messages encoded as 'protobuf'" in refused({}, mcap(sent, encoding="protobuf"))
    text = refused({"fields: position": "fields: angle"})
    assert "topic '/joint_states'" in text
    assert "angle" in text
    assert "effort" in text  # what there is
    text = refused({"wrench.force.z], time: {field: header.stamp}": "wrench.force.z], unit: rad"})
    assert "channel 'left_foot' must be in N, got rad" in text
    text = refused({"topic: /joint_states": "topic: /joints"})
    assert "topic '/joints': it has sent nothing, and the mapping takes 'joints' from it" in text
    text = refused({"unit: rad": f"unit: rad, labels: [{', '.join('abcde')}]"})
    assert "channel 'joints' has no joint of the robot" in text
    assert "labels" in text
    text = refused({"unit: rad, time: {field: header.stamp}": "unit: rad, time: {rate: 100}"})
    assert "topic '/joint_states': live, stamps are those of messages" in text
    text = refused({"unit: rad, time: {field: header.stamp}": "time: {field: header.seq}"})
    assert "topic '/joint_states'" in text
    assert "header.seq" in text
    text = refused({"topic: /joint_states, fields: position": "fields: position"})
    assert "channel 'joints' needs `topic`" in text
    content = mcap(sent)
    middle = len(content) // 2
    damaged = content[:middle] + b"\xff" * 300 + content[middle + 300 :]
    assert "damaged" in refused({}, damaged, FileFormatError)


def test_streams_that_lack_what_is_mapped(tmp_path):
    model = find_base_model(str(robot_file(tmp_path)))
    sent = messages((0, 0, 0))[:60]
    with pytest.raises(InputError, match="robot's file, or by --mapping FILE"):
        answers(replace(model, mapping=None), mcap(sent))
    others = [replace(one, topic=f"/robot{one.topic}") for one in sent]
    with pytest.raises(InputError, match=r"no message of '/imu', .* topics are /robot/imu \(cdr\)"):
        answers(model, mcap(others))
    plain = [one for one in messages((0, 0, 0)) if one.topic != "/imu"]
    long = [replace(one, stamp=one.stamp + 4 * 10**9) for one in plain]
    with pytest.raises(InputError, match=r"'/imu': it has sent nothing.* for 5 s of other"):
        answers(model, mcap([*plain, *long]))


def test_an_accelerometer_that_stops_is_named(tmp_path):
    """With stamps of its own, rates wait for its next force: for 5 s, and not for ever."""
    topic = "accelerometer:\n      topic: /imu"
    mapping = MAPPING.replace(topic, topic.replace("/imu", "/forces_of_trunk"))
    model = find_base_model(str(robot_file(tmp_path, mapping)))
    sent = list[Sent]()
    for one in messages((0, 0, 0)):
        sent.append(one)
        if one.topic == "/imu":
            own = {"stamp": one.stamp + 2_000_000, "recorded": one.recorded + 2_000_000}
            sent.append(replace(one, topic="/forces_of_trunk", **own))
    found, errors = answers(model, mcap(sent))
    assert len(found) > 90
    assert errors == []
    later = [
        replace(one, stamp=one.stamp + s * 10**9, recorded=one.recorded + s * 10**9)
        for s in (2, 4, 6)
        for one in messages((0, 0, 0))[4:]
    ]
    with pytest.raises(InputError, match=r"'/forces_of_trunk': it has sent no forces for 5 s"):
        answers(model, mcap([*sent, *later]))


def test_messages_that_cannot_be_used_are_answered_and_passed_over(tmp_path):
    """Values that are missing, other joints, two at one stamp, stamps that are not set."""
    path, sent = robot_file(tmp_path), messages((0, 0, 0))[:200]
    plain, _ = samples_of(path, mcap(sent))
    imu = [k for k, one in enumerate(sent) if one.topic == "/imu"]
    joints = [k for k, one in enumerate(sent) if one.topic == "/joint_states"]

    def with_extra(place, **changes):
        one = replace(sent[place], **changes)
        return samples_of(path, mcap([*sent[:place], one, *sent[place:]]))

    nothing = dict.fromkeys("xyz", np.nan)
    content = {**sent[imu[25]].content, "angular_velocity": nothing}
    found, errors = with_extra(imu[25], content=content)
    assert found == plain
    (error,) = errors
    assert "topic '/imu': channel 'gyroscope' must be finite numbers, got [nan" in error
    content = {"name": ["left", "right"], "position": np.zeros(2)}
    assert with_extra(joints[25], content=content) == (plain, [])  # of a gripper, say
    content = {"name": sent[joints[25]].content["name"], "position": np.zeros(2)}
    _, (error,) = with_extra(joints[25], content=content)
    assert "topic '/joint_states'" in error
    assert with_extra(joints[25]) == (plain, [])  # the same twice
    content = {**sent[joints[25]].content, "position": np.ones(5)}
    _, (error,) = with_extra(joints[25], content=content)
    assert "two messages are stamped 1700000000.37" in error
    _, (error,) = with_extra(joints[25], stamp=0)
    assert "a stamp is zero" in error
    _, (error,) = with_extra(joints[25], stamp=5 * 10**9)
    assert "a stamp of 5 s is of another clock" in error


def test_clocks_of_two_kinds_are_named(tmp_path):
    model = find_base_model(str(robot_file(tmp_path)))
    sent = messages((0, 0, 0))[:40]
    mixed = [
        replace(one, stamp=one.stamp - ORIGIN) if one.topic == "/joint_states" else one
        for one in sent
    ]
    _, errors = answers(model, mcap(mixed))
    assert any("its stamps and those of '/imu' are of two clocks" in error for error in errors)


def test_samples_as_json_and_on_topics_are_refused(tmp_path):
    model = find_base_model(str(robot_file(tmp_path)))
    odometry = start_odometry(model)()
    sample = {"time": 0.0, "gyroscope": [0.0] * 3, "accelerometer": [0.0, 0.0, 9.81]}
    odometry.answer_line(json.dumps(sample))
    with pytest.raises(InputError, match="as JSON and on topics"):
        answer_stream(odometry, io.BytesIO(mcap(messages()[:10])), io.BytesIO())


def test_every_cut_of_a_stream_is_told():
    """Whatever the length there are messages as far as the bytes go, and a line that says so."""
    content = mcap(messages((0, 0, 0))[:40], finish=False)
    rng, lengths = np.random.default_rng(0), []
    for end in np.sort(rng.integers(9, len(content), 30)).tolist():
        told, count = [], 0
        with suppress(InputError):  # where no message is whole
            for _ in read_messages(io.BytesIO(content[:end]), ("/imu", "/left"), told.append):
                count += 1
        (text,) = told
        assert f"after {count} messages: the file is cut, or its sender has gone" in text
        lengths.append(count)
    assert lengths == sorted(lengths)
    assert lengths[-1] > 10
