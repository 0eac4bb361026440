r"""Kinematics of a set of contacts: gaps, Jacobians, drift, and their derivatives.

The rate of a row is the power of a unit wrench. With the contact point p and a unit direction d,
both in the world, the wrench is w = (d, p x d), and the rate is w . (V_A - V_B). V are spatial
velocities (linear at the world origin, angular) of the body with the point (A) and of the body with
the surface (B). The acceleration of the row is w . (A_A - A_B) + wdot . (V_A - V_B).

The rows of a set are the normals of all its contacts, then the tangents of those with friction: two
in space, one where the point moves in a plane. A normal turns with its surface and as the point
moves over it. A tangent turns with its surface only. That is exact where the point sticks, and
where it slides the tangent only names the direction in which the velocity is written.

A round contact of radius rho touches at p = c - rho n, with its centre c and the normal n there.
Then :math:`\dot p = \dot c - \rho \dot n`: the point moves on the body as the body rolls.

Arrays have one entry for each of c contacts, or for each of r rows.
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
from hybridctl.mechanics.contacts.surfaces import (
    Plane,
    TangentFrames,
    find_plane_of_motion,
    group_surfaces,
)
from hybridctl.mechanics.multibody.bodies import BodyKinematics
from hybridctl.mechanics.multibody.joints import skew
from hybridctl.mechanics.multibody.robot import Robot

_PLANE_SAMPLES = 3
"""Random configurations at which the motion of a contact is looked at, to find planes of motion."""
_SHAPES: dict[str, tuple[int, ...]] = {
    "distance": (),
    "normal": (3,),
    "curvature": (3, 3),
    "curvature_along": (3, 3),
}
"""Shapes of what the methods of a `Surface` return for each point."""
_BORDER_STEP = 1e-8
"""Distance in m beyond a border at which the next piece is evaluated; edges of `Stairs` are
1e-9 m wide."""


class RowDerivatives(NamedTuple):
    """Derivatives of all rows at (q, v, a), by configuration (in the tangent space) and velocity.

    Attributes:
        wrench: Wrenches w (r, 6).
        wrench_q: Derivatives (r, 6, nv) of the wrenches by q.
        rate_q: Derivatives (r, nv) of the rates by q.
        jacobian: Derivatives J (r, nv) of the rates by v.
        acceleration_q: Derivatives (r, nv) of the accelerations by q.
        acceleration_v: Derivatives (r, nv) of the accelerations by v.
        jacobian_a: Jacobians (r, 6, nv) of the bodies with the points.
        jacobian_b: Jacobians (r, 6, nv) of the bodies with the surfaces.
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
    """Points of moving bodies, and the planes of the world that they touch.

    Attributes:
        joints: Joint (c,) of each body.
        points: Points (c, 3) in the frames of the joints, m.
        directions: Directions (r, 3) of all rows, in the world.
        heights: Height (c,) of each plane along its normal, m.
    """

    joints: tuple[int, ...]
    points: Array
    directions: Array
    heights: Array


class ContactSet:
    """Contacts of a robot, with their frames resolved to joints.

    Args:
        robot: The robot.
        contacts: The contacts; there may be none.

    Attributes:
        joints: Indices of the joints that move the bodies of the contacts, in increasing order; 0
            for the world.
        owner: Index of the contact (r,) that each row belongs to.
        tangents: For each contact the indices of its tangent rows: none without friction.
        joint_a: Index of the joint of the body with the point, for each row.
        joint_b: Index of the joint of the body with the surface, for each row.
        moved_trees: Whether each of the robot's k kinematic trees moves each contact, (c, k).
        loads: Constant forces (c,) that press contacts, N; 0 where the motion decides on the force.

    Raises:
        InputError: A surface has no normal somewhere, or a contact nearly moves in a plane.
    """

    def __init__(self, robot: Robot, contacts: Sequence[Contact]) -> None:
        self._robot = robot
        points = [robot.frame(contact.frame) for contact in contacts]
        bodies = [robot.frame(contact.body) for contact in contacts]
        joint_a = [frame.joint for frame in points]
        joint_b = [frame.joint for frame in bodies]
        # There may be no contacts; the world then stands for their bodies. The bodies with the
        # points and with the surfaces are indices (c,) into `joints`.
        self.joints = sorted({*joint_a, *joint_b}) or [0]
        self._point_bodies = np.array([self.joints.index(j) for j in joint_a], dtype=np.intp)
        self._surface_bodies = np.array([self.joints.index(j) for j in joint_b], dtype=np.intp)
        # Poses (2 c, 4, 4) in the frames of the joints: those of all points, then of all surfaces.
        at_points = [
            _make_pose(np.eye(3), f.position + f.rotation @ contact.offset)
            for f, contact in zip(points, contacts, strict=True)
        ]
        at_surfaces = [_make_pose(frame.rotation, frame.position) for frame in bodies]
        self._placements = np.array(at_points + at_surfaces).reshape(-1, 4, 4)
        self._radii = np.array([contact.radius for contact in contacts])
        self._placed_bodies = np.concatenate((self._point_bodies, self._surface_bodies))
        # Which velocities move the body with the point (c, n), and 1 where they move that body
        # alone, -1 where they move the surface alone, 0 where both or none. The n velocities are
        # of all joints, those that mimic others included; there may be no contacts.
        shape = len(joint_a), len(robot.carriers())
        self._point_support = np.array([robot.supporting(j) for j in joint_a]).reshape(shape)
        self._relative_support = self._point_support - np.array(
            [robot.supporting(j) for j in joint_b]
        ).reshape(shape)
        self.moved_trees = find_moved_trees(
            robot, robot.reduce_flags(self._relative_support != 0.0)
        )
        self.loads = np.zeros(len(contacts))
        self._contact_surfaces = tuple(contact.surface for contact in contacts)
        self._piecewise_surfaces = {
            i: surface
            for i, surface in enumerate(self._contact_surfaces)
            if isinstance(surface, PiecewiseSurface) and surface.has_borders
        }
        self._surface_groups = group_surfaces(self._contact_surfaces)
        self._has_curvature = any(surface.curved for surface in self._contact_surfaces)
        self._tangent_frames = self._make_tangent_frames(contacts)
        self.owner = np.array([*range(len(contacts)), *self._tangent_frames.owner], dtype=np.intp)
        self.tangents = tuple(
            np.flatnonzero(self.owner[len(contacts) :] == i) + len(contacts)
            for i in range(len(contacts))
        )
        self.joint_a = [joint_a[i] for i in self.owner]
        self.joint_b = [joint_b[i] for i in self.owner]
        self._row_support = self._relative_support[self.owner]
        self._row_radius = self._radii[self.owner, None] if self._radii.any() else None
        # Directions of all rows (r, 3) in the frames of the surfaces where they are constant, else
        # None. Another surface without curvature may have pieces with different normals.
        flat = bool(contacts) and all(isinstance(s, Plane | Stairs) for s in self._contact_surfaces)
        self._constant_directions = (
            self._compute_directions(np.zeros((len(contacts), 3))) if flat else None
        )

    def _make_tangent_frames(self, contacts: Sequence[Contact]) -> TangentFrames:
        """Return the tangents of all contacts with friction.

        A contact has one tangent if its point moves in a plane at some random configurations.

        Raises:
            InputError: A surface has no normal somewhere, or a contact nearly moves in a plane.
        """
        robot, rng = self._robot, np.random.default_rng(0)
        rough = [i for i, contact in enumerate(contacts) if contact.rough]
        moves, normals = [], []
        for _ in range(_PLANE_SAMPLES if rough else 0):
            q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
            motion = robot.motion(q, np.zeros(robot.nv), self.joints)
            p, turn, r = self._place_contacts(motion.poses)
            normals.append(self._evaluate_surfaces("normal", r))
            for contact, n, at in zip(contacts, normals[-1], r, strict=True):
                if not np.isfinite(n).all():
                    raise InputError(
                        f"the surface of contact {contact.name!r} must have a normal everywhere, "
                        f"but it is not finite at {at.tolist()} m in its frame"
                    )
            p = p - self._radii[:, None] * _multiply(turn, normals[-1])
            linear = motion.jacobian[:3] - skew(p) @ motion.jacobian[3:]
            linear = robot.reduce_columns(self._relative_support[:, None, :] * linear)
            moves.append(turn.transpose(0, 2, 1) @ linear)
        axes: list[Array | None] = [None] * len(contacts)
        for i in rough:
            own_moves = np.hstack([m[i] for m in moves])
            own_normals = np.array([n[i] for n in normals])
            axes[i] = find_plane_of_motion(contacts[i].name, own_moves, own_normals)
        return TangentFrames(rough, axes)

    def gaps(self, q: Array) -> Array:
        """Return the gaps (c,) at a configuration q (nq,), m; positive when open.

        On a surface of several pieces they are those of the piece below or above the point.
        """
        _, _, r = self._place_contacts(self._robot.poses(q, self.joints))
        return self._compute_gaps(r)

    @property
    def piecewise(self) -> tuple[int, ...]:
        """Indices of the contacts whose surfaces have pieces with borders."""
        return tuple(self._piecewise_surfaces)

    def piece_gaps(self, q: Array, gaps: Array) -> Array:
        """Return the gaps (c,) of closed contacts from the pieces of surface that they are on.

        Just beyond the border of its piece, `gaps` gives the gap of a contact from the next piece.
        Until the event of the border, the contact is still closed on the piece that it has been on.

        Args:
            q: Configuration (nq,).
            gaps: Gaps (c,) at q, m, which are returned for surfaces of one piece.
        """
        if not self._piecewise_surfaces:
            return gaps
        _, _, r = self._place_contacts(self._robot.poses(q, self.joints))
        gaps = gaps.copy()
        for i, surface in self._piecewise_surfaces.items():
            gaps[i] = surface.piece_distance(r[i : i + 1])[0]
        return gaps

    def margins(self, q: Array) -> Array:
        """Return how far contacts are from the borders of their pieces of surface.

        Args:
            q: Configuration (nq,).

        Returns:
            Margins (c,) in m, negative beyond the border, infinite for surfaces of one piece.
        """
        _, _, r = self._place_contacts(self._robot.poses(q, self.joints))
        margins = np.full(len(self._contact_surfaces), np.inf)
        for i, surface in self._piecewise_surfaces.items():
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
        p, turn, r = self._place_contacts(motion.poses)
        rows = np.zeros((len(self._contact_surfaces), self._robot.nv))
        for i, surface in self._piecewise_surfaces.items():
            d = turn[i] @ surface.margin_gradient(r[i : i + 1])[0]
            wrench = np.concatenate((d, np.cross(p[i], d)))
            rows[i] = self._robot.reduce_columns(
                self._relative_support[i] * (wrench @ motion.jacobian)
            )
        return rows

    def gaps_beyond(self, q: Array) -> Array:
        """Return the gaps of contacts just beyond the nearest border of their pieces.

        Args:
            q: Configuration (nq,).

        Returns:
            Gaps (c,) in m, positive where the next piece is lower; NaN for surfaces of one piece.
        """
        _, _, r = self._place_contacts(self._robot.poses(q, self.joints))
        gaps = np.full(len(self._contact_surfaces), np.nan)
        for i, surface in self._piecewise_surfaces.items():
            at = r[i : i + 1]
            gaps[i] = surface.distance(
                at - (surface.margin(at) + _BORDER_STEP) * surface.margin_gradient(at)
            )[0]
        return gaps

    def find_riser_contacts(self, q: Array) -> tuple[int, ...]:
        """Return the contacts that are at a face between two pieces of their surface.

        Args:
            q: Configuration (nq,).

        Returns:
            Indices of these contacts, in increasing order.
        """
        if not self._piecewise_surfaces:
            return ()
        _, _, r = self._place_contacts(self._robot.poses(q, self.joints))
        return tuple(
            i for i, s in self._piecewise_surfaces.items() if s.is_at_riser(r[i : i + 1])[0]
        )

    def express_in_world(self, q: Array, normal: Array, friction: Array) -> tuple[Array, Array]:
        """Return contact points (c, 3) in m and forces there (c, 3) in N, both in the world.

        The forces act on the bodies with the points, and oppositely on those with the surfaces.
        Impulses in N s are converted in the same way.

        Args:
            q: Configuration (nq,).
            normal: Normal forces (c,), N.
            friction: Friction forces (c, 2) along the tangents of each contact, N.
        """
        p, turn, r = self._place_contacts(self._robot.poses(q, self.joints))
        points, directions = self._move_to_surfaces(*self._place_rows(p, turn, r))
        forces = normal[:, None] * directions[: len(p)]
        for i, rows in enumerate(self.tangents):
            forces[i] += friction[i, : len(rows)] @ directions[rows]
        return points[: len(p)], forces

    def jacobian(self, q: Array) -> Array:
        """Return the Jacobian J (r, nv) of all rows at q (nq,); their rates are J v."""
        motion = self._robot.motion(q, np.zeros(self._robot.nv), self.joints)
        p, turn, r = self._place_contacts(motion.poses)
        points, directions = self._move_to_surfaces(*self._place_rows(p, turn, r))
        wrench = np.concatenate((directions, _cross(points, directions)), axis=1)
        return self._robot.reduce_columns(self._row_support * (wrench @ motion.jacobian))

    def motion(self, motion: BodyKinematics, v: Array) -> tuple[Array, Array, Array, Array]:
        """Return Jacobian and drift of all rows, gaps and rates.

        Args:
            motion: Kinematics of the bodies at (q, v).
            v: Velocity (nv,).

        Returns:
            Jacobian J (r, nv), drift Jdot v (r,), gaps (c,) in m, and rates J v (r,).
        """
        p, turn, r = self._place_contacts(motion.poses)
        v_all = self._robot.all_velocities(v)
        moving = self._relative_support * v_all
        relative = moving @ motion.jacobian.T
        velocity_a = (self._point_support * v_all) @ motion.jacobian.T
        relative_rate = moving @ motion.jacobian_rate.T
        count, rows = len(p), self.owner
        points, directions = self._place_rows(p, turn, r)
        if len(rows) > count:
            relative, relative_rate = relative[rows], relative_rate[rows]
            velocity_a = velocity_a[rows]
        px, dx = skew(np.array((points, directions)))
        spin_a = velocity_a[:, 3:]
        # The point moves with its body. Directions turn with the surface, at the rate
        # omega_B x d = d x (omega_A - omega_B - omega_A).
        p_rate = velocity_a[:, :3] - _multiply(px, spin_a)
        rate = _multiply(dx, relative[:, 3:] - spin_a)
        if self._has_curvature:
            # A normal turns besides by R H R' s, see `_differentiate_normals`.
            slip = relative[:count, :3] - _multiply(px[:count], relative[:count, 3:])
            local = _multiply(turn.transpose(0, 2, 1), slip)
            rate[:count] += _multiply(
                turn, _multiply(self._evaluate_surfaces("curvature", r), local)
            )
        if self._row_radius is not None:
            # From the centre of a round contact to where it touches, p = c - rho n.
            p_rate -= self._row_radius * rate[rows]
            px = skew(self._move_to_surfaces(points, directions)[0])
        wrench = np.concatenate((directions, _multiply(px, directions)), axis=1)
        jacobian = self._robot.reduce_columns(self._row_support * (wrench @ motion.jacobian))
        wrench_rate = np.concatenate((rate, _multiply(px, rate) - _multiply(dx, p_rate)), axis=1)
        drift = _dot(wrench, relative_rate) + _dot(wrench_rate, relative)
        return jacobian, drift, self._compute_gaps(r), jacobian @ v

    def derivatives(self, q: Array, v: Array, a: Array) -> RowDerivatives:
        """Return derivatives of rates and accelerations of all rows.

        In the names below, `_q` and `_v` are derivatives by q (in the tangent space) and v, and
        `_rate` by time. Without curvature a normal turns with its body only;
        `_differentiate_normals` gives what curvature adds. The point of a sphere moves with the
        normal.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,), which is held fixed.
        """
        poses = self._robot.poses(q, self.joints)
        k = self._robot.motion_derivatives(q, v, a, self.joints)
        count, rows = len(self._point_bodies), self.owner
        ia, ib = self._point_bodies[rows], self._surface_bodies[rows]
        point, turn, r = self._place_contacts(poses)
        p, d = self._place_rows(point, turn, r)
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
        d_v = d_q  # D_v of the rate of d, which is d_q v, but for what curvature adds to tangents
        if self._has_curvature:
            first = slice(0, count)
            curve_rate, normal_q, curve_rate_q = self._differentiate_normals(
                turn, r, p[first], velocity[first], jacobian[first], velocity_q[first],
                p_q[first], k.jacobian[ib][first],
            )  # fmt: skip
            d_q[first] += normal_q
            d_v = d_q.copy()
            d_q[count:] += self._differentiate_tangents(turn, r) @ normal_q[rows[count:]]
            d_rate[first] += curve_rate
            d_rate_q[first] += curve_rate_q
        d_rate_q = d_rate_q + skew(spin_b) @ d_q
        if self._row_radius is not None:
            arm, p = self._row_radius, self._move_to_surfaces(p, d)[0]
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
            wrench=wrench,
            wrench_q=wrench_q,
            rate_q=_multiply_rows(velocity, wrench_q) + _multiply_rows(wrench, velocity_q),
            jacobian=_multiply_rows(wrench, jacobian),
            acceleration_q=_multiply_rows(acceleration, wrench_q)
            + _multiply_rows(wrench, k.acceleration_q[ia] - k.acceleration_q[ib])
            + _multiply_rows(velocity, rate_q)
            + _multiply_rows(rate, velocity_q),
            acceleration_v=_multiply_rows(wrench, k.acceleration_v[ia] - k.acceleration_v[ib])
            + _multiply_rows(velocity, wrench_v)
            + _multiply_rows(rate, jacobian),
            jacobian_a=k.jacobian[ia],
            jacobian_b=k.jacobian[ib],
        )

    def _differentiate_tangents(self, turn: Array, r: Array) -> Array:
        """Return derivatives of tangents by their contact's normal, both in the world.

        Args:
            turn: Rotations of the bodies with the surfaces (contacts, 3, 3).
            r: Contact points in the frames of these bodies (contacts, 3), m.

        Returns:
            Matrices (tangents, 3, 3).
        """
        owner = self.owner[len(self._point_bodies) :]
        slopes = self._tangent_frames.differentiate_tangents(
            self._evaluate_surfaces("normal", r)[owner]
        )
        tangents: Array = turn[owner] @ slopes @ turn[owner].transpose(0, 2, 1)
        return tangents

    def _place_rows(self, p: Array, turn: Array, r: Array) -> tuple[Array, Array]:
        """Return points and directions of all rows (r, 3) in the world.

        The point of a round contact is its centre; see `_move_to_surfaces`.

        Args:
            p: Contact points (c, 3) in the world, m.
            turn: Orientations (c, 3, 3) of the surfaces in the world.
            r: Contact points (c, 3) in the frames of the surfaces, m.
        """
        local = (
            self._compute_directions(r)
            if self._constant_directions is None
            else self._constant_directions
        )
        if len(self.owner) == len(p):
            return p, _multiply(turn, local)
        return p[self.owner], _multiply(turn[self.owner], local)

    def _move_to_surfaces(self, points: Array, directions: Array) -> tuple[Array, Array]:
        """Return points (r, 3), moved from centres to where spheres touch, and the directions."""
        if self._row_radius is None:
            return points, directions
        return points - self._row_radius * directions[self.owner], directions

    def _compute_gaps(self, r: Array) -> Array:
        """Return gaps (c,) in m of contact points r (c, 3) in the frames of their surfaces."""
        return np.asarray(self._evaluate_surfaces("distance", r) - self._radii)

    def _compute_directions(self, r: Array) -> Array:
        """Return the directions (r, 3) of all rows in the frames of the surfaces, at points r."""
        normals = self._evaluate_surfaces("normal", r)
        tangents = self._tangent_frames.compute_tangents(normals[self.owner[len(r) :]])
        return np.concatenate((normals, tangents))

    def _place_contacts(self, poses: Array) -> tuple[Array, Array, Array]:
        """Return where contacts are, for poses of their bodies.

        Returns:
            Contact points (c, 3) in the world, orientations (c, 3, 3) of the surfaces in the world,
            and contact points (c, 3) in the frames of the surfaces; lengths in m.
        """
        placed = poses[self._placed_bodies] @ self._placements
        count = len(self._point_bodies)
        p, turn = placed[:count, :3, 3], placed[count:, :3, :3]
        return p, turn, ((p - placed[count:, :3, 3])[:, None, :] @ turn)[:, 0]

    def _evaluate_surfaces(self, what: str, *arguments: Array) -> Array:
        """Return what a method of `Surface`, by its name, gives for each contact at its point."""
        if not self._surface_groups:
            return np.zeros((0, *_SHAPES[what]))
        if len(self._surface_groups) == 1:
            return np.asarray(getattr(self._surface_groups[0][0], what)(*arguments))
        parts = [
            (places, getattr(surface, what)(*(argument[places] for argument in arguments)))
            for surface, places in self._surface_groups
        ]
        result = np.empty((len(self._point_bodies), *parts[0][1].shape[1:]))
        for places, part in parts:
            result[places] = part
        return result

    def joint_places(self) -> tuple[JointPlace, ...]:
        """Return the constants of contacts of joints: none, as all contacts are in space."""
        return ()

    def places(self) -> tuple[ContactPlace, ...]:
        """Return the constants of all contacts, from which their motion follows."""
        count = len(self._contact_surfaces)
        return tuple(
            ContactPlace(
                joint_a=self.joint_a[i],
                point=self._placements[i, :3, 3],
                radius=float(self._radii[i]),
                joint_b=self.joint_b[i],
                rotation=self._placements[count + i, :3, :3],
                position=self._placements[count + i, :3, 3],
                surface=self._contact_surfaces[i],
                directions=len(self.tangents[i]),
                axis=self._tangent_frames.axes[i],
            )
            for i in range(count)
        )

    def find_points_on_planes(self) -> PointsOnPlanes | None:
        """Return the contacts as points on planes of the world; None where one is not."""
        count = len(self._contact_surfaces)
        moving = all(self.joint_a[:count]) and not any(self.joint_b[:count])
        planes = all(isinstance(surface, Plane) for surface in self._contact_surfaces)
        if self._constant_directions is None or self._radii.any() or not moving or not planes:
            return None
        turn, origin = self._placements[count:, :3, :3], self._placements[count:, :3, 3]
        directions = _multiply(turn[self.owner], self._constant_directions)
        world_origin = ((np.zeros(3) - origin)[:, None, :] @ turn)[:, 0]
        heights = -np.asarray(self._evaluate_surfaces("distance", world_origin))
        return PointsOnPlanes(
            tuple(self.joint_a[:count]), self._placements[:count, :3, 3], directions, heights
        )

    def _differentiate_normals(
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
        """Return what curvature adds to the motion of the normals.

        As the point moves over the surface, the gradient of phi turns by H rdot, with the Hessian
        H. With the orientation R of the surface and the velocity s of the point relative to it, in
        the world, the normal turns at the additional rate c = R H R' s.

        Args:
            turn: Orientations R (c, 3, 3) of the surfaces.
            r: Contact points (c, 3) in the frames of the surfaces, m.
            p: Contact points (c, 3) in the world, m.
            velocity: Relative spatial velocities (c, 6).
            jacobian: Relative Jacobians (c, 6, nv).
            velocity_q: Derivatives (c, 6, nv) of the relative velocities by q.
            p_q: Derivatives (c, 3, nv) of the points by q.
            jacobian_b: Jacobians (c, 6, nv) of the bodies with the surfaces.

        Returns:
            Rates c (c, 3), and derivatives by q of the normals and of c, both (c, 3, nv).
        """
        back, px = turn.transpose(0, 2, 1), skew(p)
        world = turn @ self._evaluate_surfaces("curvature", r) @ back
        relative = jacobian[:, :3] - px @ jacobian[:, 3:]
        slip = velocity[:, :3] + _cross(velocity[:, 3:], p)
        slip_q = velocity_q[:, :3] - px @ velocity_q[:, 3:] + skew(velocity[:, 3:]) @ p_q
        third = turn @ self._evaluate_surfaces("curvature_along", r, _multiply(back, slip)) @ back
        rate = _multiply(world, slip)
        rate_q = (
            -skew(rate) @ jacobian_b[:, 3:]
            + third @ relative
            + world @ (slip_q + skew(slip) @ jacobian_b[:, 3:])
        )
        return rate, world @ relative, rate_q


def find_moved_trees(robot: Robot, moves: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which kinematic trees of a robot move each contact, (c, k).

    Two velocities belong to one tree if a chain of bodies, or a joint that mimics, connects them:
    M^-1 is block-diagonal in the trees, at all configurations.

    Args:
        robot: The robot, with nv velocities.
        moves: Whether a velocity moves the point of a contact against its surface, (c, nv).
    """
    connected = robot.reduce_flags(robot.carriers())
    count, tree = connected_components(robot.reduce_flags(connected.T).T, directed=False)
    in_tree = tree[:, None] == np.arange(count)
    return np.asarray(moves @ in_tree)


def _make_pose(rotation: Array, position: Array) -> Array:
    """Return a homogeneous transform (4, 4)."""
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, position
    return pose


def _multiply(matrix: Array, b: Array) -> Array:
    """Return products (c, 3) of matrices (c, 3, 3) and vectors (c, 3)."""
    return np.asarray((matrix @ b[:, :, None])[:, :, 0])


def _cross(a: Array, b: Array) -> Array:
    """Return cross products (c, 3) of vectors (c, 3)."""
    return _multiply(skew(a), b)


def _dot(a: Array, b: Array) -> Array:
    """Return the scalar products (c,) of rows (c, k)."""
    return np.asarray(np.einsum("ci,ci->c", a, b))


def _multiply_rows(row: Array, matrix: Array) -> Array:
    """Return products (c, nv) of row vectors (c, 6) and matrices (c, 6, nv)."""
    return np.asarray((row[:, None, :] @ matrix)[:, 0])
