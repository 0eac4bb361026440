r"""The compiled functions of one mode of a contact system: field, guards, derivatives, whole steps.

All are made of the same expressions, at first use, or read from disk. In whole steps coordinates
x = (q, v) are normalised wherever the equations are evaluated. Perturbations of q become those of
its coordinates by T(q) of :math:`\dot q = T v`. Its columns are orthogonal to each other and to
what changes norms, so that :math:`(T^T T)^{-1} T^T` takes perturbations back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.function_cache import load_or_build, make_key
from hybridctl.hybrid.model import FieldJacobian, GuardJacobian, ModeKey, PointProperty, Slopes
from hybridctl.mechanics.modes.contact_mode import ContactMode, ContactPoint
from hybridctl.mechanics.modes.mode_expressions import (
    ModeEquations,
    ModeField,
    cholesky,
    make_field,
    mode_derivatives,
)
from hybridctl.mechanics.modes.selection import select_modes
from hybridctl.mechanics.modes.tolerances import STANDSTILL
from hybridctl.mechanics.multibody.expressions import Bodies, Expression, normalized
from hybridctl.mechanics.terms.expression_terms import ExpressionTerms, read_sources
from hybridctl.symbolic import compiled_step
from hybridctl.symbolic.compiled_function import (
    CompiledFunction,
    build_transposed_function,
    fix_last_argument,
)
from hybridctl.symbolic.compiled_step import CompiledMode, Function

_SOURCES = (compiled_step.__file__, __file__)


class GeneratedPoint(ContactPoint):
    """A point of a generated mode."""

    mode: GeneratedContactMode

    @PointProperty
    def values(self) -> tuple[Array, Array] | None:
        """Rate (nq + nv,) of the coordinates and guards (n,).

        None where they are not sound (see `ModeField`): then the point is one of `ContactMode`.
        """
        return self.mode.values_at(self)

    @PointProperty
    def slopes(self) -> Slopes | None:
        """Derivatives of field and guards, None where they are not sound."""
        return self.mode.slopes_at(self)


class GeneratedContactMode(ContactMode, CompiledMode):
    """A mode whose field and guards are generated functions.

    Where these are not sound (see `ModeField`) it evaluates as a `ContactMode`.
    """

    point = GeneratedPoint
    compiled = True

    def values_at(self, point: GeneratedPoint) -> tuple[Array, Array] | None:
        """Return rate (nq + nv,) and guards (n,), None where they are not sound."""
        rate, guards, sound = self._values((point.t,), point.x, point.u)
        return (rate.copy(), guards.copy()) if sound[0] > 0.0 else None

    def slopes_at(self, point: GeneratedPoint) -> Slopes | None:
        """Return the derivatives of field and guards, None where they are not sound."""
        sound, *found = self._slopes(point.x, point.u)
        if not sound[0] > 0.0:
            return None
        field_x, field_u, guards_x, guards_u = (a.copy() for a in found)
        guards = GuardJacobian(np.zeros(len(guards_x)), guards_x, guards_u)
        return Slopes(FieldJacobian(field_x, field_u), guards)

    def field_at(self, point: Any) -> Array:
        """Return the field (v, a), (2 nv,)."""
        values = point.values
        if values is None:
            return super().field_at(point)
        return np.concatenate((point.v, values[0][len(point.q) :]))

    def guards_at(self, point: Any) -> Array:
        """Return the guards (n,)."""
        return super().guards_at(point) if point.values is None else point.values[1]

    def field_jacobian_at(self, point: Any) -> FieldJacobian:
        """Return the derivatives of the field, D_x (2 nv, 2 nv) and D_u (2 nv, nu)."""
        return super().field_jacobian_at(point) if point.slopes is None else point.slopes.field

    def guard_jacobian_at(self, point: Any) -> GuardJacobian:
        """Return the derivatives of the guards by state (n, 2 nv) and input (n, nu)."""
        return super().guard_jacobian_at(point) if point.slopes is None else point.slopes.guards

    def guard_row_at(self, i: int, point: Any) -> GuardJacobian:
        """Return the derivatives of guard i."""
        if point.slopes is None:
            return super().guard_row_at(i, point)
        return CompiledMode.guard_row_at(self, i, point)

    def select_at(self, point: Any) -> ModeKey:
        """Return the mode that flows on: this one where its compiled guards show that it holds."""
        holds = point.values is not None and bool((point.values[1] > self._sure_values).all())
        # Without friction the law is a convex problem: what holds is the only solution.
        if holds and len(self.phase.owner) == len(self.phase.closed):
            return self.key
        at, contact = (point.q, point.v, point.u), None if holds else point.contact
        return select_modes(self.dynamics, *at, self.modes, contact, holds)

    @cached_property
    def _sure_values(self) -> Array:
        """Values (n,) of guards above which contacts push, hold, or slide the way they do."""
        least = {"closes": -np.inf, "leaves": -np.inf, "sticks": STANDSTILL}
        return np.array([least.get(guard.kind, 0.0) for guard in self.contact_guards.guards])

    @cached_property
    def _values(self) -> CompiledFunction:
        """The function (t, x, u) -> rate (nq + nv,), guards (n,), soundness (1,)."""
        made = self._motion
        shapes = [(made.numel_out(0),), (made.numel_out(1),), (1,)]
        return CompiledFunction(self._finish(made), shapes, self.parameter_values)

    @cached_property
    def _slopes(self) -> CompiledFunction:
        """The function (x, u) -> soundness, and the results of `mode_derivatives`."""
        made = self._load("slopes", self._make_slopes)
        n, nu, count = made.size2_out(1), made.size1_out(2), made.size2_out(3)
        shapes = [(1,), (n, n), (n, nu), (count, n), (count, nu)]
        return CompiledFunction(self._finish(made), shapes, self.parameter_values)

    @property
    def parameter_values(self) -> Array:
        """The numbers of robot and contacts."""
        return self._equations.constants.numbers

    def build_function(self, name: str) -> Function:
        """Return a function of the compiled steps of this mode.

        Args:
            name: "motion", or a name of `compiled_step.build_function`.
        """
        if name == "motion":
            return fix_last_argument(self._motion, self.parameter_values)
        return self._finish(self._load(name, lambda: self._make_step(name)))

    def _finish(self, made: Function) -> Function:
        """Return a function as it is called: as machine code, if the terms are."""
        terms = self.dynamics.terms
        assert isinstance(terms, ExpressionTerms)
        return terms.finish_function(made)

    @cached_property
    def _motion(self) -> Function:
        """The function (t, x, u, numbers) -> rate, guards, soundness, for x of any norm."""
        return self._load("motion", self._make_motion)

    def _load(self, name: str, build: Callable[[], Function]) -> Function:
        """Return a function read from disk, or built."""
        return load_or_build(make_key(self._key, name), build)

    @cached_property
    def _key(self) -> str:
        return self._equations.make_key(read_sources(*_SOURCES))

    @cached_property
    def _equations(self) -> ModeEquations:
        d = self.dynamics
        return ModeEquations.of(d.robot, d.contact_set, d.contacts, self.modes, d.stabilization)

    @cached_property
    def _expressions(self) -> tuple[ModeField, Expression]:
        """Expressions of the mode, with symbols for the robot's numbers, and these symbols."""
        constants, numbers = self._equations.constants.make_symbolic()
        return make_field(self._equations._replace(constants=constants)), numbers

    def _make_motion(self) -> Function:
        """Return the function of `_motion`."""
        mode, numbers = self._expressions
        symbols = [mode.x, mode.u, numbers]
        of_unit = ca.Function("mode", symbols, [mode.field, mode.guards, mode.sound])
        results = of_unit(self._normalize(mode.x), mode.u, numbers)
        columns = ca.cse([ca.densify(result) for result in results])
        return ca.Function("motion", [ca.SX.sym("t"), *symbols], columns)

    def _make_step(self, name: str) -> Function:
        """Return a function of the compiled steps, see `compiled_step.build_function`."""
        free = self._make_free_input() if name == "noisy_step" and self.held is not None else None
        return compiled_step.build_function(name, self._motion, self._make_tangent(), free)

    def _make_slopes(self) -> Function:
        """Return the function of `_slopes`."""
        mode, numbers = self._expressions
        results = [mode.sound, *mode_derivatives(mode)]
        return build_transposed_function("slopes", [mode.x, mode.u, numbers], results)

    def _make_tangent(self) -> Function | None:
        """Return the function x -> T (nx, 2 nv) and its left inverse.

        None where coordinates are free: then T is the identity.
        """
        robot, tree = self.dynamics.robot, self.dynamics.robot.tree()
        if robot.nq == robot.nv:
            return None
        x = ca.SX.sym("x", robot.nq + robot.nv)
        unit = self._normalize(x)
        rates = ca.diagcat(Bodies(tree, unit[: robot.nq]).rate, ca.SX.eye(robot.nv))
        back = ca.diag(1.0 / ca.sum1(rates * rates)) @ rates.T @ ca.jacobian(unit, x)
        return ca.Function("tangent", [x], ca.cse([ca.densify(rates), ca.densify(back)]))

    def _make_free_input(self) -> Function:
        """Return the function (x, numbers) -> (0, M^-1 S), (nx, nu), see `free_input_at`."""
        c, numbers = self._equations.constants.make_symbolic()
        x = ca.SX.sym("x", c.nq + c.nv)
        by_mass, _ = cholesky(Bodies(c.tree, self._normalize(x)[: c.nq]).mass())
        moved = ca.vertcat(ca.SX.zeros(c.nq, c.actuation.shape[1]), by_mass(ca.DM(c.actuation)))
        return ca.Function("free", [x, numbers], ca.cse([ca.densify(moved)]))

    def _normalize(self, x: Expression) -> Expression:
        """Return the state with unit quaternions and circles."""
        nq = self.dynamics.robot.nq
        return ca.vertcat(normalized(self.dynamics.robot.tree(), x[:nq]), x[nq:])
