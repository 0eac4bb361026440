"""The state space of a robot: x = (q, v), perturbed in the tangent of q and in v."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.multibody.robot import Robot


@dataclass(frozen=True)
class RobotStateSpace:
    """The space of states (q, v) with perturbations (dq, dv), see `spaces.Space`.

    Perturbations dq are in the local tangent space of the configuration, in m and rad, and dv in
    m/s and rad/s. Velocities are of that tangent space too, and a vector space of their own: they
    are added, and do not turn.

    Attributes:
        robot: The robot.
    """

    robot: Robot

    @property
    def nx(self) -> int:
        """Number of coordinates, nq + nv. A floating base has nq = 7, a continuous joint 2."""
        return self.robot.nq + self.robot.nv

    @property
    def ndx(self) -> int:
        """Number of directions, 2 nv. A floating base has nv = 6, a continuous joint 1."""
        return 2 * self.robot.nv

    def integrate(self, x: Array, dx: Array) -> Array:
        """Return the state (nx,) reached from x (nx,) along dx (ndx,)."""
        n, nv = self.robot.nq, self.robot.nv
        return np.concatenate([self.robot.integrate(x[:n], dx[:nv]), x[n:] + dx[nv:]])

    def difference(self, x0: Array, x1: Array) -> Array:
        """Return the perturbation (ndx,) that leads from x0 (nx,) to x1 (nx,)."""
        n = self.robot.nq
        return np.concatenate([self.robot.difference(x0[:n], x1[:n]), x1[n:] - x0[n:]])

    def difference_jacobians(self, x0: Array, x1: Array) -> tuple[Array, Array]:
        """Return the derivatives (ndx, ndx) of `difference` by perturbations of x0 and of x1."""
        n, nv = self.robot.nq, self.robot.nv
        # Of velocities the difference is v1 - v0. Configurations have their own derivatives.
        by_first, by_second = -np.eye(2 * nv), np.eye(2 * nv)
        parts = self.robot.difference_jacobians(x0[:n], x1[:n])
        by_first[:nv, :nv], by_second[:nv, :nv] = parts
        return by_first, by_second

    def rate(self, x: Array, dx: Array) -> Array:
        """Return the rate of the coordinates (nx,), per s, when a state moves along dx per second.

        Args:
            x: State (nx,), of which only the configuration is used.
            dx: Velocity and acceleration (ndx,) in the tangent space, in m/s, rad/s and per s more.
        """
        n, nv = self.robot.nq, self.robot.nv
        return np.concatenate([self.robot.rate(x[:n], dx[:nv]), dx[nv:]])

    def tangent_map(self, x: Array) -> Array:
        """Return the map (nx, ndx) from velocity and acceleration to rates of the coordinates."""
        n, nv = self.robot.nq, self.robot.nv
        result = np.zeros((n + nv, 2 * nv))
        result[:n, :nv] = self.robot.rate(x[:n], np.eye(nv))  # a column for each unit velocity
        result[n:, nv:] = np.eye(nv)
        return result

    def transport(self, dx: Array) -> Array:
        """Return the matrix (ndx, ndx) by which a perturbation turns with its moving state.

        It is minus the adjoint of the velocity for dq, which is in the moving frame, and zero for
        dv. See `Space.transport`, whose equation of perturbations it is a term of.

        Args:
            dx: Velocity and acceleration (ndx,) in the tangent space; only the velocity is used.
        """
        nv = self.robot.nv
        result = np.zeros((2 * nv, 2 * nv))
        result[:nv, :nv] = self.robot.transport(dx[:nv])
        return result

    def normalize(self, x: Array) -> Array:
        """Return a state x (nx,) with quaternions and unit circles scaled to norm 1."""
        n = self.robot.nq
        return np.concatenate([self.robot.normalize(x[:n]), x[n:]])

    def normalize_rows(self, x: Array) -> Array:
        """Return `normalize` of m states (m, nx)."""
        return self.robot.normalize_rows(x)

    def check(self, name: str, x: Array) -> None:
        """Check that quaternions and unit circles of a state have norm 1.

        Args:
            name: Name of the argument, for messages.
            x: State (nx,).

        Raises:
            InputError: A norm differs from 1.
        """
        self.robot.check(name, x[: self.robot.nq])
