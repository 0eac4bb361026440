"""Noise that compiled steps gather, beside collocation along the arc and a closed form."""

from itertools import pairwise

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import block, cube, rrr_door

import hybridctl as hc
from hybridctl.estimation.kalman_equations import propagate_along_arc
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mode import Diffusion
from hybridctl.hybrid.model import StepRequest

OPEN = ("open",)
SPAN = (0.0, 0.05)
TOSSED = np.r_[0.0, 0.0, 0.4, 0.1, 0.3, -0.2, 0.8, 1.0, 0.3, 0.0, 2.0, 6.0, -1.0]


def gathered(mode, arc, noise, steps):
    """The transition matrix of an arc and the covariance of its noise, by so many steps."""
    total, covariance = np.eye(mode.space.ndx), np.zeros((mode.space.ndx,) * 2)
    times = np.linspace(arc.start, arc.end, steps + 1)
    for t, end in pairwise(times):
        x, u = arc.state_and_input(t)
        moved = mode.transition(StepRequest(t, x, end - t, 1e-9, 1e-9), u, noise)
        assert moved.error < 1.0
        total = moved.matrix @ total
        covariance = moved.matrix @ covariance @ moved.matrix.T + moved.noise
    return total, covariance


def test_that_of_a_mass_pushed_by_noise():
    """Densities W of the velocity, V of the force: (W + V / m^2) (h^3 / 3, h^2 / 2, h)."""
    x, u, m, w, v = ca.SX.sym("x", 2), ca.SX.sym("u"), 2.0, 0.3, 0.8
    free = hc.symbolic.SymbolicMode("free", x, [x[1], u / m], u)
    never = hc.symbolic.SymbolicTransition("free", "never", 1.0, "free")
    system = hc.symbolic.hybrid_system([free], [never])
    arc = hc.simulate(system, "free", [0.0, 1.0], (0.0, 3.0)).arcs[0]
    noise = Diffusion(np.diag([0.0, w]), np.array([[v]]))
    _, found = gathered(system.mode("free"), arc, noise, 1)
    h = 3.0
    expected = (w + v / m**2) * np.array([[h**3 / 3.0, h**2 / 2.0], [h**2 / 2.0, h]])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


CASES = [
    (rrr_door.system, ("open", "open"), [-0.13, 1.37, -0.67, 0.35, 0.1, 0.3, 0.0, -0.6]),
    (lambda: block.system(actuated=True), OPEN * 2, [0.0, 0.3, 0.2, 1.0, 0.0, 2.0]),
    (
        cube.system,
        OPEN * 8,
        np.r_[0.0, 0.0, 0.4, 0.1, 0.3, -0.2, 0.8, 1.0, 0.3, 0.0, 2.0, 6.0, -1.0],
    ),
]


@pytest.mark.parametrize(("make", "key", "start"), CASES, ids=["door", "block", "cube"])
def test_without_noise_of_the_state_a_shorter_function_gathers_the_same(make, key, start):
    system = make()
    mode = system.mode(key)
    x, rng = mode.space.normalize(np.array(start)), np.random.default_rng(2)
    root, u = rng.normal(size=(mode.nu, mode.nu)), rng.normal(size=mode.nu)
    ahead, no_density = StepRequest(0.0, x, 0.01, 1e-9, 1e-9), np.zeros((mode.space.ndx,) * 2)
    found = mode.transition(ahead, u, Diffusion(no_density, root @ root.T))
    assert "_noisy_step" not in vars(mode)  # it took the shorter one
    # The longer one, by a density that is no more than rounding.
    density = no_density + 1e-300 * np.eye(mode.space.ndx)
    other = mode.transition(ahead, u, Diffusion(density, root @ root.T))
    assert "_noisy_step" in vars(mode)
    for own, its in zip(found[1:], other[1:], strict=True):
        np.testing.assert_allclose(own, its, rtol=1e-12, atol=1e-14 * np.abs(its).max() + 1e-290)
    # Bounds of guards are those of a step without derivatives.
    np.testing.assert_allclose(found.bounds, mode.step(ahead, HeldInput(u)).bounds, rtol=1e-12)


@pytest.mark.parametrize(("make", "key", "start"), CASES, ids=["door", "block", "cube"])
def test_it_is_that_of_the_riccati_equation(make, key, start):
    """On a manifold too, to the accuracy that both ask for."""
    system = make()
    x = system.mode(key).space.normalize(np.array(start)) if len(start) == 13 else np.array(start)
    mode, rng = system.mode(key), np.random.default_rng(2)
    run = hc.simulate(system, key, x, SPAN, HeldInput(rng.normal(size=mode.nu)))
    assert len(run.arcs) == 1
    n = mode.space.ndx
    root = rng.normal(size=(n, n))
    noise = Diffusion(root @ root.T, np.zeros((mode.nu, mode.nu)))
    matrix, found = gathered(mode, run.arcs[0], noise, 20)
    collocated = Noise(lambda mode, t, x, u: noise.density)  # a function might change on the way
    other = propagate_along_arc(NoisySystem(system, collocated), mode, run.arcs[0], np.eye(n))
    sizes = np.sqrt(np.diag(other.noise))
    np.testing.assert_allclose(matrix, other.state, atol=1e-7)
    apart = (found - other.noise) / np.outer(sizes, sizes)
    assert np.abs(apart).max() < 1e-7
