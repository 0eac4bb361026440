"""Field and guards of one mode of a contact system, and their derivatives.

Where the dynamics are generated each comes from one compiled function, made at first use or read
from disk; at states for which that is not sound, see `ModeField`, and for other robots, from the
dynamics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import casadi as ca
import numpy as np

from hybridctl.checks import Array
from hybridctl.compiled import Compiled, kept, transposed
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian
from hybridctl.mechanics.coulomb.law import Modes
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.expressions import Expression
from hybridctl.mechanics.flow import ContactFlow
from hybridctl.mechanics.guards import ContactGuards
from hybridctl.mechanics.mode_expressions import (
    ModeField,
    mode_derivatives,
    mode_field,
    mode_key,
)


class ModeFunctions:
    """The callables of a mode and of its guard set, of (t, x, u) with x = (q, v)."""

    def __init__(self, dynamics: ContactDynamics, modes: Modes) -> None:
        self._dynamics, self._modes = dynamics, modes
        self.flow = ContactFlow(dynamics, modes)
        self.contact_guards = ContactGuards.of(dynamics, modes)

    def __reduce__(self) -> tuple[type[ModeFunctions], tuple[ContactDynamics, Modes]]:
        return ModeFunctions, (self._dynamics, self._modes)

    def field(self, t: float, x: Array, u: Array) -> Array:
        """(v, a), (2 nv,)."""
        if self._dynamics.compiles_modes:
            sound, field, _ = self._values(x, u)
            if sound[0] > 0.0:
                return np.array(field)
        return self.flow.field(t, x, u)

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """D_x (2 nv, 2 nv) and D_u (2 nv, nu) of the field, and the field itself."""
        if self._dynamics.compiles_modes:
            sound, field, by_state, by_input, _, _ = self._slopes(x, u)
            if sound[0] > 0.0:
                return FieldJacobian(by_state.copy(), by_input.copy(), field.copy())
        return self.flow.jacobian(t, x, u)

    def guards(self, t: float, x: Array, u: Array) -> Array:
        """The guards (n,) of the mode."""
        if self._dynamics.compiles_modes:
            sound, _, values = self._values(x, u)
            if sound[0] > 0.0:
                return np.array(values)
        return self.contact_guards.values(t, x, u)

    def guard_jacobian(self, t: float, x: Array, u: Array) -> GuardJacobian:
        """Derivatives of the guards by state (n, 2 nv) and input (n, nu)."""
        if self._dynamics.compiles_modes:
            sound, *_, by_state, by_input = self._slopes(x, u)
            if sound[0] > 0.0:
                return GuardJacobian(np.zeros(len(by_state)), by_state.copy(), by_input.copy())
        return self.contact_guards.jacobian(t, x, u)

    @cached_property
    def _values(self) -> Compiled:
        """(x, u) -> soundness, field, guards."""
        nv, count = self._dynamics.robot.nv, len(self.contact_guards.guards)
        made = self._made("values", lambda mode: [mode.guards])
        return Compiled(made, [(1,), (2 * nv,), (count,)])

    @cached_property
    def _slopes(self) -> Compiled:
        """(x, u) -> soundness, field, and the results of `mode_derivatives`."""
        robot, count = self._dynamics.robot, len(self.contact_guards.guards)
        n, nu = 2 * robot.nv, robot.nu
        made = self._made("slopes", mode_derivatives)
        return Compiled(made, [(1,), (n,), (n, n), (n, nu), (count, n), (count, nu)])

    def _made(self, name: str, results: Callable[[ModeField], Sequence[Expression]]) -> object:
        """The function with soundness, field and these results, kept on disk."""
        d, modes = self._dynamics, self._modes

        def build() -> object:
            mode = mode_field(d.robot, d.contacts, modes, stabilization=d.stabilization)
            field = ca.vertcat(mode.x[d.robot.nq :], mode.field[d.robot.nq :])
            return transposed(name, [mode.x, mode.u], [mode.sound, field, *results(mode)])

        source = Path(__file__).read_text(encoding="utf-8")
        return kept(mode_key(d.robot, d.contacts, modes, d.stabilization, name, source), build)
