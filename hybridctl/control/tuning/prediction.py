r"""The cost of feedback gains as the linearization predicts it, with its exact gradient.

Perturbations follow :math:`\dot z = (A - B K) z + B w` on arcs and :math:`z^+ = (G - J K) z + J w`
at events, under the feedback :math:`\delta u = -K z`, with a constant error w of the input. The
predicted cost is

.. math:: J(K) = E \Big[ \int z^T Q z + \delta u^T R\, \delta u \; dt + z(T)^T Q_T z(T) \Big],
   \qquad z_0 \sim N(0, P_0), \; w \sim N(0, P_w),

with the LTTHS ([RS] 3.2) where events are isolated and the PTTHS ([RS] 4.3) where guards are
simultaneous.

The expectation is the mean over fixed, seeded points (z, w) that have exactly the given
covariance. On arcs and at isolated events only the second moment of the points counts, so that the
result there is exact, whatever the points. At a simultaneous event each point takes the jumps of
its own order of guards, found with the feedback on,

.. math:: z \leftarrow (G_i - J_i K_i)\, z + J_i w .

K_i is the gain of the arc before the event at the first guard, and that of the phantom arc, or
zero, at the following ones ([RS] (4.33)). An isolated event is the case of one guard.

A and B do not depend on K and are evaluated once, at the stages of collocated intervals of each arc
(`sensitivity.collocation`, of order five). Intervals are shorter towards the start of an arc, where
a stiff loop has its transients. The gradient is that of this very sum, by its adjoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag

from hybridctl.base.checks import Array, Indices, check_count, check_semidefinite
from hybridctl.base.errors import InputError
from hybridctl.control.gains import GainSchedule
from hybridctl.control.lqr.weights import WeightFunction, Weights, make_weight_function
from hybridctl.hybrid.tableau import radau
from hybridctl.sensitivity.collocation import LinearStep
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.moments import sample_normal_points
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.saltation import JumpGains

PhantomKey = tuple[int, frozenset[str]]


@dataclass(frozen=True, eq=False)
class _PointsOfOrder:
    """The points that take one order of guards.

    A point is a column (z, w): a perturbation z (d,) of the state and an input error w (nu,).

    Attributes:
        columns: Columns of these points.
        order: Indices of the guards, in their order.
        before: Points (d + nu, m) before each guard.
    """

    columns: Indices
    order: tuple[int, ...]
    before: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """The passage of points through an event, with what its gradient needs.

    Attributes:
        after: Points (d+ + nu, m) after the event.
        groups: Points by their order of guards.
        gains: Gain by the guards that have fired.
    """

    after: Array
    groups: tuple[_PointsOfOrder, ...]
    gains: dict[frozenset[int], Array]


@dataclass(frozen=True, eq=False)
class PredictedEvent:
    """An event of a linearization.

    Attributes:
        index: Index of the event.
        piecewise: First-order map of the event, with the jumps of its guards.
    """

    index: int
    piecewise: PiecewiseLinearJump

    def propagate(self, points: Array, schedule: GainSchedule, time: float) -> ForwardPass:
        """Return the passage of points through the event, each in its own order of guards.

        Args:
            points: Points (d + nu, m) before the event.
            schedule: Gains.
            time: Time of the event, s.
        """
        gains = {frozenset[int](): schedule.arcs[self.index](time)}

        def gain(fired: frozenset[int]) -> Array:
            if fired not in gains:
                gains[fired] = self._evaluate_phantom_gain(fired, schedule, time)
            return gains[fired]

        nu = self.piecewise.input_dimension
        passage = self.piecewise.with_feedback(gain).follow(points[:-nu].T, points[-nu:].T)
        after = np.vstack([passage.state.T, points[-nu:]])
        orders, members = np.unique(passage.orders, axis=0, return_inverse=True)
        groups = []
        for i, order in enumerate(orders.tolist()):
            columns: Indices = np.flatnonzero(members.ravel() == i)
            before = [points[:, columns]]
            for n, j in enumerate(order[:-1]):
                fired = frozenset(order[:n])
                before.append(self._make_step(fired, j, gain(fired)) @ before[n])
            groups.append(_PointsOfOrder(columns, tuple(order), tuple(before)))
        return ForwardPass(after, tuple(groups), gains)

    def pullback(
        self, crossing: ForwardPass, after: Array
    ) -> tuple[Array, Array, dict[PhantomKey, Array]]:
        """Return the gradients by the points before the event and by the gains.

        Args:
            crossing: Passage of the points.
            after: Gradient (d+ + nu, m) by the points after the event.

        Returns:
            Gradient by the points before it, by K of the arc before it, and by phantom gains.
        """
        gains = {fired: np.zeros_like(gain) for fired, gain in crossing.gains.items()}
        first = crossing.groups[0].before[0]
        result = np.empty((len(first), after.shape[1]))
        for group in crossing.groups:
            gradient = after[:, group.columns]
            for i in reversed(range(len(group.order))):
                fired, j = frozenset(group.order[:i]), group.order[i]
                gain, nu = crossing.gains[fired], len(crossing.gains[fired])
                by_input = self.piecewise.jump(fired, j).input.T @ gradient[:-nu]
                gains[fired] -= by_input @ group.before[i][:-nu].T
                gradient = self._make_step(fired, j, gain).T @ gradient
            result[:, group.columns] = gradient
        by_phantom = {
            (self.index, frozenset(self.piecewise.guards[j] for j in fired)): gain
            for fired, gain in gains.items()
            if fired
        }
        return result, gains[frozenset()], by_phantom

    def _make_step(self, fired: frozenset[int], j: int, gain: Array) -> Array:
        """Return the map (d+ + nu, d + nu) of points through guard j, after others have fired."""
        jump, nu = self.piecewise.jump(fired, j), len(gain)
        constant = [np.zeros((nu, jump.state.shape[1])), np.eye(nu)]
        return np.block([[jump.state - jump.input @ gain, jump.input], constant])

    def _evaluate_phantom_gain(
        self, fired: frozenset[int], schedule: GainSchedule, time: float
    ) -> Array:
        """Return the gain (nu, d) where some guards have fired; by default zero.

        Raises:
            InputError: The gain of the schedule has another shape.
        """
        names = frozenset(self.piecewise.guards[j] for j in fired)
        curve = schedule.phantoms.get((self.index, names))
        waiting = next(j for j in range(len(self.piecewise.guards)) if j not in fired)
        jump = self.piecewise.jump(fired, waiting)
        shape = (len(jump.time_input), len(jump.time_state))
        gain = np.zeros(shape) if curve is None else curve(time)
        if gain.shape != shape:
            raise InputError(
                f"gains of the phantom arc after {sorted(names)} of event {self.index} must be "
                f"{shape}, got {gain.shape}"
            )
        return gain


_INTERVAL_FORMULA = radau(3)
"""Implicit Runge-Kutta formula of the intervals."""
_GRADING = 3.0
"""Exponent of the grading: interval j of n ends at (j / n)^3 of its arc."""


@dataclass(frozen=True, eq=False)
class PredictedCost:
    """A predicted cost and its gradient.

    Attributes:
        cost: Cost J.
        arcs: Gradient (nu, ndx) by a constant that is added to K(t), for each arc.
        phantoms: Gradient by the gain of phantom arcs, by the index of the event and the guards
            that have fired.
    """

    cost: float
    arcs: tuple[Array, ...]
    phantoms: dict[PhantomKey, Array]


@dataclass(frozen=True, eq=False)
class _ArcCoefficients:
    """The coefficients of the linearization at the stages of an arc's intervals.

    Attributes:
        times: Times (n, s) of the stages, s.
        end: End of the arc, s.
        lengths: Lengths (n,) of the intervals, s.
        state: Matrices A (n, s, d, d).
        input: Matrices B (n, s, d, nu).
        weight: Weights Q (n, s, d, d).
    """

    times: Array
    end: float
    lengths: Array
    state: Array
    input: Array
    weight: Array


@dataclass(frozen=True, eq=False)
class _ArcTape:
    """The forward pass over an arc, as the gradient needs it.

    Attributes:
        gains: Gains K (n, s, nu, d) at the stages.
        densities: Cost densities Q + K' R K (n, s, d + nu, d + nu) at the stages.
        steps: Collocated steps of the intervals.
        costs: Cost matrix (n, d + nu, d + nu) of each interval.
        products: Transition matrices (n + 1, ...) from the start of the arc.
        start: Points (d + nu, m) at the start.
    """

    gains: Array
    densities: Array
    steps: LinearStep
    costs: Array
    products: Array
    start: Array

    def pullback(self, by_transition: Array, by_cost: Array) -> tuple[Array, Array]:
        """Return the gradients (n, s, m, m) by the rates and by the densities at the stages.

        The matrices are those of points, with m = d + nu.

        Args:
            by_transition: Gradient (n, m, m) by the transition matrix of each interval.
            by_cost: Gradient (n, m, m) by the cost matrix of each interval.
        """
        x, weights = self.steps.stage_maps, self.steps.weights[..., None, None]
        x_by_cost = x @ by_cost[:, None]
        by_start = 2.0 * weights * (self.densities @ x_by_cost)
        by_start[:, -1] += by_transition
        return self.steps.pullback(by_start), weights * (x_by_cost @ np.swapaxes(x, 2, 3))


class Prediction:
    r"""The predicted cost of gains along a trajectory; called with a `GainSchedule`.

    Args:
        linearization: First-order map of the trajectory that is tracked, without feedback.
        state_weight: Weight Q (ndx, ndx): one for all arcs, a list with one for each, or a
            function of arc and time.
        input_weight: Weight R (nu, nu) of the feedback. The error w of the input costs nothing.
        covariance: Covariance P_0 (ndx, ndx) of the initial perturbation.
        input_covariance: Covariance P_w (nu, nu) of the error of the input; None for zero.
        final_weight: Weight Q_T (ndx, ndx); None for zero.
        intervals: Number of intervals of each arc.
        points: Number of points of the expectation, a power of two.
        seed: Seed of the points.

    Raises:
        InputError: The linearization has feedback, a size does not fit, a weight is not
            positive semidefinite, or the points are fewer than 4 (ndx + nu) or no power of two.

    Attributes:
        linearization: First-order map of the trajectory.
    """

    def __init__(
        self,
        linearization: Linearization,
        state_weight: Weights,
        input_weight: ArrayLike,
        covariance: ArrayLike,
        *,
        input_covariance: ArrayLike | None = None,
        final_weight: ArrayLike | None = None,
        intervals: int = 24,
        points: int = 512,
        seed: int = 0,
    ) -> None:
        if linearization.gains is not None:
            raise InputError("linearization must be without feedback: the gains are put in here")
        arcs = linearization.trajectory.arcs
        nu, first, last = arcs[0].inputs.shape[2], arcs[0].space.ndx, arcs[-1].space.ndx
        self.linearization = linearization
        self._r = check_semidefinite("input_weight", input_weight, nu)
        spans = [(arc.start, arc.end) for arc in arcs]
        weight = make_weight_function(
            "state_weight", state_weight, [a.space.ndx for a in arcs], spans
        )
        number = check_count("intervals", intervals)
        self._arcs = [_sample_arc(linearization, k, weight, number) for k in range(len(arcs))]
        jumps = map(_make_piecewise, linearization.jumps)
        self._events = [PredictedEvent(k, jump) for k, jump in enumerate(jumps)]
        final = np.zeros((last, last)) if final_weight is None else final_weight
        self._final = block_diag(
            check_semidefinite("final_weight", final, last), np.zeros((nu, nu))
        )
        p0 = check_semidefinite("covariance", covariance, first)
        nothing = np.zeros((nu, nu))
        pw = nothing if input_covariance is None else input_covariance
        joint = block_diag(p0, check_semidefinite("input_covariance", pw, nu))
        if points < 4 * len(joint):
            raise InputError(
                f"points must be {4 * len(joint)} or more for {len(joint)} uncertain numbers, got "
                f"{points}"
            )
        self._points = sample_normal_points(joint, points, seed).T

    def __call__(self, gains: GainSchedule) -> PredictedCost:
        """Return the cost J and its gradient; gains of arcs past the end do not count.

        Args:
            gains: Gains of each arc and of phantom arcs.

        Raises:
            InputError: The number or shapes of gains do not fit.
        """
        if len(gains.arcs) < len(self._arcs):
            raise InputError(
                f"gains must have one curve per arc ({len(self._arcs)}), got {len(gains.arcs)}"
            )
        z, total = self._points, 0.0
        tapes: list[_ArcTape] = []
        crossings = []
        for k, arc in enumerate(self._arcs):
            tape, cost, z = self._propagate_arc(k, arc, gains, z)
            tapes.append(tape)
            total += cost
            if k < len(self._events):
                crossing = self._events[k].propagate(z, gains, arc.end)
                crossings.append(crossing)
                z = crossing.after
        total += float(np.einsum("ij,ik,kj->", z, self._final, z)) / z.shape[1]
        return self._backpropagate(total, tapes, crossings, (2.0 / z.shape[1]) * (self._final @ z))

    def _propagate_arc(
        self, k: int, arc: _ArcCoefficients, gains: GainSchedule, z: Array
    ) -> tuple[_ArcTape, float, Array]:
        """Propagate points (d + nu, m) over arc k.

        Returns:
            The tape of the gradient, the cost of the arc, and the points at its end.

        Raises:
            InputError: The gains of the arc have another shape.
        """
        nu, d = arc.input.shape[3], arc.input.shape[2]
        curve = gains.arcs[k]
        if curve.values.shape[1:] != (nu, d):
            raise InputError(f"gains of arc {k} must be {(nu, d)}, got {curve.values.shape[1:]}")
        gain = curve(arc.times)
        rates = np.zeros((*arc.times.shape, d + nu, d + nu))
        rates[..., :d, :d] = arc.state - arc.input @ gain
        rates[..., :d, d:] = arc.input
        densities = np.zeros_like(rates)
        densities[..., :d, :d] = arc.weight + np.swapaxes(gain, 2, 3) @ self._r @ gain
        steps = LinearStep(rates, arc.lengths, _INTERVAL_FORMULA)
        costs = steps.propagation(None, densities).cost
        products = [np.eye(d + nu)]
        for transition in steps.stage_maps[:, -1]:
            products.append(transition @ products[-1])
        tape = _ArcTape(gain, densities, steps, costs, np.array(products), z)
        return tape, float(np.sum(costs * _compute_moments(tape))), products[-1] @ z

    def _backpropagate(
        self, total: float, tapes: list[_ArcTape], crossings: list[ForwardPass], end: Array
    ) -> PredictedCost:
        """Return cost and gradient, by a pass from the end to the start.

        Args:
            total: The cost.
            tapes: Forward pass over each arc.
            crossings: Passage through each event.
            end: Gradient (d + nu, m) by the points at the end.
        """
        arcs: list[Array] = []
        phantoms: dict[PhantomKey, Array] = {}
        for k in reversed(range(len(tapes))):
            at_event: Array | float = 0.0
            if k < len(crossings):
                end, at_event, by_phantom = self._events[k].pullback(crossings[k], end)
                phantoms |= by_phantom
            by_gain, end = self._backpropagate_arc(self._arcs[k], tapes[k], end)
            arcs.insert(0, by_gain + at_event)
        return PredictedCost(total, tuple(arcs), phantoms)

    def _backpropagate_arc(
        self, arc: _ArcCoefficients, tape: _ArcTape, end: Array
    ) -> tuple[Array, Array]:
        """Return the gradients by the gain of one arc and by the points at its start.

        Args:
            arc: Coefficients of the arc.
            tape: Forward pass over it.
            end: Gradient (d + nu, m) by the points at its end.
        """
        phi, products, z = tape.steps.stage_maps[:, -1], tape.products, tape.start
        moments, d = _compute_moments(tape), arc.state.shape[-1]
        value = np.zeros_like(moments[0])  # cost matrix of the remaining intervals
        costate = end @ z.T  # gradient by the transition matrix of the remaining intervals
        by_phi = np.empty_like(phi)
        for i in reversed(range(len(phi))):
            by_phi[i] = 2.0 * value @ phi[i] @ moments[i] + costate @ products[i].T
            value = tape.costs[i] + phi[i].T @ value @ phi[i]
            costate = phi[i].T @ costate
        by_rate, by_density = (by[..., :d, :d] for by in tape.pullback(by_phi, moments))
        by_gain = 2.0 * self._r @ tape.gains @ by_density
        by_gain -= np.swapaxes(arc.input, 2, 3) @ by_rate
        start = (2.0 / z.shape[1]) * value @ z + products[-1].T @ end
        return by_gain.sum(axis=(0, 1)), start


def _make_piecewise(jump: JumpGains | PiecewiseLinearJump) -> PiecewiseLinearJump:
    """Return the jump of an event as a piecewise linear one, of one guard if it is isolated."""
    if isinstance(jump, PiecewiseLinearJump):
        return jump
    return PiecewiseLinearJump(("isolated",), lambda fired, j: jump)


def _compute_moments(tape: _ArcTape) -> Array:
    """Return the second moments (n, d + nu, d + nu) of the points at the starts of intervals."""
    before = tape.products[:-1]
    moment = tape.start @ tape.start.T / tape.start.shape[1]
    return np.asarray(before @ moment @ np.swapaxes(before, 1, 2))


def _sample_arc(
    linearization: Linearization, k: int, weight: WeightFunction, intervals: int
) -> _ArcCoefficients:
    """Return the coefficients of arc k at the stages of its intervals.

    Changes of the law inside the arc are ends of intervals too.
    """
    arc = linearization.trajectory.arcs[k]
    cuts = arc.start + (arc.end - arc.start) * np.linspace(0.0, 1.0, intervals + 1) ** _GRADING
    cuts = np.union1d(cuts, arc.changes)
    lengths = np.diff(cuts)
    times = np.asarray(cuts[:-1, None] + lengths[:, None] * _INTERVAL_FORMULA.points)
    stages = [
        linearization.coefficients(arc.piece(row[0]), np.array(row)) for row in times.tolist()
    ]
    a, b = np.array([c.state for c in stages]), np.array([c.input for c in stages])
    weights = np.array([[weight(k, t) for t in row] for row in times.tolist()])
    return _ArcCoefficients(times, arc.end, lengths, a, b, weights)
