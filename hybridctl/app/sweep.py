"""Many runs of an experiment over settings and seeds, and one table of their results."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import product
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
from rich.console import Console

from hybridctl.app.models import experiment_module, from_anywhere
from hybridctl.app.page.build import write_page
from hybridctl.app.page.transcript import Transcript
from hybridctl.app.report import say, table
from hybridctl.app.sweep_result import DONE, FAILED, LOST, Row, Sweep, short
from hybridctl.base.checks import check_callable, check_count, check_sequence, quote, suggest_names
from hybridctl.base.errors import HybridctlError, InputError, UnknownNameError
from hybridctl.base.files import atomic
from hybridctl.base.fingerprint import compute_fingerprint, make_canonical_form
from hybridctl.base.journal import Journal
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import parse_json_or_text, parse_settings
from hybridctl.base.workers import Crew, call_numbered, crew

PLAN = "sweep.jsonl"
MOST_UNITS = 1_000_000
_PRINTED = 200  # rows of a table that is printed
_ENTRIES = 16  # of a list that become columns
_ENTRIES_OF_ROWS = {"status", "message"}  # beside what varied and results
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
        """Name of its results in a folder: it differs where a setting differs.

        Raises `InputError` for a setting without a canonical form, see `fingerprint`.
        """
        return compute_fingerprint([self.experiment, make_canonical_form("grid", self.settings)])

    @property
    def label(self) -> str:
        """What varies, in words."""
        return ", ".join(f"{name}={short(value)}" for name, value in self.varied.items())


def plan(experiment: str, base: Any, vary: Sequence[str], seeds: int | None) -> tuple[Unit, ...]:
    """Return the units of a sweep around a configuration, the last of `vary` changing fastest.

    vary: texts as of `values_of`. seeds: each combination runs with that many seeds, from the one
    of `base` on.

    Raises `InputError` for a value that the setting does not take or no setting that varies, and
    `UnknownNameError` for one that the experiment does not have.
    """
    module, start = experiment_module("experiments", experiment), dataclasses.asdict(base)
    axes = dict(values_of(text) for text in vary)
    if seeds is not None:
        first = _at(start, "seed", experiment)
        _check_number(check_count("seeds", seeds))
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
    """Return the values of "KEY=a:b:n" (n evenly from a to b) or "KEY=v,w,..." (JSON or text)."""
    key, equals, given = text.partition("=")
    if not equals or not key or not given:
        raise InputError(f"vary must look like KEY=a:b:n or KEY=v,w,..., got {quote(text)}")
    parts = given.split(":")
    if len(parts) == 1:
        return key, [parse_json_or_text(value) for value in given.split(",")]
    try:
        low, high, steps = float(parts[0]), float(parts[1]), int(parts[2])
        if len(parts) != 3 or steps < 1 or not np.isfinite([low, high]).all():
            raise ValueError
    except (ValueError, IndexError) as error:
        raise InputError(
            f"vary must have a finite start, end and number of values, KEY=a:b:n, got {quote(text)}"
        ) from error
    _check_number(steps)
    return key, np.linspace(low, high, steps).tolist()


def _check_number(units: int) -> None:
    if units > MOST_UNITS:
        raise InputError(f"a sweep must have at most {MOST_UNITS} units, got {units}")


def _unit(experiment: str, module: ModuleType, settings: Settings, names: list[str]) -> Unit:
    """Return a unit whose settings are those of a valid configuration."""
    checked = dataclasses.asdict(parse_settings(module.Config, settings, "settings"))
    varied = {name: _at(checked, name, experiment) for name in names}
    return Unit(experiment, varied, json.loads(json.dumps(checked)))


def _at(settings: Mapping[str, Any], name: str, experiment: str) -> Any:
    """Return a setting by its dotted name."""
    found: Any = settings
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            known = found if isinstance(found, Mapping) else ()
            raise UnknownNameError(
                f"{experiment} has no setting {name!r}, expected one of {list(known)}"
                + suggest_names(part, known)
            )
        found = found[part]
    return found


def _with(settings: Settings, name: str, value: Any, experiment: str) -> Settings:
    """Return the settings with another value under a dotted name; whole numbers stay whole."""
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
    config = parse_settings(module.Config, unit.settings, "settings")
    with TemporaryDirectory() as scratch:
        folder = RunFolder(unit.experiment, scratch, draws=False)
        return _outcome_of(partial(module.run, config, folder, Console(quiet=True)))


def _called(function: Callable[..., Any], unit: Unit) -> Row:
    """Return the numbers that a function returns for the settings of a unit, or why it has none."""
    return _outcome_of(partial(function, **unit.settings))


def _outcome_of(run: Callable[[], Any]) -> Row:
    """Return status, message and numbers of a run; raises for a result that `numbers` refuses."""
    try:
        found = run()
    except HybridctlError as error:
        return {"status": FAILED, "message": str(error), "values": {}}
    values: dict[str, Any] = {}
    for name, value in numbers(found, "" if isinstance(found, Mapping) else "result"):
        if name in values:
            raise InputError(f"results must have different names, got {name!r} twice")
        values[name] = value
    return {"status": DONE, "message": "", "values": values}


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

    Every point of the grid has a row of its own, also where two are equal. The rows do not depend
    on who computes them.

    Args:
        function: Takes the names of the grid as keywords, and returns a number, or numbers in a
            mapping, which may be nested and get dotted names; see `numbers`. Where it raises an
            error of hybridctl, such as a simulation that cannot go on, the run has "failed"; other
            errors end the sweep.
        grid: The values of each name, of which all combinations are taken, the last name changing
            fastest; or a list of the combinations. Without `out` values may be any objects.
        workers: This process (1), as many others (0 for one on each processor), or any executor of
            `concurrent.futures`, such as that of a Dask client, `client.get_executor()`. Other
            processes import the function: it has to be in a module, and a script that starts them
            needs `if __name__ == "__main__":`.
        out: Folder for the table, results as they come, and a page with a plot. A sweep that was
            stopped goes on there. Results are found again by the values of the grid, which then
            are numbers, text, arrays, or dataclasses, lists and mappings of these (see
            `make_canonical_form`). Where the code of the function has changed, with what it
            uses, or the version of hybridctl, they are computed anew.
        overwrite: Whether another sweep in `out` is replaced. Files that no run has written stay; a
            folder with such files only is refused.
        tell: Called with a line on each run that ends, such as `print`.

    Returns:
        The rows.

    Raises:
        InputError: For a grid without values, for a function that other processes cannot import,
            for a result that is no number, for a value or a function that cannot be told from
            others in `out`, and for a folder with results of another grid.
    """
    check_callable("function", function)
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
    job, code = partial(_called, function), {} if folder is None else {"function": function}
    with folder or nullcontext(), own as found:
        rows = run(units, folder, found, tell or (lambda line: None), job=job, code=code)
        result = Sweep(tuple(rows), tuple(units[0].varied))
        if folder is not None:
            console = Transcript(quiet=True)
            write(result, folder, console)
            write_page(folder, console.entries, summary=repr(result), claim=function.__doc__ or "")
    return result


def _points(grid: Any) -> list[Settings]:
    """Return the combinations of a grid."""
    if isinstance(grid, Mapping):
        axes = {name: list(values) for name, values in grid.items()}
        _check_number(math.prod(map(len, axes.values())))
        points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    else:
        points = check_sequence("grid", grid)
        for point in points:
            if not isinstance(point, Mapping):
                raise InputError(f"entries of grid must be mappings, got {quote(point)}")
    if not points or not points[0]:
        raise InputError(f"grid must have names with at least one value each, got {quote(grid)}")
    if any(point.keys() != points[0].keys() for point in points):
        raise InputError(f"entries of grid must have the same names, got {quote(grid)}")
    return points


def _importable(function: Any) -> bool:
    """Return whether another process finds the function by its name."""
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
    code: Mapping[str, Any] = MappingProxyType({}),
) -> list[Row]:
    """Run the units that have no result in the folder yet.

    Each result is written as it comes, so that an interrupted sweep goes on where it was. A unit
    whose worker is lost has the status "lost" and no result; the others are not touched by it.

    Args:
        units: All units; equal ones are run each.
        folder: Where results are kept and looked up, if anywhere.
        workers: Who runs them.
        tell: Called with a line on each unit that ends.
        job: What is run.
        code: What results depend on beside the units, by name, such as the function. Results of
            other code in the folder are not used.

    Returns:
        A row for each unit, in their order.

    Raises:
        InputError: For a folder with results of other units.
    """
    for name in _ENTRIES_OF_ROWS & units[0].varied.keys():
        raise InputError(f"grid must not have the name {name!r}, which every row has of its own")
    found, record, keys = dict[int, Row](), None, list[str]()
    if folder is not None:
        keys = list(_different(unit.key for unit in units))
        shown = [{name: _as_label(value) for name, value in unit.varied.items()} for unit in units]
        known = {"experiment": units[0].experiment, "units": keys, "varied": shown}
        record = Journal(folder / PLAN, known, code)
        if record.unused_results:
            tell(f"{record.unused_results} results of other code or another version are not used")
        stored = ((k, record.get(key)) for k, key in enumerate(keys))
        found = {k: row[0] for k, row in stored if row is not None}
    if found:
        tell(f"{len(found)} of {len(units)} runs have results already")
    left = [(k, unit) for k, unit in enumerate(units) if k not in found]
    for (k, unit), future in workers.finished(partial(call_numbered, job), left):
        row = found[k] = _outcome(future)
        if record is not None and row["status"] != LOST:
            record.put(keys[k], (row,))
        note = f": {row['message']}" if row["message"] else ""
        tell(f"[{len(found)}/{len(units)}] {unit.label}: {row['status']}{note}")
    return _rows(units, [found[k] for k in range(len(units))])


def _different(keys: Iterable[str]) -> Iterator[str]:
    """Yield the keys, those that came before with a number."""
    seen = Counter[str]()
    for key in keys:
        seen[key] += 1
        yield key if seen[key] == 1 else f"{key}-{seen[key]}"


def _as_label(value: Any) -> Any:
    """Return a setting as the first line of a journal shows it; `Unit.key` determines it."""
    return value.item() if isinstance(value, np.bool_ | np.number) else value


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in nested results with their dotted names.

    Truth values are numbers, and nan and infinities are kept. A complex number has two, its `real`
    and `imag`. Of a list or an array the first entries are taken; an entry that names its
    "quantity" goes by that, others by their place. Text and None are left out.

    Args:
        value: Numbers, text, None, or lists, tuples, arrays and mappings of these.
        name: Dotted name of the value.

    Yields:
        Name and number.

    Raises:
        InputError: For anything else; it would be missing in a run that is called done.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, complex):
        value = {"real": value.real, "imag": value.imag}
    if isinstance(value, Mapping):
        children = [(str(key), child) for key, child in value.items() if key not in _TIMES]
    elif isinstance(value, list | tuple):
        children = [(_name_of(child, k), child) for k, child in enumerate(value[:_ENTRIES])]
    elif isinstance(value, int | float):
        yield name, value
        return
    elif isinstance(value, Real | Decimal):
        yield name, float(value)
        return
    elif isinstance(value, str | None):
        return
    else:
        raise InputError(
            f"result {name!r} must be a number, or numbers in lists and mappings, got "
            f"{quote(value)}"
        )
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

    def column(name: str) -> Any:
        values = [row.get(name) for row in rows]
        try:
            return pa.array(values)
        except (pa.ArrowException, TypeError, OverflowError):  # values of several types
            return pa.array([None if value is None else str(value) for value in values])

    with atomic(folder / "table.parquet") as temporary:
        parquet.write_table(pa.table({name: column(name) for name in columns}), temporary)
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
    """Return the result of a unit, or that its worker was lost; errors of the code are raised."""
    try:
        return future.result()
    except Exception as error:
        if type(error).__name__ not in ("BrokenProcessPool", "KilledWorker"):
            raise
        return {"status": LOST, "message": f"its worker died: {error}", "values": {}}


def _rows(units: Sequence[Unit], results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return what varied, status, message and results of each unit.

    A result with the name of a setting is that setting if it has its value in all rows; otherwise
    it is called `result.NAME`. So is one with the name of another entry.

    Args:
        units: Units of the sweep, at least one.
        results: What each unit left, in the same order: status, message and values by name.

    Raises:
        InputError: Two results have one name, as NAME and result.NAME.
    """
    own, apart = {*_ENTRIES_OF_ROWS, *units[0].varied}, set[str]()
    for unit, result in zip(units, results, strict=True):
        for name in own & result["values"].keys():
            if name not in unit.varied or not _is_same(unit.varied[name], result["values"][name]):
                apart.add(name)
    rows = []
    for unit, result in zip(units, results, strict=True):
        row = {**unit.varied, "status": result["status"], "message": result["message"]}
        for name, value in result["values"].items():
            title = f"result.{name}" if name in apart else name
            if title in row and (name in apart or name not in own):
                plain = title.removeprefix("result.")
                raise InputError(f"results must not be called both {plain!r} and {title!r}")
            if name not in own or name in apart:
                row[title] = value
        rows.append(row)
    return rows


def _is_same(setting: Any, result: Any) -> bool:
    """Return whether a result is the value of a setting; 1 and 1.0 are the same, nan is none."""
    return isinstance(setting, int | float | np.number | np.bool_) and bool(setting == result)
