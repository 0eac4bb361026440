"""Each way to estimate a base is scored by its errors against motion capture, and by its NEES."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from hybridctl.experiments.legged.recording import FEET, LeggedLog, MotionCapture, convert_to_euler

from hybridctl.base.checks import Array
from hybridctl.estimation import Estimate, Record
from hybridctl.estimation.result import FilterResult
from hybridctl.legged import BaseEstimator, BaseSettings, Readings
from hybridctl.legged.measurements import ANGLES
from hybridctl.legged.rotation import matrix, quaternion


def run_odometry(
    estimator: BaseEstimator, readings: Readings, orientation: Array, position: Array
) -> Track:
    """Return the root over the foot with the greater force, which stays in place meanwhile.

    Args:
        estimator: Kinematics of the robot.
        readings: Joint angles and forces of the feet.
        orientation: Quaternion of the root at the first row of angles (4,).
        position: Position of the root there (3,), m.
    """
    timed, kinematics = estimator.readings(readings), estimator.base.kinematics
    feet, angles = list(timed.loads), timed.angles
    loads = np.hstack([timed.loads[foot].hold_last(angles.times) for foot in feet])
    stance = np.argmax(loads, axis=1)
    inner, offset = kinematics.base  # inertial frame in the root
    turn, place = matrix(orientation), np.array(position, dtype=np.float64)
    foot_pose = turn, place
    turns, places, last = [], [], -1
    for row, k in zip(angles.values, stance, strict=True):
        poses = dict(zip(feet, kinematics(row, feet), strict=True))
        own = {f: (inner @ p.rotation, offset + inner @ p.position) for f, p in poses.items()}
        if k != last:
            if last >= 0:
                turn, place = _locate_root(*foot_pose, *own[feet[last]])
            c, s = own[feet[k]]
            foot_pose, last = (turn @ c, place + turn @ s), k
        turn, place = _locate_root(*foot_pose, *own[feet[k]])
        turns.append(quaternion(turn))
        places.append(place)
    return Track(angles.times, np.array(places), convert_to_euler(np.array(turns)), None)


def _locate_root(foot_turn: Array, foot_place: Array, c: Array, s: Array) -> tuple[Array, Array]:
    """Return the pose of the root, in whose frame a foot has rotation c and position s."""
    turn = foot_turn @ c.T
    return turn, foot_place - turn @ s


Begin: TypeAlias = Callable[[BaseEstimator, Estimate], Estimate]
"""Changes the estimate at the start."""


@dataclass(frozen=True, eq=False)
class Track:
    """Poses of the root.

    Attributes:
        times: Times (n,), s.
        position: Positions in the world (n, 3), m.
        angles: Roll, pitch and yaw (n, 3), rad.
        covariance: Covariance (n, 9, 9) of angles, position and velocity; None if the method has
            none.
    """

    times: Array
    position: Array
    angles: Array
    covariance: Array | None


@dataclass(frozen=True, eq=False)
class BaseErrors:
    """Errors at the rows with truth.

    Attributes:
        times: Times (n,), s.
        position: Errors of the position (n, 3), m.
        angles: Errors of roll, pitch and yaw (n, 3), rad.
        nees: Normalised estimation error squared of the position (n,); None without covariance.
        spread: Standard deviations (n, 4) of the position (m) and the yaw (rad); None without
            covariance.
    """

    times: Array
    position: Array
    angles: Array
    nees: Array | None
    spread: Array | None


def compute_errors(track: Track, truth: MotionCapture) -> BaseErrors:
    """Return the errors of a track at the rows of truth that are good and not before it."""
    rows = np.flatnonzero(truth.good & (truth.times >= track.times[0] - 1e-6))
    at = np.clip(track.times.searchsorted(truth.times[rows] + 1e-6) - 1, 0, None)
    position = track.position[at] - truth.position[rows]
    angles = np.mod(track.angles[at] - truth.angles[rows] + np.pi, 2.0 * np.pi) - np.pi
    nees = spread = None
    if track.covariance is not None:
        p = track.covariance[at]
        whitened = np.linalg.solve(p[:, 3:6, 3:6], position[..., None])[..., 0]
        nees = np.einsum("ij,ij->i", position, whitened)
        variances = np.diagonal(p, axis1=1, axis2=2)
        spread = np.sqrt(variances[:, [3, 4, 5, 2]])
    return BaseErrors(truth.times[rows], position, angles, nees, spread)


def summarize_errors(found: BaseErrors, walk: float) -> dict[str, Any]:
    """Return root mean squares (m, rad) and mean NEES, over all and from a time on.

    Args:
        found: Errors of a track.
        walk: Time at which the robot begins to walk, s.
    """
    walking = found.times >= walk
    return {
        "position_rmse": compute_rms(found.position),
        "position_rmse_walk": compute_rms(found.position[walking]),
        "final_position_error": float(np.linalg.norm(found.position[-1])),
        "roll_rmse": compute_rms(found.angles[:, 0]),
        "pitch_rmse": compute_rms(found.angles[:, 1]),
        "yaw_rmse": compute_rms(found.angles[:, 2]),
        "yaw_rmse_walk": compute_rms(found.angles[walking, 2]),
        "mean_nees": None if found.nees is None else float(found.nees.mean()),
        "mean_nees_walk": None if found.nees is None else float(found.nees[walking].mean()),
    }


def compute_rms(errors: Array) -> float:
    """Return the root mean square of numbers (n,), or of the norms of rows (n, 3)."""
    square = errors**2 if errors.ndim == 1 else (errors**2).sum(axis=1)
    return float(np.sqrt(square.mean()))


class BaseOutcome(NamedTuple):
    """The outcome of one way to estimate the base.

    Attributes:
        name: Name of the way.
        errors: Errors of the track.
        track: Poses of the root.
        result: Result of the filter; None without a filter.
        settings: Settings of the filter; None without a filter.
        touchdowns: Number of touchdowns by side; empty without a filter.
    """

    name: str
    errors: BaseErrors
    track: Track
    result: FilterResult | None = None
    settings: BaseSettings | None = None
    touchdowns: dict[str, int] = {}  # noqa: RUF012 read only


def run_filter(
    name: str,
    settings: BaseSettings,
    recording: LeggedLog,
    *,
    signals: bool = True,
    begin: Begin | None = None,
    orientation: Sequence[float] | None = None,
    readings: Readings | None = None,
) -> BaseOutcome:
    """Return the outcome of the filter, which starts at the first true position and heading.

    Args:
        name: Name of the outcome.
        settings: Settings of the filter.
        recording: Recording with its truth.
        signals: Whether contacts change by forces.
        begin: Changes the estimate at the start; None for no change.
        orientation: Quaternion of the root at the start (4,); None for that by gravity.
        readings: Readings instead of the recorded ones; None for those.
    """
    estimator, truth = settings.build(recording.robot), recording.truth
    given = recording.get_readings(estimator) if readings is None else readings
    heading, position = float(truth.angles[0, 2]), truth.position[0]
    first = estimator.start(given, heading=heading, position=position, orientation=orientation)
    if begin is not None:
        first = begin(estimator, first)
    record = estimator.record(given)
    if not signals:
        # Forces that never change a contact; without any, contacts would be found by motion.
        forces = {n: s for n, s in record.channels.items() if n in estimator.filter.signals}
        silent = {n: s.select_rows(np.zeros(len(s), dtype=bool)) for n, s in forces.items()}
        record = Record({ANGLES: record.channels[ANGLES], **silent}, record.inputs)
    result = estimator.run_record(record, first)
    track = track_root(estimator, record, [s.estimate for s in result.steps if s.channel == ANGLES])
    changes = estimator.contact_changes(result)
    downs = dict(zip(("left", "right"), (changes[foot][0] for foot in FEET), strict=True))
    return BaseOutcome(name, compute_errors(track, truth), track, result, settings, downs)


def track_root(estimator: BaseEstimator, record: Record, estimates: Sequence[Estimate]) -> Track:
    """Return the root along estimates.

    Args:
        estimator: Estimator of the base.
        record: Record with the measured angular velocity.
        estimates: Estimates of the inertial frame, in order.
    """
    inputs = [record.input(estimate.time) for estimate in estimates]
    roots = [
        estimator.root(e, None if u is None else u[:3])
        for e, u in zip(estimates, inputs, strict=True)
    ]
    return Track(
        np.array([root.time for root in roots]),
        np.array([root.position for root in roots]),
        convert_to_euler(np.array([root.orientation for root in roots])),
        np.array([root.covariance for root in roots]),
    )
