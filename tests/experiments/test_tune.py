"""`tune rrr-door` reduces errors, can be resumed, and its gains plug into `simulate`."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner
from hybridctl.experiments.rrr_door import tracking as rrr_door
from hybridctl.experiments.rrr_door.runner import DoorTrial, Perturbations, draw_member
from hybridctl.experiments.tuning import tune
from hybridctl.robots.rrr_door import DoorParameters
from rich.console import Console
from scipy.stats import spearmanr

from hybridctl.app.cli import cli
from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration
from hybridctl.control.gains import GainSchedule
from hybridctl.control.tuning.ensemble import Ensemble

QUICK = tune.quick(tune.Config(workers=1))
CALL = ["tune", "rrr-door", "--quick", "--workers", "1", "--out"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = RunFolder("tune", tmp_path_factory.mktemp("tune"))
    return folder, tune.run(QUICK, folder, Console(quiet=True))


def test_the_summary_has_what_it_should_and_the_error_falls(result):
    folder, _ = result
    stored = json.loads((folder / "summary.json").read_text())
    for name in ("before", "after", "conventional"):
        assert {"mean_error", "p95_error", "peak_input", "failures"} <= set(stored[name])
    assert (stored["seed"], stored["members"]) == (1, 6)
    assert set(stored["perturbations"]) >= {"position", "mass", "friction", "delay"}
    assert stored["after"]["mean_error"] < 0.9 * stored["before"]["mean_error"]
    assert stored["after"]["peak_input"] <= stored["before"]["peak_input"]
    checks = json.loads((folder / "checks.json").read_text())["checks"]
    assert all(check["holds"] for check in checks)
    assert (folder / "figures/distribution.png").stat().st_size > 10_000


def test_a_finished_folder_is_read_and_not_run_again(result, monkeypatch):
    folder, summary = result

    def never(*arguments):
        raise AssertionError

    monkeypatch.setattr(DoorTrial, "__call__", never)
    again = tune.run(QUICK, folder, Console(quiet=True))
    assert json.dumps(again["after"]) == json.dumps(summary["after"])
    with pytest.raises(InputError, match="other settings"):
        tune.run(tune.quick(tune.Config(workers=1, seed=2)), folder, Console(quiet=True))


def test_the_gains_plug_into_simulate(result, undrawn, tmp_path):
    gains = str(result[0] / "gains.npz")
    call = ["simulate", "rrr-door", "--quick", "--gains", gains, "--out"]
    runner = CliRunner()
    done = runner.invoke(cli, [*call, str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["tracking"]["rms_error"] < 0.08  # 0.087 with the published gains
    wrong = runner.invoke(cli, [*call, str(tmp_path / "release"), "--release"])
    assert isinstance(wrong.exception, InputError)
    assert "do not fit this reference" in str(wrong.exception)
    none = runner.invoke(cli, ["simulate", "slope", "--gains", gains])
    assert none.exit_code == 2
    assert "has no gains" in none.output


def test_gains_of_another_size_are_refused(tmp_path):
    GainSchedule.constant([np.eye(2)] * 2).save(tmp_path / "gains.npz")
    config = rrr_door.Config(gains=str(tmp_path / "gains.npz"))
    with pytest.raises(InputError, match="do not fit this reference"):
        rrr_door.schedule(config, rrr_door.scene(config)[2])


@pytest.mark.slow
def test_a_variant_with_friction_and_release_is_prepared():
    config = tune.quick(tune.Config(friction=True, release=True))
    study = tune.prepare_study(config)
    assert study.structure.arcs == (0, 1, 0)
    assert study.linearization.trajectory.end == pytest.approx(1.6, abs=1e-6)
    gains = study.structure.schedule(study.start)
    predicted = study.make_prediction(1e-4)(gains)
    assert predicted.cost > 0.0
    outcome = DoorTrial(config.experiment, config.perturbations, 1)("spreading", gains, 0)
    assert 0.0 < outcome.error < 1.0


def test_looser_simulations_are_as_good_as_tight_ones():
    door = QUICK.experiment
    study = tune.prepare_study(QUICK)
    gains = study.structure.schedule(study.start)
    loose, tight = (
        DoorTrial(door, QUICK.perturbations, 1, tolerance)("spreading", gains, 3)
        for tolerance in (1e-6, 1e-9)
    )
    # errors of the flow, 1e-6 of its size, are amplified by the gains, 16 N m s at most
    assert loose.error == pytest.approx(tight.error, rel=1e-3)
    assert loose.peak_input == pytest.approx(tight.peak_input, rel=1e-3)


def test_members_are_drawn_one_by_one_and_within_their_bounds():
    p, nominal = Perturbations(), DoorParameters(friction=0.2)
    draws = [draw_member(p, nominal, 1, member) for member in range(400)]
    starts = np.array([d.start for d in draws])
    np.testing.assert_array_equal(starts[7], draw_member(p, nominal, 1, 7).start)
    assert not starts[:, [3, 7]].any()
    # the deviation of a normal number cut off at 2.5 is 0.987, and 400 tell it to 4 percent
    np.testing.assert_allclose(starts[:, :3].std(axis=0), p.position, rtol=0.12)
    assert np.abs(starts).max() <= 2.5 * p.position
    masses = np.array([d.parameters.foot_mass for d in draws]) / nominal.foot_mass
    assert masses.std() == pytest.approx(p.mass, rel=0.12)
    assert 0.0 <= min(d.delay for d in draws) < max(d.delay for d in draws) <= p.delay


@pytest.mark.slow
def test_the_order_of_random_gains_is_predicted():
    """Up to four times more or less than by hand; the prediction is without the input's weight."""
    config = tune.Config(workers=1)
    study, rng = tune.prepare_study(config), np.random.default_rng(1)
    runs = Ensemble(DoorTrial(config.experiment, config.perturbations, 1), range(4))
    prediction, costs = study.make_prediction(1e-12), []
    for _ in range(8):
        gains = study.structure.schedule(study.start + rng.uniform(-1.4, 1.4, len(study.start)))
        costs.append((prediction(gains).cost, float(np.mean(runs(gains).errors ** 2))))
    assert spearmanr(np.array(costs)).statistic > 0.3


def killed(path):
    """Start the command line, and kill it when a third of the runs are done."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hybridctl", *CALL, str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    record = path / "runs.jsonl"
    while process.poll() is None:
        if record.exists() and record.read_bytes().count(b"\n") > 15:
            break
        time.sleep(0.02)
    process.kill()
    process.wait()
    return not (path / "summary.json").exists()


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_answer(result, tmp_path):
    path = tmp_path / "run"
    assert killed(path)
    done = CliRunner().invoke(cli, [*CALL, str(path)])
    assert done.exit_code == 0, done.output
    summary = json.loads((path / "summary.json").read_text())
    assert summary == json.loads((result[0] / "summary.json").read_text())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("members=0", "members must be"),
        ("input_weights=[]", "input_weights must have"),
        ("input_weights=[0]", r"input_weights\[0\] must be greater than 0"),
        ("gains_between=[2, 1]", r"gains_between\[1\] must be greater than 2"),
        ("peak_margin=0.9", "peak_margin must be at most 0.5"),
        ('perturbations={"mass": 0.5}', "mass must be at most"),
        ('door={"gains": "some.npz"}', "door.gains must be null"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(tune.Config, None, [setting])
