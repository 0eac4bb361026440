r"""Equations of motion with constraints, and least-norm solutions of dependent linear equations.

`KKT` solves

.. math::
    \begin{bmatrix} M & -F \\ C & 0 \end{bmatrix}
    \begin{bmatrix} a \\ \lambda \end{bmatrix} = \begin{bmatrix} b \\ c \end{bmatrix}
    \quad\text{by}\quad G \lambda = c - C M^{-1} b, \quad G = C M^{-1} F,

which is factorised once for all right-hand sides. G is the Delassus matrix. The same system serves
accelerations and forces, velocities and impulses, and the derivatives of both by state, input and
parameters. A constraint may be soft, :math:`C a + D \lambda = c` with D diagonal: then
G = C M^-1 F + D. The constant force N that presses a contact is such a row, with C = 0 and c = D N.

Redundant contacts make G singular. `LeastNormEquations` then gives, of all solutions, the one of
least weighted norm,

.. math:: A x = c, \qquad \min_x \tfrac12 \sum_i x_i^2 / W_i, \qquad
    A = Q R^T Z^T, \quad x_0 = A^+ c, \quad x = x_0 + N z.

Q and Z have orthonormal columns, and R is upper triangular, of the rank of A. A depends on x by
Z^T x alone. The columns of N span the null space of A, with :math:`N^T W^{-1} N = 1`. Where the
equations contradict each other A x is the closest possible to c. Where A is symmetric and positive
semidefinite, its pivoted Cholesky factor Z R takes the place of Q, :math:`A = Z R R^T Z^T`, in half
the time.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from scipy.linalg.lapack import (
    dgecon,
    dgelsy,
    dgeqp3,
    dgeqrf,
    dgesv,
    dgetrf,
    dgetrs,
    dlange,
    dorgqr,
    dpocon,
    dposv,
    dpotrf,
    dpotrs,
    dpstrf,
    dtrtrs,
)

from hybridctl.base.checks import Array

RANK = 1e-10
"""Singular values of G, relative to the largest, at and below which contacts are redundant.

Rounding leaves of zero less than 1e-14 times the condition of M. Distinct contacts of robots have
been above 1e-6. Pivots are no substitute: where a row almost, but not quite, depends on the others,
the last pivot is larger than the last singular value."""
SINGULAR = 1e-11
"""Pivots and singular values of Newton's equations, relative to the largest, that count as zero.

A choice, below `RANK`: of these forces only the residual of the law is judged."""


class KKT:
    """The factorised equations of motion with k constraints; instances do not change.

    Where contacts are redundant G is singular. Forces are then those with G lambda = c and the
    least sum of lambda_i^2 / weights_i.

    Args:
        mass: Mass matrix M (nv, nv), symmetric and positive definite.
        constraint: Constraint rows C (k, nv).
        force: Force directions F (nv, k). None for C^T, which makes G symmetric; sliding friction
            makes F differ.
        weights: Positive weights (k,) of the forces of redundant contacts; None for one.
        redundant: True if the contacts are known to be redundant. Otherwise LAPACK's estimate of
            the condition number decides.
        compliance: Diagonal of D (k,), None for zero.

    Attributes:
        constraint: C (k, nv).
        push: M^-1 F (nv, k): change of velocity (or acceleration) per unit of each force.
        delassus: G (k, k).
    """

    def __init__(
        self,
        mass: Array,
        constraint: Array,
        force: Array | None = None,
        weights: Array | None = None,
        *,
        redundant: bool = False,
        compliance: Array | None = None,
    ) -> None:
        self._root, _ = dpotrf(mass.T, lower=1)  # transposed: LAPACK stores matrices by columns
        self._compliance = compliance
        self.constraint = constraint
        self._set_forces(force, weights, redundant)

    def _set_forces(self, force: Array | None, weights: Array | None, redundant: bool) -> None:
        """Set all attributes that depend on F.

        Args:
            force: F (nv, k), None for C^T.
            weights: Weights (k,) of redundant forces, None for one.
            redundant: Whether the contacts are known to be redundant.
        """
        self._symmetric = force is None
        self.push: Array = self.solve_mass(self.constraint.T if force is None else force)
        self.delassus: Array = self.push.T.dot(self.constraint.T).T
        if self._compliance is not None:
            np.einsum("ii->i", self.delassus)[:] += self._compliance
        self._known_redundant, self._weights = redundant, weights

    @cached_property
    def redundant(self) -> bool:
        """Whether G counts as singular. The law of an impact needs G alone, and never asks."""
        return self._known_redundant or self._is_singular()

    def _is_singular(self) -> bool:
        """Return whether G is singular, and factorise it, by Cholesky if it is symmetric."""
        size = dlange("1", self.delassus)
        if self._symmetric:
            self._factors, failed = dpotrf(self.delassus, lower=1)
            return bool(failed or dpocon(self._factors, size, uplo="L")[0] <= RANK)
        self._factors, self._pivots, _ = dgetrf(self.delassus)
        return bool(dgecon(self._factors, size)[0] <= RANK)

    @cached_property
    def distribution(self) -> LeastNormEquations:
        """The equations G lambda = c that distribute forces over redundant contacts."""
        return LeastNormEquations(self.delassus, self._weights, definite=self._symmetric)

    def with_weights(self, weights: Array) -> KKT:
        """Return the equations of redundant contacts with other weights (k,)."""
        distribution = self.distribution.with_weights(weights)
        other = object.__new__(KKT)
        other.__dict__.update(self.__dict__)
        other.distribution, other._weights = distribution, weights
        return other

    def without_sliding_friction(self) -> KKT:
        """Return the equations with forces along the constraints, F = C^T, and equal weights."""
        other = object.__new__(KKT)
        other._root, other.constraint = self._root, self.constraint
        other._compliance = self._compliance
        other._set_forces(None, None, self.redundant)
        return other

    @property
    def rank(self) -> int:
        """Rank of G: the number of forces whose effects are independent."""
        return self.distribution.rank if self.redundant else len(self.delassus)

    @property
    def determinant(self) -> float:
        """Determinant of G; of redundant contacts, the product of nonzero singular values."""
        if self.redundant:
            return self.distribution.determinant
        if self._symmetric:
            return float(self._factors.diagonal().prod()) ** 2
        exchanged = int(np.count_nonzero(self._pivots != np.arange(len(self._pivots))))
        return float(self._factors.diagonal().prod()) * (-1.0) ** exchanged

    def solve(self, upper: Array, lower: Array) -> tuple[Array, Array]:
        """Solve M a - F lambda = b, C a + D lambda = c.

        Args:
            upper: Right-hand side b (nv,), or (nv, m) for m columns.
            lower: Right-hand side c (k,), or (k, m).

        Returns:
            Accelerations a and forces lambda, of the shapes of b and c.
        """
        free = self.solve_mass(upper)
        force = self.forces(lower - self.constraint.dot(free))
        return free + self.push.dot(force), force

    def forces(self, lower: Array) -> Array:
        """Return the forces with G lambda = c for a right-hand side (k,) or (k, m)."""
        if self.redundant:
            return self.distribution.solve(lower)
        if self._symmetric:
            return np.asarray(dpotrs(self._factors, lower, lower=1)[0])
        return solve_factorised(self.delassus, self._factors, self._pivots, lower)

    def solve_mass(self, b: Array) -> Array:
        """Return M^-1 b."""
        x, _ = dpotrs(self._root, b, lower=1)
        return np.asarray(x)


class LeastNormEquations:
    """The equations A x = c whose solution of least weighted norm is taken; see the module.

    Args:
        matrix: A (m, n); singular values up to `RANK` of the largest count as zero.
        weights: Weights W (n,), positive; None for one.
        definite: Whether A is symmetric and positive semidefinite.

    Attributes:
        matrix: A (m, n).
        weights: W (n,).
        rank: Rank of A.
    """

    def __init__(
        self, matrix: Array, weights: Array | None = None, *, definite: bool = False
    ) -> None:
        self.matrix, self._has_equal_weights = matrix, weights is None
        self.weights = _make_ones(matrix.shape[1]) if weights is None else weights
        self._range: Array | None = None
        if definite:
            row_space = _factorise_semidefinite(matrix)
        else:
            row_space, self._range = _factorise_by_rank(matrix)
        self.rank = row_space.shape[1]
        self._reflectors, tau, _, _ = dgeqrf(row_space, overwrite_a=1)
        self._root, self._tau = self._reflectors[: self.rank], tau
        self._basis, _, _ = dorgqr(self._reflectors, tau)

    def with_weights(self, weights: Array) -> LeastNormEquations:
        """Return the same equations with other weights (n,)."""
        other = object.__new__(LeastNormEquations)
        other.__dict__.update(self.__dict__)
        for cached in ("inverse", "null", "_weighted_basis"):
            other.__dict__.pop(cached, None)
        other.weights, other._has_equal_weights = weights, False
        return other

    @property
    def determinant(self) -> float:
        """The product of the nonzero singular values of A."""
        root = abs(float(self._root.diagonal().prod()))
        return root if self._range is not None else root * root

    def solve(self, right: Array) -> Array:
        """Return the solution x_0 of least norm for a right-hand side c (m,) or (m, k)."""
        if right.ndim == 1:
            if self._range is None:
                coordinates = _solve_upper(self._root, self._basis.T.dot(right))
            else:
                coordinates = self._range.T.dot(right)
            return self._find_least_norm_vector(_solve_transposed(self._root, coordinates))
        return np.asarray(self.inverse @ right)

    def project(self, x: Array) -> Array:
        """Return the vector of least norm with the same product A x as x (n,)."""
        return self._find_least_norm_vector(self._basis.T.dot(x))

    def _find_least_norm_vector(self, coordinates: Array) -> Array:
        """Return the vector x (n,) of least norm with Z^T x = coordinates."""
        basis, root = self._weighted_basis
        return np.asarray(
            basis.dot(coordinates if root is None else _solve_transposed(root, coordinates))
        )

    @cached_property
    def _weighted_basis(self) -> tuple[Array, Array | None]:
        """W^(1/2) Q and R of the factors W^(1/2) Z = Q R; Z and None for equal weights."""
        if self._has_equal_weights:
            return self._basis, None
        half = np.sqrt(self.weights)[:, None]
        q, root = _factorise_qr(half * self._basis)
        return half * q, root

    @cached_property
    def inverse(self) -> Array:
        """The pseudo-inverse A^+ (n, m) in the metric of W: W Z (Z' W Z)^-1 R^-T Q^T."""
        if not self.rank:
            return np.zeros(self.matrix.T.shape)
        basis, of_weights = self._weighted_basis
        root = _take_upper_triangle(self._root)
        if self._range is None:
            part = dposv(root @ root.T, self._basis.T)[1]
        else:
            part = dgesv(root.T, self._range.T)[2]
        if of_weights is not None:
            part = dgesv(_take_upper_triangle(of_weights).T, part)[2]
        return np.asarray(basis @ part)

    @cached_property
    def null(self) -> Array:
        """Basis N (n, n - rank) of the null space of A, with N^T W^-1 N = 1."""
        n = self.matrix.shape[1]
        reflectors = np.zeros((n, n)).T
        reflectors[:, : self.rank] = self._reflectors
        complement = dorgqr(reflectors, np.append(self._tau, np.zeros(n - self.rank)))[0]
        complement = complement[:, self.rank :]
        if self._has_equal_weights:
            return np.asarray(complement)
        half = np.sqrt(self.weights)[:, None]
        return np.asarray(half * _factorise_qr(complement / half)[0])

    def null_projector(self) -> Array:
        """Return the projector 1 - A^+ A (n, n) onto the null space of A."""
        return np.asarray(np.eye(self.matrix.shape[1]) - self.inverse @ self.matrix)

    def adjoint(self, x: Array) -> Array:
        """Return the multipliers y (m,) of the equations: A^T y = W^-1 x, for x of least norm."""
        return np.asarray(self.inverse.T @ (x / self.weights))

    def residual_sensitivity(self, change: Array) -> Array:
        """Return the change A^+ (A^+)^T D(A^T) r of x_0 by a residual r of contradictory equations.

        Args:
            change: D(A^T) r (n, .), the derivative of A^T r at fixed r.
        """
        return np.asarray(self.inverse @ (self.inverse.T @ change))


def solve_factorised(matrix: Array, factors: Array, pivots: Array, right: Array) -> Array:
    """Return the solution of a square linear system whose LU factors are known.

    OpenBLAS hands several columns of `dgetrs`, and of `dtrtrs`, to threads however few they are,
    and waits for the threads; those of `dgesv` it does not. So several columns are factorised anew.

    Args:
        matrix: The matrix (n, n).
        factors: Its LU factors by `dgetrf`.
        pivots: Its pivots by `dgetrf`.
        right: Right-hand sides (n,) or (n, m).
    """
    if right.ndim == 1:
        return np.asarray(dgetrs(factors, pivots, right)[0])
    return np.asarray(dgesv(matrix, right)[2])


def solve_least_norm(matrix: Array, right: Array, norm_factors: Array | None = None) -> Array:
    """Return the solution x of a square linear system, or of a singular one that of least norm.

    Args:
        matrix: The matrix (n, n).
        right: The right-hand side (n,).
        norm_factors: Positive factors (n,) of the norm |factors * x| that is least; None for one.

    Returns:
        x (n,); in the sense of least squares where no x is a solution. NaN if LAPACK fails.
    """
    factors, pivots, _ = dgetrf(matrix)
    diagonal = np.abs(factors.diagonal())
    if diagonal.min(initial=1.0) > SINGULAR * diagonal.max(initial=0.0):
        return solve_factorised(matrix, factors, pivots, right)
    n, size = len(matrix), np.ones(len(matrix)) if norm_factors is None else norm_factors
    free_pivots = np.zeros(n, dtype=np.int32)
    _, x, _, _, failed = dgelsy(matrix / size, right, free_pivots, SINGULAR, 2 * n + (n + 1) * 64)
    return np.full_like(right, np.nan) if failed else np.asarray((x.T / size).T)


def _factorise_by_rank(matrix: Array) -> tuple[Array, Array]:
    """Return factors Z R (n, rank) and Q (m, rank) of a matrix (m, n), by QR with pivots."""
    factors, pivots, tau, _, _ = dgeqp3(matrix)
    sizes = np.abs(factors.diagonal())
    rank = len(sizes) - int(np.count_nonzero(sizes <= RANK * sizes[:1]))
    row_space = np.empty((rank, matrix.shape[1])).T
    row_space[pivots - 1] = _take_upper_triangle(factors[:rank]).T
    return row_space, dorgqr(factors[:, :rank], tau[:rank])[0]


def _factorise_semidefinite(matrix: Array) -> Array:
    """Return the factor Z R (n, rank) of a semidefinite matrix (n, n) = (Z R) (Z R)^T."""
    factors, pivots, rank, _ = dpstrf(matrix, tol=RANK * matrix.diagonal().max())
    row_space: Array = np.empty((rank, len(matrix))).T
    row_space[pivots - 1] = _take_upper_triangle(factors[:rank]).T
    return row_space


def _factorise_qr(columns: Array) -> tuple[Array, Array]:
    """Return factors Q (n, r) and R (r, r), upper triangular, of columns that are overwritten."""
    factors, tau, _, _ = dgeqrf(columns, overwrite_a=1)
    q, _, _ = dorgqr(factors, tau)
    return q, factors[: columns.shape[1]]


def _solve_upper(root: Array, right: Array) -> Array:
    """Return R^-1 b for an upper triangular R (r, r), which may be empty."""
    return np.asarray(dtrtrs(root, right)[0]) if len(root) else right


def _solve_transposed(root: Array, right: Array) -> Array:
    """Return R^-T b for an upper triangular R (r, r), which may be empty."""
    return np.asarray(dtrtrs(root, right, trans=1)[0]) if len(root) else right


def _take_upper_triangle(factors: Array) -> Array:
    """Return the upper triangle of finite factors (n, m), in a quarter of `np.triu`'s time."""
    return np.asarray(factors * _make_triangle(*factors.shape))


@lru_cache
def _make_ones(count: int) -> Array:
    return np.ones(count)


@lru_cache
def _make_triangle(rows: int, columns: int) -> Array:
    return np.triu(np.ones((rows, columns)))
