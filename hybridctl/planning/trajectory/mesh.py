r"""Meshes that are fine enough: what a plan misses between its points of collocation.

An optimum makes use of errors. On few intervals a foot that is to stick slides away, as that is
cheaper, or pulls between the points at which it is to press. So from the start of each interval the
motion is integrated under the planned inputs and compared with the planned end, limits are looked
at between the points, and phases that miss one of them get twice as many intervals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.arc import Arc
from hybridctl.planning.trajectory.functions import PhaseFunctions, stepped
from hybridctl.planning.trajectory.plan import InputCurve, MotionPlan
from hybridctl.planning.trajectory.task import Task
from hybridctl.planning.trajectory.transcription import Transcription

_STEPS = 20  # of Runge and Kutta's method in each interval
_SHARE = 0.5  # of a margin, which is to be left between the points
_BROKEN = 0.01  # of its size, by which a limit may be missed there beside this


def divided(programme: Transcription, plan: MotionPlan, tolerance: float) -> Task | None:
    """The task with twice the intervals in phases that are too coarse; None where none is.

    tolerance: by how much an interval may miss its end, relative to 1 + |x|.
    """
    task, parts = programme.task, zip(plan.motion.arcs, plan.curves, strict=True)
    coarse = [
        missed_states(f.field, arc, curve, phase.intervals) > tolerance
        or missed_limits(f, arc, phase.intervals) > _BROKEN
        for f, (arc, curve), phase in zip(programme.functions, parts, task.phases, strict=True)
    ]
    phases = [
        replace(phase, intervals=2 * phase.intervals) if too else phase
        for phase, too in zip(task.phases, coarse, strict=True)
    ]
    return replace(task, phases=phases) if any(coarse) else None


def begun(programme: Transcription, plan: MotionPlan) -> Array:
    """The variables (n,) of a programme, on any mesh, that are a plan of the same phases."""
    arcs, curves = plan.motion.arcs, plan.curves

    def states(k: int, share: float) -> Array:
        return arcs[k](min(curves[k].start + share * curves[k].length, arcs[k].end))

    return programme.start(states, [(curve.coefficients, curve.length) for curve in curves])


def missed_states(field: Any, arc: Arc, curve: InputCurve, intervals: int) -> float:
    """By how much an interval of a phase misses its end at most, relative to 1 + |x|."""
    knots = np.linspace(arc.start, arc.end, intervals + 1)
    rate, h = field.map(intervals), (arc.end - arc.start) / (intervals * _STEPS)

    t, x = knots[:-1], arc(knots[:-1]).T
    for _ in range(_STEPS):
        inputs = curve(t), curve(t + 0.5 * h), curve(t + h)
        x, t = stepped(lambda x, u: np.asarray(rate(x, u)), x, inputs, h), t + h
    due = arc(knots[1:]).T
    return float((np.abs(x - due) / (1.0 + np.abs(due))).max())


def missed_limits(f: PhaseFunctions, arc: Arc, intervals: int) -> float:
    """By how much of its size a limit of a phase is missed at most, with a part of its margin.

    A margin is a lower bound above zero.
    """
    if not f.inside.limits:
        return 0.0
    at = np.linspace(0.0, 1.0, intervals * _STEPS + 1)[1:-1]
    times = arc.start + at * (arc.end - arc.start)
    values = np.asarray(f.inside.function.map(len(at))(arc(times).T, arc.input(times).T))
    missed = [
        np.maximum(share * limit.least(at) - row, row - limit.upper).max() / limit.size
        for row, limit in zip(values, f.inside.limits, strict=True)
        for share in [_SHARE if limit.lower > 0.0 else 1.0]
    ]
    return float(max(missed))
