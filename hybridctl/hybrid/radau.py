"""Steps of Radau IIA of order 5 with compiled Newton iterations: scipy's solver, and its steps.

The method, its control of steps and its reuse of Jacobian and factors are those of scipy's `Radau`
(Hairer, Wanner: Solving Ordinary Differential Equations II, IV.8), of which a step is restated here
around `CompiledSteps.solve_collocation`: its own calls the field through Python.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.integrate import Radau

from hybridctl.base.checks import Array
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.model import Collocation, CollocationSolution, CompiledSteps

_ROOT = math.sqrt(6.0)
_NODES: Array = np.array([(4.0 - _ROOT) / 10.0, (4.0 + _ROOT) / 10.0, 1.0])
"""Nodes c of the stages, as fractions of the step."""
_ERROR_WEIGHTS: Array = np.array([-13.0 - 7.0 * _ROOT, -13.0 + 7.0 * _ROOT, -1.0]) / 3.0
"""Weights of the stages in the error estimate."""
_CUBE = 3.0 ** (1.0 / 3.0)
REAL_EIGENVALUE = 3.0 + _CUBE**2 - _CUBE
COMPLEX_EIGENVALUE = (
    3.0 + 0.5 * (_CUBE - _CUBE**2) - 0.5j * (3.0 ** (5.0 / 6.0) + 3.0 ** (7.0 / 6.0))
)
"""Eigenvalues of the inverse of the method's matrix A; the third one is the conjugate."""
_MAX_ITERATIONS = 6
"""Newton iterations of a step; scipy's."""
_SAFETY = 0.9
"""Factor of the step length that the error alone allows; scipy's, as all below."""
_MIN_FACTOR, _MAX_FACTOR = 0.2, 10.0
"""Least and greatest factor from one step to the next."""
_SAME_LENGTH_FACTOR = 1.2
"""Factor below which the next step has the same length, so that matrices are not factorised again.
"""
_FAST_RATE = 1e-3
"""Rate of convergence at and below which the Jacobian is used again."""
_FAST_ITERATIONS = 2
"""Number of iterations up to which the Jacobian is used again."""
_MIN_SPACINGS = 10.0
"""Length of the shortest step, in spacings of the time."""


class CompiledRadau(Radau):  # type: ignore[misc]
    """scipy's Radau with compiled Newton iterations, under a held input.

    Args:
        steps: Compiled steps of the mode, which solve collocations.
        law: The held input.
        arguments: Arguments of `scipy.integrate.Radau`.
        settings: Its further arguments.
    """

    # Attributes of scipy's solver, which has no types: time and its bound, state and rate, Jacobian
    # and factors, length of the next step, and length and error of the last one.
    t: float
    t_old: float | None
    t_bound: float
    y: Array
    y_old: Array | None
    f: Array
    J: Any
    LU_real: Any
    LU_complex: Any
    Z: Array
    sol: Any
    current_jac: bool
    h_abs: float
    h_abs_old: float | None
    error_norm_old: float | None

    def __init__(
        self, steps: CompiledSteps, law: HeldInput, *arguments: Any, **settings: Any
    ) -> None:
        self._steps, self._law = steps, law
        super().__init__(*arguments, **settings)

    def _step_impl(self) -> tuple[bool, str | None]:
        """Take an accepted step.

        Returns:
            Whether there is one, and a message where there is none: what scipy's `step` asks for.
        """
        t, y = self.t, self.y
        shortest = _MIN_SPACINGS * abs(np.nextafter(t, self.direction * np.inf) - t)
        length = self.max_step if self.h_abs > self.max_step else max(self.h_abs, shortest)
        # A step of another length than the last one asked for is predicted by one error alone.
        history = (self.h_abs_old, self.error_norm_old) if length == self.h_abs else (None, None)
        was_rejected = False
        while True:
            if length < shortest:
                return False, self.TOO_SMALL_STEP
            end = t + length * self.direction
            if self.direction * (end - self.t_bound) > 0.0:
                end = self.t_bound
            h = end - t
            length = abs(h)
            found = self._solve_stages(h)
            if found is None:
                length *= 0.5
                self._forget_factors()
                continue
            end_state = y + found.stages[-1]
            error = self._estimate_error(h, found.stages, end_state, was_rejected)
            safety = _SAFETY * (2 * _MAX_ITERATIONS + 1) / (2 * _MAX_ITERATIONS + found.iterations)
            factor = safety * _predict_factor(length, error, *history)
            if not error > 1.0:
                break
            length *= max(_MIN_FACTOR, factor)
            self._forget_factors()
            was_rejected = True
        self._accept(end, end_state, found, length, min(_MAX_FACTOR, factor), error)
        return True, None

    def _solve_stages(self, h: float) -> CollocationSolution | None:
        """Return the stages of a step of length h, None where the iterations do not converge.

        They are tried with the Jacobian of an earlier step, then with that of the start; updates
        the Jacobian and the factors.
        """
        t, y = self.t, self.y
        guess = np.zeros((3, len(y))) if self.sol is None else self.sol(t + h * _NODES).T - y
        scale = self.atol + np.abs(y) * self.rtol
        while True:
            if self.LU_real is None or self.LU_complex is None:
                self.LU_real = self.lu(REAL_EIGENVALUE / h * self.I - self.J)
                self.LU_complex = self.lu(COMPLEX_EIGENVALUE / h * self.I - self.J)
            found = self._steps.solve_collocation(
                Collocation(h, y, guess, scale, self.newton_tol, self.LU_real, self.LU_complex),
                self._law,
            )
            if found.converged:
                return found
            if self.current_jac:
                return None
            self.J = self.jac(t, y, self.f)
            self.current_jac = True
            self._forget_factors()

    def _forget_factors(self) -> None:
        """Have the matrices factorised before the next iterations."""
        self.LU_real = self.LU_complex = None

    def _estimate_error(self, h: float, stages: Array, end: Array, was_rejected: bool) -> float:
        """Return the error of a step in units of the tolerance.

        Args:
            h: Length of the step, s.
            stages: Stages less the start (3, nx).
            end: State (nx,) at the end.
            was_rejected: Whether an attempt from the same start was rejected: then a large error
                is estimated again, which does not overrate it where the flow is stiff.
        """
        y, combined = self.y, stages.T.dot(_ERROR_WEIGHTS) / h
        scale = self.atol + np.maximum(np.abs(y), np.abs(end)) * self.rtol
        error = self.solve_lu(self.LU_real, self.f + combined)
        size = _compute_norm(error / scale)
        if was_rejected and size > 1.0:
            error = self.solve_lu(self.LU_real, self.fun(self.t, y + error) + combined)
            size = _compute_norm(error / scale)
        return size

    def _accept(
        self,
        end: float,
        end_state: Array,
        found: CollocationSolution,
        length: float,
        factor: float,
        error: float,
    ) -> None:
        """Move to the end of a step, and update the Jacobian and the length of the next step.

        Args:
            end: Time at its end, s.
            end_state: State (nx,) there.
            found: Its stages.
            length: Its length, s.
            factor: Factor from that to the length of the next step.
            error: Its error in units of the tolerance.
        """
        is_stale = found.iterations > _FAST_ITERATIONS and found.rate > _FAST_RATE
        renews_jacobian = self.jac is not None and is_stale
        if not renews_jacobian and factor < _SAME_LENGTH_FACTOR:
            factor = 1.0
        else:
            self._forget_factors()
        rate = self.fun(end, end_state)
        if renews_jacobian:
            self.J = self.jac(end, end_state, rate)
            self.current_jac = True
        elif self.jac is not None:
            self.current_jac = False
        self.h_abs_old, self.error_norm_old, self.h_abs = self.h_abs, error, length * factor
        self.t_old, self.y_old = self.t, self.y
        self.t, self.y, self.f, self.Z = end, end_state, rate, found.stages
        self.sol = self._compute_dense_output()


def _predict_factor(
    length: float, error: float, last_length: float | None, last_error: float | None
) -> float:
    """Return the factor from the length of a step to the one that its error allows, HW II, IV.8.

    Args:
        length: Length of the step, s.
        error: Its error in units of the tolerance.
        last_length: Length of the step before it, s; None for none.
        last_error: Error of that one.
    """
    if error == 0.0:
        return math.inf
    trend = 1.0
    if last_length is not None and last_error is not None:
        trend = length / last_length * (last_error / error) ** 0.25
    return float(min(1.0, trend) * error**-0.25)


def _compute_norm(values: Array) -> float:
    """Return the root mean square of values (n,)."""
    return float(np.linalg.norm(values)) / math.sqrt(values.size)
