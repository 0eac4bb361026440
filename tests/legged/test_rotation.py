"""Rotations against their series and against scipy."""

import math

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from hybridctl.legged.rotation import (
    gammas,
    inverse,
    matrix,
    product,
    quaternion,
    skew,
    turned_by,
    vector,
)

ANGLES = [0.0, 1e-9, 1e-4, 0.02, 0.3, 0.99, 1.01, 2.0, 3.1]


def turns(angle, count=3):
    w = np.random.default_rng(0).normal(size=(count, 3))
    return angle * w / np.linalg.norm(w, axis=1, keepdims=True)


@pytest.mark.parametrize("angle", ANGLES)
def test_the_gammas_are_their_series(angle):
    """Sixty terms; the largest is 3.1^3 / 3!, so rounding is a few 1e-15."""
    for w in turns(angle):
        powers = [np.linalg.matrix_power(skew(w), k) for k in range(60)]
        for m, found in enumerate(gammas(w)):
            exact = sum(p / math.factorial(k + m) for k, p in enumerate(powers))
            np.testing.assert_allclose(found, exact, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("angle", ANGLES)
def test_quaternions_are_those_of_scipy(angle):
    for w in turns(angle):
        other = Rotation.from_rotvec(w)
        np.testing.assert_allclose(matrix(turned_by(w)), other.as_matrix(), atol=1e-15)
        np.testing.assert_allclose(vector(turned_by(w)), w, atol=1e-15 + 1e-15 * angle)
        np.testing.assert_allclose(vector(-turned_by(w)), w, atol=1e-15 + 1e-15 * angle)
        np.testing.assert_allclose(vector(quaternion(other.as_matrix())), w, atol=4e-15)


def test_every_branch_of_the_largest_component_is_right():
    for q in np.vstack([np.eye(4), np.random.default_rng(1).normal(size=(50, 4))]):
        unit = q / np.linalg.norm(q)
        found = quaternion(matrix(unit))
        assert abs(found @ unit) == pytest.approx(1.0, abs=1e-14)


def test_products_turn_one_after_the_other():
    p, q = (turned_by(w) for w in turns(0.7, 2))
    np.testing.assert_allclose(matrix(product(p, q)), matrix(p) @ matrix(q), atol=1e-15)
    np.testing.assert_allclose(matrix(product(p, inverse(p))), np.eye(3), atol=1e-15)
