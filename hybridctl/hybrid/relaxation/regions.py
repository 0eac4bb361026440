r"""What the fields on both sides of a guard do at a point of it, [Relax] 2, and motion there.

With a_1 the rate of the guard g under the field f_1 of its mode, and a_2 under that of the next
mode, f_2, pulled back through the reset, the guard is crossed where they have one sign, attracts
where :math:`a_1 < 0 < a_2`, and repels where :math:`a_2 < 0 < a_1`. Where it attracts, Filippov's
solution slides on it with

.. math:: f_s = (1 - \alpha) f_1 + \alpha f_2, \qquad \alpha = \frac{a_1}{a_1 - a_2}.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import EscapingError
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.mapped import MappedMode, SameMotion
from hybridctl.hybrid.mode import Edge, FieldJacobian, Held, Mode, ModeKey, ModeModel, Outgoing
from hybridctl.hybrid.relaxation.chart import Border
from hybridctl.hybrid.relaxation.strip import Strip, Strips, differences
from hybridctl.hybrid.system import DerivedSystem, HybridSystem

_UNDONE = 1e-6  # of a coordinate, or of 1: how near a jump and the next one lead back
_ON = 1e-9  # of the size of a state, or of 1: how near to a guard a start is on it


class Region(Enum):
    """Crossing, sliding (both fields push onto the guard) or escaping (both lead away)."""

    CROSSING = "crossing"
    SLIDING = "sliding"
    ESCAPING = "escaping"


@dataclass(frozen=True, eq=False)
class Sides:
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


def sides(strip: Strip, t: float, x: Array, u: Array) -> Sides:
    """The fields on both sides of the guard of a strip, at the point x (n,) of it."""
    return OnGuard(strip).sides(t, x, u)


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


def refuse_escape(what: str, strip: Strip, found: Sides) -> None:
    """Raise `EscapingError` if `what` is where both fields lead away."""
    if found.region is Region.ESCAPING:
        raise EscapingError(
            f"{what} is on guard {strip.guard.name!r} of mode {strip.source.key!r}, and both "
            f"fields lead away from it: {found.before.tolist()} of this mode and "
            f"{found.behind.tolist()} of {strip.target.key!r}; no solution from there is unique",
            fields=(found.before, found.behind),
        )


@dataclass(frozen=True, eq=False)
class OnGuard:
    """Motion on the guard of a strip of no width.

    A field f of the mode does b + w . f across the guard: its rate, and its slope.
    """

    strip: Strip

    def across(self, t: float, x: Array, u: Array) -> tuple[float, Array]:
        """The rate b and slope w (n,) at a point of the guard."""
        return self.strip.guard.derivative(t, x, u)

    def turning(self, t: float, x: Array, u: Array) -> tuple[Array, Array]:
        """Derivatives of w by state (n, n) and input (n, nu)."""
        n, by_input = self.strip.n, np.zeros((self.strip.n, len(u)))
        if self.strip.chart.affine:
            return np.zeros((n, n)), by_input
        return differences(lambda y: self.across(t, y, u)[1], x), by_input

    def sides(self, t: float, x: Array, u: Array) -> Sides:
        """The fields of both sides, and a_1 and a_2."""
        strip, (constant, w) = self.strip, self.across(t, x, u)
        before, behind = strip.source.field(t, x, u), strip.pulled(t, x, u)[: strip.n]
        return Sides(before, behind, (constant + float(w @ before), constant + float(w @ behind)))

    def field(self, t: float, x: Array, u: Array) -> Array:
        """The field that stays on the guard."""
        return self.sides(t, x, u).sliding

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """Derivatives of the field; second ones that it contains by central differences."""
        found, (own, pulled) = self.sides(t, x, u), self._fields(t, x, u)
        first, second = found.speeds
        by_first, by_second = self.speeds_jacobian(t, x, u)
        parts = []
        for k in range(2):  # by state and by input
            change = (first * by_second[k] - second * by_first[k]) / (first - second) ** 2
            blended = (1.0 - found.weight) * own[k] + found.weight * pulled[k]
            parts.append(blended + np.outer(found.behind - found.before, change))
        return FieldJacobian(parts[0], parts[1])

    def outputs(self, t: float, x: Array, u: Array) -> dict[str, Array]:
        """The weight of the next mode's field."""
        return {"weight": np.array([self.sides(t, x, u).weight])}

    def project(self, x: Array) -> Array:
        """The nearest state on the guard."""
        return self.strip.guard.foot(0.0, x, np.zeros(self.strip.source.nu))

    def holding(self, key: ModeKey, held: Held) -> Mode:
        """The mode of this motion, which holds something."""
        own = self.strip.source
        project, outputs = self.project, self.outputs
        return Mode(
            key, own.space, self.field, own.nu, self.jacobian, outputs, project=project, held=held
        )

    def speeds_jacobian(self, t: float, x: Array, u: Array) -> list[tuple[Array, Array]]:
        """Derivatives of a_1 and of a_2 by state (n,) and input (nu,)."""
        found = self.sides(t, x, u)
        pairs = zip((found.before, found.behind), self._fields(t, x, u), strict=True)
        return [self.speed_jacobian(f, by, t, x, u) for f, by in pairs]

    def speed_jacobian(
        self, f: Array, by: tuple[Array, Array], t: float, x: Array, u: Array
    ) -> tuple[Array, Array]:
        """Derivatives of what a field f, with derivatives `by` state and input, does across."""
        w, (turns, turns_u) = self.across(t, x, u)[1], self.turning(t, x, u)
        return w @ by[0] + f @ turns, w @ by[1] + f @ turns_u

    def _fields(self, t: float, x: Array, u: Array) -> list[tuple[Array, Array]]:
        """Derivatives of both fields by state and input."""
        own = self.strip.source.jacobian(t, x, u)
        return [(own.state, own.input), self.strip.pulled_jacobian(t, x, u)]


@dataclass(frozen=True, eq=False)
class Beside:
    """Guards of a motion on or behind a guard, and after them the other guards of its mode.

    names (k,), values (k,) and derivatives of its own ones; they are functions of (t, y, u), and y
    begins with the state x (n,) of the mode.
    """

    guard: Border
    names: tuple[str, ...]
    own: Callable[[float, Array, Array], Array]
    own_jacobian: Callable[[float, Array, Array], GuardJacobian]

    @property
    def others(self) -> list[int]:
        """The other guards of the mode."""
        return [i for i in range(len(self.guard.guards.names)) if i != self.guard.index]

    def guards(self, scales: Array | None = None) -> GuardSet:
        """The values of all guards; scales: see `GuardSet`."""
        names = [f"{self.guard.name}: {name}" for name in self.names]
        names += [self.guard.guards.names[i] for i in self.others]
        return GuardSet(tuple(names), self.values, self.jacobian, scales)

    def values(self, t: float, y: Array, u: Array) -> Array:
        """The values of these guards."""
        others = self.guard.guards.values(t, y[: self.guard.mode.space.nx], u)
        return np.append(self.own(t, y, u), others[self.others])

    def jacobian(self, t: float, y: Array, u: Array) -> GuardJacobian:
        """The derivatives of the values."""
        n, own, others = self.guard.mode.space.nx, self.own_jacobian(t, y, u), self.others
        d = self.guard.mode.guard_jacobian(t, y[:n], u)
        state = np.zeros((len(others), len(y)))
        state[:, :n] = d.state[others]
        return GuardJacobian(
            np.append(own.time, d.time[others]),
            np.vstack([own.state, state]),
            np.vstack([own.input, d.input[others]]),
        )


class GuardMotion(Protocol):
    """A mode of its own on a guard, or behind it: what it is, its guards, and where they lead."""

    def mode(self, key: ModeKey) -> ModeModel:
        """The mode of this key."""
        ...

    def guards(self) -> GuardSet:
        """The guards of the motion."""
        ...

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """The edge behind guards that fire together."""
        ...


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
        """What a mode is; None for a mode of the system."""

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
            self._plain[key] = MappedMode(mode, _Starts(refuse, self.finest))
        return self._plain[key]

    def _mode_at(self, key: ModeKey) -> ModeModel:
        motion = self.motion(key)
        return self.plain(key) if motion is None else motion.mode(key)

    def _outgoing_at(self, key: ModeKey) -> Outgoing:
        motion = self.motion(key)
        return self.ways(key) if motion is None else Outgoing(motion.guards(), motion.edge)


@dataclass(frozen=True, eq=False)
class _Starts(SameMotion):
    """A mode that refuses starts, unless it holds something; finest: the largest guard scale."""

    refuse: Callable[[str, ModeKey, Array], None]
    finest: float

    def held(self, inner: Held | None) -> Held | None:
        return inner or Held((), _nothing, np.zeros(0), (), refuse=self.refuse)

    def guard_scales(self, inner: Array) -> Array:
        return np.minimum(inner, self.finest)


def _nothing(x: Array) -> Array:
    return np.zeros(0)
