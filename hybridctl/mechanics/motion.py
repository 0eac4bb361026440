"""What a robot tells of its motion: frames, Jacobians, and their derivatives."""

from __future__ import annotations

from typing import NamedTuple

from hybridctl.checks import Array


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


class Motion(NamedTuple):
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
