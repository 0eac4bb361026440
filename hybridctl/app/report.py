"""Run folders and tables: what every experiment leaves behind."""

from __future__ import annotations

import dataclasses
import itertools
import json
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from string import Formatter
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar
from weakref import finalize

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hybridctl import __version__
from hybridctl.checks import printable, quoted
from hybridctl.errors import FileFormatError, InputError
from hybridctl.files import atomic, read_text
from hybridctl.hybrid.trajectory import Event
from hybridctl.run_store import SUMMARY as SUMMARY
from hybridctl.run_store import RunStore
from hybridctl.settings import typed

C = TypeVar("C")

CONFIGURATION = "config.json"
_PACKAGES = ("hybridctl", "numpy", "scipy", "pin", "casadi", "clarabel", "matplotlib")


class RunFolder:
    """A folder that holds one run: configuration, versions, seed, metrics, data and figures.

    Its marker lists what the run has written, see `hybridctl.run_store`. Only listed files are ever
    removed or overwritten. `write_text`, `write_json`, `files.atomic` and all writers of hybridctl
    list their files; a file that is written by other means is foreign to the next run.

    Life cycle: a `with` statement ends the run. A run that ends by an exception has failed, and the
    run that it has replaced comes back. Without a `with` statement the run ends with the object,
    and has failed if it has not written summary.json. A run that has failed is replaced by the
    next one in its folder.

    Attributes:
        experiment: Name of the run.
        path: The folder, as it was given.
        draws: Whether figures are wanted.
    """

    def __init__(
        self,
        experiment: str,
        path: str | Path | None = None,
        *,
        kind: str = "simulate",
        overwrite: bool = False,
        resumes: str | None = None,
        draws: bool = True,
        inputs: Sequence[Path] = (),
    ) -> None:
        """Open a folder for a run.

        Args:
            experiment: Name of the run.
            path: Folder that is new, holds no visible files, or holds a run of the same kind. None
                for `runs/<experiment>-<date>-<time>`, numbered where another run has that name.
            kind: Command that makes the run. A run of another kind is never replaced.
            overwrite: Whether a run that has ended, or could be resumed, is replaced.
            resumes: Name of the journal from which such a run goes on.
            draws: Whether figures are wanted.
            inputs: Files that the run reads. A run that wrote one of them is not replaced.

        Raises:
            InputError: The folder holds something else, or another run goes on in it.
            FileWriteError: The folder cannot be written.
        """
        self.experiment = experiment
        self.draws = draws
        self.path = _new_folder(Path("runs"), experiment) if path is None else Path(path)
        header = {"kind": kind, "experiment": experiment, "version": __version__, "record": resumes}
        self._store = RunStore(self.path, header, overwrite=overwrite, inputs=inputs)
        self._end_left_over = finalize(self, self._store.close_left_over)

    def __enter__(self) -> RunFolder:
        self._store.guarded = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end_left_over.detach()
        self._store.close(ended=error is None)

    def __truediv__(self, name: str) -> Path:
        """The path of a file in the folder."""
        return self.path / name

    def write_configuration(self, config: Any, seed: int | None) -> None:
        """Write config.json: the resolved configuration, the seed, and all versions.

        Args:
            config: Configuration dataclass.
            seed: Seed of random numbers, None where there are none.

        Raises:
            InputError: The run is resumed and its config.json has other settings.
        """
        settings = dataclasses.asdict(config)
        if self._store.resumed:
            self._check_resumed(settings)
        self.write_json(
            CONFIGURATION,
            {
                "experiment": self.experiment,
                "seed": seed,
                "configuration": settings,
                "versions": versions(),
            },
        )

    def _check_resumed(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError if config.json has other settings; who computes may change."""
        try:
            stored = json.loads((self / CONFIGURATION).read_text())["configuration"]
        except (OSError, KeyError, TypeError, ValueError):  # stopped before it was written
            return
        asked = json.loads(json.dumps(plain(settings)))
        for name in ("workers", "dask"):
            stored.pop(name, None)
            asked.pop(name, None)
        if stored != asked:
            raise InputError(
                f"{self.path} holds a run with other settings: use them again to resume it, or "
                "another folder"
            )

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file; arrays become lists, and infinities and NaN become null."""
        self.write_text(name, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")

    def write_text(self, name: str, content: str) -> None:
        """Write a text file."""
        with atomic(self / name) as temporary:
            temporary.write_text(content, encoding="utf-8", errors="backslashreplace")


def _new_folder(parent: Path, experiment: str) -> Path:
    """A folder of its own for a run that begins now, also beside others that begin now."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = parent / f"{experiment}-{stamp}"
    for k in itertools.count(2):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            path = parent / f"{experiment}-{stamp}-{k}"
    return path


def named_files(values: Iterable[object]) -> list[Path]:
    """Return the files that are named by arguments and options of a command.

    Args:
        values: Values of the arguments and options, which may be tuples of values. A text or path
            counts if a regular file is there, from the working directory on.
    """
    flat = (one for value in values for one in (value if isinstance(value, tuple) else (value,)))
    found = []
    for one in flat:
        with suppress(OSError, ValueError):  # too long for a name, or with a null character
            if isinstance(one, str | Path) and Path(one).is_file():
                found.append(Path(one))
    return found


def event_record(event: Event) -> dict[str, Any]:
    """An event as it stands in summary.json."""
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


def versions() -> dict[str, str]:
    """Versions of Python, the platform, and the packages a result depends on."""
    found = {"python": sys.version.split()[0], "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def load_configuration(
    kind: type[C],
    file: str | Path | None,
    assignments: Sequence[str],
    given: Mapping[str, Any] = MappingProxyType({}),
) -> C:
    """A configuration dataclass from a JSON file and `key=value` assignments, later ones winning.

    given: values that both win over. The file may be the config.json of an earlier run, or a plain
    object. Values of assignments are JSON, or else text. Unknown keys raise `InputError` and name
    the known ones.
    """
    values = dict(given)
    if file is not None:
        try:
            content = json.loads(read_text("configuration", file))
        except (ValueError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"configuration {file} cannot be read: {error}") from error
        found = content.get("configuration", content) if isinstance(content, dict) else content
        if not isinstance(found, dict):
            raise FileFormatError(
                f"configuration {file} must hold a JSON object, got {quoted(found)}"
            )
        values |= found
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"a setting must look like key=value, got {quoted(assignment)}")
        values[key] = json_or_text(text)
    return typed(kind, values, "settings")


def json_or_text(text: str) -> Any:
    """The value that JSON says, or else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table whose first column is text and whose others are aligned to the right."""
    result = Table(title=escape(title), title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        result.add_column(escape(printable(column)), justify="left" if i == 0 else "right")
    for row in rows:
        result.add_row(*(escape(printable(str(cell))) for cell in row))
    return result


_MISSING = object()
_PER_UNIT = {"mm": 1e3, "mrad": 1e3, "ms": 1e3, "%": 100.0, "deg": float(np.degrees(1.0))}


def record_table(
    title: str, records: Iterable[Mapping[str, Any]], columns: Mapping[str, str]
) -> Table:
    """A table with a row for each record, whose cells are formats of its entries.

    columns: a format by header, such as "{mean:.2f} ± {error:.2f}". Numbers are in SI units; where
    a header ends with [mm], [mrad], [ms], [deg] or [%] they are converted. Entries of a list or a
    mapping stand side by side, a flag is yes or no, zero has no sign, and what is None, or missing
    where other records have it, is a dash. Raises `KeyError` for an entry that no record has.
    """
    given = list(records)
    cells = [_Cells(header, given) for header in columns]
    rows = [
        [cell.vformat(form, (), record) for cell, form in zip(cells, columns.values(), strict=True)]
        for record in given
    ]
    return table(title, list(columns), rows)


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
        """An entry of a record, None where it is one of what is None."""
        try:
            return super().get_field(name, (), record)[0]
        except KeyError:
            return _MISSING
        except TypeError:
            return None

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
        return text.lstrip("-") if not text.strip("-0.") else text


def say(console: Console, line: str) -> None:
    """Print a line as it is: no markup, and not broken where the console ends."""
    console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def report_alive(console: Console, title: str) -> Iterator[None]:
    """Show that work goes on: a spinner in a terminal, elsewhere a line now and then.

    Args:
        console: Where to show it. The lines are on standard error, with the seconds so far.
        title: What is done.
    """
    if _can_animate(console):
        with console.status(title):
            yield
        return
    with _print_progress(console) as begin_work:
        begin_work(title, 0.0, 1.0)
        yield


@contextmanager
def progress(console: Console, start: float, end: float) -> Iterator[Callable[[str], Tick]]:
    """Show the progress of works that follow each other: a bar in a terminal, elsewhere lines.

    Args:
        console: Where to show it. The lines are on standard error: one for each tenth, and one at
            least every `HEARTBEAT`.
        start: Value at which each of the works begins, such as a time in s.
        end: Value at which each ends.

    Yields:
        A function that begins a work by its title and returns a function, to be called with the
        values reached. What has begun is at its end when the next begins, or the block ends.
    """
    ticks: list[Tick] = []
    with _draw_bars(console) if _can_animate(console) else _print_progress(console) as begin_work:

        def begin(title: str) -> Tick:
            if ticks:
                ticks[-1](end)
            ticks.append(begin_work(title, start, end))
            return ticks[-1]

        yield begin
        if ticks:
            ticks[-1](end)


def _can_animate(console: Console) -> bool:
    """Return whether a console shows what moves, or nothing at all."""
    # rich draws no spinner and no bar in a terminal that cannot move its cursor.
    return console.quiet or (console.is_terminal and not console.is_dumb_terminal)


@contextmanager
def _draw_bars(console: Console) -> Iterator[BeginWork]:
    """Yield a function that begins a work with a bar, which vanishes when the block ends."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:

        def begin(title: str, start: float, end: float) -> Tick:
            task = bars.add_task(title, total=end - start)
            return lambda value: bars.update(task, completed=value - start)

        yield begin


@contextmanager
def _print_progress(console: Console) -> Iterator[BeginWork]:
    """Yield a function that begins a work with lines, one at least every `HEARTBEAT`."""
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
        """Begin a work, and return the function that prints a line for each tenth of it.

        Args:
            title: What is done.
            start: Value at which it begins.
            end: Value at which it ends.
        """
        self._title, self._begun = title, time.monotonic()
        tenths = 0

        def tick(value: float) -> None:
            nonlocal tenths
            reached = int(10.0 * (value - start) / (end - start) + 1e-9)
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
BeginWork = Callable[[str, float, float], Tick]
"""Called with the title of a work and the values at which it begins and ends."""
HEARTBEAT = 4.0
"""Most seconds between two lines of progress: nothing is silent for more than 5 s. A choice."""


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: arrays as lists, infinities and NaN as None."""
    if isinstance(value, np.ndarray | np.bool_):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
