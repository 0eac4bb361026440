r"""Contacts as CasADi expressions: gaps, rates, accelerations, Jacobians and forces of their rows.

A contact is followed in the frame of its surface: with r the point there, and its velocity and
acceleration relative to the surface,

.. math:: h = \phi(r), \quad \dot h = n \cdot \dot r, \quad
          \ddot h = n \cdot \ddot r + \dot r^T \nabla^2 \phi\, \dot r, \quad
          v_t = t \cdot \dot r, \quad \dot v_t = t \cdot \ddot r,

the tangents t being fixed in the surface (see `surfaces`). Rows are in the order of `ContactSet`.
Of a round contact r is the centre, and v_t that of the body at the point that touches. Contacts of
joints follow those in space, with the rows of `joint_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import casadi as ca

from hybridctl.base.checks import Array, quote
from hybridctl.base.errors import InputError
from hybridctl.mechanics.contacts.contact import ContactPlace
from hybridctl.mechanics.contacts.joint_contacts import JointPlace
from hybridctl.mechanics.contacts.stairs import PiecewiseSurface
from hybridctl.mechanics.contacts.surfaces import ExpressedSurface, Surface
from hybridctl.mechanics.multibody.expressions import Bodies, BodyMotion, Expression, Spatial


class RowExpressions(NamedTuple):
    """Gaps, rates and accelerations of a motion along the rows.

    Attributes:
        gaps: Gaps (c, 1), m or rad.
        rates: J v (r, 1).
        accelerations: J a + Jdot v (r, 1).
        piece_gaps: Gaps (c, 1) from the pieces of surfaces that closed contacts are on.
        margins: Distance (1, 1) to the border of its piece, m, of each contact on a surface of
            several pieces; see `ContactSet`.
    """

    gaps: Expression
    rates: Expression
    accelerations: Expression
    piece_gaps: Expression
    margins: dict[int, Expression]


class ContactPoints:
    """Some contacts of a robot, at the configuration of its bodies.

    There are c contacts and r rows.

    Args:
        bodies: The bodies, at the configuration q.
        places: Contacts in space.
        joints: Contacts of joints, which follow those in space.
    """

    def __init__(
        self, bodies: Bodies, places: Sequence[ContactPlace], joints: Sequence[JointPlace] = ()
    ) -> None:
        self._bodies, self._joints = bodies, joints
        self._points = [_PointExpressions(bodies, place) for place in places]

    def gaps(self) -> Expression:
        """Return the gaps h (c, 1), m or rad; positive where open, zero for dry friction."""
        return _stack([*(point.distance for point in self._points), *self._list_joint_gaps()])

    def _list_joint_gaps(self) -> list[Expression]:
        """Return the gaps (1, 1) of the contacts of joints, zero for dry friction."""
        q = self._bodies.q
        return [
            ca.SX(0.0) if joint.rubs else joint.sign * (q[joint.coordinate] - ca.SX(joint.limit))
            for joint in self._joints
        ]

    def rows(self, motion: BodyMotion, v: Expression, a: Expression) -> RowExpressions:
        """Return gaps, rates and accelerations of a motion.

        Args:
            motion: Motion of the bodies at v and a. Its gravity does not matter, as that of both
                bodies of a contact is the same.
            v: Velocity (nv, 1).
            a: Acceleration (nv, 1).
        """
        normals, tangents = [], []
        for point in self._points:
            velocity, acceleration = point.relative_motion(motion)
            gap_acceleration = ca.dot(point.normal, acceleration) + point.compute_curvature_term(
                velocity
            )
            normals.append((ca.dot(point.normal, velocity), gap_acceleration))
            velocity, acceleration = point.move_to_surface(motion, velocity, acceleration)
            tangents += [(ca.dot(t, velocity), ca.dot(t, acceleration)) for t in point.tangents]
        for joint in self._joints:
            j = joint.velocity
            normals.append((joint.sign * v[j], joint.sign * a[j]))
            if joint.rubs:
                tangents.append((v[j], a[j]))
        rates, accelerations = zip(*normals, *tangents, strict=True) if normals else ((), ())
        margins = {i: p.margin for i, p in enumerate(self._points) if p.margin is not None}
        on_pieces = [point.piece_distance for point in self._points]
        piece_gaps = _stack([*on_pieces, *self._list_joint_gaps()])
        return RowExpressions(
            self.gaps(), _stack(rates), _stack(accelerations), piece_gaps, margins
        )

    def jacobian(self) -> Expression:
        """Return the Jacobian J (r, nv) of all rows, whose rates are J v."""
        columns = self._bodies.columns()
        rows = [point.row(columns, point.normal) for point in self._points]
        rows += [self._make_joint_row(joint, joint.sign) for joint in self._joints]
        rows += [point.row(columns, t) for point in self._points for t in point.tangents]
        rows += [self._make_joint_row(joint, 1.0) for joint in self._joints if joint.rubs]
        return ca.vertcat(*rows) if rows else ca.SX(0, self._bodies.nv)

    def _make_joint_row(self, joint: JointPlace, value: float) -> Expression:
        """Return the row (1, nv) that has this value at the velocity of a joint."""
        row = ca.SX.zeros(1, self._bodies.nv)
        row[joint.velocity] = value
        return row

    def pushes(self, forces: Expression) -> list[Spatial]:
        """Return the spatial force on each body, in its frame, of forces (r, 1) along the rows.

        Moments are about the origin of that frame. A force acts on the body with the point, and
        oppositely on the one with the surface; that on the world is left out. So are forces of
        contacts of joints: they act along constant rows, so that derivatives do not need them.
        """
        zero = ca.DM.zeros(3, 1)
        total = [Spatial(zero, zero) for _ in self._bodies.tree.bodies]
        k = len(self._points) + len(self._joints)
        for i, point in enumerate(self._points):
            force = point.normal * forces[i]
            for t in point.tangents:
                force, k = force + t * forces[k], k + 1
            for body, push in point.pushes(force):
                total[body] = total[body].add(push)
        return total


class _PointExpressions:
    """One contact, in the frame of its surface.

    Names that end in `_a` are of the body with the point, those in `_b` of the body with the
    surface; index -1 is the world.

    Args:
        bodies: The bodies, at a configuration.
        place: Where the contact is on both.

    Attributes:
        distance: Gap (1, 1), m.
        piece_distance: Gap from the piece that a closed contact is on, m.
        margin: Distance to the border of that piece, m; None for a surface of one piece.
        normal: Unit normal (3, 1) at the point, or at the centre of a round contact.
        tangents: Unit tangents (3, 1): none, one or two.
    """

    def __init__(self, bodies: Bodies, place: ContactPlace) -> None:
        self._bodies = bodies
        self._a, self._b = place.joint_a - 1, place.joint_b - 1
        self._point = ca.SX(place.point)
        self._turn = ca.DM(place.rotation)
        pose_a, pose_b = bodies.world[self._a], bodies.world[self._b]
        self._across = pose_b.rotation.T @ pose_a.rotation
        self._world = pose_a.position + pose_a.rotation @ self._point
        self._on_b = pose_b.rotation.T @ (self._world - pose_b.position)
        r = self._turn.T @ (self._on_b - ca.SX(place.position))
        distance, self.normal, self._curvature = _express_surface(check_expressed(place.surface), r)
        self._radius = ca.SX(place.radius)
        self.distance = self.piece_distance = distance - self._radius
        self.margin: Expression | None = None
        # Contacts with a radius are refused on such surfaces, see `Contact`.
        if isinstance(place.surface, PiecewiseSurface) and place.surface.has_borders:
            self.piece_distance, self.margin = place.surface.piece_expressions(r)
        self.tangents = _make_tangents(self.normal, place.directions, place.axis)
        arm = -self._radius * (self._turn @ self.normal)
        self._touch_a = self._point + self._across.T @ arm
        self._touch_b = self._on_b + arm
        self._touch = self._world + pose_b.rotation @ arm

    def relative_motion(self, motion: BodyMotion) -> tuple[Expression, Expression]:
        """Return velocity and acceleration (3, 1) of the point relative to the surface.

        Both are in the frame of the surface, which turns: the acceleration is that seen from it.
        """
        va, vb = motion.velocities[self._a], motion.velocities[self._b]
        aa, ab = motion.accelerations[self._a], motion.accelerations[self._b]
        speed_a, speed_b = va.find_linear_at(self._point), vb.find_linear_at(self._on_b)
        velocity = self._across @ speed_a - speed_b
        acceleration = self._across @ (
            aa.find_linear_at(self._point) + ca.cross(va.angular, speed_a)
        )
        acceleration -= ab.find_linear_at(self._on_b) + ca.cross(vb.angular, speed_b)
        acceleration -= 2.0 * ca.cross(vb.angular, velocity)
        return self._turn.T @ velocity, self._turn.T @ acceleration

    def move_to_surface(
        self, motion: BodyMotion, velocity: Expression, acceleration: Expression
    ) -> tuple[Expression, Expression]:
        """Return the motion of the body's point that touches, from that of the centre.

        With w the spin of the body as seen from the surface, the point has the velocity v + w x a,
        a = -rho n, and a turns with the normal as the centre moves over the surface.

        Args:
            motion: Motion of the bodies.
            velocity: Velocity (3, 1) of the centre, from `relative_motion`.
            acceleration: Its acceleration (3, 1).
        """
        if self._radius.is_zero():
            return velocity, acceleration
        back, (of_a, of_b) = self._turn.T, (motion.velocities[i] for i in (self._a, self._b))
        turned = self._across @ of_a.angular
        spin = back @ (turned - of_b.angular)
        rate = self._across @ motion.accelerations[self._a].angular
        rate -= motion.accelerations[self._b].angular + ca.cross(of_b.angular, turned)
        arm = -self._radius * self.normal
        arm_rate = -self._radius * (self._curvature @ velocity)
        acceleration += ca.cross(back @ rate, arm) + ca.cross(spin, arm_rate)
        return velocity + ca.cross(spin, arm), acceleration

    def compute_curvature_term(self, velocity: Expression) -> Expression:
        """Return the part r'^T H r' (1, 1) of the gap's acceleration, for a velocity r' (3, 1)."""
        return ca.bilin(self._curvature, velocity, velocity)

    def row(self, columns: dict[int, list[Spatial]], direction: Expression) -> Expression:
        """Return the row (1, nv) of a direction (3, 1) in the frame of the surface."""
        bodies = self._bodies
        # Bodies that carry both, in both sets of ancestors, move neither against the other.
        d = bodies.world[self._b].rotation @ (self._turn @ direction)
        moment = ca.cross(self._touch, d)
        row = ca.SX.zeros(1, bodies.nv)
        of_a, of_b = set(bodies.ancestors(self._a)), set(bodies.ancestors(self._b))
        for body in of_a ^ of_b:
            sign = 1.0 if body in of_a else -1.0
            for k, column in enumerate(columns[body], start=bodies.tree.bodies[body].v):
                # Several bodies have one velocity where joints mimic.
                row[k] += sign * (ca.dot(d, column.linear) + ca.dot(moment, column.angular))
        return row

    def pushes(self, force: Expression) -> list[tuple[int, Spatial]]:
        """Return the spatial forces of a force (3, 1) in the surface on both bodies, by index."""
        on_b = self._turn @ force
        on_a = self._across.T @ on_b
        both = [
            (self._a, Spatial(on_a, ca.cross(self._touch_a, on_a))),
            (self._b, Spatial(-on_b, -ca.cross(self._touch_b, on_b))),
        ]
        return [(body, push) for body, push in both if body >= 0]


def check_expressed(surface: Surface) -> ExpressedSurface:
    """Return the surface, if its expression is known.

    Args:
        surface: Surface of a contact.

    Raises:
        InputError: If the surface has no expression.
    """
    if isinstance(surface, ExpressedSurface):
        return surface
    raise InputError(
        "surface must have a method `expression`, as a Plane has, to be generated, got "
        f"{quote(surface)}"
    )


def serialize_surface(surface: Surface) -> str:
    """Return the expressions of a surface as text, which tells surfaces apart in keys of functions.

    The text is that of its expressions, since two surfaces of one class may differ in what their
    attributes do not show, such as a method that was edited or the variables of a closure.

    Args:
        surface: Surface of a contact.

    Raises:
        InputError: If the surface has no expression.
    """
    r = ca.SX.sym("r", 3)
    expressions = [check_expressed(surface).expression(r)]
    if isinstance(surface, PiecewiseSurface) and surface.has_borders:
        expressions.extend(surface.piece_expressions(r))
    return str(ca.Function("surface", [r], expressions).serialize())


def _express_surface(surface: ExpressedSurface, r: Expression) -> Expression:
    """Return distance, normal (3, 1) and curvature (3, 3) at the point r (3, 1) in its frame."""
    at = ca.SX.sym("r", 3)
    distance = surface.expression(at)
    curvature, normal = ca.hessian(distance, at)
    made = ca.Function("surface", [at], [distance, ca.densify(normal), curvature])
    return made(r)


def _make_tangents(n: Expression, count: int, axis: Array | None) -> list[Expression]:
    """Return the tangents of `surfaces` at the normal n (3, 1).

    Args:
        n: Unit normal.
        count: Number of tangents where the contact moves in space: 0 or 2.
        axis: Axis (3,) of its plane of motion, which has one tangent; None in space.
    """
    if axis is not None:
        return [ca.cross(ca.DM(axis), n)]
    sign = ca.if_else(n[2] < 0.0, -1.0, 1.0)
    third = ca.vertcat(0.0, 0.0, sign)
    return [ca.DM.eye(3)[:, k] - n[k] / (1.0 + sign * n[2]) * (n + third) for k in range(count)]


def _stack(entries: Sequence[Expression]) -> Expression:
    """Return a column (n, 1) of entries (1, 1)."""
    return ca.vertcat(*entries) if len(entries) else ca.SX(0, 1)
