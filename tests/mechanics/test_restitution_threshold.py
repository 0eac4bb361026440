"""Slow approaches do not rebound: a dropped ball comes to rest after a number of bounces."""

from dataclasses import replace

import numpy as np
import pytest
from differences import assert_derivative
from hybridctl.robots import ball, block

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import parameter_derivatives, time_stepping
from hybridctl.mechanics.system import contact_system
from hybridctl.sensitivity.parameters import parameter_sensitivity

G, HEIGHT, E = 9.81, 0.5, 0.4
PARAMETERS = ball.BallParameters(slope=0.0, restitution=E)
START = [0.0, HEIGHT, 0.3, 0.0]


def contacts(threshold):
    return tuple(replace(c, restitution_threshold=threshold) for c in ball.contacts(PARAMETERS))


def dropped(threshold, end=2.0):
    system = contact_system(ball.robot(PARAMETERS), contacts(threshold))
    return system, hc.simulate(system, ("open",), START, (0.0, end))


@pytest.mark.parametrize("bounces", [0, 1, 2, 5])
def test_a_ball_bounces_as_often_as_it_is_fast_enough(bounces):
    """Speeds before impacts are e^k sqrt(2 g h); flights between take 2 e^k sqrt(2 h / g)."""
    first = np.sqrt(2.0 * G * HEIGHT)
    threshold = first * E ** (bounces - 0.5)
    _, run = dropped(threshold)
    flights = 2.0 * E ** np.arange(1, bounces + 1)
    times = np.sqrt(2.0 * HEIGHT / G) * np.concatenate([[1.0], 1.0 + np.cumsum(flights)])
    assert len(run.events) == bounces + 1
    np.testing.assert_allclose([e.time for e in run.events], times, rtol=0.0, atol=1e-9)
    assert run.final_mode == ("closed",)
    np.testing.assert_allclose(run.final_state, [0.3 * 2.0, 0.0, 0.3, 0.0], atol=1e-12)


def test_what_remains_of_the_start_and_of_restitution_after_rest():
    """At rest height and its rate know neither where the ball came from nor how it bounced."""
    system, run = dropped(np.sqrt(2.0 * G * HEIGHT) * E**0.5)
    matrix = hc.linearize(system, run).state_transition
    expected = np.zeros((4, 4))
    expected[[0, 0, 2], [0, 2, 2]] = [1.0, 2.0, 1.0]
    np.testing.assert_allclose(matrix, expected, atol=1e-8)
    derivatives = parameter_derivatives(
        ball.robot(PARAMETERS), contacts(np.sqrt(2.0 * G * HEIGHT) * E**0.5), ["restitution:slope"]
    )
    found = parameter_sensitivity(system, run, derivatives)
    np.testing.assert_allclose(found.matrix, np.zeros((4, 1)), atol=1e-8)


def test_derivatives_where_one_corner_rebounds_and_the_next_does_not():
    """A tilted block: against differences of the whole flow through both impacts."""
    p = block.BlockParameters(restitution=0.5, friction=0.2)
    one, two = block.contacts(p)
    slow = (one, replace(two, restitution_threshold=100.0))
    for touching in ((one, two), slow, slow[::-1]):
        system = contact_system(block.robot(p), touching)
        start = np.array([0.0, 0.3, 0.25, 0.3, 0.0, 0.0])
        mode, end = ("open",) * 2, 0.33
        run = hc.simulate(system, mode, start, (0.0, end), rtol=1e-11, atol=1e-11)
        assert len(run.events) >= 2

        def flow(dx, system=system, mode=mode, start=start, end=end):
            options = {"rtol": 1e-11, "atol": 1e-11}
            return hc.simulate(system, mode, start + dx, (0.0, end), **options).final_state

        matrix = hc.linearize(system, run, rtol=1e-11, atol=1e-11).state_transition
        assert_derivative(flow, matrix, 1e-6)


def test_time_stepping_obeys_it_too():
    """A scheme of order one: an error of the step, here 1e-4 s, times speeds below 4 m/s."""
    for threshold in (0.5, 100.0):
        run = time_stepping(
            ball.robot(PARAMETERS), contacts(threshold), START, (0.0, 0.6), step=1e-4
        )
        exact = dropped(threshold, 0.6)[1].final_state
        np.testing.assert_allclose(run.final_state, exact, atol=4e-3)


def test_a_threshold_is_not_negative():
    with pytest.raises(InputError, match="restitution_threshold"):
        contacts(-0.1)
