"""Tables in text files: CSV with a row of names."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from hybridctl.errors import FileFormatError
from hybridctl.logs.raw import MAX_BYTES, Field, RawLog, RawTable, too_large

MARK = "# hybridctl log "
_UNIT = re.compile(r"^(?P<name>.+?)\s*[\[(](?P<unit>[^\])]+)[\])]$")


def read_csv(path: Path) -> RawLog:
    """A CSV file: lines of comment (#), a row of names, rows of numbers.

    The delimiter is the one of `,`, `;` and tab that is most frequent in the row of names. A unit
    in brackets after a name counts. Empty cells are absent. Columns of whole numbers stay exact.
    """
    if path.stat().st_size > MAX_BYTES:
        raise too_large(path, "the table", path.stat().st_size)
    text = path.read_text(encoding="utf-8-sig")
    if "\0" in text:
        raise FileFormatError(f"{path}: a text file with zero bytes in it, so damaged")
    lines = text.splitlines()
    comments = 0
    while comments < len(lines) and (not lines[comments].strip() or lines[comments][0] == "#"):
        comments += 1
    native = _native(path, lines[:comments])
    if comments == len(lines):
        raise FileFormatError(f"{path}: no row of names and no data")
    delimiter = max(",;\t", key=lines[comments].count)
    rows = list(csv.reader(lines[comments:], delimiter=delimiter, strict=True))
    names, units = _heading(path, rows[0], with_units=native is None)
    body = [row for row in rows[1:] if row]
    for number, row in enumerate(body, comments + 2):
        if len(row) != len(names):
            raise FileFormatError(
                f"{path}: line {number} has {len(row)} cells where the names are {len(names)}; "
                "cut short or damaged"
            )
    if not body:
        raise FileFormatError(f"{path}: names, but no rows of data")
    table = RawTable("", units=units)
    for name, cells in zip(names, zip(*body, strict=True), strict=True):
        table.absent[name] = np.array([not cell.strip() for cell in cells])
        column, problem = _column(cells)
        if column is None:
            table.unusable[name] = problem
        else:
            table.fields[name] = column
    cut = [] if text.endswith("\n") else ["the last line has no end; the file may be cut short"]
    return RawLog(path, "csv", {"": table}, native, cut)


def _native(path: Path, comments: list[str]) -> dict[str, Any] | None:
    for line in comments:
        if line.startswith(MARK):
            try:
                header: dict[str, Any] = json.loads(line.removeprefix(MARK))
            except ValueError as error:
                raise FileFormatError(f"{path}: the header line is damaged ({error})") from error
            return header
    return None


def _heading(path: Path, cells: list[str], *, with_units: bool) -> tuple[list[str], dict[str, str]]:
    names: list[str] = []
    units: dict[str, str] = {}
    for cell in cells:
        match = _UNIT.match(cell.strip()) if with_units else None
        names.append(match["name"] if match else cell.strip())
        if match:
            units[names[-1]] = match["unit"]
    if all(_is_number(name) for name in names):
        raise FileFormatError(
            f"{path}: the first row must name the columns, but has numbers: {', '.join(cells)[:80]}"
        )
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice or "" in names:
        raise FileFormatError(
            f"{path}: the columns need names, all different; see {twice or names}"
        )
    return names, units


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(cells: tuple[str, ...]) -> tuple[Field | None, str]:
    """Whole numbers, else floats with NaN where a cell is empty, else None and the reason."""
    try:
        return np.array([int(cell) for cell in cells], dtype=np.int64), ""
    except (ValueError, OverflowError):
        pass
    try:
        return np.array([float(cell) if cell.strip() else np.nan for cell in cells]), ""
    except ValueError:
        row = next(k for k, cell in enumerate(cells) if cell.strip() and not _is_number(cell))
        return None, f"{cells[row][:40]!r} in data row {row + 1} is not a number"
