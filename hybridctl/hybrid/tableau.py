"""Runge-Kutta formulas: explicit ones with error estimates and dense output, and Radau IIA.

A `Tableau` is explicit. It has stages k_i = f(t + c_i h, y + h sum_j a_ij k_j), i = 0..s-1; the
end y+ = y + h sum_j b_j k_j and its rate k_s, which is k_0 of the next step; extra stages for the
dense output alone. Coefficients are scipy's, after Dormand and Prince (Hairer, Norsett, Wanner:
Solving Ordinary Differential Equations I, II.5 and II.10) and Bogacki and Shampine.

The function `radau` makes implicit formulas of any odd order (Hairer, Wanner: II, IV.5): for the
stiff steps of the module `hybrid.radau`, and for linear equations in `sensitivity.collocation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre
from scipy.integrate import DOP853, RK23, RK45

from hybridctl.base.checks import Array
from hybridctl.hybrid.series import FRACTIONS

LOW_WEIGHT = 0.01
"""Weight of the error estimate of third order in that of DOP853, HNW I, II.10 (10.18)."""


@dataclass(frozen=True, eq=False)
class Tableau:
    """A formula with s stages.

    Attributes:
        rows: Row i - 1, (i,), has the weights a_ij of stage i = 1..s-1, of the end (i = s), and of
            the extra stages behind it.
        nodes: The nodes c_i of the same stages.
        stages: The number s.
        errors: Weights (m, s + 1) of the error estimate, and of one of lower order for m = 2.
        dense: Weights (8, all) of the increments y(s_k) - y at the nodes of a step, divided by h.
        exponent: Exponent of the error in the factor by which the length of a step changes:
            -1/(p + 1), p being the order of the error estimate.
    """

    rows: tuple[Array, ...]
    nodes: tuple[float, ...]
    stages: int
    errors: Array
    dense: Array
    exponent: float

    def error(self, h: float, rates: Array, scale: Array) -> float:
        """Return the error of a step in units of the tolerance, as a root mean square.

        Args:
            h: Length of the step, s.
            rates: Rates k (s + 1, n) of the stages and of the end.
            scale: Tolerance (n,) of each coordinate.
        """
        estimates = (self.errors @ rates) / scale
        main = float(estimates[0] @ estimates[0])
        n = len(scale)
        if len(estimates) == 1:
            return abs(h) * float(np.sqrt(main / n))
        low = float(estimates[1] @ estimates[1])
        if main == 0.0 and low == 0.0:  # 0 / 0 below
            return 0.0
        return abs(h) * main / float(np.sqrt((main + LOW_WEIGHT * low) * n))


def _make_tableau(
    method: type[DOP853] | type[RK45] | type[RK23], errors: Array, dense: Array
) -> Tableau:
    """Return the tableau of one of scipy's solvers.

    Args:
        method: The solver's class, which has the coefficients.
        errors: See `Tableau`.
        dense: See `Tableau`.
    """
    s = method.n_stages
    rows = [np.array(method.A[i, :i]) for i in range(1, s)] + [np.array(method.B)]
    nodes = [*np.asarray(method.C)[1:].tolist(), 1.0]
    extra = getattr(method, "A_EXTRA", np.zeros((0, 0)))
    for k, row in enumerate(extra):
        rows.append(np.array(row[: s + 1 + k]))
        nodes.append(float(method.C_EXTRA[k]))
    exponent = -1.0 / (method.error_estimator_order + 1)
    return Tableau(tuple(rows), tuple(nodes), s, errors, dense, exponent)


def _make_power_output(method: type[RK45] | type[RK23]) -> Array:
    """Return the weights of the dense output sum_k P_k s^k with s in [0, 1]."""
    powers = FRACTIONS[:, None] ** np.arange(1, method.P.shape[1] + 1)
    return np.asarray(powers @ method.P.T)


def _make_hermite_output() -> Array:
    """Return the weights of the dense output of DOP853.

    It is s (F_0 + (1 - s) (F_1 + s (F_2 + ...))) with s in [0, 1], HNW I, II.10 (10.19).
    """
    unit = np.eye(DOP853.n_stages + 1 + len(DOP853.A_EXTRA))
    end = np.pad(DOP853.B, (0, len(unit) - len(DOP853.B)))
    start, last = unit[0], unit[DOP853.n_stages]
    parts = [end, start - end, 2.0 * end - last - start, *DOP853.D]
    factors = [FRACTIONS, 1.0 - FRACTIONS]
    weights = np.cumprod([factors[k % 2] for k in range(len(parts))], axis=0)
    return np.asarray(weights.T @ np.array(parts))


DOP853_TABLEAU = _make_tableau(DOP853, np.array([DOP853.E5, DOP853.E3]), _make_hermite_output())
RK45_TABLEAU = _make_tableau(RK45, np.array([RK45.E]), _make_power_output(RK45))
RK23_TABLEAU = _make_tableau(RK23, np.array([RK23.E]), _make_power_output(RK23))


class Radau(NamedTuple):
    """The Radau IIA formula on [0, 1].

    Attributes:
        points: Points c (s,), ascending; the last is 1.
        weights: Weights b (s,).
        matrix: Coefficients a (s, s).
        adjoint: Radau IA rows (s + 1, s): ones for z_0, then a_ij / b_j for stage j; see
            `LinearStep.maps_to_end`.
    """

    points: Array
    weights: Array
    matrix: Array
    adjoint: Array


@lru_cache
def radau(stages: int) -> Radau:
    """Return the Radau IIA formula with s stages, of order 2 s - 1.

    Its points are the roots of the difference P_s - P_(s-1) of Legendre polynomials, moved from
    [-1, 1] to [0, 1]. Its matrix integrates the polynomial through the stages' rates.

    Args:
        stages: The number s.
    """
    difference = np.zeros(stages + 1)
    difference[-2:] = -1.0, 1.0
    points = np.sort(legendre.legroots(difference).real)
    points[-1] = 1.0
    lagrange = np.linalg.inv(legendre.legvander(points, stages - 1))
    integrals = 0.5 * legendre.legvander(points, stages) @ legendre.legint(lagrange, lbnd=-1.0)
    matrix = np.asarray(integrals, dtype=np.float64)
    adjoint = np.vstack([np.ones(stages), (matrix / matrix[-1]).T])
    return Radau(0.5 * (points + 1.0), matrix[-1], matrix, adjoint)
