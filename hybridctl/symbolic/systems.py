r"""Hybrid systems from CasADi expressions, with exact Jacobians.

A bouncing ball with restitution 0.8, as expressions in its own symbols::

    y, v = casadi.SX.sym("y"), casadi.SX.sym("v")
    system = symbolic.hybrid_system(
        [symbolic.SymbolicMode("air", state=[y, v], field=[v, -9.81])],
        [symbolic.SymbolicTransition("air", "hits", guard=y, target="air", reset=[y, -0.8 * v])],
    )

Expressions are SX or MX columns, numbers, or lists of them. Modes and resets evaluate compiled
functions, with memory of their own in each thread, and return new arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import casadi as ca

from hybridctl.base.checks import check_hashable, check_mapping, check_member, check_sequence, quote
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.hybrid import mode as hybrid
from hybridctl.hybrid.model import ModeKey
from hybridctl.hybrid.system import HybridSystem, check_parts
from hybridctl.sensitivity.parameter_models import SystemParameters, fix_inputs_as_parameters
from hybridctl.symbolic.expression_mode import ExpressionMode, ExpressionReset, ModeSymbols

Expression: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class SymbolicMode:
    r"""A mode with a state x in R^nx and the vector field :math:`\dot x = f(t, x, u)`.

    Its expressions, and the guards and resets of the transitions that leave it, are written in the
    symbols of `state`, `input` and `time`.

    Attributes:
        key: Key of the mode.
        state: Symbols of the state x (nx,).
        field: The vector field f (nx,), in units of the state per second.
        input: Symbols of the input u (nu,). None if there is no input.
        time: Symbol of the time t, s. None if nothing depends on it.
        outputs: Further quantities (n,) or (n, m), by name.
    """

    key: ModeKey
    state: Expression
    field: Expression
    input: Expression = None
    time: Expression = None
    outputs: Mapping[str, Expression] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SymbolicTransition:
    """A transition to another mode, or to the same, when a guard falls through zero.

    Attributes:
        source: Key of the mode before the transition.
        name: Name of the guard.
        guard: The guard, a scalar that is positive inside the source mode. It is written in the
            symbols of the source mode.
        target: Key of the mode after the transition.
        reset: The state after the transition, of the size of the target's state, in the symbols of
            the source mode. None if the state does not change.
    """

    source: ModeKey
    name: str
    guard: Expression
    target: ModeKey
    reset: Expression = None


# Systems that were written before these classes had their present names use these.
Mode, Transition = SymbolicMode, SymbolicTransition


@dataclass(frozen=True, eq=False)
class Joint:
    """The transition that replaces those of several guards when they fire together.

    Attributes:
        source: Key of the mode before the transition.
        names: Names of the guards, each of a `SymbolicTransition` that leaves the same mode.
        target: Key of the mode after the transition.
        reset: The state after the transition, see `SymbolicTransition`. `sensitivity.simultaneous`
            says how such an event is differentiated.
    """

    source: ModeKey
    names: Sequence[str]
    target: ModeKey
    reset: Expression = None


def hybrid_system(
    modes: Iterable[SymbolicMode], transitions: Iterable[SymbolicTransition | Joint]
) -> HybridSystem:
    """Return the hybrid system of expressions. Its fields, guards and resets have exact Jacobians.

    Args:
        modes: The modes.
        transitions: The transitions between them.

    Raises:
        SystemDefinitionError: Sizes do not fit, an expression has symbols that its mode does not
            declare, or modes and transitions are no graph.
        UnknownNameError: A joint transition has a guard that its mode does not have.
        InputError: Outputs are no mapping, names of a joint transition no list, or a key is not
            hashable.
    """
    modes = check_parts("modes", modes, (SymbolicMode,), "a SymbolicMode")
    kinds = "a SymbolicTransition or a Joint"
    transitions = check_parts("transitions", transitions, (SymbolicTransition, Joint), kinds)
    for mode in modes:
        check_hashable("key of a mode", mode.key)
    for edge in transitions:
        check_hashable("source of a transition", edge.source)
        check_hashable("target of a transition", edge.target)
    symbols = {mode.key: _declare_symbols(mode) for mode in modes}
    nodes = {}
    for mode in modes:
        guards = [
            (edge.name, edge.guard)
            for edge in transitions
            if isinstance(edge, SymbolicTransition) and edge.source == mode.key
        ]
        outputs = check_mapping(
            f"outputs of mode {mode.key!r}", mode.outputs, "names to expressions"
        )
        nodes[mode.key] = ExpressionMode(symbols[mode.key], mode.field, guards, outputs)
    # A key that stands twice gives the same node twice: HybridSystem reports it.
    edges = _build_edges(transitions, symbols, nodes)
    return HybridSystem([nodes[mode.key] for mode in modes], edges)


def parametric_system(
    modes: Iterable[SymbolicMode],
    transitions: Iterable[SymbolicTransition | Joint],
    parameters: Mapping[str, tuple[Expression, float]],
) -> tuple[HybridSystem, SystemParameters]:
    """Return the hybrid system of expressions in parameters, and its derivatives by these.

    Args:
        modes: The modes. Their expressions may have the symbols of the parameters.
        transitions: The transitions, with expressions as those of the modes.
        parameters: Symbol, a scalar, and value of each parameter, by name.

    Returns:
        The system for these values, and its derivatives by the parameters for
        `sensitivity.parameter_sensitivity`.

    Raises:
        InputError: A parameter is no pair of a symbol and a finite value.
        SystemDefinitionError: As for `hybrid_system`, also where a parameter is no symbol.
        UnknownNameError: A joint transition has a guard that its mode does not have.
    """
    modes = check_parts("modes", modes, (SymbolicMode,), "a SymbolicMode")
    for name, entry in parameters.items():
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise InputError(f"parameter {name!r} must be (symbol, value), got {quote(entry)}")
    symbols = [symbol for symbol, _ in parameters.values()]
    # Parameters are further inputs, which are then held at their values.
    extended = [
        replace(m, input=ca.vertcat(*([] if m.input is None else [_stack(m.input)]), *symbols))
        for m in modes
    ]
    values = {name: value for name, (_, value) in parameters.items()}
    return fix_inputs_as_parameters(hybrid_system(extended, transitions), values)


def variational(
    modes: Iterable[SymbolicMode], transitions: Iterable[SymbolicTransition | Joint]
) -> tuple[list[SymbolicMode], list[SymbolicTransition]]:
    r"""Return the modes and transitions of the system in (x, Phi), with the transition matrix Phi.

    Phi (n, n) stands below x (n,), column by column. It follows :math:`\dot\Phi = D_x f\, \Phi`
    and jumps by the saltation matrix, :math:`\Phi^+ = G\, \Phi^-`. First derivatives of this system
    are second derivatives of the given one.

    Args:
        modes: Modes of one dimension n.
        transitions: Transitions of single guards. Neither guards nor resets depend on the input.

    Returns:
        Arguments of `hybrid_system`.

    Raises:
        SystemDefinitionError: There are no modes, or they differ in dimension; a transition is a
            `Joint`, or begins or ends at an unknown mode; a size does not fit; or a guard or reset
            depends on the input: the rate of the input, which G contains, is not known. Symbols
            that no mode declares are left for `hybrid_system` to refuse.
    """
    given = check_parts("modes", modes, (SymbolicMode,), "a SymbolicMode")
    by_key = {mode.key: mode for mode in given}
    edges = check_parts("transitions", transitions, (SymbolicTransition,), "a SymbolicTransition")
    symbols = {mode.key: _declare_symbols(mode) for mode in given}
    sizes = {s.x.numel() for s in symbols.values()}
    if len(sizes) != 1:
        raise SystemDefinitionError(f"modes must have one dimension, got {sorted(sizes)}")
    _check_ends(edges, symbols)
    (n,), phi, extended_modes = sizes, {}, []
    for mode in given:
        s = symbols[mode.key]
        phi[mode.key] = type(s.x).sym("phi", n, n)
        f = s.convert_to_column("field", mode.field, n)
        phi_rate = ca.vec(ca.jacobian(f, s.x) @ phi[mode.key])
        x = ca.vertcat(s.x, ca.vec(phi[mode.key]))
        extended_modes.append(replace(mode, state=x, field=ca.vertcat(f, phi_rate)))
    extended_edges = []
    for edge in edges:
        before, after = symbols[edge.source], symbols[edge.target]
        f = before.convert_to_column("field", by_key[edge.source].field, n)
        g = before.convert_to_column(f"guard {edge.name!r}", edge.guard, 1)
        r = before.x if edge.reset is None else before.convert_to_column("reset", edge.reset, n)
        if ca.jacobian(ca.vertcat(g, r), before.u).nnz():
            raise SystemDefinitionError(
                f"guard {edge.name!r} of mode {edge.source!r}, or its reset, depends on the input, "
                "so that its saltation matrix depends on the input's rate"
            )
        # The field of the target at the state after the reset, in the symbols of the source.
        f_after = ca.substitute(
            [after.convert_to_column("field", by_key[edge.target].field, n)],
            [after.x, after.t, after.u],
            [r, before.t, before.u],
        )[0]
        # G = D_x R + (f+ - D_t R - D_x R f-) D_x g / (D_t g + D_x g f-), [Salt] (2).
        g_x, r_x = ca.jacobian(g, before.x), ca.jacobian(r, before.x)
        guard_rate = ca.jacobian(g, before.t) + g_x @ f
        saltation = r_x + (f_after - ca.jacobian(r, before.t) - r_x @ f) @ g_x / guard_rate
        phi_after = ca.vec(saltation @ phi[edge.source])
        extended_edges.append(replace(edge, reset=ca.vertcat(r, phi_after)))
    return extended_modes, extended_edges


def _declare_symbols(mode: SymbolicMode) -> ModeSymbols:
    return ModeSymbols.declare(mode.key, mode.time, mode.state, mode.input)


def _stack(expression: Expression) -> Expression:
    """Return a list of expressions as a column, and a column as it is."""
    return ca.vertcat(*expression) if isinstance(expression, list | tuple) else expression


def _check_ends(
    transitions: Iterable[SymbolicTransition | Joint], modes: Collection[ModeKey]
) -> None:
    """Check that transitions begin and end at modes.

    Args:
        transitions: The transitions.
        modes: Keys of all modes.

    Raises:
        SystemDefinitionError: One does not.
    """
    for edge in transitions:
        for end in (edge.source, edge.target):
            if end not in modes:
                raise SystemDefinitionError(
                    f"{end!r}, an end of a transition, is no mode, expected one of {list(modes)}"
                )


def _build_edges(
    transitions: Sequence[SymbolicTransition | Joint],
    symbols: Mapping[ModeKey, ModeSymbols],
    modes: Mapping[ModeKey, ExpressionMode],
) -> list[hybrid.Transition]:
    """Return the edges of the graph, and add the compiled resets to the modes.

    Args:
        transitions: The transitions.
        symbols: Symbols of each mode.
        modes: The modes. Each gets the compiled resets of the transitions that leave it.

    Raises:
        SystemDefinitionError: A transition begins or ends at an unknown mode, or a reset has the
            wrong size or undeclared symbols.
        UnknownNameError: A joint transition has a guard that its mode does not have.
        InputError: Names of a joint transition are no list.
    """
    _check_ends(transitions, symbols)
    guards = {
        key: {
            n: hybrid.Guard(n, partial(mode.guard_set.value, i))
            for i, n in enumerate(mode.guard_names)
        }
        for key, mode in modes.items()
    }
    edges = []
    for edge in transitions:
        source, own, known = modes[edge.source], symbols[edge.source], guards[edge.source]
        what = f"guard of mode {edge.source!r}"
        if isinstance(edge, SymbolicTransition):
            names = [edge.name]
        else:
            names = check_sequence("names of a joint", edge.names)
        fired = [known[check_member(what, name, known)] for name in names]
        what, size = f"reset of {', '.join(map(repr, names))}", symbols[edge.target].x.numel()
        column = own.convert_to_column(what, own.x if edge.reset is None else edge.reset, size)
        reset = ExpressionReset(what, own, column)
        # First-order terms of a joint transition come from `sensitivity.simultaneous`.
        if isinstance(edge, SymbolicTransition):
            expression = ca.Function("reset", [own.t, own.x, own.u], [column])
            source.compile_reset(source.guard_names.index(edge.name), reset, expression)
        edges.append(hybrid.Transition(edge.source, fired, reset, edge.target))
    return edges
