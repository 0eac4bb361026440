"""One mode of a contact system: the callables of a `hybrid.mode.Mode` and of its guard set.

Where modes are compiled (see `generated_mode`) field, guards and their derivatives come from there;
at states for which that is not sound, see `ModeField`, and for other robots, from the dynamics.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian, Held, ModeKey, Pace
from hybridctl.mechanics.contact_states import Modes
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.generated_mode import GeneratedMode
from hybridctl.mechanics.guards import ContactGuards
from hybridctl.mechanics.selection import select_modes
from hybridctl.mechanics.sliding import sliding_times
from hybridctl.mechanics.tolerances import OFF_MODE, STANDSTILL

_OF_STOP = 0.9  # of the time to a stop in a surface: the field ends there


class ContactFlow:
    """Functions of (t, x, u), x = (q, v), and of x, of the mode in which contacts are in `modes`.

    contact_guards: its guards, by the dynamics. step: whole steps, where modes are compiled.
    """

    def __init__(self, dynamics: ContactDynamics, modes: Modes) -> None:
        self.dynamics, self.modes = dynamics, modes
        self.contact_guards = ContactGuards.of(dynamics, modes)
        self._made = GeneratedMode(dynamics, modes) if dynamics.compiles_modes else None
        self.step = None if self._made is None else self._made.step(self.field, self.guards)

    def __reduce__(self) -> tuple[type[ContactFlow], tuple[ContactDynamics, Modes]]:
        return ContactFlow, (self.dynamics, self.modes)

    def field(self, t: float, x: Array, u: Array) -> Array:
        """(v, a), (2 nv,)."""
        if self._made is not None:
            rate, _, sound = self._made.values((t,), x, u)
            if sound[0] > 0.0:
                nq = self.dynamics.robot.nq
                return np.concatenate((x[nq:], rate[nq:]))
        q, v = self._parts(x)
        dynamics, phase = self.dynamics, self.dynamics.phase(self.modes)
        if phase.closed:
            return np.concatenate((v, dynamics.solve(phase, q, v, u).acceleration))
        return np.concatenate((v, dynamics.robot.free_acceleration(q, v, u)))

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """D_x (2 nv, 2 nv) and D_u (2 nv, nu) of the field, and the field itself."""
        if self._made is not None:
            sound, field, by_state, by_input, _, _ = self._made.slopes(x, u)
            if sound[0] > 0.0:
                return FieldJacobian(by_state.copy(), by_input.copy(), field.copy())
        q, v = self._parts(x)
        d = self.dynamics.acceleration_derivatives(q, v, u, self.modes)
        nv = len(v)
        both = np.zeros((2 * nv, 2 * nv + len(u)))
        both[:nv, nv : 2 * nv] = np.eye(nv)
        both[nv:] = d.acceleration_z
        value = np.concatenate((v, d.point.acceleration))
        return FieldJacobian(both[:, : 2 * nv], both[:, 2 * nv :], value)

    def guards(self, t: float, x: Array, u: Array) -> Array:
        """The guards (n,) of the mode."""
        if self._made is not None:
            _, values, sound = self._made.values((t,), x, u)
            if sound[0] > 0.0:
                return np.array(values)
        return self.contact_guards.values(t, x, u)

    def guard_jacobian(self, t: float, x: Array, u: Array) -> GuardJacobian:
        """Derivatives of the guards by state (n, 2 nv) and input (n, nu)."""
        if self._made is not None:
            sound, *_, by_state, by_input = self._made.slopes(x, u)
            if sound[0] > 0.0:
                return GuardJacobian(np.zeros(len(by_state)), by_state.copy(), by_input.copy())
        return self.contact_guards.jacobian(t, x, u)

    def outputs(self, t: float, x: Array, u: Array) -> Mapping[str, Array]:
        """What `contact_system` says: of all contacts, the energy, and places; arrays that last."""
        q, v = self._parts(x)
        dynamics = self.dynamics
        point = dynamics.acceleration(q, v, u, self.modes)
        joints = range(1, len(dynamics.robot.joint_names) + 1)
        return {
            "gap": point.gaps,
            "normal_force": point.forces,
            "friction_force": point.friction,
            "slip_velocity": point.slip,
            "contact_position": dynamics.all.in_world(q, point.forces, point.friction)[0],
            "joint_position": dynamics.robot.poses(q, joints)[:, :3, 3],
            "energy": np.array(dynamics.robot.energy(q, v)),
        }

    def select(self, t: float, x: Array, u: Array) -> ModeKey:
        """The mode that flows on: this one where its compiled guards say that it holds."""
        sure = False
        if self._made is not None:
            _, values, sound = self._made.values((t,), x, u)
            sure = bool(sound[0] > 0.0 and (values > self._clear).all())
        return select_modes(self.dynamics, *self._parts(x), u, self.modes, sure)

    @cached_property
    def _clear(self) -> Array:
        """Values (n,) above which closed contacts push, hold, or slide the way they do."""
        guards = self.contact_guards.guards
        least = {"closes": -np.inf, "sticks": STANDSTILL}
        return np.array([least.get(guard.kind, 0.0) for guard in guards])

    def pace(self, t: float, x: Array, u: Array) -> Pace:
        """Steps as long as the decay of residuals takes, none beyond a stop in a surface."""
        dynamics, phase = self.dynamics, self.dynamics.phase(self.modes)
        longest = 1.0 / dynamics.stabilization if dynamics.stabilization > 0.0 else np.inf
        if not phase.spatial:
            return Pace(longest)
        stop, turn = sliding_times(dynamics.solve(phase, *self._parts(x), u))
        return Pace(min(longest, _OF_STOP * stop), turn)

    def held(self) -> Held:
        """Closed contacts are closed and do not move off their surface, sticking ones stand."""
        dynamics, phase = self.dynamics, self.dynamics.phase(self.modes)
        names = [dynamics.contacts[i].name for i in phase.closed]
        gaps = [f"the gap of contact {name!r}" for name in names]
        rates = [f"the normal speed of contact {name!r}" for name in names]
        slips = [
            f"the sliding speed of contact {names[k]!r}"
            for k in phase.owner[phase.sticking].tolist()
        ]
        count = len(names)
        return Held(
            (*gaps, *rates, *slips),
            self.residuals,
            np.full(count + len(phase.constrained), OFF_MODE),
            ("m",) * count + ("m/s",) * len(phase.constrained),
            jacobian=self.residuals_jacobian,
        )

    def residuals(self, x: Array) -> Array:
        """Gaps (k,) and rates (m,) that this mode holds at zero."""
        q, v = self._parts(x)
        phase = self.dynamics.phase(self.modes)
        now = self.dynamics.terms.values(q, v, np.zeros(self.dynamics.robot.nu))
        return np.concatenate((now.gaps[list(phase.closed)], now.rates[phase.held_rows]))

    def residuals_jacobian(self, x: Array) -> Array:
        """D_x of the residuals, (k + m, 2 nv)."""
        phase, nv = self.dynamics.phase(self.modes), self.dynamics.robot.nv
        rates = self.dynamics.rate_derivatives(*self._parts(x))
        gaps = np.zeros((len(phase.closed), 2 * nv))
        gaps[:, :nv] = rates[list(phase.closed), nv:]
        return np.concatenate((gaps, rates[phase.held_rows]))

    def project(self, x: Array) -> Array:
        """The state nearby with closed contacts closed and sticking ones at rest."""
        phase = self.dynamics.phase(self.modes)
        return np.concatenate(self.dynamics.projected(phase, *self._parts(x)))

    def _parts(self, x: Array) -> tuple[Array, Array]:
        n = self.dynamics.robot.nq
        return x[:n], x[n:]
