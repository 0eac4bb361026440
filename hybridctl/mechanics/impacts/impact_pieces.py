"""The derivative of an impact at the border between states of its contacts: its linear pieces."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.mechanics.constrained.phase import default_slip
from hybridctl.mechanics.constrained.tolerances import STANDSTILL
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
    ImpactDerivatives,
    ImpactResult,
    impact_derivatives,
)
from hybridctl.mechanics.modes.dynamics import ContactDynamics


@dataclass(frozen=True)
class ImpactPiece:
    """One linear piece of the first-order change of an impact at a border between states.

    `slack` (m, 2 nv): it holds for perturbations z = (dq, dv) with slack @ z >= 0, and, for a
    contact that only just touches and does not slide, with friction inside its cone.
    """

    derivatives: ImpactDerivatives
    slack: Array
    cones: tuple[tuple[float, Array], ...]


def impact_pieces(
    dynamics: ContactDynamics, q: Array, v: Array, result: ImpactResult
) -> tuple[ImpactPiece, ...]:
    """All linear pieces of the derivative of an impact; one where no contact is at a border.

    Between stick and slip, and between taking part and staying out, the impact has a one-sided
    derivative in every direction, linear on cones. Raises `InputError` in the one case that is
    not piecewise linear: a contact that slides in a surface from rest without an impulse.
    """
    choices = [
        _alternatives(dynamics, result, i) if i in result.border else (state,)
        for i, state in enumerate(result.states)
    ]
    pieces = []
    for states in product(*choices):
        d = impact_derivatives(dynamics, q, v, result, states)
        slack, cones = _slack(dynamics, q, v, result, d)
        pieces.append(ImpactPiece(d, slack, cones))
    return tuple(pieces)


def _alternatives(dynamics: ContactDynamics, result: ImpactResult, i: int) -> Modes:
    """The states that a contact at a border may take."""
    if not dynamics.contacts[i].rough:
        return (OPEN, CLOSED)
    tangents = dynamics.all.tangents[i]
    slip = result.law_rates[tangents]
    friction = result.friction_impulses[i, : len(tangents)]
    moves = np.linalg.norm(slip) > STANDSTILL
    if moves:
        return (OPEN, default_slip(len(slip), slip))
    if result.impulses[i] > SEPARATION_SPEED * max(1.0, float(result.impulses.max())):
        return (STICK, default_slip(len(slip), -friction))
    if len(slip) == 1:
        return (OPEN, STICK, SLIP_PLUS, SLIP_MINUS)
    raise InputError(
        f"contact {dynamics.contacts[i].name!r} touches without impulse or sliding velocity: "
        "the derivative of the impact is not piecewise linear there"
    )


def _slack(
    dynamics: ContactDynamics, q: Array, v: Array, result: ImpactResult, d: ImpactDerivatives
) -> tuple[Array, tuple[tuple[float, Array], ...]]:
    """What must not decrease for a piece to hold, and cones that its friction must not leave."""
    nv, rows = dynamics.robot.nv, result.terms.jacobian
    nothing = np.zeros(len(rows))
    before_q = dynamics.terms.impulse_derivatives(q, v, nothing).rates.copy()
    after_q = dynamics.terms.impulse_derivatives(q, result.velocity_after, nothing).rates
    rates_z = np.hstack([after_q, np.zeros_like(after_q)]) + rows @ d.velocity_z
    rates_z += result.restitution[:, None] * np.hstack([before_q, rows])
    normal_z, friction_z = d.impulses_z, d.friction_impulses_z
    slack, cones = [], []
    for i in result.border:
        state, mu, tangents = d.states[i], dynamics.friction[i], dynamics.all.tangents[i]
        pressed = result.impulses[i] > SEPARATION_SPEED * max(1.0, float(result.impulses.max()))
        if state == OPEN:
            slack.append(rates_z[i])
        elif not pressed:
            slack.append(normal_z[i])
        if state == STICK and pressed:
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
