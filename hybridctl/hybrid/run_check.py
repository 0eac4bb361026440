"""Whether a file holds a run, and whether a run is one of a system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import FileFormatError, InputError, UnknownNameError
from hybridctl.hybrid.jump import outcome
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE

if TYPE_CHECKING:
    from hybridctl.hybrid.arc import Arc
    from hybridctl.hybrid.trajectory import Event, HybridTrajectory

_SAME_FIELD = (
    1e-4  # of the rate: more than a run leaves whose tolerances are _LOOSEST, by any method
)
_LOOSEST = 1e-5  # of states, or in their units: what fast fields make larger counts as well
_STEEPEST = 49.0  # of a Chebyshev polynomial of degree 7: what its coefficient makes of the slope


def check_system(system: HybridSystem, trajectory: HybridTrajectory) -> None:
    """Raise `InputError` for a trajectory that is a run of another system.

    The one that has made it, `trajectory.source`, is not looked at. Of another one it is sizes of
    modes, the field in the middle of the longest step of each arc, and at events guards and resets,
    but for those of accumulations and bridges.
    """
    if trajectory.source is system:
        return
    try:
        for arc in trajectory.arcs:
            _check_flow(system, arc)
        for event in trajectory.guard_events:
            if event.accumulation is None and event.bridged is None:
                _check_jump(system, event)
    except UnknownNameError as error:
        raise _of_another(str(error)) from error


def _of_another(what: str) -> InputError:
    return InputError(f"system must be the one of the trajectory, run.system: {what}")


def _check_flow(system: HybridSystem, arc: Arc) -> None:
    mode = system.mode(arc.mode)
    sizes, has = (mode.space.nx, mode.nu), (arc.space.nx, arc.inputs.shape[2])
    if sizes != has:
        raise _of_another(
            f"mode {arc.mode!r} of the run has {has[0]} states and {has[1]} inputs, that of the "
            f"system {sizes[0]} and {sizes[1]}"
        )
    if arc.end == arc.start:
        return
    k = int(arc.lengths.argmax())
    length = float(arc.lengths[k])
    t = min(float(arc.breaks[k]) + 0.5 * length, arc.end)
    x, u = arc.state_and_input(t)
    point = mode.calc(t, x, u)
    moves, flows = arc.state_rate(t), mode.space.rate(x, point.field)
    left = np.abs(arc.states[k, -2:]).sum(axis=0) + np.finfo(float).eps * np.abs(x).max()
    accuracy = _SAME_FIELD * (np.abs(moves).max() + _SAME_FIELD)
    accuracy += 2.0 / length * _STEEPEST * left.max()
    if mode.differentiable:
        slopes = np.abs(point.field_jacobian.state).sum(axis=1)
        accuracy += _LOOSEST * max(1.0, np.abs(x).max()) * slopes.max(initial=0.0)
    if not (np.abs(moves - flows) <= accuracy).all():
        raise _of_another(
            f"at t = {t:.9g} s in mode {arc.mode!r} the state of the run moves at {moves}, but the "
            f"field of the system is {flows}"
        )


def _check_jump(system: HybridSystem, event: Event) -> None:
    t, x, u = event.time, event.state_before, event.input_before
    mode = system.mode(event.mode_before)
    point, names = mode.calc(t, x, u), mode.guard_names
    own = [names.index(name) for name in event.guards if name in names]
    off = np.abs(point.guards / mode.guard_scales)[own]
    if mode.guards_differentiable:
        off[point.guard_jacobian.input[own].any(axis=1)] = 0.0  # may leap with the input
    if not own or off.min() > SAME_STATE:
        raise _of_another(
            f"guards {event.guards} of event {event.index} were zero, those of the system are "
            f"{dict(zip(names, point.guards.tolist(), strict=True))}"
        )
    _, after, took_part = outcome(system, event.mode_before, event.guards, t, x, u)
    landed = event.state_after
    if took_part == event.guards and not (
        after.state.shape == landed.shape
        and np.allclose(after.state, landed, rtol=SAME_STATE, atol=SAME_STATE)
    ):
        raise _of_another(
            f"the reset of event {event.index} leads to {after.state}, but the run goes on from "
            f"{landed}"
        )


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
