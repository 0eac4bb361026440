"""Trials of the predictive walker: where they begin, what is kept of them, and some of them."""

from dataclasses import replace

import numpy as np
import pytest
from hybridctl.experiments.walking import ahead, biped_walk, controllers, walk
from hybridctl.robots import five_link
from rich.console import Console

CONFIG = biped_walk.Config()
PUSH, AT_PHASE, LATE = ahead.TRIALS[0], ahead.TRIALS[2], ahead.TRIALS[-2]


@pytest.fixture(scope="module")
def judge(gait):
    lqr = controllers.design(gait, controllers.Weights(*CONFIG.weights))
    return ahead.Judge(CONFIG, gait, lqr, "predictive", steps=2, seed=7)


@pytest.mark.parametrize("phase", [0.0, 0.2, 0.45])
def test_a_place_in_a_step_is_on_the_orbit(gait, phase):
    """The way along the ground left out."""
    place = walk.find_place(gait, phase)
    assert place.time == pytest.approx((1.0 + phase) * gait.period)
    np.testing.assert_allclose(place.state[1:], gait.orbit(place.time)[1:], atol=1e-7)
    assert place.mode == place.past[-1].mode_after == five_link.RIGHT_STANCE


def test_a_push_holds_the_foot_that_stands(gait):
    """The other one moves."""
    place = walk.find_place(gait, 0.3)
    pushed = walk.push_state(gait, 10.0, place.state, place.mode)
    gained = (pushed - place.state)[7:]
    rows = gait.walker.dynamics.contact_set.jacobian(place.state[:7])
    np.testing.assert_allclose(rows[[1, 3]] @ gained, 0.0, atol=1e-12)
    assert np.abs(rows[[0, 2]] @ gained).max() > 0.01
    assert gained[0] > 0.0


def test_starts_are_the_same_for_every_law_and_others_for_every_trial(judge, monkeypatch):
    starts = []

    def walked(gait, policy, start, steps, **place):
        starts.append(start)
        return walk.Walk(steps, None)

    monkeypatch.setattr(ahead, "walk", walked)
    for number, law in ((2, "predictive"), (2, "cone"), (3, "cone")):
        replace(judge, law=law).walk(number, AT_PHASE, 0)
    np.testing.assert_array_equal(starts[0], starts[1])
    assert np.abs(starts[0] - starts[2]).max() > 1e-3


def test_walks_are_kept_as_they_end_and_not_walked_again(judge, tmp_path, monkeypatch):
    found, trials = [], (PUSH, LATE)

    def walked(self, number, trial, start):
        found.append((number, start))
        return walk.Walk(2 - start, None, "slips" if start else "")

    monkeypatch.setattr(ahead.Judge, "walk", walked)
    ahead.run_trials(tmp_path, judge, 1, trials)
    kept = ahead.run_trials(tmp_path, judge, 2, trials)
    assert found == [(0, 0), (1, 0), (0, 1), (1, 1)]
    console = Console(width=140)
    with console.capture() as text:
        console.print(ahead.make_survival_table(kept, judge))
    assert text.get().count("1 of 2") == 2
    assert "plans 20 ms late" in text.get()
    assert "1: slips" in text.get()


def test_laws_without_plans_take_no_trials_of_them(judge):
    fixed = replace(judge, law="cone")
    assert [fixed.can_take(trial) for trial in (PUSH, AT_PHASE, LATE)] == [True, True, False]
    assert all(judge.can_take(trial) for trial in ahead.TRIALS)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(ahead.TRIALS)))
def test_each_trial_is_survived_for_two_steps(judge, number):
    """From the first random start of a seed; the page has all of them over twenty steps."""
    found = judge.walk(number, ahead.TRIALS[number], 0)
    assert (found.steps, found.reason) == (2, "")
