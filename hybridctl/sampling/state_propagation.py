r"""Propagation of single states through events: sigma points and particles.

States that are near each other have the same events, but not at the same time. So at a given time
some may be before an event that others have passed. `propagate_to_pattern` brings such a state to
the side of the others along the extended flow, as reference spreading extends arcs ([RS] 3.1.2). A
state that is late has its event after the given time, and flows back from there in the new mode. A
state that is early flows on in its old mode, past the guard. To first order the saltation matrix
does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.estimate import Estimate, project_onto_constraints
from hybridctl.estimation.mode_consistency import reconcile
from hybridctl.estimation.noise import EXACT_GUARDS
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.prediction import predict
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.mode import ModeKey, ModeModel
from hybridctl.hybrid.run import BriefEvent
from hybridctl.hybrid.trajectory import Event
from hybridctl.sampling.batch import simulate_batch


class EventPattern(NamedTuple):
    """The guards that have fired, in any order, and the mode that they led to.

    Attributes:
        guards: Names of the guards, sorted.
        mode: Key of the mode.
    """

    guards: tuple[str, ...]
    mode: ModeKey


class PropagatedState(NamedTuple):
    """A state at the end of its propagation.

    Attributes:
        mode: Its mode.
        state: The state (nx,).
        events: Events on its way.
    """

    mode: ModeKey
    state: Array
    events: tuple[BriefEvent, ...]

    @property
    def pattern(self) -> EventPattern:
        """The pattern of the events on the way."""
        return EventPattern(list_fired_guards(self.events) if self.events else (), self.mode)


def remove_noise(model: NoisySystem) -> NoisySystem:
    """Return a filter model without any noise, for the propagation of single states.

    Its covariances are zero. They pass events by the Jacobian of the reset, which does not divide
    by the rate of a guard as a saltation matrix does.

    Args:
        model: The model.
    """
    return replace(
        model,
        process_noise=None,
        reset_noise=None,
        guard_noise=EXACT_GUARDS,
        strategy="reset_jacobian",
    )


def propagate_state(
    model: NoisySystem, mode: ModeKey, x: Array, start: float, end: float, law: InputLaw
) -> PropagatedState:
    """Return a state at a later time, past as many events as there are until then.

    A state outside its mode, and one whose simulation fails, is reconciled and predicted as the
    mean of a salted filter is.

    Args:
        model: A model without noise, see `remove_noise`.
        mode: Key of its mode.
        x: State (nx,).
        start: Time of the state, s.
        end: Later time, s.
        law: Input as a function of time and state.

    Raises:
        SimulationError: If the prediction fails as well.
    """
    guards = model.system.mode(mode).guards(start, x, law(start, x))
    if (guards >= -model.guard_tolerances(mode)).all():
        try:
            run = model.simulate(model.system, mode, x, (start, end), law)
            return PropagatedState(run.final_mode, run.final_state, _shorten(run.guard_events))
        except SimulationError:
            pass  # the filter's prediction takes other ways out, such as freezing the mode
    n = model.system.mode(mode).space.ndx
    reconciled = reconcile(model, Estimate(mode, start, x, np.zeros((n, n))), law)
    found = predict(model, reconciled.estimate, end, law)
    events = _shorten((*reconciled.events, *found.events))
    return PropagatedState(found.estimate.mode, found.estimate.mean, events)


def propagate_states(
    model: NoisySystem,
    modes: Sequence[ModeKey],
    states: Sequence[Array],
    start: float,
    end: float,
    law: HeldInput,
) -> list[PropagatedState]:
    """Return many states at a later time, each as `propagate_state` does, but together.

    Args:
        model: A model without noise.
        modes: Mode of each state.
        states: The states.
        start: Their time, s.
        end: Later time, s.
        law: Held input.

    Raises:
        SimulationError: If a state can neither be simulated nor predicted.
    """
    rows = np.array(states) if len({len(x) for x in states}) == 1 else states
    batch = simulate_batch(model.system, list(modes), rows, (start, end), law, **model.settings)
    sizes = {mode: model.system.mode(mode).space.nx for mode in {*batch.modes} - {None}}
    return [
        propagate_state(model, modes[k], states[k], start, end, law)
        if mode is None
        else PropagatedState(mode, batch.states[k, : sizes[mode]], events)
        for k, (mode, events) in enumerate(zip(batch.modes, batch.events, strict=True))
    ]


def propagate_to_pattern(
    model: NoisySystem, path: PropagatedState, pattern: EventPattern, end: float, law: InputLaw
) -> Array | None:
    """Return a state at a given time in the mode and past the events of a pattern.

    Args:
        model: A model without noise. An event may be at most its `rewind` away from the given time.
        path: The state at the given time, in its own mode.
        pattern: The pattern of other states.
        end: The given time, s.
        law: Input as a function of time and state.

    Returns:
        The state (nx,) along the extended flow. None where the path does not lead to the pattern
        within that time, or where the extended flow fails.
    """
    if path.pattern == pattern:
        return path.state
    is_early = len(list_fired_guards(path.events)) > len(pattern.guards)
    try:
        if is_early:
            return _extend_old_mode(model, path, pattern, end, law)
        return _extend_new_mode(model, path, pattern, end, law)
    except SimulationError:
        return None


def integrate_perturbations(mode: ModeModel, x: Array, perturbations: Array) -> Array:
    """Return the states (n, nx) reached along perturbations, on the constraints of the mode.

    Args:
        mode: The mode.
        x: State (nx,), or states (n, nx).
        perturbations: Perturbations (n, ndx).
    """
    space = mode.space
    if space.nx == space.ndx:
        states = space.integrate(x, perturbations)
    else:
        starts = np.broadcast_to(x, (len(perturbations), space.nx))
        pairs = zip(starts, perturbations, strict=True)
        states = np.array([space.normalize(space.integrate(*pair)) for pair in pairs])
    if mode.project is None:
        return states
    return np.array([project_onto_constraints(mode, state) for state in states]).reshape(
        states.shape
    )


def list_fired_guards(events: Iterable[Event | BriefEvent]) -> tuple[str, ...]:
    """Return the sorted names of the guards of events.

    Args:
        events: The events.
    """
    return tuple(sorted(name for event in events for name in event.guards))


def _extend_old_mode(
    model: NoisySystem, path: PropagatedState, pattern: EventPattern, end: float, law: InputLaw
) -> Array | None:
    """Return the state of a path that is ahead of a pattern: it flows on in its old mode.

    Arguments are those of `propagate_to_pattern`.
    """
    for k, event in enumerate(path.events):
        before = EventPattern(list_fired_guards(path.events[:k]), event.mode_before)
        if end - event.time <= model.rewind and before == pattern:
            if event.time >= end:
                return event.state_before
            return model.flow_past_guards(pattern.mode, event.state_before, event.time, end, law)(
                end
            )
    return None


def _extend_new_mode(
    model: NoisySystem, path: PropagatedState, pattern: EventPattern, end: float, law: InputLaw
) -> Array | None:
    """Return the state of a path that is behind a pattern: past its next events, it flows back.

    Arguments are those of `propagate_to_pattern`.
    """
    span = end, end + model.rewind
    run = model.simulate(model.system, path.mode, path.state, span, law)
    events: Sequence[Event | BriefEvent] = path.events
    for event in run.guard_events:
        events = (*events, event)
        if EventPattern(list_fired_guards(events), event.mode_after) == pattern:
            back = event.time - end
            if not back > 0.0:
                return event.state_after
            _, arc = model.flow_backwards(pattern.mode, event.state_after, event.time, back, law)
            return arc(back)
    return None


def _shorten(events: Iterable[Event]) -> tuple[BriefEvent, ...]:
    """Return the brief forms of events."""
    return tuple(map(BriefEvent.of, events))
