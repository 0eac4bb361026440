"""The study of filters on synthetic runs: its arithmetic, and a quick run of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hybridctl.experiments.filter_study import study
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    folder = RunFolder("study", tmp_path_factory.mktemp("study"))
    config = study.quick(study.Config(models=("ball",), workers=1))
    study.run(config, folder, Console(quiet=True))
    assert (folder / "figures/nees_ball.png").stat().st_size > 10_000
    return json.loads((folder / "summary.json").read_text())


def test_all_filters_are_in_the_table(summary):
    filters = summary["models"]["ball"]["filters"]
    assert list(filters) == ["salted", "reset_jacobian", "no_jump", "unscented", "particle"]
    assert filters["salted"]["runs"] == 3
    assert filters["unscented"]["runs"] == 3
    assert filters["particle"]["runs"] == 1
    for values in filters.values():
        assert (values["failed"], values["indefinite"]) == (0, 0)
        assert len(values["nees"]) == 4
    assert summary["models"]["ball"]["sweep"][0]["scale"] == 8.0
    # before the impact all Kalman filters are the same one
    first = [filters[n]["nees"][0]["nees_per_degree"] for n in ("salted", "reset_jacobian")]
    assert first[0] == first[1]


def test_an_interrupted_study_goes_on_where_it_was(tmp_path, monkeypatch):
    """It makes the trials that are missing, and ends with the numbers of one that was not."""
    config = study.Config(models=("ball",), runs=3, sweep=2, particle_runs=0, scales=(8.0,))
    made = []

    def attempt(trial):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(trial)
        return (
            study.FilterOutcome((4.0 + trial.seed,) * 4, (4,) * 4, (True,) * 4, nis=(2.0, 2)),
        ) * 4

    folder = RunFolder("study", tmp_path, draws=False)
    one = replace(config, workers=1)
    monkeypatch.setattr(study, "select_filters", lambda *arguments: study.FILTERS[:4])
    monkeypatch.setattr(study, "attempt", attempt)
    with pytest.raises(KeyboardInterrupt):
        study.run(one, folder, Console(quiet=True))
    made.insert(0, None)
    summary = study.run(one, folder, Console(quiet=True))
    assert len(made) == 6
    nees = [
        row["nees_per_degree"] for row in summary["models"]["ball"]["filters"]["salted"]["nees"]
    ]
    assert nees == [1.25] * 4
    with pytest.raises(InputError, match="other settings"):
        study.run(replace(one, seed=1), folder, Console(quiet=True))


def test_averages_leave_out_runs_in_another_mode_and_count_failures():
    right = [
        study.FilterOutcome((4.0,) * 4, (4,) * 4, (True,) * 4, nis=(2.0, 2), event_errors=(1e-3,))
        for _ in range(3)
    ]
    early = study.FilterOutcome(
        (1e6, 4.0, 4.0, 4.0), (4,) * 4, (False, True, True, True), nis=(2.0, 2)
    )
    found = study.average_outcomes("ball", [*right, early, study.FilterOutcome(failed="it broke")])
    assert (found["runs"], found["failed"], found["first_failure"]) == (5, 1, "it broke")
    assert [row["nees_per_degree"] for row in found["nees"]] == [1.0] * 4
    assert [row["other_mode"] for row in found["nees"]] == [1, 0, 0, 0]
    assert found["inside"]
    assert found["event_time_error"] == pytest.approx(1e-3)
    far = [study.FilterOutcome((40.0,) * 4, (4,) * 4, (True,) * 4) for _ in range(9)]
    assert not study.average_outcomes("ball", far)["inside"]


def test_scales_multiply_what_the_filters_believe_and_the_sensors_have():
    one, eight = (
        study._model("ball", scale).sensors[0].measurement.covariance for scale in (1.0, 8.0)
    )
    np.testing.assert_allclose(eight, 64.0 * one, rtol=1e-12)


@pytest.mark.parametrize(("name", "value"), [("runs", 1), ("models", ("rope",)), ("scales", (0,))])
def test_settings_are_checked(name, value):
    with pytest.raises(InputError):
        study.Config(**{name: value})


@pytest.mark.slow
def test_ball_and_block_are_consistent_over_many_runs(tmp_path):
    config = study.Config(
        runs=30, sweep=2, particle_runs=10, scales=(2.0,), models=("ball", "block")
    )
    found = study.run(config, RunFolder("study", tmp_path), Console(quiet=True))
    for model in ("ball", "block"):
        salted = found["models"][model]["filters"]["salted"]
        assert (salted["diverged"], salted["failed"], salted["indefinite"]) == (0, 0, 0)
        assert salted["inside"], salted["nees"]
    assert found["models"]["ball"]["filters"]["particle"]["inside"]
    assert not found["models"]["block"]["filters"]["reset_jacobian"]["inside"]


@pytest.mark.parametrize("seed", [7, 13, 23])
def test_two_impacts_within_a_sample_are_told_apart(seed):
    """Both corners hit between two values, in one case one after the other more than once."""
    trial = study.StudyRun("door", 0.3, seed, ("salted",))
    (outcome,) = study.attempt(trial)
    assert not outcome.failed
    # chi-square of 8 degrees of freedom is below 35 in 99.997 % of cases
    assert max(np.array(outcome.nees)[list(outcome.same_mode)]) < 35.0
