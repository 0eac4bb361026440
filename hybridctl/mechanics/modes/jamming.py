r"""The places where sliding contacts jam: friction takes away their normal response (Painleve).

The normal forces of a mode and the forces of its sticking contacts are those with
:math:`R m = c`, where C are the constrained rows and F the directions of the forces, friction
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
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.modes.constraint_equations import Solution
from hybridctl.mechanics.modes.phase import ContactPhase
from hybridctl.mechanics.terms.contact_terms import Terms


def has_sliding_friction(phase: ContactPhase) -> bool:
    """Return whether friction of sliding contacts grows with their normal forces in this mode.

    Dry friction of joints does not: it is pressed by a constant force.
    """
    slides = {slide.contact for slide in phase.sliding if slide.friction > 0.0}
    return not slides.issubset(phase.pressed_places.tolist())


class _Response(NamedTuple):
    """What the ratio and its derivative are made of, for s sliding contacts.

    Attributes:
        even: The equations without sliding friction, whose Delassus matrix is G.
        multipliers: X (m, s).
        motions: Motions (nv, s) of X against the friction Delta.
        forces: Forces (r, s) of X, less Delta, along all rows.
        picks: E (m, s).
        lost: (I - P) E (m, s).
        ratio: p.
        matrix: T (2 s, 2 s).
    """

    even: KKT
    multipliers: Array
    motions: Array
    forces: Array
    picks: Array
    lost: Array
    ratio: float
    matrix: Array


def compute_response_ratio(solution: Solution) -> float:
    """Return the response ratio p of a mode in which contacts can jam.

    It is zero where friction takes away one more of the motions that forces can make.

    Args:
        solution: The equations of the mode at a point.
    """
    even = solution.kkt.without_sliding_friction()
    # `even` counts as redundant wherever the equations do, also where friction alone makes these
    # singular: then the ranks differ.
    if even.redundant and even.rank > solution.kkt.rank:
        return 0.0
    return solution.kkt.determinant / even.determinant


def differentiate_response_ratio(
    terms: Terms, q: Array, solution: Solution, rates_z: Array
) -> Array:
    r"""Return the derivative (2 nv,) of p by (q, v).

    With the blocks U of T^-1 it is p / 2 tr(W^T D X + ...), W = E (U_11^T + U_22) + X (U_12 +
    U_12^T), where forces of least norm turn with the range of G,

    .. math:: D X = G^+ (D B - D G\, X) + (I - P)\, D C\, M^{-1} C^T G^+ X,

    and :math:`E^T D P E` is :math:`E^T (I - P)\, D C\, M^{-1} C^T G^+ E` and its transpose.

    Args:
        terms: Terms of the robot with its contacts.
        q: Configuration (nq,).
        solution: The equations of the mode there.
        rates_z: Derivatives (r, 2 nv) of the rates of the rows of all contacts.
    """
    nv = rates_z.shape[1] // 2
    # All contacts that are to slide are held at a standstill: p is 1 as long as they are.
    if not solution.phase.sliding:
        return np.zeros(2 * nv)
    response, phase = _compute_response(solution), solution.phase
    even, x = response.even, response.multipliers
    s = x.shape[1]
    inverse = np.linalg.inv(response.matrix)
    by_own = inverse[:s, :s].T + inverse[s:, s:]
    across, turning = inverse[:s, s:], inverse[s:, :s]
    adjoint = even.forces(response.picks @ by_own + x @ (across + across.T))
    moved = even.push @ adjoint
    slips = solution.rows.jacobian @ moved
    turned = [slips[slide.rows, j] for j, slide in enumerate(phase.sliding)]
    rows = np.concatenate([slide.rows for slide in phase.sliding])
    unit_turning = solution.compute_turning(np.ones(len(phase.constrained)))
    turns = unit_turning[rows] @ rates_z[phase.all_rows]
    change = -np.concatenate(turned) @ turns
    motions, forces, moves = response.motions, response.forces, moved
    if even.redundant:
        pull = even.push @ even.forces(x @ by_own.T + response.picks @ (turning + turning.T))
        free = min(len(response.lost) - even.rank, s)
        lost, sizes, shares = np.linalg.svd(response.lost, full_matrices=False)
        motions = np.hstack((motions, np.zeros((nv, free))))
        forces = np.hstack((forces, phase.scatter_multipliers(lost[:, :free])))
        moves = np.hstack((moves, -(pull @ shares.T * sizes)[:, :free]))
    count = len(rates_z)
    along = np.zeros((count, motions.shape[1]))
    along[phase.constrained_rows, :s] = adjoint
    loads = phase.scatter_rows(forces, count)
    change[:nv] += terms.impulse_gradient(q, motions.T, loads.T, moves.T, along.T)
    return np.asarray(0.5 * response.ratio * change)


def _compute_response(solution: Solution) -> _Response:
    """Return what the ratio and its derivative are made of; at least one contact slides."""
    phase, sliding = solution.phase, [slide.contact for slide in solution.phase.sliding]
    friction: Array = solution.mix[:, sliding].copy()  # Delta
    friction[sliding, range(len(sliding))] = 0.0
    jacobian = solution.rows.jacobian
    constraint = jacobian[phase.constrained]
    compliance = solution.rows.take_compliance(phase.constrained)
    even = KKT(solution.rows.mass, constraint, redundant=phase.redundant, compliance=compliance)
    picks = np.eye(len(constraint))[:, sliding]
    motions, x = even.solve(-jacobian.T @ friction, np.zeros_like(picks))
    own, one = x[sliding], np.eye(len(sliding))
    lost = np.zeros_like(picks)
    if even.redundant:
        lost = picks - even.forces(even.delassus[:, sliding])
    above, below = np.hstack((one + own, -lost[sliding])), np.hstack((x.T @ x, one + own.T))
    matrix = np.vstack((above, below))
    det = np.linalg.det
    ratio = np.sqrt(max(det(matrix), 0.0)) if even.redundant else det(one + own)
    forces = phase.scatter_multipliers(x) - friction
    return _Response(
        even=even,
        multipliers=x,
        motions=motions,
        forces=forces,
        picks=picks,
        lost=lost,
        ratio=float(ratio),
        matrix=matrix,
    )
