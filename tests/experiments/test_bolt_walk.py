"""Bolt's walk: its task and guess, what counts as a fall, and a short walk on both engines."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hybridctl.experiments.walking import bolt_gait, bolt_walk
from hybridctl.robots import bolt
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration

CONFIG = bolt_walk.Config()
ENGINES = {"mujoco": "mujoco", "drake": "pydrake"}


def test_what_counts_as_a_fall():
    gait = SimpleNamespace(middle=np.full(24, 0.4), period=0.3)
    state = np.zeros(24)
    state[2] = 0.4
    assert bolt_walk.describe_fall(gait, state, 0.3) == ""
    assert bolt_walk.describe_fall(gait, state, 0.61) == "stands"
    tipped, low = state.copy(), state.copy()
    tipped[5], low[2] = -0.9, 0.2
    assert bolt_walk.describe_fall(gait, tipped, 0.0) == "tips over"
    assert bolt_walk.describe_fall(gait, low, 0.0) == "falls"


def test_the_guess_goes_from_one_double_stance_to_its_image():
    """Legs are exchanged at its end, feet are within 6 mm of the floor, and it has the speed."""
    walker = bolt.system(mirrored=True)
    guess = bolt_gait.make_bolt_guess(walker, 0.3)
    first, last = guess(0, 0.0), guess(0, 1.0)
    np.testing.assert_allclose(walker.dynamics.gaps(first[:12]), 0.0, atol=6e-3)
    symmetry = bolt.exchange_legs(walker)
    gap = symmetry.gap(walker.space, first, last)
    np.testing.assert_allclose(gap[:18], 0.0, atol=1e-6)  # all but the rates of the joints
    assert last[0] - first[0] == pytest.approx(0.3 * 0.3)


def test_the_place_along_the_way_costs_nothing():
    weights = bolt_gait.BoltWeights(across=(3.0, 4.0)).make_state_weights()
    assert np.diag(weights)[[0, 1, 2, 3, 12]].tolist() == [0.0, 3.0, 100.0, 4.0, 1.0]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_the_experiment_walks_and_leaves_its_summary(tmp_path, engine):
    pytest.importorskip(ENGINES[engine], reason=f"{engine} is not installed")
    folder = RunFolder("bolt-walk", tmp_path / "run")
    config = replace(bolt_walk.quick(CONFIG), engines=(engine,))
    bolt_walk.run(config, folder, Console(quiet=True))
    summary = json.loads((folder / "summary.json").read_text())
    walks = [(walk["engine"], walk["law"], walk["steps"]) for walk in summary["walks"]]
    assert walks == [(engine, law, [3]) for law in ("touch", "phase", "clock")]
    assert summary["gait"]["multipliers_open"][0] > 1.0 > summary["gait"]["multipliers_closed"][0]
    for name in ("figures/step.png", "figures/walks.png", "motion.json"):
        assert (folder / name).stat().st_size > 5000


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("steps=0", "steps must be a whole number of at least 1"),
        ("speed=0", "speed must be greater"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(bolt_walk.Config, None, [setting])
