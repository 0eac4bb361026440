"""A way to estimate a base: how far it is from motion capture, and whether it knows that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hybridctl.experiments.legged.recording import FEET, LeggedLog, MotionCapture, euler

from hybridctl.base.checks import Array
from hybridctl.estimation import Estimate, Record
from hybridctl.estimation.result import FilterResult
from hybridctl.legged.estimator import BaseEstimator, BaseSettings
from hybridctl.legged.measurements import ANGLES
from hybridctl.legged.readings import Readings
from hybridctl.legged.rotation import matrix, quaternion


def odometry(
    estimator: BaseEstimator, readings: Readings, orientation: Array, position: Array
) -> Track:
    """The root over the foot that bears more, which is held where it is until the other does.

    orientation (4,), position (3,): of the root at the first row of angles.
    """
    timed, kinematics = estimator.readings(readings), estimator.base.kinematics
    feet, angles = list(timed.loads), timed.angles
    loads = np.hstack([timed.loads[foot].hold_last(angles.times) for foot in feet])
    bearing = np.argmax(loads, axis=1)
    inner, offset = kinematics.base  # inertial frame in the root
    turn, place = matrix(orientation), np.array(position, dtype=np.float64)
    held_foot = turn, place
    turns, places, last = [], [], -1
    for row, k in zip(angles.values, bearing, strict=True):
        seen = dict(zip(feet, kinematics(row, feet), strict=True))
        own = {f: (inner @ s.rotation, offset + inner @ s.position) for f, s in seen.items()}
        if k != last:
            if last >= 0:
                turn, place = _root(*held_foot, *own[feet[last]])
            c, s = own[feet[k]]
            held_foot, last = (turn @ c, place + turn @ s), k
        turn, place = _root(*held_foot, *own[feet[k]])
        turns.append(quaternion(turn))
        places.append(place)
    return Track(angles.times, np.array(places), euler(np.array(turns)), None)


def _root(foot_turn: Array, foot_place: Array, c: Array, s: Array) -> tuple[Array, Array]:
    """The root that sees a foot, held there, in rotation c and position s."""
    turn = foot_turn @ c.T
    return turn, foot_place - turn @ s


Begin = Callable[[BaseEstimator, Estimate], Estimate]


@dataclass(frozen=True, eq=False)
class Track:
    """Poses of the root: times (n,), position (n, 3), Euler angles (n, 3), covariance (n, 9, 9).

    covariance is None where a method claims none.
    """

    times: Array
    position: Array
    angles: Array
    covariance: Array | None


@dataclass(frozen=True, eq=False)
class BaseErrors:
    """Errors at the rows with truth: times (n,), position (n, 3) in m, angles (n, 3) in rad.

    nees (n,): of the position, None without covariance. spread (n, 4): claimed standard deviations
    of the position in m and of the yaw in rad.
    """

    times: Array
    position: Array
    angles: Array
    nees: Array | None
    spread: Array | None


def errors(track: Track, truth: MotionCapture) -> BaseErrors:
    """Errors of a track at the rows of truth that are good and not before it."""
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


def judged(found: BaseErrors, walk: float) -> dict[str, Any]:
    """Root mean squares in m and rad over all, and from the time `walk` on; mean NEES of 3."""
    walking = found.times >= walk
    return {
        "position_rmse": rms(found.position),
        "position_rmse_walk": rms(found.position[walking]),
        "final_position_error": float(np.linalg.norm(found.position[-1])),
        "roll_rmse": rms(found.angles[:, 0]),
        "pitch_rmse": rms(found.angles[:, 1]),
        "yaw_rmse": rms(found.angles[:, 2]),
        "yaw_rmse_walk": rms(found.angles[walking, 2]),
        "mean_nees": None if found.nees is None else float(found.nees.mean()),
        "mean_nees_walk": None if found.nees is None else float(found.nees[walking].mean()),
    }


def rms(errors: Array) -> float:
    """The root mean square of numbers (n,), or of the lengths of rows (n, 3)."""
    square = errors**2 if errors.ndim == 1 else (errors**2).sum(axis=1)
    return float(np.sqrt(square.mean()))


class BaseOutcome(NamedTuple):
    """What came of one way to estimate the base: errors, the track, and the filter's result.

    touchdowns: by side.
    """

    name: str
    errors: BaseErrors
    track: Track
    result: FilterResult | None = None
    settings: BaseSettings | None = None
    touchdowns: dict[str, int] = {}  # noqa: RUF012 read only


def filtered(
    name: str,
    settings: BaseSettings,
    recording: LeggedLog,
    *,
    signals: bool = True,
    begin: Begin | None = None,
    orientation: Sequence[float] | None = None,
    readings: Readings | None = None,
) -> BaseOutcome:
    """The filter on a recording, begun at the first true position and heading.

    signals: whether contacts change. begin: changes the estimate at the start. orientation: of
    the root at the start, instead of that by gravity. readings: instead of those recorded.
    """
    estimator, truth = settings.build(recording.robot), recording.truth
    given = recording.readings(estimator) if readings is None else readings
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
    track = tracked(estimator, record, [s.estimate for s in result.steps if s.channel == ANGLES])
    changes = estimator.contact_changes(result)
    downs = dict(zip(("left", "right"), (changes[foot][0] for foot in FEET), strict=True))
    return BaseOutcome(name, errors(track, truth), track, result, settings, downs)


def tracked(estimator: BaseEstimator, record: Record, estimates: Sequence[Estimate]) -> Track:
    """The root along estimates of a record."""
    inputs = [record.input(estimate.time) for estimate in estimates]
    roots = [
        estimator.root(e, None if u is None else u[:3])
        for e, u in zip(estimates, inputs, strict=True)
    ]
    return Track(
        np.array([root.time for root in roots]),
        np.array([root.position for root in roots]),
        euler(np.array([root.orientation for root in roots])),
        np.array([root.covariance for root in roots]),
    )
