"""The guards of a mode of a contact system, evaluated together; see `system` for their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.mode import GuardJacobian, GuardSet
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.coulomb.law import OPEN, SLIPS, STICK, Modes
from hybridctl.mechanics.dynamics import ContactAcceleration, ContactDynamics
from hybridctl.mechanics.phase import STOPPED


class _Guard(NamedTuple):
    """One guard: contact, event, and the sign of the direction (0 in a surface)."""

    contact: int
    event: str
    sign: float = 0.0


def contact_guards(dynamics: ContactDynamics, modes: Modes) -> GuardSet:
    """All guards of a mode, with their exact derivatives."""
    guards = list(_guards(dynamics, modes))
    names = tuple(f"{dynamics.contacts[g.contact].name} {g.event}" for g in guards)
    n = dynamics.robot.nq
    flying, some_open = all(mode == OPEN for mode in modes), OPEN in modes
    sliding = any(mode in SLIPS for mode in modes)
    none = np.zeros(len(modes))

    def values(t: float, x: Array, u: Array) -> Array:
        q, v = x[:n], x[n:]
        if flying:
            return dynamics.gaps(q)
        gaps = dynamics.gaps(q) if some_open else none
        now = dynamics.acceleration(q, v, u, modes)
        return np.array([_value(dynamics, g, gaps, now) for g in guards])

    def jacobian(t: float, x: Array, u: Array) -> GuardJacobian:
        q, v = x[:n], x[n:]
        nv = len(v)
        gap_z = np.zeros((len(modes), 2 * nv + len(u)))
        if some_open:
            gap_z[:, :nv] = dynamics.gap_jacobian(q)
        if flying:
            return GuardJacobian(np.zeros(len(modes)), gap_z[:, : 2 * nv], gap_z[:, 2 * nv :])
        d = dynamics.acceleration_derivatives(q, v, u, modes)
        force_z = np.hstack([d.forces_q, d.forces_v, d.forces_u])
        friction_z = np.concatenate([d.friction_q, d.friction_v, d.friction_u], axis=2)
        friction = dynamics.acceleration(q, v, u, modes).friction
        slip, slip_z = np.zeros_like(friction), np.zeros_like(friction_z)
        if sliding:
            slip, slip_z = _slip_derivatives(dynamics, q, v, len(u))
        z = _rows(dynamics, guards, slip, friction, _Terms(gap_z, slip_z, force_z, friction_z))
        return GuardJacobian(np.zeros(len(z)), z[:, : 2 * nv], z[:, 2 * nv :])

    return GuardSet(names, values, jacobian)


def closing_guards(contacts: Sequence[Contact]) -> tuple[str, ...]:
    """The guards at which contacts close: their gaps, in m."""
    return tuple(f"{contact.name} closes" for contact in contacts)


def guard_parameter_derivatives(
    dynamics: ContactDynamics,
    modes: Modes,
    now: ContactAcceleration,
    forces_p: Array,
    friction_p: Array,
    static_p: Array,
) -> Array:
    """D_p g (n, np) of all guards of a mode, for parameters that leave kinematics alone.

    now: forces at the point; forces_p (c, np), friction_p (c, 2, np) their derivatives, static_p
    (c, np) those of the static coefficients of friction.
    """
    guards = list(_guards(dynamics, modes))
    terms = _Terms(np.zeros_like(forces_p), np.zeros_like(friction_p), forces_p, friction_p)
    rows = _rows(dynamics, guards, now.slip, now.friction, terms)
    for row, g in zip(rows, guards, strict=True):
        if g.event.startswith("slips"):
            row += static_p[g.contact] * now.forces[g.contact]
    return rows


class _Terms(NamedTuple):
    """Derivatives of gaps (c, .), slip (c, 2, .), normal forces (c, .) and friction (c, 2, .)."""

    gap: Array
    slip: Array
    force: Array
    friction: Array


def _rows(
    dynamics: ContactDynamics, guards: list[_Guard], slip: Array, friction: Array, d: _Terms
) -> Array:
    """Derivatives (n, .) of guards at sliding velocities and friction forces (c, 2)."""
    rows = np.zeros((len(guards), d.gap.shape[1]))
    for row, g in zip(rows, guards, strict=True):
        i = g.contact
        if g.event == "closes":
            row[:] = d.gap[i]
        elif g.event == "opens":
            row[:] = d.force[i]
        elif g.event == "sticks":
            row[:] = _along(g, slip[i]) @ d.slip[i]
        else:
            limit = dynamics.static_friction[i] * d.force[i]
            row[:] = limit - _along(g, friction[i], -1.0) @ d.friction[i]
    return rows


def _guards(dynamics: ContactDynamics, modes: Modes) -> Iterator[_Guard]:
    for i, mode in enumerate(modes):
        if mode == OPEN:
            yield _Guard(i, "closes")
            continue
        yield _Guard(i, "opens")
        if mode == STICK and len(dynamics.all.tangents[i]) == 1:
            yield _Guard(i, "slips+", 1.0)
            yield _Guard(i, "slips-", -1.0)
        elif mode == STICK:
            yield _Guard(i, "slips")
        elif mode in SLIPS:
            yield _Guard(i, "sticks", SLIPS[mode])


def _value(dynamics: ContactDynamics, g: _Guard, gaps: Array, now: ContactAcceleration) -> float:
    i = g.contact
    if g.event == "closes":
        return float(gaps[i])
    if g.event == "opens":
        return float(now.forces[i])
    if g.event == "sticks":
        return float(g.sign * now.slip[i, 0] if g.sign else np.hypot(*now.slip[i]) - STOPPED)
    pull = -g.sign * now.friction[i, 0] if g.sign else np.hypot(*now.friction[i])
    return float(dynamics.static_friction[i] * now.forces[i] - pull)


def _along(g: _Guard, vector: Array, side: float = 1.0) -> Array:
    """The unit direction (2,) in which a guard looks at sliding velocity or friction."""
    if g.sign:
        return np.array([side * g.sign, 0.0])
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0.0 else np.zeros(2)


def _slip_derivatives(
    dynamics: ContactDynamics, q: Array, v: Array, nu: int
) -> tuple[Array, Array]:
    """Sliding velocities (c, 2) and their derivatives by (q, v, u): (c, 2, 2 nv + nu)."""
    contacts, nv = dynamics.all, dynamics.robot.nv
    d = contacts.derivatives(q, v, np.zeros(nv))
    count = len(dynamics.contacts)
    slip, slip_z = np.zeros((count, 2)), np.zeros((count, 2, 2 * nv + nu))
    for i, tangents in enumerate(contacts.tangents):
        m = len(tangents)
        slip[i, :m] = d.rate[tangents]
        slip_z[i, :m, : 2 * nv] = np.hstack([d.rate_q[tangents], d.jacobian[tangents]])
    return slip, slip_z
