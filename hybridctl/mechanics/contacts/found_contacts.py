"""Contacts of a robot's feet with the ground, guessed from the collision shapes of its URDF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, product
from typing import Any
from xml.etree import ElementTree

import coal
import numpy as np

from hybridctl.checks import Array, instance
from hybridctl.errors import InputError
from hybridctl.files import file_or_text
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane, Surface
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.urdf import shapes_of

GROUND = Plane(point=(0, 0, 0), normal=(0, 0, 1))
_FOOT = ("sole", "toe", "foot", "feet", "ankle")
_NEAR = 0.01  # m
_DIGITS = 14  # of offsets in m, so that those that a URDF gives in decimals stay as they are


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
    model = robot.model
    read = shapes_of(model, text, purpose="collision", kinds=("sphere", "box"))
    root = ElementTree.fromstring(text)
    order = [link.attrib["name"] for link in root.findall("link")]
    shapes = [(model.frames[s.parentFrame].name, s) for s in read.geometryObjects]
    shapes.sort(key=lambda found: order.index(found[0]))
    bodies, ends = _ends(robot, root)
    feet = [foot for foot in map(_foot, bodies) if foot]
    places: list[tuple[str, str, tuple[float, ...], float]] = []
    for links in feet or [ends]:
        own = [(link, shape) for link, shape in shapes if link in links]
        if feet and not own:
            own = [(link, shape) for link, shape in shapes if _reaches(robot, shape, links[0])]
        foot = links[0] if feet else ""
        points = [
            (foot or link, link, *place) for link, s in own for place in _places(robot, s, link)
        ]
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


def _ends(robot: Robot, root: ElementTree.Element) -> tuple[list[list[str]], list[str]]:
    """The links of each moving body that carries no other, and all links that carry no other."""
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


def _reaches(robot: Robot, shape: Any, link: str) -> bool:
    """Whether a shape of the link's body holds the origin of the link, to 1 cm."""
    foot = robot.frame(link)
    if foot.joint != shape.parentJoint:
        return False
    at = shape.placement.actInv(foot.position)
    if isinstance(shape.geometry, coal.Sphere):
        return bool(np.linalg.norm(at) <= shape.geometry.radius + _NEAR)
    return bool(np.all(np.abs(at) <= shape.geometry.halfSide + _NEAR))


def _places(robot: Robot, shape: Any, link: str) -> Iterator[tuple[tuple[float, ...], float]]:
    """Points of a shape in the frame of its link, each with its radius."""
    centre = np.array(shape.placement.translation)
    if isinstance(shape.geometry, coal.Sphere):
        yield _offset(robot, centre, link), shape.geometry.radius
        return
    signs = np.array(list(product((-1, 1), repeat=3)))
    corners = centre + (signs * shape.geometry.halfSide) @ shape.placement.rotation.T
    upright = robot.poses(robot.neutral(), [shape.parentJoint])[0]
    heights = corners @ upright[2, :3]
    for i in np.sort(np.argsort(heights, kind="stable")[:4]):
        yield _offset(robot, corners[i], link), 0.0


def _offset(robot: Robot, place: Array, link: str) -> tuple[float, ...]:
    """Where a place in the frame of the link's joint is in that of the link."""
    frame = robot.frame(link)
    offset = np.round(frame.rotation.T @ (place - frame.position), _DIGITS)
    return tuple((offset + 0.0).tolist())  # no -0.0


def _line(contact: Contact) -> str:
    place = ", ".join(f"{value:.4g}" for value in contact.offset)
    kind = f"sphere of {contact.radius:.4g} m" if contact.radius else "point"
    return f"{contact.name}: {kind} at ({place}) m in {contact.frame}"
