"""Covariances through events: exact maps, exact ensembles, noise of guards and resets."""

from dataclasses import replace
from types import SimpleNamespace

import casadi as ca
import numpy as np
import pytest
from differences import central
from estimation.systems import GRAVITY, bounced, bouncing_ball, height, two_flows
from hybridctl.robots import ball, block, cube
from scipy.linalg import block_diag
from scipy.stats import truncnorm
from sensitivity.test_boundary import ball_on_the_cone, landing_level

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import base_pose, configuration, encoders, linear
from hybridctl.estimation.noise import EXACT_GUARDS, EventNoise, GuardNoise, Noise, reset_covariance
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_jump import (
    EventPoints,
    _find_insignificant_rate,
    _guard_rates,
    compute_rest_projection,
    jump_moments,
)
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.mechanics.multibody.state import RobotStateSpace
from hybridctl.sensitivity.moments import sample_normal_points
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.saltation import jump_gains

NONE = np.zeros((2, 2))
SAMPLES = 20_000
RESET_JACOBIAN = FilterOptions(strategy="reset_jacobian")
ROUNDING = 1e-15  # of variances of 1e-5, where a contact holds the velocity


def ball_filter(system=None, noise=NONE, **options):
    return SaltedKalmanFilter(system or bouncing_ball(), noise, height(), **options)


def assert_close_to_sample(p, sample, bias=0.0):
    """Each entry within five deviations of a sampled covariance, sqrt((p_ii p_jj + p_ij^2) / N)."""
    found = np.cov(sample.T)
    d = np.sqrt(np.diag(found))
    limit = 5.0 * np.sqrt((np.outer(d, d) ** 2 + found**2) / len(sample))
    assert (np.abs(p - found) <= limit + bias * np.outer(d, d) + ROUNDING).all()


def test_one_impact_is_the_linearization_whatever_the_steps():
    system = bouncing_ball()
    p0 = np.array([[1e-4, 2e-5], [2e-5, 4e-4]])
    start = Estimate("air", 0.0, np.array([1.0, 0.3]), p0)
    run = hc.simulate(system, "air", start.mean, (0.0, 0.7), rtol=1e-11, atol=1e-11)
    phi = hc.linearize(system, run, rtol=1e-12, atol=1e-12).state_transition
    for step in (0.7, 0.35, 0.1, 0.007):
        kf, e = ball_filter(options=FilterOptions(rtol=1e-11, atol=1e-11)), start
        for k in range(round(0.7 / step)):
            e = kf.predict(e, (k + 1) * step).estimate
        # free fall has polynomials for a flow: rounding is all
        np.testing.assert_allclose(e.covariance, phi @ p0 @ phi.T, rtol=1e-9)


def test_process_noise_is_counted_once_on_both_sides_of_an_impact():
    kf = ball_filter(noise=np.diag([0.0, 0.3]))
    start = Estimate("air", 0.0, np.array([1.0, 0.0]), NONE)
    found = kf.predict(start, 0.7)
    (event,) = found.events
    g = hc.saltation_matrix(kf.model.system, event)

    def gathered(h):
        return 0.3 * np.array([[h**3 / 3.0, h**2 / 2.0], [h**2 / 2.0, h]])

    after = 0.7 - event.time
    phi = np.array([[1.0, after], [0.0, 1.0]])
    exact = phi @ g @ gathered(event.time) @ g.T @ phi.T + gathered(after)
    np.testing.assert_allclose(found.estimate.covariance, exact, rtol=1e-9)
    e = start
    for k in range(70):
        e = kf.predict(e, (k + 1) * 0.01).estimate
    np.testing.assert_allclose(e.covariance, exact, rtol=1e-7)


@pytest.mark.parametrize("speed", [0.0, 0.5])
def test_an_ensemble_of_balls_on_a_floor_at_rest_or_moving(speed):
    p0, x0 = np.diag([0.01, 0.02]) ** 2, np.array([1.0, 0.2])
    rng = np.random.default_rng(2)
    sample = bounced(rng.multivariate_normal(x0, p0, SAMPLES), 0.8, floor_speed=speed)
    kf = ball_filter(bouncing_ball(floor_speed=speed))
    found = kf.predict(Estimate("air", 0.0, x0, p0), 0.8).estimate
    # the second order is spread / length of the motion, 1 %, squared in the covariance
    assert_close_to_sample(found.covariance, sample, bias=1e-3)
    wrong = ball_filter(bouncing_ball(floor_speed=speed), options=RESET_JACOBIAN)
    off = wrong.predict(Estimate("air", 0.0, x0, p0), 0.8).estimate.covariance
    with pytest.raises(AssertionError):
        assert_close_to_sample(off, sample, bias=1e-3)


@pytest.mark.parametrize("friction", [0.0, 5.0])
def test_balls_on_a_slope_slide_or_stick(friction):
    """[Salt] Fig. 1; in closed form: fall to the slope, then along it, or nowhere."""
    p = ball.BallParameters(slope=0.35, friction=friction)
    normal, along = np.array([np.sin(0.35), np.cos(0.35)]), np.array([np.cos(0.35), -np.sin(0.35)])
    x0 = np.concatenate([0.5 * normal, [0.6, 0.0]])
    p0 = np.diag([0.005, 0.005, 0.02, 0.02]) ** 2
    sample = np.random.default_rng(3).multivariate_normal(x0, p0, SAMPLES)
    q, v, weight = sample[:, :2], sample[:, 2:], np.array([0.0, -GRAVITY])
    gap, speed, fall = q @ normal, v @ normal, weight @ normal
    hit = (-speed - np.sqrt(speed**2 - 2.0 * fall * gap)) / fall
    at = q + v * hit[:, None] + 0.5 * hit[:, None] ** 2 * weight
    velocity = (v + hit[:, None] * weight) @ along
    left, pull = 0.45 - hit, weight @ along
    if friction:
        image = np.column_stack([at, np.zeros_like(at)])
    else:
        way = velocity * left + 0.5 * pull * left**2
        image = np.column_stack(
            [at + way[:, None] * along, np.outer(velocity + pull * left, along)]
        )
    measured = linear("q", np.eye(2, 4), np.eye(2))
    kf = SaltedKalmanFilter(ball.system(p), np.zeros((4, 4)), measured)
    found = kf.predict(Estimate(("open",), 0.0, x0, p0), 0.45).estimate
    assert found.mode == (("stick",) if friction else ("closed",))
    assert_close_to_sample(found.covariance, image, bias=2e-2 if friction else 1e-3)
    assert np.linalg.eigvalsh(found.covariance)[0] >= -1e-18


def test_constant_flows_are_exact():
    """[Salt] Fig. 5, 6: nothing is curved, so the image of a normal distribution is normal."""
    system, matrix, _ = two_flows()
    p0 = np.array([[9e-4, 2e-4], [2e-4, 4e-4]])
    measured = linear("z", np.eye(2), np.eye(2))
    start = Estimate("I", 0.0, np.array([-0.2, -0.06]), p0)
    for strategy, m in (
        ("saltation", matrix),
        ("reset_jacobian", np.eye(2)),
        ("no_jump", np.eye(2)),
    ):
        kf = SaltedKalmanFilter(system, NONE, measured, options=FilterOptions(strategy=strategy))
        found = kf.predict(start, 0.4).estimate
        np.testing.assert_allclose(found.mean, [0.1, 0.24], atol=1e-9)
        np.testing.assert_allclose(found.covariance, m @ p0 @ m.T, rtol=1e-12)


def test_baselines_use_the_jacobian_of_the_reset_or_nothing():
    start = Estimate("air", 0.0, np.array([1.0, 0.3]), np.diag([1e-4, 4e-4]))
    kf = ball_filter(options=RESET_JACOBIAN)
    event = kf.predict(start, 0.7).events[0]
    for strategy, m in (("reset_jacobian", np.diag([1.0, -0.8])), ("no_jump", np.eye(2))):
        jump = jump_moments(bouncing_ball(), event, start.covariance, strategy)
        np.testing.assert_allclose(jump.covariance, m @ start.covariance @ m.T, rtol=1e-12)


def test_guard_noise_is_a_floor_of_uncertain_height():
    sigma, x0 = 0.01, np.array([1.0, 0.2])
    w = sigma * np.random.default_rng(5).normal(size=SAMPLES)
    starts = np.column_stack([x0[0] + w, np.full(SAMPLES, x0[1])])  # guard y + w
    sample = bounced(starts, 0.8) - np.column_stack([w, np.zeros(SAMPLES)])
    kf = ball_filter(guard_noise={"floor": sigma**2})
    found = kf.predict(Estimate("air", 0.0, x0, NONE), 0.8).estimate
    assert_close_to_sample(found.covariance, sample, bias=1e-3)


def test_noise_of_a_guard_that_no_mode_has_is_refused():
    with pytest.raises(UnknownNameError, match=r"'flor' is unknown.*did you mean 'floor'"):
        ball_filter(guard_noise={"flor": 1e-4})
    with pytest.raises(UnknownNameError, match=r"did you mean 'slope closes'"):
        ball_filter(ball.system(), np.zeros((4, 4)), guard_noise={"slope close": 1e-4})


def test_guard_noise_on_one_guard_of_several_is_its_own_sample():
    """Two guards at once in the plane; an offset w shifts when its guard fires."""
    from sensitivity import constant_pieces

    def delta(signs):
        return constant_pieces.FIGURE_3["piecewise"][signs]

    system = constant_pieces.system(delta, 2)
    start = constant_pieces.before_corner(delta, 2)
    measured = linear("z", np.eye(2), np.eye(2))
    first = "x1 rises"
    kf = SaltedKalmanFilter(system, NONE, measured, guard_noise={first: 0.01**2})
    found = kf.predict(Estimate((-1, -1), 0.0, start, np.diag([4e-4, 1e-4])), 1.0)
    rng = np.random.default_rng(6)
    x = start + rng.normal(size=(SAMPLES, 2)) * [0.02, 0.01]
    w = 0.01 * rng.normal(size=SAMPLES)
    image = piecewise_image(delta, x, w)
    assert_close_to_sample(found.estimate.covariance, image, bias=5e-3)
    assert found.transition is None
    # the kink moves the mean, by more than the sampling error
    shift = image.mean(axis=0) - hc.simulate(system, (-1, -1), start, (0.0, 1.0)).final_state
    error = 5.0 * image.std(axis=0) / np.sqrt(SAMPLES)
    nominal = hc.simulate(system, (-1, -1), start, (0.0, 1.0)).final_state
    assert (np.abs(found.estimate.mean - nominal - shift) <= error + 2e-5).all()
    assert np.abs(shift).max() > error.max()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_uncertain_surface_where_the_impact_only_just_stops_the_ball(sign):
    """A slope that is w higher: the ball begins w nearer to it along its normal, and ends w above.

    What the reset does there is piecewise linear, so the sum is over samples of that map alone.
    """
    system, x0 = ball_on_the_cone(0.5, sign, restitution=0.5)
    event = hc.simulate(system, ("open",), x0, (0.0, 0.2), rtol=1e-12, atol=1e-12).events[0]
    jump = hc.jump_derivative(system, event)
    assert isinstance(jump, PiecewiseLinearJump)
    rng = np.random.default_rng(7)
    deviation = 0.01
    spread = np.diag([0.01, 0.02, 0.1, 0.1]) ** 2
    dx = rng.multivariate_normal(np.zeros(4), spread, size=SAMPLES)
    nearer = np.outer(deviation * rng.normal(size=SAMPLES), [np.sin(0.3), np.cos(0.3), 0.0, 0.0])
    sample = jump(dx + nearer) - nearer
    found = jump_moments(system, event, spread, "saltation", None, GuardNoise(deviation**2))
    # 1,024 low-discrepancy points in five dimensions, against 20,000 at random
    assert_close_to_sample(found.covariance, sample, bias=1e-2)
    assert found.matrix is None
    error = 5.0 * sample.std(axis=0) / np.sqrt(SAMPLES)
    assert (np.abs(found.shift - sample.mean(axis=0)) <= error).all()


def piecewise_image(delta, x, w):
    """Points (n, 2) after 1 s of a flow that changes where x_1 = w and x_2 = 0."""
    result = np.empty_like(x)
    for row, (point, offset) in enumerate(zip(x, w, strict=True)):
        point, left, signs = point.copy(), 1.0, [-1, -1]
        while True:
            velocity = 1.0 + np.array(delta(tuple(signs)))
            waits = [
                ((offset, 0.0)[i] - point[i]) / velocity[i] if signs[i] < 0 else np.inf
                for i in (0, 1)
            ]
            i = int(np.argmin(waits))
            if waits[i] >= left:
                result[row] = point + left * velocity
                break
            point, left, signs[i] = point + waits[i] * velocity, left - waits[i], 1
            signs = list(signs)
    return result


def test_reset_noise_is_added_after_the_jump():
    added = np.diag([0.0, 0.04])
    start = Estimate("air", 0.0, np.array([1.0, 0.0]), NONE)
    duration = 0.8
    hit = np.sqrt(2.0 / GRAVITY)
    phi = np.array([[1.0, duration - hit], [0.0, 1.0]])
    by_event = EventNoise(lambda event: added * abs(event.state_before[1]))
    for noise, factor in ((added, 1.0), ({"air": added}, 1.0), (Noise(added), 1.0),
                          (by_event, GRAVITY * hit)):  # fmt: skip
        found = ball_filter(reset_noise=noise).predict(start, duration).estimate
        np.testing.assert_allclose(found.covariance, factor * phi @ added @ phi.T, rtol=1e-8)


def test_rates_of_any_size_are_compared_with_their_deviation():
    """The square of 1e300 is no float; neither raised nor warned of."""
    row, p = np.array([1.0, 0.0]), np.diag([4.0, 1.0])
    assert _find_insignificant_rate({"fast": (1e300, row), "sure": (-2.5, row)}, p) is None
    assert _find_insignificant_rate({"fast": (1e300, row), "slow": (-1.5, row)}, p) == "slow"


def test_a_rate_of_which_rounding_makes_the_variance_negative_is_certain():
    """Rank one, and a row that it does not move: the variance is zero to rounding, of any sign."""
    along = np.array([0.1, 0.7])
    row = np.array([0.7, -0.1])
    for p in (np.outer(along, along) - 1e-15 * np.eye(2), np.diag([-1e-40, 0.0])):
        assert row @ p @ row < 0.0
        assert _find_insignificant_rate({"hit": (-1.0, row)}, p) is None


@pytest.mark.parametrize("rate", [-1e-6, -0.02])
@pytest.mark.parametrize("strategy", ["saltation", "reset_jacobian"])
def test_noise_of_a_guard_counts_where_its_rate_is_less_certain_than_its_sign(rate, strategy):
    """A floor w higher leaves the ball (1 + e) w higher, however fast it comes.

    x+ = -e x - (1 + e) w: through a bounce, and the time between both floors at both speeds. Next
    to that gravity makes little of the time by which the event is off, w / 0.04 m/s.
    """
    e, s, deviation = 0.8, 1e-12, 0.05
    p = np.diag([1e-12, deviation**2])
    system, x = bouncing_ball(e), np.array([0.0, rate])
    event = hc.simulate(system, "air", np.array([1e-9, -0.5]), (0.0, 0.01)).events[0]
    event = replace(event, state_before=x, state_after=np.array([0.0, -e * rate]))
    without, once = (
        jump_moments(system, event, p, strategy, None, g) for g in (EXACT_GUARDS, GuardNoise(s))
    )
    added = once.covariance - without.covariance
    assert added[0, 0] == pytest.approx((1.0 + e) ** 2 * s, rel=1e-9)
    own = e**2 * p[0, 0] if strategy == "saltation" else p[0, 0]
    assert without.covariance[0, 0] == pytest.approx(own, rel=1e-9)
    if strategy == "saltation":
        assert without.note == once.note
    assert "less certain than its sign" in once.note
    # the speed of those that fall: that of a normal distribution cut off at zero
    falling = truncnorm(-np.inf, -rate / deviation, rate, deviation).mean()
    change = (1.0 + e) * GRAVITY / abs(falling)
    assert added[1, 1] == pytest.approx(change**2 * s, rel=1e-6)


def test_events_less_certain_than_their_sign_are_counted():
    """A ball that comes to rest on an uncertain floor bounces slower than it knows."""
    start = Estimate("air", 0.0, np.array([0.05, 0.0]), np.diag([1e-4, 1e-2]))
    record = Record({"height": Series([0.6], [[0.0]])})
    counts = [ball_filter().run(record, replace(start, covariance=scale * start.covariance))
              for scale in (1e-8, 1.0)]  # fmt: skip
    assert [c.summary()["unsure"] for c in counts] == [0, counts[1].unsure]
    assert 0 < counts[1].unsure < len(counts[1].events)


@pytest.mark.parametrize(
    "make",
    [
        lambda space: configuration("q", space, np.eye(2)),
        lambda space: base_pose("pose", space, np.eye(6)),
        lambda space: encoders("angles", space, ["hip"], np.eye(1)),
    ],
)
def test_measurements_of_robots_need_the_space_of_one(make):
    with pytest.raises(InputError, match="space must be a RobotStateSpace, got VectorSpace"):
        make(hc.VectorSpace(2))


def test_the_pose_of_a_base_needs_one_that_floats():
    """The first seven coordinates of another robot are no pose."""
    space = RobotStateSpace(block.system().mechanism.robot)
    with pytest.raises(InputError, match="space must be that of a robot with a floating base"):
        base_pose("pose", space, np.eye(6))


def test_a_contact_that_sticks_has_no_reset_noise():
    """What the state is put back by is rounding; noise is that of an impulse, and there is none."""
    system = block.system()
    start = [0.0, 0.5 * block.BlockParameters().height, 0.0, 0.5, 0.0, 0.0]
    run = hc.simulate(system, ("slip+", "slip+"), start, (0.0, 1.0))
    event = run.guard_events[0]
    assert "stick" in event.mode_after
    moved = replace(event, state_after=event.state_before + 1e-16 * np.arange(1, 7))
    noise = Noise(np.eye(6), name="reset_noise")
    assert reset_covariance(system, noise, moved) is None


def test_an_event_that_leaves_the_state_alone_has_no_reset_noise():
    system, _, _ = two_flows()
    measured = linear("z", np.eye(2), np.eye(2))
    kf = SaltedKalmanFilter(system, NONE, measured, reset_noise=np.eye(2))
    found = kf.predict(Estimate("I", 0.0, np.array([-0.2, -0.06]), NONE), 0.4).estimate
    np.testing.assert_array_equal(found.covariance, NONE)


def test_several_events_fall_into_one_sample():
    p0 = np.diag([1e-6, 1e-6])
    start = Estimate("air", 0.0, np.array([1.0, 0.0]), p0)
    kf = ball_filter(bouncing_ball(0.5))
    one = kf.predict(start, 1.2)
    e = start
    for k in range(120):
        e = kf.predict(e, (k + 1) * 0.01).estimate
    assert len(one.events) == 3
    np.testing.assert_allclose(one.estimate.mean, e.mean, atol=1e-7)
    np.testing.assert_allclose(one.estimate.covariance, e.covariance, rtol=1e-6)
    np.testing.assert_allclose(
        one.transition @ p0 @ one.transition.T, one.estimate.covariance, rtol=1e-12
    )


def test_an_event_whose_rate_is_less_certain_than_its_sign_is_that_of_those_who_fall():
    """A ball at speed v that is known to s: gravity does not change that, dg'/dv = 1."""
    system = bouncing_ball()
    for speed, deviation, vague in ((1.0, 0.9, False), (1.0, 1.1, True), (1e-3, 1.1e-3, True)):
        event = hc.simulate(system, "air", [1e-6, -speed], (0.0, 2e-6 / speed)).events[0]
        before = float(-event.state_before[1])
        p = np.diag([1e-6, (deviation * before / speed) ** 2])
        found = jump_moments(system, event, p, "saltation")
        assert (found.note is not None) == vague
        if vague:
            s = deviation * before / speed
            fall = truncnorm(-np.inf, before / s, -before, s).mean()
            event = replace(event, state_before=np.array([event.state_before[0], fall]),
                            state_after=np.array([event.state_after[0], -0.8 * fall]))  # fmt: skip
        expected = jump_gains(system, event).state
        np.testing.assert_allclose(found.matrix, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("strategy", ["saltation", "reset_jacobian"])
def test_noise_of_a_guard_goes_by_those_who_fall_also_where_their_event_is_another(strategy):
    """A ball that is to stay on the floor, and would rebound at the mean speed of those who fall.

    It stops at once, so that a floor w higher is met v w / |fall| lower than without gravity, with
    v its own speed and fall that mean: not w itself, as if all came at v.
    """
    p, w, s = ball.BallParameters(slope=0.0, restitution=0.5), 1e-4, 0.2
    contacts = [replace(c, restitution_threshold=0.1) for c in ball.contacts(p)]
    system = hc.mechanics.contact_system(ball.robot(p), contacts)
    (event,) = hc.simulate(system, ("open",), [0.0, 1e-6, 0.3, -4e-3], (0.0, 0.01)).events
    assert event.mode_after == ("closed",)
    speed = -float(event.state_before[3])
    fall = truncnorm(-np.inf, speed / s, -speed, s).mean()
    spread = np.diag([0.0, 1e-12, 0.0, s**2])
    without, once = (
        jump_moments(system, event, spread, strategy, None, g)
        for g in (EXACT_GUARDS, GuardNoise(w**2))
    )
    added = once.covariance - without.covariance
    assert np.sqrt(added[1, 1]) == pytest.approx(w * speed / abs(fall), rel=1e-6)
    own = 1.0 + speed / fall if strategy == "saltation" else 1.0
    assert without.matrix[1, 1] == pytest.approx(own, rel=1e-6)


@pytest.mark.parametrize("make", [block, cube])
def test_gradients_of_rates_have_the_turning_of_guards(make):
    """A body that spins at 10 rad/s: its corners' rates change by some 1 m/s per rad.

    h = 1e-6 leaves 1e-12 times third derivatives of 1e3 and rounding of 1e-15 / h.
    """
    system = make.system()
    open_ = tuple(["open"] * len(system.contacts))
    mode = system.mode(open_)
    random = np.random.default_rng(8)
    x = mode.space.normalize(random.normal(size=mode.space.nx))
    x[-mode.space.ndx // 2 :] *= 10.0
    event = SimpleNamespace(input_rate=np.zeros(mode.nu), guards=mode.guard_names[:2])

    def rates(dx):
        beside = mode.calc(
            0.0, mode.space.normalize(mode.space.integrate(x, dx)), np.zeros(mode.nu)
        )
        return np.array([rate for rate, _ in _guard_rates(beside, event).values()])

    exact = central(rates, mode.space.ndx, 1e-6)
    at = mode.calc(0.0, x, np.zeros(mode.nu))
    found = np.array([row for _, row in _guard_rates(at, event).values()])
    assert np.abs(found[:, : mode.space.ndx // 2]).max() > 0.1
    np.testing.assert_allclose(found, exact, atol=1e-7)


def test_an_event_is_not_less_certain_than_its_sign_for_a_guard_that_turns():
    """A rod's end at 0.2 m/s: pitch and rate that are known together leave it as it is.

    z = h + l sin a moves with l cos(a) w; where w and a differ so that this stays, w -> w + d and
    a -> a + d / (w tan(a)), the rate is as certain as it was.
    """
    length, a, w = 1.0, 0.3, -4.0
    x = ca.SX.sym("x", 2)
    turn = symbolic.SymbolicMode("turn", x, [x[1], 0.0])
    stop = symbolic.SymbolicTransition("turn", "stop", length * ca.sin(x[0]), "turn", [x[0], -x[1]])
    system = symbolic.hybrid_system([turn], [stop])
    event = hc.simulate(system, "turn", [a, w], (0.0, 0.2)).events[0]
    event = replace(event, state_before=np.array([a, w]), state_after=np.array([a, -w]))
    way = np.array([1.0 / (w * np.tan(a)), 1.0])
    p = 9.0 * w**2 * np.outer(way, way)
    rates = _guard_rates(EventPoints.of(system, event).before, event)
    assert _find_insignificant_rate(rates, p) is None
    assert _find_insignificant_rate(rates, np.diag([0.0, 9.0 * w**2])) == "stop"


@pytest.mark.parametrize("offsets", [0.0, 1e-6])
def test_corners_that_land_level_and_whose_order_matters_are_one_impact(offsets):
    """The high block stops where a corner touches: dx+ = dx + v_x dt with dt as in `test_at_once`,
    the offset of each corner's ground beside it. Moments of the same points, by hand.
    """
    width, slide = 0.1, 0.2
    system, x0 = landing_level(width, 0.3, 0.5, slide)
    event = hc.simulate(system, ("open", "open"), x0, (0.0, 0.04), rtol=1e-12, atol=1e-12).events[0]
    root = 1e-3 * np.random.default_rng(5).normal(size=(6, 6))
    p = root @ root.T
    noise = GuardNoise({name: offsets for name in event.guards} if offsets else 0.0)
    found = jump_moments(system, event, p, "saltation", guard_noise=noise)
    assert "one impact" in found.note
    whole = block_diag(p, offsets * np.eye(2)) if offsets else p
    points = sample_normal_points(whole, 1024, 0)
    off = points[:, 6:] if offsets else np.zeros((len(points), 2))
    corners = points[:, 1:2] + 0.5 * width * np.outer(points[:, 2], [1.0, -1.0]) + off
    along = points[:, 0] + slide * corners.min(axis=1) / -event.state_before[4]
    expected = np.zeros((6, 6))
    expected[0, 0] = along.var()
    np.testing.assert_allclose(found.covariance, expected, atol=1e-10)
    np.testing.assert_allclose(found.shift, [along.mean(), *[0.0] * 5], atol=1e-10)


def test_the_noise_of_an_event_is_the_same_for_all_strategies():
    """What guard noise adds is k k^T s / rate^2 whatever the matrix, so that this alone differs."""
    start = Estimate("air", 0.0, np.array([1.0, 0.2]), np.diag([1e-4, 4e-4]))
    added = []
    for strategy in ("saltation", "reset_jacobian", "no_jump"):
        both = [
            ball_filter(guard_noise=variance, options=FilterOptions(strategy=strategy))
            .predict(start, 0.6)
            .estimate
            for variance in (0.0, 1e-4)
        ]
        added.append(both[1].covariance - both[0].covariance)
    assert np.abs(added[0]).max() > 1e-5
    for other in added[1:]:
        np.testing.assert_allclose(other, added[0], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("way", [(0.3, 0.8), None])
def test_rest_projects_along_what_the_resets_move(way):
    """Impulses along a way d, as friction turns them, on a floor with the normal n.

    Places and velocities lose what they have across along d: 1 - d n' / (n . d). Where the reset
    changes nothing there is no way, and the projection is orthogonal.
    """
    n, e, x = np.array([-0.6, 0.8]), 0.5, ca.SX.sym("x", 4)
    d = n if way is None else np.array(way)
    push = 0.0 if way is None else (1.0 + e) / (n @ d)
    after = ca.vertcat(x[:2], x[2:] - push * d * (ca.DM(n).T @ x[2:]))
    air = symbolic.SymbolicMode("air", state=x, field=[x[2], x[3], 0.0, -GRAVITY])
    floor = symbolic.SymbolicTransition("air", "floor", ca.DM(n).T @ x[:2], "air", after)
    system = symbolic.hybrid_system([air], [floor])
    state = np.array([0.0, 0.0, 0.1, -0.2])
    found = compute_rest_projection(system, "air", ("floor",), 0.0, state, np.zeros(0))
    half = np.eye(2) - np.outer(d, n) / (n @ d)
    np.testing.assert_allclose(found, block_diag(half, half), atol=1e-14)
