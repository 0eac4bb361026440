r"""Linear time-varying systems over a stretch of time: transition, noise, cost, and the adjoint.

.. math:: \dot x = A x - S \lambda, \qquad -\dot \lambda = A^T \lambda + W x

with S, W positive semidefinite has, over a stretch of time from 0 to 1, the solution

.. math:: x_1 = F x_0 - P \lambda_1, \qquad \lambda_0 = C x_0 + F^T \lambda_1 .

Without W, F is the transition matrix and P the covariance of white noise of density S gathered on
the way (a Gramian of reachability); without S, C is the cost :math:`\int x^T W x\, dt` (one of
observability); with :math:`S = B R^{-1} B^T` they are what a Riccati equation needs: from
:math:`\lambda_1 = V_1 x_1` follows :math:`\lambda_0 = V_0 x_0` (Redheffer's star product; Kailath,
Ljung: The scattering framework for linear estimation and control, 1975).

Steps of length h are collocated by Radau IIA of s stages,

.. math:: Z_i = z_0 + h \sum_j a_{ij} (A_j Z_j + f_j),

all stages at once, because the equation is linear: :math:`Z = X z_0 + T f`. It damps what decays
within a step at any rate, and is of order 2 s - 1 (Hairer, Wanner: Solving Ordinary Differential
Equations II, IV.5). The costate is that of the discrete problem, by Radau IA, which makes a
symplectic pair of the same order (Sun 1993), so that F, P and C have their symmetries exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

from hybridctl.base.checks import Array


@dataclass(frozen=True, eq=False)
class Propagation:
    """The maps F `state` (n+, n), P `noise` (n+, n+) and C `cost` (n, n) of a stretch of time.

    Of several, all with the same leading axes; iterating gives them one by one.
    """

    state: Array
    noise: Array
    cost: Array

    @staticmethod
    def jump(state: Array) -> Propagation:
        """A jump by a matrix (n+, n), such as that of saltation."""
        after, before = state.shape
        return Propagation(state, np.zeros((after, after)), np.zeros((before, before)))

    @staticmethod
    def of_no_time(n: int) -> Propagation:
        """The propagation of deviations (n,) over no time."""
        return Propagation.jump(np.eye(n))

    def __iter__(self) -> Iterator[Propagation]:
        return map(Propagation, self.state, self.noise, self.cost)

    def then(self, later: Propagation) -> Propagation:
        """The propagation of this stretch of time and another one after it."""
        # x_1 = (I + P_1 C_2)^-1 (F_1 x_0 - P_1 F_2' lambda_2) between the two
        whole = np.eye(len(self.noise)) + self.noise @ later.cost
        reached = np.linalg.solve(whole, np.hstack([self.state, self.noise]))
        n = self.state.shape[1]
        moved, spread = reached[:, :n], reached[:, n:]
        return Propagation(
            later.state @ moved,
            symmetric_part(later.noise + later.state @ spread @ later.state.T),
            symmetric_part(self.cost + self.state.T @ later.cost @ moved),
        )

    def onward(self, state: Array, noise: Array | None) -> Propagation:
        """The propagation with F (n+, n) and P (n+, n+), or no noise, after it; without W."""
        moved = state.dot(self.state)
        if noise is None and state.shape == self.noise.shape and not self.noise.any():
            return Propagation(moved, self.noise, self.cost)
        gathered = state.dot(self.noise).dot(state.T)
        if noise is not None:
            gathered += noise
        return Propagation(moved, symmetric_part(gathered), self.cost)

    def value(self, after: Array) -> Array:
        """The value V_0 (n, n) for V_1 (n+, n+): of the least cost, with S the input's reach."""
        whole = np.eye(len(after)) + self.noise @ after
        moved = np.linalg.solve(whole, self.state)
        return symmetric_part(self.cost + self.state.T @ after @ moved)

    def covariance(self, before: Array) -> Array:
        """The covariance F p F' + P (n+, n+) for p (n, n) at the start; without W."""
        return symmetric_part(self.state @ before @ self.state.T + self.noise)


class Radau(NamedTuple):
    """Radau IIA on [0, 1]: points c (s,), weights b (s,), matrix a (s, s).

    adjoint (s + 1, s): 1 of the start, and a_ij / b_j of stage j, see `LinearStep.to_end`.
    """

    points: Array
    weights: Array
    matrix: Array
    adjoint: Array


@lru_cache
def radau(stages: int) -> Radau:
    """The formula of that many stages, of order 2 s - 1."""
    difference = np.zeros(stages + 1)
    difference[-2:] = -1.0, 1.0
    points = np.sort(legendre.legroots(difference).real)
    points[-1] = 1.0
    lagrange = np.linalg.inv(legendre.legvander(points, stages - 1))
    integrals = 0.5 * legendre.legvander(points, stages) @ legendre.legint(lagrange, lbnd=-1.0)
    matrix = np.asarray(integrals, dtype=np.float64)
    adjoint = np.vstack([np.ones(stages), (matrix / matrix[-1]).T])
    return Radau(0.5 * (points + 1.0), matrix[-1], matrix, adjoint)


@dataclass(frozen=True, eq=False)
class LinearStep:
    """Steps of z' = A z + f, of lengths h (...); matrices: A at the stages (..., s, n, n)."""

    matrices: Array
    length: Array | float
    formula: Radau

    @cached_property
    def _system(self) -> Array:
        """The matrix I - h (a x A) (..., s n, s n) of the stages."""
        *batch, s, n, _ = self.matrices.shape
        h = np.reshape(self.length, (*np.shape(self.length), 1, 1, 1, 1))
        blocks = (
            h
            * self.formula.matrix[:, None, :, None]
            * np.swapaxes(self.matrices, -3, -2)[..., None, :, :, :]
        )
        return np.asarray(np.eye(s * n) - blocks.reshape(*batch, s * n, s * n))

    def stages(self, start: Array, forces: Array | None = None) -> Array:
        """The stages (s, n, k) from `start` (n, k), with forces (s, n, k) besides, of one step."""
        s, n, _ = self.matrices.shape
        right = np.broadcast_to(start, (s, *start.shape))
        if forces is not None:
            right = right + self.length * np.tensordot(self.formula.matrix, forces, axes=1)
        solved = np.linalg.solve(self._system, right.reshape(s * n, -1))
        return np.asarray(solved.reshape(s, n, -1))

    @cached_property
    def start(self) -> Array:
        """The stages X (..., s, n, n) of the identity; the last is the transition matrix."""
        *batch, s, n, _ = self.matrices.shape
        units = np.broadcast_to(np.tile(np.eye(n), (s, 1)), (*batch, s * n, n))
        return np.asarray(np.linalg.solve(self._system, units).reshape(*batch, s, n, n))

    @cached_property
    def response(self) -> Array:
        """The response T (..., s n, s n): the stages that forces at the stages make."""
        n = self.matrices.shape[-1]
        h = np.reshape(self.length, (*np.shape(self.length), 1, 1))
        return np.asarray(
            np.linalg.solve(self._system, h * np.kron(self.formula.matrix, np.eye(n)))
        )

    @property
    def weights(self) -> Array:
        """The weights h b (..., s) of integrals over the step."""
        return np.multiply.outer(self.length, self.formula.weights)

    def pullback(self, by_start: Array) -> Array:
        """The gradient (..., s, n, n) by A of what has the gradient by_start by X."""
        *batch, s, n, _ = self.matrices.shape
        back = np.swapaxes(self.response, -1, -2) @ by_start.reshape(*batch, s * n, n)
        return np.asarray(back.reshape(by_start.shape) @ np.swapaxes(self.start, -1, -2))

    @cached_property
    def to_end(self) -> Array:
        """The maps (..., s + 1, n, n) to the end: the transition, and those from each stage."""
        *batch, s, n, _ = self.matrices.shape
        last = np.zeros((s * n, n))
        last[-n:] = np.eye(n)
        rows = np.linalg.solve(np.swapaxes(self._system, -1, -2), last)
        rows = np.swapaxes(rows.reshape(*batch, s, n, n), -1, -2).reshape(*batch, s, n * n)
        return np.asarray((self.formula.adjoint @ rows).reshape(*batch, s + 1, n, n))

    def arriving(self, noise: Array) -> Array:
        """The densities (..., s, n, n) that S at the stages has when it is at the end."""
        stages = self.to_end[..., 1:, :, :]
        return np.asarray(stages @ noise @ np.swapaxes(stages, -1, -2))

    def propagation(self, noise: Array | None = None, cost: Array | None = None) -> Propagation:
        """The propagation of each step, with S and W (..., s, n, n) at the stages."""
        *batch, s, n, _ = self.matrices.shape
        c, none = self.weights[..., None, None], np.zeros((*batch, n, n))
        if cost is None:
            gathered = none if noise is None else (c * self.arriving(noise)).sum(axis=-3)
            return Propagation(self.to_end[..., 0, :, :], symmetric_part(gathered), none)
        x = self.start.reshape(*batch, s * n, n)
        turned: Array = np.swapaxes(x, -1, -2)
        if noise is None:
            return Propagation(x[..., -n:, :], none, symmetric_part(turned @ _rows(c * cost, x)))
        response = self.response
        gathered = response @ _rows(noise / c, np.swapaxes(response, -1, -2))
        whole = np.eye(s * n) + np.swapaxes(_rows(c * cost, gathered), -1, -2)
        both = np.concatenate((x, gathered[..., -n:]), axis=-1)
        solved = np.asarray(np.linalg.solve(whole, both), dtype=np.float64)
        last, spent = solved[..., -n:, :], turned @ _rows(c * cost, solved[..., :n])
        return Propagation(last[..., :n], symmetric_part(last[..., n:]), symmetric_part(spent))


def _rows(blocks: Array, matrix: Array) -> Array:
    """The block diagonal matrix of symmetric blocks (..., s, n, n) times a matrix (..., s n, k)."""
    *batch, s, n, _ = blocks.shape
    split = matrix.reshape(*batch, s, n, matrix.shape[-1])
    return np.asarray((blocks @ split).reshape(matrix.shape))


def symmetric_part(a: Array) -> Array:
    """The symmetric part (a + a') / 2 (..., n, n)."""
    return np.asarray(0.5 * (a + a.swapaxes(-1, -2)))
