"""A mapping for recordings that come without one: a channel for each array, column or vector."""

from __future__ import annotations

from hybridctl.errors import InputError
from hybridctl.logs.mapping import ChannelSource, Mapping, TimeSource
from hybridctl.logs.raw import Field, RawLog, RawTable


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
            and not _is_stamp(name, table)
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


def _is_stamp(name: str, table: RawTable) -> bool:
    return table.stamps is not None and table.units.get(name) == "ns"


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
