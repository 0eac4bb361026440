"""Intervals by a bootstrap over records, for likelihoods in closed form and simulated bounces."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hybridctl.experiments.filter_models import BallSettings, ball_model

from hybridctl.base.errors import InputError
from hybridctl.estimation.bootstrap import bootstrap_parameters
from hybridctl.estimation.filter_model import Scenario
from hybridctl.estimation.identification import LikelihoodPoint, Problem, identify
from hybridctl.estimation.synthetic import simulate_record

TRUTH = np.array([0.7, 0.15])  # restitution, friction
BOUNDS = np.array([[0.4, 0.95], [0.01, 0.5]])


@dataclass(frozen=True, eq=False)
class Hills(Problem):
    """Every record is a normal value about the parameters with a deviation of 0.01 each.

    With `rough` its log-likelihood has ripples far finer than the hill of all records, as where the
    order of impacts changes.
    """

    rough: float = 0.0

    def evaluate(self, values):
        tops = np.array(self.records)
        z = (values - tops) / 0.01
        ripple = self.rough * np.sin(np.array([1e4, 1.3e4]) * values + 1e3 * tops)
        each = (-0.5 * z**2 + ripple).sum(axis=1)
        return LikelihoodPoint(values, each, len(each), 0, 0, 0)


def make_hills(n, seed, rough=0.0):
    tops = tuple(TRUTH + 0.01 * np.random.default_rng(seed).normal(size=(n, 2)))
    return Hills(None, ("restitution", "friction"), BOUNDS, tops, None, rough=rough)


def test_intervals_of_plain_hills_are_those_of_a_mean():
    """The mean of n values has a deviation of 0.01 / sqrt(n), of which 1.645 are 90 %.

    That of a drawn set is known to 1 / sqrt(2 n) = 11 % with 40 records; three of that are allowed.
    """
    problem = make_hills(40, 0)
    found = bootstrap_parameters(problem, identify(problem, [0.6, 0.2]))
    for interval, mean in zip(found, np.mean(problem.records, axis=0), strict=True):
        assert interval.value == pytest.approx(mean, abs=1e-4)
        half = 0.5 * (interval.high - interval.low)
        assert half == pytest.approx(1.645 * 0.01 / np.sqrt(40), rel=0.33)


def test_intervals_of_rough_likelihoods_cover():
    """Of 30 sets of 20 rough records 90 % are covered: at least 21, 3.7 deviations fewer.

    Ripples of 0.3 in a record are 1.3 in the sum, where a standard error means 0.5.
    """
    covered = np.zeros(2)
    for seed in range(30):
        problem = make_hills(20, seed, rough=0.3)
        smooth = identify(make_hills(20, seed), TRUTH)
        found = bootstrap_parameters(problem, smooth, draws=300)
        covered += [i.low <= v <= i.high for i, v in zip(found, TRUTH, strict=True)]
    assert (covered >= 21).all()


def test_few_records_are_refused():
    problem = make_hills(9, 0)
    with pytest.raises(InputError, match="10 records at least"):
        bootstrap_parameters(problem, identify(problem, [0.6, 0.2]))


def make_settings(values, seed=0):
    restitution, friction = map(float, values)
    return BallSettings(
        restitution=restitution, friction=friction, reset_noise=0.05, rate=25.0, duration=0.8,
        gate=None, patience=None, compliance=0.0, seed=seed,
    )  # fmt: skip


def toss_ball(seed):
    settings, rng = make_settings(TRUTH, seed), np.random.default_rng(seed)
    height, across, down = rng.uniform([0.3, -1.5, -1.0], [1.0, 1.5, 1.0])
    scenario = Scenario(np.array([0.0, height, across, down]), np.zeros(4))
    model = replace(ball_model(settings), scenario=lambda: scenario)
    return simulate_record(model, settings)[0]


@pytest.mark.slow
@pytest.mark.long
def test_intervals_of_simulated_tosses_cover_the_true_parameters():
    """90 % of 10 sets of 12 tosses of a ball with noisy impacts: at least 6, 3 deviations fewer."""
    covered = np.zeros(2)
    for k in range(10):
        records = tuple(toss_ball(1000 * k + i) for i in range(12))
        problem = Problem(
            lambda values: ball_model(make_settings(values)), ("restitution", "friction"), BOUNDS,
            records, make_settings(TRUTH),
        )  # fmt: skip
        found = identify(problem, [0.6, 0.2], max_evaluations=30)
        intervals = bootstrap_parameters(problem, found, points=14)
        covered += [i.low <= v <= i.high for i, v in zip(intervals, TRUTH, strict=True)]
    assert (covered >= 6).all()
