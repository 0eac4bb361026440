"""Relaxed systems: a strip behind every guard, as modes of an ordinary hybrid system."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_instance, check_number
from hybridctl.base.errors import OverlappingStripsError
from hybridctl.hybrid.guards import GuardJacobian
from hybridctl.hybrid.mode import (
    Edge,
    FieldJacobian,
    Jump,
    JumpPoint,
    ModeKey,
    Outgoing,
    Pace,
    Reset,
    ResetJacobian,
    ResetModel,
)
from hybridctl.hybrid.model import PointProperty
from hybridctl.hybrid.system import HybridSystem
from hybridctl.relaxation.regions import GuardModes, StripMode, StripPoint
from hybridctl.relaxation.strip import Strip, Strips, blend

FREE, HELD = "strip", "held strip"
_ARMED = 1e4  # times epsilon: guards are armed beyond 1e-8 of it by default, so at epsilon / 1e4


class Relaxed(GuardModes):
    """The relaxation of a hybrid system; see `relax`.

    Its modes are those of the system, and behind each guard `name` of mode `key` the strips
    (FREE, key, name), and (HELD, key, name) where an auxiliary state is held at zero. `strip` is
    the strip behind guard `name` of mode `key`.
    """

    ends = ("back", "through", "held", "released")

    def __init__(self, strips: Strips) -> None:
        super().__init__(strips)
        self.finest = _ARMED * strips.epsilon

    def strip_of(self, key: ModeKey) -> Strip | None:
        """The strip that a mode of this relaxation is; None for a mode of the system."""
        motion = self.motion(key)
        return None if motion is None else motion.strip

    def motion(self, key: ModeKey) -> InStrip | None:
        """The motion in a strip; None for a mode of the system."""
        match key:
            case (kind, source, str() as name) if kind in (FREE, HELD):
                return InStrip(key, self.strip(source, name), kind == HELD)
        return None

    def ways(self, key: ModeKey) -> Outgoing:
        """The edges into the strips."""
        return Outgoing(self.plain(key).guard_set, partial(self._entry, key))

    def entered(
        self, key: ModeKey, t: float, y: ArrayLike, u: ArrayLike = ()
    ) -> tuple[ModeKey, Array]:
        """Mode and state (n',) of the system that a state of this relaxation stands for.

        In a strip that is the chart of the mode entered: the state through the reset, no farther
        than epsilon outside that mode. A state of any other mode stands for itself.
        """
        y, u, strip = check_array("y", y, (None,)), check_array("u", u, (None,)), self.strip_of(key)
        if strip is None:
            return key, y
        return strip.target.key, strip.entered(t, y, u)

    def _entry(self, key: ModeKey, fired: tuple[str, ...]) -> Edge | None:
        """The way into the strip of one guard."""
        if len(fired) != 1:
            return None
        return Edge(_Entry(self.strip(key, fired[0])))


def relax(system: HybridSystem, epsilon: float) -> Relaxed:
    """The relaxation of a system, [Relax] 4 to 6 and appendix B: strips behind its guards.

    A trajectory that meets a guard goes on for up to `epsilon`, in the unit of the guard, behind
    it, under a field that leads from that of its mode to that of the next one; at the far end it is
    reset into it. Where the fields push from both sides it stays there: it slides, or rests. So
    trajectories exist, and depend continuously on their start, where events of the system itself
    accumulate. They tend to its executions and to Filippov's solutions of first order in epsilon,
    and of order 1/2 past Zeno, where they go on bouncing with speeds of order sqrt(epsilon).

    The result is an ordinary system (`Relaxed`): simulate it from a mode and a state of `system`;
    `Relaxed.entered` reads its states.

    The guard of the target on which a reset lands is the one that is zero on images of points on
    the guard left.

    Raises `InputError` for bad arguments. `SystemDefinitionError`, when a mode is entered, for a
    guard whose strip is not defined: its transition leaves the target to the reset, its modes are
    no vector spaces or differ in their inputs, guard or reset have no Jacobian or see the input,
    the reset lands on several guards, or has no inverse and is no projection either. A run that
    meets another guard within a strip ends with `OverlappingStripsError`. A start on a guard from
    which both fields lead away is an `EscapingError`: the limit depends on where in the strip it
    is.
    """
    check_instance("system", system, HybridSystem)
    return Relaxed(Strips(system, check_number("epsilon", epsilon, above=0.0)))


@dataclass(frozen=True, eq=False)
class _Resized(ResetModel):
    """The reset of y = (x, z) to (x, 0) of another size: n entries go on."""

    n: int
    size: int

    def calc(self, t: float, y: Array, u: Array) -> Jump:
        return Jump(np.append(y[: self.n], np.zeros(self.size - self.n)))

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        state = np.eye(self.size, len(at.x))
        state[self.n :] = 0.0
        return ResetJacobian(np.zeros(self.size), state, np.zeros((self.size, len(at.u))))


@dataclass(frozen=True, eq=False)
class _Entry(ResetModel):
    """The reset into a strip, of the kind that the fields ask for."""

    strip: Strip

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        strip = self.strip
        held = strip.holds and InStrip(FREE, strip, False).calc(t, strip.entry(x), u).pushing < 0.0
        kind = HELD if held else FREE
        return Jump(strip.entry(x), (kind, strip.source.key, strip.guard.name))

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        return _Resized(self.strip.n, self.strip.size).calc_diff(at)


class InStripPoint(StripPoint):
    """A point in a strip."""

    @PointProperty
    def pushing(self) -> float:
        """The rate at which z would move the image off the border, if it were free."""
        strip = self.mode.strip
        return float(strip.push @ self.pulled[strip.n :])

    @PointProperty
    def entry(self) -> Array:
        """The field of the mode, with a rate of zero for z."""
        return self.mode.strip.entry(self.source.field)


class InStrip(StripMode):
    """The motion in a strip, its guards, and where they lead; is_held: whether z is.

    Back into the mode, through to the next one, and between the two kinds of the strip where an
    auxiliary state is held. The other guards of the mode must not fire.
    """

    steady_pace = None

    def __init__(self, key: ModeKey, strip: Strip, is_held: bool) -> None:
        free = ("back", "through", "held") if strip.holds else ("back", "through")
        self.is_held, self.ends = is_held, ("back", "released") if is_held else free
        super().__init__(key, strip, self.ends)

    def calc(self, t: float, x: Array, u: Array) -> InStripPoint:
        """The motion at (t, x, u)."""
        return InStripPoint(self, t, x, u)

    @cached_property
    def guard_scales(self) -> Array:
        """Those of the mode, and of the depth, as fine as the strip is."""
        strip, fine = self.strip, _ARMED * self.strip.epsilon
        own = [1.0 if name in ("held", "released") else fine for name in self.ends]
        return np.append(own, np.minimum(strip.guard.guards.sizes[self.others], fine))

    def field_at(self, point: InStripPoint) -> Array:
        """The rate (n + p,) of y."""
        phi, _ = self._blend(point)
        if phi == 0.0:
            return point.entry
        pulled = point.pressed if self.is_held else point.pulled
        return pulled if phi == 1.0 else (1.0 - phi) * point.entry + phi * pulled

    def field_jacobian_at(self, point: InStripPoint) -> FieldJacobian:
        """Derivatives of the field; where the chart is not affine partly by central differences."""
        strip, own, n = self.strip, point.source.field_jacobian, self.strip.n
        state, by_input = np.zeros((strip.size, strip.size)), np.zeros((strip.size, self.nu))
        state[:n, :n], by_input[:n] = own.state, own.input
        if strip.border is None:
            return FieldJacobian(state, by_input)
        phi, slope = self._blend(point)
        by_state, by_u = point.pulled_jacobian(self.is_held)
        change = (point.pressed if self.is_held else point.pulled) - point.entry
        gradient = strip.guard.derivative(point.t, point.x[:n], point.u)[1]
        total = (1.0 - phi) * state + phi * by_state
        total[:, :n] -= np.outer(change, gradient * (slope / strip.epsilon))
        return FieldJacobian(total, (1.0 - phi) * by_input + phi * by_u)

    def pace_at(self, point: InStripPoint) -> Pace:
        """How fast the depth settles where both fields push onto the guard."""
        if self.is_held or self.strip.border is None:
            return Pace()
        slope, change = self._blend(point)[1], point.pulled - point.entry
        rate = slope / self.strip.epsilon * float(point.local.slope @ change[: self.strip.n])
        return Pace(relaxation=1.0 / rate) if rate > 0.0 else Pace()

    def outputs_at(self, point: InStripPoint) -> dict[str, Array]:
        """What a state stands for in the mode entered."""
        return {"entered": self.strip.landed(point.local, point.x)}

    def ends_at(self, point: InStripPoint) -> Array:
        """The depth and what is left of it, or the rate at which z lets go."""
        strip = self.strip
        depth = strip.depth(point.t, point.x, point.u)
        if self.is_held:
            return np.array([depth, -point.pushing])
        return np.array([depth, strip.epsilon - depth, strip.push @ point.x[strip.n :]])[
            : len(self.ends)
        ]

    def ends_jacobian_at(self, point: InStripPoint) -> GuardJacobian:
        """Derivatives of these; those of `released` by time are taken as zero."""
        strip, n, count = self.strip, self.strip.n, len(self.ends)
        rate, slope = strip.guard.derivative(point.t, point.x[:n], point.u)
        time, state, by_u = np.zeros(3), np.zeros((3, strip.size)), np.zeros((count, self.nu))
        time[:2], state[0, :n], state[1, :n] = (-rate, rate), -slope, slope
        if self.is_held:
            by_state, by_input = point.pulled_jacobian()
            time[1], state[1], by_u[1] = 0.0, -strip.push @ by_state[n:], -strip.push @ by_input[n:]
        else:
            state[2, n:] = strip.push
        return GuardJacobian(time[:count], state[:count], by_u)

    def way(self, name: str) -> Edge:
        """The edge behind one of the guards."""
        strip = self.strip
        key, guard = strip.source.key, strip.guard.name
        if name == f"{guard}: back":
            return Edge(_Resized(strip.n, strip.n), key)
        if name == f"{guard}: through":
            return Edge(strip.through, strip.target.key)
        if name == f"{guard}: held":
            return Edge(_Resized(strip.n, strip.size), (HELD, key, guard))
        if name == f"{guard}: released":
            return Edge(Reset.identity(strip.size), (FREE, key, guard))
        return Edge(Reset(partial(self._overlap, name)))

    def _blend(self, point: InStripPoint) -> tuple[float, float]:
        """The share of the next mode's field, and its slope; none where nothing can push back."""
        if self.strip.border is None:
            return 0.0, 0.0
        return blend(-point.local.gap / self.strip.epsilon)

    def _overlap(self, other: str, t: float, y: Array, u: Array) -> NoReturn:
        strip = self.strip
        raise OverlappingStripsError(
            f"guard {other!r} of mode {strip.source.key!r} fires at t = {t:.9g} s within the strip "
            f"of guard {strip.guard.name!r}, {strip.depth(t, y, u):.3g} behind it: the strips "
            f"overlap at x = {y[: strip.n].tolist()}; a smaller epsilon than {strip.epsilon:.3g} "
            "keeps them apart if the guards do not meet"
        )
