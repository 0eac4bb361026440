r"""scipy's implicit steppers behind the interface of a stepper, for stretches that are stiff.

Their Newton iteration takes the Jacobian of the mode under its law, in the coordinates x of a
manifold with :math:`L(x)` (nx, ndx), the map from velocities to rates of coordinates,

.. math:: J = L (D_x f + D_u f D_x u) L^+,

which leaves out how L turns with x: a rough J costs iterations, not accuracy. D_x u of laws that
do not say it (see `DifferentiableLaw`) is differenced by scipy, which asks the law alone: without
it a stiff feedback makes steps short. So is the field of modes without derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.integrate import OdeSolver, Radau
from scipy.linalg import lapack
from scipy.optimize import approx_fprime

from hybridctl.base.checks import Array
from hybridctl.base.errors import IntegrationError, StepSizeError
from hybridctl.base.spaces import VectorSpace, compute_tangent_map
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput
from hybridctl.hybrid.series import FRACTIONS, TO_SLOPES
from hybridctl.hybrid.step import DrivenMode, Step, failure

_NEWTON = 1e-3
"""Of the tolerance of a step: what Newton's iteration may leave of it. With 1e-2 slides that begin,
at 1e-8 m/s, no longer know their direction as well as the step says."""
_FURTHER = 0.2
"""Of the tolerance: what the polynomial of a step may miss where it is taken further."""
_FAR = 1.0
"""Times the next step: where steps may be no longer than this, the last one may be one more."""
_BEGIN = 0.1
"""Of the first step that the size of the field and of its change suggest. Where friction turns what
has just begun to slide, that is ten to fifty times too long, and each attempt costs as much as a
step; one that is too short costs one more step."""


class ImplicitStepper:
    """Accepted steps of scipy's Radau or BDF from (t, x) until t_end."""

    def __init__(
        self,
        method: Callable[..., OdeSolver],
        motion: DrivenMode,
        t: float,
        x: Array,
        t_end: float,
        rtol: float,
        atol: float,
        first_step: float | None = None,
    ) -> None:
        self._motion, self._cubic = motion, method is Radau
        self._ages, self._begins = False, math.nan
        self._asked: tuple[float, Array] = (t, x)
        jacobian = _jacobian(motion)
        self._make = partial(
            _begun,
            method,
            self._rate,
            t_bound=t_end,
            rtol=rtol,
            atol=atol,
            jac=None if jacobian is None else partial(self._slopes, jacobian),
        )
        first = None if first_step is None else min(first_step, abs(t_end - t))
        self._solver = self._make(t, x, first_step=first)
        if first is None and self._cubic:  # BDF keeps differences over this length
            self._solver.h_abs *= _BEGIN
        self._guards: Array | None = None

    @property
    def length(self) -> float:
        """What the next step will try, s."""
        return float(self._solver.h_abs)

    def advance(self, longest: float) -> Step:
        """One accepted step, no longer than `longest`; `IntegrationError` where there is none."""
        solver = self._solver
        stops = self._cubic and self._motion.mode.steady_pace is None
        if stops and longest < _FAR * solver.h_abs and (step := self._further(longest)):
            return step
        solver.max_step = longest
        if self._ages and not solver.current_jac:
            solver.J = solver.jac(solver.t, solver.y, solver.f)
            solver.current_jac, solver.LU_real, solver.LU_complex = True, None, None
        self._begins = solver.t
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # reported below
                solver.step()
        except ValueError as error:
            if "infs or NaNs" not in str(error):
                raise
            raise self._failure("the vector field is not finite") from error
        if solver.status == "failed":
            raise self._failure("steps of a stiff flow no longer advance the time", StepSizeError)
        start, end = float(solver.t_old), float(solver.t)
        states = solver.dense_output()(start + (end - start) * FRACTIONS).T
        states[-1] = solver.y
        return self._sampled(start, end, states)

    def _further(self, length: float) -> Step | None:
        """The polynomial of the last step for `length` further, if it is the solution there, too.

        What it misses of the field, an implicit step of Euler's method from there divides by what
        is stiff. Towards a pole of the Jacobian, as where sliding comes to a stop, Newton's steps
        take a part of what is left, however smooth the solution is.
        """
        solver = self._solver
        start, end = float(solver.t), float(solver.t + solver.direction * length)
        if solver.sol is None or solver.direction * (end - solver.t_bound) > 0.0:
            return None
        states = solver.sol(start + (end - start) * FRACTIONS).T
        states[0], x = solver.y, states[-1]
        rate = self._rate(end, x)
        missed = rate - 2.0 / (end - start) * (TO_SLOPES[-1] @ states)
        if not np.isfinite(missed).all():
            return None
        slopes = solver.jac(end, x, rate)
        try:
            error = np.linalg.solve(solver.I / (end - start) - slopes, missed)
        except np.linalg.LinAlgError:
            return None
        allowed = solver.atol + solver.rtol * np.abs(x)
        if not np.linalg.norm(error / allowed) <= _FURTHER * np.sqrt(x.size):
            return None
        solver.t_old, solver.t, solver.y, solver.f = start, end, x, rate
        solver.J, solver.current_jac, solver.LU_real, solver.LU_complex = slopes, True, None, None
        return self._sampled(start, end, states)

    def _sampled(self, start: float, end: float, states: Array) -> Step:
        motion, after = self._motion, self._motion.guards_at(end, states[-1])
        step = motion.sampled(start, end, states, self._guards, after, self._cubic)
        self._guards = None if step.guards is None else step.guards[-1]
        return step

    def _rate(self, t: float, x: Array) -> Array:
        self._asked = t, x
        return self._motion.rate(t, x)

    def _slopes(self, jacobian: Callable[[float, Array], Array], t: float, x: Array) -> Array:
        """The Jacobian at (t, x); notes when the solver asks for it anew at the start of a step.

        It changes as fast as the solution then, and steps to come begin with their own.
        """
        self._ages = self._ages or (self._cubic and t == self._begins)
        return jacobian(t, x)

    def _failure(
        self, what: str, kind: type[IntegrationError] = IntegrationError
    ) -> IntegrationError:
        """The error of a step that failed: that of the field where it was asked last, if any."""
        self._motion.checked_rate(*self._asked)
        return failure(what, self._motion.mode, self._solver.t, self._solver.y, kind)

    def restart(self, x: Array) -> None:
        """Go on from x instead."""
        old = self._solver
        left = abs(old.t_bound - old.t)
        if left > 0.0:
            self._solver = self._make(old.t, x, first_step=min(old.h_abs, left))
        self._guards = None

    def ended(self, step: Step, t: float) -> Step:
        """The step as it is, with its polynomial reaching beyond t."""
        return step


def _begun(method: Callable[..., OdeSolver], *at: Any, **settings: Any) -> OdeSolver:
    """The solver, which divides by its small matrices without scipy's checks of them.

    Newton's iteration of Radau ends where it adds `_NEWTON` to the error of a step.
    """
    solver = method(*at, **settings)
    if isinstance(solver, Radau):
        solver.lu, solver.solve_lu, solver.newton_tol = _factored, _divided, _NEWTON
    return solver


def _factored(matrix: Any) -> tuple[Any, Any]:
    factors, pivots, _ = (lapack.zgetrf if np.iscomplexobj(matrix) else lapack.dgetrf)(matrix)
    return factors, pivots


def _divided(factored: tuple[Any, Any], right: Any) -> Any:
    divide = lapack.zgetrs if np.iscomplexobj(factored[0]) else lapack.dgetrs
    return divide(*factored, right)[0]


def _jacobian(motion: DrivenMode) -> Callable[[float, Array], Array] | None:
    """The Jacobian (nx, nx) as a function of (t, x); None, for differences, where there is none."""
    mode, law, space = motion.mode, motion.law, motion.mode.space
    if not mode.differentiable:
        return None

    def of_velocities(t: float, x: Array) -> Array:
        d = (motion.known(t, x) or mode.calc(t, x, law(t, x))).field_jacobian
        return d.state if isinstance(law, HeldInput) else d.state + d.input @ gains(t, x)

    def gains(t: float, x: Array) -> Array:
        if isinstance(law, DifferentiableLaw):
            return law.jacobian(t, x)
        slopes = approx_fprime(np.zeros(space.ndx), lambda dx: law(t, space.integrate(x, dx)))
        return np.reshape(slopes, (mode.nu, space.ndx))

    def in_coordinates(t: float, coordinates: Array) -> Array:
        x = space.normalize(coordinates)
        turn = compute_tangent_map(space, x)
        inverse = np.linalg.solve(turn.T @ turn, turn.T)
        return np.asarray(turn @ of_velocities(t, x) @ inverse)

    return of_velocities if isinstance(space, VectorSpace) else in_coordinates
