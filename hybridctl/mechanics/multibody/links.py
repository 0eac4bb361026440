"""The links of a robot and the shapes with which they collide, whatever file they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hybridctl.base.checks import Array

Kind = Literal["sphere", "box", "capsule", "plane"]


@dataclass(frozen=True, eq=False)
class CollisionShape:
    """A shape that is fixed to a link and collides.

    Attributes:
        link: Name of the link.
        joint: Index of the Pinocchio joint that moves the link, 0 for the world.
        kind: What the shape is.
        size: (radius,) of a sphere, half sides (3,) of a box, (radius, half length) of a capsule
            along its own z, in m; () for a plane, whose normal is its own z. What a file gives
            beyond that is not used.
        rotation: (3, 3), of the shape in the frame of the joint.
        position: (3,), of its centre in the frame of the joint, m.
    """

    link: str
    joint: int
    kind: Kind
    size: tuple[float, ...]
    rotation: Array
    position: Array


@dataclass(frozen=True, eq=False)
class CollisionMesh:
    """A mesh that is fixed to a link and collides.

    Attributes:
        link: Name of the link.
        joint: Index of the Pinocchio joint that moves the link, 0 for the world.
        vertices: (n, 3), in the frame of the joint, m.
    """

    link: str
    joint: int
    vertices: Array


@dataclass(frozen=True, eq=False)
class CollisionModel:
    """The links of a robot and what of them collides.

    Attributes:
        parents: The link that carries each link, in the order of the file; None for the first.
        shapes: Shapes in the order of the file.
        meshes: Meshes in the order of the file. Those of a URDF are not here: each is a file of its
            own, which is read where it is needed.
    """

    parents: Mapping[str, str | None]
    shapes: tuple[CollisionShape, ...]
    meshes: tuple[CollisionMesh, ...] = ()
