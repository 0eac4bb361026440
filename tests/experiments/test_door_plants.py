"""The door on MuJoCo plants: sensors, what is told of touches, how runs are judged, the study."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hybridctl.experiments.door_plants import door_plants, figures
from hybridctl.experiments.door_plants.laws import LAWS, get_scene, make_policy, make_structure
from hybridctl.experiments.door_plants.plants import (
    PERIOD,
    PlantTrial,
    Setting,
    Trace,
    judge_trace,
    make_detector,
    simulate_member,
)
from hybridctl.experiments.door_plants.sensing import make_sensor
from hybridctl.robots import rrr_door
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration
from hybridctl.control.detectors import Reading
from hybridctl.control.tuning.ensemble import Ensemble, Statistics, compute_digest

pytest.importorskip("mujoco", reason="mujoco is not installed")

DESIGN = np.log((26.0, 1.0, 8.0, 2.0, 27.0, 7.0))
ESTIMATED = replace(door_plants.PLANTS[6], name="one")  # 2 ms, all errors


def falling(sensed, samples):
    """Measured states of the arm and the door in free motion, and the true ones."""
    robot = rrr_door.robot()
    q, v, u = np.array([0.3, 0.9, -0.4, 0.1]), np.array([0.2, -0.3, 0.5, 0.1]), np.ones(3)
    found = []
    for _ in range(samples):
        found.append((sensed(np.concatenate([q, v]), u, np.inf), np.concatenate([q, v])))
        a = robot.free_acceleration(q, v, u)
        q, v = q + PERIOD * v + 0.5 * PERIOD**2 * a, v + PERIOD * a
    return (np.array(part) for part in zip(*found, strict=True))


@pytest.mark.parametrize(("kind", "rates"), [("filter", 0.15), ("kalman", 0.02)])
def test_sensors_follow_free_motion(kind, rates):
    """Angles within four deviations of 0.1 mrad; an estimate of velocities is far less noisy.

    Differences of angles have noise of 0.14 rad/s a sample; the filter's share of 0.4 leaves half
    of it, the model of the Kalman filter nearly nothing.
    """
    seen, true = falling(make_sensor(kind, 3, PERIOD), 300)
    off = seen - true
    assert np.abs(off[:, :4]).max() < 5e-4
    assert np.sqrt((off[50:, 4:] ** 2).mean()) < rates
    again, _ = falling(make_sensor(kind, 3, PERIOD), 300)
    np.testing.assert_array_equal(seen, again)


def test_the_state_itself_needs_no_sensor():
    seen, true = falling(make_sensor("true", 0, PERIOD), 5)
    np.testing.assert_array_equal(seen, true)


def told(name, setting, delay=0.0, touches=(0.99, 1.0)):
    """When a law is told of which guard, for touches of both corners from these times on, ms."""
    found, seen = [], make_detector(name, setting, delay, 0.025)
    for t in 0.8 + PERIOD * np.arange(400):
        forces = [5.0 * (t >= touch - 1e-9) for touch in touches]
        reading = Reading(t, np.zeros(8), np.zeros(3), {"normal_force": forces})
        found += [(round(1e3 * t), guard.split()[0][-1]) for guard in seen.step(reading)]
    return found


def test_what_laws_are_told_of_touches():
    plain = Setting("one", (1e-3,))
    assert told("spreading", plain) == [(990, "1"), (1000, "2")]
    assert told("interim", plain, delay=4e-3) == [(994, "1"), (1004, "2")]
    never = replace(plain, detects=False)
    assert told("spreading", never) == []
    late = told("interim", never)
    assert [guard for _, guard in late] == ["1", "2"]
    assert all(1025 <= time <= 1026 for time, _ in late)
    wrong = replace(plain, false_touch=0.04)
    assert [time for time, _ in told("spreading", wrong)] == [960, 1000]
    assert told("spreading", plain, touches=(0.84, 0.98)) == [(980, "2")], "too early to believe"


def test_runs_are_judged_after_the_impact():
    """An error of 1 until both corners have touched for 10 ms, then one of 0.1."""
    times = 0.8 + PERIOD * np.arange(800)
    after = get_scene()[1].arcs[1]
    states = after(times)
    states[:, 0] += np.where(np.arange(800) < 230, 1.0, 0.1)
    torques = np.zeros((800, 3))
    torques[100, 1], torques[185, 2], torques[300, 0] = 50.0, -7.0, 3.0
    error, since_first, peak = judge_trace(Trace(times, states, torques, (220, 200)))
    assert error == pytest.approx(0.1)
    assert since_first == pytest.approx(0.1)
    assert peak == 7.0
    _, longer, _ = judge_trace(Trace(times, states, torques, (220, 190)))
    assert longer == pytest.approx(np.sqrt((10 * 1.0 + 570 * 0.01) / 580))
    assert judge_trace(Trace(times, states, torques, (None, 190)))[0] == np.inf
    assert judge_trace(Trace(times, states, torques, (750, 190)))[0] == np.inf


def test_windows_are_tuned_with_the_gains():
    one, other = (make_structure().schedule(DESIGN + d) for d in ([0.0] * 6, [0.0] * 5 + [0.1]))
    assert one.windows == pytest.approx((0.027, 0.007))
    assert compute_digest(one) != compute_digest(other)
    np.testing.assert_array_equal(one.arcs[0].values, other.arcs[0].values)
    assert make_policy("interim", one, 0.025).interim.before == pytest.approx(0.027)


@pytest.mark.parametrize("law", LAWS)
def test_every_law_hits_the_door_and_stays_with_the_reference(law):
    """One member with all errors, on contact of 4 ms; its start is up to 0.1 rad off."""
    found = simulate_member(law, make_structure().schedule(DESIGN), ESTIMATED, 7, 0, 0.025)
    error, _, peak = judge_trace(found)
    assert error < 0.1
    assert peak < 60.0
    assert all(150 < touch < 260 for touch in found.touches)


def test_a_member_is_the_same_in_every_ensemble():
    design = make_structure().schedule(DESIGN)
    outcomes = [
        Ensemble(PlantTrial("interim", ESTIMATED, 7, 0.025), members)(design)
        for members in ([3], [2, 3])
    ]
    assert outcomes[0].errors[0] == outcomes[1].errors[1]
    both = PlantTrial("interim", ESTIMATED, 7, 0.025, both=True)("spreading", design, 3)
    assert both.error != outcomes[0].errors[0]
    assert both.peak_input == outcomes[0].peaks[0]


def test_the_experiment_leaves_its_summary_and_resumes(tmp_path):
    config = replace(door_plants.quick(door_plants.Config()), record=str(tmp_path / "kept"))
    summaries = []
    for name in ("first", "again"):
        folder = RunFolder("door-plants", tmp_path / name)
        door_plants.run(config, folder, Console(quiet=True))
        summaries.append(json.loads((folder / "summary.json").read_text()))
        assert (folder / "figures/means.png").stat().st_size > 5000
    assert summaries[0] == summaries[1]
    (first, second) = summaries[0]["plants"]
    assert first["name"] == "2 ms"
    assert second["laws"].keys() == {"conventional", "interim"}
    assert second["laws"]["interim"].keys() >= {"mean_error", "standard_error", "peak_input"}
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == [
        "conventional-2_ms.jsonl",
        "conventional-2_ms_all_errors.jsonl",
        "interim-2_ms.jsonl",
        "interim-2_ms_all_errors.jsonl",
    ]


def test_searches_see_plants_of_their_own_name():
    """Journals of searches and of judges do not meet in one file."""
    assert door_plants.find_training("mixed") == door_plants.TRAINING
    found = door_plants.find_training("2 ms, all errors")
    assert found == replace(ESTIMATED, name="2 ms, all errors, searched")


@pytest.mark.parametrize("name", ["2 ms, all errors", "0.5 ms, never detected"])
def test_one_plant_has_a_figure(tmp_path, name):
    found = Statistics(np.array([0.02, 0.03]), np.array([20.0, 21.0]), {})
    figures.draw_means(tmp_path / "means.png", {name: {"spreading": found, "interim": found}})
    assert (tmp_path / "means.png").stat().st_size > 5000


@pytest.mark.slow
def test_searches_are_judged_by_runs_that_they_have_not_seen(tmp_path):
    """Two rounds, with member 48 to search by and member 49 to say who keeps the limit."""
    quick = door_plants.quick(door_plants.Config())
    searched = {"rounds": 2, "evaluations": 8, "checked": 1}
    config = replace(quick, **searched, judged=1, plants=("2 ms",), record=str(tmp_path / "kept"))
    folder = RunFolder("door-plants", tmp_path / "run")
    door_plants.run(config, folder, Console(quiet=True))
    chosen = json.loads((folder / "summary.json").read_text())["parameters"]
    assert all(values != list(config.starts[0]) for values in chosen.values())
    for law in config.laws:
        lines = (tmp_path / f"kept/{law}-mixed.jsonl").read_text().splitlines()[1:]
        runs = [json.loads(line)[0].rsplit(":", 1) for line in lines]
        tried = {gains for gains, member in runs if member == "48"}
        assert 8 < len(tried) <= 18
        assert {gains for gains, member in runs if member == "49"} < tried


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('laws=["other"]', "law 'other' is unknown"),
        ('plants=["other"]', "plant 'other' is unknown"),
        ("tuned_on=other", "tuned_on 'other' is unknown"),
        ("peak_input=0", "peak_input must be greater"),
        ("starts=[[1, 2]]", "must be a list of length 6"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(door_plants.Config, None, [setting])
