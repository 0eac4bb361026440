"""Corners of soles whose collision shape is a mesh: the convex hull of its lowest face."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import coal
import numpy as np
from scipy.spatial import ConvexHull, QhullError

from hybridctl.base.checks import Array
from hybridctl.mechanics.multibody.links import CollisionMesh
from hybridctl.mechanics.multibody.urdf import shapes_of

_FLATNESS = 2e-3
"""Height in m above the lowest vertex up to which vertices are of the sole.

Soles are rounded at the rim: that of talos has 44 cm^2 within 0.1 mm, 247 within 2 mm and 259
within 5 mm."""
_LEAST_FACE = 5e-4
"""Area in m^2 below which a face is no sole but the tip of a round foot: 0.8 cm^2 for solo12 and
bolt, 79 for icub, 182 for romeo."""
_CORNERS = 4
"""Most corners of a sole. More of them share forces that four determine, and cost time."""
_UP_AXIS = re.compile(rb"<up_axis>\s*(\w+)\s*</up_axis>")
_HEADER = 65536
"""Bytes at the start of a COLLADA file among which its up axis is sought."""


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
        The face. None if it is smaller than 5 cm^2, as that of a round foot.
    """
    heights = vertices @ up
    low = heights <= heights.min() + _FLATNESS
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
            _area(flat[[kept[i - 1], kept[i], kept[(i + 1) % len(kept)]]]) for i in range(len(kept))
        ]
        del kept[int(np.argmin(cuts))]
    return SoleFace(face[kept], len(hull.vertices), _area(flat[kept]) / area)


def _area(polygon: Array) -> float:
    """Return the area of a convex polygon of points (n, 2) in order."""
    x, y = polygon.T
    return float(0.5 * abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)))


def read_urdf_meshes(
    model: object, urdf: str | os.PathLike[str], links: list[str]
) -> list[CollisionMesh]:
    """Return the collision meshes of some links of a URDF, in the order of the file.

    A mesh that is not found is left out, with a warning in the log.

    Args:
        model: The `pinocchio.Model`.
        urdf: Path of the URDF, or its text.
        links: Names of the links.

    Raises:
        FileFormatError: The file is no URDF, or a mesh is damaged.
    """
    read = shapes_of(model, urdf, purpose="collision", kinds=("mesh",), links=links)
    loader = coal.MeshLoader(coal.NODE_TYPE.BV_OBBRSS)  # the class whose vertices Python can read
    found = list[CollisionMesh]()
    for shape in read.geometryObjects:
        mesh = loader.load(shape.meshPath, np.array(shape.meshScale)).vertices()
        vertices = np.array(mesh) @ _read_axes(Path(shape.meshPath)).T
        rotation, position = np.array(shape.placement.rotation), shape.placement.translation
        link = read_link_name(model, shape)
        placed = vertices @ rotation.T + np.array(position)
        found.append(CollisionMesh(link, int(shape.parentJoint), placed))
    return found


def read_link_name(model: object, shape: object) -> str:
    """Return the name of the link of a `pinocchio.GeometryObject`."""
    return str(model.frames[shape.parentFrame].name)  # type: ignore[attr-defined]


def _read_axes(path: Path) -> Array:
    """Return the rotation (3, 3) from the axes of a mesh file to those of a URDF, with z up.

    COLLADA files may have y up, which Pinocchio's loader does not turn. The feet of icub would
    point sideways (test_a_sole_that_is_a_mesh_has_corners).
    """
    if path.suffix.lower() == ".dae":
        with path.open("rb") as file:
            axis = _UP_AXIS.search(file.read(_HEADER))
        if axis is not None and axis.group(1) == b"Y_UP":
            return np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    return np.eye(3)
