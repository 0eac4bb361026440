"""Limits of joint positions: which coordinates a robot description does not allow.

Limits of positions are no part of the dynamics, unless `contact_system` makes stops of them. A
start beyond them is a mistake more often than not, such as degrees for radians.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.checks import Array, format_count
from hybridctl.base.errors import JointLimitWarning
from hybridctl.mechanics.multibody.joints import make_coordinate_labels
from hybridctl.mechanics.multibody.passive import JointIndices

_BEYOND = 2e-3
"""Excess in rad or m that is not reported: descriptions have 3.14 for pi."""
_UNLIMITED = 1e6
"""Size in rad or m from which on a number is no limit: Pinocchio has the largest float for none."""
_UNLIMITED_EFFORT = 1e9
"""Effort in N m or N from which on a number is no limit: Pinocchio has a huge one for none."""
_LISTED = 3
"""Number of joints that a message describes; the others are counted."""


class JointLimit(NamedTuple):
    """The limits of a joint of one degree of freedom.

    Attributes:
        name: Of the joint.
        coordinate: Its index in q.
        turns: Whether it is an angle in rad, otherwise it is a length in m.
        lower: Least position, in rad or m; -inf for none.
        upper: Greatest position, in rad or m; inf for none.
    """

    name: str
    coordinate: int
    turns: bool
    lower: float
    upper: float

    def describe_excess(self, value: float) -> str:
        """Return how a position is beyond the limits, "" for one that is not.

        Args:
            value: The position, in rad or m.
        """
        if self.lower - _BEYOND <= value <= self.upper + _BEYOND:
            return ""
        unit = "rad" if self.turns else "m"
        return (
            f"joint {self.name!r} is at {value:.6g} {unit}, outside of its limits "
            f"[{self.lower:.6g}, {self.upper:.6g}] {unit}{self._describe_degrees(value)}"
        )

    def describe_turns(self, value: float) -> str:
        """Return that an angle without limits is more than a turn, "" for any other position.

        Args:
            value: The position, in rad or m.
        """
        limited = math.isfinite(self.lower) or math.isfinite(self.upper)
        if limited or not self.turns or abs(value) <= 2.0 * math.pi:
            return ""
        return (
            f"joint {self.name!r} is at {value:.6g} rad, more than a turn"
            f"{self._describe_degrees(value)}"
        )

    def _describe_degrees(self, value: float) -> str:
        """Return what the number would be if it were in degrees, where that is more likely."""
        angle = math.radians(value)
        if not self.turns or abs(value) <= math.pi or not self.lower <= angle <= self.upper:
            return ""
        return f"; angles are in rad: {value:.6g} degrees are {angle:.6g} rad"


def read_joint_limits(
    model: Any, tree: JointIndices, joints: JointIndices
) -> dict[str, JointLimit]:
    """Return the limits of all joints with one coordinate of their own.

    Args:
        model: The `pinocchio.Model`.
        tree: Indices of joints in the coordinates of the model; None for joints of several degrees
            of freedom, which are skipped.
        joints: Indices of joints in the coordinates of the robot, in which some joints may mimic.

    Returns:
        Limits by name of joint. They are infinite where the lower one is not below the upper one,
        and where the model has a number of at least 1e6 rad or m.
    """
    labels, found = make_coordinate_labels(model).positions, {}
    for name, indices in tree.items():
        own = joints[name]
        if indices is None or own is None:
            continue
        i = indices[0]
        lower, upper = float(model.lowerPositionLimit[i]), float(model.upperPositionLimit[i])
        if not lower < upper:  # URDF has zeros where limits are left out
            lower, upper = -math.inf, math.inf
        lower = lower if lower > -_UNLIMITED else -math.inf
        upper = upper if upper < _UNLIMITED else math.inf
        found[name] = JointLimit(name, own[0], labels[i].endswith("[rad]"), lower, upper)
    return found


def read_motor_efforts(model: Any, velocities: Sequence[int]) -> Array:
    """Return the limits of motors from a model, (nu,) in N m or N, read-only; inf for none.

    Files often have an effort of 0 where it was never filled in: no motor could move anything.

    Args:
        model: The `pinocchio.Model`.
        velocities: Index of the velocity that each motor drives.
    """
    given = np.array(model.upperEffortLimit, dtype=np.float64)[list(velocities)]
    efforts = np.where((given > 0.0) & (given < _UNLIMITED_EFFORT), given, np.inf)
    efforts.flags.writeable = False
    return efforts


def describe_excesses(limits: Iterable[JointLimit], q: Array) -> str:
    """Return how joints are beyond their limits at a configuration, "" if none is.

    Args:
        limits: Of the joints that are looked at.
        q: Configuration (nq,).
    """
    return _list_reports([limit.describe_excess(float(q[limit.coordinate])) for limit in limits])


def warn_of_posture(positions: Iterable[tuple[JointLimit, float]]) -> None:
    """Give one `JointLimitWarning` for joints beyond their limits, or at angles like degrees.

    The warning is attributed to the code that called the function calling this one, which is the
    user's.

    Args:
        positions: Joints with their positions, in rad or m.
    """
    report = _list_reports(
        [limit.describe_excess(value) or limit.describe_turns(value) for limit, value in positions]
    )
    if report:
        warnings.warn(f"posture: {report}", JointLimitWarning, stacklevel=3)


def _list_reports(reports: Iterable[str]) -> str:
    """Return the first few of the reports that are not empty, and how many there are besides."""
    found = [report for report in reports if report]
    more = (
        f"; and {format_count(len(found) - _LISTED, 'joint')} more" if len(found) > _LISTED else ""
    )
    return "; ".join(found[:_LISTED]) + more
