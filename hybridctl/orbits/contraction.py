r"""Piecewise quadratic forms that a conewise linear map shrinks, or stretches.

With the pieces of the first L steps that a direction takes as cells c, cones :math:`E_c x \ge 0`,
and A the piece with which the directions of c go on, into the cells c', a form
:math:`V(x) = x^T V_c x` proves that the map P grows by at most :math:`\gamma` a step if

.. math::
    V_c - E_c^T U_c E_c \succeq I, \qquad
    \gamma^2 V_c - A^T V_{c'} A - F^T W F \succeq 0, \qquad F = (E_c, E_{c'} A),

with symmetric matrices U, W without negative entries, as :math:`V(Px) \le \gamma^2 V(x)` then. And
it proves that motions grow by :math:`\gamma` a step at least if :math:`A^T V_{c'} A - \gamma^2 V_c
- F^T W F \succ 0` and V is positive somewhere: V cannot vanish on the way on. Both are semidefinite
programmes, whose answers are checked by the eigenvalues of these matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import clarabel
import numpy as np
from scipy import sparse

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.orbits.conewise import ConewiseMap
from hybridctl.sensitivity.piecewise import find_interior_point, normalize_rows

_SLACK = 1e-6  # relative: by how much more than asked for a form that is found may grow
_CLEAR = 1e-6  # of the size of V: least growth that counts
_SHARP = 1e-12  # accuracy of a programme whose multipliers count
_FLAT = 1e-2  # of its mean eigenvalue: how small a form of least rate may be somewhere
_SOLVED = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)


@dataclass(frozen=True, eq=False)
class Route:
    """The pieces of some steps, in order, that directions in a cone (r, n) take.

    matrices: those of the directions after 0, 1, ... steps, (len(pieces) + 1, n, n).
    """

    pieces: tuple[int, ...]
    cone: Array
    matrices: tuple[Array, ...]


def routes(map: ConewiseMap, most: int) -> Iterator[list[Route]]:
    """All routes of 1, 2, ... steps whose cone has an interior, until they are more than `most`."""
    n = map.pieces[0].matrix.shape[1]
    found = [Route((), np.zeros((0, n)), (np.eye(n),))]
    while len(found := [longer for route in found for longer in _longer(map, route)]) <= most:
        yield found


def _longer(map: ConewiseMap, route: Route) -> list[Route]:
    here, longer = route.matrices[-1], []
    for k, piece in enumerate(map.pieces):
        cone = np.vstack([route.cone, piece.cone @ here])
        if len(piece.cone) == 0 or find_interior_point(cone) is not None:
            matrices = (*route.matrices, piece.matrix @ here)
            longer.append(Route((*route.pieces, k), cone, matrices))
    return longer


@dataclass(frozen=True, eq=False)
class PiecewiseForm:
    """The function V(x) = x^T forms[c] x on the cones (r, n) of cells c of a `ConewiseMap`.

    rate: V of the next deviation is at most rate^2 times V, or at least where it shows growth.
    """

    cones: tuple[Array, ...]
    forms: Array
    rate: float

    def __call__(self, x: Array) -> float:
        """The value V(x) of one deviation x (n,)."""
        return float(x @ self.forms[_cell(self.cones, x)] @ x)


def _cell(cones: Sequence[Array], x: Array) -> int:
    """The cell in which a direction is, or to which it is nearest."""
    return int(np.argmax([(cone @ x).min(initial=np.inf) for cone in cones]))


class ContractionMargin(NamedTuple):
    """A margin, and its derivatives.

    by_rate: by the rate. by_matrix (n, n): by the first piece of each move. by_cone (r, n): by the
    rows of length 1 of the cone of each cell, and then of each move.
    """

    value: float
    by_rate: float
    by_matrix: list[Array]
    by_cone: list[Array]


class FormSearch:
    """The programmes for forms on the cells of the directions that take the routes `cells`.

    moves: the routes of one step more, which lead from cell to cell.
    """

    def __init__(self, cells: Sequence[Route], moves: Sequence[Route]) -> None:
        self.cones = tuple(normalize_rows(cell.cone) for cell in cells)
        self._n = len(cells[0].matrices[0])
        self._basis = _symmetric(self._n)
        index = {cell.pieces: c for c, cell in enumerate(cells)}
        self.cells, self.moves = cells, [m for m in moves if m.pieces[1:] in index]
        self._moves = [
            (
                index[m.pieces[:-1]],
                index[m.pieces[1:]],
                m.matrices[1],
                _products(normalize_rows(m.cone)),
            )
            for m in self.moves
        ]

    def shrinking(self, rate: float) -> PiecewiseForm | None:
        """A positive form that grows by at most `rate` a step, if one is found."""
        tight, checked = self._shrinking(rate * (1.0 - _SLACK), 1.0), self._shrinking(rate, 0.5)
        z = tight.solve(tight.cost(self._traces(), weights=3.0))
        return None if z is None or not checked.holds(z) else self._form(z, rate)

    def growing(self, rate: float, along: Array) -> PiecewiseForm | None:
        """A form that grows by at least `rate` a step and is positive at `along` (n,), if any."""
        programme, eye = _SemidefiniteProgramme(len(self.cones) * len(self._basis)), np.eye(self._n)
        margin = programme.variable()
        seen = self._seen(_cell(self.cones, along), along[:, None])
        programme.require(np.zeros((1, 1)), [seen, (margin, -np.eye(1)[None])])
        for c in range(len(self.cones)):
            for sign in (1.0, -1.0):
                programme.require(eye, [self._seen(c, sign * eye, sign)])
        for c, after, matrix, products in self._moves:
            terms = [self._seen(c, eye, -(rate**2)), self._seen(after, matrix)]
            programme.require(0.0 * eye, [*terms, (margin, -eye[None])], products)
        z = programme.solve(programme.cost({margin: -1.0}))
        if z is None or z[margin] < _CLEAR:
            return None
        z[margin] *= 0.5
        return self._form(z, rate) if programme.holds(z) else None

    def margin(self, rate: float) -> ContractionMargin:
        """The margin by which forms of trace 1 grow by less than `rate` a step: see `growth`."""
        size, eye = len(self._basis), np.eye(self._n)
        programme = _SemidefiniteProgramme(len(self.cones) * size)
        less = (programme.variable(), -eye[None])
        floor = -_FLAT / (self._n * len(self.cones)) * eye
        weights = [
            programme.require(floor, [self._seen(c, eye)], _products(cone))
            for c, cone in enumerate(self.cones)
        ]
        for c, after, matrix, products in self._moves:
            terms = [self._seen(c, eye, rate**2), self._seen(after, matrix, -1.0), less]
            weights.append(programme.require(0.0 * eye, terms, products))
        traces = np.array(list(self._traces().values()))
        for sign in (1.0, -1.0):
            programme.require(-sign * np.eye(1), [(0, sign * traces[:, None, None])])
        found = programme.solve_both(programme.cost({less[0]: -1.0}), _SHARP)
        if found is None:
            raise SimulationError(f"no margin was found for forms that grow by {rate} a step")
        z, multipliers = found
        forms = self._form(z, rate).forms
        cones = [*self.cones, *(normalize_rows(move.cone) for move in self.moves)]
        parts = zip(cones, weights, multipliers, strict=False)
        by_cone = [2.0 * _weighted(len(cone), z, first) @ cone @ y for cone, first, y in parts]
        by_move = multipliers[len(self.cells) : -2]
        by_rate = sum(
            2.0 * rate * float(np.sum(y * forms[c]))
            for (c, *_), y in zip(self._moves, by_move, strict=True)
        )
        by_matrix = [
            -2.0 * forms[after] @ matrix @ y
            for (_, after, matrix, _), y in zip(self._moves, by_move, strict=True)
        ]
        return ContractionMargin(float(z[less[0]]), by_rate, by_matrix, [-rows for rows in by_cone])

    def _shrinking(self, rate: float, floor: float) -> _SemidefiniteProgramme:
        programme, eye = _SemidefiniteProgramme(len(self.cones) * len(self._basis)), np.eye(self._n)
        for c, cone in enumerate(self.cones):
            programme.require(-floor * eye, [self._seen(c, eye)], _products(cone))
        for c, after, matrix, products in self._moves:
            terms = [self._seen(c, eye), self._seen(after, matrix / rate, -1.0)]
            programme.require(0.0 * eye, terms, products)
        return programme

    def _seen(self, c: int, matrix: Array, factor: float = 1.0) -> tuple[int, Array]:
        """The form factor M' V_c M: the index of its first unknown, and the matrix of each."""
        return c * len(self._basis), factor * (matrix.T @ self._basis @ matrix)

    def _traces(self) -> dict[int, float]:
        traces = np.tile(np.trace(self._basis, axis1=1, axis2=2), len(self.cones))
        return dict(enumerate(traces.tolist()))

    def _form(self, z: Array, rate: float) -> PiecewiseForm:
        d = len(self._basis)
        forms = np.tensordot(z[: len(self.cones) * d].reshape(-1, d), self._basis, 1)
        return PiecewiseForm(self.cones, forms, rate)


class _SemidefiniteProgramme:
    """A linear cost under semidefinite inequalities, with weights that must not be negative."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._inequalities: list[tuple[Array, list[tuple[int, Array]]]] = []
        self._weights: list[int] = []

    def variable(self, count: int = 1) -> int:
        """The index of the first of new unknowns."""
        self.size += count
        return self.size - count

    def require(
        self, constant: Array, terms: list[tuple[int, Array]], products: Array | None = None
    ) -> int:
        """Require constant + sum of terms (matrices (k, n, n) of k unknowns) - products' sum >= 0.

        Returns the index of the first product's weight.
        """
        first = self.size
        if products is not None and len(products):
            self.variable(len(products))
            self._weights.extend(range(first, self.size))
            terms = [*terms, (first, -products)]
        self._inequalities.append((constant, terms))
        return first

    def cost(self, entries: Mapping[int, float], weights: float = 0.0) -> Array:
        """The cost (size,) with these entries, and that of each weight."""
        cost = np.zeros(self.size)
        cost[self._weights] = weights
        cost[list(entries)] = list(entries.values())
        return cost

    def holds(self, z: Array) -> bool:
        """Whether all inequalities hold at z, without negative weights."""
        z = z.copy()
        z[self._weights] = np.maximum(z[self._weights], 0.0)
        for constant, terms in self._inequalities:
            value = constant.copy()
            for first, matrices in terms:
                value += np.tensordot(z[first : first + len(matrices)], matrices, 1)
            if np.linalg.eigvalsh(value)[0] < 0.0:
                return False
        return True

    def solve(self, cost: Array) -> Array | None:
        """The unknowns, None where the solver finds none."""
        found = self.solve_both(cost)
        return None if found is None else found[0]

    def solve_both(self, cost: Array, accuracy: float = 1e-8) -> tuple[Array, list[Array]] | None:
        """The unknowns, and the multiplier (n, n) of each inequality."""
        rows, right, cones = [], [], []
        for constant, terms in self._inequalities:
            block = np.zeros((len(_packed(constant)), self.size))
            for first, matrices in terms:
                block[:, first : first + len(matrices)] -= _packed(matrices).T
            rows.append(block)
            right.append(_packed(constant))
            cones.append(clarabel.PSDTriangleConeT(len(constant)))
        rows.append(-np.eye(self.size)[self._weights])
        right.append(np.zeros(len(self._weights)))
        cones.append(clarabel.NonnegativeConeT(len(self._weights)))
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_threads = 1
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = accuracy
        solver = clarabel.DefaultSolver(
            sparse.csc_matrix((self.size, self.size)),
            cost,
            sparse.csc_matrix(np.vstack(rows)),
            np.concatenate(right),
            cones,
            settings,
        )
        solution = solver.solve()
        if solution.status not in _SOLVED:
            return None
        sizes = [len(constant) for constant, _ in self._inequalities]
        parts = np.split(np.array(solution.z), np.cumsum([n * (n + 1) // 2 for n in sizes]))
        return np.array(solution.x), [
            np.tensordot(part, _symmetric(n), 1) for part, n in zip(parts, sizes, strict=False)
        ]


def _weighted(rows: int, z: Array, first: int) -> Array:
    """The symmetric weights (r, r) of the products of rows of a cone."""
    weights = np.zeros((rows, rows))
    for k, (a, b) in enumerate(combinations(range(rows), 2)):
        weights[a, b] = weights[b, a] = z[first + k]
    return weights


def _symmetric(n: int) -> Array:
    """An orthonormal basis (n (n + 1) / 2, n, n) of the symmetric matrices."""
    rows, columns = np.tril_indices(n)
    basis = np.zeros((len(rows), n, n))
    basis[np.arange(len(rows)), rows, columns] = np.where(rows == columns, 1.0, np.sqrt(0.5))
    return np.asarray(np.maximum(basis, basis.transpose(0, 2, 1)))


def _packed(matrices: Array) -> Array:
    """The coordinates (..., n (n + 1) / 2) of symmetric matrices (..., n, n) in that basis."""
    rows, columns = np.tril_indices(matrices.shape[-1])
    return np.asarray(matrices[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0)))


def _products(cone: Array) -> Array:
    """The symmetric matrices (m, n, n) of products of two rows of a cone, not negative in it."""
    pairs = [np.outer(a, b) for a, b in combinations(cone, 2)]
    stacked = np.array(pairs).reshape(len(pairs), cone.shape[1], cone.shape[1])
    return np.asarray(stacked + stacked.transpose(0, 2, 1))
