"""The terms of contact dynamics by Pinocchio, for any robot and contacts of any shape."""

from __future__ import annotations

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet, RowDerivatives
from hybridctl.mechanics.multibody.joints import skew
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_terms import (
    ImpulseDerivatives,
    TermDerivatives,
    Terms,
    TermValues,
)


class GeneralTerms(Terms):
    """The terms of contacts on any surfaces and bodies.

    Args:
        robot: Robot.
        rows: Kinematics of its contacts.
    """

    def __init__(self, robot: Robot, rows: ContactSet) -> None:
        self._robot, self._rows = robot, rows

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """Return all terms at a point.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
        """
        robot, rows = self._robot, self._rows
        drive = robot.actuation @ u - robot.bias(q, v)
        mass = robot.mass_matrix(q)
        return TermValues(mass, drive, *rows.motion(robot.motion(q, v, rows.joints), v))

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Return the derivatives by (q, v), at fixed acceleration and row forces.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            forces: Forces (r,) along the rows.
        """
        d = self._rows.derivatives(q, v, a)
        e_q, e_v = self._robot.bias_derivatives(
            q, v, a, _sum_wrenches(self._rows, d.wrench, forces)
        )
        return TermDerivatives(
            np.hstack((e_q - _differentiate_turning(d, forces), e_v)),
            np.hstack((d.acceleration_q, d.acceleration_v)),
            np.hstack((d.rate_q, d.jacobian)),
        )

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Return the derivatives by q of momentum and rates.

        Args:
            q: Configuration (nq,).
            z: Velocity (nv,).
            forces: Impulses (r,) along the rows.
        """
        d = self._rows.derivatives(q, z, np.zeros(self._robot.nv))
        wrenches = _sum_wrenches(self._rows, d.wrench, forces)
        turning = _differentiate_turning(d, forces)
        momentum = self._robot.impulse_derivative(q, z, wrenches) - turning
        return ImpulseDerivatives(momentum, d.rate_q)


def _sum_wrenches(rows: ContactSet, wrench: Array, force: Array) -> dict[int, Array]:
    """Return the total spatial force (6,) on the body of each joint, in the world.

    Args:
        rows: Kinematics of the contacts.
        wrench: Wrench (r, 6) of a unit force along each row.
        force: Forces (r,) along the rows.

    Returns:
        Force in N, and moment about the world's origin in N m, by index of the joint. The world has
        none.
    """
    total: dict[int, Array] = {}
    for a, b, w in zip(rows.joint_a, rows.joint_b, force[:, None] * wrench, strict=True):
        for joint, part in ((a, w), (b, -w)):
            if joint != 0:
                total[joint] = total.get(joint, 0.0) + part
    return total


def _differentiate_turning(d: RowDerivatives, force: Array) -> Array:
    r"""Return the part of D_q (J^T f) beyond wrenches that are fixed in the frames of bodies.

    A wrench that is fixed in a body turns with it, by J x* w; the true one changes by D_q w. So
    each body adds J^T (f D_q w - J x* f w), the one with the surface negatively.
    """
    total = np.zeros((d.jacobian.shape[1], d.jacobian.shape[1]))
    fx, mx = skew(d.wrench[:, :3]), skew(d.wrench[:, 3:])
    for sign, jacobian in ((1.0, d.jacobian_a), (-1.0, d.jacobian_b)):
        linear, angular = jacobian[:, :3], jacobian[:, 3:]
        turned = np.concatenate((-fx @ angular, -mx @ angular - fx @ linear), axis=1)
        change = force[:, None, None] * (d.wrench_q - turned)
        total += sign * np.einsum("cki,ckj->ij", jacobian, change)
    return total
