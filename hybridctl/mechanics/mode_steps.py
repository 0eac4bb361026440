r"""Whole compiled steps of the modes of a contact system.

Coordinates x = (q, v) are normalised wherever the equations are evaluated. Perturbations of q
become those of its coordinates by T(q) of :math:`\dot q = T v`. Its columns are orthogonal to each
other and to what changes norms, so that :math:`(T^T T)^{-1} T^T` takes perturbations back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import casadi as ca

from hybridctl import whole_step
from hybridctl.compiled import kept
from hybridctl.mechanics.coulomb.law import Modes
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.expressions import Bodies, Expression, normalized
from hybridctl.mechanics.mode_expressions import mode_field, mode_key
from hybridctl.whole_step import CompiledStep, Function, Value

_SOURCES = (whole_step.__file__, __file__)


def mode_step(dynamics: ContactDynamics, modes: Modes, field: Value, guards: Value) -> CompiledStep:
    """The whole step of a mode, whose functions are made at first use or read from disk.

    field, guards: the callables of the mode and of its guard set.
    """
    make = _Maker(dynamics, modes)
    return CompiledStep(make.motion, make.step, make.fed, make.varied, field, guards)


@dataclass(frozen=True)
class _Maker:
    """Makes the functions of a mode."""

    dynamics: ContactDynamics
    modes: Modes

    def motion(self) -> Function:
        return self._kept("motion", self._new_motion)

    def step(self) -> Function:
        return self._kept("step", lambda: whole_step.whole_step(self.motion()))

    def fed(self) -> Function:
        return self._kept("fed", lambda: whole_step.fed_step(self.motion()))

    def varied(self) -> Function:
        return self._kept("varied", lambda: whole_step.varied_step(self.motion(), self._tangent()))

    def _kept(self, name: str, build: Callable[[], Function]) -> Function:
        d = self.dynamics
        sources = [Path(source).read_text(encoding="utf-8") for source in _SOURCES]
        key = mode_key(d.robot, d.contacts, self.modes, d.stabilization, name, *sources)
        return kept(key, build)

    def _new_motion(self) -> Function:
        """(t, x, u) -> rate of the coordinates, guards, soundness."""
        d = self.dynamics
        mode = mode_field(d.robot, d.contacts, self.modes, stabilization=d.stabilization)
        of_unit = ca.Function("mode", [mode.x, mode.u], [mode.field, mode.guards, mode.sound])
        results = of_unit(self._unit(mode.x), mode.u)
        return ca.Function("motion", [ca.SX.sym("t"), mode.x, mode.u], ca.cse(list(results)))

    def _tangent(self) -> Function | None:
        """x -> T (nx, 2 nv) and its left inverse, None where all coordinates are free."""
        robot, tree = self.dynamics.robot, self.dynamics.robot.tree()
        if robot.nq == robot.nv:
            return None
        x = ca.SX.sym("x", robot.nq + robot.nv)
        unit = self._unit(x)
        rates = ca.diagcat(Bodies(tree, unit[: robot.nq]).rate, ca.SX.eye(robot.nv))
        back = ca.diag(1.0 / ca.sum1(rates * rates)) @ rates.T @ ca.jacobian(unit, x)
        return ca.Function("tangent", [x], ca.cse([ca.densify(rates), ca.densify(back)]))

    def _unit(self, x: Expression) -> Expression:
        """The state with unit quaternions and circles."""
        nq = self.dynamics.robot.nq
        return ca.vertcat(normalized(self.dynamics.robot.tree(), x[:nq]), x[nq:])
