"""Formulas in text files as functions, such as `0.02 * sin(3 * x)`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import casadi as ca

from hybridctl.base.checks import quote
from hybridctl.base.errors import InputError

_NAMES = ("sin", "cos", "tan", "tanh", "exp", "log", "sqrt")
FUNCTIONS = {name: getattr(ca, name) for name in _NAMES}
_LONGEST, _DEEPEST = 10_000, 200  # characters; levels
_OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def formula(name: str, text: str, variables: Sequence[str]) -> Callable[..., Any]:
    """The function of the variables that the text says, of numbers and CasADi expressions alike.

    Numbers, pi, the variables, ``+ - * / **``, brackets and `FUNCTIONS`; nothing else is evaluated.
    Raises `InputError` that calls the formula by its name and shows what is none.
    """
    if len(text) > _LONGEST:
        raise InputError(f"{name} must have at most {_LONGEST} characters, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{name} must be a formula, got {quote(text)}: {error}") from error
    if _depth(tree) > _DEEPEST:
        raise InputError(
            f"{name} must be a formula of at most {_DEEPEST} signs within each other, got "
            f"{quote(text)}"
        )

    def function(*values: Any) -> Any:
        return _value(tree, {"pi": math.pi, **dict(zip(variables, values, strict=True))})

    try:
        function(*map(ca.SX.sym, variables))
    except (InputError, ArithmeticError) as error:
        raise InputError(
            f"{name} must be a formula of {', '.join(variables)}, numbers, pi, + - * / ** and "
            f"{', '.join(FUNCTIONS)}, got {quote(text)}: {error}"
        ) from error
    return function


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Call(func=ast.Name(id=name), args=[of], keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](_value(of, values))
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=operation, operand=of) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(of, values))
    raise InputError(f"what is {quote(ast.unparse(node))}?")


def _depth(tree: ast.AST) -> int:
    """How many levels a tree has; the functions that walk it take a frame for each."""
    levels, level = 0, [tree]
    while level:
        levels, level = levels + 1, [part for node in level for part in ast.iter_child_nodes(node)]
    return levels
