r"""The state transition of a plan as part of its programme, so that a cost can shape its events.

Perturbations :math:`V = \Phi D` (nx, k) are further unknowns beside the states, at the same knots
and collocation points. Between events :math:`\dot V = D_x f\, V`. At an event of guard g, which
leads from the field f by the reset R to the field f+, they jump by the saltation matrix

.. math:: V^+ = D_x R\, V + \frac{f^+ - D_x R\, f}{\dot g}\, D_x g\, V,

with :math:`\dot g` along the motion and its inputs. All equations are linear in V. They contain
first derivatives of the dynamics, so that second derivatives of the programme contain third ones
of the dynamics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.planning.collocation import (
    ConstraintBlock,
    MappedFunction,
    PhaseVariables,
    build_defects,
    compute_input_basis,
    compute_point_fractions,
)
from hybridctl.planning.phase_functions import (
    Limit,
    PhaseFunctions,
    build_jump,
    build_mode_field,
    get_guard_names,
)
from hybridctl.planning.task import Expression, Phase, Task


class PhasePerturbations(NamedTuple):
    """Variables of a phase: the columns of V one below the other, CasADi symbols.

    Attributes:
        knots: Perturbations (nx k, N + 1) at the ends of intervals.
        points: Perturbations (nx k, N d) at the collocation points.
    """

    knots: Expression
    points: Expression


class TransitionEquations(NamedTuple):
    """What the programme gets for the cost of the state transition.

    Attributes:
        blocks: Equations of the perturbations of all phases.
        mapped: Functions at collocation points in these equations.
        cost: The cost (1, 1).
    """

    blocks: list[ConstraintBlock]
    mapped: list[MappedFunction]
    cost: Expression


def build_perturbations(task: Task) -> tuple[PhasePerturbations, ...]:
    """Return new symbols for the perturbations of each phase.

    Args:
        task: A task with `Task.transition`.
    """
    assert task.transition is not None
    size = task.transition.get_start_perturbations(task.system.space.nx).size
    return tuple(
        PhasePerturbations(
            ca.MX.sym(f"deviations{k}", size, phase.intervals + 1),
            ca.MX.sym(f"moving{k}", size, phase.intervals * phase.points),
        )
        for k, phase in enumerate(task.phases)
    )


def build_transition_equations(
    task: Task,
    variables: Sequence[PhaseVariables],
    perturbations: Sequence[PhasePerturbations],
    functions: Sequence[PhaseFunctions],
) -> TransitionEquations:
    """Return the equations of the perturbations, and their cost.

    At the start they are the columns of D. The last event is followed by the first phase only if
    the task has a symmetry.

    Args:
        task: A task with `Task.transition`.
        variables: Variables of each phase.
        perturbations: Perturbations of each phase, as `build_perturbations` returns them.
        functions: Functions of each phase.
    """
    assert task.transition is not None
    nx = task.system.space.nx
    blocks, mapped = list[ConstraintBlock](), list[MappedFunction]()
    start = task.transition.get_start_perturbations(nx)
    before: Expression = ca.DM(start.ravel("F"))
    for k, (v, d, f) in enumerate(zip(variables, perturbations, functions, strict=True)):
        flow = _map_flow(task.phases[k], task.degree, f, v, d)
        mapped.append(flow)
        exact = (Limit("deviation", "", 0.0, 0.0),) * before.shape[0]
        blocks.append(ConstraintBlock(d.knots[:, 0] - before, exact, k, np.zeros(1), is_hard=True))
        blocks += build_defects(task.phases[k], k, d.knots, d.points, flow.values, exact)
        before = d.knots[:, -1]
        if task.find_mode_after(k) is not None:
            next_phase = (k + 1) % len(variables)
            w = variables[next_phase]
            after = functions[next_phase].field(w.knots[:, 0], w.build_input(0.0))
            if task.symmetry is not None and next_phase == 0:
                # The start is the image S x of the state after the event: fields map alike.
                after = ca.DM(np.linalg.inv(task.symmetry.matrix)) @ after
            saltation = _build_saltation(task, k, start.shape[1])
            inputs = v.build_input(1.0), v.build_final_input_rate()
            before = saltation(before, v.knots[:, -1], *inputs, after)
    spread = task.transition.get_end_outputs(nx) @ ca.reshape(before, nx, -1)
    return TransitionEquations(blocks, mapped, 0.5 * task.transition.weight * ca.sumsqr(spread))


def _map_flow(
    phase: Phase, degree: int, f: PhaseFunctions, v: PhaseVariables, d: PhasePerturbations
) -> MappedFunction:
    """Return h D_x f V at the collocation points of a phase, h being the length of an interval.

    Args:
        phase: The phase.
        degree: Degree of the inputs.
        f: Functions of the phase.
        v: Variables of the phase.
        d: Perturbations of the phase.
    """
    fractions = compute_point_fractions(phase)
    inputs = v.inputs @ ca.DM(compute_input_basis(fractions, degree))
    length = ca.repmat(v.duration / phase.intervals, 1, len(fractions))
    nx = v.points.shape[0]
    x, u, h = ca.SX.sym("x", nx), ca.SX.sym("u", inputs.shape[0]), ca.SX.sym("h")
    columns = ca.SX.sym("V", nx, d.points.shape[0] // nx)
    slope = ca.jacobian(f.field(x, u), x)
    rate = h * ca.vec(slope @ columns)
    function = ca.Function("moved", [x, ca.vec(columns), u, h], [rate])
    return MappedFunction.map_over(function, v.points, d.points, inputs, length)


def _build_saltation(task: Task, k: int, count: int) -> Any:
    """Return the function (V, x, u, du/dt, f+) -> V+ of the event that ends phase k.

    Args:
        task: The task.
        k: Index of the phase, which ends with one guard.
        count: Number of perturbations in V.
    """
    mode = build_mode_field(task, k, contact_modes(task.phases[k].mode))
    x, u = mode.x, mode.u
    guard = mode.guards[get_guard_names(task, k).index(task.phases[k].ends[0])]
    jump = build_jump(task, k)
    reset = ca.jacobian(x if jump is None else jump(x)[0], x)
    rate, after = ca.SX.sym("rate", u.numel()), ca.SX.sym("after", x.numel())
    columns = ca.SX.sym("V", x.numel(), count)
    slope = ca.jacobian(guard, x)
    guard_rate = slope @ mode.field + ca.jacobian(guard, u) @ rate
    result = reset @ columns + (after - reset @ mode.field) @ (slope @ columns) / guard_rate
    return ca.Function("after", [ca.vec(columns), x, u, rate, after], [ca.vec(result)])
