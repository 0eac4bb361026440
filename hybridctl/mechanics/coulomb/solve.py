r"""Solving Coulomb's law: a solution that obeys it to a certificate, or an error that says why not.

Newton's method from the forces that hold all contacts still, or from none, solves most problems;
what it does not is solved by cone programmes (`cones`), each of which gives Newton's method another
start. All sets of states are tried where there may be more solutions than one and the sets are few
(`screening`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.optimize import nnls

from hybridctl.base.checks import Array
from hybridctl.base.errors import NoContactSolutionError, SeveralContactSolutionsError
from hybridctl.mechanics.coulomb.cones import Cone, ConeProgramme, cone_rows, fixed_point
from hybridctl.mechanics.coulomb.contact_states import OPEN, STICK, Modes
from hybridctl.mechanics.coulomb.law import (
    CERTIFIED,
    CoulombProblem,
    CoulombSolution,
    Uniqueness,
    Units,
    judged,
    scaled,
)
from hybridctl.mechanics.coulomb.least_norm_forces import least_forces
from hybridctl.mechanics.coulomb.newton import SINGULAR, nearest, newton, projection
from hybridctl.mechanics.coulomb.screening import candidates
from hybridctl.mechanics.coulomb.uniqueness import certainly_unique

MOST_SETS = 64
_PROGRAMMES, _BEFORE_TRYING_ALL = 100, 10
_ALONE, _SCATTERED = 8, 8
_SAME = 1e-6
_PRINTED = 4
_BETWEEN = 0.49
_SHARED = 1e-11
_LIFT = 1e-3


def solve(problem: CoulombProblem) -> CoulombSolution:
    """A solution of the problem whose residual is at most 1e-9 in units of the data.

    Its rates are proven to be the only ones where `certainly_unique` or, where the sets of states
    are at most 64, trying all of them says so; of more sets the solution that is found is taken,
    and its uniqueness not established. Where contacts are redundant its forces are those of least
    norm in its states or, if these leave the cones, the least ones inside that give its rates. Of a
    continuum of rates the solution of least norm is taken, and uniqueness is disproven.

    Raises `NoContactSolutionError` if none is found, `SeveralContactSolutionsError` if there are
    more than one that are not connected; both carry the data. Newton's rule with friction and
    several contacts may have no solution where e > 0.
    """
    plain, units = scaled(problem)
    best = _found(problem, plain, units)
    if best.residual <= CERTIFIED:
        if certainly_unique(plain):
            return units.of(replace(best, uniqueness="proven"))
        if count_sets(problem) > MOST_SETS:
            return units.of(best)
    found = _with_tried(problem, plain, best)
    least = _with([], [_least(plain, solution, _metric(units)) for solution in found])
    if len(least) == 1:  # of several, all those in its states
        unique: Uniqueness = "proven" if len(found) == 1 else "disproven"
        return units.of(replace(least[0], uniqueness=unique))
    return least_of_family(problem, [units.of(solution) for solution in least])


def follow(problem: CoulombProblem, near: Array) -> CoulombSolution:
    """A solution of the problem as that of `solve`, but one that need not be the only one.

    Newton's method begins in the states that the forces `near` (r,) show, in a simulation by steps
    those of the step before; only where that leads nowhere does the search of `solve` follow.

    Raises `NoContactSolutionError` if none is found.
    """
    plain, units = scaled(problem)
    best = _found(problem, plain, units, near / units.forces)
    if best.residual <= CERTIFIED:
        return units.of(best)
    return units.of(_least(plain, _with_tried(problem, plain, best)[0], _metric(units)))


def _found(
    problem: CoulombProblem, plain: CoulombProblem, units: Units, near: Array | None = None
) -> CoulombSolution:
    """What Newton's method finds before it is worth the time to try all sets of states."""
    programmes = _BEFORE_TRYING_ALL if count_sets(problem) <= MOST_SETS else _PROGRAMMES
    near = _holding(plain) if near is None else near
    return found_by_newton(plain, programmes, _metric(units), near)


def _holding(plain: CoulombProblem) -> Array | None:
    """The forces -G^-1 b that let nothing move, None where contacts are redundant."""
    root, failed = dpotrf(plain.delassus)
    pivots = root.diagonal()
    if failed or pivots.min() ** 2 <= SINGULAR * pivots.max() ** 2:
        return None
    return -np.asarray(dpotrs(root, plain.free)[0])


def _with_tried(
    problem: CoulombProblem, plain: CoulombProblem, best: CoulombSolution
) -> list[CoulombSolution]:
    """All solutions of few sets of states, and the best that was found, if it is certified."""
    few = count_sets(problem) <= MOST_SETS
    found = _with(_enumerated(plain) if few else [], [best] * (best.residual <= CERTIFIED))
    if not found:
        raise none(problem, best.residual, few)
    return found


def _metric(units: Units) -> Array:
    """Factors by which forces without units have the norm of those with units."""
    return np.asarray(units.forces / units.forces.max(initial=0.0))


def found_by_newton(
    plain: CoulombProblem,
    programmes: int,
    metric: Array | None = None,
    near: Array | None = None,
) -> CoulombSolution:
    """What Newton's method finds with the least residual, from so many programmes on if need be.

    For a problem without units, first from the forces `near` (r,), by default none, with the least
    forces by the norm of forces times `metric` (r,).
    """
    zero = np.zeros(len(plain.free))
    best = judged(plain, newton(plain, zero, guess=near, metric=metric))
    if best.residual <= CERTIFIED or not programmes:
        return best
    for start, stretch in _starts(plain, programmes):
        found = judged(plain, newton(plain, start, stretch=stretch))
        if found.residual < best.residual:
            best = found
        if best.residual <= CERTIFIED:
            return _least(plain, best, metric)
    return best


def _starts(plain: CoulombProblem, programmes: int) -> Iterator[tuple[Array, float]]:
    """Starts and stretches for Newton's method: programmes' solutions, later random ones too."""
    draw, k = np.random.default_rng(0), len(plain.static)
    for number, forces in enumerate(islice(fixed_point(plain), programmes)):
        yield forces, 1.0
        for _ in range(_SCATTERED * (number >= _ALONE)):
            scattered = 10.0 ** draw.uniform(-1.0, 1.0) * draw.normal(size=len(plain.free))
            scattered[:k] = np.abs(scattered[:k])
            yield scattered, 10.0 ** draw.uniform(-1.0, 1.0)


def _least(
    plain: CoulombProblem, solution: CoulombSolution, metric: Array | None
) -> CoulombSolution:
    """The solution with the least forces in its states or, if that fails, with its rates."""
    modes, zero = solution.modes, np.zeros(len(plain.free))
    forces = newton(plain, zero, modes, guess=solution.forces, metric=metric)
    least = judged(plain, forces, modes)
    limit = max(solution.residual, _SHARED)
    if least.residual > limit:
        least = _inside(plain, solution, metric)
    return least if least.residual <= limit else solution


def _inside(
    plain: CoulombProblem, solution: CoulombSolution, metric: Array | None
) -> CoulombSolution:
    """The solution with the least forces inside the cones that give its rates, if there are."""
    weights = np.ones(len(plain.free)) if metric is None else 1.0 / metric**2
    modes = solution.modes
    with suppress(NoContactSolutionError):
        forces = least_forces(plain, modes, solution.directions, weights, solution.rates).forces
        return judged(plain, forces, modes)
    return solution


def polish(
    problem: CoulombProblem, modes: Modes, directions: Sequence[Array | None]
) -> CoulombSolution | None:
    """The solution in given states, None if it misses the law there by more than 1e-9.

    `directions`: guesses where a contact begins to slide in space. Where redundant contacts leave
    their cones with the least forces, those of the same rates inside them are taken.
    """
    plain, units = scaled(problem)
    pairs = zip(plain.sliding, directions, plain.tangents, strict=True)
    known = [guess if given is None and len(rows) == 2 else given for given, guess, rows in pairs]
    guessed = replace(plain, sliding=tuple(known))
    wanted, slope = projection(guessed, -plain.free, modes)  # linear, as directions are known
    straight = nearest(np.eye(len(wanted)) - slope + slope @ plain.delassus, wanted)
    solution = judged(plain, newton(plain, straight, modes), modes)
    if solution.residual > CERTIFIED >= solution.astray:
        solution = _inside(plain, solution, None)
    return units.of(solution) if solution.residual <= CERTIFIED else None


def none(problem: CoulombProblem, residual: float, all_tried: bool) -> NoContactSolutionError:
    """The error for a problem of which no solution was found, with what is known of the reason."""
    numerical = False
    if keeps_none_apart(problem):
        reason = "no rates keep all contacts from penetrating"
    elif all_tried and not lifts_all(problem):
        reason = f"none of the {count_sets(problem)} sets of contact states obeys it"
    else:
        numerical = True
        reason = f"the least residual that was reached is {residual:.2g} of the data's scale"
    if numerical:
        begin = "numerical failure, Coulomb's law may have a solution here that was not found"
    else:
        begin = "Coulomb's law has no solution here"
    text = f"{begin}: {reason}{describe(problem)}"
    return NoContactSolutionError(text, problem=problem, numerical=numerical)


def keeps_none_apart(problem: CoulombProblem) -> bool:
    """Whether no forces at all make all w_n >= 0: some y >= 0 have G y = 0 and b . y < 0."""
    plain, _ = scaled(problem)
    k = len(plain.static)
    system = np.vstack((plain.delassus[:, :k], plain.free[:k]))
    target = np.zeros(len(system))
    target[-1] = -1.0
    y, miss = nnls(system, target)
    return bool(miss <= CERTIFIED * (1.0 + y.max(initial=0.0)))


def lifts_all(problem: CoulombProblem) -> bool:
    """Whether forces make w_n > mu |w_t| for all contacts, so that the law has a solution.

    That some forces do so is enough, whatever b (Acary, Cadoux, Lemarechal, Malick 2011).
    """
    plain, _ = scaled(problem)
    cones = [
        Cone(i, rows if mu > 0.0 else [], 1.0 / mu if mu > 0.0 else 0.0)
        for i, rows, mu, _, _ in plain.contacts
    ]
    size = len(plain.free)
    rows, kinds = cone_rows(cones, [], size)
    lifted = rows @ plain.free - _LIFT * rows[:, : len(cones)].sum(axis=1)
    return (
        ConeProgramme(np.eye(size), np.zeros(size), rows @ plain.delassus, lifted, kinds)
        .solve()
        .solved
    )


def least_of_family(problem: CoulombProblem, found: Sequence[CoulombSolution]) -> CoulombSolution:
    """The solution of least norm, if all others are connected to it by a path of solutions.

    Raises `SeveralContactSolutionsError` if they are not.
    """
    least = min(found, key=lambda s: float(np.linalg.norm(s.forces)))
    others = [s for s in found if s is not least]
    if all(_connected(problem, least, other) for other in others):
        return replace(least, uniqueness="disproven")
    raise several(problem, found)


def _connected(problem: CoulombProblem, one: CoulombSolution, other: CoulombSolution) -> bool:
    """Whether there is a solution near the middle of two, in states of either."""
    plain, units = scaled(problem)
    middle = 0.5 * (one.forces + other.forces) / units.forces
    far = _BETWEEN * float(np.linalg.norm((one.forces - other.forces) / units.forces))
    pairs = zip(one.modes, other.modes, strict=True)  # what leaves the surface is no way between
    choices = [[a] if a == b else [mode for mode in (a, b) if mode != OPEN] for a, b in pairs]
    for modes in product(*choices):
        between = judged(plain, newton(plain, middle, modes))
        near = float(np.linalg.norm(between.forces - middle)) < far
        if between.residual <= CERTIFIED and near:
            return True
    return False


def several(
    problem: CoulombProblem, found: Sequence[CoulombSolution]
) -> SeveralContactSolutionsError:
    """The error for a problem with more than one solution."""
    states = ", ".join(str(solution.modes) for solution in found)
    return SeveralContactSolutionsError(
        f"Coulomb's law has {len(found)} solutions here: {states}" + describe(problem),
        problem=problem,
        solutions=tuple(replace(solution, uniqueness="disproven") for solution in found),
    )


def describe(problem: CoulombProblem) -> str:
    """The data of a problem, for an error message: in full where a line holds it."""
    if len(problem.free) > _PRINTED:
        return f"; G is {problem.delassus.shape}, see the error's `problem`"
    return (
        f"; G = {problem.delassus.tolist()}, b = {problem.free.tolist()}, friction "
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
    plain, units = scaled(problem)
    return [units.of(solution) for solution in _enumerated(plain)]


def _enumerated(plain: CoulombProblem) -> list[CoulombSolution]:
    found: list[CoulombSolution] = []
    for modes, forces, rates in candidates(plain):
        known = _index(found, rates)
        if known is not None and _rank(modes) <= _rank(found[known].modes):
            continue
        solution = judged(plain, newton(plain, forces, modes))
        if solution.residual <= CERTIFIED:
            found = _with(found, [solution])
    return found


def _with(found: list[CoulombSolution], more: Sequence[CoulombSolution]) -> list[CoulombSolution]:
    """Solutions with different velocities, of each the one in which most contacts hold."""
    result = list(found)
    for solution in more:
        same = _index(result, solution.rates)
        if same is None:
            result.append(solution)
        elif _rank(solution.modes) > _rank(result[same].modes):
            result[same] = solution
    return result


def _index(found: Sequence[CoulombSolution], rates: Array) -> int | None:
    """The first solution with these rates."""
    near = (k for k, s in enumerate(found) if np.abs(s.rates - rates).max() <= _SAME)
    return next(near, None)


def _rank(modes: Modes) -> tuple[int, int]:
    return modes.count(STICK), -modes.count(OPEN)
