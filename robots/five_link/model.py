"""The model of the five-link walker, with its URDF beside this file.

The numbers are those of C. Chevallereau, G. Abba, Y. Aoustin, F. Plestan, E. R. Westervelt,
C. Canudas-de-Wit, J. W. Grizzle, *RABBIT: a testbed for advanced control theory*, IEEE Control
Systems Magazine 23(5), 2003, masses of torso, femurs and tibias 12, 6.8 and 3.2 kg, with the rotors
of that set: 3.32e-4 kg m^2 behind gears of 50, so that each joint feels 0.83 kg m^2 more. Not the
set of IEEE Trans. Automatic Control 48(1), 2003, whose torso has 20 kg and which has no rotors.

The base is the torso at its hip: root_x and root_z in m, root_pitch in rad, forwards positive. A
hip at 0 has the femur in line with the torso and is positive with the leg behind; a knee is
positive bent. State x = (q, v), q = (root_x, root_z, root_pitch, left_hip, left_knee, right_hip,
right_knee); inputs are the torques of hips and knees in N m, which turn a femur against the torso
and a tibia against its femur.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from hybridctl.base.checks import check_number
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.limb_symmetry import limb_symmetry
from hybridctl.mechanics.multibody.passive import Rotor
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.mechanics.terms.sources import TermsChoice
from hybridctl.sensitivity.symmetry import Symmetry

JOINTS = ("left_hip", "left_knee", "right_hip", "right_knee")
CONTACTS = ("left", "right")
ROTORS = dict.fromkeys(JOINTS, Rotor(inertia=3.32e-4, gear=50.0))
LEFT_STANCE, RIGHT_STANCE = ("stick", "open"), ("open", "stick")


def robot(torso: float = 1.0, tilt: float = 0.0) -> Robot:
    """The walker on a base that moves in the sagittal plane.

    torso: by which its mass and moment of inertia are multiplied. tilt: by which gravity leans
    backwards, rad: walking uphill, as seen from the ground.
    """
    check_number("torso", torso, above=0.0)
    tree = ElementTree.parse(Path(__file__).with_name("five_link.urdf"))
    for path in ("mass", "inertia"):
        for part in tree.iterfind(f"link[@name='torso']/inertial/{path}"):
            for name, value in part.items():
                part.set(name, f"{torso * float(value):.17g}")
    gravity = 9.81 * np.array([-np.sin(tilt), 0.0, -np.cos(tilt)])
    text = ElementTree.tostring(tree.getroot(), encoding="unicode")
    return Robot.from_urdf(text, root="sagittal", rotors=ROTORS, gravity=gravity)


def contacts(friction: float = 0.7, slope: float = 0.0, step: float = 0.0) -> list[Contact]:
    """The two feet on the ground, left first.

    slope: of the ground, rad, falling forwards where it is negative. step: height in m of the
    ground below the right foot above that below the left one.
    """
    return [
        Contact(name, f"{name}_foot", _ground(slope, height), friction=friction)
        for name, height in zip(CONTACTS, (0.0, step), strict=True)
    ]


def system(
    friction: float = 0.7,
    slope: float = 0.0,
    step: float = 0.0,
    *,
    torso: float = 1.0,
    tilt: float = 0.0,
    terms: TermsChoice = "auto",
) -> ContactSystem:
    """The walker and its ground; impacts are plastic. terms: see `ContactDynamics`."""
    return contact_system(robot(torso, tilt), contacts(friction, slope, step), terms=terms)


def exchange_legs(walker: ContactSystem) -> Symmetry:
    """The symmetry up to which a step closes: legs exchanged, and the way along the ground."""
    joints = {"left_hip": "right_hip", "left_knee": "right_knee"}
    return limb_symmetry(walker, joints, {"left": "right"}, free={"translation": "root_x"})


def _ground(slope: float, height: float) -> Plane:
    return Plane(point=(0.0, 0.0, height), normal=(-slope, 0.0, 1.0))
