"""How the coordinates of each joint type move and turn with its velocity.

Pinocchio integrates configurations on their manifold but gives Python no derivative of the
coordinates themselves, which an ODE solver needs: qdot = T(q) v.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import InputError

SAGITTAL_JOINTS = ("root_x", "root_z", "root_pitch")


@dataclass(frozen=True)
class JointKind:
    """A joint type whose coordinates are not simply integrated velocities.

    `rate(q, v)` is the coordinate velocity, `adjoint(v)` the matrix ad(v) of its Lie algebra,
    `unit` the slice of the coordinates that must have norm one.
    """

    rate: Callable[[Array, Array], Array]
    adjoint: Callable[[Array], Array]
    unit: slice


_LEVI_CIVITA = np.zeros((3, 3, 3))
for _i, _k, _j in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
    _LEVI_CIVITA[_k, _i, _j], _LEVI_CIVITA[_j, _i, _k] = 1.0, -1.0
_SKEW: Array = _LEVI_CIVITA.reshape(3, 9)


def skew(w: Array) -> Array:
    """The matrix of the cross product with w (3,), or of n of them (n, 3) -> (n, 3, 3)."""
    return np.asarray((w @ _SKEW).reshape(*w.shape, 3))


def rotation_of(quaternion: Array) -> Array:
    """Rotation matrix of a unit quaternion (x, y, z, w)."""
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def _quaternion_rate(quaternion: Array, omega: Array) -> Array:
    """Half the quaternion product with the angular velocity in the body frame."""
    x, y, z, w = quaternion
    a, b, c = omega
    return 0.5 * np.array(
        [
            w * a + y * c - z * b,
            w * b + z * a - x * c,
            w * c + x * b - y * a,
            -x * a - y * b - z * c,
        ]
    )


def _free_flyer_rate(q: Array, v: Array) -> Array:
    return np.concatenate([rotation_of(q[3:]) @ v[:3], _quaternion_rate(q[3:], v[3:])])


def _free_flyer_adjoint(v: Array) -> Array:
    x, y, z, a, b, c = v.tolist()
    return np.array(
        [
            [0.0, -c, b, 0.0, -z, y],
            [c, 0.0, -a, z, 0.0, -x],
            [-b, a, 0.0, -y, x, 0.0],
            [0.0, 0.0, 0.0, 0.0, -c, b],
            [0.0, 0.0, 0.0, c, 0.0, -a],
            [0.0, 0.0, 0.0, -b, a, 0.0],
        ]
    )


def _planar_rate(q: Array, v: Array) -> Array:
    c, s = q[2], q[3]
    return np.array([c * v[0] - s * v[1], s * v[0] + c * v[1], -s * v[2], c * v[2]])


def _planar_adjoint(v: Array) -> Array:
    return np.array([[0.0, -v[2], v[1]], [v[2], 0.0, -v[0]], [0.0, 0.0, 0.0]])


def _circle_rate(q: Array, v: Array) -> Array:
    return np.array([-q[1] * v[0], q[0] * v[0]])


def _circle_adjoint(v: Array) -> Array:
    return np.zeros((1, 1))


KINDS = {
    "JointModelFreeFlyer": JointKind(_free_flyer_rate, _free_flyer_adjoint, slice(3, 7)),
    "JointModelSpherical": JointKind(_quaternion_rate, skew, slice(0, 4)),
    "JointModelPlanar": JointKind(_planar_rate, _planar_adjoint, slice(2, 4)),
    "circle": JointKind(_circle_rate, _circle_adjoint, slice(0, 2)),
}


_REFUSED = tuple(
    f"JointModel{name}" for name in ("Composite", "Ellipsoid", "Mimic", "SphericalZYX", "Universal")
)


def kinds_of(model: Any) -> list[tuple[slice, slice, JointKind]]:
    """Coordinates, velocities and kind of joints whose coordinates are not integrated velocities.

    Raises `InputError` for a joint whose axes turn with its own coordinates, for which Pinocchio
    gives wrong Jacobian rates and derivatives (a chain of simple joints does the same), and where
    joints are not numbered depth first, without which its mass matrix is wrong.
    """
    kinds = []
    for i in range(1, model.njoints):
        joint, name = model.joints[i], model.names[i]
        shortname = joint.shortname()
        if shortname in _REFUSED:
            raise InputError(f"joint {name!r} has type {shortname}, which is not supported")
        if model.parents[i] not in list(model.supports[i - 1]):
            raise InputError(
                f"joints must be numbered depth first, but {name!r} comes after "
                f"{model.names[i - 1]!r} and moves with {model.names[model.parents[i]]!r}"
            )
        if joint.nq != joint.nv:
            kind = KINDS["circle" if (joint.nq, joint.nv) == (2, 1) else shortname]
            q = slice(joint.idx_q, joint.idx_q + joint.nq)
            kinds.append((q, slice(joint.idx_v, joint.idx_v + joint.nv), kind))
    return kinds


def motors(model: Any) -> list[str]:
    """The joints that may have a motor: all but those of a floating or a sagittal base."""
    joints = list(zip(model.names, model.joints, strict=True))[1:]
    return [
        name
        for name, joint in joints
        if joint.shortname() != "JointModelFreeFlyer" and name not in SAGITTAL_JOINTS
    ]
