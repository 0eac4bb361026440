"""Robots with contacts: Pinocchio's rigid-body dynamics made into a hybrid system."""

from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.equilibrium import equilibrium
from hybridctl.mechanics.found_contacts import contacts_from
from hybridctl.mechanics.kick import Kick
from hybridctl.mechanics.limb_symmetry import limb_symmetry
from hybridctl.mechanics.parameters import parameter_derivatives
from hybridctl.mechanics.passive import Rotor
from hybridctl.mechanics.push import Wrench
from hybridctl.mechanics.robot import Robot
from hybridctl.mechanics.state import RobotStateSpace
from hybridctl.mechanics.surfaces import Plane, Sphere, Stairs, Terrain
from hybridctl.mechanics.system import closed_contacts, contact_system
from hybridctl.mechanics.timestepping import time_stepping

__all__ = [
    "Contact",
    "ContactDynamics",
    "Kick",
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
    "parameter_derivatives",
    "time_stepping",
]
