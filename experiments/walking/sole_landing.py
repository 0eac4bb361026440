r"""What the impact of a landing sole of talos does to the other sole, on which it stands.

Motors give no impulses. So velocities jump by :math:`M^{-1} J^T P`, where P are the impulses (N s)
of the corners of both soles in world axes, z upwards. They scale with the speed of the landing.
What is possible is a linear programme in P, whose answer holds at any speed:

- `find_sticking_margin`: the corners of the standing sole go on sticking, by impulses inside their
  friction cones;
- `find_largest_rise`: they get no impulses, and the impact lifts them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hybridctl.robots import public
from scipy.optimize import linprog

from hybridctl.base.checks import Array
from hybridctl.mechanics.multibody.robot import Robot

_PYRAMID_SIDES = 16
"""Sides of the pyramids in place of friction cones: 2 % between the inner and the outer one."""
_RANK_TOLERANCE = 1e-9
"""Singular values of rows of a sole below which they count as zero, relative to the largest: the
twelve rows have rank six but for rounding."""


class SoleRows(NamedTuple):
    """Jacobians of the corners of two soles in a configuration, three rows (x, y, z) per corner.

    Attributes:
        standing: Jacobian (12, nv) of the sole that stands, in world axes.
        landing: Jacobian (12, nv) of the sole that lands, in world axes.
        inverse_mass: Inverse (nv, nv) of the mass matrix.
    """

    standing: Array
    landing: Array
    inverse_mass: Array

    @staticmethod
    def of(robot: Robot, q: Array, standing: str, landing: str) -> SoleRows:
        """Return the rows of the corners of two soles.

        Args:
            robot: Talos, with any of its joints fixed.
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


def find_sticking_margin(rows: SoleRows, friction: float) -> float:
    r"""Return by how much the standing sole can stick inside its cones in an impact of the other.

    It is the largest t for which there are impulses P that leave the velocities of the standing
    corners as they are, with :math:`\mu P_n - |P_t| \ge t` at each of these corners, and
    :math:`\mu P_n - |P_t| \ge 0` at each landing one. The normal impulses of the landing corners
    add up to one. Redundant corners share forces in any way. How the landing sole moves after the
    impact is left open, so that landings on heel or toe, and landings that slip, are among these.

    The cones are outer pyramids: if t is negative, no impact lets the standing sole stick. If it is
    positive, one does at a friction that is 2 % higher.

    Args:
        rows: Rows of the soles.
        friction: Coefficient of friction.

    Returns:
        The margin, relative to the normal impulse of the landing sole. NaN if no impulses leave the
        velocities of the standing corners as they are.
    """
    both = np.vstack([rows.standing, rows.landing])
    # Changes of the velocities of the standing corners by impulses: rows of equations.
    changes = rows.standing @ rows.inverse_mass @ both.T
    left, sizes, _ = np.linalg.svd(changes)
    # Corners of a sole are redundant: dependent equations would differ by rounding.
    changes = left[:, sizes > _RANK_TOLERANCE * sizes[0]].T @ changes
    sum_of_normals = np.concatenate([np.zeros(12), np.tile([0.0, 0.0, 1.0], 4)])
    # The last column is that of t.
    equations = np.column_stack([np.vstack([changes, sum_of_normals]), np.zeros(len(changes) + 1)])
    values = np.append(np.zeros(len(changes)), 1.0)
    cones = _make_cones(8, friction)
    margin = np.repeat([1.0, 0.0], 4 * _PYRAMID_SIDES)  # t counts for the standing corners alone
    return _maximise_last(np.column_stack([cones, margin]), equations, values)


def find_largest_rise(rows: SoleRows, friction: float) -> float:
    """Return the largest speed at which a landing lifts all corners of the standing sole.

    The landing sole is level and comes down at speed one, with any velocity sideways, and its
    corners do not rise after the impact. The standing corners are at rest and get no impulses.
    Impulses of the landing corners are inside inner pyramids of the cones.

    Args:
        rows: Rows of the soles.
        friction: Coefficient of friction.

    Returns:
        The speed upwards of the slowest standing corner, relative to that of the landing. Negative
        if every such landing presses a corner down, NaN if none has impulses in the pyramids.
    """
    # Changes of vertical velocities by impulses of the landing corners. The last column is that of
    # the speed that is maximised: no standing corner is slower.
    stop = (rows.landing @ rows.inverse_mass @ rows.landing.T)[2::3]
    rise = (rows.standing @ rows.inverse_mass @ rows.landing.T)[2::3]
    cones = _make_cones(4, friction * np.cos(np.pi / _PYRAMID_SIDES))
    limits = np.vstack(
        [
            np.column_stack([cones, np.zeros(len(cones))]),
            np.column_stack([-rise, np.ones(4)]),
        ]
    )
    return _maximise_last(limits, np.column_stack([stop, np.zeros(4)]), np.ones(4))


def _make_cones(count: int, friction: float) -> Array:
    """Return rows (16 count, 3 count), at most zero for impulses in the outer pyramids of corners.

    A friction that is lower by the factor cos(pi / sides) makes the inner pyramids of it.

    Args:
        count: Number of corners.
        friction: Coefficient of friction.
    """
    angles = 2.0 * np.pi * np.arange(_PYRAMID_SIDES) / _PYRAMID_SIDES
    one = np.column_stack([np.cos(angles), np.sin(angles), np.full(_PYRAMID_SIDES, -friction)])
    return np.kron(np.eye(count), one)


def _maximise_last(limits: Array, equations: Array, values: Array) -> float:
    """Return the largest value of the last variable of a linear programme, NaN if it has none.

    Args:
        limits: Rows (m, n) that are at most zero.
        equations: Rows (k, n) of equations.
        values: Their right sides (k,).
    """
    cost = np.append(np.zeros(limits.shape[1] - 1), -1.0)
    solution = linprog(cost, limits, np.zeros(len(limits)), equations, values, bounds=(None, None))
    return float(solution.x[-1]) if solution.status == 0 else float("nan")
