r"""Maps of deviations that are linear on each of finitely many cones.

What a trajectory through simultaneous events does to deviations, to first order, is

.. math:: P(\delta x) = A_k\, \delta x \quad \text{where} \quad C_k\, \delta x \ge 0,

continuous and positively homogeneous: the pieces of all its events multiplied out, of which those
stay whose cone has an interior.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array
from hybridctl.base.errors import InputError
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.piecewise import (
    EVENT_ACCURACY,
    PiecewiseLinearJump,
    are_equal_maps,
    find_interior_point,
)
from hybridctl.sensitivity.saltation import JumpGains

_TIED = 1e-9  # of the size of its terms: a smaller row of a cone is zero


class LinearPiece(NamedTuple):
    """The matrix (n+, n) on the cone (r, n) of directions on which all its rows are not negative.

    Rows of a cone have the length 1.
    """

    matrix: Array
    cone: Array


@dataclass(frozen=True, eq=False)
class ConewiseMap:
    """A continuous, positively homogeneous map, linear on each of the cones of its `pieces`.

    The cones cover all directions, and their interiors do not meet.
    """

    pieces: tuple[LinearPiece, ...]

    @property
    def is_linear(self) -> bool:
        """Whether there is one piece only."""
        return len(self.pieces) == 1

    @property
    def matrix(self) -> Array:
        """The one matrix (n+, n). Raises `InputError` where there are several."""
        if not self.is_linear:
            raise InputError(
                f"the map has a kink: it is linear on {len(self.pieces)} cones only, with a matrix "
                "for each, see `pieces`"
            )
        return self.pieces[0].matrix

    def __call__(self, dx: ArrayLike) -> Array:
        """The image P(dx) (n+,) of dx (n,), or (m, n+) of m of them in rows."""
        x = check_array("dx", dx)
        n = self.pieces[0].matrix.shape[1]
        if x.ndim not in (1, 2) or x.shape[-1] != n:
            raise InputError(f"dx must have shape ({n},) or (m, {n}), got {x.shape}")
        rows = np.atleast_2d(x)
        images = np.stack([rows @ piece.matrix.T for piece in self.pieces])
        found = images[self.pieces_of(rows), np.arange(len(rows))]
        return np.asarray(found.reshape(*x.shape[:-1], -1))

    def pieces_of(self, rows: Array) -> Array:
        """The index (m,) of the piece in whose cone, or nearest to it, each of m directions is."""
        gaps = [(rows @ piece.cone.T).min(axis=1, initial=np.inf) for piece in self.pieces]
        return np.asarray(np.argmax(gaps, axis=0))

    def then(self, matrix: Array) -> ConewiseMap:
        """This map followed by a matrix."""
        return _joined(LinearPiece(matrix @ piece.matrix, piece.cone) for piece in self.pieces)

    def across(self, basis: Array) -> ConewiseMap:
        """The map (k, k) on the span of an orthonormal basis (n, k), what leaves it dropped."""
        return _joined(
            LinearPiece(basis.T @ piece.matrix @ basis, _rows(piece.cone, basis))
            for piece in self.pieces
        )


def conewise(lin: Linearization, events: int | None = None) -> ConewiseMap:
    """The state's map from start to end, or to the end of the arc before event `events`.

    Raises `InputError` where a linearization has no pieces that pass through zero.
    """
    total = ConewiseMap((_whole(np.eye(lin.trajectory.arcs[0].space.ndx)),))
    jumps = lin.jumps if events is None else lin.jumps[:events]
    for transition, jump in zip(lin.transitions, jumps, strict=False):
        total = _joined(_through(total.then(transition), jump_pieces(jump)))
    return total.then(lin.transitions[len(jumps)])


def jump_pieces(jump: JumpGains | PiecewiseLinearJump) -> tuple[LinearPiece, ...]:
    """The pieces of a jump: one where all orders of simultaneous guards have the same matrix."""
    if isinstance(jump, JumpGains):
        return (_whole(jump.state),)
    pieces = jump.pieces(accuracy=EVENT_ACCURACY)
    parts = (LinearPiece(piece.matrix, _rows(piece.cone)) for piece in pieces)
    return _joined(parts).pieces


def _through(before: ConewiseMap, pieces: tuple[LinearPiece, ...]) -> Iterator[LinearPiece]:
    """The products of two maps' pieces that some directions have."""
    for first in before.pieces:
        for second in pieces:
            rows = np.vstack([first.cone, _rows(second.cone, first.matrix)])
            if find_interior_point(rows) is not None:
                yield LinearPiece(second.matrix @ first.matrix, rows)
            if len(rows) == len(first.cone):
                break  # all that comes here is where the pieces agree


def _joined(pieces: Iterator[LinearPiece]) -> ConewiseMap:
    """The pieces as a map, as one where their matrices are the same."""
    found = tuple(pieces)
    if are_equal_maps([piece.matrix for piece in found], EVENT_ACCURACY):
        return ConewiseMap((_whole(found[0].matrix),))
    return ConewiseMap(found)


def _whole(matrix: Array) -> LinearPiece:
    return LinearPiece(matrix, np.zeros((0, matrix.shape[1])))


def _rows(cone: Array, matrix: Array | None = None) -> Array:
    """The rows of a cone seen through a matrix, of length 1, without those that vanish."""
    rows = cone if matrix is None else cone @ matrix
    sizes = np.linalg.norm(cone, axis=1)
    if matrix is not None:
        sizes = sizes * np.linalg.norm(matrix, 2)
    lengths = np.linalg.norm(rows, axis=1)
    kept = lengths > _TIED * sizes
    return np.asarray(rows[kept] / lengths[kept, None])
