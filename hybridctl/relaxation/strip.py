r"""The strip behind a guard, where a mode's field turns into the next one's, [Relax] 6, app. B.

In a strip of width epsilon behind the guard g of mode j the depth d = -g grows from 0 to epsilon.
With :math:`\varphi(s) = (1 - \cos \pi s) / 2` at s = d / epsilon, [Relax] (8), the relaxed field is

.. math:: \dot y = (1 - \varphi) (f_j(x), 0) + \varphi\, \tilde A^\dagger f_{j'}(\tilde R(y)),
   \qquad \tilde R(x, z) = \bar R(x) - n \varepsilon + V z,
   \qquad \tilde A = (\bar A | V),

[Relax] (9), (12), (15), (24). The state y = (x, z) consists of the state x of mode j and of an
auxiliary state z for what the reset forgets, which is zero on entry. `gluing` has
:math:`\bar R`, n, :math:`\bar A` and V.

As printed, (24) lets z wind up where the next mode pushes back into the guard: a leg that lies on
its stop would have to undo that before it leaves. Here z is held at zero as long as its rate is
negative. The pulled-back field is then :math:`D_x R f_{j'}`, the acceleration that the stop allows.
This needs a reset that is a projection, as plastic impacts are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import SystemDefinitionError
from hybridctl.hybrid.mode import ModeKey, ModeModel, Reset, ResetJacobian, ResetModel
from hybridctl.hybrid.system import HybridSystem
from hybridctl.relaxation.gluing import (
    Gluing,
    GluingTerms,
    GuardSurface,
    build_gluing,
    find_transition,
)

_DIFFERENCE_STEP = 6e-6
"""Step of central differences, relative to the coordinate or to 1: the cube root of the rounding of
double precision, where truncation and rounding are about equal, some 1e-10."""
_ON_IMAGE = 1e-9  # distance of an image from a guard on which it lies, relative to the state or 1


def evaluate_blend(s: float) -> tuple[float, float]:
    """Return the transition function phi(s), [Relax] (8), and its slope phi'(s).

    Args:
        s: Depth relative to the width; phi is 0 below 0 and 1 above 1.
    """
    if not 0.0 < s < 1.0:
        return float(s >= 1.0), 0.0
    return 0.5 - 0.5 * math.cos(math.pi * s), 0.5 * math.pi * math.sin(math.pi * s)


@dataclass(frozen=True, eq=False)
class Strip:
    """The strip behind a guard, or the guard itself where the width is zero.

    Attributes:
        guard: The guard g of the source mode.
        target: The mode entered.
        image_guard: The target's guard on the image of the reset. None where the image lies inside
            the target: nothing can push back then, and the source's field crosses the strip.
        gluing: The gluing map.
        forgotten_basis: Matrix V (n', p); p is the number of auxiliary states.
        release_direction: Unit vector (p,) along which z moves the image away from the image guard;
            zero where it does not, and then z is never held.
        epsilon: Width, in the unit of the guard.
    """

    guard: GuardSurface
    target: ModeModel
    image_guard: GuardSurface | None
    gluing: Gluing
    forgotten_basis: Array
    release_direction: Array
    epsilon: float

    @property
    def source(self) -> ModeModel:
        """The mode whose guard it is."""
        return self.guard.mode

    @cached_property
    def nx(self) -> int:
        """Number of coordinates of x."""
        return self.source.space.nx

    @cached_property
    def ny(self) -> int:
        """Number of coordinates of y = (x, z)."""
        return self.nx + int(self.forgotten_basis.shape[1])

    @property
    def can_hold_auxiliary(self) -> bool:
        """Whether there is an auxiliary state that the next mode's field can hold at zero."""
        return bool(self.release_direction.any())

    @property
    def has_two_sides(self) -> bool:
        """Whether fields act from both sides: there is an image guard, and the reset is invertible.

        Other guards are only ever crossed, unless they hold an auxiliary state.
        """
        return self.image_guard is not None and self.ny == self.nx

    def compute_depth(self, t: float, y: Array, u: Array) -> float:
        """Return the depth -g behind the guard, in the unit of the guard.

        Args:
            t: Time, s.
            y: State (x, z) (n + p,).
            u: Input (nu,).
        """
        return -self.guard.evaluate(t, y[: self.nx], u)

    def map_to_target(self, t: float, y: Array, u: Array) -> Array:
        r"""Return the state (n',) of the target for a state of the strip: :math:`\tilde R(y)`.

        Args:
            t: Time, s.
            y: State (x, z) (n + p,); the z is used if there is one.
            u: Input (nu,).
        """
        return self.compute_image(self.gluing.evaluate(t, y[: self.nx], u), y)

    def compute_image(self, terms: GluingTerms, y: Array) -> Array:
        r"""Return the state :math:`\tilde R(y)` (n',) of the target, [Relax] (15).

        Args:
            terms: Gluing map at the state x.
            y: State (x, z) (n + p,).
        """
        image = terms.image - self.epsilon * terms.image_normal
        return image + self.forgotten_basis @ y[self.nx :] if self.ny > self.nx else image

    def differentiate_map_to_target(self, t: float, y: Array, u: Array) -> ResetJacobian:
        """Return the derivatives of `map_to_target` by time, by y, and by the input (zero).

        Args:
            t: Time, s.
            y: State (x, z) (n + p,).
            u: Input (nu,).
        """
        terms = self.gluing.evaluate(t, y[: self.nx], u)
        by_state, by_time = np.hstack([terms.jacobian, self.forgotten_basis]), terms.time_derivative
        return ResetJacobian(by_time, by_state, np.zeros((len(by_time), len(u))))

    @property
    def reset_to_target(self) -> Reset:
        """The reset from the strip into the target."""
        return Reset(self.map_to_target, self.differentiate_map_to_target)

    def append_auxiliary(self, x: Array) -> Array:
        """Return y = (x, 0) (n + p,) for a state x (n,); a whole y is returned as it is."""
        missing = self.ny - len(x)
        return np.append(x, np.zeros(missing)) if missing else x


class Strips:
    """The strips behind all guards of a system, each built when it is first asked for.

    Args:
        system: The system.
        epsilon: Width of the strips, in the unit of each guard; 0 for the guards themselves.
    """

    def __init__(self, system: HybridSystem, epsilon: float) -> None:
        self.system, self.epsilon = system, epsilon
        self._built: dict[tuple[ModeKey, str], Strip] = {}

    def get_strip(self, key: ModeKey, name: str) -> Strip:
        """Return the strip behind a guard of a mode.

        Args:
            key: Key of the mode.
            name: Name of the guard.

        Raises:
            UnknownNameError: If the system has no such mode, or the mode no such guard.
            SystemDefinitionError: If no strip is defined behind this guard, see `relax_guards`.
        """
        try:
            return self._built[key, name]
        except KeyError:
            return self._built.setdefault((key, name), self._build(key, name))

    def _build(self, key: ModeKey, name: str) -> Strip:
        """Return the strip behind guard `name` of mode `key`.

        Raises:
            SystemDefinitionError: If none is defined.
        """
        guard, reset, target = find_transition(self.system, key, name)
        source = guard.mode
        if source.nu != target.nu:
            raise SystemDefinitionError(
                f"modes {key!r} and {target.key!r} have {source.nu} and {target.nu} inputs; a "
                "strip between them needs the same"
            )
        image_guard = self._find_image_guard(guard, reset, target)
        gluing, basis = build_gluing(guard, reset, image_guard, target)
        never = np.zeros(basis.shape[1])
        strip = Strip(guard, target, image_guard, gluing, basis, never, self.epsilon)
        return replace(strip, release_direction=_find_release_direction(strip))

    def _find_image_guard(
        self, guard: GuardSurface, reset: ResetModel, target: ModeModel
    ) -> GuardSurface | None:
        """Return the guard of the target that is zero on the image of the reset, if there is one.

        Raises:
            SystemDefinitionError: If several guards are zero on the image.
        """
        guards = self.system.outgoing(target.key).guards
        touched = np.ones(len(guards.names), dtype=bool)
        for t, x, u in guard.sample_points:
            image = reset(t, x, u).state
            size = max(1.0, float(np.abs(image).max(initial=0.0)))
            touched &= np.abs(guards.values(t, image, u)) <= _ON_IMAGE * size
        found = np.flatnonzero(touched).tolist()
        if len(found) > 1:
            names = [guards.names[i] for i in found]
            raise SystemDefinitionError(
                f"the reset of guard {guard.name!r} of mode {guard.mode.key!r} lands where guards "
                f"{names} of mode {target.key!r} are zero; a strip leads to one"
            )
        return GuardSurface(target, guards, found[0]) if found else None


def _find_release_direction(strip: Strip) -> Array:
    """Return the unit vector (p,) of z along which the target's field leaves the image guard.

    It is zero where no auxiliary state moves the image off its guard.

    Args:
        strip: A strip, whose own direction is not used.

    Raises:
        SystemDefinitionError: If the direction is not the same at all sample points, or if z would
            have to be held behind a reset that is no projection.
    """
    p = strip.forgotten_basis.shape[1]
    if strip.image_guard is None or p == 0:
        return np.zeros(p)
    directions, size = [], 0.0
    for t, x, u in strip.guard.sample_points:
        image = strip.map_to_target(t, strip.append_auxiliary(x), u)
        inwards = strip.image_guard.differentiate(t, image, u)[1]
        along = inwards @ strip.target.jacobian(t, image, u).state @ strip.forgotten_basis
        directions.append(along)
        size = max(size, float(np.abs(along).max()))
    if size <= _ON_IMAGE:
        return np.zeros(p)
    units = [d / np.linalg.norm(d) for d in directions]
    name, key = strip.guard.name, strip.source.key
    if min(float(unit @ units[0]) for unit in units) < 1.0 - _ON_IMAGE:
        raise SystemDefinitionError(
            f"what the reset of guard {name!r} of mode {key!r} forgets moves its image off the "
            f"guard it lands on in directions that change, {units[0]} and others: no auxiliary "
            "state can be held"
        )
    for t, x, u in strip.guard.sample_points:
        reset = strip.gluing.evaluate(t, x, u).reset_jacobian
        square = reset.shape[0] == reset.shape[1]
        if not square or np.abs(reset @ reset - reset).max() > _ON_IMAGE * np.abs(reset).max():
            raise SystemDefinitionError(
                f"the reset of guard {name!r} of mode {key!r} has no inverse and is no projection, "
                f"so that what pushes back into the guard behind it is not known: D_x R = "
                f"{reset.tolist()}"
            )
    return np.asarray(units[0])


def differentiate_numerically(f: Callable[[Array], Array], x: Array) -> Array:
    """Return the Jacobian (m, n) of a function by central differences, exact to some 1e-10.

    Args:
        f: Function of (n,) with values (m,).
        x: Point (n,).
    """
    columns = []
    for k, step in enumerate(_DIFFERENCE_STEP * np.maximum(1.0, np.abs(x))):
        change = np.zeros(len(x))
        change[k] = step
        columns.append((f(x + change) - f(x - change)) / (2.0 * step))
    return np.column_stack(columns) if columns else np.zeros((len(f(x)), 0))
