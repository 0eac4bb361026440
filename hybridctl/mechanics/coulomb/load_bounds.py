r"""Bounds of the normal forces of all solutions: contacts that are surely open, or surely closed.

Whatever the friction does inside its cones, :math:`|f_t| \le \mu f_n`, the normal rates are
:math:`w_i = b_i + \sum_j a_{ij} f_j` with

.. math:: G_{ij} - \mu_j |G_{i,tj}| \le a_{ij} \le G_{ij} + \mu_j |G_{i,tj}|,

and complementarity says :math:`a_{ii} f_i = \max(0, -b_i - \sum_{j \ne i} a_{ij} f_j)` where
:math:`a_{ii} > 0`. With bounds of the other forces that gives closer ones of each, again and again.
A contact whose force cannot but be zero is open in every solution, one whose force cannot be zero
is closed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.coulomb.law import CoulombProblem

_SWEEPS = 4
_UNKNOWN = 1e30  # a bound of forces without units that says nothing
_REGULAR = 1e-10  # least response of a normal rate to its own force, of the largest
_MARGIN = 1e-7  # of rates without units: how far rounding may move a bound


class LoadBounds(NamedTuple):
    """The least and the greatest normal forces (k,) that any solution has."""

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


def load_bounds(problem: CoulombProblem) -> LoadBounds:
    """The bounds of a problem without units (`law.scaled`)."""
    k = len(problem.static)
    drop = -problem.free[:k]
    smallest, largest = _responses(problem)
    own, firm = np.maximum(largest.diagonal(), _REGULAR), smallest.diagonal().copy()
    bounded = firm > _REGULAR
    firm[~bounded] = 1.0
    np.fill_diagonal(smallest, 0.0)
    np.fill_diagonal(largest, 0.0)
    least, greatest = np.zeros(k), np.full(k, _UNKNOWN)
    for _ in range(_SWEEPS):
        lifted = np.where(smallest < 0.0, smallest * greatest, smallest * least).sum(axis=1)
        pushed = np.where(largest > 0.0, largest * greatest, largest * least).sum(axis=1)
        most = np.maximum(drop - lifted + _MARGIN, 0.0) / firm
        greatest = np.where(bounded, np.minimum(greatest, most), greatest)
        least = np.maximum(least, np.maximum(drop - pushed - _MARGIN, 0.0) / own)
    return LoadBounds(least, greatest)


def _responses(problem: CoulombProblem) -> tuple[Array, Array]:
    """The smallest and the largest a (k, k) that friction inside its cones allows."""
    k = len(problem.static)
    normal = problem.delassus[:k]
    middle, reach = normal[:, :k].copy(), np.zeros((k, k))
    for i, rows, static, kinetic, given in problem.contacts:
        if given is not None:
            middle[:, i] -= kinetic * (normal[:, rows] @ given)
        elif rows:
            reach[:, i] = static * np.linalg.norm(normal[:, rows], axis=1)
    return middle - reach, middle + reach
