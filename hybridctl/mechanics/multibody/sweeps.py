"""Pinocchio's sweeps over the bodies of a robot, with results as views of its memory.

Linear parts of spatial vectors are those of the point at the origin of their frame. The result of a
sweep is valid until the same sweep runs again in the same thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pinocchio as pin

from hybridctl.base.checks import Array


class Fall(NamedTuple):
    """Dynamics and kinematics of a robot at (q, v), without joint accelerations.

    Attributes:
        mass: Mass matrix M (nv, nv).
        bias: Bias h (nv,), without springs and dampers.
        columns: Spatial velocity (6, nv) that each velocity gives the body of its joint, in the
            world.
        rotations: Orientations (k, 3, 3) of the bodies of k joints in the world.
        positions: Positions (k, 3) of these bodies in the world, m.
        motions: Velocity, and acceleration at zero joint acceleration less gravity, (k, 2, 6), of
            these bodies in their own frames.
    """

    mass: Array
    bias: Array
    columns: Array
    rotations: Array
    positions: Array
    motions: Array


class SweepDerivatives(NamedTuple):
    """Derivatives of dynamics and kinematics at (q, v, a), all in the world.

    Attributes:
        bias_q: Derivative (nv, nv) of M a + h by q.
        bias_v: Derivative (nv, nv) of M a + h by v.
        columns: Spatial velocity (6, nv) of its body by each velocity.
        columns_rate: Time derivative (6, nv) of the columns.
        acceleration_q: Derivative (6, nv) of the acceleration of the body of each joint, by
            perturbations of its own coordinates.
        acceleration_v: The same by its own velocities.
        motions: Velocity and acceleration without gravity, (k, 2, 6), of the bodies of k joints.
    """

    bias_q: Array
    bias_v: Array
    columns: Array
    columns_rate: Array
    acceleration_q: Array
    acceleration_v: Array
    motions: Array


class Sweeps(threading.local):
    """Sweeps over a `pinocchio.Model`. Each thread has its own memory.

    Args:
        model: The `pinocchio.Model`.
        joints: Indices of the k joints whose bodies are reported.
    """

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
        """Return dynamics and kinematics at q (nq,) and v (nv,)."""
        data = self._data
        pin.nonLinearEffects(self._model, data, q, v)
        pin.crba(self._model, data, q, pin.Convention.WORLD)
        motions = np.array(self._motions).reshape(-1, 2, 6)
        return Fall(*self._equations, *self.places(), motions)

    def slopes(self, q: Array, v: Array | None, a: Array) -> SweepDerivatives:
        """Return derivatives of dynamics and kinematics.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,); None for zero.
            a: Acceleration (nv,).
        """
        data = self._data
        v = self._still if v is None else v
        pin.computeRNEADerivatives(self._model, data, q, v, a)
        return SweepDerivatives(*self._changes, np.array(self._in_world).reshape(-1, 2, 6))

    def axes(self, q: Array) -> Array:
        """Return the spatial velocity (6, nv) of its body by each velocity, at q (nq,)."""
        pin.computeJointJacobians(self._model, self._data, q)
        return np.asarray(self._data.J)

    def describe_bodies(self) -> BodyTree | None:
        """Return the bodies of all joints, None if an axis is not fixed in its body."""
        return describe_bodies(self._model)

    def places(self) -> tuple[Array, Array]:
        """Return orientations (k, 3, 3) and positions (k, 3) of the bodies at the last sweep."""
        return np.array(self._rotations), np.array(self._positions)


JOINT_KINDS = (
    ("RX", "RY", "RZ", "RevoluteUnaligned"),
    ("RUBX", "RUBY", "RUBZ", "RevoluteUnboundedUnaligned"),
    ("PX", "PY", "PZ", "PrismaticUnaligned"),
    ("Spherical",),
    ("FreeFlyer",),
    ("Planar",),
    ("Translation",),
)
"""Names of joints whose axes are fixed in the body that they move.

They are in the order of `enum joint_kind` of the compiled kernel."""


class BodyTree(NamedTuple):
    """The bodies of N joints, the first of which is the world.

    Axes of all joints are fixed in the bodies that they move.

    Attributes:
        parents: Parent of each joint (N,).
        owners: Joint of each velocity (nv,).
        inertias: Mass in kg, centre in the joint's frame in m, and inertia about it as xx, xy, yy,
            xz, yz, zz in kg m^2, (N, 10).
        gravity: Acceleration (3,), m/s^2.
        kinds: Place of each joint among `JOINT_KINDS`, (N,); 0 for the world.
        starts: First coordinate of each joint (N,); 0 for the world.
        placements: Rotations by columns and positions of joints in the frames of their parents'
            joints, (N, 12).
        axes: Spatial velocity (nv, 6) of its body by each velocity, in the frame of its joint.
    """

    parents: list[int]
    owners: list[int]
    inertias: Array
    gravity: Array
    kinds: list[int]
    starts: list[int]
    placements: Array
    axes: Array


def describe_bodies(model: Any) -> BodyTree | None:
    """Return the bodies of all joints of a `pinocchio.Model`; None if an axis of one is not fixed.

    Args:
        model: The model.
    """
    joints, places = list(model.joints), {f"JointModel{n}": k for k, n in _list_joint_names()}
    if any(joint.shortname() not in places for joint in joints[1:]):
        return None
    owners = [j for j in range(1, len(joints)) for _ in range(joints[j].nv)]
    inertias, rows, columns = np.zeros((len(joints), 10)), (0, 0, 1, 0, 1, 2), (0, 1, 1, 2, 2, 2)
    for j, body in enumerate(model.inertias):
        inertias[j] = body.mass, *body.lever, *body.inertia[rows, columns]
    data = model.createData()
    moved = pin.computeJointJacobians(model, data, pin.neutral(model))
    axes = [data.oMi[j].actInv(pin.Motion(moved[:, k])).vector for k, j in enumerate(owners)]
    return BodyTree(
        [int(parent) for parent in model.parents],
        owners,
        inertias,
        np.array(model.gravity.linear),
        [0, *(places[joint.shortname()] for joint in joints[1:])],
        [0, *(int(joint.idx_q) for joint in joints[1:])],
        np.array(
            [[*place.rotation.T.ravel(), *place.translation] for place in model.jointPlacements]
        ),
        np.array(axes).reshape(-1, 6),
    )


def _list_joint_names() -> list[tuple[int, str]]:
    return [(kind, name) for kind, names in enumerate(JOINT_KINDS) for name in names]


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
    """The memory that Pinocchio writes into while it evaluates a model, one for each thread.

    Args:
        model: The `pinocchio.Model`.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    @cached_property
    def data(self) -> Any:
        """The `pinocchio.Data`, made at first use: runs in compiled modes hardly need any."""
        return self._model.createData()
