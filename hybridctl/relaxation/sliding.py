r"""Filippov's sliding motions as modes of their own: relays, dry friction, variable structure.

A sliding motion on a guard may meet a second guard. Four fields meet there, in the coordinates of
the mode: :math:`F_{00}` of the mode itself, :math:`F_{10}` behind the first guard, :math:`F_{01}`
behind the second and :math:`F_{11}` behind both. The bilinear combination

.. math:: F(a, b) = (1 - a)(1 - b) F_{00} + a (1 - b) F_{10} + (1 - a) b F_{01} + a b F_{11}

stays on both guards where it has no component across either. No general law chooses one of several
such combinations, or says what happens where there is none. So only a unique one in [0, 1]^2 is
followed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hybridctl.base.checks import Array, check_instance
from hybridctl.base.errors import IntersectionError
from hybridctl.hybrid.guards import GuardJacobian
from hybridctl.hybrid.mode import (
    Edge,
    Held,
    Jump,
    JumpPoint,
    ModeKey,
    Outgoing,
    Reset,
    ResetJacobian,
    ResetModel,
)
from hybridctl.hybrid.model import Point, PointProperty
from hybridctl.hybrid.system import HybridSystem
from hybridctl.relaxation.guard_motion import (
    GuardMotion,
    GuardMotionSystem,
    GuardPoint,
    MotionOnGuard,
    Region,
    check_not_escaping,
    evaluate_side_fields,
)
from hybridctl.relaxation.strip import Strip, Strips

SLIDING = "sliding"
"""Kind of the modes of sliding motions."""
_CONSTRAINT_TOLERANCE = 1e-8  # guard value of a sliding state, in the guard's unit; as events have
_NEAR_GUARD = 1e-6  # guard value at which another guard takes part in an intersection
_REAL_ROOT = 1e-9  # largest imaginary part of a root that is real but for rounding


def filippov(system: HybridSystem) -> Filippov:
    """Return the system with a mode (SLIDING, key, name) for sliding on each guard of each mode.

    A motion that meets a guard from which the next mode pushes back slides on it with Filippov's
    field, see `guard_motion`, until one of the two fields lets go. The mode of sliding is in the
    coordinates of the mode that it came from; for the next mode it is at the image of the reset. A
    guard whose reset has no inverse, or leads inside the next mode, has one side only: it is
    crossed.

    Where a sliding motion meets a second guard there are three cases:

    - All four fields cross the second guard: the motion goes on behind it.
    - One convex combination of the fields stays on both guards: the motion slides on both, in the
      mode (SLIDING, key, name, other). That mode has no Jacobian.
    - Otherwise the run ends with an `IntersectionError` that holds the fields.

    A start from which both fields lead away is an `EscapingError`. A mode is entered with a
    `SystemDefinitionError` if one of its guards cannot be glued, see `relax_guards`.

    Args:
        system: The system.

    Raises:
        InputError: If it is no system.
    """
    return Filippov(Strips(check_instance("system", system, HybridSystem), 0.0))


class Filippov(GuardMotionSystem):
    """A system whose sliding motions are modes; see `filippov`."""

    exit_names = ("leaves", "passes")

    def make_motion(self, key: ModeKey) -> _SlidingMode | _IntersectionMode | None:
        """Return sliding on one guard, or on two at once; None for a mode of the system."""
        match key:
            case (kind, source, str() as name) if kind == SLIDING:
                return _SlidingMode(key, self.get_strip(source, name), self)
            case (kind, source, str() as one, str() as other) if kind == SLIDING:
                strips = self.get_strip(source, one), self.get_strip(source, other)
                return _IntersectionMode(self, *strips)
        return None

    def outgoing_edges(self, key: ModeKey) -> Outgoing:
        """Return the guards of a mode, which are crossed, or on which a sliding motion begins."""
        own, guards = self.inner.outgoing(key), self.inner_mode(key).guard_set
        return replace(own, guards=guards, edge=partial(self._find_edge, key))

    def _find_edge(self, key: ModeKey, fired: tuple[str, ...]) -> Edge | None:
        """Return the edge of guards that fire together: the system's own unless one can slide."""
        own = self.inner.outgoing(key).edge(fired)
        if len(fired) != 1 or not self.get_strip(key, fired[0]).has_two_sides:
            return own
        return Edge(_SlideOrCross(self.get_strip(key, fired[0])))


@dataclass(frozen=True, eq=False)
class _SlideOrCross(ResetModel):
    """The reset where a guard with two sides is met: the state crosses it, or begins to slide."""

    strip: Strip

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        strip = self.strip
        x = strip.guard.project(t, x, u)  # event times are rounded, and x is that far from it
        if self._pushes_back(t, x, u):
            return Jump(x, (SLIDING, strip.source.key, strip.guard.name))
        return Jump(strip.map_to_target(t, x, u), strip.target.key)

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives of the one of the two resets that is taken at this state."""
        slides = self._pushes_back(at.t, at.x, at.u)
        return (Reset.identity() if slides else self.strip.reset_to_target).calc_diff(at)

    def _pushes_back(self, t: float, x: Array, u: Array) -> bool:
        """Return whether the next mode's field leads back; the source's has just led here."""
        return evaluate_side_fields(self.strip, t, x, u).guard_rates[1] > 0.0


class _SlidingPoint(GuardPoint):
    """A point of a sliding motion on one guard."""

    @PointProperty
    def exits(self) -> Array:
        """The rates -a_1 and a_2, which fall to zero where one of the fields lets go."""
        first, second = self.side_fields.guard_rates
        return np.array([-first, second])

    @PointProperty
    def exit_jacobian(self) -> GuardJacobian:
        """The derivatives of the exits; those by time are taken as zero."""
        (first, first_u), (second, second_u) = self.guard_rate_gradients
        return GuardJacobian(
            np.zeros(2), np.vstack([-first, second]), np.vstack([-first_u, second_u])
        )


class _SlidingMode(MotionOnGuard):
    """Sliding on one guard until one of the fields lets go.

    Exit `leaves` returns to the source where a_1 rises to zero; `passes` leads to the target where
    a_2 falls to zero. Another guard of the source is an intersection.

    Args:
        key: Key of this mode.
        strip: The strip of the guard, of width zero.
        system: The system of sliding modes.
    """

    exit_names = Filippov.exit_names
    point = _SlidingPoint

    def __init__(self, key: ModeKey, strip: Strip, system: Filippov) -> None:
        super().__init__(key, strip)
        self.system = system
        guard, origin = strip.guard, (np.zeros(strip.nx), np.zeros(self.nu))
        # Constraints do not depend on time, so that a guard that moves is none.
        moves = any(guard.differentiate(t, *origin)[0] for t in (0.0, 1.0))
        self._constraint_names = () if moves else (guard.name,)
        count = len(self._constraint_names)
        self.held = Held(
            self._constraint_names,
            self._compute_residuals,
            np.full(count, _CONSTRAINT_TOLERANCE),
            ("",) * count,
            refuse=self._check_start,
        )

    def _compute_residuals(self, x: Array) -> Array:
        """Return the guard value of a state, unless the guard moves."""
        u = np.zeros(self.nu)
        return np.array([self.strip.guard.evaluate(0.0, x, u) for _ in self._constraint_names])

    def _check_start(self, what: str, key: ModeKey, x: Array) -> None:
        """Raise `EscapingError` for a start from which both fields lead away, under no input."""
        check_not_escaping(what, self.strip, self.calc(0.0, x, np.zeros(self.nu)).side_fields)

    def exit_edge(self, name: str) -> Edge:
        """Return the edge behind an exit, or behind another guard of the source."""
        strip = self.strip
        if name == f"{strip.guard.name}: leaves":
            return Edge(Reset.identity(), strip.source.key)
        if name == f"{strip.guard.name}: passes":
            return Edge(strip.reset_to_target, strip.target.key)
        other = self.system.get_strip(strip.source.key, name)
        meet = partial(self._meet_guard, other)
        return Edge(Reset(meet, other.differentiate_map_to_target))

    def _meet_guard(self, other: Strip, t: float, x: Array, u: Array) -> Jump:
        """Return the jump where another guard is met: beyond it, or onto both guards.

        Args:
            other: Strip of the other guard.
            t: Time, s.
            x: State (n,) on this guard and on the other one.
            u: Input (nu,).

        Raises:
            IntersectionError: If not all fields cross the other guard and no unique combination
                stays on both guards.
        """
        intersection = _IntersectionMode(self.system, self.strip, other)
        point = intersection.calc(t, x, u)
        partner = intersection.find_partner(other, t, x, u)
        if partner is None or not point.is_crossed:
            if len(point.convex_weights) != 1:
                raise point.build_refusal()
            return Jump(other.guard.project(t, x, u), intersection.key)
        beyond = other.map_to_target(t, x, u)
        fields = evaluate_side_fields(partner, t, beyond, u)
        if fields.region is Region.SLIDING:
            return Jump(beyond, (SLIDING, partner.source.key, partner.guard.name))
        if fields.guard_rates[0] > 0.0:
            return Jump(beyond, partner.source.key)
        return Jump(partner.map_to_target(t, beyond, u), partner.target.key)


class IntersectionPoint(Point):
    """A point where two guards of one mode meet."""

    mode: _IntersectionMode

    @PointProperty
    def field(self) -> Array:
        """The field F(a, b); F_00 for a step that is tried off the intersection."""
        if len(self.fields) < 4:
            return np.asarray(self.fields[0])
        a, b = self.nearest_weights
        shares = np.array([(1 - a) * (1 - b), a * (1 - b), (1 - a) * b, a * b])
        return np.asarray(shares @ self.fields)

    @PointProperty
    def guards(self) -> Array:
        """The values a, 1 - a, b, 1 - b."""
        a, b = self.nearest_weights
        return np.array([a, 1.0 - a, b, 1.0 - b])

    @PointProperty
    def fields(self) -> Array:
        """The fields F_00, F_10, F_01, F_11 (4, n); only the first two where others are unknown.

        They are unknown where the mode behind the second guard does not have the first guard.
        """
        t, x, u, (first, second) = self.t, self.x, self.u, self.mode.strips
        here = evaluate_side_fields(first, t, x, u)
        partner = self.mode.find_partner(second, t, x, u)
        if partner is None:
            return np.array([here.source_field, here.target_field])
        there = evaluate_side_fields(partner, t, second.map_to_target(t, x, u), u)
        back = second.gluing.evaluate(t, x, u).pull_back
        return np.array(
            [
                here.source_field,
                here.target_field,
                back @ there.source_field,
                back @ there.target_field,
            ]
        )

    @property
    def is_crossed(self) -> bool:
        """Whether all four fields cross the second guard."""
        rate, gradient = self.mode.strips[1].guard.differentiate(self.t, self.x, self.u)
        return len(self.fields) == 4 and bool((rate + self.fields @ gradient < 0.0).all())

    @PointProperty
    def weights(self) -> list[tuple[float, float]]:
        """All weights (a, b) with which F(a, b) has no component across either guard.

        The rate of each guard is p_0 + p_1 a + p_2 b + p_3 a b. Eliminating b leaves a quadratic
        equation in a.
        """
        if len(self.fields) < 4:
            return []
        parts = np.array([[1, 0, 0, 0], [-1, 1, 0, 0], [-1, 0, 1, 0], [1, -1, -1, 1]]) @ self.fields
        rows = []
        for strip in self.mode.strips:
            rate, gradient = strip.guard.differentiate(self.t, self.x, self.u)
            rows.append(parts @ gradient + np.array([rate, 0.0, 0.0, 0.0]))
        p, q = rows
        # From q: b = -(q0 + q1 a) / (q2 + q3 a), put into p.
        equation: Array = np.polysub(
            np.polymul([p[1], p[0]], [q[3], q[2]]), np.polymul([p[3], p[2]], [q[1], q[0]])
        )
        found = []
        for root in np.roots(equation):
            below = q[2] + q[3] * root
            if abs(root.imag) <= _REAL_ROOT and below != 0.0:
                found.append((float(root.real), float((-(q[0] + q[1] * root) / below).real)))
        return found

    @property
    def convex_weights(self) -> list[tuple[float, float]]:
        """The weights (a, b) in [0, 1]^2."""
        return [w for w in self.weights if min(w) >= 0.0 and max(w) <= 1.0]

    @property
    def nearest_weights(self) -> tuple[float, float]:
        """The weights nearest to [0, 1]^2, for steps that are tried past the end of the motion.

        They are cut to [-1, 2]^2, so that guards stay bounded; the motion ends between there and
        [0, 1]^2. Where no combination stays on both guards, as at a pole, they are (2, 2).
        """
        if not self.weights:
            return 2.0, 2.0
        a, b = min(self.weights, key=lambda w: max(abs(w[0] - 0.5), abs(w[1] - 0.5)))
        return min(max(a, -1.0), 2.0), min(max(b, -1.0), 2.0)

    def build_refusal(self) -> IntersectionError:
        """Return the error for an intersection where no combination is singled out."""
        first, second = self.mode.strips
        shown = "; ".join(str(np.round(f, 9).tolist()) for f in self.fields)
        return IntersectionError(
            f"sliding on guard {first.guard.name!r} of mode {first.source.key!r} meets guard "
            f"{second.guard.name!r} at t = {self.t:.9g} s, x = {self.x.tolist()}, where not all "
            f"fields cross it, and {len(self.convex_weights)} convex combinations stay on both, "
            f"not one: {shown}",
            fields=tuple(self.fields),
        )


class _IntersectionMode(GuardMotion):
    """Sliding on two guards at once, while the weights (a, b) of the fields are in [0, 1]^2.

    Its guards are a, 1 - a, b and 1 - b: the motion leaves a guard where its weight falls to 0, and
    passes it where the weight rises to 1.

    Args:
        system: The system of sliding modes.
        first: Strip of the first guard.
        second: Strip of the second guard, of the same mode.
    """

    point = IntersectionPoint

    def __init__(self, system: Filippov, first: Strip, second: Strip) -> None:
        self.system, self.strips = system, (first, second)
        self.space, self.nu = first.source.space, first.source.nu
        names = first.guard.name, second.guard.name
        self.key = (SLIDING, first.source.key, *names)
        self.guard_names = tuple(f"{name}: {end}" for name in names for end in Filippov.exit_names)
        tolerances = np.full(2, _CONSTRAINT_TOLERANCE)
        self.held = Held(names, self._compute_residuals, tolerances, ("", ""))
        self.project = self._project_state

    def calc(self, t: float, x: Array, u: Array) -> IntersectionPoint:
        """Return the motion at a point.

        Args:
            t: Time, s.
            x: State (n,) on both guards.
            u: Input (nu,).
        """
        return self.point(self, t, x, u)

    def find_partner(self, crossed: Strip, t: float, x: Array, u: Array) -> Strip | None:
        """Return the other guard of the intersection, as the mode behind a guard has it.

        Args:
            crossed: Strip of the guard that is crossed.
            t: Time, s.
            x: State (n,) on both guards.
            u: Input (nu,).

        Returns:
            Its strip in the mode behind the crossed guard. None if that mode does not have exactly
            one other guard here, or if one of the guards has one side only.
        """
        if not crossed.has_two_sides or crossed.image_guard is None:
            return None
        guards = self.system.inner.outgoing(crossed.target.key).guards
        near = np.abs(guards.values(t, crossed.map_to_target(t, x, u), u)) <= _NEAR_GUARD
        near[crossed.image_guard.index] = False
        found = np.flatnonzero(near)
        if len(found) != 1:
            return None
        strip = self.system.get_strip(crossed.target.key, guards.names[found[0]])
        return strip if strip.has_two_sides else None

    def exit_edge(self, name: str) -> Edge | None:
        """Return the edge along the other guard: in this mode, or in that behind a passed guard."""
        for strip, other in (self.strips, self.strips[::-1]):
            if name == f"{strip.guard.name}: leaves":
                return Edge(Reset.identity(), (SLIDING, strip.source.key, other.guard.name))
            if name == f"{strip.guard.name}: passes":
                return Edge(Reset(partial(self._pass_guard, strip)))
        return None

    def _pass_guard(self, strip: Strip, t: float, x: Array, u: Array) -> Jump:
        """Return the jump past one guard, onto the other as the mode behind it has it.

        Args:
            strip: Strip of the guard that is passed.
            t: Time, s.
            x: State (n,) on both guards.
            u: Input (nu,).

        Raises:
            IntersectionError: If the mode behind the guard does not have the other one.
        """
        along = self.find_partner(strip, t, x, u)
        if along is None:
            raise self.calc(t, x, u).build_refusal()
        key = (SLIDING, along.source.key, along.guard.name)
        return Jump(strip.map_to_target(t, x, u), key)

    def _compute_residuals(self, x: Array) -> Array:
        """Return both guard values (2,) of a state at t = 0."""
        u = np.zeros(self.nu)
        return np.array([strip.guard.evaluate(0.0, x, u) for strip in self.strips])

    def _project_state(self, x: Array) -> Array:
        """Return the state (n,) on both guards at t = 0 after one step of Newton's iteration."""
        u = np.zeros(self.nu)
        slopes = [strip.guard.differentiate(0.0, x, u)[1] for strip in self.strips]
        return np.asarray(x - np.linalg.pinv(np.array(slopes)) @ self._compute_residuals(x))
