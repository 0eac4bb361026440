"""Parameters of a cube from recorded tosses: the table of likelihoods, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hybridctl.experiments.cube_filter.tosses import read_tosses
from hybridctl.experiments.filter_models import CubeSettings, cube_model
from hybridctl.experiments.identification import cube
from hybridctl.experiments.identification.cube import (
    LikelihoodTable,
    prediction_errors,
    replace_parameters,
    shorten,
)
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.journal import Journal
from hybridctl.base.run_folder import RunFolder
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.record import Record, Series

DATA = Path(__file__).parents[3] / "shared/data/cube_tosses/cube_tosses.npz"
recorded = pytest.mark.skipif(not DATA.is_file(), reason=f"no recorded tosses in {DATA}")
POINT = np.array([0.18, 0.25, 5e-3])


@recorded
def test_a_table_keeps_what_it_has_found(tmp_path, monkeypatch):
    noise = cube.Config().noise
    given = read_tosses(str(DATA), (0, 1), noise)
    records = {k: shorten(r, 0.1) for k, r in given.items()}
    table = LikelihoodTable(Journal(tmp_path / "table", {}), noise, records)
    found = table.fill(POINT[None], [0, 1])
    assert found.shape == (1, 2)
    assert np.isfinite(found).all()
    monkeypatch.setattr(LikelihoodTable, "_evaluate", None)  # nothing is evaluated anew
    again = LikelihoodTable(Journal(tmp_path / "table", {}), noise, records)
    np.testing.assert_array_equal(again.fill(POINT[None], [0, 1]), found)
    assert again.count_rejected(POINT, [0, 1]) == 0


@recorded
@pytest.mark.slow
def test_the_experiment_leaves_what_it_found(tmp_path):
    config = cube.quick(cube.Config(data=str(DATA)))
    folder = RunFolder("cube-identify", tmp_path / "run")
    cube.run(replace(config, depth=1e3), folder, Console(quiet=True))
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary["parameters"]) == {"friction", "restitution", "rounding"}
    assert all(p["standard_error"] > 0.0 for p in summary["parameters"].values())
    rows = {row["name"]: row for row in summary["held_out"]}
    assert rows["published"]["gain"] == 0.0
    assert (folder / "figures/profiles.png").is_file()


def test_predictions_are_compared_with_the_pose_at_that_time():
    """A cube falls as said; a pose moved by 3 and 4 mm and turned by 0.1 rad is off by that."""
    times = np.arange(40) / 148.0
    poses = np.zeros((40, 7))
    poses[:, 0], poses[:, 2], poses[:, 6] = times, 1.0 - 0.5 * 9.81 * times**2, 1.0
    poses[30] += [0.003, 0.004, 0.0, 0.0, 0.0, 0.0, 0.0]
    poses[30, 5:] = np.sin(0.05), np.cos(0.05)
    record = Record({"pose": Series(times, poses)})
    model = cube_model(replace_parameters(CubeSettings(), POINT))
    x = np.array([0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    start = Estimate(model.open, 0.0, x, np.eye(12))
    found = prediction_errors(model, record, start, 20 / 148.0)
    np.testing.assert_allclose(found, 0.0, atol=1e-6)  # of the integrator's tolerance, 1e-7
    found = prediction_errors(model, record, start, 30 / 148.0)
    np.testing.assert_allclose(found, [0.005, 0.1], atol=1e-6)
    assert np.isnan(prediction_errors(model, record, start, 1.0)).all()


def test_without_data_it_says_where_they_are(tmp_path):
    with pytest.raises(InputError, match=r"data=FILE.*contact-nets"):
        cube.run(cube.Config(), RunFolder("cube-identify", tmp_path / "a"), Console())
    with pytest.raises(InputError, match="upper end of friction"):
        cube.Box((0.3, 0.1), (0.1, 0.2), (0.0, 1e-3), 8, 0)
