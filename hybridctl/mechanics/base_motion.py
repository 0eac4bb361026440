r"""Shifts and turns of a whole robot with a floating base, as free motions of a symmetry.

Coordinates of the base are its position p in the world and its quaternion; its velocity and its
perturbations are in its own axes. On level ground every motion goes on being one if the robot is
shifted along a horizontal axis e, or turned about the vertical z:

.. math:: p \mapsto p + a e, \qquad p \mapsto R_z(a)\, p,\quad R \mapsto R_z(a)\, R .

In axes of the base the directions are :math:`(R^T e, 0)` and
:math:`(R^T (z \times p), R^T z)`. Velocities do not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError
from hybridctl.mechanics.multibody.robot import Robot

Way = Literal["x", "y", "yaw"]
"""Shift along an axis of the world in m, or turn about the vertical in rad."""
_WAYS = ("x", "y", "yaw")


@dataclass(frozen=True)
class BaseMotion:
    """Shift or turn of a robot with a floating base; a `FreeMotion` of a `Symmetry`.

    Attributes:
        way: Which shift or turn.
        coordinate: Index of the first of the seven coordinates of the base.
        velocity: Index of the first of the six velocities of the base.
        ndx: Dimension of perturbations of states.
    """

    way: Way
    coordinate: int
    velocity: int
    ndx: int

    @staticmethod
    def of(robot: Robot, joint: str, way: Way) -> BaseMotion:
        """Return a motion of a robot.

        Args:
            robot: The robot.
            joint: Name of its floating joint.
            way: Which shift or turn.

        Raises:
            UnknownNameError: There is no such joint or motion.
            InputError: The joint is not a floating one.
        """
        check_member("free motion of a base", way, _WAYS)
        names = robot.joint_names
        body = robot.tree().bodies[names.index(check_member("joint in free", joint, names))]
        if body.kind != "floating":
            raise InputError(f"joint {joint!r} in free must be floating, got {body.kind}")
        return BaseMotion(way, body.q, body.v, 2 * robot.nv)

    def direction(self, x: Array) -> Array:
        """Return the perturbation (ndx,) per m or rad by which a state x (nx,) moves."""
        i = self.coordinate
        back = _rotate(x[i + 3 : i + 7]).T
        linear, angular = np.zeros(3), np.zeros(3)
        if self.way == "yaw":
            linear, angular = back @ np.array([-x[i + 1], x[i], 0.0]), back[:, 2]
        else:
            linear = back[:, _WAYS.index(self.way)]
        result = np.zeros(self.ndx)
        result[self.velocity : self.velocity + 6] = np.concatenate([linear, angular])
        return result

    def move(self, states: Array, amount: float) -> Array:
        """Return states moved by an amount, m or rad.

        Args:
            states: States (nx,), or several in columns (nx, k).
            amount: The amount.
        """
        i, moved = self.coordinate, np.array(states, dtype=np.float64)
        if self.way != "yaw":
            moved[i + _WAYS.index(self.way)] += amount
            return moved
        c, s = np.cos(amount), np.sin(amount)
        x, y = states[i], states[i + 1]
        moved[i], moved[i + 1] = c * x - s * y, s * x + c * y
        # The quaternion (0, 0, s, c) of half the angle, times that of the base: x, y, z, w.
        c, s = np.cos(0.5 * amount), np.sin(0.5 * amount)
        a, b, d, w = (states[i + k] for k in range(3, 7))
        moved[i + 3], moved[i + 4] = c * a - s * b, c * b + s * a
        moved[i + 5], moved[i + 6] = c * d + s * w, c * w - s * d
        return moved


def _rotate(quaternion: Array) -> Array:
    """Return the rotation (3, 3) of a unit quaternion x, y, z, w."""
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
