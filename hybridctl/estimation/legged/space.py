r"""The state of a base and of its feet in contact, and three ways to write its deviations.

A state is (q, p, v, b_g, b_a, d_1 .. d_N, q_1 .. q_F): orientation R of the inertial frame in the
world (quaternion x, y, z, w), its position in m and velocity in m/s, both in the world, biases of
gyroscope (rad/s) and accelerometer (m/s^2), and the positions of the feet in contact with, for flat
ones, their orientations. A deviation is (theta, rho, nu, b_g, b_a, delta_1 .., phi_1 ..). With
(R, p, v, d_i) as an element X of the group SE_k(3) of double poses, and feet's rotations R_j:

- "left":  :math:`X \exp(\xi)`, :math:`R_j \exp(\varphi_j)`: in the frames of base and feet;
- "right": :math:`\exp(\xi) X`, :math:`\exp(\varphi_j) R_j`: in the world, turned about its origin;
- "plain": :math:`R \exp(\theta)`, :math:`p + \rho`, ..: positions in the world, apart.

The covariance goes along to the tangent space at each corrected mean (see
`estimate.right_jacobian`), so that "left" and "right", the same point written by Ad_X, make the
same filter to rounding, and "left" is the cheaper one. From a good start "plain" differs by a few
percent; started 10 deg wrong in tilt the other two find the tilt three times as fast, because their
rotation carries positions and velocity along (experiment `icub-base`).

Barrau and Bonnabel, "The invariant extended Kalman filter as a stable observer", 2017; Hartley,
Ghaffari, Eustice and Grizzle, "Contact-aided invariant extended Kalman filtering for robot state
estimation", 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from hybridctl.checks import Array, Indices, count, member
from hybridctl.errors import InputError
from hybridctl.estimation.legged.rotation import (
    gammas,
    inverse,
    left_jacobian,
    matrix,
    product,
    skew,
    turned_by,
    vector,
)

Error = Literal["left", "right", "plain"]
ERRORS: tuple[Error, ...] = get_args(Error)
BASE, BASE_TANGENT = 16, 15  # coordinates and dimension of base and biases
ANGLE, POSITION, VELOCITY = slice(0, 3), slice(3, 6), slice(6, 9)  # in the tangent space
GYROSCOPE, ACCELEROMETER = slice(9, 12), slice(12, 15)
# entries (row, column) of a cross product: of which coordinate, with which sign
_CROSS = [
    (0, 1, 2, -1.0),
    (0, 2, 1, 1.0),
    (1, 0, 2, 1.0),
    (1, 2, 0, -1.0),
    (2, 0, 1, -1.0),
    (2, 1, 0, 1.0),
]
_UNIT = 1e-6  # how far from one the norm of a quaternion may be


@dataclass(frozen=True)
class BaseSpace:
    """States of a base with some feet in contact (see this module and `spaces.Space`).

    points: number of feet in contact. flat: number of those whose orientation is known as well.
    error: how deviations are written.
    """

    points: int
    flat: int = 0
    error: Error = "left"

    def __post_init__(self) -> None:
        count("points", self.points, at_least=0)
        count("flat", self.flat, at_least=0)
        member("error", self.error, ERRORS)

    @property
    def nx(self) -> int:
        """16, 3 for each foot in contact and 4 for each flat one."""
        return BASE + 3 * self.points + 4 * self.flat

    @property
    def ndx(self) -> int:
        """15, 3 for each foot in contact and 3 for each flat one."""
        return BASE_TANGENT + 3 * self.points + 3 * self.flat

    @cached_property
    def vectors(self) -> tuple[list[int], list[int]]:
        """Indices of p, v, d_1 .. in a state, and in a deviation, three for each."""
        rest = 3 * self.points
        state = [*range(4, 10), *range(BASE, BASE + rest)]
        return state, [*range(3, 9), *range(BASE_TANGENT, BASE_TANGENT + rest)]

    @cached_property
    def turns(self) -> list[tuple[slice, slice]]:
        """Where the rotations of flat feet are in a state, and in a deviation."""
        x, dx = BASE + 3 * self.points, BASE_TANGENT + 3 * self.points
        return [
            (slice(x + 4 * k, x + 4 * k + 4), slice(dx + 3 * k, dx + 3 * k + 3))
            for k in range(self.flat)
        ]

    def foot(self, k: int) -> tuple[slice, slice]:
        """Where the position of foot k in contact is in a state, and in a deviation."""
        x, dx = BASE + 3 * k, BASE_TANGENT + 3 * k
        return slice(x, x + 3), slice(dx, dx + 3)

    def integrate(self, x: Array, dx: Array) -> Array:
        """The state reached from x along dx."""
        own, moved = self.vectors
        result: Array = x.copy()
        result[10:16] += dx[9:15]
        tau = dx[moved].reshape(-1, 3)
        if self.error == "right":
            turn, left, _ = gammas(dx[ANGLE])
            result[:4] = product(turned_by(dx[ANGLE]), x[:4])
            result[own] = (x[own].reshape(-1, 3) @ turn.T + tau @ left.T).ravel()
        else:
            result[:4] = product(x[:4], turned_by(dx[ANGLE]))
            if self.error == "left":
                tau = tau @ (matrix(x[:4]) @ left_jacobian(dx[ANGLE])).T
            result[own] += tau.ravel()
        for q, phi in self.turns:
            by = turned_by(dx[phi])
            result[q] = product(by, x[q]) if self.error == "right" else product(x[q], by)
        return result

    def difference(self, x0: Array, x1: Array) -> Array:
        """The deviation that leads from x0 to x1."""
        own, moved = self.vectors
        result = np.zeros(self.ndx)
        result[9:15] = x1[10:16] - x0[10:16]
        theta = self._turn(x0[:4], x1[:4])
        t0, t1 = x0[own].reshape(-1, 3), x1[own].reshape(-1, 3)
        result[ANGLE] = theta
        turn, left, _ = gammas(theta)
        if self.error == "right":
            tau = np.linalg.solve(left, (t1 - t0 @ turn.T).T).T
        elif self.error == "left":
            tau = np.linalg.solve(matrix(x0[:4]) @ left, (t1 - t0).T).T
        else:
            tau = t1 - t0
        result[moved] = tau.ravel()
        for q, phi in self.turns:
            result[phi] = self._turn(x0[q], x1[q])
        return result

    def _turn(self, q0: Array, q1: Array) -> Array:
        if self.error == "right":
            return vector(product(q1, inverse(q0)))
        return vector(product(inverse(q0), q1))

    def rate(self, x: Array, dx: Array) -> Array:
        """Velocity (nx,) of the coordinates at the velocity dx (ndx,)."""
        own, moved = self.vectors
        result = np.zeros(self.nx)
        result[10:16] = dx[9:15]
        tau = dx[moved].reshape(-1, 3)
        if self.error == "right":
            tau = tau + np.cross(dx[ANGLE], x[own].reshape(-1, 3))
        elif self.error == "left":
            tau = tau @ matrix(x[:4]).T
        result[own] = tau.ravel()
        result[:4] = self._quaternion_rate(x[:4], dx[ANGLE])
        for q, phi in self.turns:
            result[q] = self._quaternion_rate(x[q], dx[phi])
        return result

    def _quaternion_rate(self, q: Array, w: Array) -> Array:
        half = np.append(0.5 * w, 0.0)
        return product(half, q) if self.error == "right" else product(q, half)

    def transport(self, dx: Array) -> Array:
        """Minus ("right": plus) the adjoint action of dx; of rotations alone for "plain"."""
        entries, sources, signs = self._brackets
        result = np.zeros(self.ndx**2)
        result[entries] = signs * dx[sources]
        return result.reshape(self.ndx, self.ndx)

    @cached_property
    def _brackets(self) -> tuple[Indices, Indices, Array]:
        """Entries of `transport`: where in the flat matrix, of which coordinate, with which sign.

        Cross products with the angles stand on the diagonal, those with vectors below the angles.
        """
        vectors = [] if self.error == "plain" else self.vectors[1][::3]
        blocks = [(0, 0, 0), *((i, i, 0) for i in vectors), *((i, 0, i) for i in vectors)]
        blocks += [(phi.start,) * 3 for _, phi in self.turns]
        found = [
            ((row + i) * self.ndx + column + j, source + k, sign)
            for row, column, source in blocks
            for i, j, k, sign in _CROSS
        ]
        entries, sources, signs = zip(*found, strict=True)
        whole = 1.0 if self.error == "right" else -1.0
        return np.array(entries), np.array(sources), whole * np.array(signs)

    def normalize(self, x: Array) -> Array:
        """The state with unit quaternions."""
        result: Array = x.copy()
        for q in (slice(0, 4), *(q for q, _ in self.turns)):
            result[q] /= math.sqrt(x[q].dot(x[q]))
        return result

    def check(self, name: str, x: Array) -> None:
        """Raise `InputError` for a quaternion whose norm is not one."""
        for q in (slice(0, 4), *(q for q, _ in self.turns)):
            norm = float(np.linalg.norm(x[q]))
            if abs(norm - 1.0) > _UNIT:
                raise InputError(
                    f"{name}: entries {q.start} to {q.stop - 1} must be a quaternion x, y, z, w of "
                    f"norm 1, got {x[q].tolist()} of norm {norm:.6g}"
                )

    def from_left(self, x: Array) -> Array:
        """T (ndx, ndx): what is the deviation e if written "left" is T e at x."""
        result = np.eye(self.ndx)
        if self.error == "left":
            return result
        turn = matrix(x[:4])
        own, moved = self.vectors
        if self.error == "right":
            result[ANGLE, ANGLE] = turn
        for i, j in zip(own[::3], moved[::3], strict=True):
            at = slice(j, j + 3)
            result[at, at] = turn
            if self.error == "right":
                result[at, ANGLE] = skew(x[i : i + 3]) @ turn
        if self.error == "right":
            for q, phi in self.turns:
                result[phi, phi] = matrix(x[q])
        return result

    def to_left(self, x: Array) -> Array:
        """The inverse of `from_left`."""
        if self.error == "left":
            return np.eye(self.ndx)
        there = self.from_left(x)
        result: Array = there.T.copy()  # the inverse of rotations
        if self.error == "right":
            back, moved = result[ANGLE, ANGLE], self.vectors[1]
            sheared = there[moved, ANGLE].reshape(-1, 3, 3)
            result[ANGLE, moved] = 0.0
            result[moved, ANGLE] = (-back @ sheared @ back).reshape(-1, 3)
        return result
