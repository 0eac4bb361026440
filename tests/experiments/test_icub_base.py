"""The recorded walk of a humanoid: both formats, what is reached, and clear errors without it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hybridctl.experiments.legged import icub_base, robustness
from hybridctl.experiments.legged.recording import load
from hybridctl.experiments.legged.score import Track, compute_errors, run_filter, summarize_errors
from rich.console import Console

from hybridctl.base import plugins
from hybridctl.base.errors import FileFormatError, InputError, UnknownNameError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration
from hybridctl.legged.hypotheses import ContactEvidence

FOLDER = Path(__file__).parents[3] / "shared/data/icub_walking"
recorded = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"no recording of the humanoid in {FOLDER}"
)


@pytest.fixture(scope="module")
def recording():
    config = icub_base.Config()
    return load(str(FOLDER), jump=config.jump, lost=config.lost)


@pytest.fixture(scope="module")
def config():
    return icub_base.quick(icub_base.Config(data=str(FOLDER)))


@pytest.fixture(scope="module")
def outcome(recording, config):
    """What the filter of the settings finds."""
    return run_filter("filter", config.settings, recording)


@recorded
def test_the_walk_is_estimated_as_well_as_it_says(outcome):
    """Bounds are those asked for; the covariance is honest within what creeping feet allow."""
    walk = outcome.result.events[0].time
    found = summarize_errors(outcome.errors, walk)
    assert outcome.touchdowns == {"left": 3, "right": 3}
    assert found["position_rmse"] < 0.018
    assert found["position_rmse_walk"] < 0.025
    assert np.degrees(found["yaw_rmse"]) < 0.35
    assert max(np.degrees(found[f"{name}_rmse"]) for name in ("roll", "pitch")) < 0.6
    # Of 3 expected; errors are a bit smaller than they might be, as the bias is known at the start.
    assert 1.8 < found["mean_nees"] < 4.0


@recorded
@pytest.mark.slow
def test_contacts_by_hypotheses_need_no_threshold(recording, config):
    """By motion alone, and with thresholds so low that hysteresis alone is off by 90 mm."""
    low = replace(config.settings, touch_force=30.0, lift_force=10.0, evidence=ContactEvidence())
    without = replace(config.settings, evidence=ContactEvidence(forces=False))
    for settings in (low, without):
        outcome = run_filter("hypotheses", settings, recording)
        assert summarize_errors(outcome.errors, 5.8)["position_rmse"] < 0.020
    # By motion alone a sole that rolls may seem to be lifted once for some 10 ms.
    assert all(downs in (3, 4) for downs in outcome.touchdowns.values())


@recorded
def test_noise_found_without_truth_serves_as_well(recording, config):
    settings = icub_base.find_settings_without_truth(config, recording)
    assert settings.touch_force == pytest.approx(111.0, abs=3.0)  # a third of 33.6 kg
    assert settings.noise.foot == pytest.approx(4.7e-3, rel=0.3)  # what 6 contacts of both say
    found = summarize_errors(run_filter("blind", settings, recording).errors, 5.8)
    assert found["position_rmse"] < 0.020
    assert 1.0 < found["mean_nees"] < 4.0


@recorded
def test_the_mode_is_worth_a_factor_of_ten(recording, config, outcome):
    without = run_filter("no switches", config.settings, recording, signals=False)
    ratio = (
        summarize_errors(without.errors, 5.8)["position_rmse"]
        / summarize_errors(outcome.errors, 5.8)["position_rmse"]
    )
    assert ratio > 10.0


@recorded
def test_the_bag_holds_the_same_as_the_archive(recording):
    """Stamps of the archive are floats of seconds since 1970, good to 0.24 us."""
    bag = load(str(FOLDER), "bag", jump=1.5, lost=0.3)
    assert bag.log.format == "rosbag2"
    for name in recording.log.names:
        one, other = recording.log[name], bag.log[name]
        sign = np.sign((one.values * other.values).sum(axis=1))[:, None] if one.quaternion else 1.0
        np.testing.assert_allclose(one.values, sign * other.values, atol=1e-12)
        np.testing.assert_allclose(one.times, other.times, atol=3e-7)


@recorded
def test_motion_capture_that_loses_the_robot_is_left_out(recording):
    lost = np.flatnonzero(~recording.truth.good)
    assert lost[0] == 828
    assert lost[-1] == 859
    assert len(lost) == 32


@recorded
@pytest.mark.parametrize(
    "evidence", [None, pytest.param(ContactEvidence(), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["one foot without force", "200 ms lost, three times"])
def test_damaged_readings_are_within_what_is_stated_and_flagged(recording, config, name, evidence):
    settings = replace(config.settings, weight=330.0, evidence=evidence)
    found = robustness.judge_damage(recording, settings, name, 5.8)
    assert found["within"] > 0.95
    assert found["flags"]


@recorded
@pytest.mark.slow
def test_the_experiment_leaves_what_it_found(config, tmp_path):
    folder = RunFolder("icub-base", tmp_path / "run")
    full = replace(config, robust=True)
    icub_base.run(full, folder, Console(quiet=True))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["touchdowns"] == {"left": 3, "right": 3}
    for row in summary["filters"]:
        assert {"name", "position_rmse", "yaw_rmse", "mean_nees", "seconds_per_sample"} <= set(row)
    rows = {row["name"]: row for row in summary["filters"]}
    assert rows["smoother"]["position_rmse"] < rows["filter"]["position_rmse"]
    assert rows["odometry"]["yaw_rmse"] > 5.0 * rows["filter"]["yaw_rmse"]
    assert all(row["within"] > 0.95 or row["flags"] for row in summary["robustness"])
    assert {path.stem for path in (folder / "figures").iterdir()} == {"errors"}


def test_without_data_it_says_where_they_are(tmp_path):
    with pytest.raises(InputError, match=r"data=FOLDER.*paper_ramadoss_2021_icra"):
        icub_base.run(icub_base.Config(), RunFolder("icub-base", tmp_path / "a"), Console())
    assert plugins.load_plugin("experiments", "icub-base") is icub_base


def test_a_folder_without_a_recording_is_refused(tmp_path):
    with pytest.raises(InputError, match="data must be a folder"):
        load(str(tmp_path / "none"), jump=1.5, lost=0.3)
    with pytest.raises(FileFormatError, match="holds no URDF"):
        load(str(tmp_path), jump=1.5, lost=0.3)


def test_settings_come_from_the_command_line_and_are_checked():
    found = load_configuration(
        icub_base.Config,
        None,
        ['settings={"inertial": "a", "feet": [], "touch_force": 2, "lift_force": 1}'],
    )
    assert found.settings.touch_force == 2.0
    with pytest.raises(UnknownNameError, match="did you mean 'evaluations'"):
        load_configuration(icub_base.Config, None, ["evaluation=3"])
    with pytest.raises(InputError, match="share_touch must be at most 1"):
        icub_base.Config(share_touch=2.0)


def test_scores_are_those_of_errors_that_are_known(tmp_path):
    """A constant error of 3, 4 and 0 mm, of which the filter claims 5 mm: NEES is 1."""
    from hybridctl.experiments.legged.recording import MotionCapture

    times = 0.01 * np.arange(50)
    truth = MotionCapture(times, np.zeros((50, 3)), np.zeros((50, 3)), times > 0.1)
    covariance = np.tile(np.diag(np.repeat([1e-4, 25e-6, 1.0], 3)), (50, 1, 1))
    position = np.tile([3e-3, 4e-3, 0.0], (50, 1))
    yaw = np.tile([0.0, 0.0, 2.0 * np.pi + 0.01], (50, 1))
    found = summarize_errors(compute_errors(Track(times, position, yaw, covariance), truth), 0.3)
    assert found["position_rmse"] == pytest.approx(5e-3, abs=1e-12)
    assert found["mean_nees"] == pytest.approx(1.0, abs=1e-9)
    assert found["yaw_rmse"] == pytest.approx(0.01, abs=1e-12)
