r"""Kinematics of a set of contacts: gaps, Jacobians, drift, and their derivatives.

A contact's normal motion is the power of a unit wrench. With p the contact point, n the unit
normal (both in the world) and w = (n, p x n), the gap rate is w . (V_A - V_B), where V are
spatial velocities (linear at the world origin, angular) of the body with the point (A) and of
the one with the surface (B). Its time derivative is w . (A_A - A_B) + wdot . (V_A - V_B).
All contacts of a set are evaluated together; arrays have a leading axis for the contact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.joints import skew
from hybridctl.mechanics.motion import Motion
from hybridctl.mechanics.robot import Robot
from hybridctl.mechanics.surfaces import Surface


class NormalMotion(NamedTuple):
    """gap (c,), rate (c,), Jacobian J_n (c, nv), and drift Jdot_n v (c,)."""

    gap: Array
    rate: Array
    jacobian: Array
    drift: Array


class NormalDerivatives(NamedTuple):
    """At given (q, v, a): the wrenches, and derivatives of rate and normal acceleration.

    wrench (c, 6), wrench_q (c, 6, nv); rate (c,), rate_q (c, nv); acceleration (c,),
    acceleration_q and acceleration_v (c, nv); Jacobians of both bodies (c, 6, nv).
    """

    gap: Array
    wrench: Array
    wrench_q: Array
    rate: Array
    rate_q: Array
    jacobian: Array
    acceleration: Array
    acceleration_q: Array
    acceleration_v: Array
    jacobian_a: Array
    jacobian_b: Array


class ContactSet:
    """Contacts of a robot with their names resolved to joints."""

    def __init__(self, robot: Robot, contacts: Sequence[Contact]) -> None:
        self._robot = robot
        points = [robot.frame(contact.frame) for contact in contacts]
        bodies = [robot.frame(contact.body) for contact in contacts]
        self.joints = sorted({frame.joint for frame in (*points, *bodies)})
        self.joint_a = [frame.joint for frame in points]
        self.joint_b = [frame.joint for frame in bodies]
        self._a = np.array([self.joints.index(j) for j in self.joint_a])
        self._b = np.array([self.joints.index(j) for j in self.joint_b])
        at_points = [
            _pose(np.eye(3), f.position + f.rotation @ contact.offset)
            for f, contact in zip(points, contacts, strict=True)
        ]
        at_surfaces = [_pose(frame.rotation, frame.position) for frame in bodies]
        self._local = np.array(at_points + at_surfaces)
        self._both = np.concatenate((self._a, self._b))
        self._support_a = np.array([robot.supporting(j) for j in self.joint_a])
        support_b = np.array([robot.supporting(j) for j in self.joint_b])
        self._sign = self._support_a - support_b
        surfaces = {id(contact.surface): contact.surface for contact in contacts}
        self._surfaces: list[tuple[Surface, Array]] = [
            (surface, np.array([c.surface is surface for c in contacts]))
            for surface in surfaces.values()
        ]
        self._curved = any(surface.curved for surface in surfaces.values())

    def gaps(self, q: Array) -> Array:
        """Signed distances (c,), positive when open."""
        _, _, r = self._place(self._robot.poses(q, self.joints))
        return self._on_surfaces("distance", r)

    def jacobian(self, q: Array) -> Array:
        """J_n (c, nv): gap rate = J_n v."""
        motion = self._robot.motion(q, np.zeros(self._robot.nv), self.joints)
        p, turn, r = self._place(motion.poses)
        n = _times(turn, self._on_surfaces("normal", r))
        wrench = np.concatenate((n, _cross(p, n)), axis=1)
        return np.asarray(self._sign * (wrench @ motion.jacobian))

    def normal_motion(self, motion: Motion, v: Array) -> NormalMotion:
        """Gaps, rates, Jacobian and drift from the kinematics at (q, v)."""
        p, turn, r = self._place(motion.poses)
        n = _times(turn, self._on_surfaces("normal", r))
        px, nx = skew(np.array((p, n)))
        wrench = np.concatenate((n, _times(px, n)), axis=1)
        jacobian = self._sign * (wrench @ motion.jacobian)
        moving = self._sign * v
        relative = moving @ motion.jacobian.T
        velocity_a = (self._support_a * v) @ motion.jacobian.T
        spin_a = velocity_a[:, 3:]
        p_rate = velocity_a[:, :3] - _times(px, spin_a)
        n_rate = _times(nx, relative[:, 3:] - spin_a)
        if self._curved:
            slip = relative[:, :3] - _times(px, relative[:, 3:])
            local = _times(turn.transpose(0, 2, 1), slip)
            n_rate = n_rate + _times(turn, _times(self._on_surfaces("curvature", r), local))
        wrench_rate = np.concatenate((n_rate, _times(px, n_rate) - _times(nx, p_rate)), axis=1)
        drift = _dot(wrench, moving @ motion.jacobian_rate.T) + _dot(wrench_rate, relative)
        return NormalMotion(self._on_surfaces("distance", r), jacobian @ v, jacobian, drift)

    def tangent_jacobian(self, q: Array) -> Array:
        """J_t (c, 2, nv): sliding velocity along two orthonormal directions of the surface.

        With n = (a, b, c) in the surface's frame they are e1 and e2 reflected by the reflection
        that takes e3 to n: a smooth choice wherever n is not -e3, where it is e1 and -e2.
        """
        motion = self._robot.motion(q, np.zeros(self._robot.nv), self.joints)
        p, turn, r = self._place(motion.poses)
        local = _tangents(self._on_surfaces("normal", r))
        directions = local @ turn.transpose(0, 2, 1)
        moments = (skew(p) @ directions.transpose(0, 2, 1)).transpose(0, 2, 1)
        wrenches = np.concatenate((directions, moments), axis=2)
        return np.asarray(self._sign[:, None, :] * (wrenches @ motion.jacobian))

    def derivatives(self, q: Array, v: Array, a: Array) -> NormalDerivatives:
        """Derivatives of rates and normal accelerations at fixed a; see the module's formulas."""
        poses = self._robot.poses(q, self.joints)
        d = self._robot.motion_derivatives(q, v, a, self.joints)
        ia, ib = self._a, self._b
        p, turn, r = self._place(poses)
        n = _times(turn, self._on_surfaces("normal", r))
        velocity = d.velocity[ia] - d.velocity[ib]
        acceleration = d.acceleration[ia] - d.acceleration[ib]
        jacobian = d.jacobian[ia] - d.jacobian[ib]
        velocity_q = d.velocity_q[ia] - d.velocity_q[ib]
        px, nx = skew(p), skew(n)
        spin_a, spin_b = d.velocity[ia][:, 3:], d.velocity[ib][:, 3:]
        p_rate = d.velocity[ia][:, :3] + _cross(spin_a, p)
        n_rate = _cross(spin_b, n)
        p_q = d.jacobian[ia][:, :3] - px @ d.jacobian[ia][:, 3:]
        n_q = -nx @ d.jacobian[ib][:, 3:]
        p_rate_q = d.velocity_q[ia][:, :3] - px @ d.velocity_q[ia][:, 3:] + skew(spin_a) @ p_q
        n_rate_q = -nx @ d.velocity_q[ib][:, 3:]
        if self._curved:
            bend = _Bend(self, turn, r, p, velocity, jacobian, velocity_q, p_q, d.jacobian[ib])
            n_q = n_q + bend.normal_q
            n_rate = n_rate + bend.rate
            n_rate_q = n_rate_q + bend.rate_q
        n_rate_q = n_rate_q + skew(spin_b) @ n_q
        wrench = np.concatenate((n, _cross(p, n)), axis=1)
        wrench_q = np.concatenate((n_q, px @ n_q - nx @ p_q), axis=1)
        rate = np.concatenate((n_rate, _cross(p_rate, n) + _cross(p, n_rate)), axis=1)
        moment_rate_q = skew(p_rate) @ n_q - nx @ p_rate_q + px @ n_rate_q - skew(n_rate) @ p_q
        rate_q = np.concatenate((n_rate_q, moment_rate_q), axis=1)
        return NormalDerivatives(
            self._on_surfaces("distance", r),
            wrench,
            wrench_q,
            _dot(wrench, velocity),
            _apply(velocity, wrench_q) + _apply(wrench, velocity_q),
            _apply(wrench, jacobian),
            _dot(wrench, acceleration) + _dot(rate, velocity),
            _apply(acceleration, wrench_q)
            + _apply(wrench, d.acceleration_q[ia] - d.acceleration_q[ib])
            + _apply(velocity, rate_q)
            + _apply(rate, velocity_q),
            _apply(wrench, d.acceleration_v[ia] - d.acceleration_v[ib])
            + _apply(velocity, wrench_q)
            + _apply(rate, jacobian),
            d.jacobian[ia],
            d.jacobian[ib],
        )

    def _place(self, poses: Array) -> tuple[Array, Array, Array]:
        """Contact points in the world, orientation of the surfaces, points in their frames."""
        placed = poses[self._both] @ self._local
        count = len(self._a)
        p, turn = placed[:count, :3, 3], placed[count:, :3, :3]
        return p, turn, ((p - placed[count:, :3, 3])[:, None, :] @ turn)[:, 0]

    def _on_surfaces(self, what: str, *arguments: Array) -> Array:
        """A method of each contact's surface at its point."""
        if len(self._surfaces) == 1:
            return np.asarray(getattr(self._surfaces[0][0], what)(*arguments))
        parts = [
            (mask, getattr(surface, what)(*(argument[mask] for argument in arguments)))
            for surface, mask in self._surfaces
        ]
        result = np.empty((len(self.joint_a), *parts[0][1].shape[1:]))
        for mask, part in parts:
            result[mask] = part
        return result

    def curvature(self, r: Array) -> Array:
        """Hessians of the surfaces at points in their frames, (c, 3, 3)."""
        return self._on_surfaces("curvature", r)

    def curvature_along(self, r: Array, direction: Array) -> Array:
        """Their derivative along directions (c, 3)."""
        return self._on_surfaces("curvature_along", r, direction)


class _Bend:
    """What the curvature H adds: nabla phi turns by H rdot as the point moves over the surface.

    With R the orientation of the surface and s the velocity of the point relative to it (in the
    world), the added normal rate is c = R H R' s.
    """

    def __init__(
        self,
        contacts: ContactSet,
        turn: Array,
        r: Array,
        p: Array,
        velocity: Array,
        jacobian: Array,
        velocity_q: Array,
        p_q: Array,
        jacobian_b: Array,
    ) -> None:
        back = turn.transpose(0, 2, 1)
        px = skew(p)
        hessian = contacts.curvature(r)
        world = turn @ hessian @ back
        relative = jacobian[:, :3] - px @ jacobian[:, 3:]
        slip = velocity[:, :3] + _cross(velocity[:, 3:], p)
        local = _times(back, slip)
        slip_q = velocity_q[:, :3] - px @ velocity_q[:, 3:] + skew(velocity[:, 3:]) @ p_q
        third = turn @ contacts.curvature_along(r, local) @ back
        self.rate: Array = _times(world, slip)
        self.normal_q: Array = world @ relative
        self.rate_q: Array = (
            -skew(self.rate) @ jacobian_b[:, 3:]
            + third @ relative
            + world @ (slip_q + skew(slip) @ jacobian_b[:, 3:])
        )


def _pose(rotation: Array, position: Array) -> Array:
    """Homogeneous transform (4, 4)."""
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, position
    return pose


def _times(matrix: Array, b: Array) -> Array:
    """Matrices (c, 3, 3) times vectors (c, 3)."""
    return np.asarray((matrix @ b[:, :, None])[:, :, 0])


def _cross(a: Array, b: Array) -> Array:
    return _times(skew(a), b)


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.einsum("ci,ci->c", a, b))


def _apply(row: Array, matrix: Array) -> Array:
    """Row vectors (c, 6) times matrices (c, 6, nv)."""
    return np.asarray((row[:, None, :] @ matrix)[:, 0])


def _tangents(n: Array) -> Array:
    """Two orthonormal tangents (c, 2, 3) of normals (c, 3)."""
    result = np.empty((len(n), 2, 3))
    below = n[:, 2] < -1.0 + 1e-12
    scale = 1.0 / np.where(below, 1.0, 1.0 + n[:, 2])
    middle = n + np.array([0.0, 0.0, 1.0])
    for k in range(2):
        result[:, k] = np.eye(3)[k] - (scale * n[:, k])[:, None] * middle
        result[below, k] = (1.0 - 2.0 * k) * np.eye(3)[k]
    return result
