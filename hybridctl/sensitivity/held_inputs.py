"""Inputs that are held as parameters: a system gives its derivatives by its last inputs itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag

from hybridctl.base.checks import Array, check_array
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.mapped import Change, MappedMode, MappedPoint, MappedReset, MappedSteps
from hybridctl.hybrid.model import (
    BatchedSteps,
    BatchFunction,
    CompiledStep,
    CompiledSteps,
    Diffusion,
    FieldJacobian,
    GuardJacobian,
    JumpPoint,
    JumpTerms,
    ModeKey,
    ModeModel,
    Point,
    ResetBorder,
    ResetJacobian,
    ResetModel,
    StepRequest,
    StepTransition,
)
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.system import HybridSystem, MappedSystem
from hybridctl.sensitivity.augmentation import ParameterPoint, SystemParameters


def inputs_as_parameters(
    system: HybridSystem, values: Mapping[str, float]
) -> tuple[HybridSystem, SystemParameters]:
    """A system whose last inputs, in all modes, are the parameters `values`, held at these.

    Returns the system in the inputs that are left, and the derivatives by the parameters: the
    last columns of the system's own Jacobians. Modes of fewer inputs raise `InputError` when
    they are entered, and derivatives of what has no Jacobian `SystemDefinitionError`.
    """
    held = HeldInputs(check_array("values", list(values.values()), (None,)))
    mapped = _WithHeldInputs(system, held)
    return mapped, _LastInputs(mapped, held, tuple(values))


class _WithHeldInputs(MappedSystem):
    """A system of which the last inputs are held. Its policies give all that are left."""

    def __init__(self, inner: HybridSystem, held: HeldInputs) -> None:
        super().__init__(inner, self._held_in)
        self._held = held

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """The mode in which the state flows on under the inputs that are left and those held."""
        if u is None:
            u = np.zeros(self.mode(super().consistent_mode(x)).nu)
        return super().consistent_mode(x, self._held.input(check_array("u", u, (None,))))

    def pushed(self, wrench: object) -> HybridSystem:
        """The size of a wrench would be the last input."""
        raise InputError(
            "wrench must be None in a system whose last inputs are held, as the size of a wrench "
            "is the last one: push the system first"
        )

    def acting(self, policy: Policy | InputLaw | None) -> Policy | InputLaw | None:
        """The policy."""
        return policy

    def _held_in(self, key: ModeKey) -> HeldInputs:
        held, nu = self._held, self.inner.mode(key).nu
        if nu < len(held.values):
            raise InputError(
                f"mode {key!r} must have at least {len(held.values)} inputs, one for each "
                f"parameter, got {nu}"
            )
        return held


class ModeOfHeldInputs(MappedMode):
    """A mode whose last inputs are held at values."""

    change: HeldInputs

    def __init__(self, inner: ModeModel, change: HeldInputs) -> None:
        super().__init__(inner, change)
        self.nu = inner.nu - len(change.values)

    @cached_property
    def compiled_steps(self) -> CompiledSteps | None:
        """The inner steps, in which the inputs are held, too."""
        steps = self.inner.compiled_steps
        return None if steps is None else _HeldInputSteps(steps, self.change)

    def field_jacobian_at(self, point: MappedPoint) -> FieldJacobian:
        """Derivatives by the inputs that are left."""
        d = point.inner.field_jacobian
        return d._replace(input=d.input[:, : len(point.u)])

    def free_input_at(self, point: MappedPoint) -> Array:
        """What the inputs that are left do."""
        return point.inner.free_input[:, : len(point.u)]

    def guard_jacobian_at(self, point: MappedPoint) -> GuardJacobian:
        """Derivatives by the inputs that are left."""
        return _cut(point.inner.guard_jacobian, len(point.u))

    def guard_row_at(self, i: int, point: MappedPoint) -> GuardJacobian:
        """Derivatives of guard i by the inputs that are left."""
        return _cut(point.inner.guard_row(i), len(point.u))


@dataclass(frozen=True, eq=False)
class HeldInputs(Change):
    """The last inputs held at values."""

    values: Array
    mode_class = ModeOfHeldInputs

    def input(self, u: Array) -> Array:
        """The inner input (u, values)."""
        return np.concatenate((u, self.values))

    def to_inner(self, t: float, x: Array, u: Array) -> tuple[float, Array, Array]:
        """Time and state, and the inner input."""
        return t, x, self.input(u)

    def map_reset_jacobian(self, inner: ResetJacobian, at: JumpPoint) -> ResetJacobian:
        """Derivatives by the inputs that are left."""
        return _cut(inner, len(at.u))

    def map_border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
        """Derivatives by the inputs that are left."""
        return super().map_border(inner, at)._replace(distance=_cut(inner.distance, len(at.u)))


class _HeldInputSteps(MappedSteps):
    """The compiled steps of the inner mode in which the last inputs are held."""

    change: HeldInputs

    @cached_property
    def batched(self) -> BatchedSteps | None:
        steps = self.inner.batched
        return None if steps is None else BatchedSteps(*(partial(self._many, f) for f in steps))

    def _many(
        self, function: BatchFunction, times: Array, states: Array, inputs: Array
    ) -> list[Array]:
        return function(times, states, self._inputs(inputs))

    def _inputs(self, u: Array) -> Array:
        """The inner inputs (u, values) of each point."""
        return np.hstack((u, np.tile(self.change.values, (len(u), 1))))

    def step(self, ahead: StepRequest, law: InputLaw) -> CompiledStep | None:
        """The step under a held input with the values, too."""
        if not isinstance(law, HeldInput):
            return None
        step = self.inner.step(ahead, HeldInput(self.change.input(law.value)))
        return step and step._replace(inputs=step.inputs[:, : -len(self.change.values)])

    def transition(
        self, ahead: StepRequest, u: Array, noise: Diffusion | None = None
    ) -> StepTransition | None:
        """A step with its derivative; the inputs that are held have no noise."""
        if noise is not None:
            none = np.zeros((len(self.change.values),) * 2)
            noise = noise._replace(through_input=block_diag(noise.through_input, none))
        return self.inner.transition(ahead, self.change.input(u), noise)

    def jump_terms(self, i: int, reset: ResetModel, at: JumpPoint, du: Array) -> JumpTerms | None:
        """Derivatives by the inputs that are left; values that are held have no rate."""
        if not self._is_seen(reset):
            return None
        rate = np.concatenate((du, np.zeros(len(self.change.values))))
        inner = super().jump_terms(i, reset, at, rate)
        if inner is None:
            return None
        left = slice(len(du))
        by_input = inner.time_input[left], inner.reset_input[:, left]
        return inner._replace(time_input=by_input[0], reset_input=by_input[1])

    def batched_jump(self, i: int, reset: ResetModel) -> BatchFunction | None:
        """The inner jump of a reset that this change has mapped."""
        jump = super().batched_jump(i, reset) if self._is_seen(reset) else None
        return None if jump is None else partial(self._many, jump)

    def _is_seen(self, reset: ResetModel) -> bool:
        return isinstance(reset, MappedReset) and reset.change is self.change


class _LastInputs(SystemParameters):
    """Derivatives of a system by its last inputs, which are held: by those of the inner points."""

    system: MappedSystem

    def __init__(self, system: MappedSystem, held: HeldInputs, names: Sequence[str]) -> None:
        super().__init__(system, names)
        self.held = held

    def calc(self, at: Point) -> ParameterPoint:
        """The derivatives at a point of a mode in which the inputs are held, or like one."""
        if not (isinstance(at, MappedPoint) and at.mode.change is self.held):
            at = self.system.mode(at.mode.key).calc(at.t, at.x, at.u)
        assert isinstance(at, MappedPoint)
        return ParameterPoint(self, at.inner)

    def field_at(self, point: ParameterPoint) -> Array:
        return self._last(point.at.field_jacobian.input)

    def guards_at(self, point: ParameterPoint) -> Array:
        return self._last(point.at.guard_jacobian.input)

    def reset_at(self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint) -> Array:
        edge = self.system.inner.outgoing(key).edge(fired)
        if edge is None or not edge.reset.differentiable:
            raise SystemDefinitionError(f"the reset of {fired} of mode {key!r} has no Jacobian")
        return self._last(edge.reset.calc_diff(self.held.to_inner_jump(at)).input)

    def _last(self, by_input: Array) -> Array:
        return by_input[:, by_input.shape[1] - len(self.held.values) :]


def _cut(derivative: GuardJacobian, inputs: int) -> GuardJacobian:
    """Derivatives by the first inputs only."""
    return derivative._replace(input=derivative.input[..., :inputs])
