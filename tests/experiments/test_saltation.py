"""The saltation matrix predicts deviations and covariances; the reset's Jacobian does not."""

import json

import numpy as np
import pytest
from hybridctl.experiments.linearization import saltation, saltation_examples
from hybridctl.experiments.linearization.saltation import simulate_from
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration
from hybridctl.hybrid.trajectory import HybridTrajectory

ROUNDING = 1e-12  # of states of about 1 after a flow, an event and a flow
EXACT, SQUARE = ("flow", "slides"), ("sticks", "bounces")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = RunFolder("saltation", tmp_path_factory.mktemp("saltation"), draws=False)
    return folder, saltation.run(saltation.quick(saltation.Config()), folder, Console(quiet=True))


def errors(entry):
    """Lengths, errors of the saltation matrix, errors of the Jacobian alone."""
    rows = entry["deviations"]
    return tuple(
        np.array([row[key] for row in rows])
        for key in ("deviation", "saltation_error", "reset_jacobian_error")
    )


@pytest.mark.parametrize("name", EXACT + SQUARE)
def test_saltation_matrices_are_their_closed_forms(results, name):
    assert results[1][name]["saltation_matrix_error"] <= ROUNDING


@pytest.mark.parametrize("name", EXACT)
def test_where_the_map_is_linear_predictions_are_exact(results, name):
    """Of deviations of any length, and of covariances relative to their own size."""
    assert errors(results[1][name])[1].max() <= ROUNDING
    for entry in results[1][name]["covariances"]:
        # A covariance of deviations s has an error of 1e-15 s from states of about 1.
        spread = saltation.Config().position_spread * entry["scale"]
        assert entry["saltation_error"] <= 1e-14 / spread


@pytest.mark.parametrize("name", SQUARE)
def test_errors_of_the_saltation_matrix_fall_as_the_square(results, name):
    """Third-order terms bend the line by about the deviation over the speed, a tenth at most."""
    length, right, _ = errors(results[1][name])
    order = np.diff(np.log(right)) / np.diff(np.log(length))
    np.testing.assert_allclose(order, 2.0, atol=0.1)
    large, small = (entry["saltation_error"] for entry in results[1][name]["covariances"])
    assert large <= 0.02
    assert small == pytest.approx(0.01 * large, rel=0.1)  # the scales are 10 apart


@pytest.mark.parametrize("name", EXACT + SQUARE)
def test_the_jacobian_of_the_reset_alone_is_wrong_by_the_deviation_itself(results, name):
    length, right, wrong = errors(results[1][name])
    order = np.diff(np.log(wrong)) / np.diff(np.log(length))
    np.testing.assert_allclose(order, 1.0, atol=0.1)
    assert (wrong >= 10.0 * right).all()
    assert min(entry["reset_jacobian_error"] for entry in results[1][name]["covariances"]) > 0.1


@pytest.mark.parametrize("name", ["slides", "sticks"])
def test_a_plastic_impact_leaves_no_deviation_normal_to_the_slope(results, name):
    """[Salt] Fig. 1: all balls lie on the slope, and only the saltation matrix says so."""
    for entry in results[1][name]["covariances"]:
        spread = saltation.Config().position_spread * entry["scale"]
        # Square roots of covariances that are zero to rounding.
        assert entry["normal_deviation_sampled"] <= 1e-8
        assert entry["normal_deviation_saltation"] <= 1e-7 * spread
        assert entry["normal_deviation_reset_jacobian"] > 0.5 * spread


@pytest.mark.parametrize("name", ["slides", "sticks"])
def test_an_impact_takes_out_one_direction_of_the_positions(results, name):
    """[Salt] Fig. 7: the normal of the slope, or the velocity before the impact."""
    config = saltation.Config()
    example = saltation_examples.ball(config, name)
    (event,) = simulate_from(example, config, example.start).events
    down, away = saltation_examples.axes(config)
    v = event.state_before[2:]
    expected = {"slides": away, "sticks": v / np.linalg.norm(v)}[name]
    taken, kept = results[1][name]["pairs"]
    assert abs(abs(taken["direction"] @ expected) - 1.0) <= ROUNDING
    # Along a chord of the trajectory instead of the trajectory: of second order in the gap
    # (0.16 m over a fall of 0.5 m), and nothing at all for the ball that slides.
    assert taken["gap_at_end"] <= (ROUNDING if name == "slides" else 0.01 * taken["gap_at_start"])
    assert taken["saltation_gap"] <= ROUNDING
    assert taken["reset_jacobian_gap"] == pytest.approx(taken["gap_at_start"])
    assert abs(abs(kept["direction"] @ down) - 1.0) <= ROUNDING
    assert kept["gap_at_end"] == pytest.approx(kept["gap_at_start"], abs=ROUNDING)


def test_the_folder_is_complete(results):
    folder, summary = results
    assert json.loads((folder / "summary.json").read_text()).keys() == summary.keys()
    configuration = json.loads((folder / "config.json").read_text())
    assert configuration["seed"] == saltation.Config().seed
    checks = json.loads((folder / "checks.json").read_text())["checks"]
    assert all(check["holds"] for check in checks)
    for name, example in saltation_examples.examples(saltation.Config()).items():
        again = HybridTrajectory.load(folder / f"{name}.npz", example.system)
        assert again.events[0].time == summary[name]["event_time"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["slope=2"], "slope must be at most"),
        (["height=0"], "height must be greater than"),
        (["velocity=[1]"], "velocity must be a list of length 2"),
        (["restitution=1.2"], "restitution must be at most"),
        (["flow_before=[-1, 0]"], "flow_before must cross the line"),
        (["deviations=[0.1, 1]"], "deviations must fall"),
        (["scales=[]"], "scales must fall"),
        (["samples=1"], "samples must be a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        load_configuration(saltation.Config, None, settings)


@pytest.mark.parametrize("settings", [{"duration": 0.2}, {"duration": 2.0}])
def test_a_run_with_no_event_or_several_is_refused(settings, tmp_path):
    config = saltation.quick(saltation.Config(**settings))
    with pytest.raises(InputError, match="must have one event"):
        saltation.run(config, RunFolder("saltation", tmp_path), Console(quiet=True))
