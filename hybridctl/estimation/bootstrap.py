r"""Intervals of identified parameters by a bootstrap over records.

The curvature of a likelihood with impacts is no measure of what is known: the sum is rough at the
scale of its standard errors, and no model is quite right. So the likelihood of every record is
taken at points all over a box that is some standard errors wide, each record has its quadratic
there, and records are drawn anew: the spread of the tops is that of other sets of records. It needs
no further runs of the filter.

.. math:: \hat z^* = \Bigl( \sum_{r \in R^*} H_r \Bigr)^{-1} \sum_{r \in R^*} g_r,
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import qmc

from hybridctl.base.checks import check_count, check_number
from hybridctl.base.errors import InputError
from hybridctl.estimation.identification import MIN_SANDWICH_RECORDS, Identification, Problem
from hybridctl.estimation.likelihood_quadratic import LikelihoodQuadratic, fit_quadratics

_BOX_SHARE = 0.1
"""Half width of the box of a parameter without a standard error, relative to the distance of its
bounds. A choice."""


@dataclass(frozen=True, eq=False)
class BootstrapInterval:
    """An interval of a parameter by the bootstrap.

    Attributes:
        name: Name of the parameter.
        value: Top of the quadratic through all records.
        low: Lower end; NaN if too many draws have no top.
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
        found: The most likely parameters.
        level: Confidence of the intervals.
        points: Number of evaluated points; None for three times the coefficients of a quadratic.
        width: Half width of the box of points in standard errors, the larger of those by curvature
            and over records: wide enough that the hill is higher than it is rough.
        draws: Number of draws of records.
        seed: Seed of points and draws.

    Raises:
        InputError: An argument is out of its range, or there are fewer than ten records.
        SimulationError: The likelihood of all records has no top, or no record could be filtered at
            a point.
    """
    n = len(problem.names)
    if len(problem.records) < MIN_SANDWICH_RECORDS:
        raise InputError(
            f"problem must have {MIN_SANDWICH_RECORDS} records at least, from which others are "
            f"drawn, got {len(problem.records)}"
        )
    check_number("width", width, above=0.0)
    coefficients = (n + 1) * (n + 2) // 2
    count = 3 * coefficients if points is None else check_count("points", points)
    lengths = np.array(
        [
            width * max(p.standard_error, p.robust_error or 0.0)
            if p.standard_error
            else _BOX_SHARE * (high - low)
            for p, (low, high) in zip(found.parameters, problem.bounds, strict=True)
        ]
    )
    low = np.maximum(found.values - lengths, problem.bounds[:, 0])
    high = np.minimum(found.values + lengths, problem.bounds[:, 1])
    sequence = qmc.Sobol(n, seed=seed).random_base2((count - 1).bit_length())[:count]
    chosen = qmc.scale(sequence, low, high)
    values = np.array([problem.evaluate(point).log_likelihoods for point in chosen])
    surface: LikelihoodQuadratic = fit_quadratics(chosen, values)
    intervals = surface.bootstrap(level=level, draws=draws, seed=seed, bounds=problem.bounds)
    top = surface.top(bounds=problem.bounds).values
    return tuple(
        BootstrapInterval(name, float(value), float(ends[0]), float(ends[1]))
        for name, value, ends in zip(problem.names, top, intervals, strict=True)
    )
