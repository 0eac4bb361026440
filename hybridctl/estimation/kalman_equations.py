r"""The equations of the salted Kalman filter: flow, event and correction of one estimate.

Flow, along an arc of one mode, with the spectral density Q of the process noise ([Salt] III-D):

.. math:: \dot x = f(x, u), \qquad \dot P = A P + P A^T + Q, \qquad A = D_x f,

so that :math:`P(t) = \Phi P \Phi^T + \int \Phi Q \Phi^T`, with :math:`\Phi` the transition matrix.
Where the noise is constant and the mode takes compiled steps, these integrate it beside the state
(`ModeModel.compiled_steps`). Elsewhere it goes by the steps of `sensitivity.collocation`: for noise
that is a function of the state, for modes without such steps, and for the stiff friction of sliding
contacts.

Event, with the saltation matrix :math:`\Xi`, the noise :math:`P_R` of the reset, and a guard whose
offset has the variance :math:`\sigma_g^2` (see `salted_jump`):

.. math:: x^+ = R(x), \qquad
          P^+ = \Xi P \Xi^T + P_R + (f^+ - \dot R)(f^+ - \dot R)^T \sigma_g^2 / \dot g^2.

Correction by a value with residual r, Jacobian H and covariance R, in Joseph's form:

.. math:: S = H P H^T + R, \quad K = P H^T S^{-1}, \quad x^+ = x \boxplus K r, \quad
          P^+ = (I - K H) P (I - K H)^T + K R K^T,

with the covariance taken along to the tangent space at the new mean. Products are by `dot`, which
takes a third of the time of `@` where matrices have a few rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.special import gammaincinv

from hybridctl.base.checks import Array, check_array, convert_to_floats, is_finite, quote
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.estimation.estimate import (
    Estimate,
    keep_open_impacts,
    move_mean,
    nearest_semidefinite,
    project_onto_constraints,
    sum_open_changes,
)
from hybridctl.estimation.measurement import (
    AnyMeasurement,
    ImplicitMeasurement,
    LinearizedResidual,
    Measurement,
)
from hybridctl.estimation.noise import begin_impact
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.salted_jump import jump_moments
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.mode import ModeKey, ModeModel
from hybridctl.hybrid.model import CompiledStep, StepRequest
from hybridctl.hybrid.series import TO_SERIES, basis
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.collocation import (
    SHORT_FORMULA,
    Propagation,
    choose_step_length,
    integrate_noise,
    propagate_short_step,
)
from hybridctl.sensitivity.propagation import (
    choose_first_leap,
    linearize_field,
    linearize_field_at,
    propagate_by_steps,
)

_POINT_FRACTIONS: list[float] = SHORT_FORMULA.points.tolist()
"""Collocation points of a step, as fractions of its length."""
_NODES_TO_POINTS: Array = basis(2.0 * SHORT_FORMULA.points - 1.0) @ TO_SERIES
"""Matrix that takes states at the nodes of `hybrid.series` to those at the collocation points."""
_SHORTEST_ARC = 1e-300
"""Length in s of an arc up to which it counts as no time: 1 / length is finite for longer ones."""
_FIRST_STEP_LIMIT = 50.0
"""Error of one short collocation step, in tolerances, up to which the integration that replaces it
begins with one step over the same length: its formula has more points. Beyond, its first step is
shorter (`choose_step_length`). A choice."""
_LOG_TWO_PI = math.log(2.0 * math.pi)
_ALL_COMPONENTS = slice(None)


@lru_cache
def identity_map(n: int) -> Array:
    """Return the identity (n, n), read-only and cached: the map of no time.

    Users recognise it by `is`, to spare a product with it. The cache holds 128 sizes. For more of
    them it returns an equal matrix that is not recognised, which costs that product only.

    Args:
        n: Dimension of the tangent space.
    """
    matrix = np.eye(n)
    matrix.setflags(write=False)
    return matrix


class StatePrediction(NamedTuple):
    """An estimate at a later time, and what happened on the way.

    Attributes:
        estimate: The estimate.
        events: The events on the way, in order of time.
        transition: First-order map (ndx+, ndx) from the earlier perturbation to this one. None
            where there is none: an event was piecewise linear, or a contact signal has measured a
            guard on the way.
        notes: What was replaced by something less exact.
        mode_frozen: Whether the mean was stopped on the way, in a mode that it may have left,
            because simulation or flow could not go on there or no time was left.
        pre_event: The prediction just before each of the events of a simulation, with an empty
            `pre_event`. Events that are fired without a simulation have none, so this may be
            shorter than `events`: see `pair_events`.
    """

    estimate: Estimate
    events: tuple[Event, ...] = ()
    transition: Array | None = None
    notes: tuple[str, ...] = ()
    mode_frozen: bool = False
    pre_event: tuple[StatePrediction, ...] = ()

    def pair_events(self) -> list[tuple[StatePrediction, Event]]:
        """Return the events of simulations, each behind the prediction just before it."""
        # A prediction contains all events before its own.
        return [(before, self.events[len(before.events)]) for before in self.pre_event]

    def continue_by(self, estimate: Estimate, matrix: Array | None) -> StatePrediction:
        """Return the prediction with another estimate at its end, and the map to that.

        Args:
            estimate: The estimate.
            matrix: First-order map (ndx+, ndx) from the end of this prediction to it, or None.
        """
        whole = None
        if matrix is not None and self.transition is not None:
            # The usual prediction starts here: the product with the identity is spared.
            start = self.transition is identity_map(len(self.transition))
            whole = matrix if start else matrix @ self.transition
        return self._replace(estimate=estimate, transition=whole)

    def append(self, later: StatePrediction) -> StatePrediction:
        """Return this prediction and a later one, which starts at its end, as one prediction.

        Events, notes and predictions before events are those of both in order. The mode counts as
        frozen if it was in either. Maps are from the start of this prediction.

        Args:
            later: The later prediction.
        """
        before = (*self.pre_event, *map(self._append_without_pre_event, later.pre_event))
        return self._append_without_pre_event(later)._replace(pre_event=before)

    def _append_without_pre_event(self, later: StatePrediction) -> StatePrediction:
        """Return this prediction and a later one, without the predictions before their events."""
        return StatePrediction(
            later.estimate,
            (*self.events, *later.events),
            self.continue_by(later.estimate, later.transition).transition,
            (*self.notes, *later.notes),
            self.mode_frozen or later.mode_frozen,
        )


# Flow


def predict_in_one_step(
    model: NoisySystem, mode: ModeModel, e: Estimate, end: float, law: InputLaw
) -> StatePrediction | None:
    """Return the prediction by one compiled step without events: x' = F(x), P' = Phi P Phi^T + Q.

    Args:
        model: The system and its noise.
        mode: Mode of the estimate.
        e: The estimate.
        end: Time of the prediction, s, later than that of the estimate.
        law: Input law.

    Returns:
        The prediction. None if the input is not held, if the mode has no compiled step, if the step
        is not accurate, if the covariance needs several collocation steps, or if a guard is not
        certain to stay positive. Then `prediction.predict` simulates.
    """
    steps = mode.compiled_steps
    if steps is None or not isinstance(law, HeldInput):
        return None
    u = law.value
    ahead = StepRequest(e.time, e.mean, end - e.time, model.rtol, model.atol)
    noise = model.diffusion(mode, ahead, u)
    if noise is None:
        # The compiled step does not integrate noise here (see `NoisySystem.diffusion`): the mean
        # alone takes it, and the covariance is collocated.
        # Past the time at which a sliding contact stops, the bound of its guard is below zero.
        taken = steps.step(ahead, law)
        if taken is None or not taken.error < 1.0 or not (taken.bounds > 0.0).all():
            return None
        return _end_compiled_step(model, mode, e, end, taken, u)
    step = steps.transition(ahead, u, noise)
    if step is None or not step.error < 1.0:
        return None
    assert step.noise is not None
    assert step.bounds is not None
    if step.bounds.size and not step.bounds.min() > 0.0:
        return None
    x = project_onto_constraints(mode, mode.space.normalize(step.state))
    p = step.matrix.dot(e.covariance).dot(step.matrix.T) + step.noise
    impacts = keep_open_impacts(e.impacts, end)
    after = Estimate(e.mode, end, x, 0.5 * (p + p.T), e.since, impacts)
    return StatePrediction(after, (), step.matrix)


def extend_in_one_step(
    model: NoisySystem, e: Estimate, end: float, law: InputLaw
) -> StatePrediction | None:
    """Return the estimate at another time of its mode, past its guards, by one compiled step.

    Args:
        model: The system and its noise.
        e: The estimate.
        end: Time, s; before or after that of the estimate.
        law: Input law.

    Returns:
        The prediction. None if there is nothing to extend (`end` is the time of the estimate), if
        the input is not held, if the mode has no compiled step, if the step is longer than the mode
        allows, or if mean or covariance are not accurate after one step. Unless there is nothing to
        extend, the flow past the guards is then integrated along an arc, as in
        `prediction.extend_past_guards`.
    """
    mode = model.system.mode(e.mode)
    steps = mode.compiled_steps
    if steps is None or not isinstance(law, HeldInput) or end == e.time:
        return None
    u = law.value
    ahead = StepRequest(e.time, e.mean, end - e.time, model.rtol, model.atol)
    if not model.is_within_step_limit(mode, ahead, u):
        return None
    noise = None if model.process_noise is None else model.diffusion(mode, ahead, u)
    if model.process_noise is not None and noise is None:
        taken = steps.step(ahead, law)
        if taken is None or not taken.error < 1.0:
            return None
        return _end_compiled_step(model, mode, e, end, taken, u)
    # Without noise, or with noise that the step integrates, its own derivative takes a third of the
    # time of a collocation step.
    step = steps.transition(ahead, u, noise)
    if step is None or not step.error < 1.0:
        return None
    x = project_onto_constraints(mode, mode.space.normalize(step.state))
    p = step.matrix.dot(e.covariance).dot(step.matrix.T)
    if step.noise is not None:
        p += step.noise
    impacts = keep_open_impacts(e.impacts, end)
    after = Estimate(e.mode, end, x, nearest_semidefinite(p), e.since, impacts)
    return StatePrediction(after, (), step.matrix)


def _end_compiled_step(
    model: NoisySystem, mode: ModeModel, e: Estimate, end: float, taken: CompiledStep, u: Array
) -> StatePrediction | None:
    """Return the prediction at the end of a compiled step of the mean, with its covariance.

    The step has integrated the mean only. The covariance follows by one collocation step along it.

    Args:
        model: The system and its noise.
        mode: Mode of the estimate.
        e: The estimate at the start of the step.
        end: Time of the end, s.
        taken: The step.
        u: The held input (nu,).

    Returns:
        The prediction, with the mean on the constraints of the mode. None if one collocation step
        is not accurate: the covariance needs several. Then `predict_in_one_step` returns None as
        well, and the prediction is simulated; after `extend_in_one_step` the flow past the guards
        is integrated along an arc.
    """
    p = e.covariance
    flow = propagate_over_step(model, mode, e.time, end - e.time, taken.states, u, p)
    if flow is None:
        return None
    x = project_onto_constraints(mode, mode.space.normalize(taken.states[-1]))
    impacts = keep_open_impacts(e.impacts, end)
    p = nearest_semidefinite(flow.covariance(p))
    after = Estimate(e.mode, end, x, p, e.since, impacts)
    return StatePrediction(after, (), flow.state)


def predict_along_arc(
    model: NoisySystem, mode: ModeModel, arc: Arc, e: Estimate, time: float
) -> tuple[Estimate, Array]:
    """Return the estimate at the end of an arc, and the transition matrix (ndx, ndx).

    Args:
        model: The system and its noise.
        mode: Mode of the arc.
        arc: The arc, which starts at the estimate; in reversed time it is counted backwards.
        e: The estimate.
        time: Time at the end of the arc, s.
    """
    flow = propagate_along_arc(model, mode, arc, e.covariance)
    p = flow.covariance(e.covariance)
    return replace(e, time=time, mean=arc(arc.end), covariance=p), flow.state


def propagate_along_arc(model: NoisySystem, mode: ModeModel, arc: Arc, p: Array) -> Propagation:
    """Return the transition matrix along an arc, and the noise that is integrated on it.

    Args:
        model: The system and its noise.
        mode: Mode of the arc.
        arc: The arc.
        p: Covariance (ndx, ndx) at its start, relative to which rounding is judged.

    Raises:
        SystemDefinitionError: The field has no Jacobian.
        InputError: The noise does not fit the mode.
        IntegrationError: A changes faster than steps resolve.
    """
    total = Propagation.identity(arc.space.ndx)
    if arc.end - arc.start <= _SHORTEST_ARC:
        return total
    noise = partial(model.diffusion, mode)
    begin, total = propagate_by_steps(mode, arc, noise, rtol=model.rtol, atol=model.atol)
    for piece in arc.pieces:
        if piece.end > begin:
            left = replace(piece, start=max(begin, piece.start))
            total = _collocate_piece(model, mode, left, total, p)
    return total


def propagate_over_step(
    model: NoisySystem, mode: ModeModel, t: float, h: float, states: Array, u: Array, p: Array
) -> Propagation | None:
    """Return the transition matrix and the integrated noise of a compiled step, by collocation.

    Args:
        model: The system and its noise.
        mode: The mode.
        t: Time of the start, s.
        h: Length of the step, s.
        states: States (8, nx) at the nodes of `hybrid.series`.
        u: The held input (nu,).
        p: Covariance (ndx, ndx) at the start.

    Returns:
        The propagation, None if the error of one step is more than its tolerance.
    """
    normalize = mode.space.normalize
    points = [(normalize(x), u) for x in _NODES_TO_POINTS @ states]
    found, ratio = _collocate_step(model, mode, t, h, points, p)
    return found if ratio <= 1.0 else None


def _collocate_piece(
    model: NoisySystem, mode: ModeModel, arc: Arc, total: Propagation, p: Array
) -> Propagation:
    """Return the propagation to the end of an arc of one input law.

    One short collocation step is tried. If its error is more than its tolerance, steps of a formula
    with more points follow the arc.

    Args:
        model: The system and its noise.
        mode: Mode of the arc.
        arc: The arc, on which the input law does not change.
        total: The propagation before it.
        p: Covariance (ndx, ndx) at the start, relative to which rounding is judged.
    """
    start, h = arc.start, arc.end - arc.start
    points = [arc.state_and_input(start + c * h) for c in _POINT_FRACTIONS]
    found, ratio = _collocate_step(model, mode, start, h, points, p)
    if ratio <= 1.0:
        return total.advance(found.state, found.noise)
    return integrate_noise(
        lambda t: _covariance_rates(model, mode, t, *arc.state_and_input(t)),
        total,
        start,
        arc.end,
        rtol=model.rtol,
        atol=model.atol,
        first_step=h if ratio < _FIRST_STEP_LIMIT else choose_step_length(h, ratio),
        leap=choose_first_leap(mode, arc),
    )


def _collocate_step(
    model: NoisySystem,
    mode: ModeModel,
    t: float,
    h: float,
    points: list[tuple[Array, Array]],
    p: Array,
) -> tuple[Propagation, float]:
    """Return the propagation of one collocation step, and its error in tolerances.

    Args:
        model: The system and its noise.
        mode: The mode.
        t: Time of the start, s.
        h: Length of the step, s.
        points: State (nx,) and input (nu,) at the collocation points.
        p: Covariance (ndx, ndx) at the start, whose largest entry tolerances are relative to.
    """
    times = [t + c * h for c in _POINT_FRACTIONS]
    matrices, input_maps = _linearize_points(mode, times, points)
    densities, noise = None, model.process_noise
    if noise is not None:
        densities = np.zeros_like(matrices)
        for i, ((x, u), at) in enumerate(zip(points, times, strict=True)):
            densities[i] = noise.matrix(mode.calc(at, x, u), input_maps[i])
    return propagate_short_step(matrices, densities, h, model.rtol, float(np.abs(p).max()))


def _linearize_points(
    mode: ModeModel, times: list[float], points: list[tuple[Array, Array]]
) -> tuple[Array, Array]:
    """Return A (m, ndx, ndx) and B (m, ndx, nu) of the variational equation at some points.

    Args:
        mode: The mode.
        times: The m times, s.
        points: State (nx,) and input (nu,) at each.
    """
    steps = mode.compiled_steps
    batched = None if steps is None else steps.batched_slopes
    if batched is not None:  # one call takes half of the time of one for each point
        states, inputs = (np.array(rows) for rows in zip(*points, strict=True))
        sound, matrices, input_maps = batched(np.array(times)[:, None], states, inputs)
        if (sound > 0.0).all():
            return matrices, input_maps
    found = [linearize_field(mode, at, *p) for at, p in zip(times, points, strict=True)]
    return np.array([c.state for c in found]), np.array([c.input for c in found])


def _covariance_rates(
    model: NoisySystem, mode: ModeModel, t: float, x: Array, u: Array
) -> tuple[Array, Array]:
    """Return A = D_x f and the density Q of the process noise at a point, both (ndx, ndx)."""
    point, noise = mode.calc(t, x, u), model.process_noise
    c = linearize_field_at(point)
    return c.state, np.zeros_like(c.state) if noise is None else noise.matrix(point, c.input)


# Event


def pass_event(model: NoisySystem, now: StatePrediction, event: Event) -> StatePrediction:
    """Return the prediction just after an event.

    Args:
        model: The system and its noise.
        now: The prediction just before the event.
        event: The event, which starts at its mean.
    """
    noise = model.reset_noise, model.guard_noise
    points = model.evaluate_event(event)
    p = now.estimate.covariance
    jump = jump_moments(model.system, event, p, model.strategy, *noise, points)
    mean, covariance = event.state_after, jump.covariance
    if jump.shift.any():
        mode = model.system.mode(event.mode_after)
        mean, covariance = move_mean(mode, mean, covariance, jump.shift)
    impacts = begin_impact(model.system, model.reset_noise, event, now.estimate.impacts)
    estimate = Estimate(event.mode_after, event.time, mean, covariance, event.time, impacts)
    notes = now.notes if jump.note is None else (*now.notes, jump.note)
    after = now.continue_by(estimate, jump.matrix)
    return after._replace(events=(*now.events, event), notes=notes)


def fire_guards(
    model: NoisySystem, now: StatePrediction, guards: Sequence[str], x: Array, law: InputLaw
) -> StatePrediction:
    """Return the prediction just after the event of some guards, whatever their values.

    Args:
        model: The system and its noise.
        now: The prediction just before the event.
        guards: Names of the guards.
        x: State (nx,) before the event, which may differ from the mean.
        law: Input law.
    """
    event = model.fire_guards(now.estimate.mode, guards, now.estimate.time, x, law)
    return pass_event(model, now, event)


# Correction


class Innovation(NamedTuple):
    """A value compared with its prediction.

    Attributes:
        time: Time, s.
        channel: Name of the measurement.
        mode: Mode of the estimate before the value.
        residual: Residual r (k,).
        covariance: Its covariance S (k, k).
        nis: Normalized innovation squared, :math:`r^T S^{-1} r`. Its mean is k for a consistent
            filter.
        log_likelihood: Log-likelihood of the value. For the likeliest of several hypotheses it is
            that of all.
        limit: The gate's limit of `nis`; inf without a gate.
        accepted: Whether `nis` is within the limit. A value beyond it is rejected.
    """

    time: float
    channel: str
    mode: ModeKey
    residual: Array
    covariance: Array
    nis: float
    log_likelihood: float
    limit: float
    accepted: bool

    @property
    def dimension(self) -> int:
        """Number k of components of the residual."""
        return len(self.residual)


Linearize = Callable[[AnyMeasurement, ModeModel, Estimate, Array, Array], LinearizedResidual | None]
"""Function of measurement, mode, estimate, value and input, such as `linearize_residual`."""


def linearize_residual(
    measurement: AnyMeasurement, mode: ModeModel, estimate: Estimate, value: Array, u: Array
) -> LinearizedResidual | None:
    """Return the residual of a value, its Jacobian and its covariance at an estimate.

    Args:
        measurement: The measurement.
        mode: Mode of the estimate.
        estimate: Estimate before the value.
        value: The value (m,). Components that are not finite, such as NaN, are missing. A point of
            a manifold with such a component is missing as a whole.
        u: Input (nu,).

    Returns:
        The residual of the components that are there. None without any, or if the function of an
        implicit measurement returns None: the value contains nothing about this mode.

    Raises:
        InputError: The value, the residual or the Jacobian has a wrong size, the predicted value is
            no array of numbers, or the Jacobian no array of finite numbers.
    """
    if isinstance(measurement, ImplicitMeasurement):
        found = measurement.compare(mode, estimate.time, estimate.mean, u, value)
        return None if found is None else add_open_impacts(estimate, found)
    measured = select_measured(measurement, value)
    if measured is None:
        return None
    rows, noise = measured
    predicted = predict_value(measurement, mode, estimate.time, estimate.mean, u)
    r = compute_residual(measurement, predicted, value)
    h = _evaluate_jacobian(measurement, mode, estimate, u)
    return add_open_impacts(estimate, LinearizedResidual(r[rows], h[rows], noise))


def add_open_impacts(estimate: Estimate, found: LinearizedResidual) -> LinearizedResidual:
    """Return the residual of a value with the noise of impacts that are not over.

    The value is of the state during an impact, the estimate is of the state after it. The value
    then corrects that estimate as one with the noise R + H U H^T, with U of `sum_open_changes`.

    Args:
        estimate: Estimate before the value.
        found: The residual with the noise R of the value alone.
    """
    if not estimate.impacts:
        return found
    r, h, noise = found
    open_changes = sum_open_changes(estimate.impacts, estimate.time)
    return LinearizedResidual(r, h, noise + h.dot(open_changes).dot(h.T))


def correct(
    measurement: AnyMeasurement, mode: ModeModel, estimate: Estimate, found: LinearizedResidual
) -> tuple[Estimate, Innovation]:
    """Return the estimate after a value, by the equations of this module, and the innovation.

    Args:
        measurement: The measurement of the value.
        mode: Mode of the estimate.
        estimate: Estimate before the value. It stays as it is if the gate rejects the value.
        found: Residual r of the value with H and R.

    Raises:
        SimulationError: The covariance S is not positive definite.
    """
    r, h, noise = found
    hp = h.dot(estimate.covariance)
    innovation, factor = compute_innovation(measurement, estimate, r, hp.dot(h.T) + noise)
    if not innovation.accepted:
        return estimate, innovation
    return apply_innovation(mode, estimate, found, hp, factor), innovation


def apply_innovation(
    mode: ModeModel, estimate: Estimate, found: LinearizedResidual, hp: Array, factor: Array
) -> Estimate:
    """Return the estimate after a value that the gate accepts, by the equations of this module.

    Args:
        mode: Mode of the estimate.
        estimate: Estimate before the value.
        found: Residual r (k,) of the value with H and R.
        hp: The product H P (k, ndx) with the covariance of the estimate.
        factor: Cholesky factor (k, k) of the innovation's covariance, of `compute_innovation`.
    """
    r, h, noise = found
    p = estimate.covariance
    gain = _solve_by_factor(factor, hp).T
    left = gain.dot(-h)
    left.reshape(-1)[:: len(p) + 1] += 1.0
    p = left.dot(p).dot(left.T) + gain.dot(noise).dot(gain.T)
    x, p = move_mean(mode, estimate.mean, p, gain.dot(r))
    return replace(estimate, mean=x, covariance=nearest_semidefinite(p))


def compute_innovation(
    measurement: AnyMeasurement, estimate: Estimate, r: Array, s: Array
) -> tuple[Innovation, Array]:
    """Return the innovation of a residual, and the Cholesky factor (k, k) of its covariance.

    Args:
        measurement: The measurement, which has the gate.
        estimate: Estimate before the value.
        r: Residual (k,).
        s: Covariance S (k, k) of the residual.

    Raises:
        SimulationError: S is not positive definite.
    """
    factor, failed = dpotrf(s, lower=1)
    if failed:
        raise SimulationError(
            f"the covariance of an innovation of {measurement.name!r} at t = {estimate.time:.9g} s "
            f"is not positive definite: {s.tolist()}"
        )
    nis = float(r.dot(_solve_by_factor(factor, r)))
    size = 2.0 * sum(map(math.log, factor.diagonal().tolist())) + len(r) * _LOG_TWO_PI
    limit = np.inf if measurement.gate is None else find_gate_limit(measurement.gate, len(r))
    innovation = Innovation(
        time=estimate.time,
        channel=measurement.name,
        mode=estimate.mode,
        residual=r,
        covariance=s,
        nis=nis,
        log_likelihood=-0.5 * (nis + size),
        limit=limit,
        accepted=nis <= limit,
    )
    return innovation, factor


def select_measured(
    measurement: Measurement, value: Array
) -> tuple[NDArray[np.bool_] | slice, Array] | None:
    """Return which components of a residual were measured, and their covariance.

    Args:
        measurement: The measurement.
        value: The value (m,). Components that are not finite, such as NaN, are missing.

    Returns:
        Flags (k,), or a slice of all, and the covariance of these. None without any component, and
        for a point of a manifold that is not complete: its coordinates are not one for each
        component of the residual.
    """
    if is_finite(value):
        return _ALL_COMPONENTS, measurement.covariance
    given = np.isfinite(value)
    if measurement.residual is not None or not given.any():
        return None
    return given, measurement.covariance[np.ix_(given, given)]


def predict_value(measurement: Measurement, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
    """Return the value (m,) that would be measured without noise.

    Args:
        measurement: The measurement.
        mode: The mode.
        t: Time, s.
        x: State (nx,), or several (n, nx) if the measurement takes these.
        u: Input (nu,).

    Raises:
        InputError: The function of the measurement returns no numbers.
    """
    value = measurement.value(mode, t, x, u)
    if type(value) is np.ndarray and value.dtype == np.float64:
        return value
    try:
        return convert_to_floats(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"value of measurement {measurement.name!r} must return numbers, got {quote(value)} "
            f"at t = {t} in mode {mode.key!r}"
        ) from error


def compute_residual(measurement: Measurement, predicted: Array, value: Array) -> Array:
    """Return the residual (k,): measured minus predicted, or that of the measurement's manifold.

    Args:
        measurement: The measurement.
        predicted: The predicted value (m,).
        value: The measured value (m,).

    Raises:
        InputError: The shapes differ, or the residual has another size than the covariance.
    """
    if predicted.shape != value.shape:
        raise InputError(
            f"a row of {measurement.name!r} must have shape {predicted.shape}, got {value.shape}"
        )
    k = len(measurement.covariance)
    if measurement.residual is None:
        r = value - predicted
    else:
        r = measurement.residual(predicted, value)
    if r.shape != (k,):
        raise InputError(
            f"the residual of {measurement.name!r} must have shape ({k},), got {r.shape}"
        )
    return r


def _solve_by_factor(factor: Array, b: Array) -> Array:
    """Return the solution S^-1 b, by the Cholesky factor of S."""
    return np.asarray(dpotrs(factor, b, lower=1)[0])


@lru_cache
def find_gate_limit(gate: float, dimension: int) -> float:
    """Return the NIS that a value exceeds with probability 1 - gate: a quantile of chi squared.

    It is by `gammaincinv`, because importing `scipy.stats` takes some 2 s.

    Args:
        gate: Probability with which a right value is accepted, in (0, 1).
        dimension: Number k of components of the residual.
    """
    return 2.0 * float(gammaincinv(0.5 * dimension, gate))


def _evaluate_jacobian(
    measurement: Measurement, mode: ModeModel, estimate: Estimate, u: Array
) -> Array:
    """Return the Jacobian H (k, ndx) of a measurement at an estimate, checked.

    Args:
        measurement: The measurement.
        mode: Mode of the estimate.
        estimate: Estimate before the value.
        u: Input (nu,).

    Raises:
        InputError: The Jacobian has another shape, or is no array of finite numbers.
    """
    h = measurement.jacobian(mode, estimate.time, estimate.mean, u)
    k = len(measurement.covariance)
    is_kept = type(h) is np.ndarray and h.dtype == np.float64 and not h.flags.writeable
    # A read-only array of finite floats, such as a constant Jacobian, is not copied.
    if not (is_kept and is_finite(h)):
        h = check_array(f"Jacobian of {measurement.name!r}", h)
    if h.shape != (k, mode.space.ndx):
        raise InputError(
            f"the Jacobian of {measurement.name!r} must have shape ({k}, {mode.space.ndx}), got "
            f"{h.shape}"
        )
    return h
