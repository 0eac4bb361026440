"""A recorded jump of a hopper: how it is read, its model, and the filter on the flight."""

from pathlib import Path

import numpy as np
import pytest
from hybridctl.experiments.hopper import jump
from hybridctl.robots.hopper import model
from rich.console import Console

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.run_folder import RunFolder

DATA = Path(__file__).parents[3] / "shared/data/hopper_teststand/jump.npz"
recorded = pytest.mark.skipif(not DATA.is_file(), reason=f"no recorded jump in {DATA}")


def made_up_jump():
    """Return a recording of 2 s with a push of 20 N that ends at 1 s, and a touch at 1.2 s."""
    times = np.arange(2000) * 1e-3
    plate = np.where(times < 1.0, 5.0 + 15.0 * times, np.where(times < 1.2, 0.1, 6.0))
    pairs = np.zeros((2000, 2))
    return jump.RecordedJump(times, pairs, pairs, np.full(2000, 0.3), plate)


def test_contact_times_are_those_of_the_plate():
    lifted, touched = made_up_jump().contact_times
    assert lifted == pytest.approx(1.0)
    assert touched == pytest.approx(1.2)


def test_heights_are_withheld_in_a_span_and_nowhere_else():
    record = made_up_jump().record(end=1.5, every=10, withheld=(1.0, 1.2))
    height = record.channels["height"]
    missing = np.isnan(height.values[:, 0])
    np.testing.assert_allclose(height.times[missing][[0, -1]], [1.0, 1.2])
    assert not missing[height.times < 0.999].any()
    assert not np.isnan(record.channels["joints"].values).any()


def test_the_leg_weighs_what_its_links_do_and_hangs_straight_down_at_zero():
    """At joint angles q1 and q2 the foot is l (cos q1 + cos(q1 + q2)) below the hip."""
    robot = model.robot()
    masses = 0.485 + 0.14853845 + 0.03070001 + 0.00693606  # kg, of the URDF
    assert robot.mass_matrix(np.zeros(3))[0, 0] == pytest.approx(masses)
    gap = model.system().dynamics.gaps(np.array([0.4, 0.3, -0.7]))[0]
    leg = model.LINK * (np.cos(0.3) + np.cos(0.4))
    assert gap == pytest.approx(0.4 - leg - model.HopperParameters().radius)


def columns_of(made):
    """Return the arrays of a file that holds a recording."""
    pairs = *made.joints.T, *made.torques.T
    return dict(zip(jump.COLUMNS, (made.times, *pairs, made.heights, made.plate), strict=True))


def test_a_file_gives_back_what_it_holds(tmp_path):
    made = made_up_jump()
    np.savez(tmp_path / "jump.npz", **columns_of(made))
    for name, value in vars(jump.read_jump(str(tmp_path / "jump.npz"))).items():
        np.testing.assert_array_equal(value, getattr(made, name))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("fz_N", lambda a: a[:-1], "fz_N must have one finite number"),
        ("height_m", lambda a: np.where(np.arange(len(a)) == 5, np.nan, a), "height_m must have"),
        ("time_s", lambda a: a[::-1], "time_s does not increase"),
        ("fz_N", lambda a: 0.0 * a, "the plate is not unloaded"),
        ("fz_N", lambda a: 0.0 * a + 5.0, "the plate is not unloaded"),
        ("fz_N", lambda a: a[::-1] * (np.arange(len(a)) < 1500), "the plate is not unloaded"),
    ],
)
def test_columns_that_are_no_jump_are_refused(tmp_path, name, change, message):
    columns = columns_of(made_up_jump())
    np.savez(tmp_path / "bad.npz", **(columns | {name: change(columns[name])}))
    with pytest.raises(FileFormatError, match=message):
        jump.read_jump(str(tmp_path / "bad.npz"))


def test_other_files_and_none_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", time_s=np.zeros(3))
    np.save(tmp_path / "other.npy", np.zeros(3))
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "text.npz").write_text("time_s")
    for name in ("other.npz", "other.npy", "empty.npz", "text.npz"):
        with pytest.raises(FileFormatError, match="does not hold a recorded jump"):
            jump.read_jump(str(tmp_path / name))
    with pytest.raises(InputError, match=r"data=FILE.*height_m.*mim_estimation"):
        jump.run(jump.Config(), RunFolder("hopper-jump", tmp_path / "a"), Console(quiet=True))


@pytest.mark.parametrize("span", [{"half": 1.1}, {"half": 0.5, "until": 1.15}])
def test_spans_without_the_flight_are_refused(tmp_path, span):
    np.savez(tmp_path / "jump.npz", **columns_of(made_up_jump()))
    config = jump.Config(data=str(tmp_path / "jump.npz"), **span)
    with pytest.raises(InputError, match=r"the flight from 1\.000 to 1\.200 s"):
        jump.run(config, RunFolder("hopper-jump", tmp_path / "a"), Console(quiet=True))


@recorded
def test_the_recording_flies_from_1509_to_1655_ms():
    np.testing.assert_allclose(jump.read_jump(str(DATA)).contact_times, [1.509, 1.655], atol=1e-9)


def fit_first_half(recorded_jump, *columns):
    """Return the gap (n,) under the foot, m, by a leg that is calibrated where it stands.

    Args:
        recorded_jump: The recording.
        columns: Functions of hip and knee angle, rad, and knee torque, N m, that return what the
            leg is longer by, m, but for a factor. The factors fit the first half, in which the
            foot is on the ground.
    """
    hip, shank = recorded_jump.joints[:, 0], recorded_jump.joints.sum(axis=1)
    leg = model.LINK * (np.cos(hip) + np.cos(shank))
    rows = np.column_stack([c(hip, shank, recorded_jump.torques[:, 1]) for c in columns])
    stands = recorded_jump.times < jump.Config().half
    over = recorded_jump.heights - leg
    return over - rows @ np.linalg.lstsq(rows[stands], over[stands], rcond=None)[0]


@recorded
@pytest.mark.parametrize(
    "columns", ["radius", "radius, soft knee", "radius, soft knee, long shank"]
)
def test_no_leg_of_the_first_half_reaches_the_ground_when_the_plate_is_touched(columns):
    """At 0.17 m/s 3 ms are 0.5 mm, but heights and angles leave ten times that.

    They leave it for the 20 ms after the touch as well, when the plate carries more than 3 N: it
    is not that the plate is early.
    """
    parts = {
        "radius": lambda hip, shank, knee_torque: np.ones_like(hip),
        "soft knee": lambda hip, shank, knee_torque: model.LINK * np.sin(shank) * knee_torque,
        "long shank": lambda hip, shank, knee_torque: np.cos(shank),
    }
    recording = jump.read_jump(str(DATA))
    gap = fit_first_half(recording, *(parts[name] for name in columns.split(", ")))
    touched = recording.contact_times[1]
    for begin, end in ((-2e-3, 2e-3), (10e-3, 30e-3)):
        span = (recording.times >= touched + begin) & (recording.times <= touched + end)
        assert gap[span].mean() > 4e-3
    assert recording.plate[span].min() > 3.0


@recorded
def test_joints_do_not_tell_when_the_foot_touches():
    """They swing in flight, without torque, with as much acceleration as the touch gives them."""
    recording = jump.read_jump(str(DATA))
    touched = recording.contact_times[1]

    def largest_acceleration(begin, end):
        """Return the largest acceleration, rad/s^2, by parabolas through 11 ms."""
        rows = np.flatnonzero((recording.times >= begin) & (recording.times < end))
        bends = []
        for k in rows:
            times = recording.times[k - 5 : k + 6]
            joints = recording.joints[k - 5 : k + 6]
            bends.append(2.0 * np.polyfit(times - times.mean(), joints, 2)[0])
        return np.abs(bends).max(axis=0)

    flight = largest_acceleration(touched - 40e-3, touched - 5e-3)
    touch = largest_acceleration(touched - 2e-3, touched + 5e-3)
    assert (touch < 1.5 * flight).all()


@recorded
@pytest.mark.slow
def test_the_experiment_follows_the_flight(tmp_path):
    folder = RunFolder("hopper-jump", tmp_path / "run")
    found = jump.run(jump.quick(jump.Config(data=str(DATA))), folder, Console(quiet=True))
    salted = found["filters"][0]
    assert salted["height"] < 1.5e-3  # the height is measured to 1 mm
    assert abs(salted["lift_off"]) < 6e-3
    assert (folder / "figures/jump.png").is_file()
