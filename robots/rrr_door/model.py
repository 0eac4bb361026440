"""Parameters of the arm and the door, and the model made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.settings import NotNegative, Positive, Settings, UnitInterval
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import contact_system

JOINTS = ("arm_shoulder", "arm_elbow", "arm_wrist", "door_hinge")
CORNERS = ("corner_1", "corner_2")


@dataclass(frozen=True)
class DoorParameters(Settings):
    """Geometry in m, masses in kg, moments of inertia in kg m^2 about z; thesis symbols beside.

    The moment of inertia of each arm link is about its own centre of mass, that of the door
    about the hinge.
    """

    upper_arm_length: Positive = 0.4605  # L_1
    forearm_length: Positive = 0.4503  # L_2
    foot_length: Positive = 0.06244  # L_3
    upper_arm_mass: Positive = 6.798  # m_1
    forearm_mass: Positive = 3.211  # m_2
    foot_mass: Positive = 3.864  # m_3
    upper_arm_inertia: Positive = 0.12013  # I_1
    forearm_inertia: Positive = 0.054258  # I_2
    foot_inertia: Positive = 0.0102  # I_3
    foot_center_behind: float = 0.03307  # c_3x: centre of mass behind the end of the foot
    foot_center_right: float = -0.0063285  # c_3y: towards -y of the foot frame
    corner_1_offset: float = 0.04603  # d_3: corner 1 towards +y of the foot frame
    foot_width: Positive = 0.1985  # w_3: corner 2 is this far from corner 1 towards -y
    door_thickness: NotNegative = 0.0474  # w_4
    hinge_left: float = 0.05357  # Delta x: hinge at x = -Delta x
    hinge_ahead: float = 0.3037  # Delta y: hinge at y = +Delta y
    door_length: Positive = 1.0  # for drawing only
    door_inertia: Positive = 1.9774  # \bar I_4
    hinge_stiffness: NotNegative = 3.559  # c_k, N m/rad
    hinge_damping: NotNegative = 15.84  # c_d, N m s/rad
    restitution: UnitInterval = 0.0
    friction: NotNegative = 0.0

    @property
    def hinge(self) -> tuple[float, float]:
        """Position of the hinge in the world, m."""
        return -self.hinge_left, self.hinge_ahead

    @property
    def corner_offsets(self) -> tuple[float, float]:
        """The places of the corners along y of the foot frame, m."""
        return self.corner_1_offset, self.corner_1_offset - self.foot_width


def robot(parameters: DoorParameters | None = None) -> Robot:
    """The Pinocchio model, without gravity."""
    p = parameters or DoorParameters()
    return Robot.from_urdf(
        urdf(p),
        actuated=JOINTS[:3],
        stiffness={"door_hinge": p.hinge_stiffness},
        damping={"door_hinge": p.hinge_damping},
        gravity=(0.0, 0.0, 0.0),
    )


def contacts(parameters: DoorParameters | None = None) -> tuple[Contact, Contact]:
    """The two corners of the foot against the face of the door, [RS] (5.10)-(5.13)."""
    p = parameters or DoorParameters()
    face = Plane(point=(0.0, -0.5 * p.door_thickness, 0.0), normal=(0.0, -1.0, 0.0))
    return tuple(  # type: ignore[return-value]
        Contact(
            name,
            frame=name,
            surface=face,
            body="door",
            restitution=p.restitution,
            friction=p.friction,
        )
        for name in CORNERS
    )


def system(parameters: DoorParameters | None = None) -> HybridSystem:
    """The hybrid system; its modes are tuples of "open" or "closed" per corner.

    With friction "stick", "slip+" and "slip-" stand for "closed".
    """
    return contact_system(robot(parameters), contacts(parameters))


def urdf(parameters: DoorParameters | None = None) -> str:
    """The model as URDF text; spring and restitution are not part of that format."""
    p = parameters or DoorParameters()
    lengths = (p.upper_arm_length, p.forearm_length, p.foot_length)
    links = [
        _link("upper_arm", p.upper_arm_mass, (0.5 * lengths[0], 0.0), p.upper_arm_inertia),
        _link("forearm", p.forearm_mass, (0.5 * lengths[1], 0.0), p.forearm_inertia),
        _link(
            "foot",
            p.foot_mass,
            (p.foot_length - p.foot_center_behind, -p.foot_center_right),
            p.foot_inertia,
        ),
        # A door of length a whose mass is spread evenly has inertia m a^2 / 3 about its hinge.
        _link(
            "door",
            3.0 * p.door_inertia / p.door_length**2,
            (0.5 * p.door_length, 0.0),
            0.25 * p.door_inertia,
        ),
        *(f'  <link name="{corner}"/>' for corner in CORNERS),
    ]
    joints = [
        _revolute("arm_shoulder", "base", "upper_arm", (0.0, 0.0)),
        _revolute("arm_elbow", "upper_arm", "forearm", (lengths[0], 0.0)),
        _revolute("arm_wrist", "forearm", "foot", (lengths[1], 0.0)),
        _revolute("door_hinge", "base", "door", p.hinge, p.hinge_damping),
        *(
            _write_fixed_joint(f"{corner}_mount", "foot", corner, (p.foot_length, y))
            for corner, y in zip(CORNERS, p.corner_offsets, strict=True)
        ),
    ]
    body = "\n".join(['  <link name="base"/>', *links, *joints])
    return f'<?xml version="1.0"?>\n<robot name="rrr_door">\n{body}\n</robot>\n'


def _link(name: str, mass: float, center: tuple[float, float], inertia: float) -> str:
    """A body that is flat in the plane: its moments about x and y add up to the one about z."""
    flat = f'ixx="{0.5 * inertia:.17g}" iyy="{0.5 * inertia:.17g}" izz="{inertia:.17g}"'
    return (
        f'  <link name="{name}">\n    <inertial>\n'
        f'      <origin xyz="{center[0]:.17g} {center[1]:.17g} 0"/>\n'
        f'      <mass value="{mass:.17g}"/>\n'
        f'      <inertia {flat} ixy="0" ixz="0" iyz="0"/>\n'
        "    </inertial>\n  </link>"
    )


def _revolute(
    name: str, parent: str, child: str, origin: tuple[float, float], damping: float = 0.0
) -> str:
    limit = f'lower="{-np.pi:.17g}" upper="{np.pi:.17g}" effort="200" velocity="20"'
    return (
        f'  <joint name="{name}" type="revolute">\n'
        f'    <parent link="{parent}"/>\n    <child link="{child}"/>\n'
        f'    <origin xyz="{origin[0]:.17g} {origin[1]:.17g} 0"/>\n    <axis xyz="0 0 1"/>\n'
        f'    <limit {limit}/>\n    <dynamics damping="{damping:.17g}"/>\n  </joint>'
    )


def _write_fixed_joint(name: str, parent: str, child: str, origin: tuple[float, float]) -> str:
    return (
        f'  <joint name="{name}" type="fixed">\n'
        f'    <parent link="{parent}"/>\n    <child link="{child}"/>\n'
        f'    <origin xyz="{origin[0]:.17g} {origin[1]:.17g} 0"/>\n  </joint>'
    )
