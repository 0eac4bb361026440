"""Relaxed hybrid systems: a strip behind every guard, as modes of an ordinary hybrid system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NoReturn, overload

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_instance, check_number, check_vector
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
from hybridctl.mechanics.system import ContactSystem
from hybridctl.relaxation.contacts import RelaxedContacts, relax_contacts
from hybridctl.relaxation.guard_motion import GuardMotionSystem, SingleGuardMotion, StripPoint
from hybridctl.relaxation.strip import Strip, Strips, evaluate_blend

STRIP, HELD_STRIP = "strip", "held strip"
"""Kinds of modes in a strip: with a free auxiliary state z, and with z held at zero."""
_SCALE_PER_WIDTH = 1e4
"""Upper bound of guard scales relative to the width of the strip.

Guards are armed above 1e-8 of their scale by default, so with this bound at epsilon / 1e4 or less:
a small part of the width is enough to arm the guards of a strip."""


class Relaxed(GuardMotionSystem):
    """The relaxation of a hybrid system; see `relax`.

    Its modes are those of the system. Behind each guard `name` of mode `key` there is the mode
    (STRIP, key, name). There is a mode (HELD_STRIP, key, name), too, if a plastic reset is held
    there. `get_strip(key, name)` returns the strip itself.
    """

    exit_names = ("back", "through", "held", "released")

    def __init__(self, strips: Strips) -> None:
        super().__init__(strips)
        self.max_guard_scale = _SCALE_PER_WIDTH * strips.epsilon

    def find_strip(self, key: ModeKey) -> Strip | None:
        """Return the strip that a mode moves in; None for a mode of the system.

        Args:
            key: Key of a mode of this relaxation.
        """
        motion = self.make_motion(key)
        return None if motion is None else motion.strip

    def make_motion(self, key: ModeKey) -> MotionInStrip | None:
        """Return the motion in a strip for its key; None for a mode of the system."""
        match key:
            case (kind, source, str() as name) if kind in (STRIP, HELD_STRIP):
                return MotionInStrip(key, self.get_strip(source, name), kind == HELD_STRIP)
        return None

    def outgoing_edges(self, key: ModeKey) -> Outgoing:
        """Return the guards of a mode of the system, with edges into the strips behind them."""
        return Outgoing(self.inner_mode(key).guard_set, partial(self._find_entry, key))

    def map_to_system(
        self, key: ModeKey, t: float, y: ArrayLike, u: ArrayLike = ()
    ) -> tuple[ModeKey, Array]:
        """Return the mode and state (n',) of the system that a state of this relaxation stands for.

        In a strip these are the mode entered and the state through the relaxed reset, which is at
        most epsilon outside that mode. Another state stands for itself.

        Args:
            key: Key of a mode of this relaxation.
            t: Time, s.
            y: State in that mode.
            u: Input; it makes no difference, as guards and resets do not depend on it.

        Raises:
            InputError: If the state does not fit the mode, or the mode has an unknown guard.
            SystemDefinitionError: If the guard of the mode has no strip.
        """
        strip = self.find_strip(key)
        if strip is None:
            return key, check_vector("y", y)
        state = check_vector("y", y, strip.ny)
        return strip.target.key, strip.map_to_target(t, state, np.zeros(strip.source.nu))

    def _find_entry(self, key: ModeKey, fired: tuple[str, ...]) -> Edge | None:
        """Return the edge into the strip of a guard; None for several guards at once."""
        if len(fired) != 1:
            return None
        return Edge(_StripEntry(self.get_strip(key, fired[0])))


@overload
def relax(  # type: ignore[overload-overlap]
    system: ContactSystem, epsilon: float
) -> RelaxedContacts: ...


@overload
def relax(system: HybridSystem, epsilon: float) -> Relaxed: ...


def relax(system: HybridSystem, epsilon: float) -> Relaxed | RelaxedContacts:
    """Return the relaxation of a system: an ordinary system with strips behind its guards.

    Simulate it from a mode and a state of `system`.

    A robot with contacts gets strips behind the surfaces of its contacts, in which they push, see
    `relax_contacts`. Any other system gets strips behind its guards, see `relax_guards`.

    Args:
        system: The system.
        epsilon: Width of the strips: m for contacts, else in the unit of each guard.

    Raises:
        InputError: If an argument is not valid, or if a robot cannot be relaxed, see
            `relax_contacts`.
    """
    if isinstance(system, ContactSystem):
        return relax_contacts(system, epsilon)
    return relax_guards(system, epsilon)


def relax_guards(system: HybridSystem, epsilon: float) -> Relaxed:
    """Return the relaxation of a system by strips behind its guards, [Relax] 4 to 6, appendix B.

    A trajectory that meets a guard goes on behind it for up to `epsilon`, under a field that leads
    from that of its mode to that of the next one. At the far end it is reset into the next mode.
    Where the fields push from both sides it stays in the strip: it slides, or rests. So
    trajectories exist, and depend continuously on their start, also where events accumulate.

    They tend to executions of the system and to Filippov's solutions, with errors of first order in
    epsilon. Past Zeno the order is 1/2: there they go on bouncing with speeds of order
    sqrt(epsilon). `Relaxed.map_to_system` says which state of `system` a state stands for.

    The image guard, to which a guard is glued, is the guard of the target that is zero on images of
    points of the guard.

    A run that meets another guard within a strip ends with an `OverlappingStripsError`. A start on
    a guard from which both fields lead away is an `EscapingError`: the limit depends on where in
    the strip it is. A mode is entered with a `SystemDefinitionError` if one of its guards has no
    strip:

    - its transition leaves the target to the reset,
    - its modes are no vector spaces, or differ in their inputs,
    - guard or reset have no Jacobian, or depend on the input,
    - the reset lands on several guards, or has no inverse and is no projection either.

    Args:
        system: The system.
        epsilon: Width of the strips, in the unit of each guard.

    Raises:
        InputError: If `system` is no system, or `epsilon` is not positive.
    """
    check_instance("system", system, HybridSystem)
    return Relaxed(Strips(system, check_number("epsilon", epsilon, above=0.0)))


@dataclass(frozen=True, eq=False)
class _PaddedState(ResetModel):
    """The reset of y = (x, z) to (x, 0) with another number of auxiliary states.

    Attributes:
        nx: Number of entries of x, which stay.
        size: Number of entries of the result.
    """

    nx: int
    size: int

    def calc(self, t: float, y: Array, u: Array) -> Jump:
        return Jump(np.append(y[: self.nx], np.zeros(self.size - self.nx)))

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        state = np.eye(self.size, len(at.x))
        state[self.nx :] = 0.0
        return ResetJacobian(np.zeros(self.size), state, np.zeros((self.size, len(at.u))))


@dataclass(frozen=True, eq=False)
class _StripEntry(ResetModel):
    """The reset into a strip: z starts at zero, and is held if the next mode pushes it back."""

    strip: Strip

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        strip, y = self.strip, self.strip.append_auxiliary(x)
        is_held = strip.can_hold_auxiliary and (
            MotionInStrip(STRIP, strip, False).calc(t, y, u).release_rate < 0.0
        )
        kind = HELD_STRIP if is_held else STRIP
        return Jump(y, (kind, strip.source.key, strip.guard.name))

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        return _PaddedState(self.strip.nx, self.strip.ny).calc_diff(at)


class PointInStrip(StripPoint):
    """A point y = (x, z) in a strip of positive width."""

    mode: MotionInStrip

    @PointProperty
    def blend(self) -> tuple[float, float]:
        """The blend phi and its slope; both are zero where the target cannot push back."""
        strip = self.mode.strip
        if strip.image_guard is None:
            return 0.0, 0.0
        return evaluate_blend(-self.gluing.guard_value / strip.epsilon)

    @PointProperty
    def field(self) -> Array:
        """The relaxed field: the rate (n + p,) of y, [Relax] (24)."""
        phi, _ = self.blend
        if phi == 0.0:
            return self.source_rate  # the target's field has no share, and is not evaluated
        pulled = self.constrained_field if self.mode.is_held else self.pulled_back_field
        return pulled if phi == 1.0 else (1.0 - phi) * self.source_rate + phi * pulled

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field; partly differences where the gluing is curved."""
        mode, strip, own = self.mode, self.mode.strip, self.source_point.field_jacobian
        n, state, by_input = strip.nx, np.zeros((strip.ny, strip.ny)), np.zeros((strip.ny, mode.nu))
        state[:n, :n], by_input[:n] = own.state, own.input
        if strip.image_guard is None:
            return FieldJacobian(state, by_input)
        phi, slope = self.blend
        by_state, by_u = self.differentiate_pulled_back_field(mode.is_held)
        pulled = self.constrained_field if mode.is_held else self.pulled_back_field
        gradient = strip.guard.differentiate(self.t, self.x[:n], self.u)[1]
        total = (1.0 - phi) * state + phi * by_state
        # phi depends on the depth -g / epsilon.
        total[:, :n] -= np.outer(pulled - self.source_rate, gradient * (slope / strip.epsilon))
        return FieldJacobian(total, (1.0 - phi) * by_input + phi * by_u)

    @PointProperty
    def pace(self) -> Pace:
        """The time constant, s, with which the depth settles where both fields push."""
        strip = self.mode.strip
        if self.mode.is_held or strip.image_guard is None:
            return Pace()
        change = self.pulled_back_field - self.source_rate
        across = float(self.gluing.guard_gradient @ change[: strip.nx])
        rate = self.blend[1] / strip.epsilon * across
        return Pace(relaxation=1.0 / rate) if rate > 0.0 else Pace()

    @PointProperty
    def outputs(self) -> Mapping[str, Array]:
        """The state (n',) of the mode entered that the point stands for."""
        return {"entered": self.mode.strip.compute_image(self.gluing, self.x)}

    @PointProperty
    def exits(self) -> Array:
        """The depth, and what is left of it and of z, or what holds z.

        `back` is the depth and `through` the rest of the width. `held` is z along its release
        direction: it falls to zero where the target pushes z back. `released` is minus the rate at
        which z would leave.
        """
        mode, strip = self.mode, self.mode.strip
        depth = strip.compute_depth(self.t, self.x, self.u)
        if mode.is_held:
            return np.array([depth, -self.release_rate])
        auxiliary = strip.release_direction @ self.x[strip.nx :]
        return np.array([depth, strip.epsilon - depth, auxiliary])[: len(mode.exit_names)]

    @PointProperty
    def exit_jacobian(self) -> GuardJacobian:
        """The derivatives of the exits; those of `released` by time are taken as zero."""
        mode, strip = self.mode, self.mode.strip
        n, count = strip.nx, len(mode.exit_names)
        rate, gradient = strip.guard.differentiate(self.t, self.x[:n], self.u)
        time, state, by_u = np.zeros(3), np.zeros((3, strip.ny)), np.zeros((count, mode.nu))
        time[:2], state[0, :n], state[1, :n] = (-rate, rate), -gradient, gradient
        if mode.is_held:
            by_state, by_input = self.differentiate_pulled_back_field()
            direction = -strip.release_direction
            time[1], state[1], by_u[1] = 0.0, direction @ by_state[n:], direction @ by_input[n:]
        else:
            state[2, n:] = strip.release_direction
        return GuardJacobian(time[:count], state[:count], by_u)

    @PointProperty
    def release_rate(self) -> float:
        """Rate at which a free z would move the image off its guard; negative pushes z back."""
        strip = self.mode.strip
        return float(strip.release_direction @ self.pulled_back_field[strip.nx :])

    @PointProperty
    def source_rate(self) -> Array:
        """The field of the source as a rate (n + p,) of y: zero for z."""
        return self.mode.strip.append_auxiliary(self.source_point.field)


class MotionInStrip(SingleGuardMotion):
    """The motion in a strip, with a free auxiliary state z or with z held at zero.

    Exits of the free motion: `back` into the source, `through` into the target and, if z can be
    held, `held`. Exits of the held motion: `back` and `released`. No other guard of the source must
    fire.

    Args:
        key: Key of this mode.
        strip: The strip.
        is_held: Whether z is held.
    """

    steady_pace = None
    point = PointInStrip

    def __init__(self, key: ModeKey, strip: Strip, is_held: bool) -> None:
        free = ("back", "through", "held") if strip.can_hold_auxiliary else ("back", "through")
        self.is_held, self.exit_names = is_held, ("back", "released") if is_held else free
        super().__init__(key, strip, self.exit_names)

    def calc(self, t: float, x: Array, u: Array) -> PointInStrip:
        """Return the motion at a point.

        Args:
            t: Time, s.
            x: State (x, z) (n + p,).
            u: Input (nu,).
        """
        return self.point(self, t, x, u)

    @cached_property
    def guard_scales(self) -> Array:
        """Scales of the guards: of the depth and of the source's guards at most 1e4 epsilon."""
        strip, fine = self.strip, _SCALE_PER_WIDTH * self.strip.epsilon
        own = [1.0 if name in ("held", "released") else fine for name in self.exit_names]
        return np.append(own, np.minimum(strip.guard.guards.sizes[self.other_indices], fine))

    def exit_edge(self, name: str) -> Edge:
        """Return the edge behind a guard; behind another guard of the source it raises an error."""
        strip = self.strip
        key, guard = strip.source.key, strip.guard.name
        if name == f"{guard}: back":
            return Edge(_PaddedState(strip.nx, strip.nx), key)
        if name == f"{guard}: through":
            return Edge(strip.reset_to_target, strip.target.key)
        if name == f"{guard}: held":
            return Edge(_PaddedState(strip.nx, strip.ny), (HELD_STRIP, key, guard))
        if name == f"{guard}: released":
            return Edge(Reset.identity(strip.ny), (STRIP, key, guard))
        return Edge(Reset(partial(self._refuse_overlap, name)))

    def _refuse_overlap(self, other: str, t: float, y: Array, u: Array) -> NoReturn:
        """Raise the error for another guard that fires within this strip.

        Args:
            other: Name of the other guard.
            t: Time, s.
            y: State (x, z) in the strip.
            u: Input (nu,).

        Raises:
            OverlappingStripsError: Always.
        """
        strip = self.strip
        raise OverlappingStripsError(
            f"guard {other!r} of mode {strip.source.key!r} fires at t = {t:.9g} s within the strip "
            f"of guard {strip.guard.name!r}, {strip.compute_depth(t, y, u):.3g} behind it: the "
            f"strips overlap at x = {y[: strip.nx].tolist()}; a smaller epsilon than "
            f"{strip.epsilon:.3g} keeps them apart if the guards do not meet"
        )
