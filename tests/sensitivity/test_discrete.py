"""Fixed-grid maps against the variational flow, and held inputs against simulation."""

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import paddle

import hybridctl as hc
from hybridctl.errors import InputError
from hybridctl.sensitivity.discrete import discretize


@pytest.fixture(scope="module")
def pushed():
    """A pushed ball whose one bounce sees the push."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    field = [x[1], -9.81 - 0.3 * x[1] + u]
    modes = [hc.symbolic.Mode(key, state=x, field=field, input=u) for key in ("air", "up")]
    reset = [x[0], -0.7 * x[1] + 0.05 * u]
    hit = hc.symbolic.Transition("air", "floor", x[0] + 0.03 * u, "up", reset)
    system = hc.symbolic.hybrid_system(modes, [hit])
    run = hc.simulate(system, "air", [1.0, 0.2], (0.0, 0.8), rtol=1e-12, atol=1e-12)
    return system, run, hc.linearize(system, run, rtol=1e-11, atol=1e-12)


def product(intervals):
    total = np.eye(intervals[0].state.shape[1])
    for interval in intervals:
        total = interval.state @ total
    return total


@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_product_is_the_fundamental_solution(pushed, count):
    _, _, lin = pushed
    intervals = discretize(lin, np.linspace(0.0, 0.8, count + 1))
    np.testing.assert_allclose(product(intervals), lin.state_transition, rtol=1e-9, atol=1e-10)


def test_the_paddle_too_with_events_on_the_grid():
    p = paddle.Parameters()
    orbit = hc.sensitivity.periodic_orbit(
        paddle.system(), paddle.AIR, paddle.apex(), p.period, input=paddle.drive
    )
    lin = orbit.linearization
    hit = orbit.trajectory.events[0].time
    for times in ([0.0, 0.1, hit, 0.4, 0.5], [0.0, hit - 1e-3, hit + 1e-3, 0.5]):
        intervals = discretize(lin, times)
        np.testing.assert_allclose(product(intervals), lin.state_transition, atol=1e-8)


def test_held_inputs_are_differences_of_simulations(pushed):
    system, run, lin = pushed
    times = np.array([0.0, 0.3, 0.55, 0.8])  # the bounce is in the second interval
    assert times[1] < run.events[0].time < times[2]
    intervals = discretize(lin, times)
    h = 1e-5

    def end(k, size):
        """From the nominal state at times[k], with the input changed until times[k + 1]."""
        mode = run.arc(times[k]).mode
        return hc.simulate(
            system,
            mode,
            run(times[k]),
            (times[k], times[k + 1]),
            lambda t, x: np.array([size]),
            rtol=1e-12,
            atol=1e-12,
        ).final_state

    for k, interval in enumerate(intervals):
        found = (end(k, h) - end(k, -h)) / (2.0 * h)
        np.testing.assert_allclose(interval.input[:, 0], found, atol=1e-7)


def test_the_sandwich_is_that_of_flows_and_jump(pushed):
    _, run, lin = pushed
    whole = discretize(lin, [0.0, 0.8])[0]
    hit = run.events[0].time
    first = discretize(lin, [0.0, hit, 0.8])
    # The event is in the interval that ends with it, so that the last is flow alone.
    np.testing.assert_allclose(first[1].state, lin.arcs[1].end, atol=1e-10)
    jump = lin.linear_jump(0)
    np.testing.assert_allclose(first[0].state, jump.state @ lin.arcs[0].end, atol=1e-10)
    np.testing.assert_allclose(
        whole.input, first[1].state @ first[0].input + first[1].input, atol=1e-9
    )


def test_the_stage_cost_is_the_integral_along_the_held_motion(pushed):
    _, _, lin = pushed
    weight = np.diag([2.0, 1.0, 0.5])
    interval = discretize(lin, [0.0, 0.8], lambda k, t: weight * (1.0 + t))[0]
    dx, du = np.array([0.3, -0.2]), np.array([0.7])
    nodes, weights = np.polynomial.legendre.leggauss(20)
    total = 0.0
    for variation in lin.along(dx, lambda t: du):
        start, end = variation.arc.start, variation.arc.end
        for node, w in zip(nodes, weights, strict=True):
            t = start + 0.5 * (end - start) * (node + 1.0)
            both = np.append(variation(t)[:, 0], du)
            total += 0.5 * (end - start) * w * (1.0 + t) * both @ weight @ both
    both = np.append(dx, du)
    assert both @ interval.cost @ both == pytest.approx(total, rel=1e-8)


def test_a_stage_cost_may_change_faster_than_the_motion():
    """Of v' = u: the integral of cos(w t) (v + u t)^2 in closed form, over many periods."""
    v, u = ca.SX.sym("v", 1), ca.SX.sym("u", 1)
    mode = hc.symbolic.Mode("free", state=v, field=[u[0]], input=u)
    system = hc.symbolic.hybrid_system([mode], [])
    run = hc.simulate(system, "free", [0.0], (0.0, 1.0))
    lin, w = hc.linearize(system, run), 70.0
    (found,) = discretize(lin, [0.0, 1.0], lambda k, t: np.cos(w * t) * np.diag([1.0, 0.0]))
    s, c = np.sin(w), np.cos(w)
    first = s / w + (c - 1.0) / w**2
    second = s / w + 2.0 * c / w**2 - 2.0 * s / w**3
    np.testing.assert_allclose(found.cost, [[s / w, first], [first, second]], atol=1e-9)


def test_feedback_changes_the_map(pushed):
    _, _, lin = pushed
    closed = lin.closed_loop([np.array([[3.0, 1.0]]), np.array([[2.0, 0.5]])])
    intervals = discretize(closed, np.linspace(0.0, 0.8, 4))
    np.testing.assert_allclose(product(intervals), closed.state_transition, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("times", [[0.0, 0.5], [0.0, 0.6, 0.5, 0.8], [0.8], [0.1, 0.8]])
def test_times_that_do_not_cover_the_trajectory_are_refused(pushed, times):
    with pytest.raises(InputError, match="times must increase from 0"):
        discretize(pushed[2], times)
