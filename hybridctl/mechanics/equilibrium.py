r"""Equilibrium: a state at rest that contacts and motors hold, with its forces and torques.

At rest the equations of motion are :math:`h(q, 0) = S u + J^T f`. Postures near a given one that
contacts can hold are many, and so are the torques that hold them; the one found is that of least

.. math:: \tfrac12 |q \ominus q_0|^2 + \tfrac{r}{2} |u|^2

under these equations, with forces inside their cones, and gaps that are closed or not negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from hybridctl.checks import Array, instance, number, vector
from hybridctl.errors import InputError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.constrained.phase import contact_modes
from hybridctl.mechanics.coulomb.contact_states import STICK
from hybridctl.mechanics.system import ContactSystem

_BALANCED = 1e-9  # of the weight, and m: what may be left of a posture's equations

_ACCURACY = 1e-14
_MOST = 500


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """A state (nx,) at rest with the input (nu,) that holds it.

    normal (c,), friction (c, 2): forces of all contacts in N. residual: of the equations, relative
    to the weight.
    """

    state: Array
    input: Array
    normal: Array
    friction: Array
    residual: float

    def __repr__(self) -> str:
        most = np.abs(self.input).max(initial=0.0)
        forces = ", ".join(f"{force:.4g}" for force in self.normal)
        return (
            f"Equilibrium(normal forces [{forces}] N, largest input {most:.4g}, "
            f"residual {self.residual:.2g})"
        )


def equilibrium(
    system: ContactSystem,
    mode: ModeKey,
    q0: ArrayLike,
    *,
    torque_weight: float = 1e-4,
    torque: float = np.inf,
    force: float = 0.0,
    share: float = 0.9,
) -> Equilibrium:
    """The equilibrium near q0 (nq,) in a mode whose closed contacts stick, or have no friction.

    torque_weight: r in 1/(N m)^2, against the way to q0 in rad^2 and m^2. torque: the greatest
    absolute input. force: the least normal force, N. share: of static friction that may be used.

    Raises `InputError` for a mode with contacts that slide, and where no equilibrium is found
    near q0, with what is left of the equations.
    """
    instance("system", system, ContactSystem)
    search = _EquilibriumEquations(system, mode, vector("q0", q0, system.robot.nq))
    number("torque_weight", torque_weight, above=0.0)
    number("share", share, above=0.0, at_most=1.0)
    nv, nu = system.robot.nv, system.robot.nu
    limit = np.full(nu, np.inf if torque == np.inf else number("torque", torque, above=0.0))
    size = np.concatenate((np.ones(nv), np.full(nu, torque_weight), np.zeros(search.rows)))
    free = np.full(search.rows, np.inf)
    cones = search.cones(share)
    least = np.where(np.abs(cones).sum(axis=1) == 1.0, force, 0.0)
    found = minimize(
        lambda z: 0.5 * float(size @ z**2),
        np.zeros(len(size)),
        jac=lambda z: size * z,
        method="SLSQP",
        bounds=list(
            zip(
                np.concatenate((np.full(nv, -np.inf), -limit, -free)),
                np.concatenate((np.full(nv, np.inf), limit, free)),
                strict=True,
            )
        ),
        constraints=[
            {"type": "eq", "fun": search.equations, "jac": search.derivatives},
            {"type": "ineq", "fun": search.gaps, "jac": search.gap_derivatives},
            {
                "type": "ineq",
                "fun": lambda z: cones @ z[nv + nu :] - least / search.weight,
                "jac": lambda z: np.hstack((np.zeros((len(cones), nv + nu)), cones)),
            },
        ],
        options={"maxiter": _MOST, "ftol": _ACCURACY},
    )
    residual = float(np.abs(search.equations(found.x)).max())
    slack = cones @ found.x[nv + nu :] - least / search.weight
    if residual > _BALANCED or (slack < -_BALANCED).any():
        raise InputError(
            f"no equilibrium was found near q0 in mode {mode!r}: {residual:.3g} of the weight or m "
            f"is left of its equations ({found.message})"
        )
    return search.result(found.x, residual)


class _EquilibriumEquations:
    """Equations in z = (dq, u, f / weight), f the forces on the rows that a mode holds."""

    def __init__(self, system: ContactSystem, mode: ModeKey, q0: Array) -> None:
        modes = contact_modes(mode)
        self._system, self._q0 = system, q0
        self._phase = system.dynamics.phase(modes)
        if self._phase.sliding:
            raise InputError(f"mode {mode!r} must have no contact that slides")
        self._held = self._phase.held_rows
        self._open = [i for i in range(len(modes)) if i not in self._phase.closed]
        self._stick = [i for i in self._phase.closed if modes[i] == STICK]
        self.rows, self.weight = len(self._held), system.robot.weight

    def _parts(self, z: Array) -> tuple[Array, Array, Array]:
        nv, nu = self._system.robot.nv, self._system.robot.nu
        forces = np.zeros(len(self._system.dynamics.all.owner))
        forces[self._held] = self.weight * z[nv + nu :]
        return self._system.robot.integrate(self._q0, z[:nv]), z[nv : nv + nu], forces

    def equations(self, z: Array) -> Array:
        """The residuals (h - S u - J' f) / weight (nv,), and gaps of closed contacts in m."""
        q, u, forces = self._parts(z)
        dynamics, robot = self._system.dynamics, self._system.robot
        values = dynamics.terms.values(q, np.zeros(robot.nv), u)
        moved = -(values.drive + values.jacobian.T @ forces) / self.weight
        return np.concatenate((moved, values.gaps[list(self._phase.closed)]))

    def derivatives(self, z: Array) -> Array:
        """The derivatives of the equations by z."""
        q, _, forces = self._parts(z)
        dynamics, robot = self._system.dynamics, self._system.robot
        nv, closed, still = robot.nv, list(self._phase.closed), np.zeros(robot.nv)
        by_q = dynamics.terms.derivatives(q, still, still, forces).equations[:, :nv]
        jacobian = dynamics.all.jacobian(q)
        upper = np.hstack(
            (by_q / self.weight, -robot.actuation / self.weight, -jacobian[self._held].T)
        )
        lower = np.zeros((len(closed), upper.shape[1]))
        lower[:, :nv] = jacobian[closed]
        return np.vstack((upper, lower))

    def gaps(self, z: Array) -> Array:
        """The gaps of open contacts, m."""
        return self._system.dynamics.gaps(self._parts(z)[0])[self._open]

    def gap_derivatives(self, z: Array) -> Array:
        """The derivatives of the gaps by z."""
        by_q = self._system.dynamics.gap_jacobian(self._parts(z)[0])[self._open]
        return np.hstack((by_q, np.zeros((len(by_q), len(z) - by_q.shape[1]))))

    def cones(self, share: float) -> Array:
        """Rows (k, rows) that forces keep positive: normal forces, and sides of their cones.

        In space the cone is the pyramid inside it.
        """
        found, held = [], self._held.tolist()
        unit = np.eye(len(held))
        for i in self._phase.closed:
            normal = unit[held.index(i)]
            found.append(normal)
            if i not in self._stick:
                continue
            tangents = self._system.dynamics.all.tangents[i].tolist()
            static = share * float(self._system.dynamics.static_friction[i])
            for row in tangents:
                along = unit[held.index(row)]
                limit = static / np.sqrt(len(tangents)) * normal
                found += [limit - along, limit + along]
        return np.array(found).reshape(len(found), len(held))

    def result(self, z: Array, residual: float) -> Equilibrium:
        q, u, forces = self._parts(z)
        normal, friction = (
            forces[: len(self._system.contacts)],
            self._system.dynamics.tangential(forces),
        )
        state = np.concatenate((q, np.zeros(self._system.robot.nv)))
        return Equilibrium(state, u.copy(), normal, friction, residual)
