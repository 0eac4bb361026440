"""How far estimates of a base are from motion capture, and whether they know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hybridctl.experiments.legged.recording import Truth
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array
from hybridctl.estimation.legged.estimator import RootPose


@dataclass(frozen=True, eq=False)
class Track:
    """Poses of the root: times (n,), position (n, 3), Euler angles (n, 3), covariance (n, 9, 9).

    covariance is None where a method claims none.
    """

    times: Array
    position: Array
    angles: Array
    covariance: Array | None

    @staticmethod
    def of(roots: Sequence[RootPose]) -> Track:
        """The track of a filter's poses."""
        angles = euler(np.array([root.orientation for root in roots]))
        return Track(
            np.array([root.time for root in roots]),
            np.array([root.position for root in roots]),
            angles,
            np.array([root.covariance for root in roots]),
        )


def euler(quaternions: Array) -> Array:
    """Roll, pitch and yaw (n, 3) in rad, the yaw without jumps."""
    angles = Rotation.from_quat(quaternions).as_euler("ZYX")[:, ::-1].copy()
    angles[:, 2] = np.unwrap(angles[:, 2])
    return np.asarray(angles)


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors at the rows with truth: times (n,), position (n, 3) in m, angles (n, 3) in rad.

    nees (n,): of the position, None without covariance. spread (n, 4): claimed standard deviations
    of the position in m and of the yaw in rad.
    """

    times: Array
    position: Array
    angles: Array
    nees: Array | None
    spread: Array | None


def errors(track: Track, truth: Truth) -> Errors:
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
    return Errors(truth.times[rows], position, angles, nees, spread)


def judged(found: Errors, walk: float) -> dict[str, Any]:
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
