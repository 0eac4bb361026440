r"""Hybrid systems from CasADi expressions, with exact Jacobians.

A bouncing ball with restitution 0.8, as expressions in its own symbols::

    y, v = casadi.SX.sym("y"), casadi.SX.sym("v")
    system = symbolic.hybrid_system(
        [symbolic.SymbolicMode("air", state=[y, v], field=[v, -9.81])],
        [symbolic.SymbolicTransition("air", "hits", guard=y, target="air", reset=[y, -0.8 * v])],
    )

Expressions are SX or MX columns, numbers, or lists of them. A call evaluates one compiled
function into memory of its own thread and returns new arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.base.spaces import VectorSpace
from hybridctl.hybrid import mode as hybrid
from hybridctl.hybrid.model import (
    FieldJacobian,
    GuardJacobian,
    Jump,
    JumpPoint,
    ModeKey,
    Point,
    ResetModel,
)
from hybridctl.hybrid.system import HybridSystem, listed_parts
from hybridctl.sensitivity.augmentation import SystemParameters
from hybridctl.sensitivity.held_inputs import inputs_as_parameters
from hybridctl.symbolic.compiled_function import Compiled
from hybridctl.symbolic.compiled_reset import CompiledJump
from hybridctl.symbolic.compiled_step import CompiledMode, expanded, made

Expression: TypeAlias = Any
Function: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class SymbolicMode:
    r"""A mode with state x (nx,) in R^nx and vector field :math:`\dot x = f(t, x, u)`.

    `state`, `input` and `time` are the symbols in which `field` (nx,), `outputs` (n,) or (n, m),
    and the guards and resets of the transitions that leave this mode are written.
    """

    key: ModeKey
    state: Expression
    field: Expression
    input: Expression = None
    time: Expression = None
    outputs: Mapping[str, Expression] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SymbolicTransition:
    """A transition: when `guard` falls through zero in `source`, x+ = `reset`, in mode `target`.

    `guard` is a scalar, positive inside the mode; `name` names it. `reset` has the size of the
    target's state; None leaves the state as it is. Both are in the symbols of the source mode.
    """

    source: ModeKey
    name: str
    guard: Expression
    target: ModeKey
    reset: Expression = None


Mode, Transition = SymbolicMode, SymbolicTransition  # as systems written before these names say


@dataclass(frozen=True, eq=False)
class Joint:
    """The jump where the guards `names` of mode `source` fire together, in place of their own."""

    source: ModeKey
    names: Sequence[str]
    target: ModeKey
    reset: Expression = None


def hybrid_system(
    modes: Iterable[SymbolicMode], transitions: Iterable[SymbolicTransition | Joint]
) -> HybridSystem:
    """The hybrid system of these expressions; fields, guards and resets have exact Jacobians.

    Raises `SystemDefinitionError` for sizes that do not fit, for symbols that a mode does not
    declare and for a graph that is none, `UnknownNameError` for a joint transition of guards
    that its mode does not have.
    """
    modes = listed_parts("modes", modes, (SymbolicMode,), "a SymbolicMode")
    kinds = "a SymbolicTransition or a Joint"
    transitions = listed_parts("transitions", transitions, (SymbolicTransition, Joint), kinds)
    symbols = {m.key: _Symbols.of(m) for m in modes}
    nodes = {}
    for mode in modes:
        leaving = [
            e for e in transitions if isinstance(e, SymbolicTransition) and e.source == mode.key
        ]
        nodes[mode.key] = ExpressionMode(mode, symbols[mode.key], leaving)
    return HybridSystem([nodes[mode.key] for mode in modes], _edges(transitions, symbols, nodes))


def parametric_system(
    modes: Iterable[SymbolicMode],
    transitions: Iterable[SymbolicTransition | Joint],
    parameters: Mapping[str, tuple[Expression, float]],
) -> tuple[HybridSystem, SystemParameters]:
    """The hybrid system of expressions in further symbols, and its derivatives by these.

    parameters: symbol and value by name. Raises what `hybrid_system` raises.
    """
    symbols = [symbol for symbol, _ in parameters.values()]
    extended = [
        replace(m, input=ca.vertcat(*([] if m.input is None else [_stacked(m.input)]), *symbols))
        for m in modes
    ]
    values = {name: value for name, (_, value) in parameters.items()}
    return inputs_as_parameters(hybrid_system(extended, transitions), values)


def variational(
    modes: Iterable[SymbolicMode], transitions: Iterable[SymbolicTransition | Joint]
) -> tuple[list[SymbolicMode], list[SymbolicTransition]]:
    r"""The system in (x, Phi), with the state transition Phi (n, n) beside the state.

    Columns of Phi stand below x one after the other. They follow :math:`\dot\Phi = D_x f\, \Phi`
    and jump by the saltation matrix, :math:`\Phi^+ = G\, \Phi`, so that first derivatives of this
    system are second ones of the given one. Modes must have one dimension n.

    Raises `SystemDefinitionError` for joint transitions, for guards and resets that see the input,
    whose rate is not known here, and for modes of different dimension.
    """
    given = listed_parts("modes", modes, (SymbolicMode,), "a SymbolicMode")
    by_key = {mode.key: mode for mode in given}
    ways = listed_parts("transitions", transitions, (SymbolicTransition,), "a SymbolicTransition")
    symbols = {mode.key: _Symbols.of(mode) for mode in given}
    sizes = {s.x.numel() for s in symbols.values()}
    if len(sizes) > 1:
        raise SystemDefinitionError(f"modes must have one dimension, got {sorted(sizes)}")
    (n,), columns, lifted = sizes, {}, []
    for mode in given:
        s = symbols[mode.key]
        phi = type(s.x).sym("phi", *sizes, *sizes)
        f, columns[mode.key] = s.column("field", mode.field, n), phi
        moved = ca.vec(ca.jacobian(f, s.x) @ phi)
        x = ca.vertcat(s.x, ca.vec(phi))
        lifted.append(replace(mode, state=x, field=ca.vertcat(f, moved)))
    jumped = []
    for way in ways:
        before, after = symbols[way.source], symbols[way.target]
        f = before.column("field", by_key[way.source].field, n)
        g = before.column(f"guard {way.name!r}", way.guard, 1)
        r = before.x if way.reset is None else before.column("reset", way.reset, n)
        if ca.jacobian(ca.vertcat(g, r), before.u).nnz():
            raise SystemDefinitionError(
                f"guard {way.name!r} of mode {way.source!r}, or its reset, depends on the input, "
                "so that its saltation matrix depends on the input's rate"
            )
        here = [r, before.t, before.u]
        f_after = ca.substitute(
            [after.column("field", by_key[way.target].field, n)], [after.x, after.t, after.u], here
        )[0]
        slope, moved = ca.jacobian(g, before.x), ca.jacobian(r, before.x)
        rate = ca.jacobian(g, before.t) + slope @ f
        gain = moved + (f_after - ca.jacobian(r, before.t) - moved @ f) @ slope / rate
        phi = ca.vec(gain @ columns[way.source])
        jumped.append(replace(way, reset=ca.vertcat(r, phi)))
    return lifted, jumped


def _stacked(expression: Expression) -> Expression:
    return ca.vertcat(*expression) if isinstance(expression, list | tuple) else expression


@dataclass(frozen=True, eq=False)
class _Symbols:
    """The symbols t, x, u of a mode, with stand-ins for those it does not declare."""

    key: ModeKey
    t: Expression
    x: Expression
    u: Expression

    @staticmethod
    def of(mode: SymbolicMode) -> _Symbols:
        parts = [mode.time, mode.state, mode.input]
        kind = ca.MX if any(isinstance(p, ca.MX) for p in parts) else ca.SX
        time = kind.sym("t") if mode.time is None else mode.time
        u = kind.sym("u", 0) if mode.input is None else mode.input
        columns = [_column(kind, part, f"mode {mode.key!r}") for part in (time, mode.state, u)]
        for name, column in zip(("time", "state", "input"), columns, strict=True):
            if not column.is_valid_input():
                raise SystemDefinitionError(
                    f"{name} of mode {mode.key!r} must be symbols, got {column}"
                )
        if columns[0].numel() != 1:
            raise SystemDefinitionError(f"time of mode {mode.key!r} must be one symbol, got {time}")
        used = [c for c in columns if c.numel()]
        distinct = len(ca.symvar(ca.veccat(*used)))
        if distinct < (len(used) if kind is ca.MX else sum(c.numel() for c in used)):
            raise SystemDefinitionError(f"mode {mode.key!r} declares a symbol twice: {columns}")
        return _Symbols(mode.key, *columns)

    def array(self, what: str, expression: Expression) -> Expression:
        """The expression as a dense matrix; `what` names it in the error."""
        return _array(type(self.x), expression, f"{what} of mode {self.key!r}")

    def column(self, what: str, expression: Expression, size: int | None = None) -> Expression:
        """The expression as a dense column; `what` names it in the error."""
        what = f"{what} of mode {self.key!r}"
        column = _column(type(self.x), expression, what)
        if size is not None and column.numel() != size:
            raise SystemDefinitionError(f"{what} must have size {size}, got {column.numel()}")
        return column

    def compiled(
        self, what: str, parts: Sequence[tuple[Expression, tuple[int, ...]]]
    ) -> _CopyingFunction:
        """A function of (t, x, u) that returns these expressions as arrays of these shapes."""
        rows = [ca.densify(expression.T) for expression, _ in parts]
        function = ca.Function("f", [self.t, self.x, self.u], rows, {"allow_free": True})
        if function.has_free():
            raise SystemDefinitionError(
                f"{what} of mode {self.key!r} depends on {', '.join(function.get_free())}, which "
                f"the mode does not declare as state, input or time"
            )
        return _CopyingFunction(function, [shape for _, shape in parts])


def _array(kind: Any, expression: Expression, what: str) -> Expression:
    try:
        if isinstance(expression, list | tuple | np.ndarray):
            expression = ca.vertcat(*expression)
        return ca.densify(kind(expression))
    except NotImplementedError as error:
        raise SystemDefinitionError(
            f"{what}: {expression!r} is no {kind.__name__} expression"
        ) from error


def _column(kind: Any, expression: Expression, what: str) -> Expression:
    column = _array(kind, expression, what)
    if column.numel() and not column.is_column():
        raise SystemDefinitionError(f"{what} must be a column, got shape {column.shape}")
    return column


class _CopyingFunction:
    """A CasADi function of (t, x, u) that returns copies of these shapes."""

    def __init__(self, function: Any, shapes: Sequence[tuple[int, ...]]) -> None:
        self._function = Compiled(function, shapes)
        self._sizes = (function.numel_in(1),), (function.numel_in(2),)

    def __call__(self, t: float, x: Array, u: Array) -> list[Array]:
        """All results at (t, x, u); raises `InputError` for x or u of the wrong shape."""
        if (x.shape, u.shape) != self._sizes:
            wanted_x, wanted_u = self._sizes
            raise InputError(
                f"x and u must have shapes {wanted_x} and {wanted_u}, got {x.shape} and {u.shape}"
            )
        return [a.copy() for a in self._function((t,), x, u)]

    def first(self, t: float, x: Array, u: Array) -> Array:
        """The first result at (t, x, u)."""
        return self(t, x, u)[0]


class ExpressionMode(CompiledMode):
    """A mode of expressions in a vector space; its guards are those of the ways that leave it.

    Field, guards and the derivatives of either are functions of their own, as who looks for a root
    of a guard, or follows perturbations along a flow, needs one of them alone.
    """

    keeps_points = False

    def __init__(
        self, mode: SymbolicMode, symbols: _Symbols, leaving: Sequence[SymbolicTransition]
    ) -> None:
        nx, nu = symbols.x.numel(), symbols.u.numel()
        self.key, self.space, self.nu = mode.key, VectorSpace(nx), nu
        self.guard_names = tuple(edge.name for edge in leaving)
        f = symbols.column("field", mode.field, nx)
        column, shape = _guard_column(symbols, leaving), (len(leaving),)
        self._field = symbols.compiled("field", [(f, (nx,))])
        slopes = [(ca.jacobian(f, symbols.x), (nx, nx)), (ca.jacobian(f, symbols.u), (nx, nu))]
        self._field_slopes = symbols.compiled("field", slopes)
        self._guards = symbols.compiled("guards", [(column, shape)])
        self._guard_slopes = _derivatives("guards", symbols, column, shape)
        self._names = list(mode.outputs)
        found = [symbols.array(f"output {n!r}", mode.outputs[n]) for n in self._names]
        shapes = [(e.numel(),) if e.is_column() else e.shape for e in found]
        self._outputs = symbols.compiled("an output", list(zip(found, shapes, strict=True)))
        motion = ca.Function("motion", [symbols.t, symbols.x, symbols.u], [f, column, 1.0])
        self._motion = expanded(motion)
        self.compiled = self._motion is not None
        self._jumps: dict[tuple[int, ResetModel], CompiledJump] = {}

    def make(self, name: str) -> Function:
        """A function of its whole steps."""
        return made(name, self._motion, None)

    def field_at(self, point: Point) -> Array:
        """The field."""
        return self._field.first(point.t, point.x, point.u)

    def field(self, t: float, x: Array, u: Array) -> Array:
        """The field."""
        return self._field.first(t, x, u)

    def guards_at(self, point: Point) -> Array:
        """The guards."""
        return self._guards.first(point.t, point.x, point.u)

    def guards(self, t: float, x: Array, u: Array) -> Array:
        """The guards."""
        return self._guards.first(t, x, u)

    def field_jacobian_at(self, point: Point) -> FieldJacobian:
        """Derivatives of the field."""
        return FieldJacobian(*self._field_slopes(point.t, point.x, point.u))

    def guard_jacobian_at(self, point: Point) -> GuardJacobian:
        """Derivatives of the guards."""
        return GuardJacobian(*self._guard_slopes(point.t, point.x, point.u))

    def outputs_at(self, point: Point) -> Mapping[str, Array]:
        """The outputs by their names."""
        if not self._names:
            return {}
        return dict(zip(self._names, self._outputs(point.t, point.x, point.u), strict=True))

    def leaves_by(self, i: int, reset: ResetModel, expression: Function) -> None:
        """Compile the jump of guard i by a reset, whose map is this function of (t, x, u)."""
        scalars = expanded(expression)
        if self._motion is not None and scalars is not None:
            self._jumps[i, reset] = CompiledJump(self._motion, i, scalars)

    def jump_of(self, i: int, reset: ResetModel) -> CompiledJump | None:
        """The jump of guard i by a reset, if this mode knows it."""
        return self._jumps.get((i, reset)) if isinstance(reset, ExpressionReset) else None


class ExpressionReset(ResetModel):
    """A reset of an expression."""

    def __init__(self, what: str, symbols: _Symbols, column: Expression) -> None:
        shape = (column.numel(),)
        self._value = symbols.compiled(what, [(column, shape)])
        self._slopes = _derivatives(what, symbols, column, shape)

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """The jump."""
        return Jump(self._value.first(t, x, u))

    def calc_diff(self, at: JumpPoint) -> GuardJacobian:
        """The derivatives of the reset."""
        return GuardJacobian(*self._slopes(at.t, at.x, at.u))


def _derivatives(
    what: str, symbols: _Symbols, expression: Expression, shape: tuple[int, ...]
) -> _CopyingFunction:
    """Derivatives of a column with respect to t, x and u."""
    return symbols.compiled(
        what,
        [
            (ca.jacobian(expression, symbols.t), shape),
            (ca.jacobian(expression, symbols.x), (*shape, symbols.x.numel())),
            (ca.jacobian(expression, symbols.u), (*shape, symbols.u.numel())),
        ],
    )


def _guard_column(symbols: _Symbols, transitions: Sequence[SymbolicTransition]) -> Expression:
    """The guards of a mode as a column."""
    rows = [symbols.column(f"guard {e.name!r}", e.guard, 1) for e in transitions]
    for row, edge in zip(rows, transitions, strict=True):
        symbols.compiled(f"guard {edge.name!r}", [(row, (1,))])
    return symbols.column("guards", rows)


def _edges(
    transitions: Sequence[SymbolicTransition | Joint],
    symbols: Mapping[ModeKey, _Symbols],
    modes: Mapping[ModeKey, ExpressionMode],
) -> list[hybrid.Transition]:
    """The edges of the graph; their guards name those of the modes."""
    for edge in transitions:
        for end in (edge.source, edge.target):
            if end not in symbols:
                raise SystemDefinitionError(
                    f"{end!r}, an end of a transition, is no mode, expected one of {list(symbols)}"
                )
    guards = {
        key: {n: hybrid.Guard(n, partial(mode.guard, i)) for i, n in enumerate(mode.guard_names)}
        for key, mode in modes.items()
    }
    edges = []
    for edge in transitions:
        source, own, known = modes[edge.source], symbols[edge.source], guards[edge.source]
        names = (edge.name,) if isinstance(edge, SymbolicTransition) else tuple(edge.names)
        chosen = [
            known[check_member(f"guard of mode {edge.source!r}", name, known)] for name in names
        ]
        what, size = f"reset of {', '.join(map(repr, names))}", symbols[edge.target].x.numel()
        column = own.column(what, own.x if edge.reset is None else edge.reset, size)
        reset = ExpressionReset(what, own, column)
        if isinstance(edge, SymbolicTransition):
            expression = ca.Function("reset", [own.t, own.x, own.u], [column])
            source.leaves_by(source.guard_names.index(edge.name), reset, expression)
        edges.append(hybrid.Transition(edge.source, chosen, reset, edge.target))
    return edges
