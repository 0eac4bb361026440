r"""The mode that really flows on: consistent with its own forces and accelerations.

[RS] 2.3.4, Fig. 2.6. A mode proposed by an event stays if its contacts push, its sticking ones
hold, and its sliding ones that stand still begin to move the way they are meant to. Otherwise
Coulomb's law is solved for the accelerations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import SeveralContactSolutionsError, SeveralModesError
from hybridctl.mechanics.constrained.equations import ContactAcceleration, contradict
from hybridctl.mechanics.constrained.phase import default_slip
from hybridctl.mechanics.constrained.tolerances import STANDSTILL
from hybridctl.mechanics.contact_law import (
    CoulombProblem,
    CoulombSolution,
    enumerate_solutions,
    solve,
)
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, SLIPS, STICK, Modes, scale_problem
from hybridctl.mechanics.contact_law.solver import MAX_ENUMERATED_SETS, select_least_norm_solution
from hybridctl.mechanics.contact_law.uniqueness import is_provably_unique
from hybridctl.mechanics.modes.dynamics import ContactDynamics

_TOLERANCE = 1e-6  # of the largest force and the robot's weight: what event times leave of zero


def select_modes(
    dynamics: ContactDynamics,
    q: Array,
    v: Array,
    u: Array,
    proposed: Modes,
    now: ContactAcceleration | None = None,
    sure: bool = False,
) -> Modes:
    """The modes in which the closed contacts of `proposed` flow on under input u.

    Contacts at the border of separating stay closed, and where static friction exceeds kinetic
    friction a contact at rest sticks if it can. A proposal that is consistent is still refused
    where other accelerations obey the law as well. now: accelerations of the proposal, if known.
    sure: whether it is known to be consistent.

    Raises `NoContactSolutionError` or `SeveralContactSolutionsError`, with the data.
    """
    phase = dynamics.phase(proposed)
    if now is None and not sure:
        now = dynamics.acceleration(q, v, u, proposed)
    holds = now is None or is_consistent(dynamics, now, proposed)
    if holds and len(phase.owner) == len(phase.closed):  # a convex problem
        return proposed
    known = None if now is None else now.solution
    rows = dynamics.rows(phase, q, v, u) if known is None else known.rows
    result: list[str] = [OPEN] * len(proposed)
    problem = dynamics.problem(phase, rows)
    if holds:
        if proposed not in dynamics.expected:
            _check_unique(problem)
        return proposed
    found = _solved(problem, phase.closed, dynamics.expected)
    scale = max(1.0, float(np.abs(found.rates).max()))
    for j, i in enumerate(phase.closed):
        tangents = phase.tangents[j]
        rates = found.rates[tangents]
        if found.rates[j] > _TOLERANCE * scale:
            continue
        if len(tangents) == 0:
            result[i] = CLOSED
        elif problem.sliding[j] is not None:
            result[i] = default_slip(len(tangents), rows.rates[tangents])
        elif np.linalg.norm(rates) <= _TOLERANCE * scale:
            result[i] = STICK
        else:
            result[i] = default_slip(len(tangents), rates)
    return _standing(dynamics, q, v, u, _let_go(dynamics, q, v, u, proposed, tuple(result)))


def _standing(dynamics: ContactDynamics, q: Array, v: Array, u: Array, found: Modes) -> Modes:
    """The modes in which contacts that are to slide but are held where they stand stick.

    Then guards tell where their forces leave the cones.
    """
    if not any(mode in SLIPS for mode in found):
        return found
    point = dynamics.acceleration(q, v, u, found)
    return tuple(
        STICK if mode in SLIPS and point.holds(i) else mode for i, mode in enumerate(found)
    )


def _let_go(
    dynamics: ContactDynamics, q: Array, v: Array, u: Array, proposed: Modes, found: Modes
) -> Modes:
    """Contacts that just stick, all those at their limit sliding, where one was to slide.

    Redundant contacts reach the end of what they hold together, and at that instant nothing moves:
    accelerations do not tell yet that they slide, forces tell that none could hold more.
    """
    wanted = [i for i, mode in enumerate(proposed) if mode in SLIPS and found[i] == STICK]
    if not wanted:
        return found
    point, result = dynamics.acceleration(q, v, u, found), list(found)
    limits = dynamics.static_friction * point.forces
    slack = limits - np.linalg.norm(point.friction, axis=1)
    near = _force_tolerances(dynamics, point)
    for i, mode in enumerate(found):
        if not point.friction[i].any():
            continue  # an input that jumps later than its guard was found leaves no direction
        if mode == STICK and (i in wanted or slack[i] <= near[i]):
            tangents = len(dynamics.all.tangents[i])
            result[i] = default_slip(tangents, -point.friction[i])
    sliding = tuple(result)
    return sliding if consistent(dynamics, q, v, u, sliding) else found


def consistent(dynamics: ContactDynamics, q: Array, v: Array, u: Array, modes: Modes) -> bool:
    """Whether contacts at (q, v, u) behave as these modes say, see `is_consistent`."""
    return is_consistent(dynamics, dynamics.acceleration(q, v, u, modes), modes)


def is_consistent(dynamics: ContactDynamics, point: ContactAcceleration, modes: Modes) -> bool:
    """Whether contacts in these modes push, hold, and begin to slide as the modes say.

    Contacts whose constraints contradict each other do not hold: so a stretched chain between two
    of them takes one back the way it came.
    """
    phase = dynamics.phase(modes)
    if point.solution is None:
        return True
    if contradict(point.solution):
        return False
    rows = point.solution.rows
    relative = rows.jacobian @ point.acceleration - rows.target
    scales = _force_tolerances(dynamics, point)
    fast = _TOLERANCE * max(1.0, float(np.abs(relative).max(initial=0.0)))
    for k, i in enumerate(phase.closed):
        slip, change = rows.rates[phase.tangents[k]], relative[phase.tangents[k]]
        scale = scales[i]
        if point.forces[i] < -scale:
            return False
        if modes[i] == STICK:
            limit = dynamics.static_friction[i] * point.forces[i]
            if np.linalg.norm(point.friction[i]) > limit + scale:
                return False
        elif modes[i] in SLIPS and np.linalg.norm(slip) <= STANDSTILL:
            sign = SLIPS[modes[i]]
            if point.holds(i):
                return False
            if sign and sign * change[0] < -fast:
                return False
            if sign == 0.0 and point.friction[i] @ change > fast * scale / _TOLERANCE:
                return False
        elif modes[i] in SLIPS and SLIPS[modes[i]] * float(slip.sum()) < 0.0:
            return False
    return True


def _force_tolerances(dynamics: ContactDynamics, point: ContactAcceleration) -> list[float]:
    """Return how much of the force of each contact is negligible, in N or N m."""
    largest = float(np.abs(point.forces).max())
    if not dynamics.pressed:
        return [_TOLERANCE * max(dynamics.robot.weight, largest)] * len(point.forces)
    sizes = np.where(dynamics.all.loads > 0.0, dynamics.all.loads, largest)
    tolerances: list[float] = (_TOLERANCE * np.maximum(dynamics.force_scales, sizes)).tolist()
    return tolerances


def _check_unique(problem: CoulombProblem) -> None:
    """Raise `SeveralContactSolutionsError` where few enough sets of states show other solutions.

    They are tried where it is not certain that there are none.
    Of a contact at rest with static friction above kinetic friction sticking and sliding can both
    be possible, and the proposal says which.
    """
    at_rest = np.array([direction is None for direction in problem.sliding])
    if (
        at_rest & (problem.static > problem.kinetic)
    ).any() or problem.count_states() > MAX_ENUMERATED_SETS:
        return
    if is_provably_unique(scale_problem(problem)[0]):
        return
    solutions = enumerate_solutions(problem)
    if len(solutions) > 1:
        with _of_modes():
            select_least_norm_solution(problem, solutions)


@contextmanager
def _of_modes() -> Iterator[None]:
    """Report several solutions of the law as several modes that a state may flow on in."""
    try:
        yield
    except SeveralContactSolutionsError as error:
        text, solutions = str(error), error.solutions
        raise SeveralModesError(text, problem=error.problem, solutions=solutions) from None


def _solved(
    problem: CoulombProblem, closed: Sequence[int], expected: frozenset[Modes]
) -> CoulombSolution:
    """The solution of Coulomb's law; of several, an expected one, or that in which most stick.

    The latter rule is for static friction above kinetic friction, where sticking and sliding can
    both be possible. expected: modes of all contacts.
    """
    try:
        with _of_modes():
            return solve(problem)
    except SeveralModesError as error:
        wanted = {tuple(modes[i] for i in closed) for modes in expected}
        for solution in error.solutions:
            if tuple(solution.modes) in wanted:
                return solution  # type: ignore[no-any-return]
        count = [solution.modes.count(STICK) for solution in error.solutions]
        most = max(count)
        if count.count(most) > 1 or not (problem.static > problem.kinetic).any():
            raise
        most_sticking: CoulombSolution = error.solutions[count.index(most)]
        return most_sticking
