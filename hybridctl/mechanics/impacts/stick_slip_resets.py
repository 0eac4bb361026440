"""Resets at which contacts stop sliding, or begin to: they remove the rest of sliding velocities.

Events of both kinds have no impact: impulses are reported as zero. A contact that stops has at most
2e-8 m/s left (`STANDSTILL`). One that begins to slide has what integration has left of its rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.model import Jump, JumpPoint, ModeKey, ResetJacobian, ResetModel
from hybridctl.mechanics.contact_law.law import OPEN, SLIPS, STICK, Modes
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.impacts.stick_slip_boundary import check_sticking
from hybridctl.mechanics.modes.constraint_equations import Solution
from hybridctl.mechanics.modes.contact_mode import ContactPoint
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.guards import ContactGuard
from hybridctl.mechanics.modes.phase import ContactPhase, contact_modes
from hybridctl.mechanics.modes.slip_directions import compute_stop_response, find_slip_directions
from hybridctl.mechanics.modes.tolerances import STANDSTILL

UNLOADED = 1e-8
"""Normal force at and below which a contact is about to let go, relative to the robot's weight.

Without an event window a foot in space that slipped at 1e-9 of the weight was taken for sticking
again, three times in 1e-9 s, and the run was bridged; at 1e-8 it slips and opens
(test_feet_that_slip_just_before_they_let_go)."""


@dataclass(frozen=True)
class SlidingStop(ResetModel):
    """The reset of contacts that stop sliding and stick.

    Contacts that stop, and others that stand still at the same instant, stick. They lose what is
    left of their sliding velocities, at most 2e-8 m/s. Other guards that fired with the stop were
    evaluated beyond it, where friction has no direction. They take no part: the selection by
    accelerations decides about their contacts.

    Attributes:
        dynamics: Dynamics of the robot with its contacts.
        modes: Modes of all contacts before the event, in which those that stop still slide.
        stops: Names of the guards of contacts that stop, by contact.
    """

    dynamics: ContactDynamics
    modes: Modes
    stops: Mapping[int, str]

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump: velocities without the sliding of the contacts that stop.

        Args:
            t: Time, s.
            x: State (q, v) before.
            u: Input (nu,).
        """
        modes, stopped = self._select_stopped(x)
        after = _remove_sliding(self.dynamics, self.dynamics.phase(modes), x, stopped)
        took_part = tuple(name for i, name in self.stops.items() if i in stopped)
        return Jump(after, modes, np.zeros(len(self.modes)), guards=took_part or None)

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives; friction before the stop acts on perturbations, too."""
        phases, stopped = self._find_phases(at)
        return _make_reset_jacobian(self.dynamics, phases, at, stopped)

    def move_rates(self, at: JumpPoint, rates: Array) -> Array:
        """Return changes (2 nv, n) of the state after the event, for the same state before it.

        Args:
            at: The jump.
            rates: Changes (r, n) of the rates of all rows, by what changes their Jacobian.
        """
        phases, stopped = self._find_phases(at)
        same = np.zeros((2 * self.dynamics.robot.nv, rates.shape[1]))
        return _remove_perturbations(self.dynamics, phases, at, stopped, same, rates)

    def _find_phases(self, at: JumpPoint) -> tuple[tuple[ContactPhase, ContactPhase], list[int]]:
        """Return the phases before and after a jump, and the contacts that stick after it."""
        modes, stopped = self._select_stopped(at.x)
        return (self.dynamics.phase(self.modes), self.dynamics.phase(modes)), stopped

    def _select_stopped(self, x: Array) -> tuple[Modes, list[int]]:
        """Return the modes in which contacts at rest stick, and which contacts stick at rest."""
        n = self.dynamics.robot.nq
        slow = np.linalg.norm(self.dynamics.slip_velocities(x[:n], x[n:]), axis=1) <= STANDSTILL
        modes = tuple(
            STICK if m in SLIPS and s else m for m, s in zip(self.modes, slow, strict=True)
        )
        return modes, [i for i, m in enumerate(modes) if m == STICK and slow[i]]

    def find_border(self, at: JumpPoint, key: ModeKey, u_after: Array) -> None:
        """Check that no contact only just sticks after the stop; there is one derivative then.

        Args:
            at: The jump.
            key: Mode after the event.
            u_after: Input (nu,) after the event.
        """
        n = self.dynamics.robot.nq
        check_sticking(self.dynamics, at.x[:n], at.x[n:], u_after, contact_modes(key))


@dataclass(frozen=True)
class Breakaway(ResetModel):
    """The reset of sticking contacts that begin to slide, from rest.

    Integration leaves contacts small velocities while they stick, such as 1e-8 m/s after a ball has
    rolled for 0.3 s. They would be taken for sliding, against the direction in which friction
    yields. So they are removed.

    A contact that bears next to nothing (`UNLOADED`) opens in place of sliding: it is about to let
    go, and the selection of modes does not tell sliding from sticking there.

    Attributes:
        dynamics: Dynamics of the robot with its contacts.
        before: Modes of all contacts before.
        modes: Modes of all contacts after.
        begin: Contacts that begin to slide.
        guards: Names of the guards that took part; None for all.
    """

    dynamics: ContactDynamics
    before: Modes
    modes: Modes
    begin: tuple[int, ...]
    guards: tuple[str, ...] | None = None

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump: the velocity without the sliding that integration left.

        Args:
            t: Time, s.
            x: State (q, v) before.
            u: Input (nu,).
        """
        unloaded = self._find_unloaded(x, u)
        begin = tuple(i for i in self.begin if i not in unloaded)
        modes = tuple(OPEN if i in unloaded else mode for i, mode in enumerate(self.modes))
        after = x
        if begin:
            after = _remove_sliding(self.dynamics, self.dynamics.phase(self.before), x, begin)
        guards = self.guards
        if unloaded:
            opening = [i for i, m in enumerate(modes) if m == OPEN and self.before[i] != OPEN]
            guards = tuple(self._name_guard(i, modes) for i in (*opening, *begin))
        return Jump(after, modes, np.zeros(len(modes)), guards=guards)

    def _find_unloaded(self, x: Array, u: Array) -> set[int]:
        """Return the contacts that begin to slide but bear next to nothing.

        Args:
            x: State (q, v) before.
            u: Input (nu,).
        """
        dynamics, n = self.dynamics, self.dynamics.robot.nq
        light = UNLOADED * dynamics.force_scales
        forces = dynamics.acceleration(x[:n], x[n:], u, self.before).forces
        return {
            i for i in self.begin if i not in dynamics.pressed_contacts and forces[i] <= light[i]
        }

    def _name_guard(self, contact: int, modes: Modes) -> str:
        """Return the name of the guard at which a contact comes into its mode of some modes."""
        if modes[contact] == OPEN:
            guard = ContactGuard(contact, "opens")
        else:
            guard = ContactGuard(contact, "slips", SLIPS[modes[contact]])
        return guard.name(self.dynamics.contacts)

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives: perturbations of the velocities that it removes vanish."""
        phase = self.dynamics.phase(self.before)
        return _make_reset_jacobian(self.dynamics, (phase, phase), at, self.begin)

    def move_rates(self, at: JumpPoint, rates: Array) -> Array:
        """Return changes (2 nv, n) of the state after the event, for the same state before it.

        Args:
            at: The jump.
            rates: Changes (r, n) of the rates of all rows, by what changes their Jacobian.
        """
        phase = self.dynamics.phase(self.before)
        same = np.zeros((2 * self.dynamics.robot.nv, rates.shape[1]))
        return _remove_perturbations(self.dynamics, (phase, phase), at, self.begin, same, rates)


def _remove_sliding(
    dynamics: ContactDynamics, phase: ContactPhase, x: Array, contacts: Sequence[int]
) -> Array:
    """Return the state without sliding of some sticking contacts, by impulses of a phase.

    All other rates of constrained rows stay: normal velocities of closed contacts, and what other
    sticking contacts have. Contacts that slide on have friction along their velocities.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        phase: Phase in which the contacts stick.
        x: State (q, v).
        contacts: The contacts.
    """
    q, v = np.split(x, [dynamics.robot.nq])
    system, rows = _make_impulse_equations(dynamics, phase, q, v)
    change = -_make_tangent_flags(dynamics, phase, contacts) * (rows @ v)
    return np.concatenate((q, v + system.solve(np.zeros(len(v)), change)[0]))


def _remove_perturbations(
    dynamics: ContactDynamics,
    phases: tuple[ContactPhase, ContactPhase],
    at: JumpPoint,
    contacts: Sequence[int],
    changes: Array,
    rates: Array,
) -> Array:
    """Return what `_remove_sliding` makes of changes, where nothing has to be removed.

    In a surface friction has turned away all perturbations of a contact across its sliding
    direction when the contact stops; see `compute_stop_response`.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        phases: Phase before, in which contacts that stop still slide, and that in which they stick.
        at: The jump.
        contacts: The contacts.
        changes: Changes (2 nv, n) of the state.
        rates: Changes (r, n) of the rates of all rows that these make, and others.

    Returns:
        Changes (2 nv, n) of the state after.
    """
    before, phase = phases
    q, v = np.split(at.x, [dynamics.robot.nq])
    nv, held, solution = len(v), phase.constrained_rows, _find_solution_before(dynamics, before, at)
    system, _ = _make_impulse_equations(dynamics, phase, q, v)
    velocity = changes[nv:]
    spatial = tuple(
        slide.contact
        for slide in solution.phase.spatial
        if solution.phase.closed[slide.contact] in contacts
    )
    if spatial:
        response, across = compute_stop_response(solution, spatial)
        taken = response @ across.T @ rates[solution.phase.all_rows]
        velocity, rates = velocity - taken, rates - dynamics.contact_set.jacobian(q) @ taken
    wanted = -_make_tangent_flags(dynamics, phase, contacts)[:, None] * rates[held]
    removed, _ = system.solve(np.zeros_like(velocity), wanted)
    return np.vstack((changes[:nv], velocity + removed))


def _make_reset_jacobian(
    dynamics: ContactDynamics,
    phases: tuple[ContactPhase, ContactPhase],
    at: JumpPoint,
    contacts: Sequence[int],
) -> ResetJacobian:
    """Return the derivatives of `_remove_sliding`, see `_remove_perturbations`.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        phases: Phase before, and that in which the contacts stick.
        at: The jump.
        contacts: The contacts.
    """
    rates_z = dynamics.differentiate_rates(*np.split(at.x, [dynamics.robot.nq]))
    n = rates_z.shape[1]
    state = _remove_perturbations(dynamics, phases, at, contacts, np.eye(n), rates_z)
    return ResetJacobian(np.zeros(n), state, np.zeros((n, len(at.u))))


def _find_solution_before(
    dynamics: ContactDynamics, phase: ContactPhase, at: JumpPoint
) -> Solution:
    """Return the solved equations of a phase before a jump, from its point if that has them."""
    known = at.before
    if isinstance(known, ContactPoint) and known.mode.phase is phase:
        return known.solution
    q, v = np.split(at.x, [dynamics.robot.nq])
    return dynamics.solve_phase(phase, q, v, at.u)


def _make_impulse_equations(
    dynamics: ContactDynamics, phase: ContactPhase, q: Array, v: Array
) -> tuple[KKT, Array]:
    """Return the equations of impulses of a phase, and its constrained rows of J (m, nv)."""
    rows = dynamics.make_rows(phase, q, v, np.zeros(dynamics.robot.nu))
    directions, _ = find_slip_directions(phase, rows)
    constrained = rows.jacobian[phase.constrained]
    force, soft = (
        rows.jacobian.T @ phase.compute_mix(directions),
        rows.take_compliance(phase.constrained),
    )
    return KKT(rows.mass, constrained, force, compliance=soft), constrained


def _make_tangent_flags(
    dynamics: ContactDynamics, phase: ContactPhase, contacts: Sequence[int]
) -> Array:
    """Return 1 for constrained rows that are tangents of some contacts, else 0; shape (m,)."""
    held = phase.constrained_rows
    tangent = held >= len(dynamics.contacts)
    return np.where(tangent & np.isin(dynamics.contact_set.owner[held], contacts), 1.0, 0.0)
