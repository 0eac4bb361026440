"""Samples of one quantity over time: the form of a channel, from the file to the filter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import (
    Array,
    Indices,
    check_array,
    check_member,
    convert_to_floats,
    quote,
)
from hybridctl.base.errors import InputError

ROLES = ("measurement", "input", "truth")
QUATERNION_COLUMNS = ("qx", "qy", "qz", "qw")


@dataclass(frozen=True, eq=False)
class Series:
    """Values of one quantity at times as they were recorded, which may repeat or go back.

    Arrays are copied and read-only.

    Args:
        times: Stamps (n,), s, all finite.
        values: Samples (n, m) in the unit `unit`; (n,) is one column. NaN is a missing value.
        columns: Names of the m columns, all different. If empty, "0", "1", ..., or the names
            `QUATERNION_COLUMNS` of quaternions.
        unit: SI unit of the values, "1" for none.
        frame: Frame in which vectors are expressed, "" where it is not stated.
        role: "measurement", "input" (what was commanded) or "truth".
        quaternion: Whether the values are unit quaternions in the order (x, y, z, w) of states.

    Raises:
        InputError: Sizes disagree, a stamp is not finite, a value is infinite, or names of columns
            repeat.
        UnknownNameError: `role` is none of `ROLES`.
    """

    times: Array
    values: Array
    columns: tuple[str, ...] = ()
    unit: str = "1"
    frame: str = ""
    role: str = "measurement"
    quaternion: bool = False

    def __post_init__(self) -> None:
        times = check_array("times", self.times, (None,))
        try:
            values = convert_to_floats(self.values)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"values must be an array of numbers, got {quote(self.values)}"
            ) from error
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or len(values) != len(times):
            raise InputError(
                f"values must have shape ({len(times)}, any), one row for each time, got "
                f"{values.shape}"
            )
        if np.isinf(values).any():
            row = int(np.argwhere(np.isinf(values))[0, 0])
            raise InputError(f"values must not be infinite, row {row} is")
        values.flags.writeable = False
        width = values.shape[1]
        if self.quaternion and width != 4:
            raise InputError(f"values of quaternions need 4 columns, got {width}")
        default = QUATERNION_COLUMNS if self.quaternion else map(str, range(width))
        columns = tuple(map(str, self.columns or default))
        if len(columns) != width or len(set(columns)) != width:
            raise InputError(f"columns must be {width} different names, got {list(columns)}")
        check_member("role", self.role, ROLES)
        for name, value in (("times", times), ("values", values), ("columns", columns)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def rate(self) -> float:
        """Sampling rate, Hz, by the median positive spacing of the stamps in order; NaN without."""
        # The difference of two huge stamps may overflow; a rate of 0 is right then.
        with np.errstate(over="ignore"):
            spacing = np.diff(np.sort(self.times))
            spacing = spacing[spacing > 0]
            return float(1 / np.median(spacing)) if spacing.size else float("nan")

    @property
    def disorder(self) -> int:
        """Number of stamps that are earlier than the stamp before them."""
        return int((np.diff(self.times) < 0.0).sum())

    def sort_by_time(self) -> Series:
        """Return the rows in the order of their times; rows of equal time keep their order."""
        if not self.disorder:
            return self
        return self.select_rows(np.argsort(self.times, kind="stable"))

    @property
    def complete_rows(self) -> Series:
        """The rows without a missing value, in the order of their times."""
        ordered = self.sort_by_time()
        return ordered.select_rows(np.asarray(np.isfinite(ordered.values).all(axis=1)))

    def hold_last(self, times: ArrayLike) -> Array:
        """Return the values that a zero-order hold of the samples has at given times.

        The rows must be in the order of their times, see `sort_by_time`; this is not checked.

        Args:
            times: Times (...), s.

        Returns:
            Values (..., m): the last row at or before each time, and the first row before all.

        Raises:
            IndexError: The series has no rows.
        """
        return self.values[np.maximum(self.times.searchsorted(times, "right") - 1, 0)]

    def select_rows(self, chosen: Indices | NDArray[np.bool_] | slice) -> Series:
        """Return the series of some of the rows.

        Args:
            chosen: Row numbers, a mask (n,), or a slice.
        """
        return replace(self, times=self.times[chosen], values=self.values[chosen])
