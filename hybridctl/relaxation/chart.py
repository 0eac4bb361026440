r"""A guard and the border its reset leads to, glued: what lies behind the one, seen in the other.

A guard g of mode j (positive inside it) with the reset R to mode j', whose guard h is zero on the
image, [Relax] (3) to (6). With P the orthogonal projection onto g = 0 and n = grad h / |grad h|^2,

.. math:: \bar R(t, x) = R(t, P(x)) - n\, g(t, x), \qquad
   \bar A = D_x R\, (1 - \hat g \hat g^T) - n\, \nabla g^T,

takes points behind the guard to points inside j'. \bar A is the derivative of \bar R where guard
and border are flat, and to first order in the distance from the guard where they are curved. Where
it does not reach all of the target, the columns of V do, [Relax] (15), (16).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import SystemDefinitionError
from hybridctl.base.spaces import VectorSpace
from hybridctl.hybrid.guards import GuardSet
from hybridctl.hybrid.mode import ModeKey, ModeModel, ResetJacobian, ResetModel
from hybridctl.hybrid.system import HybridSystem

_ITERATIONS = 20
_SAMPLES = 12
_ON = 1e-9  # of a guard: how near to zero a sample is on it
_CLOSE = 1e-13  # of the size of the state, or of 1: how far from its guard a projected point may be
_FLAT = 1e-12  # of the largest entry, or of 1: by how much derivatives of an affine map may vary
_RANK = 1e-9  # of the largest singular value: a smaller one is none


@dataclass(frozen=True, eq=False)
class Border:
    """A guard of a mode, taken as a surface of the state space."""

    mode: ModeModel
    guards: GuardSet
    index: int

    @property
    def name(self) -> str:
        """The name of the guard."""
        return self.guards.names[self.index]

    @property
    def others(self) -> list[int]:
        """The other guards of the mode."""
        return [i for i in range(len(self.guards.names)) if i != self.index]

    def value(self, t: float, x: Array, u: Array) -> float:
        """The value g(t, x, u) of the guard."""
        return self.guards.value(self.index, t, x, u)

    def derivative(self, t: float, x: Array, u: Array) -> tuple[float, Array]:
        """The derivatives D_t g and D_x g (n,).

        Raises `SystemDefinitionError` for a guard that has none, or that sees the input.
        """
        if self.guards.jacobian is None:
            raise SystemDefinitionError(f"guard {self.name!r} of {self.mode.key!r} has no Jacobian")
        d = self.guards.jacobian(t, x, u)
        if np.any(d.input[self.index]):
            raise SystemDefinitionError(
                f"guard {self.name!r} of mode {self.mode.key!r} depends on the input, behind such "
                "a guard no strip is defined"
            )
        return float(d.time[self.index]), d.state[self.index]

    @cached_property
    def points(self) -> list[tuple[float, Array, Array]]:
        """Times, states and inputs on the guard, from random states: the same ones every time.

        Raises `SystemDefinitionError` where none of these reaches it.
        """
        u, found = np.zeros(self.mode.nu), []
        samples = np.random.default_rng(0).normal(size=(_SAMPLES, self.mode.space.nx))
        with np.errstate(all="ignore"):
            for k, x in enumerate(samples):
                t = float(k % 2)
                foot = self.foot(t, x, u)
                if np.isfinite(foot).all() and abs(self.value(t, foot, u)) <= _ON:
                    found.append((t, foot, u))
        if not found:
            raise SystemDefinitionError(
                f"no point on guard {self.name!r} of mode {self.mode.key!r} was found from "
                f"{_SAMPLES} random states"
            )
        return found

    def foot(self, t: float, x: Array, u: Array) -> Array:
        """The point on the guard that is reached from x (n,) along its gradient."""
        for _ in range(_ITERATIONS):
            g, slope = self.value(t, x, u), self.derivative(t, x, u)[1]
            if abs(g) <= _CLOSE * np.linalg.norm(slope) * max(1.0, float(np.abs(x).max())):
                break
            x = x - slope * (g / float(slope @ slope))
        return x


def passage(system: HybridSystem, key: ModeKey, name: str) -> tuple[Border, ResetModel, ModeModel]:
    """A guard of a mode, its reset, and the mode that this leads to.

    Raises `SystemDefinitionError` where the reset names the target, and for modes on manifolds.
    """
    source, way = system.mode(key), system.outgoing(key)
    index = way.guards.names.index(check_member(f"guard of mode {key!r}", name, way.guards.names))
    edge = way.edge((name,))
    if edge is None or edge.target is None:
        raise SystemDefinitionError(
            f"the transition of guard {name!r} of mode {key!r} leaves its target to the reset, so "
            "that what lies behind this guard is not known"
        )
    target = system.mode(edge.target)
    for mode in (source, target):
        if not isinstance(mode.space, VectorSpace):
            raise SystemDefinitionError(
                f"mode {mode.key!r} has the space {mode.space!r}; guards are glued in vector spaces"
            )
    return Border(source, way.guards, index), edge.reset, target


class Local(NamedTuple):
    r"""The chart at a point (t, x).

    gap: g. rate: D_t g. slope (n,): D_x g. landed (n',): \bar R. normal (n',): n, or zero where the
    image is no border. matrix (n', n): \bar A. drift (n',): D_t \bar R. reset (n', n): D_x R.
    inverse (n + p, n'): the right inverse of (\bar A | V), of least norm.
    """

    gap: float
    rate: float
    slope: Array
    landed: Array
    normal: Array
    matrix: Array
    drift: Array
    reset: Array
    inverse: Array


@dataclass(frozen=True, eq=False)
class Curved:
    """The chart of any guard, reset and border; basis (n', p): V.

    `affine`: whether its matrices are the same everywhere.
    """

    guard: Border
    reset: ResetModel
    border: Border | None
    basis: Array
    affine = False

    def at(self, t: float, x: Array, u: Array) -> Local:
        """The chart at (t, x); u (nu,) is passed to guards and reset, which ignore it."""
        g, foot = self.guard.value(t, x, u), self.guard.foot(t, x, u)
        rate, slope = self.guard.derivative(t, foot, u)
        landed, d = self.reset(t, foot, u).state, self._derivative(t, foot, u)
        unit = slope / float(slope @ slope)
        matrix = d.state - np.outer(d.state @ unit, slope)
        drift = d.time - (d.state @ unit) * rate
        normal = np.zeros(len(landed))
        if self.border is not None:
            inwards = self.border.derivative(t, landed, u)[1]
            normal = inwards / float(inwards @ inwards)
        matrix, drift = matrix - np.outer(normal, slope), drift - normal * rate
        inverse = np.linalg.pinv(np.hstack([matrix, self.basis]))
        return Local(g, rate, slope, landed - normal * g, normal, matrix, drift, d.state, inverse)

    def _derivative(self, t: float, x: Array, u: Array) -> ResetJacobian:
        where = f"the reset of guard {self.guard.name!r} of mode {self.guard.mode.key!r}"
        if not self.reset.differentiable:
            raise SystemDefinitionError(f"{where} has no Jacobian")
        d = self.reset.jacobian(t, x, u)
        if np.any(d.input):
            raise SystemDefinitionError(
                f"{where} depends on the input, behind such a guard no strip is defined"
            )
        return d


@dataclass(frozen=True, eq=False)
class Affine:
    """The chart of an affine reset between flat guards, known everywhere from that at (0, 0)."""

    origin: Local
    affine = True

    def at(self, t: float, x: Array, u: Array) -> Local:
        """The chart at (t, x)."""
        o = self.origin
        g = o.gap + float(o.slope @ x) + o.rate * t
        return o._replace(gap=g, landed=o.landed + o.matrix @ x + o.drift * t)


Chart: TypeAlias = Curved | Affine


def chart(
    guard: Border, reset: ResetModel, border: Border | None, target: ModeModel
) -> tuple[Chart, Array]:
    """The chart of a guard, and the basis V (n', p) of what its reset forgets.

    V spans what the matrix does not reach at the first of the guard's points, without leaving the
    border by itself if that can be. Raises `SystemDefinitionError` where the matrix and V together
    are not of full rank at another of these points.
    """
    points = guard.points
    first = Curved(guard, reset, border, np.zeros((target.space.nx, 0))).at(*points[0])
    basis = _forgotten(first, *points[0], border)
    curved = Curved(guard, reset, border, basis)
    locals_ = [curved.at(*p) for p in points]
    for (_, x, _), local in zip(points, locals_, strict=True):
        sizes = np.linalg.svd(np.hstack([local.matrix, basis]), compute_uv=False)
        if len(sizes) < len(basis) or sizes[-1] <= _RANK * sizes[0]:
            raise SystemDefinitionError(
                f"the reset of guard {guard.name!r} of mode {guard.mode.key!r} has no inverse, and "
                f"its rank changes, so that no auxiliary state makes up for it at x = {x.tolist()}"
            )
    if all(_alike(locals_[0], other) for other in locals_[1:]):
        return Affine(curved.at(0.0, np.zeros(guard.mode.space.nx), points[0][2])), basis
    return curved, basis


def _forgotten(local: Local, t: float, x: Array, u: Array, border: Border | None) -> Array:
    """The basis V at a point: a complement of the range of the matrix.

    Along it the field of the target does not get a component off the border, to first order, where
    motions along the border make up for that.
    """
    left, sizes, _ = np.linalg.svd(local.matrix)
    basis: Array = left[:, int((sizes > _RANK * sizes.max(initial=0.0)).sum()) :]
    if border is None or not border.mode.differentiable or basis.shape[1] == 0:
        return basis
    inwards = border.derivative(t, local.landed, u)[1]
    leaving = inwards @ border.mode.jacobian(t, local.landed, u).state
    within = local.matrix + np.outer(local.normal, local.slope)
    along = within @ (np.linalg.pinv(within, rcond=_RANK) @ leaving)
    if np.abs(along).max() <= _RANK * np.abs(leaving).max():
        return basis
    return np.asarray(basis - np.outer(along / (along @ leaving), leaving @ basis))


def _alike(one: Local, other: Local) -> bool:
    parts = ("rate", "slope", "normal", "matrix", "drift", "reset")
    pairs = ((np.asarray(getattr(one, p)), np.asarray(getattr(other, p))) for p in parts)
    return all(
        np.abs(a - b).max(initial=0.0) <= _FLAT * (1 + np.abs(a).max(initial=0.0)) for a, b in pairs
    )
