r"""Tangents of surfaces as functions of their normal, in the frame of the surface.

In space, t_k = e_k - n_k (n + s e_3) / (1 + s n_3) for k = 1, 2, where s is the sign of n_3: the
reflection that takes s e_3 to n, which is orthogonal and far from its singularity. In a plane of
motion with axis e, t = e x n.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridctl.checks import Array
from hybridctl.mechanics.joints import skew

_ZERO = 1e-9


class TangentFrames:
    """The tangents of some contacts: one where `axes` has an axis for it, otherwise two.

    `owner` is the contact of each tangent.
    """

    def __init__(self, contacts: Sequence[int], axes: Sequence[Array | None]) -> None:
        self.owner: list[int] = []
        numbers: list[int] = []
        planar: list[Array] = []
        for i in contacts:
            axis = axes[i]
            here = [0, 1] if axis is None else [-1]
            self.owner += [i] * len(here)
            numbers += here
            planar += [np.zeros(3) if axis is None else axis] * len(here)
        self._in_space = np.array(numbers) >= 0
        self._basis = np.eye(3)[np.maximum(np.array(numbers, dtype=np.intp), 0)]
        self._turns = skew(np.array(planar)) if planar else np.zeros((0, 3, 3))

    def at(self, n: Array) -> tuple[Array, Array]:
        """The tangents (m, 3) at the normals n (m, 3) of their contacts, and D_n t (m, 3, 3)."""
        tangents = (self._turns @ n[:, :, None])[:, :, 0]
        slopes = self._turns
        if self._in_space.any():
            sign = np.where(n[:, 2] < 0.0, -1.0, 1.0)
            third = sign[:, None] * np.array([0.0, 0.0, 1.0])
            middle, scale = n + third, 1.0 / (1.0 + sign * n[:, 2])
            along = np.einsum("mi,mi->m", self._basis, n)
            reflected = self._basis - (along * scale)[:, None] * middle
            by_n = scale[:, None] * self._basis - (along * scale**2)[:, None] * third
            slope = -middle[:, :, None] * by_n[:, None, :]
            slope -= (along * scale)[:, None, None] * np.eye(3)
            tangents = np.where(self._in_space[:, None], reflected, tangents)
            slopes = np.where(self._in_space[:, None, None], slope, slopes)
        return tangents, slopes


def plane_of_motion(moves: Array, normals: Array) -> Array | None:
    """The axis of the plane in which a contact point moves, None if it moves in space.

    `moves` (3, k): velocities of the point relative to the surface, in its frame, at several
    configurations; `normals` (m, 3) the normals there, which lie in the plane too.
    """
    left, sizes, _ = np.linalg.svd(moves)
    rank = int((sizes > _ZERO * sizes.max(initial=_ZERO)).sum())
    if rank == 3:
        return None
    axis: Array = left[:, 2]
    if rank == 1:  # along a line: the plane that holds the line and the normal
        across = np.cross(left[:, 0], normals[0])
        length = float(np.linalg.norm(across))
        axis = across / length if length > _ZERO else axis
    if np.abs(normals @ axis).max() > _ZERO:
        return None
    return np.asarray(axis * np.sign(axis[np.abs(axis).argmax()]))
