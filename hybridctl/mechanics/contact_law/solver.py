r"""The solver of Coulomb's law: a solution with a certificate, or an error that says why not.

`solve` first searches (`search_by_newton`): Newton's method from the forces that hold all contacts
still, or from none, solves most problems. Where it does not, cone programmes give it other starts.
If a condition proves the solution unique (`uniqueness`), that is all. Otherwise all sets of contact
states are tried (`enumeration`), where they are at most `MAX_ENUMERATED_SETS`.

There may be no solution: Newton's rule of restitution with friction and several contacts has none
for some data with e > 0. Then the error says whether no forces keep all contacts apart
(`_cannot_separate`), whether all sets of states were tried, or whether the numerics failed.
Where forces make w_n > mu |w_t| for all contacts a solution exists (`_can_lift_all`), and it is not
claimed that there is none.
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
from hybridctl.mechanics.contact_law.compiled import search_compiled
from hybridctl.mechanics.contact_law.cone_programme import (
    Cone,
    ConeProgramme,
    build_cone_rows,
    iterate_cone_programmes,
)
from hybridctl.mechanics.contact_law.enumeration import enumerate_candidates
from hybridctl.mechanics.contact_law.law import (
    CERTIFIED,
    OPEN,
    STICK,
    CoulombProblem,
    CoulombSolution,
    Modes,
    ProblemUnits,
    Uniqueness,
    evaluate_forces,
    scale_problem,
)
from hybridctl.mechanics.contact_law.linear_equations import SINGULAR, solve_least_norm
from hybridctl.mechanics.contact_law.newton import project_forces, solve_by_newton
from hybridctl.mechanics.contact_law.redundancy import distribute_forces
from hybridctl.mechanics.contact_law.uniqueness import is_provably_unique

MAX_ENUMERATED_SETS = 64
"""Sets of contact states up to which all are tried: a choice. Three planar contacts have 64."""
_MAX_PROGRAMMES = 100
"""Cone programmes of a search where the sets of states are too many to be tried. A choice."""
_PROGRAMMES_BEFORE_ENUMERATION = 10
"""Cone programmes of a search where all sets of states can be tried after it. A choice."""
_FIRST_RANDOM_PROGRAMME = 8
"""Programmes after which random starts of Newton's method are tried beside each. A choice."""
_RANDOM_STARTS = 8
"""Random starts of Newton's method beside each later programme. A choice."""
_SAME_RATES = 1e-6
"""Dimensionless difference of rates up to which two solutions are one.

Two solutions of 1e-9 differ by that times the condition of G, some hundreds for bodies."""
_MAX_PRINTED_ROWS = 4
"""Rows of a problem that are printed in a message; larger ones do not fit three lines."""
_MAX_PATH_DISTANCE = 0.49
"""Distance from the middle of two solutions, relative to theirs, of a solution between them.

Below 0.5, so that it is neither of the two."""
_SHARED_RESIDUAL = 1e-11
"""Residual up to which forces of least norm replace others of the same rates. A choice."""
_LIFT = 1e-3
"""Dimensionless w_n - mu |w_t| that forces must reach to prove that a solution exists. A choice."""


def solve(problem: CoulombProblem) -> CoulombSolution:
    """Return a solution whose residual is at most 1e-9 in units of the data.

    Its rates are proven to be the only ones if `is_provably_unique` says so, or, where there are at
    most 64 sets of states, if trying all finds no others. With more sets the solution found is
    returned, that of least norm in its states, and its uniqueness is not established. Forces of
    redundant contacts are those of least norm in their states or, if these leave the cones, those
    of least norm in the cones with the same rates. Of a continuum of rates the solution of least
    norm is returned, and uniqueness is disproven.

    Args:
        problem: Problem in any units.

    Returns:
        The solution, in the units of the problem.

    Raises:
        NoContactSolutionError: If no solution is found; the error has the problem.
        SeveralContactSolutionsError: If there are several that are not connected; the error has
            the problem and the solutions.
    """
    settled = search_compiled(problem, MAX_ENUMERATED_SETS)
    return _solve_in_python(problem) if settled is None else settled


def _solve_in_python(problem: CoulombProblem) -> CoulombSolution:
    """Return what `solve` returns, without the compiled extension: its reference."""
    plain, units = scale_problem(problem)
    best = _search(problem, plain, units)
    if best.residual <= CERTIFIED:
        if is_provably_unique(plain):
            return units.restore(replace(best, uniqueness="proven"))
        if problem.count_states() > MAX_ENUMERATED_SETS:
            return units.restore(_leave_border(plain, best, _compute_norm_factors(units)))
    found = _find_all(problem, plain, best)
    least = _merge_solutions(
        [], [_reduce_forces(plain, s, _compute_norm_factors(units)) for s in found]
    )
    if len(least) == 1:
        # Several solutions with one of least norm in their states are a continuum of rates.
        unique: Uniqueness = "proven" if len(found) == 1 else "disproven"
        return units.restore(replace(least[0], uniqueness=unique))
    return select_least_norm_solution(problem, [units.restore(solution) for solution in least])


def solve_near(problem: CoulombProblem, near: Array) -> CoulombSolution:
    """Return a solution as `solve` does, but one that need not be the only one.

    Newton's method begins in the states that some forces show. Only where that finds nothing does
    the search of `solve` follow.

    Args:
        problem: Problem in any units.
        near: Forces (r,) to begin with; in time stepping those of the step before.

    Returns:
        The solution, in the units of the problem.

    Raises:
        NoContactSolutionError: If no solution is found; the error has the problem.
    """
    plain, units = scale_problem(problem)
    best = _search(problem, plain, units, near / units.forces)
    if best.residual <= CERTIFIED:
        return units.restore(best)
    first = _find_all(problem, plain, best)[0]
    return units.restore(_reduce_forces(plain, first, _compute_norm_factors(units)))


def solve_in_states(
    problem: CoulombProblem, modes: Modes, directions: Sequence[Array | None]
) -> CoulombSolution | None:
    """Return the solution in given states, None if it violates the law by more than 1e-9.

    Where redundant contacts leave their cones with the forces of least norm, those of least norm in
    the cones with the same rates are taken.

    Args:
        problem: Problem in any units.
        modes: State of each contact.
        directions: Guesses of the directions of contacts that begin to slide in space; None for the
            others.
    """
    plain, units = scale_problem(problem)
    pairs = zip(plain.sliding, directions, plain.tangents, strict=True)
    known = [guess if given is None and len(rows) == 2 else given for given, guess, rows in pairs]
    guessed = replace(plain, sliding=tuple(known))
    projected, slope = project_forces(guessed, -plain.free, modes)  # linear: directions are known
    matrix = np.eye(len(projected)) - slope + slope @ plain.delassus
    start = solve_least_norm(matrix, projected)
    solution = evaluate_forces(plain, solve_by_newton(plain, start, modes), modes)
    if solution.residual > CERTIFIED >= solution.rate_residual:
        solution = _distribute_in_cones(plain, solution, None)
    return units.restore(solution) if solution.residual <= CERTIFIED else None


def _search(
    problem: CoulombProblem,
    plain: CoulombProblem,
    units: ProblemUnits,
    near: Array | None = None,
) -> CoulombSolution:
    """Return the best solution of a search by Newton's method and cone programmes.

    Args:
        problem: Problem with units.
        plain: The same without.
        units: Its units.
        near: Dimensionless forces (r,) to begin with. If None, those that hold all contacts still.
    """
    few = problem.count_states() <= MAX_ENUMERATED_SETS
    programmes = _PROGRAMMES_BEFORE_ENUMERATION if few else _MAX_PROGRAMMES
    near = _compute_holding_forces(plain) if near is None else near
    return search_by_newton(plain, programmes, _compute_norm_factors(units), near)


def _compute_holding_forces(plain: CoulombProblem) -> Array | None:
    """Return the forces -G^-1 b that hold all rows still, None where contacts are redundant."""
    root, failed = dpotrf(plain.delassus)
    pivots = root.diagonal()
    if failed or pivots.min() ** 2 <= SINGULAR * pivots.max() ** 2:
        return None
    return -np.asarray(dpotrs(root, plain.free)[0])


def _find_all(
    problem: CoulombProblem, plain: CoulombProblem, best: CoulombSolution
) -> list[CoulombSolution]:
    """Return all solutions where the sets of states are few, and the best that a search found.

    Args:
        problem: Problem with units, for errors.
        plain: The same without.
        best: End of the search, which need not be certified.

    Raises:
        NoContactSolutionError: If none is certified.
    """
    few = problem.count_states() <= MAX_ENUMERATED_SETS
    certified = [best] if best.residual <= CERTIFIED else []
    found = _merge_solutions(_enumerate_plain(plain) if few else [], certified)
    if not found:
        failure: NoContactSolutionError = _describe_failure(problem, best.residual, few)
        raise failure
    return found


def _compute_norm_factors(units: ProblemUnits) -> Array:
    """Return factors (r,) by which dimensionless forces have the norm of those with units."""
    return np.asarray(units.forces / units.forces.max(initial=0.0))


def search_by_newton(
    plain: CoulombProblem,
    programmes: int,
    norm_factors: Array | None = None,
    near: Array | None = None,
) -> CoulombSolution:
    """Return the solution of least residual that Newton's method finds.

    The first start is `near`. Where it does not lead to a certified solution, cone programmes give
    other starts.

    Args:
        plain: Dimensionless problem.
        programmes: Largest number of cone programmes.
        norm_factors: Factors (r,) of the norm of forces that is least where contacts are redundant;
            None for one.
        near: First forces (r,); None for zero.
    """
    zero = np.zeros(len(plain.free))
    best = evaluate_forces(
        plain, solve_by_newton(plain, zero, guess=near, norm_factors=norm_factors)
    )
    if best.residual <= CERTIFIED or not programmes:
        return best
    for start, rate_scale in _generate_newton_starts(plain, programmes):
        found = evaluate_forces(plain, solve_by_newton(plain, start, rate_scale=rate_scale))
        if found.residual < best.residual:
            best = found
        if best.residual <= CERTIFIED:
            return _reduce_forces(plain, best, norm_factors)
    return best


def _generate_newton_starts(
    plain: CoulombProblem, programmes: int
) -> Iterator[tuple[Array, float]]:
    """Yield starts and rate scales of Newton's method: programmes' minima, later random ones too.

    Args:
        plain: Dimensionless problem.
        programmes: Number of cone programmes.
    """
    draw, k = np.random.default_rng(0), len(plain.static)
    for number, forces in enumerate(islice(iterate_cone_programmes(plain), programmes)):
        yield forces, 1.0
        if number < _FIRST_RANDOM_PROGRAMME:
            continue
        for _ in range(_RANDOM_STARTS):
            start = 10.0 ** draw.uniform(-1.0, 1.0) * draw.normal(size=len(plain.free))
            start[:k] = np.abs(start[:k])
            yield start, 10.0 ** draw.uniform(-1.0, 1.0)


def _reduce_forces(
    plain: CoulombProblem, solution: CoulombSolution, norm_factors: Array | None
) -> CoulombSolution:
    """Return the solution of least norm in its states or, if that leaves the cones, with its rates.

    Args:
        plain: Dimensionless problem.
        solution: A solution of it, which is returned where forces of less norm violate the law.
        norm_factors: Factors (r,) of the norm of forces; None for one.
    """
    modes, zero = solution.modes, np.zeros(len(plain.free))
    forces = solve_by_newton(plain, zero, modes, guess=solution.forces, norm_factors=norm_factors)
    least = evaluate_forces(plain, forces, modes)
    limit = max(solution.residual, _SHARED_RESIDUAL)
    if least.residual > limit:
        least = _distribute_in_cones(plain, solution, norm_factors)
    return least if least.residual <= limit else solution


def _leave_border(
    plain: CoulombProblem, solution: CoulombSolution, norm_factors: Array
) -> CoulombSolution:
    """Return the solution of least norm in its states if contacts are at the border of others.

    Redundant contacts that slide leave a continuum of solutions. Newton's method ends at one of its
    ends where a contact has no force that it had opened on the way. Rounding decides which contact
    that is (test_rounding_does_not_choose_among_solutions_of_redundant_contacts). Of least norm is
    one inside, or the end at which a contact has no force that would pull inside.

    Args:
        plain: Dimensionless problem.
        solution: A solution of it, which is returned where others violate the law.
        norm_factors: Factors (r,) of the norm of forces.
    """
    if not solution.border:
        return solution
    modes, zero = list(solution.modes), np.zeros(len(plain.free))
    for _ in modes:
        forces = solve_by_newton(
            plain, zero, tuple(modes), guess=solution.forces, norm_factors=norm_factors
        )
        normal = forces[: len(modes)]
        if normal.min() >= 0.0:
            break
        modes[int(normal.argmin())] = OPEN
    least = evaluate_forces(plain, forces, solution.modes)
    return least if least.residual <= max(solution.residual, _SHARED_RESIDUAL) else solution


def _distribute_in_cones(
    plain: CoulombProblem, solution: CoulombSolution, norm_factors: Array | None
) -> CoulombSolution:
    """Return the solution of least norm in the cones with the same rates; else the given one.

    Args:
        plain: Dimensionless problem.
        solution: States, directions and rates to keep.
        norm_factors: Factors (r,) of the norm of forces; None for one.
    """
    weights = np.ones(len(plain.free)) if norm_factors is None else 1.0 / norm_factors**2
    modes = solution.modes
    with suppress(NoContactSolutionError):
        found = distribute_forces(plain, modes, solution.directions, weights, solution.rates)
        return evaluate_forces(plain, found.forces, modes)
    return solution


def _describe_failure(
    problem: CoulombProblem, residual: float, all_tried: bool
) -> NoContactSolutionError:
    """Return the error for a problem without a solution, with what is known of the reason.

    Args:
        problem: Problem with units.
        residual: Least residual that was reached.
        all_tried: Whether all sets of contact states were tried.
    """
    numerical = False
    if _cannot_separate(problem):
        reason = "no rates keep all contacts from penetrating"
    elif all_tried and not _can_lift_all(problem):
        reason = f"none of the {problem.count_states()} sets of contact states obeys it"
    else:
        numerical = True
        reason = f"the least residual that was reached is {residual:.2g} of the data's scale"
    if numerical:
        begin = "numerical failure, Coulomb's law may have a solution here that was not found"
    else:
        begin = "Coulomb's law has no solution here"
    text = f"{begin}: {reason}{_format_problem(problem)}"
    return NoContactSolutionError(text, problem=problem, numerical=numerical)


def _cannot_separate(problem: CoulombProblem) -> bool:
    """Return whether no forces at all make all w_n >= 0: some y >= 0 have G y = 0 and b . y < 0."""
    plain, _ = scale_problem(problem)
    k = len(plain.static)
    system = np.vstack((plain.delassus[:, :k], plain.free[:k]))
    target = np.zeros(len(system))
    target[-1] = -1.0
    y, residual = nnls(system, target)
    return bool(residual <= CERTIFIED * (1.0 + y.max(initial=0.0)))


def _can_lift_all(problem: CoulombProblem) -> bool:
    """Return whether some forces make w_n > mu |w_t| for all contacts, so that a solution exists.

    This is sufficient whatever b is (Acary, Cadoux, Lemarechal, Malick 2011).
    """
    plain, _ = scale_problem(problem)
    cones = [
        Cone(i, rows if mu > 0.0 else [], 1.0 / mu if mu > 0.0 else 0.0)
        for i, rows, mu, _, _ in plain.contacts
    ]
    size = len(plain.free)
    rows, kinds = build_cone_rows(cones, [], size)
    lifted = rows @ plain.free - _LIFT * rows[:, : len(cones)].sum(axis=1)
    programme = ConeProgramme(np.eye(size), np.zeros(size), rows @ plain.delassus, lifted, kinds)
    return programme.solve().solved


def select_least_norm_solution(
    problem: CoulombProblem, found: Sequence[CoulombSolution]
) -> CoulombSolution:
    """Return the solution of least norm, if a path of solutions connects it to all others.

    Args:
        problem: Problem with units.
        found: Its solutions, with different rates.

    Raises:
        SeveralContactSolutionsError: If some are not connected.
    """
    least = min(found, key=lambda s: float(np.linalg.norm(s.forces)))
    others = [s for s in found if s is not least]
    if all(_are_connected(problem, least, other) for other in others):
        return replace(least, uniqueness="disproven")
    states = ", ".join(str(solution.modes) for solution in found)
    raise SeveralContactSolutionsError(
        f"Coulomb's law has {len(found)} solutions here: {states}" + _format_problem(problem),
        problem=problem,
        solutions=tuple(replace(solution, uniqueness="disproven") for solution in found),
    )


def _are_connected(problem: CoulombProblem, one: CoulombSolution, other: CoulombSolution) -> bool:
    """Return whether there is a solution near the middle of two, in states of either.

    Args:
        problem: Problem with units.
        one: A solution.
        other: Another one.
    """
    plain, units = scale_problem(problem)
    middle = 0.5 * (one.forces + other.forces) / units.forces
    limit = _MAX_PATH_DISTANCE * float(np.linalg.norm((one.forces - other.forces) / units.forces))
    pairs = zip(one.modes, other.modes, strict=True)
    # A contact that is open in one of them is closed on the way: open ones would not be between.
    choices = [[a] if a == b else [state for state in (a, b) if state != OPEN] for a, b in pairs]
    for modes in product(*choices):
        between = evaluate_forces(plain, solve_by_newton(plain, middle, modes))
        near = float(np.linalg.norm(between.forces - middle)) < limit
        if between.residual <= CERTIFIED and near:
            return True
    return False


def _format_problem(problem: CoulombProblem) -> str:
    """Return the data of a problem for a message: in full if it has four rows at most."""
    if len(problem.free) > _MAX_PRINTED_ROWS:
        return f"; G is {problem.delassus.shape}, see the error's `problem`"
    return (
        f"; G = {problem.delassus.tolist()}, b = {problem.free.tolist()}, friction "
        f"{problem.static.tolist()} (static), {problem.kinetic.tolist()} (kinetic)"
    )


def enumerate_solutions(problem: CoulombProblem) -> list[CoulombSolution]:
    """Return all solutions with different rates, from all sets of contact states.

    Of several sets with the same rates, the one in which most contacts stick and fewest are open is
    returned.

    Args:
        problem: Problem in any units.

    Returns:
        The solutions, in the units of the problem.
    """
    plain, units = scale_problem(problem)
    return [units.restore(solution) for solution in _enumerate_plain(plain)]


def _enumerate_plain(plain: CoulombProblem) -> list[CoulombSolution]:
    """Return all solutions of a dimensionless problem, see `enumerate_solutions`."""
    found: list[CoulombSolution] = []
    for modes, forces, rates in enumerate_candidates(plain):
        same = _find_same_rates(found, rates)
        if same is not None and _rank_states(modes) <= _rank_states(found[same].modes):
            continue
        solution = evaluate_forces(plain, solve_by_newton(plain, forces, modes))
        if solution.residual <= CERTIFIED:
            found = _merge_solutions(found, [solution])
    return found


def _merge_solutions(
    found: list[CoulombSolution], more: Sequence[CoulombSolution]
) -> list[CoulombSolution]:
    """Return solutions with different rates; of equal ones the one in which most contacts stick.

    Args:
        found: Solutions with different rates.
        more: Solutions that are added.
    """
    result = list(found)
    for solution in more:
        same = _find_same_rates(result, solution.rates)
        if same is None:
            result.append(solution)
        elif _rank_states(solution.modes) > _rank_states(result[same].modes):
            result[same] = solution
    return result


def _find_same_rates(found: Sequence[CoulombSolution], rates: Array) -> int | None:
    """Return the index of the first solution with these rates, None if there is none."""
    near = (k for k, s in enumerate(found) if np.abs(s.rates - rates).max() <= _SAME_RATES)
    return next(near, None)


def _rank_states(modes: Modes) -> tuple[int, int]:
    """Return a key that is larger the more contacts stick, then the fewer are open."""
    return modes.count(STICK), -modes.count(OPEN)
