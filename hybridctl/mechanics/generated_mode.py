r"""The compiled functions of one mode of a contact system: field, guards, derivatives, whole steps.

All are made of the same expressions, at first use, or read from disk. In whole steps coordinates
x = (q, v) are normalised wherever the equations are evaluated. Perturbations of q become those of
its coordinates by T(q) of :math:`\dot q = T v`. Its columns are orthogonal to each other and to
what changes norms, so that :math:`(T^T T)^{-1} T^T` takes perturbations back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import casadi as ca

from hybridctl import whole_step
from hybridctl.compiled import Compiled, kept, transposed
from hybridctl.mechanics.contact_states import Modes
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.expressions import Bodies, Expression, normalized
from hybridctl.mechanics.mode_expressions import ModeField, mode_derivatives, mode_field, mode_key
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
        return Compiled(made, [(made.numel_out(0),), (made.numel_out(1),), (1,)])

    @cached_property
    def slopes(self) -> Compiled:
        """(x, u) -> soundness, field, and the results of `mode_derivatives`."""
        made = self._kept("slopes", self._new_slopes)
        n, nu, count = made.numel_out(1), made.size1_out(3), made.size2_out(4)
        return Compiled(made, [(1,), (n,), (n, n), (n, nu), (count, n), (count, nu)])

    def step(self, field: Value, guards: Value) -> CompiledStep:
        """Whole steps; field, guards: the callables of the mode and of its guard set."""
        return CompiledStep(self._made, field, guards)

    def _made(self, name: str) -> Function:
        if name == "motion":
            return self._motion
        return self._kept(name, lambda: whole_step.made(name, self._motion, self._tangent()))

    @cached_property
    def _motion(self) -> Function:
        """(t, x, u) -> rate of the coordinates, guards, soundness; x need not be normalised."""
        return self._kept("motion", self._new_motion)

    def _kept(self, name: str, build: Callable[[], Function]) -> Function:
        d = self._dynamics
        sources = [Path(source).read_text(encoding="utf-8") for source in _SOURCES]
        key = mode_key(d.robot, d.contacts, self._modes, d.stabilization, name, *sources)
        return kept(key, build)

    @cached_property
    def _expressions(self) -> ModeField:
        d = self._dynamics
        return mode_field(d.robot, d.contacts, self._modes, stabilization=d.stabilization)

    def _new_motion(self) -> Function:
        mode = self._expressions
        of_unit = ca.Function("mode", [mode.x, mode.u], [mode.field, mode.guards, mode.sound])
        results = of_unit(self._unit(mode.x), mode.u)
        columns = ca.cse([ca.densify(result) for result in results])
        return ca.Function("motion", [ca.SX.sym("t"), mode.x, mode.u], columns)

    def _new_slopes(self) -> Function:
        mode, nq = self._expressions, self._dynamics.robot.nq
        field = ca.vertcat(mode.x[nq:], mode.field[nq:])
        results = [mode.sound, field, *mode_derivatives(mode)]
        return transposed("slopes", [mode.x, mode.u], results)

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
