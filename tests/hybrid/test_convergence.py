"""Event times and post-event states are as accurate as the flow, for every integrator."""

import numpy as np
import pytest
from scipy.integrate import DOP853

import hybridctl as hc
from hybridctl.hybrid.explicit import choose_first_length
from hybridctl.hybrid.flow import METHODS

LENGTH = 9.81


def pendulum():
    """A pendulum (angle, rate) that hits a wall at -0.5 rad: neither event nor flow is linear."""
    swing = hc.Mode(
        "swing",
        hc.VectorSpace(2),
        lambda t, x, u: np.array([x[1], -LENGTH * np.sin(x[0]) - 0.1 * x[1]]),
    )
    wall = hc.Guard("wall", lambda t, x, u: np.sin(x[0]) + np.sin(0.5))
    bounce = hc.Reset(lambda t, x, u: np.array([x[0], -0.8 * x[1]]))
    return hc.HybridSystem([swing], [hc.Transition("swing", wall, bounce, "swing")])


def run(tolerance, method):
    return hc.simulate(
        pendulum(), "swing", [1.5, 0.0], (0.0, 1.2), rtol=tolerance, atol=tolerance, method=method
    )


@pytest.fixture(scope="module")
def exact():
    return run(1e-13, "DOP853")


@pytest.mark.parametrize("method", list(METHODS))
def test_error_of_event_and_state_falls_with_the_tolerance(method, exact):
    tightest = {"RK23": 9, "BDF": 9}.get(method, 12)
    tolerances = 10.0 ** -np.arange(4, tightest + 1, dtype=float)
    errors = []
    for tolerance in tolerances:
        traj = run(tolerance, method)
        assert len(traj.events) == 1
        event, truth = traj.events[0], exact.events[0]
        errors.append(
            max(
                abs(event.time - truth.time),
                np.abs(event.state_after - truth.state_after).max(),
                np.abs(traj.final_state - exact.final_state).max(),
            )
        )
    # local errors below the tolerance add up over 10 to 1000 steps and grow by exp(3 t) at most;
    # the exact run itself is good to 1e-12
    assert (np.array(errors) < 300.0 * tolerances + 1e-12).all(), errors
    slope = np.polyfit(np.log(tolerances), np.log(errors), 1)[0]
    assert 0.7 < slope < 1.3, (slope, errors)


@pytest.mark.parametrize("first_step", [1e-9, 1e-3, 10.0])
@pytest.mark.parametrize("method", ["DOP853", "RK45", "Radau"])
def test_any_first_step_is_as_accurate(method, first_step, exact):
    """Also one longer than the span: it is cut there, and taken back where it is inaccurate."""
    traj = hc.simulate(
        pendulum(),
        "swing",
        [1.5, 0.0],
        (0.0, 1.2),
        rtol=1e-8,
        atol=1e-8,
        method=method,
        options=hc.SimulationOptions(first_step=first_step),
    )
    assert len(traj.events) == 1
    # as above: 300 times the tolerance
    assert abs(traj.events[0].time - exact.events[0].time) < 3e-6
    assert np.abs(traj.final_state - exact.final_state).max() < 3e-6


def test_a_first_step_is_positive():
    with pytest.raises(hc.errors.InputError, match="first_step"):
        hc.simulate(
            pendulum(),
            "swing",
            [1.5, 0.0],
            (0.0, 1.2),
            options=hc.SimulationOptions(first_step=0.0),
        )


def test_event_time_is_the_closed_form_of_linear_drag():
    # m v' = -m g - c v: y = 1 + (g tau^2)(1 - exp(-t/tau)) - g tau t with tau = 0.5 s
    tau, g = 0.5, 9.81
    fall = hc.Mode("fall", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -g - x[1] / tau]))
    rest = hc.Mode("rest", hc.VectorSpace(2), lambda t, x, u: np.zeros(2))
    floor = hc.Guard("floor", lambda t, x, u: x[0])
    system = hc.HybridSystem(
        [fall, rest], [hc.Transition("fall", floor, hc.Reset.identity(), "rest")]
    )
    (event,) = hc.simulate(system, "fall", [1.0, 0.0], (0, 2), rtol=1e-12, atol=1e-12).events
    t = event.time
    height = 1.0 + g * tau**2 * (1.0 - np.exp(-t / tau)) - g * tau * t
    assert abs(height) < 1e-11  # tolerance 1e-12 over some ten steps


@pytest.mark.parametrize("size", [0.0, 1e-9, 1.0, 1e6])
@pytest.mark.parametrize("speed", [0.0, 1e-12, 1e-3, 1.0, 1e8])
@pytest.mark.parametrize("reach", [1e-9, 3.0, -3.0])
def test_the_first_step_is_that_of_scipy(size, speed, reach):
    """From a state of a size, with a rate of a speed that changes by as much in a second."""
    rng = np.random.default_rng([int(size > 0.0), int(1e3 * speed > 1.0)])
    x, a = size * rng.normal(size=3), speed * rng.normal(size=(2, 3))
    turn = rng.normal(size=(3, 3))

    def rate(t, x):
        return a[0] + t * a[1] + speed * (turn @ x) / (1.0 + size)

    tolerances = 1e-6, 1e-8
    solver = DOP853(rate, 0.5, x, 0.5 + reach, rtol=tolerances[0], atol=tolerances[1])
    found = choose_first_length(rate, rate(0.5, x), 0.5, x, 0.5 + reach, tolerances, -1.0 / 8.0)
    assert min(found, abs(reach)) == pytest.approx(solver.h_abs, rel=1e-12)
