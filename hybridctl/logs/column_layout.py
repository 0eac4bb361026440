"""Columns of a channel: which ones of its fields are taken, their names, and their unit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybridctl.base import checks
from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import InputError
from hybridctl.logs.mapping import ChannelSource
from hybridctl.logs.raw import Field, RawTable
from hybridctl.logs.units import find_si_unit


def join_fields(table: RawTable, source: ChannelSource) -> Field:
    """Return all columns (n, m) of the fields of a channel, as recorded.

    Args:
        table: Table with the fields.
        source: Fields of the channel.

    Raises:
        UnknownNameError: A field is not there.
        InputError: Fields are not numbers, have no rows, or have different numbers of them.
    """
    parts = [_read_columns(table, name) for name in source.fields]
    count = len(parts[0])
    for name, part in zip(source.fields, parts, strict=True):
        if len(part) != count:
            raise InputError(
                f"field {name!r} has {len(part)} rows, but {source.fields[0]!r} {count}"
            )
    if not count:
        raise InputError(f"field {source.fields[0]!r} has no rows")
    return np.concatenate(parts, axis=1)


def _read_columns(table: RawTable, name: str) -> Field:
    """Return a field as numbers (n, m).

    Args:
        table: Table with the field.
        name: Name of the field.

    Raises:
        UnknownNameError: The field is not there.
        InputError: The field is unusable, or does not hold numbers with one or two axes.
    """
    values = table[name]
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        raise InputError(
            f"field {name!r} must be (n,) or (n, m) numbers, not {values.dtype} of shape "
            f"{values.shape}"
        )
    return values.reshape(len(values), -1)


@dataclass(frozen=True)
class ColumnLayout:
    """The columns that a channel takes of its fields, their names, and their unit.

    Attributes:
        columns: Indices of the m columns.
        names: Names of the m columns.
        unit: SI unit of the channel.
        factor: Factor by which recorded values are multiplied to be in that unit.
        width: Number of columns of all fields together.
    """

    columns: tuple[int, ...]
    names: tuple[str, ...]
    unit: str
    factor: float
    width: int

    def convert(self, values: Array) -> Array:
        """Return the columns (..., m) of the channel in SI units, of all columns (..., width)."""
        return np.asarray(values.take(self._index, axis=-1) * self.factor)

    @cached_property
    def _index(self) -> Indices:
        return np.array(self.columns, dtype=np.intp)


def find_column_layout(table: RawTable, source: ChannelSource, width: int) -> ColumnLayout:
    """Return the columns that a channel takes of its fields, for a log or a live message.

    Without a unit in the source, that of the first field counts for all of them.

    Args:
        table: Table with the fields, their labels and units.
        source: Fields, columns, labels and unit of the channel.
        width: Number of columns of all fields together.

    Raises:
        InputError: Labels do not fit the columns.
        UnknownNameError: A column, a unit or the field of the labels is unknown.
    """
    labels = _find_labels(table, source, width)
    chosen = list[int]()
    for column in source.columns:
        if column in labels:
            chosen.append(labels.index(column))
        elif column.isdecimal() and int(column) < len(labels):
            chosen.append(int(column))
        else:
            checks.check_member("column", column, labels)  # raises, with similar names
    columns = tuple(chosen) if source.columns else tuple(range(width))
    unit, factor = find_si_unit("unit", source.unit or table.units.get(source.fields[0], "1"))
    names = tuple(labels[k] for k in columns)
    return ColumnLayout(columns, names, unit, factor * source.scale, width)


def _find_labels(table: RawTable, source: ChannelSource, width: int) -> tuple[str, ...]:
    """Return the names of all columns of the fields of a channel.

    They are those of the mapping; else the last parts of the fields' names where each field is one
    column; else the labels that a single field has; else numbers from 0.

    Args:
        table: Table with the fields.
        source: Fields of the channel, and maybe labels.
        width: Number of columns of all fields together.

    Raises:
        InputError: The mapping has labels, and not one for each column.
    """
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
