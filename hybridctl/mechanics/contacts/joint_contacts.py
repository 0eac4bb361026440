"""Contacts of joints: the stops at position limits, and the dry friction of a joint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from hybridctl.base.checks import Array, check_mapping, check_number, quote
from hybridctl.base.errors import InputError
from hybridctl.mechanics.contacts.contact import Contact

if TYPE_CHECKING:
    from hybridctl.mechanics.multibody.robot import Robot

Side = Literal["lower", "upper"]
JointStops: TypeAlias = bool | float | Mapping[str, float]
"""Which joints stop at their limits, see `joint_contacts`."""


class _OnJoint:
    """What stops and dry friction have in common: a joint, and no rebound along tangents."""

    joint: str
    tangential_restitution = 0.0
    restitution_threshold = 0.0

    @property
    def frame(self) -> str:
        """Name of the joint, for tables of contacts."""
        return self.joint


@dataclass(frozen=True)
class JointStop(_OnJoint):
    """A unilateral contact that stops a joint of one degree of freedom at a position limit.

    Its gap is the distance of the joint's coordinate from the limit, positive between the limits.
    Its normal force pushes away from the limit: it is `sign` times the torque in N m, or the force
    in N, along the joint.

    Attributes:
        joint: Name of the joint.
        side: Which limit it is.
        limit: Position where the joint stops, rad or m.
        turns: Whether the coordinate is an angle in rad, otherwise it is a length in m.
        restitution: Newton's coefficient e in [0, 1].
    """

    joint: str
    side: Side
    limit: float
    turns: bool
    restitution: float = 0.0
    friction = 0.0
    static_friction = 0.0
    rough = False
    load = 0.0

    @property
    def name(self) -> str:
        """Name of the contact, such as "elbow upper stop"."""
        return f"{self.joint} {self.side} stop"

    @property
    def sign(self) -> float:
        """Derivative of the gap by the coordinate: 1 at a lower limit, -1 at an upper one."""
        return 1.0 if self.side == "lower" else -1.0


@dataclass(frozen=True)
class JointFriction(_OnJoint):
    """The dry friction of a joint with one velocity, which may turn without end.

    The joint sticks while the torque that holds it is at most `load`. Where it slips, friction is a
    torque of that size against its velocity. It is a contact with Coulomb friction of coefficient 1
    that never opens, because it is pressed with a constant force of size `load`. As that force is
    bounded, it takes no part in impacts.

    Attributes:
        joint: Name of the joint.
        load: Largest torque in N m, or force in N, of the friction; positive.
        turns: Whether the joint turns, otherwise it slides.
    """

    joint: str
    load: float
    turns: bool
    restitution = 0.0
    friction = 1.0
    static_friction = 1.0
    rough = True

    @property
    def name(self) -> str:
        """Name of the contact, such as "elbow friction"."""
        return f"{self.joint} friction"


JointContact: TypeAlias = JointStop | JointFriction
AnyContact: TypeAlias = Contact | JointContact


class JointPlace(NamedTuple):
    """The constants of a contact of a joint, from which its rows follow; see `joint_rows`.

    Attributes:
        coordinate: Index in q of the coordinate of a stopped joint; 0 for dry friction.
        velocity: Index in v of the velocity of the joint.
        sign: Derivative of the gap by the coordinate, 1 or -1; 0 for dry friction.
        limit: Position of the stop (), rad or m; 0 for dry friction.
        load: Largest torque or force of dry friction (), N m or N; 0 for a stop.
    """

    coordinate: int
    velocity: int
    sign: float
    limit: Array
    load: Array

    @property
    def rubs(self) -> bool:
        """Whether this is dry friction, which has a tangent row, otherwise it is a stop."""
        return self.sign == 0.0


def gap_unit(contact: AnyContact) -> str:
    """Return the unit of the gap of a contact; dry friction, whose gap is always 0, has "m"."""
    return "rad" if isinstance(contact, JointStop) and contact.turns else "m"


def force_unit(contact: AnyContact) -> str:
    """Return the unit of the normal force of a contact, or of the friction of a joint."""
    return "N m" if isinstance(contact, JointStop | JointFriction) and contact.turns else "N"


def joint_contacts(
    robot: Robot, joint_stops: JointStops, joint_friction: bool
) -> tuple[JointContact, ...]:
    """Return the stops of a robot and then its joints with dry friction, in the order of joints.

    Args:
        robot: The robot, with `limits` and `friction`.
        joint_stops: Whether joints stop at their limits; a number is the restitution of all
            stops, and a mapping has that of each joint that stops. True stands for 0.
        joint_friction: Whether the dry friction of the joints is modelled.

    Raises:
        InputError: joint_stops is something else, or asks for stops of a joint without limits.
        UnknownNameError: A name in joint_stops is no joint.
    """
    stops = tuple(_list_stops(robot, joint_stops))
    if not joint_friction or not robot.friction.any():
        return stops
    # Joints that mimic have no velocity: their friction acts on the joint that they follow.
    first = {n: robot.velocities(n)[0] for n in robot.joint_names if n not in robot.mimics}
    rates = robot.labels.velocities
    rubbing = [
        JointFriction(name, float(robot.friction[v]), "rad" in rates[v])
        for name, v in first.items()
        if robot.friction[v] > 0.0
    ]
    return (*stops, *rubbing)


def _list_stops(robot: Robot, joint_stops: JointStops) -> Iterator[JointStop]:
    """Yield the stops of the joints that are asked for, the lower one of each joint first."""
    for name, restitution in _read_restitutions(robot, joint_stops).items():
        limit = robot.limits[name]
        sides: Sequence[tuple[Side, float]] = (("lower", limit.lower), ("upper", limit.upper))
        for side, position in sides:
            if math.isfinite(position):
                yield JointStop(name, side, position, limit.turns, restitution)


def _read_restitutions(robot: Robot, joint_stops: JointStops) -> dict[str, float]:
    """Return the restitution of the stops of each joint that has any, by name.

    Args:
        robot: Robot with its joint limits.
        joint_stops: As `contact_system` takes it: for all joints, or by the joint's name. For all
            joints stands for those with limits and one coordinate (`Robot.limits`); those of which
            no limit is finite get no stop.

    Raises:
        InputError: It is of another kind, a restitution is outside [0, 1], or a joint has no
            limits.
        UnknownNameError: The robot has no joint of a name.
    """
    if isinstance(joint_stops, Mapping):
        found = {}
        for name, value in check_mapping("joint_stops", joint_stops, "names of joints").items():
            robot.joints.single("joint_stops", name)
            limit = robot.limits[name]
            if not math.isfinite(limit.lower) and not math.isfinite(limit.upper):
                raise InputError(f"joint_stops: joint {name!r} has no limits to stop at")
            found[name] = check_number(f"joint_stops[{name!r}]", value, at_least=0.0, at_most=1.0)
        return found
    if isinstance(joint_stops, bool):
        return dict.fromkeys(robot.limits, 0.0) if joint_stops else {}
    if not isinstance(joint_stops, float | int):
        raise InputError(
            "joint_stops must be True, False, a restitution in [0, 1] or a mapping of joint names "
            f"to one, got {quote(joint_stops)}"
        )
    restitution = check_number("joint_stops", joint_stops, at_least=0.0, at_most=1.0)
    return dict.fromkeys(robot.limits, restitution)
