r"""The equations of motion and constraints together, factorised once for all right-hand sides."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg.lapack import dgetrf, dgetrs

from hybridctl.checks import Array

_SINGULAR = 1e-12
_RANK = 1e-10


class KKT:
    r"""Factorisation of :math:`\begin{bmatrix} M & -F \\ C & 0 \end{bmatrix}`.

    M (nv, nv), F (nv, k) the force directions, C (k, nv) the constraints; F = C^T without
    sliding friction, so LU is used, which does not need the symmetry. Where contacts are
    `redundant` the matrix is singular, which a pivot below 1e-12 of the largest shows. Forces
    lambda are then those that satisfy G lambda = c, G = C M^-1 F, with the least sum of
    lambda_i^2 / weights_i, where `weights` (k,) are positive, by default one.
    """

    def __init__(
        self, mass: Array, force: Array, constraint: Array, weights: Array | None = None
    ) -> None:
        n, k = force.shape
        matrix = np.zeros((n + k, n + k), order="F")
        matrix[:n, :n] = mass
        matrix[:n, n:] = -force
        matrix[n:, :n] = constraint
        self._size = n
        self._matrix = matrix
        self._factors, self._pivots, _ = dgetrf(matrix)
        pivots = np.abs(self._factors.diagonal())
        self.redundant = bool(pivots.min() < _SINGULAR * pivots.max())
        self.weights: Array = np.ones(k) if weights is None else weights

    def solve(self, upper: Array, lower: Array) -> tuple[Array, Array]:
        """Accelerations and forces for right-hand sides (nv,) and (k,), or with m columns."""
        n = self._size
        if not self.redundant:
            x, _ = dgetrs(self._factors, self._pivots, np.concatenate((upper, lower)))
            return x[:n], x[n:]
        free = self.by_mass(upper)
        force = self._inverse @ (lower - self._matrix[n:, :n] @ free)
        return free + self._by_force @ force, force

    def by_mass(self, b: Array) -> Array:
        """M^-1 b."""
        return np.asarray(np.linalg.solve(self._matrix[: self._size, : self._size], b))

    @cached_property
    def _by_force(self) -> Array:
        return -self.by_mass(self._matrix[: self._size, self._size :])

    @cached_property
    def _inverse(self) -> Array:
        """G^+ (k, k) in the metric of the weights."""
        root = np.sqrt(self.weights)
        g = self._matrix[self._size :, : self._size] @ self._by_force
        return np.asarray(root[:, None] * np.linalg.pinv(g * root, rcond=_RANK))

    def indeterminate(self) -> Array:
        """P (k, k): forces that change nothing, along the weighted least-norm ones."""
        g = self._matrix[self._size :, : self._size] @ self._by_force
        return np.asarray(np.eye(len(g)) - self._inverse @ g)

    def adjoint(self, force: Array) -> Array:
        """y (k,) with G^T y = W^-1 lambda, for forces that are of least norm."""
        return np.asarray(self._inverse.T @ (force / self.weights))

    def least_squares(self, change: Array) -> Array:
        """G^+ (G^+)^T b, for b (k, .): how a residual moves the forces as the equations turn."""
        return np.asarray(self._inverse @ (self._inverse.T @ change))
