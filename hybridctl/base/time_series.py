"""Samples of one quantity over time: the one form of a channel, from the file to the filter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import Array, Indices, array, floats, member, quoted
from hybridctl.base.errors import InputError

ROLES = ("measurement", "input", "truth")
QUATERNION = ("qx", "qy", "qz", "qw")


@dataclass(frozen=True, eq=False)
class Series:
    """Values (n, m) at times (n,) in s; a value that is NaN is missing, a time must not be.

    Stamps are as recorded: they may repeat or go back. `values` are in the SI unit `unit` ("1"
    without one), expressed in `frame`. `columns` names the m columns, by number if left out. `role`
    is "measurement", "input" (what was commanded) or "truth". With `quaternion`, values are unit
    quaternions in the order (x, y, z, w) that states use.

    Raises `InputError` where sizes disagree, a stamp is not finite, or a value infinite.
    """

    times: Array
    values: Array
    columns: tuple[str, ...] = ()
    unit: str = "1"
    frame: str = ""
    role: str = "measurement"
    quaternion: bool = False

    def __post_init__(self) -> None:
        times = array("times", self.times, (None,))
        try:
            values = floats(self.values)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"values must be an array of numbers, got {quoted(self.values)}"
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
        unnamed = QUATERNION if self.quaternion else map(str, range(width))
        columns = tuple(map(str, self.columns or unnamed))
        if len(columns) != width or len(set(columns)) != width:
            raise InputError(f"columns must be {width} different names, got {list(columns)}")
        member("role", self.role, ROLES)
        for name, value in (("times", times), ("values", values), ("columns", columns)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def rate(self) -> float:
        """Samples per second, by the median spacing of the stamps; NaN with fewer than two."""
        with np.errstate(over="ignore"):
            spacing = np.diff(np.sort(self.times))
            spacing = spacing[spacing > 0]
            return float(1 / np.median(spacing)) if spacing.size else float("nan")

    @property
    def disorder(self) -> int:
        """How many stamps are earlier than the one before them."""
        return int((np.diff(self.times) < 0.0).sum())

    def sorted(self) -> Series:
        """The rows in order of time; rows of equal time keep their order."""
        return self.rows(np.argsort(self.times, kind="stable")) if self.disorder else self

    @property
    def complete(self) -> Series:
        """The rows without missing values, in order of time."""
        ordered = self.sorted()
        return ordered.rows(np.asarray(np.isfinite(ordered.values).all(axis=1)))

    def held(self, times: ArrayLike) -> Array:
        """The last values (..., m) at or before these times (...), or the first; rows in order."""
        return self.values[np.maximum(self.times.searchsorted(times, "right") - 1, 0)]

    def rows(self, chosen: Indices | NDArray[np.bool_]) -> Series:
        """The series of some rows, by their numbers or by a mask."""
        return replace(self, times=self.times[chosen], values=self.values[chosen])
