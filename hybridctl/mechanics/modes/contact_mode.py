"""One mode of a contact system: all quantities of a point come from one solution there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.spaces import Space
from hybridctl.hybrid.model import (
    FieldJacobian,
    GuardJacobian,
    Held,
    ModeKey,
    ModeModel,
    Pace,
    Point,
    PointProperty,
)
from hybridctl.mechanics.contact_law.law import Modes
from hybridctl.mechanics.modes.acceleration import (
    ContactAcceleration,
    complete_forces,
    make_acceleration,
    make_open_acceleration,
)
from hybridctl.mechanics.modes.constraint_equations import Solution
from hybridctl.mechanics.modes.derivatives import AccelerationDerivatives
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.guards import ContactGuards
from hybridctl.mechanics.modes.selection import select_modes
from hybridctl.mechanics.modes.slip_directions import compute_sliding_times

OFF_MODE = 1e-5
"""Gap (m) or speed (m/s) that its mode holds at zero, above which a state is not of that mode."""

_MAX_STEP_TO_STOP = 0.9
"""Longest step, relative to the time to a stop in a surface: the field ends there."""


class ContactPoint(Point):
    """A point of a contact mode, x = (q, v): each step of the pass, made when first asked for.

    `solution`, `force_solution` and `acceleration_solution` exist where a contact is closed.
    """

    mode: ContactMode

    @PointProperty
    def q(self) -> Array:
        """The configuration (nq,)."""
        return self.x[: self.mode.dynamics.robot.nq]

    @PointProperty
    def v(self) -> Array:
        """The velocity (nv,)."""
        return self.x[self.mode.dynamics.robot.nq :]

    @PointProperty
    def solution(self) -> Solution:
        """The solved equations, with any forces that redundant contacts may share."""
        return self.mode.dynamics.solve_phase(self.mode.phase, self.q, self.v, self.u)

    @PointProperty
    def force_solution(self) -> Solution:
        """The solution whose redundant contacts share forces."""
        return complete_forces(self.solution)

    @PointProperty
    def acceleration_solution(self) -> Solution:
        """The solution that has the acceleration of the mode.

        Where redundant contacts slide, forces change it: friction depends on normal forces.
        """
        solution = self.solution
        is_changed = solution.kkt.redundant and solution.phase.sliding
        return self.force_solution if is_changed else solution

    @PointProperty
    def contact(self) -> ContactAcceleration:
        """Acceleration and forces, as redundant contacts share them."""
        return self.mode.contact_at(self)

    @PointProperty
    def derivatives(self) -> AccelerationDerivatives:
        """Derivatives of acceleration and forces."""
        return self.mode.dynamics.derivatives_at(self.q, self.v, self.u, self.contact)


class ContactMode(ModeModel):
    """The mode in which contacts are in `modes`.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        modes: Modes of all contacts, the key of the mode.
        space: State space of (q, v).
    """

    point = ContactPoint

    def __init__(self, dynamics: ContactDynamics, modes: Modes, space: Space) -> None:
        self.dynamics, self.key, self.space = dynamics, modes, space
        self.nu, self.modes, self.phase = dynamics.robot.nu, modes, dynamics.phase(modes)
        self.contact_guards = ContactGuards.of(dynamics, modes)
        self.guard_names = self.contact_guards.names
        self.selects = bool(self.phase.closed)
        if self.phase.closed:
            self.steady_pace = None if self.phase.spatial else Pace(self._decay_time)
            if len(self.phase.solid_rows):
                self.project, self.held = self._project, self._make_held()

    def __reduce__(self) -> tuple[type[ContactMode], tuple[ContactDynamics, Modes, Space]]:
        return type(self), (self.dynamics, self.modes, self.space)

    @cached_property
    def guard_scales(self) -> Array:
        """The sizes (n,) of the guards: 1 m, 1 m/s, and the weight of the robot for forces."""
        return self.contact_guards.scales

    def contact_at(self, point: ContactPoint) -> ContactAcceleration:
        """Return the acceleration and the contact forces at a point."""
        if self.phase.closed:
            return make_acceleration(point.force_solution, len(self.modes))
        return make_open_acceleration(point.field[len(point.v) :], self.dynamics.gaps(point.q))

    def field_at(self, point: ContactPoint) -> Array:
        """Return the field (v, a), (2 nv,)."""
        if self.phase.closed:
            return np.concatenate((point.v, point.acceleration_solution.acceleration))
        a = self.dynamics.robot.free_acceleration(point.q, point.v, point.u)
        return np.concatenate((point.v, a))

    def guards_at(self, point: ContactPoint) -> Array:
        """Return the guards (n,)."""
        if self.phase.closed:
            return self.contact_guards.values(point.contact, point.q)
        return self.dynamics.gaps(point.q)

    def field_jacobian_at(self, point: ContactPoint) -> FieldJacobian:
        """Return the derivatives of the field, D_x (2 nv, 2 nv) and D_u (2 nv, nu)."""
        nv = len(point.v)
        both = np.zeros((2 * nv, 2 * nv + self.nu))
        np.fill_diagonal(both[:nv, nv:], 1.0)
        both[nv:] = point.derivatives.acceleration_z
        return FieldJacobian(both[:, : 2 * nv], both[:, 2 * nv :])

    def free_input_at(self, point: ContactPoint) -> Array:
        """Return the matrix (0, M^-1 S), (2 nv, nu): what inputs do where contacts give way."""
        moved = np.zeros((2 * len(point.v), self.nu))
        robot = self.dynamics.robot
        moved[len(point.v) :] = robot.inverse_mass(point.q) @ robot.actuation
        return moved

    def guard_jacobian_at(self, point: ContactPoint) -> GuardJacobian:
        """Return the derivatives of the guards by state (n, 2 nv) and input (n, nu)."""
        if self.phase.closed:
            return self.contact_guards.jacobian(point.q, point.derivatives)
        state = np.zeros((len(self.modes), 2 * len(point.v)))
        state[:, : len(point.v)] = self.dynamics.gap_jacobian(point.q)
        return GuardJacobian(np.zeros(len(state)), state, np.zeros((len(state), self.nu)))

    def guard_row_at(self, i: int, point: ContactPoint) -> GuardJacobian:
        """Return the derivatives of guard i.

        Those of the other guards are not computed: that sliding jams costs most.

        Args:
            i: Number of the guard.
            point: The point.
        """
        if not self.phase.closed:
            return super().guard_row_at(i, point)
        return self.contact_guards.row(i, point.q, point.derivatives)

    def outputs_at(self, point: ContactPoint) -> Mapping[str, Array]:
        """Return the outputs that `contact_system` lists, by name, in arrays that last.

        Args:
            point: State, input and contact forces.
        """
        dynamics, contact = self.dynamics, point.contact
        joints = range(1, len(dynamics.robot.joint_names) + 1)
        # Contacts in space come first, dry friction of joints last.
        touching = len(contact.forces) - len(dynamics.pressed_contacts)
        places = dynamics.contact_set.in_world(point.q, contact.forces, contact.friction)[0]
        joint_friction = (
            {"joint_friction": contact.friction[touching:, 0]} if dynamics.pressed_contacts else {}
        )
        return {
            "gap": contact.gaps[:touching],
            "normal_force": contact.forces[:touching],
            "friction_force": contact.friction[:touching],
            "slip_velocity": contact.slip[:touching],
            "contact_position": places[:touching],
            **joint_friction,
            "joint_position": dynamics.robot.poses(point.q, joints)[:, :3, 3],
            "energy": np.array(dynamics.robot.energy(point.q, point.v)),
            "momentum": dynamics.robot.momentum(point.q, point.v),
        }

    def select_at(self, point: ContactPoint) -> ModeKey:
        """Return the mode that flows on."""
        return select_modes(self.dynamics, point.q, point.v, point.u, self.modes, point.contact)

    def pace_at(self, point: ContactPoint) -> Pace:
        """Return the step-size limit: the decay time of residuals, and none beyond a stop."""
        if self.steady_pace is not None:
            return self.steady_pace
        stop, turn = compute_sliding_times(point.acceleration_solution)
        return Pace(min(self._decay_time, _MAX_STEP_TO_STOP * stop), turn)

    @property
    def _decay_time(self) -> float:
        """Time in s in which residuals decay; inf if they do not."""
        rate = self.dynamics.stabilization
        return 1.0 / rate if rate > 0.0 else np.inf

    def _make_held(self) -> Held:
        """Return the constraints: closed contacts stay on their surface, sticking ones at rest."""
        phase, contacts = self.phase, self.dynamics.contacts
        names = [contacts[i].name for i in phase.solid_contacts]
        gaps = [f"the gap of contact {name!r}" for name in names]
        rates = [f"the normal speed of contact {name!r}" for name in names]
        slips = [
            f"the sliding speed of contact {contacts[phase.closed[k]].name!r}"
            for k in phase.sticking_owner.tolist()
        ]
        count, rows = len(names), len(phase.solid_rows)
        return Held(
            (*gaps, *rates, *slips),
            self._compute_residuals,
            np.full(count + rows, OFF_MODE),
            ("m",) * count + ("m/s",) * rows,
            jacobian=self._differentiate_residuals,
            decay=self.dynamics.stabilization,
        )

    def _compute_residuals(self, x: Array) -> Array:
        """Return the gaps and rates (k + m,) that this mode holds at zero."""
        n = self.dynamics.robot.nq
        values = self.dynamics.terms.values(x[:n], x[n:], np.zeros(self.nu))
        gaps = self.dynamics.contact_set.piece_gaps(x[:n], values.gaps)
        return np.concatenate(
            (gaps[self.phase.solid_contacts], values.rates[self.phase.solid_rows])
        )

    def _differentiate_residuals(self, x: Array) -> Array:
        """Return the derivatives of the residuals by the state, (k + m, 2 nv)."""
        phase, (n, nv) = self.phase, (self.dynamics.robot.nq, self.dynamics.robot.nv)
        rates = self.dynamics.differentiate_rates(x[:n], x[n:])
        gaps = np.zeros((len(phase.solid_contacts), 2 * nv))
        gaps[:, :nv] = rates[phase.solid_contacts, nv:]
        return np.concatenate((gaps, rates[phase.solid_rows]))

    def _project(self, x: Array) -> Array:
        """Return the state nearby with closed contacts closed and sticking ones at rest."""
        n = self.dynamics.robot.nq
        return np.concatenate(self.dynamics.project_state(self.phase, x[:n], x[n:]))
