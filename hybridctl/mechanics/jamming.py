r"""Where sliding contacts jam: friction takes away their normal response (Painleve).

The normal forces of a mode and the forces of its sticking contacts are those with
:math:`R m = c`, where C are the rows that are held and F the directions of the forces, friction
of sliding contacts in them,

.. math::
    R = C M^{-1} F, \qquad p = \frac{\det R}{\det C M^{-1} C^T}.

p is 1 without friction and, for one contact that slides along d, :math:`n^T M^{-1} (n - \mu d) /
n^T M^{-1} n`. Forces grow as 1/p. At p = 0 there are none, and for p < 0 none or several
(Genot and Brogliato 1999), so that a mode ends where p falls to `JAMMED`. Of redundant contacts
both determinants vanish; p is then the ratio of the products of as many singular values as G has,
which is zero where friction takes away one more of the motions that forces can make.

Where R is regular p = 1 / det K follows from its factors alone, with

.. math:: K = I - E^T X, \qquad R X = C M^{-1} J^T \Delta,

:math:`\Delta` (r, s) the friction of the s sliding contacts for normal forces of one, and E (m, s)
picking these. X are the multipliers of the motion y that this friction alone would make, C y = 0.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import svd

from hybridctl.checks import Array
from hybridctl.mechanics.equations import Solution
from hybridctl.mechanics.kkt import KKT
from hybridctl.mechanics.multibody_terms import Terms
from hybridctl.mechanics.phase import ContactPhase
from hybridctl.mechanics.tolerances import REGULAR_RESPONSE


def can_jam(phase: ContactPhase) -> bool:
    """Whether friction of sliding contacts acts in this mode."""
    return any(slide.friction > 0.0 for slide in phase.sliding)


def response_ratio(now: Solution) -> float:
    """p of a mode in which contacts can jam."""
    if now.kkt.regularity >= REGULAR_RESPONSE:
        return 1.0 / float(np.linalg.det(_share(now)[0]))
    return _ratio(now.kkt, _without_friction(now))


def response_ratio_derivative(terms: Terms, q: Array, now: Solution, rates_z: Array) -> Array:
    """D p (2 nv,) by (q, v); rates_z (r, 2 nv): derivatives of the rates of all contacts."""
    if now.kkt.regularity < REGULAR_RESPONSE:
        return _ratio_derivative(terms, q, now, rates_z)
    phase, (left, motion, forces) = now.phase, _share(now)
    sliding = [slide.contact for slide in phase.sliding]
    turns = now.turning(np.ones(len(phase.constrained))) @ rates_z[phase.all_rows]
    inverse, change = np.linalg.inv(left), np.zeros(rates_z.shape[1])
    for j, (y, f) in enumerate(zip(motion.T, forces.T, strict=True)):
        d = terms.impulse_derivatives(q, y, phase.scattered(f, len(rates_z)))
        turned = np.zeros_like(turns)
        for s, slide in enumerate(phase.sliding):
            turned[slide.rows] = left[s, j] * turns[slide.rows]
        upper = now.rows.jacobian.T @ turned
        upper[:, : len(y)] -= d.momentum
        lower = np.zeros((len(phase.constrained), rates_z.shape[1]))
        lower[:, : len(y)] = -d.rates[phase.held_rows]
        change += inverse[j] @ now.kkt.solve(upper, lower)[1][sliding]
    return np.asarray(change / np.linalg.det(left))


def _share(now: Solution) -> tuple[Array, Array, Array]:
    """K (s, s), the motions y (nv, s) of friction alone, and all their forces (r, s)."""
    phase = now.phase
    sliding = [slide.contact for slide in phase.sliding]
    friction = now.mix[:, sliding].copy()
    friction[sliding, np.arange(len(sliding))] = 0.0
    none = np.zeros((len(phase.constrained), len(sliding)))
    y, x = now.kkt.solve(-now.rows.jacobian.T @ friction, none)
    return np.eye(len(sliding)) - x[sliding], y, now.mix @ x - friction


def _ratio_derivative(terms: Terms, q: Array, now: Solution, rates_z: Array) -> Array:
    """The derivative D p = p tr(R^+ D R - G^+ D G), with G = C M^-1 C^T."""
    phase, even = now.phase, _without_friction(now)
    held, rank = np.eye(len(phase.owner))[:, phase.constrained], _rank(even)
    change = np.zeros(rates_z.shape[1])
    for kkt, mix, sign in ((now.kkt, now.mix, 1.0), (even, held, -1.0)):
        inverse = _inverse(kkt.response, rank)
        for z, forces, row in zip(kkt.push.T, mix.T, inverse, strict=True):
            d = terms.impulse_derivatives(q, z, phase.scattered(forces, len(rates_z)))
            rates_q = d.rates[phase.all_rows][phase.constrained]
            change[: len(z)] += sign * row @ (rates_q - even.push.T @ d.momentum)
    turning = now.turning(np.ones(len(phase.constrained)))
    turned = _inverse(now.kkt.response, rank) @ even.push.T @ now.rows.jacobian.T @ turning
    own = rates_z[phase.all_rows]
    for slide in phase.spatial:
        change -= turned[slide.contact, slide.rows] @ own[slide.rows]
    return np.asarray(_ratio(now.kkt, even) * change)


def _ratio(kkt: KKT, even: KKT) -> float:
    rank = _rank(even)
    if rank == len(even.response):
        return kkt.determinant / even.determinant
    left, whole = (svd(k.response, compute_uv=False)[:rank] for k in (kkt, even))
    return float(np.prod(left / whole))


def _rank(even: KKT) -> int:
    """How many rows of all that are held are independent."""
    if even.regularity >= REGULAR_RESPONSE:
        return len(even.response)
    values = svd(even.response, compute_uv=False)
    return int((values > REGULAR_RESPONSE * values[0]).sum())


def _inverse(response: Array, rank: int) -> Array:
    """The pseudo-inverse of a response of this rank."""
    u, values, v = svd(response)
    return np.asarray((v[:rank].T / values[:rank]) @ u[:, :rank].T)


def _without_friction(now: Solution) -> KKT:
    held = now.rows.jacobian[now.phase.constrained]
    return KKT(now.rows.mass, held.T, held)
