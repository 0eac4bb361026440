"""Hybrid LQR against closed forms, against independent equations, and against simulation."""

import casadi as ca
import numpy as np
import pytest
from hybridctl.experiments.optimal.lqr import simulated_cost
from scipy.linalg import expm, solve_continuous_are

import hybridctl as hc
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.lqr.finite_horizon import hybrid_lqr
from hybridctl.control.reference import extend
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.hybrid.policy import History

Q, R, FINAL = np.diag([3.0, 1.0]), np.array([[0.2]]), np.diag([1.0, 4.0])


def push(t):
    return np.array([0.5 * np.sin(3.0 * t)])


def extended(system, run):
    """The input goes on past the bounce, as the guard sees its rate there."""
    return extend(system, run, before=0.1, after=0.1, feedforward=[push, push])


def bouncing(reset_input=0.0, guard_input=0.0, end=0.8):
    """A pushed ball in a damped medium that bounces once; reset and guard may see the push."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    field = [x[1], -9.81 - 0.3 * x[1] + u]
    modes = [hc.symbolic.SymbolicMode(key, state=x, field=field, input=u) for key in ("air", "up")]
    reset = [x[0], -0.7 * x[1] + reset_input * u]
    hit = hc.symbolic.SymbolicTransition("air", "floor", x[0] + guard_input * u, "up", reset)
    system = hc.symbolic.hybrid_system(modes, [hit])

    run = hc.simulate(
        system, "air", [1.0, 0.0], (0.0, end), lambda t, x: push(t), rtol=1e-11, atol=1e-12
    )
    return system, run, hc.linearize(system, run, rtol=1e-11, atol=1e-12)


def test_one_arc_is_the_solution_by_the_exponential_of_the_hamiltonian():
    _, run, lin = bouncing(end=0.4)
    assert not run.events
    result = hybrid_lqr(lin, Q, R, FINAL, rtol=1e-12, atol=1e-14)
    a, b = np.array([[0.0, 1.0], [0.0, -0.3]]), np.array([[0.0], [1.0]])
    hamiltonian = np.block([[a, -b @ b.T / R[0, 0]], [-Q, -a.T]])
    for t in np.linspace(0.0, 0.4, 7):
        both = expm(hamiltonian * (t - 0.4)) @ np.vstack([np.eye(2), FINAL])
        exact = both[2:] @ np.linalg.inv(both[:2])
        np.testing.assert_allclose(result.values[0](t), exact, atol=1e-10 * np.abs(exact).max())
        # knots promise 1e-8 of the largest gain
        gain = b.T @ exact / R[0, 0]
        np.testing.assert_allclose(result.gains.arcs[0](t), gain, atol=1e-7)


def test_the_propagation_over_an_arc_of_held_inputs_leads_from_its_end_to_its_start():
    """A = (0, 1; u, -x) has the input of each sample, and none between two of them."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    mode = hc.symbolic.SymbolicMode("flow", state=x, field=[x[1], u * x[0] - x[0] * x[1]], input=u)
    system = hc.symbolic.hybrid_system([mode], [])
    policy = hc.SampledPolicy(lambda t, x: 5.0 * push(4.0 * t), 0.1)
    run = hc.simulate(system, "flow", [1.0, 0.0], (0.0, 0.5), policy, rtol=1e-10, atol=1e-10)
    assert len(run.arcs[0].pieces) == 5
    (value,) = hybrid_lqr(hc.linearize(system, run), Q, R, FINAL).values
    np.testing.assert_allclose(value.propagation.value(value.end), value.start, rtol=1e-9)


@pytest.mark.parametrize("start", [1e5, 1.7e9])
def test_a_run_that_begins_too_late_for_its_tolerance_is_named(start):
    """Times of 1e5 s are rounded by 1.5e-11 s, those of 1.7e9 s by 2.4e-7 s."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    mode = hc.symbolic.SymbolicMode("air", state=x, field=[x[1], u - 0.3 * x[1]], input=u)
    system = hc.symbolic.hybrid_system([mode], [])
    policy = lambda t, x: np.zeros(1)  # noqa: E731
    lin, at_zero = (
        hc.linearize(system, hc.simulate(system, "air", [1.0, 0.0], (t, t + 0.4), policy))
        for t in (start, 0.0)
    )
    if start > 1e6:
        with pytest.raises(InputError, match="run that begins at zero"):
            hybrid_lqr(lin, Q, R, FINAL)
        return
    found, expected = (hybrid_lqr(one, Q, R, FINAL).values[0].start for one in (lin, at_zero))
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_the_residual_vanishes_along_arcs_that_depend_on_time():
    x = ca.SX.sym("x", 2)
    u, t = ca.SX.sym("u"), ca.SX.sym("t")
    field = [x[1] + 0.1 * ca.sin(x[0]), -ca.sin(x[0]) * (2.0 + ca.cos(5.0 * t)) + u * (1.0 + x[0])]
    system = hc.symbolic.hybrid_system(
        [hc.symbolic.SymbolicMode("swing", state=x, field=field, input=u, time=t)], []
    )
    run = hc.simulate(system, "swing", [0.4, 0.0], (0.0, 2.0), rtol=1e-12, atol=1e-12)
    lin = hc.linearize(system, run)
    q, r = lambda k, t: Q * (1.0 + t), lambda k, t: R * (1.0 + 0.5 * np.sin(t))
    result = hybrid_lqr(lin, q, r, FINAL, rtol=1e-12, atol=1e-14)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    value, arc = result.values[0], run.arcs[0]
    for start, end in [(0.0, 0.3), (0.3, 1.1), (1.1, 2.0)]:
        total = np.zeros((2, 2))
        for node, weight in zip(nodes, weights, strict=True):
            time = start + 0.5 * (end - start) * (node + 1.0)
            c, v = lin.coefficients(arc, time), value(time)
            vb = v @ c.input
            spared = vb @ np.linalg.inv(r(0, time)) @ vb.T
            rate = q(0, time) + c.state.T @ v + v @ c.state - spared
            total += 0.5 * (end - start) * weight * rate
        np.testing.assert_allclose(value(start) - value(end), total, atol=1e-10)


def test_a_long_arc_begins_with_the_algebraic_solution():
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    system = hc.symbolic.hybrid_system(
        [hc.symbolic.SymbolicMode("free", state=x, field=[x[1], x[0] + u], input=u)], []
    )
    run = hc.simulate(system, "free", [0.0, 0.0], (0.0, 15.0))
    result = hybrid_lqr(hc.linearize(system, run), Q, R, np.zeros((2, 2)))
    a, b = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.0], [1.0]])
    np.testing.assert_allclose(result.values[0].start, solve_continuous_are(a, b, Q, R), rtol=1e-8)


def test_values_go_through_events_by_the_saltation_matrix():
    _, run, lin = bouncing()
    result = hybrid_lqr(lin, Q, R, FINAL)
    g = hc.saltation_matrix(lin.system, run.events[0])
    np.testing.assert_allclose(
        result.values[0].end, g.T @ result.values[1].start @ g, rtol=1e-9, atol=1e-12
    )
    for value in result.values:
        assert np.linalg.eigvalsh(value.start).min() > 0.0


CASES = {"reset": {"reset_input": 0.05}, "guard": {"guard_input": 0.02}, "neither": {}}


@pytest.mark.parametrize("name", CASES)
def test_the_value_function_is_the_simulated_cost_to_second_order(name):
    system, run, lin = bouncing(**CASES[name])
    assert len(run.events) == 1
    assert (name == "neither") == (not lin.jumps[0].input.any())
    result = hybrid_lqr(lin, Q, R, FINAL)
    reference = extended(system, run)
    policy = ReferenceSpreading(reference, result.gains)
    gaps = []
    for size in (4e-2, 2e-2, 1e-2):
        dx = size * np.array([1.0, -0.7])
        tracking = hc.simulate(
            system, "air", run(0.0) + dx, (0.0, 0.8), policy, rtol=1e-11, atol=1e-13
        )
        cost = simulated_cost(reference, tracking, (Q, Q), (R, R), FINAL)
        gaps.append(abs(cost / result.cost(dx) - 1.0))
    slopes = np.log2(np.array(gaps[:-1]) / gaps[1:])
    np.testing.assert_allclose(slopes, 1.0, atol=0.25)  # of third order, over one of second
    assert gaps[-1] < 1e-2
    # without the input's part of the jump the value is off by much more than that
    if name != "neither":
        blind = lin.jumps[0].state.T @ result.values[1].start @ lin.jumps[0].state
        assert np.abs(blind / result.values[0].end - 1.0).max() > 0.05


def test_the_gain_at_the_instant_is_consistent_with_the_value_before_it():
    _, run, lin = bouncing(reset_input=0.05, guard_input=-0.02)
    result = hybrid_lqr(lin, Q, R, FINAL)
    jump, gain = lin.jumps[0], result.gains.arcs[0](run.events[0].time)
    closed = jump.state - jump.input @ gain
    np.testing.assert_allclose(
        result.values[0].end, closed.T @ result.values[1].start @ closed, rtol=1e-6
    )


def test_an_input_that_no_value_is_consistent_with_is_an_error():
    _, _, lin = bouncing(reset_input=0.05, guard_input=0.02)
    with pytest.raises(SimulationError, match="consistent with its own gain"):
        hybrid_lqr(lin, Q, R, FINAL)
    assert hybrid_lqr(lin, Q, 10.0 * R, FINAL).cost([1.0, 0.0]) > 0.0


def test_a_lead_serves_where_no_value_is_consistent():
    system, run, lin = bouncing(reset_input=0.05, guard_input=0.02)
    result = hybrid_lqr(lin, Q, R, FINAL, lead=0.05)
    hit = run.events[0].time
    jump, after = lin.jumps[0], result.values[1].start
    best = np.linalg.solve(
        0.05 * R + jump.input.T @ after @ jump.input, jump.input.T @ after @ jump.state
    )
    np.testing.assert_allclose(result.gains.arcs[0](hit), best, rtol=1e-6)
    reference = extended(system, run)
    policy = ReferenceSpreading(reference, result.gains)
    gaps = []
    for size in (1e-2, 5e-3, 2.5e-3):
        dx = size * np.array([1.0, -0.7])
        tracking = hc.simulate(
            system, "air", run(0.0) + dx, (0.0, 0.8), policy, rtol=1e-11, atol=1e-13
        )
        cost = simulated_cost(reference, tracking, (Q, Q), (R, R), FINAL)
        gaps.append(abs(cost / result.cost(dx) - 1.0))
    np.testing.assert_allclose(np.log2(np.array(gaps[:-1]) / gaps[1:]), 1.0, atol=0.25)


def test_a_lead_changes_nothing_where_the_input_does_not_enter_the_event():
    _, _, lin = bouncing()
    first, second = (hybrid_lqr(lin, Q, R, FINAL, lead=lead) for lead in (None, 0.05))
    np.testing.assert_array_equal(first.values[0].start, second.values[0].start)


def test_no_feedback_is_cheaper_than_the_optimal_one():
    system, run, lin = bouncing()
    result = hybrid_lqr(lin, Q, R, FINAL)
    reference = extended(system, run)
    dx = np.array([1e-3, 2e-3])

    def cost(factor):
        gains = GainSchedule(
            tuple(type(c)(c.times, factor * c.values, factor * c.slopes) for c in result.gains.arcs)
        )
        policy = ReferenceSpreading(reference, gains)
        tracking = hc.simulate(
            system, "air", run(0.0) + dx, (0.0, 0.8), policy, rtol=1e-11, atol=1e-13
        )
        return simulated_cost(reference, tracking, (Q, Q), (R, R), FINAL)

    assert cost(1.0) < min(cost(0.9), cost(1.1))


def test_the_closed_loop_is_the_derivative_of_the_simulated_one():
    system, run, lin = bouncing(reset_input=0.05, guard_input=-0.02)
    result = hybrid_lqr(lin, Q, R, FINAL)
    reference = extended(system, run)
    policy = ReferenceSpreading(reference, result.gains)
    h, columns = 1e-4, []
    for direction in np.eye(2):
        ends = [
            hc.simulate(
                system, "air", run(0.0) + s * direction, (0.0, 0.8), policy, rtol=1e-12, atol=1e-13
            ).final_state
            for s in (h, -h)
        ]
        columns.append((ends[0] - ends[1]) / (2.0 * h))
    found = np.array(columns).T
    # early and late runs differ to second order (the gain is held past the event): off by h
    np.testing.assert_allclose(result.closed_loop.state_transition, found, atol=h)


def test_the_policy_begins_with_the_feedforward():
    system, run, lin = bouncing()
    result = hybrid_lqr(lin, Q, R, FINAL)
    reference = extended(system, run)
    law = ReferenceSpreading(reference, result.gains).law(History("air", 0.0, run(0.0)))
    np.testing.assert_allclose(law(0.1, run(0.1)), run.input(0.1), atol=1e-10)


def test_gains_scale_out_and_weights_may_be_given_in_each_form():
    _, _, lin = bouncing()
    first = hybrid_lqr(lin, Q, R, FINAL)
    for q, r in [([Q, Q], [R, R]), (lambda k, t: Q, lambda k, t: R), (Q.tolist(), R.tolist())]:
        other = hybrid_lqr(lin, q, r, FINAL)
        np.testing.assert_array_equal(other.values[0].start, first.values[0].start)
    scaled = hybrid_lqr(lin, 1e-6 * Q, 1e-6 * R, 1e-6 * FINAL)
    np.testing.assert_allclose(scaled.gains.arcs[0](0.1), first.gains.arcs[0](0.1), rtol=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state_weight": -Q}, "state_weight must be positive semidefinite"),
        ({"state_weight": np.array([[1.0, 1.0], [0.0, 1.0]])}, "state_weight must be symmetric"),
        ({"state_weight": [Q]}, r"one matrix per arc \(2\), got 1"),
        ({"input_weight": np.zeros((1, 1))}, "input_weight must be positive definite"),
        ({"input_weight": [R, np.eye(2)]}, r"input_weight\[1\] must have shape"),
        ({"final_weight": np.eye(3)}, "final_weight must have shape"),
        ({"simultaneous": "best"}, "simultaneous 'best' is unknown"),
        ({"simultaneous": "mean"}, "covariance must be given"),
        ({"covariance": np.eye(2)}, "covariance must be given"),
        ({"rtol": 0.0}, "rtol must be greater"),
        ({"lead": 0.0}, "lead must be greater"),
    ],
)
def test_bad_arguments_are_named(change, message):
    _, _, lin = bouncing()
    arguments = {"state_weight": Q, "input_weight": R, "final_weight": FINAL} | change
    with pytest.raises(InputError, match=message):
        hybrid_lqr(lin, **arguments)


def test_a_linearization_with_feedback_is_refused():
    _, _, lin = bouncing()
    closed = lin.closed_loop([np.zeros((1, 2))] * 2)
    with pytest.raises(InputError, match="without feedback"):
        hybrid_lqr(closed, Q, R, FINAL)


def test_gains_are_saved_with_their_slopes(tmp_path):
    _, _, lin = bouncing()
    gains = hybrid_lqr(lin, Q, R, FINAL).gains
    gains.save(tmp_path / "gains.npz")
    loaded = GainSchedule.load(tmp_path / "gains.npz")
    for first, second in zip(gains.arcs, loaded.arcs, strict=True):
        for t in np.linspace(-0.1, 0.9, 7):
            np.testing.assert_array_equal(first(t), second(t))


def test_knots_are_joined_by_the_cubics_of_their_slopes():
    cubic = np.polynomial.Polynomial([1.0, -2.0, 0.5, 3.0])
    knots = np.array([0.0, 0.4, 1.0])
    values, slopes = cubic(knots), cubic.deriv()(knots)
    curve = GainCurve(knots, values[:, None, None], slopes[:, None, None])
    for t in (0.0, 0.1, 0.4, 0.77, 1.0):
        assert curve(t)[0, 0] == pytest.approx(cubic(t), rel=1e-12)


@pytest.mark.parametrize(
    "weight", [*(pytest.param(w, marks=pytest.mark.slow) for w in (1e-14, 1e-30)), 1e-200, 1e-310]
)
def test_a_weight_whose_feedback_is_too_fast_to_be_followed_is_refused_by_name(weight):
    """The cheaper the push, the faster the loop: at the end within about sqrt(R / Q) seconds."""
    _, _, lin = bouncing()
    with pytest.raises(InputError, match=r"input_weight must be larger .* acts within"):
        hybrid_lqr(lin, Q, weight * np.eye(1), FINAL)


def test_gains_of_a_cheap_input_are_those_of_its_limit():
    """R -> 0: V tends to sqrt(q R) of the velocity, and the push closes in at its rate."""
    _, _, lin = bouncing(end=0.4)
    r = 1e-7
    result = hybrid_lqr(lin, np.diag([0.0, 1.0]), r * np.eye(1), np.zeros((2, 2)))
    # v' = -0.3 v + u: V^2 / R + 0.6 V = 1, long before the end
    exact = r * (np.sqrt(0.09 + 1.0 / r) - 0.3)
    assert result.values[0](0.1)[1, 1] == pytest.approx(exact, abs=1e-11)  # atol is 1e-12
