"""Derivatives of acceleration and contact forces, from the differentiated equations.

For a contact that slides in a surface they grow as 1 / |v_t|, so that perturbations across its
direction vanish as it stops or begins to slide. With near-zero velocity its direction is that of
its acceleration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.modes.acceleration import ContactAcceleration
from hybridctl.mechanics.modes.constraint_equations import Solution, is_contradictory
from hybridctl.mechanics.modes.force_distribution import (
    differentiate_multipliers,
    scatter_adjoint,
)
from hybridctl.mechanics.modes.slip_directions import differentiate_starting_contacts
from hybridctl.mechanics.modes.tolerances import CONSISTENT
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_terms import TermDerivatives, Terms


@dataclass(frozen=True)
class AccelerationDerivatives:
    """Derivatives by z = (q, v, u), n = 2 nv + nu columns, and the point itself.

    Attributes:
        point: Acceleration and forces.
        acceleration_z: Of the acceleration (nv, n).
        forces_z: Of normal forces (c, n), zero where open.
        friction_z: Of friction (c, 2, n), zero where open.
        slip_z: Of sliding velocities (c, 2, n), of open contacts too, whose `slip` itself is given
            as zero.
        gaps_z: Of gaps (c, n).
        rates_z: Of J v (r, n), all rows.
    """

    point: ContactAcceleration
    acceleration_z: Array
    forces_z: Array
    friction_z: Array
    slip_z: Array
    gaps_z: Array
    rates_z: Array


class SolutionDerivatives:
    """The first order of a solution with shared forces, at one point.

    Args:
        terms: Terms of the robot with its contacts.
        robot: The robot.
        row_count: Number of rows of all contacts.
        stabilization: Rate at which residuals decay, 1/s.
        q: Configuration (nq,).
        v: Velocity (nv,).
        solution: The solution.

    Attributes:
        terms_z: Derivatives of the terms.
        acceleration_z: Of the acceleration (nv, n).
        forces_z: Of forces along the rows of closed contacts (r, n).
    """

    def __init__(
        self,
        terms: Terms,
        robot: Robot,
        row_count: int,
        stabilization: float,
        q: Array,
        v: Array,
        solution: Solution,
    ) -> None:
        self._terms, self._row_count, self._q, self._solution = terms, row_count, q, solution
        self._nv, self._columns = robot.nv, 2 * robot.nv + robot.nu
        phase = solution.phase
        along = phase.scatter_rows(solution.forces, row_count)
        d = self.terms_z = terms.derivatives(q, v, solution.acceleration, along)
        self._rates_z = d.rates if phase.all_closed else d.rates[phase.all_rows]
        self.acceleration_z, m_z, own = self._differentiate(robot.actuation, stabilization, d)
        self.forces_z: Array = m_z if phase.identity else solution.mix @ m_z + own

    def _differentiate(
        self, actuation: Array, s: float, d: TermDerivatives
    ) -> tuple[Array, Array, Array]:
        """Return derivatives of acceleration and multipliers, and of forces at fixed multipliers.

        Args:
            actuation: S (nv, nu).
            s: Rate at which residuals decay, 1/s.
            d: Derivatives of the terms.

        Returns:
            Arrays (nv, n), (m, n) and (r, n).
        """
        solution, nv, by_state = self._solution, self._nv, slice(2 * self._nv)
        phase, kkt, k = solution.phase, solution.kkt, len(solution.phase.closed)
        jacobian, rates_z = solution.rows.jacobian, self._rates_z
        change = d.accelerations if phase.all_closed else d.accelerations[phase.all_rows]
        upper = np.empty((nv, self._columns))
        np.negative(d.equations, out=upper[:, by_state])
        upper[:, 2 * nv :] = actuation
        own = np.zeros((len(jacobian), self._columns))
        if phase.spatial:
            own[:, by_state] = -solution.compute_turning(solution.multipliers) @ rates_z
            upper += jacobian.T @ own
        if s:
            change = change + 2.0 * s * rates_z
            change[:k, :nv] += s * s * jacobian[:k]
        free = kkt.solve_mass(upper)
        wanted = -kkt.constraint.dot(free)
        wanted[:, by_state] -= change if phase.identity else change[phase.constrained]
        even_z = self._differentiate_even(wanted, own)
        m_z = differentiate_multipliers(
            solution, wanted, lambda y: self._turn_rows(solution, y), even_z
        )
        # Contacts that all stick make one acceleration, however they share forces. Weights of 1e-6,
        # of contacts that pull, would cost it digits
        # (test_contacts_that_pull_cost_the_field_no_digits).
        shares = kkt.redundant and not phase.sliding
        moving = self._differentiate_load(wanted) if shares else m_z
        a_z = free + kkt.push.dot(moving)
        if not solution.starting_contacts:
            return a_z, m_z, own
        no_input = np.zeros((len(change), self._columns - 2 * nv))
        change_z = np.hstack((change, no_input))
        return differentiate_starting_contacts(solution, a_z, m_z, own, change_z)

    def _differentiate_load(self, wanted: Array) -> Array:
        """Return derivatives (m, n) of multipliers up to a part that makes no acceleration.

        With G m = c but for a residual r, which is the same for all weights, they are
        G^+ c' + G^+ (G^+)^T D(G^T) r, the pseudo-inverse G^+ being that of equal weights.

        Args:
            wanted: Right-hand side c' (m, n), see `differentiate_multipliers`.
        """
        solution = self._solution
        even = solution.even_solution or solution
        if not is_contradictory(solution, CONSISTENT):
            return even.kkt.forces(wanted)
        turned = self._turn_rows(even, even.residual)
        residual_z = even.kkt.distribution.residual_sensitivity(turned)
        return np.asarray(even.kkt.forces(wanted) + residual_z)

    def _differentiate_even(self, wanted: Array, own: Array) -> Array | None:
        """Return the derivatives (m, n) of the multipliers of equal weights, None without these.

        They differ from those of the solution by terms that are linear in the difference of both.

        Args:
            wanted: Right-hand side (m, n) of the solution, see `differentiate_multipliers`.
            own: Derivatives (r, n) of its forces at fixed multipliers.
        """
        solution, even = self._solution, self._solution.even_solution
        if even is None:
            return None
        nv, phase, wanted = self._nv, solution.phase, wanted.copy()
        forces = phase.scatter_rows(even.forces - solution.forces, self._row_count)
        change = even.acceleration - solution.acceleration
        # Without sliding both accelerations are the same, so that this difference is rounding.
        moved = change if phase.sliding else 0.0 * change
        d = self._terms.impulse_derivatives(self._q, moved, forces)
        response = solution.constraint_response
        wanted[:, :nv] += response.T @ d.momentum - d.rates[phase.constrained_rows]
        if phase.spatial:
            own_even = -even.compute_turning(even.multipliers) @ self._rates_z
            own = own[:, : 2 * nv]
            wanted[:, : 2 * nv] -= response.T @ (solution.rows.jacobian.T @ (own_even - own))
        return differentiate_multipliers(even, wanted, lambda y: self._turn_rows(even, y), None)

    def _turn_rows(self, solution: Solution, y: Array) -> Array:
        """Return D(G^T) y (m, n) by (q, v, u): how the rows that share a load turn.

        It is right but for a part in the range of G, which does not matter unless constraints
        contradict each other.

        Args:
            solution: The solution, or that of equal weights.
            y: Values (m,) of the constrained rows.
        """
        nv, phase = self._nv, solution.phase
        rows, z = scatter_adjoint(solution, y)
        change = np.zeros((len(solution.multipliers), self._columns))
        if phase.identity and not is_contradictory(solution, CONSISTENT):
            # `FlatTerms` has a shorter way where loads without effect leave every body alone.
            turned = self._terms.load_turns(self._q, z, phase.closed, solution.kkt.rank)
            if turned is not None:
                change[:, :nv] = turned if phase.all_closed else turned[phase.all_rows]
                return change
        forces = phase.scatter_rows(rows, self._row_count)
        d = self._terms.impulse_derivatives(self._q, z, forces)
        rates = d.rates if phase.all_closed else d.rates[phase.all_rows]
        change[:, :nv] = rates if phase.identity else solution.mix.T @ rates
        change[:, :nv] -= solution.kkt.push.T @ d.momentum
        if phase.spatial:
            along = solution.compute_turning(np.ones(len(phase.constrained)))
            pulls = solution.rows.jacobian @ z @ along
            for slide in phase.spatial:
                change[slide.contact, : 2 * nv] -= pulls[slide.rows] @ self._rates_z[slide.rows]
        return change
