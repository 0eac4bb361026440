"""Corners of soles whose collision shape is a mesh: the convex hull of its lowest face."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.spatial import ConvexHull, QhullError

from hybridctl.base.checks import Array

_FLATNESS = 2e-3
"""Height in m above the lowest vertex up to which vertices are of the sole.

Soles are rounded at the rim: that of talos has 44 cm^2 within 0.1 mm, 247 within 2 mm and 259
within 5 mm."""
_LEAST_FACE = 5e-4
"""Area in m^2 below which a face is no sole but the tip of a round foot: 0.8 cm^2 for solo12 and
bolt, 79 for icub, 182 for romeo."""
_CORNERS = 4
"""Most corners of a sole. More of them share forces that four determine, and cost time."""


class SoleFace(NamedTuple):
    """The lowest face of a mesh.

    Attributes:
        corners: Corners (4 or 3, 3) in the frame of the vertices, m, in order around the face, all
            at the height of the lowest vertex.
        all_corners: Number of corners of the convex hull of the face.
        share: Area within the corners, relative to that of the hull; at most 1.
    """

    corners: Array
    all_corners: int
    share: float


def find_sole_face(vertices: Array, up: Array) -> SoleFace | None:
    """Return the corners of the lowest face of a mesh.

    Of a hull with more than four corners those are left out, one after the other, whose triangle
    with their neighbours has the least area. So the corners are corners of the mesh, and the robot
    cannot lean further than the mesh allows. All are put at the height of the lowest vertex, so
    that a level robot stands on all of them.

    Args:
        vertices: Vertices (n, 3), m.
        up: Unit vector (3,) upwards, in the frame of the vertices.

    Returns:
        The face. None if it is smaller than 5 cm^2, as that of a round foot, or no face at all:
        fewer than three vertices, or all on a line.
    """
    heights = vertices @ up
    low = heights <= heights.min() + _FLATNESS  # vertices of the face
    face = vertices[low] - np.outer(heights[low] - heights.min(), up)
    # Two unit vectors that span the face: the rows of the null space of `up`.
    plane = np.linalg.svd(up[None])[2][1:]
    flat = face @ plane.T
    try:
        hull = ConvexHull(flat)
    except (QhullError, ValueError):  # fewer than three vertices, or all on a line
        return None
    area = float(hull.volume)  # of a hull in the plane, Qhull's volume is the area
    if area < _LEAST_FACE:
        return None
    kept = hull.vertices.tolist()
    while len(kept) > _CORNERS:
        cuts = [
            _compute_area(flat[[kept[i - 1], kept[i], kept[(i + 1) % len(kept)]]])
            for i in range(len(kept))
        ]
        del kept[int(np.argmin(cuts))]
    return SoleFace(face[kept], len(hull.vertices), _compute_area(flat[kept]) / area)


def _compute_area(polygon: Array) -> float:
    """Return the area of a convex polygon of points (n, 2) in order."""
    x, y = polygon.T
    return float(0.5 * abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)))
