r"""What torques do to the contact forces of the feet, and the nearest ones that cones allow.

Of the standing foot that is the force now. Of the other one it is the impulse with which it will
land, after the time t in which its gap closes at the present rates and accelerations,

.. math:: \Lambda = -(J M^{-1} J^T)^{-1} J\, (v + t\, a(x, u))

with J and M at the configuration that is reached then, the standing foot letting go. Both are
affine in u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
from hybridctl.experiments.walking.gait import Gait
from scipy.optimize import nnls

from hybridctl.checks import Array
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.impact_expressions import held_rows, impact_map
from hybridctl.mechanics.mode_expressions import mode_field
from hybridctl.mechanics.phase import contact_modes

_SHARE = 0.95  # of friction that is used
_LEAST = 5.0  # N: normal force that is kept
_AHEAD = 0.05  # s before a landing: earlier, its velocity is not known by present accelerations
_INFEASIBLE = 1e-12  # of the residual of the dual problem, which is 1 where nothing is missed


class _RowFunctions(NamedTuple):
    """CasADi functions of a mode.

    standing: x to a and b. approach: x and u to the gap of the other foot, its rate, its
    acceleration, and those of the coordinates. landing: x, the time until it lands, and the
    coordinates then, to a and b.
    """

    standing: Any
    approach: Any
    landing: Any


@dataclass(frozen=True, eq=False)
class Correction:
    """The torques nearest to wanted ones that a cone and limits of `torque` N m allow."""

    cone: ConeModel
    torque: float

    def __call__(self, key: ModeKey, x: Array, wanted: Array) -> Array:
        """Those at a state x of a mode; the wanted ones where none of the feet stands alone."""
        if sorted(contact_modes(key)) != ["open", "stick"]:
            return wanted
        return nearest(wanted, *self.cone(key, x, wanted), self.torque)


class ConeModel:
    """What torques do to forces and impulses on the feet: a u + b >= 0, in N and N s."""

    def __init__(self, gait: Gait) -> None:
        self._gait = gait
        self._functions: dict[ModeKey, _RowFunctions] = {}

    def __call__(self, key: ModeKey, x: Array, wanted: Array) -> tuple[Array, Array]:
        """a (m, 4), b (m,) of a foot that stands: normal force above the least, sides of its cone.

        Where the other one lands within 50 ms under the torques `wanted`, also the sides of the
        cone of its impulse.
        """
        if key not in self._functions:
            self._functions[key] = self._made(key)
        standing, approach, landing = self._functions[key]
        rows = [standing(x)]
        gap, rate, change, acceleration = approach(x, wanted)
        t = _until_zero(float(gap), float(rate), float(change))
        if t < _AHEAD:
            q, v = np.split(x, 2)
            there = q + t * v + 0.5 * t**2 * np.asarray(acceleration).ravel()
            rows.append(landing(x, t, there))
        a, b = (np.vstack([np.asarray(row[i]) for row in rows]) for i in (0, 1))
        return a, b.ravel()

    def _made(self, key: ModeKey) -> _RowFunctions:
        walker, modes = self._gait.walker, contact_modes(key)
        mode = mode_field(
            walker.robot, walker.contacts, modes, stabilization=walker.dynamics.stabilization
        )
        foot, count, x, u = modes.index("stick"), len(modes), mode.x, mode.u
        normal, along = mode.forces[foot], mode.forces[count + foot]
        standing = ca.vertcat(normal - _LEAST, self._sides(normal, along))

        robot, contacts, other = walker.robot, walker.contacts, modes[::-1]
        gap, rate = ca.vertsplit(held_rows(robot, contacts, other, x)[:2])
        acceleration = mode.field[robot.nq :]
        approach = [gap, rate, ca.jtimes(rate, x, mode.field), acceleration]

        t, there = ca.SX.sym("t"), ca.SX.sym("there", robot.nq)
        impact, lands = impact_map(robot, contacts, other), other.index("stick")
        arriving = ca.vertcat(there, x[robot.nq :] + t * acceleration)
        impulses = ca.substitute(impact.impulses, impact.x, arriving)
        landing = self._sides(impulses[lands], impulses[count + lands])
        return _RowFunctions(
            ca.Function("standing", [x], _affine(standing, u)),
            ca.Function("approach", [x, u], approach),
            ca.Function("landing", [x, t, there], _affine(landing, u)),
        )

    def _sides(self, normal: Any, along: Any) -> Any:
        """How far a force or an impulse is inside the share of the cone, (2, 1)."""
        limit = _SHARE * self._gait.friction * normal
        return ca.vertcat(limit - along, limit + along)


def _affine(rows: Any, u: Any) -> list[Any]:
    """a and b of rows = a u + b."""
    return [ca.densify(ca.jacobian(rows, u)), ca.substitute(rows, u, ca.SX.zeros(u.numel()))]


def _until_zero(gap: float, rate: float, change: float) -> float:
    """The first t >= 0 with gap + rate t + change t^2 / 2 = 0, s; infinite where there is none."""
    discriminant = rate**2 - 2.0 * gap * change
    if discriminant < 0.0 or math.sqrt(discriminant) <= rate:
        return math.inf
    return max(2.0 * gap / (math.sqrt(discriminant) - rate), 0.0)


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
