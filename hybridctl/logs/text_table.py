"""Text tables as people have them: the delimiter, the names, the units and the decimal mark.

The layout is found from the last rows, which are data in every table: the delimiter is the one
that splits them into equally many numbers. Above the first row of data stands a row of names, then
maybe a row of units; what comes before are preamble lines. Rows are split by `csv` of the standard
library. Whatever may be read in two ways is refused.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hybridctl.base.errors import FileFormatError
from hybridctl.logs.cells import Column, is_data, is_missing, is_number, parse_columns
from hybridctl.logs.raw import MAX_BYTES, RawLog, RawTable, too_large
from hybridctl.logs.units import NANOSECONDS, UNITS, canonical_unit

MARK = "# hybridctl log "
_SAMPLE = 30
"""Last lines by which the layout is found. The value is a choice."""
_SHOWN_LINES = 3
"""Preamble lines that the note about them quotes."""
_Row = TypeVar("_Row")
_DELIMITERS = ("\t", ";", ",", "|", " ")
"""In the order in which they are preferred if they split equally well; " " is any run of blanks."""
_UNIT = re.compile(r"^(?P<name>.+?)\s*[\[(](?P<unit>[^\])]+)[\])]$")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_BOMS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig"}


@dataclass
class _TextLines:
    """Lines of a table that are neither blank nor comments, with their numbers from 1."""

    texts: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    inner_comments: int = 0
    ends: bool = True


@dataclass(frozen=True)
class _Layout:
    """Indices into the rows of a table.

    Attributes:
        names: Row of the names, or None if they stand in the last comment.
        units: Row of the units, or None.
        first: First row of data.
        width: Number of cells of a row of data.
    """

    names: int | None
    units: int | None
    first: int
    width: int


def find_encoding(head: bytes) -> str | None:
    """Return the encoding of text by its first bytes, or None if they are no text.

    UTF-16 without a mark is known by the zero bytes of its first, plain characters. Text that is
    not UTF-8 is taken as Latin-1, in which every byte is a character.

    Args:
        head: First bytes of a file, which may end within a character.
    """
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return None
    for bom, encoding in _BOMS.items():
        if head.startswith(bom):
            return encoding
    start = head[:64]
    if len(start) >= 8 and b"\0" in start:
        for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
            zeros, plain = start[first::2], start[1 - first :: 2]
            if not zeros.strip(b"\0") and b"\0" not in plain and not _CONTROL.search(plain):
                return encoding
    if _CONTROL.search(head):
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # its last character may be cut
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def read_table(path: Path) -> RawLog:
    """Read a text table: names, numbers and their units, and notes of what was not read.

    Args:
        path: The file. Its encoding is UTF-8, UTF-16 or Latin-1.

    Returns:
        One table. Refused columns are in `unusable` with the reason.

    Raises:
        FileFormatError: The file has no names or no data, rows of different lengths, or commas
            that both separate cells and mark decimals.
    """
    if path.stat().st_size > MAX_BYTES:
        raise too_large(path, "the table", path.stat().st_size)
    text, notes = _decode(path)
    lines = _split_lines(text)
    native = _read_native_header(path, lines.comments)
    if not lines.texts:
        raise FileFormatError(f"{path}: no row of names and no data")
    rows = _split_rows(lines, "," if native is not None else _find_delimiter(lines.texts))
    if native is not None:
        layout = _Layout(0, None, 1, len(rows[0]))
    else:
        layout = _find_layout(path, lines, rows)
    body = _check_widths(path, lines, rows, layout, notes)
    names, units = _read_names(path, rows, layout, lines, has_units=native is None)
    table = RawTable("", units=units)
    columns = parse_columns(list(zip(*body, strict=True)))
    _fill_table(path, table, names, columns, notes)
    if native is None:
        _note_skipped(lines, layout, notes)
    if not lines.ends:
        notes.append("the last line has no end; the file may be cut short")
    return RawLog(path, "csv", {"": table}, native, notes)


def _decode(path: Path) -> tuple[str, list[str]]:
    """Return the text of a file and, for Latin-1, a note that says so."""
    content = path.read_bytes()
    encoding = find_encoding(content[:65536])
    notes: list[str] = []
    if encoding == "utf-8":
        try:
            return _refuse_zeros(path, content.decode(encoding)), notes
        except UnicodeDecodeError:
            encoding = "latin-1"
    if encoding is None:
        raise FileFormatError(f"{path}: a text file with control characters in it, so damaged")
    if encoding == "latin-1":
        notes.append("the text is not UTF-8 and is read as Latin-1")
    return _refuse_zeros(path, content.decode(encoding)), notes


def _refuse_zeros(path: Path, text: str) -> str:
    if "\0" in text:
        raise FileFormatError(f"{path}: a text file with zero bytes in it, so damaged")
    return text


def _split_lines(text: str) -> _TextLines:
    """Return the lines of a text without blank ones and comments (#)."""
    lines = _TextLines(ends=text.endswith(("\n", "\r")))
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    # str.splitlines would also split at characters that Latin-1 text may hold.
    for number, line in enumerate(plain.split("\n"), 1):
        if line.startswith("#"):
            if lines.texts:
                lines.inner_comments += 1
            else:
                lines.comments.append(line)
        elif line.strip():
            lines.texts.append(line)
            lines.numbers.append(number)
    return lines


def _read_native_header(path: Path, comments: Sequence[str]) -> dict[str, Any] | None:
    """Return the header of a table that hybridctl wrote, else None."""
    for line in comments:
        if line.startswith(MARK):
            try:
                header: dict[str, Any] = json.loads(line.removeprefix(MARK))
            except ValueError as error:
                raise FileFormatError(f"{path}: the header line is damaged ({error})") from error
            return header
    return None


def _find_delimiter(texts: Sequence[str]) -> str:
    """Return the delimiter that splits the last lines into equally many cells of data.

    If none makes two cells of each line: the most frequent one of the first line.

    Args:
        texts: Lines of the file, at least one.
    """
    sample = _sample_end(texts)
    best, most = "", 0.0
    for delimiter in _DELIMITERS:
        try:
            rows = [_split_row(line, delimiter) for line in sample]
        except csv.Error:
            continue
        width = _find_width(rows)
        if width < 2:
            continue
        cells = [cell for row in rows if len(row) == width for cell in row]
        count = sum(is_data(cell) or is_missing(cell) for cell in cells)
        share = count / sum(map(len, rows))
        if share > most:
            best, most = delimiter, share
    return best or max(",;\t", key=texts[0].count)


def _sample_end(rows: Sequence[_Row]) -> Sequence[_Row]:
    """Return rows of the second half, without the last one, which may be cut short."""
    count = len(rows)
    return rows[max(count // 2, count - 1 - _SAMPLE) : count - 1] if count > 3 else rows[-1:]


def _find_width(rows: Sequence[Sequence[str]]) -> int:
    return Counter(map(len, rows)).most_common(1)[0][0]


def _split_row(line: str, delimiter: str) -> list[str]:
    return next(_make_reader([line], delimiter), [])


def _make_reader(lines: Sequence[str], delimiter: str) -> Any:
    if delimiter == " ":
        # "t [s] x [mm]" are two names, and any run of blanks or tabs separates cells.
        lines = [re.sub(r"\s+(?=[\[(])", "", line).replace("\t", " ").strip() for line in lines]
    skips = delimiter != "\t"
    return csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=skips)


def _split_rows(lines: _TextLines, delimiter: str) -> list[list[str]]:
    """Split all lines into cells, and set the number of each row's last line."""
    reader = _make_reader(lines.texts, delimiter)
    rows, numbers = [], []
    for row in reader:
        rows.append(row)
        numbers.append(lines.numbers[reader.line_num - 1])
    lines.numbers = numbers
    return rows


def _find_layout(path: Path, lines: _TextLines, rows: list[list[str]]) -> _Layout:
    """Return where names, units and data stand.

    Args:
        path: The file, for the error.
        lines: The lines of the file, with its comments.
        rows: The cells of each line that is no comment.

    Returns:
        The rows of names, units and first data, and the number of columns.

    Raises:
        FileFormatError: There is no row of names, or it does not fit the rows of data.
    """
    sample = _sample_end(rows)
    width = _find_width(sample)
    number_columns = _find_number_columns([row for row in sample if len(row) == width], width)
    first = next(
        (k for k, row in enumerate(rows) if _is_data_row(row, width, number_columns)), None
    )
    if first is None:
        return _Layout(0, None, 1, len(rows[0]))  # no numbers; the columns say what they hold
    heads = [k for k in range(first) if _is_names_row(rows[k], width)]
    if heads:
        last = heads[-1]
        if last > 0 and last - 1 in heads and _is_units_row(rows[last]):
            return _Layout(last - 1, last, last + 1, width)
        return _Layout(last, None, last + 1, width)
    if first == 0:
        if lines.comments and _is_names_row(_names_in_comment(lines, rows), width):
            return _Layout(None, None, 0, width)  # as numpy.savetxt writes them
        raise FileFormatError(
            f"{path}: the first row must name the columns, but has numbers: "
            f"{', '.join(rows[0])[:80]}"
        )
    if len(rows[first - 1]) == width and not is_data(rows[first - 1][0]):
        return _Layout(first - 1, None, first, width)  # some names are numbers
    raise _refuse_width(path, lines.numbers[first], rows[first], rows[first - 1])


def _names_in_comment(lines: _TextLines, rows: list[list[str]]) -> list[str]:
    """Return the cells of the last comment before the data."""
    content = lines.comments[-1].lstrip("#").strip()
    return max((_split_row(content, d) for d in _DELIMITERS), key=lambda r: len(r) == len(rows[0]))


def _find_number_columns(sample: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the columns in which at least half of the cells that are not missing are data."""
    found = []
    for k in range(width):
        known = [row[k] for row in sample if not is_missing(row[k])]
        if known and 2 * sum(map(is_data, known)) >= len(known):
            found.append(k)
    return found


def _is_data_row(row: Sequence[str], width: int, number_columns: Sequence[int]) -> bool:
    """Return whether each number column of a row has data or a missing value, and one has data."""
    if len(row) != width:
        return False
    cells = [row[k] for k in number_columns]
    return any(map(is_data, cells)) and all(is_data(c) or is_missing(c) for c in cells)


def _is_names_row(row: Sequence[str], width: int) -> bool:
    """Return whether a row may name columns: no cell is a number, and half are not empty.

    Rows of data, or the row of names, may end in one delimiter more.
    """
    filled = sum(bool(cell.strip()) for cell in row)
    return abs(len(row) - width) <= 1 and 2 * filled >= width and not any(map(is_data, row))


def _is_units_row(row: Sequence[str]) -> bool:
    """Return whether at least half of the cells that are not empty are units that are known."""
    cells = [_strip_brackets(cell) for cell in row if cell.strip()]
    known = sum(cell in ("-", "1") or _is_known_unit(cell) for cell in cells)
    return bool(cells) and 2 * known >= len(cells)


def _is_known_unit(text: str) -> bool:
    unit = canonical_unit(text)
    return unit in UNITS or unit in NANOSECONDS


def _strip_brackets(cell: str) -> str:
    return cell.strip().strip("[]()").strip()


def _check_widths(
    path: Path, lines: _TextLines, rows: list[list[str]], layout: _Layout, notes: list[str]
) -> list[list[str]]:
    """Return the rows of data, all of them with as many cells as there are names.

    A last row that is cut short in a file without a last line end is left out.

    Args:
        path: The file, for errors.
        lines: The lines of the file. Its `ends` is set once a row that is cut short is noted.
        rows: The cells of each line.
        layout: Where names and data stand.
        notes: Extended by what is left out.

    Raises:
        FileFormatError: Another row has another number of cells, or there are no rows of data.
    """
    names = rows[layout.names] if layout.names is not None else _names_in_comment(lines, rows)
    while len(names) > layout.width and not names[-1].strip():
        names.pop()  # a delimiter at the end of the row of names
    body = rows[layout.first :]
    over = [row[-1] for row in body if len(row) > len(names)]
    if len(names) == layout.width - 1 and not any(cell.strip() for cell in over):
        body = [row[: len(names)] for row in body]  # a delimiter at the end of each row
    if len(body) > 1 and len(body[-1]) != len(names) and not lines.ends:
        notes.append(f"line {lines.numbers[-1]}, the last, is cut short and left out")
        body = body[:-1]
        lines.ends = True  # said
    for number, row in zip(lines.numbers[layout.first :], body, strict=False):
        if len(row) != len(names):
            raise _refuse_width(path, number, row, names)
    if not body:
        raise FileFormatError(f"{path}: names, but no rows of data")
    return body


def _refuse_width(
    path: Path, number: int, row: Sequence[str], names: Sequence[str]
) -> FileFormatError:
    """Return the error for a row that has not as many cells as there are names."""
    cause = "cut short or damaged"
    if len(row) > len(names) and all(cell.strip().lstrip("+-").isdigit() for cell in row):
        cause = (
            "if commas mark decimals, they cannot separate cells too: export with semicolons "
            "or decimal points"
        )
    return FileFormatError(
        f"{path}: line {number} has {len(row)} cells where the names are {len(names)}; {cause}"
    )


def _read_names(
    path: Path, rows: list[list[str]], layout: _Layout, lines: _TextLines, *, has_units: bool
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
    cells = rows[layout.names] if layout.names is not None else _names_in_comment(lines, rows)
    names: list[str] = []
    units: dict[str, str] = {}
    below = rows[layout.units] if layout.units is not None else []
    for k, cell in enumerate(cells):
        match = _UNIT.match(cell.strip()) if has_units else None
        names.append(match["name"] if match else cell.strip())
        unit = match["unit"] if match else _strip_brackets(below[k]) if k < len(below) else ""
        if unit and unit != "-":
            units[names[-1]] = canonical_unit(unit)
    if all(is_number(name) for name in names):
        raise FileFormatError(
            f"{path}: the first row must name the columns, but has numbers: {', '.join(cells)[:80]}"
        )
    return names, units


def _fill_table(
    path: Path, table: RawTable, names: Sequence[str], columns: Sequence[Column], notes: list[str]
) -> None:
    """Put columns into a table; note those that are refused, and join a date with its clock.

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
    """Add the only column of dates to the first column of clocks, and remove it."""
    dates = [name for name, column in columns.items() if column.clock == "date"]
    clocks = [name for name, column in columns.items() if column.clock == "clock"]
    if len(dates) != 1 or not clocks:
        return
    date, clock = columns.pop(dates[0]), columns[clocks[0]]
    is_empty = date.is_empty | clock.is_empty
    assert date.values is not None
    assert clock.values is not None
    # With a date beside it, a clock that passed midnight is not to be counted on.
    values = date.values + clock.values % (86_400 * 10**9)
    values[is_empty] = np.iinfo(np.int64).min
    columns[clocks[0]] = Column(values, is_empty, clock="date and clock")


def _note_skipped(lines: _TextLines, layout: _Layout, notes: list[str]) -> None:
    """Note preamble lines, and comments between the rows."""
    before = layout.names or 0
    if before:
        shown = ", ".join(repr(text[:40]) for text in lines.texts[:before][:_SHOWN_LINES])
        more = ", ..." if before > _SHOWN_LINES else ""
        notes.append(f"{before} lines before the names are not read: {shown}{more}")
    if lines.inner_comments:
        notes.append(f"{lines.inner_comments} lines of comment (#) between the rows are not read")
