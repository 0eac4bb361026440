r"""An estimate that a correction has put in contradiction with its mode, brought back into one.

What becomes of a mean that lies outside its mode, where a guard g is negative, in this order:

- *overdue*: g falls, so its event should have happened already. The mean is taken back in time to
  where g = 0, and goes from there through the event to the present; the covariance goes along, so
  that it passes the event by the saltation matrix, and no process noise is counted twice. If that
  is before the last event, both have happened in the other order, to first order at once: the
  guard fires just after that event, with the mean moved to g = 0. Guards that see the input, such
  as forces, come last, and fire at once. Where all that fails, takes more than eight events, or
  the model is `late`, what follows below is done instead.
- *still to come*: g rises and will be positive within `rewind` s. Just after an event that is
  where motions are whose own event is late; the estimate is kept, and `predict` lets it flow in.
- *impossible*: the distribution is cut off at g = 0, and its mean and covariance are those of what
  is left, a truncated normal distribution in the direction of g.
- *held*: the covariance does not let g change. The event fires where the mean is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.estimate import (
    Estimate,
    corrected,
    cut_off,
    nearest_semidefinite,
)
from hybridctl.estimation.model import Model, guard_rates, sees_input
from hybridctl.estimation.predict import (
    StatePrediction,
    after_event,
    along,
    fired,
    predict,
    step_along,
)
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.model import ModeModel, Point

_ROUNDS = 4
_FEW = 8  # events in the time by which one is overdue
_INSTANT = 1e-9  # s after an event, that counts as at once
_HELD = 1e-10  # of the size of the guard's value: least standard deviation that can move it


def reconcile(
    model: Model, estimate: Estimate, law: InputLaw, pending: Sequence[str] = ()
) -> StatePrediction:
    """The estimate at the same time, inside its mode or on the way into it; see this module.

    pending: guards of its mode that it is taken to be before, whatever their values.
    """
    now = StatePrediction(estimate)
    if not model.system.mode(estimate.mode).guard_names:
        return now
    for k in range(_ROUNDS):
        e, point = now.estimate, model.at(now.estimate, law)
        g = point.guards
        if g.min(initial=0.0) >= 0.0:
            return now
        (out,) = (g < -model.tolerances(e.mode)).nonzero()
        if not out.size:
            return now
        if pending and e.mode == estimate.mode:
            names = point.mode.guard_names
            out = np.array([i for i in out.tolist() if names[i] not in pending], dtype=np.intp)
        if not out.size:
            return now
        if k == 0:
            now = now._replace(transition=np.eye(len(e.covariance)))
        gradients, rates = point.guard_jacobian.state, guard_rates(point)
        falling = out[rates[out] < 0.0]
        again = None if model.late() else _overdue(model, now, point, falling, law)
        if again is not None:
            now = again
            continue
        stuck = out[(rates[out] <= 0.0) | (-g[out] > model.rewind * rates[out])]
        if not stuck.size:
            return now
        worst = int(stuck[g[stuck].argmin()])
        now = _cut_or_fire(model, now, worst, float(g[worst]), gradients[worst], law)
    e = now.estimate
    note = f"the mean stays outside mode {e.mode!r} at t = {e.time:.9g} s"
    return now._replace(notes=(*now.notes, note))


def _overdue(
    model: Model, now: StatePrediction, point: Point, falling: Indices, law: InputLaw
) -> StatePrediction | None:
    """The estimate with the event of one of these guards made up for; None where that fails.

    point: the mode at its mean. Guards that see the input, forces, may have jumped with it, or with
    the correction: they come last, and fire at once.
    """
    e = now.estimate
    placed = falling[~sees_input(point)[falling]]
    if placed.size:
        rate = float(guard_rates(point)[placed].max())
        try:
            back = _rewound(model, now, placed, rate, law)
        except SimulationError:
            return None
        return None if back is None else _again(model, back, e.time, law, len(now.events))
    if falling.size:
        return _fired(model, now, _lowest(model, now, falling, law), e.mean, law)
    return None


def ahead(model: Model, now: StatePrediction, guard: str, law: InputLaw) -> StatePrediction | None:
    """The estimate at the same time after the event of a guard that it is still to reach.

    It goes on to where the guard falls through zero, past all others, through the event, and from
    there back along the mode after it, to first order the same motion. None where that is more than
    `rewind` s ahead, or the simulation does not go there.
    """
    e = now.estimate
    quiet = model.quiet
    others = [name for name in model.system.outgoing(e.mode).guards.names if name != guard]
    try:
        system, span = model.without(e.mode, others), (e.time, e.time + model.rewind)
        run = model.run(system, e.mode, e.mean, span, law, terminal=lambda event: True)
        if not run.events:
            return None
        arc, event = run.arcs[0], run.events[0]
        there = now.onward(*along(quiet, model.system.mode(e.mode), arc, e, event.time))
        return _back(quiet, after_event(quiet, there, event), e.time, law)
    except SimulationError:
        return None


def _back(quiet: Model, after: StatePrediction, time: float, law: InputLaw) -> StatePrediction:
    """A prediction taken back to an earlier time, in its mode."""
    e = after.estimate
    found = step_along(quiet, e, time, law)
    if found is not None:
        return after.then(found)
    mode, arc = quiet.backwards(e.mode, e.mean, e.time, e.time - time, law)
    return after.onward(*along(quiet, mode, arc, e, time))


def condition(model: Model, estimate: Estimate, guard: str, law: InputLaw) -> Estimate:
    """The estimate given that a guard of its mode is zero."""
    mode = model.system.mode(estimate.mode)
    row = mode.guard_names.index(guard)
    x, p, t = estimate.mean, estimate.covariance, estimate.time
    allowed = float(model.tolerances(estimate.mode)[row])
    for _ in range(_ROUNDS):
        point = mode.calc(t, x, law(t, x))
        g, gradient = float(point.guards[row]), point.guard_jacobian.state[row]
        spread = p @ gradient
        s = float(gradient @ spread)
        if s <= _HELD**2 * g**2 or abs(g) <= allowed:
            break
        x, p = corrected(mode, x, p, -g / s * spread)
    spread = p @ gradient
    s = float(gradient @ spread)
    if s > 0.0:
        p = nearest_semidefinite(p - np.outer(spread, spread) / s)
    return replace(estimate, mean=x, covariance=p)


def risen(point: Point, fired: Sequence[str]) -> list[int]:
    """The guards of a point's mode, of those that fired last, whose values rise there.

    They rise from zero: where one is negative, the event is late. Forces are none of them.
    """
    names = point.mode.guard_names
    rows = [names.index(name) for name in fired if name in names]
    if not rows:
        return []
    rates, sees = guard_rates(point), sees_input(point)
    return [k for k in rows if rates[k] > 0.0 and not sees[k]]


def _rewound(
    model: Model, present: StatePrediction, falling: Indices, rate: float, law: InputLaw
) -> StatePrediction | None:
    """The estimate back where all these guards are zero or above; None if too long ago.

    If that is before the last event: just after that, with the lowest guard fired. Raises
    `SimulationError` where there is no way back.
    """
    e = present.estimate
    own = model.system.mode(e.mode)

    def least(s: float, arc: Arc) -> float:
        t, x = e.time - s, arc(float(s))
        return float(own.guards(t, x, law(t, x))[falling].min())

    longest = min(model.rewind, e.time - e.since)
    if longest < _INSTANT:
        return _fired_there(model, present, falling, law)
    now = model.at(e, law).guards[falling].min()
    first = 2.0 * float(now) / min(rate, -1e-300)
    for length in sorted({min(first, longest), longest}):
        mode, arc = model.backwards(e.mode, e.mean, e.time, length, law)
        if least(length, arc) > 0.0:
            back = float(brentq(least, 0.0, length, args=(arc,), xtol=1e-15))
            then = _taken_back(model, present, mode, replace(arc, end=back))
            inside = model.at(then.estimate, law).guards >= -model.tolerances(e.mode)
            return then if inside.all() else _fired_there(model, then, falling, law)
    if longest < e.time - e.since:
        return None
    return _fired_there(model, _taken_back(model, present, mode, arc), falling, law)


def _taken_back(
    model: Model, present: StatePrediction, mode: ModeModel, arc: Arc
) -> StatePrediction:
    """The estimate at the end of an arc that runs backwards from it."""
    e = present.estimate
    return present.onward(*along(model.quiet, mode, arc, e, e.time - arc.end))


def _lowest(model: Model, now: StatePrediction, falling: Indices, law: InputLaw) -> str:
    """The name of the guard with the lowest value of some."""
    point = model.at(now.estimate, law)
    return point.mode.guard_names[int(falling[point.guards[falling].argmin()])]


def _fired_there(
    model: Model, now: StatePrediction, falling: Indices, law: InputLaw
) -> StatePrediction | None:
    """The estimate with the lowest of these guards fired, and the mean moved to where it is 0."""
    guard = _lowest(model, now, falling, law)
    return _fired(model, now, guard, condition(model, now.estimate, guard, law).mean, law)


def _fired(
    model: Model, now: StatePrediction, guard: str, mean: Array, law: InputLaw
) -> StatePrediction | None:
    """The estimate after the event of a guard at `mean`; None if there is no mode after it."""
    try:
        return fired(model, now, (guard,), mean, law)
    except SimulationError:
        return None


def _again(
    model: Model, back: StatePrediction, time: float, law: InputLaw, events: int
) -> StatePrediction | None:
    """The prediction anew from an earlier time to the present, without noise counted before.

    None where the simulation cannot go on, or has many events: that is no event just missed. So is
    one that has no more `events` than there were.
    """
    few = replace(model.quiet, max_events=_FEW)
    found = predict(few, back.estimate, time, law, halve=False)
    if found.kept or len(back.events) + len(found.events) == events:
        return None
    return back.then(found)


def _cut_or_fire(
    model: Model, now: StatePrediction, row: int, g: float, gradient: Array, law: InputLaw
) -> StatePrediction:
    e = now.estimate
    s = float(np.sqrt(max(float(gradient @ e.covariance @ gradient), 0.0)))
    if s <= _HELD * abs(g):
        return fired(model, now, (model.system.outgoing(e.mode).guards.names[row],), e.mean, law)
    step, p = cut_off(e.covariance, gradient, g, s)
    x, p = corrected(model.system.mode(e.mode), e.mean, nearest_semidefinite(p), step)
    return now._replace(estimate=replace(e, mean=x, covariance=p))
