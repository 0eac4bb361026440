r"""Equations that others imply: one too many keeps a search from its end.

A mode holds some velocities at zero, so that rest at the end is more equations than there are
unknowns; at an optimum their gradients then depend on each other, and multipliers have no values.
Which do is found at a start, an end and a duration y that obey all of them, next to the guess: with
the start, what closes the motion and what its last mode holds, r(y) = 0, and the equations c_i,

.. math:: \nabla c_i \in \operatorname{span}(\nabla r, \nabla c_1, \dots, \nabla c_{i-1}) .
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import casadi as ca
import numpy as np
from scipy.linalg import orth

from hybridctl.checks import Array
from hybridctl.control.trajectory.functions import guard_names, held_at, mode_on
from hybridctl.control.trajectory.task import Task
from hybridctl.control.trajectory.transcription import Guess, boundary
from hybridctl.mechanics.constrained.phase import contact_modes

_STEPS = 30  # of Newton's method
_MET = 1e-9
_IMPLIED = 1e-6  # of a gradient: what is left of it across the span of others


def independent(task: Task, guess: Guess) -> tuple[Task, tuple[str, ...]]:
    """The task without the conditions that the others imply, and the names of those.

    Where the conditions cannot all be met near the guess, none are left out.
    """
    equations = [c for c in task.conditions if c.lower == c.upper]
    n, last = task.system.space.nx, len(task.phases) - 1
    y = ca.MX.sym("y", 2 * n + 1)
    ends = y[:n], y[n:-1]
    mode = task.mode_after(last) or task.phases[last].mode
    given = [block.values for block in boundary(task, *ends)] + [held_at(task, last, mode, ends[1])]
    wanted = [c.value(*ends, y[-1]) - c.lower for c in equations]
    length = sum(0.5 * sum(phase.duration) for phase in task.phases)
    near = np.concatenate([guess(0, 0.0), guess(last, 1.0), [length]])
    implied = [equations[i] for i in _implied(y, given, wanted, near)]
    kept = [c for c in task.conditions if c not in implied]
    return replace(task, conditions=kept), tuple(c.name for c in implied)


def implied_guards(task: Task, guess: Guess) -> frozenset[tuple[int, str]]:
    """Guards that end a phase and vanish with the others of it, as of corners that stop together.

    By phase and name: of gaps and speeds, which depend on the state alone.
    """
    found = set[tuple[int, str]]()
    for k, phase in enumerate(task.phases):
        names = [name for name in phase.ends if name.endswith((" closes", " sticks"))]
        if len(names) > 1:
            mode, known = mode_on(task, k, contact_modes(phase.mode)), guard_names(task, k)
            guards = [mode.guards[known.index(name)] for name in names]
            held = [held_at(task, k, phase.mode, mode.x)]
            found |= {(k, names[i]) for i in _implied(mode.x, held, guards, guess(k, 1.0))}
    return frozenset(found)


def _implied(y: Any, given: list[Any], wanted: list[Any], near: Array) -> list[int]:
    """The equations implied by what is given and those before, where all hold near a y."""
    rows = ca.densify(ca.vertcat(*(row for row in (*given, *wanted) if row.numel())))
    f = ca.Function("rows", [y], [rows, ca.densify(ca.jacobian(rows, y))])
    gradients = _where_met(f, near)
    if gradients is None:
        return []
    first, found = len(gradients) - len(wanted), list[int]()
    span = orth(gradients[:first].T, _IMPLIED)
    for i, gradient in enumerate(gradients[first:]):
        across = gradient - span @ (span.T @ gradient)
        size = float(np.linalg.norm(across))
        if size <= _IMPLIED * max(float(np.linalg.norm(gradient)), _IMPLIED):
            found.append(i)
        else:
            span = np.column_stack([span, across / size])
    return found


def _where_met(f: Any, y: Array) -> Array | None:
    """Gradients (m, n) where the rows vanish, by steps of least norm; None where they do not."""
    for _ in range(_STEPS):
        values, gradients = (np.asarray(part) for part in f(y))
        if np.abs(values).max(initial=0.0) <= _MET:
            return gradients
        if not np.isfinite(values).all():
            break
        y = y - np.linalg.lstsq(gradients, values.ravel(), rcond=1e-9)[0]
    return None
