"""Deviations: integrate and difference undo each other, and their derivatives."""

import numpy as np
import pytest
from differences import assert_derivative, central

from hybridctl.base.errors import InputError
from hybridctl.estimation.estimate import right_jacobian
from hybridctl.legged.space import BaseSpace

CASES = [(0, 0), (1, 1), (3, 2)]


def points(space, count=2):
    rng = np.random.default_rng(0)
    found = [space.normalize(rng.normal(size=space.nx)) for _ in range(count)]
    return (*found, rng.normal(size=space.ndx))


@pytest.mark.parametrize(("points_", "flat"), CASES)
def test_difference_undoes_integrate(points_, flat):
    space = BaseSpace(points_, flat)
    x, y, dx = points(space)
    np.testing.assert_allclose(space.difference(x, space.integrate(x, dx)), dx, atol=1e-13)
    again = space.integrate(x, space.difference(x, y))
    np.testing.assert_allclose(np.abs(again), np.abs(y), atol=1e-13)  # q and -q are the same
    assert (space.nx, space.ndx) == (16 + 3 * points_ + 4 * flat, 15 + 3 * points_ + 3 * flat)


@pytest.mark.parametrize(("points_", "flat"), CASES)
def test_deviations_turn_with_the_point_that_carries_them(points_, flat):
    """The derivative of the change between tangent spaces, by differences."""
    space = BaseSpace(points_, flat)
    x, _, dx = points(space)
    moved = space.integrate(x, dx)
    assert_derivative(
        lambda e: space.difference(moved, space.integrate(x, dx + e)), right_jacobian(space, dx)
    )


class Series:
    """A space of which `right_jacobian` knows the transport alone."""

    def __init__(self, space):
        self.transport = space.transport


@pytest.mark.parametrize(("points_", "flat"), CASES)
@pytest.mark.parametrize("size", [1e-6, 0.1, 1.0, 2.0])
def test_its_right_jacobian_is_the_series_of_the_transport(points_, flat, size):
    """The series, to 30 terms, of an adjoint of norm 4 at most: terms of 8, to 1e-15 each."""
    space = BaseSpace(points_, flat)
    dx = size * np.random.default_rng(1).normal(size=space.ndx) / np.sqrt(3.0)
    expected = right_jacobian(Series(space), dx)
    np.testing.assert_allclose(space.right_jacobian(dx), expected, rtol=0.0, atol=1e-13)


@pytest.mark.parametrize(("points_", "flat"), CASES)
def test_the_rate_of_the_coordinates_is_that_of_integrate(points_, flat):
    space = BaseSpace(points_, flat)
    x, _, dx = points(space)
    slope = central(lambda h: space.integrate(x, h[0] * dx), 1, 1e-5)[:, 0]
    np.testing.assert_allclose(space.rate(x, dx), slope, atol=1e-8)


def test_what_is_no_state_is_refused():
    space = BaseSpace(1, 1)
    x = space.normalize(np.ones(space.nx))
    x[19:] *= 2.0
    with pytest.raises(InputError, match="entries 19 to 22 must be a quaternion"):
        space.check("mean", x)
