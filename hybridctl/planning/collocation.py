r"""Direct collocation of one phase: its variables, defects, and functions at its points.

A phase of duration T is split into N intervals of equal length h = T / N. On interval i the state
is the polynomial of degree d through its value :math:`x_i` at the start, a knot, and its values at
d collocation points, the roots of a Gauss or Radau polynomial. There the polynomial has the rate
of the dynamics, and its value at the end is the next knot:

.. math:: \sum_r D_{rj}\, x_{ir} = h f(x_{ij}, u(t_{ij})), \qquad
          \sum_r E_r\, x_{ir} = x_{i+1} .

The input is one polynomial in time on the whole phase, in Chebyshev's basis.

Most of a programme are functions of few arguments at many points, :math:`R_p = r(Z_p w)`, of whose
values R the constraints g and the Lagrangian L are sums. By the chain rule

.. math:: \frac{dg}{dw} = \frac{\partial g(w, R)}{\partial w}
              + \frac{\partial g}{\partial R}\, \mathrm{diag}(r'_1, r'_2, \dots)\, Z, \qquad
          H = \frac{\partial^2 L(w, R)}{\partial w^2}
              + \sum_p Z_p^T \Big( \sum_i \frac{\partial L}{\partial R_{ip}} r_i'' \Big) Z_p,

so that each point has its own small derivatives. CasADi's derivatives of the whole programme go
through all points once for each set of variables that its colouring keeps apart. The coefficients
of an input act on all points of their phase, so that there would be many such sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
from numpy.polynomial.chebyshev import chebvander

from hybridctl.base.checks import Array
from hybridctl.planning.phase_functions import Limit
from hybridctl.planning.task import Expression, Phase


@dataclass(frozen=True, eq=False)
class ConstraintBlock:
    """Constraints of one kind at n times.

    Attributes:
        values: Expressions (r, n).
        limits: Name, unit and bounds of each of the r rows.
        phase: Index of the phase, None for constraints on the whole motion.
        fractions: Fractions (n,) of the phase at which the constraints hold, None if they have no
            such place.
        lower_bounds: Lower bounds (r, n), None for those of `limits` at all times.
        is_hard: Whether the constraints are part of the discretisation. A search for the least
            violation never relaxes them.
    """

    values: Expression
    limits: tuple[Limit, ...]
    phase: int | None = None
    fractions: Array | None = None
    lower_bounds: Array | None = None
    is_hard: bool = False

    def compute_bounds(self) -> tuple[Array, Array]:
        """Return the lower and the upper bounds (r, n)."""
        n = self.values.shape[1]
        low = np.repeat([[limit.lower] for limit in self.limits], n, axis=1)
        high = np.repeat([[limit.upper] for limit in self.limits], n, axis=1)
        return (low if self.lower_bounds is None else self.lower_bounds), high


@dataclass(frozen=True, eq=False)
class PhaseVariables:
    """Variables of a phase, CasADi symbols.

    Attributes:
        knots: States (nx, N + 1) at the ends of the N intervals.
        points: States (nx, N d) at the collocation points.
        inputs: Chebyshev coefficients (nu, p + 1) of the input over the whole phase.
        duration: Duration T (1, 1), s.
    """

    knots: Expression
    points: Expression
    inputs: Expression
    duration: Expression

    @property
    def columns(self) -> list[Expression]:
        """The four groups of variables, each as one column, in the order of the programme."""
        return [ca.vec(part) for part in (self.knots, self.points, self.inputs, self.duration)]

    def build_input(self, fraction: Expression) -> Expression:
        """Return the input (nu, 1) at a fraction of the phase, which may lie outside [0, 1].

        The Chebyshev polynomials follow from their recurrence, T_{n+1} = 2 s T_n - T_{n-1}.

        Args:
            fraction: A number or an expression.
        """
        s = 2.0 * fraction - 1.0
        basis = [1.0, s]
        while len(basis) < self.inputs.shape[1]:
            basis.append(2.0 * s * basis[-1] - basis[-2])
        return self.inputs @ ca.vertcat(*basis[: self.inputs.shape[1]])

    def build_final_input_rate(self) -> Expression:
        """Return the rate du/dt (nu, 1) at the end of the phase, in the unit of the input per s."""
        slopes = 2.0 * np.arange(self.inputs.shape[1]) ** 2  # 2 T_n'(1), with T_n'(1) = n^2
        return self.inputs @ ca.DM(slopes) / self.duration


def build_phase_variables(phase: Phase, k: int, nx: int, nu: int, degree: int) -> PhaseVariables:
    """Return new symbols for the variables of a phase.

    Args:
        phase: The phase, with its numbers of intervals and points.
        k: Index of the phase, part of the names of the symbols.
        nx: Number of entries of the state.
        nu: Number of inputs.
        degree: Degree of the inputs.
    """
    return PhaseVariables(
        ca.MX.sym(f"knots{k}", nx, phase.intervals + 1),
        ca.MX.sym(f"points{k}", nx, phase.intervals * phase.points),
        ca.MX.sym(f"inputs{k}", nu, degree + 1),
        ca.MX.sym(f"duration{k}"),
    )


def compute_point_places(phase: Phase) -> Array:
    """Return the collocation points (d,) of one interval, as fractions of the interval."""
    return np.array(ca.collocation_points(phase.points, phase.scheme))


def compute_point_fractions(phase: Phase) -> Array:
    """Return the collocation points (N d,) of all intervals, as fractions of the phase."""
    roots = compute_point_places(phase)
    return np.asarray((np.arange(phase.intervals)[:, None] + roots).ravel() / phase.intervals)


def compute_knot_fractions(phase: Phase) -> Array:
    """Return the ends (N + 1,) of all intervals, as fractions of the phase."""
    return np.linspace(0.0, 1.0, phase.intervals + 1)


def compute_input_basis(fractions: Array, degree: int) -> Array:
    """Return the Chebyshev polynomials (p + 1, n) of the inputs.

    Args:
        fractions: Fractions (n,) of the phase.
        degree: Degree p.
    """
    return np.asarray(chebvander(2.0 * fractions - 1.0, degree).T)


class CollocationMatrices(NamedTuple):
    """Matrices of the polynomials of one interval, of unit length.

    Attributes:
        slopes: Matrix (d + 1, d) from values at start and points to slopes at the points.
        ends: Matrix (d + 1, 1) from the same values to the value at the end.
        weights: Quadrature weights (d, 1) of the points.
    """

    slopes: Array
    ends: Array
    weights: Array


def compute_collocation_matrices(phase: Phase) -> CollocationMatrices:
    """Return the matrices of the collocation scheme of a phase."""
    roots = ca.collocation_points(phase.points, phase.scheme)
    return CollocationMatrices(*(np.array(part) for part in ca.collocation_coeff(roots)))


def build_defects(
    phase: Phase,
    k: int,
    knots: Expression,
    points: Expression,
    rates: Expression,
    limits: tuple[Limit, ...],
) -> list[ConstraintBlock]:
    """Return the equations of collocation: slopes at the points, and continuity at the knots.

    Args:
        phase: The phase.
        k: Its index.
        knots: Values (n, N + 1) at the ends of intervals.
        points: Values (n, N d) at the collocation points.
        rates: Length of an interval times the rate (n, N d) that the dynamics have at the points.
        limits: Names and units of the n rows, with both bounds zero.
    """
    slopes, ends, _ = compute_collocation_matrices(phase)
    defects, joins = [], []
    for i in range(phase.intervals):
        interval = slice(i * phase.points, (i + 1) * phase.points)
        nodes = ca.horzcat(knots[:, i], points[:, interval])
        defects.append(nodes @ ca.DM(slopes) - rates[:, interval])
        joins.append(nodes @ ca.DM(ends) - knots[:, i + 1])
    fractions = compute_point_fractions(phase)
    return [
        ConstraintBlock(ca.horzcat(*defects), limits, k, fractions, is_hard=True),
        ConstraintBlock(ca.horzcat(*joins), limits, k, is_hard=True),
    ]


class MappedFunction(NamedTuple):
    """Values of a CasADi function at N points.

    Attributes:
        function: The `casadi.Function` r of columns (n_i, 1), with one result (m, 1).
        arguments: Its arguments (n_i, N), one point in each column. They are linear in the
            variables of the programme.
        values: Expression R (m, N) of the values.
    """

    function: Any
    arguments: tuple[Expression, ...]
    values: Expression

    @staticmethod
    def map_over(function: Any, *arguments: Expression) -> MappedFunction:
        """Return a function mapped over the columns of its arguments (n_i, N)."""
        return MappedFunction(function, arguments, function.map(arguments[0].shape[1])(*arguments))

    def build_selection(self, column: Expression) -> Any:
        """Return the matrix Z from the variables (n, 1) to the arguments, point after point."""
        return ca.evalf(ca.jacobian(ca.vec(ca.vertcat(*self.arguments)), column))

    def build_block_diagonal(self, derivative: Any, *weights: Expression) -> Expression:
        """Return a derivative at all points as a block diagonal matrix.

        Args:
            derivative: Function (z, weights) -> matrix, z being all arguments of one point.
            *weights: Further arguments (n, N) of this function.
        """
        z = ca.vertcat(*self.arguments)
        blocks = derivative.map(self.values.shape[1])(z, *weights)
        return ca.diagcat(*ca.horzsplit(blocks, z.shape[0]))

    def build_local_symbols(self) -> tuple[list[Expression], Expression]:
        """Return symbols for the arguments of one point, and all of them as one column."""
        parts = [ca.SX.sym("z", argument.shape[0]) for argument in self.arguments]
        return parts, ca.vertcat(*parts)


def build_jacobian(
    column: Expression, constraints: Expression, mapped: Sequence[MappedFunction]
) -> Expression:
    """Return the sparse Jacobian dg/dw.

    Args:
        column: Variables w (n, 1).
        constraints: Constraints g (m, 1), which depend on w directly and through `mapped`.
        mapped: The functions that are differentiated point by point.
    """
    outer, symbols = _separate(constraints, mapped)
    total = ca.jacobian(outer, column)
    for each, symbol in zip(mapped, symbols, strict=True):
        parts, local = each.build_local_symbols()
        slope = ca.Function("slope", [local], [ca.jacobian(each.function(*parts), local)])
        inner = each.build_block_diagonal(slope) @ each.build_selection(column)
        total += ca.jacobian(outer, ca.vec(symbol)) @ inner
    return total


def build_hessian(
    column: Expression, lagrangian: Expression, mapped: Sequence[MappedFunction]
) -> Expression:
    """Return the upper triangle of the sparse Hessian of the Lagrangian, as IPOPT wants it.

    Args:
        column: Variables w (n, 1).
        lagrangian: Lagrangian L (1, 1), which depends on w directly and through `mapped`. It has to
            be linear in the mapped values, with coefficients that do not depend on w.
        mapped: The functions that are differentiated point by point.
    """
    outer, symbols = _separate(lagrangian, mapped)
    total, _ = ca.hessian(outer, column)
    for each, symbol in zip(mapped, symbols, strict=True):
        parts, local = each.build_local_symbols()
        weight = ca.SX.sym("weight", symbol.shape[0])
        second, _ = ca.hessian(ca.dot(weight, each.function(*parts)), local)
        curvature = ca.Function("second", [local, weight], [second])
        selection = each.build_selection(column)
        blocks = each.build_block_diagonal(curvature, ca.gradient(outer, symbol))
        total += selection.T @ blocks @ selection
    return ca.triu(total)


def _separate(
    expression: Expression, mapped: Sequence[MappedFunction]
) -> tuple[Expression, list[Expression]]:
    """Return the expression with symbols in place of all mapped values, and these symbols."""
    symbols = [ca.MX.sym("values", *each.values.shape) for each in mapped]
    (outer,) = ca.graph_substitute([expression], [each.values for each in mapped], symbols)
    return outer, symbols
