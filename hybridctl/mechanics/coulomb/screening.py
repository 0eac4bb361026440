r"""The sets of contact states that obey Coulomb's law, found for all sets together.

Every set of states gives linear equations A f = b once the directions in which contacts begin to
slide in space are known. Those directions, as angles, are the roots of the perpendicular
velocities s'w with s' perpendicular to s, found by Newton's method from several starts:

.. math:: A f' = -\mu f_n s^\perp, \qquad D\phi = s^\perp \cdot w' - (s \cdot w).

With one such contact the roots are those of :math:`\det A\; s^\perp \cdot w`, in which no pole is
left: a trigonometric polynomial of degree two, known by its values at eight angles.

Sets that hold rows which depend on each other are looked at one by one, see `redundant`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridctl.checks import Array
from hybridctl.mechanics.contacts.contact_states import (
    OPEN,
    SLIP,
    SLIP_MINUS,
    SLIP_PLUS,
    SLIPS,
    STICK,
    Modes,
)
from hybridctl.mechanics.coulomb.law import CoulombProblem
from hybridctl.mechanics.coulomb.redundant import Redundancy

_SCREEN = 1e-6
_ITERATIONS = 12
_MOST_TURN = 0.5
_ANGLES = (8, 8, 6)
_FIRST = 0.1234  # rad, where a grid begins: no angle that contacts of models meet
_NEARLY = 0.3  # logarithm: as far off the circle roots are tried that touch it

Mask = NDArray[np.bool_]


class ScreenedSolution(NamedTuple):
    """A set of states whose solution obeys the law to about six digits, and what was found."""

    modes: Modes
    forces: Array
    rates: Array


def candidates(problem: CoulombProblem) -> Iterator[ScreenedSolution]:
    """All sets of states that pass, those without unknown directions first."""
    redundancy = Redundancy(problem)
    every = list(product(*(problem.choices(i) for i in range(len(problem.static)))))
    sets, redundant = redundancy.split(every)
    plain = [m for m in sets if not _turning(problem, m)]
    yield from _passing(StateSets(problem, plain, np.zeros((len(plain), len(problem.free)))))
    for number in range(1, len(problem.static) + 1):
        chosen = [m for m in sets if len(_turning(problem, m)) == number]
        if not chosen:
            continue
        starts = [(modes, row) for modes in chosen for row in _grid(number)]
        if number == 1:
            values = _turned(problem, starts).without_poles().reshape(len(chosen), -1)
            starts = [(m, a) for m, row in zip(chosen, values, strict=True) for a in _roots(row)]
        batch = _turned(problem, starts)
        batch.turn()
        yield from _passing(batch)
    for modes in redundant:
        for forces in redundancy.forces(modes):
            yield ScreenedSolution(modes, forces, problem.delassus @ forces + problem.free)


def _turning(problem: CoulombProblem, modes: Modes) -> list[int]:
    return [i for i, mode in enumerate(modes) if problem.turns(i, mode)]


def _turned(problem: CoulombProblem, starts: Sequence[tuple[Modes, Sequence[float]]]) -> StateSets:
    """Sets of states with the angles of the contacts that begin to slide."""
    directions = np.zeros((len(starts), len(problem.free)))
    for direction, (modes, angles) in zip(directions, starts, strict=True):
        for i, angle in zip(_turning(problem, modes), angles, strict=True):
            direction[problem.tangents[i]] = np.cos(angle), np.sin(angle)
    return StateSets(problem, [modes for modes, _ in starts], directions)


def _grid(number: int) -> list[tuple[float, ...]]:
    """Angles to start from, for each contact that begins to slide; the coarser the more do."""
    each = _ANGLES[min(number, len(_ANGLES)) - 1]
    circle = _FIRST + 2.0 * np.pi * np.arange(each) / each
    return list(product(circle.tolist(), repeat=number))


def _roots(values: Array) -> list[tuple[float, ...]]:
    """Angles at which a polynomial of degree two in cos and sin is zero, or nearly."""
    coefficients = np.fft.fft(values)[[2, 1, 0, -1, -2]]
    turn = np.exp(-1j * _FIRST * np.array([2, 1, 0, -1, -2]))
    if not np.isfinite(values).all() or not np.abs(values).max() > 0.0:
        return _grid(1)
    zeros = np.roots(coefficients * turn)
    return [(float(np.angle(z)),) for z in zeros if abs(np.log(abs(z) or 1e-300)) <= _NEARLY]


def _passing(batch: StateSets) -> Iterator[ScreenedSolution]:
    obeys, forces, rates = batch.obeys()
    for index in np.flatnonzero(obeys).tolist():
        yield ScreenedSolution(batch.sets[index], forces[index], rates[index])


class StateSets:
    """Many sets of states of one problem; arrays have a leading axis for the set."""

    def __init__(self, problem: CoulombProblem, sets: Sequence[Modes], directions: Array) -> None:
        self.problem, self.sets = problem, sets
        k, r = len(problem.static), len(problem.free)
        states = np.array(sets).reshape(len(sets), k)
        owner = np.arange(r)
        for i, rows in enumerate(problem.tangents):
            owner[rows] = i
        self.owner, self.is_tangent = owner, np.arange(r) >= k
        self.open, self.stick = states == OPEN, states == STICK
        self.slip = np.isin(states, list(SLIPS))
        begins = np.array([direction is None for direction in problem.sliding])
        two = np.array([len(rows) == 2 for rows in problem.tangents])
        self.begins = self.slip & begins
        turning = (states == SLIP) & begins & two
        self.turning_contacts = turning
        self.turning: Mask = turning[:, owner] & self.is_tangent
        for i, rows in enumerate(problem.tangents):
            given = problem.sliding[i]
            if given is not None:
                directions[:, rows] = given
            elif len(rows) == 1:
                plus, minus = states[:, i] == SLIP_PLUS, states[:, i] == SLIP_MINUS
                directions[:, rows[0]] = plus * 1.0 - minus
        self.directions = directions
        self.held = np.where(self.is_tangent, self.stick[:, owner], ~self.open[:, owner])
        self._cross = np.zeros((r, r))
        for rows in problem.tangents:
            if len(rows) == 2:
                self._cross[rows[0], rows[1]], self._cross[rows[1], rows[0]] = -1.0, 1.0

    def turn(self) -> None:
        """Newton's method in the angles of the contacts that begin to slide."""
        active = np.arange(len(self.sets))
        for _ in range(_ITERATIONS):
            step = self._angle_steps(active)
            size = np.abs(step).max(axis=1)
            step *= np.minimum(1.0, _MOST_TURN / np.maximum(size, _MOST_TURN))[:, None]
            angles = step[:, self.owner] * self.turning[active]
            s = self.directions[active]
            turned = np.cos(angles) * s + np.sin(angles) * (s @ self._cross.T)
            self.directions[active] = np.where(self.turning[active], turned, s)
            active = active[size > _SCREEN]
            if not len(active):
                return

    def without_poles(self) -> Array:
        """The sum (n,) of the perpendicular velocities, times det A."""
        across = (self.directions @ self._cross.T) * self.turning
        matrix, target = self._equations(slice(None))
        forces = _solved(matrix, target[:, :, None])[:, :, 0]
        rates = forces @ self.problem.delassus.T + self.problem.free
        return np.asarray(np.linalg.det(matrix) * (across * rates).sum(axis=1))

    def _angle_steps(self, active: NDArray[np.intp]) -> Array:
        """Newton steps (n, k) of the angles, zero for contacts that do not turn."""
        problem, k = self.problem, len(self.problem.static)
        s = self.directions[active]
        across = (s @ self._cross.T) * self.turning[active]
        matrix, target = self._equations(active)
        forces = _solved(matrix, target[:, :, None])
        owns = self.owner[:, None] == np.arange(k)
        push = -(problem.kinetic * forces[:, :k, 0])[:, None, :] * owns * across[:, :, None]
        rates = forces[:, :, 0] @ problem.delassus.T + problem.free
        rates_by_angle = problem.delassus @ _solved(matrix, push)
        residual = (across * rates) @ owns
        along = (s * self.turning[active] * rates) @ owns
        slope = np.einsum("nr,ri,nrj->nij", across, owns * 1.0, rates_by_angle)
        idle = ~self.turning_contacts[active]
        diagonal = np.arange(k)
        slope[:, diagonal, diagonal] += np.where(idle, 1.0, -along)
        return -_solved(slope, residual[:, :, None])[:, :, 0]

    def _equations(self, active: NDArray[np.intp] | slice) -> tuple[Array, Array]:
        """Matrices (n, r, r) and right-hand sides (n, r) at the present directions."""
        problem, owner, r = self.problem, self.owner, len(self.problem.free)
        held = self.held[active]
        matrix = np.where(held[:, :, None], problem.delassus, np.eye(r))
        sliding = self.slip[active][:, owner] & self.is_tangent
        pull = np.where(sliding, problem.kinetic[owner] * self.directions[active], 0.0)
        matrix[:, np.arange(r), owner] += pull
        return matrix, np.where(held, -problem.free, 0.0)

    def obeys(self) -> tuple[Mask, Array, Array]:
        """Flags (n,) of sets that obey the law at present directions, forces, rates (n, r)."""
        problem, k = self.problem, len(self.problem.static)
        if not len(self.sets):
            none = np.zeros((0, len(problem.free)))
            return np.zeros(0, dtype=np.bool_), none, none
        matrix, target = self._equations(slice(None))
        forces = _solved(matrix, target[:, :, None])[:, :, 0]
        rates = forces @ problem.delassus.T + problem.free
        owns = (self.owner[:, None] == np.arange(k)) & self.is_tangent[:, None]
        slack = np.where(self.open, rates[:, :k], forces[:, :k])
        tangential = np.sqrt(forces**2 @ owns)
        cone = np.where(self.stick, problem.static * forces[:, :k] - tangential, 0.0)
        along = np.where(self.begins, (self.directions * rates) @ owns, 0.0)
        across = (self.directions @ self._cross.T) * rates * self.turning
        tolerance = _SCREEN * np.maximum(1.0, np.abs(forces).max(axis=1))
        worst = np.minimum(np.minimum(slack, cone), along).min(axis=1)
        passes = np.minimum(worst, -np.abs(across @ owns).max(axis=1)) >= -tolerance
        return passes, forces, rates


def _solved(matrix: Array, target: Array) -> Array:
    """Stacks of linear systems; those that are singular come out as zero."""
    try:
        return np.asarray(np.linalg.solve(matrix, target))
    except np.linalg.LinAlgError:
        singular = np.linalg.matrix_rank(matrix) < matrix.shape[1]
        safe = np.where(singular[:, None, None], np.eye(matrix.shape[1]), matrix)
        return np.where(singular[:, None, None], 0.0, np.linalg.solve(safe, target))
