"""One mode of a contact system: all quantities of a point come from one solution there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
"""Size of a gap (m, rad) or speed (m/s, rad/s) that a mode holds at zero, above which a state is
not of that mode. A choice."""

MAX_STEP_TO_STOP = 0.9
"""Longest step, relative to the time to a stop in a surface: the field ends there. A choice, below
one."""


class ContactPoint(Point):
    """A point of a contact mode, x = (q, v): each step of the pass, made when first asked for.

    `solution`, `force_solution` and `acceleration_solution` are for modes with a closed contact:
    without one there are no equations to solve.
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
        if self.mode.phase.closed:
            return make_acceleration(self.force_solution, len(self.mode.modes))
        return make_open_acceleration(self.field[len(self.v) :], self.mode.dynamics.gaps(self.q))

    @PointProperty
    def derivatives(self) -> AccelerationDerivatives:
        """Derivatives of acceleration and forces."""
        return self.mode.dynamics.derivatives_at(self.q, self.v, self.u, self.contact)

    @PointProperty
    def field(self) -> Array:
        """The field (v, a), (2 nv,)."""
        if self.mode.phase.closed:
            return np.concatenate((self.v, self.acceleration_solution.acceleration))
        a = self.mode.dynamics.robot.free_acceleration(self.q, self.v, self.u)
        return np.concatenate((self.v, a))

    @PointProperty
    def guards(self) -> Array:
        """The guards (n,)."""
        if self.mode.phase.closed:
            return self.mode.contact_guards.values(self.contact, self.q)
        return self.mode.dynamics.gaps(self.q)

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field, D_x (2 nv, 2 nv) and D_u (2 nv, nu)."""
        nv = len(self.v)
        both = np.zeros((2 * nv, 2 * nv + self.mode.nu))
        np.fill_diagonal(both[:nv, nv:], 1.0)
        both[nv:] = self.derivatives.acceleration_z
        return FieldJacobian(both[:, : 2 * nv], both[:, 2 * nv :])

    @PointProperty
    def free_input(self) -> Array:
        """The matrix (0, M^-1 S), (2 nv, nu): what inputs do where contacts give way."""
        moved = np.zeros((2 * len(self.v), self.mode.nu))
        robot = self.mode.dynamics.robot
        moved[len(self.v) :] = robot.inverse_mass(self.q) @ robot.actuation
        return moved

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of the guards by time (n,), state (n, 2 nv) and input (n, nu).

        Without a closed contact the guards are the gaps, which depend on the configuration alone.
        """
        if self.mode.phase.closed:
            return self.mode.contact_guards.jacobian(self.q, self.derivatives)
        state = np.zeros((len(self.mode.modes), 2 * len(self.v)))
        state[:, : len(self.v)] = self.mode.dynamics.gap_jacobian(self.q)
        return GuardJacobian(np.zeros(len(state)), state, np.zeros((len(state), self.mode.nu)))

    def guard_row(self, i: int) -> GuardJacobian:
        """Return the derivatives of guard i: by time a number, by state (2 nv,), by input (nu,).

        Those of the other guards are not computed. Most of their time goes into "sliding jams".

        Args:
            i: Number of the guard.
        """
        # The derivatives of all gaps are one product.
        if not self.mode.phase.closed:
            return super().guard_row(i)
        return self.mode.contact_guards.row(i, self.q, self.derivatives)

    @PointProperty
    def outputs(self) -> Mapping[str, Array]:
        """The outputs by name, in arrays that last.

        Of the c contacts in space and joint stops, with stops of joints that turn in rad, N m and
        rad/s:

        - "gap" (c,), m, positive where open;
        - "normal_force" (c,), N, zero where open;
        - "friction_force" (c, 2), N, on the body with the point, along the tangents of the surface;
          zero where open, and where there is no such tangent;
        - "slip_velocity" (c, 2), m/s, of that point relative to the surface, likewise;
        - "contact_position" (c, 3), m, in the world.

        Where joints rub, "joint_friction" (j,), N m or N along the velocity of each such joint. Of
        the robot "joint_position" (joints, 3), m, the origin of each joint in the world; "energy"
        (2,), J, kinetic and potential; "momentum" (6,), linear in N s and angular about the centre
        of mass in N m s, along the axes of the world, without that of rotors.
        """
        dynamics, contact = self.mode.dynamics, self.contact
        joints = range(1, len(dynamics.robot.joint_names) + 1)
        # Contacts in space come first, dry friction of joints last.
        touching = len(contact.forces) - len(dynamics.pressed_contacts)
        places = dynamics.contact_set.express_in_world(self.q, contact.forces, contact.friction)[0]
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
            "joint_position": dynamics.robot.poses(self.q, joints)[:, :3, 3],
            "energy": np.array(dynamics.robot.energy(self.q, self.v)),
            "momentum": dynamics.robot.momentum(self.q, self.v),
        }

    @PointProperty
    def selected_mode(self) -> ModeKey:
        """The mode in which closed contacts obey Coulomb's law, see `selection`.

        Contacts that are open stay so: a gap that closes is an event.
        """
        mode = self.mode
        return select_modes(mode.dynamics, self.q, self.v, self.u, mode.modes, self.contact)

    @PointProperty
    def pace(self) -> Pace:
        """The step-size limits.

        A step is no longer than residuals take to decay, and than 0.9 of the time in which the
        first contact that slides in a surface stops: there its direction, and so the field, ends.
        The relaxation is the time in s in which friction turns a sliding velocity. Modes
        without such contacts have a `steady_pace`: their field goes on beyond a stop, which is the
        zero of a guard.
        """
        if self.mode.steady_pace is not None:
            return self.mode.steady_pace
        stop, turn = compute_sliding_times(self.acceleration_solution)
        return self.mode.limit_steps(stop, turn)


class ContactMode(ModeModel):
    """The mode in which contacts are in `modes`.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        modes: Modes of all contacts, the key of the mode.
        space: State space of (q, v).
        alike: The same mode of dynamics that differ in numbers alone, with which this one shares
            what does not depend on them. None for none.
    """

    point = ContactPoint

    def __init__(
        self,
        dynamics: ContactDynamics,
        modes: Modes,
        space: Space,
        alike: ContactMode | None = None,
    ) -> None:
        self.dynamics, self.key, self.space = dynamics, modes, space
        self.nu, self.modes, self.phase = dynamics.robot.nu, modes, dynamics.phase(modes)
        if alike is None:
            self.contact_guards = ContactGuards.of(dynamics, modes)
            self.guard_names = self.contact_guards.names
        else:
            self.contact_guards = ContactGuards(dynamics, modes, alike.contact_guards.guards)
            self.guard_names = alike.guard_names
        self.selects = bool(self.phase.closed)
        if self.phase.closed:
            self.steady_pace = None if self.phase.spatial else Pace(self.decay_time)
            if len(self.phase.solid_rows):
                self.project, self.held = self._project, self._make_held(alike)

    def __reduce__(self) -> tuple[type[ContactMode], tuple[ContactDynamics, Modes, Space]]:
        return type(self), (self.dynamics, self.modes, self.space)

    @cached_property
    def guard_scales(self) -> Array:
        """Sizes (n,) that tolerances of guards are relative to, see `ContactGuards.scales`."""
        return self.contact_guards.scales

    @property
    def decay_time(self) -> float:
        """Time constant in s with which residuals decay, 1 / `stabilization`; inf for none."""
        rate = self.dynamics.stabilization
        return 1.0 / rate if rate > 0.0 else np.inf

    def limit_steps(self, stop: float, turn: float) -> Pace:
        """Return the step-size limits where contacts slide in a surface, see `ContactPoint.pace`.

        Args:
            stop: Time in s in which the first one stops.
            turn: Time in s in which friction turns a sliding velocity.
        """
        return Pace(min(self.decay_time, MAX_STEP_TO_STOP * stop), turn)

    def _make_held(self, alike: ContactMode | None) -> Held:
        """Return the constraints: closed contacts stay on their surface, sticking ones at rest.

        Args:
            alike: The same mode of dynamics that differ in numbers alone; None for none.
        """
        if alike is not None and alike.held is not None:
            own = self._compute_residuals, self._differentiate_residuals
            return replace(alike.held, residuals=own[0], jacobian=own[1])
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
        """Return the state nearby with closed contacts closed and sticking ones at rest.

        It raises the error of `ContactDynamics.project_state` where gaps do not close.
        """
        n = self.dynamics.robot.nq
        return np.concatenate(self.dynamics.project_state(self.phase, x[:n], x[n:]))
