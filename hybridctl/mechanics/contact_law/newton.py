r"""Newton's method on Coulomb's law as a projection equation, with contact states free or fixed.

The law of every contact says f = P(f - w) (Alart and Curnier 1991). With p = f - w, the projection
P takes p_n to max(p_n, 0). It takes p_t to the nearest point of the disk of radius mu P(p_n) about
zero, or to -mu P(p_n) s for a contact that slides already. P is smooth except on the boundaries
between contact states. So

.. math:: (I - P' (I - G))\, \Delta f = P(p) - f

is Newton's method where the states are fixed, also where a sliding direction is unknown. It is a
semismooth Newton method where the states are those that p shows. Problems are dimensionless, see
`law.scale_problem`.
"""

from __future__ import annotations

from math import hypot, isfinite

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, SLIPS, STICK, CoulombProblem, Modes
from hybridctl.mechanics.contact_law.linear_equations import solve_least_norm

_MAX_STEPS = 20
"""Newton steps of one call. A choice."""
_CONVERGED = 1e-15
"""Residual at which the iteration ends, relative to one plus the forces: rounding."""
_STAGNATED = 1e-12
"""Residual below which the iteration ends if it no longer decreases: rounding of the matrix."""


def solve_by_newton(
    problem: CoulombProblem,
    start: Array,
    modes: Modes | None = None,
    *,
    guess: Array | None = None,
    norm_factors: Array | None = None,
    rate_scale: float = 1.0,
) -> Array:
    """Return the forces of least residual that Newton's method meets.

    Where redundant contacts leave a choice, each step takes the forces nearest to `start`. If a
    guess is given together with states, the first step is taken even from an exact guess, as it
    leads to the exact forces that are nearest to `start`.

    Args:
        problem: Dimensionless problem.
        start: Forces (r,) to be near to, and the first iterate if there is no guess.
        modes: States that are fixed; None if they are free.
        guess: First iterate (r,).
        norm_factors: Factors (r,) of the norm of forces that measures nearness; None for one.
        rate_scale: Factor c > 0 in p = f - c w. The law is the same, and the iterates differ.

    Returns:
        Forces (r,), which need not obey the law (see `law.evaluate_forces`).
    """
    forces = best = start if guess is None else guess
    least = np.inf
    identity, skips_guess = np.eye(len(start)), guess is not None and modes is not None
    for step in range(_MAX_STEPS + 1):
        p = forces - rate_scale * (problem.delassus @ forces + problem.free)
        projected, slope = project_forces(problem, p, modes)
        residual = projected - forces
        size = hypot(*residual.tolist())
        if not isfinite(size):
            return best
        if step > 0 or not skips_guess:
            decreased = size < least
            if decreased:
                best, least = forces, size
            if size <= _CONVERGED * (1.0 + hypot(*forces.tolist())) or step == _MAX_STEPS:
                break
            if not decreased and least <= _STAGNATED:
                break
        matrix = identity - slope + slope @ (rate_scale * problem.delassus)
        change = residual + matrix @ (forces - start)
        forces = start + solve_least_norm(matrix, change, norm_factors)
    return best


def project_forces(
    problem: CoulombProblem, p: Array, modes: Modes | None = None
) -> tuple[Array, Array]:
    """Return the projection P(p) onto the friction cones and its derivative.

    Args:
        problem: Dimensionless problem.
        p: f - w (r,), or f - c w for any c > 0.
        modes: States that are fixed. If None, p shows them: p_n <= 0 is open, |p_t| <= mu_s p_n
            sticks, and what is beyond slides.

    Returns:
        P(p) (r,) and P'(p) (r, r).
    """
    values, slope = np.zeros(len(p)), np.zeros((len(p), len(p)))
    numbers = p.tolist()
    for i, rows, static, kinetic, given in problem.contacts:
        normal = numbers[i]
        state = None if modes is None else modes[i]
        if state == OPEN or (state is None and normal <= 0.0):
            continue
        values[i], slope[i, i] = normal, 1.0
        if not rows or state == CLOSED:
            continue
        if given is not None and state != STICK:
            for row, s in zip(rows, given, strict=True):
                values[row], slope[row, i] = -kinetic * normal * s, -kinetic * s
            continue
        tangential = [numbers[row] for row in rows]
        length = hypot(*tangential)
        if state == STICK or (state is None and length <= static * normal):
            for row, value in zip(rows, tangential, strict=True):
                values[row], slope[row, row] = value, 1.0
            continue
        if len(rows) == 1:
            sign = -SLIPS[state] if state is not None else np.sign(tangential[0])
            values[rows[0]], slope[rows[0], i] = kinetic * normal * sign, kinetic * sign
            continue
        length = length or 1.0  # p_t = 0 has no direction: friction is zero there
        x, y = tangential[0] / length, tangential[1] / length
        values[rows[0]], values[rows[1]] = kinetic * normal * x, kinetic * normal * y
        slope[rows[0], i], slope[rows[1], i] = kinetic * x, kinetic * y
        turn = kinetic * normal / length
        slope[rows[0], rows[0]], slope[rows[1], rows[1]] = turn * y * y, turn * x * x
        slope[rows[0], rows[1]] = slope[rows[1], rows[0]] = -turn * x * y
    return values, slope
