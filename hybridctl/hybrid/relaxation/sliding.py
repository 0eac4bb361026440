"""Filippov's sliding motions as modes of their own: relays, dry friction, variable structure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, array, instance
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
from hybridctl.hybrid.relaxation.along import Beside, OnGuard
from hybridctl.hybrid.relaxation.intersections import Intersection
from hybridctl.hybrid.relaxation.regions import (
    NoEscape,
    Region,
    refuse_escape,
    sides,
    slides,
)
from hybridctl.hybrid.relaxation.strip import Strip, differences
from hybridctl.hybrid.relaxation.strips import Strips
from hybridctl.hybrid.system import HybridSystem

SLIDING = "sliding"
_HELD = 1e-8  # of a guard, in its own unit: how far from it a sliding state may be


def filippov(
    system: HybridSystem,
    *,
    images: Mapping[tuple[ModeKey, str], str | None] | None = None,
    samples: Mapping[ModeKey, ArrayLike] | None = None,
) -> Filippov:
    """The system with a mode (SLIDING, key, name) for sliding on guard `name` of mode `key`.

    A motion that meets a guard from which the next mode pushes back slides on it with Filippov's
    field, see `regions`, until one of the two fields lets go. It is in the coordinates of the mode
    it came from; for the next mode it is at the image of the reset. Guards whose reset has no
    inverse, or leads inside the next mode, have one side only, and are crossed.

    A sliding motion that meets a second guard goes on beyond it where all four fields around cross
    it, and on both, in the mode (SLIDING, key, name, other), where one convex combination of them
    stays there, see `intersections`; that mode has no Jacobian.

    images, samples: see `relax`. Raises what `relax` raises; starts from which both fields lead
    away are an `EscapingError`, and other intersections an `IntersectionError`, with the fields.
    """
    instance("system", system, HybridSystem)
    named = {key: array(f"samples[{key!r}]", s, (None, None)) for key, s in (samples or {}).items()}
    return Filippov(system, Strips(system, 0.0, dict(images or {}), named))


class Filippov(HybridSystem):
    """A system whose sliding motions are modes; see `filippov`."""

    def __init__(self, system: HybridSystem, strips: Strips) -> None:
        super().__init__(self._mode_at, self._outgoing_at)
        self.system, self.strip = system, strips.of

    def strip_of(self, key: ModeKey) -> Strip | None:
        """The guard that a mode slides on; None for a mode of the system."""
        if isinstance(key, tuple) and len(key) == 3 and key[0] == SLIDING:
            return self.strip(key[1], key[2])
        return None

    def _both(self, key: ModeKey) -> _Both | None:
        """Sliding on two guards at once, if that is what a mode is."""
        if isinstance(key, tuple) and len(key) == 4 and key[0] == SLIDING:
            first, second = (self.strip(key[1], name) for name in key[2:])
            return _Both(Intersection(self.system, self.strip, first, second))
        return None

    def _mode_at(self, key: ModeKey) -> Mode:
        strip, both = self.strip_of(key), self._both(key)
        if both is not None:
            return both.mode(key)
        if strip is not None:
            slide = _Slide(strip, self)
            return Mode(
                key,
                strip.source.space,
                slide.field,
                strip.source.nu,
                slide.jacobian,
                slide.outputs,
                project=slide.project,
                held=_HeldOnGuard.of(strip),
            )
        mode = self.system.mode(key)
        names = self.system.outgoing(key).guards.names
        return mode if mode.held else replace(mode, held=NoEscape.on(names, self.strip))

    def _outgoing_at(self, key: ModeKey) -> Outgoing:
        strip, both = self.strip_of(key), self._both(key)
        if both is not None:
            return Outgoing(both.guards(), both.edge)
        if strip is not None:
            slide = _Slide(strip, self)
            return Outgoing(slide.guards(), slide.edge)
        return Outgoing(self.system.outgoing(key).guards, partial(self._met, key))

    def _met(self, key: ModeKey, fired: tuple[str, ...]) -> Edge | None:
        own = self.system.outgoing(key).edge(fired)
        if len(fired) != 1 or not slides(self.strip(key, fired[0])):
            return own
        met = _Met(self.strip(key, fired[0]))
        return Edge(Reset(met, met.jacobian))


@dataclass(frozen=True, eq=False)
class _Met:
    """What happens where a guard is met: it is crossed, or a sliding motion begins."""

    strip: Strip

    def __call__(self, t: float, x: Array, u: Array) -> Jump:
        strip = self.strip
        x = strip.guard.foot(t, x, u)
        if self._slides(t, x, u):
            return Jump(x, (SLIDING, strip.source.key, strip.guard.name))
        return Jump(strip.entered(t, x, u), strip.target.key)

    def jacobian(self, t: float, x: Array, u: Array) -> ResetJacobian:
        """Of the map in the region of x."""
        n = self.strip.n
        if self._slides(t, x, u):
            return ResetJacobian(np.zeros(n), np.eye(n), np.zeros((n, len(u))))
        return self.strip.entered_jacobian(t, x, u)

    def _slides(self, t: float, x: Array, u: Array) -> bool:
        """Whether the next mode pushes back; this one has just led here."""
        return sides(self.strip, t, x, u).speeds[1] > 0.0


@dataclass(frozen=True, eq=False)
class _HeldOnGuard(Held):
    """Sliding states are on their guard, and not where both fields lead away."""

    strip: Strip | None = None

    @staticmethod
    def of(strip: Strip) -> _HeldOnGuard:
        u = np.zeros(strip.source.nu)
        moves = any(strip.guard.derivative(t, np.zeros(strip.n), u)[0] for t in (0.0, 1.0))
        names = () if moves else (strip.guard.name,)
        return _HeldOnGuard(
            names,
            lambda x: np.zeros(0) if moves else np.array([strip.guard.value(0.0, x, u)]),
            np.full(len(names), _HELD),
            ("",) * len(names),
            strip,
        )

    def check(self, what: str, key: ModeKey, x: Array) -> None:
        """Raise `EscapingError` besides what `Held` raises."""
        super().check(what, key, x)
        strip = self.strip
        if strip is not None:
            refuse_escape(what, strip, sides(strip, 0.0, x, np.zeros(strip.source.nu)))


@dataclass(frozen=True, eq=False)
class _Slide(OnGuard):
    """Sliding on one guard: its field, and the ways out."""

    system: Filippov

    def across(self, t: float, x: Array, u: Array) -> tuple[float, Array]:
        """The rate of the guard, and its slope (n,)."""
        return self.strip.guard.derivative(t, x, u)

    def turning(self, t: float, x: Array, u: Array) -> tuple[Array, Array]:
        """How the slope turns, on a curved guard."""
        n, nu = self.strip.n, len(u)
        if self.strip.chart.affine:
            return np.zeros((n, n)), np.zeros((n, nu))
        return differences(lambda y: self.across(t, y, u)[1], x), np.zeros((n, nu))

    def outputs(self, t: float, x: Array, u: Array) -> dict[str, Array]:
        """The weight of the next mode's field."""
        return {"weight": np.array([self.sides(t, x, u).weight])}

    def project(self, x: Array) -> Array:
        """The nearest state on the guard."""
        return self.strip.guard.foot(0.0, x, np.zeros(self.strip.source.nu))

    def guards(self) -> GuardSet:
        """Where one of the fields lets go, and the other guards of the mode."""
        names = ("leaves", "passes")
        return Beside(self.strip.guard, names, self._released, self._released_by).guards()

    def _released(self, t: float, x: Array, u: Array) -> Array:
        first, second = self.sides(t, x, u).speeds
        return np.array([-first, second])

    def _released_by(self, t: float, x: Array, u: Array) -> GuardJacobian:
        """Derivatives of these; those of both fields by time are taken as zero."""
        (first, first_u), (second, second_u) = self.speeds_jacobian(t, x, u)
        return GuardJacobian(
            np.zeros(2), np.vstack([-first, second]), np.vstack([-first_u, second_u])
        )

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """Where one of the guards leads."""
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
        corner = Intersection(self.system.system, self.system.strip, self.strip, other)
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
        """Where one of the weights reaches zero or one."""
        first, second = self.corner.first.guard.name, self.corner.second.guard.name
        names = [f"{name}: {what}" for name in (first, second) for what in ("leaves", "passes")]
        return GuardSet(tuple(names), self.values)

    def values(self, t: float, x: Array, u: Array) -> Array:
        """a, 1 - a, b, 1 - b."""
        a, b = self.corner.nearest(t, x, u)
        return np.array([a, 1.0 - a, b, 1.0 - b])

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """On along the other guard: of this mode, or of the one behind the guard passed."""
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
