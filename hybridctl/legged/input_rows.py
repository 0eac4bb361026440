"""Rows of the input of a legged base, made one inertial sample after the other.

A log and a live stream use the same arithmetic, so that both give the same numbers to the last bit.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.legged.space import SENSED
from hybridctl.legged.system import GAP, LeggedBase

ROUNDING = 1e-9
"""Seconds by which stamps may differ from what they mean; also the least step that divides."""


class _AnglesRow(NamedTuple):
    """Joint angles and the feet by them.

    Attributes:
        angles: Joint angles (n,), rad.
        turning: Angular velocity (k, 3, n) of the feet by the rates of the joints.
        moving: Mean velocity (3 k,) of the feet against the inertial frame over the window, m/s.
    """

    angles: Array
    turning: Array
    moving: Array


class InputRows:
    """Makes rows of the input from inertial samples and joint angles in order of their stamps.

    Life cycle: `add_angles` for each row of angles up to the stamp of an inertial sample, then
    `add_inertial` for that sample, which returns the finished row of the sample before. One row of
    angles has to be there before the first inertial sample; if it is later than that, the feet of
    the first sample are taken to be where it says.

    Args:
        base: Base and feet.
        window: Time over which velocities of feet are means, s.
        longest_step: Time between two inertial samples above which samples are missing, s.
    """

    def __init__(self, base: LeggedBase, window: float, longest_step: float) -> None:
        self._base, self._window, self._longest_step = base, window, longest_step
        self._times, self._places = list[float](), list[Array]()  # of angles in the last window
        self._last: _AnglesRow | None = None  # None before the first row of angles
        self._open: tuple[float, Array, _AnglesRow] | None = None  # the last inertial sample

    def copy(self) -> InputRows:
        """Return rows that go on from the same samples."""
        other = InputRows(self._base, self._window, self._longest_step)
        other._times, other._places = self._times.copy(), self._places.copy()
        other._last, other._open = self._last, self._open
        return other

    def add_angles(self, time: float, angles: Array) -> None:
        """Take a row of joint angles (n,) in rad, measured at a time in s."""
        feet = self._base.kinematics.find_feet(angles)
        places = feet.positions
        self._times.append(time)
        self._places.append(places)
        # The row before is kept even if it is older than the window: a mean needs two rows.
        first = bisect_left(self._times, time - self._window - ROUNDING)
        first = min(first, max(len(self._times) - 2, 0))
        del self._times[:first], self._places[:first]
        moving = (places - self._places[0]) / max(time - self._times[0], ROUNDING)
        self._last = _AnglesRow(angles, feet.twists[:, 3:], moving.ravel())

    def add_inertial(self, time: float, inertial: Array) -> Array | None:
        """Add an inertial sample, and return the row of the input that is held until its time.

        Args:
            time: Stamp, s.
            inertial: Rate in rad/s and specific force in m/s^2 (6,).

        Returns:
            The row (nu,) of the sample before; None at the first sample.
        """
        assert self._last is not None
        before, self._open = self._open, (time, inertial, self._last)
        if before is None:
            return None
        began, values, feet = before
        step = time - began
        turning = (feet.turning + self._last.turning).reshape(len(feet.moving), -1)
        spins = turning.dot(self._last.angles - feet.angles) * (0.5 / max(step, ROUNDING))
        gap = step if step > self._longest_step else 0.0
        return self._join(0.5 * (values + inertial), gap, feet, spins)

    def last_row(self) -> Array:
        """Return the row (nu,) of the last sample as if nothing came after it.

        Corrections at that sample use it: they read no more than its joint angles.
        """
        assert self._open is not None
        _, inertial, feet = self._open
        return self._join(inertial, 0.0, feet, 0.0)

    def _join(self, inertial: Array, gap: float, feet: _AnglesRow, spins: Array | float) -> Array:
        """Return a row (nu,) of the input; entries that say how feet creep are zero.

        Args:
            inertial: Rate and specific force (6,) over the row.
            gap: Time in s without a sample before the next row; 0 for none.
            feet: Joint angles at the begin of the row.
            spins: Angular velocities (3 k,) of the feet, rad/s.
        """
        base = self._base
        row = np.zeros(base.nu)
        row[SENSED], row[GAP], row[base.angle_columns] = inertial, gap, feet.angles
        row[base.all_turning_columns], row[base.all_moving_columns] = spins, feet.moving
        return row
