"""Several orders of events beside each other, and filters that are used value by value."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from estimation.systems import bouncing_ball
from hybridctl.robots import block
from scipy.stats import multivariate_normal, norm

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.app.models import find_model
from hybridctl.base.errors import InputError
from hybridctl.estimation import hypothesis_correction, mode_consistency
from hybridctl.estimation.deadline import Deadline
from hybridctl.estimation.estimate import Estimate, SlowImpact
from hybridctl.estimation.initial_estimate import build_kalman_filter, first_estimate
from hybridctl.estimation.kalman_equations import (
    StatePrediction,
    extend_in_one_step,
    predict_along_arc,
)
from hybridctl.estimation.measurement import (
    ImplicitMeasurement,
    LinearizedResidual,
    coordinates,
    linear,
)
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.prediction import predict
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.estimation.synthetic import simulate_record
from hybridctl.hybrid.laws import HeldInput
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


@pytest.mark.parametrize("seeds", [4, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.long])])
def test_an_impact_that_the_prediction_has_not_reached_is_recognised_at_once(seeds):
    """By velocities just after it, whose dimension is 3; alone, the mean's order is far off."""
    found = [after_impact(seed, 8) for seed in range(seeds)]
    assert np.mean([nis for nis, _ in found]) < 2.0 * 3
    assert np.mean([same for _, same in found]) > 0.6
    assert after_impact(0, 1)[0] > 100.0


def approaching_block(process_noise):
    """Model of a block with noise, a law, its estimate 1 ms before a touch, and guard."""
    none = coordinates("velocity", [3, 4, 5], np.eye(3))
    options = FilterOptions(rtol=1e-10, atol=1e-10)
    kf = SaltedKalmanFilter(block.system(), process_noise, none, options=options)
    touch = hc.simulate(kf.model.system, OPEN, START, (0.0, 0.3)).events[0]
    start = Estimate(OPEN, 0.0, START, 1e-6 * np.eye(6))
    before = kf.predict(start, touch.time - 1e-3).estimate
    return kf.model, kf.model.law(OPEN, None), before, touch.guards[0]


def test_a_guard_is_reached_early_by_a_step_as_by_a_simulation(monkeypatch):
    """Within the tolerance of the flow, 1e-10, times what the impact makes of it."""
    model, law, e, guard = approaching_block(np.eye(6))
    now, called = StatePrediction(e, transition=np.eye(6)), []
    monkeypatch.setattr(NoisySystem, "simulate", lambda *args, **options: called.append(1))
    found = mode_consistency.pass_guard_early(model, now, guard, law)
    assert not called
    monkeypatch.undo()
    monkeypatch.setattr(mode_consistency, "_reach_guard_in_one_step", lambda *args: None)
    right = mode_consistency.pass_guard_early(model, now, guard, law)
    assert found.estimate.mode == right.estimate.mode
    assert [event.guards for event in found.events] == [(guard,)]
    np.testing.assert_allclose(found.events[0].time, right.events[0].time, atol=1e-8)
    np.testing.assert_allclose(found.estimate.mean, right.estimate.mean, atol=1e-7)
    np.testing.assert_allclose(found.transition, right.transition, atol=1e-5)


def test_a_guard_beyond_reach_is_not_passed_early():
    """It rises, or it is met later than `rewind`, by steps as by a simulation."""
    model, law, e, _ = approaching_block(np.eye(6))
    start = StatePrediction(replace(e, mean=START), transition=np.eye(6))
    rising = StatePrediction(replace(e, mean=e.mean * [1, 1, 1, 1, -1, 1]), transition=np.eye(6))
    for guard in model.system.mode(OPEN).guard_names:
        assert mode_consistency.pass_guard_early(model, start, guard, law) is None
        assert mode_consistency.pass_guard_early(model, rising, guard, law) is None


@pytest.mark.parametrize("density", [0.0, 0.1])
@pytest.mark.parametrize("length", [3e-3, -3e-3])
def test_one_step_past_guards_is_the_arc_past_them(density, length):
    """3 ms on, past the touch, or 3 ms back: state, map and covariance of both.

    So are impacts that go on; of those the one that ends within 3 ms is over.
    """
    model, law, e, _ = approaching_block(density * np.eye(6))
    soon, late = (SlowImpact(e.time - 1e-3, e.time + s, np.ones(6)) for s in (1e-3, 9e-3))
    e = replace(e, impacts=(soon, late))
    if length < 0.0:  # the noise of the way back is part of the estimate already
        model = model.without_process_noise
    found = extend_in_one_step(model, e, e.time + length, law)
    mode = model.system.mode(OPEN)
    if length > 0.0:
        arc = model.flow_past_guards(OPEN, e.mean, e.time, e.time + length, law)
    else:
        mode, arc = model.flow_backwards(OPEN, e.mean, e.time, -length, law)
    right, matrix = predict_along_arc(model, mode, arc, e, e.time + length)
    assert found.estimate.time == right.time
    assert found.estimate.impacts == ((late,) if length > 0.0 else (soon, late))
    np.testing.assert_allclose(found.estimate.mean, right.mean, atol=1e-9)
    np.testing.assert_allclose(found.transition, matrix, atol=1e-9)
    np.testing.assert_allclose(found.estimate.covariance, right.covariance, atol=1e-9)


def test_hypotheses_that_are_not_kept_are_not_corrected(monkeypatch):
    """After each value all that were corrected are kept, or have agreed with one that is."""
    source, corrected, end = find_model("block"), [], hypothesis_correction._end_correction
    coarse = ["duration=0.6", "rate=25", "position_noise=4e-3", "angle_noise=1e-2"]
    chosen = source.configure(None, [*coarse, "hypotheses=2"])
    model = source.make(chosen)
    record, _ = simulate_record(model, chosen)
    start, rest = first_estimate(model, chosen, record)
    counted = lambda *args: corrected.append(args) or end(*args)  # noqa: E731
    monkeypatch.setattr(hypothesis_correction, "_end_correction", counted)
    numbers, kept = [], []

    def watch(state):
        numbers.append(len(corrected) - sum(numbers))
        kept.append(sum(1 + len(h.merged) for h in state.hypotheses))

    build_kalman_filter(model, chosen).run(rest, start, watch=watch)
    assert numbers == kept
    assert max(numbers) > 1


def test_a_value_past_a_guard_leaves_open_whether_the_event_has_happened():
    """Two deviations before the ground; the value takes the mean half a deviation below it.

    By Bayes' rule the height after the value is normal. The part of it above the ground is that in
    which the ball still falls; its other part has bounced.
    """
    deviation, noise, ball = 1e-3, 1e-3, bouncing_ball()
    height = linear("camera", np.eye(1, 2), [[noise**2]], gate=None)
    kf = SaltedKalmanFilter(ball, np.zeros((2, 2)), height, hypotheses="auto")
    prior = Estimate("air", 0.0, np.array([2.0 * deviation, -1.0]), np.diag([deviation, 0.1]) ** 2)
    left = deviation / np.sqrt(2.0)  # m: camera and prior know the height equally well
    seen = -0.5 * left
    state = kf.update(kf.start(prior), "camera", np.array([2.0 * seen - prior.mean[0]]))
    bounced, falls = state.hypotheses
    assert falls.pending == bounced.events[0].guards
    assert not falls.events
    assert falls.estimate.mean[0] == pytest.approx(seen, rel=1e-9)
    assert bounced.estimate.mean[1] > 0.0 > falls.estimate.mean[1]
    weights = np.exp([bounced.weight, falls.weight])
    np.testing.assert_allclose(weights, norm.cdf([0.5, -0.5]), rtol=1e-9)
    assert state.innovation.log_likelihood == pytest.approx(
        norm.logpdf(2.0 * (seen - prior.mean[0]), scale=np.hypot(deviation, noise)), rel=1e-9
    )


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


RATES = np.array([-1.0, -3.0])  # m/s
TIMES = np.array([0.1, 0.104])  # s, of the mean at the lines a and b
SPREAD = np.array([[9e-6, 3e-6], [3e-6, 1e-5]])


def two_lines():
    """Return a flow x' = (-1, -3) m/s to two lines; the mode has the names of those it has met."""
    x = ca.SX.sym("x", 2)
    modes = [
        symbolic.SymbolicMode(key, state=x, field=RATES.tolist()) for key in ("", "a", "b", "ab")
    ]
    ways = [("", "a", "a"), ("", "b", "b"), ("a", "b", "ab"), ("b", "a", "ab")]
    return symbolic.hybrid_system(
        modes,
        [symbolic.SymbolicTransition(k, name, x["ab".index(name)], to) for k, name, to in ways],
    )


def meet_two_lines(hypotheses, measurement=None, noise=None):
    """Return the filter of two lines, and its state after both; they are met 4 ms apart."""
    measured = linear("x", np.eye(2), np.eye(2)) if measurement is None else measurement
    kf = SaltedKalmanFilter(
        two_lines(), np.zeros((2, 2)), measured, None, noise, hypotheses=hypotheses
    )
    return kf, kf.predict(Estimate("", 0.0, -RATES * TIMES, SPREAD), 0.2)


@pytest.mark.parametrize("noise", [None, {"a": 4e-6, "b": 9e-6}])
def test_another_order_is_as_probable_as_the_times_say(noise):
    """A flow to two lines, first met 4 ms apart: the difference of the times is
    normal, of variance sum (P_ii + sigma_i^2) / rate_i^2 less the covariance of both."""
    _, state = meet_two_lines(4, noise=noise)
    spread = SPREAD + (np.zeros((2, 2)) if noise is None else np.diag([noise["a"], noise["b"]]))
    row = np.array([1.0, -1.0]) / RATES
    chance = norm.cdf(-0.004 / np.sqrt(row @ spread @ row))
    orders = {tuple(g for e in h.events for g in e.guards): h.weight for h in state.hypotheses}
    assert np.exp(orders["b", "a"]) == pytest.approx(chance, rel=1e-6)


def test_alone_a_note_says_that_another_guard_may_have_fired_first():
    """No sample is near; the order b, a has 8 % and is not followed."""
    _, state = meet_two_lines(1)
    (note,) = state.hypotheses[0].notes
    assert note.startswith("'b' may have fired before ('a',) at 0.1 s with a probability of 0.08")
    assert meet_two_lines(4)[1].hypotheses[0].notes == ()


def test_predictions_one_after_the_other_are_the_prediction_of_both():
    kf, _ = meet_two_lines(1)
    start, law = Estimate("", 0.0, -RATES * TIMES, SPREAD), HeldInput(np.zeros(0))
    first = predict(kf.model, start, 0.102, law)
    both = first.append(predict(kf.model, first.estimate, 0.2, law))
    whole = predict(kf.model, start, 0.2, law)
    assert [event.guards for _, event in both.pair_events()] == [("a",), ("b",)]
    for (one, _), (other, _) in zip(both.pair_events(), whole.pair_events(), strict=True):
        assert [event.guards for event in one.events] == [event.guards for event in other.events]
        assert one.pre_event == ()
        np.testing.assert_allclose(one.transition, other.transition, atol=1e-12)
        np.testing.assert_allclose(one.estimate.mean, other.estimate.mean, atol=1e-12)
    frozen = first._replace(mode_frozen=True)
    assert frozen.append(first).mode_frozen
    assert first.append(frozen).mode_frozen
    assert not both.mode_frozen


def silent_in(key, gate=None):
    """Return an implicit measurement of x that says nothing in one mode."""

    def compare(mode, t, x, u, z):
        if mode.key == key:
            return None
        return LinearizedResidual(z - x, np.eye(2), 1e-4 * np.eye(2))

    return ImplicitMeasurement("x", compare, gate)


def weights_by_mode(state):
    return {h.estimate.mode: np.exp(h.weight) for h in state.hypotheses}


def test_a_value_that_says_nothing_in_a_mode_leaves_the_probability_of_its_hypothesis():
    """Whatever unit the density of the value has under the others, which share the rest."""
    start = Estimate("a", 0.1, np.array([0.1, 0.1]), SPREAD)
    other = replace(start, mode="b")
    kf = SaltedKalmanFilter(two_lines(), np.zeros((2, 2)), silent_in("b"), hypotheses=3)
    state = kf.start(start)
    state = state._replace(
        hypotheses=(
            state.hypotheses[0]._replace(log_weight=np.log(0.7)),
            state.hypotheses[0]._replace(estimate=other, log_weight=np.log(0.3)),
        )
    )
    after = kf.update(state, "x", np.array([0.6, 0.1]))
    weights = weights_by_mode(after)
    assert weights["b"] == pytest.approx(0.3, rel=1e-12)
    assert weights["a"] == pytest.approx(0.7, rel=1e-12)
    np.testing.assert_array_equal(after.hypotheses[1].estimate.mean, other.mean)
    assert after.hypotheses[1].innovation is None
    s = SPREAD + 1e-4 * np.eye(2)
    alone = multivariate_normal(np.zeros(2), s).logpdf(np.array([0.5, 0.0]))
    assert after.innovation.log_likelihood == pytest.approx(alone, rel=1e-9)


def test_auto_follows_several_orders_only_where_these_have_weight():
    """A block that lands on its corners, seen coarsely: several orders at an impact, then one."""
    source, numbers, likelihoods = find_model("block"), {}, {}
    coarse = ["duration=0.6", "rate=25", "position_noise=4e-3", "angle_noise=1e-2"]
    for limit in (1, 4, "auto"):
        for seed in range(2):
            chosen = source.configure(None, [*coarse, f"seed={seed}"])
            model = source.make(chosen)
            record, _ = simulate_record(model, chosen)
            start, rest = first_estimate(model, chosen, record)
            result = build_kalman_filter(model, replace(chosen, hypotheses=limit)).run(rest, start)
            counts = [len(step.hypotheses) for step in result.steps]
            numbers.setdefault(limit, []).extend(counts)
            likelihoods[limit] = likelihoods.get(limit, 0.0) + result.log_likelihood
            assert counts[0] == counts[-1] == 1
    assert max(numbers[1]) == 1 < max(numbers["auto"]) <= 4
    assert sum(numbers["auto"]) < sum(numbers[4])
    assert abs(likelihoods["auto"] - likelihoods[4]) < 1.0


def test_a_deadline_cuts_the_less_likely_hypotheses_and_says_so():
    source = find_model("block")
    coarse = ["duration=0.6", "rate=25", "position_noise=4e-3", "angle_noise=1e-2"]
    chosen = source.configure(None, [*coarse, "hypotheses=4"])
    model = source.make(chosen)
    record, _ = simulate_record(model, chosen)
    start, rest = first_estimate(model, chosen, record)
    kf = build_kalman_filter(model, chosen)
    over = Deadline()
    over.limit = -np.inf
    late = kf.limit_time(over)
    steps = kf.run(rest, start).steps
    several = next(step for step in steps if len(step.hypotheses) > 1)
    n = len(several.hypotheses)
    after = late.predict(several, several.time + 0.01)
    assert len(after.hypotheses) == 1
    assert any(f"{n - 1} of {n} hypotheses were dropped" in note for note in after.notes)
    assert late.run(rest, start).cut > kf.run(rest, start).cut == 0


def test_a_number_of_hypotheses_is_checked():
    height = linear("height", [[1.0, 0.0]], [[1.0]])
    for wrong in ("most", 0, 1.5):
        with pytest.raises(InputError, match="hypotheses"):
            SaltedKalmanFilter(block.system(), np.zeros((6, 6)), height, hypotheses=wrong)
