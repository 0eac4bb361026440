"""Inputs that are held as parameters: a system gives its derivatives by its last inputs itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag

from hybridctl.base.checks import Array, check_array
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.mapped import Change, MappedPoint
from hybridctl.hybrid.model import (
    Diffusion,
    FieldJacobian,
    GuardJacobian,
    JumpPoint,
    JumpTerms,
    ModeKey,
    Point,
    ResetBorder,
    ResetJacobian,
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
        return super().consistent_mode(
            x, self._held.input(check_array("u", u, (None,)), np.array(x))
        )

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


@dataclass(frozen=True, eq=False)
class HeldInputs(Change):
    """The last inputs held at values."""

    values: Array
    keeps_steps = True

    def input(self, u: Array, x: Array) -> Array:
        """The inner input (u, values)."""
        return np.concatenate((u, self.values))

    def nu(self, inner: int) -> int:
        """How many inputs are left."""
        return inner - len(self.values)

    def field_jacobian(self, point: MappedPoint) -> FieldJacobian:
        """Derivatives by the inputs that are left."""
        d = super().field_jacobian(point)
        return d._replace(input=d.input[:, : len(point.u)])

    def free_input(self, point: MappedPoint) -> Array:
        """What the inputs that are left do."""
        return super().free_input(point)[:, : len(point.u)]

    def guard_slopes(
        self, inner: GuardJacobian, point: MappedPoint, rows: int | slice
    ) -> GuardJacobian:
        """Derivatives by the inputs that are left."""
        return _cut(inner, len(point.u))

    def law(self, law: InputLaw) -> InputLaw | None:
        """A held input with the values, too."""
        if not isinstance(law, HeldInput):
            return None
        return HeldInput(np.concatenate((law.value, self.values)))

    def inputs(self, inner: Array) -> Array:
        """The inputs that are left."""
        return inner[:, : -len(self.values)]

    def many_inputs(self, u: Array) -> Array:
        """The inner inputs (u, values) of each point."""
        return np.hstack((u, np.tile(self.values, (len(u), 1))))

    def input_rate(self, du: Array) -> Array:
        """The rate of the inner input: values that are held have none."""
        return np.concatenate((du, np.zeros(len(self.values))))

    def jump_terms(self, inner: JumpTerms) -> JumpTerms:
        """Derivatives by the inputs that are left."""
        left = slice(len(inner.time_input) - len(self.values))
        by_input = inner.time_input[left], inner.reset_input[:, left]
        return inner._replace(time_input=by_input[0], reset_input=by_input[1])

    def diffusion(self, noise: Diffusion) -> Diffusion:
        """The noise on the inner mode: none in the inputs that are held."""
        none = np.zeros((len(self.values),) * 2)
        return noise._replace(through_input=block_diag(noise.through_input, none))

    def reset_jacobian(self, inner: ResetJacobian, at: JumpPoint) -> ResetJacobian:
        """Derivatives by the inputs that are left."""
        return _cut(inner, len(at.u))

    def border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
        """Derivatives by the inputs that are left."""
        return super().border(inner, at)._replace(distance=_cut(inner.distance, len(at.u)))


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
        return self._last(edge.reset.calc_diff(self.held.jump_point(at)).input)

    def _last(self, by_input: Array) -> Array:
        return by_input[:, by_input.shape[1] - len(self.held.values) :]


def _cut(derivative: GuardJacobian, inputs: int) -> GuardJacobian:
    """Derivatives by the first inputs only."""
    return derivative._replace(input=derivative.input[..., :inputs])
