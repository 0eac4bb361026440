"""Pinocchio's sweeps over a robot, and views of what they leave in its memory.

Linear parts of spatial vectors are those of the point at the origin of their frame. What a sweep
returns holds until the same sweep is asked for again in the same thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pinocchio as pin

from hybridctl.base.checks import Array


class Fall(NamedTuple):
    """A robot at (q, v): mass (nv, nv), bias (nv,), and columns (6, nv) of all joints' axes.

    Of the bodies of k joints: rotations (k, 3, 3) and positions (k, 3); motions (k, 2, 6), in
    their own frames: the velocity, and the acceleration without that of the joints, less gravity.
    """

    mass: Array
    bias: Array
    columns: Array
    rotations: Array
    positions: Array
    motions: Array


class SweepDerivatives(NamedTuple):
    """Derivatives at (q, v, a), by columns of the axes, all in the world.

    bias_q, bias_v (nv, nv) of M a + h; columns (6, nv) and their rate; acceleration_q and
    acceleration_v (6, nv) of the body that a column moves. Of the bodies of k joints: motions
    (k, 2, 6), the velocity and the acceleration without gravity.
    """

    bias_q: Array
    bias_v: Array
    columns: Array
    columns_rate: Array
    acceleration_q: Array
    acceleration_v: Array
    motions: Array


class Sweeps(threading.local):
    """Sweeps over a Pinocchio model, for the bodies of some joints; its memory is the thread's."""

    def __init__(self, model: Any, joints: Sequence[int]) -> None:
        self._made = model, tuple(joints)
        self._model, self._data = model, model.createData()
        data = self._data
        self._still = np.zeros(model.nv)
        self._rotations = [data.oMi[j].rotation for j in joints]
        self._positions = [data.oMi[j].translation for j in joints]
        self._motions = [m for j in joints for m in (data.v[j].vector, data.a_gf[j].vector)]
        self._in_world = [m for j in joints for m in (data.ov[j].vector, data.oa[j].vector)]
        self._equations = data.M, data.nle, data.J
        self._changes = data.dtau_dq, data.dtau_dv, data.J, data.dJ, data.dAdq, data.dAdv

    def __reduce__(self) -> tuple[type[Sweeps], tuple[Any, ...]]:
        return Sweeps, self._made

    def fall(self, q: Array, v: Array) -> Fall:
        """What acts on the robot, and where its axes are."""
        data = self._data
        pin.nonLinearEffects(self._model, data, q, v)
        pin.crba(self._model, data, q, pin.Convention.WORLD)
        motions = np.array(self._motions).reshape(-1, 2, 6)
        return Fall(*self._equations, *self.places(), motions)

    def slopes(self, q: Array, v: Array | None, a: Array) -> SweepDerivatives:
        """The derivatives of the equations of motion and of the motion; v None is zero."""
        data = self._data
        v = self._still if v is None else v
        pin.computeRNEADerivatives(self._model, data, q, v, a)
        return SweepDerivatives(*self._changes, np.array(self._in_world).reshape(-1, 2, 6))

    def axes(self, q: Array) -> Array:
        """Columns (6, nv) of all axes."""
        pin.computeJointJacobians(self._model, self._data, q)
        return np.asarray(self._data.J)

    def places(self) -> tuple[Array, Array]:
        """Rotations (k, 3, 3) and positions (k, 3) of the bodies where the last sweep was."""
        return np.array(self._rotations), np.array(self._positions)


def inverse_dynamics_derivatives(
    model: Any, data: Any, motion: tuple[Array, Array, Array], wrenches: Mapping[int, Array]
) -> tuple[Any, Any]:
    """Return the derivatives by q and v of M a + h - J^T w at fixed a, as Pinocchio has them.

    Args:
        model: The `pinocchio.Model`.
        data: Its memory, in which the results stay.
        motion: Configuration (nq,), velocity (nv,) and acceleration (nv,) of the model.
        wrenches: Spatial forces (force, moment about the world's origin) by joint, held constant
            in the frames of their bodies.
    """
    arguments: list[Any] = [*motion]
    if wrenches:
        pin.forwardKinematics(model, data, motion[0])
        forces = pin.StdVec_Force()
        for joint in range(model.njoints):
            wrench = wrenches.get(joint)
            world = pin.Force.Zero() if wrench is None else pin.Force(wrench)
            forces.append(data.oMi[joint].actInv(world))
        arguments.append(forces)
    d_q, d_v, _ = pin.computeRNEADerivatives(model, data, *arguments)
    return d_q, d_v


def motion_derivatives(
    model: Any, data: Any, motion: tuple[Array, Array, Array], joints: Sequence[int]
) -> list[Array]:
    """Return the fields of `bodies.MotionDerivatives` of some joints, by velocities of the model.

    Pinocchio's derivatives are asked for in the frame of the joint and turned into the world here:
    its own derivative of the acceleration in world coordinates is wrong for joints of several
    degrees of freedom.

    Args:
        model: The `pinocchio.Model`.
        data: Its memory.
        motion: Configuration (nq,), velocity (nv,) and acceleration (nv,) of the model.
        joints: Indices of k joints, 0 for the world.
    """
    nv = int(model.nv)
    pin.computeForwardKinematicsDerivatives(model, data, *motion)
    parts = []
    for j in joints:
        if j == 0:
            parts.append((np.zeros(6), np.zeros(6), *np.zeros((4, 6, nv))))
            continue
        local = pin.getJointAccelerationDerivatives(model, data, j, pin.ReferenceFrame.LOCAL)
        velocity_q, acceleration_q, acceleration_v, jacobian = (
            matrix.reshape(6, nv) for matrix in local
        )
        pose = data.oMi[j]
        turn = pose.action
        world_jacobian = turn @ jacobian
        velocity, acceleration = pose.act(data.v[j]), pose.act(data.a[j])
        parts.append(
            (
                velocity.vector.copy(),
                acceleration.vector.copy(),
                world_jacobian,
                turn @ velocity_q - velocity.action @ world_jacobian,
                turn @ acceleration_q - acceleration.action @ world_jacobian,
                turn @ acceleration_v,
            )
        )
    return [np.array(column) for column in zip(*parts, strict=True)]


def subspace_adjoint(s: Array) -> Array:
    """Return ad (n, n, n) with ad(v) = ad @ v, for velocities v (n,) of a joint.

    Args:
        s: Motion subspace of the joint (6, n).
    """
    return np.stack([s.T @ pin.Motion(column).action @ s for column in s.T], axis=-1)


class ThreadData(threading.local):
    """What Pinocchio writes into while it evaluates a model, for each thread its own.

    Args:
        model: The `pinocchio.Model`.
    """

    def __init__(self, model: Any) -> None:
        self.data = model.createData()
