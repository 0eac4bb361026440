"""Implicit steps along one mode by scipy's BDF as a stepper, for who chooses it.

Its Newton iteration takes the Jacobian of the mode under its law in coordinates, see
`DrivenMode.differentiate_rate`. For modes without derivatives scipy differences the field.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.integrate import BDF

from hybridctl.base.checks import Array
from hybridctl.base.errors import IntegrationError, StepSizeError
from hybridctl.base.spaces import invert_tangent_maps
from hybridctl.hybrid.series import FRACTIONS
from hybridctl.hybrid.step import DrivenMode, Step, make_failure


class BdfStepper:
    """Accepted steps of scipy's BDF, with the interface of `explicit.ExplicitStepper`.

    Args:
        motion: The mode under its law.
        t: Time at the start, s.
        x: Coordinates (nx,) there.
        t_end: Time at the end of the flow, s, before or after the start.
        rtol: Relative tolerance of each coordinate.
        atol: Absolute tolerance, in the unit of each coordinate.
        first_step: Length of the first attempt, s. If None, scipy's.
    """

    def __init__(
        self,
        motion: DrivenMode,
        t: float,
        x: Array,
        t_end: float,
        rtol: float,
        atol: float,
        first_step: float | None = None,
    ) -> None:
        self._motion = motion
        self._last_evaluated: tuple[float, Array] = (t, x)  # where the rate was asked for last
        self._make_solver = partial(
            BDF,
            self._evaluate_rate,
            t_bound=t_end,
            rtol=rtol,
            atol=atol,
            jac=self._evaluate_jacobian if motion.mode.differentiable else None,
        )
        first = None if first_step is None else min(first_step, abs(t_end - t))
        self._solver: Any = self._make_solver(t, x, first_step=first)
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
        solver, motion = self._solver, self._motion
        solver.max_step = longest
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
        after = motion.find_known_guards(end, states[-1])
        step = motion.sample_step(start, end, states, self._guards, after)
        self._guards = None if step.guards is None else step.guards[-1]
        return step

    def _evaluate_rate(self, t: float, x: Array) -> Array:
        self._last_evaluated = t, x
        return self._motion.rate(t, x)

    def _evaluate_jacobian(self, t: float, x: Array) -> Array:
        """Return the Jacobian (nx, nx) of the rate of the coordinates."""
        slope, to_coordinates = self._motion.differentiate_rate(t, x)
        if to_coordinates is None:
            return slope
        return np.asarray(to_coordinates @ slope @ invert_tangent_maps(to_coordinates))

    def _failure(
        self, what: str, kind: type[IntegrationError] = IntegrationError
    ) -> IntegrationError:
        """Return the error of a step that failed, or raise that of the field where it was last."""
        self._motion.compute_checked_rate(*self._last_evaluated)
        return make_failure(what, self._motion.mode, self._solver.t, self._solver.y, kind)

    def restart(self, x: Array) -> None:
        """Go on from another state at the same time; at the end of the flow nothing is done.

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
