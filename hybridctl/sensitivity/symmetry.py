r"""Symmetries: linear maps of states that map motions to motions.

A gait closes after one step only if left and right leg are exchanged, and if the distance that it
has gone along the ground does not count. With such a map S an orbit obeys :math:`S x(T) = x(0) + c`
with c along the free directions, and its monodromy matrix is :math:`S M`, with the derivative M of
the flow over T.

On a floating base the direction of a shift along the ground depends on the state, in whose own axes
perturbations are, and a turn about the vertical is no linear map of coordinates. Such a group of
motions is a `FreeMotion`. Then :math:`S x(T) = g x(0)` with g of the group. As g leaves the
perturbations of a state what they are in its own axes, the monodromy matrix is S M still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_callable, check_vector
from hybridctl.base.errors import InputError
from hybridctl.base.spaces import Space
from hybridctl.hybrid.mode import ModeKey

T = TypeVar("T")

_ALIGNMENTS = 30
"""Most Newton steps to the amounts of free motions that align two states. Shifts take one; a turn
squares its error, so that states which differ by less than half a turn take some five."""
_ALIGNED = 1e-14
"""Step of an alignment, relative to 1 + |amount|, that is rounding."""
_REGULARITY = 1e-10
"""Smallest singular value of a regular map, relative to the largest one."""


@runtime_checkable
class FreeMotion(Protocol):
    """A group of maps of states, with one parameter, that take motions to motions.

    The maps are affine in coordinates. Perturbations of the image of a state are those of the
    state: the maps act from the left on Lie groups whose perturbations are in the body frame.
    """

    def direction(self, x: Array) -> Array:
        """Return the perturbation (ndx,) by which a state x (nx,) moves per unit of the amount."""
        ...

    def move(self, states: Array, amount: float) -> Array:
        """Return states moved by an amount, for states (nx,) or in columns (nx, k)."""
        ...


def _return_unchanged(name: T) -> T:
    """Return a mode or a guard as its own image; a function of the module can be pickled."""
    return name


@dataclass(frozen=True, eq=False)
class Symmetry:
    r"""A symmetry: the image :math:`S x(t)` under :math:`W u(t)` of a motion x(t) is a motion.

    Attributes:
        state: Map S (ndx, ndx) of perturbations of states, regular. On a space whose coordinates
            are added it maps states, too.
        input: Map W (nu, nu) of inputs. None for the identity.
        mode: Function from the key of a mode to that of its image. Applied twice it must change
            nothing, which is not checked.
        guard: Function from the name of a guard to that of its image, likewise.
        contacts: For each contact, the index of the contact whose impulse it has in the image.
            None if each has its own.
        free: Directions (ndx,) by name, such as "translation", along which a motion may be shifted
            and stays a motion; or a `FreeMotion` where the direction depends on the state.
        coordinates: Map (nx, nx) of states on a space whose coordinates are not those of
            perturbations, such as quaternions. None if `state` maps states.

    Raises:
        InputError: A map is not square or not regular, free directions depend on each other, or
            `mode` or `guard` is no function.
    """

    state: ArrayLike
    input: ArrayLike | None = None
    mode: Callable[[ModeKey], ModeKey] = _return_unchanged
    guard: Callable[[str], str] = _return_unchanged
    contacts: tuple[int, ...] | None = None
    free: Mapping[str, ArrayLike | FreeMotion] = field(default_factory=dict)
    coordinates: ArrayLike | None = None

    def __post_init__(self) -> None:
        check_callable("mode", self.mode)
        check_callable("guard", self.guard)
        _check_regular("state", self.matrix)
        if self.input is not None:
            _check_regular("input", check_array("input", self.input, (None, None)))
        if self.coordinates is not None:
            _check_regular("coordinates", self.state_map)
        directions = self._stack(self.constant_directions)
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
        """Return states of the image of a motion.

        Args:
            states: States (nx,), or several in columns (nx, k).

        Returns:
            Their images under the map of coordinates, in the same shape.
        """
        return np.asarray(self.state_map @ states)

    @property
    def motions(self) -> dict[str, FreeMotion]:
        """The free motions whose direction depends on the state, by name."""
        return {name: way for name, way in self.free.items() if isinstance(way, FreeMotion)}

    @cached_property
    def constant_directions(self) -> dict[str, Array]:
        """The free directions (ndx,) that do not depend on the state, by name."""
        n = len(self.matrix)
        return {
            name: check_vector(f"free[{name!r}]", way, n)
            for name, way in self.free.items()
            if not isinstance(way, FreeMotion)
        }

    @property
    def directions(self) -> Array:
        """The free directions (ndx, k) in columns, in the order of `free`.

        Raises:
            InputError: A direction depends on the state.
        """
        if self.motions:
            raise InputError(
                f"symmetry: free directions must not depend on the state here, but "
                f"{sorted(self.motions)} do"
            )
        return self._stack(self.constant_directions)

    def find_directions(self, x: Array) -> Array:
        """Return the free directions (ndx, k) at a state (nx,) in columns, in the order of `free`.

        Args:
            x: The state.
        """
        constant = self.constant_directions
        return self._stack(
            {
                name: constant[name] if name in constant else self.motions[name].direction(x)
                for name in self.free
            }
        )

    def _stack(self, directions: Mapping[str, Array]) -> Array:
        """Return directions (ndx,) as columns (ndx, k)."""
        columns = np.array(list(directions.values()), dtype=np.float64)
        return np.asarray(columns.reshape(len(directions), len(self.matrix)).T)

    def inputs(self, nu: int) -> Array:
        """Return the matrix W (nu, nu) of inputs, the identity if none was given.

        Args:
            nu: Number of inputs.

        Raises:
            InputError: The matrix that was given has another size.
        """
        return check_array("input", np.eye(nu) if self.input is None else self.input, (nu, nu))

    def check(self, space: Space) -> None:
        """Check that the maps fit a state space.

        Args:
            space: State space of nx coordinates and ndx dimensions of perturbations.

        Raises:
            InputError: They do not.
        """
        sizes = len(self.state_map), len(self.matrix)
        if sizes != (space.nx, space.ndx):
            raise InputError(
                f"symmetry: state must be of shape ({space.ndx}, {space.ndx}) on this space, and "
                f"coordinates of ({space.nx}, {space.nx}), given if nx and ndx differ; got "
                f"{self.matrix.shape} and {self.state_map.shape}"
            )

    def gap(self, space: Space, start: Array, end: Array) -> Array:
        """Return the gap from one state to the image of another, across the free directions.

        Args:
            space: State space.
            start: State (nx,) at the start.
            end: State (nx,) at the end.

        Returns:
            The gap S end - start (ndx,), in the tangent space at the start, without its orthogonal
            projection onto the free directions.
        """
        if self.motions:
            end, _ = self.align(space, start, self.image(end))
            off = space.difference(start, end)
        else:
            off = space.difference(start, self.image(end))
        return np.asarray(off - self.free_part(off, start))

    def free_part(self, perturbation: Array, x: Array | None = None) -> Array:
        """Return the orthogonal projection (ndx,) of a perturbation onto the free directions.

        Args:
            perturbation: Perturbation (ndx,), or several in columns.
            x: State (nx,) that is perturbed; not needed where no direction depends on it.
        """
        directions = self.directions if x is None else self.find_directions(x)
        return np.asarray(directions @ (np.linalg.pinv(directions) @ perturbation))

    def align(self, space: Space, start: Array, end: Array) -> tuple[Array, Array]:
        """Return a state moved along the free directions to where it is next to another one.

        Args:
            space: State space.
            start: The other state (nx,).
            end: State (nx,) that is moved.

        Returns:
            The moved state (nx,), from which the difference to `start` is across the free
            directions there, and the amounts (k,) that were taken away, in the order of `free`:
            `add_shift` of the moved state by them is `end`.
        """
        amounts = np.zeros(len(self.free))
        moved, inverse = end, np.linalg.pinv(self.find_directions(start))
        for _ in range(_ALIGNMENTS):
            step = inverse @ space.difference(start, moved)
            amounts = amounts + step
            moved = end
            # A turn is taken away before shifts, so that these are along the directions at `start`.
            for name, amount in reversed([*zip(self.free, amounts.tolist(), strict=True)]):
                moved = self._move(space, name, moved, -amount)
            if np.abs(step).max(initial=0.0) <= _ALIGNED * (1.0 + np.abs(amounts).max(initial=0.0)):
                break
        return moved, amounts

    def add_shift(self, space: Space, x: Array, amounts: Array) -> Array:
        """Return a state moved by amounts along the free directions, the first one first.

        Args:
            space: State space.
            x: State (nx,).
            amounts: Amounts (k,) in the order of `free`.
        """
        for name, amount in zip(self.free, amounts.tolist(), strict=True):
            x = self._move(space, name, x, amount)
        return x

    def _move(self, space: Space, name: str, x: Array, amount: float) -> Array:
        """Return a state (nx,) moved along one free direction."""
        if name in self.motions:
            return self.motions[name].move(x, amount)
        return space.integrate(x, amount * self.constant_directions[name])


def _check_regular(name: str, matrix: Array) -> None:
    """Check that a map is square and regular.

    Raises:
        InputError: It is not.
    """
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} must be square, got shape {matrix.shape}")
    if not matrix.size:
        return  # a system without inputs
    sizes = np.linalg.svd(matrix, compute_uv=False)
    if not sizes[-1] > _REGULARITY * sizes[0]:
        raise InputError(f"{name} must be regular, got singular values {sizes.tolist()}")


CLOSING_TOLERANCE = 1e-6
"""Default of the largest gap between the ends of an orbit that closes, relative to 1 + |x|.

A choice: orbits that `periodic_orbit` finds close to 1e-9, plans on coarse meshes worse."""


def compute_closing_error(
    symmetry: Symmetry | None, space: Space, start: Array, end: Array
) -> Array:
    """Return the gap that keeps an orbit from closing.

    Args:
        symmetry: Symmetry up to which the orbit closes. None if it closes itself.
        space: State space.
        start: State (nx,) at the start.
        end: State (nx,) at the end.

    Returns:
        The gap S end - start (ndx,) across the free directions.
    """
    if symmetry is None:
        return space.difference(start, end)
    return symmetry.gap(space, start, end)


def map_perturbations(symmetry: Symmetry | None, perturbations: Array) -> Array:
    """Return the images of perturbations (n, ...) under S; without a symmetry, themselves."""
    return perturbations if symmetry is None else symmetry.matrix @ perturbations


def map_mode(symmetry: Symmetry | None, key: ModeKey) -> ModeKey:
    """Return the mode of the image of a motion in a mode; without a symmetry, the mode itself."""
    return key if symmetry is None else symmetry.mode(key)
