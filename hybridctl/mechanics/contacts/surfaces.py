r"""Smooth surfaces that contact points can touch, as signed distances in their body's frame.

A surface is the zero set of a function phi with :math:`|\nabla\phi| = 1`, positive on the free
side. All functions take n points (n, 3) at once, in m. A surface that also has a method
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

_NO_MOTION = 1e-9
"""Of the largest: motions of a contact point in directions in which it does not move."""
_CLEARLY_TILTED = 1e-4  # rad: axes written with five digits are off by less
Expression: TypeAlias = Any


class ByValue:
    """Equality and hash of a frozen dataclass by its fields, and of arrays among them by entry."""

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
    """Signed distance of points and its derivatives up to the third."""

    @property
    def curved(self) -> bool:
        """Whether the second derivatives differ from zero anywhere."""
        ...

    def distance(self, r: Array) -> Array:
        """The signed distances phi(r), (n,) in m."""
        ...

    def normal(self, r: Array) -> Array:
        """Gradient of phi (n, 3), of norm one, towards the free side."""
        ...

    def curvature(self, r: Array) -> Array:
        """Hessian of phi (n, 3, 3), in 1/m."""
        ...

    def curvature_along(self, r: Array, direction: Array) -> Array:
        """Derivative of the Hessian along `direction` (n, 3): (n, 3, 3)."""
        ...


@runtime_checkable
class ExpressedSurface(Protocol):
    """A surface that can be generated."""

    def expression(self, r: Expression) -> Expression:
        """The signed distance phi (1, 1) of the point r (3, 1), as CasADi expressions."""
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
    """Planes: one for all points, with fields (3,), or one for each of n, with fields (n, 3)."""

    point: Array
    unit_normal: Array

    def distance(self, r: Array) -> Array:
        """The distances n . (r - point)."""
        return np.asarray(((r - self.point) * self.unit_normal).sum(axis=1))

    def normal(self, r: Array) -> Array:
        """The normal n."""
        return np.broadcast_to(self.unit_normal, r.shape)


@dataclass(frozen=True, eq=False)
class _Round:
    """Spheres: one for all points, or one for each of n, with fields (n, 3), (n,) and (n,)."""

    center: Array
    radius: float | Array
    inside: bool | Array = False
    curved = True

    @property
    def _side(self) -> Array:
        return np.where(self.inside, -1.0, 1.0)

    def distance(self, r: Array) -> Array:
        """The distances |r - center| - radius, or their negatives inside."""
        return np.asarray(self._side * (np.linalg.norm(r - self.center, axis=1) - self.radius))

    def normal(self, r: Array) -> Array:
        """The radial direction d."""
        e = r - self.center
        return np.asarray((self._side / np.linalg.norm(e, axis=1))[:, None] * e)

    def curvature(self, r: Array) -> Array:
        """The curvature (I - d d') / rho at distance rho from the center."""
        e = r - self.center
        rho = np.linalg.norm(e, axis=1)
        d = e / rho[:, None]
        flat = np.eye(3) - d[:, :, None] * d[:, None, :]
        return np.asarray((self._side / rho)[:, None, None] * flat)

    def curvature_along(self, r: Array, direction: Array) -> Array:
        """The slope -((d.s) (I - d d') + s_t d' + d s_t') / rho^2, s_t the tangential part of s."""
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
    """The plane through `point` whose `normal` points to the free side; normalised."""

    def __init__(self, point: object, normal: object) -> None:
        n = check_vector("normal", normal, 3)  # type: ignore[arg-type]
        length = float(np.linalg.norm(n))
        if length == 0.0:
            raise InputError("normal must not be zero")
        object.__setattr__(self, "point", check_vector("point", point, 3))  # type: ignore[arg-type]
        object.__setattr__(self, "unit_normal", check_vector("normal", n / length, 3))

    def expression(self, r: Expression) -> Expression:
        """The signed distance phi of the point r (3, 1)."""
        return ca.dot(ca.DM(self.unit_normal), r - ca.DM(self.point))


@dataclass(frozen=True, eq=False)
class Sphere(ByValue, _Round):
    """A sphere touched from outside, or with `inside` a bowl touched from within."""

    radius: float
    inside: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "center", check_vector("center", self.center, 3))
        object.__setattr__(self, "radius", check_number("radius", self.radius, above=0.0))
        check_flag("inside", self.inside)

    def expression(self, r: Expression) -> Expression:
        """The signed distance phi of the point r (3, 1)."""
        e = r - ca.DM(self.center)
        return float(self._side) * (ca.sqrt(ca.dot(e, e)) - self.radius)


@dataclass(frozen=True, eq=False)
class Terrain(ByValue):
    r"""Smooth ground z = h(x, y) in the frame of its body, touched from above.

    .. math:: \phi = (z - h) / \sqrt{1 + h_x^2 + h_y^2},

    whose gradient on the ground is the unit normal; off it phi is a distance to first order. h is
    kept `serialized`. Derivatives up to the fourth of h are needed: a height that is given in
    pieces makes forces jump where they meet. Height and slope must not jump there: a closed contact
    that slides over such a border is an `IntegrationError`.
    """

    serialized: str
    curved = True

    def __init__(self, height: Callable[[Expression, Expression], Expression]) -> None:
        """The surface of a height: h in m by CasADi x and y in m, as `lambda x, y: 0.1 * x * y`.

        Raises `InputError` for what is no number or expression of x and y alone, or not finite at
        (0, 0).
        """
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
        """The heights h (n,) at n places, m."""
        h = ca.Function.deserialize(self.serialized)
        return np.asarray(h(ca.DM(x).T, ca.DM(y).T)).ravel()

    def expression(self, r: Expression) -> Expression:
        """The signed distance phi of the point r (3, 1)."""
        x, y = ca.SX.sym("x"), ca.SX.sym("y")
        h = ca.Function.deserialize(self.serialized)(x, y)
        phi = (r[2] - h) / ca.sqrt(1.0 + ca.sumsqr(ca.gradient(h, ca.vertcat(x, y))))
        return ca.substitute(phi, ca.vertcat(x, y), r[:2])

    def distance(self, r: Array) -> Array:
        """The signed distances phi (n,)."""
        return self._at(0, r)

    def normal(self, r: Array) -> Array:
        """Gradient of phi (n, 3)."""
        return self._at(1, r)

    def curvature(self, r: Array) -> Array:
        """Hessian of phi (n, 3, 3)."""
        return self._at(2, r)

    def curvature_along(self, r: Array, direction: Array) -> Array:
        """The derivative of the curvature along `direction` (n, 3): (n, 3, 3)."""
        return self._at(3, r, direction)

    def _at(self, order: int, *points: Array) -> Array:
        of_one = _derivatives(self)[order]
        found = [np.asarray(of_one(*each)) for each in zip(*points, strict=True)]
        shape = ((), (3,), (3, 3), (3, 3))[order]
        return np.array(found).reshape(len(points[0]), *shape)


@lru_cache
def _derivatives(surface: Terrain) -> tuple[Any, Any, Any, Any]:
    """The function of r to phi, gradient and Hessian, and that of r and s to its slope along s."""
    r, s = ca.SX.sym("r", 3), ca.SX.sym("s", 3)
    phi = surface.expression(r)
    hessian, gradient = ca.hessian(phi, r)
    along = ca.reshape(ca.jtimes(ca.vec(hessian), r, s), 3, 3)
    results = ([r], [phi]), ([r], [gradient]), ([r], [hessian]), ([r, s], [along])
    made = [ca.Function("terrain", of, [ca.densify(v) for v in what]) for of, what in results]
    return made[0], made[1], made[2], made[3]


def grouped(surfaces: Sequence[Surface]) -> list[tuple[Surface, Indices]]:
    """The surfaces of n points as few that take several: each with the places of its points.

    Planes become one, and so do spheres.
    """
    places: dict[object, list[int]] = {}
    for i, surface in enumerate(surfaces):
        kind = type(surface) if type(surface) in (Plane, Sphere) else id(surface)
        places.setdefault(kind, []).append(i)
    return [
        (_joined([surfaces[i] for i in those]), np.array(those, dtype=np.intp))
        for those in places.values()
    ]


def _joined(alike: Sequence[Surface]) -> Surface:
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
    """The tangents of some contacts: one where `axes` has an axis for it, otherwise two.

    `owner` is the contact of each tangent; `axes` are kept.
    """

    def __init__(self, contacts: Sequence[int], axes: Sequence[Array | None]) -> None:
        self.axes = tuple(axes)
        self.owner: list[int] = []
        numbers: list[int] = []
        planar: list[Array] = []
        for i in contacts:
            axis = axes[i]
            here = [0, 1] if axis is None else [-1]
            self.owner += [i] * len(here)
            numbers += here
            planar += [np.zeros(3) if axis is None else axis] * len(here)
        self._in_space = np.array(numbers) >= 0
        self._basis = np.eye(3)[np.maximum(np.array(numbers, dtype=np.intp), 0)]
        self._turns = skew(np.array(planar)) if planar else np.zeros((0, 3, 3))

    def at(self, n: Array) -> Array:
        """The tangents (m, 3) at the normals n (m, 3) of their contacts."""
        tangents = (self._turns @ n[:, :, None])[:, :, 0]
        if self._in_space.any():
            _, middle, shrunk, _ = self._reflection(n)
            reflected = self._basis - shrunk[:, None] * middle
            tangents = np.where(self._in_space[:, None], reflected, tangents)
        return np.asarray(tangents)

    def slopes(self, n: Array) -> Array:
        """The derivatives D_n t (m, 3, 3) at the normals n (m, 3)."""
        slopes = self._turns
        if self._in_space.any():
            third, middle, shrunk, scale = self._reflection(n)
            by_n = scale[:, None] * (self._basis - shrunk[:, None] * third)
            slope = -middle[:, :, None] * by_n[:, None, :]
            slope -= shrunk[:, None, None] * np.eye(3)
            slopes = np.where(self._in_space[:, None, None], slope, slopes)
        return np.asarray(slopes)

    def _reflection(self, n: Array) -> tuple[Array, Array, Array, Array]:
        """The parts s e_3, n + s e_3, n_k / (1 + s n_3) and 1 / (1 + s n_3) of a reflection."""
        sign = np.where(n[:, 2] < 0.0, -1.0, 1.0)
        third = sign[:, None] * np.array([0.0, 0.0, 1.0])
        scale = 1.0 / (1.0 + sign * n[:, 2])
        return third, n + third, (self._basis * n).sum(axis=1) * scale, scale


def plane_of_motion(contact: str, moves: Array, normals: Array) -> Array | None:
    """The axis of the plane in which the point of a contact moves, None if it moves in space.

    `moves` (3, k): velocities of the point relative to the surface, in its frame, at several
    configurations; `normals` (m, 3) the normals there, which lie in the plane too.

    Raises `InputError` where it all but moves in a plane: in space friction across that plane
    could not be told from nothing, and in the plane it would be left out.
    """
    left, sizes, _ = np.linalg.svd(moves)
    rank = int((sizes > _NO_MOTION * sizes.max(initial=_NO_MOTION)).sum())
    if rank == 3:
        _check_clear(contact, float(sizes[2] / sizes[0]))
        return None
    axis: Array = left[:, 2]
    if rank == 1:  # along a line: the plane that holds the line and the normal
        across = np.cross(left[:, 0], normals[0])
        length = float(np.linalg.norm(across))
        axis = across / length if length > _NO_MOTION else axis
    tilt = float(np.abs(normals @ axis).max())
    if tilt > _NO_MOTION:
        _check_clear(contact, tilt)
        return None
    return np.asarray(axis * np.sign(axis[np.abs(axis).argmax()]))


def _check_clear(contact: str, tilt: float) -> None:
    if tilt < _CLEARLY_TILTED:
        raise InputError(
            f"contact {contact!r} must move in a plane or in space, but leaves a plane by "
            f"{tilt:.3g} rad only: give the axes of joints and the normal of the surface all their "
            "digits (rpy of 1.5707963267948966, not 1.5708), or tilt them clearly"
        )
