r"""The gluing map of a guard: it maps states behind the guard to states inside the next mode.

Take a guard g of mode j, positive inside it, and its reset R to mode j'. The image guard is the
guard h of j' that is zero on the image of R. Gluing the guard to its image, [Relax] (3) to (6),
continues the reset to states that are not on the guard. With the projection P onto g = 0, the unit
gradient :math:`\hat g` and n = grad h / :math:`|\nabla h|^2`,

.. math:: \bar R(t, x) = R(t, P(x)) - n\, g(t, x), \qquad
   \bar A = D_x R\, (1 - \hat g \hat g^T) - n\, \nabla g^T.

The matrix :math:`\bar A` is the derivative of :math:`\bar R` where guard and image guard are flat.
Where they are curved it is the derivative to first order in the distance from the guard.

A reset without an inverse forgets directions: :math:`\bar A` does not reach all of the target's
states. The columns of a matrix V span what is missing, [Relax] (15), (16), and an auxiliary state z
multiplies them, see `strip`.
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
from hybridctl.hybrid.mode import JumpPoint, ModeKey, ModeModel, ResetJacobian, ResetModel
from hybridctl.hybrid.system import HybridSystem

_PROJECTION_STEPS = 20  # of Newton's iteration; it converges in two or three on smooth guards
_SAMPLE_COUNT = 12  # random states that are projected; some may not reach the guard
_ON_GUARD = 1e-9  # largest guard value, in its own unit, at which a sample is on the guard
_PROJECTION_ACCURACY = 1e-13  # distance from the guard, relative to the state or to 1
_AFFINE_TOLERANCE = 1e-12
"""Variation of derivatives between samples of an affine map, relative to 1 plus the largest entry.

It is some thousand times the rounding of double precision."""
RANK_TOLERANCE = 1e-9
"""Singular values below this are zero, relative to the largest. Projections are exact to 1e-13, so
that what is zero comes out far below this."""


@dataclass(frozen=True, eq=False)
class GuardSurface:
    """One guard of a mode as a surface of the state space.

    Attributes:
        mode: The mode, in a vector space.
        guards: All guards of the mode.
        index: Index of this guard among them.
    """

    mode: ModeModel
    guards: GuardSet
    index: int

    @property
    def name(self) -> str:
        """Name of the guard."""
        return self.guards.names[self.index]

    @property
    def other_indices(self) -> list[int]:
        """Indices of the other guards of the mode."""
        return [i for i in range(len(self.guards.names)) if i != self.index]

    def evaluate(self, t: float, x: Array, u: Array) -> float:
        """Return the value g(t, x, u) of the guard, in its own unit.

        Args:
            t: Time, s.
            x: State (n,).
            u: Input (nu,); guards that depend on it have no strip.
        """
        return self.guards.value(self.index, t, x, u)

    def differentiate(self, t: float, x: Array, u: Array) -> tuple[float, Array]:
        """Return the derivatives D_t g and D_x g (n,) of the guard.

        Args:
            t: Time, s.
            x: State (n,).
            u: Input (nu,).

        Raises:
            SystemDefinitionError: If the guard has no Jacobian, or depends on the input.
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
    def sample_points(self) -> list[tuple[float, Array, Array]]:
        """Points (t, x, u) on the guard, under no input: the same ones every time.

        Random states are projected onto the guard, at t = 0 and 1 s in turn, so that a guard that
        depends on time is seen to.

        Raises:
            SystemDefinitionError: If none of the random states reaches the guard, or if it has no
                Jacobian or depends on the input.
        """
        u, found = np.zeros(self.mode.nu), []
        samples = np.random.default_rng(0).normal(size=(_SAMPLE_COUNT, self.mode.space.nx))
        with np.errstate(all="ignore"):
            for k, x in enumerate(samples):
                t = float(k % 2)
                foot = self.project(t, x, u)
                if np.isfinite(foot).all() and abs(self.evaluate(t, foot, u)) <= _ON_GUARD:
                    found.append((t, foot, u))
        if not found:
            raise SystemDefinitionError(
                f"no point on guard {self.name!r} of mode {self.mode.key!r} was found from "
                f"{_SAMPLE_COUNT} random states"
            )
        return found

    def project(self, t: float, x: Array, u: Array) -> Array:
        """Return the state P(x) (n,) on the guard, by Newton's iteration along its gradient.

        The result is not on the guard where the iteration does not converge; it may be NaN.

        Args:
            t: Time, s.
            x: State (n,).
            u: Input (nu,); guards that depend on it have no strip.

        Raises:
            SystemDefinitionError: If the guard has no Jacobian, or depends on the input.
        """
        for _ in range(_PROJECTION_STEPS):
            g, gradient = self.evaluate(t, x, u), self.differentiate(t, x, u)[1]
            size = max(1.0, float(np.abs(x).max()))
            if abs(g) <= _PROJECTION_ACCURACY * np.linalg.norm(gradient) * size:
                break
            x = x - gradient * (g / float(gradient @ gradient))
        return x


def find_transition(
    system: HybridSystem, key: ModeKey, name: str
) -> tuple[GuardSurface, ResetModel, ModeModel]:
    """Return a guard of a mode, its reset, and the mode that the reset leads to.

    Args:
        system: The system.
        key: Key of the mode.
        name: Name of one of its guards.

    Raises:
        UnknownNameError: If the system has no such mode, or the mode no such guard.
        SystemDefinitionError: If the transition leaves its target to the reset, or if one of the
            two modes is on a manifold.
    """
    source, outgoing = system.mode(key), system.outgoing(key)
    names = outgoing.guards.names
    index = names.index(check_member(f"guard of mode {key!r}", name, names))
    edge = outgoing.edge((name,))
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
    return GuardSurface(source, outgoing.guards, index), edge.reset, target


class GluingTerms(NamedTuple):
    r"""The gluing map and its derivatives at one point (t, x).

    Attributes:
        guard_value: g(t, x).
        guard_rate: Derivative D_t g by time, at the projection P(x).
        guard_gradient: Gradient D_x g (n,) at P(x).
        image: :math:`\bar R` (n',), a state of the target.
        image_normal: n = grad h / |grad h|^2 (n',) of the image guard; zero without one.
        jacobian: :math:`\bar A` (n', n).
        time_derivative: :math:`D_t \bar R` (n',).
        reset_jacobian: D_x R (n', n) at P(x).
        pull_back: Pseudoinverse (n + p, n') of :math:`(\bar A | V)`. It maps velocities of the
            target to velocities of (x, z).
    """

    guard_value: float
    guard_rate: float
    guard_gradient: Array
    image: Array
    image_normal: Array
    jacobian: Array
    time_derivative: Array
    reset_jacobian: Array
    pull_back: Array


@dataclass(frozen=True, eq=False)
class CurvedGluing:
    """The gluing map of any guard, reset and image guard.

    Attributes:
        guard: The guard g.
        reset: Its reset R.
        image_guard: The guard h of the target that is zero on the image of R. None where the image
            lies inside the target.
        forgotten_basis: Matrix V (n', p).
        is_affine: Whether the matrices of the map are the same at all points: here they are not.
    """

    guard: GuardSurface
    reset: ResetModel
    image_guard: GuardSurface | None
    forgotten_basis: Array
    is_affine = False

    def evaluate(self, t: float, x: Array, u: Array) -> GluingTerms:
        """Return the gluing map and its derivatives at a point.

        Args:
            t: Time, s.
            x: State (n,) on or behind the guard.
            u: Input (nu,), passed to guards and reset, which do not depend on it.

        Raises:
            SystemDefinitionError: If guard or reset have no Jacobian, or depend on the input.
        """
        g, foot = self.guard.evaluate(t, x, u), self.guard.project(t, x, u)
        rate, gradient = self.guard.differentiate(t, foot, u)
        image, d = self.reset(t, foot, u).state, self._differentiate_reset(t, foot, u)
        to_guard = gradient / float(gradient @ gradient)
        # R at P(x): changes of x along the gradient do not move P(x).
        jacobian = d.state - np.outer(d.state @ to_guard, gradient)
        time_derivative = d.time - (d.state @ to_guard) * rate
        normal = np.zeros(len(image))
        if self.image_guard is not None:
            inwards = self.image_guard.differentiate(t, image, u)[1]
            normal = inwards / float(inwards @ inwards)
        jacobian = jacobian - np.outer(normal, gradient)
        time_derivative = time_derivative - normal * rate
        return GluingTerms(
            guard_value=g,
            guard_rate=rate,
            guard_gradient=gradient,
            image=image - normal * g,
            image_normal=normal,
            jacobian=jacobian,
            time_derivative=time_derivative,
            reset_jacobian=d.state,
            pull_back=np.linalg.pinv(np.hstack([jacobian, self.forgotten_basis])),
        )

    def _differentiate_reset(self, t: float, x: Array, u: Array) -> ResetJacobian:
        """Return the derivatives of the reset at a point (t, x, u).

        Raises:
            SystemDefinitionError: If it has no Jacobian, or depends on the input.
        """
        what = f"the reset of guard {self.guard.name!r} of mode {self.guard.mode.key!r}"
        if not self.reset.differentiable:
            raise SystemDefinitionError(f"{what} has no Jacobian")
        d = self.reset.calc_diff(JumpPoint(t, x, u))
        if np.any(d.input):
            raise SystemDefinitionError(
                f"{what} depends on the input, behind such a guard no strip is defined"
            )
        return d


@dataclass(frozen=True, eq=False)
class AffineGluing:
    """The gluing map of an affine reset between flat guards.

    Attributes:
        origin: Its terms at t = 0, x = 0, by which all others are known.
        is_affine: Whether the matrices of the map are the same at all points: here they are.
    """

    origin: GluingTerms
    is_affine = True

    def evaluate(self, t: float, x: Array, u: Array) -> GluingTerms:
        """Return the gluing map and its derivatives at a point.

        Args:
            t: Time, s.
            x: State (n,).
            u: Input (nu,), which the map does not depend on.
        """
        o = self.origin
        g = o.guard_value + float(o.guard_gradient @ x) + o.guard_rate * t
        image = o.image + o.jacobian @ x + o.time_derivative * t
        return o._replace(guard_value=g, image=image)


Gluing: TypeAlias = CurvedGluing | AffineGluing


def build_gluing(
    guard: GuardSurface, reset: ResetModel, image_guard: GuardSurface | None, target: ModeModel
) -> tuple[Gluing, Array]:
    """Return the gluing map of a guard, and the matrix V (n', p) of what its reset forgets.

    V is chosen at the first sample point of the guard.

    Args:
        guard: The guard.
        reset: Its reset.
        image_guard: The guard of the target on the image of the reset, None without one.
        target: The mode that the reset leads to.

    Raises:
        SystemDefinitionError: If V does not complete the rank of the Jacobian at another of the
            guard's sample points, or if guard or reset have no Jacobian or depend on the input.
    """
    points = guard.sample_points
    nothing = np.zeros((target.space.nx, 0))
    first = CurvedGluing(guard, reset, image_guard, nothing).evaluate(*points[0])
    basis = _find_forgotten_basis(first, *points[0], image_guard)
    curved = CurvedGluing(guard, reset, image_guard, basis)
    terms = [curved.evaluate(*point) for point in points]
    for (_, x, _), at_x in zip(points, terms, strict=True):
        sizes = np.linalg.svd(np.hstack([at_x.jacobian, basis]), compute_uv=False)
        if len(sizes) < len(basis) or sizes[-1] <= RANK_TOLERANCE * sizes[0]:
            raise SystemDefinitionError(
                f"the reset of guard {guard.name!r} of mode {guard.mode.key!r} has no inverse, and "
                f"its rank changes, so that no auxiliary state makes up for it at x = {x.tolist()}"
            )
    if all(_have_same_derivatives(terms[0], other) for other in terms[1:]):
        origin = np.zeros(guard.mode.space.nx)
        return AffineGluing(curved.evaluate(0.0, origin, points[0][2])), basis
    return curved, basis


def _find_forgotten_basis(
    terms: GluingTerms, t: float, x: Array, u: Array, image_guard: GuardSurface | None
) -> Array:
    """Return the matrix V (n', p) at a point: a complement of the range of the Jacobian.

    Of all complements that one is taken along which the target's field does not move states off the
    image guard, to first order, if motions along the image can make up for that. Otherwise z would
    push on the image guard although the state before the reset does not.

    Args:
        terms: Gluing map at the point, without V.
        t: Time, s.
        x: State (n,) on the guard.
        u: Input (nu,).
        image_guard: The image guard, None without one.
    """
    left, sizes, _ = np.linalg.svd(terms.jacobian)
    basis: Array = left[:, int((sizes > RANK_TOLERANCE * sizes.max(initial=0.0)).sum()) :]
    if image_guard is None or not image_guard.mode.differentiable or basis.shape[1] == 0:
        return basis
    inwards = image_guard.differentiate(t, terms.image, u)[1]
    leaving = inwards @ image_guard.mode.jacobian(t, terms.image, u).state
    within = terms.jacobian + np.outer(terms.image_normal, terms.guard_gradient)
    along = within @ (np.linalg.pinv(within, rcond=RANK_TOLERANCE) @ leaving)
    if np.abs(along).max() <= RANK_TOLERANCE * np.abs(leaving).max():
        return basis  # no motion along the image moves states off it
    return np.asarray(basis - np.outer(along / (along @ leaving), leaving @ basis))


def _have_same_derivatives(one: GluingTerms, other: GluingTerms) -> bool:
    """Return whether the derivatives of a gluing map are the same at two points."""
    fields = (
        "guard_rate",
        "guard_gradient",
        "image_normal",
        "jacobian",
        "time_derivative",
        "reset_jacobian",
    )
    pairs = ((np.asarray(getattr(one, f)), np.asarray(getattr(other, f))) for f in fields)
    return all(
        np.abs(a - b).max(initial=0.0) <= _AFFINE_TOLERANCE * (1 + np.abs(a).max(initial=0.0))
        for a, b in pairs
    )
