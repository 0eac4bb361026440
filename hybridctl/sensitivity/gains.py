r"""The first-order jump of one event: saltation matrix, input gain, and shift of the event time.

With all terms at the event, - before and + after it,

.. math::
    \dot g &= D_t g + D_x g f^- + D_u g \dot u^-, \qquad
    \dot R = D_t R + D_x R f^- + D_u R \dot u^-, \\
    \delta t &= -(D_x g\, \delta x^- + D_u g\, \delta u^-) / \dot g, \\
    \delta x^+ &= D_x R\, \delta x^- + D_u R\, \delta u^- - (f^+ - \dot R)\, \delta t
               = G\, \delta x^- + J\, \delta u^-,

[Salt] (2), [RS] (3.33), (3.34). Deviations are taken at the same time on both trajectories.

Next to grazing they are known to few digits: with e what the state may be off, the time of the
event is known to :math:`\tau = |D_x g|\, e / |\dot g|`, and the rate of the guard to
:math:`|\ddot g|\, \tau`. Where that is more than a thousandth of it, a warning says so.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybridctl.base.checks import Array, check_instance
from hybridctl.base.errors import (
    GrazingError,
    InputError,
    NearGrazingWarning,
    SystemDefinitionError,
)
from hybridctl.hybrid.model import (
    JumpPoint,
    JumpTerms,
    ModeModel,
    Point,
    ResetBorder,
    ResetJacobian,
    ResetModel,
    linear_terms,
)
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import MIN_RTOL
from hybridctl.hybrid.trajectory import Event

GRAZING = 1e-9  # least rate of a guard, of the size of its terms
_STILL = 1e-9  # 1/s, of the guard's scale: a rate below is what rounding leaves of none
_DOUBTFUL = 1e-3  # of a guard's rate: known to less, its derivative comes with a warning
_HARDEST = 1e4  # units of the state per s^2: no guard is looked at closely for changing faster
_CLOSE = 1e-6  # s: in less a guard's rate changes evenly


@dataclass(frozen=True, eq=False)
class JumpGains:
    r"""The first-order jump of one guard, from a tangent space of dimension d to one of d+.

    time_state (d,), time_input (nu,): derivative of the event time, s per unit. reset_state
    (d+, d), reset_input (d+, nu): Jacobians of the reset; a reset_state of None is the identity.
    field_change (d+,): f+ - Rdot, what the field gains at the event. reset_rate (d+,): Rdot.
    """

    time_state: Array
    time_input: Array
    reset_state: Array | None
    reset_input: Array
    field_change: Array
    reset_rate: Array

    @property
    def reset_jacobian(self) -> Array:
        """The derivative D_x R (d+, d) of the reset, also where it is the identity."""
        return np.eye(len(self.field_change)) if self.reset_state is None else self.reset_state

    @property
    def state(self) -> Array:
        """The saltation matrix G (d+, d): deviations at fixed time."""
        return self.reset_jacobian - self.field_change[:, None] * self.time_state

    @property
    def input(self) -> Array:
        """The gain J (d+, nu): what a change of the input at the event adds after it."""
        return self.reset_input - self.field_change[:, None] * self.time_input

    @property
    def state_at_events(self) -> Array:
        """The map D_x R + Rdot D_x(dt) (d+, d); D_x R (I - f- D_x g / gdot) without time and input.

        It maps deviations at fixed time to those of the states in which each trajectory leaves
        its own event: another convention than that of `state`, which is often confused with it.
        """
        return self.reset_jacobian + self.reset_rate[:, None] * self.time_state

    def fed_back(self, gain: Array) -> JumpGains:
        """The jump where the input changes by -gain dx besides, with gain (nu, d)."""
        change = self.reset_input @ gain
        return replace(
            self,
            time_state=self.time_state - self.time_input @ gain,
            reset_state=self.reset_jacobian - change if change.any() else self.reset_state,
        )

    def __call__(self, dx: Array, du: Array | None = None) -> Array:
        """The deviation G dx + J du for dx (d,) and du (nu,), or for m of them in rows."""
        result: Array = dx @ self.state.T
        return result if du is None else result + du @ self.input.T


def jump_gains(system: HybridSystem, event: Event) -> JumpGains:
    """The first-order jump of an event of one guard; the identity where the policy changed its law.

    Such a change has a fixed time, so a deviation of the state passes it as it is.

    Raises `InputError` for an event of several guards or at a border of its reset (see
    `jump_derivative`), for one that ends infinitely many and for those of a bridge, `GrazingError`
    where the terms of the guard's rate cancel, `SystemDefinitionError` where the guard or the reset
    has no Jacobian.
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
        return unchanged(ndx, nu)
    if len(event.guards) != 1:
        raise InputError(
            f"event at t = {event.time:.9g} s must have one guard, got {event.guards}: "
            "jump_derivative serves simultaneous guards"
        )
    return gains_between(system, event.guards[0], *event_sides(system, event), event.report)


def unchanged(ndx: int, nu: int) -> JumpGains:
    """The jump that leaves deviations alone."""
    none = np.zeros(ndx)
    return JumpGains(none, np.zeros(nu), None, np.zeros((ndx, nu)), none, none)


def saltation_matrix(system: HybridSystem, event: Event) -> Array:
    """The saltation matrix (ndx+, ndx-) of an event of one guard, [Salt] (2).

    Raises what `jump_gains` raises.
    """
    return jump_gains(system, event).state


@dataclass(frozen=True, eq=False)
class Side:
    """One side of an event: its mode at a point, and a rate of the input.

    Attributes:
        point: The mode, evaluated on this side.
        input_rate: Rate (nu,) of the input, unit of the input per s. Of the two sides of an event,
            as `event_sides` makes them, both have the rate just before it: an `Event` does not
            record the rate after it, and derivatives of the event do not depend on that.
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
        """Return the rate of a guard, in its unit per s, with the input at `input_rate`."""
        d = self.mode.guard_row_at(guard_index(self.mode, guard), self.point)
        return float(d.time + d.state @ self.field + d.input @ self.input_rate)

    def jump_point(self, report: Any = None) -> JumpPoint:
        """The point at which a reset begins; report: of its jump there, if it is known."""
        return JumpPoint(self.time, self.state, self.input, report, self.point)


def event_sides(system: HybridSystem, event: Event) -> tuple[Side, Side]:
    """Return the sides of an event, before and after it; both have the input's rate before it."""
    before, after = system.mode(event.mode_before), system.mode(event.mode_after)
    t, rate = event.time, event.input_rate
    return (
        Side(before.calc(t, event.state_before, event.input_before), rate, event.accuracy),
        Side(after.calc(t, event.state_after, event.input_after), rate, event.accuracy),
    )


def gains_between(
    system: HybridSystem, guard: str, before: Side, after: Side, report: Any = None
) -> JumpGains:
    """The jump of `guard` from one side to the other, which need not belong to a simulation.

    report: of the jump of the reset there, if it is known. Raises what `jump_gains` raises.
    """
    border = reset_border(system, guard, before, after, report)
    if border is not None and not border.is_linear:
        raise InputError(
            f"the event of guard {guard!r} at t = {before.time:.9g} s leads to the border of "
            f"{border.name!r} and is piecewise linear: jump_derivative serves it where it is alone"
        )
    reset = None if border is None else border.negative
    return crossing(system, guard, before, after, reset, report)


def crossing(
    system: HybridSystem,
    guard: str,
    before: Side,
    after: Side,
    reset: ResetJacobian | None = None,
    report: Any = None,
) -> JumpGains:
    """The jump of `guard` with this derivative of its reset, by default the one of the system.

    report: of the jump of the reset, from which the system's own derivative goes on. Warns with
    `NearGrazingWarning` where the guard is met so slowly that its rate is hardly known.
    """
    mode, at = before.mode, before.jump_point(report)
    i = guard_index(mode, guard)
    if reset is None:
        terms = mode.jump_terms(i, differentiable_reset(system, mode, guard), at, before.input_rate)
    else:
        terms = linear_terms(mode, i, reset, at, before.input_rate)
    scale = float(mode.guard_set.sizes[i])
    slope, size = terms.slope, terms.size + 1e-300
    if not slope < -max(GRAZING * size, _STILL * scale):
        raise GrazingError(
            f"guard {guard!r} of mode {before.mode.key!r} is not crossed transversally at t = "
            f"{before.time:.9g} s: its rate {slope:.3g} must be negative, and is "
            f"{slope / size:.3g} of the size of its terms, {slope / scale:.3g} 1/s of the guard's "
            "scale"
        )
    _warn_if_doubtful(guard, before, terms)
    _, _, by_state, by_input, reset_state, reset_input, rate = terms
    return JumpGains(by_state, by_input, reset_state, reset_input, after.field - rate, rate)


def _warn_if_doubtful(guard: str, before: Side, terms: JumpTerms) -> None:
    """Warn if a guard's rate changes by much in the time to which its event is known."""
    if before.accuracy is None:
        return
    x, space = before.state, before.mode.space
    rtol, atol = (max(tolerance, MIN_RTOL) for tolerance in before.accuracy)
    delays = np.abs(terms.time_state)
    most = atol + rtol * float(np.abs(x).max(initial=0.0))
    if _HARDEST * most * float(delays.sum()) ** 2 <= _DOUBTFUL:
        return
    off = space.difference(x, space.normalize(x + atol + rtol * np.abs(x)))
    vague = float(delays @ np.abs(off))
    slope = later(before, -min(vague, _CLOSE)).guard_rate(guard)
    change = abs(slope - terms.slope) * max(vague / _CLOSE, 1.0) / abs(terms.slope)
    if not change <= _DOUBTFUL:
        warnings.warn(
            f"guard {guard!r} of mode {before.mode.key!r} is nearly grazed at t = "
            f"{before.time:.9g} s: its rate is {terms.slope:.3g}, and what the state may be off "
            f"by the tolerances of the run or by rounding moves the event by {vague:.2g} s and "
            f"changes the rate, and the derivative of the event, by up to {change:.2g} of itself",
            NearGrazingWarning,
            stacklevel=3,
        )


def later(side: Side, dt: float) -> Side:
    """The side a moment dt (s) later, along its own flow."""
    x = side.mode.space.integrate(side.state, dt * side.field)
    u = side.input + dt * side.input_rate
    return replace(side, point=side.mode.calc(side.time + dt, x, u))


def reset_border(
    system: HybridSystem, guard: str, before: Side, after: Side, report: Any = None
) -> ResetBorder | None:
    """The border at which the reset of a guard is, None where it has one derivative."""
    edge = system.outgoing(before.mode.key).edge((guard,))
    if edge is None:
        return None
    return edge.reset.border_at(before.jump_point(report), after.mode.key, after.input)


def guard_index(mode: ModeModel, guard: str) -> int:
    """The place of a guard among those of a mode; `InputError` where it has none of that name."""
    if guard not in mode.guard_names:
        raise InputError(f"mode {mode.key!r} has no guard {guard!r}, it has {mode.guard_names}")
    return mode.guard_names.index(guard)


def differentiable_reset(system: HybridSystem, mode: ModeModel, guard: str) -> ResetModel:
    """The reset of one guard of a mode; `SystemDefinitionError` where it has no derivatives."""
    edge = system.outgoing(mode.key).edge((guard,))
    if edge is None or not edge.reset.differentiable:
        raise SystemDefinitionError(
            f"the reset of guard {guard!r} of mode {mode.key!r} has no Jacobian"
        )
    return edge.reset
