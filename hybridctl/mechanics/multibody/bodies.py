"""Bodies of a robot: their constants, poses and motion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.mechanics.multibody.joints import find_joint_kind

_NEGATIVE_MOMENT = 1e-9
"""Negative principal moment of inertia, relative to the largest of all joints, that counts as zero:
rounding leaves it of a plate or a rod."""

_LEAST_OWN_INERTIA = 1e-12
"""Inertia of a velocity that the later ones leave, relative to its entry of the mass matrix, below
which it is none: rounding of an elimination leaves 1e-15."""


class Frame(NamedTuple):
    """A frame that is fixed to the body of a joint.

    Attributes:
        joint: Index of the joint; 0 for the world.
        rotation: Orientation (3, 3) in the frame of the joint.
        position: Origin (3,) in the frame of the joint, m.
    """

    joint: int
    rotation: Array
    position: Array


class Body(NamedTuple):
    """A rigid body: all links that are fixed to each other and that a joint moves.

    Attributes:
        joint: Index of the joint.
        rotation: Orientation (3, 3), in the frame of the joint, of the frame by which the body was
            asked for.
        mass: Mass, kg.
        center: Centre of mass (3,) in the frame of the joint, m.
    """

    joint: int
    rotation: Array
    mass: float
    center: Array


class BodyKinematics(NamedTuple):
    """Kinematics of all n velocities of a tree, those of joints that mimic too, in the world.

    A spatial velocity is the linear velocity of the point at the world's origin, then the angular
    velocity.

    Attributes:
        jacobian: Columns (6, n): the spatial velocity that each velocity gives the body of its
            joint, and all bodies that this carries.
        jacobian_rate: Time derivative (6, n) of the columns.
        poses: Homogeneous transforms (k, 4, 4) from the frames of k joints to the world.
    """

    jacobian: Array
    jacobian_rate: Array
    poses: Array


class MotionDerivatives(NamedTuple):
    """Spatial velocities and accelerations of k joints in world coordinates, with derivatives.

    Attributes:
        velocity: Velocities (k, 6).
        acceleration: Accelerations (k, 6).
        jacobian: Derivatives (k, 6, nv) of the velocities by v.
        velocity_q: Derivatives (k, 6, nv) of the velocities by q.
        acceleration_q: Derivatives (k, 6, nv) of the accelerations by q.
        acceleration_v: Derivatives (k, 6, nv) of the accelerations by v.
    """

    velocity: Array
    acceleration: Array
    jacobian: Array
    velocity_q: Array
    acceleration_q: Array
    acceleration_v: Array


class MovingBody(NamedTuple):
    """A body and the joint that moves it.

    A joint that mimics has no coordinate and velocity of its own: `q` and `v` are those of the
    joint that it follows, and its own are ratio * q + offset and ratio * v.

    Attributes:
        parent: Index of the parent in the tree; -1 for the world.
        kind: "screw" (along and about one axis), "circle" (about an axis, with cosine and sine as
            coordinates), "translation", "planar", "spherical" or "floating".
        twist: Spatial velocity (6, n) of the body by each velocity of the joint, linear before
            angular, in the axes of the body.
        rotation: Orientation (3, 3), in the frame of the parent, of the frame in which the joint
            moves the body.
        position: Origin (3,) of that frame in the frame of the parent, m.
        q: Index of the first coordinate.
        v: Index of the first velocity.
        unit: Places in q of a quaternion or unit circle; None without one.
        mass: Mass, kg.
        moment: First moment of mass (3,) about the origin of the body's frame, kg m.
        inertia: Inertia (3, 3) about that origin, kg m^2.
        mimics: Whether the joint mimics another.
        ratio: Factor of a joint that mimics.
        offset: Offset of a joint that mimics, rad or m.
    """

    parent: int
    kind: str
    twist: Array
    rotation: Array
    position: Array
    q: int
    v: int
    unit: slice | None
    mass: float
    moment: Array
    inertia: Array
    mimics: bool = False
    ratio: float = 1.0
    offset: float = 0.0

    @property
    def columns(self) -> Array:
        """Spatial velocity (6, n) of the body by each velocity from index v on, in its own axes.

        For a joint that mimics it is by the velocity of the joint that it follows.
        """
        return self.ratio * self.twist


class Tree(NamedTuple):
    """The bodies of a robot.

    Attributes:
        bodies: Body of joint i + 1 at index i.
        gravity: Gravity (3,), m/s^2.
        armature: Inertia (nv,) of rotors on the diagonal of M, kg m^2 or kg.
    """

    bodies: tuple[MovingBody, ...]
    gravity: Array
    armature: Array


def read_tree(model: Any) -> Tree:
    """Return the bodies of a `pinocchio.Model`, with gravity and armature, as copies."""
    bodies = tuple(_read_body(model, i) for i in range(1, model.njoints))
    return Tree(bodies, np.array(model.gravity.linear), np.array(model.armature))


def _read_body(model: Any, i: int) -> MovingBody:
    joint, placement, inertia = model.joints[i], model.jointPlacements[i], model.inertias[i]
    data = joint.createData()
    joint.calc(data, np.zeros(model.nq))  # the motion subspace is the same everywhere
    kind, q = find_joint_kind(joint), int(joint.idx_q)
    unit = None if kind.unit is None else slice(q + kind.unit.start, q + kind.unit.stop)
    return MovingBody(
        parent=int(model.parents[i]) - 1,
        kind=kind.name,
        twist=np.array(data.S).reshape(6, joint.nv),
        rotation=np.array(placement.rotation),
        position=np.array(placement.translation),
        q=q,
        v=int(joint.idx_v),
        unit=unit,
        **_read_inertia(inertia),
    )


def replace_bodies(tree: Tree, inertias: Mapping[int, Any]) -> Tree:
    """Return a tree with other inertias of some bodies.

    Args:
        tree: The tree, as `read_tree` returns it.
        inertias: Of each body a `pinocchio.Inertia`, by the index of its joint, from 1 on.
    """
    bodies = list(tree.bodies)
    for i, inertia in inertias.items():
        bodies[i - 1] = bodies[i - 1]._replace(**_read_inertia(inertia))
    return tree._replace(bodies=tuple(bodies))


def _read_inertia(inertia: Any) -> dict[str, Any]:
    """Return mass, moment and inertia of a `MovingBody` from a `pinocchio.Inertia`."""
    return {
        "mass": float(inertia.mass),
        "moment": inertia.mass * np.array(inertia.lever),
        "inertia": np.array(inertia.matrix()[3:, 3:]),
    }


def check_inertias(model: Any) -> None:
    """Check masses and inertias of a `pinocchio.Model`.

    Raises:
        InputError: A mass is negative, or an inertia is not positive semidefinite.
    """
    for frame in model.frames:
        if not frame.inertia.mass >= 0.0:
            raise InputError(
                f"the mass at {frame.name!r} must not be negative, got {frame.inertia.mass} kg"
            )
    masses = [float(inertia.mass) for inertia in model.inertias]
    check_moved_inertias(tuple(model.names)[1:], masses, compute_moments(model))


def compute_moments(model: Any) -> list[Array]:
    """Return the principal moments of inertia (3,) that each joint of a model moves, kg m^2."""
    return [np.linalg.eigvalsh(inertia.inertia) for inertia in model.inertias]


def check_moved_inertias(
    joints: Sequence[str], masses: Sequence[float], moments: Sequence[Array]
) -> None:
    """Check masses and inertias of bodies, links that are fixed to each other together.

    Only these matter to the motion.

    Args:
        joints: Names (n,) of the joints, without the world.
        masses: Masses (n + 1,) that the world and the joints move, kg.
        moments: Principal moments (3,) of each, kg m^2, see `compute_moments`.

    Raises:
        InputError: A mass is negative, or an inertia is not positive semidefinite.
    """
    largest = max(float(np.abs(own).max()) for own in moments)
    for name, mass, own in zip(("universe", *joints), masses, moments, strict=True):
        if not mass >= 0.0:
            raise InputError(
                f"the mass that joint {name!r} moves must not be negative, got {mass} kg"
            )
        if not own[0] >= -_NEGATIVE_MOMENT * largest:
            raise InputError(
                f"the inertia that joint {name!r} moves must be positive semidefinite, but about "
                f"its center it has the principal moments {own.tolist()} kg m^2"
            )


def find_massless_velocity(mass_matrix: Array) -> int | None:
    """Return the index of a velocity that makes a mass matrix singular, None if it is regular.

    Velocities are eliminated from the last to the first, which leaves at each joint the inertia
    that it feels while the joints behind it are free.

    Args:
        mass_matrix: M (nv, nv), with the joints numbered from the root to the ends.
    """
    rest = np.array(mass_matrix)
    for i in reversed(range(len(rest))):
        own = rest[i, i]
        if not own > _LEAST_OWN_INERTIA * mass_matrix[i, i]:
            return i
        rest[:i, :i] -= np.outer(rest[:i, i], rest[i, :i]) / own
    return None
