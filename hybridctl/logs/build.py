"""The way from the tables of a file to a log: stamps, values, units, rotations.

Stamps are from a field, from a rate, or as recorded, without loss of precision. For recordings that
come without a mapping one is guessed: a channel for each array, column or vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from scipy.spatial.transform import Rotation

from hybridctl.base import checks
from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.logs.mapping import ChannelSource, Mapping, Segment, TimeSource, si
from hybridctl.logs.native import native_log
from hybridctl.logs.raw import Field, RawLog, RawTable, measured
from hybridctl.logs.readers import read_raw
from hybridctl.logs.schema import Log
from hybridctl.logs.stamps import HEADER_STAMP, RECORDER, Stamps, find_stamps, note_delay

_SHOWN_NOTES = 200
"""Characters of the reader's notes that an error quotes."""


def guess_mapping(raw: RawLog) -> Mapping:
    """Return channels named by field, or by topic and field; the time must have an obvious name."""
    channels = dict(pair for table in raw.tables.values() for pair in _channels(table))
    if not channels:
        unusable = [text for table in raw.tables.values() for text in table.unusable.values()]
        reasons = "; ".join(dict.fromkeys([*raw.notes, *unusable]))[:_SHOWN_NOTES]
        because = f" ({reasons})" if reasons else ""
        raise InputError(
            f"{raw.path}: without a mapping, a field must be named like a time (t, time, stamp, "
            f"time_ns, ...) and others have as many rows; see `hybridctl info {raw.path}`{because}"
        )
    return Mapping(channels)


def draft_mapping(raw: RawLog) -> Mapping:
    """Return a mapping to edit: the guessed one, or without stamps all numbers at 100 Hz."""
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
    own = time or (table.obvious_steps() if table.stamps is None else None)
    if table.stamps is not None:
        rows = len(table.stamps)
    elif own is not None:
        rows = len(table.fields[own[0]])
    else:
        return []
    groups: dict[str, list[str]] = {}
    for name, values in table.fields.items():
        if (
            _usable(values, rows)
            and (own is None or name != own[0])
            and name not in table.clocks
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
    is_default: bool = False,
) -> Log:
    """Return the log in a file or a ROS 2 bag folder.

    `mapping` is a `Mapping` or the path of one in YAML. Without it, a log that `write_log` wrote
    is read as it was, and any other becomes one channel for each array, column or vector in a
    message, without units. `segment` chooses another segment than the mapping does. `is_default`:
    whether the mapping is that of a model, for recordings of its driver; a log that `write_log`
    wrote is then read as it was.

    Raises FileFormatError for a file that cannot be read, UnknownNameError for a field or topic
    that is not in it, InputError for what does not fit together; each says which file.
    """
    if mapping is None:
        if segment is not None:
            raise InputError(f"segment {segment} was asked for, but there is no mapping")
        raw = read_raw(path)
        return (
            native_log(raw)
            if raw.native is not None
            else build(raw, guess_mapping(raw), is_guess=True)
        )
    if not isinstance(mapping, Mapping):
        mapping = Mapping.load(mapping)
    if segment is not None:
        if mapping.segment is None:
            raise InputError(f"segment {segment} was asked for, but the mapping has no segments")
        index = checks.check_count("segment", segment, at_least=0)
        mapping = msgspec.structs.replace(mapping, segment=Segment(mapping.segment.offsets, index))
    raw = read_raw(path, {source.topic for _, _, source in mapping.sources()})
    if is_default and raw.native is not None:
        return native_log(read_raw(path))  # with all of its topics
    return build(raw, mapping)


@np.errstate(over="ignore", invalid="ignore")  # damaged numbers may be of any size
def build(raw: RawLog, mapping: Mapping, *, is_guess: bool = False) -> Log:
    """Return the channels of a mapping, made from the tables of a file; SI units, one origin.

    Args:
        raw: Tables of the file.
        mapping: Fields of each channel.
        is_guess: Whether the mapping was guessed. A channel that cannot be made is then left out
            with a note, as long as others can.

    Raises:
        InputError: A channel cannot be made; the message names it.
    """
    channels: dict[str, Series] = {}
    clocks: dict[str, Stamps] = {}
    notes = list(raw.notes)
    failures: list[InputError] = []
    for name, role, source in mapping.sources():
        try:
            channels[name], clock, lost = _channel(raw, mapping, source, role)
        except InputError as error:
            failures.append(type(error)(f"{raw.path}: channel {name!r}: {error}"))
            if not is_guess:
                raise failures[-1] from error
            notes.append(f"{name} is left out: {error}")
            continue
        clocks[name] = clock
        if clock.unset_count:
            notes.append(f"{name}: {clock.unset_count} rows whose stamp is zero are left out")
        if lost:
            notes.append(f"{name}: {lost} rows without a stamp are left out")
    if not channels:
        raise failures[0]
    notes += _note_clocks(raw, mapping, clocks)
    origin = min(clock.origin_ns for clock in clocks.values())
    for name, series in channels.items():
        later = 1e-9 * (clocks[name].origin_ns - origin)
        channels[name] = replace(series, times=series.times + later)
    return Log(channels, origin, str(raw.path), raw.format, notes=tuple(notes))


def _note_clocks(raw: RawLog, mapping: Mapping, clocks: dict[str, Stamps]) -> list[str]:
    """Return notes on recorders that stamp late, and on channels that have different clocks.

    Args:
        raw: Tables of the file.
        mapping: Where channels come from.
        clocks: Stamps of the channels that were made.
    """
    recorded = [name for name, clock in clocks.items() if clock.clock == RECORDER]
    topics = {source.topic for name, _, source in mapping.sources() if name in recorded}
    notes = [note_delay(table) for name, table in raw.tables.items() if name in topics]
    sent = [name for name, clock in clocks.items() if clock.clock == HEADER_STAMP]
    if recorded and sent:
        notes.append(
            f"two clocks: {', '.join(sent[:3])} by `header.stamp`, {', '.join(recorded[:3])} by "
            "the recorder's stamps"
        )
    return [note for note in notes if note]


def _channel(
    raw: RawLog, mapping: Mapping, source: ChannelSource, role: str
) -> tuple[Series, Stamps, int]:
    if source.topic in raw.unread:
        raise InputError(f"topic {source.topic!r} cannot be read: {raw.unread[source.topic]}")
    table = raw.tables[checks.check_member("topic", source.topic, raw.tables)]
    joined = join_fields(table, source)
    count = len(joined)
    rows = _segment(table, mapping, count)
    clock = find_stamps(table, source.time or mapping.time, rows, count)
    values = joined[rows].astype(np.float64)
    layout = find_layout(table, source, values.shape[1])
    values = layout.convert(values)
    stamped = np.isfinite(clock.times)
    absent = [table.absent.get(name, np.zeros(count, bool)) for name in source.fields]
    keep = stamped & ~np.logical_and.reduce(absent)[rows]
    if not keep.any():
        raise InputError("no row with a stamp and a value")
    if source.rotation:
        values = _make_quaternions(source.rotation, values)
    series = Series(
        clock.times[keep],
        measured(values[keep]),
        () if source.rotation else layout.names,
        "1" if source.rotation else layout.unit,
        source.frame,
        role,
        quaternion=bool(source.rotation),
    )
    return series, clock, int((~stamped).sum()) - clock.unset_count


def join_fields(table: RawTable, source: ChannelSource) -> Field:
    """Return all columns (n, m) of the fields of a channel, as recorded.

    Args:
        table: Table with the fields.
        source: Where the channel comes from.

    Raises:
        UnknownNameError: A field is not there.
        InputError: Fields are not numbers, have no rows, or have different numbers of them.
    """
    parts = [_rows(table, name) for name in source.fields]
    count = len(parts[0])
    for name, part in zip(source.fields, parts, strict=True):
        if len(part) != count:
            raise InputError(
                f"field {name!r} has {len(part)} rows, but {source.fields[0]!r} {count}"
            )
    if not count:
        raise InputError(f"field {source.fields[0]!r} has no rows")
    return np.concatenate(parts, axis=1)


def _rows(table: RawTable, name: str) -> Field:
    """Return a field as (n, m) numbers."""
    values = table[name]
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        raise InputError(
            f"field {name!r} must be (n,) or (n, m) numbers, not {values.dtype} of shape "
            f"{values.shape}"
        )
    return values.reshape(len(values), -1)


def _segment(table: RawTable, mapping: Mapping, count: int) -> slice:
    """Return the rows of the segment, or all rows if the mapping has none.

    Raises `InputError` where the segment does not exist, as in topics, which have no offsets.
    """
    if mapping.segment is None:
        return slice(0, count)
    if table.stamps is not None:
        raise InputError(
            f"segment.offsets {mapping.segment.offsets!r}: topics have no segments; leave "
            "`segment` out of the mapping"
        )
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


@dataclass(frozen=True)
class ColumnLayout:
    """Which columns of the fields of a channel are taken, their names, and their unit.

    Attributes:
        columns: Numbers of the m columns.
        names: Names of the m columns.
        unit: SI unit of the channel.
        factor: By which values are multiplied to be in it.
        width: Number of all columns.
    """

    columns: tuple[int, ...]
    names: tuple[str, ...]
    unit: str
    factor: float
    width: int

    def convert(self, values: Array) -> Array:
        """Return the chosen columns (..., m) in SI units, of all columns (..., n)."""
        return np.asarray(values.take(self._index, axis=-1) * self.factor)

    @cached_property
    def _index(self) -> Indices:
        return np.array(self.columns, dtype=np.intp)


def find_layout(table: RawTable, source: ChannelSource, width: int) -> ColumnLayout:
    """Return the columns that a channel takes of its fields, for a log or a live message.

    Args:
        table: Table with the fields, their labels and units.
        source: Where the channel comes from.
        width: Number of columns of all of its fields together.

    Raises:
        InputError: Labels do not fit the columns.
        UnknownNameError: A column or unit is unknown.
    """
    labels = _labels(table, source, width)
    chosen = list[int]()
    for column in source.columns:
        if column in labels:
            chosen.append(labels.index(column))
        elif column.isdecimal() and int(column) < len(labels):
            chosen.append(int(column))
        else:
            checks.check_member("column", column, labels)
    columns = tuple(chosen) if source.columns else tuple(range(width))
    unit, factor = si("unit", source.unit or table.units.get(source.fields[0], "1"))
    names = tuple(labels[k] for k in columns)
    return ColumnLayout(columns, names, unit, factor * source.scale, width)


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


def _make_quaternions(rotation: str, values: Array) -> Array:
    """Return quaternions (n, 4), x, y, z, w.

    Args:
        rotation: What the columns are, one of `ROTATIONS`.
        values: Quaternions (n, 4), or angles (n, 3) in rad.

    Raises:
        InputError: There are other columns.
    """
    width = 3 if rotation == "rpy" else 4
    if values.shape[1] != width:
        raise InputError(f"rotation {rotation!r} needs {width} columns, got {values.shape[1]}")
    if rotation == "wxyz":
        return np.asarray(values[:, [1, 2, 3, 0]])
    if rotation == "rpy":
        known = np.isfinite(values).all(axis=1)
        quaternions = np.full((len(values), 4), np.nan)
        quaternions[known] = Rotation.from_euler("xyz", values[known]).as_quat()
        return quaternions
    return values
