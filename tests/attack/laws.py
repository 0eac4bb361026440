r"""The laws of unilateral contact with Coulomb friction as residuals, written from the equations.

For contacts i with velocities w = G f + b of their rows (a normal, then 0, 1 or 2 tangents):

.. math::
    0 \le w_n \perp f_n \ge 0, \qquad |f_t| \le \mu f_n, \qquad
    w_t = 0 \text{ or } f_t = -\mu f_n w_t / |w_t|,

where restitution is part of b: w_n is v_n+ + e v_n-. The same at the level of accelerations and
forces, one derivative up. A residual is in units of the data, never of the answer: velocities in
units of V, the largest in b (or of the terms whose sum b is), forces of contact i in units of
F_i = V / g_i, with g_i the largest entry of its diagonal block of G: the force that makes a
velocity of V. Large forces therefore excuse nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """delassus G (r, r), free b (r,), friction (k,), tangents: how many of each contact (k,).

    Rows are in the order of the contacts, the normal of each first. `speed` is V; 0 stands for
    the largest entry of b.
    """

    delassus: Array
    free: Array
    friction: Array
    tangents: tuple[int, ...]
    speed: float = 0.0

    @property
    def velocity_unit(self) -> float:
        """V, 1 where nothing moves."""
        return max(self.speed, float(np.abs(self.free).max(initial=0.0))) or 1.0

    def blocks(self) -> Iterator[slice]:
        """The rows of each contact."""
        start = 0
        for count in self.tangents:
            yield slice(start, start + 1 + count)
            start += 1 + count

    def force_units(self) -> Array:
        """F (k,), infinite for a contact that no force moves."""
        largest = np.array([self.delassus.diagonal()[block].max() for block in self.blocks()])
        with np.errstate(divide="ignore"):
            return np.asarray(self.velocity_unit / largest)


class Violation(NamedTuple):
    """The largest residual of each law; see `violation`."""

    unilateral: float
    complementarity: float
    cone: float
    dissipation: float

    @property
    def worst(self) -> float:
        """The largest of them, infinite where one is not a number."""
        worst = max(self)
        return worst if np.isfinite(self).all() else float("inf")


def violation(law: Law, forces: Array) -> Violation:
    """How far forces (r,) are from the law.

    unilateral: the largest of -w_n / V and -f_n / F. complementarity: of the smaller one of
    w_n / V and f_n / F. cone: of (|f_t| - mu f_n) / F. dissipation: of the distance, in F, of f_t
    from the point of the disk |f_t| <= mu f_n next to f_t - w_t / g, which is zero exactly where
    w_t = 0 inside the disk or f_t = -mu f_n w_t / |w_t|.
    """
    rates = law.delassus @ forces + law.free
    parts = [
        _contact(rates[block] / law.velocity_unit, forces[block] / unit, mu)
        for block, unit, mu in zip(law.blocks(), law.force_units(), law.friction, strict=True)
    ]
    return Violation(*(float(column.max()) for column in np.array(parts).T))


def _contact(w: Array, f: Array, mu: float) -> tuple[float, float, float, float]:
    """The residuals of one contact, in units of the data."""
    w_n, f_n, w_t, f_t = w[0], f[0], w[1:], f[1:]
    disk = mu * max(f_n, 0.0)
    return (
        max(-w_n, -f_n, 0.0),
        max(min(w_n, f_n), 0.0),
        max(float(np.linalg.norm(f_t)) - mu * f_n, 0.0),
        float(np.linalg.norm(f_t - _in_disk(f_t - w_t, disk))),
    )


def _in_disk(p: Array, radius: float) -> Array:
    """The point of the disk next to p."""
    length = float(np.linalg.norm(p))
    return p if length <= radius else p * (radius / length)


def liftable(jacobian: Array, law: Law) -> bool:
    """Whether some velocity lifts all contacts out of their friction cones at once.

    Then J v is inside K* and an impact with e = 0 has a solution, whatever the velocity before it
    (Acary, Cadoux, Lemarechal, Malick 2011). Disks are replaced by polygons around them, so that
    True is certain.
    """
    from scipy.optimize import linprog

    angles = np.linspace(0.0, 2.0 * np.pi, 16, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1) / np.cos(np.pi / 16)
    rows = []
    for block, mu in zip(law.blocks(), law.friction, strict=True):
        normal, tangents = jacobian[block][0], jacobian[block][1:]
        corners = {0: np.zeros((1, 0)), 1: np.array([[1.0], [-1.0]]), 2: circle}[len(tangents)]
        rows.append(mu * corners @ tangents - normal)
    upper = np.concatenate(rows)
    nv = upper.shape[1]
    result = linprog(
        np.append(np.zeros(nv), -1.0),
        A_ub=np.hstack([upper, np.ones((len(upper), 1))]),
        b_ub=np.zeros(len(upper)),
        bounds=[(-1.0, 1.0)] * nv + [(0.0, 1.0)],
    )
    return bool(result.status == 0 and -result.fun > 1e-3 * np.abs(jacobian).max())
