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

from hybridctl.base.checks import Array, check_array, check_callable, check_vector
from hybridctl.base.errors import InputError
from hybridctl.base.spaces import Space
from hybridctl.hybrid.mode import ModeKey

T = TypeVar("T")

_REGULAR = 1e-10  # of the largest singular value: below, S has no inverse


def _same(name: T) -> T:
    return name


@dataclass(frozen=True, eq=False)
class Symmetry:
    r"""A symmetry: with x(t) under u(t), :math:`S x(t)` under :math:`W u(t)` is a motion.

    Attributes:
        state: Map S (ndx, ndx) of perturbations of states, regular. It maps states too on a space
            whose coordinates are added.
        input: Map W (nu, nu) of inputs; the identity by default.
        mode: Mode of the other motion; an exchange that done twice changes nothing.
        guard: Name of a guard in the other motion; such an exchange too.
        contacts: For each contact, the one whose impulse it has in the other motion; by default
            itself.
        free: Directions (ndx,) by name, such as "translation", by which a motion may be moved too.
        coordinates: Map (nx, nx) of states on a space with other coordinates than perturbations,
            such as quaternions; None where `state` maps states.

    Raises:
        InputError: If a map is not square or not regular, or if free directions depend on each
            other.
    """

    state: ArrayLike
    input: ArrayLike | None = None
    mode: Callable[[ModeKey], ModeKey] = _same
    guard: Callable[[str], str] = _same
    contacts: tuple[int, ...] | None = None
    free: Mapping[str, ArrayLike] = field(default_factory=dict)
    coordinates: ArrayLike | None = None

    def __post_init__(self) -> None:
        check_callable("mode", self.mode)
        check_callable("guard", self.guard)
        _regular("state", self.matrix)
        if self.input is not None:
            _regular("input", check_array("input", self.input, (None, None)))
        if self.coordinates is not None:
            _regular("coordinates", self.state_map)
        directions = self.directions
        if len(directions.T) and np.linalg.matrix_rank(directions) < len(directions.T):
            raise InputError(f"free directions must be independent, got {dict(self.free)}")

    @cached_property
    def matrix(self) -> Array:
        """The map S (ndx, ndx) of perturbations."""
        return check_array("state", self.state, (None, None))

    @cached_property
    def state_map(self) -> Array:
        """The map (nx, nx) of the coordinates of states."""
        if self.coordinates is None:
            return self.matrix
        return check_array("coordinates", self.coordinates, (None, None))

    def image(self, states: Array) -> Array:
        """Return states of the other motion.

        Args:
            states: States (nx,), or several in columns (nx, k).

        Returns:
            Their images under the map of coordinates, in the same shape.
        """
        return np.asarray(self.state_map @ states)

    @cached_property
    def directions(self) -> Array:
        """The free directions (n, k) in columns."""
        n = len(self.matrix)
        directions = [
            check_vector(f"free[{name!r}]", direction, n) for name, direction in self.free.items()
        ]
        return np.asarray(np.array(directions, dtype=np.float64).reshape(len(directions), n).T)

    def inputs(self, nu: int) -> Array:
        """The matrix W (nu, nu) of inputs."""
        return check_array("input", np.eye(nu) if self.input is None else self.input, (nu, nu))

    def check(self, space: Space) -> None:
        """Raise `InputError` if the maps do not fit this space.

        Args:
            space: State space of nx coordinates and ndx perturbations.
        """
        sizes = len(self.state_map), len(self.matrix)
        if sizes != (space.nx, space.ndx):
            raise InputError(
                f"symmetry: state must be of shape ({space.ndx}, {space.ndx}) on this space, and "
                f"coordinates of ({space.nx}, {space.nx}), given if nx and ndx differ; got "
                f"{self.matrix.shape} and {self.state_map.shape}"
            )

    def gap(self, space: Space, start: Array, end: Array) -> Array:
        """Return the gap (ndx,) from `start` to the image of `end`, less free directions."""
        off = space.difference(start, self.image(end))
        return np.asarray(off - self.along(off))

    def along(self, off: Array) -> Array:
        """The part of a deviation (n,) along the free directions."""
        directions = self.directions
        return np.asarray(directions @ (np.linalg.pinv(directions) @ off))


def _regular(name: str, matrix: Array) -> None:
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} must be square, got shape {matrix.shape}")
    if not matrix.size:
        return  # a system without inputs
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
