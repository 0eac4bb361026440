"""Stamps of a channel: from a field, a rate, steps, or the recorder, exact to the last one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridctl.base import checks
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.logs.mapping import TimeSource
from hybridctl.logs.raw import Field, RawTable
from hybridctl.logs.time_fields import find_named_steps, find_time_field
from hybridctl.logs.units import NANOSECONDS

EPOCH_STAMP = 1e8
"""Stamp in s from which on it counts from 1970; a smaller one counts from the log's start.

It is three years: no log lasts as long, and no robot was logged before 1973."""
HEADER_STAMP = "header.stamp"
"""Field of a message with the time at which its sender measured."""
RECORDER_CLOCK = "recorder"
"""`Stamps.clock` of stamps at which messages were recorded."""
_END_OF_INT64 = float(2**63)
"""Number of nanoseconds from which on a stamp does not fit into 64 bits: the year 2262."""
_EQUAL_STEPS = 1e-3
"""Spread of time steps, relative to their median, below which they count as equal.

The value is a choice."""


@dataclass(frozen=True)
class Stamps:
    """The stamps of a channel.

    Attributes:
        origin_ns: Nanoseconds since 1970 at which `times` are zero; 0 for relative stamps.
        times: Stamps (n,) in s; NaN where the recording has none.
        unset_count: Number of stamps that are zero in a clock that counts from 1970, so that they
            were not set; they are NaN in `times`.
        clock: Name of the clock: `RECORDER_CLOCK`, the field of the stamps, or empty for a rate.
    """

    origin_ns: int
    times: Array
    unset_count: int = 0
    clock: str = ""


def find_stamps(table: RawTable, source: TimeSource, rows: slice, count: int) -> Stamps:
    """Return the stamps of the chosen rows of a table.

    Stamps that count from 1970 (above `EPOCH_STAMP`) get an origin, which is subtracted before
    anything is rounded. Smaller ones are relative already, and stay as they are.

    Args:
        table: Table with the time.
        source: The time that is used; empty for that of the recorder or, without one, the field
            that is named like a time.
        rows: Rows that are used; start and stop are numbers, without a step.
        count: Number of all rows.

    Returns:
        The stamps of the rows. By a rate, the first of the rows is at zero; by steps, the first row
        of the table is.

    Raises:
        InputError: There is no time, it is not of `count` numbers, its stamps are out of range or
            of two clocks, or a rate or a step is not as it must be.
        UnknownNameError: The field of the time or of the rate is not there, or a unit is unknown.
    """
    if source.rate:
        return Stamps(0, np.arange(rows.stop - rows.start) / _find_rate(table, source.rate))
    if source.steps:
        return _sum_steps(table, source.field, source.unit, source.steps, rows)
    if not source.field and table.stamps is not None:
        return _convert_integers(RECORDER_CLOCK, table.stamps[rows], 1)
    found = find_time_field(table, source)
    if found is None:
        return _sum_named_steps(table, rows)
    name, unit = found
    values = table[name]
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise InputError(f"time field {name!r} must be (n,) numbers, got shape {values.shape}")
    if len(values) != count:
        raise InputError(
            f"time field {name!r} has {len(values)} stamps, but there are {count} rows"
        )
    is_absent = table.absent.get(name, np.zeros(count, bool))[rows]
    return _convert_field(name, values[rows], unit, is_absent)


def _find_rate(table: RawTable, rate: float | str) -> float:
    """Return a rate in Hz.

    Args:
        table: Table with the field.
        rate: The rate, or the field that holds it as its one number.

    Raises:
        InputError: The field does not hold one positive number.
        UnknownNameError: There is no such field.
    """
    if not isinstance(rate, str):
        return rate
    value = table[rate]
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise InputError(f"time.rate: field {rate!r} must be one number, got shape {value.shape}")
    return checks.check_number(f"time.rate (field {rate!r})", value.item(), above=0)


def _sum_named_steps(table: RawTable, rows: slice) -> Stamps:
    """Return stamps that are the sums of a field such as `dt`.

    Args:
        table: Table without a field that is named like a time.
        rows: Rows that are used.

    Raises:
        InputError: There is no such field, or its steps differ: then it matters which row a step
            leads to.
    """
    found = find_named_steps(table)
    if found is None:
        raise InputError(
            f"no field is named like a time among {list(table.fields)}; the mapping needs "
            "`time: {field: ..., unit: ...}` or `time: {rate: ...}`"
        )
    name, unit = found
    steps = np.asarray(table[name][1:], np.float64)
    # Equal steps give the same stamps whether they are since the row before or until the next.
    if steps.size and not np.ptp(steps) <= _EQUAL_STEPS * abs(float(np.median(steps))):
        raise InputError(
            f"the only time is {name!r}, which changes: the mapping must say to which row each "
            f"step leads, by `time: {{field: {name}, steps: previous}}` (from the row before) or "
            "`steps: next`"
        )
    return _sum_steps(table, name, unit, "previous", rows)


def _sum_steps(table: RawTable, name: str, unit: str, steps: str, rows: slice) -> Stamps:
    """Return stamps that are sums of the steps between rows, the first row of the table at zero.

    Args:
        table: Table with the field.
        name: Field of the steps.
        unit: Unit of the steps; empty for that of the table, or s.
        steps: "previous" if each step is the time since the row before, "next" if it is the time
            until the row after.
        rows: Rows that are used.

    Raises:
        InputError: The field does not hold numbers, or a step between two rows is missing or
            negative.
        UnknownNameError: The field is not there, or its unit is unknown.
    """
    values = table[name]
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise InputError(f"steps of time {name!r} must be (n,) numbers, got shape {values.shape}")
    # The first step is since a row before the table, the last until one after it: not used.
    parts = values[1:] if steps == "previous" else values[:-1]
    if not np.isfinite(parts).all():
        raise InputError(f"steps of time {name!r} must be (n,) numbers without missing ones")
    unit = unit or table.units.get(name, "s")
    factor = (
        NANOSECONDS[checks.check_member(f"unit of time field {name!r}", unit, NANOSECONDS)] * 1e-9
    )
    if (parts < 0).any():
        raise InputError(f"steps of time {name!r} must not be negative, got {parts.min():g}")
    times = np.concatenate([[0.0], np.cumsum(parts, dtype=np.float64)]) * factor
    return Stamps(0, times[rows], clock=name)


def _convert_field(name: str, values: Field, unit: str, is_absent: NDArray[np.bool_]) -> Stamps:
    """Return the stamps that a field holds.

    Args:
        name: Name of the field.
        values: Stamps (n,) in the unit.
        unit: Unit of the stamps.
        is_absent: Whether a cell (n,) is empty; its stamp is NaN.

    Raises:
        InputError: A stamp is out of range, or stamps are of two clocks.
        UnknownNameError: The unit is unknown.
    """
    nanoseconds = NANOSECONDS[
        checks.check_member(f"unit of time field {name!r}", unit, NANOSECONDS)
    ]
    if values.dtype.kind in "iu":
        known = values[~is_absent]
        largest = max(abs(int(known.min())), abs(int(known.max()))) if len(known) else 0
        if largest * nanoseconds >= _END_OF_INT64:
            raise InputError(
                f"time field {name!r} has a stamp of {largest} {unit}, which is out of range; "
                "is its unit right?"
            )
        found = _convert_integers(name, known.astype(np.int64), nanoseconds)
        times = np.full(len(values), np.nan)
        times[~is_absent] = found.times
        return Stamps(found.origin_ns, times, found.unset_count, name)
    return _convert_floats(name, values.astype(np.float64), unit, nanoseconds)


def _convert_integers(name: str, values: NDArray[np.int64], nanoseconds: int) -> Stamps:
    """Return stamps, exact to 1 ns, of whole numbers (n,) in a unit of `nanoseconds` ns."""
    values = values * nanoseconds
    is_unset = _find_unset(name, np.asarray(values * 1e-9, np.float64))
    known = values[~is_unset]
    origin = int(known.min()) if known.size and known.min() >= EPOCH_STAMP * 1e9 else 0
    times = np.where(is_unset, np.nan, (values - origin) * 1e-9)
    return Stamps(origin, times, int(is_unset.sum()), name)


def _convert_floats(name: str, values: Array, unit: str, nanoseconds: int) -> Stamps:
    """Return stamps that are floats in a unit; those that are not finite are NaN.

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
    if not is_known.any() or seconds[is_known].min() < EPOCH_STAMP:
        return Stamps(0, seconds, int(is_unset.sum()), name)
    first = float(values[is_known].min())
    if first * nanoseconds >= _END_OF_INT64:
        raise InputError(
            f"time field {name!r} has a stamp of {first:g} {unit}, which is out of range; "
            "is its unit right?"
        )
    relative = np.where(is_known, (values - first) * (nanoseconds * 1e-9), np.nan)
    whole = int(first)
    origin = whole * nanoseconds + round((first - whole) * nanoseconds)
    return Stamps(origin, relative, int(is_unset.sum()), name)


def _find_unset(name: str, seconds: Array) -> NDArray[np.bool_]:
    """Return which stamps (n,) are zero in a clock that counts from 1970, so that they are not set.

    Args:
        name: Name of the clock, for the error.
        seconds: Stamps (n,) in s; NaN where they are missing.

    Raises:
        InputError: Stamps count from 1970 and others do not.
    """
    is_absolute = seconds >= EPOCH_STAMP
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
