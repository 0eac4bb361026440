r"""Saltation matrix: the first-order jump of a perturbation at an event of one guard.

A guard g fires, and the reset R maps the state from before (-) to after (+) the event. All terms
are evaluated at the event. With the rates of guard and reset along the flow before it,

.. math::
    \dot g = D_t g + D_x g f^- + D_u g \dot u^-, \qquad
    \dot R = D_t R + D_x R f^- + D_u R \dot u^-,

a perturbation :math:`\delta x^-` of the state and :math:`\delta u^-` of the input shift the event
time by :math:`\delta t` and lead to the perturbation :math:`\delta x^+` after the event:

.. math::
    \delta t &= -(D_x g\, \delta x^- + D_u g\, \delta u^-) / \dot g, \\
    \delta x^+ &= D_x R\, \delta x^- + D_u R\, \delta u^- - (f^+ - \dot R)\, \delta t
               = G\, \delta x^- + J\, \delta u^- .

G is the saltation matrix, [Salt] (2), [RS] (3.33); J is the input gain, [RS] (3.34). Perturbations
compare both trajectories at the same time. A perturbed trajectory that has not yet met its own
event is compared with the arc of the nominal one continued past the event.

Close to grazing, where :math:`\dot g` is small, these derivatives have few correct digits. An error
e of the state makes the event time wrong by up to :math:`\tau = |D_x g|\, e / |\dot g|`, and so the
guard rate by up to :math:`|\ddot g|\, \tau`. A `NearGrazingWarning` says where the latter is more
than a thousandth of the guard rate.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array, check_instance
from hybridctl.base.errors import (
    GrazingError,
    InputError,
    NearGrazingWarning,
    SystemDefinitionError,
)
from hybridctl.hybrid.model import (
    JumpPoint,
    ModeModel,
    Point,
    ResetBorder,
    ResetJacobian,
    ResetModel,
    compute_jump_terms,
    compute_linear_terms,
)
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import MIN_RTOL
from hybridctl.hybrid.trajectory import Event

GRAZING_RATIO = 1e-9
"""Guard rate up to which a guard grazes, relative to the sum of the absolute terms of the rate.

The value is a choice: about the default tolerance of simulations, to which the terms are known."""
_GRAZING_RATE = 1e-9
"""Guard rate up to which a guard grazes, in 1/s relative to the guard's scale.

It catches a rate that is the rounding of zero where all its terms are tiny."""
_SIGNIFICANT_CHANGE = 1e-3
"""Change of a guard rate, relative to the rate, from which a warning says that it is uncertain."""
_LARGEST_GUARD_ACCELERATION = 1e4
"""Second time derivative of a guard over the sum of its derivatives by the state, in units of the
state per s^2. A choice: of a position it is a thousand times that of gravity.

Guards that are not near grazing at this acceleration are not evaluated a second time: that saves
time at nearly all events. So a guard of greater acceleration may be near grazing unwarned."""
_LONGEST_SHIFT = 1e-6
"""Time in s over which a guard rate is evaluated to find its change. The value is a choice.

Over longer times the change is extrapolated: one Euler step that long may lead far off the flow."""


@dataclass(frozen=True, eq=False)
class JumpGains:
    r"""The first-order jump of one guard, from a tangent space of dimension d to one of d+.

    Attributes:
        time_state: Derivative (d,) of the event time by the state, s per unit of the state.
        time_input: Derivative (nu,) of the event time by the input, s per unit of the input.
        reset_state: Jacobian D_x R (d+, d) of the reset. None stands for the identity, so that a
            perturbation costs O(d) instead of O(d^2).
        reset_input: Jacobian D_u R (d+, nu) of the reset.
        field_change: :math:`f^+ - \dot R` (d+,), in units of the state per s.
        reset_rate: :math:`\dot R` (d+,), in units of the state per s.

    All attributes may have the number of the jump as first axis: then these are m jumps, and so do
    `state`, `input` and `state_at_events`. `reset_state` then is not None.
    """

    time_state: Array
    time_input: Array
    reset_state: Array | None
    reset_input: Array
    field_change: Array
    reset_rate: Array

    @property
    def reset_jacobian(self) -> Array:
        """The Jacobian D_x R (d+, d) of the reset, also if it is the identity."""
        return np.eye(len(self.field_change)) if self.reset_state is None else self.reset_state

    @property
    def state(self) -> Array:
        """The saltation matrix G (d+, d), for perturbations at equal times, [Salt] (2)."""
        return self.reset_jacobian - self.field_change[..., None] * self.time_state[..., None, :]

    @property
    def input(self) -> Array:
        """The input gain J (d+, nu), for a change of the input at the event, [RS] (3.34)."""
        return self.reset_input - self.field_change[..., None] * self.time_input[..., None, :]

    @property
    def state_at_events(self) -> Array:
        r"""The derivative (d+, d) of the post-event state of each trajectory at its own event.

        It is :math:`D_x R + \dot R\, D_x(\delta t)`, which is
        :math:`D_x R\,(I - f^- D_x g / \dot g)` without time and input. Trajectories are compared
        at different times here, so it differs from the saltation matrix `state`; the two are often
        confused.
        """
        return self.reset_jacobian + self.reset_rate[..., None] * self.time_state[..., None, :]

    def with_feedback(self, gain: Array) -> JumpGains:
        """Return the jump under the feedback du = -gain dx of the state before the event.

        Args:
            gain: Gain K (nu, d), in units of the input per unit of the state.

        Returns:
            The jump with time_state - time_input K and D_x R - D_u R K. Changes of the input that
            are passed to it act in addition to the feedback.
        """
        change = self.reset_input @ gain
        # Without a change a reset that is the identity stays None, which saves its products.
        return replace(
            self,
            time_state=self.time_state - self.time_input @ gain,
            reset_state=self.reset_jacobian - change if change.any() else self.reset_state,
        )

    def with_parameters(self, by_reset: Array | None, by_time: Array) -> JumpGains:
        """Return the jump in (x, p), of np parameters p that stay constant.

        Args:
            by_reset: Derivatives (d+, np) of the reset by the parameters. None for zero.
            by_time: Derivatives (np,) of the event time, s per unit of each parameter.
        """
        (*lead, rows, columns), n = self.reset_jacobian.shape, by_time.shape[-1]
        state = np.zeros((*lead, rows + n, columns + n))
        state[..., :rows, :columns] = self.reset_jacobian
        state[..., rows:, columns:] = np.eye(n)
        if by_reset is not None:
            state[..., :rows, columns:] = by_reset
        none = np.zeros((*lead, n))
        by_input = np.zeros((*lead, n, self.reset_input.shape[-1]))
        return JumpGains(
            time_state=np.concatenate((self.time_state, by_time), axis=-1),
            time_input=self.time_input,
            reset_state=state,
            reset_input=np.concatenate((self.reset_input, by_input), axis=-2),
            field_change=np.concatenate((self.field_change, none), axis=-1),
            reset_rate=np.concatenate((self.reset_rate, none), axis=-1),
        )

    def __call__(self, dx: Array, du: Array | None = None) -> Array:
        """Return the perturbation G dx + J du after the event.

        Args:
            dx: Perturbation (d,) of the state before the event, or m of them in rows (m, d).
            du: Change (nu,) of the input at the event, or (m, nu). None for no change.

        Returns:
            The perturbation (d+,), or (m, d+).
        """
        result: Array = dx @ self.state.T
        return result if du is None else result + du @ self.input.T


def jump_gains(system: HybridSystem, event: Event) -> JumpGains:
    """Return the first-order jump of an event of one guard.

    An event without a guard, at which only the input law changes, happens at a fixed time: its jump
    is the identity.

    Args:
        system: The hybrid system of the run.
        event: An event of the run.

    Returns:
        The gains G and J with the terms that they are made of.

    Raises:
        InputError: The event has several guards, or its reset is at a border between two cases
            whose derivatives differ (see `jump_derivative` for both). Or it has no derivative:
            events accumulate there, or the run passed a jam there by an impulse (see
            `Event.bridge`).
        GrazingError: The guard rate is not negative, or not significant, see `linearize_guard`.
        SystemDefinitionError: The guard or the reset has no Jacobian.
    """
    if check_instance("event", event, Event).accumulation is not None:
        raise InputError(
            f"the event at t = {event.time:.9g} s ends infinitely many: rest is assumed there, and "
            "has no derivative; linearize a run that ends before it"
        )
    if event.bridge is not None:
        raise InputError(
            f"the event of {event.guards} at t = {event.time:.9g} s {event.bridge} over an instant "
            "whose events cannot be resolved, and has no derivative"
        )
    if not event.guards:
        ndx, nu = system.mode(event.mode_before).space.ndx, len(event.input_before)
        return make_identity_jump(ndx, nu)
    if len(event.guards) != 1:
        raise InputError(
            f"event at t = {event.time:.9g} s must have one guard, got {event.guards}: "
            "jump_derivative serves simultaneous guards"
        )
    (guard,) = event.guards
    return linearize_guard(system, guard, *evaluate_event_sides(system, event), event.report)


def make_identity_jump(ndx: int, nu: int) -> JumpGains:
    """Return the jump that keeps perturbations and ignores the input: G = 1, J = 0.

    Args:
        ndx: Dimension of the perturbations.
        nu: Number of inputs.
    """
    none = np.zeros(ndx)
    return JumpGains(
        time_state=none,
        time_input=np.zeros(nu),
        reset_state=None,
        reset_input=np.zeros((ndx, nu)),
        field_change=none,
        reset_rate=none,
    )


def saltation_matrix(system: HybridSystem, event: Event) -> Array:
    """Return the saltation matrix of an event of one guard, [Salt] (2).

    Args:
        system: The hybrid system of the run.
        event: An event of the run.

    Returns:
        The matrix G (ndx+, ndx); the identity for an event without a guard. Events for which it is
        not defined raise the errors of `jump_gains`.
    """
    return jump_gains(system, event).state


@dataclass(frozen=True, eq=False)
class EventSide:
    """The mode, its point and the rate of the input on one side of an event.

    Attributes:
        point: The mode, evaluated on this side.
        input_rate: Rate (nu,) of the input, unit of the input per s. Of the two sides of an event,
            as `evaluate_event_sides` makes them, both have the rate just before it: an `Event`
            does not record the rate after it, and derivatives of the event do not depend on that.
        accuracy: rtol and atol to which the state is known. Zeros if it is known to rounding, None
            if the accuracy does not matter.
    """

    point: Point
    input_rate: Array
    accuracy: tuple[float, float] | None = (0.0, 0.0)

    @property
    def mode(self) -> ModeModel:
        """The mode on this side."""
        return self.point.mode

    @property
    def time(self) -> float:
        """The time, s."""
        return self.point.t

    @property
    def state(self) -> Array:
        """The state (nx,)."""
        return self.point.x

    @property
    def input(self) -> Array:
        """The input (nu,)."""
        return self.point.u

    @property
    def field(self) -> Array:
        """The velocity f (ndx,) in the tangent space."""
        return np.asarray(self.point.field, dtype=np.float64)

    def guard_rate(self, guard: str) -> float:
        r"""Return the rate :math:`D_t g + D_x g f + D_u g \dot u` of a guard.

        Args:
            guard: Name of the guard.

        Returns:
            The rate in the unit of the guard per s, negative where the guard falls.
        """
        return self.compute_rate(find_guard_index(self.mode, guard))

    def compute_rate(self, i: int) -> float:
        """Return `guard_rate` of the guard with index i."""
        d = self.point.guard_row(i)
        return float(d.time + d.state @ self.field + d.input @ self.input_rate)

    def jump_point(self, report: Any = None) -> JumpPoint:
        """Return the point at which a reset begins; report: of its jump there, None if unknown."""
        return JumpPoint(self.time, self.state, self.input, report, self.point)

    def shift(self, dt: float) -> EventSide:
        """Return the side at another time, by one Euler step of its flow.

        Args:
            dt: Time in s by which it is later, or earlier if negative.
        """
        return replace(self, point=self.mode.calc(*self.find_shifted_place(dt)))

    def find_shifted_place(self, dt: float) -> tuple[float, Array, Array]:
        """Return time, state and input of the side at another time, see `shift`.

        Args:
            dt: Time in s by which it is later, or earlier if negative.
        """
        x = self.mode.space.integrate(self.state, dt * self.field)
        return self.time + dt, x, self.input + dt * self.input_rate


def evaluate_event_sides(system: HybridSystem, event: Event) -> tuple[EventSide, EventSide]:
    """Return the sides of an event, before and after it; both have the input's rate before it.

    Args:
        system: The hybrid system of the run.
        event: The event. Its accuracy is that of both sides.
    """
    before, after = system.mode(event.mode_before), system.mode(event.mode_after)
    t, rate = event.time, event.input_rate
    return (
        EventSide(before.calc(t, event.state_before, event.input_before), rate, event.accuracy),
        EventSide(after.calc(t, event.state_after, event.input_after), rate, event.accuracy),
    )


def linearize_guard(
    system: HybridSystem, guard: str, before: EventSide, after: EventSide, report: Any = None
) -> JumpGains:
    """Return the first-order jump of a guard from one side of its event to the other.

    The sides need not belong to a simulated event: phantom modes are linearized by it, too.

    Args:
        system: The hybrid system.
        guard: Name of the guard, one of the mode before the event.
        before: Side before the event.
        after: Side after the event.
        report: Report of the reset's jump there, which saves solving it again. None if unknown.

    Returns:
        The jump.

    Raises:
        InputError: The reset is at a border between two cases whose derivatives differ, or the mode
            has no such guard.
        GrazingError: The guard rate is not negative, or not significant: at most `GRAZING_RATIO` of
            its terms, or `_GRAZING_RATE` of the guard's scale.
        SystemDefinitionError: The guard or the reset has no Jacobian.
    """
    border = find_reset_border(system, guard, before, after, report)
    if border is not None and not border.is_linear:
        raise InputError(
            f"the event of guard {guard!r} at t = {before.time:.9g} s leads to the border of "
            f"{border.name!r} and is piecewise linear: jump_derivative serves it where it is alone"
        )
    # Both sides of a linear border have the same derivative.
    reset = None if border is None else border.negative
    return linearize_crossing(system, guard, before, after, reset, report)


def linearize_crossing(
    system: HybridSystem,
    guard: str,
    before: EventSide,
    after: EventSide,
    reset: ResetJacobian | None = None,
    report: Any = None,
) -> JumpGains:
    """Return the first-order jump of a guard, given one derivative of its reset.

    Warns with `NearGrazingWarning` if the guard rate is uncertain.

    Args:
        system: The hybrid system.
        guard: Name of the guard, one of the mode before the event.
        before: Side before the event.
        after: Side after the event.
        reset: Jacobian of the reset. None for the one that the system gives.
        report: Report of the reset's jump there, which saves solving it again. None if unknown.

    Returns:
        The jump.

    Raises:
        InputError: The mode has no such guard.
        GrazingError: The guard rate is not negative, or not significant: at most `GRAZING_RATIO` of
            its terms, or `_GRAZING_RATE` of the guard's scale.
        SystemDefinitionError: The guard has no Jacobian, or the reset has none and `reset` is None.
    """
    mode, at = before.mode, before.jump_point(report)
    i = find_guard_index(mode, guard)
    if reset is None:
        own = get_differentiable_reset(system, mode, guard)
        terms = compute_jump_terms(mode, i, own, at, before.input_rate)
    else:
        terms = compute_linear_terms(mode, i, reset, at, before.input_rate)
    # 1e-300 prevents a division by zero in the message.
    scale = float(mode.guard_set.sizes[i])
    slope, size = terms.slope, terms.size + 1e-300
    if not is_crossed(slope, terms.size, scale):
        raise GrazingError(
            f"guard {guard!r} of mode {before.mode.key!r} is not crossed transversally at t = "
            f"{before.time:.9g} s: its rate {slope:.3g} must be negative, and is "
            f"{slope / size:.3g} of the size of its terms, {slope / scale:.3g} 1/s of the guard's "
            "scale"
        )
    if not is_far_from_grazing(before.accuracy, before.state, terms.time_state):
        time_error = estimate_time_error(before, terms.time_state)
        shifted = before.shift(-limit_shift(time_error)).guard_rate(guard)
        warn_if_rate_is_uncertain(guard, before, slope, shifted, time_error)
    _, _, by_state, by_input, reset_state, reset_input, rate = terms
    return JumpGains(
        time_state=by_state,
        time_input=by_input,
        reset_state=reset_state,
        reset_input=reset_input,
        field_change=after.field - rate,
        reset_rate=rate,
    )


def is_crossed(
    slope: float | Array, size: float | Array, scale: float | Array
) -> bool | NDArray[np.bool_]:
    """Return whether a guard falls through zero at a significant rate.

    A rate is not significant if it is rounding: of its terms, or of the guard itself where all of
    them are tiny.

    Args:
        slope: Rate of the guard, or rates (m,) of several, in its unit per s.
        size: Sum of the absolute terms of the rate.
        scale: Scale of the guard, in its unit.
    """
    return slope < -np.maximum(GRAZING_RATIO * size, _GRAZING_RATE * scale)


def is_far_from_grazing(
    accuracy: tuple[float, float] | None, x: Array, time_state: Array
) -> bool | NDArray[np.bool_]:
    """Return whether a guard rate does not change significantly, by a bound on its change.

    The bound holds for guards of up to `_LARGEST_GUARD_ACCELERATION`. Nearly all guards are far
    from grazing, and are not evaluated a second time.

    Args:
        accuracy: See `EventSide`.
        x: State (nx,) before the event, or (m, nx) for m events.
        time_state: Derivative (d,) of the event time by the state in s per unit, or (m, d).
    """
    if accuracy is None:
        return np.ones(x.shape[:-1], dtype=np.bool_)
    rtol, atol = (max(tolerance, MIN_RTOL) for tolerance in accuracy)
    largest_error = atol + rtol * np.abs(x).max(axis=-1, initial=0.0)
    delay = np.abs(time_state).sum(axis=-1)
    bound = _LARGEST_GUARD_ACCELERATION * largest_error * delay**2
    return np.asarray(bound <= _SIGNIFICANT_CHANGE)


def estimate_time_error(before: EventSide, time_state: Array) -> float:
    """Return how far the time of an event may be off in s, by the accuracy of its state.

    Args:
        before: Side before the event, of a state whose accuracy matters.
        time_state: Derivative (d,) of the event time by the state, s per unit.
    """
    assert before.accuracy is not None
    x, space = before.state, before.mode.space
    rtol, atol = (max(tolerance, MIN_RTOL) for tolerance in before.accuracy)
    error = space.difference(x, space.normalize(x + atol + rtol * np.abs(x)))
    return float(np.abs(time_state) @ np.abs(error))


def limit_shift(time_error: float) -> float:
    """Return the time in s, before the event, at which a guard rate is evaluated once more."""
    return min(time_error, _LONGEST_SHIFT)


def warn_if_rate_is_uncertain(
    guard: str, before: EventSide, slope: float, shifted: float, time_error: float
) -> None:
    """Warn if a guard rate changes much within the time to which its event is known.

    This is a change by more than `_SIGNIFICANT_CHANGE` of the rate. It is measured over at most
    `_LONGEST_SHIFT`, by an Euler step back along the flow, and beyond that taken as proportional
    to the time.

    Args:
        guard: Name of the guard.
        before: Side before the event.
        slope: Rate of the guard there, in its unit per s.
        shifted: Its rate `limit_shift(time_error)` earlier.
        time_error: What `estimate_time_error` returns, s.
    """
    change = abs(shifted - slope) * max(time_error / _LONGEST_SHIFT, 1.0) / abs(slope)
    if not change <= _SIGNIFICANT_CHANGE:
        warnings.warn(
            f"guard {guard!r} of mode {before.mode.key!r} is nearly grazed at t = "
            f"{before.time:.9g} s: its rate is {slope:.3g}, and what the state may be off "
            f"by the tolerances of the run or by rounding moves the event by {time_error:.2g} s "
            f"and changes the rate, and the derivative of the event, by up to {change:.2g} of "
            "itself",
            NearGrazingWarning,
            stacklevel=3,
        )


def find_reset_border(
    system: HybridSystem, guard: str, before: EventSide, after: EventSide, report: Any = None
) -> ResetBorder | None:
    """Return the border between two cases at which the reset of a guard is.

    Args:
        system: The hybrid system.
        guard: Name of the guard, one of the mode before the event.
        before: Side before the event.
        after: Side after the event.
        report: Report of the reset's jump there, None if unknown.

    Returns:
        The border, or None if the reset is at none and so has one derivative, or if the mode has no
        transition for this guard.
    """
    edge = system.outgoing(before.mode.key).edge((guard,))
    if edge is None:
        return None
    return edge.reset.find_border(before.jump_point(report), after.mode.key, after.input)


def find_guard_index(mode: ModeModel, guard: str) -> int:
    """Return the index of a guard among those of a mode.

    Args:
        mode: The mode.
        guard: Name of the guard.

    Raises:
        InputError: The mode has no guard of this name.
    """
    if guard not in mode.guard_names:
        raise InputError(f"mode {mode.key!r} has no guard {guard!r}, it has {mode.guard_names}")
    return mode.guard_names.index(guard)


def get_differentiable_reset(system: HybridSystem, mode: ModeModel, guard: str) -> ResetModel:
    """Return the reset of one guard of a mode.

    Args:
        system: The hybrid system.
        mode: The mode before the event.
        guard: Name of the guard.

    Raises:
        SystemDefinitionError: There is no such edge, or its reset has no Jacobian.
    """
    edge = system.outgoing(mode.key).edge((guard,))
    if edge is None or not edge.reset.differentiable:
        raise SystemDefinitionError(
            f"the reset of guard {guard!r} of mode {mode.key!r} has no Jacobian"
        )
    return edge.reset
