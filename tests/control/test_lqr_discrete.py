"""LQR on a grid against the quadratic programme, and against the continuous solution."""

from types import SimpleNamespace

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import paddle
from scipy.linalg import solve_discrete_are

import hybridctl as hc
from hybridctl.control.lqr.continuous import hybrid_lqr
from hybridctl.control.lqr.discrete import discrete_lqr, step_back
from hybridctl.errors import InputError

Q, R = np.diag([100.0, 10.0, 1.0, 0.1]), np.array([[1e-2]])


@pytest.fixture(scope="module")
def lin():
    """One period of a ball on a paddle."""
    p = paddle.Parameters()
    orbit = hc.sensitivity.periodic_orbit(
        paddle.system(), paddle.AIR, paddle.apex(), p.period, input=paddle.drive
    )
    return orbit.linearization


def test_it_is_the_dense_quadratic_programme(lin):
    result = discrete_lqr(lin, np.linspace(0.0, 0.5, 13), Q, R, Q)
    n, count = 4, len(result.intervals)
    dx = np.array([0.01, -0.02, 0.03, 0.1])
    states, forced = [np.eye(n)], [np.zeros((n, count))]
    hessian, gradient, constant = np.zeros((count, count)), np.zeros((count, n)), np.zeros((n, n))

    def add(x, free, weight):
        nonlocal hessian, gradient, constant
        hessian = hessian + x.T @ weight @ x
        gradient = gradient + x.T @ weight @ free
        constant = constant + free.T @ weight @ free

    for k, interval in enumerate(result.intervals):
        choice = np.eye(1, count, k)
        add(
            np.vstack([forced[-1], choice]),
            np.vstack([states[-1], np.zeros((1, n))]),
            interval.cost,
        )
        states.append(interval.state @ states[-1])
        forced.append(interval.state @ forced[-1] + interval.input @ choice)
    add(forced[-1], states[-1], Q)
    inputs = -np.linalg.solve(hessian, gradient @ dx)
    cost = dx @ constant @ dx + inputs @ gradient @ dx
    assert result.cost(dx) == pytest.approx(cost, rel=1e-8)
    x = dx
    for k, interval in enumerate(result.intervals):
        u = -result.gains[k] @ x
        np.testing.assert_allclose(u, inputs[k : k + 1], rtol=1e-8, atol=1e-8)
        x = interval.state @ x + interval.input @ u
    np.testing.assert_allclose(x, result.closed_loop @ dx, atol=1e-12)


def test_it_tends_to_the_continuous_solution_with_order_two(lin):
    exact = hybrid_lqr(lin, Q, R, Q).values[0].start
    errors = []
    for count in (20, 40, 80):
        found = discrete_lqr(lin, np.linspace(0.0, 0.5, count + 1), Q, R, Q).values[0]
        assert np.linalg.eigvalsh(found - exact).min() > -1e-7  # held inputs can do no better
        errors.append(np.abs(found - exact).max())
    np.testing.assert_allclose(np.log2(np.array(errors[:-1]) / errors[1:]), 2.0, atol=0.15)


def test_a_grid_that_no_input_acts_on_has_the_cost_of_the_free_motion(lin):
    result = discrete_lqr(lin, [0.0, 0.5], np.zeros((4, 4)), 1e12 * R, Q)
    whole = lin.state_transition
    np.testing.assert_allclose(result.values[0], whole.T @ Q @ whole, rtol=1e-7, atol=1e-7)


def test_inputs_that_do_the_same_need_a_weight_that_is_not_lost_in_rounding():
    """x+ = x + u1 + u2 with V = 1: for R = r the best gains are 1 / (2 + r) each."""

    def interval(r):
        return SimpleNamespace(state=np.eye(1), input=np.ones((1, 2)), cost=np.diag([1.0, r, r]))

    gain, _ = step_back(interval(0.5), np.eye(1))
    np.testing.assert_allclose(gain, np.full((2, 1), 0.4), rtol=1e-14)
    with pytest.raises(InputError, match="input_weight must tell inputs apart"):
        step_back(interval(1e-30), np.eye(1))


def test_each_value_function_is_the_cost_to_go_of_the_gains_after_it(lin):
    result = discrete_lqr(lin, np.linspace(0.0, 0.5, 6), Q, R, 2.0 * Q)
    np.testing.assert_array_equal(result.values[-1], 2.0 * Q)
    for k, value in enumerate(result.values[:-1]):
        x, cost = np.eye(4), np.zeros((4, 4))
        for interval, gain in zip(result.intervals[k:], result.gains[k:], strict=True):
            both = np.vstack([x, -gain @ x])
            cost = cost + both.T @ interval.cost @ both
            x = np.hstack([interval.state, interval.input]) @ both
        cost = cost + x.T @ (2.0 * Q) @ x
        np.testing.assert_allclose(value, cost, rtol=1e-9, atol=1e-9 * np.abs(cost).max())


def test_without_an_event_a_long_way_before_the_end_it_is_the_algebraic_solution():
    """A mass that a held force pushes, on one arc."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    mass = hc.symbolic.Mode("free", state=x, field=[x[1], u], input=u)
    plant = hc.symbolic.hybrid_system([mass], [])
    lin = hc.linearize(plant, hc.simulate(plant, "free", [0.0, 0.0], (0.0, 20.0)))
    result = discrete_lqr(lin, np.linspace(0.0, 20.0, 101), np.eye(2), [[0.5]], np.eye(2))
    first = result.intervals[0]
    c = first.cost
    right = solve_discrete_are(first.state, first.input, c[:2, :2], c[2:, 2:], s=c[:2, 2:])
    np.testing.assert_allclose(result.values[0], right, rtol=1e-7)
