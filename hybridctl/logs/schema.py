"""The one schema of a log: named channels in SI units, each with stamps of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass, field

import numpy as np

from hybridctl.base import checks
from hybridctl.base.checks import Array, quote
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.estimation.filter_model import FilterModel, LogChannel
from hybridctl.estimation.record import Record
from hybridctl.logs.column_names import order_columns
from hybridctl.logs.stamps import describe_fault, find_first_rows

LARGEST = 1e6  # in SI units; a sensor of a robot that says more is broken
_NORM = 0.1  # how far from one the length of a measured quaternion may be


@dataclass(frozen=True)
class Log:
    """Channels by name, of one origin: stamp 0 is `origin_ns` nanoseconds (since 1970, if known).

    The origin is a whole number, so that stamps of today, which a float resolves to 0.2 us only,
    lose nothing. `source` is the file, `format` what it is; `notes` say what reading left out.
    """

    channels: Dictionary[str, Series]
    origin_ns: int = 0
    source: str = ""
    format: str = ""
    metadata: Dictionary[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.channels, Dictionary) or not self.channels:
            raise InputError(f"channels must map names to Series, got {quote(self.channels)}")
        for name, series in self.channels.items():
            checks.check_instance(f"channel {name!r}", series, Series)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the channels."""
        return tuple(self.channels)

    def __getitem__(self, name: str) -> Series:
        return self.channels[checks.check_member("channel", name, self.channels)]

    def __contains__(self, name: object) -> bool:
        return name in self.channels

    def record(self, model: FilterModel, longest_gap: float = 2.0) -> Record:
        """Return the record that a filter of a model reads: sensors, contact signals and input.

        What counts as missing, or is assumed, is in the record's notes. Raises `InputError` where a
        channel is missing, has other columns or another unit, has no complete row, or has stamps
        that cannot be put in order, or where all channels are silent for longer than `longest_gap`
        s.
        """
        notes: list[str] = []
        parts = [part for sensor in model.sensors for part in sensor.parts]
        self.check_stamps(part.channel for part in (*parts, *model.signals))
        channels = {s.name: _joined(self, s.parts, notes) for s in model.sensors}
        for sensor in model.sensors:
            if not np.isfinite(channels[sensor.name].values).all(axis=1).any():
                raise InputError(f"{self.source or 'log'}: {sensor.name!r} has no complete row")
        for part, signal in model.signals.items():
            if part.channel in self:
                channels[signal.channel] = _joined(self, (part,), notes)
        inputs = None if model.inputs is None else _inputs(self, model.inputs, notes)
        _check_gaps(self, channels, longest_gap)
        return Record(channels, inputs, tuple(notes))

    def check_stamps(self, names: Iterable[str]) -> None:
        """Check that the stamps of channels can be put in order.

        Args:
            names: Names of channels; those that the log does not have are passed over.

        Raises:
            InputError: The clock of a channel stands still, or was set back.
        """
        for name in dict.fromkeys(names):
            fault = describe_fault(self.channels[name]) if name in self else ""
            if fault:
                raise InputError(
                    f"{self.source or 'log'}: channel {name!r}: {fault}; take other stamps in the "
                    "mapping (`time: {field: ...}`), or split the log"
                )

    @property
    def span(self) -> tuple[float, float]:
        """First and last stamp over all channels [s]; NaN if there is none."""
        stamps = np.concatenate([series.times for series in self.channels.values()])
        if not stamps.size:
            return float("nan"), float("nan")
        return float(stamps.min()), float(stamps.max())


def _joined(log: Log, parts: Sequence[LogChannel], notes: list[str]) -> Series:
    """Return channels side by side, by stamp; where one has no row, its columns are missing."""
    found = [_columns(log, part, notes) for part in parts]
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
            notes.append(f"{part.channel}: of rows with the same stamp only the last is used")
    return Series(times, np.hstack(columns))


def _columns(log: Log, part: LogChannel, notes: list[str]) -> tuple[Array, Array]:
    """Stamps and values of a channel, in the order of the part's columns, broken ones as NaN."""
    if part.channel not in log:
        raise InputError(
            f"{log.source or 'log'} has no channel {part.channel!r}, only {list(log.names)}; a "
            "mapping says which fields it is made of (see `hybridctl info`)"
        )
    channel = log[part.channel]
    if part.unit and channel.unit not in (part.unit, "1"):
        raise InputError(
            f"channel {part.channel!r} must be in {part.unit}, but is in {channel.unit}"
        )
    first = find_first_rows(channel)  # a value that was written twice was measured once
    if len(first) < len(channel):
        channel = channel.select_rows(first)
    values = np.array(_order_values(channel, part, notes))
    broken = np.abs(values) > LARGEST
    if part.quaternion:
        with np.errstate(over="ignore"):
            length = np.linalg.norm(values, axis=1, keepdims=True)
        broken |= np.abs(length - 1.0) > _NORM
    if broken.any():
        rows = int(broken.any(axis=1).sum())
        what = "are no unit quaternion" if part.quaternion else f"are above {LARGEST:g}"
        notes.append(f"{part.channel}: {rows} rows {what}; they count as missing")
        values[broken] = np.nan
    return channel.times, values


def _order_values(channel: Series, part: LogChannel, notes: list[str]) -> Array:
    """Return the values (n, m) of a channel in the order of the columns of a part."""
    if channel.quaternion != part.quaternion and part.quaternion:
        raise InputError(f"channel {part.channel!r} must hold rotations; say so in the mapping")
    if not part.columns:
        return channel.values
    order = order_columns(part.channel, part.columns, channel.columns)
    if order.is_by_position:
        notes.append(
            f"{part.channel}: columns {', '.join(channel.columns[:4])} are taken as "
            f"{', '.join(part.columns[:4])} by their place; `labels` in the mapping names them"
        )
    return channel.values[:, order.columns]


def _inputs(log: Log, part: LogChannel, notes: list[str]) -> Series | None:
    if part.channel not in log:
        notes.append(f"there is no channel {part.channel!r}: the input is taken to be zero")
        return None
    times, values = _columns(log, part, notes)
    whole = np.isfinite(values).all(axis=1)
    if not whole.any():
        raise InputError(f"{log.source or 'log'}: {part.channel!r} has no complete row")
    if not whole.all():
        notes.append(f"{part.channel}: where values are missing, those before are held")
    return Series(times[whole], values[whole])


def _check_gaps(log: Log, channels: Dictionary[str, Series], longest: float) -> None:
    """Raise `InputError` for a time without any value in which everything could happen."""
    whole = [s.times[np.isfinite(s.values).any(axis=1)] for s in channels.values()]
    times = np.sort(np.concatenate(whole))
    gaps = np.diff(times)
    if gaps.size and gaps.max() > longest:
        at = float(times[gaps.argmax()])
        raise InputError(
            f"{log.source or 'log'}: no value for {gaps.max():.4g} s after t = {at:.4g} s, more "
            f"than longest_gap = {longest:g} s; are the stamps in seconds?"
        )
