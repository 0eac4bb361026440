r"""The terms of points that touch planes of the world, from as few sweeps as there can be.

A row d . v_p of a contact at p is the power of the wrench w = (d, p x d). With Pinocchio's columns
J in the world, and those that its derivatives of inverse dynamics leave (:math:`\partial_q V`,
:math:`\partial_q A`, :math:`\partial_v A`), on the columns that move the point

.. math::
    D_q(J v) &= w^T \partial_q V - (d \times v_p)^T J_\omega, \\
    D_q(J a + \dot J v) &= w^T \partial_q A - 2 (d \times v_p)^T \partial_q V_\omega
        - (d \times a_p)^T J_\omega, \\
    D_v(J a + \dot J v) &= w^T \partial_v A - 2 (d \times v_p)^T J_\omega,

and :math:`D_q (J^T f)_i` by velocity j is K[i, j] where joint j carries joint i or is the same,
and K[j, i] where i carries j, with :math:`K = \sum J_p^T [f]_\times J_\omega`.
"""

from __future__ import annotations

import threading

import numpy as np

from hybridctl.checks import Array, Indices
from hybridctl.mechanics.geometry import PointsOnPlanes
from hybridctl.mechanics.joints import skew
from hybridctl.mechanics.multibody_terms import ImpulseDerivatives, TermDerivatives, TermValues
from hybridctl.mechanics.robot import Robot
from hybridctl.mechanics.sweeps import Sweeps


class FlatTerms:
    """The terms of a robot whose contacts are points against planes of the world."""

    def __init__(self, robot: Robot, ground: PointsOnPlanes, owner: Indices) -> None:
        self._made_of, self._known = (robot, ground, owner), threading.local()
        self._robot, self._heights = robot, ground.heights
        self._local, self._directions = ground.points, ground.directions
        joints, count, rows = sorted(set(ground.joints)), len(ground.joints), np.arange(len(owner))
        places = [joints.index(j) for j in ground.joints]
        own = places == list(range(len(joints)))
        self._joints: slice | list[int] = slice(None) if own else places
        along, turn = np.zeros((len(owner), count, 3)), np.zeros((len(owner), 3, count, 3))
        along[rows, owner] = ground.directions
        turn[rows, :, owner] = -skew(ground.directions)
        self._along = along.reshape(len(owner), 3 * count)
        self._turn = turn.reshape(3 * len(owner), 3 * count)
        arms = np.concatenate((np.tile(np.eye(3), (count, 1, 1)), -skew(ground.points)), axis=2)
        self._arms = arms.transpose(0, 2, 1)
        self._moved = np.array([robot.supporting(j) for j in joints])[:, None, :]
        self._mask = self._moved[self._joints, 0][owner]
        self._of_joint = np.eye(len(joints))[:, self._joints]
        self._before, self._gravity = robot.carriers(), robot.tree().gravity
        self._falling, self._weightless = robot.sweeps(joints)

    def __reduce__(self) -> tuple[type[FlatTerms], tuple[Robot, PointsOnPlanes, Indices]]:
        return type(self), self._made_of

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """All terms at a point."""
        robot, now, at = self._robot, self._falling.fall(q, v), self._joints
        turns = now.rotations[at]
        points, wrenches = self._placed(q, now.rotations, now.positions)
        motions = now.motions[at]
        local = motions @ self._arms  # velocity, and acceleration but for the turn of velocity
        local[:, 1] += (skew(motions[:, 0, 3:]) @ local[:, 0, :, None])[:, :, 0]
        velocity, acceleration = (local @ turns.transpose(0, 2, 1)).transpose(1, 0, 2)
        jacobian = (wrenches @ now.columns) * self._mask
        drift = self._along @ (acceleration + self._gravity).ravel()
        drive = robot.actuation @ u - now.bias
        if robot.resists:
            drive -= robot.passive.torque(q, v)
        gaps = self._along[: len(points)] @ points.ravel() - self._heights
        return TermValues(now.mass, drive, jacobian, drift, gaps, self._along @ velocity.ravel())

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Derivatives at given acceleration (nv,) and row forces (r,)."""
        now = self._falling.slopes(q, v, a)
        nv, (points, wrench) = len(v), self._known_at(q, self._falling)
        speed, pull = now.velocities[self._joints], now.accelerations[self._joints]
        velocity, acceleration = _at(speed, points), _at(pull, points)
        acceleration += (skew(speed[:, 3:]) @ velocity[:, :, None])[:, :, 0]
        across = self._turn @ np.array((velocity.ravel(), acceleration.ravel())).T
        across_v, across_a = across.reshape(-1, 3, 2).transpose(2, 0, 1)
        spin, mask = now.columns[3:], self._mask
        velocity_q, slip = now.acceleration_v - now.columns_rate, across_v @ spin
        equations, accelerations, rates = (np.empty((n, 2 * nv)) for n in (nv, *2 * (len(mask),)))
        np.subtract(now.bias_q, self._turning(now.columns, points, forces), out=equations[:, :nv])
        equations[:, nv:] = now.bias_v
        if self._robot.resists:
            each = np.arange(nv)
            equations[each, each] += self._robot.passive.stiffness
            equations[each, nv + each] += self._robot.passive.damping
        changed = wrench @ now.acceleration_q + 2.0 * across_v @ velocity_q[3:] + across_a @ spin
        np.multiply(changed, mask, out=accelerations[:, :nv])
        np.multiply(wrench @ now.acceleration_v + 2.0 * slip, mask, out=accelerations[:, nv:])
        np.multiply(wrench @ velocity_q + slip, mask, out=rates[:, :nv])
        np.multiply(wrench @ now.columns, mask, out=rates[:, nv:])
        return TermDerivatives(equations, accelerations, rates)

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Derivatives of momentum and rates at a given velocity z (nv,)."""
        if not z.any():
            columns = self._weightless.axes(q)
            turned = self._turning(columns, self._known_at(q, self._weightless)[0], forces)
            return ImpulseDerivatives(-turned, np.zeros_like(self._mask))
        now = self._weightless.slopes(q, None, z)
        points, wrenches = self._known_at(q, self._weightless)
        velocity = _at(now.accelerations[self._joints], points)
        across = (self._turn @ velocity.ravel()).reshape(-1, 3)
        rates = wrenches @ now.acceleration_q + across @ now.columns[3:]
        momentum = now.bias_q
        if forces.any():
            momentum = momentum - self._turning(now.columns, points, forces)
        return ImpulseDerivatives(momentum, rates * self._mask)

    def _known_at(self, q: Array, sweeps: Sweeps) -> tuple[Array, Array]:
        """Points and wrenches of `_placed`, kept where this thread asked for them at q last."""
        known = self._known
        if getattr(known, "q", None) != q.tobytes():
            return self._placed(q, *sweeps.places())
        return known.points, known.wrenches

    def _placed(self, q: Array, rotations: Array, positions: Array) -> tuple[Array, Array]:
        """Contact points (c, 3) in the world, and w (r, 6) of all rows."""
        at, known = self._joints, self._known
        points = (rotations[at] @ self._local[:, :, None])[:, :, 0] + positions[at]
        moments = (self._turn @ points.ravel()).reshape(-1, 3)
        wrenches = np.concatenate((self._directions, moments), axis=1)
        known.q, known.points, known.wrenches = q.tobytes(), points, wrenches
        return points, wrenches

    def _turning(self, columns: Array, points: Array, forces: Array) -> Array:
        """D_q (J' f) at fixed forces (r,)."""
        pull = skew((forces @ self._along).reshape(-1, 3))
        each = np.concatenate((pull, skew(points) @ pull), axis=1)
        total = (self._of_joint @ each.reshape(len(pull), 18)).reshape(-1, 6, 3)
        nv = columns.shape[1]
        moving = (self._moved * columns).reshape(-1, nv)
        k = moving.T @ (self._moved * (total @ columns[3:])).reshape(-1, nv)
        return np.asarray(np.where(self._before, k, k.T))


def _at(motion: Array, points: Array) -> Array:
    """The linear part (k, 3) at points of spatial vectors (k, 6) of the origin."""
    return np.asarray(motion[:, :3] + (skew(motion[:, 3:]) @ points[:, :, None])[:, :, 0])
