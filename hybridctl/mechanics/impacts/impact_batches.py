r"""Derivatives of many impacts at once, of those whose contacts act alike.

A run of many short arcs has many impacts, most of them of one contact that slides. The equations
are those of `impact.linearise_impact` and `impact_derivatives.differentiate_impact`, with the
number of the impact as the first axis: each step of them is one call of numpy for all impacts.
Impacts of redundant contacts, of contacts that begin to slide from rest, and those on a boundary
between states are not among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.hybrid.model import ResetBatch, ResetJacobian
from hybridctl.mechanics.contact_law.linear_equations import RANK
from hybridctl.mechanics.impacts.impact import ImpactResult
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.tolerances import STANDSTILL


class ImpactBatch(ResetBatch):
    """The derivatives of m impacts of phases of one pattern, see `ClosedRows.pattern`.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configurations (m, nq).
        v: Velocities (m, nv) before the impacts.
        results: The impacts, off all boundaries, none of which ends an accumulation.
        nu: Number of inputs.

    Attributes:
        phase: States of the contacts of the first impact. Places within the r rows of closed
            contacts, and among the k multipliers, are those of all.
        q: Configurations (m, nq).
        results: The impacts.
        closed: Closed contacts (m, c) of each.
        places: Rows (m, r) of closed contacts, among those of all contacts.
        change: v+ - v- (m, nv).
        rows: J (m, r, nv) of closed contacts.
        impulses: Impulses (m, r) along these rows, N s.
        restitution: Coefficients (m, r) of these rows.
        directions: Sliding directions (m, s, 2) of the contacts that slide in a surface.
        is_sound: Whether the equations of each determine its derivative, (m,).
    """

    def __init__(
        self,
        dynamics: ContactDynamics,
        q: Array,
        v: Array,
        results: Sequence[ImpactResult],
        nu: int,
    ) -> None:
        self._dynamics, self._v, self._nu = dynamics, v, nu
        phases = [dynamics.phase(result.states) for result in results]
        self.phase, self.q, self.results = phases[0], q, results
        self.closed = np.array([phase.closed for phase in phases])
        self.places = np.array([phase.all_rows for phase in phases])
        after = np.array([result.velocity_after for result in results])
        self.change = after - v
        self.rows = self._take(np.array([result.terms.jacobian for result in results]))
        self.restitution = self._take(np.array([result.restitution for result in results]))
        before = self._take(np.array([result.terms.rates for result in results]))
        self.impulses = self._gather_impulses()
        slip = (self.rows @ after[..., None])[..., 0] + self.restitution * before
        slip = slip[:, self.phase.spatial_rows]
        speeds = np.hypot(slip[..., 0], slip[..., 1])
        self.is_sound: NDArray[np.bool_] = (speeds > STANDSTILL).all(axis=1)
        speeds[~self.is_sound] = 1.0  # any but zero: derivatives of these are not used
        self.directions = slip / speeds[..., None]
        friction = np.array([phase.spatial_friction for phase in phases])
        mix = np.array([phase.compute_mix({}) for phase in phases])
        self._turning = self._set_friction(mix, friction, speeds)
        self._by_mass, self._push, self._by_delassus = self._invert(mix)

    def _take(self, values: Array) -> Array:
        """Return values of all rows (m, R, ...) at those of closed contacts, (m, r, ...)."""
        return np.asarray(values[np.arange(len(values))[:, None], self.places])

    def _gather_impulses(self) -> Array:
        """Return the impulses (m, r) along the rows of closed contacts, N s."""
        own = np.arange(len(self.results))[:, None]
        found = np.empty(self.places.shape)
        normal = np.array([result.impulses for result in self.results])[own, self.closed]
        friction = np.array([result.friction_impulses for result in self.results])
        found[:, : normal.shape[1]] = normal
        for k, tangents in enumerate(self.phase.tangents):
            found[:, tangents] = friction[own[:, 0], self.closed[:, k], : len(tangents)]
        return found

    def _set_friction(self, mix: Array, friction: Array, speeds: Array) -> Array:
        """Set sliding directions in E (m, r, k), and return K (m, r, r); see `ContactPhase`.

        Args:
            mix: E without contacts that slide in a surface; changed.
            friction: Kinetic coefficients (m, s) of these.
            speeds: Their speeds (m, s), m/s.

        Returns:
            K, kg.
        """
        turning = np.zeros((*self.places.shape, self.places.shape[1]))
        for j, slide in enumerate(self.phase.spatial):
            s, mu = self.directions[:, j], friction[:, j]
            mix[:, slide.rows, slide.contact] = -mu[:, None] * s
            ratio = mu * self.impulses[:, slide.contact] / speeds[:, j]
            across = np.eye(2) - s[:, :, None] * s[:, None]
            turning[:, slide.rows[:, None], slide.rows] = ratio[:, None, None] * across
        return turning

    def _invert(self, mix: Array) -> tuple[Array, Array, Array]:
        """Return (M + J' K J)^-1 (m, nv, nv), times F (m, nv, k), and G^-1 (m, k, k); see `KKT`.

        Impacts with a G that may be singular are marked as not sound.

        Args:
            mix: E (m, r, k).
        """
        turned = self.rows.swapaxes(1, 2)
        mass = np.array([result.terms.mass for result in self.results])
        if self.phase.spatial:
            mass = mass + turned @ self._turning @ self.rows
        by_mass = np.linalg.inv(mass)
        push = by_mass @ (turned @ mix)
        delassus = self.rows[:, self.phase.constrained] @ push
        sizes = np.linalg.svd(delassus, compute_uv=False)
        # `KKT` decides by the condition number in the norm of column sums, which is at most k times
        # this one: what is sound here is not redundant there.
        self.is_sound &= sizes[:, -1] > delassus.shape[1] * RANK * sizes[:, 0]
        if not self.is_sound.all():
            delassus[~self.is_sound] = np.eye(delassus.shape[1])
        return by_mass, push, np.linalg.inv(delassus)

    def solve(self, upper: Array, xi: Array) -> Array:
        """Return the changes (m, nv, n) of v+, by explicit changes of the equations.

        Args:
            upper: Changes (m, nv, n) of J^T Lambda - M (v+ - v-) at fixed v+ and impulses.
            xi: Changes (m, r, n) of the rates for which the law holds, at fixed v+.
        """
        held = self.phase.constrained
        if self.phase.spatial:
            upper = upper - self.rows.swapaxes(1, 2) @ (self._turning @ xi)
        free = self._by_mass @ upper
        forces = self._by_delassus @ (xi[:, held] + self.rows[:, held] @ free)
        return np.asarray(free - self._push @ forces)

    @cached_property
    def jacobian(self) -> ResetJacobian:
        """The derivatives of the resets (q, v-) -> (q, v+), with the impact as first axis."""
        m, nv = self._v.shape
        terms, r = self._dynamics.terms, len(self._dynamics.contact_set.owner)
        forces = np.zeros((2 * m, r))
        forces[np.arange(m)[:, None], self.places] = self.impulses
        both = np.concatenate((self.change, self._v))
        d = terms.impulse_derivatives_at(np.concatenate((self.q, self.q)), both, forces)
        e = self.restitution[..., None]
        change_q, before_q = self._take(d.rates[:m]), self._take(d.rates[m:])
        xi = np.concatenate((change_q + before_q + e * before_q, e * self.rows), axis=2)
        mass = np.array([result.terms.mass for result in self.results])
        state = np.zeros((m, 2 * nv, 2 * nv))
        state[:, :nv, :nv] = np.eye(nv)
        state[:, nv:] = self.solve(np.concatenate((-d.momentum[:m], mass), axis=2), xi)
        return ResetJacobian(np.zeros((m, 2 * nv)), state, np.zeros((m, 2 * nv, self._nu)))
