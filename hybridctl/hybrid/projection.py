"""Projection of the ends of steps onto the constraints of their mode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.spaces import compute_tangent_map
from hybridctl.hybrid.model import Held, ModeModel
from hybridctl.hybrid.step import make_failure
from hybridctl.hybrid.tolerances import (
    MAX_ERROR_RATIO,
    MAX_PROJECTION_RATIO,
    MIN_PROJECTED_RESIDUAL,
)


class StepEnds(NamedTuple):
    """The ends of a step.

    Attributes:
        start: Start time, s.
        before: State (nx,) at the start.
        end: End time, s.
        after: State (nx,) at the end.
    """

    start: float
    before: Array
    end: float
    after: Array


def project_step_end(mode: ModeModel, step: StepEnds, rtol: float, atol: float) -> Array | None:
    """Return the end of a step, projected onto the constraints of its mode if it is off them.

    The exact flow never leaves a constraint. So the residual at the end is no larger than what the
    error of the step explains, plus what the start of the step was off; and the projection keeps
    the order of the method (Hairer, Lubich, Wanner: Geometric Numerical Integration, IV.4). It is
    called after each accepted step.

    Args:
        mode: The mode of the flow.
        step: The ends of an accepted step.
        rtol: Relative tolerance of the step: each coordinate may be wrong by atol + rtol |x|.
        atol: Absolute tolerance of the step, in the unit of each coordinate.

    Returns:
        The projected state (nx,). None if nothing is to be done: the mode has no constraints or no
        projection, or no residual is above `MIN_PROJECTED_RESIDUAL` of its tolerance.

    Raises:
        IntegrationError: If a residual is larger than that explains, as where the field leaves the
            constraint or a surface has a kink. Also if the projection moves an explained state
            farther than `MAX_PROJECTION_RATIO` allows, as where constraints are nearly singular.
    """
    held, space = mode.held, mode.space
    if held is None or mode.project is None:
        return None
    x = space.normalize(step.after)
    residuals = np.abs(held.residuals(x))
    excess = float((residuals / held.tolerances).max(initial=0.0))
    if excess <= MIN_PROJECTED_RESIDUAL:
        return None
    projected = mode.project(x)
    # Errors and moves are compared coordinate by coordinate, as the integrator controls them.
    error = atol + rtol * np.maximum(np.abs(step.before), np.abs(x))
    moves = np.abs(projected - x)
    if (moves <= MAX_ERROR_RATIO * error).all():
        # There is a state on the constraint within the error of the step. This is the usual case,
        # and needs no derivatives of the residuals.
        return projected
    # What the start was off is explained too. In a step of h seconds a gap grows by h times its
    # rate, and a rate by `decay` times its gap: together by at most 1 + h + decay.
    growth = 1.0 + (step.end - step.start) + held.decay
    from_start = growth * held.excess(space.normalize(step.before))
    from_errors = MAX_ERROR_RATIO * _bound_residual_errors(mode, held, x, error)
    explained = from_errors + from_start * held.tolerances
    if not (residuals <= explained).all():
        i = int((residuals / explained).argmax())
        what = (
            f"the flow leaves what its mode holds: after a step of {step.end - step.start:.3g} s "
            f"{held.names[i]} is {residuals[i]:.3g} {held.units[i]}, of which the tolerances of "
            f"the step explain {explained[i]:.3g},"
        )
        unexplained = make_failure(what, mode, step.end, x)
        raise unexplained
    # The state can be off by its error, and by its residuals up to their tolerances: these count as
    # coordinates, because well-determined constraints change by order one with them.
    allowed = error + min(excess, 1.0) * float(held.tolerances.max())
    ratio = float((moves / allowed).max())
    if not ratio <= MAX_PROJECTION_RATIO:
        what = (
            f"the flow leaves what its mode holds: back there its state moves by "
            f"{moves.max():.3g}, {ratio:.3g} times as far as it can be off,"
        )
        too_far = make_failure(what, mode, step.end, x)
        raise too_far
    return projected


def _bound_residual_errors(mode: ModeModel, held: Held, x: Array, error: Array) -> Array:
    """Return bounds (k,) of the changes of k residuals by errors of the state.

    Without a Jacobian of the residuals, their changes are differences over errors of that size.

    Args:
        mode: The mode.
        held: Its constraints.
        x: State (nx,).
        error: Absolute errors (nx,) of the coordinates.
    """
    space = mode.space
    # Errors of the perturbation (ndx,), of which fewer coordinates may be free than the state has.
    errors = np.abs(np.linalg.pinv(compute_tangent_map(space, x))) @ error
    if held.jacobian is not None:
        return np.asarray(np.abs(held.jacobian(x)) @ errors)
    residuals = held.residuals(x)
    changes = [np.abs(held.residuals(space.integrate(x, dx)) - residuals) for dx in np.diag(errors)]
    return np.asarray(np.sum(changes, axis=0))
