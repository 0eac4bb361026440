"""Run folders and tables: what every experiment leaves behind."""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import uuid4
from weakref import finalize

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hybridctl.checks import printable, quoted
from hybridctl.errors import FileFormatError, FileWriteError, InputError
from hybridctl.files import atomic, read_text
from hybridctl.hybrid.trajectory import Event
from hybridctl.settings import typed

C = TypeVar("C")

SUMMARY = "summary.json"
CONFIGURATION = "config.json"
_RUNNING = ".running"
_PACKAGES = ("hybridctl", "numpy", "scipy", "pin", "casadi", "clarabel", "matplotlib")


class RunFolder:
    """A folder that holds one run: configuration, versions, seed, metrics, data and figures.

    Without a path it is `runs/<experiment>-<date>-<time>`, numbered where another run has that
    name. A given folder must be new or empty, or hold the run that `resumes` names a file of; a
    run that has failed, so that it has no summary.json, is removed, and with `overwrite` any. Every
    file is written atomically. `draws` says whether figures are wanted. Raises `InputError` for
    any other folder, and for one that another process is running into.
    """

    def __init__(
        self,
        experiment: str,
        path: str | Path | None = None,
        *,
        overwrite: bool = False,
        resumes: str | None = None,
        draws: bool = True,
    ) -> None:
        self.experiment = experiment
        self.draws = draws
        if path is None:
            self.path = _new_folder(Path("runs"), experiment)
            self._hold()
            return
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"out must be a folder, but {self.path} is a file")
        release = self._hold()
        content = sorted(p.name for p in self.path.iterdir() if not p.name.startswith("."))
        goes_on = resumes in content and not overwrite
        failed = CONFIGURATION in content and SUMMARY not in content
        if content and (overwrite or (failed and not goes_on)):
            _remove_run(self.path, content)
            release()
            self._hold()
        elif content and not goes_on:
            release()
            raise InputError(
                f"out must be a new or an empty folder, but {self.path} holds {content[0]!r}; "
                "overwrite replaces the run in it"
            )

    def _hold(self) -> Callable[[], object]:
        """Keep other processes out while this object is there; returns what lets them in."""
        path = (self.path / _RUNNING).resolve()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise FileWriteError(f"out: {self.path}: {error.strerror}") from error
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.read(file, 200).decode()
            os.close(file)
            raise InputError(
                f"out: process {holder} is running into {self.path}; wait for its end, or name "
                "another folder"
            ) from error
        except OSError:  # a file system without locks
            pass
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()} on {platform.node()}".encode())
        return finalize(self, _released, path, file)

    def __truediv__(self, name: str) -> Path:
        """The path of a file in the folder."""
        return self.path / name

    def write_configuration(self, config: Any, seed: int | None) -> None:
        """Write config.json: the resolved configuration, the seed, and all versions."""
        self.write_json(
            CONFIGURATION,
            {
                "experiment": self.experiment,
                "seed": seed,
                "configuration": dataclasses.asdict(config),
                "versions": versions(),
            },
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


def _released(path: Path, file: int) -> None:
    """Let other processes into a folder."""
    path.unlink(missing_ok=True)
    os.close(file)


def _remove_run(path: Path, content: Sequence[str]) -> None:
    """Empty a folder, in one step, if it holds a run."""
    if CONFIGURATION not in content:
        raise InputError(
            f"out: {path} holds {content[0]!r} but no {CONFIGURATION}, so it is no run that could "
            "be overwritten"
        )
    whole = path.resolve()
    aside = whole.with_name(f".{whole.name}-{uuid4().hex}")
    whole.rename(aside)
    whole.mkdir()
    shutil.rmtree(aside)


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
def working(console: Console, title: str) -> Iterator[None]:
    """Show that work goes on: a spinner in a terminal, elsewhere a line now and then.

    Args:
        console: Where to show it. The lines are on standard error, with the seconds so far.
        title: What is done.
    """
    if console.is_terminal or console.quiet:
        with console.status(title):
            yield
        return
    done, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(HEARTBEAT):
            print(f"{title}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def progress(console: Console, start: float, end: float) -> Iterator[Callable[[str], Tick]]:
    """Progress over simulated time; `begin(title)` starts a line and returns its tick.

    A bar in a terminal; elsewhere a line for each tenth, on standard error. What has begun is at
    its end when the next begins, or the work ends.
    """
    lines: list[Tick] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bars, plainly = Progress(*columns, console=console, transient=True), not console.is_terminal

    def begin(title: str) -> Tick:
        if lines:
            lines[-1](end)
        lines.append(_tenths(console, title, start, end) if plainly else bar(title))
        return lines[-1]

    def bar(title: str) -> Tick:
        task = bars.add_task(title, total=end - start)
        return lambda t: bars.update(task, completed=t - start)

    with nullcontext() if plainly else bars:
        yield begin
        if lines:
            lines[-1](end)


def _tenths(console: Console, title: str, start: float, end: float) -> Tick:
    told = 0

    def tick(t: float) -> None:
        nonlocal told
        tenths = int(10.0 * (t - start) / (end - start) + 1e-9)
        if tenths > told and not console.quiet:
            told = tenths
            print(f"{title}: {10 * tenths} %", file=sys.stderr, flush=True)

    return tick


Tick = Callable[[float], None]
HEARTBEAT = 4.0
"""Seconds between two lines of `working`: nothing is silent for more than 5 s."""


def plain(value: Any) -> Any:
    """A value as JSON holds it: arrays as lists, infinities and NaN as None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(v) for v in value]
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
