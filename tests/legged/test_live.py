"""The filter live: the numbers of a log to the last bit, and what it refuses."""

import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from oracles.walking_robots import WALKER, Gait, estimator_of, log, over_states, robot

from hybridctl.base.errors import InputError, SimulationError, UnknownNameError
from hybridctl.estimation.record import Series
from hybridctl.legged import system
from hybridctl.legged.creep_filter import CreepFilter
from hybridctl.legged.hypotheses import ContactEvidence
from hybridctl.legged.live import LiveSample
from hybridctl.legged.readings import Readings
from hybridctl.legged.rest import RestSpan, measure_rest
from hybridctl.legged.system import LeggedBase

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


def compare(estimator, samples, behind=0):
    """Step samples, compare each estimate with that of the log, and count the comparisons.

    behind: samples by which the filter is behind the last one, because its inertial sensor is late.
    """
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


def test_the_noise_of_positions_follows_innovations_as_in_a_log():
    """The walk's other tests give the noise of feet, so that neither this nor the rise is on."""
    noise = replace(walk()[0].settings.noise, foot=None, measured=1e-3, delay=0.0)
    estimator, readings = changed(noise=noise)
    assert compare(estimator, list(samples_of(readings))) > 100
    record = estimator.record(readings)
    kept = CreepFilter(estimator.base, estimator.filter, estimator.foot_motion(record))
    last = over_states(kept, record, estimator.start(readings))[-1]
    assert last.place_variance != noise.measured**2
    assert last.rise is not None
    assert last.rise.touched


def test_noisy_sensors_are_seen_in_the_opening_alone():
    """All sensors are noisier than the settings say, and noisier still after the opening."""
    rng, (estimator, readings) = np.random.default_rng(0), changed()
    shaken = [
        s._replace(
            gyroscope=s.gyroscope + (0.1 if s.time < 0.7 else 0.2) * rng.normal(size=3),
            accelerometer=s.accelerometer + 1.0 * rng.normal(size=3),
        )
        for s in samples_of(readings)
    ]
    assert compare(estimator, shaken) > 100
    record = estimator.record(log_of(shaken))
    noise = estimator.raise_noise(record, estimator.foot_motion(record)).settings.noise
    # 50 rows at 100 Hz: 11 % of each, by `test_sensor_noise`.
    assert noise.gyroscope == pytest.approx(0.1 * 0.1, rel=0.4)
    assert noise.accelerometer == pytest.approx(1.0 * 0.1, rel=0.4)


@pytest.mark.parametrize("late", [0.013, pytest.param(-0.02, marks=pytest.mark.slow)])
def test_an_offset_that_is_told_is_that_of_a_log(late):
    """No multiple of the period of 10 ms, and one that is: of joints that are late."""
    estimator, readings = changed(time_offset=late)
    samples = list(samples_of(readings))
    given, how = log_of(samples), {"heading": 0.3, "position": (1.0, 2.0, 3.0)}
    result = estimator.run(given, estimator.start(given, **how))
    offline = {step.time: step.estimate for step in result.steps}
    aligned = estimator.readings(given).inertial
    rates = dict(zip(aligned.times.tolist(), aligned.values[:, :3], strict=True))
    live, count = estimator.live(**how), 0
    for sample in samples:
        pose = live.step(sample)
        if pose is None:
            continue
        count += 1
        assert 0.0 <= sample.time - pose.time <= max(late, 0.0) + 0.01 + 1e-9
        expected = offline[pose.time]
        np.testing.assert_array_equal(live.estimate.mean, expected.mean)
        np.testing.assert_array_equal(live.estimate.covariance, expected.covariance)
        root = estimator.root(expected, rates[pose.time])
        for one, other in zip(pose, root, strict=True):
            np.testing.assert_array_equal(one, other)
    assert count > 100


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


@pytest.mark.parametrize(("gap", "count"), [((0.0, 0.0), 5), ((0.85, 1.5), 2)])
def test_rest_is_seen_at_the_same_sample(gap, count):
    """A robot that stands throughout: its rows of rest come at each quarter of a second.

    Of five, a gap takes the one that it begins in, and two without samples.
    """
    estimator, readings = changed()
    rng, n = np.random.default_rng(2), len(readings.inertial)
    angles = readings.angles.values[0] + 1e-5 * rng.normal(size=readings.angles.values.shape)
    rates = np.tile([0.01, -0.02, 0.03, 0.0, 0.0, 9.81], (n, 1)) + 1e-3 * rng.normal(size=(n, 6))
    times = readings.inertial.times
    loads = {foot: Series(times, np.full(n, 100.0)) for foot in readings.loads}
    there = (times < gap[0]) | (times > gap[1])
    whole = Readings(Series(times, rates), Series(times, angles), loads)
    given = whole.each(lambda series: series.select_rows(there))
    record = estimator.record(given)
    # From 0.5 s on; the last would end with the log.
    assert len(record.channels["rest"]) == count
    offline = estimator.run(given)
    live = estimator.live()
    for sample in samples_of(given):
        live.step(sample)
    np.testing.assert_array_equal(live.estimate.mean, offline.steps[-1].estimate.mean)
    np.testing.assert_array_equal(live.estimate.covariance, offline.steps[-1].estimate.covariance)
    np.testing.assert_array_equal(live.contacts, np.ones(2))


def test_sums_of_rest_are_its_means_to_the_last_bit():
    """Random angles of one to three joints, with a third of the rows on the edges of a half."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        begin = float(rng.uniform(0.0, 10.0))
        times = np.sort(begin + 0.25 * np.append(rng.random(28), [0.0, 0.5]))
        inertial = Series(times, rng.normal(size=(30, 6)))
        angles = Series(times, 1e-4 * rng.normal(size=(30, rng.integers(1, 4))))
        span = RestSpan(begin)
        for time, values, joints in zip(times, inertial.values, angles.values, strict=True):
            span = span.add(float(time), values[:3], joints)
        expected = measure_rest(inertial, angles, begin)
        assert expected is not None
        np.testing.assert_array_equal(span.measure(), expected)


@pytest.mark.parametrize("after", [75, 150], ids=["queued", "at once"])
def test_a_sample_that_cannot_be_filtered_leaves_no_trace(after):
    """Samples of 1e160 rad/s and m/s^2, whose estimates overflow, with feet that change contact.

    Just after the opening such a sample waits until those before it are done, and is told then.
    """
    estimator, readings = changed()
    samples, ends = list(samples_of(readings))[: after + 30], []
    for fails in (False, True):
        live, errors = estimator.live(), 0
        for k, sample in enumerate(samples):
            if fails and k in (after, after + 20):
                huge = np.full(3, 1e160)
                loads = {foot: 300.0 - force for foot, force in sample.loads.items()}
                bad = LiveSample(sample.time - 1e-3, huge, huge, sample.joints, loads)
                errors += raises(live, bad)
            errors += raises(live, sample)
        assert errors == 2 * fails
        ends.append((live.estimate, live.contacts))
    (one, contacts), (other, same) = ends
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.covariance, other.covariance)
    np.testing.assert_array_equal(contacts, same)


def raises(live, sample):
    """Whether a step ends in a `SimulationError`."""
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            live.step(sample)
        except SimulationError:
            return True
    return False


def test_no_sample_waits_for_a_mode_that_is_made(monkeypatch):
    """Once the opening is over all modes and edges are there, before the robot has stepped."""
    estimator, readings = changed()
    live, samples = estimator.live(), list(samples_of(readings))
    begun = next(k for k, s in enumerate(samples) if live.step(s) or live.estimate is not None)
    monkeypatch.setattr(LeggedBase, "_make_layout", fail)
    monkeypatch.setattr(system, "_make_edge", fail)
    modes = []
    for sample in samples[begun + 1 :]:
        live.step(sample)
        modes.append(live.estimate.mode)
    assert len(set(modes)) > 2


def test_work_of_a_sample_is_bounded():
    """No sample calls twice as many functions as the median one, whatever feet do.

    Calls are counted, not seconds: they are the same on each machine and under each load. The
    tail of the seconds is what `python -m benchmarks` shows.
    """
    estimator, readings = changed()
    live, calls, touched = estimator.live(heading=0.0), list[int](), list[bool]()
    stands = None
    for sample in samples_of(readings):
        count = count_calls(live.step, sample)
        caught_up = sample.time > readings.inertial.times[0] + 1.0  # opening, and what it collected
        if caught_up:
            calls.append(count)
            touched.append(stands is not None and not np.array_equal(stands, live.contacts))
        stands = live.contacts
    assert any(touched)
    assert max(calls) <= 2.0 * np.median(calls)


def count_calls(function, *arguments):
    """How many functions of Python and of C a call enters."""
    number = 0

    def count(frame, event, argument):
        nonlocal number
        number += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return number


def fail(*arguments):
    raise AssertionError(f"made for a sample: {arguments[1:]}")


@pytest.mark.slow
def test_what_comes_later_changes_nothing_that_was_found():
    """A log cut at any time has the estimates of the whole one until there."""
    estimator, readings = changed()
    whole = estimator.run(readings).steps
    for end in (0.9, 1.37):
        part = readings.each(lambda s, end=end: s.select_rows(s.times <= end))
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


def separate(readings, delays):
    """Readings whose angles and forces have stamps of their own, and the samples of all of them.

    delays: of the angles and of each foot, s; where two are equal their rows are one sample.
    """
    later, *feet = delays

    def delayed(series, delay):
        return Series(series.times + delay, series.values)

    loads = {
        foot: delayed(load, delay)
        for (foot, load), delay in zip(readings.loads.items(), feet, strict=True)
    }
    given = Readings(readings.inertial, delayed(readings.angles, later), loads)
    parts = {}
    for time, values in zip(given.inertial.times.tolist(), given.inertial.values, strict=True):
        parts[time] = [values[:3], values[3:], None, {}]
    for time, values in zip(given.angles.times.tolist(), given.angles.values, strict=True):
        parts.setdefault(time, [None, None, None, {}])[2] = values
    for foot, load in given.loads.items():
        for time, (force,) in zip(load.times.tolist(), load.values, strict=True):
            parts.setdefault(time, [None, None, None, {}])[3][foot] = force
    return given, [LiveSample(time, *parts[time]) for time in sorted(parts)]


@pytest.mark.parametrize(
    ("settings", "delays"),
    [
        ({"weight": 200.0, "settle": 0.03, "ground": 0.0}, (0.0037, 0.0037, 0.006)),
        pytest.param({"standing": None}, (-0.0025, 0.0, 0.0), marks=pytest.mark.slow),
        pytest.param({"time_offset": 0.013}, (0.004, 0.002, 0.002), marks=pytest.mark.slow),
        pytest.param({"time_offset": 0.007}, (-0.0005, 0.0, 0.0), marks=pytest.mark.slow),
    ],
    ids=["each", "early angles", "late inertial", "late inertial, early angles"],
)
def test_channels_with_stamps_of_their_own(settings, delays):
    """Angles and forces between two inertial samples have the numbers of the log to the last bit.

    The root after an inertial sample is that by all rows until its stamp.
    """
    estimator, readings = changed(**settings)
    given, samples = separate(readings, delays)
    how = {"heading": 0.3, "position": (1.0, 2.0, 3.0)}
    first, record = estimator.start(given, **how), estimator.record(given)
    result = estimator.run_record(record, first)
    motion = estimator.foot_motion(record)
    own = estimator.raise_noise(record, motion)
    offline = CreepFilter(own.base, own.filter, motion)
    states = over_states(offline, record, first)
    ends = np.array([step.time for step in result.steps])
    live, count = estimator.live(**how), 0
    live.shares_stamps = False
    for sample in samples:
        pose = live.step(sample)
        if pose is None:
            continue
        assert sample.gyroscope is not None
        state = states[ends.searchsorted(pose.time, "right") - 1]
        for time in (*record.input_changes(state.time, pose.time), pose.time):
            state = offline.predict(state, time, record.input(state.time))
        assert live.estimate.mode == state.estimate.mode
        np.testing.assert_array_equal(live.estimate.mean, state.estimate.mean)
        np.testing.assert_array_equal(live.estimate.covariance, state.estimate.covariance)
        for one, other in zip(pose, estimator.root(state.estimate, live.rate), strict=True):
            np.testing.assert_array_equal(one, other)
        count += 1
    assert len(result.events) > 8  # feet have come and gone
    assert count > 60
