r"""Coulomb's law as a fixed point of second-order cone programmes.

With K the product of the friction cones :math:`|f_t| \le \mu f_n`, the law is (De Saxce and Feng
1998)

.. math:: f \in K, \qquad w + \mu |w_t| n \in K^*, \qquad f \cdot (w + \mu |w_t| n) = 0.

For fixed :math:`s = \mu |w_t|` these are the optimality conditions of

.. math:: \min_{f \in K} \tfrac12 f^T G f + (b + s n)^T f

(Acary, Cadoux, Lemarechal, Malick 2011). Clarabel, an interior-point method, solves it. Problems
are dimensionless, see `law.scale_problem`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from math import hypot
from typing import NamedTuple

import clarabel
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.contact_law.law import OPEN, STICK, CoulombProblem, Modes

_TOLERANCE = 1e-11
"""Tolerance of Clarabel for the gap and for feasibility. A choice, below `law.CERTIFIED`."""
_UNDAMPED = 15
"""Programmes whose s is that of the solution before; later ones average. Most problems converge."""
_RESTART_PERIOD = 40
"""Programmes after which the iteration begins anew from a random s. A choice."""
_MAX_FAILURES = 40
"""Failures in a row after which the iteration ends: s has then been doubled 40 times."""
_SOLVED = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)
_INFEASIBLE = (clarabel.SolverStatus.PrimalInfeasible, clarabel.SolverStatus.AlmostPrimalInfeasible)


class ConeSolution(NamedTuple):
    """The end of one cone programme.

    Attributes:
        point: Minimum x (n,); the last iterate where none was found.
        solved: Whether the minimum was found.
        infeasible: Whether it is certain that no x is inside the cones. False also where the
            numerics failed.
    """

    point: Array
    solved: bool
    infeasible: bool


class SparseColumns(NamedTuple):
    """A matrix in compressed columns: the attributes of a scipy matrix that Clarabel reads.

    Making it takes less time than making the scipy matrix.
    """

    data: list[float]
    indices: list[int]
    indptr: list[int]
    shape: tuple[int, ...]
    nnz: int
    has_sorted_indices: bool = True
    has_canonical_format: bool = True

    @classmethod
    def from_dense(cls, matrix: Array) -> SparseColumns:
        """Return the nonzero entries of a matrix."""
        filled = matrix.T != 0.0
        places = np.nonzero(filled)[1].tolist()
        ends = [0, *filled.sum(axis=1).cumsum().tolist()]
        return cls(matrix.T[filled].tolist(), places, ends, matrix.shape, len(places))


class ConeProgramme:
    """The programme min 1/2 x'H x + q'x subject to C x + c in a product of cones.

    It is set up once. `update` replaces q and c, and `solve` may be called after each update.

    Args:
        hessian: H (n, n), symmetric and positive semidefinite.
        gradient: q (n,).
        rows: C (m, n).
        offset: c (m,).
        cones: Clarabel's cones, in the order of the rows.
    """

    def __init__(
        self, hessian: Array, gradient: Array, rows: Array, offset: Array, cones: list[object]
    ) -> None:
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_threads = False, 1
        settings.presolve_enable = False  # it would forbid `update`
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = _TOLERANCE
        upper = SparseColumns.from_dense(np.triu(hessian))
        constraint = SparseColumns.from_dense(-rows)
        self._solver = clarabel.DefaultSolver(upper, gradient, constraint, offset, cones, settings)

    def solve(self) -> ConeSolution:
        """Return the solution for the present q and c."""
        found = self._solver.solve()
        solved, infeasible = found.status in _SOLVED, found.status in _INFEASIBLE
        return ConeSolution(np.array(found.x), solved, infeasible)

    def update(self, gradient: Array, offset: Array) -> None:
        """Replace q (n,) and c (m,).

        Args:
            gradient: New q.
            offset: New c.
        """
        self._solver.update(q=gradient, b=offset)


class Cone(NamedTuple):
    """The cone |f_t| <= friction f_n of some entries of a vector; f_n >= 0 without tangents.

    Attributes:
        normal: Index of f_n.
        tangents: Indices of f_t: none, one or two.
        friction: Coefficient of friction, positive if there are tangents.
    """

    normal: int
    tangents: list[int]
    friction: float


def build_cone_rows(
    cones: Sequence[Cone], fixed: list[int], size: int
) -> tuple[Array, list[object]]:
    """Return the rows C and Clarabel's cones for which C f is in the product of some cones.

    Rows of fixed entries come first, then half-spaces, then the circular cones.

    Args:
        cones: The friction cones. Those with one tangent are two half-spaces.
        fixed: Indices of entries of f that are fixed; their value is minus the offset of their row.
        size: Number of entries of f.

    Returns:
        C (m, size), and the cones of its rows in order.
    """
    unit = np.eye(size)
    half, circular = [], []
    for normal, tangents, friction in cones:
        limit = friction * unit[normal]
        if not tangents:
            half.append(unit[normal])
        elif len(tangents) == 1:
            half += [limit - unit[tangents[0]], limit + unit[tangents[0]]]
        else:
            circular += [limit, *unit[tangents]]
    kinds = [
        clarabel.ZeroConeT(len(fixed)),
        clarabel.NonnegativeConeT(len(half)),
        *[clarabel.SecondOrderConeT(3)] * (len(circular) // 3),
    ]
    rows = np.array([*unit[fixed], *half, *circular]).reshape(-1, size)
    return rows, [kind for kind in kinds if kind.dim]


def map_multipliers(
    problem: CoulombProblem, modes: Modes, directions: Sequence[Array | None]
) -> tuple[Array, list[Cone]]:
    """Return the matrix E of forces f = E m by the multipliers m of given states, and their cones.

    Multipliers are the normal forces of closed contacts, in order, then the friction of those that
    stick. Friction of a sliding contact is -mu s times its normal force.

    Args:
        problem: The problem.
        modes: State of each contact.
        directions: Sliding direction of each contact; None for contacts that do not slide.

    Returns:
        E (r, n), and one cone for each closed contact, by static friction where it sticks.
    """
    unit, cones = np.eye(len(problem.free)), []
    closed = [i for i, state in enumerate(modes) if state != OPEN]
    columns = [unit[i].copy() for i in closed]
    for j, i in enumerate(closed):
        _, rows, static, kinetic, _ = problem.contacts[i]
        numbers: list[int] = []
        if modes[i] == STICK and static > 0.0:
            numbers = list(range(len(columns), len(columns) + len(rows)))
            columns += [unit[row] for row in rows]
        elif (s := directions[i]) is not None:
            columns[j][rows] = -kinetic * s
        cones.append(Cone(j, numbers, static))
    return np.array(columns).reshape(-1, len(unit)).T, cones


def iterate_cone_programmes(problem: CoulombProblem) -> Iterator[Array]:
    """Yield the forces (r,) of each programme of the fixed-point iteration in s = mu |w_t|.

    The first 15 programmes take s from the solution before, which makes most problems converge.
    Later ones take the mean of that and the s before. A random s replaces it every 40 programmes. A
    programme without a minimum shows that s is too small; 2 s + mu replaces it. The iteration ends
    where 40 programmes in a row have no minimum. Friction of contacts that slide already is fixed
    to mu times their normal forces in the solution before.

    Args:
        problem: Dimensionless problem.

    Yields:
        Minima, which need not obey the law.
    """
    in_cone = [bool(t) and mu > 0.0 and given is None for _, t, mu, _, given in problem.contacts]
    cones = [
        Cone(i, tangents if circular else [], mu)
        for (i, tangents, mu, _, _), circular in zip(problem.contacts, in_cone, strict=True)
    ]
    fixed = [
        row
        for (_, tangents, *_), circular in zip(problem.contacts, in_cone, strict=True)
        for row in tangents
        if not circular
    ]
    rows, kinds = build_cone_rows(cones, fixed, len(problem.free))
    programme = ConeProgramme(problem.delassus, problem.free, rows, np.zeros(len(rows)), kinds)
    draw = np.random.default_rng(0)
    shift, largest, failures = np.zeros(len(problem.static)), 0.0, 0
    gradient, offset = problem.free.copy(), np.zeros(len(rows))
    for step in count(1):
        gradient[: len(shift)] = problem.free[: len(shift)] + shift
        programme.update(gradient, offset)
        found = programme.solve()
        failures = 0 if found.solved else failures + 1
        if failures == _MAX_FAILURES:
            return
        if failures:
            shift = 2.0 * shift + problem.static
            continue
        yield found.point
        forces, rates = found.point, problem.delassus @ found.point + problem.free
        new = np.zeros(len(shift))
        for i, tangents, mu, kinetic, given in problem.contacts:
            if given is None:
                new[i] = mu * hypot(*rates[tangents])
                continue
            for row, s in zip(tangents, given, strict=True):
                offset[fixed.index(row)] = kinetic * forces[i] * s
        largest = max(largest, float(new.max()))
        shift = new if step < _UNDAMPED else 0.5 * (shift + new)
        if step % _RESTART_PERIOD == 0:
            shift = largest * draw.uniform(size=len(shift))
