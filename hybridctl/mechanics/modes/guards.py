"""The guards of a mode of a contact system, evaluated together; see `system` for their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.hybrid.mode import GuardJacobian
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
from hybridctl.mechanics.modes.acceleration import ContactAcceleration
from hybridctl.mechanics.modes.derivatives import AccelerationDerivatives
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.jamming import (
    compute_response_ratio,
    differentiate_response_ratio,
    has_sliding_friction,
)
from hybridctl.mechanics.modes.slip_directions import compute_stop_response, find_slip_directions
from hybridctl.mechanics.modes.tolerances import JAMMED, ON_CONE, STANDSTILL, STOPPED

_PROGRAMME_ON_CONE = 1e-9
"""Force at an active boundary of a cone, relative to the largest normal force: what the programme
that distributes redundant forces leaves of zero there."""

Kind = Literal["closes", "opens", "slips", "sticks", "jams", "leaves"]
"""What happens at a guard. An open contact closes (gap zero). A closed one opens (normal force
zero). A sticking one slips (friction at its limit). A sliding one sticks (speed zero) or leaves its
piece of ground (margin to the border zero), or sliding contacts jam (response ratio at `JAMMED`).
"""
_ALL_CONTACTS = -1
"""Index, in place of a contact, of the guard "jams", which is of no single contact."""
_FORCE_KINDS = ("opens", "slips")
"""Kinds of guards that are forces."""
_SIGNS = {0.0: "", 1.0: "+", -1.0: "-"}
_SLIP_OF = {0.0: SLIP, 1.0: SLIP_PLUS, -1.0: SLIP_MINUS}


class ContactGuard(NamedTuple):
    """One guard of a mode: a contact, what happens to it, and in which direction.

    Attributes:
        contact: Index of the contact; -1 for "jams", which belongs to all contacts that slide.
        kind: What happens where it falls through zero.
        sign: Sign of the sliding direction that it looks in; zero in a surface, and where there is
            no direction.
    """

    contact: int
    kind: Kind
    sign: float = 0.0

    def name(self, contacts: Sequence[AnyContact]) -> str:
        """Return the guard's name, in print and in the mode graph."""
        if self.kind == "jams":
            return "sliding jams"
        if self.kind == "leaves":
            return f"{contacts[self.contact].name} leaves its piece"
        sign = _SIGNS[self.sign] if self.kind == "slips" else ""
        return f"{contacts[self.contact].name} {self.kind}{sign}"

    @property
    def mode_after(self) -> str:
        """The mode of the contact after the guard's event.

        It is OPEN after "opens" and "leaves", STICK after "sticks", and after "slips" SLIP_PLUS or
        SLIP_MINUS by the sign, or SLIP in a surface. For "closes", after which an impact determines
        the modes, and for "jams", which is of no single contact, it is OPEN without a meaning.
        """
        if self.kind == "slips":
            return _SLIP_OF[self.sign]
        return STICK if self.kind == "sticks" else OPEN


class GuardGroup(NamedTuple):
    """The k guards of one kind.

    Attributes:
        places: Their places (k,) among all guards of the mode.
        contacts: Their contacts (k,).
        signs: Their signs (k,), see `ContactGuard`; None if all are zero, so that no guard looks in
            a direction.
    """

    places: Indices
    contacts: Indices
    signs: Array | None

    @staticmethod
    def of(guards: Sequence[ContactGuard], places: Sequence[int]) -> GuardGroup:
        """Return the group of guards at these places, all of one kind."""
        contacts, _, signs = zip(*(guards[j] for j in places), strict=True)
        signs_or_none = np.array(signs) if any(signs) else None
        return GuardGroup(np.array(places), np.array(contacts), signs_or_none)


@dataclass(frozen=True)
class ContactGuards:
    """All n guards of a mode: their values, and exact derivatives.

    Attributes:
        dynamics: Dynamics of the robot with its contacts.
        modes: Modes of all contacts.
        guards: The guards, as `_list_guards` orders them.
    """

    dynamics: ContactDynamics
    modes: Modes
    guards: tuple[ContactGuard, ...]

    @staticmethod
    def of(dynamics: ContactDynamics, modes: Modes) -> ContactGuards:
        """Return the guards of a mode."""
        return ContactGuards(dynamics, modes, tuple(_list_guards(dynamics, modes)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the guards, different from each other."""
        return tuple(guard.name(self.dynamics.contacts) for guard in self.guards)

    @property
    def scales(self) -> Array:
        """Sizes (n,) that tolerances of the guards are relative to.

        Gaps, margins, speeds and the response ratio have 1 in their unit (see `values`). Forces
        have the number of the robot's weight in N, also at stops of joints that turn, where they
        are in N m, and for dry friction of joints its limit.
        """
        sizes = self.dynamics.force_scales.tolist()
        return np.array([sizes[g.contact] if g.kind in _FORCE_KINDS else 1.0 for g in self.guards])

    @cached_property
    def _force_places(self) -> list[int]:
        """Places of guards that are forces."""
        return [j for j, guard in enumerate(self.guards) if guard.kind in _FORCE_KINDS]

    @cached_property
    def _groups(self) -> dict[Kind, GuardGroup]:
        """Guards of each kind that there is."""
        found = {}
        for kind in dict.fromkeys(guard.kind for guard in self.guards):
            places = [j for j, guard in enumerate(self.guards) if guard.kind == kind]
            found[kind] = GuardGroup.of(self.guards, places)
        return found

    def values(self, point: ContactAcceleration, q: Array) -> Array:
        """Return the values (n,), positive inside the mode.

        Where the forces of redundant contacts were found inside their cones, guards of forces that
        are zero but for rounding are set to zero: the force is at the boundary of its cone.

        Args:
            point: Acceleration and forces of the mode.
            q: Configuration (nq,) of the point.

        Returns:
            Gaps and margins in m, forces in N, speeds in m/s, and the response ratio less `JAMMED`.
            For stops and dry friction of joints that turn: rad, N m and rad/s.
        """
        values = np.empty(len(self.guards))
        for kind, group in self._groups.items():
            if kind == "leaves":
                values[group.places] = self.dynamics.contact_set.margins(q)[group.contacts]
            else:
                values[group.places] = self._evaluate_group(kind, group, point)
        solution = point.solution
        if solution is not None and solution.inside_cones:
            # Forces as solved are off by rounding, those that a programme has distributed by what
            # it leaves of zero at an active boundary.
            near = ON_CONE if solution.cone_forces is None else _PROGRAMME_ON_CONE
            each = values.tolist()
            limit = near * max(map(abs, point.forces.tolist()))
            for j in self._force_places:
                if abs(each[j]) <= limit:
                    values[j] = 0.0
        return values

    def jacobian(self, q: Array, d: AccelerationDerivatives) -> GuardJacobian:
        """Return the derivatives by state (n, 2 nv) and input (n, nu), exact.

        Those by time are zero: guards depend on it through state and input only.

        Args:
            q: Configuration (nq,) of the point.
            d: Derivatives of acceleration and forces there.
        """
        nv = self.dynamics.robot.nv
        z = np.empty((len(self.guards), d.acceleration_z.shape[1]))
        for kind, group in self._groups.items():
            z[group.places] = self._differentiate_group(kind, group, q, d)
        return GuardJacobian(np.zeros(len(z)), z[:, : 2 * nv], z[:, 2 * nv :])

    def row(self, i: int, q: Array, d: AccelerationDerivatives) -> GuardJacobian:
        """Return the derivatives of one guard, by state (2 nv,) and input (nu,).

        Args:
            i: Number of the guard.
            q: Configuration (nq,) of the point.
            d: Derivatives of acceleration and forces there.
        """
        n, guard = 2 * self.dynamics.robot.nv, self.guards[i]
        z = self._differentiate_group(guard.kind, GuardGroup.of(self.guards, [i]), q, d)[0]
        return GuardJacobian(np.zeros(()), z[:n], z[n:])

    def by_parameters(self, d: AccelerationDerivatives, static_p: Array) -> Array:
        """Return the derivatives D_p g (n, np), for parameters that leave kinematics alone.

        They are zero for "leaves", whose margin is kinematics, and for "jams", where they are left
        out: a run ends there.

        Args:
            d: Derivatives of the point by the parameters.
            static_p: Derivatives (c, np) of the static coefficients of friction.
        """
        rows = np.zeros((len(self.guards), static_p.shape[1]))
        for kind, group in self._groups.items():
            if kind not in ("jams", "leaves"):
                rows[group.places] = self._differentiate_linear(kind, group, d)
            if kind == "slips":  # the static friction is mu_static times the normal force
                i = group.contacts
                rows[group.places] += static_p[i] * d.point.forces[i, None]
        return rows

    def _evaluate_group(
        self, kind: Kind, group: GuardGroup, point: ContactAcceleration
    ) -> Array | float:
        """Return the values (k,) of guards of one kind, all but "leaves".

        With v the sliding velocity, f the friction and f_n the normal force: "sticks" is sign v_1
        (m/s), or in a surface |v| - `STOPPED`. "slips" is mu_static f_n + sign f_1 (N), or in a
        surface mu_static f_n - |f|.
        """
        _, i, signs = group
        if kind == "jams":
            solution = point.solution  # None without a closed contact: nothing jams
            return (1.0 if solution is None else compute_response_ratio(solution)) - JAMMED
        if kind == "closes":
            return point.gaps[i]
        if kind == "opens":
            return point.forces[i]
        if kind == "sticks":
            speeds = _compute_lengths(1.0, signs, point.slip[i])
            speeds -= STOPPED if signs is None else np.where(signs, 0.0, STOPPED)
            # A contact in a surface that is held at a standstill has stopped, whatever is left of
            # its speed: its guard is below zero, not at it. With a sign none is held.
            is_holding = [point.is_holding(j) for j in i.tolist()]
            return np.where(is_holding, -STANDSTILL, speeds)
        limit = self.dynamics.static_friction[i] * point.forces[i]
        # Friction opposes sliding: in the direction of a sign it would slip by -sign f_1.
        return np.asarray(limit - _compute_lengths(-1.0, signs, point.friction[i]))

    def _differentiate_group(
        self, kind: Kind, group: GuardGroup, q: Array, d: AccelerationDerivatives
    ) -> Array:
        """Return the derivatives (k, 2 nv + nu) of guards of one kind, at the configuration q."""
        if kind == "jams":
            return self._differentiate_jamming(q, d)[None]
        if kind != "leaves":
            return self._differentiate_linear(kind, group, d)
        change = np.zeros((len(group.places), d.acceleration_z.shape[1]))
        margins_q = self.dynamics.contact_set.margin_jacobian(q)
        change[:, : self.dynamics.robot.nv] = margins_q[group.contacts]
        return change

    def _differentiate_linear(
        self, kind: Kind, group: GuardGroup, d: AccelerationDerivatives
    ) -> Array:
        """Return the derivatives (k, .) of guards that forces, slip and gaps determine."""
        _, i, signs = group
        if kind == "closes":
            return d.gaps_z[i]
        if kind == "opens":
            return d.forces_z[i]
        if kind == "sticks":
            sliding = [self.guards[j] for j in group.places.tolist()]
            weights = [self._weigh_slip(guard.contact, guard.sign, d.point) for guard in sliding]
            return np.tensordot(weights, d.slip_z, axes=2)
        limit = self.dynamics.static_friction[i, None] * d.forces_z[i]
        along = _compute_directions(-1.0, signs, d.point.friction[i])
        return np.asarray(limit - (along[:, None, :] @ d.friction_z[i])[:, 0])

    def _differentiate_jamming(self, q: Array, d: AccelerationDerivatives) -> Array:
        """Return the derivative (2 nv + nu,) of the response ratio, zero by the input."""
        change = np.zeros(d.acceleration_z.shape[1])
        if d.point.solution is not None:
            columns = 2 * self.dynamics.robot.nv
            terms, rates_z = self.dynamics.terms, d.rates_z[:, :columns]
            change[:columns] = differentiate_response_ratio(terms, q, d.point.solution, rates_z)
        return change

    def _weigh_slip(self, contact: int, sign: float, point: ContactAcceleration) -> Array:
        """Return the weights of sliding velocities in the derivative of a "sticks" guard.

        The perturbation of the contact's speed is the sum of the weights times perturbations of
        the sliding velocities (c, 2) of all contacts. With a sign the speed is the component along
        that. In a surface it is the component along the sliding velocity. At a stop there, friction
        has taken away perturbations across it, and has changed the speed along it while it did:
        then other contacts have weights, too (see `compute_stop_response`).

        Args:
            contact: The contact.
            sign: Sign of its direction, 0 in a surface.
            point: Acceleration and forces.

        Returns:
            Weights (c, 2). All are zero for a contact in a surface that is held at a standstill:
            it has no direction, and its guard is constant.
        """
        weights = np.zeros((len(self.modes), 2))
        if sign:
            weights[contact, 0] = sign
        elif point.solution is not None and not point.is_holding(contact):
            weights[point.solution.phase.places] = _weigh_surface_slip(contact, point)
        return weights


def _weigh_surface_slip(contact: int, point: ContactAcceleration) -> Array:
    """Return the weights (k, 2) of the k closed contacts' velocities in the speed of one of them.

    Args:
        contact: Index of a contact that slides in a surface.
        point: Acceleration and forces.
    """
    solution = point.solution
    assert solution is not None
    phase = solution.phase
    k = phase.closed.index(contact)
    row_weights = np.zeros(len(phase.owner))  # of all rows of the closed contacts, normal ones too
    unit = solution.directions[k]
    # A contact that starts may still move against the direction in which it accelerates.
    row_weights[phase.tangents[k]] = unit if unit @ point.slip[contact] >= 0.0 else -unit
    _, slow = find_slip_directions(phase, solution.rows)
    if k in slow:
        # Nearly stopped: friction has taken away the perturbations across of all slow contacts.
        # That has changed the velocities by -P C^T r', and so this speed by the rows of all.
        response, across = compute_stop_response(solution, tuple(slow))
        row_weights -= across @ (row_weights @ solution.rows.jacobian @ response)
    _, tangential = phase.split_rows(row_weights)
    return tangential


def list_closing_guards(contacts: Sequence[AnyContact]) -> tuple[str, ...]:
    """Return the names of the guards at which contacts close, one for each contact, in order."""
    return tuple(ContactGuard(i, "closes").name(contacts) for i in range(len(contacts)))


def _list_guards(dynamics: ContactDynamics, modes: Modes) -> Iterator[ContactGuard]:
    """Yield the guards of a mode: those of each contact in order, then "jams", then "leaves".

    A contact has "closes" where it is open. A closed one has "opens", unless a constant load
    presses it, and besides: where it sticks, "slips" in both directions, or once in a surface;
    where it slides with friction, "sticks". One without friction, of mode "closed", has neither.
    """
    for i, mode in enumerate(modes):
        if mode == OPEN:
            yield ContactGuard(i, "closes")
            continue
        # Dry friction of joints, pressed by a constant load, does not open.
        if i not in dynamics.pressed_contacts:
            yield ContactGuard(i, "opens")
        if mode == STICK and len(dynamics.contact_set.tangents[i]) == 1:
            yield ContactGuard(i, "slips", 1.0)
            yield ContactGuard(i, "slips", -1.0)
        elif mode == STICK:
            yield ContactGuard(i, "slips")
        elif mode in SLIPS:
            yield ContactGuard(i, "sticks", SLIPS[mode])
    # Only friction that grows with the normal force can jam.
    if has_sliding_friction(dynamics.phase(modes)):
        yield ContactGuard(_ALL_CONTACTS, "jams")
    # Only contacts that slide come to the border of their piece of ground. Last, so that plans find
    # the other guards at the same places on ground of one piece.
    for i in dynamics.contact_set.piecewise:
        if modes[i] not in (OPEN, STICK):
            yield ContactGuard(i, "leaves")


def _compute_lengths(factor: float, signs: Array | None, vectors: Array) -> Array:
    """Return lengths (k,) of vectors, or `factor` times sign times their first component.

    Args:
        factor: 1 for velocities; -1 for friction, which opposes sliding, so that it is positive
            where it opposes sliding in the direction of the sign.
        signs: Signs (k,); the length is taken where one is zero. None if all are.
        vectors: Vectors (k, 2).
    """
    lengths = np.hypot(vectors[:, 0], vectors[:, 1])
    return lengths if signs is None else np.where(signs, factor * signs * vectors[:, 0], lengths)


def _compute_directions(factor: float, signs: Array | None, vectors: Array) -> Array:
    """Return the gradients (k, 2) of `_compute_lengths`, zero for zero vectors in a surface."""
    lengths = np.hypot(vectors[:, 0], vectors[:, 1])
    directions = vectors / np.where(lengths > 0.0, lengths, 1.0)[:, None]
    if signs is None:
        return np.asarray(directions)
    return np.where(signs[:, None], factor * signs[:, None] * (1.0, 0.0), directions)
