"""What a robot tells of its bodies: their constants, where they are, and how they move."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.mechanics.multibody.joints import kind_of

_INDEFINITE = 1e-9
"""Of the largest principal moment of all joints: what rounding leaves of a plate's or a rod's."""


_LEAST_OWN_INERTIA = 1e-12
"""Inertia of a velocity that the later ones leave, relative to its entry of the mass matrix, below
which it is none: rounding of an elimination leaves 1e-15."""


class Frame(NamedTuple):
    """A frame fixed to the body of a joint (0 is the world): rotation (3, 3), position (3,)."""

    joint: int
    rotation: Array
    position: Array


class Body(NamedTuple):
    """All links fixed to each other that a joint moves: mass in kg, center of mass (3,) in m.

    rotation (3, 3) turns the axes of the frame by which it was asked for into those of the joint,
    in which `center` is.
    """

    joint: int
    rotation: Array
    mass: float
    center: Array


class BodyKinematics(NamedTuple):
    """Kinematics in world coordinates: Jacobian (6, nv), its rate, and poses of joints asked for.

    A spatial velocity is (linear velocity of the point at the world origin, angular velocity).
    Poses are homogeneous transforms (k, 4, 4) from joint frames to the world.
    """

    jacobian: Array
    jacobian_rate: Array
    poses: Array


class MotionDerivatives(NamedTuple):
    """Spatial velocity and acceleration of joints in world coordinates, and their derivatives.

    velocity, acceleration (k, 6); velocity_q, acceleration_q, acceleration_v, jacobian
    (k, 6, nv), where D_v of the velocity is the Jacobian.
    """

    velocity: Array
    acceleration: Array
    jacobian: Array
    velocity_q: Array
    acceleration_q: Array
    acceleration_v: Array


class MovingBody(NamedTuple):
    """A body and the joint that moves it, with coordinates from q on and velocities from v on.

    Kinds are "screw", along and about one axis; "circle", about an axis, with its cosine and sine
    as coordinates; "translation"; "planar", "spherical" and "floating", with a unit circle or
    quaternion among the coordinates: `unit`, places in q. `twist` (6, nv), linear before angular,
    is what the velocity does to the body, in its own axes.

    `parent` is the index of the parent in the tree, -1 for the world; rotation (3, 3) and position
    (3,) place the joint in it, in m. mass in kg; its first moment (3,) in kg m and inertia (3, 3)
    in kg m^2 are about the origin of the body's frame.

    A joint that `mimics` has no coordinate and velocity of its own: q and v are those of the joint
    that it follows, and its own are ratio * q + offset and ratio * v.
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
        """What the velocities at index v on do to the body, (6, nv) in its own axes."""
        return self.ratio * self.twist


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
    kind, q = kind_of(joint), int(joint.idx_q)
    unit = None if kind.unit is None else slice(q + kind.unit.start, q + kind.unit.stop)
    return MovingBody(
        int(model.parents[i]) - 1,
        kind.name,
        np.array(data.S).reshape(6, joint.nv),
        np.array(placement.rotation),
        np.array(placement.translation),
        q,
        int(joint.idx_v),
        unit,
        float(inertia.mass),
        inertia.mass * np.array(inertia.lever),
        np.array(inertia.matrix()[3:, 3:]),
    )


def check_inertias(model: Any) -> None:
    """Raise `InputError` for a negative mass in a Pinocchio model, or joints that move no body.

    Inertias are judged as the motion sees them, links that are fixed to each other together.
    """
    for frame in model.frames:
        if not frame.inertia.mass >= 0.0:
            raise InputError(
                f"the mass at {frame.name!r} must not be negative, got {frame.inertia.mass} kg"
            )
    moved = [np.linalg.eigvalsh(inertia.inertia) for inertia in model.inertias]
    largest = max(float(np.abs(moments).max()) for moments in moved)
    for name, inertia, moments in zip(model.names, model.inertias, moved, strict=True):
        if not inertia.mass >= 0.0:
            raise InputError(
                f"the mass that joint {name!r} moves must not be negative, got {inertia.mass} kg"
            )
        if not moments[0] >= -_INDEFINITE * largest:
            raise InputError(
                f"the inertia that joint {name!r} moves must be positive semidefinite, but about "
                f"its center it has the principal moments {moments.tolist()} kg m^2"
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
