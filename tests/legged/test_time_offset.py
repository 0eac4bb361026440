"""The offset of the inertial sensor against the joints: found, with its deviation, and taken off.

A base sways over feet that stand, all by closed forms: sums of sines, of which paths of the feet,
rates and specific forces follow exactly. Logs of simulated and recorded robots come at the end.
"""

from dataclasses import replace

import numpy as np
import pytest
from legged.test_wiring import (
    kinematic_log,
    recorded_humanoid,
    recorded_trot,
    simulated_log,
)
from oracles import walking_robots as walking
from scipy.stats import chi2

from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.legged.inertial_alignment import InertialAlignment, align_inertial
from hybridctl.legged.offset_costs import OffsetCost, list_offsets
from hybridctl.legged.stance import GRID, FootPaths
from hybridctl.legged.time_offset import (
    FLOOR_DEVIATION,
    SensorOffset,
    TimeOffset,
    choose_compensation,
    compare_with_stance,
    find_least_offset,
    find_time_offset,
    join_offsets,
)

DURATION, PERIOD = 6.0, 2e-3  # s
FEET = np.array([[0.2, 0.15, 0.0], [0.2, -0.15, 0.0], [-0.2, 0.15, 0.0], [-0.2, -0.15, 0.0]])
FREQUENCIES = 2.0 * np.pi * np.array([2.0, 3.1, 4.3])  # rad/s
SWAY = np.array([[0.03, 0.0, 0.01], [0.0, 0.02, 0.008], [0.01, 0.01, 0.006]])  # m
PITCH = np.array([0.03, 0.02, 0.01])  # rad, about y


def sway(times):
    """Position (n, 3), specific force (n, 3) in axes of the base, pitch and its rate (n,)."""
    phase = np.multiply.outer(times, FREQUENCIES)
    place = np.sin(phase) @ SWAY + [0.0, 0.0, 0.3]
    force = -(np.sin(phase) * FREQUENCIES**2) @ SWAY + [0.0, 0.0, 9.81]
    pitch, rate = np.cos(phase) @ PITCH, -(np.sin(phase) * FREQUENCIES) @ PITCH
    turns = turn(pitch)
    return place, np.einsum("nji,nj->ni", turns, force), turns, rate


def turn(pitch):
    """Rotations (n, 3, 3) about y."""
    c, s, zero, one = np.cos(pitch), np.sin(pitch), 0.0 * pitch, np.ones_like(pitch)
    rows = np.array([[c, zero, s], [zero, one, zero], [-s, zero, c]])
    return rows.transpose(2, 0, 1)


def stand(
    late, *, force_late=None, noise=0.0, seed=0, flat=False, shape=1.0, duration=DURATION, extra=0.1
):
    """Paths of feet, whether they stand, radii, and inertial samples that are late, in s.

    noise: deviation of the feet in m. force_late: of the accelerometer, if it is another. shape:
    factor of the rates. extra: time in s by which inertial samples go beyond the angles at both
    ends.
    """
    rng = np.random.default_rng(seed)
    grid = GRID * np.arange(round(duration / GRID))
    beyond, within = round(extra / PERIOD), round(grid[-1] / PERIOD)
    stamps = PERIOD * np.arange(-beyond, within + beyond + 1)
    place, _, turns, _ = sway(grid)
    feet = np.einsum("nji,nkj->nki", turns, FEET - place[:, None])
    feet += noise * rng.normal(size=feet.shape)
    back = np.repeat(np.swapaxes(turns, 1, 2)[:, None], 4, axis=1)
    paths = FootPaths(grid, feet, back, np.full(4, flat))
    rate = sway(stamps - late)[3]
    force = sway(stamps - (late if force_late is None else force_late))[1]
    inertial = np.zeros((len(stamps), 6))
    inertial[:, 1], inertial[:, 3:] = shape * rate + 0.01, force + np.array([0.1, -0.2, 0.05])
    return paths, np.full((len(grid), 4), True), np.zeros(4), Series(stamps, inertial)


@pytest.mark.parametrize("late", [0.0, 0.0083, -0.0217, 0.041])
@pytest.mark.parametrize("flat", [False, True])
def test_a_shifted_motion_shows_its_shift(late, flat):
    """To 0.1 ms: the parabola through three costs 5 ms apart is not quite that of a sine.

    The period of the quickest, 0.23 s, is long beside them.
    """
    found = compare_with_stance(*stand(late, flat=flat))
    for one in (found.gyroscope, found.accelerometer):
        assert one.value == pytest.approx(late, abs=1e-4)
        assert FLOOR_DEVIATION <= one.deviation < 2.0 * FLOOR_DEVIATION


@pytest.mark.parametrize("late", [0.0585, -0.0585])
def test_an_offset_at_the_edge_of_what_is_tried_is_unknown(late):
    """Of those tried the last but one and the last, 55 and 60 ms, lie around it."""
    assert compare_with_stance(*stand(late)) == TimeOffset(None, None)


def test_both_sensors_have_their_own_offset():
    found = compare_with_stance(*stand(0.004, force_late=0.012))
    assert found.gyroscope.value == pytest.approx(0.004, abs=1e-4)
    assert found.accelerometer.value == pytest.approx(0.012, abs=2e-4)
    assert found.has_contradiction
    assert found.common.deviation == pytest.approx(0.004, rel=0.1)  # half of what they differ by
    assert choose_compensation(found.common, 1e-3) == 0.0
    assert "late by themselves: gyroscope 4.0 +- 0.3 ms, accelerometer 12.0" in str(found)


def normalise_errors(sensor, noise, count, duration=DURATION):
    """Errors (count,) of offsets of one sensor in their deviations, each of another noise."""
    late, found = 0.006, []
    for seed in range(count):
        given = stand(late, noise=noise, seed=seed, duration=duration)
        one = getattr(compare_with_stance(*given), sensor)
        if one is not None:  # else noise left a half of what feet predict
            assert one.deviation > 1.2 * FLOOR_DEVIATION
            found.append((one.value - late) / one.deviation)
    assert len(found) > 0.95 * count
    return np.array(found)


NOISES = ("sensor", "noise"), [("gyroscope", 1.5e-3), ("accelerometer", 3e-3)]  # m, over the floor


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(*NOISES)
def test_the_deviation_is_that_of_many_logs(sensor, noise, count):
    """Normalised squares lie in their chi-square band of 99.9 %.

    Floor and difference of windows make the deviation more cautious: up to three times.
    """
    squares = normalise_errors(sensor, noise, count) ** 2
    low, high = chi2.ppf([5e-4, 0.9995], count) / count
    assert low / 3.0 < np.mean(squares) < high


@pytest.mark.slow
@pytest.mark.parametrize(*NOISES)
def test_the_deviation_of_a_short_log_is_no_smaller_than_its_errors(sensor, noise):
    """Of 6 blocks, by 80 logs: no bias, and a mean square of one at most.

    Student's t of 5 degrees has a kurtosis of 9, so that the mean of 80 squares, in units of its
    variance, is known to sqrt((9 - 1) / 80) = 0.32.
    """
    errors = normalise_errors(sensor, noise, 80, duration=3.3)
    assert abs(errors.mean()) < 3.3 / np.sqrt(80)
    assert np.mean(errors**2) < 1.0 + 2.0 * 0.32


@pytest.mark.parametrize("late", [0.008, -0.008])
def test_a_log_that_ends_while_feet_stand_shows_both_signs_alike(late):
    """No inertial sample goes beyond the angles; to 0.1 ms as with samples beyond them."""
    found = compare_with_stance(*stand(late, extra=0.0))
    for one in (found.gyroscope, found.accelerometer):
        assert one.value == pytest.approx(late, abs=1e-4)
        assert one.deviation < 1.1 * FLOOR_DEVIATION


@pytest.mark.parametrize("late", [0.008, -0.008])
def test_missing_inertial_samples_are_no_motion(late):
    """0.15 s without samples, across which no straight line is drawn."""
    paths, standing, radii, inertial = stand(late)
    lost = inertial.select_rows((inertial.times < 2.0) | (inertial.times > 2.15))
    found = compare_with_stance(paths, standing, radii, lost)
    for one in (found.gyroscope, found.accelerometer):
        assert one.value == pytest.approx(late, abs=1e-4)
        assert one.deviation < 1.1 * FLOOR_DEVIATION


def test_missing_joint_angles_are_no_motion():
    """0.2 s without angles, half a period of the gait: as if no foot stood."""
    estimator, readings = kinematic_log()
    t = readings.angles.times
    lost = replace(readings, angles=readings.angles.select_rows((t < 2.0) | (t > 2.2)))
    sound, found = estimator.time_offset(readings), estimator.time_offset(lost)
    moved = abs(found.common.value - sound.common.value)
    assert moved < sound.common.deviation < found.common.deviation


def stand_now_and_then(rows):
    """Feet that stand for some rows of the grid, and not for the next five."""
    paths, standing, radii, inertial = stand(0.01)
    stands = np.arange(len(standing)) % (rows + 5) < rows
    return paths, standing & stands[:, None], radii, inertial


def test_an_offset_by_windows_of_one_length_is_unknown():
    """Of a contact of n rows n - 5 count, and a window of w steps takes w + 1.

    10 rows have rates over 4 steps and not over 6, 16 rows forces over 8 steps and not over 12.
    """
    assert compare_with_stance(*stand_now_and_then(10)) == TimeOffset(None, None)
    found = compare_with_stance(*stand_now_and_then(16))
    assert found.accelerometer is None
    assert found.gyroscope.value == pytest.approx(0.01, abs=1e-4)
    assert compare_with_stance(*stand_now_and_then(18)).accelerometer is not None


@pytest.mark.parametrize(("force_late", "known"), [(0.012, True), (0.04, False)])
def test_rates_that_explain_little_have_to_agree_with_forces(force_late, known):
    """A gyroscope with a fifth of its size leaves 0.8^2 of what feet predict."""
    found = compare_with_stance(*stand(0.012, force_late=force_late, shape=0.2))
    assert found.gyroscope is None
    assert (found.accelerometer is not None) == known


def test_a_sensor_that_measures_something_else_says_nothing():
    """Nor does the accelerometer, where the gyroscope says that something else is wrong."""
    assert compare_with_stance(*stand(0.01, shape=5.0)) == TimeOffset(None, None)
    paths, standing, radii, inertial = stand(0.01)
    values = inertial.values.copy()
    values[:, 3:] = np.array([0.0, 0.0, 9.81]) + np.random.default_rng(0).normal(
        size=(len(values), 3)
    )
    found = compare_with_stance(paths, standing, radii, replace(inertial, values=values))
    assert found.accelerometer is None
    assert found.common == found.gyroscope
    assert found.gyroscope.value == pytest.approx(0.01, abs=1e-3)


def test_feet_that_never_stand_say_nothing():
    paths, standing, radii, inertial = stand(0.01)
    assert compare_with_stance(paths, ~standing, radii, inertial) == TimeOffset(None, None)


@pytest.mark.parametrize("n", [6, 12])
def test_the_deviation_is_that_of_a_mean_by_few_blocks(n):
    """Blocks that each have a parabola about an offset of their own: the mean of these is found.

    The jackknife of a mean is its variance, and that of Student's t of n - 1 degrees is larger by
    (n - 1) / (n - 3). Windows of two lengths here have minima 1 ms apart.
    """
    own = np.random.default_rng(n).normal(4e-3, 2e-3, n)
    costs = [
        OffsetCost(1e3 + (list_offsets()[:, None] - own - shift) ** 2, 1e6) for shift in (0.0, 1e-3)
    ]
    found = find_least_offset(costs)
    assert found.value == pytest.approx(own.mean() + 0.5e-3, abs=1e-9)
    variance = (n - 1) / (n - 3) * own.var(ddof=1) / n + 0.5e-3**2 + FLOOR_DEVIATION**2
    assert found.deviation == pytest.approx(np.sqrt(variance), rel=1e-5)
    assert find_least_offset([costs[0], None]) is None


def test_feet_that_stand_one_at_a_time_leave_it_to_the_accelerometer():
    """To a twentieth: the axes are those of a gyroscope that is not late."""
    paths, standing, radii, inertial = stand(0.01)
    standing[:, 1:] = False
    found = compare_with_stance(paths, standing, radii, inertial)
    assert found.gyroscope is None
    assert found.accelerometer.value == pytest.approx(0.01, rel=0.05)


def test_offsets_are_joined_by_their_deviations():
    one, other = SensorOffset(0.010, 3e-3), SensorOffset(0.014, 4e-3)
    found = join_offsets([one, other])
    assert found.value == pytest.approx((0.010 / 9.0 + 0.014 / 16.0) / (1.0 / 9.0 + 1.0 / 16.0))
    assert found.deviation == pytest.approx(2.4e-3)  # 3 * 4 / 5: they agree
    assert TimeOffset(one, other).common == found
    assert join_offsets([]) is None
    assert join_offsets([one]) == one


def test_sensors_that_contradict_each_other_are_as_uncertain_as_they_differ():
    """By their deviations alone it were -20 +- 5.5 ms, which would be compensated."""
    sensors = SensorOffset(-0.003, 3e-3), SensorOffset(-0.022, 1e-3)
    found = TimeOffset(*sensors)
    assert found.has_contradiction
    assert found.common == SensorOffset(join_offsets(sensors).value, pytest.approx(0.0095))
    assert choose_compensation(found.common, 1e-3) == 0.0


def test_what_is_left_of_an_offset_is_what_is_not_compensated_and_its_deviation():
    offset = SensorOffset(0.003, 4e-3)
    assert TimeOffset(offset, None).left == pytest.approx(5e-3)
    assert TimeOffset(offset, None, compensated=0.003).left == pytest.approx(4e-3)
    assert TimeOffset(None, None).left is None
    assert TimeOffset(None, None, 0.004, is_given=True).left is None


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (SensorOffset(0.008, 2e-3), 0.008),
        (SensorOffset(-0.008, 2e-3), -0.008),
        (SensorOffset(0.008, 3e-3), 0.0),  # less than three deviations
        (SensorOffset(0.0009, 1e-4), 0.0),  # less than a quarter of a sample
        (None, 0.0),
    ],
)
def test_what_is_significant_is_compensated(offset, expected):
    assert choose_compensation(offset, 1e-3) == expected


@pytest.mark.parametrize("late", [0.02, 0.013, -0.013])
def test_samples_are_taken_later_and_keep_their_stamps(late):
    """Of a straight line every sample is right, and one by one they are the same to the bit."""
    times = 0.01 * np.arange(40)
    line = np.outer(times - late, np.arange(1.0, 7.0))
    _, readings = kinematic_log()
    given = replace(readings.each(lambda s: s.select_rows(slice(40))), inertial=Series(times, line))
    found = align_inertial(given, late)
    assert len(found.inertial) == 40 - np.ceil(abs(late) / 0.01)
    for series in (found.inertial, found.angles, *found.loads.values()):
        assert series.times[0] >= max(-late, 0.0)
        assert series.times[-1] <= 0.39 - max(late, 0.0)
    expected = np.outer(found.inertial.times, np.arange(1.0, 7.0))
    np.testing.assert_allclose(found.inertial.values, expected, rtol=0.0, atol=1e-14)
    live = InertialAlignment(late)
    pairs = [pair for t, row in zip(times, line, strict=True) for pair in live.add(float(t), row)]
    assert [t for t, _ in pairs] == found.inertial.times.tolist()
    np.testing.assert_array_equal([row for _, row in pairs], found.inertial.values)


def shifted(readings, *, inertial=0.0, angles=0.0):
    """Readings with stamps of these channels that are late, in s."""
    later = [
        replace(series, times=series.times + late)
        for series, late in ((readings.inertial, inertial), (readings.angles, angles))
    ]
    return replace(readings, inertial=later[0], angles=later[1])


def test_a_log_with_late_joints_is_compensated():
    """Records are made of samples that are 8 ms earlier then, but for the error of the offset."""
    estimator, readings = kinematic_log()
    late = shifted(readings, angles=0.008)
    found = estimator.time_offset(late)
    # Forty such logs of 4 s with other noise have errors of 1.8 ms and deviations of 2.6 ms.
    assert abs(found.compensated + 0.008) < 3.0 * found.common.deviation < 8e-3
    assert str(found).startswith("joints are ")
    assert str(found).endswith("ms late; compensated")
    assert found.record()["compensated"] == found.compensated
    told = replace(estimator.settings, time_offset=found.compensated)
    same = told.build(walking.robot("a1")).record(late)
    np.testing.assert_array_equal(estimator.record(late).inputs.values, same.inputs.values)


def test_a_sound_log_stays_as_it_is():
    estimator, readings = kinematic_log()
    found = estimator.time_offset(readings)
    assert found.compensated == 0.0
    assert abs(found.common.value) < 3.0 * found.common.deviation
    assert str(found).startswith("no delay of the inertial sensor seen")
    assert align_inertial(readings, 0.0) is readings


def test_a_robot_that_stands_shows_no_offset():
    estimator, readings = kinematic_log()
    rows, times = np.zeros(400, dtype=int), 0.01 * np.arange(400)
    rng = np.random.default_rng(1)

    def still(series):
        values = series.values[rows]
        return Series(times, values + 1e-3 * rng.normal(size=values.shape))

    found = estimator.time_offset(readings.each(still))
    assert found == TimeOffset(None, None)
    assert str(found) == "delay between inertial sensor and joints unknown"


def test_an_offset_that_is_told_is_not_looked_for():
    estimator, readings = kinematic_log()
    told = replace(estimator.settings, time_offset=0.004).build(walking.robot("a1"))
    found = told.time_offset(readings)
    assert found == TimeOffset(None, None, 0.004, is_given=True)
    assert str(found) == "inertial sensor is 4.0 ms late, as told by `time_offset`"
    with pytest.raises(InputError, match="time_offset"):
        replace(estimator.settings, time_offset="never")


def test_stamps_that_tell_no_time_say_nothing():
    _, readings = kinematic_log()
    frozen = readings.each(lambda s: Series(np.zeros(len(s)), s.values))
    kinematics = kinematic_log()[0].base.kinematics
    assert find_time_offset(kinematics, frozen) == TimeOffset(None, None)


def compare_logs(logs):
    """Normalised errors of planted offsets, and how many sound logs are compensated."""
    errors, wrong = [], 0
    for estimator, readings in logs:
        for late in (0.0, 0.008, -0.02):
            found = find_time_offset(estimator.base.kinematics, shifted(readings, inertial=late))
            errors.append((found.common.value - late) / found.common.deviation)
            wrong += late == 0.0 and found.compensated != 0.0
            assert late == 0.0 or found.compensated == found.common.value
    return np.array(errors), wrong


@pytest.mark.slow
def test_offsets_of_simulated_trots_are_found_within_their_deviation():
    """None is off by 3.5 deviations, and no sound log is compensated."""
    logs = [
        simulated_log(name, begin, seed, contact)
        for name, contact in (("solo12", 1e-2), ("go1", 5e-3))
        for begin, seed in ((0.0, 1), (2.0, 2))
    ]
    errors, wrong = compare_logs(logs)
    assert np.abs(errors).max() < 3.5
    assert np.mean(errors**2) < 2.0
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.07, 0.1, 0.15, 0.2, -0.15])
def test_longer_delays_are_not_taken_for_short_ones(late):
    """Vertical forces of a trot of 0.4 s are the same every 0.2 s, its rates are not."""
    estimator, readings = simulated_log("go1", contact=5e-3)
    wrong = shifted(readings, inertial=late)
    assert find_time_offset(estimator.base.kinematics, wrong) == TimeOffset(None, None)


@pytest.mark.slow
@pytest.mark.parametrize("load", [recorded_humanoid, recorded_trot])
def test_recordings_are_not_compensated_until_they_are_late(load):
    """The inertial sensors of both are within 3 ms of the joints, as far as the logs say."""
    estimator, readings = load()
    sound = find_time_offset(estimator.base.kinematics, readings)
    assert sound.compensated == 0.0
    assert abs(sound.common.value) < 5e-3
    late = find_time_offset(estimator.base.kinematics, shifted(readings, inertial=0.02))
    moved = late.common.value - sound.common.value
    assert abs(moved - 0.02) < 3.0 * late.common.deviation
    assert late.compensated > 0.0
