"""Predictions where the simulation cannot go on: the mode is kept, or the state held."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from estimation.piecewise import affine_guard, affine_mode, affine_reset, staircase
from scipy.linalg import expm
from scipy.stats import truncnorm

import hybridctl as hc
from hybridctl.base.errors import NoContactSolutionError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import linear
from hybridctl.estimation.mode_consistency import reconcile
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.prediction import predict
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.hybrid.laws import make_zero_input
from hybridctl.hybrid.mode import FieldJacobian, Held, Reset, Transition
from hybridctl.sampling.unscented import UnscentedFilter

A, C = np.array([[0.0, 0.0], [1.5, -0.4]]), np.array([1.0, 0.3])
P0 = np.array([[4e-4, 1e-4], [1e-4, 9e-4]])
Q = np.diag([1e-4, 4e-4])
BOTH = linear("z", np.eye(2), 1e-4 * np.eye(2), gate=None)


def kept(state):
    """Whether a prediction has kept a mode past its guards."""
    return any("the mode was kept" in note for note in state.notes)


def flowed(x, p, h, a=A, c=C):
    """Mean and covariance of an affine flow with noise Q after h, by matrix exponentials."""
    noisy = expm(h * np.block([[-a, Q], [np.zeros((2, 2)), a.T]]))
    shift = expm(h * np.block([[a, c[:, None]], [np.zeros((1, 3))]]))
    phi = noisy[2:, 2:].T
    return phi @ x + shift[:2, 2], phi @ p @ phi.T + phi @ noisy[:2, 2:], phi


def no_way_on(t, x, u):
    raise NoContactSolutionError("no way on")


def test_the_mode_is_kept_past_a_guard_behind_which_there_is_nothing():
    """Up to it: after one event the mean is held at the second, which it reaches at 0.6 s of 1 s.

    The covariance flows on, and gains the way from there to where the mean would have flowed, in
    each of the last two quarters.
    """
    after = np.array([1.0, -0.5])
    system = hc.HybridSystem(
        [affine_mode("a", A, C), affine_mode("b", A, after)],
        [
            Transition("a", affine_guard("first", [-1.0, 0.0], 0.2), Reset.identity(2), "b"),
            Transition("b", affine_guard("second", [-1.0, 0.0], 0.6), Reset(no_way_on), "a"),
        ],
    )
    kf = SaltedKalmanFilter(system, Q, BOTH, hypotheses=1)
    found = kf.predict(Estimate("a", 0.0, np.array([0.0, 0.2]), P0), 1.0)
    assert kept(found)
    assert found.estimate.mode == "b"
    assert [event.guards for event in found.events] == [("first",)]
    assert found.notes == ("the mode was kept: no way on",) * 2  # in both of the last quarters
    x, p, phi = flowed(np.array([0.0, 0.2]), P0, 0.2)
    g = np.eye(2) + np.outer(after - C, [1.0, 0.0])  # the guard falls with rate 1
    x, p, _ = flowed(x, g @ p @ g.T, 0.55, c=after)
    stop, _, _ = flowed(flowed(np.array([0.0, 0.2]), P0, 0.2)[0], P0, 0.4, c=after)
    p += np.outer(x - stop, x - stop)
    x, p, _ = flowed(stop, p, 0.25, c=after)
    on = expm(0.8 * A)
    assert found.estimate.mean[0] == pytest.approx(0.6, abs=1e-8)
    np.testing.assert_allclose(found.estimate.mean, stop, atol=1e-8)
    way = x - stop
    np.testing.assert_allclose(found.estimate.covariance, p + np.outer(way, way), rtol=1e-6)
    np.testing.assert_allclose(found.transition, on @ g @ phi, rtol=1e-6, atol=1e-8)


RATES = np.random.default_rng(0).normal(size=31)
STEPS = np.column_stack([np.ones(31), RATES])


@pytest.mark.parametrize("events", [30, 20])
def test_more_events_than_allowed_keep_the_mode(events):
    """All in the third quarter of the time, where 20 are allowed: of 30 one is passed in its place.

    What the flow beyond it would do in that quarter, and beyond the second in the last one, is not
    known.
    """
    places = np.linspace(0.51, 0.74, events)
    kf = SaltedKalmanFilter(staircase(places, STEPS[: events + 1]), Q, BOTH, hypotheses=1)
    few = replace(kf.model, max_events=20)
    found = predict(few, Estimate(0, 0.0, np.zeros(2), P0), 1.0, make_zero_input(0))
    assert kept(found) == (events == 30)
    if kept(found):
        assert found.estimate.mode == 2
        for note in found.notes:
            start = "the mode was kept until its event at the end: more than max_events = 20 events"
            assert note.startswith(start)
        x, p = 0.51 * STEPS[0], P0 + 0.75 * Q
        for k, way in enumerate((0.24, 0.25 - (places[1] - places[0]))):
            x = x + k * (places[1] - places[0]) * STEPS[1]
            p = p + k * 0.25 * Q + way**2 * np.outer(STEPS[k], STEPS[k])
            g = np.array([[1.0, 0.0], [RATES[k + 1] - RATES[k], 1.0]])
            p = g @ p @ g.T
        np.testing.assert_allclose(found.estimate.mean, x, atol=1e-8)
        np.testing.assert_allclose(found.estimate.covariance, p, rtol=1e-6)
    else:
        assert_staircase(found, places)


def test_events_that_are_too_many_for_the_whole_time_are_taken_in_its_halves():
    places = (np.arange(30) + 0.5) / 30.0
    kf = SaltedKalmanFilter(staircase(places, STEPS), Q, BOTH, hypotheses=1)
    few = replace(kf.model, max_events=20)
    found = predict(few, Estimate(0, 0.0, np.zeros(2), P0), 1.0, make_zero_input(0))
    assert_staircase(found, places)


def assert_staircase(found, places):
    """In closed form: shears of the covariance, and noise of unit time between them."""
    assert not kept(found)
    assert not found.notes
    assert found.estimate.mode == len(places)
    x, p = np.zeros(2), P0
    for k, h in enumerate(np.diff([0.0, *places, 1.0])):
        x, p = x + h * STEPS[k], p + h * Q
        if k < len(places):
            g = np.array([[1.0, 0.0], [RATES[k + 1] - RATES[k], 1.0]])
            p = g @ p @ g.T
    np.testing.assert_allclose(found.estimate.mean, x, atol=1e-7)
    np.testing.assert_allclose(found.estimate.covariance, p, rtol=1e-7)


def ending():
    """A flow that is not defined where the first state is above 0.6."""
    mode = affine_mode("a", A, C)

    def field(t, x, u):
        return A @ x + C if x[0] < 0.6 else np.full(2, np.nan)

    return hc.HybridSystem([hc.Mode("a", mode.space, field, jacobian=mode.jacobian)], [])


def test_the_state_is_held_where_there_is_no_flow():
    """Half of the time passes; in each of the last quarters the flow ends, and nothing moves.

    What the rates would have done in each is added to the covariance.
    """
    kf = SaltedKalmanFilter(ending(), Q, BOTH)
    found = kf.predict(Estimate("a", 0.0, np.array([0.0, 0.2]), P0), 1.0)
    assert kept(found)
    assert found.estimate.time == 1.0
    x, p, phi = flowed(np.array([0.0, 0.2]), P0, 0.5)
    np.testing.assert_allclose(found.estimate.mean, x, atol=1e-8)
    way = 0.25 * (A @ x + C)
    p = p + 2.0 * np.outer(way, way)
    np.testing.assert_allclose(found.estimate.covariance, p, rtol=1e-6)
    np.testing.assert_allclose(found.transition, phi, rtol=1e-6, atol=1e-12)
    said = [note.split(":")[0] for note in found.notes]
    assert said == ["the state was held", "the mode was kept"] * 2


def test_a_run_goes_on_after_a_prediction_that_did_not():
    kf = SaltedKalmanFilter(ending(), Q, BOTH)
    values = np.array([[0.3, 0.6], [0.4, 0.7], [0.5, 0.8]])
    record = Record({"z": Series([1.0, 1.1, 1.2], values)})
    result = kf.run(record, Estimate("a", 0.0, np.array([0.0, 0.2]), P0))
    np.testing.assert_allclose(result.steps[2].estimate.mean, values[2], atol=0.05)
    assert [t for t, _ in result.notes] == [1.0] * 4
    assert result.summary()["replaced"] == 4


@pytest.mark.parametrize("kind", [SaltedKalmanFilter, UnscentedFilter])
def test_a_mean_that_is_off_what_its_mode_holds_is_held(kind):
    """A value takes it 1 m off a line y = 0 that nothing leads back to: it is no start of a flow.

    What the rates would have done in each quarter of the time is added to the covariance.
    """
    line = Held(("y",), lambda x: x[1:], np.array([1e-6]), ("m",))
    mode = hc.Mode("on", hc.VectorSpace(2), lambda t, x, u: np.array([0.5, 0.0]), held=line)
    kf = kind(hc.HybridSystem([mode], []), np.zeros((2, 2)), BOTH)
    there = kf.update(Estimate("on", 0.0, np.zeros(2), np.eye(2)), "z", np.array([0.0, 1.0]))
    off = there.estimate.mean
    assert off[1] > 0.99
    found = kf.predict(there, 0.1)
    assert kept(found)
    assert any("y is 0.99" in note for note in found.notes)
    np.testing.assert_array_equal(found.estimate.mean, off)
    way = 0.025 * np.array([0.5, 0.0])
    expected = there.estimate.covariance + 4.0 * np.outer(way, way)
    np.testing.assert_allclose(found.estimate.covariance, expected, rtol=1e-12)


def test_an_innovation_without_a_covariance_is_an_error_by_name():
    """A covariance of 1e200 by rounding below zero along a component, which is no covariance."""
    kf = SaltedKalmanFilter(ending(), Q, BOTH)
    state = kf.update(Estimate("a", 0.0, np.array([0.0, 0.2]), P0), "z", np.array([0.0, 0.2]))
    wild = replace(state.estimate, covariance=np.array([[1e200, 2e200], [2e200, 1e200]]))
    (first,) = state.hypotheses
    with pytest.raises(SimulationError, match="innovation of 'z' at t = 0 s is not positive"):
        kf.update(state._replace(hypotheses=(first._replace(estimate=wild),)), "z", np.zeros(2))


def test_a_less_likely_hypothesis_without_a_covariance_is_given_up():
    kf = SaltedKalmanFilter(ending(), Q, BOTH, hypotheses=2)
    state = kf.update(Estimate("a", 0.0, np.array([0.0, 0.2]), P0), "z", np.array([0.0, 0.2]))
    (first,) = state.hypotheses
    wild = replace(state.estimate, covariance=np.array([[1e200, 2e200], [2e200, 1e200]]))
    other = first._replace(estimate=wild, log_weight=-1.0)
    found = kf.update(state._replace(hypotheses=(first, other)), "z", np.array([0.0, 0.2]))
    assert len(found.hypotheses) == 1
    assert found.estimate.covariance.max() < 1e-3


def test_outside_one_guard_another_one_still_fires():
    """A ball 1 mm below its floor that rises out of it, and meets the wall at x = 0.2 meanwhile.

    At 0.1 m/s it is inside after 10 ms; at 50 m/s it is at the wall after 4 ms, and bounces back.
    """
    field = affine_mode("air", np.zeros((4, 4)), [50.0, 0.1, 0.0, 0.0])
    back = affine_mode("back", np.zeros((4, 4)), [-50.0, 0.1, 0.0, 0.0])
    floor = affine_guard("floor", [0.0, 1.0, 0.0, 0.0], 0.0)
    wall = affine_guard("wall", [-1.0, 0.0, 0.0, 0.0], 0.2)
    system = hc.HybridSystem(
        [field, back],
        [
            Transition("air", floor, Reset(no_way_on), "air"),
            Transition("air", wall, Reset.identity(4), "back"),
        ],
    )
    pose = linear("z", np.eye(4), np.eye(4))
    kf = SaltedKalmanFilter(system, np.zeros((4, 4)), pose, hypotheses=1)
    p = np.diag([1e-4, 1e-6, 0.0, 0.0])
    found = kf.predict(Estimate("air", 0.0, np.array([0.0, -1e-3, 0.0, 0.0]), p), 0.02)
    assert [event.guards for event in found.events] == [("wall",)]
    assert found.estimate.mode == "back"
    assert not found.notes
    np.testing.assert_allclose(found.estimate.mean, [0.2 - 50.0 * 0.016, 1e-3, 0, 0], atol=1e-9)
    turned = np.diag([-1.0, 1.0, 1.0, 1.0])  # late by dt, behind by 50 dt before and ahead after
    np.testing.assert_allclose(found.estimate.covariance, turned @ p @ turned, atol=1e-12)


def test_a_rest_keeps_the_note_that_the_flow_past_its_guards_could_not_go_on():
    """A ball comes to rest after 0.43 s; 10 mm below the floor no field is defined."""

    def field(t, x, u):
        return np.array([x[1], -9.81]) if x[0] > -0.01 else np.full(2, np.nan)

    change = FieldJacobian(np.array([[0.0, 1.0], [0.0, 0.0]]), np.zeros((2, 0)))
    air = hc.Mode("air", hc.VectorSpace(2), field, jacobian=lambda t, x, u: change)
    back = affine_reset(np.diag([1.0, -0.5]), np.zeros(2))
    floor = affine_guard("floor", [1.0, 0.0], 0.0)
    kf = SaltedKalmanFilter(
        hc.HybridSystem([air], [Transition("air", floor, back, "air")]), Q, BOTH, hypotheses=1
    )
    fallen = Estimate("air", 0.0, np.array([0.1, 0.0]), 1e-8 * np.eye(2))
    found = predict(kf.model, fallen, 1.0, make_zero_input(0))
    held, rest = found.notes[-2:]
    assert held.startswith("the state was held: ")
    assert rest.startswith("events accumulate")
    assert not found.mode_frozen
    np.testing.assert_allclose(found.estimate.mean, np.zeros(2), atol=1e-6)


@pytest.mark.parametrize("halve", [True, False])
def test_a_mean_outside_its_mode_with_ever_new_events_ends(monkeypatch, halve):
    """Events 0.1 us apart while another guard is 1 mm away: 2e5 of them, which nobody follows.

    Of 20 simulations each passes one, and freezing the mode fires one more in each part that is
    left.
    """
    begun, simulate = [], NoisySystem.simulate

    def count_simulations(model, *args, **kwargs):
        begun.append(kwargs)
        return simulate(model, *args, **kwargs)

    monkeypatch.setattr(NoisySystem, "simulate", count_simulations)
    field = affine_mode("air", np.zeros((2, 2)), [0.05, -1.0])
    system = hc.HybridSystem(
        [field],
        [
            Transition("air", affine_guard("floor", [1.0, 0.0], 0.0), Reset(no_way_on), "air"),
            Transition(
                "air",
                affine_guard("tick", [0.0, 1.0], 0.0),
                affine_reset(np.diag([1.0, 0.0]), [0.0, 1e-7]),
                "air",
            ),
        ],
    )
    kf = SaltedKalmanFilter(system, np.zeros((2, 2)), BOTH, hypotheses=1)
    start = Estimate("air", 0.0, np.array([-1e-3, 1e-7]), np.zeros((2, 2)))
    found = predict(kf.model, start, 0.01, make_zero_input(0), halve=halve)
    assert kept(found)
    assert "stays outside mode 'air'" in found.notes[-1]
    assert found.estimate.time == 0.01
    # Flows that freeze the mode are simulated, too, but without a first step.
    assert sum("first_step" in keywords for keywords in begun) == 20
    assert len(found.events) <= 20 + (4 if halve else 1)
    assert found.estimate.mean[1] >= -1e-8
    assert -1e-3 <= found.estimate.mean[0] <= -1e-3 + 0.05 * 0.01
    assert found.estimate.covariance[0, 0] > 0.0


def rough():
    """A fall, and how it changes with the height in a way that no steps resolve; a floor at 0."""

    def jacobian(t, x, u):
        change = 1e18 * np.sin(1e25 * t)
        return FieldJacobian(np.array([[0.0, 1.0], [change, 0.0]]), np.zeros((2, 0)))

    space = hc.VectorSpace(2)
    air = hc.Mode("air", space, lambda t, x, u: np.array([x[1], -9.81]), jacobian=jacobian)
    floor = affine_guard("floor", [1.0, 0.0], 0.0)
    return hc.HybridSystem([air], [Transition("air", floor, Reset(lambda t, x, u: -x), "air")])


def test_the_mean_goes_on_where_no_steps_resolve_its_map():
    """The mode is kept in quarters of the time, in each of which the map is not known.

    The covariance gains what the rates would have done, and the way that the mean has gone.
    """
    kf, h = SaltedKalmanFilter(rough(), Q, BOTH), 0.025
    state = kf.predict(Estimate("air", 1.0, np.array([1.0, 0.0]), P0), 1.0 + 4 * h)
    past = h * np.arange(5)
    means = np.column_stack([1.0 - 0.5 * 9.81 * past**2, -9.81 * past])
    p = P0.copy()
    for before, after in pairwise(means):
        for way in (h * np.array([before[1], -9.81]), after - before):
            p += np.outer(way, way)
    np.testing.assert_allclose(state.estimate.mean, means[-1], atol=1e-8)
    np.testing.assert_allclose(state.estimate.covariance, p, rtol=1e-6)
    assert sum("change faster than steps" in note for note in state.notes) == 8
    assert kept(state)
    record = Record({"z": Series([1.05, 1.1], means[[2, 4]])})
    result = kf.run(record, Estimate("air", 1.0, np.array([1.0, 0.0]), P0))
    np.testing.assert_allclose(result.steps[-1].estimate.mean, means[-1], atol=0.05)


def test_a_mean_below_the_floor_is_cut_off_where_there_is_no_way_back():
    """Falling, its event is overdue, but no steps resolve the map to when it was."""
    kf, s = SaltedKalmanFilter(rough(), Q, BOTH), 1e-3
    low = Estimate("air", 1.0, np.array([-s, -1.0]), s**2 * np.eye(2), since=0.0)
    found = reconcile(kf.model, low, make_zero_input(0))
    left = truncnorm(1.0, np.inf, loc=-s, scale=s)  # from one deviation above the mean
    assert found.events == ()
    np.testing.assert_allclose(found.estimate.mean, [left.mean(), -1.0], rtol=1e-9)
    np.testing.assert_allclose(found.estimate.covariance, np.diag([left.var(), s**2]), rtol=1e-9)
