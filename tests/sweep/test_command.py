"""`hybridctl sweep` from the command line: lines as units end, a table, a page, and resuming."""

import csv
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from hybridctl.app import cli
from hybridctl.base import plugins
from hybridctl.base.errors import InputError


@dataclass(frozen=True)
class Config:
    size: float = 1.0
    seed: int = 5


def run(config, folder, console):
    if config.size > 2.0:
        raise InputError("too large")
    return {"area": config.size**2, "seed": config.seed}


@pytest.fixture
def sweep(monkeypatch, tmp_path, capsys):
    module = SimpleNamespace(Config=Config, quick=lambda c: c, run=run, __doc__="A claim.")
    monkeypatch.setattr(plugins, "load_plugin", lambda group, name: module)

    def call(*options):
        arguments = ["hybridctl", "sweep", "slope", *options, "--out", str(tmp_path / "run")]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return call


def test_units_are_told_as_they_end_and_make_a_table_and_a_page(sweep, tmp_path):
    code, out, _ = sweep("--vary", "size=1:3:3", "--seeds", "2")
    assert code == 0
    assert "[1/6] size=1.0, seed=5: done" in out
    assert "[6/6] size=3.0, seed=6: failed: too large" in out
    with open(tmp_path / "run/table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["area"] for row in rows] == ["1.0", "1.0", "4.0", "4.0", "", ""]
    assert [row["seed"] for row in rows] == ["5", "6"] * 3
    page = (tmp_path / "run/index.html").read_text()
    assert "<td>failed</td><td>2</td>" in page
    code, out, _ = sweep("--vary", "size=1:3:3", "--seeds", "2")
    assert code == 0
    assert "6 of 6 runs have results already" in out
    code, _, err = sweep("--vary", "size=1:3:4")
    assert code == 1
    assert "holds a run with other settings" in err


def test_a_sweep_over_nothing_is_refused_and_leaves_nothing(sweep, tmp_path):
    code, _, err = sweep()
    assert (code, list(tmp_path.iterdir())) == (1, [])
    assert "a sweep must vary a setting" in err
