"""Samples of a legged base as JSON lines, and its odometry as JSON lines back.

A line in has the channels of the robot's file by their names, in SI units::

    {"time": 12.345, "gyroscope": [0.0, 0.1, 0.0], "accelerometer": [0.2, 0.0, 9.8],
     "joints": {"FR_hip_joint": 0.1, ...}, "FR": 31.5, "FL": null, ...}

`joints` is an object by name, or a list in the order of `SampleReader.joints`. A force that is
missing or null says nothing, and so do angles. A line out is

    {"time": 12.345, "position": [x, y, z], "orientation": [qx, qy, qz, qw],
     "velocity": [vx, vy, vz], "covariance": [[...], ...], "contacts": {"FR_foot": 1.0, ...},
     "flags": []}

with the covariance (9, 9) of turn (rad), position and velocity in the world, as in `RootPose`. A
line that cannot be used is answered by `{"error": "..."}` and passed over: a loop must not end by
it.

Messages of MCAP that are encoded as JSON are the same objects. Where `time` is missing it is the
time at which the message was logged. Messages without the gyroscope's channel are none of samples,
and are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hybridctl.base.checks import Array, quote
from hybridctl.base.errors import HybridctlError, InputError
from hybridctl.legged.live import LiveSample
from hybridctl.logs.legged import BaseChannels
from hybridctl.logs.live_odometry import Answer, LiveFilter, OdometrySteps, Refusal
from hybridctl.logs.live_stream import LiveMessage, TopicMessage
from hybridctl.logs.live_topics import TopicSamples

_ENCODER = msgspec.json.Encoder(decimal_format="number")
"""Stamps of whole nanoseconds are written with all digits."""


class SampleReader:
    """Reads samples from lines for one robot.

    Attributes:
        joints: Names of the joints in the order of a list of angles.
        feet: Frames of the feet.
    """

    def __init__(self, channels: BaseChannels, joints: Sequence[str], feet: Sequence[str]) -> None:
        self.joints, self.feet = tuple(joints), tuple(feet)
        self._channels = channels

    def read(self, line: bytes | str, logged: float | None = None) -> LiveSample | None:
        """Return the sample of a JSON object.

        Args:
            line: A JSON object with `time` in s and the channels by name. Joint angles are a list
                in the order of the robot's joints, or an object by joint. Angles and forces that
                are not there are missing in the sample, too.
            logged: Time in s at which its message was logged, the default of `time`; None for a
                line. A message without the gyroscope's channel is no sample: the result is None.

        Raises:
            InputError: The line is no JSON object, or a channel is missing or has another size or
                a value that is no finite number.
        """
        try:
            given = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"a line must be a JSON object: {error}") from error
        if not isinstance(given, dict):
            raise InputError(f"a line must be a JSON object, got {quote(given)}")
        channels = self._channels
        if logged is not None and channels.gyroscope not in given:
            return None
        angles = given.get(channels.joints)
        if isinstance(angles, Mapping):
            missing = [name for name in self.joints if name not in angles]
            if missing:
                raise InputError(f"{channels.joints} has no joint {quote(missing[0])}")
            angles = [angles[name] for name in self.joints]
        loads = {}
        for foot, channel in zip(self.feet, channels.loads, strict=True):
            force = None if channel is None else given.get(channel)
            if force is not None:
                loads[foot] = float(_numbers(str(channel), [force], 1)[0])
        return LiveSample(
            float(_numbers("time", [given.get("time", logged)], 1)[0]),
            _numbers(channels.gyroscope, given.get(channels.gyroscope), 3),
            _numbers(channels.accelerometer, given.get(channels.accelerometer), 3),
            None if angles is None else _numbers(channels.joints, angles, len(self.joints)),
            loads,
        )


def _numbers(name: str, given: Any, size: int) -> Array:
    """Return numbers (size,) of a channel. Raises `InputError` for anything else."""
    plain = isinstance(given, list) and len(given) == size
    # JSON has no NaN, but numbers of any size: 1e999 would be infinite.
    if not plain or not all(
        isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in given
    ):
        what = "a number" if size == 1 else f"{size} numbers"
        raise InputError(f"{name} must be {what}, got {quote(given)}")
    return np.array(given, dtype=np.float64)


def write_line(answer: Answer, feet: Sequence[str]) -> bytes:
    """Return the line of odometry or of an error, with its end of line.

    Args:
        answer: What came of a sample.
        feet: Frames of k feet.
    """
    if isinstance(answer, Refusal):
        return _ENCODER.encode({"error": answer.error}) + b"\n"
    root = answer.root
    content = {
        "time": answer.time,
        "position": root.position.tolist(),
        "orientation": root.orientation.tolist(),
        "velocity": root.velocity.tolist(),
        "covariance": root.covariance.tolist(),
        "contacts": dict(zip(feet, answer.contacts.tolist(), strict=True)),
        "flags": answer.flags,
    }
    return _ENCODER.encode(content) + b"\n"


class LineOdometry:
    """Turns samples into odometry, one after the other: lines of JSON, or messages of topics.

    Life cycle: `answer`, or `take` and at the end `finish`, are called with each line or message
    as it comes. What is refused changes nothing.

    Attributes:
        feet: Frames of the feet.
        topics: Topics whose messages are wanted.
    """

    def __init__(
        self, reader: SampleReader, live: LiveFilter, samples: TopicSamples | None = None
    ) -> None:
        """Begin without samples.

        Args:
            reader: Reads samples from lines.
            live: Filter at its beginning.
            samples: Makes samples from messages of topics; None where there is no mapping.
        """
        self._reader, self._steps, self._samples = reader, OdometrySteps(live), samples
        self.feet = reader.feet
        self.topics = () if samples is None else samples.topics
        self._kind: type[LiveMessage] | type[TopicMessage] | None = None  # of the first sample

    def answer(self, line: bytes | str, logged: float | None = None) -> bytes | None:
        """Return the line of odometry or of the error.

        Args:
            line: A line, or the JSON object of a message.
            logged: Time in s at which the message was logged; None for a line.

        Returns:
            The line with its end; None for a blank line, a message that is no sample, and while
            the opening is collected and caught up with.
        """
        found = self._find_answer(line, logged)
        return None if found is None else write_line(found, self.feet)

    def take(self, message: LiveMessage | TopicMessage) -> list[Answer]:
        """Return what comes of a line or message.

        Raises:
            InputError: A topic does not fit its mapping, or samples come as JSON and on topics.
        """
        if isinstance(message, LiveMessage):
            found = self._find_answer(message.text, message.time)
            return [] if found is None else [found]
        assert self._samples is not None
        self._check_kind(TopicMessage)
        return [found for one in self._samples.add(message) if (found := self._step(one))]

    def finish(self) -> list[Answer]:
        """Return what comes of messages that were still waiting for others.

        Raises:
            InputError: A topic has sent nothing.
        """
        if self._kind is not TopicMessage or self._samples is None:
            return []
        return [found for one in self._samples.finish() if (found := self._step(one))]

    def _step(self, one: LiveSample | str) -> Answer | None:
        """Return what comes of a sample, or of a message that is not used."""
        if isinstance(one, str):
            return Refusal(one)
        assert self._samples is not None
        try:
            return self._steps.step(one, self._samples.origin)
        except HybridctlError as error:
            return Refusal(str(error))

    def _find_answer(self, line: bytes | str, logged: float | None) -> Answer | None:
        """Return what comes of a line, see `answer`."""
        if not line.strip():
            return None
        try:
            sample = self._reader.read(line, logged)
            if sample is None:
                return None
            self._check_kind(LiveMessage)
            return self._steps.step(sample)
        except HybridctlError as error:
            return Refusal(str(error))

    def _check_kind(self, kind: type[LiveMessage] | type[TopicMessage]) -> None:
        """Raise `InputError` where samples are of two kinds, which have no common order."""
        if self._kind not in (None, kind):
            raise InputError(
                "samples come as JSON and on topics of the mapping, without a common order: send "
                "one of them"
            )
        self._kind = kind
