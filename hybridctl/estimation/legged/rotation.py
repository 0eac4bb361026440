r"""Rotations: matrices, unit quaternions (x, y, z, w), rotation vectors, and their series.

.. math:: \Gamma_m(w) = \sum_{k \ge 0} \frac{[w]_\times^k}{(k + m)!}, \qquad
          \Gamma_0 = \exp, \quad \Gamma_1 \text{ the left Jacobian},

so that :math:`\int_0^h \Gamma_0(w s)\,ds = h\,\Gamma_1(w h)` and
:math:`\int_0^h s\,\Gamma_1(w s)\,ds = h^2\,\Gamma_2(w h)`.
"""

from __future__ import annotations

import math

import numpy as np

from hybridctl.checks import Array

_SMALL = 1.0  # rad^2, below which coefficients are summed, because their closed forms cancel
_TERMS = 9  # the next one is at most 1 / 21!, 2e-20
_INVERSE = {m: [1.0 / math.factorial(m + 2 * j) for j in range(_TERMS + 1)] for m in range(1, 5)}
# the largest square for which the terms after number k are below rounding
_REACH = [(1e-17 * math.factorial(2 * k + 3)) ** (1.0 / (k + 1)) for k in range(_TERMS)] + [_SMALL]
_EYE = np.eye(3)


def skew(w: Array) -> Array:
    """The matrix (3, 3) of the cross product with w (3,)."""
    x, y, z = w.tolist()
    return np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])


def gammas(w: Array) -> tuple[Array, Array, Array]:
    """The three series (3, 3) of a rotation vector w (3,) in rad."""
    cross = skew(w)
    square = cross.dot(cross)
    a1, a2, a3, a4 = _coefficients(float(w.dot(w)))
    return (
        _EYE + a1 * cross + a2 * square,
        _EYE + a2 * cross + a3 * square,
        0.5 * _EYE + a3 * cross + a4 * square,
    )


def left_jacobian(w: Array) -> Array:
    """Gamma_1 (3, 3): exp(w + e) = exp(Gamma_1 e) exp(w), to first order in e."""
    cross = skew(w)
    _, a2, a3, _ = _coefficients(float(w.dot(w)))
    return np.asarray(_EYE + a2 * cross + a3 * cross.dot(cross))


def _coefficients(square: float) -> tuple[float, float, float, float]:
    """Sum over j of (-square)^j / (m + 2 j)!, for m = 1 to 4."""
    if square < _SMALL:
        terms = next(k for k, most in enumerate(_REACH) if square <= most)
        return (
            _summed(_INVERSE[1], square, terms),
            _summed(_INVERSE[2], square, terms),
            _summed(_INVERSE[3], square, terms),
            _summed(_INVERSE[4], square, terms),
        )
    angle = math.sqrt(square)
    a1, a2 = math.sin(angle) / angle, (1.0 - math.cos(angle)) / square
    return a1, a2, (1.0 - a1) / square, (0.5 - a2) / square


def _summed(inverse: list[float], square: float, terms: int) -> float:
    """Horner's scheme from term number `terms` down."""
    total = inverse[terms]
    for k in range(terms - 1, -1, -1):
        total = inverse[k] - square * total
    return total


def matrix(q: Array) -> Array:
    """The rotation (3, 3) of a unit quaternion (4,)."""
    x, y, z, w = q.tolist()
    return np.array(
        [
            [1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - z * w), 2.0 * (x * z + y * w)],
            [2.0 * (x * y + z * w), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - x * w)],
            [2.0 * (x * z - y * w), 2.0 * (y * z + x * w), 1.0 - 2.0 * (x * x + y * y)],
        ]
    )


def quaternion(rotation: Array) -> Array:
    """The unit quaternion (4,) of a rotation (3, 3), by its largest component (Shepperd)."""
    r = rotation.tolist()
    (a, b, c), trace = (r[0][0], r[1][1], r[2][2]), r[0][0] + r[1][1] + r[2][2]
    if trace > max(a, b, c):
        q = [r[2][1] - r[1][2], r[0][2] - r[2][0], r[1][0] - r[0][1], 1.0 + trace]
    elif a >= b and a >= c:
        q = [1.0 + a - b - c, r[0][1] + r[1][0], r[0][2] + r[2][0], r[2][1] - r[1][2]]
    elif b >= c:
        q = [r[0][1] + r[1][0], 1.0 - a + b - c, r[1][2] + r[2][1], r[0][2] - r[2][0]]
    else:
        q = [r[0][2] + r[2][0], r[1][2] + r[2][1], 1.0 - a - b + c, r[1][0] - r[0][1]]
    size = math.sqrt(q[0] ** 2 + q[1] ** 2 + q[2] ** 2 + q[3] ** 2)
    return np.array(q) / size


def product(p: Array, q: Array) -> Array:
    """The quaternion (4,) of the rotation q and then p."""
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
    """The conjugate (4,)."""
    return np.asarray(q * np.array([-1.0, -1.0, -1.0, 1.0]))


def turned_by(w: Array) -> Array:
    """The unit quaternion (4,) of a rotation vector w (3,)."""
    x, y, z = w.tolist()
    half = 0.5 * math.sqrt(x * x + y * y + z * z)
    scale = 0.5 * math.sin(half) / half if half > 0.0 else 0.5
    return np.array([scale * x, scale * y, scale * z, math.cos(half)])


def vector(q: Array) -> Array:
    """The rotation vector (3,) of a unit quaternion, of at most pi."""
    x, y, z, w = q.tolist()
    if w < 0.0:
        x, y, z, w = -x, -y, -z, -w
    sine = math.sqrt(x * x + y * y + z * z)
    scale = 2.0 * math.atan2(sine, w) / sine if sine > 0.0 else 2.0
    return np.array([scale * x, scale * y, scale * z])
