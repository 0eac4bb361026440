r"""How the bounds of growth of a conewise linear map change with its pieces.

With :math:`A_k` on cones :math:`C_k x \ge 0`, and their changes :math:`\delta A_k`:

- a ray v that a product M of pieces maps to :math:`\lambda v` changes by
  :math:`\delta\lambda = w^T \delta M\, v / w^T v`, with :math:`w^T M = \lambda w^T`;
- the least rate that forms of so many cells prove, see `contraction`, is that at which the margin

  .. math:: t(\gamma) = \max \{ t :\ V_c - E_c^T U_c E_c \succeq t I,\quad
      \gamma^2 V_c - A^T V_{c'} A - F^T W F \succeq t I,\quad \sum_c \mathrm{tr}\, V_c = 1 \}

  vanishes. Multipliers Z of these inequalities are the derivatives of t by their left sides, so
  that :math:`\delta\gamma = -\langle Z, \delta(\cdot)\rangle / \langle Z, \partial_\gamma(\cdot)
  \rangle`, by which Newton's steps find the rate as well.

As the map is continuous, two pieces that meet where :math:`n^T x = 0` differ by :math:`c\, n^T`:
the rows n of the cones move with the pieces, :math:`\delta n^T = c^T (\delta A_k - \delta A_l) (I -
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
from hybridctl.orbits.contraction import ContractionMargin, FormSearch, Route, routes
from hybridctl.orbits.stability import Stability, balanced

_RANK = 1e-6  # of the difference of two pieces: how far it may be from rank one
_STEPS = 60
_FOUND = np.sqrt(np.finfo(float).eps)  # of the rate: the step after one of these is rounding
_CELLS = 64


@dataclass(frozen=True, eq=False)
class GrowthDerivatives:
    """Both bounds of the growth per period (2,), tight, and their derivatives (2, np).

    The lower one is that of the ray that grows most, NaN where none was found; the upper one the
    least that forms on the cells of `Stability.form` prove. With one piece both are the largest
    modulus of its eigenvalues.
    """

    bounds: Array
    derivatives: Array


def growth_derivatives(found: Stability, changes: Sequence[Array]) -> GrowthDerivatives:
    """The derivatives of a verdict's bounds, for those of the pieces of its return map.

    changes: (np, n, n) of each piece, in the coordinates of `found.return_map`. A bound has a
    derivative where one ray and one form attain it. Raises `InputError` for sizes that do not fit,
    and where the verdict has no form.
    """
    pieces = found.return_map.pieces
    if len(check_sequence("changes", changes)) != len(pieces):
        raise InputError(f"changes must have one entry a piece ({len(pieces)}), got {len(changes)}")
    n = pieces[0].matrix.shape[1]
    moved = [check_array(f"changes[{k}]", change, (None, n, n)) for k, change in enumerate(changes)]
    if len(pieces) == 1:
        value, change = _largest(pieces[0].matrix, moved[0])
        return GrowthDerivatives(np.array([value, value]), np.stack([change, change]))
    if found.form is None:
        raise InputError(f"the upper bound of {found!r} is of no form, and has no derivative")
    low, by_ray = _ray(found, moved)
    map, scale = balanced(found.return_map)
    moved = [change * scale / scale[:, None] for change in moved]
    high, by_form = _form(map, moved, len(found.form.cones), found.growth[1])
    return GrowthDerivatives(np.array([low, high]), np.stack([by_ray, by_form]))


def _largest(matrix: Array, change: Array) -> tuple[float, Array]:
    """The largest modulus of a matrix's eigenvalues, and its derivatives."""
    values = np.linalg.eigvals(matrix)
    largest = values[int(np.abs(values).argmax())]
    moved = eigenvalue_derivatives(matrix, change, largest)
    size = float(np.abs(largest))
    return size, np.asarray((largest.conj() * moved).real / size)


def eigenvalue_derivatives(matrix: Array, changes: Array, value: complex) -> NDArray[np.complex128]:
    """The derivatives (np,) of the simple eigenvalue that is nearest to a value."""
    values, right = np.linalg.eig(matrix)
    k = int(np.abs(values - value).argmin())
    others, left = np.linalg.eig(matrix.T)
    w, v = left[:, int(np.abs(others - values[k]).argmin())], right[:, k]
    return np.asarray((w @ changes @ v) / (w @ v), dtype=np.complex128)


def _ray(found: Stability, changes: list[Array]) -> tuple[float, Array]:
    """The growth of the ray per period, and its derivatives."""
    if found.ray is None:
        return np.nan, np.full(len(changes[0]), np.nan)
    map, ray = found.return_map, found.ray
    x, product = found.basis.T @ ray.direction, np.eye(found.basis.shape[1])
    moved = np.zeros_like(changes[0])
    for _ in range(ray.periods):
        k = int(map.pieces_of(x[None])[0])
        matrix = map.pieces[k].matrix
        moved = changes[k] @ product + matrix @ moved
        x, product = matrix @ x, matrix @ product
    factor = eigenvalue_derivatives(product, moved, ray.factor).real
    return ray.rate, np.asarray(ray.rate * factor / (ray.periods * ray.factor))


def _form(map: ConewiseMap, changes: list[Array], cells: int, start: float) -> tuple[float, Array]:
    """The least rate that forms on so many cells prove, and its derivatives."""
    kinked, turned = _facets(map, changes)
    levels = routes(kinked, _CELLS)
    here = next(levels)
    while len(here) < cells:
        here = next(levels)
    search = FormSearch(here, next(levels))
    rate, margin = _tight(search, start)
    change = np.zeros(len(changes[0]))
    for move, by_matrix in zip(search.moves, margin.by_matrix, strict=True):
        change += np.tensordot(changes[move.pieces[0]], by_matrix, 2)
    for route, by_cone in zip([*search.cells, *search.moves], margin.by_cone, strict=True):
        lengths = np.linalg.norm(route.cone, axis=1)[:, None]
        turn = _turned(kinked, route, changes, turned)
        change += np.tensordot(turn / np.where(lengths > 0.0, lengths, 1.0), by_cone, 2)
    return rate, -change / margin.by_rate


def _tight(search: FormSearch, start: float) -> tuple[float, ContractionMargin]:
    """The rate at which the margin vanishes, by Newton's steps between rates of either sign."""
    below, above, rate = 0.0, np.inf, start
    for _ in range(_STEPS):
        margin = search.margin(rate)
        below, above = (below, rate) if margin.value >= 0.0 else (rate, above)
        following = rate - margin.value / margin.by_rate
        if abs(following - rate) <= _FOUND * rate:
            return following, margin
        inside = below < following < above
        rate = following if inside else 0.5 * (below + min(above, 3.0 * rate))
    raise SimulationError(f"the rate that forms prove was not found near {start}")


def _facets(map: ConewiseMap, changes: list[Array]) -> tuple[ConewiseMap, list[Array]]:
    """The map with the rows of cones across which another piece begins; their changes."""
    pieces, turned = [], []
    for k, (matrix, cone) in enumerate(map.pieces):
        rows, moved = [], []
        for row in cone:
            for other, change in zip(map.pieces, changes, strict=True):
                gap = matrix - other.matrix
                step = gap @ row
                if step.any() and np.abs(gap - np.outer(step, row)).max() <= _RANK * np.abs(
                    gap
                ).max(initial=0.0):
                    turn = step @ (changes[k] - change) / (step @ step)
                    rows.append(row)
                    moved.append(turn - np.outer(turn @ row, row))
                    break
        n = matrix.shape[1]
        pieces.append(LinearPiece(matrix, np.array(rows).reshape(-1, n)))
        turned.append(np.array(moved).reshape(-1, len(changes[k]), n))
    return ConewiseMap(tuple(pieces)), turned


def _turned(map: ConewiseMap, route: Route, changes: list[Array], turned: list[Array]) -> Array:
    """The changes (np, r, n) of a route's cone."""
    here, rows = np.zeros_like(changes[0]), []
    for k, matrix in zip(route.pieces, route.matrices, strict=False):
        rows.append(turned[k].transpose(1, 0, 2) @ matrix + map.pieces[k].cone @ here)
        here = changes[k] @ matrix + map.pieces[k].matrix @ here
    return np.concatenate(rows, axis=1)
