r"""The Hessian of a programme's Lagrangian, point by point.

A programme is mostly functions of few arguments at many points, :math:`R_p = r(Z_p w)`, of whose
values R the Lagrangian is a sum. By the chain rule

.. math:: H = \frac{\partial^2 L(w, R)}{\partial w^2}
              + \sum_p Z_p^T \Big( \sum_i \frac{\partial L}{\partial R_{ip}} r_i'' \Big) Z_p,

so that each point has its own small Hessian. Differentiation of the whole goes through all points
once for each set of variables that a colouring of H keeps apart, of which an input over the whole
phase makes many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import casadi as ca

Expression = Any


class ColumnFunction(NamedTuple):
    """Values (m, N) of a function of the columns of arguments (n_i, N), linear in the variables."""

    function: Any
    arguments: tuple[Expression, ...]
    values: Expression

    @staticmethod
    def over(function: Any, *arguments: Expression) -> ColumnFunction:
        """A function at all columns."""
        return ColumnFunction(function, arguments, function.map(arguments[0].shape[1])(*arguments))


def hessian(
    column: Expression, lagrangian: Expression, mapped: Sequence[ColumnFunction]
) -> Expression:
    """The upper triangle of d^2 L / dw^2, L being a sum of what it sees of `mapped`, and of others.

    column: w (n, 1).
    """
    values = [ca.MX.sym("values", *each.values.shape) for each in mapped]
    (seen,) = ca.graph_substitute([lagrangian], [each.values for each in mapped], values)
    total, _ = ca.hessian(seen, column)
    for each, symbol in zip(mapped, values, strict=True):
        total += _of_points(column, each, ca.gradient(seen, symbol))
    return ca.triu(total)


def _of_points(column: Expression, mapped: ColumnFunction, weights: Expression) -> Expression:
    """The sum over the points, for weights (m, N) of the values."""
    points = mapped.values.shape[1]
    z = ca.vertcat(*mapped.arguments)
    parts = [ca.SX.sym("z", argument.shape[0]) for argument in mapped.arguments]
    local = ca.vertcat(*parts)
    weight = ca.SX.sym("weight", mapped.values.shape[0])
    second, _ = ca.hessian(ca.dot(weight, mapped.function(*parts)), local)
    at_points = ca.Function("second", [local, weight], [second]).map(points)(z, weights)
    blocks = ca.diagcat(*ca.horzsplit(at_points, z.shape[0]))
    places = ca.evalf(ca.jacobian(ca.vec(z), column))
    return places.T @ blocks @ places
