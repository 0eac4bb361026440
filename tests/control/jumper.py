"""Jumpers in a vertical plane: a trunk on legs of two links each, a monoped or a quadruped.

The trunk is a box on a base that moves in the sagittal plane. Each leg has a hip below the trunk
and a knee, motors at both, and a point foot; a pair of legs that move alike is one leg. Angles in
rad: a hip at 0 has its thigh straight down and is positive with the leg behind, a knee is the angle
between thigh and shank. State x = (q, v), q = (root_x, root_z, root_pitch, hip and knee of each
leg); inputs are the torques of hips and knees in N m.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hybridctl.robots.bodies import cuboid_inertia

from hybridctl.checks import Array
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.passive import Rotor
from hybridctl.mechanics.robot import Robot
from hybridctl.mechanics.surfaces import Plane, Surface
from hybridctl.mechanics.system import ContactSystem, contact_system

MONOPED = {"foot": 0.0}  # legs, and where their hips are along the trunk, m
QUADRUPED = {"hind": -0.2, "fore": 0.2}
LINK = 0.2  # of thighs and shanks, m
GROUND = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
_TRUNK, _THIGH, _SHANK = 8.0, 1.2, 0.4  # kg


def system(
    legs: Mapping[str, float] = QUADRUPED,
    *,
    friction: float = 0.7,
    ground: Surface = GROUND,
    grounds: Mapping[str, Surface] | None = None,
    rotors: float = 0.0,
) -> ContactSystem:
    """A jumper and its ground, with one contact for each leg, of its name; impacts are plastic.

    grounds: those of some legs, instead of `ground`. rotors: inertia of a motor's, as its joint
    feels it, kg m^2.
    """
    own = {} if grounds is None else grounds
    contacts = [Contact(n, f"{n}_foot", own.get(n, ground), friction=friction) for n in legs]
    return contact_system(robot(legs, rotors), contacts)


def robot(legs: Mapping[str, float] = QUADRUPED, rotors: float = 0.0) -> Robot:
    """The jumper alone."""
    parts = [_link("trunk", _TRUNK, cuboid_inertia(_TRUNK, (0.45, 0.2, 0.12)), 0.0)]
    for name, along in legs.items():
        parts += [_leg(name, along)]
    text = f'<?xml version="1.0"?><robot name="jumper">{"".join(parts)}</robot>'
    turning = {f"{name}_{joint}": Rotor(rotors) for name in legs for joint in ("hip", "knee")}
    return Robot.from_urdf(text, root="sagittal", rotors=turning)


def standing(
    legs: Mapping[str, float] = QUADRUPED,
    *,
    x: float = 0.0,
    height: float = 0.32,
    lifted: float = 0.0,
) -> Array:
    """The state at rest with feet below their hips, these `height` above them, m.

    x: of the trunk, m. lifted: by how much all of it is moved up, m.
    """
    thigh = float(np.arccos(height / (2.0 * LINK)))
    joints = [thigh, -2.0 * thigh] * len(legs)
    return np.concatenate([[x, height + lifted, 0.0], joints, np.zeros(3 + len(joints))])


def _leg(name: str, along: float) -> str:
    rod = LINK**2 / 12.0
    return (
        _link(f"{name}_thigh", _THIGH, (_THIGH * rod,) * 3, -0.5 * LINK)
        + _link(f"{name}_shank", _SHANK, (_SHANK * rod,) * 3, -0.5 * LINK)
        + f'<link name="{name}_foot"/>'
        + _joint(f"{name}_hip", "trunk", f"{name}_thigh", along, 0.0)
        + _joint(f"{name}_knee", f"{name}_thigh", f"{name}_shank", 0.0, -LINK)
        + f'<joint name="{name}_ankle" type="fixed"><parent link="{name}_shank"/>'
        f'<child link="{name}_foot"/><origin xyz="0 0 {-LINK}"/></joint>'
    )


def _link(name: str, mass: float, inertia: tuple[float, ...], centre: float) -> str:
    x, y, z = inertia
    return (
        f'<link name="{name}"><inertial><origin xyz="0 0 {centre}"/><mass value="{mass}"/>'
        f'<inertia ixx="{x:.17g}" iyy="{y:.17g}" izz="{z:.17g}" ixy="0" ixz="0" iyz="0"/>'
        "</inertial></link>"
    )


def _joint(name: str, parent: str, child: str, x: float, z: float) -> str:
    return (
        f'<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{x} 0 {z}"/><axis xyz="0 1 0"/>'
        '<limit lower="-3" upper="3" effort="100" velocity="50"/></joint>'
    )
