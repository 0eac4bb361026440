r"""The hybrid system of a robot with contacts; its modes are enumerated as they are entered.

A mode is a tuple with the mode of every contact: "open" and, without friction, "closed"; with
friction "stick", and "slip+" and "slip-" where the contact slides along one direction (the sign
is that of its velocity) or "slip" where it slides in a surface. Guards ([RS] 2.3.3):

- "<contact> closes": the gap h of an open contact, m;
- "<contact> opens": the normal force of a closed one, N;
- "<contact> slips": mu_s lambda_n - |lambda_t| of a sticking one, N; where there is one direction
  "<contact> slips+" and "<contact> slips-", mu_s lambda_n + lambda_t and mu_s lambda_n - lambda_t;
- "<contact> sticks": the signed speed of "slip+" and "slip-", m/s. In a surface |v_t| - 1e-9 m/s,
  whose gradient is that of s . v_t with s the direction at the event: |v_t| itself has no
  derivative at zero.

When gaps close, the impact law decides which contacts take part; which of them then stay closed,
stick or slip is decided at acceleration level with the post-event input ([RS] 2.3.4, Fig. 2.6).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import UnknownNameError
from hybridctl.hybrid.mode import (
    Edge,
    FieldJacobian,
    Jump,
    Mode,
    ModeKey,
    Outgoing,
    Pace,
    Reset,
    ResetBorder,
    ResetJacobian,
)
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.border import clearly_held, impact_border
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.coulomb.law import (
    CLOSED,
    OPEN,
    SLIP,
    SLIP_MINUS,
    SLIP_PLUS,
    SLIPS,
    STICK,
    Modes,
)
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.guards import contact_guards
from hybridctl.mechanics.impact import impact, impact_derivatives, settle
from hybridctl.mechanics.phase import STANDSTILL
from hybridctl.mechanics.robot import Robot
from hybridctl.mechanics.selection import select_modes
from hybridctl.mechanics.sliding import sliding_times
from hybridctl.mechanics.state import RobotStateSpace

_TOUCH = 2e-8
_OF_STOP = 0.9
_RESTING_SPEED = 1e-4
_AFTER = {"slips": SLIP, "slips+": SLIP_PLUS, "slips-": SLIP_MINUS, "sticks": STICK, "opens": OPEN}


def contact_system(
    robot: Robot, contacts: Sequence[Contact], *, stabilization: float | None = None
) -> HybridSystem:
    """The hybrid system of a robot with unilateral contacts with friction.

    State x = (q, v), input u the actuated joint torques or forces. Mode keys and guards are
    those of this module, in the order of `contacts`. Outputs of a mode: "gap" (c,) m,
    "normal_force" (c,) N, "friction_force" (c, 2) N and "slip_velocity" (c, 2) m/s along the
    tangents of each surface, zero where open. `stabilization` is the rate in 1/s at which a
    closed contact's residual gap and a sticking one's residual speed decay (see
    `ContactDynamics`).

    Raises `InputError` for contacts that do not fit the robot.
    """
    options = {} if stabilization is None else {"stabilization": stabilization}
    assembly = _Assembly(ContactDynamics(robot, contacts, **options), RobotStateSpace(robot))
    return HybridSystem(assembly.mode, assembly.outgoing, assembly.guard_names())


@dataclass(frozen=True)
class _Assembly:
    """Modes, guards and edges of the system, made on demand."""

    dynamics: ContactDynamics
    space: RobotStateSpace

    def mode(self, key: ModeKey) -> Mode:
        modes = self._checked(key)
        dynamics, n = self.dynamics, self.dynamics.robot.nq

        def field(t: float, x: Array, u: Array) -> Array:
            v = x[n:]
            return np.concatenate((v, dynamics.acceleration(x[:n], v, u, modes).acceleration))

        def jacobian(t: float, x: Array, u: Array) -> FieldJacobian:
            v = x[n:]
            d = dynamics.acceleration_derivatives(x[:n], v, u, modes)
            nv = len(v)
            state, input = np.zeros((2 * nv, 2 * nv)), np.zeros((2 * nv, len(u)))
            state[:nv, nv:] = np.eye(nv)
            state[nv:, :nv], state[nv:, nv:] = d.acceleration_q, d.acceleration_v
            input[nv:] = d.acceleration_u
            return FieldJacobian(state, input, np.concatenate((v, d.acceleration)))

        def outputs(t: float, x: Array, u: Array) -> Mapping[str, Array]:
            q, v = x[:n], x[n:]
            now = dynamics.acceleration(q, v, u, modes)
            return {
                "gap": dynamics.gaps(q),
                "normal_force": now.forces,
                "friction_force": now.friction,
                "slip_velocity": now.slip,
            }

        def select(t: float, x: Array, u: Array) -> ModeKey:
            return select_modes(dynamics, x[:n], x[n:], u, modes)

        def pace(t: float, x: Array, u: Array) -> Pace:
            """Steps as long as the decay of residuals takes, none beyond a stop in a surface."""
            decay = 1.0 / dynamics.stabilization if dynamics.stabilization > 0.0 else np.inf
            stop, turn = sliding_times(dynamics, x[:n], x[n:], u, modes)
            return Pace(min(decay, _OF_STOP * stop), turn)

        def project(x: Array) -> Array:
            return np.concatenate(dynamics.projected(dynamics.phase(modes), x[:n], x[n:]))

        free = not closed_contacts(modes)
        return Mode(
            key,
            self.space,
            field,
            self.dynamics.robot.nu,
            jacobian,
            outputs,
            None if free else select,
            None if free else pace,
            None if free else project,
        )

    def outgoing(self, key: ModeKey) -> Outgoing:
        modes = self._checked(key)
        guards = contact_guards(self.dynamics, modes)
        return Outgoing(
            guards,
            lambda fired: self._edge(modes, fired),
            lambda fired: self._rest(modes, fired),
        )

    def _rest(self, modes: Modes, fired: tuple[str, ...]) -> Edge | None:
        """Contacts whose impacts accumulate close without bouncing."""
        hit = {i for i, what in self._events(fired) if what == "closes"}
        if not hit:
            return None
        dynamics, n = self.dynamics, self.dynamics.robot.nq
        known = hit.union(closed_contacts(modes))

        def jump(t: float, x: Array, u: Array) -> Jump:
            settled = settle(dynamics, x[:n], x[n:], self._touching(x[:n], x[n:], known))
            after = np.concatenate([x[:n], settled.velocity_after])
            return Jump(after, settled.modes, settled.impulses, settled)

        return Edge(Reset(jump))

    def _events(self, fired: tuple[str, ...]) -> Iterator[tuple[int, str]]:
        """Contact and event of guards."""
        names = [contact.name for contact in self.dynamics.contacts]
        for name in fired:
            contact, what = name.rsplit(" ", 1)
            yield names.index(contact), what

    def _edge(self, modes: Modes, fired: tuple[str, ...]) -> Edge:
        after, hit = list(modes), []
        events = list(self._events(fired))
        stops = any(what == "sticks" for _, what in events)
        for i, what in events:
            if what == "closes":
                hit.append(i)
            elif after[i] != OPEN and (what == "sticks" or not stops):
                after[i] = _AFTER[what]
        if not hit:
            return Edge(self._change(tuple(after), stops))
        return Edge(self._impact({*closed_contacts(modes), *hit}))

    def _change(self, modes: Modes, stops: bool) -> Reset:
        """Contacts open, stick or slip without an impulse.

        Where one stops sliding, those that stand still with it stick too. What other guards say
        at that instant was seen beyond the stop, where friction has no direction; the selection
        by accelerations decides about them.
        """
        dynamics, n = self.dynamics, self.dynamics.robot.nq
        none = np.zeros(len(dynamics.contacts))

        def jump(t: float, x: Array, u: Array) -> Jump:
            if not stops:
                return Jump(x, modes, none)
            slow = np.linalg.norm(dynamics.slip_velocities(x[:n], x[n:]), axis=1) <= STANDSTILL
            stand = [STICK if m in SLIPS and s else m for m, s in zip(modes, slow, strict=True)]
            return Jump(x, tuple(stand), none)

        def border(t: float, x: Array, u: Array, key: ModeKey, u_after: Array) -> None:
            clearly_held(dynamics, x[:n], x[n:], u_after, self._checked(key))

        return Reset(jump, Reset.identity(self.space.ndx).jacobian, border if stops else None)

    def _touching(self, q: Array, v: Array, known: set[int]) -> tuple[int, ...]:
        """These contacts, and all others that rest on their surface without a force.

        One whose gap closes at the same instant, but that moves, has an event of its own.
        """
        near = np.abs(self.dynamics.gaps(q)) <= _TOUCH
        resting = near & (np.abs(self.dynamics.gap_rates(q, v)) <= _RESTING_SPEED)
        return tuple(sorted(known.union(np.flatnonzero(resting).tolist())))

    def _impact(self, known: set[int]) -> Reset:
        """Impact of the closing contacts with those that touch already."""
        dynamics, n = self.dynamics, self.dynamics.robot.nq

        def jump(t: float, x: Array, u: Array) -> Jump:
            q = x[:n]
            result = impact(dynamics, q, x[n:], self._touching(q, x[n:], known))
            after = np.concatenate([q, result.velocity_after])
            return Jump(after, result.modes, result.impulses, result)

        def jacobian(t: float, x: Array, u: Array) -> ResetJacobian:
            q, v = x[:n], x[n:]
            result = impact(dynamics, q, v, self._touching(q, v, known))
            d = impact_derivatives(dynamics, q, v, result)
            nv = len(v)
            state = np.block([[np.eye(nv), np.zeros((nv, nv))], [d.velocity_q, d.velocity_v]])
            return ResetJacobian(np.zeros(2 * nv), state, np.zeros((2 * nv, len(u))))

        def border(
            t: float, x: Array, u: Array, key: ModeKey, u_after: Array
        ) -> ResetBorder | None:
            q, v, after = x[:n], x[n:], self._checked(key)
            result = impact(dynamics, q, v, self._touching(q, v, known))
            clearly_held(dynamics, q, result.velocity_after, u_after, after)
            return impact_border(dynamics, q, v, result, after, u_after)

        return Reset(jump, jacobian, border)

    def guard_names(self) -> Iterator[str]:
        """Those of all modes: a mode of one contact has the same guards whatever the others do."""
        known = [self._known(i) for i in range(len(self.dynamics.contacts))]
        for row in zip_longest(*known, fillvalue=OPEN):
            yield from contact_guards(self.dynamics, row).names

    def _checked(self, key: ModeKey) -> Modes:
        contacts = self.dynamics.contacts
        known = [self._known(i) for i in range(len(contacts))]
        if (
            not isinstance(key, tuple)
            or len(key) != len(contacts)
            or any(mode not in modes for mode, modes in zip(key, known, strict=True))
        ):
            raise UnknownNameError(
                f"mode {key!r} is unknown, expected a tuple with one of these for each contact: "
                + ", ".join(f"{c.name} {modes}" for c, modes in zip(contacts, known, strict=True))
            )
        return key

    def _known(self, i: int) -> Modes:
        """The modes of contact i."""
        tangents = len(self.dynamics.all.tangents[i])
        return {0: (OPEN, CLOSED), 1: (OPEN, STICK, SLIP_PLUS, SLIP_MINUS)}.get(
            tangents, (OPEN, STICK, SLIP)
        )


def closed_contacts(mode: ModeKey) -> tuple[int, ...]:
    """Indices of the contacts that are closed in a mode of a contact system."""
    if not isinstance(mode, tuple):
        raise UnknownNameError(f"mode {mode!r} is no tuple of contact modes")
    return tuple(i for i, contact in enumerate(mode) if contact in (CLOSED, STICK, *SLIPS))
