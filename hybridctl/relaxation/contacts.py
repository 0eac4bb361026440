r"""Relaxed contacts of robots: behind the surface of each contact is a strip in which it pushes.

A robot's contacts keep their mode through impacts and sliding instead of jumping. With the gap g,
the sliding velocity :math:`v_t` and the response :math:`r = J_n M^{-1} (J_n^T + J_t^T d)` of the
normal acceleration to a unit normal force with its friction, the contact forces are

.. math:: \lambda_n = -\frac{\omega^2 g + 2 \zeta \omega \dot g}{r} \ge 0, \qquad
    \lambda_t = d\,\lambda_n, \qquad d = -\mu \frac{v_t}{\sqrt{|v_t|^2 + s^2}},

with :math:`\omega^2 = \gamma / \varepsilon`, :math:`s^2 = \gamma \varepsilon` and
:math:`\gamma = 9.81` m/s^2: a contact sinks by epsilon under the weight of its effective mass.

The damping ratio :math:`\zeta` is chosen so that a contact that hits by itself rebounds with its
restitution e, or with :math:`\sqrt{\varepsilon / 1\,m}` if that is more. A damped spring that
cannot pull lets go with this part of its speed:

.. math:: e = \exp\Big(-\frac{2 \zeta \arccos \zeta}{\sqrt{1 - \zeta^2}}\Big),

with arcosh and the root of :math:`\zeta^2 - 1` beyond 1. Impacts last for a time of order
:math:`\sqrt\varepsilon`, and so far is a relaxed robot from a rigid one. Strips of several contacts
meet without harm, as their forces add up.

Two limits: in impacts with friction and rebound in which sliding stops or turns around the result
is not that of an impact law. Where a contact jams, r = 0, there is no relaxation.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from hybridctl.base.checks import (
    Array,
    check_array,
    check_instance,
    check_number,
    check_vector,
)
from hybridctl.base.errors import InputError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import DerivedSystem, HybridSystem
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.modes.mode_expressions import cholesky
from hybridctl.mechanics.system import ContactSystem
from hybridctl.mechanics.terms.expression_terms import RobotConstants
from hybridctl.mechanics.terms.sources import MAX_EXPRESSED_VELOCITIES
from hybridctl.symbolic import SymbolicMode, SymbolicTransition, hybrid_system

_OPEN, _STRIP = "open", "strip"
_GRAVITY = 9.81  # gamma, m/s^2, whatever the robot's own gravity is
_MAX_CONTACTS = 8  # every set of contacts is a mode: 256 of them
_MAX_DAMPING_RATIO, _MIN_DAMPING_RATIO = 1e6, 1e-12  # interval of the search
_CRITICAL_DISTANCE = 1e-9  # |1 - zeta^2| below which damping is critical, where e = exp(-2)

Expression = Any


def relax_contacts(system: ContactSystem, epsilon: float) -> RelaxedContacts:
    """Return the relaxation of a robot with contacts by strips behind their surfaces.

    State and input are those of the robot. Modes are tuples of "open" and "strip", one for each
    contact; guards are "NAME touches" and "NAME leaves". There are no guards of friction, nor
    thresholds of restitution.

    Args:
        system: The robot.
        epsilon: Width of the strips, m.

    Raises:
        InputError: If `system` is no robot with contacts, if `epsilon` is not positive, if the
            robot has no expressions, coordinates that are not added (such as quaternions) or more
            than eight contacts, or if a contact has tangential restitution.
    """
    check_instance("system", system, ContactSystem)
    width = check_number("epsilon", epsilon, above=0.0)
    robot, contacts = system.robot, system.contacts_in_space("relaxation")
    is_small = robot.nv <= MAX_EXPRESSED_VELOCITIES and len(contacts) <= _MAX_CONTACTS
    if not (system.dynamics.has_expressions and is_small and robot.nq == robot.nv):
        raise InputError(
            f"system must have surfaces with expressions, at most {MAX_EXPRESSED_VELOCITIES} "
            f"velocities, as many coordinates as velocities and at most {_MAX_CONTACTS} contacts "
            f"to be relaxed, got {system!r}"
        )
    for contact in contacts:
        if contact.tangential_restitution:
            raise InputError(
                f"tangential_restitution of contact {contact.name!r} must be 0 to be relaxed, as "
                f"strips rub against sliding alone, got {contact.tangential_restitution}"
            )
    motion = _RelaxedMotion(system, width)
    modes, transitions = [], []
    for key in product((_OPEN, _STRIP), repeat=len(contacts)):
        modes.append(motion.build_mode(key))
        for i, contact in enumerate(contacts):
            if key[i] == _STRIP:
                name, guard, other = f"{contact.name} leaves", motion.push[i], _OPEN
            else:
                name, guard, other = f"{contact.name} touches", motion.clearance[i], _STRIP
            after = (*key[:i], other, *key[i + 1 :])
            transitions.append(SymbolicTransition(key, name, guard, after))
    return RelaxedContacts(system, system.wrap_inputs(hybrid_system(modes, transitions)), width)


class RelaxedContacts(DerivedSystem):
    """The relaxation of a robot with contacts; see `relax_contacts`.

    Attributes:
        inner: The robot.
        epsilon: Width of the strips, m.

    Args:
        robot: The robot.
        made: The system of its relaxed modes.
        epsilon: Width of the strips, m.
    """

    inner: ContactSystem

    def __init__(self, robot: ContactSystem, made: HybridSystem, epsilon: float) -> None:
        super().__init__(robot, made.mode, made.outgoing, made.guard_names)
        self.epsilon = epsilon

    def rebuild_on(self, inner: HybridSystem) -> HybridSystem:
        """Return a copy of this relaxation that is built on another robot, with the same epsilon.

        Args:
            inner: The other robot, a `ContactSystem`, such as the same one on which a wrench acts.
        """
        assert isinstance(inner, ContactSystem)  # what `ContactSystem.pushed` returns
        return relax_contacts(inner, self.epsilon)

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """Return the mode in which a state flows on: the strips that the state is in.

        Args:
            x: State (nx,).
            u: Input; it makes no difference.
        """
        above = (_OPEN,) * len(self.inner.contacts)
        mode = self.mode(above)
        state = check_vector("x", x, mode.space.nx)
        clearance = mode.guards(0.0, state, np.zeros(mode.nu))
        return tuple(_OPEN if value > 0.0 else _STRIP for value in clearance.tolist())

    def map_to_system(
        self, key: ModeKey, t: float, y: ArrayLike, u: ArrayLike = ()
    ) -> tuple[ModeKey, Array]:
        """Return mode and state that a state stands for: itself, as nothing jumps.

        The method is that of `Relaxed`, so that both kinds of relaxation are used alike.

        Args:
            key: Key of the mode.
            t: Time, s; it makes no difference.
            y: State in that mode.
            u: Input; it makes no difference.
        """
        return key, check_array("y", y, (None,))


def damping_ratio(restitution: float) -> float:
    """Return the damping ratio zeta with which a spring that cannot pull rebounds.

    Args:
        restitution: Speed after the rebound relative to the speed before, in (0, 1].

    Raises:
        InputError: If the restitution is not in that interval.
    """
    check_number("restitution", restitution, above=0.0, at_most=1.0)
    if restitution == 1.0:
        return 0.0  # outside the interval of the search for the logarithm

    def miss(log_zeta: float) -> float:
        return _compute_log_restitution(float(np.exp(log_zeta))) - float(np.log(restitution))

    ends = np.log(_MIN_DAMPING_RATIO), np.log(_MAX_DAMPING_RATIO)
    return float(np.exp(brentq(miss, *ends, xtol=1e-14)))


def _compute_log_restitution(zeta: float) -> float:
    """Return the logarithm of the restitution of a damping ratio."""
    root = abs(1.0 - zeta**2)
    if root < _CRITICAL_DISTANCE:
        return -2.0
    angle = np.arccos(zeta) if zeta < 1.0 else np.arccosh(zeta)
    return float(-2.0 * zeta * angle / np.sqrt(root))


class _RelaxedMotion:
    """The motion of a robot over its contacts as expressions in x = (q, v) and u.

    Attributes:
        x: Symbol (2 nq, 1) of the state.
        u: Symbol (nu, 1) of the input.
        push: -g - 2 zeta / omega dg/dt (c, 1), m: positive where a surface pushes.
        clearance: Positive (c, 1), m, where a surface does not push: above it, or leaving it.

    Args:
        system: The robot.
        width: Width epsilon of the strips, m.
    """

    def __init__(self, system: ContactSystem, width: float) -> None:
        robot, contacts = system.robot, system.contacts_in_space("relaxation")
        members = ContactSet(robot, contacts)
        c = RobotConstants.of(robot, members)
        self.x, self.u = ca.SX.sym("x", 2 * c.nq), ca.SX.sym("u", c.actuation.shape[1])
        q, self._v = self.x[: c.nq], self.x[c.nq :]
        bodies, self._drive, self._jacobian, rows = c.make_terms(q, self._v, self.u)
        self._divide_by_mass, self._gaps = cholesky(bodies.mass())[0], rows.gaps
        self._tangents, self._contacts = members.tangents, contacts
        self._rates = self._jacobian @ self._v
        least = min(float(np.sqrt(width)), 1.0)
        ratios = [2.0 * damping_ratio(max(contact.restitution, least)) for contact in contacts]
        delay = ca.DM(ratios) * np.sqrt(width / _GRAVITY)  # 2 zeta / omega, s
        normal = self._rates[: len(contacts)]
        self.push = -self._gaps - delay * normal
        self.clearance = self._gaps + delay * ca.fmax(normal, 0.0)
        self._squared_frequency, self._squared_slow_speed = _GRAVITY / width, _GRAVITY * width

    def build_mode(self, key: tuple[str, ...]) -> SymbolicMode:
        """Return the mode in which some contacts are in their strips.

        Args:
            key: "open" or "strip" for each contact.
        """
        forces = ca.SX.zeros(self._jacobian.shape[0], 1)
        for i in (i for i, state in enumerate(key) if state == _STRIP):
            rows = self._tangents[i].tolist()
            slip = ca.reshape(self._rates[rows], len(rows), 1)
            speed = ca.sqrt(ca.sumsqr(slip) + self._squared_slow_speed)
            drag = -self._contacts[i].friction * slip / speed
            row = self._jacobian[i, :]
            response = self._divide_by_mass(row.T + self._jacobian[rows, :].T @ drag)
            forces[i] = self._squared_frequency * self.push[i] / (row @ response)
            forces[rows] = drag * forces[i]
        acceleration = self._divide_by_mass(self._drive + self._jacobian.T @ forces)
        field = ca.vertcat(self._v, acceleration)
        outputs = {
            "gap": self._gaps,
            "normal_force": forces[: len(key)],
            "friction_force": self._select_tangential(forces, key),
            "slip_velocity": self._select_tangential(self._rates, key),
        }
        return SymbolicMode(key, self.x, field, self.u, outputs=outputs)

    def _select_tangential(self, rows: Expression, key: tuple[str, ...]) -> Expression:
        """Return entries (c, 2) along both tangents of each contact, zero where it is open."""
        found = ca.SX.zeros(len(key), 2)
        for i, tangents in enumerate(self._tangents):
            for k, row in enumerate(tangents if key[i] == _STRIP else ()):
                found[i, k] = rows[int(row)]
        return found
