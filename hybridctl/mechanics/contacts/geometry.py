r"""Kinematics of a set of contacts: gaps, Jacobians, drift, and their derivatives.

Each row of a contact's motion is the power of a unit wrench. With p the contact point, d a unit
direction (both in the world) and w = (d, p x d), the rate of the row is w . (V_A - V_B), where V
are spatial velocities (linear at the world origin, angular) of the body with the point (A) and
of the one with the surface (B). Its time derivative is w . (A_A - A_B) + wdot . (V_A - V_B).

The rows of a set are the normals of all its contacts, then the tangents of those with friction:
two in space, one where the robot can only move in a plane. A normal turns with its surface and
as the point moves over it; a tangent turns with its surface only, which is the same wherever the
point sticks, and elsewhere only names the direction in which a sliding velocity is written.

A round contact of radius rho touches at p = c - rho n, with its centre c and the normal n there,
and :math:`\dot p = \dot c - \rho \dot n`: the point moves on the body as that rolls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.mechanics.contacts.contact import Contact, ContactPlace
from hybridctl.mechanics.contacts.joint_contacts import JointPlace
from hybridctl.mechanics.contacts.stairs import PiecewiseSurface, Stairs
from hybridctl.mechanics.contacts.surfaces import Plane, TangentFrames, grouped, plane_of_motion
from hybridctl.mechanics.multibody.bodies import BodyKinematics
from hybridctl.mechanics.multibody.joints import skew
from hybridctl.mechanics.multibody.robot import Robot

_LOOKS = 3
_SHAPES: dict[str, tuple[int, ...]] = {
    "distance": (),
    "normal": (3,),
    "curvature": (3, 3),
    "curvature_along": (3, 3),
}
"""Shapes of what the methods of a `Surface` return for each point."""
_BEYOND = 1e-8
"""In m: how far beyond a border the next piece is looked at; edges of `Stairs` are 1e-9 m wide."""


class RowDerivatives(NamedTuple):
    """Wrenches of the rows at (q, v, a), and derivatives of rates and accelerations.

    wrench (r, 6), wrench_q (r, 6, nv); rate_q and jacobian, acceleration_q and acceleration_v
    (r, nv); Jacobians of both bodies (r, 6, nv).
    """

    wrench: Array
    wrench_q: Array
    rate_q: Array
    jacobian: Array
    acceleration_q: Array
    acceleration_v: Array
    jacobian_a: Array
    jacobian_b: Array


class PointsOnPlanes(NamedTuple):
    """Points of moving bodies and planes of the world that they touch.

    joints (c,): of the bodies; points (c, 3) in their frames; directions (r, 3) of all rows in the
    world; heights (c,) of the planes along their normals.
    """

    joints: tuple[int, ...]
    points: Array
    directions: Array
    heights: Array


class ContactSet:
    """Contacts of a robot with their names resolved to joints.

    `owner` (r,) is the contact of each row, `tangents` the rows of each contact's tangents.
    `moved_trees` (c, k) tells which of the robot's k kinematic trees move each contact. `loads`
    (c,) are the constant forces that press contacts, 0 where the motion decides about the force.
    """

    def __init__(self, robot: Robot, contacts: Sequence[Contact]) -> None:
        self._robot = robot
        points = [robot.frame(contact.frame) for contact in contacts]
        bodies = [robot.frame(contact.body) for contact in contacts]
        joint_a = [frame.joint for frame in points]
        joint_b = [frame.joint for frame in bodies]
        # There may be no contacts; the world then stands for their bodies.
        self.joints = sorted({*joint_a, *joint_b}) or [0]
        self._a = np.array([self.joints.index(j) for j in joint_a], dtype=np.intp)
        self._b = np.array([self.joints.index(j) for j in joint_b], dtype=np.intp)
        at_points = [
            _pose(np.eye(3), f.position + f.rotation @ contact.offset)
            for f, contact in zip(points, contacts, strict=True)
        ]
        at_surfaces = [_pose(frame.rotation, frame.position) for frame in bodies]
        self._local = np.array(at_points + at_surfaces).reshape(-1, 4, 4)
        self._radius = np.array([contact.radius for contact in contacts])
        self._both = np.concatenate((self._a, self._b))
        # Of all joints, those that mimic others included; there may be no contacts.
        shape = len(joint_a), len(robot.carriers())
        self._support_a = np.array([robot.supporting(j) for j in joint_a]).reshape(shape)
        self._sign = self._support_a - np.array([robot.supporting(j) for j in joint_b]).reshape(
            shape
        )
        self.moved_trees = moved_trees(robot, robot.reduce_flags(self._sign != 0.0))
        self.loads = np.zeros(len(contacts))
        self._each = tuple(contact.surface for contact in contacts)
        self._piecewise = {
            i: surface
            for i, surface in enumerate(self._each)
            if isinstance(surface, PiecewiseSurface) and surface.has_borders
        }
        self._surfaces = grouped(self._each)
        self._curved = any(surface.curved for surface in self._each)
        self._frames = self._tangent_frames(contacts)
        self.owner = np.array([*range(len(contacts)), *self._frames.owner], dtype=np.intp)
        self.tangents = tuple(
            np.flatnonzero(self.owner[len(contacts) :] == i) + len(contacts)
            for i in range(len(contacts))
        )
        self.joint_a = [joint_a[i] for i in self.owner]
        self.joint_b = [joint_b[i] for i in self.owner]
        self._row_sign = self._sign[self.owner]
        self._arm = self._radius[self.owner, None] if self._radius.any() else None
        # Another surface without curvature may have pieces with different normals.
        flat = bool(contacts) and all(isinstance(s, Plane | Stairs) for s in self._each)
        self._flat = self._in_surfaces(np.zeros((len(contacts), 3))) if flat else None

    def _tangent_frames(self, contacts: Sequence[Contact]) -> TangentFrames:
        """Two tangents for each rough contact, one where it can only move in a plane.

        Whether it can is found by looking at its motion at three configurations.
        """
        robot, rng = self._robot, np.random.default_rng(0)
        rough = [i for i, contact in enumerate(contacts) if contact.rough]
        moves, normals = [], []
        for _ in range(_LOOKS if rough else 0):
            q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
            motion = robot.motion(q, np.zeros(robot.nv), self.joints)
            p, turn, r = self._place(motion.poses)
            normals.append(self._on_surfaces("normal", r))
            for contact, n, at in zip(contacts, normals[-1], r, strict=True):
                if not np.isfinite(n).all():
                    raise InputError(
                        f"the surface of contact {contact.name!r} must have a normal everywhere, "
                        f"but it is not finite at {at.tolist()} m in its frame"
                    )
            p = p - self._radius[:, None] * _times(turn, normals[-1])
            linear = motion.jacobian[:3] - skew(p) @ motion.jacobian[3:]
            linear = robot.reduce_columns(self._sign[:, None, :] * linear)
            moves.append(turn.transpose(0, 2, 1) @ linear)
        axes: list[Array | None] = [None] * len(contacts)
        for i in rough:
            each, across = np.hstack([m[i] for m in moves]), np.array([n[i] for n in normals])
            axes[i] = plane_of_motion(contacts[i].name, each, across)
        return TangentFrames(rough, axes)

    def gaps(self, q: Array) -> Array:
        """Signed distances (c,), positive when open."""
        _, _, r = self._place(self._robot.poses(q, self.joints))
        return self._gaps(r)

    @property
    def piecewise(self) -> tuple[int, ...]:
        """The contacts whose surfaces have pieces with borders."""
        return tuple(self._piecewise)

    def piece_gaps(self, q: Array, gaps: Array) -> Array:
        """Return the gaps (c,) of contacts from the pieces that they are on, if they are closed.

        Beyond the border of its piece the gap of a contact is that from another piece; what holds
        the contact closed until its event is the piece that it has been on.

        Args:
            q: Configuration (nq,).
            gaps: Gaps (c,) at q, m: the answer for contacts on surfaces of one piece.
        """
        if not self._piecewise:
            return gaps
        _, _, r = self._place(self._robot.poses(q, self.joints))
        gaps = gaps.copy()
        for i, surface in self._piecewise.items():
            gaps[i] = surface.piece_distance(r[i : i + 1])[0]
        return gaps

    def margins(self, q: Array) -> Array:
        """Return how far contacts are from the borders of their pieces of surface.

        Args:
            q: Configuration (nq,).

        Returns:
            Margins (c,) in m, negative beyond the border, infinite for surfaces of one piece.
        """
        _, _, r = self._place(self._robot.poses(q, self.joints))
        margins = np.full(len(self._each), np.inf)
        for i, surface in self._piecewise.items():
            margins[i] = surface.margin(r[i : i + 1])[0]
        return margins

    def margin_jacobian(self, q: Array) -> Array:
        """Return the derivatives of the margins by the velocities.

        Args:
            q: Configuration (nq,).

        Returns:
            Jacobian (c, nv): its product with v (nv,) is the rate of `margins` in m/s. Rows of
            contacts on surfaces of one piece are zero.
        """
        motion = self._robot.motion(q, np.zeros(self._robot.nv), self.joints)
        p, turn, r = self._place(motion.poses)
        rows = np.zeros((len(self._each), self._robot.nv))
        for i, surface in self._piecewise.items():
            d = turn[i] @ surface.margin_gradient(r[i : i + 1])[0]
            wrench = np.concatenate((d, np.cross(p[i], d)))
            rows[i] = self._robot.reduce_columns(self._sign[i] * (wrench @ motion.jacobian))
        return rows

    def gaps_beyond(self, q: Array) -> Array:
        """Return the gaps of contacts just beyond the nearest border of their pieces.

        Args:
            q: Configuration (nq,).

        Returns:
            Gaps (c,) in m, positive where the next piece is lower; NaN for surfaces of one piece.
        """
        _, _, r = self._place(self._robot.poses(q, self.joints))
        gaps = np.full(len(self._each), np.nan)
        for i, surface in self._piecewise.items():
            at = r[i : i + 1]
            gaps[i] = surface.distance(
                at - (surface.margin(at) + _BEYOND) * surface.margin_gradient(at)
            )[0]
        return gaps

    def at_risers(self, q: Array) -> tuple[int, ...]:
        """Return the contacts that are at a face between two pieces of their surface.

        Args:
            q: Configuration (nq,).

        Returns:
            Indices of these contacts, in increasing order.
        """
        if not self._piecewise:
            return ()
        _, _, r = self._place(self._robot.poses(q, self.joints))
        return tuple(i for i, s in self._piecewise.items() if s.is_at_riser(r[i : i + 1])[0])

    def in_world(self, q: Array, normal: Array, friction: Array) -> tuple[Array, Array]:
        """Contact points (c, 3) in m and the forces there (c, 3), both in the world.

        normal (c,) and friction (c, 2) are along the rows of each contact, in N (or N s); the
        forces act on the bodies with the points, and oppositely on those with the surfaces.
        """
        p, turn, r = self._place(self._robot.poses(q, self.joints))
        points, directions = self._touching(*self._directions(p, turn, r))
        forces = normal[:, None] * directions[: len(p)]
        for i, rows in enumerate(self.tangents):
            forces[i] += friction[i, : len(rows)] @ directions[rows]
        return points[: len(p)], forces

    def jacobian(self, q: Array) -> Array:
        """The Jacobian J of all rows (r, nv), whose rates are J v."""
        motion = self._robot.motion(q, np.zeros(self._robot.nv), self.joints)
        p, turn, r = self._place(motion.poses)
        points, directions = self._touching(*self._directions(p, turn, r))
        wrench = np.concatenate((directions, _cross(points, directions)), axis=1)
        return self._robot.reduce_columns(self._row_sign * (wrench @ motion.jacobian))

    def motion(self, motion: BodyKinematics, v: Array) -> tuple[Array, Array, Array, Array]:
        """The Jacobian J (r, nv), drift Jdot v (r,), gaps (c,) and rates J v (r,) at (q, v)."""
        p, turn, r = self._place(motion.poses)
        v_all = self._robot.all_velocities(v)
        moving = self._sign * v_all
        relative = moving @ motion.jacobian.T
        velocity_a = (self._support_a * v_all) @ motion.jacobian.T
        relative_rate = moving @ motion.jacobian_rate.T
        count, rows = len(p), self.owner
        points, directions = self._directions(p, turn, r)
        if len(rows) > count:
            relative, relative_rate = relative[rows], relative_rate[rows]
            velocity_a = velocity_a[rows]
        px, dx = skew(np.array((points, directions)))
        spin_a = velocity_a[:, 3:]
        p_rate = velocity_a[:, :3] - _times(px, spin_a)
        rate = _times(dx, relative[:, 3:] - spin_a)
        if self._curved:
            slip = relative[:count, :3] - _times(px[:count], relative[:count, 3:])
            local = _times(turn.transpose(0, 2, 1), slip)
            rate[:count] += _times(turn, _times(self._on_surfaces("curvature", r), local))
        if self._arm is not None:
            p_rate -= self._arm * rate[rows]
            px = skew(self._touching(points, directions)[0])
        wrench = np.concatenate((directions, _times(px, directions)), axis=1)
        jacobian = self._robot.reduce_columns(self._row_sign * (wrench @ motion.jacobian))
        wrench_rate = np.concatenate((rate, _times(px, rate) - _times(dx, p_rate)), axis=1)
        drift = _dot(wrench, relative_rate) + _dot(wrench_rate, relative)
        return jacobian, drift, self._gaps(r), jacobian @ v

    def derivatives(self, q: Array, v: Array, a: Array) -> RowDerivatives:
        """Derivatives of rates and accelerations at fixed a; see the module's formulas."""
        poses = self._robot.poses(q, self.joints)
        k = self._robot.motion_derivatives(q, v, a, self.joints)
        count, rows = len(self._a), self.owner
        ia, ib = self._a[rows], self._b[rows]
        point, turn, r = self._place(poses)
        p, d = self._directions(point, turn, r)
        velocity = k.velocity[ia] - k.velocity[ib]
        acceleration = k.acceleration[ia] - k.acceleration[ib]
        jacobian = k.jacobian[ia] - k.jacobian[ib]
        velocity_q = k.velocity_q[ia] - k.velocity_q[ib]
        px, dx = skew(p), skew(d)
        spin_a, spin_b = k.velocity[ia][:, 3:], k.velocity[ib][:, 3:]
        p_rate = k.velocity[ia][:, :3] + _cross(spin_a, p)
        d_rate = _cross(spin_b, d)
        p_q = k.jacobian[ia][:, :3] - px @ k.jacobian[ia][:, 3:]
        d_q = -dx @ k.jacobian[ib][:, 3:]
        p_rate_q = k.velocity_q[ia][:, :3] - px @ k.velocity_q[ia][:, 3:] + skew(spin_a) @ p_q
        d_rate_q = -dx @ k.velocity_q[ib][:, 3:]
        d_v = d_q
        if self._curved:
            first = slice(0, count)
            bend_rate, normal_q, bend_rate_q = self._bend(
                turn, r, p[first], velocity[first], jacobian[first], velocity_q[first],
                p_q[first], k.jacobian[ib][first],
            )  # fmt: skip
            owner = rows[count:]
            slopes = self._frames.slopes(self._on_surfaces("normal", r)[owner])
            world = turn[owner] @ slopes @ turn[owner].transpose(0, 2, 1)
            d_q[first] += normal_q
            d_v = d_q.copy()
            d_q[count:] += world @ normal_q[owner]
            d_rate[first] += bend_rate
            d_rate_q[first] += bend_rate_q
        d_rate_q = d_rate_q + skew(spin_b) @ d_q
        if self._arm is not None:
            arm, p = self._arm, self._touching(p, d)[0]
            px, p_rate = skew(p), p_rate - arm * d_rate[rows]
            p_q = p_q - arm[:, None] * d_q[rows]
            p_rate_q = p_rate_q - arm[:, None] * d_rate_q[rows]
        wrench = np.concatenate((d, _cross(p, d)), axis=1)
        wrench_q = np.concatenate((d_q, px @ d_q - dx @ p_q), axis=1)
        wrench_v = np.concatenate((d_v, px @ d_v - dx @ p_q), axis=1)
        rate = np.concatenate((d_rate, _cross(p_rate, d) + _cross(p, d_rate)), axis=1)
        moment_rate_q = skew(p_rate) @ d_q - dx @ p_rate_q + px @ d_rate_q - skew(d_rate) @ p_q
        rate_q = np.concatenate((d_rate_q, moment_rate_q), axis=1)
        return RowDerivatives(
            wrench,
            wrench_q,
            _apply(velocity, wrench_q) + _apply(wrench, velocity_q),
            _apply(wrench, jacobian),
            _apply(acceleration, wrench_q)
            + _apply(wrench, k.acceleration_q[ia] - k.acceleration_q[ib])
            + _apply(velocity, rate_q)
            + _apply(rate, velocity_q),
            _apply(wrench, k.acceleration_v[ia] - k.acceleration_v[ib])
            + _apply(velocity, wrench_v)
            + _apply(rate, jacobian),
            k.jacobian[ia],
            k.jacobian[ib],
        )

    def _directions(self, p: Array, turn: Array, r: Array) -> tuple[Array, Array]:
        """Centres and directions of all rows (r, 3), in the world."""
        local = self._in_surfaces(r) if self._flat is None else self._flat
        if len(self.owner) == len(p):
            return p, _times(turn, local)
        return p[self.owner], _times(turn[self.owner], local)

    def _touching(self, points: Array, directions: Array) -> tuple[Array, Array]:
        """Points of all rows moved from centres to the surfaces, and the directions."""
        if self._arm is None:
            return points, directions
        return points - self._arm * directions[self.owner], directions

    def _gaps(self, r: Array) -> Array:
        """Signed distances (c,) of contacts at points in the frames of their surfaces."""
        return np.asarray(self._on_surfaces("distance", r) - self._radius)

    def _in_surfaces(self, r: Array) -> Array:
        """Directions of all rows (r, 3), in the frames of the surfaces."""
        normals = self._on_surfaces("normal", r)
        tangents = self._frames.at(normals[self.owner[len(r) :]])
        return np.concatenate((normals, tangents))

    def _place(self, poses: Array) -> tuple[Array, Array, Array]:
        """Contact points in the world, orientation of the surfaces, points in their frames."""
        placed = poses[self._both] @ self._local
        count = len(self._a)
        p, turn = placed[:count, :3, 3], placed[count:, :3, :3]
        return p, turn, ((p - placed[count:, :3, 3])[:, None, :] @ turn)[:, 0]

    def _on_surfaces(self, what: str, *arguments: Array) -> Array:
        """A method of each contact's surface at its point."""
        if not self._surfaces:
            return np.zeros((0, *_SHAPES[what]))
        if len(self._surfaces) == 1:
            return np.asarray(getattr(self._surfaces[0][0], what)(*arguments))
        parts = [
            (places, getattr(surface, what)(*(argument[places] for argument in arguments)))
            for surface, places in self._surfaces
        ]
        result = np.empty((len(self._a), *parts[0][1].shape[1:]))
        for places, part in parts:
            result[places] = part
        return result

    def joint_places(self) -> tuple[JointPlace, ...]:
        """Return the constants of contacts of joints: none, as all contacts are in space."""
        return ()

    def places(self) -> tuple[ContactPlace, ...]:
        """The constants of all contacts, from which their motion follows."""
        count = len(self._each)
        return tuple(
            ContactPlace(
                self.joint_a[i],
                self._local[i, :3, 3],
                float(self._radius[i]),
                self.joint_b[i],
                self._local[count + i, :3, :3],
                self._local[count + i, :3, 3],
                self._each[i],
                len(self.tangents[i]),
                self._frames.axes[i],
            )
            for i in range(count)
        )

    def on_ground(self) -> PointsOnPlanes | None:
        """The contacts as points on planes of the world, None where some are something else."""
        count = len(self._each)
        moving = all(self.joint_a[:count]) and not any(self.joint_b[:count])
        planes = all(isinstance(surface, Plane) for surface in self._each)
        if self._flat is None or self._radius.any() or not moving or not planes:
            return None
        turn, origin = self._local[count:, :3, :3], self._local[count:, :3, 3]
        directions = _times(turn[self.owner], self._flat)
        here = ((np.zeros(3) - origin)[:, None, :] @ turn)[:, 0]
        heights = -np.asarray(self._on_surfaces("distance", here))
        return PointsOnPlanes(
            tuple(self.joint_a[:count]), self._local[:count, :3, 3], directions, heights
        )

    def _bend(
        self,
        turn: Array,
        r: Array,
        p: Array,
        velocity: Array,
        jacobian: Array,
        velocity_q: Array,
        p_q: Array,
        jacobian_b: Array,
    ) -> tuple[Array, Array, Array]:
        """What the curvature H adds: nabla phi turns by H rdot as the point moves over the surface.

        With R the orientation of the surface and s the velocity of the point relative to it (in the
        world), the added normal rate is c = R H R' s. Returned are c (c, 3), and by q the turn of
        the normal and c (c, 3, nv).
        """
        back, px = turn.transpose(0, 2, 1), skew(p)
        world = turn @ self._on_surfaces("curvature", r) @ back
        relative = jacobian[:, :3] - px @ jacobian[:, 3:]
        slip = velocity[:, :3] + _cross(velocity[:, 3:], p)
        slip_q = velocity_q[:, :3] - px @ velocity_q[:, 3:] + skew(velocity[:, 3:]) @ p_q
        third = turn @ self._on_surfaces("curvature_along", r, _times(back, slip)) @ back
        rate = _times(world, slip)
        rate_q = (
            -skew(rate) @ jacobian_b[:, 3:]
            + third @ relative
            + world @ (slip_q + skew(slip) @ jacobian_b[:, 3:])
        )
        return rate, world @ relative, rate_q


def moved_trees(robot: Robot, moves: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which kinematic trees of a robot move each contact, (c, k).

    Two velocities belong to one tree if a chain of bodies, or a joint that mimics, connects them:
    M^-1 is block-diagonal in the trees, at all configurations.

    Args:
        robot: The robot, with nv velocities.
        moves: Whether a velocity moves the point of a contact against its surface, (c, nv).
    """
    carried = robot.reduce_flags(robot.carriers())
    count, tree = connected_components(robot.reduce_flags(carried.T).T, directed=False)
    in_tree = tree[:, None] == np.arange(count)
    return np.asarray(moves @ in_tree)


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
