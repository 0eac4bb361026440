"""One step of mean and covariance: compiled with its noise, collocated, and in closed form."""

import casadi as ca
import numpy as np
import pytest
from estimation.systems import affine
from hybridctl.robots import ball, block, cube
from scipy.linalg import expm
from sensitivity.test_breakaway import X0, broken_away

from hybridctl import symbolic
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.kalman_equations import (
    StatePrediction,
    propagate_along_arc,
    propagate_over_step,
)
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.prediction import extend_past_guards, predict
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.model import StepRequest
from hybridctl.sensitivity.propagation import propagate_perturbations

H = 0.02


def pushed(h, mass, w):
    """Covariance of place and speed after white noise of a force of density w."""
    place, both, speed = h**3 / 3.0, h**2 / 2.0, h
    return np.kron([[place, both], [both, speed]], w / mass**2 * np.eye(2))


def test_a_compiled_step_gathers_the_noise_of_a_force_in_closed_form():
    p, w = ball.BallParameters(slope=0.0), 0.04
    system = ball.system(p)
    noise = Noise(w * np.eye(2), through_input=True)
    kf = SaltedKalmanFilter(system, noise, coordinates("z", [0, 1], np.eye(2)))
    start = Estimate(("open",), 0.0, np.array([0.0, 1.0, 0.5, 0.3]), np.diag([1.0, 2.0, 3.0, 4.0]))
    found = predict(kf.model, start, H, HeldInput(np.zeros(2)))
    ahead = StepRequest(0.0, start.mean, H, 1e-9, 1e-9)
    assert kf.model.diffusion(system.mode(("open",)), ahead, np.zeros(2)) is not None
    phi = np.kron([[1.0, H], [0.0, 1.0]], np.eye(2))
    right = phi @ start.covariance @ phi.T + pushed(H, p.mass, w)
    np.testing.assert_allclose(found.transition, phi, atol=1e-14)
    np.testing.assert_allclose(found.estimate.covariance, right, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("density", [np.diag([0.0, 0.0, 0.0, 1.0, 2.0, 3.0]), None])
def test_compiled_and_collocated_a_step_is_the_same(density):
    system = block.system(actuated=True)
    mode = system.mode(("open", "open"))
    noise = Noise(np.diag([1.0, 4.0, 0.1]), through_input=True)
    if density is not None:
        noise = Noise(density)
    x, u, p = np.array([0.0, 0.5, 0.3, 1.0, 0.2, -2.0]), np.array([0.3, 0.1, -0.2]), np.eye(6)
    kf = SaltedKalmanFilter(
        system,
        noise,
        coordinates("z", [0], np.eye(1)),
        options=FilterOptions(rtol=1e-10, atol=1e-10),
    )
    ahead = StepRequest(0.0, x, H, 1e-10, 1e-10)
    moved = mode.transition(ahead, u, kf.model.diffusion(mode, ahead, u))
    taken = mode.step(ahead, HeldInput(u))
    flow = propagate_over_step(kf.model, mode, 0.0, H, taken.states, u, p)
    np.testing.assert_allclose(moved.state, taken.states[-1], atol=1e-14)
    np.testing.assert_allclose(moved.matrix, flow.state, atol=1e-12)
    np.testing.assert_allclose(moved.noise, flow.noise, atol=1e-12)


@pytest.mark.parametrize("key", [("stick", "stick"), ("slip+", "open"), ("open", "stick")])
def test_what_gives_way_gathers_the_same_compiled_and_collocated(key):
    system = block.system(actuated=True)
    mode = system.mode(key)
    noise = Noise(np.diag([1.0, 4.0, 0.1]), through_input=True, compliance=0.5)
    x, u = mode.project(np.array([0.1, 0.05, 0.1, 0.4, 0.0, 0.3])), np.array([0.3, 0.1, -0.2])
    kf = SaltedKalmanFilter(
        system,
        noise,
        coordinates("z", [0], np.eye(1)),
        options=FilterOptions(rtol=1e-10, atol=1e-10),
    )
    ahead = StepRequest(0.0, x, 2e-3, 1e-10, 1e-10)
    moved = mode.transition(ahead, u, kf.model.diffusion(mode, ahead, u))
    taken = mode.step(ahead, HeldInput(u))
    flow = propagate_over_step(kf.model, mode, 0.0, ahead.h, taken.states, u, np.zeros((6, 6)))
    assert moved.error < 1.0
    sizes = np.sqrt(np.diag(flow.noise))
    # each is as accurate as the tolerance of the noise gathered; none of it is zero
    np.testing.assert_allclose(moved.noise / np.outer(sizes, sizes),
                               flow.noise / np.outer(sizes, sizes), atol=1e-9)  # fmt: skip
    rigid = Noise(noise.value, through_input=True, compliance=0.0).constant_diffusion(
        mode, 0.0, x, u
    )
    assert np.abs(mode.transition(ahead, u, rigid).noise - moved.noise).max() > 1e-6


@pytest.mark.parametrize("part", [0.02, 0.5, 0.97, 0.9999, 1.001, 1.5, 50.0])
def test_a_stop_on_the_way_is_not_stepped_over(part):
    """A cube that slides flat loses mu g of its speed: it stands after this part of the step."""
    p, h = cube.CubeParameters(), 0.01
    system = cube.system(p, actuated=True)
    slowing = p.friction * p.gravity
    x = np.r_[0.0, 0.0, p.half_width, 0.0, 0.0, 0.0, 1.0, part * h * slowing, np.zeros(5)]
    bottom = ["bottom" in name for name in cube.CORNERS]
    sliding, standing = (
        tuple(state if below else "open" for below in bottom) for state in ("slip", "stick")
    )
    noise = Noise(1e-4 * np.eye(6), through_input=True)
    kf = SaltedKalmanFilter(system, noise, coordinates("z", [0], np.eye(1)))
    start = Estimate(sliding, 0.0, x, 1e-8 * np.eye(12))
    found = predict(kf.model, start, h, HeldInput(np.zeros(6)))
    left = min(part, 1.0) * h  # the time until it stands, or until the end
    travelled = x[7] * left - 0.5 * slowing * left**2
    # to the tolerance of a run, 1e-9 of coordinates, and the speed at which sliding ends, 1e-8
    np.testing.assert_allclose(found.estimate.mean[0], travelled, atol=1e-9)
    np.testing.assert_allclose(found.estimate.mean[7], x[7] - slowing * left, atol=2e-8)
    assert found.estimate.mode == (standing if part < 1.0 else sliding)
    assert len(found.events) == (part < 1.0)


def test_by_one_step_past_a_guard_and_by_steps_it_is_the_same():
    system = ball.system(ball.BallParameters(slope=0.0))
    noise = Noise(0.04 * np.eye(2), through_input=True)
    kf = SaltedKalmanFilter(system, noise, coordinates("z", [0, 1], np.eye(2)))
    start = Estimate(("open",), 0.0, np.array([0.0, 0.01, 0.5, -2.0]), np.eye(4))
    whole = StatePrediction(start, transition=np.eye(4))
    held = extend_past_guards(kf.model, whole, H, HeldInput(np.zeros(2)))
    asked = extend_past_guards(kf.model, whole, H, lambda t, x: np.zeros(2))
    assert held.estimate.mean[1] < -0.02
    np.testing.assert_allclose(held.estimate.mean, asked.estimate.mean, atol=1e-12)
    np.testing.assert_allclose(held.estimate.covariance, asked.estimate.covariance, atol=1e-12)


@pytest.mark.parametrize("change", [0.3, 0.7])
def test_noise_that_changes_at_once_is_gathered_on_both_sides(change):
    """No series holds across the change: steps end there, to 2^-10 of the whole."""
    few, much = 0.5, 2.0
    noise = Noise(lambda mode, t, x, u: [[few if t < change else much]])
    kf = SaltedKalmanFilter(affine([[-1.0]], [0.0]), noise, coordinates("z", [0], np.eye(1)))
    start = Estimate("flow", 0.0, np.zeros(1), np.eye(1))
    found = kf.predict(start, 1.0).estimate.covariance
    at_first, at_last = np.exp(-2.0), np.exp(-2.0 * (1.0 - change))
    right = at_first + 0.5 * few * (at_last - at_first) + 0.5 * much * (1.0 - at_last)
    # in the step of the change, of length 2^-10, either noise may be taken for the other
    np.testing.assert_allclose(found, right, rtol=0.0, atol=(much - few) / 2**10)


def test_the_flow_of_a_covariance_is_that_of_the_linearization_where_friction_is_stiff():
    """At breakaway friction turns at once, in a direction that no start of an arc knows."""
    system, run = broken_away(X0, 1e-12)
    arc = run.arcs[1]
    mode, unit = system.mode(arc.mode), np.eye(6)
    right = propagate_perturbations(mode, arc, unit, rtol=1e-11, atol=1e-11).end
    noise = Noise(lambda mode, t, x, u: 0.1 * np.eye(3), through_input=True)
    for w in (None, noise):
        found = propagate_along_arc(NoisySystem(system, w), mode, arc, unit)
        # each of some eighty steps may add 1e-9 to entries of size one
        np.testing.assert_allclose(found.state, right, rtol=0.0, atol=1e-7)


@pytest.mark.parametrize("rate", [1e2, 1e4])
def test_noise_beside_a_stiff_decay_is_that_of_one_exponential(rate):
    """Van Loan's block of the equation, over short parts of the time, one after the other."""
    a = np.array([[0.0, 1.0, 0.0], [-4.0, -0.5, 1.0], [0.0, rate, -rate]])
    q, end, parts = np.diag([0.0, 0.1, 0.2]), 0.1, 1000
    both = expm(end / parts * np.block([[-a, q], [np.zeros((3, 3)), a.T]]))
    phi = both[3:, 3:].T
    moved, gathered, step = np.eye(3), np.zeros((3, 3)), phi @ both[:3, 3:]
    for _ in range(parts):
        moved, gathered = phi @ moved, phi @ gathered @ phi.T + step
    kf = SaltedKalmanFilter(
        affine(a, np.zeros(3)), Noise(lambda mode, t, x, u: q), coordinates("z", [0], np.eye(1))
    )
    found = kf.predict(Estimate("flow", 0.0, np.ones(3), np.zeros((3, 3))), end)
    np.testing.assert_allclose(found.transition, moved, rtol=0.0, atol=1e-8)
    # of the largest entry; some hundred steps, each of which may add 1e-9 of it
    covariance, largest = found.estimate.covariance, np.abs(gathered).max()
    np.testing.assert_allclose(covariance, gathered, rtol=0.0, atol=1e-7 * largest)


@pytest.mark.parametrize(("size", "rate"), [(3.0, 10.0), (1.0, 5.0), (1.0, 20.0)])
def test_a_rate_of_growth_that_swings_is_integrated_however_long_the_prediction(size, rate):
    """One coordinate commutes with itself at all times: nothing but its integral counts."""
    x, t = ca.SX.sym("x"), ca.SX.sym("t")
    field = size * ca.cos(rate * t) * x
    system = symbolic.hybrid_system(
        [symbolic.SymbolicMode("flow", state=x, field=field, time=t)], []
    )
    kf = SaltedKalmanFilter(
        system,
        np.zeros((1, 1)),
        coordinates("z", [0], np.eye(1)),
        options=FilterOptions(rtol=1e-9, atol=1e-9),
    )
    found = kf.predict(Estimate("flow", 0.0, np.ones(1), np.eye(1)), 1.0).estimate
    grown = np.exp(size / rate * np.sin(rate))
    # of the tolerance, on some ten stretches, and twice in the square
    np.testing.assert_allclose(found.mean, [grown], rtol=1e-7)
    np.testing.assert_allclose(found.covariance, [[grown**2]], rtol=1e-7)


def test_noise_that_swings_is_gathered_by_its_integral():
    """Also where the state stands still, and nothing but the noise changes."""
    noise = Noise(lambda mode, t, x, u: [[1.0 + np.cos(20.0 * t)]])
    kf = SaltedKalmanFilter(
        affine([[0.0]], [0.0]),
        noise,
        coordinates("z", [0], np.eye(1)),
        options=FilterOptions(rtol=1e-9, atol=1e-9),
    )
    found = kf.predict(Estimate("flow", 0.0, np.zeros(1), np.zeros((1, 1))), 1.0).estimate
    np.testing.assert_allclose(found.covariance, [[1.0 + np.sin(20.0) / 20.0]], rtol=1e-7)


@pytest.mark.parametrize("rate", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("h", [0.01, -0.01])
def test_a_step_forth_or_back_is_as_accurate_as_asked_or_none(rate, h):
    """An oscillator; the map of a step that is taken is that of the exponential."""
    a = np.array([[0.0, rate], [-rate, 0.0]])
    system, rtol = affine(a, np.zeros(2)), 1e-9
    model = NoisySystem(system, None, rtol=rtol)
    states = np.zeros((8, 2))
    flow = propagate_over_step(model, system.mode("flow"), 0.0, h, states, np.zeros(0), np.eye(2))
    assert (flow is None) == (rate > 10.0)
    if flow is not None:
        np.testing.assert_allclose(flow.state, expm(h * a), rtol=0.0, atol=rtol)
