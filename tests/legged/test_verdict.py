"""The verdict on a filtered walk: sizes and whiteness of innovations, heights of footholds."""

from types import SimpleNamespace

import numpy as np
import pytest
from legged.machine import machine
from scipy.stats import chi2

from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.kalman_equations import Innovation
from hybridctl.legged.system import OPEN, STICK
from hybridctl.legged.verdict import (
    FOOT_SPEED,
    SUM_RATIO,
    WalkVerdict,
    Whiteness,
    judge_walk,
    judge_whiteness,
)

BASE, _ = machine(flat=(False, False))
BOTH, LEFT, RIGHT = (STICK, STICK), (STICK, OPEN), (OPEN, STICK)
COVARIANCE = np.array([[4e-6, 1e-6, 0.0], [1e-6, 2e-6, 0.0], [0.0, 0.0, 1e-6]])


def innovations(correlation, count, scale=1.0, seed=0, mode=LEFT, begin=0.0):
    """Innovations of a first-order process with this correlation at lag one."""
    rng, factor = np.random.default_rng(seed), scale * np.linalg.cholesky(COVARIANCE)
    white, found = rng.normal(size=3), []
    for k in range(count):
        nis = scale**2 * float(white @ white)
        r = factor @ white
        found.append(
            Innovation(begin + 0.01 * k, "angles", mode, r, COVARIANCE, nis, 0.0, np.inf, True)
        )
        white = correlation * white + np.sqrt(1.0 - correlation**2) * rng.normal(size=3)
    return found


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_correlation_is_that_of_the_process(correlation):
    """Its standard error is sqrt(1 - r^2) / sqrt(N) with N = 6,000 products: five of them."""
    found = judge_whiteness(innovations(correlation, 2_000))
    error = np.sqrt((1.0 - correlation**2) / 6_000)
    assert abs(found.lag_one - correlation) < 5.0 * error
    # Variance of sums of a first-order process; 10 % is five errors of r = .9 in (1 + r) / (1 - r).
    expected = (1.0 + correlation) / (1.0 - correlation)
    assert found.sum_ratio == pytest.approx(expected, rel=0.2)


def test_the_statistic_is_chi_square_where_innovations_are_white():
    """Of 40 seeds 0.4 are expected above the 99 % bound; more than 3 have a probability of 8e-4."""
    found = [judge_whiteness(innovations(0.0, 300, seed=seed)) for seed in range(40)]
    assert sum(one.ljung_box > one.limit for one in found) <= 3
    assert found[0].limit == pytest.approx(chi2.ppf(0.99, 5))
    mean = np.mean([one.ljung_box for one in found])
    assert mean == pytest.approx(5.0, abs=5.0 * np.sqrt(10.0 / 40.0))  # variance 2 n


@pytest.mark.parametrize("together", [1, 3])
def test_correlation_is_not_counted_across_a_change_of_mode(together):
    """One value of each mode in turn has no successor, three have no fifth one."""
    modes = [LEFT if k // together % 2 else RIGHT for k in range(400)]
    found = [i._replace(mode=m) for i, m in zip(innovations(0.9, 400), modes, strict=True)]
    assert judge_whiteness(found) is None


def test_innovations_that_are_zero_have_no_correlation():
    assert judge_whiteness(innovations(0.0, 100, scale=0.0)) is None


def result(taken=(), steps=()):
    return SimpleNamespace(innovations=tuple(taken), steps=tuple(steps))


def test_small_innovations_may_be_correlated():
    """What drifts is their sum: correlated ones of a tenth of the claimed variance do no harm."""
    large = judge_walk(BASE, result(innovations(0.8, 2_000)))
    (flag,) = large.flags
    assert "innovations are correlated (lag one 0.8" in flag
    assert "different delays" in flag
    small = judge_walk(BASE, result(innovations(0.8, 2_000, scale=0.1**0.5)))
    assert small.whiteness.sum_ratio < SUM_RATIO
    assert small.flags == ()


def test_sizes_are_judged_phase_by_phase():
    """Innovations that are twice too large after a touchdown alone are named for that phase."""
    steps, taken = [], []
    for k in range(40):
        mode = LEFT if k % 2 else RIGHT
        first = 0.2 * k
        steps += walk_steps(mode, first, 20, height=0.0)
        taken += innovations(0.0, 5, 2.0, k, mode, first)
        taken += innovations(0.0, 15, 1.0, 100 + k, mode, first + 0.0501)
    found = judge_walk(BASE, result(taken, steps))
    ratios = {one.phase: one.ratio for one in found.phases}
    # The first contact is no touchdown, and has all its values in swing. Errors: sqrt(2 / (3 n)).
    assert ratios["after touchdown"] == pytest.approx(4.0, rel=5.0 * np.sqrt(2.0 / (3 * 195)))
    assert ratios["swing"] == pytest.approx(1.0, abs=0.2)
    assert [flag.split(" is ")[0] for flag in found.flags] == [
        "mean NIS of 'angles', after touchdown,"
    ]


def walk_steps(mode, begin, count, height, slope=0.0, forward=0.0):
    """Steps of a filter that stands in a mode, its feet on a plane, 0.2 m apart across."""
    space = BASE.space(mode)
    found = []
    for k in range(count):
        x = space.normalize(np.ones(space.nx))
        for place in BASE.places(mode):
            ahead = forward + (0.1 if place.number else 0.0)
            side = 0.1 if place.number else -0.1
            x[place.x] = [ahead, side, height + slope * ahead]
        estimate = Estimate(mode, begin + 0.01 * k, x, 1e-6 * np.eye(space.ndx))
        found.append(SimpleNamespace(time=estimate.time, estimate=estimate))
    return found


def climb(rate, slope, strides=20, deviation=2e-3):
    """A walk of strides of 0.2 m, each foot a step, with both down between; 4 m of 20 strides."""
    steps = []
    for k in range(strides):
        t, way = 7.0 + 0.9 * k, 0.2 * k
        for mode, late in ((BOTH, 0.0), (LEFT, 0.3), (RIGHT, 0.6)):
            steps += walk_steps(mode, t + late, 30, rate * way, slope, way)
    for step in steps:
        for place in BASE.places(step.estimate.mode):
            step.estimate.covariance[place.dx.start + 2, place.dx.start + 2] = deviation**2
    return judge_walk(BASE, result(steps=steps))


def test_a_drift_of_footholds_on_level_ground_is_named():
    """They rise by 5 mm a metre over 3.8 m of the left foot: 1 % is the limit, 3 % is named."""
    level = climb(0.0, 0.0)
    assert level.drift.height == pytest.approx(0.0, abs=1e-12)
    assert level.flags == ()
    assert climb(0.005, 0.0).flags == ()
    rising = climb(0.03, 0.0)
    assert rising.drift.height == pytest.approx(0.03 * 3.8, rel=0.1)
    assert rising.drift.way == pytest.approx(3.8, rel=0.1)
    assert rising.drift.deviation == pytest.approx(2e-3)
    assert "footholds on level ground rise by 11" in rising.flags[0]
    assert "over 3.8 m, +-2 mm claimed" in rising.flags[0]
    assert rising.record()["height_drift"] == rising.drift._asdict()


def test_a_drift_within_three_claimed_deviations_is_not_named():
    """0.114 m, three deviations of 38 mm."""
    named = [bool(climb(0.03, 0.0, deviation=d).flags) for d in (0.02, 0.035, 0.042)]
    assert named == [True, True, False]


def test_a_drift_needs_three_contacts_of_each_foot():
    assert climb(0.03, 0.0, strides=2).drift is None
    assert climb(0.03, 0.0, strides=3).drift is not None


def test_on_a_slope_footholds_rise_with_reason():
    """Feet that stand together show the slope."""
    assert climb(0.0, 0.1).drift is None


def test_on_rough_ground_footholds_tell_nothing_of_a_drift():
    """Feet that stand together differ by 4 cm in height, one way and the other."""
    steps = []
    for k in range(20):
        t, way = 0.6 * k, 0.2 * k
        step = walk_steps(BOTH, t, 20, 0.0, 0.0, way)
        left, _ = BASE.places(BOTH)
        for one in step:
            one.estimate.mean[left.x.start + 2] += 0.04 * (-1) ** k
        steps += step + walk_steps(LEFT, t + 0.2, 20, 0.0, 0.0, way)
        steps += walk_steps(RIGHT, t + 0.4, 20, 0.0, 0.0, way)
    assert judge_walk(BASE, result(steps=steps)).drift is None


def test_the_speed_of_feet_is_their_way_over_their_time_in_contact():
    """One foot creeps by 6 mm in 0.19 s, the other stands."""
    steps = walk_steps(LEFT, 3.0, 20, 0.0)
    left = BASE.places(LEFT)[0]
    for k, step in enumerate(steps):
        step.estimate.mean[left.x.start] += 6e-3 * k / 19
    steps += walk_steps(RIGHT, 4.0, 20, 0.0)
    found = judge_walk(BASE, result(steps=steps)).foot_speed
    assert found == pytest.approx(6e-3 / 0.19 / np.sqrt(2.0))


def test_what_cannot_be_judged_is_none_in_the_record():
    found = judge_walk(BASE, result()).record()
    assert found.pop("nis_by_phase") == []
    assert set(found.values()) == {None}


def test_the_record_has_the_band_around_one():
    verdict = judge_walk(BASE, result(innovations(0.0, 400), walk_steps(LEFT, 0.0, 20, 0.0)))
    (phase,) = verdict.record()["nis_by_phase"]
    # 1,200 squares of one degree of freedom: +-2.6 deviations of sqrt(2 / 1200) hold 99 %.
    half = 2.576 * np.sqrt(2.0 / 1200.0)
    assert [phase["low"], phase["high"]] == pytest.approx([1.0 - half, 1.0 + half], abs=0.01)
    assert phase["low"] < phase["mean"] < phase["high"]
    white = verdict.whiteness
    assert verdict.record()["ljung_box"] == white.ljung_box
    assert verdict.record()["innovation_sum_ratio"] == white.sum_ratio


def test_innovations_that_never_change_have_a_finite_ratio():
    assert 1e8 < Whiteness(1.0, 0.0, 15.0, 1.0).sum_ratio < 1e10


def test_feet_that_run_while_they_stand_are_named():
    """Filters that take feet to slip swallow any error of the base's velocity."""
    assert WalkVerdict((), None, None, 0.5 * FOOT_SPEED).flags == ()
    assert WalkVerdict((), None, None, float("nan")).flags == ()
    (flag,) = WalkVerdict((), None, None, 1.04).flags
    assert flag.startswith("feet in contact move at 1.04 m/s")
