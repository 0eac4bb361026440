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
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from hybridctl.checks import Array, quoted
from hybridctl.errors import HybridctlError, InputError
from hybridctl.estimation.legged.estimator import RootPose
from hybridctl.estimation.legged.live import LiveSample
from hybridctl.logs.legged import BaseChannels

GAP_PERIODS = 3.0
"""Usual periods from which on the time between two samples is a gap; the same as for logs."""
_RECENT = 0.05
"""Weight of the last period in the usual one: some 20 samples are remembered."""


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

    def read(self, line: bytes | str) -> LiveSample:
        """Return the sample of a line.

        Args:
            line: A JSON object with `time` in s and the channels by name. Joint angles are a list
                in the order of the robot's joints, or an object by joint. Angles and forces that
                are not there are missing in the sample, too.

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
            float(_numbers("time", [given.get("time")], 1)[0]),
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

    def answer(self, line: bytes | str) -> bytes | None:
        """Return the line of odometry or of the error; None for a blank line and at the start.

        Args:
            line: A sample, see `SampleReader.read`.
        """
        if not line.strip():
            return None
        try:
            sample = self._reader.read(line)
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
