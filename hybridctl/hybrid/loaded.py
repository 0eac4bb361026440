"""Whether arcs and events that a file has given are a run of a system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import FileFormatError
from hybridctl.hybrid.system import HybridSystem

if TYPE_CHECKING:
    from hybridctl.hybrid.trajectory import Arc, Event


def check_run(arcs: Sequence[Arc], events: Sequence[Event], system: HybridSystem) -> None:
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
