"""The guards of a mode of a contact system, evaluated together; see `system` for their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.mode import GuardJacobian
from hybridctl.mechanics.contact_states import (
    OPEN,
    SLIP,
    SLIP_MINUS,
    SLIP_PLUS,
    SLIPS,
    STICK,
    Modes,
)
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.equations import AccelerationDerivatives, ContactAcceleration
from hybridctl.mechanics.jamming import can_jam, response_ratio, response_ratio_derivative
from hybridctl.mechanics.sliding import sliding_directions, stop_of
from hybridctl.mechanics.tolerances import JAMMED, STANDSTILL, STOPPED

Kind = Literal["closes", "opens", "slips", "sticks", "jams"]
_ALL = -1
_SIGNS = {0.0: "", 1.0: "+", -1.0: "-"}
_SLIP_OF = {0.0: SLIP, 1.0: SLIP_PLUS, -1.0: SLIP_MINUS}


class ContactGuard(NamedTuple):
    """One guard: index of the contact, what happens, and the sign of the direction it looks in.

    The sign is zero in a surface, and where there is no direction. "jams" is of all contacts that
    slide, and has no index.
    """

    contact: int
    kind: Kind
    sign: float = 0.0

    def name(self, contacts: Sequence[Contact]) -> str:
        """For print, and as the guard's name in the mode graph."""
        if self.kind == "jams":
            return "sliding jams"
        sign = _SIGNS[self.sign] if self.kind == "slips" else ""
        return f"{contacts[self.contact].name} {self.kind}{sign}"

    @property
    def mode_after(self) -> str:
        """The mode of the contact after it, where that needs no impact."""
        if self.kind == "slips":
            return _SLIP_OF[self.sign]
        return STICK if self.kind == "sticks" else OPEN


@dataclass(frozen=True)
class ContactGuards:
    """All guards of a mode: their values (n,), and exact derivatives."""

    dynamics: ContactDynamics
    modes: Modes
    guards: tuple[ContactGuard, ...]

    @staticmethod
    def of(dynamics: ContactDynamics, modes: Modes) -> ContactGuards:
        """The guards of a mode, in the order of the contacts."""
        return ContactGuards(dynamics, modes, tuple(_guards(dynamics, modes)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the guards, different from each other."""
        return tuple(guard.name(self.dynamics.contacts) for guard in self.guards)

    @property
    def scales(self) -> Array:
        """Sizes that tolerances of the guards are relative to: 1 m, 1 m/s, the robot's weight."""
        weight = self.dynamics.robot.weight
        forces = ("opens", "slips")
        return np.array([weight if guard.kind in forces else 1.0 for guard in self.guards])

    def values(self, point: ContactAcceleration) -> Array:
        """Of gaps in m, forces in N, speeds in m/s; positive inside the mode."""
        return np.array([self._value(guard, point) for guard in self.guards])

    def jacobian(self, q: Array, d: AccelerationDerivatives) -> GuardJacobian:
        """Derivatives by state (n, 2 nv) and input (n, nu), given those of the point."""
        nv = self.dynamics.robot.nv
        z = np.array([self._slope(guard, q, d) for guard in self.guards])
        return GuardJacobian(np.zeros(len(z)), z[:, : 2 * nv], z[:, 2 * nv :])

    def row(self, i: int, q: Array, d: AccelerationDerivatives) -> GuardJacobian:
        """Those of guard i alone."""
        n, z = 2 * self.dynamics.robot.nv, self._slope(self.guards[i], q, d)
        return GuardJacobian(np.zeros(()), z[:n], z[n:])

    def _slope(self, guard: ContactGuard, q: Array, d: AccelerationDerivatives) -> Array:
        """The derivative (2 nv + nu,) of a guard."""
        return self._jams(q, d) if guard.kind == "jams" else self._change(guard, d)

    def by_parameters(self, d: AccelerationDerivatives, static_p: Array) -> Array:
        """D_p g (n, np), for parameters that leave kinematics alone.

        d: derivatives of the point by them; static_p (c, np): of the static coefficients of
        friction. Of "jams", where a run ends, they are left out.
        """
        rows = np.zeros((len(self.guards), static_p.shape[1]))
        for row, guard in zip(rows, self.guards, strict=True):
            if guard.kind != "jams":
                row += self._change(guard, d)
            if guard.kind == "slips":
                row += static_p[guard.contact] * d.point.forces[guard.contact]
        return rows

    def _value(self, guard: ContactGuard, point: ContactAcceleration) -> float:
        i, kind, sign = guard
        if kind == "jams":
            now = point.solution
            return (1.0 if now is None else response_ratio(now)) - JAMMED
        if kind == "closes":
            return float(point.gaps[i])
        if kind == "opens":
            return float(point.forces[i])
        if kind == "sticks":
            if point.holds(i):
                return -STANDSTILL
            return float(sign * point.slip[i, 0] if sign else np.hypot(*point.slip[i]) - STOPPED)
        pull = -sign * point.friction[i, 0] if sign else np.hypot(*point.friction[i])
        return float(self.dynamics.static_friction[i] * point.forces[i] - pull)

    def _change(self, guard: ContactGuard, d: AccelerationDerivatives) -> Array:
        """The derivative (.,) of a guard."""
        i, kind, sign = guard
        if kind == "closes":
            return np.asarray(d.gaps_z[i])
        if kind == "opens":
            return np.asarray(d.forces_z[i])
        if kind == "sticks":
            return np.asarray(np.tensordot(self._slowing(guard, d.point), d.slip_z, axes=2))
        limit = self.dynamics.static_friction[i] * d.forces_z[i]
        return np.asarray(limit - _along(-sign, d.point.friction[i]) @ d.friction_z[i])

    def _jams(self, q: Array, d: AccelerationDerivatives) -> Array:
        """The derivative (2 nv + nu,) of the response ratio."""
        change = np.zeros(d.acceleration_z.shape[1])
        if d.point.solution is not None:
            columns = 2 * self.dynamics.robot.nv
            terms, rates_z = self.dynamics.terms, d.rates_z[:, :columns]
            change[:columns] = response_ratio_derivative(terms, q, d.point.solution, rates_z)
        return change

    def _slowing(self, guard: ContactGuard, point: ContactAcceleration) -> Array:
        """The speed of a contact as a sum over sliding velocities, by its weights (c, 2).

        At a stop in a surface friction has taken away perturbations across, and has changed the
        speed along while it did (see `sliding.stop_of`).
        """
        weights = np.zeros((len(self.modes), 2))
        if guard.sign or point.solution is None or point.holds(guard.contact):
            weights[guard.contact, 0] = guard.sign
            return weights
        now = point.solution
        phase = now.phase
        k = phase.closed.index(guard.contact)
        along = np.zeros(len(phase.owner))
        s = now.directions[k]
        along[phase.tangents[k]] = s if s @ point.slip[guard.contact] >= 0.0 else -s
        _, slow = sliding_directions(phase, now.rows)
        if k in slow:
            response, across = stop_of(now, tuple(slow))
            along -= across @ (along @ now.rows.jacobian @ response)
        weights[list(phase.closed)] = phase.spread(along)[1]
        return weights


def closing_guards(contacts: Sequence[Contact]) -> tuple[str, ...]:
    """The guards at which contacts close: their gaps, in m."""
    return tuple(ContactGuard(i, "closes").name(contacts) for i in range(len(contacts)))


def _guards(dynamics: ContactDynamics, modes: Modes) -> Iterator[ContactGuard]:
    for i, mode in enumerate(modes):
        if mode == OPEN:
            yield ContactGuard(i, "closes")
            continue
        yield ContactGuard(i, "opens")
        if mode == STICK and len(dynamics.all.tangents[i]) == 1:
            yield ContactGuard(i, "slips", 1.0)
            yield ContactGuard(i, "slips", -1.0)
        elif mode == STICK:
            yield ContactGuard(i, "slips")
        elif mode in SLIPS:
            yield ContactGuard(i, "sticks", SLIPS[mode])
    if can_jam(dynamics.phase(modes)):
        yield ContactGuard(_ALL, "jams")


def _along(sign: float, vector: Array) -> Array:
    """The unit direction (2,) in which a guard looks at sliding velocity or friction."""
    if sign:
        return np.array([sign, 0.0])
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0.0 else np.zeros(2)
