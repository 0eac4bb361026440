"""What a robot looks like, and with what it collides: the shapes of its links in a URDF."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array
from hybridctl.errors import FileFormatError
from hybridctl.files import file_or_text

Kind = Literal["box", "cylinder", "sphere", "mesh"]
KINDS: tuple[Kind, ...] = ("box", "cylinder", "sphere", "mesh")
GREY = (0.6, 0.6, 0.63)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Shape:
    """A shape fixed to a link.

    size (m): of a box along x, y, z; radius and length (along z) of a cylinder; radius of a sphere;
    of a mesh the factors of its coordinates. pose (4, 4): from the shape to the link. color: red,
    green and blue, 0 to 1; None where a mesh has its own. file: of a mesh.
    """

    link: str
    kind: Kind
    size: tuple[float, ...]
    pose: Array
    color: tuple[float, ...] | None
    file: Path | None = None


def shapes_of(
    urdf: str | os.PathLike[str],
    packages: Sequence[str | os.PathLike[str]] = (),
    *,
    purpose: Literal["visual", "collision"] = "visual",
    kinds: Collection[Kind] = KINDS,
) -> tuple[Shape, ...]:
    """The shapes of a URDF file or its text that are drawn, or that collide.

    packages: folders that hold what `package://` names; those above the file are tried too. A mesh
    that is not found is left out, with a warning in the log. kinds: those that are wanted. Raises
    `FileFormatError` for what is no URDF.
    """
    text = file_or_text("urdf", urdf)
    try:
        root = ElementTree.fromstring(text)
        beside = [] if isinstance(urdf, str) and "<" in urdf else Path(urdf).resolve().parents
        places = [*map(Path, packages), *beside]
        return tuple(_shapes(root, places, purpose, kinds))
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise FileFormatError(
            f"urdf has {purpose} shapes that cannot be read: {error!r}"
        ) from error


def _shapes(
    root: ElementTree.Element, places: Sequence[Path], purpose: str, kinds: Collection[str]
) -> Iterator[Shape]:
    colors = {m.get("name"): _color(m) for m in root.findall("material") if _color(m) is not None}
    for link in root.findall("link"):
        for visual in link.findall(purpose):
            shape = visual.find("geometry/*")
            if shape is None or (shape.tag in KINDS and shape.tag not in kinds):
                continue
            material = visual.find("material")
            color = None
            if material is not None:
                color = _color(material) or colors.get(material.get("name"))
            made = _shape(link.attrib["name"], shape, _pose(visual.find("origin")), color, places)
            if made is not None:
                yield made


def _shape(
    link: str,
    shape: ElementTree.Element,
    pose: Array,
    color: tuple[float, ...] | None,
    places: Sequence[Path],
) -> Shape | None:
    match shape.tag:
        case "box":
            return Shape(link, "box", _numbers(shape.attrib["size"]), pose, color or GREY)
        case "cylinder":
            size = (float(shape.attrib["radius"]), float(shape.attrib["length"]))
            return Shape(link, "cylinder", size, pose, color or GREY)
        case "sphere":
            return Shape(link, "sphere", (float(shape.attrib["radius"]),), pose, color or GREY)
        case "mesh":
            name = shape.attrib["filename"]
            file = _found(name, places)
            if file is None:
                _LOG.warning("mesh %s of link %s is not found", name, link)
                return None
            return Shape(link, "mesh", _numbers(shape.get("scale", "1 1 1")), pose, color, file)
    _LOG.warning("link %s has a shape %r that is not drawn", link, shape.tag)
    return None


def _found(name: str, places: Sequence[Path]) -> Path | None:
    """The file that a URDF names: as a path, or below one of the places."""
    plain = name.removeprefix("file://").removeprefix("package://")
    candidates = [Path(plain), *(place / plain for place in places)]
    if name.startswith("package://"):
        inside = Path(*Path(plain).parts[1:])
        candidates += [place / inside for place in places]
    return next((path for path in candidates if path.is_file()), None)


def _pose(origin: ElementTree.Element | None) -> Array:
    pose = np.eye(4)
    if origin is not None:
        pose[:3, 3] = _numbers(origin.get("xyz", "0 0 0"))
        pose[:3, :3] = Rotation.from_euler("xyz", _numbers(origin.get("rpy", "0 0 0"))).as_matrix()
    return pose


def _color(material: ElementTree.Element) -> tuple[float, ...] | None:
    color = material.find("color")
    return None if color is None else _numbers(color.attrib["rgba"])[:3]


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))
