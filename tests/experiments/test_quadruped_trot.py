"""Quadrupeds trot: what counts as a fall, trots on both engines under all laws, the study."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hybridctl.experiments.walking import quadruped_trot
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration

CONFIG = quadruped_trot.Config()
ENGINES = {"mujoco": "mujoco", "drake": "pydrake"}


def test_what_counts_as_a_fall():
    controller, stance = quadruped_trot.make_trot("solo12", "clock")
    state = np.concatenate([stance, np.zeros(18)])
    assert quadruped_trot.describe_fall(controller.trot, state) == ""
    tipped, low = state.copy(), state.copy()
    tipped[3:7], low[2] = (np.sin(0.5), 0.0, 0.0, np.cos(0.5)), 0.5 * state[2]
    assert quadruped_trot.describe_fall(controller.trot, tipped) == "tips over"
    assert quadruped_trot.describe_fall(controller.trot, low) == "falls"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["solo12", "go2"])
def test_a_quadruped_trots_on_and_after_a_push(engine, name):
    """Forces carry the weight on average; a push to the side moves the base that way."""
    pytest.importorskip(ENGINES[engine], reason=f"{engine} is not installed")
    bench = quadruped_trot.TrotBench(replace(CONFIG, engine=engine))
    kind = quadruped_trot.KINDS[name]
    push = quadruped_trot.BasePush(np.array([0.0, kind.impulse]), kind.period)
    trots = [bench.trot(name, "touch", 0, 5, each) for each in (None, push)]
    robot = quadruped_trot.make_trot(name, "touch")[0].programme.robot
    for trot in trots:
        assert (trot.strides, trot.reason) == (5, "")
        assert trot.failures <= 0.01 * len(trot.times)  # the input before is kept there
        settled = trot.times > 2.0 * kind.period
        # A sample has the forces at one time, so that peaks of touchdowns are seen or missed.
        assert trot.forces[settled].sum(axis=1).mean() == pytest.approx(robot.weight, rel=0.1)
    # Free of its feet the base goes J T / 2 m in the duration T of a push; the law resists, and
    # takes it back later.
    ahead = (trots[1].bases - trots[0].bases)[:, 1]
    assert ahead.max() > 0.25 * kind.impulse * 0.05 / (2.0 * robot.mass)
    assert abs(ahead[-1]) < 0.5 * ahead.max()


@pytest.mark.slow
@pytest.mark.parametrize("trigger", ["clock", "sure"])
def test_other_laws_trot_too(trigger):
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    trot = quadruped_trot.TrotBench(CONFIG).trot("go2", trigger, 1, 5)
    assert (trot.strides, trot.reason) == (5, "")


@pytest.mark.slow
def test_solo12_survives_larger_pushes_by_touch_than_by_the_clock():
    """Eight pushes of 3.5 N s: two are survived by the clock; these and three more by touch.

    Over twenty pushes the mean limits are 3.08 and 3.55 N s.
    """
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    bench = quadruped_trot.TrotBench(replace(CONFIG, seed=1))
    clock, touch = (
        {k for k in range(8) if bench.survives_push("solo12", trigger, k, 3.5)}
        for trigger in ("clock", "touch")
    )
    assert clock < touch
    assert len(touch) >= len(clock) + 2


@pytest.mark.slow
def test_the_experiment_leaves_its_summary(tmp_path):
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    folder = RunFolder("quadruped-trot", tmp_path / "run")
    config = replace(quadruped_trot.quick(CONFIG), strides=1, triggers=("clock",), pushes=1)
    quadruped_trot.run(config, folder, Console(quiet=True))
    (trot,) = json.loads((folder / "summary.json").read_text())["trots"]
    assert (trot["robot"], trot["trigger"], trot["strides"]) == ("solo12", "clock", [1])
    assert trot["push_mean"] == trot["push_limits"][0] > 0.0
    assert trot["push_more"] is None
    assert (folder / "figures/pushes.png").stat().st_size > 5000
    assert (folder / "figures/trot.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("strides=0", "strides must be a whole number of at least 1"),
        ("time_constant=0", "time_constant must be greater"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(quadruped_trot.Config, None, [setting])
