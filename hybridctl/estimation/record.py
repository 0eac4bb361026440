"""What a filter reads: named series of measured values, and the inputs that were applied.

Each series has stamps of its own, so channels may be sampled at different rates and irregularly.
NaN marks a missing value; stamps may repeat or be out of order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hybridctl.checks import Array, array, floats
from hybridctl.errors import InputError


@dataclass(frozen=True, eq=False)
class Series:
    """Values (n, m) at times (n,) in s; a value that is NaN is missing, a time must not be."""

    times: Array
    values: Array

    def __post_init__(self) -> None:
        times = array("times", self.times, (None,))
        try:
            values = floats(self.values)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"values must be an array of numbers, got {self.values!r}") from error
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or len(values) != len(times):
            raise InputError(
                f"values must have shape ({len(times)}, any), one row for each time, got "
                f"{values.shape}"
            )
        if np.isinf(values).any():
            raise InputError(f"values must not be infinite, row {_first(np.isinf(values))} is")
        values.flags.writeable = False
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "values", values)

    @property
    def disorder(self) -> int:
        """How many stamps are earlier than the one before them."""
        return int((np.diff(self.times) < 0.0).sum())

    def sorted(self) -> Series:
        """The same rows in order of time; rows of equal time keep their order."""
        if not self.disorder:
            return self
        order = np.argsort(self.times, kind="stable")
        return Series(self.times[order], self.values[order])


def _first(rows: Array) -> int:
    return int(np.argwhere(rows)[0, 0])


class Sample(NamedTuple):
    """One row of a channel; `value` (m,) may have NaN."""

    time: float
    channel: str
    value: Array


@dataclass(frozen=True, eq=False)
class Record:
    """Measured channels by name, and the input (n, nu) held from each of its stamps to the next.

    Before its first stamp the input has its first value; without inputs it is zero. notes: what was
    odd about the log that it was made from.
    """

    channels: Mapping[str, Series]
    inputs: Series | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.channels, Mapping):
            raise InputError(f"channels must map names to Series, got {self.channels!r}")
        inputs = {} if self.inputs is None else {"inputs": self.inputs}
        for name, series in (*self.channels.items(), *inputs.items()):
            if not isinstance(series, Series):
                raise InputError(f"channel {name!r} of a record must be a Series, got {series!r}")
        if self.inputs is not None:
            if not len(self.inputs.times) or not np.isfinite(self.inputs.values).all():
                raise InputError("inputs must have at least one row, and no missing value")
            object.__setattr__(self, "inputs", self.inputs.sorted())

    @property
    def disorder(self) -> int:
        """How many stamps of all channels are earlier than the one before them."""
        return sum(series.disorder for series in self.channels.values())

    def samples(self) -> Iterator[Sample]:
        """All rows of all channels in order of time; at equal times in the order of channels."""
        ordered = {name: series.sorted() for name, series in self.channels.items()}
        rows = [
            (float(t), rank, k, name)
            for rank, (name, series) in enumerate(ordered.items())
            for k, t in enumerate(series.times)
        ]
        for t, _, k, name in sorted(rows):
            yield Sample(t, name, ordered[name].values[k])

    def between(self, after: float, until: float) -> Record:
        """The rows of all channels at times in (after, until], and all inputs."""
        channels = {}
        for name, series in self.channels.items():
            kept = (series.times > after) & (series.times <= until)
            channels[name] = Series(series.times[kept], series.values[kept])
        return replace(self, channels=channels)

    def input(self, t: float) -> Array | None:
        """The input (nu,) held at time t, None without inputs."""
        if self.inputs is None:
            return None
        k = max(int(self.inputs.times.searchsorted(t, "right")) - 1, 0)
        return np.asarray(self.inputs.values[k])

    def input_changes(self, start: float, end: float) -> Array:
        """The stamps of the input strictly between two times."""
        if self.inputs is None:
            return np.zeros(0)
        times = self.inputs.times
        first, last = times.searchsorted(start, "right"), times.searchsorted(end, "left")
        return np.unique(times[first:last]) if first < last else np.zeros(0)
