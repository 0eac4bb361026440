"""Lines of samples and odometry: exact numbers, and lines that cannot be used."""

import io
import json

import numpy as np
import pytest

from hybridctl.base.errors import InputError
from hybridctl.legged.estimator import RootPose
from hybridctl.logs.base_model import BaseChannels
from hybridctl.logs.live_lines import SampleReader
from hybridctl.logs.live_odometry import LiveOdometry
from hybridctl.logs.live_stream import LONGEST_LINE, read_messages

JOINTS, FEET = ("hip", "knee"), ("left foot", "right foot")
READER = SampleReader(BaseChannels("gyro", "accel", "joints", ("left", None)), JOINTS, FEET)
LINE = {
    "time": 1.5,
    "gyro": [0.1, 1 / 3, -1e-300],
    "accel": [0, 0, 9.81],
    "joints": {"knee": 2.0, "hip": 1.0, "neck": 9.0},
    "left": 31.5,
    "battery": "full",
}


class Counting:
    """A filter whose root is where the gyroscope says, after `waits` samples."""

    estimate = rate = None

    def __init__(self, waits=0):
        self.waits, self.samples = waits, []

    @property
    def contacts(self):
        return np.array([1.0, 0.25])

    def step(self, sample):
        self.samples.append(sample)
        if len(self.samples) <= self.waits:
            return None
        turn = np.array([0.0, 0.0, 0.0, 1.0])
        return RootPose(sample.time, sample.gyroscope, turn, np.zeros(3), np.eye(9) / 3.0)


def changed(**entries):
    return json.dumps({**LINE, **entries})


def test_a_line_is_a_sample():
    found = READER.read(json.dumps(LINE))
    assert found.time == 1.5
    np.testing.assert_array_equal(found.gyroscope, LINE["gyro"])
    np.testing.assert_array_equal(found.joints, [1.0, 2.0])  # by name
    assert found.loads == {"left foot": 31.5}
    np.testing.assert_array_equal(READER.read(changed(joints=[3, 4])).joints, [3.0, 4.0])
    assert READER.read(changed(left=None)).loads == {}
    assert READER.read(changed(joints=None)).joints is None  # joints at a lower rate
    without = {name: value for name, value in LINE.items() if name != "left"}
    assert READER.read(json.dumps(without).encode()).loads == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "JSON object"),
        ("[1]", "JSON object, got"),
        ("{", "JSON object"),
        (b"\xff", "JSON object"),
        (changed(time=None), "time must be a number, got .None."),
        (changed(time=True), "time must be a number"),
        (changed(gyro=[1.0, 2.0]), "gyro must be 3 numbers"),
        (changed(accel=["0", 0, 0]), "accel must be 3 numbers"),
        (changed().replace("9.81", "1e999"), "accel must be|JSON"),
        (changed(time=10**400), "time must be a number"),
        (changed(accel=[0, 0, -(10**400)]), "accel must be 3 numbers"),
        (changed(left=10**400), "left must be a number"),
        ("[" * 100_000, "JSON object"),
        (changed()[:-1] + ', "x": ' + "[" * 5000 + "]" * 5000 + "}", "JSON object"),
        ("\udcff", "JSON object"),
        (changed(joints={"hip": 1.0}), "joints has no joint 'knee'"),
        (changed(joints=[1.0]), "joints must be 2 numbers"),
        (changed(left="heavy"), "left must be a number"),
    ],
)
def test_what_is_no_sample_is_refused(line, message):
    with pytest.raises(InputError, match=message):
        READER.read(line)


def test_numbers_go_through_to_the_last_bit():
    rng = np.random.default_rng(0)
    live = Counting()
    odometry = LiveOdometry(READER, live)
    for k in range(200):
        rate = (rng.normal(size=3) * 10.0 ** rng.integers(-12, 12, 3)).tolist()
        found = json.loads(odometry.answer_line(changed(time=0.001 * k, gyro=rate)))
        assert found["position"] == rate
        assert found["time"] == 0.001 * k
        assert found["covariance"][0][0] == 1.0 / 3.0
        assert found["contacts"] == {"left foot": 1.0, "right foot": 0.25}
        assert found["flags"] == []


def test_a_bad_line_is_answered_and_changes_nothing():
    live = Counting(waits=2)
    odometry = LiveOdometry(READER, live)
    assert odometry.answer_line(changed(time=0.0)) is None
    assert odometry.answer_line("  \n") is None
    for line in ("nonsense", "[" * 100_000, changed(time=10**400)):
        assert json.loads(odometry.answer_line(line))["error"]
    assert odometry.answer_line(changed(time=0.01)) is None
    for time in (0.01, 0.005):  # twice the same stamp, and one that goes back
        assert (
            "after the last sample" in json.loads(odometry.answer_line(changed(time=time)))["error"]
        )
    assert json.loads(odometry.answer_line(changed(time=0.02)))["flags"] == []
    assert [sample.time for sample in live.samples] == [0.0, 0.01, 0.02]


def test_gaps_are_flagged_and_do_not_become_usual():
    odometry = LiveOdometry(READER, Counting())
    times = [0.0, 0.01, 0.02, 0.03, 0.13, 0.14, 0.24]
    flags = [json.loads(odometry.answer_line(changed(time=t)))["flags"] for t in times]
    assert flags == [[], [], [], [], ["no sample for 100 ms"], [], ["no sample for 100 ms"]]


def test_long_lines_come_in_pieces_of_at_most_the_limit():
    whole = b"x" * (2 * LONGEST_LINE) + b"\n{}\n"
    pieces = [message.text for message in read_messages(io.BytesIO(whole))]
    assert [len(piece) for piece in pieces] == [LONGEST_LINE, LONGEST_LINE, 1, 3]
    assert b"".join(pieces) == whole
