"""The frame of experiments: what it writes and prints of what an experiment has found."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hybridctl.robots import ball
from rich.console import Console

import hybridctl as hc
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.report import make_table
from hybridctl.base.run_folder import RunFolder


@dataclass(frozen=True)
class Config:
    height: float = 1.0
    seed: int = 4


@experiment
def fall(config, console):
    """Drop a ball."""
    run = hc.simulate(ball.system(), ("open",), [0.0, config.height, 0.0, 0.0], (0.0, 0.1))
    drop = config.height - float(run.final_state[1])
    return Findings(
        {"drop": drop, "states": np.array([drop])},
        [make_table("Drops", ["ball", "m"], [("first", f"{drop:.3f}")]), "that is all"],
        [Check("it falls by g t^2 / 2, error [m]", abs(drop - 0.5 * 9.81 * 0.01), 1e-9)],
        {"ball": run},
        {"note.txt": "a ball"},
        lambda folder: run.plot(folder / "figures/states.png"),
    )


def test_findings_become_files_tables_and_figures(tmp_path, capsys):
    summary = fall(Config(), RunFolder("fall", tmp_path / "a"), Console(width=200))
    names = {str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a").rglob("*.*")}
    assert {"config.json", "summary.json", "checks.json", "ball.npz", "note.txt"} <= names
    assert "figures/states.png" in names
    assert json.loads((tmp_path / "a/config.json").read_text())["seed"] == 4
    assert json.loads((tmp_path / "a/summary.json").read_text())["drop"] == summary["drop"]
    (check,) = json.loads((tmp_path / "a/checks.json").read_text())["checks"]
    assert check["holds"] is True
    assert check["least"] is None  # JSON has no infinity
    out = capsys.readouterr().out
    assert out.index("Drops") < out.index("that is all") < out.index("it falls by g t^2 / 2")


def test_units_without_figures_draw_none(tmp_path):
    fall(Config(), RunFolder("fall", tmp_path, draws=False), Console(quiet=True))
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize(
    ("value", "holds"),
    [(1.0, True), (2.0, True), (2.1, False), (0.9, False), (float("nan"), False)],
)
def test_checks_hold_from_least_to_most(value, holds):
    assert Check("a claim", value, 2.0, 1.0).holds is holds
