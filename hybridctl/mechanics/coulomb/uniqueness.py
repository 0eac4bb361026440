r"""Sufficient conditions for Coulomb's law to have one solution at most.

*Contraction* (as for the fixed point of Acary et al. 2011). For two solutions that differ by
:math:`\Delta f`, the conditions of De Saxce with :math:`s = \mu |w_t|` say
:math:`\Delta f \cdot G \Delta f \le -\Delta f_n \cdot \Delta s`: y = G^1/2 Delta f is in the ball
about c = -N' Delta s / 2 of radius |c|, N the normal rows of G^-1/2. The tangential rows of G^1/2
are orthogonal to c, so that |Delta w_t| <= |G_tt|^1/2 |c|, and Delta s vanishes where

.. math:: \| \mu G_{tt} \mu \| \, \| (G^{-1})_{nn} \| < 4.

With contacts that slide already the matrix A on normal forces and free friction is unsymmetric;
with H = (A + A') / 2 the same steps without orthogonality give
:math:`\| \mu A_t H^{-1} A_t' \mu \| \, \| (H^{-1})_{nn} \| < 1`.

Both hold with pseudo-inverses where G is singular but no force without effect has a normal part;
inverses of G + 1e-10 stand for these, and are large where one has: above 1e6 neither holds.

*One contact.* With mu |G_nt| < G_nn it is closed exactly for b_n < 0. Then tau = f_t / f_n solves
an affine variational inequality on the disk of radius mu, of matrix G_tt - b_t G_nt' / b_n, so that
one tau does if its symmetric part is positive definite, or if there is one tangent.

*All slide.* With :math:`N = G_{nt} \mu`, |.| the largest singular value or more and :math:`\lambda`
the least eigenvalue of a symmetric part, :math:`f_n \cdot w_n = 0` says
:math:`\lambda |f_n| \le |b_n^-|`, at first with :math:`\lambda = \lambda(G_{nn}) - |N|`, and
:math:`|w_t - b_t| \le c |f_n|` with :math:`c = |G_{tn}| + |G_{tt} \mu|`, also for the rows of one
contact. Where that is less than its :math:`|b_t|` for every contact, all of them slide, off
:math:`s_0 = b_t / |b_t|` by an angle with the ratio of the two as its sine, or less, and
:math:`\delta` as its chord. Then :math:`\lambda = \lambda(G_{nn} - N s_0) - |N| \delta` bounds
forces closer, and so on. With F and m these bounds of forces and of sliding velocities, two
solutions differ by :math:`\lambda |\Delta f_n| \le |N| |\Delta w_t| F / m` and
:math:`(1 - |G_{tt} \mu| F / m) |\Delta w_t| \le c |\Delta f_n|`, so that they are one where

.. math:: |N|\, c\, F / m < \lambda\, (1 - |G_{tt} \mu|\, F / m).

Static friction above kinetic friction leaves sticking and sliding both possible: then none holds.

Contacts that are open in every solution (see `load_bounds`) are left out where none holds with
them: the rates of the others tell what all forces move, and with it the rates of those.

Trying all sets of states says the same where they are few, but takes longer. Four feet in
space have 81 sets, more than are tried: there only these conditions prove it.
"""

from __future__ import annotations

from math import hypot, inf, sqrt

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri

from hybridctl.base.checks import Array
from hybridctl.mechanics.coulomb.law import CoulombProblem
from hybridctl.mechanics.coulomb.load_bounds import load_bounds

_MARGIN = 1.0 - 1e-6
_REGULAR = 1e-10
_LARGEST = 1e6
_CLOSER = 3  # times that forces are bounded, each by the bound before


def certainly_unique(problem: CoulombProblem) -> bool:
    """Whether a condition of this module holds, for a problem without units (`law.scaled`)."""
    if _is_unique(problem):
        return True
    kept = [i for i, is_open in enumerate(load_bounds(problem).open) if not is_open]
    return len(kept) < len(problem.static) and _is_unique(problem.part(kept))


def _is_unique(problem: CoulombProblem) -> bool:
    """Whether a condition holds with all contacts of a problem."""
    free: list[int] = []
    owners: list[int] = []
    for i, rows, static, kinetic, given in problem.contacts:
        if rows and given is None and static > 0.0:
            if static > kinetic:
                return False
            free += rows
            owners += [i] * len(rows)
    if len(problem.contacts) == 1 and _one_contact(problem):
        return True
    slides = any(given is not None and mu > 0.0 for _, _, _, mu, given in problem.contacts)
    if not free and not slides:
        return True  # a convex programme
    return _contracts(problem, free, owners, slides) or _all_slide(problem)


def _one_contact(problem: CoulombProblem) -> bool:
    """Whether the condition for one contact proves that there is at most one solution."""
    ((_, rows, _, mu, given),) = problem.contacts
    g, b = problem.delassus.tolist(), problem.free.tolist()
    coupling = [g[0][row] for row in rows]
    if given is not None:
        return bool(g[0][0] - mu * float(np.dot(given, coupling)) > _REGULAR)
    strength = hypot(*coupling)
    if g[0][0] - mu * strength <= _REGULAR:
        return False
    if b[0] >= 0.0 or len(rows) < 2 or mu == 0.0:
        return True
    (x, y), fall = rows, -b[0]
    u, v = b[x] / fall, b[y] / fall
    xx, yy = g[x][x] + u * coupling[0], g[y][y] + v * coupling[1]
    xy = g[x][y] + 0.5 * (u * coupling[1] + v * coupling[0])
    return bool(xx > 0.0 and xx * yy - xy * xy > _REGULAR)


def _contracts(problem: CoulombProblem, free: list[int], owners: list[int], slides: bool) -> bool:
    """The condition of contraction, for tangents with free friction and whose they are."""
    k = len(problem.contacts)
    matrix = problem.delassus
    if slides:
        matrix = matrix.copy()
        for i, rows, _, mu, given in problem.contacts:
            if given is not None:
                matrix[:, i] -= mu * (problem.delassus[:, rows] @ given)
    kept = [*range(k), *free]
    if kept != [*range(len(matrix))]:
        matrix = matrix[kept][:, kept]
    inverse = _inverse(0.5 * (matrix + matrix.T) if slides else matrix)
    if inverse is None or not free:
        return inverse is not None
    friction, rubbing = problem.kinetic[owners], sorted(set(owners))
    tangential = matrix[k:] @ inverse @ matrix[k:].T if slides else matrix[k:, k:]
    sizes = friction[:, None] * tangential * friction, inverse[rubbing][:, rubbing]
    limit = (1.0 if slides else 4.0) * _MARGIN
    bounds = [float(np.linalg.norm(size)) for size in sizes]  # of the largest eigenvalues
    if bounds[1] <= _LARGEST and bounds[0] * bounds[1] < limit:
        return True
    largest = [float(np.linalg.eigvalsh(size)[-1]) for size in sizes]
    return largest[1] <= _LARGEST and largest[0] * largest[1] < limit


def _all_slide(problem: CoulombProblem) -> bool:
    """Whether all contacts slide in every solution, and so nearly in one way that there is one."""
    k, matrix, free = len(problem.contacts), problem.delassus, problem.free
    stiff = float(np.linalg.eigvalsh(matrix[:k, :k])[0])
    if stiff <= _REGULAR:
        return False
    friction, along = np.zeros(len(free)), np.zeros((len(free), k))
    for _, rows, _, mu, _ in problem.contacts:
        friction[rows] = mu
    rubbing = matrix[:, k:] * friction[k:]
    push = float(np.linalg.norm(rubbing[:k], 2))
    stiff -= push
    if stiff <= _REGULAR:
        return False
    slips: list[tuple[float, float]] = []
    for i, rows, _, mu, given in problem.contacts:
        if given is not None:
            along[rows, i] = given
        elif rows and mu > 0.0:
            speed = hypot(*free[rows].tolist()) or _REGULAR
            reach = np.linalg.norm(matrix[rows, :k]) + np.linalg.norm(rubbing[rows])
            along[rows, i] = free[rows] / speed
            slips.append((speed, float(reach)))
    turned = matrix[:k, :k] - rubbing[:k] @ along[k:]
    straight = 0.5 * float(np.linalg.eigvalsh(turned + turned.T)[0])
    dragged = float(np.linalg.norm(rubbing[k:], 2))
    moved = float(np.linalg.norm(matrix[k:, :k], 2)) + dragged
    fall = hypot(*np.minimum(free[:k], 0.0).tolist())
    for _ in range(_CLOSER):
        force = fall / stiff
        slowest = min((speed - reach * force for speed, reach in slips), default=inf)
        if slowest <= 0.0:
            return False
        sine = max((reach * force / speed for speed, reach in slips), default=0.0)
        stiff = max(stiff, straight - push * sqrt(2.0 - 2.0 * sqrt(1.0 - sine * sine)))
        turn = force / slowest
        if push * moved * turn < _MARGIN * stiff * (1.0 - dragged * turn):
            return True
    return False


def _inverse(matrix: Array) -> Array | None:
    """The inverse of a symmetric matrix + 1e-10, None if that is not positive definite."""
    factor, failed = dpotrf(matrix + _REGULAR * np.eye(len(matrix)), lower=1)
    if failed:
        return None
    lower, _ = dpotri(factor, lower=1)  # zero above the diagonal, as the factor is
    inverse: Array = lower + lower.T
    np.fill_diagonal(inverse, lower.diagonal())
    return inverse
