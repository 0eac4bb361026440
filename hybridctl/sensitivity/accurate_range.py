"""Range of a linearization along the direction that it amplifies most, by a few simulated motions.

It is cheaper than a `radius`, and needs no direction: it is what `repr` shows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.sensitivity.radius import PerturbedMotions, RunMap, draw_directions

_AMPLIFIED_DIRECTIONS = 4
"""Directions that are tried for an `AccurateRange`: a linear flow ends along none. A choice."""
_NO_EFFECT = 1e-6
"""Growth of a direction up to which it has no effect on the end, relative to the largest growth."""


class AccurateRange(NamedTuple):
    """How far a map holds along the direction of the initial state that it amplifies most.

    A direction along which the map never ends is passed over for the one that is amplified next, at
    most three times.

    Attributes:
        direction: Unit direction (ndx,) of the initial state, in the tangent space.
        growth: Euclidean norm of the perturbation at the end, for each unit of `direction`.
        size: |dx0| along it at which the map is off by a tenth of what it predicts, or at which a
            change of the order of events puts it off by more. Infinite if no size that was tried
            has such an error.
    """

    direction: Array
    growth: float
    size: float


def measure_range(lin: RunMap) -> AccurateRange | None:
    """Return how far a map holds along the direction that it amplifies most.

    The error of a map grows as the square of a perturbation, and the error relative to the
    prediction as its size. So one motion whose relative error is near a tenth tells where it is a
    tenth; sizes are tried until there is one. A smaller motion must have a smaller relative error:
    it shows that the map is a derivative. The recorded input is replayed.

    Args:
        lin: The linearization.

    Returns:
        The range. None if it is not measured: the map is under feedback, whose policy it does not
        have; contacts of one impact touch "at once", within a window that it does not have; no
        direction has an effect; or no motion nearby shows an error near a tenth that falls with
        the size, as where jumps were replaced by others than those of the run.
    """
    if lin.gains is not None or lin.simultaneous != "in turn":
        return None
    found: AccurateRange | None = None
    for direction, growth in _list_amplified(lin):
        size = PerturbedMotions(lin, direction, None, 0.0).find_range()
        if size is None or size < np.inf:
            return None if size is None else AccurateRange(direction, growth, size)
        found = found or AccurateRange(direction, growth, size)
    return found


def measure_end_error(lin: RunMap, dx0: Array) -> float:
    """Return by how much the end of a motion differs from what a map predicts, in its norm.

    The motion replays the recorded input, which is what an open-loop map "in turn" is of.

    Args:
        lin: The linearization.
        dx0: Perturbation (ndx,) of the initial state that changes the end to first order.

    Returns:
        The norm of the difference, relative to that of the predicted perturbation of the end. Zero
        for a difference that tolerances may make. Infinite if the motion cannot be simulated or
        ends in another dimension.
    """
    return PerturbedMotions(lin, dx0, None, 0.0).measure_error(1.0)


def _list_amplified(lin: RunMap) -> list[tuple[Array, float]]:
    """Return unit directions (ndx,) and the norms of the derivatives of the end, largest first.

    They are right singular vectors of linear maps, and the most amplified of some random directions
    and the axes for piecewise linear ones. There are at most four, none of them without an effect.
    """
    ndx = lin.trajectory.arcs[0].space.ndx
    if lin.is_linear:
        _, norms, rows = np.linalg.svd(lin.derivative(np.eye(ndx)).T)
    else:
        rows = draw_directions(ndx)
        norms = np.linalg.norm(lin.derivative(rows), axis=1)
    order = np.argsort(-norms, kind="stable")[:_AMPLIFIED_DIRECTIONS]
    return [
        (rows[i], float(norms[i])) for i in order.tolist() if norms[i] > _NO_EFFECT * norms.max()
    ]
