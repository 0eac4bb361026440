"""Resets of contacts that stop or begin to slide: they take off what is left of sliding.

Both are events without an impulse that could be felt: what is taken off is at most 2e-8 m/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.model import Jump, JumpPoint, ModeKey, ResetJacobian, ResetModel
from hybridctl.mechanics.constrained.equations import Solution
from hybridctl.mechanics.constrained.phase import ContactPhase, contact_modes
from hybridctl.mechanics.constrained.sliding import sliding_directions, stop_of
from hybridctl.mechanics.constrained.tolerances import STANDSTILL
from hybridctl.mechanics.contact_law.law import SLIPS, STICK, Modes
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.impacts.stick_slip_border import clearly_held
from hybridctl.mechanics.modes.contact_mode import ContactPoint
from hybridctl.mechanics.modes.dynamics import ContactDynamics


@dataclass(frozen=True)
class Stop(ResetModel):
    """The reset of contacts that stop sliding and stick; others go on in `modes`.

    One that stops and those that stand still with it stick, and lose what is left of
    their sliding velocities, at most 2e-8 m/s. What other guards say at that instant was seen
    beyond the stop, where friction has no direction: they take no part, and the selection by
    accelerations decides about them. stops: names of the guards of contacts that stop.
    """

    dynamics: ContactDynamics
    modes: Modes
    stops: Mapping[int, str]

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """The jump: velocities without the sliding of the contacts that stop."""
        stand, stopped = self._standing(x)
        after = _stopped(self.dynamics, self.dynamics.phase(stand), x, stopped)
        took_part = tuple(name for i, name in self.stops.items() if i in stopped)
        return Jump(after, stand, np.zeros(len(self.modes)), guards=took_part or None)

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """The derivatives of the reset; friction before the stop acts on perturbations, too."""
        dynamics = self.dynamics
        stand, stopped = self._standing(at.x)
        return _jacobian(dynamics, dynamics.phase(stand), at, stopped, dynamics.phase(self.modes))

    def _standing(self, x: Array) -> tuple[Modes, list[int]]:
        """The modes in which contacts that stand still stick, and which contacts those are."""
        n = self.dynamics.robot.nq
        slow = np.linalg.norm(self.dynamics.slip_velocities(x[:n], x[n:]), axis=1) <= STANDSTILL
        stand = tuple(
            STICK if m in SLIPS and s else m for m, s in zip(self.modes, slow, strict=True)
        )
        return stand, [i for i, m in enumerate(stand) if m == STICK and slow[i]]

    def border_at(self, at: JumpPoint, key: ModeKey, u_after: Array) -> None:
        """No border: contacts must stick clearly after the stop, see `clearly_held`."""
        n = self.dynamics.robot.nq
        clearly_held(self.dynamics, at.x[:n], at.x[n:], u_after, contact_modes(key))


@dataclass(frozen=True)
class Breakaway(ResetModel):
    """Contacts that stuck `begin` to slide, from rest, and all go on in `modes`.

    Integration leaves them velocities while they stick, such as 1e-8 m/s after a ball has rolled
    for 0.3 s. They would be taken for sliding, against the direction in which friction gives way.
    """

    dynamics: ContactDynamics
    before: Modes
    modes: Modes
    begin: tuple[int, ...]

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """The velocity without what integration left of sliding."""
        after = _stopped(self.dynamics, self.dynamics.phase(self.before), x, self.begin)
        return Jump(after, self.modes, np.zeros(len(self.modes)))

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """The derivatives of the reset: perturbations of the velocities that it removes vanish."""
        phase = self.dynamics.phase(self.before)
        return _jacobian(self.dynamics, phase, at, self.begin, phase)


def _stopped(
    dynamics: ContactDynamics, phase: ContactPhase, x: Array, contacts: Sequence[int]
) -> Array:
    """The state (q, v) without sliding of some sticking contacts, by impulses of the phase.

    The normal velocities of closed contacts, and what others that stick have, stay; those that
    slide on rub along their velocities.
    """
    q, v = np.split(x, [dynamics.robot.nq])
    system, rows = _impulses(dynamics, phase, q, v)
    change = -_sliding_of(dynamics, phase, contacts) * (rows @ v)
    return np.concatenate((q, v + system.solve(np.zeros(len(v)), change)[0]))


def _jacobian(
    dynamics: ContactDynamics,
    phase: ContactPhase,
    at: JumpPoint,
    contacts: Sequence[int],
    until: ContactPhase,
) -> ResetJacobian:
    """The derivatives of `_stopped`, where nothing is left over.

    until: the phase before it, in which contacts that stop are still sliding. In a surface friction
    has turned away what perturbations there were across, see `stop_of`.
    """
    q, v = np.split(at.x, [dynamics.robot.nq])
    nv, held, before = len(v), phase.held_rows, _solved(dynamics, until, at)
    system, _ = _impulses(dynamics, phase, q, v)
    rates_z = dynamics.rate_derivatives(q, v)
    change = -_sliding_of(dynamics, phase, contacts)[:, None] * rates_z[held]
    dv, _ = system.solve(np.zeros((nv, 2 * nv)), change)
    slowed = np.eye(2 * nv)
    spatial = tuple(
        slide.contact
        for slide in before.phase.spatial
        if before.phase.closed[slide.contact] in contacts
    )
    if spatial:
        response, across = stop_of(before, spatial)
        slowed[nv:] -= response @ across.T @ rates_z[before.phase.all_rows]
    state = np.vstack([np.eye(nv, 2 * nv), (np.eye(nv, 2 * nv, nv) + dv) @ slowed])
    return ResetJacobian(np.zeros(2 * nv), state, np.zeros((2 * nv, len(at.u))))


def _solved(dynamics: ContactDynamics, phase: ContactPhase, at: JumpPoint) -> Solution:
    """The equations of a phase at a point, as the mode before found them if it knows."""
    known = at.before
    if isinstance(known, ContactPoint) and known.mode.phase is phase:
        return known.solved[0]
    q, v = np.split(at.x, [dynamics.robot.nq])
    return dynamics.solve(phase, q, v, at.u)


def _impulses(
    dynamics: ContactDynamics, phase: ContactPhase, q: Array, v: Array
) -> tuple[KKT, Array]:
    """Impulses of a phase that change the rates of its constrained rows (m, nv), and these."""
    rows = dynamics.rows(phase, q, v, np.zeros(dynamics.robot.nu))
    directions, _ = sliding_directions(phase, rows)
    constrained = rows.jacobian[phase.constrained]
    force, soft = rows.jacobian.T @ phase.mix(directions), rows.soft(phase.constrained)
    return KKT(rows.mass, constrained, force, compliance=soft), constrained


def _sliding_of(dynamics: ContactDynamics, phase: ContactPhase, contacts: Sequence[int]) -> Array:
    """The flags (m,): 1 for constrained rows that are tangents of these contacts, else 0."""
    held = phase.held_rows
    tangent = held >= len(dynamics.contacts)
    return np.where(tangent & np.isin(dynamics.all.owner[held], contacts), 1.0, 0.0)
