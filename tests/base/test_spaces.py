"""The vector space, whose points and perturbations are the same thing, and inverse tangent maps."""

import numpy as np
import pytest

from hybridctl.base.errors import InputError
from hybridctl.base.spaces import VectorSpace, invert_tangent_maps


def test_integrate_and_difference_are_plus_and_minus():
    space = VectorSpace(3)
    x, dx = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.0, -1.0])
    y = space.integrate(x, dx)
    np.testing.assert_array_equal(y, x + dx)
    np.testing.assert_array_equal(space.difference(x, y), dx)
    np.testing.assert_array_equal(space.integrate(x, space.difference(x, y)), y)


def test_points_move_with_their_velocity_and_perturbations_do_not_turn():
    space = VectorSpace(2)
    x, v = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    np.testing.assert_array_equal(space.rate(x, v), v)
    np.testing.assert_array_equal(space.transport(v), np.zeros((2, 2)))
    np.testing.assert_array_equal(space.normalize(x), x)
    assert (space.nx, space.ndx) == (2, 2)
    space.check("x", x)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "two", None])
def test_a_dimension_is_a_positive_whole_number(n):
    with pytest.raises(InputError, match="n must be"):
        VectorSpace(n)


def test_spaces_of_one_dimension_are_equal():
    assert VectorSpace(2) == VectorSpace(2) != VectorSpace(3)


@pytest.mark.parametrize("skew", [0.0, 1e-6, 0.5])
def test_tangent_maps_are_inverted_where_columns_are_orthogonal_and_where_not(skew):
    """Columns of lengths 1 and 0.5 in three coordinates, also slightly or much askew."""
    one = np.array([[1.0, skew], [0.0, 0.5], [0.0, 0.0]])
    maps = np.array([one, one[[1, 2, 0]]])
    inverses = invert_tangent_maps(maps)
    np.testing.assert_allclose(inverses @ maps, [np.eye(2)] * 2, rtol=0.0, atol=1e-14)
    across = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])  # the coordinate of no column
    np.testing.assert_allclose(inverses @ across[..., None], 0.0, rtol=0.0, atol=1e-14)
