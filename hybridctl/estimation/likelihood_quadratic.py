r"""The top of a log-likelihood by a quadratic through its values at many points.

The likelihood of records with impacts is a sum of smooth pieces with steps between them, where the
order of impacts in one record or another changes. A search ends at such a step, its gradient says
nothing of the next piece. Far from the steps' size the sum is a hill, and with
:math:`z = (p - \bar p) / s`

.. math:: L_r(p) \approx c_r + g_r^T z - \tfrac12 z^T H_r z, \qquad
          \hat z = H^{-1} g, \quad H = \sum_r H_r, \; g = \sum_r g_r,

by least squares for every record r. What is left of the sum is how rough it is. Errors are those of
:math:`H^{-1}`, and over records, with :math:`q_r = g_r - H_r \hat z`, those of the sandwich
:math:`H^{-1} \left( \sum_r q_r q_r^T \right) H^{-1}`, which counts the steps as well: they are
different in other records. A part of the records has a top of its own from the same values.

A record may be one that no parameters explain. Its likelihood, relative to the largest that it has
at any point, is cut at -`depth`, smoothly: :math:`-d \tanh((L_{r,\max} - L_r) / d)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, array, number
from hybridctl.errors import InputError, SimulationError


@dataclass(frozen=True, eq=False)
class Top:
    """The most likely parameters (np,), and what is known of them.

    standard_errors (np,): by the curvature. record_errors (np,): over records. correlation
    (np, np): of the errors by the curvature. roughness: root mean square of what the quadratic
    leaves of the sum at the points. inside: whether the top lies among the points.
    """

    values: Array
    standard_errors: Array
    record_errors: Array
    correlation: Array
    roughness: float
    inside: bool


@dataclass(frozen=True, eq=False)
class LikelihoodQuadratic:
    """Quadratics of every record, see `fitted`.

    points (m, np); values (m, n): the log-likelihoods, cut; gradients (n, np) and curvatures
    (n, np, np): of z = (p - center) / scale; rests (m, n): what they leave.
    """

    points: Array
    values: Array
    center: Array
    scale: Array
    constants: Array
    gradients: Array
    curvatures: Array
    rests: Array

    def top(self, records: Sequence[int] | None = None) -> Top:
        """The top of the sum of some records, by default of all.

        Raises `SimulationError` where the sum has none.
        """
        chosen = np.arange(self.values.shape[1]) if records is None else np.asarray(records)
        g, h = self.gradients[chosen], self.curvatures[chosen]
        whole = h.sum(axis=0)
        if np.linalg.eigvalsh(whole)[0] <= 0.0:
            raise SimulationError("the log-likelihood has no top: it is curved upwards somewhere")
        z = np.linalg.solve(whole, g.sum(axis=0))
        inverse = np.linalg.inv(whole)
        q = g - h @ z
        over = inverse @ q.T @ q @ inverse
        errors = np.sqrt(np.diag(inverse))
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        values = self.center + self.scale * z
        return Top(
            values,
            self.scale * errors,
            self.scale * np.sqrt(np.diag(over)),
            inverse / np.outer(errors, errors),
            float(np.sqrt((self.rests[:, chosen].sum(axis=1) ** 2).mean())),
            bool(((low <= values) & (values <= high)).all()),
        )

    def point_errors(self, records: Sequence[int] | None = None) -> Array:
        """How much the top (np,) would differ with other points: the jackknife over points."""
        m = len(self.points)
        tops = []
        for k in range(m):
            rest = np.arange(m) != k
            tops.append(_quadratics(self.points[rest], self.values[rest]).top(records).values)
        spread = np.array(tops) - np.mean(tops, axis=0)
        return np.asarray(np.sqrt((m - 1) / m * (spread**2).sum(axis=0)))

    def __call__(self, point: ArrayLike, records: Sequence[int] | None = None) -> float:
        """The sum of the quadratics of some records at parameters (np,)."""
        chosen = slice(None) if records is None else np.asarray(records)
        z = (array("point", point, (len(self.center),)) - self.center) / self.scale
        each = self.constants + self.gradients @ z - 0.5 * (self.curvatures @ z) @ z
        return float(each[chosen].sum())


def fitted(
    points: ArrayLike, log_likelihoods: ArrayLike, *, depth: float = 60.0
) -> LikelihoodQuadratic:
    """Quadratics through log-likelihoods (m, n) of n records at m points (m, np).

    depth: see this module; a log-likelihood of -inf is one that is cut. Raises `InputError` for
    fewer points than a quadratic has coefficients.
    """
    p = array("points", points, (None, None))
    n = p.shape[1]
    coefficients = (n + 1) * (n + 2) // 2
    given = np.asarray(log_likelihoods, dtype=np.float64)
    if given.ndim != 2 or len(given) != len(p) or np.isnan(given).any():
        raise InputError(f"log_likelihoods must have {len(p)} rows, got shape {given.shape}")
    number("depth", depth, above=0.0)
    if len(p) <= coefficients:
        raise InputError(
            f"points must be more than the {coefficients} coefficients of a quadratic of {n} "
            f"parameters, got {len(p)}"
        )
    return _quadratics(p, -depth * np.tanh((given.max(axis=0) - given) / depth))


def _quadratics(p: Array, values: Array) -> LikelihoodQuadratic:
    n = p.shape[1]
    pairs = list(combinations_with_replacement(range(n), 2))
    center, scale = p.mean(axis=0), p.std(axis=0)
    z = (p - center) / scale
    features = np.column_stack([np.ones(len(z)), z, *(z[:, i] * z[:, j] for i, j in pairs)])
    coefficients = np.linalg.lstsq(features, values, rcond=None)[0]
    h = np.zeros((values.shape[1], n, n))
    for row, (i, j) in zip(coefficients[1 + n :], pairs, strict=True):
        h[:, i, j] -= row
        h[:, j, i] -= row
    gradients, rests = coefficients[1 : 1 + n].T, values - features @ coefficients
    return LikelihoodQuadratic(p, values, center, scale, coefficients[0], gradients, h, rests)
