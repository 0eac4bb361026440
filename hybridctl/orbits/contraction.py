r"""Piecewise quadratic forms that bound the growth of a conewise linear map.

Cells c are cones :math:`E_c x \ge 0` of directions that take the same pieces for L steps. A move
leads directions of a cell c by the matrix A of their first piece to a cell c'. A form
:math:`V(x) = x^T V_c x` on the cells proves that P grows by at most :math:`\gamma` a step if

.. math::
    V_c - E_c^T U_c E_c \succeq I, \qquad
    \gamma^2 V_c - A^T V_{c'} A - F^T W F \succeq 0, \qquad F = (E_c, E_{c'} A),

with symmetric matrices U, W that have no negative entries: :math:`V(Px) \le \gamma^2 V(x)` then.

A form proves that motions grow by :math:`\gamma` a step at least if
:math:`A^T V_{c'} A - \gamma^2 V_c - F^T W F \succ 0` and V is positive somewhere: it stays positive
along the motion from there.

Both are semidefinite programmes. Their answers are checked by the eigenvalues of these matrices, so
that a proof does not rest on the solver.
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

_RATE_RESERVE = 1e-6
"""Relative reduction of the rate with which a form is sought, beside that with which it is checked.

It is larger than the accuracy of the programme, so that the check of a found form holds."""
_MIN_GROWTH = 1e-6  # margin of a growing form that counts, relative to a form of size 1
_ACCURACY = 1e-8  # gaps and infeasibility of programmes, relative and absolute
_MULTIPLIER_ACCURACY = 1e-12  # the same where multipliers are used as derivatives
_MIN_EIGENVALUE = 1e-2
"""Least eigenvalue of a form of least rate, relative to the mean eigenvalue of all cells' forms.

Without it the form of least rate may be singular, and its multipliers are not unique."""
_PRODUCT_COST = 3.0  # of U and W beside traces of V; the value is a choice
_SOLVED = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)


@dataclass(frozen=True, eq=False)
class Route:
    """The sequence of pieces that the directions in a cone take in some steps.

    Attributes:
        pieces: Indices of the pieces, in order.
        cone: Rows (r, n) of the cone of these directions.
        matrices: Products (n, n) of the pieces after 0, 1, ... steps: len(pieces) + 1 of them.
    """

    pieces: tuple[int, ...]
    cone: Array
    matrices: tuple[Array, ...]


def list_routes(map: ConewiseMap, max_count: int) -> Iterator[list[Route]]:
    """Yield all routes of 1, 2, ... steps whose cone has an interior.

    It ends before a number of steps that has more routes than `max_count`.

    Args:
        map: The map (n, n).
        max_count: Largest number of routes of one length.
    """
    n = map.pieces[0].matrix.shape[1]
    routes = [Route((), np.zeros((0, n)), (np.eye(n),))]
    while True:
        routes = [longer for route in routes for longer in _extend_route(map, route)]
        if len(routes) > max_count:
            return
        yield routes


def _extend_route(map: ConewiseMap, route: Route) -> list[Route]:
    """Return the routes of one step more that begin with a route."""
    product, longer = route.matrices[-1], []
    for k, piece in enumerate(map.pieces):
        cone = np.vstack([route.cone, piece.cone @ product])
        if len(piece.cone) == 0 or find_interior_point(cone) is not None:
            matrices = (*route.matrices, piece.matrix @ product)
            longer.append(Route((*route.pieces, k), cone, matrices))
    return longer


@dataclass(frozen=True, eq=False)
class PiecewiseForm:
    """A function V(x) = x^T forms[c] x on the cones of cells c of a `ConewiseMap`.

    Attributes:
        cones: Rows (r, n) of the cone of each cell.
        forms: Symmetric matrices, (cells, n, n).
        rate: The map multiplies V by at most rate^2 in a step; for a form that proves growth, by at
            least that.
    """

    cones: tuple[Array, ...]
    forms: Array
    rate: float

    def __call__(self, x: Array) -> float:
        """Return V(x) of one perturbation.

        Args:
            x: The perturbation (n,).
        """
        return float(x @ self.forms[_find_cell(self.cones, x)] @ x)


def _find_cell(cones: Sequence[Array], x: Array) -> int:
    """Return the index of the cell that a direction is in, or nearest to."""
    return int(np.argmax([(cone @ x).min(initial=np.inf) for cone in cones]))


class ContractionMargin(NamedTuple):
    """The margin t(rate) of forms, and its derivatives.

    It is the largest t for which forms of trace 1 on all cells together have
    rate^2 V_c - A' V_c' A - F' W F - t I positive semidefinite for all moves.

    Attributes:
        value: The margin t; not negative where the forms prove that motions grow by no more.
        by_rate: Derivative by the rate.
        by_matrix: Derivatives (n, n) by the first piece of each move.
        by_cone: Derivatives (r, n) by the rows of length 1 of the cones, of each cell and then of
            each move.
    """

    value: float
    by_rate: float
    by_matrix: list[Array]
    by_cone: list[Array]


class _Move(NamedTuple):
    """A step from cell to cell.

    Attributes:
        before: Index of the cell that it leaves.
        after: Index of the cell that it leads to.
        matrix: Piece (n, n) of the step.
        products: Products (m, n, n) of rows of the cone of the directions that take it.
    """

    before: int
    after: int
    matrix: Array
    products: Array


class FormSearch:
    """The programmes that find forms on cells.

    Args:
        cells: The routes that define the cells.
        moves: The routes of one step more.

    Attributes:
        cones: Rows of length 1 of the cones of the cells.
        cells: The cells.
        moves: The moves that lead to one of the cells.
    """

    def __init__(self, cells: Sequence[Route], moves: Sequence[Route]) -> None:
        self.cones = tuple(normalize_rows(cell.cone) for cell in cells)
        self._n = len(cells[0].matrices[0])
        self._basis = _build_symmetric_basis(self._n)
        index = {cell.pieces: c for c, cell in enumerate(cells)}
        self.cells, self.moves = cells, [m for m in moves if m.pieces[1:] in index]
        self._moves = [
            _Move(
                index[m.pieces[:-1]],
                index[m.pieces[1:]],
                m.matrices[1],
                _build_row_products(normalize_rows(m.cone)),
            )
            for m in self.moves
        ]

    def find_shrinking_form(self, rate: float) -> PiecewiseForm | None:
        """Return a positive form that grows by at most `rate` a step; None if none is found.

        Args:
            rate: The rate.
        """
        # What is asked of the solver is stricter than the check, so that its errors do not count.
        sought = self._build_shrinking_programme(rate * (1.0 - _RATE_RESERVE), 1.0)
        checked = self._build_shrinking_programme(rate, 0.5)
        z = sought.solve(sought.make_cost(self._list_traces(), weights=_PRODUCT_COST))
        return None if z is None or not checked.is_satisfied(z) else self._make_form(z, rate)

    def find_growing_form(self, rate: float, along: Array) -> PiecewiseForm | None:
        """Return a form that grows by at least `rate` a step; None if none is found.

        The form has eigenvalues in [-1, 1] and is positive along a direction.

        Args:
            rate: The rate.
            along: The direction (n,).
        """
        programme, eye = _SemidefiniteProgramme(len(self.cones) * len(self._basis)), np.eye(self._n)
        margin = programme.add_variables()
        at_direction = self._transform_form(_find_cell(self.cones, along), along[:, None])
        programme.add_inequality(np.zeros((1, 1)), [at_direction, (margin, -np.eye(1)[None])])
        for c in range(len(self.cones)):
            for sign in (1.0, -1.0):
                programme.add_inequality(eye, [self._transform_form(c, sign * eye, sign)])
        for move in self._moves:
            terms = [
                self._transform_form(move.before, eye, -(rate**2)),
                self._transform_form(move.after, move.matrix),
                (margin, -eye[None]),
            ]
            programme.add_inequality(0.0 * eye, terms, move.products)
        z = programme.solve(programme.make_cost({margin: -1.0}))
        if z is None or z[margin] < _MIN_GROWTH:
            return None
        z[margin] *= 0.5  # half of the margin is left for the errors of the solver
        return self._make_form(z, rate) if programme.is_satisfied(z) else None

    def compute_margin(self, rate: float) -> ContractionMargin:
        """Return the margin by which forms of trace 1 grow by less than `rate` a step.

        It is negative where no form whose eigenvalues are at least `_MIN_EIGENVALUE` of their mean
        proves the rate.

        Args:
            rate: The rate.

        Raises:
            SimulationError: If the programme is not solved.
        """
        size, eye = len(self._basis), np.eye(self._n)
        programme = _SemidefiniteProgramme(len(self.cones) * size)
        margin = (programme.add_variables(), -eye[None])
        floor = -_MIN_EIGENVALUE / (self._n * len(self.cones)) * eye
        weights = [
            programme.add_inequality(
                floor, [self._transform_form(c, eye)], _build_row_products(cone)
            )
            for c, cone in enumerate(self.cones)
        ]
        for move in self._moves:
            terms = [
                self._transform_form(move.before, eye, rate**2),
                self._transform_form(move.after, move.matrix, -1.0),
                margin,
            ]
            weights.append(programme.add_inequality(0.0 * eye, terms, move.products))
        traces = np.array(list(self._list_traces().values()))
        for sign in (1.0, -1.0):  # the trace is 1
            programme.add_inequality(-sign * np.eye(1), [(0, sign * traces[:, None, None])])
        cost = programme.make_cost({margin[0]: -1.0})
        found = programme.solve_with_multipliers(cost, _MULTIPLIER_ACCURACY)
        if found is None:
            raise SimulationError(f"no margin was found for forms that grow by {rate} a step")
        z, multipliers = found
        return self._differentiate_margin(rate, float(z[margin[0]]), z, weights, multipliers)

    def _differentiate_margin(
        self, rate: float, value: float, z: Array, weights: list[int], multipliers: list[Array]
    ) -> ContractionMargin:
        """Return the margin with its derivatives, by the multipliers of the inequalities.

        Args:
            rate: The rate.
            value: The margin.
            z: Unknowns of the programme.
            weights: Index of the first product's weight of each cell and then of each move.
            multipliers: Multipliers of the inequalities of the cells, of the moves, and of the two
                that hold the trace.
        """
        forms = self._make_form(z, rate).forms
        cones = [*self.cones, *(normalize_rows(move.cone) for move in self.moves)]
        parts = zip(cones, weights, multipliers, strict=False)
        by_cone = [
            2.0 * _unpack_weights(len(cone), z, first) @ cone @ y for cone, first, y in parts
        ]
        by_move = multipliers[len(self.cells) : -2]
        by_rate = sum(
            2.0 * rate * float(np.sum(y * forms[move.before]))
            for move, y in zip(self._moves, by_move, strict=True)
        )
        by_matrix = [
            -2.0 * forms[move.after] @ move.matrix @ y
            for move, y in zip(self._moves, by_move, strict=True)
        ]
        return ContractionMargin(value, by_rate, by_matrix, [-rows for rows in by_cone])

    def _build_shrinking_programme(self, rate: float, floor: float) -> _SemidefiniteProgramme:
        """Return the inequalities of a form that shrinks, with V_c - E_c' U_c E_c >= floor I."""
        programme, eye = _SemidefiniteProgramme(len(self.cones) * len(self._basis)), np.eye(self._n)
        for c, cone in enumerate(self.cones):
            terms = [self._transform_form(c, eye)]
            programme.add_inequality(-floor * eye, terms, _build_row_products(cone))
        for move in self._moves:
            terms = [
                self._transform_form(move.before, eye),
                self._transform_form(move.after, move.matrix / rate, -1.0),
            ]
            programme.add_inequality(0.0 * eye, terms, move.products)
        return programme

    def _transform_form(self, c: int, matrix: Array, factor: float = 1.0) -> tuple[int, Array]:
        """Return factor M' V_c M as a term: the index of its first unknown, and their matrices."""
        return c * len(self._basis), factor * (matrix.T @ self._basis @ matrix)

    def _list_traces(self) -> dict[int, float]:
        """Return the trace of the matrix of each unknown of the forms, by its index."""
        traces = np.tile(np.trace(self._basis, axis1=1, axis2=2), len(self.cones))
        return dict(enumerate(traces.tolist()))

    def _make_form(self, z: Array, rate: float) -> PiecewiseForm:
        """Return the form of the unknowns of a programme."""
        d = len(self._basis)
        forms = np.tensordot(z[: len(self.cones) * d].reshape(-1, d), self._basis, 1)
        return PiecewiseForm(self.cones, forms, rate)


class _SemidefiniteProgramme:
    """A linear cost under semidefinite inequalities, with weights that must not be negative.

    First call `add_variables` and `add_inequality` in any order, then one of the solvers.

    Args:
        size: Number of the first unknowns.

    Attributes:
        size: Number of all unknowns.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._inequalities: list[tuple[Array, list[tuple[int, Array]]]] = []
        self._weights: list[int] = []

    def add_variables(self, count: int = 1) -> int:
        """Add unknowns.

        Args:
            count: Their number.

        Returns:
            The index of the first of them.
        """
        self.size += count
        return self.size - count

    def add_inequality(
        self, constant: Array, terms: list[tuple[int, Array]], products: Array | None = None
    ) -> int:
        """Require constant + terms - sum of weighted products >= 0.

        Args:
            constant: Symmetric matrix (n, n).
            terms: Pairs of the index of the first of k unknowns, and their matrices (k, n, n).
            products: Matrices (m, n, n), for each of which a weight is added.

        Returns:
            The index of the first product's weight.
        """
        first = self.size
        if products is not None and len(products):
            self.add_variables(len(products))
            self._weights.extend(range(first, self.size))
            terms = [*terms, (first, -products)]
        self._inequalities.append((constant, terms))
        return first

    def make_cost(self, entries: Mapping[int, float], weights: float = 0.0) -> Array:
        """Return a cost (size,).

        Args:
            entries: Cost of unknowns by their index; that of others is zero.
            weights: Cost of each weight.
        """
        cost = np.zeros(self.size)
        cost[self._weights] = weights
        cost[list(entries)] = list(entries.values())
        return cost

    def is_satisfied(self, z: Array) -> bool:
        """Return whether all inequalities hold, with negative weights set to zero.

        Args:
            z: The unknowns (size,).
        """
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
        """Return the unknowns (size,) of least cost; None where the solver finds none.

        Args:
            cost: The cost (size,).
        """
        found = self.solve_with_multipliers(cost)
        return None if found is None else found[0]

    def solve_with_multipliers(
        self, cost: Array, accuracy: float = _ACCURACY
    ) -> tuple[Array, list[Array]] | None:
        """Return the unknowns (size,), and the multiplier (n, n) of each inequality.

        Args:
            cost: The cost (size,).
            accuracy: Gap and infeasibility, relative and absolute.

        Returns:
            The unknowns, and the multipliers in the order in which inequalities were added. None
            where the solver finds no solution.
        """
        rows, right, cones = [], [], []
        for constant, terms in self._inequalities:
            block = np.zeros((len(_pack(constant)), self.size))
            for first, matrices in terms:
                block[:, first : first + len(matrices)] -= _pack(matrices).T
            rows.append(block)
            right.append(_pack(constant))
            cones.append(clarabel.PSDTriangleConeT(len(constant)))
        rows.append(-np.eye(self.size)[self._weights])
        right.append(np.zeros(len(self._weights)))
        cones.append(clarabel.NonnegativeConeT(len(self._weights)))
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_threads = 1  # the programmes are small
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
            np.tensordot(part, _build_symmetric_basis(n), 1)
            for part, n in zip(parts, sizes, strict=False)
        ]


def _unpack_weights(rows: int, z: Array, first: int) -> Array:
    """Return the symmetric matrix (r, r) of the weights of the products of a cone's rows."""
    weights = np.zeros((rows, rows))
    for k, (a, b) in enumerate(combinations(range(rows), 2)):
        weights[a, b] = weights[b, a] = z[first + k]
    return weights


def _build_symmetric_basis(n: int) -> Array:
    """Return an orthonormal basis (n (n + 1) / 2, n, n) of the symmetric matrices."""
    rows, columns = np.tril_indices(n)
    basis = np.zeros((len(rows), n, n))
    basis[np.arange(len(rows)), rows, columns] = np.where(rows == columns, 1.0, np.sqrt(0.5))
    return np.asarray(np.maximum(basis, basis.transpose(0, 2, 1)))


def _pack(matrices: Array) -> Array:
    """Return the coordinates (..., n (n + 1) / 2) of symmetric matrices in that basis."""
    rows, columns = np.tril_indices(matrices.shape[-1])
    return np.asarray(matrices[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0)))


def _build_row_products(cone: Array) -> Array:
    """Return a b' + b a' (m, n, n) for all pairs of rows a, b of a cone; in it no form is negative.

    Args:
        cone: Rows (r, n).
    """
    pairs = [np.outer(a, b) for a, b in combinations(cone, 2)]
    stacked = np.array(pairs).reshape(len(pairs), cone.shape[1], cone.shape[1])
    return np.asarray(stacked + stacked.transpose(0, 2, 1))
