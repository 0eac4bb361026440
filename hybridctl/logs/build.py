"""Logs from the tables of a file: stamps, values in SI units, and rotations as quaternions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from scipy.spatial.transform import Rotation

from hybridctl.base import checks
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.logs.column_layout import find_column_layout, join_fields
from hybridctl.logs.log import Log
from hybridctl.logs.mapping import ChannelSource, Mapping, Segment
from hybridctl.logs.mapping_guess import guess_mapping
from hybridctl.logs.native import make_native_log
from hybridctl.logs.raw import RawLog, RawTable, convert_to_measured
from hybridctl.logs.readers import read_raw
from hybridctl.logs.stamp_faults import note_delay
from hybridctl.logs.stamps import HEADER_STAMP, RECORDER_CLOCK, Stamps, find_stamps

_SHOWN_CHANNELS = 3
"""Channels of each clock that a note names."""


def read_log(
    path: str | Path,
    mapping: Mapping | str | Path | None = None,
    *,
    segment: int | None = None,
    is_default: bool = False,
) -> Log:
    """Return the log in a file or a ROS 2 bag folder.

    Args:
        path: The file or folder.
        mapping: Fields of each channel, as a `Mapping` or the path of a YAML file. Without it, a
            log that `write_log` wrote is read as it was, and any other becomes one channel for each
            array, column or vector in a message, without units.
        segment: Number of another recording in the file than the mapping chooses.
        is_default: Whether the mapping is that of a model, for recordings of its driver. A log that
            `write_log` wrote is then read as it was.

    Raises:
        FileFormatError: The file cannot be read.
        UnknownNameError: A field or topic is not in the file.
        InputError: The file does not exist, fields do not fit together, or `segment` is given and
            the mapping has none.
    """
    if mapping is None:
        if segment is not None:
            raise InputError(f"segment {segment} was asked for, but there is no mapping")
        raw = read_raw(path)
        if raw.native is not None:
            return make_native_log(raw)
        return build_log(raw, guess_mapping(raw), is_guess=True)
    if not isinstance(mapping, Mapping):
        mapping = Mapping.load(mapping)
    if segment is not None:
        if mapping.segment is None:
            raise InputError(f"segment {segment} was asked for, but the mapping has no segments")
        index = checks.check_count("segment", segment, at_least=0)
        mapping = msgspec.structs.replace(mapping, segment=Segment(mapping.segment.offsets, index))
    raw = read_raw(path, {source.topic for _, _, source in mapping.list_sources()})
    if is_default and raw.native is not None:
        return make_native_log(read_raw(path))  # with all topics, not those of the mapping alone
    return build_log(raw, mapping)


@np.errstate(over="ignore", invalid="ignore")  # damaged numbers may be of any size
def build_log(raw: RawLog, mapping: Mapping, *, is_guess: bool = False) -> Log:
    """Return the log with the channels of a mapping, in SI units, with one origin of all stamps.

    Args:
        raw: Tables of the file.
        mapping: Fields of each channel, of which it has one at least.
        is_guess: Whether the mapping was guessed. A channel that cannot be made is then left out
            with a note, as long as others can.

    Raises:
        InputError: A channel of a given mapping cannot be made, or no channel of a guessed one; the
            message names file and channel. It has the type of the first reason, such as
            `UnknownNameError` for a field that is not there.
    """
    channels: dict[str, Series] = {}
    clocks: dict[str, Stamps] = {}
    notes = list(raw.notes)
    failures: list[InputError] = []
    for name, role, source in mapping.list_sources():
        try:
            channels[name], clock, unstamped_count = _build_channel(raw, mapping, source, role)
        except InputError as error:
            failures.append(type(error)(f"{raw.path}: channel {name!r}: {error}"))
            if not is_guess:
                raise failures[-1] from error
            notes.append(f"{name} is left out: {error}")
            continue
        clocks[name] = clock
        if clock.unset_count:
            notes.append(f"{name}: {clock.unset_count} rows whose stamp is zero are left out")
        if unstamped_count:
            notes.append(f"{name}: {unstamped_count} rows without a stamp are left out")
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
        mapping: Topics of the channels.
        clocks: Stamps of the channels that were made.
    """
    recorded = [name for name, clock in clocks.items() if clock.clock == RECORDER_CLOCK]
    topics = {source.topic for name, _, source in mapping.list_sources() if name in recorded}
    notes = [note_delay(table) for name, table in raw.tables.items() if name in topics]
    sent = [name for name, clock in clocks.items() if clock.clock == HEADER_STAMP]
    if recorded and sent:
        notes.append(
            f"two clocks: {', '.join(sent[:_SHOWN_CHANNELS])} by `header.stamp`, "
            f"{', '.join(recorded[:_SHOWN_CHANNELS])} by the recorder's stamps"
        )
    return [note for note in notes if note]


def _build_channel(
    raw: RawLog, mapping: Mapping, source: ChannelSource, role: str
) -> tuple[Series, Stamps, int]:
    """Return a channel whose stamps count from its own origin.

    Args:
        raw: Tables of the file.
        mapping: Stamps and segment of channels that have none of their own.
        source: Fields of the channel.
        role: Role of the channel, see `ROLES`.

    Returns:
        The channel, its stamps, and the number of rows that are left out because they have no
        stamp, without those whose stamp was not set.

    Raises:
        InputError: The channel cannot be made.
        UnknownNameError: A topic, field or unit is unknown.
    """
    if source.topic in raw.unread:
        raise InputError(f"topic {source.topic!r} cannot be read: {raw.unread[source.topic]}")
    table = raw.tables[checks.check_member("topic", source.topic, raw.tables)]
    joined = join_fields(table, source)
    count = len(joined)
    rows = _find_segment(table, mapping, count)
    clock = find_stamps(table, source.time or mapping.time, rows, count)
    values = joined[rows].astype(np.float64)
    layout = find_column_layout(table, source, values.shape[1])
    values = layout.convert(values)
    is_stamped = np.isfinite(clock.times)
    # Channels with other stamps share a text table, and leave each other's cells empty.
    absent = [table.absent.get(name, np.zeros(count, bool)) for name in source.fields]
    is_used = is_stamped & ~np.logical_and.reduce(absent)[rows]
    if not is_used.any():
        raise InputError("no row with a stamp and a value")
    if source.rotation:
        values = _convert_to_quaternions(source.rotation, values)
    series = Series(
        clock.times[is_used],
        convert_to_measured(values[is_used]),
        () if source.rotation else layout.names,  # `Series` names those of a quaternion
        "1" if source.rotation else layout.unit,
        source.frame,
        role,
        quaternion=bool(source.rotation),
    )
    return series, clock, int((~is_stamped).sum()) - clock.unset_count


def _find_segment(table: RawTable, mapping: Mapping, count: int) -> slice:
    """Return the rows of the segment, or all rows if the mapping has none.

    Args:
        table: Table with the offsets.
        mapping: The mapping.
        count: Number of all rows.

    Raises:
        InputError: The segment does not exist, or the table is a topic, which has no offsets.
        UnknownNameError: The field of the offsets is not there.
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


def _convert_to_quaternions(rotation: str, values: Array) -> Array:
    """Return quaternions (n, 4), x, y, z, w; those of a log keep the norm that they have there.

    Args:
        rotation: Meaning of the columns: "wxyz", "xyzw", or "rpy" for roll, pitch and yaw about
            fixed axes, Rz(yaw) Ry(pitch) Rx(roll).
        values: Quaternions (n, 4), or angles (n, 3) in rad. Rows with NaN become NaN.

    Raises:
        InputError: There are other columns.
    """
    width = 3 if rotation == "rpy" else 4
    if values.shape[1] != width:
        raise InputError(f"rotation {rotation!r} needs {width} columns, got {values.shape[1]}")
    if rotation == "wxyz":
        return np.asarray(values[:, [1, 2, 3, 0]])
    if rotation == "rpy":
        known = np.isfinite(values).all(axis=1)  # scipy refuses NaN
        quaternions = np.full((len(values), 4), np.nan)
        quaternions[known] = Rotation.from_euler("xyz", values[known]).as_quat()
        return quaternions
    return values
