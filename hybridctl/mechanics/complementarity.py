r"""Gauss' principle: the motion nearest to the free one that no contact forbids.

One problem serves impacts (velocities) and the choice of closed contacts (accelerations):

.. math:: M (w - w_{free}) = J^T \lambda, \qquad 0 \le J w - b \perp \lambda \ge 0,

the optimality conditions of the least distance, in the metric M, from w_free to the half-spaces
J w >= b. [RS] (2.25)-(2.28).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls

from hybridctl.checks import Array
from hybridctl.errors import NoContactSolutionError

_TIE = 1e-10
_CERTIFIED = 1e-9


@dataclass(frozen=True)
class GaussSolution:
    """The motion w (nv,), multipliers (k,), and which of the k constraints act.

    `active`: multiplier positive. `weakly_active`: neither multiplier nor slack exceeds 1e-10
    of the problem's scale, so the set that acts may change there. `residual` is the largest
    violation of the conditions, relative to that scale. With redundant constraints w is unique
    and the multipliers are of least norm among those of the active set where these are
    non-negative.
    """

    motion: Array
    multipliers: Array
    active: tuple[int, ...]
    weakly_active: tuple[int, ...]
    residual: float


def least_constraint(mass: Array, free: Array, rows: Array, bound: Array) -> GaussSolution:
    """Solve the problem of this module for M (nv, nv), w_free (nv,), J (k, nv), b (k,).

    A least-distance problem solved as one of non-negative least squares (Lawson and Hanson,
    Solving Least Squares Problems, ch. 23), then polished on the set that acts and certified.
    Raises `NoContactSolutionError` if no motion satisfies J w >= b.
    """
    root = cholesky(mass, lower=True)
    g = solve_triangular(root, rows.T, lower=True).T
    lengths = np.sqrt(np.einsum("ij,ij->i", g, g))
    lengths[lengths == 0.0] = 1.0
    g = g / lengths[:, None]
    h = (bound - rows @ free) / lengths
    scale = float(np.abs(h).max(initial=0.0))
    z = _multipliers(g, h / scale) if scale > 0.0 else np.zeros(len(h))
    active = np.flatnonzero(z > _TIE)
    polished = np.zeros(len(h))
    polished[active] = np.linalg.lstsq(
        g[active] @ g[active].T, h[active] / max(scale, 1e-300), rcond=1e-12
    )[0]
    if (polished >= 0.0).all():
        z = polished
    step = g.T @ z
    slack = g @ step - h / scale if scale > 0.0 else np.zeros(len(h))
    residual = float(max(np.max(-slack, initial=0.0), np.max(np.abs(slack * z), initial=0.0)))
    if residual > _CERTIFIED:
        raise NoContactSolutionError(
            f"no motion keeps all contacts apart: constraints {rows.tolist()} with bounds "
            f"{bound.tolist()} from free motion {free.tolist()}, residual {residual:.3g}"
        )
    motion = free + scale * solve_triangular(root, step, lower=True, trans="T")
    weak = np.flatnonzero((z <= _TIE) & (slack <= _TIE))
    return GaussSolution(
        motion,
        scale * z / lengths,
        tuple(int(i) for i in np.flatnonzero(z > _TIE)),
        tuple(int(i) for i in weak),
        residual,
    )


def _multipliers(g: Array, h: Array) -> Array:
    """Multipliers of min |y|^2 / 2 subject to g y >= h."""
    if (h <= 0.0).all():
        return np.zeros(len(h))
    system = np.vstack([g.T, h])
    target = np.zeros(len(system))
    target[-1] = 1.0
    z, _ = nnls(system, target)
    distance = 1.0 - float(h @ z)
    return np.asarray(z / distance) if distance > _TIE else np.zeros(len(h))
