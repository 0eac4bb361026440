"""The smoother is the joint normal distribution of all states and values, also through events."""

from itertools import product

import numpy as np
import pytest
from estimation.joint import dense
from estimation.piecewise import affine_guard, affine_mode, affine_reset
from estimation.systems import GRAVITY, affine, bouncing_ball, height, two_flows
from hybridctl.robots import ball
from scipy.linalg import expm

import hybridctl as hc
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import linear
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.estimation.smoother import smooth
from hybridctl.hybrid.mode import Transition
from hybridctl.sampling.particle import ParticleFilter
from hybridctl.sampling.unscented import UnscentedFilter

A = np.array([[0.0, 1.0, 0.0], [-4.0, -0.3, 0.5], [0.0, 0.2, -1.5]])
Q = np.diag([1e-3, 0.2, 0.05])
P0 = np.diag([0.04, 0.1, 0.2]) + 0.01
H = np.array([[1.0, 0.0, 0.3], [0.0, 1.0, 0.0]])
R = np.array([[0.01, 0.002], [0.002, 0.03]])
TIGHT = FilterOptions(rtol=1e-13, atol=1e-14)
NONE = np.zeros((2, 2))


def gathered(h):
    n = len(A)
    both = expm(h * np.block([[-A, Q], [np.zeros((n, n)), A.T]]))
    phi = both[n:, n:].T
    return phi, phi @ both[:n, n:]


@pytest.mark.parametrize("kind", [SaltedKalmanFilter, UnscentedFilter])
def test_on_a_linear_flow_it_is_the_dense_solution(kind):
    times = np.array([0.1, 0.15, 0.15, 0.6, 0.61, 1.4])
    values = np.random.default_rng(0).normal(size=(6, 2))
    x0 = np.array([0.5, -0.2, 0.1])
    kf = kind(affine(A, np.zeros(3)), Q, linear("z", H, R, gate=None), options=TIGHT)
    found = smooth(
        kf.model.system, kf.run(Record({"z": Series(times, values)}), Estimate("flow", 0.0, x0, P0))
    )
    flows = [gathered(h) for h in np.diff([0.0, *times])]
    means = np.array([expm(A * t) @ x0 for t in (0.0, *times)])
    maps, noises = zip(*flows, strict=True)
    ways, blocks = dense(maps, noises, P0, H, R, values - means[1:] @ H.T)
    for e, mean, p in zip((found.initial, *found.estimates), means + ways, blocks, strict=True):
        np.testing.assert_allclose(e.mean, mean, atol=1e-10)
        np.testing.assert_allclose(e.covariance, p, atol=1e-10)
    assert not found.notes


def test_through_a_bounce_it_is_the_dense_solution_with_the_saltation_matrix():
    """Small residuals, so that all is first order: the second is 1e-6 squared."""
    system, noise = bouncing_ball(), np.diag([0.0, 1e-12])
    x0, p0 = np.array([1.0, 0.3]), 1e-12 * np.array([[1.0, 0.2], [0.2, 4.0]])
    times = np.array([0.2, 0.4, 0.6, 0.8])
    run = hc.simulate(system, "air", x0, (0.0, 0.8), rtol=1e-12, atol=1e-12)
    (event,) = run.events
    residuals = 1e-6 * np.random.default_rng(1).normal(size=4)
    values = np.array([run(t)[0] for t in times]) + residuals
    kf = SaltedKalmanFilter(
        system, noise, height(1e-12), options=FilterOptions(rtol=1e-12, atol=1e-12)
    )
    result = kf.run(Record({"height": Series(times, values)}), Estimate("air", 0.0, x0, p0))
    found = smooth(system, result)

    def free(h):
        phi = np.array([[1.0, h], [0.0, 1.0]])
        return phi, 1e-12 * np.array([[h**3 / 3.0, h**2 / 2.0], [h**2 / 2.0, h]])

    (a, qa), (b, qb) = free(event.time - 0.4), free(0.6 - event.time)
    g = hc.saltation_matrix(system, event)
    step, q = free(0.2)
    maps = [step, step, b @ g @ a, step]
    noises = [q, q, b @ g @ qa @ g.T @ b.T + qb, q]
    ways, blocks = dense(maps, noises, p0, np.eye(1, 2), 1e-12 * np.eye(1), residuals)
    for t, e, way, p in zip(times, found.estimates, ways[1:], blocks[1:], strict=True):
        np.testing.assert_allclose(e.mean - run(t), way, atol=1e-10)
        np.testing.assert_allclose(e.covariance, p, rtol=1e-4, atol=1e-18)


def crossing(seed, hypotheses):
    """Filter and result for poor values near a line at which a constant flow changes."""
    rng = np.random.default_rng(seed)
    m0, p0 = np.array([-0.2, -0.06]), 0.05**2 * np.eye(2)
    system, matrix, _ = two_flows(*FLOWS)
    x0, times = rng.multivariate_normal(m0, p0), 0.05 * np.arange(1, 9)
    truth = np.array([hc.simulate(system, "I", x0, (0.0, t)).final_state for t in times])
    values = truth + 0.05 * rng.normal(size=(8, 2))
    measured = linear("z", np.eye(2), p0, gate=None)
    kf = SaltedKalmanFilter(
        system, NONE, measured, options=FilterOptions(rewind=0.5), hypotheses=hypotheses
    )
    result = kf.run(Record({"z": Series(times, values)}), Estimate("I", 0.0, m0, p0))
    return system, matrix, result, values


FLOWS = np.array([1.0, 0.3]), np.array([0.5, 1.2])
ADMITTED, UNDONE = (55, 59), (120, 132, 148)


@pytest.mark.parametrize(
    ("seed", "hypotheses"), [*product(ADMITTED, [1]), *product([*ADMITTED, *UNDONE], [4])]
)
def test_corrections_across_a_guard_are_followed_back(seed, hypotheses):
    """Constant flows have exact first-order maps, so any sequence of modes has a dense solution.

    One hypothesis is taken across by a value; of several, another one has crossed by then.
    """
    system, matrix, result, values = crossing(seed, hypotheses)
    assert any(h.reconciliation for h in result.history) == (hypotheses == 1)
    assert any(step.undone for step in result.steps) == (seed in UNDONE)
    compared = [h.predicted.mode for h in result.history]
    last = compared.count("I") - 1
    assert compared == ["I"] * (last + 1) + ["J"] * (len(compared) - last - 1)
    m0, p = result.initial.mean, result.initial.covariance
    information, vector = np.linalg.inv(p), np.linalg.inv(p) @ m0
    for k, t in enumerate(result.times):
        h, c = (np.eye(2), FLOWS[0] * t) if k <= last else (matrix, FLOWS[1] * t)
        information = information + h.T @ np.linalg.inv(p) @ h  # values are as good as the start
        vector = vector + h.T @ np.linalg.inv(p) @ (values[k] - c)
    found = smooth(system, result)
    np.testing.assert_allclose(found.initial.mean, np.linalg.solve(information, vector), atol=1e-8)
    np.testing.assert_allclose(
        found.initial.covariance, np.linalg.inv(information), rtol=1e-6, atol=1e-15
    )
    assert not found.notes


def test_noise_of_a_reset_that_a_correction_brought_about_comes_after_its_value():
    """In closed form: the second value has the noise of the reset besides its own, the first not.

    x falls through 0, where y becomes y + 1, more or less; the first value of x is below 0.
    """
    flow = np.array([-1.0, 0.0])
    system = hc.HybridSystem(
        [affine_mode(key, NONE, flow) for key in "IJ"],
        [Transition("I", affine_guard("g", [1.0, 0.0], 0.0),
                    affine_reset(np.eye(2), [0.0, 1.0]), "J")],
    )  # fmt: skip
    p, added = 0.05**2, np.diag([0.0, 0.01])
    kf = SaltedKalmanFilter(
        system,
        NONE,
        linear("z", np.eye(2), p * np.eye(2)),
        reset_noise=added,
        options=FilterOptions(rewind=0.5),
    )
    x0, values = np.array([0.2, 0.0]), np.array([[-0.2, 0.02], [-0.1, 1.05]])
    record = Record({"z": Series([0.1, 0.2], values)})
    result = kf.run(record, Estimate("I", 0.0, x0, p * np.eye(2)))
    assert [step.hypotheses[0].reconciliation is not None for step in result.steps] == [True, False]
    initial = smooth(system, result).initial
    weights = np.array([[1.0 / p, 1.0 / p], [1.0 / p, 1.0 / (p + 0.01)]])
    starts = values - np.outer([0.1, 0.2], flow) - [[0.0, 0.0], [0.0, 1.0]]
    total = 1.0 / p + weights.sum(axis=0)
    np.testing.assert_allclose(initial.covariance, np.diag(1.0 / total), atol=1e-12)
    np.testing.assert_allclose(
        initial.mean, (x0 / p + (weights * starts).sum(axis=0)) / total, atol=1e-8
    )


def test_a_ball_that_sticks_tells_where_it_came_from():
    """After a plastic impact the covariance has rank one, along the slope."""
    p = ball.BallParameters(slope=0.35, friction=5.0)
    normal, along = np.array([np.sin(0.35), np.cos(0.35)]), np.array([np.cos(0.35), -np.sin(0.35)])
    x0 = np.concatenate([0.5 * normal, [0.6, 0.0]])
    p0 = np.diag([1e-3, 1e-3, 1e-3, 1e-3]) ** 2
    system = ball.system(p)
    end = hc.simulate(system, ("open",), x0, (0.0, 0.45))
    place = end.final_state[:2] + 1e-4 * along
    kf = SaltedKalmanFilter(
        system,
        Noise(np.zeros((2, 2)), through_input=True),
        linear("q", np.eye(2, 4), 1e-10 * np.eye(2)),
    )
    times = np.array([0.45, 0.5, 0.55])
    record = Record({"q": Series(times, np.tile(place, (3, 1)))})
    result = kf.run(record, Estimate(("open",), 0.0, x0, p0))
    found = smooth(system, result)
    g = hc.linearize(system, end).state_transition
    h = np.eye(2, 4) @ g
    information = np.linalg.inv(p0) + 3.0 * h.T @ h / 1e-10
    exact = x0 + np.linalg.solve(information, 3.0 * h.T @ (place - end.final_state[:2]) / 1e-10)
    np.testing.assert_allclose(found.initial.mean, exact, atol=1e-9)
    np.testing.assert_allclose(
        found.initial.covariance, np.linalg.inv(information), atol=1e-5 * p0[0, 0]
    )
    assert abs(normal @ found.estimates[1].covariance[:2, :2] @ normal) < 1e-16


def test_it_halves_the_error_of_the_velocity_before_a_bounce():
    """What later heights say of the speed at the impact is known to all states before it."""
    times = 0.02 * np.arange(1, 30)
    run = hc.simulate(bouncing_ball(), "air", [1.0, 0.3], (0.0, 0.6))
    heights = np.array([run(t)[0] for t in times]) + 0.01 * np.random.default_rng(4).normal(size=29)
    kf = SaltedKalmanFilter(bouncing_ball(), np.diag([0.0, 1e-4]), height(1e-4))
    start = Estimate("air", 0.0, np.array([1.01, 0.0]), np.diag([1e-3, 0.25]))
    result = kf.run(Record({"height": Series(times, heights)}), start)
    found = smooth(kf.model.system, result)
    assert result.events[0].time == pytest.approx(
        (0.3 + np.sqrt(0.09 + 2.0 * GRAVITY)) / GRAVITY, abs=5e-3
    )
    for before, after, t in zip(result.steps, found.estimates, times, strict=True):
        d = np.sqrt(np.diag(after.covariance))
        assert (d <= np.sqrt(np.diag(before.estimate.covariance)) * (1.0 + 1e-9)).all()
        if abs(t - result.events[0].time) > 0.01:
            assert (np.abs(after.mean - run(t)) <= 4.0 * d).all()
    first = result.steps[4].estimate.covariance[1, 1]
    assert found.estimates[4].covariance[1, 1] < 0.25 * first


def test_without_a_map_it_begins_anew_and_says_so():
    start = Estimate("air", 0.0, np.array([1.0, 0.0]), np.diag([1e-4, 1e-4]))
    record = Record({"height": Series([0.1, 0.2], [0.95, 0.8])})
    pf = ParticleFilter(bouncing_ball(), NONE, height(), particles=20)
    result = pf.run(record, start)
    found = smooth(pf.model.system, result)
    assert [time for time, _ in found.notes] == [0.1, 0.2]
    np.testing.assert_array_equal(found.estimates[0].mean, result.means[0])
    empty = smooth(pf.model.system, pf.run(Record({}), start))
    assert empty.estimates == ()
