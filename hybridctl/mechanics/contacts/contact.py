"""Contacts: a point or sphere of one body that may touch a surface of another, or of the world."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridctl.base.checks import Array, check_number, check_vector, quote
from hybridctl.base.errors import InputError
from hybridctl.mechanics.contacts.stairs import PiecewiseSurface
from hybridctl.mechanics.contacts.surfaces import ByValue, Surface, Terrain

if TYPE_CHECKING:
    from hybridctl.mechanics.multibody.robot import Robot

WORLD = "universe"


@dataclass(frozen=True, eq=False)
class Contact(ByValue):
    """A point fixed in `frame`, at `offset` (m), against `surface`, which is fixed in `body`.

    With a `radius` (m) it is the centre of a sphere of the frame, which touches with the point that
    is nearest to the surface, and rolls where it sticks. It must be smaller than a bowl.
    frame and body are frame names of the robot; `body` "universe" is the world. `restitution`
    is Newton's coefficient e in [0, 1]: 0 plastic, 1 elastic; an approach slower than
    `restitution_threshold` (m/s) does not rebound, so that bounces end. `friction` is Coulomb's
    kinetic coefficient, for sliding and impacts; `static_friction` the one a sticking contact holds
    to, at least as large and by default equal. `tangential_restitution` in [0, 1] is the part of
    the sliding velocity that an impact reverses as far as friction can; see `impact`.

    Contacts of equal values are equal. Raises `InputError` for values out of range, for what is no
    surface, and for a body that would touch itself.
    """

    name: str
    frame: str
    surface: Surface
    body: str = WORLD
    offset: Any = (0.0, 0.0, 0.0)
    restitution: float = 0.0
    friction: float = 0.0
    static_friction: float | None = None
    restitution_threshold: float = 0.0
    radius: float = 0.0
    tangential_restitution: float = 0.0

    def __post_init__(self) -> None:
        for what in ("name", "frame", "body"):
            text = getattr(self, what)
            if not isinstance(text, str) or not text:
                raise InputError(f"{what} of a contact must be a name, got {quote(text)}")
        if isinstance(self.surface, type) or not isinstance(self.surface, Surface):
            raise InputError(
                f"surface of contact {self.name!r} must be a Surface, such as a Plane, Sphere or "
                f"Terrain, got {quote(self.surface)}"
            )
        if self.frame == self.body:
            raise InputError(
                f"contact {self.name!r} must join two bodies, but its point and its surface both "
                f"belong to {self.frame!r}"
            )
        friction = check_number("friction", self.friction, at_least=0.0)
        static = friction if self.static_friction is None else self.static_friction
        checked = {
            "offset": check_vector("offset", self.offset, 3),
            "restitution": check_number("restitution", self.restitution, at_least=0.0, at_most=1.0),
            "friction": friction,
            "static_friction": check_number("static_friction", static, at_least=friction),
            "restitution_threshold": check_number(
                "restitution_threshold", self.restitution_threshold, at_least=0.0
            ),
            "radius": check_number("radius", self.radius, at_least=0.0),
            "tangential_restitution": check_number(
                "tangential_restitution", self.tangential_restitution, at_least=0.0, at_most=1.0
            ),
        }
        if checked["tangential_restitution"] and not friction:
            raise InputError(
                f"tangential_restitution of contact {self.name!r} must be 0 without "
                f"friction, which reverses sliding velocities, got {self.tangential_restitution}"
            )
        if checked["radius"] and isinstance(self.surface, PiecewiseSurface | Terrain):
            kind = type(self.surface).__name__
            raise InputError(
                f"radius of contact {self.name!r} must be 0 on {kind}, whose function is no "
                f"distance everywhere, got {quote(self.radius)}"
            )
        for what, value in checked.items():
            object.__setattr__(self, what, value)

    @property
    def rough(self) -> bool:
        """Whether there is any friction."""
        return bool(self.static_friction)


class ContactPlace(NamedTuple):
    """The place of a contact: `point` (3,) in joint a, its surface in joint b, and its tangents.

    radius: of a sphere around the point, m, or 0. rotation (3, 3) and position (3,) place the
    surface; `directions` is the number of tangents, `axis` that of the plane of motion where there
    is one.
    """

    joint_a: int
    point: Array
    radius: float
    joint_b: int
    rotation: Array
    position: Array
    surface: Surface
    directions: int
    axis: Array | None


def checked_contacts(
    robot: Robot, contacts: Iterable[Contact], *, may_be_none: bool = False
) -> tuple[Contact, ...]:
    """The contacts, which have different names and join different bodies of the robot.

    may_be_none: whether there may be no contact at all.

    Raises `InputError` for anything else, `UnknownNameError` for a frame that the robot lacks.
    """
    if not isinstance(contacts, Iterable) or isinstance(contacts, Mapping):
        raise InputError(f"contacts must be a list of contacts, got {quote(contacts)}")
    found = tuple(contacts)
    for i, contact in enumerate(found):
        if not isinstance(contact, Contact):
            raise InputError(f"contacts[{i}] must be a Contact, got {quote(contact)}")
        point = robot.frame(contact.frame, f"contact {contact.name!r}: frame")
        surface = robot.frame(contact.body, f"contact {contact.name!r}: frame")
        if point.joint == surface.joint:
            raise InputError(
                f"contact {contact.name!r} must join two bodies that move against each other, but "
                f"its point in {contact.frame!r} and its surface in {contact.body!r} belong to one"
            )
    if not found and not may_be_none:
        raise InputError("contacts must have at least one contact")
    check_names(found)
    return found


def check_names(contacts: Iterable[Any]) -> None:
    """Raise `InputError` for contacts of which two have one name."""
    names = [contact.name for contact in contacts]
    if len(set(names)) != len(names):
        raise InputError(f"contact names must differ, got {names}")
