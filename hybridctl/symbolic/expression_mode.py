"""Modes and resets of CasADi expressions, as `systems.hybrid_system` makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.base.spaces import VectorSpace
from hybridctl.hybrid.model import (
    BatchFunction,
    FieldJacobian,
    GuardJacobian,
    Jump,
    JumpPoint,
    ModeKey,
    Point,
    PointProperty,
    ResetJacobian,
    ResetModel,
)
from hybridctl.symbolic.compiled_function import BatchedFunction, CompiledFunction
from hybridctl.symbolic.compiled_reset import CompiledReset
from hybridctl.symbolic.compiled_step import CompiledMode, build_function, expand_to_scalars

Expression: TypeAlias = Any
Function: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class ModeSymbols:
    """The symbols in which the expressions of a mode are written.

    Attributes:
        key: Key of the mode, for error messages.
        t: Time, a scalar. A symbol that no expression has where the mode declares none.
        x: State (nx,).
        u: Input (nu,), of size 0 where the mode declares none.
    """

    key: ModeKey
    t: Expression
    x: Expression
    u: Expression

    @staticmethod
    def declare(
        key: ModeKey, time: Expression, state: Expression, input: Expression
    ) -> ModeSymbols:
        """Return the symbols of a mode.

        Args:
            key: Key of the mode.
            time: One symbol, or None.
            state: A column or list of symbols.
            input: A column or list of symbols, or None.

        Raises:
            SystemDefinitionError: An argument is no column of symbols, time is not one symbol, or a
                symbol is declared twice.
        """
        kind = ca.MX if any(isinstance(part, ca.MX) for part in (time, state, input)) else ca.SX
        t = kind.sym("t") if time is None else time
        u = kind.sym("u", 0) if input is None else input
        columns = [_convert_to_column(kind, part, f"mode {key!r}") for part in (t, state, u)]
        for name, column in zip(("time", "state", "input"), columns, strict=True):
            if not column.is_valid_input():
                raise SystemDefinitionError(f"{name} of mode {key!r} must be symbols, got {column}")
        if columns[0].numel() != 1:
            raise SystemDefinitionError(f"time of mode {key!r} must be one symbol, got {t}")
        declared = [column for column in columns if column.numel()]
        distinct = len(ca.symvar(ca.veccat(*declared)))
        # A column of MX is one symbol, a column of SX has one symbol for each entry.
        count = len(declared) if kind is ca.MX else sum(c.numel() for c in declared)
        if distinct < count:
            raise SystemDefinitionError(f"mode {key!r} declares a symbol twice: {columns}")
        return ModeSymbols(key, *columns)

    def convert_to_array(self, what: str, expression: Expression) -> Expression:
        """Return an expression as a dense matrix.

        Args:
            what: Name of the expression in error messages.
            expression: An expression, a number, or a list of them.

        Raises:
            SystemDefinitionError: It is no expression of the kind of the state, SX or MX.
        """
        return _convert_to_array(type(self.x), expression, f"{what} of mode {self.key!r}")

    def convert_to_column(
        self, what: str, expression: Expression, size: int | None = None
    ) -> Expression:
        """Return an expression as a dense column.

        Args:
            what: Name of the expression in error messages.
            expression: An expression, a number, or a list of them.
            size: Size that the column must have. If None, any size is accepted.

        Raises:
            SystemDefinitionError: The expression is no column of this size.
        """
        what = f"{what} of mode {self.key!r}"
        column = _convert_to_column(type(self.x), expression, what)
        if size is not None and column.numel() != size:
            raise SystemDefinitionError(f"{what} must have size {size}, got {column.numel()}")
        return column

    def compile(
        self, what: str, parts: Sequence[tuple[Expression, tuple[int, ...]]]
    ) -> ExpressionFunction:
        """Return expressions as a compiled function of (t, x, u).

        Args:
            what: Name of the expressions in error messages.
            parts: Expressions, and the shape of each as an array.

        Raises:
            SystemDefinitionError: The expressions have symbols that the mode does not declare.
        """
        # CasADi stores columns one after the other, numpy rows: transposed, both are in one order.
        rows = [ca.densify(expression.T) for expression, _ in parts]
        function = ca.Function("f", [self.t, self.x, self.u], rows, {"allow_free": True})
        if function.has_free():
            raise SystemDefinitionError(
                f"{what} of mode {self.key!r} depends on {', '.join(function.get_free())}, which "
                f"the mode does not declare as state, input or time"
            )
        return ExpressionFunction(function, [shape for _, shape in parts])

    def compile_derivatives(
        self, what: str, column: Expression, shape: tuple[int, ...]
    ) -> ExpressionFunction:
        """Return the derivatives of a column by t, x and u as a compiled function.

        Args:
            what: Name of the column in error messages.
            column: The column (n,).
            shape: Its shape as an array, (n,).
        """
        return self.compile(
            what,
            [
                (ca.jacobian(column, self.t), shape),
                (ca.jacobian(column, self.x), (*shape, self.x.numel())),
                (ca.jacobian(column, self.u), (*shape, self.u.numel())),
            ],
        )


class ExpressionFunction:
    """A compiled function of (t, x, u) that returns new arrays.

    Args:
        function: A `casadi.Function` as `CompiledFunction` takes it.
        shapes: Shape of each result.
    """

    def __init__(self, function: Function, shapes: Sequence[tuple[int, ...]]) -> None:
        self._function = CompiledFunction(function, shapes)
        self._argument_shapes = (function.numel_in(1),), (function.numel_in(2),)

    def __call__(self, t: float, x: Array, u: Array) -> list[Array]:
        """Return all results.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).

        Raises:
            InputError: State or input has another shape, which numpy could broadcast.
        """
        if (x.shape, u.shape) != self._argument_shapes:
            of_x, of_u = self._argument_shapes
            raise InputError(
                f"x and u must have shapes {of_x} and {of_u}, got {x.shape} and {u.shape}"
            )
        return [a.copy() for a in self._function((t,), x, u)]

    def build_batched(self) -> BatchedFunction:
        """Return the same function for many points at once."""
        return self._function.build_batched()


class ExpressionPoint(Point):
    """A point of a mode of expressions, with what its compiled functions return there."""

    mode: ExpressionMode

    @PointProperty
    def field(self) -> Array:
        """The vector field (nx,)."""
        return self.mode.field(self.t, self.x, self.u)

    @PointProperty
    def guards(self) -> Array:
        """The guards (n,)."""
        return self.mode.guards(self.t, self.x, self.u)

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field."""
        return FieldJacobian(*self.mode._field_jacobian(self.t, self.x, self.u))

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of the guards."""
        return GuardJacobian(*self.mode._guard_jacobian(self.t, self.x, self.u))

    @PointProperty
    def outputs(self) -> Mapping[str, Array]:
        """The outputs by their names."""
        outputs = self.mode._outputs(self.t, self.x, self.u)
        return dict(zip(self.mode._output_names, outputs, strict=True))


class ExpressionMode(CompiledMode):
    """A mode of expressions in a vector space.

    Field, guards and the derivatives of each are separate functions: a search for the root of a
    guard needs the guards alone, a perturbation along a flow the derivatives of the field alone.
    Field and guards therefore need no points.

    Args:
        symbols: Symbols of the expressions.
        field: The vector field (nx,).
        guards: Names and expressions of the guards, in the order of the transitions.
        outputs: Expressions of the outputs by their names.

    Raises:
        SystemDefinitionError: An expression has the wrong size or undeclared symbols, or is no
            expression of the kind of the state, SX or MX.
    """

    point = ExpressionPoint

    def __init__(
        self,
        symbols: ModeSymbols,
        field: Expression,
        guards: Sequence[tuple[str, Expression]],
        outputs: Mapping[str, Expression],
    ) -> None:
        nx, nu = symbols.x.numel(), symbols.u.numel()
        self.key, self.space, self.nu = symbols.key, VectorSpace(nx), nu
        self.guard_names = tuple(name for name, _ in guards)
        f = symbols.convert_to_column("field", field, nx)
        column, shape = _stack_guards(symbols, guards), (len(guards),)
        self._field = symbols.compile("field", [(f, (nx,))])
        jacobians = [(ca.jacobian(f, symbols.x), (nx, nx)), (ca.jacobian(f, symbols.u), (nx, nu))]
        self._field_jacobian = symbols.compile("field", jacobians)
        self._guards = symbols.compile("guards", [(column, shape)])
        self._guard_jacobian = symbols.compile_derivatives("guards", column, shape)
        self._output_names = list(outputs)
        arrays = [symbols.convert_to_array(f"output {n!r}", outputs[n]) for n in outputs]
        shapes = [(a.numel(),) if a.is_column() else a.shape for a in arrays]
        self._outputs = symbols.compile("an output", list(zip(arrays, shapes, strict=True)))
        # Expressions are valid everywhere: their soundness is 1.
        motion = ca.Function("motion", [symbols.t, symbols.x, symbols.u], [f, column, 1.0])
        self._motion = expand_to_scalars(motion)  # None where it has no scalar form, or a huge one
        self.compiled = self._motion is not None
        self._compiled_resets: dict[tuple[int, ResetModel], CompiledReset] = {}

    def build_function(self, name: str) -> Function:
        """Return a function of the compiled steps of this mode, which has some where `compiled`.

        Args:
            name: "motion" for field and guards, "step", "feedback_step", "differentiated_step",
                "driven_step" or "noisy_step": see `CompiledMode.build_function`.
        """
        return build_function(name, self._motion, None)

    @cached_property
    def batched_slopes(self) -> BatchFunction:
        """The derivatives of the field at many points; they are sound everywhere."""
        return partial(_evaluate_sound, self._field_jacobian.build_batched())

    def field(self, t: float, x: Array, u: Array) -> Array:
        """Return the vector field (nx,), without the point that `ModeModel` makes for it.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).
        """
        return self._field(t, x, u)[0]

    def guards(self, t: float, x: Array, u: Array) -> Array:
        """Return the guards (n,), without the point that `ModeModel` makes for them.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).
        """
        return self._guards(t, x, u)[0]

    def compile_reset(self, guard: int, reset: ResetModel, expression: Function) -> None:
        """Add the compiled reset of a guard, if guards and reset have a scalar form.

        Args:
            guard: Index of the guard.
            reset: The reset as the transition has it.
            expression: The reset as a `casadi.Function` (t, x, u) -> x+.
        """
        scalars = expand_to_scalars(expression)
        if self._motion is not None and scalars is not None:
            self._compiled_resets[guard, reset] = CompiledReset(self._motion, guard, scalars)

    def find_compiled_reset(self, guard: int, reset: ResetModel) -> CompiledReset | None:
        """Return the compiled reset of a guard, or None if `compile_reset` did not add it.

        Args:
            guard: Index of the guard.
            reset: The reset.
        """
        # A reset of another class may have no hash.
        known = isinstance(reset, ExpressionReset)
        return self._compiled_resets.get((guard, reset)) if known else None


class ExpressionReset(ResetModel):
    """A reset of an expression in the symbols of the mode before it.

    Args:
        what: Name of the reset in error messages.
        symbols: Symbols of the mode before it.
        column: The state (nx+,) after it.

    Raises:
        SystemDefinitionError: The expression has symbols that the mode does not declare.
    """

    def __init__(self, what: str, symbols: ModeSymbols, column: Expression) -> None:
        shape = (column.numel(),)
        self._state = symbols.compile(what, [(column, shape)])
        self._jacobian = symbols.compile_derivatives(what, column, shape)

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump, which has the state (nx+,) after it.

        Args:
            t: Time, s.
            x: State (nx,) before the jump.
            u: Input (nu,) before the jump.
        """
        return Jump(self._state(t, x, u)[0])

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives of the state after the jump at a point before it."""
        return ResetJacobian(*self._jacobian(at.t, at.x, at.u))


def _evaluate_sound(function: BatchedFunction, *rows: Array) -> list[Array]:
    """Return a soundness of ones (m, 1), then the results of a function at m points."""
    return [np.ones((len(rows[0]), 1)), *function(*rows)]


def _convert_to_array(kind: Any, expression: Expression, what: str) -> Expression:
    """Return an expression as a dense matrix of SX or MX (`kind`); `what` names it in errors.

    Raises:
        SystemDefinitionError: It is no expression of this kind.
    """
    try:
        if isinstance(expression, list | tuple | np.ndarray):
            expression = ca.vertcat(*expression)
        return ca.densify(kind(expression))
    except NotImplementedError as error:  # CasADi's, if no overload takes these types
        raise SystemDefinitionError(
            f"{what}: {expression!r} is no {kind.__name__} expression"
        ) from error


def _convert_to_column(kind: Any, expression: Expression, what: str) -> Expression:
    """Return an expression as a dense column of SX or MX (`kind`); `what` names it in errors.

    Raises:
        SystemDefinitionError: It is no column.
    """
    column = _convert_to_array(kind, expression, what)
    # An empty expression may have any shape: that of `casadi.SX()` is (0, 0).
    if column.numel() and not column.is_column():
        raise SystemDefinitionError(f"{what} must be a column, got shape {column.shape}")
    return column


def _stack_guards(symbols: ModeSymbols, guards: Sequence[tuple[str, Expression]]) -> Expression:
    """Return the guards of a mode as one column.

    Raises:
        SystemDefinitionError: A guard is no scalar, or has undeclared symbols.
    """
    rows = [symbols.convert_to_column(f"guard {name!r}", guard, 1) for name, guard in guards]
    for row, (name, _) in zip(rows, guards, strict=True):
        # Each guard is compiled alone so that an error for an undeclared symbol names the guard.
        symbols.compile(f"guard {name!r}", [(row, (1,))])
    return symbols.convert_to_column("guards", rows)
