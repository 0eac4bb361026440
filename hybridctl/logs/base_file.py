"""YAML files that describe a legged base, for its logs and for live odometry.

The robot has an inertial sensor, `imu`::

    urdf: icub.urdf                   # beside this file, an absolute path, or that of an installed
                                      # package: package://example-robot-data/PATH/OF/FILE.urdf;
                                      # an MJCF file as well, whose free joint is left out
    imu: {frame: root_link_imu_frame} # channels `gyroscope` and `accelerometer`, unless named here
    encoders:                         # one channel, its columns named like the joints
      joints: {deviation: 1e-3}
    torques: torques                  # channel of motor torques along the joints in N m, columns
                                      # named like these, for feet without forces; may be left out
    contacts:                         # feet; force: the channel of a vertical one
      left: {frame: l_sole, flat: true, force: left}
      right: {frame: r_sole, flat: true, force: right}
    start:                            # may be left out
      {position: [0, 0, 0.6], heading: -3.14, standing: 3, deviations: {tilt: 0.01}}
    noise: {foot: 4.0e-3}             # see `BaseNoise`; may be left out
    settings: {touch_force: 110}      # others of `BaseSettings`; may be left out
    mapping: {channels: {...}}        # from topics or fields of a log to channels; may be left out
    odometry:                         # names for ROS 2 live; may be left out, as each of them
      {topic: /odom, frame: odom, child_frame: base_link}  # child_frame: else the URDF's root link
    motion: {posture: {knee: 0.6}}    # of `hybridctl simulate`, which filters ignore
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hybridctl.base.errors import InputError
from hybridctl.base.files import find_packaged_file
from hybridctl.base.settings import Meta, parse_settings
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.system import BaseNoise
from hybridctl.logs.base_model import BaseChannels, BaseModel, OdometryFrames
from hybridctl.logs.mapping import Mapping as LogMapping

_PACKAGE_SCHEME = "package://"
"""Beginning of the path of a URDF in an installed Python package, written as in ROS."""


class ImuEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The inertial sensor: its frame, and the channels of angular velocity and specific force."""

    frame: str
    gyroscope: str = "gyroscope"
    accelerometer: str = "accelerometer"


class AnglesEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The joint angles: their standard deviation in rad."""

    deviation: float = BaseNoise.encoder


class FootEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A foot, see `Foot`, and the channel of its vertical force; None without a force sensor."""

    frame: str
    flat: bool = False
    radius: float | None = None
    force: str | None = None


class BaseStartEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pose of the root at the start of a log, see `BaseModel` and `BaseSettings`."""

    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    heading: float = 0.0
    standing: float | None = None
    deviations: dict[str, Any] | None = None


class BaseEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a YAML file that describes a legged base."""

    urdf: str
    imu: ImuEntry
    encoders: Annotated[dict[str, AnglesEntry], Meta(min_length=1, max_length=1)]
    contacts: Annotated[dict[str, FootEntry], Meta(min_length=1)]
    torques: str | None = None
    start: BaseStartEntry = BaseStartEntry()
    noise: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    mapping: dict[str, Any] | None = None
    odometry: OdometryFrames = OdometryFrames()
    motion: dict[str, Any] = {}

    def collect_settings(self) -> dict[str, Any]:
        """Return the values that the file has for `BaseSettings`, by the names of its fields."""
        (angles,), feet = self.encoders.values(), self.contacts.values()
        return {
            "inertial": self.imu.frame,
            "feet": [
                {"frame": foot.frame, "flat": foot.flat, "radius": foot.radius} for foot in feet
            ],
            "standing": self.start.standing,
            "start": self.start.deviations,
            "noise": {"encoder": angles.deviation, **self.noise},
            **self.settings,
        }


@dataclass(frozen=True)
class BaseFile:
    """A legged base as a file describes it.

    Attributes:
        path: The file.
        entry: Content of the file.
        settings: Settings of the filter in the file.
    """

    path: Path
    entry: BaseEntry
    settings: BaseSettings

    def model(self, settings: BaseSettings) -> BaseModel:
        """Return the model of the base.

        Args:
            settings: Settings of the filter: those of the file, or changed ones.

        Raises:
            FileFormatError: The package with the URDF is not installed, or lacks the file.
            InputError: A value does not fit the model.
        """
        entry, imu = self.entry, self.entry.imu
        (joints,) = entry.encoders
        loads = tuple(foot.force for foot in entry.contacts.values())
        return BaseModel(
            str(find_urdf(entry.urdf, self.path.parent)),
            BaseChannels(imu.gyroscope, imu.accelerometer, joints, loads, entry.torques),
            settings,
            entry.start.heading,
            entry.start.position,
            entry.mapping,
            odometry=entry.odometry,
        )


def find_urdf(urdf: str, folder: Path) -> Path:
    """Return the path of a URDF.

    Args:
        urdf: Path, relative to the folder or absolute, or package://PACKAGE/FILE for a file of an
            installed Python package.
        folder: Folder of the file that names the URDF.

    Raises:
        FileFormatError: The package is not installed, or does not have the file.
    """
    if not urdf.startswith(_PACKAGE_SCHEME):
        return folder / urdf
    package, _, file = urdf.removeprefix(_PACKAGE_SCHEME).partition("/")
    return find_packaged_file(package, file)


def load_base(path: str | Path, content: Any) -> BaseFile:
    """Return the base that the content of a YAML file describes.

    Args:
        path: The file, for errors and relative paths.
        content: Its content, as YAML gives it.

    Raises:
        InputError: A key or value is wrong; the message names file, key, value and remedy.
    """
    try:
        entry = parse_settings(BaseEntry, content, "robot")
        settings = parse_settings(BaseSettings, entry.collect_settings(), "settings")
        if entry.mapping is not None:
            LogMapping.parse(entry.mapping)
        return BaseFile(Path(path), entry, settings)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error
