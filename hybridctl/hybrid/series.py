"""Chebyshev series of degree 7 on one step: the record of flows, inputs and guards.

A quantity y on a step is given by its values (8, ...) at the nodes s_0 = -1 .. s_7 = 1 of the step,
s = 2 (t - start) / length - 1, or by its coefficients c (8, ...): y(s) = sum_k c_k T_k(s).
`TO_DERIVATIVES` (3, 8, 8) gives those of y, y' and y'' by s.
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
_ORDERS = np.arange(DEGREE + 1)
NODES: Array = -np.cos(np.pi * _ORDERS / DEGREE)
FRACTIONS: Array = 0.5 * (NODES + 1.0)
TO_SERIES: Array = np.linalg.inv(np.cos(np.outer(np.arccos(NODES), _ORDERS)))
TO_SLOPES: Array = chebval(NODES, chebder(np.eye(DEGREE + 1))).T @ TO_SERIES
SLOPES: Array = np.vstack([chebder(np.eye(DEGREE + 1)), np.zeros(DEGREE + 1)])
TO_DERIVATIVES: Array = np.array([TO_SERIES, SLOPES @ TO_SERIES, SLOPES @ SLOPES @ TO_SERIES])


def basis(s: Array | float) -> Array:
    """Chebyshev polynomials T_0..T_7 at s in [-1, 1], on a new last axis."""
    if isinstance(s, float):
        return np.asarray(np.cos(_ORDERS * math.acos(min(1.0, max(-1.0, s)))))
    angle = np.arccos(np.clip(s, -1.0, 1.0))
    return np.asarray(np.cos(angle[..., None] * _ORDERS))


def value_and_slope(c: Sequence[Number], s: Number) -> tuple[Number, Number]:
    """The series with coefficients c and its derivative at s, by Clenshaw's recurrence.

    For one series, or for k of them with coefficients (k,), each at its own s (k,).
    """
    after = later = turn = before = 0.0 * s
    double = 2.0 * s
    for k in range(len(c) - 1, 0, -1):
        turn, before = 2.0 * after + double * turn - before, turn
        after, later = c[k] + double * after - later, after
    return c[0] + s * after - later, after + s * turn - before
