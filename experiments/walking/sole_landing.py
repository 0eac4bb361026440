r"""Which impacts a humanoid allows that sets a flat sole down while it stands on the other one.

The corners of the landing sole stick after the impact, with the impulses P. Motors give no
impulses, so that velocities jump by :math:`M^{-1} J^T P`, linear in P, and impulses scale with the
speed of the landing. What the other sole can do is a linear programme, whose answer holds at any
speed: either its corners stick, by impulses inside their cones, or the impact lifts it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hybridctl.robots import public
from scipy.optimize import linprog

from hybridctl.base.checks import Array
from hybridctl.mechanics.multibody.robot import Robot

_SIDES = 16
"""Sides of the pyramids in place of friction cones: 2 % between the inner and the outer one."""
_RANK = 1e-9
"""Singular values of rows of a sole below which they count as zero, relative to the largest."""


class SoleRows(NamedTuple):
    """Rows of the corners of two soles in a configuration, three (x, y, z) for each corner.

    Attributes:
        standing: Jacobian (12, nv) of the sole that stands.
        landing: Jacobian (12, nv) of the sole that lands.
        inverse_mass: Inverse (nv, nv) of the mass matrix.
    """

    standing: Array
    landing: Array
    inverse_mass: Array

    @staticmethod
    def of(robot: Robot, q: Array, standing: str, landing: str) -> SoleRows:
        """Return the rows of two soles of talos.

        Args:
            robot: The robot, with the soles of talos.
            q: Configuration (nq,), soles level.
            standing: Frame of the sole that stands.
            landing: Frame of the sole that lands.
        """
        corners = public.MODELS["talos"].offsets
        rows = [
            np.vstack([robot.point_jacobian(q, sole, np.array(c)) for c in corners])
            for sole in (standing, landing)
        ]
        return SoleRows(rows[0], rows[1], robot.inverse_mass(q))


def find_least_pressure(rows: SoleRows, friction: float) -> float:
    r"""Return how far the standing sole is from sticking in an impact of the landing sole.

    It is the largest t with which impulses of the standing corners are in their cones by t,
    :math:`\mu P_n - |P_t| \ge t`, where those of the landing corners are in theirs and have normal
    impulses of 1 N s in all. Corners share loads in any way. The cones are outer pyramids: if t is
    negative, no impact lets the standing sole stick.

    Args:
        rows: Rows of the soles.
        friction: Coefficient of friction.
    """
    both = np.vstack([rows.standing, rows.landing])
    still = rows.standing @ rows.inverse_mass @ both.T
    left, sizes, _ = np.linalg.svd(still)
    still = left[:, sizes > _RANK * sizes[0]].T @ still  # corners of a sole are redundant
    sum_of_normals = np.concatenate([np.zeros(12), np.tile([0.0, 0.0, 1.0], 4)])
    equations = np.column_stack([np.vstack([still, sum_of_normals]), np.zeros(len(still) + 1)])
    values = np.append(np.zeros(len(still)), 1.0)
    cones = _make_cones(8, friction)
    slack = np.repeat([1.0, 0.0], 4 * _SIDES)  # only the standing corners come first
    return _maximise_last(np.column_stack([cones, slack]), equations, values)


def find_largest_rise(rows: SoleRows, friction: float) -> float:
    """Return the largest speed with which a landing lifts all corners of the standing sole.

    It is relative to the speed of the landing sole, which is level and may move sideways. Impulses
    are inside inner pyramids of the cones. NaN if no such landing has impulses in them.

    Args:
        rows: Rows of the soles.
        friction: Coefficient of friction.
    """
    approach = (rows.landing @ rows.inverse_mass @ rows.landing.T)[2::3]
    rise = (rows.standing @ rows.inverse_mass @ rows.landing.T)[2::3]
    cones = _make_cones(4, friction * np.cos(np.pi / _SIDES))
    limits = np.vstack(
        [
            np.column_stack([cones, np.zeros(len(cones))]),
            np.column_stack([-rise, np.ones(4)]),
        ]
    )
    return _maximise_last(limits, np.column_stack([approach, np.zeros(4)]), np.ones(4))


def _make_cones(count: int, friction: float) -> Array:
    """Return rows (count sides, 3 count), at most zero for impulses in the pyramids of corners."""
    angles = 2.0 * np.pi * np.arange(_SIDES) / _SIDES
    one = np.column_stack([np.cos(angles), np.sin(angles), np.full(_SIDES, -friction)])
    return np.kron(np.eye(count), one)


def _maximise_last(limits: Array, equations: Array, values: Array) -> float:
    """Return the largest last variable of a linear programme, NaN if there is no solution.

    Args:
        limits: Rows (m, n) that are at most zero.
        equations: Rows (k, n) of equations.
        values: Their right sides (k,).
    """
    cost = np.append(np.zeros(limits.shape[1] - 1), -1.0)
    found = linprog(cost, limits, np.zeros(len(limits)), equations, values, bounds=(None, None))
    return float(found.x[-1]) if found.status == 0 else float("nan")
