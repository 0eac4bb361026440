"""State spaces: points in `nx` coordinates, perturbations in an `ndx`-dimensional tangent space.

Jacobians, covariances and gains live in the tangent space. In a vector space `integrate` and
`difference` are + and -; on a manifold they satisfy integrate(x, difference(x, y)) = y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from hybridctl.base.checks import Array, count, quoted
from hybridctl.base.errors import InputError


@runtime_checkable
class Space(Protocol):
    """A state space X of dimension `ndx`, embedded in `nx` coordinates."""

    @property
    def nx(self) -> int:
        """Number of coordinates of a point."""
        ...

    @property
    def ndx(self) -> int:
        """Dimension of the tangent space."""
        ...

    def integrate(self, x: Array, dx: Array) -> Array:
        """The point reached from x (nx,) along dx (ndx,)."""
        ...

    def difference(self, x0: Array, x1: Array) -> Array:
        """The perturbation (ndx,) that leads from x0 to x1."""
        ...

    def rate(self, x: Array, dx: Array) -> Array:
        """Time derivative (nx,) of the coordinates of x when it moves with velocity dx (ndx,)."""
        ...

    def transport(self, dx: Array) -> Array:
        r"""How a perturbation turns with the point that carries it, (ndx, ndx).

        A perturbation z of a trajectory that moves with velocity f(x) obeys
        :math:`\dot z = (D_x f + T(f)) z`, where T is this matrix: zero in a vector space,
        minus the adjoint action of f on a Lie group with perturbations in the body frame.
        """
        ...

    def normalize(self, x: Array) -> Array:
        """The nearest point of the space, to take rounding off; x itself in a vector space."""
        ...

    def check(self, name: str, x: Array) -> None:
        """Raise `InputError` if x is not a point of the space."""
        ...


@dataclass(frozen=True)
class VectorSpace:
    """The space R^n, where points and perturbations are the same thing."""

    n: int

    def __post_init__(self) -> None:
        count("n", self.n)

    @property
    def nx(self) -> int:
        """The number n of coordinates."""
        return self.n

    @property
    def ndx(self) -> int:
        """The number n of coordinates."""
        return self.n

    def integrate(self, x: Array, dx: Array) -> Array:
        """The point x + dx."""
        return x + dx

    def difference(self, x0: Array, x1: Array) -> Array:
        """The perturbation x1 - x0."""
        return x1 - x0

    def difference_jacobians(self, x0: Array, x1: Array) -> tuple[Array, Array]:
        """The derivatives: the negative identity, and the identity."""
        return -np.eye(self.n), np.eye(self.n)

    def rate(self, x: Array, dx: Array) -> Array:
        """The rate of the coordinates, which is dx itself."""
        return dx

    def transport(self, dx: Array) -> Array:
        """The transport, which is zero."""
        return np.zeros((self.n, self.n))

    def normalize(self, x: Array) -> Array:
        """The state x itself."""
        return x

    def check(self, name: str, x: Array) -> None:
        """There is nothing to check: every vector is a point."""


@runtime_checkable
class DifferentiableSpace(Space, Protocol):
    """A space whose difference has derivatives, which feedback of it needs."""

    def difference_jacobians(self, x0: Array, x1: Array) -> tuple[Array, Array]:
        """Derivatives (ndx, ndx) of difference(x0, x1) by a perturbation of x0, and of x1."""
        ...


def difference_jacobians(space: Space, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Derivatives of a `DifferentiableSpace`; `InputError` for a space that has none."""
    if not isinstance(space, DifferentiableSpace):
        raise InputError(f"space must have difference_jacobians for this, got {quoted(space)}")
    return space.difference_jacobians(x0, x1)


def tangent_map(space: Space, x: Array) -> Array:
    """The map L (nx, ndx) from velocities to rates of coordinates at x.

    By the space's own method of this name, if it has one, or by its `rate`, column by column.
    """
    own = getattr(space, "tangent_map", None)
    if own is not None:
        return np.asarray(own(x))
    columns = [space.rate(x, unit) for unit in np.eye(space.ndx)]
    return np.asarray(np.array(columns).reshape(-1, space.nx).T)
