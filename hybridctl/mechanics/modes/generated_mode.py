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
from hybridctl.mechanics.constrained.tolerances import STANDSTILL
from hybridctl.mechanics.modes.contact_mode import ContactMode, ContactPoint
from hybridctl.mechanics.modes.mode_expressions import (
    ModeEquations,
    ModeField,
    cholesky,
    field_of,
    mode_derivatives,
)
from hybridctl.mechanics.modes.selection import select_modes
from hybridctl.mechanics.multibody.expressions import Bodies, Expression, normalized
from hybridctl.mechanics.terms.generated import GeneratedTerms, sources
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
        """Rate (nq + nv,) of the coordinates and guards (n,), None where they are not sound."""
        return self.mode.values_at(self)

    @PointProperty
    def slopes(self) -> Slopes | None:
        """Derivatives of field and guards, None where they are not sound."""
        return self.mode.slopes_at(self)


class GeneratedContactMode(ContactMode, CompiledMode):
    """A mode of generated dynamics; where its functions are not sound it is a plain one."""

    point = GeneratedPoint
    compiled = True

    def values_at(self, point: GeneratedPoint) -> tuple[Array, Array] | None:
        """Rate and guards, where they are sound."""
        rate, guards, sound = self._values((point.t,), point.x, point.u)
        return (rate.copy(), guards.copy()) if sound[0] > 0.0 else None

    def slopes_at(self, point: GeneratedPoint) -> Slopes | None:
        """Derivatives, where they are sound."""
        sound, *found = self._slopes(point.x, point.u)
        if not sound[0] > 0.0:
            return None
        field_x, field_u, guards_x, guards_u = (a.copy() for a in found)
        guards = GuardJacobian(np.zeros(len(guards_x)), guards_x, guards_u)
        return Slopes(FieldJacobian(field_x, field_u), guards)

    def field_at(self, point: Any) -> Array:
        """The field (v, a), (2 nv,)."""
        values = point.values
        if values is None:
            return super().field_at(point)
        return np.concatenate((point.v, values[0][len(point.q) :]))

    def guards_at(self, point: Any) -> Array:
        """The guards (n,)."""
        return super().guards_at(point) if point.values is None else point.values[1]

    def field_jacobian_at(self, point: Any) -> FieldJacobian:
        """Derivatives of the field."""
        return super().field_jacobian_at(point) if point.slopes is None else point.slopes.field

    def guard_jacobian_at(self, point: Any) -> GuardJacobian:
        """Derivatives of the guards."""
        return super().guard_jacobian_at(point) if point.slopes is None else point.slopes.guards

    def guard_row_at(self, i: int, point: Any) -> GuardJacobian:
        """Derivatives of guard i."""
        if point.slopes is None:
            return super().guard_row_at(i, point)
        return CompiledMode.guard_row_at(self, i, point)

    def select_at(self, point: Any) -> ModeKey:
        """The mode that flows on: this one where its compiled guards say that it holds."""
        sure = point.values is not None and bool((point.values[1] > self._clear).all())
        if sure and len(self.phase.owner) == len(self.phase.closed):  # a convex problem
            return self.key
        at, now = (point.q, point.v, point.u), None if sure else point.contact
        return select_modes(self.dynamics, *at, self.modes, now, sure)

    @cached_property
    def _clear(self) -> Array:
        """Values (n,) above which closed contacts push, hold, or slide the way they do."""
        least = {"closes": -np.inf, "leaves": -np.inf, "sticks": STANDSTILL}
        return np.array([least.get(guard.kind, 0.0) for guard in self.contact_guards.guards])

    @cached_property
    def _values(self) -> CompiledFunction:
        """The function (t, x, u) -> rate (nq + nv,), guards (n,), soundness (1,)."""
        made = self._motion
        shapes = [(made.numel_out(0),), (made.numel_out(1),), (1,)]
        return CompiledFunction(self._ready(made), shapes, self.parameter_values)

    @cached_property
    def _slopes(self) -> CompiledFunction:
        """The function (x, u) -> soundness, and the results of `mode_derivatives`."""
        made = self._kept("slopes", self._new_slopes)
        n, nu, count = made.size2_out(1), made.size1_out(2), made.size2_out(3)
        shapes = [(1,), (n, n), (n, nu), (count, n), (count, nu)]
        return CompiledFunction(self._ready(made), shapes, self.parameter_values)

    @property
    def parameter_values(self) -> Array:
        """The numbers of robot and contacts."""
        return self._equations.constants.numbers

    def build_function(self, name: str) -> Function:
        """A function of its whole steps."""
        if name == "motion":
            return fix_last_argument(self._motion, self.parameter_values)
        return self._ready(self._kept(name, lambda: self._new_step(name)))

    def _ready(self, made: Function) -> Function:
        terms = self.dynamics.terms
        assert isinstance(terms, GeneratedTerms)
        return terms.ready(made)

    @cached_property
    def _motion(self) -> Function:
        """The function (t, x, u, numbers) -> rate, guards, soundness, for x of any norm."""
        return self._kept("motion", self._new_motion)

    def _kept(self, name: str, build: Callable[[], Function]) -> Function:
        return load_or_build(make_key(self._key, name), build)

    @cached_property
    def _key(self) -> str:
        return self._equations.key(sources(*_SOURCES))

    @cached_property
    def _equations(self) -> ModeEquations:
        d = self.dynamics
        return ModeEquations.of(d.robot, d.all, d.contacts, self.modes, d.stabilization)

    @cached_property
    def _expressions(self) -> tuple[ModeField, Expression]:
        """Expressions of the mode, with symbols for the robot's numbers, and these symbols."""
        constants, numbers = self._equations.constants.symbolic()
        return field_of(self._equations._replace(constants=constants)), numbers

    def _new_motion(self) -> Function:
        mode, numbers = self._expressions
        symbols = [mode.x, mode.u, numbers]
        of_unit = ca.Function("mode", symbols, [mode.field, mode.guards, mode.sound])
        results = of_unit(self._unit(mode.x), mode.u, numbers)
        columns = ca.cse([ca.densify(result) for result in results])
        return ca.Function("motion", [ca.SX.sym("t"), *symbols], columns)

    def _new_step(self, name: str) -> Function:
        free = self._free_input() if name == "noisy_step" and self.held is not None else None
        return compiled_step.build_function(name, self._motion, self._tangent(), free)

    def _new_slopes(self) -> Function:
        mode, numbers = self._expressions
        results = [mode.sound, *mode_derivatives(mode)]
        return build_transposed_function("slopes", [mode.x, mode.u, numbers], results)

    def _tangent(self) -> Function | None:
        """The function x -> T (nx, 2 nv) and its left inverse; None where coordinates are free."""
        robot, tree = self.dynamics.robot, self.dynamics.robot.tree()
        if robot.nq == robot.nv:
            return None
        x = ca.SX.sym("x", robot.nq + robot.nv)
        unit = self._unit(x)
        rates = ca.diagcat(Bodies(tree, unit[: robot.nq]).rate, ca.SX.eye(robot.nv))
        back = ca.diag(1.0 / ca.sum1(rates * rates)) @ rates.T @ ca.jacobian(unit, x)
        return ca.Function("tangent", [x], ca.cse([ca.densify(rates), ca.densify(back)]))

    def _free_input(self) -> Function:
        """The function (x, numbers) -> (0, M^-1 S), (nx, nu): inputs where contacts give way."""
        c, numbers = self._equations.constants.symbolic()
        x = ca.SX.sym("x", c.nq + c.nv)
        by_mass, _ = cholesky(Bodies(c.tree, self._unit(x)[: c.nq]).mass())
        moved = ca.vertcat(ca.SX.zeros(c.nq, c.actuation.shape[1]), by_mass(ca.DM(c.actuation)))
        return ca.Function("free", [x, numbers], ca.cse([ca.densify(moved)]))

    def _unit(self, x: Expression) -> Expression:
        """The state with unit quaternions and circles."""
        nq = self.dynamics.robot.nq
        return ca.vertcat(normalized(self.dynamics.robot.tree(), x[:nq]), x[nq:])
