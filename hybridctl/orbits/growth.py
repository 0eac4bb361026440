r"""How the bounds of growth of a conewise linear map change with its pieces.

Let the pieces :math:`A_k` on cones :math:`C_k x \ge 0` change by :math:`\delta A_k`.

The lower bound is that of a ray v which a product M of pieces maps to :math:`\lambda v`. With the
left eigenvector w, :math:`w^T M = \lambda w^T`, it changes by
:math:`\delta\lambda = w^T \delta M\, v / w^T v`.

The upper bound is the least rate that forms on given cells prove, see `contraction`. That is the
rate at which the margin vanishes:

.. math:: t(\gamma) = \max \{ t :\ V_c - E_c^T U_c E_c \succeq \nu I,\quad
      \gamma^2 V_c - A^T V_{c'} A - F^T W F \succeq t I,\quad \sum_c \mathrm{tr}\, V_c = 1 \},

with :math:`\nu` one hundredth of the mean eigenvalue of all forms. Multipliers Z of these
inequalities are the derivatives of t by their left sides, so that :math:`\delta\gamma =
-\langle Z, \delta(\cdot)\rangle / \langle Z, \partial_\gamma(\cdot) \rangle`. Newton's steps find
the rate by the same derivatives.

As the map is continuous, two pieces that meet where :math:`n^T x = 0` differ by :math:`c\, n^T`. So
the rows n of the cones move with the pieces: :math:`\delta n^T = c^T (\delta A_k - \delta A_l) (I -
n n^T) / c^T c`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array, check_array, check_sequence
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.orbits.conewise import ConewiseMap, LinearPiece
from hybridctl.orbits.contraction import ContractionMargin, FormSearch, Route, list_routes
from hybridctl.orbits.stability import Stability, balance_map

_RANK_TOLERANCE = 1e-6  # error of the difference of two pieces as a matrix of rank one, relative
_MAX_STEPS = 60  # Newton's steps; each halves the interval at least, where it is bounded
_RATE_ACCURACY = np.sqrt(np.finfo(float).eps)
"""Relative change of the rate at which Newton's iteration ends: the next step is its square."""
_MAX_ROUTES = 64  # of one length; as `stability` takes, so that it has found cells of so many


@dataclass(frozen=True, eq=False)
class GrowthDerivatives:
    """Both bounds of the growth per period, as tight as they can be, and their derivatives.

    Attributes:
        bounds: (2,). The lower one is that of the ray that grows most, NaN where none was found.
            The upper one is the least that forms on the cells of `Stability.form` prove. With one
            piece both are the largest modulus of its eigenvalues, zero without directions.
        derivatives: (2, np), of both bounds by the parameters. NaN where the bound is, and where
            the largest modulus is zero: it has a kink there.
    """

    bounds: Array
    derivatives: Array


def growth_derivatives(found: Stability, changes: Sequence[Array]) -> GrowthDerivatives:
    """Return the derivatives of a verdict's bounds, given those of the pieces of its return map.

    A bound has a derivative where one ray and one form attain it.

    Args:
        found: The verdict.
        changes: Derivatives (np, n, n) of each piece, in the coordinates of `found.return_map`.

    Raises:
        InputError: If sizes do not fit, or the verdict has no form although there are kinks.
        SimulationError: If the rate that forms prove is not found.
    """
    pieces = found.return_map.pieces
    if len(check_sequence("changes", changes)) != len(pieces):
        raise InputError(f"changes must have one entry a piece ({len(pieces)}), got {len(changes)}")
    n = pieces[0].matrix.shape[1]
    moved = [check_array(f"changes[{k}]", change, (None, n, n)) for k, change in enumerate(changes)]
    if len(pieces) == 1:
        value, change = _differentiate_spectral_radius(pieces[0].matrix, moved[0])
        return GrowthDerivatives(np.array([value, value]), np.stack([change, change]))
    if found.form is None:
        raise InputError(f"the upper bound of {found!r} is of no form, and has no derivative")
    low, by_ray = _differentiate_ray(found, moved)
    map, scale = balance_map(found.return_map)
    moved = [change * scale / scale[:, None] for change in moved]
    high, by_form = _differentiate_form_rate(map, moved, len(found.form.cones), found.growth[1])
    return GrowthDerivatives(np.array([low, high]), np.stack([by_ray, by_form]))


def _differentiate_spectral_radius(matrix: Array, changes: Array) -> tuple[float, Array]:
    """Return the largest modulus of a matrix's eigenvalues, and its derivatives (np,).

    The derivatives are NaN where it is zero.
    """
    if not matrix.size:  # all directions are trivial
        return 0.0, np.zeros(len(changes))
    values = np.linalg.eigvals(matrix)
    largest = values[int(np.abs(values).argmax())]
    moved = eigenvalue_derivatives(matrix, changes, largest)
    size = float(np.abs(largest))
    if size == 0.0:
        return size, np.full(len(changes), np.nan)
    return size, np.asarray((largest.conj() * moved).real / size)


def eigenvalue_derivatives(matrix: Array, changes: Array, value: complex) -> NDArray[np.complex128]:
    """Return the derivatives (np,) of a simple eigenvalue of a matrix.

    They are not finite, or rounding, where the eigenvalue is not simple.

    Args:
        matrix: The matrix (n, n).
        changes: Its derivatives (np, n, n).
        value: The eigenvalue; of those computed the nearest is taken.
    """
    values, right = np.linalg.eig(matrix)
    k = int(np.abs(values - value).argmin())
    others, left = np.linalg.eig(matrix.T)
    w, v = left[:, int(np.abs(others - values[k]).argmin())], right[:, k]
    return np.asarray((w @ changes @ v) / (w @ v), dtype=np.complex128)


def _differentiate_ray(found: Stability, changes: list[Array]) -> tuple[float, Array]:
    """Return the growth of the ray per period and its derivatives (np,); NaN without a ray."""
    if found.ray is None:
        return np.nan, np.full(len(changes[0]), np.nan)
    map, ray = found.return_map, found.ray
    x, product = found.basis.T @ ray.direction, np.eye(found.basis.shape[1])
    moved = np.zeros_like(changes[0])
    for _ in range(ray.periods):
        k = int(map.find_pieces(x[None])[0])
        matrix = map.pieces[k].matrix
        moved = changes[k] @ product + matrix @ moved
        x, product = matrix @ x, matrix @ product
    factor = eigenvalue_derivatives(product, moved, ray.factor).real
    return ray.rate, np.asarray(ray.rate * factor / (ray.periods * ray.factor))


def _differentiate_form_rate(
    map: ConewiseMap, changes: list[Array], cell_count: int, start: float
) -> tuple[float, Array]:
    """Return the least rate that forms on cells prove, and its derivatives (np,).

    Args:
        map: The balanced map.
        changes: Derivatives (np, n, n) of its pieces.
        cell_count: Number of the cells: those of the first number of steps that has so many.
        start: A rate that is near to it.

    Raises:
        SimulationError: If the rate is not found.
    """
    kinked, by_rows = _find_facets(map, changes)
    levels = list_routes(kinked, _MAX_ROUTES)
    cells = next(levels)
    while len(cells) < cell_count:
        cells = next(levels)
    search = FormSearch(cells, next(levels))
    rate, margin = _find_least_rate(search, start)
    change = np.zeros(len(changes[0]))
    for move, by_matrix in zip(search.moves, margin.by_matrix, strict=True):
        change += np.tensordot(changes[move.pieces[0]], by_matrix, 2)
    for route, by_cone in zip([*search.cells, *search.moves], margin.by_cone, strict=True):
        lengths = np.linalg.norm(route.cone, axis=1)[:, None]
        turn = _differentiate_cone(kinked, route, changes, by_rows)
        change += np.tensordot(turn / np.where(lengths > 0.0, lengths, 1.0), by_cone, 2)
    return rate, -change / margin.by_rate


def _find_least_rate(search: FormSearch, start: float) -> tuple[float, ContractionMargin]:
    """Return the rate at which the margin vanishes, and the margin near it.

    Newton's steps are kept between rates with margins of either sign, else halved.

    Args:
        search: The search on the cells.
        start: The first rate.

    Raises:
        SimulationError: If the iteration does not converge.
    """
    below, above, rate = 0.0, np.inf, start
    for _ in range(_MAX_STEPS):
        margin = search.compute_margin(rate)
        below, above = (below, rate) if margin.value >= 0.0 else (rate, above)
        following = rate - margin.value / margin.by_rate
        if abs(following - rate) <= _RATE_ACCURACY * rate:
            return following, margin
        is_inside = below < following < above
        rate = following if is_inside else 0.5 * (below + min(above, 3.0 * rate))
    raise SimulationError(f"the rate that forms prove was not found near {start}")


def _find_facets(map: ConewiseMap, changes: list[Array]) -> tuple[ConewiseMap, list[Array]]:
    """Return the map with only those rows of its cones that are facets, and their derivatives.

    A facet is a row across which another piece begins. Other rows are redundant, and do not move
    with the pieces.

    Args:
        map: The map.
        changes: Derivatives (np, n, n) of its pieces.

    Returns:
        The map, and of each piece the derivatives (r, np, n) of the rows.
    """
    pieces, by_rows = [], []
    for k, (matrix, cone) in enumerate(map.pieces):
        rows, moved = [], []
        for row in cone:
            for other, change in zip(map.pieces, changes, strict=True):
                gap = matrix - other.matrix
                step = gap @ row
                misfit = np.abs(gap - np.outer(step, row)).max()
                if step.any() and misfit <= _RANK_TOLERANCE * np.abs(gap).max(initial=0.0):
                    turn = step @ (changes[k] - change) / (step @ step)
                    rows.append(row)
                    moved.append(turn - np.outer(turn @ row, row))
                    break
        n = matrix.shape[1]
        pieces.append(LinearPiece(matrix, np.array(rows).reshape(-1, n)))
        by_rows.append(np.array(moved).reshape(-1, len(changes[k]), n))
    return ConewiseMap(tuple(pieces)), by_rows


def _differentiate_cone(
    map: ConewiseMap, route: Route, changes: list[Array], by_rows: list[Array]
) -> Array:
    """Return the derivatives (np, r, n) of the rows of a route's cone."""
    moved, rows = np.zeros_like(changes[0]), []
    for k, product in zip(route.pieces, route.matrices, strict=False):
        rows.append(by_rows[k].transpose(1, 0, 2) @ product + map.pieces[k].cone @ moved)
        moved = changes[k] @ product + map.pieces[k].matrix @ moved
    return np.concatenate(rows, axis=1)
