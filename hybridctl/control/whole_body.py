r"""The whole-body quadratic programme: torques that track a base and feet on unilateral contacts.

Unknowns are accelerations a (nv,) of a robot with a floating base and the contact forces f of the
feet that support it:

.. math::

    \min \tfrac12 |A a + b - r|_W^2 + \tfrac12 w_f |f - f_0|^2 / m^2 + \tfrac12 w_a |a|^2

subject to

.. math:: (M a + h - J^T f)_{base} = 0, \quad
          |(M a + h - J^T f)_{joints}| \le u_{max}, \quad
          0 \le f_n \le f_{max}, \quad |f_{t1}|, |f_{t2}| \le \mu f_n / \sqrt 2 .

The rows A a + b are the acceleration of the base and those of all feet. The pyramid of the last
limit lies inside Coulomb's cone. The torques follow from the joints' rows of the dynamics, so that
the programme needs no unknowns for them. f_0 is an equal share of the weight for each supporting
foot. The mass m makes weights independent of the robot's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import piqp
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import (
    Array,
    check_array,
    check_instance,
    check_number,
    check_vector,
    is_finite,
)
from hybridctl.base.errors import InputError
from hybridctl.mechanics.contacts.contact import WORLD, Contact, check_contacts
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody.robot import Robot

_BASE = 6
"""Velocities of a floating base: linear, then angular, in its own frame."""
_ACCURACY = 1e-6
"""Absolute and relative tolerance of the solver's residuals, in N, N m and m/s^2. At 1e-8 one
programme in fifty of a go2's trot does not converge, at 1e-6 at most four of 4,000."""
_GAP_ACCURACY = 1e-5
"""The same of the duality gap, in units of the cost. A choice."""
_MAX_ITERATIONS = 60
"""Most iterations of the interior-point method; ten to fifteen are usual."""
_MOST_FORCE = 5.0
"""Greatest normal force of a foot, relative to the weight: trots need 1, falls more. A choice."""


@dataclass(frozen=True)
class WholeBodyWeights:
    """Weights of the programme.

    Attributes:
        base: Weight of the linear acceleration of the base, 1/(m/s^2)^2.
        turn: Weight of the angular acceleration of the base, 1/(rad/s^2)^2.
        support: Weight of the accelerations of supporting feet, 1/(m/s^2)^2.
        swing: Weight of the accelerations of other feet, 1/(m/s^2)^2.
        force: Weight w_f of forces by the mass of the robot, beside equal shares of the weight,
            1/(m/s^2)^2.
        acceleration: Weight w_a of all accelerations, which makes the programme strictly convex.

    Raises:
        InputError: A weight is negative, or the last two are not positive.
    """

    base: float = 1.0
    turn: float = 0.1
    support: float = 10.0
    swing: float = 1.0
    force: float = 1e-3
    acceleration: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("base", "turn", "support", "swing"):
            check_number(name, getattr(self, name), at_least=0.0)
        for name in ("force", "acceleration"):
            check_number(name, getattr(self, name), above=0.0)


@dataclass(frozen=True, eq=False)
class FeetMotion:
    """Places of the feet, and how they move, in world axes.

    Attributes:
        positions: Positions (c, 3) of the points or of the centers of spheres, m.
        velocities: Velocities (c, 3) of them, m/s.
        jacobians: Their Jacobians (c, 3, nv) by v.
        drifts: Accelerations (c, 3) of them without acceleration of v, m/s^2.
        force_jacobians: Jacobians (c, 3, nv) of the points where forces act: for a sphere the one
            next to the surface.
    """

    positions: Array
    velocities: Array
    jacobians: Array
    drifts: Array
    force_jacobians: Array


@dataclass(frozen=True, eq=False)
class WholeBodySolution:
    """What the programme finds.

    Attributes:
        u: Input (nu,), N m.
        acceleration: Acceleration (nv,) of v.
        forces: Force (c, 3) on each foot in world axes, N; zero for feet that do not support.
        is_solved: Whether the solver converged. If not, the values are its last iterate, with the
            input inside its limits; zero where that is not finite.
    """

    u: Array
    acceleration: Array
    forces: Array
    is_solved: bool


class WholeBodyQP:
    """Torques of a legged robot by a quadratic programme over accelerations and contact forces.

    `find_feet` returns the motion of the feet, from which targets are made; `solve` returns the
    torques. Nothing is kept between calls.

    Args:
        robot: A robot with a floating base, all of whose other velocities have a motor.
        contacts: Feet: points or spheres on planes of the world.
        weights: Weights.
        limits: Greatest absolute torques (nu,), N m; by default those of the motors
            (`Robot.effort`).
        share: Share of the friction coefficient that forces may use.

    Raises:
        InputError: The robot has no floating base, a joint has no motor, a contact is not on a
            plane of the world, a limit is negative, or another argument does not fit.

    Attributes:
        robot: The robot.
        contacts: The feet.
        weights: The weights.
        limits: Greatest absolute torques (nu,), N m.
    """

    def __init__(
        self,
        robot: Robot,
        contacts: Sequence[Contact],
        weights: WholeBodyWeights | None = None,
        *,
        limits: ArrayLike | None = None,
        share: float = 1.0,
    ) -> None:
        self.robot = check_instance("robot", robot, Robot)
        if not has_floating_base(robot):
            raise InputError("robot must have a floating base: Robot.from_urdf(root='floating')")
        if robot.nu != robot.nv - _BASE or robot.actuation[:_BASE].any():
            raise InputError(
                f"robot must have a motor at each joint, got {robot.nu} for {robot.nv - _BASE}"
            )
        self.contacts = check_contacts(robot, contacts)
        normals = []
        for contact in self.contacts:
            if contact.body != WORLD or not isinstance(contact.surface, Plane):
                raise InputError(f"contact {contact.name!r} must be on a Plane of the world")
            normals.append(contact.surface.unit_normal)
        self.weights = WholeBodyWeights() if weights is None else weights
        check_instance("weights", self.weights, WholeBodyWeights)
        self.limits = (
            np.array(robot.effort) if limits is None else check_vector("limits", limits, robot.nu)
        )
        if self.limits.min(initial=0.0) < 0.0:
            raise InputError(f"limits must not be negative, got {self.limits}")
        share = check_number("share", share, above=0.0, at_most=1.0)
        frames = [robot.frame(contact.frame) for contact in self.contacts]
        self._joints = [frame.joint for frame in frames]
        self._places = np.array(
            [f.position + f.rotation @ c.offset for f, c in zip(frames, self.contacts, strict=True)]
        )
        self._masks = np.array([robot.supporting(joint) for joint in self._joints])
        self._normals = np.array(normals)
        self._radii = np.array([c.radius for c in self.contacts])
        self._cones = np.array(
            [
                _make_pyramid(normal, share * c.friction)
                for normal, c in zip(self._normals, self.contacts, strict=True)
            ]
        )
        self._gravity = np.array(robot.tree().gravity)
        self._most = _MOST_FORCE * robot.weight

    def find_feet(self, q: Array, v: Array) -> FeetMotion:
        """Return places, velocities and Jacobians of the feet.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
        """
        motion = self.robot.motion(q, v, self._joints)
        poses = motion.poses
        at = np.einsum("cij,cj->ci", poses[:, :3, :3], self._places) + poses[:, :3, 3]
        columns = motion.jacobian * self._masks[:, None]
        rates = (motion.jacobian_rate * self._masks[:, None]) @ v
        spatial = columns @ v
        linear, turn = spatial[:, :3], spatial[:, 3:]
        velocities = linear + _cross(turn, at)
        drifts = rates[:, :3] + _cross(rates[:, 3:], at) + _cross(turn, velocities)
        touched = at - self._radii[:, None] * self._normals
        jacobians, pressed = (
            columns[:, :3] - np.einsum("cij,cjk->cik", _make_skew(points), columns[:, 3:])
            for points in (at, touched)
        )
        return FeetMotion(at, velocities, jacobians, drifts, pressed)

    def solve(
        self,
        q: Array,
        v: Array,
        base: ArrayLike,
        feet: ArrayLike,
        support: ArrayLike,
        motion: FeetMotion | None = None,
    ) -> WholeBodySolution:
        """Return torques, forces and accelerations that are nearest to targets.

        Args:
            q: Configuration (nq,), the base first.
            v: Velocity (nv,).
            base: Target (6,) of the linear acceleration of the origin of the base, m/s^2, and of
                its angular acceleration, rad/s^2, in world axes.
            feet: Targets (c, 3) of the accelerations of the feet, m/s^2, in world axes.
            support: Flags (c,) of the feet that may take forces.
            motion: What `find_feet` returns for q and v, if it is known.

        Returns:
            The solution. None of its values is NaN.

        Raises:
            InputError: An argument has another size, or values that are not finite.
        """
        robot, w, count = self.robot, self.weights, len(self.contacts)
        q, v = check_vector("q", q, robot.nq), check_vector("v", v, robot.nv)
        base, feet = check_vector("base", base, _BASE), check_array("feet", feet, (count, 3))
        standing: NDArray[np.bool_] = np.asarray(support, dtype=bool)
        if standing.shape != (count,):
            raise InputError(f"support must have a flag for each of {count} feet, got {support!r}")
        found = self.find_feet(q, v) if motion is None else motion
        nv, force_count = robot.nv, 3 * int(standing.sum())
        mass, bias = robot.mass_matrix(q), robot.bias(q, v)
        pull = found.force_jacobians[standing].reshape(-1, nv)
        size = nv + force_count
        rows = found.jacobians.reshape(-1, nv)
        scale = np.where(standing, w.support, w.swing).repeat(3)
        wanted = scale * (feet - found.drifts).ravel()
        hessian, gradient = np.zeros((size, size)), np.zeros(size)
        hessian[:nv, :nv] = rows.T @ (scale[:, None] * rows)
        gradient[:nv] = -rows.T @ wanted
        own = np.array([w.base] * 3 + [w.turn] * 3)
        gradient[:_BASE] -= own * _to_base_frame(q, v, base)
        diagonal = hessian.reshape(-1)[:: size + 1]
        diagonal[:_BASE] += own
        diagonal[:nv] += w.acceleration
        diagonal[nv:] += w.force / robot.mass**2
        if force_count:
            shares = np.tile(-self._gravity * robot.mass / standing.sum(), standing.sum())
            gradient[nv:] -= w.force / robot.mass**2 * shares
        dynamics = np.hstack([mass, -pull.T])
        torque_rows = robot.actuation.T @ dynamics
        torque_bias = robot.actuation.T @ bias
        cone = np.zeros((4 * len(standing[standing]), size))
        for k, pyramid in enumerate(self._cones[standing]):
            cone[4 * k : 4 * k + 4, nv + 3 * k : nv + 3 * k + 3] = pyramid
        normal = np.zeros((len(standing[standing]), size))
        for k, direction in enumerate(self._normals[standing]):
            normal[k, nv + 3 * k : nv + 3 * k + 3] = direction
        z, is_solved = _minimise(
            (hessian, gradient),
            (dynamics[:_BASE], -bias[:_BASE]),
            np.vstack([torque_rows, cone, normal]),
            np.concatenate(
                [-self.limits - torque_bias, np.full(len(cone), -np.inf), np.zeros(len(normal))]
            ),
            np.concatenate(
                [self.limits - torque_bias, np.zeros(len(cone)), np.full(len(normal), self._most)]
            ),
        )
        forces = np.zeros((len(standing), 3))
        forces[standing] = z[nv:].reshape(-1, 3)
        u = np.clip(torque_rows @ z + torque_bias, -self.limits, self.limits)
        return WholeBodySolution(u, z[:nv], forces, is_solved)


def has_floating_base(robot: Robot) -> bool:
    """Return whether the first joint of a robot is a floating base."""
    return bool(robot.tree().bodies[0].kind == "floating")


def _minimise(
    cost: tuple[Array, Array],
    equations: tuple[Array, Array],
    rows: Array,
    least: Array,
    most: Array,
) -> tuple[Array, bool]:
    """Return the minimum of a quadratic programme and whether the solver converged.

    Args:
        cost: Hessian (n, n) and gradient (n,) at zero.
        equations: Matrix (e, n) and right side (e,).
        rows: Matrix (i, n) of the limited values.
        least: Lower limits (i,).
        most: Upper limits (i,).
    """
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = _ACCURACY
    solver.settings.eps_duality_gap_abs = solver.settings.eps_duality_gap_rel = _GAP_ACCURACY
    solver.settings.max_iter = _MAX_ITERATIONS
    solver.setup(*cost, *equations, rows, least, most)
    status = solver.solve()
    z = np.array(solver.result.x)
    if not is_finite(z):
        return np.zeros_like(z), False
    return z, bool(status == piqp.PIQP_SOLVED)


def _make_pyramid(normal: Array, friction: float) -> Array:
    """Return rows (4, 3) whose products with a force are not positive inside the friction pyramid.

    Args:
        normal: Unit normal (3,) of the surface.
        friction: Friction coefficient of the cone that the pyramid is inside of.
    """
    first = np.cross(np.eye(3)[int(np.abs(normal).argmin())], normal)
    first /= np.linalg.norm(first)
    second = np.cross(normal, first)
    inner = friction / np.sqrt(2.0) * normal
    return np.array([first - inner, -first - inner, second - inner, -second - inner])


def _to_base_frame(q: Array, v: Array, target: Array) -> Array:
    """Return the rate (6,) of the base's velocity for an acceleration in world axes.

    The origin accelerates at R (a + w x v) where the base has the velocities v and w in its frame.

    Args:
        q: Configuration (nq,).
        v: Velocity (nv,).
        target: Linear, then angular acceleration (6,), world axes.
    """
    turned = make_rotation(q[3:7]).T
    linear, angular = v[:3], v[3:6]
    turning = _cross(angular[None], linear[None])[0]
    return np.concatenate([turned @ target[:3] - turning, turned @ target[3:]])


def make_rotation(quaternion: Array) -> Array:
    """Return the rotation (3, 3) of a unit quaternion x, y, z, w."""
    x, y, z, w = quaternion.tolist()
    return np.array(
        [
            [1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - z * w), 2.0 * (x * z + y * w)],
            [2.0 * (x * y + z * w), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - x * w)],
            [2.0 * (x * z - y * w), 2.0 * (y * z + x * w), 1.0 - 2.0 * (x * x + y * y)],
        ]
    )


def _make_skew(points: Array) -> Array:
    """Return the matrices (c, 3, 3) of the cross products with points (c, 3)."""
    found = np.zeros((len(points), 3, 3))
    found[:, 2, 1], found[:, 0, 2], found[:, 1, 0] = points.T
    return np.asarray(found - found.transpose(0, 2, 1))


def _cross(first: Array, second: Array) -> Array:
    """Return the cross products (c, 3) of rows; numpy's function is ten times slower."""
    return np.asarray(np.einsum("cij,cj->ci", _make_skew(first), second))
