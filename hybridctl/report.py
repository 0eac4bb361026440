"""Run folders and tables: what every experiment leaves behind."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hybridctl.errors import FileFormatError, InputError
from hybridctl.files import atomic
from hybridctl.hybrid.trajectory import Event

C = TypeVar("C")

_PACKAGES = ("hybridctl", "numpy", "scipy", "pin", "casadi", "matplotlib")


class RunFolder:
    """A folder that holds one run: configuration, versions, seed, metrics, data and figures.

    Without a path it is `runs/<experiment>-<date>-<time>`. Every file is written atomically.
    """

    def __init__(self, experiment: str, path: str | Path | None = None) -> None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        self.path = Path(path) if path is not None else Path("runs") / f"{experiment}-{stamp}"
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"out must be a folder, but {self.path} is a file")
        self.path.mkdir(parents=True, exist_ok=True)
        self.experiment = experiment

    def __truediv__(self, name: str) -> Path:
        """The path of a file in the folder."""
        return self.path / name

    def write_configuration(self, config: Any, seed: int | None) -> None:
        """Write config.json: the resolved configuration, the seed, and all versions."""
        self.write_json(
            "config.json",
            {
                "experiment": self.experiment,
                "seed": seed,
                "configuration": dataclasses.asdict(config),
                "versions": versions(),
            },
        )

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file; arrays become lists, and infinities and NaN become null."""
        self.write_text(name, json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")

    def write_text(self, name: str, content: str) -> None:
        """Write a text file."""
        with atomic(self / name) as temporary:
            temporary.write_text(content)


def event_record(event: Event) -> dict[str, Any]:
    """An event as it stands in summary.json."""
    return {
        "time": event.time,
        "mode_before": event.mode_before,
        "mode_after": event.mode_after,
        "guards": event.guards,
        "impulses": event.impulses,
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


def load_configuration(kind: type[C], file: str | Path | None, assignments: Sequence[str]) -> C:
    """A configuration dataclass from a JSON file and `key=value` assignments, later ones winning.

    The file may be the config.json of an earlier run, or a plain object. Values of assignments
    are JSON, or else text. Unknown keys raise `InputError` and name the known ones.
    """
    values: dict[str, Any] = {}
    if file is not None:
        try:
            content = json.loads(Path(file).read_text())
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise FileFormatError(f"configuration {file} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise FileFormatError(f"configuration {file} must hold a JSON object")
        values |= content.get("configuration", content)
    values |= assigned(assignments)
    return build_configuration(kind, values)


def assigned(assignments: Sequence[str]) -> dict[str, Any]:
    """Settings from `key=value` texts; values are JSON, or else text."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"a setting must look like key=value, got {assignment!r}")
        try:
            values[key] = json.loads(text)
        except json.JSONDecodeError:
            values[key] = text
    return values


def build_configuration(kind: type[C], values: Mapping[str, Any]) -> C:
    """A dataclass from a mapping, with nested dataclasses from nested mappings."""
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise InputError(f"setting {unknown[0]!r} is unknown, expected one of {sorted(fields)}")
    arguments = {}
    for key, value in values.items():
        default = fields[key].default_factory
        if default is not dataclasses.MISSING and dataclasses.is_dataclass(default):
            if not isinstance(value, Mapping):
                raise InputError(f"setting {key!r} must be an object, got {value!r}")
            value = build_configuration(default, value)
        arguments[key] = _tuples(value)
    return kind(**arguments)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table whose first column is text and whose others are aligned to the right."""
    result = Table(title=escape(title), title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        result.add_column(escape(column), justify="left" if i == 0 else "right")
    for row in rows:
        result.add_row(*(escape(str(cell)) for cell in row))
    return result


@contextmanager
def progress(console: Console, start: float, end: float) -> Iterator[Callable[[str], Tick]]:
    """A progress bar over simulated time; `begin(title)` starts a line and returns its tick."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:

        def begin(title: str) -> Tick:
            task = bar.add_task(title, total=end - start)
            return lambda t: bar.update(task, completed=t - start)

        yield begin


Tick = Callable[[float], None]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(v) for v in value]
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
