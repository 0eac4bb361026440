"""Coulomb's law with unilateral contact, for any number of contacts in the plane and in space.

The room knows no robot. A problem is the Delassus matrix G, the velocities b without impulses and
the coefficients of friction. `law` states it, and evaluates a proposed solution. `newton` and
`cone_programme` are the two iterations that find one, `enumeration` tries all contact states
(`dependent_states` those whose rows depend on each other), `uniqueness` proves that there is no
other, `redundancy` distributes forces over redundant contacts, and `solver` puts them together.
`linear_equations` has the equations of motion with constraints, which everything above it uses.
"""

from hybridctl.mechanics.contact_law.law import CoulombProblem, CoulombSolution, Uniqueness
from hybridctl.mechanics.contact_law.solver import enumerate_solutions, solve, solve_near

__all__ = [
    "CoulombProblem",
    "CoulombSolution",
    "Uniqueness",
    "enumerate_solutions",
    "solve",
    "solve_near",
]
