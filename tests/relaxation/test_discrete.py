"""The discrete scheme: its orders, and what a step must not miss."""

import casadi as ca
import numpy as np
import pytest
from relaxation.systems import ball, carrier, order

import hybridctl as hc
from hybridctl.base.errors import InputError, OverlappingStripsError
from hybridctl.relaxation.discrete import discretize_relaxed, euler, runge_kutta

START = [1.0, 0.2, 0.3]


@pytest.mark.parametrize("method", [euler, runge_kutta])
def test_steps_over_a_strip_are_of_first_order(method):
    """Transversal events; the phase of an event within a step scatters the error."""
    system = carrier(0.5)
    exact = hc.simulate(system, "air", START, (0.0, 2.4))
    steps = 2.4 / np.array([60, 120, 240, 480, 960])
    errors = []
    for h in steps:
        run = discretize_relaxed(hc.relax(system, 0.01 * h), "air", START, (0.0, 2.4), h, method)
        errors.append(np.abs(run.states[-1] - exact.final_state).max())
    assert order(errors, steps) == pytest.approx(1.0, abs=0.35)


def test_short_steps_have_the_order_of_the_method():
    """A strip 10 steps wide and more, against the relaxed flow itself: phi is C^1,1, so order 2."""
    relaxed = hc.relax(carrier(0.5), 0.1)
    flow = hc.simulate(relaxed, "air", START, (0.0, 2.2), rtol=1e-12, atol=1e-12)
    steps, errors = 2.2 / np.array([400, 800, 1600]), []
    for h in steps:
        run = discretize_relaxed(relaxed, "air", START, (0.0, 2.2), h, runge_kutta)
        errors.append(np.abs(run.mapped_states[-1] - flow.final_state).max())
    assert order(errors, steps) > 1.7


def test_a_load_that_lies_on_the_floor_is_held_and_lifted():
    """An input that changes the sign of the force: the grid knows it to one step."""
    h, relaxed = 1e-3, hc.relax(ball(0.0), 1e-5)
    law = lambda t, x: np.array([1.5 if t >= 2.9995 else 0.0])  # noqa: E731
    run = discretize_relaxed(relaxed, "air", [1.0, 0.0], (0.0, 4.0), h, euler, law)
    still = [x for t, x in zip(run.times, run.mapped_states, strict=True) if 2.5 < t < 3.0]
    assert np.abs(still).max() <= 2e-3
    assert run.mapped_states[-1][1] == pytest.approx(0.5, abs=2e-3)
    assert not run.in_strip[0]


def gap():
    """A point (position, velocity) between two walls that reflect it, at 0 and 1."""
    x = ca.SX.sym("x", 2)
    mode = hc.symbolic.SymbolicMode("gap", x, [x[1], 0.0])
    edges = [
        hc.symbolic.SymbolicTransition("gap", "low", x[0], "gap", [x[0], -x[1]]),
        hc.symbolic.SymbolicTransition("gap", "high", 1.0 - x[0], "gap", [x[0], -x[1]]),
    ]
    return hc.symbolic.hybrid_system([mode], edges)


def test_a_step_may_end_behind_another_guard_than_the_nearest():
    """From 0.4 it ends 5 mm behind the far wall, 15 mm before the far end of the strip there."""
    run = discretize_relaxed(hc.relax(gap(), 0.02), "gap", [0.4, 6.05], (0.0, 0.1), 0.1)
    assert run.in_strip == (False, True)
    np.testing.assert_allclose(run.states[-1], [1.005, 6.05], atol=1e-12)
    np.testing.assert_allclose(run.mapped_states[-1], [1.015, -6.05], atol=1e-12)


def test_steps_that_miss_a_guard_or_hit_two_are_refused():
    relaxed = hc.relax(gap(), 0.01)
    with pytest.raises(InputError, match="misses guard 'high'"):
        discretize_relaxed(relaxed, "gap", [0.2, -20.0], (0.0, 1.0), 0.1)
    y = ca.SX.sym("y", 4)
    corner = hc.symbolic.SymbolicMode("air", y, [y[2], y[3], 0.0, 0.0])
    walls = [
        hc.symbolic.SymbolicTransition("air", "left", y[0], "air", [y[0], y[1], -y[2], y[3]]),
        hc.symbolic.SymbolicTransition("air", "right", y[1], "air", [y[0], y[1], y[2], -y[3]]),
    ]
    relaxed = hc.relax(hc.symbolic.hybrid_system([corner], walls), 0.01)
    with pytest.raises(OverlappingStripsError, match=r"\['left', 'right'\]"):
        discretize_relaxed(relaxed, "air", [0.05, 0.05, -1.0, -1.0], (0.0, 1.0), 0.1)
    with pytest.raises(InputError, match="multiple of step"):
        discretize_relaxed(relaxed, "air", [0.05, 0.05, -1.0, -1.0], (0.0, 1.0), 0.3)
