"""TUM trajectories: written and read back to the nanosecond, and what others write in them."""

import numpy as np
import pytest
from logs.sample_logs import check_refused
from scipy.spatial.transform import Rotation

from hybridctl import Series
from hybridctl.base.errors import FileFormatError, InputError, UnknownNameError
from hybridctl.estimation.pose_track import PoseTrack
from hybridctl.logs import Log, read_tum, write_tum
from hybridctl.logs.reference import read_reference

ORIGIN = 1_602_256_052_648_297_310  # ns since 1970; a float of it is off by 100 ns


def track(n=20):
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.integers(1_000, 20_000_000, n)) / 1e9
    return PoseTrack(times, rng.normal(size=(n, 3)), Rotation.random(n, rng=rng).as_quat())


@pytest.mark.parametrize("origin", [0, ORIGIN])
def test_a_track_is_read_as_it_was_written(tmp_path, origin):
    path, made = tmp_path / "a.tum", track()
    write_tum(path, made, origin_ns=origin)
    found = read_tum(path, origin_ns=origin)
    np.testing.assert_array_equal(found.times, made.times)  # whole nanoseconds, exactly
    np.testing.assert_array_equal(found.positions, made.positions)
    np.testing.assert_allclose(found.orientations, made.orientations, atol=1e-15)  # normalized
    first = path.read_text().splitlines()
    assert first[0] == "# timestamp tx ty tz qx qy qz qw"
    stamp = first[1].split()[0]
    assert int(stamp.replace(".", "")) == origin + round(made.times[0] * 1e9)


def test_stamps_from_zero_count_from_the_start_of_the_log(tmp_path):
    write_tum(tmp_path / "a.tum", track())
    np.testing.assert_array_equal(
        read_tum(tmp_path / "a.tum", origin_ns=ORIGIN).times, track().times
    )


@pytest.mark.parametrize(("first", "begins"), [(100_000_000, 100_000_000), (99_999_999, 0)])
def test_stamps_count_since_1970_from_1973_on(tmp_path, first, begins):
    """1e8 s is the boundary: a stamp there is one of a clock, 1 s less one of a very long log."""
    path = tmp_path / "a.tum"
    path.write_text("".join(f"{first + k}.5 0 0 0 0 0 0 1\n" for k in range(2)))
    found = read_tum(path, origin_ns=10**17)
    np.testing.assert_array_equal(found.times, [first - begins + 0.5, first - begins + 1.5])


def test_comments_blanks_commas_and_rows_out_of_order(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(
        "# ground truth\n\n2.5 1 2 3 0 0 0 1\n  1.5,4,5,6,0,0,0,1 # late\n2.5 7 8 9 0 0 0 1\n"
        "3.5 nan nan nan nan nan nan nan\n4 1 1 1 0 0 0 1.05\n"
    )
    found = read_tum(path)
    np.testing.assert_array_equal(found.times, [1.5, 2.5, 4.0])
    np.testing.assert_array_equal(found.positions[:2], [[4.0, 5.0, 6.0], [1.0, 2.0, 3.0]])
    np.testing.assert_allclose(np.linalg.norm(found.orientations, axis=1), 1.0, atol=1e-15)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 3\n", "line 1: '1 2 3' is no pose"),
        ("# a\n1 0 0 0 0 0 0 one\n", "line 2"),
        ("inf 0 0 0 0 0 0 1\n", "line 1"),
        ("1 0 0 0 0 0 0 0\n", "unit quaternions.*row 0 has length 0"),
        ("# nothing\n", "no pose"),
    ],
)
def test_what_is_no_trajectory_is_refused(tmp_path, text, message):
    check_refused(read_tum, tmp_path / "a.tum", text, message, FileFormatError)


def test_references_by_file_and_by_channel(tmp_path):
    made = track()
    turns = Series(made.times, made.orientations, quaternion=True)
    poses = np.hstack([made.positions, made.orientations])
    missing = made.positions.copy()
    missing[3] = np.nan
    log = Log(
        {
            "place": Series(made.times, made.positions, unit="m"),
            "turn": turns,
            "pose": Series(made.times, poses),
            "far": Series(made.times, made.positions, unit="rad"),
            "holes": Series(made.times, missing, unit="m"),
        },
        origin_ns=ORIGIN,
    )
    write_tum(tmp_path / "a.tum", made, origin_ns=ORIGIN)
    for text in (str(tmp_path / "a.tum"), "place,turn", "pose"):
        found = read_reference(text, log)
        np.testing.assert_array_equal(found.times, made.times)
        np.testing.assert_array_equal(found.positions, made.positions)
        turned = (found.rotations.inv() * made.rotations).magnitude()  # q and -q are the same
        np.testing.assert_allclose(turned, 0.0, atol=1e-7)
    assert read_reference("place", log).orientations is None
    assert len(read_reference("holes,turn", log)) == len(made) - 1
    with pytest.raises(UnknownNameError, match=r"'plac' is neither a file.*did you mean 'place'"):
        read_reference("plac", log)
    for wrong, message in (("turn", "got .4. columns"), ("far,turn", "must be in m, got rad")):
        with pytest.raises(InputError, match=message):
            read_reference(wrong, log)


def test_a_track_without_orientations_is_not_written(tmp_path):
    with pytest.raises(InputError, match="needs orientations"):
        write_tum(tmp_path / "a.tum", PoseTrack([0.0, 1.0], np.zeros((2, 3))))
