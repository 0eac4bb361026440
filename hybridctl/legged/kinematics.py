r"""The places of feet, seen from the inertial frame, as joint angles say.

With poses :math:`(R_i, p_i)` of the inertial frame and :math:`(R_f, p_f)` of a foot on a robot
whose root is held, :math:`s = R_i^T (p_f - p_i)` and :math:`C = R_i^T R_f`. With the spatial
Jacobians (v, w) of both at the origin and their difference,

.. math:: \dot s = R_i^T (\Delta v + \Delta w \times p_f), \qquad
          \dot C = [R_i^T \Delta w]_\times C .
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import (
    Array,
    check_flag,
    check_instance,
    check_number,
    check_sequence,
    quote,
)
from hybridctl.base.errors import InputError
from hybridctl.legged.compiled_formulas import build_feet
from hybridctl.mechanics.contacts.found_contacts import find_spheres
from hybridctl.mechanics.multibody.bodies import Frame
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.symbolic.compiled_function import CompiledFunction


@dataclass(frozen=True)
class Foot:
    """A frame of the robot that touches the ground.

    Attributes:
        frame: Name of the frame. Its origin is at the height of the ground, or, of a foot that
            rolls, is the centre of a sphere that touches the ground.
        flat: Whether it is a sole, which does not turn while it stands.
        radius: Radius of the sphere in m, or 0 for a point that does not roll. None for the largest
            sphere that the URDF has as a collision shape with its centre at the origin, to a tenth
            of the radius, and 0 where there is none.

    Raises:
        InputError: The frame is no name, `flat` is no truth value, or the radius is negative, or
            positive for a sole.
    """

    frame: str
    flat: bool = False
    radius: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.frame, str) or not self.frame:
            raise InputError(
                f"frame of a foot must be the name of a frame, got {quote(self.frame)}"
            )
        check_flag(f"flat of foot {self.frame!r}", self.flat)
        if self.radius is not None:
            radius = check_number(f"radius of foot {self.frame!r}", self.radius, at_least=0.0)
            if self.flat and radius:
                raise InputError(
                    f"radius of foot {self.frame!r} must be 0, because a flat foot does not roll, "
                    f"got {radius} m"
                )


_CACHED_ANGLES = 4
"""Angles whose feet are remembered: a sample asks for its own, and for those of the one before.

With two, one that was asked for late would push out the one that is asked for next, ever again.
"""
_CENTRE_TOLERANCE = 0.1
"""Distance, relative to its radius, by which a sphere may be off the frame's origin as the foot."""


class FootKinematics(NamedTuple):
    """A foot in the inertial frame by the n joint angles.

    Attributes:
        position: Position (3,), m.
        rotation: Rotation (3, 3).
        twist: Velocity of the position in m/rad, then angular velocity (6, n), both in the axes of
            that frame, by the rates of the angles.
    """

    position: Array
    rotation: Array
    twist: Array

    @property
    def moving(self) -> Array:
        """The velocity (3, n) of the foot by the rates of the joint angles."""
        return self.twist[:3]

    @property
    def turning(self) -> Array:
        """The angular velocity (3, n) of the foot by the rates of the joint angles."""
        return self.twist[3:]


class FeetKinematics(NamedTuple):
    """All feet of a robot in the inertial frame, in their order, with derivatives by the angles.

    Attributes:
        positions: Positions (k, 3), m.
        rotations: Rotations (k, 3, 3).
        twists: Velocities of the positions, then angular velocities (k, 6, n), both in the axes of
            that frame, by the rates of the angles.
        products: Product (3 k, 3 k) of the derivatives of all positions by the angles with its
            transpose, m^2/rad^2: the covariance of the positions for angles of variance one.
        levers: Traces (k,) of its blocks of the feet, m^2/rad^2.
    """

    positions: Array
    rotations: Array
    twists: Array
    products: Array
    levers: Array


class LegKinematics:
    """Computes the feet of a robot from the angles of the joints that they depend on.

    Attributes:
        inertial: Name of the frame of the inertial sensor.
        feet: The feet by the names of their frames, in order.
        joints: Names of the n joints between that frame and the feet, in the order of the angles.
        radii: Radii in m of the spheres with which feet roll, by frame; 0 for those that do not.

    Args:
        robot: The robot, with its root fixed.
        inertial: Name of the frame of the inertial sensor.
        feet: One foot or more, of different frames.

    Raises:
        UnknownNameError: The robot does not have a frame.
        InputError: Feet share a frame, there is none, or a joint between the frames has several
            degrees of freedom.
    """

    def __init__(self, robot: Robot, inertial: str, feet: Sequence[Foot]) -> None:
        self._robot = check_instance("robot", robot, Robot)
        given = [
            check_instance(f"feet[{k}]", foot, Foot)
            for k, foot in enumerate(check_sequence("feet", feet))
        ]
        self.inertial = inertial
        self.feet = {foot.frame: foot for foot in given}
        if not given or len(self.feet) != len(given):
            raise InputError(f"feet must have different frames, and one at least, got {given}")
        self._frames = [robot.frame(name) for name in (inertial, *self.feet)]
        self._fixed = np.array([_homogeneous(frame) for frame in self._frames])
        masks = np.array([robot.supporting(frame.joint) for frame in self._frames])
        self._moved = np.flatnonzero((masks != masks[0]).any(axis=0))
        self._masks = (masks - masks[0])[:, self._moved]
        # Rates of all joints between the frames, by those of the joints that mimic none.
        rates = robot.reduce_columns(np.eye(masks.shape[1]))[self._moved]
        self._columns = np.flatnonzero(rates.any(axis=0))
        self._rates = rates[:, self._columns] if robot.mimics else None
        self.joints = _find_joint_names(robot, self._columns.tolist())
        self.radii = {foot.frame: _find_radius(robot, foot) for foot in given}
        self._neutral, self._still = robot.neutral(), np.zeros(robot.nv)
        self._numbers = {name: k for k, name in enumerate(self.feet)}
        self._sweeps, _ = robot.sweeps([frame.joint for frame in self._frames])
        self._known = deque[tuple[bytes, FeetKinematics]](maxlen=_CACHED_ANGLES)

    @property
    def base(self) -> tuple[Array, Array]:
        """Rotation (3, 3) and position (3,) of the inertial frame in that of the root.

        Raises:
            InputError: A joint is between them.
        """
        frame = self._frames[0]
        if frame.joint:
            raise InputError(f"frame {self.inertial!r} must be fixed to the root of the robot")
        return frame.rotation, frame.position

    def __call__(self, angles: Array, names: Iterable[str]) -> list[FootKinematics]:
        """Return the feet of these names, as arrays of the caller's own.

        Args:
            angles: Joint angles (n,), rad.
            names: Frames of `feet`, in the order of the result.
        """
        feet, numbers = self.find_feet(angles), [self._numbers[name] for name in names]
        return [FootKinematics(*(values[k].copy() for values in feet[:3])) for k in numbers]

    def find_feet(self, angles: Array) -> FeetKinematics:
        """Return all feet by joint angles (n,) in rad, as read-only arrays."""
        key = angles.tobytes()
        for known, feet in self._known:
            if known == key:
                return feet
        feet = self._compute_feet(angles)
        for values in feet:
            values.flags.writeable = False
        self._known.appendleft((key, feet))
        return feet

    def posture(self, angles: Array) -> Array:
        """Return the configuration (nq,) of the robot by angles (n,); other joints are neutral."""
        step = self._still.copy()
        step[self._columns] = angles
        return self._robot.integrate(self._neutral, step)

    def _compute_feet(self, angles: Array) -> FeetKinematics:
        """Return all feet by joint angles (n,) in rad, computed anew."""
        step = self._still.copy()
        step[self._columns] = angles
        # Where each coordinate has its velocity, all joints turn or slide along it.
        plain = len(self._neutral) == len(step)
        q = self._neutral + step if plain else self._robot.integrate(self._neutral, step)
        axes = self._sweeps.axes(self._robot.all_coordinates(q) if self._robot.mimics else q)
        rotations, positions = self._sweeps.places()
        found = self._formula(
            rotations.reshape(-1), positions.reshape(-1), axes.T[self._moved].reshape(-1)
        )
        return FeetKinematics(*(values.copy() for values in found))

    @cached_property
    def _formula(self) -> CompiledFunction:
        return build_feet(self._fixed, self._masks[1:], self._rates)


def _find_radius(robot: Robot, foot: Foot) -> float:
    """Return the radius in m of the sphere with which a foot rolls, 0 for one that does not."""
    if foot.radius is not None or foot.flat:
        return foot.radius or 0.0
    balls = find_spheres(robot, foot.frame)
    around = [
        radius for place, radius in balls if np.linalg.norm(place) < _CENTRE_TOLERANCE * radius
    ]
    return max(around, default=0.0)


def _homogeneous(frame: Frame) -> Array:
    """Return the pose (4, 4) of a frame in its joint."""
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = frame.rotation, frame.position
    return pose


def _find_joint_names(robot: Robot, columns: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the joints with these velocities, each the only one of its joint.

    Raises:
        InputError: A joint has several velocities.
    """
    names = {tuple(robot.velocities(name)): name for name in robot.joint_names}
    for column in columns:
        if (column,) not in names:
            raise InputError(
                "every joint between inertial frame and feet must have one degree of freedom, but "
                f"velocity {column} of the robot is one of several; its root must be fixed"
            )
    return tuple(names[(column,)] for column in columns)
