"""A ball in a vertical plane that falls on a slope; the example of the saltation tutorial.

q = (x, z) of its centre, a point mass that touches with its centre, as in the tutorial, where
the slope is sin(theta) x + cos(theta) z >= 0. Both coordinates are actuated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.settings import Positive, Settings
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import contact_system

CONTACT = "slope"


@dataclass(frozen=True)
class BallParameters(Settings):
    """A point mass above a slope.

    Attributes:
        mass: Mass, kg.
        slope: Inclination of the slope, rad, downwards along +x.
        gravity: Acceleration of free fall, m/s^2.
        friction: Coefficient of friction.
        restitution: Coefficient of restitution.
    """

    mass: Positive = 1.0
    slope: float = 0.3
    gravity: float = 9.81
    friction: float = 0.0
    restitution: float = 0.0


def urdf(parameters: BallParameters | None = None) -> str:
    """Two prismatic joints, x and z."""
    p = parameters or BallParameters()
    inertia = '<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/>'
    limit = '<limit lower="-1000" upper="1000" effort="1000" velocity="1000"/>'
    return f"""<?xml version="1.0"?>
<robot name="ball">
  <link name="world"/>
  <link name="carriage"/>
  <link name="ball"><inertial><mass value="{p.mass:.17g}"/>{inertia}</inertial></link>
  <joint name="x" type="prismatic"><parent link="world"/><child link="carriage"/>
    <axis xyz="1 0 0"/>{limit}</joint>
  <joint name="z" type="prismatic"><parent link="carriage"/><child link="ball"/>
    <axis xyz="0 0 1"/>{limit}</joint>
</robot>
"""


def robot(parameters: BallParameters | None = None) -> Robot:
    """The Pinocchio model."""
    p = parameters or BallParameters()
    return Robot.from_urdf(urdf(p), gravity=(0.0, 0.0, -p.gravity))


def contacts(parameters: BallParameters | None = None) -> tuple[Contact]:
    """The ball against the slope."""
    p = parameters or BallParameters()
    normal = (np.sin(p.slope), 0.0, np.cos(p.slope))
    slope = Plane(point=(0.0, 0.0, 0.0), normal=normal)
    touch = Contact(CONTACT, "ball", slope, friction=p.friction, restitution=p.restitution)
    return (touch,)


def system(parameters: BallParameters | None = None) -> HybridSystem:
    """The hybrid system; its modes are tuples of one contact mode."""
    return contact_system(robot(parameters), contacts(parameters))
