r"""The compiled functions of one mode of a contact system: field, guards, derivatives, whole steps.

All are made of the same expressions, at first use, or read from disk. In whole steps coordinates
x = (q, v) are normalised wherever the equations are evaluated. Perturbations of q become those of
its coordinates by T(q) of :math:`\dot q = T v`. Its columns are orthogonal to each other and to
what changes norms, so that :math:`(T^T T)^{-1} T^T` takes perturbations back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import casadi as ca

from hybridctl import whole_step
from hybridctl.compiled import Compiled, held, kept, key_of, transposed
from hybridctl.mechanics.contact_states import Modes
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.expressions import Bodies, Expression, normalized
from hybridctl.mechanics.generated import sources
from hybridctl.mechanics.mode_expressions import (
    ModeEquations,
    ModeField,
    field_of,
    mode_derivatives,
)
from hybridctl.whole_step import CompiledStep, Function, Value

_SOURCES = (whole_step.__file__, __file__)


class GeneratedMode:
    """The functions of a mode of generated dynamics."""

    def __init__(self, dynamics: ContactDynamics, modes: Modes) -> None:
        self._dynamics, self._modes = dynamics, modes

    def __reduce__(self) -> tuple[type[GeneratedMode], tuple[ContactDynamics, Modes]]:
        return GeneratedMode, (self._dynamics, self._modes)

    @cached_property
    def values(self) -> Compiled:
        """(t, x, u) -> rate (nq + nv,) of the coordinates, guards (n,), soundness (1,)."""
        made = self._motion
        return Compiled(self._held(made), [(made.numel_out(0),), (made.numel_out(1),), (1,)])

    @cached_property
    def slopes(self) -> Compiled:
        """(x, u) -> soundness, field, and the results of `mode_derivatives`."""
        made = self._kept("slopes", self._new_slopes)
        n, nu, count = made.numel_out(1), made.size1_out(3), made.size2_out(4)
        return Compiled(self._held(made), [(1,), (n,), (n, n), (n, nu), (count, n), (count, nu)])

    def step(self, field: Value, guards: Value) -> CompiledStep:
        """Whole steps; field, guards: the callables of the mode and of its guard set."""
        return CompiledStep(self._made, field, guards)

    def _made(self, name: str) -> Function:
        if name == "motion":
            return self._held(self._motion)
        made = self._kept(name, lambda: whole_step.made(name, self._motion, self._tangent()))
        return self._held(made)

    def _held(self, made: Function) -> Function:
        return held(made, self._equations.constants.numbers)

    @cached_property
    def _motion(self) -> Function:
        """(t, x, u, numbers) -> rate of coordinates, guards, soundness; of x of any norm."""
        return self._kept("motion", self._new_motion)

    def _kept(self, name: str, build: Callable[[], Function]) -> Function:
        return kept(key_of(self._key, name), build)

    @cached_property
    def _key(self) -> str:
        return self._equations.key(sources(*_SOURCES))

    @cached_property
    def _equations(self) -> ModeEquations:
        d = self._dynamics
        return ModeEquations.of(d.robot, d.all, d.contacts, self._modes, d.stabilization)

    @cached_property
    def _expressions(self) -> tuple[ModeField, Expression]:
        """Those of the mode, with symbols for the numbers of the robot, and these symbols."""
        constants, numbers = self._equations.constants.symbolic()
        return field_of(self._equations._replace(constants=constants)), numbers

    def _new_motion(self) -> Function:
        mode, numbers = self._expressions
        symbols = [mode.x, mode.u, numbers]
        of_unit = ca.Function("mode", symbols, [mode.field, mode.guards, mode.sound])
        results = of_unit(self._unit(mode.x), mode.u, numbers)
        columns = ca.cse([ca.densify(result) for result in results])
        return ca.Function("motion", [ca.SX.sym("t"), *symbols], columns)

    def _new_slopes(self) -> Function:
        (mode, numbers), nq = self._expressions, self._dynamics.robot.nq
        field = ca.vertcat(mode.x[nq:], mode.field[nq:])
        results = [mode.sound, field, *mode_derivatives(mode)]
        return transposed("slopes", [mode.x, mode.u, numbers], results)

    def _tangent(self) -> Function | None:
        """x -> T (nx, 2 nv) and its left inverse, None where all coordinates are free."""
        robot, tree = self._dynamics.robot, self._dynamics.robot.tree()
        if robot.nq == robot.nv:
            return None
        x = ca.SX.sym("x", robot.nq + robot.nv)
        unit = self._unit(x)
        rates = ca.diagcat(Bodies(tree, unit[: robot.nq]).rate, ca.SX.eye(robot.nv))
        back = ca.diag(1.0 / ca.sum1(rates * rates)) @ rates.T @ ca.jacobian(unit, x)
        return ca.Function("tangent", [x], ca.cse([ca.densify(rates), ca.densify(back)]))

    def _unit(self, x: Expression) -> Expression:
        """The state with unit quaternions and circles."""
        nq = self._dynamics.robot.nq
        return ca.vertcat(normalized(self._dynamics.robot.tree(), x[:nq]), x[nq:])
