r"""Implicit steps along one mode, for stretches that are stiff: scipy's Radau and BDF as a stepper.

Their Newton iteration takes the Jacobian of the mode under its law, in the coordinates x of a
manifold with :math:`L(x)` (nx, ndx), the map from velocities to rates of coordinates,

.. math:: J = L (D_x f + D_u f D_x u) L^+,

which leaves out how L turns with x: a rough J costs iterations, not accuracy. D_x u of laws that
have no derivative (see `DifferentiableLaw`) is found by differences of the law alone: without it a
stiff feedback would make steps short. For modes without derivatives scipy differences the field.
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
from hybridctl.hybrid.radau import CompiledRadau
from hybridctl.hybrid.series import FRACTIONS, TO_SLOPES
from hybridctl.hybrid.step import DrivenMode, Step, make_failure

_NEWTON_TOLERANCE = 1e-3
"""Error that Newton's iteration may leave, relative to the tolerance of a step. With 1e-2, slides
that begin at 1e-8 m/s no longer have their direction as exactly as the step's error says."""
_EXTENSION_TOLERANCE = 0.2
"""Error of the polynomial of a step beyond its end, relative to the tolerance, with which it counts
as the next step."""
_EXTENSION_LENGTH = 1.0
"""Greatest length that steps may have, relative to the next one by its error, with which the last
step is extended."""
_FIRST_STEP_FRACTION = 0.1
"""First step, relative to the one that the size of the field and of its change suggest. Where
friction turns what has just begun to slide, that is ten to fifty times too long, and each attempt
costs as much as a step; one that is too short costs one more step."""


class ImplicitStepper:
    """Accepted steps of scipy's Radau or BDF, with the interface of `explicit.ExplicitStepper`.

    Args:
        method: The solver's class.
        motion: The mode under its law.
        t: Time at the start, s.
        x: Coordinates (nx,) there.
        t_end: Time at the end of the flow, s, before or after the start.
        rtol: Relative tolerance of each coordinate.
        atol: Absolute tolerance, in the unit of each coordinate.
        first_step: Length of the first attempt, s. If None, a fraction of scipy's.
    """

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
        # The dense output of a step of Radau is a cubic.
        self._motion, self._is_radau = motion, method is Radau
        # Whether the Jacobian has changed within steps, so that each begins with its own.
        self._renews_jacobian = False
        self._step_start = math.nan  # of the step in progress, s
        self._last_evaluated: tuple[float, Array] = (t, x)  # where the rate was asked for last
        jacobian = _make_jacobian(motion)
        self._make_solver = partial(
            _make_solver,
            _find_compiled_method(motion) if self._is_radau else method,
            self._evaluate_rate,
            t_bound=t_end,
            rtol=rtol,
            atol=atol,
            jac=None if jacobian is None else partial(self._evaluate_jacobian, jacobian),
        )
        first = None if first_step is None else min(first_step, abs(t_end - t))
        self._solver = self._make_solver(t, x, first_step=first)
        if first is None and self._is_radau:  # BDF keeps differences over this length
            self._solver.h_abs *= _FIRST_STEP_FRACTION
        self._guards: Array | None = None  # (n,) at the end of the last step, if they are known

    @property
    def length(self) -> float:
        """Length that the next step will try, s."""
        return float(self._solver.h_abs)

    def advance(self, longest: float) -> Step:
        """Return one accepted step.

        Args:
            longest: Greatest length of the step, s.

        Raises:
            StepSizeError: Steps that are short enough no longer change the time.
            IntegrationError: The field or the input is not finite.
            ValueError: An error of scipy, or of the user's functions.
        """
        solver = self._solver
        # Where the pace shortens steps towards a stop, the last polynomial may reach it.
        is_shortened = self._is_radau and self._motion.mode.steady_pace is None
        if is_shortened and longest < _EXTENSION_LENGTH * solver.h_abs:
            step = self._extend_last_step(longest)
            if step is not None:
                return step
        solver.max_step = longest
        if self._renews_jacobian and not solver.current_jac:
            solver.J = solver.jac(solver.t, solver.y, solver.f)
            solver.current_jac, solver.LU_real, solver.LU_complex = True, None, None
        self._step_start = solver.t
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # reported below
                solver.step()
        except ValueError as error:
            if "infs or NaNs" not in str(error):  # scipy's, of a matrix to be factorised
                raise
            raise self._failure("the vector field is not finite") from error
        if solver.status == "failed":
            raise self._failure("steps of a stiff flow no longer advance the time", StepSizeError)
        start, end = float(solver.t_old), float(solver.t)
        states = solver.dense_output()(start + (end - start) * FRACTIONS).T
        states[-1] = solver.y
        return self._sample_step(start, end, states)

    def _extend_last_step(self, length: float) -> Step | None:
        """Return the polynomial of the last step beyond its end, if it solves the field there, too.

        What it misses of the field is turned into an error of the state by an implicit step of
        Euler's method from there, which divides by what is stiff. Towards a pole of the Jacobian,
        as where sliding comes to a stop, Newton's steps take a part of what is left, however smooth
        the solution is. The solver stands at the end of the extension afterwards.

        Args:
            length: Length of the extension, s.
        """
        solver = self._solver
        start, end = float(solver.t), float(solver.t + solver.direction * length)
        if solver.sol is None or solver.direction * (end - solver.t_bound) > 0.0:
            return None  # there is no last step, or the flow ends before
        states = solver.sol(start + (end - start) * FRACTIONS).T
        states[0], x = solver.y, states[-1]
        rate = self._evaluate_rate(end, x)
        missed = rate - 2.0 / (end - start) * (TO_SLOPES[-1] @ states)
        if not np.isfinite(missed).all():
            return None
        jacobian = solver.jac(end, x, rate)
        try:
            error = np.linalg.solve(solver.I / (end - start) - jacobian, missed)
        except np.linalg.LinAlgError:
            return None
        allowed = solver.atol + solver.rtol * np.abs(x)
        if not np.linalg.norm(error / allowed) <= _EXTENSION_TOLERANCE * np.sqrt(x.size):
            return None
        solver.t_old, solver.t, solver.y, solver.f = start, end, x, rate
        solver.J, solver.current_jac, solver.LU_real, solver.LU_complex = jacobian, True, None, None
        return self._sample_step(start, end, states)

    def _sample_step(self, start: float, end: float, states: Array) -> Step:
        motion, after = self._motion, self._motion.find_known_guards(end, states[-1])
        step = motion.sample_step(start, end, states, self._guards, after, self._is_radau)
        self._guards = None if step.guards is None else step.guards[-1]
        return step

    def _evaluate_rate(self, t: float, x: Array) -> Array:
        self._last_evaluated = t, x
        return self._motion.rate(t, x)

    def _evaluate_jacobian(
        self, jacobian: Callable[[float, Array], Array], t: float, x: Array
    ) -> Array:
        """Return the Jacobian, and note when the solver asks for it again at the start of a step.

        It changes as fast as the solution then, and the steps that follow begin with their own.
        """
        self._renews_jacobian = self._renews_jacobian or (self._is_radau and t == self._step_start)
        return jacobian(t, x)

    def _failure(
        self, what: str, kind: type[IntegrationError] = IntegrationError
    ) -> IntegrationError:
        """Return the error of a step that failed, or raise that of the field where it was last."""
        self._motion.compute_checked_rate(*self._last_evaluated)
        return make_failure(what, self._motion.mode, self._solver.t, self._solver.y, kind)

    def restart(self, x: Array) -> None:
        """Go on from another state at the same time.

        Args:
            x: Coordinates (nx,).
        """
        old = self._solver
        left = abs(old.t_bound - old.t)
        if left > 0.0:
            self._solver = self._make_solver(old.t, x, first_step=min(old.h_abs, left))
        self._guards = None

    def end_step_at(self, step: Step, t: float) -> Step:
        """Return the step as it is, whose polynomial reaches beyond t.

        Args:
            step: The step.
            t: Time in s within the step.
        """
        return step


def _find_compiled_method(motion: DrivenMode) -> Callable[..., OdeSolver]:
    """Return Radau, with compiled Newton iterations where the mode has them under its law.

    Without derivatives of the field scipy's differences call it anyway.
    """
    steps, law = motion.mode.compiled_steps, motion.law
    method: Callable[..., OdeSolver] = Radau
    if steps is None or not isinstance(law, HeldInput):
        return method
    is_compiled = steps.solves_collocations and motion.mode.differentiable
    return partial(CompiledRadau, steps, law) if is_compiled else method


def _make_solver(method: Callable[..., OdeSolver], *at: Any, **settings: Any) -> OdeSolver:
    """Return scipy's solver, without its checks of the small matrices that it divides by.

    Args:
        method: The solver's class.
        at: Its positional arguments: function, time and state.
        settings: Its further arguments.
    """
    solver = method(*at, **settings)
    if isinstance(solver, Radau):
        solver.lu, solver.solve_lu = _factorise, _solve_factorised
        solver.newton_tol = _NEWTON_TOLERANCE
    return solver


def _factorise(matrix: Any) -> tuple[Any, Any]:
    factors, pivots, _ = (lapack.zgetrf if np.iscomplexobj(matrix) else lapack.dgetrf)(matrix)
    return factors, pivots


def _solve_factorised(factored: tuple[Any, Any], right: Any) -> Any:
    solve = lapack.zgetrs if np.iscomplexobj(factored[0]) else lapack.dgetrs
    return solve(*factored, right)[0]


def _make_jacobian(motion: DrivenMode) -> Callable[[float, Array], Array] | None:
    """Return the Jacobian (nx, nx) of the rate as a function of (t, x); None for a mode without.

    Args:
        motion: The mode under its law.
    """
    mode, law, space = motion.mode, motion.law, motion.mode.space
    if not mode.differentiable:
        return None

    def compute_jacobian(t: float, x: Array) -> Array:
        d = (motion.find_known_point(t, x) or mode.calc(t, x, law(t, x))).field_jacobian
        if isinstance(law, HeldInput):
            return d.state
        return d.state + d.input @ compute_law_jacobian(t, x)

    def compute_law_jacobian(t: float, x: Array) -> Array:
        if isinstance(law, DifferentiableLaw):
            return law.jacobian(t, x)
        slopes = approx_fprime(np.zeros(space.ndx), lambda dx: law(t, space.integrate(x, dx)))
        return np.reshape(slopes, (mode.nu, space.ndx))

    def compute_coordinate_jacobian(t: float, coordinates: Array) -> Array:
        x = space.normalize(coordinates)
        to_coordinates = compute_tangent_map(space, x)
        back = np.linalg.solve(to_coordinates.T @ to_coordinates, to_coordinates.T)
        return np.asarray(to_coordinates @ compute_jacobian(t, x) @ back)

    return compute_jacobian if isinstance(space, VectorSpace) else compute_coordinate_jacobian
