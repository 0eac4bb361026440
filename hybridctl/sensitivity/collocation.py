r"""Linear equations along a time, in steps as long as a tolerance allows.

Of :math:`\dot z = A z + b` there is a record, and of :math:`\dot x = A x + w` with white noise w of
density S the map and the covariance. Both go by the same steps, those of `propagation` with seven
stages. The polynomial of a step, of degree 7, is its record. Its last coefficients tell whether it
resolves the solution, and its slope at the start of the step, where no stage is, whether a kink of
A or b hides before the first stage.

A step gathers noise as the sum of what arrives from its s points. The last coefficient of that is
of order :math:`h^{s-1}`, the error of the sum of order :math:`h^{2s-1}`: the power of both stands
for it. The map differs from the identity by such a sum, too, of A that arrives. Over so short a
time that both are right to the tolerance, one step of four points takes the place of seven.

Errors count beside what is carried, so that directions that have decayed are not resolved again in
each step. Halving steps of four points until each was right by itself took 231,500 evaluations for
a mass that breaks away with noise, where these take 564, and 196 for a pendulum over 1 s (123). For
noise that jumps it took 78 where these take 122, and they miss a quarter of what it missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from hybridctl.base.checks import Array
from hybridctl.base.errors import IntegrationError
from hybridctl.hybrid.series import NODES, TO_SERIES, TO_SLOPES, basis
from hybridctl.hybrid.step import Step
from hybridctl.sensitivity.propagation import LinearStep, Propagation, radau, symmetric_part

Equation = Callable[[float], tuple[Array, Array | None]]

_STAGES = 7
_RADAU = radau(_STAGES)
_FIRST = 0.1  # of the duration
_SPACINGS = 16.0  # of numbers at t: a first step is no shorter
_ROUNDING = 4.0 * np.finfo(np.float64).eps  # of the largest entry
_SLOPE_ROUNDING = 2.0 * _ROUNDING * float(np.abs(TO_SLOPES[0]).sum())  # of a slope, times h
_SAFETY, _SHRINK, _GROW = 0.8, 0.1, 8.0
_BEFORE_LAST = 0.1  # weight of the coefficient before the last
_FAR = 50.0  # times: how far the power of the last coefficient is above the error, at the least
_BRIEF = 2.0**-10  # of the duration: within this, noise may jump
_UNIT_ROUNDING = 1e-14  # of maps and covariances: what is this small need not be right

SHORT = radau(4)  # one step over a short time
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
    for step, _ in _steps(equation, start, None, t, end, rtol, atol, first, leap):
        yield step


def gathered(
    equation: Equation,
    total: Propagation,
    t: float,
    end: float,
    *,
    rtol: float,
    atol: float,
    first: float = 0.0,
    leap: float = 0.0,
) -> Propagation:
    """The propagation of the time before t and on to `end`, without W; see `collocated`.

    equation(t): A (n, n) and the density S (n, n) of the noise, which is to be right to rtol of the
    largest entry of all that is gathered.
    """
    state, noise = total.state, total.noise
    for step, after in _steps(equation, state, noise, t, end, rtol, atol, first, leap):
        assert after is not None
        state, noise = step.states[-1].reshape(state.shape), after
    return Propagation(state, noise, total.cost)


def in_one_step(
    matrices: Array, densities: Array, h: float, rtol: float, beside: float
) -> tuple[Propagation, float]:
    """The propagation of a step of length h, and its error in units of the tolerance.

    matrices, densities: A and S (4, n, n) at the points `SHORT`. beside: the largest entry of a
    covariance to whose rounding the noise need not be right.
    """
    step, n = LinearStep(matrices, h, SHORT), matrices.shape[-1]
    arriving = step.arriving(densities)
    found = Propagation(step.to_end[0], _sum(step, arriving), np.zeros((n, n)))
    grown, noise = _largest(found.state - np.eye(n)), _largest(found.noise)
    allowed = rtol * grown + _UNIT_ROUNDING, rtol * noise + _UNIT_ROUNDING * beside
    missed = _missed(step, step.to_end[1:] @ matrices), _missed(step, arriving)
    ratio = max(m / a if m else 0.0 for m, a in zip(missed, allowed, strict=True))
    return found, ratio


def longer(h: float, ratio: float) -> float:
    """The length of a step that is to be right, after one of length h with this error."""
    change = _SAFETY * max(ratio, 1e-300) ** (-1.0 / _STAGES)
    return float(h * min(_GROW, max(_SHRINK, change)))


def _steps(
    equation: Equation,
    start: Array,
    noise: Array | None,
    t: float,
    end: float,
    rtol: float,
    atol: float,
    first: float,
    leap: float,
) -> Iterator[tuple[Step, Array | None]]:
    """Steps, each with the noise (n, n) gathered by its end, if noise was before.

    Where noise was missed, lengths are halved towards the end of that step, as it may jump there.
    """
    spacing = math.ulp(max(abs(t), abs(end)))
    h, leaps = leap or max(_FIRST * (end - t), first, _SPACINGS * spacing), leap > 0.0
    brief, jump = _BRIEF * (end - t), t
    z, refused = start.ravel(), math.inf
    rate: Array | None = None
    while t < end:
        if t < jump:
            h = min(h, max(0.5 * (jump - t), brief))
        step_end = min(t + h, end)
        if h < spacing or not t < step_end < refused:  # rounded, it may be as long as before
            raise IntegrationError(
                f"the perturbations change faster than steps of {h:.3g} s resolve at t = {t:.9g} s"
            )
        length = step_end - t
        found = [equation(time) for time in (t + length * _RADAU.points).tolist()]
        step = LinearStep(np.array([matrix for matrix, _ in found]), length, _RADAU)
        forces = _forces(found, start.shape) if noise is None else None
        flat, rate_after = _record(step, z.reshape(start.shape), forces)
        ratio = _unresolved(flat, None if rate is None else length * rate, rtol, atol)
        after, missed = None, 0.0
        if noise is not None:
            after, missed = _noise(step, np.array([density for _, density in found]), noise)
        if missed > rtol and length > brief:
            ratio, jump = max(ratio, missed / rtol), step_end
        refused = step_end
        if ratio <= 1.0 or leaps:
            yield Step(t, step_end, flat, np.zeros((8, 0))), after
            t, z, rate, noise, leaps = step_end, flat[-1], rate_after, after, False
            refused = math.inf
        h = longer(length, ratio)


def _forces(found: list[tuple[Array, Array | None]], shape: tuple[int, ...]) -> Array | None:
    """The forces (s, n, k) at the stages, if there are any."""
    if found[0][1] is None:
        return None
    forces = np.empty((len(found), *shape))
    for i, (_, force) in enumerate(found):
        forces[i] = np.reshape(force, (shape[0], -1))  # type: ignore[arg-type]
    return forces


def _record(step: LinearStep, z: Array, forces: Array | None) -> tuple[Array, Array]:
    """A step from z (n, k): (8, n k) at the Chebyshev points, the rates (n k,) at its end."""
    stages = step.stages(z, forces)
    rates = step.matrices[-1] @ stages[-1]
    if forces is not None:
        rates += forces[-1]
    values = _TO_NODES @ np.vstack((z.ravel(), stages.reshape(len(stages), z.size)))
    values[0], values[-1] = z.ravel(), stages[-1].ravel()
    return np.asarray(values), rates.ravel()


def _unresolved(flat: Array, slope: Array | None, rtol: float, atol: float) -> float:
    """The error of a record (8, n k) in units of the tolerance.

    slope (n k,): of the step before, at the start of this one, in a step of this length.
    """
    series = np.abs(TO_SERIES @ flat)
    largest = np.abs(flat).max(axis=0)
    error = series[-1] + _BEFORE_LAST * series[-2]
    if slope is not None:
        defect = 2.0 * (TO_SLOPES[0] @ flat) - slope
        noise = _SLOPE_ROUNDING * largest.max(initial=0.0)
        error += FIRST_POINT * np.maximum(np.abs(defect) - noise, 0.0)
    allowed = atol + rtol * largest + _ROUNDING * largest.max(initial=0.0)
    return float((error / allowed).max(initial=0.0))


def _noise(step: LinearStep, densities: Array, before: Array) -> tuple[Array, float]:
    """The noise (n, n) after a step, and what part of its largest entry is missed."""
    arriving, moved = step.arriving(densities), step.to_end[0]
    after = symmetric_part(moved @ before @ moved.T) + _sum(step, arriving)
    missed = _missed(step, arriving)
    return after, missed / _largest(after) if missed else 0.0


def _sum(step: LinearStep, arriving: Array) -> Array:
    """The sum (n, n) over a step of densities (s, n, n) that arrive at its end."""
    s, n, _ = arriving.shape
    return symmetric_part((step.weights @ arriving.reshape(s, n * n)).reshape(n, n))


def _missed(step: LinearStep, arriving: Array) -> float:
    """The error of the sum over a step of what arrives (s, n, n) from its points."""
    s, size = len(arriving), _largest(arriving)
    if size == 0.0:
        return 0.0
    before, last = np.abs(_last(s) @ arriving.reshape(s, -1)).max(axis=1).tolist()
    part = (last + _BEFORE_LAST * before) / size
    return float(np.abs(step.length) * size * part ** ((2 * s - 1) / (s - 1)) / _FAR)


@lru_cache
def _last(stages: int) -> Array:
    """The maps (2, s) to the last two coefficients of a series from its values at the points."""
    points = 2.0 * radau(stages).points - 1.0
    return np.asarray(np.linalg.inv(chebvander(points, stages - 1))[-2:], dtype=np.float64)


def _largest(matrix: Array) -> float:
    return float(np.abs(matrix).max(initial=0.0))
