"""Jumps under feedback where guard and reset see the input, and values through jumps."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from hybridctl.experiments.optimal.lqr import simulated_cost

import hybridctl as hc
from hybridctl.control.reference import extend
from hybridctl.control.spreading import ReferenceSpreading

GAINS = (np.array([[4.0, 1.5]]), np.array([[2.0, 0.5]]))
NONE = (np.zeros((1, 2)),) * 2
SPAN, START = (0.0, 0.7), np.array([1.0, 0.3])
INPUTS = {"guard": (0.03, 0.0), "reset": (0.0, 0.05), "both": (-0.03, 0.05)}


def push(t):
    return np.array([0.4 * np.sin(4.0 * t)])


def throw_ball(guard_input, reset_input):
    """A pushed ball that bounces once; guard and reset see the push."""
    x, u, t = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("t")
    field = [x[1], -9.81 - 0.3 * x[1] * ca.fabs(x[1]) + u]
    modes = [
        hc.symbolic.SymbolicMode(k, state=x, field=field, input=u, time=t) for k in ("air", "up")
    ]
    reset = [x[0], -0.7 * x[1] + reset_input * u * (1.0 - x[1])]
    edge = hc.symbolic.SymbolicTransition(
        "air", "floor", x[0] + guard_input * u - 0.1 * t, "up", reset
    )
    system = hc.symbolic.hybrid_system(modes, [edge])
    run = hc.simulate(system, "air", START, SPAN, lambda t, x: push(t), rtol=1e-12, atol=1e-13)
    assert len(run.events) == 1
    lin = hc.linearize(system, run, rtol=1e-11, atol=1e-12)
    reference = extend(system, run, before=0.1, after=0.1, feedforward=[push, push])
    return system, run, lin, reference


def simulate_tracking(system, reference, gains, start):
    policy = ReferenceSpreading(reference, gains)
    return hc.simulate(system, "air", start, SPAN, policy, rtol=1e-12, atol=1e-13)


def measure_transition(system, reference, gains, h=1e-5):
    columns = []
    for e in np.eye(2):
        forth, back = (
            simulate_tracking(system, reference, gains, START + s * e).final_state for s in (h, -h)
        )
        columns.append((forth - back) / (2.0 * h))
    return np.array(columns).T


@pytest.mark.parametrize("name", INPUTS)
def test_the_closed_loop_is_the_derivative_of_the_simulated_one(name):
    system, _, lin, reference = throw_ball(*INPUTS[name])
    closed = lin.closed_loop(GAINS)
    found = measure_transition(system, reference, GAINS)
    # differences are off by h^2, but events are found from a record good to 1e-12: over h
    np.testing.assert_allclose(closed.state_transition, found, atol=2e-6)
    # the same with the jump of the open loop is wrong by far more
    open_loop_jump = replace(closed, jumps=lin.jumps).state_transition
    assert np.abs(open_loop_jump - found).max() > 1e-3


@pytest.mark.parametrize("name", INPUTS)
def test_feedback_at_the_instant_is_a_rank_one_change_by_the_input_gain(name):
    _, _, lin, _ = throw_ball(*INPUTS[name])
    jump = lin.jumps[0]
    fed = jump.with_feedback(GAINS[0])
    np.testing.assert_allclose(fed.state, jump.state - jump.input @ GAINS[0], atol=1e-13)
    np.testing.assert_array_equal(fed.input, jump.input)
    np.testing.assert_allclose(
        fed.time_state, jump.time_state - jump.time_input @ GAINS[0], atol=1e-15
    )
    again = fed.with_feedback(-GAINS[0])
    np.testing.assert_allclose(again.state, jump.state, atol=1e-13)


def test_the_time_of_the_event_shifts_with_the_fed_back_derivative():
    system, _, lin, reference = throw_ball(*INPUTS["both"])
    dx = np.array([1.0, -0.5])
    before = lin.closed_loop(GAINS).arcs[0].end @ dx
    predicted = lin.jumps[0].with_feedback(GAINS[0]).time_state @ before
    h = 1e-5
    times = [
        simulate_tracking(system, reference, GAINS, START + s * dx).events[0].time for s in (h, -h)
    ]
    assert predicted == pytest.approx((times[0] - times[1]) / (2.0 * h), rel=1e-5)
    assert abs(lin.jumps[0].time_state @ before / predicted - 1.0) > 1e-3


def hessian(cost, size, h):
    """V (size, size) of a cost that is dx . V dx to second order; odd terms cancel."""

    def form(dx):
        return 0.5 * (cost(h * dx) + cost(-h * dx)) / h**2

    squares = [form(e) for e in np.eye(size)]
    v = np.diag(squares)
    for i in range(size):
        for j in range(i):
            both = form(np.eye(size)[i] + np.eye(size)[j])
            v[i, j] = v[j, i] = 0.5 * (both - squares[i] - squares[j])
    return v


def test_the_value_before_a_jump_is_that_after_it_through_the_saltation_matrix():
    """[Salt] (42): costs after the bounce, of simulations that start after it and before it."""
    system, run, lin, reference = throw_ball(0.0, 0.0)
    weights = (np.zeros((2, 2)), np.diag([2.0, 1.0]))
    final, hit = np.diag([1.0, 0.5]), run.events[0].time
    later = hc.simulate(
        system, "up", run(hit), (hit, SPAN[1]), lambda t, x: push(t), rtol=1e-12, atol=1e-13
    )
    alone = extend(system, later, before=0.0, after=0.0, feedforward=[push])

    def after(dx):
        moved = hc.simulate(
            system, "up", run(hit) + dx, (hit, SPAN[1]), lambda t, x: push(t),
            rtol=1e-12, atol=1e-13,
        )  # fmt: skip
        return simulated_cost(alone, moved, weights[1:], (np.eye(1),), final)

    def before(dx):
        moved = simulate_tracking(system, reference, NONE, START + dx)
        return simulated_cost(reference, moved, weights, (np.eye(1),) * 2, final)

    h = 1e-4
    through = hc.saltation_matrix(system, run.events[0]) @ lin.arcs[0].end
    found, v = hessian(before, 2, h), hessian(after, 2, h)
    scale = np.abs(found).max()
    # the time between the events, of order h, is counted after the bounce or not: odd in dx, so
    # that h^2 is left
    np.testing.assert_allclose(found, through.T @ v @ through, atol=1e-4 * scale)
    reset = np.diag([1.0, -0.7]) @ lin.arcs[0].end
    assert np.abs(found - reset.T @ v @ reset).max() > 0.1 * scale
