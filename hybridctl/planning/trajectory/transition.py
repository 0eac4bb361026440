r"""The state transition of a plan as part of its programme, so that a cost can shape its events.

Deviations :math:`V = \Phi D` (nx, k) stand beside the states as unknowns, at the same points of
collocation. Between events :math:`\dot V = D_x f\, V`; an event of guard g that leads from f to f+
by the reset R, with :math:`\dot g` along the motion and its inputs, makes of them

.. math:: V^+ = D_x R\, V + \frac{f^+ - D_x R\, f}{\dot g}\, D_x g\, V .

All of it is linear in V, and first derivatives of what is written here are second ones of the plan.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import casadi as ca

from hybridctl.mechanics.constrained.phase import contact_modes
from hybridctl.planning.trajectory.functions import (
    PhaseFunctions,
    guard_names,
    jump_of,
    mode_on,
)
from hybridctl.planning.trajectory.pointwise import ColumnFunction
from hybridctl.planning.trajectory.task import Expression, Task


class Deviations(NamedTuple):
    """Symbols of a phase: V in columns, at knots (nx k, N + 1) and at points (nx k, N d)."""

    knots: Expression
    points: Expression


def deviation_flow(
    f: PhaseFunctions, v: Deviations, x: Expression, u: Expression, length: Expression
) -> ColumnFunction:
    """The flow h D_x f V at the points of a phase, of intervals of the length h."""
    state, inputs, h = ca.SX.sym("x", x.shape[0]), ca.SX.sym("u", u.shape[0]), ca.SX.sym("h")
    columns = ca.SX.sym("V", x.shape[0], v.points.shape[0] // x.shape[0])
    slope = ca.jacobian(f.field(state, inputs), state)
    moved = h * ca.vec(slope @ columns)
    made = ca.Function("moved", [state, ca.vec(columns), inputs, h], [moved])
    return ColumnFunction.over(made, x, v.points, u, length)


def deviations_after(task: Task, k: int, count: int) -> Any:
    """A function (V, x, u, du/dt, f after) -> V after phase k, of `count` deviations."""
    mode = mode_on(task, k, contact_modes(task.phases[k].mode))
    x, u = mode.x, mode.u
    guard = mode.guards[guard_names(task, k).index(task.phases[k].ends[0])]
    jump = jump_of(task, k)
    reset = ca.jacobian(x if jump is None else jump(x)[0], x)
    rate, after = ca.SX.sym("rate", u.numel()), ca.SX.sym("after", x.numel())
    columns = ca.SX.sym("V", x.numel(), count)
    slope = ca.jacobian(guard, x)
    falls = slope @ mode.field + ca.jacobian(guard, u) @ rate
    found = reset @ columns + (after - reset @ mode.field) @ (slope @ columns) / falls
    given = [ca.vec(columns), x, u, rate, after]
    return ca.Function("after", given, [ca.vec(found)])
