"""The linearizations of the experiments are right to first order, and resets alone are not."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hybridctl.experiments.linearization import validate, validate_cases
from rich.console import Console

from hybridctl.app.cli import cli
from hybridctl.base.errors import GrazingError, InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration

BIPED = validate.Config()
DOOR = validate.quick(validate.Config())


def validated(experiment, config, path):
    folder = RunFolder("validate", path)
    return folder, validate.run(experiment, config, folder, Console(quiet=True))


@pytest.fixture(scope="module")
def landings(tmp_path_factory):
    return validated("biped", BIPED, tmp_path_factory.mktemp("biped"))


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    return validated("rrr-door", DOOR, tmp_path_factory.mktemp("door"))


@pytest.fixture(params=["landings", pytest.param("doors", marks=pytest.mark.slow)])
def result(request):
    return request.getfixturevalue(request.param)


def test_the_remainder_is_of_second_order(result):
    slopes = np.array(result[1]["slopes"])
    assert len(slopes) >= 3
    np.testing.assert_allclose(slopes, 2.0, atol=0.1)
    assert result[1]["worst_slope"] == slopes[np.abs(slopes - 2.0).argmax()]


def test_the_derivative_is_that_of_differences_and_resets_alone_are_not(result):
    summary = result[1]
    # A step h = 2e-4 of the door errs by 12 h^2 = 5e-7. Runs beside each other differ by a tenth of
    # the tolerance 1e-10, and quotients take 8 / h of that: 4e-6 of derivatives of about 0.1.
    assert summary["best_derivative_error"] < 1e-5
    assert summary["reset_only_error"] > 0.1


def test_both_kinds_of_events_are_there(result):
    cases = result[1]["cases"].values()
    assert {case["simultaneous"] for case in cases} == {True, False}


def test_feet_land_together_and_lift_one_by_one(landings):
    numbers = [len(event["guards"]) for event in landings[1]["cases"]["by feet"]["events"]]
    assert numbers == [2, 1, 1]


@pytest.mark.slow
def test_events_of_the_door_are_where_they_are_planned(doors):
    for case, planned in (("friction, release", [1.0, 1.6]), ("friction", [1.0, 1.4])):
        times = [event["time"] for event in doors[1]["cases"][case]["events"]]
        np.testing.assert_allclose(times, planned, atol=1e-6)


def test_with_resets_alone_the_remainder_is_of_first_order():
    """The control: the slope does tell a wrong deviation from a right one."""
    case = validate_cases.landing("by_feet", 0.0, 1e-11)
    rng = np.random.default_rng(0)
    direction = validate.draw_direction(rng, case, 1.0)
    runs = validate.PerturbedRuns(BIPED, case, direction)
    false = case.reset_only().propagate(direction.state)
    found = validate.compute_remainders(runs, false)
    slopes = np.diff(np.log(found.errors)) / np.diff(np.log(found.sizes))
    np.testing.assert_allclose(slopes, 1.0, atol=0.01)


def test_deviations_along_a_trajectory_end_where_its_map_does():
    case = validate_cases.landing("by_feet", 0.0, 1e-11)
    for dx in np.random.default_rng(1).normal(size=(3, 6)):
        along = case.map.propagate(dx)
        assert [v.arc.start for v in along] == [a.start for a in case.nominal.arcs]
        np.testing.assert_allclose(along[-1].end[:, 0], case.map.derivative(dx), atol=1e-8)
        np.testing.assert_allclose(along[0](0.0)[:, 0], dx, rtol=1e-14)
    with pytest.raises(InputError, match=r"dx0 must have shape \(6\), got \(2, 6\)"):
        case.map.propagate(np.zeros((2, 6)))


def test_a_release_with_equal_shares_has_no_derivative(monkeypatch):
    """Where corner 2 is let go first the force of corner 1 grows: its guard is not crossed."""
    monkeypatch.setattr(validate_cases, "CORNER_2_SHARE", 0.5)
    with pytest.raises(GrazingError, match="corner_1 opens"):
        validate_cases.friction(1e-10, release=True)


def test_the_folder_is_complete(result):
    folder, summary = result
    stored = json.loads((folder / "summary.json").read_text())
    assert stored.keys() == summary.keys()
    assert stored["slopes"] == summary["slopes"]
    checks = json.loads((folder / "checks.json").read_text())["checks"]
    assert all(check["holds"] for check in checks)
    assert json.loads((folder / "config.json").read_text())["seed"] == 1
    for name in ("validation", "prediction"):
        assert (folder / f"figures/{name}.png").stat().st_size > 20000


def test_the_command_line(tmp_path):
    runner = CliRunner()
    out = tmp_path / "run"
    call = ["validate", "biped", "--quick", "--seed", "3", "--out", str(out)]
    done = runner.invoke(cli, call)
    assert done.exit_code == 0, done.output
    assert "slope farthest from 2" in done.output
    page = (out / "index.html").read_text()
    assert "size of 10 % error" in page
    assert "size where the order changes" in page
    assert "first-order prediction at half the size" in page
    assert json.loads((out / "config.json").read_text())["seed"] == 3
    shown = runner.invoke(cli, ["validate", "biped", "--settings", "--set", "samples=2"])
    assert json.loads(shown.output)["samples"] == 2
    assert runner.invoke(cli, ["validate", "slope"]).exit_code == 2


def test_perturbations_that_change_the_events_are_refused(tmp_path):
    with pytest.raises(InputError, match="must be smaller"):
        validated("biped", validate.Config(directions=1, sizes=(1.0, 0.5)), tmp_path)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("directions=0", "directions must be"),
        ("difference_directions=4", r"difference_directions must be at most directions \(3\)"),
        ("sizes=[1e-3]", "sizes must have two or more"),
        ("sizes=[1e-3, 0]", r"sizes\[1\] must be greater than 0"),
        ("steps=[]", "steps must have"),
        ("seed=-1", "seed must be"),
        ("tolerance=0", "tolerance must be greater than 0"),
        ("input_size=-1", "input_size must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(validate.Config, None, [setting])
