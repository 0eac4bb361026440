"""Linear equations by collocation, against closed forms."""

from itertools import pairwise

import casadi as ca
import numpy as np
import pytest
from scipy.linalg import expm

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import IntegrationError
from hybridctl.sensitivity.collocation import integrate_linear_equation


def oscillator(t):
    """Its solutions are e^(sin t) (cos t^2, -sin t^2) turned: z' = (cos t + 2 t J) z."""
    return np.cos(t) * np.eye(2) + 2.0 * t * np.array([[0.0, 1.0], [-1.0, 0.0]])


def solution(t):
    c, s = np.cos(t * t), np.sin(t * t)
    return np.exp(np.sin(t)) * np.array([[c, s], [-s, c]])


def ends(equation, start, end, tolerance):
    steps = list(
        integrate_linear_equation(equation, start, 0.0, end, rtol=tolerance, atol=tolerance)
    )
    return steps, steps[-1].states[-1].reshape(start.shape)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-9, 1e-12])
def test_the_solution_is_as_accurate_as_asked_for_at_all_times(tolerance):
    """Some thirty steps, each of which adds no more than its tolerance."""
    steps, _ = ends(lambda t: (oscillator(t), None), np.eye(2), 3.0, tolerance)
    worst = max(
        np.abs(step.state(t).reshape(2, 2) - solution(t)).max()
        for step in steps
        for t in np.linspace(step.start, step.end, 9)
    )
    assert worst <= 10.0 * tolerance
    assert steps[0].start == 0.0
    assert steps[-1].end == 3.0
    assert all(a.end == b.start for a, b in pairwise(steps))


def test_the_last_value_of_a_step_converges_with_order_thirteen():
    """One step over the length h from 1, at h and h / 2: a factor of 2^14 locally."""
    errors = []
    for h in (2.0, 1.0):
        (step,) = integrate_linear_equation(
            lambda t: (oscillator(1.0 + t), None), solution(1.0), 0.0, h, rtol=1e9, atol=1e9, leap=h
        )
        errors.append(np.abs(step.states[-1].reshape(2, 2) - solution(1.0 + h)).max())
    assert errors[0] > 1e-10  # above rounding
    assert 13.0 <= np.log2(errors[0] / errors[1]) <= 15.5


def test_each_column_may_have_a_force_of_its_own():
    """Columns with b (n, k) are those of k equations with b (n,)."""
    force = np.array([[1.0, 0.0, -2.0], [0.5, 1.0, 0.0]])
    start = np.array([[1.0, 0.0, 0.3], [0.0, 1.0, 0.2]])
    _, both = ends(lambda t: (oscillator(t), (1.0 + t) * force), start, 2.0, 1e-11)
    for k in range(3):
        _, one = ends(
            lambda t, k=k: (oscillator(t), (1.0 + t) * force[:, k]), start[:, [k]], 2.0, 1e-11
        )
        np.testing.assert_allclose(both[:, k], one[:, 0], atol=1e-9)


def test_tolerances_below_rounding_do_not_stop_it():
    steps = list(
        integrate_linear_equation(
            lambda t: (oscillator(t), None), np.eye(2), 0.0, 3.0, rtol=1e-17, atol=1e-300
        )
    )
    found = steps[-1].states[-1].reshape(2, 2)
    np.testing.assert_allclose(found, solution(3.0), atol=1e-12)
    assert len(steps) < 600


def test_no_duration_takes_no_steps():
    assert not list(
        integrate_linear_equation(
            lambda t: (oscillator(t), None), np.eye(2), 1.0, 1.0, rtol=1, atol=1
        )
    )


def test_coefficients_that_are_not_finite_are_an_error():
    equation = lambda t: (np.full((2, 2), np.nan if t > 0.5 else 1.0), None)  # noqa: E731
    with pytest.raises(IntegrationError, match=r"t = 0\.5"):
        ends(equation, np.eye(2), 1.0, 1e-9)


@pytest.mark.parametrize("rate", [10.0, 1e3, 1e5])
def test_a_stiff_loop_is_followed_in_few_steps(rate):
    """A mass under feedback of two decays, one at `rate`: the matrix exponential, [e^(-2 t)]."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u", 1)
    system = symbolic.hybrid_system([symbolic.SymbolicMode("free", x, [x[1], u[0]], input=u)], [])
    run = hc.simulate(system, "free", [1.0, 0.0], (0.0, 1.0), lambda t, x: np.array([np.sin(t)]))
    gain = np.array([[2.0 * rate, 2.0 + rate]])
    lin = hc.linearize(system, run).closed_loop([gain])
    loop = np.array([[0.0, 1.0], [0.0, 0.0]]) - np.array([[0.0], [1.0]]) @ gain
    np.testing.assert_allclose(lin.state_transition, expm(loop), atol=1e-8)
    assert len(lin.arcs[0].arc.breaks) <= 60


@pytest.mark.parametrize("tolerance", [1e-9, 1e-11])
def test_a_kink_of_the_coefficients_does_not_hide_before_the_first_stage(tolerance):
    """z' = |t - c| z, of which the exponent is known; c falls into every part of a step."""
    for c in np.linspace(0.3, 0.5, 41):
        steps = list(
            integrate_linear_equation(
                lambda t, c=c: (np.array([[abs(t - c)]]), None),
                np.eye(1), 0.0, 1.0, rtol=tolerance, atol=tolerance,
            )
        )  # fmt: skip
        exact = np.exp(0.5 * (c**2 + (1.0 - c) ** 2))
        # each step may add atol + rtol |z|, and z >= 1
        error = abs(steps[-1].states[-1, 0] / exact - 1.0)
        assert error < 2.0 * len(steps) * tolerance


@pytest.mark.parametrize(("start", "size"), [(1.0, 1e9), (1.0, 1e18), (0.0, 1e18)])
def test_coefficients_that_no_numbers_resolve_are_an_error(start, size):
    """Where steps are a few spacings of numbers long, a shorter one is rounded to the same."""
    times = []

    def equation(t):
        times.append(t)
        assert len(times) < 10_000
        return np.array([[0.0, 1.0], [size * np.sin(1e25 * t), 0.0]]), None

    with pytest.raises(IntegrationError, match="faster than steps"):
        list(
            integrate_linear_equation(equation, np.eye(2), start, start + 0.1, rtol=1e-9, atol=1e-9)
        )
