r"""Mesh refinement: more intervals for phases that miss the dynamics or limits between points.

An optimum exploits the errors of its discretisation. On few intervals a foot that has to stick
slides away, as that is cheaper, or pulls between the points at which it has to press. So the
dynamics are integrated from the start of each interval under the planned inputs and compared with
the planned end, and limits are evaluated between the points. A phase that misses one of them gets
twice as many intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.arc import Arc
from hybridctl.planning.phase_functions import PhaseFunctions, step_runge_kutta
from hybridctl.planning.plan import InputCurve, MotionPlan
from hybridctl.planning.task import Guess, Task
from hybridctl.planning.transcription import Transcription

_STEPS_PER_INTERVAL = 20
"""Runge-Kutta steps in each interval, and samples of limits. On a falling pole with intervals of
0.4 s the steps find the error of the dynamics to 1e-3 of it
(test_an_interval_misses_by_what_another_integration_finds)."""
_MARGIN_SHARE = 0.5
"""Share of a margin, a lower bound above zero, that has to be left between the points. A choice."""
_LIMIT_TOLERANCE = 0.01
"""Violation of a limit between the points that is tolerated, relative to `Limit.size`. A choice."""


def refine_mesh(programme: Transcription, plan: MotionPlan, tolerance: float) -> Task | None:
    """Return the task with twice the intervals in phases that are too coarse; None if none is.

    Args:
        programme: The programme.
        plan: A plan found for it.
        tolerance: Largest difference between the end of an interval and its integration, relative
            to 1 + |x|.
    """
    task, curves = programme.task, zip(plan.motion.arcs, plan.curves, strict=True)
    coarse = [
        compute_dynamics_error(f.field, arc, curve, phase.intervals) > tolerance
        or compute_limit_violation(f, arc, phase.intervals) > _LIMIT_TOLERANCE
        for f, (arc, curve), phase in zip(programme.functions, curves, task.phases, strict=True)
    ]
    phases = [
        replace(phase, intervals=2 * phase.intervals) if is_coarse else phase
        for phase, is_coarse in zip(task.phases, coarse, strict=True)
    ]
    return replace(task, phases=phases) if any(coarse) else None


def start_from_plan(
    programme: Transcription, arcs: Sequence[Arc], curves: Sequence[InputCurve]
) -> Array:
    """Return the variables (n,) of a programme that represent a plan of the same phases.

    Inputs of another degree are cut or filled with zeros.

    Args:
        programme: The programme, on any mesh.
        arcs: Arcs of the plan.
        curves: Its inputs, one for each arc.
    """
    size = programme.task.degree + 1

    def resize(coefficients: Array) -> Array:
        """Return Chebyshev coefficients (size, nu)."""
        resized = np.zeros((size, coefficients.shape[1]))
        resized[: len(coefficients)] = coefficients[:size]
        return resized

    return programme.compute_start(
        make_guess(arcs), [(resize(curve.coefficients), curve.length) for curve in curves]
    )


def make_guess(arcs: Sequence[Arc]) -> Guess:
    """Return the guess of states (nx,) by phase and fraction of the phase that arcs are.

    Args:
        arcs: Arcs of a plan, one for each phase.
    """
    return lambda k, fraction: arcs[k](arcs[k].start + fraction * (arcs[k].end - arcs[k].start))


def compute_dynamics_error(field: Any, arc: Arc, curve: InputCurve, intervals: int) -> float:
    """Return the largest difference between ends of intervals and integrations from their starts.

    Args:
        field: CasADi function (x, u) -> dx/dt of the phase.
        arc: The planned arc.
        curve: Its inputs.
        intervals: Number of intervals.

    Returns:
        Largest entry over all intervals, relative to 1 + |x|.
    """
    knots = np.linspace(arc.start, arc.end, intervals + 1)
    rate, h = field.map(intervals), (arc.end - arc.start) / (intervals * _STEPS_PER_INTERVAL)

    t, x = knots[:-1], arc(knots[:-1]).T
    for _ in range(_STEPS_PER_INTERVAL):
        inputs = curve(t), curve(t + 0.5 * h), curve(t + h)
        x, t = step_runge_kutta(lambda x, u: np.asarray(rate(x, u)), x, inputs, h), t + h
    planned = arc(knots[1:]).T
    return float((np.abs(x - planned) / (1.0 + np.abs(planned))).max())


def compute_limit_violation(f: PhaseFunctions, arc: Arc, intervals: int) -> float:
    """Return the largest violation of a path limit between the points, relative to its size.

    Half of a margin may be used up there; a margin is a lower bound above zero.

    Args:
        f: Functions of the phase.
        arc: The planned arc.
        intervals: Number of intervals.

    Returns:
        The violation, negative if all limits are met; zero without limits.
    """
    if not f.path.limits:
        return 0.0
    fractions = np.linspace(0.0, 1.0, intervals * _STEPS_PER_INTERVAL + 1)[1:-1]
    times = arc.start + fractions * (arc.end - arc.start)
    values = np.asarray(f.path.function.map(len(times))(arc(times).T, arc.input(times).T))
    violations = []
    for row, limit in zip(values, f.path.limits, strict=True):
        share = _MARGIN_SHARE if limit.lower > 0.0 else 1.0
        lower = share * limit.compute_lower_bounds(fractions)
        violations.append(np.maximum(lower - row, row - limit.upper).max() / limit.size)
    return float(max(violations))
