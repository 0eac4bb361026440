r"""The equations of motion and constraints together, factorised once for all right-hand sides."""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dgetrf, dgetrs

from hybridctl.checks import Array

_SINGULAR = 1e-12


class KKT:
    r"""Factorisation of :math:`\begin{bmatrix} M & -F \\ J & 0 \end{bmatrix}`.

    M (nv, nv), F (nv, k) the force directions, J (k, nv) the constraints; F = J^T without
    friction, so LU is used, which does not need the symmetry. Where contacts are redundant the
    matrix is singular, which a pivot below 1e-12 of the largest shows; then `solve` gives the
    least-norm solution, of which the acceleration part is unique.
    """

    def __init__(self, mass: Array, force: Array, constraint: Array) -> None:
        n, k = force.shape
        matrix = np.zeros((n + k, n + k), order="F")
        matrix[:n, :n] = mass
        matrix[:n, n:] = -force
        matrix[n:, :n] = constraint
        self._size = n
        self._factors, self._pivots, _ = dgetrf(matrix)
        pivots = np.abs(self._factors.diagonal())
        self._inverse = (
            np.linalg.pinv(matrix, rcond=_SINGULAR)
            if pivots.min() < _SINGULAR * pivots.max()
            else None
        )

    def solve(self, upper: Array, lower: Array) -> tuple[Array, Array]:
        """Accelerations and forces for right-hand sides (nv,) and (k,), or with m columns."""
        rhs = np.concatenate((upper, lower))
        if self._inverse is not None:
            x = self._inverse @ rhs
        else:
            x, _ = dgetrs(self._factors, self._pivots, rhs)
        return x[: self._size], x[self._size :]
