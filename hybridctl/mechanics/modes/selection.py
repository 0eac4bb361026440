r"""The mode that a state flows on in: consistent with its own forces and accelerations.

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
from hybridctl.mechanics.contact_law import (
    CoulombProblem,
    CoulombSolution,
    enumerate_solutions,
    solve,
)
from hybridctl.mechanics.contact_law.compiled import is_problem_unique
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, SLIPS, STICK, Modes
from hybridctl.mechanics.contact_law.solver import MAX_ENUMERATED_SETS, select_least_norm_solution
from hybridctl.mechanics.modes.acceleration import ContactAcceleration
from hybridctl.mechanics.modes.constraint_equations import is_contradictory
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.phase import ContactPhase, select_slip_mode
from hybridctl.mechanics.modes.tolerances import STANDSTILL

_MODE_TOLERANCE = 1e-6
"""What event times leave of zero: of forces, relative to the largest one and the robot's weight; of
accelerations, relative to the largest one and 1 m/s^2."""


def select_modes(
    dynamics: ContactDynamics,
    q: Array,
    v: Array,
    u: Array,
    proposed: Modes,
    point: ContactAcceleration | None = None,
    is_known_consistent: bool = False,
) -> Modes:
    """Return the modes in which the closed contacts of `proposed` flow on under input u.

    Contacts that are open in the proposal stay open. Contacts at the border of separating stay
    closed, and where static friction exceeds kinetic friction a contact at rest sticks if it can. A
    proposal that is consistent is still refused where other accelerations obey the law as well.
    That is not checked if it is one of `expected_modes`, if the sets of states are too many to be
    tried (64), or if static friction exceeds kinetic friction at any contact at rest.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        v: Velocity (nv,).
        u: Input (nu,).
        proposed: Modes of all contacts.
        point: Acceleration and forces of the proposal, if they are known.
        is_known_consistent: Whether the proposal is known to be consistent.

    Raises:
        NoContactSolutionError: If the law has no solution; the error has the data.
        SeveralModesError: If it has several; the error has the data.
    """
    phase = dynamics.phase(proposed)
    if point is None and not is_known_consistent:
        point = dynamics.acceleration(q, v, u, proposed)
    holds = point is None or is_consistent(dynamics, point, proposed)
    # Without friction the law is a convex problem: a consistent proposal is the only solution.
    if holds and len(phase.owner) == len(phase.closed):
        return proposed
    solution = None if point is None else point.solution
    rows = dynamics.make_rows(phase, q, v, u) if solution is None else solution.rows
    problem = dynamics.build_acceleration_problem(phase, rows)
    if holds:
        # A plan whose mode this is has chosen among several solutions.
        if proposed not in dynamics.expected_modes:
            _check_unique(problem)
        return proposed
    found = _solve_law(problem, phase.closed, dynamics.expected_modes)
    result = _read_modes(phase, rows.rates, problem, found)
    released = _release_contacts_at_limit(dynamics, q, v, u, proposed, result)
    return _replace_held_slips(dynamics, q, v, u, released)


def _read_modes(
    phase: ContactPhase, velocities: Array, problem: CoulombProblem, found: CoulombSolution
) -> Modes:
    """Return the modes of all contacts in a solution of Coulomb's law.

    Args:
        phase: Phase of the proposal.
        velocities: Rates J v (r,) of its rows, m/s.
        problem: The law for its closed contacts.
        found: The solution, whose rates are accelerations.
    """
    result: list[str] = [OPEN] * len(phase.modes)
    scale = max(1.0, float(np.abs(found.rates).max()))
    for j, i in enumerate(phase.closed):
        tangents = phase.tangents[j]
        rates = found.rates[tangents]
        if found.rates[j] > _MODE_TOLERANCE * scale:
            continue
        if len(tangents) == 0:
            result[i] = CLOSED
        elif problem.sliding[j] is not None:
            result[i] = select_slip_mode(len(tangents), velocities[tangents])
        elif np.linalg.norm(rates) <= _MODE_TOLERANCE * scale:
            result[i] = STICK
        else:
            result[i] = select_slip_mode(len(tangents), rates)
    return tuple(result)


def _replace_held_slips(
    dynamics: ContactDynamics, q: Array, v: Array, u: Array, found: Modes
) -> Modes:
    """Return the modes in which contacts that are to slide but held at a standstill stick.

    Then guards show where their forces leave the cones.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        v: Velocity (nv,).
        u: Input (nu,).
        found: Modes of all contacts.
    """
    if not any(mode in SLIPS for mode in found):
        return found
    point = dynamics.acceleration(q, v, u, found)
    return tuple(
        STICK if mode in SLIPS and point.is_holding(i) else mode for i, mode in enumerate(found)
    )


def _release_contacts_at_limit(
    dynamics: ContactDynamics, q: Array, v: Array, u: Array, proposed: Modes, found: Modes
) -> Modes:
    """Return the modes in which contacts at their friction limit slide, if one was to slide.

    The contacts that were proposed to slide then do so whatever their forces are.

    Redundant contacts reach the end of what they hold together, and at that instant nothing moves:
    accelerations do not show yet that they slide, forces show that none could hold more.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        v: Velocity (nv,).
        u: Input (nu,).
        proposed: Modes that were proposed.
        found: Modes by the solution of the law.
    """
    wanted = [i for i, mode in enumerate(proposed) if mode in SLIPS and found[i] == STICK]
    if not wanted:
        return found
    point, result = dynamics.acceleration(q, v, u, found), list(found)
    limits = dynamics.static_friction * point.forces
    slack = limits - np.linalg.norm(point.friction, axis=1)
    near = _compute_force_tolerances(dynamics, point)
    for i, mode in enumerate(found):
        if not point.friction[i].any():
            continue  # an input that jumps later than its guard was found leaves no direction
        if mode == STICK and (i in wanted or slack[i] <= near[i]):
            tangents = len(dynamics.contact_set.tangents[i])
            result[i] = select_slip_mode(tangents, -point.friction[i])
    sliding = tuple(result)
    return sliding if is_consistent_at(dynamics, q, v, u, sliding) else found


def is_consistent_at(dynamics: ContactDynamics, q: Array, v: Array, u: Array, modes: Modes) -> bool:
    """Return whether contacts behave as modes say at a point, see `is_consistent`.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        v: Velocity (nv,).
        u: Input (nu,).
        modes: Modes of all contacts.
    """
    return is_consistent(dynamics, dynamics.acceleration(q, v, u, modes), modes)


def is_consistent(dynamics: ContactDynamics, point: ContactAcceleration, modes: Modes) -> bool:
    """Return whether contacts in these modes push, hold, and begin to slide as the modes say.

    Contacts whose constraints contradict each other do not hold: so a stretched chain between two
    of them takes one back the way it came.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        point: Acceleration and forces in these modes.
        modes: Modes of all contacts.
    """
    phase = dynamics.phase(modes)
    if point.solution is None:
        return True
    if is_contradictory(point.solution):
        return False
    rows = point.solution.rows
    relative = rows.jacobian @ point.acceleration - rows.target
    scales = _compute_force_tolerances(dynamics, point)
    fast = _MODE_TOLERANCE * max(1.0, float(np.abs(relative).max(initial=0.0)))
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
            if point.is_holding(i):
                return False
            if sign and sign * change[0] < -fast:
                return False
            # Friction that does work on the motion that begins is no friction.
            if sign == 0.0 and point.friction[i] @ change > fast * scale / _MODE_TOLERANCE:
                return False
        elif modes[i] in SLIPS and SLIPS[modes[i]] * float(slip.sum()) < 0.0:
            return False
    return True


def _compute_force_tolerances(dynamics: ContactDynamics, point: ContactAcceleration) -> list[float]:
    """Return how much of the force of each contact is negligible, in N or N m."""
    largest = float(np.abs(point.forces).max())
    if not dynamics.pressed_contacts:
        return [_MODE_TOLERANCE * max(dynamics.robot.weight, largest)] * len(point.forces)
    loads = dynamics.contact_set.loads
    sizes = np.where(loads > 0.0, loads, largest)
    tolerances: list[float] = (_MODE_TOLERANCE * np.maximum(dynamics.force_scales, sizes)).tolist()
    return tolerances


def _check_unique(problem: CoulombProblem) -> None:
    """Check that no other solutions obey the law, where the sets of states can be tried.

    They are tried where no condition proves that there are none.

    Args:
        problem: The law for the closed contacts, of which one solution is known.

    Raises:
        SeveralModesError: If some other solution is not connected with the others.
    """
    at_rest = np.array([direction is None for direction in problem.sliding])
    # Of a contact at rest with static friction above kinetic friction sticking and sliding can
    # both be possible, and the proposal says which. So several solutions are no error there; the
    # other contacts are not checked alone.
    if (
        at_rest & (problem.static > problem.kinetic)
    ).any() or problem.count_states() > MAX_ENUMERATED_SETS:
        return
    if is_problem_unique(problem):
        return
    solutions = enumerate_solutions(problem)
    if len(solutions) > 1:
        with _report_as_modes():
            select_least_norm_solution(problem, solutions)


@contextmanager
def _report_as_modes() -> Iterator[None]:
    """Raise several solutions of the law as several modes that a state may flow on in.

    Raises:
        SeveralModesError: In place of a `SeveralContactSolutionsError`, with its data.
    """
    try:
        yield
    except SeveralContactSolutionsError as error:
        text, solutions = str(error), error.solutions
        raise SeveralModesError(text, problem=error.problem, solutions=solutions) from None


def _solve_law(
    problem: CoulombProblem, closed: Sequence[int], expected: frozenset[Modes]
) -> CoulombSolution:
    """Return the solution of Coulomb's law; of several an expected one, or that of most sticking.

    The latter rule is for static friction above kinetic friction, where sticking and sliding can
    both be possible.

    Args:
        problem: The law for the closed contacts.
        closed: These contacts, among all.
        expected: Modes of all contacts that are preferred.

    Raises:
        NoContactSolutionError: If there is none.
        SeveralModesError: If there are several and neither rule chooses one.
    """
    try:
        with _report_as_modes():
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
