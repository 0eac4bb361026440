"""Logs that are wired wrongly are named with the remedy, and sound logs are not.

Twenty mistakes are planted in the logs of three robots: two quadrupeds that trot on MuJoCo, and the
recorded humanoid. Two more are made here by kinematics alone, so that some run by default.
"""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hybridctl.robots import public
from oracles import simulated_walks as simulated
from oracles import walking_robots as walking
from oracles.wiring_mistakes import BY_NAME, MISTAKES, TWENTY

from hybridctl.base.time_series import Series
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.readings import Readings
from hybridctl.mechanics.multibody.robot import Robot

DATA = Path(__file__).parents[3] / "shared/data"
HUMANOID, SQUARE = DATA / "icub_walking", DATA / "go1_square/go1_square.npz"
ENOUGH = 18  # of twenty
QUICK = "accelerometer in g", "gyroscope in deg/s", "a force stuck", "first stamp zero"


def simulated_log(name, begin=0.0, seed=0, contact=1e-2):
    """A trot on MuJoCo of 7 s."""
    estimator = simulated.settings(name).build(Robot.from_urdf(public.urdf(name)))
    return estimator, simulated.log(estimator, done(name, contact), begin, 7.0, seed)


@cache
def done(name, contact):
    pytest.importorskip("mujoco")
    return simulated.walk(name, contact, 9.1)


def recorded_humanoid():
    if not HUMANOID.is_dir():
        pytest.skip(f"no recording of the humanoid in {HUMANOID}")
    from hybridctl.experiments.legged import icub_base, recording

    found = recording.load(str(HUMANOID), "archive", jump=1.5, lost=0.3)
    estimator = icub_base.Config().settings.build(found.robot)
    return estimator, found.get_readings(estimator)


def recorded_trot():
    """25 s of a trot on feet that roll; its forces have 7 times their size."""
    if not SQUARE.is_file():
        pytest.skip(f"no recording of the quadruped in {SQUARE}")
    with np.load(SQUARE) as data:
        legs, times = ("FR", "FL", "RR", "RL"), data["time"]
        feet = tuple(Foot(f"{leg}_foot") for leg in legs)
        estimator = BaseSettings("trunk", feet).build(Robot.from_urdf(public.urdf("go1")))
        names = data["joint_names"].tolist()
        columns = [names.index(joint) for joint in estimator.joints]
        forces = np.clip(data["foot_force_raw"] + 6.0, 0.0, None)
        return estimator, Readings(
            Series(times, np.hstack([data["gyroscope"], data["accelerometer"]])),
            Series(times, data["joints"][:, columns]),
            {foot.frame: Series(times, forces[:, k]) for k, foot in enumerate(feet)},
        )


ROBOTS = {
    "solo12": lambda: simulated_log("solo12"),
    "go1": lambda: simulated_log("go1", contact=5e-3),
    "icub": recorded_humanoid,
}


def plant(name, estimator, readings):
    """The faults of readings with a mistake in them, and whether it is named.

    A delay that is compensated by what it is, within three deviations, counts as named: the verdict
    states it.
    """
    mistake = BY_NAME[name]
    wrong = mistake.plant(estimator.base.kinematics, readings)
    faults, found = estimator.find_wiring_faults(wrong), estimator.time_offset(wrong)
    if mistake.late and found.compensated:
        off = abs(found.compensated - mistake.late)
        return faults, not faults and off < 3.0 * found.common.deviation
    return faults, mistake.is_named(faults)


@cache
def kinematic_log():
    """A quadruped that sways and turns while it trots for 4 s; its feet share the weight."""
    estimator = walking.estimator_of("a1")
    gait = walking.Gait(period=0.4)
    found = walking.log(estimator, "a1", gait, duration=4.0, rate=100.0, seed=3).readings
    rng = np.random.default_rng(0)
    stands = np.hstack([load.values for load in found.loads.values()]) > 0.0
    shares = stands / stands.sum(axis=1, keepdims=True)
    forces = estimator.weight * shares + rng.normal(size=shares.shape)
    loads = {foot: Series(found.angles.times, forces[:, k]) for k, foot in enumerate(found.loads)}
    return estimator, replace(found, loads=loads)


def test_a_sound_walk_has_no_faults():
    estimator, readings = kinematic_log()
    assert estimator.find_wiring_faults(readings) == ()


@pytest.mark.parametrize("name", QUICK)
def test_a_mistake_in_a_made_walk_is_named(name):
    estimator, readings = kinematic_log()
    faults, named = plant(name, estimator, readings)
    assert named, list(map(str, faults))


def test_what_is_wired_wrongly_is_the_first_flag():
    estimator, readings = kinematic_log()
    short = readings.each(lambda series: series.select_rows(series.times < 2.5))
    wrong = BY_NAME["gyroscope in deg/s"].plant(estimator.base.kinematics, short)
    flags = estimator.flags(wrong, estimator.run(wrong))
    assert flags[0].startswith("gyroscope looks like deg/s: multiply it by 0.01745")


def test_a_delay_is_measured_with_its_error():
    """Within three of its errors: by 17 ms, which is no multiple of the steps that are tried."""
    estimator, readings = kinematic_log()
    series = readings.inertial
    late = replace(readings, inertial=replace(series, times=series.times + 0.017))
    assert estimator.find_wiring_faults(late) == ()  # it is compensated
    told = replace(estimator.settings, time_offset=0.0).build(walking.robot("a1"))
    (fault,) = told.find_wiring_faults(late)
    found = re.fullmatch(r"is (\d+) ms late against the joint angles, \+-(\d) ms", fault.cause)
    assert found, fault
    assert abs(int(found[1]) - 17) <= 3 * int(found[2])


def test_a_robot_that_only_stands_is_checked_by_gravity_alone():
    estimator, readings = kinematic_log()
    rows = np.zeros(300, dtype=int)
    times = 0.01 * np.arange(300)
    still = readings.each(lambda series: Series(times, series.values[rows]))
    force = np.tile([0.1, -0.2, 9.8], (300, 1))
    still = replace(still, inertial=Series(times, np.hstack([np.zeros((300, 3)), force])))
    assert estimator.find_wiring_faults(still) == ()
    turned = replace(still, inertial=Series(times, np.hstack([np.zeros((300, 3)), -force])))
    (fault,) = estimator.find_wiring_faults(turned)
    assert "negate it, or turn the sensor's frame over" in fault.remedy


def test_impacts_that_samples_meet_are_no_gravity():
    """A row in twenty has 40 m/s^2 more, so that the mean is 2 m/s^2 off."""
    estimator, readings = kinematic_log()
    values = readings.inertial.values.copy()
    values[::20, 5] += 40.0
    hard = replace(readings, inertial=Series(readings.inertial.times, values))
    assert estimator.find_wiring_faults(hard) == ()


@pytest.mark.slow
@pytest.mark.parametrize("robot", ["solo12", pytest.param("go1", marks=pytest.mark.long), "icub"])
def test_twenty_mistakes_are_named(robot):
    estimator, readings = ROBOTS[robot]()
    missed = {}
    for name in TWENTY:
        faults, named = plant(name, estimator, readings)
        if not named:
            missed[name] = list(map(str, faults))
    assert len(missed) <= len(TWENTY) - ENOUGH, missed


@pytest.mark.slow
def test_sound_logs_have_no_faults():
    """Ten logs: two quadrupeds from standing and from mid-walk, and two recordings."""
    logs = [
        simulated_log(name, begin, seed, contact)
        for name, contact in (("solo12", 1e-2), ("go1", 5e-3))
        for begin in (0.0, 2.0)
        for seed in (1, 2)
    ]
    for estimator, readings in (*logs, recorded_humanoid(), recorded_trot()):
        assert list(map(str, estimator.find_wiring_faults(readings))) == []


def count_named():
    """Print which mistakes are named on which robot: `python -m legged.test_wiring`."""
    logs = {name: make() for name, make in {**ROBOTS, "go1 recorded": recorded_trot}.items()}
    print(f"{'':30}", *(f"{name:>14}" for name in logs))
    totals = dict.fromkeys(logs, 0)
    for mistake in MISTAKES:
        cells = []
        for name, log in logs.items():
            _, is_named = plant(mistake.name, *log)
            totals[name] += is_named and mistake.name in TWENTY
            cells.append("named" if is_named else "-")
        mark = "" if mistake.name in TWENTY else " (more)"
        print(f"{mistake.name + mark:30}", *(f"{cell:>14}" for cell in cells), flush=True)
    print(f"{'of the twenty':30}", *(f"{count:>14}" for count in totals.values()))


if __name__ == "__main__":
    count_named()
