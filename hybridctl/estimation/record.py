"""What a filter reads: named series of measured values, and the inputs that were applied.

Each series has its own stamps, so channels may be sampled at different rates and irregularly. NaN
is a missing value; stamps may repeat or be out of order.
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
    """One row of a channel.

    Attributes:
        time: Stamp, s.
        channel: Name of the channel.
        value: Value (m,), NaN where a component is missing.
    """

    time: float
    channel: str
    value: Array


@dataclass(frozen=True, eq=False)
class Record:
    """Measured channels by name, and the input.

    Attributes:
        channels: Series (n, m) by channel.
        inputs: Inputs (n, nu), each held from its stamp to the next. Before its first stamp the
            input has its first value. None for an input of zero.
        notes: What was unusual about the log from which the record was made.

    Raises:
        InputError: A channel is no `Series`, or inputs have no row or a missing value.
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
        """Number of stamps of all channels that are earlier than the one before them."""
        return sum(series.disorder for series in self.channels.values())

    def samples(self) -> Iterator[ChannelRow]:
        """Yield all rows of all channels in order of time, at equal times in that of channels."""
        ordered = {name: series.sort_by_time() for name, series in self.channels.items()}
        rows = [
            (float(t), rank, k, name)
            for rank, (name, series) in enumerate(ordered.items())
            for k, t in enumerate(series.times)
        ]
        for t, _, k, name in sorted(rows):
            yield ChannelRow(t, name, ordered[name].values[k])

    def between(self, after: float, until: float) -> Record:
        """Return the rows of all channels at times in (after, until], and all inputs.

        Args:
            after: Time in s after which rows are taken.
            until: Time in s up to which they are taken.
        """
        channels = {}
        for name, series in self.channels.items():
            channels[name] = series.select_rows((series.times > after) & (series.times <= until))
        return replace(self, channels=channels)

    def input(self, t: float) -> Array | None:
        """Return the input (nu,) that is held at a time; None without inputs.

        Args:
            t: Time, s.
        """
        return None if self.inputs is None else self.inputs.hold_last(t)

    def input_changes(self, start: float, end: float) -> list[float]:
        """Return the stamps of the input strictly between two times.

        Args:
            start: The earlier time, s.
            end: The later time, s.
        """
        if self.inputs is None:
            return []
        times = self.inputs.times
        first, last = times.searchsorted(start, "right"), times.searchsorted(end, "left")
        return np.unique(times[first:last]).tolist() if first < last else []
