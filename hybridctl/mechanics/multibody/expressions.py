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
"""A CasADi expression, `casadi.SX`, or a matrix of numbers in its place, `casadi.DM`."""


class FramePose(NamedTuple):
    """The pose of a frame in another one.

    Attributes:
        rotation: Orientation (3, 3).
        position: Position (3, 1), m.
    """

    rotation: Expression
    position: Expression

    def of(self, inner: FramePose) -> FramePose:
        """Return the pose in the outer frame of a frame whose pose in this frame is given."""
        return FramePose(
            self.rotation @ inner.rotation, self.position + self.rotation @ inner.position
        )


class Spatial(NamedTuple):
    """A spatial velocity, acceleration or force.

    Attributes:
        linear: Linear part (3, 1); the force of a spatial force.
        angular: Angular part (3, 1); the moment of a spatial force.
    """

    linear: Expression
    angular: Expression

    def add(self, other: Spatial) -> Spatial:
        """Return the sum of two spatial vectors."""
        return Spatial(self.linear + other.linear, self.angular + other.angular)

    def find_linear_at(self, point: Expression) -> Expression:
        """Return the linear part (3, 1) at another point (3, 1) of the body."""
        return self.linear + ca.cross(self.angular, point)


ZERO = Spatial(ca.DM.zeros(3, 1), ca.DM.zeros(3, 1))
WORLD = FramePose(ca.DM.eye(3), ca.DM.zeros(3, 1))


class BodyMotion(NamedTuple):
    """Velocities and accelerations of all bodies, and of the world as the last entry, index -1.

    With gravity, the world accelerates upwards instead of bodies falling.

    Attributes:
        velocities: Velocity of each body in its frame.
        accelerations: Acceleration of each body in its frame.
    """

    velocities: list[Spatial]
    accelerations: list[Spatial]


class Bodies:
    """The bodies of a robot at a configuration, as expressions.

    Args:
        tree: Constants of the robot.
        q: Configuration (nq, 1).

    Attributes:
        tree: Constants of the robot.
        q: Configuration (nq, 1).
        nv: Number of velocities.
        local: Pose of each body in its parent.
        world: Pose of each body in the world, and of the world itself at index -1.
        rate: Matrix T(q) (nq, nv) of dq/dt = T v.
    """

    def __init__(self, tree: Tree, q: Expression) -> None:
        self.tree, self.q = tree, q
        self.nv: int = tree.armature.shape[0]
        self.local: list[FramePose] = []
        self.world: list[FramePose] = [WORLD]
        rates = []
        for body in tree.bodies:
            moved, rate = _place_in_joint(body, q)
            placed = FramePose(ca.DM(body.rotation), ca.SX(body.position)).of(moved)
            self.local.append(placed)
            self.world.insert(-1, self.world[body.parent].of(placed))
            rates.append(rate)
        self.rate: Expression = ca.diagcat(*rates)

    def motion(self, v: Expression, a: Expression, weight: bool = True) -> BodyMotion:
        """Return the motion of all bodies.

        Args:
            v: Velocity (nv, 1).
            a: Acceleration (nv, 1).
            weight: Whether gravity acts.
        """
        up = -ca.SX(self.tree.gravity) if weight else ca.SX.zeros(3, 1)
        velocities, accelerations = [ZERO], [Spatial(up, ca.DM.zeros(3, 1))]
        for body, pose in zip(self.tree.bodies, self.local, strict=True):
            joint = _move_by_joint(body, v)
            velocity = _move_with_parent(pose, velocities[body.parent]).add(joint)
            turned = Spatial(
                ca.cross(velocity.angular, joint.linear) + ca.cross(velocity.linear, joint.angular),
                ca.cross(velocity.angular, joint.angular),
            )
            acceleration = _move_with_parent(pose, accelerations[body.parent])
            velocities.insert(-1, velocity)
            accelerations.insert(-1, acceleration.add(_move_by_joint(body, a)).add(turned))
        return BodyMotion(velocities, accelerations)

    def inverse_dynamics(self, motion: BodyMotion, pushes: Sequence[Spatial]) -> Expression:
        """Return the joint forces (nv, 1) that make a motion, without those of the armature.

        Args:
            motion: Motion of the bodies.
            pushes: Spatial force on each body, in its frame, which helps the joint forces.
        """
        forces = [
            _compute_momentum_rate(body, velocity, acceleration, push)
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
            torque[body.v : body.v + nv] += _project_force(body, forces[i])
            if body.parent >= 0:
                back = _shift_to_parent(self.local[i], forces[i])
                forces[body.parent] = forces[body.parent].add(back)
        return torque

    def mass(self) -> Expression:
        """Return the mass matrix M (nv, nv), armature included."""
        matrix = ca.diag(ca.SX(self.tree.armature))
        composites = [_Inertia.of(body) for body in self.tree.bodies]
        for i, body in reversed(list(enumerate(self.tree.bodies))):
            for k, column in enumerate(body.columns.T):
                self._mass_column(matrix, i, body.v + k, composites[i].multiply_array(column))
            if body.parent >= 0:
                moved = composites[i].express_in_frame_of(self.local[i])
                composites[body.parent] = composites[body.parent].add(moved)
        return matrix

    def _mass_column(self, matrix: Expression, i: int, column: int, force: Spatial) -> None:
        """Add the forces of a unit acceleration of body i to a column of the mass matrix.

        Args:
            matrix: The mass matrix, changed.
            i: Index of the body.
            column: Index of the acceleration.
            force: Spatial force that the body needs, with all that it carries.
        """
        first = i
        while True:
            body = self.tree.bodies[i]
            needed = _project_force(body, force)
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
            force, i = _shift_to_parent(self.local[i], force), body.parent

    def columns(self) -> dict[int, list[Spatial]]:
        """Return the spatial velocities of each body by its velocities, at the world's origin."""
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
        """Return body i and all bodies that carry it; nothing for the world, -1."""
        ancestors = []
        while i >= 0:
            ancestors.append(i)
            i = self.tree.bodies[i].parent
        return ancestors


def _place_in_joint(body: MovingBody, q: Expression) -> tuple[FramePose, Expression]:
    """Return the pose of a body in its joint, and the rate of its coordinates by its velocity."""
    along, axis = ca.DM(body.twist[:3, 0]), body.twist[3:, 0]
    i = body.q
    if body.kind == "screw":
        position = body.ratio * q[i] + body.offset
        turn = (
            _rotate_about(axis, ca.cos(position), ca.sin(position)) if axis.any() else ca.DM.eye(3)
        )
        rate = ca.SX(0, 0) if body.mimics else ca.SX(1)  # it has no coordinate of its own
        return FramePose(turn, along * position), rate
    if body.kind == "translation":
        return FramePose(ca.DM.eye(3), q[i : i + 3]), ca.SX.eye(3)
    if body.kind == "circle":
        c, s = q[i], q[i + 1]
        return FramePose(_rotate_about(axis, c, s), ca.DM.zeros(3, 1)), ca.vertcat(-s, c)
    if body.kind == "planar":
        c, s = q[i + 2], q[i + 3]
        turn = _rotate_about(np.array([0.0, 0.0, 1.0]), c, s)
        rate = ca.diagcat(turn[:2, :2], ca.vertcat(-s, c))
        return FramePose(turn, ca.vertcat(q[i], q[i + 1], 0.0)), rate
    if body.kind == "spherical":
        quaternion = q[i : i + 4]
        return FramePose(
            _rotate_by_quaternion(quaternion), ca.DM.zeros(3, 1)
        ), _map_quaternion_rate(quaternion)
    quaternion = q[i + 3 : i + 7]
    turn = _rotate_by_quaternion(quaternion)
    return FramePose(turn, q[i : i + 3]), ca.diagcat(turn, _map_quaternion_rate(quaternion))


def normalize_configuration(tree: Tree, q: Expression) -> Expression:
    """Return a configuration q (nq, 1) with quaternions and unit circles scaled to norm 1."""
    result = ca.SX(q)
    for body in tree.bodies:
        if body.unit is not None:
            part = q[body.unit]
            result[body.unit] = part / ca.sqrt(ca.sumsqr(part))
    return result


def _rotate_about(axis: Array, c: Expression, s: Expression) -> Expression:
    """Return the rotation (3, 3) about a unit axis by the angle of cosine c and sine s."""
    cross = ca.skew(ca.DM(axis))
    return ca.DM.eye(3) + s * cross + (1.0 - c) * (cross @ cross)


def _rotate_by_quaternion(quaternion: Expression) -> Expression:
    """Return the rotation (3, 3) of a unit quaternion x, y, z, w."""
    x, y, z, w = (quaternion[k] for k in range(4))
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return ca.vertcat(*(ca.horzcat(*row) for row in rows))


def _map_quaternion_rate(quaternion: Expression) -> Expression:
    """Return the matrix (4, 3) of a quaternion's rate by the angular velocity of the body."""
    x, y, z, w = (quaternion[k] for k in range(4))
    rows = ((w, -z, y), (z, w, -x), (-y, x, w), (-x, -y, -z))
    return 0.5 * ca.vertcat(*(ca.horzcat(*row) for row in rows))


def _move_by_joint(body: MovingBody, v: Expression) -> Spatial:
    """Return what a joint adds to velocity or acceleration, for those of all joints (nv, 1)."""
    own = v[body.v : body.v + body.twist.shape[1]]
    columns = body.columns
    return Spatial(ca.DM(columns[:3]) @ own, ca.DM(columns[3:]) @ own)


def _move_with_parent(pose: FramePose, parent: Spatial) -> Spatial:
    """Return a velocity or acceleration of the parent, at the origin and in axes of the body."""
    back = pose.rotation.T
    return Spatial(back @ parent.find_linear_at(pose.position), back @ parent.angular)


def _shift_to_parent(pose: FramePose, force: Spatial) -> Spatial:
    """Return a force on the body, at the origin and in the axes of its parent."""
    linear = pose.rotation @ force.linear
    return Spatial(linear, pose.rotation @ force.angular + ca.cross(pose.position, linear))


def _project_force(body: MovingBody, force: Spatial) -> Expression:
    """Return the components (n, 1) of a force along the velocities of a joint."""
    columns = body.columns
    return ca.DM(columns[:3]).T @ force.linear + ca.DM(columns[3:]).T @ force.angular


def _compute_momentum_rate(
    body: MovingBody, velocity: Spatial, acceleration: Spatial, push: Spatial
) -> Spatial:
    """Return the rate of momentum I a + v x* I v less the force that pushes the body."""
    inertia = _Inertia.of(body)
    force, momentum = inertia.multiply(acceleration), inertia.multiply(velocity)
    angular = ca.cross(velocity.angular, momentum.angular)
    angular += ca.cross(velocity.linear, momentum.linear)
    return Spatial(
        force.linear + ca.cross(velocity.angular, momentum.linear) - push.linear,
        force.angular + angular - push.angular,
    )


class _Inertia(NamedTuple):
    """The inertia of a body.

    Attributes:
        mass: Mass, kg.
        moment: First moment of mass (3, 1), kg m.
        about_origin: Inertia (3, 3) about the origin, kg m^2.
    """

    mass: Expression
    moment: Expression
    about_origin: Expression

    @staticmethod
    def of(body: MovingBody) -> _Inertia:
        """Return the inertia of a body without those that it carries."""
        return _Inertia(ca.SX(body.mass), ca.SX(body.moment), ca.SX(body.inertia))

    def multiply_array(self, motion: Array) -> Spatial:
        """Return the force that a constant acceleration (6,) needs."""
        return self.multiply(Spatial(ca.DM(motion[:3]), ca.DM(motion[3:])))

    def multiply(self, motion: Spatial) -> Spatial:
        """Return the force that an acceleration needs, or the momentum of a velocity."""
        return Spatial(
            self.mass * motion.linear + ca.cross(motion.angular, self.moment),
            self.about_origin @ motion.angular + ca.cross(self.moment, motion.linear),
        )

    def add(self, other: _Inertia) -> _Inertia:
        """Return the inertia of both together."""
        return _Inertia(*(a + b for a, b in zip(self, other, strict=True)))

    def express_in_frame_of(self, pose: FramePose) -> _Inertia:
        """Return the inertia in the frame in which the body has a given pose."""
        turned = pose.rotation @ self.moment
        across, along = ca.skew(pose.position), ca.skew(turned)
        about = pose.rotation @ self.about_origin @ pose.rotation.T
        about -= across @ along + along @ across + self.mass * (across @ across)
        return _Inertia(self.mass, turned + self.mass * pose.position, about)
