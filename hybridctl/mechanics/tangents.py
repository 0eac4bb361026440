r"""Tangents of surfaces as functions of their normal, in the frame of the surface.

In space, t_k = e_k - n_k (n + s e_3) / (1 + s n_3) for k = 1, 2, where s is the sign of n_3: the
reflection that takes s e_3 to n, which is orthogonal and far from its singularity. In a plane of
motion with axis e, t = e x n.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.mechanics.joints import skew
from hybridctl.mechanics.tolerances import CLEARLY_TILTED, NO_MOTION


class TangentFrames:
    """The tangents of some contacts: one where `axes` has an axis for it, otherwise two.

    `owner` is the contact of each tangent; `axes` are kept.
    """

    def __init__(self, contacts: Sequence[int], axes: Sequence[Array | None]) -> None:
        self.axes = tuple(axes)
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

    def at(self, n: Array) -> Array:
        """The tangents (m, 3) at the normals n (m, 3) of their contacts."""
        tangents = (self._turns @ n[:, :, None])[:, :, 0]
        if self._in_space.any():
            _, middle, shrunk, _ = self._reflection(n)
            reflected = self._basis - shrunk[:, None] * middle
            tangents = np.where(self._in_space[:, None], reflected, tangents)
        return np.asarray(tangents)

    def slopes(self, n: Array) -> Array:
        """D_n t (m, 3, 3) at the normals n (m, 3)."""
        slopes = self._turns
        if self._in_space.any():
            third, middle, shrunk, scale = self._reflection(n)
            by_n = scale[:, None] * (self._basis - shrunk[:, None] * third)
            slope = -middle[:, :, None] * by_n[:, None, :]
            slope -= shrunk[:, None, None] * np.eye(3)
            slopes = np.where(self._in_space[:, None, None], slope, slopes)
        return np.asarray(slopes)

    def _reflection(self, n: Array) -> tuple[Array, Array, Array, Array]:
        """s e_3, n + s e_3, n_k / (1 + s n_3) and 1 / (1 + s n_3)."""
        sign = np.where(n[:, 2] < 0.0, -1.0, 1.0)
        third = sign[:, None] * np.array([0.0, 0.0, 1.0])
        scale = 1.0 / (1.0 + sign * n[:, 2])
        return third, n + third, (self._basis * n).sum(axis=1) * scale, scale


def plane_of_motion(contact: str, moves: Array, normals: Array) -> Array | None:
    """The axis of the plane in which the point of a contact moves, None if it moves in space.

    `moves` (3, k): velocities of the point relative to the surface, in its frame, at several
    configurations; `normals` (m, 3) the normals there, which lie in the plane too.

    Raises `InputError` where it all but moves in a plane: in space friction across that plane
    could not be told from nothing, and in the plane it would be left out.
    """
    left, sizes, _ = np.linalg.svd(moves)
    rank = int((sizes > NO_MOTION * sizes.max(initial=NO_MOTION)).sum())
    if rank == 3:
        _check_clear(contact, float(sizes[2] / sizes[0]))
        return None
    axis: Array = left[:, 2]
    if rank == 1:  # along a line: the plane that holds the line and the normal
        across = np.cross(left[:, 0], normals[0])
        length = float(np.linalg.norm(across))
        axis = across / length if length > NO_MOTION else axis
    tilt = float(np.abs(normals @ axis).max())
    if tilt > NO_MOTION:
        _check_clear(contact, tilt)
        return None
    return np.asarray(axis * np.sign(axis[np.abs(axis).argmax()]))


def _check_clear(contact: str, tilt: float) -> None:
    if tilt < CLEARLY_TILTED:
        raise InputError(
            f"contact {contact!r} must move in a plane or in space, but leaves a plane by "
            f"{tilt:.3g} rad only: give the axes of joints and the normal of the surface all their "
            "digits (rpy of 1.5707963267948966, not 1.5708), or tilt them clearly"
        )
