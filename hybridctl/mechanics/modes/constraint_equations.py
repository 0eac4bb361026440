r"""The constraint equations of the closed contacts of one mode, solved at one point.

.. math::
    M a + h = S u + J^T E m, \qquad C a = \text{target},

with C the constrained rows of J, m their multipliers and E the mix that makes forces along all
rows of them: friction of a sliding contact is -mu s per normal force ([RS] (2.38)-(2.41)). The
target is -Jdot v, less what makes residual gaps and speeds decay.

With F = J^T E the multipliers obey G m = target - C M^-1 (S u - h), G = C M^-1 F (see `KKT`). Of
redundant contacts G is singular, and m is here the solution of least norm; `force_distribution`
chooses another one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.mechanics.contact_law.law import CoulombProblem
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.contact_law.redundancy import ForceDistribution
from hybridctl.mechanics.modes.phase import ContactPhase, Friction
from hybridctl.mechanics.modes.tolerances import STANDSTILL
from hybridctl.mechanics.terms.contact_terms import TermValues

_MAX_CONTRADICTION = 1e-6
"""Residual of constraints relative to the terms of C a; contacts whose constraints miss by more
cannot all hold. A choice far above rounding (`CONSISTENT`)."""


class ContactRows(NamedTuple):
    """Terms of the closed contacts of a phase, which has r rows, in arrays that last.

    Attributes:
        mass: M (nv, nv).
        drive: S u - h (nv,).
        jacobian: J (r, nv).
        rates: J v (r,), m/s or rad/s.
        target: Accelerations J a (r,) that keep contacts closed and sticking.
        gaps: Gaps (c,) of all contacts, m or rad.
        compliance: D (r,) of soft rows, which obey J a + D f = target; None where no contact is
            pressed by a constant force.
    """

    mass: Array
    drive: Array
    jacobian: Array
    rates: Array
    target: Array
    gaps: Array
    compliance: Array | None = None

    def take_compliance(self, rows: Indices) -> Array | None:
        """Return the compliance of some rows, None if no row is soft."""
        return None if self.compliance is None else self.compliance[rows]


class Solution(NamedTuple):
    """The equations of a phase, solved at a point.

    Attributes:
        phase: Phase of the mode, in which contacts that are to slide but are held at a standstill
            stick.
        rows: Terms of the closed contacts.
        directions: Unit sliding velocity (2,) of each contact that slides in a surface, by its
            place among the closed ones.
        mix: E (r, m).
        kkt: The factorised equations.
        acceleration: a (nv,).
        multipliers: m (m,), N or N m; the first k are normal forces.
        residual: target - C a (m,), where constraints contradict each other; else rounding.
        even_solution: The solution of equal weights, whose normal forces are the weights of
            friction in this one. None where this one has equal weights.
        cone_forces: How the forces were found, where those of least norm alone are not inside the
            friction cones. None elsewhere.
        starting_contacts: Closed contacts with near-zero velocity that slide the way they
            accelerate.
        inside_cones: Whether the forces are inside the friction cones. None until redundant
            contacts share forces (`force_distribution.distribute_forces`), and always where
            contacts are not redundant.
    """

    phase: ContactPhase
    rows: ContactRows
    directions: dict[int, Array]
    mix: Array
    kkt: KKT
    acceleration: Array
    multipliers: Array
    residual: Array
    even_solution: Solution | None
    cone_forces: ForceDistribution | None
    starting_contacts: tuple[int, ...] = ()
    inside_cones: bool | None = None

    @property
    def forces(self) -> Array:
        """Forces (r,) along all rows, N or N m."""
        return self.multipliers if self.phase.identity else self.mix @ self.multipliers

    @property
    def constraint_response(self) -> Array:
        """The motions M^-1 C^T (nv, m) of forces along the constrained rows."""
        kkt = self.kkt
        return kkt.solve_mass(kkt.constraint.T) if self.phase.sliding else kkt.push

    def compute_turning(self, multipliers: Array) -> Array:
        """Return the matrix K (r, r) of `ContactPhase.compute_turning`.

        Contacts that start to slide have no part in it: their direction is that of their
        acceleration.

        Args:
            multipliers: Multipliers (m,).
        """
        rates = self.rows.rates.copy()
        for k in self.starting_contacts:
            rates[self.phase.tangents[k]] = 0.0
        return self.phase.compute_turning(self.directions, rates, multipliers)


def make_contact_rows(
    phase: ContactPhase, values: TermValues, piece_gaps: Array, stabilization: float
) -> ContactRows:
    """Return the rows of a phase, copied from terms that the next call overwrites.

    Residuals decay: the target is -Jdot v - 2 s rate, and less s^2 gap for normals.

    Args:
        phase: Phase of a mode.
        values: Terms at the point.
        piece_gaps: Gaps (c,) from the pieces of surfaces that contacts are on; used for s > 0.
        stabilization: Rate s, 1/s.
    """
    rates, target = phase.take_closed_rows(values.rates), -phase.take_closed_rows(values.drift)
    if stabilization:
        gaps = piece_gaps[phase.places]
        target -= 2.0 * stabilization * rates
        target[: len(gaps)] -= stabilization**2 * gaps
    jacobian = phase.take_closed_rows(values.jacobian)
    mass, drive, gaps = values.mass.copy(), values.drive.copy(), values.gaps.copy()
    return ContactRows(mass, drive, jacobian, rates, target, gaps)


def solve_equal_weights(
    phase: ContactPhase,
    rows: ContactRows,
    directions: dict[int, Array],
    starting_contacts: tuple[int, ...] = (),
) -> Solution:
    """Return the solution whose multipliers have the least norm.

    Args:
        phase: Phase of a mode.
        rows: Its terms.
        directions: Unit sliding velocities (2,), as in `Solution`.
        starting_contacts: As in `Solution`.
    """
    mix = phase.compute_mix(directions)
    # Without sliding F is C^T, which makes the equations symmetric: half the work.
    force = rows.jacobian.T @ mix if phase.sliding else None
    constraint, target = rows.jacobian, rows.target
    if not phase.identity:
        constraint, target = constraint[phase.constrained], target[phase.constrained]
    compliance = rows.take_compliance(phase.constrained)
    kkt = KKT(rows.mass, constraint, force, redundant=phase.redundant, compliance=compliance)
    a, m = kkt.solve(rows.drive, target)
    residual = target - constraint.dot(a)
    if compliance is not None:
        residual -= compliance * m
    return Solution(
        phase, rows, directions, mix, kkt, a, m, residual, None, None, starting_contacts
    )


def build_acceleration_problem(
    phase: ContactPhase, rows: ContactRows, friction: Friction, kkt: KKT
) -> CoulombProblem:
    """Return Coulomb's law for the accelerations and forces of the closed contacts.

    Args:
        phase: Phase in which they are closed.
        rows: Its terms.
        friction: Coefficients of friction, those of the phase or others.
        kkt: Equations with the same mass, which have it factorised.
    """
    free, jacobian = kkt.solve_mass(rows.drive), rows.jacobian
    size = np.abs(jacobian) @ np.abs(free) + np.abs(rows.target)
    delassus = (kkt.solve_mass(jacobian.T).T @ jacobian.T).T
    if rows.compliance is not None:
        np.einsum("ii->i", delassus)[:] += rows.compliance
    return CoulombProblem(
        delassus,
        jacobian @ free - rows.target,
        phase.tangents,
        friction.static,
        friction.kinetic,
        tuple(_find_direction(rows.rates[tangents]) for tangents in phase.tangents),
        float(size.max()),
    )


def build_impact_problem(phase: ContactPhase, kkt: KKT, free: Array, v: Array) -> CoulombProblem:
    """Return Coulomb's law, with kinetic friction, for velocities and impulses of an impact.

    No contact has a sliding direction before it is solved.

    Args:
        phase: Phase in which the contacts are closed.
        kkt: Equations of all their rows, without friction.
        free: Rates (r,) without impulses, less those that restitution asks for.
        v: Velocity (nv,) whose terms are in these.
    """
    size = float((np.abs(kkt.constraint) @ np.abs(v)).max())
    friction, unknown = phase.friction.kinetic, (None,) * len(phase.closed)
    return CoulombProblem(kkt.delassus, free, phase.tangents, friction, friction, unknown, size)


def _find_direction(velocity: Array) -> Array | None:
    """Return the direction of a sliding velocity, None at a standstill."""
    speed = float(np.linalg.norm(velocity))
    return velocity / speed if speed > STANDSTILL else None


def is_contradictory(solution: Solution, tolerance: float = _MAX_CONTRADICTION) -> bool:
    """Return whether redundant constraints contradict each other.

    Args:
        solution: A solution.
        tolerance: Largest residual relative to the terms of C a.
    """
    rows, missed = solution.rows, float(np.abs(solution.residual).max())
    # The target is a part of these terms, and known: most solutions need no more than this.
    if not solution.kkt.redundant or missed <= tolerance * float(np.abs(rows.target).max()):
        return False
    return missed > tolerance * compute_magnitude(solution)


def compute_magnitude(solution: Solution) -> float:
    """Return the largest sum of the sizes of terms in the accelerations of rows without forces."""
    free = np.abs(solution.kkt.solve_mass(solution.rows.drive))
    return float((np.abs(solution.rows.jacobian) @ free + np.abs(solution.rows.target)).max())
