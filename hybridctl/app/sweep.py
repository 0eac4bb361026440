"""Many runs of an experiment over settings and seeds, and one table of their results."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
from rich.console import Console

from hybridctl.app.models import experiment_module, from_anywhere
from hybridctl.app.page.build import write_page
from hybridctl.app.page.transcript import Transcript
from hybridctl.app.report import RunFolder, json_or_text, plain, say, table
from hybridctl.app.sweep_result import DONE, FAILED, LOST, Row, Sweep
from hybridctl.checks import count, did_you_mean, quoted, sequence
from hybridctl.checks import function as check_function
from hybridctl.control.tuning.journal import Journal
from hybridctl.errors import HybridctlError, InputError, UnknownNameError
from hybridctl.files import atomic
from hybridctl.settings import typed
from hybridctl.workers import Crew, crew

PLAN = "sweep.jsonl"
MOST_UNITS = 1_000_000
_PRINTED = 200  # rows of a table that is printed
_ENTRIES = 16  # of a list that become columns
_TIMES = frozenset({"simulation_seconds", "seconds_per_step"})  # how long a run took, not a result

Settings = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """One run: the settings that vary, with the seed among them, and all settings.

    Its results depend on the experiment and the settings alone.
    """

    experiment: str
    varied: Settings
    settings: Settings

    @property
    def key(self) -> str:
        """A name for the file of its results: the same for the same settings."""
        content = json.dumps([self.experiment, plain(self.settings)], sort_keys=True, default=repr)
        return hashlib.sha256(content.encode()).hexdigest()[:20]

    @property
    def label(self) -> str:
        """What varies, in words."""
        return ", ".join(f"{name}={value}" for name, value in self.varied.items())


def plan(experiment: str, base: Any, vary: Sequence[str], seeds: int | None) -> tuple[Unit, ...]:
    """The units of a sweep around the configuration `base`, the last of `vary` changing fastest.

    vary: texts as of `values_of`. seeds: each combination runs with that many seeds, from the one
    of `base` on.

    Raises `InputError` for a value that the setting does not take or no setting that varies, and
    `UnknownNameError` for one that the experiment does not have.
    """
    module, start = experiment_module("experiments", experiment), dataclasses.asdict(base)
    axes = dict(values_of(text) for text in vary)
    if seeds is not None:
        first = _at(start, "seed", experiment)
        _check_number(count("seeds", seeds))
        axes["seed"] = [first + k for k in range(seeds)]
    if not axes:
        raise InputError("a sweep must vary a setting (KEY=a:b:n) or have seeds, got neither")
    _check_number(math.prod(map(len, axes.values())))
    units = []
    for combination in product(*axes.values()):
        settings = start
        for name, value in zip(axes, combination, strict=True):
            settings = _with(settings, name, value, experiment)
        units.append(_unit(from_anywhere(experiment), module, settings, list(axes)))
    return tuple(units)


def values_of(text: str) -> tuple[str, list[Any]]:
    """The values that "KEY=a:b:n" (n evenly from a to b) or "KEY=v,w,..." (JSON or text) lists."""
    key, equals, given = text.partition("=")
    if not equals or not key or not given:
        raise InputError(f"vary must look like KEY=a:b:n or KEY=v,w,..., got {quoted(text)}")
    parts = given.split(":")
    if len(parts) == 1:
        return key, [json_or_text(value) for value in given.split(",")]
    try:
        low, high, steps = float(parts[0]), float(parts[1]), int(parts[2])
        if len(parts) != 3 or steps < 1 or not np.isfinite([low, high]).all():
            raise ValueError
    except (ValueError, IndexError) as error:
        raise InputError(
            "vary must have a finite start, end and number of values, KEY=a:b:n, got "
            f"{quoted(text)}"
        ) from error
    _check_number(steps)
    return key, np.linspace(low, high, steps).tolist()


def _check_number(units: int) -> None:
    if units > MOST_UNITS:
        raise InputError(f"a sweep must have at most {MOST_UNITS} units, got {units}")


def _unit(experiment: str, module: ModuleType, settings: Settings, names: list[str]) -> Unit:
    """A unit whose settings are those of a valid configuration."""
    checked = dataclasses.asdict(typed(module.Config, settings, "settings"))
    varied = {name: _at(checked, name, experiment) for name in names}
    return Unit(experiment, varied, json.loads(json.dumps(checked)))


def _at(settings: Mapping[str, Any], name: str, experiment: str) -> Any:
    """A setting by its dotted name."""
    found: Any = settings
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            known = found if isinstance(found, Mapping) else ()
            raise UnknownNameError(
                f"{experiment} has no setting {name!r}, expected one of {list(known)}"
                + did_you_mean(part, known)
            )
        found = found[part]
    return found


def _with(settings: Settings, name: str, value: Any, experiment: str) -> Settings:
    """The settings with another value under a dotted name; whole numbers stay whole."""
    now = _at(settings, name, experiment)
    whole = isinstance(now, int) and not isinstance(now, bool)
    if whole and isinstance(value, float) and value.is_integer():
        value = int(value)
    head, _, rest = name.partition(".")
    inner = _with(settings[head], rest, value, experiment) if rest else value
    return {**settings, head: inner}


def work(unit: Unit) -> Row:
    """Run a unit: its status and, where it is done, the numbers of its summary by dotted names.

    Errors that hybridctl raises on purpose are results, with the status "failed".
    """
    module = experiment_module("experiments", unit.experiment)
    config = typed(module.Config, unit.settings, "settings")
    with TemporaryDirectory() as scratch:
        folder = RunFolder(unit.experiment, scratch, draws=False)
        return _outcome_of(partial(module.run, config, folder, Console(quiet=True)))


def _called(function: Callable[..., Any], unit: Unit) -> Row:
    """The numbers that a function returns for the settings of a unit, or why it has none."""
    return _outcome_of(partial(function, **unit.settings))


def _outcome_of(run: Callable[[], Any]) -> Row:
    try:
        found = plain(run())
    except HybridctlError as error:
        return {"status": FAILED, "message": str(error), "values": {}}
    named = numbers(found, "" if isinstance(found, dict) else "result")
    return {"status": DONE, "message": "", "values": dict(named)}


def sweep(
    function: Callable[..., Any],
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    *,
    workers: int | Executor = 1,
    out: str | Path | None = None,
    overwrite: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Sweep:
    """Call a function for every combination of a grid; its numbers make one table.

    function: of the names of the grid as keywords. It returns a number, or numbers in a mapping,
    which may be nested and get dotted names. Where it raises an error of hybridctl, such as a
    simulation that cannot go on, the run has "failed"; other errors end the sweep.
    grid: the values of each name, of which all combinations are taken, the last name changing
    fastest; or a list of the combinations.
    workers: this process (1), as many others (0 for one on each processor), or any executor of
    `concurrent.futures`, such as that of a Dask client, `client.get_executor()`. Other processes
    import the function: it has to be in a module, and a script that starts them needs
    `if __name__ == "__main__":`. The rows do not depend on who made them.
    out: a folder for the table, results as they come, and a page with a plot; a sweep that was
    stopped goes on there. overwrite: replaces another sweep in it; files that no run has written
    stay, and a folder with such files only is refused. tell: called with a line on each
    run that ends, such as `print`.

    Raises `InputError` for a grid without values, and for a function that other processes cannot
    import.
    """
    check_function("function", function)
    points = _points(grid)
    if isinstance(workers, int) and workers != 1 and not _importable(function):
        raise InputError(
            f"function must be in a module that other processes can import, got {function!r} of "
            f"{function.__module__!r}; with workers=1 any function will do"
        )
    name = getattr(function, "__qualname__", type(function).__name__)
    units = [Unit(name, point, point) for point in points]
    folder = (
        None
        if out is None
        else RunFolder(name, out, kind="sweep", overwrite=overwrite, resumes=PLAN)
    )
    own = (
        nullcontext(Crew(workers, len(points))) if isinstance(workers, Executor) else crew(workers)
    )
    with folder or nullcontext(), own as found:
        rows = run(
            units, folder, found, tell or (lambda line: None), job=partial(_called, function)
        )
        result = Sweep(tuple(rows), tuple(units[0].varied))
        if folder is not None:
            console = Transcript(quiet=True)
            write(result, folder, console)
            write_page(folder, console.entries, summary=repr(result), claim=function.__doc__ or "")
    return result


def _points(grid: Any) -> list[Settings]:
    """The combinations of a grid."""
    if isinstance(grid, Mapping):
        axes = {name: list(values) for name, values in grid.items()}
        _check_number(math.prod(map(len, axes.values())))
        points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    else:
        points = sequence("grid", grid)
        for point in points:
            if not isinstance(point, Mapping):
                raise InputError(f"entries of grid must be mappings, got {quoted(point)}")
    if not points or not points[0]:
        raise InputError(f"grid must have names with at least one value each, got {quoted(grid)}")
    if any(point.keys() != points[0].keys() for point in points):
        raise InputError(f"entries of grid must have the same names, got {quoted(grid)}")
    return points


def _importable(function: Any) -> bool:
    """Whether another process finds the function by its name."""
    while isinstance(function, partial):
        function = function.func
    module, name = sys.modules.get(function.__module__), getattr(function, "__qualname__", "")
    return getattr(module, name, None) is function and hasattr(module, "__file__")


def run(
    units: Sequence[Unit],
    folder: RunFolder | None,
    workers: Crew,
    tell: Callable[[str], None],
    *,
    job: Callable[[Unit], Row] = work,
) -> list[Row]:
    """Run the units that have no result in the folder yet; a row for each, in their order.

    Each result is written as it comes, so that an interrupted sweep goes on where it was. A unit
    whose worker is lost has the status "lost" and no result; the others are not touched by it.
    """
    rows, record = dict[str, Row](), None
    keys = [unit.key for unit in units]
    if folder is not None:
        varied = plain([unit.varied for unit in units])
        asked = {"experiment": units[0].experiment, "units": keys, "varied": varied}
        record = Journal(folder / PLAN, asked)
        rows = {key: found[0] for key in keys if (found := record.get(key)) is not None}
    if rows:
        tell(f"{len(rows)} of {len(units)} runs have results already")
    left = [unit for unit, key in zip(units, keys, strict=True) if key not in rows]
    for unit, future in workers.finished(job, left):
        row = rows[unit.key] = _outcome(future)
        if record is not None and row["status"] != LOST:
            record.put(unit.key, (row,))
        note = f": {row['message']}" if row["message"] else ""
        tell(f"[{len(rows)}/{len(units)}] {unit.label}: {row['status']}{note}")
    return [_row(unit, rows[key]) for unit, key in zip(units, keys, strict=True)]


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested results with their dotted names; of lists the first entries.

    An entry of a list that names its "quantity" goes by that, others by their place.
    """
    if isinstance(value, Mapping):
        children = [(str(key), child) for key, child in value.items() if key not in _TIMES]
    elif isinstance(value, list):
        children = [(_name_of(child, k), child) for k, child in enumerate(value[:_ENTRIES])]
    else:
        if isinstance(value, int | float):
            yield name, value
        return
    for key, child in children:
        yield from numbers(child, f"{name}.{key}" if name else key)


def _name_of(entry: Any, place: int) -> str:
    return str(entry.get("quantity", place)) if isinstance(entry, Mapping) else str(place)


def write_table(folder: RunFolder, rows: Sequence[Row]) -> list[Path]:
    """Write table.csv and, where pyarrow is installed, table.parquet; returns their paths."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with atomic(folder / "table.csv") as temporary, open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return [folder / "table.csv"]
    content = pa.table({name: [row.get(name) for row in rows] for name in columns})
    with atomic(folder / "table.parquet") as temporary:
        parquet.write_table(content, temporary)
    return [folder / "table.csv", folder / "table.parquet"]


def write(found: Sweep, folder: RunFolder, console: Console) -> None:
    """Print how the units ended and what they found, and leave tables and a figure of it."""
    ended = Counter(row["status"] for row in found.rows)
    console.print(table("How the runs ended", ["status", "runs"], sorted(ended.items())))
    if len(found.rows) <= _PRINTED:
        console.print(found.table())
    for path in write_table(folder, found.rows):
        say(console, f"{len(found.rows)} rows and {len(found.results)} results in {path}")
    if found.varying and found.axes:
        found.plot(folder / "figures/sweep.png")


def _outcome(future: Future[Row]) -> Row:
    """What a unit returned, or that its worker was lost; errors of the program are raised."""
    try:
        return future.result()
    except Exception as error:
        if type(error).__name__ not in ("BrokenProcessPool", "KilledWorker"):
            raise
        return {"status": LOST, "message": f"its worker died: {error}", "values": {}}


def _row(unit: Unit, result: Mapping[str, Any]) -> Row:
    entries = {"status": result["status"], "message": result["message"]}
    return {**unit.varied, **entries, **result["values"]}
