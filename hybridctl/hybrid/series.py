"""Chebyshev series of degree 7 on one step: the record of flows, inputs and guards.

A quantity y on a step is given by its values (8, ...) at the nodes s_0 = -1 .. s_7 = 1 of the step,
s = 2 (t - start) / length - 1, or by its coefficients c (8, ...): y(s) = sum_k c_k T_k(s).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.polynomial.chebyshev import chebder, chebval

from hybridctl.base.checks import Array

Number = TypeVar("Number", float, Array)

DEGREE = 7
"""Degree of the series: that of the dense output of DOP853."""
_ORDERS = np.arange(DEGREE + 1)
NODES: Array = -np.cos(np.pi * _ORDERS / DEGREE)
"""Nodes s (8,), Chebyshev points of the second kind."""
FRACTIONS: Array = 0.5 * (NODES + 1.0)
"""Nodes (8,) as fractions of the step, 0 to 1."""
TO_SERIES: Array = np.linalg.inv(np.cos(np.outer(np.arccos(NODES), _ORDERS)))
"""Matrix (8, 8) from values at the nodes to coefficients."""
TO_SLOPES: Array = chebval(NODES, chebder(np.eye(DEGREE + 1))).T @ TO_SERIES
"""Matrix (8, 8) from values at the nodes to derivatives by s there."""
SLOPES: Array = np.vstack([chebder(np.eye(DEGREE + 1)), np.zeros(DEGREE + 1)])
"""Matrix (8, 8) from coefficients to those of the derivative by s, of which the last is zero."""
TO_DERIVATIVES: Array = np.array([TO_SERIES, SLOPES @ TO_SERIES, SLOPES @ SLOPES @ TO_SERIES])
"""Matrices (3, 8, 8) from values at the nodes to the coefficients of y, y' and y'' by s."""


def basis(s: Array | float) -> Array:
    """Return the Chebyshev polynomials T_0..T_7 at s on a new last axis.

    Args:
        s: Places in [-1, 1]; others count as the nearest end.
    """
    if isinstance(s, float):  # the usual case, and several times as fast without arrays
        return np.asarray(np.cos(_ORDERS * math.acos(min(1.0, max(-1.0, s)))))
    angle = np.arccos(np.clip(s, -1.0, 1.0))
    return np.asarray(np.cos(angle[..., None] * _ORDERS))


def value_and_slope(c: Sequence[Number], s: Number) -> tuple[Number, Number]:
    """Return a series and its derivative by s, by Clenshaw's recurrence.

    Args:
        c: Coefficients of one series, or of k series, each (k,).
        s: Place in [-1, 1], or one of each series, (k,).
    """
    # Clenshaw's b_k+1 and b_k+2, and their derivatives by s.
    b1 = b2 = slope1 = slope2 = 0.0 * s
    double = 2.0 * s
    for k in range(len(c) - 1, 0, -1):
        slope1, slope2 = 2.0 * b1 + double * slope1 - slope2, slope1
        b1, b2 = c[k] + double * b1 - b2, b1
    return c[0] + s * b1 - b2, b1 + s * slope1 - slope2
