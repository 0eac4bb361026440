"""The record that a filter reads, from the channels of a log: columns in order, broken values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.estimation.filter_model import FilterModel, LogChannel
from hybridctl.estimation.record import Record
from hybridctl.logs.column_names import order_columns
from hybridctl.logs.mapping import ROTATIONS
from hybridctl.logs.stamp_faults import find_first_rows

LARGEST_VALUE = 1e6
"""Size in SI units above which a value counts as missing: the sensor of a robot is broken then."""
_NORM_ERROR = 0.1
"""Difference of a quaternion's length from one above which it counts as missing.

Rounding and interpolation of recorders stay far below it. The value is a choice."""
_SHOWN_COLUMNS = 4
"""Columns that a note names."""


def make_record(
    model: FilterModel, channels: Mapping[str, Series], source: str, longest_gap: float
) -> Record:
    """Return the record that a filter of a model reads: sensors, contact signals and input.

    Args:
        model: Model with its sensors, signals and input.
        channels: Channels of the log by name. Their stamps can be put in order.
        source: Name of the log in errors.
        longest_gap: Longest time in s without any value.

    Returns:
        The record, whose notes say what counts as missing, or is assumed.

    Raises:
        InputError: A channel is missing, has another unit, or has no complete row, or all channels
            are silent for longer than `longest_gap`.
        UnknownNameError: A channel has other columns.
    """
    reader = _ChannelReader(channels, source)
    found = {sensor.name: reader.join_channels(sensor.parts) for sensor in model.sensors}
    for sensor in model.sensors:
        if not np.isfinite(found[sensor.name].values).all(axis=1).any():
            raise InputError(f"{source}: {sensor.name!r} has no complete row")
    for part, signal in model.signals.items():
        if part.channel in channels:
            found[signal.channel] = reader.join_channels((part,))
    inputs = None if model.inputs is None else reader.read_input(model.inputs)
    _check_gaps(source, found, longest_gap)
    return Record(found, inputs, tuple(reader.notes))


class _ChannelReader:
    """Reads channels of a log for a filter, and collects notes.

    Life cycle: the methods may be called in any order; each extends `notes`.

    Attributes:
        notes: What counts as missing, or is assumed, one sentence each.
    """

    def __init__(self, channels: Mapping[str, Series], source: str) -> None:
        self._channels, self._source = channels, source
        self.notes: list[str] = []

    def join_channels(self, parts: Sequence[LogChannel]) -> Series:
        """Return channels side by side, by stamp, NaN where one of them has no row.

        Args:
            parts: The channels, with the columns and units that a sensor has.

        Raises:
            InputError: A channel is missing, or has another unit.
            UnknownNameError: A channel has other columns.
        """
        found = [self._read_channel(part) for part in parts]
        times = found[0][0]
        if all(np.array_equal(t, times) for t, _ in found):
            return Series(times, np.hstack([values for _, values in found]))
        times = np.unique(np.concatenate([t for t, _ in found]))
        columns = []
        for part, (t, values) in zip(parts, found, strict=True):
            rows = np.full((len(times), values.shape[1]), np.nan)
            rows[np.searchsorted(times, t)] = values
            columns.append(rows)
            if len(np.unique(t)) < len(t):
                self.notes.append(
                    f"{part.channel}: of rows with the same stamp only the last is used"
                )
        return Series(times, np.hstack(columns))

    def read_input(self, part: LogChannel) -> Series | None:
        """Return the complete rows of the input; None where the log has no such channel.

        Args:
            part: The channel of the input.

        Raises:
            InputError: The channel has another unit, or no complete row.
            UnknownNameError: The channel has other columns.
        """
        if part.channel not in self._channels:
            self.notes.append(
                f"there is no channel {part.channel!r}: the input is taken to be zero"
            )
            return None
        times, values = self._read_channel(part)
        is_complete = np.isfinite(values).all(axis=1)
        if not is_complete.any():
            raise InputError(f"{self._source}: {part.channel!r} has no complete row")
        if not is_complete.all():
            self.notes.append(f"{part.channel}: where values are missing, those before are held")
        return Series(times[is_complete], values[is_complete])

    def _read_channel(self, part: LogChannel) -> tuple[Array, Array]:
        """Return stamps (n,) in s and values (n, m) of a channel, NaN where a value is broken.

        Args:
            part: The channel, and the order of its columns.

        Raises:
            InputError: The channel is missing, has another unit, or holds no rotations.
            UnknownNameError: The channel has other columns.
        """
        if part.channel not in self._channels:
            raise InputError(
                f"{self._source} has no channel {part.channel!r}, only {list(self._channels)}; a "
                "mapping says which fields it is made of (see `hybridctl info`)"
            )
        channel = self._channels[part.channel]
        if part.unit and channel.unit not in (part.unit, "1"):
            raise InputError(
                f"channel {part.channel!r} must be in {part.unit}, but is in {channel.unit}"
            )
        first = find_first_rows(channel)  # a value that was written twice was measured once
        if len(first) < len(channel):
            channel = channel.select_rows(first)
        values = np.array(self._order_values(channel, part))
        is_broken = np.abs(values) > LARGEST_VALUE
        if part.quaternion:
            with np.errstate(over="ignore"):
                length = np.linalg.norm(values, axis=1, keepdims=True)
            is_broken |= np.abs(length - 1.0) > _NORM_ERROR
        if is_broken.any():
            rows = int(is_broken.any(axis=1).sum())
            what = "are no unit quaternion" if part.quaternion else f"are above {LARGEST_VALUE:g}"
            self.notes.append(f"{part.channel}: {rows} rows {what}; they count as missing")
            values[is_broken] = np.nan
        return channel.times, values

    def _order_values(self, channel: Series, part: LogChannel) -> Array:
        """Return the values (n, m) of a channel in the order of the columns of a part.

        Args:
            channel: The channel.
            part: The columns that are wanted; all as they are if it names none.

        Raises:
            InputError: The channel holds no rotations, and the part does.
            UnknownNameError: The channel has other columns.
        """
        if part.quaternion and not channel.quaternion:
            raise InputError(
                f"channel {part.channel!r} must hold rotations: say which in the mapping, such as "
                f"'rotation: xyzw' beside its fields (one of {sorted(ROTATIONS)})"
            )
        if not part.columns:
            return channel.values
        order = order_columns(part.channel, part.columns, channel.columns)
        if order.is_by_position:
            self.notes.append(
                f"{part.channel}: columns {', '.join(channel.columns[:_SHOWN_COLUMNS])} are taken "
                f"as {', '.join(part.columns[:_SHOWN_COLUMNS])} by their place; `labels` in the "
                "mapping names them"
            )
        return channel.values[:, order.columns]


def _check_gaps(source: str, channels: Mapping[str, Series], longest_gap: float) -> None:
    """Check that there is no long time without any value, in which everything could happen.

    Args:
        source: Name of the log in the error.
        channels: Channels by name.
        longest_gap: Longest time in s without any value.

    Raises:
        InputError: There is a longer gap.
    """
    filled = [s.times[np.isfinite(s.values).any(axis=1)] for s in channels.values()]
    times = np.sort(np.concatenate(filled))
    gaps = np.diff(times)
    if gaps.size and gaps.max() > longest_gap:
        at = float(times[gaps.argmax()])
        raise InputError(
            f"{source}: no value for {gaps.max():.4g} s after t = {at:.4g} s, more "
            f"than longest_gap = {longest_gap:g} s; are the stamps in seconds?"
        )
