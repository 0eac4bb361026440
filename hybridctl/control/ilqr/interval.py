r"""One interval of the grid to first order, with the events inside it.

The input runs linearly from u_k to u_{k+1}; with s from 0 to 1 along the interval,

.. math:: \delta x_{k+1} = A\, \delta x_k + B_0\, \delta u_k + B_1\, \delta u_{k+1}, \qquad
    \delta u(t) = (1 - s)\, \delta u_k + s\, \delta u_{k+1}.

Flow and jumps alternate, :math:`\Phi_n G_n \cdots G_1 \Phi_0`, and the input counts in each factor:
through the field, and at the events through J ([Salt] (35), [RS] (3.34)).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.sensitivity.discrete import carried_along
from hybridctl.sensitivity.gains import JumpGains
from hybridctl.sensitivity.linearize import Linearization
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump


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
    first, last = np.eye(nu, n + 2 * nu, n), np.eye(nu, n + 2 * nu, n + nu)

    def inputs(t: float) -> Array:
        s = (t - motion.start) / (motion.end - motion.start)
        return (1.0 - s) * first + s * last

    z: Array = np.eye(n, n + 2 * nu)
    for k, arc in enumerate(motion.arcs):
        z, _ = carried_along(lin, arc, z, inputs)
        if k < len(lin.jumps):
            state, j = _jump(lin.jumps[k])
            z = state @ z + j @ inputs(arc.end)
    return Interval(z[:, :n], z[:, n : n + nu], z[:, n + nu :])


def _jump(jump: JumpGains | PiecewiseLinearJump) -> tuple[Array, Array]:
    if isinstance(jump, JumpGains):
        return jump.state, jump.input
    pieces = jump.pieces()
    state = np.mean([piece.matrix for piece in pieces], axis=0)
    return state, np.mean([piece.input for piece in pieces], axis=0)
