"""The layout of a text table: its lines, the delimiter, and where names, units and data stand.

The layout is found from the last rows, which are data in every table: the delimiter is the one
that splits them into equally many numbers. Above the first row of data stands a row of names, then
maybe a row of units; lines before are a preamble. Rows are split by `csv` of the standard library.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hybridctl.base.errors import FileFormatError
from hybridctl.logs.cells import is_data, is_missing
from hybridctl.logs.units import NANOSECONDS, UNITS, normalize_unit

_SAMPLED_LINES = 30
"""Last lines by which the layout is found. The value is a choice."""
_SHOWN_CHARACTERS_OF_ROW = 80
"""Characters of a row that an error quotes."""
_Row = TypeVar("_Row")
_DELIMITERS = ("\t", ";", ",", "|", " ")
"""In the order in which they are preferred if they split equally well; " " is any run of blanks."""


@dataclass
class TextLines:
    """Lines of a table that are neither blank nor comments.

    Attributes:
        texts: The lines.
        numbers: Numbers of the lines in the file, from 1; after `split_rows` those of the last
            line of each row.
        comments: Comments (#) before the first of the lines.
        inner_comments: Number of comments after it.
        has_end: Whether the file ends with a line end. If not, its last line may be cut short.
    """

    texts: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    inner_comments: int = 0
    has_end: bool = True


@dataclass(frozen=True)
class TableLayout:
    """Indices into the rows of a table.

    Attributes:
        names: Row of the names; None if they stand in the last comment.
        units: Row of the units; None if there is none.
        first: First row of data.
        width: Number of cells of a row of data.
    """

    names: int | None
    units: int | None
    first: int
    width: int


def split_lines(text: str) -> TextLines:
    """Return the lines of a text without blank ones and comments (#)."""
    lines = TextLines(has_end=text.endswith(("\n", "\r")))
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


def find_delimiter(texts: Sequence[str]) -> str:
    """Return the delimiter that splits the last lines into equally many cells of data.

    If none makes lines of at least two cells with data in them, it is the most frequent of comma,
    semicolon and tab in the first line.

    Args:
        texts: Lines of the file, at least one.
    """
    sample = _sample_end(texts)
    best, most = "", 0.0
    for delimiter in _DELIMITERS:
        try:
            rows = [_split_row(line, delimiter) for line in sample]
        except csv.Error:
            continue  # a quotation mark within a cell: it is not this delimiter
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
    """Return the last rows of the second half, without the very last, which may be cut short.

    Of three rows or fewer, only the last is returned.
    """
    count = len(rows)
    return rows[max(count // 2, count - 1 - _SAMPLED_LINES) : count - 1] if count > 3 else rows[-1:]


def _find_width(rows: Sequence[Sequence[str]]) -> int:
    """Return the most frequent number of cells of rows."""
    return Counter(map(len, rows)).most_common(1)[0][0]


def _split_row(line: str, delimiter: str) -> list[str]:
    return next(_make_reader([line], delimiter), [])


def _make_reader(lines: Sequence[str], delimiter: str) -> Any:
    """Return a reader of `csv` for lines."""
    if delimiter == " ":
        # "t [s] x [mm]" are two names, and any run of blanks or tabs separates cells.
        lines = [re.sub(r"\s+(?=[\[(])", "", line).replace("\t", " ").strip() for line in lines]
    skips = delimiter != "\t"
    return csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=skips)


def split_rows(lines: TextLines, delimiter: str) -> list[list[str]]:
    """Return the cells of all lines, and set the numbers of the lines to those of the rows.

    Args:
        lines: The lines. A quoted cell may go over several of them.
        delimiter: The delimiter, as of `find_delimiter`.

    Raises:
        csv.Error: A quoted cell does not end, or goes on after its end.
    """
    reader = _make_reader(lines.texts, delimiter)
    rows, numbers = [], []
    for row in reader:
        rows.append(row)
        numbers.append(lines.numbers[reader.line_num - 1])
    lines.numbers = numbers
    return rows


def find_table_layout(path: Path, lines: TextLines, rows: list[list[str]]) -> TableLayout:
    """Return where names, units and data stand.

    Where no row is data, the first one is taken for the names; it is left to whoever asks for a
    column to say that it has no numbers.

    Args:
        path: The file, for the error.
        lines: The lines of the file, with its comments.
        rows: The cells of each row.

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
        return TableLayout(0, None, 1, len(rows[0]))
    heads = [k for k in range(first) if _is_names_row(rows[k], width)]
    if heads:
        last = heads[-1]
        if last > 0 and last - 1 in heads and _is_units_row(rows[last]):
            return TableLayout(last - 1, last, last + 1, width)
        return TableLayout(last, None, last + 1, width)
    if first == 0:
        if lines.comments and _is_names_row(read_names_in_comment(lines, rows), width):
            return TableLayout(None, None, 0, width)  # as numpy.savetxt writes them
        raise FileFormatError(describe_missing_names(path, rows[0]))
    if len(rows[first - 1]) == width and not is_data(rows[first - 1][0]):
        return TableLayout(first - 1, None, first, width)  # some names are numbers
    raise FileFormatError(describe_width(path, lines.numbers[first], rows[first], rows[first - 1]))


def read_names_in_comment(lines: TextLines, rows: list[list[str]]) -> list[str]:
    """Return the cells of the last comment before the data, of which there is at least one.

    It is split by the delimiter that gives as many cells as the first row has.

    Args:
        lines: Lines of the table, with their comments.
        rows: Cells of each row.
    """
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
    """Return whether at least half of the cells that are not empty are known units."""
    cells = [strip_brackets(cell) for cell in row if cell.strip()]
    known = sum(cell in ("-", "1") or _is_known_unit(cell) for cell in cells)
    return bool(cells) and 2 * known >= len(cells)


def _is_known_unit(text: str) -> bool:
    unit = normalize_unit(text)
    return unit in UNITS or unit in NANOSECONDS


def strip_brackets(cell: str) -> str:
    """Return the content of a cell without blanks and brackets around it."""
    return cell.strip().strip("[]()").strip()


def describe_missing_names(path: Path, row: Sequence[str]) -> str:
    """Return the text of the error for a table whose row of names has numbers."""
    shown = ", ".join(row)[:_SHOWN_CHARACTERS_OF_ROW]
    return f"{path}: the first row must name the columns, but has numbers: {shown}"


def describe_width(path: Path, number: int, row: Sequence[str], names: Sequence[str]) -> str:
    """Return the text of the error for a row that has more or fewer cells than there are names.

    Args:
        path: The file.
        number: Number of the line.
        row: Cells of the row.
        names: Names of the columns.
    """
    cause = "cut short or damaged"
    if len(row) > len(names) and all(cell.strip().lstrip("+-").isdigit() for cell in row):
        cause = (
            "if commas mark decimals, they cannot separate cells too: export with semicolons "
            "or decimal points"
        )
    return f"{path}: line {number} has {len(row)} cells where the names are {len(names)}; {cause}"
