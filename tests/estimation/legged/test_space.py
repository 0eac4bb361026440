"""The three errors: inverse of each other's maps, derivatives, and how they are related."""

import numpy as np
import pytest
from differences import assert_derivative, central

from hybridctl.errors import InputError, UnknownNameError
from hybridctl.estimation.estimate import right_jacobian
from hybridctl.estimation.legged.space import ERRORS, BaseSpace

CASES = [(points, flat, error) for points, flat in ((0, 0), (1, 1), (3, 2)) for error in ERRORS]


def points(space, count=2):
    rng = np.random.default_rng(0)
    found = [space.normalize(rng.normal(size=space.nx)) for _ in range(count)]
    return (*found, rng.normal(size=space.ndx))


@pytest.mark.parametrize(("points_", "flat", "error"), CASES)
def test_difference_undoes_integrate(points_, flat, error):
    space = BaseSpace(points_, flat, error)
    x, y, dx = points(space)
    np.testing.assert_allclose(space.difference(x, space.integrate(x, dx)), dx, atol=1e-13)
    again = space.integrate(x, space.difference(x, y))
    np.testing.assert_allclose(np.abs(again), np.abs(y), atol=1e-13)  # q and -q are the same
    assert (space.nx, space.ndx) == (16 + 3 * points_ + 4 * flat, 15 + 3 * points_ + 3 * flat)


@pytest.mark.parametrize(("points_", "flat", "error"), CASES)
def test_deviations_turn_with_the_point_that_carries_them(points_, flat, error):
    """The derivative of the change between tangent spaces, by differences."""
    space = BaseSpace(points_, flat, error)
    x, _, dx = points(space)
    moved = space.integrate(x, dx)
    assert_derivative(
        lambda e: space.difference(moved, space.integrate(x, dx + e)), right_jacobian(space, dx)
    )


@pytest.mark.parametrize(("points_", "flat", "error"), CASES)
def test_the_rate_of_the_coordinates_is_that_of_integrate(points_, flat, error):
    space = BaseSpace(points_, flat, error)
    x, _, dx = points(space)
    slope = central(lambda h: space.integrate(x, h[0] * dx), 1, 1e-5)[:, 0]
    np.testing.assert_allclose(space.rate(x, dx), slope, atol=1e-8)


@pytest.mark.parametrize(("points_", "flat", "error"), CASES)
def test_deviations_of_the_left_kind_are_seen_through_a_map(points_, flat, error):
    space, left = BaseSpace(points_, flat, error), BaseSpace(points_, flat, "left")
    x, *_ = points(space)
    assert_derivative(lambda e: space.difference(x, left.integrate(x, e)), space.from_left(x))
    np.testing.assert_allclose(space.to_left(x) @ space.from_left(x), np.eye(space.ndx), atol=1e-14)


def test_left_and_right_deviations_lead_to_the_same_state():
    """exp(Ad_X e) X = X exp(e), so that these two errors make the same filter."""
    left, right = BaseSpace(2, 1, "left"), BaseSpace(2, 1, "right")
    x, _, e = points(left)
    one, other = left.integrate(x, e), right.integrate(x, right.from_left(x) @ e)
    np.testing.assert_allclose(one, other, atol=1e-13)


def test_what_is_no_state_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'right'"):
        BaseSpace(1, 0, "rigt")
    space = BaseSpace(1, 1)
    x = space.normalize(np.ones(space.nx))
    x[19:] *= 2.0
    with pytest.raises(InputError, match="entries 19 to 22 must be a quaternion"):
        space.check("mean", x)
