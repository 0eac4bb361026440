"""Stamps of a channel: from a field, a rate, steps or the recorder, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridctl.base import checks
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.logs.mapping import TimeSource
from hybridctl.logs.raw import Field, RawTable
from hybridctl.logs.units import NANOSECONDS

ABSOLUTE = 1e8
"""Stamp in s from which on it counts from 1970; a smaller one counts from the log's start."""
LARGEST_OVERLAP = 1.0
"""Time in s by which stretches of rows may overlap after the clock went back.

Transport delays stay below it. More means a clock that was set back, or two recordings in one."""
_SHARE, _FEWEST_PERIODS = 0.2, 20.0
"""The same for short logs: share of their length, but at least so many median periods."""
_MOST_STRAY = 2
"""Rows that may come arbitrarily late behind one step back; more are another recording."""
_MOST_STEPS_BACK = 100
"""Steps back that are looked at, the largest first; each costs a pass over the stamps."""
_LARGEST = float(2**63)
_EVEN = 1e-3
"""Relative spread of time steps below which they count as equal."""
_LATE = 0.1
"""Delay in s of the recorder behind `header.stamp` that is worth a note. The value is a choice."""
HEADER_STAMP = "header.stamp"
"""Field of a message with the time at which its sender measured."""
RECORDER = "recorder"
"""`Stamps.clock` of stamps at which messages were recorded."""


@dataclass(frozen=True)
class Stamps:
    """The stamps of a channel.

    Attributes:
        origin_ns: Nanoseconds since 1970 at which `times` are zero; 0 for relative stamps.
        times: Stamps (n,) in s; NaN where the recording has none.
        unset_count: Stamps that are zero in a clock that counts from 1970; NaN in `times`.
        clock: Name of the clock, as `recorder` or the name of the field.
    """

    origin_ns: int
    times: Array
    unset_count: int = 0
    clock: str = ""


def find_stamps(table: RawTable, source: TimeSource, rows: slice, count: int) -> Stamps:
    """Return the stamps of the chosen rows of a table.

    Stamps from 1970 (more than three years) get an origin, taken off before anything is rounded;
    smaller ones are relative already and stay as they are.

    Args:
        table: Table with the time.
        source: Which time is taken; empty for the recorder's, or for the field named like a time.
        rows: Rows that are taken.
        count: Number of all rows.

    Raises:
        InputError: There is no such time, it is not of `count` numbers, or its stamps are of two
            clocks.
    """
    if source.rate:
        return Stamps(0, np.arange(rows.stop - rows.start) / _find_rate(table, source.rate))
    if source.steps:
        return _sum_steps(table, source.field, source.unit, source.steps, rows)
    if not source.field and table.stamps is not None:
        return _from_integers(RECORDER, table.stamps[rows], 1)
    found = find_time_field(table, source)
    if found is None:
        return _from_obvious_steps(table, rows)
    name, unit = found
    values = table[name]
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise InputError(f"time field {name!r} must be (n,) numbers, got shape {values.shape}")
    if len(values) != count:
        raise InputError(
            f"time field {name!r} has {len(values)} stamps, but there are {count} rows"
        )
    is_absent = table.absent.get(name, np.zeros(count, bool))[rows]
    return _from_field(name, values[rows], unit, is_absent)


def find_time_field(table: RawTable, source: TimeSource) -> tuple[str, str] | None:
    """Return the field that holds the stamps, and its unit; None where no name says so.

    Args:
        table: Table with the time.
        source: Which time is taken; without a field, that which is named like a time.
    """
    if not source.field:
        found = table.obvious_time()
        return None if found is None else (found[0], source.unit or found[1])
    unit = table.units.get(source.field) or table.obvious_unit(source.field) or "s"
    return source.field, source.unit or unit


def _find_rate(table: RawTable, rate: float | str) -> float:
    if not isinstance(rate, str):
        return rate
    value = table[rate]
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise InputError(f"time.rate: field {rate!r} must be one number, got shape {value.shape}")
    return checks.check_number(f"time.rate (field {rate!r})", value.item(), above=0)


def _from_obvious_steps(table: RawTable, rows: slice) -> Stamps:
    """Return the sums of a field such as `dt`.

    Args:
        table: Table without a field that is named like a time.
        rows: Rows that are used.

    Raises:
        InputError: There is no such field, or its steps differ: then it matters which row a step
            leads to.
    """
    found = table.obvious_steps()
    if found is None:
        raise InputError(
            f"no field is named like a time among {list(table.fields)}; the mapping needs "
            "`time: {field: ..., unit: ...}` or `time: {rate: ...}`"
        )
    name, unit = found
    steps = np.asarray(table[name][1:], np.float64)
    if steps.size and not np.ptp(steps) <= _EVEN * abs(float(np.median(steps))):
        raise InputError(
            f"the only time is {name!r}, which changes: the mapping must say to which row each "
            f"step leads, by `time: {{field: {name}, steps: previous}}` (from the row before) or "
            "`steps: next`"
        )
    return _sum_steps(table, name, unit, "previous", rows)


def _sum_steps(table: RawTable, name: str, unit: str, steps: str, rows: slice) -> Stamps:
    """Return the sums of the steps between rows, the first row of all at zero.

    Args:
        table: Table with the field.
        name: Field of the steps.
        unit: Its unit; "" for that of the table, or s.
        steps: "previous" if each is the time since the row before, "next" if until the row after.
        rows: Rows that are taken.
    """
    values = table[name]
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not np.isfinite(values[1:]).all():
        raise InputError(f"steps of time {name!r} must be (n,) numbers without missing ones")
    unit = unit or table.units.get(name, "s")
    factor = (
        NANOSECONDS[checks.check_member(f"unit of time field {name!r}", unit, NANOSECONDS)] * 1e-9
    )
    parts = values[1:] if steps == "previous" else values[:-1]
    if (parts < 0).any():
        raise InputError(f"steps of time {name!r} must not be negative, got {parts.min():g}")
    times = np.concatenate([[0.0], np.cumsum(parts, dtype=np.float64)]) * factor
    return Stamps(0, times[rows], clock=name)


def _from_field(name: str, values: Field, unit: str, is_absent: NDArray[np.bool_]) -> Stamps:
    """Return the stamps in a field; those of cells that are absent are NaN."""
    nanoseconds = NANOSECONDS[
        checks.check_member(f"unit of time field {name!r}", unit, NANOSECONDS)
    ]
    if values.dtype.kind in "iu":
        known = values[~is_absent]
        largest = max(abs(int(known.min())), abs(int(known.max()))) if len(known) else 0
        if largest * nanoseconds >= _LARGEST:
            raise InputError(
                f"time field {name!r} has a stamp of {largest} {unit}, which is out of range; "
                "is its unit right?"
            )
        found = _from_integers(name, known.astype(np.int64), nanoseconds)
        times = np.full(len(values), np.nan)
        times[~is_absent] = found.times
        return Stamps(found.origin_ns, times, found.unset_count, name)
    return _from_floats(name, values.astype(np.float64), unit, nanoseconds)


def _from_integers(name: str, values: NDArray[np.int64], nanoseconds: int) -> Stamps:
    """Return stamps of whole numbers, each of so many nanoseconds; exact to the last one."""
    values = values * nanoseconds
    is_unset = _find_unset(name, np.asarray(values * 1e-9, np.float64))
    known = values[~is_unset]
    origin = int(known.min()) if known.size and known.min() >= ABSOLUTE * 1e9 else 0
    times = np.where(is_unset, np.nan, (values - origin) * 1e-9)
    return Stamps(origin, times, int(is_unset.sum()), name)


def _from_floats(name: str, values: Array, unit: str, nanoseconds: int) -> Stamps:
    """Return stamps of floats in a unit; what is not finite is NaN.

    Args:
        name: Name of the field.
        values: Stamps (n,) in the unit.
        unit: Name of the unit, for errors.
        nanoseconds: Length of the unit in ns.

    Raises:
        InputError: A stamp is out of range, or stamps are of two clocks.
    """
    seconds = values * (nanoseconds * 1e-9)
    seconds[~np.isfinite(seconds)] = np.nan
    is_unset = _find_unset(name, seconds)
    seconds[is_unset] = np.nan
    is_known = np.isfinite(seconds)
    if not is_known.any() or seconds[is_known].min() < ABSOLUTE:
        return Stamps(0, seconds, int(is_unset.sum()), name)
    first = float(values[is_known].min())
    if first * nanoseconds >= _LARGEST:
        raise InputError(
            f"time field {name!r} has a stamp of {first:g} {unit}, which is out of range; "
            "is its unit right?"
        )
    relative = np.where(is_known, (values - first) * (nanoseconds * 1e-9), np.nan)
    whole = int(first)
    origin = whole * nanoseconds + round((first - whole) * nanoseconds)
    return Stamps(origin, relative, int(is_unset.sum()), name)


def _find_unset(name: str, seconds: Array) -> NDArray[np.bool_]:
    """Return which stamps (n,) are zero in a clock that counts from 1970.

    Raises `InputError` for other stamps of a second clock.
    """
    is_absolute = seconds >= ABSOLUTE
    if not is_absolute.any():
        return np.zeros(len(seconds), bool)
    is_unset = seconds == 0.0
    other = seconds[~is_absolute & ~is_unset & np.isfinite(seconds)]
    if other.size:
        raise InputError(
            f"stamps of {name!r} are of two clocks: {len(other)} as {other[0]:.6g} s, others as "
            f"{seconds[is_absolute][0]:.6g} s since 1970; take another time in the mapping"
        )
    return np.asarray(is_unset)


def describe_fault(series: Series) -> str:
    """Return why the rows of a channel cannot be put in order, or "" if they can.

    Rows that come late are put in order, as are files that follow each other in the wrong order,
    and rows that repeat an earlier one do not count. Rows of two recordings with the same stamps
    cannot be told apart.

    Args:
        series: Rows of the channel in the order of the file.
    """
    times = series.times
    if len(times) > 2 and np.ptp(times) == 0.0:
        return f"all {len(times)} stamps are {times[0]:.9g} s, the clock stands still"
    times = times[find_first_rows(series)]
    steps = np.diff(times)
    starts = np.flatnonzero(steps < 0.0) + 1
    if not len(starts):
        return ""
    periods = steps[steps > 0.0]
    least = _FEWEST_PERIODS * float(np.median(periods)) if len(periods) else 0.0
    limit = min(LARGEST_OVERLAP, max(_SHARE * float(np.ptp(times)), least))
    largest = _find_overlap(times, starts, steps, limit)
    if largest <= limit:
        return ""
    return (
        f"stamps go back {len(starts)} times, and rows of {largest:.3g} s lie among others with "
        "the same stamps: a clock that was set back, or two recordings in one"
    )


def _find_overlap(times: Array, starts: NDArray[np.intp], steps: Array, limit: float) -> float:
    """Return the longest time in s in which rows lie among rows before a step back.

    Args:
        times: Stamps (n,).
        starts: Rows whose stamp is earlier than the one before.
        steps: Differences (n - 1,) of the stamps.
        limit: Time in s that is too long; the search ends where it is exceeded.
    """
    first, last = np.minimum.accumulate(times), np.maximum.accumulate(times)
    rest = np.minimum.accumulate(times[::-1])[::-1]
    far = starts[last[starts - 1] - rest[starts] > limit]
    largest = 0.0
    for k in far[np.argsort(steps[far - 1])][:_MOST_STEPS_BACK]:
        later = times[k:]
        among = later[(later >= first[k - 1]) & (later < last[k - 1])]
        if len(among) > _MOST_STRAY:
            largest = max(
                largest, float(last[k - 1] - np.partition(among, _MOST_STRAY)[_MOST_STRAY])
            )
        if largest > limit:
            break
    return largest


def find_first_rows(series: Series) -> NDArray[np.intp]:
    """Return the rows of a series without those that repeat stamp and values of an earlier one."""
    count = len(series)
    if len(np.unique(series.times)) == count:
        return np.arange(count)
    table = np.column_stack([series.times, series.values])
    # Compared by their bytes, so that missing values are equal to each other.
    whole_row = np.dtype((np.void, table.dtype.itemsize * table.shape[1]))
    rows = np.ascontiguousarray(table).view(whole_row)[:, 0]
    return np.sort(np.unique(rows, return_index=True)[1])


def note_delay(table: RawTable) -> str:
    """Return a note if the recorder's stamps of a topic are late or uneven, else "".

    They are compared with `header.stamp`, the time at which the sender says that it measured.

    Args:
        table: Messages of the topic, with or without stamps of both kinds.
    """
    sent = table.fields.get(HEADER_STAMP)
    if table.stamps is None or sent is None or sent.dtype.kind not in "iu" or not len(sent):
        return ""
    is_set = sent != 0
    if not is_set.any():
        return ""
    unset = "" if is_set.all() else f"; {int((~is_set).sum())} are not set"
    late = (table.stamps[is_set] - sent[is_set]) * 1e-9
    low, middle, high = np.percentile(late, [5.0, 50.0, 95.0])
    periods = np.diff(np.sort(sent)) * 1e-9
    period = float(np.median(periods)) if len(periods) else np.inf
    if abs(middle) <= _LATE and high - low <= 0.5 * period:
        return ""
    return (
        f"{table.name}: stamps are the recorder's, {low:.3g} to {high:.3g} s after `header.stamp`"
        f"{unset}; `time: {{field: header.stamp}}` in the mapping takes those"
    )
