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

from hybridctl.app.models import make_absolute
from hybridctl.app.page.build import write_page
from hybridctl.app.page.transcript import Transcript
from hybridctl.app.python_files import load_experiment
from hybridctl.app.report import make_table, say
from hybridctl.app.sweep_result import DONE, FAILED, LOST, Row, Sweep, shorten_setting
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
"""Most units that are made as combinations of values; a list of combinations may be longer."""
_PRINTED = 200  # rows: a longer table is not printed, but is in the files
_ENTRIES = 16  # first entries of a list that become columns: a state has hardly more
_ENTRIES_OF_ROWS = {"status", "message"}  # of every row, beside what varied and results
_TIMES = frozenset({"simulation_seconds", "seconds_per_step"})
"""Keys of results that say how long a run took. They are left out, as they differ in each run."""

Settings = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """One run of a sweep. Its results depend on the experiment and the settings alone.

    Attributes:
        experiment: Name of the experiment or the function.
        varied: Settings that vary, with the seed among them, by dotted name.
        settings: All settings.
    """

    experiment: str
    varied: Settings
    settings: Settings

    @property
    def key(self) -> str:
        """Name of its results in a folder, by which a sweep that goes on finds them.

        It is a fingerprint of the experiment and all settings: equal units have equal keys.

        Raises:
            InputError: A setting has no canonical form, see `fingerprint`.
        """
        return compute_fingerprint([self.experiment, make_canonical_form("grid", self.settings)])

    @property
    def label(self) -> str:
        """What varies, in words."""
        return ", ".join(f"{name}={shorten_setting(value)}" for name, value in self.varied.items())


def plan_units(
    experiment: str, base: Any, vary: Sequence[str], seeds: int | None
) -> tuple[Unit, ...]:
    """Return the units of a sweep around a configuration, the last of `vary` changing fastest.

    Args:
        experiment: Name of an experiment, or path of its Python file.
        base: Configuration of the experiment.
        vary: Texts that `parse_axis` takes. Of two with one key the second counts, and `seeds`
            counts instead of one with the key "seed".
        seeds: Number of seeds of each combination, from that of `base` on; None for one.

    Raises:
        InputError: A setting does not take a value, or nothing varies.
        UnknownNameError: The experiment has no such setting.
    """
    module, start = load_experiment("experiments", experiment), dataclasses.asdict(base)
    axes = dict(parse_axis(text) for text in vary)
    if seeds is not None:
        first = _find_setting(start, "seed", experiment)
        _check_unit_count(check_count("seeds", seeds))
        axes["seed"] = [first + k for k in range(seeds)]
    if not axes:
        raise InputError("a sweep must vary a setting (KEY=a:b:n) or have seeds, got neither")
    _check_unit_count(math.prod(map(len, axes.values())))
    units = []
    for combination in product(*axes.values()):
        settings = start
        for name, value in zip(axes, combination, strict=True):
            settings = _replace_setting(settings, name, value, experiment)
        units.append(_make_unit(make_absolute(experiment), module, settings, list(axes)))
    return tuple(units)


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """Return the name and the values of a setting that varies.

    Args:
        text: "KEY=a:b:n", n floats evenly from a to b, both among them, or "KEY=v,w,...", each
            value in JSON or else text. A comma or a colon always separates, so that no value can be
            a list: "KEY=[1,2]" gives the two texts "[1" and "2]".

    Raises:
        InputError: The text is of neither form (no key, nothing behind "=", or with a colon not
            finite a and b and a whole n of at least 1), or n exceeds `MOST_UNITS`.
    """
    key, equals, given = text.partition("=")
    if not equals or not key or not given:
        raise InputError(f"vary must look like KEY=a:b:n or KEY=v,w,..., got {quote(text)}")
    parts = given.split(":")
    if len(parts) == 1:
        return key, [parse_json_or_text(value) for value in given.split(",")]
    try:
        start, end, number = parts
        low, high, steps = float(start), float(end), int(number)
        is_axis = steps >= 1 and bool(np.isfinite([low, high]).all())
    except ValueError:  # a part is no number, or there are not three parts
        is_axis = False
    if not is_axis:
        raise InputError(
            f"vary must have a finite start, end and number of values, KEY=a:b:n, got {quote(text)}"
        )
    _check_unit_count(steps)
    return key, np.linspace(low, high, steps).tolist()


def _check_unit_count(units: int) -> None:
    """Check that the combinations of a sweep are not too many to be listed.

    Raises:
        InputError: There are more than `MOST_UNITS` units.
    """
    if units > MOST_UNITS:
        raise InputError(f"a sweep must have at most {MOST_UNITS} units, got {units}")


def _make_unit(experiment: str, module: ModuleType, settings: Settings, names: list[str]) -> Unit:
    """Return a unit whose settings are those of a valid configuration.

    Args:
        experiment: Name of the experiment.
        module: Its module.
        settings: All settings.
        names: Dotted names of those that vary.

    Raises:
        InputError: A setting does not take its value.
    """
    checked = dataclasses.asdict(parse_settings(module.Config, settings, "settings"))
    varied = {name: _find_setting(checked, name, experiment) for name in names}
    # As JSON gives them (tuples become lists), like those of a configuration file.
    return Unit(experiment, varied, json.loads(json.dumps(checked)))


def _find_setting(settings: Mapping[str, Any], name: str, experiment: str) -> Any:
    """Return a setting by its dotted name.

    Args:
        settings: Nested settings.
        name: Dotted name.
        experiment: Name of the experiment, for errors.

    Raises:
        UnknownNameError: There is no such setting.
    """
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


def _replace_setting(settings: Settings, name: str, value: Any, experiment: str) -> Settings:
    """Return settings with another value under a dotted name.

    A whole float becomes an int where the setting was one: "KEY=a:b:n" gives floats only.

    Args:
        settings: Nested settings.
        name: Dotted name.
        value: New value.
        experiment: Name of the experiment, for errors.
    """
    now = _find_setting(settings, name, experiment)
    is_whole = isinstance(now, int) and not isinstance(now, bool)
    if is_whole and isinstance(value, float) and value.is_integer():
        value = int(value)
    head, _, rest = name.partition(".")
    inner = _replace_setting(settings[head], rest, value, experiment) if rest else value
    return {**settings, head: inner}


def run_unit(unit: Unit) -> Row:
    """Run a unit of an experiment.

    Args:
        unit: The unit.

    Returns:
        "status", "message", and under "values" the numbers of its summary by dotted names. Errors
        that hybridctl raises on purpose while the experiment runs are results, with the status
        "failed".

    Raises:
        InputError: The experiment is not found or cannot be loaded, a setting is wrong, or the
            summary holds something else than numbers or two of one name.
    """
    module = load_experiment("experiments", unit.experiment)
    config = parse_settings(module.Config, unit.settings, "settings")
    with TemporaryDirectory() as scratch:
        folder = RunFolder(unit.experiment, scratch, draws=False)
        return _record_outcome(partial(module.run, config, folder, Console(quiet=True)))


def _call_function(function: Callable[..., Any], unit: Unit) -> Row:
    """Return the row of what a function returns for the settings of a unit."""
    return _record_outcome(partial(function, **unit.settings))


def _record_outcome(run: Callable[[], Any]) -> Row:
    """Return status, message and numbers of a run.

    An error of hybridctl that the run raises is its outcome, with the status "failed" and no
    numbers. Other errors end the sweep, and so does a result that is not right: it is examined
    after the run.

    Args:
        run: The run, which returns its result.

    Raises:
        InputError: The result is refused by `list_numbers`, or two results have one name.
    """
    try:
        found = run()
    except HybridctlError as error:
        return {"status": FAILED, "message": str(error), "values": {}}
    values: dict[str, Any] = {}
    for name, value in list_numbers(found, "" if isinstance(found, Mapping) else "result"):
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
            mapping, which may be nested and get dotted names; see `list_numbers`. Where it raises
            an error of hybridctl, such as a simulation that cannot go on, the run has "failed";
            other errors end the sweep.
        grid: The values of each name, of which all combinations are taken, the last name changing
            fastest; or a list of the combinations. Without `out` values may be any objects. One
            text in place of several values counts as its letters.
        workers: This process (1), as many others (0 for one on each processor), or any executor of
            `concurrent.futures`, such as that of a Dask client, `client.get_executor()`. Other
            processes import the function: it has to be in a module, and a script that starts them
            needs `if __name__ == "__main__":`.
        out: Folder for the table, results as they come, and a page with a plot. A sweep that was
            stopped goes on there. Results are found again by the values of the grid, which then
            are numbers, text, arrays, or dataclasses, lists and mappings of these (see
            `make_canonical_form`). Where the code of the function or of what it uses has changed,
            or the version of hybridctl, they are computed anew.
        overwrite: Whether another sweep in `out` is replaced. Files that no run has written stay; a
            folder with such files only is refused.
        tell: Called with a line on each run that ends, such as `print`.

    Returns:
        The rows.

    Raises:
        InputError: For a grid without values, with more than `MOST_UNITS` combinations, or with the
            name "status" or "message", for a function that other processes cannot import where
            `workers` is a number, for a result that is no number, for two results of one name, for
            a value or a function that cannot be told from others in `out`, and for a folder with
            results of another grid. An executor raises its own error for a function that it cannot
            pass on.
    """
    check_callable("function", function)
    points = _list_points(grid)
    if isinstance(workers, int) and workers != 1 and not _is_importable(function):
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
    # An executor of the user stays open, own workers are ended.
    context = (
        nullcontext(Crew(workers, len(points))) if isinstance(workers, Executor) else crew(workers)
    )
    job, code = partial(_call_function, function), {} if folder is None else {"function": function}
    with folder or nullcontext(), context as members:
        rows = run_units(units, folder, members, tell or (lambda line: None), job=job, code=code)
        result = Sweep(tuple(rows), tuple(units[0].varied))
        if folder is not None:
            console = Transcript(quiet=True)
            write_sweep(result, folder, console)
            write_page(folder, console.entries, summary=repr(result), claim=function.__doc__ or "")
    return result


def _list_points(grid: Any) -> list[Settings]:
    """Return the combinations of a grid.

    Raises:
        InputError: The grid has no values, or combinations of different names.
    """
    if isinstance(grid, Mapping):
        axes = {name: list(values) for name, values in grid.items()}
        _check_unit_count(math.prod(map(len, axes.values())))
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


def _is_importable(function: Any) -> bool:
    """Return whether another process finds the function by its name, in a module with a file.

    It does not find lambdas, functions within functions, methods, objects that can be called, nor
    functions of an interactive session. A `partial` is as good as the function in it.
    """
    while isinstance(function, partial):
        function = function.func
    module, name = sys.modules.get(function.__module__), getattr(function, "__qualname__", "")
    return getattr(module, name, None) is function and hasattr(module, "__file__")


def run_units(
    units: Sequence[Unit],
    folder: RunFolder | None,
    workers: Crew,
    tell: Callable[[str], None],
    *,
    job: Callable[[Unit], Row] = run_unit,
    code: Mapping[str, Any] = MappingProxyType({}),
) -> list[Row]:
    """Run the units that have no result in the folder yet.

    Each result is written as it comes, so that an interrupted sweep goes on where it was. A unit
    whose worker is lost has the status "lost" and no result. hybridctl's own workers go on with the
    others. An executor of the user may not: once a worker of a `ProcessPoolExecutor` is lost, all
    units without a result are.

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
        InputError: For a folder with results of other units, for a setting that varies and is named
            "status" or "message", and for two results of one name.
    """
    for name in _ENTRIES_OF_ROWS & units[0].varied.keys():
        raise InputError(f"grid must not have the name {name!r}, which every row has of its own")
    found, record, keys = dict[int, Row](), None, list[str]()
    if folder is not None:
        keys = list(_number_equal_keys(unit.key for unit in units))
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
        row = found[k] = _await_row(future)
        # A lost unit is not stored, so that it is run again when the sweep goes on.
        if record is not None and row["status"] != LOST:
            record.put(keys[k], (row,))
        note = f": {row['message']}" if row["message"] else ""
        tell(f"[{len(found)}/{len(units)}] {unit.label}: {row['status']}{note}")
    return _make_rows(units, [found[k] for k in range(len(units))])


def _number_equal_keys(keys: Iterable[str]) -> Iterator[str]:
    """Yield the keys: KEY, then KEY-2, KEY-3, ... where it comes again.

    Equal units are each run, and each has a result of its own in the folder.
    """
    seen = Counter[str]()
    for key in keys:
        seen[key] += 1
        yield key if seen[key] == 1 else f"{key}-{seen[key]}"


def _as_label(value: Any) -> Any:
    """Return a setting as the first line of a journal shows it: a scalar of NumPy as a number.

    It is for readers: results are found by `Unit.key`.
    """
    return value.item() if isinstance(value, np.bool_ | np.number) else value


def list_numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in nested results with their dotted names.

    Truth values are numbers, and nan and infinities are kept. A complex number has two, its `real`
    and `imag`. Of a list or an array the first 16 entries (`_ENTRIES`) are taken: an entry has its
    place as name, or if it is a mapping with the key "quantity" what that says. Left out are text,
    None, and in mappings at any depth the keys "simulation_seconds" and "seconds_per_step"
    (`_TIMES`): how long a run took is no result.

    Args:
        value: Numbers, text, None, or lists, tuples, arrays and mappings of these.
        name: Dotted name of the value.

    Yields:
        Name and number.

    Raises:
        InputError: For anything else: left out, it would be missing in a run with status "done".
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, complex):
        value = {"real": value.real, "imag": value.imag}
    if isinstance(value, Mapping):
        children = [(str(key), child) for key, child in value.items() if key not in _TIMES]
    elif isinstance(value, list | tuple):
        children = [(_name_entry(child, k), child) for k, child in enumerate(value[:_ENTRIES])]
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
        yield from list_numbers(child, f"{name}.{key}" if name else key)


def _name_entry(entry: Any, place: int) -> str:
    """Return the name of an entry: the "quantity" of a mapping with one, else its place."""
    return str(entry.get("quantity", place)) if isinstance(entry, Mapping) else str(place)


def write_table(folder: RunFolder, rows: Sequence[Row]) -> list[Path]:
    """Write table.csv and, if pyarrow is installed, table.parquet.

    Args:
        folder: Folder of the run.
        rows: Rows of the table, by the names of columns.

    Returns:
        Paths of the tables.
    """
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


def write_sweep(found: Sweep, folder: RunFolder, console: Console) -> None:
    """Print how the units ended and what they found, and write tables and a figure.

    Args:
        found: The sweep.
        folder: Folder of the run.
        console: Where tables are printed.
    """
    ended = Counter(row["status"] for row in found.rows)
    console.print(make_table("How the runs ended", ["status", "runs"], sorted(ended.items())))
    if len(found.rows) <= _PRINTED:
        console.print(found.table())
    for path in write_table(folder, found.rows):
        say(console, f"{len(found.rows)} rows and {len(found.results)} results in {path}")
    if found.varying and found.axes:
        found.plot(folder / "figures/sweep.png")


def _await_row(future: Future[Row]) -> Row:
    """Return the row of a unit when it has ended, with the status "lost" if its worker died.

    Raises:
        Exception: The job has raised it, which ends the sweep.
    """
    try:
        return future.result()
    except Exception as error:
        # By name, as the second is of Dask, which need not be installed.
        if type(error).__name__ not in ("BrokenProcessPool", "KilledWorker"):
            raise
        return {"status": LOST, "message": f"its worker died: {error}", "values": {}}


def _make_rows(units: Sequence[Unit], results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return what varied, status, message and results of each unit.

    A result may have the name of a setting that varies. If both are equal in all rows that have
    the result, the row has the setting alone. If they differ in one row, NAME is the setting and
    result.NAME the result in all rows. A result "status" or "message" is always called
    result.status or result.message.

    Args:
        units: Units of the sweep, at least one.
        results: What each unit left, in the same order: status, message and values by name.

    Raises:
        InputError: A result that is to be called result.NAME finds this name taken.
    """
    reserved, renamed = {*_ENTRIES_OF_ROWS, *units[0].varied}, set[str]()
    for unit, result in zip(units, results, strict=True):
        for name in reserved & result["values"].keys():
            if name not in unit.varied or not _is_same(unit.varied[name], result["values"][name]):
                renamed.add(name)
    rows = []
    for unit, result in zip(units, results, strict=True):
        row = {**unit.varied, "status": result["status"], "message": result["message"]}
        for name, value in result["values"].items():
            # A result that is equal to its setting is in the row already.
            title = f"result.{name}" if name in renamed else name
            if title in row and (name in renamed or name not in reserved):
                plain = title.removeprefix("result.")
                raise InputError(f"results must not be called both {plain!r} and {title!r}")
            if name not in reserved or name in renamed:
                row[title] = value
        rows.append(row)
    return rows


def _is_same(setting: Any, result: Any) -> bool:
    """Return whether a result is the value of a setting; 1 and 1.0 are the same, nan is none."""
    return isinstance(setting, int | float | np.number | np.bool_) and bool(setting == result)
