"""Relaxed systems: a strip behind every guard, as modes of an ordinary hybrid system."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, array, instance, number
from hybridctl.errors import OverlappingStripsError
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.mode import Edge, Jump, Mode, ModeKey, Outgoing, Reset, ResetJacobian
from hybridctl.hybrid.relaxation.regions import Beside, GuardModes
from hybridctl.hybrid.relaxation.strip import Strip, Strips
from hybridctl.hybrid.system import HybridSystem
from hybridctl.spaces import VectorSpace

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

    def motion(self, key: ModeKey) -> _InStrip | None:
        """The motion in a strip; None for a mode of the system."""
        match key:
            case (kind, source, str() as name) if kind in (FREE, HELD):
                return _InStrip(self.strip(source, name), kind == HELD)
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
        y, u, strip = array("y", y, (None,)), array("u", u, (None,)), self.strip_of(key)
        if strip is None:
            return key, y
        return strip.target.key, strip.entered(t, y, u)

    def _entry(self, key: ModeKey, fired: tuple[str, ...]) -> Edge | None:
        """The way into the strip of one guard."""
        if len(fired) != 1:
            return None
        strip = self.strip(key, fired[0])
        return Edge(Reset(partial(_enter, strip), _Resized(strip.n, strip.size).jacobian))


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
    instance("system", system, HybridSystem)
    return Relaxed(Strips(system, number("epsilon", epsilon, above=0.0)))


def _enter(strip: Strip, t: float, x: Array, u: Array) -> Jump:
    """The edge into a strip, of the kind that the fields ask for."""
    kind = HELD if strip.is_pushed(t, x, u) else FREE
    return Jump(strip.entry(x), (kind, strip.source.key, strip.guard.name))


@dataclass(frozen=True, eq=False)
class _Resized:
    """The reset of y = (x, z) to (x, 0) of another size: n entries go on."""

    n: int
    size: int

    def map(self, t: float, y: Array, u: Array) -> Array:
        return np.append(y[: self.n], np.zeros(self.size - self.n))

    def jacobian(self, t: float, y: Array, u: Array) -> ResetJacobian:
        state = np.eye(self.size, len(y))
        state[self.n :] = 0.0
        return ResetJacobian(np.zeros(self.size), state, np.zeros((self.size, len(u))))


@dataclass(frozen=True, eq=False)
class _InStrip:
    """The motion in a strip, its guards, and where they lead.

    Back into the mode, through to the next one, and between the two kinds of the strip where an
    auxiliary state is held. The other guards of the mode must not fire.
    """

    strip: Strip
    held: bool

    def mode(self, key: ModeKey) -> Mode:
        """The mode of this motion."""
        strip = self.strip
        return Mode(
            key,
            VectorSpace(strip.size),
            partial(strip.field, self.held),
            strip.source.nu,
            partial(strip.jacobian, self.held),
            strip.outputs,
            pace=partial(strip.pace, self.held),
        )

    @property
    def _own(self) -> tuple[str, ...]:
        """The names of the guards at which this strip is left."""
        if self.held:
            return ("back", "released")
        return ("back", "through", "held") if self.strip.holds else ("back", "through")

    def guards(self) -> GuardSet:
        """The guards of this motion."""
        beside = Beside(self.strip.guard, self._own, self._values, self._derivatives)
        fine, scales = _ARMED * self.strip.epsilon, self.strip.guard.guards.sizes
        own = [1.0 if name in ("held", "released") else fine for name in self._own]
        others = np.minimum(scales[self.strip.guard.others], fine)
        return beside.guards(np.append(own, others))

    def outgoing(self) -> Outgoing:
        """The ways out of it."""
        return Outgoing(self.guards(), self.edge)

    def _values(self, t: float, y: Array, u: Array) -> Array:
        strip = self.strip
        depth = strip.depth(t, y, u)
        if self.held:
            return np.array([depth, -strip.pushing(t, y, u)])
        return np.array([depth, strip.epsilon - depth, strip.push @ y[strip.n :]])[: len(self._own)]

    def _derivatives(self, t: float, y: Array, u: Array) -> GuardJacobian:
        """The derivatives of a relaxed mode; those of `released` by time are taken as zero."""
        strip, count = self.strip, len(self._own)
        rate, slope = strip.guard.derivative(t, y[: strip.n], u)
        time, state, by_u = np.zeros(3), np.zeros((3, strip.size)), np.zeros((count, len(u)))
        time[:2], state[0, : strip.n], state[1, : strip.n] = (-rate, rate), -slope, slope
        if self.held:
            pushing = strip.pushing_jacobian(t, y, u)
            time[1], state[1], by_u[1] = 0.0, -pushing.state, -pushing.input
        else:
            state[2, strip.n :] = strip.push
        return GuardJacobian(time[:count], state[:count], by_u)

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """The edge behind one of the guards."""
        if len(fired) != 1:
            return None
        strip, (name,) = self.strip, fired
        key, guard = strip.source.key, strip.guard.name
        if name == f"{guard}: back":
            return Edge(self._resized(strip.n), key)
        if name == f"{guard}: through":
            return Edge(strip.through, strip.target.key)
        if name == f"{guard}: held":
            return Edge(self._resized(strip.size), (HELD, key, guard))
        if name == f"{guard}: released":
            return Edge(Reset.identity(strip.size), (FREE, key, guard))
        return Edge(Reset(partial(self._overlap, name)))

    def _resized(self, size: int) -> Reset:
        resized = _Resized(self.strip.n, size)
        return Reset(resized.map, resized.jacobian)

    def _overlap(self, other: str, t: float, y: Array, u: Array) -> NoReturn:
        strip = self.strip
        raise OverlappingStripsError(
            f"guard {other!r} of mode {strip.source.key!r} fires at t = {t:.9g} s within the strip "
            f"of guard {strip.guard.name!r}, {strip.depth(t, y, u):.3g} behind it: the strips "
            f"overlap at x = {y[: strip.n].tolist()}; a smaller epsilon than {strip.epsilon:.3g} "
            "keeps them apart if the guards do not meet"
        )
