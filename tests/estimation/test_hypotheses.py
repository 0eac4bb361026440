"""Several orders of events beside each other, and filters that are used value by value."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import block
from scipy.stats import norm

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.app.models import find_model
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.initial_estimate import build_kalman_filter, first_estimate
from hybridctl.estimation.measurement import coordinates, linear
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.estimation.synthetic import simulate_record
from hybridctl.sampling.unscented import UnscentedFilter

OPEN = ("open", "open")
START = np.array([0.0, 0.3, 0.02, 0.3, 0.0, 0.0])  # m, m, rad and their rates: lands on a corner


@pytest.mark.parametrize("kind", [SaltedKalmanFilter, UnscentedFilter])
def test_value_by_value_it_is_the_run_to_the_last_bit(kind):
    source = find_model("block")
    chosen = source.configure(None, ["duration=0.35", "rate=50", "hypotheses=3"])
    model = source.make(chosen)
    record, _ = simulate_record(model, chosen)
    start, rest = first_estimate(model, chosen, record)
    kf = build_kalman_filter(model, chosen, kind=kind)
    states, state = kf.run(rest, start).steps, kf.start(start)
    assert any(step.events for step in states)
    for sample, right in zip(rest.samples(), states, strict=True):
        state = kf.predict(state, sample.time)
        state = kf.update(state, sample.channel, sample.value)
        assert len(state.hypotheses) == len(right.hypotheses)
        for a, b in zip(state.hypotheses, right.hypotheses, strict=True):
            assert (a.estimate.mode, a.weight) == (b.estimate.mode, b.weight)
            np.testing.assert_array_equal(a.estimate.mean, b.estimate.mean)
            np.testing.assert_array_equal(a.estimate.covariance, b.estimate.covariance)


def after_impact(seed, hypotheses):
    """NIS of a velocity of the block, measured 1 ms before its impact is expected, or later.

    The block starts a little lower than believed, so that it has hit by then: a deviation of at
    least 1.5 ms of fall, drawn from those that the estimate allows.
    """
    rng = np.random.default_rng(seed)
    system, spread = block.system(), np.array([1e-3, 2e-3, 1e-3, 1e-2, 1e-2, 1e-2])
    expected = hc.simulate(system, OPEN, START, (0.0, 0.3)).events[0]
    time = expected.time - 1e-3
    while True:
        x = START + spread * rng.normal(size=6)
        truth = hc.simulate(system, OPEN, x, (0.0, time))
        if truth.events and truth.events[0].time < time - 5e-4:
            break
    noise = np.diag([1e-2, 1e-2, 3e-2]) ** 2
    velocity = coordinates("velocity", [3, 4, 5], noise, gate=None)
    kf = SaltedKalmanFilter(system, np.zeros((6, 6)), velocity, hypotheses=hypotheses)
    start = Estimate(OPEN, 0.0, START, np.diag(spread**2))
    value = truth.final_state[3:] + rng.multivariate_normal(np.zeros(3), noise)
    state = kf.update(kf.predict(start, time), "velocity", value)
    return state.innovation.nis, state.estimate.mode == truth.final_mode


@pytest.mark.parametrize("seeds", [3, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.long])])
def test_an_impact_that_the_prediction_has_not_reached_is_recognised_at_once(seeds):
    """By velocities just after it, whose dimension is 3; alone, the mean's order is far off."""
    found = [after_impact(seed, 8) for seed in range(seeds)]
    assert np.mean([nis for nis, _ in found]) < 2.0 * 3
    assert np.mean([same for _, same in found]) > 0.6
    assert after_impact(0, 1)[0] > 100.0


def test_kicks_and_noise_of_sensors_are_drawn_apart():
    """Other sensors see the same motion; other kicks are seen with the same noise."""
    source = find_model("ball")
    chosen = source.configure(None, ["duration=0.3", "rate=50", "force_noise=0.01"])
    model = source.make(chosen)

    def drawn(**changes):
        settings = replace(chosen, **changes)
        record, truth = simulate_record(source.make(settings), settings)
        noise = record.channels["position"].values - truth.states[:, :2]
        return truth.states, noise

    assert model.process_noise.value.any()
    states, noise = drawn()
    same, missing = drawn(missing=0.5)
    np.testing.assert_array_equal(same, states)
    assert np.isnan(missing).any()
    other, unchanged = drawn(force_noise=0.05)
    assert np.abs(other - states).max() > 1e-4
    np.testing.assert_allclose(unchanged, noise, atol=1e-15)


@pytest.mark.parametrize("noise", [None, {"a": 4e-6, "b": 9e-6}])
def test_another_order_is_as_probable_as_the_times_say(noise):
    """A flow x' = (-1, -3) to two lines, first met 4 ms apart: the difference of the times is
    normal, of variance sum (P_ii + sigma_i^2) / rate_i^2 less the covariance of both."""
    x = ca.SX.sym("x", 2)
    keys = ["", "a", "b", "ab"]
    modes = [symbolic.SymbolicMode(key, state=x, field=[-1.0, -3.0]) for key in keys]
    ways = [("", "a", "a"), ("", "b", "b"), ("a", "b", "ab"), ("b", "a", "ab")]
    system = symbolic.hybrid_system(
        modes,
        [symbolic.SymbolicTransition(k, name, x["ab".index(name)], to) for k, name, to in ways],
    )
    rates, p = np.array([-1.0, -3.0]), np.array([[9e-6, 3e-6], [3e-6, 1e-5]])
    times = np.array([0.1, 0.104])
    kf = SaltedKalmanFilter(
        system, np.zeros((2, 2)), linear("x", np.eye(2), np.eye(2)), None, noise, hypotheses=4
    )
    state = kf.predict(Estimate("", 0.0, -rates * times, p), 0.2)
    spread = p + (np.zeros((2, 2)) if noise is None else np.diag([noise["a"], noise["b"]]))
    row = np.array([1.0, -1.0]) / rates
    chance = norm.cdf(-0.004 / np.sqrt(row @ spread @ row))
    orders = {tuple(g for e in h.events for g in e.guards): h.weight for h in state.hypotheses}
    assert np.exp(orders["b", "a"]) == pytest.approx(chance, rel=1e-6)
