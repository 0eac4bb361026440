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

from hybridctl.base.checks import Array
from hybridctl.mechanics.constrained.phase import contact_modes
from hybridctl.planning.trajectory.functions import (
    end_equations,
    guard_names,
    held_at,
    jump_of,
    lifts,
    mode_on,
)
from hybridctl.planning.trajectory.task import Condition, Task
from hybridctl.planning.trajectory.transcription import Guess, boundary

_STEPS = 30  # of Newton's method
_MET = 1e-9
_INPUTS = (0.0, 1.0, 10.0, 100.0)  # N or N m: sizes of inputs where a release is looked for
_IMPLIED = 1e-6  # of a gradient: what is left of it across the span of others


def independent(task: Task, guess: Guess) -> tuple[Task, tuple[str, ...]]:
    """The task without the conditions that the others imply, and the names of those.

    Where the conditions cannot all be met near the guess, none are left out.
    """
    equations, (y, _, given, near) = _equations(task), _ends_of_task(task, guess)
    wanted = [_residual(c, y) for c in equations]
    implied = [equations[i] for i in _implied(y, given, wanted, near)]
    kept = [c for c in task.conditions if c not in implied]
    return replace(task, conditions=kept), tuple(c.name for c in implied)


def _equations(task: Task) -> list[Condition]:
    return [c for c in task.conditions if c.lower == c.upper]


def _residual(condition: Condition, y: Any) -> Any:
    n = (y.numel() - 1) // 2
    return condition.value(y[:n], y[n:-1], y[-1]) - condition.lower


def _ends_of_task(task: Task, guess: Guess) -> tuple[Any, Any, list[Any], Array]:
    """Return unknowns y = (start, end, duration), the end in it, equations, and a guess of y.

    The equations (residuals) are the start, what closes the motion, and what its last mode holds.
    """
    n, last = task.system.space.nx, len(task.phases) - 1
    y = ca.MX.sym("y", 2 * n + 1)
    ends = y[:n], y[n:-1]
    mode = task.mode_after(last) or task.phases[last].mode
    given = [block.values for block in boundary(task, *ends)] + [held_at(task, last, mode, ends[1])]
    length = sum(0.5 * sum(phase.duration) for phase in task.phases)
    return y, ends[1], given, np.concatenate([guess(0, 0.0), guess(last, 1.0), [length]])


def end_equations_of_task(task: Task, guess: Guess) -> tuple[Any, Any, list[Any], Array]:
    """Return the equations of the start and the end of a motion.

    They are those of the start, of closing, of the last mode, and all conditions that are
    equations.

    Args:
        task: The task.
        guess: States (nx,) as function of the index of a phase and of the fraction of it.

    Returns:
        The unknowns y = (start, end, duration) in symbols (2 nx + 1, 1), the end in y, the
        expressions that vanish, and a guess (2 nx + 1,) of y.
    """
    y, end, given, near = _ends_of_task(task, guess)
    return y, end, [*given, *(_residual(c, y) for c in _equations(task))], near


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


def implied_lifts(task: Task, guess: Guess) -> frozenset[tuple[int, str]]:
    """Return accelerations at a release that vanish with the force, whatever the next input is.

    A contact opens where its force vanishes, and its acceleration under the input of the next phase
    is to be at least `Margins.lift`. Without a margin that inequality has an interior where a leap
    of the input can raise the contact. Where it cannot, as of a pole that is upright when it leaves
    a wall, the inequality is an equation that others imply, and a barrier method breaks down.

    That is a property of a point: at another tilt the force of the pole vanishes for one input. So
    the point is looked for from several inputs, and a search has to check what it leaves out.

    Args:
        task: The task.
        guess: The state (nx,) near which the phases end.

    Returns:
        Phase that begins with the release, and name of the constraint.
    """
    found = set[tuple[int, str]]()
    for k in range(1, len(task.phases) if task.margins.lift == 0.0 else 0):
        before, after = (mode_on(task, i, contact_modes(task.phases[i].mode)) for i in (k - 1, k))
        rows = lifts(task, k, after)
        if not rows:
            continue
        jump, u = jump_of(task, k - 1), ca.SX.sym("u", after.u.numel())
        begin = before.x if jump is None else jump(before.x)[0]
        accelerations = ca.Function("lifts", [after.x, after.u], [value for value, _ in rows])
        wanted = accelerations.call([begin, u])
        held = held_at(task, k - 1, task.phases[k - 1].mode, before.x)
        given = [held, *end_equations(task, k - 1, before)]
        y = ca.vertcat(before.x, before.u, u)
        random = np.random.default_rng(0)
        for scale in _INPUTS:
            inputs = scale * random.normal(size=2 * u.numel())
            near = np.concatenate([guess(k - 1, 1.0), inputs])
            values = determined_rows(y, given, wanted, near)
            found |= {(k, rows[i][1].name) for i in values if abs(values[i]) <= _IMPLIED}
    return frozenset(found)


def _implied(y: Any, given: list[Any], wanted: list[Any], near: Array) -> list[int]:
    """The equations implied by what is given and those before, where all hold near a y."""
    f = _rows_of(y, [*given, *wanted])
    y_met = _where_met(f, near)
    if y_met is None:
        return []
    gradients = np.asarray(f(y_met)[1])
    return _in_span(gradients, len(gradients) - len(wanted))


def determined_rows(y: Any, given: list[Any], wanted: list[Any], near: Array) -> dict[int, float]:
    """Return the values of those scalars that equations determine.

    A scalar is determined where its gradient is a combination of those of the equations, at a y
    that solves them.

    Args:
        y: Unknowns in symbols (n, 1).
        given: Expressions of y that vanish.
        wanted: Scalar expressions of y.
        near: Values (n,) near which a y that solves the equations is searched.

    Returns:
        Values by index in `wanted`, of the determined scalars only. Empty if no such y is found.
    """
    y_met = _where_met(_rows_of(y, given), near)
    if y_met is None:
        return {}
    values, gradients = (np.asarray(part) for part in _rows_of(y, [*given, *wanted])(y_met))
    count = len(gradients) - len(wanted)
    found = _in_span(gradients, count, alone=True)
    return {i: float(values[count + i, 0]) for i in found}


def _rows_of(y: Any, parts: list[Any]) -> Any:
    """Return the function y -> values (m, 1) of all parts, and their Jacobian (m, n)."""
    rows = ca.densify(ca.vertcat(*(row for row in parts if row.numel())))
    return ca.Function("rows", [y], [rows, ca.densify(ca.jacobian(rows, y))])


def _in_span(gradients: Array, first: int, *, alone: bool = False) -> list[int]:
    """Return the rows from `first` on that are combinations of those before, counted from `first`.

    alone: whether they are compared with the first rows only, and not with each other.
    """
    span, found = orth(gradients[:first].T, _IMPLIED), list[int]()
    for i, gradient in enumerate(gradients[first:]):
        across = gradient - span @ (span.T @ gradient)
        size = float(np.linalg.norm(across))
        if size <= _IMPLIED * max(float(np.linalg.norm(gradient)), _IMPLIED):
            found.append(i)
        elif not alone:
            span = np.column_stack([span, across / size])
    return found


def _where_met(f: Any, y: Array) -> Array | None:
    """Return where the rows vanish, by steps of least norm; None where they do not."""
    for _ in range(_STEPS):
        values, gradients = (np.asarray(part) for part in f(y))
        if np.abs(values).max(initial=0.0) <= _MET:
            return y
        if not np.isfinite(values).all():
            break
        y = y - np.linalg.lstsq(gradients, values.ravel(), rcond=1e-9)[0]
    return None
