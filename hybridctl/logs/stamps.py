"""Stamps of a table: from a field, from a rate, or as recorded, without loss of precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridctl import checks
from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.logs.mapping import TimeSource
from hybridctl.logs.raw import Field, RawTable
from hybridctl.logs.units import NANOSECONDS

ABSOLUTE = 1e8  # s; a stamp from here on counts from 1970, a smaller one from the log's start
_LARGEST = float(2**63)


@dataclass(frozen=True)
class Stamps:
    """`times` in seconds after `origin_ns`; NaN where the recording has none."""

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
