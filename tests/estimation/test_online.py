"""A filter that is stepped by a loop: the same estimates, later where there is no time."""

import itertools

import numpy as np
import pytest
from estimation.systems import GRAVITY, bounced, bouncing_ball, height

from hybridctl.base.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.online import Estimator
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter

TIMES = np.arange(1, 41) / 50.0
VALUES = np.array([bounced(np.array([[1.0, 0.0]]), t)[0, 0] for t in TIMES])
FIRST = Estimate("air", 0.0, np.array([1.01, 0.05]), np.diag([0.02, 0.1]) ** 2)
WORK = 2 * len(TIMES)  # pieces


def kept():
    return SaltedKalmanFilter(bouncing_ball(), np.zeros((2, 2)), height())


def estimates(loop):
    return [loop.step(t, {"height": z}) for t, z in zip(TIMES.tolist(), VALUES, strict=True)]


def counting(costs=()):
    """A clock that says of each piece of work what it has cost, 1 s if nothing else is told."""
    passed = itertools.accumulate(itertools.chain([0.0], costs, itertools.repeat(1.0)))
    return lambda: next(passed)


def test_without_a_deadline_it_is_the_filter():
    log = Record({"height": Series(TIMES, VALUES[:, None])})
    expected = kept().run(log, FIRST)
    loop = Estimator(kept(), FIRST)
    found = estimates(loop)
    means = [step.estimate.mean for step in expected.steps]
    np.testing.assert_array_equal([e.mean for e in found], means)
    loop.reset(FIRST)
    np.testing.assert_array_equal(estimates(loop)[-1].covariance, found[-1].covariance)


def test_what_there_is_no_time_for_is_done_later_and_to_the_last_bit():
    """Time for one piece in a step of a sample, then in steps without values: two a sample."""
    loop, whole = Estimator(kept(), FIRST, deadline=1.5, clock=counting()), Estimator(kept(), FIRST)
    expected = estimates(whole)
    late = estimates(loop)
    assert loop.behind == WORK - len(TIMES)
    assert [e.time for e in late] == TIMES.tolist(), "estimates are of the present"
    while loop.behind:
        last = loop.step(TIMES[-1], {})
    np.testing.assert_array_equal(last.mean, expected[-1].mean)
    np.testing.assert_array_equal(last.covariance, expected[-1].covariance)


def test_a_dear_piece_is_made_up_for():
    """The fifth sample's correction takes 10 ms of 2.5: the next ones have time for four pieces."""
    costs = np.full(400, 5e-4)
    costs[9 + 5] = 1e-2  # each step asks once before its pieces
    loop = Estimator(kept(), FIRST, deadline=2.5e-3, clock=counting(costs.tolist()))
    left = []
    for t, z in zip(TIMES.tolist(), VALUES, strict=True):
        loop.step(t, {"height": z})
        left.append(loop.behind)
    assert max(left) <= 2
    assert left[-1] == 0


@pytest.mark.parametrize(("time", "events"), [(1.2, 2), (1.9, 3)])
def test_events_for_which_it_is_too_late_are_not_followed(time, events):
    """Without time one bounce is passed, by linearised steps; the rest is in the covariance."""
    loop = Estimator(kept(), FIRST, deadline=0.5, clock=counting(), finish=False)
    whole = Estimator(kept(), FIRST)
    found, exact = loop.step(time, {}), whole.step(time, {})
    assert (len(loop.state.events), len(whole.state.events)) == (1, events)
    assert "the mode was kept: no time is left" in loop.state.notes
    assert (loop.behind, found.time) == (0, time)
    assert (np.abs(found.mean - exact.mean) < np.sqrt(np.diag(found.covariance))).all()


def test_hurried_or_not_samples_with_one_event_are_the_same_and_none_is_left():
    """50 samples a second, between which the ball hits once at most; with time, and without."""
    expected = estimates(Estimator(kept(), FIRST))
    for deadline, tolerance in ((np.inf, 0.0), (0.5, 3.0)):
        loop = Estimator(kept(), FIRST, deadline=deadline, clock=counting(), finish=False)
        for found, whole in zip(estimates(loop), expected, strict=True):
            assert found.time == whole.time
            spread = tolerance * np.sqrt(np.diag(found.covariance))
            assert (np.abs(found.mean - whole.mean) <= spread).all()
        assert loop.behind == 0
    with pytest.raises(InputError, match="finish must be True or False"):
        Estimator(kept(), FIRST, finish=0)


def test_an_estimate_behind_goes_on_in_its_mode():
    """By one step of Euler's: x + h f(x)."""
    loop = Estimator(kept(), FIRST, deadline=1e-9, clock=counting())
    h = 0.02
    for k in range(3):
        found = loop.step(h * (k + 1), {"height": 1.0})
    done = loop.state.estimate
    assert loop.behind == 3
    ahead = 3 * h - done.time
    expected = done.mean + ahead * np.array([done.mean[1], -GRAVITY])
    np.testing.assert_allclose(found.mean, expected, rtol=1e-14)


def test_steps_that_make_no_sense_are_refused():
    loop = Estimator(kept(), FIRST)
    loop.step(0.1, {})
    with pytest.raises(InputError, match=r"t must not be before the last sample, 0\.1 s, got 0\.0"):
        loop.step(0.0, {})
    with pytest.raises(InputError, match="channel 'other' is unknown"):
        loop.step(0.2, {"other": 1.0})
    with pytest.raises(InputError, match="deadline must be greater than 0"):
        Estimator(kept(), FIRST, deadline=0.0)
