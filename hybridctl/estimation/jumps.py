"""Mean and covariance through one event, by the saltation matrix or by a baseline.

- "saltation": first order at fixed time, [Salt] (2), (39); through simultaneous guards the moments
  of the piecewise-linear image, which may also move the mean.
- "reset_jacobian": D_x R alone, which leaves out that neighbours have their event at another time.
- "no_jump": the covariance is left as it is, and only the mean jumps.

The noise of an event is added to all of them alike, so that they differ by this matrix alone.

An event whose guard's rate is less certain than its sign has no first order at the mean: with
another rate it comes much earlier or later, or never. What is taken to first order then is the
motion of those that have it, at their mean, see `_falling`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from hybridctl.base.checks import Array
from hybridctl.base.errors import (
    AmbiguousEventError,
    InputError,
    SimulationError,
    SystemDefinitionError,
)
from hybridctl.estimation.estimate import truncated
from hybridctl.estimation.noise import EXACT_GUARDS, EventNoise, GuardNoise, Noise, reset_covariance
from hybridctl.hybrid.jump import execute_event, list_outcomes
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.model import Point
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.moments import propagate_moments_through_jump
from hybridctl.sensitivity.parameters import augment_with_guard_offsets
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.propagation import linearize_field_at
from hybridctl.sensitivity.saltation import JumpGains, find_guard_index
from hybridctl.sensitivity.simultaneous import jump_derivative

Strategy = Literal["saltation", "reset_jacobian", "no_jump"]
STRATEGIES: tuple[Strategy, ...] = ("saltation", "reset_jacobian", "no_jump")
Rates = dict[str, tuple[float, Array]]
UNSURE = "less certain than its sign"
_POINTS = 1024
_SEED = 0
_TURNED = 1e-5  # of a coordinate, or s, at most: over which the turning of a guard is looked at


class Jumped(NamedTuple):
    """What an event does to a deviation of mean zero.

    shift (ndx+,): the mean after it. covariance (ndx+, ndx+). matrix (ndx+, ndx): the linear map,
    None where it is piecewise linear. note: what had to be replaced, if anything.
    """

    shift: Array
    covariance: Array
    matrix: Array | None
    note: str | None = None


def jumped(
    system: HybridSystem,
    event: Event,
    p: Array,
    strategy: Strategy,
    reset_noise: Noise | EventNoise | None = None,
    guard_noise: GuardNoise = EXACT_GUARDS,
) -> Jumped:
    """Covariance p (ndx, ndx) before an event, taken through it, with the noise of the event.

    Where the order of contacts matters their impact is one of all (`jump_derivative` "at once");
    where an event has no first order (grazing), the Jacobian of its reset stands in; where the rate
    of its guard is less certain than its sign, the derivatives are those at the mean of all that
    have the event, unless it leads them elsewhere; where infinitely many events end their guards
    are taken to be zero. `note` says so.
    """
    offsets = guard_noise.of_all(event.guards)
    if strategy != "saltation":
        result = _linear(_baseline(system, event, p, strategy), p)
        if offsets.any() and event.accumulation is None:
            noise = _salted(system, event, p, np.zeros_like(p), offsets)
            covariance = result.covariance + noise.covariance
            result = result._replace(covariance=covariance, note=noise.note)
    elif event.accumulation is not None:
        result = _rested(system, event, p)
    else:
        result = _salted(system, event, p, p, offsets)
    added = reset_covariance(system, reset_noise, event)
    if added is not None:
        result = result._replace(covariance=result.covariance + added)
    return result


def _baseline(system: HybridSystem, event: Event, p: Array, strategy: Strategy) -> Array:
    """The matrix (ndx+, ndx) that stands in for the saltation matrix."""
    matrix = reset_jacobian(system, event)
    if strategy == "reset_jacobian":
        return matrix
    if len(matrix) != len(p):
        raise InputError(
            f"without a jump matrix the dimension must stay, but the event at t = "
            f"{event.time:.9g} s takes it from {len(p)} to {len(matrix)}"
        )
    return np.eye(len(p))


def reset_jacobian(system: HybridSystem, event: Event) -> Array:
    """The derivative D_x R (ndx+, ndx) of the joint reset, or of resets one after the other.

    A reset without a Jacobian, like that where events accumulate, counts as the identity.
    """
    if event.accumulation is not None:
        return np.eye(system.mode(event.mode_before).space.ndx)
    at = event.time, event.state_before, event.input_before
    return _reset_jacobian(system, event.mode_before, event.guards, *at)


def _reset_jacobian(
    system: HybridSystem, key: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> Array:
    total: Array | None = None
    for reset, point in next(list_outcomes(system, key, guards, t, x, u)).resets:
        if reset.differentiable:
            own = reset.calc_diff(point).state
            total = own if total is None else np.asarray(own @ total)
    return np.eye(system.mode(key).space.ndx) if total is None else total


def _linear(matrix: Array, p: Array, note: str | None = None) -> Jumped:
    return Jumped(np.zeros(len(matrix)), matrix @ p @ matrix.T, matrix, note)


def _rested(system: HybridSystem, event: Event, p: Array) -> Jumped:
    """The jump into rest of guards whose events accumulate: they and their rates become zero.

    Guards that see the input are forces, of which nothing is held.
    """
    before = system.mode(event.mode_before)
    t, x, u = event.time, event.state_before, event.input_before
    point, names = before.calc(t, x, u), before.guard_names
    slopes = {g: point.guard_row(names.index(g)) for g in event.guards if g in names}
    guards = tuple(g for g, slope in slopes.items() if not slope.input.any())
    matrix = to_rest(system, event.mode_before, guards, t, x, u)
    return _linear(matrix, p, "events accumulate: their guards and rates are set to zero")


def to_rest(
    system: HybridSystem, key: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> Array:
    r"""The map (ndx, ndx) of deviations by events without end, which leave these guards at zero.

    With gradients a (k, ndx) of the guards and a A of their rates, deviations are projected along
    what the events move: velocities by d = (D_x R - I) (a A)^+, R the reset of the guards, and
    places by A d,

    .. math:: I - D\, (C D)^+ C, \qquad C = (a;\, a A), \quad D = (A d,\, d).

    What they do not move they leave as uncertain as it was, and what the mode holds is held. Where
    the reset has no Jacobian, or does not take the rates away, the projection is orthogonal.
    Curvature is left out.
    """
    mode = system.mode(key)
    point = mode.calc(t, x, u)
    slope = linearize_field_at(point).state
    values = [point.guard_row(find_guard_index(mode, g)).state for g in guards]
    rates = np.reshape([row @ slope for row in values], (-1, len(slope)))
    rows = np.concatenate((np.reshape(values, rates.shape), rates))
    ways = np.linalg.pinv(rows)
    try:
        after = _reset_jacobian(system, key, guards, t, x, u)
    except (SimulationError, InputError):
        after = np.zeros((0, 0))
    if after.shape == slope.shape:
        moved = (after - np.eye(len(slope))) @ np.linalg.pinv(rates)
        along = np.hstack((slope @ moved, moved))
        if mode.held is not None and mode.held.jacobian is not None:
            kept = mode.held.jacobian(x)
            along = along - np.linalg.pinv(kept) @ (kept @ along)
        if np.linalg.matrix_rank(rows @ along) == np.linalg.matrix_rank(rows):
            ways = along @ np.linalg.pinv(rows @ along)
    return np.asarray(np.eye(len(slope)) - ways @ rows)


def _salted(
    system: HybridSystem, event: Event, p: Array, carried: Array, variances: Array
) -> Jumped:
    """The jump by `_through`, or by the reset's Jacobian where there is no first order.

    p (ndx, ndx): by which the rates of guards are certain of their sign, or not: see `_falling`.
    carried: of p, what is taken through the event.
    """
    rates = _rates(system, event)
    vague, slowed = _vague(rates, p), 1.0
    if vague is not None:
        falling, slowed = _falling(system, event, p, *rates[vague])
        event = event if falling is None else falling
    try:
        found = _through(system, event, carried, variances, slowed)
    except SystemDefinitionError:
        raise
    except (SimulationError, InputError) as error:
        found = _linear(reset_jacobian(system, event), carried, f"no first order: {error}")
    return found if vague is None else found._replace(note=f"the rate of {vague!r} is {UNSURE}")


def _through(
    system: HybridSystem, event: Event, p: Array, variances: Array, slowed: float
) -> Jumped:
    """The jump by the saltation matrix G and k k^T s / gdot^2, or by a piecewise-linear map.

    k is what the field gains at the event, s the variance of the guard's offset. slowed: by how
    much less than at its rate the time of the event changes with the deviation. Offsets of guards
    that fire together, or at the border of a reset, stand beside the state. How far the tolerances
    of a step leave a derivative uncertain is no matter beside the covariance.
    """
    event = replace(event, accuracy=None)
    noisy = bool(variances.any())
    if len(event.guards) <= 1 or not noisy:
        jump, note = _derivative(system, event)
        if isinstance(jump, JumpGains):
            jump = replace(jump, time_state=slowed * jump.time_state)
            found = _linear(jump.state, p)
            if not noisy:
                return found
            (guard,), point = event.guards, _point_before(system, event)
            shift = slowed / _rate(point, event, guard)[0] * jump.field_change
            added = variances[0] * np.outer(shift, shift)
            return found._replace(covariance=found.covariance + added)
    if noisy:
        jump, note = _derivative(*augment_with_guard_offsets(system, event))
        p = block_diag(p, slowed**2 * np.diag(variances))
    shift, after = propagate_moments_through_jump(jump, np.zeros(len(p)), p, _POINTS, _SEED)
    n = len(after) - len(variances) * noisy
    return Jumped(shift[:n], after[:n, :n], None, note)


def _derivative(
    system: HybridSystem, event: Event
) -> tuple[JumpGains | PiecewiseLinearJump, str | None]:
    """The jump of an event, and whether it had to be that of one impact of all its contacts."""
    try:
        return jump_derivative(system, event), None
    except AmbiguousEventError:
        jump = jump_derivative(system, event, simultaneous="at once")
        return jump, f"orders of {event.guards} lead apart: they are one impact"


def _vague(rates: Rates, p: Array) -> str | None:
    """A guard whose rate is smaller than its own deviation, if there is one.

    The time of its event is then no first-order function of the deviation.
    """
    return next((g for g, (rate, row) in rates.items() if abs(rate) < _deviation(row, p)), None)


def _deviation(row: Array, p: Array) -> float:
    """The standard deviation of row z; zero where rounding leaves its variance below zero."""
    return float(np.sqrt(max(float(row @ p @ row), 0.0)))


def _falling(
    system: HybridSystem, event: Event, p: Array, rate: float, row: Array
) -> tuple[Event | None, float]:
    """The event at the mean of the belief where its guard falls; None if that is another event.

    With the rate r and its row a, of variance s^2 = a P a^T, this part is what is left of a normal
    distribution cut off at a rate of zero. Beside it r over the rate at their mean: by how much
    less its time changes with the deviation than at r.
    """
    s = _deviation(row, p)
    space = system.mode(event.mode_before).space
    steeper = truncated(-rate / s)[0]
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


def _rates(system: HybridSystem, event: Event) -> Rates:
    r"""Rates of the guards of an event, with their gradients (ndx,).

    A deviation z moves with :math:`\dot z = A z`, so that the gradient of :math:`\dot g` is
    :math:`D_x g\, A + \tfrac{d}{dt} D_x g`. The last term, the turning of the guard as the state
    goes on, is by a central difference, of 1e-10 of it.
    """
    point = _point_before(system, event)
    before, a, flow = point.mode, linearize_field_at(point).state, point.field
    h = _TURNED / max(1.0, float(np.abs(flow).max()))
    ahead, behind = (
        before.calc(
            point.t + s, before.space.normalize(before.space.integrate(point.x, s * flow)), point.u
        )
        for s in (h, -h)
    )
    found = {}
    for guard in event.guards:
        i, (rate, row) = find_guard_index(before, guard), _rate(point, event, guard)
        late, early = (p.guard_row(i).state for p in (ahead, behind))
        found[guard] = rate, np.asarray(row @ a + (late - early) / (2.0 * h))
    return found


def _point_before(system: HybridSystem, event: Event) -> Point:
    """The mode before an event, where it happens."""
    return system.mode(event.mode_before).calc(event.time, event.state_before, event.input_before)


def _rate(point: Point, event: Event, guard: str) -> tuple[float, Array]:
    """The rate of a guard of an event, and its gradient D_x g (ndx,)."""
    g = point.guard_row(find_guard_index(point.mode, guard))
    return float(g.time + g.state @ point.field + g.input @ event.input_rate), g.state
