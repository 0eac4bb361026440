"""Robots with contacts: Pinocchio's rigid-body dynamics made into a hybrid system."""

from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.found_contacts import contacts_from
from hybridctl.mechanics.contacts.stairs import Stairs
from hybridctl.mechanics.contacts.surfaces import Plane, Sphere, Terrain
from hybridctl.mechanics.equilibrium import equilibrium
from hybridctl.mechanics.impacts.kick import Kick
from hybridctl.mechanics.limb_symmetry import limb_symmetry, motion_symmetry
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.multibody.mimic import Mimic
from hybridctl.mechanics.multibody.passive import Rotor
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.state import RobotStateSpace
from hybridctl.mechanics.parameters import parameter_derivatives
from hybridctl.mechanics.push import Wrench
from hybridctl.mechanics.system import closed_contacts, contact_system
from hybridctl.mechanics.timestepping import time_stepping

__all__ = [
    "Contact",
    "ContactDynamics",
    "Kick",
    "Mimic",
    "Plane",
    "Robot",
    "RobotStateSpace",
    "Rotor",
    "Sphere",
    "Stairs",
    "Terrain",
    "Wrench",
    "closed_contacts",
    "contact_system",
    "contacts_from",
    "equilibrium",
    "limb_symmetry",
    "motion_symmetry",
    "parameter_derivatives",
    "time_stepping",
]
