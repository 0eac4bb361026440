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
from hybridctl.app.models import find_model, make_absolute
from hybridctl.app.report import make_table, say
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
"""Journal of the evaluations in the folder of a run, from which a stopped run goes on."""
FACTOR = 10.0
"""Factor by which a parameter may end above or below its start, without bounds. A choice."""


@dataclass(frozen=True)
class IdentifyRequest:
    """What the command line asks of `identify`.

    Attributes:
        logs: Logs that parameters are fitted to.
        model: Text that names the model, see `models`.
        parameters: Settings of the model to be found. They start at their values.
        bounds: Bounds as NAME=LOW:HIGH; others are a factor of `FACTOR` from the start, within
            those of the setting.
        mapping: YAML file that maps fields to channels; None for the mapping of the model, if any.
        segments: Recordings of each log, such as 0-99 or 0,3,7; None for files with one.
        held_out: Logs to judge the result on.
        held_out_segments: Recordings to judge on, of these logs, else of `logs`.
        until: Length of the first part of each log that is used, s; None for all.
        profiles: Parameters whose likelihood profile is wanted.
        config: JSON file with settings.
        assignments: Settings as `key=value`, which win over the file.
        max_evaluations: Largest number of evaluations of the likelihood.
        workers: Number of processes; 0 for one on each processor.
        dask: Address of a Dask scheduler; None for processes of this machine.
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
    """The model of a source as a function of some of its settings; it can be pickled.

    Attributes:
        model: Text that names the source, see `models`.
        config: JSON file with settings.
        assignments: Settings as `key=value`, which win over the file.
        names: Names of the settings that vary.
    """

    model: str
    config: Path | None
    assignments: tuple[str, ...]
    names: tuple[str, ...]

    def settings(self, values: Array | None = None) -> FilterSettings:
        """Return the settings of the source, with values (np,) of those that vary."""
        source = find_model(self.model)
        given: FilterSettings = source.configure(self.config, self.assignments)
        if values is None:
            return given
        return replace(given, **dict(zip(self.names, values.tolist(), strict=True)))

    def __call__(self, values: Array) -> FilterModel:
        """Return the model with these parameters."""
        return find_model(self.model).make(self.settings(values))


def prepare_run(
    request: IdentifyRequest,
) -> tuple[str, Callable[[RunFolder, Console], None], str, None, str]:
    """Return a run whose logs are read at once.

    Args:
        request: What the command line asks for.

    Returns:
        Name, function and description of the run, no claim, and the file that it resumes from.

    Raises:
        InputError: Parameters, bounds or logs do not fit the model.
    """
    source = make_absolute(request.model)
    make = ModelAt(source, request.config, request.assignments, request.parameters)
    start, settings = _find_start(make), make.settings()
    bounds = _parse_bounds(request.bounds, request.parameters, start, type(settings))
    read = partial(_read_records, request, make(start), settings.longest_gap)
    fitted, judged = read(request.logs, request.segments), tuple[Record, ...]()
    if request.held_out or request.held_out_segments is not None:
        judged = read(request.held_out or request.logs, request.held_out_segments)
    problem = Problem(make, request.parameters, bounds, fitted, settings)
    words = f"{', '.join(request.parameters)} of {request.model} by likelihood"
    find = partial(run_identification, request, problem, start, judged)
    return f"identify-{find_model(request.model).name}", find, words, None, STATE


def run_identification(
    request: IdentifyRequest,
    problem: Problem,
    start: Array,
    judged: tuple[Record, ...],
    folder: RunFolder,
    console: Console,
) -> None:
    """Identify parameters, and write the results into a folder.

    Args:
        request: What the command line asks for.
        problem: The likelihood and its bounds.
        start: Parameters (np,) at which the search starts.
        judged: Recordings to judge the result on.
        folder: Folder of the run. Evaluations that a run that was stopped left there are used.
        console: Where each evaluation and the results are printed.

    Raises:
        FileFormatError: The file of evaluations in the folder holds something else.
    """
    record = Journal(
        folder / STATE,
        _describe_request(request, problem.settings),
        _digest_code(request, problem.records),
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


def _describe_request(request: IdentifyRequest, settings: FilterSettings) -> dict[str, Any]:
    """Return what the evaluations of a run depend on, as the request names it."""
    return {
        "model": request.model,
        "logs": [str(path) for path in request.logs],
        "parameters": request.parameters,
        "segments": request.segments,
        "until": request.until,
        "mapping": None if request.mapping is None else str(request.mapping),
        "settings": asdict(settings),
    }


def _digest_code(request: IdentifyRequest, records: tuple[Record, ...]) -> dict[str, Any]:
    """Return what evaluations are computed by: the code or the files of the model, and the logs."""
    function = find_model(request.model).function
    module, robot = sys.modules.get(function.__module__), getattr(function, "__self__", None)
    urdf = robot.urdf if isinstance(robot, RobotFile) else ""
    return {
        "source": None if module is None else digest_sources(module),
        "robot": robot,
        "files": dict(digest_named_files([urdf])),
        "records": compute_fingerprint(records, "records"),
    }


def _find_start(make: ModelAt) -> Array:
    """Return the parameters (np,) at which the search starts: the values of the settings.

    Raises:
        InputError: A parameter has no value.
    """
    values = vars(make.settings())
    numbers = [k for k, v in values.items() if isinstance(v, float | None) and k != "gate"]
    for name in make.names:
        check_member("parameter", name, numbers)
        if values[name] is None:
            raise InputError(f"parameter {name!r} has no value; `--set {name}=VALUE` starts it")
    return check_array("start", [values[name] for name in make.names])


def _parse_bounds(given: Sequence[str], names: Sequence[str], start: Array, kind: type) -> Array:
    """Return the lower and upper bound (np, 2) of each parameter.

    Args:
        given: Texts NAME=LOW:HIGH. Without one, bounds are a factor of `FACTOR` from the start,
            within those of the setting.
        names: Names of the parameters.
        start: Their values (np,) at the start.
        kind: Type of the settings.

    Raises:
        InputError: A text is not of this form, names no parameter, or its bounds do not increase.
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
        except InputError:
            raise  # it is a ValueError too, and names the parameters
        except ValueError as error:
            raise InputError(f"bounds must look like NAME=LOW:HIGH, got {quote(text)}") from error
    for name, (low, high) in bounds.items():
        if not low < high:
            raise InputError(
                f"bounds of {name!r} must increase, got {low:g} to {high:g}; `--bounds "
                f"{name}=LOW:HIGH` gives them"
            )
    return np.array([bounds[name] for name in names])


def _read_records(
    request: IdentifyRequest,
    model: FilterModel,
    longest_gap: float,
    logs: Sequence[Path],
    segments: str | None,
) -> tuple[Record, ...]:
    """Return the records of all recordings of logs.

    Args:
        request: What the command line asks for: mapping, and the part that is used.
        model: Model whose channels are read.
        longest_gap: Longest time in s without any value, as the settings have it.
        logs: Files of the logs.
        segments: Recordings of each, such as 0-99 or 0,3,7; None for files with one.
    """
    numbers: list[int | None] = [None] if segments is None else list(_parse_numbers(segments))
    found = []
    for path in logs:
        for segment in numbers:
            log = load_log(path, model.mapping, request.mapping, segment)
            record = log.record(model, longest_gap)
            record = replace(record, notes=(*log.notes, *record.notes))
            found.append(_shorten_record(record, request.until))
    return tuple(found)


def _parse_numbers(text: str) -> Iterator[int]:
    """Yield the numbers that a text names: 0, 1, 2, 3 and 7 for 0-3,7; none for 3-0.

    Raises:
        InputError: The text is not of this form.
    """
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            yield from range(int(first), int(last or first) + 1)
        except ValueError as error:
            raise InputError(f"segments must look like 0-99 or 0,3,7, got {quote(text)}") from error


def _shorten_record(record: Record, until: float | None) -> Record:
    """Return the rows up to `until` s after the first, and all inputs; all rows if it is None."""
    if until is None:
        return record
    first = min(float(s.times.min()) for s in record.channels.values() if len(s.times))
    return record.between(-np.inf, first + until)


def summarize(
    found: Identification, profiles: Sequence[Profile], fitted: int, judged: int
) -> dict[str, Any]:
    """Return what summary.json holds.

    Args:
        found: The parameters that were found.
        profiles: Likelihood profiles.
        fitted: Number of recordings that were fitted.
        judged: Number of recordings that were held out.
    """
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
    """Print the parameters with their errors, and what is known of those that have none.

    Args:
        console: Where they are printed.
        found: The parameters that were found.
        profiles: Likelihood profiles.
    """
    ranges = {p.name: f"{_format_number(p.low)} to {_format_number(p.high)}" for p in profiles}
    rows = [
        (
            p.name,
            f"{p.value:.6g}",
            _format_number(p.standard_error),
            _format_number(p.robust_error),
            ranges.get(p.name, ""),
            "at its bound" if p.at_bound else "" if p.standard_error else "not determined",
        )
        for p in found.parameters
    ]
    errors = ["standard error", "error over records", "95 % profile interval"]
    columns = ["parameter", "value", *errors, "note"]
    console.print(make_table("Parameters", columns, rows))
    how = "" if found.converged else ", not converged"
    line = f"log-likelihood {found.best.log_likelihood:.2f}, {found.evaluations} evaluations{how}"
    if found.held_out is not None:
        line += f"; log-likelihood of the held-out recordings {found.held_out.log_likelihood:.2f}"
    say(console, line)


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
