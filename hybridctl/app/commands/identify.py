"""What `hybridctl identify` does: fit parameters of a model to logs, and judge them on others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hybridctl.app.commands.filter import load_log
from hybridctl.app.models import find_model, from_anywhere
from hybridctl.app.report import say, table
from hybridctl.app.robot_file import RobotFile
from hybridctl.base.checks import Array, check_array, check_member, quote
from hybridctl.base.code_reading import digest_sources
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.fingerprint import compute_fingerprint, digest_named_files
from hybridctl.base.journal import Journal
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import find_bounds
from hybridctl.base.workers import crew
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.identification import (
    Identification,
    LikelihoodPoint,
    Problem,
    Profile,
    identify,
    profile,
)
from hybridctl.estimation.record import Record

STATE = "evaluations.jsonl"
FACTOR = 10.0  # by which a parameter may end above or below where it starts


@dataclass(frozen=True)
class IdentifyRequest:
    """What the command line asks for.

    parameters: settings of the model, which start at what `config` and `assignments` say. bounds:
    NAME=LOW:HIGH.
    segments, held_out_segments: of the logs, such as 0-99 or 0,3,7; held_out: other logs. until:
    how much of each log, in s. profiles: parameters whose profile is wanted.
    """

    logs: tuple[Path, ...]
    model: str
    parameters: tuple[str, ...]
    bounds: tuple[str, ...] = ()
    mapping: Path | None = None
    segments: str | None = None
    held_out: tuple[Path, ...] = ()
    held_out_segments: str | None = None
    until: float | None = None
    profiles: tuple[str, ...] = ()
    config: Path | None = None
    assignments: tuple[str, ...] = ()
    max_evaluations: int = 100
    workers: int = 1
    dask: str | None = None


@dataclass(frozen=True)
class ModelAt:
    """The model of a source at values (np,) of some of its settings; it can be pickled."""

    model: str
    config: Path | None
    assignments: tuple[str, ...]
    names: tuple[str, ...]

    def settings(self, values: Array | None = None) -> FilterSettings:
        """Return the settings of the source, with these values."""
        source = find_model(self.model)
        given: FilterSettings = source.configured(self.config, self.assignments)
        if values is None:
            return given
        return replace(given, **dict(zip(self.names, values.tolist(), strict=True)))

    def __call__(self, values: Array) -> FilterModel:
        """Return the model with these parameters."""
        return find_model(self.model).make(self.settings(values))


def prepared(
    request: IdentifyRequest,
) -> tuple[str, Callable[[RunFolder, Console], None], str, None, str]:
    """Return name, function and description of a run, and the file that it resumes from.

    Logs are read at once.
    """
    source = from_anywhere(request.model)
    make = ModelAt(source, request.config, request.assignments, request.parameters)
    start, settings = _start(make), make.settings()
    bounds = _bounds(request.bounds, request.parameters, start, type(settings))
    fitted = _records(request, make(start), request.logs, request.segments)
    judged: tuple[Record, ...] = ()
    if request.held_out or request.held_out_segments is not None:
        logs = request.held_out or request.logs
        judged = _records(request, make(start), logs, request.held_out_segments)
    problem = Problem(make, request.parameters, bounds, fitted, settings)
    words = f"{', '.join(request.parameters)} of {request.model} by likelihood"
    find = partial(run, request, problem, start, judged)
    return f"identify-{find_model(request.model).name}", find, words, None, STATE


def run(
    request: IdentifyRequest,
    problem: Problem,
    start: Array,
    judged: tuple[Record, ...],
    folder: RunFolder,
    console: Console,
) -> None:
    """Identify into a folder, which may be that of a run that was stopped."""
    record = Journal(
        folder / STATE, _asked(request, problem.settings), _code(request, problem.records)
    )
    folder.write_configuration(problem.settings, seed=None)
    notes = [note for one in (*problem.records, *judged) for note in one.notes]
    for note in dict.fromkeys(notes):
        say(console, f"warning: {note}")
    try:
        done = [LikelihoodPoint.from_dict(content) for (content,) in record.values()]
        known = {tuple(one.values.tolist()): one for one in done}
    except (AttributeError, TypeError, ValueError) as error:
        raise FileFormatError(f"{record.path} is no record of evaluations: {error}") from error

    def keep(one: LikelihoodPoint) -> None:
        record.put(str(len(record)), (one.as_dict(),))
        values = zip(request.parameters, one.values, strict=True)
        there = ", ".join(f"{name} {value:.5g}" for name, value in values)
        say(console, f"{len(record)}: log-likelihood {one.log_likelihood:.2f} at {there}")

    with crew(request.workers, request.dask) as workers:
        problem = replace(problem, executor=workers.parallel_executor, known=known, told=keep)
        found = identify(problem, start, held_out=judged, max_evaluations=request.max_evaluations)
        profiles = [profile(problem, found, one) for one in request.profiles]
    summary = summarize(found, profiles, len(problem.records), len(judged))
    summary["warnings"] = list(dict.fromkeys(notes))
    folder.write_json("summary.json", summary)
    print_result(console, found, profiles)


def _asked(request: IdentifyRequest, settings: FilterSettings) -> dict[str, Any]:
    """Return what the evaluations of a run depend on."""
    return {
        "model": request.model,
        "logs": [str(path) for path in request.logs],
        "parameters": request.parameters,
        "segments": request.segments,
        "until": request.until,
        "mapping": None if request.mapping is None else str(request.mapping),
        "settings": asdict(settings),
    }


def _code(request: IdentifyRequest, records: tuple[Record, ...]) -> dict[str, Any]:
    """Return what evaluations are computed by: the code or the files of the model, and the logs."""
    function = find_model(request.model).function
    module, robot = sys.modules.get(function.__module__), getattr(function, "__self__", None)
    urdf = robot.path.parent / robot.robot.urdf if isinstance(robot, RobotFile) else ""
    return {
        "source": None if module is None else digest_sources(module),
        "robot": robot,
        "files": dict(digest_named_files([urdf])),
        "records": compute_fingerprint(records, "records"),
    }


def _start(make: ModelAt) -> Array:
    """Return the settings that are to be found, where they begin."""
    values = vars(make.settings())
    numbers = [k for k, v in values.items() if isinstance(v, float | None) and k != "gate"]
    for name in make.names:
        check_member("parameter", name, numbers)
        if values[name] is None:
            raise InputError(f"parameter {name!r} has no value; `--set {name}=VALUE` starts it")
    return check_array("start", [values[name] for name in make.names])


def _bounds(given: Sequence[str], names: Sequence[str], start: Array, kind: type) -> Array:
    """Lower and upper bound (np, 2) of each parameter: those given, or `FACTOR` from the start.

    kind: the type of the settings, whose own bounds those by default keep to.
    """
    bounds = {}
    for name, value in zip(names, start.tolist(), strict=True):
        least, most = find_bounds(kind, name)
        bounds[name] = max(value / FACTOR, least), min(value * FACTOR, most)
    for text in given:
        name, _, ends = text.partition("=")
        low, _, high = ends.partition(":")
        try:
            bounds[check_member("bounds of", name, names)] = float(low), float(high)
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"bounds must look like NAME=LOW:HIGH, got {quote(text)}") from error
    for name, (low, high) in bounds.items():
        if not low < high:
            raise InputError(
                f"bounds of {name!r} must increase, got {low:g} to {high:g}; `--bounds "
                f"{name}=LOW:HIGH` gives them"
            )
    return np.array([bounds[name] for name in names])


def _records(
    request: IdentifyRequest, model: FilterModel, logs: Sequence[Path], segments: str | None
) -> tuple[Record, ...]:
    numbers: list[int | None] = [None] if segments is None else list(_numbers(segments))
    found = []
    for path in logs:
        for segment in numbers:
            log = load_log(path, model.mapping, request.mapping, segment)
            record = log.record(model)
            record = replace(record, notes=(*log.notes, *record.notes))
            found.append(_shortened(record, request.until))
    return tuple(found)


def _numbers(text: str) -> Iterator[int]:
    """Yield the numbers 0, 1, 2, 3, 7 of the text 0-3,7."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            yield from range(int(first), int(last or first) + 1)
        except ValueError as error:
            raise InputError(f"segments must look like 0-99 or 0,3,7, got {quote(text)}") from error


def _shortened(record: Record, until: float | None) -> Record:
    """Return the rows of the first `until` s."""
    if until is None:
        return record
    first = min(float(s.times.min()) for s in record.channels.values() if len(s.times))
    return record.between(-np.inf, first + until)


def summarize(
    found: Identification, profiles: Sequence[Profile], fitted: int, judged: int
) -> dict[str, Any]:
    """Return what summary.json holds."""
    best, held_out = found.best, found.held_out
    return {
        "parameters": {
            p.name: {k: v for k, v in vars(p).items() if k != "name"} for p in found.parameters
        },
        "log_likelihood": best.log_likelihood,
        "records": fitted,
        "accepted": best.accepted,
        "rejected": best.rejected,
        "lost": best.lost,
        "failed": best.failed,
        "correlation": found.correlation,
        "evaluations": found.evaluations,
        "converged": found.converged,
        "held_out_records": judged,
        "held_out_log_likelihood": None if held_out is None else held_out.log_likelihood,
        "held_out_accepted": None if held_out is None else held_out.accepted,
        "profiles": {p.name: {k: v for k, v in vars(p).items() if k != "name"} for p in profiles},
    }


def print_result(console: Console, found: Identification, profiles: Sequence[Profile]) -> None:
    """The parameters with their errors, and what is known of those that have none."""
    ranges = {p.name: f"{_number(p.low)} to {_number(p.high)}" for p in profiles}
    rows = [
        (
            p.name,
            f"{p.value:.6g}",
            _number(p.standard_error),
            _number(p.robust_error),
            ranges.get(p.name, ""),
            "at its bound" if p.at_bound else "" if p.standard_error else "not determined",
        )
        for p in found.parameters
    ]
    errors = ["standard error", "error over records", "95 % profile interval"]
    columns = ["parameter", "value", *errors, "note"]
    console.print(table("Parameters", columns, rows))
    how = "" if found.converged else ", not converged"
    line = f"log-likelihood {found.best.log_likelihood:.2f}, {found.evaluations} evaluations{how}"
    if found.held_out is not None:
        line += f"; log-likelihood of the held-out recordings {found.held_out.log_likelihood:.2f}"
    say(console, line)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
