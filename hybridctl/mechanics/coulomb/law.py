r"""Coulomb's law for a set of contacts, and its solution where their states are given.

With f the impulses (or forces) and w = W f + c the velocities (or accelerations) of the rows of
the contacts, each contact is in one of these states:

.. math::
    \text{open: } & f = 0,\ w_n \ge 0; \qquad
    \text{closed: } w_n = 0,\ f_n \ge 0, \text{ and} \\
    \text{stick: } & w_t = 0,\ |f_t| \le \mu_s f_n; \qquad
    \text{slip: } f_t = -\mu f_n s,\ w_t = |w_t| s.

A contact that slides already has its direction s given; then w_t is free. For given states the
equations are linear, except for the direction of a contact that begins to slide in space, where
Newton's method is used. Restitution is part of c. [RS] (2.25)-(2.28), (2.53)-(2.59).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array, Indices

OPEN, CLOSED, STICK = "open", "closed", "stick"
SLIP, SLIP_PLUS, SLIP_MINUS = "slip", "slip+", "slip-"
SLIPS = {SLIP: 0.0, SLIP_PLUS: 1.0, SLIP_MINUS: -1.0}

Modes = tuple[str, ...]

TINY = 1e-10
_BORDER = 1e-9
RANK = 1e-11
_NEWTON = 30
_CONVERGED = 1e-13
_CREEP = 1e-6


@dataclass(frozen=True)
class CoulombProblem:
    """w = W f + c for k contacts: rows 0..k-1 are normals, `tangents` the rows of each contact.

    delassus W (r, r), free c (r,); `static` and `kinetic` friction (k,); `sliding` the unit
    directions of contacts that slide already, in the coordinates of their tangents, or None.
    `magnitude`: size of the terms whose sum is c, to which rounding and tolerances are relative.
    """

    delassus: Array
    free: Array
    tangents: tuple[Indices, ...]
    static: Array
    kinetic: Array
    sliding: tuple[Array | None, ...]
    magnitude: float = 0.0

    def choices(self, i: int) -> Modes:
        """The states contact i can be in."""
        rows, direction = self.tangents[i], self.sliding[i]
        if len(rows) == 0:
            return (OPEN, CLOSED)
        if len(rows) == 2:
            return (OPEN, SLIP) if direction is not None else (OPEN, STICK, SLIP)
        if direction is not None:
            return (OPEN, SLIP_PLUS if direction[0] > 0.0 else SLIP_MINUS)
        return (OPEN, STICK, SLIP_PLUS, SLIP_MINUS)

    def turns(self, i: int, mode: str) -> bool:
        """Whether the direction in which contact i slides is part of the solution."""
        return mode == SLIP and self.sliding[i] is None


@dataclass(frozen=True)
class CoulombSolution:
    """Impulses or forces (r,), velocities or accelerations of the rows (r,), and the states.

    `directions`: in which each contact slides, None if it does not. `border`: contacts whose
    state may change under the least perturbation. `residual`: the largest violation of the
    law, relative to the scale of the problem. `family`: redundant contacts leave even the rates
    undetermined; this is the solution of least norm.
    """

    forces: Array
    rates: Array
    modes: Modes
    directions: tuple[Array | None, ...]
    border: tuple[int, ...]
    residual: float
    family: bool = False


def polish(
    problem: CoulombProblem,
    modes: Modes,
    directions: Sequence[Array | None],
    start: Array,
) -> CoulombSolution | None:
    """The solution in given states to full accuracy, None if it violates the law there.

    Of several impulses the one nearest to `start` is taken. `directions` are guesses where a
    contact begins to slide in space.
    """
    forces = start.copy()
    known = [
        d if given is None else given for given, d in zip(problem.sliding, directions, strict=True)
    ]
    previous = np.inf
    for iteration in range(_NEWTON):
        rates = problem.delassus @ forces + problem.free
        matrix, target = equations(problem, modes, known, forces, rates, iteration > 0)
        step, rank = _least(matrix, target - matrix @ start)
        nearest = start + step
        nearest += _least(matrix, target - matrix @ nearest)[0]
        size = float(np.abs(nearest - forces).max())
        forces = nearest
        if iteration > 0 and (size <= _CONVERGED or (iteration > 3 and size >= previous)):
            break
        previous = size
        rates = problem.delassus @ forces + problem.free
        for i, mode in enumerate(modes):
            if problem.turns(i, mode):
                known[i] = unit(rates[problem.tangents[i]], known[i])
    return _certified(problem, modes, known, forces, redundant=rank < len(forces))


def _least(matrix: Array, target: Array) -> tuple[Array, int]:
    """The solution of least norm, and the rank."""
    solution, _, rank, _ = np.linalg.lstsq(matrix, target, rcond=RANK)
    return np.asarray(solution), int(rank)


def unit(w: Array, otherwise: Array | None) -> Array | None:
    """w / |w|, or `otherwise` where w is next to nothing."""
    length = float(np.linalg.norm(w))
    return w / length if length > TINY else otherwise


def equations(
    problem: CoulombProblem,
    modes: Modes,
    directions: Sequence[Array | None],
    forces: Array,
    rates: Array,
    turning: bool,
) -> tuple[Array, Array]:
    """Matrix and right-hand side of the equations of the given states.

    Where a contact begins to slide in space they are linearised about its direction s:
    f_t + mu s f_n + mu f_n / |w_t| (I - s s') w_t = 0, in the last term with the present f_n.
    """
    size = len(problem.free)
    matrix, target = np.eye(size), np.zeros(size)
    for i, mode in enumerate(modes):
        if mode == OPEN:
            continue
        rows = problem.tangents[i]
        held = [i, *rows] if mode == STICK else [i]
        matrix[held], target[held] = problem.delassus[held], -problem.free[held]
        if mode not in SLIPS:
            continue
        s = np.array([SLIPS[mode]]) if len(rows) == 1 else directions[i]
        if s is None:
            s = np.array([1.0, 0.0])
        matrix[rows, i] += problem.kinetic[i] * s
        speed = float(np.linalg.norm(rates[rows]))
        if turning and problem.turns(i, mode) and speed > TINY:
            ratio = problem.kinetic[i] * max(forces[i], 0.0) / speed
            turn = ratio * (np.eye(2) - np.outer(s, s))
            matrix[rows] += turn @ problem.delassus[rows]
            target[rows] -= turn @ problem.free[rows]
    return matrix, target


def _certified(
    problem: CoulombProblem,
    modes: Modes,
    directions: Sequence[Array | None],
    forces: Array,
    redundant: bool,
) -> CoulombSolution | None:
    """The solution with its residual and border contacts, None if it violates the law.

    Redundant contacts that hold contradict each other a little where they are not exactly in
    one plane; the law then wants them to creep at that speed. They may hold instead.
    """
    rates = problem.delassus @ forces + problem.free
    wrong, held, border = [0.0], [0.0], []
    found: list[Array | None] = []
    for i, mode in enumerate(modes):
        rows = problem.tangents[i]
        normal, tangential = forces[i], forces[rows]
        direction = None
        if mode == OPEN:
            slack = [rates[i]]
        else:
            held.append(abs(rates[i]))
            slack = [normal]
        if mode == STICK:
            held.append(float(np.abs(rates[rows]).max()))
            slack.append(problem.static[i] * normal - float(np.linalg.norm(tangential)))
        elif mode in SLIPS:
            direction = np.array([SLIPS[mode]]) if len(rows) == 1 else directions[i]
            if direction is None:
                return None
            law = tangential + problem.kinetic[i] * normal * direction
            wrong.append(float(np.abs(law).max()))
            if problem.sliding[i] is None:
                speed = float(direction @ rates[rows])
                slack.append(speed)
                wrong.append(float(np.abs(rates[rows] - speed * direction).max()))
        wrong.append(-min(slack))
        if min(slack) <= _BORDER:
            border.append(i)
        found.append(direction)
    scale = max(1.0, float(np.abs(forces).max(initial=0.0)))
    if not (max(wrong) <= TINY * scale and max(held) <= (_CREEP if redundant else TINY) * scale):
        return None
    residual = float(max(*wrong, *held))
    return CoulombSolution(forces, rates, modes, tuple(found), tuple(border), residual)
