"""Ends of steps on the constraints of their mode, and when a state is too far off for that."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.held import Held
from hybridctl.hybrid.model import ModeModel
from hybridctl.hybrid.step import failure
from hybridctl.hybrid.tolerances import EXPLAINED, FARTHEST, OFF
from hybridctl.spaces import tangent_map


class StepEnds(NamedTuple):
    """Start and end of a step: times in s, and states (nx,)."""

    start: float
    before: Array
    end: float
    after: Array


def put_back(mode: ModeModel, step: StepEnds, rtol: float, atol: float) -> Array | None:
    """Return the end of a step projected onto what its mode holds; None if it is there already.

    The exact flow never leaves the constraint. So the state is no farther from it than the error
    of the step and what the start of the step was off, and the projection keeps the order of the
    method (Hairer, Lubich, Wanner: Geometric Numerical Integration, IV.4).

    Args:
        mode: The mode of the flow.
        step: The ends of an accepted step.
        rtol: Relative tolerance of the step: each coordinate may be wrong by atol + rtol |x|.
        atol: Absolute tolerance of the step, in the unit of each coordinate.

    Raises:
        IntegrationError: If the state is farther from the constraint than that explains, as where
            the field leaves what the mode holds or a surface has a kink; or if the projection moves
            it far more, as where constraints hardly determine where they hold.
    """
    held, space = mode.held, mode.space
    if held is None or mode.project is None:
        return None
    x = space.normalize(step.after)
    residuals = np.abs(held.residuals(x))
    excess = float((residuals / held.tolerances).max(initial=0.0))
    if excess <= OFF:
        return None
    back = mode.project(x)
    error = atol + rtol * np.maximum(np.abs(step.before), np.abs(x))
    moves = np.abs(back - x)
    if (moves <= EXPLAINED * error).all():  # a state on the constraint is within the error
        return back
    # In one step of h seconds a gap grows by h times its rate, and a rate by `decay` times its gap.
    growth = 1.0 + (step.end - step.start) + held.decay
    left = growth * held.excess(space.normalize(step.before))
    explained = EXPLAINED * _residual_error(mode, held, x, error) + left * held.tolerances
    if not (residuals <= explained).all():
        i = int((residuals / explained).argmax())
        what = (
            f"the flow leaves what its mode holds: after a step of {step.end - step.start:.3g} s "
            f"{held.names[i]} is {residuals[i]:.3g} {held.units[i]}, of which the tolerances of "
            f"the step explain {explained[i]:.3g},"
        )
        raise failure(what, mode, step.end, x)
    moved = float((moves / (error + min(excess, 1.0) * float(held.tolerances.max()))).max())
    if not moved <= FARTHEST:
        raise failure(
            f"the flow leaves what its mode holds: back there its state moves by "
            f"{moves.max():.3g}, {moved:.3g} times as far as it can be off,",
            mode,
            step.end,
            x,
        )
    return back


def _residual_error(mode: ModeModel, held: Held, x: Array, error: Array) -> Array:
    """Return how much errors of the coordinates x (nx,) change each residual at most, (k,)."""
    space = mode.space
    errors = np.abs(np.linalg.pinv(tangent_map(space, x))) @ error  # of the perturbation (ndx,)
    if held.jacobian is not None:
        return np.asarray(np.abs(held.jacobian(x)) @ errors)
    here, each = held.residuals(x), np.diag(errors)
    changes = [np.abs(held.residuals(space.integrate(x, dx)) - here) for dx in each]
    return np.asarray(np.sum(changes, axis=0))
