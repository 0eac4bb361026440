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

A and B are taken at the middle of equal intervals of each arc, once, as they do not depend on K; on
an interval all is constant, and the cost is that of its exact solution. It converges with the
square of the intervals' length. The gradient is that of this very sum, by its adjoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag, eigh
from scipy.stats import norm, qmc

from hybridctl.checks import Array, count
from hybridctl.control.gains import GainSchedule
from hybridctl.control.lqr.weights import WeightAt, Weights, symmetric, weight_at
from hybridctl.control.tuning.prediction_events import Crossing, PhantomKey, predicted_event
from hybridctl.control.tuning.prediction_flow import Flow, flow
from hybridctl.errors import InputError
from hybridctl.sensitivity.linearize import Linearization


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
    """An arc of n intervals of `length` s: A (n, d, d), B (n, d, nu), Q (n, d, d) at `times`."""

    times: Array
    end: float
    length: float
    state: Array
    input: Array
    weight: Array


@dataclass(frozen=True, eq=False)
class _Passed:
    """What the gradient needs of an arc that has been passed."""

    gains: Array
    flow: Flow
    products: Array
    start: Array


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
        intervals: int = 64,
        points: int = 512,
        seed: int = 0,
    ) -> None:
        if linearization.gains is not None:
            raise InputError("linearization must be without feedback: the gains are put in here")
        arcs = linearization.trajectory.arcs
        nu, first, last = arcs[0].inputs.shape[2], arcs[0].space.ndx, arcs[-1].space.ndx
        self.linearization = linearization
        self._r = symmetric("input_weight", input_weight, nu)
        spans = [(arc.start, arc.end) for arc in arcs]
        weight = weight_at("state_weight", state_weight, [a.space.ndx for a in arcs], spans)
        number = count("intervals", intervals)
        self._nodes = [_nodes(linearization, k, weight, number) for k in range(len(arcs))]
        self._events = [predicted_event(k, jump) for k, jump in enumerate(linearization.jumps)]
        final = np.zeros((last, last)) if final_weight is None else final_weight
        self._final = block_diag(symmetric("final_weight", final, last), np.zeros((nu, nu)))
        p0 = symmetric("covariance", covariance, first)
        nothing = np.zeros((nu, nu))
        pw = nothing if input_covariance is None else input_covariance
        joint = block_diag(p0, symmetric("input_covariance", pw, nu))
        self._points = _points(joint, count("points", points, at_least=2), seed)

    def __call__(self, gains: GainSchedule) -> PredictedCost:
        """J and its gradient; gains of arcs past the end of the trajectory do not count.

        Raises `InputError` for gains that do not fit.
        """
        if len(gains.arcs) < len(self._nodes):
            raise InputError(
                f"gains must have one curve per arc ({len(self._nodes)}), got {len(gains.arcs)}"
            )
        z, total = self._points, 0.0
        passed: list[_Passed] = []
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
    ) -> tuple[_Passed, float, Array]:
        """One arc: what the gradient needs, its cost, and the points at its end."""
        shape = (nodes.input.shape[2], nodes.state.shape[1])
        curve = gains.arcs[k]
        if curve.values.shape[1:] != shape:
            raise InputError(f"gains of arc {k} must be {shape}, got {curve.values.shape[1:]}")
        gain = np.array([curve(float(t)) for t in nodes.times])
        d, full = shape[1], sum(shape)
        rate = np.zeros((len(gain), full, full))
        rate[:, :d, :d] = nodes.state - nodes.input @ gain
        rate[:, :d, d:] = nodes.input
        density = np.zeros_like(rate)
        density[:, :d, :d] = nodes.weight + np.swapaxes(gain, 1, 2) @ self._r @ gain
        steps = flow(rate, density, nodes.length)
        products = np.empty((len(gain) + 1, full, full))
        products[0] = np.eye(full)
        for i, phi in enumerate(steps.transition):
            products[i + 1] = phi @ products[i]
        moment = z @ z.T / z.shape[1]
        spread = products[:-1] @ moment @ np.swapaxes(products[:-1], 1, 2)
        cost = float(np.einsum("nij,nij->", steps.cost, spread))
        return _Passed(gain, steps, products, z), cost, products[-1] @ z

    def _gradient(
        self, total: float, passed: list[_Passed], crossed: list[Crossing], end: Array
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

    def _back(self, nodes: _Nodes, part: _Passed, end: Array) -> tuple[Array, Array]:
        """One arc: the gradients by its gain, and by the points at its start."""
        phi, w, products, z = part.flow.transition, part.flow.cost, part.products, part.start
        n, d = len(phi), nodes.state.shape[1]
        moment = z @ z.T / z.shape[1]
        spread = products[:-1] @ moment @ np.swapaxes(products[:-1], 1, 2)
        value = np.zeros_like(moment)  # of the cost on the rest of the arc
        rest = end @ z.T  # what the points' end adds to the gradient by each transition
        by_phi = np.empty_like(phi)
        for i in reversed(range(n)):
            by_phi[i] = 2.0 * value @ phi[i] @ spread[i] + rest @ products[i].T
            value = w[i] + phi[i].T @ value @ phi[i]
            rest = phi[i].T @ rest
        by_rate, by_density = part.flow.pullback(by_phi, spread)
        by_rate, by_density = by_rate[:, :d, :d], by_density[:, :d, :d]
        by_gain = 2.0 * self._r @ part.gains @ by_density
        by_gain -= np.swapaxes(nodes.input, 1, 2) @ by_rate
        start = (2.0 / z.shape[1]) * value @ z + products[-1].T @ end
        return by_gain.sum(axis=0), start


def _nodes(linearization: Linearization, k: int, weight: WeightAt, intervals: int) -> _Nodes:
    arc = linearization.trajectory.arcs[k]
    length = float(arc.end - arc.start) / intervals
    times = np.asarray(arc.start + length * (np.arange(intervals) + 0.5), dtype=np.float64)
    found = [linearization.coefficients(arc, float(t)) for t in times]
    return _Nodes(
        times,
        arc.end,
        length,
        np.array([c.state for c in found]),
        np.array([c.input for c in found]),
        np.array([weight(k, float(t)) for t in times]),
    )


def _points(covariance: Array, points: int, seed: int) -> Array:
    """Low-discrepancy points (d, m) with zero mean and this covariance; half mirror the others."""
    if points & (points - 1):
        raise InputError(f"points must be a power of two, got {points}")
    d = len(covariance)
    if points < 4 * d:
        raise InputError(f"points must be {4 * d} or more for {d} uncertain numbers, got {points}")
    uniform = qmc.Sobol(d, seed=seed).random(points // 2)
    normal = norm.ppf(np.clip(uniform, 1e-15, 1.0 - 1e-15))
    normal = np.concatenate((normal, -normal))
    white = np.linalg.solve(np.linalg.cholesky(normal.T @ normal / points), normal.T)
    values, vectors = eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)) @ white)
