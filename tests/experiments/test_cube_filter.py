"""Filters on tossed cubes: contact by the poses, the search for noise, both kinds of data."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hybridctl.experiments.cube_filter import comparison as cube_filter
from hybridctl.experiments.cube_filter.fit import Case, Stages, search
from hybridctl.experiments.cube_filter.score import (
    Levels,
    Score,
    Setting,
    run_filter,
    score,
    start_covariance,
)
from hybridctl.experiments.cube_filter.tables import by_phase, comparisons, record
from hybridctl.experiments.cube_filter.toss import (
    Calibration,
    Toss,
    after_impacts,
    calibrate,
    corner_heights,
    impacts,
    in_contact,
    levelled,
    phases,
    synthetic,
)
from hybridctl.robots import cube
from rich.console import Console

from hybridctl.errors import FileFormatError, InputError, UnknownNameError
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
    both = cube_filter.Config(event_noise=(True, False))
    config = replace(cube_filter.quick(both), filters=("salted", "no_jump"))
    return execute(config, tmp_path_factory.mktemp("quick"))


def test_corners_stand_where_the_pose_puts_them():
    np.testing.assert_allclose(
        np.sort(corner_heights(flat([0.1]))[0]), 0.1 + np.repeat([0.0, 2 * MODEL.half_width], 4)
    )


def falling(scale):
    """A free fall from 0.5 m, in lengths that are recorded with a scale."""
    toss = flat(0.5 - 0.5 * MODEL.gravity * (np.arange(20) / RATE) ** 2)
    toss.poses[:, :3] *= scale
    return toss


def test_the_table_is_where_cubes_rest_and_not_where_they_fly():
    resting = flat([-1e-3] * 10)
    found = calibrate([resting, falling(1.0)])
    assert found.level == pytest.approx(-1e-3, abs=1e-12)
    assert found.scale == pytest.approx(1.0, abs=1e-9)
    assert corner_heights(levelled(resting, found, 1.0)).min() == pytest.approx(0.0, abs=1e-12)
    assert calibrate([falling(1.0)]).level == 0.0


def test_the_scale_of_lengths_makes_flights_fall_with_gravity():
    found = calibrate([falling(0.98)])
    assert found.scale == pytest.approx(0.98, abs=1e-9)
    np.testing.assert_allclose(
        levelled(falling(0.98), found, 1.0).poses, falling(1.0).poses, atol=1e-9
    )
    assert calibrate([falling(0.98)], scaled=False).scale == 1.0
    carried = flat(np.linspace(0.5, 0.1, 20))  # does not fall: no flight
    assert calibrate([carried]).scale == 1.0


def test_an_impact_is_a_corner_that_comes_from_clearly_above():
    toss = flat([0.02, 0.01, 1e-3, 3e-3, 1e-3, 5e-3, 1e-3])
    assert impacts(toss, CALIBRATION).tolist() == [2, 6]  # 3 mm is not yet away
    assert in_contact(toss, CALIBRATION).tolist() == [False, False, True, False, True, False, True]
    near = after_impacts(toss, CALIBRATION, 0.01)
    assert near.tolist() == [False, False, True, True, False, False, True]


def test_phases_follow_the_recorded_contact():
    toss = flat([0.02, 0.01, 1e-3, *[1e-3] * 3, 0.01, 1e-3])
    expected = ["flight"] * 2 + ["first impact"] * 3 + ["touching", "in between", "later impacts"]
    assert list(phases(toss, CALIBRATION)) == expected


def test_a_toss_ends_after_its_first_touch():
    toss = flat([0.02, 0.01, 1e-3, *[0.0] * 20])
    assert len(levelled(toss, CALIBRATION, 0.05).poses) == 2 + 5 + 1


def test_the_start_has_the_covariance_of_a_difference_of_two_poses():
    levels = Levels(position=1e-3, rotation=1e-2, force=1e-9)
    p = start_covariance(levels, MODEL, RATE)
    position, both, speed = p[0, 0], p[0, 6], p[6, 6]
    np.testing.assert_allclose([position, both, speed], [1e-6, 1e-6 * RATE, 2e-6 * RATE**2])


def test_noise_of_measurements_is_found_in_free_flight():
    """Two flights of 13 rows of 3 rotations: 1 / sqrt(2 * 78) = 8 %; allowed is 4 times that."""
    tosses = [levelled(synthetic(k, MODEL, 0.1, 148.0), CALIBRATION, 1.0) for k in (1, 2)]
    wrong = Setting("salted", Levels(rotation=5e-3 / 4, force=1e-4), 1, 1e-6)
    told = []
    found = search(
        wrong, tosses, ("rotation",), Stages(1, 9, 7), None, lambda *values: told.append(values)
    )
    assert found.levels.rotation == pytest.approx(5e-3, rel=0.33)
    assert replace(found.levels, rotation=wrong.levels.rotation) == wrong.levels
    assert found.evaluations == len(told)
    assert {tosses for tosses, *_ in told} == {1, 2}  # the stages
    assert found.log_likelihood == max(value for tosses, _, value, _ in told if tosses == 2)


def test_a_search_leaves_out_what_a_filter_does_not_depend_on():
    names = ("position", "impulse", "guard", "restitution")
    assert Case("salted", True).searched(names) == names
    assert Case("no_jump", True).searched(names) == names
    assert Case("salted", False).searched(names) == ("position", "restitution")


def test_guard_noise_reaches_all_strategies():
    toss = levelled(synthetic(2, MODEL, 0.25, 148.0), CALIBRATION, 0.05)
    for name in ("no_jump", "reset_jacobian", "salted"):
        sums = [
            score(Setting(name, Levels(guard=g), 1, 1e-6), toss, CALIBRATION, 0.05).log_likelihood
            for g in (0.0, 1e-2)
        ]
        assert not np.array_equal(*sums)


def test_round_corners_are_sharp_ones_on_a_smaller_cube_above_a_higher_table():
    """The measured poses are lifted; the innovations are those of the smaller cube."""
    radius = 4e-3
    small = replace(MODEL, half_width=MODEL.half_width - radius)
    sharp = levelled(synthetic(2, small, 0.25, 148.0), CALIBRATION, 0.05)
    lifted = replace(sharp, model=MODEL, poses=sharp.poses + radius * np.eye(1, 7, 2))
    residuals = [
        run_filter(Setting("salted", Levels(force=1e-12, impulse=0.0, rounding=r), 1, 1e-6), toss)
        .innovations[-1].residual
        for r, toss in ((0.0, sharp), (radius, lifted))
    ]  # fmt: skip
    np.testing.assert_allclose(*residuals, atol=1e-9)


def test_a_filter_that_fails_is_counted_as_lost(monkeypatch):
    def failing(setting, toss):
        raise InputError("no way")

    monkeypatch.setattr("hybridctl.experiments.cube_filter.score.run_filter", failing)
    setting = Setting("salted", Levels(), 1, 1e-6)
    found = score(setting, flat([0.1] * 4), CALIBRATION, 0.05)
    assert found.failure == "no way"
    assert record(Case("salted", True), [found])["lost"] == 1


def scored(toss, values, residual=None, names=()):
    n = len(values)
    none = np.zeros(n, dtype=bool)
    moves = np.zeros((n, 6)) if residual is None else np.array(residual)
    rows = np.ones(n), ~none, np.array(values), moves, np.zeros(n), none, none, none
    return Score(toss, *rows, tuple(names), 0, 0, 1.0)


def test_filters_are_compared_toss_by_toss():
    one, other = Case("salted", True), Case("particle", True)
    scores = {
        one: [scored(0, [3.0, 3.0]), scored(1, [7.0]), scored(2, [1.0])],
        other: [scored(0, [1.0, 3.0]), scored(2, [1.0])],  # a slow one has fewer tosses
    }
    (found,) = comparisons(scores)
    assert (found["mean"], found["tosses_won"], found["tosses"]) == (0.5, 1, 2)
    assert found["error"] == pytest.approx(0.5)


def test_the_misfit_is_told_by_phase():
    up = [[0.0, 0.0, z, 0.0, 0.0, 0.0] for z in (1e-3, -2e-3, -4e-3)]
    flight, touching = by_phase(
        [scored(0, [3.0, 2.0, 1.0], up, ["flight", "touching", "touching"])]
    )
    assert (flight["rows"], flight["z_mm"]) == (1, pytest.approx(1.0))
    assert (touching["rows"], touching["z_mm"]) == (2, pytest.approx(-3.0))
    assert touching["position_rms_mm"] == pytest.approx(np.sqrt(10.0))


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


def test_rows_of_each_toss_are_kept(quick):
    folder, summary = quick
    lines = (folder / "rows/salted-with-event-noise.csv").read_text().splitlines()
    assert len(lines) == 1 + summary["filters"][0]["steps"]


def test_slow_filters_run_at_the_levels_of_the_salted_one_and_searches_leave_a_trace(tmp_path):
    config = replace(
        cube_filter.quick(cube_filter.Config(event_noise=(True, False))),
        filters=("unscented", "salted"),
        free=("rotation",),
        evaluations_first=2,
        evaluations=1,
        after=0.01,
        duration=0.15,
    )
    folder, summary = execute(config, tmp_path / "first")
    on, _, unscented = summary["filters"]
    assert unscented["levels"] == on["levels"]
    assert unscented["fit"] is None
    assert on["fit"]["evaluations"] == 3
    assert len((folder / "search.csv").read_text().splitlines()) == 1 + 3 + 3
    stopped = {"filters": summary["filters"][:1]}
    (tmp_path / "stopped.json").write_text(json.dumps(stopped))
    later = replace(config, filters=("salted",), levels_from=str(tmp_path / "stopped.json"))
    _, again = execute(later, tmp_path / "second")
    assert again["filters"][0]["levels"] == on["levels"]
    assert [f["fit"] is None for f in again["filters"]] == [True, False]


@pytest.mark.skipif(not RECORDINGS.exists(), reason=f"no recorded tosses at {RECORDINGS}")
def test_recorded_tosses(tmp_path):
    both = cube_filter.Config(data=str(RECORDINGS), event_noise=(True, False))
    config = replace(cube_filter.quick(both), filters=("salted",))
    _, summary = execute(config, tmp_path)
    assert summary["data"] == "recorded"
    assert abs(summary["calibration"]["level"]) < 5e-4  # m: once in scale, cubes rest on the table
    assert summary["calibration"]["scale"] == pytest.approx(0.98, abs=5e-3)
    with_noise, without = summary["filters"]
    assert with_noise["lost"] == without["lost"] == 0


def test_bad_settings_are_refused():
    for wrong in ({"judged": 101}, {"filters": ()}, {"evaluations": -1}, {"data": 3}, {"free": ()}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            cube_filter.Config(**wrong)
    with pytest.raises(UnknownNameError, match="salted"):
        cube_filter.Config(filters=("salty",))
    with pytest.raises(InputError, match="position"):
        Levels(position=0.0)
    with pytest.raises(InputError, match="restitution"):
        Levels(restitution=1.1)


def test_a_file_without_levels_is_refused(tmp_path):
    config = cube_filter.quick(cube_filter.Config(levels_from=str(tmp_path / "none.json")))
    with pytest.raises(FileFormatError, match="levels_from"):
        execute(config, tmp_path / "run")
