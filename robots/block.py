"""A block in a vertical plane above a horizontal surface that it touches with two corners.

q = (x, z, pitch) of its centre; pitch turns about +y, so a positive one lowers the right corner
(+x). With high friction it rocks from corner to corner: `ROCKING`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridctl.robots.bodies import cuboid_inertia, free_body

from hybridctl.base.settings import NotNegative, Positive, Settings
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import contact_system

CORNERS = ("left", "right")


@dataclass(frozen=True)
class BlockParameters(Settings):
    """A solid block.

    Attributes:
        width: Width, m.
        height: Height, m.
        mass: Mass, kg.
        friction: Coefficient of friction of both corners.
        static_friction: Coefficient of static friction; None for that of sliding.
        restitution: Coefficient of restitution.
        gravity: Acceleration of free fall, m/s^2.
    """

    width: Positive = 0.2
    height: Positive = 0.1
    mass: Positive = 1.0
    friction: NotNegative = 0.3
    static_friction: float | None = None
    restitution: NotNegative = 0.0
    gravity: NotNegative = 9.81

    @property
    def pitch_inertia(self) -> float:
        """The moment of inertia in pitch about the centre, kg m^2."""
        return float(cuboid_inertia(self.mass, (self.width, self.width, self.height))[1])


ROCKING = BlockParameters(width=0.1, height=0.4, friction=5.0)


def robot(parameters: BlockParameters | None = None, *, actuated: bool = False) -> Robot:
    """The Pinocchio model, on a base that slides along x and z and turns about y.

    With `actuated` the input is a force along x and z at the centre and a torque about y.
    """
    p = parameters or BlockParameters()
    inertia = cuboid_inertia(p.mass, (p.width, p.width, p.height))
    return Robot.from_urdf(
        free_body("block", p.mass, inertia),
        root="sagittal",
        actuated=("root_x", "root_z", "root_pitch") if actuated else (),
        gravity=(0.0, 0.0, -p.gravity),
    )


def contacts(parameters: BlockParameters | None = None) -> tuple[Contact, ...]:
    """The lower corners against the surface z = 0."""
    p = parameters or BlockParameters()
    surface = Plane(point=(0.0, 0.0, 0.0), normal=(0.0, 0.0, 1.0))
    return tuple(
        Contact(
            name,
            "block",
            surface,
            offset=(side * p.width, 0.0, -0.5 * p.height),
            restitution=p.restitution,
            friction=p.friction,
            static_friction=p.static_friction,
        )
        for name, side in zip(CORNERS, (-0.5, 0.5), strict=True)
    )


def system(parameters: BlockParameters | None = None, *, actuated: bool = False) -> HybridSystem:
    """The hybrid system; modes are tuples of "open", "stick", "slip+", "slip-" per corner."""
    return contact_system(robot(parameters, actuated=actuated), contacts(parameters))
