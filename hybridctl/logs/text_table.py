"""Text tables, with any usual delimiter, decimal mark, and spelling of names and units.

Lines are split by their layout (`table_layout`), and columns become numbers (`cells`). A table that
can be read in two ways is refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridctl.base.errors import FileFormatError
from hybridctl.logs.cells import DAY_NS, Column, is_number, parse_columns
from hybridctl.logs.raw import RawLog, RawTable
from hybridctl.logs.read_errors import MAX_BYTES, describe_excess
from hybridctl.logs.table_layout import (
    TableLayout,
    TextLines,
    describe_missing_names,
    describe_width,
    find_delimiter,
    find_table_layout,
    read_names_in_comment,
    split_lines,
    split_rows,
    strip_brackets,
)
from hybridctl.logs.text_encoding import decode_text
from hybridctl.logs.units import normalize_unit

HEADER_MARK = "# hybridctl log "
"""Beginning of the line that holds the header of a log that hybridctl wrote."""
_SHOWN_LINES = 3
"""Preamble lines that the note about them quotes."""
_NAME_WITH_UNIT = re.compile(r"^(?P<name>.+?)\s*[\[(](?P<unit>[^\])]+)[\])]$")


def read_table(path: Path) -> RawLog:
    """Return the columns of a text table with their units, and notes of what was not read.

    Args:
        path: The file. Its encoding is UTF-8, UTF-16 or Latin-1.

    Returns:
        One table. Refused columns are in `unusable` with the reason.

    Raises:
        FileFormatError: The file is too large or no text, its header by hybridctl is damaged, or
            it has no names or no data, names that stand twice over different values, rows of
            different lengths, or commas that both separate cells and mark decimals.
    """
    if path.stat().st_size > MAX_BYTES:
        raise FileFormatError(describe_excess(path, "the table", path.stat().st_size))
    text, notes = decode_text(path)
    lines = split_lines(text)
    native = _read_native_header(path, lines.comments)
    if not lines.texts:
        raise FileFormatError(f"{path}: no row of names and no data")
    if native is not None:  # its layout is known
        rows = split_rows(lines, ",")
        layout = TableLayout(0, None, 1, len(rows[0]))
    else:
        rows = split_rows(lines, find_delimiter(lines.texts))
        layout = find_table_layout(path, lines, rows)
    body = _select_data_rows(path, lines, rows, layout, notes)
    names, units = _read_names(path, rows, layout, lines, has_units=native is None)
    table = RawTable("", units=units)
    columns = parse_columns(list(zip(*body, strict=True)))
    _fill_table(path, table, names, columns, notes)
    if native is None:
        _note_skipped(lines, layout, notes)
    if not lines.has_end:
        notes.append("the last line has no end; the file may be cut short")
    return RawLog(path, "csv", {"": table}, native, notes)


def _read_native_header(path: Path, comments: Sequence[str]) -> dict[str, Any] | None:
    """Return the header of a table that hybridctl wrote, None for any other table.

    Args:
        path: The file, for the error.
        comments: Comments before the first row.

    Raises:
        FileFormatError: The header is damaged.
    """
    for line in comments:
        if line.startswith(HEADER_MARK):
            try:
                header: dict[str, Any] = json.loads(line.removeprefix(HEADER_MARK))
            except ValueError as error:
                raise FileFormatError(f"{path}: the header line is damaged ({error})") from error
            return header
    return None


def _select_data_rows(
    path: Path, lines: TextLines, rows: list[list[str]], layout: TableLayout, notes: list[str]
) -> list[list[str]]:
    """Return the rows of data, all of them with as many cells as there are names.

    A last row that is cut short in a file without a last line end is left out.

    Args:
        path: The file, for errors.
        lines: The lines of the file. Its `has_end` is set once a row that is cut short is noted.
        rows: The cells of each line. Empty names at the end of the row of names are removed.
        layout: Where names and data stand.
        notes: Extended by what is left out.

    Raises:
        FileFormatError: Another row has another number of cells, or there are no rows of data.
    """
    names = rows[layout.names] if layout.names is not None else read_names_in_comment(lines, rows)
    while len(names) > layout.width and not names[-1].strip():
        names.pop()  # a delimiter at the end of the row of names
    body = rows[layout.first :]
    over = [row[-1] for row in body if len(row) > len(names)]
    if len(names) == layout.width - 1 and not any(cell.strip() for cell in over):
        body = [row[: len(names)] for row in body]  # a delimiter at the end of each row
    if len(body) > 1 and len(body[-1]) != len(names) and not lines.has_end:
        notes.append(f"line {lines.numbers[-1]}, the last, is cut short and left out")
        body = body[:-1]
        lines.has_end = True  # so that it is noted once
    for number, row in zip(lines.numbers[layout.first :], body, strict=False):
        if len(row) != len(names):
            raise FileFormatError(describe_width(path, number, row, names))
    if not body:
        raise FileFormatError(f"{path}: names, but no rows of data")
    return body


def _read_names(
    path: Path, rows: list[list[str]], layout: TableLayout, lines: TextLines, *, has_units: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the names of the columns, and units by name, from brackets or the row of units.

    Args:
        path: The file, for the error.
        rows: The cells of each line.
        layout: Where names and units stand.
        lines: The lines of the file, whose comment may have the names.
        has_units: Whether brackets after a name hold its unit.

    Returns:
        Names in the order of the columns, and units of those that have one.

    Raises:
        FileFormatError: All names are numbers.
    """
    cells = rows[layout.names] if layout.names is not None else read_names_in_comment(lines, rows)
    names: list[str] = []
    units: dict[str, str] = {}
    below = rows[layout.units] if layout.units is not None else []
    for k, cell in enumerate(cells):
        match = _NAME_WITH_UNIT.match(cell.strip()) if has_units else None
        names.append(match["name"] if match else cell.strip())
        unit = match["unit"] if match else strip_brackets(below[k]) if k < len(below) else ""
        if unit and unit != "-":
            units[names[-1]] = normalize_unit(unit)
    if all(is_number(name) for name in names):
        raise FileFormatError(describe_missing_names(path, cells))
    return names, units


def _fill_table(
    path: Path, table: RawTable, names: Sequence[str], columns: Sequence[Column], notes: list[str]
) -> None:
    """Fill a table with columns, note those that are refused, and join a date with its clock.

    Args:
        path: The file, for the error.
        table: The table; its fields, units, clocks, and absent and unusable columns are set.
        names: Names of the columns; one without a name is called by its number.
        columns: Their values.
        notes: Extended by columns that are refused, and by those that stand twice.

    Raises:
        FileFormatError: Two columns of one name hold different values.
    """
    table_columns: dict[str, Column] = {}
    for k, (name, column) in enumerate(zip(names, columns, strict=True), 1):
        name = name or f"column {k}"
        if name not in table_columns:
            table_columns[name] = column
            continue
        first, second = table_columns[name].values, column.values
        is_same = first is not None and second is not None
        if not is_same or not np.array_equal(np.asarray(first), np.asarray(second), equal_nan=True):
            twice = sorted(n for n, count in Counter(names).items() if count > 1)
            raise FileFormatError(f"{path}: the columns need names, all different; see {twice}")
        notes.append(f"column {name!r} is there twice with the same values, and read once")
    _join_date_and_clock(table_columns)
    for name, column in table_columns.items():
        table.absent[name] = column.is_empty
        if column.values is None:
            table.unusable[name] = column.problem
            if not column.is_text:
                notes.append(f"column {name!r} is left out: {column.problem}")
        else:
            table.fields[name] = column.values
        if column.clock:
            table.units[name] = "ns"
            table.clocks.append(name)


def _join_date_and_clock(columns: dict[str, Column]) -> None:
    """Add the only column of dates to the first column of clocks, and remove it.

    Args:
        columns: Columns by name, which are changed. Without exactly one column of dates, or without
            clocks, they stay as they are.
    """
    dates = [name for name, column in columns.items() if column.clock == "date"]
    clocks = [name for name, column in columns.items() if column.clock == "clock"]
    if len(dates) != 1 or not clocks:
        return
    date, clock = columns.pop(dates[0]), columns[clocks[0]]
    is_empty = date.is_empty | clock.is_empty
    assert date.values is not None
    assert clock.values is not None
    # The date beside it counts the days already that a clock adds when it passes midnight.
    values = date.values + clock.values % DAY_NS
    values[is_empty] = np.iinfo(np.int64).min
    columns[clocks[0]] = Column(values, is_empty, clock="date and clock")


def _note_skipped(lines: TextLines, layout: TableLayout, notes: list[str]) -> None:
    """Note preamble lines, and comments between the rows."""
    before = layout.names or 0
    if before:
        shown = ", ".join(repr(text[:40]) for text in lines.texts[:before][:_SHOWN_LINES])
        more = ", ..." if before > _SHOWN_LINES else ""
        notes.append(f"{before} lines before the names are not read: {shown}{more}")
    if lines.inner_comments:
        notes.append(f"{lines.inner_comments} lines of comment (#) between the rows are not read")
