r"""Single states carried through events: sigma points and particles.

States that are near each other have the same events, but not at the same time, so at any given
time some may be before an event that others are past. `followed` brings such a state to the side
of the others along the extended flow: one that is late has its event after the given time, and
flows back from there in the new mode; one that is early flows on in its old mode, past the guard.
To first order that is what the saltation matrix does to it.
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
from hybridctl.sampling.simulate import simulate_batch


class EventPattern(NamedTuple):
    """The guards that have fired, in any order, and the mode that this led to."""

    guards: tuple[str, ...]
    mode: ModeKey


class CarriedState(NamedTuple):
    """The end of a state that was carried on, and the events on its way."""

    mode: ModeKey
    state: Array
    events: tuple[BriefEvent, ...]

    @property
    def kind(self) -> EventPattern:
        """The pattern of the events on the way: the guards that fired, and the mode they led to."""
        return EventPattern(fired(self.events) if self.events else (), self.mode)


def silent(model: NoisySystem) -> NoisySystem:
    """The model without any noise, for single states."""
    return replace(
        model,
        process_noise=None,
        reset_noise=None,
        guard_noise=EXACT_GUARDS,
        strategy="reset_jacobian",
    )


def carried(
    model: NoisySystem, mode: ModeKey, x: Array, start: float, end: float, law: InputLaw
) -> CarriedState:
    """A state x (nx,) from one time to another, through as many events as there are until then.

    One that is outside its mode is reconciled and predicted as the mean of a salted filter is,
    without a covariance; so is one whose simulation cannot go on. model: a silent one.
    """
    guards = model.system.mode(mode).guards(start, x, law(start, x))
    if (guards >= -model.guard_tolerances(mode)).all():
        try:
            run = model.simulate(model.system, mode, x, (start, end), law)
            return CarriedState(run.final_mode, run.final_state, _brief(run.guard_events))
        except SimulationError:
            pass
    n = model.system.mode(mode).space.ndx
    reconciled = reconcile(model, Estimate(mode, start, x, np.zeros((n, n))), law)
    found = predict(model, reconciled.estimate, end, law)
    events = _brief((*reconciled.events, *found.events))
    return CarriedState(found.estimate.mode, found.estimate.mean, events)


def carried_together(
    model: NoisySystem,
    modes: Sequence[ModeKey],
    states: Sequence[Array],
    start: float,
    end: float,
    law: HeldInput,
) -> list[CarriedState]:
    """Many states from one time to another under a held input, each as by `carried`."""
    together = np.array(states) if len({len(x) for x in states}) == 1 else states
    batch = simulate_batch(model.system, list(modes), together, (start, end), law, **model.settings)
    sizes = {mode: model.system.mode(mode).space.nx for mode in {*batch.modes} - {None}}
    return [
        carried(model, modes[k], states[k], start, end, law)
        if mode is None
        else CarriedState(mode, batch.states[k, : sizes[mode]], events)
        for k, (mode, events) in enumerate(zip(batch.modes, batch.events, strict=True))
    ]


def followed(
    model: NoisySystem, path: CarriedState, kind: EventPattern, end: float, law: InputLaw
) -> Array | None:
    """The state at `end` of a path, in the mode and past the events of `kind`.

    None where the path does not lead there within the time `rewind` of the model.
    """
    if path.kind == kind:
        return path.state
    bring = _early if len(fired(path.events)) > len(kind.guards) else _late
    try:
        return bring(model, path, kind, end, law)
    except SimulationError:
        return None


def integrated(mode: ModeModel, x: Array, ways: Array) -> Array:
    """The states (n, nx) reached from x, or from the states x (n, nx), along the ways (n, ndx).

    They obey the constraints of the mode.
    """
    space = mode.space
    if space.nx == space.ndx:
        states = space.integrate(x, ways)
    else:
        pairs = zip(np.broadcast_to(x, (len(ways), space.nx)), ways, strict=True)
        states = np.array([space.normalize(space.integrate(*pair)) for pair in pairs])
    if mode.project is None:
        return states
    return np.array([project_onto_constraints(mode, state) for state in states]).reshape(
        states.shape
    )


def fired(events: Iterable[Event | BriefEvent]) -> tuple[str, ...]:
    """The guards of events, in any order."""
    return tuple(sorted(name for event in events for name in event.guards))


def _early(
    model: NoisySystem, path: CarriedState, kind: EventPattern, end: float, law: InputLaw
) -> Array | None:
    for k, event in enumerate(path.events):
        soon = end - event.time <= model.rewind
        if soon and EventPattern(fired(path.events[:k]), event.mode_before) == kind:
            if event.time >= end:
                return event.state_before
            return model.flow_past_guards(kind.mode, event.state_before, event.time, end, law)(end)
    return None


def _late(
    model: NoisySystem, path: CarriedState, kind: EventPattern, end: float, law: InputLaw
) -> Array | None:
    span = end, end + model.rewind
    run = model.simulate(model.system, path.mode, path.state, span, law)
    events: Sequence[Event | BriefEvent] = path.events
    for event in run.guard_events:
        events = (*events, event)
        if EventPattern(fired(events), event.mode_after) == kind:
            back = event.time - end
            if not back > 0.0:
                return event.state_after
            _, arc = model.flow_backwards(kind.mode, event.state_after, event.time, back, law)
            return arc(back)
    return None


def _brief(events: Iterable[Event]) -> tuple[BriefEvent, ...]:
    return tuple(map(BriefEvent.of, events))
