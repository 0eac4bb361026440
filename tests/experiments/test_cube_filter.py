"""Filters on tossed cubes: contact by the poses, the search for noise, both kinds of data."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hybridctl.experiments import cube_filter
from hybridctl.experiments.cube_filter_score import Levels, Score, Setting, fit, initial, score
from hybridctl.experiments.cube_filter_toss import (
    Calibration,
    Toss,
    after_impacts,
    calibrate,
    corner_heights,
    impacts,
    in_contact,
    levelled,
    synthetic,
)
from hybridctl.robots import cube
from rich.console import Console

from hybridctl.errors import InputError, UnknownNameError
from hybridctl.report import RunFolder

RECORDINGS = Path(__file__).parents[3] / "shared/data/cube_tosses/cube_tosses.npz"
MODEL = cube.Parameters()
RATE = 100.0
CALIBRATION = Calibration(0.0, 2e-3)


def flat(heights):
    """A cube that does not turn, its lower face at these heights."""
    poses = np.zeros((len(heights), 7))
    poses[:, 2], poses[:, 6] = np.array(heights) + MODEL.half_width, 1.0
    return Toss(0, RATE, poses, MODEL)


def execute(config, path):
    folder = RunFolder("cube-filter", path)
    return folder, cube_filter.run(config, folder, Console(quiet=True))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    config = replace(cube_filter.quick(cube_filter.Config()), filters=("salted", "no_jump"))
    return execute(config, tmp_path_factory.mktemp("quick"))


def test_corners_stand_where_the_pose_puts_them():
    np.testing.assert_allclose(
        np.sort(corner_heights(flat([0.1]))[0]), 0.1 + np.repeat([0.0, 2 * MODEL.half_width], 4)
    )


def test_the_table_is_where_cubes_rest_and_not_where_they_fly():
    resting = flat([-1e-3] * 10)
    tilted = flat(np.linspace(0.5, 0.1, 10))
    found = calibrate([resting, tilted])
    assert found.level == pytest.approx(-1e-3, abs=1e-12)
    assert corner_heights(levelled(resting, found, 1.0)).min() == pytest.approx(0.0, abs=1e-12)
    assert calibrate([tilted]).level == 0.0


def test_an_impact_is_a_corner_that_comes_from_clearly_above():
    toss = flat([0.02, 0.01, 1e-3, 3e-3, 1e-3, 5e-3, 1e-3])
    assert impacts(toss, CALIBRATION).tolist() == [2, 6]  # 3 mm is not yet away
    assert in_contact(toss, CALIBRATION).tolist() == [False, False, True, False, True, False, True]
    near = after_impacts(toss, CALIBRATION, 0.01)
    assert near.tolist() == [False, False, True, True, False, False, True]


def test_a_toss_ends_after_its_first_touch():
    toss = flat([0.02, 0.01, 1e-3, *[0.0] * 20])
    assert len(levelled(toss, CALIBRATION, 0.05).poses) == 2 + 5 + 1


def test_the_start_has_the_covariance_of_a_difference_of_two_poses():
    toss = synthetic(3, MODEL, 0.05, RATE)
    levels = Levels(position=1e-3, rotation=1e-2, force=1e-9)
    p = initial(toss, levels).covariance
    position, both, speed = p[0, 0], p[0, 6], p[6, 6]
    np.testing.assert_allclose([position, both, speed], [1e-6, 1e-6 * RATE, 2e-6 * RATE**2])


def test_noise_of_measurements_is_found_in_free_flight():
    """The search starts a factor of nine off, and its factor is three."""
    tosses = [levelled(synthetic(k, MODEL, 0.1, 148.0), CALIBRATION, 1.0) for k in (1, 2)]
    wrong = Setting("salted", Levels(position=9 * 5e-4, rotation=9 * 5e-3, force=1e-4), 0.0, 1e-6)
    found = fit(wrong, tosses, CALIBRATION, ("rotation", "position"), 9)
    assert found.position == pytest.approx(5e-4)
    assert found.rotation == pytest.approx(5e-3)
    assert fit(wrong, tosses, CALIBRATION, ("rotation",), 1) == wrong.levels


def test_a_filter_that_fails_is_counted_as_lost(monkeypatch):
    def failing(setting, toss):
        raise InputError("no way")

    monkeypatch.setattr("hybridctl.experiments.cube_filter_score.run_filter", failing)
    setting = Setting("salted", Levels(), 0.0, 1e-6)
    found = score(setting, flat([0.1] * 4), CALIBRATION, 0.05)
    assert found.failure == "no way"
    case = cube_filter.Case("salted", True)
    assert cube_filter.record(case, [found])["lost"] == 1


def scored(values):
    n = len(values)
    none = np.zeros(n, dtype=bool)
    return Score(0, np.ones(n), np.array(values), np.zeros((n, 6)), none, none, none, 0, 1.0)


def test_filters_are_compared_toss_by_toss():
    one, other = cube_filter.Case("salted", True), cube_filter.Case("no_jump", True)
    scores = {one: [scored([3.0, 3.0]), scored([1.0])], other: [scored([1.0, 3.0]), scored([1.0])]}
    (found,) = cube_filter.comparisons(scores)
    assert (found["mean"], found["tosses_won"], found["tosses"]) == (0.5, 1, 2)
    assert found["error"] == pytest.approx(0.5)


def test_without_recordings_tosses_are_simulated(quick):
    folder, summary = quick
    assert summary["data"] == "simulated"
    assert [f["lost"] for f in summary["filters"]] == [0] * 4
    for found in summary["filters"]:
        assert 2.0 < found["mean_nis"] < 12.0  # the model is exact, and 6 would be right
        assert 0.0 <= found["mode_agreement"] <= 1.0
    assert json.loads((folder / "summary.json").read_text())["judged"] == [100]
    assert (folder / "figures/cube_filter.png").stat().st_size > 10_000


def test_event_noise_is_off_in_half_of_the_runs(quick):
    levels = [(f["event_noise"], f["levels"]["impulse"] > 0.0) for f in quick[1]["filters"]]
    assert levels == [(True, True)] * 2 + [(False, False)] * 2


@pytest.mark.skipif(not RECORDINGS.exists(), reason=f"no recorded tosses at {RECORDINGS}")
def test_recorded_tosses(tmp_path):
    config = replace(
        cube_filter.quick(cube_filter.Config(data=str(RECORDINGS))), filters=("salted",)
    )
    _, summary = execute(config, tmp_path)
    assert summary["data"] == "recorded"
    assert -3e-3 < summary["calibration"]["level"] < 0.0  # below the table, as their readme says
    with_noise, without = summary["filters"]
    assert with_noise["mean_nis"] < without["mean_nis"]


def test_bad_settings_are_refused():
    for wrong in ({"judged": 101}, {"filters": ()}, {"evaluations": 0}, {"data": 3}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            cube_filter.Config(**wrong)
    with pytest.raises(UnknownNameError, match="salted"):
        cube_filter.Config(filters=("salty",))
    with pytest.raises(InputError, match="position"):
        Levels(position=0.0)
