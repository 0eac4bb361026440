r"""The compiled functions of one mode of a contact system: field, guards, derivatives, whole steps.

All are made of the same expressions, at first use, or read from disk. In whole steps coordinates
x = (q, v) are normalised wherever the equations are evaluated. Perturbations of q become those of
its coordinates by T(q) of :math:`\dot q = T v`. Its columns are orthogonal to each other and to
what changes norms, so that :math:`(T^T T)^{-1} T^T` takes perturbations back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.function_cache import load_or_build, make_key
from hybridctl.hybrid.model import (
    BatchFunction,
    FieldJacobian,
    GuardJacobian,
    ModeKey,
    Point,
    PointProperty,
    Slopes,
)
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
    BatchedFunction,
    CompiledFunction,
    build_transposed_function,
    fix_last_argument,
)
from hybridctl.symbolic.compiled_step import CompiledMode, Function


def _evaluate_with_transport(
    function: BatchedFunction, turning: Array, t: Array, x: Array, u: Array
) -> list[Array]:
    """Return soundness (m, 1), A and B at m points, where perturbations turn with the motion.

    Perturbations of joints with quaternions or circles are in the axes of the body, which turn: to
    their rate belongs the transport, -ad(v), which is linear in v.

    Args:
        function: Returns soundness, D_x f and D_u f.
        turning: Transport (nv, nv, nv) by each unit velocity, see `Robot.transport`.
        t: Times (m, 1), s.
        x: States (m, nq + nv).
        u: Inputs (m, nu).
    """
    sound, by_state, by_input = function(t, x, u)
    nv = len(turning)
    by_state[:, :nv, :nv] += np.tensordot(x[:, -nv:], turning, axes=1)
    return [sound, by_state, by_input]


_SOURCES = (compiled_step.__file__, __file__)
"""Files that functions are made by, besides those of the equations: their text is in the keys."""


class GeneratedPoint(ContactPoint):
    """A point of a generated mode.

    Where the generated functions are not sound at the point (`ModeField.sound`), each quantity is
    that of a `ContactPoint`, computed in Python.
    """

    mode: GeneratedContactMode

    @PointProperty
    def values(self) -> tuple[Array, Array] | None:
        """Rate (nq + nv,) of the coordinates (q, v), and guards (n,); None if not sound."""
        rate, guards, sound = self.mode.value_function((self.t,), self.x, self.u)
        return (rate.copy(), guards.copy()) if sound[0] > 0.0 else None

    @PointProperty
    def slopes(self) -> Slopes | None:
        """Derivatives of field and guards by state and input; None if not sound."""
        sound, *found = self.mode.slope_function(self.x, self.u)
        if not sound[0] > 0.0:
            return None
        field_x, field_u, guards_x, guards_u = (a.copy() for a in found)
        guards = GuardJacobian(np.zeros(len(guards_x)), guards_x, guards_u)
        return Slopes(FieldJacobian(field_x, field_u), guards)

    @PointProperty
    def field(self) -> Array:
        """The field (v, a), (2 nv,)."""
        values = self.values
        if values is None:
            return super().field
        return np.concatenate((self.v, values[0][len(self.q) :]))

    @PointProperty
    def guards(self) -> Array:
        """The guards (n,)."""
        return super().guards if self.values is None else self.values[1]

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field, D_x (2 nv, 2 nv) and D_u (2 nv, nu)."""
        return super().field_jacobian if self.slopes is None else self.slopes.field

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of the guards by state (n, 2 nv) and input (n, nu)."""
        return super().guard_jacobian if self.slopes is None else self.slopes.guards

    def guard_row(self, i: int) -> GuardJacobian:
        """Return the derivatives of guard i, from those of all where they are compiled.

        Args:
            i: Number of the guard.
        """
        return super().guard_row(i) if self.slopes is None else Point.guard_row(self, i)

    @PointProperty
    def selected_mode(self) -> ModeKey:
        """The mode that flows on: this one where its compiled guards show that it is consistent.

        With friction Coulomb's law may have other solutions. `select_modes` then looks for them.
        """
        mode, values = self.mode, self.values
        holds = values is not None and bool((values[1] > mode.sure_values).all())
        # Without friction the law is a convex problem: what holds is the only solution.
        if holds and len(mode.phase.owner) == len(mode.phase.closed):
            return mode.key
        at, contact = (self.q, self.v, self.u), None if holds else self.contact
        return select_modes(mode.dynamics, *at, mode.modes, contact, holds)


class GeneratedContactMode(ContactMode, CompiledMode):
    """A mode whose field and guards are generated functions.

    Where these are not sound (see `ModeField`) it evaluates as a `ContactMode`.
    """

    point = GeneratedPoint
    compiled = True

    @cached_property
    def sure_values(self) -> Array:
        """Values (n,) of guards above which contacts push, hold, or slide the way they do.

        Forces and the response ratio are to be positive, and sliding speeds above `STANDSTILL`:
        below it a direction may be a guess. Gaps and margins say nothing of this.
        """
        least = {"closes": -np.inf, "leaves": -np.inf, "sticks": STANDSTILL}
        return np.array([least.get(guard.kind, 0.0) for guard in self.contact_guards.guards])

    @cached_property
    def value_function(self) -> CompiledFunction:
        """The function (t, x, u) -> rate (nq + nv,), guards (n,), soundness (1,).

        Soundness is positive where the other two are those of a `ContactPoint`.
        """
        made = self._motion
        shapes = [(made.numel_out(0),), (made.numel_out(1),), (1,)]
        return CompiledFunction(self._finish(made), shapes, self.parameter_values)

    @cached_property
    def slope_function(self) -> CompiledFunction:
        """The function (x, u) -> soundness, and the results of `mode_derivatives`."""
        made = self._load("slopes", self._make_slopes)
        n, nu, count = made.size2_out(1), made.size1_out(2), made.size2_out(3)
        shapes = [(1,), (n, n), (n, nu), (count, n), (count, nu)]
        return CompiledFunction(self._finish(made), shapes, self.parameter_values)

    @cached_property
    def batched_slopes(self) -> BatchFunction:
        """The function (t, x, u) of m points -> soundness, A (2 nv, 2 nv) and B (2 nv, nu).

        dx' = A dx + B du is the variational equation, transport of perturbations included.
        """
        made = self._load("field_slopes", self._make_field_slopes)
        n, nu = made.size2_out(1), made.size1_out(2)
        shapes = [(1,), (n, n), (n, nu)]
        function = BatchedFunction(self._finish(made), shapes, self.parameter_values)
        robot = self.dynamics.robot
        if robot.nq == robot.nv:  # a vector space: no transport
            return function
        turning = np.array([robot.transport(unit) for unit in np.eye(robot.nv)])
        return partial(_evaluate_with_transport, function, turning)

    @property
    def parameter_values(self) -> Array:
        """The numbers (np,) of robot and contacts, the last argument of all functions made here."""
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
        """Name of this mode of robots of this structure, under which functions are kept on disk."""
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
        """Return the function of `slope_function`."""
        mode, numbers = self._expressions
        results = [mode.sound, *mode_derivatives(mode)]
        return build_transposed_function("slopes", [mode.x, mode.u, numbers], results)

    def _make_field_slopes(self) -> Function:
        """Return the function of `batched_slopes`."""
        mode, numbers = self._expressions
        results = [mode.sound, *mode_derivatives(mode)[:2]]
        return build_transposed_function(
            "field_slopes", [ca.SX.sym("t"), mode.x, mode.u, numbers], results
        )

    def _make_tangent(self) -> Function | None:
        """Return the function x -> T (nx, 2 nv) and its left inverse, for x of any norm.

        None without quaternions and circles: then T is the identity.
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
        """Return the function (x, numbers) -> (0, M^-1 S), (nx, nu), see `Point.free_input`.

        Steps with noise of modes with constraints need it: noise goes where contacts give way.
        """
        c, numbers = self._equations.constants.make_symbolic()
        x = ca.SX.sym("x", c.nq + c.nv)
        by_mass, _ = cholesky(Bodies(c.tree, self._normalize(x)[: c.nq]).mass())
        moved = ca.vertcat(ca.SX.zeros(c.nq, c.actuation.shape[1]), by_mass(ca.DM(c.actuation)))
        return ca.Function("free", [x, numbers], ca.cse([ca.densify(moved)]))

    def _normalize(self, x: Expression) -> Expression:
        """Return the state with unit quaternions and circles."""
        nq = self.dynamics.robot.nq
        return ca.vertcat(normalized(self.dynamics.robot.tree(), x[:nq]), x[nq:])
