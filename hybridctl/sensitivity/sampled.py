"""Coefficients of the variational equation along an arc, sampled once and kept as polynomials.

For what asks for A(t) and B(t) many times, such as a Riccati equation: a polynomial costs a
product of matrices, a Jacobian of a robot in contact a hundred times that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.polynomial import chebyshev

from hybridctl.checks import Array
from hybridctl.hybrid.trajectory import Arc
from hybridctl.sensitivity.variation import Coefficients

At = Callable[[float], Coefficients]

_DEGREE = 10
_ORDERS = np.arange(_DEGREE + 1)
_NODES: Array = -np.cos(np.pi * _ORDERS / _DEGREE)
_TO_SERIES: Array = np.asarray(
    np.linalg.inv(chebyshev.chebvander(_NODES, _DEGREE)), dtype=np.float64
)


@dataclass(frozen=True, eq=False)
class SampledCoefficients:
    """A and B at times of an arc, from one Chebyshev series for each of its steps.

    Step k lasts from cuts[k] to cuts[k + 1]. series[k] are the coefficients of A and B
    (11, ndx, ndx + nu), None where they would not be accurate: `exact` is asked there.
    """

    exact: At
    cuts: tuple[float, ...]
    series: tuple[Array | None, ...]

    def __call__(self, t: float) -> Coefficients:
        """A (ndx, ndx) and B (ndx, nu) at time t."""
        k = min(max(bisect_right(self.cuts, t) - 1, 0), len(self.series) - 1)
        series = self.series[k] if self.series else None
        if series is None:
            return self.exact(t)
        start, end = self.cuts[k], self.cuts[k + 1]
        s = min(1.0, max(-1.0, 2.0 * (t - start) / (end - start) - 1.0))
        both = np.tensordot(np.cos(np.arccos(s) * _ORDERS), series, axes=1)
        n = len(both)
        return Coefficients(both[:, :n], both[:, n:])


def sampled_coefficients(exact: At, arc: Arc, rtol: float) -> SampledCoefficients:
    """The coefficients `exact` along an arc, to rtol of the largest entries of A and of B.

    On a step of the arc its record is a polynomial, so that they are smooth.
    """
    cuts = (*(t for t in arc.breaks.tolist() if t < arc.end), arc.end)
    series = tuple(_series(exact, start, end, rtol) for start, end in pairwise(cuts))
    return SampledCoefficients(exact, cuts, series)


def _series(exact: At, start: float, end: float, rtol: float) -> Array | None:
    """The series between two times, or None if its last coefficients are not small."""
    found = [exact(t) for t in (start + 0.5 * (end - start) * (_NODES + 1.0)).tolist()]
    both = []
    for values in (np.array([c.state for c in found]), np.array([c.input for c in found])):
        series = np.tensordot(_TO_SERIES, values, axes=1)
        last = float(np.abs(series[-2:]).max(initial=0.0))
        if not last <= rtol * float(np.abs(values).max(initial=0.0)):
            return None
        both.append(series)
    return np.concatenate(both, axis=2)
