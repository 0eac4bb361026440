"""Bolt, a biped of six motors on point feet, of `example-robot-data`, on a base by Euler angles.

State x = (q, v), q = (x, y, z, yaw, pitch, roll of the base, FL_HAA, FL_HFE, FL_KFE, FR_HAA,
FR_HFE, FR_KFE) in m and rad; inputs are torques of the six joints in N m. The left foot is first.

The legs of the file differ by some 4e-4 of their inertia. `robot(mirrored=True)` has a right leg
that is the mirror image of the left one, so that a step can close up to the exchange of legs.
"""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
from hybridctl.robots import public

from hybridctl.base.checks import Array
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.limb_symmetry import limb_symmetry
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.sensitivity.symmetry import Symmetry

JOINTS = tuple(f"{leg}_{joint}" for leg in ("FL", "FR") for joint in ("HAA", "HFE", "KFE"))
CONTACTS = ("left", "right")
LEFT_STANCE, RIGHT_STANCE = ("stick", "open"), ("open", "stick")
TORQUE = 2.7
"""Greatest torque, N m: a choice near what its motors give. Its file allows 1000 N m."""
_FEET = ("FL_FOOT", "FR_FOOT")
_MIRRORED = {"ixy": -1.0, "iyz": -1.0}
"""Signs of moments of inertia that change in a mirror at the plane of x and z."""


def robot(mirrored: bool = False) -> Robot:
    """Return the robot, with a motor at each joint and without dry friction.

    Args:
        mirrored: Whether the right leg gets the inertias of the left one, mirrored.
    """
    tree = ElementTree.fromstring(public.urdf("bolt"))
    if mirrored:
        _mirror_inertias(tree)
    text = ElementTree.tostring(tree, encoding="unicode")
    return Robot.from_urdf(text, root="euler", friction=dict.fromkeys(JOINTS, 0.0))


def contacts() -> tuple[Contact, ...]:
    """Return both feet on the floor, left first."""
    friction, surface = public.MODELS["bolt"].friction, public.contacts("bolt")[0].surface
    pairs = zip(CONTACTS, _FEET, strict=True)
    return tuple(Contact(name, frame, surface, friction=friction) for name, frame in pairs)


def system(mirrored: bool = False) -> ContactSystem:
    """Return the robot on its feet; impacts are plastic.

    Args:
        mirrored: See `robot`.
    """
    return contact_system(robot(mirrored), contacts())


def exchange_legs(walker: ContactSystem) -> Symmetry:
    """Return the symmetry up to which a step closes: legs exchanged, and the way along the ground.

    Args:
        walker: The system of the mirrored robot.
    """
    pairs = {joint: joint.replace("FL", "FR") for joint in JOINTS[:3]}
    return limb_symmetry(walker, pairs, {"left": "right"}, free={"translation": "root_x"})


def set_feet_down(walker: ContactSystem, angles: dict[str, float]) -> Array:
    """Return the configuration (nq,) with given joint angles whose lower foot is on the floor.

    Args:
        walker: The robot and its feet.
        angles: Angles by joint, rad; others are zero.
    """
    q = walker.robot.posture(angles)
    q[2] -= walker.dynamics.gaps(q).min()
    return np.asarray(q)


def _mirror_inertias(tree: ElementTree.Element) -> None:
    """Write the inertias of the left leg's links, mirrored, into those of the right leg.

    Args:
        tree: Root of the URDF, which is changed.
    """
    links = {link.get("name", ""): link for link in tree.iterfind("link")}
    for name, left in links.items():
        right = links.get(name.replace("FL_", "FR_"))
        if not name.startswith("FL_") or right is None:
            continue
        own, other = left.find("inertial"), right.find("inertial")
        if own is None or other is None:
            continue
        for part in ("mass", "origin", "inertia"):
            source, target = own.find(part), other.find(part)
            assert source is not None
            assert target is not None
            for key, value in source.items():
                target.set(key, _mirror_value(key, value))


def _mirror_value(key: str, value: str) -> str:
    """Return an attribute of an inertia in the mirror; frames of links are not turned."""
    if key == "xyz":
        x, y, z = map(float, value.split())
        return f"{x:.17g} {-y:.17g} {z:.17g}"
    return f"{_MIRRORED[key] * float(value):.17g}" if key in _MIRRORED else value
