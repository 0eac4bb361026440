"""The door experiment shows what the README says it does."""

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hybridctl.experiments.rrr_door import tracking as rrr_door
from hybridctl.experiments.rrr_door.reference import CLOSED, OPEN, Design, build
from hybridctl.robots.rrr_door import DoorParameters, system
from rich.console import Console

from hybridctl.app.cli import cli
from hybridctl.base.errors import (
    HybridctlError,
    InfeasibleReferenceError,
    InputError,
    ReferenceRangeError,
)
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration, parse_settings
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import HybridTrajectory

CONFIG = rrr_door.Config()


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = RunFolder("rrr-door", tmp_path_factory.mktemp("run"), draws=False)
    return folder, rrr_door.run(CONFIG, folder, Console(quiet=True))


def test_the_reference_has_the_published_impulses(result):
    """Table 5.1, within one percent."""
    event = result[1]["reference"]["events"][0]
    assert event["time"] == pytest.approx(1.0, abs=1e-8)
    np.testing.assert_allclose(event["impulses"], [1.2572, 0.3410], rtol=0.01)
    assert result[1]["reference"]["feasible"]


def test_the_perturbed_impact_splits_and_grows_without_a_release(result):
    """Two micro-events within 50 ms, 00 -> 01 -> 11, and no contact that pulls."""
    tracking = result[1]["tracking"]
    first, second = tracking["events"]
    assert [first["mode_before"], first["mode_after"]] == [OPEN, ("closed", "open")]
    assert [second["mode_before"], second["mode_after"]] == [("closed", "open"), CLOSED]
    assert 0.0 < second["time"] - first["time"] < 0.05
    assert min(*first["impulses"], *second["impulses"]) >= 0.0
    assert tracking["least_force"] > 1.0
    assert first["time"] == pytest.approx(1.0389, abs=0.005)
    assert second["time"] == pytest.approx(1.0488, abs=0.005)


def test_the_spread_error_has_no_peak_and_the_conventional_one_has(result):
    summary = result[1]
    assert summary["tracking"]["peak_error"] < 0.3
    assert summary["conventional"]["peak_error"] > 10 * summary["tracking"]["peak_error"]
    assert summary["tracking"]["peak_conventional_error"] > 4.0


def test_closed_contacts_do_not_drift(result):
    assert result[1]["drift"] <= 1e-8


def test_the_folder_holds_configuration_and_data(result):
    folder, summary = result
    checks = json.loads((folder / "checks.json").read_text())["checks"]
    assert all(check["holds"] for check in checks)
    config = json.loads((folder / "config.json").read_text())
    assert config["versions"]["pin"]
    assert parse_settings(rrr_door.Config, config["configuration"], "settings") == CONFIG
    assert json.loads((folder / "summary.json").read_text())["drift"] == summary["drift"]
    loaded = HybridTrajectory.load(folder / "tracking.npz", system())
    assert [e.time for e in loaded.events] == [e["time"] for e in summary["tracking"]["events"]]


def test_events_converge_with_the_tolerance():
    """The error of event times and final state falls with the tolerance of the flow."""
    plant = system()
    reference = build(plant, DoorParameters(), Design(), rtol=1e-12, atol=1e-12)
    policy = ReferenceSpreading(reference, rrr_door.schedule(rrr_door.Config(), reference))
    x0 = reference.nominal(0.0) + np.array(rrr_door.PERTURBATION)

    def run(tolerance):
        r = simulate(plant, OPEN, x0, (0.0, 1.2), policy, rtol=tolerance, atol=tolerance)
        return np.array([e.time for e in r.events]), r.events[-1].state_after

    exact = run(1e-12)
    errors = []
    for tolerance in (1e-5, 1e-8, 1e-11):
        times, state = run(tolerance)
        errors.append((np.abs(times - exact[0]).max(), np.abs(state - exact[1]).max()))
        # The global error of a stable closed loop stays within a modest multiple of the
        # tolerance; velocities change by 10 per second at most, so states share the bound.
        # Stiff feedback keeps steps short, so that loose tolerances are far from exhausted.
        assert max(errors[-1]) <= 100 * tolerance
    assert errors[2][0] < 1e-2 * errors[0][0]
    assert errors[2][1] < 1e-2 * errors[0][1]


def perturbed(scale, **settings):
    plant = system()
    config = rrr_door.Config(**settings)
    reference = build(
        plant, DoorParameters(), Design(), phantom=config.phantom, rtol=1e-9, atol=1e-9
    )
    policy = ReferenceSpreading(reference, rrr_door.schedule(config, reference))
    x0 = reference.nominal(0.0) + scale * np.array(config.perturbation)
    run = simulate(plant, OPEN, x0, (0.0, 2.0), policy, rtol=1e-7, atol=1e-7)
    return run, rrr_door.measure_contacts(plant, run)["least_force"]


@pytest.mark.parametrize("scale", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("feedback", rrr_door.FEEDBACKS)
def test_pushing_sequences_grow_whatever_the_feedback_between_the_touches(scale, feedback):
    run, force = perturbed(scale, phantom_feedback=feedback)
    assert [e.mode_after for e in run.events] == [("closed", "open"), CLOSED]
    assert force > 1.0


def test_withdrawing_opens_the_first_contact_which_closes_again():
    """With the post-event feedforward after the first touch, corner 1 would have to pull."""
    run, force = perturbed(1.0, phantom="withdrawing")
    assert run.events[0].mode_after == OPEN
    assert run.final_mode == CLOSED
    assert len(run.events) > 2
    assert force > 0.0


def test_the_opposite_perturbation_hits_with_the_other_corner_first():
    run, _ = perturbed(-0.5, phantom_feedback="post")
    assert [e.mode_after for e in run.events] == [("open", "closed"), CLOSED]


def test_impossible_references_are_refused():
    plant = system()
    with pytest.raises(InfeasibleReferenceError, match="out of reach"):
        build(plant, DoorParameters(), Design(start_x=(1.5, 0.0, 0.0)))
    with pytest.raises(InfeasibleReferenceError, match="must go from"):
        build(plant, DoorParameters(), Design(impact_angle=(1.4, 0.0, 0.0)))


def test_an_event_outside_the_extended_reference_is_an_error():
    with pytest.raises(ReferenceRangeError, match="extend it further"):
        perturbed(20.0)


def test_wrong_settings_are_named():
    with pytest.raises(InputError, match="key in settings 'scal' is unknown"):
        load_configuration(rrr_door.Config, None, ["scal=1"])
    with pytest.raises(InputError, match="must look like key=value"):
        load_configuration(rrr_door.Config, None, ["scale"])
    with pytest.raises(InputError, match="perturbation must have shape"):
        load_configuration(rrr_door.Config, None, ["perturbation=[1, 2]"])
    with pytest.raises(InputError, match="foot_mass must be greater than 0"):
        load_configuration(rrr_door.Config, None, ['robot={"foot_mass": -1}'])
    with pytest.raises(InputError, match=r"\.final_door must be a list of length 3"):
        load_configuration(rrr_door.Config, None, ['design={"final_door": [1, 2]}'])
    with pytest.raises(InputError, match="extension must be greater than 0"):
        load_configuration(rrr_door.Config, None, ['design={"extension": 0}'])
    with pytest.raises(InputError, match="phantom_feedback 'of' is unknown"):
        load_configuration(rrr_door.Config, None, ["phantom_feedback=of"])


def test_the_command_line_lists_simulates_and_refuses(undrawn, tmp_path):
    runner = CliRunner()
    assert "rrr-door" in runner.invoke(cli, ["list"]).output
    shown = runner.invoke(cli, ["simulate", "rrr-door", "--settings", "--set", "scale=0.5"])
    assert json.loads(shown.output)["scale"] == 0.5
    out = tmp_path / "out"
    done = runner.invoke(cli, ["simulate", "rrr-door", "--quick", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "Reference" in done.output
    assert (out / "summary.json").exists()
    unknown = runner.invoke(cli, ["simulate", "nothing"])
    assert "experiment 'nothing' is unknown" in str(unknown.exception)
    wrong = runner.invoke(cli, ["simulate", "rrr-door", "--set", "scale=nan"])
    assert isinstance(wrong.exception, HybridctlError)


def test_errors_end_the_program_with_one_line(tmp_path):
    """From a shell: exit code 1, the message on stderr, and no traceback."""
    command = [sys.executable, "-m", "hybridctl", "simulate", "rrr-door", "--set", "scale=nan"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    # On a slow machine lines before it say that the command is alive.
    lines = [line for line in result.stderr.splitlines() if not line.startswith("simulate: ")]
    assert lines == ["error: settings.scale must be a number, got 'nan'"]
    assert list(tmp_path.iterdir()) == []
