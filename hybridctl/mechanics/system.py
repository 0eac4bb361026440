r"""The hybrid system of a robot with contacts; its modes are enumerated as they are entered.

A mode is a tuple with "open" or "closed" per contact. Guards ([RS] 2.3.3): the gap of an open
contact, the normal force of a closed one. When gaps close, the impact law decides which contacts
take part; which of them then stay closed is decided at acceleration level with the post-event
input ([RS] 2.3.4, Fig. 2.6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import UnknownNameError
from hybridctl.hybrid.mode import (
    Edge,
    FieldJacobian,
    GuardJacobian,
    GuardSet,
    Jump,
    Mode,
    ModeKey,
    Outgoing,
    Reset,
    ResetJacobian,
)
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.robot import Robot
from hybridctl.mechanics.state import RobotStateSpace

OPEN, CLOSED = "open", "closed"
ContactModes = tuple[str, ...]

_SEPARATION_SPEED = 1e-9


def contact_system(
    robot: Robot, contacts: Sequence[Contact], *, stabilization: float | None = None
) -> HybridSystem:
    """The hybrid system of a robot with unilateral frictionless contacts.

    State x = (q, v), input u the actuated joint torques or forces. Mode keys are tuples of
    "open" and "closed" in the order of `contacts`; guards are named "<contact> closes" (the gap,
    in m) and "<contact> opens" (the normal force, in N). `stabilization` is the rate in 1/s at
    which a closed contact's residual gap decays (see `ContactDynamics`).

    Raises `InputError` for contacts that do not fit the robot.
    """
    options = {} if stabilization is None else {"stabilization": stabilization}
    assembly = _Assembly(ContactDynamics(robot, contacts, **options), RobotStateSpace(robot))
    return HybridSystem(assembly.mode, assembly.outgoing)


@dataclass(frozen=True)
class _Assembly:
    """Modes, guards and edges of the system, made on demand."""

    dynamics: ContactDynamics
    space: RobotStateSpace

    def mode(self, key: ModeKey) -> Mode:
        closed = closed_contacts(self._checked(key))
        dynamics, n = self.dynamics, self.dynamics.robot.nq

        def field(t: float, x: Array, u: Array) -> Array:
            v = x[n:]
            return np.concatenate((v, dynamics.acceleration(x[:n], v, u, closed).acceleration))

        def jacobian(t: float, x: Array, u: Array) -> FieldJacobian:
            d = dynamics.acceleration_derivatives(x[:n], x[n:], u, closed)
            nv = d.acceleration_q.shape[0]
            upper = np.hstack([np.zeros((nv, nv)), np.eye(nv)])
            lower = np.hstack([d.acceleration_q, d.acceleration_v])
            return FieldJacobian(
                np.vstack([upper, lower]),
                np.vstack([np.zeros_like(d.acceleration_u), d.acceleration_u]),
            )

        def outputs(t: float, x: Array, u: Array) -> Mapping[str, Array]:
            q, v = x[:n], x[n:]
            return {
                "normal_force": dynamics.acceleration(q, v, u, closed).forces,
                "gap": dynamics.gaps(q),
            }

        def select(t: float, x: Array, u: Array) -> ModeKey:
            staying = dynamics.select_closed(x[:n], x[n:], u, closed)
            return self._key(staying)

        return Mode(
            key,
            self.space,
            field,
            self.dynamics.robot.nu,
            jacobian,
            outputs,
            select if closed else None,
        )

    def outgoing(self, key: ModeKey) -> Outgoing:
        modes = self._checked(key)
        return Outgoing(self._guards(modes), lambda fired: self._edge(modes, fired))

    def _guards(self, modes: ContactModes) -> GuardSet:
        closed = closed_contacts(modes)
        dynamics, n = self.dynamics, self.dynamics.robot.nq
        is_open = np.array([mode == OPEN for mode in modes])
        names = tuple(
            f"{contact.name} {'closes' if mode == OPEN else 'opens'}"
            for contact, mode in zip(dynamics.contacts, modes, strict=True)
        )

        def values(t: float, x: Array, u: Array) -> Array:
            q = x[:n]
            if not closed:
                return dynamics.gaps(q)
            forces = dynamics.acceleration(q, x[n:], u, closed).forces
            return np.where(is_open, dynamics.gaps(q), forces)

        def jacobian(t: float, x: Array, u: Array) -> GuardJacobian:
            q, v = x[:n], x[n:]
            d = dynamics.acceleration_derivatives(q, v, u, closed)
            gap = dynamics.gap_jacobian(q)
            gap_rows = np.hstack([gap, np.zeros_like(gap)])
            force_rows = np.hstack([d.forces_q, d.forces_v])
            state = np.where(is_open[:, None], gap_rows, force_rows)
            return GuardJacobian(np.zeros(len(names)), state, d.forces_u)

        return GuardSet(names, values, jacobian)

    def _edge(self, modes: ContactModes, fired: tuple[str, ...]) -> Edge:
        names = [contact.name for contact in self.dynamics.contacts]
        hit = {i for i, name in enumerate(names) if f"{name} closes" in fired}
        left = {i for i, name in enumerate(names) if f"{name} opens" in fired}
        closed = set(closed_contacts(modes))
        if not hit:
            return Edge(self._release(self._key(tuple(sorted(closed - left)))))
        return Edge(self._impact(tuple(sorted(closed | hit))))

    def _release(self, mode: ContactModes) -> Reset:
        """Contacts open without an impulse."""
        none = np.zeros(len(self.dynamics.contacts))
        return Reset(lambda t, x, u: Jump(x, mode, none), Reset.identity(self.space.ndx).jacobian)

    def _impact(self, participating: tuple[int, ...]) -> Reset:
        """Impact of the closing contacts with those that are closed already."""
        dynamics, n = self.dynamics, self.dynamics.robot.nq

        def jump(t: float, x: Array, u: Array) -> Jump:
            q = x[:n]
            result = dynamics.impact(q, x[n:], participating)
            separation = dynamics.gap_rates(q, result.velocity_after)
            touching = tuple(i for i in participating if separation[i] <= _SEPARATION_SPEED)
            after = np.concatenate([q, result.velocity_after])
            return Jump(after, self._key(touching), result.impulses, result)

        def jacobian(t: float, x: Array, u: Array) -> ResetJacobian:
            q, v = x[:n], x[n:]
            active = dynamics.impact(q, v, participating).active
            d = dynamics.impact_derivatives(q, v, active)
            nv = len(v)
            state = np.block([[np.eye(nv), np.zeros((nv, nv))], [d.velocity_q, d.velocity_v]])
            return ResetJacobian(np.zeros(2 * nv), state, np.zeros((2 * nv, len(u))))

        return Reset(jump, jacobian)

    def _key(self, closed: tuple[int, ...]) -> ContactModes:
        inside = set(closed)
        count = len(self.dynamics.contacts)
        return tuple(CLOSED if i in inside else OPEN for i in range(count))

    def _checked(self, key: ModeKey) -> ContactModes:
        contacts = self.dynamics.contacts
        if (
            not isinstance(key, tuple)
            or len(key) != len(contacts)
            or any(mode not in (OPEN, CLOSED) for mode in key)
        ):
            names = [contact.name for contact in contacts]
            raise UnknownNameError(
                f"mode {key!r} is unknown, expected a tuple with 'open' or 'closed' for each of "
                f"the contacts {names}"
            )
        return key


def closed_contacts(mode: ModeKey) -> tuple[int, ...]:
    """Indices of the contacts that are closed in a mode of a contact system."""
    if not isinstance(mode, tuple):
        raise UnknownNameError(f"mode {mode!r} is no tuple of contact modes")
    return tuple(i for i, contact in enumerate(mode) if contact == CLOSED)
