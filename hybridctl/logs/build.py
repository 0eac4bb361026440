"""The way from the tables of a file to a log: stamps, values, units, rotations.

Stamps are from a field, from a rate, or as recorded, without loss of precision. For recordings that
come without a mapping one is guessed: a channel for each array, column or vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hybridctl import checks
from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.logs.mapping import NANOSECONDS, ChannelSource, Mapping, Segment, TimeSource, si
from hybridctl.logs.native import native_log
from hybridctl.logs.raw import Field, RawLog, RawTable, measured
from hybridctl.logs.readers import read_raw
from hybridctl.logs.schema import Log
from hybridctl.series import Series

ABSOLUTE = 1e8  # s; a stamp from here on counts from 1970, a smaller one from the log's start
_LARGEST = float(2**63)


@dataclass(frozen=True)
class Stamps:
    """The stamps: `times` in seconds after `origin_ns`; NaN where the recording has none."""

    origin_ns: int
    times: Array


def stamps(table: RawTable, source: TimeSource, rows: slice, count: int) -> Stamps:
    """The stamps of the chosen rows, of `count` in all.

    Stamps from 1970 (more than three years) get an origin, taken off before anything is rounded;
    smaller ones are relative already and stay as they are.
    """
    if source.rate:
        return Stamps(0, np.arange(rows.stop - rows.start) / _rate(table, source.rate))
    if not source.field and table.stamps is not None:
        return from_nanoseconds(table.stamps[rows])
    if source.field:
        unit = table.units.get(source.field) or table.obvious_unit(source.field) or "s"
        found: tuple[str, str] | None = (source.field, unit)
    else:
        found = table.obvious_time()
    if found is None:
        raise InputError(
            f"no field is named like a time among {list(table.fields)}; the mapping needs "
            "`time: {field: ..., unit: ...}` or `time: {rate: ...}`"
        )
    name, unit = found
    values = table[name]
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise InputError(f"time field {name!r} must be (n,) numbers, got shape {values.shape}")
    if len(values) != count:
        raise InputError(
            f"time field {name!r} has {len(values)} stamps, but there are {count} rows"
        )
    return _from_field(name, values[rows], source.unit or unit)


def from_nanoseconds(values: NDArray[np.int64]) -> Stamps:
    """Stamps in whole nanoseconds; exact to the last one."""
    origin = int(values.min()) if values.size and values.min() >= ABSOLUTE * 1e9 else 0
    return Stamps(origin, np.asarray((values - origin) * 1e-9, np.float64))


def _rate(table: RawTable, rate: float | str) -> float:
    if not isinstance(rate, str):
        return rate
    value = table[rate]
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise InputError(f"time.rate: field {rate!r} must be one number, got shape {value.shape}")
    return checks.number(f"time.rate (field {rate!r})", value.item(), above=0)


def _from_field(name: str, values: Field, unit: str) -> Stamps:
    nanoseconds = NANOSECONDS[checks.member(f"unit of time field {name!r}", unit, NANOSECONDS)]
    if values.dtype.kind in "iu":
        largest = max((abs(int(v)) for v in (values.min(), values.max())), default=0)
        if largest * nanoseconds >= _LARGEST:
            raise InputError(
                f"time field {name!r} has a stamp of {largest} {unit}, which is out of range; "
                "is its unit right?"
            )
        return from_nanoseconds(values.astype(np.int64) * nanoseconds)
    seconds = values.astype(np.float64) * (nanoseconds * 1e-9)
    seconds[~np.isfinite(seconds)] = np.nan
    known = seconds[np.isfinite(seconds)]
    if not known.size or known.min() < ABSOLUTE:
        return Stamps(0, seconds)
    first = float(values[np.isfinite(values)].min())
    if first * nanoseconds >= _LARGEST:
        raise InputError(
            f"time field {name!r} has a stamp of {first:g} {unit}, which is out of range; "
            "is its unit right?"
        )
    relative = (values - first) * (nanoseconds * 1e-9)
    relative[~np.isfinite(relative)] = np.nan
    whole = int(first)
    return Stamps(whole * nanoseconds + round((first - whole) * nanoseconds), relative)


def guess_mapping(raw: RawLog) -> Mapping:
    """Channels named by field, or by topic and field; the time must have an obvious name."""
    channels = dict(pair for table in raw.tables.values() for pair in _channels(table))
    if not channels:
        raise InputError(
            f"{raw.path}: without a mapping, a field must be named like a time (t, time, stamp, "
            f"time_ns, ...) and others have as many rows; see `hybridctl info {raw.path}`"
        )
    return Mapping(channels)


def draft_mapping(raw: RawLog) -> Mapping:
    """A mapping to edit: that which is guessed, or, without stamps, all numbers at 100 Hz."""
    try:
        return guess_mapping(raw)
    except InputError:
        channels = {
            f"{table.name}.{name}".strip("."): ChannelSource((name,), topic=table.name)
            for table in raw.tables.values()
            for name, values in table.fields.items()
            if values.size and _usable(values, len(values))
        }
        if not channels:
            raise
        return Mapping(channels, time=TimeSource(rate=100.0))


def _channels(table: RawTable) -> list[tuple[str, ChannelSource]]:
    time = table.obvious_time() if table.stamps is None else None
    if table.stamps is not None:
        rows = len(table.stamps)
    elif time is not None:
        rows = len(table.fields[time[0]])
    else:
        return []
    groups: dict[str, list[str]] = {}
    for name, values in table.fields.items():
        if (
            _usable(values, rows)
            and (time is None or name != time[0])
            and not (table.stamps is not None and table.units.get(name) == "ns")
        ):
            parent = name.rpartition(".")[0]
            vector = parent and values.ndim == 1 and name not in table.labels
            groups.setdefault(parent if vector else name, []).append(name)
    clock = TimeSource(*time) if time else None
    return [_source(table, group, fields, clock) for group, fields in groups.items()]


def _usable(values: Field, rows: int) -> bool:
    return (
        values.dtype.kind in "biuf"
        and values.ndim in (1, 2)
        and len(values) == rows
        and values.size > 0
    )


def _source(
    table: RawTable, group: str, fields: list[str], time: TimeSource | None
) -> tuple[str, ChannelSource]:
    name = f"{table.name}.{group}" if table.name else group
    parts = {field.rpartition(".")[2]: field for field in fields}
    quaternion = set(parts) == set("wxyz")
    return name, ChannelSource(
        tuple(parts[axis] for axis in "xyzw") if quaternion else tuple(fields),
        topic=table.name,
        rotation="xyzw" if quaternion else "",
        time=time,
    )


def read_log(
    path: str | Path,
    mapping: Mapping | str | Path | None = None,
    *,
    segment: int | None = None,
) -> Log:
    """The log in a file or a ROS 2 bag folder.

    `mapping` is a `Mapping` or the path of one in YAML. Without it, a log that `write_log` wrote
    is read as it was, and any other becomes one channel for each array, column or vector in a
    message, without units. `segment` chooses another segment than the mapping does.

    Raises FileFormatError for a file that cannot be read, UnknownNameError for a field or topic
    that is not in it, InputError for what does not fit together; each says which file.
    """
    if mapping is None:
        if segment is not None:
            raise InputError(f"segment {segment} was asked for, but there is no mapping")
        raw = read_raw(path)
        return native_log(raw) if raw.native is not None else build(raw, guess_mapping(raw))
    if not isinstance(mapping, Mapping):
        mapping = Mapping.load(mapping)
    if segment is not None:
        if mapping.segment is None:
            raise InputError(f"segment {segment} was asked for, but the mapping has no segments")
        index = checks.count("segment", segment, at_least=0)
        mapping = msgspec.structs.replace(mapping, segment=Segment(mapping.segment.offsets, index))
    return build(read_raw(path, {source.topic for _, _, source in mapping.sources()}), mapping)


@np.errstate(over="ignore", invalid="ignore")  # damaged numbers may be of any size
def build(raw: RawLog, mapping: Mapping) -> Log:
    """The channels of `mapping`, made from the tables of `raw`; SI units, one origin."""
    channels: dict[str, Series] = {}
    clocks: list[Stamps] = []
    notes = list(raw.notes)
    for name, role, source in mapping.sources():
        try:
            channels[name], clock, lost = _channel(raw, mapping, source, role)
        except InputError as error:
            raise type(error)(f"{raw.path}: channel {name!r}: {error}") from error
        clocks.append(clock)
        if lost:
            notes.append(f"{name}: {lost} rows without a stamp are left out")
    origin = min(clock.origin_ns for clock in clocks)
    for (name, series), clock in zip(channels.items(), clocks, strict=True):
        later = 1e-9 * (clock.origin_ns - origin)
        channels[name] = replace(series, times=series.times + later)
    return Log(channels, origin, str(raw.path), raw.format, notes=tuple(notes))


def _channel(
    raw: RawLog, mapping: Mapping, source: ChannelSource, role: str
) -> tuple[Series, Stamps, int]:
    table = raw.tables[checks.member("topic", source.topic, raw.tables)]
    parts = [_rows(table, name) for name in source.fields]
    count = len(parts[0])
    for name, part in zip(source.fields, parts, strict=True):
        if len(part) != count:
            raise InputError(
                f"field {name!r} has {len(part)} rows, but {source.fields[0]!r} {count}"
            )
    if not count:
        raise InputError(f"field {source.fields[0]!r} has no rows")
    rows = _segment(table, mapping, count)
    clock = stamps(table, source.time or mapping.time, rows, count)
    values = np.concatenate(parts, axis=1)[rows].astype(np.float64)
    values, columns = _columns(table, source, values)
    stamped = np.isfinite(clock.times)
    absent = [table.absent.get(name, np.zeros(count, bool)) for name in source.fields]
    keep = stamped & ~np.logical_and.reduce(absent)[rows]
    if not keep.any():
        raise InputError("no row with a stamp and a value")
    unit, values = _converted(table, source, values)
    series = Series(
        clock.times[keep],
        measured(values[keep]),
        () if source.rotation else columns,
        unit,
        source.frame,
        role,
        quaternion=bool(source.rotation),
    )
    return series, clock, int((~stamped).sum())


def _rows(table: RawTable, name: str) -> Field:
    """A field as (n, m) numbers."""
    values = table[name]
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        raise InputError(
            f"field {name!r} must be (n,) or (n, m) numbers, not {values.dtype} of shape "
            f"{values.shape}"
        )
    return values.reshape(len(values), -1)


def _segment(table: RawTable, mapping: Mapping, count: int) -> slice:
    """The rows of the segment; all of them without one, and for topics."""
    if mapping.segment is None:
        return slice(0, count)
    index = mapping.segment.index
    offsets = table[mapping.segment.offsets]
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or len(offsets) < 2:
        raise InputError(f"segment.offsets {mapping.segment.offsets!r} must be whole numbers")
    if index > len(offsets) - 2:
        raise InputError(f"segment.index must be at most {len(offsets) - 2}, got {index}")
    first, end = int(offsets[index]), int(offsets[index + 1])
    if not 0 <= first < end <= count:
        raise InputError(f"segment {index} goes from row {first} to {end}, but there are {count}")
    return slice(first, end)


def _columns(
    table: RawTable, source: ChannelSource, values: Array
) -> tuple[Array, tuple[str, ...]]:
    """The chosen columns and their names."""
    labels = _labels(table, source, values.shape[1])
    if not source.columns:
        return values, labels
    chosen = []
    for column in source.columns:
        if column in labels:
            chosen.append(labels.index(column))
        elif column.isdecimal() and int(column) < len(labels):
            chosen.append(int(column))
        else:
            checks.member("column", column, labels)
    return values[:, chosen], tuple(labels[i] for i in chosen)


def _labels(table: RawTable, source: ChannelSource, width: int) -> tuple[str, ...]:
    if isinstance(source.labels, str):
        labels = tuple(str(label) for label in table[source.labels].ravel())
    else:
        labels = source.labels
    if labels:
        if len(labels) != width or len(set(labels)) != width:
            raise InputError(f"labels must be {width} different names, got {list(labels)}")
        return labels
    if len(source.fields) == width:
        short = tuple(name.rpartition(".")[2].rpartition("/")[2] for name in source.fields)
        return short if len(set(short)) == width else source.fields
    known = table.labels.get(source.fields[0], ())
    alone = len(source.fields) == 1 and len(known) == width
    return known if alone else tuple(str(i) for i in range(width))


def _converted(table: RawTable, source: ChannelSource, values: Array) -> tuple[str, Array]:
    """The pair (unit, values) in SI, rotations as quaternions (x, y, z, w)."""
    given = source.unit or table.units.get(source.fields[0], "1")
    unit, factor = si("unit", given)
    values = values * (factor * source.scale)
    if not source.rotation:
        return unit, values
    width = 3 if source.rotation == "rpy" else 4
    if values.shape[1] != width:
        raise InputError(
            f"rotation {source.rotation!r} needs {width} columns, got {values.shape[1]}"
        )
    if source.rotation == "wxyz":
        return "1", values[:, [1, 2, 3, 0]]
    if source.rotation == "rpy":
        known = np.isfinite(values).all(axis=1)
        quaternions = np.full((len(values), 4), np.nan)
        quaternions[known] = Rotation.from_euler("xyz", values[known]).as_quat()
        return "1", quaternions
    return "1", values
