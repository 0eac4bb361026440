"""The base of a legged robot along a log: readings of its sensors, the filter, and baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import ImplausibleLogError, InputError
from hybridctl.base.time_series import Series
from hybridctl.estimation.pose_track import PoseTrack
from hybridctl.estimation.result import FilterResult
from hybridctl.legged.estimator import BaseEstimator, RootPose
from hybridctl.legged.measurements import ANGLES
from hybridctl.legged.odometry import leg_odometry, literature_settings
from hybridctl.legged.readings import Readings
from hybridctl.legged.time_offset import TimeOffset
from hybridctl.legged.verdict import WalkVerdict, judge_walk
from hybridctl.logs.base_model import BaseChannels, BaseModel
from hybridctl.logs.column_names import find_columns
from hybridctl.logs.estimates import PoseSeries, write_estimates
from hybridctl.logs.log import Log
from hybridctl.logs.quality import find_disjoint_channels
from hybridctl.logs.stamp_faults import find_first_rows
from hybridctl.logs.tum import write_tum


@dataclass(frozen=True, eq=False)
class BaseRun:
    """The result of a filter along a log, with the root after each row of joint angles.

    Attributes:
        estimator: The estimator.
        readings: Readings of the log.
        result: Result of the filter.
        roots: Root after each of n rows of joint angles, from the first inertial sample on.
        contacts: Probability (n, k) of each of the k feet to stand, at the same rows.
        flags: Reasons not to trust the poses, one sentence each.
        faults: The first of the flags, which name wiring mistakes.
        walk: Verdict on the filter by innovations and footholds.
        time_offset: Delay of the inertial sensor against the joints, and its compensation.
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
        """Poses of the root; the last one of rows with the same stamp."""
        return PoseTrack(*self._select_at_stamps("time", "position", "orientation"))

    @property
    def position_covariances(self) -> Array:
        """Covariances (n, 3, 3) in m^2 of the positions of `track`."""
        return self._select_at_stamps("covariance")[0][:, 3:6, 3:6]

    def _select_at_stamps(self, *names: str) -> list[Array]:
        """Return attributes of the root by name, with one row for each stamp."""
        times = np.array([root.time for root in self.roots])
        last = np.flatnonzero(np.append(np.diff(times) > 0.0, True))
        return [np.array([getattr(self.roots[k], name) for k in last]) for name in names]

    def write(self, folder: str | Path, *, origin_ns: int = 0, mcap: bool = False) -> list[Path]:
        """Write times, poses, velocities, covariances and contacts.

        Args:
            folder: Folder of estimates.npz, estimates.csv (see `write_estimates`) and estimates.tum
                (see `write_tum`).
            origin_ns: Time of stamp 0 in ns since 1970.
            mcap: Whether estimates.mcap is written, too.

        Returns:
            The paths of the files: NPZ, CSV, MCAP if there is one, TUM.
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
        ArithmeticError: The filter fails on a log without a wiring mistake.
        RuntimeError: The filter fails on a log without a wiring mistake.
        ValueError: The filter fails on a log without a wiring mistake; or settings do not fit the
            robot.
        InputError: Channels have other units, columns or clocks.
    """
    estimator = model.settings.build(model.build_robot())
    readings = make_base_readings(log, model.channels, estimator)
    faults = estimator.find_wiring_faults(readings)
    try:
        first = estimator.start(readings, heading=model.heading, position=model.position)
        record = estimator.record(readings)
        delay = estimator.time_offset(readings).left
        result = estimator.run_record(record, first, delay=delay)
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


def make_base_readings(log: Log, channels: BaseChannels, estimator: BaseEstimator) -> Readings:
    """Return the readings of a log for an estimator; columns of joints are found by their names.

    Feet without a force sensor get forces by joint torques, where the log has these (see
    `leg_forces`). Where gyroscope and accelerometer have stamps of their own, specific forces are
    interpolated at the stamps of the rates.

    Args:
        log: The log.
        channels: Names of its channels.
        estimator: Estimator with joints and feet.

    Raises:
        UnknownNameError: The log does not have a channel or joint.
        InputError: A channel with a unit is not in rad, rad/s, m/s^2, N or Nm, has other columns,
            or has stamps that cannot be put in order; or two channels share no time.
    """
    names = [channels.gyroscope, channels.accelerometer, channels.joints]
    names += [name for name in (*channels.loads, channels.torques) if name is not None]
    log.check_stamps(names)
    rate = _read_channel(log, channels.gyroscope, "rad/s", 3)
    force = _read_channel(log, channels.accelerometer, "m/s^2", 3)
    angles = _read_channel(log, channels.joints, "rad")
    columns = find_columns(channels.joints, estimator.joints, angles.columns)
    loads = {
        foot: _read_channel(log, name, "N")
        for foot, name in zip(estimator.base.feet, channels.loads, strict=True)
        if name is not None
    }
    _check_overlap({name: log[name] for name in names})
    readings = Readings(
        Series(rate.times, np.hstack([rate.values, _interpolate(force, rate.times)])),
        Series(angles.times, angles.values[:, columns]),
        # The last column is the vertical force, see `BaseChannels`.
        {foot: Series(load.times, load.values[:, -1:]) for foot, load in loads.items()},
    )
    if channels.torques is None:
        return readings
    torques = _read_channel(log, channels.torques, "Nm")
    columns = find_columns(channels.torques, estimator.joints, torques.columns)
    return estimator.add_leg_forces(readings, Series(torques.times, torques.values[:, columns]))


def _check_overlap(channels: Mapping[str, Series]) -> None:
    """Check that all channels share some time, because their clocks differ otherwise.

    Args:
        channels: Channels by name.

    Raises:
        InputError: Two channels share no time.
    """
    for pair in find_disjoint_channels(channels):
        spans = [
            f"{name!r} ({times.min():.6g} to {times.max():.6g} s)"
            for name, times in ((name, channels[name].times) for name in pair)
        ]
        raise InputError(
            f"channels {' and '.join(spans)} share no time; stamp both by one clock, with `time` "
            "in the mapping"
        )


def _read_channel(log: Log, name: str, unit: str, width: int | None = None) -> Series:
    """Return a channel without rows that repeat an earlier one.

    Args:
        log: The log.
        name: Name of the channel.
        unit: Unit that it must have, if the log names one.
        width: Number of columns that it must have; None for any.

    Raises:
        UnknownNameError: The log does not have the channel.
        InputError: The channel has another unit or other columns.
    """
    series = log[name]
    series = series.select_rows(find_first_rows(series))
    if series.unit not in ("1", unit):
        raise InputError(f"channel {name!r} must be in {unit}, got {series.unit}")
    if width is not None and series.values.shape[1] != width:
        raise InputError(
            f"channel {name!r} must have {width} columns, got {series.values.shape[1]}"
        )
    return series


def _interpolate(series: Series, times: Array) -> Array:
    """Return the values (n, m) of a channel at times (n,) in s, constant before and after it."""
    if np.array_equal(series.times, times):
        return series.values  # unchanged, missing values included
    known = series.sort_by_time()
    return np.column_stack([np.interp(times, known.times, column) for column in known.values.T])


@dataclass(frozen=True, eq=False)
class BaseTrack:
    """Poses of the root along a log by one method.

    Attributes:
        track: Poses.
        covariances: Claimed covariances (n, 3, 3) of the positions in m^2; None where the method
            claims none.
        seconds: Computing time in s per pose.
    """

    track: PoseTrack
    covariances: Array | None
    seconds: float


def make_filtered_track(run: BaseRun) -> BaseTrack:
    """Return the track of a filter's run."""
    seconds = run.result.seconds / len(run.roots)
    return BaseTrack(run.track, run.position_covariances, seconds)


def compute_invariant_track(log: Log, model: BaseModel) -> BaseTrack:
    """Return the track of the invariant filter of the literature, see `literature_settings`.

    It raises the errors of `filter_base`.

    Args:
        log: Log with the channels that the model names.
        model: Model of the robot, of whose settings those of the literature keep a part.
    """
    settings = literature_settings(model.settings)
    return make_filtered_track(filter_base(log, replace(model, settings=settings)))


def compute_odometry_track(log: Log, model: BaseModel) -> BaseTrack:
    """Return the track of odometry by gyroscope and loaded feet, see `leg_odometry`.

    Neither the filter runs nor is the log examined for wiring mistakes.

    Args:
        log: Log with the channels that the model names.
        model: Model of the robot.
    """
    estimator = model.settings.build(model.build_robot())
    readings = make_base_readings(log, model.channels, estimator)
    first = estimator.start(readings, heading=model.heading, position=model.position)
    before = perf_counter()
    track = leg_odometry(estimator, readings, first)
    return BaseTrack(track, None, (perf_counter() - before) / len(track))


BASELINES: dict[str, Callable[[Log, BaseModel], BaseTrack]] = {
    "invariant": compute_invariant_track,
    "odometry": compute_odometry_track,
}
"""Functions that compute baselines, by the names that `hybridctl filter --compare` prints."""
