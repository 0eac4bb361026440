"""The smoother with several orders of events, against Bayes' rule on a grid of starts."""

import numpy as np
import pytest
from estimation.systems import GRAVITY, bounced, bouncing_ball, height
from estimation.test_mixture_density import BEFORE, in_corner
from scipy.stats import chi2

from hybridctl.estimation.consistency import nees
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_jump import STRATEGIES
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.estimation.smoother import smooth

RESTITUTION, START = 0.7, np.array([0.1, 0.0])
IMPACT = np.sqrt(2.0 * START[0] / GRAVITY)
FALL = GRAVITY * IMPACT
NONE = np.zeros((2, 2))


def bayes(s, times, values):
    """Mean and covariance of the state at each time given all heights, and whether it rises.

    The ball starts at N(START, s^2), and heights have the deviation s. A rule of 400 midpoints each
    way, within 6 deviations, of which what the heights leave has some ten in a deviation.
    """
    line = 12.0 * ((np.arange(400) + 0.5) / 400 - 0.5)
    z = np.array(np.meshgrid(line, line)).reshape(2, -1).T
    states = [bounced(START + s * z, t, RESTITUTION) for t in times]
    logs = -0.5 * (z**2).sum(axis=1)
    for x, value in zip(states, values, strict=True):
        logs -= 0.5 * ((value - x[:, 0]) / s) ** 2
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    found = []
    for x in states:
        mean = weights @ x
        ways = x - mean
        found.append((mean, ways.T @ (weights[:, None] * ways), weights @ (x[:, 1] > 0.0)))
    return found


def smoothed(seed, s, early, late):
    """The smoothed state of a ball, and that by Bayes' rule, at heights about a bounce.

    early, late: times relative to that of the impact of the mean, in s, and near it in deviations
    of its time.
    """
    rng = np.random.default_rng(seed)
    times = IMPACT + np.concatenate([early, s / FALL * np.array(late), -np.array(early[::-1])])
    start = START + s * rng.normal(size=2)
    truth = np.array([bounced(start[None], t, RESTITUTION)[0] for t in times])
    values = truth[:, 0] + s * rng.normal(size=len(times))
    kf = SaltedKalmanFilter(bouncing_ball(RESTITUTION), NONE, height(s**2), hypotheses=4)
    record = Record({"height": Series(times, values)})
    result = kf.run(record, Estimate("air", 0.0, START, s**2 * np.eye(2)))
    return smooth(kf.model.system, result), bayes(s, times, values)


def errors(s, found, right):
    """Errors (n,) of means and deviations, heights in s and speeds in m/s."""
    unit, off = np.array([s, 1.0]), []
    for m, (mean, p, _) in zip(found.mixtures, right, strict=True):
        own, grid = (np.sqrt(np.diag(c)) for c in (m.covariance, p))
        off.append(np.abs([*((m.mean - mean) / unit), *((own - grid) / unit)]).max())
    return np.array(off)


def side(found, k):
    """How probable it is that the ball has bounced by sample k, by its mean speed."""
    return (found.mixtures[k].mean[1] + FALL) / ((1.0 + RESTITUTION) * FALL)


EARLY = (-0.06, -0.04, -0.02)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 21))]
)
def test_a_sample_on_a_bounce_has_the_moments_of_bayes_rule_given_all_heights(seed):
    """Of whether it has bounced the later heights leave a doubt, which the filter has merged.

    To first order: what is left is the curvature of the fall, linear in s, and the grid. An error
    of the probability of a side is one of the mean speed, by the 2.4 m/s between both. From the
    bounce on, one normal distribution stands for both orders, of which each is a part that is cut
    off: a tenth of a deviation.
    """
    for s, least in ((8e-3, 0.05), (2e-3, 0.015)):
        found, right = smoothed(seed, s, EARLY, [(-0.5, 0.0, 0.5)[seed % 3]])
        off = errors(s, found, right)
        assert off[:4].max() < least
        assert off[4:].max() < 0.1
        p = right[3][2]
        assert min(found.probabilities) <= max(p, 1.0 - p) + least
        assert not found.notes


@pytest.mark.slow
def test_samples_within_a_bounce_have_the_moments_of_bayes_rule_to_a_fraction():
    """Five of them within 2.4 deviations of its time, of 20 seeds the worse ten.

    A side is cut off at each of them as if it were another one, so that some of it counts twice:
    this is no order in s, but a tenth, measured.
    """
    offs, sides = [], []
    for seed in range(10, 20):
        found, right = smoothed(seed, 2e-3, EARLY[:2], [-1.0, -0.4, 0.2, 0.8, 1.4])
        offs.append(errors(2e-3, found, right))
        sides.append([side(found, k) - right[k][2] for k in range(2, 7)])
    assert np.mean(offs) < 0.1
    assert np.max(offs) < 0.5
    assert np.abs(sides).max() < 0.15


@pytest.mark.slow
def test_the_smoother_is_as_sure_as_the_filter_near_bounces():
    """36 logs of 40 heights: mean squares of both are 2, the dimension, at each time.

    Independent ones are so within the band of chi squared, here for 40 times at once. Errors at a
    bounce have heavier tails than that, as the belief has two peaks; 50 is far in both. Along one
    order alone two samples had 1.9 million.
    """
    system, p0, deviation = bouncing_ball(), np.diag([0.02, 0.1]) ** 2, 1e-2
    space, times = system.mode("air").space, np.arange(1, 41) / 50.0
    noise, squares = NONE, []
    for seed in range(36):
        rng = np.random.default_rng(1000 + seed)
        x0 = rng.multivariate_normal([1.0, 0.0], p0)
        states = np.array([bounced(x0[None], t)[0] for t in times])
        heights = states[:, 0] + deviation * rng.normal(size=40)
        kf = SaltedKalmanFilter(system, noise, height(deviation**2), hypotheses=4)
        start = Estimate("air", 0.0, np.array([1.0, 0.0]), p0)
        result = kf.run(Record({"height": Series(times, heights)}), start)
        found = smooth(system, result)
        squares.append(
            [
                [nees(space, e, x)[0] for e, x in zip(mixtures, states, strict=True)]
                for mixtures in (result.mixtures, found.mixtures)
            ]
        )
    filtered, after = np.moveaxis(squares, 1, 0)
    high = chi2.isf(1e-3 / 40, 2 * 36) / 36
    for own in (filtered, after):
        assert own.max() < 50.0
        assert own.mean(axis=0).max() < high
        error = own.mean(axis=1).std() / np.sqrt(36)
        assert abs(own.mean() - 2.0) < 4.0 * error


def test_what_was_dropped_is_not_smoothed_and_notes_say_so():
    """Four orders are likely in a corner; of two hypotheses the likelier two are kept."""
    kf, state = in_corner("saltation", 5e-4, hypotheses=2, first=BEFORE)
    start = Estimate("air", 0.0, *initial())
    times = state.time + np.array([-1e-3, 0.0])
    record = Record({"places": Series(times, [BEFORE, [1e-3, 1e-3]])})
    result = kf.run(record, start)
    found = smooth(kf.model.system, result)
    dropped = [step.hypotheses[0].dropped for step in result.steps]
    assert max(dropped) > 0.01
    assert [t for t, text in found.notes if "dropped" in text] == [
        t for t, p in zip(times, dropped, strict=True) if p > 0.01
    ]
    every, _ = in_corner("saltation", 5e-4, hypotheses=8, first=BEFORE)
    assert not smooth(kf.model.system, every.run(record, start)).notes


def initial():
    """Mean and covariance at which `in_corner` starts."""
    kept = in_corner("saltation", -0.1)[1].estimate
    return kept.mean, kept.covariance


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_hypothesis_gives_the_numbers_that_it_gave_before_there_were_several(strategy):
    """As recorded before densities were made of several; digits are those of any processor."""
    times, s = IMPACT + np.array([-0.05, 0.003, 0.05]), 2e-3
    values = np.array([0.06, 1e-3, 0.04])
    system = bouncing_ball(RESTITUTION)
    kf = SaltedKalmanFilter(system, NONE, height(s**2), options=FilterOptions(strategy=strategy))
    start = Estimate("air", 0.0, START, s**2 * np.eye(2))
    result = kf.run(Record({"height": Series(times, values)}), start)
    found = smooth(system, result)
    assert result.log_likelihood == pytest.approx(RECORDED[strategy][0], rel=1e-8)
    np.testing.assert_allclose(found.initial.mean, RECORDED[strategy][1], rtol=1e-7, atol=1e-9)
    assert [m.mean.tolist() for m in found.mixtures] == [e.mean.tolist() for e in found.estimates]
    assert found.probabilities == (1.0, 1.0, 1.0)


RECORDED = {  # log-likelihood, and the smoothed start
    "saltation": (13.549746268100304, [0.1012669153615275, 1.843484829122639e-05]),
    "reset_jacobian": (13.453681460748184, [0.10166255036035883, 0.00011642871827022245]),
    "no_jump": (13.456234918110388, [0.10163809704713929, 0.00034043988303256124]),
}
