r"""Linear equations z' = A(t) z + b(t) along a time, in steps as long as a tolerance allows.

Steps are those of `propagation` with seven stages. The polynomial of a step, of degree 7, is its
record. Its last coefficients tell whether it resolves the solution, and its slope at the start of
the step, where no stage is, whether a kink of A or b hides before the first stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import IntegrationError
from hybridctl.hybrid.series import NODES, TO_SERIES, TO_SLOPES, basis
from hybridctl.hybrid.step import Step
from hybridctl.sensitivity.propagation import LinearStep, radau

Equation = Callable[[float], tuple[Array, Array | None]]

_STAGES = 7
_RADAU = radau(_STAGES)
_FIRST = 0.1  # of the duration
_SPACINGS = 16.0  # of numbers at t: a first step is no shorter
_ROUNDING = 4.0 * np.finfo(np.float64).eps  # of the largest entry
_SLOPE_ROUNDING = 2.0 * _ROUNDING * float(np.abs(TO_SLOPES[0]).sum())  # of a slope, times h
_SAFETY, _SHRINK, _GROW = 0.8, 0.1, 8.0
_BEFORE_LAST = 0.1  # weight of the coefficient before the last

FIRST_POINT = float(_RADAU.points[0])  # of a step
_TO_NODES = basis(NODES) @ np.linalg.inv(basis(2.0 * np.concatenate(([0.0], _RADAU.points)) - 1.0))


def collocated(
    equation: Equation,
    start: Array,
    t: float,
    end: float,
    *,
    rtol: float,
    atol: float,
    first: float = 0.0,
    leap: float = 0.0,
) -> Iterator[Step]:
    """Steps from z = start (n, k) at t to `end`, each with its states at Chebyshev points.

    These are (8, n k), the entries of z.

    equation(t): A (n, n), and b (n,), added to each column, or (n, k), or None. The steps are as
    short as atol + rtol |z| asks of every entry, at their Chebyshev points. first: a length on
    which A and b are smooth, which is tried first if it is more than a tenth of the whole.
    leap: the length of the first step if it is to be taken as it comes, where z decays at once to
    what follows A smoothly, at a rate that A is not accurate enough to follow; 0 otherwise.
    Raises `IntegrationError` where steps collapse.
    """
    shortest = _SPACINGS * math.ulp(max(abs(t), abs(end)))
    h, leaps = leap or max(_FIRST * (end - t), first, shortest), leap > 0.0
    z = start.ravel()
    rate: Array | None = None
    while t < end:
        last = t + h >= end
        step_end = end if last else t + h
        if not step_end > t:
            raise IntegrationError(
                f"the perturbations change faster than steps of {h:.3g} s resolve at t = {t:.9g} s"
            )
        flat, rate_after = _step(equation, z.reshape(start.shape), t, step_end)
        length = step_end - t
        series = np.abs(TO_SERIES @ flat)
        largest = np.abs(flat).max(axis=0)
        error = series[-1] + _BEFORE_LAST * series[-2]
        if rate is not None:
            defect = 2.0 * (TO_SLOPES[0] @ flat) - length * rate
            noise = _SLOPE_ROUNDING * largest.max(initial=0.0)
            error += FIRST_POINT * np.maximum(np.abs(defect) - noise, 0.0)
        allowed = atol + rtol * largest + _ROUNDING * largest.max(initial=0.0)
        ratio = float((error / allowed).max(initial=0.0))
        if ratio <= 1.0 or leaps:
            yield Step(t, step_end, flat, np.zeros((8, 0)))
            t, z, rate, leaps = step_end, flat[-1], rate_after, False
        change = _SAFETY * max(ratio, 1e-300) ** (-1.0 / _STAGES)
        h = length * min(_GROW, max(_SHRINK, change))


def _step(equation: Equation, z: Array, t: float, end: float) -> tuple[Array, Array]:
    """One step from z (n, k): (8, n k) at the Chebyshev points, the rates (n k,) at its end."""
    n, k = z.shape
    times = (t + (end - t) * _RADAU.points).tolist()
    found = [equation(time) for time in times]
    step = LinearStep(np.array([matrix for matrix, _ in found]), end - t, _RADAU)
    forces = None
    if found[0][1] is not None:
        forces = np.empty((len(found), n, k))
        for i, (_, force) in enumerate(found):
            forces[i] = np.reshape(force, (n, -1))  # type: ignore[arg-type]
    stages = step.stages(z, forces)
    rates = step.matrices[-1] @ stages[-1]
    if forces is not None:
        rates += forces[-1]
    values = _TO_NODES @ np.vstack((z.ravel(), stages.reshape(len(stages), n * k)))
    values[0], values[-1] = z.ravel(), stages[-1].ravel()
    return np.asarray(values), rates.ravel()
