"""The terms of contact dynamics by Pinocchio, for contacts of any shape; see `contact_terms`."""

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


class PinocchioTerms(Terms):
    """The terms by Pinocchio's algorithms, for any robot."""

    def __init__(self, robot: Robot, rows: ContactSet) -> None:
        self._robot, self._rows = robot, rows

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """All terms at a point."""
        robot, rows = self._robot, self._rows
        drive = robot.actuation @ u - robot.bias(q, v)
        mass = robot.mass_matrix(q)
        return TermValues(mass, drive, *rows.motion(robot.motion(q, v, rows.joints), v))

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Derivatives at given acceleration (nv,) and row forces (r,)."""
        d = self._rows.derivatives(q, v, a)
        e_q, e_v = self._robot.bias_derivatives(q, v, a, _wrenches(self._rows, d.wrench, forces))
        return TermDerivatives(
            np.hstack((e_q - _turning_wrenches(d, forces), e_v)),
            np.hstack((d.acceleration_q, d.acceleration_v)),
            np.hstack((d.rate_q, d.jacobian)),
        )

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Derivatives of momentum and rates at a given velocity z (nv,)."""
        d = self._rows.derivatives(q, z, np.zeros(self._robot.nv))
        held = _wrenches(self._rows, d.wrench, forces)
        momentum = self._robot.impulse_derivative(q, z, held) - _turning_wrenches(d, forces)
        return ImpulseDerivatives(momentum, d.rate_q)


def _wrenches(rows: ContactSet, wrench: Array, force: Array) -> dict[int, Array]:
    """Total spatial force on the body of each joint, in the world."""
    total: dict[int, Array] = {}
    for a, b, w in zip(rows.joint_a, rows.joint_b, force[:, None] * wrench, strict=True):
        for joint, part in ((a, w), (b, -w)):
            if joint != 0:
                total[joint] = total.get(joint, 0.0) + part
    return total


def _turning_wrenches(d: RowDerivatives, force: Array) -> Array:
    r"""What D_q (J^T f) has beyond wrenches that are fixed in the frames of their bodies.

    A wrench held fixed in a body turns with it, by J x* w; the true one changes by D_q w. So
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
