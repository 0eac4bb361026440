"""Several hypotheses together: moments and modes against Bayes' rule by quadrature."""

from functools import cache

import numpy as np
import pytest
from estimation.systems import GRAVITY, bounced, bouncing_ball, height, two_flows
from hybridctl.robots import cube
from scipy.spatial.transform import Rotation
from scipy.stats import norm

import hybridctl as hc
from hybridctl.estimation.consistency import judge, nees
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_state import Hypothesis
from hybridctl.estimation.measurement import linear
from hybridctl.estimation.mixture import mix_hypotheses
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.estimation.smoother import smooth
from hybridctl.sampling.particle import ParticleFilter

RESTITUTION, START = 0.7, np.array([0.1, 0.0])
IMPACT = np.sqrt(2.0 * START[0] / GRAVITY)


def bayes(s, value, time=IMPACT):
    """Mean, covariance and evidence of the state at `time`, given a height measured within s."""
    return bayes_of(s, [(time, 0, value, s)])


def bayes_of(s, values):
    """The same at the last of several values: their times, rows of the state, and deviations.

    The ball starts at N(START, s^2). A rule of 600 midpoints each way, within 6 deviations: the
    density jumps where the bounce begins, so it is good to some 1e-3 of a deviation.
    """
    line = 12.0 * ((np.arange(600) + 0.5) / 600 - 0.5)
    z = np.array(np.meshgrid(line, line)).reshape(2, -1).T
    weights = np.exp(-0.5 * (z**2).sum(axis=1)) / (2.0 * np.pi) * (12.0 / 600) ** 2
    for time, row, value, deviation in values:
        states = bounced(START + s * z, time, RESTITUTION)
        weights *= norm.pdf(value, states[:, row], deviation)
    evidence = weights.sum()
    mean = weights @ states / evidence
    ways = states - mean
    return mean, ways.T @ (weights[:, None] * ways) / evidence, evidence


@cache  # its functions are compiled once
def ball_filter(s, hypotheses=4):
    system = bouncing_ball(RESTITUTION)
    return SaltedKalmanFilter(system, np.zeros((2, 2)), height(s**2), hypotheses=hypotheses)


def straddling(s, value, hypotheses=4):
    """The filter's state of the same belief; its mean has just bounced."""
    kf = ball_filter(s, hypotheses)
    state = kf.predict(Estimate("air", 0.0, START, s**2 * np.eye(2)), IMPACT + 1e-9)
    return kf.update(state, "height", [value])


@pytest.mark.parametrize("offset", [-0.5, 0.3, 1.0])
def test_a_belief_that_straddles_a_bounce_has_the_moments_of_bayes_rule(offset):
    """To first order: what is left of the error is the curvature of the fall, linear in s.

    Height is in units of s, speed in m/s; its deviation is that between two speeds, 1.2 m/s, of
    which the likeliest hypothesis alone knows a twentieth.
    """
    errors = []
    for s in (8e-3, 2e-3):
        unit, found = np.array([s, 1.0]), straddling(s, offset * s).mixture
        mean, covariance, _ = bayes(s, offset * s)
        own, right = (np.sqrt(np.diag(p)) / unit for p in (found.covariance, covariance))
        errors.append(np.abs([*((found.mean - mean) / unit), *(own - right)]).max())
        assert right[1] > 1.0
    assert errors[0] < 0.02
    assert errors[1] < errors[0] / 2.5  # 4 of the first order, but for what is of the second


def test_the_likeliest_alone_is_far_off_there_and_stays_available():
    state = straddling(2e-3, 6e-4)
    mean, covariance, _ = bayes(2e-3, 6e-4)
    alone, all_ = state.estimate, state.mixture
    assert abs(alone.mean[1] - mean[1]) > 1.0
    assert np.sqrt(alone.covariance[1, 1]) < 0.1 * np.sqrt(covariance[1, 1])
    assert np.sqrt(all_.covariance[1, 1]) == pytest.approx(np.sqrt(covariance[1, 1]), rel=0.01)
    assert alone.covariance is state.hypotheses[0].estimate.covariance


FALL = GRAVITY * IMPACT
JUST_ABOVE = IMPACT - 0.25 * 2e-3 / FALL  # s, a quarter of a deviation of 2 mm


def falling(s):
    """A filter of heights and speeds of the ball, and four hypotheses."""
    speed = linear("speed", np.array([[0.0, 1.0]]), np.array([[0.1**2]]))
    system = bouncing_ball(RESTITUTION)
    return SaltedKalmanFilter(system, np.zeros((2, 2)), [height(s**2), speed], hypotheses=4)


def after(kf, s, values):
    """The filter's state after values as those of `bayes_of`."""
    state = kf.start(Estimate("air", 0.0, START, s**2 * np.eye(2)))
    for at, row, value, _ in values:
        state = kf.update(kf.predict(state, at), ("height", "speed")[row], [value])
    return state


@pytest.mark.parametrize("s", [2e-3, 5e-4])
@pytest.mark.parametrize("first", [-0.8, -1.5])
def test_a_value_that_takes_the_mean_past_the_floor_leaves_as_much_before_it_as_bayes_rule(
    first, s
):
    """To first order: what is left is the curvature of the fall, 0.1 of s over what it fell."""
    values = [(IMPACT - 0.25 * s / FALL, 0, first * s, s)]
    found = after(falling(s), s, values).hypotheses
    still = sum(np.exp(h.weight) for h in found if h.estimate.mean[1] < 0.0)
    mean, _, _ = bayes_of(s, values)
    right = (RESTITUTION * FALL - mean[1]) / ((1.0 + RESTITUTION) * FALL)
    assert still == pytest.approx(right, abs=0.1 * s / START[0])


def test_what_waits_before_a_bounce_bounces_or_waits_on():
    """Probabilities are split as time goes on, and sum to one, but for 1e-5 of another order."""
    s = 2e-3
    kf = falling(s)
    state = after(kf, s, [(JUST_ABOVE, 0, -0.8 * s, s), (JUST_ABOVE, 1, -FALL, 0.1)])
    waits = []
    for later in (0.3, 1.0, 2.0):
        now = kf.predict(state, JUST_ABOVE + later * s / FALL)
        assert sum(np.exp(h.weight) for h in now.hypotheses) == pytest.approx(1.0, abs=1e-4)
        waits.append(sum(np.exp(h.weight) for h in now.hypotheses if h.pending))
    assert 1.0 > waits[0] > waits[1] > waits[2]


@pytest.mark.parametrize(
    ("first", "then", "last"), [(-0.8, 1.0, 0.4), (-1.5, 1.0, 0.4), (-0.8, 2.0, 1.0)]
)
def test_a_bounce_that_a_value_speaks_for_and_the_next_one_against_comes_after_them(
    first, then, last
):
    """The mean is a quarter of a deviation above the floor, and a height takes it below.

    That it falls still says the speed. A while later, in which the mean would fall by one or two
    deviations, a height comes from above. The speed is then that of a bounce, 1 m/s, or still -1.4.
    Of the chance of that, an eighth at most, normal distributions that go on past the floor take a
    tenth of a deviation more or less to be beyond it, a thirtieth: 0.08 m/s.
    """
    s, later = 2e-3, JUST_ABOVE + then * 2e-3 / FALL
    values = [
        (JUST_ABOVE, 0, first * s, s),
        (JUST_ABOVE, 1, -FALL, 0.1),
        (later, 0, last * s, s),
    ]
    kf = falling(s)
    mean, covariance, _ = bayes_of(s, values)
    found = after(kf, s, values).mixture
    assert found.mean[1] == pytest.approx(mean[1], abs=0.08)
    assert found.covariance[1, 1] ** 0.5 == pytest.approx(covariance[1, 1] ** 0.5, abs=0.08)


@pytest.mark.slow
def test_a_belief_that_straddles_a_bounce_knows_how_wrong_it_is():
    """Of 150 balls: a right covariance has a mean NEES of 2, whatever the shape of the belief.

    The band is four standard errors of what was drawn, which has heavier tails than chi-squared.
    """
    s, rng = 2e-3, np.random.default_rng(4)
    truth = bounced(START + s * rng.normal(size=(150, 2)), IMPACT, RESTITUTION)
    squares = []
    for x in truth:
        found = straddling(s, x[0] + s * rng.normal()).mixture
        squares.append((x - found.mean) @ np.linalg.solve(found.covariance, x - found.mean))
    error = np.std(squares) / np.sqrt(len(squares))
    assert error < 0.4
    assert abs(np.mean(squares) - 2.0) < 4.0 * error


@pytest.mark.parametrize("offset", [-0.5, 0.3, 1.0])
def test_the_likelihood_of_a_value_is_that_of_all_hypotheses(offset):
    errors = []
    for s in (8e-3, 2e-3):
        found = straddling(s, offset * s).innovation.log_likelihood
        errors.append(abs(found - np.log(bayes(s, offset * s)[2])))
    assert errors[0] < 0.03
    assert errors[1] < errors[0] / 2.5


def test_one_hypothesis_is_its_own_mixture():
    state = straddling(2e-3, 6e-4, hypotheses=1)
    assert state.several is None
    assert state.mixture.mean is state.estimate.mean
    assert state.mixture.covariance is state.estimate.covariance
    assert state.mixture.probabilities == {"air": 1.0}


@pytest.mark.parametrize(
    ("late", "share"), [(-2.5, 0.006), (-2.2, 0.014), (0.0, 0.5), (2.2, 0.986), (2.5, 0.994)]
)
def test_one_hypothesis_says_which_events_may_lie_on_the_other_side_of_a_sample(late, share):
    """A sample so many deviations of the impact's time, s over its speed, after the mean has it.

    The share of balls that have bounced by then is drawn; between 1 and 99 % it is said: which of
    both a value comes from, one order alone does not ask, and is as sure as if it were known.
    """
    s, speed = 1e-4, GRAVITY * IMPACT
    time = IMPACT + late * s / speed + 1e-9
    heights = START[0] + s * np.random.default_rng(0).normal(size=100_000)
    assert np.mean(np.sqrt(2.0 * heights / GRAVITY) < time) == pytest.approx(share, abs=2e-3)
    record = Record({"height": Series([time, IMPACT + 0.05], [[0.0], [0.07]])})
    start = Estimate("air", 0.0, START, np.diag([s**2, 0.0]))  # so that s stays that of heights
    alone, all_ = (ball_filter(1e3 * s, hypotheses=n).run(record, start) for n in (1, 4))
    assert alone.astride == alone.summary()["astride"] == (0.01 < share < 0.99)
    assert all_.astride == 0
    if share == 0.5:  # of two speeds, that are 2.4 m/s apart
        assert np.sqrt(all_.covariances[0][1, 1]) > 1.0 > 0.05 > np.sqrt(alone.covariances[0][1, 1])


def test_after_a_prediction_alone_the_moments_are_those_of_what_may_have_happened():
    """Half of the balls have bounced."""
    s = 2e-3
    kf = ball_filter(s)
    found = kf.predict(Estimate("air", 0.0, START, s**2 * np.eye(2)), IMPACT + 1e-9).mixture
    rng = np.random.default_rng(0)
    states = bounced(START + s * rng.normal(size=(200_000, 2)), IMPACT, RESTITUTION)
    # 1/sqrt(200,000) of a deviation, and first order as above
    unit = np.array([s, 1.0])
    np.testing.assert_allclose(found.mean / unit, states.mean(axis=0) / unit, atol=0.02)
    np.testing.assert_allclose(
        np.sqrt(np.diag(found.covariance)) / unit, states.std(axis=0) / unit, atol=0.02
    )


def test_a_result_reports_the_mixture_and_keeps_the_likeliest():
    s = 2e-3
    record = Record({"height": Series([IMPACT + 1e-9, IMPACT + 0.05], [[6e-4], [0.05]])})
    start = Estimate("air", 0.0, START, s**2 * np.eye(2))
    result = ball_filter(s).run(record, start)
    state = straddling(s, 6e-4)
    np.testing.assert_array_equal(result.means[0], state.mixture.mean)
    np.testing.assert_array_equal(result.covariances[0], state.mixture.covariance)
    np.testing.assert_array_equal(result.steps[0].estimate.mean, state.estimate.mean)
    assert result.modes == ("air", "air")
    assert result.probabilities[0] == pytest.approx({"air": 1.0})
    # by then one order is left, and says what it knows
    assert len(result.steps[1].hypotheses) == 1
    assert result.means[1] is result.steps[1].estimate.mean


def test_judgements_are_of_the_mixture():
    """A ball that has not bounced lies 20 deviations off the likeliest order, one off all."""
    s = 2e-3
    record = Record({"height": Series([IMPACT + 1e-9], [[6e-4]])})
    result = ball_filter(s).run(record, Estimate("air", 0.0, START, s**2 * np.eye(2)))
    truth = np.array([1e-3, -GRAVITY * IMPACT])
    space = bouncing_ball().mode("air").space
    assert nees(space, result.steps[0].estimate, truth)[0] > 100.0
    assert nees(space, result.mixtures[0], truth)[0] < 10.0

    class Truth:
        start, end, guard_events = 0.0, 1.0, ()

        def __call__(self, t):
            return truth

        def arc(self, t):
            return Estimate("air", t, truth, np.zeros((2, 2)))

    judged = judge(bouncing_ball(), result, Truth())
    assert judged.nees == pytest.approx(nees(space, result.mixtures[0], truth)[0] / 2.0)
    assert judged.agreement == 1.0


@pytest.mark.parametrize("ahead", [-0.6, 0.4])
def test_modes_are_as_probable_as_the_belief_says(ahead):
    """Constant flows across a line: the side of the line is normal, whatever the value says."""
    system, _, n = two_flows()
    rate = n @ [1.0, 0.3]
    vague = linear("place", np.eye(2), 1e8 * np.eye(2))
    start = Estimate("I", 0.0, -0.05 * n, 1e-4 * np.eye(2))
    time = (0.05 + ahead * 0.01) / rate  # past the line by this many deviations
    kf = SaltedKalmanFilter(system, np.zeros((2, 2)), vague, hypotheses=4)
    found = kf.update(kf.predict(start, time), "place", [0.0, 0.0]).mixture
    crossed = norm.cdf(ahead)
    assert found.probabilities == pytest.approx({"J": crossed, "I": 1.0 - crossed}, abs=1e-6)
    assert found.mode == next(iter(found.probabilities)) == ("J" if ahead > 0.0 else "I")
    particles = ParticleFilter(system, np.zeros((2, 2)), vague, particles=300, seed=0)
    record = Record({"place": Series([time], [[0.0, 0.0]])})
    (drawn,) = particles.run(record, start).mixtures
    # three deviations of a share of 300
    assert drawn.probabilities["J"] == pytest.approx(crossed, abs=3.0 * 0.5 / np.sqrt(300))
    record = Record({"place": Series([time], [[0.0, 0.0]])})
    result = kf.run(record, start)
    assert set(result.doubtful) == {"I", "J"}
    np.testing.assert_allclose(result.probability("J"), [crossed], atol=1e-6)
    assert not result.probability("K").any()
    assert list(drawn.probabilities.values()) == sorted(drawn.probabilities.values(), reverse=True)


def test_on_a_manifold_moments_are_those_of_the_angle_about_one_axis():
    r"""Two attitudes turned about z: the angle is a mixture on a line, and across it the tangent
    space turns by half the way :math:`\phi`, and grows by :math:`(\phi/2) / \sin(\phi/2)`."""
    system, mode, spread = cube.system(), ("open",) * 8, 1e-2
    angles, weights = np.array([0.9, -0.5]), np.array([0.7, 0.3])
    hypotheses = []
    for angle, w in zip(angles, weights, strict=True):
        turn = Rotation.from_rotvec([0.0, 0.0, angle]).as_quat()
        x = np.concatenate(([0.0, 0.0, 1.0], turn, np.zeros(6)))
        p = np.zeros((12, 12))
        p[3:6, 3:6] = spread**2 * np.eye(3)
        hypotheses.append(Hypothesis(Estimate(mode, 0.0, x, p), np.log(w)))
    found = mix_hypotheses(system, hypotheses)
    middle = weights @ angles
    ways = angles - middle
    turned = Rotation.from_quat(found.mean[3:7]).as_rotvec()
    np.testing.assert_allclose(turned, [0.0, 0.0, middle], atol=1e-9)
    along = weights @ (spread**2 + ways**2)
    across = weights @ (spread * (0.5 * ways) / np.sin(0.5 * ways)) ** 2
    expected = np.diag([across, across, along])
    np.testing.assert_allclose(found.covariance[3:6, 3:6], expected, atol=1e-9)
    assert found.probabilities == pytest.approx({mode: 1.0})


def test_modes_of_another_size_count_in_the_probabilities_alone():
    line = hc.Mode("line", hc.VectorSpace(1), lambda t, x, u: x)
    plane = hc.Mode("plane", hc.VectorSpace(2), lambda t, x, u: x)
    system = hc.HybridSystem([line, plane], [])
    one = Hypothesis(Estimate("line", 0.0, np.array([1.0]), np.eye(1)), np.log(0.4))
    two = Hypothesis(Estimate("plane", 0.0, np.array([1.0, 2.0]), np.eye(2)), np.log(0.35))
    three = Hypothesis(Estimate("plane", 0.0, np.array([3.0, 2.0]), np.eye(2)), np.log(0.25))
    found = mix_hypotheses(system, [one, two, three])
    assert found.probabilities == pytest.approx({"plane": 0.6, "line": 0.4})
    np.testing.assert_allclose(found.mean, [1.0 + 2.0 * 0.25 / 0.6, 2.0])
    share = 0.25 / 0.6
    np.testing.assert_allclose(found.covariance, np.diag([1.0 + 4.0 * share * (1.0 - share), 1.0]))


@pytest.mark.parametrize("offset", [0.3, 1.0])
def test_the_past_learns_from_all_hypotheses_that_are_left(offset):
    """The height before a bounce of which nobody knows whether it has been, by quadrature.

    Both ways back weigh as what they end in; what is cut off there, at the floor, is not taken
    back, so deviations are right to a tenth.
    """
    s, early = 2e-3, 0.05
    values = [[START[0] - 0.5 * GRAVITY * early**2 + 0.4 * s], [offset * s]]
    line = 12.0 * ((np.arange(400) + 0.5) / 400 - 0.5)
    z = np.array(np.meshgrid(line, line)).reshape(2, -1).T
    then, now = (bounced(START + s * z, t, RESTITUTION) for t in (early, IMPACT))
    off = np.column_stack([z, (values[0] - then[:, :1]) / s, (values[1] - now[:, :1]) / s])
    weights = np.exp(-0.5 * (off**2).sum(axis=1))
    mean = weights @ then[:, 0] / weights.sum()
    spread = np.sqrt(weights @ (then[:, 0] - mean) ** 2 / weights.sum())
    kf = ball_filter(s)
    record = Record({"height": Series([early, IMPACT + 1e-9], values)})
    result = kf.run(record, Estimate("air", 0.0, START, s**2 * np.eye(2)))
    assert len(result.steps[-1].hypotheses) == 2
    found = smooth(kf.model.system, result)
    alone, both = found.estimates[0], found.mixtures[0]
    assert abs(both.mean[0] - mean) < min(0.05 * s, 0.5 * abs(alone.mean[0] - mean))
    assert np.sqrt(both.covariance[0, 0]) == pytest.approx(spread, rel=0.1)
    assert found.mixtures[1].probabilities == {"air": pytest.approx(1.0)}
