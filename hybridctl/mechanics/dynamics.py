r"""Dynamics of a robot in contact with Coulomb friction: accelerations, forces, derivatives.

Sign conventions: a contact force pushes, :math:`\lambda_n \ge 0`, and friction opposes sliding,

.. math:: M a + h = S u + J_n^T \lambda_n + J_t^T \lambda_t, \qquad
          \lambda_t = -\mu \lambda_n v_t / |v_t| \text{ in slip}.

Methods take q (nq,), v (nv,), u (nu,) and the mode of every contact (see `phase`). They do not
validate: that is done where a simulation starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridctl.checks import Array, number
from hybridctl.errors import InputError, NoContactSolutionError
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.coulomb.law import (
    OPEN,
    CoulombProblem,
    Modes,
)
from hybridctl.mechanics.geometry import ContactSet, RowDerivatives, RowMotion
from hybridctl.mechanics.joints import skew
from hybridctl.mechanics.kkt import KKT
from hybridctl.mechanics.phase import STANDSTILL, Phase
from hybridctl.mechanics.robot import Robot
from hybridctl.mechanics.sharing import along_rows, friction_weights, moved_multipliers
from hybridctl.mechanics.sliding import sliding_directions

_SLOWEST = 1e-7
_CLOSED, _PROJECTIONS = 1e-11, 20


@dataclass(frozen=True)
class ContactAcceleration:
    """Acceleration (nv,), and forces in N and sliding velocities in m/s of all contacts.

    `forces` (c,) are normal, `friction` (c, 2) tangential and `slip` (c, 2) v_t along the
    tangents of each surface (in a plane of motion the second is zero); zero where open.
    """

    acceleration: Array
    forces: Array
    friction: Array
    slip: Array


@dataclass(frozen=True)
class AccelerationDerivatives:
    """Derivatives of acceleration (nv, .), normal (c, .) and friction forces (c, 2, .).

    The acceleration (nv,) itself besides.
    """

    acceleration: Array
    acceleration_q: Array
    acceleration_v: Array
    acceleration_u: Array
    forces_q: Array
    forces_v: Array
    forces_u: Array
    friction_q: Array
    friction_v: Array
    friction_u: Array


class Solution(NamedTuple):
    """One solve: rows, sliding directions, mix E, system, acceleration, multipliers.

    residual: what the constraints still want of C a, where they contradict each other. even: the
    solve of equal weights, whose normal forces are the weights of friction in this one.
    """

    rows: RowMotion
    directions: dict[int, Array]
    mix: Array
    kkt: KKT
    acceleration: Array
    multipliers: Array
    residual: Array
    even: Solution | None


class ContactDynamics:
    r"""The dynamics of `robot` with its `contacts` in any modes.

    A closed contact obeys :math:`\ddot h + 2 s \dot h + s^2 h = 0`, and a sticking one
    :math:`\dot v_t + 2 s v_t = 0`, so that a gap or speed left by rounding or by the integrator
    decays with rate s = `stabilization` (in 1/s) and does not grow; on the constraint itself
    this changes nothing. s = 0 switches it off.

    Redundant contacts share loads as `sharing` says: by least norm, friction of those that stick
    in proportion to their normal forces, so that they reach their limits together.

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
        self._slowest_rebound = np.array([c.restitution_threshold for c in self.contacts])
        self.friction = np.array([contact.friction for contact in self.contacts])
        self.static_friction = np.array(
            [contact.static_friction for contact in self.contacts], dtype=np.float64
        )
        self.all = ContactSet(robot, self.contacts)
        self._phases: dict[Modes, Phase] = {}

    def gaps(self, q: Array) -> Array:
        """Signed distances h of all contacts (c,), in m, positive when open."""
        return self.all.gaps(q)

    def gap_jacobian(self, q: Array) -> Array:
        """J_n of all contacts (c, nv)."""
        return self.all.jacobian(q)[: len(self.contacts)]

    def gap_rates(self, q: Array, v: Array) -> Array:
        """Normal velocities of all contacts (c,), in m/s."""
        return np.asarray(self.gap_jacobian(q) @ v)

    def tangent_jacobian(self, q: Array) -> Array:
        """J_t of all contacts (c, 2, nv); zero where there is no friction or no such motion."""
        rows = self.all.jacobian(q)
        result = np.zeros((len(self.contacts), 2, self.robot.nv))
        for i, tangents in enumerate(self.all.tangents):
            result[i, : len(tangents)] = rows[tangents]
        return result

    def slip_velocities(self, q: Array, v: Array) -> Array:
        """Sliding velocities v_t of all contacts (c, 2), in m/s, closed or not."""
        return np.asarray(self.tangent_jacobian(q) @ v)

    def drift_acceleration(self, q: Array, v: Array) -> Array:
        """Normal accelerations Jdot_n v of all contacts (c,) at zero acceleration, in m/s^2."""
        motion = self.all.motion(self.robot.motion(q, v, self.all.joints), v)
        return motion.drift[: len(self.contacts)]

    def rebounds(self, contacts: Sequence[int], rates: Array) -> NDArray[np.bool_]:
        """Which contacts (k,) do not approach too slowly to rebound, at normal rates (k,)."""
        least = self._slowest_rebound[contacts]
        return np.asarray((rates > 0.0) | (-rates > least) | (least == 0.0))

    def restitution_at(self, contacts: Sequence[int], rates: Array) -> Array:
        """e of some contacts (k,) that hit with normal rates (k,), 0 for those too slow."""
        return np.asarray(self.restitution[contacts] * self.rebounds(contacts, rates))

    def phase(self, modes: Modes) -> Phase:
        """The meaning of these modes of all contacts, made once."""
        if modes not in self._phases:
            self._phases[modes] = Phase(self.robot, self.contacts, modes)
        return self._phases[modes]

    def acceleration(self, q: Array, v: Array, u: Array, modes: Modes) -> ContactAcceleration:
        """Acceleration and forces in the given modes, [RS] (2.38)-(2.41)."""
        phase, count = self.phase(modes), len(self.contacts)
        forces, friction, slip = np.zeros(count), np.zeros((count, 2)), np.zeros((count, 2))
        if not phase.closed:
            a = self.robot.free_acceleration(q, v, u)
            return ContactAcceleration(a, forces, friction, slip)
        solution = self.solve(phase, q, v, u)
        m = solution.multipliers
        rows = m if phase.identity else solution.mix @ m
        closed = list(phase.closed)
        forces[closed] = rows[: len(closed)]
        if len(rows) > len(closed):
            friction[closed] = phase.spread(rows)[1]
            slip[closed] = phase.spread(solution.rows.rate)[1]
        return ContactAcceleration(solution.acceleration, forces, friction, slip)

    def solve(self, phase: Phase, q: Array, v: Array, u: Array) -> Solution:
        """Acceleration and multipliers of a phase with at least one closed contact."""
        contacts, robot = phase.contacts, self.robot
        rows = contacts.motion(robot.motion(q, v, contacts.joints), v)
        mass = robot.mass_matrix(q)
        drive = robot.actuation @ u - robot.bias(q, v)
        target = self.targets(rows)
        directions = sliding_directions(self, phase, q, v, u, rows)
        mix = phase.mix(directions)
        force = rows.jacobian.T if phase.identity else rows.jacobian.T @ mix
        constraint = rows.jacobian if phase.identity else rows.jacobian[phase.constrained]
        lower = target if phase.identity else target[phase.constrained]

        def solved(weights: Array | None, even: Solution | None) -> Solution:
            kkt = KKT(mass, force, constraint, weights)
            a, multipliers = kkt.solve(drive, lower)
            left = lower - constraint @ a
            return Solution(rows, directions, mix, kkt, a, multipliers, left, even)

        now = solved(None, None)
        if not (now.kkt.redundant and len(phase.sticking)):
            return now
        return solved(friction_weights(phase, now.multipliers), now)

    def projected(self, phase: Phase, q: Array, v: Array) -> tuple[Array, Array]:
        """The state near (q, v) with the contacts of a phase closed and sticking, by least energy.

        q moves by dq of least dq' M dq, in Newton's steps, and v then by dv of least dv' M dv.
        Raises `NoContactSolutionError` where gaps do not close.
        """
        robot, none = self.robot, np.zeros(self.robot.nv)
        for _ in range(_PROJECTIONS):
            gap = phase.contacts.gaps(q)
            rows = phase.contacts.jacobian(q)[phase.constrained]
            if np.abs(gap).max() <= _CLOSED:
                dv, _ = KKT(robot.mass_matrix(q), rows.T, rows).solve(none, -rows @ v)
                return q, v + dv
            normals = rows[: len(gap)]
            dq, _ = KKT(robot.mass_matrix(q), normals.T, normals).solve(none, -gap)
            q = robot.normalize(robot.integrate(q, dq))
        raise NoContactSolutionError(
            f"closed contacts cannot be put on their surfaces: gaps of {gap.tolist()} m are left"
        )

    def targets(self, rows: RowMotion) -> Array:
        """The part of J a (r,) that keeps contacts closed and sticking, stabilisation included."""
        s, count = self.stabilization, len(rows.gap)
        target = -rows.drift - 2.0 * s * rows.rate
        target[:count] -= s * s * rows.gap
        return np.asarray(target)

    def problem(
        self, phase: Phase, rows: RowMotion, mass: Array, drive: Array, target: Array
    ) -> CoulombProblem:
        """Coulomb's law for the accelerations of the closed contacts of a phase."""
        both = np.linalg.solve(mass, np.column_stack((rows.jacobian.T, drive)))
        sliding = []
        for tangents in phase.contacts.tangents:
            speed = float(np.linalg.norm(rows.rate[tangents]))
            moves = len(tangents) > 0 and speed > STANDSTILL
            sliding.append(rows.rate[tangents] / speed if moves else None)
        closed = list(phase.closed)
        return CoulombProblem(
            rows.jacobian @ both[:, :-1],
            rows.jacobian @ both[:, -1] - target,
            phase.contacts.tangents,
            self.static_friction[closed],
            self.friction[closed],
            tuple(sliding),
            float((np.abs(rows.jacobian) @ np.abs(both[:, -1]) + np.abs(target)).max()),
        )

    def acceleration_derivatives(
        self, q: Array, v: Array, u: Array, modes: Modes
    ) -> AccelerationDerivatives:
        """Derivatives of `acceleration`, from the differentiated equations and constraints.

        For a contact that slides in a surface they grow as 1 / |v_t|, which makes perturbations
        across its direction vanish as it stops or begins to slide. Below 1e-7 m/s they stay as
        they are there: those perturbations vanish as well, and the equations remain solvable.
        """
        robot, nv, phase = self.robot, self.robot.nv, self.phase(modes)
        if not phase.closed:
            a = robot.free_acceleration(q, v, u)
            e_q, e_v = robot.bias_derivatives(q, v, a, {})
            both = np.hstack([-e_q, -e_v, robot.actuation])
            a_z = np.linalg.solve(robot.mass_matrix(q), both)
            columns = both.shape[1]
            f_z, t_z = np.zeros((len(modes), columns)), np.zeros((len(modes), 2, columns))
        else:
            a, a_z, f_z, t_z = self._closed_derivatives(phase, q, v, u)
        parts = slice(nv), slice(nv, 2 * nv), slice(2 * nv, None)
        return AccelerationDerivatives(
            a, *[np.asarray(by_z[..., part]) for by_z in (a_z, f_z, t_z) for part in parts]
        )

    def _closed_derivatives(
        self, phase: Phase, q: Array, v: Array, u: Array
    ) -> tuple[Array, Array, Array, Array]:
        """Acceleration (nv,); by z = (q, v, u): it, normal forces (c, .), friction (c, 2, .)."""
        now = self.solve(phase, q, v, u)
        a_z, m_z, own = self._linearised(phase, q, v, now)
        closed = list(phase.closed)
        f_z = np.zeros((len(self.contacts), a_z.shape[1]))
        t_z = np.zeros((len(self.contacts), 2, a_z.shape[1]))
        f_z[closed], t_z[closed] = phase.spread(now.mix @ m_z + own)
        return now.acceleration, a_z, f_z, t_z

    def _linearised(
        self, phase: Phase, q: Array, v: Array, now: Solution
    ) -> tuple[Array, Array, Array]:
        """By z: acceleration (nv, .), multipliers (m, .), forces at fixed multipliers (r, .)."""
        robot, s = self.robot, self.stabilization
        d = phase.contacts.derivatives(q, v, now.acceleration)
        forces = now.mix @ now.multipliers
        e_q, e_v = robot.bias_derivatives(
            q, v, now.acceleration, wrenches(phase.contacts, d.wrench, forces)
        )
        e_q = e_q - turning_wrenches(d, forces)
        turning = phase.turning(now.directions, now.rows.rate, now.multipliers, _SLOWEST)
        own = -turning @ np.hstack([d.rate_q, d.jacobian, np.zeros((len(forces), robot.nu))])
        upper = d.jacobian.T @ own + np.hstack([-e_q, -e_v, robot.actuation])
        c_q = d.acceleration_q + 2.0 * s * d.rate_q
        c_q[: len(phase.closed)] += s * s * d.jacobian[: len(phase.closed)]
        c_v = d.acceleration_v + 2.0 * s * d.jacobian
        held = phase.constrained
        lower = np.hstack([-c_q[held], -c_v[held], np.zeros((len(held), robot.nu))])
        a_z, m_z = now.kkt.solve(upper, lower)
        if now.kkt.redundant:
            even = None if now.even is None else self._linearised(phase, q, v, now.even)[1]
            moved = moved_multipliers(
                phase, now, lambda y: self._turned(phase, q, now, d.rate_q, y), even
            )
            m_z, a_z = m_z + moved, a_z + now.kkt.by_mass(d.jacobian.T @ now.mix @ moved)
        return a_z, m_z, own

    def _turned(self, phase: Phase, q: Array, now: Solution, rate_q: Array, y: Array) -> Array:
        """D(G^T) y (m, 2 nv + nu) by (q, v, u) for y (m,): the rows that share the load turn."""
        nv, kkt = self.robot.nv, now.kkt
        rows, z = along_rows(phase, now, y)
        d = phase.contacts.derivatives(q, z, np.zeros(nv))
        inertia = self.robot.impulse_derivative(q, z, wrenches(phase.contacts, d.wrench, rows))
        inertia = inertia - turning_wrenches(d, rows)
        force = d.jacobian.T @ now.mix
        change = np.zeros((len(now.multipliers), 2 * nv + self.robot.nu))
        change[:, :nv] = now.mix.T @ d.rate_q - force.T @ kkt.by_mass(inertia)
        along = phase.turning(now.directions, now.rows.rate, np.ones(len(phase.constrained)))
        for slide in phase.spatial:
            pull = (d.rate @ along)[slide.rows]
            change[slide.contact, :nv] -= pull @ rate_q[slide.rows]
            change[slide.contact, nv : 2 * nv] -= pull @ d.jacobian[slide.rows]
        return change


def wrenches(contacts: ContactSet, wrench: Array, force: Array) -> dict[int, Array]:
    """Total spatial force on the body of each joint, in the world."""
    total: dict[int, Array] = {}
    for a, b, w in zip(contacts.joint_a, contacts.joint_b, force[:, None] * wrench, strict=True):
        for joint, part in ((a, w), (b, -w)):
            if joint != 0:
                total[joint] = total.get(joint, 0.0) + part
    return total


def turning_wrenches(d: RowDerivatives, force: Array) -> Array:
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


def closed_modes(modes: Modes) -> tuple[int, ...]:
    """Indices of the contacts that are not open."""
    return tuple(i for i, mode in enumerate(modes) if mode != OPEN)
