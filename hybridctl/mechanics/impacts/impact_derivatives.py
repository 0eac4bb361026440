r"""Derivatives of an impact by (q, v-), and its linear pieces on the boundary between states.

`differentiate_impact` differentiates the equations of given states. On the boundary between two
states, stick and slip or taking part and staying out, the impact has a one-sided derivative in
every direction, linear on cones of directions. `find_linear_pieces` returns all of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.mechanics.contact_law.law import (
    CLOSED,
    OPEN,
    SLIP_MINUS,
    SLIP_PLUS,
    SLIPS,
    STICK,
    Modes,
)
from hybridctl.mechanics.impacts.impact import (
    SEPARATION_SPEED,
    ImpactResult,
    LinearisedImpact,
)
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.phase import ContactPhase, select_slip_mode
from hybridctl.mechanics.modes.tolerances import NO_DIRECTION, STANDSTILL

ExplicitChanges: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""Function of z (nv,) and forces (r,), see `_find_open_change`; returns (nv, n) and (k, n)."""


@dataclass(frozen=True)
class ImpactDerivatives:
    """Derivatives of an impact by z = (q, v-), in tangent coordinates.

    Attributes:
        states: State that each contact keeps.
        velocity_z: Of the velocity after the impact (nv, 2 nv).
        impulses_z: Of the normal impulses of all contacts (c, 2 nv).
        friction_impulses_z: Of the tangential impulses (c, 2, 2 nv).
    """

    states: Modes
    velocity_z: Array
    impulses_z: Array
    friction_impulses_z: Array


def differentiate_impact(
    dynamics: ContactDynamics, q: Array, v: Array, result: ImpactResult, states: Modes | None = None
) -> ImpactDerivatives:
    """Return the derivatives of `impact` at its result, while every contact keeps its state.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        v: Velocity (nv,) before the impact.
        result: The impact.
        states: State of each contact; None for `ImpactResult.perturbed_states`. On a boundary there
            are others (see `find_linear_pieces`).
    """
    nv, count = dynamics.robot.nv, len(dynamics.contacts)
    states = result.perturbed_states if states is None else states
    impulses_z, friction_z = np.zeros((count, 2 * nv)), np.zeros((count, 2, 2 * nv))
    phase = dynamics.phase(states)
    if not phase.closed:
        velocity_z = np.eye(nv, 2 * nv, nv)
    else:
        closed, size = list(phase.closed), len(dynamics.contact_set.owner)
        mass, rows = result.terms.mass, result.terms.jacobian[phase.all_rows]
        equations, e = result.linearise(phase), result.restitution[phase.all_rows, None]
        impulses = equations.impulses
        change = result.velocity_after - v
        d = dynamics.terms.impulse_derivatives(q, change, phase.scatter_rows(impulses, size))
        change_q, momentum_q = d.rates[phase.all_rows], d.momentum.copy()
        before_q = dynamics.terms.impulse_derivatives(q, v, np.zeros(size)).rates[phase.all_rows]
        xi_z = np.concatenate((change_q + before_q + e * before_q, e * rows), axis=1)  # at fixed v+

        def explicit(z: Array, forces: Array) -> tuple[Array, Array]:
            d = dynamics.terms.impulse_derivatives(q, z, phase.scatter_rows(forces, size))
            by_q = d.rates[phase.all_rows]
            momentum = d.momentum + rows.T @ equations.turning @ by_q
            tilted = equations.mix.T @ by_q
            return (
                np.hstack([momentum, np.zeros((nv, nv))]),
                np.hstack([tilted, np.zeros_like(tilted)]),
            )

        upper = np.concatenate((-momentum_q, mass), axis=1)
        velocity_z, m_z, xi_z = solve_impact_changes(
            phase, result, equations, upper, xi_z, explicit
        )
        rows_z = equations.mix @ m_z - equations.turning @ xi_z
        impulses_z[closed], friction_z[closed] = phase.split_rows(rows_z)
    return ImpactDerivatives(states, velocity_z, impulses_z, friction_z)


def solve_impact_changes(
    phase: ContactPhase,
    result: ImpactResult,
    equations: LinearisedImpact,
    upper: Array,
    xi: Array,
    explicit: ExplicitChanges,
) -> tuple[Array, Array, Array]:
    """Return changes of velocity, multipliers and xi, by explicit changes of the equations.

    Args:
        phase: The states of the contacts.
        result: The impact.
        equations: Its equations, linearised in these states.
        upper: Changes (nv, n) of J^T Lambda - M (v+ - v-) at fixed v+ and impulses.
        xi: Changes (r, n) of xi at fixed v+.
        explicit: Explicit changes of the conditions of least norm, see `_find_open_change`. It is
            called only for redundant contacts.

    Returns:
        Changes of v+ (nv, n), of the multipliers (k, n), and of xi (r, n).
    """
    rows = result.terms.jacobian[phase.all_rows]
    dv, dm = equations.system.solve(upper - rows.T @ equations.turning @ xi, -equations.select @ xi)
    xi = xi + rows @ dv
    if not equations.system.redundant:
        return dv, dm, xi
    open_dv, open_dm = _find_open_change(phase, result, equations, xi, dm, explicit)
    return dv + open_dv, dm + open_dm, xi + rows @ open_dv


def _find_open_change(
    phase: ContactPhase,
    result: ImpactResult,
    equations: LinearisedImpact,
    xi: Array,
    m: Array,
    explicit: ExplicitChanges,
) -> tuple[Array, Array]:
    """Return changes of velocity and multipliers within what the equations leave open.

    With the multipliers m = W E' f, G' y = W^-1 m and z = A^-1 C' y, impulses are of least norm
    where W^-1 m - E' J z is zero along the null space N, G N = 0. What the equations leave open,
    N alpha, changes velocities by V alpha, V = A^-1 J' E N. So alpha is determined by

        N' (W^-1 dm - D(E' J) z) + V' (D(A) z - D(C') y) = 0.

    Args:
        phase: The states of the contacts.
        result: The impact.
        equations: Its equations, linearised in these states.
        xi: Changes (r, n) of xi at alpha = 0.
        m: Changes (k, n) of the multipliers at alpha = 0.
        explicit: For z and the forces S' y - K J z (r,), where S selects C from J, returns the
            changes of A z - C' y (nv, n) and of E' J z - W^-1 m (k, n) at fixed xi, m, z and y.
    """
    rows = result.terms.jacobian[phase.all_rows]
    distribution = equations.system.distribution
    adjoint = distribution.adjoint(distribution.weights * (equations.mix.T @ equations.impulses))
    pull = equations.select.T @ adjoint
    z = equations.system.solve_mass(rows.T @ pull)
    open_m = distribution.null
    open_v = equations.system.push @ open_m
    along, open_xi = rows @ z, rows @ open_v
    # The change (d, n + d) of the equation by the given changes of xi and m, and by alpha.
    all_m = np.hstack((m, open_m))
    bent, tilted = _differentiate_turning(phase, equations, along, np.hstack((xi, open_xi)), all_m)
    changes = open_m.T @ (all_m / distribution.weights[:, None] - tilted) + open_xi.T @ bent
    bent, tilted = explicit(z, pull - equations.turning @ along)
    residual = changes[:, : m.shape[1]] + open_v.T @ bent - open_m.T @ tilted
    alpha = -np.linalg.solve(changes[:, m.shape[1] :], residual)
    return open_v @ alpha, open_m @ alpha


def _differentiate_turning(
    phase: ContactPhase, equations: LinearisedImpact, w: Array, xi: Array, m: Array
) -> tuple[Array, Array]:
    """Return how K w and E' w change as sliding directions turn and normal impulses change.

    Args:
        phase: The states of the contacts.
        equations: The equations of the impact, linearised in these states.
        w: Fixed vector (r,).
        xi: Changes (r, n) of xi.
        m: Changes (k, n) of the multipliers.

    Returns:
        Changes (r, n) of K w and (k, n) of E' w.
    """
    bent, tilted = np.zeros_like(xi), np.zeros_like(m)
    speeds = np.hypot(*equations.rates[phase.spatial_rows].T)
    moving = np.flatnonzero(speeds > NO_DIRECTION)
    if not len(moving):
        return bent, tilted  # K is zero there, see `ContactPhase.compute_turning`
    # All moving contacts c at once: s, w_t and mu (c,), changes of xi_t (c, 2, n).
    contacts = np.array(phase.spatial_contacts)[moving]
    at, mu, speed = phase.spatial_rows[moving], phase.spatial_friction[moving], speeds[moving]
    s = np.array([equations.directions[place] for place in contacts.tolist()])
    slip, along = xi[at], w[at]
    slip_s, along_s = np.einsum("ci,cin->cn", s, slip), np.einsum("ci,ci->c", s, along)
    turn = (slip - s[:, :, None] * slip_s[:, None]) / speed[:, None, None]
    along_turn = np.einsum("ci,cin->cn", along, turn)
    tilted[contacts] = -mu[:, None] * along_turn
    load = mu * equations.impulses[contacts] / speed
    growth = ((mu / speed)[:, None] * m[contacts]) - (load / speed)[:, None] * slip_s
    across = along - s * along_s[:, None]
    bent[at] = (
        across[:, :, None] * growth[:, None]
        - (load * along_s)[:, None, None] * turn
        - (load[:, None] * s)[:, :, None] * along_turn[:, None]
    )
    return bent, tilted


@dataclass(frozen=True)
class ImpactPiece:
    """One linear piece of the derivative of an impact, by z = (q, v-).

    The piece holds for perturbations z with slack @ z >= 0 and, for each of the cones, with
    |rows[1:] @ z| <= mu rows[0] @ z.

    Attributes:
        derivatives: The derivatives.
        slack: Rows (m, 2 nv).
        cones: Pairs of mu and rows (3, 2 nv), one for each contact that only just touches and
            sticks: its normal impulse, then its friction.
    """

    derivatives: ImpactDerivatives
    slack: Array
    cones: tuple[tuple[float, Array], ...]


def find_linear_pieces(
    dynamics: ContactDynamics, q: Array, v: Array, result: ImpactResult
) -> tuple[ImpactPiece, ...]:
    """Return all linear pieces of the derivative of an impact; one off all boundaries.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        v: Velocity (nv,) before the impact.
        result: The impact.

    Raises:
        InputError: If a contact that can slide in a surface touches with neither impulse nor
            sliding velocity: the derivative is not piecewise linear there.
    """
    choices = [
        _list_neighbouring_states(dynamics, result, i) if i in result.border else (state,)
        for i, state in enumerate(result.states)
    ]
    pieces = []
    for states in product(*choices):
        derivatives = differentiate_impact(dynamics, q, v, result, states)
        slack, cones = _make_piece_conditions(dynamics, q, v, result, derivatives)
        pieces.append(ImpactPiece(derivatives, slack, cones))
    return tuple(pieces)


def _has_impulse(result: ImpactResult, i: int) -> bool:
    """Return whether the normal impulse of contact i is more than rounding."""
    return bool(result.impulses[i] > SEPARATION_SPEED * max(1.0, float(result.impulses.max())))


def _list_neighbouring_states(dynamics: ContactDynamics, result: ImpactResult, i: int) -> Modes:
    """Return the states that contact i, which is on a boundary, may take.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        result: The impact.
        i: The contact.

    Raises:
        InputError: See `find_linear_pieces`.
    """
    if not dynamics.contacts[i].rough:
        return (OPEN, CLOSED)
    tangents = dynamics.contact_set.tangents[i]
    slip = result.law_rates[tangents]
    friction = result.friction_impulses[i, : len(tangents)]
    if np.linalg.norm(slip) > STANDSTILL:
        return (OPEN, select_slip_mode(len(slip), slip))
    if _has_impulse(result, i):
        return (STICK, select_slip_mode(len(slip), -friction))
    if len(slip) == 1:
        return (OPEN, STICK, SLIP_PLUS, SLIP_MINUS)
    raise InputError(
        f"contact {dynamics.contacts[i].name!r} touches without impulse or sliding velocity: "
        "the derivative of the impact is not piecewise linear there"
    )


def _make_piece_conditions(
    dynamics: ContactDynamics,
    q: Array,
    v: Array,
    result: ImpactResult,
    derivatives: ImpactDerivatives,
) -> tuple[Array, tuple[tuple[float, Array], ...]]:
    """Return slack and cones of a piece, see `ImpactPiece`.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        v: Velocity (nv,) before the impact.
        result: The impact.
        derivatives: Its derivatives in the states of the piece.
    """
    nv, rows = dynamics.robot.nv, result.terms.jacobian
    no_impulses = np.zeros(len(rows))
    before_q = dynamics.terms.impulse_derivatives(q, v, no_impulses).rates.copy()
    after_q = dynamics.terms.impulse_derivatives(q, result.velocity_after, no_impulses).rates
    rates_z = np.hstack([after_q, np.zeros_like(after_q)]) + rows @ derivatives.velocity_z
    rates_z += result.restitution[:, None] * np.hstack([before_q, rows])
    normal_z, friction_z = derivatives.impulses_z, derivatives.friction_impulses_z
    slack, cones = [], []
    for i in result.border:
        state, mu = derivatives.states[i], dynamics.friction[i]
        tangents = dynamics.contact_set.tangents[i]
        has_impulse = _has_impulse(result, i)
        if state == OPEN:
            slack.append(rates_z[i])
        elif not has_impulse:
            slack.append(normal_z[i])
        if state == STICK and has_impulse:
            direction = result.friction_impulses[i] / np.linalg.norm(result.friction_impulses[i])
            slack.append(mu * normal_z[i] - direction @ friction_z[i])
        elif state == STICK:
            cones.append((float(mu), np.vstack([normal_z[i], friction_z[i]])))
        elif state in SLIPS and np.linalg.norm(result.law_rates[tangents]) <= STANDSTILL:
            s = np.array([SLIPS[state]]) if len(tangents) == 1 else None
            if s is None:
                against = -result.friction_impulses[i]
                s = against / np.linalg.norm(against)
            slack.append(s @ rates_z[tangents])
    return np.array(slack).reshape(len(slack), 2 * nv), tuple(cones)
