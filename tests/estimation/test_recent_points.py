"""Modes are evaluated once at each estimate, and collocation points all at once."""

import pickle

import numpy as np
from estimation.systems import bouncing_ball, height
from hybridctl.experiments.filter_models import CubeSettings, cube_model

from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.initial_estimate import build_kalman_filter
from hybridctl.estimation.kalman_equations import _linearize_points
from hybridctl.estimation.noisy_system import _REMEMBERED_POINTS, RecentPoints
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.sensitivity.propagation import linearize_field

START = Estimate("air", 0.0, np.array([1.0, 0.3]), np.eye(2))


def ball_filter():
    return SaltedKalmanFilter(bouncing_ball(), np.zeros((2, 2)), height())


def test_a_mode_is_evaluated_once_at_each_estimate():
    model = ball_filter().model
    law = model.law("air", None)
    point = model.evaluate_at(START, law)
    assert model.evaluate_at(START, law) is point
    assert model.without_process_noise.evaluate_at(START, law) is point
    assert model.evaluate_at(Estimate("air", 0.1, START.mean, START.covariance), law) is not point
    assert model.evaluate_at(Estimate("air", 0.0, START.mean.copy(), np.eye(2)), law) is point
    assert model.evaluate_at(Estimate("air", 0.0, START.mean + 1e-9, np.eye(2)), law) is not point


def test_points_of_a_law_that_writes_into_one_array_stay_apart():
    model, array = ball_filter().model, np.zeros(1)

    def write(value):
        def law(t, x):
            array[:] = value
            return array

        return law

    first = model.evaluate_at(START, write(1.0))
    second = model.evaluate_at(START, write(2.0))
    assert (first.u.tolist(), second.u.tolist()) == ([1.0], [2.0])


def test_only_the_last_points_are_remembered():
    points, mode, u = RecentPoints(), bouncing_ball().mode("air"), np.zeros(0)
    states = [np.array([float(k), 0.0]) for k in range(_REMEMBERED_POINTS + 1)]
    found = [points.evaluate(mode, 0.0, x, u) for x in states]
    assert points.evaluate(mode, 0.0, states[-1], u) is found[-1]
    assert points.evaluate(mode, 0.0, states[1], u) is found[1]
    assert points.evaluate(mode, 0.0, states[0], u) is not found[0]
    assert pickle.loads(pickle.dumps(points))._known == {}


def test_collocation_points_have_the_slopes_of_single_points():
    settings = CubeSettings()
    kf = build_kalman_filter(cube_model(settings), settings)
    rng = np.random.default_rng(0)
    for key in (("open",) * 8, ("slip", *("open",) * 7)):
        mode = kf.model.system.mode(key)
        x = rng.normal(size=(3, mode.space.nx))
        points = [(mode.space.normalize(one), rng.normal(size=mode.nu)) for one in x]
        times = [0.1, 0.2, 0.3]
        states, inputs = _linearize_points(mode, times, points)
        for k, (t, point) in enumerate(zip(times, points, strict=True)):
            expected = linearize_field(mode, t, *point)
            np.testing.assert_allclose(states[k], expected.state, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(inputs[k], expected.input, rtol=1e-12, atol=1e-12)
