"""The door with friction and release: planned events happen, and tracking follows them."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hybridctl.experiments.rrr_door import tracking as rrr_door
from rich.console import Console

from hybridctl.app.cli import cli
from hybridctl.base.run_folder import RunFolder

TOUCH = {
    (True, False): [("slip-", "slip-"), ("stick", "stick")],
    (True, True): [("slip-", "slip-"), ("open", "open")],
    (False, True): [("closed", "closed"), ("open", "open")],
}


_FIRST, *_OTHERS = TOUCH


@pytest.fixture(
    scope="module",
    params=[_FIRST, *(pytest.param(case, marks=pytest.mark.slow) for case in _OTHERS)],
)
def summary(request, tmp_path_factory):
    friction, release = request.param
    config = replace(rrr_door.quick(rrr_door.Config()), friction=friction, release=release)
    path = tmp_path_factory.mktemp("door")
    folder = RunFolder("rrr-door", path, draws=request.param != _FIRST)
    result = rrr_door.run(config, folder, Console(quiet=True))
    return request.param, result, folder


def test_the_reference_has_the_planned_simultaneous_events(summary):
    case, result, _ = summary
    events = result["reference"]["events"]
    assert [tuple(e["mode_after"]) for e in events] == TOUCH[case]
    assert all(len(e["guards"]) == 2 for e in events)
    planned = 1.6 if case[1] else 1.4
    # The plan is integrated to 1e-10 and crosses its guard at order one per second.
    assert events[1]["time"] == pytest.approx(planned, abs=1e-7)


def test_tracking_reaches_the_same_mode_without_the_peak_of_the_conventional_error(summary):
    case, result, _ = summary
    tracking, conventional = result["tracking"], result["conventional"]
    assert tuple(tracking["events"][-1]["mode_after"]) == TOUCH[case][-1]
    assert tracking["events"][0]["time"] > 1.02
    assert tracking["peak_error"] < 0.4
    assert conventional["peak_error"] > 3.0
    assert tracking["final_error"] < 0.01


def test_contacts_push_and_friction_stays_in_its_cone(summary):
    case, result, _ = summary
    for run in ("reference", "tracking"):
        assert result[run]["least_force"] >= -1e-6
        assert result[run]["largest_friction_ratio"] <= (0.2 if case[0] else 0.0) + 1e-6


def test_the_folder_is_complete(summary):
    _, _, folder = summary
    checks = json.loads((folder / "checks.json").read_text())["checks"]
    assert all(check["holds"] for check in checks)
    names = {path.name for path in folder.path.rglob("*") if path.is_file()}
    assert {"config.json", "summary.json", "tracking.npz"} <= names
    if folder.draws:
        assert {"errors.png", "snapshots.png", "tracking_forces.png"} <= names


def test_switches_of_the_command_line_set_the_configuration():
    shown = CliRunner().invoke(cli, ["simulate", "rrr-door", "--friction", "--settings"])
    config = json.loads(shown.output)
    assert config["friction"] is True
    assert config["release"] is False
    wrong = CliRunner().invoke(cli, ["simulate", "rrr-door", "--frction"])
    assert wrong.exit_code == 2
    assert (
        "no such option: --frction; this experiment also has --friction, --release" in wrong.output
    )
