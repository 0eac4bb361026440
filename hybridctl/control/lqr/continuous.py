r"""Hybrid LQR: feedback along a trajectory that is optimal across its events, to second order.

For deviations dx at fixed time from a nominal trajectory and changes du of its input, the cost

.. math:: \int \delta x^T Q\, \delta x + \delta u^T R\, \delta u\; dt
          + \delta x(t_{end})^T Q_{final}\, \delta x(t_{end})

(without a factor 1/2) has the least value :math:`\delta x^T V(t)\, \delta x`, and
:math:`\delta u = -K \delta x` attains it: `riccati` on arcs, `events` at events; [Salt]
III-D. For a perturbed motion dx is what reference spreading feeds back, the state minus the arc of
the same event count: between the two event times, where the deviation at fixed time is large, the
cost counts a deviation of first order for a time of first order, which is of third order.
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
from hybridctl.control.lqr.events import (
    TREATMENTS,
    GainOf,
    Together,
    Treatment,
    at_the_instant,
    through_jump,
)
from hybridctl.control.lqr.riccati import Instant, Riccati, ValueCurve
from hybridctl.control.lqr.weights import Weights, weight_at
from hybridctl.control.reference import firings_at, intermediate
from hybridctl.sensitivity.floquet import FloquetMultipliers
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.propagation import linearize_field
from hybridctl.sensitivity.saltation import JumpGains

Covariance: TypeAlias = ArrayLike | Callable[[int], ArrayLike]


@dataclass(frozen=True, eq=False)
class LqrResult:
    """Optimal feedback u = mu + K (alpha - x), and what it costs.

    linearization: without feedback. gains: K(t) of each arc and in phantom modes, which are held
    constant. values: V(t) of each arc, with both limits at events.
    """

    linearization: Linearization
    gains: GainSchedule
    values: tuple[ValueCurve, ...]

    def __repr__(self) -> str:
        arcs, run = self.gains.arcs, self.linearization.trajectory
        span, shape = f"{run.start:.6g} to {run.end:.6g} s", arcs[0](run.start).shape
        return f"LqrResult({span}, {format_count(len(arcs), 'arc')}, gains {shape})"

    def cost(self, dx0: ArrayLike) -> float:
        """The least cost from an initial deviation dx0 (ndx,), dx0 . V(start) dx0.

        Where guards are simultaneous it is that of their treatment: a bound, or true in the mean.
        """
        v = self.values[0].start
        dx = check_vector("dx0", dx0, len(v))
        return float(dx @ v @ dx)

    def predicted_cost(self, dx0: ArrayLike) -> float:
        """What the feedback costs from dx0 (ndx,), to second order, in the order dx0 leads to.

        It is `cost` where no guards are simultaneous.
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
    def closed_loop(self) -> Linearization:
        """The first-order map under the feedback."""
        events = self.linearization.trajectory.events

        def phantom(k: int, fired: frozenset[int]) -> Array:
            event = events[k]
            key = (k, frozenset(event.guards[j] for j in fired))
            curve = self.gains.phantoms.get(key, self.gains.arcs[k])
            return curve(event.time)

        return self.linearization.closed_loop(self.gains.arcs, phantom)

    @cached_property
    def multipliers(self) -> FloquetMultipliers:
        """Multipliers of the closed loop over a period; raises as `floquet_multipliers` does."""
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
    """The optimal feedback along a trajectory.

    state_weight Q (ndx, ndx), input_weight R (nu, nu): one matrix, a list with one for each arc,
    or functions of (arc, t); Q positive semidefinite, R positive definite. final_weight Q_final
    (ndx, ndx). simultaneous: treatment of events of several guards, see `events`. covariance
    (ndx, ndx): for "mean", of the deviations just before such events, or a function of the index
    of the event. lead: time in s before isolated events whose guard or reset sees the input, in
    which the gain goes over to one that is made for the instant, see `events`; None for the
    gain of the arc up to the event. rtol, atol: of the integration, atol relative to the largest
    weight on states; interpolated gains are within 1e-8 of the largest entry of their arc.
    progress: True prints the share of the work that is done on standard error; a function is called
    with it, from 0 to 1.

    The weight on inputs in phantom modes is that of the arc before the event, and their input
    that of just before it. Raises `InputError` for bad weights, for a linearization that has
    feedback already, and for an R so small that the feedback acts too fast to be followed along
    its arc; `SimulationError` where guard or reset see the input and no value function is
    consistent with its gain.
    """
    report = report_share(progress, "hybrid_lqr")
    riccati = riccati_equation(lin, state_weight, input_weight, final_weight, rtol, atol, report)
    final = check_semidefinite("final_weight", final_weight, lin.trajectory.arcs[-1].space.ndx)
    return solved(riccati, final, AtEvents(simultaneous, covariance, lead))


def riccati_equation(
    lin: Linearization,
    state_weight: Weights,
    input_weight: Weights,
    final_weight: ArrayLike,
    rtol: float,
    atol: float,
    report: Report | None = None,
) -> Riccati:
    """The Riccati equation of a trajectory; the arguments are those of `hybrid_lqr`.

    report: called with the share of the trajectory that is integrated, backwards.
    Raises `InputError` for bad weights and for a linearization that has feedback already.
    """
    if check_instance("lin", lin, Linearization).gains is not None:
        raise InputError("lin must be without feedback, but has gains: pass that of `linearize`")
    arcs = lin.trajectory.arcs
    times = [(arc.start, arc.end) for arc in arcs]
    q = weight_at("state_weight", state_weight, [arc.space.ndx for arc in arcs], times)
    sizes = [arc.inputs.shape[2] for arc in arcs]
    r = weight_at("input_weight", input_weight, sizes, times, definite=True)
    largest = [float(np.abs(q(k, arc.start)).max(initial=0.0)) for k, arc in enumerate(arcs)]
    scale = (
        max(*largest, float(np.abs(check_array("final_weight", final_weight)).max(initial=0.0)))
        or 1.0
    )
    rtol, atol = (
        check_number("rtol", rtol, above=0.0),
        scale * check_number("atol", atol, above=0.0),
    )
    if report is None:
        return Riccati(lin, q, r, rtol, atol)
    start, end = lin.trajectory.start, lin.trajectory.end
    return Riccati(lin, q, r, rtol, atol, lambda t: report((end - t) / (end - start)))


@dataclass(frozen=True)
class AtEvents:
    """What is done at events; the arguments are those of `hybrid_lqr`."""

    simultaneous: Treatment
    covariance: Covariance | None
    lead: float | None

    def __post_init__(self) -> None:
        check_member("simultaneous", self.simultaneous, TREATMENTS)
        if (self.covariance is None) == (self.simultaneous == "mean"):
            raise InputError('covariance must be given for simultaneous="mean", and for it only')
        if self.lead is not None:
            check_number("lead", self.lead, above=0.0)


class _Before(NamedTuple):
    """The value V before an event, its gain at the instant if it has its own, and phantom gains."""

    value: Array
    instant: Instant | None
    phantoms: dict[tuple[int, frozenset[str]], GainCurve]


def solved(riccati: Riccati, final: Array, rule: AtEvents) -> LqrResult:
    """The feedback for V = final (ndx, ndx) at the end."""
    lin = riccati.lin
    values: list[ValueCurve] = []
    curves: list[GainCurve] = []
    phantoms: dict[tuple[int, frozenset[str]], GainCurve] = {}
    end = _Before(final, None, {})
    for k in range(len(lin.trajectory.arcs) - 1, -1, -1):
        value, curve = riccati.backwards(k, end.value, end.instant)
        values.insert(0, value)
        curves.insert(0, curve)
        if k > 0:
            end = _through(riccati, k - 1, value.start, rule)
            phantoms |= end.phantoms
    return LqrResult(lin, GainSchedule(tuple(curves), phantoms), tuple(values))


def _through(riccati: Riccati, k: int, after: Array, rule: AtEvents) -> _Before:
    """The value and gain before event k, for V after it."""
    lin, jump = riccati.lin, riccati.lin.jumps[k]
    event = lin.trajectory.events[k]
    before: GainOf = lambda v: riccati.gain(k, event.time, v)  # noqa: E731
    if isinstance(jump, JumpGains):
        if rule.lead is None or not jump.input.any():
            return _Before(through_jump(jump, after, before), None, {})
        weight = rule.lead * riccati.input_weight(k, event.time)
        found = at_the_instant(jump, after, weight)
        since = max(event.time - rule.lead, lin.trajectory.arcs[k].start)
        return _Before(found.value, Instant(found.gain, since, event.time), {})
    spread = rule.covariance(k) if callable(rule.covariance) else rule.covariance
    if spread is not None:
        spread = check_semidefinite(f"covariance of event {k}", spread, jump.dimension)
    gains = _phantom_gains(riccati, k) | {frozenset[int](): before}
    value, modes = Together(rule.simultaneous, spread).through(jump, after, gains)
    named = {
        (k, frozenset(event.guards[j] for j in fired)): GainCurve.constant(phantom.gain)
        for fired, phantom in modes.items()
    }
    return _Before(value, None, named)


def _phantom_gains(riccati: Riccati, k: int) -> dict[frozenset[int], GainOf]:
    """The gains K for V in each phantom mode to which a sequence of guards of event k leads."""
    system, event = riccati.lin.system, riccati.lin.trajectory.events[k]
    weight = riccati.input_weight(k, event.time)
    found: dict[frozenset[int], GainOf] = {}
    for names, one in intermediate(firings_at(system, event)).items():
        fired, mode = frozenset(event.guards.index(name) for name in names), system.mode(one.mode)
        b = linearize_field(mode, event.time, one.jump.state, event.input_before).input
        found[fired] = partial(np.matmul, np.linalg.solve(weight, b.T))
    return found
