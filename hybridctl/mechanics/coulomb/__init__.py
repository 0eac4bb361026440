"""Coulomb's law with unilateral contact, for any number of contacts in the plane and in space."""

from hybridctl.mechanics.coulomb.law import CoulombProblem, CoulombSolution, Uniqueness
from hybridctl.mechanics.coulomb.solve import enumerate_solutions, follow, solve

__all__ = [
    "CoulombProblem",
    "CoulombSolution",
    "Uniqueness",
    "enumerate_solutions",
    "follow",
    "solve",
]
