"""Noise levels by maximum likelihood: what made the records is found again."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from estimation.levels import still_filter, walk_filter
from estimation.systems import GRAVITY, bouncing_ball, height
from scipy.stats import chi2, norm

from hybridctl.base.errors import InputError
from hybridctl.estimation.consistency import nis_band
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.likelihood import fit_noise, log_likelihoods
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter

SIGMA, KICK, RECORDS = 0.003, 0.15, 20
TIMES = np.array([0.15, 0.3, 0.4, 0.55, 0.65, 0.75])
BALL = bouncing_ball()
START = Estimate("air", 0.0, np.array([1.0, 0.0]), np.diag([1e-4, 1e-2]))


def ball_filter(levels):
    """levels: deviation of the heights in m, and of the velocity after a bounce in m/s."""
    return SaltedKalmanFilter(
        BALL, np.zeros((2, 2)), height(levels[0] ** 2), np.diag([0.0, levels[1] ** 2]),
        options=FilterOptions(rtol=1e-6, atol=1e-6),
    )  # fmt: skip


def judged(make_filter, levels, records, start):
    """The log-likelihood of records under a filter with given levels, and its results."""
    results = [make_filter(levels).run(record, start) for record in records]
    pairs = zip(results, records, strict=True)
    return sum(log_likelihoods(result, record).sum() for result, record in pairs), results


def ball_log(rng):
    """Heights of a ball whose bounces have a random part."""
    y, v = rng.multivariate_normal(START.mean, START.covariance)
    hit = (v + np.sqrt(v**2 + 2.0 * GRAVITY * y)) / GRAVITY
    up = 0.8 * (GRAVITY * hit - v) + KICK * rng.normal()
    s = TIMES - hit
    heights = np.where(
        s < 0.0,
        y + v * TIMES - 0.5 * GRAVITY * TIMES**2,
        up * s - 0.5 * GRAVITY * s**2,
    )
    return Record({"height": Series(TIMES, heights + SIGMA * rng.normal(size=len(TIMES)))})


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    records = [ball_log(rng) for _ in range(2 * RECORDS)]
    path = []
    with ThreadPoolExecutor(2) as pool:
        fit = fit_noise(
            ball_filter, records[:RECORDS], [START], [0.01, 0.03],
            executor=pool,
            progress=lambda levels, total: path.append(total),
        )  # fmt: skip
    return records, fit, path


def test_levels_are_found_within_their_statistical_error(fitted):
    _, fit, path = fitted
    assert fit.converged
    assert fit.log_likelihood == pytest.approx(max(path), abs=0.1)  # where the search has settled
    assert fit.evaluations == len(path)
    # of 6 heights 3 go into start and kick, so each record has 3 of freedom for sigma, 1 for kick
    errors = 1.0 / np.sqrt(2 * RECORDS * np.array([3, 1]))
    assert (np.abs(np.log(fit.levels / [SIGMA, KICK])) < 3.0 * errors).all()
    # heights and kicks share their freedom, and a finite step has 1 / (12 n): a few percent
    np.testing.assert_allclose(fit.standard_errors, errors, rtol=0.1)


def test_held_out_records_judge_the_fit(fitted):
    records, fit, _ = fitted
    held_out = records[RECORDS:]
    right, results = judged(ball_filter, fit.levels, held_out, START)
    assert nis_band(results).inside
    assert not any(result.rejected for result in results)
    for wrong in (fit.levels * [1.5, 1.0], fit.levels * [1.0, 0.4], fit.levels * [1.0, 4.0]):
        assert judged(ball_filter, wrong, held_out, START)[0] < right - 2.0
    _, results = judged(ball_filter, fit.levels * [1.0, 0.1], held_out, START)
    assert not nis_band(results).inside


def still_records(n=3, size=8):
    rng = np.random.default_rng(1)
    times = np.linspace(0.1, 1.0, size)
    return [Record({"z": Series(times, 2.0 + 0.3 * rng.normal(size=size))}) for _ in range(n)]


KNOWN = Estimate("flow", 0.0, np.array([2.0]), np.zeros((1, 1)))


def test_the_most_likely_level_of_plain_noise_is_its_root_mean_square():
    records = still_records()
    values = np.concatenate([r.channels["z"].values.ravel() for r in records])
    exact = np.sqrt(np.mean((values - 2.0) ** 2))
    fit = fit_noise(still_filter, records, [KNOWN], [1.0], tolerance=1e-3)
    n = len(values)
    # the third order moves the top by (step e)^2 / 3, with steps of at most sqrt(2) errors e
    assert fit.levels[0] == pytest.approx(exact, rel=1.0 / (3 * n) + 1e-3)
    best = -0.5 * n * (np.log(2.0 * np.pi * exact**2) + 1.0)
    assert fit.log_likelihood == pytest.approx(best, abs=1.0 / (9 * n) + 1e-3)
    bound = fit_noise(still_filter, records, [KNOWN], [1.0], bounds=[[0.8, 2.0]])
    assert bound.levels[0] == pytest.approx(0.8, rel=1e-6)


def test_the_result_does_not_depend_on_the_executor():
    records, initials = still_records(), [KNOWN] * 3
    alone = fit_noise(still_filter, records, initials, [1.0])
    with ThreadPoolExecutor(3) as pool:
        shared = fit_noise(still_filter, records, initials, [1.0], executor=pool)
    assert alone.levels[0] == shared.levels[0]
    assert alone.log_likelihood == shared.log_likelihood


def test_other_processes_give_the_same_numbers(processes):
    records, options = still_records(4), {"max_evaluations": 20}
    fit = fit_noise(still_filter, records, [KNOWN], [1.0], **options)
    same = fit_noise(still_filter, records, [KNOWN], [1.0], executor=processes, **options)
    np.testing.assert_array_equal(same.levels, fit.levels)
    np.testing.assert_array_equal(same.standard_errors, fit.standard_errors)
    assert same.log_likelihood == fit.log_likelihood


@pytest.mark.parametrize(
    ("n", "start"), [(24, 1.0), pytest.param(96, 0.31, marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_the_error_of_plain_noise_is_that_of_a_mean_square(n, start):
    """n squares: 1 / sqrt(2 n) of the logarithm, whatever the level is."""
    records, path = still_records(n // 8), []
    fit = fit_noise(
        still_filter, records, [KNOWN], [start], tolerance=1e-3,
        progress=lambda levels, total: path.append(levels[0]),
    )  # fmt: skip
    # with steps of at most sqrt(2) errors: 1 / 6 n of the fourth order, and as the curvature is
    # exp(-2 d) of that at the top, 1 / 3 n of the d by which the third order moves it
    assert fit.standard_errors[0] == pytest.approx(np.sqrt(0.5 / n), rel=1.0 / (2 * n) + 1e-3)
    assert fit.evaluations == len(path)


def information(levels, times, deviations, p0):
    """Observed and expected -D^2 log p by the logarithms of levels, and the spread of the first.

    Each row z of deviations is normal with S = r^2 I + q^2 min(t_i, t_j) + p0, so with S_i the
    derivatives of S and B_i = inv(S) S_i the expected one is tr(B_i B_j) / 2.
    """
    r, q = levels
    parts = [r**2 * np.eye(len(times)), q**2 * np.minimum.outer(times, times)]
    s = sum(parts) + p0
    b = [2.0 * np.linalg.solve(s, part) for part in parts]
    observed, expected, spread = np.zeros((3, 2, 2))
    for i in range(2):
        for j in range(2):
            second = 2.0 * b[i] if i == j else np.zeros_like(s)
            square = 0.5 * (b[i] @ b[j] + b[j] @ b[i]) - 0.5 * second  # in z^T square inv(S) z
            z = np.linalg.solve(s, deviations.T)
            expected[i, j] = 0.5 * len(deviations) * np.trace(b[i] @ b[j])
            constant = 0.5 * len(deviations) * np.trace(second - b[i] @ b[j])
            observed[i, j] = constant + np.einsum("nk,kl,ln->", deviations, square, z)
            spread[i, j] = np.sqrt(2.0 * len(deviations) * np.trace(square @ square))
    return observed, expected, spread


def test_errors_of_a_random_walk_are_those_of_its_information_in_closed_form():
    rng, times = np.random.default_rng(7), 0.1 * np.arange(1, 21)
    start = Estimate("flow", 0.0, np.array([2.0]), np.array([[0.04]]))
    truth = np.array([0.3, 0.8])
    walks = np.sqrt(0.1) * truth[1] * rng.normal(size=(4, 20)).cumsum(axis=1)
    deviations = walks + 0.2 * rng.normal(size=(4, 1)) + truth[0] * rng.normal(size=(4, 20))
    records = [Record({"z": Series(times, 2.0 + row)}) for row in deviations]
    fit = fit_noise(walk_filter, records, [start], [0.25, 1.0], tolerance=2e-3)
    observed, expected, spread = information(fit.levels, times, deviations, 0.04)
    exact = np.sqrt(np.diag(np.linalg.inv(observed)))
    # their fourth order is at most (step e)^2 / 6 = 0.01; the third moves the top, and with it the
    # curvature, by (step e)^2 / 3 = 0.02
    np.testing.assert_allclose(fit.standard_errors, exact, rtol=0.03)
    assert (np.abs(observed - expected) <= 3.0 * spread).all()
    assert (np.abs(np.log(fit.levels / truth)) < 3.0 * fit.standard_errors).all()


def test_a_level_that_is_not_determined_has_no_error():
    records = still_records()
    alone = fit_noise(still_filter, records, [KNOWN], [0.3])
    idle = fit_noise(still_filter, records, [KNOWN], [0.3, 1.0])
    assert np.isnan(idle.standard_errors[1])
    assert idle.standard_errors[0] == pytest.approx(alone.standard_errors[0], rel=0.03)
    bound = fit_noise(still_filter, records, [KNOWN], [1.0], bounds=[[0.8, 2.0]])
    assert np.isnan(bound.standard_errors).all()


def test_a_gate_does_not_reward_levels_that_reject_everything():
    """Values around 2 of deviation 0.3; a rejected one, one in 100, is anywhere in their range."""
    records = still_records()
    found = {
        level: judged(lambda levels: still_filter(levels, 0.99), [level], records, KNOWN)
        for level in (1e-6, 0.003, 0.3)
    }
    for level, (likelihood, _) in found.items():
        total = 0.0
        for record in records:
            values = record.channels["z"].values.ravel()
            taken = np.abs(values - 2.0) <= level * np.sqrt(chi2.ppf(0.99, 1))
            total += norm.logpdf(values[taken], 2.0, level).sum()
            total += (~taken).sum() * np.log(0.01 / np.ptp(values))
        assert likelihood == pytest.approx(total, rel=1e-6)
    right, small = (sum(len(r.rejected) for r in found[level][1]) for level in (0.3, 0.003))
    assert right <= 2 < 18 < small
    assert found[0.3][0] > found[0.003][0] > found[1e-6][0]


def test_bad_input_is_named():
    records = still_records(2)
    with pytest.raises(InputError, match="start must have positive levels"):
        fit_noise(still_filter, records, [KNOWN], [0.0])
    with pytest.raises(InputError, match="bounds must be positive and hold start"):
        fit_noise(still_filter, records, [KNOWN], [1.0], bounds=[[2.0, 3.0]])
    with pytest.raises(InputError, match="records must have one entry"):
        fit_noise(still_filter, [], [KNOWN], [1.0])
    with pytest.raises(InputError, match="initials one for each"):
        fit_noise(still_filter, records, [KNOWN] * 3, [1.0])
