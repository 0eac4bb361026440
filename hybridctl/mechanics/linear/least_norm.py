r"""Linear equations that many solutions obey, or contradictory ones, by factors that show the rank.

.. math:: A x = c, \qquad \min_x \tfrac12 \sum_i x_i^2 / W_i, \qquad
    A = Q R^T Z^T, \quad x_0 = A^+ c, \quad x = x_0 + N z,

with Q and Z orthonormal and R upper triangular, of the rank of A: Z' x is what acts, and N spans
what does not, with :math:`N^T W^{-1} N = 1`. Where equations contradict each other A x is next
to c. Where A is symmetric and has no negative eigenvalue its pivoted Cholesky factor Z R takes
the place of Q, :math:`A = Z R R^T Z^T`, in half the time.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from scipy.linalg.lapack import dgeqp3, dgeqrf, dgesv, dorgqr, dposv, dpstrf, dtrtrs

from hybridctl.base.checks import Array

RANK = 1e-10
"""Singular values of C M^-1 F relative to the largest, below which contacts hold each other: what
rounding leaves of zero is below 1e-14 times the condition of M, and distinct contacts of robots
have stood above 1e-6. Pivots do not tell: where what contacts share is almost, but not quite,
without the last row, the last pivot is as much larger than the singular value."""


class LeastNorm:
    """The equations A x = c for A (m, n), singular to `RANK`, and weights W (n,), else one.

    definite: whether A is symmetric, with eigenvalues that are not negative.
    """

    def __init__(
        self, matrix: Array, weights: Array | None = None, *, definite: bool = False
    ) -> None:
        self.matrix, self._equal = matrix, weights is None
        self.weights = _equal(matrix.shape[1]) if weights is None else weights
        self._range: Array | None = None
        if definite:
            acting = _half(matrix)
        else:
            acting, self._range = _outer(matrix)
        self.rank = acting.shape[1]
        self._rows, tau, _, _ = dgeqrf(acting, overwrite_a=1)
        self._root, self._tau = self._rows[: self.rank], tau
        self._acts, _, _ = dorgqr(self._rows, tau)

    def weighted(self, weights: Array) -> LeastNorm:
        """The same equations with other weights."""
        other = object.__new__(LeastNorm)
        other.__dict__.update(self.__dict__)
        for known in ("inverse", "null", "_spread"):
            other.__dict__.pop(known, None)
        other.weights, other._equal = weights, False
        return other

    @property
    def determinant(self) -> float:
        """The product of the singular values of A that are not zero."""
        root = abs(float(self._root.diagonal().prod()))
        return root if self._range is not None else root * root

    def solve(self, right: Array) -> Array:
        """The solution x_0 of least norm for a right-hand side c (m,), or (m, k)."""
        if right.ndim == 1:
            if self._range is None:
                met = _above(self._root, self._acts.T.dot(right))
            else:
                met = self._range.T.dot(right)
            return self._of_least(_lower(self._root, met))
        return np.asarray(self.inverse @ right)

    def alike(self, x: Array) -> Array:
        """The vector of least norm that acts as x (n,) does."""
        return self._of_least(self._acts.T.dot(x))

    def _of_least(self, acting: Array) -> Array:
        """The vector (n,) of least norm with Z' x = acting."""
        basis, root = self._spread
        return np.asarray(basis.dot(acting if root is None else _lower(root, acting)))

    @cached_property
    def _spread(self) -> tuple[Array, Array | None]:
        """The factors W^(1/2) Q and R of W^(1/2) Z = Q R; Z and None for equal weights."""
        if self._equal:
            return self._acts, None
        half = np.sqrt(self.weights)[:, None]
        q, root = _orthonormal(half * self._acts)
        return half * q, root

    @cached_property
    def inverse(self) -> Array:
        """The inverse A^+ (n, m) in the metric of the weights, W Z (Z' W Z)^-1 R^-T Q^T."""
        if not self.rank:
            return np.zeros(self.matrix.T.shape)
        basis, of_weights = self._spread
        root = _upper(self._root)
        if self._range is None:
            part = dposv(root @ root.T, self._acts.T)[1]
        else:
            part = dgesv(root.T, self._range.T)[2]
        if of_weights is not None:
            part = dgesv(_upper(of_weights).T, part)[2]
        return np.asarray(basis @ part)

    @cached_property
    def null(self) -> Array:
        """The basis N (n, n - rank) of what does not act, orthonormal in the metric."""
        n = self.matrix.shape[1]
        whole = np.zeros((n, n)).T
        whole[:, : self.rank] = self._rows
        open_ones = dorgqr(whole, np.append(self._tau, np.zeros(n - self.rank)))[0][:, self.rank :]
        if self._equal:
            return np.asarray(open_ones)
        half = np.sqrt(self.weights)[:, None]
        return np.asarray(half * _orthonormal(open_ones / half)[0])

    def indeterminate(self) -> Array:
        """The projector P (n, n) onto what does not act, along solutions of least norm."""
        return np.asarray(np.eye(self.matrix.shape[1]) - self.inverse @ self.matrix)

    def adjoint(self, x: Array) -> Array:
        """The vector y (m,) with A' y = W^-1 x, for x of least norm."""
        return np.asarray(self.inverse.T @ (x / self.weights))

    def least_squares(self, change: Array) -> Array:
        """The product A^+ (A^+)' b: how a residual moves x_0 as A' b (n, .) turns."""
        return np.asarray(self.inverse @ (self.inverse.T @ change))


def _outer(matrix: Array) -> tuple[Array, Array]:
    """The factors Z R (n, r) and Q (m, r) of a matrix (m, n), by QR with pivots."""
    factors, pivots, tau, _, _ = dgeqp3(matrix)
    sizes = np.abs(factors.diagonal())
    rank = len(sizes) - int(np.count_nonzero(sizes <= RANK * sizes[:1]))
    acting = np.empty((rank, matrix.shape[1])).T
    acting[pivots - 1] = _upper(factors[:rank]).T
    return acting, dorgqr(factors[:, :rank], tau[:rank])[0]


def _half(matrix: Array) -> Array:
    """The factor Z R (n, r) of a matrix that is the product of this and its transpose."""
    factors, pivots, rank, _ = dpstrf(matrix, tol=RANK * matrix.diagonal().max())
    acting: Array = np.empty((rank, len(matrix))).T
    acting[pivots - 1] = _upper(factors[:rank]).T
    return acting


def _orthonormal(columns: Array) -> tuple[Array, Array]:
    """The factors Q (n, r) and R (r, r), upper, with Q R = columns (n, r), which are used up."""
    factors, tau, _, _ = dgeqrf(columns, overwrite_a=1)
    q, _, _ = dorgqr(factors, tau)
    return q, factors[: columns.shape[1]]


def _above(root: Array, right: Array) -> Array:
    """The product R^-1 b for an upper triangular R (r, r), which may be empty."""
    return np.asarray(dtrtrs(root, right)[0]) if len(root) else right


def _lower(root: Array, right: Array) -> Array:
    """The product R^-T b for an upper triangular R (r, r), which may be empty."""
    return np.asarray(dtrtrs(root, right, trans=1)[0]) if len(root) else right


def _upper(factors: Array) -> Array:
    """What is not below the diagonal of finite factors (n, m), in a quarter of `np.triu`'s time."""
    return np.asarray(factors * _corner(*factors.shape))


@lru_cache
def _equal(count: int) -> Array:
    return np.ones(count)


@lru_cache
def _corner(rows: int, columns: int) -> Array:
    return np.triu(np.ones((rows, columns)))
