"""From a log to the readings of a legged robot's sensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array, member
from hybridctl.errors import InputError
from hybridctl.estimation.legged.readings import Readings
from hybridctl.estimation.record import Series
from hybridctl.logs.schema import Channel, Log


@dataclass(frozen=True)
class BaseChannels:
    """Names of channels of a log: inertial sensor, joint angles, and vertical forces of feet.

    loads: the channel of each foot that has one, by the frame of the foot; its last column is the
    vertical force.
    """

    gyroscope: str
    accelerometer: str
    joints: str
    loads: Mapping[str, str]


def base_readings(log: Log, channels: BaseChannels, joints: Sequence[str]) -> Readings:
    """The readings of these joints, columns of the channel of joint angles by their names.

    Where gyroscope and accelerometer have stamps of their own, forces are interpolated at the
    stamps of the rates. Raises `UnknownNameError` for a channel or joint that the log does not
    have, `InputError` for units other than rad, rad/s, m/s^2 and N where the log has some.
    """
    rate = _in(log[channels.gyroscope], "rad/s", 3)
    force = _in(log[channels.accelerometer], "m/s^2", 3)
    angles = _in(log[channels.joints], "rad")
    for joint in joints:
        member(f"joint in channel {channels.joints!r}:", joint, angles.columns)
    columns = [angles.columns.index(joint) for joint in joints]
    loads = {foot: _in(log[name], "N") for foot, name in channels.loads.items()}
    return Readings(
        Series(rate.times, np.hstack([rate.values, _at(force, rate.times)])),
        Series(angles.times, angles.values[:, columns]),
        {foot: Series(load.times, load.values[:, -1:]) for foot, load in loads.items()},
    )


def _in(channel: Channel, unit: str, width: int | None = None) -> Channel:
    """A channel in a unit, with so many columns."""
    if channel.unit not in ("1", unit):
        raise InputError(f"channel {channel.name!r} must be in {unit}, got {channel.unit}")
    if width is not None and channel.values.shape[1] != width:
        raise InputError(
            f"channel {channel.name!r} must have {width} columns, got {channel.values.shape[1]}"
        )
    return channel


def _at(channel: Channel, times: Array) -> Array:
    """The values (n, m) of a channel at these times."""
    if np.array_equal(channel.times, times):
        return channel.values
    order = np.argsort(channel.times, kind="stable")
    stamps, values = channel.times[order], channel.values[order]
    return np.column_stack([np.interp(times, stamps, column) for column in values.T])
