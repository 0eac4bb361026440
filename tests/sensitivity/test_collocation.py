"""Linear equations by collocation, and coefficients sampled along arcs, against closed forms."""

from itertools import pairwise

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import rrr_door
from scipy.linalg import expm

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.errors import IntegrationError
from hybridctl.sensitivity.collocation import collocated
from hybridctl.sensitivity.sampled import sampled_coefficients
from hybridctl.sensitivity.variation import Coefficients


def oscillator(t):
    """Its solutions are e^(sin t) (cos t^2, -sin t^2) turned: z' = (cos t + 2 t J) z."""
    return np.cos(t) * np.eye(2) + 2.0 * t * np.array([[0.0, 1.0], [-1.0, 0.0]])


def solution(t):
    c, s = np.cos(t * t), np.sin(t * t)
    return np.exp(np.sin(t)) * np.array([[c, s], [-s, c]])


def ends(equation, start, end, tolerance):
    steps = list(collocated(equation, start, 0.0, end, rtol=tolerance, atol=tolerance))
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
        (step,) = collocated(
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
        collocated(lambda t: (oscillator(t), None), np.eye(2), 0.0, 3.0, rtol=1e-17, atol=1e-300)
    )
    found = steps[-1].states[-1].reshape(2, 2)
    np.testing.assert_allclose(found, solution(3.0), atol=1e-12)
    assert len(steps) < 600


def test_no_duration_takes_no_steps():
    assert not list(
        collocated(lambda t: (oscillator(t), None), np.eye(2), 1.0, 1.0, rtol=1, atol=1)
    )


def test_coefficients_that_are_not_finite_are_an_error():
    equation = lambda t: (np.full((2, 2), np.nan if t > 0.5 else 1.0), None)  # noqa: E731
    with pytest.raises(IntegrationError, match=r"t = 0\.5"):
        ends(equation, np.eye(2), 1.0, 1e-9)


@pytest.mark.parametrize("rate", [10.0, 1e3, 1e5])
def test_a_stiff_loop_is_followed_in_few_steps(rate):
    """A mass under feedback of two decays, one at `rate`: the matrix exponential, [e^(-2 t)]."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u", 1)
    system = symbolic.hybrid_system([symbolic.Mode("free", x, [x[1], u[0]], input=u)], [])
    run = hc.simulate(system, "free", [1.0, 0.0], (0.0, 1.0), lambda t, x: np.array([np.sin(t)]))
    gain = np.array([[2.0 * rate, 2.0 + rate]])
    lin = hc.linearize(system, run).closed_loop([gain])
    loop = np.array([[0.0, 1.0], [0.0, 0.0]]) - np.array([[0.0], [1.0]]) @ gain
    np.testing.assert_allclose(lin.state_transition, expm(loop), atol=1e-8)
    assert len(lin.arcs[0].arc.breaks) <= 60


# Sampled coefficients


def on_the_way():
    """The arm of the door for 0.5 s, with torques that change."""
    system = rrr_door.system()
    mode = ("open", "open")
    space = system.mode(mode).space
    x0 = np.concatenate((rrr_door.robot().neutral() + 0.3, np.zeros(space.ndx - space.nx // 2)))
    law = lambda t, x: np.array([np.sin(5.0 * t), np.cos(4.0 * t), 0.3])  # noqa: E731
    return system, hc.simulate(system, mode, x0, (0.0, 0.5), law, rtol=1e-10, atol=1e-10)


def test_sampled_coefficients_are_the_coefficients():
    system, run = on_the_way()
    lin = hc.linearize(system, run)
    for sampled, arc in zip(lin.sampled, run.arcs, strict=True):
        assert all(series is not None for series in sampled.series)
        for t in np.linspace(arc.start, arc.end, 47).tolist():
            exact, found = lin.coefficients(arc, t), sampled(t)
            for a, b in zip((exact.state, exact.input), (found.state, found.input), strict=True):
                np.testing.assert_allclose(b, a, atol=1e-8 * np.abs(a).max())


def test_where_coefficients_are_not_smooth_they_are_asked_for_afresh():
    """A kink in one step of the record: all others are sampled."""
    arc = on_the_way()[1].arcs[0]
    step = len(arc.breaks) // 2
    kink = float(arc.breaks[step] + 0.3 * arc.lengths[step])
    asked = []

    def exact(t):
        asked.append(t)
        return Coefficients(np.diag([np.sin(t), abs(t - kink)]), np.ones((2, 1)))

    sampled = sampled_coefficients(exact, arc, 1e-9)
    assert [k for k, series in enumerate(sampled.series) if series is None] == [step]
    asked.clear()
    for t in np.linspace(arc.start, arc.end, 101).tolist():
        found = sampled(t)
        expected = np.diag([np.sin(t), abs(t - kink)])
        np.testing.assert_allclose(found.state, expected, atol=1e-9)
        np.testing.assert_allclose(found.input, 1.0, atol=1e-12)
    assert asked
    assert all(sampled.cuts[step] <= t <= sampled.cuts[step + 1] for t in asked)


def test_an_arc_of_no_duration_is_asked_for_afresh():
    system, run = on_the_way()
    lin = hc.linearize(system, run)
    at = run.arcs[0]
    point = type(at)(**{**vars(at), "end": at.start})
    sampled = sampled_coefficients(lambda t: lin.coefficients(at, t), point, 1e-9)
    np.testing.assert_array_equal(sampled(at.start).state, lin.coefficients(at, at.start).state)


@pytest.mark.parametrize("tolerance", [1e-9, 1e-11])
def test_a_kink_of_the_coefficients_does_not_hide_before_the_first_stage(tolerance):
    """z' = |t - c| z, of which the exponent is known; c falls into every part of a step."""
    for c in np.linspace(0.3, 0.5, 41):
        steps = list(
            collocated(
                lambda t, c=c: (np.array([[abs(t - c)]]), None),
                np.eye(1), 0.0, 1.0, rtol=tolerance, atol=tolerance,
            )
        )  # fmt: skip
        exact = np.exp(0.5 * (c**2 + (1.0 - c) ** 2))
        # each step may add atol + rtol |z|, and z >= 1
        error = abs(steps[-1].states[-1, 0] / exact - 1.0)
        assert error < 2.0 * len(steps) * tolerance
