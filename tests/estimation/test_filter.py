"""Whole runs: consistency, corrections that cross a guard, evidence of the mode, manifolds."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from estimation.systems import GRAVITY, bounced, bouncing_ball, height
from hybridctl.robots import ball, cube
from legged.machine import URDF
from scipy.linalg import null_space
from scipy.spatial.transform import Rotation
from scipy.stats import truncnorm

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import InputError
from hybridctl.estimation.consistency import band, event_time_errors, mode_agreement, nees, nis_band
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.estimate import Estimate, retract
from hybridctl.estimation.measurement import Measurement, base_pose, configuration, coordinates
from hybridctl.estimation.mode_consistency import condition_on_guard, reconcile
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.estimation.smoother import smooth
from hybridctl.mechanics import ContactDynamics
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.state import RobotStateSpace
from hybridctl.sampling.state_propagation import integrate_perturbations
from hybridctl.sampling.unscented import UnscentedFilter

NONE = np.zeros((2, 2))
P0 = np.diag([0.02, 0.1]) ** 2
X0 = np.array([1.0, 0.0])
TIMES = np.arange(1, 41) / 50.0


def still(t, x):
    return np.zeros(0)


def synthetic(seed, deviation=1e-3):
    """True start, its state after each time, and a record of its height."""
    rng = np.random.default_rng(1000 + seed)
    start = rng.multivariate_normal(X0, P0)
    states = np.array([bounced(start[None], t)[0] for t in TIMES])
    values = states[:, 0] + deviation * rng.normal(size=len(TIMES))
    return start, states, Record({"height": Series(TIMES, values)})


@pytest.fixture(scope="module")
def runs():
    kf = SaltedKalmanFilter(bouncing_ball(), NONE, height())
    found = []
    for seed in range(100):
        start, states, record = synthetic(seed)
        found.append((start, states, kf.run(record, Estimate("air", 0.0, X0, P0))))
    return found


def test_nis_and_nees_lie_in_their_bands(runs):
    assert nis_band([result for _, _, result in runs]).inside
    space = bouncing_ball().mode("air").space
    for k in (2, 21, 26, 39):  # before the impact at 0.45 s, and after it
        pairs = [nees(space, result.steps[k].estimate, states[k]) for _, states, result in runs]
        assert band(*zip(*pairs, strict=True)).inside, k


def test_modes_events_and_summary_of_runs(runs):
    errors = []
    for start, _, result in runs[:20]:
        truth = hc.simulate(bouncing_ball(), "air", start, (0.0, 0.8))
        assert mode_agreement(result, truth) == 1.0
        errors += event_time_errors(result.events, truth.events)
        summary = result.summary()
        assert (summary["steps"], summary["rejected"], summary["nis_dim"]) == (40, 0, 1.0)
        assert summary["events"] == len(truth.events) == 1
        for p in result.covariances:
            assert np.linalg.eigvalsh(p)[0] >= 0.0 or np.linalg.eigvalsh(p)[0] > -1e-18
    # 22 heights to 1 mm before the impact leave far less than 1 mm / 4.4 m/s for its time
    assert len(errors) == 20
    assert np.abs(errors).max() < 1e-3 / 4.0


@pytest.mark.parametrize(
    ("strategy", "consistent"),
    [("saltation", True), ("reset_jacobian", False), ("no_jump", False)],
)
def test_only_the_saltation_matrix_is_consistent_across_an_unseen_impact(strategy, consistent):
    kf = SaltedKalmanFilter(
        bouncing_ball(), NONE, height(), options=FilterOptions(strategy=strategy)
    )
    results = []
    for seed in range(60):
        _, _, record = synthetic(seed)
        late = Record({"height": Series(TIMES[25:35:2], record.channels["height"].values[25:35:2])})
        results.append(kf.run(late, Estimate("air", 0.0, X0, P0)))
    starts = nis_band(results)
    assert starts.inside == consistent


def test_an_overdue_event_fires_and_passes_by_the_saltation_matrix():
    system = bouncing_ball()
    model = SaltedKalmanFilter(system, np.eye(2), height()).model
    speed, depth = -4.0, 0.02
    start = Estimate("air", 1.0, np.array([-depth, speed]), P0)
    found = reconcile(model, start, still)
    ago = (-speed - np.sqrt(speed**2 - 2.0 * GRAVITY * depth)) / GRAVITY
    at_impact = speed + GRAVITY * ago
    after = -0.8 * at_impact
    (event,) = found.events
    assert event.time == pytest.approx(1.0 - ago, abs=1e-9)
    expected = [after * ago - 0.5 * GRAVITY * ago**2, after - GRAVITY * ago]
    np.testing.assert_allclose(found.estimate.mean, expected, atol=1e-7)
    back, on = (np.array([[1.0, h], [0.0, 1.0]]) for h in (-ago, ago))
    whole = on @ hc.saltation_matrix(system, event) @ back
    np.testing.assert_allclose(found.estimate.covariance, whole @ P0 @ whole.T, rtol=1e-7)


def test_a_prediction_over_no_time_has_neither_value_nor_events_of_its_own():
    """A bounce between two values is that of the second one, and no second bounce."""
    kf = SaltedKalmanFilter(bouncing_ball(), 1e-6 * np.eye(2), height(1e-4))
    state = kf.predict(Estimate("air", 0.0, np.array([0.1, -1.0]), 1e-6 * np.eye(2)), 0.2)
    state = kf.update(state, "height", state.estimate.mean[0])
    assert len(state.hypotheses[0].events) == 1
    again = kf.predict(state, state.time)
    assert again.channel is None
    assert again.hypotheses[0].events == ()
    np.testing.assert_array_equal(again.estimate.mean, state.estimate.mean)
    np.testing.assert_array_equal(again.estimate.covariance, state.estimate.covariance)


def test_a_mean_below_the_floor_that_soon_rises_is_kept_and_flows_in():
    kf = SaltedKalmanFilter(bouncing_ball(), NONE, height())
    below = Estimate("air", 0.0, np.array([-0.01, 3.0]), P0)
    assert reconcile(kf.model, below, still).estimate is below
    found = kf.predict(below, 0.1)
    assert not found.events
    np.testing.assert_allclose(
        found.estimate.mean, [-0.01 + 0.3 - 0.005 * GRAVITY, 3.0 - 0.1 * GRAVITY], atol=1e-8
    )


def test_an_impossible_mean_is_that_of_the_distribution_cut_off():
    kf = SaltedKalmanFilter(bouncing_ball(), NONE, height(), options=FilterOptions(rewind=1e-3))
    p = np.array([[4e-4, 1e-4], [1e-4, 9e-4]])
    e = Estimate("air", 0.0, np.array([-0.03, 0.5]), p)
    found = reconcile(kf.model, e, still).estimate
    cut = truncnorm(0.03 / 0.02, np.inf, loc=-0.03, scale=0.02)
    assert found.mean[0] == pytest.approx(cut.mean(), rel=1e-9)
    assert found.covariance[0, 0] == pytest.approx(cut.var(), rel=1e-9)
    assert found.mean[1] == pytest.approx(0.5 + 0.25 * (cut.mean() + 0.03), rel=1e-9)


def test_an_event_that_is_still_to_come_is_undone():
    """The ball is 4 deviations higher than believed, and not seen before it should have bounced."""
    truth = np.array([1.08, 0.0])
    times = np.concatenate([np.arange(0.46, 0.469, 0.0025), np.arange(0.48, 0.8, 0.01)])
    states = np.array([bounced(truth[None], t)[0] for t in times])
    record = Record({"height": Series(times, states[:, 0])})
    start = Estimate("air", 0.0, X0, np.diag([0.02, 0.02]) ** 2)
    with_it = SaltedKalmanFilter(bouncing_ball(), NONE, height(), hypotheses=2).run(record, start)
    assert with_it.summary()["undone"] == 1
    (event,) = with_it.events
    assert event.time == pytest.approx(np.sqrt(2.0 * truth[0] / GRAVITY), abs=2e-3)
    np.testing.assert_allclose(with_it.means[-1], states[-1], atol=5e-3)
    without = SaltedKalmanFilter(bouncing_ball(), NONE, height(), hypotheses=1).run(record, start)
    assert without.summary()["undone"] == 0
    assert without.log_likelihood < with_it.log_likelihood - 10.0


def landing_ball():
    """(x, y, vx, vy) in the air; on the ground, where the ball rolls on, (x, vx) is all of it."""
    air, ground = ca.SX.sym("air", 4), ca.SX.sym("ground", 2)
    return symbolic.hybrid_system(
        [
            symbolic.SymbolicMode("air", state=air, field=[air[2], air[3], 0.0, -GRAVITY]),
            symbolic.SymbolicMode("ground", state=ground, field=[ground[1], 0.0]),
        ],
        [symbolic.SymbolicTransition("air", "lands", air[1], "ground", [air[0], air[2]])],
    )


@pytest.mark.parametrize("above", [0.0, 0.08])
def test_a_late_event_may_change_the_dimension_of_the_state(above):
    """The hypothesis that it is still to come has four dimensions, the main one two."""

    def value(mode, t, x, u):
        return x[:2] if mode.key == "air" else np.array([x[0], 0.0])

    def jacobian(mode, t, x, u):
        return np.eye(2, 4) if mode.key == "air" else np.array([[1.0, 0.0], [0.0, 0.0]])

    truth = np.array([0.0, 1.0 + above, 0.5, 0.0])
    lands = np.sqrt(2.0 * truth[1] / GRAVITY)
    times = np.arange(0.455, 0.6, 0.01)
    fallen = np.where(times < lands, truth[1] - 0.5 * GRAVITY * times**2, 0.0)
    record = Record({"place": Series(times, np.column_stack((0.5 * times, fallen)))})
    kf = SaltedKalmanFilter(
        landing_ball(),
        {"air": np.zeros((4, 4)), "ground": np.zeros((2, 2))},
        Measurement("place", value, jacobian, 0.01**2 * np.eye(2)),
        hypotheses=2,
    )
    spread = np.diag([0.01, 0.02, 0.01, 0.02]) ** 2
    start = Estimate("air", 0.0, np.array([0.0, 1.0, 0.5, 0.0]), spread)
    result = kf.run(record, start)
    assert len(result.events) == 1
    assert result.events[-1].time == pytest.approx(lands, abs=5e-3)
    assert result.modes[-1] == "ground"
    np.testing.assert_allclose(result.means[-1], [0.5 * times[-1], 0.5], atol=1e-2)
    assert len(smooth(kf.model.system, result).estimates) == len(times)


def test_a_contact_signal_closes_and_opens_with_hysteresis():
    p = ball.BallParameters(slope=0.0)
    signal = ContactSignal("force", 5.0, 2.0, f"{ball.CONTACT} closes", f"{ball.CONTACT} opens")
    kf = SaltedKalmanFilter(
        ball.system(p),
        np.zeros((4, 4)),
        coordinates("position", [0, 1], 1e-6 * np.eye(2)),
        signals=[signal],
    )
    start = Estimate(("open",), 0.3, np.array([0.0, 0.01, 0.5, -2.0]), 1e-3 * np.eye(4))
    for value in (0.0, 3.0, 4.9, np.nan):
        assert kf.update(start, "force", value, [0.0, 0.0]).estimate.mode == ("open",)
    closed = kf.update(start, "force", 6.0, [0.0, 0.0])
    assert closed.estimate.mode == ("closed",)
    np.testing.assert_allclose(closed.estimate.mean, [0.0, 0.0, 0.5, 0.0], atol=1e-9)
    assert np.abs(closed.estimate.covariance[1]).max() < 1e-12
    for value in (6.0, 3.0):
        assert kf.update(closed.estimate, "force", value, [0.0, 0.0]).estimate.mode == ("closed",)
    lifted = kf.update(closed.estimate, "force", 1.0, [0.0, 20.0])
    assert lifted.estimate.mode == ("open",)
    with pytest.raises(InputError, match="off must be below on"):
        ContactSignal("force", 1.0, 1.0, "a", "b")


def test_conditioning_on_a_guard_is_a_measurement_of_zero():
    kf = SaltedKalmanFilter(bouncing_ball(), NONE, height())
    p = np.array([[4e-4, 1e-4], [1e-4, 9e-4]])
    before = Estimate("air", 0.0, np.array([0.03, -2.0]), p)
    found = condition_on_guard(kf.model, before, "floor", still)
    np.testing.assert_allclose(found.mean, [0.0, -2.0 - 0.03 * 0.25], atol=1e-12)
    np.testing.assert_allclose(found.covariance, np.diag([0.0, 9e-4 - 0.25e-4]), atol=1e-16)


def test_a_pose_is_corrected_on_its_manifold():
    system = cube.system()
    mode = ("open",) * 8
    space = system.mode(mode).space
    rng = np.random.default_rng(8)
    x = space.integrate(np.array([0, 0, 1, 0, 0, 0, 1.0, *rng.normal(size=6)]), rng.normal(size=12))
    root = rng.normal(size=(12, 12))
    p = 1e-2 * root @ root.T
    pose = configuration("pose", space, 1e-14 * np.eye(6))
    true = space.integrate(x, 0.1 * rng.normal(size=12))
    kf = SaltedKalmanFilter(system, np.zeros((12, 12)), pose)
    twice = true[:7] * np.array([1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0])  # quaternions of any length
    found = kf.update(Estimate(mode, 0.0, x, p), "pose", twice)
    # exact poses: the corrected one is the measured one
    np.testing.assert_allclose(space.difference(found.estimate.mean, true)[:6], 0.0, atol=1e-9)
    assert found.innovation.dimension == 6


@pytest.mark.parametrize("kind", [SaltedKalmanFilter, UnscentedFilter])
def test_a_correction_leaves_closed_contacts_closed(kind):
    """A correction of 0.1 rad and more would move the edge off the table by 2 mm, of second order.

    Gaps are put right to 1e-11 m, normal velocities to rounding.
    """
    system = cube.system()
    key = tuple(
        "slip" if name in ("back-right-bottom", "back-left-bottom") else "open"
        for name in cube.CORNERS
    )
    mode, robot, rng = system.mode(key), cube.robot(), np.random.default_rng(10)
    dynamics = ContactDynamics(robot, cube.contacts())
    attitude = Rotation.from_euler("xyz", [0.0, -0.4, 0.3]).as_quat()
    x = mode.project(np.array([0, 0, 0.07, *attitude, *rng.normal(size=6)]))
    held = np.zeros((4, 12))
    held[:2, :6] = held[2:, 6:] = dynamics.gap_jacobian(x[:7])[[2, 0]]
    free = null_space(held, rcond=1e-9)
    pose = configuration("pose", mode.space, 1e-8 * np.eye(6))
    kf = kind(system, np.zeros((12, 12)), pose)
    turned = mode.space.integrate(x, free @ (0.1 * rng.normal(size=free.shape[1])))
    found = kf.update(Estimate(key, 0.0, x, 1e-2 * free @ free.T), "pose", turned[:7])
    assert not found.events
    moved_by = mode.space.difference(x, found.estimate.mean)
    assert np.abs(moved_by[3:6]).max() > 0.05
    q, v = found.estimate.mean[:7], found.estimate.mean[7:]
    assert np.abs(dynamics.gaps(q)[[0, 2]]).max() <= 1e-11
    assert np.abs(dynamics.gap_rates(q, v)[[0, 2]]).max() <= 1e-12


def test_a_covariance_turns_with_the_correction_of_its_mean():
    """Against differences of difference(x + dx, x + (dx + e)) by e."""
    space = cube.system().mode(("open",) * 8).space
    rng = np.random.default_rng(9)
    x = np.array([0.1, 0.2, 1.0, 0, 0, 0, 1.0, *rng.normal(size=6)])
    dx, h = 0.7 * rng.normal(size=12), 1e-6
    after, _ = retract(space, x, np.eye(12), dx)
    columns = [
        (
            space.difference(after, space.integrate(x, dx + h * e))
            - space.difference(after, space.integrate(x, dx - h * e))
        ) / (2.0 * h)
        for e in np.eye(12)
    ]  # fmt: skip
    j = np.array(columns).T
    root = rng.normal(size=(12, 12))
    _, p = retract(space, x, root @ root.T, dx)
    np.testing.assert_allclose(p, j @ root @ root.T @ j.T, rtol=1e-7, atol=1e-7)


def test_a_row_that_misses_part_of_a_pose_is_missing():
    system = cube.system()
    space = system.mode(("open",) * 8).space
    x = np.array([0, 0, 1, 0, 0, 0, 1.0, *np.zeros(6)])
    kf = SaltedKalmanFilter(system, np.zeros((12, 12)), configuration("pose", space, np.eye(6)))
    start = kf.start(Estimate(("open",) * 8, 0.0, x, np.eye(12)))
    row = x[:7].copy()
    row[2] = np.nan
    found = kf.update(start, "pose", row)
    assert found.innovation is None
    assert found.estimate is start.estimate
    with pytest.raises(InputError, match="must have shape"):
        kf.update(start, "pose", np.zeros(6))


def test_the_band_is_that_of_chi_square():
    from scipy.stats import chi2

    found = band([1.0, 2.0, 3.0], [2, 2, 2], level=0.9)
    assert (found.mean, found.degrees) == (2.0, 6)
    assert (found.low, found.high) == pytest.approx(chi2.ppf([0.05, 0.95], 6) / 3.0)
    assert found.inside
    with pytest.raises(InputError, match="one entry each"):
        band([], [])
    with pytest.raises(InputError, match="level must be below 1"):
        band([1.0], [1], level=1.0)


def test_scattered_states_stay_on_what_contacts_hold():
    """Sigma points and particles, 0.1 rad and more from the mean of a cube on its edge."""
    key = tuple(
        "slip" if name in ("back-right-bottom", "back-left-bottom") else "open"
        for name in cube.CORNERS
    )
    mode, rng = cube.system().mode(key), np.random.default_rng(11)
    dynamics = ContactDynamics(cube.robot(), cube.contacts())
    attitude = Rotation.from_euler("xyz", [0.0, -0.4, 0.3]).as_quat()
    x = mode.project(np.array([0, 0, 0.07, *attitude, *rng.normal(size=6)]))
    states = integrate_perturbations(mode, x, 0.1 * rng.normal(size=(5, 12)))
    assert states.shape == (5, 13)
    for state in states:
        assert np.abs(mode.space.difference(x, state)[3:6]).max() > 0.02
        assert np.abs(dynamics.gaps(state[:7])[[0, 2]]).max() <= 1e-11
        assert np.abs(dynamics.gap_rates(state[:7], state[7:])[[0, 2]]).max() <= 1e-12


@pytest.mark.parametrize(("size", "events"), [(1.0, 1), (1e3, 0)])
def test_how_far_past_a_guard_a_mean_is_inside_goes_with_its_scale(size, events):
    """A micrometre below a floor is 1e-6 of a metre, and 1e-9 of a guard of some kilometres."""
    ball_, out = bouncing_ball(), bouncing_ball().outgoing("air")
    scaled = replace(out, guards=replace(out.guards, scales=np.array([size])))
    system = hc.HybridSystem(lambda key: ball_.mode(key), lambda key: scaled)
    kf = SaltedKalmanFilter(system, NONE, height())
    e = Estimate("air", 0.0, np.array([-1e-6, -1.0]), 1e-12 * np.eye(2))
    found = reconcile(kf.model, e, kf.model.law("air", None))
    assert len(found.events) == events


def test_the_pose_of_a_base_is_that_of_the_configuration():
    """For a robot with joints, whose configuration has more coordinates than its base."""
    space = RobotStateSpace(Robot.from_urdf(URDF, root="floating"))
    robot, rng = space.robot, np.random.default_rng(5)
    whole = configuration("q", space, np.eye(robot.nv))
    base = base_pose("pose", space, np.eye(6))
    x = space.integrate(np.append(robot.neutral(), np.zeros(robot.nv)), rng.normal(size=space.ndx))
    y = space.integrate(x, 0.3 * rng.normal(size=space.ndx))
    mode = hc.Mode("any", space, lambda t, x, u: x)
    at = mode, 0.0, x, np.zeros(0)
    np.testing.assert_array_equal(base.value(*at), whole.value(*at)[:7])
    np.testing.assert_allclose(
        base.residual(base.value(*at), y[:7]), whole.residual(whole.value(*at), y[: robot.nq])[:6],
        atol=1e-12,
    )  # fmt: skip
    np.testing.assert_array_equal(base.jacobian(*at), whole.jacobian(*at)[:6])


def test_rows_between_two_times_are_those_after_the_first_until_the_last():
    inputs = Series([0.0], [[1.0]])
    record = Record(
        {"a": Series([0.1, 0.2, 0.3], [1.0, 2.0, 3.0]), "b": Series([0.2], [4.0])}, inputs
    )
    found = record.between(0.1, 0.2)
    assert [(s.time, s.channel, *s.value) for s in found.samples()] == [
        (0.2, "a", 2.0), (0.2, "b", 4.0)
    ]  # fmt: skip
    assert found.inputs is record.inputs
