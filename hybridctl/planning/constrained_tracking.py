r"""Predictive control around a planned periodic motion on a manifold, through its next events.

`ConstrainedTracking` is the hybrid LQR of a periodic orbit with corrections v of its input,

.. math:: u = \mu(t) - K(t)\, \delta x + v, \qquad \delta x = x \ominus \alpha(t),

that keep limits over a horizon. Perturbations :math:`\delta x` are in the tangent space of the
motion. They go along arcs and through events by the closed loop of the LQR,

.. math:: \delta x_{i+1} = \Phi_i\, \delta x_i + \Gamma_i\, v_i, \qquad
          \delta x^+ = G\, \delta x^-,

with saltation matrices G. Completing the square in the cost of the LQR with the value V gives

.. math:: J = \tfrac12 \delta x_0^T V\, \delta x_0 + \tfrac12 \int v^T R\, v\, dt ,

so that a quadratic programme in v alone has the optimum v = 0 wherever the LQR keeps all limits:
inputs between their bounds, and guards of the mode, such as normal forces and friction cones, above
a share of what the motion itself keeps. All is linearized once, before the first sample.

The input enters no event here: what v changes at an event itself, such as the time of a lift-off,
is left out, and J holds for motions whose saltation matrices have no such part. An event of several
guards is as good as its jump in the linearization of the LQR.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from time import thread_time
from typing import NamedTuple

import numpy as np
import piqp
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import (
    Array,
    check_array,
    check_count,
    check_instance,
    check_number,
    check_sequence,
)
from hybridctl.base.errors import InputError
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.control.reference import Reference
from hybridctl.control.tracking_law import TrackingLaw, parse_limits
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.policy import History
from hybridctl.planning.plan import TIME_ROUNDING, PhaseSequence
from hybridctl.sensitivity.collocation import integrate_linear_equation
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.propagation import linearize_field
from hybridctl.sensitivity.symmetry import map_perturbations

_ACCURACY = 1e-6
"""Absolute and relative tolerance of the solver, of inputs relative to 1 N m. A choice."""
_REGULARISATION = 1e-8
"""Curvature of slacks, which have none of their own, relative to the least diagonal entry of the
weights of corrections."""
_VIOLATION = 1e-6
"""Violation of a limit that counts as rounding: of guards relative to their scale, of inputs in
their unit."""
_ROUNDS = 6
"""Most programmes of a sample: each adds the limits that the solution before violates. A choice."""
_TOLERANCE = 1e-8
"""Tolerances of the matrices of intervals: those of gains, which follow V to as much."""


@dataclass(frozen=True)
class TrackingHorizon:
    """How far and how finely limits are kept.

    Attributes:
        interval: Greatest length of an interval, s. Limits hold at its start; those of the present
            interval are linearized there and hold for the present state.
        fine: Greatest length of the parts of an interval, s: the present interval begins at one of
            their ends.
        holds: Number of intervals on which each correction is constant, the present one first.
        sample: Time between samples, s.
        share: Share of each guard of the motion that is kept: 0 for limits at the borders of modes.
        slack: Cost per s of the worst violation in an interval. Violations are relative to the
            greatest value of the limit on the arc, or in the unit of the guard where that is zero,
            as with a share of 1.

    Raises:
        InputError: A number is out of range.
    """

    interval: float = 0.01
    fine: float = 1e-3
    holds: tuple[int, ...] = (1, 1, 2, 4, 4, 4, 4)
    sample: float = 0.02
    share: float = 0.1
    slack: float = 1e3

    def __post_init__(self) -> None:
        for name in ("interval", "fine", "sample", "slack"):
            check_number(name, getattr(self, name), above=0.0)
        check_number("share", self.share, at_least=0.0, at_most=1.0)
        for i, count in enumerate(check_sequence("holds", self.holds)):
            check_count(f"holds[{i}]", count)


@dataclass(frozen=True, eq=False)
class LimitRows:
    """Limits c + C dx + D v >= 0 at one point of the motion.

    Attributes:
        values: Values c (r,) on the motion.
        by_state: C (r, ndx), under the feedback.
        by_input: D (r, nu).
        soft: Which of them (r,) have a slack: guards. The others limit inputs.
    """

    values: Array
    by_state: Array
    by_input: Array
    soft: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TrackingInterval:
    """An interval of an arc of the orbit.

    Attributes:
        arc: Index of the arc in the orbit.
        start: Start, s, in the time of the orbit.
        end: End, s.
        parts: Transition matrices (m, ndx + nu, ndx + nu) of its m equal parts, with corrections as
            constant states.
        limits: Limits at its start.
    """

    arc: int
    start: float
    end: float
    parts: Array
    limits: LimitRows

    def get_matrices(self, first: int) -> tuple[Array, Array]:
        """Return Phi (ndx, ndx) and Gamma (ndx, nu) from the start of a part to the end."""
        if first not in self._products:
            total = np.eye(self.parts.shape[1])
            for part in self.parts[first:]:
                total = part @ total
            ndx = self.limits.by_state.shape[1]
            self._products[first] = total[:ndx, :ndx], total[:ndx, ndx:]
        return self._products[first]

    @cached_property
    def _products(self) -> dict[int, tuple[Array, Array]]:
        """Matrices by first part; a cache."""
        return {}


class HorizonPlace(NamedTuple):
    """The place in the orbit at which a horizon begins.

    Attributes:
        period: Number of periods that are over.
        interval: Index of the interval in the orbit.
        part: Index of its part.
    """

    period: int
    interval: int
    part: int


class HorizonPassage(NamedTuple):
    """Intervals of a horizon.

    Attributes:
        lengths: Length (n,) of each, s.
        blocks: Number of the correction of each.
        wraps: Number of periods that end before each.
        violates: Whether a limit is violated without corrections.
    """

    lengths: Array
    blocks: list[int]
    wraps: list[int]
    violates: bool


class HorizonQP(NamedTuple):
    """Quadratic programme of a sample: min v' H v / 2 + costs' s, c + F v + s >= 0, s >= 0.

    Limits without a slack have s = 0.

    Attributes:
        weights: Diagonal blocks of H as one array (n, nu, nu), of n corrections.
        values: Values c (r,) without corrections.
        by_inputs: F (r, n nu).
        slack: Index of the slack (r,) of each limit, -1 for none.
        slack_costs: Cost of each slack.
    """

    weights: Array
    values: Array
    by_inputs: Array
    slack: NDArray[np.int64]
    slack_costs: Array

    def solve(self) -> Array | None:
        """Return the corrections (n, nu), None if the programme is not solved.

        Each programme keeps the limits of the one before and adds those that its solution violates,
        beginning with those violated at zero. If the last one violates none, it has the optimum of
        all limits; after `_ROUNDS` programmes its solution is taken as it is, and is no failure.
        """
        n, nu, _ = self.weights.shape
        v = np.zeros(n * nu)
        chosen = np.zeros(len(self.values), dtype=bool)
        for _ in range(_ROUNDS):
            violated = self.values + self.by_inputs @ v < -_VIOLATION
            violated[chosen] = False
            if chosen.any():  # soft limits in the programme may be violated, at a price
                over = self._slacks_of(v, chosen)
                soft = self.slack >= 0
                room = self.values + self.by_inputs @ v + np.where(soft, over[self.slack], 0.0)
                violated &= room < -_VIOLATION
            if not violated.any():
                return v.reshape(n, nu)
            chosen |= violated
            found = self._solve_chosen(chosen)
            if found is None:
                return None
            v = found
        return v.reshape(n, nu)

    def _slacks_of(self, v: Array, chosen: NDArray[np.bool_]) -> Array:
        """Return the slacks (s,) that chosen limits need under corrections v."""
        over = np.zeros(len(self.slack_costs) + 1)  # the last entry is that of "no slack"
        rows = chosen & (self.slack >= 0)
        np.maximum.at(over, self.slack[rows], -(self.values + self.by_inputs @ v)[rows])
        return over

    def _solve_chosen(self, chosen: NDArray[np.bool_]) -> Array | None:
        """Return the corrections (n nu,) under the chosen limits (r,), None if not solved."""
        n, nu, _ = self.weights.shape
        rows = np.flatnonzero(chosen)
        used, place = np.unique(self.slack[rows], return_inverse=True)
        slacks = used[used >= 0]
        size = n * nu + len(slacks)
        hessian = np.zeros((size, size))
        for i, block in enumerate(self.weights):
            part = slice(i * nu, (i + 1) * nu)
            hessian[part, part] = block
        least = float(self.weights.diagonal(axis1=1, axis2=2).min())
        tail = np.arange(n * nu, size)
        hessian[tail, tail] = _REGULARISATION * least
        gradient = np.zeros(size)
        gradient[tail] = self.slack_costs[slacks]
        matrix = np.zeros((len(rows), size))
        matrix[:, : n * nu] = -self.by_inputs[rows]
        soft = np.flatnonzero(self.slack[rows] >= 0)
        first = int((used < 0).any())
        matrix[soft, n * nu + place[soft] - first] = -1.0
        solver = piqp.DenseSolver()
        for name in ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"):
            setattr(solver.settings, name, _ACCURACY)
        low = np.full(size, -np.inf)
        low[tail] = 0.0
        solver.setup(hessian, gradient, None, None, matrix, None, self.values[rows], low, None)
        if solver.solve() != piqp.PIQP_SOLVED:
            return None
        return np.array(solver.result.x)[: n * nu]


class ConstrainedTracking:
    """Hybrid LQR of a periodic orbit, corrected so that limits hold over a horizon.

    Each arc is followed until an event leads to the mode of the next arc, by whatever guards.
    Samples are taken when they are due and after such events; between them the corrections of the
    last sample and the feedback go on.

    Life cycle: `law` may be called at any time of a run. A history that ends before the last sample
    is that of another run, and begins anew; one object serves one run at a time.

    Args:
        lqr: The feedback on the orbit.
        reference: The orbit over several periods (`PeriodicLqr.repeated`), with extended arcs.
        input_weight: Weight R (nu, nu) of inputs, that of the LQR.
        limits: Greatest absolute inputs (nu,), or least and greatest ones (2, nu). A symmetry
            of the orbit maps them to themselves.
        horizon: Settings of the horizon, None for `TrackingHorizon()`.

    Attributes:
        failures: Number of programmes without a solution since the start of the run. The LQR acts
            alone then, cut to the limits.
        active: Number of samples since the start of the run at which the LQR violates a limit.
        seconds: Processor time of each sample since the start of the run, s.

    Raises:
        InputError: Arguments that do not fit together.
    """

    failures: int
    active: int
    seconds: list[float]
    _corrections: Array  # corrections (n, nu) on the intervals since the last sample
    _ends: Array  # their ends (n,), s
    _sampled: float  # time of the last sample, s; infinite before the first one
    _arc: int  # arc that was followed then, -1 before

    def __init__(
        self,
        lqr: PeriodicLqr,
        reference: Reference,
        input_weight: ArrayLike,
        limits: ArrayLike,
        horizon: TrackingHorizon | None = None,
    ) -> None:
        self.lqr = check_instance("lqr", lqr, PeriodicLqr)
        self.reference = check_instance("reference", reference, Reference)
        self.horizon = TrackingHorizon() if horizon is None else horizon
        check_instance("horizon", self.horizon, TrackingHorizon)
        orbit = lqr.period.linearization.trajectory
        self._orbit, self._nu = orbit, orbit.arcs[0].inputs.shape[2]
        self._weight = check_array("input_weight", input_weight, (self._nu, self._nu))
        bounds = parse_limits(limits, self._nu)
        assert bounds is not None
        self._limits = bounds
        periods = (reference.nominal.end - reference.nominal.start) / (orbit.end - orbit.start)
        repeated, self._gains = lqr.repeated(max(1, round(periods)))
        if len(self._gains.arcs) != len(reference.arcs):
            raise InputError(
                f"reference must be the orbit over whole periods, with {len(self._gains.arcs)} "
                f"arcs, got {len(reference.arcs)}"
            )
        self._phases = PhaseSequence.from_arcs(reference.arcs, repeated.events)
        ndx, symmetry = orbit.arcs[0].space.ndx, lqr.symmetry
        self._state_map = map_perturbations(symmetry, np.eye(ndx))
        self._input_map = np.eye(self._nu) if symmetry is None else symmetry.inputs(self._nu)
        which = np.abs(self._input_map).argmax(axis=1)  # the input that each is exchanged with
        signs = self._input_map[np.arange(self._nu), which]
        if not np.array_equal(np.sort(signs * bounds[:, which], axis=0), bounds):
            raise InputError(
                f"limits must be the same for inputs that the symmetry exchanges, got {bounds}"
            )
        self._intervals = [each for k in range(len(orbit.arcs)) for each in self._divide_arc(k)]
        self.reset()

    def reset(self) -> None:
        """Forget all samples, as before the first call."""
        self.failures = self.active = 0
        self.seconds = []
        self._corrections, self._ends = np.zeros((0, self._nu)), np.zeros(0)
        self._sampled, self._arc = math.inf, -1

    def law(self, history: History) -> InputLaw:
        """Return the feedback with the present correction, and take a sample if one is due.

        Args:
            history: State, mode, time and events so far.
        """
        now, k = history.time, self._phases.find_phase(history.time, history.events)
        if now < self._sampled - TIME_ROUNDING:  # also at the first call: another run begins
            self.reset()
        if k != self._arc or now >= self._sampled + self.horizon.sample - TIME_ROUNDING:
            self._sampled, self._arc = now, k
            begun = thread_time()
            self._take_sample(now, history.state, k)
            self.seconds.append(thread_time() - begun)
        arc, i = self.reference.arcs[k], self._ends.searchsorted(now + TIME_ROUNDING, "right")
        if i < len(self._corrections):
            inputs = arc.inputs.copy()
            inputs[:, 0] += self._corrections[i]  # the constant term of each series
            arc = replace(arc, inputs=inputs)
        return TrackingLaw(arc, self._gains.arcs[k], self._limits).differentiable()

    def next_change(self, history: History) -> float:
        """Return when the next sample is due, or the correction changes, s.

        Args:
            history: As for `law`, just before.
        """
        now = history.time
        later = self._ends[self._ends > now + TIME_ROUNDING]
        due = self._sampled + self.horizon.sample
        end = self._phases.get_end(self._phases.find_phase(now, history.events))
        due = due if due > now else now + self.horizon.sample
        return float(min([due, end, *later[:1].tolist()]))

    def _take_sample(self, now: float, x: Array, k: int) -> None:
        """Set the corrections from now on, and count samples with violated limits and failures.

        Args:
            now: Time, s.
            x: State (nx,).
            k: Index of the arc of the reference that is followed.
        """
        self._corrections, self._ends = np.zeros((0, self._nu)), np.zeros(0)
        arc = self.reference.arcs[k]
        dx = arc.space.difference(arc(min(max(now, arc.start), arc.end)), x)
        place = self._find_place(now, k)
        passage = self.predict(place, dx)
        if not passage.violates:
            return
        self.active += 1
        found = self.build_programme(place, dx).solve()
        if found is None:
            self.failures += 1
            return
        self._ends = now + np.cumsum(passage.lengths)
        inverse, period = np.linalg.inv(self._input_map), place.period
        self._corrections = np.array(
            [
                np.linalg.matrix_power(inverse, period + wraps) @ v
                for v, wraps in zip(found[passage.blocks], passage.wraps, strict=True)
            ]
        )

    def _find_place(self, now: float, k: int) -> HorizonPlace:
        """Return the place of a time on arc k of the reference, in the orbit.

        Args:
            now: Time, s.
            k: Index of the arc.
        """
        orbit = self._orbit
        length, per_period = orbit.end - orbit.start, len(orbit.arcs) - 1
        period, arc = divmod(k, per_period) if per_period else (0, 0)
        start = self.reference.nominal.start
        # The last arc of a period and the first of the next one are a single arc.
        if per_period and arc == 0 and period:
            is_last = k == len(self.reference.arcs) - 1
            if is_last or now < start + period * length:
                period, arc = period - 1, per_period
        if not per_period:
            period = max(0, math.floor((now - start) / length))
        t = now - period * length - (start - orbit.start)
        own = [i for i, each in enumerate(self._intervals) if each.arc == arc]
        i = next((i for i in own if t < self._intervals[i].end - TIME_ROUNDING), own[-1])
        each = self._intervals[i]
        count = len(each.parts)
        part = math.floor((t - each.start) / (each.end - each.start) * count + 0.5)
        return HorizonPlace(period, i, min(max(part, 0), count - 1))

    def _divide_arc(self, k: int) -> list[TrackingInterval]:
        """Return the intervals of arc k of the orbit."""
        lin, arc = self.lqr.period.linearization, self._orbit.arcs[k]
        gain, mode = self.lqr.period.gains.arcs[k], lin.system.mode(arc.mode)
        ndx, nu = arc.space.ndx, self._nu

        def equation(t: float) -> tuple[Array, None]:
            """Return the matrix of the closed loop, with the corrections as further states."""
            c = linearize_field(mode, t, *arc.state_and_input(t))
            whole = np.zeros((ndx + nu, ndx + nu))
            whole[:ndx] = np.hstack([c.state - c.input @ gain(t), c.input])
            return whole, None

        edges = _divide(arc.start, arc.end, self.horizon.interval)
        rows = [self._linearize_limits(k, t) for t in edges[:-1].tolist()]
        rows = scale_guards(rows)
        intervals = []
        for start, end, limits in zip(edges[:-1].tolist(), edges[1:].tolist(), rows, strict=True):
            fine = _divide(start, end, self.horizon.fine).tolist()
            parts = []
            for a, b in pairwise(fine):
                z = np.eye(ndx + nu)
                for step in integrate_linear_equation(
                    equation, z, a, b, rtol=_TOLERANCE, atol=_TOLERANCE, first_step=b - a
                ):
                    z = step.states[-1].reshape(z.shape)
                parts.append(z)
            intervals.append(TrackingInterval(k, start, end, np.array(parts), limits))
        return intervals

    @cached_property
    def _impact_guards(self) -> set[str]:
        """Guards that end arcs of the orbit where the state jumps, and their images.

        They are no limits: an impact may come earlier, and just after it its guard is zero.
        """
        symmetry, found = self.lqr.symmetry, set[str]()
        for event in self._orbit.events:
            if not np.array_equal(event.state_before, event.state_after):
                found |= {*event.guards}
        if symmetry is not None:
            found |= {symmetry.guard(name) for name in found}
        return found

    def _linearize_limits(self, k: int, t: float) -> LimitRows:
        """Return the limits at a time of arc k of the orbit, under the feedback.

        Args:
            k: Index of the arc.
            t: Time, s.
        """
        lin, arc = self.lqr.period.linearization, self._orbit.arcs[k]
        x, u = arc.state_and_input(t)
        gain, mode = self.lqr.period.gains.arcs[k](t), lin.system.mode(arc.mode)
        point, nu = mode.calc(t, x, u), self._nu
        left_out = self._impact_guards
        kept = [i for i, name in enumerate(mode.guard_names) if name not in left_out]
        slopes, values = point.guard_jacobian, point.guards[kept]
        # Where the motion itself is beyond a limit, staying on the motion is enough: the limit is
        # moved there. The law still cuts inputs to their true limits.
        room = np.concatenate([u - self._limits[0], self._limits[1] - u])
        by_input = np.vstack([np.eye(nu), -np.eye(nu)])
        finite = np.isfinite(room)
        share = 1.0 - self.horizon.share
        return LimitRows(
            np.concatenate([np.maximum(share * values, 0.0), np.maximum(room[finite], 0.0)]),
            np.vstack([slopes.state[kept] - slopes.input[kept] @ gain, -by_input[finite] @ gain]),
            np.vstack([slopes.input[kept], by_input[finite]]),
            np.arange(len(kept) + finite.sum()) < len(kept),
        )

    def _iterate_intervals(
        self, place: HorizonPlace
    ) -> Iterator[tuple[TrackingInterval, int, int]]:
        """Yield the intervals of the horizon, the number of their correction, and of wraps.

        Args:
            place: The place at which the horizon begins.
        """
        i, wraps = place.interval, 0
        for block, count in enumerate(self.horizon.holds):
            for _ in range(count):
                yield self._intervals[i], block, wraps
                i += 1
                if i == len(self._intervals):
                    i, wraps = 0, wraps + 1

    def _pass_event(self, interval: TrackingInterval, states: Array) -> Array:
        """Return perturbations (ndx, m) after the event that ends an interval, if one does.

        The end of the orbit is no event: there coordinates change by the symmetry.

        A piecewise linear jump is that of the piece in which the first column is.

        Args:
            interval: The interval, at whose end they are.
            states: Perturbations (ndx, m).
        """
        if interval.end < self._orbit.arcs[interval.arc].end:
            return states
        if interval.arc == len(self._orbit.arcs) - 1:
            return np.asarray(self._state_map @ states)
        jump = self.lqr.period.closed_loop.jumps[interval.arc]
        if isinstance(jump, PiecewiseLinearJump):
            return np.asarray(jump.matrix(jump.order(states[:, 0])) @ states)
        return np.asarray(jump.state @ states)

    def predict(self, place: HorizonPlace, dx: Array) -> HorizonPassage:
        """Return the passage of a perturbation through the horizon without corrections.

        Args:
            place: The place at which it begins.
            dx: Perturbation (ndx,) from the reference, in coordinates of the system.
        """
        states = self._map_to_orbit(place, dx)
        values, lengths, blocks, wraps, first = [], [], [], [], place.part
        for interval, block, wrapped in self._iterate_intervals(place):
            rows = interval.limits
            values.append(rows.values + rows.by_state @ states[:, 0])
            lengths.append((interval.end - interval.start) * (1.0 - first / len(interval.parts)))
            blocks.append(block)
            wraps.append(wrapped)
            matrix, _ = interval.get_matrices(first)
            states, first = self._pass_event(interval, matrix @ states), 0
        violates = bool(min(each.min(initial=0.0) for each in values) < -_VIOLATION)
        return HorizonPassage(np.array(lengths), blocks, wraps, violates)

    def build_programme(self, place: HorizonPlace, dx: Array) -> HorizonQP:
        """Return the quadratic programme of a sample.

        Args:
            place: The place at which the horizon begins.
            dx: Perturbation (ndx,) from the reference, in coordinates of the system.
        """
        nu, n, first = self._nu, len(self.horizon.holds), place.part
        states = np.zeros((len(dx), 1 + n * nu))
        states[:, :1] = self._map_to_orbit(place, dx)
        lengths, costs = np.zeros(n), list[float]()
        values, by_inputs, slack = list[Array](), list[Array](), list[Array]()
        for interval, block, _ in self._iterate_intervals(place):
            own, used = slice(1 + block * nu, 1 + (block + 1) * nu), 1 + (block + 1) * nu
            rows = interval.limits
            seen = np.zeros((len(rows.values), 1 + n * nu))
            seen[:, :used] = rows.by_state @ states[:, :used]
            seen[:, own] += rows.by_input
            values.append(rows.values + seen[:, 0])
            by_inputs.append(seen[:, 1:])
            slack.append(np.where(rows.soft, len(costs), -1))
            length = (interval.end - interval.start) * (1.0 - first / len(interval.parts))
            costs.append(self.horizon.slack * length)
            lengths[block] += length
            matrix, by_input = interval.get_matrices(first)
            states[:, :used] = matrix @ states[:, :used]
            states[:, own] += by_input
            states[:, :used] = self._pass_event(interval, states[:, :used])
            first = 0
        return HorizonQP(
            lengths[:, None, None] * self._weight,
            np.concatenate(values),
            np.concatenate(by_inputs),
            np.concatenate(slack),
            np.array(costs),
        )

    def _map_to_orbit(self, place: HorizonPlace, dx: Array) -> Array:
        """Return a perturbation (ndx, 1) in the coordinates of the orbit itself."""
        power = np.linalg.matrix_power(self._state_map, place.period)
        return np.asarray((power @ dx)[:, None])


def scale_guards(rows: list[LimitRows]) -> list[LimitRows]:
    """Return limits of one arc with each guard relative to its greatest value there.

    Args:
        rows: Limits at points of the arc, with the same guards.
    """
    largest = np.max([each.values for each in rows], axis=0)
    scale = np.where(rows[0].soft & (largest > 0.0), largest, 1.0)
    return [
        LimitRows(
            each.values / scale, each.by_state / scale[:, None], each.by_input / scale[:, None],
            each.soft,
        )
        for each in rows
    ]  # fmt: skip


def _divide(start: float, end: float, longest: float) -> Array:
    """Return the ends (n + 1,) of equal parts of an interval that are not longer, s."""
    return np.linspace(start, end, max(1, math.ceil((end - start) / longest - 1e-9)) + 1)
