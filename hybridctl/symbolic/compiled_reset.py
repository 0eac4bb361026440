r"""The first-order terms of one guard and its reset, as one compiled function.

`sensitivity.saltation` makes the saltation matrix of these terms. With the rate f of the state and
rate du of the input before the event, they contain the rates

.. math::
    \dot g = D_t g + D_x g f + D_u g\, du, \qquad \dot R = D_t R + D_x R f + D_u R\, du

of the guard g and of the reset R.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import casadi as ca

from hybridctl.base.checks import Array
from hybridctl.hybrid.model import JumpTerms
from hybridctl.symbolic.compiled_function import BatchedFunction, CompiledFunction

Expression = Any
Function = Any


class CompiledReset:
    """The reset of one guard of a mode, with its first-order terms as a compiled function.

    The functions are made at first use.

    Args:
        motion: A `casadi.Function` (t, x, u) -> (rate (nx,), guards (n,), soundness) of SX of the
            mode before the event, in a vector space.
        guard: Index of the guard among the guards of `motion`.
        reset: A `casadi.Function` (t, x, u) -> x+ (nx+,) of SX.
    """

    def __init__(self, motion: Function, guard: int, reset: Function) -> None:
        self._motion, self._guard, self._reset = motion, guard, reset

    def __call__(self, t: float, x: Array, u: Array, du: Array) -> JumpTerms:
        """Return the first-order terms of guard and reset at a point before the event.

        Args:
            t: Time, s.
            x: State (nx,) before the event.
            u: Input (nu,) before the event.
            du: Rate (nu,) of the input before the event, 1/s.
        """
        (guard_rate, size), *arrays = self._terms((t,), x, u, du)
        return JumpTerms(float(guard_rate), float(size), *(array.copy() for array in arrays))

    @cached_property
    def _terms(self) -> CompiledFunction:
        """The function (t, x, u, du) -> guard rate and size (2,), and the arrays of `JumpTerms`."""
        t, x, u = self._motion.sx_in()
        n, nx, nu = self._reset.numel_out(0), x.numel(), u.numel()
        symbols = [t, x, u, ca.SX.sym("du", nu)]
        terms = [ca.densify(term.T) for term in self._differentiate(*symbols)]
        function = ca.Function("jump", symbols, ca.cse(terms))
        return CompiledFunction(function, [(2,), (nx,), (nu,), (n, nx), (n, nu), (n,)])

    @cached_property
    def batched(self) -> BatchedFunction:
        """The function of rows t (m, 1), x (m, nx), u (m, nu), for inputs at rest (du = 0).

        Its results are x+ (m, nx+), guard rate and size (m, 2), and of `JumpTerms` time_state
        (m, nx), reset_state (m, nx+, nx) and reset_rate (m, nx+).
        """
        t, x, u = self._motion.sx_in()
        state = self._reset(t, x, u)
        rates, by_state, _, r_x, _, rate = self._differentiate(t, x, u, 0.0 * u)
        columns = [ca.densify(c) for c in (state, rates, by_state, r_x.T, rate)]
        function = ca.Function("jump", [t, x, u], ca.cse(columns))
        n, nx = state.numel(), x.numel()
        return BatchedFunction(function, [(n,), (2,), (nx,), (n, nx), (n,)])

    def _differentiate(self, *symbols: Expression) -> tuple[Expression, ...]:
        """Return the terms as expressions in the symbols t, x, u and du.

        Returns:
            Guard rate and size in one column (2, 1), then the arrays of `JumpTerms` in its order,
            with vectors as columns.
        """
        t, x, u, du = symbols
        f, guards, _ = self._motion(t, x, u)
        guard, state = guards[self._guard], self._reset(t, x, u)
        point, rates = ca.vertcat(t, x, u), ca.vertcat(1.0, f, du)
        g, r = ca.jacobian(guard, point), ca.jacobian(state, point)
        # The size is what the terms of the guard rate would add up to if none cancelled.
        guard_rate, size = g @ rates, ca.fabs(g) @ ca.fabs(rates)
        of_state, of_input = slice(1, 1 + x.numel()), slice(1 + x.numel(), None)
        return (
            ca.vertcat(guard_rate, size),
            -g[of_state].T / guard_rate,
            -g[of_input].T / guard_rate,
            r[:, of_state],
            r[:, of_input],
            r @ rates,
        )
