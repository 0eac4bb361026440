"""Filters that see nothing for 10 s, while a ball bounces and comes to rest, against many runs."""

from dataclasses import replace

import numpy as np
import pytest
from estimation.systems import bouncing_ball
from hybridctl.robots import ball

import hybridctl as hc
from attack.gaps import KINDS as FILTERS
from attack.gaps import judged
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import coordinates, linear
from hybridctl.estimation.prediction import predict
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.hybrid.laws import make_zero_input
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.sampling.unscented import UnscentedFilter

GAP = 10.0
KINDS = [SaltedKalmanFilter, pytest.param(UnscentedFilter, marks=pytest.mark.slow)]
START = np.array([0.0, 1.0, 0.1, 0.0])
P0 = np.diag([0.01, 0.02, 0.01, 0.05]) ** 2
QUIET = np.zeros((4, 4))


def rough(kind, restitution=0.8):
    system = ball.system(ball.BallParameters(slope=0.0, restitution=restitution))
    return kind(system, QUIET, coordinates("position", [0, 1], 1e-4 * np.eye(2)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_ball_that_comes_to_rest_in_the_gap_is_found_on_the_floor(kind):
    """It bounces until about 4 s, with friction that stops it sliding: it rests somewhere."""
    found = rough(kind).predict(Estimate(("open",), 0.0, START, P0), GAP)
    assert found.estimate.mode == ("closed",)
    np.testing.assert_allclose(found.estimate.mean[[1, 3]], 0.0, atol=1e-8)
    assert np.abs(found.estimate.covariance[[1, 3]]).max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_values_after_the_gap_agree(kind):
    kf = rough(kind)
    record = Record({"position": Series(np.array([9.0, GAP]), np.array([[0.9, 0.0], [1.0, 0.0]]))})
    result = kf.run(record, Estimate(("open",), 0.0, START, P0))
    assert result.modes[-1] == ("closed",)
    assert abs(result.means[-1][1]) < 1e-8
    deviations = np.sqrt(np.diag(result.covariances[-1]))
    assert deviations[1] < 1e-6
    assert deviations[0] <= 0.011  # no more than one value of 1 cm allows


@pytest.mark.parametrize("restitution", [0.8, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_the_truth_lies_in_the_estimate_after_the_gap(restitution, count):
    """NEES of the place and speed along the floor, which the gap leaves unknown, over many runs.

    Its mean over n runs of two unknowns is 1 within 4 / sqrt(n); heights are zero in all.
    """
    kf = rough(SaltedKalmanFilter, restitution)
    found = kf.predict(Estimate(("open",), 0.0, START, P0), GAP).estimate
    rng = np.random.default_rng(5)
    scores = []
    for x in rng.multivariate_normal(START, P0, count):
        run = hc.simulate(
            kf.model.system, ("open",), x, (0.0, GAP), on_zeno=hc.ZenoPolicy(horizon=1e-3)
        )
        assert run.final_mode == found.mode
        off = run.final_state - found.mean
        assert np.abs(off[[1, 3]]).max() <= 1e-8
        along = found.covariance[np.ix_([0, 2], [0, 2])]
        scores.append(off[[0, 2]] @ np.linalg.solve(along, off[[0, 2]]) / 2.0)
    assert abs(np.mean(scores) - 1.0) <= 4.0 / np.sqrt(count)


@pytest.mark.parametrize("restitution", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("kind", [SaltedKalmanFilter, UnscentedFilter])
def test_a_ball_of_expressions_that_knows_no_rest_is_held_on_the_floor(kind, restitution):
    """Its last bounce is at 0.45 (1 + e) / (1 - e) s, of any sigma point within 0.2 s of that."""
    kf = kind(
        bouncing_ball(restitution), np.zeros((2, 2)), linear("height", [[1.0, 0.0]], [[1e-4]])
    )
    found = kf.predict(Estimate("air", 0.0, np.array([1.0, 0.0]), 1e-4 * np.eye(2)), GAP)
    np.testing.assert_allclose(found.estimate.mean, 0.0, atol=1e-4)
    assert np.sqrt(np.diag(found.estimate.covariance)).max() <= 0.01
    assert any("accumulate" in note for note in found.notes)


def test_more_bounces_than_are_followed_leave_the_ball_above_the_floor():
    """1 cm high without loss, 110 times in 10 s: where it is then cannot be said, and is not."""
    kf = SaltedKalmanFilter(
        bouncing_ball(1.0), np.zeros((2, 2)), linear("height", [[1.0, 0.0]], [[1e-4]])
    )
    few = replace(kf.model, max_events=20)
    start = Estimate("air", 0.0, np.array([0.01, 0.0]), 1e-12 * np.eye(2))
    found = predict(few, start, GAP, make_zero_input(0))
    assert found.mode_frozen
    height, speed = found.estimate.mean
    assert height > 1e-8 or (height >= -1e-8 and speed > 0.0)  # on the floor it has bounced
    most = np.array([0.01, np.sqrt(2.0 * 9.81 * 0.01)])  # it is no higher, and no faster
    assert (np.sqrt(np.diag(found.estimate.covariance)) >= 0.5 * most).all()


@pytest.mark.parametrize("seed", range(len(FILTERS)))
def test_random_balls_end_where_many_runs_do(seed):
    assert judged(seed)[1] == "right"


@pytest.mark.slow
def test_bounces_that_rub_leave_what_they_do_to_a_rolling_disc_as_uncertain_as_many_runs_do():
    """It still slides when it is at rest across: NEES of places and velocities along and turning.

    Its mean over n runs of four unknowns is 4 within 4 sqrt(2 * 4 / n).
    """
    inertia = '<inertia ixx="4e-3" iyy="4e-3" izz="4e-3" ixy="0" ixz="0" iyz="0"/>'
    link = f'<link name="disc"><inertial><mass value="1"/>{inertia}</inertial></link>'
    robot = Robot.from_urdf(f'<robot name="disc">{link}</robot>', root="sagittal")
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    rim = Contact("rim", "disc", floor, radius=0.1, friction=0.02, restitution=0.6)
    system, count = contact_system(robot, [rim]), 100
    kf = SaltedKalmanFilter(system, np.zeros((6, 6)), coordinates("pose", [0, 1, 2], np.eye(3)))
    rng = np.random.default_rng(1)
    root = 0.005 * rng.normal(size=(6, 6))
    start, p0, end = np.array([0.0, 0.4, 0.0, 3.0, 0.0, 0.0]), root @ root.T, 1.3
    found = kf.predict(Estimate(("open",), 0.0, start, p0), end).estimate
    assert found.mode == ("slip+",)
    along = [0, 2, 3, 5]
    p, scores = found.covariance[np.ix_(along, along)], []
    for x in rng.multivariate_normal(start, p0, count):
        run = hc.simulate(system, ("open",), x, (0.0, end), on_zeno=hc.ZenoPolicy(horizon=1e-3))
        off = (run.final_state - found.mean)[along]
        scores.append(off @ np.linalg.solve(p, off))
    assert abs(np.mean(scores) - 4.0) <= 4.0 * np.sqrt(8.0 / count)
