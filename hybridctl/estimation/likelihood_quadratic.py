r"""The maximum of a log-likelihood by a quadratic through its values at many points.

The log-likelihood of records with impacts is a sum of smooth pieces with steps between them, where
the order of impacts in one record or another changes. A search by gradients, or one that builds its
model from nearby points, ends at such a step. On a scale much longer than the steps the sum is a
hill, and with :math:`z = (p - \bar p) / s`

.. math:: L_r(p) \approx c_r + g_r^T z - \tfrac12 z^T H_r z, \qquad
          \hat z = H^{-1} g, \quad H = \sum_r H_r, \; g = \sum_r g_r,

by least squares for every record r. The rest that the quadratic leaves of the sum is its roughness.
Standard errors are those of :math:`H^{-1}`; over records, with :math:`q_r = g_r - H_r \hat z`,
those of the sandwich :math:`H^{-1} \left( \sum_r q_r q_r^T \right) H^{-1}` (White, *Maximum
likelihood estimation of misspecified models*, Econometrica 50, 1982), which contains the steps as
well: they are different in other records. A part of the records has a top of its own from the
same values.

A record may be one that no parameters explain. In `fit_quadratics` its log-likelihood, relative to
the largest that it has at any point, is limited to -`depth`, smoothly:
:math:`-d \tanh((L_{r,\max} - L_r) / d)`. Where a record could not be filtered, its log-likelihood
is -inf. That is no value: its quadratic goes through its other points, which must be more than the
coefficients. `maximize` limits nothing; for its search it replaces -inf, by a value below the worst
other one that the record has at the points of the quadratic, and then gives no errors.

`maximize` chooses the points itself, in two stages:

1. Long steps of each parameter, all twice as long when any of them gains and half as long when none
   does, so that it does not end between the steps of a likelihood far from its hill.
2. Steps of about one standard error of each parameter, at which L falls by a half, on both sides
   and for each pair; from the best point to the top of their quadratic, and on until that gains
   nothing.

Optimisers of scipy do not suffice: restitution and friction of a ball that bounces (the one of
`tests/estimation/test_identify.py`, from 0.5 and 0.3, four seeds), of which `maximize` finds the
top each time in 60 to 67 evaluations with errors, are left at a step, 700 to 1,300 below the top,
by COBYQA four times, by Powell's method three times and by Nelder and Mead's once.

The third order of L moves such a top, and the fourth changes its error: for the logarithm of the
level of n plain noises by :math:`1 / 6n` (its error is :math:`1 / \sqrt{2n}`), and by one part in
12 n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, combinations_with_replacement, product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.stats import norm
from scipy.stats import t as student_t

from hybridctl.base.checks import Array, check_array, check_count, check_number
from hybridctl.base.errors import InputError, SimulationError

_MIN_FALL, _MAX_FALL = 0.25, 1.0
"""Fall of the log-likelihood that a step may cause; 0.5 is one standard error."""
_MAX_GAIN_LEFT = 0.1
"""Gain of the log-likelihood that may be left where the sum is rough."""
_FLAT_FALL = 1e-6
"""Fall of a log-likelihood that does not depend on the parameter."""
_MAX_LENGTH_TRIALS = 6
"""Trials of the length of a step."""
_MIN_LONG_STEP = 0.25
"""Length, relative to the first steps, at which the stage of long steps ends."""
_MAX_LENGTH_FACTOR = 8.0
"""Factor by which a length changes at most in a trial."""
_REGIONS = 64.0, 8.0, 1.0
"""Regions around the best point, in steps, in which a top is looked for, in turn."""
_REUSE_DISTANCE = 1.01
"""Distance in steps within which earlier points are used again."""
_MIN_SHARE_WITH_TOP = 0.9
"""Share of the draws of a bootstrap that must have a top. A choice."""
_SIGNS = (-1.0, 1.0)
_FAILED_RECORD = 60.0
"""Log-likelihood of a record that could not be filtered, below its worst other value."""


@dataclass(frozen=True, eq=False)
class Top:
    """The most likely parameters and their errors.

    Errors and correlations are NaN for parameters at a bound; those of the others are then with
    these held constant. They are NaN for all if the sum is not curved downwards in every direction
    of the parameters that are at no bound.

    Attributes:
        values: The parameters (np,).
        standard_errors: Standard errors (np,) by the curvature.
        record_errors: Standard errors (np,) over records, by the sandwich.
        correlation: Correlations (np, np) of the errors by the curvature.
        roughness: Root mean square of the rest that the quadratic leaves of the sum at the points.
        inside: Whether the top lies among the points.
    """

    values: Array
    standard_errors: Array
    record_errors: Array
    correlation: Array
    roughness: float
    inside: bool


@dataclass(frozen=True, eq=False)
class LikelihoodQuadratic:
    """Quadratics of n records in z = (p - center) / scale, through values at m points.

    Attributes:
        points: Points (m, np).
        values: Log-likelihoods (m, n) that are fitted: limited to -depth by `fit_quadratics`, not
            limited in `maximize`.
        center: Mean (np,) of the points.
        scale: Standard deviation (np,) of the points.
        constants: c (n,).
        gradients: g (n, np).
        curvatures: H (n, np, np).
        rests: What the quadratics leave of the values (m, n).
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
        """Return the top of the sum of some records.

        Args:
            records: Indices of the records; None for all.
            bounds: Lower and upper bounds (np, 2); None for none.

        Raises:
            SimulationError: Without bounds the sum has no top.
        """
        chosen = np.arange(self.values.shape[1]) if records is None else np.asarray(records)
        g, h = self.gradients[chosen], self.curvatures[chosen]
        slope, whole = g.sum(axis=0), h.sum(axis=0)
        rises = np.linalg.eigvalsh(whole)[0] <= 0.0
        if bounds is None and rises:
            raise SimulationError("the log-likelihood has no top: it is curved upwards somewhere")
        z, inner = self._solve_within(slope, whole, bounds)
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

    def _solve_within(
        self, slope: Array, whole: Array, bounds: Array | None
    ) -> tuple[Array, NDArray[np.intp]]:
        """Return the top z (np,) of a sum within bounds, and the indices that are at no bound."""
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

    def bootstrap(
        self,
        *,
        level: float = 0.9,
        draws: int = 1000,
        seed: int = 0,
        bounds: Array | None = None,
    ) -> Array:
        r"""Return intervals (np, 2) of the top by the bootstrap over records.

        Records are drawn anew with replacement, as many as there are, and every draw has its top;
        an interval lies between quantiles of these, widened about the top of all records. It
        contains what errors by the curvature do not: steps of the likelihood, and a model that is
        not quite right. Draws without a top are left out; where more than one in ten has none the
        intervals are NaN.

        Draws from m records have a variance that is small by (m - 1) / m, and normal quantiles; a
        mean with an estimated variance has those of Student's t. So distances from the top are
        multiplied by

        .. math:: \frac{t_{m-1}(\alpha)}{t_\infty(\alpha)} \sqrt{\frac{m}{m - 1}}, \qquad
            m = \frac{(\sum_r w_r)^2}{\sum_r w_r^2}, \quad w_r = (H^{-1} H_r H^{-1})_{ii},

        at the :math:`\alpha` of the interval's ends (Hesterberg, *What teachers should know about
        the bootstrap*, The American Statistician 69, 2015). With the m of parameter i, records that
        contain nothing about it do not count (Satterthwaite's degrees of freedom). Where m is
        below two, one record alone decides, and the interval is NaN.

        Args:
            level: Confidence of the intervals, between 0 and 1.
            draws: Number of draws.
            seed: Seed of the draws.
            bounds: Lower and upper bounds (np, 2) of the tops and of the intervals; None for none.

        Raises:
            InputError: An argument is out of its range.
            SimulationError: Without bounds the sum has no top.
        """
        if not check_number("level", level, above=0.0) < 1.0:
            raise InputError(f"level must be below 1, got {level}")
        check_count("draws", draws)
        n, rng = self.values.shape[1], np.random.default_rng(check_count("seed", seed, at_least=0))
        chosen = rng.integers(n, size=(draws, n))
        slopes, sums = self.gradients[chosen].sum(axis=1), self.curvatures[chosen].sum(axis=1)
        low, high = (-np.inf, np.inf) if bounds is None else bounds.T
        has_top = np.linalg.eigvalsh(sums)[:, 0] > 0.0
        if has_top.mean() < _MIN_SHARE_WITH_TOP:
            return np.full((len(self.center), 2), np.nan)
        moves = np.linalg.solve(sums[has_top], slopes[has_top, :, None])[:, :, 0]
        tops = self.center + self.scale * moves
        for k in np.flatnonzero(~((low <= tops) & (tops <= high)).all(axis=1)):
            tops[k] = self.top(chosen[has_top][k].tolist(), bounds).values
        ends = 0.5 - 0.5 * level, 0.5 + 0.5 * level
        top = self.top(bounds=bounds).values
        away = np.quantile(tops, ends, axis=0) - top
        return np.asarray(np.clip(top + self._find_widening(ends[1]) * away, low, high).T)

    def _find_widening(self, end: float) -> Array:
        """Return factors (np,) of the distances between the top and quantiles of draws.

        Args:
            end: Upper end of the interval as a probability.
        """
        h = self.curvatures
        inverse = np.linalg.pinv(h.sum(axis=0))
        weights = np.einsum("ij,rjk,ki->ri", inverse, h, inverse)
        squares = np.maximum((weights**2).sum(axis=0), np.finfo(float).tiny)
        m = weights.sum(axis=0) ** 2 / squares
        m = np.where(m < 2.0, np.nan, m)
        return np.asarray(student_t.ppf(end, m - 1.0) / norm.ppf(end) * np.sqrt(m / (m - 1.0)))

    def point_errors(self) -> Array:
        """Return standard errors (np,) of the top over points, by the jackknife.

        Raises:
            SimulationError: Without one of the points the sum has no top.
        """
        m = len(self.points)
        tops = []
        for k in range(m):
            rest = np.arange(m) != k
            tops.append(_solve_quadratics(self.points[rest], self.values[rest]).top().values)
        spread = np.array(tops) - np.mean(tops, axis=0)
        return np.asarray(np.sqrt((m - 1) / m * (spread**2).sum(axis=0)))

    def __call__(self, point: ArrayLike) -> float:
        """Return the sum of the quadratics at parameters.

        Args:
            point: The parameters (np,).
        """
        z = (check_array("point", point, (len(self.center),)) - self.center) / self.scale
        each = self.constants + self.gradients @ z - 0.5 * (self.curvatures @ z) @ z
        return float(each.sum())


def fit_quadratics(
    points: ArrayLike, log_likelihoods: ArrayLike, *, depth: float = 60.0
) -> LikelihoodQuadratic:
    """Return quadratics through log-likelihoods of records at points.

    Args:
        points: The points (m, np).
        log_likelihoods: Log-likelihoods (m, n) of n records; -inf where one could not be filtered.
        depth: How far below its largest value a log-likelihood is limited, see this module.

    Raises:
        InputError: There are not more points than a quadratic has coefficients, a log-likelihood is
            NaN or +inf, shapes do not fit, or `depth` is not positive.
        SimulationError: A record could be filtered at too few points for a quadratic.
    """
    p = check_array("points", points, (None, None))
    n = p.shape[1]
    coefficients = (n + 1) * (n + 2) // 2
    given = np.asarray(log_likelihoods, dtype=np.float64)
    if given.ndim != 2 or len(given) != len(p) or np.isnan(given).any() or (given == np.inf).any():
        raise InputError(
            f"log_likelihoods must have {len(p)} rows without NaN or +inf, got shape {given.shape}"
        )
    check_number("depth", depth, above=0.0)
    if len(p) <= coefficients:
        raise InputError(
            f"points must be more than the {coefficients} coefficients of a quadratic of {n} "
            f"parameters, got {len(p)}"
        )
    filtered = np.isfinite(given)
    if filtered.sum(axis=0).min() <= coefficients:
        k = int(filtered.sum(axis=0).argmin())
        raise SimulationError(
            f"record {k} could be filtered at {filtered[:, k].sum()} of {len(p)} points, and a "
            f"quadratic needs more than {coefficients}"
        )
    fall = np.where(filtered, given.max(axis=0) - np.where(filtered, given, 0.0), 0.0)
    return _solve_quadratics(p, np.where(filtered, -depth * np.tanh(fall / depth), -np.inf))


def _solve_quadratics(p: Array, values: Array) -> LikelihoodQuadratic:
    """Return the least-squares quadratics through the finite values at some points.

    Args:
        p: Points (m, np).
        values: Values (m, n); -inf where a record has none. There its quadratic leaves a rest of 0.

    Raises:
        SimulationError: The finite values of a record do not determine its quadratic.
    """
    n = p.shape[1]
    pairs = list(combinations_with_replacement(range(n), 2))
    center, scale = p.mean(axis=0), p.std(axis=0)
    z = (p - center) / scale
    features = np.column_stack([np.ones(len(z)), z, *(z[:, i] * z[:, j] for i, j in pairs)])
    filtered = np.isfinite(values)
    coefficients = np.linalg.lstsq(features, np.where(filtered, values, 0.0), rcond=None)[0]
    for k in np.flatnonzero(~filtered.all(axis=0)):
        own = filtered[:, k]
        found, _, rank, _ = np.linalg.lstsq(features[own], values[own, k], rcond=None)
        if rank < features.shape[1]:
            raise SimulationError(f"record {k} could be filtered at too few points for a quadratic")
        coefficients[:, k] = found
    h = np.zeros((values.shape[1], n, n))
    for row, (i, j) in zip(coefficients[1 + n :], pairs, strict=True):
        h[:, i, j] -= row
        h[:, j, i] -= row
    gradients = coefficients[1 : 1 + n].T
    rests = np.where(filtered, values, 0.0) - np.where(filtered, features @ coefficients, 0.0)
    return LikelihoodQuadratic(
        points=p,
        values=values,
        center=center,
        scale=scale,
        constants=coefficients[0],
        gradients=gradients,
        curvatures=h,
        rests=rests,
    )


@dataclass(frozen=True, eq=False)
class Maximum:
    """The result of `maximize`.

    Attributes:
        top: The top. Its errors are NaN for a parameter at a bound, and for one on which the
            likelihood does not depend.
        log_likelihoods: Log-likelihoods (n,) of the records there.
        at_bound: Flags (np,) of the parameters at a bound.
        evaluations: Number of evaluations.
        converged: Whether the last round gained so little that the search ended, see `tolerance` of
            `maximize`. False if it ended for want of evaluations or of new points.
    """

    top: Top
    log_likelihoods: Array
    at_bound: NDArray[np.bool_]
    evaluations: int
    converged: bool


def maximize(
    log_likelihoods: Callable[[Array], Array],
    start: Array,
    bounds: Array,
    steps: Array,
    *,
    tolerance: float = 0.05,
    max_evaluations: int = 400,
) -> Maximum:
    """Return the parameters of the largest sum of log-likelihoods, see this module.

    Args:
        log_likelihoods: Function of parameters (np,) that returns the log-likelihoods (n,) of n
            records, -inf where one could not be filtered.
        start: Parameters (np,) within the bounds.
        bounds: Lower and upper bounds (np, 2).
        steps: First long steps (np,).
        tolerance: Distance d in standard errors. The search ends when the quadratic's top gains at
            most d^2 / 2 over the center of the round. Where the sum is rough, a gain of at most its
            roughness or 0.1 ends it too, whichever is less; 0.1 is 0.45 standard errors.
        max_evaluations: Number of evaluations after which it ends, at least 1.

    Raises:
        InputError: `max_evaluations` is no whole number of at least 1.
        SimulationError: The sum is -inf at the start.
    """
    check_count("max_evaluations", max_evaluations)
    search = _TopSearch(log_likelihoods, max_evaluations, start, bounds, steps.copy())
    if not np.isfinite(search.total(start)):
        raise SimulationError(f"not every record could be filtered at the start {start.tolist()}")
    top, converged, known = _top_without_errors(start), False, 0
    try:
        search.take_long_steps()
        while not converged and known < len(search.known):
            known = len(search.known)
            top, gain = search.improve_by_quadratic()
            converged = gain <= max(0.5 * tolerance**2, min(top.roughness, _MAX_GAIN_LEFT))
    except _NoEvaluationsLeftError:
        pass
    if not converged:
        top = replace(top, values=search.best)
    low, high = bounds.T
    found = search.known[tuple(top.values.tolist())]
    at_bound = (top.values <= low) | (top.values >= high)
    return Maximum(top, found, at_bound, len(search.known), converged)


def _top_without_errors(values: Array) -> Top:
    """Return a top at parameters (np,) with errors that are NaN."""
    n = len(values)
    return Top(values, np.full(n, np.nan), np.full(n, np.nan), np.full((n, n), np.nan), 0.0, True)


class _NoEvaluationsLeftError(Exception):
    """Raised when the search has used all its evaluations."""


@dataclass(eq=False)
class _TopSearch:
    """The state of a search: `take_long_steps` once, then `improve_by_quadratic` in a loop.

    `total`, and the methods that call it, raise `_NoEvaluationsLeftError` where a new point would
    be evaluated after `most` evaluations.

    Attributes:
        function: Returns the log-likelihoods (n,) at parameters.
        most: Largest number of evaluations.
        best: Best point (np,) so far.
        bounds: Lower and upper bounds (np, 2).
        steps: Lengths (np,) of steps: long ones first, then about one standard error.
        known: Log-likelihoods (n,) by point.
    """

    function: Callable[[Array], Array]
    most: int
    best: Array
    bounds: Array
    steps: Array
    known: dict[tuple[float, ...], Array] = field(default_factory=dict)

    def total(self, point: Array) -> float:
        """Return the sum at a point (np,), and update the best point.

        Raises:
            _NoEvaluationsLeftError: The point is new and the search has used all its evaluations.
        """
        key = tuple(point.tolist())
        if key not in self.known:
            if len(self.known) == self.most:
                raise _NoEvaluationsLeftError
            self.known[key] = self.function(point)
            if self.known[key].sum() > self.known[tuple(self.best.tolist())].sum() + _FLAT_FALL:
                self.best = point
        return float(self.known[key].sum())

    def take_long_steps(self) -> None:
        """Move the best point by long steps, all twice as long after a gain, else half."""
        shortest = _MIN_LONG_STEP * self.steps
        while (self.steps > shortest).any():
            before = self.best
            for i, sign in product(range(len(before)), _SIGNS):
                self.total(self._step_from(self.best, [i], sign))
            self.steps *= 0.5 if self.best is before else 2.0

    def improve_by_quadratic(self) -> tuple[Top, float]:
        """Return the top of a quadratic around the best point, and its gain by the quadratic.

        The best point moves to the top if that is better.
        """
        free = np.array(
            [i for i in range(len(self.best)) if self._fit_step(i) > _FLAT_FALL], dtype=int
        )
        found = _top_without_errors(self.best)
        if not len(free):
            return found, 0.0
        (quadratic, has_failed), center = self._fit_around_best(free), self.best[free]
        for size in _REGIONS:
            box = center + size * self.steps[free] * np.array(_SIGNS)[:, None]
            top = quadratic.top(bounds=np.clip(box, *self.bounds[free].T).T)
            values = self.best.copy()
            values[free], before = top.values, self.best
            gain = quadratic(top.values) - quadratic(center)
            self.total(values)
            if self.best is not before or gain <= _MIN_FALL:
                break
        # Values that replace -inf are no log-likelihoods: the curvature through them is no error.
        if not has_failed:
            found.standard_errors[free], found.record_errors[free] = (
                top.standard_errors, top.record_errors
            )  # fmt: skip
            found.correlation[np.ix_(free, free)] = top.correlation
        return replace(found, values=values, roughness=top.roughness, inside=top.inside), gain

    def _fit_step(self, i: int) -> float:
        """Return how far the sum falls on both sides by a step of one parameter.

        The step is made about one standard error long.
        """
        low, high = self.bounds[i]
        longest, fall = 0.5 * float(high - low), 0.0
        for _ in range(_MAX_LENGTH_TRIALS):
            self.steps[i] = min(self.steps[i], longest)
            before, center = self.best, self._center_of_steps([i])
            ends = [self.total(self._step_from(center, [i], sign)) for sign in _SIGNS]
            fall = self.total(center) - 0.5 * sum(ends)
            moved = before is not self.best
            cannot_grow = self.steps[i] == longest and not moved
            if _MIN_FALL <= fall <= _MAX_FALL or (cannot_grow and fall < _MIN_FALL):
                break
            wanted = np.sqrt(0.5 / fall) if fall > 0.0 else _MAX_LENGTH_FACTOR
            # A step that has found a better point is on a slope: uphill with longer steps.
            least = 2.0 if moved else 1.0 / _MAX_LENGTH_FACTOR
            self.steps[i] *= float(np.clip(wanted, least, _MAX_LENGTH_FACTOR))
        return fall

    def _center_of_steps(self, free: Sequence[int]) -> Array:
        """Return the best point, moved so that steps of some parameters stay within the bounds."""
        center: Array = self.best.copy()
        low, high = self.bounds[free].T
        center[free] = np.clip(center[free], low + self.steps[free], high - self.steps[free])
        return center

    def _step_from(self, center: Array, chosen: Sequence[int], sign: float = 1.0) -> Array:
        """Return the point a step of some parameters away from a center, within the bounds."""
        moved = center.copy()
        moved[list(chosen)] += sign * self.steps[list(chosen)]
        return np.asarray(np.clip(moved, *self.bounds.T))

    def _fit_around_best(self, free: NDArray[np.intp]) -> tuple[LikelihoodQuadratic, bool]:
        """Return quadratics through steps on both sides, for each pair, and points nearby.

        Args:
            free: Indices of the parameters on which the sum depends.

        Returns:
            The quadratics, and whether a record failed at a point and counts there as worse than at
            any other. Records that fail at all points count as zero.
        """
        center = self._center_of_steps(free.tolist())
        moves = [*combinations(free.tolist(), 1), *combinations(free.tolist(), 2)]
        self.total(center)
        for chosen, sign in product(moves, _SIGNS):
            self.total(self._step_from(center, chosen, sign))
        points, values = np.array(list(self.known)), np.array(list(self.known.values()))
        near = (np.abs(points - center)[:, free] <= _REUSE_DISTANCE * self.steps[free]).all(axis=1)
        finite = np.isfinite(values[near])
        worst = np.where(finite, values[near], np.inf).min(axis=0) - _FAILED_RECORD
        filled = np.where(finite, values[near], np.where(np.isfinite(worst), worst, 0.0))
        return _solve_quadratics(points[near][:, free], filled), not finite.all()
