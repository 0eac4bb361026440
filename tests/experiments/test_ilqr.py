"""Iterative LQR finds its events on the ball, the block and the door."""

import json

import pytest
from hybridctl.experiments.optimal import ilqr
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = RunFolder("ilqr", tmp_path_factory.mktemp("ilqr"), draws=False)
    return folder, ilqr.run(ilqr.quick(ilqr.Config()), folder, Console(quiet=True))


def test_the_start_decides_whether_the_ball_bounces(results):
    summary = results[1]
    for target in ilqr.TARGETS:
        assert len(summary[f"{target}, hovers"]["events"]) == 0
        assert len(summary[f"{target}, falls"]["events"]) == 1
        assert summary[f"{target}, hovers"]["converged"]
        assert summary[f"{target}, falls"]["converged"]
    assert summary["near, falls"]["cost"] > summary["near, hovers"]["cost"]
    assert summary["far, falls"]["cost"] < summary["far, hovers"]["cost"]


def test_bounces_are_lost_on_the_way(results):
    entry = results[1]["near, is pushed down, plain"]
    assert (len(entry["first_events"]), len(entry["events"])) == (3, 1)


def test_without_the_saltation_matrix_the_far_target_is_missed(results):
    summary = results[1]
    assert summary["far, falls, reset only"]["cost"] > 2.0 * summary["far, falls"]["cost"]


def test_block_and_door_are_improved_through_their_contacts(results):
    for name, least in (("block", 3), ("door", 2)):
        entry = results[1][name]
        assert entry["cost"] < 0.1 * entry["first_cost"]
        assert len(entry["events"]) >= least


def test_everything_is_written(results):
    folder = results[0].path
    checks = json.loads((folder / "checks.json").read_text())["checks"]
    assert all(check["holds"] for check in checks)
    for name in ("config.json", "summary.json", "block.npz", "door.npz"):
        assert (folder / name).stat().st_size > 0


def test_a_door_that_is_not_hit_is_refused():
    with pytest.raises(InputError, match="door_end"):
        ilqr.Config(door_end=0.9)
