"""Quality of a log: stamps that repeat, go back or leave gaps, and implausible values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hybridctl.base.time_series import Series
from hybridctl.logs.log import Log
from hybridctl.logs.stamp_faults import describe_stamp_fault, find_first_rows

GAP_SPACINGS = 5.0
"""Median spacings of the stamps from which on a spacing is a gap. The value is a choice."""
LARGEST_PLAUSIBLE = {
    "m": 1e4,
    "rad": 50.0,
    "m/s": 1e3,
    "rad/s": 1e3,
    "m/s^2": 1e5,
    "rad/s^2": 1e6,
    "N": 1e6,
    "Nm": 1e5,
}
"""Size above which values of a unit are warned of: sensors of robots do not reach it. A choice."""
_LIKELY_CAUSE = {
    "rad": "degrees taken for radians?",
    "rad/s": "degrees taken for radians?",
    "m": "millimetres taken for metres?",
    "m/s": "millimetres taken for metres?",
}
"""Cause of values above that size, by unit."""
_LONGEST_SPACING, _SHORTEST_SPACING = 1e3, 1e-7
"""Median spacing of stamps in s outside of which their unit is doubted. The values are a choice."""
_NOTED_NORM_ERROR = 0.01
"""Difference of a quaternion's length from one that is warned of. The value is a choice."""
_UNCHANGED_SHARE = 1 / 3
"""Share of unchanged rows from which on they are worth a warning. The value is a choice."""
_LONGEST_UNCHANGED = 10
"""Successive unchanged rows that still count: a sensor of 100 Hz in a log of 1 kHz has nine."""


@dataclass(frozen=True)
class ChannelQuality:
    """Counts for one channel.

    Attributes:
        name: Name of the channel.
        count: Number of rows.
        rate: Rate in Hz by the median of the positive spacings; NaN with fewer than two different
            stamps.
        duplicates: Number of stamps that another row has, too, beyond the first of each.
        out_of_order: Number of stamps that are earlier than one before them.
        gaps: Number of spacings of the sorted stamps above `GAP_SPACINGS` times that median.
        longest_gap: Largest spacing in s; 0 with fewer than two rows.
        incomplete: Number of rows with a missing value (NaN).
        repeated: Number of rows with stamp and values of an earlier row.
        unchanged: Number of rows with the values of the row before, see `_count_unchanged`.
        fault: Why the stamps cannot be put in order; empty if they can.
    """

    name: str
    count: int
    rate: float
    duplicates: int
    out_of_order: int
    gaps: int
    longest_gap: float
    incomplete: int
    repeated: int = 0
    unchanged: int = 0
    fault: str = ""


@dataclass(frozen=True)
class LogReport:
    """Quality of all channels of a log.

    Attributes:
        channels: Counts for each channel.
        warnings: Notes of the reader, and what a filter may stumble over, one sentence each.
    """

    channels: tuple[ChannelQuality, ...]
    warnings: tuple[str, ...]


@np.errstate(over="ignore", invalid="ignore")  # damaged numbers may be of any size
def examine(log: Log) -> LogReport:
    """Return counts and warnings for a log; see `ChannelQuality` and `LARGEST_PLAUSIBLE`.

    Args:
        log: The log.
    """
    qualities = tuple(_examine_channel(name, series) for name, series in log.channels.items())
    warnings = list(log.notes)
    for series, quality in zip(log.channels.values(), qualities, strict=True):
        found = _warn_of_stamps(quality) + _warn_of_values(series, quality)
        warnings += [f"{quality.name}: {text}" for text in found]
    apart = [
        f"{one} and {other} do not overlap in time; are their clocks and units the same?"
        for one, other in find_disjoint_channels(log.channels)
    ]
    return LogReport(qualities, tuple(warnings + apart))


def find_disjoint_channels(channels: Mapping[str, Series]) -> list[tuple[str, str]]:
    """Return pairs of channels that share no time, so that they cannot be of one clock."""
    spans = {name: (s.times.min(), s.times.max()) for name, s in channels.items() if len(s)}
    return [
        (one, other)
        for (one, (a_first, a_last)), (other, (b_first, b_last)) in combinations(spans.items(), 2)
        if a_last < b_first or b_last < a_first
    ]


def _examine_channel(name: str, channel: Series) -> ChannelQuality:
    times = channel.times
    spacing = np.diff(np.sort(times))
    positive = spacing[spacing > 0]
    median = float(np.median(positive)) if positive.size else 0.0
    is_late = times < np.maximum.accumulate(times) if times.size else np.zeros(0, bool)
    return ChannelQuality(
        name,
        len(channel),
        channel.rate,
        duplicates=int((spacing == 0).sum()),
        out_of_order=int(is_late.sum()),
        gaps=int((spacing > GAP_SPACINGS * median).sum()) if positive.size else 0,
        longest_gap=float(spacing.max()) if spacing.size else 0.0,
        incomplete=int(np.isnan(channel.values).any(axis=1).sum()),
        repeated=len(channel) - len(find_first_rows(channel)),
        unchanged=_count_unchanged(channel),
        fault=describe_stamp_fault(channel),
    )


def _count_unchanged(channel: Series) -> int:
    """Return the number of rows that have the values of the row before; 0 for whole numbers.

    It is 0 for inputs and truth, too. Stretches longer than `_LONGEST_UNCHANGED` do not count:
    there the robot does not move.
    """
    values = channel.values
    # Counters, flags and modes are whole numbers, and rarely change; inputs may be held.
    if channel.role != "measurement" or (values == np.round(values)).all():
        return 0
    is_same = np.concatenate([[False], (values[1:] == values[:-1]).all(axis=1)])
    lengths = np.diff(np.append(np.flatnonzero(~is_same), len(values))) - 1
    return int(lengths[lengths <= _LONGEST_UNCHANGED].sum())


def _warn_of_stamps(quality: ChannelQuality) -> list[str]:
    """Return warnings about the stamps of a channel."""
    found = []
    if quality.duplicates:
        same = f", {quality.repeated} of {quality.count} rows with the same values"
        found.append(
            f"{quality.duplicates} stamps occur more than once{same if quality.repeated else ''}"
        )
    if quality.out_of_order:
        found.append(f"{quality.out_of_order} stamps are earlier than one before them")
    if quality.fault:
        found.append(quality.fault)
    if quality.gaps:
        gaps = "1 gap" if quality.gaps == 1 else f"{quality.gaps} gaps"
        found.append(
            f"{gaps} of more than {GAP_SPACINGS:g} times the usual spacing, the longest "
            f"{quality.longest_gap:.3g} s"
        )
    spacing = 1 / quality.rate
    if spacing > _LONGEST_SPACING or spacing < _SHORTEST_SPACING:
        found.append(f"stamps are {spacing:.3g} s apart; is the unit of the time right?")
    if quality.count == 1:
        found.append("there is one sample only")
    if quality.count == 0:
        found.append("there are no samples")
    return found


def _warn_of_values(channel: Series, quality: ChannelQuality) -> list[str]:
    """Return warnings about the values of a channel."""
    found = []
    if quality.unchanged > _UNCHANGED_SHARE * quality.count:
        found.append(
            f"{quality.unchanged} of {quality.count} rows have the values of the row before: its "
            "sensor is slower than the log, or rows were written twice"
        )
    if quality.incomplete:
        found.append(f"{quality.incomplete} of {quality.count} rows have missing values (NaN)")
    limit = LARGEST_PLAUSIBLE.get(channel.unit)
    size = np.abs(channel.values)
    if limit is not None and size.size and (size > limit).any():
        row, column = np.unravel_index(np.nanargmax(size), size.shape)
        cause = _LIKELY_CAUSE.get(channel.unit, "is its unit right?")
        found.append(
            f"{channel.columns[column]} reaches {channel.values[row, column]:.4g} {channel.unit} "
            f"at {channel.times[row]:.3f} s; {cause}"
        )
    if channel.quaternion and len(channel):
        error = np.abs(np.linalg.norm(channel.values, axis=1) - 1)
        count = int((error > _NOTED_NORM_ERROR).sum())
        if count:
            found.append(
                f"{count} quaternions are not of unit length, off by up to {np.nanmax(error):.3g}"
            )
    return found
