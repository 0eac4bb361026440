r"""The linear equations of Newton's method for the stages of a step of Radau IIA.

With residuals r_i and increments d_i of the stages, in the tangent space of each,

.. math:: d_i - h \sum_j a_{ij} D_j d_j = r_i, \qquad D_j = D_x f + D_u f D_x u

at stage j, under the law u. On a manifold :math:`L(x)` (nx, ndx) maps velocities to rates of
coordinates; residuals of coordinates are :math:`L^+ r`, and what is across the manifold is added as
it is. That leaves out how L turns between stages: it costs iterations, not accuracy.

The tangent space of a mechanical system is (q, v), with rates of q that do not depend on q. Its
increments are eliminated, :math:`d^q_i = r^q_i + h \sum_j a_{ij} D^{qv}_j d^v_j`, which leaves half
the unknowns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg import lapack

from hybridctl.base.checks import Array
from hybridctl.base.spaces import invert_tangent_maps
from hybridctl.hybrid.step import DrivenMode
from hybridctl.hybrid.tableau import radau

FORMULA = radau(7)
"""The formula. Its stages and the start of a step fix a polynomial of the degree of a `Step`."""


class StageEquations:
    """Newton's equations for the stages of one step, with their matrix factorised.

    `linearize` makes them at given stages. They may be solved several times, also for residuals at
    other stages of the same step.

    Args:
        maps: L (7, nx, n) at the stages; None in a vector space.
        factors: LAPACK's factors and pivots (`dgetrf`) of the matrix for the increments of v
            (7 n/2, 7 n/2), or of all (7 n, 7 n) if nothing is eliminated.
        couplings: h a_ij D_j of (v by q) and of (q by v), each (7 n/2, 7 n/2). None if nothing is
            eliminated.
        first_stage: c_1 h, and D_1 (n, n) and L (nx, n) at the first stage.
    """

    def __init__(
        self,
        maps: Array | None,
        factors: tuple[Any, Any],
        couplings: tuple[Array, Array] | None,
        first_stage: tuple[float, Array, Array | None],
    ) -> None:
        self._maps, self._factors, self._couplings = maps, factors, couplings
        self._first_stage = first_stage
        self._back = None if maps is None else invert_tangent_maps(maps)

    @staticmethod
    def linearize(
        motion: DrivenMode, times: Sequence[float], stages: Array, h: float
    ) -> StageEquations | None:
        """Return the equations at some stages, None if they are singular or not finite.

        Args:
            motion: The mode under its law.
            times: Times (7,) of the stages, s.
            stages: Coordinates (7, nx).
            h: Length of the step in s, with its sign.

        Raises:
            SimulationError: The field has no value at a stage.
        """
        each = zip(times, stages, strict=True)
        slopes, maps = zip(*(motion.differentiate_rate(t, z) for t, z in each), strict=True)
        d, n = np.array(slopes), slopes[0].shape[0]
        # Number of coordinates q whose rates do not depend on q: they are eliminated.
        k = n // 2 if n % 2 == 0 and not d[:, : n // 2, : n // 2].any() else 0
        whole = np.eye(len(d) * (n - k)) - _couple(h, d[:, k:, k:])
        couplings = None
        if k:
            couplings = _couple(h, d[:, k:, :k]), _couple(h, d[:, :k, k:])
            whole -= couplings[0] @ couplings[1]
        if not np.isfinite(whole).all():
            return None
        factors, pivots, info = lapack.dgetrf(whole)
        if info != 0:
            return None
        of_coordinates = None if maps[0] is None else np.array(maps)
        first_stage = float(h * FORMULA.points[0]), slopes[0], maps[0]
        return StageEquations(of_coordinates, (factors, pivots), couplings, first_stage)

    def solve(self, missed: Array) -> Array:
        """Return the increments (7, nx) of the stages' coordinates.

        Args:
            missed: Residuals r (7, nx) of the coordinates.
        """
        if self._maps is None or self._back is None:
            return self._solve_tangents(missed)
        r = (self._back @ missed[..., None])[..., 0]
        moved = self._maps @ (self._solve_tangents(r) - r)[..., None]
        return np.asarray(missed + moved[..., 0])

    def bound_error(self, defect: Array) -> Array | None:
        r"""Return a bound (nx,) of the error inside a step, by its defect at the start.

        It is :math:`c_1 h (1 - c_1 h D_1)^{-1} d_0`. The polynomial u of a step solves the field at
        the stages. So its defect :math:`d = u' - f` at the part s of the step is
        :math:`d_0 \prod_i (1 - s / c_i)` to leading order. Under a decay z / h its error is
        :math:`\kappa(z) h d_0` at most, with :math:`\kappa(z) < c_1 / (1 + c_1 z) < 1.7 \kappa(z)`
        for all z >= 0. It is of order h^8. An initial layer shows in d_0 at full size, although
        no stage may lie within it.

        None if the matrix is singular.

        Args:
            defect: d_0 (nx,), the rate of the polynomial at the start less that of the field.
        """
        h, slope, to_coordinates = self._first_stage
        return solve_backward_euler(slope, to_coordinates, h, defect)

    def _solve_tangents(self, r: Array) -> Array:
        """Return the increments (7, n) in the tangent space for residuals (7, n) there."""
        s, n = r.shape
        if self._couplings is None:
            return np.asarray(lapack.dgetrs(*self._factors, r.ravel())[0].reshape(s, n))
        v_by_q, q_by_v = self._couplings
        r_q, r_v = r[:, : n // 2].ravel(), r[:, n // 2 :].ravel()
        d_v = lapack.dgetrs(*self._factors, r_v + v_by_q @ r_q)[0]
        d_q = r_q + q_by_v @ d_v
        return np.hstack((d_q.reshape(s, -1), d_v.reshape(s, -1)))


def _couple(h: float, slopes: Array) -> Array:
    """Return the matrix (7 m, 7 n) of the blocks h a_ij D_j, for D (7, m, n)."""
    s, m, n = slopes.shape
    blocks = h * FORMULA.matrix[:, None, :, None] * slopes.swapaxes(0, 1)[None]
    return np.asarray(blocks.reshape(s * m, s * n))


def solve_backward_euler(
    slope: Array, to_coordinates: Array | None, h: float, missed: Array
) -> Array | None:
    r"""Return :math:`(1/h - D)^{-1}` times rates that are missed: errors of the coordinates (nx,).

    None if the matrix is singular.

    Args:
        slope: D (n, n), 1/s.
        to_coordinates: L (nx, n). None in a vector space.
        h: Length of the step in s, with its sign.
        missed: Rates (nx,) of the coordinates.
    """
    if to_coordinates is not None:
        missed = invert_tangent_maps(to_coordinates) @ missed
    try:
        error = np.linalg.solve(np.eye(len(slope)) / h - slope, missed)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(error if to_coordinates is None else to_coordinates @ error)
