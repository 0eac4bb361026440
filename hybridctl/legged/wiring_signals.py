"""Faults of joint angles and accelerometer by their mean values: units, gravity, its direction.

They do not need steps, so that logs of standing robots are checked as well.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
from scipy.constants import g as STANDARD_GRAVITY

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.wiring_fault import ACCELEROMETER, ANGLES, INERTIAL, WiringFault

_LEAST_GRAVITY = 0.3
"""Mean specific force, relative to gravity, below which the sensor removes gravity. A robot that
lies on its side still measures all of it."""
_GRAVITY_ERROR = 0.7
"""Deviation of the mean specific force from gravity that is named, m/s^2. A bias of 0.3, ten times
what the filter expects, stays below it, as do recorded logs (0.02 and 0.11)."""
_GRAVITY_UNIT_ERROR = 0.1
"""Relative deviation from a known ratio of units at which it still counts as that ratio."""
LARGEST_TILT = 50.0
"""Angle between measured gravity and the side on which the feet are, deg. Slopes and crouching
stay below 30; the smallest mistake of axes is 90."""

_FULL_TURN = 2.0 * np.pi
"""Median size of a joint angle, rad, above which angles are in degrees: no leg turns as far."""


def check_angle_unit(angles: Series) -> WiringFault | None:
    """Return the fault of joint angles (n, m) that are in degrees; None if they are in rad."""
    size = float(np.median(np.abs(angles.values), axis=0).max())
    if not size > _FULL_TURN:
        return None
    return WiringFault(
        ANGLES,
        "look like degrees",
        f"multiply them by {np.pi / 180.0:.4g}, by unit deg in the mapping",
        f"one is near {size:.0f} half of the time, in rad that were {size / _FULL_TURN:.0f} turns",
    )


def check_accelerometer(
    force: Array, up: Array, gravity: float, axes: Array | None
) -> WiringFault | None:
    """Return the fault of an accelerometer by its mean specific force; None without one.

    Args:
        force: Mean specific force (3,) in the axes of the sensor, m/s^2.
        up: Direction (3,) away from the feet, in the same axes.
        gravity: Size of gravity, m/s^2.
        axes: Matrix (3, 3) by which rates of the gyroscope are to be multiplied so that loaded feet
            stand, the identity for a right gyroscope; None where it is not known.
    """
    size = float(np.linalg.norm(force))
    mean = f"its mean is {size:.3g} m/s^2 instead of {gravity:.4g}"
    units = {"g": STANDARD_GRAVITY, "mg": 1e-3 * STANDARD_GRAVITY, "cm/s^2": 1e-2}
    for unit, factor in units.items():
        if abs(factor * size / gravity - 1.0) < _GRAVITY_UNIT_ERROR:
            return WiringFault(
                ACCELEROMETER,
                f"looks like {unit}",
                f"multiply it by {factor:.5g}, by unit {unit} in the mapping",
                f"{mean}, then {factor * size:.3g}",
            )
    if size < _LEAST_GRAVITY * gravity:
        return WiringFault(
            ACCELEROMETER,
            "lacks gravity",
            "log the specific force, without compensation of gravity: upwards at rest",
            mean,
        )
    if abs(size - gravity) > _GRAVITY_ERROR:
        return WiringFault(
            ACCELEROMETER,
            "has a wrong scale or a large bias",
            f"calibrate it, or multiply it by {gravity / size:.3g}",
            mean,
        )
    return _check_gravity_direction(force / size, up, axes)


def _check_gravity_direction(direction: Array, up: Array, axes: Array | None) -> WiringFault | None:
    """Return the fault of an accelerometer whose mean force does not point away from the feet.

    Args:
        direction: Direction (3,) of the mean specific force.
        up: Direction (3,) away from the feet.
        axes: As in `check_accelerometer`.
    """

    def tilt(turn: Array) -> float:
        return float(np.degrees(np.arccos(np.clip(turn @ direction @ up, -1.0, 1.0))))

    identity = np.eye(3)
    logged = tilt(identity)
    if not logged > LARGEST_TILT:
        return None
    if axes is not None and not np.allclose(axes, identity) and tilt(axes) < LARGEST_TILT:
        return WiringFault(
            INERTIAL,
            f"is mounted otherwise, with axes {describe_map(axes)}",
            f"turn its frame in the URDF: its x, y, z are the {describe_map(axes.T)} of the log",
            f"gravity is {logged:.0f} deg off upright, then {tilt(axes):.0f}, and the feet stand",
        )
    turns = list_signed_permutations()
    # Of turns with the same tilt the one that changes the fewest axes.
    best = min(turns, key=lambda turn: tilt(turn) + 1e-3 * float(np.abs(turn - identity).sum()))
    if tilt(-identity) < LARGEST_TILT:
        best = -identity  # a wrong sign is likelier than exchanged axes
    if np.array_equal(best, -identity):
        cause = "points down"
        remedy = "negate it" if axes is not None else "negate it, or turn the sensor's frame over"
    else:
        cause = "points sideways"
        remedy = f"map its axes to {describe_map(best)}, or turn the sensor's frame"
    return WiringFault(
        ACCELEROMETER,
        cause,
        remedy,
        f"gravity is {logged:.0f} deg off the side away from the feet, then {tilt(best):.0f}",
    )


def list_signed_permutations() -> list[Array]:
    """Return the 48 matrices (3, 3) that exchange axes and their signs, the identity first."""
    return [
        np.eye(3)[list(order)] * np.array(signs)[:, None]
        for order in permutations(range(3))
        for signs in product((1.0, -1.0), repeat=3)
    ]


def describe_map(turn: Array) -> str:
    """Return in words the columns that a signed permutation (3, 3) yields, as "(y, -x, z)"."""
    names = []
    for row in turn:
        column = int(np.abs(row).argmax())
        names.append(("-" if row[column] < 0.0 else "") + "xyz"[column])
    return f"({', '.join(names)})"
