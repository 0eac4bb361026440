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

from hybridctl.base.checks import Array
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane, Surface
from hybridctl.mechanics.multibody.passive import Rotor
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, contact_system

MONOPED = {"foot": 0.0}  # legs, and where their hips are along the trunk, m
QUADRUPED = {"hind": -0.2, "fore": 0.2}
LINK = 0.2  # of thighs and shanks, m
SOLE = 0.03  # from an ankle down to its sole, m
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


def soled(*, friction: float, ground: Surface, rotors: float) -> ContactSystem:
    """A monoped with an ankle, whose foot is a sole between a smooth heel and a toe with friction.

    Both rough, they would be held along the ground twice. State x = (q, v), with q = (root_x,
    root_z, root_pitch, hip, knee, ankle); rotors: see `system`.
    """
    moved = ("hip", "knee", "ankle")
    rod = LINK**2 / 12.0
    text = (
        _link("trunk", _TRUNK, cuboid_inertia(_TRUNK, (0.45, 0.2, 0.12)), 0.0)
        + _link("thigh", _THIGH, (_THIGH * rod,) * 3, -0.5 * LINK)
        + _link("shank", _SHANK, (_SHANK * rod,) * 3, -0.5 * LINK)
        + _link("sole", 0.2, (3e-4,) * 3, -0.02)
        + _joint("hip", "trunk", "thigh", 0.0, 0.0)
        + _joint("knee", "thigh", "shank", 0.0, -LINK)
        + _joint("ankle", "shank", "sole", 0.0, -LINK)
        + _fixed("heel", "sole", -0.04, -SOLE)
        + _fixed("toe", "sole", 0.06, -SOLE)
    )
    whole = f'<?xml version="1.0"?><robot name="soled">{text}</robot>'
    made = Robot.from_urdf(whole, root="sagittal", rotors={j: Rotor(rotors) for j in moved})
    heel = Contact("heel", "heel", ground, friction=0.0)
    return contact_system(made, [heel, Contact("toe", "toe", ground, friction=friction)])


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
        + _joint(f"{name}_hip", "trunk", f"{name}_thigh", along, 0.0)
        + _joint(f"{name}_knee", f"{name}_thigh", f"{name}_shank", 0.0, -LINK)
        + _fixed(f"{name}_foot", f"{name}_shank", 0.0, -LINK)
    )


def _link(name: str, mass: float, inertia: tuple[float, ...], centre: float) -> str:
    x, y, z = inertia
    return (
        f'<link name="{name}"><inertial><origin xyz="0 0 {centre}"/><mass value="{mass}"/>'
        f'<inertia ixx="{x:.17g}" iyy="{y:.17g}" izz="{z:.17g}" ixy="0" ixz="0" iyz="0"/>'
        "</inertial></link>"
    )


def _fixed(name: str, parent: str, x: float, z: float) -> str:
    return (
        f'<link name="{name}"/><joint name="{name}_end" type="fixed"><parent link="{parent}"/>'
        f'<child link="{name}"/><origin xyz="{x} 0 {z}"/></joint>'
    )


def _joint(name: str, parent: str, child: str, x: float, z: float) -> str:
    return (
        f'<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{x} 0 {z}"/><axis xyz="0 1 0"/>'
        '<limit lower="-3" upper="3" effort="100" velocity="50"/></joint>'
    )
