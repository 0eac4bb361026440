"""Contaminated process noise: rare disturbances explain what white noise cannot."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import hybridctl as hc
from hybridctl.app.models import find_model
from hybridctl.base.errors import InputError
from hybridctl.estimation.deadline import Deadline
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.initial_estimate import build_kalman_filter, first_estimate
from hybridctl.estimation.likelihood import fit_noise
from hybridctl.estimation.measurement import linear
from hybridctl.estimation.noise import Disturbance, Noise
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.estimation.smoother import smooth
from hybridctl.estimation.synthetic import simulate_record

from .systems import affine, bouncing_ball

DT = 0.1  # s
RATE = 0.8  # of disturbances, 1/s
WHITE = np.diag([0.0, 1e-4])  # density of the white noise of the velocity
KICK = np.diag([0.0, 0.09])  # covariance of a change of the velocity
FREE = affine([[0.0, 1.0], [0.0, 0.0]], [0.0, 0.0])  # position and velocity of a free mass
KNOWN = Estimate("flow", 0.0, np.zeros(2), np.diag([1e-4, 1e-2]))
SEEN = 1e-4  # variance of a measured position


def position(gate=None):
    return linear("position", [[1.0, 0.0]], [[SEEN]], gate=gate)


def free_filter(rate=RATE, gate=None, hypotheses=1, white=WHITE, kick=KICK, patience=8):
    noise = Noise(white, disturbances=(Disturbance(rate, kick),))
    options = FilterOptions(patience=patience)
    return SaltedKalmanFilter(FREE, noise, position(gate), hypotheses=hypotheses, options=options)


def kicked_record(seed, n=60, rate=RATE, kick=KICK):
    """States (n, 2) of a free mass with kicks at random times, and its measured positions."""
    rng = np.random.default_rng(seed)
    x = rng.multivariate_normal(KNOWN.mean, KNOWN.covariance)
    states, times = [], DT * np.arange(1, n + 1)
    for _ in times:
        x += [DT * x[1], 0.0]
        for s in rng.uniform(0.0, DT, rng.poisson(rate * DT)):
            change = rng.multivariate_normal(np.zeros(2), kick)
            x += [change[0] + s * change[1], change[1]]
        x += [0.0, rng.normal() * np.sqrt(WHITE[1, 1] * DT)]
        states.append(x.copy())
    states = np.array(states)
    seen = states[:, :1] + rng.normal(size=(n, 1)) * np.sqrt(SEEN)
    return states, Record({"position": Series(times, seen)})


@pytest.mark.parametrize("hypotheses", [1, 3])
@pytest.mark.parametrize("name", ["block", "ball"])
def test_a_rate_of_zero_is_white_noise_to_the_bit(name, hypotheses):
    source = find_model(name)
    settings = source.configure(None, ["duration=0.5", f"hypotheses={hypotheses}"])
    model = source.make(settings)
    record, _ = simulate_record(model, settings)
    white = model.process_noise
    none = Disturbance(lambda mode: 0.0, np.eye(len(np.asarray(white.value))))
    still = replace(white, disturbances=(none,))
    start, rest = first_estimate(model, settings, record)
    results = [
        build_kalman_filter(one, settings).run(rest, start)
        for one in (model, replace(model, process_noise=still))
    ]
    assert results[0].events
    for a, b in zip(results[0].steps, results[1].steps, strict=True):
        np.testing.assert_array_equal(a.estimate.mean, b.estimate.mean)
        np.testing.assert_array_equal(a.estimate.covariance, b.estimate.covariance)
        assert a.innovation.log_likelihood == b.innovation.log_likelihood
        assert a.innovation.accepted == b.innovation.accepted


def test_the_moments_and_the_likelihood_are_those_of_the_mixture():
    """White noise, and a velocity that changes at a uniform time: both in closed form."""
    flow = np.array([[1.0, DT], [0.0, 1.0]])
    white = WHITE[1, 1] * np.array([[DT**3 / 3, DT**2 / 2], [DT**2 / 2, DT]])
    late = KICK[1, 1] * np.array([[DT**2 / 3, DT / 2], [DT / 2, 1.0]])
    before = flow @ KNOWN.covariance @ flow.T + white
    priors = [before, before + late]
    variances = [p[0, 0] + SEEN for p in priors]
    logs = [-RATE * DT, np.log(-np.expm1(-RATE * DT))]
    kf = free_filter()
    state = kf.predict(kf.start(KNOWN), DT)
    for y in (0.0, 0.03, 0.2):
        after = kf.update(state, "position", [y])
        parts = [
            log + norm(0.0, np.sqrt(v)).logpdf(y) for log, v in zip(logs, variances, strict=True)
        ]
        np.testing.assert_allclose(after.innovation.log_likelihood, logsumexp(parts), rtol=1e-9)
        w = np.exp(parts - logsumexp(parts))
        gains = [p[:, 0] / v for p, v in zip(priors, variances, strict=True)]
        mean = sum(w * y * gain for w, gain in zip(w, gains, strict=True))
        spread = sum(
            w * (p - np.outer(k, p[0]) + np.outer(y * k - mean, y * k - mean))
            for w, k, p in zip(w, gains, priors, strict=True)
        )
        np.testing.assert_allclose(after.estimate.mean, mean, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(after.estimate.covariance, spread, rtol=1e-5)
        predicted = sum(w * p for w, p in zip(w, priors, strict=True))
        np.testing.assert_allclose(after.predicted.covariance, predicted, rtol=1e-5)


def test_without_time_the_likeliest_motion_alone_is_followed_and_a_note_says_so():
    """The likelihood of the value stays that of all of them."""
    deadline = Deadline()
    deadline.limit = -np.inf
    kf, white = free_filter(), free_filter(rate=0.0)
    value = np.array([0.002])  # m: the motion without a kick is the likeliest
    patient = kf.update(kf.predict(KNOWN, DT), "position", value)
    late = kf.limit_time(deadline).update(kf.predict(KNOWN, DT), "position", value)
    alone = white.update(white.predict(KNOWN, DT), "position", value)
    assert any("no time is left" in note for note in late.notes)
    assert not patient.notes
    np.testing.assert_allclose(late.estimate.mean, alone.estimate.mean, rtol=1e-12)
    np.testing.assert_allclose(late.estimate.covariance, alone.estimate.covariance, rtol=1e-12)
    assert patient.estimate.covariance[1, 1] > 1.1 * alone.estimate.covariance[1, 1]
    assert late.innovation.log_likelihood == patient.innovation.log_likelihood


def test_the_likelihood_integrates_to_one():
    kf = free_filter()
    state = kf.predict(kf.start(KNOWN), DT)
    values = np.linspace(-0.15, 0.15, 301)
    density = [np.exp(kf.update(state, "position", [y]).innovation.log_likelihood) for y in values]
    np.testing.assert_allclose(np.trapezoid(density, values), 1.0, atol=1e-4)


@pytest.mark.parametrize("hypotheses", [1, 4])
def test_kicks_are_followed_and_the_covariance_is_honest(hypotheses):
    """NEES of two states, over ten records of a mass with kicks; white noise alone is lost."""
    nees, gains = [], []
    for seed in range(10):
        states, record = kicked_record(seed)
        kicked, white = (
            free_filter(rate, hypotheses=hypotheses).run(record, KNOWN) for rate in (RATE, 0.0)
        )
        nees.append([mean_nees(states, result) for result in (kicked, white)])
        gains.append(kicked.log_likelihood - white.log_likelihood)
    kicked, white = np.mean(nees, axis=0)
    assert 0.5 * 2 < kicked < 1.5 * 2
    assert white > 20.0 * 2
    assert np.mean(gains) > 10.0


def mean_nees(states, result):
    """Mean over samples of the errors of states, squared and normalized by the covariances."""
    errors = states - np.array(result.means)
    pairs = zip(errors, result.covariances, strict=True)
    return np.mean([e @ np.linalg.solve(p, e) for e, p in pairs])


def test_the_gate_rejects_what_no_disturbance_explains():
    kf = free_filter(gate=0.9999)
    state = kf.predict(kf.start(KNOWN), DT)
    kicked, absurd = (kf.update(state, "position", [y]) for y in (0.08, 50.0))
    assert kicked.innovation.accepted
    assert not absurd.innovation.accepted
    np.testing.assert_array_equal(absurd.estimate.mean, state.estimate.mean)
    np.testing.assert_array_equal(absurd.estimate.covariance, state.estimate.covariance)
    white = free_filter(0.0, gate=0.9999)
    assert not white.update(state, "position", [0.08]).innovation.accepted


def test_a_second_value_at_the_same_time_may_reveal_the_disturbance():
    """A coarse sensor comes first: it cannot show the kick that the second one shows."""
    coarse = linear("coarse", [[1.0, 0.0]], [[1.0]], gate=0.9999)
    noise = Noise(WHITE, disturbances=(Disturbance(RATE, KICK),))
    kf = SaltedKalmanFilter(FREE, noise, [coarse, position(0.9999)])
    state = kf.update(kf.predict(kf.start(KNOWN), DT), "coarse", [0.08])
    assert kf.update(state, "position", [0.08]).innovation.accepted


def test_the_smoother_takes_a_disturbance_as_process_noise():
    """Velocities before and after a kick: smoothed, each is known from its own side."""
    times = DT * np.arange(1, 21)
    seen = np.where(times > 1.0, 0.6 * (times - 1.0), 0.0)[:, None]
    record = Record({"position": Series(times, seen)})
    result = free_filter().run(record, KNOWN)
    found = smooth(FREE, result)
    before, after = found.estimates[8], found.estimates[11]
    assert abs(before.mean[1]) < 4.0 * np.sqrt(before.covariance[1, 1]) < 0.3
    assert abs(after.mean[1] - 0.6) < 4.0 * np.sqrt(after.covariance[1, 1]) < 0.3


def test_rate_and_size_are_found_by_their_likelihood():
    """Variance per second within a factor of two: joined moments make the rate alone uncertain."""
    records = [kicked_record(seed, 40)[1] for seed in range(8)]

    def make_filter(levels):
        return free_filter(levels[0], kick=levels[1] ** 2 * KICK)

    found = fit_noise(make_filter, records, [KNOWN], [0.4, 0.6], max_evaluations=30)
    assert 0.5 * RATE < found.levels[0] * found.levels[1] ** 2 < 2.0 * RATE
    white = sum(free_filter(0.0).run(record, KNOWN).log_likelihood for record in records)
    assert found.log_likelihood > white + 50.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Disturbance(-1.0, np.eye(2)), "rate"),
        (lambda: Disturbance(1.0, -np.eye(2)), "covariance"),
        (lambda: free_filter(lambda mode: -1.0).run(kicked_record(0)[1], KNOWN), "rate in mode"),
        (lambda: free_filter(kick=np.eye(3)).run(kicked_record(0)[1], KNOWN), "disturbance of"),
    ],
)
def test_wrong_disturbances_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_missed_bounce_is_explained():
    """A ball that the filter takes to fall through a floor that is not there where it bounces."""
    ball = bouncing_ball(0.8)
    truth = hc.simulate(ball, "air", [1.0, 0.0], (0.0, 0.6))
    times = np.arange(0.02, 0.6, 0.02)
    seen = np.array([truth(t)[:1] for t in times])
    record = Record({"position": Series(times, seen)})
    no_floor = affine([[0.0, 1.0], [0.0, 0.0]], [0.0, -9.81])
    start = Estimate("flow", 0.0, np.array([1.0, 0.0]), np.diag([1e-6, 1e-6]))
    noise = Noise(1e-4 * np.eye(2), disturbances=(Disturbance(1.0, np.diag([0.0, 36.0])),))
    kf = SaltedKalmanFilter(no_floor, noise, linear("position", [[1.0, 0.0]], [[1e-6]]))
    result = kf.run(record, start)
    assert not result.rejected
    errors = [abs(x[1] - truth(t)[1]) for t, x in zip(times, result.means, strict=True)]
    assert max(errors[-5:]) < 0.2
