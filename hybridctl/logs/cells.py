"""Columns of text tables as numbers: either decimal mark, missing values, dates and clocks.

A column becomes numbers only if each of its cells is a number or is missing. Where a cell can be
read as two different numbers, the column is refused, and the reason names the cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridctl.logs.raw import Field

MISSING_MARKS = frozenset(
    ("", "-", "--", "?", "na", "n/a", "#n/a", "nan", "null", "none", "missing")
)
"""Cells that stand for a missing value, in lower case."""
DAY_NS = 86_400 * 10**9
"""Length of a day in ns."""
_SHOWN_CHARACTERS_OF_CELL = 40
"""Characters of a cell that a reason quotes."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?|nan", re.I | re.A)
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?", re.A)
_COMMA_GROUP = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.A)
_POINT_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+", re.A)
# The years 1970 to 2199: all of them fit into 64 bits as nanoseconds since 1970.
_DATE = r"(?P<date>(?:19[7-9]|2[01]\d)\d[-/]\d\d[-/]\d\d)"
_CLOCK = r"(?P<clock>\d{1,2}:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_ZONE = r"\s*(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?"
_STAMP = re.compile(rf"(?:{_DATE})?(?:[T ]+(?=\d)|$|(?=\d))(?:{_CLOCK})?{_ZONE}", re.A)
_OTHER_DATE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}\b")


@dataclass(frozen=True)
class Column:
    """One column of a text table.

    Attributes:
        values: Numbers (n,): int64 if all cells are whole, nanoseconds of dates and clocks (int64,
            the least one where a cell is missing), else floats with NaN where a cell is missing.
            None if the column is refused.
        is_empty: Cells (n,) that are blank; of dates and clocks those that are missing.
        clock: "date", "clock" or "date and clock" for columns of those; empty for any other.
        problem: Why the column is refused, with a cell and its row; empty if it is not.
        is_text: Whether a refused column holds words rather than numbers that are damaged.
    """

    values: Field | None
    is_empty: NDArray[np.bool_]
    clock: str = ""
    problem: str = ""
    is_text: bool = False


def is_missing(cell: str) -> bool:
    """Return whether a cell stands for a missing value."""
    return cell.strip().lower() in MISSING_MARKS


def is_number(cell: str) -> bool:
    """Return whether a cell is a number with a decimal point or a decimal comma."""
    text = cell.strip()
    return bool(_NUMBER.fullmatch(text) or _DECIMAL_COMMA.fullmatch(text))


def is_data(cell: str) -> bool:
    """Return whether a cell is a number, a date or a clock, but not missing."""
    if is_missing(cell):
        return False  # "nan" is a number as well
    return is_number(cell) or _find_clock_kind(cell) != ""


def parse_columns(columns: Sequence[Sequence[str]]) -> list[Column]:
    """Return the columns of a table as numbers, each with the decimal mark that its cells have.

    Args:
        columns: Cells of each column. A comma in a cell is not the delimiter of the table.

    Returns:
        A column for each; a column that is refused has the reason instead of values.
    """
    plain: list[Column | None] = []
    for cells in columns:
        values = _parse_plain(cells)
        if values is None:
            plain.append(None)
            continue
        # A column without NaN has no empty cell, which saves looking at each.
        is_complete = not np.isnan(values).any()
        is_empty = np.zeros(len(cells), bool) if is_complete else _find_empty(cells)
        plain.append(Column(values, is_empty))
    other = [k for k, column in enumerate(plain) if column is None]
    has_comma = {k: any(_is_decimal_comma(cell) for cell in columns[k]) for k in other}
    # A table has one decimal mark: one column whose commas cannot be groups of thousands decides
    # for those that could be read both ways, unless another cell has a decimal point.
    comma_is_certain = any(has_comma[k] and _are_commas_decimal(columns[k]) for k in other)
    point_is_used = any("." in cell for cells in columns for cell in cells if is_number(cell))
    found = []
    for k, cells in enumerate(columns):
        column = plain[k]
        if column is None:
            comma_is_decimal = comma_is_certain and not point_is_used
            column = _parse_special(cells, _find_empty(cells), comma_is_decimal)
        elif comma_is_certain and _is_grouped(cells, _POINT_GROUPS, "."):
            cell, row = next((c, r) for r, c in enumerate(cells, 1) if "." in c)
            column = _refuse_column(
                column.is_empty,
                f"{cell.strip()!r} in data row {row} may have a decimal point or groups of "
                "thousands, as other columns have decimal commas; write it without groups",
            )
        found.append(column)
    return found


def _find_empty(cells: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([not cell.strip() for cell in cells])


def _refuse_column(is_empty: NDArray[np.bool_], problem: str, *, is_text: bool = False) -> Column:
    return Column(None, is_empty, problem=problem, is_text=is_text)


def _is_decimal_comma(cell: str) -> bool:
    return "," in cell and bool(_DECIMAL_COMMA.fullmatch(cell.strip()))


def _is_grouped(cells: Sequence[str], groups: re.Pattern[str], mark: str) -> bool:
    """Return whether every cell with this mark reads like groups of thousands, and one has it."""
    marked = [cell.strip() for cell in cells if mark in cell]
    return bool(marked) and all(groups.fullmatch(cell) for cell in marked)


def _are_commas_decimal(cells: Sequence[str]) -> bool:
    """Return whether commas in these cells cannot be groups of thousands, as in 0,5 or 1,25.

    One such cell decides for all of them. Cells without any comma count as decimal.
    """
    marked = [cell.strip() for cell in cells if "," in cell]
    return all(_DECIMAL_COMMA.fullmatch(c) for c in marked) and not _is_grouped(
        cells, _COMMA_GROUP, ","
    )


def _parse_plain(cells: Sequence[str]) -> Field | None:
    """Return numbers with decimal points, NaN where a cell is missing.

    Args:
        cells: Texts (n,) of a column.

    Returns:
        Numbers (n,), integers where all cells are; None if a cell is no such number.
    """
    joined = "".join(cells)
    if "_" in joined or not joined.isascii():
        # Python reads 1_0 as ten, and digits of other scripts. No logger writes either.
        return None
    try:
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        pass  # missing cells, which cost twice as much to look for, are rare
    try:
        return np.array([np.nan if is_missing(cell) else float(cell) for cell in cells])
    except ValueError:
        return None


def _parse_special(
    cells: Sequence[str], is_empty: NDArray[np.bool_], comma_is_decimal: bool
) -> Column:
    """Return a column of decimal commas, dates or clocks, or the reason why it is refused.

    Args:
        cells: Cells of the column, not all of them numbers with decimal points.
        is_empty: Cells that hold nothing.
        comma_is_decimal: Whether other columns show that a comma is the decimal mark of the table.
    """
    known = [(row, cell.strip()) for row, cell in enumerate(cells, 1) if not is_missing(cell)]
    clocks = [_find_clock_kind(cell) for _, cell in known]
    if clocks and clocks[0] and len(set(clocks)) == 1:
        return _parse_clocks(cells, is_empty, clocks[0])
    bad = next(((row, cell) for row, cell in known if not is_number(cell)), None)
    if bad is not None:
        number_count = sum(is_number(cell) for _, cell in known)
        return _refuse_column(
            is_empty, _explain_cell(*bad, any(clocks)), is_text=2 * number_count < len(known)
        )
    pointed = next(((row, cell) for row, cell in known if "." in cell), None)
    row, cell = next(((row, cell) for row, cell in known if "," in cell), (0, ""))
    if not row:  # digits of other scripts
        return _refuse_column(
            is_empty, f"{known[0][1]!r} in data row {known[0][0]} is not a number"
        )
    if pointed is not None:
        return _refuse_column(
            is_empty,
            f"{cell!r} in data row {row} has a comma, {pointed[1]!r} in row {pointed[0]} a point; "
            "write all with one decimal mark",
        )
    if not comma_is_decimal and not _are_commas_decimal(cells):
        return _refuse_column(
            is_empty,
            f"{cell!r} in data row {row} may be {cell.replace(',', '.')} or "
            f"{cell.replace(',', '')}; write numbers with decimal points and without groups",
        )
    values = [np.nan if is_missing(c) else float(c.strip().replace(",", ".")) for c in cells]
    return Column(np.array(values), is_empty)


def _explain_cell(row: int, cell: str, is_among_dates: bool) -> str:
    """Return why a cell is no number, and what to write instead where that is known."""
    problem = f"{cell[:_SHOWN_CHARACTERS_OF_CELL]!r} in data row {row} is not a number"
    if _OTHER_DATE.match(cell):
        return f"{problem}; write dates as YYYY-MM-DD, day and month could be exchanged"
    if "," in cell and "." in cell:
        return f"{problem}; write it without groups of thousands"
    return f"{problem}, while others are dates" if is_among_dates else problem


def _find_clock_kind(cell: str) -> str:
    """Return "date", "clock" or "date and clock"; empty for any other cell."""
    match = _STAMP.fullmatch(cell.strip())
    if match is None or not (match["date"] or match["clock"]):
        return ""
    if match["date"] and match["clock"]:
        return "date and clock"
    return "date" if match["date"] else "clock"


def _parse_clocks(cells: Sequence[str], is_empty: NDArray[np.bool_], kind: str) -> Column:
    """Return dates and clocks as whole nanoseconds since 1970, or since midnight without a date.

    A date without a zone is taken as UTC. A clock that falls by more than half a day has passed
    midnight.

    Args:
        cells: Texts of a column (n,).
        is_empty: Whether a cell (n,) has no text, for a column that is refused.
        kind: What the cells are: "date", "clock", or "date and clock".

    Returns:
        Whole nanoseconds (n,), the least integer for missing cells, which count as empty. A column
        without values, with the problem, if a date does not exist.
    """
    texts, offsets = [], []
    for cell in cells:
        match = None if is_missing(cell) else _STAMP.fullmatch(cell.strip())
        if match is None:
            texts.append("NaT")
            offsets.append(0)
            continue
        date = (match["date"] or "1970-01-01").replace("/", "-")
        clock = (match["clock"] or "00:00:00").zfill(8)
        texts.append(f"{date}T{clock}.{match['fraction'] or '0'}")
        offsets.append(_parse_zone(match["zone"]))
    try:
        stamps = np.array(texts, dtype="datetime64[ns]")
    except ValueError as error:
        return _refuse_column(is_empty, f"it has a {kind} that does not exist: {error}")
    is_absent = np.isnat(stamps)
    values = stamps.astype(np.int64) - np.array(offsets, dtype=np.int64) * 10**9
    if kind == "clock":
        known = values[~is_absent]
        midnights = np.cumsum(np.diff(known, prepend=known[:1]) < -DAY_NS // 2)
        values[~is_absent] = known + midnights * DAY_NS
    values[is_absent] = np.iinfo(np.int64).min
    return Column(values, is_absent, clock=kind)


def _parse_zone(zone: str | None) -> int:
    """Return the time in s by which a zone such as +02:00 is ahead of UTC; 0 without a zone."""
    if zone is None or zone in ("Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "")
    seconds = 3600 * int(digits[:2]) + 60 * int(digits[2:])
    return -seconds if zone[0] == "-" else seconds
