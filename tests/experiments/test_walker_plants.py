"""The walker on MuJoCo contact: who walks, what counts as a fall, the study."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hybridctl.experiments.walking import biped_walk, on_plants
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration
from hybridctl.hybrid.plant import Sample

pytest.importorskip("mujoco", reason="mujoco is not installed")
CONFIG = on_plants.Config(steps=3, scatter=(0.003, 0.01))


@pytest.fixture(scope="module")
def slow_landing():
    """The gait that uses what friction this study lets it."""
    config = replace(biped_walk.Config(), share=CONFIG.share)
    return biped_walk.find_gait(config, config.speed)


@pytest.mark.slow
@pytest.mark.parametrize("known", ["state", "estimate"])
def test_what_knows_the_saltation_matrix_walks_on_contact_that_takes_time(slow_landing, known):
    """From a start that is a little off, on contact that lasts 20 ms."""
    found = on_plants.Bench.of(CONFIG, slow_landing).walk(((0.01, known, "saltation"), 0))
    assert (found.steps, found.reason) == (3, "")


def test_what_counts_as_a_fall(gait):
    def seen(**moved):
        x = gait.middle.copy()
        x[[{"hip": 1, "torso": 2}[name] for name in moved]] += list(moved.values())
        return Sample(0.0, x, {})

    assert on_plants.describe_fall(gait, seen(), 0.0) == ""
    assert on_plants.describe_fall(gait, seen(hip=-0.3), 0.0) == "falls"
    assert on_plants.describe_fall(gait, seen(torso=1.2), 0.0) == "falls"
    assert on_plants.describe_fall(gait, seen(), 2.0 * gait.period) == "stands"


@pytest.mark.slow
def test_the_experiment_leaves_its_summary(tmp_path):
    folder = RunFolder("walker-plants", tmp_path / "run")
    on_plants.run(replace(on_plants.quick(CONFIG), steps=1), folder, Console(quiet=True))
    walks = json.loads((folder / "summary.json").read_text())["walks"]
    assert [(w["known"], w["jumps"]) for w in walks] == list(on_plants.CASES)
    assert all(len(w["steps"]) == 1 and np.isfinite(w["processor_share"]) for w in walks)
    for walk in walks:
        median, most, longest = walk["sample_ms"].values()
        assert 0.0 < median <= most <= longest
    assert (folder / "figures/plants.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("time_constants=[0]", r"time_constants\[0\] must be greater"),
        ("steps=0", "steps must be a whole number of at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(on_plants.Config, None, [setting])
