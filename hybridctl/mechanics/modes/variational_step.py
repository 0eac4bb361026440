r"""Steps of a mode with their derivative by the start, stage by stage.

A step of DOP853 integrates the state and, along its stages x_i, the variational equation of
perturbations in tangent coordinates,

.. math:: L_i = A(x_i)\, (1 + h \sum_j a_{ij} L_j), \quad A = D_x f + T(f),
          \quad \Phi = 1 + h \sum_i b_i L_i,

with the transport T of the space. State and matrix are one system of equations, so that both have
the order of the method, and error estimates of their own. The kernel takes the same step in C
(`variational_step.c`) where it has the bodies of the robot and covers all stages; elsewhere
compiled modes take field and derivatives at the points of this loop from it.
"""

from __future__ import annotations

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.hybrid.model import ModeModel, StepRequest, StepTransition
from hybridctl.hybrid.tableau import DOP853_TABLEAU
from hybridctl.sensitivity.propagation import linearize_field_at

_STAGES = DOP853_TABLEAU.stages
_NODES = (0.0, *DOP853_TABLEAU.nodes)


def take_variational_step(mode: ModeModel, ahead: StepRequest, u: Array) -> StepTransition | None:
    """Return a step with its transition matrix.

    Args:
        mode: The mode.
        ahead: Start, length and tolerances of the step.
        u: Input (nu,), held on the step.

    Returns:
        The step, without noise. Its error is the larger one of those of state and matrix, NaN if
        one of them is not finite. None if the step exceeds the step-size limits of the mode at its
        start, as where friction of slow contacts is stiff, and if the equations of a stage have no
        solution.
    """
    pace = mode.steady_pace or mode.calc(ahead.t, ahead.x, u).pace
    if abs(ahead.h) > min(pace.longest_step, pace.relaxation):
        return None
    x, h, space = ahead.x, ahead.h, mode.space
    rates = np.empty((_STAGES + 1, len(x)))
    slopes = np.empty((_STAGES + 1, space.ndx**2))
    unit = np.eye(space.ndx)
    state, matrix = x, unit
    for i in range(_STAGES + 1):
        point = mode.calc(ahead.t + _NODES[i] * h, space.normalize(state), u)
        try:
            rates[i] = space.rate(point.x, point.field)
            slopes[i] = (linearize_field_at(point).state @ matrix).ravel()
        except SimulationError:  # whoever follows the arc itself finds out, and says so
            return None
        if i < _STAGES:
            row = DOP853_TABLEAU.rows[i]
            state = x + h * (row @ rates[: i + 1])
            matrix = unit + h * (row @ slopes[: i + 1]).reshape(unit.shape)
    errors = [
        DOP853_TABLEAU.error(h, own, ahead.atol + ahead.rtol * np.maximum(np.abs(a), np.abs(b)))
        for own, a, b in ((rates, x, state), (slopes, unit.ravel(), matrix.ravel()))
    ]
    # Not `max`, which passes over a NaN that comes second.
    return StepTransition(float(np.max(errors)), state, matrix)
