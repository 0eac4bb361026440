"""The pieces of a piecewise-linear jump: cones of directions with one order of guards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import null_space
from scipy.optimize import linprog

from hybridctl.checks import Array
from hybridctl.sensitivity.gains import JumpGains
from hybridctl.sensitivity.phantom import PhantomModes, through

ROUNDING = 4.0 * float(np.finfo(np.float64).eps)
EVENT_ACCURACY = 1e-9  # of the largest entry: about how accurate a simulated event is
_THIN = 1e-6  # least radius of a ball in a cone and the unit cube; linprog is accurate to 1e-7


@dataclass(frozen=True, eq=False)
class Piece:
    """A cone of directions on which the guards fire in one order, and the linear map there.

    dx+ = matrix @ dx + input @ du where cone @ dx + input_cone @ du >= 0 in all rows, for an
    input that changes by the same du at all micro-events. `size` (d+, d + nu) bounds the terms
    that add up to [matrix, input], and with them the rounding errors.
    """

    order: tuple[int, ...]
    matrix: Array
    input: Array
    cone: Array
    input_cone: Array
    size: Array

    def contains(self, dx: Array, du: Array | None = None) -> bool:
        """Whether a direction dx (d,), du (nu,) lies in the cone or on its boundary."""
        gaps = self.cone @ dx
        return bool((gaps >= 0.0 if du is None else gaps + self.input_cone @ du >= 0.0).all())


def distinct(
    pieces: Sequence[Piece], *, accuracy: float = ROUNDING
) -> tuple[tuple[Piece, ...], ...]:
    """The pieces in groups that share their linear map, up to the accuracy of the gains.

    A product of n matrices of gains with relative errors e is off by at most about n d e times
    the product of their absolute values, entry by entry.
    """
    groups: list[list[Piece]] = []
    for piece in pieces:
        for group in groups:
            first = group[0]
            change = np.hstack([piece.matrix - first.matrix, piece.input - first.input])
            limit = accuracy * _terms(len(piece.order), piece.size.shape[1])
            if (np.abs(change) <= limit * (piece.size + first.size)).all():
                group.append(piece)
                break
        else:
            groups.append([piece])
    return tuple(tuple(group) for group in groups)


def alike(maps: Sequence[Array], accuracy: float) -> bool:
    """Whether maps differ from the first by at most this part of its largest entry."""
    first, *others = maps
    limit = accuracy * np.abs(first).max(initial=0.0)
    return all(np.abs(other - first).max(initial=0.0) <= limit for other in others)


def search(modes: PhantomModes, accuracy: float) -> Iterator[Piece]:
    """All pieces; a beginning of an order is dropped as soon as no direction has it."""
    first = modes.mode(frozenset())
    width = first.time_state.shape[1]
    start = np.eye(width, width + first.time_input.shape[1])
    branch = _Branch((), start, start, start[:0], np.zeros(start.shape[1]))
    return _search(modes, branch, width, accuracy)


def common_lineality(pieces: Sequence[Piece]) -> Array:
    """An orthonormal basis (d, k) of the directions dx that lie in all cones, as -dx does."""
    rows = np.vstack([_unit(piece.cone) for piece in pieces])
    return np.asarray(null_space(rows, rcond=_THIN)) if rows.any() else np.eye(rows.shape[1])


class _Branch(NamedTuple):
    """The beginning of an order.

    columns (d_k, d + nu): its map of (dx, du); size: the bound on its terms; cone (r, d + nu):
    the directions for which the guards fire like that; inside (d + nu,): a point well inside.
    """

    order: tuple[int, ...]
    columns: Array
    size: Array
    cone: Array
    inside: Array


def _search(modes: PhantomModes, branch: _Branch, width: int, accuracy: float) -> Iterator[Piece]:
    order, columns, size = branch.order, branch.columns, branch.size
    if len(order) == len(modes):
        (matrix, after), (cone, rest) = (
            np.split(whole, [width], axis=1) for whole in (columns, branch.cone)
        )
        yield Piece(order, matrix, after, cone, rest, size)
        return
    fired = frozenset(order)
    mode = modes.mode(fired)
    times, sizes = mode.time_state @ columns, np.abs(mode.time_state) @ size
    times[:, width:] += mode.time_input
    sizes[:, width:] += np.abs(mode.time_input)
    limits = accuracy * _terms(len(modes), columns.shape[1]) * sizes
    for position, j in enumerate(mode.left):
        rivals = np.delete(mode.left, position)
        later = np.delete(times - times[position], position, axis=0)
        limit = np.delete(limits + limits[position], position, axis=0)
        tied = (np.abs(later) <= limit).all(axis=1)
        if (rivals[tied] < j).any():
            continue
        cone = np.vstack([branch.cone, later[~tied]])
        inside = _inside(cone, branch.inside)
        if inside is not None:
            jump = modes.jump(fired, j)
            after = _with_input(jump, columns, width)
            bound = _with_input(_absolute(jump), size, width)
            following = _Branch((*order, j), after, bound, cone, inside)
            yield from _search(modes, following, width, accuracy)


def _terms(guards: int, width: int) -> int:
    """Roundings in an entry of a product: each factor is a sum of products of gains."""
    return guards * (width + 2)


def _with_input(jump: JumpGains, columns: Array, width: int) -> Array:
    """A map (d, width + nu) of dx and du carried through a jump that sees the same du."""
    after = through(jump, columns)
    after[:, width:] += jump.input
    return after


def _absolute(jump: JumpGains) -> JumpGains:
    """Gains whose map bounds the terms of the given ones."""
    return JumpGains(
        np.abs(jump.time_state),
        np.abs(jump.time_input),
        None if jump.reset_state is None else np.abs(jump.reset_state),
        np.abs(jump.reset_input),
        -np.abs(jump.field_change),
        np.abs(jump.reset_rate),
    )


def _unit(rows: Array) -> Array:
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(size > 0.0, size, 1.0)


def _inside(cone: Array, guess: Array) -> Array | None:
    """The centre of the largest ball in a cone and the unit cube, None if there is none.

    `guess` is returned if it lies inside.
    """
    rows = _unit(cone)
    if (rows @ guess >= _THIN).all():
        return guess
    width = rows.shape[1]
    found = linprog(
        np.append(np.zeros(width), -1.0),
        A_ub=np.hstack([-rows, np.ones((len(rows), 1))]),
        b_ub=np.zeros(len(rows)),
        bounds=[(-1.0, 1.0)] * width + [(0.0, 1.0)],
    )
    return np.asarray(found.x[:width]) if found.x[width] >= _THIN else None
