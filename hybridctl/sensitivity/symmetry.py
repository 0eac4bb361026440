r"""Symmetries: linear maps of states that take motions to motions.

A gait closes after one step only if left and right leg are exchanged, and if the way it has gone
along the ground does not count. With such a map S an orbit obeys :math:`S x(T) = x(0) + c`, c along
the free directions, and its monodromy matrix is :math:`S \Phi`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, array, function, vector
from hybridctl.errors import InputError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.spaces import Space

T = TypeVar("T")

_REGULAR = 1e-10  # of the largest singular value: below, S has no inverse


def _same(name: T) -> T:
    return name


@dataclass(frozen=True, eq=False)
class Symmetry:
    r"""A symmetry: with x(t) under u(t), :math:`S x(t)` under :math:`W u(t)` is a motion.

    state: S (n, n), regular, on a state space whose coordinates are added. input: W (nu, nu), the
    identity by default. mode, guard: what a mode and a guard are called in the other motion, and
    contacts: which contact's impulse is that of contact i there, exchanges that done twice change
    nothing; by default all stay.
    free: directions (n,) by name, such as "translation", by which a motion may be moved as well.

    Raises `InputError` for matrices that are not square or not regular, and for free directions
    that depend on each other.
    """

    state: ArrayLike
    input: ArrayLike | None = None
    mode: Callable[[ModeKey], ModeKey] = _same
    guard: Callable[[str], str] = _same
    contacts: tuple[int, ...] | None = None
    free: Mapping[str, ArrayLike] = field(default_factory=dict)

    def __post_init__(self) -> None:
        function("mode", self.mode)
        function("guard", self.guard)
        _regular("state", self.matrix)
        if self.input is not None:
            _regular("input", array("input", self.input, (None, None)))
        directions = self.directions
        if len(directions.T) and np.linalg.matrix_rank(directions) < len(directions.T):
            raise InputError(f"free directions must be independent, got {dict(self.free)}")

    @cached_property
    def matrix(self) -> Array:
        """The matrix S (n, n) of states."""
        return array("state", self.state, (None, None))

    @cached_property
    def directions(self) -> Array:
        """The free directions (n, k) in columns."""
        n = len(self.matrix)
        directions = [
            vector(f"free[{name!r}]", direction, n) for name, direction in self.free.items()
        ]
        return np.asarray(np.array(directions, dtype=np.float64).reshape(len(directions), n).T)

    def inputs(self, nu: int) -> Array:
        """The matrix W (nu, nu) of inputs."""
        return array("input", np.eye(nu) if self.input is None else self.input, (nu, nu))

    def check(self, space: Space) -> None:
        """Raise `InputError` where S is no map of this space."""
        if space.nx != space.ndx or len(self.matrix) != space.ndx:
            raise InputError(
                f"symmetry: state must be of shape ({space.ndx}, {space.ndx}) on a space whose "
                f"coordinates are added, got {self.matrix.shape} with {space.nx} coordinates of "
                f"{space.ndx} dimensions"
            )

    def gap(self, space: Space, start: Array, end: Array) -> Array:
        """The gap S end - start (n,), without its part along the free directions."""
        off = space.difference(start, self.matrix @ end)
        return np.asarray(off - self.along(off))

    def along(self, off: Array) -> Array:
        """The part of a deviation (n,) along the free directions."""
        directions = self.directions
        return np.asarray(directions @ (np.linalg.pinv(directions) @ off))


def _regular(name: str, matrix: Array) -> None:
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} must be square, got shape {matrix.shape}")
    sizes = np.linalg.svd(matrix, compute_uv=False)
    if not sizes[-1] > _REGULAR * sizes[0]:
        raise InputError(f"{name} must be regular, got singular values {sizes.tolist()}")


def closing_error(symmetry: Symmetry | None, space: Space, start: Array, end: Array) -> Array:
    """What an orbit lacks to close (ndx,): S end - start across the free directions."""
    if symmetry is None:
        return space.difference(start, end)
    return symmetry.gap(space, start, end)


def carried(symmetry: Symmetry | None, deviations: Array) -> Array:
    """The deviations (n, ...) times S."""
    return deviations if symmetry is None else symmetry.matrix @ deviations


def seen_as(symmetry: Symmetry | None, key: ModeKey) -> ModeKey:
    """What a mode is called in the image of a motion."""
    return key if symmetry is None else symmetry.mode(key)
