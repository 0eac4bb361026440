"""Tables, lines and progress on the console: what every command shows."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from string import Formatter
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hybridctl.app.heartbeat import HEARTBEAT, heartbeat
from hybridctl.base.checks import make_printable
from hybridctl.hybrid.trajectory import Event


def encode_event(event: Event) -> dict[str, Any]:
    """Return an event as it stands in summary.json."""
    return {
        "time": event.time,
        "mode_before": event.mode_before,
        "mode_after": event.mode_after,
        "guards": event.guards,
        "impulses": event.impulses,
        "uniqueness": event.uniqueness,
        "bridged": event.bridged,
        "accumulation": event.accumulation,
    }


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Return a table of the console.

    Args:
        title: Title, as text.
        columns: Headers, as text.
        rows: Cells of each row, shown as text. The first is aligned to the left, others to the
            right.

    Returns:
        The table, which a console prints and a page shows.
    """
    result = Table(title=escape(title), title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        result.add_column(escape(make_printable(column)), justify="left" if i == 0 else "right")
    for row in rows:
        result.add_row(*(escape(make_printable(str(cell))) for cell in row))
    return result


VERDICT = "Can the estimates be trusted?"
"""Title of the table that stands first on the page of a filter."""
_MISSING = object()
"""Stands for an entry that a record does not have, while None is an entry."""
_PER_UNIT = {"mm": 1e3, "mrad": 1e3, "ms": 1e3, "%": 100.0, "deg": float(np.degrees(1.0))}
"""How many of each unit are in the SI unit, by which numbers of a column are multiplied."""


def make_record_table(
    title: str, records: Iterable[Mapping[str, Any]], columns: Mapping[str, str]
) -> Table:
    """Return a table with a row for each record, whose cells are formats of its entries.

    Entries of a list or a mapping stand side by side, a flag is yes or no, zero has no sign. What
    is None, or missing where other records have it, is a dash.

    Args:
        title: Title, as text.
        records: Records, with numbers in SI units.
        columns: A format by header, such as "{mean:.2f} ± {error:.2f}". Where a header ends with
            [mm], [mrad], [ms], [deg] or [%], numbers are converted to that unit.

    Raises:
        KeyError: A format names an entry that no record has.
    """
    given = list(records)
    cells = [_Cells(header, given) for header in columns]
    rows = [
        [cell.vformat(form, (), record) for cell, form in zip(cells, columns.values(), strict=True)]
        for record in given
    ]
    return make_table(title, list(columns), rows)


class _Cells(Formatter):
    """The formats of a column, which converts numbers to the unit of its header."""

    def __init__(self, header: str, records: Sequence[Mapping[str, Any]]) -> None:
        unit = header.rpartition("[")[2].removesuffix("]")
        self._factor = _PER_UNIT.get(unit, 1.0) if header.endswith("]") else 1.0
        self._header, self._records = header, records

    def get_field(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = self._entry(name, kwargs)
        if value is _MISSING and all(self._entry(name, r) is _MISSING for r in self._records):
            raise KeyError(f"column {self._header!r}: no record has {name!r}")
        return None if value is _MISSING else value, name

    def _entry(self, name: str, record: Mapping[str, Any]) -> Any:
        """Return an entry of a record: None if a part is None, `_MISSING` if one is missing."""
        try:
            return super().get_field(name, (), record)[0]
        except KeyError:
            return _MISSING
        except TypeError:
            return None  # a part of "a[b]" is None

    def format_field(self, value: Any, spec: str) -> str:
        if value is None:
            return "-"
        if isinstance(value, bool | np.bool_):
            return "yes" if value else "no"
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, list | tuple | np.ndarray):
            return ", ".join(self.format_field(entry, spec) for entry in value)
        if self._factor != 1.0 and isinstance(value, int | float | np.number):
            value = self._factor * value
        text = format(value, spec)
        # A number that rounds to zero, such as -0.00, loses its sign.
        mantissa = text.lower().partition("e")[0]
        is_zero = isinstance(value, int | float | np.number) and not mantissa.strip("-0.%")
        return text.lstrip("-") if is_zero else text


def say(console: Console, line: str) -> None:
    """Print a line as text, without markup, and unbroken however narrow the console is."""
    console.print(make_printable(line), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def report_alive(console: Console, title: str) -> Iterator[None]:
    """Show that work goes on: a spinner in a terminal, elsewhere a line now and then.

    Args:
        console: Where to show it. The lines are on standard error, with the seconds so far.
        title: What is done.
    """
    if _can_animate(console):
        with heartbeat.pause(), console.status(title):
            yield
        return
    with heartbeat.pause(), _print_progress(console) as begin_work:
        begin_work(title, 0.0, 1.0)
        yield


@contextmanager
def show_progress(console: Console, start: float, end: float) -> Iterator[Callable[[str], Tick]]:
    """Show the progress of works that follow each other: a bar in a terminal, elsewhere lines.

    Args:
        console: Where to show it. The lines are on standard error: one for each tenth, and one at
            least every `HEARTBEAT` (4 s).
        start: Value at which each of the works begins, such as a time in s.
        end: Value at which each ends. Works without length are at their end at once.

    Yields:
        A function that begins a work by its title and returns a function, to be called with the
        values reached. What has begun is at its end when the next begins, or the block ends.
    """
    ticks: list[Tick] = []
    with (
        heartbeat.pause(),
        _draw_bars(console) if _can_animate(console) else _print_progress(console) as begin_work,
    ):

        def begin(title: str) -> Tick:
            if ticks:
                ticks[-1](end)
            ticks.append(begin_work(title, start, end))
            return ticks[-1]

        yield begin
        if ticks:
            ticks[-1](end)


def _can_animate(console: Console) -> bool:
    """Return whether progress may be shown as what moves: a spinner or a bar, instead of lines.

    So may it on a quiet console, where rich shows neither, and lines are not wanted.
    """
    # rich draws no spinner and no bar in a terminal that cannot move its cursor.
    return console.quiet or (console.is_terminal and not console.is_dumb_terminal)


@contextmanager
def _draw_bars(console: Console) -> Iterator[BeginWork]:
    """Show works as bars, which vanish when the block ends.

    Yields:
        A function that begins a work and returns its tick.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:

        def begin(title: str, start: float, end: float) -> Tick:
            task = bars.add_task(title, total=end - start)
            return lambda value: bars.update(task, completed=value - start)

        yield begin


@contextmanager
def _print_progress(console: Console) -> Iterator[BeginWork]:
    """Show works as lines, one at least every `HEARTBEAT` (4 s).

    Yields:
        A function that begins a work and returns its tick.
    """
    lines, done = _ProgressLines(quiet=console.quiet), threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            lines.break_silence()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lines.begin
    finally:
        done.set()
        thread.join()


class _ProgressLines:
    """Prints the progress of works that follow each other, as lines on standard error.

    Args:
        quiet: Whether to print nothing.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._title = ""
        self._begun = self._told = time.monotonic()

    def begin(self, title: str, start: float, end: float) -> Tick:
        """Begin a work.

        Args:
            title: What is done.
            start: Value at which it begins.
            end: Value at which it ends.

        Returns:
            A function of the value reached, which prints a line for each tenth of the work.
        """
        self._title, self._begun = title, time.monotonic()
        tenths, length = 0, end - start

        def tick(value: float) -> None:
            nonlocal tenths
            # A work without length, such as a log whose values have one stamp, is at its end.
            share = (value - start) / length if length else 1.0
            reached = int(10.0 * share + 1e-9)  # rounding must not hide a tenth
            if reached > tenths:
                tenths = reached
                self._print(f"{title}: {10 * tenths} %")

        return tick

    def break_silence(self) -> None:
        """Print the seconds that the work has taken, if no line has come for `HEARTBEAT`."""
        now = time.monotonic()
        if self._title and now - self._told >= HEARTBEAT:
            self._print(f"{self._title}: {now - self._begun:.0f} s")

    def _print(self, line: str) -> None:
        self._told = time.monotonic()
        if not self._quiet:
            print(line, file=sys.stderr, flush=True)


Tick = Callable[[float], None]
"""Called with the value that a work has reached."""
BeginWork = Callable[[str, float, float], Tick]
"""Called with the title of a work and the values at which it begins and ends."""
