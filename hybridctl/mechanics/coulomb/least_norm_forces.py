r"""Forces of least weighted norm that obey the law in given states, and how they change.

Redundant contacts leave forces open that change no rates. With multipliers m of the normals of
closed contacts and the tangents of sticking ones, f = E m, and the rows that are held, A = C G E,

.. math::
    \min_m \tfrac12 \sum_i f_i^2 / W_i \quad \text{with} \quad A m = c = C (w - b), \quad
    f_n \ge 0, \quad |f_t| \le \mu_s f_n \text{ where it sticks},

is strictly convex, so the forces are unique. Where equations contradict each other A m is next to
c. If the forces of least norm alone are inside the cones they are it. On a null space of one
direction they are at the end of an interval, else Clarabel solves the programme there. Newton's
method on its optimality conditions,

.. math:: H m - A^T y - \sum_j \kappa_j \nabla g_j = 0, \quad A m = c, \quad g_j = 0,

H = E' W^-1 E, makes it exact, with changes of the borders that act. Where the forces inside the
cones are next to a single one, or no set of borders is found at which they are least, those of the
programme are taken as they are, to 1e-9. The g_j of borders that act: f_n of a contact without load
(and f_t = 0 where it sticks), mu_s f_n - |f_t| of one that is about to slip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import hypot
from typing import NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import NoContactSolutionError
from hybridctl.mechanics.contacts.contact_states import OPEN, STICK, Modes
from hybridctl.mechanics.coulomb.cones import Cone, ConeProgramme, cone_rows
from hybridctl.mechanics.coulomb.law import CoulombProblem, scaled
from hybridctl.mechanics.coulomb.newton import nearest
from hybridctl.mechanics.terms.least_norm import LeastNorm

_INSIDE = 1e-12
_TOUCHES = 1e-9
_GUESSED = 1e-5
_THICKNESS = 1e-9
_EXACT, _ROUNDING = 1e-13, 1e-8
_STEPS, _CHANGES = 8, 8
_ON_LINE, _ROOT = 40, 1e-14

INSIDE, SIDE, APEX = range(3)
Active = list[int]
_Found = tuple[Array, Active, Array]


class Loads(NamedTuple):
    """What multipliers m (n,) are: forces E m of closed contacts, each in its cone.

    mix E (r, n). Normal forces come first, then the friction of those cones that have any. units
    (n,): what is one unit of each, by which tolerances go.
    """

    mix: Array
    cones: Sequence[Cone]
    units: Array


class _Open(NamedTuple):
    """The multipliers in their units that the equations allow, m_0 + N z, of square norm |z|^2."""

    particular: Array
    null: Array


@dataclass(frozen=True)
class LeastForces:
    """The forces, and what is needed for their derivative.

    multipliers m (n,): normal forces of the closed contacts in their order, then friction of the
    sticking ones, contact by contact.
    """

    multipliers: Array
    _of: Loads
    _system: LeastNorm
    _open: _Open
    _active: Active
    _kappa: Array

    @property
    def forces(self) -> Array:
        """The forces (r,) along all rows."""
        return np.asarray(self._of.mix @ self.multipliers)

    @property
    def unloaded(self) -> tuple[int, ...]:
        """The closed contacts, by their place among these, that are held at f_n = 0."""
        return tuple(j for j, kind in enumerate(self._active) if kind == APEX)

    @property
    def slipping(self) -> tuple[int, ...]:
        """Those that are held at |f_t| = mu_s f_n."""
        return tuple(j for j, kind in enumerate(self._active) if kind == SIDE)

    @property
    def touched(self) -> tuple[int, ...]:
        """Those at a border without being held there, where derivatives are one-sided."""
        m = self.multipliers / self._of.units
        near = _slacks(self._of.cones, m) <= _TOUCHES * _size(self._open)
        return tuple(j for j in np.flatnonzero(near).tolist() if self._active[j] == INSIDE)

    @cached_property
    def adjoint(self) -> Array:
        """The multipliers y (m,) of the equations."""
        borders, _ = self._borders
        pull = self.multipliers / self._system.weights - borders.T @ self._kappa / self._of.units
        return np.asarray(self._system.inverse.T @ pull)

    @cached_property
    def _borders(self) -> tuple[Array, Array]:
        m = self.multipliers / self._of.units
        return _borders(self._of.cones, self._active, m, self._kappa)

    def sensitivity(
        self, equations: Array, stationarity: Array, weights: Array | None = None
    ) -> Array:
        """Changes dm (n, z) of the multipliers, while the same borders act.

        equations (m, z): D(c) - D(A) m at fixed m; where equations contradict each other, add
        (A^+)' D(A') (c - A m), see `LeastNorm.least_squares`. stationarity (n, z): D(A') y at
        fixed y. weights (n, z): D(W). All by the same z parameters. At a border that is only
        `touched` this is the derivative to the side where it does not act.
        """
        system, unit, null = self._system, self._of.units[:, None], self._open.null
        pull = stationarity
        if weights is not None:
            pull = pull + (self.multipliers / system.weights**2)[:, None] * weights
        moved = system.inverse @ equations / unit
        borders, curvature = self._borders
        upper = null.T @ (unit * pull - curvature @ moved)
        step, _ = _stationary(null, curvature, borders, upper, -borders @ moved)
        return np.asarray(unit * (moved + null @ step))


def least_forces(
    problem: CoulombProblem,
    modes: Modes,
    directions: Sequence[Array | None],
    weights: Array,
    rates: Array | None = None,
) -> LeastForces:
    """Forces f (r,) of least sum of f_i^2 / weights_i that obey the law in the given states.

    modes (k,) as in `law`; directions: of sliding contacts; weights (r,) > 0, infinite for rows
    that do not count. Held rows are w_n = 0 of closed contacts and w_t = 0 of sticking ones; with
    rates (r,) also w_t of sliding ones, as is due where w_t decides the direction.

    Raises `NoContactSolutionError` if no forces inside the cones give these rates: then the
    contacts are not in these states.
    """
    cones, held, mix = _layout(problem, modes, directions, rates is not None)
    target = np.zeros(len(held)) if rates is None else rates[held]
    target[: len(cones)] = 0.0
    system = LeastNorm(problem.delassus[held] @ mix, 1.0 / ((mix**2).T @ (1.0 / weights)))
    of_multipliers = [np.flatnonzero(column)[0] for column in mix.T]
    loads = Loads(mix, cones, scaled(problem)[1].forces[of_multipliers])
    found = inside_cones(system, system.solve(target - problem.free[held]), loads)
    if found is None:
        raise NoContactSolutionError(
            f"contacts cannot be {modes}: no forces that give their rates are inside the "
            "friction cones",
            problem=problem,
        )
    return found


def inside_cones(system: LeastNorm, least: Array, loads: Loads) -> LeastForces | None:
    """The solution of least norm of these equations inside the cones; None if there is none.

    least (n,): that without cones.
    """
    cones, units = loads.cones, loads.units
    allowed = _Open(least / units, system.null / units[:, None])
    m, active, kappa = allowed.particular, [INSIDE] * len(cones), np.zeros(0)
    if _slacks(cones, m).min(initial=0.0) < -_INSIDE * _size(allowed):
        found = _constrained(cones, allowed)
        if found is None:
            return None
        m, active, kappa = found
    return LeastForces(units * m, loads, system, allowed, active, kappa)


def _size(allowed: _Open) -> float:
    """The largest multiplier of least norm, or one unit if that is more."""
    return max(1.0, float(np.abs(allowed.particular).max(initial=0.0)))


def _layout(
    problem: CoulombProblem, modes: Modes, directions: Sequence[Array | None], all_rows: bool
) -> tuple[list[Cone], list[int], Array]:
    """Cones of the multipliers, held rows, and E (r, n)."""
    closed, unit = [i for i, mode in enumerate(modes) if mode != OPEN], np.eye(len(problem.free))
    held, columns = list(closed), [unit[i].copy() for i in closed]
    cones, beyond = [], []
    for j, i in enumerate(closed):
        _, rows, static, kinetic, _ = problem.contacts[i]
        numbers: list[int] = []
        direction = directions[i]
        if modes[i] == STICK and static > 0.0:
            numbers = list(range(len(columns), len(columns) + len(rows)))
            columns += [unit[row] for row in rows]
            held += rows
        elif direction is not None:
            columns[j][rows] = -kinetic * direction
            beyond += rows
        cones.append(Cone(j, numbers, static))
    mix = np.array(columns).reshape(-1, len(problem.free)).T
    return cones, held + beyond * all_rows, mix


def _slacks(cones: Sequence[Cone], m: Array) -> Array:
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


def _borders(cones: Sequence[Cone], active: Active, m: Array, loads: Array) -> tuple[Array, Array]:
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


def _constrained(cones: Sequence[Cone], allowed: _Open) -> _Found | None:
    """Multipliers inside the cones, which borders act, and their kappa; None if there are none."""
    particular, null = allowed
    count = null.shape[1]
    if not count:
        return None
    size, at_least = _size(allowed), np.zeros(count)
    if count == 1:
        thick = _on_line(cones, allowed, 0.0, _THICKNESS * size)
        if thick is None:
            return None
        found = _at_end(cones, allowed, _on_line(cones, allowed, thick.z, 0.0), size)
        if found is not None:
            return found
    rows, kinds = cone_rows(cones, [], len(particular))
    offset = rows @ particular
    offset += _THICKNESS * size * rows[:, [cone.normal for cone in cones]].any(axis=1)
    start = ConeProgramme(np.eye(count), np.zeros(count), rows @ null, offset, kinds).solve()
    if start.infeasible:
        return None
    begin = start.point if start.solved else at_least
    found, is_minimum = _active_set(cones, allowed, begin, size)
    if is_minimum or not start.solved:
        return found
    if found is None or _exceeds(found[0], begin, allowed):
        return _nearly(cones, allowed, begin, size)
    return found


class _End(NamedTuple):
    """The end z of an interval of m_0 + N z, the cone whose border is there, and its D g N."""

    z: float
    cone: int
    slope: float


def _at_end(cones: Sequence[Cone], allowed: _Open, end: _End | None, size: float) -> _Found | None:
    """The multipliers at the end of an interval, but at the tip of a cone with more borders."""
    if end is None:
        return None
    m, cone = allowed.particular + end.z * allowed.null[:, 0], cones[end.cone]
    if cone.tangents and m[cone.normal] <= _GUESSED * size:
        return None
    active = [INSIDE] * len(cones)
    active[end.cone] = SIDE if cone.tangents else APEX
    return m, active, np.array([end.z / end.slope])


def _on_line(cones: Sequence[Cone], allowed: _Open, z: float, thicker: float) -> _End | None:
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
    length = hypot(*friction) or 1.0
    turned = sum(f * along[k] for f, k in zip(friction, cone.tangents, strict=True)) / length
    return cone.friction * value - length, cone.friction * slope - turned, j


def _nearly(cones: Sequence[Cone], allowed: _Open, z: Array, size: float) -> _Found:
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
    borders, _ = _borders(cones, active, m, np.zeros(0))
    return m, active, np.linalg.lstsq((borders @ allowed.null).T, z)[0]


def _exceeds(m: Array, z: Array, allowed: _Open) -> bool:
    """Whether multipliers m are further from those of least norm than m_0 + N z."""
    length = np.linalg.norm(np.linalg.lstsq(allowed.null, m - allowed.particular)[0])
    return bool(length > (1.0 + _ROUNDING) * np.linalg.norm(z))


def _borders_at(cones: Sequence[Cone], m: Array, size: float) -> Active:
    """The borders that multipliers all but touch."""
    slacks = _slacks(cones, m).tolist()
    return [
        APEX if m[cone.normal] <= _GUESSED * size else SIDE if slack <= _GUESSED * size else INSIDE
        for cone, slack in zip(cones, slacks, strict=True)
    ]


def _active_set(
    cones: Sequence[Cone], allowed: _Open, z: Array, size: float
) -> tuple[_Found | None, bool]:
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
        if _slacks(cones, m).min() >= -_TOUCHES * size:
            found = m, list(active), loads
        change = _change(cones, active, m, loads)
        if change is None:
            return found, found is not None
        active[change[0]] = change[1]
    return found, False


def _on_borders(
    cones: Sequence[Cone], active: Active, allowed: _Open, z: Array
) -> tuple[Array, Array]:
    """The minimum with g_j = 0 on the borders that act, by Newton's method from m_0 + N z."""
    particular, null = allowed
    before, kappa = np.inf, np.zeros(0)
    bent = any(kind == SIDE and len(c.tangents) == 2 for c, kind in zip(cones, active, strict=True))
    for _ in range(_STEPS if bent else 1):
        m = particular + null @ z
        borders, curvature = _borders(cones, active, m, kappa)
        # g_j is homogeneous: its value is its gradient times m
        step, kappa = _stationary(null, curvature, borders, -z, -(borders @ m))
        z = z + step
        size = float(np.abs(step).max()) / max(1.0, float(np.abs(z).max()))
        following = size * (size / before) ** 2 if before < np.inf else size
        if following <= _EXACT or _ROUNDING >= size >= 0.5 * before:
            break
        before = size
    return particular + null @ z, kappa


def _stationary(
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
    for j, (cone, kind, slack) in enumerate(zip(cones, active, _slacks(cones, m), strict=True)):
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
