r"""Smooth surfaces that contact points can touch, as signed distances in their body's frame.

A surface is the zero set of a function phi with :math:`|\nabla\phi| = 1` there, positive on the
free side. All functions take n points (n, 3) at once, in m. A surface that also has a method
`expression(r)`, phi as a CasADi expression of the point (3, 1), can be generated.

Tangents are functions of the normal n. In space t_k = e_k - n_k (n + s e_3) / (1 + s n_3) for
k = 1, 2, where s is the sign of n_3: the reflection that takes s e_3 to n, which is orthogonal and
far from its singularity. In a plane of motion with axis e, t = e x n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, runtime_checkable

import casadi as ca
import numpy as np

from hybridctl.base.checks import (
    Array,
    Indices,
    check_callable,
    check_flag,
    check_number,
    check_vector,
)
from hybridctl.base.errors import InputError
from hybridctl.mechanics.multibody.joints import skew

_RANK_TOLERANCE = 1e-9
"""Motion of a contact point, relative to its largest, that counts as none in a direction."""
_LEAST_TILT = 1e-4
"""Angle in rad from which on a plane of motion is taken to be tilted on purpose. Axes that are
written with five digits are off by less."""
Expression: TypeAlias = Any
"""A CasADi expression."""


class ByValue:
    """Equality and hash of a frozen dataclass by its fields; arrays are compared by entry."""

    def _entries(self) -> tuple[Any, ...]:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return tuple(tuple(v.tolist()) if isinstance(v, np.ndarray) else v for v in values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._entries() == other._entries()

    def __hash__(self) -> int:
        return hash(self._entries())


@runtime_checkable
class Surface(Protocol):
    """A surface as the zero set of a signed distance phi, with derivatives up to the third.

    All points are in the frame of the surface's body, in m.
    """

    @property
    def curved(self) -> bool:
        """Whether second derivatives of phi differ from zero anywhere."""
        ...

    def distance(self, r: Array) -> Array:
        """Return the signed distances phi (n,) of points r (n, 3), m."""
        ...

    def normal(self, r: Array) -> Array:
        """Return the gradients (n, 3) of phi at points r (n, 3), to the free side.

        Their norm is 1 on the surface.
        """
        ...

    def curvature(self, r: Array) -> Array:
        """Return the Hessians (n, 3, 3) of phi at points r (n, 3), 1/m."""
        ...

    def curvature_along(self, r: Array, direction: Array) -> Array:
        """Return the derivatives (n, 3, 3) of the Hessians at points r along directions (n, 3)."""
        ...


@runtime_checkable
class ExpressedSurface(Protocol):
    """A surface whose distance can be written as a CasADi expression, see `Surface` for phi."""

    def expression(self, r: Expression) -> Expression:
        """Return the signed distance phi (1, 1) of a point r (3, 1), m."""
        ...


class Level:
    """A surface without curvature."""

    curved = False

    def curvature(self, r: Array) -> Array:
        """Return the Hessians (n, 3, 3) of phi at points r (n, 3), which are zero."""
        return np.zeros((len(r), 3, 3))

    def curvature_along(self, r: Array, direction: Array) -> Array:
        """Return the derivatives (n, 3, 3) of the Hessians at points r (n, 3), which are zero."""
        return np.zeros((len(r), 3, 3))


@dataclass(frozen=True, eq=False)
class _Flat(Level):
    """Planes: one for all points, or one for each of n points.

    Attributes:
        point: Point on the plane (3,), or on each plane (n, 3), m.
        unit_normal: Normal (3,) or (n, 3), to the free side.
    """

    point: Array
    unit_normal: Array

    def distance(self, r: Array) -> Array:
        """Return the distances n . (r - point) (n,) of points r (n, 3), m."""
        return np.asarray(((r - self.point) * self.unit_normal).sum(axis=1))

    def normal(self, r: Array) -> Array:
        """Return the normals (n, 3) at points r (n, 3)."""
        return np.broadcast_to(self.unit_normal, r.shape)


@dataclass(frozen=True, eq=False)
class _Round:
    """Spheres: one for all points, or one for each of n points.

    Attributes:
        center: Centre (3,) or (n, 3), m.
        radius: Radius, or radii (n,), m.
        inside: Whether the free side is inside, or (n,) such values.
    """

    center: Array
    radius: float | Array
    inside: bool | Array = False
    curved = True

    @property
    def _side(self) -> Array:
        """-1 where the free side is inside, else 1."""
        return np.where(self.inside, -1.0, 1.0)

    def distance(self, r: Array) -> Array:
        """Return |r - center| - radius (n,) of points r (n, 3), m.

        It is the negative of that where the free side is inside.
        """
        return np.asarray(self._side * (np.linalg.norm(r - self.center, axis=1) - self.radius))

    def normal(self, r: Array) -> Array:
        """Return the radial directions (n, 3) at points r (n, 3), to the free side."""
        e = r - self.center
        return np.asarray((self._side / np.linalg.norm(e, axis=1))[:, None] * e)

    def curvature(self, r: Array) -> Array:
        """Return the Hessians of `distance` (n, 3, 3) at points r (n, 3), 1/m.

        With the distance rho and the outward direction d from the centre they are
        (I - d d') / rho; the negative of that where the free side is inside.
        """
        e = r - self.center
        rho = np.linalg.norm(e, axis=1)
        d = e / rho[:, None]
        flat = np.eye(3) - d[:, :, None] * d[:, None, :]
        return np.asarray((self._side / rho)[:, None, None] * flat)

    def curvature_along(self, r: Array, direction: Array) -> Array:
        """Return the derivatives of the Hessians along directions s.

        With the outward direction d from the centre, and the tangential part s_t of s, they are
        -((d.s) (I - d d') + s_t d' + d s_t') / rho^2; the negative of that where the free side is
        inside.

        Args:
            r: Points (n, 3), m.
            direction: Directions s (n, 3).

        Returns:
            Derivatives (n, 3, 3).
        """
        e = r - self.center
        rho = np.linalg.norm(e, axis=1)
        d = e / rho[:, None]
        radial = np.sum(d * direction, axis=1)
        tangential = direction - radial[:, None] * d
        flat = np.eye(3) - d[:, :, None] * d[:, None, :]
        mixed = tangential[:, :, None] * d[:, None, :]
        total = radial[:, None, None] * flat + mixed + mixed.transpose(0, 2, 1)
        return np.asarray(-(self._side / rho**2)[:, None, None] * total)


@dataclass(frozen=True, eq=False)
class Plane(ByValue, _Flat):
    """A plane.

    Args:
        point: Point (3,) on the plane, in the frame of its body, m.
        normal: Normal (3,) to the free side, of any length but zero.

    Raises:
        InputError: The normal is zero, or an argument is not (3,).
    """

    def __init__(self, point: object, normal: object) -> None:
        n = check_vector("normal", normal, 3)  # type: ignore[arg-type]
        length = float(np.linalg.norm(n))
        if length == 0.0:
            raise InputError("normal must not be zero")
        object.__setattr__(self, "point", check_vector("point", point, 3))  # type: ignore[arg-type]
        object.__setattr__(self, "unit_normal", check_vector("normal", n / length, 3))

    def expression(self, r: Expression) -> Expression:
        """Return the signed distance phi of a point r (3, 1), m."""
        return ca.dot(ca.DM(self.unit_normal), r - ca.DM(self.point))


@dataclass(frozen=True, eq=False)
class Sphere(ByValue, _Round):
    """A sphere that is touched from outside, or a bowl that is touched from within.

    Attributes:
        center: Centre (3,) in the frame of its body, m.
        radius: Radius, m.
        inside: Whether it is a bowl.
    """

    radius: float
    inside: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "center", check_vector("center", self.center, 3))
        object.__setattr__(self, "radius", check_number("radius", self.radius, above=0.0))
        check_flag("inside", self.inside)

    def expression(self, r: Expression) -> Expression:
        """Return the signed distance phi of a point r (3, 1), m."""
        e = r - ca.DM(self.center)
        return float(self._side) * (ca.sqrt(ca.dot(e, e)) - self.radius)


@dataclass(frozen=True, eq=False)
class Terrain(ByValue):
    r"""Smooth ground z = h(x, y) in the frame of its body, touched from above.

    .. math:: \phi = (z - h) / \sqrt{1 + h_x^2 + h_y^2},

    Its gradient on the ground is the unit normal; off the ground phi is a distance to first order.

    Derivatives of h up to the fourth are used. Where h is given in pieces, forces jump at their
    borders. Height and slope must not jump there: a closed contact that slides over such a border
    ends the run in an `IntegrationError`.

    Attributes:
        serialized: The function h, serialized by CasADi.

    Args:
        height: Function that returns h in m for CasADi expressions x and y in m, such as
            `lambda x, y: 0.1 * x * y`.

    Raises:
        InputError: The height is no number or expression of x and y alone, or not finite at (0, 0).
    """

    serialized: str
    curved = True

    def __init__(self, height: Callable[[Expression, Expression], Expression]) -> None:
        check_callable("height", height)
        x, y = ca.SX.sym("x"), ca.SX.sym("y")
        try:
            h = ca.Function("height", [x, y], [ca.densify(ca.SX(height(x, y)))])
        except (RuntimeError, NotImplementedError) as error:
            raise InputError(f"height must give an expression of x and y alone: {error}") from error
        if h.numel_out() != 1:
            raise InputError(f"height must give one number, got {h.size_out(0)}")
        if not np.isfinite(float(h(0.0, 0.0))):
            raise InputError(f"height must be finite, got {float(h(0.0, 0.0))} at (0, 0)")
        object.__setattr__(self, "serialized", h.serialize())

    def __repr__(self) -> str:
        return f"Terrain({ca.Function.deserialize(self.serialized)})"

    def heights(self, x: Array, y: Array) -> Array:
        """Return the heights h (n,) at places x (n,) and y (n,), all in m."""
        h = ca.Function.deserialize(self.serialized)
        return np.asarray(h(ca.DM(x).T, ca.DM(y).T)).ravel()

    def expression(self, r: Expression) -> Expression:
        """Return the signed distance phi of a point r (3, 1), m."""
        x, y = ca.SX.sym("x"), ca.SX.sym("y")
        h = ca.Function.deserialize(self.serialized)(x, y)
        phi = (r[2] - h) / ca.sqrt(1.0 + ca.sumsqr(ca.gradient(h, ca.vertcat(x, y))))
        return ca.substitute(phi, ca.vertcat(x, y), r[:2])

    def distance(self, r: Array) -> Array:
        """Return the signed distances phi (n,) of points r (n, 3), m."""
        return self._evaluate(0, r)

    def normal(self, r: Array) -> Array:
        """Return the gradients (n, 3) of phi at points r (n, 3)."""
        return self._evaluate(1, r)

    def curvature(self, r: Array) -> Array:
        """Return the Hessians (n, 3, 3) of phi at points r (n, 3), 1/m."""
        return self._evaluate(2, r)

    def curvature_along(self, r: Array, direction: Array) -> Array:
        """Return the derivatives (n, 3, 3) of the Hessians at points r along directions (n, 3)."""
        return self._evaluate(3, r, direction)

    def _evaluate(self, order: int, *points: Array) -> Array:
        """Return the derivative of phi of an order at points, and along directions for order 3."""
        function = _build_derivatives(self)[order]
        values = [np.asarray(function(*each)) for each in zip(*points, strict=True)]
        shape = ((), (3,), (3, 3), (3, 3))[order]
        return np.array(values).reshape(len(points[0]), *shape)


@lru_cache
def _build_derivatives(surface: Terrain) -> tuple[Any, Any, Any, Any]:
    """Return CasADi functions of r to phi, gradient and Hessian, and of r, s to its slope."""
    r, s = ca.SX.sym("r", 3), ca.SX.sym("s", 3)
    phi = surface.expression(r)
    hessian, gradient = ca.hessian(phi, r)
    along = ca.reshape(ca.jtimes(ca.vec(hessian), r, s), 3, 3)
    results = ([r], [phi]), ([r], [gradient]), ([r], [hessian]), ([r, s], [along])
    functions = [
        ca.Function("terrain", arguments, [ca.densify(value) for value in values])
        for arguments, values in results
    ]
    return functions[0], functions[1], functions[2], functions[3]


def group_surfaces(surfaces: Sequence[Surface]) -> list[tuple[Surface, Indices]]:
    """Return the surfaces of n points as few surfaces of several points each.

    All planes become one object, and so do all spheres, so that one call evaluates them.

    Args:
        surfaces: Surface of each point.

    Returns:
        Surfaces, each with the indices of its points.
    """
    places: dict[object, list[int]] = {}
    for i, surface in enumerate(surfaces):
        kind = type(surface) if type(surface) in (Plane, Sphere) else id(surface)
        places.setdefault(kind, []).append(i)
    return [
        (_join_surfaces([surfaces[i] for i in indices]), np.array(indices, dtype=np.intp))
        for indices in places.values()
    ]


def _join_surfaces(alike: Sequence[Surface]) -> Surface:
    """Return one surface for several points, of surfaces of one kind or of one surface."""
    first = alike[0]
    if all(other is first for other in alike):
        return first
    planes = [each for each in alike if isinstance(each, Plane)]
    if planes:
        return _Flat(np.array([p.point for p in planes]), np.array([p.unit_normal for p in planes]))
    spheres = [each for each in alike if isinstance(each, Sphere)]
    return _Round(
        np.array([s.center for s in spheres]),
        np.array([s.radius for s in spheres]),
        np.array([s.inside for s in spheres]),
    )


class TangentFrames:
    """The tangents of some contacts, as functions of their normals (see this module).

    Attributes:
        axes: Axis (3,) of the plane of motion of each contact, which then has one tangent; None for
            a contact that moves in space and has two.
        owner: Contact of each tangent.

    Args:
        contacts: Indices of the contacts that have tangents.
        axes: Axis of the plane of motion of each contact, or None.
    """

    def __init__(self, contacts: Sequence[int], axes: Sequence[Array | None]) -> None:
        self.axes = tuple(axes)
        self.owner: list[int] = []
        numbers: list[int] = []
        planar: list[Array] = []
        for i in contacts:
            axis = axes[i]
            own = [0, 1] if axis is None else [-1]  # e_1 and e_2, or the tangent in the plane
            self.owner += [i] * len(own)
            numbers += own
            planar += [np.zeros(3) if axis is None else axis] * len(own)
        self._in_space = np.array(numbers) >= 0
        self._basis = np.eye(3)[np.maximum(np.array(numbers, dtype=np.intp), 0)]
        self._turns = skew(np.array(planar)) if planar else np.zeros((0, 3, 3))

    def compute_tangents(self, n: Array) -> Array:
        """Return the tangents (m, 3) at the normals n (m, 3) of their contacts."""
        tangents = (self._turns @ n[:, :, None])[:, :, 0]
        if self._in_space.any():
            _, middle, shrunk, _ = self._reflection(n)
            reflected = self._basis - shrunk[:, None] * middle
            tangents = np.where(self._in_space[:, None], reflected, tangents)
        return np.asarray(tangents)

    def differentiate_tangents(self, n: Array) -> Array:
        """Return the derivatives D_n t (m, 3, 3) at the normals n (m, 3)."""
        slopes = self._turns
        if self._in_space.any():
            third, middle, shrunk, scale = self._reflection(n)
            by_n = scale[:, None] * (self._basis - shrunk[:, None] * third)
            slope = -middle[:, :, None] * by_n[:, None, :]
            slope -= shrunk[:, None, None] * np.eye(3)
            slopes = np.where(self._in_space[:, None, None], slope, slopes)
        return np.asarray(slopes)

    def _reflection(self, n: Array) -> tuple[Array, Array, Array, Array]:
        """Return s e_3, n + s e_3, n_k / (1 + s n_3) and 1 / (1 + s n_3) of the reflection."""
        sign = np.where(n[:, 2] < 0.0, -1.0, 1.0)
        third = sign[:, None] * np.array([0.0, 0.0, 1.0])
        scale = 1.0 / (1.0 + sign * n[:, 2])
        return third, n + third, (self._basis * n).sum(axis=1) * scale, scale


def find_plane_of_motion(contact: str, moves: Array, normals: Array) -> Array | None:
    """Return the normal of the plane in which the point of a contact moves (its axis).

    In space, friction across a plane that the point nearly moves in could not be told from no
    friction. In the plane it would be left out. So a point that nearly moves in a plane is refused.

    Args:
        contact: Name of the contact, for messages.
        moves: Velocities (3, k) of the point relative to the surface, in its frame, at several
            configurations.
        normals: Normals (m, 3) there, which lie in the plane too.

    Returns:
        Unit axis (3,) in the frame of the surface, normal to the plane; None if the point moves in
        space. Of a point that moves along a line the plane has the normal of the surface, too.

    Raises:
        InputError: The point leaves a plane by an angle below 1e-4 rad, but not by less than 1e-9:
            that is rounding of a plane.
    """
    left, sizes, _ = np.linalg.svd(moves)
    rank = int((sizes > _RANK_TOLERANCE * sizes.max(initial=_RANK_TOLERANCE)).sum())
    if rank == 3:
        _check_tilt(contact, float(sizes[2] / sizes[0]))
        return None
    axis: Array = left[:, 2]
    if rank == 1:  # along a line: the plane that holds the line and the normal
        across = np.cross(left[:, 0], normals[0])
        length = float(np.linalg.norm(across))
        axis = across / length if length > _RANK_TOLERANCE else axis
    tilt = float(np.abs(normals @ axis).max())
    if tilt > _RANK_TOLERANCE:
        _check_tilt(contact, tilt)
        return None
    return np.asarray(axis * np.sign(axis[np.abs(axis).argmax()]))


def _check_tilt(contact: str, tilt: float) -> None:
    """Refuse a contact that leaves a plane of motion by a small angle in rad.

    Raises:
        InputError: The angle is below 1e-4 rad.
    """
    if tilt < _LEAST_TILT:
        raise InputError(
            f"contact {contact!r} must move in a plane or in space, but leaves a plane by "
            f"{tilt:.3g} rad only: give the axes of joints and the normal of the surface all their "
            "digits (rpy of 1.5707963267948966, not 1.5708), or tilt them clearly"
        )
