"""A regular polygon in a vertical plane that tumbles on the corners it touches the ground with.

q = (x, z, pitch) of its centre; pitch turns about +y, from +z towards +x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from hybridctl.robots.bodies import free_body

from hybridctl.base.settings import Meta, NotNegative, Positive, Settings
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import contact_system


@dataclass(frozen=True)
class PolygonParameters(Settings):
    """A solid regular polygon.

    Attributes:
        corners: Number of corners.
        radius: Distance of the corners from the centre, m.
        mass: Mass, kg.
        friction: Coefficient of friction of all corners.
        restitution: Coefficient of restitution.
        restitution_threshold: Normal speed, m/s, below which corners do not rebound.
        gravity: Acceleration of free fall, m/s^2.
    """

    corners: Annotated[int, Meta(ge=3, le=12)] = 5
    radius: Positive = 0.1
    mass: Positive = 1.0
    friction: NotNegative = 0.5
    restitution: NotNegative = 0.2
    restitution_threshold: NotNegative = 0.05
    gravity: NotNegative = 9.81

    @property
    def pitch_inertia(self) -> float:
        """The moment of inertia in pitch about the centre, kg m^2."""
        return self.mass * self.radius**2 / 6.0 * (2.0 + float(np.cos(2.0 * np.pi / self.corners)))


def robot(parameters: PolygonParameters | None = None, *, actuated: bool = False) -> Robot:
    """The Pinocchio model, on a base that slides along x and z and turns about y.

    With `actuated` the input is a force along x and z at the centre and a torque about y.
    """
    p = parameters or PolygonParameters()
    inertia = (p.pitch_inertia, p.pitch_inertia, p.pitch_inertia)  # in the plane that of y counts
    return Robot.from_urdf(
        free_body("polygon", p.mass, inertia),
        root="sagittal",
        actuated=("root_x", "root_z", "root_pitch") if actuated else (),
        gravity=(0.0, 0.0, -p.gravity),
    )


def contacts(parameters: PolygonParameters | None = None) -> tuple[Contact, ...]:
    """The corners against the surface z = 0; at pitch 0 the first lies on the x axis of the body.

    They are numbered from +x towards +z.
    """
    p = parameters or PolygonParameters()
    surface = Plane(point=(0.0, 0.0, 0.0), normal=(0.0, 0.0, 1.0))
    angles = 2.0 * np.pi * np.arange(p.corners) / p.corners
    return tuple(
        Contact(
            f"corner {k}",
            "polygon",
            surface,
            offset=(p.radius * np.cos(angle), 0.0, p.radius * np.sin(angle)),
            friction=p.friction,
            restitution=p.restitution,
            restitution_threshold=p.restitution_threshold,
        )
        for k, angle in enumerate(angles.tolist())
    )


def system(parameters: PolygonParameters | None = None, *, actuated: bool = False) -> HybridSystem:
    """The hybrid system; modes are tuples of "open", "stick", "slip+", "slip-" per corner."""
    return contact_system(robot(parameters, actuated=actuated), contacts(parameters))
