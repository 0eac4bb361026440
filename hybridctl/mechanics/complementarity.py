r"""Gauss' principle: the motion nearest to the free one that no contact forbids.

One problem serves impacts (velocities) and the choice of closed contacts (accelerations):

.. math:: M (w - w_{free}) = J^T \lambda, \qquad 0 \le J w - b \perp \lambda \ge 0,

the optimality conditions of the least distance, in the metric M, from w_free to the half-spaces
J w >= b. [RS] (2.25)-(2.28).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dtrtrs
from scipy.optimize import nnls

from hybridctl.checks import Array
from hybridctl.errors import NoContactSolutionError

_TIE = 1e-10
_TIGHT = 1e-9
_CERTIFIED = 1e-9
_RANK = 1e-12


@dataclass(frozen=True)
class GaussSolution:
    """The motion w (nv,), multipliers (k,), and which of the k constraints act.

    `active`: multiplier positive. `weakly_active`: neither multiplier nor slack exceeds 1e-10
    of the problem's scale, so the set that acts may change there. `residual` is the largest
    violation of the conditions, relative to that scale. With redundant constraints w is unique,
    and the multipliers are the ones of least norm where those are non-negative.
    """

    motion: Array
    multipliers: Array
    active: tuple[int, ...]
    weakly_active: tuple[int, ...]
    residual: float


def least_constraint(mass: Array, free: Array, rows: Array, bound: Array) -> GaussSolution:
    """Solve the problem of this module for M (nv, nv), w_free (nv,), J (k, nv), b (k,).

    A least-distance problem solved as one of non-negative least squares (Lawson and Hanson,
    Solving Least Squares Problems, ch. 23), then polished on the constraints that are tight, and
    certified. Raises `NoContactSolutionError` if no motion satisfies J w >= b.
    """
    root, _ = dpotrf(mass, lower=1)
    g = dtrtrs(root, rows.T, lower=1)[0].T
    lengths = np.sqrt(np.einsum("ij,ij->i", g, g))
    lengths[lengths == 0.0] = 1.0
    h = (bound - rows @ free) / lengths
    scale = float(np.abs(h).max(initial=0.0)) or 1.0
    g, h = g / lengths[:, None], h / scale
    z = _multipliers(g, h)
    slack = g @ (g.T @ z) - h
    z = _polished(g, h, z, slack <= _TIGHT, lengths)
    step = g.T @ z
    slack = g @ step - h
    residual = float(max(np.max(-slack, initial=0.0), np.max(np.abs(slack * z), initial=0.0)))
    if residual > _CERTIFIED:
        raise NoContactSolutionError(
            f"no motion keeps all contacts apart: constraints {rows.tolist()} with bounds "
            f"{bound.tolist()} from free motion {free.tolist()}, residual {residual:.3g}"
        )
    acts = z > _TIE
    return GaussSolution(
        free + scale * dtrtrs(root, step, lower=1, trans=1)[0],
        scale * z / lengths,
        tuple(np.flatnonzero(acts).tolist()),
        tuple(np.flatnonzero(~acts & (slack <= _TIE)).tolist()),
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


def _polished(g: Array, h: Array, z: Array, tight: NDArray[np.bool_], lengths: Array) -> Array:
    """The solution on the tight constraints, or else on those that act, to full accuracy.

    Of several solutions the one of least norm in the multipliers z / lengths is taken, unless
    it pulls.
    """
    for chosen in (tight, z > _TIE):
        rows = g[chosen]
        weighted = (rows @ rows.T) * lengths[chosen]
        found = np.linalg.lstsq(weighted, h[chosen], rcond=_RANK)[0] * lengths[chosen]
        if (found >= 0.0).all():
            result = np.zeros_like(z)
            result[chosen] = found
            return result
    return z
