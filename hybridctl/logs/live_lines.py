"""Samples of a legged base as JSON lines.

A line has the channels of the robot's file by their names, in SI units::

    {"time": 12.345, "gyroscope": [0.0, 0.1, 0.0], "accelerometer": [0.2, 0.0, 9.8],
     "joints": {"FR_hip_joint": 0.1, ...}, "FR": 31.5, "FL": null, ...}

Required are `time` (s), the gyroscope (rad/s) and the accelerometer (specific force, m/s^2), in the
axes of the sensor. `joints` (rad, m for slides) is an object by name, in which other joints are
ignored, or a list in the order of `SampleReader.joints`. It may be missing or null, but where it is
there it has a number for each of these joints. A force (N) is one number; each may be missing or
null, which means unknown, not zero.

Messages of MCAP that are encoded as JSON are the same objects. `time` may be missing there, but not
null: then it is the time at which the message was logged. Messages may be of other topics: those
without the gyroscope's channel hold no sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hybridctl.base.checks import Array, quote
from hybridctl.base.errors import InputError
from hybridctl.legged.live import LiveSample
from hybridctl.logs.base_model import BaseChannels


class SampleReader:
    """Reads samples from JSON lines for one robot.

    Args:
        channels: Names of the channels.
        joints: Names of the joints in the order of a list of angles.
        feet: Frames of the feet, as many and in the same order as `channels.loads`.

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
            line: A JSON object, see this module.
            logged: Time in s at which its message was logged, the default of `time`; None for a
                line.

        Returns:
            The sample, its forces by the frames of the feet; None for a message (`logged` is given)
            without the gyroscope's channel. Angles and forces that are missing or null in the line
            are missing in the sample, too.

        Raises:
            InputError: The line is no JSON object or one that is nested too deeply, a required
                value is missing (in a line the gyroscope, too), a joint is missing in an object of
                joints, or a value has another size or is no number that is finite in double
                precision.
        """
        try:
            given = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:  # the last: nested
            raise InputError(f"a line must be a JSON object: {error}") from error
        if not isinstance(given, dict):
            raise InputError(f"a line must be a JSON object, got {quote(given)}")
        channels = self._channels
        # A line, unlike a message, must be a sample: without a gyroscope it is refused below.
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
                loads[foot] = float(_check_numbers(str(channel), [force], 1)[0])
        return LiveSample(
            float(_check_numbers("time", [given.get("time", logged)], 1)[0]),
            _check_numbers(channels.gyroscope, given.get(channels.gyroscope), 3),
            _check_numbers(channels.accelerometer, given.get(channels.accelerometer), 3),
            None if angles is None else _check_numbers(channels.joints, angles, len(self.joints)),
            loads,
        )


def _check_numbers(name: str, given: Any, size: int) -> Array:
    """Return the numbers (size,) of a channel.

    Args:
        name: Name of the channel.
        given: A list of numbers, as JSON gives it.
        size: Its length.

    Raises:
        InputError: The value is no such list, or a number is not finite.
    """
    is_list = isinstance(given, list) and len(given) == size
    if not is_list or not all(map(_is_finite_number, given)):
        what = "a number" if size == 1 else f"{size} numbers"
        raise InputError(f"{name} must be {what}, got {quote(given)}")
    return np.array(given, dtype=np.float64)


def _is_finite_number(value: Any) -> bool:
    """Return whether a value of JSON is a number that is finite in double precision.

    JSON has no infinity, but numbers of any size, which may become one. Truth values, which are
    ints in Python, are no numbers here.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of 309 digits or more, which the decoder takes
        return False
