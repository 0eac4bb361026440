"""Modes and resets that are made of others.

A mapped mode makes points that have a point of the inner mode in them: `MappedPoint.inner`. What it
does not implement itself it reads there, so that a quantity that is added to points is there in all
mapped modes. A `Change` says how arguments go in and states come out, for the mode and for the
resets that leave it. The class of points of its `mode_class` says what is otherwise at a point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import SystemDefinitionError
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.model import (
    BatchedSteps,
    BatchFunction,
    CompiledStep,
    CompiledSteps,
    Diffusion,
    FieldJacobian,
    Jump,
    JumpPoint,
    JumpTerms,
    ModeKey,
    ModeModel,
    Pace,
    Point,
    PointProperty,
    ResetBorder,
    ResetJacobian,
    ResetModel,
    StepRequest,
    StepTransition,
)


class MappedPoint(Point):
    """A point of a mapped mode.

    Args:
        mode: The mapped mode.
        t: Its time, s.
        x: Its state (nx,).
        u: Its input (nu,).
        inner: The point of the inner mode there.
    """

    mode: MappedMode

    def __init__(self, mode: MappedMode, t: float, x: Array, u: Array, inner: Point) -> None:
        self.mode, self.t, self.x, self.u, self.inner = mode, t, x, u, inner

    @PointProperty
    def field(self) -> Array:
        """The inner field."""
        return self.inner.field

    @PointProperty
    def guards(self) -> Array:
        """The inner guards."""
        return self.inner.guards

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the inner field."""
        return self.inner.field_jacobian

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of the inner guards."""
        return self.inner.guard_jacobian

    @PointProperty
    def free_input(self) -> Array:
        """The inner derivative by the input without the constraint."""
        return self.inner.free_input

    @PointProperty
    def outputs(self) -> Mapping[str, Array]:
        """The inner outputs."""
        return self.inner.outputs

    @PointProperty
    def selected_mode(self) -> ModeKey:
        """Key of the mode that the inner one selects."""
        return self.inner.selected_mode

    @PointProperty
    def pace(self) -> Pace:
        """The inner limits of steps."""
        return self.inner.pace

    def guard(self, i: int) -> float:
        """Return the value of inner guard i."""
        return self.inner.guard(i)

    def guard_row(self, i: int) -> GuardJacobian:
        """Return the derivatives of inner guard i."""
        return self.inner.guard_row(i)


class Change:
    """How a mapped mode, and the resets that leave it, differ from inner ones: here in nothing.

    A subclass overrides the maps that are not the identity, and sets `mode_class`.

    Attributes:
        mode_class: The class of the mapped modes.
    """

    mode_class: ClassVar[type[MappedMode]]

    def map_mode(self, inner: ModeModel) -> MappedMode:
        """Return a mode seen through this change.

        Args:
            inner: The mode.
        """
        return self.mode_class(inner, self)

    def to_inner(self, t: float, x: Array, u: Array) -> tuple[float, Array, Array]:
        """Return time, state and input of the inner mode.

        Args:
            t: Time of the mapped mode, s.
            x: Its state (nx,).
            u: Its input (nu,).
        """
        return t, x, u

    def to_outer_state(self, inner: Array, x: Array) -> Array:
        """Return a state of the mapped mode.

        Args:
            inner: State of the inner mode that a reset or a projection has made.
            x: State of the mapped mode that went in.
        """
        return inner

    def to_inner_jump(self, at: JumpPoint) -> JumpPoint:
        """Return the point before a jump for the inner reset.

        Args:
            at: The point for the mapped reset.
        """
        before, inner = at.before, None
        if isinstance(before, MappedPoint) and before.mode.change is self:
            inner = before.inner
        return JumpPoint(*self.to_inner(at.t, at.x, at.u), at.report, inner)

    def map_reset_jacobian(self, inner: ResetJacobian, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives of a mapped reset.

        Args:
            inner: Derivatives of the inner reset.
            at: The point before the jump, for the mapped reset.
        """
        return inner

    def map_departure(self, inner: GuardJacobian, at: JumpPoint) -> GuardJacobian | None:
        """Return the derivatives of a departure, see `ResetModel.differentiate_departure`.

        Args:
            inner: Those of the inner reset.
            at: The point before the jump, for the mapped reset.

        Returns:
            The derivatives; None where the change does not know its own, for those of the guard.
        """
        return inner

    def map_border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
        """Return the border of a mapped reset: here with the inner derivatives of its distance.

        Args:
            inner: Border of the inner reset.
            at: The point before the jump, for the mapped reset.
        """
        return inner._replace(
            positive=self.map_reset_jacobian(inner.positive, at),
            negative=self.map_reset_jacobian(inner.negative, at),
        )


class MappedMode(ModeModel):
    """A mode seen through a change: the inner one but for what a subclass overrides.

    It has no compiled steps, unless a subclass says how those of the inner mode are its own.

    Args:
        inner: The mode that it is made of.
        change: The change.
    """

    point: ClassVar[type[MappedPoint]] = MappedPoint

    def __init__(self, inner: ModeModel, change: Change) -> None:
        self.inner, self.change = inner, change
        self.key, self.space, self.nu = inner.key, inner.space, inner.nu
        self.guard_names, self.steady_pace = inner.guard_names, inner.steady_pace
        self.held, self.project = inner.held, inner.project
        self.differentiable, self.selects = inner.differentiable, inner.selects
        self.guards_differentiable = inner.guards_differentiable

    @cached_property
    def guard_scales(self) -> Array:
        """Sizes (n,) of the guards."""
        return self.inner.guard_scales

    def calc(self, t: float, x: Array, u: Array) -> MappedPoint:
        """Return the point of this mode at (t, x, u), with that of the inner mode in it.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).
        """
        return self.point(self, t, x, u, self.inner.calc(*self.change.to_inner(t, x, u)))


Change.mode_class = MappedMode


class MappedSteps(CompiledSteps):
    """The compiled steps of a mode that moves as the inner one does, at the same times and states.

    Args:
        inner: The steps of the inner mode.
        change: The change of the mode.
    """

    def __init__(self, inner: CompiledSteps, change: Change) -> None:
        self.inner, self.change = inner, change
        self.retakes_steps = inner.retakes_steps

    @property
    def batched(self) -> BatchedSteps | None:
        """The batched steps of the inner mode."""
        return self.inner.batched

    def step(self, ahead: StepRequest, law: InputLaw) -> CompiledStep | None:
        """Return the inner step.

        Args:
            ahead: Start, length and tolerances of the step.
            law: The input law.
        """
        return self.inner.step(ahead, law)

    def transition(
        self, ahead: StepRequest, u: Array, noise: Diffusion | None = None
    ) -> StepTransition | None:
        """Return the inner step with its derivative.

        Args:
            ahead: Start, length and tolerances of the step.
            u: Input (nu,).
            noise: White noise; None for none.
        """
        return self.inner.transition(ahead, u, noise)

    def jump_terms(self, i: int, reset: ResetModel, at: JumpPoint, du: Array) -> JumpTerms | None:
        """Return the first-order terms of the inner jump.

        Args:
            i: Index of the guard that fires.
            reset: The reset.
            at: The point before the jump.
            du: Rate (nu,) of the input, 1/s.
        """
        return self.inner.jump_terms(
            i, self.find_inner_reset(reset), self.change.to_inner_jump(at), du
        )

    def batched_jump(self, i: int, reset: ResetModel) -> BatchFunction | None:
        """Return the batched inner jump.

        Args:
            i: Index of the guard that fires.
            reset: The reset.
        """
        return self.inner.batched_jump(i, self.find_inner_reset(reset))

    def find_inner_reset(self, reset: ResetModel) -> ResetModel:
        """Return the inner reset of a mapped one.

        A reset that is not mapped by this change is returned as it is: where arguments are the
        same, it is one of the inner mode, which may have a compiled function of it.

        Args:
            reset: The reset of the mapped mode.
        """
        if isinstance(reset, MappedReset) and reset.change is self.change:
            return reset.inner
        return reset


@dataclass(frozen=True, eq=False)
class MappedReset(ResetModel):
    """A reset seen through a change.

    Attributes:
        inner: The reset that it is made of.
        change: The change.
    """

    inner: ResetModel
    change: Change

    @property
    def differentiable(self) -> bool:  # type: ignore[override]
        """Whether the inner reset has derivatives."""
        return self.inner.differentiable

    @property
    def at_once(self) -> bool:  # type: ignore[override]
        """Whether the inner reset is the whole event of several guards."""
        return self.inner.at_once

    @property
    def keeps_field(self) -> bool:  # type: ignore[override]
        """Whether the inner reset keeps state and field."""
        return self.inner.keeps_field

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the inner jump with the state of the mapped mode.

        Args:
            t: Time of the event, s.
            x: State (nx,) before it.
            u: Input (nu,) before it.
        """
        jump = self.inner.calc(*self.change.to_inner(t, x, u))
        return replace(jump, state=self.change.to_outer_state(jump.state, x))

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives of the mapped reset.

        Args:
            at: The point before the jump.
        """
        inner = self.inner.calc_diff(self.change.to_inner_jump(at))
        return self.change.map_reset_jacobian(inner, at)

    def find_border(self, at: JumpPoint, key: ModeKey, u_after: Array) -> ResetBorder | None:
        """Return both derivatives where the inner reset is at a border, None where it is not.

        Args:
            at: The point before the jump.
            key: Key of the mode after the event.
            u_after: Input (nu,) after the event.
        """
        change = self.change
        inner_input = change.to_inner(at.t, at.x, u_after)[2]
        border = self.inner.find_border(change.to_inner_jump(at), key, inner_input)
        return None if border is None else change.map_border(border, at)

    def differentiate_departure(self, at: JumpPoint) -> GuardJacobian | None:
        """Return the derivatives of the inner departure, None for those of the guard.

        Args:
            at: The point before the jump.
        """
        inner = self.inner.differentiate_departure(self.change.to_inner_jump(at))
        return None if inner is None else self.change.map_departure(inner, at)


class ModeOfSameMotion(MappedMode):
    """A mode with the motion and the arguments of the inner one, and so with its compiled steps."""

    @cached_property
    def compiled_steps(self) -> CompiledSteps | None:
        """The compiled steps of the inner mode."""
        steps = self.inner.compiled_steps
        return None if steps is None else MappedSteps(steps, self.change)


class SameMotion(Change):
    """A change that leaves motion and arguments alone."""

    mode_class: ClassVar[type[MappedMode]] = ModeOfSameMotion


@dataclass(frozen=True, eq=False)
class WithoutGuards(SameMotion):
    """A change that drops some guards.

    Attributes:
        kept: Indices of the guards that stay, in their order.
    """

    kept: list[int]

    def select_guards(self, values: Array) -> Array:
        """Return the entries of the guards that stay.

        Args:
            values: Values (..., n) of all guards.
        """
        return np.asarray(values)[..., self.kept]


class PointWithoutGuards(MappedPoint):
    """A point of a mode without some of the inner mode's guards."""

    mode: ModeWithoutGuards

    @PointProperty
    def guards(self) -> Array:
        """The guards (n,) that stay."""
        return self.mode.change.select_guards(self.inner.guards)

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of the guards that stay."""
        kept = self.mode.change.kept
        return GuardJacobian(*(rows[kept] for rows in self.inner.guard_jacobian))

    def guard(self, i: int) -> float:
        """Return the value of guard i of those that stay."""
        return self.inner.guard(self.mode.change.kept[i])

    def guard_row(self, i: int) -> GuardJacobian:
        """Return the derivatives of guard i of those that stay."""
        return self.inner.guard_row(self.mode.change.kept[i])


class ModeWithoutGuards(MappedMode):
    """A mode without some of the inner mode's guards.

    Args:
        inner: The mode with all guards.
        change: Which of them stay.
    """

    change: WithoutGuards
    point: ClassVar[type[MappedPoint]] = PointWithoutGuards

    def __init__(self, inner: ModeModel, change: WithoutGuards) -> None:
        super().__init__(inner, change)
        self.guard_names = tuple(inner.guard_names[i] for i in change.kept)

    @cached_property
    def guard_scales(self) -> Array:
        """Sizes (n,) of the guards that stay."""
        return self.change.select_guards(self.inner.guard_scales)

    @cached_property
    def compiled_steps(self) -> CompiledSteps | None:
        """The compiled steps of the inner mode with the guards that stay."""
        steps = self.inner.compiled_steps
        return None if steps is None else _StepsWithoutGuards(steps, self.change)


WithoutGuards.mode_class = ModeWithoutGuards


class _StepsWithoutGuards(MappedSteps):
    """The compiled steps of the inner mode with the guards that stay."""

    change: WithoutGuards

    @cached_property
    def batched(self) -> BatchedSteps | None:
        """The batched steps."""
        inner = self.inner.batched
        if inner is None:
            return None
        return inner._replace(step=partial(self._select_batched_guards, inner.step))

    def _select_batched_guards(self, step: BatchFunction, *arguments: Array) -> list[Array]:
        *states, guards, bounds = step(*arguments)
        return [*states, self.change.select_guards(guards), self.change.select_guards(bounds)]

    def step(self, ahead: StepRequest, law: InputLaw) -> CompiledStep | None:
        """Return a step."""
        step, select = self.inner.step(ahead, law), self.change.select_guards
        if step is None:
            return None
        return step._replace(guards=select(step.guards), bounds=select(step.bounds))

    def transition(
        self, ahead: StepRequest, u: Array, noise: Diffusion | None = None
    ) -> StepTransition | None:
        """Return a step with its derivative."""
        step = self.inner.transition(ahead, u, noise)
        if step is None or step.bounds is None:
            return step
        return step._replace(bounds=self.change.select_guards(step.bounds))

    def jump_terms(self, i: int, reset: ResetModel, at: JumpPoint, du: Array) -> JumpTerms | None:
        """Return the first-order terms of a jump."""
        return super().jump_terms(self.change.kept[i], reset, at, du)

    def batched_jump(self, i: int, reset: ResetModel) -> BatchFunction | None:
        """Return the batched jump."""
        return super().batched_jump(self.change.kept[i], reset)


class PointWithGuards(MappedPoint):
    """A point of a mode with given guards in place of the inner mode's."""

    mode: ModeWithGuards

    @PointProperty
    def guards(self) -> Array:
        """The values (n,) of the given guards."""
        return self.mode.given.values(self.t, self.x, self.u)

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of the given guards.

        Raises:
            SystemDefinitionError: They have none.
        """
        jacobian = self.mode.given.jacobian
        if jacobian is None:
            raise SystemDefinitionError(f"the guards of mode {self.mode.key!r} have no Jacobian")
        return jacobian(self.t, self.x, self.u)

    def guard(self, i: int) -> float:
        """Return the value of given guard i, alone where that costs less."""
        if self.mode.given.one is None:
            return Point.guard(self, i)
        return self.mode.given.value(i, self.t, self.x, self.u)

    def guard_row(self, i: int) -> GuardJacobian:
        """Return the derivatives of given guard i."""
        return Point.guard_row(self, i)


class ModeWithGuards(MappedMode):
    """A mode with given guards in place of the inner mode's.

    Args:
        inner: The mode with guards of its own.
        guards: The guards.
    """

    point: ClassVar[type[MappedPoint]] = PointWithGuards

    def __init__(self, inner: ModeModel, guards: GuardSet) -> None:
        super().__init__(inner, Change())
        self.given, self.guard_names = guards, guards.names
        self.guards_differentiable = guards.jacobian is not None

    @property
    def guard_scales(self) -> Array:
        """Sizes (n,) of the guards."""
        return self.given.sizes
