r"""Derivatives of a programme, point by point.

A programme is mostly functions of few arguments at many points, :math:`R_p = r(Z_p w)`, of whose
values R its constraints g and its Lagrangian L are sums. By the chain rule

.. math:: \frac{dg}{dw} = \frac{\partial g(w, R)}{\partial w}
              + \frac{\partial g}{\partial R}\, \mathrm{diag}(r'_1, r'_2, \dots)\, Z, \qquad
          H = \frac{\partial^2 L(w, R)}{\partial w^2}
              + \sum_p Z_p^T \Big( \sum_i \frac{\partial L}{\partial R_{ip}} r_i'' \Big) Z_p,

so that each point has its own small derivatives. Differentiation of the whole goes through all
points once for each set of variables that a colouring keeps apart, of which an input over the whole
phase makes many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import casadi as ca

from hybridctl.planning.trajectory.task import Expression


class ColumnFunction(NamedTuple):
    """Values (m, N) of a function of the columns of arguments (n_i, N), linear in the variables."""

    function: Any
    arguments: tuple[Expression, ...]
    values: Expression

    @staticmethod
    def over(function: Any, *arguments: Expression) -> ColumnFunction:
        """A function at all columns."""
        return ColumnFunction(function, arguments, function.map(arguments[0].shape[1])(*arguments))

    def places(self, column: Expression) -> Any:
        """The matrix Z of the arguments of all points, one after the other, by the variables."""
        return ca.evalf(ca.jacobian(ca.vec(ca.vertcat(*self.arguments)), column))

    def at_points(self, derivative: Any, *weights: Expression) -> Expression:
        """The matrices of a derivative (z, weights) at the points, along the diagonal."""
        z = ca.vertcat(*self.arguments)
        found = derivative.map(self.values.shape[1])(z, *weights)
        return ca.diagcat(*ca.horzsplit(found, z.shape[0]))


def jacobian(
    column: Expression, constraints: Expression, mapped: Sequence[ColumnFunction]
) -> Expression:
    """The Jacobian dg/dw of constraints g (m, 1) that depend on w through `mapped` and directly.

    column: w (n, 1).
    """
    seen, values = _seen(constraints, mapped)
    total = ca.jacobian(seen, column)
    for each, symbol in zip(mapped, values, strict=True):
        parts, local = _arguments(each)
        slope = ca.Function("slope", [local], [ca.jacobian(each.function(*parts), local)])
        inner = each.at_points(slope) @ each.places(column)
        total += ca.jacobian(seen, ca.vec(symbol)) @ inner
    return total


def hessian(
    column: Expression, lagrangian: Expression, mapped: Sequence[ColumnFunction]
) -> Expression:
    """The upper triangle of the Hessian of L by w; L depends on w through `mapped` and directly.

    column: w (n, 1).
    """
    seen, values = _seen(lagrangian, mapped)
    total, _ = ca.hessian(seen, column)
    for each, symbol in zip(mapped, values, strict=True):
        parts, local = _arguments(each)
        weight = ca.SX.sym("weight", symbol.shape[0])
        second, _ = ca.hessian(ca.dot(weight, each.function(*parts)), local)
        bend = ca.Function("second", [local, weight], [second])
        places = each.places(column)
        total += places.T @ each.at_points(bend, ca.gradient(seen, symbol)) @ places
    return ca.triu(total)


def _seen(
    expression: Expression, mapped: Sequence[ColumnFunction]
) -> tuple[Expression, list[Expression]]:
    """The expression with symbols in place of the values of `mapped`, and these."""
    values = [ca.MX.sym("values", *each.values.shape) for each in mapped]
    (seen,) = ca.graph_substitute([expression], [each.values for each in mapped], values)
    return seen, values


def _arguments(mapped: ColumnFunction) -> tuple[list[Expression], Expression]:
    """Symbols of the arguments of one point, and all of them in one column."""
    parts = [ca.SX.sym("z", argument.shape[0]) for argument in mapped.arguments]
    return parts, ca.vertcat(*parts)
