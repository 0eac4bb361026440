r"""Fields on both sides of a guard, [Relax] 2, and the modes of motions on or behind guards.

Let a_1 be the rate of the guard g under the field f_1 of its own mode. Let a_2 be its rate under
the field f_2 of the next mode, pulled back through the reset. At a point of the guard the motion

- crosses it where a_1 and a_2 have one sign,
- slides on it where :math:`a_1 < 0 < a_2`: both fields push onto the guard,
- escapes from it where :math:`a_2 < 0 < a_1`: both fields lead away, and no solution is unique.

Filippov's solution slides with

.. math:: f_s = (1 - \alpha) f_1 + \alpha f_2, \qquad \alpha = \frac{a_1}{a_1 - a_2}.

The classes are bases of others: `GuardMotionSystem` adds modes (kind, mode, guard) to a system;
`relax`, `sliding` and `zeno_rest` say which. Such a mode is a `SingleGuardMotion` (behind a guard)
or a `MotionOnGuard`; their points compute the fields of both sides once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import EscapingError
from hybridctl.base.spaces import VectorSpace
from hybridctl.hybrid.guards import GuardJacobian
from hybridctl.hybrid.mapped import ModeOfSameMotion, SameMotion
from hybridctl.hybrid.mode import Edge, FieldJacobian, Held, ModeKey, ModeModel, Outgoing
from hybridctl.hybrid.model import Point, PointProperty
from hybridctl.hybrid.system import DerivedSystem, HybridSystem
from hybridctl.relaxation.gluing import GluingTerms
from hybridctl.relaxation.strip import Strip, Strips, differentiate_numerically

_SAME_STATE = 1e-6  # difference of a state and its image of an image, relative and absolute
_ON_GUARD = 1e-9  # guard value at which a start is on the guard, relative to the state or to 1


class Region(Enum):
    """What motions do at a point of a guard: cross it, slide on it, or escape from it."""

    CROSSING = "crossing"
    SLIDING = "sliding"
    ESCAPING = "escaping"


@dataclass(frozen=True, eq=False)
class SideFields:
    """The fields on both sides of a guard at one of its points.

    Attributes:
        source_field: Field f_1 (n,) of the mode whose guard it is.
        target_field: Field f_2 (n,) of the next mode, pulled back.
        guard_rates: rates a_1 and a_2 of the guard under these fields, its unit per s.
    """

    source_field: Array
    target_field: Array
    guard_rates: tuple[float, float]

    @property
    def region(self) -> Region:
        """What motions do here; on the boundary between two regions they cross."""
        first, second = self.guard_rates
        if first < 0.0 < second:
            return Region.SLIDING
        return Region.ESCAPING if second < 0.0 < first else Region.CROSSING

    @property
    def weight(self) -> float:
        r"""The weight :math:`\alpha` of the target's field, in (0, 1) where the motion slides.

        It has no value where both rates are the same.
        """
        first, second = self.guard_rates
        return first / (first - second)

    @property
    def sliding_field(self) -> Array:
        """Filippov's field f_s (n,)."""
        return (1.0 - self.weight) * self.source_field + self.weight * self.target_field


def evaluate_side_fields(strip: Strip, t: float, x: Array, u: Array) -> SideFields:
    """Return the fields on both sides of the guard of a strip.

    Args:
        strip: The strip, of width zero.
        t: Time, s.
        x: State (n,) on the guard.
        u: Input (nu,).
    """
    return MotionOnGuard((strip.source.key, strip.guard.name), strip).calc(t, x, u).side_fields


def check_start_not_escaping(
    guards: tuple[str, ...],
    get_strip: Callable[[ModeKey, str], Strip],
    what: str,
    key: ModeKey,
    x: Array,
) -> None:
    """Raise an error if a start is on a guard from which both fields lead away, under no input.

    Only a guard whose jump is undone by the next mode's jump has the same state on both sides.
    Others are left alone: a ball that has just bounced is on its guard, and leaves it.

    Args:
        guards: Names of the guards of the mode.
        get_strip: Strip of width zero by mode and guard.
        what: The name of the state, for the message.
        key: Key of the mode.
        x: State (n,) at the start.

    Raises:
        EscapingError: If it is.
    """
    for strip in (get_strip(key, name) for name in guards):
        u = np.zeros(strip.source.nu)
        size = max(1.0, float(np.abs(x).max()))
        is_on_guard = abs(strip.guard.evaluate(0.0, x, u)) <= _ON_GUARD * size
        # Two sides: the next mode has a guard there, and the jump has an inverse.
        if not is_on_guard or not strip.has_two_sides or strip.image_guard is None:
            continue
        image = strip.gluing.evaluate(0.0, x, u).image
        other = get_strip(strip.target.key, strip.image_guard.name)
        back = other.gluing.evaluate(0.0, image, u).image
        if back.shape == x.shape and np.allclose(back, x, rtol=_SAME_STATE, atol=_SAME_STATE):
            check_not_escaping(what, strip, evaluate_side_fields(strip, 0.0, x, u))


def check_not_escaping(what: str, strip: Strip, fields: SideFields) -> None:
    """Raise an error if both fields lead away from a guard.

    Args:
        what: The name of the state, for the message.
        strip: The strip of the guard.
        fields: Fields on both sides at that state.

    Raises:
        EscapingError: If they do; it holds both fields.
    """
    if fields.region is Region.ESCAPING:
        raise EscapingError(
            f"{what} is on guard {strip.guard.name!r} of mode {strip.source.key!r}, and both "
            f"fields lead away from it: {fields.source_field.tolist()} of this mode and "
            f"{fields.target_field.tolist()} of {strip.target.key!r}; no solution from there is "
            "unique",
            fields=(fields.source_field, fields.target_field),
        )


class StripPoint(Point):
    """A point y = (x, z) behind a guard, and the modes on both sides there.

    On the guard itself the state is x alone, and z is zero.
    """

    mode: SingleGuardMotion

    @PointProperty
    def exits(self) -> Array:
        """The values (k,) of the exits, positive while the motion lasts."""
        raise NotImplementedError(f"{type(self).__name__} does not implement exits")

    @PointProperty
    def exit_jacobian(self) -> GuardJacobian:
        """The derivatives of the exits."""
        raise NotImplementedError(f"{type(self).__name__} does not implement exit_jacobian")

    @PointProperty
    def guards(self) -> Array:
        """The values of the exits and of the source's other guards."""
        return np.append(self.exits, self.source_point.guards[self.mode.other_indices])

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of all guards."""
        own, d = self.exit_jacobian, self.source_point.guard_jacobian
        others = self.mode.other_indices
        state = np.zeros((len(others), self.mode.space.ndx))
        state[:, : self.mode.strip.nx] = d.state[others]
        return GuardJacobian(
            np.append(own.time, d.time[others]),
            np.vstack([own.state, state]),
            np.vstack([own.input, d.input[others]]),
        )

    @PointProperty
    def source_point(self) -> Point:
        """The mode whose guard it is, at x."""
        strip = self.mode.strip
        return strip.source.calc(self.t, self.x[: strip.nx], self.u)

    @PointProperty
    def gluing(self) -> GluingTerms:
        """The gluing map at x."""
        strip = self.mode.strip
        return strip.gluing.evaluate(self.t, self.x[: strip.nx], self.u)

    @PointProperty
    def target_point(self) -> Point:
        """The next mode, at the image of y."""
        strip = self.mode.strip
        image = strip.compute_image(self.gluing, strip.append_auxiliary(self.x))
        return strip.target.calc(self.t, image, self.u)

    @PointProperty
    def pulled_back_field(self) -> Array:
        """The next mode's field as a rate (n + p,) of y."""
        terms = self.gluing
        return np.asarray(terms.pull_back @ (self.target_point.field - terms.time_derivative))

    @PointProperty
    def constrained_field(self) -> Array:
        """The next mode's field as a rate (n + p,) of y with z held: D_x R f, and zero for z."""
        terms = self.gluing
        rate = terms.reset_jacobian @ (self.target_point.field - terms.time_derivative)
        return self.mode.strip.append_auxiliary(rate)

    def differentiate_pulled_back_field(self, is_held: bool = False) -> tuple[Array, Array]:
        """Return the derivatives of the next mode's pulled-back field by y and by the input.

        Where the gluing map is not affine, those by y are central differences.

        Args:
            is_held: Whether z is held, so that `constrained_field` is differentiated.
        """
        strip, terms, d = self.mode.strip, self.gluing, self.target_point.field_jacobian
        # With z held the rate of x is pulled back by D_x R, and zeros for z are appended.
        back = np.eye(strip.ny, strip.nx) @ terms.reset_jacobian if is_held else terms.pull_back
        if strip.gluing.is_affine:
            by_image = back @ d.state  # the image is affine in (x, z)
            return by_image @ np.hstack([terms.jacobian, strip.forgotten_basis]), back @ d.input

        def evaluate(y: Array) -> Array:
            point = self.mode.calc(self.t, y, self.u)
            return point.constrained_field if is_held else point.pulled_back_field

        return differentiate_numerically(evaluate, self.x), back @ d.input


class RateFormJacobian(NamedTuple):
    """The derivatives of the number b and the vector w of a rate b + w . f.

    Attributes:
        offset: Derivative (n,) of b by the state; b does not depend on the input.
        weights: Derivative (n, n) of w by the state.
        weights_by_input: Derivative (n, nu) of w by the input.
    """

    offset: Array
    weights: Array
    weights_by_input: Array


class GuardPoint(StripPoint):
    """A point on a guard, with the rates of the guard under the fields of both sides."""

    mode: MotionOnGuard

    @PointProperty
    def rate_form(self) -> tuple[float, Array]:
        """The number b and the vector w (n,): under a field f the guard's rate is b + w . f."""
        return self.mode.strip.guard.differentiate(self.t, self.x, self.u)

    @PointProperty
    def rate_form_jacobian(self) -> RateFormJacobian:
        """The derivatives of the rate form: zero where guards are flat, else differences."""
        strip, t, u = self.mode.strip, self.t, self.u
        by_input = np.zeros((strip.nx, len(u)))
        if strip.gluing.is_affine:
            return RateFormJacobian(np.zeros(strip.nx), np.zeros((strip.nx, strip.nx)), by_input)
        calc = self.mode.calc

        def evaluate(y: Array) -> Array:
            b, w = calc(t, y, u).rate_form
            return np.append(w, b)

        by_state = differentiate_numerically(evaluate, self.x)
        return RateFormJacobian(by_state[-1], by_state[:-1], by_input)

    @PointProperty
    def field(self) -> Array:
        """Filippov's field, which stays on the guard."""
        return self.side_fields.sliding_field

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field.

        They contain those of the weight, d alpha = (a_1 d a_2 - a_2 d a_1) / (a_1 - a_2)^2.
        """
        fields = self.side_fields
        first, second = fields.guard_rates
        by_first, by_second = self.guard_rate_gradients
        own, pulled = self.side_field_jacobians
        parts = []
        for k in range(2):  # by state and by input
            weight_gradient = (first * by_second[k] - second * by_first[k]) / (first - second) ** 2
            blended = (1.0 - fields.weight) * own[k] + fields.weight * pulled[k]
            change = fields.target_field - fields.source_field
            parts.append(blended + np.outer(change, weight_gradient))
        return FieldJacobian(parts[0], parts[1])

    @PointProperty
    def exits(self) -> Array:
        """The values (k,) of the exits: none, unless a subclass has some."""
        return np.zeros(0)

    @PointProperty
    def exit_jacobian(self) -> GuardJacobian:
        """The derivatives of the exits."""
        n, nu = len(self.x), len(self.u)
        return GuardJacobian(np.zeros(0), np.zeros((0, n)), np.zeros((0, nu)))

    @PointProperty
    def outputs(self) -> Mapping[str, Array]:
        """The weight of the next mode's field."""
        return {"weight": np.array([self.side_fields.weight])}

    @PointProperty
    def side_fields(self) -> SideFields:
        """The fields on both sides of the guard, and the rates of the guard under them."""
        b, w = self.rate_form
        source, target = self.source_point.field, self.pulled_back_field[: len(self.x)]
        return SideFields(source, target, (b + float(w @ source), b + float(w @ target)))

    @PointProperty
    def side_field_jacobians(self) -> list[tuple[Array, Array]]:
        """Derivatives of both fields by state and input."""
        own, (by_state, by_u) = (
            self.source_point.field_jacobian,
            self.differentiate_pulled_back_field(),
        )
        return [(own.state, own.input), (by_state[:, : len(self.x)], by_u)]

    @PointProperty
    def guard_rate_gradients(self) -> list[tuple[Array, Array]]:
        """Derivatives of a_1 and a_2, each by state (n,) and input (nu,)."""
        fields = self.side_fields.source_field, self.side_fields.target_field
        pairs = zip(fields, self.side_field_jacobians, strict=True)
        return [self.differentiate_guard_rate(f, derivatives) for f, derivatives in pairs]

    def differentiate_guard_rate(
        self, f: Array, derivatives: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Return the derivatives by state (n,) and input (nu,) of the guard's rate b + w . f.

        Args:
            f: A field (n,).
            derivatives: Its derivatives by state (n, n) and input (n, nu).
        """
        w, d = self.rate_form[1], self.rate_form_jacobian
        by_state = d.offset + w @ derivatives[0] + f @ d.weights
        return by_state, w @ derivatives[1] + f @ d.weights_by_input


class GuardMotion(ModeModel):
    """A mode whose guards fire one at a time, each with an edge of its own."""

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """Return the edge for guards that fire together; None for more than one.

        Args:
            fired: Their names.
        """
        return self.exit_edge(*fired) if len(fired) == 1 else None

    def exit_edge(self, name: str) -> Edge | None:
        """Return the edge behind a guard, None where there is none.

        Args:
            name: Name of a guard of this mode.
        """
        return None


class SingleGuardMotion(GuardMotion):
    """Motion behind the guard of a strip, until an exit or another guard of the source fires.

    Its state is (x, z) (n + p,), a vector. Its guards are those of its exits, named "GUARD: EXIT",
    and then all guards of the source but that of the strip, under their own names.

    A subclass brings the class of its points (`point`) with the field and its Jacobian, and the
    values of the exits and their Jacobian (`exits`, `exit_jacobian`), and the edges behind guards
    (`exit_edge`).

    Args:
        key: Key of this mode.
        strip: The strip.
        exit_names: Names of the k exits.
    """

    point: ClassVar[type[StripPoint]] = StripPoint

    def __init__(self, key: ModeKey, strip: Strip, exit_names: Iterable[str]) -> None:
        self.key, self.strip, self.nu = key, strip, strip.source.nu
        self.space = VectorSpace(strip.ny)
        name, names = strip.guard.name, strip.guard.guards.names
        self.other_indices = strip.guard.other_indices
        exits = (f"{name}: {exit_name}" for exit_name in exit_names)
        self.guard_names = (*exits, *(names[i] for i in self.other_indices))

    def calc(self, t: float, x: Array, u: Array) -> StripPoint:
        """Return the motion at a point.

        Args:
            t: Time, s.
            x: State (x, z) (n + p,).
            u: Input (nu,).
        """
        return self.point(self, t, x, u)


class MotionOnGuard(SingleGuardMotion):
    """Motion on a guard, in the coordinates of its mode: the strip has no width.

    Its state is x (n,), in the space of the source. Here it slides with Filippov's field, without
    exits. A subclass names its exits and brings their edges, and its points have the exits' values
    and may replace the rate form: where the guard's first derivative is zero, `zeno_rest` uses the
    second.

    Args:
        key: Key of this mode.
        strip: The strip, of width zero.
    """

    exit_names: ClassVar[tuple[str, ...]] = ()
    point: ClassVar[type[GuardPoint]] = GuardPoint

    def __init__(self, key: ModeKey, strip: Strip) -> None:
        super().__init__(key, strip, self.exit_names)
        self.space = strip.source.space
        self.project = self.project_state

    def calc(self, t: float, x: Array, u: Array) -> GuardPoint:
        """Return the motion at a point.

        Args:
            t: Time, s.
            x: State (n,) on the guard.
            u: Input (nu,).
        """
        return self.point(self, t, x, u)

    def project_state(self, x: Array) -> Array:
        """Return the state (n,) on the guard at t = 0 that is reached from x along its gradient."""
        return self.strip.guard.project(0.0, x, np.zeros(self.nu))


class GuardMotionSystem(DerivedSystem, ABC):
    """A system with further modes (kind, mode, guard, ...): motions on or behind its guards.

    Attributes:
        exit_names: Names of the exits of these modes, by which their guards are known in advance.
        max_guard_scale: Upper bound of the guard scales of inner modes, in the unit of each guard.
        epsilon: Width of the strips.
        get_strip: Strip by mode and guard, see `Strips.get_strip`.

    Args:
        strips: The strips behind the guards of the system.
    """

    exit_names: tuple[str, ...]
    max_guard_scale = np.inf

    def __init__(self, strips: Strips) -> None:
        names = strips.system.guard_names
        if names is not None:
            exits = (f"{name}: {exit_name}" for name in names for exit_name in self.exit_names)
            names = (*names, *exits)
        super().__init__(strips.system, self._find_mode, self._find_outgoing, names)
        self.epsilon, self.get_strip = strips.epsilon, strips.get_strip
        self._inner_modes: dict[ModeKey, ModeModel] = {}
        self._motions: dict[ModeKey, GuardMotion | None] = {}

    def rebuild_on(self, inner: HybridSystem) -> GuardMotionSystem:
        """Return a copy of this system that is built on another inner system.

        Args:
            inner: The other system, which has the modes and guards of the present one.
        """
        return type(self)(Strips(inner, self.epsilon))

    def origin(self, key: ModeKey) -> ModeKey:
        """Return the mode of the inner system in whose coordinates a mode is."""
        match key:
            case (_, source, *_) if self.make_motion(key) is not None:
                return source
        return key

    @abstractmethod
    def make_motion(self, key: ModeKey) -> GuardMotion | None:
        """Return a new motion for the key of a mode; None for a mode of the inner system."""

    @abstractmethod
    def outgoing_edges(self, key: ModeKey) -> Outgoing:
        """Return the guards and edges of a mode of the inner system."""

    def inner_mode(self, key: ModeKey) -> ModeModel:
        """Return a mode of the inner system that refuses starts from which both fields lead away.

        Modes with constraints check these instead, and such starts are not refused.

        Args:
            key: Its key.

        Raises:
            SystemDefinitionError: If one of its guards has no strip.
        """
        if key not in self._inner_modes:
            mode = self.inner.mode(key)
            for name in mode.guard_names:
                self.get_strip(key, name)
            check = partial(check_start_not_escaping, mode.guard_names, self.get_strip)
            self._inner_modes[key] = _CheckedStarts(check, self.max_guard_scale).map_mode(mode)
        return self._inner_modes[key]

    def _find_mode(self, key: ModeKey) -> ModeModel:
        motion = self._find_motion(key)
        return self.inner_mode(key) if motion is None else motion

    def _find_outgoing(self, key: ModeKey) -> Outgoing:
        motion = self._find_motion(key)
        if motion is None:
            return self.outgoing_edges(key)
        return Outgoing(motion.guard_set, motion.edge)

    def _find_motion(self, key: ModeKey) -> GuardMotion | None:
        """Return the motion for a key, the same object every time: its guards are its edges'."""
        if key not in self._motions:
            self._motions[key] = self.make_motion(key)
        return self._motions[key]


class _ModeWithCheckedStarts(ModeOfSameMotion):
    """A mode whose starts are checked, unless it has constraints: those are its own check."""

    change: _CheckedStarts

    def __init__(self, inner: ModeModel, change: _CheckedStarts) -> None:
        super().__init__(inner, change)
        # Starts are checked by what a mode holds: here it holds nothing, and refuses by the check.
        no_constraints = Held((), _no_residuals, np.zeros(0), (), refuse=change.check_start)
        self.held = inner.held or no_constraints

    @property
    def guard_scales(self) -> Array:
        return np.minimum(self.inner.guard_scales, self.change.max_guard_scale)


@dataclass(frozen=True, eq=False)
class _CheckedStarts(SameMotion):
    """A change of a mode: its starts are checked, and its guard scales are bounded.

    Attributes:
        check_start: Function of (name of the state, mode, state) that raises an error.
        max_guard_scale: Upper bound of the guard scales.
    """

    mode_class = _ModeWithCheckedStarts

    check_start: Callable[[str, ModeKey, Array], None]
    max_guard_scale: float


def _no_residuals(x: Array) -> Array:
    return np.zeros(0)
