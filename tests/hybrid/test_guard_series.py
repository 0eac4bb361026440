"""One guard as a series: values, slopes, roots and dips of polynomials, which a series is exactly.

Polynomials have degree 7 at most, and coefficients of size 1. So sums of eight terms, with
derivatives of up to 7^2 of them, are right to some 1e-13.
"""

import math

import numpy as np
import pytest
from numpy.polynomial import Chebyshev, Polynomial

from hybridctl.hybrid.guard_series import GuardSample, GuardSeries
from hybridctl.hybrid.series import FRACTIONS

ROUNDING = 1e-12
SPANS = [(0.0, 1.0), (-3.0, 5.0), (10.0, 10.25)]


def sample(function, start=0.0, end=1.0):
    """Return the series of a function on an interval."""
    return GuardSeries(
        start, end, np.array([function(start + s * (end - start)) for s in FRACTIONS])
    )


def draw(seed, start, end):
    """Return a random polynomial of degree 7, of size 1 on an interval."""
    return Chebyshev(np.random.default_rng(seed).normal(size=8), domain=(start, end))


@pytest.mark.parametrize(("start", "end"), SPANS)
@pytest.mark.parametrize("seed", range(3))
def test_value_and_slope_are_those_of_the_polynomial(seed, start, end):
    wanted = draw(seed, start, end)
    series = sample(wanted, start, end)
    np.testing.assert_allclose(series.coefficients, wanted.coef, atol=ROUNDING)
    assert series.truncation_error == pytest.approx(np.abs(wanted.coef[5:]).sum(), rel=ROUNDING)
    for t in np.linspace(start, end, 13):
        value, slope = series.value_and_slope(t)
        assert series(t) == value == pytest.approx(wanted(t), abs=ROUNDING)
        assert slope == pytest.approx(wanted.deriv()(t), abs=ROUNDING * 50.0 / (end - start))


@pytest.mark.parametrize(("start", "end"), SPANS)
@pytest.mark.parametrize("k", range(1, 8))
def test_the_steepest_slope_of_a_chebyshev_polynomial_is_at_its_ends(k, start, end):
    """|T_k'| <= k^2, at both ends; s of [-1, 1] changes by 2 / (end - start) a second."""
    series = sample(Chebyshev.basis(k, domain=(start, end)), start, end)
    assert series.steepest_slope == pytest.approx(2.0 / (end - start) * k**2, rel=ROUNDING)
    assert abs(series.value_and_slope(end)[1]) == pytest.approx(series.steepest_slope)


@pytest.mark.parametrize(("start", "end"), SPANS)
def test_a_line_falls_where_it_crosses_zero(start, end):
    for fraction in (0.01, 0.3, 0.77, 0.999):
        root = start + fraction * (end - start)
        assert sample(lambda t, root=root: 2.0 * (root - t), start, end).estimate_fall() == (
            pytest.approx(root, abs=ROUNDING)
        )
    assert sample(lambda t: -1.0, start, end).estimate_fall() == start
    assert sample(lambda t: 1.0, start, end).estimate_fall() == math.inf
    assert sample(lambda t: 0.0, start, end).estimate_fall() == math.inf


@pytest.mark.parametrize(("start", "end"), [*SPANS, (0.0, 1e-4), (1e3, 1e3 + 0.01)])
@pytest.mark.parametrize("seed", range(6))
def test_a_root_is_found_with_its_slope(seed, start, end):
    """Of the cubic -s (s^2 + w^2) of s = (t - root) / length, from the ends of the interval."""
    rng, length = np.random.default_rng(seed), end - start
    root, w = start + rng.uniform(0.1, 0.9) * length, rng.uniform(0.3, 2.0)
    given = Polynomial([0.0, -(w**2), 0.0, -1.0])
    series = sample(lambda t: given((t - root) / length), start, end)
    low, high = (GuardSample(t, given((t - root) / length)) for t in (start, end))
    found, slope = series.find_root(low, high)
    # Rounding of sums of up to 10, over a slope of 0.1, and of time; the slope is a step older.
    assert abs(found - root) <= 1e-13 * length / 0.1 + 4.0 * math.ulp(end)
    assert slope == pytest.approx(-(w**2) / length, rel=1e-6)


def test_a_root_is_found_from_a_bracket_that_begins_rising():
    """Newton's step from the secant leaves the bracket: 10 (1 - 30 (t - 0.5)^2) has two roots."""
    series = sample(lambda t: 10.0 - 300.0 * (t - 0.5) ** 2)
    root = 0.5 + math.sqrt(1.0 / 30.0)
    low, high = GuardSample(0.33, series(0.33)), GuardSample(0.9, series(0.9))
    assert series.find_root(low, high)[0] == pytest.approx(root, abs=1e-13)
    # No secant: the first value is not positive, by rounding of a guard that has just left zero.
    late = GuardSample(0.5 - math.sqrt(1.0 / 30.0), -1e-17)
    assert series.find_root(late, high)[0] == pytest.approx(root, abs=1e-13)


def test_where_a_dip_is_excluded():
    """By monotony or concavity, which coefficients prove up to their equality."""
    line, bowl = lambda t: 1.0 - t, lambda t: 1.0 + (t - 0.3) ** 2
    assert sample(line).has_no_dip()
    assert sample(lambda t: -line(t)).has_no_dip()
    assert sample(lambda t: 1.0 - (t - 0.3) ** 2).has_no_dip()
    assert not sample(bowl).has_no_dip()
    # The slope 2 s + a, s in [-1, 1], keeps its sign from a = 2 on.
    for a, proven in ((1.9, False), (2.1, True), (-2.1, True), (-1.9, False)):
        parabola = Chebyshev(np.r_[0.0, a, 0.5, np.zeros(5)], domain=(0.0, 1.0))
        assert sample(parabola).has_no_dip() is proven, a
    # The curvature 24 s - 4 b of a T_3 - b T_2, a = 1, is negative from b = 6 on.
    for b, proven in ((5.9, False), (6.1, True)):
        cubic = Chebyshev([0.0, 0.0, -b, 1.0], domain=(0.0, 1.0))
        assert sample(cubic).has_no_dip() is proven, b


@pytest.mark.parametrize(("start", "end"), SPANS)
def test_the_grid_has_samples_at_nodes_and_the_series_between_them(start, end):
    wanted = draw(5, start, end)
    series = sample(wanted, start, end)
    times, values, dips, fineness = series.sample_grid()
    nodes = start + FRACTIONS * (end - start)
    assert (len(times), len(values), len(dips), fineness) == (57, 57, 56, 8)
    assert times[0] == start
    assert times[-1] == end
    assert values[::fineness] == series.samples
    np.testing.assert_allclose(times[::fineness], nodes, atol=ROUNDING)
    np.testing.assert_allclose(values, wanted(np.array(times)), atol=ROUNDING)
    # From one node to the next intervals are equal.
    gaps = np.diff(times).reshape(7, 8)
    np.testing.assert_allclose(gaps, gaps[:, :1] * np.ones(8), rtol=1e-9)
    # Where there is a dip below zero between two points, it is looked for.
    lows = [t for t in wanted.deriv().roots().real if start < t < end]
    for t in lows:
        k = int(np.searchsorted(times, t)) - 1
        if wanted.deriv(2)(t) > 0.0 and wanted(t) < 0.0 < min(values[k : k + 2]):
            assert dips[k]


@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize(
    ("height", "error", "found"),
    [(0.0016, 0.0, True), (0.0024, 0.0, True), (0.003, 0.0, False), (0.003, 0.001, True)],
)
def test_a_dip_is_looked_for_where_a_tangent_falls_to_the_error(side, height, error, found):
    """Of a parabola height + (s - 0.02)^2 between points 0 and 0.0556 of the fine grid.

    The tangent at a distance d from the minimum is d^2 - 2 d 0.0556 above it at the other point:
    0.0018 below for the nearer point, and 0.0027 for the other one.
    """
    bowl = Chebyshev.fit([-1.0, 0.0, 1.0], [(s - 0.02 * side) ** 2 for s in (-1.0, 0.0, 1.0)], 2)
    tail = Chebyshev([0.0] * 7 + [error])
    series = sample(lambda t: height + bowl(2.0 * t - 1.0) + tail(2.0 * t - 1.0))
    assert series.truncation_error == pytest.approx(error, abs=ROUNDING)
    _, _, dips, _ = series.sample_grid()
    assert np.flatnonzero(dips).tolist() == ([28 if side > 0.0 else 27] if found else [])


def test_a_guard_without_dips_has_a_grid_of_nodes():
    series = sample(lambda t: 1.0 - t)
    times, values, dips, fineness = series.sample_grid()
    assert (len(times), values, dips, fineness) == (8, series.samples, [False] * 7, 1)
