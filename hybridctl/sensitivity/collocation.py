r"""Linear time-varying equations: transition, noise, cost and adjoint, by Radau collocation.

The pair of a state x and a costate :math:`\lambda`,

.. math:: \dot x = A x - S \lambda, \qquad -\dot \lambda = A^T \lambda + W x,

with S, W positive semidefinite has, over an interval whose ends have the indices 0 and 1, the
solution

.. math:: x_1 = F x_0 - P \lambda_1, \qquad \lambda_0 = C x_0 + F^T \lambda_1 .

A `Propagation` is (F, P, C). Without W, F is the transition matrix and P the covariance of white
noise of density S gathered on the interval (a reachability Gramian). Without S, C is the cost
:math:`\int x^T W x\, dt` (an observability Gramian). With :math:`S = B R^{-1} B^T` they solve a
Riccati equation: from :math:`\lambda_1 = V_1 x_1` follows :math:`\lambda_0 = V_0 x_0`. Intervals
are composed by Redheffer's star product (Kailath, Ljung: The scattering framework for linear
estimation and control, 1975).

A `LinearStep` of length h is collocated by Radau IIA with s stages,

.. math:: Z_i = z_0 + h \sum_j a_{ij} (A_j Z_j + f_j) .

All stages are solved for at once, because the equation is linear: :math:`Z = X z_0 + T f`. The
formula has order 2 s - 1 and damps what decays within a step, at any rate (Hairer, Wanner: Solving
Ordinary Differential Equations II, IV.5). The costate is that of the discrete problem, which is
Radau IA. The two are a symplectic pair of the same order (Sun 1993), so P and C are symmetric.

`integrate_linear_equation` takes such steps of seven stages, as long as a tolerance allows. Its
record of a step is the polynomial of degree 7 through z_0 and the stages. The last two coefficients
of the record estimate its error. Its slope at z_0, where no stage is, shows a kink of A or f that
lies before the first stage.

`integrate_noise` takes the same steps for transition and noise. The noise of a step is a sum of
what arrives at its end from its s stages. The last coefficient of the arriving densities is of
order :math:`h^{s-1}` and the error of the sum of order :math:`h^{2s-1}`, so a power of the first
estimates the second. `propagate_short_step` replaces seven stages by four where these estimates
allow it.

Errors are relative to the whole solution. So directions that have decayed are not resolved again on
each step. The method was chosen against another one, which halves steps of four stages until each
is right by itself. Evaluations of A, with that method and with this one: 231,500 and 564 for a mass
that breaks away with noise, 196 and 123 for a pendulum over 1 s, 78 and 122 for noise that jumps,
where this one misses a quarter of what the other one misses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from hybridctl.base.checks import Array
from hybridctl.base.errors import IntegrationError
from hybridctl.hybrid.series import NODES, TO_SERIES, TO_SLOPES, basis
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.tableau import Radau, radau

Equation = Callable[[float], tuple[Array, Array | None]]
"""The pair of A (n, n), 1/s, and a force f or a noise density S at a time in s.

None stands for no force."""


@dataclass(frozen=True, eq=False)
class Propagation:
    """The maps (F, P, C) of a linear equation over an interval; see the module.

    The arrays of several intervals have the same leading axes; iterating returns one by one.

    Attributes:
        state: Transition F (n+, n).
        noise: Gathered noise P (n+, n+), symmetric and positive semidefinite.
        cost: Cost C (n, n), symmetric and positive semidefinite.
    """

    state: Array
    noise: Array
    cost: Array

    @staticmethod
    def jump(state: Array) -> Propagation:
        """Return the propagation of a jump by a matrix (n+, n), such as a saltation matrix."""
        after, before = state.shape
        return Propagation(state, np.zeros((after, after)), np.zeros((before, before)))

    @staticmethod
    def identity(n: int) -> Propagation:
        """Return the propagation over no time in n dimensions."""
        return Propagation.jump(np.eye(n))

    def __iter__(self) -> Iterator[Propagation]:
        return map(Propagation, self.state, self.noise, self.cost)

    def compose(self, later: Propagation) -> Propagation:
        """Return the propagation over this interval and a later one: Redheffer's star product."""
        # Between the two, x_1 = (I + P_1 C_2)^-1 (F_1 x_0 - P_1 F_2' lambda_2).
        whole = np.eye(len(self.noise)) + self.noise @ later.cost
        reached = np.linalg.solve(whole, np.hstack([self.state, self.noise]))
        n = self.state.shape[1]
        moved, spread = reached[:, :n], reached[:, n:]
        return Propagation(
            later.state @ moved,
            symmetric_part(later.noise + later.state @ spread @ later.state.T),
            symmetric_part(self.cost + self.state.T @ later.cost @ moved),
        )

    def advance(self, state: Array, noise: Array | None) -> Propagation:
        """Return the propagation followed by a transition with noise, without a later cost.

        Args:
            state: Later transition F (n+, n).
            noise: Later noise P (n+, n+). None for no noise, which saves its products.

        Returns:
            The propagation over both, with the cost of this one.
        """
        moved = state.dot(self.state)
        if noise is None and state.shape == self.noise.shape and not self.noise.any():
            return Propagation(moved, self.noise, self.cost)
        gathered = state.dot(self.noise).dot(state.T)
        if noise is not None:
            gathered += noise
        return Propagation(moved, symmetric_part(gathered), self.cost)

    def value(self, after: Array) -> Array:
        """Return the least cost V_0 (n, n) for V_1 (n+, n+) at the end, where S = B R^-1 B'."""
        whole = np.eye(len(after)) + self.noise @ after
        moved = np.linalg.solve(whole, self.state)
        return symmetric_part(self.cost + self.state.T @ after @ moved)

    def covariance(self, before: Array) -> Array:
        """Return the covariance F p F' + P (n+, n+) for p (n, n) at the start, without W."""
        return symmetric_part(self.state @ before @ self.state.T + self.noise)


_STAGES = 7
"""Stages of a step, so that z_0 and the stages fix the polynomial of degree 7 of a `Step`."""
_LONG_FORMULA = radau(_STAGES)
SHORT_FORMULA = radau(4)
"""The formula of `propagate_short_step`, for intervals over which little changes."""
FIRST_POINT = float(_LONG_FORMULA.points[0])
"""The first stage of a step, as part of its length."""
_FIRST_STEP = 0.1
"""Length of the first step, relative to the duration. The value is a choice."""
_SHORTEST_FIRST_STEP = 16.0
"""Length below which no first step is tried, in spacings of the numbers at t."""
_RECORD_ROUNDING = 4.0 * np.finfo(np.float64).eps
"""Rounding error of a record, relative to its largest entry."""
_SLOPE_ROUNDING = 2.0 * _RECORD_ROUNDING * float(np.abs(TO_SLOPES[0]).sum())
"""Rounding error of the first slope times h, relative to the largest entry of a record."""
_SAFETY, _MIN_GROWTH, _MAX_GROWTH = 0.8, 0.1, 8.0
"""Step-size control: the part taken of the optimal length, and the least and greatest ratio of a
length to the one before. The values are choices."""
_PENULTIMATE_WEIGHT = 0.1
"""Weight of the last but one coefficient in error estimates: the last one may be zero by chance."""
_ERROR_RATIO = 50.0
"""Least ratio of the power of the last coefficient of arriving densities to the error of a sum."""
_NOISE_JUMP_DURATION = 2.0**-10
"""Length, relative to the duration, to which the time of a jump of the noise is resolved."""
_UNIT_ROUNDING = 1e-14
"""Error of transitions and covariances of size 1 that is taken as rounding."""
_TO_NODES = basis(NODES) @ np.linalg.inv(
    basis(2.0 * np.concatenate(([0.0], _LONG_FORMULA.points)) - 1.0)
)


@dataclass(frozen=True, eq=False)
class LinearStep:
    """Collocated steps of z' = A z + f, one or a batch of them.

    Attributes:
        matrices: A at the stages (..., s, n, n), 1/s.
        length: Lengths h (...) of the steps, s.
        formula: Radau IIA with s stages.
    """

    matrices: Array
    length: Array | float
    formula: Radau

    @cached_property
    def _system(self) -> Array:
        """The matrix I - h (a x A) (..., s n, s n) of the stage equations."""
        *batch, s, n, _ = self.matrices.shape
        h = np.reshape(self.length, (*np.shape(self.length), 1, 1, 1, 1))
        blocks = (
            h
            * self.formula.matrix[:, None, :, None]
            * np.swapaxes(self.matrices, -3, -2)[..., None, :, :, :]
        )
        return np.asarray(np.eye(s * n) - blocks.reshape(*batch, s * n, s * n))

    def solve_stages(self, start: Array, forces: Array | None = None) -> Array:
        """Return the stages of one step.

        Args:
            start: Values z_0 (n, k) at the start of the step.
            forces: Forces f (s, n, k) at the stages. None for none.

        Returns:
            The stages Z (s, n, k); the last is the value at the end of the step.
        """
        s, n, _ = self.matrices.shape
        right = np.broadcast_to(start, (s, *start.shape))
        if forces is not None:
            right = right + self.length * np.tensordot(self.formula.matrix, forces, axes=1)
        solved = np.linalg.solve(self._system, right.reshape(s * n, -1))
        return np.asarray(solved.reshape(s, n, -1))

    @cached_property
    def stage_maps(self) -> Array:
        """The maps X (..., s, n, n) from z_0 to the stages; the last is the transition matrix."""
        *batch, s, n, _ = self.matrices.shape
        units = np.broadcast_to(np.tile(np.eye(n), (s, 1)), (*batch, s * n, n))
        return np.asarray(np.linalg.solve(self._system, units).reshape(*batch, s, n, n))

    @cached_property
    def force_response(self) -> Array:
        """The map T (..., s n, s n) from forces at the stages to the stages."""
        n = self.matrices.shape[-1]
        h = np.reshape(self.length, (*np.shape(self.length), 1, 1))
        return np.asarray(
            np.linalg.solve(self._system, h * np.kron(self.formula.matrix, np.eye(n)))
        )

    @property
    def weights(self) -> Array:
        """The weights h b (..., s) of integrals over the step, s."""
        return np.multiply.outer(self.length, self.formula.weights)

    def pullback(self, by_stage_maps: Array) -> Array:
        """Return the gradient (..., s, n, n) by A at the stages, given that by `stage_maps`.

        Args:
            by_stage_maps: Gradient (..., s, n, n) of a number by the entries of `stage_maps`.
        """
        *batch, s, n, _ = self.matrices.shape
        turned = np.swapaxes(self.force_response, -1, -2)
        back = turned @ by_stage_maps.reshape(*batch, s * n, n)
        return np.asarray(back.reshape(by_stage_maps.shape) @ np.swapaxes(self.stage_maps, -1, -2))

    @cached_property
    def maps_to_end(self) -> Array:
        """The maps (..., s + 1, n, n) to the end of the step: from z_0, then from each stage."""
        *batch, s, n, _ = self.matrices.shape
        last = np.zeros((s * n, n))
        last[-n:] = np.eye(n)
        rows = np.linalg.solve(np.swapaxes(self._system, -1, -2), last)
        rows = np.swapaxes(rows.reshape(*batch, s, n, n), -1, -2).reshape(*batch, s, n * n)
        return np.asarray((self.formula.adjoint @ rows).reshape(*batch, s + 1, n, n))

    def transport_densities(self, noise: Array) -> Array:
        """Return the densities (..., s, n, n) at the end of the step of S at each stage."""
        stages = self.maps_to_end[..., 1:, :, :]
        return np.asarray(stages @ noise @ np.swapaxes(stages, -1, -2))

    def propagation(self, noise: Array | None = None, cost: Array | None = None) -> Propagation:
        """Return the propagation of each step.

        Args:
            noise: Densities S (..., s, n, n) at the stages. None for no noise.
            cost: Densities W (..., s, n, n) at the stages. None for no cost.

        Returns:
            The maps F, P, C, each (..., n, n).
        """
        *batch, s, n, _ = self.matrices.shape
        c, none = self.weights[..., None, None], np.zeros((*batch, n, n))
        # Without noise or without cost the coupled equation below falls apart.
        if cost is None:
            gathered = none if noise is None else (c * self.transport_densities(noise)).sum(axis=-3)
            return Propagation(self.maps_to_end[..., 0, :, :], symmetric_part(gathered), none)
        x = self.stage_maps.reshape(*batch, s * n, n)
        turned: Array = np.swapaxes(x, -1, -2)
        if noise is None:
            spent = turned @ _multiply_blocks(c * cost, x)
            return Propagation(x[..., -n:, :], none, symmetric_part(spent))
        response = self.force_response
        gathered = response @ _multiply_blocks(noise / c, np.swapaxes(response, -1, -2))
        whole = np.eye(s * n) + np.swapaxes(_multiply_blocks(c * cost, gathered), -1, -2)
        both = np.concatenate((x, gathered[..., -n:]), axis=-1)
        solved = np.asarray(np.linalg.solve(whole, both), dtype=np.float64)
        last, spent = solved[..., -n:, :], turned @ _multiply_blocks(c * cost, solved[..., :n])
        return Propagation(last[..., :n], symmetric_part(last[..., n:]), symmetric_part(spent))


def _multiply_blocks(blocks: Array, matrix: Array) -> Array:
    """Return the block diagonal matrix of blocks (..., s, n, n) times a matrix (..., s n, k)."""
    *batch, s, n, _ = blocks.shape
    split = matrix.reshape(*batch, s, n, matrix.shape[-1])
    return np.asarray((blocks @ split).reshape(matrix.shape))


def symmetric_part(a: Array) -> Array:
    """Return the symmetric part (a + a') / 2 of matrices (..., n, n)."""
    return np.asarray(0.5 * (a + a.swapaxes(-1, -2)))


def integrate_linear_equation(
    equation: Equation,
    start: Array,
    t: float,
    end: float,
    *,
    rtol: float,
    atol: float,
    first_step: float = 0.0,
    leap: float = 0.0,
) -> Iterator[Step]:
    """Yield the steps of z' = A z + f.

    Args:
        equation: A (n, n) and f at a time in s. f (n,) is added to each column of z, f (n, k) to
            its own; None for no force.
        start: Values z (n, k) at t.
        t: Start, s.
        end: End, s. At t no step is taken.
        rtol: Relative tolerance of every entry of z at the Chebyshev points of a step.
        atol: Absolute tolerance of every entry, in its unit.
        first_step: Length in s over which A and f are smooth. It is the first length that is
            tried if it is more than a tenth of the duration.
        leap: Length in s of a first step that is accepted whatever its error is; 0 for none. It
            crosses an initial layer, in which z decays at once towards a smooth solution at a rate
            for which A is not accurate enough.

    Yields:
        Steps whose states (8, n k) are the entries of z at the Chebyshev points.

    Raises:
        IntegrationError: The solution changes faster than steps resolve.
    """
    for step, _ in _take_steps(equation, start, None, t, end, rtol, atol, first_step, leap):
        yield step


def integrate_noise(
    equation: Equation,
    total: Propagation,
    t: float,
    end: float,
    *,
    rtol: float,
    atol: float,
    first_step: float = 0.0,
    leap: float = 0.0,
) -> Propagation:
    """Return a propagation until t, continued to `end` with noise and without cost.

    Args:
        equation: A (n, n) and the noise density S (n, n) at a time in s.
        total: Propagation until t.
        t: Start, s.
        end: End, s.
        rtol: Relative tolerance of every entry of the transition, and of the noise relative to the
            largest entry of all that is gathered.
        atol: Absolute tolerance of every entry of the transition.
        first_step: See `integrate_linear_equation`.
        leap: See `integrate_linear_equation`.

    Returns:
        The propagation until `end`, with the cost of `total`.

    Raises:
        IntegrationError: The solution changes faster than steps resolve.
    """
    state, noise = total.state, total.noise
    for step, after in _take_steps(equation, state, noise, t, end, rtol, atol, first_step, leap):
        assert after is not None
        state, noise = step.states[-1].reshape(state.shape), after
    return Propagation(state, noise, total.cost)


def propagate_short_step(
    matrices: Array, densities: Array | None, h: float, rtol: float, covariance_size: float
) -> tuple[Propagation, float]:
    """Return the propagation of one step of four stages, and its error.

    Args:
        matrices: A (4, n, n) at the points of `SHORT_FORMULA`, 1/s.
        densities: Noise densities S (4, n, n) there. None for no noise.
        h: Length of the step, s.
        rtol: Relative tolerance of the noise, and of how far the transition is from the identity.
        covariance_size: Largest entry of the covariance to which the noise is added. Noise need
            not be right beyond the rounding of that.

    Returns:
        The propagation, and its error in units of the tolerance: it is to be refused above 1.
    """
    step, n = LinearStep(matrices, h, SHORT_FORMULA), matrices.shape[-1]
    state, none = step.maps_to_end[0], np.zeros((n, n))
    # The transition F has F - I = int Phi(end, t) A(t) dt: its error is estimated as that of the
    # noise, by the last coefficients of what arrives at the end from each stage.
    missed = _estimate_sum_error(step, step.maps_to_end[1:] @ matrices)
    ratio = missed / (rtol * _largest_entry(state - np.eye(n)) + _UNIT_ROUNDING)
    if densities is None:
        return Propagation(state, none, none), ratio
    arriving = step.transport_densities(densities)
    noise = _sum_densities(step, arriving)
    missed = _estimate_sum_error(step, arriving)
    if missed:  # zero would be divided by zero where there is neither noise nor covariance
        allowed = rtol * _largest_entry(noise) + _UNIT_ROUNDING * covariance_size
        ratio = max(ratio, missed / allowed)
    return Propagation(state, noise, none), ratio


def choose_step_length(h: float, ratio: float) -> float:
    """Return the length in s of the next step.

    Args:
        h: Length of the step before, s.
        ratio: Its error in units of the tolerance.
    """
    change = _SAFETY * max(ratio, 1e-300) ** (-1.0 / _STAGES)
    return float(h * min(_MAX_GROWTH, max(_MIN_GROWTH, change)))


def _take_steps(
    equation: Equation,
    start: Array,
    noise: Array | None,
    t: float,
    end: float,
    rtol: float,
    atol: float,
    first_step: float,
    leap: float,
) -> Iterator[tuple[Step, Array | None]]:
    """Yield accepted steps, each with the noise gathered by its end.

    A step that missed noise is refused, as the noise may jump within it. Up to its end, steps then
    take at most half of the way that is left to that, but `_NOISE_JUMP_DURATION` of the whole at
    least. A step as short as that is not refused.

    Args:
        equation: A and the force, or A and the noise density.
        start: Values z (n, k) at t.
        noise: Noise (n, n) gathered until t. None if the equation has forces instead.
        t: Start, s.
        end: End, s.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        first_step: See `integrate_linear_equation`.
        leap: Length in s of a first step that is accepted whatever its error is; 0 for none.

    Raises:
        IntegrationError: Steps would be shorter than the spacing of numbers.
    """
    spacing = math.ulp(max(abs(t), abs(end)))
    h = leap or max(_FIRST_STEP * (end - t), first_step, _SHORTEST_FIRST_STEP * spacing)
    is_leap = leap > 0.0
    shortest, noise_jump = _NOISE_JUMP_DURATION * (end - t), t
    z, refused_end = start.ravel(), math.inf
    rate: Array | None = None
    while t < end:
        if t < noise_jump:
            h = min(h, max(0.5 * (noise_jump - t), shortest))
        step_end = min(t + h, end)
        # A shorter step may be rounded to the one that was refused: it would be tried for ever
        # (test_coefficients_that_no_numbers_resolve_are_an_error).
        if h < spacing or not t < step_end < refused_end:
            raise IntegrationError(
                f"the perturbations change faster than steps of {h:.3g} s resolve at t = {t:.9g} s"
            )
        length = step_end - t
        found = [equation(time) for time in (t + length * _LONG_FORMULA.points).tolist()]
        step = LinearStep(np.array([matrix for matrix, _ in found]), length, _LONG_FORMULA)
        forces = _stack_forces(found, start.shape) if noise is None else None
        record, rate_after = _record_step(step, z.reshape(start.shape), forces)
        ratio = _estimate_error(record, None if rate is None else length * rate, rtol, atol)
        after, missed = None, 0.0
        if noise is not None:
            after, missed = _add_noise(step, np.array([density for _, density in found]), noise)
        if missed > rtol and length > shortest:
            ratio, noise_jump = max(ratio, missed / rtol), step_end
        refused_end = step_end
        if ratio <= 1.0 or is_leap:
            yield Step(t, step_end, record, np.zeros((8, 0))), after
            t, z, rate, noise, is_leap = step_end, record[-1], rate_after, after, False
            refused_end = math.inf
        h = choose_step_length(length, ratio)


def _stack_forces(found: list[tuple[Array, Array | None]], shape: tuple[int, ...]) -> Array | None:
    """Return the forces (s, n, k) at the stages; None if the equation has none."""
    if found[0][1] is None:
        return None
    forces = np.empty((len(found), *shape))
    for i, (_, force) in enumerate(found):
        forces[i] = np.reshape(force, (shape[0], -1))  # type: ignore[arg-type]
    return forces


def _record_step(step: LinearStep, z: Array, forces: Array | None) -> tuple[Array, Array]:
    """Return a step from z (n, k) at the Chebyshev points (8, n k), and its end rates (n k,)."""
    stages = step.solve_stages(z, forces)
    rates = step.matrices[-1] @ stages[-1]
    if forces is not None:
        rates += forces[-1]
    values = _TO_NODES @ np.vstack((z.ravel(), stages.reshape(len(stages), z.size)))
    values[0], values[-1] = z.ravel(), stages[-1].ravel()
    return np.asarray(values), rates.ravel()


def _estimate_error(record: Array, start_slope: Array | None, rtol: float, atol: float) -> float:
    """Return the error of the record of a step in units of the tolerance.

    Args:
        record: Values (8, n k) at the Chebyshev points.
        start_slope: Rates (n k,) at the end of the step before, times the length of this step.
            None on the first step.
        rtol: Relative tolerance of every entry.
        atol: Absolute tolerance of every entry.
    """
    series = np.abs(TO_SERIES @ record)
    largest = np.abs(record).max(axis=0)
    error = series[-1] + _PENULTIMATE_WEIGHT * series[-2]
    if start_slope is not None:
        # A kink before the first stage
        # (test_a_kink_of_the_coefficients_does_not_hide_before_the_first_stage).
        defect = 2.0 * (TO_SLOPES[0] @ record) - start_slope
        rounding = _SLOPE_ROUNDING * largest.max(initial=0.0)
        error += FIRST_POINT * np.maximum(np.abs(defect) - rounding, 0.0)
    allowed = atol + rtol * largest + _RECORD_ROUNDING * largest.max(initial=0.0)
    return float((error / allowed).max(initial=0.0))


def _add_noise(step: LinearStep, densities: Array, before: Array) -> tuple[Array, float]:
    """Return the noise (n, n) after a step, and its error relative to its largest entry."""
    arriving, transition = step.transport_densities(densities), step.maps_to_end[0]
    moved = symmetric_part(transition @ before @ transition.T)
    after = moved + _sum_densities(step, arriving)
    missed = _estimate_sum_error(step, arriving)
    return after, missed / _largest_entry(after) if missed else 0.0


def _sum_densities(step: LinearStep, arriving: Array) -> Array:
    """Return the integral (n, n) over a step of densities (s, n, n) that arrive at its end."""
    s, n, _ = arriving.shape
    return symmetric_part((step.weights @ arriving.reshape(s, n * n)).reshape(n, n))


def _estimate_sum_error(step: LinearStep, arriving: Array) -> float:
    """Return the error of the integral over a step of what arrives (s, n, n) at its end.

    The last coefficient c of s values is of order h^(s-1), the error of the sum of order h^(2s-1).
    So the error is size (c / size)^((2s-1)/(s-1)) h, divided by the least ratio that was measured.
    """
    s, size = len(arriving), _largest_entry(arriving)
    if size == 0.0:
        return 0.0
    before, last = np.abs(_last_coefficients(s) @ arriving.reshape(s, -1)).max(axis=1).tolist()
    part = (last + _PENULTIMATE_WEIGHT * before) / size
    power = (2 * s - 1) / (s - 1)
    return float(np.abs(step.length) * size * part**power / _ERROR_RATIO)


@lru_cache
def _last_coefficients(stages: int) -> Array:
    """Return the maps (2, s) from values at the stages to the last two series coefficients."""
    points = 2.0 * radau(stages).points - 1.0
    return np.asarray(np.linalg.inv(chebvander(points, stages - 1))[-2:], dtype=np.float64)


def _largest_entry(matrix: Array) -> float:
    return float(np.abs(matrix).max(initial=0.0))
