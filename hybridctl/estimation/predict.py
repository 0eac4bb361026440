"""Prediction: the mean by exact simulation, the covariance by its first order along that.

A prediction may begin outside its mode: just after an event a corrected mean can lie beyond the
guard that has fired while it moves back in. To first order that is right (its own event is still to
come, and the deviation is that from the arc continued past its beginning), so it flows on without
that guard until it is inside again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import EventLimitError, SimulationError
from hybridctl.estimation.arcs import transition
from hybridctl.estimation.estimate import Alternative, Estimate, moved, tidied
from hybridctl.estimation.model import GUARD_TOLERANCE, Model
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.variation import coefficients

_SHORTEST = 0.3  # of a prediction that fails: in this part of it the mode is kept
_BEYOND = 1.1  # of the time in which a guard is expected to be positive again


@dataclass(frozen=True, eq=False)
class Prediction:
    """An estimate at a later time, and what happened on the way.

    transition (ndx+, ndx): the first-order map from the earlier deviation to this one, None where
    an event was piecewise linear. notes: what had to be replaced by something less exact. kept:
    whether a mode was kept, past its guards, because the simulation could not go on.
    """

    estimate: Estimate
    events: tuple[Event, ...] = ()
    transition: Array | None = None
    notes: tuple[str, ...] = ()
    kept: bool = False


def predict(
    model: Model, estimate: Estimate, end: float, law: InputLaw, *, halve: bool = True
) -> Prediction:
    """The estimate at time `end`, through as many events as there are until then.

    Noise on the flow is gathered along each arc, between events. Where the simulation cannot go on,
    the time is halved, if asked for; in a quarter of it the mode is kept, past its guards, and
    `notes` says so. Where even that takes too long the state is held for that time. A mode with a
    flow in closed form takes that, with the input that it begins with.
    """
    if model.system.mode(estimate.mode).flow is not None:
        return _flowed(model, estimate, end, law)
    ndx = model.system.mode(estimate.mode).space.ndx
    now = Prediction(replace(estimate, alternative=None), (), np.eye(ndx))
    shortest = _SHORTEST if halve else 1.0
    now = _go(model, now, end, law, shortest * (end - estimate.time))
    return replace(now, estimate=replace(now.estimate, covariance=tidied(now.estimate.covariance)))


def _flowed(model: Model, e: Estimate, end: float, law: InputLaw) -> Prediction:
    """The estimate at time `end` by the closed form of its mode."""
    mode, u = model.system.mode(e.mode), law(e.time, e.mean)
    assert mode.flow is not None
    noise, density = model.process_noise, None
    if noise is not None:
        through = np.zeros((0, 0))
        if noise.through_input:
            through = coefficients(mode, e.time, e.mean, u).input
        density = noise.matrix(mode, e.time, e.mean, u, through)
    flow = mode.flow(e.time, e.mean, u, end - e.time, density)
    p = flow.matrix @ e.covariance @ flow.matrix.T + flow.noise
    after = Estimate(e.mode, end, flow.state, 0.5 * (p + p.T), since=e.since)
    return Prediction(after, transition=flow.matrix)


def _go(model: Model, now: Prediction, end: float, law: InputLaw, shortest: float) -> Prediction:
    """Simulations, one after the other where the mean is outside its mode or is moved by an event.

    As many as there may be events: a mean that stays outside would make them shorter and shorter.
    """
    rounds = 0
    while now.estimate.time < end:
        try:
            if rounds > model.max_events:
                raise SimulationError(f"the mean stays outside mode {now.estimate.mode!r}")
            rounds += 1
            now = _onward(model, now, end, law)
        except SimulationError as error:
            if now.estimate.time + shortest < end:
                return _in_halves(model, now, end, law, shortest)
            now = _extend(model, now, end, law)
            return replace(now, notes=(*now.notes, f"the mode was kept: {error}"), kept=True)
    return now


def _onward(model: Model, now: Prediction, end: float, law: InputLaw) -> Prediction:
    """One simulation: without the guards that the mean is outside of, as long as it is."""
    e = now.estimate
    outside, until = _outside(model, e, end, law)
    try:
        run = simulate(
            model.without(e.mode, outside) if outside else model.system,
            e.mode,
            e.mean,
            (e.time, until),
            law,
            rtol=model.rtol,
            atol=model.atol,
            max_events=1 if outside else model.max_events,
            on_zeno="rest",
            zeno_horizon=model.zeno_horizon,
            first_step=until - e.time,
        )
    except EventLimitError as error:
        if not outside:
            raise
        run = error.trajectory
    return _follow(model, now, run, once=bool(outside))


def _in_halves(
    model: Model, now: Prediction, end: float, law: InputLaw, shortest: float
) -> Prediction:
    middle = 0.5 * (now.estimate.time + end)
    return _go(model, _go(model, now, middle, law, shortest), end, law, shortest)


def extend(
    model: Model, estimate: Estimate, end: float, law: InputLaw, since: Array | None
) -> Prediction | None:
    """The estimate at time `end` in the same mode, past its guards; None where there is no way.

    since: the transition to the estimate, which that of the prediction goes on.
    """
    now = _extend(model, Prediction(estimate, (), since), end, law)
    return None if now.kept else now


def carry_alternative(
    model: Model, before: Estimate, prediction: Prediction, window: float, law: InputLaw
) -> Estimate:
    """The predicted estimate with the hypothesis that its last event is still to come.

    After events the new alternative is the estimate before the prediction, continued in its
    mode; it is kept for `window` s after the first of them. Otherwise the old one is carried on.
    """
    after = prediction.estimate
    if prediction.events and window > 0.0:
        since = prediction.events[0].time
        start = np.eye(len(before.covariance))
        other = Alternative(replace(before, alternative=None), 0.0, since, since + window, start)
    elif before.alternative is not None:
        other = before.alternative
    else:
        return after
    if after.time > other.until:
        return after
    now = extend(model, other.estimate, after.time, law, other.transition)
    if now is None:
        return after
    other = replace(other, estimate=now.estimate, transition=now.transition)
    return replace(after, alternative=other)


def _outside(model: Model, e: Estimate, end: float, law: InputLaw) -> tuple[tuple[str, ...], float]:
    """The guards that the mean is outside of, and the time until which to flow without them."""
    u = law(e.time, e.mean)
    g = model.guards(e.mode, e.time, e.mean, u)
    out = g < -GUARD_TOLERANCE
    if not out.any():
        return (), end
    _, rates = model.guard_rates(e.mode, e.time, e.mean, u)
    rising = out & (rates > 0.0)
    if rising.any():
        back = float((-g[rising] / rates[rising]).max())
        end = min(end, e.time + _BEYOND * back + 1e-9)
    names = model.system.outgoing(e.mode).guards.names
    return tuple(names[i] for i in np.flatnonzero(out)), end


def _extend(model: Model, now: Prediction, end: float, law: InputLaw) -> Prediction:
    e = now.estimate
    try:
        arc = model.extended(e.mode, e.mean, e.time, end, law)
    except SimulationError as error:
        note = f"the state was held: {error}"
        return replace(now, estimate=replace(e, time=end), notes=(*now.notes, note), kept=True)
    flow = transition(model.system.mode(e.mode), arc, model.process_noise, e.covariance, model.rtol)
    after = replace(e, time=end, mean=arc(end), covariance=flow.carry(e.covariance))
    whole = None if now.transition is None else flow.matrix @ now.transition
    return replace(now, estimate=after, transition=whole)


def _follow(model: Model, now: Prediction, run: HybridTrajectory, once: bool) -> Prediction:
    """Along a simulation: to its end, or to an event that moves the mean off it.

    once: to the first event at most.
    """
    for k, arc in enumerate(run.arcs):
        e = now.estimate
        mode = model.system.mode(arc.mode)
        flow = transition(mode, arc, model.process_noise, e.covariance, model.rtol)
        p = flow.carry(e.covariance)
        whole = None if now.transition is None else flow.matrix @ now.transition
        if k == len(run.events):
            after = replace(e, time=arc.end, mean=arc(arc.end), covariance=p)
            return replace(now, estimate=after, transition=whole)
        event = run.events[k]
        now = after_event(model, replace(now, transition=whole), event, p)
        if once or not np.array_equal(now.estimate.mean, event.state_after):
            return now
    return now


def after_event(model: Model, now: Prediction, event: Event, p: Array) -> Prediction:
    """The estimate just after an event, with covariance p (ndx, ndx) just before it."""
    jump = model.jumped(event, p)
    mean, covariance = event.state_after, jump.covariance
    if jump.shift.any():
        space = model.system.mode(event.mode_after).space
        mean, covariance = moved(space, mean, covariance, jump.shift)
    whole = None
    if jump.matrix is not None and now.transition is not None:
        whole = jump.matrix @ now.transition
    note = () if jump.note is None else (jump.note,)
    estimate = Estimate(event.mode_after, event.time, mean, covariance, since=event.time)
    return Prediction(estimate, (*now.events, event), whole, (*now.notes, *note), now.kept)
