r"""Errors of estimated poses against a reference: ATE, RPE, drift, yaw, height and NEES.

- Absolute trajectory error (ATE): root mean square of :math:`|p_k - A r_k|` after the alignment A
  of the whole tracks (Sturm et al., IROS 2012).
- Relative pose error (RPE): with the motions :math:`P_i^{-1} P_j` of the estimate and
  :math:`Q_i^{-1} Q_j` of the reference over a span, the root mean square of the translation and of
  the angle of :math:`(Q_i^{-1} Q_j)^{-1} P_i^{-1} P_j`. It does not depend on the alignment.
- Errors at the end, drift and NEES are with position and yaw aligned at the start only, because an
  alignment of the whole tracks would hide what they measure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array, Indices, check_array, check_number
from hybridctl.estimation.pose_track import (
    Alignment,
    Association,
    PosePairs,
    PoseTrack,
    RigidMotion,
    align,
    associate,
)

PATH_STEP = 0.05
"""Distance in m between the positions that make the length of a path. Noise of motion capture (1 mm
at 100 Hz and more) would add metres to the sum over all of its rows; chords of 5 cm shorten a turn
of 30 cm radius by 0.1 %."""
SPAN = 1.0
"""Time in s and path in m of relative pose errors, as usual for legged odometry."""


class RelativeErrors(NamedTuple):
    """Root mean squares of relative pose errors: translation in m, rotation in rad."""

    translation: float
    rotation: float


@dataclass(frozen=True)
class TrajectoryErrors:
    """Errors of a track against a reference.

    Values are None where they cannot be found. Angles and relative errors need the orientations of
    both tracks, and relative errors a span without a gap. Position and height at the end need the
    same orientations, except with alignment "none". NEES need covariances and what errors at the
    end need. Ratios to a path are NaN if the path is at most `PATH_STEP` long.

    Attributes:
        alignment: Alignment of `ate`, `rotation_rms`, `yaw_rms` and `height_rms`.
        count: Number of pairs of poses.
        duration: Time in s from the first pair to the last.
        path_length: Path of the reference in m.
        path_length_ratio: Path of the estimates over that of the reference.
        ate: Root mean square of the error of the position in m.
        rotation_rms: Root mean square of the angle of the error of the orientation in rad.
        yaw_rms: Root mean square of the error about the vertical axis in rad.
        height_rms: Root mean square of the error of the height in m.
        rpe: Relative pose error over `SPAN` s.
        rpe_metre: Relative pose error over `SPAN` m of path: the drift per metre.
        end_error: Length of the error of the position at the end in m.
        end_share: `end_error` over `path_length`.
        end_height: Error of the height at the end in m, estimate minus reference.
        end_yaw: Error about the vertical axis at the end in rad, estimate minus reference.
        end_nees: Normalized squared error of the position at the end; 3 expected.
        mean_nees: Mean of the normalized squared errors of the position; 3 expected.
    """

    alignment: Alignment
    count: int
    duration: float
    path_length: float
    path_length_ratio: float
    ate: float
    rotation_rms: float | None
    yaw_rms: float | None
    height_rms: float
    rpe: RelativeErrors | None
    rpe_metre: RelativeErrors | None
    end_error: float | None
    end_share: float | None
    end_height: float | None
    end_yaw: float | None
    end_nees: float | None
    mean_nees: float | None

    def record(self) -> dict[str, Any]:
        """Return the values by name, for JSON."""
        return {
            name: value._asdict() if isinstance(value, RelativeErrors) else value
            for name, value in asdict(self).items()
        }


def trajectory_errors(
    estimate: PoseTrack,
    reference: PoseTrack,
    *,
    covariances: Array | None = None,
    alignment: Alignment = "yaw",
    association: Association = "interpolate",
    within: float | None = None,
) -> TrajectoryErrors:
    """Return the errors of estimated poses against a reference.

    Args:
        estimate: Estimated poses.
        reference: Poses of the same body, in a world of its own whose z axis points up too.
        covariances: Claimed covariances (n, 3, 3) of the estimated positions in m^2, in the world
            of the estimates.
        alignment: Alignment of the whole tracks, see `align`. With "none" errors at the end and
            NEES are without any alignment, too.
        association: How poses at the same times are found, see `associate`.
        within: See `associate`.

    Raises:
        InputError: The tracks share fewer than two stamps, or positions leave the rotation of the
            alignment undetermined.
        LinAlgError: A covariance that is used is singular.
    """
    pairs = associate(estimate, reference, association, within=within)
    whole = _error_rows(pairs, align(pairs, alignment))
    oriented = pairs.reference.orientations is not None and estimate.orientations is not None
    begun = None
    if oriented or alignment == "none":
        begun = _error_rows(pairs, align(pairs, "start" if alignment != "none" else "none"))
    path = path_distances(pairs.reference.positions)
    nees = None
    if covariances is not None and begun is not None:
        given = check_array("covariances", covariances, (len(estimate), 3, 3))[pairs.rows]
        nees = np.einsum(
            "ij,ij->i", begun.position, np.linalg.solve(given, begun.position[..., None])[..., 0]
        )
    end = None if begun is None else float(np.linalg.norm(begun.position[-1]))
    length = float(path[-1])
    times = pairs.reference.times
    return TrajectoryErrors(
        alignment=alignment,
        count=len(times),
        duration=float(times[-1] - times[0]),
        path_length=length,
        path_length_ratio=_ratio(float(path_distances(pairs.estimate.positions)[-1]), length),
        ate=_rms(whole.position),
        rotation_rms=None if whole.turn is None else _rms(whole.turn),
        yaw_rms=None if whole.turn is None else _rms(whole.turn[:, 2:]),
        height_rms=_rms(whole.position[:, 2:]),
        rpe=_relative_errors(pairs, times, np.arange(len(times))) if oriented else None,
        rpe_metre=_relative_errors(pairs, path, _path_rows(path)) if oriented else None,
        end_error=end,
        end_share=None if end is None else _ratio(end, length),
        end_height=None if begun is None else float(begun.position[-1, 2]),
        end_yaw=None if begun is None or begun.turn is None else float(begun.turn[-1, 2]),
        end_nees=None if nees is None else float(nees[-1]),
        mean_nees=None if nees is None else float(nees.mean()),
    )


def path_distances(positions: Array, step: float = PATH_STEP) -> Array:
    """Return the length (n,) in m of the path up to each position (n, 3).

    The path goes straight between positions that are at least `step` apart; between them the length
    grows linearly with the number of the row.

    Args:
        positions: Positions (n, 3), m.
        step: Least distance of the positions that make the path, m.

    Raises:
        InputError: `step` is not positive.
    """
    check_number("step", step, above=0.0)
    kept, lengths = [0], [0.0]
    for k, place in enumerate(positions):
        moved = float(np.linalg.norm(place - positions[kept[-1]]))
        if moved >= step:
            kept.append(k)
            lengths.append(lengths[-1] + moved)
    if kept[-1] < len(positions) - 1:  # what is left at the end, less than a step
        lengths.append(lengths[-1] + float(np.linalg.norm(positions[-1] - positions[kept[-1]])))
        kept.append(len(positions) - 1)
    return np.asarray(np.interp(np.arange(len(positions)), kept, lengths))


def _path_rows(path: Array) -> Indices:
    """Return rows about `PATH_STEP` apart, so that a robot that stands does not count more."""
    marks = np.arange(0.0, path[-1], PATH_STEP)
    return np.unique(path.searchsorted(marks))


class _ErrorRows(NamedTuple):
    """Errors at each pair: position (n, 3) in m and turn (n, 3) in rad, in the estimates' world."""

    position: Array
    turn: Array | None


def _error_rows(pairs: PosePairs, motion: RigidMotion) -> _ErrorRows:
    """Return estimate minus reference, the reference moved into the world of the estimates."""
    reference = pairs.reference.transform(motion)
    turns, others = pairs.estimate.rotations, reference.rotations
    turn = None if turns is None or others is None else (turns * others.inv()).as_rotvec()
    return _ErrorRows(pairs.estimate.positions - reference.positions, turn)


def _relative_errors(pairs: PosePairs, along: Array, rows: Indices) -> RelativeErrors | None:
    """Return relative pose errors over `SPAN` of time or path; None without a span free of gaps.

    Args:
        pairs: Poses at the same times, with orientations.
        along: Time or path (n,) at each pair, which does not decrease.
        rows: Pairs from which spans begin.
    """
    ends = along.searchsorted(along[rows] + SPAN * (1.0 - 1e-9))
    begins = rows[ends < len(along)]
    ends = ends[ends < len(along)]
    # A span that ends behind a gap is longer than it should be.
    whole = along[ends] - along[begins] <= 1.1 * SPAN
    begins, ends = begins[whole], ends[whole]
    if not len(begins):
        return None
    steps: list[tuple[Array, Rotation]] = []
    for track in (pairs.estimate, pairs.reference):
        turns = track.rotations
        assert turns is not None
        back = turns[begins].inv()
        moved = track.positions[ends] - track.positions[begins]
        steps.append((back.apply(moved), back * turns[ends]))
    (moved, turned), (other, other_turn) = steps
    return RelativeErrors(_rms(moved - other), _rms((other_turn.inv() * turned).as_rotvec()))


def _rms(errors: Array) -> float:
    """Return the root mean square of the lengths of rows (n, m)."""
    return float(np.sqrt((errors**2).sum(axis=1).mean()))


def _ratio(value: float, length: float) -> float:
    """Return a value over a length; NaN for one of at most `PATH_STEP`: the robot stands."""
    return value / length if length > PATH_STEP else float("nan")
