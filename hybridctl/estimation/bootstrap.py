r"""Intervals of identified parameters by a bootstrap over records.

The curvature of a likelihood with impacts is no measure of what is known: the sum is rough at the
scale of its standard errors, and no model is quite right. So the likelihood of every record is
taken at points all over a box around the top, each record has its quadratic there, and records are
drawn anew: the spread of the tops is that of other sets of records,

.. math:: \hat z^* = \Bigl( \sum_{r \in R^*} H_r \Bigr)^{-1} \sum_{r \in R^*} g_r,

widened for few records, see `LikelihoodQuadratic.bootstrap`. Draws need no further runs of the
filter; the points do.

In a box that is much wider than the errors the likelihood is no quadratic, and its third order
moves the top: that of friction in twelve tosses of a ball by 0.7 standard errors on average of
seven sets, in a box that is twelve of them wide on each side. In one that is too small the hill is
lower than it is rough. So the box is made again around the top until its half width suits both, to
within a factor of two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import qmc

from hybridctl.base.checks import Array, check_count, check_number
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.estimation.identification import MIN_SANDWICH_RECORDS, Identification, Problem
from hybridctl.estimation.likelihood_quadratic import LikelihoodQuadratic, fit_quadratics

_BOX_SHARE = 0.1
"""Half width of the first box of a parameter without a standard error, relative to the distance of
its bounds. A choice."""
_MAX_BOXES = 10
"""Boxes of points that are tried. A choice; most problems need one to three."""
_MIN_WIDTH_RATIO, _MAX_WIDTH_RATIO = 0.5, 1.25
"""Least and largest half width that is asked, relative to that of a box which is taken: a wide one
does less harm. A choice."""
_HILL_RATIO = 4.0
"""Least height of the hill at the sides of the box, relative to its roughness. With 18 points of
two parameters the curvature then has a relative error of 0.2."""
_MAX_WIDENING = 4.0
"""Largest half width that roughness may ask for, relative to `width`. A choice."""
_MAX_CHANGE = 8.0
"""Factor by which a half width changes at most from one box to the next. A choice."""


@dataclass(frozen=True, eq=False)
class BootstrapInterval:
    """An interval of a parameter by the bootstrap.

    Attributes:
        name: Name of the parameter.
        value: Top of the quadratic through all records.
        low: Lower end; NaN if too many draws have no top, or one record alone decides.
        high: Upper end, or NaN.
    """

    name: str
    value: float
    low: float
    high: float


def bootstrap_parameters(
    problem: Problem,
    found: Identification,
    *,
    level: float = 0.9,
    points: int | None = None,
    width: float = 4.0,
    draws: int = 1000,
    seed: int = 0,
) -> tuple[BootstrapInterval, ...]:
    """Return intervals of all parameters by a bootstrap over the records of a problem.

    Args:
        problem: Parameters, model and at least ten records.
        found: The most likely parameters, from which the first box of points is made.
        level: Confidence of the intervals, between 0 and 1.
        points: Number of points of a box, more than the coefficients of a quadratic; None for three
            times as many as these. Up to ten boxes are evaluated.
        width: Half width of the box in standard errors, the larger of those by curvature and over
            records. Where the sum is rough the box is wider.
        draws: Number of draws of records.
        seed: Seed of points and draws.

    Returns:
        An interval for each parameter, in the order of `problem.names`.

    Raises:
        InputError: An argument is out of its range, or there are fewer than ten records.
        SimulationError: A record could be filtered at too few points, or no box of points suits
            the likelihood.
    """
    n = len(problem.names)
    if len(problem.records) < MIN_SANDWICH_RECORDS:
        raise InputError(
            f"problem must have {MIN_SANDWICH_RECORDS} records at least, from which others are "
            f"drawn, got {len(problem.records)}"
        )
    check_number("width", width, above=0.0)
    if not check_number("level", level, above=0.0) < 1.0:
        raise InputError(f"level must be below 1, got {level}")
    check_count("draws", draws)
    check_count("seed", seed, at_least=0)
    coefficients = (n + 1) * (n + 2) // 2
    count = 3 * coefficients
    if points is not None:
        count = check_count("points", points, at_least=coefficients + 1)
    surface = _fit_surface(problem, found, count, width, seed)
    intervals = surface.bootstrap(level=level, draws=draws, seed=seed, bounds=problem.bounds)
    top = surface.top(bounds=problem.bounds).values
    return tuple(
        BootstrapInterval(name, float(value), float(ends[0]), float(ends[1]))
        for name, value, ends in zip(problem.names, top, intervals, strict=True)
    )


def _fit_surface(
    problem: Problem, found: Identification, count: int, width: float, seed: int
) -> LikelihoodQuadratic:
    """Return the quadratics through the points of a box that suits them.

    Args:
        problem: Parameters, model and records.
        found: The most likely parameters.
        count: Number of points of a box.
        width: Least half width of the box in standard errors.
        seed: Seed of the points.

    Raises:
        SimulationError: No box suits them.
    """
    bounds = problem.bounds
    sequence = qmc.Sobol(len(problem.names), seed=seed).random_base2((count - 1).bit_length())
    center, spans = found.values, np.diff(bounds).ravel()
    lengths = np.array(
        [
            width * max(p.standard_error, p.robust_error or 0.0)
            if p.standard_error
            else _BOX_SHARE * span
            for p, span in zip(found.parameters, spans, strict=True)
        ]
    )
    for _ in range(_MAX_BOXES):
        low = np.maximum(center - lengths, bounds[:, 0])
        high = np.minimum(center + lengths, bounds[:, 1])
        chosen = qmc.scale(sequence[:count], low, high)
        values = np.array([problem.evaluate(point).log_likelihoods for point in chosen])
        surface = fit_quadratics(chosen, values)
        h = surface.curvatures.sum(axis=0)
        if np.linalg.eigvalsh(h)[0] <= 0.0:
            lengths = np.minimum(2.0 * lengths, spans)  # there is no hill at this scale
            continue
        top = surface.top(bounds=np.column_stack([low, high]))
        at_bound = (top.values <= bounds[:, 0]) | (top.values >= bounds[:, 1])
        is_beyond = ((top.values <= low) | (top.values >= high)) & ~at_bound
        # At a bound or a side of the box there is no error but that with all others held constant.
        alone = surface.scale / np.sqrt(np.diag(h))
        curved = np.where(np.isfinite(top.standard_errors), top.standard_errors, alone)
        least = np.sqrt(2.0 * _HILL_RATIO * top.roughness)
        if least > _MAX_WIDENING * width:
            # Far too wide a box leaves a rest as well: see whether that is less in a smaller one.
            center, lengths = top.values, 0.5 * lengths
            continue
        wanted = np.fmax(max(width, least) * curved, width * top.record_errors)
        wanted = np.where(is_beyond, np.maximum(wanted, lengths), wanted)
        ratios = np.minimum(wanted, spans) / lengths
        if not is_beyond.any() and _is_taken(ratios):
            return surface
        center = top.values
        lengths = lengths * np.clip(ratios, 1.0 / _MAX_CHANGE, _MAX_CHANGE)
    raise SimulationError(
        f"of {_MAX_BOXES} boxes of points none suits the likelihood: it has no hill that is higher "
        f"than it is rough, or found is too far from its top"
    )


def _is_taken(ratios: Array) -> bool:
    """Return whether a box is taken, by the ratios of the half widths asked to those it has."""
    return bool(((ratios <= _MAX_WIDTH_RATIO) & (ratios >= _MIN_WIDTH_RATIO)).all())
