r"""Rows of contacts of joints beside those of contacts in space.

Rows are in the order of `ContactSet`: the normals of all contacts, then their tangents. Of a stop
at the limit b of coordinate j with sign s, the gap is :math:`s (q_j - b)` and its normal row
:math:`s\, e_j^T`. Dry friction of joint j has the tangent row :math:`e_j^T`; its gap and its normal
row are zero, because what presses it does not move the robot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.mechanics.contacts.contact import Contact, ContactPlace
from hybridctl.mechanics.contacts.contact_kinematics import (
    ContactSet,
    PointsOnPlanes,
    find_moved_trees,
)
from hybridctl.mechanics.contacts.joint_contacts import (
    JointContact,
    JointFriction,
    JointPlace,
    JointStop,
)
from hybridctl.mechanics.multibody.robot import Robot


class JointContactSet(ContactSet):
    """Contacts in space and then contacts of joints, with the interface of a `ContactSet`.

    Args:
        robot: The robot.
        contacts: Contacts in space.
        joints: Contacts of joints: stops, then dry friction.

    Attributes:
        in_space: The contacts in space alone.
        joints: Joints of the bodies of contacts in space; those of contacts of joints are not among
            them, as their rows need no motion of bodies.
        loads: Constant forces that press dry friction of joints, (c,) in N m or N; 0 for all other
            contacts.
        joint_velocities: Index in v of the velocity of each contact of joints, (c,); -1 for
            contacts in space.
    """

    def __init__(
        self, robot: Robot, contacts: Sequence[Contact], joints: Sequence[JointContact]
    ) -> None:
        self._robot, self.in_space = robot, ContactSet(robot, contacts)
        own, count = self.in_space, len(contacts)
        # The first contact of joints has the index `_first`; all contacts are `_count`.
        self._first, self._count = count, count + len(joints)
        # By name among joints: a link may have the name of a joint, and some models have no frames.
        self._frames_of = [robot.joint_names.index(contact.joint) + 1 for contact in joints]
        rubbing = [k for k, c in enumerate(joints) if isinstance(c, JointFriction)]
        tangents = len(own.owner) - count
        ends = [count + k for k in rubbing]
        self.owner = np.array(
            [*range(self._count), *own.owner[count:].tolist(), *ends], dtype=np.intp
        )
        self.tangents = tuple(
            np.flatnonzero(self.owner[self._count :] == i) + self._count for i in range(self._count)
        )
        self._own_rows: Indices = np.array(
            [*range(count), *range(self._count, self._count + tangents)], dtype=np.intp
        )
        self.joints = own.joints
        # `ContactPhase.redundant` counts constraints between the same two bodies. Contacts in space
        # do not have these numbers in place of a second body, so that both are not counted
        # together.
        names = [-1 - j for j in self._frames_of]
        joint_a = [*own.joint_a[:count], *self._frames_of]
        joint_b = [*own.joint_b[:count], *names]
        self.joint_a = [joint_a[i] for i in self.owner]
        self.joint_b = [joint_b[i] for i in self.owner]
        # The gap of dry friction is the sign 0 times a coordinate, so that any coordinate does.
        coordinates = [
            robot.joints.single("joint", c.joint)[0] if isinstance(c, JointStop) else 0
            for c in joints
        ]
        self._coordinates = np.array(coordinates, dtype=np.intp)
        velocities = [robot.velocities(contact.joint)[0] for contact in joints]
        self.joint_velocities: Indices = np.array([-1] * count + velocities, dtype=np.intp)
        self.loads = np.array([0.0] * count + [c.load for c in joints])
        signs = [c.sign if isinstance(c, JointStop) else 0.0 for c in joints]
        self._signs = np.array(signs)
        self._limits = np.array([c.limit if isinstance(c, JointStop) else 0.0 for c in joints])
        self._normals = np.zeros((len(joints), robot.nv))
        self._normals[np.arange(len(joints)), velocities] = signs
        self._tangents = np.zeros((len(rubbing), robot.nv))
        self._tangents[np.arange(len(rubbing)), [velocities[k] for k in rubbing]] = 1.0
        trees = own.moved_trees
        moved = np.eye(robot.nv, dtype=bool)[velocities]
        self.moved_trees = np.concatenate((trees, find_moved_trees(robot, moved)))

    def with_joint_rows(self, own: Array) -> Array:
        """Return rows (r, nv) of all contacts, given the rows of the contacts in space."""
        k = self._first
        return np.concatenate((own[:k], self._normals, own[k:], self._tangents))

    def with_zero_rows(self, own: Array) -> Array:
        """Return values (r, ...) of all rows: those given for contacts in space, else zero."""
        rows = np.zeros((len(self.owner), *own.shape[1:]))
        rows[self._own_rows] = own
        return rows

    def take_space_rows(self, rows: Array) -> Array:
        """Return those of the values (..., r) of all rows that belong to contacts in space."""
        return np.asarray(rows[..., self._own_rows])

    def with_joint_gaps(self, q: Array, own: Array) -> Array:
        """Return the gaps (c,) of all contacts, given those of the contacts in space."""
        gaps = self._signs * (q[self._coordinates] - self._limits)
        return np.concatenate((own, gaps))

    def gaps(self, q: Array) -> Array:
        """Return the gaps (c,) at q (nq,), m or rad; positive when open."""
        return self.with_joint_gaps(q, self.in_space.gaps(q))

    @property
    def piecewise(self) -> tuple[int, ...]:
        """Indices of the contacts whose surfaces have pieces with borders."""
        return self.in_space.piecewise

    def piece_gaps(self, q: Array, gaps: Array) -> Array:
        """Return the gaps (c,) of closed contacts from the pieces of surface that they are on.

        Args:
            q: Configuration (nq,).
            gaps: Gaps (c,) at q, which are returned for surfaces of one piece and for joints.
        """
        k = self._first
        return np.concatenate((self.in_space.piece_gaps(q, gaps[:k]), gaps[k:]))

    def margins(self, q: Array) -> Array:
        """Return how far contacts (c,) are from the borders of their pieces, m; inf for joints."""
        margins = np.full(self._count, np.inf)
        margins[: self._first] = self.in_space.margins(q)
        return margins

    def margin_jacobian(self, q: Array) -> Array:
        """Return the derivatives (c, nv) of the margins, zero for contacts of joints."""
        rows = np.zeros((self._count, self._robot.nv))
        rows[: self._first] = self.in_space.margin_jacobian(q)
        return rows

    def gaps_beyond(self, q: Array) -> Array:
        """Return the gaps (c,) just beyond the border of each piece, m; NaN for joints."""
        gaps = np.full(self._count, np.nan)
        gaps[: self._first] = self.in_space.gaps_beyond(q)
        return gaps

    def find_riser_contacts(self, q: Array) -> tuple[int, ...]:
        """Return the contacts that are at a face between two pieces of their surface."""
        return self.in_space.find_riser_contacts(q)

    def express_in_world(self, q: Array, normal: Array, friction: Array) -> tuple[Array, Array]:
        """Return points (c, 3) in m and forces there (c, 3), in the world.

        Contacts of joints are at the origin of their joint, and their force there is zero: what
        they exert is a torque, or a force along the joint.

        Args:
            q: Configuration (nq,).
            normal: Normal forces (c,), N or N m.
            friction: Friction forces (c, 2) along the tangents of each contact, N or N m.
        """
        k = self._first
        points, forces = np.zeros((2, self._count, 3))
        if k:
            points[:k], forces[:k] = self.in_space.express_in_world(q, normal[:k], friction[:k])
        points[k:] = self._robot.poses(q, self._frames_of)[:, :3, 3]
        return points, forces

    def jacobian(self, q: Array) -> Array:
        """Return the Jacobian J (r, nv) of all rows at q (nq,); their rates are J v."""
        return self.with_joint_rows(self.in_space.jacobian(q))

    def places(self) -> tuple[ContactPlace, ...]:
        """Return the constants of the contacts in space; those of joints have `joint_places`."""
        return self.in_space.places()

    def joint_places(self) -> tuple[JointPlace, ...]:
        """Return the constants of the contacts of joints, which follow the others."""
        k = self._first
        return tuple(
            JointPlace(int(q), int(v), float(sign), np.array(limit), np.array(load))
            for q, v, sign, limit, load in zip(
                self._coordinates,
                self.joint_velocities[k:],
                self._signs,
                self._limits,
                self.loads[k:],
                strict=True,
            )
        )

    def find_points_on_planes(self) -> PointsOnPlanes | None:
        """Return None: contacts of joints are no points on planes."""
        return None
