"""Synthetic logs: what sensors would have recorded of a simulated motion, and the truth beside it.

`truth.npz` is the simulated run (`HybridTrajectory.load`), `truth_sampled.npz` and
`truth_sampled.csv` its states and modes at the stamps of the log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from hybridctl.app.models import ModelSource
from hybridctl.app.report import report_alive, say
from hybridctl.base.digests import hash_file
from hybridctl.base.errors import HybridctlError, InputError
from hybridctl.base.tables import format_mode
from hybridctl.base.time_series import Series
from hybridctl.estimation.filter_model import FilterModel, FilterSettings, LogChannel
from hybridctl.estimation.record import Record
from hybridctl.estimation.synthetic import Truth, simulate_record
from hybridctl.logs import Log, read_log, write_estimates, write_log

_TRUTH = "truth"
"""Entry of a log's metadata: SHA-256 of the files of its truth, by name."""
# Endings of a log that is written to a file; any other path is a folder.
SUFFIXES = (".npz", ".csv", ".h5", ".hdf5", ".mcap")


def make_log(record: Record, model: FilterModel, metadata: Mapping[str, str]) -> Log:
    """Return the log from which `Log.record` makes a record.

    Args:
        record: The record.
        model: Model whose sensors and inputs name the channels.
        metadata: Metadata of the log.
    """
    channels: dict[str, Series] = {}
    for sensor in model.sensors:
        channels |= _split(record.channels[sensor.name], sensor.parts)
    if model.inputs is not None and record.inputs is not None:
        channels |= _split(record.inputs, (model.inputs,), "input")
    for part, signal in model.signals.items():
        if signal.channel in record.channels:
            channels |= _split(record.channels[signal.channel], (part,))
    return Log(channels, metadata=metadata)


def _split(
    series: Series, parts: Sequence[LogChannel], role: str = "measurement"
) -> dict[str, Series]:
    """Return the channels that hold the columns of a series side by side."""
    channels, first = {}, 0
    for part in parts:
        last = first + len(part.columns) if part.columns else None
        given = (part.columns, part.unit or "1", part.frame, role, part.quaternion)
        channels[part.channel] = Series(series.times, series.values[:, first:last], *given)
        first = last or first
    return channels


def simulate_log(model: FilterModel, settings: FilterSettings) -> tuple[Log, Truth]:
    """Simulate a model.

    Args:
        model: The model.
        settings: Settings of the simulation, which the metadata of the log holds too.

    Returns:
        Its log, and the truth.
    """
    found, truth = simulate_record(model, settings)
    metadata = {"experiment": model.name, "settings": json.dumps(asdict(settings))}
    return make_log(found, model, metadata), truth


def record_log(
    source: ModelSource[FilterModel],
    settings: FilterSettings,
    out: Path,
    console: Console,
    *,
    overwrite: bool = False,
) -> Path:
    """Write a synthetic log and its truth.

    Args:
        source: Model that is simulated.
        settings: Settings of the model and of its sensors.
        out: File of the log, or a folder that gets log.npz.
        console: Where the channels and events are printed.
        overwrite: Whether an earlier log by this function is replaced, with its truth.

    Returns:
        Path of the log.

    Raises:
        InputError: One of the files is there already, and may not be overwritten or is not one that
            this function has written.
    """
    path = out if out.suffix in SUFFIXES else out / "log.npz"
    _check_new(path, overwrite)
    model = source.make(settings)
    with report_alive(console, "simulating"):
        log, truth = simulate_log(model, settings)
    write_synthetic_log(path, model, log, truth)
    counts = {name: len(series) for name, series in log.channels.items()}
    listed = ", ".join(f"{name} ({n})" for name, n in counts.items())
    say(console, f"{path}: {listed}")
    for event in truth.run.guard_events:
        say(console, f"event at {event.time:.6f} s: {', '.join(event.guards)}")
    return path


def _check_new(path: Path, overwrite: bool) -> None:
    """Check that a log and its truth overwrite no file that `record` did not write.

    Args:
        path: File of the log. The files of its truth are beside it.
        overwrite: Whether a log by `record`, and files of its truth that are unchanged, may be
            overwritten.

    Raises:
        InputError: One of the files is there and `overwrite` is false. Or the log is not one by
            `record`, or a file of the truth was not written with it or has changed.
    """
    beside = find_truth_path(path)
    names = [f"{beside.stem}{ending}" for ending in (".npz", "_sampled.npz", "_sampled.csv")]
    truths = [one for one in map(path.with_name, names) if os.path.lexists(one)]
    found = [path, *truths] if os.path.lexists(path) else truths
    if found and not overwrite:
        raise InputError(
            f"out must be a new log, but {found[0]} is there already; overwrite replaces it if it "
            "was made by `record`"
        )
    digests = _read_digests(path)
    for one in found:
        own = digests is not None if one == path else _is_recorded_truth(one, digests or {})
        if not own:
            raise InputError(
                f"out: {one} was not made by `record`, or was changed, or is of an earlier "
                "version, so it is not overwritten; name another file"
            )


def _read_digests(path: Path) -> dict[str, str] | None:
    """Return the SHA-256 of each file of truth by name, from a log by `record`.

    Args:
        path: File of the log.

    Returns:
        Digests by name; none of logs of earlier versions. None for a file that is no log by
        `record`.
    """
    try:
        if path.is_symlink() or not path.is_file():
            return None
        metadata = read_log(path).metadata
    except HybridctlError:
        return None
    if not {"experiment", "settings"} <= metadata.keys():
        return None
    try:
        found = json.loads(metadata.get(_TRUTH, "{}"))  # logs of earlier versions have none
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_recorded_truth(path: Path, digests: Mapping[str, str]) -> bool:
    """Return whether a file beside a log has the content that `record` wrote with that log."""
    if path.is_symlink() or not path.is_file():
        return False
    return hash_file(path) == digests.get(path.name)


def write_synthetic_log(path: Path, model: FilterModel, log: Log, truth: Truth) -> None:
    """Write the truth, and the log beside it, whose metadata has the SHA-256 of the truth's files.

    By these a later call knows which files it may overwrite.

    Args:
        path: File of the log.
        model: Model that was simulated, which names the states.
        log: Channels of the log.
        truth: The run, and its states at the stamps of the log.
    """
    beside = find_truth_path(path)
    truth.run.save(beside)
    modes = [format_mode(truth.run.arc(t).mode) for t in truth.times.tolist()]
    sampled = write_estimates(
        path.parent,
        truth.times,
        {"state": truth.states, "mode": np.array(modes)},
        columns={"state": model.states},
        name=f"{beside.stem}_sampled",
    )
    digests = {one.name: hash_file(one) for one in (beside, *sampled)}
    write_log(path, replace(log, metadata={**log.metadata, _TRUTH: json.dumps(digests)}))


def find_truth_path(log: Path) -> Path:
    """Return the path of a log's truth: truth.npz beside log.npz, else NAME_truth.npz."""
    return log.with_name("truth.npz" if log.stem == "log" else f"{log.stem}_truth.npz")
