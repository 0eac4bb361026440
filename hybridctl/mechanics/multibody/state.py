"""The state space of a robot: x = (q, v), perturbed in the tangent of q and in v."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.multibody.robot import Robot


@dataclass(frozen=True)
class RobotStateSpace:
    """Configuration x velocity: nx = nq + nv coordinates, ndx = 2 nv (see `spaces.Space`)."""

    robot: Robot

    @property
    def nx(self) -> int:
        """The number of coordinates, nq + nv."""
        return self.robot.nq + self.robot.nv

    @property
    def ndx(self) -> int:
        """The number of deviations, 2 nv."""
        return 2 * self.robot.nv

    def integrate(self, x: Array, dx: Array) -> Array:
        """The state (q integrate dq, v + dv)."""
        n, nv = self.robot.nq, self.robot.nv
        return np.concatenate([self.robot.integrate(x[:n], dx[:nv]), x[n:] + dx[nv:]])

    def difference(self, x0: Array, x1: Array) -> Array:
        """The deviation (q1 difference q0, v1 - v0)."""
        n = self.robot.nq
        return np.concatenate([self.robot.difference(x0[:n], x1[:n]), x1[n:] - x0[n:]])

    def difference_jacobians(self, x0: Array, x1: Array) -> tuple[Array, Array]:
        """Jacobians of the configurations, and minus and plus the identity for velocities."""
        n, nv = self.robot.nq, self.robot.nv
        by_first, by_second = -np.eye(2 * nv), np.eye(2 * nv)
        parts = self.robot.difference_jacobians(x0[:n], x1[:n])
        by_first[:nv, :nv], by_second[:nv, :nv] = parts
        return by_first, by_second

    def rate(self, x: Array, dx: Array) -> Array:
        """Coordinate velocity for a velocity and acceleration (v, a)."""
        n, nv = self.robot.nq, self.robot.nv
        return np.concatenate([self.robot.rate(x[:n], dx[:nv]), dx[nv:]])

    def tangent_map(self, x: Array) -> Array:
        """The map (nx, ndx) from velocities and accelerations to rates of the coordinates."""
        n, nv = self.robot.nq, self.robot.nv
        result = np.eye(n + nv, 2 * nv, nv - n)
        result[:n, :nv] = self.robot.rate(x[:n], np.eye(nv))
        return result

    def transport(self, dx: Array) -> Array:
        """The negative adjoint of the velocity, on the configuration part."""
        nv = self.robot.nv
        result = np.zeros((2 * nv, 2 * nv))
        result[:nv, :nv] = self.robot.transport(dx[:nv])
        return result

    def normalize(self, x: Array) -> Array:
        """The state with unit quaternions."""
        n = self.robot.nq
        return np.concatenate([self.robot.normalize(x[:n]), x[n:]])

    def check(self, name: str, x: Array) -> None:
        """Raise `InputError` for a quaternion that is not of norm one."""
        self.robot.check(name, x[: self.robot.nq])
