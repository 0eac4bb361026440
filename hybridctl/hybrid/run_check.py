"""Whether a run is one of a system."""

from __future__ import annotations

import numpy as np

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.jump import compute_outcome, is_same_state
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE_TOLERANCE
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

_RATE_TOLERANCE = 1e-4
"""Difference between the rate of a run and the field, relative to the largest rate.

Runs by any method whose states are as accurate as `_STATE_ERROR` have less, where the field changes
slowly with the state."""
_STATE_ERROR = 1e-5
"""Error that the states of a run may have, relative to the largest coordinate or to 1.

Times the slope of the field it is added to what `_RATE_TOLERANCE` allows: fields that change
quickly with the state make more of it."""
_MAX_SLOPE = 49.0
"""Largest slope of the Chebyshev polynomial of degree 7 on [-1, 1], 7^2."""
_MISMATCH = "system must be the one of the trajectory, run.system"


def check_system(
    system: HybridSystem,
    trajectory: HybridTrajectory,
    tolerance: float = SAME_STATE_TOLERANCE,
) -> None:
    """Raise an error if a trajectory is a run of another system.

    The system that is known to have made it (`trajectory.source`) is not compared. Of another one
    these are compared: sizes of modes, the field in the middle of the longest step of each arc, and
    guards and resets at events, but for those of rest and of impacts at jamming, whose states are
    not those of resets.

    Args:
        system: The system.
        trajectory: The trajectory.
        tolerance: Largest distance of an event from its guards, relative to their scales, and of
            the state after it from that of the reset, of each coordinate or of 1.

    Raises:
        InputError: If something differs, which it names.
    """
    if trajectory.source is system:
        return
    try:
        for arc in trajectory.arcs:
            _check_flow(system, arc)
        for event in trajectory.guard_events:
            if event.accumulation is None and event.bridged is None:
                _check_jump(system, event, tolerance)
    except UnknownNameError as error:
        raise InputError(f"{_MISMATCH}: {error}") from error


def _check_flow(system: HybridSystem, arc: Arc) -> None:
    """Raise an error if an arc is no flow of its mode in a system.

    Args:
        system: The system.
        arc: The arc.

    Raises:
        InputError: If sizes differ, or the rate of the arc is not the field to its accuracy.
    """
    mode = system.mode(arc.mode)
    sizes, own_sizes = (mode.space.nx, mode.nu), (arc.space.nx, arc.inputs.shape[2])
    if sizes != own_sizes:
        raise InputError(
            f"{_MISMATCH}: mode {arc.mode!r} of the run has {own_sizes[0]} states and "
            f"{own_sizes[1]} inputs, that of the system {sizes[0]} and {sizes[1]}"
        )
    if arc.end == arc.start:  # between two events at one time: it has no rate
        return
    k = int(arc.lengths.argmax())
    length = float(arc.lengths[k])
    t = min(float(arc.breaks[k]) + 0.5 * length, arc.end)
    x, u = arc.state_and_input(t)
    point = mode.calc(t, x, u)
    rate, field = arc.state_rate(t), mode.space.rate(x, point.field)
    # Below 1e-4 units of the state per second a rate counts as that: the field may be zero.
    accuracy = _RATE_TOLERANCE * (np.abs(rate).max() + _RATE_TOLERANCE)
    # The rate is that of a series, as accurate as its last coefficients are small.
    tail = np.abs(arc.states[k, -2:]).sum(axis=0) + np.finfo(float).eps * np.abs(x).max()
    accuracy += 2.0 / length * _MAX_SLOPE * tail.max()
    if mode.differentiable:
        slopes = np.abs(point.field_jacobian.state).sum(axis=1)
        accuracy += _STATE_ERROR * max(1.0, np.abs(x).max()) * slopes.max(initial=0.0)
    if not (np.abs(rate - field) <= accuracy).all():
        raise InputError(
            f"{_MISMATCH}: at t = {t:.9g} s in mode {arc.mode!r} the state of the run moves at "
            f"{rate}, but the field of the system is {field}"
        )


def _check_jump(system: HybridSystem, event: Event, tolerance: float) -> None:
    """Raise an error if an event of guards is none of a system.

    Args:
        system: The system.
        event: The event.
        tolerance: See `check_system`.

    Raises:
        InputError: If none of its guards is zero there, or their resets lead to another state.
    """
    t, x, u = event.time, event.state_before, event.input_before
    mode = system.mode(event.mode_before)
    point, names = mode.calc(t, x, u), mode.guard_names
    own = [names.index(name) for name in event.guards if name in names]
    depths = np.abs(point.guards / mode.guard_scales)[own]
    if mode.guards_differentiable:
        # A guard that depends on the input may leap over zero where the input does.
        depths[point.guard_jacobian.input[own].any(axis=1)] = 0.0
    if not own or depths.min() > tolerance:
        raise InputError(
            f"{_MISMATCH}: guards {event.guards} of event {event.index} were zero, those of the "
            f"system are {dict(zip(names, point.guards.tolist(), strict=True))}"
        )
    key, after, took_part = compute_outcome(system, event.mode_before, event.guards, t, x, u)
    # Where others took part than those that the event names, its state is that of another event.
    is_comparable = took_part == event.guards
    known = event.state_after
    if is_comparable and not is_same_state(system, key, after.state, known, tolerance):
        apart = "another size of state"
        if after.state.shape == known.shape:
            off = np.abs(after.state - known) / (1.0 + np.abs(known))
            apart = f"a state off by {off.max():.3g} of 1 + |x| (tolerated: {tolerance:g})"
        raise InputError(
            f"{_MISMATCH}: the reset of event {event.index} leads to {apart}, from that with which "
            "the run goes on"
        )
