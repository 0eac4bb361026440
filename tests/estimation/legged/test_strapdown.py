"""The flow in closed form against the integrator of all other systems, and its derivatives."""

import numpy as np
import pytest
from estimation.legged.machine import (
    check_field_jacobian,
    check_transition_derivative,
    machine,
    state,
)

from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.model import Model
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.predict import predict
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.model import StepAhead
from hybridctl.hybrid.system import MappedSystem

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
    closed = predict(Model(system, noise), estimate, 0.2 + H, law)
    found = predict(Model(plain, noise, rtol=1e-12, atol=1e-12), estimate, 0.2 + H, law)
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
    q = Noise(base.density, of_input=True).held(mode, 0.0, x, u)
    whole = mode.transition(StepAhead(0.0, x, H, 1e-9, 1e-9), u, q)
    half = mode.transition(StepAhead(0.0, x, 0.5 * H, 1e-9, 1e-9), u, q)
    other = mode.transition(StepAhead(0.0, half.state, 0.5 * H, 1e-9, 1e-9), u, q)
    noise = other.matrix @ half.noise @ other.matrix.T + other.noise
    np.testing.assert_allclose(noise, whole.noise, rtol=0.0, atol=1e-13 * np.abs(noise).max())
    np.testing.assert_allclose(other.matrix @ half.matrix, whole.matrix, atol=1e-13)
