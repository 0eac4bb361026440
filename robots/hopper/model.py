"""The leg of the Open Dynamic Robot Initiative on its test stand, and the ground below it.

The URDF is that of open-dynamic-robot-initiative/robot_properties_teststand (BSD 3-Clause, see
LICENSE), without meshes. q = (height of the hip in m, hip, knee in rad); joints turn about +y, and
the leg hangs straight down at 0. All are actuated: the input is a force on the rail in N, upwards
positive, and the torques of hip and knee in N m.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridctl.base.settings import NotNegative, Positive, Settings
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, contact_system

JOINTS = ("joint_z", "HFE", "KFE")
LINK = 0.16  # m, of upper leg and shank


@dataclass(frozen=True)
class HopperParameters(Settings):
    """Damping of rail (N s/m) and joints (N m s/rad), and the foot: radius in m, friction."""

    rail_damping: NotNegative = 0.0
    joint_damping: NotNegative = 0.0
    radius: Positive = 0.017
    friction: NotNegative = 0.3


def robot(parameters: HopperParameters | None = None) -> Robot:
    """The leg on its rail, every joint actuated."""
    p = parameters or HopperParameters()
    damping = dict(zip(JOINTS, (p.rail_damping, p.joint_damping, p.joint_damping), strict=True))
    text = Path(__file__).with_name("teststand.urdf").read_text(encoding="utf-8")
    return Robot.from_urdf(text, root="fixed", actuated=JOINTS, damping=damping)


def contacts(parameters: HopperParameters | None = None) -> tuple[Contact, ...]:
    """The ball of the foot on the plane z = 0, with plastic impacts."""
    p = parameters or HopperParameters()
    ground = Plane(point=(0.0, 0.0, 0.0), normal=(0.0, 0.0, 1.0))
    return (Contact("foot", "contact", ground, friction=p.friction, radius=p.radius),)


def system(parameters: HopperParameters | None = None) -> ContactSystem:
    """The hybrid system of the leg above the ground."""
    return contact_system(robot(parameters), contacts(parameters))
