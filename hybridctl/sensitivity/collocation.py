r"""Linear equations z' = A(t) z + b(t) by collocation: Radau IIA with seven stages.

A step of length h solves for the values at the Radau points,

.. math:: Z_i = z_0 + h \sum_j a_{ij} (A_j Z_j + b_j),

all at once, because the equation is linear. It damps what decays within a step at any rate, and its
polynomial, of degree 7, is the record of the step (Hairer, Wanner: Solving Ordinary Differential
Equations II, IV.5). Its last coefficients tell whether it resolves the solution, and its slope at
the start of the step, where no stage is, whether a kink of A or b hides before the first stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.polynomial import legendre

from hybridctl.checks import Array
from hybridctl.errors import IntegrationError
from hybridctl.hybrid.series import NODES, TO_SERIES, TO_SLOPES, basis
from hybridctl.hybrid.step import Step

Equation = Callable[[float], tuple[Array, Array | None]]

_STAGES = 7
_FIRST = 0.1  # of the duration
_SPACINGS = 16.0  # of numbers at t: a first step is no shorter
_ROUNDING = 4.0 * np.finfo(np.float64).eps  # of the largest entry
_SLOPE_ROUNDING = 2.0 * _ROUNDING * float(np.abs(TO_SLOPES[0]).sum())  # of a slope, times h
_SAFETY, _SHRINK, _GROW = 0.8, 0.1, 8.0
_BEFORE_LAST = 0.1  # weight of the coefficient before the last


def _radau() -> tuple[Array, Array]:
    """Points in (-1, 1], and the integrals (s, s) from -1 to each of the Lagrange polynomials."""
    difference = np.zeros(_STAGES + 1)
    difference[-2:] = -1.0, 1.0
    points = np.sort(legendre.legroots(difference).real)
    points[-1] = 1.0
    lagrange = np.linalg.inv(legendre.legvander(points, _STAGES - 1))
    integrals = legendre.legvander(points, _STAGES) @ legendre.legint(lagrange, lbnd=-1.0)
    return points, np.asarray(integrals, dtype=np.float64)


_POINTS, _INTEGRALS = _radau()
FIRST_POINT = float(0.5 * (_POINTS[0] + 1.0))  # of a step
_TO_NODES = basis(NODES) @ np.linalg.inv(basis(np.concatenate(([-1.0], _POINTS))))


def collocated(
    equation: Equation,
    start: Array,
    t: float,
    end: float,
    *,
    rtol: float,
    atol: float,
    leap: float = 0.0,
) -> Iterator[Step]:
    """Steps from z = start (n, k) at t to `end`, each with its states (8, n k) at Chebyshev points.

    equation(t): A (n, n), and b (n,), added to each column, or (n, k), or None. The steps are as
    short as atol + rtol |z| asks of every entry, at their Chebyshev points. leap: the length of
    the first step if it is to be taken as it comes, where z decays at once to what follows A
    smoothly, at a rate that A is not accurate enough to follow; 0 otherwise. Raises
    `IntegrationError` where steps collapse.
    """
    shortest = _SPACINGS * math.ulp(max(abs(t), abs(end)))
    z, h, leaps = start, leap or max(_FIRST * (end - t), shortest), leap > 0.0
    rate: Array | None = None
    while t < end:
        last = t + h >= end
        step_end = end if last else t + h
        if not step_end > t:
            raise IntegrationError(
                f"the perturbations change faster than steps of {h:.3g} s resolve at t = {t:.9g} s"
            )
        values, rate_after = _step(equation, z, t, step_end)
        length = step_end - t
        flat = values.reshape(len(values), -1)
        series = np.abs(TO_SERIES @ flat)
        largest = np.abs(flat).max(axis=0)
        error = series[-1] + _BEFORE_LAST * series[-2]
        if rate is not None:
            defect = 2.0 * (TO_SLOPES[0] @ flat) - length * rate.ravel()
            noise = _SLOPE_ROUNDING * largest.max(initial=0.0)
            error += FIRST_POINT * np.maximum(np.abs(defect) - noise, 0.0)
        allowed = atol + rtol * largest + _ROUNDING * largest.max(initial=0.0)
        ratio = float((error / allowed).max(initial=0.0))
        if ratio <= 1.0 or leaps:
            yield Step(t, step_end, flat, np.zeros((8, 0)))
            t, z, rate, leaps = step_end, values[-1], rate_after, False
        change = _SAFETY * max(ratio, 1e-300) ** (-1.0 / _STAGES)
        h = length * min(_GROW, max(_SHRINK, change))


def _step(equation: Equation, z: Array, t: float, end: float) -> tuple[Array, Array]:
    """One step from z (n, k): (8, n, k) at the Chebyshev points, and z' (n, k) at its end."""
    n, k = z.shape
    half = 0.5 * (end - t)
    system, constant = np.eye(_STAGES * n), np.tile(z, (_STAGES, 1))
    for j, point in enumerate(_POINTS):
        matrix, force = equation(t + half * (point + 1.0))
        weights = half * _INTEGRALS[:, j]
        system[:, j * n : (j + 1) * n] -= np.kron(weights[:, None], matrix)
        if force is not None:
            constant += np.kron(weights[:, None], force.reshape(n, -1))
    stages = np.linalg.solve(system, constant).reshape(_STAGES, n, k)
    known = np.concatenate((z[None], stages))
    values = np.tensordot(_TO_NODES, known, axes=1)
    values[0], values[-1] = z, stages[-1]
    rate = matrix @ stages[-1]
    return np.asarray(values), rate if force is None else rate + force.reshape(n, -1)
