r"""The cost of feedback gains that the linearization predicts, with its exact gradient.

Deviations follow :math:`\dot z = (A - B K) z + B w` on arcs and
:math:`z^+ = (G - J K) z + J w` at events, under the feedback :math:`\delta u = -K z`; w is an error
of the input that stays the same. The predicted cost is

.. math:: J(K) = E \Big[ \int z^T Q z + \delta u^T R\, \delta u \; dt + z(T)^T Q_T z(T) \Big],
   \qquad z_0 \sim N(0, P_0), \; w \sim N(0, P_w),

with the LTTHS ([RS] 3.2) where events are isolated and the PTTHS ([RS] 4.3) where guards are
simultaneous.

*Treatment of simultaneous events*: the expectation is the mean over fixed, seeded points that have
exactly the given covariance. At an event each point takes the piece of its own order of guards,
found with the feedback on. On arcs and at isolated events only the second moment of the points
counts, so there the result is that of the covariance itself, whatever the points.

A and B are taken once, as they do not depend on K: at the stages of collocated intervals of each
arc (`sensitivity.collocation`, of order five), which are shorter towards its start, where a stiff
loop has its transients. The gradient is that of this very sum, by its adjoint.

Through events points (z, w) are carried, deviation and error of the input. At a simultaneous one
they take the jumps of their own order of guards, each

.. math:: z \leftarrow (G_i - J_i K_i)\, z + J_i w ,

with K_i the gain of the arc before the event at the first guard and that of the phantom arc, or
none, at the following ones ([RS] (4.33)). An isolated event is the case of one guard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag

from hybridctl.base.checks import Array, Indices, check_count, check_semidefinite
from hybridctl.base.errors import InputError
from hybridctl.control.gains import GainSchedule
from hybridctl.control.lqr.weights import WeightAt, Weights, weight_at
from hybridctl.sensitivity.collocation import LinearStep, radau
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.moments import sample_normal_points
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.saltation import JumpGains

PhantomKey = tuple[int, frozenset[str]]


@dataclass(frozen=True, eq=False)
class _Chain:
    """Points with one order of guards: their columns, and the points before each guard."""

    columns: Indices
    order: tuple[int, ...]
    before: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Points `after` (d+ + nu, m) an event, and what the gradient needs."""

    after: Array
    chains: tuple[_Chain, ...]
    gains: dict[frozenset[int], Array]


@dataclass(frozen=True, eq=False)
class PredictedEvent:
    """An event of a linearization; `piecewise` has the jumps of its guards."""

    index: int
    piecewise: PiecewiseLinearJump

    def cross(self, points: Array, schedule: GainSchedule, time: float) -> ForwardPass:
        """Carry points (d + nu, m) through the event, each in its own order."""
        gains = {frozenset[int](): schedule.arcs[self.index](time)}

        def gain(fired: frozenset[int]) -> Array:
            if fired not in gains:
                gains[fired] = self._phantom_gain(fired, schedule, time)
            return gains[fired]

        nu = self.piecewise.input_dimension
        passage = self.piecewise.with_feedback(gain).follow(points[:-nu].T, points[-nu:].T)
        after = np.vstack([passage.state.T, points[-nu:]])
        orders, members = np.unique(passage.orders, axis=0, return_inverse=True)
        chains = []
        for i, order in enumerate(orders.tolist()):
            columns: Indices = np.flatnonzero(members.ravel() == i)
            before = [points[:, columns]]
            for n, j in enumerate(order[:-1]):
                fired = frozenset(order[:n])
                before.append(self._step(fired, j, gain(fired)) @ before[n])
            chains.append(_Chain(columns, tuple(order), tuple(before)))
        return ForwardPass(after, tuple(chains), gains)

    def pullback(
        self, crossing: ForwardPass, after: Array
    ) -> tuple[Array, Array, dict[PhantomKey, Array]]:
        """Gradients by the points before the event, by K of the arc before it, and by phantom K.

        after (d+ + nu, m): the gradient by the points after it.
        """
        gains = {fired: np.zeros_like(gain) for fired, gain in crossing.gains.items()}
        first = crossing.chains[0].before[0]
        result = np.empty((len(first), after.shape[1]))
        for chain in crossing.chains:
            gradient = after[:, chain.columns]
            for i in reversed(range(len(chain.order))):
                fired, j = frozenset(chain.order[:i]), chain.order[i]
                gain, nu = crossing.gains[fired], len(crossing.gains[fired])
                by_input = self.piecewise.jump(fired, j).input.T @ gradient[:-nu]
                gains[fired] -= by_input @ chain.before[i][:-nu].T
                gradient = self._step(fired, j, gain).T @ gradient
            result[:, chain.columns] = gradient
        between = {
            (self.index, frozenset(self.piecewise.guards[j] for j in fired)): gain
            for fired, gain in gains.items()
            if fired
        }
        return result, gains[frozenset()], between

    def _step(self, fired: frozenset[int], j: int, gain: Array) -> Array:
        """What guard j makes of points (z, w) where some have fired: (d+ + nu, d + nu)."""
        jump, nu = self.piecewise.jump(fired, j), len(gain)
        below = [np.zeros((nu, jump.state.shape[1])), np.eye(nu)]
        return np.block([[jump.state - jump.input @ gain, jump.input], below])

    def _phantom_gain(self, fired: frozenset[int], schedule: GainSchedule, time: float) -> Array:
        names = frozenset(self.piecewise.guards[j] for j in fired)
        curve = schedule.phantoms.get((self.index, names))
        left = next(j for j in range(len(self.piecewise.guards)) if j not in fired)
        jump = self.piecewise.jump(fired, left)
        shape = (len(jump.time_input), len(jump.time_state))
        gain = np.zeros(shape) if curve is None else curve(time)
        if gain.shape != shape:
            raise InputError(
                f"gains of the phantom arc after {sorted(names)} of event {self.index} must be "
                f"{shape}, got {gain.shape}"
            )
        return gain


_FORMULA = radau(3)
_GRADING = 3.0  # interval j of n ends at (j / n)^3 of its arc


@dataclass(frozen=True, eq=False)
class PredictedCost:
    """A cost and its gradient.

    arcs[k] (nu, ndx): by a constant added to K(t) of arc k. phantoms: by that of phantom arcs, by
    the index of the event and the guards that have fired.
    """

    cost: float
    arcs: tuple[Array, ...]
    phantoms: dict[PhantomKey, Array]


@dataclass(frozen=True, eq=False)
class _Nodes:
    """An arc of n intervals of `lengths` (n,) s, with A, B and Q (n, s, d, ...) at their stages."""

    times: Array
    end: float
    lengths: Array
    state: Array
    input: Array
    weight: Array


@dataclass(frozen=True, eq=False)
class _ArcTape:
    """What the gradient needs of an arc that has been passed.

    gains, densities: K and what it makes of Q and R (n, s, ...) at the stages. products (n + 1,
    ...): transition matrices from the start of the arc. start: the points there.
    """

    gains: Array
    densities: Array
    steps: LinearStep
    costs: Array
    products: Array
    start: Array

    def pullback(self, by_transition: Array, by_cost: Array) -> tuple[Array, Array]:
        """Gradients by the rates and by the densities (n, s, d, d).

        by_transition, by_cost (n, d, d): the gradients by those of the intervals.
        """
        x, weights = self.steps.stage_maps, self.steps.weights[..., None, None]
        moved = x @ by_cost[:, None]
        by_start = 2.0 * weights * (self.densities @ moved)
        by_start[:, -1] += by_transition
        return self.steps.pullback(by_start), weights * (moved @ np.swapaxes(x, 2, 3))


class Prediction:
    r"""The predicted cost of gains along a trajectory; called with a `GainSchedule`.

    linearization: without feedback, of the trajectory that is tracked.
    state_weight: Q (ndx, ndx), one for all arcs, a list with one for each, or a function of arc
    and time.
    input_weight: R (nu, nu) of the feedback; the error w of the input is not counted.
    covariance: P_0 (ndx, ndx) of the initial deviation. input_covariance: P_w (nu, nu), or None.
    final_weight: Q_T (ndx, ndx), or None.
    intervals: of each arc. points, seed: of the expectation; points is a power of two.

    Raises `InputError` for sizes that do not fit, or weights that are not positive semidefinite.
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
        weight = weight_at("state_weight", state_weight, [a.space.ndx for a in arcs], spans)
        number = check_count("intervals", intervals)
        self._nodes = [_nodes(linearization, k, weight, number) for k in range(len(arcs))]
        jumps = map(_piecewise, linearization.jumps)
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
        """The cost J and its gradient; gains of arcs past the end do not count.

        Raises `InputError` for gains that do not fit.
        """
        if len(gains.arcs) < len(self._nodes):
            raise InputError(
                f"gains must have one curve per arc ({len(self._nodes)}), got {len(gains.arcs)}"
            )
        z, total = self._points, 0.0
        passed: list[_ArcTape] = []
        crossed = []
        for k, nodes in enumerate(self._nodes):
            part, spent, z = self._along(k, nodes, gains, z)
            passed.append(part)
            total += spent
            if k < len(self._events):
                crossing = self._events[k].cross(z, gains, nodes.end)
                crossed.append(crossing)
                z = crossing.after
        total += float(np.einsum("ij,ik,kj->", z, self._final, z)) / z.shape[1]
        return self._gradient(total, passed, crossed, (2.0 / z.shape[1]) * (self._final @ z))

    def _along(
        self, k: int, nodes: _Nodes, gains: GainSchedule, z: Array
    ) -> tuple[_ArcTape, float, Array]:
        """The cost of one arc, the points at its end, and what the gradient needs of it."""
        nu, d = nodes.input.shape[3], nodes.input.shape[2]
        curve = gains.arcs[k]
        if curve.values.shape[1:] != (nu, d):
            raise InputError(f"gains of arc {k} must be {(nu, d)}, got {curve.values.shape[1:]}")
        gain = curve(nodes.times)
        rates = np.zeros((*nodes.times.shape, d + nu, d + nu))
        rates[..., :d, :d] = nodes.state - nodes.input @ gain
        rates[..., :d, d:] = nodes.input
        densities = np.zeros_like(rates)
        densities[..., :d, :d] = nodes.weight + np.swapaxes(gain, 2, 3) @ self._r @ gain
        steps = LinearStep(rates, nodes.lengths, _FORMULA)
        costs = steps.propagation(None, densities).cost
        products = [np.eye(d + nu)]
        for transition in steps.stage_maps[:, -1]:
            products.append(transition @ products[-1])
        passed = _ArcTape(gain, densities, steps, costs, np.array(products), z)
        return passed, float(np.sum(costs * _spread(passed))), products[-1] @ z

    def _gradient(
        self, total: float, passed: list[_ArcTape], crossed: list[ForwardPass], end: Array
    ) -> PredictedCost:
        """Backwards, from the gradient by the points at the end."""
        arcs: list[Array] = []
        phantoms: dict[PhantomKey, Array] = {}
        for k in reversed(range(len(passed))):
            at_event: Array | float = 0.0
            if k < len(crossed):
                end, at_event, between = self._events[k].pullback(crossed[k], end)
                phantoms |= between
            by_gain, end = self._back(self._nodes[k], passed[k], end)
            arcs.insert(0, by_gain + at_event)
        return PredictedCost(total, tuple(arcs), phantoms)

    def _back(self, nodes: _Nodes, part: _ArcTape, end: Array) -> tuple[Array, Array]:
        """The gradients of the cost by the gain of one arc, and by the points at its start."""
        phi, products, z = part.steps.stage_maps[:, -1], part.products, part.start
        spread, d = _spread(part), nodes.state.shape[-1]
        value = np.zeros_like(spread[0])  # of the cost on the rest of the arc
        rest = end @ z.T  # what the points' end adds to the gradient by each transition
        by_phi = np.empty_like(phi)
        for i in reversed(range(len(phi))):
            by_phi[i] = 2.0 * value @ phi[i] @ spread[i] + rest @ products[i].T
            value = part.costs[i] + phi[i].T @ value @ phi[i]
            rest = phi[i].T @ rest
        by_rate, by_density = (by[..., :d, :d] for by in part.pullback(by_phi, spread))
        by_gain = 2.0 * self._r @ part.gains @ by_density
        by_gain -= np.swapaxes(nodes.input, 2, 3) @ by_rate
        start = (2.0 / z.shape[1]) * value @ z + products[-1].T @ end
        return by_gain.sum(axis=(0, 1)), start


def _piecewise(jump: JumpGains | PiecewiseLinearJump) -> PiecewiseLinearJump:
    if isinstance(jump, PiecewiseLinearJump):
        return jump
    return PiecewiseLinearJump(("isolated",), lambda fired, j: jump)


def _spread(part: _ArcTape) -> Array:
    """The second moments (n, d, d) of the points at the starts of the intervals."""
    before = part.products[:-1]
    moment = part.start @ part.start.T / part.start.shape[1]
    return np.asarray(before @ moment @ np.swapaxes(before, 1, 2))


def _nodes(linearization: Linearization, k: int, weight: WeightAt, intervals: int) -> _Nodes:
    arc = linearization.trajectory.arcs[k]
    cuts = arc.start + (arc.end - arc.start) * np.linspace(0.0, 1.0, intervals + 1) ** _GRADING
    cuts = np.union1d(cuts, arc.changes)
    lengths = np.diff(cuts)
    times = np.asarray(cuts[:-1, None] + lengths[:, None] * _FORMULA.points)
    found = [linearization.coefficients(arc.piece(row[0]), np.array(row)) for row in times.tolist()]
    a, b = np.array([c.state for c in found]), np.array([c.input for c in found])
    weights = np.array([[weight(k, t) for t in row] for row in times.tolist()])
    return _Nodes(times, arc.end, lengths, a, b, weights)
