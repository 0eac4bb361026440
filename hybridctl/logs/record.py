"""From the channels of a log to the record of measured values that a filter reads."""

from __future__ import annotations

from collections.abc import Mapping as Dictionary
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.estimation.filter_model import FilterModel, Part
from hybridctl.estimation.record import Record
from hybridctl.series import Series

if TYPE_CHECKING:
    from hybridctl.logs.schema import Log

LARGEST = 1e6  # in SI units; a sensor of a robot that says more is broken
_NORM = 0.1  # how far from one the length of a measured quaternion may be


def to_record(log: Log, model: FilterModel, longest_gap: float = 2.0) -> Record:
    """The values that a model's sensors, contact signals and input have in a log; see `Log.record`.

    What counts as missing, or is assumed, is in the record's notes. Raises `InputError` where a
    channel is missing, has other columns or another unit, has no complete row, or where all
    channels are silent for longer than `longest_gap` s.
    """
    notes: list[str] = []
    channels = {s.name: _joined(log, s.parts, notes) for s in model.sensors}
    for sensor in model.sensors:
        if not np.isfinite(channels[sensor.name].values).all(axis=1).any():
            raise InputError(f"{log.source or 'log'}: {sensor.name!r} has no complete row")
    for part, signal in model.signals.items():
        if part.channel in log:
            channels[signal.channel] = _joined(log, (part,), notes)
    inputs = None if model.inputs is None else _inputs(log, model.inputs, notes)
    _check_gaps(log, channels, longest_gap)
    return Record(channels, inputs, tuple(notes))


def _joined(log: Log, parts: Sequence[Part], notes: list[str]) -> Series:
    """Channels side by side, by stamp; where one has no row, its columns are missing."""
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


def _columns(log: Log, part: Part, notes: list[str]) -> tuple[Array, Array]:
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
    values = np.array(_in_order(channel, part))
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


def _in_order(channel: Series, part: Part) -> Array:
    names = channel.columns
    if channel.quaternion != part.quaternion and part.quaternion:
        raise InputError(f"channel {part.channel!r} must hold rotations; say so in the mapping")
    if not part.columns:
        return channel.values
    if set(part.columns) <= set(names):
        return channel.values[:, [names.index(name) for name in part.columns]]
    if len(names) == len(part.columns):
        return channel.values
    raise InputError(
        f"channel {part.channel!r} must have the columns {list(part.columns)}, got {list(names)}"
    )


def _inputs(log: Log, part: Part, notes: list[str]) -> Series | None:
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
