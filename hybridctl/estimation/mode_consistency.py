r"""An estimate that a correction has put outside its mode is brought back into a mode.

A value may show that an event has happened, or has not. Then the corrected mean lies outside its
mode, where a guard g is negative. What follows is, in this order:

- *Overdue event*: g falls, so its event should have happened already. The mean is taken back in
  time to g = 0, and from there through the event to the present. The covariance goes along, so that
  it passes the event by the saltation matrix, and no process noise is added twice. If g = 0 lies
  before the last event, both happened in the other order, to first order at the same time: the
  guard fires just after that event, with the mean moved to g = 0. Guards that depend on the input,
  such as forces, come last and fire where the mean is. If all that fails, takes more than eight
  events, or the deadline is exceeded, what follows below is done instead.
- *Event still to come*: g rises, and will be positive within `rewind` s. Just after an event, that
  is where states lie whose own event is late. The estimate stays, and `predict` lets it flow in.
- *Impossible side*: the distribution is truncated at g = 0, as a normal distribution in the
  direction of g.
- *Constrained guard*: the covariance does not let g change. The event fires where the mean is, or
  at the next value if the deadline is exceeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.deadline import NO_TIME_LEFT
from hybridctl.estimation.estimate import (
    Estimate,
    move_mean,
    nearest_semidefinite,
    truncate_at_guard,
)
from hybridctl.estimation.kalman_equations import (
    StatePrediction,
    extend_in_one_step,
    fire_guards,
    pass_event,
    predict_along_arc,
)
from hybridctl.estimation.noisy_system import NoisySystem, compute_guard_rates, find_input_guards
from hybridctl.estimation.prediction import predict
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.model import ModeModel, Point, StepRequest

_MAX_ROUNDS = 4
"""Guards that are treated one after the other, and steps of Newton's iteration to g = 0."""
_MAX_OVERDUE_EVENTS = 8
"""Events within the time by which one is overdue. A choice; more are no single missed event."""
_MAX_SECANT_STEPS = 8
"""Steps of the secant method to g = 0. A cube that falls takes three or four. A choice."""
_LEAST_RATE_LEFT = 0.5
"""Rate of a guard on the way to its zero, relative to that at the start, below which it may only be
grazed and is simulated. A choice: a guard that falls freely gets faster."""
_NO_TIME = 1e-9
"""Time in s after an event that counts as no time."""
_OVERDUE_CUT = f"an overdue event was not followed: {NO_TIME_LEFT}"
"""Note of an estimate whose overdue event the deadline has cut."""
_GUARD_CUT = f"a guard without variance was not fired: {NO_TIME_LEFT}"
"""Note of an estimate outside its mode, whose guard the deadline has kept from firing."""
_TRUNCATION_CUT = f"a guard was not truncated at: {NO_TIME_LEFT}"
"""Note of an estimate outside its mode at a further guard, which the deadline has left there."""
_MIN_RELATIVE_DEVIATION = 1e-10
"""Least standard deviation of a guard, relative to its value, that can move it to zero."""


def reconcile(
    model: NoisySystem, estimate: Estimate, law: InputLaw, pending: Sequence[str] = ()
) -> StatePrediction:
    """Return the estimate at the same time, inside a mode or on the way into it.

    Args:
        model: The system and its noise.
        estimate: The estimate, whose mean may lie outside its mode.
        law: Input law.
        pending: Guards of its mode that have not fired in this hypothesis, whatever their values.

    Returns:
        The estimate with the events that were passed. `transition` is None if nothing was done: the
        mean is inside, or outside of pending guards alone.
    """
    now, deadline = StatePrediction(estimate), model.deadline
    if not model.system.mode(estimate.mode).guard_names:
        return now
    for k in range(_MAX_ROUNDS):
        e, point = now.estimate, model.evaluate_at(now.estimate, law)
        g = point.guards
        if g.min(initial=0.0) >= 0.0:
            return now
        (violated,) = (g < -model.guard_tolerances(e.mode)).nonzero()
        if not violated.size:
            return now
        if pending and e.mode == estimate.mode:
            names = point.mode.guard_names
            violated = np.array(
                [i for i in violated.tolist() if names[i] not in pending], dtype=np.intp
            )
        if not violated.size:
            return now
        if k and model.late():
            # Each round evaluates the mode with its derivatives. A prediction may start outside.
            return now._replace(notes=(*now.notes, _TRUNCATION_CUT))
        if k == 0:
            now = now._replace(transition=np.eye(len(e.covariance)))
        gradients, rates = point.guard_jacobian.state, compute_guard_rates(point)
        falling = violated[rates[violated] < 0.0]
        if falling.size and not deadline.has_time_for("overdue event"):
            if _OVERDUE_CUT not in now.notes:
                now = now._replace(notes=(*now.notes, _OVERDUE_CUT))
        elif falling.size:
            with deadline.measure("overdue event"):
                caught_up = _pass_overdue_event(model, now, point, falling, law)
            if caught_up is not None:
                now = caught_up
                continue
        impossible = violated[
            (rates[violated] <= 0.0) | (-g[violated] > model.rewind * rates[violated])
        ]
        if not impossible.size:
            return now
        worst = int(impossible[g[impossible].argmin()])
        found = _truncate_or_fire(model, now, worst, float(g[worst]), gradients[worst], law)
        if found is None:
            return now._replace(notes=(*now.notes, _GUARD_CUT))
        now = found
    e = now.estimate
    note = f"the mean stays outside mode {e.mode!r} at t = {e.time:.9g} s"
    return now._replace(notes=(*now.notes, note))


def pass_guard_early(
    model: NoisySystem, now: StatePrediction, guard: str, law: InputLaw
) -> StatePrediction | None:
    """Return the estimate at the same time after the event of a guard that is still ahead.

    It goes on to where the guard falls through zero, past all other guards, through the event, and
    back in time along the mode after it. To first order that is the motion with the event now. Its
    way to the event is one compiled step where that reaches it, and a simulation elsewhere.

    Args:
        model: The system and its noise.
        now: The prediction.
        guard: Name of the guard.
        law: Input law.

    Returns:
        The prediction. None if the event is more than `rewind` s ahead, or cannot be simulated.
    """
    e = now.estimate
    noiseless = model.without_process_noise
    reached = _reach_guard_in_one_step(noiseless, e, guard, law)
    if reached is not None:
        there = now.append(reached)
        try:
            after = fire_guards(noiseless, there, (guard,), reached.estimate.mean, law)
            return _flow_back(noiseless, after, e.time, law)
        except SimulationError:
            return None
    others = [name for name in model.system.outgoing(e.mode).guards.names if name != guard]
    try:
        system, span = model.without_guards(e.mode, others), (e.time, e.time + model.rewind)
        run = model.simulate(system, e.mode, e.mean, span, law, terminal=lambda event: True)
        if not run.events:
            return None
        arc, event = run.arcs[0], run.events[0]
        mode = model.system.mode(e.mode)
        there = now.continue_by(*predict_along_arc(noiseless, mode, arc, e, event.time))
        return _flow_back(noiseless, pass_event(noiseless, there, event), e.time, law)
    except SimulationError:
        return None


def _reach_guard_in_one_step(
    noiseless: NoisySystem, e: Estimate, guard: str, law: InputLaw
) -> StatePrediction | None:
    """Return the prediction at the time at which a guard falls to zero, by compiled steps.

    The time is found by the secant method, whose first step is along the rate of the guard.

    Args:
        noiseless: The system without process noise.
        e: The estimate, before the guard.
        guard: Name of the guard.
        law: Input law.

    Returns:
        The prediction past all guards. None if that time is not found by steps within `rewind`, as
        in a mode without compiled steps: it is then simulated.
    """
    mode = noiseless.system.mode(e.mode)
    steps = mode.compiled_steps
    if steps is None or not isinstance(law, HeldInput) or guard not in mode.guard_names:
        return None
    i, point = mode.guard_names.index(guard), noiseless.evaluate_at(e, law)
    tolerance = float(noiseless.guard_tolerances(e.mode)[i])
    h, value, rate = 0.0, float(point.guards[i]), float(compute_guard_rates(point)[i])
    first_rate = rate
    for _ in range(_MAX_SECANT_STEPS):
        if not rate < 0.0:
            return None
        before, last = h, value
        h -= value / rate
        if not 0.0 < h <= noiseless.rewind:
            return None
        ahead = StepRequest(e.time, e.mean, h, noiseless.rtol, noiseless.atol)
        taken = steps.step(ahead, law)
        if taken is None or not taken.error < 1.0:
            return None
        value = float(taken.guards[-1, i])
        if abs(value) <= tolerance:
            return extend_in_one_step(noiseless, e, e.time + h, law)
        rate = (value - last) / (h - before)
        if rate > _LEAST_RATE_LEFT * first_rate:
            # Back in time a guard that has just fired seems to fall again, to a double root, which
            # secants only come near to: it would fire there again and again.
            return None
    return None


def _flow_back(
    noiseless: NoisySystem, after: StatePrediction, time: float, law: InputLaw
) -> StatePrediction:
    """Return a prediction taken back to an earlier time, in its mode."""
    e = after.estimate
    found = extend_in_one_step(noiseless, e, time, law)
    if found is not None:
        return after.append(found)
    mode, arc = noiseless.flow_backwards(e.mode, e.mean, e.time, e.time - time, law)
    return after.continue_by(*predict_along_arc(noiseless, mode, arc, e, time))


def condition_on_guard(
    model: NoisySystem, estimate: Estimate, guard: str, law: InputLaw
) -> Estimate:
    """Return the estimate given that a guard of its mode is zero.

    Args:
        model: The system and its noise.
        estimate: The estimate.
        guard: Name of the guard.
        law: Input law.
    """
    mode = model.system.mode(estimate.mode)
    row = mode.guard_names.index(guard)
    x, p, t = estimate.mean, estimate.covariance, estimate.time
    allowed = float(model.guard_tolerances(estimate.mode)[row])
    for _ in range(_MAX_ROUNDS):
        point = mode.calc(t, x, law(t, x))
        g, gradient = float(point.guards[row]), point.guard_jacobian.state[row]
        spread = p @ gradient
        s = float(gradient @ spread)
        if s <= _MIN_RELATIVE_DEVIATION**2 * g**2 or abs(g) <= allowed:
            break
        x, p = move_mean(mode, x, p, -g / s * spread)
    spread = p @ gradient
    s = float(gradient @ spread)
    if s > 0.0:
        p = nearest_semidefinite(p - np.outer(spread, spread) / s)
    return replace(estimate, mean=x, covariance=p)


def find_rising_guards(point: Point, guards: Sequence[str]) -> list[int]:
    """Return the indices of those of some guards that rise and do not depend on the input.

    Of the guards of the last event, these rise from zero: a state at which one of them is negative
    has its event still to come.

    Args:
        point: A mode at a state and an input.
        guards: Names of guards. Those that the mode does not have are left out.
    """
    names = point.mode.guard_names
    rows = [names.index(name) for name in guards if name in names]
    if not rows:
        return []
    rates, of_input = compute_guard_rates(point), find_input_guards(point)
    return [k for k in rows if rates[k] > 0.0 and not of_input[k]]


def _pass_overdue_event(
    model: NoisySystem, now: StatePrediction, point: Point, falling: Indices, law: InputLaw
) -> StatePrediction | None:
    """Return the estimate at the same time after the overdue event of one of some guards.

    Args:
        model: The system and its noise.
        now: The prediction, with a mean outside its mode.
        point: The mode at its mean.
        falling: Indices of the guards that are negative and fall.
        law: Input law.

    Returns:
        The prediction, None if there is no such event.
    """
    e = now.estimate
    # Forces may have jumped with the input, or with the correction: they have no time of their own.
    positional = falling[~find_input_guards(point)[falling]]
    if positional.size:
        rate = float(compute_guard_rates(point)[positional].max())
        try:
            back = _rewind_to_guards(model, now, positional, rate, law)
        except SimulationError:
            return None
        return None if back is None else _replay(model, back, e.time, law, len(now.events))
    if falling.size:
        return _fire_or_none(model, now, _lowest_guard(model, now, falling, law), e.mean, law)
    return None


def _rewind_to_guards(
    model: NoisySystem, present: StatePrediction, falling: Indices, rate: float, law: InputLaw
) -> StatePrediction | None:
    """Return the estimate back in time where all of some guards are zero or positive.

    If that is before the last event, it is the estimate just after that event, with the lowest
    guard fired.

    Args:
        model: The system and its noise.
        present: The prediction at the present.
        falling: Indices of the guards.
        rate: The slowest rate of these guards, which gives the first guess of the time.
        law: Input law.

    Returns:
        The prediction, None if that is longer ago than `rewind`.

    Raises:
        SimulationError: The flow cannot be taken back.
    """
    e = present.estimate
    own = model.system.mode(e.mode)

    def lowest_value(s: float, arc: Arc) -> float:
        t, x = e.time - s, arc(float(s))
        return float(own.guards(t, x, law(t, x))[falling].min())

    longest = min(model.rewind, e.time - e.since)
    if longest < _NO_TIME:
        return _fire_at_zero(model, present, falling, law)
    lowest = model.evaluate_at(e, law).guards[falling].min()
    first_guess = 2.0 * float(lowest) / min(rate, -1e-300)
    for length in sorted({min(first_guess, longest), longest}):
        mode, arc = model.flow_backwards(e.mode, e.mean, e.time, length, law)
        if lowest_value(length, arc) > 0.0:
            back = float(brentq(lowest_value, 0.0, length, args=(arc,), xtol=1e-15))
            then = _go_back_along(model, present, mode, replace(arc, end=back))
            values = model.evaluate_at(then.estimate, law).guards
            if (values >= -model.guard_tolerances(e.mode)).all():
                return then
            return _fire_at_zero(model, then, falling, law)
    if longest < e.time - e.since:
        return None
    return _fire_at_zero(model, _go_back_along(model, present, mode, arc), falling, law)


def _go_back_along(
    model: NoisySystem, present: StatePrediction, mode: ModeModel, arc: Arc
) -> StatePrediction:
    """Return the estimate at the end of an arc that runs backwards from it."""
    e, noiseless = present.estimate, model.without_process_noise
    return present.continue_by(*predict_along_arc(noiseless, mode, arc, e, e.time - arc.end))


def _lowest_guard(model: NoisySystem, now: StatePrediction, falling: Indices, law: InputLaw) -> str:
    """Return the name of the guard with the lowest value of some."""
    point = model.evaluate_at(now.estimate, law)
    return point.mode.guard_names[int(falling[point.guards[falling].argmin()])]


def _fire_at_zero(
    model: NoisySystem, now: StatePrediction, falling: Indices, law: InputLaw
) -> StatePrediction | None:
    """Return the estimate with the lowest of some guards fired, after the mean was moved to it."""
    guard = _lowest_guard(model, now, falling, law)
    mean = condition_on_guard(model, now.estimate, guard, law).mean
    return _fire_or_none(model, now, guard, mean, law)


def _fire_or_none(
    model: NoisySystem, now: StatePrediction, guard: str, mean: Array, law: InputLaw
) -> StatePrediction | None:
    """Return the estimate after the event of a guard at a mean; None if there is no mode after."""
    try:
        return fire_guards(model, now, (guard,), mean, law)
    except SimulationError:
        return None


def _replay(
    model: NoisySystem, back: StatePrediction, time: float, law: InputLaw, events: int
) -> StatePrediction | None:
    """Return the prediction again from an earlier time to the present, without process noise.

    Args:
        model: The system and its noise.
        back: The prediction at the earlier time.
        time: The present, s.
        law: Input law.
        events: Number of events of the prediction before it was taken back.

    Returns:
        The prediction. None if the simulation cannot go on or has many events, and if it has no
        new event: then there is no single event that was missed.
    """
    noiseless, most = model.without_process_noise, _MAX_OVERDUE_EVENTS
    few = replace(noiseless, max_events=most, is_optional=True)
    found = predict(few, back.estimate, time, law, halve=False)
    if found.mode_frozen or len(back.events) + len(found.events) == events:
        return None
    return back.append(found)


def _truncate_or_fire(
    model: NoisySystem, now: StatePrediction, row: int, g: float, gradient: Array, law: InputLaw
) -> StatePrediction | None:
    """Return the estimate truncated at a guard; with the guard fired if it has no variance.

    It is None if the guard has no variance and the deadline is exceeded.

    Args:
        model: The system and its noise.
        now: The prediction.
        row: Index of the guard.
        g: Its value at the mean, which is negative.
        gradient: Its gradient (ndx,) there.
        law: Input law.
    """
    e = now.estimate
    s = float(np.sqrt(max(float(gradient @ e.covariance @ gradient), 0.0)))
    if s <= _MIN_RELATIVE_DEVIATION * abs(g):
        if model.late():
            return None
        name = model.system.outgoing(e.mode).guards.names[row]
        return fire_guards(model, now, (name,), e.mean, law)
    step, p = truncate_at_guard(e.covariance, gradient, g, s)
    x, p = move_mean(model.system.mode(e.mode), e.mean, nearest_semidefinite(p), step)
    return now._replace(estimate=replace(e, mean=x, covariance=p))
