r"""Hybrid LQR on a fixed grid of times, with the input held between them.

With the intervals of `sensitivity.discrete` and their integrated cost S, the Riccati recursion is

.. math:: V_k = S_{xx} + A^T V A - K^T H K, \qquad K = H^{-1} (S_{ux} + B^T V A), \qquad
          H = S_{uu} + B^T V B, \qquad V = V_{k+1} .

Events inside an interval are in A and B, those of an input that guard or reset see too: there the
input has a cost, and the minimum is attained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag

from hybridctl.checks import Array, semidefinite, vector
from hybridctl.control.lqr.weights import Weights, best_gain, weight_at
from hybridctl.sensitivity.discrete import Interval, discretize
from hybridctl.sensitivity.linearize import Linearization


@dataclass(frozen=True, eq=False)
class DiscreteLqr:
    """du_k = -gains[k] dx_k on interval k, and the values at its N + 1 times.

    gains: N of (nu, ndx). values: N + 1 of (ndx, ndx); the least cost to go is dx . V dx.
    """

    intervals: tuple[Interval, ...]
    gains: tuple[Array, ...]
    values: tuple[Array, ...]

    def cost(self, dx0: ArrayLike) -> float:
        """The least cost from an initial deviation dx0 (ndx,)."""
        dx = vector("dx0", dx0, len(self.values[0]))
        return float(dx @ self.values[0] @ dx)

    @property
    def closed_loop(self) -> Array:
        """D x(end) / D x(start) (ndx+, ndx) under the feedback."""
        total: Array = np.eye(len(self.values[0]))
        for interval, gain in zip(self.intervals, self.gains, strict=True):
            total = (interval.state - interval.input @ gain) @ total
        return total


def discrete_lqr(
    lin: Linearization,
    times: ArrayLike,
    state_weight: Weights,
    input_weight: Weights,
    final_weight: ArrayLike,
) -> DiscreteLqr:
    """The optimal held inputs for the cost of `hybrid_lqr`, integrated along the held motion.

    times: the grid, see `discretize`. Weights: see `hybrid_lqr`. Raises `InputError` for bad
    weights and times, where guards are simultaneous, and for weights of the input that are lost in
    rounding.
    """
    arcs = lin.trajectory.arcs
    ends = [(arc.start, arc.end) for arc in arcs]
    q = weight_at("state_weight", state_weight, [arc.space.ndx for arc in arcs], ends)
    sizes = [arc.inputs.shape[2] for arc in arcs]
    r = weight_at("input_weight", input_weight, sizes, ends, definite=True)
    v = semidefinite("final_weight", final_weight, arcs[-1].space.ndx)
    intervals = discretize(lin, times, lambda k, t: block_diag(q(k, t), r(k, t)))
    gains, values = list[Array](), [v]
    for interval in reversed(intervals):
        gain, v = step_back(interval, v)
        gains.append(gain)
        values.append(v)
    return DiscreteLqr(intervals, tuple(gains[::-1]), tuple(values[::-1]))


def step_back(interval: Interval, after: Array) -> tuple[Array, Array]:
    """K (nu, ndx) and V (ndx, ndx) at the start of an interval for V at its end."""
    n = interval.state.shape[1]
    both = np.hstack([interval.state, interval.input])
    whole = interval.cost + both.T @ after @ both
    gain = best_gain(whole[n:, n:], whole[n:, :n])
    value = whole[:n, :n] - whole[:n, n:] @ gain
    return gain, 0.5 * (value + value.T)
