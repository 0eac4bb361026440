"""What `hybridctl filter` does: read a log, run filters on it, say whether to trust them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hybridctl.app.commands import filter_base
from hybridctl.app.commands.base_errors import PoseReference
from hybridctl.app.commands.record import find_truth_path, simulate_log, write_synthetic_log
from hybridctl.app.commands.results import draw_results, make_trust_table, write_results
from hybridctl.app.models import ModelSource, find_source
from hybridctl.app.plots import shorten_mode
from hybridctl.app.report import make_table, report_alive, say, show_progress
from hybridctl.base.errors import FileFormatError, HybridctlError, InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.estimation.consistency import Judgement, judge
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.initial_estimate import first_estimate
from hybridctl.estimation.pose_track import Alignment, Association
from hybridctl.estimation.record import Record
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.logs import Log, examine, read_log, read_raw
from hybridctl.logs import Mapping as LogMapping
from hybridctl.logs.base_model import BaseModel
from hybridctl.logs.reference import read_reference
from hybridctl.sampling.filters import FILTERS, run_filter

_SHOWN, _NOTES = 12, 3
"""Largest numbers of events and of notes that are printed: a screen. Files have all."""
_DECISIVE = 3.0
"""Difference of two log-likelihoods that is decisive: odds of twenty to one. A choice."""


@dataclass(frozen=True)
class FilterRequest:
    """What the command line asks of `filter`.

    Attributes:
        model: Text that names the model, see `models`.
        log: Log; None to record a synthetic one on the fly.
        config: JSON file with settings. It wins over settings that `record` left in the log.
        assignments: Settings as `key=value`, which win over the file.
        mapping: YAML file that maps fields to channels; None for the mapping of the model, if any.
        segment: Number of the recording, in a file of several.
        truth: File that `record` has written; None for that beside the log, if there is one.
        compare: Whether other filters are run too.
        mcap: Whether estimates are written as MCAP too.
        reference: Of a legged base: a file or channels with poses, see `read_reference`.
        alignment: What is aligned with the reference, see `pose_track.align`.
        association: How estimates at its stamps are found, see `pose_track.associate`.
        within: Longest time between stamps that are compared, s.
    """

    model: str
    log: Path | None = None
    config: Path | None = None
    assignments: Sequence[str] = ()
    mapping: Path | None = None
    segment: int | None = None
    truth: Path | None = None
    compare: bool = False
    mcap: bool = False
    reference: str | None = None
    alignment: Alignment = "yaw"
    association: Association = "interpolate"
    within: float | None = None


@dataclass(frozen=True, eq=False)
class FilterCase:
    """A log and what is needed to filter it.

    Attributes:
        model: Model of the filter.
        settings: Settings from which it was made.
        log: The log.
        truth: Run that was measured; None if it is not known.
    """

    model: FilterModel
    settings: FilterSettings
    log: Log
    truth: HybridTrajectory | None


def prepare_run(request: FilterRequest) -> tuple[str, Callable[[RunFolder, Console], Any], str]:
    """Return name, function and description of a run, whose log is read at once.

    Args:
        request: What the command line asks for.

    Raises:
        InputError: Options do not fit the model or each other, or the log does not fit the model.
    """
    source = find_source(request.model)
    name = f"filter-{source.name}"
    if source.kind is BaseModel:
        if request.log is None or request.truth is not None:
            raise InputError(
                "a legged base needs a log, and takes no truth of `record`; --reference compares "
                "it with motion capture"
            )
        model = source.make(source.configure(request.config, request.assignments))
        log = read_base_log(model, request, request.log)
        reference = read_base_reference(request, log)
        find = partial(
            filter_base.run_base_filter, model, log, request.mcap, reference, request.compare
        )
        return name, find, "the base of a legged robot along a log"
    if request.reference is not None:
        raise InputError("reference is for the base of a legged robot, which this model is not")
    if request.log is None and (request.mapping or request.truth or request.segment is not None):
        raise InputError("mapping, segment and truth belong to a log, and no log is given")
    case = None if request.log is None else read_case(source, request, request.log)
    return (
        name,
        partial(run_salted_filter, source, request, case),
        "a salted Kalman filter on a log",
    )


def read_base_log(model: BaseModel, request: FilterRequest, path: Path) -> Log:
    """Return the log of a legged base, by the mapping of the request or else of the model.

    Args:
        model: Model of the base. Its mapping, if any, is used where the request has none.
        request: What the command line asks for: mapping and recording of a file with several.
        path: File or folder of the log.

    Raises:
        InputError: The log or the mapping cannot be read, or they do not fit each other.
    """
    if request.mapping is not None or model.mapping is None:
        return read_log(path, request.mapping, segment=request.segment)
    own = LogMapping.parse(model.mapping)
    return read_log(path, own, segment=request.segment, is_default=True)


def read_base_reference(request: FilterRequest, log: Log) -> PoseReference | None:
    """Return the reference that the command line names, None without one.

    Args:
        request: What the command line asks for: a TUM file or channels, and how poses are compared.
        log: Log whose channels the reference may name, and from whose start its stamps count.

    Raises:
        InputError: The reference is neither a file nor channels of the log, or has no poses.
    """
    if request.reference is None:
        return None
    track = read_reference(request.reference, log)
    how = request.alignment, request.association, request.within
    return PoseReference(request.reference, track, *how)


def run_salted_filter(
    source: ModelSource[FilterModel],
    request: FilterRequest,
    case: FilterCase | None,
    folder: RunFolder,
    console: Console,
) -> None:
    """Filter a log into a folder; without one, a log is recorded first.

    Args:
        source: Where the model comes from; it makes the log that is recorded.
        request: What the command line asks for.
        case: Log, model and settings; None to record a log of simulated motion.
        folder: Folder for estimates, tables, figures and the log that is recorded.
        console: Where tables and warnings are printed.
    """
    if case is None:
        case = record_case(source, request, folder, console)
    folder.write_configuration(case.settings, seed=case.settings.seed)
    record = case.log.record(case.model, case.settings.longest_gap)
    warnings = (*examine(case.log).warnings, *record.notes)
    for warning in warnings:
        say(console, f"warning: {warning}")
    names = FILTERS if request.compare else FILTERS[:1]
    judgements, failures = run_filters(case, record, names, console)
    folder.write_json("summary.json", summarize(case, judgements, failures, warnings))
    print_tables(console, judgements)
    for message in failures.values():
        say(console, f"failed: {message}")
    with report_alive(console, "writing"):
        for judgement in judgements:
            write_results(folder, case.model, case.log, judgement, mcap=request.mcap)
        if folder.draws:
            draw_results(folder, case.model, judgements, case.truth)


def record_case(
    source: ModelSource[FilterModel], request: FilterRequest, folder: RunFolder, console: Console
) -> FilterCase:
    """Record a synthetic log in the folder.

    Args:
        source: Where the model comes from.
        request: What the command line asks for: settings of the model.
        folder: Folder of the run, which gets log.npz.
        console: Where the path of the log is printed.

    Returns:
        The log with its truth, and the model and settings that made it.
    """
    settings = source.configure(request.config, request.assignments)
    model = source.make(settings)
    with report_alive(console, "recording"):
        log, truth = simulate_log(model, settings)
    write_synthetic_log(folder / "log.npz", model, log, truth)
    say(console, f"no log given: a synthetic one is in {folder / 'log.npz'}, seed {settings.seed}")
    return FilterCase(model, settings, log, truth.run)


def read_case(source: ModelSource[FilterModel], request: FilterRequest, path: Path) -> FilterCase:
    """Return a log from a file, with the truth if there is one.

    Args:
        source: Where the model comes from.
        request: What the command line asks for: settings, mapping, recording and truth.
        path: File or folder of the log.
    """
    log = load_log(path, source.make(source.configure()).mapping, request.mapping, request.segment)
    given = read_recorded_settings(log, source.name)
    settings = source.configure(request.config, request.assignments, given)
    model = source.make(settings)
    beside = find_truth_path(path)
    found = request.truth or (beside if given and beside.is_file() else None)
    truth = None if found is None else HybridTrajectory.load(found, model.system)
    return FilterCase(model, settings, log, truth)


def load_log(
    path: Path,
    recordings: Mapping[str, Any] | None,
    mapping: Path | None = None,
    segment: int | None = None,
) -> Log:
    """Read a log.

    Args:
        path: File or folder of the log.
        recordings: Mapping of the model's usual logs; it is used where `mapping` is None and the
            file is a table with all fields that it names.
        mapping: YAML file that maps fields to channels.
        segment: Number of the recording, in a file of several.

    Returns:
        The log.
    """
    if mapping is not None or recordings is None:
        return read_log(path, mapping, segment=segment)
    raw = read_raw(path)
    known = LogMapping.parse(recordings)
    fields = {name for _, _, source in known.list_sources() for name in source.fields}
    if raw.native is None and "" in raw.tables and fields <= set(raw.tables[""].fields):
        return read_log(path, known, segment=segment)
    return read_log(path, segment=segment)


def read_recorded_settings(log: Log, model: str) -> dict[str, Any]:
    """Return the settings that `record` has left in a log of a model; none for other logs.

    Args:
        log: The log.
        model: Name of the model.

    Raises:
        FileFormatError: The log has settings that are no JSON object.
    """
    if log.metadata.get("experiment") != model:
        return {}
    try:
        settings = json.loads(log.metadata.get("settings", "{}"))
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{log.source}: its settings are not JSON ({error})") from error
    if not isinstance(settings, dict):
        raise FileFormatError(f"{log.source}: its settings are no JSON object")
    return settings


def run_filters(
    case: FilterCase, record: Record, names: Sequence[str], console: Console
) -> tuple[tuple[Judgement, ...], dict[str, str]]:
    """Run filters from one first estimate, and judge their results.

    Args:
        case: The log and its model.
        record: Channels of the log.
        names: Names of the filters, see `sampling.filters`.
        console: Where progress is shown.

    Returns:
        A judgement of each filter that came through, and the errors of others by name.

    Raises:
        HybridctlError: The first filter has failed.
        InputError: The log ends with the rows of the first estimate.
    """
    start, rest = first_estimate(case.model, case.settings, record)
    times = np.concatenate([series.times for series in rest.channels.values()])
    if not times.size:
        raise InputError("the log ends with the rows of the first estimate")
    span = float(times.min()), float(times.max())
    found, failures = list[Judgement](), dict[str, str]()
    with show_progress(console, *span) as begin:
        for name in names:
            try:
                result = run_filter(name, case.model, case.settings, rest, start, begin(name))
            except HybridctlError as error:
                if not found:
                    raise
                failures[name] = str(error)
                continue
            found.append(judge(case.model.system, result, case.truth, name=name))
    return tuple(found), failures


def summarize(
    case: FilterCase,
    judgements: Sequence[Judgement],
    failures: Mapping[str, str],
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what summary.json holds: the first filter's numbers, and those of all.

    Args:
        case: The log and its model.
        judgements: Results of the filters.
        failures: Why filters failed, by their names.
        warnings: What is odd about the log, and what of it was not read.
    """
    return {
        "model": case.model.name,
        "log": case.log.source or None,
        "warnings": list(warnings),
        **judgements[0].record(),
        "event_list": [
            {"time": e.time, "guards": e.guards, "mode_after": e.mode_after}
            for e in judgements[0].result.events
        ],
        "filters": [judgement.record() for judgement in judgements],
        "failures": dict(failures),
    }


def print_tables(console: Console, judgements: Sequence[Judgement]) -> None:
    """Print the verdict on each filter, what it is by, and the events and notes of the first."""
    for judgement in judgements:
        say(console, f"{judgement.name}: {judgement.verdict}")
    if len(judgements) > 1:
        say(console, rank_filters({j.name: j.result.log_likelihood for j in judgements}))
    console.print(make_trust_table(judgements))
    first = judgements[0]
    events = first.result.events
    shown = [
        (f"{e.time:.4f}", ", ".join(e.guards), shorten_mode(e.mode_after)) for e in events[:_SHOWN]
    ]
    if shown:
        title = "Events" if len(events) <= _SHOWN else f"The first {_SHOWN} of {len(events)} events"
        console.print(make_table(title, ["time [s]", "guards", "mode after"], shown))
    for time, note in first.result.notes[:_NOTES]:
        say(console, f"note at {time:.4f} s: {note}")
    if len(first.result.notes) > _NOTES:
        say(console, f"and {len(first.result.notes) - _NOTES} more notes, in notes.json")


def rank_filters(likelihoods: Mapping[str, float]) -> str:
    """Return a sentence on which filter explains a log best, if one does.

    Args:
        likelihoods: Log-likelihood by the name of the filter.
    """
    best = max(likelihoods, key=lambda name: likelihoods[name])
    near = [n for n, value in likelihoods.items() if likelihoods[best] - value < _DECISIVE]
    if len(near) == 1:
        return (
            f"{best} explains the log best: its log-likelihood is at least {_DECISIVE:g} above all "
            "others"
        )
    return (
        f"this log cannot tell {', '.join(near)} apart: their log-likelihoods differ by less than "
        f"{_DECISIVE:g}; a log with more impacts and fewer samples between them can, or many logs "
        "(`hybridctl simulate filter-study`)"
    )
