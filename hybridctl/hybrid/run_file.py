"""Files of runs: arcs and events as arrays, and whether what a file holds is a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.files import open_arrays, save_arrays
from hybridctl.hybrid.arc import ARRAYS, Arc, read_only
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.model import ModeKey
from hybridctl.hybrid.system import HybridSystem

_FORMAT = 3
_EVENT_ARRAYS = (
    "state_before",
    "state_after",
    "input_before",
    "input_after",
    "input_rate",
    "impulses",
)
_EVENT_NAMES = ("time", "mode_before", "mode_after", "guards")
_EVENT_VALUES = ("accumulation", "accuracy", "uniqueness", "bridged")


def write_run(path: str | os.PathLike[str], arcs: Sequence[Arc], events: Sequence[Event]) -> None:
    """Write arcs and events, but for their reports; see `HybridTrajectory.save`."""
    for arc in arcs:
        _check_storable(arc.mode)
    header = {
        "format": _FORMAT,
        "arcs": [{"mode": a.mode, "start": a.start, "end": a.end} for a in arcs],
        "events": [
            {name: getattr(e, name) for name in (*_EVENT_NAMES, *_EVENT_VALUES)} for e in events
        ],
    }
    arrays = {
        f"{part}{item.index}.{name}": getattr(item, name)
        for part, items, names in (("arc", arcs, ARRAYS), ("event", events, _EVENT_ARRAYS))
        for item in items
        for name in names
    }
    save_arrays(path, header, arrays)


def read_run(
    path: str | os.PathLike[str], system: HybridSystem
) -> tuple[tuple[Arc, ...], tuple[Event, ...]]:
    """The arcs and the events of a file, of a run of this system; see `HybridTrajectory.load`."""
    with open_arrays(path, "hybrid trajectory", _FORMAT) as (header, data):
        arcs = [_load_arc(system, i, meta, data) for i, meta in enumerate(header["arcs"])]
        events = [_load_event(i, meta, data) for i, meta in enumerate(header["events"])]
        _check_run(arcs, events, system)
    return tuple(arcs), tuple(events)


def _load_event(i: int, meta: Mapping[str, Any], data: Mapping[str, Array]) -> Event:
    stored: dict[str, Any] = {name: _key(meta[name]) for name in _EVENT_NAMES}
    stored |= {name: _key(meta[name]) for name in _EVENT_VALUES if name in meta}
    stored |= {name: read_only(data[f"event{i}.{name}"]) for name in _EVENT_ARRAYS}
    return Event(i, **stored)


def _key(stored: Any) -> ModeKey:
    return tuple(_key(part) for part in stored) if isinstance(stored, list) else stored


def _check_storable(key: ModeKey) -> None:
    try:
        same = _key(json.loads(json.dumps(key))) == key
    except TypeError:
        same = False
    if not same:
        raise InputError(f"mode key {key!r} cannot be stored: use strings, numbers or tuples")


def _load_arc(
    system: HybridSystem, index: int, meta: Mapping[str, Any], data: Mapping[str, Array]
) -> Arc:
    """An arc; files of before there were jumps have none."""
    mode, of = system.mode(_key(meta["mode"])), f"arc{index}"
    a = {n: data[f"{of}.{n}"] for n in ARRAYS if n != "jumps" or f"{of}.jumps" in data}
    for name, size in (("states", mode.space.nx), ("inputs", mode.nu)):
        if a[name].shape[2] != size:
            raise FileFormatError(
                f"arc {index} has {a[name].shape[2]} {name}, but mode {mode.key!r} of the given "
                f"system has {size}"
            )
    return Arc(index, mode.key, mode.space, meta["start"], meta["end"], **a)


def _check_run(arcs: list[Arc], events: list[Event], system: HybridSystem) -> None:
    """Raise `FileFormatError` for arcs and events that are no run of a system.

    A run has an arc and, between any two, an event; its times do not decrease, its numbers are
    finite, its modes go on as its events say, and guards that fire are guards of the system.
    """
    if len(events) != len(arcs) - 1:
        raise FileFormatError(
            f"{len(arcs)} arcs and {len(events)} events are no run: there is one arc more than "
            "events"
        )
    for arc in arcs:
        _check_arc(arc)
    guards = _guard_names(arcs, system)
    for event, before, after in zip(events, arcs[:-1], arcs[1:], strict=True):
        _check_event(event, before, after)
        for name in event.guards:
            if name not in guards:
                raise FileFormatError(
                    f"event {event.index} is of guard {name!r}, the given system has "
                    f"{sorted(guards)}"
                )


def _guard_names(arcs: Sequence[Arc], system: HybridSystem) -> set[str]:
    """The guards of the system, or where it does not list them, of the modes of a run."""
    if system.guard_names is not None:
        return set(system.guard_names)
    return {name for arc in arcs for name in system.outgoing(arc.mode).guards.names}


def _check_arc(arc: Arc) -> None:
    what = f"arc {arc.index}"
    _check_times(what, arc.start, arc.end)
    if arc.end < arc.start:
        raise FileFormatError(f"{what} ends at {arc.end} s, before its start at {arc.start} s")
    steps = len(arc.breaks)
    for name, shape in (
        ("breaks", (steps,)),
        ("lengths", (steps,)),
        ("states", (steps, 8, arc.states.shape[-1])),
        ("inputs", (steps, 8, arc.inputs.shape[-1])),
    ):
        _check_array(f"{name} of {what}", getattr(arc, name), shape)
    if not steps or (np.diff(arc.breaks) < 0.0).any() or not (arc.lengths > 0.0).all():
        raise FileFormatError(
            f"{what} must have steps of positive lengths that begin one after the other, got "
            f"begins {arc.breaks.tolist()} and lengths {arc.lengths.tolist()}"
        )
    rounding = 4.0 * np.spacing(abs(arc.start) + abs(arc.end))
    first, last = float(arc.breaks[0]), float(arc.breaks[-1] + arc.lengths[-1])
    if first > arc.start + rounding or last < arc.end - rounding:
        raise FileFormatError(
            f"{what} goes from {arc.start} s to {arc.end} s, but its steps cover "
            f"{first} s to {last} s"
        )


def _check_event(event: Event, before: Arc, after: Arc) -> None:
    what = f"event {event.index}"
    _check_times(what, event.time)
    if not before.end == event.time == after.start:
        raise FileFormatError(
            f"{what} is at {event.time} s, between arcs that end at {before.end} s and begin at "
            f"{after.start} s"
        )
    if (before.mode, after.mode) != (event.mode_before, event.mode_after):
        raise FileFormatError(
            f"{what} leads from mode {event.mode_before!r} to {event.mode_after!r}, but its arcs "
            f"are in {before.mode!r} and {after.mode!r}"
        )
    nx, nu = before.states.shape[-1], before.inputs.shape[-1]
    for name, shape in (
        ("state_before", (nx,)),
        ("state_after", after.states.shape[-1:]),
        ("input_before", (nu,)),
        ("input_after", after.inputs.shape[-1:]),
        ("input_rate", (nu,)),
        ("impulses", (event.impulses.size,)),
    ):
        _check_array(f"{name} of {what}", getattr(event, name), shape)


def _check_times(what: str, *times: float) -> None:
    for t in times:
        if not isinstance(t, float | int) or not math.isfinite(t):
            raise FileFormatError(f"a time of {what} must be a finite number, got {t!r}")


def _check_array(what: str, value: Array, shape: tuple[int, ...]) -> None:
    if value.shape != shape or value.dtype != np.float64:
        raise FileFormatError(
            f"{what} must be numbers of shape {shape}, got {value.dtype} of shape {value.shape}"
        )
    if not np.isfinite(value).all():
        raise FileFormatError(f"{what} must be finite, got {value[~np.isfinite(value)][0]}")
