r"""Dynamics of a robot in contact, without friction: accelerations, impacts, and derivatives.

Sign conventions: a contact force pushes, :math:`\lambda \ge 0`, and

.. math:: M a + h = S u + J^T \lambda, \qquad M (v^+ - v^-) = J^T \Lambda.

Methods take q (nq,), v (nv,), u (nu,) and the indices of the contacts that are closed. They do
not validate: that is done where a simulation starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array, number
from hybridctl.errors import InputError
from hybridctl.mechanics.complementarity import GaussSolution, least_constraint
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.geometry import ContactSet, NormalDerivatives
from hybridctl.mechanics.joints import skew
from hybridctl.mechanics.kkt import KKT
from hybridctl.mechanics.robot import Robot

Closed = tuple[int, ...]


@dataclass(frozen=True)
class ContactAcceleration:
    """Acceleration (nv,), and normal forces in N of all contacts (c,), zero where open."""

    acceleration: Array
    forces: Array


@dataclass(frozen=True)
class AccelerationDerivatives:
    """Derivatives of acceleration (nv, .) and of all normal forces (c, .) by q, v and u."""

    acceleration_q: Array
    acceleration_v: Array
    acceleration_u: Array
    forces_q: Array
    forces_v: Array
    forces_u: Array


@dataclass(frozen=True)
class ImpactResult:
    """An impact: velocity after it (nv,), impulses of all contacts (c,) in N s.

    active: contacts with a positive impulse; weakly_active: contacts at the border of taking
    part. momentum_residual: largest entry of M (v+ - v-) - J^T Lambda; complementarity_residual:
    largest violation of 0 <= v_n+ + e v_n- perp Lambda >= 0, relative to its scale;
    energy_loss: kinetic energy lost in J.
    """

    velocity_after: Array
    impulses: Array
    active: Closed
    weakly_active: Closed
    momentum_residual: float
    complementarity_residual: float
    energy_loss: float


@dataclass(frozen=True)
class ImpactDerivatives:
    """Derivatives of the post-impact velocity (nv, nv) and all impulses (c, nv) by q and v-."""

    velocity_q: Array
    velocity_v: Array
    impulses_q: Array
    impulses_v: Array


class ContactDynamics:
    r"""The dynamics of `robot` with any subset of `contacts` closed.

    A closed contact obeys :math:`\ddot h + 2 s \dot h + s^2 h = 0`, so that a gap left by
    rounding or by the integrator decays with rate s = `stabilization` (in 1/s) and does not
    grow; on the constraint itself this changes nothing. s = 0 switches it off.

    Raises `InputError` for contacts of equal names or none, `UnknownNameError` for a frame.
    """

    def __init__(
        self, robot: Robot, contacts: Sequence[Contact], *, stabilization: float = 20.0
    ) -> None:
        self.robot = robot
        self.contacts = tuple(contacts)
        names = [contact.name for contact in self.contacts]
        if not names:
            raise InputError("contacts must have at least one contact")
        if len(set(names)) != len(names):
            raise InputError(f"contact names must differ, got {names}")
        self.stabilization = number("stabilization", stabilization, at_least=0.0)
        self.restitution = np.array([contact.restitution for contact in self.contacts])
        self._all = ContactSet(robot, self.contacts)
        self._sets: dict[Closed, ContactSet] = {}

    def gaps(self, q: Array) -> Array:
        """Signed distances h of all contacts (c,), in m, positive when open."""
        return self._all.gaps(q)

    def gap_jacobian(self, q: Array) -> Array:
        """J_n of all contacts (c, nv)."""
        return self._all.jacobian(q)

    def gap_rates(self, q: Array, v: Array) -> Array:
        """Normal velocities of all contacts (c,), in m/s."""
        return np.asarray(self._all.jacobian(q) @ v)

    def tangent_jacobian(self, q: Array) -> Array:
        """J_t of all contacts (c, 2, nv), along two orthonormal tangents of each surface."""
        return self._all.tangent_jacobian(q)

    def drift_acceleration(self, q: Array, v: Array) -> Array:
        """Normal accelerations Jdot_n v of all contacts (c,) at zero acceleration, in m/s^2."""
        return self._all.normal_motion(self.robot.motion(q, v, self._all.joints), v).drift

    def acceleration(self, q: Array, v: Array, u: Array, closed: Closed) -> ContactAcceleration:
        """Acceleration and forces with the given contacts closed, [RS] (2.38)-(2.39)."""
        forces = np.zeros(len(self.contacts))
        if not closed:
            return ContactAcceleration(self.robot.free_acceleration(q, v, u), forces)
        contacts = self._set(closed)
        normal = contacts.normal_motion(self.robot.motion(q, v, contacts.joints), v)
        kkt = KKT(self.robot.mass_matrix(q), normal.jacobian.T, normal.jacobian)
        drive = self.robot.actuation @ u - self.robot.bias(q, v)
        s = self.stabilization
        a, force = kkt.solve(drive, -normal.drift - s * (2.0 * normal.rate + s * normal.gap))
        forces[list(closed)] = force
        return ContactAcceleration(a, forces)

    def acceleration_derivatives(
        self, q: Array, v: Array, u: Array, closed: Closed
    ) -> AccelerationDerivatives:
        """Derivatives of `acceleration`, from the differentiated equations and constraints."""
        robot, c = self.robot, len(self.contacts)
        now = self.acceleration(q, v, u, closed)
        mass = robot.mass_matrix(q)
        if not closed:
            e_q, e_v = robot.bias_derivatives(q, v, now.acceleration, {})
            both = np.linalg.solve(mass, np.hstack([-e_q, -e_v, robot.actuation]))
            a_q, a_v, a_u = np.split(both, [robot.nv, 2 * robot.nv], axis=1)
            zero = np.zeros((c, robot.nv))
            return AccelerationDerivatives(a_q, a_v, a_u, zero, zero, np.zeros((c, robot.nu)))
        contacts = self._set(closed)
        d = contacts.derivatives(q, v, now.acceleration)
        force = now.forces[list(closed)]
        e_q, e_v = robot.bias_derivatives(
            q, v, now.acceleration, _wrenches(contacts, d.wrench, force)
        )
        e_q = e_q - _turning_wrenches(d, force)
        s = self.stabilization
        c_q = d.acceleration_q + s * (2.0 * d.rate_q + s * d.jacobian)
        c_v = d.acceleration_v + 2.0 * s * d.jacobian
        upper = np.hstack([-e_q, -e_v, robot.actuation])
        lower = np.hstack([-c_q, -c_v, np.zeros((len(closed), robot.nu))])
        a, f = KKT(mass, d.jacobian.T, d.jacobian).solve(upper, lower)
        forces = np.zeros((c, f.shape[1]))
        forces[list(closed)] = f
        cuts = [robot.nv, 2 * robot.nv]
        return AccelerationDerivatives(*np.split(a, cuts, axis=1), *np.split(forces, cuts, axis=1))

    def impact(self, q: Array, v: Array, participating: Closed) -> ImpactResult:
        """Newton impact of contacts at zero gap, [RS] (2.25)-(2.28) without friction.

        `participating` are all contacts at zero gap, those that were closed before included;
        which of them act is part of the result.
        """
        at = list(participating)
        mass = self.robot.mass_matrix(q)
        rows = self.gap_jacobian(q)[at]
        solution = least_constraint(mass, v, rows, -self.restitution[at] * (rows @ v))
        after = solution.motion
        momentum = mass @ (after - v)
        impulses = np.zeros(len(self.contacts))
        impulses[at] = solution.multipliers
        return ImpactResult(
            after,
            impulses,
            tuple(at[i] for i in solution.active),
            tuple(at[i] for i in solution.weakly_active),
            float(np.abs(momentum - rows.T @ solution.multipliers).max()),
            solution.residual,
            float(-0.5 * momentum @ (after + v)),
        )

    def impact_derivatives(self, q: Array, v: Array, active: Closed) -> ImpactDerivatives:
        """Derivatives of `impact` while the set of contacts that act stays the same."""
        robot, nv, c = self.robot, self.robot.nv, len(self.contacts)
        if not active:
            zero = np.zeros((c, nv))
            return ImpactDerivatives(np.zeros((nv, nv)), np.eye(nv), zero, zero)
        contacts, at = self._set(active), list(active)
        mass = robot.mass_matrix(q)
        rows = self.gap_jacobian(q)[at]
        kkt = KKT(mass, rows.T, rows)
        e = self.restitution[at][:, None]
        bounce = -e * rows
        after, impulse = kkt.solve(mass @ v, bounce @ v)
        rest = np.zeros(nv)
        d_after = contacts.derivatives(q, after, rest)
        d_before = contacts.derivatives(q, v, rest)
        e_q = robot.impulse_derivative(
            q, after - v, _wrenches(contacts, d_after.wrench, impulse)
        ) - _turning_wrenches(d_after, impulse)
        c_q = d_after.rate_q + e * d_before.rate_q
        w, f = kkt.solve(np.hstack([-e_q, mass]), np.hstack([-c_q, bounce]))
        impulses = np.zeros((c, 2 * nv))
        impulses[at] = f
        return ImpactDerivatives(w[:, :nv], w[:, nv:], impulses[:, :nv], impulses[:, nv:])

    def select_closed(self, q: Array, v: Array, u: Array, candidates: Closed) -> Closed:
        """Which of the touching contacts stay closed under input u: 0 <= a_n perp force >= 0.

        Contacts at the border (no force, no separation) stay closed. [RS] 2.3.4.
        """
        solution = self._touching(q, v, u, candidates)
        staying = {*solution.active, *solution.weakly_active}
        return tuple(contact for i, contact in enumerate(candidates) if i in staying)

    def _touching(self, q: Array, v: Array, u: Array, candidates: Closed) -> GaussSolution:
        contacts, s = self._set(candidates), self.stabilization
        normal = contacts.normal_motion(self.robot.motion(q, v, contacts.joints), v)
        bound = -normal.drift - s * (2.0 * normal.rate + s * normal.gap)
        free = self.robot.free_acceleration(q, v, u)
        return least_constraint(self.robot.mass_matrix(q), free, normal.jacobian, bound)

    def _set(self, closed: Closed) -> ContactSet:
        if closed not in self._sets:
            self._sets[closed] = ContactSet(self.robot, [self.contacts[i] for i in closed])
        return self._sets[closed]


def _wrenches(contacts: ContactSet, wrench: Array, force: Array) -> dict[int, Array]:
    """Total spatial force on the body of each joint, in the world."""
    total: dict[int, Array] = {}
    for a, b, w in zip(contacts.joint_a, contacts.joint_b, force[:, None] * wrench, strict=True):
        for joint, part in ((a, w), (b, -w)):
            if joint != 0:
                total[joint] = total.get(joint, 0.0) + part
    return total


def _turning_wrenches(d: NormalDerivatives, force: Array) -> Array:
    r"""What D_q (J^T lambda) has beyond wrenches that are fixed in the frames of their bodies.

    A wrench held fixed in a body turns with it, by J x* w; the true one changes by D_q w. So
    each body adds J^T (lambda D_q w - J x* lambda w), the one with the surface negatively.
    """
    total = np.zeros((d.jacobian.shape[1], d.jacobian.shape[1]))
    fx, mx = skew(d.wrench[:, :3]), skew(d.wrench[:, 3:])
    for sign, jacobian in ((1.0, d.jacobian_a), (-1.0, d.jacobian_b)):
        linear, angular = jacobian[:, :3], jacobian[:, 3:]
        turned = np.concatenate((-fx @ angular, -mx @ angular - fx @ linear), axis=1)
        change = force[:, None, None] * (d.wrench_q - turned)
        total += sign * np.einsum("cki,ckj->ij", jacobian, change)
    return total
