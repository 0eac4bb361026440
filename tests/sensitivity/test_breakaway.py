"""Contacts that break away in a surface at equal coefficients: perturbations across the slip.

Sliding begins at no speed, and friction takes perturbations across it away at mu N / m |v_t|.
"""

import numpy as np
import pytest
from mechanics.test_impact_pieces import MU, point_mass
from scipy.linalg import expm

import hybridctl as hc
from hybridctl.mechanics import Plane, contact_system
from hybridctl.sensitivity.collocation import integrate_linear_equation

LIMIT = 0.7 * 9.81 * MU  # friction on the mass, N
END = 0.9
GAINS = np.array([[2.0, 0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0, 0], np.zeros(6)])  # N/m
X0 = np.array([0.02, 0.01, 0.0, 0.0, 0.0, 0.0])


def pull(t, x):
    """A force that grows and turns, and springs that hold back."""
    angle, size = 1.0 + 1.5 * t, LIMIT * (0.6 + t)
    return size * np.array([np.cos(angle), np.sin(angle), 0.0]) - GAINS @ x


def broken_away(x0, tolerance):
    dynamics = point_mass(("x", "y", "z"), Plane((0, 0, 0), (0, 0, 1)))
    system = contact_system(dynamics.robot, dynamics.contacts)
    run = hc.simulate(system, ("stick",), x0, (0.0, END), pull, rtol=tolerance, atol=tolerance)
    assert [event.mode_after for event in run.events] == [("slip",)]
    return system, run


def compute_derivative(tolerance):
    system, run = broken_away(X0, tolerance)
    lin = hc.linearize(system, run, rtol=tolerance, atol=tolerance)
    return lin.closed_loop([GAINS, GAINS]).state_transition


def test_the_derivative_across_breakaway_is_that_of_the_flow():
    """Differences of order h^4 over 4e-3 m, of runs right to 2e-12: 1.5e-9 at the worst.

    Runs to 1e-12 are off by up to 2e-11 where friction turns at once, which such differences show.
    """
    direction, h = np.array([0.6, 0.8, 0.0, 0.0, 0.0, 0.0]), 2e-3
    ends = [broken_away(X0 + k * h * direction, 1e-13)[1].final_state for k in (2, 1, -1, -2)]
    found = (8.0 * (ends[1] - ends[2]) - (ends[0] - ends[3])) / (12.0 * h)
    expected = compute_derivative(1e-12) @ direction
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=5e-9)


def test_tighter_tolerances_change_it_by_no_more_than_they_say():
    columns = [compute_derivative(tolerance)[:, :2] for tolerance in (1e-9, 1e-11)]
    assert np.abs(columns[0] - columns[1]).max() <= 5e-8  # the trajectory is that much better


def test_it_takes_a_hundred_steps_or_so():
    system, run = broken_away(X0, 1e-9)
    lin = hc.linearize(system, run)
    steps = [len(arc.arc.breaks) for arc in lin.arcs]
    assert sum(steps) <= 120


@pytest.mark.parametrize("rate", [1.0, 1e4, 1e8])
def test_collocation_follows_stiff_linear_equations(rate):
    """z' = A z + b against the matrix exponential; at any rate, in few steps."""
    matrix = np.array([[-rate, rate, 0.0], [0.0, -1.0, 2.0], [0.0, -2.0, 0.3]])
    force = np.array([0.0, 1.0, -1.0])
    start = np.array([[1.0, 0.0], [1.0, 0.5], [0.0, 1.0]])
    both = np.zeros((4, 4))
    both[:3, :3], both[:3, 3] = matrix, force
    smooth = both[1:, 1:]
    steps = list(
        integrate_linear_equation(
            lambda t: (matrix, force), start, 0.0, 2.0, rtol=1e-10, atol=1e-10
        )
    )
    found = steps[-1].states[-1].reshape(3, 2)
    later = expm(2.0 * smooth) @ np.vstack([start[1:], np.ones(2)])
    np.testing.assert_allclose(found[1:], later[:2], atol=1e-9)
    if rate < 1e5:
        exact = (expm(2.0 * both) @ np.vstack([start, np.ones(2)]))[0]
        np.testing.assert_allclose(found[0], exact, atol=1e-9)
    else:  # z_0 = z_1 - z_1' / rate + ...
        np.testing.assert_allclose(found[0], found[1], atol=3.0 / rate + 1e-9)
    assert len(steps) <= 240  # the slope at the start of a step counts, which is steep here


@pytest.mark.parametrize("spacings", [1, 3, 40])
def test_collocation_goes_over_durations_as_short_as_rounding(spacings):
    """As between an event and a grid point that is the same number but for its last digits."""
    end = 0.25 + spacings * np.spacing(0.25)
    steps = list(
        integrate_linear_equation(
            lambda t: (np.eye(1), None), np.ones((1, 1)), 0.25, end, rtol=1e-10, atol=1e-10
        )
    )
    assert steps[-1].end == end
    assert steps[-1].states[-1, 0] == pytest.approx(1.0, abs=1e-12)
