r"""The B-derivative of a flow whose field jumps on several surfaces that meet, [Bder].

At a point :math:`q`, n surfaces :math:`h_j = 0` with normals :math:`n_j = D h_j(q)` part the space;
the limit of the field where :math:`\operatorname{sign} h = b` is :math:`F_b`. The sign convention
is the paper's, **not** that of guards in the rest of this package: each event function
*increases* through zero, :math:`n_j \cdot F_b > 0` for all j and b, so that all signs are -1
before and +1 after. A guard g that falls through zero enters with the normal :math:`-D_x g`.

The derivative B of the flow through q maps deviations at fixed time; it is continuous, positively
homogeneous, and linear on up to n! cones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import null_space

from hybridctl.base.checks import Array, check_array, check_vector
from hybridctl.base.errors import GrazingError, InputError
from hybridctl.sensitivity.gains import GRAZING, JumpGains
from hybridctl.sensitivity.pieces import ROUNDING, distinct
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump

_KEPT = 16384  # fields that are kept: all of them up to 14 surfaces

Field = Callable[[Array], ArrayLike]


class BDerivative(PiecewiseLinearJump):
    r"""The first-order map B of deviations through n surfaces at once, [Bder] (8), (61), (62).

    normals (n, d): the gradients :math:`n_j`, in rows. field(b) -> (d,): the limit :math:`F_b` for
    signs b (n,) of -1.0 (before surface j) and +1.0 (after it); it is asked for signs that occur,
    once for each. guards: names of the surfaces, "surface 0" and so on if not given.

    A call takes O(n^2 d) time and O(d) memory for each direction, [Bder] Alg. 1. n = 1 is the
    saltation matrix. Normals may be parallel, equal or more than d; surfaces that are reached
    together are passed in the order of declaration, which does not change the value.

    Raises `InputError` for wrong sizes, values that are not finite and a normal of zero, and
    `GrazingError` where a field does not cross a surface upwards: at construction for all signs
    -1 and all +1, later for the others.
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
        super().__init__(names, self._field_change, self._times)
        if len(self.guards) != n:
            raise InputError(f"guards must have one name for each of {n} normals, got {guards}")
        self.field = field
        self._after = lru_cache(_KEPT)(self._checked_field)
        self.field_before, self.field_after = self._after(frozenset()), self._after(self._all)

    def triangulation(self) -> Triangulation:
        """The 2^n points and values that fix the map; needs the field for all 2^n signs.

        Raises `InputError` unless the normals are linearly independent.
        """
        normals = self.normals
        n = len(normals)
        if not self._independent:
            raise InputError(
                f"a triangulation needs linearly independent normals, but {n} of them have rank "
                f"{_rank(normals)}; evaluation and pieces need none"
            )
        signs = np.array(list(product((-1.0, 1.0), repeat=n)))[:, ::-1]
        fields = np.array([self._after(frozenset(np.flatnonzero(b > 0.0).tolist())) for b in signs])
        heights = np.where(signs < 0.0, -fields @ normals.T, 0.0)
        points = heights @ np.linalg.pinv(normals).T
        return Triangulation(normals, signs, points, points + fields - self.field_after)

    def is_linear(self, *, accuracy: float = ROUNDING) -> bool:
        """Whether B is linear, up to the accuracy of the fields.

        Independent normals: whether the matrix of one order has the values of the triangulation,
        2^n of them. Other normals: whether all pieces have the same matrix.
        """
        if not self._independent:
            return len(distinct(self.pieces(accuracy=accuracy), accuracy=accuracy)) == 1
        mesh, matrix = self.triangulation(), np.eye(self.dimension)
        size, fired = matrix, frozenset[int]()
        for j in range(len(self.guards)):
            jump = self._modes.jump(fired, j)
            matrix = matrix - np.outer(jump.field_change, jump.time_state @ matrix)
            size = size + np.outer(np.abs(jump.field_change), np.abs(jump.time_state) @ size)
            fired = fired | {j}
        error = np.abs(mesh.points @ matrix.T - mesh.values)
        terms = accuracy * len(self.guards) * (self.dimension + 2)
        return bool((error <= terms * (np.abs(mesh.points) @ size.T + np.abs(mesh.values))).all())

    def lineality(self) -> Array:
        """An orthonormal basis (d, k) of span F_{-1} + ker Dh, [Bder] Lemma 2.

        On it B is linear, and B(dx + l) = B(dx) + B(l) for l in it and any dx; B(F_{-1}) = F_{+1},
        and B(l) = l for l in ker Dh.
        """
        kernel = np.asarray(null_space(self.normals))
        across = self.field_before - kernel @ (kernel.T @ self.field_before)
        return np.column_stack([across / np.linalg.norm(across), kernel])

    @property
    def _all(self) -> frozenset[int]:
        return frozenset(range(len(self.normals)))

    @property
    def _independent(self) -> bool:
        return _rank(self.normals) == len(self.normals)

    def _checked_field(self, fired: frozenset[int]) -> Array:
        """The field after the surfaces `fired`."""
        b = np.full(len(self.normals), -1.0)
        b[list(fired)] = 1.0
        signs = [int(s) for s in b]
        value = check_vector(f"field({signs})", self.field(b), self.normals.shape[1])
        rates = self.normals @ value
        sizes = np.abs(self.normals) @ np.abs(value)
        for j, (rate, size) in enumerate(zip(rates, sizes, strict=True)):
            if not rate > GRAZING * size:
                raise GrazingError(
                    f"{self.guards[j]!r} is not crossed upwards by field({signs}): normals[{j}] "
                    f"times the field must be positive, got {rate:.3g}; event functions increase "
                    "through zero here"
                )
        return value

    def _times(self, fired: frozenset[int]) -> tuple[Array, Array]:
        left = self.normals[sorted(self._all - fired)]
        rates = left @ self._after(fired)
        return -left / rates[:, None], np.zeros((len(left), 0))

    def _field_change(self, fired: frozenset[int], j: int) -> JumpGains:
        """The jump at one surface, without a reset, [Bder] (5)."""
        before, after = self._after(fired), self._after(fired | {j})
        normal = self.normals[j]
        none = np.zeros(0)
        return JumpGains(
            -normal / (normal @ before),
            none,
            None,
            np.zeros((len(normal), 0)),
            after - before,
            before,
        )


@dataclass(frozen=True, eq=False)
class Triangulation:
    r"""The points and values that fix a B-derivative, and its evaluation from them alone.

    normals (n, d); signs (2^n, n): all b, with the first sign changing fastest; points (2^n, d):
    the :math:`\zeta_b - q` orthogonal to ker Dh that reach the surfaces with :math:`b_j = -1`
    in one unit of time under :math:`F_b` and lie on the others, [Bder] (33); values (2^n, d):
    their images :math:`B(\zeta_b - q) = \zeta_b - q + F_b - F_{+1}`, [Bder] (34).
    """

    normals: Array
    signs: Array
    points: Array
    values: Array

    def __call__(self, dx: ArrayLike) -> Array:
        r"""The image B(dx) (d,) of dx (d,), or (m, d) of m of them in rows, [Bder] (58).

        :math:`\delta x = \sum_k c_k \zeta_{b_k} + \xi` over the simplex of the order, with
        :math:`c_k \ge 0` for k > 0 and :math:`\xi \in \ker Dh`, gives
        :math:`B(\delta x) = \sum_k c_k B(\zeta_{b_k}) + \xi`. The coordinates are found one by one:
        each is the largest that leaves no guard above its surface.
        """
        n, d = self.normals.shape
        directions = check_array("dx", dx)
        if directions.ndim not in (1, 2) or directions.shape[-1] != d:
            raise InputError(f"dx must have shape ({d},) or (m, {d}), got {directions.shape}")
        result: Array = np.atleast_2d(directions).copy()
        rest = result @ self.normals.T
        heights, changes = self.points @ self.normals.T, self.values - self.points
        open_, row = np.ones(rest.shape, dtype=bool), np.zeros(len(rest), dtype=np.intp)
        every = np.arange(len(rest))
        for _ in range(n):
            below = heights[row]
            ratios = np.divide(rest, below, out=np.full(rest.shape, np.inf), where=open_)
            j = ratios.argmin(axis=1)
            c = ratios[every, j]
            rest -= c[:, None] * below
            result += c[:, None] * changes[row]
            open_[every, j] = False
            row += 1 << j
        return result.reshape(directions.shape)


def _rank(normals: Array) -> int:
    return int(np.linalg.matrix_rank(normals / np.linalg.norm(normals, axis=1, keepdims=True)))
