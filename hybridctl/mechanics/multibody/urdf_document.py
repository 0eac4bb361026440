"""The elements of a URDF file with their lines, and the refusal of what makes no sense in them.

urdfdom, the parser behind Pinocchio, drops an element with a number that it cannot read, or stops
with one message for all causes. Here such elements are refused by name and line before it sees
the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np

from hybridctl.base.checks import Array, format_count
from hybridctl.base.errors import FileFormatError

Element = ElementTree.Element

SINGLE_AXIS_TYPES = ("revolute", "continuous", "prismatic")
"""Types of joints of one degree of freedom."""
_AXIS_TYPES = (*SINGLE_AXIS_TYPES, "planar")
_JOINT_TYPES = (*_AXIS_TYPES, "floating", "fixed")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
"""Numbers that urdfdom reads, without spaces around them."""
_DECLARATION = re.compile(r"<\?xml\s[^<>]*\?>")
_MOMENTS = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
_VECTOR_SIZES = {"xyz": 3, "rpy": 3, "quat_xyzw": 4, "size": 3}
"""Count of numbers in the attributes that have more than one."""
_NUMBERS: dict[str, tuple[str, ...]] = {
    "origin": ("xyz", "rpy", "quat_xyzw"),
    "mass": ("value",),
    "inertia": _MOMENTS,
    "axis": ("xyz",),
    "limit": ("lower", "upper", "effort", "velocity"),
    "dynamics": ("damping", "friction"),
    "mimic": ("multiplier", "offset"),
    "box": ("size",),
    "sphere": ("radius",),
    "cylinder": ("radius", "length"),
    "capsule": ("radius", "length"),
}
"""Attributes that hold numbers, by the tag of their element.

The scale of a mesh is not among them: urdfdom goes on without it, and only the drawing has it."""
_NEEDED = {
    **{tag: _NUMBERS[tag] for tag in ("mass", "inertia", "axis", "box", "sphere", "cylinder")},
    "capsule": _NUMBERS["capsule"],
    "limit": ("effort", "velocity"),
}
"""Those of the attributes that may not be left out."""
_LEAST_AXIS = 1e-9
"""Length of an axis below which it has no direction: an axis is written with components of order
one, so this is what rounding leaves of a zero."""
_TRIANGLE_RTOL = 1e-5
"""Excess of a principal moment over the sum of the others, relative to it, that is not reported:
files have six digits."""
_MOST_LEVELS = 100
"""Depth of nested elements: a URDF has some five, and writing them recurses."""
_LISTED = 3
"""Number of inertias that a warning describes; the others are counted."""


@dataclass(frozen=True, eq=False)
class UrdfDocument:
    """The elements of a URDF file.

    Attributes:
        root: The element <robot>. Tags and attributes have the prefixes that the file gives them.
        lines: Line of each element in the file, from 1.
    """

    root: Element
    lines: Mapping[Element, int]

    @property
    def links(self) -> list[Element]:
        """The elements <link> of the robot, in the order of the file."""
        return self.root.findall("link")

    @property
    def joints(self) -> list[Element]:
        """The elements <joint> of the robot, in the order of the file."""
        return self.root.findall("joint")

    def locate(self, element: Element) -> str:
        """Return the kind, name and line of a link or joint, such as "joint 'hip' (line 7)"."""
        return f"{element.tag} {element.get('name', '')!r} (line {self.lines[element]})"

    def error(self, element: Element, text: str) -> FileFormatError:
        """Return the error about an element; the text goes on after "urdf line 7"."""
        return FileFormatError(f"urdf line {self.lines[element]} {text}")


def parse_urdf(text: str) -> UrdfDocument:
    """Parse a URDF, and bring its numbers into a form that urdfdom reads.

    Namespaces are not resolved: a default namespace changes nothing, as for urdfdom.

    Args:
        text: The URDF. A byte order mark, empty lines and comments may precede its declaration.

    Returns:
        The document. Its numbers are separated by single spaces.

    Raises:
        FileFormatError: The text is no XML, no <robot>, has xacro macros, or has a number that is
            missing or cannot be read.
    """
    lines: dict[Element, int] = {}
    builder, parser, parents = ElementTree.TreeBuilder(), expat.ParserCreate(), list[Element]()

    def start(tag: str, attributes: dict[str, str]) -> None:
        parents.append(builder.start(tag, attributes))
        lines[parents[-1]] = parser.CurrentLineNumber
        if len(parents) > _MOST_LEVELS:
            raise FileFormatError(
                f"urdf line {lines[parents[-1]]} must not be nested more than {_MOST_LEVELS} deep"
            )

    def end(tag: str) -> None:
        builder.end(tag)
        parents.pop()

    parser.StartElementHandler, parser.EndElementHandler = start, end
    try:
        parser.Parse(_remove_comments(text), True)
    except FileFormatError:  # a ValueError, too
        raise
    except (expat.ExpatError, ValueError) as error:  # ValueError: characters that are no UTF-8
        if "<xacro:" in text:
            _refuse_xacro()
        raise FileFormatError(f"urdf is not a robot description: it is no XML: {error}") from error
    document = UrdfDocument(builder.close(), lines)
    _check_kind(document)
    for parent, place in _find_number_holders(document):
        for element in parent:
            _read_numbers(document, element, place)
    return document


def _remove_comments(text: str) -> str:
    """Return a URDF without comments and XML declarations, each line in its place.

    expat refuses comments with "--" inside, and declarations that do not open the file; urdfdom
    reads both.
    """
    first, *others = text.removeprefix("\ufeff").split("<!--")
    parts = [first]
    for piece in others:
        comment, _, rest = piece.partition("-->")
        parts += ["\n" * comment.count("\n"), rest]
    declared = "".join(parts)
    return _DECLARATION.sub(lambda match: "\n" * match.group().count("\n"), declared)


def _refuse_xacro(place: str = "") -> NoReturn:
    """Raise the error about xacro macros at a place, such as " line 3".

    Raises:
        FileFormatError: Always.
    """
    raise FileFormatError(
        f"urdf{place} must be expanded, but it has xacro macros: run xacro first, as in "
        "`xacro robot.urdf.xacro > robot.urdf`"
    )


def _check_kind(document: UrdfDocument) -> None:
    """Check that a document is a <robot> without xacro macros.

    Raises:
        FileFormatError: It is something else.
    """
    root = document.root
    spaces = [name for name, uri in root.attrib.items() if name[:6] == "xmlns:" and "xacro" in uri]
    prefixes = ("xacro:", *(f"{name[6:]}:" for name in spaces))
    for element in root.iter():
        if element.tag.startswith(prefixes):
            _refuse_xacro(f" line {document.lines[element]}")
    if root.tag != "robot":
        reader = ": Robot.from_mjcf reads it" if root.tag == "mujoco" else ""
        raise FileFormatError(f"urdf must be a <robot>, got <{root.tag}>{reader}")


# Numbers


def _find_number_holders(document: UrdfDocument) -> Iterator[tuple[Element, str]]:
    """Yield the elements whose children hold numbers, and how an error describes the place."""
    for link in document.links:
        name = f"link {link.get('name', 'without a name')!r}"
        for part in link:
            if part.tag in ("inertial", "visual", "collision"):
                place = f"the <{part.tag}> of {name}"
                yield part, place
                for geometry in part.findall("geometry"):
                    yield geometry, place
    for joint in document.joints:
        yield joint, f"joint {joint.get('name', 'without a name')!r}"


def _read_numbers(document: UrdfDocument, element: Element, place: str) -> None:
    """Bring the numbers of an element into the form that urdfdom reads.

    Args:
        document: The document, for the line.
        element: An element; one whose tag has no numbers is left alone. Changed.
        place: The link or joint that has it, for the error.

    Raises:
        FileFormatError: A number is missing or not readable.
    """
    for name in _NUMBERS.get(element.tag, ()):
        value = element.get(name)
        if value is None and name not in _NEEDED.get(element.tag, ()):
            continue
        parts, size = (value or "").split(), _VECTOR_SIZES.get(name, 1)
        if len(parts) != size or not all(map(_is_number, parts)):
            if value is not None and ("${" in value or "$(" in value):
                _refuse_xacro(f" line {document.lines[element]}")
            wanted = "a number" if size == 1 else f"{('three', 'four')[size - 3]} numbers"
            got = "nothing" if value is None else f"{value[:60]!r}"
            raise document.error(
                element, f"must have {wanted} as {name} of <{element.tag}> in {place}, got {got}"
            )
        element.set(name, " ".join(parts))


def _is_number(text: str) -> bool:
    """Return whether urdfdom reads a text as a finite number."""
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def numbers_of(element: Element | None, name: str, default: tuple[float, ...]) -> Array:
    """Return the numbers of an attribute.

    Args:
        element: An element of a document, or None.
        name: The attribute.
        default: The numbers if there is no such element, or no such attribute.
    """
    value = None if element is None else element.get(name)
    return np.array(default if value is None else [float(part) for part in value.split()])


# Links and joints


def check_description(document: UrdfDocument) -> None:
    """Check the names, joints and tree of a URDF.

    Raises:
        FileFormatError: A name is missing or not unique, an element stands twice, a joint has an
            unknown type or lacks something, or the links are no tree.
    """
    if not document.links:
        raise document.error(document.root, "must have a <link> in <robot>, got none")
    for elements in (document.links, document.joints):
        _check_names(document, elements)
    for link in document.links:
        _check_single(document, link, ("inertial",))
        for inertial in link.findall("inertial"):
            _check_inertial(document, inertial, link)
    for joint in document.joints:
        _check_joint(document, joint)
    _check_tree(document)


def _check_names(document: UrdfDocument, elements: list[Element]) -> None:
    """Check that links, or joints, have names that differ.

    Raises:
        FileFormatError: A name is missing, occurs twice, or is a xacro macro.
    """
    seen: dict[str, Element] = {}
    for element in elements:
        name = element.get("name")
        if not name:
            raise document.error(element, f"must have a name of the {element.tag}, got none")
        if "${" in name:
            _refuse_xacro(f" line {document.lines[element]}")
        if name in seen:
            raise document.error(
                element,
                f"must have another name for {element.tag} {name!r}, which line "
                f"{document.lines[seen[name]]} has",
            )
        seen[name] = element


def _check_single(
    document: UrdfDocument, element: Element, tags: tuple[str, ...], owner: Element | None = None
) -> None:
    """Raise `FileFormatError` for parts that stand twice and differ: urdfdom reads the first alone.

    Args:
        document: The document.
        element: What has the parts.
        tags: Parts of which there may be one.
        owner: The link that the error names, by default the element itself.
    """
    named = element if owner is None else owner
    for tag in tags:
        first, *others = element.findall(tag) or [element]
        # Public files repeat the axis of a joint.
        differing = [part for part in others if len(part) or part.attrib != first.attrib]
        if differing:
            raise document.error(
                differing[0],
                f"must have one <{tag}> at most in {named.tag} {named.get('name')!r}, got "
                f"{len(others) + 1}",
            )


def _check_inertial(document: UrdfDocument, inertial: Element, link: Element) -> None:
    """Raise `FileFormatError` for an <inertial> that is incomplete, or whose mass is negative."""
    _check_single(document, inertial, ("origin", "mass", "inertia"), link)
    _check_orientation(document, inertial.find("origin"), link)
    for tag in ("mass", "inertia"):
        if inertial.find(tag) is None:
            raise document.error(
                inertial,
                f"must have a number as {_NUMBERS[tag][0]} of <{tag}> in the <inertial> of link "
                f"{link.get('name')!r}, got nothing",
            )
    mass = float(numbers_of(inertial.find("mass"), "value", (0.0,))[0])
    if mass < 0.0:
        raise document.error(
            inertial, f"must not have a negative mass in link {link.get('name')!r}, got {mass} kg"
        )


def _check_joint(document: UrdfDocument, joint: Element) -> None:
    """Raise an error for a joint that urdfdom or Pinocchio reads differently or not.

    Args:
        document: The URDF, which locates elements by file and line.
        joint: Element <joint>.

    Raises:
        FileFormatError: Type, parts, axis, orientation or dynamics of the joint are not usable.
    """
    name, kind = joint.get("name"), joint.get("type")
    if kind not in _JOINT_TYPES:
        known = ", ".join(_JOINT_TYPES)
        raise document.error(joint, f"must have a type of joint {name!r} of {known}; got {kind!r}")
    parts = ("origin", "parent", "child", "axis", "limit", "dynamics", "mimic")
    _check_single(document, joint, parts)
    _check_orientation(document, joint.find("origin"), joint)
    for tag in ("parent", "child"):
        part = joint.find(tag)
        if part is None or not part.get("link"):
            raise document.error(joint, f"must have the link of <{tag}> in joint {name!r}")
    if kind in ("revolute", "prismatic") and joint.find("limit") is None:
        raise document.error(joint, f"must have a <limit> in joint {name!r}, which is {kind}")
    axis = joint.find("axis")
    length = float(np.linalg.norm(numbers_of(axis, "xyz", (1.0, 0.0, 0.0))))
    if axis is not None and kind in _AXIS_TYPES and not length >= _LEAST_AXIS:
        raise document.error(
            axis, f"must have an axis of joint {name!r} that is not zero, got {axis.get('xyz')!r}"
        )
    _check_dynamics(document, joint)


def _check_dynamics(document: UrdfDocument, joint: Element) -> None:
    """Raise an error for negative damping or friction, and where it would be lost.

    Args:
        document: The URDF, which locates elements by file and line.
        joint: Element <joint>, with or without <dynamics>.

    Raises:
        FileFormatError: A value is negative, or belongs to a joint of several velocities.
    """
    dynamics = joint.find("dynamics")
    for name in _NUMBERS["dynamics"]:
        value = float(numbers_of(dynamics, name, (0.0,))[0])
        if dynamics is None or value == 0.0:
            continue
        if value < 0.0:
            raise document.error(
                dynamics,
                f"must not have a negative {name} at joint {joint.get('name')!r}, got {value:.6g}",
            )
        if joint.get("type") in ("planar", "floating"):
            raise document.error(
                dynamics,
                f"must not have {name} at joint {joint.get('name')!r}, which is "
                f"{joint.get('type')}: it would be lost",
            )


def _check_orientation(document: UrdfDocument, origin: Element | None, owner: Element) -> None:
    """Raise `FileFormatError` for a quaternion, which urdfdom reads from version 1.1 on alone."""
    if origin is not None and origin.get("quat_xyzw") is not None:
        raise document.error(
            origin,
            f"must have rpy in place of quat_xyzw in <origin> of {owner.tag} "
            f"{owner.get('name')!r}: quaternions are not read",
        )


def parent_joints(document: UrdfDocument) -> dict[str, Element]:
    """Return the joint that carries each link, by the name of the link.

    Args:
        document: The URDF; its root link has no entry.

    Raises:
        FileFormatError: A joint names a link that does not exist, or a link has two parents.
    """
    links = {link.get("name") for link in document.links}
    carried: dict[str, Element] = {}
    for joint in document.joints:
        for tag in ("parent", "child"):
            name = link_of(joint, tag)
            if name not in links:
                raise document.error(
                    joint, f"has the {tag} link {name!r} in joint {joint.get('name')!r}, but there "
                    "is no link of this name"
                )  # fmt: skip
        child = link_of(joint, "child")
        if child in carried:
            raise document.error(
                joint,
                f"gives link {child!r} a second parent by joint {joint.get('name')!r}; the first "
                f"is by {document.locate(carried[child])}",
            )
        carried[child] = joint
    return carried


def link_of(joint: Element, tag: str) -> str:
    """Return the name of the link in <parent> or <child> of a joint, "" without one."""
    part = joint.find(tag)
    return "" if part is None else part.get("link", "")


def _check_tree(document: UrdfDocument) -> None:
    """Raise an error unless the links are one tree.

    Args:
        document: The URDF.

    Raises:
        FileFormatError: Links form a loop, or several links have no parent.
    """
    carried = parent_joints(document)
    connected = set[str]()  # links from which the way up ends at a root
    for link in document.links:
        path, name = dict[str, None](), link.get("name", "")
        while name in carried and name not in path and name not in connected:
            path[name] = None
            name = link_of(carried[name], "parent")
        if name in path:
            names = list(path)
            loop = [name, *reversed(names[names.index(name) :])]  # from parent to child
            raise document.error(
                carried[name],
                f"closes a loop of links by joint {carried[name].get('name')!r}: "
                f"{' -> '.join(loop[:8])}; a URDF must be a tree",
            )
        connected.update(path)
    roots = [link for link in document.links if link.get("name") not in carried]
    if len(roots) > 1:
        raise FileFormatError(
            f"urdf must have one root link, got {len(roots)} links without a parent: "
            f"{', '.join(map(document.locate, roots[:_LISTED]))}"
        )


def describe_impossible_inertias(document: UrdfDocument) -> str:
    """Return which inertias violate the triangle inequality, "" if none does.

    The principal moments of a rigid body are sums of two of three integrals that are not negative:
    none exceeds the sum of the other two.

    Args:
        document: The URDF, with moments in kg m^2.
    """
    found = []
    for link in document.links:
        inertia = link.find("inertial/inertia")
        if inertia is None:
            continue
        xx, xy, xz, yy, yz, zz = (float(inertia.get(name, "0")) for name in _MOMENTS)
        moments = np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        excess = float(moments[2] - moments[0] - moments[1])
        if excess > _TRIANGLE_RTOL * float(np.abs(moments).max()):
            found.append(
                f"{document.locate(link)} has the principal moments "
                f"{', '.join(f'{moment:.6g}' for moment in moments)} kg m^2"
            )
    more = len(found) - _LISTED
    return "; ".join(found[:_LISTED]) + (
        f"; and {format_count(more, 'link')} more" if more > 0 else ""
    )


# The text for urdfdom


def text_for_model(document: UrdfDocument, by_angle: Collection[str] = ()) -> str:
    """Return the URDF with only what the motion needs, for urdfdom.

    Shapes, materials and safety controllers are left out: urdfdom gives up on the whole robot
    where one of them is incomplete.

    Args:
        document: The URDF.
        by_angle: Names of continuous joints that are to have their angle as coordinate.
    """
    kept = {
        "link": ("inertial",),
        "joint": ("origin", "parent", "child", "axis", "limit", "dynamics", "mimic"),
    }
    robot = ElementTree.Element("robot", {"name": document.root.get("name", "robot")})
    for element in document.root:
        if element.tag in kept:
            copy = ElementTree.SubElement(robot, element.tag, element.attrib)
            # A <dynamics> without numbers says nothing, but urdfdom gives up on the robot.
            copy.extend(
                part
                for part in element
                if part.tag in kept[element.tag] and (part.attrib or part.tag != "dynamics")
            )
            if element.tag == "joint" and element.get("name") in by_angle:
                _unwind_joint(copy)
    return ElementTree.tostring(robot, encoding="unicode")


def _unwind_joint(joint: Element) -> None:
    """Change the element of a continuous joint to a revolute joint that has no limits."""
    joint.set("type", "revolute")
    limit = joint.find("limit")
    numbers = {} if limit is None else dict(limit.attrib)
    if limit is not None:
        joint.remove(limit)
    # Limits of 0 and 0 are none (see `read_joint_limits`); those of continuous joints count not.
    motor = {name: numbers.get(name, "0") for name in ("effort", "velocity")}
    ElementTree.SubElement(joint, "limit", {"lower": "0", "upper": "0", **motor})
