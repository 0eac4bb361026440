"""A cube above a table that it touches with eight corners.

State: position of its centre, quaternion (x, y, z, w), linear and angular velocity in the frame
of the cube. The defaults are the cube of the ContactNets recordings (DAIRLab) with the friction
and restitution published for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from hybridctl.robots.bodies import free_body

from hybridctl.base.checks import check_number
from hybridctl.base.settings import NotNegative, Positive, Settings
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import contact_system

SIDES = (("back", "front"), ("right", "left"), ("bottom", "top"))  # along x, y, z
SIGNS = tuple(product((-1.0, 1.0), repeat=3))
CORNERS = tuple("-".join(names) for names in product(*SIDES))


@dataclass(frozen=True)
class CubeParameters(Settings):
    """A cube on a table.

    Attributes:
        half_width: Half of its width, m.
        mass: Mass, kg.
        inertia: Moment of inertia about each axis, kg m^2.
        friction: Coefficient of friction.
        restitution: Coefficient of restitution.
        gravity: Acceleration of free fall, m/s^2.
        restitution_threshold: Speed below which corners that hit do not rebound, m/s.
        rounding: Radius of the balls, inside the faces, that the corners are, m; friction is taken
            to act at their centres.
        table: Height of the table, m.
    """

    half_width: Positive = 0.0524
    mass: Positive = 0.37
    inertia: Positive = 0.00081
    friction: NotNegative = 0.18
    restitution: NotNegative = 0.125
    gravity: NotNegative = 9.81
    restitution_threshold: NotNegative = 0.0
    rounding: NotNegative = 0.0
    table: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rounding", self.rounding, at_most=0.9 * self.half_width)


def robot(parameters: CubeParameters | None = None, *, actuated: bool = False) -> Robot:
    """The Pinocchio model, on a floating base.

    With `actuated` the input is a force at the centre and a torque, in the frame of the cube.
    """
    p = parameters or CubeParameters()
    return Robot.from_urdf(
        free_body("cube", p.mass, (p.inertia,) * 3),
        root="floating",
        actuated=("root_joint",) if actuated else (),
        gravity=(0.0, 0.0, -p.gravity),
    )


def contacts(parameters: CubeParameters | None = None) -> tuple[Contact, ...]:
    """The centres of the corners, named by the faces they are at, above the table."""
    p = parameters or CubeParameters()
    table = Plane(point=(0.0, 0.0, p.table + p.rounding), normal=(0.0, 0.0, 1.0))
    reach = p.half_width - p.rounding
    return tuple(
        Contact(
            name,
            "cube",
            table,
            offset=tuple(reach * sign for sign in signs),
            restitution=p.restitution,
            friction=p.friction,
            restitution_threshold=p.restitution_threshold,
        )
        for name, signs in zip(CORNERS, SIGNS, strict=True)
    )


def system(parameters: CubeParameters | None = None, *, actuated: bool = False) -> HybridSystem:
    """The hybrid system; modes are tuples of "open", "stick", "slip" per corner."""
    return contact_system(robot(parameters, actuated=actuated), contacts(parameters))
