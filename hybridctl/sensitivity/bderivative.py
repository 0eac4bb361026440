r"""B-derivative of the flow of a vector field that is discontinuous on several surfaces, [Bder].

At a point q, n surfaces :math:`h_j = 0` with normals :math:`n_j = D h_j(q)` meet. On the side of
them where :math:`\operatorname{sign} h = b` the field has the limit :math:`F_b` at q. The sign
convention is that of the paper, **not** that of guards in the rest of this package: each event
function *increases* through zero, :math:`n_j \cdot F_b > 0` for all j and b, so that all signs are
-1 before and +1 after the event. A guard g that falls through zero enters with the normal
:math:`-D_x g`.

The B-derivative B of the flow through q maps perturbations at equal times. It is continuous and
positively homogeneous, and linear on each of up to n! cones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import null_space

from hybridctl.base.checks import Array, check_array, check_vector
from hybridctl.base.errors import GrazingError, InputError
from hybridctl.sensitivity.piecewise import GAIN_ROUNDING, PiecewiseLinearJump, group_equal_pieces
from hybridctl.sensitivity.saltation import GRAZING_RATIO, JumpGains

_MAX_CACHED_FIELDS = 16384
"""Number of fields that are kept, the last ones used: all 2^n of up to 14 surfaces."""

Field = Callable[[Array], ArrayLike]
"""Field (d,) on the side of the surfaces with the signs b (n,); see `BDerivative`."""


class BDerivative(PiecewiseLinearJump):
    r"""The first-order map B of perturbations through n surfaces at once, [Bder] (8), (61), (62).

    A call takes O(n^2 d) time and O(d) memory for each perturbation, [Bder] Alg. 1. For n = 1 it is
    the saltation matrix. Normals may be parallel or equal, and there may be more than d of them.
    Surfaces that are reached together are passed in the order of declaration, which does not change
    the value.

    Args:
        normals: Gradients :math:`n_j` (n, d) of the event functions, in rows.
        field: Limit :math:`F_b` (d,) of the field for signs b (n,) of -1.0 (before surface j) and
            +1.0 (after it). It is called for signs that occur, for up to 14 surfaces once each.
        guards: Names of the surfaces. None for "surface 0" and so on.

    Attributes:
        field_before: The field :math:`F_{-1}` (d,) before all surfaces.
        field_after: The field :math:`F_{+1}` (d,) after all surfaces.

    Raises:
        InputError: A size is wrong, a value is not finite, or a normal is zero.
        GrazingError: A field does not cross a surface upwards. The fields for all signs -1 and all
            signs +1 are checked at construction, others when they are first needed.
    """

    def __init__(
        self, normals: ArrayLike, field: Field, guards: Sequence[str] | None = None
    ) -> None:
        self.normals = check_array("normals", normals, (None, None))
        for j, normal in enumerate(self.normals):
            if not normal.any():
                raise InputError(f"normals[{j}] must not be zero, got {normal.tolist()}")
        n = len(self.normals)
        names = [f"surface {j}" for j in range(n)] if guards is None else guards
        super().__init__(names, self._jump_at_surface, self._times_to_surfaces)
        if len(self.guards) != n:
            raise InputError(f"guards must have one name for each of {n} normals, got {guards}")
        self.field = field
        self._cached_field = lru_cache(_MAX_CACHED_FIELDS)(self._evaluate_field)
        self.field_before, self.field_after = (
            self._cached_field(frozenset()),
            self._cached_field(self._all_surfaces),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return BDerivative, (self.normals, self.field, self.guards)

    def triangulation(self) -> Triangulation:
        """Return the 2^n points and values that fix the map; the field is called for all 2^n signs.

        Returns:
            The points and values, which evaluate the map without the field.

        Raises:
            InputError: The normals are linearly dependent, or a field is no vector (d,).
            GrazingError: A field does not cross a surface upwards.
        """
        normals = self.normals
        n = len(normals)
        if not self._has_independent_normals:
            raise InputError(
                f"a triangulation needs linearly independent normals, but {n} of them have rank "
                f"{_compute_rank(normals)}; evaluation and pieces need none"
            )
        signs = np.array(list(product((-1.0, 1.0), repeat=n)))[:, ::-1]
        fields = np.array(
            [self._cached_field(frozenset(np.flatnonzero(b > 0.0).tolist())) for b in signs]
        )
        heights = np.where(signs < 0.0, -fields @ normals.T, 0.0)
        points = heights @ np.linalg.pinv(normals).T
        return Triangulation(normals, signs, points, points + fields - self.field_after)

    def is_linear(self, *, accuracy: float = GAIN_ROUNDING) -> bool:
        """Return whether B is linear, up to the accuracy of the fields.

        For independent normals, B is linear if the matrix of one order has all 2^n values of the
        triangulation. For others, all pieces must have the same matrix.

        Args:
            accuracy: Relative error of the fields.
        """
        if not self._has_independent_normals:
            pieces = self.pieces(accuracy=accuracy)
            return len(group_equal_pieces(pieces, accuracy=accuracy)) == 1
        mesh, matrix = self.triangulation(), np.eye(self.dimension)
        # `size` bounds the absolute terms of which the entries of `matrix` are sums.
        size, fired = matrix, frozenset[int]()
        for j in range(len(self.guards)):
            jump = self.jump(fired, j)
            matrix = matrix - np.outer(jump.field_change, jump.time_state @ matrix)
            size = size + np.outer(np.abs(jump.field_change), np.abs(jump.time_state) @ size)
            fired = fired | {j}
        error = np.abs(mesh.points @ matrix.T - mesh.values)
        # n factors, each with sums of about d + 2 terms, as `piecewise._count_roundings` has it.
        terms = accuracy * len(self.guards) * (self.dimension + 2)
        return bool((error <= terms * (np.abs(mesh.points) @ size.T + np.abs(mesh.values))).all())

    def lineality(self) -> Array:
        """Return an orthonormal basis (d, k) of span F_{-1} + ker Dh, [Bder] Lemma 2.

        On it B is linear, and B(dx + l) = B(dx) + B(l) for l in it and any dx; B(F_{-1}) = F_{+1},
        and B(l) = l for l in ker Dh.
        """
        kernel = np.asarray(null_space(self.normals))
        across = self.field_before - kernel @ (kernel.T @ self.field_before)
        return np.column_stack([across / np.linalg.norm(across), kernel])

    @property
    def _all_surfaces(self) -> frozenset[int]:
        return frozenset(range(len(self.normals)))

    @property
    def _has_independent_normals(self) -> bool:
        return _compute_rank(self.normals) == len(self.normals)

    def _evaluate_field(self, fired: frozenset[int]) -> Array:
        """Return the field (d,) after the surfaces in `fired`, checked to cross all surfaces.

        Raises:
            InputError: The field has the wrong size or is not finite.
            GrazingError: It does not cross a surface upwards.
        """
        b = np.full(len(self.normals), -1.0)
        b[list(fired)] = 1.0
        signs = [int(s) for s in b]
        value = check_vector(f"field({signs})", self.field(b), self.normals.shape[1])
        rates = self.normals @ value
        sizes = np.abs(self.normals) @ np.abs(value)
        for j, (rate, size) in enumerate(zip(rates, sizes, strict=True)):
            if not rate > GRAZING_RATIO * size:
                raise GrazingError(
                    f"{self.guards[j]!r} is not crossed upwards by field({signs}): normals[{j}] "
                    f"times the field must be positive, got {rate:.3g}; event functions increase "
                    "through zero here"
                )
        return value

    def _times_to_surfaces(self, fired: frozenset[int]) -> tuple[Array, Array]:
        """Return the event times (k, d) and (k, 0) of the surfaces left, by state and input."""
        left = self.normals[sorted(self._all_surfaces - fired)]
        rates = left @ self._cached_field(fired)
        return -left / rates[:, None], np.zeros((len(left), 0))

    def _jump_at_surface(self, fired: frozenset[int], j: int) -> JumpGains:
        """Return the jump at surface j, which has no reset, [Bder] (5)."""
        before, after = self._cached_field(fired), self._cached_field(fired | {j})
        normal = self.normals[j]
        by_time, no_input = -normal / (normal @ before), np.zeros((len(normal), 0))
        return JumpGains(
            time_state=by_time,
            time_input=np.zeros(0),
            reset_state=None,
            reset_input=no_input,
            field_change=after - before,
            reset_rate=before,
        )


@dataclass(frozen=True, eq=False)
class Triangulation:
    r"""The 2^n points and values that fix a B-derivative, and its evaluation from them alone.

    Attributes:
        normals: Normals (n, d) of the surfaces.
        signs: All signs b (2^n, n); the first one changes fastest.
        points: The points :math:`\zeta_b - q` (2^n, d), orthogonal to ker Dh. They reach the
            surfaces with :math:`b_j = -1` in one unit of time under :math:`F_b` and lie on the
            others, [Bder] (33).
        values: Their images :math:`B(\zeta_b - q) = \zeta_b - q + F_b - F_{+1}` (2^n, d),
            [Bder] (34).
    """

    normals: Array
    signs: Array
    points: Array
    values: Array

    def __call__(self, dx: ArrayLike) -> Array:
        r"""Return the image B(dx), [Bder] (58).

        Over the simplex of the order, :math:`\delta x = \sum_k c_k \zeta_{b_k} + \xi` with
        :math:`c_k \ge 0` for k > 0 and :math:`\xi \in \ker Dh`. Then
        :math:`B(\delta x) = \sum_k c_k B(\zeta_{b_k}) + \xi`. The coordinates are found one by one:
        each is the largest that leaves no event function above zero.

        Args:
            dx: Perturbation (d,), or m of them in rows (m, d).

        Returns:
            The image (d,), or (m, d).

        Raises:
            InputError: dx has the wrong shape.
        """
        n, d = self.normals.shape
        directions = check_array("dx", dx)
        if directions.ndim not in (1, 2) or directions.shape[-1] != d:
            raise InputError(f"dx must have shape ({d},) or (m, {d}), got {directions.shape}")
        result: Array = np.atleast_2d(directions).copy()
        rest = result @ self.normals.T
        heights, changes = self.points @ self.normals.T, self.values - self.points
        # A perturbation is taken apart into the points of the simplex that it is in, one surface
        # after the other. `rest` are its heights below the surfaces so far. `row` is its row of the
        # signs, in which bit j is set where surface j has been passed.
        is_ahead, row = np.ones(rest.shape, dtype=bool), np.zeros(len(rest), dtype=np.intp)
        every = np.arange(len(rest))
        for _ in range(n):
            height = heights[row]
            ratios = np.divide(rest, height, out=np.full(rest.shape, np.inf), where=is_ahead)
            # The surface that is reached next: more of this point would take it above zero.
            j = ratios.argmin(axis=1)
            c = ratios[every, j]
            rest -= c[:, None] * height
            result += c[:, None] * changes[row]
            is_ahead[every, j] = False
            row += 1 << j
        return result.reshape(directions.shape)


def _compute_rank(normals: Array) -> int:
    """Return the rank of normals (n, d), whatever their lengths are."""
    return int(np.linalg.matrix_rank(normals / np.linalg.norm(normals, axis=1, keepdims=True)))
