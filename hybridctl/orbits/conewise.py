r"""Maps of perturbations that are linear on each of finitely many cones.

A trajectory through simultaneous events maps perturbations, to first order, by

.. math:: P(\delta x) = A_k\, \delta x \quad \text{where} \quad C_k\, \delta x \ge 0,

continuous and positively homogeneous, [Bder] (57). The pieces are the products of the pieces of all
its events, of which those stay whose cone has an interior.
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

_ZERO_ROW = 1e-9
"""Length below which the row of a cone is zero, relative to the terms that add up to it.

Pieces of events are exact to `EVENT_ACCURACY`, the same number."""


class LinearPiece(NamedTuple):
    """A linear map on a cone.

    Attributes:
        matrix: The matrix (n+, n).
        cone: Rows (r, n) of length 1; the cone is where all of them are not negative. No rows are
            the whole space.
    """

    matrix: Array
    cone: Array


@dataclass(frozen=True, eq=False)
class ConewiseMap:
    """A continuous, positively homogeneous map that is linear on each of several cones.

    Attributes:
        pieces: The pieces. Their cones cover all directions, and their interiors do not meet.
    """

    pieces: tuple[LinearPiece, ...]

    @property
    def is_linear(self) -> bool:
        """Whether there is one piece only."""
        return len(self.pieces) == 1

    @property
    def matrix(self) -> Array:
        """The matrix (n+, n) of a linear map.

        Raises:
            InputError: If there are several pieces.
        """
        if not self.is_linear:
            raise InputError(
                f"the map has a kink: it is linear on {len(self.pieces)} cones only, with a matrix "
                "for each, see `pieces`"
            )
        return self.pieces[0].matrix

    def __call__(self, dx: ArrayLike) -> Array:
        """Return the image (n+,) of a perturbation (n,), or (m, n+) of m of them in rows.

        Args:
            dx: The perturbation or perturbations.

        Raises:
            InputError: If its shape does not fit.
        """
        x = check_array("dx", dx)
        n = self.pieces[0].matrix.shape[1]
        if x.ndim not in (1, 2) or x.shape[-1] != n:
            raise InputError(f"dx must have shape ({n},) or (m, {n}), got {x.shape}")
        rows = np.atleast_2d(x)
        images = np.stack([rows @ piece.matrix.T for piece in self.pieces])
        found = images[self.find_pieces(rows), np.arange(len(rows))]
        return np.asarray(found.reshape(*x.shape[:-1], -1))

    def find_pieces(self, rows: Array) -> Array:
        """Return the indices (m,) of the pieces in whose cones directions are.

        For a direction that rounding puts outside all cones it is that of the nearest cone.

        Args:
            rows: Directions (m, n).
        """
        gaps = [(rows @ piece.cone.T).min(axis=1, initial=np.inf) for piece in self.pieces]
        return np.asarray(np.argmax(gaps, axis=0))

    def multiply_by(self, matrix: Array) -> ConewiseMap:
        """Return this map followed by a linear one.

        Args:
            matrix: The matrix (m, n+) of the linear map.
        """
        return _build_map(LinearPiece(matrix @ piece.matrix, piece.cone) for piece in self.pieces)

    def restrict_to(self, basis: Array) -> ConewiseMap:
        """Return the map (k, k) within the span of a basis; parts that leave it are dropped.

        Args:
            basis: Orthonormal columns (n, k).
        """
        return _build_map(
            LinearPiece(basis.T @ piece.matrix @ basis, _transform_rows(piece.cone, basis))
            for piece in self.pieces
        )


def compute_conewise_map(lin: Linearization, event_count: int | None = None) -> ConewiseMap:
    """Return the map of state perturbations from the start of a trajectory to its end.

    Args:
        lin: The linearization of the trajectory.
        event_count: Number of events after which the map ends, at the end of the next arc. If None,
            all events are passed.

    Raises:
        InputError: If the pieces of an event do not pass through zero.
    """
    total = ConewiseMap((_make_linear(np.eye(lin.trajectory.arcs[0].space.ndx)),))
    jumps = lin.jumps if event_count is None else lin.jumps[:event_count]
    for transition, jump in zip(lin.transitions, jumps, strict=False):
        before = total.multiply_by(transition)
        total = _build_map(_multiply_pieces(before, _list_jump_pieces(jump)))
    return total.multiply_by(lin.transitions[len(jumps)])


def _list_jump_pieces(jump: JumpGains | PiecewiseLinearJump) -> tuple[LinearPiece, ...]:
    """Return the pieces of a jump: one if all orders of its guards have the same matrix."""
    if isinstance(jump, JumpGains):
        return (_make_linear(jump.state),)
    pieces = jump.pieces(accuracy=EVENT_ACCURACY)
    parts = (LinearPiece(piece.matrix, _transform_rows(piece.cone)) for piece in pieces)
    return _build_map(parts).pieces


def _multiply_pieces(before: ConewiseMap, pieces: tuple[LinearPiece, ...]) -> Iterator[LinearPiece]:
    """Yield the products of two maps' pieces whose cones have an interior."""
    for first in before.pieces:
        for second in pieces:
            rows = np.vstack([first.cone, _transform_rows(second.cone, first.matrix)])
            if find_interior_point(rows) is not None:
                yield LinearPiece(second.matrix @ first.matrix, rows)
            if len(rows) == len(first.cone):
                # The image of the first cone lies where the second map's pieces agree: all of its
                # rows vanish, and the other pieces would give the same product again.
                break


def _build_map(pieces: Iterator[LinearPiece]) -> ConewiseMap:
    """Return the map of these pieces; it is linear if their matrices are the same."""
    found = tuple(pieces)
    if are_equal_maps([piece.matrix for piece in found], EVENT_ACCURACY):
        return ConewiseMap((_make_linear(found[0].matrix),))
    return ConewiseMap(found)


def _make_linear(matrix: Array) -> LinearPiece:
    """Return the piece that has a matrix on the whole space."""
    return LinearPiece(matrix, np.zeros((0, matrix.shape[1])))


def _transform_rows(cone: Array, matrix: Array | None = None) -> Array:
    """Return the rows of a cone of images as rows of length 1 of a cone of arguments.

    Rows that vanish are left out.

    Args:
        cone: Rows (r, m).
        matrix: The map (m, n) from arguments to images. If None, the identity.
    """
    rows = cone if matrix is None else cone @ matrix
    sizes = np.linalg.norm(cone, axis=1)
    if matrix is not None:
        sizes = sizes * np.linalg.norm(matrix, 2)
    lengths = np.linalg.norm(rows, axis=1)
    present = lengths > _ZERO_ROW * sizes
    return np.asarray(rows[present] / lengths[present, None])
