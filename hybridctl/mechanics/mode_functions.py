"""Field and guards of one mode of a contact system, and their derivatives.

Where modes are compiled (see `generated_mode`) they come from there; at states for which that is
not sound, see `ModeField`, and for other robots, from the dynamics.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian, ModeKey
from hybridctl.mechanics.contact_states import Modes
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.flow import ContactFlow
from hybridctl.mechanics.generated_mode import GeneratedMode
from hybridctl.mechanics.guards import ContactGuards
from hybridctl.mechanics.selection import select_modes
from hybridctl.mechanics.tolerances import STANDSTILL


class ModeFunctions:
    """The callables of a mode and of its guard set, of (t, x, u) with x = (q, v)."""

    def __init__(self, dynamics: ContactDynamics, modes: Modes) -> None:
        self._dynamics, self._modes = dynamics, modes
        self.flow = ContactFlow(dynamics, modes)
        self.contact_guards = ContactGuards.of(dynamics, modes)
        self._made = GeneratedMode(dynamics, modes) if dynamics.compiles_modes else None
        self.step = None if self._made is None else self._made.step(self.field, self.guards)

    def __reduce__(self) -> tuple[type[ModeFunctions], tuple[ContactDynamics, Modes]]:
        return ModeFunctions, (self._dynamics, self._modes)

    def field(self, t: float, x: Array, u: Array) -> Array:
        """(v, a), (2 nv,)."""
        if self._made is not None:
            rate, _, sound = self._made.values((t,), x, u)
            if sound[0] > 0.0:
                nq = self._dynamics.robot.nq
                return np.concatenate((x[nq:], rate[nq:]))
        return self.flow.field(t, x, u)

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """D_x (2 nv, 2 nv) and D_u (2 nv, nu) of the field, and the field itself."""
        if self._made is not None:
            sound, field, by_state, by_input, _, _ = self._made.slopes(x, u)
            if sound[0] > 0.0:
                return FieldJacobian(by_state.copy(), by_input.copy(), field.copy())
        return self.flow.jacobian(t, x, u)

    def guards(self, t: float, x: Array, u: Array) -> Array:
        """The guards (n,) of the mode."""
        if self._made is not None:
            _, values, sound = self._made.values((t,), x, u)
            if sound[0] > 0.0:
                return np.array(values)
        return self.contact_guards.values(t, x, u)

    def select(self, t: float, x: Array, u: Array) -> ModeKey:
        """The mode that flows on: this one where its compiled guards say that it holds."""
        sure = False
        if self._made is not None:
            _, values, sound = self._made.values((t,), x, u)
            sure = bool(sound[0] > 0.0 and (values > self._clear).all())
        nq = self._dynamics.robot.nq
        return select_modes(self._dynamics, x[:nq], x[nq:], u, self._modes, sure)

    @cached_property
    def _clear(self) -> Array:
        """Values (n,) above which closed contacts push, hold, or slide the way they do."""
        guards = self.contact_guards.guards
        least = {"closes": -np.inf, "sticks": STANDSTILL}
        return np.array([least.get(guard.kind, 0.0) for guard in guards])

    def guard_jacobian(self, t: float, x: Array, u: Array) -> GuardJacobian:
        """Derivatives of the guards by state (n, 2 nv) and input (n, nu)."""
        if self._made is not None:
            sound, *_, by_state, by_input = self._made.slopes(x, u)
            if sound[0] > 0.0:
                return GuardJacobian(np.zeros(len(by_state)), by_state.copy(), by_input.copy())
        return self.contact_guards.jacobian(t, x, u)
