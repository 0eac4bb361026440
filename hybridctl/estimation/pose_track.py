"""Poses of a body over time, their association by stamps, and the alignment of two tracks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation, Slerp

from hybridctl.base.checks import Array, Indices, check_array, check_member, check_number
from hybridctl.base.errors import InputError

Association = Literal["interpolate", "nearest"]
Alignment = Literal["none", "start", "yaw", "se3"]
ASSOCIATIONS: tuple[Association, ...] = ("interpolate", "nearest")
ALIGNMENTS: tuple[Alignment, ...] = ("none", "start", "yaw", "se3")

NORM_DEVIATION = 0.1
"""Largest deviation of a quaternion's length from 1; what is farther off is no rotation. A choice,
the same as for measured orientations of logs."""
PERIODS_APART = 3.0
"""Median periods of the estimates that a stamp may be away from them; a longer time is a gap. A
choice."""
START_SPAN = 0.2
"""Time in s over which the poses at the start are averaged when they are aligned, so that the noise
of one pose of motion capture (about 0.2 deg) does not turn the whole track."""
LEAST_EXTENT = 0.05
"""Bound for "yaw": extent in m of either track, the larger of those along x and y, up to which its
positions leave a turn about the vertical undetermined: noise of 1 mm over 5 cm turns it by 1 deg.
"""
LEAST_SPREAD = 1e-3
"""Bound for "se3": extent across either track over that along it (second over first singular value
of its centred positions), up to which these leave a rotation about the track undetermined. A line
of 10 m that is known to 1 cm has this ratio."""


@dataclass(frozen=True, eq=False)
class PoseTrack:
    """Poses of a body in a world frame at increasing times.

    Attributes:
        times: Stamps (n,) in s, strictly increasing.
        positions: Positions (n, 3) in m, in the world frame.
        orientations: Unit quaternions (n, 4), x, y, z, w, from the body to the world, normalized
            from those that are given; None where only positions are known.

    Raises:
        InputError: Shapes do not fit, times do not increase strictly, or the length of a quaternion
            is farther from 1 than `NORM_DEVIATION`.
    """

    times: Array
    positions: Array
    orientations: Array | None = None

    def __post_init__(self) -> None:
        times = check_array("times", self.times, (None,))
        if not (np.diff(times) > 0.0).all():
            raise InputError("times of a track must increase strictly")
        object.__setattr__(self, "times", times)
        places = check_array("positions", self.positions, (len(times), 3))
        object.__setattr__(self, "positions", places)
        if self.orientations is not None:
            given = check_array("orientations", self.orientations, (len(times), 4))
            lengths = np.linalg.norm(given, axis=1)
            wrong = np.flatnonzero(np.abs(lengths - 1.0) > NORM_DEVIATION)
            if len(wrong):
                raise InputError(
                    f"orientations must be unit quaternions x, y, z, w; row {wrong[0]} has length "
                    f"{lengths[wrong[0]]:.3g}"
                )
            object.__setattr__(self, "orientations", given / lengths[:, None])

    def __len__(self) -> int:
        return len(self.times)

    @property
    def rotations(self) -> Rotation | None:
        """The orientations as rotations, None without them."""
        return None if self.orientations is None else Rotation.from_quat(self.orientations)

    def select_rows(self, chosen: Indices) -> PoseTrack:
        """Return the track of some rows, whose numbers must increase."""
        turns = None if self.orientations is None else self.orientations[chosen]
        return PoseTrack(self.times[chosen], self.positions[chosen], turns)

    def interpolate(self, times: Array) -> PoseTrack:
        """Return the track at other times (m,) within its own.

        Positions are interpolated linearly, orientations along the geodesic of rotations.

        Args:
            times: Stamps (m,) in s, strictly increasing.

        Raises:
            InputError: A stamp is before the first or after the last of the track, or stamps do not
                increase strictly.
        """
        if len(times) and (np.min(times) < self.times[0] or np.max(times) > self.times[-1]):
            raise InputError(
                f"times must be within the track, {self.times[0]:.6g} to {self.times[-1]:.6g} s, "
                f"got {np.min(times):.6g} to {np.max(times):.6g} s"
            )
        places = np.column_stack([np.interp(times, self.times, p) for p in self.positions.T])
        turns = self.rotations
        return PoseTrack(times, places, None if turns is None else _slerp(self, turns, times))

    def transform(self, motion: RigidMotion) -> PoseTrack:
        """Return the track in another world frame, p -> R p + t."""
        turns = self.rotations
        return PoseTrack(
            self.times,
            self.positions @ motion.rotation.T + motion.translation,
            None if turns is None else (Rotation.from_matrix(motion.rotation) * turns).as_quat(),
        )


def _slerp(track: PoseTrack, turns: Rotation, times: Array) -> Array:
    """Return quaternions (m, 4) between the orientations of a track, at times within it."""
    # SciPy's Slerp needs two rotations. A track of one pose has only that pose's time within it.
    if len(track) == 1:
        return np.repeat(turns.as_quat(), len(times), axis=0)
    return np.asarray(Slerp(track.times, turns)(times).as_quat())


class RigidMotion(NamedTuple):
    """A rotation R (3, 3) and then a translation t (3,) in m: p -> R p + t."""

    rotation: Array
    translation: Array


class PosePairs(NamedTuple):
    """Two tracks at the same times.

    Attributes:
        estimate: Estimated poses.
        reference: Poses of the reference, at the same times, which are its own.
        rows: Row of the original estimates that is nearest in time to each pair.
    """

    estimate: PoseTrack
    reference: PoseTrack
    rows: Indices


def associate(
    estimate: PoseTrack,
    reference: PoseTrack,
    method: Association = "interpolate",
    *,
    within: float | None = None,
) -> PosePairs:
    """Return the pairs of estimated poses and poses of a reference at the same times.

    Args:
        estimate: Estimated poses.
        reference: Poses of the reference.
        method: "interpolate" takes the estimates at the stamps of the reference, interpolated
            between the two that surround each; none are extrapolated. "nearest" takes the nearest
            estimate, with the stamp of the reference; each estimate is used once, for the nearest
            stamp of the reference.
        within: Longest time in s between a stamp of the reference and the estimates that are used
            for it, both of them with "interpolate"; None for `PERIODS_APART` median periods of the
            estimates.

    Raises:
        InputError: There are fewer than two estimates, `within` is not positive, or fewer than two
            stamps of the reference have estimates within that time.
        UnknownNameError: There is no such method.
    """
    check_member("association", method, ASSOCIATIONS)
    if len(estimate) < 2:
        raise InputError(f"estimates must have two poses at least, got {len(estimate)}")
    if within is None:
        within = PERIODS_APART * float(np.median(np.diff(estimate.times)))
    check_number("within", within, above=0.0)
    # Rows of the estimates before and after each stamp of the reference. Both are the estimate at
    # the stamp itself if there is one, and the first or the last outside of all estimates.
    before = np.clip(estimate.times.searchsorted(reference.times, "right") - 1, 0, None)
    after = np.minimum(estimate.times.searchsorted(reference.times, "left"), len(estimate) - 1)
    early = np.abs(reference.times - estimate.times[before])
    late = np.abs(estimate.times[after] - reference.times)
    nearest = np.where(late < early, after, before)
    if method == "interpolate":
        inside = (reference.times >= estimate.times[0]) & (reference.times <= estimate.times[-1])
        chosen = np.flatnonzero(inside & (np.maximum(early, late) <= within))
    else:
        chosen = _use_each_once(nearest, np.minimum(early, late), within)
    if len(chosen) < 2:
        raise InputError(
            f"reference ({reference.times[0]:.6g} to {reference.times[-1]:.6g} s) and estimates "
            f"({estimate.times[0]:.6g} to {estimate.times[-1]:.6g} s) share {len(chosen)} stamps "
            f"within {within:.3g} s: stamp both by one clock, or allow a longer time"
        )
    there, rows = reference.select_rows(chosen), nearest[chosen]
    if method == "interpolate":
        return PosePairs(estimate.interpolate(there.times), there, rows)
    taken = estimate.select_rows(rows)
    return PosePairs(PoseTrack(there.times, taken.positions, taken.orientations), there, rows)


def _use_each_once(nearest: Indices, apart: Array, within: float) -> Indices:
    """Return the rows of the reference whose nearest estimate has no nearer row, in order.

    All other rows are left out, even where their second nearest estimate is free. So are, of those
    that remain, the ones that are not within the longest time.

    Args:
        nearest: Row (n,) of the nearest estimate of each row of the reference.
        apart: Time (n,) in s between the two.
        within: Longest such time.
    """
    # By estimate, and for each estimate by time: the first row of each estimate is the nearest.
    order = np.lexsort((apart, nearest))
    first = np.append(True, np.diff(nearest[order]) > 0)
    chosen = np.sort(order[first])
    return np.asarray(chosen[apart[chosen] <= within])


def align(pairs: PosePairs, alignment: Alignment = "yaw") -> RigidMotion:
    r"""Return the motion that brings the reference into the world of the estimates.

    "yaw" and "se3" minimize :math:`\sum |p_k - (R r_k + t)|^2` over the translation and over turns
    about the vertical z axis or all rotations, in closed form (Umeyama, PAMI 1991, without scale),
    with p_k the positions of the estimates and r_k those of the reference. "none" moves nothing.
    Position and yaw are what a legged base cannot observe; tilt is observable, so "se3" hides
    errors of tilt. "start" makes position and yaw agree, on average, over the first 0.2 s.

    Args:
        pairs: Poses at the same times.
        alignment: "none", "start", "yaw" or "se3".

    Raises:
        UnknownNameError: There is no such alignment.
        InputError: "start" where either track has no orientations, or positions of either track
            that leave the rotation undetermined: along a line for "se3" (`LEAST_SPREAD`), within
            `LEAST_EXTENT` along both horizontal axes for "yaw".
    """
    check_member("alignment", alignment, ALIGNMENTS)
    if alignment == "none":
        return RigidMotion(np.eye(3), np.zeros(3))
    if alignment == "start":
        return _align_start(pairs)
    # A rotation between two tracks is undetermined where either of them would not show it.
    _check_spread("reference", pairs.reference.positions, alignment)
    _check_spread("estimates", pairs.estimate.positions, alignment)
    estimate, reference = pairs.estimate.positions, pairs.reference.positions
    estimate_mean, reference_mean = estimate.mean(axis=0), reference.mean(axis=0)
    moments = (reference - reference_mean).T @ (estimate - estimate_mean)
    if alignment == "yaw":
        # The trace of R times the moments has these factors of sin(yaw) and cos(yaw).
        sine, cosine = moments[0, 1] - moments[1, 0], moments[0, 0] + moments[1, 1]
        rotation = _turn_about_z(float(np.arctan2(sine, cosine)))
    else:
        rotation = _nearest_rotation(moments)
    return RigidMotion(rotation, estimate_mean - rotation @ reference_mean)


def _check_spread(track: str, positions: Array, alignment: Alignment) -> None:
    """Raise an error if positions of a track do not determine the rotation of an alignment.

    Args:
        track: What the positions belong to: "reference" or "estimates".
        positions: Positions (n, 3) in m.
        alignment: "yaw" or "se3".

    Raises:
        InputError: They do not extend by more than `LEAST_EXTENT` or `LEAST_SPREAD`.
    """
    if alignment == "yaw":
        is_spread = float(np.ptp(positions[:, :2], axis=0).max()) > LEAST_EXTENT
        where = f"move less than {LEAST_EXTENT} m horizontally"
    else:
        extents = np.linalg.svd(positions - positions.mean(axis=0), compute_uv=False)
        is_spread = float(extents[1]) > LEAST_SPREAD * float(extents[0])
        where = "lie on a line"
    if not is_spread:
        raise InputError(
            f"alignment {alignment!r} has no rotation, because positions of the {track} {where}; "
            "take alignment 'start'"
        )


def _nearest_rotation(moments: Array) -> Array:
    """Return the rotation R (3, 3) that maximizes the trace of R times the moments (3, 3).

    Of the moments, the sum of r p^T, it turns positions r of the reference onto p of the estimates.
    """
    u, _, vt = np.linalg.svd(moments)
    # The best orthogonal matrix of noisy, nearly plane positions may be a reflection: the sign
    # makes it a rotation.
    sign = np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
    return np.asarray(vt.T @ sign @ u.T)


def _align_start(pairs: PosePairs) -> RigidMotion:
    """Return the motion by which position and yaw agree, on average, over `START_SPAN`.

    The yaw is that of the mean of the rotations from reference to estimate; then the translation is
    the mean of what is left between their positions.

    Raises:
        InputError: Either track has no orientations.
    """
    estimate, reference = pairs.estimate.rotations, pairs.reference.rotations
    if estimate is None or reference is None:
        raise InputError("alignment 'start' needs orientations; take 'yaw', by positions alone")
    times = pairs.reference.times
    is_start = times <= times[0] + START_SPAN
    # The turn about z that is nearest to a rotation has the yaw of its upper left block.
    blocks = (estimate[is_start] * reference[is_start].inv()).as_matrix().mean(axis=0)
    yaw = np.arctan2(blocks[1, 0] - blocks[0, 1], blocks[0, 0] + blocks[1, 1])
    rotation = _turn_about_z(float(yaw))
    turned = pairs.reference.positions[is_start] @ rotation.T
    return RigidMotion(rotation, (pairs.estimate.positions[is_start] - turned).mean(axis=0))


def _turn_about_z(angle: float) -> Array:
    """Return the rotation (3, 3) about the z axis by an angle in rad."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
