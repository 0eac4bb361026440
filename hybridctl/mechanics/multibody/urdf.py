"""What Pinocchio reads of a URDF: the tree of bodies on its base, and the shapes of its links."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import coal
import pinocchio as pin

from hybridctl.errors import FileFormatError
from hybridctl.files import file_or_text
from hybridctl.mechanics.multibody.joints import SAGITTAL_JOINTS
from hybridctl.mechanics.multibody.mimic import mimics_of

Root = Literal["fixed", "floating", "sagittal"]
Kind = Literal["box", "cylinder", "sphere", "mesh"]
KINDS: tuple[Kind, ...] = ("box", "cylinder", "sphere", "mesh")
_PURPOSES = {"visual": pin.GeometryType.VISUAL, "collision": pin.GeometryType.COLLISION}
_LOG = logging.getLogger(__name__)
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
"""What urdfdom reads as a number, without a space after it.

Of anything else it drops the whole `<inertial>`, or takes a moment of inertia as zero."""
_MOMENTS = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
_MASS_RTOL = 1e-9
"""Of the sum of all masses: rounding of a sum of a few hundred, in another order."""


def model_of(text: str, root: Root) -> Any:
    """Return the `pinocchio.Model` of a URDF on its base.

    Args:
        text: The URDF.
        root: What moves the root link.

    Raises:
        FileFormatError: The text is no URDF, or has inertias that are not read.
    """
    element: ElementTree.Element | None = None
    try:
        found = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        # Not final: urdfdom accepts prefixes that are declared nowhere.
        reason = f"it is no XML: {error}"
        if "<xacro:" in text:
            raise _xacro_error() from error
    else:
        _check_elements(found)
        element, reason = found, "it has no valid tree of links and joints"
    try:
        if root == "floating":
            model = pin.buildModelFromXML(text, pin.JointModelFreeFlyer())
        else:
            model = pin.buildModelFromXML(text)
    except (ValueError, RuntimeError) as error:
        raise FileFormatError(f"urdf is not a robot description: {reason} ({error})") from error
    if element is not None:
        _check_mass(element, model)
    return _on_sagittal_base(model) if root == "sagittal" else model


def _xacro_error() -> FileFormatError:
    return FileFormatError(
        "urdf must be expanded, but it has xacro macros: `xacro robot.urdf.xacro > robot.urdf`"
    )


def _check_elements(element: ElementTree.Element) -> None:
    """Raise `FileFormatError` for a file of another kind, and for inertias that are not read.

    urdfdom writes on the error stream of such an inertia and goes on without it.

    Args:
        element: The root of the file.
    """
    if any("xacro" in child.tag for child in element.iter() if isinstance(child.tag, str)):
        raise _xacro_error()
    if element.tag != "robot":
        reader = ": Robot.from_mjcf reads it" if element.tag == "mujoco" else ""
        raise FileFormatError(f"urdf must be a <robot>, got <{element.tag}>{reader}")
    for link in element.findall("link"):
        for inertial in link.findall("inertial"):
            _check_inertial(link.get("name", "without a name"), inertial)
    mimics_of(element)  # refuses by name what urdfdom refuses without one


def _check_inertial(link: str, inertial: ElementTree.Element) -> None:
    """Raise `FileFormatError` for an `<inertial>` with a number that is missing or not read.

    Args:
        link: Name of the link.
        inertial: Its element.
    """
    parts: dict[str, tuple[str, ...]] = {"mass": ("value",), "inertia": _MOMENTS}
    for tag, names in parts.items():
        part = inertial.find(tag)
        for name in names:
            value = None if part is None else part.get(name)
            if value is None or not _is_read(value):
                raise FileFormatError(
                    f"urdf must have a number as {name} of <{tag}> in the <inertial> of link "
                    f"{link!r}, got {'nothing' if value is None else repr(value)}"
                )
    origin = inertial.find("origin")
    for name in ("xyz", "rpy"):
        numbers = None if origin is None else origin.get(name)
        if numbers is not None and [_is_read(n) for n in numbers.split()] != [True] * 3:
            raise FileFormatError(
                f"urdf must have three numbers as {name} of <origin> in the <inertial> of link "
                f"{link!r}, got {numbers!r}"
            )


def _is_read(text: str) -> bool:
    """Return whether urdfdom reads a text as a number."""
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def _check_mass(element: ElementTree.Element, model: Any) -> None:
    """Raise `FileFormatError` if the model has another mass than all links of its file."""
    masses = [float(mass.get("value", "")) for mass in element.findall("link/inertial/mass")]
    total, found = sum(masses), sum(float(inertia.mass) for inertia in model.inertias)
    if not abs(found - total) <= _MASS_RTOL * sum(map(abs, masses)):
        raise FileFormatError(
            f"urdf has links of {total:.9g} kg in all, of which {found:.9g} kg are read: each link "
            "must have one <inertial>"
        )


def _on_sagittal_base(model: Any) -> Any:
    """The model on a base that slides along x and z and turns about y.

    A chain of three joints; Pinocchio's derivatives are wrong for one composite joint.
    """
    base, parent = pin.Model(), 0
    kinds = (pin.JointModelPX(), pin.JointModelPZ(), pin.JointModelRY())
    for name, kind in zip(SAGITTAL_JOINTS, kinds, strict=True):
        parent = base.addJoint(parent, kind, pin.SE3.Identity(), name)
        base.addJointFrame(parent)
    frame = base.getFrameId(SAGITTAL_JOINTS[-1])
    return pin.appendModel(base, model, frame, pin.SE3.Identity())


def shapes_of(
    model: Any,
    urdf: str | os.PathLike[str],
    packages: Sequence[str | os.PathLike[str]] = (),
    *,
    purpose: Literal["visual", "collision"] = "visual",
    kinds: Collection[Kind] = KINDS,
) -> Any:
    """The `pinocchio.GeometryModel` of shapes that are drawn, or collide, on links of a model.

    urdf: a file or its text. packages: folders that hold what `package://` names; those above the
    file are tried too. A mesh that is not found is left out, with a warning in the log, and so are
    links that the model does not have. kinds: those that are wanted. Raises `FileFormatError` for
    what is no URDF, and for shapes that cannot be read.
    """
    text = file_or_text("urdf", urdf)
    beside = [] if isinstance(urdf, str) and "<" in urdf else Path(urdf).resolve().parents
    known = {frame.name for frame in model.frames if frame.type == pin.FrameType.BODY}
    try:
        root = ElementTree.fromstring(text)
        wanted = _keep(root, known, purpose, kinds, [*map(Path, packages), *beside])
        text = ElementTree.tostring(root, encoding="unicode")
        # The tree over a mesh that is made fastest: nobody asks it for collisions.
        loader = coal.CachedMeshLoader(coal.NODE_TYPE.BV_AABB)
        shapes = pin.buildGeomFromUrdfString(model, text, _PURPOSES[purpose], mesh_loader=loader)
    except (ElementTree.ParseError, KeyError, RuntimeError, ValueError) as error:
        raise FileFormatError(
            f"urdf has {purpose} shapes that cannot be read: {error!r}"
        ) from error
    if shapes.ngeoms < wanted:  # Pinocchio leaves out what it cannot read
        raise FileFormatError(
            f"urdf has {wanted} {purpose} shapes of which {wanted - shapes.ngeoms} cannot be read"
        )
    return shapes


def _keep(
    root: ElementTree.Element,
    links: Collection[str],
    purpose: str,
    kinds: Collection[str],
    places: Sequence[Path],
) -> int:
    """Leave in a URDF only shapes that are wanted, meshes with their paths; how many those are."""
    count = 0
    for link in root.findall("link"):
        for part in link.findall(purpose):
            shape = part.find("geometry/*")
            if (
                link.attrib["name"] in links
                and shape is not None
                and _is_wanted(shape, link.attrib["name"], kinds, places)
            ):
                count += 1
            else:
                link.remove(part)
    return count


def _is_wanted(
    shape: ElementTree.Element, link: str, kinds: Collection[str], places: Sequence[Path]
) -> bool:
    if shape.tag not in KINDS:
        _LOG.warning("link %s has a shape %r that is left out", link, shape.tag)
    elif shape.tag == "mesh" and "mesh" in kinds:
        name = shape.attrib["filename"]
        file = _found(name, places)
        if file is None:
            _LOG.warning("mesh %s of link %s is not found", name, link)
            return False
        shape.set("filename", str(file.resolve()))
    return shape.tag in kinds


def _found(name: str, places: Sequence[Path]) -> Path | None:
    """The file that a URDF names: as a path, or below one of the places."""
    plain = name.removeprefix("file://").removeprefix("package://")
    candidates = [Path(plain), *(place / plain for place in places)]
    if name.startswith("package://"):
        inside = Path(*Path(plain).parts[1:])
        candidates += [place / inside for place in places]
    return next((path for path in candidates if path.is_file()), None)
