"""A mode or a reset made of another one: all of it, seen through a `Change`.

A change says what differs and nothing else; what it does not say is forwarded, so that whatever is
added to modes is there in all that are made of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.spaces import Space
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.many import Many, ManySteps
from hybridctl.hybrid.model import (
    Diffusion,
    FieldJacobian,
    Held,
    Jump,
    JumpPoint,
    JumpTerms,
    ModeKey,
    ModeModel,
    Pace,
    Point,
    ResetBorder,
    ResetJacobian,
    ResetModel,
    StepAhead,
    StepTransition,
    WholeStep,
)


class MappedPoint(Point):
    """A point of a mapped mode, with that of the mode `inner` to it."""

    mode: MappedMode

    def __init__(self, mode: MappedMode, t: float, x: Array, u: Array, inner: Point) -> None:
        super().__init__(mode, t, x, u)
        self.inner = inner


class Change:
    """How a mapped mode or reset differs from the inner one: in nothing, unless a method says so.

    Arguments go in by `time`, `state` and `input`; states come back by `back`, given the outer
    state that went in; values and derivatives by the methods of a point.
    """

    keeps_steps = False
    """Whether the outer mode moves as the inner one does, over the same times and states.

    Whole steps of the inner mode are steps of the outer one then, and jumps are, too.
    """

    def point(self, mode: MappedMode, t: float, x: Array, u: Array, inner: Point) -> MappedPoint:
        """The outer point of an inner one."""
        return MappedPoint(mode, t, x, u, inner)

    def time(self, t: float) -> float:
        """The inner time."""
        return t

    def state(self, x: Array) -> Array:
        """The inner state."""
        return x

    def input(self, u: Array, x: Array) -> Array:
        """The inner input."""
        return u

    def jump_point(self, at: JumpPoint) -> JumpPoint:
        """The inner point of a jump."""
        (t, x, u, report, before), inner = at, None
        if isinstance(before, MappedPoint) and before.mode.change is self:
            inner = before.inner
        return JumpPoint(self.time(t), self.state(x), self.input(u, x), report, inner)

    def back(self, inner: Array, x: Array) -> Array:
        """The outer state of an inner one that came of x."""
        return inner

    def space(self, inner: Space) -> Space:
        """The outer space."""
        return inner

    def nu(self, inner: int) -> int:
        """The number of outer inputs."""
        return inner

    def guard_names(self, inner: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the outer guards."""
        return inner

    def guard_scales(self, inner: Array) -> Array:
        """Scales of the outer guards."""
        return self.of_guards(inner)

    def of_guards(self, values: Array) -> Array:
        """Values (..., n) of the inner guards as those of the outer ones."""
        return values

    def field(self, point: MappedPoint) -> Array:
        """The outer field."""
        return point.inner.field

    def guards(self, point: MappedPoint) -> Array:
        """The outer guards."""
        return self.of_guards(point.inner.guards)

    def guard(self, i: int, point: MappedPoint) -> float:
        """The value of outer guard i alone."""
        inner = point.inner
        return inner.mode.guard(self.place(i), inner.t, inner.x, inner.u)

    def field_jacobian(self, point: MappedPoint) -> FieldJacobian:
        """Derivatives of the outer field."""
        return point.inner.field_jacobian

    def free_input(self, point: MappedPoint) -> Array:
        """What an input does to the outer state if nothing is held."""
        return point.inner.mode.free_input_at(point.inner)

    def place(self, i: int) -> int:
        """The index of outer guard i among the inner ones."""
        return i

    def guard_slopes(
        self, inner: GuardJacobian, point: MappedPoint, rows: int | slice
    ) -> GuardJacobian:
        """Derivatives by the outer arguments of these rows of the inner guards, given their own."""
        return inner

    def guard_jacobian(self, point: MappedPoint) -> GuardJacobian:
        """Derivatives of the outer guards."""
        return self.guard_slopes(point.inner.guard_jacobian, point, slice(None))

    def guard_row(self, i: int, point: MappedPoint) -> GuardJacobian:
        """Derivatives of outer guard i alone."""
        inner, k = point.inner, self.place(i)
        return self.guard_slopes(inner.mode.guard_row_at(k, inner), point, k)

    def steady_pace(self, inner: Pace | None) -> Pace | None:
        """The outer pace, where it is one at all points."""
        return inner

    def selects(self, inner: bool) -> bool:
        """Whether another mode may flow on."""
        return inner

    def guards_differentiable(self, inner: bool) -> bool:
        """Whether the outer guards have derivatives."""
        return inner

    def guards_together(self, inner: bool) -> bool:
        """Whether one outer guard costs as much as all."""
        return inner

    def held_jacobian(self, inner: Array) -> Array:
        """Derivatives (k, ndx) of what is held by the outer state."""
        return inner

    def held(self, inner: Held | None) -> Held | None:
        """What the outer mode holds."""
        return inner

    def law(self, law: InputLaw) -> InputLaw | None:
        """The inner input law of a whole step, None for one of which the inner step knows none."""
        return law

    def inputs(self, inner: Array) -> Array:
        """Inner inputs (8, nu) along a step as outer ones."""
        return inner

    def many_inputs(self, u: Array) -> Array:
        """Outer inputs (m, nu) of many points as inner ones."""
        return u

    def input_rate(self, du: Array) -> Array:
        """The rate of the inner input, where it does not depend on the state."""
        return du

    def jump_terms(self, inner: JumpTerms) -> JumpTerms:
        """The first order of a jump of the outer mode, given that of the inner one."""
        return inner

    def inner_reset(self, reset: ResetModel) -> ResetModel | None:
        """The reset of the inner mode that this one is, None if it is not seen by this change."""
        return reset.inner if isinstance(reset, MappedReset) and reset.change is self else None

    def diffusion(self, noise: Diffusion) -> Diffusion:
        """The noise on the inner mode."""
        return noise

    def reset_jacobian(self, inner: ResetJacobian, at: JumpPoint) -> ResetJacobian:
        """Derivatives of the outer reset, given those of the inner one."""
        return inner

    def border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
        """The border of the outer reset, for changes that keep the derivatives of its distance."""
        return inner._replace(
            positive=self.reset_jacobian(inner.positive, at),
            negative=self.reset_jacobian(inner.negative, at),
        )


class MappedMode(ModeModel):
    """A mode seen through a change."""

    def __init__(self, inner: ModeModel, change: Change) -> None:
        self.inner, self.change, self.key = inner, change, inner.key
        self.space, self.nu = change.space(inner.space), change.nu(inner.nu)
        self.guard_names = change.guard_names(inner.guard_names)
        self.differentiable = inner.differentiable
        self.guards_differentiable = change.guards_differentiable(inner.guards_differentiable)
        self.selects = change.selects(inner.selects)
        self.steady_pace = change.steady_pace(inner.steady_pace)
        self.compiled = inner.compiled and change.keeps_steps
        self.keeps_points = inner.keeps_points
        self.guards_together = change.guards_together(inner.guards_together)
        self.held = change.held(None if inner.held is None else self._held(inner.held))
        self.project = None if inner.project is None else self._projected

    @cached_property
    def guard_scales(self) -> Array:
        """Sizes (n,) of the guards."""
        return self.change.guard_scales(self.inner.guard_scales)

    def calc(self, t: float, x: Array, u: Array) -> MappedPoint:
        """The mode at (t, x, u), with the inner one there."""
        c = self.change
        return c.point(self, t, x, u, self.inner.calc(c.time(t), c.state(x), c.input(u, x)))

    def field_at(self, point: MappedPoint) -> Array:
        """The field."""
        return self.change.field(point)

    def guards_at(self, point: MappedPoint) -> Array:
        """The guards."""
        return self.change.guards(point)

    def guard(self, i: int, t: float, x: Array, u: Array) -> float:
        """The value of guard i."""
        return self.change.guard(i, self.calc(t, x, u))

    def field_jacobian_at(self, point: MappedPoint) -> FieldJacobian:
        """Derivatives of the field."""
        return self.change.field_jacobian(point)

    def free_input_at(self, point: MappedPoint) -> Array:
        """What an input does if nothing is held."""
        return self.change.free_input(point)

    def guard_jacobian_at(self, point: MappedPoint) -> GuardJacobian:
        """Derivatives of the guards."""
        return self.change.guard_jacobian(point)

    def guard_row_at(self, i: int, point: MappedPoint) -> GuardJacobian:
        """Derivatives of guard i."""
        return self.change.guard_row(i, point)

    def outputs_at(self, point: MappedPoint) -> Mapping[str, Array]:
        """The outputs of the inner mode."""
        return self.inner.outputs_at(point.inner)

    def select_at(self, point: MappedPoint) -> ModeKey:
        """The mode that the inner one selects, if it may."""
        return self.inner.select_at(point.inner) if self.selects else self.key

    def pace_at(self, point: MappedPoint) -> Pace:
        """The pace."""
        return self.steady_pace or self.inner.pace_at(point.inner)

    def step(self, ahead: StepAhead, law: InputLaw) -> WholeStep | None:
        """The step of the inner mode, where it is one of this mode."""
        c = self.change
        inner = c.law(law) if self.compiled else None
        if inner is None:
            return None
        found = self.inner.step(ahead, inner)
        if found is None:
            return None
        guards, bounds = c.of_guards(found.guards), c.of_guards(found.bounds)
        return found._replace(inputs=c.inputs(found.inputs), guards=guards, bounds=bounds)

    def transition(
        self, ahead: StepAhead, u: Array, noise: Diffusion | None = None
    ) -> StepTransition | None:
        """The transition of the inner mode, where it is one of this mode."""
        if not self.compiled:
            return None
        c = self.change
        more = None if noise is None else c.diffusion(noise)
        found = self.inner.transition(ahead, c.input(u, ahead.x), more)
        if found is None or found.bounds is None:
            return found
        return found._replace(bounds=c.of_guards(found.bounds))

    @cached_property
    def many(self) -> ManySteps | None:
        """The steps of the inner mode from many points, where they are those of this mode."""
        steps = self.inner.many if self.compiled else None
        if steps is None:
            return None
        return ManySteps(
            partial(self._many, steps.rate),
            partial(self._many_steps, steps.step),
            partial(self._many, steps.varied),
        )

    def many_jumps(self, i: int, reset: ResetModel) -> Many | None:
        """The jump of the inner mode from many points, where it is one of this mode."""
        inner = self._inner_reset(reset)
        jump = None if inner is None else self.inner.many_jumps(self.change.place(i), inner)
        return None if jump is None else partial(self._many, jump)

    def jump_terms(self, i: int, reset: ResetModel, at: JumpPoint, du: Array) -> JumpTerms:
        """What guard i and a reset do to first order: what they do in the inner mode."""
        c, inner = self.change, self._inner_reset(reset)
        if inner is None:
            return super().jump_terms(i, reset, at, du)
        return c.jump_terms(
            self.inner.jump_terms(c.place(i), inner, c.jump_point(at), c.input_rate(du))
        )

    def _inner_reset(self, reset: ResetModel) -> ResetModel | None:
        return self.change.inner_reset(reset) if self.change.keeps_steps else None

    def _many(self, function: Many, times: Array, states: Array, inputs: Array) -> list[Array]:
        return function(times, states, self.change.many_inputs(inputs))

    def _many_steps(
        self, function: Many, times: Array, states: Array, inputs: Array
    ) -> list[Array]:
        *moved, guards, bounds = self._many(function, times, states, inputs)
        return [*moved, self.change.of_guards(guards), self.change.of_guards(bounds)]

    def _projected(self, x: Array) -> Array:
        assert self.inner.project is not None
        return self.change.back(self.inner.project(self.change.state(x)), x)

    def _held(self, inner: Held) -> Held:
        return replace(
            inner,
            residuals=self._residuals,
            jacobian=None if inner.jacobian is None else self._residuals_jacobian,
            refuse=None if inner.refuse is None else self._refuse,
        )

    def _residuals(self, x: Array) -> Array:
        assert self.inner.held is not None
        return self.inner.held.residuals(self.change.state(x))

    def _residuals_jacobian(self, x: Array) -> Array:
        assert self.inner.held is not None
        assert self.inner.held.jacobian is not None
        return self.change.held_jacobian(self.inner.held.jacobian(self.change.state(x)))

    def _refuse(self, what: str, key: ModeKey, x: Array) -> None:
        assert self.inner.held is not None
        assert self.inner.held.refuse is not None
        self.inner.held.refuse(what, key, self.change.state(x))


@dataclass(frozen=True, eq=False)
class MappedReset(ResetModel):
    """A reset seen through a change."""

    inner: ResetModel
    change: Change

    @property
    def differentiable(self) -> bool:  # type: ignore[override]
        """Whether the inner reset is."""
        return self.inner.differentiable

    @property
    def at_once(self) -> bool:  # type: ignore[override]
        """Whether the inner reset is."""
        return self.inner.at_once

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """The jump of the inner reset, with the outer state."""
        jump = self.inner.calc(*self.change.jump_point(JumpPoint(t, x, u))[:3])
        return replace(jump, state=self.change.back(jump.state, x))

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """The derivatives of the reset."""
        return self.change.reset_jacobian(self.inner.calc_diff(self.change.jump_point(at)), at)

    def border_at(self, at: JumpPoint, key: ModeKey, u_after: Array) -> ResetBorder | None:
        """The two derivatives of the reset at a border."""
        c = self.change
        found = self.inner.border_at(c.jump_point(at), key, c.input(u_after, at.x))
        return None if found is None else c.border(found, at)


class SameMotion(Change):
    """A mode of the same motion and arguments, so that any reset of one is one of the other."""

    keeps_steps = True

    def inner_reset(self, reset: ResetModel) -> ResetModel:
        """The reset, of which the inner mode may know more where it is its own."""
        return super().inner_reset(reset) or reset


@dataclass(frozen=True, eq=False)
class WithoutGuards(SameMotion):
    """A mode without some of its guards; kept: the places of the others."""

    kept: list[int]

    def guard_names(self, inner: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the guards kept."""
        return tuple(inner[i] for i in self.kept)

    def of_guards(self, values: Array) -> Array:
        """The entries of the guards kept."""
        return np.asarray(values)[..., self.kept]

    def place(self, i: int) -> int:
        """The index of guard i of those kept."""
        return self.kept[i]

    def guard_jacobian(self, point: MappedPoint) -> GuardJacobian:
        """Derivatives of the guards kept."""
        d = super().guard_jacobian(point)
        return GuardJacobian(*(rows[self.kept] for rows in d))


@dataclass(frozen=True, eq=False)
class OtherGuards(Change):
    """A mode with guards that are given for it, in place of its own."""

    given: GuardSet

    def guard_names(self, inner: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the guards given."""
        return self.given.names

    def guard_scales(self, inner: Array) -> Array:
        """The scales of the guards given."""
        return self.given.sizes

    def guards(self, point: MappedPoint) -> Array:
        """The values of the guards given."""
        return self.given.values(point.t, point.x, point.u)

    def guard(self, i: int, point: MappedPoint) -> float:
        """The value of guard i of those given."""
        return self.given.value(i, point.t, point.x, point.u)

    def guard_jacobian(self, point: MappedPoint) -> GuardJacobian:
        """The derivatives of the guards given."""
        if self.given.jacobian is None:
            return ModeModel.guard_jacobian_at(point.mode, point)
        return self.given.jacobian(point.t, point.x, point.u)

    def guard_row(self, i: int, point: MappedPoint) -> GuardJacobian:
        """The derivatives of guard i of those given."""
        return ModeModel.guard_row_at(point.mode, i, point)

    def guards_differentiable(self, inner: bool) -> bool:
        """Whether the guards have derivatives."""
        return self.given.jacobian is not None

    def guards_together(self, inner: bool) -> bool:
        """Whether one guard costs as much as all."""
        return self.given.one is None
