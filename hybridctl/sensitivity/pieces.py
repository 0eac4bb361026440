"""The pieces of a piecewise-linear jump: cones of directions with one order of guards.

Between simultaneous guards lie phantom modes. A *phantom* mode is the set of guards that have
fired. The jumps are evaluated at the nominal event, where no trajectory stays in such a mode, when
they are needed, and are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import null_space
from scipy.optimize import linprog

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.sensitivity.gains import JumpGains

_KEPT = 8192  # all phantom modes of up to 13 guards

Micro = Callable[[frozenset[int], int], JumpGains]
Times = Callable[[frozenset[int]], tuple[Array, Array]]


class PhantomMode(NamedTuple):
    """The guards that are left, k of them in ascending order, and when each would fire.

    time_state (k, d), time_input (k, nu): derivatives of the event times, s per unit. state_size
    and input_size: their largest entries.
    """

    left: tuple[int, ...]
    time_state: Array
    time_input: Array
    state_size: float
    input_size: float


class PhantomModes:
    """The phantom modes of n guards; see `PiecewiseLinearJump` for the arguments."""

    def __init__(self, guards: Sequence[str], micro: Micro, times: Times | None = None) -> None:
        self.guards = tuple(guards)
        if not self.guards or len(set(self.guards)) != len(self.guards):
            raise InputError(f"guards must be one or more different names, got {self.guards}")
        self._micro, self._times = micro, times
        self.jump = lru_cache(_KEPT)(self._jump)
        self.mode = lru_cache(_KEPT)(self._mode)

    def __reduce__(self) -> tuple[Any, ...]:
        return PhantomModes, (self.guards, self._micro, self._times)

    def __len__(self) -> int:
        return len(self.guards)

    def _jump(self, fired: frozenset[int], j: int) -> JumpGains:
        """The jump of guard j after those that have fired."""
        jump = self._micro(fired, j)
        before, after, inputs = len(jump.time_state), len(jump.field_change), len(jump.time_input)
        reset = (after, before) if jump.reset_state is None else jump.reset_state.shape
        fits = reset == (after, before) and jump.reset_input.shape == (after, inputs)
        if not fits or (jump.reset_state is None and after != before):
            raise SystemDefinitionError(
                f"the gains of {self._name(fired, j)} must fit together, but time_state has size "
                f"{before}, time_input {inputs}, field_change {after}, reset_state {reset} and "
                f"reset_input {jump.reset_input.shape}"
            )
        return jump

    def _mode(self, fired: frozenset[int]) -> PhantomMode:
        """The phantom mode after the guards that have fired."""
        left = tuple(j for j in range(len(self.guards)) if j not in fired)
        if self._times is not None:
            state, inputs = self._times(fired)
        else:
            jumps = [self.jump(fired, j) for j in left]
            for j, jump in zip(left, jumps, strict=True):
                size, first = ((len(g.time_state), len(g.time_input)) for g in (jump, jumps[0]))
                if size != first:
                    raise SystemDefinitionError(
                        f"the gains of {self._name(fired, j)} act on {size} states and inputs, but "
                        f"those of guard {self.guards[left[0]]!r} there on {first}"
                    )
            state = np.stack([jump.time_state for jump in jumps])
            inputs = np.stack([jump.time_input for jump in jumps])
        sizes = (float(np.abs(gain).max(initial=0.0)) for gain in (state, inputs))
        return PhantomMode(left, state, inputs, *sizes)

    def _name(self, fired: frozenset[int], j: int) -> str:
        return f"guard {self.guards[j]!r} after {[self.guards[i] for i in sorted(fired)]}"


def through(jump: JumpGains, columns: Array) -> Array:
    """The product G @ columns, in O(d) for each column where the reset is the identity."""
    after = columns if jump.reset_state is None else jump.reset_state @ columns
    return after - np.outer(jump.field_change, jump.time_state @ columns)


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
    branch = _OrderPrefix((), start, start, start[:0], np.zeros(start.shape[1]))
    return _search(modes, branch, width, accuracy)


def common_lineality(pieces: Sequence[Piece]) -> Array:
    """An orthonormal basis (d, k) of the directions dx that lie in all cones, as -dx does."""
    rows = np.vstack([unit_rows(piece.cone) for piece in pieces])
    return np.asarray(null_space(rows, rcond=_THIN)) if rows.any() else np.eye(rows.shape[1])


class _OrderPrefix(NamedTuple):
    """The beginning of an order.

    columns (d_k, d + nu): its map of (dx, du); size: the bound on its terms; cone (r, d + nu):
    the directions for which the guards fire like that; inside (d + nu,): a point well inside.
    """

    order: tuple[int, ...]
    columns: Array
    size: Array
    cone: Array
    inside: Array


def _search(
    modes: PhantomModes, branch: _OrderPrefix, width: int, accuracy: float
) -> Iterator[Piece]:
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
        centre = inside(cone, branch.inside)
        if centre is not None:
            jump = modes.jump(fired, j)
            after = _with_input(jump, columns, width)
            bound = _with_input(_absolute(jump), size, width)
            following = _OrderPrefix((*order, j), after, bound, cone, centre)
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
    """The gains by absolute values: a bound on the terms that cancel in a jump."""
    return JumpGains(
        np.abs(jump.time_state),
        np.abs(jump.time_input),
        None if jump.reset_state is None else np.abs(jump.reset_state),
        np.abs(jump.reset_input),
        -np.abs(jump.field_change),
        np.abs(jump.reset_rate),
    )


def unit_rows(rows: Array) -> Array:
    """The rows with the length 1, but for those of zeros."""
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(size > 0.0, size, 1.0)


def inside(cone: Array, guess: Array | None = None) -> Array | None:
    """The centre of the largest ball in a cone and the unit cube, None if there is none.

    `guess` is returned if it lies inside.
    """
    rows, width = unit_rows(cone), cone.shape[1]
    guess = np.zeros(width) if guess is None else guess
    if (rows @ guess >= _THIN).all():
        return guess
    for method in ("highs", "highs-ipm"):  # the first may give up on rows that are nearly parallel
        found = linprog(
            np.append(np.zeros(width), -1.0),
            A_ub=np.hstack([-rows, np.ones((len(rows), 1))]),
            b_ub=np.zeros(len(rows)),
            bounds=[(-1.0, 1.0)] * width + [(0.0, 1.0)],
            method=method,
        )
        if found.x is not None:
            return np.asarray(found.x[:width]) if found.x[width] >= _THIN else None
    return None
