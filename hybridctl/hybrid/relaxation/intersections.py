r"""Where a sliding motion meets a second guard: four fields, and the combination that stays there.

With the fields F_00 of the mode, F_10 behind the first guard, F_01 behind the second and F_11
behind both, all in the coordinates of the mode,

.. math:: F(a, b) = (1 - a)(1 - b) F_{00} + a (1 - b) F_{10} + (1 - a) b F_{01} + a b F_{11}

stays on both guards where it has no component across either. There is no general law that chooses
one of several such combinations, nor what happens where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import IntersectionError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.relaxation.regions import sides, slides
from hybridctl.hybrid.relaxation.strip import Strip
from hybridctl.hybrid.system import HybridSystem

_MEETS = 1e-6  # of a guard: one this near to zero takes part in an intersection
_REAL = 1e-9  # of a root: an imaginary part this small is none


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
        """F_00, F_10, F_01 and F_11 (4, n); the first two only where the others are not known."""
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
        """Those of the weights that make a convex combination."""
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
