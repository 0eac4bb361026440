r"""The directions in which contacts begin to slide in space, as roots of Newton's method.

The forces of all other contacts are linear in those of the contacts that turn, and eliminated
once for each set of states. What is left has one unknown for each contact that turns, its normal
force, with :math:`s = (\cos\phi, \sin\phi)` and :math:`f = (f_n, -\mu f_n s)`:

.. math:: A f_n = -b_n, \qquad A_{ij} = G_{ij,nn} - \mu_j G_{ij,nt} s_j, \qquad w = G f + b.

The angles are the roots of :math:`s_i^\perp \cdot w_i`, found from several starts. With one such
contact they are those of :math:`A\, s^\perp \cdot w`, in which no pole is left: a trigonometric
polynomial of degree two, known by its values at eight angles.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.mechanics.coulomb.contact_states import OPEN, Modes
from hybridctl.mechanics.coulomb.law import CoulombProblem
from hybridctl.mechanics.coulomb.state_sets import SCREEN, StateSets, solved

_ITERATIONS = 12
_MOST_TURN = 0.5
_ANGLES = (8, 8, 6)
_FIRST = 0.1234  # rad, where a grid begins: no angle that contacts of models meet
_NEARLY = 0.3  # logarithm: as far off the circle roots are tried that touch it
_DIGITS = 4  # of directions that count as the same

Which = NDArray[np.intp]


def turning(problem: CoulombProblem, modes: Modes) -> list[int]:
    """The contacts whose directions are part of the solution in these states."""
    return [i for i, mode in enumerate(modes) if problem.turns(i, mode)]


def slip_directions(problem: CoulombProblem, sets: Sequence[Modes]) -> tuple[Which, Array]:
    """Directions (n, r) that sets of states may have, and the numbers (n,) of these sets.

    As many contacts turn in each of the sets. Newton's method may not have ended at all of them.
    """
    reduced = _Reduced(problem, sets)
    which, angles = reduced.starts()
    reduced.turn(which, angles)
    directions = np.zeros((len(which), len(problem.free)))
    rows = reduced.rows[which]
    each = np.arange(len(which))[:, None]
    directions[each, rows[:, :, 1]], directions[each, rows[:, :, 2]] = (
        np.cos(angles),
        np.sin(angles),
    )
    rounded = np.column_stack((which, np.round(directions, _DIGITS)))
    _, kept = np.unique(rounded, axis=0, return_index=True)
    return which[kept], directions[kept]


class _Reduced:
    """The law of the m contacts that turn, all others eliminated; the first axis is the set."""

    def __init__(self, problem: CoulombProblem, sets: Sequence[Modes]) -> None:
        contacts = np.array([turning(problem, modes) for modes in sets])
        number, m = contacts.shape
        at = [[i, *rows] for i, rows in enumerate(problem.tangents)]
        self.rows: Which = np.array([[at[i] for i in turned] for turned in contacts])
        self.friction: Array = problem.kinetic[contacts][:, None, None, :]
        others = [
            tuple(OPEN if i in turned else mode for i, mode in enumerate(modes))
            for modes, turned in zip(sets, contacts.tolist(), strict=True)
        ]
        batch = StateSets(problem, others, np.zeros((number, len(problem.free))))
        rows, each = self.rows.reshape(number, 3 * m), np.arange(number)[:, None]
        columns = problem.delassus[:, rows].transpose(1, 0, 2)
        matrix, target = batch.equations()
        pushed = np.where(batch.held[:, :, None], -columns, 0.0)
        forces = solved(matrix, np.concatenate((pushed, target[:, :, None]), axis=2))
        forces[each, rows, np.arange(3 * m)] += 1.0
        rates = problem.delassus[rows] @ forces
        rates[:, :, -1] += problem.free[rows]
        self.response: Array = rates[:, :, :-1].reshape(number, m, 3, m, 3)
        self.free: Array = rates[:, :, -1].reshape(number, m, 3)

    def starts(self) -> tuple[Which, Array]:
        """Numbers (n,) of sets and angles (n, m) to start from, the coarser the more turn."""
        number, m = self.free.shape[:2]
        grid = _grid(m)
        which, angles = np.repeat(np.arange(number), len(grid)), np.tile(grid, (number, 1))
        if m > 1:
            return which, angles
        pushes, _ = self._responses(which, angles)
        c, s, free = np.cos(angles[:, 0]), np.sin(angles[:, 0]), self.free[which, 0]
        pushes = pushes[:, 0, :, 0]
        values = pushes[:, 0] * (c * free[:, 2] - s * free[:, 1])
        values -= free[:, 0] * (c * pushes[:, 2] - s * pushes[:, 1])
        roots = [_roots(row) for row in values.reshape(number, len(grid))]
        lengths = [len(each) for each in roots]
        return np.repeat(np.arange(number), lengths), np.concatenate(roots)[:, None]

    def turn(self, which: Which, angles: Array) -> None:
        """Improve the angles of sliding directions by Newton's method, in place."""
        active = np.arange(len(which))
        for _ in range(_ITERATIONS):
            if not len(active):
                return
            step = self._steps(which[active], angles[active])
            size = np.abs(step).max(axis=1)
            angles[active] += (
                step * np.minimum(1.0, _MOST_TURN / np.maximum(size, _MOST_TURN))[:, None]
            )
            active = active[size > SCREEN]

    def _responses(self, which: Which, angles: Array) -> tuple[Array, Array]:
        """Rates (n, m, 3, m) by normal forces with their friction, and their slopes by angles."""
        response, friction = self.response[which], self.friction[which]
        c, s = np.cos(angles)[:, None, None, :], np.sin(angles)[:, None, None, :]
        one, two = response[..., 1], response[..., 2]
        return response[..., 0] - friction * (one * c + two * s), friction * (one * s - two * c)

    def _steps(self, which: Which, angles: Array) -> Array:
        """Newton steps (n, m) of the angles."""
        n, m = angles.shape
        pushes, turned = self._responses(which, angles)
        free, c, s = self.free[which], np.cos(angles), np.sin(angles)
        inverse = solved(pushes[:, :, 0], np.broadcast_to(np.eye(m), (n, m, m)))
        forces = -(inverse @ free[:, :, 0, None])
        flat = pushes.reshape(n, 3 * m, m)
        rates = (flat @ forces).reshape(n, m, 3) + free
        turned = turned.reshape(n, 3 * m, m) * forces[:, None, :, 0]
        by_angles = turned - flat @ (inverse @ turned[:, ::3])
        by_angles = by_angles.reshape(n, m, 3, m)
        residual = rates[:, :, 2] * c - rates[:, :, 1] * s
        slope = by_angles[:, :, 2] * c[:, :, None] - by_angles[:, :, 1] * s[:, :, None]
        slope[:, np.arange(m), np.arange(m)] -= rates[:, :, 1] * c + rates[:, :, 2] * s
        return -solved(slope, residual[:, :, None])[:, :, 0]


def _grid(number: int) -> Array:
    """Angles (n, number) to start from, for each contact that begins to slide."""
    each = _ANGLES[min(number, len(_ANGLES)) - 1]
    circle = _FIRST + 2.0 * np.pi * np.arange(each) / each
    return np.array(list(product(circle.tolist(), repeat=number)))


def _roots(values: Array) -> Array:
    """Angles at which a polynomial of degree two in cos and sin is zero, or nearly."""
    if not np.isfinite(values).all() or not np.abs(values).max() > 0.0:
        return _grid(1)[:, 0]
    orders = np.array([2, 1, 0, -1, -2])
    zeros = np.roots(np.fft.fft(values)[orders] * np.exp(-1j * _FIRST * orders))
    size = np.abs(zeros)
    return np.asarray(
        np.angle(zeros[np.abs(np.log(np.where(size > 0.0, size, 1e-300))) <= _NEARLY])
    )
