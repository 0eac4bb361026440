"""The period of a gait by joint angles: known patterns, standing, noise, and single movements."""

import numpy as np
import pytest

from hybridctl.base.time_series import Series
from hybridctl.legged.gait import find_gait_period, gait_step_time

RATE = 200.0  # Hz
NOISE = 1e-3  # rad, of the encoders


def joints(times, period, offsets, duty=0.5, begin=0.0, seed=0):
    """Angles (n, 3 k) of legs that swing forward and up once in a period, and stand otherwise.

    offsets: the part of the period by which each leg is late; trot (0, 1/2, 1/2, 0), walk (0, 1/2,
    1/4, 3/4), bound (0, 0, 1/2, 1/2). begin: time in s until which they stand.
    """
    rng, columns = np.random.default_rng(seed), []
    for offset in offsets:
        part = (np.maximum(times - begin, 0.0) / period + offset) % 1.0
        swing = np.clip((part - duty) / (1.0 - duty), 0.0, 1.0)
        along = np.where(part < duty, 0.5 - part / duty, swing**2 * (3.0 - 2.0 * swing) - 0.5)
        up = np.sin(np.pi * swing) ** 2
        # The knee bends in the swing, and a little in the stance: it moves twice in a period.
        give = 0.3 * np.sin(np.pi * np.minimum(part / duty, 1.0)) ** 2
        columns += [0.02 * along, 0.3 * along + 0.2 * up, -0.6 * (up + give)]
    angles = np.array(columns).T
    return Series(times, angles + NOISE * rng.normal(size=angles.shape))


@pytest.mark.parametrize("offsets", [(0, 0.5, 0.5, 0), (0, 0.5, 0.25, 0.75), (0, 0, 0.5, 0.5)])
@pytest.mark.parametrize("period", [0.25, 0.5, 1.1, 2.0])
@pytest.mark.parametrize("duty", [0.4, 0.5, 0.75])
def test_the_period_of_a_gait_is_found(offsets, period, duty):
    """To a hundredth, from standing and from mid-walk, with eight periods and in any order."""
    times = 3.0 + np.arange(0.0, 8.0 * period, 1.0 / RATE)
    for begin in (0.0, 3.0 + 3.0 * period):
        angles = joints(times, period, offsets, duty, begin)
        assert find_gait_period(angles) == pytest.approx(period, rel=0.01)
        order = np.random.default_rng(1).permutation(len(times))
        mixed = Series(times[order], angles.values[order])
        assert find_gait_period(mixed) == find_gait_period(angles)
    assert gait_step_time(angles) == 0.5 * find_gait_period(angles)


def test_two_legs_and_lost_samples():
    times = np.arange(0.0, 10.0, 0.01)
    kept = np.random.default_rng(3).random(len(times)) > 0.2
    angles = joints(times, 1.3, (0.0, 0.5), 0.6)
    lost = Series(times, np.where(kept[:, None], angles.values, np.nan))
    assert find_gait_period(lost) == pytest.approx(1.3, rel=0.01)


def move_once(times):
    """A robot that gets up, once."""
    return 0.5 * np.clip(times - 2.0, 0.0, 1.0)[:, None] * np.ones(12)


@pytest.mark.parametrize("seed", range(5))
def test_what_repeats_nothing_has_no_period(seed):
    """Encoders' noise, a random walk, one movement, and too few rows."""
    rng, times = np.random.default_rng(seed), np.arange(0.0, 7.0, 1.0 / RATE)
    white = NOISE * rng.normal(size=(len(times), 12))
    for values in (white, np.cumsum(3.0 * white, axis=0), white + move_once(times)):
        assert find_gait_period(Series(times, values)) is None
    for few in (0, 1, 5):
        assert gait_step_time(Series(times[:few], white[:few])) is None


def test_a_body_that_sways_makes_no_steps():
    """Joints that hold a body which sways by 5 mrad at 1.5 Hz, 0.05 rad/s."""
    times = np.arange(0.0, 7.0, 1.0 / RATE)
    sway = 5e-3 * np.sin(2.0 * np.pi * 1.5 * times)[:, None] * np.ones(12)
    assert find_gait_period(Series(times, sway)) is None


@pytest.mark.parametrize(("speed", "known"), [(0.09, False), (0.12, True)])
def test_joints_that_reach_a_tenth_of_a_radian_per_second_make_steps(speed, known):
    """Sines with a period of 0.454 s, which lies between two lags of the autocorrelation.

    The parabola through three of its values finds it to 1 ms, the nearest lag is 4 ms off.
    """
    times, rate = np.arange(0.0, 20.0, 1.0 / RATE), 2.0 * np.pi / 0.454
    found = find_gait_period(Series(times, speed / rate * np.sin(rate * times)))
    assert found == (pytest.approx(0.454, abs=1e-3) if known else None)
