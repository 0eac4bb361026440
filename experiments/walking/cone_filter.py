r"""Inputs near the wanted ones keep standing contacts and landings inside their friction cones.

The forces of contacts that stick are those at the present state. The impulse of a contact that a
landing closes is the one after the time t in which its gap closes at the present rates and
accelerations,

.. math:: \Lambda = -(J M^{-1} J^T)^{-1} J\, (v + t\, a(x, u))

with M, and J of the contacts that are closed after the landing, at the configuration that is
reached then. Force and impulse are affine in u.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from hybridctl.base.checks import Array, check_instance, check_number
from hybridctl.base.errors import InputError
from hybridctl.control.tracking_law import parse_limits
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.contact_law.law import STICK
from hybridctl.mechanics.impacts.impact_expressions import build_constraints, build_impact_map
from hybridctl.mechanics.modes.mode_expressions import mode_field
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.system import ContactSystem, closed_contacts
from hybridctl.symbolic.compiled_function import CompiledFunction, build_transposed_function

_INFEASIBLE = 1e-12
"""Residual of the dual problem below which no input is feasible; it is 1 where none is changed."""


class _Landing(NamedTuple):
    """Functions of a contact that lands.

    Attributes:
        approach: From x and u to its gap, the gap's rate and acceleration, and the accelerations
            of the coordinates.
        impulse: From x, the time until it lands and the coordinates then to a and b of its cone.
    """

    approach: CompiledFunction
    impulse: CompiledFunction


class ConeFilter:
    """A `Correction` of inputs that keeps contacts from slipping, now and as they land.

    Where no input is feasible, the wanted one is only clipped to the limits.

    Args:
        system: Plastic contacts with friction. Its dynamics are made into expressions.
        limits: Greatest absolute inputs (nu,), or least and greatest ones (2, nu).
        landings: Mode after a landing, by the mode before it; other modes have no landing.
        share: Share of friction that may be used; with two tangents each has 1/sqrt(2) of it.
        least: Normal force that is kept, N.
        ahead: Time before a landing from which on its impulse counts, s. Earlier, present
            accelerations do not predict its velocity.

    Raises:
        InputError: Arguments do not fit.
    """

    def __init__(
        self,
        system: ContactSystem,
        limits: ArrayLike,
        landings: Mapping[ModeKey, ModeKey] | None = None,
        *,
        share: float = 0.95,
        least: float = 5.0,
        ahead: float = 0.05,
    ) -> None:
        self.system = check_instance("system", system, ContactSystem)
        self._contacts = system.contacts_in_space("a friction cone filter")
        found = parse_limits(limits, system.robot.nu)
        if found is None:
            raise InputError("limits must be given, got None")
        self.limits = found
        self.landings = dict(landings or {})
        self.share = check_number("share", share, above=0.0, at_most=1.0)
        self.least = check_number("least", least, at_least=0.0)
        self.ahead = check_number("ahead", ahead, at_least=0.0)
        self._functions: dict[ModeKey, tuple[CompiledFunction, list[_Landing]]] = {}

    def __call__(self, key: ModeKey, x: Array, wanted: Array) -> Array:
        """Return the nearest feasible inputs (nu,) at a state x (nx,) of a mode.

        A mode without a closed contact, or with one that slides, has no cone to stay inside: the
        wanted inputs are returned.
        """
        modes, closed = contact_modes(key), closed_contacts(key)
        if not closed or any(modes[i] != STICK for i in closed):
            return wanted
        return find_nearest_input(wanted, *self.compute_rows(key, x, wanted), self.limits)

    def compute_rows(self, key: ModeKey, x: Array, wanted: Array) -> tuple[Array, Array]:
        """Return the rows a (m, nu), b (m,), in N and N s: contacts stick where a u + b >= 0.

        The first rows are of the closed contacts, which must stick: normal force above the least,
        sides of the cone. Then follow the cones of landings that are near under the wanted inputs.

        Args:
            key: Mode, in which all closed contacts stick.
            x: State (nx,).
            wanted: Wanted inputs (nu,).
        """
        if key not in self._functions:
            self._functions[key] = self._build_functions(key)
        standing, landings = self._functions[key]
        rows = [standing(x)]
        for landing in landings:
            gap, rate, change, acceleration = landing.approach(x, wanted)
            t = _solve_time_to_zero(float(gap), float(rate), float(change))
            if t < self.ahead:
                nq = self.system.robot.nq
                there = x[:nq] + t * x[nq:] + 0.5 * t**2 * acceleration
                rows.append(landing.impulse(x, t, there))
        a, b = (np.concatenate([row[i] for row in rows]) for i in (0, 1))
        return a, b

    def _build_functions(self, key: ModeKey) -> tuple[CompiledFunction, list[_Landing]]:
        """Return the function of the rows of closed contacts, and those of landings in a mode."""
        robot, contacts, modes = self.system.robot, self._contacts, contact_modes(key)
        closed = closed_contacts(key)
        mode = mode_field(robot, contacts, modes, stabilization=self.system.dynamics.stabilization)
        rows = [
            ca.vertcat(mode.forces[i] - self.least, self._compute_slack(mode.forces, i))
            for i in closed
        ]
        standing = _make_affine("standing", [mode.x], ca.vertcat(*rows), mode.u)
        if key not in self.landings:
            return standing, []
        after = contact_modes(self.landings[key])
        x, u, nq = mode.x, mode.u, robot.nq
        acceleration = mode.field[nq:]
        t, there = ca.SX.sym("t"), ca.SX.sym("there", nq)
        impact = build_impact_map(robot, contacts, after)
        arriving = ca.vertcat(there, x[nq:] + t * acceleration)
        impulses = ca.substitute(impact.impulses, impact.x, arriving)
        landings = []
        for i in sorted(set(closed_contacts(self.landings[key])) - set(closed)):
            alone = tuple(STICK if j == i else "open" for j in range(len(modes)))
            gap, rate = ca.vertsplit(build_constraints(robot, contacts, alone, x)[:2])
            coming = [gap, rate, ca.jtimes(rate, x, mode.field), acceleration]
            approach = build_transposed_function("approach", [x, u], coming)
            impulse = _make_affine("impulse", [x, t, there], self._compute_slack(impulses, i), u)
            landings.append(_Landing(CompiledFunction(approach, [(), (), (), (nq,)]), impulse))
        return standing, landings

    def _compute_slack(self, forces: Any, i: int) -> Any:
        """Return the distances of a force or impulse of contact i from the sides of its cone."""
        tangents = self.system.dynamics.contact_set.tangents[i].tolist()
        friction = float(self.system.contacts[i].static_friction or 0.0)
        limit = self.share * friction / math.sqrt(max(len(tangents), 1)) * forces[i]
        return ca.vertcat(*(limit + sign * forces[k] for k in tangents for sign in (-1.0, 1.0)))


def _make_affine(name: str, arguments: Sequence[Any], rows: Any, u: Any) -> CompiledFunction:
    """Return the function that returns a (m, nu) and b (m,) of rows = a u + b."""
    m, nu = rows.numel(), u.numel()
    parts = [ca.jacobian(rows, u), ca.substitute(rows, u, ca.SX.zeros(nu))]
    return CompiledFunction(build_transposed_function(name, arguments, parts), [(m, nu), (m,)])


def _solve_time_to_zero(gap: float, rate: float, change: float) -> float:
    """Return the first t >= 0 with gap + rate t + change t^2 / 2 = 0, s; inf if there is none."""
    discriminant = rate**2 - 2.0 * gap * change
    if discriminant < 0.0 or math.sqrt(discriminant) <= rate:
        return math.inf
    return max(2.0 * gap / (math.sqrt(discriminant) - rate), 0.0)


def find_nearest_input(wanted: Array, a: Array, b: Array, limits: Array) -> Array:
    """Return the u nearest to a wanted one with a u + b >= 0 within limits.

    Least distance programming by nonnegative least squares: C. L. Lawson and R. J. Hanson, *Solving
    Least Squares Problems* (1974), chapter 23.

    Args:
        wanted: Wanted input (n,).
        a: Rows (m, n).
        b: Their constants (m,).
        limits: Least and greatest inputs (2, n).

    Returns:
        The input; `wanted` clipped to the limits if no input is feasible.
    """
    low, high = limits
    inside = bool((wanted >= low).all() and (wanted <= high).all())
    if inside and (a @ wanted + b >= 0.0).all():
        return wanted
    n = len(wanted)
    rows = np.vstack([a, np.eye(n), -np.eye(n)])
    missing = -(rows @ wanted + np.concatenate((b, -low, high)))
    dual, unit = np.vstack([rows.T, missing]), np.eye(n + 1)[n]
    try:
        residual = dual @ nnls(dual, unit)[0] - unit
    except RuntimeError:  # no convergence
        return np.clip(wanted, low, high)
    if -residual[n] < _INFEASIBLE:
        return np.clip(wanted, low, high)
    return np.asarray(np.clip(wanted - residual[:n] / residual[n], low, high))
