"""The vector space: points and perturbations are the same thing."""

import numpy as np
import pytest

from hybridctl.base.errors import InputError
from hybridctl.base.spaces import VectorSpace


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
