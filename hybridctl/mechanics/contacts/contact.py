"""Contacts: a point or sphere of one body that may touch a surface of another, or of the world."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridctl.base.checks import Array, check_number, check_vector, quote
from hybridctl.base.errors import InputError
from hybridctl.mechanics.contacts.stairs import PiecewiseSurface
from hybridctl.mechanics.contacts.surfaces import ByValue, Plane, Sphere, Surface, Terrain

if TYPE_CHECKING:
    from hybridctl.mechanics.multibody.robot import Robot

WORLD = "universe"
"""Name of the world among the frames of a robot, as Pinocchio has it."""


@dataclass(frozen=True, eq=False)
class Contact(ByValue):
    """A point of one body, or a sphere around it, that may touch a surface of another body.

    A sphere touches with the point that is nearest to the surface, and rolls where it sticks. It
    must be smaller than a bowl that it lies in. Contacts of equal values are equal.

    Attributes:
        name: Name of the contact.
        frame: Frame of the robot in which the point is fixed.
        surface: Surface that it may touch, fixed in `body`.
        body: Frame of the robot that carries the surface; "universe" is the world.
        offset: Position of the point (3,) in `frame`, m.
        restitution: Newton's coefficient e in [0, 1]: 0 is plastic, 1 elastic.
        friction: Coulomb's kinetic coefficient, for sliding and for impacts.
        static_friction: Coefficient up to which a contact sticks, at least `friction`. An argument
            of None stands for the same, and the attribute is then that.
        restitution_threshold: Speed of approach in m/s below which a contact does not rebound, so
            that bounces end.
        radius: Radius of the sphere around the point, m; 0 for the point itself.
        tangential_restitution: Part in [0, 1] of the sliding velocity that an impact reverses, as
            far as friction can; see `impact`.

    Raises:
        InputError: A name is empty, a value is out of range, `surface` is no surface, a body would
            touch itself, there is tangential restitution without kinetic friction, or a radius on a
            surface whose function is no distance (`PiecewiseSurface`, `Terrain`) or in a bowl that
            is not wider.
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
        # The usual surfaces come first: to look for all methods of a `Surface` takes 20 us.
        if not isinstance(self.surface, Plane | Sphere | Terrain) and (
            isinstance(self.surface, type) or not isinstance(self.surface, Surface)
        ):
            raise InputError(
                f"surface of contact {self.name!r} must be a Surface, such as a Plane, Sphere or "
                f"Terrain, got {quote(self.surface)}"
            )
        if self.frame == self.body:
            raise InputError(
                f"contact {self.name!r} must join two bodies, but its point and its surface both "
                f"belong to {self.frame!r}"
            )
        radius = check_number("radius", self.radius, at_least=0.0)
        checked = {"offset": check_vector("offset", self.offset, 3), "radius": radius}
        for what, value in checked.items():
            object.__setattr__(self, what, value)
        self._check_coefficients()
        if radius and isinstance(self.surface, PiecewiseSurface | Terrain):
            kind = type(self.surface).__name__
            raise InputError(
                f"radius of contact {self.name!r} must be 0 on {kind}, whose function is no "
                f"distance everywhere, got {quote(self.radius)}"
            )
        bowl = self.surface if isinstance(self.surface, Sphere) and self.surface.inside else None
        if bowl is not None and radius >= bowl.radius:
            raise InputError(
                f"radius of contact {self.name!r} must be below that of its bowl, {bowl.radius:g} "
                f"m, got {radius:g} m"
            )

    def _check_coefficients(self) -> None:
        """Set the coefficients to floats.

        Raises:
            InputError: One is out of its range.
        """
        friction = check_number("friction", self.friction, at_least=0.0)
        static = friction if self.static_friction is None else self.static_friction
        checked = {
            "restitution": check_number("restitution", self.restitution, at_least=0.0, at_most=1.0),
            "friction": friction,
            "static_friction": check_number("static_friction", static, at_least=friction),
            "restitution_threshold": check_number(
                "restitution_threshold", self.restitution_threshold, at_least=0.0
            ),
            "tangential_restitution": check_number(
                "tangential_restitution", self.tangential_restitution, at_least=0.0, at_most=1.0
            ),
        }
        if checked["tangential_restitution"] and not friction:
            raise InputError(
                f"tangential_restitution of contact {self.name!r} must be 0 without "
                f"friction, which reverses sliding velocities, got {self.tangential_restitution}"
            )
        self.__dict__.update(checked)  # as the class is frozen

    def with_coefficients(self, coefficients: Mapping[str, float]) -> Contact:
        """Return this contact with other coefficients. Only coefficients are checked.

        Args:
            coefficients: New values of coefficients by the names of the fields. Others stay, also a
                static friction that was not given at first: it is no longer None.

        Raises:
            InputError: One is out of its range.
        """
        other: Contact = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **coefficients)
        other._check_coefficients()
        return other

    @property
    def rough(self) -> bool:
        """Whether static friction is above 0, so that there are tangents; kinetic may be 0."""
        return bool(self.static_friction)

    def has_lengths_of(self, other: Contact) -> bool:
        """Return whether this contact has the offset and the radius of another one."""
        is_same = self.offset is other.offset or bool((self.offset == other.offset).all())
        return is_same and self.radius == other.radius


class ContactPlace(NamedTuple):
    """The constants of a contact, from which its motion follows.

    Attributes:
        joint_a: Index of the joint that moves the body with the point; 0 for the world.
        point: Point (3,) in the frame of joint a, m.
        radius: Radius of the sphere around the point, m; 0 for the point itself.
        joint_b: Index of the joint that moves the body with the surface; 0 for the world.
        rotation: Orientation (3, 3) of the surface in the frame of joint b.
        position: Origin (3,) of the surface in the frame of joint b, m.
        surface: The surface.
        directions: Number of tangents: 0 without friction, 1 in a plane of motion, else 2.
        axis: Axis (3,) of the plane of motion in the frame of the surface; None in space.
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


def check_contacts(
    robot: Robot, contacts: Iterable[Contact], *, may_be_none: bool = False
) -> tuple[Contact, ...]:
    """Return contacts after checking that they join different bodies under different names.

    Args:
        robot: The robot.
        contacts: The contacts, each with the name of its frame and body.
        may_be_none: Whether there may be no contact at all.

    Raises:
        InputError: `contacts` is a mapping, no iterable or empty, something in it is no contact,
            two have one name, or one joins a body with itself.
        UnknownNameError: The robot has no such frame.
    """
    if not isinstance(contacts, Iterable) or isinstance(contacts, Mapping):
        raise InputError(f"contacts must be a list of contacts, got {quote(contacts)}")
    checked = tuple(contacts)
    for i, contact in enumerate(checked):
        if not isinstance(contact, Contact):
            raise InputError(f"contacts[{i}] must be a Contact, got {quote(contact)}")
        point = robot.frame(contact.frame, f"contact {contact.name!r}: frame")
        surface = robot.frame(contact.body, f"contact {contact.name!r}: body")
        if point.joint == surface.joint:
            raise InputError(
                f"contact {contact.name!r} must join two bodies that move against each other, but "
                f"its point in {contact.frame!r} and its surface in {contact.body!r} belong to one"
            )
    if not checked and not may_be_none:
        raise InputError("contacts must have at least one contact")
    check_names(checked)
    return checked


def check_names(contacts: Iterable[Any]) -> None:
    """Check that contacts have different names.

    Raises:
        InputError: Two have the same name.
    """
    names = [contact.name for contact in contacts]
    if len(set(names)) != len(names):
        raise InputError(f"contact names must differ, got {names}")
