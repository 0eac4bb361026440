"""What a filter reads: named series of measured values, and the inputs that were applied.

Each series has stamps of its own, so channels may be sampled at different rates and irregularly.
NaN marks a missing value; stamps may repeat or be out of order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, quote
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series as Series


class ChannelRow(NamedTuple):
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
            raise InputError(f"channels must map names to Series, got {quote(self.channels)}")
        inputs = {} if self.inputs is None else {"inputs": self.inputs}
        for name, series in (*self.channels.items(), *inputs.items()):
            if not isinstance(series, Series):
                raise InputError(
                    f"channel {name!r} of a record must be a Series, got {quote(series)}"
                )
        if self.inputs is not None:
            if not len(self.inputs.times) or not np.isfinite(self.inputs.values).all():
                raise InputError("inputs must have at least one row, and no missing value")
            object.__setattr__(self, "inputs", self.inputs.sort_by_time())

    @property
    def disorder(self) -> int:
        """How many stamps of all channels are earlier than the one before them."""
        return sum(series.disorder for series in self.channels.values())

    def samples(self) -> Iterator[ChannelRow]:
        """All rows of all channels in order of time; at equal times in the order of channels."""
        ordered = {name: series.sort_by_time() for name, series in self.channels.items()}
        rows = [
            (float(t), rank, k, name)
            for rank, (name, series) in enumerate(ordered.items())
            for k, t in enumerate(series.times)
        ]
        for t, _, k, name in sorted(rows):
            yield ChannelRow(t, name, ordered[name].values[k])

    def between(self, after: float, until: float) -> Record:
        """The rows of all channels at times in (after, until], and all inputs."""
        channels = {}
        for name, series in self.channels.items():
            channels[name] = series.select_rows((series.times > after) & (series.times <= until))
        return replace(self, channels=channels)

    def input(self, t: float) -> Array | None:
        """The input (nu,) held at time t, None without inputs."""
        return None if self.inputs is None else self.inputs.hold_last(t)

    def input_changes(self, start: float, end: float) -> list[float]:
        """The stamps of the input strictly between two times."""
        if self.inputs is None:
            return []
        times = self.inputs.times
        first, last = times.searchsorted(start, "right"), times.searchsorted(end, "left")
        return np.unique(times[first:last]).tolist() if first < last else []
