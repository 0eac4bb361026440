"""Contacts of a robot's feet with the ground, guessed from the collision shapes of its URDF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, product
from xml.etree import ElementTree

import numpy as np

from hybridctl.checks import instance, vector
from hybridctl.errors import InputError
from hybridctl.files import file_or_text
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.shapes import Shape, shapes_of
from hybridctl.mechanics.contacts.surfaces import Plane, Surface
from hybridctl.mechanics.multibody.robot import Robot

GROUND = Plane(point=(0, 0, 0), normal=(0, 0, 1))
_FOOT = ("sole", "toe", "foot", "feet", "ankle")
_NEAR = 0.01  # m


class FoundContacts(tuple[Contact, ...]):
    """Contacts that were guessed; printed, a line for each of them."""

    def __repr__(self) -> str:
        return "\n".join(map(_line, self))


def contacts_from(
    robot: Robot,
    surface: Surface = GROUND,
    *,
    friction: float = 0.7,
    restitution: float = 0.0,
) -> FoundContacts:
    """Contacts of the feet of a robot with a surface of the world, guessed from its URDF.

    Feet are the last bodies of its chains that have a link whose name says so (sole, toe, foot,
    ankle); of a robot without such names all links at ends that have collision spheres or boxes.
    A sphere makes a round contact, a box one at each of its four lowest corners, with the joints
    at zero. Shapes are those of the links so named, else those of their body that reach to the
    link's origin, to 1 cm; a foot with neither makes a point at that origin. Print the result to
    see what was taken, and leave out or replace what does not fit.

    friction, restitution: of all of them. Raises `InputError` for a robot that was not built from
    a URDF, and where nothing is found.
    """
    source = instance("robot", robot, Robot).source
    if source is None:
        raise InputError("robot must be built from a URDF, which says how its links collide")
    text = file_or_text("urdf", source)
    shapes = shapes_of(text, purpose="collision", kinds=("sphere", "box"))
    bodies, ends = _ends(robot, text)
    feet = [foot for foot in map(_foot, bodies) if foot]
    places: list[tuple[str, str, tuple[float, ...], float]] = []
    for links in feet or [ends]:
        own = [shape for shape in shapes if shape.link in links]
        if feet and not own:
            own = [shape for shape in shapes if _reaches(robot, shape, links[0])]
        foot = links[0] if feet else ""
        points = [(foot or s.link, s.link, *place) for s in own for place in _places(robot, s)]
        places += points or ([(foot, foot, (0.0, 0.0, 0.0), 0.0)] if feet else [])
    counts = Counter(name for name, *_ in places)
    numbers = {name: count(1) for name, several in counts.items() if several > 1}
    found = [
        Contact(
            f"{name} {next(numbers[name])}" if name in numbers else name,
            link,
            surface,
            offset=offset,
            radius=radius,
            friction=friction,
            restitution=restitution,
        )
        for name, link, offset, radius in places
    ]
    if not found:
        raise InputError(
            "robot must have links at the ends of its chains that are called sole, toe, foot or "
            "ankle, or that have collision spheres or boxes, but these are "
            f"{ends}: name its contacts by hand"
        )
    return FoundContacts(found)


def _ends(robot: Robot, urdf: str) -> tuple[list[list[str]], list[str]]:
    """The links of each moving body that carries no other, and all links that carry no other."""
    root = ElementTree.fromstring(urdf)
    names = [link.attrib["name"] for link in root.findall("link")]
    body = {name: robot.frame(name).joint for name in names if name in robot.link_names}
    carried = [(j.find("parent"), j.find("child")) for j in root.findall("joint")]
    pairs = [(p.get("link"), c.get("link")) for p, c in carried if p is not None and c is not None]
    carriers = {body[p] for p, c in pairs if p in body and c in body and body[p] != body[c]}
    last = dict.fromkeys(joint for joint in body.values() if joint and joint not in carriers)
    bodies = [[name for name in body if body[name] == joint] for joint in last]
    return bodies, [name for name in body if body[name] and name not in {p for p, _ in pairs}]


def _foot(links: list[str]) -> list[str]:
    """The links of a body whose names say foot, by what they say, most of all a sole."""
    return [name for word in _FOOT for name in links if word in name.lower()]


def _reaches(robot: Robot, shape: Shape, link: str) -> bool:
    """Whether a shape of the link's body holds the origin of the link, to 1 cm."""
    foot, frame = robot.frame(link), robot.frame(shape.link)
    if foot.joint != frame.joint:
        return False
    at = frame.rotation.T @ (foot.position - frame.position) - shape.pose[:3, 3]
    if shape.kind == "sphere":
        return bool(np.linalg.norm(at) <= shape.size[0] + _NEAR)
    half = 0.5 * vector("size", shape.size, 3)
    return bool(np.all(np.abs(shape.pose[:3, :3].T @ at) <= half + _NEAR))


def _places(robot: Robot, shape: Shape) -> Iterator[tuple[tuple[float, ...], float]]:
    """Points of a shape in the frame of its link, each with its radius."""
    if shape.kind == "sphere":
        yield tuple(shape.pose[:3, 3].tolist()), shape.size[0]
        return
    half = 0.5 * vector("size", shape.size, 3)
    corners = np.array([shape.pose[:3, :3] @ (half * s) for s in product((-1, 1), repeat=3)])
    corners += shape.pose[:3, 3]
    frame = robot.frame(shape.link)
    upright = robot.poses(robot.neutral(), [frame.joint])[0][:3, :3] @ frame.rotation
    heights = corners @ upright[2]
    for i in np.sort(np.argsort(heights, kind="stable")[:4]):
        yield tuple(corners[i].tolist()), 0.0


def _line(contact: Contact) -> str:
    place = ", ".join(f"{value:.4g}" for value in contact.offset)
    kind = f"sphere of {contact.radius:.4g} m" if contact.radius else "point"
    return f"{contact.name}: {kind} at ({place}) m in {contact.frame}"
