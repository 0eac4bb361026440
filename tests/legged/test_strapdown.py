"""The flow in closed form against the integrator of all other systems, and its derivatives."""

import math

import numpy as np
import pytest
from legged.machine import (
    check_field_jacobian,
    check_transition_derivative,
    machine,
    state,
)
from scipy.linalg import expm

from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.prediction import predict
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.model import StepRequest
from hybridctl.hybrid.system import MappedSystem
from hybridctl.legged.rotation import skew
from hybridctl.legged.space import propagate_core

KEYS = [("open", "open"), ("stick", "open"), ("stick", "stick")]
H = 0.3  # s, many times that of a sample, so that every term counts


@pytest.mark.parametrize("key", KEYS)
def test_it_is_what_the_integrator_finds(key):
    """Mean, covariance with noise, and transition, by DOP853 and collocation at 1e-12."""
    base, system = machine()
    rng = np.random.default_rng(0)
    x, u = state(base, key, rng)
    root = rng.normal(size=(base.space(key).ndx,) * 2)
    estimate = Estimate(key, 0.2, x, 1e-2 * root @ root.T)
    noise = Noise(base.density, of_input=True)
    plain = MappedSystem(system, lambda k: Change())
    law = HeldInput(u)
    closed = predict(NoisySystem(system, noise), estimate, 0.2 + H, law)
    found = predict(NoisySystem(plain, noise, rtol=1e-12, atol=1e-12), estimate, 0.2 + H, law)
    scale = np.abs(found.estimate.covariance).max()
    np.testing.assert_allclose(closed.estimate.mean, found.estimate.mean, atol=1e-10)
    np.testing.assert_allclose(
        closed.estimate.covariance, found.estimate.covariance, rtol=0.0, atol=1e-9 * scale
    )
    np.testing.assert_allclose(closed.transition, found.transition, atol=1e-9)
    assert closed.estimate.time == found.estimate.time


@pytest.mark.parametrize("h", [1e-3, 0.05, 0.7])
def test_its_transition_is_its_derivative(h):
    check_transition_derivative(machine(), ("stick", "stick"), h, seed=1)


def test_the_field_has_exact_derivatives():
    check_field_jacobian(machine(), ("stick", "open"), seed=2)


def test_noise_of_half_a_step_and_the_other_half_is_that_of_the_whole():
    base, system = machine()
    key = ("stick", "open")
    x, u = state(base, key, np.random.default_rng(3))
    mode = system.mode(key)
    q = Noise(base.density, of_input=True).constant_diffusion(mode, 0.0, x, u)
    whole = mode.transition(StepRequest(0.0, x, H, 1e-9, 1e-9), u, q)
    half = mode.transition(StepRequest(0.0, x, 0.5 * H, 1e-9, 1e-9), u, q)
    other = mode.transition(StepRequest(0.0, half.state, 0.5 * H, 1e-9, 1e-9), u, q)
    noise = other.matrix @ half.noise @ other.matrix.T + other.noise
    np.testing.assert_allclose(noise, whole.noise, rtol=0.0, atol=1e-13 * np.abs(noise).max())
    np.testing.assert_allclose(other.matrix @ half.matrix, whole.matrix, atol=1e-13)


def exponential(omega, force, density, h):
    """Transition and noise of the core by one exponential of a matrix (Van Loan, 1978).

    In units in which all blocks are of order one (deviations of position and velocity over those
    that a turn of one radian makes in the time h), so that an error relative to the largest entry
    is one relative to each block.
    """
    size = max(float(np.linalg.norm(force)), 1.0)
    units = np.repeat([1.0, size * h**2, size * h, 1.0 / h, size], 3)
    a = np.zeros((15, 15))
    a[:3, :3] = a[3:6, 3:6] = a[6:9, 6:9] = -skew(omega)
    a[6:9, :3], a[3:6, 6:9] = -skew(force), np.eye(3)
    a[:3, 9:12] = a[6:9, 12:] = -np.eye(3)
    a, q = h * a / units[:, None] * units, h * density / np.outer(units, units)
    both = expm(np.block([[-a, q], [np.zeros((15, 15)), a.T]]))
    return expm(a), both[15:, 15:].T @ both[:15, 15:], units


@pytest.mark.parametrize("h", [1e-4, 2.5e-3, 0.02, 0.3])
@pytest.mark.parametrize("spread", ["white", "any"])
def test_series_of_the_core_are_those_of_an_exponential(h, spread):
    """Turns up to 20 rad/s and forces up to 100 m/s^2; noise as a robot has, and of any shape.

    The scaled generator has norm 10 at most: squarings of the exponential lose some 10 * 2^3
    roundings, 2e-14. 1e-13 leaves a margin of five; of noise relative to the deviations of row and
    column.
    """
    rng = np.random.default_rng(4)
    for rate, size in ((0.0, 9.81), (1e-3, 10.0), (1.0, 30.0), (20.0, 100.0)):
        omega, force = (s * rng.normal(size=3) / math.sqrt(3.0) for s in (rate, size))
        deviations = np.repeat([1e-3, 1e-3, 2e-2, 1e-4, 1e-3], 3)
        root = rng.normal(size=(15, 15)) * deviations[:, None]
        density = np.diag(deviations**2) if spread == "white" else root @ root.T
        phi, noise, units = exponential(omega, force, density, h)
        sensed = np.concatenate([omega, force])
        found, gathered = propagate_core(sensed, density, h)
        np.testing.assert_allclose(found / units[:, None] * units, phi, rtol=0.0, atol=1e-13)
        scaled = gathered / np.outer(units, units)
        least = 1e-13 * np.sqrt(np.outer(np.diag(noise), np.diag(noise)))
        assert (np.abs(scaled - noise) <= least).all()
        np.testing.assert_array_equal(propagate_core(sensed, None, h)[0], found)
