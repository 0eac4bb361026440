r"""Contact-force distribution of redundant contacts: forces of least weighted norm in the cones.

Redundant contacts leave forces open that change no rates. In given contact states let m be the
multipliers: normal forces of closed contacts, and friction of those that stick. Then f = E m, and
the constrained rows C, whose rates are zero, give A m = c with A = C G E and c = C (w - b). The
distribution is the solution of

.. math::
    \min_m \tfrac12 \sum_i f_i^2 / W_i \quad \text{with} \quad A m = c, \quad
    f_n \ge 0, \quad |f_t| \le \mu_s f_n \text{ where it sticks},

which is strictly convex, so that the forces are unique. Where the equations contradict each other
A m is the closest possible to c.

Method. The solution m_0 of least norm without cones comes from `LeastNormEquations`. If it leaves
the cones, the equations allow m_0 + N z, and what remains is the least |z| for which all slacks
:math:`g_j(m_0 + N z)` are at least zero. It is found

1. with one free direction, at the end of an interval (`_solve_on_line`),
2. where all contacts only push, as the least distance of a polyhedron, by nonnegative least
   squares (`_solve_pushing_contacts`),
3. otherwise by a cone programme, made exact by an active-set method (`_solve_by_programme`).
   Newton's method on the optimality conditions

.. math:: (1 - \sum_j \kappa_j N^T \nabla^2 g_j N) z = N^T \sum_j \kappa_j \nabla g_j, \quad g_j = 0

   gives the minimum on given active boundaries. Where the allowed part of the cones is nearly a
   single point, or no active set is optimal, the programme's own multipliers are taken, to 1e-9.

The boundaries of a cone are its side, :math:`\mu_s f_n - |f_t| = 0`, where the contact is about to
slip, and its apex, f = 0, where it carries no load. With the active boundaries the optimality
conditions

.. math:: H m - A^T y - \sum_j \kappa_j \nabla g_j = 0, \quad A m = c, \quad g_j = 0, \quad
    H = E^T W^{-1} E,

also give the derivative of the distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import hypot
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from hybridctl.base.checks import Array
from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics.contact_law.cone_programme import (
    Cone,
    ConeProgramme,
    build_cone_rows,
    map_multipliers,
)
from hybridctl.mechanics.contact_law.law import SLIPS, CoulombProblem, Modes, scale_problem
from hybridctl.mechanics.contact_law.linear_equations import LeastNormEquations, solve_least_norm

# Tolerances have two scalings. In `AffineSet`, and wherever a point of it is searched, multipliers
# and slacks have no unit: they are forces in N, or impulses in N s, divided by `ForceCones.units`.
# "Relative to the multipliers" means that the tolerance is also multiplied by the largest
# multiplier, at least 1, such as `AffineSet.size`.
_INSIDE_TOLERANCE = 1e-12
"""Negative slack, relative to the multipliers, at which a point still counts as inside the cones:
rounding."""
_BOUNDARY_TOLERANCE = 1e-9
"""Slack, relative to the multipliers, that counts as zero. It equals `law.CERTIFIED`, to which the
law itself is checked."""
_NEAR_BOUNDARY = 1e-5
"""Slack or normal force, relative to the multipliers, up to which a boundary counts as near.

It has two uses. `_guess_active_set` takes near boundaries to be active. `_solve_on_line` leaves an
end with so small a normal force, which is near an apex, to the cone programme. The guess is made at
the solution of a cone programme. Its interior-point method leaves products of
slack and multiplier kappa of 1e-11, so that both may be 3e-6."""
_THICKNESS = 1e-9
"""Slack, relative to the multipliers, that is added to all cones to ask whether any point is in
them: cones that allow a single point have no interior to search."""
_STEP_CONVERGED = 1e-13
"""Expected next Newton step, relative to the iterate, at which the iteration ends."""
_STEP_STAGNATED = 1e-8
"""Newton step, relative to the iterate, that ends the iteration if it is not half the last one."""
_MAX_NEWTON_STEPS = 8
"""Newton steps on one set of active boundaries. A choice."""
_MAX_SET_CHANGES = 8
"""Changes of the active set before the last feasible point is taken. A choice."""
_MAX_LINE_STEPS = 40
"""Newton steps on a line; each goes to the boundary of another cone or converges. A choice."""
_LINE_CONVERGED = 1e-14
"""Newton step on a line, relative to the iterate, at which it ends: rounding."""
_MIN_RESIDUAL = 1e-6
"""Residual r of the least-distance problem up to which no point is taken to exist.

It is 1 where the least z is zero, and about 1 / |z| where it is long, with z in the unit of
`_solve_least_distance`. So a point that exists is given up only if forces would have to change by a
million times the largest one. A choice, above the rounding of the residual."""

INSIDE, SIDE, APEX = range(3)
"""Active boundary of a cone: none, its side (one equation), its apex (one for each force)."""
ActiveSet = list[int]
"""The active boundary of each cone."""


class AffineSet(NamedTuple):
    """The multipliers m_0 + N z that the equations A m = c allow, for any z (d,).

    The columns of N are such that the weighted norm of m is least where |z| is: m_0 is the solution
    of least norm. Multipliers are divided by `ForceCones.units`.

    Attributes:
        particular: m_0 (n,).
        null: N (n, d).
    """

    particular: Array
    null: Array

    @property
    def size(self) -> float:
        """The largest multiplier of m_0, at least 1, to which tolerances are relative."""
        return max(1.0, float(np.abs(self.particular).max(initial=0.0)))


class LeastPoint(NamedTuple):
    """The multipliers of least |z| in the cones.

    Attributes:
        multipliers: m (n,), in the units of the affine set.
        active: Active boundary of each cone: INSIDE, SIDE or APEX.
        kappa: Multipliers kappa of the equations g_j = 0 of the active boundaries, cone by cone.
            Empty where all cones are INSIDE.
    """

    multipliers: Array
    active: ActiveSet
    kappa: Array


class ForceCones(NamedTuple):
    """Forces f = E m of closed contacts by their multipliers, and the friction cones.

    Attributes:
        mix: E (r, n). Normal forces come first in m, then friction, cone by cone.
        cones: Cones of the multipliers, one for each closed contact.
        units: Unit (n,) of each multiplier, to which tolerances are relative.
    """

    mix: Array
    cones: Sequence[Cone]
    units: Array


@dataclass(frozen=True)
class ForceDistribution:
    """Forces of least weighted norm in the cones, with what their derivative needs.

    Attributes:
        multipliers: m (n,): normal forces of the closed contacts in their order, then friction of
            those that stick, contact by contact.
    """

    multipliers: Array
    _cones: ForceCones
    _equations: LeastNormEquations
    _allowed: AffineSet
    _active: ActiveSet
    _kappa: Array

    @property
    def forces(self) -> Array:
        """Forces E m (r,) along all rows."""
        return np.asarray(self._cones.mix @ self.multipliers)

    @cached_property
    def adjoint(self) -> Array:
        """Multipliers y (m,) of the equations A m = c."""
        gradients, _ = self._boundaries
        pull = self.multipliers / self._equations.weights
        pull = pull - gradients.T @ self._kappa / self._cones.units
        return np.asarray(self._equations.inverse.T @ pull)

    @cached_property
    def _boundaries(self) -> tuple[Array, Array]:
        """Gradients and curvature of the active boundaries, see `_differentiate_boundaries`."""
        m = self.multipliers / self._cones.units
        return _differentiate_boundaries(self._cones.cones, self._active, m, self._kappa)

    def sensitivity(
        self, equations: Array, stationarity: Array, weights: Array | None = None
    ) -> Array:
        """Return the derivative of the multipliers by some parameters.

        The active boundaries stay active. Where one is touched with kappa = 0, this is the
        derivative on the side on which it stays active.

        Args:
            equations: D(c) - D(A) m (m, z) at fixed m. If the equations contradict each other, add
                (A^+)' D(A') (c - A m), see `LeastNormEquations.residual_sensitivity`.
            stationarity: D(A') y (n, z) at fixed y.
            weights: D(W) (n, z); None for zero.

        Returns:
            Derivatives (n, z).
        """
        system, unit, null = self._equations, self._cones.units[:, None], self._allowed.null
        pull = stationarity
        if weights is not None:
            pull = pull + (self.multipliers / system.weights**2)[:, None] * weights
        # From here on in the multipliers' units: m is divided by them, so gradients by m are times.
        particular = system.inverse @ equations / unit
        gradients, curvature = self._boundaries
        upper = null.T @ (unit * pull - curvature @ particular)
        step, _ = _solve_optimality(null, curvature, gradients, upper, -gradients @ particular)
        return np.asarray(unit * (particular + null @ step))


def distribute_forces(
    problem: CoulombProblem,
    modes: Modes,
    directions: Sequence[Array | None],
    weights: Array,
    rates: Array | None = None,
) -> ForceDistribution:
    """Return the forces of least sum of f_i^2 / weights_i that obey the law in given states.

    The constraints are w_n = 0 of closed contacts, w_t = 0 of sticking ones, and forces in the
    friction cones. With `rates`, w_t of sticking and of sliding contacts is constrained to the
    rates instead, so that the sliding directions stay those of w_t.

    Args:
        problem: The problem, in any units.
        modes: State of each contact.
        directions: Direction of each sliding contact, None for the others.
        weights: Weights (r,), positive; infinite for rows that do not count.
        rates: Rates (r,) in the problem's units, of which normal ones do not count; or None.

    Returns:
        The distribution, with forces in the problem's units (N, or N s of an impact).

    Raises:
        NoContactSolutionError: No forces in the cones that give these rates were found. As a rule
            there are none, so that the contacts cannot be in these states.
    """
    mix, cones = map_multipliers(problem, modes, directions)
    # The row of each multiplier: of the normal forces, then of the friction of sticking contacts.
    rows_of_multipliers = [int(np.flatnonzero(column)[0]) for column in mix.T]
    constrained, target = rows_of_multipliers, np.zeros(len(rows_of_multipliers))
    if rates is not None:
        sliding = [rows for i, rows, *_ in problem.contacts if modes[i] in SLIPS]
        constrained = [*rows_of_multipliers, *(row for rows in sliding for row in rows)]
        target = rates[constrained]
        target[: len(cones)] = 0.0  # the normals come first, and stay closed
    equations = LeastNormEquations(
        problem.delassus[constrained] @ mix, 1.0 / ((mix**2).T @ (1.0 / weights))
    )
    units = scale_problem(problem)[1].forces[rows_of_multipliers]
    found = distribute_in_cones(
        equations,
        equations.solve(target - problem.free[constrained]),
        ForceCones(mix, cones, units),
    )
    if found is None:
        raise NoContactSolutionError(
            f"contacts cannot be {modes}: no forces that give their rates are inside the "
            "friction cones",
            problem=problem,
        )
    return found


def distribute_in_cones(
    equations: LeastNormEquations, least: Array, force_cones: ForceCones
) -> ForceDistribution | None:
    """Return the solution of least norm in the cones, None if the cones contain no solution.

    Args:
        equations: The equations A m = c of redundant contacts.
        least: Their solution (n,) of least norm without cones.
        force_cones: The friction cones of m.
    """
    units = force_cones.units
    allowed = AffineSet(least / units, equations.null / units[:, None])
    found = find_least_in_cones(force_cones.cones, allowed)
    if found is None:
        return None
    return ForceDistribution(
        multipliers=units * found.multipliers,
        _cones=force_cones,
        _equations=equations,
        _allowed=allowed,
        _active=found.active,
        _kappa=found.kappa,
    )


def find_least_in_cones(cones: Sequence[Cone], allowed: AffineSet) -> LeastPoint | None:
    """Return the multipliers m_0 + N z of least |z| in the cones.

    The quick methods that fit are tried first. Where they leave the point open, the cone programme
    decides.

    Args:
        cones: The friction cones of the multipliers.
        allowed: m_0 and N.

    Returns:
        The point. None if the cones contain none, and also if none is found: the cone programme
        does not converge and the active sets lead to no point in the cones.
    """
    slacks = _compute_cone_slacks(cones, allowed.particular)
    # z = 0 is the least of all. If it lies in the cones it is the answer, with no active boundary.
    if slacks.min(initial=0.0) >= -_INSIDE_TOLERANCE * allowed.size:
        return LeastPoint(allowed.particular, [INSIDE] * len(cones), np.zeros(0))
    # Without a free direction m_0 is the only solution, and it is outside: no other is possible.
    found, is_possible = None, bool(allowed.null.size)
    if allowed.null.shape[1] == 1:
        found, is_possible = _solve_on_line(cones, allowed)
    elif is_possible:
        # If scipy's nonnegative least squares does not converge, the programme decides.
        with suppress(RuntimeError):
            found, is_possible = _solve_pushing_contacts(cones, allowed)
    return _solve_by_programme(cones, allowed) if is_possible and found is None else found


def _compute_cone_slacks(cones: Sequence[Cone], m: Array) -> Array:
    """Return the slacks of the cones (k,): mu f_n - |f_t|, or f_n without friction."""
    v = m.tolist()
    return np.array(
        [
            c.friction * v[c.normal] - hypot(*(v[i] for i in c.tangents))
            if c.tangents
            else v[c.normal]
            for c in cones
        ]
    )


def _differentiate_boundaries(
    cones: Sequence[Cone], active: ActiveSet, m: Array, kappa: Array
) -> tuple[Array, Array]:
    """Return gradients (p, n) of the active boundaries g_j, and - sum_j kappa_j D^2 g_j (n, n).

    Args:
        cones: The cones.
        active: The active boundary of each.
        m: Multipliers (n,) at which the derivatives are taken.
        kappa: Multipliers (p,) of the boundaries; empty if the curvature is not needed.
    """
    values, loads, place = m.tolist(), kappa.tolist(), 0
    curvature = np.zeros((len(m), len(m)))
    rows: list[int] = []
    columns: list[int] = []
    slopes: list[float] = []
    for cone, kind in zip(cones, active, strict=True):
        t = cone.tangents
        if kind == APEX:
            rows += range(place, place + 1 + len(t))
            columns += [cone.normal, *t]
            slopes += [1.0] * (1 + len(t))
        elif kind == SIDE:
            length = hypot(*(values[i] for i in t)) or 1.0
            along = [values[i] / length for i in t]
            rows += [place] * (1 + len(t))
            columns += [cone.normal, *t]
            slopes += [cone.friction, *(-a for a in along)]
            if loads and len(t) == 2:
                a, b, load = *along, loads[place] / length
                span = slice(t[0], t[1] + 1)
                curvature[span, span] = [
                    [load * b * b, -load * a * b],
                    [-load * a * b, load * a * a],
                ]
        place += _count_equations(cone, kind)
    gradients = np.zeros((place, len(m)))
    gradients[rows, columns] = slopes
    return gradients, curvature


def _count_equations(cone: Cone, kind: int) -> int:
    """Return the number of equations g_j = 0 of the active boundary of a cone.

    INSIDE, which is 0, has none. SIDE, which is 1, has one. An apex has one for each force.
    """
    return kind if kind < APEX else 1 + len(cone.tangents)


def _solve_by_programme(cones: Sequence[Cone], allowed: AffineSet) -> LeastPoint | None:
    """Return the least point by the active-set method, from the solution of a cone programme.

    Args:
        cones: The friction cones.
        allowed: m_0 and N.

    Returns:
        The minimum. If no active set gives it, the last point in the cones that one of them gave
        (`found`): always if the programme did not converge, otherwise if it is as short as the
        programme's point. Else the programme's point, clipped to the cones. None if the programme
        proves that no point is in the widened cones, or if it did not converge and no active set
        gave a point in the cones.
    """
    (particular, null), size = allowed, allowed.size
    count = null.shape[1]
    rows, kinds = build_cone_rows(cones, [], len(particular))
    offset = rows @ particular
    # A little wider, so that the cones have an interior where they allow a single point only.
    offset += _THICKNESS * size * rows[:, [cone.normal for cone in cones]].any(axis=1)
    start = ConeProgramme(np.eye(count), np.zeros(count), rows @ null, offset, kinds).solve()
    if start.infeasible:
        return None
    # A programme that did not converge gives no start: then the active sets start from m_0.
    z = start.point if start.solved else np.zeros(count)
    # `found` is None unless one of the active sets gave a point in the cones.
    found, is_minimum = _search_active_set(cones, allowed, z, size)
    if is_minimum or not start.solved:
        return found
    if found is not None:
        # Two conditions: the point is in the cones, as `found` is not None, and its z is no longer
        # than the programme's. It is not optimal, but obeys the equations to rounding, where
        # clipped multipliers miss them by 1e-9: test_least_forces,
        # test_a_point_on_boundaries_is_taken_where_none_of_them_is_optimal.
        z_found = np.linalg.lstsq(null, found.multipliers - particular)[0]
        if np.linalg.norm(z_found) <= (1.0 + _STEP_STAGNATED) * np.linalg.norm(z):
            return found
    return _clip_to_cones(cones, allowed, z, size)


def _solve_pushing_contacts(
    cones: Sequence[Cone], allowed: AffineSet
) -> tuple[LeastPoint | None, bool]:
    """Return the least point with f_n >= 0 if it is the least in the cones, too.

    Leaving friction out makes a simpler problem with a lower minimum. Its solution solves the whole
    one if its friction is inside the cones. A contact with friction that is at f_n = 0 would have
    to lose its friction as well, which the simpler problem does not ask for.

    Args:
        cones: The friction cones.
        allowed: m_0 and N.

    Returns:
        The point and True if it is the answer. None and True if this method does not decide. None
        and False if there is no answer: `_solve_least_distance` finds no point with f_n >= 0, not
        even with the cones widened by 1e-9.
    """
    normals = [cone.normal for cone in cones]
    rows, pulls = allowed.null[normals], -allowed.particular[normals]
    if pulls.max() <= 0.0:  # no normal force of m_0 pulls: what leaves the cones is friction
        return None, True
    kappa = _solve_least_distance(rows, pulls, allowed.size)
    if kappa is None:
        pulls -= _THICKNESS * allowed.size
        is_possible = bool(pulls.max() <= 0.0)
        return None, is_possible or _solve_least_distance(rows, pulls, allowed.size) is not None
    active = [APEX if multiplier > 0.0 else INSIDE for multiplier in kappa.tolist()]
    if any(cone.tangents for cone, kind in zip(cones, active, strict=True) if kind == APEX):
        return None, True
    m = allowed.particular + allowed.null @ (kappa @ rows)  # z = G' kappa
    slacks, unloaded = _compute_cone_slacks(cones, m), kappa > 0.0
    inside = slacks.min() >= -_INSIDE_TOLERANCE * allowed.size
    touches = slacks[unloaded].max(initial=0.0) <= _BOUNDARY_TOLERANCE * allowed.size
    return (LeastPoint(m, active, kappa[unloaded]) if inside and touches else None), True


def _solve_least_distance(rows: Array, least: Array, size: float) -> Array | None:
    r"""Return multipliers kappa of the least z = G' kappa with G z >= h, or None without any z.

    By :math:`r = \min_{u \ge 0} |(G, h)^T u - (0, 1)|`, Lawson and Hanson (1974), 23.4, with h in
    some unit of z. The residual r is zero if and only if no z exists. If one does, kappa is the
    unit times u / r^2, and in this unit :math:`r^2 = 1 / (1 + |z|^2)`.

    Args:
        rows: G (k, d).
        least: h (k,), of which some entries are positive.
        size: The largest multiplier, at least 1, see `AffineSet.size`.

    Returns:
        kappa (k,), not negative. None if all rows are zero, so that no z changes anything, or if r
        is at most `_MIN_RESIDUAL`.
    """
    if not rows.any():
        return None
    # In the unit of h a z of length 1 changes the heaviest row by the largest h. A contact of which
    # all z change next to nothing needs a z that is long in this unit, so that r is tiny, even if z
    # is short beside the forces: then these give the unit.
    unit_of_h = float(least.max() / np.abs(rows).max())
    right = np.zeros(rows.shape[1] + 1)
    right[-1] = 1.0
    for unit in (unit_of_h, size) if unit_of_h < size else (unit_of_h,):
        u, residual = nnls(np.vstack((rows.T, least / unit)), right)
        if residual > _MIN_RESIDUAL:
            return np.asarray(unit / residual**2 * u)
    return None


class _IntervalEnd(NamedTuple):
    """An end of the interval of a line m_0 + N z that is in the cones.

    Attributes:
        z: The coordinate z of the end.
        cone: Index of the cone whose boundary is there.
        slope: Derivative of its slack by z.
    """

    z: float
    cone: int
    slope: float


def _solve_on_line(cones: Sequence[Cone], allowed: AffineSet) -> tuple[LeastPoint | None, bool]:
    """Return the near end of the interval of a line in the cones, and whether there is one.

    The cones are convex, so the line is in them on an interval, and its end next to z = 0 is the
    least point. One cone is active there; if several boundaries meet at the end it is one of them.

    Args:
        cones: The friction cones.
        allowed: m_0 and N, with one column.

    Returns:
        The end and True. None and True if the programme has to find it: at the apex of a cone with
        friction, which has several equations, and where the interval is so short that only widened
        cones have one. None and False if no point of the line is found in the widened cones: there
        is none, or `_MAX_LINE_STEPS` do not reach it.
    """
    size = allowed.size
    widened_end = _find_interval_end(cones, allowed, 0.0, _THICKNESS * size)
    if widened_end is None:
        return None, False
    end = _find_interval_end(cones, allowed, widened_end.z, 0.0)
    if end is None:
        return None, True
    m, cone = allowed.particular + end.z * allowed.null[:, 0], cones[end.cone]
    if cone.tangents and m[cone.normal] <= _NEAR_BOUNDARY * size:
        return None, True
    active = [INSIDE] * len(cones)
    active[end.cone] = SIDE if cone.tangents else APEX
    return LeastPoint(m, active, np.array([end.z / end.slope])), True


def _find_interval_end(
    cones: Sequence[Cone], allowed: AffineSet, z: float, widening: float
) -> _IntervalEnd | None:
    """Return the point of a line inside widened cones that is nearest to a start.

    It is the start itself if that is inside. Otherwise the search goes the way the slacks rise.

    Newton's method on the least g_j + widening, which is concave: no step goes past its root. If it
    no longer rises there is no root.

    Args:
        cones: The friction cones.
        allowed: m_0 and N, with one column.
        z: Coordinate of the start.
        widening: What is added to all slacks.

    Returns:
        The end. None if the line does not meet the cones, or if `_MAX_LINE_STEPS` are not enough.
    """
    point, along = allowed.particular.tolist(), allowed.null[:, 0].tolist()
    first_slope = 0.0
    for _ in range(_MAX_LINE_STEPS):
        value, slope, j = min(
            _compute_slack_on_line(cone, point, along, z, j) for j, cone in enumerate(cones)
        )
        value += widening
        if value >= 0.0:
            return _IntervalEnd(z, j, slope)
        # Past the top of the least slack without having met zero: it is negative everywhere.
        if first_slope * slope < 0.0 or slope == 0.0:
            return None
        first_slope, step = slope, -value / slope
        if abs(step) <= _LINE_CONVERGED * abs(z):
            return _IntervalEnd(z, j, slope)
        z += step
    return None


def _compute_slack_on_line(
    cone: Cone, point: list[float], along: list[float], z: float, j: int
) -> tuple[float, float, int]:
    """Return the slack of the j-th cone at m_0 + N z, its derivative by z, and j.

    Args:
        cone: The cone.
        point: m_0.
        along: The column of N.
        z: Coordinate on the line.
        j: Number of the cone.
    """
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


def _clip_to_cones(cones: Sequence[Cone], allowed: AffineSet, z: Array, size: float) -> LeastPoint:
    """Return a programme's own multipliers m_0 + N z, moved into the cones by 1e-9 at most.

    This is the answer where the allowed part of the cones is nearly a single point, to which no
    active set leads, and where it has no interior, so that the active sets alternate.

    Args:
        cones: The friction cones.
        allowed: m_0 and N.
        z: Solution of the cone programme.
        size: Unit of the tolerances.
    """
    m = allowed.particular + allowed.null @ z
    for normal, tangents, friction in cones:
        m[normal] = max(m[normal], 0.0)
        length, limit = hypot(*m[tangents]), friction * m[normal]
        if length > limit:
            m[tangents] *= limit / length
    active = _guess_active_set(cones, m, size)
    # kappa by least squares of the optimality condition z = N' sum_j kappa_j D g_j.
    gradients, _ = _differentiate_boundaries(cones, active, m, np.zeros(0))
    return LeastPoint(m, active, np.linalg.lstsq((gradients @ allowed.null).T, z)[0])


def _guess_active_set(cones: Sequence[Cone], m: Array, size: float) -> ActiveSet:
    """Return the active boundary of each cone: one that is at most `_NEAR_BOUNDARY` away."""
    slacks, near = _compute_cone_slacks(cones, m).tolist(), _NEAR_BOUNDARY * size
    return [
        APEX if m[cone.normal] <= near else SIDE if slack <= near else INSIDE
        for cone, slack in zip(cones, slacks, strict=True)
    ]


def _search_active_set(
    cones: Sequence[Cone], allowed: AffineSet, z: Array, size: float
) -> tuple[LeastPoint | None, bool]:
    """Return the last feasible point of an active-set method, and whether it is the minimum.

    Multipliers kappa need not exist where the allowed part of the cones has no interior. Then the
    active sets alternate, which ends the search.

    Args:
        cones: The friction cones.
        allowed: m_0 and N.
        z: Coordinates near the minimum.
        size: Unit of the tolerances.
    """
    active = _guess_active_set(cones, allowed.particular + allowed.null @ z, size)
    tried: list[ActiveSet] = []
    found = None
    while active not in tried and len(tried) <= _MAX_SET_CHANGES:
        tried.append(list(active))
        m, kappa = _minimise_on_boundaries(cones, active, allowed, z)
        if _compute_cone_slacks(cones, m).min() >= -_BOUNDARY_TOLERANCE * size:
            found = LeastPoint(m, list(active), kappa)
        change = _find_worst_boundary(cones, active, m, kappa)
        if change is None:
            return found, found is not None
        active[change[0]] = change[1]
    return found, False


def _minimise_on_boundaries(
    cones: Sequence[Cone], active: ActiveSet, allowed: AffineSet, z: Array
) -> tuple[Array, Array]:
    """Return the minimum m (n,) with g_j = 0 on the active boundaries, and kappa.

    Newton's method from z. One step is exact unless the side of a circular cone is active.

    Args:
        cones: The friction cones.
        active: The active boundaries.
        allowed: m_0 and N.
        z: First coordinates.
    """
    particular, null = allowed
    before, kappa = np.inf, np.zeros(0)
    is_curved = any(
        kind == SIDE and len(c.tangents) == 2 for c, kind in zip(cones, active, strict=True)
    )
    for _ in range(_MAX_NEWTON_STEPS if is_curved else 1):
        m = particular + null @ z
        gradients, curvature = _differentiate_boundaries(cones, active, m, kappa)
        # g_j is homogeneous: its value is its gradient times m
        step, kappa = _solve_optimality(null, curvature, gradients, -z, -(gradients @ m))
        z = z + step
        size = float(np.abs(step).max()) / max(1.0, float(np.abs(z).max()))
        # The next step that quadratic convergence lets expect.
        next_size = size * (size / before) ** 2 if before < np.inf else size
        if next_size <= _STEP_CONVERGED or _STEP_STAGNATED >= size >= 0.5 * before:
            break
        before = size
    return particular + null @ z, kappa


def _solve_optimality(
    null: Array, curvature: Array, gradients: Array, upper: Array, lower: Array
) -> tuple[Array, Array]:
    """Solve (1 + N'KN) z - N'D' kappa = upper, D N z = lower.

    Where boundaries depend on each other this is a solution of least squares. D N is scaled by its
    largest entry.

    Args:
        null: N (n, d).
        curvature: K (n, n), see `_differentiate_boundaries`.
        gradients: D (a, n) of the active boundaries.
        upper: Right-hand side (d, .).
        lower: Right-hand side (a, .).

    Returns:
        z (d, .) and kappa (a, .).
    """
    along = gradients @ null
    size = float(np.abs(along).max(initial=0.0)) or 1.0
    d, a = null.shape[1], len(along)
    matrix = np.zeros((d + a, d + a))
    matrix[:d, :d] = np.eye(d) + null.T @ curvature @ null
    matrix[:d, d:], matrix[d:, :d] = -along.T / size, along / size
    found = solve_least_norm(matrix, np.concatenate((upper, lower / size)))
    return found[:d], found[d:] / size


def _find_worst_boundary(
    cones: Sequence[Cone], active: ActiveSet, m: Array, kappa: Array
) -> tuple[int, int] | None:
    """Return the cone whose active boundary is most wrong, and the boundary that replaces it.

    A cone that m leaves needs a boundary. A boundary whose kappa pulls is dropped, and so is one on
    which m is not. Distances are relative to the largest entry of m, multipliers to the largest
    kappa, so that the violations of all cones compare. Only the worst one is changed.

    Args:
        cones: The friction cones.
        active: The active boundaries.
        m: Minimum on these boundaries.
        kappa: Their multipliers.

    Returns:
        Index of the cone and its new boundary; None if m is optimal, to 1e-9.
    """
    largest_m = max(1.0, float(np.abs(m).max()))
    largest_kappa = max(float(np.abs(kappa).max(initial=0.0)), _BOUNDARY_TOLERANCE)
    # Slacks have the finer tolerance: 1e-12 in m counts as 1e-9 in kappa.
    slack_weight = _BOUNDARY_TOLERANCE / _INSIDE_TOLERANCE
    worst, change, place = _BOUNDARY_TOLERANCE, None, 0
    for j, (cone, kind, slack) in enumerate(
        zip(cones, active, _compute_cone_slacks(cones, m), strict=True)
    ):
        loads = kappa[place : place + _count_equations(cone, kind)]
        place += len(loads)
        outside = slack_weight * -min(slack, m[cone.normal]) / largest_m  # positive outside
        if kind == INSIDE:  # a boundary is needed where m is outside
            violation = outside
            new = SIDE if cone.tangents and m[cone.normal] > 0.0 else APEX
        elif kind == SIDE and outside > worst:  # outside though the side is active: f_n pulls
            violation, new = outside, APEX
        elif slack > _BOUNDARY_TOLERANCE * largest_m:
            # m is not on the boundary: there are more boundaries than degrees of freedom.
            violation, new = slack_weight * slack / largest_m, INSIDE
        else:
            violation = _compute_pull(cone, kind, loads) / largest_kappa
            # The side of an apex may still be needed without the apex.
            new = SIDE if kind == APEX and cone.tangents else INSIDE
        if violation > worst:
            worst, change = violation, (j, new)
    return change


def _compute_pull(cone: Cone, kind: int, loads: Array) -> float:
    """Return by how much the multipliers kappa of a boundary pull; at most zero where they push.

    Args:
        cone: The cone.
        kind: Its active boundary. A SIDE pulls if its one multiplier is negative, an APEX if its
            multipliers are outside the dual cone.
        loads: The multipliers of the boundary.
    """
    if kind == SIDE:
        return -float(loads[0])
    return -float(loads[0] - cone.friction * float(np.linalg.norm(loads[1:])))
