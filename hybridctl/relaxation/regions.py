r"""What the fields on both sides of a guard do at a point of it, [Relax] 2, and motion there.

With a_1 the rate of the guard g under the field f_1 of its mode, and a_2 under that of the next
mode, f_2, pulled back through the reset, the guard is crossed where they have one sign, attracts
where :math:`a_1 < 0 < a_2`, and repels where :math:`a_2 < 0 < a_1`. Where it attracts, Filippov's
solution slides on it with

.. math:: f_s = (1 - \alpha) f_1 + \alpha f_2, \qquad \alpha = \frac{a_1}{a_1 - a_2}.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import EscapingError
from hybridctl.base.spaces import VectorSpace
from hybridctl.hybrid.guards import GuardJacobian
from hybridctl.hybrid.mapped import ModeOfSameMotion, SameMotion
from hybridctl.hybrid.mode import Edge, FieldJacobian, Held, ModeKey, ModeModel, Outgoing
from hybridctl.hybrid.model import Point, PointProperty
from hybridctl.hybrid.system import DerivedSystem, HybridSystem
from hybridctl.relaxation.chart import Local
from hybridctl.relaxation.strip import Strip, Strips, differences

_UNDONE = 1e-6  # of a coordinate, or of 1: how near a jump and the next one lead back
_ON = 1e-9  # of the size of a state, or of 1: how near to a guard a start is on it


class Region(Enum):
    """Crossing, sliding (both fields push onto the guard) or escaping (both lead away)."""

    CROSSING = "crossing"
    SLIDING = "sliding"
    ESCAPING = "escaping"


@dataclass(frozen=True, eq=False)
class SideFields:
    """The fields of both sides at a point of a guard.

    before, behind (n,): of the mode, and of the next one pulled back. speeds: a_1 and a_2, the
    rates of the guard under them.
    """

    before: Array
    behind: Array
    speeds: tuple[float, float]

    @property
    def region(self) -> Region:
        """The region that the point is in; on its border it is crossed."""
        first, second = self.speeds
        if first < 0.0 < second:
            return Region.SLIDING
        return Region.ESCAPING if second < 0.0 < first else Region.CROSSING

    @property
    def weight(self) -> float:
        r"""The weight :math:`\alpha` of the next mode's field."""
        first, second = self.speeds
        return first / (first - second)

    @property
    def sliding(self) -> Array:
        """Filippov's field (n,)."""
        return (1.0 - self.weight) * self.before + self.weight * self.behind


def sides(strip: Strip, t: float, x: Array, u: Array) -> SideFields:
    """The fields on both sides of the guard of a strip, at the point x (n,) of it."""
    return OnGuard((strip.source.key, strip.guard.name), strip).calc(t, x, u).sides


def slides(strip: Strip) -> bool:
    """Whether a guard has two sides: its reset leads to a border and has an inverse."""
    return strip.border is not None and strip.size == strip.n


def refuse_start(
    guards: tuple[str, ...],
    of: Callable[[ModeKey, str], Strip],
    what: str,
    key: ModeKey,
    x: Array,
) -> None:
    """Raise `EscapingError` if both fields lead away from `what`, the state x, under no input.

    That is on one of these guards, with their strips by of(mode, guard). Only guards whose jump is
    undone by the next mode have a state on both sides; a ball that has just bounced is on one.
    """
    for strip in (of(key, name) for name in guards):
        u = np.zeros(strip.source.nu)
        near = abs(strip.guard.value(0.0, x, u)) <= _ON * max(1.0, float(np.abs(x).max()))
        if not near or not slides(strip) or strip.border is None:
            continue
        image = strip.chart.at(0.0, x, u).landed
        back = of(strip.target.key, strip.border.name).chart.at(0.0, image, u).landed
        if back.shape == x.shape and np.allclose(back, x, rtol=_UNDONE, atol=_UNDONE):
            refuse_escape(what, strip, sides(strip, 0.0, x, u))


def refuse_escape(what: str, strip: Strip, found: SideFields) -> None:
    """Raise `EscapingError` if `what` is where both fields lead away."""
    if found.region is Region.ESCAPING:
        raise EscapingError(
            f"{what} is on guard {strip.guard.name!r} of mode {strip.source.key!r}, and both "
            f"fields lead away from it: {found.before.tolist()} of this mode and "
            f"{found.behind.tolist()} of {strip.target.key!r}; no solution from there is unique",
            fields=(found.before, found.behind),
        )


class StripPoint(Point):
    """A point y = (x, z) of a motion behind a guard, and the modes on both sides there.

    On the guard z is left out, and zero.
    """

    mode: StripMode

    @PointProperty
    def source(self) -> Point:
        """The mode whose guard it is."""
        strip = self.mode.strip
        return strip.source.calc(self.t, self.x[: strip.n], self.u)

    @PointProperty
    def local(self) -> Local:
        """The chart."""
        strip = self.mode.strip
        return strip.chart.at(self.t, self.x[: strip.n], self.u)

    @PointProperty
    def target(self) -> Point:
        """The next mode, at the image."""
        strip = self.mode.strip
        return strip.target.calc(self.t, strip.landed(self.local, strip.entry(self.x)), self.u)

    @PointProperty
    def pulled(self) -> Array:
        """The next mode's field, pulled back to the strip (n + p,)."""
        local = self.local
        return np.asarray(local.inverse @ (self.target.field - local.drift))

    @PointProperty
    def pressed(self) -> Array:
        """The same where z is held."""
        rate = self.local.reset @ (self.target.field - self.local.drift)
        return self.mode.strip.entry(rate)

    def pulled_jacobian(self, held: bool = False) -> tuple[Array, Array]:
        """Derivatives of `pulled` by y and u, or of `pressed`."""
        strip, local, d = self.mode.strip, self.local, self.target.field_jacobian
        back = np.eye(strip.size, strip.n) @ local.reset if held else local.inverse
        if strip.chart.affine:
            return back @ d.state @ np.hstack([local.matrix, strip.basis]), back @ d.input

        def field(y: Array) -> Array:
            there = self.mode.calc(self.t, y, self.u)
            return there.pressed if held else there.pulled

        return differences(field, self.x), back @ d.input


class GuardPoint(StripPoint):
    """A point of a motion on a guard, with what both sides do there."""

    mode: OnGuard

    @PointProperty
    def across(self) -> tuple[float, Array]:
        """The rate b and slope w (n,), by which a field f does b + w . f across the guard."""
        return self.mode.across_at(self)

    @PointProperty
    def turning(self) -> tuple[Array, Array]:
        """Derivatives of w by state (n, n) and input (n, nu)."""
        return self.mode.turning_at(self)

    @PointProperty
    def sides(self) -> SideFields:
        """The fields on both sides of the guard, and the rates of the guard under them."""
        constant, w = self.across
        before, behind = self.source.field, self.pulled[: len(self.x)]
        across = constant + float(w @ before), constant + float(w @ behind)
        return SideFields(before, behind, across)

    @PointProperty
    def field_slopes(self) -> list[tuple[Array, Array]]:
        """Derivatives of both fields by state and input."""
        own, (by_state, by_u) = self.source.field_jacobian, self.pulled_jacobian()
        return [(own.state, own.input), (by_state[:, : len(self.x)], by_u)]

    @PointProperty
    def speed_slopes(self) -> list[tuple[Array, Array]]:
        """Derivatives of the guard's rates under both fields, by state (n,) and input (nu,)."""
        pairs = zip((self.sides.before, self.sides.behind), self.field_slopes, strict=True)
        return [self.speed_slope(f, by) for f, by in pairs]

    def speed_slope(self, f: Array, by: tuple[Array, Array]) -> tuple[Array, Array]:
        """Derivatives of what a field f, with derivatives `by` state and input, does across."""
        w, (turns, turns_u) = self.across[1], self.turning
        return w @ by[0] + f @ turns, w @ by[1] + f @ turns_u


class GuardMotion(ModeModel):
    """A mode of its own on a guard, or behind it, and the ways out of it."""

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """The edge behind guards, of which one at a time leads on."""
        return self.way(*fired) if len(fired) == 1 else None

    def way(self, name: str) -> Edge | None:
        """The edge behind a guard; here there is none."""
        return None


class StripMode(GuardMotion):
    """Motion behind the guard of a strip, until another guard of the mode falls.

    ends: what it ends by besides, the names of guards of its own (k,).
    """

    def __init__(self, key: ModeKey, strip: Strip, ends: Iterable[str]) -> None:
        self.key, self.strip, self.nu = key, strip, strip.source.nu
        self.space = VectorSpace(strip.size)
        name, names = strip.guard.name, strip.guard.guards.names
        self.others = strip.guard.others
        self.guard_names = (*(f"{name}: {end}" for end in ends), *(names[i] for i in self.others))

    def calc(self, t: float, x: Array, u: Array) -> StripPoint:
        """The motion at (t, x, u)."""
        return StripPoint(self, t, x, u)

    def guards_at(self, point: Any) -> Array:
        """What it ends by, and the other guards of the mode."""
        return np.append(self.ends_at(point), point.source.guards[self.others])

    def guard_jacobian_at(self, point: Any) -> GuardJacobian:
        """The derivatives of these."""
        own, d = self.ends_jacobian_at(point), point.source.guard_jacobian
        state = np.zeros((len(self.others), self.space.ndx))
        state[:, : self.strip.n] = d.state[self.others]
        return GuardJacobian(
            np.append(own.time, d.time[self.others]),
            np.vstack([own.state, state]),
            np.vstack([own.input, d.input[self.others]]),
        )

    @abstractmethod
    def ends_at(self, point: Any) -> Array:
        """The values (k,) of what it ends by."""

    @abstractmethod
    def ends_jacobian_at(self, point: Any) -> GuardJacobian:
        """The derivatives of these values."""


class OnGuard(StripMode):
    """Motion on the guard of a strip of no width."""

    ends: ClassVar[tuple[str, ...]] = ()

    def __init__(self, key: ModeKey, strip: Strip) -> None:
        super().__init__(key, strip, self.ends)
        self.space = strip.source.space
        self.project = self.projected

    def calc(self, t: float, x: Array, u: Array) -> GuardPoint:
        """The motion at (t, x, u)."""
        return GuardPoint(self, t, x, u)

    def across_at(self, point: GuardPoint) -> tuple[float, Array]:
        """The rate b and slope w (n,) at a point of the guard."""
        return self.strip.guard.derivative(point.t, point.x, point.u)

    def turning_at(self, point: GuardPoint) -> tuple[Array, Array]:
        """Derivatives of w by state (n, n) and input (n, nu)."""
        n, t, u = self.strip.n, point.t, point.u
        by_input = np.zeros((n, len(u)))
        if self.strip.chart.affine:
            return np.zeros((n, n)), by_input
        return differences(lambda y: self.calc(t, y, u).across[1], point.x), by_input

    def field_at(self, point: GuardPoint) -> Array:
        """The field that stays on the guard."""
        return point.sides.sliding

    def field_jacobian_at(self, point: GuardPoint) -> FieldJacobian:
        """Derivatives of the field; second ones that it contains by central differences."""
        found, (own, pulled) = point.sides, point.field_slopes
        first, second = found.speeds
        by_first, by_second = point.speed_slopes
        parts = []
        for k in range(2):  # by state and by input
            change = (first * by_second[k] - second * by_first[k]) / (first - second) ** 2
            blended = (1.0 - found.weight) * own[k] + found.weight * pulled[k]
            parts.append(blended + np.outer(found.behind - found.before, change))
        return FieldJacobian(parts[0], parts[1])

    def ends_at(self, point: GuardPoint) -> Array:
        """The values (k,) of what it ends by."""
        return np.zeros(0)

    def ends_jacobian_at(self, point: GuardPoint) -> GuardJacobian:
        """The derivatives of these values."""
        return GuardJacobian(np.zeros(0), np.zeros((0, self.strip.n)), np.zeros((0, self.nu)))

    def outputs_at(self, point: GuardPoint) -> dict[str, Array]:
        """The weight of the next mode's field."""
        return {"weight": np.array([point.sides.weight])}

    def projected(self, x: Array) -> Array:
        """The nearest state on the guard."""
        return self.strip.guard.foot(0.0, x, np.zeros(self.nu))


class GuardModes(DerivedSystem, ABC):
    """A system with further modes, (kind, mode, guard, ...), of motions on its guards.

    ends: what such a motion calls its own guards, after the guard that it is on. finest: what the
    scales of guards are at most.
    """

    ends: tuple[str, ...]
    finest = np.inf

    def __init__(self, strips: Strips) -> None:
        names = strips.system.guard_names
        if names is not None:
            names = (*names, *(f"{name}: {end}" for name in names for end in self.ends))
        super().__init__(strips.system, self._mode_at, self._outgoing_at, names)
        self.epsilon, self.strip = strips.epsilon, strips.of
        self._plain: dict[ModeKey, ModeModel] = {}
        self._motions: dict[ModeKey, GuardMotion | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_motions": {}}

    def again(self, inner: HybridSystem) -> GuardModes:
        """The motions on the guards of another system."""
        return type(self)(Strips(inner, self.epsilon))

    def origin(self, key: ModeKey) -> ModeKey:
        """The mode of the system that a motion is in."""
        match key:
            case (_, source, *_) if self.motion(key) is not None:
                return source
        return key

    @abstractmethod
    def motion(self, key: ModeKey) -> GuardMotion | None:
        """The motion on a guard that a mode stands for; None for a mode of the system."""

    @abstractmethod
    def ways(self, key: ModeKey) -> Outgoing:
        """The ways out of a mode of the system."""

    def plain(self, key: ModeKey) -> ModeModel:
        """A mode of the system, with starts refused from which both fields lead away."""
        if key not in self._plain:
            mode = self.inner.mode(key)
            for name in mode.guard_names:
                self.strip(key, name)
            refuse = partial(refuse_start, mode.guard_names, self.strip)
            self._plain[key] = _Starts(refuse, self.finest).map_mode(mode)
        return self._plain[key]

    def _mode_at(self, key: ModeKey) -> ModeModel:
        motion = self._motion(key)
        return self.plain(key) if motion is None else motion

    def _outgoing_at(self, key: ModeKey) -> Outgoing:
        motion = self._motion(key)
        return self.ways(key) if motion is None else Outgoing(motion.guard_set, motion.edge)

    def _motion(self, key: ModeKey) -> GuardMotion | None:
        """What a mode is, made once, so that its guards are those of its edges."""
        if key not in self._motions:
            self._motions[key] = self.motion(key)
        return self._motions[key]


class _StartingMode(ModeOfSameMotion):
    """A mode that refuses starts, unless it holds something."""

    change: _Starts

    def __init__(self, inner: ModeModel, change: _Starts) -> None:
        super().__init__(inner, change)
        self.held = inner.held or Held((), _nothing, np.zeros(0), (), refuse=change.refuse)

    @property
    def guard_scales(self) -> Array:
        return np.minimum(self.inner.guard_scales, self.change.finest)


@dataclass(frozen=True, eq=False)
class _Starts(SameMotion):
    """What refuses the starts of a mode; finest: the largest guard scale."""

    mode_class = _StartingMode

    refuse: Callable[[str, ModeKey, Array], None]
    finest: float


def _nothing(x: Array) -> Array:
    return np.zeros(0)
