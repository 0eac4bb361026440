r"""One interval of the grid to first order, with the events inside it.

The input runs linearly from u_k to u_{k+1}; with s from 0 to 1 along the interval,

.. math:: \delta x_{k+1} = A\, \delta x_k + B_0\, \delta u_k + B_1\, \delta u_{k+1}, \qquad
    \delta u(t) = (1 - s)\, \delta u_k + s\, \delta u_{k+1}.

Flow and jumps alternate, :math:`\Phi_n G_n \cdots G_1 \Phi_0`, and the input counts in each factor:
through the field, and at the events through J ([Salt] (35), [RS] (3.34)).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.series import NODES, TO_SLOPES
from hybridctl.hybrid.trajectory import Arc
from hybridctl.sensitivity.cascade import Cascade
from hybridctl.sensitivity.gains import JumpGains
from hybridctl.sensitivity.linearize import Linearization

_REACH = 0.5  # most of the fastest rate times a step, where eight nodes are exact to 1e-11


class Interval(NamedTuple):
    """A (ndx+, ndx), and B_0, B_1 (ndx+, nu) of the inputs at the start and at the end."""

    state: Array
    start_input: Array
    end_input: Array


def interval(lin: Linearization) -> Interval:
    """The first-order map of a trajectory by its initial state and both ends of its input.

    Where guards fire together the map is piecewise linear; the mean of its pieces is taken.
    """
    motion = lin.trajectory
    n, nu = motion.arcs[0].space.ndx, motion.arcs[0].inputs.shape[2]
    z = np.eye(n, n + 2 * nu)
    for k, arc in enumerate(motion.arcs):
        z = _flow(lin, arc, z)
        if k < len(lin.jumps):
            s = _fraction(lin, arc.end)
            state, j = _jump(lin.jumps[k])
            z = state @ z
            z[:, n:] += np.hstack([(1.0 - s) * j, s * j])
    return Interval(z[:, :n], z[:, n : n + nu], z[:, n + nu :])


def _fraction(lin: Linearization, t: float) -> float:
    return (t - lin.trajectory.start) / (lin.trajectory.end - lin.trajectory.start)


def _jump(jump: JumpGains | Cascade) -> tuple[Array, Array]:
    if isinstance(jump, JumpGains):
        return jump.state, jump.input
    pieces = jump.pieces()
    state = np.mean([piece.matrix for piece in pieces], axis=0)
    return state, np.mean([piece.input for piece in pieces], axis=0)


def _flow(lin: Linearization, arc: Arc, z: Array) -> Array:
    """The columns z (ndx, ndx + 2 nu) carried along an arc; the last 2 nu are driven by B."""
    for start, end in pairwise(arc.times.tolist()):
        if end > start:
            rate = max(_rate(lin.coefficients(arc, t).state) for t in (start, end))
            ends = np.linspace(start, end, max(1, int(np.ceil((end - start) * rate / _REACH))) + 1)
            for left, right in pairwise(ends):
                z = _collocation(lin, arc, left, right, z)
    return z


def _rate(a: Array) -> float:
    """The fastest mode of A, 1/s; its nilpotent part is polynomial, and exact on any step."""
    return float(np.abs(np.linalg.eigvals(a)).max())


def _collocation(lin: Linearization, arc: Arc, start: float, end: float, z: Array) -> Array:
    """z' = A z + [0, (1 - s) B, s B] as a polynomial on the nodes of the integrator's record."""
    n, width = z.shape
    times = start + (end - start) * 0.5 * (NODES[1:] + 1.0)
    slopes = TO_SLOPES * (2.0 / (end - start))
    m = len(times)
    left = np.kron(slopes[1:, 1:], np.eye(n)).reshape(m, n, m, n)
    right = -slopes[1:, :1, None] * z
    for j, t in enumerate(times.tolist()):
        c, s = lin.coefficients(arc, t), _fraction(lin, t)
        left[j, :, j, :] -= c.state
        driven = np.hstack([(1.0 - s) * c.input, s * c.input])
        right[j, :, width - driven.shape[1] :] += driven
    solved = np.linalg.solve(left.reshape(m * n, m * n), right.reshape(m * n, width))
    return np.asarray(solved[-n:])
