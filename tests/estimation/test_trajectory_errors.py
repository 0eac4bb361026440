"""ATE, RPE, drift and NEES of tracks whose errors are known, and alignments by other means."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from hybridctl.base.errors import InputError
from hybridctl.estimation.pose_track import PoseTrack, RigidMotion, align, associate
from hybridctl.estimation.trajectory_errors import path_distances, trajectory_errors

TIMES = 0.01 * np.arange(1001)
ROUNDING = 1e-12  # of sums of a thousand numbers of order one, 1e-16 each


def walk(rng):
    """A body that wanders and turns."""
    turns = Rotation.from_rotvec(np.cumsum(rng.normal(scale=0.02, size=(len(TIMES), 3)), axis=0))
    places = np.cumsum(rng.normal(scale=0.02, size=(len(TIMES), 3)), axis=0)
    return PoseTrack(TIMES, places, turns.as_quat())


def moved(track, turn, shift):
    return track.transform(RigidMotion(turn.as_matrix(), np.asarray(shift)))


def circle(times=TIMES):
    """One round of 1 m radius in 10 s, heading along the path, at a height of 0.3 m."""
    angle = 0.2 * np.pi * times
    places = np.column_stack([np.sin(angle), 1.0 - np.cos(angle), 0.3 + 0.0 * angle])
    return PoseTrack(times, places, Rotation.from_euler("z", angle[:, None]).as_quat())


@pytest.mark.parametrize("seed", range(5))
def test_alignment_is_the_rotation_that_scipy_finds(seed):
    """`Rotation.align_vectors` solves Wahba's problem by a routine of its own."""
    rng = np.random.default_rng(seed)
    reference = walk(rng)
    turn = Rotation.random(rng=rng)
    noise = rng.normal(scale=0.05, size=(len(TIMES), 3))
    estimate = moved(reference, turn, rng.normal(size=3))
    estimate = PoseTrack(TIMES, estimate.positions + noise, estimate.orientations)
    pairs = associate(estimate, reference)
    found = align(pairs, "se3")
    centred = [track.positions - track.positions.mean(axis=0) for track in (estimate, reference)]
    expected, _ = Rotation.align_vectors(*centred)
    np.testing.assert_allclose(found.rotation, expected.as_matrix(), atol=ROUNDING)
    # About z alone: the best of all turns, by derivative zero and by comparison with others.
    yaw = align(pairs, "yaw")
    np.testing.assert_array_equal(yaw.rotation[2], [0.0, 0.0, 1.0])

    def misfit(angle):
        by = Rotation.from_euler("z", angle).as_matrix() @ yaw.rotation
        return ((centred[0] - centred[1] @ by.T) ** 2).sum()

    assert all(misfit(0.0) < misfit(a) for a in (-0.1, -1e-3, 1e-3, 0.1))


@pytest.mark.parametrize("alignment", ["start", "yaw", "se3"])
@pytest.mark.parametrize("association", ["interpolate", "nearest"])
def test_a_reference_in_another_frame_leaves_no_error(alignment, association):
    turn = Rotation.from_euler("z", 2.0)
    if alignment == "se3":
        turn = turn * Rotation.from_euler("x", 0.7)
    reference = circle()
    estimate = moved(reference, turn, [3.0, -2.0, 0.5])
    found = trajectory_errors(estimate, reference, alignment=alignment, association=association)
    assert found.count == len(TIMES)
    assert found.ate < ROUNDING
    assert found.rotation_rms < 1e-7  # angles near zero are square roots of rounding
    assert found.rpe.translation < ROUNDING
    assert found.rpe_metre.translation < ROUNDING
    assert found.path_length_ratio == pytest.approx(1.0, abs=ROUNDING)
    if alignment != "se3":
        assert found.end_error < ROUNDING


def test_errors_of_a_circle_in_closed_form():
    """Yaw that drifts by 0.1 rad and height by 0.05 m in a round, evenly."""
    reference, drift = circle(), TIMES / 10.0
    turns = Rotation.from_euler("z", 0.1 * drift[:, None]) * reference.rotations
    rise = 0.05 * drift
    estimate = PoseTrack(TIMES, reference.positions + rise[:, None] * [0, 0, 1], turns.as_quat())
    deviation = 0.02
    covariances = np.tile(deviation**2 * np.eye(3), (len(TIMES), 1, 1))
    found = trajectory_errors(estimate, reference, covariances=covariances)
    # Height in the middle is what the alignment takes away: rms of a ramp about its mean.
    assert found.ate == pytest.approx(0.05 / np.sqrt(12.0), rel=2e-3)  # 1001 rows, not all times
    assert found.height_rms == pytest.approx(found.ate, rel=1e-9)
    # Aligned over the first 0.2 s, in whose middle the drift is 0.01 of all.
    assert found.end_height == pytest.approx(0.05 * 0.99, rel=1e-6)
    assert found.end_yaw == pytest.approx(0.1 * 0.99, rel=1e-6)
    assert found.end_nees == pytest.approx((found.end_error / deviation) ** 2, rel=1e-9)
    # Chords of 5 cm of a circle of 1 m are 1e-4 shorter; the end adds less than 1e-3.
    assert found.path_length == pytest.approx(2.0 * np.pi, rel=2e-3)
    assert found.end_share == pytest.approx(found.end_error / found.path_length)
    # In 1 s it turns by 0.01 rad too much and rises by 5 mm; the chord is as it was, but is seen
    # from axes that are turned by the drift so far.
    assert found.rpe.rotation == pytest.approx(0.01, rel=1e-6)
    chord = 2.0 * np.sin(0.1 * np.pi)
    so_far = 0.1 * drift[: len(TIMES) - 100]
    aside = 2.0 * chord * np.sin(0.5 * so_far)
    assert found.rpe.translation == pytest.approx(np.sqrt((aside**2).mean() + 0.005**2), rel=1e-6)


def test_noise_adds_nothing_to_a_path():
    """White noise of 1 mm at 1 kHz adds sqrt(6) * 0.8 mm a row to a sum over rows, 19 m here."""
    rng = np.random.default_rng(3)
    places = circle(np.linspace(0.0, 10.0, 10_001)).positions
    noisy = places + rng.normal(scale=1e-3, size=places.shape)
    # 1 mm across a chord of 5 cm lengthens it by 4e-4; the first row 5 cm away is early by noise.
    assert path_distances(noisy)[-1] == pytest.approx(2.0 * np.pi, rel=0.01)
    still = rng.normal(scale=1e-3, size=(1000, 3))
    assert path_distances(still)[-1] < 0.01  # the last place from the first


def test_the_end_of_a_path_counts_though_it_is_less_than_a_step():
    places = np.outer([0.0, 0.06, 0.07, 0.08], [0.6, 0.0, 0.8])
    np.testing.assert_allclose(path_distances(places), [0.0, 0.06, 0.07, 0.08], atol=1e-15)


def test_errors_by_metre_are_of_the_whole_path():
    """Height that is 1 cm a metre too large in the second half of 10 m straight on.

    Spans of 1 m err by 0 where they begin before 4 m, by 1 cm from 5 m on, and evenly more between.
    """
    times, way = 5.0 + TIMES, TIMES
    turns = np.tile([0.0, 0.0, 0.0, 1.0], (len(TIMES), 1))
    reference = PoseTrack(times, np.outer(way, [1.0, 0.0, 0.0]), turns)
    rise = 0.01 * np.clip(way - 5.0, 0.0, None)
    estimate = PoseTrack(times, reference.positions + np.outer(rise, [0.0, 0.0, 1.0]), turns)
    found = trajectory_errors(estimate, reference, alignment="start")
    expected = 0.01 * np.sqrt((4.0 + 1.0 / 3.0) / 9.0)
    assert found.rpe_metre.translation == pytest.approx(expected, rel=0.01)  # 180 spans
    assert found.rpe_metre.rotation == 0.0
    assert found.duration == pytest.approx(10.0)


def test_stamps_between_samples():
    """Interpolation of a circle is off by its sagitta, the nearest sample by its delay."""
    reference = circle(TIMES[10:-10] + 0.005)
    within = trajectory_errors(circle(), reference, alignment="none")
    speed, period = 0.2 * np.pi, 0.01
    assert within.ate == pytest.approx((speed * period) ** 2 / 8.0, rel=1e-3)
    late = circle(TIMES[10:-10] + 0.004)
    nearest = associate(circle(), late, "nearest")
    assert len(nearest.rows) == len(late)
    off = np.linalg.norm(nearest.estimate.positions - nearest.reference.positions, axis=1)
    np.testing.assert_allclose(off, 0.4 * speed * period, rtol=1e-4)


def test_what_is_too_far_from_estimates_is_left_out():
    whole = circle()
    gap = whole.select_rows(np.flatnonzero((TIMES < 3.0) | (TIMES > 4.0)))
    shifted = circle(TIMES[:-1] + 0.004)
    # Without estimates from 2.99 to 4.01 s: 102 periods; the nearest is 4 ms after 2.99 s, too.
    for association, within, count in (("interpolate", 0.01, 898), ("nearest", 0.005, 899)):
        pairs = associate(gap, shifted, association, within=within)
        assert not ((pairs.reference.times > 3.0) & (pairs.reference.times < 4.01)).any()
        assert len(pairs.rows) == count
    fast = circle(np.linspace(0.0, 10.0, 5001))
    assert len(associate(whole, fast, "nearest").rows) == len(whole)  # each estimate once


def test_estimates_three_periods_away_still_count():
    """In a gap of five, between 2.99 and 3.04 s, one stamp is as near to both of its ends."""
    whole = circle()
    gap = whole.select_rows(np.flatnonzero((TIMES < 2.995) | (TIMES > 3.035)))
    found = associate(gap, circle(TIMES[:-1] + 0.004)).reference.times
    inside = found[(found > 2.99) & (found < 3.04)]
    np.testing.assert_allclose(inside, [3.014], atol=1e-9)


@pytest.mark.parametrize("length", [0.91, 1.09])
def test_quaternions_are_normalized(length):
    turns = circle().orientations
    found = PoseTrack(TIMES, np.zeros((len(TIMES), 3)), length * turns)
    np.testing.assert_allclose(found.orientations, turns, atol=1e-15)
    with pytest.raises(InputError, match=r"row 0 has length 0\.89"):
        PoseTrack(TIMES, np.zeros((len(TIMES), 3)), 0.89 * turns)


@pytest.mark.parametrize(("share", "is_known"), [(5e-4, False), (2e-3, True)])
def test_a_track_that_is_nearly_straight_has_a_rotation_from_a_thousandth_on(share, is_known):
    """10 m along x; across, in y, singular values of a zigzag in proportion to `share`."""
    along = TIMES - TIMES.mean()
    across = share * np.linalg.norm(along) / np.sqrt(len(TIMES)) * (-1.0) ** np.arange(len(TIMES))
    track = PoseTrack(TIMES, np.column_stack([along, across, 0.0 * along]))
    pairs = associate(moved(track, Rotation.from_euler("x", 0.3), np.zeros(3)), track, "nearest")
    if is_known:
        expected = Rotation.from_euler("x", 0.3).as_matrix()
        np.testing.assert_allclose(align(pairs, "se3").rotation, expected, atol=1e-8)
    else:
        with pytest.raises(InputError, match="lie on a line"):
            align(pairs, "se3")


def test_spans_over_gaps_and_short_tracks_have_no_relative_error():
    short = circle(TIMES[:50])
    found = trajectory_errors(short, short, alignment="start")
    assert found.rpe is None
    assert found.rpe_metre is None
    whole = circle()
    jumped = whole.select_rows(np.flatnonzero((TIMES < 0.9) | (TIMES > 3.0)))
    wrong = jumped.positions + np.where(jumped.times > 2.0, 1.0, 0.0)[:, None]
    estimate = PoseTrack(jumped.times, wrong, jumped.orientations)
    assert trajectory_errors(estimate, jumped).rpe.translation < ROUNDING


def test_positions_alone():
    reference = circle()
    estimate = moved(reference, Rotation.from_euler("z", 0.4), [1.0, 0.0, 0.0])
    found = trajectory_errors(estimate, PoseTrack(TIMES, reference.positions))
    assert found.ate < ROUNDING
    assert (found.end_error, found.yaw_rms, found.rpe, found.end_nees) == (None,) * 4
    beside = trajectory_errors(estimate, PoseTrack(TIMES, reference.positions), alignment="none")
    assert beside.end_error == pytest.approx(1.0, abs=1e-9)  # the round ends where it began


def test_what_cannot_be_compared_is_said():
    whole = circle()
    line = np.column_stack([TIMES, 0.0 * TIMES + 5.0, 0.0 * TIMES + 2.0])  # beside the origin
    straight = PoseTrack(TIMES, line, whole.orientations)
    still = PoseTrack(TIMES, np.zeros((len(TIMES), 3)), whole.orientations)
    later = PoseTrack(TIMES + 100.0, whole.positions, whole.orientations)
    bare = PoseTrack(TIMES, whole.positions)
    cases = [
        (straight, "se3", "positions of the reference lie on a line; take alignment 'start'"),
        (still, "yaw", "move less than 0.05 m"),
        (later, "yaw", r"reference \(100 to 110 s\).*share 0 stamps .*one clock"),
        (bare, "start", "needs orientations"),
        (whole, "tilt", "alignment 'tilt' is unknown"),
    ]
    for reference, alignment, message in cases:
        with pytest.raises(InputError, match=message):
            trajectory_errors(whole, reference, alignment=alignment)
    other_way = [
        (straight, "se3", "positions of the estimates lie on a line; take alignment 'start'"),
        (still, "se3", "positions of the estimates lie on a line"),
        (still, "yaw", "positions of the estimates move less than 0.05 m"),
        (bare, "start", "needs orientations"),
    ]
    for estimate, alignment, message in other_way:
        with pytest.raises(InputError, match=message):
            align(associate(estimate, whole), alignment)
    with pytest.raises(InputError, match="times must be within the track, 0 to 10 s, got 9 to 11"):
        whole.interpolate(np.array([9.0, 11.0]))
    with pytest.raises(InputError, match="times of a track must increase strictly"):
        PoseTrack(TIMES[::-1], whole.positions)
    with pytest.raises(InputError, match="row 0 has length 2"):
        PoseTrack(TIMES, whole.positions, 2.0 * whole.orientations)


def test_a_mirror_image_is_not_taken_for_a_rotation():
    rng = np.random.default_rng(0)
    flat = walk(rng)
    thin = PoseTrack(TIMES, flat.positions * [1.0, 1.0, 1e-2], flat.orientations)
    mirrored = PoseTrack(TIMES, thin.positions * [1.0, 1.0, -1.0], thin.orientations)
    found = align(associate(mirrored, thin), "se3")
    assert np.linalg.det(found.rotation) == pytest.approx(1.0, abs=ROUNDING)
