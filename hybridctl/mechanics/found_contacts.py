"""Contacts of a robot's feet with the ground, guessed from the collision shapes of its URDF."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from xml.etree import ElementTree

import numpy as np

from hybridctl.checks import instance, vector
from hybridctl.errors import InputError
from hybridctl.files import file_or_text
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.robot import Robot
from hybridctl.mechanics.shapes import Shape, shapes_of
from hybridctl.mechanics.surfaces import Plane, Surface

GROUND = Plane(point=(0, 0, 0), normal=(0, 0, 1))
_FOOT = re.compile("foot|feet|toe|sole|ankle", re.IGNORECASE)


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

    Feet are the links at the ends of its chains whose names say so (foot, toe, sole, ankle); of a
    robot without such names all links at ends that have collision spheres or boxes. A sphere makes
    a round contact, a box one at each of its four lowest corners, with the joints at zero; a foot
    with neither makes a point at its origin. Print the result to see what was taken, and leave
    out or replace what does not fit.

    friction, restitution: of all of them. Raises `InputError` for a robot that was not built from
    a URDF, and where nothing is found.
    """
    source = instance("robot", robot, Robot).source
    if source is None:
        raise InputError("robot must be built from a URDF, which says how its links collide")
    text = file_or_text("urdf", source)
    ends = [name for name in _ends(text) if name in robot.link_names]
    ends = [name for name in ends if robot.frame(name).joint != 0]
    shapes = shapes_of(text, purpose="collision", kinds=("sphere", "box"))
    feet = [name for name in ends if _FOOT.search(name)]
    found: list[Contact] = []
    for link in feet or ends:
        own = [shape for shape in shapes if shape.link == link]
        places = [place for shape in own for place in _places(robot, shape)]
        if not places and feet:
            places = [((0.0, 0.0, 0.0), 0.0)]
        for i, (offset, radius) in enumerate(places, 1):
            name = link if len(places) == 1 else f"{link} {i}"
            found.append(
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
    if not found:
        raise InputError(
            "robot must have links at the ends of its chains that are called foot, toe, sole or "
            f"ankle, or that have collision spheres or boxes, but these are {ends}: name its "
            "contacts by hand"
        )
    return FoundContacts(found)


def _ends(urdf: str) -> list[str]:
    """The links that carry no other, in the order of the file."""
    root = ElementTree.fromstring(urdf)
    parents = {parent.get("link") for parent in root.findall("joint/parent")}
    return [link.attrib["name"] for link in root.findall("link") if link.get("name") not in parents]


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
