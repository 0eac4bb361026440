"""One mode of a contact system: all that it says of a point comes of one solution there."""

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
from hybridctl.mechanics.constrained.equations import (
    AccelerationDerivatives,
    ContactAcceleration,
    Solution,
)
from hybridctl.mechanics.constrained.sliding import sliding_times
from hybridctl.mechanics.contact_law.law import Modes
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.guards import ContactGuards
from hybridctl.mechanics.modes.selection import select_modes

OFF_MODE = 1e-5
"""A state whose gaps (m) or speeds (m/s) are this far from what its mode holds is not of it."""

_OF_STOP = 0.9  # of the time to a stop in a surface: the field ends there


class ContactPoint(Point):
    """A point of a contact mode, x = (q, v), and what was found there."""

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
    def solved(self) -> tuple[Solution, Array]:
        """The equations, with any loads that redundant contacts may share, and gaps (c,)."""
        return self.mode.dynamics.solved(self.mode.phase, self.q, self.v, self.u)

    @PointProperty
    def carried(self) -> Solution:
        """The solution with loads shared."""
        return self.mode.dynamics.carried(self.solved[0])

    @PointProperty
    def moving(self) -> Solution:
        """The solution that tells the acceleration: loads matter where what shares them slides."""
        now = self.solved[0]
        return self.carried if now.kkt.redundant and now.phase.sliding else now

    @PointProperty
    def contact(self) -> ContactAcceleration:
        """Acceleration and forces, with loads shared."""
        return self.mode.contact_at(self)

    @PointProperty
    def derivatives(self) -> AccelerationDerivatives:
        """Derivatives of acceleration and forces."""
        return self.mode.dynamics.derivatives_at(self.q, self.v, self.u, self.contact)


class ContactMode(ModeModel):
    """The mode in which contacts are in `modes`."""

    point = ContactPoint

    def __init__(self, dynamics: ContactDynamics, modes: Modes, space: Space) -> None:
        self.dynamics, self.key, self.space = dynamics, modes, space
        self.nu, self.modes, self.phase = dynamics.robot.nu, modes, dynamics.phase(modes)
        self.contact_guards = ContactGuards.of(dynamics, modes)
        self.guard_names = self.contact_guards.names
        self.selects = bool(self.phase.closed)
        if self.phase.closed:
            self.steady_pace = None if self.phase.spatial else Pace(self._decay)
            if len(self.phase.solid):
                self.project, self.held = self._projected, self._held()

    def __reduce__(self) -> tuple[type[ContactMode], tuple[ContactDynamics, Modes, Space]]:
        return type(self), (self.dynamics, self.modes, self.space)

    @cached_property
    def guard_scales(self) -> Array:
        """The sizes (n,) of the guards: 1 m, 1 m/s, and the weight of the robot for forces."""
        return self.contact_guards.scales

    def contact_at(self, point: ContactPoint) -> ContactAcceleration:
        """The acceleration and the contact forces at a point."""
        if self.phase.closed:
            return self.dynamics.loaded(point.carried, point.solved[1])
        return self.dynamics.free(point.q, point.field[len(point.v) :])

    def field_at(self, point: ContactPoint) -> Array:
        """The field (v, a), (2 nv,)."""
        if self.phase.closed:
            return np.concatenate((point.v, point.moving.acceleration))
        a = self.dynamics.robot.free_acceleration(point.q, point.v, point.u)
        return np.concatenate((point.v, a))

    def guards_at(self, point: ContactPoint) -> Array:
        """The guards (n,)."""
        if self.phase.closed:
            return self.contact_guards.values(point.contact, point.q)
        return self.dynamics.gaps(point.q)

    def field_jacobian_at(self, point: ContactPoint) -> FieldJacobian:
        """The derivatives of the field, D_x (2 nv, 2 nv) and D_u (2 nv, nu)."""
        nv = len(point.v)
        both = np.zeros((2 * nv, 2 * nv + self.nu))
        np.fill_diagonal(both[:nv, nv:], 1.0)
        both[nv:] = point.derivatives.acceleration_z
        return FieldJacobian(both[:, : 2 * nv], both[:, 2 * nv :])

    def free_input_at(self, point: ContactPoint) -> Array:
        """The matrix (0, M^-1 S), (2 nv, nu): what inputs do where contacts give way."""
        moved = np.zeros((2 * len(point.v), self.nu))
        robot = self.dynamics.robot
        moved[len(point.v) :] = robot.inverse_mass(point.q) @ robot.actuation
        return moved

    def guard_jacobian_at(self, point: ContactPoint) -> GuardJacobian:
        """Derivatives of the guards by state (n, 2 nv) and input (n, nu)."""
        if self.phase.closed:
            return self.contact_guards.jacobian(point.q, point.derivatives)
        state = np.zeros((len(self.modes), 2 * len(point.v)))
        state[:, : len(point.v)] = self.dynamics.gap_jacobian(point.q)
        return GuardJacobian(np.zeros(len(state)), state, np.zeros((len(state), self.nu)))

    def guard_row_at(self, i: int, point: ContactPoint) -> GuardJacobian:
        """Derivatives of guard i, without those of whether sliding jams, which cost most."""
        if not self.phase.closed:
            return super().guard_row_at(i, point)
        return self.contact_guards.row(i, point.q, point.derivatives)

    def outputs_at(self, point: ContactPoint) -> Mapping[str, Array]:
        """Return the outputs that `contact_system` lists, by name, in arrays that last.

        Args:
            point: State, input and contact forces.
        """
        dynamics, now = self.dynamics, point.contact
        joints = range(1, len(dynamics.robot.joint_names) + 1)
        touching = len(now.forces) - len(dynamics.pressed)
        places = dynamics.all.in_world(point.q, now.forces, now.friction)[0]
        rubbing = {"joint_friction": now.friction[touching:, 0]} if dynamics.pressed else {}
        return {
            "gap": now.gaps[:touching],
            "normal_force": now.forces[:touching],
            "friction_force": now.friction[:touching],
            "slip_velocity": now.slip[:touching],
            "contact_position": places[:touching],
            **rubbing,
            "joint_position": dynamics.robot.poses(point.q, joints)[:, :3, 3],
            "energy": np.array(dynamics.robot.energy(point.q, point.v)),
            "momentum": dynamics.robot.momentum(point.q, point.v),
        }

    def select_at(self, point: ContactPoint) -> ModeKey:
        """The mode that flows on."""
        return select_modes(self.dynamics, point.q, point.v, point.u, self.modes, point.contact)

    def pace_at(self, point: ContactPoint) -> Pace:
        """Steps as long as the decay of residuals takes, none beyond a stop in a surface."""
        if self.steady_pace is not None:
            return self.steady_pace
        stop, turn = sliding_times(point.moving)
        return Pace(min(self._decay, _OF_STOP * stop), turn)

    @property
    def _decay(self) -> float:
        """How long residuals take to decay, s."""
        rate = self.dynamics.stabilization
        return 1.0 / rate if rate > 0.0 else np.inf

    def _held(self) -> Held:
        """What is held: closed contacts stay on their surface, and sticking ones stand."""
        phase, contacts = self.phase, self.dynamics.contacts
        names = [contacts[i].name for i in phase.solid_contacts]
        gaps = [f"the gap of contact {name!r}" for name in names]
        rates = [f"the normal speed of contact {name!r}" for name in names]
        slips = [
            f"the sliding speed of contact {contacts[phase.closed[k]].name!r}"
            for k in phase.owner[phase.sticking].tolist()
        ]
        count = len(names)
        return Held(
            (*gaps, *rates, *slips),
            self._residuals,
            np.full(count + len(phase.solid), OFF_MODE),
            ("m",) * count + ("m/s",) * len(phase.solid),
            jacobian=self._residuals_jacobian,
            decay=self.dynamics.stabilization,
        )

    def _residuals(self, x: Array) -> Array:
        """Gaps (k,) and rates (m,) that this mode holds at zero."""
        n = self.dynamics.robot.nq
        now = self.dynamics.terms.values(x[:n], x[n:], np.zeros(self.nu))
        gaps = self.dynamics.all.piece_gaps(x[:n], now.gaps)
        return np.concatenate((gaps[self.phase.solid_contacts], now.rates[self.phase.solid_rows]))

    def _residuals_jacobian(self, x: Array) -> Array:
        """The derivatives of the residuals by the state, (k + m, 2 nv)."""
        phase, (n, nv) = self.phase, (self.dynamics.robot.nq, self.dynamics.robot.nv)
        rates = self.dynamics.rate_derivatives(x[:n], x[n:])
        gaps = np.zeros((len(phase.solid_contacts), 2 * nv))
        gaps[:, :nv] = rates[phase.solid_contacts, nv:]
        return np.concatenate((gaps, rates[phase.solid_rows]))

    def _projected(self, x: Array) -> Array:
        """The state nearby with closed contacts closed and sticking ones at rest."""
        n = self.dynamics.robot.nq
        return np.concatenate(self.dynamics.projected(self.phase, x[:n], x[n:]))
