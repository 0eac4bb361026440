r"""The least |z| for which multipliers m_0 + N z are inside their cones.

.. math:: \min_z \tfrac12 |z|^2 \quad \text{with} \quad g_j(m_0 + N z) \ge 0

is strictly convex, so z is unique. On one direction it is at the end of an interval, and where all
contacts only push it is the least distance of a polyhedron, by nonnegative least squares. Else
Clarabel solves the programme, and Newton's method on its optimality conditions,

.. math:: (1 - \sum_j \kappa_j N^T \nabla^2 g_j N) z = N^T \sum_j \kappa_j \nabla g_j, \quad
    g_j = 0,

makes it exact, with changes of the borders that act. Where what is inside the cones is next to a
single point, or no set of borders is found at which |z| is least, the multipliers of the programme
are taken as they are, to 1e-9. The g_j of borders that act: f_n of a contact without load (and
f_t = 0 where it sticks), mu_s f_n - |f_t| of one that is about to slip.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import hypot
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from hybridctl.base.checks import Array
from hybridctl.mechanics.coulomb.cones import Cone, ConeProgramme, cone_rows
from hybridctl.mechanics.coulomb.newton import nearest

_INSIDE = 1e-12
_TOUCHES = 1e-9
_GUESSED = 1e-5
_THICKNESS = 1e-9
_EXACT, _ROUNDING = 1e-13, 1e-8
_STEPS, _CHANGES = 8, 8
_ON_LINE, _ROOT = 40, 1e-14
_NONE_LEFT = 1e-6  # of one: what is a million units away is not there

INSIDE, SIDE, APEX = range(3)
Active = list[int]


class Allowed(NamedTuple):
    """The multipliers in their units that equations allow, m_0 + N z, of square norm |z|^2."""

    particular: Array
    null: Array

    @property
    def size(self) -> float:
        """The largest multiplier of m_0, or one unit if that is more."""
        return max(1.0, float(np.abs(self.particular).max(initial=0.0)))


class Least(NamedTuple):
    """The least multipliers m (n,) inside the cones, which borders act, and their kappa."""

    multipliers: Array
    active: Active
    kappa: Array


def least_in_cones(cones: Sequence[Cone], allowed: Allowed) -> Least | None:
    """The multipliers of least |z| inside the cones; None if there are none."""
    if slacks(cones, allowed.particular).min(initial=0.0) >= -_INSIDE * allowed.size:
        return Least(allowed.particular, [INSIDE] * len(cones), np.zeros(0))
    found, possible = None, bool(allowed.null.size)
    if allowed.null.shape[1] == 1:
        found, possible = _at_end(cones, allowed)
    elif possible:
        with suppress(RuntimeError):  # nonnegative least squares did not come to an end
            found, possible = _pushing(cones, allowed)
    return _by_programme(cones, allowed) if possible and found is None else found


def slacks(cones: Sequence[Cone], m: Array) -> Array:
    """The slacks of the cones (k,): mu f_n - |f_t|, or f_n without friction."""
    v = m.tolist()
    return np.array(
        [
            c.friction * v[c.normal] - hypot(*(v[i] for i in c.tangents))
            if c.tangents
            else v[c.normal]
            for c in cones
        ]
    )


def borders_of(
    cones: Sequence[Cone], active: Active, m: Array, loads: Array
) -> tuple[Array, Array]:
    """Gradients (p, n) of the g_j that act, and - sum_j kappa_j D^2 g_j (n, n)."""
    values, kappa, place = m.tolist(), loads.tolist(), 0
    curvature = np.zeros((len(m), len(m)))
    of_rows: list[int] = []
    columns: list[int] = []
    slopes: list[float] = []
    for cone, kind in zip(cones, active, strict=True):
        t = cone.tangents
        if kind == APEX:
            of_rows += range(place, place + 1 + len(t))
            columns += [cone.normal, *t]
            slopes += [1.0] * (1 + len(t))
        elif kind == SIDE:
            length = hypot(*(values[i] for i in t)) or 1.0
            along = [values[i] / length for i in t]
            of_rows += [place] * (1 + len(t))
            columns += [cone.normal, *t]
            slopes += [cone.friction, *(-a for a in along)]
            if kappa and len(t) == 2:
                a, b, load = *along, kappa[place] / length
                span = slice(t[0], t[1] + 1)
                curvature[span, span] = [
                    [load * b * b, -load * a * b],
                    [-load * a * b, load * a * a],
                ]
        place += _rows_of(cone, kind)
    rows = np.zeros((place, len(m)))
    rows[of_rows, columns] = slopes
    return rows, curvature


def _rows_of(cone: Cone, kind: int) -> int:
    """The number of borders that act."""
    return kind if kind < APEX else 1 + len(cone.tangents)


def _by_programme(cones: Sequence[Cone], allowed: Allowed) -> Least | None:
    """The least multipliers by Newton's method from the solution of a cone programme."""
    (particular, null), size = allowed, allowed.size
    count = null.shape[1]
    rows, kinds = cone_rows(cones, [], len(particular))
    offset = rows @ particular
    offset += _THICKNESS * size * rows[:, [cone.normal for cone in cones]].any(axis=1)
    start = ConeProgramme(np.eye(count), np.zeros(count), rows @ null, offset, kinds).solve()
    if start.infeasible:
        return None
    begin = start.point if start.solved else np.zeros(count)
    found, is_minimum = _active_set(cones, allowed, begin, size)
    if is_minimum or not start.solved:
        return found
    if found is not None:
        z = np.linalg.lstsq(null, found.multipliers - particular)[0]
        if np.linalg.norm(z) <= (1.0 + _ROUNDING) * np.linalg.norm(begin):
            return found
    return _nearly(cones, allowed, begin, size)


def _pushing(cones: Sequence[Cone], allowed: Allowed) -> tuple[Least | None, bool]:
    """The least multipliers that push, if friction is inside the cones without being held there.

    Besides, whether there may be others inside the cones: not if none push.
    """
    normals = [cone.normal for cone in cones]
    rows, pulls = allowed.null[normals], -allowed.particular[normals]
    if pulls.max() <= 0.0:
        return None, True
    kappa = _least_distance(rows, pulls)
    if kappa is None:
        pulls -= _THICKNESS * allowed.size
        return None, bool(pulls.max() <= 0.0) or _least_distance(rows, pulls) is not None
    active = [APEX if load > 0.0 else INSIDE for load in kappa.tolist()]
    if any(cone.tangents for cone, kind in zip(cones, active, strict=True) if kind == APEX):
        return None, True
    m = allowed.particular + allowed.null @ (kappa @ rows)
    near, held = slacks(cones, m), kappa > 0.0
    inside = near.min() >= -_INSIDE * allowed.size
    is_least = inside and near[held].max(initial=0.0) <= _TOUCHES * allowed.size
    return (Least(m, active, kappa[held]) if is_least else None), True


def _least_distance(rows: Array, least: Array) -> Array | None:
    r"""Loads kappa (k,) of the least z = G' kappa with G z >= h, some h_i > 0; None without any.

    By :math:`r = \min_{u \ge 0} |(G, h)^T u - (0, 1)|`, Lawson and Hanson (1974), 23.4. Whatever
    u, no z is shorter than 1 / r - 1.
    """
    if not rows.any():
        return None
    unit = float(least.max() / np.abs(rows).max())
    right = np.zeros(rows.shape[1] + 1)
    right[-1] = 1.0
    u, left = nnls(np.vstack((rows.T, least / unit)), right)
    return unit / left**2 * u if left > _NONE_LEFT else None


class _End(NamedTuple):
    """The end z of an interval of m_0 + N z, the cone whose border is there, and its D g N."""

    z: float
    cone: int
    slope: float


def _at_end(cones: Sequence[Cone], allowed: Allowed) -> tuple[Least | None, bool]:
    """The multipliers at the near end of the interval of a line, and whether there is one.

    None are found at the tip of a cone with more borders, or where the interval is a single point.
    """
    size = allowed.size
    thick = _on_line(cones, allowed, 0.0, _THICKNESS * size)
    if thick is None:
        return None, False
    end = _on_line(cones, allowed, thick.z, 0.0)
    if end is None:
        return None, True
    m, cone = allowed.particular + end.z * allowed.null[:, 0], cones[end.cone]
    if cone.tangents and m[cone.normal] <= _GUESSED * size:
        return None, True
    active = [INSIDE] * len(cones)
    active[end.cone] = SIDE if cone.tangents else APEX
    return Least(m, active, np.array([end.z / end.slope])), True


def _on_line(cones: Sequence[Cone], allowed: Allowed, z: float, thicker: float) -> _End | None:
    """The first multipliers on a line, from m_0 + N z outside on, that are inside thicker cones.

    Newton's method on the least g_j + thicker, which is concave: no step goes past its root, and
    there is none, so that it returns None, where it no longer rises.
    """
    point, along = allowed.particular.tolist(), allowed.null[:, 0].tolist()
    onward = 0.0
    for _ in range(_ON_LINE):
        value, slope, j = min(
            _slack_on_line(cone, point, along, z, j) for j, cone in enumerate(cones)
        )
        value += thicker
        if value >= 0.0:
            return _End(z, j, slope)
        if onward * slope < 0.0 or slope == 0.0:
            return None
        onward, step = slope, -value / slope
        if abs(step) <= _ROOT * abs(z):
            return _End(z, j, slope)
        z += step
    return None


def _slack_on_line(
    cone: Cone, point: list[float], along: list[float], z: float, j: int
) -> tuple[float, float, int]:
    """The slack of the j-th cone at m_0 + N z, its slope, and j."""
    i = cone.normal
    value, slope = point[i] + z * along[i], along[i]
    if not cone.tangents:
        return value, slope, j
    friction = [point[k] + z * along[k] for k in cone.tangents]
    length = hypot(*friction)
    turned = sum(f * along[k] for f, k in zip(friction, cone.tangents, strict=True))
    # Friction of exactly zero has no direction: its length does not change to first order.
    lengthens = turned / length if length > 0.0 else 0.0
    return cone.friction * value - length, cone.friction * slope - lengthens, j


def _nearly(cones: Sequence[Cone], allowed: Allowed, z: Array, size: float) -> Least:
    """The programme's own multipliers m_0 + N z, put inside the cones, which they miss by 1e-9.

    Where forces inside the cones are next to a single one, no set of borders leads to it, and where
    they have no interior the borders that act alternate.
    """
    m = allowed.particular + allowed.null @ z
    for normal, tangents, friction in cones:
        m[normal] = max(m[normal], 0.0)
        length, limit = hypot(*m[tangents]), friction * m[normal]
        if length > limit:
            m[tangents] *= limit / length
    active = _borders_at(cones, m, size)
    borders, _ = borders_of(cones, active, m, np.zeros(0))
    return Least(m, active, np.linalg.lstsq((borders @ allowed.null).T, z)[0])


def _borders_at(cones: Sequence[Cone], m: Array, size: float) -> Active:
    """The borders that multipliers all but touch."""
    near = slacks(cones, m).tolist()
    return [
        APEX if m[cone.normal] <= _GUESSED * size else SIDE if slack <= _GUESSED * size else INSIDE
        for cone, slack in zip(cones, near, strict=True)
    ]


def _active_set(
    cones: Sequence[Cone], allowed: Allowed, z: Array, size: float
) -> tuple[Least | None, bool]:
    """The forces found last inside the cones, by changes of the borders that act at m_0 + N z.

    Besides, whether these are the minimum. Multipliers kappa need not exist where the forces inside
    the cones have no interior; then the borders that act alternate.
    """
    active = _borders_at(cones, allowed.particular + allowed.null @ z, size)
    met: list[Active] = []
    found = None
    while active not in met and len(met) <= _CHANGES:
        met.append(list(active))
        m, loads = _on_borders(cones, active, allowed, z)
        if slacks(cones, m).min() >= -_TOUCHES * size:
            found = Least(m, list(active), loads)
        change = _change(cones, active, m, loads)
        if change is None:
            return found, found is not None
        active[change[0]] = change[1]
    return found, False


def _on_borders(
    cones: Sequence[Cone], active: Active, allowed: Allowed, z: Array
) -> tuple[Array, Array]:
    """The minimum with g_j = 0 on the borders that act, by Newton's method from m_0 + N z."""
    particular, null = allowed
    before, kappa = np.inf, np.zeros(0)
    bent = any(kind == SIDE and len(c.tangents) == 2 for c, kind in zip(cones, active, strict=True))
    for _ in range(_STEPS if bent else 1):
        m = particular + null @ z
        borders, curvature = borders_of(cones, active, m, kappa)
        # g_j is homogeneous: its value is its gradient times m
        step, kappa = stationary(null, curvature, borders, -z, -(borders @ m))
        z = z + step
        size = float(np.abs(step).max()) / max(1.0, float(np.abs(z).max()))
        following = size * (size / before) ** 2 if before < np.inf else size
        if following <= _EXACT or _ROUNDING >= size >= 0.5 * before:
            break
        before = size
    return particular + null @ z, kappa


def stationary(
    null: Array, curvature: Array, borders: Array, upper: Array, lower: Array
) -> tuple[Array, Array]:
    """The solution z (p, .), kappa (a, .) of (1 + N'KN) z - N'D' kappa = upper, D N z = lower.

    Of borders that depend on each other the least squares; D N is measured in its own size.
    """
    along = borders @ null
    size = float(np.abs(along).max(initial=0.0)) or 1.0
    p, a = null.shape[1], len(along)
    matrix = np.zeros((p + a, p + a))
    matrix[:p, :p] = np.eye(p) + null.T @ curvature @ null
    matrix[:p, p:], matrix[p:, :p] = -along.T / size, along / size
    found = nearest(matrix, np.concatenate((upper, lower / size)))
    return found[:p], found[p:] / size


def _change(
    cones: Sequence[Cone], active: Active, m: Array, loads: Array
) -> tuple[int, int] | None:
    """The cone whose part in the active set is the most wrong, and what it should be."""
    size = max(1.0, float(np.abs(m).max()))
    heaviest = max(float(np.abs(loads).max(initial=0.0)), _TOUCHES)
    worst, change, place = _TOUCHES, None, 0
    for j, (cone, kind, slack) in enumerate(zip(cones, active, slacks(cones, m), strict=True)):
        outside = _TOUCHES / _INSIDE * -min(slack, m[cone.normal]) / size
        if kind == INSIDE or (kind == SIDE and outside > worst):
            wrong = outside
            new = SIDE if cone.tangents and kind == INSIDE and m[cone.normal] > 0.0 else APEX
        elif slack > _TOUCHES * size:  # more borders than there is room for
            wrong, new = _TOUCHES / _INSIDE * slack / size, INSIDE
        elif kind == SIDE:
            wrong, new = -loads[place] / heaviest, INSIDE
        else:
            pull = float(np.linalg.norm(loads[place + 1 : place + 1 + len(cone.tangents)]))
            wrong = -(loads[place] - cone.friction * pull) / heaviest
            new = SIDE if cone.tangents else INSIDE
        place += _rows_of(cone, kind)
        if wrong > worst:
            worst, change = wrong, (j, new)
    return change
