r"""Equations of motion and constraints together, factorised once for all right-hand sides.

.. math::
    \begin{bmatrix} M & -F \\ C & 0 \end{bmatrix}
    \begin{bmatrix} a \\ \lambda \end{bmatrix} = \begin{bmatrix} b \\ c \end{bmatrix}
    \quad\text{by}\quad G \lambda = c - C M^{-1} b, \quad G = C M^{-1} F.

The same system serves accelerations and forces, velocities and impulses, and the derivatives of
both by state, input and parameters.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from scipy.linalg.lapack import (
    dgecon,
    dgeqp3,
    dgeqrf,
    dgesv,
    dgetrf,
    dgetrs,
    dlange,
    dorgqr,
    dpotrf,
    dpotrs,
    dtrtrs,
)

from hybridctl.checks import Array
from hybridctl.mechanics.tolerances import RANK


class KKT:
    """The factorised equations for M (nv, nv), symmetric and positive, F (nv, k), C (k, nv).

    F = C^T without sliding friction; otherwise G is not symmetric. Where contacts are `redundant`
    it is singular, by its condition number as LAPACK estimates it, unless that is known before.
    Forces are then those with
    G lambda = c and the least sum of lambda_i^2 / weights_i, where `weights` (k,) are positive, by
    default one.
    """

    def __init__(
        self,
        mass: Array,
        force: Array,
        constraint: Array,
        weights: Array | None = None,
        *,
        redundant: bool = False,
    ) -> None:
        self._root, _ = dpotrf(mass.T, lower=1)  # as LAPACK stores it
        self.constraint = constraint
        self._prepared(force, weights, redundant)

    def _prepared(self, force: Array, weights: Array | None, redundant: bool) -> KKT:
        """These equations, factorised."""
        self.push: Array = self.by_mass(force)
        self.response: Array = (self.push.T @ self.constraint.T).T
        self.redundant = redundant or self._singular()
        self._equal = weights is None
        self.weights: Array = np.ones(len(self.response)) if weights is None else weights
        return self

    def _singular(self) -> bool:
        """Whether G, which is factorised, is singular."""
        self._factors, self._pivots, _ = dgetrf(self.response)
        return bool(dgecon(self._factors, dlange("1", self.response))[0] <= RANK)

    def weighted(self, weights: Array) -> KKT:
        """The redundant equations with other weights."""
        _ = self._independent
        other = object.__new__(KKT)
        other.__dict__.update(self.__dict__)
        for known in ("_inverse", "_spread"):
            other.__dict__.pop(known, None)
        other.weights, other._equal = weights, False
        return other

    def plain(self) -> KKT:
        """The equations in which forces push along the constraints, F = C^T."""
        other = object.__new__(KKT)
        other._root, other.constraint = self._root, self.constraint
        return other._prepared(self.constraint.T, None, self.redundant)

    @property
    def rank(self) -> int:
        """How many forces act independently of each other."""
        return len(self._independent[1]) if self.redundant else len(self.response)

    @property
    def determinant(self) -> float:
        """The determinant of G; where it is singular, the product of its other singular values."""
        if self.redundant:
            return abs(float(self._independent[1].diagonal().prod()))
        exchanged = int(np.count_nonzero(self._pivots != np.arange(len(self._pivots))))
        return float(self._factors.diagonal().prod()) * (-1.0) ** exchanged

    def solve(self, upper: Array, lower: Array) -> tuple[Array, Array]:
        """Accelerations and forces for right-hand sides (nv,) and (k,), or with m columns."""
        free = self.by_mass(upper)
        force = self.forces(lower - self.constraint @ free)
        return free + self.push @ force, force

    def forces(self, wanted: Array) -> Array:
        """The forces with G lambda = c - C M^-1 b for that right-hand side (k,) or (k, m)."""
        if self.redundant and wanted.ndim == 1:
            _, root, range_of = self._independent
            return self._of_least(dtrtrs(root, range_of.T @ wanted, trans=1)[0])
        if self.redundant:
            return np.asarray(self._inverse @ wanted)
        return divided(self.response, self._factors, self._pivots, wanted)

    def by_mass(self, b: Array) -> Array:
        """The product M^-1 b."""
        x, _ = dpotrs(self._root, b, lower=1)
        return np.asarray(x)

    def alike(self, force: Array) -> Array:
        """The forces of least norm that do what these (k,) do, where contacts are redundant."""
        return self._of_least(self._independent[0].T @ force)

    def _of_least(self, acting: Array) -> Array:
        """The forces (k,) of least norm with Z' lambda = acting (r,)."""
        basis, root = self._spread
        return np.asarray(basis @ (acting if root is None else dtrtrs(root, acting, trans=1)[0]))

    @cached_property
    def _independent(self) -> tuple[Array, Array, Array]:
        """The basis Z (k, r) of forces that act, orthonormal, with R (r, r) and Q (k, r).

        G = Q R^T Z^T, where R is upper triangular and Q orthonormal.
        """
        factors, pivots, tau, _, _ = dgeqp3(self.response)
        sizes = np.abs(factors.diagonal())
        rank = len(sizes) - np.count_nonzero(sizes <= RANK * sizes[0])
        range_of, _, _ = dorgqr(factors[:, :rank], tau[:rank])
        acting = np.empty((rank, len(sizes))).T
        acting[pivots - 1] = _upper(factors[:rank]).T
        return *_orthonormal(acting), range_of

    @cached_property
    def _spread(self) -> tuple[Array, Array | None]:
        """The factors W^(1/2) Q and R of W^(1/2) Z = Q R; Z and None for equal weights."""
        basis = self._independent[0]
        if self._equal:
            return basis, None
        half = np.sqrt(self.weights)[:, None]
        q, root = _orthonormal(half * basis)
        return half * q, root

    @cached_property
    def _inverse(self) -> Array:
        """The inverse G^+ (k, k) in the metric of the weights, W Z (Z' W Z)^-1 R^-T Q^T."""
        _, root, range_of = self._independent
        basis, of_weights = self._spread
        part = dgesv(_upper(root).T, range_of.T)[2]
        if of_weights is not None:
            part = dgesv(_upper(of_weights).T, part)[2]
        return np.asarray(basis @ part)

    def indeterminate(self) -> Array:
        """The projector P (k, k) onto forces that change nothing, along those of least norm."""
        return np.asarray(np.eye(len(self.response)) - self._inverse @ self.response)

    def adjoint(self, force: Array) -> Array:
        """The vector y (k,) with G^T y = W^-1 lambda, for forces of least norm."""
        return np.asarray(self._inverse.T @ (force / self.weights))

    def least_squares(self, change: Array) -> Array:
        """The product G^+ (G^+)^T b: how a residual b (k, .) moves forces as the equations turn."""
        return np.asarray(self._inverse @ (self._inverse.T @ change))


def _orthonormal(columns: Array) -> tuple[Array, Array]:
    """The factors Q (n, r) and R (r, r), upper, with Q R = columns (n, r), which are used up."""
    factors, tau, _, _ = dgeqrf(columns, overwrite_a=1)
    q, _, _ = dorgqr(factors, tau)
    return q, factors[: columns.shape[1]]


def _upper(factors: Array) -> Array:
    """What is not below the diagonal of finite factors (n, m), in a quarter of `np.triu`'s time."""
    return np.asarray(factors * _above(*factors.shape))


@lru_cache
def _above(rows: int, columns: int) -> Array:
    return np.triu(np.ones((rows, columns)))


def divided(matrix: Array, factors: Array, pivots: Array, right: Array) -> Array:
    """The solution of a linear system, given its factors, for right-hand sides (n,) or (n, m).

    OpenBLAS hands several columns of `dgetrs`, and of `dtrtrs`, to threads however few they are,
    and waits for them; those of `dgesv` it does not.
    """
    if right.ndim == 1:
        return np.asarray(dgetrs(factors, pivots, right)[0])
    return np.asarray(dgesv(matrix, right)[2])
