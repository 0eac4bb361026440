r"""What plants of all engines share: pushes on bodies, and boxes that stand about.

`EnginePlant` is the base of `MujocoPlant` and `DrakePlant`: a `Plant` that can be pushed. The
models of both take a `Scenery`, boxes fixed to the world, on which every contact of the robot can
stand, beside its own surface: steps, ramps, obstacles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_count, check_instance, check_number, check_vector
from hybridctl.base.errors import InputError
from hybridctl.hybrid.plant import Plant
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.push import Wrench

POINT_RADIUS = 1e-3
"""Radius of the sphere that stands for a contact point, m. A choice: engines have no points. The
surface of the contact and boxes of the scenery are smaller by it: gaps are those of the point."""
SLAB_HALF_SIDES = (2.0, 2.0, 0.1)
"""Half sides of the box that stands for the plane of a moving body, m; the last is normal to it. A
choice: engines have endless planes in the world alone."""
THICKNESS = 0.2
"""Thickness of ramps, m. A choice: contacts sink into them by far less."""


class EnginePlant(Plant):
    """A plant by a physics engine, which can be pushed: the base of `MujocoPlant` and `DrakePlant`.

    Channels of its samples are "normal_force" (c,) in N and "contact" (c,), flags of the contacts
    that press. The state is that of the end of the period. The forces are those of the engine's
    last step, which has led to this state; after `reset` they are those at the state itself.

    Life cycle: `reset`, then `step` for each period. `push` and `clear_pushes` may be called at any
    time; pushes stay for later runs.

    Args:
        robot: The robot that is pushed.
        period: Time between samples, s; positive.
    """

    def __init__(self, robot: Robot, period: float) -> None:
        self._robot = robot
        self._period = check_number("period", period, above=0.0)
        self._wrenches: list[Wrench] = []

    @property
    def period(self) -> float:
        """The time between two samples, s."""
        return self._period

    def push(
        self,
        body: str,
        force: ArrayLike,
        start: float,
        end: float,
        at: ArrayLike = (0.0, 0.0, 0.0),
        moment: ArrayLike = (0.0, 0.0, 0.0),
    ) -> Wrench:
        """Push a body for a while, in this run and all later ones.

        Args:
            body: Name of a frame of the robot.
            force: Force (3,), N, in world axes, whatever the body does.
            start: Time at which it begins, s, as of the samples.
            end: Time at which it ends, s, after its start.
            at: Point (3,) where it acts, m, in the frame, moving with it.
            moment: Moment (3,), N m, in world axes, besides the force.

        Returns:
            The push.

        Raises:
            InputError: It has no force and no moment, does not end after its start, or is on a
                frame that is fixed to the world.
            UnknownNameError: The robot has no such frame.
        """
        if self._robot.frame(body).joint == 0:
            raise InputError(f"body must move, but {body!r} is fixed to the world")
        wrench = Wrench(body, force, start, end, at, moment)
        self._wrenches.append(wrench)
        return wrench

    def clear_pushes(self) -> None:
        """Take back all pushes."""
        self._wrenches.clear()

    def _is_pushed(self, time: float) -> bool:
        """Return whether a push acts during the period that begins at a time, s."""
        end = time + self._period
        return any(wrench.start < end and wrench.end > time for wrench in self._wrenches)

    def _list_active_pushes(self, time: float, step: float) -> list[tuple[Wrench, float]]:
        """Return the pushes during a step of the engine, each with its share of the step.

        A push that begins or ends within a step acts for the whole of it with this share of its
        force, so that its impulse is right.

        Args:
            time: Start of the step, s.
            step: Length of the step, s.
        """
        found = []
        for wrench in self._wrenches:
            share = (min(wrench.end, time + step) - max(wrench.start, time)) / step
            if share > 1e-9:  # what rounding leaves of times that are the ends of steps
                found.append((wrench, share))
        return found


@dataclass(frozen=True, eq=False)
class Obstacle:
    """A box that is fixed to the world.

    Attributes:
        center: Its centre (3,) in the world, m.
        sides: Lengths (3,) of its sides along its own axes, m.
        pitch: Angle about +y by which it is turned, rad; positive lowers its end at +x.
        yaw: Angle about +z by which it is turned after that, rad.

    Raises:
        InputError: A side is not longer than zero.
    """

    center: Any
    sides: Any
    pitch: float = 0.0
    yaw: float = 0.0

    def __post_init__(self) -> None:
        for name in ("center", "sides"):
            object.__setattr__(self, name, check_vector(name, getattr(self, name), 3))
        if not (self.sides > 0.0).all():
            raise InputError(f"sides must be longer than 0, got {self.sides.tolist()}")
        check_number("pitch", self.pitch)
        check_number("yaw", self.yaw)

    @property
    def rotation(self) -> Array:
        """Orientation (3, 3) of its axes in the world."""
        (c, s), (d, e) = (
            (np.cos(self.pitch), np.sin(self.pitch)),
            (np.cos(self.yaw), np.sin(self.yaw)),
        )
        pitch = np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])
        yaw = np.array([[d, -e, 0.0], [e, d, 0.0], [0.0, 0.0, 1.0]])
        return np.asarray(yaw @ pitch)

    @property
    def pose(self) -> Array:
        """Pose (4, 4) in the world."""
        return make_pose(self.rotation, self.center)


Scenery = tuple[Obstacle, ...]
"""Boxes that stand about."""


def check_scenery(scenery: object) -> Scenery:
    """Return boxes, checked.

    Args:
        scenery: What a user gives.

    Raises:
        InputError: It is no list or tuple of `Obstacle`.
    """
    if not isinstance(scenery, list | tuple):
        raise InputError(f"scenery must be a sequence of Obstacle, got {scenery!r}")
    return tuple(check_instance(f"scenery[{k}]", box, Obstacle) for k, box in enumerate(scenery))


def make_steps(
    start: float, *, rise: float, depth: float, count: int, width: float = 4.0, base: float = 0.0
) -> Scenery:
    """Return steps that go up along x.

    Args:
        start: Where the first riser is, m.
        rise: Height of each step, m.
        depth: Depth of each tread, m; the last one is twice as deep.
        count: Number of steps.
        width: Width along y, m.
        base: Height of the ground, m.

    Returns:
        A box for each step, from its riser to the end of the last tread and down to the ground.

    Raises:
        InputError: Rise, depth or width is not positive, or `count` is no whole number from 1 on.
    """
    for name, value in (("rise", rise), ("depth", depth), ("width", width)):
        check_number(name, value, above=0.0)
    found = []
    for k in range(check_count("count", count)):
        length = (count + 1 - k) * depth
        height = (k + 1) * rise
        center = (start + k * depth + 0.5 * length, 0.0, base + 0.5 * height)
        found.append(Obstacle(center, (length, width, height)))
    return tuple(found)


def make_ramp(
    start: float, *, slope: float, length: float, width: float = 4.0, base: float = 0.0
) -> Scenery:
    """Return a ramp that goes up along x from an edge on the ground.

    Args:
        start: Where the edge is, m.
        slope: Angle of its face, rad; negative goes down.
        length: Length of its face, m.
        width: Width along y, m.
        base: Height of the ground at the edge, m.

    Raises:
        InputError: Length or width is not positive.
    """
    for name, value in (("length", length), ("width", width)):
        check_number(name, value, above=0.0)
    face = np.array([np.cos(slope), 0.0, np.sin(slope)])
    normal = np.array([-np.sin(slope), 0.0, np.cos(slope)])
    center = np.array([start, 0.0, base]) + 0.5 * length * face - 0.5 * THICKNESS * normal
    return (Obstacle(center, (length, width, THICKNESS), pitch=-slope),)


def make_pose(rotation: Array, position: ArrayLike) -> Array:
    """Return the pose (4, 4) of a rotation (3, 3) and a position (3,)."""
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, position
    return pose


def rotate_to_normal(normal: Array) -> Array:
    """Return a rotation (3, 3) whose third column is the unit normal (3,); the others are any."""
    # The axis that is farthest from the normal: the cross product is not small.
    least = np.eye(3)[int(np.abs(normal).argmin())]
    first = np.cross(least, normal)
    first /= np.linalg.norm(first)
    return np.column_stack([first, np.cross(normal, first), normal])
