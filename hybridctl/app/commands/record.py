"""Synthetic logs: what sensors would have recorded of a simulated motion, and the truth beside it.

`truth.npz` is the simulated run (`HybridTrajectory.load`), `truth_sampled.npz` and
`truth_sampled.csv` its states and modes at the stamps of the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console

from hybridctl.app.models import ModelSource
from hybridctl.app.report import say, working
from hybridctl.errors import InputError
from hybridctl.estimation.filter_model import FilterModel, FilterSettings, LogChannel
from hybridctl.estimation.record import Record
from hybridctl.estimation.synthetic import Truth, synthetic
from hybridctl.logs import Log, write_estimates, write_log
from hybridctl.series import Series
from hybridctl.tables import mode_text

SUFFIXES = (".npz", ".csv", ".h5", ".hdf5", ".mcap")


def to_log(record: Record, model: FilterModel, metadata: Mapping[str, str]) -> Log:
    """The channels of a log from which `Log.record` makes this record."""
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
    """The channels that hold the columns of a series side by side."""
    channels, first = {}, 0
    for part in parts:
        last = first + len(part.columns) if part.columns else None
        given = (part.columns, part.unit or "1", part.frame, role, part.quaternion)
        channels[part.channel] = Series(series.times, series.values[:, first:last], *given)
        first = last or first
    return channels


def synthetic_log(model: FilterModel, settings: FilterSettings) -> tuple[Log, Truth]:
    """A synthetic log with its settings, and the run, see `synthetic`."""
    found, truth = synthetic(model, settings)
    metadata = {"experiment": model.name, "settings": json.dumps(asdict(settings))}
    return to_log(found, model, metadata), truth


def record(
    source: ModelSource[FilterModel],
    settings: FilterSettings,
    out: Path,
    console: Console,
    *,
    overwrite: bool = False,
) -> Path:
    """Write a synthetic log and its truth; `out` is a file, or a folder that gets log.npz.

    Raises `InputError` for a log that is there already, unless it may be overwritten.
    """
    path = out if out.suffix in SUFFIXES else out / "log.npz"
    if path.exists() and not overwrite:
        raise InputError(
            f"out must be a new log, but {path} is there already; overwrite replaces it"
        )
    model = source.make(settings)
    with working(console, "simulating"):
        log, truth = synthetic_log(model, settings)
    write(path, model, log, truth)
    counts = {name: len(series) for name, series in log.channels.items()}
    listed = ", ".join(f"{name} ({n})" for name, n in counts.items())
    say(console, f"{path}: {listed}")
    for event in truth.run.guard_events:
        say(console, f"event at {event.time:.6f} s: {', '.join(event.guards)}")
    return path


def write(path: Path, model: FilterModel, log: Log, truth: Truth) -> None:
    """Write the log, and the truth beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_log(path, log)
    beside = truth_path(path)
    truth.run.save(beside)
    modes = [mode_text(truth.run.arc(t).mode) for t in truth.times.tolist()]
    write_estimates(
        path.parent,
        truth.times,
        {"state": truth.states, "mode": np.array(modes)},
        columns={"state": model.states},
        name=f"{beside.stem}_sampled",
    )


def truth_path(log: Path) -> Path:
    """The path of the truth of a log: truth.npz beside log.npz, NAME_truth.npz beside others."""
    return log.with_name("truth.npz" if log.stem == "log" else f"{log.stem}_truth.npz")
