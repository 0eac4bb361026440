"""Tracks of a legged base from one log: by its own settings, and by the baselines beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from hybridctl.base.checks import Array
from hybridctl.estimation.pose_track import PoseTrack
from hybridctl.legged.odometry import leg_odometry, literature_settings
from hybridctl.logs.legged import BaseModel, BaseRun, base_readings, filter_base
from hybridctl.logs.schema import Log
from hybridctl.mechanics.multibody.robot import Robot


@dataclass(frozen=True, eq=False)
class BaseTrack:
    """Poses of the root along a log by one method.

    Attributes:
        track: Poses.
        covariances: Claimed covariances (n, 3, 3) of the positions in m^2; None where the method
            claims none.
        seconds: Time of computing in s per pose.
    """

    track: PoseTrack
    covariances: Array | None
    seconds: float


def filtered_track(run: BaseRun) -> BaseTrack:
    """Return the track of a filter's run."""
    seconds = run.result.seconds / len(run.roots)
    return BaseTrack(run.track, run.position_covariances, seconds)


def invariant_track(log: Log, model: BaseModel) -> BaseTrack:
    """Return the track of the invariant filter of the literature, see `literature_settings`."""
    settings = literature_settings(model.settings)
    return filtered_track(filter_base(log, replace(model, settings=settings)))


def odometry_track(log: Log, model: BaseModel) -> BaseTrack:
    """Return the track of odometry by gyroscope and loaded feet, see `leg_odometry`."""
    estimator = model.settings.build(Robot.from_urdf(Path(model.urdf)))
    readings = base_readings(log, model.channels, estimator)
    first = estimator.start(readings, heading=model.heading, position=model.position)
    begun = perf_counter()
    track = leg_odometry(estimator, readings, first)
    return BaseTrack(track, None, (perf_counter() - begun) / len(track))


BASELINES: dict[str, Callable[[Log, BaseModel], BaseTrack]] = {
    "invariant": invariant_track,
    "odometry": odometry_track,
}
"""Baselines by name, as `hybridctl filter --compare` prints them."""
