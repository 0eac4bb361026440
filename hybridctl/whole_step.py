r"""A whole integrator step as one compiled function.

Whole steps are those of `hybrid.step`: DOP853 with its error, the states at the Chebyshev nodes,
the guards there and their bounds; and, beside the stages k_i, those of the variational equation
along them,

.. math:: L_i = D_x f(t + c_i h, x_i)\, (1 + h \sum_j a_{ij} L_j),

so that the transition matrix 1 + h sum b_i L_i is the exact derivative of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import casadi as ca

from hybridctl.checks import Array
from hybridctl.compiled import Compiled
from hybridctl.hybrid.mode import Moved, Taken
from hybridctl.hybrid.series import DEGREE, FRACTIONS, TO_SERIES
from hybridctl.hybrid.tableau import DOP853_TABLEAU, LOW_WEIGHT

Expression = Any
Function = Any

_STAGES = DOP853_TABLEAU.stages
_LARGEST = 3000  # instructions of field and guards: building their step takes about a second
_LEAST = 1e-300  # keeps the error of a step that is exact from being 0 / 0


def compiled_step(
    motion: Function,
    field: Callable[[float, Array, Array], Array],
    guards: Callable[[float, Array, Array], Array],
) -> CompiledStep | None:
    """The whole step of a motion, see `CompiledStep`, or None for one that is too large to build.

    motion may be of MX, if all of it can be expanded to SX.
    """
    try:
        expanded = motion.expand()
    except RuntimeError:  # CasADi's, for what has no SX
        return None
    if expanded.n_instructions() > _LARGEST:
        return None
    return CompiledStep(expanded, field, guards)


class CompiledStep:
    """Whole steps of a field and its guards, given as functions and as expressions.

    motion: a Function (t, x, u) -> (field (nx,), guards (n,)) of dense SX. field, guards: the
    callables of the mode and its guard set that evaluate the same. Functions are built at first
    use.
    """

    def __init__(
        self,
        motion: Function,
        field: Callable[[float, Array, Array], Array],
        guards: Callable[[float, Array, Array], Array],
    ) -> None:
        self.field, self.guards, self._motion = field, guards, motion
        self._nx, self._n = motion.numel_out(0), motion.numel_out(1)

    @cached_property
    def _plain(self) -> Compiled:
        nodes = DEGREE + 1
        shapes = [(1,), (nodes, self._nx), (nodes, self._n), (self._n,)]
        return Compiled(_whole_step(self._motion), shapes)

    @cached_property
    def _varied(self) -> Compiled:
        return Compiled(_varied_step(self._motion), [(1,), (self._nx,), (self._nx, self._nx)])

    def __call__(self, t: float, x: Array, u: Array, h: float, rtol: float, atol: float) -> Taken:
        """The step of length h from (t, x) with the input u held."""
        error, states, guards, bounds = self._plain((t, h, rtol, atol), x, u)
        return Taken(float(error[0]), states.copy(), guards.copy(), bounds.copy())

    def transition(self, t: float, x: Array, u: Array, h: float, rtol: float, atol: float) -> Moved:
        """The same step with its derivative, whose entries count for the error as well."""
        error, end, columns = self._varied((t, h, rtol, atol), x, u)
        return Moved(float(error[0]), end.copy(), columns.T.copy())


class _Start(NamedTuple):
    """The inputs of a step, as symbols."""

    t: Expression
    h: Expression
    rtol: Expression
    atol: Expression
    x: Expression
    u: Expression

    @staticmethod
    def of(motion: Function) -> _Start:
        sizes = {"x": motion.numel_in(1), "u": motion.numel_in(2)}
        names = ("t", "h", "rtol", "atol")
        return _Start(*map(ca.SX.sym, names), *(ca.SX.sym(k, n) for k, n in sizes.items()))

    def function(self, name: str, results: Sequence[Expression]) -> Function:
        """The results as a function of (t, h, rtol, atol), x and u."""
        point = ca.vertcat(self.t, self.h, self.rtol, self.atol)
        return ca.Function(name, [point, self.x, self.u], [ca.densify(r) for r in results])


def _whole_step(motion: Function) -> Function:
    """Error, states at the nodes, guards there and their bounds."""
    start = _Start.of(motion)
    t, h, x, u = start.t, start.h, start.x, start.u
    states, rates = _stages(start, x, lambda time, state: motion(time, state, u)[0])
    end = states[_STAGES]
    nodes = [x, *(x + h * _sum(row, rates) for row in DOP853_TABLEAU.dense[1:-1]), end]
    times = [t + h * fraction for fraction in FRACTIONS]
    guards = [motion(time, node, u)[1] for time, node in zip(times, nodes, strict=True)]
    series = [_sum(row, guards) for row in TO_SERIES]
    bend = sum(map(ca.fabs, series[2:]))
    bounds = series[0] - ca.fabs(series[1]) - 2 * bend
    error = _error(start, x, end, rates)
    return start.function("step", [error, ca.horzcat(*nodes), ca.horzcat(*guards), bounds])


def _varied_step(motion: Function) -> Function:
    """Error, end state, and its derivative by x."""
    start = _Start.of(motion)
    n, u = start.x.numel(), start.u
    t, x = ca.SX.sym("t"), ca.SX.sym("x", n)
    rate = motion(t, x, u)[0]
    both = ca.Function("both", [t, x, u], [rate, ca.jacobian(rate, x)])

    def varied(time: Expression, state: Expression) -> Expression:
        value, slope = both(time, state[:, 0], u)
        return ca.horzcat(value, ca.mtimes(slope, state[:, 1:]))

    begin = ca.horzcat(start.x, ca.SX.eye(n))
    states, rates = _stages(start, begin, varied)
    end = states[_STAGES]
    parts = [
        _error(start, begin[:, part], end[:, part], [rate[:, part] for rate in rates])
        for part in (slice(0, 1), slice(1, n + 1))
    ]
    return start.function("varied", [ca.fmax(*parts), end[:, 0], end[:, 1:]])


def _stages(
    start: _Start, x: Expression, rate: Callable[[Expression, Expression], Expression]
) -> tuple[list[Expression], list[Expression]]:
    """States and rates at all stages of a step from x."""
    states, rates = [x], [rate(start.t, x)]
    for row, node in zip(DOP853_TABLEAU.rows, DOP853_TABLEAU.nodes, strict=True):
        states.append(x + start.h * _sum(row, rates))
        rates.append(rate(start.t + node * start.h, states[-1]))
    return states, rates


def _error(
    start: _Start, x: Expression, end: Expression, rates: Sequence[Expression]
) -> Expression:
    """The error of a step in units of the tolerance, as `Tableau.error` has it."""
    scale = start.atol + start.rtol * ca.fmax(ca.fabs(x), ca.fabs(end))
    main, low = (ca.sumsqr(_sum(row, rates) / scale) for row in DOP853_TABLEAU.errors)
    below = ca.sqrt((main + LOW_WEIGHT * low + _LEAST) * x.numel())
    return ca.fabs(start.h) * main / below


def _sum(weights: Array, terms: Sequence[Expression]) -> Expression:
    """The weighted sum of terms, of which there may be more than weights."""
    kept = [float(w) * term for w, term in zip(weights, terms, strict=False) if w]
    return sum(kept[1:], kept[0])
