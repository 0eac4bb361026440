"""A mapping for a recording that comes without one, by the names and shapes of its fields."""

from __future__ import annotations

from hybridctl.base.errors import InputError
from hybridctl.logs.mapping import ChannelSource, Mapping, TimeSource
from hybridctl.logs.raw import Field, RawLog, RawTable
from hybridctl.logs.time_fields import find_named_steps, find_named_time

_SHOWN_CHARACTERS_OF_NOTES = 200
"""Characters of the reader's notes that an error quotes."""
_DRAFTED_RATE = 100.0
"""Rate in Hz of a drafted mapping without stamps, to be edited."""


def guess_mapping(raw: RawLog) -> Mapping:
    """Return a mapping with a channel for each array, each column, and each vector in messages.

    Channels are named like fields, with their topic before. They have no units but those that the
    file names.

    Args:
        raw: Tables of the file.

    Raises:
        InputError: No table has stamps, or a field that is named like a time, beside other fields.
    """
    channels = dict(pair for table in raw.tables.values() for pair in _guess_channels(table))
    if not channels:
        unusable = [text for table in raw.tables.values() for text in table.unusable.values()]
        reasons = "; ".join(dict.fromkeys([*raw.notes, *unusable]))[:_SHOWN_CHARACTERS_OF_NOTES]
        because = f" ({reasons})" if reasons else ""
        raise InputError(
            f"{raw.path}: without a mapping, a field must be named like a time (t, time, stamp, "
            f"time_ns, ...) and others have as many rows; see `hybridctl info {raw.path}`{because}"
        )
    return Mapping(channels)


def draft_mapping(raw: RawLog) -> Mapping:
    """Return a mapping to edit: the guessed one, or without stamps all numbers at one rate.

    Args:
        raw: Tables of the file.

    Raises:
        InputError: The file has no field of numbers with rows.
    """
    try:
        return guess_mapping(raw)
    except InputError:
        channels = {
            f"{table.name}.{name}".strip("."): ChannelSource((name,), topic=table.name)
            for table in raw.tables.values()
            for name, values in table.fields.items()
            if values.ndim and _has_samples(values, len(values))
        }
        if not channels:
            raise
        return Mapping(channels, time=TimeSource(rate=_DRAFTED_RATE))


def _guess_channels(table: RawTable) -> list[tuple[str, ChannelSource]]:
    """Return the channels of a table by name; none where it has no stamps.

    Args:
        table: A table. Fields `parent.x`, `parent.y`, ... of messages become one channel `parent`.
    """
    time, steps = None, None
    if table.stamps is not None:
        rows = len(table.stamps)
    else:
        time = find_named_time(table)
        steps = find_named_steps(table) if time is None else None
        clock = time or steps
        if clock is None:
            return []  # without a time there is no channel
        rows = len(table.fields[clock[0]])
    times = {*table.clocks, *(found[0] for found in (time, steps) if found is not None)}
    if table.stamps is not None:  # messages have stamps beside those of the recorder
        times |= {name for name, unit in table.units.items() if unit == "ns"}
    groups: dict[str, list[str]] = {}
    for name, values in table.fields.items():
        if _has_samples(values, rows) and name not in times:
            parent = name.rpartition(".")[0]
            is_part = parent and values.ndim == 1 and name not in table.labels
            groups.setdefault(parent if is_part else name, []).append(name)
    # The mapping needs no time where fields are named like steps: it is found again by its name.
    source = TimeSource(*time) if time else None
    return [_make_source(table, group, fields, source) for group, fields in groups.items()]


def _has_samples(values: Field, rows: int) -> bool:
    """Return whether a field has numbers in so many rows, and at least one."""
    return (
        values.dtype.kind in "biuf"
        and values.ndim in (1, 2)
        and len(values) == rows
        and values.size > 0
    )


def _make_source(
    table: RawTable, group: str, fields: list[str], time: TimeSource | None
) -> tuple[str, ChannelSource]:
    """Return name and source of a channel.

    Args:
        table: Table of the fields.
        group: Name that the fields have in common.
        fields: Fields of the channel. Parts w, x, y and z are those of a quaternion.
        time: Its stamps; None for those of the recorder.
    """
    name = f"{table.name}.{group}" if table.name else group
    parts = {field.rpartition(".")[2]: field for field in fields}
    quaternion = set(parts) == set("wxyz")
    return name, ChannelSource(
        tuple(parts[axis] for axis in "xyzw") if quaternion else tuple(fields),
        topic=table.name,
        rotation="xyzw" if quaternion else "",
        time=time,
    )
