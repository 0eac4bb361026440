r"""Derivatives of a hybrid system by its parameters: where they come from.

A `ParameterModel` gives the derivatives of field, guards and resets of a system by named
parameters, at points of its modes. `parameters` takes any of them:

- `ParameterDerivatives`: functions that a user gives.
- `fix_inputs_as_parameters`: the last inputs of a system, fixed at values. Their derivatives are
  the last columns of the system's own Jacobians.
- `GuardOffsets`: offsets of guards, for guard noise.
- `mechanics.parameters`: masses, springs, friction and contact points of robots.

A `SystemFamily` gives both the system and these derivatives as a function of the values:
`FixedInputParameters`, and `mechanics.parameter_values.NamedParameters` of robots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag

from hybridctl.base.checks import Array, check_array, check_member
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
    PointProperty,
    ResetBatch,
    ResetBorder,
    ResetJacobian,
    ResetModel,
    StepRequest,
    StepTransition,
)
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.system import HybridSystem, MappedSystem

ModeFunction = Callable[[ModeKey, float, Array, Array], Array]
"""A derivative of a mode, given its key, t in s, x (nx,) and u (nu,)."""
ResetFunction = Callable[[ModeKey, tuple[str, ...], float, Array, Array], Array]
"""A derivative of a reset, given the mode before it, the guards that fire, t, x and u."""


def check_derivative_shape(what: str, key: ModeKey, value: Array, shape: tuple[int, int]) -> Array:
    """Return derivatives by parameters after a check of their shape.

    Args:
        what: What is differentiated, for the message.
        key: Key of its mode.
        value: The derivatives.
        shape: The shape that they must have.

    Raises:
        SystemDefinitionError: The shape is wrong.
    """
    if np.shape(value) != shape:
        raise SystemDefinitionError(
            f"derivatives of {what} of mode {key!r} by parameters must have shape {shape}, got "
            f"{np.shape(value)}"
        )
    return value


class ParameterPoint:
    """A point of a mode with the derivatives by parameters there, evaluated when first needed.

    Each model has its own class of points, which implements `field` and `guards`.

    Args:
        model: The derivatives.
        at: The point.
    """

    def __init__(self, model: ParameterModel, at: Point) -> None:
        self.model, self.at = model, at

    @PointProperty
    def field(self) -> Array:
        """The derivative D_p f (ndx, np) of the field."""
        raise NotImplementedError(f"{type(self).__name__} does not implement field")

    @PointProperty
    def guards(self) -> Array:
        """The derivative D_p g (n, np) of the guards, in the order of the mode."""
        raise NotImplementedError(f"{type(self).__name__} does not implement guards")


class ParameterModel(ABC):
    """Derivatives of a hybrid system by np named parameters, at points of its modes.

    A subclass sets `point` and implements `differentiate_reset`.

    Attributes:
        point: The class of its points.
        names: Names of the parameters.
        moves_borders: Whether parameters may change the border of a reset, or what the reset does
            there. Resets at a border are then refused.
        moves_constraints: Whether parameters change the constraints of modes. Runs that begin in
            a mode with constraints are then refused: their start would leave it.

    Args:
        names: Names of the parameters.
        moves_borders: Whether parameters may change the border of a reset, or what the reset does
            there. Resets at a border are then refused.

    Raises:
        InputError: There is no name, or two are equal.
    """

    point: ClassVar[type[ParameterPoint]]
    moves_constraints: bool = False

    def __init__(self, names: Sequence[str], moves_borders: bool = True) -> None:
        self.names, self.moves_borders = tuple(names), moves_borders
        if not self.names or len(set(self.names)) != len(self.names):
            raise InputError(f"names must be one or more different parameters, got {self.names}")

    def calc(self, at: Point) -> ParameterPoint:
        """Return the derivatives at a point of a mode of the system."""
        return self.point(self, at)

    def evaluate_fields(
        self, mode: ModeModel, times: Array, states: Array, inputs: Array
    ) -> tuple[Array, Array] | None:
        """Return the derivatives of the field at m points of a mode, by one compiled call.

        Args:
            mode: The mode.
            times: Times (m,), s.
            states: States (m, nx).
            inputs: Inputs (m, nu).

        Returns:
            Soundness (m,), which is positive where the others hold, and D_p f (m, ndx, np). None
            where there is no compiled function; here there is none.
        """
        return None

    def differentiate_departure(
        self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint
    ) -> Array | None:
        """Return the derivatives (np,) of a departure, see `ResetModel.differentiate_departure`.

        Args:
            key: Key of the mode before it.
            fired: Names of the guards that fire.
            at: The point before the jump.

        Returns:
            The derivatives. None where they are not known, as here: then those of the guard count.
        """
        return None

    @abstractmethod
    def differentiate_reset(
        self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint
    ) -> Array | None:
        """Return the derivative D_p R of a reset.

        Args:
            key: Mode before the reset.
            fired: Names of the guards that fire.
            at: Point before the reset.

        Returns:
            The derivative (ndx+, np). None if the reset does not depend on the parameters.
        """

    def differentiate_guards(self, points: Sequence[Point], guards: Sequence[int]) -> Array:
        """Return the derivatives D_p g (m, np) of one guard at each of m points.

        Args:
            points: Points of modes of the system.
            guards: Index of the guard at each of them.

        Raises:
            SystemDefinitionError: The derivatives of the guards of a mode have a wrong shape.
        """
        found = np.empty((len(points), len(self.names)))
        for row, point, guard in zip(found, points, guards, strict=True):
            shape = len(point.mode.guard_names), len(self.names)
            every = self.calc(point).guards
            row[:] = check_derivative_shape("the guards", point.mode.key, every, shape)[guard]
        return found

    def differentiate_batch(
        self, batch: ResetBatch, jumps: Sequence[tuple[ModeKey, tuple[str, ...], JumpPoint]]
    ) -> Array | None:
        """Return the derivatives D_p R of jumps that resets differentiate together.

        Here each is as `differentiate_reset` returns it.

        Args:
            batch: The derivatives of the m jumps by the state.
            jumps: The arguments of `differentiate_reset` of each.

        Returns:
            The derivatives (m, ndx+, np). None if no reset depends on the parameters.

        Raises:
            SystemDefinitionError: A derivative has a wrong shape.
        """
        each = [self.differentiate_reset(*jump) for jump in jumps]
        if all(one is None for one in each):
            return None
        shape = batch.jacobian.state.shape[1], len(self.names)
        found = np.zeros((len(each), *shape))
        for into, one, (key, *_) in zip(found, each, jumps, strict=True):
            if one is not None:
                into[:] = check_derivative_shape("a reset", key, one, shape)
        return found


class _GivenDerivatives(ParameterPoint):
    """Derivatives at a point as functions return them."""

    model: ParameterDerivatives

    @PointProperty
    def field(self) -> Array:
        at = self.at
        return self.model.field(at.mode.key, at.t, at.x, at.u)

    @PointProperty
    def guards(self) -> Array:
        at = self.at
        return self.model.guards(at.mode.key, at.t, at.x, at.u)


class ParameterDerivatives(ParameterModel):
    """Derivatives of a hybrid system by np named parameters, as functions of (t, x, u) of a mode.

    Args:
        names: Names of the parameters.
        field: D_p f (ndx, np) of a mode.
        guards: D_p g (n, np) of a mode, in the order of its guards.
        reset: D_p R (ndx+, np) of the edge from a mode for the guards that fire. None if no reset
            depends on the parameters.
        moves_borders: See `ParameterModel`.
    """

    point = _GivenDerivatives

    def __init__(
        self,
        names: Sequence[str],
        field: ModeFunction,
        guards: ModeFunction,
        reset: ResetFunction | None,
        moves_borders: bool = True,
    ) -> None:
        super().__init__(names, moves_borders)
        self.field, self.guards, self.reset = field, guards, reset

    def differentiate_reset(
        self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint
    ) -> Array | None:
        """Return the derivative D_p R of a reset; see `ParameterModel`.

        Args:
            key: Mode before the reset.
            fired: Names of the guards that fire.
            at: Point before the reset.
        """
        return None if self.reset is None else self.reset(key, fired, at.t, at.x, at.u)


class _FoldedPoint(ParameterPoint):
    """Derivatives at a point by parameters that several others follow."""

    model: FoldedParameters

    @PointProperty
    def field(self) -> Array:
        """The derivative D_p f (ndx, np) of the field."""
        return np.asarray(self.model.inner.calc(self.at).field @ self.model.fold)

    @PointProperty
    def guards(self) -> Array:
        """The derivative D_p g (n, np) of the guards."""
        return np.asarray(self.model.inner.calc(self.at).guards @ self.model.fold)


class FoldedParameters(ParameterModel):
    """Derivatives by parameters, each of which several parameters of another model follow.

    Args:
        names: Names (np,) of the parameters.
        inner: The other model, with m parameters.
        fold: Derivatives (m, np) of these by the parameters.
    """

    point = _FoldedPoint

    def __init__(self, names: Sequence[str], inner: ParameterModel, fold: Array) -> None:
        super().__init__(names, inner.moves_borders)
        self.inner, self.fold = inner, fold
        self.moves_constraints = inner.moves_constraints

    def evaluate_fields(
        self, mode: ModeModel, times: Array, states: Array, inputs: Array
    ) -> tuple[Array, Array] | None:
        """Return the derivatives of the field at m points, see `ParameterModel.evaluate_fields`.

        Args:
            mode: The mode.
            times: Times (m,), s.
            states: States (m, nx).
            inputs: Inputs (m, nu).
        """
        inner = self.inner.evaluate_fields(mode, times, states, inputs)
        return None if inner is None else (inner[0], inner[1] @ self.fold)

    def differentiate_departure(
        self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint
    ) -> Array | None:
        """Return the derivatives of a departure, see `ParameterModel.differentiate_departure`.

        Args:
            key: Key of the mode before it.
            fired: Names of the guards that fire.
            at: The point before the jump.
        """
        inner = self.inner.differentiate_departure(key, fired, at)
        return None if inner is None else inner @ self.fold

    def differentiate_reset(
        self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint
    ) -> Array | None:
        """Return the derivative D_p R (ndx+, np) of a reset, None for none.

        Args:
            key: Mode before the reset.
            fired: Names of the guards that fire.
            at: Point before the reset.
        """
        inner = self.inner.differentiate_reset(key, fired, at)
        return None if inner is None else np.asarray(inner @ self.fold)

    def differentiate_guards(self, points: Sequence[Point], guards: Sequence[int]) -> Array:
        """Return the derivatives D_p g (m, np) of one guard at each of m points.

        Args:
            points: Points of modes of the system.
            guards: Index of the guard at each of them.
        """
        return np.asarray(self.inner.differentiate_guards(points, guards) @ self.fold)

    def differentiate_batch(
        self, batch: ResetBatch, jumps: Sequence[tuple[ModeKey, tuple[str, ...], JumpPoint]]
    ) -> Array | None:
        """Return the derivatives D_p R (m, ndx+, np) of jumps, None for none.

        Args:
            batch: See `ParameterModel.differentiate_batch`.
            jumps: See there.
        """
        inner = self.inner.differentiate_batch(batch, jumps)
        return None if inner is None else np.asarray(inner @ self.fold)


class SystemFamily(ABC):
    """A system as a function of the values of named parameters, with its derivatives by them.

    Attributes:
        names: Names (np,) of the parameters.
    """

    names: tuple[str, ...]

    @property
    @abstractmethod
    def values(self) -> Array:
        """Values (np,) in the system of which the others are made."""

    @abstractmethod
    def make(self, values: Array) -> tuple[HybridSystem, ParameterModel]:
        """Return the system with these values, and its derivatives by them.

        Args:
            values: Values (np,).

        Raises:
            InputError: A value is out of its range.
        """


class SystemParameters(ParameterModel):
    """Derivatives by parameters of a known system, whose modes evaluate the points.

    Args:
        system: The hybrid system.
        names: Names of the parameters.
    """

    def __init__(self, system: HybridSystem, names: Sequence[str]) -> None:
        super().__init__(names)
        self.system = system

    def field(self, key: ModeKey, t: float, x: Array, u: Array) -> Array:
        """Return the derivative D_p f of the field of a mode.

        Args:
            key: Key of the mode.
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).

        Returns:
            The derivative (ndx, np).
        """
        return self.calc(self.system.mode(key).calc(t, x, u)).field

    def guards(self, key: ModeKey, t: float, x: Array, u: Array) -> Array:
        """Return the derivative D_p g of the guards of a mode.

        Args:
            key: Key of the mode.
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).

        Returns:
            The derivative (n, np), in the order of the mode.
        """
        return self.calc(self.system.mode(key).calc(t, x, u)).guards

    def reset(
        self, key: ModeKey, fired: tuple[str, ...], t: float, x: Array, u: Array
    ) -> Array | None:
        """Return the derivative D_p R of a reset.

        Args:
            key: Key of the mode before the reset.
            fired: Names of the guards that fire.
            t: Time, s.
            x: State (nx,) before the reset.
            u: Input (nu,).

        Returns:
            The derivative (ndx+, np). None if the reset does not depend on the parameters.
        """
        return self.differentiate_reset(key, fired, JumpPoint(t, x, u))


class _OffsetDerivatives(ParameterPoint):
    """Derivatives by offsets of guards: 1 for a guard by its own offset, and else 0."""

    @PointProperty
    def field(self) -> Array:
        return np.zeros((self.at.mode.space.ndx, len(self.model.names)))

    @PointProperty
    def guards(self) -> Array:
        guards, own = self.at.mode.guard_names, self.model.names
        found = np.zeros((len(guards), len(own)))
        for row, name in zip(found, guards, strict=True):
            row[:] = [name == each for each in own]
        return found


class GuardOffsets(ParameterModel):
    """Offsets w of named guards, which fire at g + w = 0. Borders of resets stay where they are.

    Args:
        names: Names of the guards.
    """

    point = _OffsetDerivatives

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names, moves_borders=False)

    def differentiate_reset(self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint) -> None:
        """Return None: resets do not depend on offsets.

        Args:
            key: Mode before the reset.
            fired: Names of the guards that fire.
            at: Point before the reset.
        """
        return None


# Fixed inputs


def fix_inputs_as_parameters(
    system: HybridSystem, values: Mapping[str, float]
) -> tuple[HybridSystem, SystemParameters]:
    """Fix the last inputs of a system at values, and make them its parameters.

    Args:
        system: The hybrid system. In all modes its last inputs are the parameters.
        values: Value of each parameter by name, in the order of these inputs.

    Returns:
        The system in the inputs that are left, and its derivatives by the parameters. A mode with
        fewer inputs raises an `InputError` when it is entered, and a derivative of what has no
        Jacobian a `SystemDefinitionError`.

    Raises:
        InputError: There is no value, or one is not finite.
    """
    fixed = FixedInputs(check_array("values", list(values.values()), (None,)))
    mapped = SystemWithFixedInputs(system, fixed, tuple(values))
    return mapped, _FixedInputDerivatives(mapped, fixed, tuple(values))


class FixedInputParameters(SystemFamily):
    """Some of the fixed inputs of a system as its parameters; the others keep their values.

    Args:
        system: The system.
        names: Names (np,) of the parameters.

    Raises:
        UnknownNameError: A name is none of a fixed input.
        InputError: A name is given twice.
    """

    def __init__(self, system: SystemWithFixedInputs, names: Sequence[str]) -> None:
        self._system, self.names = system, tuple(names)
        for name in self.names:
            check_member("parameter", name, tuple(system.fixed_values))
        if len(set(self.names)) != len(self.names):
            raise InputError(f"parameters must be different names, got {self.names}")
        columns = [self.names.index(n) if n in self.names else -1 for n in system.fixed_values]
        self._fold = (np.array(columns)[:, None] == np.arange(len(self.names))).astype(np.float64)

    @property
    def values(self) -> Array:
        """Values (np,) in the system."""
        return np.array([self._system.fixed_values[name] for name in self.names])

    def make(self, values: Array) -> tuple[HybridSystem, ParameterModel]:
        """Return the system with other values, and its derivatives; see `SystemFamily`.

        Args:
            values: Values (np,).
        """
        new = self._system.fixed_values | dict(zip(self.names, values.tolist(), strict=True))
        system, derivatives = fix_inputs_as_parameters(self._system.inner, new)
        return system, FoldedParameters(self.names, derivatives, self._fold)


class SystemWithFixedInputs(MappedSystem):
    """A system whose last inputs are fixed. Its policies give all inputs that are left.

    Args:
        inner: The system with all inputs.
        fixed: The values of the last ones.
        names: Their names.

    Attributes:
        fixed_values: Values of the inputs by name.
    """

    def __init__(self, inner: HybridSystem, fixed: FixedInputs, names: Sequence[str]) -> None:
        super().__init__(inner, self._check_mode)
        self._fixed = fixed
        self.fixed_values: dict[str, float] = dict(zip(names, fixed.values.tolist(), strict=True))

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """Return the mode in which a state flows on.

        Args:
            x: State (nx,).
            u: Inputs (nu,) that are left. None for zeros.
        """
        if u is None:
            # How many inputs are left is known from a mode: that which the inner system finds
            # without any input.
            u = np.zeros(self.mode(super().consistent_mode(x)).nu)
        inner = self._fixed.append_values(check_array("u", u, (None,)))
        return super().consistent_mode(x, inner)

    def pushed(self, wrench: object) -> HybridSystem:
        """Refuse a wrench: its size would be the last input.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "wrench must be None in a system whose last inputs are held, as the size of a wrench "
            "is the last one: push the system first"
        )

    def resolve_policy(self, policy: Policy | InputLaw | None) -> Policy | InputLaw | None:
        """Return the policy unchanged, and not as the inner system would resolve it.

        Policies give the inputs that are left, and modes of this system add the fixed ones.
        """
        return policy

    def _check_mode(self, key: ModeKey) -> FixedInputs:
        """Return the fixed inputs of a mode.

        Raises:
            InputError: The mode has fewer inputs.
        """
        fixed, nu = self._fixed, self.inner.mode(key).nu
        if nu < len(fixed.values):
            raise InputError(
                f"mode {key!r} must have at least {len(fixed.values)} inputs, one for each "
                f"parameter, got {nu}"
            )
        return fixed


class _PointWithFixedInputs(MappedPoint):
    """A point of a mode whose last inputs are fixed: derivatives are by those that are left."""

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        d = self.inner.field_jacobian
        return d._replace(input=d.input[:, : len(self.u)])

    @PointProperty
    def free_input(self) -> Array:
        return self.inner.free_input[:, : len(self.u)]

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        return _cut_inputs(self.inner.guard_jacobian, len(self.u))

    def guard_row(self, i: int) -> GuardJacobian:
        return _cut_inputs(self.inner.guard_row(i), len(self.u))


class ModeWithFixedInputs(MappedMode):
    """A mode whose last inputs are fixed at values."""

    change: FixedInputs
    point = _PointWithFixedInputs

    def __init__(self, inner: ModeModel, change: FixedInputs) -> None:
        super().__init__(inner, change)
        self.nu = inner.nu - len(change.values)

    @cached_property
    def compiled_steps(self) -> CompiledSteps | None:
        """The compiled steps of the inner mode, in which the inputs are fixed too."""
        steps = self.inner.compiled_steps
        return None if steps is None else _FixedInputSteps(steps, self.change)


@dataclass(frozen=True, eq=False)
class FixedInputs(Change):
    """The change of modes and resets to fixed last inputs.

    Attributes:
        values: Values (k,) of these inputs.
    """

    values: Array
    mode_class = ModeWithFixedInputs

    def append_values(self, u: Array) -> Array:
        """Return the inner input (u, values)."""
        return np.concatenate((u, self.values))

    def to_inner(self, t: float, x: Array, u: Array) -> tuple[float, Array, Array]:
        """Return time, state and input of the inner mode.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input that is left (nu,).
        """
        return t, x, self.append_values(u)

    def map_reset_jacobian(self, inner: ResetJacobian, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives of a reset by state and inputs that are left."""
        return _cut_inputs(inner, len(at.u))

    def map_departure(self, inner: GuardJacobian, at: JumpPoint) -> GuardJacobian:
        """Return the derivatives of a departure by the inputs that are left."""
        return _cut_inputs(inner, len(at.u))

    def map_border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
        """Return the border of a reset with derivatives by the inputs that are left."""
        mapped = super().map_border(inner, at)
        return mapped._replace(distance=_cut_inputs(inner.distance, len(at.u)))


class _FixedInputSteps(MappedSteps):
    """The compiled steps of the inner mode in which the last inputs are fixed."""

    change: FixedInputs

    @cached_property
    def batched(self) -> BatchedSteps | None:
        """The inner steps from many points."""
        steps = self.inner.batched
        return (
            None
            if steps is None
            else BatchedSteps(*(partial(self._call_batched, f) for f in steps))
        )

    def _call_batched(
        self, function: BatchFunction, times: Array, states: Array, inputs: Array
    ) -> list[Array]:
        """Return the results of an inner function of m points, for the inputs that are left.

        Args:
            function: The inner function.
            times: Times (m,) in s, or what else the function takes first, a row for each point.
            states: States (m, nx).
            inputs: Inputs (m, nu) that are left.
        """
        fixed = np.tile(self.change.values, (len(inputs), 1))
        return function(times, states, np.hstack((inputs, fixed)))

    def step(self, ahead: StepRequest, law: InputLaw) -> CompiledStep | None:
        """Return the inner step under a constant input, without the fixed inputs in its record.

        None for other laws, which give only the inputs that are left and so cannot be the law of an
        inner step, and where the inner mode has no such step.

        Args:
            ahead: The step.
            law: Law of the inputs that are left.
        """
        if not isinstance(law, HeldInput):
            return None
        step = self.inner.step(ahead, HeldInput(self.change.append_values(law.value)))
        return step and step._replace(inputs=step.inputs[:, : -len(self.change.values)])

    def transition(
        self, ahead: StepRequest, u: Array, noise: Diffusion | None = None
    ) -> StepTransition | None:
        """Return a step with its derivative; fixed inputs have no noise.

        Args:
            ahead: The step.
            u: Inputs (nu,) that are left.
            noise: Noise of the state and of these inputs, or None.

        Returns:
            The step; None where the inner mode has no such step.
        """
        if noise is not None:
            none = np.zeros((len(self.change.values),) * 2)
            noise = noise._replace(through_input=block_diag(noise.through_input, none))
        return self.inner.transition(ahead, self.change.append_values(u), noise)

    def jump_terms(self, i: int, reset: ResetModel, at: JumpPoint, du: Array) -> JumpTerms | None:
        """Return the terms of a jump with derivatives by the inputs that are left.

        Args:
            i: Index of the guard that fires.
            reset: The reset. There are no terms for one that this change has not mapped.
            at: Point before the jump.
            du: Rate (nu,) of the inputs that are left; that of fixed inputs is zero.
        """
        if not self._has_mapped(reset):
            return None
        rate = np.concatenate((du, np.zeros(len(self.change.values))))
        inner = super().jump_terms(i, reset, at, rate)
        if inner is None:
            return None
        left = slice(len(du))
        by_input = inner.time_input[left], inner.reset_input[:, left]
        return inner._replace(time_input=by_input[0], reset_input=by_input[1])

    def batched_jump(self, i: int, reset: ResetModel) -> BatchFunction | None:
        """Return the inner jump of many points, for a reset that this change has mapped."""
        jump = super().batched_jump(i, reset) if self._has_mapped(reset) else None
        return None if jump is None else partial(self._call_batched, jump)

    def _has_mapped(self, reset: ResetModel) -> bool:
        """Return whether a reset is one of this change, so that its inner reset is known."""
        return isinstance(reset, MappedReset) and reset.change is self.change


class _FixedInputPoint(ParameterPoint):
    """Derivatives by fixed inputs at an inner point, of which they are inputs."""

    model: _FixedInputDerivatives

    @PointProperty
    def field(self) -> Array:
        return self.model.take_last(self.at.field_jacobian.input)

    @PointProperty
    def guards(self) -> Array:
        return self.model.take_last(self.at.guard_jacobian.input)


class _FixedInputDerivatives(SystemParameters):
    """Derivatives of a system by its fixed inputs, evaluated at the inner points."""

    system: MappedSystem
    point = _FixedInputPoint

    def __init__(self, system: MappedSystem, fixed: FixedInputs, names: Sequence[str]) -> None:
        super().__init__(system, names)
        self.fixed = fixed

    def calc(self, at: Point) -> ParameterPoint:
        """Return the derivatives at a point with fixed inputs, or at (t, x, u) of another one.

        Args:
            at: A point of a mode of the system, or of one with the same keys, states and inputs,
                such as a mapped one. The latter is evaluated again, as it has no inner point here.
        """
        is_own_point = isinstance(at, MappedPoint) and at.mode.change is self.fixed
        if not is_own_point:
            at = self.system.mode(at.mode.key).calc(at.t, at.x, at.u)
        assert isinstance(at, MappedPoint)
        return self.point(self, at.inner)

    def differentiate_reset(self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint) -> Array:
        """Return the derivative of a reset; see `ParameterModel`.

        Raises:
            SystemDefinitionError: The reset has no Jacobian.
        """
        edge = self.system.inner.outgoing(key).edge(fired)
        if edge is None or not edge.reset.differentiable:
            raise SystemDefinitionError(f"the reset of {fired} of mode {key!r} has no Jacobian")
        return self.take_last(edge.reset.calc_diff(self.fixed.to_inner_jump(at)).input)

    def take_last(self, by_input: Array) -> Array:
        """Return the columns (n, k) of the fixed inputs, of derivatives (n, m) by all inputs."""
        return by_input[:, by_input.shape[1] - len(self.fixed.values) :]


def _cut_inputs(derivative: GuardJacobian, inputs: int) -> GuardJacobian:
    """Return derivatives of guards, or of one, by the first inputs only."""
    return derivative._replace(input=derivative.input[..., :inputs])
