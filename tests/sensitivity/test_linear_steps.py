"""Transition, noise and cost of linear systems, against exponentials and differences."""

import numpy as np
import pytest
from scipy.linalg import expm, solve_continuous_lyapunov

from hybridctl.hybrid.tableau import radau
from hybridctl.sensitivity.collocation import LinearStep, Propagation

RNG = np.random.default_rng(0)
N = 4
A = RNG.normal(size=(N, N))
S = (lambda b: b @ b.T)(RNG.normal(size=(N, 2)))
W = (lambda c: c.T @ c)(RNG.normal(size=(3, N)))


def propagate_by_collocation(h, stages, noise=S, cost=W, matrix=A):
    each = lambda m: None if m is None else np.array([m] * stages)  # noqa: E731
    return LinearStep(each(matrix), h, radau(stages)).propagation(each(noise), each(cost))


def propagate_exactly(h, noise=S, cost=W):
    """F, P and C from the exponential of the Hamiltonian, of which they are a rearrangement."""
    whole = expm(h * np.block([[A, -noise], [-cost, -A.T]]))
    back = np.linalg.inv(whole[N:, N:])
    cross = whole[:N, N:]
    f = whole[:N, :N] - cross @ back @ whole[N:, :N]
    return Propagation(f, -cross @ back, -back @ whole[N:, :N])


def distance(one, other):
    parts = ("state", "noise", "cost")
    return max(np.abs(getattr(one, part) - getattr(other, part)).max() for part in parts)


ZERO = np.zeros((N, N))


@pytest.mark.parametrize(("noise", "cost"), [(S, W), (S, None), (None, W), (None, None)])
def test_a_step_is_that_of_the_hamiltonian(noise, cost):
    expected = propagate_exactly(
        0.25, ZERO if noise is None else noise, ZERO if cost is None else cost
    )
    # of order 13: below rounding at this length
    assert distance(propagate_by_collocation(0.25, 7, noise, cost), expected) < 1e-13


@pytest.mark.parametrize(("stages", "length"), [(2, 0.2), (3, 0.4), (5, 1.6)])
def test_all_three_are_of_order_two_s_minus_one(stages, length):
    errors = [
        distance(propagate_by_collocation(h, stages), propagate_exactly(h))
        for h in (length, 0.5 * length)
    ]
    # a step of order p errs by h^(p + 1), here p = 2 s - 1
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2 * stages, abs=0.8)


def test_stretches_that_follow_each_other_are_one():
    first, second = propagate_exactly(0.3), propagate_exactly(0.5)
    assert distance(first.compose(second), propagate_exactly(0.8)) < 1e-12


def test_a_jump_between_them_is_one_too():
    """Its value and its covariance are those of its matrix, also where the dimension changes."""
    g = RNG.normal(size=(N + 1, N))
    v, p = np.diag(np.arange(1.0, N + 2.0)), np.diag(np.arange(1.0, N + 1.0))
    jump = Propagation.jump(g)
    np.testing.assert_allclose(jump.value(v), g.T @ v @ g, atol=1e-13)
    np.testing.assert_allclose(jump.covariance(p), g @ p @ g.T, atol=1e-13)
    both = propagate_exactly(0.4).compose(jump)
    np.testing.assert_allclose(both.value(v), propagate_exactly(0.4).value(g.T @ v @ g), atol=1e-11)


def test_values_go_back_as_stretches_do_and_noise_goes_forward():
    v = np.diag(np.arange(1.0, N + 1.0))
    np.testing.assert_allclose(
        propagate_exactly(0.8).value(v),
        propagate_exactly(0.3).value(propagate_exactly(0.5).value(v)),
    )
    gathered = [propagate_exactly(h, cost=ZERO) for h in (0.3, 0.5, 0.8)]
    twice = gathered[1].covariance(gathered[0].covariance(v))
    np.testing.assert_allclose(gathered[2].covariance(v), twice)


@pytest.mark.parametrize("rate", [1e2, 1e5, 1e8])
def test_what_decays_at_once_is_damped_at_any_rate(rate):
    """One step over a thousandth to a millionth of its length: the state of rest remains."""
    matrix = A - rate * np.eye(N)
    found = propagate_by_collocation(1.0, 7, cost=None, matrix=matrix)
    assert np.abs(found.state).max() < 10.0 / rate  # the formula damps by about s / (h rate)
    assert np.linalg.eigvalsh(found.noise).min() >= -1e-15
    rest = solve_continuous_lyapunov(matrix, -S)
    resolved = propagate_by_collocation(1.0 / rate, 7, cost=None, matrix=matrix)
    for _ in range(20):
        resolved = resolved.compose(resolved)
    # steps of one decay each err by 1e-13 of what they gather
    np.testing.assert_allclose(resolved.noise, rest, atol=1e-11 * np.abs(rest).max())


def test_the_pullback_is_the_gradient_by_differences():
    stages, h = 3, 0.7
    matrices = A + 0.3 * RNG.normal(size=(stages, N, N))
    weight = RNG.normal(size=(stages, N, N))

    def value(m):
        return float(np.sum(weight * LinearStep(m, h, radau(stages)).stage_maps))

    gradient = LinearStep(matrices, h, radau(stages)).pullback(weight)
    for index in [(0, 0, 0), (1, 2, 3), (2, 3, 1)]:
        step = np.zeros_like(matrices)
        step[index] = 1e-5
        found = (value(matrices + step) - value(matrices - step)) / 2e-5
        assert gradient[index] == pytest.approx(found, rel=1e-7)


def test_many_steps_at_once_are_those_one_by_one():
    formula, lengths = radau(3), np.array([0.1, 0.4])
    matrices = A + 0.1 * RNG.normal(size=(2, 3, N, N))
    both = LinearStep(matrices, lengths, formula)
    for k in range(2):
        one = LinearStep(matrices[k], float(lengths[k]), formula)
        np.testing.assert_allclose(both.stage_maps[k], one.stage_maps, atol=1e-14)
        np.testing.assert_allclose(both.force_response[k], one.force_response, atol=1e-14)
        np.testing.assert_allclose(both.weights[k], one.weights)
        back = RNG.normal(size=both.stage_maps.shape)
        np.testing.assert_allclose(both.pullback(back)[k], one.pullback(back[k]), atol=1e-13)
