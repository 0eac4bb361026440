r"""The terms of points that touch planes of the world, by few of Pinocchio's sweeps.

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
from functools import cached_property

import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.mechanics.contacts.contact_kinematics import PointsOnPlanes
from hybridctl.mechanics.multibody.joints import skew
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.sweeps import BodyTree, Sweeps
from hybridctl.mechanics.terms.contact_terms import (
    ImpulseDerivatives,
    TermDerivatives,
    Terms,
    TermValues,
)


class FlatTerms(Terms):
    """The terms of a robot whose contacts are points against planes of the world.

    Each thread keeps contact points and wrenches of the last configuration in `_known`, as
    derivatives are asked for where values have been. Results may be views of its memory, see
    `Terms`.

    Args:
        robot: Robot, of two velocities at least, without mimicking joints.
        ground: Points and planes.
        owner: Contact (r,) of each row.
    """

    def __init__(self, robot: Robot, ground: PointsOnPlanes, owner: Indices) -> None:
        self._made_of, self._known = (robot, ground, owner), threading.local()
        self._robot, self._heights = robot, ground.heights
        self._local, self._directions = ground.points, ground.directions
        joints, count, rows = sorted(set(ground.joints)), len(ground.joints), np.arange(len(owner))
        self._joints: Indices = np.array([joints.index(j) for j in ground.joints])
        along, turn = np.zeros((len(owner), count, 3)), np.zeros((len(owner), 3, count, 3))
        along[rows, owner] = ground.directions
        turn[rows, :, owner] = -skew(ground.directions)
        self._along = along.reshape(len(owner), 3 * count)
        self._weight = self._along @ np.tile(robot.tree().gravity, count)
        self._turn = turn.reshape(3 * len(owner), 3 * count)
        self._straight = np.tile(np.eye(3), (count, 1, 1))
        arms = np.concatenate((self._straight, -skew(ground.points)), axis=2)
        self._arms = arms.transpose(0, 2, 1)
        self._moved = np.array([robot.supporting(j) for j in joints])[:, None, :]
        self._mask = self._moved[self._joints, 0][owner]
        self._masks = np.tile(self._mask, 4)
        self._of_joint = np.eye(len(joints))[:, self._joints]
        self._before = robot.carriers()
        self._springs, self._dampers = robot.passive.stiffness.any(), np.diag(robot.passive.damping)
        self._falling, self._weightless = robot.sweeps(joints)
        self._owner, self._in_space = owner, len(owner) == 3 * count
        self._ranks: dict[tuple[int, ...], int] = {}

    def __reduce__(self) -> tuple[type[FlatTerms], tuple[Robot, PointsOnPlanes, Indices]]:
        return type(self), self._made_of

    @property
    def ground(self) -> PointsOnPlanes:
        """Points and planes."""
        return self._made_of[1]

    @cached_property
    def bodies(self) -> BodyTree | None:
        """The bodies for the compiled kernel, None where it cannot use them."""
        return self._falling.describe_bodies()

    def count_loads(self, closed: tuple[int, ...]) -> int:
        """Return how many forces at closed contacts act on bodies independently.

        Args:
            closed: Closed contacts.

        Returns:
            The number; -1 if some contact has no friction, see `load_turns`.
        """
        return self._compute_rank(closed) if self._in_space else -1

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """Return all terms at a point.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
        """
        robot, now = self._robot, self._falling.fall(q, v)
        turns = now.rotations.take(self._joints, 0)
        motions = now.motions.take(self._joints, 0)
        points, wrenches = self._place_points(q, turns, now.positions)
        local = motions @ self._arms  # velocity, and acceleration but for the turn of velocity
        local[:, 1] += (skew(motions[:, 0, 3:]) @ local[:, 0, :, None])[:, :, 0]
        world = turns @ local.transpose(0, 2, 1)
        rates, drift = self._along.dot(world.reshape(-1, 2)).T
        drive = robot.actuation.dot(u) - now.bias
        if robot.resists:
            drive -= robot.passive.torque(q, v) if self._springs else robot.passive.damping * v
        gaps = self._along[: len(points)].dot(points.ravel()) - self._heights
        jacobian = wrenches.dot(now.columns) * self._mask
        return TermValues(now.mass, drive, jacobian, drift + self._weight, gaps, rates)

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Return the derivatives by (q, v), at fixed acceleration and row forces.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            forces: Forces (r,) along the rows.
        """
        now, nv = self._falling.slopes(q, v, a), len(v)
        points, wrenches = self._find_points(q, self._falling)
        motions = now.motions.take(self._joints, 0)
        spins = skew(motions[:, :, 3:])
        moves = motions[:, :, :3] + (spins @ points[:, None, :, None])[..., 0]
        moves[:, 1] += (spins[:, 0] @ moves[:, 0, :, None])[..., 0]
        across = self._turn.dot(moves.transpose(0, 2, 1).reshape(-1, 2))
        spin, velocity_q = now.columns[3:], now.acceleration_v - now.columns_rate
        right = np.zeros((12, 4 * nv))  # of w; of d x v_p and d x a_p in turn
        columns = now.acceleration_q, now.acceleration_v, velocity_q, now.columns
        np.concatenate(columns, axis=1, out=right[:6])
        right[6::2, :nv], right[6::2, nv : 2 * nv] = 2.0 * velocity_q[3:], 2.0 * spin
        right[6::2, 2 * nv : 3 * nv] = right[7::2, :nv] = spin
        left = np.concatenate((wrenches, across.reshape(-1, 6)), axis=1)
        rows = left.dot(right) * self._masks
        equations = np.empty((nv, 2 * nv))
        np.subtract(
            now.bias_q,
            self._differentiate_turning(now.columns, points, forces),
            out=equations[:, :nv],
        )
        np.add(now.bias_v, self._dampers, out=equations[:, nv:])
        if self._springs:
            equations[:, :nv] += np.diag(self._robot.passive.stiffness)
        return TermDerivatives(equations, rows[:, : 2 * nv], rows[:, 2 * nv :])

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Return the derivatives by q of momentum and rates.

        Args:
            q: Configuration (nq,).
            z: Velocity (nv,).
            forces: Impulses (r,) along the rows.
        """
        if not z.any():  # M z is zero, so that columns are enough
            columns = self._weightless.axes(q)
            points, _ = self._find_points(q, self._weightless)
            turned = self._differentiate_turning(columns, points, forces)
            return ImpulseDerivatives(-turned, np.zeros_like(self._mask))
        now = self._weightless.slopes(q, None, z)
        points, wrenches = self._find_points(q, self._weightless)
        pull = now.motions[:, 1].take(self._joints, 0)
        velocity = pull[:, :3] + (skew(pull[:, 3:]) @ points[:, :, None])[:, :, 0]
        across = (self._turn @ velocity.ravel()).reshape(-1, 3)
        rates = wrenches @ now.acceleration_q + across @ now.columns[3:]
        momentum = now.bias_q
        if forces.any():
            momentum = momentum - self._differentiate_turning(now.columns, points, forces)
        return ImpulseDerivatives(momentum, rates * self._mask)

    def load_turns(self, q: Array, z: Array, closed: tuple[int, ...], rank: int) -> Array | None:
        """Return the rows (d x omega)' J_p, see `Terms`.

        Args:
            q: Configuration (nq,).
            z: Velocity (nv,).
            closed: Closed contacts.
            rank: Rank of their J M^-1 J'.

        Returns:
            The turns (r, nv). None if some contact has no friction, so that forces at points do
            not act in all directions, or if loads without effect act between bodies.
        """
        if not self._in_space or rank != self._compute_rank(closed):
            return None
        columns = self._weightless.axes(q)
        points, _ = self._find_points(q, self._weightless)
        spins = (self._moved * columns[3:]) @ z
        along = -(self._turn @ spins.take(self._joints, 0).ravel()).reshape(-1, 3)
        moments = (skew(points.take(self._owner, 0)) @ along[:, :, None])[:, :, 0]
        return np.asarray(np.concatenate((along, moments), axis=1) @ columns * self._mask)

    def _compute_rank(self, closed: tuple[int, ...]) -> int:
        """Return how many forces at points, in all directions, act on bodies independently."""
        known = self._ranks.get(closed)
        if known is None:
            of_joint = self._joints[list(closed)]
            arms = [np.hstack(self._arms[np.array(closed)[of_joint == j]]) for j in set(of_joint)]
            known = self._ranks[closed] = sum(int(np.linalg.matrix_rank(a)) for a in arms)
        return known

    def impulse_gradient(
        self, q: Array, velocities: Array, forces: Array, moved: Array, along: Array
    ) -> Array:
        """Return the gradient (nv,) of a sum, by D_q (J z) w = D_q (J' w) z; see `Terms`.

        Args:
            q: Configuration (nq,).
            velocities: z (k, nv).
            forces: f (k, r).
            moved: y (k, nv).
            along: w (k, r).
        """
        columns, sweeps = self._weightless.axes(q), self._weightless
        points, _ = self._find_points(q, sweeps)
        pulls, motions = np.concatenate((forces, along)), np.concatenate((moved, velocities))
        turned = (motions[:, None] @ self._differentiate_turning(columns, points, pulls)).sum(
            axis=(0, 1)
        )
        gradient: Array = -turned
        for z, y in zip(velocities, moved, strict=True):
            if z.any():
                gradient += y @ sweeps.slopes(q, None, z).bias_q
        return gradient

    def _find_points(self, q: Array, sweeps: Sweeps) -> tuple[Array, Array]:
        """Return points and wrenches, kept if this thread placed them at q last."""
        at, points, wrenches = getattr(self._known, "placed", (None, q, q))
        if at != q.tobytes():
            rotations, positions = sweeps.places()
            return self._place_points(q, rotations.take(self._joints, 0), positions)
        return points, wrenches

    def _place_points(self, q: Array, turns: Array, positions: Array) -> tuple[Array, Array]:
        """Return contact points (c, 3) in the world, and w (r, 6) of all rows, and keep them.

        Args:
            q: Configuration (nq,), by which they are kept.
            turns: Rotations (c, 3, 3) of the bodies.
            positions: Positions of the joints with contacts.
        """
        known = self._known
        points = (turns @ self._local[:, :, None])[:, :, 0] + positions.take(self._joints, 0)
        moments = self._turn.dot(points.ravel()).reshape(-1, 3)
        wrenches = np.concatenate((self._directions, moments), axis=1)
        known.placed, known.levers = (q.tobytes(), points, wrenches), None
        return points, wrenches

    def _differentiate_turning(self, columns: Array, points: Array, forces: Array) -> Array:
        """Return the derivatives D_q (J' f), (..., nv, nv), at fixed forces (..., r)."""
        known = self._known
        if known.levers is None:
            moving = self._moved * columns
            arms = np.concatenate((self._straight, skew(points)), axis=1)
            known.levers = arms, moving.reshape(-1, columns.shape[1]).T, moving[:, 3:]
        arms, moving, spins = known.levers
        many = forces.shape[:-1]  # several loads at once, see `impulse_gradient`
        pull = arms @ skew((forces @ self._along).reshape(*many, -1, 3))
        total = (self._of_joint @ pull.reshape(*many, -1, 18)).reshape(*many, -1, 6, 3)
        k = moving @ (total @ spins).reshape(*many, -1, len(moving))
        return np.asarray(np.where(self._before, k, k.swapaxes(-1, -2)))
