r"""Whether a task's start and end lie in their modes, and whether a guess fits the task.

A programme keeps gaps open at its points of collocation. Next to these, a start or an end below the
ground costs nothing but the force that gets the robot out of it, so both are checked.
"""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array, check_vector
from hybridctl.base.errors import ConstraintViolatedError, GuardViolatedError, InputError
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.trajectory.functions import end_gap_name, gaps_of, held_at
from hybridctl.planning.trajectory.redundant import determined_rows, end_equations_of_task
from hybridctl.planning.trajectory.task import Task
from hybridctl.planning.trajectory.transcription import Guess

_BELOW_GROUND = 1e-6  # m: below it by more than simulated states are, a contact is not open


def check_guess(task: Task, guess: Guess) -> Guess:
    """Return the guess as a function that checks the size of each state.

    Args:
        task: The task.
        guess: States (nx,) as function of the index of a phase and of the fraction of it.

    Returns:
        The guess. Its calls raise `InputError` where the state is not nx finite numbers.
    """
    nx = task.system.space.nx

    def guess_state(k: int, share: float) -> Array:
        """Return the state (nx,) that is guessed at a fraction `share` of phase k."""
        return check_vector(f"guess({k}, {share:.3g}), a state of phase {k},", guess(k, share), nx)

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
    values: dict[str, tuple[Any, tuple[Any, ...]]] = {
        f"value of condition {c.name!r}": (c.value, ends) for c in task.conditions
    }
    values["running_cost"] = task.running_cost, (x, u)
    if task.final_cost is not None:
        values["final_cost"] = task.final_cost, ends
    for name, (value, arguments) in values.items():
        try:
            found = type(arguments[0])(value(*arguments))
        except (NotImplementedError, RuntimeError, TypeError, IndexError, AttributeError) as error:
            raise InputError(
                f"{name} must be a CasADi expression of its {len(arguments)} arguments, a state of "
                f"{nx} entries first, but it raises:\n{str(error).splitlines()[0][:200]}"
            ) from error
        if found.shape != (1, 1):
            raise InputError(f"{name} must be one number, got an expression of shape {found.shape}")


def check_start(task: Task) -> None:
    """Raise an error where the start of a task is not in the mode of its first phase.

    Args:
        task: Task with or without a start; without one nothing is checked.

    Raises:
        ConstraintViolatedError: A closed contact has a gap or a velocity that its mode forbids.
        GuardViolatedError: An open contact is below its ground.
        InputError: A joint is outside the limits of the task.
    """
    if task.start is None:
        return
    x, key = np.asarray(task.start, dtype=np.float64), task.phases[0].mode
    held = task.system.mode(key).held
    if held is not None:
        off = np.array(ca.DM(held_at(task, 0, key, ca.DM(x)))).ravel()
        ratios = np.abs(off) / held.tolerances
        if ratios.max(initial=0.0) > 1.0:
            i = int(ratios.argmax())
            raise ConstraintViolatedError(
                f"start is off what mode {key!r} of phases[0] holds: {held.names[i]} is "
                f"{off[i]:.6g} {held.units[i]}, tolerated are {held.tolerances[i]:.3g}; "
                f"system.mode({key!r}).project(start) puts it there"
            )
    names, gaps = _open_gaps(task, 0, ca.DM(x), left=True)
    for name, gap in zip(names, np.array(ca.DM(gaps)).ravel(), strict=True):
        if gap < -_BELOW_GROUND:
            raise GuardViolatedError(
                f"start must be in mode {key!r} of phases[0], in which {name!r} is open, but its "
                f"gap is {gap:.6g} m: lift the start, or begin in a mode in which it is closed"
            )
    _check_joint_limits(task, x)


def _check_joint_limits(task: Task, x: Array) -> None:
    robot = task.system.robot
    q, v = x[: robot.nq], x[robot.nq :]
    for entries, index, limits, what in (
        (q, robot.coordinate_index, task.joint_limits, "joint_limits"),
        (v, robot.velocity_index, task.rate_limits, "rate_limits"),
    ):
        for name, (low, high) in limits.items():
            value = float(entries[index(name)])
            room = _BELOW_GROUND * (1.0 + abs(value))
            if not low - room <= value <= high + room:
                raise InputError(
                    f"start must be within {what}, but joint {name!r} is at {value:.6g} and its "
                    f"limits are {low:.6g} and {high:.6g}: change the one or the other"
                )


def check_end(task: Task, guess: Guess) -> frozenset[tuple[int, str]]:
    """Check the gaps that the conditions of a task determine at its end.

    A gap is determined where its gradient is a combination of those of the conditions. Elsewhere
    the programme keeps it open.

    Args:
        task: The task.
        guess: The states (nx,) near which the motion begins and ends.

    Returns:
        Phase and name of constraints of gaps that the conditions make zero: these inequalities
        have no interior.

    Raises:
        GuardViolatedError: Conditions put an open contact below its ground.
    """
    last = len(task.phases) - 1
    if task.phases[last].ends:
        return frozenset()
    y, end, given, near = end_equations_of_task(task, guess)
    names, gaps = _open_gaps(task, last, end)
    if not names:
        return frozenset()
    rows = [gaps[i] for i in range(len(names))]
    key, zero = task.phases[last].mode, set[tuple[int, str]]()
    for i, gap in determined_rows(y, given, rows, near).items():
        if gap < -_BELOW_GROUND:
            raise GuardViolatedError(
                f"the end must be in mode {key!r} of phases[{last}], in which {names[i]!r} is "
                f"open, but conditions make its gap {gap:.6g} m: change the conditions, or end "
                "the task in a mode in which it is closed"
            )
        if gap < _BELOW_GROUND:
            zero.add((last, end_gap_name(names[i])))
    return frozenset(zero)


def _open_gaps(
    task: Task, k: int, state: Any, *, left: bool = False
) -> tuple[tuple[str, ...], Any]:
    """Return names and gaps (g,) of contacts that are open in phase k, at a state.

    left: whether gaps are counted from the ground that contacts leave there.
    """
    closed = closed_contacts(task.phases[k].mode)
    opened = [i for i in range(len(task.system.contacts)) if i not in closed]
    x = ca.SX.sym("x", task.system.space.nx)
    gaps = ca.Function("gaps", [x], [ca.densify(gaps_of(task, k, x, opened, left=left))])
    return tuple(task.system.contacts[i].name for i in opened), gaps(state)
