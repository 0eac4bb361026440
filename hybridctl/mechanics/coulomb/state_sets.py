"""Many sets of contact states at once: the equations of each, and whether they obey the law."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.mechanics.coulomb.contact_states import (
    CLOSED,
    OPEN,
    SLIP,
    SLIP_MINUS,
    SLIP_PLUS,
    STICK,
    Modes,
)
from hybridctl.mechanics.coulomb.law import CoulombProblem

SCREEN = 1e-6  # of the largest force: what a set may miss the law by

Mask = NDArray[np.bool_]


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
        self.slip = ~self.open & ~self.stick & (states != CLOSED)
        begins = np.array([direction is None for direction in problem.sliding])
        self.begins = self.slip & begins
        self.turning: Mask = ((states == SLIP) & begins)[:, owner] & self.is_tangent
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

    def equations(self) -> tuple[Array, Array]:
        """Matrices (n, r, r) and right-hand sides (n, r) at the present directions."""
        problem, owner, held, r = self.problem, self.owner, self.held, len(self.problem.free)
        matrix = np.where(held[:, :, None], problem.delassus, np.eye(r))
        sliding = self.slip[:, owner] & self.is_tangent
        pull = np.where(sliding, problem.kinetic[owner] * self.directions, 0.0)
        matrix[:, np.arange(r), owner] += pull
        return matrix, np.where(held, -problem.free, 0.0)

    def obeys(self) -> tuple[Mask, Array, Array]:
        """Flags (n,) of sets that obey the law at present directions, forces, rates (n, r)."""
        problem, k = self.problem, len(self.problem.static)
        if not len(self.sets):
            none = np.zeros((0, len(problem.free)))
            return np.zeros(0, dtype=np.bool_), none, none
        matrix, target = self.equations()
        forces = solved(matrix, target[:, :, None])[:, :, 0]
        rates = forces @ problem.delassus.T + problem.free
        owns = (self.owner[:, None] == np.arange(k)) & self.is_tangent[:, None]
        slack = np.where(self.open, rates[:, :k], forces[:, :k])
        tangential = np.sqrt(forces**2 @ owns)
        cone = np.where(self.stick, problem.static * forces[:, :k] - tangential, 0.0)
        along = np.where(self.begins, (self.directions * rates) @ owns, 0.0)
        across = (self.directions @ self._cross) * rates * self.turning
        tolerance = SCREEN * np.maximum(1.0, np.abs(forces).max(axis=1))
        worst = np.minimum(np.minimum(slack, cone), along).min(axis=1)
        passes = np.minimum(worst, -np.abs(across @ owns).max(axis=1)) >= -tolerance
        return passes, forces, rates


def solved(matrix: Array, target: Array) -> Array:
    """Stacks of linear systems; those that are singular come out as zero."""
    try:
        return np.asarray(np.linalg.solve(matrix, target))
    except np.linalg.LinAlgError:
        singular = np.linalg.matrix_rank(matrix) < matrix.shape[1]
        safe = np.where(singular[:, None, None], np.eye(matrix.shape[1]), matrix)
        return np.where(singular[:, None, None], 0.0, np.linalg.solve(safe, target))
