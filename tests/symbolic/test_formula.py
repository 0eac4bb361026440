"""Formulas in text files: what they say, and that nothing else is evaluated."""

import casadi as ca
import numpy as np
import pytest

from hybridctl.base.errors import InputError
from hybridctl.symbolic.formula import FUNCTIONS, parse_formula


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1.0),
        ("-x + 2 * y", 1.4),
        ("(x - y) ** 2 / 4", 0.04),
        ("sin(pi * x / 2) * exp(-y)", np.sin(0.3 * np.pi) * np.exp(-1.0)),
        ("+sqrt(x) - tanh(cos(y))", np.sqrt(0.6) - np.tanh(np.cos(1.0))),
        ("log(x) + tan(y)", np.log(0.6) + np.tan(1.0)),
    ],
)
def test_a_formula_says_the_same_of_numbers_and_expressions(text, expected):
    f = parse_formula("height", text, ("x", "y"))
    assert f(0.6, 1.0) == pytest.approx(expected, rel=1e-14)
    x, y = ca.SX.sym("x"), ca.SX.sym("y")
    generated = ca.Function("f", [x, y], [f(x, y)])
    assert float(generated(0.6, 1.0)) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x +", "z", "sin", "sin(x, y)", "abs(x)", "x.real", "x < y", "'a'", "True"),
        *("x if y else 1", "__import__('os')", "[x]", "lambda: x", "x @ y", "1j", "x; y"),
        *("1 / 0", "x\0"),
    ],
)
def test_nothing_else_is_evaluated(text):
    with pytest.raises(InputError, match="height must be a formula"):
        parse_formula("height", text, ("x", "y"))


def test_functions_are_named_where_one_is_unknown():
    with pytest.raises(InputError, match=f"{', '.join(FUNCTIONS)}, got .*what is 'cosh"):
        parse_formula("height", "cosh(x)", ("x",))
