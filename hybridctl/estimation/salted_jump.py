r"""Mean and covariance through one event, by the saltation matrix or by a baseline.

With the saltation matrix :math:`\Xi`, [Salt] (2), (39), the noise :math:`P_R` of the reset, and the
variance :math:`\sigma_g^2` of the guard's offset, which shifts the event in time:

.. math:: P^+ = \Xi P \Xi^T + P_R + k k^T \sigma_g^2 / \dot g^2, \qquad k = f^+ - \dot R.

- "saltation": this equation. Simultaneous guards have a piecewise-linear map instead of a matrix;
  mean and covariance are then the moments of its image, which may move the mean.
- "reset_jacobian": D_x R in place of :math:`\Xi`, which ignores that neighbouring states have their
  event at another time.
- "no_jump": the identity in place of :math:`\Xi`, so that only the mean jumps.

The noise of an event is added to all of them alike, so that they differ in this matrix only.

Where the rate of a guard is not significant (smaller than its own standard deviation), the event
time is no first-order function of the state: with another rate the event comes much earlier or
later, or never. The derivatives are then those at the mean of the part of the belief whose guard
falls, see `_move_to_falling_part`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from scipy.linalg import block_diag

from hybridctl.base.checks import Array
from hybridctl.base.errors import (
    AmbiguousEventError,
    InputError,
    SimulationError,
    SystemDefinitionError,
)
from hybridctl.estimation.estimate import truncate_standard_normal
from hybridctl.estimation.noise import EXACT_GUARDS, EventNoise, GuardNoise, Noise, reset_covariance
from hybridctl.hybrid.jump import execute_event, list_outcomes
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.model import ModeModel, Point
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.moments import propagate_moments_through_jump
from hybridctl.sensitivity.parameters import augment_with_guard_offsets
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.propagation import linearize_field_at
from hybridctl.sensitivity.saltation import EventSide, JumpGains, find_guard_index
from hybridctl.sensitivity.simultaneous import jump_derivative, linearize_single

Strategy = Literal["saltation", "reset_jacobian", "no_jump"]
STRATEGIES: tuple[Strategy, ...] = ("saltation", "reset_jacobian", "no_jump")
RateGradients = dict[str, tuple[float, Array]]
"""For each guard its rate dg/dt and the gradient (ndx,) of the rate."""
RATE_NOT_SIGNIFICANT = "less certain than its sign"
"""Part of the note of an event whose guard rate is not significant. `FilterResult` counts these."""
_SAMPLE_COUNT = 1024
"""Points by which the moments of a piecewise-linear map are computed. A choice."""
_SAMPLE_SEED = 0
"""Seed of these points: always the same, so that a filter repeats its numbers."""
_MAX_DIFFERENCE_STEP = 1e-5
"""Largest step of the central difference along the flow: of a coordinate, in its unit, and in s."""


EvaluateMode: TypeAlias = Callable[[ModeModel, float, Array, Array], Point]
"""Returns the point of a mode at (mode, t, x, u)."""


def _evaluate_anew(mode: ModeModel, t: float, x: Array, u: Array) -> Point:
    """Return a new point of a mode."""
    return mode.calc(t, x, u)


class EventPoints(NamedTuple):
    """The modes before and after an event, at the states and inputs there."""

    before: Point
    after: Point

    @staticmethod
    def of(system: HybridSystem, event: Event, evaluate: EvaluateMode | None = None) -> EventPoints:
        """Return the points of an event of a system.

        Args:
            system: The hybrid system.
            event: The event.
            evaluate: Returns the point of a mode at (mode, t, x, u). None for a new one.
        """
        evaluate, t = evaluate or _evaluate_anew, event.time
        before, after = system.mode(event.mode_before), system.mode(event.mode_after)
        return EventPoints(
            evaluate(before, t, event.state_before, event.input_before),
            evaluate(after, t, event.state_after, event.input_after),
        )


class JumpMoments(NamedTuple):
    """What an event does to a perturbation of mean zero.

    Attributes:
        shift: Its mean (ndx+,) after the event.
        covariance: Its covariance (ndx+, ndx+) after the event.
        matrix: The linear map (ndx+, ndx); None if the map is piecewise linear.
        note: What was replaced by something less exact, or None.
    """

    shift: Array
    covariance: Array
    matrix: Array | None
    note: str | None = None


def jump_moments(
    system: HybridSystem,
    event: Event,
    p: Array,
    strategy: Strategy,
    reset_noise: Noise | EventNoise | None = None,
    guard_noise: GuardNoise = EXACT_GUARDS,
    points: EventPoints | None = None,
) -> JumpMoments:
    """Return the moments of a perturbation after an event, with the noise of the event.

    `note` says where the saltation matrix is replaced: by one impact of all contacts where their
    order matters (`jump_derivative` "at once"); by the Jacobian of the reset where an event has no
    first order (grazing); by the derivatives at the mean of the falling part where the rate of the
    guard is not significant; by guards and rates set to zero where infinitely many events end.

    Args:
        system: The hybrid system.
        event: The event.
        p: Covariance (ndx, ndx) before the event.
        strategy: "saltation" or a baseline.
        reset_noise: Noise that is added after the reset, or None.
        guard_noise: Variances of the guards' offsets.
        points: The points of the event, where they are known: what they have computed is not
            computed again. None if they are not.

    Raises:
        InputError: Strategy "no_jump" at an event that changes the dimension of the state.
    """
    offsets, points = (
        guard_noise.variances_of(event.guards),
        points or EventPoints.of(system, event),
    )
    if strategy != "saltation":
        result = _apply_matrix(_baseline_matrix(system, event, p, strategy), p)
        if offsets.any() and event.accumulation is None:
            noise = _salted_moments(system, event, points, p, np.zeros_like(p), offsets)
            covariance = result.covariance + noise.covariance
            result = result._replace(covariance=covariance, note=noise.note)
    elif event.accumulation is not None:
        result = _rest_moments(system, event, p)
    else:
        result = _salted_moments(system, event, points, p, p, offsets)
    added = reset_covariance(system, reset_noise, event)
    if added is not None:
        result = result._replace(covariance=result.covariance + added)
    return result


def _baseline_matrix(system: HybridSystem, event: Event, p: Array, strategy: Strategy) -> Array:
    """Return the matrix (ndx+, ndx) that a baseline takes in place of the saltation matrix.

    Raises:
        InputError: Strategy "no_jump" at an event that changes the dimension of the state.
    """
    matrix = compute_reset_jacobian(system, event)
    if strategy == "reset_jacobian":
        return matrix
    if len(matrix) != len(p):
        raise InputError(
            f"without a jump matrix the dimension must stay, but the event at t = "
            f"{event.time:.9g} s takes it from {len(p)} to {len(matrix)}"
        )
    return np.eye(len(p))


def compute_reset_jacobian(system: HybridSystem, event: Event) -> Array:
    """Return the derivative D_x R (ndx+, ndx) of an event's reset, or product of its resets.

    Args:
        system: The hybrid system.
        event: The event. A reset without a Jacobian, and rest at an accumulation of events, count
            as the identity.
    """
    if event.accumulation is not None:
        return np.eye(system.mode(event.mode_before).space.ndx)
    at = event.time, event.state_before, event.input_before
    return _multiply_reset_jacobians(system, event.mode_before, event.guards, *at)


def _multiply_reset_jacobians(
    system: HybridSystem, key: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> Array:
    """Return the product (ndx+, ndx) of the Jacobians of the resets of some guards.

    Args:
        system: The hybrid system.
        key: Key of the mode before the event.
        guards: The guards that fire.
        t: Time, s.
        x: State (nx,) before the event.
        u: Input (nu,).
    """
    total: Array | None = None
    for reset, point in next(list_outcomes(system, key, guards, t, x, u)).resets:
        if reset.differentiable:
            own = reset.calc_diff(point).state
            total = own if total is None else np.asarray(own @ total)
    return np.eye(system.mode(key).space.ndx) if total is None else total


def _apply_matrix(matrix: Array, p: Array, note: str | None = None) -> JumpMoments:
    """Return the moments after a linear map (ndx+, ndx)."""
    return JumpMoments(np.zeros(len(matrix)), matrix @ p @ matrix.T, matrix, note)


def _rest_moments(system: HybridSystem, event: Event, p: Array) -> JumpMoments:
    """Return the moments at rest, where events accumulate: guards and their rates become zero.

    Guards that depend on the input are forces, which the rest does not set to zero.
    """
    before = system.mode(event.mode_before)
    t, x, u = event.time, event.state_before, event.input_before
    point, names = before.calc(t, x, u), before.guard_names
    slopes = {g: point.guard_row(names.index(g)) for g in event.guards if g in names}
    guards = tuple(g for g, slope in slopes.items() if not slope.input.any())
    matrix = compute_rest_projection(system, event.mode_before, guards, t, x, u)
    return _apply_matrix(matrix, p, "events accumulate: their guards and rates are set to zero")


def compute_rest_projection(
    system: HybridSystem, key: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> Array:
    r"""Return the map (ndx, ndx) of perturbations by infinitely many events of some guards.

    They leave the guards and their rates at zero. With gradients a (k, ndx) of the guards and a A
    of their rates, perturbations are projected along what the events move: velocities by
    d = (D_x R - I) (a A)^+, with R the reset of the guards, and positions by A d,

    .. math:: I - D\, (C D)^+ C, \qquad C = (a;\, a A), \quad D = (A d,\, d).

    Directions that the events do not move stay as uncertain as they were; those that the mode
    constrains stay constrained. The curvature of the guards is left out.

    Args:
        system: The hybrid system.
        key: Key of the mode.
        guards: Names of the k guards.
        t: Time, s.
        x: State (nx,).
        u: Input (nu,).

    Returns:
        The projection. It is orthogonal if the reset has no Jacobian or does not take the rates
        away.
    """
    mode = system.mode(key)
    point = mode.calc(t, x, u)
    slope = linearize_field_at(point).state
    values = [point.guard_row(find_guard_index(mode, g)).state for g in guards]
    rates = np.reshape([row @ slope for row in values], (-1, len(slope)))
    rows = np.concatenate((np.reshape(values, rates.shape), rates))
    ways = np.linalg.pinv(rows)
    try:
        after = _multiply_reset_jacobians(system, key, guards, t, x, u)
    except (SimulationError, InputError):
        after = np.zeros((0, 0))  # no Jacobian: the projection is orthogonal
    if after.shape == slope.shape:
        moved = (after - np.eye(len(slope))) @ np.linalg.pinv(rates)
        along = np.hstack((slope @ moved, moved))
        if mode.held is not None and mode.held.jacobian is not None:
            constraint = mode.held.jacobian(x)
            along = along - np.linalg.pinv(constraint) @ (constraint @ along)
        if np.linalg.matrix_rank(rows @ along) == np.linalg.matrix_rank(rows):
            ways = along @ np.linalg.pinv(rows @ along)
    return np.asarray(np.eye(len(slope)) - ways @ rows)


def _salted_moments(
    system: HybridSystem,
    event: Event,
    points: EventPoints,
    p: Array,
    carried: Array,
    variances: Array,
) -> JumpMoments:
    """Return the moments by the saltation matrix, or by what replaces it.

    Args:
        system: The hybrid system.
        event: The event.
        points: The points of the event.
        p: Covariance (ndx, ndx), by which guard rates are significant or not.
        carried: Covariance (ndx, ndx) that is taken through the event: p, or zero for the noise of
            the guards alone.
        variances: Variances (k,) of the offsets of the event's guards.

    Raises:
        SystemDefinitionError: The system lacks a Jacobian. Other errors are replaced, see `note`.
    """
    rates = _guard_rates(points.before, event)
    guard, slowed = _find_insignificant_rate(rates, p), 1.0
    if guard is not None:
        falling, slowed = _move_to_falling_part(system, event, p, *rates[guard])
        if falling is not None:
            event, points = falling, EventPoints.of(system, falling)
    try:
        found = _first_order_moments(system, event, points, carried, variances, slowed)
    except SystemDefinitionError:
        raise
    except (SimulationError, InputError) as error:
        # A grazing event has no derivative.
        matrix = compute_reset_jacobian(system, event)
        found = _apply_matrix(matrix, carried, f"no first order: {error}")
    if guard is None:
        return found
    return found._replace(note=f"the rate of {guard!r} is {RATE_NOT_SIGNIFICANT}")


def _first_order_moments(
    system: HybridSystem,
    event: Event,
    points: EventPoints,
    p: Array,
    variances: Array,
    slowed: float,
) -> JumpMoments:
    """Return the moments by a saltation matrix, or by the piecewise-linear map of several guards.

    Offsets of guards that fire together, or on the boundary of a reset, are states beside the
    state of the system (`augment_with_guard_offsets`).

    Args:
        system: The hybrid system.
        event: The event.
        points: The points of the event.
        p: Covariance (ndx, ndx) that is taken through the event.
        variances: Variances (k,) of the offsets of the event's guards.
        slowed: Factor of the derivative of the event time, see `_move_to_falling_part`.
    """
    # How far the tolerance of a step leaves a derivative uncertain is negligible compared with the
    # covariance.
    event = replace(event, accuracy=None)
    noisy = bool(variances.any())
    if len(event.guards) <= 1 or not noisy:
        jump, note = _differentiate_event(system, event, points)
        if isinstance(jump, JumpGains):
            jump = replace(jump, time_state=slowed * jump.time_state)
            found = _apply_matrix(jump.state, p)
            if not noisy:
                return found
            (guard,) = event.guards
            shift = slowed / _guard_rate(points.before, event, guard)[0] * jump.field_change
            added = variances[0] * np.outer(shift, shift)
            return found._replace(covariance=found.covariance + added)
    if noisy:
        augmented = augment_with_guard_offsets(system, event)
        jump, note = _differentiate_event(*augmented, EventPoints.of(*augmented))
        p = block_diag(p, slowed**2 * np.diag(variances))
    shift, after = propagate_moments_through_jump(
        jump, np.zeros(len(p)), p, _SAMPLE_COUNT, _SAMPLE_SEED
    )
    n = len(after) - (len(variances) if noisy else 0)
    return JumpMoments(shift[:n], after[:n, :n], None, note)


def _differentiate_event(
    system: HybridSystem, event: Event, points: EventPoints
) -> tuple[JumpGains | PiecewiseLinearJump, str | None]:
    """Return the derivative of an event, and a note if it is that of one impact of all contacts."""
    if len(event.guards) == 1 and event.bridge is None and event.accumulation is None:
        before, after = (EventSide(point, event.input_rate, event.accuracy) for point in points)
        return linearize_single(system, event, (before, after)), None
    try:
        return jump_derivative(system, event), None
    except AmbiguousEventError:
        jump = jump_derivative(system, event, simultaneous="at once")
        return jump, f"orders of {event.guards} lead apart: they are one impact"


def _find_insignificant_rate(rates: RateGradients, p: Array) -> str | None:
    """Return a guard whose rate is smaller than its own standard deviation, if there is one."""
    return next(
        (g for g, (rate, row) in rates.items() if abs(rate) < _standard_deviation(row, p)), None
    )


def _standard_deviation(row: Array, p: Array) -> float:
    """Return the standard deviation of row z; zero where rounding makes its variance negative."""
    return float(np.sqrt(max(float(row @ p @ row), 0.0)))


def _move_to_falling_part(
    system: HybridSystem, event: Event, p: Array, rate: float, row: Array
) -> tuple[Event | None, float]:
    """Return the event at the mean of the part of the belief in which its guard falls.

    That part is a normal distribution truncated at a rate of zero.

    Args:
        system: The hybrid system.
        event: The event at the mean of the whole belief.
        p: Covariance (ndx, ndx) before the event.
        rate: Rate r of the guard.
        row: Gradient a (ndx,) of the rate, whose variance is s^2 = a P a^T.

    Returns:
        The event there and the factor 1. If that is an event to another mode or of other guards,
        None and the factor by which the event time changes less with the state there: r over the
        mean rate of the falling part.
    """
    s = _standard_deviation(row, p)
    space = system.mode(event.mode_before).space
    steeper = truncate_standard_normal(-rate / s)[0]
    slowed = rate / (rate - s * steeper)
    x = space.normalize(space.integrate(event.state_before, p @ row * (-steeper / s)))
    at = event.time, x, event.input_before, event.input_after
    try:
        mode, jump, took_part = execute_event(system, event.mode_before, event.guards, *at)
    except SimulationError:
        return None, slowed
    if mode != event.mode_after or took_part != event.guards:
        return None, slowed
    return replace(event, state_before=x, state_after=jump.state, report=jump.report), 1.0


def _guard_rates(point: Point, event: Event) -> RateGradients:
    r"""Return the rates of an event's guards with their gradients (ndx,), at the point before it.

    A perturbation z moves with :math:`\dot z = A z`, so the gradient of :math:`\dot g` is
    :math:`D_x g\, A + \tfrac{d}{dt} D_x g`. The last term, by which the gradient of the guard
    turns along the flow, is a central difference, exact to 1e-10 of it.
    """
    before, a, flow = point.mode, linearize_field_at(point).state, point.field
    h = _MAX_DIFFERENCE_STEP / max(1.0, float(np.abs(flow).max()))
    ahead, behind = (
        before.calc(
            point.t + s, before.space.normalize(before.space.integrate(point.x, s * flow)), point.u
        )
        for s in (h, -h)
    )
    found = {}
    for guard in event.guards:
        i, (rate, row) = find_guard_index(before, guard), _guard_rate(point, event, guard)
        late, early = (p.guard_row(i).state for p in (ahead, behind))
        found[guard] = rate, np.asarray(row @ a + (late - early) / (2.0 * h))
    return found


def _guard_rate(point: Point, event: Event, guard: str) -> tuple[float, Array]:
    """Return the rate of a guard of an event, and the gradient D_x g (ndx,) of the guard."""
    g = point.guard_row(find_guard_index(point.mode, guard))
    return float(g.time + g.state @ point.field + g.input @ event.input_rate), g.state
