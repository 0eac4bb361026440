r"""Equations of motion and constraints together, factorised once for all right-hand sides.

.. math::
    \begin{bmatrix} M & -F \\ C & 0 \end{bmatrix}
    \begin{bmatrix} a \\ \lambda \end{bmatrix} = \begin{bmatrix} b \\ c \end{bmatrix}
    \quad\text{by}\quad G \lambda = c - C M^{-1} b, \quad G = C M^{-1} F.

A constraint may be soft, :math:`C a + D \lambda = c` with D diagonal: then G = C M^-1 F + D. The
constant force N that presses a contact is such a row, with C = 0 and c = D N.

The same system serves accelerations and forces, velocities and impulses, and the derivatives of
both by state, input and parameters.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg.lapack import dgecon, dgesv, dgetrf, dgetrs, dlange, dpocon, dpotrf, dpotrs

from hybridctl.base.checks import Array
from hybridctl.mechanics.linear.least_norm import RANK, LeastNorm


class KKT:
    """The factorised equations for M (nv, nv), symmetric and positive, C (k, nv), F (nv, k).

    F = C^T by default, without sliding friction; otherwise G is not symmetric. Where contacts are
    `redundant` it is singular, by its condition number as LAPACK estimates it, unless that is known
    before. Forces are then those with G lambda = c and the least sum of lambda_i^2 / weights_i,
    where `weights` (k,) are positive, by default one; see `sharing`. compliance (k,): the diagonal
    of D, None for zero.
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
        self._root, _ = dpotrf(mass.T, lower=1)  # as LAPACK stores it
        self._compliance = compliance
        self.constraint = constraint
        self._prepared(force, weights, redundant)

    def _prepared(self, force: Array | None, weights: Array | None, redundant: bool) -> KKT:
        """Compute and factorise what the equations need, and return them."""
        self._symmetric = force is None
        self.push: Array = self.by_mass(self.constraint.T if force is None else force)
        self.response: Array = self.push.T.dot(self.constraint.T).T
        if self._compliance is not None:
            np.einsum("ii->i", self.response)[:] += self._compliance
        self.redundant = redundant or self._singular()
        self._weights = weights
        return self

    def _singular(self) -> bool:
        """Whether G, which is factorised, is singular: by Cholesky's method where it can be."""
        size = dlange("1", self.response)
        if self._symmetric:
            self._factors, failed = dpotrf(self.response, lower=1)
            return bool(failed or dpocon(self._factors, size, uplo="L")[0] <= RANK)
        self._factors, self._pivots, _ = dgetrf(self.response)
        return bool(dgecon(self._factors, size)[0] <= RANK)

    @cached_property
    def sharing(self) -> LeastNorm:
        """The equations G lambda = c in the metric of the weights, where contacts are redundant."""
        return LeastNorm(self.response, self._weights, definite=self._symmetric)

    def weighted(self, weights: Array) -> KKT:
        """The redundant equations with other weights."""
        shared = self.sharing.weighted(weights)
        other = object.__new__(KKT)
        other.__dict__.update(self.__dict__)
        other.sharing, other._weights = shared, weights
        return other

    def plain(self) -> KKT:
        """The equations in which forces push along the constraints, F = C^T."""
        other = object.__new__(KKT)
        other._root, other.constraint = self._root, self.constraint
        other._compliance = self._compliance
        return other._prepared(None, None, self.redundant)

    @property
    def rank(self) -> int:
        """How many forces act independently of each other."""
        return self.sharing.rank if self.redundant else len(self.response)

    @property
    def determinant(self) -> float:
        """The determinant of G; where it is singular, the product of its other singular values."""
        if self.redundant:
            return self.sharing.determinant
        if self._symmetric:
            return float(self._factors.diagonal().prod()) ** 2
        exchanged = int(np.count_nonzero(self._pivots != np.arange(len(self._pivots))))
        return float(self._factors.diagonal().prod()) * (-1.0) ** exchanged

    def solve(self, upper: Array, lower: Array) -> tuple[Array, Array]:
        """Accelerations and forces for right-hand sides (nv,) and (k,), or with m columns."""
        free = self.by_mass(upper)
        force = self.forces(lower - self.constraint.dot(free))
        return free + self.push.dot(force), force

    def forces(self, wanted: Array) -> Array:
        """The forces with G lambda = c - C M^-1 b for that right-hand side (k,) or (k, m)."""
        if self.redundant:
            return self.sharing.solve(wanted)
        if self._symmetric:
            return np.asarray(dpotrs(self._factors, wanted, lower=1)[0])
        return divided(self.response, self._factors, self._pivots, wanted)

    def by_mass(self, b: Array) -> Array:
        """The product M^-1 b."""
        x, _ = dpotrs(self._root, b, lower=1)
        return np.asarray(x)


def divided(matrix: Array, factors: Array, pivots: Array, right: Array) -> Array:
    """The solution of a linear system, given its factors, for right-hand sides (n,) or (n, m).

    OpenBLAS hands several columns of `dgetrs`, and of `dtrtrs`, to threads however few they are,
    and waits for them; those of `dgesv` it does not.
    """
    if right.ndim == 1:
        return np.asarray(dgetrs(factors, pivots, right)[0])
    return np.asarray(dgesv(matrix, right)[2])
