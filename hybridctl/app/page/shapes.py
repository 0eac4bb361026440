"""Shapes that move or stand in space: triangle meshes, each of one colour."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.mechanics.contacts.surfaces import Plane, Sphere, Terrain
from hybridctl.mechanics.multibody.robot import Robot

GREY = "#9999a1"  # of shapes whose file gives no colour
_PALE = "#c8c8c8"  # of surfaces
_TINT_OPACITY = 0.45  # a tinted robot must let one see the robot behind it
_SIDES = 24  # edges of a circle
_MAX_TRIANGLES = 60_000  # of a mesh: trunk.dae of go1 has 351,394, 4 MB of a page instead of 0.7
_COARSE = 1000  # cells along a mesh that is too large: finer ones hardly merge anything
_SURFACE_SIZE = 4.0  # m, side of the square that is drawn of a plane or of smooth ground
_GRID_CELLS = 40  # along a side of a plane: lines every 0.1 m, about the length of a foot
_GROUND_CELLS = 80  # along a side of smooth ground: 5 cm, which shows bumps that a foot would feel
_STEPS = 2**16 - 1  # of a coordinate of a mesh: a part in 65,535 of its extent


@dataclass(frozen=True, eq=False)
class Mesh:
    """A closed or open surface of triangles.

    Attributes:
        vertices: Points (n, 3), m.
        triangles: Indices (m, 3) of the corners of each triangle.
    """

    vertices: Array
    triangles: Indices


@dataclass(frozen=True, eq=False)
class Shape:
    """A mesh with its colour.

    Attributes:
        mesh: The mesh. Shapes that share this object store it once.
        color: Colour as "#rrggbb".
        opacity: Zero is invisible, one hides what is behind.
        link: Index of the link that carries it, among those of its mover; unused where it stands
            still.
        placement: Homogeneous transform (4, 4) from the mesh to the link, or to the world.
    """

    mesh: Mesh
    color: str = _PALE
    opacity: float = 1.0
    link: int = 0
    placement: Array = field(default_factory=lambda: np.eye(4))


class RobotShapes:
    """The shapes of a robot, and the poses of the links that carry them.

    Shapes have the colour of the URDF, else that of the mesh file, else grey.

    Args:
        robot: The robot.
        geometry: `pinocchio.GeometryModel` of its shapes, see `shapes_of`.

    Attributes:
        shapes: All shapes. The `link` of each is an index into what `find_poses` returns.

    Raises:
        InputError: A shape is a mesh and trimesh is not installed.
        FileFormatError: A mesh cannot be read.
    """

    def __init__(self, robot: Robot, geometry: Any) -> None:
        self._robot = robot
        objects = list(geometry.geometryObjects)
        self._joints = sorted({each.parentJoint for each in objects})
        self.shapes: list[Shape] = []
        # Legs share their mesh files: each is read and stored once.
        known: dict[tuple[object, ...], list[tuple[Mesh, str]]] = {}
        for k, each in enumerate(objects):
            key = (each.meshPath, *np.ravel(each.meshScale).tolist()) if _is_file(each) else (k,)
            if key not in known:
                known[key] = _read_parts(each)
            link, placement = self._joints.index(each.parentJoint), each.placement.homogeneous
            for mesh, own in known[key]:
                color, opacity = own, 1.0
                if each.overrideMaterial:
                    color, opacity = _format_color(each.meshColor[:3]), float(each.meshColor[3])
                self.shapes.append(Shape(mesh, color, opacity, link, placement))

    def tint(self, color: str) -> RobotShapes:
        """Return the same bodies in one colour, "#rrggbb", through which one can look."""
        tinted = copy(self)
        tinted.shapes = [
            replace(shape, color=color, opacity=_TINT_OPACITY) for shape in self.shapes
        ]
        return tinted

    def find_poses(self, x: Array) -> Array:
        """Return the homogeneous transforms (k, 4, 4) from the links to the world.

        Args:
            x: State, which begins with the configuration (nq,) of the robot.
        """
        return self._robot.poses(x[: self._robot.nq], self._joints)


def encode_mesh(mesh: Mesh) -> dict[str, Any]:
    """Return a mesh for JSON, its coordinates as 16 bits of its extent.

    Args:
        mesh: The mesh.

    Returns:
        "low" and "extent" (3,) in m: a vertex is at `low + extent * n / 65535`. "vertices" has the
        n, and "triangles" their indices, as unsigned 16 bits, little-endian in base64.
    """
    low = mesh.vertices.min(axis=0)
    extent = np.ptp(mesh.vertices, axis=0)
    parts = (mesh.vertices - low) / np.where(extent > 0.0, extent, 1.0)
    return {
        "low": low.tolist(),
        "extent": extent.tolist(),
        "vertices": _encode_integers(np.rint(_STEPS * parts)),
        "triangles": _encode_integers(mesh.triangles),
    }


def encode_poses(poses: Array) -> Array:
    """Return quaternions x, y, z, w and positions in m, (..., 7), of transforms (..., 4, 4)."""
    turns = Rotation.from_matrix(poses[..., :3, :3].reshape(-1, 3, 3)).as_quat()
    quaternions = turns.reshape(*poses.shape[:-2], 4)
    return np.concatenate([quaternions, poses[..., :3, 3]], axis=-1)


def make_box(sides: ArrayLike) -> Mesh:
    """Return a box around the origin with sides (3,) in m."""
    corners = np.array(np.meshgrid([-0.5, 0.5], [-0.5, 0.5], [-0.5, 0.5], indexing="ij"))
    vertices = corners.reshape(3, 8).T * np.asarray(sides, dtype=float)
    # Corner 4 i + 2 j + k is at the low or high end of x, y and z by i, j and k.
    quads = np.array([(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4)])
    quads = np.vstack([quads, (1, 5, 7, 3)])
    return Mesh(vertices, np.vstack([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]]))


def make_ball(radius: float = 1.0, half_length: float = 0.0) -> Mesh:
    """Return a sphere around the origin, or a capsule along z.

    Args:
        radius: Radius, m.
        half_length: Half the distance between the centres of the caps, m; zero for a sphere.
    """
    angles = np.linspace(-0.5 * np.pi, 0.5 * np.pi, _SIDES // 2 + 2)
    heights = radius * np.sin(angles) + half_length * np.sign(angles)
    return _revolve(radius * np.cos(angles), heights)


def make_cylinder(radius: float, half_length: float) -> Mesh:
    """Return a cylinder along z around the origin; lengths in m."""
    heights = np.array([-half_length, -half_length, half_length, half_length])
    return _revolve(np.array([0.0, radius, radius, 0.0]), heights)


def make_surface_shapes(surfaces: Sequence[object]) -> list[Shape]:
    """Return the surfaces that are bodies: spheres, and smooth ground around the origin."""
    shapes = []
    for surface in surfaces:
        if isinstance(surface, Sphere):
            ball = make_ball(surface.radius)
            mesh = Mesh(ball.vertices + np.asarray(surface.center), ball.triangles)
            shapes.append(Shape(mesh, opacity=0.5))
        elif isinstance(surface, Terrain):
            shapes.append(Shape(_make_ground(surface)))
    return shapes


def make_plane_grid(plane: Plane) -> list[Array]:
    """Return the lines, each (2, 3) in m, of a square grid on a plane around its point."""
    turn, _ = Rotation.align_vectors([plane.unit_normal], [(0.0, 0.0, 1.0)])
    half = 0.5 * _SURFACE_SIZE
    along = [[(a, -half, 0.0), (a, half, 0.0)] for a in np.linspace(-half, half, _GRID_CELLS + 1)]
    lines = [turn.apply(line) + np.asarray(plane.point) for line in along]
    across = Rotation.from_rotvec([0.0, 0.0, 0.5 * np.pi])
    return lines + [turn.apply(across.apply(line)) + np.asarray(plane.point) for line in along]


def _make_ground(terrain: Terrain) -> Mesh:
    """Return a square of smooth ground around the origin."""
    ticks = np.linspace(-0.5 * _SURFACE_SIZE, 0.5 * _SURFACE_SIZE, _GROUND_CELLS + 1)
    x, y = (each.ravel() for each in np.meshgrid(ticks, ticks))
    vertices = np.column_stack((x, y, terrain.heights(x, y)))
    return Mesh(vertices, _connect_grid(_GROUND_CELLS + 1, _GROUND_CELLS + 1))


def _revolve(radii: Array, heights: Array) -> Mesh:
    """Return the surface that a profile (radii, heights) makes around z."""
    angles = np.linspace(0.0, 2.0 * np.pi, _SIDES + 1)
    x, y = np.outer(radii, np.cos(angles)), np.outer(radii, np.sin(angles))
    z = np.repeat(heights[:, None], len(angles), axis=1)
    vertices = np.stack([x, y, z], axis=-1).reshape(-1, 3)
    return Mesh(vertices, _connect_grid(len(radii), len(angles)))


def _connect_grid(rows: int, columns: int) -> Indices:
    """Return the triangles (m, 3) between neighbouring vertices of a grid."""
    corner = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]
    halves = [np.column_stack([each.ravel() for each in half]) for half in ((a, b, c), (a, c, d))]
    return np.concatenate(halves)


def _is_file(geometry_object: Any) -> bool:
    # For other shapes Pinocchio sets the name of the kind here, such as "BOX".
    return bool(Path(geometry_object.meshPath).suffix)


def _read_parts(geometry_object: Any) -> list[tuple[Mesh, str]]:
    """Return the meshes of a Pinocchio geometry with their colours, each in the body's frame."""
    if _is_file(geometry_object):
        return _read_file(geometry_object.meshPath, np.ravel(geometry_object.meshScale))
    shape = geometry_object.geometry
    kind = type(shape).__name__
    if kind == "Box":
        mesh = make_box(2.0 * np.ravel(shape.halfSide))
    elif kind == "Sphere":
        mesh = make_ball(shape.radius)
    elif kind == "Capsule":
        mesh = make_ball(shape.radius, shape.halfLength)
    else:  # the reader of URDFs makes no other kind
        mesh = make_cylinder(shape.radius, shape.halfLength)
    return [(mesh, GREY)]


def can_read_meshes() -> bool:
    """Return whether the library that reads meshes is installed."""
    return find_spec("trimesh") is not None


def _read_file(path: str, scale: Array) -> list[tuple[Mesh, str]]:
    """Return the meshes of a file, one for each colour, with these colours.

    Args:
        path: The file, of a kind that trimesh reads.
        scale: Factors (3,) along the axes.

    Raises:
        InputError: trimesh is not installed.
        FileFormatError: The file cannot be read.
    """
    try:
        trimesh = import_module("trimesh")
    except ImportError as error:
        raise InputError('meshes need `pip install "hybridctl[view]"`') from error
    try:
        parts = trimesh.load(path, force="scene", process=False).dump()
    except Exception as error:  # its readers raise all kinds
        raise FileFormatError(f"{path} cannot be read as a mesh: {error}") from error
    found = []
    for part in parts:
        if not len(getattr(part, "faces", ())):
            continue  # lines and points, which some files hold beside their mesh
        for triangles, color in _split_by_color(part):
            mesh = _simplify(Mesh(np.asarray(part.vertices) * scale, triangles))
            found.append((mesh, color))
    return found


def _split_by_color(part: Any) -> list[tuple[Indices, str]]:
    """Return the triangles of a `trimesh.Trimesh` by their colours."""
    triangles, visual = np.asarray(part.faces), part.visual
    if not visual.defined:
        return [(triangles, GREY)]
    if hasattr(visual, "material"):
        return [(triangles, _format_color(np.asarray(visual.material.main_color)[:3] / 255.0))]
    colors, owner = np.unique(np.asarray(visual.face_colors), axis=0, return_inverse=True)
    owner = owner.ravel()
    names = [_format_color(color[:3] / 255.0) for color in colors]
    return [(triangles[owner == k], name) for k, name in enumerate(names)]


def _simplify(mesh: Mesh) -> Mesh:
    """Return a mesh that is small enough for a page, without vertices that are equal or unused."""
    mesh, cells = _merge_vertices(mesh, _STEPS), _COARSE
    while len(mesh.triangles) > _MAX_TRIANGLES or len(mesh.vertices) > _STEPS:
        mesh, cells = _merge_vertices(mesh, cells), int(0.8 * cells)
    return mesh


def _merge_vertices(mesh: Mesh, cells: int) -> Mesh:
    """Return a mesh whose vertices within a cubic cell are replaced by their mean.

    Triangles of which two corners are one are left out, and vertices without a triangle.

    Args:
        mesh: The mesh.
        cells: Number of cells along its largest side, at most 65,535.
    """
    low, largest = mesh.vertices.min(axis=0), float(np.ptp(mesh.vertices, axis=0).max()) or 1.0
    index = np.rint(cells / largest * (mesh.vertices - low)).astype(np.int64)
    # One number for each cell: rows of three take numpy ten times as long to sort.
    packed = (index[:, 0] << 32) + (index[:, 1] << 16) + index[:, 2]
    owner = np.unique(packed, return_inverse=True)[1]
    count = np.bincount(owner)
    means = np.column_stack([np.bincount(owner, axis) / count for axis in mesh.vertices.T])
    a, b, c = owner[mesh.triangles].T
    kept = np.column_stack([a, b, c])[(a != b) & (b != c) & (c != a)]
    used, corners = np.unique(kept, return_inverse=True)
    return Mesh(means[used], corners.reshape(-1, 3))


def _format_color(color: ArrayLike) -> str:
    """Return red, green and blue, each 0 to 1, as "#rrggbb"."""
    tones = np.rint(255.0 * np.clip(np.asarray(color, dtype=float), 0.0, 1.0)).astype(int)
    return "#" + "".join(f"{tone:02x}" for tone in tones.tolist())


def _encode_integers(values: Array | Indices) -> str:
    """Return whole numbers from 0 to 65535 as unsigned 16 bits in base64."""
    return b64encode(np.ascontiguousarray(values, dtype="<u2").tobytes()).decode("ascii")
