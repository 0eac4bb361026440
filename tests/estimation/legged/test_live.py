"""The filter live: the numbers of a log to the last bit, and what it refuses."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from oracles.walking_robots import WALKER, Gait, estimator_of, log, robot

from hybridctl.errors import InputError, UnknownNameError
from hybridctl.estimation.legged.hypotheses import ContactEvidence
from hybridctl.estimation.legged.live import LiveSample
from hybridctl.estimation.legged.readings import Readings
from hybridctl.estimation.record import Series

RATE = 100.0  # Hz


@cache
def walk():
    """Two seconds of the five-link walker."""
    estimator = estimator_of(WALKER)
    return estimator, log(estimator, WALKER, Gait(), 2.0, RATE, seed=4).readings


def changed(**settings):
    """The estimator of the walk with other settings, and a short opening."""
    estimator, readings = walk()
    given = {"opening": 0.7, "standing": 0.5} | settings
    made = replace(estimator.settings, **given).build(robot(WALKER))
    return made, readings


def samples_of(readings, joints=None, loads=None):
    """Samples of a log with all channels on one stamp; where a mask (n,) is false, without."""
    rows = np.arange(len(readings.inertial))
    joints = np.full(len(rows), True) if joints is None else joints
    for k in rows:
        values = readings.inertial.values[k]
        forces = {
            foot: float(load.values[k, 0])
            for foot, load in readings.loads.items()
            if loads is None or loads[foot][k]
        }
        angles = readings.angles.values[k] if joints[k] else None
        yield LiveSample(readings.inertial.times[k], values[:3], values[3:], angles, forces)


def log_of(samples):
    """The readings of samples as a log has them: NaN where a force is missing."""
    times = np.array([s.time for s in samples])
    inertial = np.array([[*s.gyroscope, *s.accelerometer] for s in samples])
    there = np.array([s.joints is not None for s in samples])
    angles = np.array([s.joints for s in samples if s.joints is not None])
    feet = {foot for s in samples for foot in s.loads}
    loads = {
        foot: Series(times, np.array([s.loads.get(foot, np.nan) for s in samples]))
        for foot in walk()[0].base.feet
        if foot in feet
    }
    return Readings(Series(times, inertial), Series(times[there], angles), loads)


def compare(estimator, samples):
    """Step samples, compare each estimate with that of the log, and count the comparisons."""
    readings = log_of(samples)
    how = {"heading": 0.3, "position": (1.0, 2.0, 3.0)}
    result = estimator.run(readings, estimator.start(readings, **how))
    offline = {step.time: step.estimate for step in result.steps}  # the last at each time
    live, found = estimator.live(**how), []
    for sample in samples:
        pose = live.step(sample)
        if pose is not None and sample.time in offline:
            found.append((live.estimate, pose, sample))
    assert len(result.events) > 8  # feet have come and gone
    for estimate, pose, sample in found:
        expected = offline[sample.time]
        assert estimate.time == expected.time == pose.time
        assert estimate.mode == expected.mode
        np.testing.assert_array_equal(estimate.mean, expected.mean)
        np.testing.assert_array_equal(estimate.covariance, expected.covariance)
        root = estimator.root(expected, sample.gyroscope)
        for one, other in zip(pose, root, strict=True):
            np.testing.assert_array_equal(one, other)
    return len(found)


def test_each_step_has_the_numbers_of_the_log():
    """Of 201 samples 71 are the opening, and 23 more come while it is caught up with.

    The step after the opening has 72 to filter, filters four, and each one after it gets one more.
    """
    estimator, readings = changed()
    assert compare(estimator, list(samples_of(readings))) == 201 - 71 - 23


@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_joints_at_half_the_rate(first):
    estimator, readings = changed()
    every_other = np.arange(len(readings.inertial)) % 2 == first
    assert compare(estimator, list(samples_of(readings, every_other))) > 40


@pytest.mark.parametrize(
    "settings",
    [
        {"weight": 200.0, "ground": 0.0, "standing": None},
        {"settle": 0.03, "ground": 0.0},
        *(
            pytest.param(settings, marks=pytest.mark.slow)
            for settings in ({}, {"weight": 200.0}, {"ground": 0.0}, {"standing": 0.0})
        ),
    ],
    ids=["all", "settle", "thresholds", "weight", "ground", "walking"],
)
def test_channels_that_are_missing_now_and_then(settings):
    """A third of the angles and forces, and some whole samples; gaps of one to ten periods."""
    estimator, readings = changed(**settings)
    rng, n = np.random.default_rng(7), len(readings.inertial)
    loads = {foot: rng.random(n) > 0.3 for foot in readings.loads}
    samples = list(samples_of(readings, rng.random(n) > 0.3, loads))
    there = rng.random(n) > 0.1
    there[130:140] = False
    assert compare(estimator, [s for s, kept in zip(samples, there, strict=True) if kept]) > 30


def test_rest_is_seen_at_the_same_sample():
    """A robot that stands throughout: its rows of rest come at each quarter of a second."""
    estimator, readings = changed()
    rng, n = np.random.default_rng(2), len(readings.inertial)
    angles = readings.angles.values[0] + 1e-5 * rng.normal(size=readings.angles.values.shape)
    rates = np.tile([0.01, -0.02, 0.03, 0.0, 0.0, 9.81], (n, 1)) + 1e-3 * rng.normal(size=(n, 6))
    times = readings.inertial.times
    loads = {foot: Series(times, np.full(n, 100.0)) for foot in readings.loads}
    given = Readings(Series(times, rates), Series(times, angles), loads)
    record = estimator.record(given)
    assert len(record.channels["rest"]) == 5  # from 0.5 s on; the last would end with the log
    offline = estimator.run(given)
    live = estimator.live()
    for sample in samples_of(given):
        live.step(sample)
    np.testing.assert_array_equal(live.estimate.mean, offline.steps[-1].estimate.mean)
    np.testing.assert_array_equal(live.estimate.covariance, offline.steps[-1].estimate.covariance)
    np.testing.assert_array_equal(live.contacts, np.ones(2))


@pytest.mark.slow
def test_what_comes_later_changes_nothing_that_was_found():
    """A log cut at any time has the estimates of the whole one until there."""
    estimator, readings = changed()
    whole = estimator.run(readings).steps
    for end in (0.9, 1.37):
        part = readings.each(lambda s, end=end: s.rows(s.times <= end))
        steps = estimator.run(part).steps
        for one, other in zip(steps, whole, strict=False):
            np.testing.assert_array_equal(one.estimate.mean, other.estimate.mean)
            np.testing.assert_array_equal(one.estimate.covariance, other.estimate.covariance)


def test_what_needs_a_whole_log_is_refused():
    estimator, _ = changed(evidence=ContactEvidence())
    with pytest.raises(InputError, match="leave out evidence"):
        estimator.live()


def test_a_robot_without_forces_is_refused():
    """Rather than to let every foot stand for ever."""
    estimator, readings = changed()
    live, samples = estimator.live(), [s._replace(loads={}) for s in samples_of(readings)]
    for sample in samples[:71]:
        live.step(sample)
    with pytest.raises(InputError, match="contacts need a measured force of a foot"):
        live.step(samples[71])


def test_samples_that_are_refused_change_nothing():
    estimator, readings = changed()
    samples = list(samples_of(readings))
    plain, disturbed = estimator.live(), estimator.live()
    for k, sample in enumerate(samples[:130]):
        expected = plain.step(sample)
        wrong = [
            (sample._replace(gyroscope=np.full(3, np.nan)), InputError, "gyroscope"),
            (sample._replace(accelerometer=np.zeros(2)), InputError, "accelerometer"),
            (sample._replace(joints=np.zeros(3)), InputError, "joints"),
            (sample._replace(loads={"nose": 1.0}), UnknownNameError, "nose"),
        ]
        if k:
            wrong.append((samples[k - 1], InputError, "time must be after the last sample"))
        for other, error, message in wrong if k % 40 == 0 else ():
            with pytest.raises(error, match=message):
                disturbed.step(other)
        found = disturbed.step(sample)
        assert (found is None) == (expected is None)
    np.testing.assert_array_equal(disturbed.estimate.mean, plain.estimate.mean)


def test_channels_that_the_opening_lacks():
    estimator, readings = changed()
    foot, other = readings.loads
    live = estimator.live()
    assert live.estimate is None
    assert np.isnan(live.contacts).all()
    samples = list(samples_of(readings))
    for sample in samples[:120]:
        live.step(sample._replace(loads={other: sample.loads[other]}))
    with pytest.raises(InputError, match="as one without a sensor"):
        live.step(samples[120])
    assert live.contacts[estimator.base.feet.index(foot)] == 1.0  # it stands for ever
    live = estimator.live()
    for sample in samples[:71]:
        assert live.step(sample._replace(joints=None)) is None
    with pytest.raises(InputError, match=r"joints were missing in the first 0\.7 s"):
        live.step(samples[71])
