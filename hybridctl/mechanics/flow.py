"""The flow of one mode of a contact system, as the callables of a `hybrid.mode.Mode`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.mode import FieldJacobian, Held, Pace
from hybridctl.mechanics.contact_states import Modes
from hybridctl.mechanics.dynamics import ContactDynamics
from hybridctl.mechanics.sliding import sliding_times
from hybridctl.mechanics.tolerances import OFF_MODE

_OF_STOP = 0.9  # of the time to a stop in a surface: the field ends there


@dataclass(frozen=True)
class ContactFlow:
    """Field, derivatives, outputs, pace and projection of a mode; x = (q, v)."""

    dynamics: ContactDynamics
    modes: Modes

    def field(self, t: float, x: Array, u: Array) -> Array:
        """(v, a), (2 nv,)."""
        q, v = self._parts(x)
        dynamics, phase = self.dynamics, self.dynamics.phase(self.modes)
        if phase.closed:
            return np.concatenate((v, dynamics.solve(phase, q, v, u).acceleration))
        return np.concatenate((v, dynamics.robot.free_acceleration(q, v, u)))

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """D_x (2 nv, 2 nv) and D_u (2 nv, nu) of the field, and the field itself."""
        q, v = self._parts(x)
        d = self.dynamics.acceleration_derivatives(q, v, u, self.modes)
        nv = len(v)
        both = np.zeros((2 * nv, 2 * nv + len(u)))
        both[:nv, nv : 2 * nv] = np.eye(nv)
        both[nv:] = d.acceleration_z
        value = np.concatenate((v, d.point.acceleration))
        return FieldJacobian(both[:, : 2 * nv], both[:, 2 * nv :], value)

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
        held = phase.all_rows[phase.constrained]
        return np.concatenate((now.gaps[list(phase.closed)], now.rates[held]))

    def residuals_jacobian(self, x: Array) -> Array:
        """D_x of the residuals, (k + m, 2 nv)."""
        q, v = self._parts(x)
        dynamics, phase, nv = self.dynamics, self.dynamics.phase(self.modes), len(v)
        rows, still = dynamics.all, np.zeros(nv)
        forces = np.zeros(len(rows.jacobian(q)))
        rates = dynamics.terms.derivatives(q, v, still, forces).rates
        gaps = np.hstack((dynamics.gap_jacobian(q), np.zeros((len(dynamics.contacts), nv))))
        held = phase.all_rows[phase.constrained]
        return np.concatenate((gaps[list(phase.closed)], rates[held]))

    def project(self, x: Array) -> Array:
        """The state nearby with closed contacts closed and sticking ones at rest."""
        phase = self.dynamics.phase(self.modes)
        return np.concatenate(self.dynamics.projected(phase, *self._parts(x)))

    def _parts(self, x: Array) -> tuple[Array, Array]:
        n = self.dynamics.robot.nq
        return x[:n], x[n:]
