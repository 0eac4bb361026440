r"""Rigid-body quantities of a robot with contacts, by Pinocchio's frames and nothing else.

With p the contact point, fixed in body A, and n the normal of a surface fixed in body B, the
relative velocity is D = v_A(p) - v_B(p), both of the material points at p; the gap has rate n.D
and acceleration n.(a_A - a_B) + 2 D.(omega_B x n) + D.H D, with H the Hessian of the distance; a
tangent t that turns with B has n replaced by t and no H, which is all that sticking needs (D = 0).
A sphere of radius r touches with p = c - r n, whose gap moves as its centre c does; there D is that
of c less r times (omega_A - omega_B) x n, and n turns as B does and by H times the motion of c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pinocchio as pin

from attack.laws import Array, Law

WORLD = pin.ReferenceFrame.LOCAL_WORLD_ALIGNED


@dataclass(frozen=True)
class Row:
    """One contact at a state: gap, normal and tangents in the world (m, 3), relative motion.

    jacobian (3, nv) of D; velocity D (3,); drift (m,): what the rates of normal and tangents change
    by where no joint accelerates.
    """

    gap: float
    axes: Array
    jacobian: Array
    velocity: Array
    drift: Array

    def rows(self) -> Array:
        """Jacobians along normal and tangents (m, nv)."""
        return np.asarray(self.axes @ self.jacobian)

    def rates(self) -> Array:
        """Velocities along normal and tangents (m,)."""
        return np.asarray(self.axes @ self.velocity)

    def accelerations(self, a: Array) -> Array:
        """Of the gap, and along tangents where the contact sticks (m,)."""
        return np.asarray(self.rows() @ a + self.drift)


class Material(NamedTuple):
    """Velocity and acceleration at a = 0 of a point of a body, and those of its turning.

    jacobian (6, nv): of the point, then of the turning; the rest (3,), all in the world.
    """

    velocity: Array
    drift: Array
    omega: Array
    turning: Array
    jacobian: Array

    def less(self, other: Material) -> Material:
        """Relative to another body's."""
        return Material(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


class Judge:
    """A model of its own with its own scratch data, and the contacts as data.

    contacts have the fields name, frame, surface, body, offset, radius, friction, restitution;
    surfaces are planes (point, unit_normal), spheres (center, radius, inside) or ground with a
    `jet`: height, slope and its derivatives at x and y.
    """

    def __init__(self, model: pin.Model, contacts: Sequence) -> None:
        self.model, self.data, self.contacts = model, model.createData(), tuple(contacts)
        self.nq, self.nv = model.nq, model.nv
        self.friction = np.array([c.friction for c in self.contacts])
        self.restitution = np.array([c.restitution for c in self.contacts])
        self._planes = [self._plane_of_motion(c) for c in self.contacts]

    def mass_matrix(self, q: Array) -> Array:
        """M (nv, nv)."""
        mass = np.array(pin.crba(self.model, self.data, q)).reshape(self.nv, self.nv)
        upper = np.triu(mass)
        return upper + np.triu(mass, 1).T

    def bias(self, q: Array, v: Array) -> Array:
        """Coriolis, centrifugal and gravity terms, without springs and dampers (nv,)."""
        return np.array(pin.nonLinearEffects(self.model, self.data, q, v))

    def gaps(self, q: Array) -> Array:
        """Signed distances (c,)."""
        return np.array([row.gap for row in self.rows(q, np.zeros(self.nv))])

    def rows(self, q: Array, v: Array) -> list[Row]:
        """All contacts at a state."""
        pin.forwardKinematics(self.model, self.data, q, v, np.zeros(self.nv))
        pin.computeJointJacobians(self.model, self.data, q)
        pin.updateFramePlacements(self.model, self.data)
        return [self._row(c, plane) for c, plane in zip(self.contacts, self._planes, strict=True)]

    def _row(self, contact, plane: Array | None) -> Row:
        centre = self._placed(contact.frame).act(np.asarray(contact.offset))
        base = self._placed(contact.body)
        below = self._material(contact.body, centre)
        motion = self._material(contact.frame, centre).less(below)
        gap, normal, hessian = _surface(contact.surface, base.actInv(centre))
        tangents = np.zeros((0, 3)) if contact.friction == 0.0 else _tangents(normal, plane)
        axes = np.vstack([normal[None], tangents]) @ base.rotation.T
        arm, local = -contact.radius * axes[0], base.rotation.T @ motion.velocity
        velocity = motion.velocity + np.cross(motion.omega, arm)
        # d/dt of the centre's relative velocity, then of the touching point's
        drift = motion.drift - np.cross(below.omega, motion.velocity)
        swept = -contact.radius * (np.cross(below.omega, axes[0]) + base.rotation @ hessian @ local)
        rolled = drift + np.cross(motion.turning, arm) + np.cross(motion.omega, swept)
        drifts = axes @ rolled + np.cross(below.omega, axes) @ velocity
        drifts[0] = axes[0] @ drift + np.cross(below.omega, axes[0]) @ motion.velocity
        drifts[0] += local @ hessian @ local
        linear, angular = motion.jacobian[:3], motion.jacobian[3:]
        jacobian = linear - pin.skew(arm) @ angular
        return Row(gap - contact.radius, axes, jacobian, velocity, drifts)

    def _placed(self, frame: str) -> pin.SE3:
        return self.data.oMf[self.model.getFrameId(frame)]

    def _material(self, frame: str, point: Array) -> Material:
        """Of the point of a body that is there."""
        i = self.model.getFrameId(frame)
        arm = point - self.data.oMf[i].translation
        twist = pin.getFrameVelocity(self.model, self.data, i, WORLD)
        spatial = pin.getFrameClassicalAcceleration(self.model, self.data, i, WORLD)
        full = pin.getFrameJacobian(self.model, self.data, i, WORLD).reshape(6, self.nv)
        omega, turning = np.array(twist.angular), np.array(spatial.angular)
        drift = spatial.linear + np.cross(turning, arm) + np.cross(omega, np.cross(omega, arm))
        jacobian = np.vstack([full[:3] - pin.skew(arm) @ full[3:], full[3:]])
        return Material(twist.linear + np.cross(omega, arm), drift, omega, turning, jacobian)

    def _plane_of_motion(self, contact) -> Array | None:
        """The axis e of the plane in which the point can only move, in the frame of the surface.

        By velocities at a few configurations; its largest entry is positive.
        """
        rng, moves, normals = np.random.default_rng(1), [], []
        for _ in range(4):
            q = pin.integrate(self.model, pin.neutral(self.model), rng.normal(size=self.nv))
            pin.forwardKinematics(self.model, self.data, q, np.zeros(self.nv), np.zeros(self.nv))
            pin.computeJointJacobians(self.model, self.data, q)
            pin.updateFramePlacements(self.model, self.data)
            base = self._placed(contact.body)
            point = self._placed(contact.frame).act(np.asarray(contact.offset))
            below = self._material(contact.body, point)
            motion = self._material(contact.frame, point).less(below)
            _, normal, _ = _surface(contact.surface, base.actInv(point))
            arm = -contact.radius * base.rotation @ normal
            jacobian = motion.jacobian[:3] - pin.skew(arm) @ motion.jacobian[3:]
            moves.append(base.rotation.T @ jacobian)
            normals.append(normal)
        left, sizes, _ = np.linalg.svd(np.hstack(moves))
        rank = int((sizes > 1e-9 * sizes[0]).sum())
        if rank == 3:
            return None
        axis = left[:, 2]
        if rank == 1:
            across = np.cross(left[:, 0], normals[0])
            axis = across / np.linalg.norm(across) if np.linalg.norm(across) > 1e-9 else axis
        if np.abs(np.array(normals) @ axis).max() > 1e-9:
            return None
        return axis * np.sign(axis[np.abs(axis).argmax()])


def _surface(surface, r: Array) -> tuple[float, Array, Array]:
    """Distance, normal and Hessian of the distance at a point in the frame of the surface."""
    if hasattr(surface, "unit_normal"):
        n = np.asarray(surface.unit_normal)
        return float((r - surface.point) @ n), n, np.zeros((3, 3))
    if hasattr(surface, "jet"):
        return _ground(r, *surface.jet(r[0], r[1]))
    side = -1.0 if surface.inside else 1.0
    e = r - surface.center
    rho = float(np.linalg.norm(e))
    d = e / rho
    return side * (rho - surface.radius), side * d, side * (np.eye(3) - np.outer(d, d)) / rho


def _ground(r: Array, h: float, slope: Array, bend: Array) -> tuple[float, Array, Array]:
    """Of phi = F / N, F = z - h and N = sqrt(1 + |slope|^2), with derivatives where F = 0."""
    upward, length = np.append(-slope, 1.0), np.sqrt(1.0 + slope @ slope)
    turned = np.append(-bend @ slope, 0.0) / length**3  # the gradient of 1 / N
    hessian = np.outer(upward, turned) + np.outer(turned, upward)
    hessian[:2, :2] -= bend / length
    return float(r[2] - h) / length, upward / length, hessian


def _tangents(n: Array, axis: Array | None) -> Array:
    """The tangents along which friction is reported, in the frame of the surface.

    e x n in a plane of motion with axis e; in space the images of the first two axes under the
    reflection across the plane with normal n + s e_3, s the sign of n_3, which takes s e_3 to -n.
    """
    if axis is not None:
        return np.cross(axis, n)[None]
    mirror = n + np.array([0.0, 0.0, -1.0 if n[2] < 0.0 else 1.0])
    return (np.eye(3) - 2.0 * np.outer(mirror, mirror) / (mirror @ mirror))[:2]


def stacked(found: Sequence[Row]) -> tuple[Array, tuple[int, ...]]:
    """Jacobian of the rows of contacts (r, nv), and how many tangents each has."""
    return np.concatenate([row.rows() for row in found]), tuple(len(r.axes) - 1 for r in found)


def impact_law(
    judge: Judge, q: Array, v: Array, at: Sequence[int], plastic: bool = False
) -> tuple[Law, Array]:
    """The law of an impact of the contacts `at`, and the Jacobian of its rows."""
    found = [judge.rows(q, v)[i] for i in at]
    jacobian, tangents = stacked(found)
    normals = np.cumsum([0, *(1 + m for m in tangents[:-1])])
    free = jacobian @ v
    free[normals] *= 1.0 + judge.restitution[list(at)] * (not plastic)
    delassus = jacobian @ np.linalg.solve(judge.mass_matrix(q), jacobian.T)
    speed = float((np.abs(jacobian) @ np.abs(v)).max())
    return Law(delassus, free, judge.friction[list(at)], tangents, speed), jacobian


def row_forces(found: Sequence[Row], normal: Array, tangential: Array) -> Array:
    """Forces along the rows of contacts, from normal (c,) and tangential ones (c, 2)."""
    return np.concatenate(
        [[n, *t[: len(row.axes) - 1]] for row, n, t in zip(found, normal, tangential, strict=True)]
    )
