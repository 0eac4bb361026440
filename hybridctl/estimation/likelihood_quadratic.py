r"""The top of a log-likelihood by a quadratic through its values at many points.

The likelihood of records with impacts is a sum of smooth pieces with steps between them, where the
order of impacts in one record or another changes. A search by gradients ends at such a step, which
says nothing of the next piece. Far from the steps' size the sum is a hill, and with
:math:`z = (p - \bar p) / s`

.. math:: L_r(p) \approx c_r + g_r^T z - \tfrac12 z^T H_r z, \qquad
          \hat z = H^{-1} g, \quad H = \sum_r H_r, \; g = \sum_r g_r,

by least squares for every record r. What is left of the sum is how rough it is. Errors are those of
:math:`H^{-1}`, and over records, with :math:`q_r = g_r - H_r \hat z`, those of the sandwich
:math:`H^{-1} \left( \sum_r q_r q_r^T \right) H^{-1}` (White, *Maximum likelihood estimation of
misspecified models*, Econometrica 50, 1982), which counts the steps as well: they are different in
other records. A part of the records has a top of its own from the same values.

A record may be one that no parameters explain. Its likelihood, relative to the largest that it has
at any point, is cut at -`depth`, smoothly: :math:`-d \tanh((L_{r,\max} - L_r) / d)`.

`maximise` looks for the points itself. First it tries long steps of each parameter, longer ones
where they gain and shorter ones where none does, so that it does not end between the steps of a
likelihood far from its hill. Then it takes steps of about one standard error of each parameter, at
which L falls by a half, on both sides and for each pair, from the best point to the top of their
quadratic and on until that gains nothing. The third order of L moves such a top, and the fourth
changes its error: for the logarithm of the level of n plain noises by :math:`1 / 6n` (its error is
:math:`1 / \sqrt{2n}`), and by one part in 12 n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, combinations_with_replacement, product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from hybridctl.base.checks import Array, check_array, check_number
from hybridctl.base.errors import InputError, SimulationError

_FALLS = 0.25, 1.0  # of the log-likelihood, that a step may cause; 0.5 is one standard error
_SETTLED = 0.1  # of the log-likelihood, that may be left where the sum is rough
_FLAT = 1e-6  # fall of a log-likelihood that does not depend on the parameter
_TRIALS = 6  # of the length of a step
_SHORTEST = 0.25  # of the first steps: where long ones end
_FACTOR = 8.0  # by which it changes at most in a trial
_REACHES = 64.0, 8.0, 1.0  # steps from the best point, within which a top is believed, in turn
_NEAR = 1.01  # steps, from within which earlier points serve again
_ENDS = (-1.0, 1.0)
_CUT = 60.0  # below its worst: what a record counts that could not be filtered


@dataclass(frozen=True, eq=False)
class Top:
    """The most likely parameters (np,), and what is known of them.

    standard_errors (np,): by the curvature. record_errors (np,): over records. correlation
    (np, np): of the errors by the curvature. roughness: root mean square of what the quadratic
    leaves of the sum at the points. inside: whether the top lies among the points. Errors and
    correlations are nan for parameters at a bound, those of the others with these held, and for
    all where the sum is curved upwards somewhere.
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

    def top(self, records: Sequence[int] | None = None, bounds: Array | None = None) -> Top:
        """The top of the sum of some records, by default of all; bounds (np, 2): within these.

        Raises `SimulationError` where the sum has none.
        """
        chosen = np.arange(self.values.shape[1]) if records is None else np.asarray(records)
        g, h = self.gradients[chosen], self.curvatures[chosen]
        slope, whole = g.sum(axis=0), h.sum(axis=0)
        rises = np.linalg.eigvalsh(whole)[0] <= 0.0
        if bounds is None and rises:
            raise SimulationError("the log-likelihood has no top: it is curved upwards somewhere")
        z, inner = self._within(slope, whole, bounds)
        n = len(z)
        errors, over, correlation = np.full(n, np.nan), np.full(n, np.nan), np.full((n, n), np.nan)
        own = whole[np.ix_(inner, inner)]
        if len(inner) and np.linalg.eigvalsh(own)[0] > 0.0:
            inverse, q = np.linalg.inv(own), (g - h @ z)[:, inner]
            errors[inner] = np.sqrt(np.diag(inverse))
            over[inner] = np.sqrt(np.diag(inverse @ q.T @ q @ inverse))
            correlation[np.ix_(inner, inner)] = inverse / np.outer(errors[inner], errors[inner])
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        values = self.center + self.scale * z
        return Top(
            values,
            self.scale * errors,
            self.scale * over,
            correlation,
            float(np.sqrt((self.rests[:, chosen].sum(axis=1) ** 2).mean())),
            bool(((low <= values) & (values <= high)).all()),
        )

    def _within(
        self, slope: Array, whole: Array, bounds: Array | None
    ) -> tuple[Array, NDArray[np.intp]]:
        """The top z (np,) of a sum within bounds, and the parameters that these do not hold."""
        if bounds is None:
            return np.asarray(np.linalg.solve(whole, slope)), np.arange(len(slope))
        low, high = (bounds.T - self.center) / self.scale
        found = minimize(
            lambda z: (0.5 * z @ whole @ z - slope @ z, whole @ z - slope),
            np.clip(np.zeros(len(slope)), low, high),
            jac=True, method="L-BFGS-B", bounds=np.column_stack([low, high]),
            options={"ftol": 1e-15, "gtol": 1e-10},
        )  # fmt: skip
        z: Array = found.x
        return z, np.flatnonzero((z > low) & (z < high))

    def point_errors(self) -> Array:
        """How much the top (np,) would differ with other points: the jackknife over points."""
        m = len(self.points)
        tops = []
        for k in range(m):
            rest = np.arange(m) != k
            tops.append(_quadratics(self.points[rest], self.values[rest]).top().values)
        spread = np.array(tops) - np.mean(tops, axis=0)
        return np.asarray(np.sqrt((m - 1) / m * (spread**2).sum(axis=0)))

    def __call__(self, point: ArrayLike) -> float:
        """The sum of the quadratics at parameters (np,)."""
        z = (check_array("point", point, (len(self.center),)) - self.center) / self.scale
        each = self.constants + self.gradients @ z - 0.5 * (self.curvatures @ z) @ z
        return float(each.sum())


def fitted(
    points: ArrayLike, log_likelihoods: ArrayLike, *, depth: float = 60.0
) -> LikelihoodQuadratic:
    """Quadratics through log-likelihoods (m, n) of n records at m points (m, np).

    depth: see this module; a log-likelihood of -inf is one that is cut. Raises `InputError` for
    fewer points than a quadratic has coefficients.
    """
    p = check_array("points", points, (None, None))
    n = p.shape[1]
    coefficients = (n + 1) * (n + 2) // 2
    given = np.asarray(log_likelihoods, dtype=np.float64)
    if given.ndim != 2 or len(given) != len(p) or np.isnan(given).any():
        raise InputError(f"log_likelihoods must have {len(p)} rows, got shape {given.shape}")
    check_number("depth", depth, above=0.0)
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


@dataclass(frozen=True, eq=False)
class Maximum:
    """The end of `maximise`: the top, its log-likelihoods (n,), and how the search went.

    top: its errors are nan for a parameter at a bound, or on which nothing depends. at_bound (np,):
    which are. converged: whether another round would gain less than asked.
    """

    top: Top
    log_likelihoods: Array
    at_bound: NDArray[np.bool_]
    evaluations: int
    converged: bool


def maximise(
    log_likelihoods: Callable[[Array], Array],
    start: Array,
    bounds: Array,
    steps: Array,
    *,
    tolerance: float = 0.05,
    max_evaluations: int = 400,
) -> Maximum:
    """The parameters (np,) of the largest sum of log-likelihoods (n,), see this module.

    log_likelihoods: of n records at parameters, -inf where one could not be filtered. start (np,):
    within the bounds (np, 2). steps (np,): long ones, to begin with. tolerance: in standard errors,
    how far from the best point a top may lie with which the search ends. Raises
    `SimulationError` where the sum is -inf at the start.
    """
    search = _TopSearch(log_likelihoods, max_evaluations, start, bounds, steps.copy())
    if not np.isfinite(search.total(start)):
        raise SimulationError(f"not every record could be filtered at the start {start.tolist()}")
    top, converged, known = _unknown(start), False, 0
    try:
        search.look_around()
        while not converged and known < len(search.known):
            known = len(search.known)
            top, gain = search.round()
            converged = gain <= max(0.5 * tolerance**2, min(top.roughness, _SETTLED))
    except _SpentError:
        pass
    if not converged:
        top = replace(top, values=search.best)
    low, high = bounds.T
    found = search.known[tuple(top.values.tolist())]
    at_bound = (top.values <= low) | (top.values >= high)
    return Maximum(top, found, at_bound, len(search.known), converged)


def _unknown(values: Array) -> Top:
    """The top of parameters (np,) whose errors are not known."""
    n = len(values)
    return Top(values, np.full(n, np.nan), np.full(n, np.nan), np.full((n, n), np.nan), 0.0, True)


class _SpentError(Exception):
    """The number of evaluations that is allowed has been spent."""


@dataclass(eq=False)
class _TopSearch:
    """Points that were evaluated, the best of them, and steps (np,) of about a standard error."""

    function: Callable[[Array], Array]
    most: int
    best: Array
    bounds: Array
    steps: Array
    known: dict[tuple[float, ...], Array] = field(default_factory=dict)

    def total(self, point: Array) -> float:
        """The sum at a point (np,)."""
        key = tuple(point.tolist())
        if key not in self.known:
            if len(self.known) == self.most:
                raise _SpentError
            self.known[key] = self.function(point)
            if self.known[key].sum() > self.known[tuple(self.best.tolist())].sum() + _FLAT:
                self.best = point
        return float(self.known[key].sum())

    def look_around(self) -> None:
        """Go to the best point that long steps lead to, twice as long where they gain, or half."""
        shortest = _SHORTEST * self.steps
        while (self.steps > shortest).any():
            before = self.best
            for i, sign in product(range(len(before)), _ENDS):
                self.total(self._at(self.best, [i], sign))
            self.steps *= 0.5 if self.best is before else 2.0

    def round(self) -> tuple[Top, float]:
        """The top of a quadratic around the best point, and what it gains by the quadratic."""
        free = np.array([i for i in range(len(self.best)) if self._fall(i) > _FLAT], dtype=int)
        found = _unknown(self.best)
        if not len(free):
            return found, 0.0
        quadratic, center = self._quadratic(free), self.best[free]
        for reach in _REACHES:
            box = center + reach * self.steps[free] * np.array(_ENDS)[:, None]
            top = quadratic.top(bounds=np.clip(box, *self.bounds[free].T).T)
            values = self.best.copy()
            values[free], before = top.values, self.best
            gain = quadratic(top.values) - quadratic(center)
            self.total(values)
            if self.best is not before or gain <= _FALLS[0]:
                break
        found.standard_errors[free], found.record_errors[free] = (
            top.standard_errors, top.record_errors
        )  # fmt: skip
        found.correlation[np.ix_(free, free)] = top.correlation
        return replace(found, values=values, roughness=top.roughness, inside=top.inside), gain

    def _fall(self, i: int) -> float:
        """How far the sum falls on both sides, by a step that is made one standard error long."""
        low, high = self.bounds[i]
        longest, fall = 0.5 * float(high - low), 0.0
        for _ in range(_TRIALS):
            self.steps[i] = min(self.steps[i], longest)
            before, center = self.best, self._inside([i])
            ends = [self.total(self._at(center, [i], sign)) for sign in _ENDS]
            fall, moved = self.total(center) - 0.5 * sum(ends), before is not self.best
            longest_yet = self.steps[i] == longest and not moved
            if _FALLS[0] <= fall <= _FALLS[1] or (longest_yet and fall < _FALLS[0]):
                break
            wanted = np.sqrt(0.5 / fall) if fall > 0.0 else _FACTOR
            least = 2.0 if moved else 1.0 / _FACTOR  # uphill with longer steps
            self.steps[i] *= float(np.clip(wanted, least, _FACTOR))
        return fall

    def _inside(self, free: Sequence[int]) -> Array:
        """The best point, moved so that steps of some parameters stay within the bounds."""
        center: Array = self.best.copy()
        low, high = self.bounds[free].T
        center[free] = np.clip(center[free], low + self.steps[free], high - self.steps[free])
        return center

    def _at(self, center: Array, chosen: Sequence[int], sign: float = 1.0) -> Array:
        """A step of some parameters away from a center, within the bounds."""
        moved = center.copy()
        moved[list(chosen)] += sign * self.steps[list(chosen)]
        return np.asarray(np.clip(moved, *self.bounds.T))

    def _quadratic(self, free: NDArray[np.intp]) -> LikelihoodQuadratic:
        """The quadratics through points on both sides of the best, for each pair, and nearby."""
        center = self._inside(free.tolist())
        moves = [*combinations(free.tolist(), 1), *combinations(free.tolist(), 2)]
        self.total(center)
        for chosen, sign in product(moves, _ENDS):
            self.total(self._at(center, chosen, sign))
        points, values = np.array(list(self.known)), np.array(list(self.known.values()))
        near = (np.abs(points - center)[:, free] <= _NEAR * self.steps[free]).all(axis=1)
        finite = np.isfinite(values[near])
        worst = np.where(finite, values[near], np.inf).min(axis=0) - _CUT
        return _quadratics(points[near][:, free], np.where(finite, values[near], worst))
