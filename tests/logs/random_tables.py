"""Random text tables written from a known truth, in the many ways in which loggers write them."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

import numpy as np

MISSING = ("", "-", "NA", "NaN", "n/a", "null")
START = 1_772_446_525_000_000_000  # ns; 2026-03-02 10:15:25 UTC
PREAMBLES = (
    [],
    ["Instrument,FP-600", "Sampling rate,100,Hz"],
    ["trial 7", "version=1", "nRows=20", "endheader"],
    ["Force plate export", "", "Frequency = 100"],
)
UNIT_FACTORS = {"": 1.0, "mm": 1e-3, "deg": np.pi / 180, "N": 1.0}


@dataclass
class Truth:
    """What a table holds: stamps [s] from its first row, and columns in SI units by name."""

    times: np.ndarray
    columns: dict
    may_be_refused: bool = False
    story: dict = field(default_factory=dict)


class Style(NamedTuple):
    """How a table is written."""

    delimiter: str
    mark: str
    encoding: str
    clock: str
    where: str
    count: int
    digits: int
    quotes_all: bool
    marks: tuple
    names: list
    units: list


def _draw_style(rng, pick):
    """Return a random style."""
    delimiter, mark = pick([",", ";", "\t", " ", "|"]), pick([".", ","])
    encoding = pick(["utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-16-le"])
    clock = pick(["s", "ms", "ns", "iso", "iso space", "date and time", "unix", "dt", "%time"])
    if delimiter == " " and clock == "iso space":
        clock = "iso"
    where = pick(["none", "brackets", "row"])
    count, width = int(rng.integers(8, 60)), int(rng.integers(1, 6))
    digits = int(rng.integers(1, 7))
    quotes_all = bool(rng.random() < 0.15)
    marks = pick([(), ("",), ("-",), ("NA", "NaN"), MISSING])
    if delimiter == " ":
        marks = tuple(m for m in marks if m)
    names = [
        f"{pick(['x', 'q_hip', 'force', 'Winkel ä', 'a-b', '/drop/up'])}{k}" for k in range(width)
    ]
    if delimiter == " ":
        names = [name.replace(" ", "") for name in names]
    units = [pick(list(UNIT_FACTORS)) for _ in names]
    if where == "none":
        units = [""] * width
    return Style(
        delimiter, mark, encoding, clock, where, count, digits, quotes_all, marks, names, units
    )


def write_random_table(path, seed):
    """Write a table; return its truth.

    `may_be_refused` is set for tables that can be read in two ways, as those with unquoted
    decimal commas between commas.
    """
    rng = np.random.default_rng(seed)
    pick = lambda options: options[rng.integers(len(options))]  # noqa: E731
    style = _draw_style(rng, pick)
    delimiter, mark, encoding, clock, where, count, digits, quotes_all, marks, names, units = style
    width = len(names)
    steps = rng.integers(5, 20, count) if clock != "dt" else np.full(count, 10)
    stamps_ms = np.concatenate([[0], np.cumsum(steps[1:])])
    values = np.round(rng.normal(size=(count, width)) * 10.0 ** rng.integers(-1, 5, width), digits)
    is_missing = (rng.random((count, width)) < 0.1) & bool(marks)
    unquoted_commas = mark == "," and delimiter == "," and not quotes_all
    quotes = quotes_all or (mark == "," and delimiter == "," and rng.random() < 0.7)
    unquoted_commas = unquoted_commas and not quotes

    def cell(text, *, is_decimal=False):
        text = text.replace(".", mark) if is_decimal else text
        return f'"{text}"' if quotes_all or (quotes and "," in text) else text

    def line(cells):
        gap = delimiter if delimiter != " " else " " * int(rng.integers(1, 4))
        return gap.join(cells)

    time_names, time_cells = _write_stamps(clock, stamps_ms, pick)
    if delimiter == " ":
        time_names = [name.replace(" ", "_") for name in time_names]
    time_unit = {"ms": "ms", "ns": "ns"}.get(clock, "s" if clock in ("s", "unix", "dt") else "")
    table = [
        [cell(c, is_decimal=clock in ("s", "dt", "unix", "ms")) for c in row] for row in time_cells
    ]
    for k in range(count):
        for j in range(width):
            text = f"{values[k, j]:.{digits}f}"
            table[k].append(pick(marks) if is_missing[k, j] else cell(text, is_decimal=True))
    units_shown = [time_unit] * len(time_names) + units
    lines, damage = _compose_lines(
        style, rng, pick, [*time_names, *names], units_shown, table, cell, line
    )
    end = pick(["\n", "\r\n"])
    path.write_bytes((end.join(lines) + end).encode(encoding))
    known = (where == "brackets" and clock != "%time") or where == "row"
    factors = np.array([UNIT_FACTORS[u] if known else 1.0 for u in units])
    truth = np.where(is_missing, np.nan, values) * factors
    story = dict(
        delimiter=delimiter,
        mark=mark,
        encoding=encoding,
        clock=clock,
        units=where,
        marks=marks,
        digits=digits,
        quotes=quotes_all,
        head=lines[:6],
    )
    times = 1e-3 * stamps_ms
    columns = {name: truth[:, j] for j, name in enumerate(names)}
    # A unit row of dashes only says nothing, and three decimals may be groups of thousands.
    ambiguous = unquoted_commas or (mark == "," and digits == 3) or damage != "none"
    story["damage"] = damage
    return Truth(times, columns, ambiguous, story)


def _compose_lines(style, rng, pick, heads, all_units, table, cell, line):
    """Return the lines of a table, and how it is damaged.

    Args:
        style: Style of the table.
        rng: Random generator.
        pick: Draws one of several options.
        heads: Names of the columns, those of time first.
        all_units: Units of the columns.
        table: Cells of the rows of data.
        cell: Returns a text as a cell, quoted if need be.
        line: Joins cells to a line.
    """
    delimiter, clock, where, names = style.delimiter, style.clock, style.where, style.names
    count, width = style.count, len(style.names)
    order = rng.permutation(len(heads))
    shown = [
        f"{n} [{u}]" if where == "brackets" and u and clock != "%time" else n
        for n, u in zip(heads, all_units, strict=True)
    ]
    lines = [] if delimiter == " " and rng.random() < 0.5 else list(pick(PREAMBLES))
    lines.append(line([cell(shown[k]) for k in order]))
    if where == "row":
        lines.append(line([cell(all_units[k] or "-") for k in order]))
    damage = pick(["none"] * 7 + ["cell", "short row", "two names"])
    first = len(lines)
    lines += [line([row[k] for k in order]) for row in table]
    row = first + int(rng.integers(1, count))
    if damage == "cell":
        table[row - first][-1] = "1.2.3"
        lines[row] = line([table[row - first][k] for k in order])
    elif damage == "short row":
        lines[row] = line([table[row - first][k] for k in order[:-1]])
    elif damage == "two names" and width > 1:
        lines = [text.replace(names[-1], names[0]) for text in lines[:first]] + lines[first:]
    return lines, damage


def _write_stamps(clock, stamps_ms, pick):
    """Return names and cells of the columns of time."""
    dates = [
        datetime.fromtimestamp(START // 10**9, timezone.utc) + timedelta(milliseconds=int(ms))
        for ms in stamps_ms
    ]
    if clock == "s":
        return [pick(["t", "Time", "abs time"])], [[f"{ms / 1000:.3f}"] for ms in stamps_ms]
    if clock == "unix":
        return ["__time"], [[f"{START // 10**9 + ms / 1000:.3f}"] for ms in stamps_ms]
    if clock == "ms":
        return ["t_ms"], [[f"{ms:.1f}"] for ms in stamps_ms]
    if clock in ("ns", "%time"):
        name = "time_ns" if clock == "ns" else "%time"
        return [name], [[f"{START + int(ms) * 10**6}"] for ms in stamps_ms]
    if clock == "dt":
        return ["dt"], [["0.010"] for _ in stamps_ms]
    if clock == "date and time":
        cells = [[f"{d:%Y-%m-%d}", f"{d:%H:%M:%S}.{d.microsecond // 1000:03d}"] for d in dates]
        return ["Date", "Time"], cells
    form = "%Y-%m-%dT%H:%M:%S" if clock == "iso" else "%Y/%m/%d %H:%M:%S"
    zone = pick(["", "Z"])
    return ["timestamp"], [[f"{d:{form}}.{d.microsecond // 1000:03d}{zone}"] for d in dates]
