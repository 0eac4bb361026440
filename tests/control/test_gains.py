"""Gains between knots: lines or cubics, with their rates, held outside."""

import numpy as np
import pytest
from differences import assert_derivative
from scipy.interpolate import CubicHermiteSpline

from hybridctl.control.gains import GainCurve

RNG = np.random.default_rng(38)
KNOTS = np.array([0.0, 0.3, 0.4, 1.1])
VALUES, SLOPES = RNG.normal(size=(2, 4, 2, 3))
INSIDE = [0.07, 0.35, 0.8]
ROUNDING = 1e-14  # of values of size one, in some ten operations


def test_lines_are_those_of_every_entry():
    curve = GainCurve(KNOTS, VALUES)
    times = np.linspace(-0.2, 1.3, 31)
    expected = np.array(
        [[np.interp(times, KNOTS, VALUES[:, i, j]) for j in range(3)] for i in range(2)]
    )
    np.testing.assert_allclose(curve(times), np.moveaxis(expected, 2, 0), atol=ROUNDING)


def test_cubics_have_the_values_and_slopes_at_the_knots():
    curve, other = GainCurve(KNOTS, VALUES, SLOPES), CubicHermiteSpline(KNOTS, VALUES, SLOPES)
    times = np.linspace(0.0, 1.1, 31)
    np.testing.assert_allclose(curve(times), other(times), atol=10 * ROUNDING)
    np.testing.assert_array_equal(curve(1.5), curve(1.1))
    np.testing.assert_array_equal(curve(-0.5), curve(0.0))


@pytest.mark.parametrize("slopes", [None, SLOPES], ids=["lines", "cubics"])
def test_one_time_and_many_are_the_same(slopes):
    curve = GainCurve(KNOTS, VALUES, slopes)
    np.testing.assert_allclose(curve(np.array(INSIDE)), [curve(t) for t in INSIDE], atol=ROUNDING)


@pytest.mark.parametrize("slopes", [None, SLOPES], ids=["lines", "cubics"])
@pytest.mark.parametrize("t", INSIDE)
def test_rates_are_derivatives_by_time(slopes, t):
    curve = GainCurve(KNOTS, VALUES, slopes)
    assert_derivative(lambda s: curve(t + s[0]).ravel(), curve.rate(t).reshape(-1, 1))


def test_gains_are_held_outside_of_their_knots():
    curve = GainCurve(KNOTS, VALUES, SLOPES)
    for t in (-0.1, 1.2):
        np.testing.assert_array_equal(curve.rate(t), 0.0)
    constant = GainCurve.constant(VALUES[0])
    np.testing.assert_array_equal(constant([0.2, 7.0]), [VALUES[0]] * 2)
    np.testing.assert_array_equal(constant(0.2), VALUES[0])
    np.testing.assert_array_equal(constant.rate(0.2), 0.0)
