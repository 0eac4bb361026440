r"""Filippov's sliding motions as modes of their own: relays, dry friction, variable structure.

Where a sliding motion meets a second guard there are four fields, in the coordinates of the mode:
F_00 of it, F_10 behind the first guard, F_01 behind the second and F_11 behind both. Their
combination

.. math:: F(a, b) = (1 - a)(1 - b) F_{00} + a (1 - b) F_{10} + (1 - a) b F_{01} + a b F_{11}

stays on both guards where it has no component across either. There is no general law that chooses
one of several such combinations, nor what happens where there is none.
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
from hybridctl.relaxation.regions import (
    GuardModes,
    GuardMotion,
    GuardPoint,
    OnGuard,
    Region,
    refuse_escape,
    sides,
    slides,
)
from hybridctl.relaxation.strip import Strip, Strips

SLIDING = "sliding"
_HELD = 1e-8  # of a guard, in its own unit: how far from it a sliding state may be
_MEETS = 1e-6  # of a guard: one this near to zero takes part in an intersection
_REAL = 1e-9  # of a root: an imaginary part this small is none


def filippov(system: HybridSystem) -> Filippov:
    """The system with a mode (SLIDING, key, name) for sliding on guard `name` of mode `key`.

    A motion that meets a guard from which the next mode pushes back slides on it with Filippov's
    field, see `regions`, until one of the two fields lets go. It is in the coordinates of the mode
    it came from; for the next mode it is at the image of the reset. Guards whose reset has no
    inverse, or leads inside the next mode, have one side only, and are crossed.

    A sliding motion that meets a second guard goes on beyond it where all four fields around cross
    it, and on both, in the mode (SLIDING, key, name, other), where one convex combination of them
    stays there, see this module; that mode has no Jacobian.

    Raises what `relax` raises; starts from which both fields lead away are an `EscapingError`, and
    other intersections an `IntersectionError`, with the fields.
    """
    return Filippov(Strips(check_instance("system", system, HybridSystem), 0.0))


class Filippov(GuardModes):
    """A system whose sliding motions are modes; see `filippov`."""

    ends = ("leaves", "passes")

    def motion(self, key: ModeKey) -> _Slide | _OnBoth | None:
        """Sliding on one guard, or on two at once; None for a mode of the system."""
        match key:
            case (kind, source, str() as name) if kind == SLIDING:
                return _Slide(key, self.strip(source, name), self)
            case (kind, source, str() as one, str() as other) if kind == SLIDING:
                return _OnBoth(self, self.strip(source, one), self.strip(source, other))
        return None

    def ways(self, key: ModeKey) -> Outgoing:
        """Guards that are crossed, or on which a sliding motion begins."""
        own, guards = self.inner.outgoing(key), self.plain(key).guard_set
        return replace(own, guards=guards, edge=partial(self._met, key))

    def _met(self, key: ModeKey, fired: tuple[str, ...]) -> Edge | None:
        own = self.inner.outgoing(key).edge(fired)
        if len(fired) != 1 or not slides(self.strip(key, fired[0])):
            return own
        return Edge(_Met(self.strip(key, fired[0])))


@dataclass(frozen=True, eq=False)
class _Met(ResetModel):
    """The reset where a guard is met: the state crosses it, or a sliding motion begins."""

    strip: Strip

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        strip = self.strip
        x = strip.guard.foot(t, x, u)
        if self._slides(t, x, u):
            return Jump(x, (SLIDING, strip.source.key, strip.guard.name))
        return Jump(strip.entered(t, x, u), strip.target.key)

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """The derivatives in the region of x."""
        t, x, u = at[:3]
        met = Reset.identity() if self._slides(t, x, u) else self.strip.through
        return met.jacobian(t, x, u)

    def _slides(self, t: float, x: Array, u: Array) -> bool:
        """Whether the next mode pushes back; this one has just led here."""
        return sides(self.strip, t, x, u).speeds[1] > 0.0


class _Slide(OnGuard):
    """Sliding on one guard: what it holds, where one of the fields lets go, and the ways out."""

    ends = Filippov.ends

    def __init__(self, key: ModeKey, strip: Strip, system: Filippov) -> None:
        super().__init__(key, strip)
        self.system = system
        guard, still = strip.guard, (np.zeros(strip.n), np.zeros(self.nu))
        moves = any(guard.derivative(t, *still)[0] for t in (0.0, 1.0))
        self._held_names = () if moves else (guard.name,)
        count = len(self._held_names)
        units = ("",) * count
        self.held = Held(
            self._held_names, self._residuals, np.full(count, _HELD), units, refuse=self._refuse
        )

    def _residuals(self, x: Array) -> Array:
        """The guard, if it does not move."""
        u = np.zeros(self.nu)
        return np.array([self.strip.guard.value(0.0, x, u) for _ in self._held_names])

    def _refuse(self, what: str, key: ModeKey, x: Array) -> None:
        """Raise `EscapingError` for states from which both fields lead away."""
        refuse_escape(what, self.strip, self.calc(0.0, x, np.zeros(self.nu)).sides)

    def ends_at(self, point: GuardPoint) -> Array:
        """The rates -a_1 and a_2, zero where one of the fields lets go."""
        first, second = point.sides.speeds
        return np.array([-first, second])

    def ends_jacobian_at(self, point: GuardPoint) -> GuardJacobian:
        """Derivatives of the guards that end the sliding; those by time are taken as zero."""
        (first, first_u), (second, second_u) = point.speed_slopes
        return GuardJacobian(
            np.zeros(2), np.vstack([-first, second]), np.vstack([-first_u, second_u])
        )

    def way(self, name: str) -> Edge:
        """The edge behind one of the guards."""
        strip = self.strip
        if name == f"{strip.guard.name}: leaves":
            return Edge(Reset.identity(), strip.source.key)
        if name == f"{strip.guard.name}: passes":
            return Edge(strip.through, strip.target.key)
        other = self.system.strip(strip.source.key, name)
        return Edge(Reset(partial(self._meets, other), other.entered_jacobian))

    def _meets(self, other: Strip, t: float, x: Array, u: Array) -> Jump:
        """Slide on beyond another guard that all four fields around cross, or on both."""
        corner = _OnBoth(self.system, self.strip, other)
        here, partner = corner.calc(t, x, u), corner.beyond(other, t, x, u)
        if partner is None or not here.is_crossed:
            if len(here.inside) != 1:
                raise here.refused()
            return Jump(other.guard.foot(t, x, u), corner.key)
        beyond = other.entered(t, x, u)
        found = sides(partner, t, beyond, u)
        if found.region is Region.SLIDING:
            return Jump(beyond, (SLIDING, partner.source.key, partner.guard.name))
        if found.speeds[0] > 0.0:
            return Jump(beyond, partner.source.key)
        return Jump(partner.entered(t, beyond, u), partner.target.key)


class CornerPoint(Point):
    """A point of two guards of one mode that meet."""

    mode: _OnBoth

    @PointProperty
    def fields(self) -> Array:
        """The fields F_00, F_10, F_01, F_11 (4, n); the first two where others are unknown."""
        t, x, u, (first, second) = self.t, self.x, self.u, self.mode.strips
        here = sides(first, t, x, u)
        partner = self.mode.beyond(second, t, x, u)
        if partner is None:
            return np.array([here.before, here.behind])
        there = sides(partner, t, second.entered(t, x, u), u)
        back = second.chart.at(t, x, u).inverse
        return np.array([here.before, here.behind, back @ there.before, back @ there.behind])

    @property
    def is_crossed(self) -> bool:
        """Whether all four fields cross the second guard."""
        rate, slope = self.mode.strips[1].guard.derivative(self.t, self.x, self.u)
        return len(self.fields) == 4 and bool((rate + self.fields @ slope < 0.0).all())

    @PointProperty
    def weights(self) -> list[tuple[float, float]]:
        """All (a, b) whose combination has no component across either guard."""
        if len(self.fields) < 4:
            return []
        parts = np.array([[1, 0, 0, 0], [-1, 1, 0, 0], [-1, 0, 1, 0], [1, -1, -1, 1]]) @ self.fields
        rows = []
        for strip in self.mode.strips:
            rate, slope = strip.guard.derivative(self.t, self.x, self.u)
            rows.append(parts @ slope + np.array([rate, 0.0, 0.0, 0.0]))
        p, q = rows
        # From q: b = -(q0 + q1 a) / (q2 + q3 a), put into p.
        equation: Array = np.polysub(
            np.polymul([p[1], p[0]], [q[3], q[2]]), np.polymul([p[3], p[2]], [q[1], q[0]])
        )
        found = []
        for root in np.roots(equation):
            below = q[2] + q[3] * root
            if abs(root.imag) <= _REAL and below != 0.0:
                found.append((float(root.real), float((-(q[0] + q[1] * root) / below).real)))
        return found

    @property
    def inside(self) -> list[tuple[float, float]]:
        """The weights that make a convex combination."""
        return [w for w in self.weights if min(w) >= 0.0 and max(w) <= 1.0]

    @property
    def nearest(self) -> tuple[float, float]:
        """The weights nearest to a convex combination, for steps tried past where there is one.

        They are cut to [-1, 2], between which and [0, 1] the motion ends; those of a pole are 2.
        """
        if not self.weights:
            return 2.0, 2.0
        a, b = min(self.weights, key=lambda w: max(abs(w[0] - 0.5), abs(w[1] - 0.5)))
        return min(max(a, -1.0), 2.0), min(max(b, -1.0), 2.0)

    def refused(self) -> IntersectionError:
        """The error for an intersection where no combination is singled out."""
        first, second = self.mode.strips
        shown = "; ".join(str(np.round(f, 9).tolist()) for f in self.fields)
        return IntersectionError(
            f"sliding on guard {first.guard.name!r} of mode {first.source.key!r} meets guard "
            f"{second.guard.name!r} at t = {self.t:.9g} s, x = {self.x.tolist()}, where not all "
            f"fields cross it, and {len(self.inside)} convex combinations stay on both, not one: "
            f"{shown}",
            fields=tuple(self.fields),
        )


class _OnBoth(GuardMotion):
    """Sliding on two guards at once, while the weights of one combination of fields are convex."""

    def __init__(self, system: Filippov, first: Strip, second: Strip) -> None:
        self.system, self.strips = system, (first, second)
        self.space, self.nu = first.source.space, first.source.nu
        names = first.guard.name, second.guard.name
        self.key = (SLIDING, first.source.key, *names)
        self.guard_names = tuple(f"{name}: {end}" for name in names for end in Filippov.ends)
        self.held = Held(names, self._residuals, np.full(2, _HELD), ("", ""))
        self.project = self._projected

    def calc(self, t: float, x: Array, u: Array) -> CornerPoint:
        """The motion at (t, x, u)."""
        return CornerPoint(self, t, x, u)

    def beyond(self, across: Strip, t: float, x: Array, u: Array) -> Strip | None:
        """The other guard, as the mode behind the guard `across` has it; None if it has not."""
        if not slides(across) or across.border is None:
            return None
        guards = self.system.inner.outgoing(across.target.key).guards
        near = np.abs(guards.values(t, across.entered(t, x, u), u)) <= _MEETS
        near[across.border.index] = False
        found = np.flatnonzero(near)
        if len(found) != 1:
            return None
        strip = self.system.strip(across.target.key, guards.names[found[0]])
        return strip if slides(strip) else None

    def field_at(self, point: CornerPoint) -> Array:
        """The combination of the weights; F_00 for a step tried off the intersection."""
        if len(point.fields) < 4:
            return np.asarray(point.fields[0])
        a, b = point.nearest
        shares = np.array([(1 - a) * (1 - b), a * (1 - b), (1 - a) * b, a * b])
        return np.asarray(shares @ point.fields)

    def guards_at(self, point: CornerPoint) -> Array:
        """The values a, 1 - a, b, 1 - b."""
        a, b = point.nearest
        return np.array([a, 1.0 - a, b, 1.0 - b])

    def way(self, name: str) -> Edge | None:
        """The edge along the other guard: of this mode, or of the one behind the guard passed."""
        for strip, other in (self.strips, self.strips[::-1]):
            if name == f"{strip.guard.name}: leaves":
                return Edge(Reset.identity(), (SLIDING, strip.source.key, other.guard.name))
            if name == f"{strip.guard.name}: passes":
                return Edge(Reset(partial(self._passes, strip)))
        return None

    def _passes(self, strip: Strip, t: float, x: Array, u: Array) -> Jump:
        along = self.beyond(strip, t, x, u)
        if along is None:
            raise self.calc(t, x, u).refused()
        return Jump(strip.entered(t, x, u), (SLIDING, along.source.key, along.guard.name))

    def _residuals(self, x: Array) -> Array:
        u = np.zeros(self.nu)
        return np.array([strip.guard.value(0.0, x, u) for strip in self.strips])

    def _projected(self, x: Array) -> Array:
        u = np.zeros(self.nu)
        slopes = [strip.guard.derivative(0.0, x, u)[1] for strip in self.strips]
        return np.asarray(x - np.linalg.pinv(np.array(slopes)) @ self._residuals(x))
