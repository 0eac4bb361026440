r"""Sufficient conditions for Coulomb's law to have at most one solution; bounds of normal forces.

`is_provably_unique` tries the conditions below. Trying all contact states says the same where they
are few, but takes longer. Four feet in space have 81 sets of states, more than are tried: there
only these conditions prove uniqueness.

*Contraction* (as for the fixed point of Acary et al. 2011). For two solutions that differ by
:math:`\Delta f`, De Saxce's form of the law with :math:`s = \mu |w_t|` says
:math:`\Delta f \cdot G \Delta f \le -\Delta f_n \cdot \Delta s`. So y = G^1/2 Delta f is in the
ball about c = -N' Delta s / 2 of radius |c|, with N the normal rows of G^-1/2. The tangential rows
of G^1/2 are orthogonal to c, so that |Delta w_t| <= |G_tt|^1/2 |c|, and Delta s vanishes where

.. math:: \| \mu G_{tt} \mu \| \, \| (G^{-1})_{nn} \| < 4.

With contacts that slide already the matrix A on normal forces and free friction is not symmetric.
With H = (A + A') / 2 the same steps without orthogonality give
:math:`\| \mu A_t H^{-1} A_t' \mu \| \, \| (H^{-1})_{nn} \| < 1`.

Both hold with pseudo-inverses where G is singular but no force without effect has a normal part.
The inverse of G + 1e-10 stands for the pseudo-inverse. It is large where such a force has a normal
part: above 1e6 neither condition holds.

*One contact.* With mu |G_nt| < G_nn it is closed exactly for b_n < 0. Then tau = f_t / f_n solves
an affine variational inequality on the disk of radius mu, of matrix G_tt - b_t G_nt' / b_n. So tau
is unique if the symmetric part is positive definite, or if there is one tangent.

*All contacts slide.* Let :math:`N = G_{nt} \mu`, |.| the largest singular value or more, and
:math:`\lambda` the least eigenvalue of a symmetric part. :math:`f_n \cdot w_n = 0` says
:math:`\lambda |f_n| \le |b_n^-|`, at first with :math:`\lambda = \lambda(G_{nn}) - |N|`. Further
:math:`|w_t - b_t| \le c |f_n|` with :math:`c = |G_{tn}| + |G_{tt} \mu|`, also for the rows of one
contact. Where that is less than :math:`|b_t|` for every contact, all of them slide. Their
directions differ from :math:`s_0 = b_t / |b_t|` at most by an angle whose sine is the ratio of the
two, and whose chord is :math:`\delta`. Then
:math:`\lambda = \lambda(G_{nn} - N s_0) - |N| \delta` bounds forces closer, and so on. With F and m
these bounds of forces and of sliding velocities, two solutions differ by
:math:`\lambda |\Delta f_n| \le |N| |\Delta w_t| F / m` and
:math:`(1 - |G_{tt} \mu| F / m) |\Delta w_t| \le c |\Delta f_n|`, so that they are equal where

.. math:: |N|\, c\, F / m < \lambda\, (1 - |G_{tt} \mu|\, F / m).

Static friction above kinetic friction leaves both sticking and sliding possible: then no condition
holds. Contacts that are open in every solution, by the bounds below, are left out where no
condition holds with them. This proves the same, as the rates of all contacts follow from the forces
of the others.

*Bounds of normal forces* (`bound_normal_forces`). Whatever the friction inside its cones,
:math:`|f_t| \le \mu f_n`, normal rates are :math:`w_i = b_i + \sum_j a_{ij} f_j` with

.. math:: G_{ij} - \mu_j |G_{i,tj}| \le a_{ij} \le G_{ij} + \mu_j |G_{i,tj}|.

Complementarity says :math:`a_{ii} f_i = \max(0, -b_i - \sum_{j \ne i} a_{ij} f_j)` where
:math:`a_{ii} > 0`. Bounds of the other forces give closer bounds of each, sweep by sweep. A contact
whose force must be zero is open in every solution; one whose force cannot be zero is closed.
"""

from __future__ import annotations

from math import hypot, inf, sqrt
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri

from hybridctl.base.checks import Array
from hybridctl.mechanics.contact_law.law import CoulombProblem

_STRICT = 1.0 - 1e-6
"""Factor of a limit that a quantity must stay below: rounding must not prove anything. A choice."""
_REGULARISATION = 1e-10
"""Shift of dimensionless matrices before they are inverted, and least positive response.

It makes an inverse 1e10 where it does not exist. A choice, far above rounding (1e-16)."""
_MAX_INVERSE = 1e6
"""Norm of an inverse above which it does not exist: between that of contacts and 1e10. A choice."""
_BOUND_UPDATES = 3
"""Times that forces of sliding contacts are bounded, each time with the bound before. A choice."""
_SWEEPS = 4
"""Sweeps over all contacts that make bounds of normal forces closer. A choice."""
_UNBOUNDED = 1e30
"""Dimensionless force that stands for no upper bound: infinity times zero would be NaN."""
_RATE_MARGIN = 1e-7
"""Dimensionless rate by which bounds are widened: rounding must not open a contact. A choice."""


class NormalForceBounds(NamedTuple):
    """Least and greatest dimensionless normal forces (k,) that any solution has.

    Attributes:
        least: Lower bounds, not negative.
        greatest: Upper bounds; 1e30 where there is none.
    """

    least: Array
    greatest: Array

    @property
    def open(self) -> list[bool]:
        """Whether each contact is open in every solution."""
        return [force == 0.0 for force in self.greatest.tolist()]

    @property
    def closed(self) -> list[bool]:
        """Whether each contact is closed in every solution."""
        return [force > 0.0 for force in self.least.tolist()]


def bound_normal_forces(problem: CoulombProblem) -> NormalForceBounds:
    """Return bounds of the normal forces of all solutions of a dimensionless problem."""
    k = len(problem.static)
    approach = -problem.free[:k]
    smallest, largest = _bound_responses(problem)
    own = np.maximum(largest.diagonal(), _REGULARISATION)
    firm = smallest.diagonal().copy()
    bounded = firm > _REGULARISATION  # else friction may cancel the normal response
    firm[~bounded] = 1.0
    np.fill_diagonal(smallest, 0.0)
    np.fill_diagonal(largest, 0.0)
    least, greatest = np.zeros(k), np.full(k, _UNBOUNDED)
    for _ in range(_SWEEPS):
        lowest = np.where(smallest < 0.0, smallest * greatest, smallest * least).sum(axis=1)
        highest = np.where(largest > 0.0, largest * greatest, largest * least).sum(axis=1)
        most = np.maximum(approach - lowest + _RATE_MARGIN, 0.0) / firm
        greatest = np.where(bounded, np.minimum(greatest, most), greatest)
        least = np.maximum(least, np.maximum(approach - highest - _RATE_MARGIN, 0.0) / own)
    return NormalForceBounds(least, greatest)


def _bound_responses(problem: CoulombProblem) -> tuple[Array, Array]:
    """Return the smallest and the largest a (k, k) that friction inside its cones allows."""
    k = len(problem.static)
    normal = problem.delassus[:k]
    middle, reach = normal[:, :k].copy(), np.zeros((k, k))
    for i, rows, static, kinetic, given in problem.contacts:
        if given is not None:
            middle[:, i] -= kinetic * (normal[:, rows] @ given)
        elif rows:
            reach[:, i] = static * np.linalg.norm(normal[:, rows], axis=1)
    return middle - reach, middle + reach


def is_provably_unique(problem: CoulombProblem) -> bool:
    """Return whether a condition proves that a dimensionless problem has one solution at most."""
    if _satisfies_condition(problem):
        return True
    remaining = [i for i, is_open in enumerate(bound_normal_forces(problem).open) if not is_open]
    if len(remaining) == len(problem.static):
        return False
    return _satisfies_condition(problem.restrict(remaining))


def _satisfies_condition(problem: CoulombProblem) -> bool:
    """Return whether a condition of the module holds with all contacts of a problem."""
    tangents: list[int] = []
    owners: list[int] = []
    for i, rows, static, kinetic, given in problem.contacts:
        if rows and given is None and static > 0.0:
            if static > kinetic:
                return False
            tangents += rows
            owners += [i] * len(rows)
    if len(problem.contacts) == 1 and _proves_one_contact(problem):
        return True
    slides = any(given is not None and mu > 0.0 for _, _, _, mu, given in problem.contacts)
    if not tangents and not slides:
        return True  # frictionless: a convex programme
    return _proves_contraction(problem, tangents, owners, slides) or _proves_sliding(problem)


def _proves_one_contact(problem: CoulombProblem) -> bool:
    """Return whether the condition for one contact holds; the problem has one contact."""
    ((_, rows, _, mu, given),) = problem.contacts
    g, b = problem.delassus.tolist(), problem.free.tolist()
    coupling = [g[0][row] for row in rows]
    if given is not None:
        return bool(g[0][0] - mu * float(np.dot(given, coupling)) > _REGULARISATION)
    strength = hypot(*coupling)
    if g[0][0] - mu * strength <= _REGULARISATION:
        return False
    if b[0] >= 0.0 or len(rows) < 2 or mu == 0.0:
        return True
    (x, y), approach = rows, -b[0]
    u, v = b[x] / approach, b[y] / approach
    xx, yy = g[x][x] + u * coupling[0], g[y][y] + v * coupling[1]
    xy = g[x][y] + 0.5 * (u * coupling[1] + v * coupling[0])
    return bool(xx > 0.0 and xx * yy - xy * xy > _REGULARISATION)


def _proves_contraction(
    problem: CoulombProblem, tangents: list[int], owners: list[int], slides: bool
) -> bool:
    """Return whether the condition of contraction holds.

    Args:
        problem: Dimensionless problem.
        tangents: Tangent rows whose friction is free in its cone.
        owners: The contact of each of these rows.
        slides: Whether some contacts slide already.
    """
    k = len(problem.contacts)
    matrix = problem.delassus
    if slides:
        matrix = matrix.copy()
        for i, rows, _, mu, given in problem.contacts:
            if given is not None:
                matrix[:, i] -= mu * (problem.delassus[:, rows] @ given)
    unknowns = [*range(k), *tangents]
    if unknowns != [*range(len(matrix))]:
        matrix = matrix[unknowns][:, unknowns]
    inverse = _invert_symmetric(0.5 * (matrix + matrix.T) if slides else matrix)
    if inverse is None or not tangents:
        return inverse is not None
    friction, contacts = problem.kinetic[owners], sorted(set(owners))
    tangential = matrix[k:] @ inverse @ matrix[k:].T if slides else matrix[k:, k:]
    factors = friction[:, None] * tangential * friction, inverse[contacts][:, contacts]
    limit = (1.0 if slides else 4.0) * _STRICT
    # Frobenius norms bound the largest eigenvalues, and take less time.
    bounds = [float(np.linalg.norm(factor)) for factor in factors]
    if bounds[1] <= _MAX_INVERSE and bounds[0] * bounds[1] < limit:
        return True
    largest = [float(np.linalg.eigvalsh(factor)[-1]) for factor in factors]
    return largest[1] <= _MAX_INVERSE and largest[0] * largest[1] < limit


def _proves_sliding(problem: CoulombProblem) -> bool:
    """Return whether the condition that all contacts slide holds for a dimensionless problem.

    Then they slide in every solution, and so nearly in one way that there is one solution.
    """
    k, matrix, free = len(problem.contacts), problem.delassus, problem.free
    stiffness = float(np.linalg.eigvalsh(matrix[:k, :k])[0])
    if stiffness <= _REGULARISATION:
        return False
    friction, along = np.zeros(len(free)), np.zeros((len(free), k))
    for _, rows, _, mu, _ in problem.contacts:
        friction[rows] = mu
    by_friction = matrix[:, k:] * friction[k:]
    coupling = float(np.linalg.norm(by_friction[:k], 2))
    stiffness -= coupling
    if stiffness <= _REGULARISATION:
        return False
    slips: list[tuple[float, float]] = []
    for i, rows, _, mu, given in problem.contacts:
        if given is not None:
            along[rows, i] = given
        elif rows and mu > 0.0:
            speed = hypot(*free[rows].tolist()) or _REGULARISATION
            reach = np.linalg.norm(matrix[rows, :k]) + np.linalg.norm(by_friction[rows])
            along[rows, i] = free[rows] / speed
            slips.append((speed, float(reach)))
    sliding = matrix[:k, :k] - by_friction[:k] @ along[k:]
    sliding_stiffness = 0.5 * float(np.linalg.eigvalsh(sliding + sliding.T)[0])
    drag = float(np.linalg.norm(by_friction[k:], 2))
    response = float(np.linalg.norm(matrix[k:, :k], 2)) + drag
    approach = hypot(*np.minimum(free[:k], 0.0).tolist())
    for _ in range(_BOUND_UPDATES):
        force = approach / stiffness
        slowest = min((speed - reach * force for speed, reach in slips), default=inf)
        if slowest <= 0.0:
            return False
        sine = max((reach * force / speed for speed, reach in slips), default=0.0)
        chord = sqrt(2.0 - 2.0 * sqrt(1.0 - sine * sine))
        stiffness = max(stiffness, sliding_stiffness - coupling * chord)
        turn = force / slowest
        if coupling * response * turn < _STRICT * stiffness * (1.0 - drag * turn):
            return True
    return False


def _invert_symmetric(matrix: Array) -> Array | None:
    """Return the inverse of a symmetric matrix + 1e-10, None if that is not positive definite."""
    factor, failed = dpotrf(matrix + _REGULARISATION * np.eye(len(matrix)), lower=1)
    if failed:
        return None
    lower, _ = dpotri(factor, lower=1)  # zero above the diagonal, as the factor is
    inverse: Array = lower + lower.T
    np.fill_diagonal(inverse, lower.diagonal())
    return inverse
