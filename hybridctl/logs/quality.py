"""What is odd about a log: stamps that repeat, go back or leave gaps, values that cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hybridctl.base.time_series import Series
from hybridctl.logs.schema import Log
from hybridctl.logs.stamps import describe_fault, find_first_rows

GAP = 5.0  # times the median spacing
PLAUSIBLE = {
    "m": 1e4,
    "rad": 50.0,
    "m/s": 1e3,
    "rad/s": 1e3,
    "m/s^2": 1e5,
    "rad/s^2": 1e6,
    "N": 1e6,
    "Nm": 1e5,
}
_CAUSE = {
    "rad": "degrees taken for radians?",
    "rad/s": "degrees taken for radians?",
    "m": "millimetres taken for metres?",
    "m/s": "millimetres taken for metres?",
}
_LONGEST_SPACING, _SHORTEST_SPACING = 1e3, 1e-7
_NORM = 0.01
_FEWEST_UNCHANGED = 1 / 3
"""Share of unchanged rows from which on they are worth a warning. A choice."""
_LONGEST_UNCHANGED = 10
"""Unchanged rows in a row that still count: a sensor of 100 Hz in a log of 1 kHz has nine."""


@dataclass(frozen=True)
class ChannelQuality:
    """Counts for one channel.

    `duplicates` are stamps seen before, `out_of_order` those earlier than one before them,
    `gaps` spacings above five times the median, `longest_gap` the largest spacing [s],
    `incomplete` the rows with a value missing (NaN), `repeated` those with stamp and values of an
    earlier row, `unchanged` those with the values of the row before while others change. `fault`
    says why the stamps cannot be put in order, "" if they can.
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
    """Counts for each channel, and one sentence for each thing that is odd."""

    channels: tuple[ChannelQuality, ...]
    warnings: tuple[str, ...]


@np.errstate(over="ignore", invalid="ignore")  # damaged numbers may be of any size
def examine(log: Log) -> LogReport:
    """Look for what a filter should be told of: see `ChannelQuality` and `PLAUSIBLE`."""
    qualities = tuple(_quality(name, series) for name, series in log.channels.items())
    warnings = list(log.notes)
    for series, quality in zip(log.channels.values(), qualities, strict=True):
        odd = _odd_stamps(quality) + _odd_values(series, quality)
        warnings += [f"{quality.name}: {text}" for text in odd]
    return LogReport(qualities, tuple(warnings + _apart(log)))


def _quality(name: str, channel: Series) -> ChannelQuality:
    times = channel.times
    spacing = np.diff(np.sort(times))
    apart = spacing[spacing > 0]
    median = float(np.median(apart)) if apart.size else 0.0
    back = times < np.maximum.accumulate(times) if times.size else np.zeros(0, bool)
    return ChannelQuality(
        name,
        len(channel),
        channel.rate,
        duplicates=int((spacing == 0).sum()),
        out_of_order=int(back.sum()),
        gaps=int((spacing > GAP * median).sum()) if apart.size else 0,
        longest_gap=float(spacing.max()) if spacing.size else 0.0,
        incomplete=int(np.isnan(channel.values).any(axis=1).sum()),
        repeated=len(channel) - len(find_first_rows(channel)),
        unchanged=_count_unchanged(channel),
        fault=describe_fault(channel),
    )


def _count_unchanged(channel: Series) -> int:
    """Return how many rows have the values of the row before; 0 for channels of whole numbers.

    Counters, flags and modes are whole numbers, and stay as they are most of the time. Longer
    stretches without a change do not count: there nothing moves.
    """
    values = channel.values
    if channel.role != "measurement" or (values == np.round(values)).all():
        return 0
    is_same = np.concatenate([[False], (values[1:] == values[:-1]).all(axis=1)])
    lengths = np.diff(np.append(np.flatnonzero(~is_same), len(values))) - 1
    return int(lengths[lengths <= _LONGEST_UNCHANGED].sum())


def _odd_stamps(quality: ChannelQuality) -> list[str]:
    odd = []
    if quality.duplicates:
        same = f", {quality.repeated} of {quality.count} rows with the same values"
        odd.append(
            f"{quality.duplicates} stamps occur more than once{same if quality.repeated else ''}"
        )
    if quality.out_of_order:
        odd.append(f"{quality.out_of_order} stamps are earlier than one before them")
    if quality.fault:
        odd.append(quality.fault)
    if quality.gaps:
        gaps = "1 gap" if quality.gaps == 1 else f"{quality.gaps} gaps"
        odd.append(
            f"{gaps} of more than {GAP:g} times the usual spacing, the longest "
            f"{quality.longest_gap:.3g} s"
        )
    spacing = 1 / quality.rate
    if spacing > _LONGEST_SPACING or spacing < _SHORTEST_SPACING:
        odd.append(f"stamps are {spacing:.3g} s apart; is the unit of the time right?")
    if quality.count == 1:
        odd.append("there is one sample only")
    if quality.count == 0:
        odd.append("there are no samples")
    return odd


def _odd_values(channel: Series, quality: ChannelQuality) -> list[str]:
    odd = []
    if quality.unchanged > _FEWEST_UNCHANGED * quality.count:
        odd.append(
            f"{quality.unchanged} of {quality.count} rows have the values of the row before: its "
            "sensor is slower than the log, or rows were written twice"
        )
    if quality.incomplete:
        odd.append(f"{quality.incomplete} of {quality.count} rows have missing values (NaN)")
    limit = PLAUSIBLE.get(channel.unit)
    size = np.abs(channel.values)
    if limit is not None and size.size and (size > limit).any():
        where = np.unravel_index(np.nanargmax(size), size.shape)
        odd.append(
            f"{channel.columns[where[1]]} reaches {channel.values[where]:.4g} {channel.unit} at "
            f"{channel.times[where[0]]:.3f} s; {_CAUSE.get(channel.unit, 'is its unit right?')}"
        )
    if channel.quaternion and len(channel):
        off = np.abs(np.linalg.norm(channel.values, axis=1) - 1)
        if (off > _NORM).any():
            odd.append(
                f"{int((off > _NORM).sum())} quaternions are not of unit length, off by up to "
                f"{np.nanmax(off):.3g}"
            )
    return odd


def _apart(log: Log) -> list[str]:
    """Return channels that share no time cannot come from one clock."""
    filled = [(name, series.times) for name, series in log.channels.items() if len(series)]
    return [
        f"{one} and {other} do not overlap in time; are their clocks and units the same?"
        for (one, a), (other, b) in combinations(filled, 2)
        if a.max() < b.min() or b.max() < a.min()
    ]
