"""Rigid-body dynamics as CasADi expressions, made from the constants of a robot.

Velocities, accelerations and forces of a body are spatial vectors (linear, angular) at the origin
of its frame and in its axes, as in R. Featherstone, *Rigid Body Dynamics Algorithms* (2008):
inverse dynamics by its table 5.1, the mass matrix by its table 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.multibody.bodies import MovingBody, Tree

Expression: TypeAlias = Any


class FramePose(NamedTuple):
    """Rotation (3, 3) and position (3, 1) of a frame in another."""

    rotation: Expression
    position: Expression

    def of(self, inner: FramePose) -> FramePose:
        """The pose, in the outer frame, of a frame whose pose in this one is given."""
        return FramePose(
            self.rotation @ inner.rotation, self.position + self.rotation @ inner.position
        )


class Spatial(NamedTuple):
    """Linear and angular part (3, 1) of a velocity, an acceleration, or a force and its moment."""

    linear: Expression
    angular: Expression

    def plus(self, other: Spatial) -> Spatial:
        """The sum of two spatial vectors."""
        return Spatial(self.linear + other.linear, self.angular + other.angular)

    def at(self, point: Expression) -> Expression:
        """The linear part at another point (3, 1) of the body."""
        return self.linear + ca.cross(self.angular, point)


ZERO = Spatial(ca.DM.zeros(3, 1), ca.DM.zeros(3, 1))
WORLD = FramePose(ca.DM.eye(3), ca.DM.zeros(3, 1))


class BodyMotion(NamedTuple):
    """Velocity and acceleration of each body, and of the world behind the last: index -1.

    The world accelerates against gravity; relative to it bodies accelerate as they do.
    """

    velocities: list[Spatial]
    accelerations: list[Spatial]


class Bodies:
    """The bodies of a robot at the configuration q (nq, 1), an expression.

    q: the configuration; local: poses in the parents; world: poses in the world, which is behind
    the last (index -1); rate (nq, nv): T(q) of dq/dt = T v.
    """

    def __init__(self, tree: Tree, q: Expression) -> None:
        self.tree, self.q = tree, q
        self.nv: int = tree.armature.shape[0]
        self.local: list[FramePose] = []
        self.world: list[FramePose] = [WORLD]
        rates = []
        for body in tree.bodies:
            moved, rate = _joint(body, q)
            placed = FramePose(ca.DM(body.rotation), ca.SX(body.position)).of(moved)
            self.local.append(placed)
            self.world.insert(-1, self.world[body.parent].of(placed))
            rates.append(rate)
        self.rate: Expression = ca.diagcat(*rates)

    def motion(self, v: Expression, a: Expression, weight: bool = True) -> BodyMotion:
        """Motion at velocity v and acceleration a (nv, 1), without gravity if without `weight`."""
        up = -ca.SX(self.tree.gravity) if weight else ca.SX.zeros(3, 1)
        velocities, accelerations = [ZERO], [Spatial(up, ca.DM.zeros(3, 1))]
        for body, pose in zip(self.tree.bodies, self.local, strict=True):
            joint = _along(body, v)
            velocity = _carried(pose, velocities[body.parent]).plus(joint)
            turned = Spatial(
                ca.cross(velocity.angular, joint.linear) + ca.cross(velocity.linear, joint.angular),
                ca.cross(velocity.angular, joint.angular),
            )
            acceleration = _carried(pose, accelerations[body.parent])
            velocities.insert(-1, velocity)
            accelerations.insert(-1, acceleration.plus(_along(body, a)).plus(turned))
        return BodyMotion(velocities, accelerations)

    def inverse_dynamics(self, motion: BodyMotion, pushes: Sequence[Spatial]) -> Expression:
        """Joint forces (nv, 1) of a motion while each body is pushed; armature apart."""
        forces = [
            _momentum_rate(body, velocity, acceleration, push)
            for body, velocity, acceleration, push in zip(
                self.tree.bodies,
                motion.velocities[:-1],
                motion.accelerations[:-1],
                pushes,
                strict=True,
            )
        ]
        torque = ca.SX.zeros(self.nv, 1)
        for i, body in reversed(list(enumerate(self.tree.bodies))):
            nv = body.twist.shape[1]
            # Several bodies have one velocity where joints mimic.
            torque[body.v : body.v + nv] += _power(body, forces[i])
            if body.parent >= 0:
                back = _handed_down(self.local[i], forces[i])
                forces[body.parent] = forces[body.parent].plus(back)
        return torque

    def mass(self) -> Expression:
        """The mass matrix M (nv, nv), armature included."""
        matrix = ca.diag(ca.SX(self.tree.armature))
        composites = [_Inertia.of(body) for body in self.tree.bodies]
        for i, body in reversed(list(enumerate(self.tree.bodies))):
            for k, column in enumerate(body.columns.T):
                self._mass_column(matrix, i, body.v + k, composites[i].times(column))
            if body.parent >= 0:
                moved = composites[i].seen_from(self.local[i])
                composites[body.parent] = composites[body.parent].plus(moved)
        return matrix

    def _mass_column(self, matrix: Expression, i: int, column: int, force: Spatial) -> None:
        """Add what a unit of one acceleration of body i asks of its joint and those below it.

        Args:
            matrix: The mass matrix, changed.
            i: Index of the body.
            column: Index of the acceleration.
            force: What the body and all that it carries need of the joint.
        """
        first = i
        while True:
            body = self.tree.bodies[i]
            needed = _power(body, force)
            for k in range(body.twist.shape[1]):
                row = body.v + k
                if i == first:
                    # Of the pairs of velocities of one joint each comes twice, (k, l) and (l, k).
                    if row == column:
                        matrix[row, row] += needed[k]
                    elif row < column:
                        matrix[row, column] = matrix[column, row] = matrix[row, column] + needed[k]
                elif row == column:
                    # Of two joints with one velocity, one carries the other: both halves.
                    matrix[row, row] += 2.0 * needed[k]
                else:
                    matrix[row, column] = matrix[column, row] = matrix[row, column] + needed[k]
            if body.parent < 0:
                return
            force, i = _handed_down(self.local[i], force), body.parent

    def columns(self) -> dict[int, list[Spatial]]:
        """What a unit of each velocity of each body does at the world's origin."""
        result: dict[int, list[Spatial]] = {}
        for i, body in enumerate(self.tree.bodies):
            rotation, position = self.world[i]
            result[i] = []
            for column in body.columns.T:
                angular = rotation @ ca.DM(column[3:])
                linear = rotation @ ca.DM(column[:3]) + ca.cross(position, angular)
                result[i].append(Spatial(linear, angular))
        return result

    def ancestors(self, i: int) -> list[int]:
        """Body i and all that carry it; none for the world, -1."""
        found = []
        while i >= 0:
            found.append(i)
            i = self.tree.bodies[i].parent
        return found


def _joint(body: MovingBody, q: Expression) -> tuple[FramePose, Expression]:
    """Pose of the body in its joint, and how its coordinates change with its velocity."""
    along, axis = ca.DM(body.twist[:3, 0]), body.twist[3:, 0]
    i = body.q
    if body.kind == "screw":
        position = body.ratio * q[i] + body.offset
        turn = _turn(axis, ca.cos(position), ca.sin(position)) if axis.any() else ca.DM.eye(3)
        rate = ca.SX(0, 0) if body.mimics else ca.SX(1)  # it has no coordinate of its own
        return FramePose(turn, along * position), rate
    if body.kind == "translation":
        return FramePose(ca.DM.eye(3), q[i : i + 3]), ca.SX.eye(3)
    if body.kind == "circle":
        c, s = q[i], q[i + 1]
        return FramePose(_turn(axis, c, s), ca.DM.zeros(3, 1)), ca.vertcat(-s, c)
    if body.kind == "planar":
        c, s = q[i + 2], q[i + 3]
        turn = _turn(np.array([0.0, 0.0, 1.0]), c, s)
        rate = ca.diagcat(turn[:2, :2], ca.vertcat(-s, c))
        return FramePose(turn, ca.vertcat(q[i], q[i + 1], 0.0)), rate
    if body.kind == "spherical":
        quaternion = q[i : i + 4]
        return FramePose(_rotation(quaternion), ca.DM.zeros(3, 1)), _quaternion_rate(quaternion)
    quaternion = q[i + 3 : i + 7]
    turn = _rotation(quaternion)
    return FramePose(turn, q[i : i + 3]), ca.diagcat(turn, _quaternion_rate(quaternion))


def normalized(tree: Tree, q: Expression) -> Expression:
    """The configuration q (nq, 1) with quaternions and unit circles scaled to norm one."""
    result = ca.SX(q)
    for body in tree.bodies:
        if body.unit is not None:
            part = q[body.unit]
            result[body.unit] = part / ca.sqrt(ca.sumsqr(part))
    return result


def _turn(axis: Array, c: Expression, s: Expression) -> Expression:
    """The rotation about a unit axis by the angle of cosine c and sine s."""
    cross = ca.skew(ca.DM(axis))
    return ca.DM.eye(3) + s * cross + (1.0 - c) * (cross @ cross)


def _rotation(quaternion: Expression) -> Expression:
    x, y, z, w = (quaternion[k] for k in range(4))
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return ca.vertcat(*(ca.horzcat(*row) for row in rows))


def _quaternion_rate(quaternion: Expression) -> Expression:
    """The matrix (4, 3) of half the quaternion product with the angular velocity of the body."""
    x, y, z, w = (quaternion[k] for k in range(4))
    rows = ((w, -z, y), (z, w, -x), (-y, x, w), (-x, -y, -z))
    return 0.5 * ca.vertcat(*(ca.horzcat(*row) for row in rows))


def _along(body: MovingBody, v: Expression) -> Spatial:
    """What a joint adds to a velocity or acceleration, at v (nv, 1) of all joints."""
    own = v[body.v : body.v + body.twist.shape[1]]
    columns = body.columns
    return Spatial(ca.DM(columns[:3]) @ own, ca.DM(columns[3:]) @ own)


def _carried(pose: FramePose, parent: Spatial) -> Spatial:
    """A velocity or acceleration of the parent, at the origin and in the axes of the body."""
    back = pose.rotation.T
    return Spatial(back @ parent.at(pose.position), back @ parent.angular)


def _handed_down(pose: FramePose, force: Spatial) -> Spatial:
    """A force on the body at the origin and in the axes of its parent."""
    linear = pose.rotation @ force.linear
    return Spatial(linear, pose.rotation @ force.angular + ca.cross(pose.position, linear))


def _power(body: MovingBody, force: Spatial) -> Expression:
    """What a force does along each velocity of a joint."""
    columns = body.columns
    return ca.DM(columns[:3]).T @ force.linear + ca.DM(columns[3:]).T @ force.angular


def _momentum_rate(
    body: MovingBody, velocity: Spatial, acceleration: Spatial, push: Spatial
) -> Spatial:
    """The rate of momentum I a + v x* I v, less what pushes the body."""
    inertia = _Inertia.of(body)
    force, momentum = inertia.by_center(acceleration), inertia.by_center(velocity)
    angular = ca.cross(velocity.angular, momentum.angular)
    angular += ca.cross(velocity.linear, momentum.linear)
    return Spatial(
        force.linear + ca.cross(velocity.angular, momentum.linear) - push.linear,
        force.angular + angular - push.angular,
    )


class _Inertia(NamedTuple):
    """Mass, its first moment (3, 1), and inertia (3, 3) about the origin."""

    mass: Expression
    moment: Expression
    about_origin: Expression

    @staticmethod
    def of(body: MovingBody) -> _Inertia:
        """The inertia of a body alone."""
        return _Inertia(ca.SX(body.mass), ca.SX(body.moment), ca.SX(body.inertia))

    def times(self, motion: Array) -> Spatial:
        """The force that a constant acceleration (6,) needs."""
        return self.by_center(Spatial(ca.DM(motion[:3]), ca.DM(motion[3:])))

    def by_center(self, motion: Spatial) -> Spatial:
        """The force that an acceleration needs, or the momentum of a velocity."""
        return Spatial(
            self.mass * motion.linear + ca.cross(motion.angular, self.moment),
            self.about_origin @ motion.angular + ca.cross(self.moment, motion.linear),
        )

    def plus(self, other: _Inertia) -> _Inertia:
        """The inertia of both together."""
        return _Inertia(*(a + b for a, b in zip(self, other, strict=True)))

    def seen_from(self, pose: FramePose) -> _Inertia:
        """The inertia in the frame in which the body has this pose."""
        turned = pose.rotation @ self.moment
        across, along = ca.skew(pose.position), ca.skew(turned)
        about = pose.rotation @ self.about_origin @ pose.rotation.T
        about -= across @ along + along @ across + self.mass * (across @ across)
        return _Inertia(self.mass, turned + self.mass * pose.position, about)
