"""One iteration of predictive control beside the linear equations of its optimum, written apart."""

from dataclasses import replace

import numpy as np
import pytest
from planning.small_systems import MASS, WAY, straight, to_the_wall

from hybridctl.planning.horizon import Horizon, ReferenceMotion
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.quadratic_programme import HorizonCosts, HorizonProgramme

STATE, INPUT, DURATION = np.array([10.0, 3.0]), np.array([2.0]), 50.0
LAST = np.array([[4.0, 1.0], [1.0, 5.0]])
LIMITS = np.array([[-50.0], [50.0]])


@pytest.fixture(scope="module")
def reference():
    """A cart that is driven to a wall, where its motion ends."""
    task = to_the_wall(torque=50.0)
    return ReferenceMotion(task, optimise(task, straight), Horizon(intervals=(4, 2), phases=0))


@pytest.fixture
def section(reference):
    """What is planned from a third of the motion on: off it, slower, and with corrections."""
    (s,), random = reference.build_sections(0, 0.3), np.random.default_rng(3)
    shape = s.states.shape
    return replace(
        s,
        states=s.states - np.abs(random.normal(scale=0.02, size=shape)),
        corrections=random.normal(scale=0.1, size=s.corrections.shape),
        duration=1.1 * s.duration,
    )


def iterated(reference, section, limits=LIMITS):
    target = reference.build_target(section, False, np.inf)
    costs = HorizonCosts(STATE, INPUT, DURATION, LAST)
    made = HorizonProgramme(
        reference.models, [section], [target], [reference.junctions[0]], costs, limits
    )
    return target, made.solve()[0]


def optimum(reference, section, target):
    """Changes of states (N, 2), corrections (N,) and duration: the KKT system of a cart, dense.

    A step of h under an input that goes straight from a to b moves it by h v + h^2 (a / 3 + b / 6)
    / m, and makes it faster by h (a + b) / 2 m.
    """
    n, shares = len(section.corrections), section.shares
    size = 3 * n + 1  # states, corrections, duration
    hessian, gradient = np.zeros((size, size)), np.zeros(size)
    rows, right = np.zeros((2 * n + 1, size)), np.zeros(2 * n + 1)
    for i in range(n):
        h, x = shares[i] * section.duration, section.states[i]
        a, b = (target.motion.inputs[k, 0] + section.corrections[i, 0] for k in (i, i + 1))
        reached = x + np.array(
            [h * x[1] + h**2 * (a / 3.0 + b / 6.0) / MASS, h * (a + b) / 2.0 / MASS]
        )
        by_h = [x[1] + 2.0 * h * (a / 3.0 + b / 6.0) / MASS, (a + b) / 2.0 / MASS]
        at, before, now = slice(2 * i, 2 * i + 2), slice(2 * i - 2, 2 * i), 2 * n + i
        rows[at, at] = np.eye(2)
        if i:
            rows[at, before] = [[-1.0, -h], [0.0, -1.0]]
            hessian[before, before] = h * np.diag(STATE)
            gradient[before] = h * STATE * (x - target.motion.states[i])
        rows[at, now] = [-(h**2) / 2.0 / MASS, -h / MASS]
        rows[at, -1] = -shares[i] * np.array(by_h)
        right[at] = reached - section.states[i + 1]
        hessian[now, now] = h * INPUT[0]
        gradient[now] = h * INPUT[0] * section.corrections[i, 0]
    end = slice(2 * n - 2, 2 * n)
    hessian[end, end] = LAST
    gradient[end] = LAST @ (section.states[-1] - reference.evaluate_states(0, np.ones(1))[0])
    hessian[-1, -1] = DURATION
    gradient[-1] = DURATION * (section.duration - target.duration)
    rows[-1, 2 * n - 2], right[-1] = 1.0, WAY - section.states[-1, 0]
    kkt = np.block([[hessian, rows.T], [rows, np.zeros((len(rows), len(rows)))]])
    z = np.linalg.solve(kkt, np.concatenate((-gradient, right)))[:size]
    return z[: 2 * n].reshape(n, 2), z[2 * n : -1], z[-1]


def test_an_iteration_is_the_optimum_of_its_equations(reference, section):
    """To the solver's 1e-5, over the least curvature, h R = 0.15 * 2."""
    target, found = iterated(reference, section)
    states, corrections, duration = optimum(reference, section, target)
    np.testing.assert_array_equal(found.states[0], section.states[0])
    np.testing.assert_allclose(found.states[1:] - section.states[1:], states, atol=1e-4)
    np.testing.assert_allclose(
        (found.corrections - section.corrections)[:, 0], corrections, atol=1e-4
    )
    assert found.duration - section.duration == pytest.approx(duration, abs=1e-4)
    assert abs(duration) > 0.01


def test_inputs_stay_inside_their_limits_with_what_is_fed_forward(reference, section):
    """The first interval is fed most at its begin, and would get 0.04 N more than it may.

    To the solver's 1e-5 of duality gap, over a multiplier of 0.25 s R 0.04 N.
    """
    target, free = iterated(reference, section)
    fed, wanted = target.motion.inputs[0, 0], target.motion.inputs[0, 0] + free.corrections[0, 0]
    most = 0.5 * (fed + wanted)
    assert fed < most < wanted
    _, found = iterated(reference, section, np.array([[-50.0], [most]]))
    assert fed + found.corrections[0, 0] == pytest.approx(most, abs=1e-3)


def test_a_feedforward_beyond_the_limits_needs_no_correction(reference, section):
    """It is cut when it acts. The correction of 0.04 N that would add to it is left out."""
    target, free = iterated(reference, section)
    fed = target.motion.inputs[0, 0]
    assert free.corrections[0, 0] > 0.02
    _, found = iterated(reference, section, np.array([[-50.0], [0.9 * fed]]))
    assert found.corrections[0, 0] == pytest.approx(0.0, abs=1e-3)
