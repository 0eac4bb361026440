r"""Prediction through events: the mean by exact simulation, the covariance by its first order.

The usual prediction is one compiled step without events, or a simulation whose arcs and events are
passed by `kalman_equations`. This module adds what happens where that is not possible:

- *The mean lies outside its mode.* Just after an event a correction may say that the event comes
  later than simulated. The mean then lies on the arc after the event, extended backwards in time to
  before its start: a guard is below zero, and rises. To first order that is right, and no error.
  The mean flows on without that guard until it is inside again.
- *The simulation cannot go on.* The interval is halved; in the part that fails the mode is frozen:
  the mean stops at the first guard, and the covariance gains the way past it. The guard's event
  follows at the end of that part, if there is a mode for it.
- *Events accumulate* (Zeno) in a system without a rest mode. Guards and rates are set to zero.
- *The deadline of the sample is exceeded.* Work ends where it is, at a step of the integrator, an
  arc or an event, and linearised steps lead to the end: see `cut_prediction`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from hybridctl.base.errors import EventLimitError, SimulationError, SystemDefinitionError, ZenoError
from hybridctl.estimation.cut_prediction import cut_short
from hybridctl.estimation.deadline import DeadlineError, Piece
from hybridctl.estimation.estimate import Estimate, nearest_semidefinite
from hybridctl.estimation.kalman_equations import (
    StatePrediction,
    extend_in_one_step,
    fire_guards,
    pass_event,
    predict_along_arc,
    predict_in_one_step,
)
from hybridctl.estimation.noisy_system import (
    NoisySystem,
    compute_guard_rates,
    find_falling_guards,
    find_input_guards,
)
from hybridctl.estimation.salted_jump import compute_rest_projection
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.tolerances import MAX_REST_RATE_RATIO
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.propagation import linearize_field_at

_MAX_SIMULATIONS = 20
"""Simulations of one prediction that are begun, in all parts of its interval together. A mean that
stays outside its mode would make them shorter and shorter. A choice."""
_MIN_RETRIED_FRACTION = 0.3
"""Length of a part of the interval, relative to the whole prediction, up to which it is not halved
where its simulation fails: the mode is frozen in it.

A choice: two halvings (1, 0.5, 0.25), so that the mode is frozen for a quarter of the interval."""
_ZERO_GUARD_TOLERANCES = 2.0
"""Value up to which a guard counts as zero, in tolerances: an event is found where its guard is
past one tolerance."""
_REENTRY_MARGIN = 1.1
"""Time without a guard, relative to that in which the guard becomes positive at its rate. A
choice."""


def predict(
    model: NoisySystem, estimate: Estimate, end: float, law: InputLaw, *, halve: bool = True
) -> StatePrediction:
    """Return the estimate at a later time, through as many events as there are until then.

    First one compiled step without events is tried, then simulations through events, on halves of
    the interval where they fail. Last, and at once where the deadline is exceeded, the mode is
    frozen. The covariance is made semidefinite, but for that of the one compiled step.

    Process noise is integrated along each arc. `notes` of the result say where the mode was frozen,
    where the flow could not go on, and where events that accumulate became a rest, see this module.
    `mode_frozen` is set in the first two cases. A rest alone does not set it, even where the flow
    past its guards, by which the covariance grows there, could not go on. An optional prediction
    (`NoisySystem.is_optional`) ends in these cases where it is, before `end`.

    Args:
        model: The system and its noise.
        estimate: The estimate.
        end: Time, s, not before that of the estimate.
        law: Input law.
        halve: Whether an interval on which the simulation fails is halved. Otherwise the mode is
            frozen from there to `end`.
    """
    mode = model.system.mode(estimate.mode)
    if estimate.time < end:
        found = predict_in_one_step(model, mode, estimate, end, law)
        if found is not None:
            return found
    now = StatePrediction(estimate, (), np.eye(mode.space.ndx))
    shortest = _MIN_RETRIED_FRACTION if halve else 1.0
    length = shortest * (end - estimate.time)
    now = _predict_by_simulation(model, now, end, law, length, count())
    e = now.estimate
    return now._replace(estimate=replace(e, covariance=nearest_semidefinite(e.covariance)))


def extend_past_guards(
    model: NoisySystem, now: StatePrediction, end: float, law: InputLaw
) -> StatePrediction:
    """Return the prediction continued in the same mode, without guards and events.

    Where the flow cannot go on, no error is raised: the mean is frozen, and the covariance gains
    way way^T, with the way that the field at its beginning makes until `end`, if that is finite.
    `notes` and `mode_frozen` say so.

    Args:
        model: The system and its noise.
        now: The prediction.
        end: Time, s. If it is not later than the prediction, that is returned unchanged.
        law: Input law.
    """
    e = now.estimate
    if not e.time < end:
        return now
    found = extend_in_one_step(model, e, end, law)
    if found is not None:
        return now.append(found)
    try:
        arc = model.flow_past_guards(e.mode, e.mean, e.time, end, law)
        reached = predict_along_arc(model, model.system.mode(e.mode), arc, e, end)
    except SimulationError as error:
        note = f"the state was held: {error}"
        way = (end - e.time) * model.system.mode(e.mode).field(e.time, e.mean, law(e.time, e.mean))
        p = e.covariance + np.outer(way, way) if np.isfinite(way).all() else e.covariance
        frozen = replace(e, time=end, covariance=p)
        return now._replace(estimate=frozen, notes=(*now.notes, note), mode_frozen=True)
    return now.continue_by(*reached)


def _give_up(now: StatePrediction) -> StatePrediction:
    """Return an optional prediction that cannot go on: its user drops it for `mode_frozen`."""
    return now._replace(mode_frozen=True)


def _predict_by_simulation(
    model: NoisySystem,
    now: StatePrediction,
    end: float,
    law: InputLaw,
    shortest: float,
    simulations: Iterator[int],
) -> StatePrediction:
    """Return the prediction by simulations, one after the other, halved where one fails.

    There is more than one where the mean is outside its mode, and where an event moves the mean off
    the simulation.

    Args:
        model: The system and its noise.
        now: The prediction so far.
        end: Time of the end, s.
        law: Input law.
        shortest: Length in s up to which an interval is not halved further.
        simulations: Counter of the simulations of the whole prediction. Advanced.
    """
    while now.estimate.time < end:
        if not model.deadline.has_time_for("simulation", "event", *model.closing_work):
            return _give_up(now) if model.is_optional else cut_short(model, now, end, law)
        try:
            now = _simulate_once(model, now, end, law, next(simulations))
        except DeadlineError:
            continue
        except SimulationError as error:
            if now.estimate.time + shortest < end:
                middle = 0.5 * (now.estimate.time + end)
                half = _predict_by_simulation(model, now, middle, law, shortest, simulations)
                if half.mode_frozen and model.is_optional:
                    return half
                return _predict_by_simulation(model, half, end, law, shortest, simulations)
            if model.is_optional:
                return _give_up(now)
            return _freeze_mode(model, now, end, law, str(error))
    return now


def _simulate_once(
    model: NoisySystem, now: StatePrediction, end: float, law: InputLaw, rounds: int
) -> StatePrediction:
    """Return the prediction along one simulation, without guards that the mean is outside of.

    Args:
        model: The system and its noise.
        now: The prediction so far.
        end: Time of the end, s. The simulation may end earlier.
        law: Input law.
        rounds: Number of simulations of the whole prediction before, with those that failed.

    Raises:
        DeadlineError: The deadline is exceeded.
        EventLimitError: There are too many events, of a mean inside its mode.
        ZenoError: Events accumulate, and the system is not at rest there.
        SimulationError: There were too many simulations, or this one cannot go on.
    """
    e = now.estimate
    if rounds >= _MAX_SIMULATIONS:
        raise SimulationError(f"the mean stays outside mode {e.mode!r}")
    outside, until = _find_violated_guards(model, e, end, law)
    system = model.without_guards(e.mode, outside) if outside else model.system
    # The guards are to be left out only until the mean is inside again, but this system lacks them
    # whenever it comes back to the mode. So at the second event the simulation is ended, by an
    # EventLimitError, and only its first arc and its first event are used.
    limited = replace(model, max_events=1) if outside else model
    deadline, passed = model.deadline, count(1)
    begun = deadline.clock()

    def is_last(event: Event) -> bool:
        """Return whether the event moves the mean, or no time is left for one event more."""
        if model.is_mean_moved_by(event):  # the arc after it would start off the mean
            return True
        k = next(passed)
        another = (deadline.clock() - begun) / k
        events: list[Piece] = ["event"] * (k + 1)
        return not deadline.has_time_for(*events, *model.closing_work, beside=another)

    try:
        with deadline.measure("simulation"):
            run = limited.simulate(
                system, e.mode, e.mean, (e.time, until), law,
                first_step=until - e.time, terminal=is_last, then=model.closing_work,
            )  # fmt: skip
    except EventLimitError as error:
        if not outside:
            raise
        run = error.trajectory  # the limit of one event, set above
    except ZenoError as error:
        if outside:  # a simulation that lacks guards of its mode gives no rest
            raise
        there = _follow_simulation(model, now, error.trajectory, only_first_event=False)
        # An event has moved the mean off the simulation, or the deadline is exceeded.
        if there.estimate.time < error.trajectory.end or model.late():
            return there
        rest = _rest_at_accumulation(model, there, end, law)
        if rest is None:
            raise
        return rest
    return _follow_simulation(model, now, run, only_first_event=bool(outside))


def _follow_simulation(
    model: NoisySystem, now: StatePrediction, run: HybridTrajectory, only_first_event: bool
) -> StatePrediction:
    """Return the prediction along a simulation: flow, event, flow, ...

    It ends after an event that moves the mean off the simulation (see `salted_jump`), and before
    the next event for which the deadline leaves no time.

    Args:
        model: The system and its noise.
        now: The prediction at the start of the simulation.
        run: The simulation.
        only_first_event: Whether it ends after the first event.
    """
    deadline = model.deadline
    for k, arc in enumerate(run.arcs):
        if not deadline.has_time_for("event", *model.closing_work):
            return now
        with deadline.measure("event"):
            mode = model.system.mode(arc.mode)
            now = now.continue_by(*predict_along_arc(model, mode, arc, now.estimate, arc.end))
            if k == len(run.events):  # the last arc ends without an event
                return now
            event = run.events[k]
            if np.array_equal(now.estimate.mean, event.state_before):
                # As one object, it is one point of the mode for the event and for all that follows.
                now = now._replace(estimate=replace(now.estimate, mean=event.state_before))
            before = now._replace(pre_event=(*now.pre_event, now._replace(pre_event=())))
            now = pass_event(model, before, event)
        moved = not np.array_equal(now.estimate.mean, event.state_after)
        if only_first_event or moved:
            return now
    return now


def _find_violated_guards(
    model: NoisySystem, e: Estimate, end: float, law: InputLaw
) -> tuple[tuple[str, ...], float]:
    """Return the guards that the mean is outside of, and until when it flows without them.

    The mean is outside of a guard below minus its tolerance.

    Args:
        model: The system and its noise.
        e: The estimate.
        end: Latest time, s.
        law: Input law.

    Returns:
        Names of the guards. Time in s at which all of them that rise are positive again, at their
        rates and with `_REENTRY_MARGIN`, at most `end`; `end` if none of them rises, and if the
        mean is outside of none.
    """
    point = model.evaluate_at(e, law)
    g = point.guards
    violated = g < -model.guard_tolerances(e.mode)
    if not violated.any():
        return (), end
    rates = compute_guard_rates(point)
    rising = violated & (rates > 0.0)
    if rising.any():
        back = float((-g[rising] / rates[rising]).max())
        end = min(end, e.time + _REENTRY_MARGIN * back + 1e-9)
    return tuple(point.mode.guard_names[i] for i in np.flatnonzero(violated)), end


def _rest_at_accumulation(
    model: NoisySystem, now: StatePrediction, end: float, law: InputLaw
) -> StatePrediction | None:
    """Return the prediction at rest where events accumulate, in a system without a rest mode.

    Guards count that are within `_ZERO_GUARD_TOLERANCES` of zero and do not depend on the input, as
    contact forces do. These guards and their rates stay zero.

    The mean stays until `end`. The covariance is that of the arc extended past its guards, plus
    way way^T with the way from the mean to the end of that arc, projected along what events of the
    guards move, so that guards and rates have no variance. The curvature of the guards is left out.

    Args:
        model: The system and its noise.
        now: The prediction at the accumulation point.
        end: Time of the end, s.
        law: Input law.

    Returns:
        The prediction. None if no guard counts, or if this is no rest: if the rate of a guard
        that counts exceeds `MAX_REST_RATE_RATIO` times the change of the rate that the flow makes
        within `zeno_horizon`.
    """
    e, point = now.estimate, model.evaluate_at(now.estimate, law)
    mode = point.mode
    near = np.abs(point.guards) <= _ZERO_GUARD_TOLERANCES * model.guard_tolerances(e.mode)
    closed = near & ~find_input_guards(point)
    rows, rates = point.guard_jacobian.state[closed], compute_guard_rates(point)[closed]
    rates_x = rows @ linearize_field_at(point).state  # without the curvature of the guards
    change = np.abs(rates_x @ point.field) * model.zeno_horizon
    if not closed.any() or (np.abs(rates) > MAX_REST_RATE_RATIO * change).any():
        return None
    free = extend_past_guards(model, now, end, law)
    names = tuple(name for name, is_at in zip(mode.guard_names, closed, strict=True) if is_at)
    projection = compute_rest_projection(model.system, e.mode, names, e.time, e.mean, point.u)
    way = mode.space.difference(e.mean, free.estimate.mean)
    p = projection @ (free.estimate.covariance + np.outer(way, way)) @ projection.T
    matrix = None if now.transition is None else projection @ now.transition
    notes = (*free.notes, "events accumulate: their guards and rates are set to zero")
    return now._replace(estimate=replace(e, time=end, covariance=p), transition=matrix, notes=notes)


def _freeze_mode(
    model: NoisySystem, now: StatePrediction, end: float, law: InputLaw, reason: str
) -> StatePrediction:
    """Return the prediction with its mode frozen, `mode_frozen` set, and a note of the reason.

    The mean stops at its first guard, and that guard's event follows at the end if there is a mode
    for it, see `_stop_at_first_guard`. The note says whether it does.

    Args:
        model: The system and its noise.
        now: The prediction so far.
        end: Time of the end, s.
        law: Input law.
        reason: Why the mode is frozen.
    """
    frozen = _stop_at_first_guard(model, now, end, law)
    fired = len(frozen.events) > len(now.events)
    kept = "the mode was kept until its event at the end" if fired else "the mode was kept"
    return frozen._replace(notes=(*frozen.notes, f"{kept}: {reason}"), mode_frozen=True)


def _stop_at_first_guard(
    model: NoisySystem, now: StatePrediction, end: float, law: InputLaw
) -> StatePrediction:
    """Return the prediction continued in the same mode, with the mean stopped at its first guard.

    How the motion goes on from there is not known: it may be all the way that the flow takes past
    the guard. The covariance is that of the flow past the guards, plus way way^T: the way counts as
    a standard deviation. Then the guard's event follows, if it can be executed and leads to a mode
    in which no guard falls below zero at once. Guards that the mean is outside of at the start
    neither stop it nor have an event.

    Args:
        model: The system and its noise.
        now: The prediction so far.
        end: Time of the end, s.
        law: Input law.
    """
    e = now.estimate
    free = extend_past_guards(model, now, end, law)
    outside, _ = _find_violated_guards(model, e, end, law)
    try:
        x = model.flow_to_first_guard(e.mode, e.mean, e.time, end, law, outside)
    except SimulationError:  # the flow to the guard fails: the mean is frozen from the start
        x = e.mean
    way = model.system.mode(e.mode).space.difference(x, free.estimate.mean)
    p = free.estimate.covariance + np.outer(way, way)
    stopped = free._replace(estimate=replace(free.estimate, mean=x, covariance=p))
    falling = find_falling_guards(model, stopped.estimate, law)
    return _fire_guards(model, stopped, [name for name in falling if name not in outside], law)


def _fire_guards(
    model: NoisySystem, stopped: StatePrediction, falling: Sequence[str], law: InputLaw
) -> StatePrediction:
    """Return a prediction whose mean has stopped at some guards, after their event.

    It is the given one without any guard, if the event cannot be executed, and if the mode after it
    would be left at once.

    Args:
        model: The system and its noise.
        stopped: The prediction.
        falling: The guards.
        law: Input law.
    """
    if not falling:
        return stopped
    try:
        after = fire_guards(model, stopped, falling, stopped.estimate.mean, law)
    except (SimulationError, SystemDefinitionError):  # there is no mode for the event
        return stopped
    # A mode that would be left at once is no better than the one that was kept.
    return stopped if find_falling_guards(model, after.estimate, law) else after
