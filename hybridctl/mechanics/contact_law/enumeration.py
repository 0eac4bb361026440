r"""Enumeration of contact states: those of all sets that obey Coulomb's law, found together.

In a given set of contact states the law is a linear system A f = c, once the directions are known
in which contacts begin to slide in space. `enumerate_candidates` solves all sets at once, in
arrays whose first axis is the set, in these steps:

1. Contacts that are open, or closed, in every solution (`uniqueness.bound_normal_forces`) have that
   state only.
2. Sets whose closed contacts cannot be closed together are left out (`can_be_closed`).
3. Sets that constrain dependent rows are treated one by one (`dependent_states`).
4. Unknown sliding directions are found as roots of Newton's method (`find_sliding_directions`).
5. The systems are solved, and those solutions kept that obey the law to six digits.

Sliding directions. In a set in which m contacts begin to slide in space the forces of the others
are linear in theirs, and are eliminated. What is left has one unknown for each of the m contacts,
its normal force, with :math:`s = (\cos\phi, \sin\phi)` and :math:`f = (f_n, -\mu f_n s)`:

.. math:: A f_n = -b_n, \qquad A_{ij} = G_{ij,nn} - \mu_j G_{ij,nt} s_j, \qquad w = G f + b.

The angles are roots of :math:`s_i^\perp \cdot w_i`, found from several starts. With one such
contact they are the roots of :math:`A\, s^\perp \cdot w`, in which no pole is left: a trigonometric
polynomial of degree two, known by its values at eight angles.

Problems are dimensionless, see `law.scale_problem`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import clarabel
import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.mechanics.contact_law.cone_programme import (
    ConeProgramme,
    build_cone_rows,
    map_multipliers,
)
from hybridctl.mechanics.contact_law.dependent_states import DependentStates
from hybridctl.mechanics.contact_law.law import (
    CLOSED,
    OPEN,
    SLIP,
    SLIP_MINUS,
    SLIP_PLUS,
    STICK,
    CoulombProblem,
    Modes,
)
from hybridctl.mechanics.contact_law.uniqueness import bound_normal_forces

_LAW_TOLERANCE = 1e-6
"""Violation of the law, relative to the largest force, up to which a set is a candidate.

Newton's method from there settles it. The same in rad ends the search for sliding directions."""
_MIN_UNKNOWN_DIRECTIONS = 2
"""Contacts that begin to slide in space from which on a set is worth a feasibility programme.

With fewer its linear systems take less time."""
_FEASIBILITY_MARGIN = 1e-7
"""Dimensionless violation of rates and cones up to which contacts can be closed. A choice."""
_MAX_ANGLE_STEPS = 12
"""Newton steps on sliding directions. A choice."""
_MAX_ANGLE_STEP = 0.5
"""Largest step of a sliding direction, rad: it must not jump to another root. A choice."""
_START_ANGLES = (8, 8, 6)
"""Start angles of each contact if one, two, or more begin to slide. The grid is their product.

Eight values determine the polynomial of one contact. With three contacts six make 216 starts."""
_FIRST_ANGLE = 0.1234
"""First angle of the grid, rad: one at which no contact of a model slides."""
_MAX_ROOT_DISTANCE = 0.3
"""Logarithm of the absolute value of a root up to which its angle is a start.

Double roots are off the unit circle by rounding, and nearly double ones really."""
_DIRECTION_DIGITS = 4
"""Decimals of directions by which two count as the same. A choice."""

Mask = NDArray[np.bool_]
SetNumbers = NDArray[np.intp]


def enumerate_candidates(problem: CoulombProblem) -> Iterator[tuple[Modes, Array, Array]]:
    """Yield the sets of states that obey the law to six digits, with forces and rates (r,).

    Sets without unknown directions come first. Those that constrain dependent rows come last, and
    may violate the law (see `DependentStates.forces`).
    """
    dependent_states = DependentStates(problem)
    every = list(product(*_restrict_states(problem)))
    sets, dependent = dependent_states.split(drop_infeasible_sets(problem, every))
    counts = [len(_list_unknown_directions(problem, modes)) for modes in sets]
    for number in sorted(set(counts)):
        chosen = [modes for modes, n in zip(sets, counts, strict=True) if n == number]
        directions = np.zeros((len(chosen), len(problem.free)))
        if number:
            numbers, directions = find_sliding_directions(problem, chosen)
            chosen = [chosen[i] for i in numbers]
        batch = BatchedStates(problem, chosen, directions)
        obeys, forces, rates = batch.solve()
        for index in np.flatnonzero(obeys).tolist():
            yield chosen[index], forces[index], rates[index]
    for modes in dependent:
        for one in dependent_states.forces(modes):
            yield modes, one, problem.delassus @ one + problem.free


def _restrict_states(problem: CoulombProblem) -> list[list[str]]:
    """Return the states that each contact may have by the bounds of its normal force."""
    bounds, choices = bound_normal_forces(problem), []
    for i, (is_open, is_closed) in enumerate(zip(bounds.open, bounds.closed, strict=True)):
        states = [OPEN] if is_open else problem.possible_states(i)
        choices.append([state for state in states if not is_closed or state != OPEN])
    return choices


def drop_infeasible_sets(problem: CoulombProblem, sets: Sequence[Modes]) -> list[Modes]:
    """Return the sets of states whose closed contacts can be closed together.

    Sets in which fewer than two contacts begin to slide in space are not tested, and kept.

    Args:
        problem: Dimensionless problem.
        sets: Sets of contact states.
    """
    feasible: dict[tuple[int, ...], bool] = {}
    kept = []
    for modes in sets:
        closed = tuple(i for i, state in enumerate(modes) if state != OPEN)
        if closed not in feasible:
            unknown = sum(problem.has_unknown_direction(i, SLIP) for i in closed)
            is_tested = unknown >= _MIN_UNKNOWN_DIRECTIONS
            feasible[closed] = not is_tested or can_be_closed(problem, closed)
        if feasible[closed]:
            kept.append(modes)
    return kept


def can_be_closed(problem: CoulombProblem, closed: Sequence[int]) -> bool:
    r"""Return whether forces in the cones of some contacts can keep just these closed, to 1e-7.

    Whatever their friction does, :math:`f_i \in K_i,\ w_{n,i} = 0` for closed contacts and
    :math:`f_i = 0,\ w_{n,i} \ge 0` for open ones. Friction of contacts that slide already is
    -mu f_n s. This is a convex programme; without a solution no set of states in which just these
    contacts are closed obeys the law.

    Args:
        problem: Dimensionless problem.
        closed: The contacts that are to be closed.
    """
    count, chosen = len(problem.static), list(closed)
    states = zip(range(count), problem.sliding, strict=True)
    modes = tuple(OPEN if i not in chosen else SLIP if s is not None else STICK for i, s in states)
    mix, cones = map_multipliers(problem, modes, problem.sliding)
    size = mix.shape[1]
    rates = problem.delassus[:count] @ mix
    limits, kinds = build_cone_rows(cones, [], size)
    rows = np.concatenate((rates, -rates[chosen], limits))
    offset = np.full(len(rows), _FEASIBILITY_MARGIN)
    offset[:count] += problem.free[:count]
    offset[count : count + len(chosen)] -= problem.free[chosen]
    kinds = [clarabel.NonnegativeConeT(count + len(chosen)), *kinds]
    found = ConeProgramme(np.eye(size), np.zeros(size), rows, offset, kinds).solve()
    return not found.infeasible


class BatchedStates:
    """The equations of many sets of contact states of one problem; the first axis is the set.

    Args:
        problem: Dimensionless problem.
        sets: The n sets of states.
        directions: Sliding directions (n, r) of contacts that begin to slide in space. It is
            overwritten with the directions of all other sliding contacts.

    Attributes:
        constrained: Rows (n, r) whose rates are zero: normals of closed contacts, tangents of
            sticking ones.
    """

    def __init__(self, problem: CoulombProblem, sets: Sequence[Modes], directions: Array) -> None:
        self._problem, self._count = problem, len(sets)
        k, r = len(problem.static), len(problem.free)
        states = np.array(sets).reshape(len(sets), k)
        owner = np.arange(r)
        for i, rows in enumerate(problem.tangents):
            owner[rows] = i
        self._owner, self._is_tangent = owner, np.arange(r) >= k
        self._open, self._stick = states == OPEN, states == STICK
        self._slip = ~self._open & ~self._stick & (states != CLOSED)
        at_rest = np.array([direction is None for direction in problem.sliding])
        self._starts_sliding = self._slip & at_rest
        self._is_unknown: Mask = ((states == SLIP) & at_rest)[:, owner] & self._is_tangent
        for i, rows in enumerate(problem.tangents):
            given = problem.sliding[i]
            if given is not None:
                directions[:, rows] = given
            elif len(rows) == 1:
                plus, minus = states[:, i] == SLIP_PLUS, states[:, i] == SLIP_MINUS
                directions[:, rows[0]] = plus.astype(float) - minus.astype(float)
        self._directions = directions
        self.constrained = np.where(self._is_tangent, self._stick[:, owner], ~self._open[:, owner])
        self._quarter_turn = np.zeros((r, r))
        for rows in problem.tangents:
            if len(rows) == 2:
                self._quarter_turn[rows[0], rows[1]] = -1.0
                self._quarter_turn[rows[1], rows[0]] = 1.0

    def equations(self) -> tuple[Array, Array]:
        """Return matrices A (n, r, r) and right-hand sides c (n, r) of A f = c.

        A constrained row says w = 0. Any other row says f = 0, or f_t = -mu f_n s where it slides.
        """
        problem, owner, constrained, r = (
            self._problem,
            self._owner,
            self.constrained,
            len(self._problem.free),
        )
        matrix = np.where(constrained[:, :, None], problem.delassus, np.eye(r))
        sliding = self._slip[:, owner] & self._is_tangent
        friction = np.where(sliding, problem.kinetic[owner] * self._directions, 0.0)
        matrix[:, np.arange(r), owner] += friction
        return matrix, np.where(constrained, -problem.free, 0.0)

    def solve(self) -> tuple[Mask, Array, Array]:
        """Return flags (n,) of sets that obey the law to 1e-6, and forces and rates (n, r)."""
        problem, k = self._problem, len(self._problem.static)
        if not self._count:
            empty = np.zeros((0, len(problem.free)))
            return np.zeros(0, dtype=np.bool_), empty, empty
        matrix, target = self.equations()
        forces = _solve_batch(matrix, target[:, :, None])[:, :, 0]
        rates = forces @ problem.delassus.T + problem.free
        owns = (self._owner[:, None] == np.arange(k)) & self._is_tangent[:, None]
        slack = np.where(self._open, rates[:, :k], forces[:, :k])
        tangential = np.sqrt(forces**2 @ owns)
        cone = np.where(self._stick, problem.static * forces[:, :k] - tangential, 0.0)
        along = np.where(self._starts_sliding, (self._directions * rates) @ owns, 0.0)
        across = np.where(self._is_unknown, (self._directions @ self._quarter_turn) * rates, 0.0)
        tolerance = _LAW_TOLERANCE * np.maximum(1.0, np.abs(forces).max(axis=1))
        worst = np.minimum(np.minimum(slack, cone), along).min(axis=1)
        obeys = np.minimum(worst, -np.abs(across @ owns).max(axis=1)) >= -tolerance
        return obeys, forces, rates


def _solve_batch(matrix: Array, target: Array) -> Array:
    """Return the solutions (n, r, m) of a stack of linear systems, zero where one is singular."""
    try:
        return np.asarray(np.linalg.solve(matrix, target))
    except np.linalg.LinAlgError:
        singular = np.linalg.matrix_rank(matrix) < matrix.shape[1]
        safe = np.where(singular[:, None, None], np.eye(matrix.shape[1]), matrix)
        return np.where(singular[:, None, None], 0.0, np.linalg.solve(safe, target))


def _list_unknown_directions(problem: CoulombProblem, modes: Modes) -> list[int]:
    """Return the contacts that begin to slide in space in these states."""
    return [i for i, state in enumerate(modes) if problem.has_unknown_direction(i, state)]


def find_sliding_directions(
    problem: CoulombProblem, sets: Sequence[Modes]
) -> tuple[SetNumbers, Array]:
    """Return directions that sets of states may have; some may be no roots.

    Args:
        problem: Dimensionless problem.
        sets: Sets of states in which equally many contacts begin to slide in space.

    Returns:
        The number of the set of each direction (n,), and directions (n, r), zero elsewhere.
    """
    equations = _SlidingEquations(problem, sets)
    numbers, angles = equations.start_angles()
    equations.refine(numbers, angles)
    directions = np.zeros((len(numbers), len(problem.free)))
    rows = equations.rows[numbers]
    each = np.arange(len(numbers))[:, None]
    directions[each, rows[:, :, 1]] = np.cos(angles)
    directions[each, rows[:, :, 2]] = np.sin(angles)
    rounded = np.column_stack((numbers, np.round(directions, _DIRECTION_DIGITS)))
    _, distinct = np.unique(rounded, axis=0, return_index=True)
    return numbers[distinct], directions[distinct]


class _SlidingEquations:
    """The law of the m contacts that begin to slide, with all others eliminated.

    Attributes:
        rows: Normal and tangent rows (sets, m, 3) of these contacts in each set.
    """

    def __init__(self, problem: CoulombProblem, sets: Sequence[Modes]) -> None:
        contacts = np.array([_list_unknown_directions(problem, modes) for modes in sets])
        number, m = contacts.shape
        rows_of = [[i, *rows] for i, rows in enumerate(problem.tangents)]
        self.rows: SetNumbers = np.array([[rows_of[i] for i in chosen] for chosen in contacts])
        self._friction: Array = problem.kinetic[contacts][:, None, None, :]
        others = [
            tuple(OPEN if i in chosen else state for i, state in enumerate(modes))
            for modes, chosen in zip(sets, contacts.tolist(), strict=True)
        ]
        batch = BatchedStates(problem, others, np.zeros((number, len(problem.free))))
        rows, each = self.rows.reshape(number, 3 * m), np.arange(number)[:, None]
        columns = problem.delassus[:, rows].transpose(1, 0, 2)
        matrix, target = batch.equations()
        by_unit_forces = np.where(batch.constrained[:, :, None], -columns, 0.0)
        forces = _solve_batch(matrix, np.concatenate((by_unit_forces, target[:, :, None]), axis=2))
        forces[each, rows, np.arange(3 * m)] += 1.0
        rates = problem.delassus[rows] @ forces
        rates[:, :, -1] += problem.free[rows]
        self._delassus: Array = rates[:, :, :-1].reshape(number, m, 3, m, 3)
        self._free: Array = rates[:, :, -1].reshape(number, m, 3)

    def start_angles(self) -> tuple[SetNumbers, Array]:
        """Return angles (n, m) to start from, and the number (n,) of the set of each.

        With one contact they are the roots of its polynomial, otherwise a grid.
        """
        number, m = self._free.shape[:2]
        grid = _make_angle_grid(m)
        numbers, angles = np.repeat(np.arange(number), len(grid)), np.tile(grid, (number, 1))
        if m > 1:
            return numbers, angles
        responses, _ = self._responses(numbers, angles)
        c, s, free = np.cos(angles[:, 0]), np.sin(angles[:, 0]), self._free[numbers, 0]
        responses = responses[:, 0, :, 0]
        values = responses[:, 0] * (c * free[:, 2] - s * free[:, 1])
        values -= free[:, 0] * (c * responses[:, 2] - s * responses[:, 1])
        roots = [_find_root_angles(row) for row in values.reshape(number, len(grid))]
        lengths = [len(each) for each in roots]
        return np.repeat(np.arange(number), lengths), np.concatenate(roots)[:, None]

    def refine(self, numbers: SetNumbers, angles: Array) -> None:
        """Improve angles in place by Newton's method, with limited steps.

        Args:
            numbers: The set (n,) of each row of angles.
            angles: Angles (n, m), which are overwritten.
        """
        active = np.arange(len(numbers))
        for _ in range(_MAX_ANGLE_STEPS):
            if not len(active):
                return
            step = self._newton_steps(numbers[active], angles[active])
            size = np.abs(step).max(axis=1)
            angles[active] += (
                step * np.minimum(1.0, _MAX_ANGLE_STEP / np.maximum(size, _MAX_ANGLE_STEP))[:, None]
            )
            active = active[size > _LAW_TOLERANCE]

    def _responses(self, numbers: SetNumbers, angles: Array) -> tuple[Array, Array]:
        """Return rates (n, m, 3, m) by normal forces with their friction, and D_angle of these.

        Args:
            numbers: The set (n,) of each row of angles.
            angles: Angles (n, m).
        """
        delassus, friction = self._delassus[numbers], self._friction[numbers]
        c, s = np.cos(angles)[:, None, None, :], np.sin(angles)[:, None, None, :]
        one, two = delassus[..., 1], delassus[..., 2]
        return delassus[..., 0] - friction * (one * c + two * s), friction * (one * s - two * c)

    def _newton_steps(self, numbers: SetNumbers, angles: Array) -> Array:
        """Return the Newton steps (n, m) of the angles towards roots of s_perp . w.

        Args:
            numbers: The set (n,) of each row of angles.
            angles: Angles (n, m).
        """
        n, m = angles.shape
        responses, turned = self._responses(numbers, angles)
        free, c, s = self._free[numbers], np.cos(angles), np.sin(angles)
        inverse = _solve_batch(responses[:, :, 0], np.broadcast_to(np.eye(m), (n, m, m)))
        forces = -(inverse @ free[:, :, 0, None])
        flat = responses.reshape(n, 3 * m, m)
        rates = (flat @ forces).reshape(n, m, 3) + free
        turned = turned.reshape(n, 3 * m, m) * forces[:, None, :, 0]
        by_angles = turned - flat @ (inverse @ turned[:, ::3])
        by_angles = by_angles.reshape(n, m, 3, m)
        residual = rates[:, :, 2] * c - rates[:, :, 1] * s
        slope = by_angles[:, :, 2] * c[:, :, None] - by_angles[:, :, 1] * s[:, :, None]
        slope[:, np.arange(m), np.arange(m)] -= rates[:, :, 1] * c + rates[:, :, 2] * s
        return -_solve_batch(slope, residual[:, :, None])[:, :, 0]


def _make_angle_grid(number: int) -> Array:
    """Return the start angles (n, number) of contacts that begin to slide, rad."""
    each = _START_ANGLES[min(number, len(_START_ANGLES)) - 1]
    circle = _FIRST_ANGLE + 2.0 * np.pi * np.arange(each) / each
    return np.array(list(product(circle.tolist(), repeat=number)))


def _find_root_angles(values: Array) -> Array:
    """Return the angles at which a trigonometric polynomial of degree two is zero, or nearly.

    Args:
        values: Its values at the eight angles of the grid. Where they are not finite, or all zero,
            there is no polynomial to solve, and the grid is returned.
    """
    if not np.isfinite(values).all() or not np.abs(values).max() > 0.0:
        return _make_angle_grid(1)[:, 0]
    orders = np.array([2, 1, 0, -1, -2])
    zeros = np.roots(np.fft.fft(values)[orders] * np.exp(-1j * _FIRST_ANGLE * orders))
    size = np.abs(zeros)
    return np.asarray(
        np.angle(zeros[np.abs(np.log(np.where(size > 0.0, size, 1e-300))) <= _MAX_ROOT_DISTANCE])
    )
