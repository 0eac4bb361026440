"""Value functions through simultaneous events: bounds, means, phantom modes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridctl.control.lqr.jumps import SimultaneousJump, compute_mean_form, compute_upper_form
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.saltation import JumpGains

N, NU = 3, 1


def piecewise(guards, seed=0, reset_input=0.0):
    """A piecewise of constant fields that jump by one vector for each guard, plus a bend."""
    random = np.random.default_rng(seed)
    normals = np.eye(guards, N) + 0.1 * random.normal(size=(guards, N))
    before = -np.ones(N) - 0.2 * random.random(N)
    bends = {
        frozenset(j for j in range(guards) if b >> j & 1): before + 0.5 * random.random(N) * b
        for b in range(2**guards)
    }

    def micro(fired, j):
        rate = normals[j] @ bends[fired]
        return JumpGains(
            -normals[j] / rate,
            np.zeros(NU),
            None,
            reset_input * np.ones((N, NU)),
            bends[fired | {j}] - bends[fired],
            np.zeros(N),
        )

    return PiecewiseLinearJump([f"g{j}" for j in range(guards)], micro)


def definite(seed, rank=N):
    root = np.random.default_rng(seed).normal(size=(N, rank))
    return root @ root.T


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, N), st.integers(1, N))
def test_above_both_is_above_both_and_touches_each_direction(seed, first_rank, second_rank):
    first, second = definite(seed, first_rank), definite(seed + 1, second_rank)
    above = compute_upper_form(first, second)
    scale = np.abs(above).max()
    for p in (first, second):
        assert np.linalg.eigvalsh(above - p).min() > -1e-10 * scale
    # minimal: in the common eigenvectors it is one or the other, so that these two do not overlap
    np.testing.assert_allclose(
        (above - first) @ np.linalg.pinv(first + second, rcond=1e-12) @ (above - second),
        0.0,
        atol=1e-8 * scale,
    )
    np.testing.assert_allclose(compute_upper_form(first, first), first, atol=1e-10 * scale)


def test_nothing_is_above_nothing():
    np.testing.assert_array_equal(
        compute_upper_form(np.zeros((2, 2)), np.zeros((2, 2))), np.zeros((2, 2))
    )


GAINS = {frozenset(): lambda v: np.zeros((NU, N))}


@pytest.mark.parametrize("guards", [2, 3])
def test_the_worst_case_bounds_the_cost_of_every_direction(guards):
    c, after = piecewise(guards), definite(1)
    value, phantoms = SimultaneousJump("worst", None).compute_value_before(c, after, GAINS)
    assert not phantoms
    dx = np.random.default_rng(2).normal(size=(500, N))
    z = c(dx)
    costs, bounds = (np.einsum("ki,ij,kj->k", d, v, d) for d, v in ((z, after), (dx, value)))
    assert (costs <= bounds * (1.0 + 1e-10)).all()
    assert len(c.pieces()) > 1


@pytest.mark.parametrize("guards", [2, 3])
def test_the_mean_is_that_of_random_deviations(guards):
    c, after = piecewise(guards), definite(1)
    covariance = definite(5) + 0.1 * np.eye(N)
    value = compute_mean_form(c, after, covariance)
    dx = np.random.default_rng(3).multivariate_normal(np.zeros(N), covariance, 200_000)
    z = c(dx)
    sampled = np.einsum("ki,ij,kj->k", z, after, z)
    off = 5.0 * sampled.std() / np.sqrt(len(sampled))  # five standard errors
    assert np.sum(value * covariance) == pytest.approx(sampled.mean(), abs=off)


def test_two_guards_weigh_by_half_whatever_the_covariance():
    c, after = piecewise(2), definite(1)
    forms = [m.T @ after @ m for m in (c.matrix((0, 1)), c.matrix((1, 0)))]
    for seed in (4, 5):
        found = compute_mean_form(c, after, definite(seed) + 0.1 * np.eye(N))
        np.testing.assert_allclose(found, 0.5 * (forms[0] + forms[1]), rtol=1e-9)


@pytest.mark.parametrize("treatment", ["worst", "mean"])
def test_a_linear_cascade_is_treated_as_one_jump(treatment):
    gains = JumpGains(np.ones(N), np.zeros(NU), None, np.zeros((N, NU)), np.ones(N), np.zeros(N))
    still = JumpGains(
        np.arange(3.0), np.zeros(NU), None, np.zeros((N, NU)), np.zeros(N), np.zeros(N)
    )
    c = PiecewiseLinearJump(["a", "b"], lambda fired, j: gains if j == 0 else still)
    after = definite(1)
    spread = np.eye(N) if treatment == "mean" else None
    value, _ = SimultaneousJump(treatment, spread).compute_value_before(c, after, GAINS)
    exact = gains.state.T @ after @ gains.state
    np.testing.assert_allclose(value, exact, rtol=1e-9, atol=1e-9)


def test_a_phantom_mode_has_the_cost_of_the_guard_that_is_left():
    c, after = piecewise(2), definite(1)
    seen = {}

    def gain(name):
        def of(v):
            seen[name] = v
            return np.ones((NU, N)) @ v

        return of

    gains = {f: gain(f) for f in (frozenset(), frozenset({0}), frozenset({1}))}
    _, phantoms = SimultaneousJump("worst", None).compute_value_before(c, after, gains)
    assert set(phantoms) == {frozenset({0}), frozenset({1})}
    for fired, left in ((0, 1), (1, 0)):
        g = c.jump(frozenset({fired}), left).state
        exact = g.T @ after @ g
        np.testing.assert_allclose(phantoms[frozenset({fired})].value, exact, rtol=1e-10)
        np.testing.assert_allclose(phantoms[frozenset({fired})].gain, np.ones((NU, N)) @ exact)


def test_an_input_at_the_events_is_fed_back_with_the_gains_of_each_mode():
    c, after = piecewise(2, reset_input=0.02), definite(1)
    factor = 0.1 * np.ones((NU, N))
    gains = {f: lambda v: factor @ v for f in (frozenset(), frozenset({0}), frozenset({1}))}
    value, phantoms = SimultaneousJump("worst", None).compute_value_before(c, after, gains)
    for fired, left in ((0, 1), (1, 0)):
        phantom, jump = phantoms[frozenset({fired})], c.jump(frozenset({fired}), left)
        closed = jump.state - jump.input @ phantom.gain
        np.testing.assert_allclose(phantom.value, closed.T @ after @ closed, rtol=1e-9)
    fed = c.with_feedback(lambda fired: phantoms[fired].gain if fired else factor @ value)
    dx = np.random.default_rng(2).normal(size=(500, N))
    z = fed(dx)
    costs, bounds = (np.einsum("ki,ij,kj->k", d, v, d) for d, v in ((z, after), (dx, value)))
    assert (costs <= bounds * (1.0 + 1e-10)).all()
