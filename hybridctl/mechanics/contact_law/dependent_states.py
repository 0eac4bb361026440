r"""Contact states that constrain linearly dependent rows, in which forces are not unique.

With :math:`G = L L^T` rates are :math:`w = b + L y`, where :math:`y = L^T f` is the effect of the
forces on the motion. Rows that are constrained to zero leave :math:`y = y_0 + Z \alpha`. With the
directions of sliding contacts known, :math:`f = E m` and

.. math:: L^T E m - Z \alpha = y_0, \qquad m \text{ in the cones}, \qquad
          w_n \ge 0 \text{ where open}, \qquad s \cdot w_t \ge 0 \text{ where it slides}

is a convex set of (m, :math:`\alpha`). A cone programme finds a point of it, or that it is empty.
Others find points with the most different :math:`\alpha`, and with it rates. Problems are
dimensionless, see `law.scale_problem`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import clarabel
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.contact_law.cone_programme import (
    ConeProgramme,
    build_cone_rows,
    map_multipliers,
)
from hybridctl.mechanics.contact_law.law import OPEN, SLIPS, STICK, CoulombProblem, Modes
from hybridctl.mechanics.contact_law.newton import solve_by_newton

_MIN_EIGENVALUE = 1e-11
"""Eigenvalues of G, relative to the largest, up to which forces have no effect. A choice."""
_RANK_TOLERANCE = 1e-7
"""Singular values up to which rows are dependent.

Relative to the largest norm of a row of L for constrained rows, and to the largest singular value
for the equations of the multipliers. A choice, above the square root of rounding."""
_MIN_RATE_CHANGE = 1e-7
"""Change of alpha per unit vector of (m, alpha) below which alpha is fixed. A choice."""
_CONSISTENT = 1e-8
"""Dimensionless residual up to which equations have a solution. A choice, above `CERTIFIED`."""
_MIN_SPEED = 1e-7
"""Dimensionless sliding velocity up to which it has no direction. A choice."""
_MARGINS = (1e-5, -1e-9)
"""Slacks of the cones, relative to the multipliers, that a point is asked for, in this order.

Forces inside the cones are more exact; where there are none, those on the boundary are taken."""
_RATE_WEIGHT = 1e3
"""Weight of alpha, relative to the multipliers, where the most different rates are asked for."""
_SAMPLES = 12
"""Starts of Newton's method for unknown sliding directions. A choice."""


class ConstrainedMotions(NamedTuple):
    """What constrained rows leave of the motion: y = start + null alpha, w = rates + change alpha.

    Attributes:
        independent: Whether the constrained rows are linearly independent.
        consistent: Whether all constrained rows can be zero together.
        start: y_0 (d,).
        null: Z (d, q).
        rates: w (r,) at alpha = 0.
        change: Derivative (r, q) of w by alpha.
    """

    independent: bool
    consistent: bool
    start: Array
    null: Array
    rates: Array
    change: Array


class DependentStates:
    """Contact states of one problem, split by whether they constrain dependent rows.

    The factor L (r, d) of G is computed once, and what constrained rows leave once for each set of
    such rows.

    Args:
        problem: Dimensionless problem.
    """

    def __init__(self, problem: CoulombProblem) -> None:
        self._problem = problem
        values, vectors = np.linalg.eigh(problem.delassus)
        effective = values > _MIN_EIGENVALUE * values[-1]
        self._factor: Array = vectors[:, effective] * np.sqrt(values[effective])
        self._scale = float(np.linalg.norm(self._factor, axis=1).max(initial=0.0))
        self._cache: dict[tuple[int, ...], ConstrainedMotions] = {}

    def split(self, sets: Sequence[Modes]) -> tuple[list[Modes], list[Modes]]:
        """Return the sets of states that constrain independent rows, and those that do not."""
        if self._factor.shape[1] == len(self._factor):
            return list(sets), []
        independent: list[Modes] = []
        dependent: list[Modes] = []
        for modes in sets:
            (independent if self._find_motions(modes).independent else dependent).append(modes)
        return independent, dependent

    def forces(self, modes: Modes) -> Iterator[Array]:
        """Yield candidates of forces (r,) in a set of states, of different rates where there are.

        Constrained rows have no rate. Where equations and directions leave one solution, it is
        yielded whether or not it is in the cones (`_find_point`). So callers judge each candidate
        by its residual, as `solver.solve` does.
        """
        motions = self._find_motions(modes)
        if motions.consistent:
            for directions in self._generate_directions(modes, motions):
                yield from self._generate_forces_in_cones(modes, directions, motions)

    def _find_motions(self, modes: Modes) -> ConstrainedMotions:
        constrained = _list_constrained_rows(self._problem, modes)
        if constrained not in self._cache:
            self._cache[constrained] = self._solve_constraints(list(constrained))
        return self._cache[constrained]

    def _solve_constraints(self, constrained: list[int]) -> ConstrainedMotions:
        free, rows = self._problem.free, self._factor[constrained]
        u, values, v = np.linalg.svd(rows)
        rank = int((values > _RANK_TOLERANCE * self._scale).sum())
        start = -v[:rank].T @ ((u[:, :rank].T @ free[constrained]) / values[:rank])
        residual = np.abs(rows @ start + free[constrained]).max(initial=0.0)
        null = v[rank:].T
        return ConstrainedMotions(
            rank == len(constrained),
            residual <= _CONSISTENT,
            start,
            null,
            free + self._factor @ start,
            self._factor @ null,
        )

    def _generate_directions(self, modes: Modes, motions: ConstrainedMotions) -> Iterator[Array]:
        """Yield directions (r,) of sliding contacts, of unit length on the tangents of each.

        A direction is given, or follows from the state (one tangent), from rates that are fixed, or
        from the only motion that is left, one way or the other. Otherwise directions are sampled.

        Args:
            modes: State of each contact.
            motions: What the constrained rows leave.
        """
        problem, known = self._problem, np.zeros(len(self._problem.free))
        unknown: list[list[int]] = []
        for i, rows, _, _, given in problem.contacts:
            if modes[i] not in SLIPS or not rows:
                continue
            varies = np.abs(motions.change[rows]).max(initial=0.0) > _MIN_SPEED
            if given is not None:
                known[rows] = given
            elif not varies and np.linalg.norm(motions.rates[rows]) <= _MIN_SPEED:
                return  # it cannot move: the set in which it sticks is tried, too
            elif len(rows) == 1:
                known[rows] = SLIPS[modes[i]]
            elif not varies:
                known[rows] = _normalise(motions.rates[rows])
            else:
                unknown.append(rows)
        if not unknown:
            yield known
        elif motions.change.shape[1] == 1 and all(
            np.linalg.norm(motions.rates[rows]) <= _MIN_SPEED for rows in unknown
        ):
            for sign in (1.0, -1.0):
                yield _set_directions(known, unknown, sign * motions.change[:, 0])
        else:
            for rates in self._sample_rates(modes):
                yield _set_directions(known, unknown, rates)

    def _sample_rates(self, modes: Modes) -> Iterator[Array]:
        """Yield rates (r,) that Newton's method finds in these states, from random starts."""
        problem, draw = self._problem, np.random.default_rng(0)
        for _ in range(_SAMPLES):
            start = 10.0 ** draw.uniform(-1.0, 1.0) * draw.normal(size=len(problem.free))
            start[: len(modes)] = np.abs(start[: len(modes)])
            forces = solve_by_newton(problem, start, modes)
            yield problem.delassus @ forces + problem.free

    def _generate_forces_in_cones(
        self, modes: Modes, directions: Array, motions: ConstrainedMotions
    ) -> Iterator[Array]:
        """Yield forces with given directions: of least multipliers, then of most different rates.

        Args:
            modes: State of each contact.
            directions: Sliding directions (r,).
            motions: What the constrained rows leave.
        """
        each = zip(modes, self._problem.contacts, strict=True)
        slides = [directions[rows] if state in SLIPS else None for state, (_, rows, *_) in each]
        mix, cones = map_multipliers(self._problem, modes, slides)
        n = mix.shape[1]
        equations = np.hstack((self._factor.T @ mix, -motions.null))
        u, values, v = np.linalg.svd(equations)
        rank = int((values > _RANK_TOLERANCE * values.max(initial=0.0)).sum())
        z = v[:rank].T @ ((u[:, :rank].T @ motions.start) / values[:rank])
        if np.abs(equations @ z - motions.start).max(initial=0.0) > _CONSISTENT:
            return
        null = v[rank:].T
        limits, least = self._make_rate_limits(modes, directions, motions, n)
        rows, kinds = build_cone_rows(cones, [], n + motions.null.shape[1])
        rows = np.vstack((limits, rows))
        offset = rows @ z
        offset[: len(least)] += least
        if len(least):
            kinds = [clarabel.NonnegativeConeT(len(least)), *kinds]
        size = max(1.0, float(np.abs(z[:n]).max(initial=0.0)))
        inner = _make_inner_vector(rows, kinds)
        for margin in _MARGINS:
            inside = offset - margin * size * inner
            found = _find_point(np.zeros(null.shape[1]), rows @ null, inside, kinds)
            if found is None:
                continue
            yield mix @ (z + null @ found)[:n]
            for alpha in null[n:]:
                if np.abs(alpha).max(initial=0.0) > _MIN_RATE_CHANGE:
                    for sign in (_RATE_WEIGHT * size, -_RATE_WEIGHT * size):
                        other = _find_point(sign * alpha, rows @ null, inside, kinds)
                        if other is not None:
                            yield mix @ (z + null @ other)[:n]
            return

    def _make_rate_limits(
        self, modes: Modes, directions: Array, motions: ConstrainedMotions, n: int
    ) -> tuple[Array, Array]:
        """Return the rates that must not be negative as linear functions of (m, alpha).

        They are w_n of open contacts, and s . w_t of contacts that begin to slide.

        Args:
            modes: State of each contact.
            directions: Sliding directions (r,).
            motions: What the constrained rows leave.
            n: Number of multipliers.

        Returns:
            Rows (p, n + q) and constants (p,).
        """
        rows, constants = [], []
        for i, tangents, _, _, given in self._problem.contacts:
            if modes[i] == OPEN:
                rows.append(motions.change[i])
                constants.append(motions.rates[i])
            elif modes[i] in SLIPS and given is None:
                s = directions[tangents]
                rows.append(s @ motions.change[tangents])
                constants.append(s @ motions.rates[tangents])
        change = np.array(rows).reshape(len(rows), motions.null.shape[1])
        return np.hstack((np.zeros((len(rows), n)), change)), np.array(constants)


def _list_constrained_rows(problem: CoulombProblem, modes: Modes) -> tuple[int, ...]:
    """Return rows whose rates are zero: normals of closed contacts, tangents of sticking ones."""
    closed = [i for i, state in enumerate(modes) if state != OPEN]
    sticking = [row for i in closed if modes[i] == STICK for row in problem.contacts[i][1]]
    return (*closed, *sticking)


def _normalise(w: Array) -> Array:
    return np.asarray(w / (float(np.linalg.norm(w)) or 1.0))


def _set_directions(known: Array, unknown: Sequence[list[int]], rates: Array) -> Array:
    """Return directions (r,) in which those of unknown contacts are along some rates."""
    directions: Array = known.copy()
    for rows in unknown:
        directions[rows] = _normalise(rates[rows])
    return directions


def _make_inner_vector(rows: Array, kinds: Sequence[object]) -> Array:
    """Return a vector inside the cones: 1 on scalar rows and axes, 0 across the axes.

    Args:
        rows: Rows of the cones, circular ones last.
        kinds: Clarabel's cones.
    """
    inner = np.ones(len(rows))
    circular = 3 * sum(isinstance(kind, clarabel.SecondOrderConeT) for kind in kinds)
    across = np.arange(len(rows) - circular, len(rows)).reshape(-1, 3)[:, 1:]
    inner[across.ravel()] = 0.0
    return inner


def _find_point(gradient: Array, rows: Array, offset: Array, kinds: list[object]) -> Array | None:
    """Return the point t (n,) of least |t|^2 / 2 + gradient . t, of those in the cones.

    Args:
        gradient: Gradient (n,) at t = 0.
        rows: Rows (p, n) of what has to be in the cones, rows t + offset.
        offset: Its value (p,) at t = 0.
        kinds: The cones.

    Returns:
        The point, None if the cone programme finds none. Without coordinates (n = 0) the empty
        point, whether or not the offset is in the cones.
    """
    if not len(gradient):
        return gradient  # there is nothing to choose, and the forces are judged by the caller
    found = ConeProgramme(np.eye(len(gradient)), gradient, rows, offset, kinds).solve()
    return found.point if found.solved else None
