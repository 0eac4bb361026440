"""Filters on tossed cubes: contact by the poses, the search for noise, both kinds of data."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hybridctl.experiments.cube_filter import comparison as cube_filter
from hybridctl.experiments.cube_filter.comparison import replace_levels, search
from hybridctl.experiments.cube_filter.score import (
    CubeCase,
    Score,
    compare_filters,
    run_cube_filter,
    score_toss,
    summarize_filter,
    summarize_phases,
    tabulate_filters,
)
from hybridctl.experiments.cube_filter.tosses import (
    Calibration,
    Camera,
    calibrate,
    corner_heights,
    find_contact,
    find_impacts,
    find_rows_after_impacts,
    level_toss,
    name_phases,
    scale_toss,
    simulate_toss,
)
from hybridctl.experiments.filter_models import CubeSettings, cube_model
from hybridctl.robots import cube
from rich.console import Console
from rich.table import Table
from scipy.spatial.transform import Rotation

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.base.run_folder import RunFolder
from hybridctl.estimation.initial_estimate import first_estimate
from hybridctl.estimation.record import Record, Series

RECORDINGS = Path(__file__).parents[3] / "shared/data/cube_tosses/cube_tosses.npz"
MODEL = cube.CubeParameters()
SETTINGS = CubeSettings(
    position_noise=5e-4,
    angle_noise=5e-3,
    torque_noise=5e-4,
    reset_noise=1.7e-2,
    reset_torque=9e-4,
    friction=0.18,
    restitution=0.25,
    rounding=1.5e-3,
    duration=0.25,
    gate=0.9999,
    patience=3,
    warm_up=2,
    tolerance=1e-6,
)
RATE = 100.0
TOUCHING = 2e-3  # m


def flat(heights):
    """A cube that does not turn, its lower face at these heights."""
    poses = np.zeros((len(heights), 7))
    poses[:, 2], poses[:, 6] = np.array(heights) + MODEL.half_width, 1.0
    return Record({"pose": Series(np.arange(len(heights)) / RATE, poses)})


def heights(values):
    return corner_heights(flat(values), MODEL)


def execute(config, path):
    folder = RunFolder("cube-filter", path)
    return folder, cube_filter.run(config, folder, Console(quiet=True))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    config = replace(
        cube_filter.quick(cube_filter.Config()),
        filters=("salted", "no_jump"),
        hypotheses=(1, 2),
        every=(1, 2),
    )
    return execute(config, tmp_path_factory.mktemp("quick"))


def test_corners_stand_where_the_pose_puts_them():
    np.testing.assert_allclose(
        np.sort(heights([0.1])[0]), 0.1 + np.repeat([0.0, 2 * MODEL.half_width], 4)
    )


def falling(scale):
    """A free fall from 0.5 m, in lengths that are recorded with a scale."""
    return scale_toss(flat(0.5 - 0.5 * MODEL.gravity * (np.arange(20) / RATE) ** 2), scale)


def test_the_table_is_where_cubes_rest_and_not_where_they_fly():
    resting = flat([-1e-3] * 10)
    found = calibrate([resting, falling(1.0)], MODEL)
    assert found.level == pytest.approx(-1e-3, abs=1e-12)
    assert found.scale == pytest.approx(1.0, abs=1e-9)
    there = corner_heights(level_toss(resting, MODEL, found, 1.0), MODEL)
    assert there.min() == pytest.approx(0.0, abs=1e-12)
    assert calibrate([falling(1.0)], MODEL).level == 0.0


def test_the_scale_of_lengths_makes_flights_fall_with_gravity():
    found = calibrate([falling(0.98)], MODEL)
    assert found.scale == pytest.approx(0.98, abs=1e-9)
    np.testing.assert_allclose(
        level_toss(falling(0.98), MODEL, found, 1.0).channels["pose"].values,
        falling(1.0).channels["pose"].values,
        atol=1e-9,
    )
    carried = flat(np.linspace(0.5, 0.1, 20))  # does not fall: no flight
    assert calibrate([carried], MODEL).scale == 1.0


def test_an_impact_is_a_corner_that_comes_from_clearly_above():
    toss = heights([0.02, 0.01, 1e-3, 3e-3, 1e-3, 5e-3, 1e-3])
    assert find_impacts(toss, TOUCHING) == [2, 6]  # 3 mm is not yet away
    assert find_contact(toss, TOUCHING).tolist() == [False, False, True, False, True, False, True]
    near = find_rows_after_impacts(toss, TOUCHING, 1)
    assert near.tolist() == [False, False, True, True, False, False, True]


def test_phases_follow_the_recorded_contact():
    toss = heights([0.02, 0.01, 1e-3, *[1e-3] * 3, 0.01, 1e-3])
    expected = ["flight"] * 2 + ["first impact"] * 3 + ["touching", "in between", "later impacts"]
    assert list(name_phases(toss, TOUCHING)) == expected


def test_a_toss_ends_after_its_first_touch():
    toss = level_toss(flat([0.02, 0.01, 1e-3, *[0.0] * 20]), MODEL, Calibration(), 0.05)
    assert len(toss.channels["pose"]) == 2 + 5 + 1


def test_the_start_has_the_covariance_of_a_difference_of_two_poses():
    """To the share that 10 m/s, which are allowed before anything is known, have in it."""
    settings = replace(SETTINGS, position_noise=1e-3, angle_noise=1e-2, force_noise=1e-9)
    start, rest = first_estimate(cube_model(settings), settings, falling(1.0))
    p = start.covariance
    found = p[0, 0], p[0, 6], p[6, 6]
    share = 2e-6 * RATE**2 / 10.0**2
    np.testing.assert_allclose(found, [1e-6, 1e-6 * RATE, 2e-6 * RATE**2], rtol=2.0 * share)
    assert len(rest.channels["pose"]) == 18


def test_noise_of_measurements_is_found_in_free_flight():
    """Two flights of 13 rows of 3 rotations: 1 / sqrt(2 * 78) = 8 %; allowed is 4 times that."""
    short = replace(SETTINGS, duration=0.1, force_noise=1e-4, torque_noise=5e-6)
    tosses, told = [simulate_toss(k, short) for k in (1, 2)], []
    wrong = replace(short, angle_noise=5e-3 / 4)
    found = search(
        CubeCase("salted"),
        wrong,
        tosses,
        ("angle_noise",),
        16,
        None,
        lambda *found: told.append(found),
    )
    assert found.settings.angle_noise == pytest.approx(5e-3, rel=0.33)
    there = replace(found.settings, angle_noise=wrong.angle_noise)
    assert there == replace_levels(wrong, (), np.zeros(0))
    assert found.evaluations == len(told)
    assert found.log_likelihood == max(value for value, _ in told)


def test_a_coarse_camera_takes_some_poses_with_noise_of_its_own():
    toss, camera = flat(np.linspace(0.5, 0.1, 4001)), Camera(4, 1e-3)
    thinned, seen = (
        camera.select_poses(toss).channels["pose"],
        camera.record_toss(toss, 3).channels["pose"],
    )
    np.testing.assert_array_equal(thinned.values, toss.channels["pose"].values[::4])
    np.testing.assert_array_equal(seen.times, toss.channels["pose"].times[::4])
    moved_by = seen.values[:, :3] - thinned.values[:, :3]
    turned_by = Rotation.from_quat(seen.values[:, 3:]).as_rotvec()
    # of 3003 normal numbers: four deviations of 1 / sqrt(2 n)
    assert moved_by.std() == pytest.approx(1e-3, rel=4.0 / np.sqrt(6006))
    assert turned_by.std() == pytest.approx(1e-2, rel=4.0 / np.sqrt(6006))
    levels = camera.add_noise(replace(SETTINGS, position_noise=0.0 + 5e-4, angle_noise=1e-9))
    assert levels.position_noise == pytest.approx(np.hypot(5e-4, 1e-3))
    assert levels.angle_noise == pytest.approx(1e-2)
    assert Camera(4, 1e-3).label(148.0) == "37 Hz, 1 mm"


def test_guard_noise_reaches_all_strategies():
    toss = level_toss(simulate_toss(2, SETTINGS), MODEL, Calibration(), 0.05)
    for name in ("no_jump", "reset_jacobian", "salted"):
        sums = [
            score_toss(
                CubeCase(name), replace(SETTINGS, guard_noise=g), 2, toss, TOUCHING, 0.05
            ).log_likelihood
            for g in (0.0, 1e-2)
        ]
        assert not np.array_equal(*sums)


def test_round_corners_are_sharp_ones_on_a_smaller_cube_above_a_higher_table():
    """The innovations are those of the smaller cube on a lower table, with all poses lower."""
    radius = 4e-3
    round_ones = replace(SETTINGS, force_noise=1e-12, reset_noise=0.0, rounding=radius)
    small = replace(round_ones, rounding=0.0, half_width=MODEL.half_width - radius)
    toss = level_toss(simulate_toss(2, round_ones), MODEL, Calibration(), 0.05)
    lowered = scale_toss(toss, 1.0, -radius)
    residuals = [
        run_cube_filter("salted", settings, poses)[0].innovations[-1].residual
        for settings, poses in ((round_ones, toss), (small, lowered))
    ]
    np.testing.assert_allclose(*residuals, atol=1e-9)


def test_a_filter_that_fails_is_counted_as_lost():
    found = score_toss(CubeCase("salted"), SETTINGS, 0, flat([0.1]), TOUCHING, 0.05)
    assert "needs 2 complete rows" in found.failure
    assert summarize_filter(CubeCase("salted"), [found])["lost"] == 1


def test_filters_that_all_fail_are_told_in_tables():
    lost = score_toss(CubeCase("salted"), SETTINGS, 0, flat([0.1]), TOUCHING, 0.05)
    found = {**summarize_filter(CubeCase("salted"), [lost]), "levels": {"guard_noise": 1e-3}}
    summary = {"filters": [found], "rate": 148.0, "data": "recorded", "against": []}
    for each in (part for part in tabulate_filters(summary) if isinstance(part, Table)):
        assert all(set(column.cells) <= {"-", "- of -", "- ± -"} for column in each.columns[2:-2])


def scored(toss, values, residual=None, names=()):
    n = len(values)
    none = np.zeros(n, dtype=bool)
    moves = np.zeros((n, 6)) if residual is None else np.array(residual)
    rows = np.ones(n), ~none, np.array(values), moves, np.zeros(n), none, none, none
    return Score(toss, *rows, tuple(names), 0, 0, 0, 1.0)


def test_filters_are_compared_toss_by_toss():
    one, other = CubeCase("salted"), CubeCase("particle")
    scores = {
        one: [scored(0, [3.0, 3.0]), scored(1, [7.0]), scored(2, [1.0])],
        other: [scored(0, [1.0, 3.0]), scored(2, [1.0])],  # a slow one has fewer tosses
    }
    (found,) = compare_filters({**scores, one._replace(camera=Camera(2)): scores[one]})
    assert (found["mean"], found["tosses_won"], found["tosses"]) == (0.5, 1, 2)
    assert found["error"] == pytest.approx(0.5)


def test_the_misfit_is_told_by_phase():
    up = [[0.0, 0.0, z, 0.0, 0.0, 0.0] for z in (1e-3, -2e-3, -4e-3)]
    flight, touching = summarize_phases(
        [scored(0, [3.0, 2.0, 1.0], up, ["flight", "touching", "touching"])]
    )
    assert (flight["rows"], flight["z_mm"]) == (1, pytest.approx(1.0))
    assert (touching["rows"], touching["z_mm"]) == (2, pytest.approx(-3.0))
    assert touching["position_rms_mm"] == pytest.approx(np.sqrt(10.0))


def test_without_recordings_tosses_are_simulated(quick):
    folder, summary = quick
    assert summary["data"] == "simulated"
    assert [f["lost"] for f in summary["filters"]] == [0] * 8
    for found in summary["filters"]:
        assert 2.0 < found["mean_nis"] < 12.0  # the model is exact, and 6 would be right
        assert 0.0 <= found["mode_agreement"] <= 1.0
    assert json.loads((folder / "summary.json").read_text())["judged"] == [1]
    assert (folder / "figures/cube_filter.png").stat().st_size > 10_000


def test_filters_with_the_same_camera_are_compared(quick):
    against = quick[1]["against"]
    assert [(c["of"], c["over"]) for c in against if c["every"] == 2] == [
        ("salted", "no jump"),
        ("salted, 2 hypotheses", "salted"),
        ("salted, 2 hypotheses", "no jump, 2 hypotheses"),
    ]
    assert len(against) == 6


def test_rows_of_each_toss_are_kept(quick):
    folder, summary = quick
    lines = (folder / "rows/salted-1-every-1-blur-0mm.csv").read_text().splitlines()
    assert len(lines) == 1 + summary["filters"][0]["steps"]


def test_slow_filters_run_at_the_levels_of_the_salted_one(tmp_path):
    config = cube_filter.quick(cube_filter.Config(hypotheses=(1, 2)))
    config = replace(
        config,
        filters=("unscented", "salted"),
        free=("angle_noise",),
        evaluations=3,
        after=0.01,
        settings=replace(config.settings, duration=0.15),
    )
    _, summary = execute(config, tmp_path)
    on, several, unscented = summary["filters"]
    assert several["hypotheses"] == 2
    assert unscented["levels"] == on["levels"]
    assert unscented["fit"] is None
    assert on["fit"]["evaluations"] == 3


@pytest.mark.skipif(not RECORDINGS.exists(), reason=f"no recorded tosses at {RECORDINGS}")
def test_recorded_tosses(tmp_path):
    recorded = cube_filter.Config(data=str(RECORDINGS), hypotheses=(1,))
    config = replace(cube_filter.quick(recorded), filters=("salted",), blur=(0.0, 1e-3))
    _, summary = execute(config, tmp_path)
    assert summary["data"] == "recorded"
    assert abs(summary["calibration"]["level"]) < 5e-4  # m: once in scale, cubes rest on the table
    assert summary["calibration"]["scale"] == pytest.approx(0.98, abs=5e-3)
    assert [f["lost"] for f in summary["filters"]] == [0, 0]


def test_bad_settings_are_refused():
    for wrong in ({"judged": 101}, {"filters": ()}, {"evaluations": -1}, {"data": 3}, {"free": ()}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            cube_filter.Config(**wrong)
    with pytest.raises(UnknownNameError, match="salted"):
        cube_filter.Config(filters=("salty",))


@pytest.mark.skipif(not RECORDINGS.exists(), reason=f"no recorded tosses at {RECORDINGS}")
def test_kicks_and_less_noise_in_flight_make_recorded_poses_likelier():
    """On two tosses that no level was fitted to, against white noise of the same levels."""
    config = cube_filter.Config(data=str(RECORDINGS), judged=2)
    data = cube_filter._prepare_data(config)
    white = replace(config.settings, flight_noise=1.0, kick_rate=0.0)
    scores = [
        [
            score_toss(CubeCase("salted"), settings, k, toss, data.calibration.tolerance, 0.05)
            for k, toss in data.held.items()
        ]
        for settings in (config.settings, white)
    ]
    likelihoods = [np.concatenate([s.log_likelihood for s in found]).mean() for found in scores]
    assert likelihoods[0] > likelihoods[1] + 1.0
    rejected = [sum(int((s.accepted == 0).sum()) for s in found) for found in scores]
    assert rejected[0] < rejected[1]


def test_noise_of_the_cube_is_by_mode():
    settings = replace(SETTINGS, flight_noise=0.1, kick_rate=20.0, flight_kicks=0.3)
    model = cube_model(settings)
    noise, u, closed = model.process_noise, np.zeros(6), ("open",) * 7 + ("stick",)
    densities = [noise.value(mode, 0.0, None, u) for mode in (model.open, closed)]
    np.testing.assert_allclose(densities[0], 0.01 * densities[1])
    small, large = noise.disturbances
    assert (small.rate_in(closed), large.rate_in(closed)) == pytest.approx((20.0, 2.0))
    assert small.rate_in(model.open) == pytest.approx(6.0)
    np.testing.assert_allclose(large.covariance, 25.0 * small.covariance)
    assert cube_model(SETTINGS).process_noise.disturbances == ()
