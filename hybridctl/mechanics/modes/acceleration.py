"""Acceleration and contact forces of a mode at a point: the pass from its rows down.

`solve_phase` solves the constraint equations, with the directions of sliding contacts;
`complete_forces` makes redundant contacts share forces; `make_acceleration` lists the result for
all contacts. The second is left out where only an acceleration is asked for that does not depend on
how forces are shared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.contact_law.law import STICK
from hybridctl.mechanics.modes.constraint_equations import ContactRows, Solution
from hybridctl.mechanics.modes.force_distribution import distribute_forces, solve_with_directions
from hybridctl.mechanics.modes.phase import ContactPhase
from hybridctl.mechanics.modes.slip_directions import find_slip_directions, turn_starting_contacts
from hybridctl.mechanics.modes.standstill import PhaseOf, solve_slow_contacts


@dataclass(frozen=True)
class ContactAcceleration:
    """Acceleration of a mode at a point, and forces, speeds and gaps of all c contacts.

    Attributes:
        acceleration: a (nv,).
        forces: Normal forces (c,), N or N m; zero where open.
        friction: Friction (c, 2) along the tangents of each surface, N or N m; zero where open, and
            where there is no such tangent.
        slip: Sliding velocities v_t (c, 2), m/s or rad/s; zero likewise.
        gaps: Gaps (c,), m or rad; positive where open.
        solution: The equations behind it, None where all contacts are open.
    """

    acceleration: Array
    forces: Array
    friction: Array
    slip: Array
    gaps: Array
    solution: Solution | None

    def is_holding(self, i: int) -> bool:
        """Return whether contact i sticks, or is to slide but is held at a standstill."""
        return self.solution is not None and self.solution.phase.modes[i] == STICK


def solve_phase(phase_of: PhaseOf, phase: ContactPhase, rows: ContactRows) -> Solution:
    """Return the solution of a phase, with the directions of contacts that slide in a surface.

    They slide along their velocities; with near-zero velocity they stop, start to slide, or stick.

    Args:
        phase_of: Phases of all modes.
        phase: Phase of the mode, with a closed contact.
        rows: Its terms.
    """
    if not phase.spatial:
        return solve_with_directions(phase, rows, {})
    directions, slow = find_slip_directions(phase, rows)
    if slow:
        return solve_slow_contacts(phase_of, phase, rows, directions, slow)
    return solve_with_directions(phase, rows, directions)


def complete_forces(solution: Solution) -> Solution:
    """Return a solution of `solve_phase` whose redundant contacts share forces.

    It is returned as it is where contacts are not redundant.

    Raises:
        NoContactSolutionError: If no directions are found for contacts that start to slide.
    """
    if not solution.kkt.redundant:
        return solution
    friction = solution.phase.friction
    return turn_starting_contacts(distribute_forces(solution, friction), friction)


def make_acceleration(solution: Solution, count: int) -> ContactAcceleration:
    """Return acceleration and forces of all `count` contacts from a solution with shared forces."""
    phase, rows = solution.phase, solution.rows
    (forces, friction), (_, slip) = phase.split_rows(solution.forces), phase.split_rows(rows.rates)
    if not phase.all_closed:
        forces, friction, slip = (
            phase.scatter_contacts(part, count) for part in (forces, friction, slip)
        )
    return ContactAcceleration(solution.acceleration, forces, friction, slip, rows.gaps, solution)


def make_open_acceleration(acceleration: Array, gaps: Array) -> ContactAcceleration:
    """Return the acceleration (nv,) with all contacts open, at these gaps (c,), and no forces."""
    count = len(gaps)
    friction, slip = np.zeros((2, count, 2))
    return ContactAcceleration(acceleration, np.zeros(count), friction, slip, gaps, None)
