r"""Coulomb's law as a fixed point of second-order cone programmes.

With K the product of the cones :math:`|f_t| \le \mu f_n` the law is (De Saxce and Feng 1998)

.. math:: f \in K, \qquad w + \mu |w_t| n \in K^*, \qquad f \cdot (w + \mu |w_t| n) = 0,

for fixed :math:`s = \mu |w_t|` the optimality of

.. math:: \min_{f \in K} \tfrac12 f^T G f + (b + s n)^T f

(Acary, Cadoux, Lemarechal, Malick 2011). Clarabel, an interior-point method, solves that. Problems
are those without units, see `law.scaled`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from math import hypot
from typing import NamedTuple

import clarabel
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.coulomb.contact_states import OPEN, STICK, Modes
from hybridctl.mechanics.coulomb.law import CoulombProblem

_TOLERANCE = 1e-11
_FULL, _RESTART, _HOPELESS = 15, 40, 40
_SOLVED = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)
_NONE = (clarabel.SolverStatus.PrimalInfeasible, clarabel.SolverStatus.AlmostPrimalInfeasible)


class ConeSolution(NamedTuple):
    """The minimum (n,), multipliers of the cones' rows (m,), and whether they were found.

    infeasible: whether there is none, and not only a failure of the numerics.
    """

    point: Array
    multipliers: Array
    solved: bool
    infeasible: bool


class Columns(NamedTuple):
    """A matrix by its columns, of which Clarabel asks what it does of scipy's, made sooner."""

    data: list[float]
    indices: list[int]
    indptr: list[int]
    shape: tuple[int, ...]
    nnz: int
    has_sorted_indices: bool = True
    has_canonical_format: bool = True

    @classmethod
    def of(cls, matrix: Array) -> Columns:
        """The entries of a matrix that are not zero."""
        filled = matrix.T != 0.0
        places = np.nonzero(filled)[1].tolist()
        ends = [0, *filled.sum(axis=1).cumsum().tolist()]
        return cls(matrix.T[filled].tolist(), places, ends, matrix.shape, len(places))


class ConeProgramme:
    """The programme min 1/2 x'H x + q'x, C x + c in a product of cones, for many q and c."""

    def __init__(
        self, hessian: Array, gradient: Array, rows: Array, offset: Array, cones: list[object]
    ) -> None:
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_threads = False, 1
        settings.presolve_enable = False  # data could not be updated
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = _TOLERANCE
        upper, constraint = Columns.of(np.triu(hessian)), Columns.of(-rows)
        self._solver = clarabel.DefaultSolver(upper, gradient, constraint, offset, cones, settings)

    def solve(self) -> ConeSolution:
        """The solution for the present data."""
        found = self._solver.solve()
        solved, infeasible = found.status in _SOLVED, found.status in _NONE
        return ConeSolution(np.array(found.x), np.array(found.z), solved, infeasible)

    def update(self, gradient: Array, offset: Array) -> None:
        """Change the programme's gradient q and offset c."""
        self._solver.update(q=gradient, b=offset)


class Cone(NamedTuple):
    """The cone |f_t| <= friction f_n, by the numbers of f_n and f_t; f_n >= 0 without f_t."""

    normal: int
    tangents: list[int]
    friction: float


def cone_rows(cones: Sequence[Cone], held: list[int], size: int) -> tuple[Array, list[object]]:
    """Rows C (m, size) and Clarabel's cones for which C f is in K; `held` rows come first."""
    unit = np.eye(size)
    half, circular = [], []
    for normal, tangents, friction in cones:
        push = friction * unit[normal]
        if not tangents:
            half.append(unit[normal])
        elif len(tangents) == 1:
            half += [push - unit[tangents[0]], push + unit[tangents[0]]]
        else:
            circular += [push, *unit[tangents]]
    kinds = [
        clarabel.ZeroConeT(len(held)),
        clarabel.NonnegativeConeT(len(half)),
        *[clarabel.SecondOrderConeT(3)] * (len(circular) // 3),
    ]
    rows = np.array([*unit[held], *half, *circular]).reshape(-1, size)
    return rows, [kind for kind in kinds if kind.dim]


def multipliers(
    problem: CoulombProblem, modes: Modes, directions: Sequence[Array | None]
) -> tuple[Array, list[Cone]]:
    """The matrix E (r, n) of forces by the multipliers of these states, and the cones of these.

    Normal forces of closed contacts come first, then friction of sticking ones. Friction of those
    that slide, in `directions`, None for others, goes with their normal forces.
    """
    unit, cones = np.eye(len(problem.free)), []
    closed = [i for i, mode in enumerate(modes) if mode != OPEN]
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


def fixed_point(problem: CoulombProblem) -> Iterator[Array]:
    """Forces (r,) after each programme; ends where 40 in a row have no minimum.

    s = mu |w_t| of the programme before; after 15 of them, which make most problems converge,
    the mean of that and the s before, from another start every 40 programmes. A programme that
    has no minimum tells that s is too small. Friction of contacts that slide already is that of
    the normal forces before.
    """
    rubs = [bool(t) and mu > 0.0 and given is None for _, t, mu, _, given in problem.contacts]
    cones = [
        Cone(i, tangents if rub else [], mu)
        for (i, tangents, mu, _, _), rub in zip(problem.contacts, rubs, strict=True)
    ]
    held = [
        row
        for (_, tangents, *_), rub in zip(problem.contacts, rubs, strict=True)
        for row in tangents
        if not rub
    ]
    rows, kinds = cone_rows(cones, held, len(problem.free))
    programme = ConeProgramme(problem.delassus, problem.free, rows, np.zeros(len(rows)), kinds)
    draw = np.random.default_rng(0)
    shift, largest, failed = np.zeros(len(problem.static)), 0.0, 0
    gradient, offset = problem.free.copy(), np.zeros(len(rows))
    for step in count(1):
        gradient[: len(shift)] = problem.free[: len(shift)] + shift
        programme.update(gradient, offset)
        found = programme.solve()
        failed = 0 if found.solved else failed + 1
        if failed == _HOPELESS:
            return
        if failed:
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
                offset[held.index(row)] = kinetic * forces[i] * s
        largest = max(largest, float(new.max()))
        shift = new if step < _FULL else 0.5 * (shift + new)
        if step % _RESTART == 0:
            shift = largest * draw.uniform(size=len(shift))
