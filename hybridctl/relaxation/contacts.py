r"""Relaxed systems: strips behind guards, [Relax], and behind the surfaces of contacts.

A robot's contacts keep their mode through impacts and sliding instead of jumping: behind each
surface is a strip in which it pushes. With the gap g, the sliding velocity :math:`v_t` and the
response :math:`r = J_n M^{-1} (J_n^T + J_t^T d)` to a push with its friction,

.. math:: \lambda_n = -\frac{\omega^2 g + 2 \zeta \omega \dot g}{r} \ge 0, \qquad
    \lambda_t = d\,\lambda_n, \qquad d = -\mu \frac{v_t}{\sqrt{|v_t|^2 + s^2}},

with :math:`\omega^2 = \gamma / \varepsilon`, :math:`s^2 = \gamma \varepsilon` and
:math:`\gamma = 9.81` m/s^2: a contact sinks by epsilon under the weight of its effective mass. The
damping ratio :math:`\zeta` makes a contact that hits by itself rebound with its restitution e, or
with :math:`\sqrt{\varepsilon / 1\,m}` if that is more,

.. math:: e = \exp\Big(-\frac{2 \zeta \arccos \zeta}{\sqrt{1 - \zeta^2}}\Big),

the speed at which a damped spring that cannot pull lets go (with arcosh and the root of
:math:`\zeta^2 - 1` beyond 1). Impacts last for a time of order :math:`\sqrt\varepsilon`, and so far
is all of this from rigid contact. Strips of several contacts meet without harm, as their forces
add up. Impacts with friction and rebound in which sliding stops or turns around are not what an
impact law makes of them, and where a contact jams, r = 0, there is no relaxation.
"""

from __future__ import annotations

from itertools import product
from typing import Any, overload

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from hybridctl.base.checks import Array, check_array, check_number, check_vector
from hybridctl.base.errors import InputError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import DerivedSystem, HybridSystem
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.modes.mode_expressions import cholesky
from hybridctl.mechanics.system import ContactSystem
from hybridctl.mechanics.terms.generated import Constants
from hybridctl.relaxation import relax as strips
from hybridctl.symbolic import SymbolicMode, SymbolicTransition, hybrid_system

OPEN, STRIP = "open", "strip"
_WEIGHT = 9.81  # m/s^2
_MOST = 8  # contacts, of whose strips all sets are modes
_HARDEST, _SOFTEST = 1e6, 1e-12  # damping ratios
_CRITICAL = 1e-9  # of 1: how near to it is critical

Expression = Any


@overload
def relax(  # type: ignore[overload-overlap]
    system: ContactSystem, epsilon: float
) -> RelaxedContacts: ...


@overload
def relax(system: HybridSystem, epsilon: float) -> strips.Relaxed: ...


def relax(system: HybridSystem, epsilon: float) -> strips.Relaxed | RelaxedContacts:
    """The relaxation of a system: strips of width `epsilon` behind its guards.

    A robot with contacts: epsilon in m, see this module. State and input stay as they are; modes
    are tuples of "open" and "strip", one for each contact, and guards are "NAME touches" and
    "NAME leaves". Guards of friction and thresholds of restitution are none any more.
    Any other system: see `hybrid.relaxation.relax`, which gives a `Relaxed`.

    Raises `InputError` for robots without expressions, with coordinates that are not added, such as
    quaternions, for tangential restitution and more than eight contacts, and what
    `hybrid.relaxation.relax` raises.
    """
    if not isinstance(system, ContactSystem):
        return strips.relax(system, epsilon)
    width = check_number("epsilon", epsilon, above=0.0)
    robot, contacts = system.robot, system.contacts_in_space("relaxation")
    if not system.dynamics.has_expressions or robot.nq != robot.nv or len(contacts) > _MOST:
        raise InputError(
            f"system must have expressions, as many coordinates as velocities and at most {_MOST} "
            f"contacts to be relaxed, got {system!r}"
        )
    for contact in contacts:
        if contact.tangential_restitution:
            raise InputError(
                f"tangential_restitution of contact {contact.name!r} must be 0 to be relaxed, as "
                f"strips rub against sliding alone, got {contact.tangential_restitution}"
            )
    ground = _Ground(system, width)
    modes, transitions = [], []
    for key in product((OPEN, STRIP), repeat=len(contacts)):
        modes.append(ground.mode(key))
        for i, contact in enumerate(contacts):
            event, guard = (
                ("leaves", ground.push[i]) if key[i] == STRIP else ("touches", ground.over[i])
            )
            other = STRIP if key[i] == OPEN else OPEN
            after = (*key[:i], other, *key[i + 1 :])
            transitions.append(SymbolicTransition(key, f"{contact.name} {event}", guard, after))
    return RelaxedContacts(system, system.seen(hybrid_system(modes, transitions)), width)


class RelaxedContacts(DerivedSystem):
    """The relaxation of a robot with contacts; see `relax`. epsilon: the width of its strips, m."""

    inner: ContactSystem

    def __init__(self, robot: ContactSystem, made: HybridSystem, epsilon: float) -> None:
        super().__init__(robot, made.mode, made.outgoing, made.guard_names)
        self.epsilon = epsilon

    def again(self, inner: HybridSystem) -> HybridSystem:
        """The relaxation of the pushed robot."""
        return relax(inner, self.epsilon)

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """The mode in which the state x flows on: which strips it is in, whatever the input is."""
        above = (OPEN,) * len(self.inner.contacts)
        mode = self.mode(above)
        state = check_vector("x", x, mode.space.nx)
        over = mode.guards(0.0, state, np.zeros(mode.nu))
        return tuple(OPEN if value > 0.0 else STRIP for value in over.tolist())

    def entered(
        self, key: ModeKey, t: float, y: ArrayLike, u: ArrayLike = ()
    ) -> tuple[ModeKey, Array]:
        """Mode and state of the robot that a state stands for: itself, as nothing jumps."""
        return key, check_array("y", y, (None,))


def damping_ratio(restitution: float) -> float:
    """The damping zeta of a spring that cannot pull and rebounds with a restitution in (0, 1]."""
    check_number("restitution", restitution, above=0.0, at_most=1.0)
    if restitution == 1.0:
        return 0.0
    off = lambda z: _rebound(float(np.exp(z))) - np.log(restitution)  # noqa: E731
    return float(np.exp(brentq(off, np.log(_SOFTEST), np.log(_HARDEST), xtol=1e-14)))


def _rebound(zeta: float) -> float:
    """The logarithm of the restitution."""
    rest = abs(1.0 - zeta**2)
    if rest < _CRITICAL:
        return -2.0
    angle = np.arccos(zeta) if zeta < 1.0 else np.arccosh(zeta)
    return float(-2.0 * zeta * angle / np.sqrt(rest))


class _Ground:
    """The robot's motion over its contacts as expressions in x = (q, v) and u.

    push (c, 1): -g - 2 zeta / omega dg/dt, positive where a surface pushes. over (c, 1): positive
    where it does not: above it, or leaving it.
    """

    def __init__(self, system: ContactSystem, width: float) -> None:
        robot, contacts = system.robot, system.contacts_in_space("relaxation")
        members = ContactSet(robot, contacts)
        c = Constants.of(robot, members)
        self.x, self.u = ca.SX.sym("x", 2 * c.nq), ca.SX.sym("u", c.actuation.shape[1])
        q, self._v = self.x[: c.nq], self.x[c.nq :]
        bodies, self._drive, self._jacobian, rows = c.terms(q, self._v, self.u)
        self._by_mass, self._gaps = cholesky(bodies.mass())[0], rows.gaps
        self._tangents, self._contacts = members.tangents, contacts
        self._rates = self._jacobian @ self._v
        least = min(float(np.sqrt(width)), 1.0)
        delays = [2.0 * damping_ratio(max(contact.restitution, least)) for contact in contacts]
        delay = ca.DM(delays) * np.sqrt(width / _WEIGHT)
        normal = self._rates[: len(contacts)]
        self.push = -self._gaps - delay * normal
        self.over = self._gaps + delay * ca.fmax(normal, 0.0)
        self._stiffness, self._slow = _WEIGHT / width, _WEIGHT * width

    def mode(self, key: tuple[str, ...]) -> SymbolicMode:
        """The mode in which these contacts are in their strips."""
        forces = ca.SX.zeros(self._jacobian.shape[0], 1)
        for i in (i for i, state in enumerate(key) if state == STRIP):
            rows = self._tangents[i].tolist()
            slip = ca.reshape(self._rates[rows], len(rows), 1)
            drag = -self._contacts[i].friction * slip / ca.sqrt(ca.sumsqr(slip) + self._slow)
            row = self._jacobian[i, :]
            moved = self._by_mass(row.T + self._jacobian[rows, :].T @ drag)
            forces[i] = self._stiffness * self.push[i] / (row @ moved)
            forces[rows] = drag * forces[i]
        acceleration = self._by_mass(self._drive + self._jacobian.T @ forces)
        field = ca.vertcat(self._v, acceleration)
        outputs = {
            "gap": self._gaps,
            "normal_force": forces[: len(key)],
            "friction_force": self._tangential(forces, key),
            "slip_velocity": self._tangential(self._rates, key),
        }
        return SymbolicMode(key, self.x, field, self.u, outputs=outputs)

    def _tangential(self, rows: Expression, key: tuple[str, ...]) -> Expression:
        """Entries (c, 2) along two tangents of each contact, zero where it is open."""
        found = ca.SX.zeros(len(key), 2)
        for i, tangents in enumerate(self._tangents):
            for k, row in enumerate(tangents if key[i] == STRIP else ()):
                found[i, k] = rows[int(row)]
        return found
