r"""Newton's method on Coulomb's law as one equation, with the states of contacts free or fixed.

The law of every contact says f = P(f - w): with p = f - w, P takes p_n to max(p_n, 0) and p_t to
the disk of radius mu P(p_n) about zero, or to -mu P(p_n) s for a contact that slides already
(Alart and Curnier 1991). P is smooth but for the borders between states, so that

.. math:: (I - P' (I - G))\, \Delta f = P(p) - f

is Newton's method for given states, also where a direction of sliding is unknown, and a
semismooth one if states follow p. Problems are those without units, see `law.scaled`.
"""

from __future__ import annotations

from math import hypot, isfinite

import numpy as np
from scipy.linalg.lapack import dgelsy, dgetrf

from hybridctl.base.checks import Array
from hybridctl.mechanics.coulomb.contact_states import CLOSED, OPEN, SLIPS, STICK, Modes
from hybridctl.mechanics.coulomb.law import CoulombProblem
from hybridctl.mechanics.linear.kkt import divided

SINGULAR = 1e-11
_STEPS = 20
_EXACT, _SMALL = 1e-15, 1e-12


def newton(
    problem: CoulombProblem,
    start: Array,
    modes: Modes | None = None,
    *,
    guess: Array | None = None,
    metric: Array | None = None,
    stretch: float = 1.0,
) -> Array:
    """The forces of least residual that are met from `start`, in fixed states or by free ones.

    Where redundant contacts leave a choice, those nearest to `start`, by the norm of forces times
    `metric` (r,); Newton's method begins at `guess` if there is one. In fixed states it leaves a
    guess that obeys the law, too, for what is nearest. With p = f - stretch w the law is the same
    and the path another.
    """
    forces = best = start if guess is None else guess
    least = np.inf
    identity, leaves = np.eye(len(start)), guess is not None and modes is not None
    for step in range(_STEPS + 1):
        p = forces - stretch * (problem.delassus @ forces + problem.free)
        wanted, slope = projection(problem, p, modes)
        residual = wanted - forces
        size = hypot(*residual.tolist())
        if not isfinite(size):
            return best
        if step > 0 or not leaves:
            gained = size < least
            if gained:
                best, least = forces, size
            if size <= _EXACT * (1.0 + hypot(*forces.tolist())) or step == _STEPS:
                break
            if not gained and least <= _SMALL:  # rounding
                break
        matrix = identity - slope + slope @ (stretch * problem.delassus)
        forces = start + nearest(matrix, residual + matrix @ (forces - start), metric)
    return best


def projection(
    problem: CoulombProblem, p: Array, modes: Modes | None = None
) -> tuple[Array, Array]:
    """The projection P(p) (r,) with P'(p) (r, r), in the states that p shows or in fixed ones."""
    values, slope = np.zeros(len(p)), np.zeros((len(p), len(p)))
    numbers = p.tolist()
    for i, rows, static, kinetic, given in problem.contacts:
        normal = numbers[i]
        mode = None if modes is None else modes[i]
        if mode == OPEN or (mode is None and normal <= 0.0):
            continue
        values[i], slope[i, i] = normal, 1.0
        if not rows or mode == CLOSED:
            continue
        if given is not None and mode != STICK:
            for row, s in zip(rows, given, strict=True):
                values[row], slope[row, i] = -kinetic * normal * s, -kinetic * s
            continue
        tangential = [numbers[row] for row in rows]
        length = hypot(*tangential)
        if mode == STICK or (mode is None and length <= static * normal):
            for row, value in zip(rows, tangential, strict=True):
                values[row], slope[row, row] = value, 1.0
            continue
        if len(rows) == 1:
            sign = -SLIPS[mode] if mode is not None else np.sign(tangential[0])
            values[rows[0]], slope[rows[0], i] = kinetic * normal * sign, kinetic * sign
            continue
        length = length or 1.0
        x, y = tangential[0] / length, tangential[1] / length
        values[rows[0]], values[rows[1]] = kinetic * normal * x, kinetic * normal * y
        slope[rows[0], i], slope[rows[1], i] = kinetic * x, kinetic * y
        turn = kinetic * normal / length
        slope[rows[0], rows[0]], slope[rows[1], rows[1]] = turn * y * y, turn * x * x
        slope[rows[0], rows[1]] = slope[rows[1], rows[0]] = -turn * x * y
    return values, slope


def nearest(matrix: Array, target: Array, metric: Array | None = None) -> Array:
    """The solution x of a linear system, of least |metric x| where it is singular to 1e-11.

    Not a number where nothing solves it.
    """
    factors, pivots, _ = dgetrf(matrix)
    diagonal = np.abs(factors.diagonal())
    if diagonal.min(initial=1.0) > SINGULAR * diagonal.max(initial=0.0):
        return divided(matrix, factors, pivots, target)
    n, size = len(matrix), np.ones(len(matrix)) if metric is None else metric
    chosen = np.zeros(n, dtype=np.int32)
    _, x, _, _, failed = dgelsy(matrix / size, target, chosen, SINGULAR, 2 * n + (n + 1) * 64)
    return np.full_like(target, np.nan) if failed else np.asarray((x.T / size).T)
