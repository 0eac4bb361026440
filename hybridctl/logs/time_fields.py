"""The field of a table that holds the time, found by its name, and its unit."""

from __future__ import annotations

import re

from hybridctl.logs.mapping import TimeSource
from hybridctl.logs.raw import RawTable

_TIME_NAME = re.compile(
    r"[%_#]*(?:(?:abs|elapsed|rel|relative|ros|rosbag|sample|sim|system|unix)[ _]?)?"
    r"(?:t|times?|date[ _]?time|stamps?|time[ _]?stamps?)(?:[ _]?(s|secs?|seconds|unix|ms|us|ns))?",
    re.IGNORECASE,
)
"""Names of the time, as `t`, `time_ns`, `%time` (rostopic), `__time` (PlotJuggler), `abs time`."""
_STEP_NAME = re.compile(
    r"(?:dt|delta[ _]?t|delta[ _]?time)(?:[ _](s|secs?|seconds|ms|us|ns))?", re.IGNORECASE
)
"""Names of the time between two rows."""
_FRACTIONS_OF_SECONDS = ("ms", "us", "ns")
"""Suffixes of a name that are units; all others that the patterns allow mean seconds."""


def find_time_field(table: RawTable, source: TimeSource) -> tuple[str, str] | None:
    """Return the field that holds the stamps, and its unit.

    Args:
        table: Table with the time.
        source: The field that a mapping chooses; without one, `find_named_time` does.

    Returns:
        Name and unit; None where the mapping chooses no field, no field is named like a time, and
        none has dates or clocks.
    """
    if not source.field:
        found = find_named_time(table)
        return None if found is None else (found[0], source.unit or found[1])
    unit = table.units.get(source.field) or _find_unit_of_time(table, source.field) or "s"
    return source.field, source.unit or unit


def find_named_time(table: RawTable) -> tuple[str, str] | None:
    """Return name and unit of the first field that is named like a time.

    Without such a name, the first field of dates or clocks is taken; None without any.
    """
    for name, values in table.fields.items():
        unit = _find_unit_of_time(table, name)
        if unit is not None and values.ndim == 1 and values.size:
            return name, unit
    return (table.clocks[0], "ns") if table.clocks else None


def find_named_steps(table: RawTable) -> tuple[str, str] | None:
    """Return name and unit of the field with the time between rows; None if none is named so."""
    for name, values in table.fields.items():
        match = _STEP_NAME.fullmatch(name.rpartition("/")[2])
        if match is not None and values.ndim == 1 and values.size:
            return name, table.units.get(name, _find_unit_of_suffix(match[1]))
    return None


def _find_unit_of_time(table: RawTable, name: str) -> str | None:
    """Return the unit of a field whose name is that of a time, None for any other field."""
    match = _TIME_NAME.fullmatch(name.rpartition("/")[2])
    if match is None:
        return None
    # `rostopic echo -p` writes %time in nanoseconds.
    return table.units.get(name, "ns" if name == "%time" else _find_unit_of_suffix(match[1]))


def _find_unit_of_suffix(suffix: str | None) -> str:
    unit = (suffix or "").lower()
    return unit if unit in _FRACTIONS_OF_SECONDS else "s"
