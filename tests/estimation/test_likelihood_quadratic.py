"""Tops of rough log-likelihoods: of exact quadratics, and with steps as high as their curvature."""

import numpy as np
import pytest

from hybridctl.base.errors import InputError, SimulationError
from hybridctl.estimation.likelihood_quadratic import fit_quadratics, maximize

H = np.array([[3.0, 1.0], [1.0, 2.0]])


def points(n, rng):
    return rng.uniform([0.0, 10.0], [1.0, 30.0], size=(n, 2))


def hills(p, tops, curvature=H):
    """Quadratics (m, n) with tops (n, 2), in units of the ranges of the points."""
    d = (p[:, None] - tops) / [1.0, 20.0]
    return -0.5 * np.einsum("mni,ij,mnj->mn", d, curvature, d)


def test_quadratics_are_found_exactly():
    """The cut is cubic in what is cut off over the depth: 1e-9 of it here."""
    rng = np.random.default_rng(0)
    p, tops = points(12, rng), np.tile([0.4, 18.0], (5, 1))
    surface = fit_quadratics(p, hills(p, tops), depth=1e5)
    top = surface.top()
    np.testing.assert_allclose(top.values, [0.4, 18.0], rtol=1e-6)
    covariance = np.linalg.inv(5.0 * H) * np.outer([1.0, 20.0], [1.0, 20.0])
    errors = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(top.standard_errors, errors, rtol=1e-6)
    np.testing.assert_allclose(top.correlation, covariance / np.outer(errors, errors), rtol=1e-6)
    assert top.roughness < 1e-6
    assert top.inside
    np.testing.assert_allclose(top.record_errors, 0.0, atol=1e-6)
    assert surface(top.values) >= surface([0.41, 18.0])


def test_the_error_over_records_is_that_of_tops_that_differ():
    """Records of one curvature whose tops scatter by s: their mean is known to s / sqrt(n)."""
    rng, n = np.random.default_rng(1), 400
    p, spread = points(30, rng), np.array([0.05, 2.0])
    tops = [0.5, 20.0] + spread * rng.normal(size=(n, 2))
    top = fit_quadratics(p, hills(p, tops), depth=1e4).top()
    np.testing.assert_allclose(top.values, tops.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(top.record_errors, tops.std(axis=0) / np.sqrt(n), rtol=1e-2)


def test_steps_of_single_records_leave_the_top_where_it_is():
    """Each record steps by 2 along a line of its own; the search by gradients sees none of them.

    Over 200 records whose hills are 0.5 high such steps are noise, and the error over records
    says so: in nine of ten seeds the truth is within two of them.
    """
    inside = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        p, n = points(40, rng), 200
        normal = rng.normal(size=(n, 2))
        at = rng.uniform(0.0, 1.0, size=(n, 2))
        sides = np.einsum("mni,ni->mn", (p[:, None] - [0.0, 10.0]) / [1.0, 20.0] - at, normal) > 0.0
        top = fit_quadratics(p, hills(p, np.tile([0.5, 20.0], (n, 1))) + 2.0 * sides).top()
        inside.append(np.abs(top.values - [0.5, 20.0]) < 2.0 * top.record_errors)
    assert np.mean(inside) > 0.85


def test_the_error_of_the_points_is_what_other_points_would_change():
    """Noise on the values of a quadratic: the spread of tops over draws of noise, within a half.

    The jackknife of 40 points has a relative error of about 1 / sqrt(2 * 34), and half as much
    again because points at the edge have more leverage.
    """
    rng = np.random.default_rng(5)
    p = points(40, rng)
    given = 100.0 * hills(p, np.array([[0.5, 20.0]]))
    surfaces = [
        fit_quadratics(p, given + rng.normal(size=given.shape), depth=1e5) for _ in range(200)
    ]
    spread = np.std([surface.top().values for surface in surfaces], axis=0)
    found = np.mean([surface.point_errors() for surface in surfaces[:20]], axis=0)
    np.testing.assert_allclose(found, spread, rtol=0.5)


def test_a_part_of_the_records_has_its_own_top():
    rng = np.random.default_rng(2)
    p = points(12, rng)
    tops = np.array([[0.3, 15.0], [0.3, 15.0], [0.6, 25.0]])
    surface = fit_quadratics(p, hills(p, tops), depth=1e4)
    np.testing.assert_allclose(surface.top([2]).values, tops[2], rtol=1e-4)
    np.testing.assert_allclose(surface.top([0, 1]).values, tops[0], rtol=1e-4)


def test_a_record_that_fails_at_a_point_has_its_quadratic_through_the_others():
    """That it failed says nothing of the parameters: the top is where it was without failures.

    It once counted as `depth` below the best, which bent the quadratic of the record.
    """
    rng = np.random.default_rng(3)
    p = points(20, rng)
    given = hills(p, np.tile([0.5, 20.0], (5, 1)))
    given[[4, 9], [3, 3]] = -np.inf
    surface = fit_quadratics(p, given, depth=1e6)
    whole = fit_quadratics(p, hills(p, np.tile([0.5, 20.0], (5, 1))), depth=1e6)
    np.testing.assert_allclose(surface.top().values, whole.top().values, rtol=1e-6)
    errors = surface.top().standard_errors, whole.top().standard_errors
    np.testing.assert_allclose(*errors, rtol=1e-4)  # depth 1e6 bends values of 1e2 by 1e-8
    assert np.isfinite(surface.rests).all()


def test_a_record_that_fails_at_most_points_is_named():
    rng = np.random.default_rng(3)
    p = points(12, rng)
    given = hills(p, np.tile([0.5, 20.0], (3, 1)))
    given[:6, 1] = -np.inf
    with pytest.raises(SimulationError, match="record 1 could be filtered at 6 of 12 points"):
        fit_quadratics(p, given)
    given[:, 1] = -np.inf
    with pytest.raises(SimulationError, match="at 0 of 12 points"):
        fit_quadratics(p, given)
    with pytest.raises(InputError, match="without NaN or \\+inf"):
        fit_quadratics(p, np.full((12, 3), np.inf))


def test_failures_near_the_top_leave_it_without_errors():
    """A value that stands for a failure is no log-likelihood, so that its curvature is no error."""

    def breaking(p):
        return np.append(quadratic(p), 0.0 if p[0] < 0.41 else -np.inf)

    found = maximize(breaking, np.array([0.3, 17.0]), BOX, np.array([0.05, 0.5]))
    assert np.isnan(found.top.standard_errors).all()
    assert np.isfinite(found.log_likelihoods).all()


def test_bootstrap_intervals_are_those_of_the_spread_of_records():
    """Tops of plain normal records: the interval of their mean, from the closed form.

    The tops of records have a deviation of 0.05; the mean of n has s / sqrt(n). The interval is
    good to a tenth of its half width: the error of a quantile of 2,000 draws is a thirtieth of a
    deviation, that of s by 400 records 4 %.
    """
    rng = np.random.default_rng(8)
    p, n = points(12, rng), 400
    tops = np.column_stack([0.5 + 0.05 * rng.normal(size=n), np.full(n, 20.0)])
    low, high = fit_quadratics(p, hills(p, tops), depth=1e6).bootstrap(level=0.9, draws=2000)[0]
    half = 1.645 * 0.05 / np.sqrt(n)
    assert high - low == pytest.approx(2.0 * half, rel=0.1)
    assert low < tops[:, 0].mean() < high


def twelve_records(rng, informative):
    """Quadratics of twelve normal records, and the tops of those that contain the first parameter.

    Its tops have a deviation of one standard error of a record about 0.5.
    """
    p = points(12, rng)
    z = (p[:, None] - [0.5, 20.0]) / [0.1, 1.0]
    tops = rng.normal(size=(12, 2))
    values = -0.5 * (z - tops) ** 2
    values[:, informative:, 0] = 0.0
    surface = fit_quadratics(p, values.sum(axis=2), depth=1e9)
    return surface, 0.5 + 0.1 * tops[:informative, 0]


def test_bootstrap_intervals_of_few_records_are_as_wide_as_those_of_student():
    """Of a mean of twelve normal values, t s / sqrt(12) on each side with t = 1.796.

    Quantiles of 2,000 draws are off by 1 % of the width, the mean of 20 such by 0.3 %; the sum of
    twelve values that were drawn has lighter tails than a normal one, by up to 2 %. Without
    widening the ratio is 0.88.
    """
    rng, ratios = np.random.default_rng(10), []
    for _ in range(20):
        surface, tops = twelve_records(rng, 12)
        low, high = surface.bootstrap(draws=2000)[0]
        ratios.append((high - low) / (2.0 * 1.796 * tops.std(ddof=1) / np.sqrt(12)))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("informative", [12, 6])
def test_bootstrap_intervals_of_few_records_cover_as_often_as_they_say(informative):
    """In 90 % of 1,500 sets of twelve records, to 3 %, four deviations.

    Plain percentiles cover in P(|t| < 1.645 sqrt(11 / 12)) = 86 %, where t has 11 degrees of
    freedom. If half of the records contain nothing about a parameter they do in 81 %: it is then
    the mean of six.
    """
    rng, covered = np.random.default_rng(11), 0
    for _ in range(1500):
        low, high = twelve_records(rng, informative)[0].bootstrap(draws=400)[0]
        covered += low <= 0.5 <= high
    assert covered / 1500 == pytest.approx(0.9, abs=0.03)


def test_one_record_alone_has_no_interval():
    """All others contain nothing about the first parameter; the second has its interval."""
    surface, _ = twelve_records(np.random.default_rng(12), 1)
    first, second = surface.bootstrap(bounds=BOX)
    assert np.isnan(first).all()
    assert np.isfinite(second).all()


def test_a_level_of_a_bootstrap_is_below_one():
    rng = np.random.default_rng(13)
    p = points(12, rng)
    surface = fit_quadratics(p, hills(p, np.tile([0.5, 20.0], (5, 1))))
    with pytest.raises(InputError, match="level must be below 1"):
        surface.bootstrap(level=1.0)


def test_what_has_no_top_is_refused():
    rng = np.random.default_rng(4)
    p = points(12, rng)
    with pytest.raises(SimulationError, match="has no top"):
        fit_quadratics(p, hills(p, np.full((3, 2), 0.5), -H)).top()
    with pytest.raises(InputError, match="more than the 6 coefficients"):
        fit_quadratics(p[:6], np.zeros((6, 3)))
    with pytest.raises(InputError, match="12 rows"):
        fit_quadratics(p, np.zeros((11, 3)))


BOX = np.array([[-5.0, 5.0], [0.0, 30.0]])


def quadratic(p, top=(0.4, 18.0), curvature=H):
    d = p - np.array(top)
    return np.array([-0.5 * d @ curvature @ d])


def test_the_search_finds_the_top_of_a_quadratic_and_its_errors():
    """Exactly, from steps that are 6 and 7 times too long or short, over 2 and 14 errors."""
    found = maximize(quadratic, np.array([3.0, 10.0]), BOX, np.array([4.0, 0.1]))
    covariance = np.linalg.inv(H)
    np.testing.assert_allclose(found.top.values, [0.4, 18.0], atol=1e-6)
    np.testing.assert_allclose(found.top.standard_errors**2, np.diag(covariance), rtol=1e-6)
    assert found.converged
    assert not found.at_bound.any()


def test_a_parameter_at_its_bound_is_held_there():
    """The other one's top and error are then those of the section at the bound."""
    box = np.array([[1.0, 5.0], [0.0, 30.0]])
    found = maximize(quadratic, np.array([3.0, 10.0]), box, np.array([0.1, 0.1]))
    section = 18.0 - H[0, 1] / H[1, 1] * (1.0 - 0.4)
    np.testing.assert_allclose(found.top.values, [1.0, section], atol=1e-6)
    assert found.at_bound.tolist() == [True, False]
    assert np.isnan(found.top.standard_errors[0])
    assert found.top.standard_errors[1] == pytest.approx(H[1, 1] ** -0.5, rel=1e-6)


def test_what_nothing_depends_on_stays_where_it_is():
    flat = maximize(
        lambda p: quadratic(p[:2]),
        np.array([3.0, 10.0, 7.0]),
        np.vstack([BOX, [[0.0, 9.0]]]),
        np.full(3, 0.1),
    )
    np.testing.assert_allclose(flat.top.values, [0.4, 18.0, 7.0], atol=1e-6)
    assert np.isnan(flat.top.standard_errors).tolist() == [False, False, True]
    assert flat.converged


@pytest.mark.parametrize("start", [1e-3, 30.0])
def test_a_level_is_found_from_far_away(start):
    """Where L is an exponential of the logarithm, or a line."""
    n, squares = 24, 2.0

    def plain(p):
        return np.array([-n * p[0] - 0.5 * squares * np.exp(-2.0 * p[0])])

    box = np.log([[1e-4 * start, 1e4 * start]])
    found = maximize(plain, np.log([start]), box, np.array([0.5]))
    assert found.top.values[0] == pytest.approx(0.5 * np.log(squares / n), abs=1.0 / (3 * n) + 0.01)
    assert found.evaluations < 40


def test_records_that_fail_away_from_the_start_count_as_bad_ones():
    """And at the start the search cannot begin."""

    def breaking(p):
        return np.append(quadratic(p), 0.0 if p[0] < 3.2 else -np.inf)

    found = maximize(breaking, np.array([3.0, 10.0]), BOX, np.array([0.5, 0.1]))
    np.testing.assert_allclose(found.top.values, [0.4, 18.0], atol=1e-5)
    with pytest.raises(SimulationError, match="filtered at the start"):
        maximize(breaking, np.array([4.0, 10.0]), BOX, np.array([0.5, 0.1]))


def test_a_search_without_evaluations_is_refused():
    with pytest.raises(InputError, match="max_evaluations must be a whole number of at least 1"):
        maximize(quadratic, np.array([3.0, 10.0]), BOX, np.array([0.5, 0.1]), max_evaluations=0)


def test_a_search_that_is_spent_has_the_best_of_what_it_saw():
    seen = []

    def told(p):
        seen.append(float(quadratic(p).sum()))
        return quadratic(p)

    found = maximize(told, np.array([3.0, 10.0]), BOX, np.array([0.5, 0.1]), max_evaluations=5)
    assert not found.converged
    assert (found.evaluations, len(seen)) == (5, 5)
    assert found.log_likelihoods.sum() == max(seen)


def test_a_high_step_far_from_the_hill_does_not_end_the_search():
    """Such as where a gate begins to reject: 15 high, three errors of the start away from it."""

    def stepped(p):
        return np.array([-0.5 * ((p[0] - 0.7) / 0.0016) ** 2 + 15.0 * (p[0] < 0.657)])

    box = np.array([[0.3, 0.95]])
    found = maximize(stepped, np.array([0.652]), box, np.array([0.08]))
    assert found.top.values[0] == pytest.approx(0.7, abs=1e-6)
    assert found.top.standard_errors[0] == pytest.approx(0.0016, rel=1e-6)
