"""Synthetic logs: what sensors would have recorded of a simulated motion, and the truth beside it.

`truth.npz` is the simulated run (`HybridTrajectory.load`), `truth_sampled.npz` and
`truth_sampled.csv` its states and modes at the stamps of the log.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.filtering.model import FilterModel, Part, Sensor, Settings
from hybridctl.experiments.filtering.models import make_model
from hybridctl.experiments.filtering.truth import Truth, simulate_truth
from rich.console import Console

from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.logs import Channel, Log, write_estimates, write_log

SUFFIXES = (".npz", ".csv", ".h5", ".hdf5", ".mcap")
_OUTLIER = 50.0  # standard deviations of the sensor


def synthetic(model: FilterModel, settings: Settings) -> tuple[Log, Truth]:
    """The log of a run of the model's scenario, and the run; the same for the same seed."""
    rng = np.random.default_rng(settings.seed)
    truth = simulate_truth(model, settings, rng)
    states = truth.states
    channels: list[Channel] = []
    for sensor in model.sensors:
        values = measured(model, settings, truth, states, sensor, rng)
        channels += split(truth.times, values, sensor.parts)
    if model.inputs is not None:
        channels += split(truth.times, truth.commands, (model.inputs,), "input")
    if getattr(settings, "force", False):
        channels += forces(model, truth, getattr(settings, "force_noise"), rng)  # noqa: B009
    metadata = {"experiment": model.name, "settings": json.dumps(asdict(settings))}
    return Log(tuple(channels), metadata=metadata), truth


def measured(
    model: FilterModel,
    settings: Settings,
    truth: Truth,
    states: Array,
    sensor: Sensor,
    rng: np.random.Generator,
) -> Array:
    """Values (n, m) of a sensor with its noise, missing rows and outliers."""
    m = sensor.measurement
    n, k = len(states), m.dimension
    noise = settings.noise * rng.normal(size=(n, k)) @ np.linalg.cholesky(m.covariance).T
    far = rng.random(n) < settings.outliers
    deviations = np.sqrt(np.diag(m.covariance))
    noise[far] += _OUTLIER * deviations * rng.choice([-1.0, 1.0], size=(int(far.sum()), k))
    rows = []
    for t, x, u, e in zip(truth.times.tolist(), states, truth.commands, noise, strict=True):
        z = m.value(model.system.mode(truth.run.arc(t).mode), t, x, u)
        rows.append(z + e if m.residual is None else model.space.robot.integrate(z, e))
    values = np.array(rows)
    lost = rng.random(n) < settings.missing
    values[lost] = np.nan
    return values


def forces(
    model: FilterModel, truth: Truth, deviation: float, rng: np.random.Generator
) -> list[Channel]:
    """The normal force of every contact that has a signal, N; in the order of the contacts."""
    rows = []
    for t in truth.times.tolist():
        arc = truth.run.arc(t)
        outputs = model.system.mode(arc.mode).outputs
        rows.append(
            np.zeros(0) if outputs is None else outputs(t, arc(t), arc.input(t))["normal_force"]
        )
    values = np.array(rows)
    values = values + deviation * rng.normal(size=values.shape)
    return split(truth.times, values, tuple(model.signals))


def split(
    times: Array, values: Array, parts: tuple[Part, ...], role: str = "measurement"
) -> list[Channel]:
    """The channels that hold values (n, m) side by side."""
    channels, first = [], 0
    for part in parts:
        last = first + len(part.columns)
        block = values[:, first:last]
        given = (part.columns, part.unit, part.frame, role, part.quaternion)
        channels.append(Channel(part.channel, times, block, *given))
        first = last
    return channels


def record(
    model: str, settings: Settings, out: Path, console: Console, *, overwrite: bool = False
) -> Path:
    """Write a synthetic log and its truth; `out` is a file, or a folder that gets log.npz.

    Raises `InputError` for a log that is there already, unless it may be overwritten.
    """
    path = out if out.suffix in SUFFIXES else out / "log.npz"
    if path.exists() and not overwrite:
        raise InputError(
            f"out must be a new log, but {path} is there already; overwrite replaces it"
        )
    built = make_model(model, settings)
    with console.status("simulating"):
        log, truth = synthetic(built, settings)
    write(path, built, log, truth)
    counts: dict[str, Any] = {channel.name: len(channel) for channel in log.channels}
    listed = ", ".join(f"{name} ({n})" for name, n in counts.items())
    console.print(f"{path}: {listed}", markup=False, highlight=False, soft_wrap=True)
    for event in truth.run.guard_events:
        line = f"event at {event.time:.6f} s: {', '.join(event.guards)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return path


def write(path: Path, model: FilterModel, log: Log, truth: Truth) -> None:
    """Write the log, and the truth beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_log(path, log)
    beside = truth_path(path)
    truth.run.save(beside)
    modes = [" ".join(truth.run.arc(t).mode) for t in truth.times.tolist()]  # type: ignore[arg-type]
    write_estimates(
        path.parent,
        truth.times,
        {"state": truth.states, "mode": np.array(modes)},
        columns={"state": model.states},
        name=f"{beside.stem}_sampled",
    )


def truth_path(log: Path) -> Path:
    """Where the truth of a log is: truth.npz beside log.npz, NAME_truth.npz beside others."""
    return log.with_name("truth.npz" if log.stem == "log" else f"{log.stem}_truth.npz")
