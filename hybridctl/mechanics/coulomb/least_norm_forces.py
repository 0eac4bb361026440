r"""Forces of least weighted norm that obey the law in given states, and how they change.

Redundant contacts leave forces open that change no rates. With multipliers m of the normals of
closed contacts and the tangents of sticking ones, f = E m, and the rows that are held, A = C G E,

.. math::
    \min_m \tfrac12 \sum_i f_i^2 / W_i \quad \text{with} \quad A m = c = C (w - b), \quad
    f_n \ge 0, \quad |f_t| \le \mu_s f_n \text{ where it sticks},

is strictly convex, so the forces are unique. Where equations contradict each other A m is next to
c. Those of least norm alone, m_0, need not be inside the cones; `least_in_cones` goes from there
along what the equations leave open. Its optimality conditions tell how the forces change,

.. math:: H m - A^T y - \sum_j \kappa_j \nabla g_j = 0, \quad A m = c, \quad g_j = 0,

H = E' W^-1 E, with g_j of the borders that act.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics.coulomb.cones import Cone, multipliers
from hybridctl.mechanics.coulomb.contact_states import SLIPS, Modes
from hybridctl.mechanics.coulomb.law import CoulombProblem, scaled
from hybridctl.mechanics.coulomb.least_in_cones import (
    Active,
    Allowed,
    borders_of,
    least_in_cones,
    stationary,
)
from hybridctl.mechanics.linear.least_norm import LeastNorm


class Loads(NamedTuple):
    """What multipliers m (n,) are: forces E m of closed contacts, each in its cone.

    mix E (r, n). Normal forces come first, then the friction of those cones that have any. units
    (n,): what is one unit of each, by which tolerances go.
    """

    mix: Array
    cones: Sequence[Cone]
    units: Array


@dataclass(frozen=True)
class LeastForces:
    """Forces of least weighted norm, and what is needed for their derivative.

    multipliers m (n,): normal forces of the closed contacts in their order, then friction of the
    sticking ones, contact by contact.
    """

    multipliers: Array
    _of: Loads
    _system: LeastNorm
    _open: Allowed
    _active: Active
    _kappa: Array

    @property
    def forces(self) -> Array:
        """The forces (r,) along all rows."""
        return np.asarray(self._of.mix @ self.multipliers)

    @cached_property
    def adjoint(self) -> Array:
        """The multipliers y (m,) of the equations."""
        borders, _ = self._borders
        pull = self.multipliers / self._system.weights - borders.T @ self._kappa / self._of.units
        return np.asarray(self._system.inverse.T @ pull)

    @cached_property
    def _borders(self) -> tuple[Array, Array]:
        m = self.multipliers / self._of.units
        return borders_of(self._of.cones, self._active, m, self._kappa)

    def sensitivity(
        self, equations: Array, stationarity: Array, weights: Array | None = None
    ) -> Array:
        """Changes dm (n, z) of the multipliers, while the same borders act.

        equations (m, z): D(c) - D(A) m at fixed m; where equations contradict each other, add
        (A^+)' D(A') (c - A m), see `LeastNorm.least_squares`. stationarity (n, z): D(A') y at
        fixed y. weights (n, z): D(W). All by the same z parameters. At a border that is
        touched without holding this is the derivative to the side where it does not act.
        """
        system, unit, null = self._system, self._of.units[:, None], self._open.null
        pull = stationarity
        if weights is not None:
            pull = pull + (self.multipliers / system.weights**2)[:, None] * weights
        moved = system.inverse @ equations / unit
        borders, curvature = self._borders
        upper = null.T @ (unit * pull - curvature @ moved)
        step, _ = stationary(null, curvature, borders, upper, -borders @ moved)
        return np.asarray(unit * (moved + null @ step))


def least_forces(
    problem: CoulombProblem,
    modes: Modes,
    directions: Sequence[Array | None],
    weights: Array,
    rates: Array | None = None,
) -> LeastForces:
    """Forces f (r,) of least sum of f_i^2 / weights_i that obey the law in the given states.

    modes (k,) as in `law`; directions: of sliding contacts; weights (r,) > 0, infinite for rows
    that do not count. Held rows are w_n = 0 of closed contacts and w_t = 0 of sticking ones; with
    rates (r,) also w_t of sliding ones, as is due where w_t decides the direction.

    Raises `NoContactSolutionError` if no forces inside the cones give these rates: then the
    contacts are not in these states.
    """
    mix, cones = multipliers(problem, modes, directions)
    own = [int(np.flatnonzero(column)[0]) for column in mix.T]
    held, target = own, np.zeros(len(own))
    if rates is not None:
        sliding = [rows for i, rows, *_ in problem.contacts if modes[i] in SLIPS]
        held = [*own, *(row for rows in sliding for row in rows)]
        target = rates[held]
        target[: len(cones)] = 0.0
    system = LeastNorm(problem.delassus[held] @ mix, 1.0 / ((mix**2).T @ (1.0 / weights)))
    loads = Loads(mix, cones, scaled(problem)[1].forces[own])
    found = inside_cones(system, system.solve(target - problem.free[held]), loads)
    if found is None:
        raise NoContactSolutionError(
            f"contacts cannot be {modes}: no forces that give their rates are inside the "
            "friction cones",
            problem=problem,
        )
    return found


def inside_cones(system: LeastNorm, least: Array, loads: Loads) -> LeastForces | None:
    """The solution of least norm of these equations inside the cones; None if there is none.

    least (n,): that without cones.
    """
    units = loads.units
    allowed = Allowed(least / units, system.null / units[:, None])
    found = least_in_cones(loads.cones, allowed)
    if found is None:
        return None
    return LeastForces(units * found.multipliers, loads, system, allowed, found.active, found.kappa)
