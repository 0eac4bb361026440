r"""The places where sliding contacts jam: friction takes away their normal response (Painleve).

The normal forces of a mode and the forces of its sticking contacts are those with
:math:`R m = c`, where C are the rows that are held and F the directions of the forces, friction
of sliding contacts in them,

.. math::
    R = C M^{-1} F, \qquad p = \frac{\det R}{\det C M^{-1} C^T}.

p is 1 without friction and, for one contact that slides along d, :math:`n^T M^{-1} (n - \mu d) /
n^T M^{-1} n`. Forces grow as 1/p. At p = 0 there are none, and for p < 0 none or several
(Genot and Brogliato 1999), so that a mode ends where p falls to `JAMMED`. Of redundant contacts
both determinants vanish; p is then the ratio of the products of as many singular values as
:math:`G = C M^{-1} C^T` has, which is zero where friction takes away one more of the motions that
forces can make.

The friction :math:`\Delta` (r, s) of the s sliding contacts for normal forces of one makes motions
that forces X (m, s) of G hold, G X = C M^-1 J^T Delta, so that :math:`R = G (I + X E^T)`, with E
(m, s) picking the normal forces of these contacts. Only the range of G matters, with projector P:

.. math::
    p^2 = \det T, \quad T = \begin{bmatrix} I + E^T X & E^T P E - I \\
    X^T X & I + X^T E \end{bmatrix}, \qquad p = \det(I + E^T X) \text{ where } P = I.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.constrained.equations import Solution
from hybridctl.mechanics.constrained.phase import ContactPhase
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.terms.contact_terms import Terms


def can_jam(phase: ContactPhase) -> bool:
    """Whether friction of sliding contacts acts in this mode."""
    slides = {slide.contact for slide in phase.sliding if slide.friction > 0.0}
    return not slides.issubset(phase.pressed.tolist())  # constant forces do not grow


class _Response(NamedTuple):
    """The equations without sliding friction, X (m, s), its motions (nv, s), all forces (r, s).

    picks: E (m, s); lost: (I - P) E (m, s); ratio: p; matrix: T (2 s, 2 s).
    """

    even: KKT
    held: Array
    motions: Array
    forces: Array
    picks: Array
    lost: Array
    ratio: float
    matrix: Array


def response_ratio(now: Solution) -> float:
    """The response ratio p of a mode in which contacts can jam.

    It is zero where friction takes away one more of the motions that forces can make.
    """
    even = now.kkt.without_sliding_friction()
    if even.redundant and even.rank > now.kkt.rank:
        return 0.0
    return now.kkt.determinant / even.determinant


def response_ratio_derivative(terms: Terms, q: Array, now: Solution, rates_z: Array) -> Array:
    r"""The derivative (2 nv,) of p by (q, v); rates_z (r, 2 nv): those of all contacts' rates.

    With the blocks U of T^-1 it is p / 2 tr(W^T D X + ...), W = E (U_11^T + U_22) + X (U_12 +
    U_12^T), where forces of least norm turn with the range of G,

    .. math:: D X = G^+ (D B - D G\, X) + (I - P)\, D C\, M^{-1} C^T G^+ X,

    and :math:`E^T D P E` is :math:`E^T (I - P)\, D C\, M^{-1} C^T G^+ E` and its transpose.
    """
    at, phase = _response(now), now.phase
    even, x, s, nv = at.even, at.held, at.held.shape[1], len(at.motions)
    inverse = np.linalg.inv(at.matrix)
    by_own = inverse[:s, :s].T + inverse[s:, s:]
    across, turning = inverse[:s, s:], inverse[s:, :s]
    adjoint = even.forces(at.picks @ by_own + x @ (across + across.T))
    moved = even.push @ adjoint
    slips = now.rows.jacobian @ moved
    turned = [slips[slide.rows, j] for j, slide in enumerate(phase.sliding)]
    rows = np.concatenate([slide.rows for slide in phase.sliding])
    turns = now.turning(np.ones(len(phase.constrained)))[rows] @ rates_z[phase.all_rows]
    change = -np.concatenate(turned) @ turns
    motions, forces, moves = at.motions, at.forces, moved
    if even.redundant:
        pull = even.push @ even.forces(x @ by_own.T + at.picks @ (turning + turning.T))
        free = min(len(at.lost) - even.rank, s)
        lost, sizes, shares = np.linalg.svd(at.lost, full_matrices=False)
        motions = np.hstack((motions, np.zeros((nv, free))))
        forces = np.hstack((forces, phase.along_rows(lost[:, :free])))
        moves = np.hstack((moves, -(pull @ shares.T * sizes)[:, :free]))
    count = len(rates_z)
    along = np.zeros((count, motions.shape[1]))
    along[phase.held_rows, :s] = adjoint
    loads = phase.scattered(forces, count)
    change[:nv] += terms.impulse_gradient(q, motions.T, loads.T, moves.T, along.T)
    return np.asarray(0.5 * at.ratio * change)


def _response(now: Solution) -> _Response:
    phase, sliding = now.phase, [slide.contact for slide in now.phase.sliding]
    friction: Array = now.mix[:, sliding].copy()  # Delta
    friction[sliding, range(len(sliding))] = 0.0
    constraint = now.rows.jacobian[phase.constrained]
    soft = now.rows.soft(phase.constrained)
    even = KKT(now.rows.mass, constraint, redundant=phase.redundant, compliance=soft)
    picks = np.eye(len(constraint))[:, sliding]
    motions, x = even.solve(-now.rows.jacobian.T @ friction, np.zeros_like(picks))
    own, one = x[sliding], np.eye(len(sliding))
    lost = np.zeros_like(picks)
    if even.redundant:
        lost = picks - even.forces(even.delassus[:, sliding])
    above, below = np.hstack((one + own, -lost[sliding])), np.hstack((x.T @ x, one + own.T))
    matrix = np.vstack((above, below))
    det = np.linalg.det
    ratio = np.sqrt(max(det(matrix), 0.0)) if even.redundant else det(one + own)
    forces = phase.along_rows(x) - friction
    return _Response(even, x, motions, forces, picks, lost, float(ratio), matrix)
