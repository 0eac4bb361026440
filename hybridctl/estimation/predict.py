r"""Prediction: the mean by exact simulation, the covariance by its first order along that.

A prediction may begin outside its mode: just after an event a corrected mean can lie beyond the
guard that has fired while it moves back in. To first order that is right (its own event is still to
come, and the deviation is that from the arc continued past its beginning), so it flows on without
that guard until it is inside again.

Where the input is held, and one compiled step of the mode reaches the end with all guards surely
positive (see `step`), that step is the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import EventLimitError, SimulationError, SystemDefinitionError, ZenoError
from hybridctl.estimation.covariance import step_transition, transition
from hybridctl.estimation.estimate import Estimate, constrained, corrected, nearest_semidefinite
from hybridctl.estimation.jumps import jumped, to_rest
from hybridctl.estimation.model import Model, guard_rates, in_pace, sees_input
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.mode import ModeModel
from hybridctl.hybrid.model import CompiledStep, StepRequest
from hybridctl.hybrid.tolerances import MAX_REST_RATE_RATIO
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.propagation import linearize_field_at

_ROUNDS = 20
_SHORTEST = 0.3  # of a prediction that fails: in this part of it the mode is kept
_AT = 2.0  # tolerances of a guard that has just fired: events are found where it is past one
_BEYOND = 1.1  # of the time in which a guard is expected to be positive again


@lru_cache
def identity(n: int) -> Array:
    """Return the identity (n, n), read-only and always the same: the map of no time."""
    matrix = np.eye(n)
    matrix.setflags(write=False)
    return matrix


class StatePrediction(NamedTuple):
    """An estimate at a later time, and what happened on the way.

    transition (ndx+, ndx): the first-order map from the earlier deviation to this one, None where
    an event was piecewise linear. notes: what had to be replaced by something less exact. kept:
    whether a mode was kept, past its guards, because the simulation could not go on. befores: what
    was predicted just before each of the events.
    """

    estimate: Estimate
    events: tuple[Event, ...] = ()
    transition: Array | None = None
    notes: tuple[str, ...] = ()
    kept: bool = False
    befores: tuple[StatePrediction, ...] = ()

    def onward(self, estimate: Estimate, matrix: Array | None) -> StatePrediction:
        """The prediction with another estimate at its end, where this first-order map has led."""
        whole = None
        if matrix is not None and self.transition is not None:
            start = self.transition is identity(len(self.transition))
            whole = matrix if start else matrix @ self.transition
        return self._replace(estimate=estimate, transition=whole)

    def then(self, later: StatePrediction) -> StatePrediction:
        """This prediction and a later one, which goes on from it."""
        events, notes = (*self.events, *later.events), (*self.notes, *later.notes)
        whole = self.onward(later.estimate, later.transition)
        return whole._replace(events=events, notes=notes)


def predict(
    model: Model, estimate: Estimate, end: float, law: InputLaw, *, halve: bool = True
) -> StatePrediction:
    """The estimate at time `end`, through as many events as there are until then.

    Noise on the flow is gathered along each arc, between events. Where the simulation cannot go on,
    the time is halved, if asked for; in a quarter of it the mode is kept, at most up to its guards,
    with a covariance that says what is not known, and `notes` says so. Where even that takes too
    long the state is held for that time. The mode is kept, too, where the model is `late`. Events
    that accumulate where the system knows no rest end in a state that is held, if they take no more
    speed away than the flow makes.
    """
    mode = model.system.mode(estimate.mode)
    if estimate.time < end:
        found = _in_one_step(model, mode, estimate, end, law)
        if found is not None:
            return found
    now = StatePrediction(estimate, (), np.eye(mode.space.ndx))
    shortest = _SHORTEST if halve else 1.0
    now = _go(model, now, end, law, shortest * (end - estimate.time))
    e = now.estimate
    return now._replace(estimate=replace(e, covariance=nearest_semidefinite(e.covariance)))


def _in_one_step(
    model: Model, mode: ModeModel, e: Estimate, end: float, law: InputLaw
) -> StatePrediction | None:
    """The prediction by one compiled step on which nothing happens; None where there is none."""
    steps = mode.compiled_steps
    if steps is None or not isinstance(law, HeldInput):
        return None
    h, u = end - e.time, law.value
    ahead = StepRequest(e.time, e.mean, h, model.rtol, model.atol)
    noise = model.diffusion(mode, ahead, u)
    if noise is not None:
        moved = steps.transition(ahead, u, noise)
        if moved is None or not moved.error < 1.0:
            return None
        assert moved.noise is not None
        assert moved.bounds is not None
        if moved.bounds.size and not moved.bounds.min() > 0.0:
            return None
        p = moved.matrix.dot(e.covariance).dot(moved.matrix.T) + moved.noise
        after = Estimate(
            e.mode,
            end,
            constrained(mode, mode.space.normalize(moved.state)),
            0.5 * (p + p.T),
            e.since,
        )
        return StatePrediction(after, (), moved.matrix)
    taken = steps.step(ahead, law)  # beyond a stop, the speed's bound is below zero
    if taken is None or not taken.error < 1.0 or not (taken.bounds > 0.0).all():
        return None
    return _ended(model, mode, e, end, taken, u)


def _ended(
    model: Model, mode: ModeModel, e: Estimate, end: float, taken: CompiledStep, u: Array
) -> StatePrediction | None:
    """The prediction at the end of a compiled step, None where its covariance needs several."""
    p = e.covariance
    flow = step_transition(model, mode, e.time, end - e.time, taken.states, u, p)
    if flow is None:
        return None
    x = constrained(mode, mode.space.normalize(taken.states[-1]))
    return StatePrediction(
        Estimate(e.mode, end, x, nearest_semidefinite(flow.covariance(p)), e.since), (), flow.state
    )


def step_along(model: Model, e: Estimate, end: float, law: InputLaw) -> StatePrediction | None:
    """The estimate at a time before or after in the same mode, past its guards, by one step.

    None where there is no compiled step that is accurate.
    """
    mode = model.system.mode(e.mode)
    if not isinstance(law, HeldInput) or end == e.time:
        return None
    taken = _taken(model, mode, e, end - e.time, law)
    return None if taken is None else _ended(model, mode, e, end, taken, law.value)


def _taken(
    model: Model, mode: ModeModel, e: Estimate, h: float, law: HeldInput
) -> CompiledStep | None:
    """A whole step that is accurate, if there is one."""
    ahead = StepRequest(e.time, e.mean, h, model.rtol, model.atol)
    steps = mode.compiled_steps
    if steps is None or not in_pace(mode, ahead, law.value):
        return None
    taken = steps.step(ahead, law)
    return None if taken is None or not taken.error < 1.0 else taken


def _go(
    model: Model, now: StatePrediction, end: float, law: InputLaw, shortest: float
) -> StatePrediction:
    """Simulations, one after the other where the mean is outside its mode or is moved by an event.

    As many as there may be events: a mean that stays outside would make them shorter and shorter.
    """
    rounds = 0
    while now.estimate.time < end:
        if model.late():
            return _kept(_bounded(model, now, end, law), "no time is left")
        try:
            if rounds > _ROUNDS:
                raise SimulationError(f"the mean stays outside mode {now.estimate.mode!r}")
            rounds += 1
            now = _onward(model, now, end, law)
        except SimulationError as error:
            if now.estimate.time + shortest < end:
                middle = 0.5 * (now.estimate.time + end)
                half = _go(model, now, middle, law, shortest)
                return _go(model, half, end, law, shortest)
            return _kept(_bounded(model, now, end, law), str(error))
    return now


def _kept(now: StatePrediction, reason: str) -> StatePrediction:
    return now._replace(notes=(*now.notes, f"the mode was kept: {reason}"), kept=True)


def _onward(model: Model, now: StatePrediction, end: float, law: InputLaw) -> StatePrediction:
    """One simulation: without the guards that the mean is outside of, as long as it is."""
    e = now.estimate
    outside, until = _outside(model, e, end, law)
    system = model.without(e.mode, outside) if outside else model.system
    patient = replace(model, max_events=1) if outside else model
    try:
        run = patient.run(
            system, e.mode, e.mean, (e.time, until), law,
            first_step=until - e.time, terminal=lambda event: model.late(),
        )  # fmt: skip
    except EventLimitError as error:
        if not outside:
            raise
        run = error.trajectory
    except ZenoError as error:
        if outside:
            raise
        there = _follow(model, now, error.trajectory, once=False)
        if there.estimate.time < error.trajectory.end:
            return there
        rest = _rested(model, there, end, law)
        if rest is None:
            raise
        return rest
    return _follow(model, now, run, once=bool(outside))


def _rested(
    model: Model, now: StatePrediction, end: float, law: InputLaw
) -> StatePrediction | None:
    """The prediction held where events accumulate, of a system that knows no rest there.

    The guards that are zero, and their rates, stay zero; elsewhere the flow is what is not known.
    None where rates are larger than what the flow makes of them within `zeno_horizon`. The
    curvature of the guards is left out.
    """
    e, point = now.estimate, model.at(now.estimate, law)
    mode = point.mode
    near = np.abs(point.guards) <= _AT * model.tolerances(e.mode)
    closed = near & ~sees_input(point)
    rows, rates = point.guard_jacobian.state[closed], guard_rates(point)[closed]
    turning = rows @ linearize_field_at(point).state
    made = np.abs(turning @ point.field) * model.zeno_horizon
    if not closed.any() or (np.abs(rates) > MAX_REST_RATE_RATIO * made).any():
        return None
    free = extend(model, now, end, law)
    names = tuple(name for name, is_at in zip(mode.guard_names, closed, strict=True) if is_at)
    left = to_rest(model.system, e.mode, names, e.time, e.mean, point.u)
    way = mode.space.difference(e.mean, free.estimate.mean)
    p = left @ (free.estimate.covariance + np.outer(way, way)) @ left.T
    matrix = None if now.transition is None else left @ now.transition
    notes = (*now.notes, "events accumulate: their guards and rates are set to zero")
    return now._replace(estimate=replace(e, time=end, covariance=p), transition=matrix, notes=notes)


def _bounded(model: Model, now: StatePrediction, end: float, law: InputLaw) -> StatePrediction:
    """The prediction carried on in the same mode, whose mean is held where a guard falls.

    How it goes on from there is not known. That it may be all the way that the flow takes it past
    the guard is the deviation that the covariance gains. As it may not go on past the guard, its
    event follows, where there is one that leads away from it.
    """
    e = now.estimate
    free = extend(model, now, end, law)
    outside, _ = _outside(model, e, end, law)
    try:
        x = model.stopped(e.mode, e.mean, e.time, end, law, outside)
    except SimulationError:
        x = e.mean
    way = model.system.mode(e.mode).space.difference(x, free.estimate.mean)
    p = free.estimate.covariance + np.outer(way, way)
    held = free._replace(estimate=replace(free.estimate, mean=x, covariance=p))
    fallen = [name for name in _fallen(model, held.estimate, law) if name not in outside]
    if not fallen:
        return held
    try:
        after = fired(model, held, fallen, x, law)
    except (SimulationError, SystemDefinitionError):
        return held
    return held if _fallen(model, after.estimate, law) else after


def _fallen(model: Model, e: Estimate, law: InputLaw) -> list[str]:
    """The guards of a mode that are zero or less at the mean, and fall."""
    point = model.at(e, law)
    at = point.guards <= model.tolerances(e.mode)
    if not at.any():
        return []
    at &= guard_rates(point) < 0.0
    return [name for name, is_at in zip(point.mode.guard_names, at, strict=True) if is_at]


def extend(model: Model, now: StatePrediction, end: float, law: InputLaw) -> StatePrediction:
    """The prediction carried on to time `end` in the same mode, past its guards.

    Where there is no way the state is held, and its covariance gains what the rates at its
    beginning would make of it; `notes` and `kept` say so.
    """
    e = now.estimate
    if not e.time < end:
        return now
    found = step_along(model, e, end, law)
    if found is not None:
        return now.then(found)
    try:
        arc = model.extended(e.mode, e.mean, e.time, end, law)
        reached = along(model, model.system.mode(e.mode), arc, e, end)
    except SimulationError as error:
        note = f"the state was held: {error}"
        way = (end - e.time) * model.system.mode(e.mode).field(e.time, e.mean, law(e.time, e.mean))
        p = e.covariance + np.outer(way, way) if np.isfinite(way).all() else e.covariance
        held = replace(e, time=end, covariance=p)
        return now._replace(estimate=held, notes=(*now.notes, note), kept=True)
    return now.onward(*reached)


def along(
    model: Model, mode: ModeModel, arc: Arc, e: Estimate, time: float
) -> tuple[Estimate, Array]:
    """An estimate at the end of an arc of a mode, which is at a time, and the map to it."""
    flow = transition(model, mode, arc, e.covariance)
    p = flow.covariance(e.covariance)
    return replace(e, time=time, mean=arc(arc.end), covariance=p), flow.state


def _outside(model: Model, e: Estimate, end: float, law: InputLaw) -> tuple[tuple[str, ...], float]:
    """The guards that the mean is outside of, and the time until which to flow without them."""
    point = model.at(e, law)
    g = point.guards
    out = g < -model.tolerances(e.mode)
    if not out.any():
        return (), end
    rates = guard_rates(point)
    rising = out & (rates > 0.0)
    if rising.any():
        back = float((-g[rising] / rates[rising]).max())
        end = min(end, e.time + _BEYOND * back + 1e-9)
    return tuple(point.mode.guard_names[i] for i in np.flatnonzero(out)), end


def _follow(
    model: Model, now: StatePrediction, run: HybridTrajectory, once: bool
) -> StatePrediction:
    """The prediction along a simulation: to its end, or to an event that moves the mean off it.

    once: to the first event at most. Where the model is late, to the next one.
    """
    for k, arc in enumerate(run.arcs):
        mode = model.system.mode(arc.mode)
        now = now.onward(*along(model, mode, arc, now.estimate, arc.end))
        if k == len(run.events):
            return now
        event = run.events[k]
        past = now._replace(befores=(*now.befores, now._replace(befores=())))
        now = after_event(model, past, event)
        moved = not np.array_equal(now.estimate.mean, event.state_after)
        if once or moved or model.late():
            return now
    return now


def fired(
    model: Model, now: StatePrediction, guards: Sequence[str], x: Array, law: InputLaw
) -> StatePrediction:
    """The estimate just after the event of these guards at a state x (nx,), see `Model.fire`."""
    event = model.fire(now.estimate.mode, guards, now.estimate.time, x, law)
    return after_event(model, now, event)


def after_event(model: Model, now: StatePrediction, event: Event) -> StatePrediction:
    """The estimate just after an event, from that just before it."""
    noise = model.reset_noise, model.guard_noise
    jump = jumped(model.system, event, now.estimate.covariance, model.strategy, *noise)
    mean, covariance = event.state_after, jump.covariance
    if jump.shift.any():
        mode = model.system.mode(event.mode_after)
        mean, covariance = corrected(mode, mean, covariance, jump.shift)
    estimate = Estimate(event.mode_after, event.time, mean, covariance, since=event.time)
    notes = now.notes if jump.note is None else (*now.notes, jump.note)
    return now.onward(estimate, jump.matrix)._replace(events=(*now.events, event), notes=notes)
