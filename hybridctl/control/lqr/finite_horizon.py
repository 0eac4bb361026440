r"""Hybrid LQR: feedback along a trajectory that is optimal across its events, to second order.

For perturbations dx at fixed time of a nominal trajectory and changes du of its input, the cost

.. math:: \int \delta x^T Q\, \delta x + \delta u^T R\, \delta u\; dt
          + \delta x(t_{end})^T Q_{final}\, \delta x(t_{end})

(without a factor 1/2) has the least value :math:`\delta x^T V(t)\, \delta x`, and
:math:`\delta u = -K \delta x` attains it: `riccati` on arcs, `jumps` at events; [Salt] III-D.

For a perturbed motion dx is what reference spreading feeds back, the state minus the arc of the
same event count. Between its event and the nominal one, the state differs from the nominal state at
the same time by the whole jump. dx is of first order there too, and that interval of time is of
first order, so that it adds a term of third order to the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_array,
    check_instance,
    check_member,
    check_number,
    check_semidefinite,
    check_vector,
    format_count,
)
from hybridctl.base.errors import InputError
from hybridctl.base.progress import Progress, Report, report_share
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.lqr.jumps import (
    TREATMENTS,
    GainOfValue,
    SimultaneousJump,
    Treatment,
    compute_instant_feedback,
    compute_value_before,
)
from hybridctl.control.lqr.riccati import EndGain, RiccatiEquation, ValueCurve
from hybridctl.control.lqr.weights import Weights, make_weight_function
from hybridctl.control.reference import list_firing_orders, select_intermediate
from hybridctl.control.tracking_law import get_motor_limits
from hybridctl.sensitivity.floquet import FloquetMultipliers
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.propagation import linearize_field
from hybridctl.sensitivity.saltation import JumpGains

Covariance: TypeAlias = ArrayLike | Callable[[int], ArrayLike]
"""A covariance (ndx, ndx), or a function of the index of the event."""


_INPUT_SAMPLES = 33
"""Times on each arc at which the inputs of the feedback are compared with the motors' limits."""


@dataclass(frozen=True, eq=False)
class LqrResult:
    """Optimal feedback u = mu + K (alpha - x), and the cost of perturbations under it.

    Attributes:
        linearization: First-order map of the trajectory, without feedback.
        gains: Gain K(t) of each arc. Gains in phantom modes are constant.
        values: Value V(t) of each arc, with both limits at events.
    """

    linearization: Linearization
    gains: GainSchedule
    values: tuple[ValueCurve, ...]

    def __repr__(self) -> str:
        arcs, run = self.gains.arcs, self.linearization.trajectory
        span, shape = f"{run.start:.6g} to {run.end:.6g} s", arcs[0](run.start).shape
        notes, accurate = list[str](), self.linearization.quick_range
        if accurate is not None and np.isfinite(accurate.size):
            notes.append(f"first order is off by 10 % at |dx0| = {accurate.size:.2g}")
        if self.motor_range == 0.0:
            notes.append("the run alone needs more than the motors have")
        elif self.motor_range is not None and np.isfinite(self.motor_range):
            notes.append(f"within the motors' limits for |dx0| below {self.motor_range:.2g}")
        more = "".join(f", {note}" for note in notes)
        return f"LqrResult({span}, {format_count(len(arcs), 'arc')}, gains {shape}{more})"

    def cost(self, dx0: ArrayLike) -> float:
        """Return the least cost dx0 . V(start) dx0 from an initial perturbation dx0 (ndx,).

        Where guards are simultaneous it is that of their treatment: a bound, or right in the mean.
        """
        v = self.values[0].start
        dx = check_vector("dx0", dx0, len(v))
        return float(dx @ v @ dx)

    def predicted_cost(self, dx0: ArrayLike) -> float:
        """Return the cost of the feedback from dx0 (ndx,), to second order, in the order of guards.

        The order is the one that dx0 leads to. Without simultaneous guards it is `cost`.
        """
        z = check_vector("dx0", dx0, len(self.values[0].start))
        total: float = self.cost(z)
        for k, jump in enumerate(self.closed_loop.jumps):
            before = self.closed_loop.arcs[k].end @ z
            z = jump(before)
            total += float(z @ self.values[k + 1].start @ z)
            total -= float(before @ self.values[k].end @ before)
        return total

    @cached_property
    def motor_range(self) -> float | None:
        r"""Size |dx0| below which the motors can give what the feedback asks for, to first order.

        The input is :math:`\mu(t) - K(t) \Phi(t) \delta x_0` with the closed loop's :math:`\Phi`.
        The size is the least over all directions, all inputs and 33 times on each arc; 0 where
        :math:`\mu` alone is at the limits or beyond. None if no limit is known (`Robot.effort`), or
        the linearization is not linear (`Linearization.is_linear`).
        """
        lin, arcs = self.linearization, self.linearization.trajectory.arcs
        limits = get_motor_limits(lin.system, arcs[0].inputs.shape[2])
        if limits is None or not lin.is_linear:
            return None
        samples = [np.linspace(arc.start, arc.end, _INPUT_SAMPLES) for arc in arcs]
        each = zip(arcs, samples, strict=True)
        margins = [limits[1] - np.abs(arc.input(times)) for arc, times in each]
        if min(margin.min() for margin in margins) <= 0.0:
            return 0.0
        closed, least, total = self.closed_loop, np.inf, np.eye(arcs[0].space.ndx)
        rows = zip(samples, margins, self.gains.arcs, strict=True)
        for k, (times, left, gain) in enumerate(rows):
            grown = [gain(t) @ closed.arcs[k](t) @ total for t in times.tolist()]
            with np.errstate(divide="ignore", invalid="ignore"):
                sizes = left / np.linalg.norm(np.array(grown), axis=2)
            least = min(least, float(np.nanmin(sizes, initial=np.inf)))
            if k < len(lin.jumps):
                total = closed.linear_jump(k).state @ closed.arcs[k].end @ total
        return least

    @cached_property
    def closed_loop(self) -> Linearization:
        """First-order map under the feedback."""
        events = self.linearization.trajectory.events

        def phantom(k: int, fired: frozenset[int]) -> Array:
            event = events[k]
            key = (k, frozenset(event.guards[j] for j in fired))
            curve = self.gains.phantoms.get(key, self.gains.arcs[k])
            return curve(event.time)

        return self.linearization.closed_loop(self.gains.arcs, phantom)

    @cached_property
    def multipliers(self) -> FloquetMultipliers:
        """Multipliers of the closed loop over a period, see `floquet_multipliers` for errors."""
        return self.closed_loop.floquet_multipliers()


def hybrid_lqr(
    lin: Linearization,
    state_weight: Weights,
    input_weight: Weights,
    final_weight: ArrayLike,
    *,
    simultaneous: Treatment = "worst",
    covariance: Covariance | None = None,
    lead: float | None = None,
    rtol: float = 1e-10,
    atol: float = 1e-12,
    progress: Progress = None,
) -> LqrResult:
    """Return the optimal feedback along a trajectory.

    In phantom modes the weight on inputs is that of the arc before the event, and the input that of
    just before it. Gains are interpolated to 1e-8 of the largest entry on their arc.

    Args:
        lin: First-order map of the trajectory, without feedback.
        state_weight: Weight Q (ndx, ndx), positive semidefinite: one matrix, a list with one for
            each arc, or a function of (arc, t).
        input_weight: Weight R (nu, nu), positive definite, likewise.
        final_weight: Weight Q_final (ndx, ndx) of the final perturbation, positive semidefinite.
        simultaneous: Treatment of events of several guards, see `jumps`.
        covariance: For "mean", the covariance (ndx, ndx) of perturbations just before such events,
            or a function of the index of the event. None for "worst".
        lead: Time in s before events whose guard or reset has the input, in which the gain
            goes over to one that is made for the event, see `jumps`. None takes the gain of the arc
            up to the event.
        rtol: Relative tolerance of V.
        atol: Absolute tolerance of V, relative to the largest entry of the state weights at the
            starts of the arcs and of the final weight.
        progress: True prints the share of the work that is done on standard error. A function is
            called with it, from 0 to 1.

    Returns:
        The feedback, with its value and closed loop.

    Raises:
        InputError: A weight does not fit, the linearization has feedback already, R is so small
            that the feedback acts too fast to be followed along its arc, R is lost in rounding
            beside what redundant inputs do at an event (`lead`), or the run begins so late that the
            rounding of its times is above the tolerance.
        SimulationError: Guard or reset have the input, there is no `lead`, and no value is
            consistent with its gain.
    """
    report = report_share(progress, "hybrid_lqr")
    riccati = make_riccati_equation(
        lin, state_weight, input_weight, final_weight, rtol=rtol, atol=atol, report=report
    )
    final = check_semidefinite("final_weight", final_weight, lin.trajectory.arcs[-1].space.ndx)
    return solve_backwards(riccati, final, EventRule(simultaneous, covariance, lead))


def make_riccati_equation(
    lin: Linearization,
    state_weight: Weights,
    input_weight: Weights,
    final_weight: ArrayLike,
    *,
    rtol: float,
    atol: float,
    report: Report | None = None,
) -> RiccatiEquation:
    """Return the Riccati equation of a trajectory.

    Args:
        lin: First-order map of the trajectory, without feedback.
        state_weight: See `hybrid_lqr`.
        input_weight: See `hybrid_lqr`.
        final_weight: See `hybrid_lqr`; here for the scale of `atol` alone.
        rtol: See `hybrid_lqr`.
        atol: See `hybrid_lqr`.
        report: Called with the share of the trajectory that is integrated, backwards.

    Raises:
        InputError: A weight does not fit, the linearization has feedback already, or its run begins
            so late that the rounding of its times is above the tolerance.
    """
    if check_instance("lin", lin, Linearization).gains is not None:
        raise InputError("lin must be without feedback, but has gains: pass that of `linearize`")
    arcs = lin.trajectory.arcs
    times = [(arc.start, arc.end) for arc in arcs]
    ndx = [arc.space.ndx for arc in arcs]
    q = make_weight_function("state_weight", state_weight, ndx, times)
    nu = [arc.inputs.shape[2] for arc in arcs]
    r = make_weight_function("input_weight", input_weight, nu, times, definite=True)
    largest = [float(np.abs(q(k, arc.start)).max(initial=0.0)) for k, arc in enumerate(arcs)]
    final = float(np.abs(check_array("final_weight", final_weight)).max(initial=0.0))
    scale = max(*largest, final) or 1.0  # without any weight V is zero, whatever the scale
    rtol = check_number("rtol", rtol, above=0.0)
    atol = scale * check_number("atol", atol, above=0.0)
    start, end = lin.trajectory.start, lin.trajectory.end
    # Far from zero adjacent times are so far apart that steps cannot be as accurate as rtol.
    if np.spacing(max(abs(start), abs(end))) > rtol * (end - start):
        raise InputError(
            f"lin must be of a run whose times are exact to rtol = {rtol:g} of its length, but it "
            f"goes from {start:.10g} to {end:.10g} s: design the gains on a run that begins at zero"
        )
    if report is None:
        return RiccatiEquation(lin, q, r, rtol, atol)
    return RiccatiEquation(lin, q, r, rtol, atol, lambda t: report((end - t) / (end - start)))


@dataclass(frozen=True)
class EventRule:
    """How values and gains go through events; the attributes are arguments of `hybrid_lqr`.

    Attributes:
        simultaneous: Treatment of events of several guards.
        covariance: Covariance of perturbations before them, for "mean".
        lead: Time in s before an event in which the gain goes over to that of the event, or None.

    Raises:
        InputError: The treatment is unknown, the covariance does not go with it, or the lead is not
            positive.
    """

    simultaneous: Treatment
    covariance: Covariance | None
    lead: float | None

    def __post_init__(self) -> None:
        check_member("simultaneous", self.simultaneous, TREATMENTS)
        if (self.covariance is None) == (self.simultaneous == "mean"):
            raise InputError('covariance must be given for simultaneous="mean", and for it only')
        if self.lead is not None:
            check_number("lead", self.lead, above=0.0)


class _BeforeEvent(NamedTuple):
    """Value and gains just before an event, as the sweep has found them.

    Attributes:
        value: Value V (ndx, ndx).
        end_gain: Gain that is made for the event; None where the arc's own gain is taken up to the
            event, and at the end of the run.
        phantoms: Gains in phantom modes, by event index and guards that have fired.
    """

    value: Array
    end_gain: EndGain | None
    phantoms: dict[tuple[int, frozenset[str]], GainCurve]


def solve_backwards(riccati: RiccatiEquation, final: Array, rule: EventRule) -> LqrResult:
    """Return the optimal feedback for a value at the end, by one sweep from the end to the start.

    Args:
        riccati: The Riccati equation.
        final: Value V (ndx, ndx) at the end.
        rule: How values go through events.
    """
    lin = riccati.lin
    values: list[ValueCurve] = []
    curves: list[GainCurve] = []
    phantoms: dict[tuple[int, frozenset[str]], GainCurve] = {}
    end = _BeforeEvent(final, None, {})
    for k in range(len(lin.trajectory.arcs) - 1, -1, -1):
        value, curve = riccati.solve_arc(k, end.value, end.end_gain)
        values.insert(0, value)
        curves.insert(0, curve)
        if k > 0:
            end = _solve_event(riccati, k - 1, value.start, rule)
            phantoms |= end.phantoms
    return LqrResult(lin, GainSchedule(tuple(curves), phantoms, lin), tuple(values))


def _solve_event(riccati: RiccatiEquation, k: int, after: Array, rule: EventRule) -> _BeforeEvent:
    """Return value and gains before an event.

    Args:
        riccati: The Riccati equation.
        k: Index of the event.
        after: Value V (ndx, ndx) after it.
        rule: How values go through events.
    """
    lin, jump = riccati.lin, riccati.lin.jumps[k]
    event = lin.trajectory.events[k]
    gain_before: GainOfValue = lambda v: riccati.gain(k, event.time, v)  # noqa: E731
    if isinstance(jump, JumpGains):
        if rule.lead is None or not jump.input.any():
            return _BeforeEvent(compute_value_before(jump, after, gain_before), None, {})
        weight = rule.lead * riccati.input_weight(k, event.time)
        feedback = compute_instant_feedback(jump, after, weight)
        since = max(event.time - rule.lead, lin.trajectory.arcs[k].start)
        return _BeforeEvent(feedback.value, EndGain(feedback.gain, since, event.time), {})
    covariance = rule.covariance(k) if callable(rule.covariance) else rule.covariance
    if covariance is not None:
        name = f"covariance of event {k}"
        covariance = check_semidefinite(name, covariance, jump.dimension)
    simultaneous = SimultaneousJump(rule.simultaneous, covariance)
    if rule.lead is not None and simultaneous.has_input_effect(jump):
        weight = rule.lead * riccati.input_weight(k, event.time)
        feedback = simultaneous.compute_instant_feedback(jump, after, weight)
        since = max(event.time - rule.lead, lin.trajectory.arcs[k].start)
        curve = GainCurve.constant(feedback.gain)
        between = {(k, names): curve for names in _list_phantom_modes(riccati, k)}
        end = EndGain(feedback.gain, since, event.time)
        return _BeforeEvent(feedback.value, end, between)
    # Without a lead, or where the input has no effect at the event, gains follow from the values.
    gains = _find_phantom_gains(riccati, k) | {frozenset[int](): gain_before}
    value, feedbacks = simultaneous.compute_value_before(jump, after, gains)
    phantoms = {
        (k, frozenset(event.guards[j] for j in fired)): GainCurve.constant(feedback.gain)
        for fired, feedback in feedbacks.items()
    }
    return _BeforeEvent(value, None, phantoms)


def _list_phantom_modes(riccati: RiccatiEquation, k: int) -> list[frozenset[str]]:
    """Return the names of the guards that have fired in each phantom mode of event k."""
    system, event = riccati.lin.system, riccati.lin.trajectory.events[k]
    return list(select_intermediate(list_firing_orders(system, event)))


def _find_phantom_gains(riccati: RiccatiEquation, k: int) -> dict[frozenset[int], GainOfValue]:
    """Return the gain as a function of the value in each phantom mode of event k.

    The keys are the guards that have fired, by their index in the event.
    """
    system, event = riccati.lin.system, riccati.lin.trajectory.events[k]
    weight = riccati.input_weight(k, event.time)
    gains: dict[frozenset[int], GainOfValue] = {}
    for names, one in select_intermediate(list_firing_orders(system, event)).items():
        fired, mode = frozenset(event.guards.index(name) for name in names), system.mode(one.mode)
        b = linearize_field(mode, event.time, one.jump.state, event.input_before).input
        gains[fired] = partial(np.matmul, np.linalg.solve(weight, b.T))
    return gains
