"""Runs the units of a sweep, keeps the result of each, and makes one table of them."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from hybridctl.errors import FileFormatError, HybridctlError, InputError
from hybridctl.files import atomic
from hybridctl.models import experiment_module
from hybridctl.report import RunFolder, build_configuration, plain, say, table
from hybridctl.sweep.plan import Unit
from hybridctl.workers import Crew

PLAN = "sweep.json"
DONE, FAILED, LOST = "done", "failed", "lost"
_ENTRIES = 16  # of a list that become columns
_TIMES = frozenset({"simulation_seconds", "seconds_per_step"})  # how long a run took, not a result

Row = dict[str, Any]


def work(unit: Unit) -> Row:
    """Run a unit: its status and, where it is done, the numbers of its summary by dotted names.

    Errors that hybridctl raises on purpose are results, with the status "failed".
    """
    module = experiment_module("experiments", unit.experiment)
    config = build_configuration(module.Config, unit.settings)
    with TemporaryDirectory() as scratch:
        try:
            folder = RunFolder(unit.experiment, scratch, draws=False)
            summary = module.run(config, folder, Console(quiet=True))
        except HybridctlError as error:
            return {"status": FAILED, "message": str(error), "values": {}}
    return {"status": DONE, "message": "", "values": dict(numbers(plain(summary)))}


def run(
    units: Sequence[Unit],
    folder: RunFolder,
    workers: Crew,
    tell: Callable[[str], None],
    *,
    job: Callable[[Unit], Row] = work,
) -> list[Row]:
    """Run the units that have no result in the folder yet; a row for each, in their order.

    Each result is written as it comes, so that an interrupted sweep goes on where it was. A unit
    whose worker is lost has the status "lost" and no result; the others are not touched by it.
    """
    _check_plan(units, folder)
    files = {unit.key: folder / f"units/{unit.key}.json" for unit in units}
    rows = {key: _read(path) for key, path in files.items() if path.is_file()}
    if rows:
        tell(f"{len(rows)} of {len(units)} units have results already")
    for unit, future in workers.finished(job, [u for u in units if u.key not in rows]):
        row = _outcome(future)
        rows[unit.key] = row
        if row["status"] != LOST:
            folder.write_json(f"units/{unit.key}.json", row)
        note = f": {row['message']}" if row["message"] else ""
        tell(f"[{len(rows)}/{len(units)}] {unit.label}: {row['status']}{note}")
    return [_row(unit, rows[unit.key]) for unit in units]


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


def print_outcome(console: Console, rows: Sequence[Row], tables: Sequence[Path]) -> None:
    """How the units ended, and where their table is."""
    ended = Counter(row["status"] for row in rows)
    console.print(table("Units", ["status", "number"], sorted(ended.items())))
    for path in tables:
        say(console, f"{len(rows)} rows in {path}")


def _check_plan(units: Sequence[Unit], folder: RunFolder) -> None:
    """Write the plan, or see that the folder holds results of the same."""
    keys = [unit.key for unit in units]
    path = folder / PLAN
    if not path.exists():
        varied = [unit.varied for unit in units]
        experiment = units[0].experiment
        folder.write_json(PLAN, {"experiment": experiment, "units": keys, "varied": varied})
    elif _read(path).get("units") != keys:
        raise InputError(
            f"{folder.path} holds a sweep over other settings: use those again to resume it, or "
            "another folder"
        )


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


def _read(path: Path) -> Row:
    try:
        content: Row = json.loads(path.read_text())
    except ValueError as error:
        raise FileFormatError(f"{path} is not a result of a sweep: {error}") from error
    return content
