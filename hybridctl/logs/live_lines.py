"""Samples of a legged base as JSON lines or MCAP, and its odometry as JSON lines back.

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

A stream that begins with the magic bytes of MCAP has the same objects as messages encoded as JSON.
Where `time` is missing it is the time at which the message was logged. Messages without the
gyroscope's channel are none of samples, and are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec
import numpy as np

from hybridctl.checks import Array, quoted
from hybridctl.errors import FileFormatError, HybridctlError, InputError
from hybridctl.estimation.legged.estimator import RootPose
from hybridctl.estimation.legged.live import LiveSample
from hybridctl.logs.legged import BaseChannels
from hybridctl.logs.raw import needing

GAP_PERIODS = 3.0
"""Usual periods from which on the time between two samples is a gap; the same as for logs."""
_RECENT = 0.05
"""Weight of the last period in the usual one: some 20 samples are remembered."""


LONGEST_LINE = 2**20
"""Bytes of a line: hundreds of joints.

A sender without ends of lines must not fill the memory.
"""
_LARGEST_RECORD = 2**26
"""Bytes of a record of MCAP; a chunk is one, and recorders make chunks of some megabytes."""
_MAGIC = b"\x89MCAP0\r\n"
"""First bytes of MCAP, of which no line of JSON begins with the first."""


class LiveMessage(NamedTuple):
    """The text of a sample.

    Attributes:
        text: A JSON object.
        time: Time in s at which it was logged; None for a line, which has one of its own.
    """

    text: bytes
    time: float | None = None


def read_messages(stream: BinaryIO) -> Iterator[LiveMessage]:
    """Yield the messages of a stream of JSON lines or of MCAP, each as soon as it is there.

    Args:
        stream: A stream that need not be seekable, such as a pipe or a socket.

    Raises:
        FileFormatError: MCAP is damaged.
        InputError: The package `mcap` is missing.
    """
    first = stream.read(1)
    if first == _MAGIC[:1]:
        yield from _read_mcap_messages(stream)
        return
    line = first if first == b"\n" else first + stream.readline(LONGEST_LINE)
    while line:
        yield LiveMessage(line)
        line = stream.readline(LONGEST_LINE)


def _read_mcap_messages(stream: BinaryIO) -> Iterator[LiveMessage]:
    """Yield messages of MCAP after the first byte, up to the end of the file or of the sender.

    Those of a chunk come when it is there as a whole. Channels that are not encoded as JSON are
    passed over.
    """
    with needing(Path("the stream"), "MCAP", "mcap", "ros"):
        from mcap.exceptions import EndOfFile
        from mcap.records import Channel, Message
        from mcap.stream_reader import StreamReader
    if stream.read(len(_MAGIC) - 1) != _MAGIC[1:]:
        raise FileFormatError("the stream is neither lines of JSON nor MCAP")
    source: Any = stream
    reader = StreamReader(
        source, skip_magic=True, validate_crcs=True, record_size_limit=_LARGEST_RECORD
    )
    samples = set[int]()
    try:
        for record in reader.records:
            if isinstance(record, Channel):
                if record.message_encoding == "json":
                    samples.add(record.id)
            elif isinstance(record, Message) and record.channel_id in samples:
                yield LiveMessage(record.data, record.log_time / 10**9)
    except EndOfFile as error:
        if stream.read(1):
            raise FileFormatError(f"the stream of MCAP is damaged: {error}") from error
        return  # the sender has gone without closing its file
    except OSError:
        raise  # of the stream
    except Exception as error:  # its decoders raise nearly anything on damaged bytes
        raise FileFormatError(f"the stream of MCAP is damaged: {error}") from error


class LiveFilter(Protocol):
    """A filter that is stepped by samples."""

    @property
    def contacts(self) -> Array:
        """How probable it is of each foot that it stands, (k,)."""

    def step(self, sample: LiveSample) -> RootPose | None:
        """Return the root after a sample, None while samples of standing are collected."""


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
            raise InputError(f"a line must be a JSON object, got {quoted(given)}")
        channels = self._channels
        if logged is not None and channels.gyroscope not in given:
            return None
        angles = given.get(channels.joints)
        if isinstance(angles, Mapping):
            missing = [name for name in self.joints if name not in angles]
            if missing:
                raise InputError(f"{channels.joints} has no joint {quoted(missing[0])}")
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
        raise InputError(f"{name} must be {what}, got {quoted(given)}")
    return np.array(given, dtype=np.float64)


def odometry_line(
    root: RootPose, feet: Sequence[str], contacts: Array, flags: Sequence[str]
) -> bytes:
    """Return the line of odometry, with its end of line.

    Args:
        root: The root.
        feet: Frames of k feet.
        contacts: How probable it is of each foot that it stands, (k,).
        flags: What speaks against the pose.
    """
    content = {
        "time": root.time,
        "position": root.position.tolist(),
        "orientation": root.orientation.tolist(),
        "velocity": root.velocity.tolist(),
        "covariance": root.covariance.tolist(),
        "contacts": dict(zip(feet, contacts.tolist(), strict=True)),
        "flags": list(flags),
    }
    return msgspec.json.encode(content) + b"\n"


class LineOdometry:
    """Turns lines of samples into lines of odometry, one after the other.

    Life cycle: `answer` is called with each line in the order of the stamps. A line that is refused
    changes nothing.
    """

    def __init__(self, reader: SampleReader, live: LiveFilter) -> None:
        self._reader, self._live = reader, live
        self._time: float | None = None  # of the last sample; None before the first
        self._period: float | None = None  # s, usual one; None before the second sample

    def answer(self, line: bytes | str, logged: float | None = None) -> bytes | None:
        """Return the line of odometry or of the error.

        Args:
            line: A line, or the JSON object of a message.
            logged: Time in s at which the message was logged; None for a line.

        Returns:
            The line with its end; None for a blank line, a message that is no sample, and while
            the opening is collected and caught up with.
        """
        if not line.strip():
            return None
        try:
            sample = self._reader.read(line, logged)
            if sample is None:
                return None
            if self._time is not None and not sample.time > self._time:
                raise InputError(
                    f"time must be after the last sample, {self._time} s, got {sample.time}"
                )
            root = self._live.step(sample)
        except HybridctlError as error:
            return msgspec.json.encode({"error": str(error)}) + b"\n"
        flags = list(self._watch(sample.time))
        if root is None:
            return None
        return odometry_line(root, self._reader.feet, self._live.contacts, flags)

    def _watch(self, time: float) -> Iterator[str]:
        """Take note of a stamp, and yield what is odd about it."""
        step = None if self._time is None else time - self._time
        self._time = time
        if step is None:
            return
        if self._period is None:
            self._period = step
        elif step > GAP_PERIODS * self._period:
            yield f"no sample for {1e3 * step:.0f} ms"
        else:
            self._period += _RECENT * (step - self._period)
