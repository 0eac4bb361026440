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


def test_other_files_and_none_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", time_s=np.zeros(3))
    with pytest.raises(FileFormatError, match="does not hold a recorded jump"):
        jump.read_jump(str(tmp_path / "other.npz"))
    with pytest.raises(InputError, match=r"data=FILE.*mim_estimation"):
        jump.run(jump.Config(), RunFolder("hopper-jump", tmp_path / "a"), Console(quiet=True))


@recorded
def test_the_recording_flies_from_1509_to_1655_ms():
    np.testing.assert_allclose(jump.read_jump(str(DATA)).contact_times, [1.509, 1.655], atol=1e-9)


@recorded
@pytest.mark.slow
def test_the_experiment_follows_the_flight(tmp_path):
    folder = RunFolder("hopper-jump", tmp_path / "run")
    found = jump.run(jump.quick(jump.Config(data=str(DATA))), folder, Console(quiet=True))
    salted = found["filters"][0]
    assert salted["height"] < 1.5e-3  # the height is measured to 1 mm
    assert abs(salted["lift_off"]) < 6e-3
    assert (folder / "figures/jump.png").is_file()
