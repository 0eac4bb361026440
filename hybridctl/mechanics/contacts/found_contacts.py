"""Contacts of a robot's feet with the ground, guessed from the collision shapes of its file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, product
from typing import Any, NamedTuple

import coal
import numpy as np

from hybridctl.base.checks import Array, check_instance
from hybridctl.base.errors import InputError
from hybridctl.base.files import read_file_or_text
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.mesh_soles import find_sole_face
from hybridctl.mechanics.contacts.surfaces import Plane, Surface
from hybridctl.mechanics.multibody.links import CollisionMesh, CollisionModel, CollisionShape
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.urdf import read_meshes, shapes_of
from hybridctl.mechanics.multibody.urdf_document import parse_urdf

GROUND = Plane(point=(0, 0, 0), normal=(0, 0, 1))
"""The plane z = 0 of the world, touched from above."""
_FOOT_WORDS = ("sole", "toe", "foot", "feet", "ankle")
"""Words by which the name of a link says that it is a foot, the most telling first."""
_REACH = 0.01
"""Distance in m by which the origin of a foot may lie outside a shape that is taken as its own."""
_OFFSET_DIGITS = 14
"""Decimals of offsets in m: those that a file gives in decimals stay as they are."""


class FoundContacts(tuple[Contact, ...]):
    """Contacts that were guessed; printed with a line for each of them.

    Attributes:
        reasons: What a contact was made from where that is no shape that touches so: the corners of
            a mesh, or nothing but the name of a link. By its name.
    """

    reasons: Mapping[str, str]

    def __new__(
        cls, contacts: Iterable[Contact] = (), reasons: Mapping[str, str] | None = None
    ) -> FoundContacts:
        """Return the contacts with their reasons, of which there are none by default."""
        found = super().__new__(cls, contacts)
        found.reasons = dict(reasons or {})
        return found

    def __repr__(self) -> str:
        return "\n".join(_describe(contact, self.reasons.get(contact.name, "")) for contact in self)


def contacts_from(
    robot: Robot,
    surface: Surface | None = None,
    *,
    friction: float = 0.7,
    restitution: float = 0.0,
) -> FoundContacts:
    """Guess the contacts of a robot's feet with a surface of the world from its URDF or MJCF.

    Feet are the last bodies of its chains that have a link whose name says so (sole, toe, foot,
    feet, ankle). Of a robot without such names all links at ends that have collision spheres, boxes
    or capsules are taken. A sphere makes a round contact, a capsule one at its lower end, or at
    both where it lies level, and a box one at each of its four lowest corners, with the joints at
    zero. Shapes are those of the links so named, else those of their body that reach to the link's
    origin, to 1 cm. A foot with neither, whose collision mesh has a lowest face of at least 5 cm^2,
    makes a point at each of up to four corners of that face (see `find_sole_face`). Any other foot
    makes a point at the origin of its link. Print the result to see what was taken and why, and
    leave out or replace what does not fit.

    Args:
        robot: Built from a URDF or an MJCF file.
        surface: What the feet touch. If None, the plane of an MJCF file that has one, else the
            plane z = 0.
        friction: Coulomb's coefficient of all contacts.
        restitution: Of all contacts.

    Returns:
        The contacts, in the order of the file.

    Raises:
        InputError: The robot was not built from a file, nothing is found, a coefficient is out of
            range, or a foot is round on a surface that takes points alone (see `Contact`).
        FileFormatError: The file of the robot cannot be read any more, or a mesh is damaged.
    """
    model = _read_collision_model(check_instance("robot", robot, Robot))
    if surface is None:
        surface = _find_ground(model)
    places = _find_foot_places(robot, model)
    counts = Counter(place.foot for place in places)
    numbers = {name: count(1) for name, several in counts.items() if several > 1}
    contacts, reasons = list[Contact](), dict[str, str]()
    for foot, link, offset, radius, reason in places:
        name = f"{foot} {next(numbers[foot])}" if foot in numbers else foot
        contacts.append(
            Contact(
                name,
                link,
                surface,
                offset=offset,
                radius=radius,
                friction=friction,
                restitution=restitution,
            )
        )
        if reason:
            reasons[name] = reason
    return FoundContacts(contacts, reasons)


class _FootPlace(NamedTuple):
    """Where a foot touches: its name, a link with the offset in it and a radius in m, and why."""

    foot: str
    link: str
    offset: tuple[float, ...]
    radius: float = 0.0
    reason: str = ""


def _find_foot_places(robot: Robot, model: CollisionModel) -> list[_FootPlace]:
    """Return where the feet of a robot touch.

    Args:
        robot: The robot.
        model: Its links and collision shapes.

    Returns:
        The places, in the order of the file.

    Raises:
        InputError: No link is named as a foot, and no link at an end of a chain has a shape.
    """
    bodies, ends = _find_chain_ends(robot, model)
    feet = [foot for foot in map(_list_foot_links, bodies) if foot]
    places = list[_FootPlace]()
    for links in feet or [ends]:
        shapes = [shape for shape in model.shapes if shape.link in links]
        # The shape of a foot may belong to another link of its body, such as the shank.
        if feet and not shapes:
            shapes = [shape for shape in model.shapes if _reaches(robot, shape, links[0])]
        foot = links[0] if feet else ""
        points = [
            _FootPlace(foot or shape.link, shape.link, *point)
            for shape in shapes
            for point in _find_lowest_points(robot, shape)
        ]
        if feet and not points:
            points = _find_mesh_corners(robot, model, links)
        places += points
    if not places:
        raise InputError(
            "robot must have links at the ends of its chains that are called sole, toe, foot or "
            "ankle, or that have collision spheres, boxes or capsules, but these are "
            f"{ends}: name its contacts by hand"
        )
    return places


def _find_mesh_corners(robot: Robot, model: CollisionModel, links: list[str]) -> list[_FootPlace]:
    """Return the corners of the mesh of a foot, or the origin of its link where it has no sole.

    Args:
        robot: The robot.
        model: Its links and collision shapes.
        links: The links of the foot's body whose names say foot; the first one names the foot.
    """
    foot, joint = links[0], robot.frame(links[0]).joint
    meshes = [mesh for mesh in model.meshes if mesh.joint == joint]
    if robot.collision is None and robot.source is not None:
        body = [n for n in model.parents if n in robot.link_names and robot.frame(n).joint == joint]
        meshes = read_meshes(robot.model, robot.source, body)
    named = [mesh for mesh in meshes if mesh.link in links]
    meshes = named or [mesh for mesh in meshes if _contains(mesh, robot.frame(foot).position)]
    if not meshes:
        return [_FootPlace(foot, foot, (0.0, 0.0, 0.0), reason="its origin: no shape collides")]
    up = robot.poses(robot.neutral(), [joint])[0][2, :3]
    mesh = min(meshes, key=lambda mesh: float((mesh.vertices @ up).min()))
    face = find_sole_face(mesh.vertices, up)
    if face is None:
        return [
            _FootPlace(foot, foot, (0.0, 0.0, 0.0), reason="its origin: its mesh has no flat sole")
        ]
    reason = "a corner of its mesh"
    if len(face.corners) < face.all_corners:
        reason += f", whose {face.all_corners} corners are {len(face.corners)} here with "
        reason += f"{100.0 * face.share:.0f} % of their area"
    return [
        _FootPlace(foot, mesh.link, _compute_offset(robot, corner, mesh.link), reason=reason)
        for corner in face.corners
    ]


def _contains(mesh: CollisionMesh, place: Array) -> bool:
    """Return whether the bounding box of a mesh contains a place of its joint's frame, to 1 cm."""
    low, high = mesh.vertices.min(axis=0) - _REACH, mesh.vertices.max(axis=0) + _REACH
    return bool(np.all((low <= place) & (place <= high)))


def _read_collision_model(robot: Robot) -> CollisionModel:
    """Return the links and collision shapes of a robot's file.

    Args:
        robot: The robot. One from an MJCF file has its collision model already; of a URDF the
            spheres and boxes are read.

    Returns:
        The links and shapes, in the order of the file.

    Raises:
        InputError: The robot was not built from a file.
        FileFormatError: The file of the robot cannot be read any more.
    """
    if robot.collision is not None:
        return robot.collision
    if robot.source is None:
        raise InputError(
            "robot must be built from a URDF or MJCF file, which says how its links collide"
        )
    text = read_file_or_text("urdf", robot.source)
    model = robot.model
    read = shapes_of(model, text, purpose="collision", kinds=("sphere", "box"))
    root = parse_urdf(text).root
    parents = dict[str, str | None].fromkeys(link.attrib["name"] for link in root.findall("link"))
    for joint in root.findall("joint"):
        parent, child = joint.find("parent"), joint.find("child")
        if parent is not None and child is not None:
            parents[child.attrib["link"]] = parent.attrib["link"]
    shapes = [
        _convert_urdf_shape(model.frames[s.parentFrame].name, s) for s in read.geometryObjects
    ]
    order = {name: k for k, name in enumerate(parents)}
    shapes.sort(key=lambda shape: order[shape.link])
    return CollisionModel(parents, tuple(shapes))


def _convert_urdf_shape(link: str, shape: Any) -> CollisionShape:
    """Return a sphere or a box of Pinocchio's geometry model as a collision shape."""
    ball = isinstance(shape.geometry, coal.Sphere)
    at = shape.placement
    return CollisionShape(
        link,
        int(shape.parentJoint),
        "sphere" if ball else "box",
        (shape.geometry.radius,) if ball else tuple(shape.geometry.halfSide.tolist()),
        np.array(at.rotation),
        np.array(at.translation),
    )


def find_spheres(robot: Robot, link: str) -> list[tuple[Array, float]]:
    """Return the collision spheres of a link in the file of a robot.

    Args:
        robot: The robot. One that was not built from a file has none.
        link: Name of the link.

    Returns:
        Centre (3,) in the frame of the link, and radius, both in m, of each sphere.

    Raises:
        FileFormatError: The file of the robot cannot be read any more.
    """
    if robot.collision is None and robot.source is None:
        return []
    shapes = [
        s for s in _read_collision_model(robot).shapes if s.link == link and s.kind == "sphere"
    ]
    return [(np.array(_compute_offset(robot, s.position, link)), float(s.size[0])) for s in shapes]


def _find_ground(model: CollisionModel) -> Surface:
    """Return the one plane that a file has, or the plane z = 0."""
    planes = [shape for shape in model.shapes if shape.kind == "plane"]
    if len(planes) != 1:
        return GROUND
    return Plane(point=planes[0].position, normal=planes[0].rotation[:, 2])


def _find_chain_ends(robot: Robot, model: CollisionModel) -> tuple[list[list[str]], list[str]]:
    """Return the ends of a robot's chains.

    Returns:
        The links of each moving body that carries no other body, and all moving links that carry
        no other link.
    """
    body = {n: robot.frame(n).joint for n in model.parents if n in robot.link_names}
    pairs = [(p, c) for c, p in model.parents.items() if p is not None]
    carriers = {body[p] for p, c in pairs if p in body and c in body and body[p] != body[c]}
    last = dict.fromkeys(joint for joint in body.values() if joint and joint not in carriers)
    bodies = [[name for name in body if body[name] == joint] for joint in last]
    return bodies, [name for name in body if body[name] and name not in {p for p, _ in pairs}]


def _list_foot_links(links: list[str]) -> list[str]:
    """Return the links of a body whose names say foot, those that say sole first."""
    return [name for word in _FOOT_WORDS for name in links if word in name.lower()]


def is_foot_name(name: str) -> bool:
    """Return whether a name contains a word for a foot: sole, toe, foot, feet or ankle.

    Args:
        name: Name of a link, or of a contact that was made from it. Capital letters do not matter.
    """
    return any(word in name.lower() for word in _FOOT_WORDS)


def _reaches(robot: Robot, shape: CollisionShape, link: str) -> bool:
    """Return whether a shape of the link's body contains the origin of the link, to 1 cm."""
    foot = robot.frame(link)
    if foot.joint != shape.joint or shape.kind == "plane":
        return False
    at = shape.rotation.T @ (foot.position - shape.position)
    if shape.kind == "box":
        return bool(np.all(np.abs(at) <= np.array(shape.size) + _REACH))
    half = shape.size[1] if shape.kind == "capsule" else 0.0
    axial = max(abs(float(at[2])) - half, 0.0)
    return bool(np.hypot(np.hypot(at[0], at[1]), axial) <= shape.size[0] + _REACH)


def _find_lowest_points(
    robot: Robot, shape: CollisionShape
) -> Iterator[tuple[tuple[float, ...], float]]:
    """Find the points of a shape that touch the ground, with the joints at zero.

    Args:
        robot: The robot.
        shape: A shape of one of its links.

    Yields:
        Offset (3,) in the frame of the shape's link, and radius, both in m: the centre of a sphere,
        one end or both ends of a capsule, or the four lowest corners of a box with radius 0.
        Nothing for a plane.
    """
    if shape.kind == "plane":
        return
    upright = robot.poses(robot.neutral(), [shape.joint])[0][2, :3]
    if shape.kind == "box":
        signs = np.array(list(product((-1, 1), repeat=3)))
        corners = shape.position + (signs * np.array(shape.size)) @ shape.rotation.T
        for i in np.sort(np.argsort(corners @ upright, kind="stable")[:4]):
            yield _compute_offset(robot, corners[i], shape.link), 0.0
        return
    radius = shape.size[0]
    half = shape.size[1] if shape.kind == "capsule" else 0.0
    ends = shape.position + np.array([[-half], [half]]) * shape.rotation[:, 2]
    heights = ends @ upright
    # A leg that is one capsule touches with its foot; a foot that lies level touches with both
    # ends. The radius tells them apart, whatever small angle a file has.
    low = ends[heights <= heights.min() + radius] if half else ends[:1]
    for end in low:
        yield _compute_offset(robot, end, shape.link), radius


def _compute_offset(robot: Robot, place: Array, link: str) -> tuple[float, ...]:
    """Return a place (3,) of the frame of the link's joint in the frame of the link, rounded."""
    frame = robot.frame(link)
    offset = np.round(frame.rotation.T @ (place - frame.position), _OFFSET_DIGITS)
    return tuple((offset + 0.0).tolist())  # no -0.0


def _describe(contact: Contact, reason: str) -> str:
    """Return a contact in words, with the reason why it was made where there is one."""
    place = ", ".join(f"{value:.4g}" for value in contact.offset)
    kind = f"sphere of {contact.radius:.4g} m" if contact.radius else "point"
    why = f" ({reason})" if reason else ""
    return f"{contact.name}: {kind} at ({place}) m in {contact.frame}{why}"
