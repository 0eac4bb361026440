"""Solving Coulomb's law: all sets of states where they are few, an iterative solver otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import NoContactSolutionError, SeveralContactSolutionsError
from hybridctl.mechanics.coulomb.law import (
    CLOSED,
    OPEN,
    RANK,
    SLIP,
    SLIP_MINUS,
    SLIP_PLUS,
    STICK,
    CoulombProblem,
    CoulombSolution,
    Modes,
    equations,
    polish,
)
from hybridctl.mechanics.coulomb.screening import candidates

IterativeSolver = Callable[[Array, Array, Array], Array]

MOST_SETS = 256
_SAME = 1e-6
_PRINTED = 4
_PROJECTIONS = 500
_ACTIVE = (1e-6, 1e-4, 1e-8, 1e-3)


def solve(problem: CoulombProblem, iterative: IterativeSolver | None = None) -> CoulombSolution:
    """The one solution of the problem.

    Sets of states are all tried where they are few; otherwise, and where the impulses of least
    norm of redundant contacts leave their cones, `iterative` proposes impulses, which are then
    polished on the states they show. Redundant contacts that slide can have a continuum of
    solutions; of these the one of least norm is taken, and `family` says so.

    Raises `NoContactSolutionError` if none is found, `SeveralContactSolutionsError` if the
    enumeration finds more than one that are not connected; both carry the data.
    """
    if count_sets(problem) <= MOST_SETS:
        found = enumerate_solutions(problem)
        if len(found) > 1:
            found = [least_of_family(problem, found)]
        if found:
            return found[0]
    solution = from_iterations(problem, iterative) if iterative else None
    if solution is None:
        raise NoContactSolutionError(
            "Coulomb's law has no solution here" + describe(problem), problem=problem
        )
    return solution


def least_of_family(problem: CoulombProblem, found: Sequence[CoulombSolution]) -> CoulombSolution:
    """The solution of least norm, if all others are connected to it by a path of solutions.

    Raises `SeveralContactSolutionsError` if they are not.
    """
    least = min(found, key=lambda s: float(np.linalg.norm(s.forces)))
    others = [s for s in found if s is not least]
    if all(_connected(problem, least, other) for other in others):
        return replace(least, family=True)
    raise several(problem, found)


def _connected(problem: CoulombProblem, one: CoulombSolution, other: CoulombSolution) -> bool:
    """Whether there is a solution near the middle of two, in states of either."""
    scaled, (force, _) = _scaled(problem)
    middle = 0.5 * (one.forces + other.forces) / force
    far = 0.5 * float(np.linalg.norm(one.forces - other.forces)) / force
    choices = [_either(one, other, i) for i in range(len(one.modes))]
    for states in product(*choices):
        between = polish(scaled, tuple(m for m, _ in states), [d for _, d in states], middle)
        if between is not None and float(np.linalg.norm(between.forces - middle)) < far:
            return True
    return False


def _either(one: CoulombSolution, other: CoulombSolution, i: int) -> list[tuple[str, Array | None]]:
    """The states of contact i in two solutions, without those that leave the surface."""
    states = [(s.modes[i], s.directions[i]) for s in (one, other)]
    if states[0][0] == states[1][0] != SLIP:
        return states[:1]
    return [state for state in states if state[0] != OPEN]


def several(
    problem: CoulombProblem, found: Sequence[CoulombSolution]
) -> SeveralContactSolutionsError:
    """The error for a problem with more than one solution."""
    states = ", ".join(str(solution.modes) for solution in found)
    return SeveralContactSolutionsError(
        f"Coulomb's law has {len(found)} solutions here: {states}" + describe(problem),
        problem=problem,
        solutions=tuple(found),
    )


def describe(problem: CoulombProblem) -> str:
    """The data of a problem, for an error message: in full where a line holds it."""
    if len(problem.free) > _PRINTED:
        return f"; W is {problem.delassus.shape}, see the error's `problem`"
    return (
        f"; W = {problem.delassus.tolist()}, c = {problem.free.tolist()}, friction "
        f"{problem.static.tolist()} (static), {problem.kinetic.tolist()} (kinetic)"
    )


def count_sets(problem: CoulombProblem) -> int:
    """How many sets of states there are."""
    total = 1
    for i in range(len(problem.static)):
        total *= len(problem.choices(i))
    return total


def enumerate_solutions(problem: CoulombProblem) -> list[CoulombSolution]:
    """All solutions with different velocities, from every set of states.

    Of several sets with the same velocities, the one in which most contacts stick and fewest
    are open stands for all.
    """
    scaled, unit = _scaled(problem)
    distinct: list[CoulombSolution] = []
    for modes, directions, rates in candidates(scaled):
        known = _index(distinct, rates, _SAME)
        if known is not None and _rank(modes) <= _rank(distinct[known].modes):
            continue
        solution = polish(scaled, modes, directions, np.zeros(len(scaled.free)))
        if solution is None:
            continue
        same = _index(distinct, solution.rates, _SAME)
        if same is None:
            distinct.append(solution)
        elif _rank(modes) > _rank(distinct[same].modes):
            distinct[same] = solution
    return [_unscaled(solution, unit) for solution in distinct]


def _index(found: Sequence[CoulombSolution], rates: Array, tolerance: float) -> int | None:
    """The first solution with these rates."""
    near = (k for k, s in enumerate(found) if np.abs(s.rates - rates).max() <= tolerance)
    return next(near, None)


def _rank(modes: Modes) -> tuple[int, int]:
    return modes.count(STICK), -modes.count(OPEN)


def from_iterations(problem: CoulombProblem, iterative: IterativeSolver) -> CoulombSolution | None:
    """The solution on the states shown by an iterative solver's impulses, if it is one."""
    if any(direction is not None for direction in problem.sliding):
        return None
    scaled, unit = _scaled(problem)
    k = len(scaled.static)
    rows = [[*scaled.tangents[i], *[-1] * (2 - len(scaled.tangents[i])), i] for i in range(k)]
    index = np.array(rows).ravel()
    padded = np.pad(scaled.delassus, (0, 1))[np.ix_(index, index)]
    impulses = iterative(padded, np.append(scaled.free, 0.0)[index], scaled.kinetic)
    forces = np.zeros(len(scaled.free) + 1)
    forces[index] = impulses
    forces = forces[:-1]
    for threshold in _ACTIVE:
        modes, directions = _shown(scaled, forces, threshold)
        solution = polish(scaled, modes, directions, _drawn(scaled, modes, forces, threshold))
        if solution is None:
            inside = _inside(scaled, modes, directions, forces, threshold)
            solution = polish(scaled, modes, directions, inside)
        if solution is not None:
            least = polish(scaled, modes, solution.directions, np.zeros(len(forces)))
            return _unscaled(least or solution, unit)
    return None


def _shown(
    problem: CoulombProblem, forces: Array, threshold: float
) -> tuple[Modes, list[Array | None]]:
    """The states that impulses show."""
    rates = problem.delassus @ forces + problem.free
    modes: list[str] = []
    directions: list[Array | None] = []
    for i, rows in enumerate(problem.tangents):
        w = rates[rows]
        speed = float(np.linalg.norm(w))
        sliding = len(rows) > 0 and speed > threshold
        directions.append(w / speed if sliding else None)
        if forces[i] <= threshold:
            modes.append(OPEN)
        elif len(rows) == 0:
            modes.append(CLOSED)
        elif not sliding:
            modes.append(STICK)
        else:
            modes.append(SLIP if len(rows) == 2 else SLIP_PLUS if w[0] > 0.0 else SLIP_MINUS)
    return tuple(modes), directions


def _inside(
    problem: CoulombProblem,
    modes: Modes,
    directions: Sequence[Array | None],
    forces: Array,
    margin: float,
) -> Array:
    """Impulses that solve the equations of these states with sticking contacts inside their cones.

    Redundant contacts leave a choice; projections on the equations and on cones that are smaller
    by `margin`, in turns, converge to a point of both if there is one.
    """
    rates = problem.delassus @ forces + problem.free
    matrix, target = equations(problem, modes, directions, forces, rates, False)
    inverse = np.linalg.pinv(matrix, rcond=RANK)
    for _ in range(_PROJECTIONS):
        drawn = _drawn(problem, modes, forces, margin)
        forces = drawn + inverse @ (target - matrix @ drawn)
        if np.array_equal(_drawn(problem, modes, forces, 0.0), forces):
            break
    return forces


def _drawn(problem: CoulombProblem, modes: Modes, forces: Array, margin: float) -> Array:
    """The impulses with those of sticking contacts drawn into their cones by a margin."""
    result: Array = forces.copy()
    for i, mode in enumerate(modes):
        if mode == STICK:
            rows = problem.tangents[i]
            result[i] = max(forces[i], 0.0)
            size = float(np.linalg.norm(forces[rows]))
            limit = (1.0 - margin) * problem.static[i] * result[i]
            result[rows] *= limit / size if size > limit else 1.0
    return result


def _scaled(problem: CoulombProblem) -> tuple[CoulombProblem, tuple[float, float]]:
    """The problem with W and c of order one, and the units of forces and rates."""
    size = float(problem.delassus.diagonal().mean()) or 1.0
    rate = max(float(np.abs(problem.free).max()), problem.magnitude) or 1.0
    scaled = replace(problem, delassus=problem.delassus / size, free=problem.free / rate)
    return scaled, (rate / size, rate)


def _unscaled(solution: CoulombSolution, unit: tuple[float, float]) -> CoulombSolution:
    return replace(solution, forces=unit[0] * solution.forces, rates=unit[1] * solution.rates)
