r"""The terms of contact dynamics at a point, for all contacts at once; a mode picks its rows.

Everything above needs of a robot with contacts only

.. math:: M(q), \quad S u - h(q, v), \quad J(q), \quad \dot J v, \quad \text{gaps}, \quad J v

and the derivatives of :math:`M a + h - J^T f` and :math:`J a + \dot J v` at fixed a and f. Rows of
J are the normals of all contacts, then the tangents of the rough ones, as `ContactSet` has them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from hybridctl.checks import Array
from hybridctl.mechanics.geometry import ContactSet, RowDerivatives
from hybridctl.mechanics.joints import skew
from hybridctl.mechanics.robot import Robot


class TermValues(NamedTuple):
    """Terms at (q, v, u): c contacts, r rows.

    mass (nv, nv); drive (nv,) = S u - h, with springs and dampers; jacobian (r, nv), drift (r,)
    = Jdot v, gaps (c,) in m, rates (r,) = J v in m/s.
    """

    mass: Array
    drive: Array
    jacobian: Array
    drift: Array
    gaps: Array
    rates: Array


class TermDerivatives(NamedTuple):
    """Derivatives by (q, v), at fixed acceleration a and row forces f; D_v of the rates is J.

    equations (nv, 2 nv) of M a + h - J' f; accelerations (r, 2 nv) of J a + Jdot v;
    rates (r, 2 nv) of J v.
    """

    equations: Array
    accelerations: Array
    rates: Array


class ImpulseDerivatives(NamedTuple):
    """The derivatives by q of M z - J' f (nv, nv) and of the rates J z (r, nv), z and f fixed."""

    momentum: Array
    rates: Array


class Terms(Protocol):
    """What gives the terms of a robot with contacts.

    Arrays may be views that hold until the same method is called again in the same thread.
    """

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """All terms at a point."""
        ...

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Derivatives at given acceleration (nv,) and row forces (r,)."""
        ...

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Derivatives of momentum and rates at a given velocity z (nv,)."""
        ...


class PinocchioTerms:
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
