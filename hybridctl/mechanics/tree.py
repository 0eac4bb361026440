"""The constants of a robot's rigid-body dynamics, for those who write its equations anew."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hybridctl.checks import Array

_KINDS = {
    "JointModelFreeFlyer": "floating",
    "JointModelSpherical": "spherical",
    "JointModelPlanar": "planar",
    "JointModelTranslation": "translation",
}


class MovingBody(NamedTuple):
    """A body and the joint that moves it, with coordinates from q on and velocities from v on.

    Kinds are "screw", along and about one axis; "circle", about an axis, with its cosine and sine
    as coordinates; "translation"; "planar", "spherical" and "floating", with a unit circle or
    quaternion among the coordinates. `twist` (6, nv), linear before angular, is what the velocity
    does to the body, in its own axes.

    `parent` is the index of the parent in the tree, -1 for the world; rotation (3, 3) and position
    (3,) place the joint in it, in m. mass in kg; its first moment (3,) in kg m and inertia (3, 3)
    in kg m^2 are about the origin of the body's frame.
    """

    parent: int
    kind: str
    twist: Array
    rotation: Array
    position: Array
    q: int
    v: int
    mass: float
    moment: Array
    inertia: Array


class Tree(NamedTuple):
    """The body of joint i + 1 at index i; gravity (3,) in m/s^2; armature (nv,) on M's diagonal."""

    bodies: tuple[MovingBody, ...]
    gravity: Array
    armature: Array


def tree_of(model: Any) -> Tree:
    """The constants of a Pinocchio model."""
    bodies = tuple(_body(model, i) for i in range(1, model.njoints))
    return Tree(bodies, np.array(model.gravity.linear), np.array(model.armature))


def _body(model: Any, i: int) -> MovingBody:
    joint, placement, inertia = model.joints[i], model.jointPlacements[i], model.inertias[i]
    data = joint.createData()
    joint.calc(data, np.zeros(model.nq))  # the motion subspace is the same everywhere
    simple = "screw" if joint.nq == joint.nv else "circle"
    return MovingBody(
        int(model.parents[i]) - 1,
        _KINDS.get(joint.shortname(), simple),
        np.array(data.S).reshape(6, joint.nv),
        np.array(placement.rotation),
        np.array(placement.translation),
        int(joint.idx_q),
        int(joint.idx_v),
        float(inertia.mass),
        inertia.mass * np.array(inertia.lever),
        np.array(inertia.matrix()[3:, 3:]),
    )
