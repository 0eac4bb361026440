"""The guards of a mode of a contact system, evaluated together; see `system` for their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.hybrid.mode import GuardJacobian
from hybridctl.mechanics.constrained.equations import AccelerationDerivatives, ContactAcceleration
from hybridctl.mechanics.constrained.sliding import sliding_directions, stop_of
from hybridctl.mechanics.constrained.tolerances import JAMMED, ON_CONE, STANDSTILL, STOPPED
from hybridctl.mechanics.contact_law.law import (
    OPEN,
    SLIP,
    SLIP_MINUS,
    SLIP_PLUS,
    SLIPS,
    STICK,
    Modes,
)
from hybridctl.mechanics.contacts.joint_contacts import AnyContact
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.jamming import can_jam, response_ratio, response_ratio_derivative

_ON_BORDER = 1e-9
"""Of the largest normal force: what the programme of redundant forces leaves of zero at a border
that it holds."""

Kind = Literal["closes", "opens", "slips", "sticks", "jams", "leaves"]
_ALL = -1
_FORCES = ("opens", "slips")
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

    def name(self, contacts: Sequence[AnyContact]) -> str:
        """The guard's name, in print and in the mode graph."""
        if self.kind == "jams":
            return "sliding jams"
        if self.kind == "leaves":
            return f"{contacts[self.contact].name} leaves its piece"
        sign = _SIGNS[self.sign] if self.kind == "slips" else ""
        return f"{contacts[self.contact].name} {self.kind}{sign}"

    @property
    def mode_after(self) -> str:
        """The mode of the contact after it, where that needs no impact."""
        if self.kind == "slips":
            return _SLIP_OF[self.sign]
        return STICK if self.kind == "sticks" else OPEN


class Alike(NamedTuple):
    """Guards of one kind: their places among all, and their contacts and signs, (k,) each.

    Signs are None where all are zero.
    """

    at: Indices
    contacts: Indices
    signs: Array | None

    @staticmethod
    def of(guards: Sequence[ContactGuard], at: Sequence[int]) -> Alike:
        """The guards at these places."""
        contacts, _, signs = zip(*(guards[j] for j in at), strict=True)
        return Alike(np.array(at), np.array(contacts), np.array(signs) if any(signs) else None)


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
        """Sizes that tolerances of the guards are relative to.

        They are 1 m, 1 m/s, the robot's weight, and for dry friction of joints its limit.
        """
        sizes = self.dynamics.force_scales.tolist()
        return np.array([sizes[g.contact] if g.kind in _FORCES else 1.0 for g in self.guards])

    @cached_property
    def _forces(self) -> list[int]:
        """The numbers of guards that are forces."""
        return [j for j, guard in enumerate(self.guards) if guard.kind in _FORCES]

    @cached_property
    def _kinds(self) -> dict[Kind, Alike]:
        """Guards of each kind that there is."""
        found = {}
        for kind in dict.fromkeys(guard.kind for guard in self.guards):
            at = [j for j, guard in enumerate(self.guards) if guard.kind == kind]
            found[kind] = Alike.of(self.guards, at)
        return found

    def values(self, point: ContactAcceleration, q: Array) -> Array:
        """Return the values (n,), positive inside the mode.

        Forces of redundant contacts that are held at the border of their cones, or inside by
        rounding alone, are there exactly.

        Args:
            point: Acceleration and forces of the mode.
            q: Configuration (nq,) of the point.

        Returns:
            Gaps and margins in m, forces in N, speeds in m/s.
        """
        values = np.empty(len(self.guards))
        for kind, alike in self._kinds.items():
            if kind == "leaves":
                values[alike.at] = self.dynamics.all.margins(q)[alike.contacts]
            else:
                values[alike.at] = self._values(kind, alike, point)
        now = point.solution
        if now is not None and now.inside:
            near, each = ON_CONE if now.least is None else _ON_BORDER, values.tolist()
            limit = near * max(map(abs, point.forces.tolist()))
            for j in self._forces:
                if abs(each[j]) <= limit:
                    values[j] = 0.0
        return values

    def jacobian(self, q: Array, d: AccelerationDerivatives) -> GuardJacobian:
        """Derivatives by state (n, 2 nv) and input (n, nu), given those of the point."""
        nv = self.dynamics.robot.nv
        z = np.empty((len(self.guards), d.acceleration_z.shape[1]))
        for kind, alike in self._kinds.items():
            z[alike.at] = self._along(kind, alike, q, d)
        return GuardJacobian(np.zeros(len(z)), z[:, : 2 * nv], z[:, 2 * nv :])

    def row(self, i: int, q: Array, d: AccelerationDerivatives) -> GuardJacobian:
        """The derivatives of guard i alone."""
        n, guard = 2 * self.dynamics.robot.nv, self.guards[i]
        z = self._along(guard.kind, Alike.of(self.guards, [i]), q, d)[0]
        return GuardJacobian(np.zeros(()), z[:n], z[n:])

    def _along(self, kind: Kind, alike: Alike, q: Array, d: AccelerationDerivatives) -> Array:
        """Return the derivatives (k, 2 nv + nu) of guards of one kind, at the configuration q."""
        if kind == "jams":
            return self._jams(q, d)[None]
        if kind != "leaves":
            return self._changes(kind, alike, d)
        change = np.zeros((len(alike.at), d.acceleration_z.shape[1]))
        change[:, : self.dynamics.robot.nv] = self.dynamics.all.margin_jacobian(q)[alike.contacts]
        return change

    def by_parameters(self, d: AccelerationDerivatives, static_p: Array) -> Array:
        """The derivatives D_p g (n, np), for parameters that leave kinematics alone.

        d: derivatives of the point by them; static_p (c, np): of the static coefficients of
        friction. Of "jams", where a run ends, they are left out.
        """
        rows = np.zeros((len(self.guards), static_p.shape[1]))
        for kind, alike in self._kinds.items():
            if kind not in ("jams", "leaves"):  # margins are kinematics
                rows[alike.at] = self._changes(kind, alike, d)
            if kind == "slips":
                i = alike.contacts
                rows[alike.at] += static_p[i] * d.point.forces[i, None]
        return rows

    def _values(self, kind: Kind, alike: Alike, point: ContactAcceleration) -> Array | float:
        _, i, signs = alike
        if kind == "jams":
            now = point.solution
            return (1.0 if now is None else response_ratio(now)) - JAMMED
        if kind == "closes":
            return point.gaps[i]
        if kind == "opens":
            return point.forces[i]
        if kind == "sticks":
            moving = _length(1.0, signs, point.slip[i])
            moving -= STOPPED if signs is None else np.where(signs, 0.0, STOPPED)
            holds = [point.holds(j) for j in i.tolist()]
            return np.where(holds, -STANDSTILL, moving)
        limit = self.dynamics.static_friction[i] * point.forces[i]
        return np.asarray(limit - _length(-1.0, signs, point.friction[i]))

    def _changes(self, kind: Kind, alike: Alike, d: AccelerationDerivatives) -> Array:
        """The derivatives (k, .) of guards of one kind."""
        _, i, signs = alike
        if kind == "closes":
            return d.gaps_z[i]
        if kind == "opens":
            return d.forces_z[i]
        if kind == "sticks":
            sliding = [self.guards[j] for j in alike.at.tolist()]
            slowing = [self._slowing(guard.contact, guard.sign, d.point) for guard in sliding]
            return np.tensordot(slowing, d.slip_z, axes=2)
        limit = self.dynamics.static_friction[i, None] * d.forces_z[i]
        along = _directions(-1.0, signs, d.point.friction[i])
        return np.asarray(limit - (along[:, None, :] @ d.friction_z[i])[:, 0])

    def _jams(self, q: Array, d: AccelerationDerivatives) -> Array:
        """The derivative (2 nv + nu,) of the response ratio."""
        change = np.zeros(d.acceleration_z.shape[1])
        if d.point.solution is not None:
            columns = 2 * self.dynamics.robot.nv
            terms, rates_z = self.dynamics.terms, d.rates_z[:, :columns]
            change[:columns] = response_ratio_derivative(terms, q, d.point.solution, rates_z)
        return change

    def _slowing(self, contact: int, sign: float, point: ContactAcceleration) -> Array:
        """The speed of a contact as a sum over sliding velocities, by its weights (c, 2).

        At a stop in a surface friction has taken away perturbations across, and has changed the
        speed along while it did (see `sliding.stop_of`).
        """
        weights = np.zeros((len(self.modes), 2))
        if sign or point.solution is None or point.holds(contact):
            weights[contact, 0] = sign
            return weights
        now = point.solution
        phase = now.phase
        k = phase.closed.index(contact)
        along = np.zeros(len(phase.owner))
        s = now.directions[k]
        along[phase.tangents[k]] = s if s @ point.slip[contact] >= 0.0 else -s
        _, slow = sliding_directions(phase, now.rows)
        if k in slow:
            response, across = stop_of(now, tuple(slow))
            along -= across @ (along @ now.rows.jacobian @ response)
        weights[phase.places] = phase.spread(along)[1]
        return weights


def closing_guards(contacts: Sequence[AnyContact]) -> tuple[str, ...]:
    """The guards at which contacts close: their gaps, in m."""
    return tuple(ContactGuard(i, "closes").name(contacts) for i in range(len(contacts)))


def _guards(dynamics: ContactDynamics, modes: Modes) -> Iterator[ContactGuard]:
    for i, mode in enumerate(modes):
        if mode == OPEN:
            yield ContactGuard(i, "closes")
            continue
        if i not in dynamics.pressed:
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
    # Last, so that plans find the other guards at the same places on ground of one piece.
    for i in dynamics.all.piecewise:
        if modes[i] not in (OPEN, STICK):
            yield ContactGuard(i, "leaves")


def _length(way: float, signs: Array | None, vectors: Array) -> Array:
    """Lengths of vectors (k, 2) along `way` times their first direction times a sign, or whole."""
    lengths = np.hypot(vectors[:, 0], vectors[:, 1])
    return lengths if signs is None else np.where(signs, way * signs * vectors[:, 0], lengths)


def _directions(way: float, signs: Array | None, vectors: Array) -> Array:
    """The unit directions (k, 2) in which these lengths grow, zero for zero vectors."""
    lengths = np.hypot(vectors[:, 0], vectors[:, 1])
    turned = vectors / np.where(lengths > 0.0, lengths, 1.0)[:, None]
    if signs is None:
        return np.asarray(turned)
    return np.where(signs[:, None], way * signs[:, None] * (1.0, 0.0), turned)
