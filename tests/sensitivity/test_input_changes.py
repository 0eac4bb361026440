"""The first-order map by changes of the input, and under feedback, against simulations."""

import casadi as ca
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from sensitivity.test_linearize import TIGHT, G, assert_v, linearized, v_curve

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import InputError


def driven_system():
    """A mass (y, v) with three inputs: of its field, of its reset and of its guard."""
    y, v, t, u = ca.SX.sym("y"), ca.SX.sym("v"), ca.SX.sym("t"), ca.SX.sym("u", 3)
    field = [v, -G + u[0] - 0.3 * v + ca.sin(3.0 * t)]
    reset = [y, -0.8 * v + u[1]]
    return symbolic.hybrid_system(
        [symbolic.SymbolicMode("air", [y, v], field, input=u, time=t)],
        [symbolic.SymbolicTransition("air", "hits", y - 0.05 * u[2], "air", reset)],
    )


def nominal_input(t):
    return np.array([0.5 * np.sin(2.0 * t), 0.3 * np.cos(4.0 * t), np.sin(4.0 * t)])


def input_change(t):
    return np.array([np.cos(3.0 * t), 0.5 + np.sin(5.0 * t), 0.7 - np.sin(t)])


START, SPAN = np.array([0.7, 0.1]), (0.0, 1.3)


def extend_arc(arc, margin=0.3):
    """The flow of an arc past both of its ends."""
    field = driven_system().mode("air").field

    def side(end):
        solution = solve_ivp(
            lambda t, x: field(t, x, nominal_input(t)),
            (arc.start, end),
            arc(arc.start),
            method="DOP853",
            rtol=1e-13,
            atol=1e-14,
            dense_output=True,
        )
        return solution.sol

    before, after = side(arc.start - margin), side(arc.end + margin)
    return lambda t: before(t) if t < arc.start else after(t)


def simulate_end(h, dx=(0.0, 0.0), gain=None):
    """The end of the run with the input changed by h du(t) and the start by h dx."""
    nominal = hc.simulate(
        driven_system(), "air", START, SPAN, lambda t, x: nominal_input(t), **TIGHT
    )
    arcs = [extend_arc(arc) for arc in nominal.arcs]

    class Feedback:
        def law(self, history):
            reference = arcs[len(history.events)]
            return lambda t, x: (
                nominal_input(t)
                + h * input_change(t)
                - (0.0 if gain is None else gain @ (x - reference(t)))
            )

    run = hc.simulate(driven_system(), "air", START + h * np.array(dx), SPAN, Feedback(), **TIGHT)
    assert len(run.events) == len(nominal.events)
    return run.final_state


def linearize_driven_system():
    return linearized(driven_system(), "air", START, SPAN, lambda t, x: nominal_input(t))


def test_a_change_of_the_input():
    lin = linearize_driven_system()
    assert len(lin.jumps) == 2
    dx = np.array([0.4, -0.7])
    errors = v_curve(
        lambda h: (simulate_end(h, dx) - simulate_end(-h, dx=dx)) / (2.0 * h),
        lin.derivative(dx, input_change),
    )
    assert_v(errors, 1e-8)


def test_the_map_is_linear_in_state_and_input():
    lin = linearize_driven_system()
    dx = np.array([0.4, -0.7])
    alone = lin.derivative(np.zeros(2), input_change)
    np.testing.assert_allclose(
        lin.derivative(dx, input_change), lin.derivative(dx) + alone, atol=1e-8
    )
    np.testing.assert_allclose(
        lin.derivative(np.zeros(2), lambda t: -2.0 * input_change(t)), -2.0 * alone, atol=1e-8
    )
    rows = lin.derivative(np.array([dx, -dx]), input_change)
    np.testing.assert_allclose(
        rows, [lin.derivative(dx) + alone, -lin.derivative(dx) + alone], atol=1e-8
    )


def test_a_closed_loop_is_that_of_a_simulation_with_feedback():
    """u = mu - K (x - x_nominal), with the nominal arc continued past its events.

    A perturbed run follows the nominal arc of its own event count; field and reset see the
    feedback. (A guard that saw it too would jump with it at the event, and fire twice.)"""
    gain = np.array([[3.0, 1.0], [0.2, -0.1], [0.0, 0.0]])
    open_loop = linearize_driven_system()
    closed = open_loop.closed_loop([gain] * 3)
    dx = np.array([0.4, -0.7])
    steps = 10.0 ** np.arange(-3.0, -7.0, -1.0)

    def central(h):
        return (simulate_end(h, dx, gain) - simulate_end(-h, dx, gain)) / (2.0 * h)

    assert_v(v_curve(central, closed.derivative(dx, input_change), steps), 2e-8)
    assert np.abs(closed.derivative(dx) - open_loop.derivative(dx)).max() > 0.05


def test_a_closed_loop_without_gain_is_the_open_loop():
    lin = linearize_driven_system()
    closed = lin.closed_loop([np.zeros((3, 2))] * 2 + [lambda t: np.zeros((3, 2))])
    np.testing.assert_allclose(closed.state_transition, lin.state_transition, atol=1e-10)


def test_coefficients_are_the_derivatives_of_the_field():
    lin = linearize_driven_system()
    c = lin.coefficients(lin.trajectory.arcs[1], lin.trajectory.arcs[1].start)
    np.testing.assert_allclose(c.state, [[0.0, 1.0], [0.0, -0.3]])
    np.testing.assert_allclose(c.input, [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])


def test_gains_that_do_not_fit_are_refused():
    lin = linearize_driven_system()
    with pytest.raises(InputError, match=r"gains must have one entry per arc \(3\), got 1"):
        lin.closed_loop([np.zeros((3, 2))])
    with pytest.raises(InputError, match=r"gains\[1\] must have shape \(3, 2\)"):
        lin.closed_loop([np.zeros((3, 2)), np.zeros(2), np.zeros((3, 2))])
