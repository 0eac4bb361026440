"""Sensitivity to parameters: states that stay as they are, by the same jump rule."""

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc

RUN = {"rtol": 1e-11, "atol": 1e-11}


def ball():
    """Height, speed, and as parameters the restitution and the weight per mass."""
    x = ca.SX.sym("x", 4)
    y, v, e, g = ca.vertsplit(x)
    air = hc.symbolic.Mode("air", state=x, field=[v, -g, 0.0, 0.0])
    bounce = hc.symbolic.Transition("air", "floor", y, "air", [y, -e * v, e, g])
    return hc.symbolic.hybrid_system([air], [bounce])


def test_the_apex_after_a_bounce_depends_on_restitution_as_its_square():
    """From 1 m the next apex is at e^2; its derivatives are 2 e by e, and 0 by g."""
    e, g = 0.7, 9.81
    apex = np.sqrt(2.0 / g) * (1.0 + e)
    run = hc.simulate(ball(), "air", [1.0, 0.0, e, g], (0.0, apex), **RUN)
    gradient = hc.linearize(ball(), run, **RUN).adjoint([1.0, 0.0, 0.0, 0.0])
    assert run.final_state[0] == pytest.approx(e**2, abs=1e-9)
    # the time is fixed, but the height does not change in time at the apex
    np.testing.assert_allclose(gradient[2:], [2.0 * e, 0.0], atol=1e-8)


def test_all_parameters_over_several_bounces_against_differences():
    system, x0, span = ball(), np.array([1.0, 0.2, 0.7, 9.81]), (0.0, 2.0)
    run = hc.simulate(system, "air", x0, span, **RUN)
    assert len(run.events) >= 3
    exact = hc.linearize(system, run, **RUN).state_transition[:2, 2:]
    h = 1e-5
    columns = []
    for i in (2, 3):
        ends = [
            hc.simulate(system, "air", x0 + s * h * np.eye(4)[i], span, **RUN).final_state[:2]
            for s in (1.0, -1.0)
        ]
        columns.append((ends[0] - ends[1]) / (2.0 * h))
    # h^2 times third derivatives of order 100, and 1e-11 / h of the flow
    np.testing.assert_allclose(np.array(columns).T, exact, atol=1e-5)
