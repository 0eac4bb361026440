r"""What the fields on both sides of a guard do at a point of it, [Relax] 2.

With a_1 the rate of the guard g under the field f_1 of its mode, and a_2 under that of the next
mode, f_2, pulled back through the reset, the guard is crossed where they have one sign, attracts
where :math:`a_1 < 0 < a_2`, and repels where :math:`a_2 < 0 < a_1`. Where it attracts, Filippov's
solution slides on it with

.. math:: f_s = (1 - \alpha) f_1 + \alpha f_2, \qquad \alpha = \frac{a_1}{a_1 - a_2}.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import EscapingError
from hybridctl.hybrid.mode import Held, ModeKey
from hybridctl.hybrid.relaxation.strip import Strip

_UNDONE = 1e-6  # of a coordinate, or of 1: how near a jump and the next one lead back
_ON = 1e-9  # of the size of a state, or of 1: how near to a guard a start is on it


class Region(Enum):
    """Crossing, sliding (both fields push onto the guard) or escaping (both lead away)."""

    CROSSING = "crossing"
    SLIDING = "sliding"
    ESCAPING = "escaping"


@dataclass(frozen=True, eq=False)
class Sides:
    """Both fields at a point of a guard.

    before, behind (n,): of the mode, and of the next one pulled back. speeds: a_1 and a_2, the
    rates of the guard under them.
    """

    before: Array
    behind: Array
    speeds: tuple[float, float]

    @property
    def region(self) -> Region:
        """Which region the point is in; on its border it is crossed."""
        first, second = self.speeds
        if first < 0.0 < second:
            return Region.SLIDING
        return Region.ESCAPING if second < 0.0 < first else Region.CROSSING

    @property
    def weight(self) -> float:
        r""":math:`\alpha`."""
        first, second = self.speeds
        return first / (first - second)

    @property
    def sliding(self) -> Array:
        """Filippov's field (n,)."""
        return (1.0 - self.weight) * self.before + self.weight * self.behind


def sides(strip: Strip, t: float, x: Array, u: Array) -> Sides:
    """The fields on both sides of the guard of a strip, at the point x (n,) of it."""
    rate, slope = strip.guard.derivative(t, x, u)
    before, behind = strip.source.field(t, x, u), strip.pulled(t, x, u)[: strip.n]
    return Sides(before, behind, (rate + float(slope @ before), rate + float(slope @ behind)))


def slides(strip: Strip) -> bool:
    """Whether a guard has two sides: its reset leads to a border and has an inverse."""
    return strip.border is not None and strip.size == strip.n


@dataclass(frozen=True, eq=False)
class NoEscape(Held):
    """Refuses states on a guard from which both fields lead away, under no input.

    strips: of the guards of the mode, by `of(mode, guard)`. Only guards whose jump is undone by the
    next mode have a state on both sides; a ball that has just bounced is on one.
    """

    guards: tuple[str, ...] = ()
    of: Callable[[ModeKey, str], Strip] | None = None

    @staticmethod
    def on(guards: tuple[str, ...], of: Callable[[ModeKey, str], Strip]) -> NoEscape:
        """For these guards of a mode."""
        return NoEscape((), lambda x: np.zeros(0), np.zeros(0), (), guards, of)

    def check(self, what: str, key: ModeKey, x: Array) -> None:
        """Raise `EscapingError` if `what`, the state x of mode `key`, is such a state."""
        super().check(what, key, x)
        if self.of is None:
            return
        for strip in (self.of(key, name) for name in self.guards):
            u = np.zeros(strip.source.nu)
            near = abs(strip.guard.value(0.0, x, u)) <= _ON * max(1.0, float(np.abs(x).max()))
            if near and slides(strip) and self._is_undone(strip, x, u):
                refuse_escape(what, strip, sides(strip, 0.0, x, u))

    def _is_undone(self, strip: Strip, x: Array, u: Array) -> bool:
        if self.of is None or strip.border is None:
            return False
        image = strip.chart.at(0.0, x, u).landed
        back = self.of(strip.target.key, strip.border.name).chart.at(0.0, image, u).landed
        return back.shape == x.shape and bool(np.allclose(back, x, rtol=_UNDONE, atol=_UNDONE))


def refuse_escape(what: str, strip: Strip, found: Sides) -> None:
    """Raise `EscapingError` if `what` is where both fields lead away."""
    if found.region is Region.ESCAPING:
        raise EscapingError(
            f"{what} is on guard {strip.guard.name!r} of mode {strip.source.key!r}, and both "
            f"fields lead away from it: {found.before.tolist()} of this mode and "
            f"{found.behind.tolist()} of {strip.target.key!r}; no solution from there is unique",
            fields=(found.before, found.behind),
        )
