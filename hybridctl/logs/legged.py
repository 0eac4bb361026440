"""The base of a legged robot from a log: what the robot is, which channels, and its poses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from hybridctl.base.checks import Array, check_number, check_vector
from hybridctl.base.errors import ImplausibleLogError, InputError
from hybridctl.base.time_series import Series
from hybridctl.estimation.pose_track import PoseTrack
from hybridctl.estimation.result import FilterResult
from hybridctl.legged.estimator import BaseEstimator, BaseSettings, RootPose
from hybridctl.legged.measurements import ANGLES
from hybridctl.legged.readings import Readings
from hybridctl.legged.time_offset import TimeOffset
from hybridctl.legged.verdict import WalkVerdict, judge_walk
from hybridctl.logs.column_names import find_columns
from hybridctl.logs.schema import Log
from hybridctl.logs.stamps import find_first_rows
from hybridctl.logs.tum import write_tum
from hybridctl.logs.writers import PoseSeries, write_estimates
from hybridctl.mechanics.multibody.robot import Robot


@dataclass(frozen=True)
class BaseChannels:
    """Names of channels of a log: inertial sensor, joint angles, forces of feet, joint torques.

    loads: of the feet in their order, None for one that has none; the last column of a channel is
    the vertical force. torques: of the motors, in N m along the joints, from which the forces of
    feet that have none are found; None where the log has none, or all feet have forces.
    """

    gyroscope: str
    accelerometer: str
    joints: str
    loads: tuple[str | None, ...]
    torques: str | None = None


@dataclass(frozen=True)
class OdometryFrames:
    """Names that odometry has in ROS.

    topic: of `nav_msgs/Odometry`. frame: in which poses are. child_frame: of the root, in which
    twists are; empty for the root link of the URDF.
    """

    topic: str = "/odom"
    frame: str = "odom"
    child_frame: str = ""

    def __post_init__(self) -> None:
        for name in ("topic", "frame"):
            if not getattr(self, name):
                raise InputError(f"{name} of odometry must be a name, got ''")


@dataclass(frozen=True)
class BaseModel:
    """A legged robot whose base is estimated from logs.

    urdf: path of its description. heading (rad) and position (m): of its root at the start of a
    log, which no sensor knows. mapping: from topics or fields of a log to channels, where logs
    have others. odometry: names for ROS.
    """

    urdf: str
    channels: BaseChannels
    settings: BaseSettings
    heading: float = 0.0
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    mapping: dict[str, Any] | None = None
    name: str = ""
    odometry: OdometryFrames = OdometryFrames()

    def __post_init__(self) -> None:
        feet, loads = self.settings.feet, self.channels.loads
        if len(loads) != len(feet):
            raise InputError(
                f"loads must have one channel, or None, for each of {len(feet)} feet, got {loads}"
            )
        check_number("heading", self.heading)
        check_vector("position", self.position, 3)


@dataclass(frozen=True, eq=False)
class BaseRun:
    """What came of a log: the filter's result, and the root after each row of joint angles.

    contacts (n, k): how probable it is of each foot that it stands, at the same rows. flags: what
    speaks against trusting the poses, one sentence each. faults: those of them, the first ones,
    that say what is wired wrongly. walk: what innovations and footholds say of the filter.
    time_offset: how late the inertial sensor is against the joints, and what is compensated.
    """

    estimator: BaseEstimator
    readings: Readings
    result: FilterResult
    roots: tuple[RootPose, ...]
    contacts: Array
    flags: tuple[str, ...]
    faults: tuple[str, ...]
    walk: WalkVerdict
    time_offset: TimeOffset

    @property
    def track(self) -> PoseTrack:
        """The poses of the root; of rows with the same stamp the last."""
        return PoseTrack(*self._at_stamps("time", "position", "orientation"))

    @property
    def position_covariances(self) -> Array:
        """Covariances (n, 3, 3) in m^2 of the positions of `track`."""
        return self._at_stamps("covariance")[0][:, 3:6, 3:6]

    def _at_stamps(self, *names: str) -> list[Array]:
        """Return these attributes of the root, one row for each stamp."""
        times = np.array([root.time for root in self.roots])
        last = np.flatnonzero(np.append(np.diff(times) > 0.0, True))
        return [np.array([getattr(self.roots[k], name) for k in last]) for name in names]

    def write(self, folder: str | Path, *, origin_ns: int = 0, mcap: bool = False) -> list[Path]:
        """Write times, poses, velocities and their covariances; return the paths of the files.

        Args:
            folder: Where `write_estimates` writes estimates.npz and .csv, and `write_tum`
                estimates.tum.
            origin_ns: Time of stamp 0 in ns since 1970.
            mcap: Whether estimates.mcap is written, too.
        """
        poses = np.array([np.append(r.position, r.orientation) for r in self.roots])
        series = {
            "position": poses[:, :3],
            "orientation": poses[:, 3:],
            "velocity": np.array([r.velocity for r in self.roots]),
            "deviation": np.sqrt([np.diag(r.covariance) for r in self.roots]),
            "covariance": np.array([r.covariance for r in self.roots]),
            "contact": self.contacts,
        }
        parts = [f"{what}_{axis}" for what in ("turn", "position", "velocity") for axis in "xyz"]
        axes = list("xyz")
        columns = {
            "position": axes,
            "orientation": ["qx", "qy", "qz", "qw"],
            "velocity": axes,
            "deviation": parts,
            "contact": list(self.estimator.base.feet),
        }
        tum = Path(folder) / "estimates.tum"
        write_tum(tum, self.track, origin_ns=origin_ns)
        paths = write_estimates(
            folder,
            np.array([r.time for r in self.roots]),
            series,
            columns=columns,
            origin_ns=origin_ns,
            mcap=mcap,
            poses={"root": PoseSeries("world", poses)},
        )
        return [*paths, tum]


def filter_base(log: Log, model: BaseModel) -> BaseRun:
    """Filter the base of a robot along a log.

    Args:
        log: Log with the channels that the model names.
        model: Robot file, settings, channels, and where the base begins.

    Returns:
        Estimates of the root at the samples of the joint angles, contacts, flags and verdict.

    Raises:
        FileFormatError: The robot's file is no URDF.
        UnknownNameError: A frame, joint or channel is not there.
        ImplausibleLogError: The filter fails on a log that is wired wrongly.
    """
    estimator = model.settings.build(Robot.from_urdf(Path(model.urdf)))
    readings = base_readings(log, model.channels, estimator)
    faults = estimator.find_wiring_faults(readings)
    try:
        first = estimator.start(readings, heading=model.heading, position=model.position)
        record = estimator.record(readings)
        result = estimator.run_record(record, first)
    except (ArithmeticError, ValueError, RuntimeError) as error:
        if not faults:
            raise
        raise ImplausibleLogError(f"the log is wired wrongly: {faults[0]}") from error
    roots, contacts = [], []
    for step in result.steps:
        u = record.input(step.time)
        if step.channel == ANGLES and u is not None:
            roots.append(estimator.root(step.estimate, u[:3]))
            contacts.append(estimator.contacts(step.mixture))
    return BaseRun(
        estimator,
        readings,
        result,
        tuple(roots),
        np.array(contacts),
        estimator.flags(readings, result, faults=faults),
        tuple(map(str, faults)),
        judge_walk(estimator.base, result),
        estimator.time_offset(readings),
    )


def base_readings(log: Log, channels: BaseChannels, estimator: BaseEstimator) -> Readings:
    """Return the readings of a log for an estimator; columns of joints are found by their names.

    Feet without a force have that by joint torques, where the log has these (see `leg_forces`).

    Where gyroscope and accelerometer have stamps of their own, forces are interpolated at the
    stamps of the rates. Raises `UnknownNameError` for a channel or joint that the log does not
    have, `InputError` for units other than rad, rad/s, m/s^2, N and Nm where the log has some, and
    for stamps that cannot be put in order or share no time.
    """
    names = [channels.gyroscope, channels.accelerometer, channels.joints]
    names += [name for name in (*channels.loads, channels.torques) if name is not None]
    log.check_stamps(names)
    rate = _in(log, channels.gyroscope, "rad/s", 3)
    force = _in(log, channels.accelerometer, "m/s^2", 3)
    angles = _in(log, channels.joints, "rad")
    columns = find_columns(channels.joints, estimator.joints, angles.columns)
    loads = {
        foot: _in(log, name, "N")
        for foot, name in zip(estimator.base.feet, channels.loads, strict=True)
        if name is not None
    }
    _check_overlap({name: log[name] for name in names})
    readings = Readings(
        Series(rate.times, np.hstack([rate.values, _at(force, rate.times)])),
        Series(angles.times, angles.values[:, columns]),
        {foot: Series(load.times, load.values[:, -1:]) for foot, load in loads.items()},
    )
    if channels.torques is None:
        return readings
    torques = _in(log, channels.torques, "Nm")
    columns = find_columns(channels.torques, estimator.joints, torques.columns)
    return estimator.add_leg_forces(readings, Series(torques.times, torques.values[:, columns]))


def _check_overlap(channels: Mapping[str, Series]) -> None:
    """Raise `InputError` if two channels share no time, so that their clocks differ."""
    for (one, a), (other, b) in combinations(channels.items(), 2):
        if len(a) and len(b) and (a.times.max() < b.times.min() or b.times.max() < a.times.min()):
            raise InputError(
                f"channels {one!r} ({a.times.min():.6g} to {a.times.max():.6g} s) and {other!r} "
                f"({b.times.min():.6g} to {b.times.max():.6g} s) share no time; stamp both by one "
                "clock, with `time` in the mapping"
            )


def _in(log: Log, name: str, unit: str, width: int | None = None) -> Series:
    """Return a channel in a unit, with so many columns, each row once."""
    series = log[name]
    series = series.select_rows(find_first_rows(series))
    if series.unit not in ("1", unit):
        raise InputError(f"channel {name!r} must be in {unit}, got {series.unit}")
    if width is not None and series.values.shape[1] != width:
        raise InputError(
            f"channel {name!r} must have {width} columns, got {series.values.shape[1]}"
        )
    return series


def _at(series: Series, times: Array) -> Array:
    """Return the values (n, m) of a channel at these times."""
    if np.array_equal(series.times, times):
        return series.values
    known = series.sort_by_time()
    return np.column_stack([np.interp(times, known.times, column) for column in known.values.T])
