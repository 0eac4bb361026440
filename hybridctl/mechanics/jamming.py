r"""Where sliding contacts jam: friction takes away their normal response (Painleve).

The normal forces of a mode and the forces of its sticking contacts are those with
:math:`R m = c`, where C are the rows that are held and F the directions of the forces, friction
of sliding contacts in them,

.. math::
    R = C M^{-1} F, \qquad p = \frac{\det R}{\det C M^{-1} C^T}.

p is 1 without friction and, for one contact that slides along d, :math:`n^T M^{-1} (n - \mu d) /
n^T M^{-1} n`. Forces grow as 1/p. At p = 0 there are none, and for p < 0 none or several
(Genot and Brogliato 1999), so that a mode ends where p falls to `JAMMED`. Of redundant contacts
both determinants vanish: p is 1 there, which leaves them to the law that is solved at events.
"""

from __future__ import annotations

import numpy as np

from hybridctl.checks import Array
from hybridctl.mechanics.equations import Solution
from hybridctl.mechanics.kkt import KKT
from hybridctl.mechanics.phase import Phase
from hybridctl.mechanics.terms import Terms
from hybridctl.mechanics.tolerances import REGULAR_RESPONSE


def can_jam(phase: Phase) -> bool:
    """Whether friction of sliding contacts acts in this mode."""
    return any(slide.friction > 0.0 for slide in phase.sliding)


def response_ratio(now: Solution) -> float:
    """p of a mode in which contacts can jam."""
    even = _without_friction(now)
    return 1.0 if even.regularity < REGULAR_RESPONSE else now.kkt.determinant / even.determinant


def response_ratio_derivative(terms: Terms, q: Array, now: Solution, rates_z: Array) -> Array:
    """D p (2 nv,) by (q, v), from D p = p tr(R^-1 D R - G^-1 D G) with G = C M^-1 C^T.

    rates_z (r, 2 nv): derivatives of the sliding velocities of all contacts.
    """
    phase, even = now.phase, _without_friction(now)
    if even.regularity < REGULAR_RESPONSE:
        return np.zeros(rates_z.shape[1])
    held = np.eye(len(phase.owner))[:, phase.constrained]
    change = np.zeros(rates_z.shape[1])
    for kkt, mix, sign in ((now.kkt, now.mix, 1.0), (even, held, -1.0)):
        inverse = np.linalg.inv(kkt.response)
        for z, forces, row in zip(kkt.push.T, mix.T, inverse, strict=True):
            d = terms.impulse_derivatives(q, z, phase.scattered(forces, len(rates_z)))
            rates_q = d.rates[phase.all_rows][phase.constrained]
            change[: len(z)] += sign * row @ (rates_q - even.push.T @ d.momentum)
    turning = now.turning(np.ones(len(phase.constrained)))
    turned = np.linalg.solve(now.kkt.response, even.push.T @ now.rows.jacobian.T @ turning)
    own = rates_z[phase.all_rows]
    for slide in phase.spatial:
        change -= turned[slide.contact, slide.rows] @ own[slide.rows]
    return np.asarray(now.kkt.determinant / even.determinant * change)


def _without_friction(now: Solution) -> KKT:
    held = now.rows.jacobian[now.phase.constrained]
    return KKT(now.rows.mass, held.T, held)
