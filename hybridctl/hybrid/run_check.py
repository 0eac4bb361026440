"""Whether a run is one of a system."""

from __future__ import annotations

import numpy as np

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.jump import outcome, same_state
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE
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
    key, after, took_part = outcome(system, event.mode_before, event.guards, t, x, u)
    landed = event.state_after
    if took_part == event.guards and not same_state(system, key, after.state, landed):
        raise _of_another(
            f"the reset of event {event.index} leads to {after.state}, but the run goes on from "
            f"{landed}"
        )
