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
from hybridctl.base.spaces import VectorSpace
from hybridctl.hybrid.arc import ARC_ARRAYS, Arc, freeze_array
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.model import ModeKey
from hybridctl.hybrid.system import HybridSystem

_FORMAT = 3
"""Version of the file format. Files of version 3 may lack `jumps` and values of events."""
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
"""Values of an event that files may lack; they have defaults."""
_END_SPACINGS = 4.0
"""Rounding of the ends of an arc against its steps, in spacings of numbers at both ends."""


def write_run(path: str | os.PathLike[str], arcs: Sequence[Arc], events: Sequence[Event]) -> None:
    """Write arcs and events, but for their reports, to an .npz file.

    Args:
        path: The file.
        arcs: The arcs of a run.
        events: The events between them.

    Raises:
        InputError: If JSON does not give a mode key back.
        FileWriteError: If the file cannot be written.
    """
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
        for part, items, names in (("arc", arcs, ARC_ARRAYS), ("event", events, _EVENT_ARRAYS))
        for item in items
        for name in names
    }
    save_arrays(path, header, arrays)


def read_run(
    path: str | os.PathLike[str], system: HybridSystem | None
) -> tuple[tuple[Arc, ...], tuple[Event, ...]]:
    """Return the arcs and the events of a file.

    Args:
        path: The file.
        system: The system of the run, which gives the state spaces of its modes. None for states as
            plain vectors, and guards of any name.

    Raises:
        FileFormatError: If the file holds no run, or none of this system; see
            `HybridTrajectory.load`.
        UnknownNameError: If the system lacks a mode of the run.
    """
    with open_arrays(path, "hybrid trajectory", _FORMAT) as (header, data):
        arcs = [_load_arc(system, i, meta, data) for i, meta in enumerate(header["arcs"])]
        events = [_load_event(i, meta, data) for i, meta in enumerate(header["events"])]
        _check_run(arcs, events, system)
    return tuple(arcs), tuple(events)


def _load_event(index: int, meta: Mapping[str, Any], data: Mapping[str, Array]) -> Event:
    """Return an event of a file."""
    stored: dict[str, Any] = {name: _restore_key(meta[name]) for name in _EVENT_NAMES}
    stored |= {name: _restore_key(meta[name]) for name in _EVENT_VALUES if name in meta}
    stored |= {name: freeze_array(data[f"event{index}.{name}"]) for name in _EVENT_ARRAYS}
    return Event(index, **stored)


def _restore_key(stored: Any) -> ModeKey:
    """Return what JSON has stored, with tuples for its lists."""
    return tuple(_restore_key(part) for part in stored) if isinstance(stored, list) else stored


def _check_storable(key: ModeKey) -> None:
    """Raise an error if JSON does not give a mode key back.

    Raises:
        InputError: In that case.
    """
    try:
        is_same = _restore_key(json.loads(json.dumps(key))) == key
    except TypeError:
        is_same = False
    if not is_same:
        raise InputError(f"mode key {key!r} cannot be stored: use strings, numbers or tuples")


def _load_arc(
    system: HybridSystem | None, index: int, meta: Mapping[str, Any], data: Mapping[str, Array]
) -> Arc:
    """Return an arc of a file. In files of before there were jumps it has none.

    Args:
        system: The system of the run; None for states as plain vectors.
        index: Number of the arc.
        meta: Its entry in the header of the file.
        data: The arrays of the file, by name.

    Raises:
        FileFormatError: If the mode has another number of states or inputs in the system.
        UnknownNameError: If the system lacks the mode.
    """
    key, part = _restore_key(meta["mode"]), f"arc{index}"
    arrays = {n: data[f"{part}.{n}"] for n in ARC_ARRAYS if n != "jumps" or f"{part}.{n}" in data}
    if system is None:
        plain = VectorSpace(arrays["states"].shape[2])
        return Arc(index, key, plain, meta["start"], meta["end"], **arrays)
    mode = system.mode(key)
    for name, size in (("states", mode.space.nx), ("inputs", mode.nu)):
        if arrays[name].shape[2] != size:
            raise FileFormatError(
                f"arc {index} has {arrays[name].shape[2]} {name}, but mode {mode.key!r} of the "
                f"given system has {size}"
            )
    return Arc(index, mode.key, mode.space, meta["start"], meta["end"], **arrays)


def _check_run(arcs: list[Arc], events: list[Event], system: HybridSystem | None) -> None:
    """Raise an error if arcs and events are no run, or none of a system.

    A run has an arc and, between any two, an event; its times do not decrease, its numbers are
    finite, its modes go on as its events say, and guards that fire are guards of the system.

    Args:
        arcs: The arcs.
        events: The events.
        system: The system; None for any.

    Raises:
        FileFormatError: If one of these is not so.
    """
    if len(events) != len(arcs) - 1:
        raise FileFormatError(
            f"{len(arcs)} arcs and {len(events)} events are no run: there is one arc more than "
            "events"
        )
    for arc in arcs:
        _check_arc(arc)
    guards = None if system is None else _collect_guard_names(arcs, system)
    for event, before, after in zip(events, arcs[:-1], arcs[1:], strict=True):
        _check_event(event, before, after)
        for name in event.guards:
            if guards is not None and name not in guards:
                raise FileFormatError(
                    f"event {event.index} is of guard {name!r}, the given system has "
                    f"{sorted(guards)}"
                )


def _collect_guard_names(arcs: Sequence[Arc], system: HybridSystem) -> set[str]:
    """Return the guards of the system, or where it does not list them, of the modes of a run."""
    if system.guard_names is not None:
        return set(system.guard_names)
    return {name for arc in arcs for name in system.outgoing(arc.mode).guards.names}


def _check_arc(arc: Arc) -> None:
    """Raise an error if an arc is none.

    Args:
        arc: The arc.

    Raises:
        FileFormatError: If numbers are not finite, shapes do not fit, or steps do not cover it.
    """
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
    rounding = _END_SPACINGS * np.spacing(abs(arc.start) + abs(arc.end))
    first, last = float(arc.breaks[0]), float(arc.breaks[-1] + arc.lengths[-1])
    if first > arc.start + rounding or last < arc.end - rounding:
        raise FileFormatError(
            f"{what} goes from {arc.start} s to {arc.end} s, but its steps cover "
            f"{first} s to {last} s"
        )


def _check_event(event: Event, before: Arc, after: Arc) -> None:
    """Raise an error if an event does not lead from one arc to the next.

    Args:
        event: The event.
        before: The arc before it.
        after: The arc after it.

    Raises:
        FileFormatError: If times, modes or shapes do not fit, or numbers are not finite.
    """
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
    """Raise an error if a time is no finite number.

    Raises:
        FileFormatError: In that case; it begins with a time of `what`.
    """
    for t in times:
        if not isinstance(t, float | int) or not math.isfinite(t):
            raise FileFormatError(f"a time of {what} must be a finite number, got {t!r}")


def _check_array(what: str, value: Array, shape: tuple[int, ...]) -> None:
    """Raise an error if an array has another shape or type, or is not finite.

    Raises:
        FileFormatError: In that case; it begins with `what`.
    """
    if value.shape != shape or value.dtype != np.float64:
        raise FileFormatError(
            f"{what} must be numbers of shape {shape}, got {value.dtype} of shape {value.shape}"
        )
    if not np.isfinite(value).all():
        raise FileFormatError(f"{what} must be finite, got {value[~np.isfinite(value)][0]}")
