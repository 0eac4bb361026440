"""A deadline bounds the work of a sample, by a clock that counts work and not seconds."""

import sys
from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest
from estimation.systems import bounced, bouncing_ball, height
from hybridctl.experiments.filter_models import block_model

from hybridctl.app.models import find_model
from hybridctl.estimation.cut_prediction import cut_short, find_fall
from hybridctl.estimation.deadline import Deadline, DeadlineError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.initial_estimate import build_kalman_filter, first_estimate
from hybridctl.estimation.kalman_equations import StatePrediction
from hybridctl.estimation.mode_consistency import reconcile
from hybridctl.estimation.online import Estimator
from hybridctl.estimation.prediction import predict
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.estimation.synthetic import simulate_record

GRAVITY = 9.81


class WorkClock:
    """Counts the calls of functions: a clock that no other process delays."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        return float(self.count)

    def __enter__(self):
        self._before = sys.getprofile()
        sys.setprofile(self._tick)
        return self

    def __exit__(self, *error):
        sys.setprofile(self._before)

    def _tick(self, frame, event, argument):
        self.count += event in ("call", "c_call")


def step_through(hypotheses, deadline, seeds=3):
    """Work of each sample of synthetic logs of a block, and the results, with a deadline."""
    source, work, cut, misses = find_model("block"), [], 0, []
    for seed in range(seeds):
        chosen = source.configure(None, ["duration=0.6", "rate=100", f"seed={seed}"])
        model = block_model(chosen)
        record, _ = simulate_record(model, chosen)
        start, rest = first_estimate(model, chosen, record)
        kf = build_kalman_filter(model, replace(chosen, hypotheses=hypotheses))
        modes = {step.estimate.mode for step in kf.run(rest, start).steps}
        if seed == 0:
            clock = WorkClock()
            loop = Estimator(kf, start, deadline=deadline, clock=clock, finish=False)
        else:
            loop.reset(start)
        loop.prepare(modes)
        for sample in rest.samples():
            with clock:
                begun = clock()
                loop.step(sample.time, {sample.channel: sample.value})
                work.append(clock() - begun)
            cut += any("no time is left" in note for note in loop.state.notes)
            misses.append(not loop.state.innovation.accepted)
    return np.array(work), cut, np.array(misses)


@pytest.mark.parametrize(("hypotheses", "deadline"), [(1, 2800.0), (4, 4000.0)])
def test_the_work_of_each_sample_is_within_one_and_a_half_deadlines(hypotheses, deadline):
    """In calls: a sample without an event has some 300. No value is rejected for what is cut."""
    free, uncut, _ = step_through(hypotheses, inf)
    work, cut, misses = step_through(hypotheses, deadline)
    assert uncut == 0 < cut
    assert work.max() <= 1.5 * deadline < 1.6 * deadline < free.max()
    assert misses.sum() <= 1


@pytest.mark.parametrize("noise", [{}, {"reset_noise": 1e-4 * np.eye(2), "guard_noise": 1e-6}])
def test_a_prediction_without_time_is_exact_where_the_flow_is_linear(noise):
    """A ball that falls and bounces once: the parabola of its guard is that of its height."""
    kf = SaltedKalmanFilter(bouncing_ball(), np.zeros((2, 2)), height(), **noise)
    law = kf.model.law("air", None)
    begun = Estimate("air", 0.0, np.array([1.0, 0.3]), np.diag([1e-3, 1e-3]) ** 2)
    now = StatePrediction(begun, (), np.eye(2))
    for end in (0.3, 0.8):  # before the bounce, and after it
        found, whole = cut_short(kf.model, now, end, law), predict(kf.model, begun, end, law)
        exact = bounced(begun.mean[None], end)[0]
        np.testing.assert_allclose(found.estimate.mean, exact, rtol=0.0, atol=1e-12)
        assert found.mode_frozen
        assert found.notes == ("the mode was kept: no time is left",)
        # The derivative of the event time is damped by the variance of the guard's rate, 1e-6, over
        # its square, 21.
        expected = whole.estimate.covariance
        np.testing.assert_allclose(found.estimate.covariance, expected, rtol=1e-6, atol=1e-14)
        np.testing.assert_allclose(found.transition, whole.transition, rtol=1e-6, atol=1e-9)


def test_a_guard_falls_where_its_parabola_does():
    h = 2.0  # m
    assert find_fall(h, 0.0, -0.5 * GRAVITY) == pytest.approx(sqrt(2.0 * h / GRAVITY), rel=1e-15)
    assert find_fall(h, -1.0, 0.0) == 2.0  # at a constant rate
    assert find_fall(h, 1.0, 0.0) == inf
    assert find_fall(h, -1.0, 1.0) == inf  # it turns before zero
    assert find_fall(0.0, -1.0, 0.0) == 0.0  # it falls from zero
    assert find_fall(0.0, 1.0, -1.0) == 1.0  # it rises from zero, and comes back
    assert find_fall(-1e-12, 1.0, 0.0) == inf  # it rises into its mode


class HandClock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self):
        return self.now


def test_a_prepared_deadline_expects_what_a_prediction_without_time_takes():
    """Else the first event of a run is followed whatever it takes."""
    kf, clock = SaltedKalmanFilter(bouncing_ball(), np.zeros((2, 2)), height()), WorkClock()
    begun = Estimate("air", 0.0, np.array([1.0, 0.3]), np.eye(2))
    loop = Estimator(kf, begun, deadline=10.0, clock=clock, finish=False)
    deadline = loop.filter.model.deadline
    deadline.limit = 10.0
    assert deadline.has_time_for("linear step", "linear event"), "nothing was measured"
    with clock:
        loop.prepare(["air"])
    deadline.limit = clock() + 10.0
    assert not deadline.has_time_for("linear step", "linear event")
    assert not deadline.has_time_for("simulation")


def measure(deadline, piece, duration):
    with deadline.measure(piece):
        deadline.clock.now += duration


def break_off(deadline, piece, duration):
    with deadline.measure(piece):
        deadline.clock.now += duration
        raise DeadlineError


def test_work_begins_if_there_is_time_for_as_long_as_it_usually_takes():
    deadline = Deadline(HandClock())
    deadline.limit = 10.0
    assert deadline.has_time_for("event", "simulation"), "nothing was measured"
    for _ in range(50):
        measure(deadline, "event", 1.0)
    deadline.clock.now = 8.9
    assert deadline.has_time_for("event")
    deadline.clock.now = 9.5
    assert not deadline.has_time_for("event")
    assert not deadline.is_exceeded()
    deadline.clock.now = 8.1
    assert not deadline.has_time_for("event", "simulation"), "it takes as long as an event"
    assert not deadline.has_time_for("event", beside=1.5)
    deadline.clock.now = 10.1
    assert deadline.is_exceeded()


def test_work_that_was_broken_off_is_not_taken_for_short():
    deadline = Deadline(HandClock())
    for _ in range(50):
        measure(deadline, "simulation", 1.0)
    for _ in range(50):
        with pytest.raises(DeadlineError):
            break_off(deadline, "simulation", 0.1)
    deadline.limit = deadline.clock.now + 0.9
    assert not deadline.has_time_for("simulation")


def test_one_slow_case_does_not_rule_a_piece_out():
    """A tenth of what the first visit of a mode takes enters the mean, four times it at most."""
    deadline = Deadline(HandClock())
    for _ in range(50):
        measure(deadline, "event", 1.0)
    measure(deadline, "event", 100.0)
    deadline.limit = deadline.clock.now + 2.5  # 1.3, and two deviations of 0.3
    assert deadline.has_time_for("event")
    deadline = Deadline(HandClock())
    measure(deadline, "event", 100.0)  # the first of all
    deadline.limit = deadline.clock.now + 2.0
    assert not deadline.has_time_for("event")
    refusals = 1
    while not deadline.has_time_for("event"):
        refusals += 1
    assert refusals < 500  # 0.99 ** 500 < 2.0 / 195


def test_a_guard_without_variance_waits_for_the_next_value_once_there_is_no_time():
    """It is looked at once: rounds that change nothing would take the time that is not there."""
    clock = HandClock()
    deadline, looked = Deadline(clock), []
    deadline.limit = -1.0
    model = SaltedKalmanFilter(bouncing_ball(), np.zeros((2, 2)), height()).model
    model = replace(model, deadline=deadline)
    law = model.law("air", None)

    def counting(t, x):
        looked.append(t)
        return law(t, x)

    below = Estimate("air", 0.0, np.array([-0.1, -1.0]), np.zeros((2, 2)))
    found = reconcile(model, below, counting)
    assert not found.events
    np.testing.assert_array_equal(found.estimate.mean, below.mean)
    assert "a guard without variance was not fired: no time is left" in found.notes
    assert len(looked) == 1
    clock.now = -2.0
    assert reconcile(model, below, law).events, "with time it fires"


def test_without_time_one_guard_of_several_is_truncated_at_and_a_note_says_so():
    """A block with both corners 5 mm below the ground and falling: with time they hit it."""
    clock = HandClock()
    deadline = Deadline(clock)
    deadline.limit = -1.0
    patient = block_model(find_model("block").configure(None, []))
    model = build_kalman_filter(patient, find_model("block").configure(None, [])).model
    model, key = replace(model, deadline=deadline), ("open", "open")
    mode, law = model.system.mode(key), model.law(key, None)
    lowest = mode.guards(0.0, np.zeros(6), np.zeros(mode.nu)).min()
    x = np.array([0.0, -5e-3 - lowest, 0.0, 0.0, -1.0, 0.0])  # m, m, rad and their rates
    below = Estimate(key, 0.0, x, np.diag([1e-6, 1e-4, 1.0, 1e-4, 1e-4, 1e-4]))
    found = reconcile(model, below, law)
    assert not found.events
    assert "a guard was not truncated at: no time is left" in found.notes
    guards = model.evaluate_at(found.estimate, law).guards
    assert (guards > -1e-3).sum() == 1, "the other one is left where it is"
    clock.now = -2.0
    after = reconcile(model, below, law)
    assert after.events
    assert not any("no time is left" in note for note in after.notes)


def test_functions_of_modes_are_made_before_they_are_visited():
    source = find_model("block")
    chosen = source.configure(None, ["duration=0.3", "rate=100"])
    model = block_model(chosen)
    record, _ = simulate_record(model, chosen)
    start, _ = first_estimate(model, chosen, record)
    loop = Estimator(build_kalman_filter(model, chosen), start)
    mode = ("slip+", "open")
    made = loop.filter.model.system.mode(mode)
    state, before = loop.state, dict(vars(made))
    loop.prepare([mode])
    assert loop.state is state
    assert vars(made).keys() - before.keys(), "functions are kept where they are made"
