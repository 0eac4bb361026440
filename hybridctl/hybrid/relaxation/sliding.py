r"""Filippov's sliding motions as modes of their own: relays, dry friction, variable structure.

Where a sliding motion meets a second guard there are four fields, in the coordinates of the mode:
F_00 of it, F_10 behind the first guard, F_01 behind the second and F_11 behind both. Their
combination

.. math:: F(a, b) = (1 - a)(1 - b) F_{00} + a (1 - b) F_{10} + (1 - a) b F_{01} + a b F_{11}

stays on both guards where it has no component across either. There is no general law that chooses
one of several such combinations, nor what happens where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hybridctl.checks import Array, instance
from hybridctl.errors import IntersectionError
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.mode import (
    Edge,
    Held,
    Jump,
    Mode,
    ModeKey,
    Outgoing,
    Reset,
    ResetJacobian,
)
from hybridctl.hybrid.relaxation.regions import (
    GuardModes,
    GuardPoint,
    OnGuard,
    Region,
    refuse_escape,
    sides,
    slides,
)
from hybridctl.hybrid.relaxation.strip import Strip, Strips
from hybridctl.hybrid.system import HybridSystem

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
    return Filippov(Strips(instance("system", system, HybridSystem), 0.0))


class Filippov(GuardModes):
    """A system whose sliding motions are modes; see `filippov`."""

    ends = ("leaves", "passes")

    def motion(self, key: ModeKey) -> _Slide | _Both | None:
        """Sliding on one guard, or on two at once; None for a mode of the system."""
        match key:
            case (kind, source, str() as name) if kind == SLIDING:
                return _Slide(key, self.strip(source, name), self)
            case (kind, source, str() as one, str() as other) if kind == SLIDING:
                strips = self.strip(source, one), self.strip(source, other)
                return _Both(Intersection(self.inner, self.strip, *strips))
        return None

    def ways(self, key: ModeKey) -> Outgoing:
        """Guards that are crossed, or on which a sliding motion begins."""
        own, guards = self.inner.outgoing(key), self.plain(key).guard_set
        return replace(own, guards=guards, edge=partial(self._met, key))

    def _met(self, key: ModeKey, fired: tuple[str, ...]) -> Edge | None:
        own = self.inner.outgoing(key).edge(fired)
        if len(fired) != 1 or not slides(self.strip(key, fired[0])):
            return own
        met = _Met(self.strip(key, fired[0]))
        return Edge(Reset(met, met.jacobian))


@dataclass(frozen=True, eq=False)
class _Met:
    """The reset where a guard is met: the state crosses it, or a sliding motion begins."""

    strip: Strip

    def __call__(self, t: float, x: Array, u: Array) -> Jump:
        strip = self.strip
        x = strip.guard.foot(t, x, u)
        if self._slides(t, x, u):
            return Jump(x, (SLIDING, strip.source.key, strip.guard.name))
        return Jump(strip.entered(t, x, u), strip.target.key)

    def jacobian(self, t: float, x: Array, u: Array) -> ResetJacobian:
        """The Jacobian of the map in the region of x."""
        n = self.strip.n
        if self._slides(t, x, u):
            return ResetJacobian(np.zeros(n), np.eye(n), np.zeros((n, len(u))))
        return self.strip.entered_jacobian(t, x, u)

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

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """The edge behind one of the guards."""
        if len(fired) != 1:
            return None
        strip, (name,) = self.strip, fired
        if name == f"{strip.guard.name}: leaves":
            return Edge(Reset.identity(), strip.source.key)
        if name == f"{strip.guard.name}: passes":
            return Edge(strip.through, strip.target.key)
        other = self.system.strip(strip.source.key, name)
        return Edge(Reset(partial(self._meets, other), other.entered_jacobian))

    def _meets(self, other: Strip, t: float, x: Array, u: Array) -> Jump:
        """Slide on beyond another guard that all four fields around cross, or on both."""
        key, name = self.strip.source.key, other.guard.name
        corner = Intersection(self.system.inner, self.system.strip, self.strip, other)
        partner = corner.beyond(t, x, u, other)
        if partner is None or not corner.is_crossed(t, x, u):
            if len(corner.inside(t, x, u)) != 1:
                raise corner.refused(t, x, u)
            return Jump(other.guard.foot(t, x, u), (SLIDING, key, self.strip.guard.name, name))
        beyond = other.entered(t, x, u)
        found = sides(partner, t, beyond, u)
        if found.region is Region.SLIDING:
            return Jump(beyond, (SLIDING, partner.source.key, partner.guard.name))
        if found.speeds[0] > 0.0:
            return Jump(beyond, partner.source.key)
        return Jump(partner.entered(t, beyond, u), partner.target.key)


@dataclass(frozen=True, eq=False)
class Intersection:
    """Two guards of one mode that meet; of(mode, guard) gives the glued guards of `system`."""

    system: HybridSystem
    of: Callable[[ModeKey, str], Strip]
    first: Strip
    second: Strip

    def beyond(self, t: float, x: Array, u: Array, across: Strip) -> Strip | None:
        """The other guard, as the mode behind the guard `across` has it; None if it has not."""
        if not slides(across) or across.border is None:
            return None
        guards = self.system.outgoing(across.target.key).guards
        near = np.abs(guards.values(t, across.entered(t, x, u), u)) <= _MEETS
        near[across.border.index] = False
        found = np.flatnonzero(near)
        if len(found) != 1:
            return None
        strip = self.of(across.target.key, guards.names[found[0]])
        return strip if slides(strip) else None

    def fields(self, t: float, x: Array, u: Array) -> Array:
        """The fields F_00, F_10, F_01, F_11 (4, n); the first two where others are unknown."""
        here = sides(self.first, t, x, u)
        partner = self.beyond(t, x, u, self.second)
        if partner is None:
            return np.array([here.before, here.behind])
        there = sides(partner, t, self.second.entered(t, x, u), u)
        back = self.second.chart.at(t, x, u).inverse
        return np.array([here.before, here.behind, back @ there.before, back @ there.behind])

    def is_crossed(self, t: float, x: Array, u: Array) -> bool:
        """Whether all four fields cross the second guard."""
        rate, slope = self.second.guard.derivative(t, x, u)
        fields = self.fields(t, x, u)
        return len(fields) == 4 and bool((rate + fields @ slope < 0.0).all())

    def weights(self, t: float, x: Array, u: Array) -> list[tuple[float, float]]:
        """All (a, b) whose combination has no component across either guard."""
        fields = self.fields(t, x, u)
        if len(fields) < 4:
            return []
        parts = np.array([[1, 0, 0, 0], [-1, 1, 0, 0], [-1, 0, 1, 0], [1, -1, -1, 1]]) @ fields
        rows = []
        for strip in (self.first, self.second):
            rate, slope = strip.guard.derivative(t, x, u)
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

    def inside(self, t: float, x: Array, u: Array) -> list[tuple[float, float]]:
        """The weights that make a convex combination."""
        return [w for w in self.weights(t, x, u) if min(w) >= 0.0 and max(w) <= 1.0]

    def nearest(self, t: float, x: Array, u: Array) -> tuple[float, float]:
        """The weights nearest to a convex combination, for steps tried past where there is one.

        They are cut to [-1, 2], between which and [0, 1] the motion ends; those of a pole are 2.
        """
        found = self.weights(t, x, u)
        if not found:
            return 2.0, 2.0
        a, b = min(found, key=lambda w: max(abs(w[0] - 0.5), abs(w[1] - 0.5)))
        return min(max(a, -1.0), 2.0), min(max(b, -1.0), 2.0)

    def sliding(self, t: float, x: Array, u: Array) -> Array:
        """The combination of these weights (n,); F_00 for a step tried off the intersection."""
        fields = self.fields(t, x, u)
        if len(fields) < 4:
            return np.asarray(fields[0])
        a, b = self.nearest(t, x, u)
        shares = np.array([(1 - a) * (1 - b), a * (1 - b), (1 - a) * b, a * b])
        return np.asarray(shares @ fields)

    def refused(self, t: float, x: Array, u: Array) -> IntersectionError:
        """The error for an intersection where no combination is singled out."""
        fields, found = self.fields(t, x, u), self.inside(t, x, u)
        shown = "; ".join(str(np.round(f, 9).tolist()) for f in fields)
        return IntersectionError(
            f"sliding on guard {self.first.guard.name!r} of mode {self.first.source.key!r} meets "
            f"guard {self.second.guard.name!r} at t = {t:.9g} s, x = {x.tolist()}, where not all "
            f"fields cross it, and {len(found)} convex combinations stay on both, not one: {shown}",
            fields=tuple(fields),
        )


@dataclass(frozen=True, eq=False)
class _Both:
    """Sliding on two guards at once, while the weights of one combination of fields are convex."""

    corner: Intersection

    def mode(self, key: ModeKey) -> Mode:
        """The mode; it has no Jacobian."""
        strips = self.corner.first, self.corner.second
        source = strips[0].source
        names = tuple(strip.guard.name for strip in strips)
        held = Held(names, self._residuals, np.full(2, _HELD), ("", ""))
        field = self.corner.sliding
        return Mode(key, source.space, field, source.nu, project=self._project, held=held)

    def _residuals(self, x: Array) -> Array:
        u = np.zeros(self.corner.first.source.nu)
        strips = self.corner.first, self.corner.second
        return np.array([strip.guard.value(0.0, x, u) for strip in strips])

    def _project(self, x: Array) -> Array:
        u = np.zeros(self.corner.first.source.nu)
        slopes = [s.guard.derivative(0.0, x, u)[1] for s in (self.corner.first, self.corner.second)]
        return np.asarray(x - np.linalg.pinv(np.array(slopes)) @ self._residuals(x))

    def guards(self) -> GuardSet:
        """The guards where one of the weights reaches zero or one."""
        first, second = self.corner.first.guard.name, self.corner.second.guard.name
        names = [f"{name}: {what}" for name in (first, second) for what in Filippov.ends]
        return GuardSet(tuple(names), self.values)

    def outgoing(self) -> Outgoing:
        """The ways out of it."""
        return Outgoing(self.guards(), self.edge)

    def values(self, t: float, x: Array, u: Array) -> Array:
        """The values a, 1 - a, b, 1 - b."""
        a, b = self.corner.nearest(t, x, u)
        return np.array([a, 1.0 - a, b, 1.0 - b])

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """The edge along the other guard: of this mode, or of the one behind the guard passed."""
        if len(fired) != 1:
            return None
        for strip, other in (
            (self.corner.first, self.corner.second),
            (self.corner.second, self.corner.first),
        ):
            if fired[0] == f"{strip.guard.name}: leaves":
                return Edge(Reset.identity(), (SLIDING, strip.source.key, other.guard.name))
            if fired[0] == f"{strip.guard.name}: passes":
                return Edge(Reset(partial(self._passes, strip)))
        return None

    def _passes(self, strip: Strip, t: float, x: Array, u: Array) -> Jump:
        along = self.corner.beyond(t, x, u, strip)
        if along is None:
            raise self.corner.refused(t, x, u)
        return Jump(strip.entered(t, x, u), (SLIDING, along.source.key, along.guard.name))
