r"""State spaces: points in `nx` coordinates, perturbations in an `ndx`-dimensional tangent space.

Jacobians, covariances and gains live in the tangent space. In a vector space `integrate` and
`difference` are + and -. On a manifold they satisfy

.. math:: \text{integrate}(x, \text{difference}(x, y)) = y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from hybridctl.base.checks import Array, check_count, quote
from hybridctl.base.errors import InputError

# The iteration of a mean ends where a step is this small relative to the spread of the points, or
# to the coordinates of the mean: differences of points are not known better than that. The spread
# counts for a mean near zero, the coordinates for points close together far from zero.
_MEAN_STEP_PER_SPREAD = 1e-14
_MEAN_STEP_PER_COORDINATE = 1e-15
# On rotations each iteration multiplies the error by a sixth of the squared spread in rad or less:
# 20 serve spreads of up to 1 rad. Points spread wider may have no mean.
_MEAN_ITERATIONS = 20
_ORTHOGONAL = 1e-13
"""Products of two columns of a tangent map, relative to the least square of one, that are rounding:
some hundred times that of unit quaternions and rotations."""


@runtime_checkable
class Space(Protocol):
    """A state space of dimension `ndx`, embedded in `nx` coordinates.

    A space may also have the methods `tangent_map(x)`, see `compute_tangent_map`, and
    `normalize_rows(x)`, see `normalize_points`.
    """

    @property
    def nx(self) -> int:
        """Number of coordinates of a point."""
        ...

    @property
    def ndx(self) -> int:
        """Dimension of the tangent space."""
        ...

    def integrate(self, x: Array, dx: Array) -> Array:
        """Return the point (nx,) that is reached from a point along a perturbation.

        Args:
            x: Point (nx,).
            dx: Perturbation (ndx,).
        """
        ...

    def difference(self, x0: Array, x1: Array) -> Array:
        """Return the perturbation (ndx,) that leads from one point to another.

        Args:
            x0: First point (nx,), whose tangent space the perturbation is in.
            x1: Second point (nx,).
        """
        ...

    def rate(self, x: Array, dx: Array) -> Array:
        """Return the time derivative (nx,) of the coordinates of a moving point.

        Args:
            x: Point (nx,).
            dx: Its velocity (ndx,) in the tangent space, 1/s.
        """
        ...

    def transport(self, dx: Array) -> Array:
        r"""Return the matrix (ndx, ndx) by which a perturbation turns with its moving point.

        A perturbation z of a trajectory that moves with velocity f(x) obeys
        :math:`\dot z = (D_x f + T(f)) z`, where T is this matrix: zero in a vector space,
        minus the adjoint action of f on a Lie group with perturbations in the body frame.

        Args:
            dx: Velocity (ndx,) of the point in the tangent space, 1/s.
        """
        ...

    def normalize(self, x: Array) -> Array:
        """Return the nearest point of the space, to remove rounding; x itself in a vector space.

        Args:
            x: Coordinates (nx,) of almost a point.
        """
        ...

    def check(self, name: str, x: Array) -> None:
        """Check that coordinates are those of a point of the space.

        Args:
            name: Name of the argument, for errors.
            x: Coordinates (nx,).

        Raises:
            InputError: They are not, such as a quaternion that is not normalised.
        """
        ...


@dataclass(frozen=True)
class VectorSpace:
    """The space R^n, where points and perturbations have the same coordinates.

    Args:
        n: Number of coordinates, at least 1.

    Raises:
        InputError: n is no such number.
    """

    n: int

    def __post_init__(self) -> None:
        check_count("n", self.n)

    @property
    def nx(self) -> int:
        """The number n of coordinates."""
        return self.n

    @property
    def ndx(self) -> int:
        """The number n of coordinates."""
        return self.n

    def integrate(self, x: Array, dx: Array) -> Array:
        """Return the point x + dx."""
        return x + dx

    def difference(self, x0: Array, x1: Array) -> Array:
        """Return the perturbation x1 - x0."""
        return x1 - x0

    def difference_jacobians(self, x0: Array, x1: Array) -> tuple[Array, Array]:
        """Return the derivatives of the difference by x0 and by x1: -I and I, both (n, n)."""
        return -np.eye(self.n), np.eye(self.n)

    def rate(self, x: Array, dx: Array) -> Array:
        """Return the rate of the coordinates, which is dx itself."""
        return dx

    def transport(self, dx: Array) -> Array:
        """Return zeros (n, n): perturbations of a vector space do not turn."""
        return np.zeros((self.n, self.n))

    def normalize(self, x: Array) -> Array:
        """Return x itself."""
        return x

    def check(self, name: str, x: Array) -> None:
        """Accept every vector."""


@runtime_checkable
class DifferentiableSpace(Space, Protocol):
    """A space whose difference has derivatives, which linear feedback needs."""

    def difference_jacobians(self, x0: Array, x1: Array) -> tuple[Array, Array]:
        """Return the derivatives of `difference` by perturbations of its two points.

        Args:
            x0: First point (nx,).
            x1: Second point (nx,).

        Returns:
            Derivative (ndx, ndx) by a perturbation of x0, and that by a perturbation of x1.
        """
        ...


def compute_difference_jacobians(space: Space, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Return the derivatives of a space's difference by perturbations of its two points.

    Args:
        space: A `DifferentiableSpace`.
        x0: First point (nx,).
        x1: Second point (nx,).

    Returns:
        Derivative (ndx, ndx) by a perturbation of x0, and that by a perturbation of x1.

    Raises:
        InputError: The space does not have these derivatives.
    """
    if not isinstance(space, DifferentiableSpace):
        raise InputError(f"space must have difference_jacobians for this, got {quote(space)}")
    return space.difference_jacobians(x0, x1)


def compute_tangent_map(space: Space, x: Array) -> Array:
    """Return the map L (nx, ndx) from velocities in the tangent space to rates of coordinates.

    A space with a method `tangent_map(x)` gives the map by this one call. For other spaces the map
    is put together from `rate`, column by column.

    Args:
        space: The space.
        x: Point (nx,).
    """
    own = getattr(space, "tangent_map", None)
    if own is not None:
        return np.asarray(own(x))
    columns = [space.rate(x, unit) for unit in np.eye(space.ndx)]
    return np.asarray(np.array(columns).reshape(-1, space.nx).T)


def invert_tangent_maps(maps: Array) -> Array:
    """Return the pseudo-inverses L^+ (..., ndx, nx) of `compute_tangent_map`: (L^T L)^-1 L^T.

    Args:
        maps: Maps L (..., nx, ndx), of independent columns.
    """
    turned = maps.swapaxes(-1, -2)
    gram = turned @ maps
    squares = gram.diagonal(axis1=-2, axis2=-1)
    across = np.abs(gram - squares[..., None] * np.eye(gram.shape[-1])).max(initial=0.0)
    if across <= _ORTHOGONAL * squares.min(initial=np.inf):  # the usual case, of quaternions
        return np.asarray(turned / squares[..., None])
    return np.asarray(np.linalg.solve(gram, turned))


def normalize_points(space: Space, points: Array) -> Array:
    """Return m points (m, nx), normalised; by one call where the space has `normalize_rows`.

    Args:
        space: The space.
        points: Coordinates (m, nx) of almost these points.
    """
    if isinstance(space, VectorSpace):
        return points
    rows = getattr(space, "normalize_rows", None)
    if rows is not None:
        return np.asarray(rows(points))
    return np.array([space.normalize(x) for x in points]).reshape(points.shape)


def compute_differences(space: Space, x: Array, points: Array) -> Array:
    """Return the differences from one point to many.

    Args:
        space: The manifold. One with nx = ndx is taken to be one whose coordinates add up: its
            `difference` must take all points at once.
        x: Point (nx,).
        points: Points (n, nx).

    Returns:
        Differences (n, ndx): `space.integrate(x, difference)` is the point of the same row.
    """
    if space.nx == space.ndx:
        return space.difference(x, points)  # coordinates that add up take all points at once
    return np.array([space.difference(x, point) for point in points])


def compute_mean(space: Space, points: Array, weights: Array, guess: Array) -> tuple[Array, Array]:
    """Return the weighted mean of points on a manifold, by fixed-point iteration.

    The mean is the point from which the weighted differences to all points add up to zero.

    Args:
        space: The manifold.
        points: Points (n, nx).
        weights: Weights (n,), which add up to one; they may be negative.
        guess: Point (nx,) where the iteration begins.

    Returns:
        The mean (nx,), and the differences (n, ndx) from it to the points. Where the iteration has
        not ended after `_MEAN_ITERATIONS`, those of the last point that it has reached.
    """
    x = guess
    for _ in range(_MEAN_ITERATIONS):
        differences = compute_differences(space, x, points)
        step = weights @ differences
        size, spread = (np.abs(values).max(initial=0.0) for values in (step, differences))
        small = _MEAN_STEP_PER_COORDINATE * np.abs(x).max(initial=0.0)
        if size <= _MEAN_STEP_PER_SPREAD * spread or size <= small:
            return x, differences
        x = space.normalize(space.integrate(x, step))
    return x, compute_differences(space, x, points)
