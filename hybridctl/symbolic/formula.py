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

_FUNCTION_NAMES = ("sin", "cos", "tan", "tanh", "exp", "log", "sqrt")
FUNCTIONS = {name: getattr(ca, name) for name in _FUNCTION_NAMES}
"""The functions that a formula may call, by name. Each takes one number or CasADi expression."""
_MAX_CHARACTERS = 10_000
"""Most characters of a formula: a bound for text from files. A choice."""
_MAX_LEVELS = 200
"""Most levels of the syntax tree: `_evaluate` takes one frame of Python's stack for each, and
Python's usual limit is 1000."""
_OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def parse_formula(name: str, text: str, variables: Sequence[str]) -> Callable[..., Any]:
    """Return the function that a formula in a text file describes.

    A formula has numbers, pi, the variables, ``+ - * / **``, brackets and calls of `FUNCTIONS`.
    Nothing else is evaluated.

    Args:
        name: Name of the formula in error messages.
        text: The formula.
        variables: Names of the arguments of the function, in order.

    Returns:
        A function of one value for each variable, which are numbers or CasADi expressions. Of
        numbers, functions give NaN or infinities outside their domains, and operators do as
        Python's: 1 / 0 raises a `ZeroDivisionError`, and (-1) ** 0.5 is complex.

    Raises:
        InputError: The text is no such formula, is too long or has too many levels.
    """
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{name} must have at most {_MAX_CHARACTERS} characters, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{name} must be a formula, got {quote(text)}: {error}") from error
    if _count_levels(tree) > _MAX_LEVELS:
        raise InputError(
            f"{name} must be a formula of at most {_MAX_LEVELS} signs within each other, got "
            f"{quote(text)}"
        )

    def function(*values: Any) -> Any:
        return _evaluate(tree, {"pi": math.pi, **dict(zip(variables, values, strict=True))})

    # One evaluation with symbols visits the whole tree, so that faults are found now.
    try:
        function(*map(ca.SX.sym, variables))
    except (InputError, ArithmeticError) as error:
        raise InputError(
            f"{name} must be a formula of {', '.join(variables)}, numbers, pi, + - * / ** and "
            f"{', '.join(FUNCTIONS)}, got {quote(text)}: {error}"
        ) from error
    return function


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Return the value of a syntax tree; `values` has those of the names in it.

    Raises:
        InputError: The tree has a node that no formula may have.
    """
    match node:
        # In Python True is an int.
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Call(func=ast.Name(id=name), args=[of], keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](_evaluate(of, values))
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_evaluate(left, values), _evaluate(right, values))
        case ast.UnaryOp(op=operation, operand=of) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_evaluate(of, values))
    raise InputError(f"what is {quote(ast.unparse(node))}?")


def _count_levels(tree: ast.AST) -> int:
    """Return the number of levels of a syntax tree, counted without recursion."""
    count, level = 0, [tree]
    while level:
        count, level = count + 1, [part for node in level for part in ast.iter_child_nodes(node)]
    return count
