"""What torques do to the force on the standing foot, and the nearest ones that it allows."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
from hybridctl.experiments.walking.gait import Gait
from scipy.optimize import nnls

from hybridctl.checks import Array
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.mode_expressions import mode_field
from hybridctl.mechanics.phase import contact_modes

_SHARE = 0.95  # of friction that is used
_LEAST = 5.0  # N: normal force that is kept
_INFEASIBLE = 1e-12  # of the residual of the dual problem, which is 1 where nothing is missed


class ConeModel:
    """What torques do to the force on the standing foot: a u + b >= 0 (3 rows), in N."""

    def __init__(self, gait: Gait) -> None:
        self._gait = gait
        self._functions: dict[ModeKey, Any] = {}

    def __call__(self, key: ModeKey, x: Array) -> tuple[Array, Array]:
        """a (3, 4), b (3,): normal force above the least, and both sides of the cone."""
        if key not in self._functions:
            self._functions[key] = self._made(key)
        a, b = self._functions[key](x)
        return np.asarray(a), np.asarray(b).ravel()

    def _made(self, key: ModeKey) -> Any:
        walker, modes = self._gait.walker, contact_modes(key)
        mode = mode_field(
            walker.robot, walker.contacts, modes, stabilization=walker.dynamics.stabilization
        )
        foot = modes.index("stick")
        normal, along = mode.forces[foot], mode.forces[len(modes) + foot]
        limit = _SHARE * self._gait.friction * normal
        rows = ca.vertcat(normal - _LEAST, limit - along, limit + along)
        at_rest = ca.substitute(rows, mode.u, ca.SX.zeros(mode.u.numel()))
        return ca.Function("cone", [mode.x], [ca.densify(ca.jacobian(rows, mode.u)), at_rest])


def nearest(wanted: Array, a: Array, b: Array, limit: float) -> Array:
    """The u nearest to `wanted` (n,) with a u + b >= 0 and |u| <= limit; cut where there is none.

    Least distance programming by nonnegative least squares: C. L. Lawson and R. J. Hanson, *Solving
    Least Squares Problems* (1974), chapter 23.
    """
    if (a @ wanted + b >= 0.0).all() and (np.abs(wanted) <= limit).all():
        return wanted
    n = len(wanted)
    rows = np.vstack([a, np.eye(n), -np.eye(n)])
    missing = -(rows @ wanted + np.concatenate((b, np.full(2 * n, limit))))
    dual, unit = np.vstack([rows.T, missing]), np.eye(n + 1)[n]
    try:
        residual = dual @ nnls(dual, unit)[0] - unit
    except RuntimeError:  # no convergence
        return np.clip(wanted, -limit, limit)
    if -residual[n] < _INFEASIBLE:
        return np.clip(wanted, -limit, limit)
    return np.asarray(np.clip(wanted - residual[:n] / residual[n], -limit, limit))
