r"""Rotations: matrices, unit quaternions (x, y, z, w), rotation vectors, and their series.

.. math:: \Gamma_m(w) = \sum_{k \ge 0} \frac{[w]_\times^k}{(k + m)!}, \qquad
          \Gamma_0 = \exp, \quad \Gamma_1 \text{ the left Jacobian},

so that :math:`\int_0^h \Gamma_0(w s)\,ds = h\,\Gamma_1(w h)` and
:math:`\int_0^h s\,\Gamma_1(w s)\,ds = h^2\,\Gamma_2(w h)`.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import pinocchio as pin

from hybridctl.base.checks import Array

_SERIES_SQUARE = (
    1.0  # rad^2, below which coefficients are summed, because their closed forms cancel
)
_TERMS = 9  # the next one is at most 1 / 21!, 2e-20
_INVERSE = {m: [1.0 / math.factorial(m + 2 * j) for j in range(_TERMS + 1)] for m in range(1, 5)}
# of twice the derivative of a coefficient by the square, with the sign changed
_SLOPES = {
    m: [2.0 * (j + 1) / math.factorial(m + 2 * j + 2) for j in range(_TERMS + 1)] for m in (2, 3)
}
# the largest square for which the terms after number k are below rounding
_REACH = [(1e-17 * math.factorial(2 * k + 3)) ** (1.0 / (k + 1)) for k in range(_TERMS)] + [
    _SERIES_SQUARE
]
_EYE = np.eye(3)
_CROSS = np.array([pin.skew(axis) for axis in _EYE]).reshape(3, 9)  # a vector times it is a skew
# For each axis c: w times it is w c^T + (w . c) I, and the last of four is the skew of c.
_SLOPE_PARTS = np.vstack(
    [
        (np.einsum("mi,kj->mkij", _EYE, _EYE) + np.einsum("mk,ij->mkij", _EYE, _EYE)).reshape(
            3, 27
        ),
        _CROSS.reshape(1, 27),
    ]
)


def skew(w: Array) -> Array:
    """Return the matrix (3, 3) of the cross product with w (3,)."""
    return np.asarray(pin.skew(w))


def skews(vectors: Array) -> Array:
    """Return the matrices (n, 3, 3) of the cross products with vectors (n, 3)."""
    return np.asarray(vectors.dot(_CROSS).reshape(-1, 3, 3))


def gammas(w: Array) -> tuple[Array, Array, Array]:
    """Return the series Gamma_0 to Gamma_2 (3, 3) of a rotation vector w (3,) in rad."""
    cross = skew(w)
    square = cross.dot(cross)
    a1, a2, a3, a4 = _coefficients(float(w.dot(w)))
    return (
        _EYE + a1 * cross + a2 * square,
        _EYE + a2 * cross + a3 * square,
        0.5 * _EYE + a3 * cross + a4 * square,
    )


def left_jacobian(w: Array) -> Array:
    """Return Gamma_1 (3, 3): exp(w + e) = exp(Gamma_1 e) exp(w), to first order in e."""
    return np.asarray(pin.Jexp3(w).T)  # that of Pinocchio is the right one, of exp(w) exp(e)


def left_jacobian_slope(w: Array, c: Array) -> Array:
    """Differentiate the product of the left Jacobian with a fixed vector by the rotation vector.

    Args:
        w: Rotation vector (3,) in rad.
        c: The vector (3,) that is multiplied.

    Returns:
        The derivative (3, 3) of Gamma_1(w) c by w.
    """
    return np.asarray(c.dot(left_jacobian_slope_map(w)).reshape(3, 3))


def left_jacobian_slope_map(w: Array) -> Array:
    r"""Return what maps vectors c to the derivatives of their products with the left Jacobian.

    With :math:`\Gamma_1 c = c + a_2\, w \times c + a_3\, w \times (w \times c)`, where the
    coefficients have the slopes :math:`s_2 w, s_3 w`, the derivative is linear in c:

    .. math:: (s_2\, w \times c + s_3\, w \times (w \times c)) w^T - a_2 [c]_\times
              - a_3 (2 c w^T - w c^T - (w \cdot c) I) .

    Args:
        w: Rotation vector (3,) in rad.

    Returns:
        The map (3, 9): vectors (n, 3) times it are the derivatives of Gamma_1(w) c by w, each of
        them (3, 3), row by row.
    """
    x, y, z = w.tolist()
    square = x * x + y * y + z * z
    if square < _SERIES_SQUARE:
        terms = _count_terms(square)
        a2, a3 = _sum_series(_INVERSE[2], square, terms), _sum_series(_INVERSE[3], square, terms)
        slope2 = -_sum_series(_SLOPES[2], square, terms)
        slope3 = -_sum_series(_SLOPES[3], square, terms)
    else:
        a1, a2, a3, _ = _coefficients(square)
        slope2 = (a1 - 2.0 * a2) / square
        slope3 = (a2 - 3.0 * a3) / square
    # What stands before w^T, for each axis c: w x (w x c) = w (w . c) - (w . w) c.
    own = -slope3 * square - 2.0 * a3
    sx, sy, sz = slope3 * x, slope3 * y, slope3 * z
    tx, ty, tz = slope2 * x, slope2 * y, slope2 * z
    before = np.array(
        [
            [own + sx * x, sx * y + tz, sx * z - ty],
            [sx * y - tz, own + sy * y, sy * z + tx],
            [sx * z + ty, sy * z - tx, own + sz * z],
        ]
    )
    rest = np.array([a3 * x, a3 * y, a3 * z, -a2]).dot(_SLOPE_PARTS)
    return np.asarray((before.reshape(9, 1) * w).reshape(3, 9) + rest.reshape(3, 9))


def _coefficients(square: float) -> tuple[float, float, float, float]:
    """Return the sums over j of (-square)^j / (m + 2 j)!, for m = 1 to 4."""
    if square < _SERIES_SQUARE:
        terms = _count_terms(square)
        return (
            _sum_series(_INVERSE[1], square, terms),
            _sum_series(_INVERSE[2], square, terms),
            _sum_series(_INVERSE[3], square, terms),
            _sum_series(_INVERSE[4], square, terms),
        )
    angle = math.sqrt(square)
    a1, a2 = math.sin(angle) / angle, (1.0 - math.cos(angle)) / square
    return a1, a2, (1.0 - a1) / square, (0.5 - a2) / square


def _count_terms(square: float) -> int:
    """Return the number of the last term of a series that is not below rounding.

    That of `_INVERSE[1]`, whose terms fall the slowest; those of slopes fall faster too.
    """
    return bisect_left(_REACH, square)


def _sum_series(inverse: list[float], square: float, terms: int) -> float:
    """Return the sum of a series by Horner's scheme, from term number `terms` down."""
    total = inverse[terms]
    for k in range(terms - 1, -1, -1):
        total = inverse[k] - square * total
    return total


def matrix(q: Array) -> Array:
    """Return the rotation (3, 3) of a unit quaternion (4,)."""
    return np.asarray(pin.Quaternion(q).matrix())


def quaternion(rotation: Array) -> Array:
    """Return the unit quaternion (4,) of a rotation (3, 3)."""
    return np.asarray(pin.Quaternion(rotation).coeffs())


def product(p: Array, q: Array) -> Array:
    """Return the quaternion (4,) of the rotation q and then p."""
    a, b, c, d = p.tolist()
    x, y, z, w = q.tolist()
    return np.array(
        [
            d * x + a * w + b * z - c * y,
            d * y - a * z + b * w + c * x,
            d * z + a * y - b * x + c * w,
            d * w - a * x - b * y - c * z,
        ]
    )


def inverse(q: Array) -> Array:
    """Return the conjugate (4,) of a unit quaternion: the inverse rotation."""
    return np.asarray(q * np.array([-1.0, -1.0, -1.0, 1.0]))


def turn_of(w: Array) -> Array:
    """Return the rotation (3, 3) of a rotation vector w (3,)."""
    return np.asarray(pin.exp3(w))


def turned_by(w: Array) -> Array:
    """Return the unit quaternion (4,) of a rotation vector w (3,)."""
    return np.asarray(pin.exp3_quat(w))


def vector(q: Array) -> Array:
    """Return the rotation vector (3,) in rad of a unit quaternion, of at most pi."""
    return np.asarray(pin.log3(pin.Quaternion(q)))


def rotation_vector(rotation: Array) -> Array:
    """Return the rotation vector (3,) in rad of a rotation (3, 3), of at most pi."""
    return np.asarray(pin.log3(rotation))
