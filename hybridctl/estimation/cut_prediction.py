r"""The prediction that a sample without time gets: linearised steps, and two events at most.

With the field linearised at the mean, :math:`\dot z = A z + f`, the flow over a time h is

.. math:: z(h) = \int_0^h e^{A s} f\, ds, \qquad \Phi = e^{A h}, \qquad
          P(h) = \Phi P \Phi^T + h\, \Phi_{1/2} Q \Phi_{1/2}^T,

with :math:`\Phi_{1/2} = e^{A h / 2}` (midpoint rule). The first step ends where the first guard
falls through zero, by the parabola through its value and rate at the start and its value at the end
of the flow. The event of this guard alone follows, and from there a second step if there is time.
If that meets a guard too, the mean stops after the event of this guard if there is time for it,
else after the first event: before an event it would keep a velocity that the guard takes away at
once. How the
motion goes on is not known: the way h f that the field there makes in the rest of the time counts
as a standard deviation.

The covariance passes the event by the saltation matrix of this one guard. Where the rate of the
guard is small, the event time is no first-order function of the state, so its derivative is damped
by :math:`\dot g^2 / (\dot g^2 + \sigma^2)` with the standard deviation :math:`\sigma` of the rate.

This takes two evaluations of a mode with its derivatives, three of guards, and two resets with
their derivatives, whatever flow and guards do. So a deadline that is longer can be kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np
from scipy.linalg import expm

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError, SimulationError, SystemDefinitionError
from hybridctl.estimation.deadline import NO_DEADLINE, NO_TIME_LEFT
from hybridctl.estimation.estimate import (
    Estimate,
    nearest_semidefinite,
    project_onto_constraints,
)
from hybridctl.estimation.kalman_equations import (
    StatePrediction,
    extend_in_one_step,
    predict_in_one_step,
)
from hybridctl.estimation.noise import begin_impact, reset_covariance
from hybridctl.estimation.noisy_system import (
    NoisySystem,
    RecentPoints,
    compute_guard_rates,
    find_falling_guards,
)
from hybridctl.estimation.salted_jump import compute_reset_jacobian
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.propagation import linearize_field_at
from hybridctl.sensitivity.saltation import (
    evaluate_event_sides,
    find_guard_index,
    linearize_crossing,
)

_REHEARSED_TIME = 1e-3
"""Time of a prediction in s by which functions of modes are made. Its value does not matter."""


def cut_short(
    model: NoisySystem, now: StatePrediction, end: float, law: InputLaw
) -> StatePrediction:
    """Return the prediction ended without time: by linearised steps, with two events at most.

    `mode_frozen` is set, and a note says that no time is left.

    Args:
        model: The system and its noise.
        now: The prediction so far.
        end: Time of the end, s, after that of the prediction.
        law: Input law.
    """
    reached, guard = _step_to_guard(model, now, end, law)
    after_event = None if guard is None else _pass_guard(model, reached, guard, law)
    if after_event is not None:
        reached = _step_again(model, after_event, end, law)
    stopped = _stop_until(model, reached, end, law)
    note = f"the mode was kept: {NO_TIME_LEFT}"
    return stopped._replace(notes=(*stopped.notes, note), mode_frozen=True)


def _step_again(
    model: NoisySystem, after_event: StatePrediction, end: float, law: InputLaw
) -> StatePrediction:
    """Return the prediction after one more linearised step and its event, if there is time.

    It is the given one where there is no time for the step, and where the step meets a guard whose
    event cannot be executed in time or leads to a mode that would be left at once.

    Args:
        model: The system and its noise.
        after_event: The prediction after the event of the first step.
        end: Time of the end, s.
        law: Input law.
    """
    deadline = model.deadline
    if not after_event.estimate.time < end or not deadline.has_time_for("linear step"):
        return after_event
    reached, guard = _step_to_guard(model, after_event, end, law)
    if guard is None:
        return reached
    if not deadline.has_time_for("linear event"):
        return after_event
    after = _pass_guard(model, reached, guard, law)
    if after is None or find_falling_guards(model, after.estimate, law):
        return after_event
    return after


def rehearse(model: NoisySystem, e: Estimate, modes: Iterable[ModeKey], law: InputLaw) -> None:
    """Make what predictions in some modes, and events of their guards, make at their first use.

    Modes whose states have another size than the estimate are left out, and so is what cannot be
    predicted: only the functions matter, not what they return. The deadline of the system measures
    linearised steps and events.

    Args:
        model: The system and its noise.
        e: An estimate.
        modes: Keys of the modes.
        law: Input law.
    """
    patient = replace(model, deadline=NO_DEADLINE)
    for key in modes:
        mode = model.system.mode(key)
        if mode.space.nx != len(e.mean) or mode.space.ndx != len(e.covariance):
            continue
        start = StatePrediction(replace(e, mode=key), transition=np.eye(mode.space.ndx))
        soon = e.time + _REHEARSED_TIME
        with suppress(SimulationError):
            predict_in_one_step(patient, mode, start.estimate, soon, law)
        # Guards are met early, and events are taken back, by steps without noise.
        for extended in (patient, patient.without_process_noise):
            with suppress(SimulationError):
                extend_in_one_step(extended, start.estimate, soon, law)
        # The first time makes functions. The second takes as long as these pieces of work usually
        # do, so that the deadline knows that before the first event. No point is known to it.
        for measured in (patient, replace(model, points=RecentPoints())):
            with suppress(SimulationError):
                _step_to_guard(measured, start, soon, law)
            for guard in mode.guard_names:
                _pass_guard(measured, start, guard, law)


class _LinearFlow:
    """The flow of a mode linearised at an estimate, under the input there.

    Args:
        model: The system and its noise.
        e: The estimate.
        end: Time until when the flow is looked at, s.
        law: Input law, which is evaluated at the estimate.

    Attributes:
        guard: Name of the first guard that falls through zero before the end, of those that the
            mean is not outside of; None without any.
        stop: Time from the estimate until that guard is zero, or until the end, s.
    """

    def __init__(self, model: NoisySystem, e: Estimate, end: float, law: InputLaw) -> None:
        point, h = model.evaluate_at(e, law), end - e.time
        slopes, field = linearize_field_at(point), point.field
        self._estimate, self._mode = e, point.mode
        self._rate = np.zeros((len(field) + 1,) * 2)
        self._rate[:-1, :-1], self._rate[:-1, -1] = slopes.state, field
        self._noise = np.zeros_like(slopes.state)
        if model.process_noise is not None:
            self._noise = model.process_noise.matrix(point, slopes.input)
        values, rates = point.guards, compute_guard_rates(point)
        # On the constraints of the mode or not, the guards there differ to second order.
        after = self._mode.guards(end, self._move_mean(expm(self._rate * h)[:-1, -1]), point.u)
        bends = (after - values - h * rates) / h**2
        falls = np.where(
            values >= -model.guard_tolerances(e.mode),
            list(map(find_fall, values.tolist(), rates.tolist(), bends.tolist())),
            math.inf,
        )
        first = int(falls.argmin()) if falls.size else 0
        is_stopped = bool(falls.size and falls[first] < h)
        self.guard = self._mode.guard_names[first] if is_stopped else None
        self.stop = float(falls[first]) if is_stopped else h

    def _move_mean(self, step: Array) -> Array:
        """Return the mean (nx,) moved by a step (ndx,)."""
        space = self._mode.space
        return space.normalize(space.integrate(self._estimate.mean, step))

    def predict(self, h: float) -> tuple[Estimate, Array]:
        """Return the estimate after a time, s, past guards, and the transition matrix to it."""
        e = self._estimate
        # The last column of the exponential is the step of the mean: one call gives both.
        half, both = expm(self._rate * np.array([0.5 * h, h])[:, None, None])[:, :-1]
        half, whole = half[:, :-1], both[:, :-1]
        p = whole @ e.covariance @ whole.T + h * (half @ self._noise @ half.T)
        mean = project_onto_constraints(self._mode, self._move_mean(both[:, -1]))
        found = replace(e, time=e.time + h, mean=mean, covariance=nearest_semidefinite(p))
        return found, whole


def find_fall(value: float, rate: float, bend: float) -> float:
    """Return the first time, s, at which a guard g + r t + b t^2 falls through zero; inf for none.

    Args:
        value: Guard g now. With a falling rate one that is not positive counts as zero.
        rate: Its rate r, the unit of the guard per s.
        bend: Half of its second derivative b, the unit per s^2.
    """
    if value <= 0.0 and rate < 0.0:
        return 0.0
    square = rate * rate - 4.0 * bend * value
    if square < 0.0:
        return math.inf
    # The roots are q / b and g / q: neither is a difference of nearly equal numbers.
    q = -0.5 * (rate + math.copysign(math.sqrt(square), rate))
    roots = [top / bottom for top, bottom in ((q, bend), (value, q)) if bottom]
    return min([t for t in roots if t > 0.0 and rate + 2.0 * bend * t < 0.0], default=math.inf)


def _step_to_guard(
    model: NoisySystem, now: StatePrediction, end: float, law: InputLaw
) -> tuple[StatePrediction, str | None]:
    """Return the prediction where the first guard falls through zero, and the name of this guard.

    Without any it is the prediction at the end, and None.
    """
    with model.deadline.measure("linear step"):
        flow = _LinearFlow(model, now.estimate, end, law)
        e, matrix = flow.predict(flow.stop)
        found = now.continue_by(e if flow.guard else replace(e, time=end), matrix)
    return found, flow.guard


def _stop_until(
    model: NoisySystem, now: StatePrediction, end: float, law: InputLaw
) -> StatePrediction:
    """Return the prediction with its mean stopped until the end: it may make all the way h f."""
    e = now.estimate
    if not e.time < end:
        return now
    way = (end - e.time) * model.evaluate_at(e, law).field
    stopped = replace(e, time=end, covariance=e.covariance + np.outer(way, way))
    return now._replace(estimate=stopped)


def _pass_guard(
    model: NoisySystem, now: StatePrediction, guard: str, law: InputLaw
) -> StatePrediction | None:
    """Return the prediction after the event of one guard at the mean; None if there is none.

    Args:
        model: The system and its noise.
        now: The prediction at the guard.
        guard: Name of the guard.
        law: Input law.
    """
    with model.deadline.measure("linear event"):
        return _execute_event(model, now, guard, law)


def _execute_event(
    model: NoisySystem, now: StatePrediction, guard: str, law: InputLaw
) -> StatePrediction | None:
    """Return what `_pass_guard` returns, without measuring how long it takes."""
    e = now.estimate
    try:
        event = model.fire_guards(e.mode, (guard,), e.time, e.mean, law)
        matrix, shift = _linearize_event(model, event, e.covariance)
    except (SimulationError, SystemDefinitionError):  # there is no mode for the event
        return None
    p = matrix @ e.covariance @ matrix.T
    p += model.guard_noise.variance_of(guard) * np.outer(shift, shift)
    added = reset_covariance(model.system, model.reset_noise, event)
    if added is not None:
        p += added
    impacts = begin_impact(model.system, model.reset_noise, event, e.impacts)
    after = Estimate(event.mode_after, e.time, event.state_after, p, e.time, impacts)
    return now.continue_by(after, matrix)._replace(events=(*now.events, event))


def _linearize_event(model: NoisySystem, event: Event, p: Array) -> tuple[Array, Array]:
    """Return the matrix (ndx+, ndx) of an event, and its derivative by the offset of its guard.

    Args:
        model: The system and its noise.
        event: The event.
        p: Covariance (ndx, ndx) before it.

    Returns:
        The matrix by the strategy of the filter, and the derivative (ndx+,) of the state after the
        event, per unit of the guard. Where there is no saltation matrix, as of several guards and
        of a grazing one, the matrix is the Jacobian of the reset, and the derivative is zero.

    Raises:
        SystemDefinitionError: The system lacks a Jacobian.
    """
    system, guard = model.system, event.guards[0]
    if len(event.guards) > 1:
        matrix = compute_reset_jacobian(system, event)
        return matrix, np.zeros(len(matrix))
    try:
        before, after = evaluate_event_sides(system, replace(event, accuracy=None))
        jump = linearize_crossing(system, guard, before, after, report=event.report)
    except SystemDefinitionError:
        raise
    except (SimulationError, InputError):
        matrix = compute_reset_jacobian(system, event)
        return matrix, np.zeros(len(matrix))
    rate, i = before.guard_rate(guard), find_guard_index(before.mode, guard)
    row = before.point.guard_row(i).state @ linearize_field_at(before.point).state
    damping = rate**2 / (rate**2 + max(float(row @ p @ row), 0.0))
    matrix = jump.reset_jacobian
    if model.strategy == "saltation":
        matrix = matrix - damping * np.outer(jump.field_change, jump.time_state)
    elif model.strategy == "no_jump" and len(matrix) == len(p):
        matrix = np.eye(len(p))
    return matrix, damping / rate * jump.field_change
