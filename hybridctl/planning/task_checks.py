r"""Checks of a task and a guess before the search, and equations that others imply.

Start and end. The programme keeps gaps open at collocation points. Next to these a start or an end
below the ground would cost nothing but the force that gets the robot out of it, so that both are
checked.

Implied equations. A mode holds some velocities at zero, so that rest at the end is more equations
than there are unknowns. At an optimum the gradients of such equations depend on each other, and
their multipliers have no values: a search does not converge. Which equations :math:`c_i` are
implied is found at a y = (start, end, duration) next to the guess that solves all of them. With the
residuals r of the start, of the closure and of the last mode,

.. math:: \nabla c_i \in \operatorname{span}(\nabla r, \nabla c_1, \dots, \nabla c_{i-1}) .
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
from scipy.linalg import orth

from hybridctl.base.checks import Array, check_vector
from hybridctl.base.errors import ConstraintViolatedError, GuardViolatedError, InputError
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.closure import build_boundary_blocks
from hybridctl.planning.phase_functions import (
    build_constraint_residual,
    build_end_equations,
    build_gaps,
    build_jump,
    build_lift_limits,
    build_mode_field,
    get_end_gap_name,
    get_guard_names,
)
from hybridctl.planning.task import Condition, Expression, Guess, Task

_BOUNDARY_TOLERANCE = 1e-6
"""Violation at the start and the end up to which a state counts as inside its limits.

In m for depths below the ground, relative to 1 + |coordinate| for joint limits. Simulated states
are closer (test_a_start_as_far_below_the_ground_as_simulated_states_are_is_on_it)."""
_MAX_NEWTON_STEPS = 30
"""Newton steps to a solution near the guess. From the guesses of the tests 7 are enough."""
_RESIDUAL_TOLERANCE = 1e-9
"""Largest residual of a solution, in the units of the equations."""
_NEWTON_PRECISION = 1e-9
"""Singular values of the Jacobian below which directions are not used, relative to the largest."""
_DEPENDENCE_TOLERANCE = 1e-6
"""Part of a gradient across the span of others, relative to the gradient, up to which it depends on
them. In the tests' tasks dependent gradients have at most 1e-13, independent ones at least 0.07."""
_FAILURES_OF_EXPRESSIONS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What Python and CasADi raise in functions that do not fit the symbols which they are given."""
_INPUT_SCALES = (0.0, 1.0, 10.0, 100.0)
"""Standard deviations of random inputs from which a release is looked for, N m or N."""


def add_guess_check(task: Task, guess: Guess) -> Guess:
    """Return the guess as a function that checks each state.

    Args:
        task: The task.
        guess: States (nx,) by phase and fraction of the phase.

    Returns:
        The guess. Its calls raise `InputError` if the state is not nx finite numbers.
    """
    nx = task.system.space.nx

    def guess_state(k: int, fraction: float) -> Array:
        """Return the state (nx,) that is guessed at a fraction of phase k."""
        name = f"guess({k}, {fraction:.3g}), a state of phase {k},"
        return check_vector(name, guess(k, fraction), nx)

    return guess_state


def check_expressions(task: Task) -> None:
    """Check that the costs and conditions of a task are expressions of one number.

    Args:
        task: The task. Its costs and conditions are called with CasADi symbols.

    Raises:
        InputError: A cost or a condition fails with these symbols, or its value is not (1, 1).
    """
    nx, x = task.system.space.nx, ca.SX.sym("x", task.system.space.nx)
    u = ca.SX.sym("u", task.system.robot.nu)
    ends = ca.MX.sym("start", nx), ca.MX.sym("end", nx), ca.MX.sym("duration")
    functions: dict[str, tuple[Any, tuple[Expression, ...]]] = {
        f"value of condition {c.name!r}": (c.value, ends) for c in task.conditions
    }
    functions["running_cost"] = task.running_cost, (x, u)
    if task.final_cost is not None:
        functions["final_cost"] = task.final_cost, ends
    for name, (function, arguments) in functions.items():
        try:
            value = type(arguments[0])(function(*arguments))
        except _FAILURES_OF_EXPRESSIONS as error:
            raise InputError(
                f"{name} must be a CasADi expression of its {len(arguments)} arguments, a state of "
                f"{nx} entries first, but it raises:\n{str(error).splitlines()[0][:200]}"
            ) from error
        if value.shape != (1, 1):
            raise InputError(f"{name} must be one number, got an expression of shape {value.shape}")


def check_start(task: Task) -> None:
    """Raise an error if the start of a task is not in the mode of its first phase.

    Args:
        task: The task. Without a start nothing is checked.

    Raises:
        ConstraintViolatedError: A closed contact has a gap or a velocity that its mode forbids.
        GuardViolatedError: An open contact is below its ground.
        InputError: A joint is outside the limits of the task.
    """
    if task.start is None:
        return
    x, key = np.asarray(task.start, dtype=np.float64), task.phases[0].mode
    constraint = task.system.mode(key).held
    if constraint is not None:
        residual = np.array(ca.DM(build_constraint_residual(task, 0, key, ca.DM(x)))).ravel()
        ratios = np.abs(residual) / constraint.tolerances
        if ratios.max(initial=0.0) > 1.0:
            i = int(ratios.argmax())
            raise ConstraintViolatedError(
                f"start is off what mode {key!r} of phases[0] holds: {constraint.names[i]} is "
                f"{residual[i]:.6g} {constraint.units[i]}, tolerated are "
                f"{constraint.tolerances[i]:.3g}; "
                f"system.mode({key!r}).project(start) puts it there"
            )
    names, gaps = _build_open_gaps(task, 0, ca.DM(x), on_left_ground=True)
    for name, gap in zip(names, np.array(ca.DM(gaps)).ravel(), strict=True):
        if gap < -_BOUNDARY_TOLERANCE:
            raise GuardViolatedError(
                f"start must be in mode {key!r} of phases[0], in which {name!r} is open, but its "
                f"gap is {gap:.6g} m: lift the start, or begin in a mode in which it is closed"
            )
    _check_joint_limits(task, x)


def _check_joint_limits(task: Task, x: Array) -> None:
    robot = task.system.robot
    q, v = x[: robot.nq], x[robot.nq :]
    for entries, find_index, limits, what in (
        (q, robot.coordinate_index, task.joint_limits, "joint_limits"),
        (v, robot.velocity_index, task.rate_limits, "rate_limits"),
    ):
        for name, (low, high) in limits.items():
            value = float(entries[find_index(name)])
            tolerance = _BOUNDARY_TOLERANCE * (1.0 + abs(value))
            if not low - tolerance <= value <= high + tolerance:
                raise InputError(
                    f"start must be within {what}, but joint {name!r} is at {value:.6g} and its "
                    f"limits are {low:.6g} and {high:.6g}: change the one or the other"
                )


def check_end(task: Task, guess: Guess) -> frozenset[tuple[int, str]]:
    """Check the gaps that the conditions of a task determine at its end.

    A gap is determined if its gradient is a combination of those of the conditions. Otherwise the
    programme keeps it open.

    Args:
        task: The task.
        guess: States (nx,) by phase and fraction of the phase.

    Returns:
        Phase and name of the limits of gaps that the conditions make zero: these inequalities have
        no interior. Empty if the motion ends with guards.

    Raises:
        GuardViolatedError: Conditions put an open contact below its ground.
    """
    last = len(task.phases) - 1
    if task.phases[last].ends:
        return frozenset()
    unknowns = _build_end_unknowns(task, guess)
    names, gaps = _build_open_gaps(task, last, unknowns.end)
    if not names:
        return frozenset()
    rows = [gaps[i] for i in range(len(names))]
    residuals = [*unknowns.residuals, *(unknowns.build_residual(c) for c in _get_equations(task))]
    key, zero = task.phases[last].mode, set[tuple[int, str]]()
    determined = _find_determined_values(unknowns.column, residuals, rows, unknowns.guess)
    for i, gap in determined.items():
        if gap < -_BOUNDARY_TOLERANCE:
            raise GuardViolatedError(
                f"the end must be in mode {key!r} of phases[{last}], in which {names[i]!r} is "
                f"open, but conditions make its gap {gap:.6g} m: change the conditions, or end "
                "the task in a mode in which it is closed"
            )
        if gap < _BOUNDARY_TOLERANCE:
            zero.add((last, get_end_gap_name(names[i])))
    return frozenset(zero)


def drop_implied_conditions(task: Task, guess: Guess) -> tuple[Task, tuple[str, ...]]:
    """Return the task without the conditions that others imply, and the names of these.

    If the conditions cannot all be met near the guess, none is left out: the search then reports
    which of them contradict each other.

    Args:
        task: The task.
        guess: States (nx,) by phase and fraction of the phase.
    """
    equations, unknowns = _get_equations(task), _build_end_unknowns(task, guess)
    residuals = [unknowns.build_residual(c) for c in equations]
    indices = _find_implied_rows(unknowns.column, unknowns.residuals, residuals, unknowns.guess)
    implied = [equations[i] for i in indices]
    kept = [c for c in task.conditions if c not in implied]
    return replace(task, conditions=kept), tuple(c.name for c in implied)


def find_implied_guards(task: Task, guess: Guess) -> frozenset[tuple[int, str]]:
    """Return the guards that vanish at the end of their phase wherever its other guards do.

    Corners of a block that stop together are an example. Only gaps and speeds are looked at, which
    depend on the state alone.

    Args:
        task: The task.
        guess: States (nx,) by phase and fraction of the phase.

    Returns:
        Index of the phase and name of each such guard.
    """
    implied = set[tuple[int, str]]()
    for k, phase in enumerate(task.phases):
        names = [name for name in phase.ends if name.endswith((" closes", " sticks"))]
        if len(names) > 1:
            mode = build_mode_field(task, k, contact_modes(phase.mode))
            guards = [mode.guards[get_guard_names(task, k).index(name)] for name in names]
            residual = build_constraint_residual(task, k, phase.mode, mode.x)
            rows = _find_implied_rows(mode.x, [residual], guards, guess(k, 1.0))
            implied |= {(k, names[i]) for i in rows}
    return frozenset(implied)


def find_implied_lifts(task: Task, guess: Guess) -> frozenset[tuple[int, str]]:
    """Return the accelerations at a release that vanish with the force, whatever the next input is.

    A contact opens where its force vanishes, and its acceleration under the input of the next phase
    is to be at least `Margins.lift`. Without a margin this inequality has an interior where a jump
    of the input can raise the contact. Where it cannot, as for a pole that is upright when it
    leaves a wall, the inequality is an equation that others imply, and a barrier method breaks
    down.

    This is a property of a point: at another tilt the force of the pole vanishes for one input. So
    the point is looked for from several inputs, and a search has to check what it leaves out.

    Args:
        task: The task.
        guess: States (nx,) by phase and fraction of the phase.

    Returns:
        Index of the phase that begins with the release, and name of the limit.
    """
    implied = set[tuple[int, str]]()
    for k in range(1, len(task.phases) if task.margins.lift == 0.0 else 0):
        before, after = (
            build_mode_field(task, i, contact_modes(task.phases[i].mode)) for i in (k - 1, k)
        )
        rows = build_lift_limits(task, k, after)
        if not rows:
            continue
        jump, u = build_jump(task, k - 1), ca.SX.sym("u", after.u.numel())
        start = before.x if jump is None else jump(before.x)[0]
        lifts = ca.Function("lifts", [after.x, after.u], [value for value, _ in rows])
        accelerations = lifts.call([start, u])
        held = build_constraint_residual(task, k - 1, task.phases[k - 1].mode, before.x)
        equations = [held, *build_end_equations(task, k - 1, before)]
        y = ca.vertcat(before.x, before.u, u)
        random = np.random.default_rng(0)
        for scale in _INPUT_SCALES:
            inputs = scale * random.normal(size=2 * u.numel())
            y_guess = np.concatenate([guess(k - 1, 1.0), inputs])
            values = _find_determined_values(y, equations, accelerations, y_guess)
            implied |= {
                (k, rows[i][1].name) for i in values if abs(values[i]) <= _DEPENDENCE_TOLERANCE
            }
    return frozenset(implied)


class _EndUnknowns(NamedTuple):
    """Start, end and duration of a motion as unknowns, and the equations that they obey.

    Attributes:
        column: Symbols y = (start, end, duration) (2 nx + 1, 1).
        residuals: What vanishes but conditions: start, closure, and constraints of the mode after
            the last event.
        guess: Guess (2 nx + 1,) of y.
    """

    column: Expression
    residuals: list[Expression]
    guess: Array

    @property
    def start(self) -> Expression:
        """State (nx, 1) at the start, a part of y."""
        return self.column[: (self.column.numel() - 1) // 2]

    @property
    def end(self) -> Expression:
        """State (nx, 1) at the end, a part of y."""
        return self.column[(self.column.numel() - 1) // 2 : -1]

    def build_residual(self, condition: Condition) -> Expression:
        """Return the residual (1, 1) of a condition that is an equation."""
        return condition.value(self.start, self.end, self.column[-1]) - condition.lower


def _build_end_unknowns(task: Task, guess: Guess) -> _EndUnknowns:
    nx, last = task.system.space.nx, len(task.phases) - 1
    duration = sum(0.5 * sum(phase.duration) for phase in task.phases)
    y_guess = np.concatenate([guess(0, 0.0), guess(last, 1.0), [duration]])
    unknowns = _EndUnknowns(ca.MX.sym("y", 2 * nx + 1), [], y_guess)
    mode = task.find_mode_after(last) or task.phases[last].mode
    blocks = build_boundary_blocks(task, unknowns.start, unknowns.end)
    held = build_constraint_residual(task, last, mode, unknowns.end)
    return unknowns._replace(residuals=[*(block.values for block in blocks), held])


def _get_equations(task: Task) -> list[Condition]:
    return [c for c in task.conditions if c.lower == c.upper]


def _build_open_gaps(
    task: Task, k: int, state: Expression, *, on_left_ground: bool = False
) -> tuple[tuple[str, ...], Expression]:
    """Return names and gaps (g, 1) of the contacts that are open in phase k, m.

    Args:
        task: The task.
        k: Index of the phase.
        state: State (nx, 1), an expression of any kind.
        on_left_ground: Whether gaps are over the ground that contacts leave in the phase.
    """
    closed = closed_contacts(task.phases[k].mode)
    opened = [i for i in range(len(task.system.contacts)) if i not in closed]
    x = ca.SX.sym("x", task.system.space.nx)
    rows = build_gaps(task, k, x, opened, on_left_ground=on_left_ground)
    gaps = ca.Function("gaps", [x], [ca.densify(rows)])
    return tuple(task.system.contacts[i].name for i in opened), gaps(state)


def _find_implied_rows(
    y: Expression, equations: list[Expression], rows: list[Expression], guess: Array
) -> list[int]:
    """Return which rows the equations and the rows before them imply.

    Args:
        y: Unknowns in symbols (n, 1).
        equations: Expressions of y that vanish.
        rows: Scalar expressions of y that vanish too.
        guess: Guess (n,) of a y that solves all of them.

    Returns:
        Indices of the rows. Empty if no such y is found.
    """
    f = _build_rows_and_jacobian(y, [*equations, *rows])
    solution = _solve_near(f, guess)
    if solution is None:
        return []
    gradients = np.asarray(f(solution)[1])
    return _find_dependent_rows(gradients, len(gradients) - len(rows))


def _find_determined_values(
    y: Expression, equations: list[Expression], scalars: list[Expression], guess: Array
) -> dict[int, float]:
    """Return the values of those scalars that equations determine.

    A scalar is determined if its gradient is a combination of those of the equations, at a y that
    solves them.

    Args:
        y: Unknowns in symbols (n, 1).
        equations: Expressions of y that vanish.
        scalars: Scalar expressions of y.
        guess: Guess (n,) of a y that solves the equations.

    Returns:
        Values by index in `scalars`, of the determined ones only. Empty if no such y is found.
    """
    solution = _solve_near(_build_rows_and_jacobian(y, equations), guess)
    if solution is None:
        return {}
    f = _build_rows_and_jacobian(y, [*equations, *scalars])
    values, gradients = (np.asarray(part) for part in f(solution))
    count = len(gradients) - len(scalars)
    determined = _find_dependent_rows(gradients, count, compare_with_first_only=True)
    return {i: float(values[count + i, 0]) for i in determined}


def _build_rows_and_jacobian(y: Expression, parts: list[Expression]) -> Any:
    """Return the function y -> values (m, 1) of all parts, and their Jacobian (m, n)."""
    rows = ca.densify(ca.vertcat(*(row for row in parts if row.numel())))
    return ca.Function("rows", [y], [rows, ca.densify(ca.jacobian(rows, y))])


def _find_dependent_rows(
    gradients: Array, first: int, *, compare_with_first_only: bool = False
) -> list[int]:
    """Return the rows from `first` on that are combinations of rows before them.

    Args:
        gradients: Matrix (m, n) of rows.
        first: Number of rows at the top that are not looked at.
        compare_with_first_only: Whether rows are compared with the first ones alone, and not with
            each other.

    Returns:
        Indices of the rows, counted from `first`.
    """
    span, dependent = orth(gradients[:first].T, _DEPENDENCE_TOLERANCE), list[int]()
    for i, gradient in enumerate(gradients[first:]):
        across = gradient - span @ (span.T @ gradient)
        size = float(np.linalg.norm(across))
        length = max(float(np.linalg.norm(gradient)), _DEPENDENCE_TOLERANCE)
        if size <= _DEPENDENCE_TOLERANCE * length:
            dependent.append(i)
        elif not compare_with_first_only:
            span = np.column_stack([span, across / size])
    return dependent


def _solve_near(f: Any, y: Array) -> Array | None:
    """Return a y at which all rows vanish, found by Newton steps of least norm; None if none is.

    Args:
        f: Function y -> values (m, 1) and Jacobian (m, n).
        y: Guess (n,).
    """
    for _ in range(_MAX_NEWTON_STEPS):
        values, gradients = (np.asarray(part) for part in f(y))
        if np.abs(values).max(initial=0.0) <= _RESIDUAL_TOLERANCE:
            return y
        if not np.isfinite(values).all():
            break
        y = y - np.linalg.lstsq(gradients, values.ravel(), rcond=_NEWTON_PRECISION)[0]
    return None
